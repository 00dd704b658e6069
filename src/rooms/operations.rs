//! Operations of the server API ([RoomService]): list, change, remove, send. Authorisation and wire formats are in `http`.
//!
//! [RoomService]: https://github.com/livekit/protocol/blob/main/protobufs/livekit_room.proto

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::signal_response::Message;

use super::events::Event;
use super::limits;
use super::participant::Participant;
use super::peer::Delivery;
use super::room::{Room, RoomSettings};
use super::sfu::Sfu;
use super::workers::check_agents;
use super::{Now, ParticipantKey, RoomKey};
use vivavoce_auth::Principal;
use vivavoce_quotas::{Party, Refused};

/// Why an operation failed. The kinds are those of LiveKit's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// There is no room of this name.
    #[error("requested room does not exist")]
    NoRoom,
    /// There is no participant of this identity in the room.
    #[error("requested participant does not exist")]
    NoParticipant,
    /// The participant has no track of this sid.
    #[error("requested track does not exist")]
    NoTrack,
    /// There is no dispatch of this id in the room.
    #[error("requested agent dispatch does not exist")]
    NoDispatch,
    /// An argument is out of range.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// The current state or the settings do not allow it.
    #[error("{0}")]
    FailedPrecondition(&'static str),
    /// A quota is used up.
    #[error("{0}")]
    Quota(Refused),
    /// The media thread has ended.
    #[error("the room server is not running")]
    Stopped,
}

/// A change of a participant; `None` leaves a field unchanged.
#[derive(Debug, Clone, Default)]
pub struct ParticipantChange {
    /// Display name.
    pub name: Option<String>,
    /// Free text.
    pub metadata: Option<String>,
    /// An empty value removes the attribute.
    pub attributes: std::collections::HashMap<String, String>,
    /// Replaces all permissions.
    pub permission: Option<proto::ParticipantPermission>,
}

/// A message to a room.
#[derive(Debug, Clone, Default)]
pub struct RoomMessage {
    /// The payload.
    pub payload: Vec<u8>,
    /// The topic.
    pub topic: Option<String>,
    /// Sent over the lossy channel.
    pub lossy: bool,
    /// Sids and identities; none means everyone.
    pub destination_sids: Vec<String>,
    /// See `destination_sids`.
    pub destination_identities: Vec<String>,
    /// Empty or 16 bytes; a message with a known nonce is not sent again.
    pub nonce: Vec<u8>,
}

impl Sfu {
    /// The room of this name, created if there is none, for the operator. Given settings change an existing room.
    pub fn create_room(
        &mut self,
        request: &proto::CreateRoomRequest,
        now: Now,
    ) -> Result<proto::Room, OperationError> {
        self.create_room_for(request, &Party::Operator, now)
    }

    fn create_room_for(
        &mut self,
        request: &proto::CreateRoomRequest,
        party: &Party,
        now: Now,
    ) -> Result<proto::Room, OperationError> {
        check_name(&request.name)?;
        if request.metadata.len() > limits::METADATA_BYTES {
            return Err(OperationError::InvalidArgument("the metadata is too large"));
        }
        check_agents(&request.agents)?;
        if !self.room_names.contains_key(&request.name) {
            self.check_room(party).map_err(OperationError::Quota)?;
        }
        let given = |value: u32, before: u32| if value == 0 { before } else { value };
        let change = |settings: &mut RoomSettings| {
            settings.empty_timeout_s = given(request.empty_timeout, settings.empty_timeout_s);
            settings.departure_timeout_s =
                given(request.departure_timeout, settings.departure_timeout_s);
            settings.max_participants = given(request.max_participants, settings.max_participants);
            if !request.metadata.is_empty() {
                settings.metadata.clone_from(&request.metadata);
            }
        };
        let existed = self.room_names.contains_key(&request.name);
        let mut settings = self.settings.room.clone();
        change(&mut settings);
        settings.agents.clone_from(&request.agents);
        let key = self.room_named(&request.name, settings, party, now);
        let room = self.rooms.get_mut(&key).ok_or(OperationError::NoRoom)?;
        if existed {
            room.on_trial = false;
            let before = room.settings.clone();
            change(&mut room.settings);
            let (told, owned) = (
                before != room.settings,
                before.metadata != room.settings.metadata,
            );
            if owned {
                self.tell_owner(key);
                self.enforce_owner(key, now);
            }
            if told {
                self.tell_room_info(key);
                self.settle(now);
            }
        }
        self.open_to_agents(key, now);
        let room = self.rooms.get(&key).ok_or(OperationError::NoRoom)?;
        Ok(self.room_info(room))
    }

