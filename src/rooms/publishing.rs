//! Publishing tracks.
//!
//! A LiveKit client announces a track by an `AddTrackRequest`, gets its sid, and then sends an offer with a media section
//! for it ([client protocol]). The other participants learn of the track when the offer carries it. Who receives it is
//! decided in `subscribing`.
//!
//! [client protocol]: https://docs.livekit.io/reference/internals/client-protocol/

use std::collections::HashMap;

use livekit_protocol as proto;
use prost::Message as _;
use proto::request_response::Reason;
use proto::signal_response::Message;
use str0m::format::Codec;

use super::events::Event;
use super::layers::{Encoding, MOST_ENCODINGS};
use super::limits;
use super::local;
use super::negotiation::{Pending, TrackSid, published_by};
use super::offers::{DescriptionError, Offer};
use super::participant::{Backup, Link, Participant, Publication, Side};
use super::peer::Peer;
use super::sdp::{self, Section, SectionKind};
use super::sfu::Sfu;
use super::{Now, ParticipantKey};
use vivavoce_telemetry::metrics::{self, RoomInput};

/// Members of a room, squared, that make one unit of work of a change of its tracks.
const MEMBERS_SQUARED_PER_UNIT: usize = 4_000;

impl Sfu {
    /// Handles the announcement of a track that the next offer will carry.
    pub(super) fn add_track(
        &mut self,
        key: ParticipantKey,
        request: proto::AddTrackRequest,
        now: Now,
    ) {
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
        let asked = request.simulcast_codecs.iter().map(|asked| &asked.codec);
        tracing::debug!(?kind, codecs = ?asked.collect::<Vec<_>>(), "a track is announced");
        if kind == SectionKind::Video
            && let Some(unknown) = unsupported(&request)
        {
            let message = unsupported_codec(&unknown);
            tracing::warn!(codec = %unknown, "refused a track in an unsupported codec");
            return self.refuse_track(key, request, Reason::UnsupportedType, &message);
        }
        if !request.sid.is_empty() {
            return self.add_backup(key, request);
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
                if let Some(message) = self.too_much_said(participant, &request) {
                    return self.refuse_track(key, request, Reason::LimitExceeded, message);
                }
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
        self.bind_local(key, now);
    }

    /// Handles the announcement of a published track in a further codec.
    fn add_backup(&mut self, key: ParticipantKey, request: proto::AddTrackRequest) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        if let Some(message) = self.too_much_said(participant, &request) {
            return self.refuse_track(key, request, Reason::LimitExceeded, message);
        }
        let published = participant
            .publications
            .iter()
            .position(|publication| *publication.sid == *request.sid);
        let participant = self.participants.get_mut(&key);
        let publication = published
            .and_then(|at| participant.and_then(|found| found.publications.get_mut(at)))
            .filter(|publication| publication.encodings.len() < MOST_ENCODINGS);
        let codec = codecs_of(&request).first().copied();
        let (Some(publication), Some(codec)) = (publication, codec) else {
            let message = "the track does not exist, or is sent in as many codecs as it can be";
            return self.refuse_track(key, request, Reason::NotFound, message);
        };
        if !publication.codecs.contains(&codec) && publication.codecs.len() < MOST_ENCODINGS {
            publication.codecs.push(codec);
        }
        let said = request.encoded_len();
        publication.said += said;
        publication.backup = Some(Backup {
            cid: request.cid.clone(),
            layers: request.layers,
        });
        let published = proto::TrackPublishedResponse {
            cid: request.cid,
            track: Some(publication.info.clone()),
        };
        self.tell(key, Message::TrackPublished(published));
    }

