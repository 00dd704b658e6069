//! What the messages of LiveKit's protocol may hold when somebody sends them to us, see [`super::wire`]. Field numbers are
//! those of `livekit_models.proto` and its neighbours.

use livekit_protocol as proto;
use prost::Message;

use super::limits;
use super::wire::{self, Budget, Excess, Field, Shape};

/// Names, sids and the like.
const WORD: usize = 1_024;

const ENTRY: Shape = Shape(&[
    (1, "key", Field::Plain(1, WORD)),
    (2, "value", Field::Plain(1, limits::ATTRIBUTES_BYTES)),
]);
const ATTRIBUTES: Field = Field::Message(limits::ATTRIBUTES, &ENTRY);

const SESSION_DESCRIPTION: Shape = Shape(&[
    (2, "sdp", Field::Plain(1, limits::DESCRIPTION_BYTES)),
    (4, "mid_to_track_id", Field::Message(1_024, &ENTRY)),
]);

const VIDEO_LAYER: Shape = Shape(&[(7, "rid", Field::Plain(1, WORD))]);
const LAYERS: Field = Field::Message(16, &VIDEO_LAYER);

const SIMULCAST_CODEC: Shape = Shape(&[
    (1, "codec", Field::Plain(1, WORD)),
    (2, "cid", Field::Plain(1, WORD)),
    (4, "layers", LAYERS),
]);

const ADD_TRACK: Shape = Shape(&[
    (1, "cid", Field::Plain(1, WORD)),
    (2, "name", Field::Plain(1, WORD)),
    (9, "layers", LAYERS),
    (10, "simulcast_codecs", Field::Message(16, &SIMULCAST_CODEC)),
    (11, "sid", Field::Plain(1, WORD)),
    (15, "stream", Field::Plain(1, WORD)),
    (17, "audio_features", Field::Plain(32, 32)),
    (18, "packet_trailer_features", Field::Plain(32, 32)),
]);

const TRACK_INFO: Shape = Shape(&[
    (10, "layers", LAYERS),
    (
        13,
        "codecs",
        Field::Message(16, &Shape(&[(4, "layers", LAYERS)])),
    ),
    (19, "audio_features", Field::Plain(32, 32)),
    (21, "packet_trailer_features", Field::Plain(32, 32)),
]);

/// Sids of tracks; those that servers give have some sixteen bytes.
const SIDS: Field = Field::Plain(limits::CHOICES_PER_PARTICIPANT, 64);

const PARTICIPANT_TRACKS: Shape = Shape(&[
    (1, "participant_sid", Field::Plain(1, WORD)),
    (2, "track_sids", SIDS),
]);
const TRACKS_OF: Field = Field::Message(limits::CHOICES_PER_PARTICIPANT, &PARTICIPANT_TRACKS);

const SUBSCRIPTION: Shape = Shape(&[
    (1, "track_sids", SIDS),
    (3, "participant_tracks", TRACKS_OF),
]);

const TRACK_SETTINGS: Shape = Shape(&[(
    1,
    "track_sids",
    Field::Plain(limits::SETTINGS_PER_REQUEST, WORD),
)]);

const TRACK_PERMISSION: Shape = Shape(&[
    (1, "participant_sid", Field::Plain(1, WORD)),
    (3, "track_sids", SIDS),
    (4, "participant_identity", Field::Plain(1, WORD)),
]);
const SUBSCRIPTION_PERMISSION: Shape = Shape(&[(
    2,
    "track_permissions",
    Field::Message(limits::PERMISSIONS_PER_PARTICIPANT, &TRACK_PERMISSION),
)]);

const PUBLISHED_TRACK: Shape = Shape(&[
    (1, "cid", Field::Plain(1, WORD)),
    (2, "track", Field::Message(1, &TRACK_INFO)),
]);
const RECEIVED: Shape = Shape(&[(1, "publisher_sid", Field::Plain(1, WORD))]);
const CHANNEL: Shape = Shape(&[(1, "label", Field::Plain(1, WORD))]);

const SYNC_STATE: Shape = Shape(&[
    (1, "answer", Field::Message(1, &SESSION_DESCRIPTION)),
    (2, "subscription", Field::Message(1, &SUBSCRIPTION)),
    (
        3,
        "publish_tracks",
        Field::Message(2 * limits::TRACKS_PER_PARTICIPANT, &PUBLISHED_TRACK),
    ),
    (4, "data_channels", Field::Message(64, &CHANNEL)),
    (5, "offer", Field::Message(1, &SESSION_DESCRIPTION)),
    (6, "track_sids_disabled", SIDS),
    (
        7,
        "datachannel_receive_states",
        Field::Message(limits::CHOICES_PER_PARTICIPANT, &RECEIVED),
    ),
]);