    /// Rooms, all or those named, oldest first.
    #[cfg(test)]
    pub fn list_rooms(&self, names: &[String]) -> Vec<proto::Room> {
        let rooms = if names.is_empty() {
            self.some_rooms(None, usize::MAX).0
        } else {
            self.rooms_named(names)
        };
        rooms.into_iter().map(|(_, room)| room).collect()
    }

    /// The rooms of these names, oldest first. They cost the same however many others there are.
    pub fn rooms_named(&self, names: &[String]) -> Vec<(RoomKey, proto::Room)> {
        let mut keys: Vec<&RoomKey> = names
            .iter()
            .filter_map(|name| self.room_names.get(name))
            .collect();
        keys.sort();
        keys.dedup();
        self.infos(keys)
    }

    /// One room.
    pub fn get_room(&self, name: &str) -> Result<proto::Room, OperationError> {
        Ok(self.room_info(self.room(name)?))
    }

    /// A page of all rooms, and the last of them if there may be more, so that media is forwarded between the pages of a
    /// long list.
    pub fn some_rooms(
        &self,
        after: Option<RoomKey>,
        most: usize,
    ) -> (Vec<(RoomKey, proto::Room)>, Option<RoomKey>) {
        let mut keys: Vec<RoomKey> = self
            .rooms
            .keys()
            .filter(|key| after.is_none_or(|after| **key > after))
            .copied()
            .collect();
        let more = keys.len() > most;
        if more {
            keys.select_nth_unstable(most);
            keys.truncate(most);
        }
        keys.sort_unstable();
        let last = keys.last().copied().filter(|_| more);
        (self.infos(&keys), last)
    }

