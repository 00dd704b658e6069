//! Tracks: publishing, who gets what, and the packets themselves. The slots are `negotiation`'s, the peer connections
//! `peer`'s; here is what connects one participant's tracks with another's slots.

use std::time::Duration;

use livekit_protocol as proto;
use proto::request_response::Reason;
use proto::signal_response::Message;
use str0m::media::{KeyframeRequestKind, Mid, Rid};
use str0m::rtp::RtpPacket;

use super::events::Event;
use super::limits;
use super::negotiation::{Pending, TrackSid, Wanted, published_by};
use super::participant::{Link, Participant, Publication, Side, allows};
use super::peer::Peer;
use super::sdp::{self, Section, SectionKind};
use super::speakers::LevelMeter;
use super::world::World;
use super::{Now, ParticipantKey, RoomKey};

/// A publisher is asked for a picture at most so often, however many subscribers need one.
const KEYFRAME_INTERVAL: Duration = Duration::from_millis(500);

impl World {
    /// A client announces a track that its next offer will carry.
    pub(super) fn add_track(&mut self, key: ParticipantKey, request: proto::AddTrackRequest) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        let kind = match proto::TrackType::try_from(request.r#type) {
            Ok(proto::TrackType::Audio) => SectionKind::Audio,
            Ok(proto::TrackType::Video) => SectionKind::Video,
            _ => {
                return self.refuse_track(
                    key,
                    request,
                    Reason::UnsupportedType,
                    "only audio and video tracks are published this way",
                );
            }
        };
        if !participant.may_publish(request.source) {
            return self.refuse_track(
                key,
                request,
                Reason::NotAllowed,
                "the token does not allow this track to be published",
            );
        }
        if participant.publications.len() >= limits::TRACKS_PER_PARTICIPANT {
            return self.refuse_track(key, request, Reason::LimitExceeded, "too many tracks");
        }
        let known = participant
            .publications
            .iter()
            .find(|publication| publication.cid == request.cid && publication.mid.is_none());
        let published = match known {
            // The same request again, after a resume.
            Some(publication) => proto::TrackPublishedResponse {
                cid: request.cid,
                track: Some(publication.info.clone()),
            },
            None => {
                let publication = self.publication(kind, request);
                let response = proto::TrackPublishedResponse {
                    cid: publication.cid.clone(),
                    track: Some(publication.info.clone()),
                };
                if let Some(participant) = self.participants.get_mut(&key) {
                    participant.publications.push(publication);
                }
                response
            }
        };
        self.tell(key, Message::TrackPublished(published));
    }

    fn refuse_track(
        &mut self,
        key: ParticipantKey,
        request: proto::AddTrackRequest,
        reason: Reason,
        message: &str,
    ) {
        let response = proto::RequestResponse {
            reason: reason as i32,
            message: message.to_owned(),
            request: Some(proto::request_response::Request::AddTrack(request)),
            ..Default::default()
        };
        self.tell(key, Message::RequestResponse(response));
    }

    fn publication(&mut self, kind: SectionKind, request: proto::AddTrackRequest) -> Publication {
        let source = match proto::TrackSource::try_from(request.source) {
            Ok(proto::TrackSource::Camera) => 'C',
            Ok(proto::TrackSource::Microphone) => 'M',
            Ok(proto::TrackSource::ScreenShare) => 'S',
            Ok(proto::TrackSource::ScreenShareAudio) => 's',
            _ => 'U',
        };
        let letter = if kind == SectionKind::Video { 'V' } else { 'A' };
        let sid = self.sid(&format!("TR_{letter}{source}"));
        let info = proto::TrackInfo {
            sid: sid.to_string(),
            r#type: request.r#type,
            name: request.name,
            muted: request.muted,
            width: request.width,
            height: request.height,
            simulcast: request.layers.len() > 1,
            disable_dtx: request.disable_dtx,
            source: request.source,
            layers: request.layers,
            stereo: request.stereo,
            disable_red: true,
            encryption: request.encryption,
            stream: request.stream,
            audio_features: request.audio_features,
            mime_type: if kind == SectionKind::Audio {
                "audio/opus".to_owned()
            } else {
                String::new()
            },
            ..Default::default()
        };
        Publication {
            sid,
            cid: request.cid,
            info,
            kind,
            mid: None,
            layer: None,
            meter: LevelMeter::default(),
            told_subscribed: false,
            keyframe_asked: None,
        }
    }

    /// An offer of the client: what it publishes, and the slots in which it can receive.
    pub(super) fn offered(
        &mut self,
        key: ParticipantKey,
        offer: &proto::SessionDescription,
        now: Now,
    ) {
        let sections = match sdp::sections(&offer.sdp) {
            Ok(sections) => sections,
            Err(error) => {
                tracing::debug!(%error, "an offer cannot be used");
                return self.renew(key, proto::DisconnectReason::UnknownReason);
            }
        };
        let addresses = self.settings.addresses.clone();
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        participant.offer_asked = None;
        if let Link::Two {
            publisher: publisher @ None,
            ..
        } = &mut participant.link
        {
            *publisher = Some(Box::new(Peer::new(&addresses, now.instant)));
        }
        let announced = bind(participant, &sections);
        let one = matches!(participant.link, Link::One(_));
        let wanted = if one { self.wanted(key) } else { Vec::new() };
        let Some(peer) = self.peer_mut(key, Side::Publisher) else {
            return;
        };
        let mut carried = Vec::new();
        if one {
            peer.slots.follow(&sections);
            peer.slots.release(&wanted);
            let assigned = peer.slots.assign(&wanted);
            for (mid, track, used) in assigned.changed {
                peer.renew_slot(&mid, used);
                carried.push(track);
            }
        }
        let answer = peer.accept_offer(&offer.sdp);
        let mid_to_track_id = if one {
            peer.slots.map()
        } else {
            Default::default()
        };
        self.touch(key, Side::Publisher);
        match answer {
            Ok(sdp) => {
                let answer = proto::SessionDescription {
                    r#type: "answer".to_owned(),
                    sdp,
                    id: offer.id,
                    mid_to_track_id,
                };
                self.tell(key, Message::Answer(answer));
            }
            Err(error) => {
                tracing::debug!(%error, "an offer was refused");
                return self.renew(key, proto::DisconnectReason::UnknownReason);
            }
        }
        self.tell_subscribed(&carried, now);
        self.published_changed(key, announced, now);
        self.reconcile(key, now);
    }

    /// Tells of publications that began or ended with an offer.
    fn published_changed(&mut self, key: ParticipantKey, changes: Changes, now: Now) {
        if changes.begun.is_empty() && changes.ended.is_empty() {
            return;
        }
        self.announce(key);
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        let (room, info) = (participant.room, participant.info());
        for (tracks, event) in [
            (changes.begun, Event::TrackPublished),
            (changes.ended, Event::TrackUnpublished),
        ] {
            for track in tracks {
                self.record(event, room, Some(info.clone()), Some(track), now);
            }
        }
        if let Some(room) = self.rooms.get_mut(&room) {
            room.counts_changed = true;
        }
        self.reconcile_room(room, now);
    }

    /// Everything a subscriber shall receive now.
    pub(super) fn wanted(&self, key: ParticipantKey) -> Vec<Wanted> {
        let Some(subscriber) = self.participants.get(&key) else {
            return Vec::new();
        };
        if !subscriber.permission.can_subscribe {
            return Vec::new();
        }
        let others = self
            .members(subscriber.room)
            .filter(|other| other.key != key);
        let tracks = others.flat_map(|other| {
            other
                .published()
                .map(move |publication| (other, publication))
        });
        let chosen = tracks.filter(|(other, publication)| {
            let choice = subscriber.choices.get(&publication.sid).copied();
            // A hidden publisher's tracks cannot be named by anybody who does not know of it.
            other.visible()
                && choice.unwrap_or(subscriber.auto_subscribe)
                && other.allows(&publication.sid, &subscriber.sid, &subscriber.identity)
        });
        let wanted = chosen.map(|(other, publication)| Wanted {
            track: TrackSid::clone(&publication.sid),
            publisher: other.sid.clone(),
            kind: publication.kind,
        });
        wanted.collect()
    }

    /// Brings what a subscriber gets in line with what it shall get: at once for what ends, by a new description for
    /// what begins.
    pub(super) fn reconcile(&mut self, key: ParticipantKey, now: Now) {
        let wanted = self.wanted(key);
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        if matches!(participant.link, Link::Two { .. }) {
            return self.offer_subscriber(key, false, now);
        }
        let active = participant.was_active;
        let peer = participant.link.down_mut();
        let released = !peer.slots.release(&wanted).is_empty();
        participant.stale |= released || peer.slots.missing(&wanted).next().is_some();
        if !participant.stale
            || !active
            || participant.offer_asked.is_some()
            || participant.connection.is_none()
        {
            return;
        }
        participant.stale = false;
        participant.offer_asked = Some(now.instant);
        let shortage = participant.link.down().slots.shortage(&wanted);
        let requirement = proto::MediaSectionsRequirement {
            num_audios: shortage.audio,
            num_videos: shortage.video,
        };
        self.tell(key, Message::MediaSectionsRequirement(requirement));
    }

    /// The same for everybody in a room.
    pub(super) fn reconcile_room(&mut self, room: RoomKey, now: Now) {
        let members = self
            .rooms
            .get(&room)
            .map(|room| room.members.clone())
            .unwrap_or_default();
        for member in members {
            self.reconcile(member, now);
        }
    }

    /// With two peer connections the server offers what the client receives. One offer is out at a time.
    pub(super) fn offer_subscriber(&mut self, key: ParticipantKey, first: bool, now: Now) {
        let wanted = self.wanted(key);
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let Link::Two {
            subscriber: peer, ..
        } = &mut participant.link
        else {
            return;
        };
        let mut silenced: Vec<String> = peer
            .slots
            .release(&wanted)
            .into_iter()
            .map(|(mid, _)| mid)
            .collect();
        participant.stale |= !silenced.is_empty() || peer.slots.missing(&wanted).next().is_some();
        if participant.connection.is_none() || peer.awaits_answer() || !(participant.stale || first)
        {
            return;
        }
        participant.stale = false;
        let assigned = peer.slots.assign(&wanted);
        let revived: Vec<String> = assigned
            .changed
            .iter()
            .map(|(mid, ..)| mid.clone())
            .collect();
        let mut carried: Vec<TrackSid> = assigned
            .changed
            .iter()
            .map(|(_, track, _)| track.clone())
            .collect();
        for (mid, _, used) in &assigned.changed {
            peer.renew_slot(mid, *used);
        }
        // Slots released while an offer was out are silenced now.
        silenced.extend(
            peer.slots
                .iter()
                .filter(|slot| slot.carries.is_none())
                .map(|slot| slot.mid.clone()),
        );
        let added: Vec<Wanted> = peer.slots.missing(&wanted).cloned().collect();
        carried.extend(added.iter().map(|wanted| wanted.track.clone()));
        let offered = peer.offer(&added, &silenced, &revived, first);
        self.send_offer(key, offered, now);
        self.tell_subscribed(&carried, now);
    }

    /// A resumed client with two peer connections needs a fresh path on the one that the server offers.
    pub(super) fn restart_subscriber(&mut self, key: ParticipantKey, now: Now) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let Link::Two { subscriber, .. } = &mut participant.link else {
            return;
        };
        let offered = subscriber.restart_offer();
        self.send_offer(key, offered, now);
    }

    fn send_offer(
        &mut self,
        key: ParticipantKey,
        offered: Result<Option<String>, super::peer::PeerError>,
        now: Now,
    ) {
        self.touch(key, Side::Subscriber);
        let id = u32::try_from(self.fresh_key() & 0x7FFF_FFFF).unwrap_or(1);
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        match offered {
            Ok(Some(sdp)) => {
                participant.offer_asked = Some(now.instant);
                let mid_to_track_id = participant.link.down().slots.map();
                let offer = proto::SessionDescription {
                    r#type: "offer".to_owned(),
                    sdp,
                    id,
                    mid_to_track_id,
                };
                self.tell(key, Message::Offer(offer));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "an offer could not be made");
                self.renew(key, proto::DisconnectReason::UnknownReason);
            }
        }
    }

    /// The client's answer to the server's offer.
    pub(super) fn answered(
        &mut self,
        key: ParticipantKey,
        answer: &proto::SessionDescription,
        now: Now,
    ) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        participant.offer_asked = None;
        let Some(peer) = participant.link.peer_mut(Side::Subscriber) else {
            return;
        };
        if let Err(error) = peer.accept_answer(&answer.sdp) {
            tracing::debug!(%error, "an answer was refused");
            return self.renew(key, proto::DisconnectReason::UnknownReason);
        }
        self.touch(key, Side::Subscriber);
        self.reconcile(key, now);
    }

    /// Tells publishers that somebody subscribed, once for each track; a picture is asked for to start from.
    fn tell_subscribed(&mut self, tracks: &[TrackSid], now: Now) {
        for track in tracks {
            let found = self.participants.values_mut().find_map(|participant| {
                let key = participant.key;
                participant
                    .publication_mut(track)
                    .map(|publication| (key, publication))
            });
            let Some((publisher, publication)) = found else {
                continue;
            };
            if !std::mem::replace(&mut publication.told_subscribed, true) {
                let subscribed = proto::TrackSubscribed {
                    track_sid: track.to_string(),
                };
                self.tell(publisher, Message::TrackSubscribed(subscribed));
            }
            self.ask_for_keyframe(publisher, track, KeyframeRequestKind::Pli, now);
        }
    }

    /// A client chooses tracks by name.
    pub(super) fn choose(
        &mut self,
        key: ParticipantKey,
        subscription: &proto::UpdateSubscription,
        _now: Now,
    ) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let nested = subscription
            .participant_tracks
            .iter()
            .flat_map(|tracks| &tracks.track_sids);
        for sid in subscription.track_sids.iter().chain(nested) {
            if participant.choices.len() < limits::CHOICES_PER_PARTICIPANT
                || participant.choices.contains_key(sid.as_str())
            {
                participant
                    .choices
                    .insert(sid.as_str().into(), subscription.subscribe);
            }
        }
    }

    /// A client says which video it does not look at now; sizes and qualities are not had here.
    pub(super) fn track_setting(
        &mut self,
        key: ParticipantKey,
        setting: &proto::UpdateTrackSettings,
        now: Now,
    ) {
        let mut enabled = Vec::new();
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        for sid in &setting.track_sids {
            let before = participant
                .disabled
                .iter()
                .position(|disabled| **disabled == **sid);
            match (before, setting.disabled) {
                (None, true) if participant.disabled.len() < limits::CHOICES_PER_PARTICIPANT => {
                    participant.disabled.push(sid.as_str().into())
                }
                (Some(at), false) => enabled.push(participant.disabled.swap_remove(at)),
                _ => {}
            }
        }
        for track in enabled {
            let publisher = self.participants.values().find(|other| {
                other
                    .published()
                    .any(|publication| publication.sid == track)
            });
            if let Some(publisher) = publisher.map(|publisher| publisher.key) {
                self.ask_for_keyframe(publisher, &track, KeyframeRequestKind::Pli, now);
            }
        }
    }

    /// A publisher says who may have its tracks; those who lose or gain one are told.
    pub(super) fn subscription_permission(
        &mut self,
        key: ParticipantKey,
        permission: proto::SubscriptionPermission,
        now: Now,
    ) {
        if permission.track_permissions.len() > limits::PERMISSIONS_PER_PARTICIPANT {
            return;
        }
        let Some(publisher) = self.participants.get_mut(&key) else {
            return;
        };
        let room = publisher.room;
        let before = publisher.subscription_permission.replace(permission);
        let Some(publisher) = self.participants.get(&key) else {
            return;
        };
        let mut changes = Vec::new();
        for other in self.members(room).filter(|other| other.key != key) {
            for publication in publisher.published() {
                let allowed = publisher.allows(&publication.sid, &other.sid, &other.identity);
                let was = allows(
                    before.as_ref(),
                    &publication.sid,
                    &other.sid,
                    &other.identity,
                );
                if allowed != was {
                    let change = proto::SubscriptionPermissionUpdate {
                        participant_sid: publisher.sid.to_string(),
                        track_sid: publication.sid.to_string(),
                        allowed,
                    };
                    changes.push((other.key, change));
                }
            }
        }
        for (subscriber, change) in changes {
            self.tell(subscriber, Message::SubscriptionPermissionUpdate(change));
        }
        self.reconcile_room(room, now);
    }

    /// A publisher mutes or unmutes its track.
    pub(super) fn muted(&mut self, key: ParticipantKey, sid: &str, muted: bool) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let Some(publication) = participant.publication_mut(sid) else {
            return;
        };
        if std::mem::replace(&mut publication.info.muted, muted) != muted
            && publication.mid.is_some()
        {
            self.announce(key);
        }
    }

    /// A media packet of a publisher, sent on to everybody whose slots carry its track.
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
        let room = participant.room;
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
            .find(|publication| publication.mid.as_deref() == Some(mid));
        let Some(publication) = publication else {
            return;
        };
        if let (Some(rid), Some(layer)) = (rid, &publication.layer)
            && *rid != **layer
        {
            return;
        }
        if let Some(level) = packet.header.ext_vals.audio_level {
            publication
                .meter
                .observe(level.unsigned_abs(), packet.header.timestamp);
        }
        if publication.info.muted {
            return;
        }
        let track = TrackSid::clone(&publication.sid);
        let Some(room) = self.rooms.get(&room) else {
            return;
        };
        let mut touched = Vec::new();
        for member in room.members.iter().filter(|member| **member != key) {
            let Some(subscriber) = self.participants.get_mut(member) else {
                continue;
            };
            if subscriber.disabled.contains(&track) {
                continue;
            }
            let side = subscriber.link.down_side();
            let down = subscriber.link.down_mut();
            let Some(mid) = down.slots.carrying(&track).map(|slot| slot.mid.clone()) else {
                continue;
            };
            down.forward(&mid, packet, &payload, now.instant);
            self.counters.forwarded_packets += 1;
            touched.push((*member, side));
        }
        for (member, side) in touched {
            self.touch(member, side);
        }
    }

    /// A subscriber cannot show what it gets: its publisher is asked for a picture to start from.
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
        let Some(track) = subscriber
            .link
            .down()
            .slots
            .get(mid)
            .and_then(|slot| slot.carries.as_ref())
        else {
            return;
        };
        let track = TrackSid::clone(&track.track);
        let publisher = self.members(subscriber.room).find(|other| {
            other
                .published()
                .any(|publication| publication.sid == track)
        });
        if let Some(publisher) = publisher.map(|publisher| publisher.key) {
            self.ask_for_keyframe(publisher, &track, kind, now);
        }
    }

    fn ask_for_keyframe(
        &mut self,
        publisher: ParticipantKey,
        track: &str,
        kind: KeyframeRequestKind,
        now: Now,
    ) {
        let Some(participant) = self.participants.get_mut(&publisher) else {
            return;
        };
        let Some(publication) = participant.publication_mut(track) else {
            return;
        };
        let recent = publication
            .keyframe_asked
            .is_some_and(|at| now.instant.saturating_duration_since(at) < KEYFRAME_INTERVAL);
        if publication.kind != SectionKind::Video || recent {
            return;
        }
        let Some(mid) = publication.mid.clone() else {
            return;
        };
        publication.keyframe_asked = Some(now.instant);
        let layer = publication.layer.clone();
        if let Some(peer) = participant.link.peer_mut(Side::Publisher) {
            peer.request_keyframe(&mid, layer.as_deref(), kind);
            self.touch(publisher, Side::Publisher);
        }
    }

    /// Who speaks, told as what changed since it was last told.
    pub(super) fn tell_speakers(&mut self, key: RoomKey, now: Now) {
        let Some(room) = self.rooms.get_mut(&key) else {
            return;
        };
        let mut speaking = Vec::new();
        for member in &room.members {
            let Some(participant) = self.participants.get_mut(member) else {
                continue;
            };
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
            );
        }
    }

    /// The quality of a participant's connection, told to the room when it changes. Never "lost" for one that lives:
    /// clients start anew when they hear that.
    pub(super) fn tell_quality(&mut self, key: ParticipantKey) {
        use proto::ConnectionQuality::{Excellent, Good, Poor};
        let Some(participant) = self
            .participants
            .get_mut(&key)
            .filter(|participant| participant.was_active)
        else {
            return;
        };
        let (quality, score) = match participant.loss {
            loss if loss < 0.02 => (Excellent, 5.0),
            loss if loss < 0.08 => (Good, 4.0),
            _ => (Poor, 2.0),
        };
        if participant.quality.replace(quality) == Some(quality) {
            return;
        }
        let info = proto::ConnectionQualityInfo {
            participant_sid: participant.sid.to_string(),
            quality: quality as i32,
            score,
        };
        let (room, visible) = (participant.room, participant.visible());
        let update = Message::ConnectionQuality(proto::ConnectionQualityUpdate {
            updates: vec![info],
        });
        if visible {
            self.tell_room(room, update, None);
        } else {
            self.tell(key, update);
        }
    }
}

