//! Subscriptions: which tracks a participant receives, and the negotiation that changes them.
//!
//! By default a client subscribes to all tracks; it can also choose them by sid, pause video, and publishers can restrict
//! who may subscribe. The wanted tracks are compared with those that the slots carry (*reconciled*): a slot that is no
//! longer wanted is silenced at once, and a new track needs a negotiation, in an offer of ours (two peer connections) or
//! one that the client is asked for (one). Slots are in `negotiation`, packets in `media`.

use std::collections::HashSet;

use super::adapting::Wish;
use super::admission::Hears;
use super::limits;
use super::negotiation::{TrackSid, Wanted};
use super::offers::{Answer, DescriptionError};
use super::participant::{Link, Participant, Permission, Publication, Side};
use super::peer::PeerError;
use super::sdp::{Section, SectionKind};
use super::sfu::Sfu;
use super::{Now, ParticipantKey, RoomKey};
use livekit_protocol as proto;
use proto::signal_response::Message;
use str0m::format::Codec;

/// In a room of at most so many, a change reconciles all subscribers at once.
const RECONCILED_AT_ONCE: usize = 32;
/// In a larger one, so many are reconciled between two rounds of forwarding.
const RECONCILED_PER_TICK: usize = 4;
/// Tracks of one request that are refused by name.
const REFUSED_PER_REQUEST: usize = 256;

/// Members of a room that make one unit of work of a changed wish.
const MEMBERS_PER_UNIT: usize = 256;

/// Pairs of a subscriber and a track that make one unit of work of changed permissions.
const PERMISSIONS_PER_UNIT: usize = 64;