const UPDATE_METADATA: Shape = Shape(&[
    (1, "metadata", Field::Plain(1, limits::SIGNAL_BYTES)),
    (2, "name", Field::Plain(1, limits::SIGNAL_BYTES)),
    (
        3,
        "attributes",
        Field::Message(2 * limits::ATTRIBUTES, &LONG_ENTRY),
    ),
]);
/// What is too large is refused in words, with the number of the request.
const LONG_ENTRY: Shape = Shape(&[
    (1, "key", Field::Plain(1, limits::SIGNAL_BYTES)),
    (2, "value", Field::Plain(1, limits::SIGNAL_BYTES)),
]);

const SIGNAL_REQUEST: Shape = Shape(&[
    (1, "offer", Field::Message(1, &SESSION_DESCRIPTION)),
    (2, "answer", Field::Message(1, &SESSION_DESCRIPTION)),
    (4, "add_track", Field::Message(1, &ADD_TRACK)),
    (6, "subscription", Field::Message(1, &SUBSCRIPTION)),
    (7, "track_setting", Field::Message(1, &TRACK_SETTINGS)),
    (
        11,
        "subscription_permission",
        Field::Message(1, &SUBSCRIPTION_PERMISSION),
    ),
    (12, "sync_state", Field::Message(1, &SYNC_STATE)),
    (15, "update_metadata", Field::Message(1, &UPDATE_METADATA)),
]);

const CLIENT_INFO: Shape = Shape(&[(13, "capabilities", Field::Plain(64, 64))]);

const JOIN_REQUEST: Shape = Shape(&[
    (1, "client_info", Field::Message(1, &CLIENT_INFO)),
    (3, "metadata", Field::Plain(1, limits::JOIN_REQUEST_BYTES)),
    (4, "participant_attributes", ATTRIBUTES),
    (
        5,
        "add_track_requests",
        Field::Message(limits::TRACKS_PER_PARTICIPANT, &ADD_TRACK),
    ),
    (
        6,
        "publisher_offer",
        Field::Message(1, &SESSION_DESCRIPTION),
    ),
    (10, "sync_state", Field::Message(1, &SYNC_STATE)),
]);

const WRAPPED_JOIN_REQUEST: Shape = Shape(&[(
    2,
    "join_request",
    Field::Plain(1, limits::JOIN_REQUEST_BYTES),
)]);

const NAMES: Field = Field::Plain(limits::DESTINATIONS, WORD);

const USER_PACKET: Shape = Shape(&[
    (2, "payload", Field::Plain(1, limits::MESSAGE_BYTES)),
    (3, "destination_sids", NAMES),
    (6, "destination_identities", NAMES),
]);
const SPEAKERS: Shape = Shape(&[(1, "speakers", Field::Message(1_024, &RECEIVED))]);
const SEGMENT: Shape = Shape(&[(2, "text", Field::Plain(1, limits::MESSAGE_BYTES))]);
const TRANSCRIPTION: Shape = Shape(&[(4, "segments", Field::Message(1_024, &SEGMENT))]);
const SAMPLE: Shape = Shape(&[(2, "normalized_timestamp", Field::Plain(1, 64))]);
const SERIES: Shape = Shape(&[(4, "samples", Field::Message(4_096, &SAMPLE))]);
const METRICS: Shape = Shape(&[
    (3, "str_data", Field::Plain(4_096, WORD)),
    (4, "time_series", Field::Message(1_024, &SERIES)),
    (5, "events", Field::Message(1_024, &Shape(&[]))),
]);
const CHAT: Shape = Shape(&[(4, "message", Field::Plain(1, limits::MESSAGE_BYTES))]);
const RPC_REQUEST: Shape = Shape(&[
    (3, "payload", Field::Plain(1, limits::MESSAGE_BYTES)),
    (
        6,
        "compressed_payload",
        Field::Plain(1, limits::MESSAGE_BYTES),
    ),
]);
const RPC_RESPONSE: Shape = Shape(&[
    (2, "payload", Field::Plain(1, limits::MESSAGE_BYTES)),
    (
        4,
        "compressed_payload",
        Field::Plain(1, limits::MESSAGE_BYTES),
    ),
]);
const TEXT_HEADER: Shape = Shape(&[(4, "attached_stream_ids", NAMES)]);
const STREAM_HEADER: Shape = Shape(&[
    (8, "attributes", ATTRIBUTES),
    (9, "text_header", Field::Message(1, &TEXT_HEADER)),
    (11, "inline_content", Field::Plain(1, limits::MESSAGE_BYTES)),
]);
const STREAM_CHUNK: Shape = Shape(&[(3, "content", Field::Plain(1, limits::MESSAGE_BYTES))]);
const STREAM_TRAILER: Shape = Shape(&[(3, "attributes", ATTRIBUTES)]);
const ENCRYPTED: Shape = Shape(&[(4, "encrypted_value", Field::Plain(1, limits::MESSAGE_BYTES))]);

