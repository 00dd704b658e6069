//! Forwarding of media.
//!
//! A *selective forwarding unit* (SFU, RFC 7667 section 3.7) does not decode or mix: it decrypts each RTP packet of a
//! publisher, and writes it to the slot of every subscriber, with sequence numbers of its own (`rtp_rewriting`). Feedback goes
//! the other way: a subscriber's request for a keyframe (PLI or FIR, RFC 4585 and RFC 5104) is passed to the publisher, at
//! a limited rate.
//!
//! A publisher may send video in several layers at once (`layers`). Each subscriber gets one that `adapting` has chosen.
//!
//! The packets also show who is speaking (`speakers`) and how good a connection is.

use std::time::Duration;

use livekit_protocol as proto;
use proto::signal_response::Message;
use str0m::format::Codec;
use str0m::media::{KeyframeRequestKind, Mid, Rid};
use str0m::rtp::RtpPacket;

use super::forwarding::Tagged;
use super::layers::LayerId;
use super::negotiation::TrackSid;
use super::participant::{Link, Participant, Publication, Side};
use super::peer::{Forwarded, ForwardedPacket};
use super::sdp::{self, SectionKind};
use super::sfu::Sfu;
use super::video_payload::{DependencyDescriptor, VideoPart};
use super::{Now, ParticipantKey, RoomKey};

/// The interval between keyframe requests to one publisher, however many subscribers need one.
const KEYFRAME_INTERVAL: Duration = Duration::from_millis(500);

/// How often the room is told of a changed codec of a track.
const RENAME_INTERVAL: Duration = Duration::from_secs(10);