impl Sfu {
    /// The tracks that a subscriber should receive.
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
            match &subscriber.once {
                None => {}
                Some(Hears::Participant(identity)) if *identity == *other.identity => {}
                Some(Hears::Mix) => return other.records(),
                Some(Hears::Participant(_) | Hears::Nothing) => return false,
            }
            let choice = subscriber.choices.get(&publication.sid).copied();
            // A client cannot name tracks of a hidden publisher it does not know of.
            other.visible()
                && choice.unwrap_or(subscriber.auto_subscribe)
                && self.publisher(other).allows(&publication.sid, subscriber)
        });
        let wanted = chosen.map(|(other, publication)| Wanted {
            track: TrackSid::clone(&publication.sid),
            publisher: other.sid.clone(),
            kind: publication.kind,
        });
        wanted.collect()
    }

    /// Reconciles a subscriber: silences what has ended, and negotiates what is new.
    pub(super) fn reconcile(&mut self, key: ParticipantKey, now: Now) {
        let wanted = self.wanted(key);
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        if matches!(participant.link, Link::Two { .. }) {
            return self.offer_subscriber(key, false, now);
        }
        if let Link::Local(local) = &mut participant.link {
            let new = local.follow(&wanted);
            let room = participant.room;
            self.pair(room, now);
            return self.tell_subscribed(key, &new, now);
        }
        let active = participant.was_active;
        let Some(peer) = participant.link.down_mut() else {
            return;
        };
        let released = !peer.slots.release(&wanted).is_empty();
        if peer.offered_once {
            // The sections are those of its offer, whatever they carry.
            let assigned = peer.slots.assign(&wanted, false).changed;
            for (mid, _, used) in &assigned {
                peer.renew_slot(mid, *used);
            }
            let carried: Vec<TrackSid> = assigned.into_iter().map(|(_, track, _)| track).collect();
            return self.tell_subscribed(key, &carried, now);
        }
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
        let shortage = peer.slots.shortage(&wanted);
        let requirement = proto::MediaSectionsRequirement {
            num_audios: shortage.audio,
            num_videos: shortage.video,
        };
        self.tell(key, Message::MediaSectionsRequirement(requirement));
    }

    /// Reconciles everyone in a room: at once in a small one, in turns in a large one, where each has many tracks.
    pub(super) fn reconcile_room(&mut self, room: RoomKey, now: Now) {
        let members = self
            .rooms
            .get(&room)
            .map(|room| room.members.clone())
            .unwrap_or_default();
        if members.len() <= RECONCILED_AT_ONCE {
            for member in members {
                self.reconcile(member, now);
            }
            return;
        }
        for member in members {
            self.reconcile_later(member, now);
        }
    }

    /// Lets a participant wait for its turn.
    pub(super) fn reconcile_later(&mut self, key: ParticipantKey, now: Now) {
        if self.unreconciled.insert(key) {
            self.reconciling.push_back(key);
        }
        self.reconcile_at.get_or_insert(now.instant);
    }

    /// Continues with those that wait.
    pub(super) fn reconcile_some(&mut self, now: Now) {
        for _ in 0..RECONCILED_PER_TICK {
            let Some(member) = self.reconciling.pop_front() else {
                break;
            };
            self.unreconciled.remove(&member);
            self.reconcile(member, now);
        }
        let more = !self.reconciling.is_empty();
        self.reconcile_at = more.then_some(now.instant);
    }

    /// With two peer connections, the server makes the offer. One offer is pending at a time.
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
        // Pion takes a second offer that comes before its transport has begun for a restart of ICE, and answers with new
        // credentials, which no answer may. Whoever has connected is offered the rest.
        let due = first || (participant.stale && participant.was_active);
        if participant.connection.is_none() || peer.awaits_answer() || !due {
            return;
        }
        participant.stale = false;
        let assigned = peer.slots.assign(&wanted, true);
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
        // Slots released while the offer was pending are silenced now.
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
        self.tell_subscribed(key, &carried, now);
    }

    /// A resumed client with two peer connections needs an ICE restart of the subscriber connection.
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
        offered: Result<Option<String>, PeerError>,
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
                let mid_to_track_id = participant.link.down().map(|peer| peer.slots.map());
                let offer = proto::SessionDescription {
                    r#type: "offer".to_owned(),
                    sdp,
                    id,
                    mid_to_track_id: mid_to_track_id.unwrap_or_default(),
                };
                self.tell(key, Message::Offer(offer));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot create an offer");
                self.renew(key, proto::DisconnectReason::UnknownReason);
            }
        }
    }

    /// Handles the client's answer.
    pub(super) fn answered(
        &mut self,
        key: ParticipantKey,
        answer: Result<Answer, DescriptionError>,
        now: Now,
    ) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        participant.offer_asked = None;
        let Some(peer) = participant.link.peer_mut(Side::Subscriber) else {
            return;
        };
        let answer = answer.and_then(|answer| peer.agree(&answer.reduced).map(|()| answer));
        let answer = match answer {
            Ok(answer) => answer.parsed,
            Err(error) => return self.refuse_description(key, &error),
        };
        if let Err(error) = peer.accept_answer(answer) {
            tracing::debug!(%error, "refused an answer");
            return self.renew(key, proto::DisconnectReason::UnknownReason);
        }
        self.touch(key, Side::Subscriber);
        self.reconcile(key, now);
    }

    /// Tells publishers of their first subscriber, and chooses what is forwarded of video.
    pub(super) fn tell_subscribed(
        &mut self,
        subscriber: ParticipantKey,
        tracks: &[TrackSid],
        now: Now,
    ) {
        for track in tracks {
            let Some(publisher) = self.publisher_of(subscriber, track) else {
                continue;
            };
            let participant = self.participants.get_mut(&publisher);
            let Some(publication) = participant.and_then(|found| found.publication_mut(track))
            else {
                continue;
            };
            if !std::mem::replace(&mut publication.told_subscribed, true) {
                let subscribed = proto::TrackSubscribed {
                    track_sid: track.to_string(),
                };
                self.tell(publisher, Message::TrackSubscribed(subscribed));
            }
        }
        if tracks.iter().any(|track| track.starts_with("TR_V")) {
            self.adapt(subscriber, now);
        }
    }

    /// Who publishes a track that is in a participant's room.
    pub(super) fn publisher_of(&self, key: ParticipantKey, track: &str) -> Option<ParticipantKey> {
        let room = self.participants.get(&key)?.room;
        let publishes =
            |other: &&Participant| other.published().any(|published| &*published.sid == track);
        let member = self.members(room).find(publishes)?;
        Some(self.publisher(member).key)
    }

    /// Removes a participant's choices for tracks that have ended, when there are many.
    fn forget_ended(&mut self, key: ParticipantKey) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        if participant.choices.len() < limits::CHOICES_PER_PARTICIPANT
            && participant.wishes.len() < limits::DISABLED_PER_PARTICIPANT
        {
            return;
        }
        let published = self
            .members(participant.room)
            .flat_map(Participant::published);
        let live: std::collections::HashSet<TrackSid> =
            published.map(|track| TrackSid::clone(&track.sid)).collect();
        if let Some(participant) = self.participants.get_mut(&key) {
            participant.choices.retain(|track, _| live.contains(track));
            participant.wishes.retain(|track, _| live.contains(track));
        }
    }

    /// Handles explicit subscriptions.
    pub(super) fn choose(
        &mut self,
        key: ParticipantKey,
        subscription: &proto::UpdateSubscription,
        _now: Now,
    ) {
        self.forget_ended(key);
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

    /// Tells a client which of the tracks it has chosen do not exist. The choice is kept.
    pub(super) fn refuse_absent(
        &mut self,
        key: ParticipantKey,
        subscription: &proto::UpdateSubscription,
    ) {
        if !subscription.subscribe {
            return;
        }
        let Some(room) = self.participants.get(&key).map(|found| found.room) else {
            return;
        };
        let published = self.members(room).flat_map(Participant::published);
        let live: HashSet<&str> = published.map(|track| &*track.sid).collect();
        let absent = subscription.track_sids.iter();
        let absent = absent.filter(|sid| !live.contains(sid.as_str()));
        let absent: Vec<String> = absent.take(REFUSED_PER_REQUEST).cloned().collect();
        for track_sid in absent {
            let answer = proto::SubscriptionResponse {
                track_sid,
                err: proto::SubscriptionError::SeTrackNotfound as i32,
            };
            self.tell(key, Message::SubscriptionResponse(answer));
        }
    }

    /// Tells a client which of the tracks just assigned use a codec that it did not offer.
    pub(super) fn refuse_unsupported(
        &mut self,
        key: ParticipantKey,
        given: &[(String, TrackSid)],
        sections: &[Section<'_>],
    ) {
        for (mid, track) in given {
            let offered = sections.iter().find(|section| section.mid == mid);
            let publisher = self.publisher_of(key, track);
            let publisher = publisher.and_then(|publisher| self.participants.get(&publisher));
            let publication = publisher.and_then(|publisher| {
                let mut published = publisher.published();
                published.find(|published| published.sid == *track)
            });
            let known =
                |codec: &Codec| offered.is_none_or(|section| section.video_codecs.contains(codec));
            let unknown = |publication: &Publication| {
                let sent = publication.encodings.iter().filter_map(|sent| sent.codec);
                publication.kind == SectionKind::Video
                    && !sent
                        .chain(publication.codecs.iter().copied())
                        .any(|codec| known(&codec))
            };
            if publication.is_some_and(unknown) {
                tracing::info!(%track, "a subscriber knows no codec of a track");
                let answer = proto::SubscriptionResponse {
                    track_sid: track.to_string(),
                    err: proto::SubscriptionError::SeCodecUnsupported as i32,
                };
                self.tell(key, Message::SubscriptionResponse(answer));
            }
        }
    }

    /// Handles what a subscriber wants of video tracks.
    pub(super) fn track_setting(
        &mut self,
        key: ParticipantKey,
        setting: &proto::UpdateTrackSettings,
        now: Now,
    ) {
        self.forget_ended(key);
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let wish = Wish::new(setting);
        for sid in &setting.track_sids {
            if participant.wishes.len() < limits::DISABLED_PER_PARTICIPANT
                || participant.wishes.contains_key(sid.as_str())
            {
                participant.wishes.insert(sid.as_str().into(), wish);
            }
        }
        let looked_up = self
            .participants
            .get(&key)
            .map_or(0, |participant| self.members(participant.room).count());
        self.worked(looked_up, MEMBERS_PER_UNIT);
        self.adapt(key, now);
    }

    /// Handles a publisher's permissions; subscribers who lose or gain a track are told.
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
        let permission = Permission::new(permission);
        let before = publisher.subscription_permission.replace(permission);
        let Some(publisher) = self.participants.get(&key) else {
            return;
        };
        let shown = std::iter::once(&key).chain(&publisher.forwarded);
        let shown = shown.filter_map(|shown| self.participants.get(shown));
        let (mut changes, mut rooms, mut looked_up) = (Vec::new(), Vec::new(), 0);
        for shown in shown {
            let others = self.members(shown.room);
            for other in others.filter(|other| other.key != shown.key) {
                looked_up += 1 + publisher.published().count();
                for publication in publisher.published() {
                    let allowed = publisher.allows(&publication.sid, other);
                    let was = publisher.is_heard_by(other)
                        && before.as_ref().is_none_or(|before| {
                            before.allows(&publication.sid, &other.sid, &other.identity)
                        });
                    if allowed != was {
                        let change = proto::SubscriptionPermissionUpdate {
                            participant_sid: shown.sid.to_string(),
                            track_sid: publication.sid.to_string(),
                            allowed,
                        };
                        changes.push((other.key, change));
                    }
                }
            }
            rooms.push(shown.room);
        }
        for (subscriber, change) in changes {
            self.tell(subscriber, Message::SubscriptionPermissionUpdate(change));
        }
        self.worked(looked_up, PERMISSIONS_PER_UNIT);
        for room in rooms {
            self.reconcile_room(room, now);
        }
    }
}