const DATA_PACKET: Shape = Shape(&[
    (2, "user", Field::Message(1, &USER_PACKET)),
    (3, "speaker", Field::Message(1, &SPEAKERS)),
    (5, "destination_identities", NAMES),
    (7, "transcription", Field::Message(1, &TRANSCRIPTION)),
    (8, "metrics", Field::Message(1, &METRICS)),
    (9, "chat_message", Field::Message(1, &CHAT)),
    (10, "rpc_request", Field::Message(1, &RPC_REQUEST)),
    (12, "rpc_response", Field::Message(1, &RPC_RESPONSE)),
    (13, "stream_header", Field::Message(1, &STREAM_HEADER)),
    (14, "stream_chunk", Field::Message(1, &STREAM_CHUNK)),
    (15, "stream_trailer", Field::Message(1, &STREAM_TRAILER)),
    (18, "encrypted_packet", Field::Message(1, &ENCRYPTED)),
]);

/// A call of the server's API.
const CALL_BYTES: usize = 512 << 10;
const LONG: Field = Field::Plain(1, CALL_BYTES);

const CREATE_ROOM: Shape = Shape(&[
    (5, "metadata", LONG),
    (6, "egress", Field::Plain(1, 64 << 10)),
    (
        14,
        "agents",
        Field::Message(
            limits::DISPATCHES_PER_ROOM,
            &Shape(&[(2, "metadata", LONG), (5, "attributes", ATTRIBUTES)]),
        ),
    ),
    (15, "tags", ATTRIBUTES),
]);
const CREATE_DISPATCH: Shape = Shape(&[(3, "metadata", LONG), (6, "attributes", ATTRIBUTES)]);