impl Sfu {
    /// Handles a media packet of a publisher.
    pub(super) fn rtp(
        &mut self,
        key: ParticipantKey,
        mid: &Mid,
        rid: Option<Rid>,
        packet: &RtpPacket,
        now: Now,
    ) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let Some(peer) = participant.link.peer_mut(Side::Publisher) else {
            return;
        };
        let Some(payload) = peer.payload(packet.header.payload_type).copied() else {
            return;
        };
        let mid: &str = mid;
        let publication = participant
            .publications
            .iter_mut()
            .find(|publication| publication.is_in(mid));
        let Some(publication) = publication else {
            return;
        };
        if let Some(level) = packet.header.ext_vals.audio_level {
            publication
                .meter
                .observe(level.unsigned_abs(), packet.header.timestamp);
        }
        if publication.info.muted {
            return;
        }
        let codec = payload.spec().codec;
        let descriptor = packet.header.ext_vals.user_values.get_arc();
        let tagged = if publication.kind == SectionKind::Video {
            let rid = rid.as_deref();
            let tagged = tag(
                publication,
                mid,
                rid,
                packet,
                codec,
                descriptor.as_deref(),
                now,
            );
            if tagged.is_none() {
                return;
            }
            tagged
        } else {
            None
        };
        // Offers list the codecs that may be used; the packets show the one that is.
        let mime = sdp::video_mime(codec)
            .filter(|_| tagged.is_some_and(|tagged| tagged.layer.encoding == 0))
            .filter(|mime| publication.info.mime_type != *mime);
        let rested = publication
            .renamed
            .is_none_or(|at| now.instant.saturating_duration_since(at) >= RENAME_INTERVAL);
        let renamed = mime.filter(|_| rested);
        if let Some(mime) = renamed {
            mime.clone_into(&mut publication.info.mime_type);
            publication.renamed = Some(now.instant);
        }
        let track = TrackSid::clone(&publication.sid);
        let packet = ForwardedPacket {
            ssrc: *packet.header.ssrc,
            sequence: *packet.seq_no,
            time: packet.header.timestamp,
            marker: packet.header.marker,
            payload: Some(&packet.payload),
            pcm: None,
            audio_level: packet.header.ext_vals.audio_level,
            voice_activity: packet.header.ext_vals.voice_activity,
            video_orientation: packet.header.ext_vals.video_orientation,
            format: Some(&payload),
            video: tagged,
            descriptor,
        };
        self.forward(key, &track, &packet, now);
        if renamed.is_some() {
            self.announce(key, now);
        }
    }

    /// Forwards a packet of a track to all its subscribers, in its room and where its publisher is forwarded to.
    pub(super) fn forward(
        &mut self,
        key: ParticipantKey,
        track: &TrackSid,
        packet: &ForwardedPacket<'_>,
        now: Now,
    ) {
        let Some(publisher) = self.participants.get(&key) else {
            return;
        };
        let forwarded = publisher.forwarded.iter();
        let forwarded = forwarded.filter_map(|forwarded| self.participants.get(forwarded));
        let elsewhere: Vec<RoomKey> = forwarded.map(|forwarded| forwarded.room).collect();
        let rooms = std::iter::once(publisher.room).chain(elsewhere);
        let rooms = rooms.filter_map(|room| self.rooms.get(&room));
        let members = rooms.flat_map(|room| &room.members);
        let mut touched = Vec::new();
        for member in members.filter(|member| **member != key) {
            let Some(subscriber) = self.participants.get_mut(member) else {
                continue;
            };
            if let Link::Local(local) = &subscriber.link {
                if local.carries(track)
                    && let Some(packet) = packet.local(local.needs_opus, now.instant)
                {
                    local.media.hear(track, packet);
                    self.counters.forwarded_packets += 1;
                }
                continue;
            }
            let side = subscriber.link.down_side();
            let Some(down) = subscriber.link.down_mut() else {
                continue;
            };
            match down.forward(track, packet, now.instant) {
                Forwarded::Not => continue,
                Forwarded::Queued { whole } => touched.push((*member, side, whole)),
                Forwarded::Sent(transmit) => {
                    self.counters.fast_packets += 1;
                    self.outputs.datagrams.push(transmit);
                }
            }
            self.counters.forwarded_packets += 1;
        }
        for (member, side, whole) in touched {
            if whole {
                self.touch_to_send(member, side);
            } else {
                self.touch_for_picture(member, side, now);
            }
        }
    }

    /// A subscriber needs a keyframe: its publisher is asked for one.
    pub(super) fn keyframe_wanted(
        &mut self,
        key: ParticipantKey,
        mid: &Mid,
        kind: KeyframeRequestKind,
        now: Now,
    ) {
        let Some(subscriber) = self.participants.get(&key) else {
            return;
        };
        let mid: &str = mid;
        let Some(down) = subscriber.link.down() else {
            return;
        };
        let target = down.target(mid).map(|target| target.layer);
        let layer = down.current(mid).or(target);
        let Some(track) = down.slots.get(mid).and_then(|slot| slot.carries.as_ref()) else {
            return;
        };
        let track = TrackSid::clone(&track.track);
        if let Some(publisher) = self.publisher_of(key, &track) {
            self.ask_for_keyframe(publisher, &track, layer, kind, now);
        }
    }

    /// Asks a publisher for a keyframe of a layer, if it was not asked just now.
    pub(super) fn ask_for_keyframe(
        &mut self,
        publisher: ParticipantKey,
        track: &str,
        layer: Option<LayerId>,
        kind: KeyframeRequestKind,
        now: Now,
    ) {
        let Some(participant) = self.participants.get_mut(&publisher) else {
            return;
        };
        let Some(publication) = participant.publication_mut(track) else {
            return;
        };
        let layer = layer.unwrap_or(LayerId {
            encoding: 0,
            place: 0,
        });
        let encoding = publication.encodings.get_mut(usize::from(layer.encoding));
        let Some(encoding) = encoding else {
            return;
        };
        // The layers of one stream have their keyframes together.
        let place = if encoding.scalable { 0 } else { layer.place };
        let mid = encoding.mid.clone();
        let Some(layer) = encoding.layer_mut(place) else {
            return;
        };
        let recent = layer
            .asked
            .is_some_and(|at| now.instant.saturating_duration_since(at) < KEYFRAME_INTERVAL);
        if recent {
            return;
        }
        layer.asked = Some(now.instant);
        let (rid, ssrc) = (layer.rid.clone(), layer.ssrc);
        if let Some(peer) = participant.link.peer_mut(Side::Publisher) {
            peer.request_keyframe((&mid, rid.as_deref(), ssrc), kind);
            self.touch(publisher, Side::Publisher);
        }
    }

    /// Begins tracks that are silent or muted when they are subscribed: clients on pion tell their applications of a track
    /// when its first packet comes.
    pub(super) fn begin_silent_tracks(&mut self, key: RoomKey, now: Now) {
        let Some(room) = self.rooms.get(&key) else {
            return;
        };
        let mut touched = Vec::new();
        for member in &room.members {
            let Some(subscriber) = self.participants.get_mut(member) else {
                continue;
            };
            let side = subscriber.link.down_side();
            let down = subscriber.link.down_mut();
            if down.is_some_and(|down| down.begin_silent_tracks(now.instant)) {
                touched.push((*member, side));
            }
        }
        for (member, side) in touched {
            self.touch(member, side);
        }
    }

    /// Tells the room which speakers have changed.
    pub(super) fn tell_speakers(&mut self, key: RoomKey, now: Now) {
        let Some(room) = self.rooms.get_mut(&key) else {
            return;
        };
        let mut speaking = Vec::new();
        for member in &room.members {
            let source = self.participants.get(member);
            let source = source.and_then(|member| member.source());
            let source = source.and_then(|source| self.participants.get(&source));
            // Tracks are judged once, in their own room.
            let elsewhere = source.map(|source| source.level);
            let Some(participant) = self.participants.get_mut(member) else {
                continue;
            };
            let level = elsewhere.unwrap_or_else(|| judge(participant, now));
            if level > 0.0 && participant.visible() {
                speaking.push((participant.sid.to_string(), level));
            }
        }
        let before = std::mem::replace(&mut room.speakers, speaking);
        let now_speaking = &room.speakers;
        let changed = now_speaking
            .iter()
            .filter(|speaker| !before.contains(speaker));
        let mut speakers: Vec<proto::SpeakerInfo> = changed
            .map(|(sid, level)| proto::SpeakerInfo {
                sid: sid.clone(),
                level: level.min(1.0),
                active: true,
            })
            .collect();
        let stopped = before
            .iter()
            .filter(|(sid, _)| !now_speaking.iter().any(|(speaking, _)| speaking == sid));
        speakers.extend(stopped.map(|(sid, _)| proto::SpeakerInfo {
            sid: sid.clone(),
            level: 0.0,
            active: false,
        }));
        if !speakers.is_empty() {
            self.tell_room(
                key,
                Message::SpeakersChanged(proto::SpeakersChanged { speakers }),
                None,
                None,
            );
        }
    }

    /// Tells the room of a changed connection quality. Never `LOST` for a participant that is still there: clients
    /// reconnect when they read that.
    pub(super) fn tell_quality(&mut self, key: ParticipantKey, now: Now) {
        use proto::ConnectionQuality::{Excellent, Good, Poor};
        let participant = self.participants.get(&key);
        let loss = participant.map_or(0.0, |participant| self.publisher(participant).loss);
        let Some(participant) = self.participants.get_mut(&key).filter(|participant| {
            participant
                .judged_from
                .is_some_and(|from| from <= now.instant)
        }) else {
            return;
        };
        let quality = match loss {
            loss if loss < 0.02 => Excellent,
            loss if loss < 0.08 => Good,
            _ => Poor,
        };
        let before = participant.quality.replace(quality);
        if before == Some(quality) {
            return;
        }
        let (room, visible) = (participant.room, participant.visible());
        let update = quality_of([&**participant]);
        if visible {
            // Not to who is still joining: clients take the value then, but tell their applications only of changes once
            // they are connected. They are told with their own first quality, below.
            self.tell_members(room, update, None, |member| member.quality.is_some());
        } else {
            self.tell(key, update);
        }
        if before.is_none() {
            // A new participant does not know the quality of the others yet.
            let others = self
                .members(room)
                .filter(|other| other.key != key && other.visible());
            let update = quality_of(others);
            self.tell(key, update);
        }
    }
}