    /// Why the description of a track is refused for its length. Whoever is in this process may always be heard.
    fn too_much_said(
        &self,
        participant: &Participant,
        request: &proto::AddTrackRequest,
    ) -> Option<&'static str> {
        let said = request.encoded_len();
        if matches!(participant.link, Link::Local(_)) {
            None
        } else if participant.said_of_tracks() + said > limits::TRACKS_BYTES {
            Some("the descriptions of this participant's tracks are too large")
        } else if said > self.bytes_left(participant) {
            Some("the metadata, attributes and tracks of this room's participants exceed its limit")
        } else {
            None
        }
    }

    /// Binds an announced track of a local participant, which needs no offer.
    fn bind_local(&mut self, key: ParticipantKey, now: Now) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        if !matches!(participant.link, Link::Local(_)) {
            return;
        }
        let mut changes = Changes::default();
        for publication in &mut participant.publications {
            if publication.mid.is_none() && publication.kind == SectionKind::Audio {
                publication.mid = Some(local::SECTION.to_owned());
                changes.begun.push(publication.info.clone());
            }
        }
        self.published_changed(key, changes, now);
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

    #[allow(deprecated)] // clients still write and read the deprecated fields
    fn publication(&mut self, kind: SectionKind, request: proto::AddTrackRequest) -> Publication {
        let said = request.encoded_len();
        let source = match proto::TrackSource::try_from(request.source) {
            Ok(proto::TrackSource::Camera) => 'C',
            Ok(proto::TrackSource::Microphone) => 'M',
            Ok(proto::TrackSource::ScreenShare) => 'S',
            Ok(proto::TrackSource::ScreenShareAudio) => 's',
            _ => 'U',
        };
        let letter = if kind == SectionKind::Video { 'V' } else { 'A' };
        let sid = self.sid(&format!("TR_{letter}{source}"));
        let codecs = if kind == SectionKind::Video {
            codecs_of(&request)
        } else {
            Vec::new()
        };
        let described = request.simulcast_codecs.iter().zip(&codecs);
        let described: Vec<proto::SimulcastCodecInfo> = described
            .map(|(asked, codec)| proto::SimulcastCodecInfo {
                mime_type: sdp::video_mime(*codec).unwrap_or_default().to_owned(),
                cid: asked.cid.clone(),
                layers: asked.layers.clone(),
                video_layer_mode: asked.video_layer_mode,
                ..Default::default()
            })
            .collect();
        let mime = codecs.first().and_then(|codec| sdp::video_mime(*codec));
        let info = proto::TrackInfo {
            sid: sid.to_string(),
            r#type: request.r#type,
            name: request.name,
            muted: request.muted,
            width: request.width,
            height: request.height,
            simulcast: request.layers.len() > 1
                || described
                    .first()
                    .is_some_and(|codec| codec.layers.len() > 1),
            codecs: described,
            backup_codec_policy: request.backup_codec_policy,
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
                mime.unwrap_or_default().to_owned()
            },
            ..Default::default()
        };
        Publication {
            cid: request.cid,
            codecs,
            said,
            ..Publication::new(sid, info, kind)
        }
    }

    /// Handles an offer: what the client publishes, and the slots in which it can receive.
    pub(super) fn offered(
        &mut self,
        key: ParticipantKey,
        offer: Result<Offer, DescriptionError>,
        now: Now,
    ) {
        let offer = match offer {
            Ok(offer) => offer,
            Err(error) => return self.refuse_description(key, &error),
        };
        let Offer {
            id,
            reduced,
            parsed,
        } = offer;
        let sections = match sdp::sections(&reduced.text) {
            Ok(sections) => sections,
            Err(error) => return self.refuse_description(key, &error.into()),
        };
        let names = self.names(key, Side::Publisher);
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let addresses = self.settings.addresses.only(participant.way);
        participant.offer_asked = None;
        if let Link::Two {
            publisher: publisher @ None,
            ..
        } = &mut participant.link
        {
            *publisher = Some(Box::new(Peer::new(
                &self.certificate,
                &addresses,
                names,
                now.instant,
            )));
        }
        let agreed = participant.link.peer_mut(Side::Publisher);
        if let Some(Err(error)) = agreed.map(|peer| peer.agree(&reduced)) {
            return self.refuse_description(key, &error);
        }
        let announced = bind(participant, &sections, now);
        let encodings = participant.publications.iter();
        let encodings = encodings.flat_map(|publication| &publication.encodings);
        let preferred: HashMap<String, Codec> = encodings
            .filter_map(|encoding| Some((encoding.mid.clone(), encoding.codec?)))
            .collect();
        let one = matches!(participant.link, Link::One(_));
        let wanted = if one { self.wanted(key) } else { Vec::new() };
        let Some(peer) = self.peer_mut(key, Side::Publisher) else {
            return;
        };
        let mut carried = Vec::new();
        let mut given = Vec::new();
        if one {
            peer.slots.follow(&sections);
            peer.slots.release(&wanted);
            let assigned = peer.slots.assign(&wanted, false);
            for (mid, track, used) in assigned.changed {
                peer.renew_slot(&mid, used);
                carried.push(TrackSid::clone(&track));
                given.push((mid, track));
            }
        }
        let answer = peer.accept_offer(parsed, &reduced.text, &preferred);
        let mid_to_track_id = if one {
            peer.slots.map()
        } else {
            HashMap::default()
        };
        self.touch(key, Side::Publisher);
        match answer {
            Ok(sdp) => {
                let answer = proto::SessionDescription {
                    r#type: "answer".to_owned(),
                    sdp,
                    id,
                    mid_to_track_id,
                };
                self.tell(key, Message::Answer(answer));
            }
            Err(error) => {
                tracing::debug!(%error, "refused an offer");
                return self.renew(key, proto::DisconnectReason::UnknownReason);
            }
        }
        self.refuse_unsupported(key, &given, &sections);
        self.tell_subscribed(key, &carried, now);
        for (cid, codecs) in &announced.unsupported {
            tracing::warn!(
                ?codecs,
                "refused a track whose offer names no supported video codec"
            );
            let request = proto::AddTrackRequest {
                cid: cid.clone(),
                ..Default::default()
            };
            let message = unsupported_codec("offered");
            self.refuse_track(key, request, Reason::UnsupportedType, &message);
        }
        self.published_changed(key, announced, now);
        self.reconcile(key, now);
    }

    /// Refuses a description: the client is asked to reconnect.
    pub(super) fn refuse_description(&mut self, key: ParticipantKey, error: &DescriptionError) {
        tracing::debug!(%error, "refused a session description");
        self.counters.refused_descriptions += 1;
        metrics::room_input_refused(RoomInput::Description);
        self.renew(key, proto::DisconnectReason::UnknownReason);
    }

    /// Tells the room of publications that an offer has added or removed.
    pub(super) fn published_changed(&mut self, key: ParticipantKey, changes: Changes, now: Now) {
        if changes.is_empty() {
            return;
        }
        self.announce(key, now);
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
        // Every member looks for its tracks among those of all others. Changes in quick succession are looked at once.
        let members = self.members(room).count();
        self.worked(members * members, MEMBERS_SQUARED_PER_UNIT);
        self.reconcile_room(room, now);
    }

    /// Handles a publisher muting or unmuting a track.
    pub(super) fn muted(&mut self, key: ParticipantKey, sid: &str, muted: bool, now: Now) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let Some(publication) = participant.publication_mut(sid) else {
            return;
        };
        if std::mem::replace(&mut publication.info.muted, muted) != muted
            && publication.mid.is_some()
        {
            let room = participant.room;
            self.pair(room, now);
            self.announce(key, now);
        }
    }
}

