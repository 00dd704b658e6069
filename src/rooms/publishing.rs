//! Publishing: tracks that clients announce, and the offers that carry them. Who receives them is `subscribing`'s.

use livekit_protocol as proto;
use proto::request_response::Reason;
use proto::signal_response::Message;

use super::events::Event;
use super::limits;
use super::local;
use super::negotiation::{Pending, TrackSid, published_by};
use super::offers::{DescriptionError, Offer};
use super::participant::{Link, Participant, Publication, Side};
use super::peer::Peer;
use super::sdp::{self, Section, SectionKind};
use super::speakers::LevelMeter;
use super::world::World;
use super::{Now, ParticipantKey};
use vivavoce_telemetry::metrics::{self, RoomInput};

impl World {
    /// A client announces a track that its next offer will carry.
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
        self.bind_local(key, now);
    }

    /// What somebody inside the process announces needs no offer to be there.
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
            renamed: None,
        }
    }

    /// An offer of the client: what it publishes, and the slots in which it can receive.
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
            *publisher = Some(Box::new(Peer::new(
                &self.certificate,
                &addresses,
                now.instant,
            )));
        }
        let agreed = participant.link.peer_mut(Side::Publisher);
        if let Some(Err(error)) = agreed.map(|peer| peer.agree(&reduced)) {
            return self.refuse_description(key, &error);
        }
        let announced = bind(participant, &sections);
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
        let answer = peer.accept_offer(parsed);
        let mid_to_track_id = if one {
            peer.slots.map()
        } else {
            std::collections::HashMap::default()
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
                tracing::debug!(%error, "an offer was refused");
                return self.renew(key, proto::DisconnectReason::UnknownReason);
            }
        }
        self.refuse_unsupported(key, &given, &sections);
        self.tell_subscribed(key, &carried, now);
        self.published_changed(key, announced, now);
        self.reconcile(key, now);
    }

    /// A description that is not even tried: the client is asked to start anew.
    pub(super) fn refuse_description(&mut self, key: ParticipantKey, error: &DescriptionError) {
        tracing::debug!(%error, "a description is refused");
        self.counters.refused_descriptions += 1;
        metrics::room_input_refused(RoomInput::Description);
        self.renew(key, proto::DisconnectReason::UnknownReason);
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
        section.mid.clone_into(&mut publication.info.mid);
        publication.layer = section.layers.first().map(|layer| (*layer).to_owned());
        if let Some(mime) = section
            .video_mimes
            .first()
            .filter(|_| publication.kind == SectionKind::Video)
        {
            publication.info.mime_type = (*mime).to_owned();
        }
        changes.begun.push(publication.info.clone());
    }
    changes
}