    fn infos<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a RoomKey>,
    ) -> Vec<(RoomKey, proto::Room)> {
        let rooms = keys
            .into_iter()
            .filter_map(|key| Some((*key, self.rooms.get(key)?)));
        rooms
            .map(|(key, room)| (key, self.room_info(room)))
            .collect()
    }

    /// Deletes a room.
    pub fn delete_room(&mut self, name: &str, now: Now) -> Result<(), OperationError> {
        let key = self.room_key(name)?;
        self.end_room(key, DisconnectReason::RoomDeleted, now);
        self.settle(now);
        Ok(())
    }

    /// Deletes a room in which nobody is visible but this participant, if it is.
    pub fn delete_deserted_room(
        &mut self,
        name: &str,
        identity: &str,
        principal: &Principal,
        now: Now,
    ) -> Result<(), OperationError> {
        let key = self.room_key(name)?;
        let is_own = |member: &Participant| {
            &*member.identity == identity && member.claims.principal() == *principal
        };
        let deserted = self
            .members(key)
            .all(|member| !member.visible() || is_own(member));
        if deserted {
            self.delete_room(name, now)?;
        }
        Ok(())
    }

    /// A caller has proved its address: the room that its call has created outlives the call, as others do.
    pub fn keep_room(&mut self, name: &str, now: Now) -> Result<(), OperationError> {
        let key = self.room_key(name)?;
        let room = self.rooms.get_mut(&key).ok_or(OperationError::NoRoom)?;
        room.on_trial = false;
        self.open_to_agents(key, now);
        Ok(())
    }

    /// Replaces a room's metadata, removes participants who may no longer be in it, and tells the others.
    pub fn update_room_metadata(
        &mut self,
        name: &str,
        metadata: String,
        now: Now,
    ) -> Result<proto::Room, OperationError> {
        if metadata.len() > limits::METADATA_BYTES {
            return Err(OperationError::InvalidArgument("the metadata is too large"));
        }
        let key = self.room_key(name)?;
        let room = self.rooms.get_mut(&key).ok_or(OperationError::NoRoom)?;
        room.settings.metadata = metadata;
        self.tell_owner(key);
        self.enforce_owner(key, now);
        self.tell_room_info(key);
        self.settle(now);
        let room = self.rooms.get(&key).ok_or(OperationError::NoRoom)?;
        Ok(self.room_info(room))
    }

    /// A recording of a room has begun or ended: participants are told whether it is being recorded.
    pub fn show_recording(&mut self, name: &str, recorded: bool) -> Result<(), OperationError> {
        let key = self.room_key(name)?;
        let room = self.rooms.get_mut(&key).ok_or(OperationError::NoRoom)?;
        let was = room.recordings > 0;
        room.recordings = if recorded {
            room.recordings.saturating_add(1)
        } else {
            room.recordings.saturating_sub(1)
        };
        if was != (room.recordings > 0) {
            self.tell_room_info(key);
        }
        Ok(())
    }

    /// Creates a room for a party. The inner error means that it exists: of several concurrent calls one creates it.
    pub fn create_new_room(
        &mut self,
        request: &proto::CreateRoomRequest,
        party: &Party,
        now: Now,
    ) -> Result<Result<proto::Room, proto::Room>, OperationError> {
        if let Ok(room) = self.room(&request.name) {
            return Ok(Err(self.room_info(room)));
        }
        self.create_room_for(request, party, now).map(Ok)
    }

    /// Replaces a room's metadata if it still is what the caller expects; whether it was.
    pub fn replace_room_metadata(
        &mut self,
        name: &str,
        expected: &str,
        metadata: String,
        now: Now,
    ) -> Result<bool, OperationError> {
        if self.room(name)?.settings.metadata != expected {
            return Ok(false);
        }
        self.update_room_metadata(name, metadata, now).map(|_| true)
    }

    /// The visible participants of a room, in order of joining.
    pub fn list_participants(
        &self,
        name: &str,
    ) -> Result<Vec<proto::ParticipantInfo>, OperationError> {
        let key = self.room_key(name)?;
        Ok(self
            .members(key)
            .filter(|member| member.visible())
            .map(Participant::info)
            .collect())
    }

    /// One participant.
    pub fn get_participant(
        &self,
        name: &str,
        identity: &str,
    ) -> Result<proto::ParticipantInfo, OperationError> {
        let key = self.participant_key(name, identity)?;
        self.participants
            .get(&key)
            .map(|participant| participant.info())
            .ok_or(OperationError::NoParticipant)
    }

    /// Removes a participant.
    pub fn remove_participant(
        &mut self,
        name: &str,
        identity: &str,
        now: Now,
    ) -> Result<(), OperationError> {
        let key = self.participant_key(name, identity)?;
        self.remove(key, DisconnectReason::ParticipantRemoved, now);
        self.settle(now);
        Ok(())
    }

    /// Asks a participant's client to reconnect: it joins again by itself, and publishes its tracks again.
    pub fn renew_participant(&mut self, name: &str, identity: &str) -> Result<(), OperationError> {
        let key = self.resident_key(name, identity)?;
        self.renew(key, DisconnectReason::UnknownReason);
        Ok(())
    }

    /// Mutes a track; unmuting is left to the participant unless the settings allow it.
    pub fn mute_track(
        &mut self,
        name: &str,
        identity: &str,
        sid: &str,
        muted: bool,
        now: Now,
    ) -> Result<proto::TrackInfo, OperationError> {
        let key = self.resident_key(name, identity)?;
        let remote_unmute = self.settings.remote_unmute;
        let participant = self
            .participants
            .get_mut(&key)
            .ok_or(OperationError::NoParticipant)?;
        let publication = participant
            .publication_mut(sid)
            .ok_or(OperationError::NoTrack)?;
        if publication.info.muted && !muted && !remote_unmute {
            return Err(OperationError::FailedPrecondition(
                "remote unmute is not enabled",
            ));
        }
        if publication.info.muted != muted {
            self.tell(
                key,
                Message::Mute(proto::MuteTrackRequest {
                    sid: sid.to_owned(),
                    muted,
                }),
            );
            self.muted(key, sid, muted, now);
        }
        let participant = self
            .participants
            .get_mut(&key)
            .ok_or(OperationError::NoParticipant)?;
        participant
            .publication_mut(sid)
            .map(|publication| publication.info.clone())
            .ok_or(OperationError::NoTrack)
    }

    /// Changes a participant and its permissions.
    pub fn update_participant(
        &mut self,
        name: &str,
        identity: &str,
        change: ParticipantChange,
        now: Now,
    ) -> Result<proto::ParticipantInfo, OperationError> {
        let key = self.resident_key(name, identity)?;
        let participant = self.participants.get(&key);
        let room_bytes = participant.map_or(0, |participant| self.bytes_left(participant));
        let participant = self
            .participants
            .get_mut(&key)
            .ok_or(OperationError::NoParticipant)?;
        participant
            .change(change.name, change.metadata, change.attributes, room_bytes)
            .map_err(OperationError::InvalidArgument)?;
        match change.permission {
            Some(permission) => {
                participant.permission = permission;
                self.permission_changed(key, now);
            }
            None => self.announce(key, now),
        }
        self.tell_token(key, now);
        self.settle(now);
        self.get_participant(name, identity)
    }

    /// Subscribes a participant to tracks, or unsubscribes it.
    pub fn update_subscriptions(
        &mut self,
        name: &str,
        identity: &str,
        subscription: &proto::UpdateSubscription,
        now: Now,
    ) -> Result<(), OperationError> {
        let key = self.resident_key(name, identity)?;
        self.choose(key, subscription, now);
        self.reconcile(key, now);
        self.settle(now);
        Ok(())
    }

    /// Sends a message to a room.
    pub fn send_data(
        &mut self,
        name: &str,
        message: RoomMessage,
        now: Now,
    ) -> Result<(), OperationError> {
        if !matches!(message.nonce.len(), 0 | 16) {
            return Err(OperationError::InvalidArgument(
                "the nonce is neither empty nor 16 bytes long",
            ));
        }
        if message.payload.len() > limits::MESSAGE_BYTES {
            return Err(OperationError::InvalidArgument("the message is too large"));
        }
        let key = self.room_key(name)?;
        let named = |sid: &String| {
            self.members(key)
                .find(|member| *member.sid == **sid)
                .map_or_else(|| sid.clone(), |member| member.identity.to_string())
        };
        let mut destinations = message.destination_identities;
        destinations.extend(message.destination_sids.iter().map(named));
        let user = proto::UserPacket {
            payload: message.payload,
            topic: message.topic,
            nonce: message.nonce,
            ..Default::default()
        };
        let delivery = if message.lossy {
            Delivery::Lossy
        } else {
            Delivery::Reliable
        };
        self.send_from_server(key, user, destinations, delivery, now);
        self.settle(now);
        Ok(())
    }

    /// Applies changed permissions: unpublishes what is no longer allowed, and tells the participant.
    pub(super) fn permission_changed(&mut self, key: ParticipantKey, now: Now) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        let (allowed, refused): (Vec<_>, Vec<_>) = std::mem::take(&mut participant.publications)
            .into_iter()
            .partition(|publication| {
                let sources = &participant.permission.can_publish_sources;
                participant.permission.can_publish
                    && (sources.is_empty() || sources.contains(&publication.info.source))
            });
        participant.publications = allowed;
        let room = participant.room;
        for publication in &refused {
            let unpublished = proto::TrackUnpublishedResponse {
                track_sid: publication.sid.to_string(),
            };
            self.tell(key, Message::TrackUnpublished(unpublished));
        }
        self.announce(key, now);
        let participant = self.participants.get(&key);
        let info = participant.map(|participant| participant.info());
        for publication in refused {
            self.record(
                Event::TrackUnpublished,
                room,
                info.clone(),
                Some(publication.info),
                now,
            );
        }
        self.reconcile_room(room, now);
    }

    fn room_key(&self, name: &str) -> Result<RoomKey, OperationError> {
        self.room_names
            .get(name)
            .copied()
            .ok_or(OperationError::NoRoom)
    }

    pub(super) fn room(&self, name: &str) -> Result<&Room, OperationError> {
        self.rooms
            .get(&self.room_key(name)?)
            .ok_or(OperationError::NoRoom)
    }

    pub(super) fn participant_key(
        &self,
        name: &str,
        identity: &str,
    ) -> Result<ParticipantKey, OperationError> {
        self.participant_in(self.room_key(name)?, identity)
            .ok_or(OperationError::NoParticipant)
    }

    /// The same of somebody who is in the room, and not forwarded to it.
    pub(super) fn resident_key(
        &self,
        name: &str,
        identity: &str,
    ) -> Result<ParticipantKey, OperationError> {
        let key = self.participant_key(name, identity)?;
        let participant = self.participants.get(&key);
        if participant.is_some_and(|found| found.source().is_some()) {
            return Err(OperationError::FailedPrecondition(
                "identity: the participant is forwarded from another room; this is done in that one",
            ));
        }
        Ok(key)
    }
}

pub(super) fn check_name(name: &str) -> Result<(), OperationError> {
    if name.is_empty() {
        return Err(OperationError::InvalidArgument("the room's name is empty"));
    }
    if name.chars().count() > limits::NAME_CHARACTERS {
        return Err(OperationError::InvalidArgument(
            "the room's name is too long",
        ));
    }
    Ok(())
}