/// Publications that began and ended.
#[derive(Default)]
struct Changes {
    begun: Vec<proto::TrackInfo>,
    ended: Vec<proto::TrackInfo>,
}

/// Binds the sections of an offer to what was announced, and ends publications whose section sends no more.
fn bind(participant: &mut Participant, sections: &[Section<'_>]) -> Changes {
    let mut changes = Changes::default();
    let sends = |mid: &str| {
        sections
            .iter()
            .any(|section| section.mid == mid && section.direction.sends())
    };
    let (kept, ended) = std::mem::take(&mut participant.publications)
        .into_iter()
        .partition::<Vec<_>, _>(|publication| publication.mid.as_deref().is_none_or(sends));
    participant.publications = kept;
    changes.ended = ended
        .into_iter()
        .map(|publication| publication.info)
        .collect();
    for section in sections
        .iter()
        .filter(|section| section.direction.sends() && section.kind != SectionKind::Application)
    {
        let bound = participant
            .publications
            .iter()
            .any(|publication| publication.mid.as_deref() == Some(section.mid));
        if bound {
            continue;
        }
        let waiting: Vec<usize> = (0..participant.publications.len())
            .filter(|at| {
                participant
                    .publications
                    .get(*at)
                    .is_some_and(|p| p.mid.is_none())
            })
            .collect();
        let pending: Vec<Pending<'_>> = waiting
            .iter()
            .filter_map(|at| participant.publications.get(*at))
            .map(|publication| Pending {
                cid: &publication.cid,
                kind: publication.kind,
            })
            .collect();
        let Some(at) =
            published_by(section, &pending).and_then(|index| waiting.get(index).copied())
        else {
            continue;
        };
        let Some(publication) = participant.publications.get_mut(at) else {
            continue;
        };
        publication.mid = Some(section.mid.to_owned());
        publication.info.mid = section.mid.to_owned();
        publication.layer = section.layers.first().map(|layer| (*layer).to_owned());
        if let Some(mime) = section
            .video_mime
            .filter(|_| publication.kind == SectionKind::Video)
        {
            publication.info.mime_type = mime.to_owned();
        }
        changes.begun.push(publication.info.clone());
    }
    changes
}