/// Publications added and removed.
#[derive(Default)]
pub(super) struct Changes {
    pub begun: Vec<proto::TrackInfo>,
    pub ended: Vec<proto::TrackInfo>,
    /// Tracks in no codec that is known here, and whether the offer named any.
    pub unsupported: Vec<(String, bool)>,
}

impl Changes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty() && self.ended.is_empty()
    }
}

/// The codec of a track that is announced in one that is not supported.
fn unsupported(request: &proto::AddTrackRequest) -> Option<String> {
    const LONGEST: usize = 32;
    let first = request.simulcast_codecs.first()?;
    let name = first.codec.as_str();
    let is_known = name.is_empty() || codec_named(name).is_some();
    (!is_known).then(|| name.chars().take(LONGEST).collect())
}

fn unsupported_codec(name: &str) -> String {
    let known = "VP8, H264, VP9 and AV1";
    format!(
        "the video codec ({}) is not supported; {known} are",
        name.escape_debug()
    )
}

/// A codec as clients name it: `vp8`, `video/VP8`.
fn codec_named(name: &str) -> Option<Codec> {
    sdp::video_codec(name.rsplit('/').next().unwrap_or_default())
}

/// The supported codecs that a track is announced in, the preferred one first.
fn codecs_of(request: &proto::AddTrackRequest) -> Vec<Codec> {
    let named = request.simulcast_codecs.iter();
    let mut codecs: Vec<Codec> = named
        .filter_map(|asked| codec_named(&asked.codec))
        .collect();
    codecs.dedup();
    codecs.truncate(MOST_ENCODINGS);
    codecs
}

/// What the publisher says of the layers in the first codec.
#[allow(deprecated)] // old clients say it of the track
fn said_of_layers(info: &proto::TrackInfo) -> &[proto::VideoLayer] {
    let first = info.codecs.first().map(|codec| codec.layers.as_slice());
    first
        .filter(|layers| !layers.is_empty())
        .unwrap_or(&info.layers)
}

/// Binds a section that carries a published track in a further codec.
fn bind_backup(participant: &mut Participant, section: &Section<'_>, now: Now) -> bool {
    let publication = participant.publications.iter_mut().find(|publication| {
        let backup = publication.backup.as_ref();
        backup.is_some_and(|backup| section.track_id == Some(&*backup.cid))
    });
    let Some(publication) = publication else {
        return false;
    };
    let Some(backup) = publication.backup.take() else {
        return false;
    };
    let number = publication.encodings.len();
    let mut encoding = Encoding::new(
        u8::try_from(number).unwrap_or(u8::MAX),
        section,
        &backup.layers,
        now.instant,
    );
    if let Some(codec) = publication.codecs.get(number) {
        encoding.codec = Some(*codec);
    }
    publication.encodings.push(encoding);
    true
}

/// Binds the sections of an offer to announced tracks, and ends publications whose section no longer sends.
fn bind(participant: &mut Participant, sections: &[Section<'_>], now: Now) -> Changes {
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
    for publication in &mut participant.publications {
        publication
            .encodings
            .retain(|encoding| sends(&encoding.mid));
    }
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
            .any(|publication| publication.is_in(section.mid));
        if bound || bind_backup(participant, section, now) {
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
        section.mid.clone_into(&mut publication.info.mid);
        if publication.kind == SectionKind::Video {
            if section.video_codecs.is_empty() {
                let refused = (publication.cid.clone(), section.has_unknown_codec);
                changes.unsupported.push(refused);
                participant.publications.remove(at);
                continue;
            }
            let mut encoding =
                Encoding::new(0, section, said_of_layers(&publication.info), now.instant);
            let asked = publication.codecs.first();
            if let Some(asked) = asked.filter(|asked| section.video_codecs.contains(asked)) {
                encoding.codec = Some(*asked);
            }
            let mime = encoding.codec.and_then(sdp::video_mime);
            mime.unwrap_or_default()
                .clone_into(&mut publication.info.mime_type);
            publication.encodings = vec![encoding];
        }
        changes.begun.push(publication.info.clone());
    }
    changes
}