/// What a worker says of the participant that its agent will be.
const AVAILABILITY: Shape = Shape(&[
    (6, "participant_metadata", Field::Plain(1, LONG_TEXT)),
    (7, "participant_attributes", ATTRIBUTES),
]);
const REGISTER: Shape = Shape(&[
    (
        7,
        "allowed_permissions",
        Field::Message(
            1,
            &Shape(&[(9, "can_publish_sources", Field::Plain(32, 32))]),
        ),
    ),
    (10, "endpoints", Field::Message(64, &Shape(&[]))),
]);
/// A room and a participant that a worker makes up hold lists themselves.
const SIMULATED: Shape = Shape(&[
    (2, "room", Field::Plain(1, WORD)),
    (3, "participant", Field::Plain(1, WORD)),
]);
const WORKER_MESSAGE: Shape = Shape(&[
    (1, "register", Field::Message(1, &REGISTER)),
    (2, "availability", Field::Message(1, &AVAILABILITY)),
    (
        4,
        "update_job",
        Field::Message(1, &Shape(&[(3, "error", Field::Plain(1, LONG_TEXT))])),
    ),
    (6, "simulate_job", Field::Message(1, &SIMULATED)),
    (
        7,
        "migrate_job",
        Field::Message(1, &Shape(&[(2, "job_ids", Field::Plain(1_024, 64))])),
    ),
]);
/// A text of a worker.
const LONG_TEXT: usize = limits::METADATA_BYTES;
const LIST_ROOMS: Shape = Shape(&[(1, "names", Field::Plain(1_024, WORD))]);
const UPDATE_PARTICIPANT: Shape = Shape(&[
    (3, "metadata", LONG),
    (
        4,
        "permission",
        Field::Message(
            1,
            &Shape(&[(9, "can_publish_sources", Field::Plain(32, 32))]),
        ),
    ),
    (5, "name", LONG),
    (
        6,
        "attributes",
        Field::Message(2 * limits::ATTRIBUTES, &LONG_ENTRY),
    ),
]);
const UPDATE_SUBSCRIPTIONS: Shape = Shape(&[
    (3, "track_sids", SIDS),
    (5, "participant_tracks", TRACKS_OF),
]);
const SEND_DATA: Shape = Shape(&[
    (2, "data", LONG),
    (4, "destination_sids", NAMES),
    (6, "destination_identities", NAMES),
]);
const UPDATE_ROOM_METADATA: Shape = Shape(&[(2, "metadata", LONG)]);
/// Trunks, rules and calls: some lists of words, and metadata.
const SIP_PART: Field = Field::Plain(64, 128 << 10);
const SIP_CALL: Shape = Shape(&[
    (1, "the first field", SIP_PART),
    (2, "the second field", SIP_PART),
    (3, "the third field", SIP_PART),
    (5, "metadata", SIP_PART),
    (7, "participant_name", SIP_PART),
    (8, "participant_metadata", SIP_PART),
    (9, "participant_attributes", SIP_PART),
    (10, "dispatch_rule", SIP_PART),
    (16, "headers", SIP_PART),
]);
const PLAIN_CALL: Shape = Shape(&[]);
/// Egresses: outputs, and what of them is refused by its name.
const EGRESS_PART: Field = Field::Plain(16, 32 << 10);
const EGRESS: Shape = Shape(&[
    (3, "the third field", EGRESS_PART),
    (4, "the fourth field", EGRESS_PART),
    (5, "the fifth field", EGRESS_PART),
    (6, "the sixth field", EGRESS_PART),
    (7, "the seventh field", EGRESS_PART),
    (8, "the eighth field", EGRESS_PART),
    (9, "the ninth field", EGRESS_PART),
    (10, "the tenth field", EGRESS_PART),
    (11, "file_outputs", EGRESS_PART),
    (12, "stream_outputs", EGRESS_PART),
    (13, "segment_outputs", EGRESS_PART),
    (14, "image_outputs", EGRESS_PART),
    (16, "webhooks", EGRESS_PART),
]);

/// What has a shape is read only when it fits.
pub trait Shaped: Message + Default {
    /// What it may hold.
    const SHAPE: &'static Shape;
    /// How much of it in all.
    const BUDGET: Budget = Budget::OF_A_CLIENT;

    /// Reads a message of somebody else.
    fn read(bytes: &[u8]) -> Result<Self, Excess> {
        wire::check(bytes, Self::SHAPE, Self::BUDGET)?;
        Self::decode(bytes).map_err(|_| Excess::Malformed)
    }
}

macro_rules! shaped {
    ($($message:ident: $shape:ident),+ $(,)?) => {
        $(impl Shaped for proto::$message {
            const SHAPE: &'static Shape = &$shape;
        })+
    };
}

shaped! {
    SignalRequest: SIGNAL_REQUEST,
    WrappedJoinRequest: WRAPPED_JOIN_REQUEST,
    JoinRequest: JOIN_REQUEST,
    DataPacket: DATA_PACKET,
    CreateRoomRequest: CREATE_ROOM,
    ListRoomsRequest: LIST_ROOMS,
    DeleteRoomRequest: PLAIN_CALL,
    ListParticipantsRequest: PLAIN_CALL,
    RoomParticipantIdentity: PLAIN_CALL,
    MoveParticipantRequest: PLAIN_CALL,
    ForwardParticipantRequest: PLAIN_CALL,
    MuteRoomTrackRequest: PLAIN_CALL,
    UpdateParticipantRequest: UPDATE_PARTICIPANT,
    UpdateSubscriptionsRequest: UPDATE_SUBSCRIPTIONS,
    SendDataRequest: SEND_DATA,
    UpdateRoomMetadataRequest: UPDATE_ROOM_METADATA,
    CreateAgentDispatchRequest: CREATE_DISPATCH,
    DeleteAgentDispatchRequest: PLAIN_CALL,
    ListAgentDispatchRequest: PLAIN_CALL,
    WorkerMessage: WORKER_MESSAGE,
    CreateSipInboundTrunkRequest: SIP_CALL,
    CreateSipOutboundTrunkRequest: SIP_CALL,
    UpdateSipInboundTrunkRequest: SIP_CALL,
    UpdateSipOutboundTrunkRequest: SIP_CALL,
    GetSipInboundTrunkRequest: PLAIN_CALL,
    GetSipOutboundTrunkRequest: PLAIN_CALL,
    ListSipInboundTrunkRequest: SIP_CALL,
    ListSipOutboundTrunkRequest: SIP_CALL,
    DeleteSipTrunkRequest: PLAIN_CALL,
    CreateSipDispatchRuleRequest: SIP_CALL,
    UpdateSipDispatchRuleRequest: SIP_CALL,
    ListSipDispatchRuleRequest: SIP_CALL,
    DeleteSipDispatchRuleRequest: PLAIN_CALL,
    CreateSipParticipantRequest: SIP_CALL,
    TransferSipParticipantRequest: SIP_CALL,
    RoomCompositeEgressRequest: EGRESS,
    ParticipantEgressRequest: EGRESS,
    TrackEgressRequest: EGRESS,
    ListEgressRequest: PLAIN_CALL,
    StopEgressRequest: PLAIN_CALL,
}