/// How loud a participant was since the last time.
fn judge(participant: &mut Participant, now: Now) -> f32 {
    let simulated = participant
        .simulated_speaker_until
        .is_some_and(|until| until > now.instant);
    let mut level = if simulated { 1.0 } else { 0.0f32 };
    for publication in participant
        .publications
        .iter_mut()
        .filter(|publication| publication.kind == SectionKind::Audio)
    {
        let measured = publication.meter.judge();
        if !publication.info.muted {
            level = level.max(measured);
        }
    }
    participant.level = level;
    level
}

/// Takes notice of a video packet; `None` if it belongs to no layer.
fn tag(
    publication: &mut Publication,
    mid: &str,
    rid: Option<&str>,
    packet: &RtpPacket,
    codec: Codec,
    descriptor: Option<&DependencyDescriptor>,
    now: Now,
) -> Option<Tagged> {
    let mut encodings = publication.encodings.iter_mut();
    let encoding = encodings.find(|encoding| encoding.mid == mid)?;
    encoding.codec = Some(codec);
    let payload = &packet.payload;
    let marker = packet.header.marker;
    let part = VideoPart::read(codec, payload, marker, descriptor, &mut encoding.structure);
    let ssrc = *packet.header.ssrc;
    let layer = encoding.locate(rid, ssrc, part.spatial)?;
    encoding.observe(layer.place, ssrc, payload.len(), &part, now.instant);
    Some(Tagged {
        layer,
        quality: encoding.quality_of(layer.place),
        scalable: encoding.scalable,
        part,
    })
}

/// The connection quality of these participants, where it is known.
fn quality_of<'a>(participants: impl IntoIterator<Item = &'a Participant>) -> Message {
    use proto::ConnectionQuality::{Excellent, Good};
    let judged = participants
        .into_iter()
        .filter_map(|participant| Some((participant, participant.quality?)));
    let updates = judged.map(|(participant, quality)| proto::ConnectionQualityInfo {
        participant_sid: participant.sid.to_string(),
        quality: quality as i32,
        score: match quality {
            Excellent => 5.0,
            Good => 4.0,
            _ => 2.0,
        },
    });
    Message::ConnectionQuality(proto::ConnectionQualityUpdate {
        updates: updates.collect(),
    })
}
