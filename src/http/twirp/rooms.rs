//! `livekit.RoomService`.

use actix_web::HttpResponse;
use livekit_protocol as proto;

use super::{Call, Failure};
use vivavoce_rooms::token::VideoGrant;
use vivavoce_rooms::{OperationError, ParticipantChange, RoomMessage};

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        let code = match error {
            OperationError::NoRoom
            | OperationError::NoParticipant
            | OperationError::NoTrack
            | OperationError::NoDispatch => "not_found",
            OperationError::InvalidArgument(_) => "invalid_argument",
            OperationError::FailedPrecondition(_) => "failed_precondition",
            OperationError::Quota(_) => "resource_exhausted",
            OperationError::Stopped => "unavailable",
        };
        Self::new(code, error.to_string())
    }
}

/// Whether the grants may allow a method; whether they are for the right room depends on the body.
pub(super) fn may_allow(method: &str, grants: &VideoGrant) -> bool {
    match method {
        "CreateRoom" | "DeleteRoom" => grants.room_create,
        "ListRooms" => grants.room_list,
        _ => grants.room_admin,
    }
}

/// Whether the grants are for a room and another one that somebody of it goes to.
fn is_for_both(grants: &VideoGrant, room: &str, destination: &str) -> bool {
    grants.room_admin && grants.room == room && grants.destination_room == destination
}

impl Call<'_> {
    /// Handles a method.
    pub(super) async fn room_service(&self) -> Result<HttpResponse, Failure> {
        let (rooms, wire) = (self.rooms, self.wire);
        match self.method.name {
            "CreateRoom" => {
                let mut said: proto::CreateRoomRequest =
                    self.read(|_, claims| claims.video.room_create)?;
                let recorded = match said.egress.take() {
                    Some(egress) => Some(self.automatic_egress(egress, &said.name)?),
                    None => None,
                };
                let room = rooms.create_room(said).await?;
                if let Some((service, automatic)) = recorded {
                    let by = self.claims.principal();
                    Box::pin(service.record_room(&room, automatic, &by)).await?;
                }
                wire.answer(&room)
            }
            "ListRooms" => {
                let said: proto::ListRoomsRequest =
                    self.read(|_, claims| claims.video.room_list)?;
                let rooms = rooms.list_rooms(said.names).await?;
                wire.answer(&proto::ListRoomsResponse { rooms })
            }
            "DeleteRoom" => {
                let said: proto::DeleteRoomRequest =
                    self.read(|_, claims| claims.video.room_create)?;
                rooms.delete_room(said.room).await?;
                wire.answer(&proto::DeleteRoomResponse {})
            }
            "ListParticipants" => {
                let said = self.of_room(|said: &proto::ListParticipantsRequest| &said.room)?;
                let participants = rooms.list_participants(said.room).await?;
                wire.answer(&proto::ListParticipantsResponse { participants })
            }
            "GetParticipant" => {
                let said = self.of_room(|said: &proto::RoomParticipantIdentity| &said.room)?;
                wire.answer(&rooms.get_participant(said.room, said.identity).await?)
            }
            "RemoveParticipant" => {
                let said = self.of_room(|said: &proto::RoomParticipantIdentity| &said.room)?;
                rooms.remove_participant(said.room, said.identity).await?;
                wire.answer(&proto::RemoveParticipantResponse {})
            }
            "MoveParticipant" => {
                let said = self.read(|said: &proto::MoveParticipantRequest, claims| {
                    is_for_both(&claims.video, &said.room, &said.destination_room)
                })?;
                let (room, identity) = (&said.room, &said.identity);
                self.check_destination(room, identity, &said.destination_room)
                    .await?;
                let moved = rooms.move_participant(said.room, said.identity, said.destination_room);
                moved.await?;
                wire.answer(&proto::MoveParticipantResponse {})
            }
            "ForwardParticipant" => {
                let said = self.read(|said: &proto::ForwardParticipantRequest, claims| {
                    is_for_both(&claims.video, &said.room, &said.destination_room)
                })?;
                let (room, identity) = (&said.room, &said.identity);
                self.check_destination(room, identity, &said.destination_room)
                    .await?;
                let forwarded =
                    rooms.forward_participant(said.room, said.identity, said.destination_room);
                forwarded.await?;
                wire.answer(&proto::ForwardParticipantResponse {})
            }
            "MutePublishedTrack" => {
                let said = self.of_room(|said: &proto::MuteRoomTrackRequest| &said.room)?;
                let track = rooms.mute_track(said.room, said.identity, said.track_sid, said.muted);
                wire.answer(&proto::MuteRoomTrackResponse {
                    track: Some(track.await?),
                })
            }
            "UpdateParticipant" => self.update_participant().await,
            "UpdateSubscriptions" => {
                let said = self.of_room(|said: &proto::UpdateSubscriptionsRequest| &said.room)?;
                let subscription = proto::UpdateSubscription {
                    track_sids: said.track_sids,
                    subscribe: said.subscribe,
                    participant_tracks: said.participant_tracks,
                };
                rooms
                    .update_subscriptions(said.room, said.identity, subscription)
                    .await?;
                wire.answer(&proto::UpdateSubscriptionsResponse {})
            }
            "SendData" => self.send_data().await,
            "UpdateRoomMetadata" => {
                let said = self.of_room(|said: &proto::UpdateRoomMetadataRequest| &said.room)?;
                wire.answer(&rooms.update_room_metadata(said.room, said.metadata).await?)
            }
            _ => Err(self.forgotten()),
        }
    }

    /// Refuses a room for somebody of this server in which people are at the former one: they would be in two rooms of one name.
    async fn check_destination(
        &self,
        room: &str,
        identity: &str,
        destination: &str,
    ) -> Result<(), Failure> {
        if !self
            .former
            .is_some_and(|former| former.has_room(destination))
        {
            return Ok(());
        }
        let (room, identity) = (room.to_owned(), identity.to_owned());
        self.rooms.get_participant(room, identity).await?;
        Err(Failure::new(
            "failed_precondition",
            "destination_room: people are in it at the server that this one replaces",
        ))
    }

    async fn update_participant(&self) -> Result<HttpResponse, Failure> {
        let said = self.of_room(|said: &proto::UpdateParticipantRequest| &said.room)?;
        // Empty fields are left unchanged.
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let change = ParticipantChange {
            name: given(said.name),
            metadata: given(said.metadata),
            attributes: said.attributes,
            permission: said.permission,
        };
        let changed = self
            .rooms
            .update_participant(said.room, said.identity, change);
        self.wire.answer(&changed.await?)
    }

    #[allow(deprecated)] // of the fields: older clients still name receivers by their sids
    async fn send_data(&self) -> Result<HttpResponse, Failure> {
        let said = self.of_room(|said: &proto::SendDataRequest| &said.room)?;
        let message = RoomMessage {
            lossy: said.kind() == proto::data_packet::Kind::Lossy,
            payload: said.data,
            topic: said.topic,
            destination_sids: said.destination_sids,
            destination_identities: said.destination_identities,
            nonce: said.nonce,
        };
        self.rooms.send_data(said.room, message).await?;
        self.wire.answer(&proto::SendDataResponse {})
    }
}
