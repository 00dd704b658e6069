//! `POST /twirp/livekit.RoomService/…`: LiveKit's server API over embedded rooms, in protobuf and in JSON, for clients
//! that are written for LiveKit. Tokens are LiveKit's, not this server's own; tenants are none of its matter: whoever
//! holds the key pair owns all rooms.
//!
//! Errors are Twirp's (`{"code", "msg"}`); methods that the embedded rooms do not have are `unimplemented`.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use livekit_protocol as proto;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::state::AppState;
use crate::rooms::token::{self, Claims};
use crate::rooms::{Now, OperationError, ParticipantChange, RoomMessage, RoomServer};

/// The one service that there is.
const ROOM_SERVICE: &str = "livekit.RoomService";
/// The content type of errors and of answers in JSON: LiveKit's client for JavaScript compares it as a whole.
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/protobuf";

/// A failure, as Twirp tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    code: &'static str,
    message: String,
}

impl Failure {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new("unauthenticated", message)
    }

    fn status(&self) -> StatusCode {
        match self.code {
            "invalid_argument" | "malformed" => StatusCode::BAD_REQUEST,
            "unauthenticated" => StatusCode::UNAUTHORIZED,
            "not_found" | "bad_route" => StatusCode::NOT_FOUND,
            "failed_precondition" => StatusCode::PRECONDITION_FAILED,
            "resource_exhausted" => StatusCode::TOO_MANY_REQUESTS,
            "unimplemented" => StatusCode::NOT_IMPLEMENTED,
            "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn answer(&self) -> HttpResponse {
        #[derive(Serialize)]
        struct Body<'a> {
            code: &'a str,
            msg: &'a str,
        }
        let body = Body {
            code: self.code,
            msg: &self.message,
        };
        HttpResponse::build(self.status())
            .insert_header((header::CONTENT_TYPE, JSON))
            .body(serde_json::to_vec(&body).unwrap_or_default())
    }
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        let code = match error {
            OperationError::NoRoom | OperationError::NoParticipant | OperationError::NoTrack => {
                "not_found"
            }
            OperationError::InvalidArgument(_) => "invalid_argument",
            OperationError::FailedPrecondition(_) => "failed_precondition",
            OperationError::ResourceExhausted(_) => "resource_exhausted",
            OperationError::Stopped => "unavailable",
        };
        Self::new(code, error.to_string())
    }
}

/// How a request is written; its answer is written in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Protobuf,
    Json,
}

impl Wire {
    fn of(request: &HttpRequest) -> Result<Self, Failure> {
        let written = request.headers().get(header::CONTENT_TYPE);
        let written = written.and_then(|value| value.to_str().ok()).unwrap_or("");
        match written.split(';').next().unwrap_or("").trim() {
            PROTOBUF => Ok(Self::Protobuf),
            JSON => Ok(Self::Json),
            other => Err(Failure::new(
                "bad_route",
                format!("content type {other:?} is neither {PROTOBUF} nor {JSON}"),
            )),
        }
    }

    fn read<T: Message + Default + DeserializeOwned>(self, body: &[u8]) -> Result<T, Failure> {
        let malformed = |error: String| Failure::new("malformed", error);
        match self {
            Self::Protobuf => T::decode(body).map_err(|error| malformed(error.to_string())),
            Self::Json => {
                serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
            }
        }
    }

    fn answer<T: Message + Serialize>(self, answer: &T) -> Result<HttpResponse, Failure> {
        let (kind, body) = match self {
            Self::Protobuf => (PROTOBUF, answer.encode_to_vec()),
            Self::Json => {
                let text = serde_json::to_vec(answer);
                (
                    JSON,
                    text.map_err(|error| Failure::new("internal", error.to_string()))?,
                )
            }
        };
        let mut response = HttpResponse::Ok();
        response.insert_header((header::CONTENT_TYPE, kind));
        Ok(response.body(body))
    }
}

/// Carries out one call.
pub async fn call(
    state: web::Data<AppState>,
    path: web::Path<(String, String)>,
    request: HttpRequest,
    body: web::Bytes,
) -> HttpResponse {
    let (service, method) = path.into_inner();
    let answer = async {
        let Some(rooms) = &state.embedded_rooms else {
            return Err(Failure::new(
                "unimplemented",
                "this server has no embedded rooms",
            ));
        };
        let wire = Wire::of(&request)?;
        let claims = claims(&request, rooms.keys())?;
        if service != ROOM_SERVICE {
            return Err(Failure::new(
                "unimplemented",
                format!("embedded rooms have no {service}"),
            ));
        }
        let call = Call {
            rooms,
            claims,
            wire,
            body: &body,
        };
        call.room_service(&method).await
    };
    answer.await.unwrap_or_else(|failure| failure.answer())
}

/// What the request's token says.
fn claims(request: &HttpRequest, keys: &token::Keys) -> Result<Claims, Failure> {
    let header = request.headers().get(header::AUTHORIZATION);
    let header = header.and_then(|value| value.to_str().ok()).unwrap_or("");
    let token = header
        .strip_prefix("Bearer ")
        .ok_or_else(|| Failure::unauthenticated("no access token was given"))?;
    token::verify(token, keys, Now::read().unix_s())
        .map_err(|error| Failure::unauthenticated(error.to_string()))
}

struct Call<'a> {
    rooms: &'a RoomServer,
    claims: Claims,
    wire: Wire,
    body: &'a [u8],
}

impl Call<'_> {
    /// What the call says, if its token allows it.
    fn read<T: Message + Default + DeserializeOwned>(
        &self,
        allowed: impl FnOnce(&T, &Claims) -> bool,
    ) -> Result<T, Failure> {
        let said = self.wire.read::<T>(self.body)?;
        if allowed(&said, &self.claims) {
            Ok(said)
        } else {
            // The code of the real server, although it knows who asks.
            Err(Failure::unauthenticated("permissions denied"))
        }
    }

    /// The same for a call that concerns one room.
    fn of_room<T: Message + Default + DeserializeOwned>(
        &self,
        room: impl FnOnce(&T) -> &str,
    ) -> Result<T, Failure> {
        self.read(|said: &T, claims| {
            let grants = &claims.video;
            grants.room_admin && grants.room == room(said)
        })
    }

    async fn room_service(&self, method: &str) -> Result<HttpResponse, Failure> {
        let (rooms, wire) = (self.rooms, self.wire);
        match method {
            "CreateRoom" => {
                let said = self.read(|_, claims| claims.video.room_create)?;
                wire.answer(&rooms.create_room(said).await?)
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
            "ForwardParticipant" | "MoveParticipant" | "PerformRpc" => Err(Failure::new(
                "unimplemented",
                format!("embedded rooms have no {method}"),
            )),
            _ => Err(Failure::new(
                "bad_route",
                format!("{ROOM_SERVICE} has no {method}"),
            )),
        }
    }

    async fn update_participant(&self) -> Result<HttpResponse, Failure> {
        let said = self.of_room(|said: &proto::UpdateParticipantRequest| &said.room)?;
        // What is empty stays as it is.
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