impl Shaped for proto::SignalResponse {
    const SHAPE: &'static Shape = &SIGNAL_RESPONSE;
    const BUDGET: Budget = Budget::OF_A_SERVER;
}

/// What a LiveKit server tells us as its client. It knows rooms of thousands.
const PARTICIPANT: Shape = Shape(&[
    (2, "identity", Field::Plain(1, 64 << 10)),
    (4, "tracks", Field::Message(256, &TRACK_INFO_TOLD)),
    (5, "metadata", Field::Plain(1, 1 << 20)),
    (9, "name", Field::Plain(1, 64 << 10)),
    (15, "attributes", Field::Message(4_096, &LONG_ENTRY)),
]);
const TRACK_INFO_TOLD: Shape = Shape(&[
    (1, "sid", Field::Plain(1, WORD)),
    (3, "name", Field::Plain(1, 64 << 10)),
    (10, "layers", LAYERS),
    (11, "mime_type", Field::Plain(1, WORD)),
    (12, "mid", Field::Plain(1, WORD)),
    (
        13,
        "codecs",
        Field::Message(16, &Shape(&[(4, "layers", LAYERS)])),
    ),
    (17, "stream", Field::Plain(1, 64 << 10)),
]);
const PARTICIPANTS: Field = Field::Message(16_384, &PARTICIPANT);
const ROOM: Shape = Shape(&[(8, "metadata", Field::Plain(1, 1 << 20))]);
const JOIN_RESPONSE: Shape = Shape(&[
    (1, "room", Field::Message(1, &ROOM)),
    (2, "participant", Field::Message(1, &PARTICIPANT)),
    (3, "other_participants", PARTICIPANTS),
    (
        5,
        "ice_servers",
        Field::Message(64, &Shape(&[(1, "urls", Field::Plain(64, WORD))])),
    ),
]);
const UPDATE: Shape = Shape(&[(1, "participants", PARTICIPANTS)]);
const TOLD_SPEAKERS: Shape = Shape(&[(1, "speakers", Field::Message(16_384, &RECEIVED))]);
const TOLD_QUALITY: Shape = Shape(&[(1, "updates", Field::Message(16_384, &RECEIVED))]);
const ROOM_MOVED: Shape = Shape(&[
    (1, "room", Field::Message(1, &ROOM)),
    (2, "token", Field::Plain(1, 4 << 20)),
    (3, "participant", Field::Message(1, &PARTICIPANT)),
    (4, "other_participants", PARTICIPANTS),
]);
const SIGNAL_RESPONSE: Shape = Shape(&[
    (1, "join", Field::Message(1, &JOIN_RESPONSE)),
    (2, "answer", Field::Message(1, &SESSION_DESCRIPTION)),
    (3, "offer", Field::Message(1, &SESSION_DESCRIPTION)),
    (5, "update", Field::Message(1, &UPDATE)),
    (10, "speakers_changed", Field::Message(1, &TOLD_SPEAKERS)),
    (
        11,
        "room_update",
        Field::Message(1, &Shape(&[(1, "room", Field::Message(1, &ROOM))])),
    ),
    (12, "connection_quality", Field::Message(1, &TOLD_QUALITY)),
    (16, "refresh_token", Field::Plain(1, 4 << 20)),
    (24, "room_moved", Field::Message(1, &ROOM_MOVED)),
]);
