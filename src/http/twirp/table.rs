//! Every method of LiveKit's server API and every field of its request, with what becomes of it in embedded rooms. A test
//! compares the fields with those of the protocol, so that none is forgotten when that grows.

use super::support::Support::{Only, Parts, Refused, Taken, Works};
use super::support::{Field, Method, Service};

/// A method that is there.
const fn works(name: &'static str, fields: &'static [Field]) -> Method {
    Method {
        name,
        missing: None,
        fields,
    }
}

/// A method that is not.
const fn missing(name: &'static str, why: &'static str) -> Method {
    Method {
        name,
        missing: Some(why),
        fields: &[],
    }
}

const EGRESS_OF_ROOM: &str = "`CreateRoom` has it, or start an egress when the room is there";
const SOUND_ONLY: &str = "embedded rooms record sound only";
const NO_VIDEO: &str = "there is no video in what is recorded";
const OWN_STORE: &str = "files go into the store of the server's own settings (`recording.*`)";
const FILES_ONLY: &str = "recordings are files";
const OWN_WEBHOOKS: &str = "`rtc.webhook_urls` in the settings is told of all";
const RECORDERS: &str = "the recorder's is Opus at 48 kHz, mono, 32 kbit/s, or the track's own";
const NO_MANIFEST: &str = "`metadata.json` describes each recording";
const ONE_SERVER: &str = "the rooms are on one server";
const UNREADABLE: &str = "no answer tells it";
const HINT: &str = "a hint to players of video";
const OF_ANSWERS: &str = "the server sets it";
const ANSWERED: &str = "a call is answered within a second";
const OF_TRUNK: &str = "the trunk of a call says how its media is encrypted";
const NO_PRESETS: &str = "there are no presets; send the fields themselves";
const HEADERS: &str = "headers that begin with `X-` become attributes";
const REGION: &str = "calls go where the trunk says";
const CODECS: &str = "a call has the best codec that both sides know";
const MEDIA_TIMEOUT: &str = "`sip.media_timeout_seconds` in the settings is that of all calls";
const URI: &str = "calls go to telephone numbers";
const NO_TONE: &str = "the caller hears the other side's own ringing";
const PASSES: &str = "no sound is cleaned for others";

/// Headers of SIP that become attributes.
const INCLUDED: Field = Field("include_headers", Only(&["SIP_X_HEADERS"]));

const AGENTS: &[Field] = &[
    Field("agent_name", Works),
    Field("metadata", Works),
    Field("restart_policy", Works),
    Field("deployment", Works),
    Field("attributes", Works),
];

const PERMISSION: &[Field] = &[
    Field("can_subscribe", Works),
    Field("can_publish", Works),
    Field("can_publish_data", Works),
    Field("can_publish_sources", Works),
    Field("hidden", Works),
    Field("recorder", Works),
    Field("can_update_metadata", Works),
    Field("agent", Works),
    Field("can_subscribe_metrics", Works),
    Field("can_manage_agent_session", Works),
];

const PARTICIPANT_TRACKS: &[Field] = &[Field("participant_sid", Works), Field("track_sids", Works)];

const ENCODED_FILE: &[Field] = &[
    Field("file_type", Only(&["DEFAULT_FILETYPE", "OGG"])),
    Field("filepath", Works),
    Field("disable_manifest", Taken(NO_MANIFEST)),
    Field("s3", Refused(OWN_STORE)),
    Field("gcp", Refused(OWN_STORE)),
    Field("azure", Refused(OWN_STORE)),
    Field("aliOSS", Refused(OWN_STORE)),
];

const DIRECT_FILE: &[Field] = &[
    Field("filepath", Works),
    Field("disable_manifest", Taken(NO_MANIFEST)),
    Field("s3", Refused(OWN_STORE)),
    Field("gcp", Refused(OWN_STORE)),
    Field("azure", Refused(OWN_STORE)),
    Field("aliOSS", Refused(OWN_STORE)),
];

const ENCODING: &[Field] = &[
    Field("width", Taken(NO_VIDEO)),
    Field("height", Taken(NO_VIDEO)),
    Field("depth", Taken(NO_VIDEO)),
    Field("framerate", Taken(NO_VIDEO)),
    Field("audio_codec", Only(&["DEFAULT_AC", "OPUS"])),
    Field("audio_bitrate", Refused(RECORDERS)),
    Field("audio_frequency", Refused(RECORDERS)),
    Field("video_codec", Taken(NO_VIDEO)),
    Field("video_bitrate", Taken(NO_VIDEO)),
    Field("key_frame_interval", Taken(NO_VIDEO)),
    Field("audio_quality", Refused(RECORDERS)),
    Field("video_quality", Taken(NO_VIDEO)),
];

const ROOM_COMPOSITE: &[Field] = &[
    Field("room_name", Works),
    Field("layout", Taken(NO_VIDEO)),
    Field("audio_only", Works),
    Field("audio_mixing", Only(&["DEFAULT_MIXING"])),
    Field("video_only", Refused(SOUND_ONLY)),
    Field("custom_base_url", Refused(SOUND_ONLY)),
    Field("file_outputs", Parts(ENCODED_FILE)),
    Field("stream_outputs", Refused(FILES_ONLY)),
    Field("segment_outputs", Refused(FILES_ONLY)),
    Field("image_outputs", Refused(SOUND_ONLY)),
    Field("webhooks", Refused(OWN_WEBHOOKS)),
    Field("file", Parts(ENCODED_FILE)),
    Field("stream", Refused(FILES_ONLY)),
    Field("segments", Refused(FILES_ONLY)),
    Field("preset", Taken(NO_VIDEO)),
    Field("advanced", Parts(ENCODING)),
];

const AUTO_PARTICIPANT: &[Field] = &[
    Field("file_outputs", Parts(ENCODED_FILE)),
    Field("segment_outputs", Refused(FILES_ONLY)),
    Field("preset", Taken(NO_VIDEO)),
    Field("advanced", Parts(ENCODING)),
];

const ROOM_EGRESS: &[Field] = &[
    Field("room", Parts(ROOM_COMPOSITE)),
    Field("participant", Parts(AUTO_PARTICIPANT)),
    Field("tracks", Parts(DIRECT_FILE)),
];

const EGRESS: &[Method] = &[
    missing(
        "StartEgress",
        "start one of a room, a participant or a track",
    ),
    works("StartRoomCompositeEgress", ROOM_COMPOSITE),
    missing("StartWebEgress", "no browser renders pages here"),
    works(
        "StartParticipantEgress",
        &[
            Field("room_name", Works),
            Field("identity", Works),
            Field("screen_share", Refused(SOUND_ONLY)),
            Field("file_outputs", Parts(ENCODED_FILE)),
            Field("stream_outputs", Refused(FILES_ONLY)),
            Field("segment_outputs", Refused(FILES_ONLY)),
            Field("image_outputs", Refused(SOUND_ONLY)),
            Field("webhooks", Refused(OWN_WEBHOOKS)),
            Field("preset", Taken(NO_VIDEO)),
            Field("advanced", Parts(ENCODING)),
        ],
    ),
    missing(
        "StartTrackCompositeEgress",
        "`StartTrackEgress` records a track of sound",
    ),
    works(
        "StartTrackEgress",
        &[
            Field("room_name", Works),
            Field("track_id", Works),
            Field("webhooks", Refused(OWN_WEBHOOKS)),
            Field("file", Parts(DIRECT_FILE)),
            Field("websocket_url", Refused(FILES_ONLY)),
        ],
    ),
    missing("UpdateLayout", NO_VIDEO),
    missing("UpdateStream", FILES_ONLY),
    works(
        "ListEgress",
        &[
            Field("room_name", Works),
            Field("egress_id", Works),
            Field("active", Works),
            Field("page_token", Taken("all are on the first page")),
        ],
    ),
    works("StopEgress", &[Field("egress_id", Works)]),
];

const ROOM_SERVICE: &[Method] = &[
    works(
        "CreateRoom",
        &[
            Field("name", Works),
            Field("room_preset", Refused(NO_PRESETS)),
            Field("empty_timeout", Works),
            Field("departure_timeout", Works),
            Field("max_participants", Works),
            Field("node_id", Taken(ONE_SERVER)),
            Field("metadata", Works),
            Field("tags", Taken(UNREADABLE)),
            Field("egress", Parts(ROOM_EGRESS)),
            Field("min_playout_delay", Taken(HINT)),
            Field("max_playout_delay", Taken(HINT)),
            Field("sync_streams", Taken(HINT)),
            Field(
                "replay_enabled",
                Refused("what was said before somebody came is not kept"),
            ),
            Field("agents", Parts(AGENTS)),
        ],
    ),
    works("ListRooms", &[Field("names", Works)]),
    works("DeleteRoom", &[Field("room", Works)]),
    works("ListParticipants", &[Field("room", Works)]),
    works(
        "GetParticipant",
        &[
            Field("room", Works),
            Field("identity", Works),
            Field("revoke_token_ts", Taken("nobody is removed")),
        ],
    ),
    works(
        "RemoveParticipant",
        &[
            Field("room", Works),
            Field("identity", Works),
            Field(
                "revoke_token_ts",
                Refused("a token is valid until it expires; give tokens a short life"),
            ),
        ],
    ),
    works(
        "MoveParticipant",
        &[
            Field("room", Works),
            Field("identity", Works),
            Field("destination_room", Works),
        ],
    ),
    works(
        "ForwardParticipant",
        &[
            Field("room", Works),
            Field("identity", Works),
            Field("destination_room", Works),
        ],
    ),
    works(
        "MutePublishedTrack",
        &[
            Field("room", Works),
            Field("identity", Works),
            Field("track_sid", Works),
            Field("muted", Works),
        ],
    ),
    works(
        "UpdateParticipant",
        &[
            Field("room", Works),
            Field("identity", Works),
            Field("metadata", Works),
            Field("permission", Parts(PERMISSION)),
            Field("name", Works),
            Field("attributes", Works),
        ],
    ),
    works(
        "UpdateSubscriptions",
        &[
            Field("room", Works),
            Field("identity", Works),
            Field("track_sids", Works),
            Field("subscribe", Works),
            Field("participant_tracks", Parts(PARTICIPANT_TRACKS)),
        ],
    ),
    works(
        "SendData",
        &[
            Field("room", Works),
            Field("data", Works),
            Field("kind", Works),
            Field("destination_sids", Works),
            Field("destination_identities", Works),
            Field("topic", Works),
            Field("nonce", Works),
        ],
    ),
    works(
        "UpdateRoomMetadata",
        &[Field("room", Works), Field("metadata", Works)],
    ),
    missing(
        "PerformRpc",
        "call methods of participants from a participant",
    ),
];

const AGENT_DISPATCH_SERVICE: &[Method] = &[
    works(
        "CreateDispatch",
        &[
            Field("agent_name", Works),
            Field("room", Works),
            Field("metadata", Works),
            Field("restart_policy", Works),
            Field("deployment", Works),
            Field("attributes", Works),
        ],
    ),
    works(
        "DeleteDispatch",
        &[Field("dispatch_id", Works), Field("room", Works)],
    ),
    works(
        "ListDispatch",
        &[Field("dispatch_id", Works), Field("room", Works)],
    ),
];

const MEDIA: &[Field] = &[
    Field("only_listed_codecs", Refused(CODECS)),
    Field("codecs", Refused(CODECS)),
    Field("encryption", Works),
    Field("media_timeout", Refused(MEDIA_TIMEOUT)),
];

pub(super) const INBOUND_TRUNK: &[Field] = &[
    Field("sip_trunk_id", Taken(OF_ANSWERS)),
    Field("name", Works),
    Field("metadata", Works),
    Field("numbers", Works),
    Field("allowed_addresses", Works),
    Field("allowed_numbers", Works),
    Field("auth_username", Works),
    Field("auth_password", Works),
    Field("auth_realm", Works),
    Field("headers", Refused(HEADERS)),
    Field("headers_to_attributes", Works),
    Field("attributes_to_headers", Refused(HEADERS)),
    INCLUDED,
    Field("ringing_timeout", Taken(ANSWERED)),
    Field("ringing_timeout_status", Taken(ANSWERED)),
    Field("max_call_duration", Works),
    Field("krisp_enabled", Taken(PASSES)),
    Field("media_encryption", Works),
    Field("media", Parts(MEDIA)),
    Field("created_at", Taken(OF_ANSWERS)),
    Field("updated_at", Taken(OF_ANSWERS)),
];

/// Also of trunks that were stored before something was refused.
pub(super) const OUTBOUND_TRUNK: &[Field] = &[
    Field("sip_trunk_id", Taken(OF_ANSWERS)),
    Field("name", Works),
    Field("metadata", Works),
    Field("address", Works),
    Field("destination_country", Refused(REGION)),
    Field("transport", Works),
    Field("numbers", Works),
    Field("auth_username", Works),
    Field("auth_password", Works),
    Field("headers", Works),
    Field("headers_to_attributes", Refused(HEADERS)),
    Field("attributes_to_headers", Refused(HEADERS)),
    INCLUDED,
    Field("media_encryption", Works),
    Field("media", Parts(MEDIA)),
    Field("from_host", Works),
    Field("created_at", Taken(OF_ANSWERS)),
    Field("updated_at", Taken(OF_ANSWERS)),
];

const OUTBOUND_CONFIG: &[Field] = &[
    Field("hostname", Works),
    Field("destination_country", Refused(REGION)),
    Field("transport", Works),
    Field("auth_username", Works),
    Field("auth_password", Works),
    Field("headers_to_attributes", Refused(HEADERS)),
    Field("attributes_to_headers", Refused(HEADERS)),
    Field("from_host", Works),
];

const PIN: Field = Field("pin", Works);

const ROOM_CONFIG: &[Field] = &[
    Field("name", Refused(NO_PRESETS)),
    Field("empty_timeout", Works),
    Field("departure_timeout", Works),
    Field("max_participants", Works),
    Field("metadata", Works),
    Field("egress", Refused(EGRESS_OF_ROOM)),
    Field("min_playout_delay", Taken(HINT)),
    Field("max_playout_delay", Taken(HINT)),
    Field("sync_streams", Taken(HINT)),
    Field("agents", Parts(AGENTS)),
    Field("tags", Taken(UNREADABLE)),
];

const RULE_KIND: &[Field] = &[
    Field(
        "dispatch_rule_direct",
        Parts(&[Field("room_name", Works), PIN]),
    ),
    Field(
        "dispatch_rule_individual",
        Parts(&[
            Field("room_prefix", Works),
            PIN,
            Field("no_randomness", Works),
        ]),
    ),
    Field(
        "dispatch_rule_callee",
        Parts(&[Field("room_prefix", Works), PIN, Field("randomize", Works)]),
    ),
];

pub(super) const RULE: &[Field] = &[
    Field("sip_dispatch_rule_id", Taken(OF_ANSWERS)),
    Field("rule", Parts(RULE_KIND)),
    Field("trunk_ids", Works),
    Field("hide_phone_number", Works),
    Field("inbound_numbers", Works),
    Field("numbers", Works),
    Field("name", Works),
    Field("metadata", Works),
    Field("attributes", Works),
    Field("room_preset", Refused(NO_PRESETS)),
    Field("room_config", Parts(ROOM_CONFIG)),
    Field("media", Refused(OF_TRUNK)),
    Field("krisp_enabled", Taken(PASSES)),
    Field("media_encryption", Refused(OF_TRUNK)),
    Field("created_at", Taken(OF_ANSWERS)),
    Field("updated_at", Taken(OF_ANSWERS)),
];

const PAGE: &[Field] = &[Field("after_id", Works), Field("limit", Works)];

const LIST_TRUNKS: &[Field] = &[
    Field("page", Parts(PAGE)),
    Field("trunk_ids", Works),
    Field("numbers", Works),
];

const ONE_TRUNK: &[Field] = &[Field("sip_trunk_id", Works)];

const REPLACED: &str = "LiveKit has replaced it by inbound and outbound trunks";

const SIP: &[Method] = &[
    missing("CreateSIPTrunk", REPLACED),
    missing("ListSIPTrunk", REPLACED),
    works(
        "CreateSIPInboundTrunk",
        &[Field("trunk", Parts(INBOUND_TRUNK))],
    ),
    works(
        "CreateSIPOutboundTrunk",
        &[Field("trunk", Parts(OUTBOUND_TRUNK))],
    ),
    works(
        "UpdateSIPInboundTrunk",
        &[
            Field("sip_trunk_id", Works),
            Field("replace", Parts(INBOUND_TRUNK)),
            Field(
                "update",
                Parts(&[
                    Field("numbers", Works),
                    Field("allowed_addresses", Works),
                    Field("allowed_numbers", Works),
                    Field("auth_username", Works),
                    Field("auth_password", Works),
                    Field("auth_realm", Works),
                    Field("name", Works),
                    Field("metadata", Works),
                    Field("media_encryption", Works),
                    Field("media", Parts(MEDIA)),
                ]),
            ),
        ],
    ),
    works(
        "UpdateSIPOutboundTrunk",
        &[
            Field("sip_trunk_id", Works),
            Field("replace", Parts(OUTBOUND_TRUNK)),
            Field(
                "update",
                Parts(&[
                    Field("address", Works),
                    Field("transport", Works),
                    Field("destination_country", Refused(REGION)),
                    Field("numbers", Works),
                    Field("auth_username", Works),
                    Field("auth_password", Works),
                    Field("name", Works),
                    Field("metadata", Works),
                    Field("media_encryption", Works),
                    Field("media", Parts(MEDIA)),
                    Field("from_host", Works),
                ]),
            ),
        ],
    ),
    works("GetSIPInboundTrunk", ONE_TRUNK),
    works("GetSIPOutboundTrunk", ONE_TRUNK),
    works("ListSIPInboundTrunk", LIST_TRUNKS),
    works("ListSIPOutboundTrunk", LIST_TRUNKS),
    works("DeleteSIPTrunk", ONE_TRUNK),
    works(
        "CreateSIPDispatchRule",
        &[
            Field("dispatch_rule", Parts(RULE)),
            Field("rule", Parts(RULE_KIND)),
            Field("trunk_ids", Works),
            Field("hide_phone_number", Works),
            Field("inbound_numbers", Works),
            Field("name", Works),
            Field("metadata", Works),
            Field("attributes", Works),
            Field("room_preset", Refused(NO_PRESETS)),
            Field("room_config", Parts(ROOM_CONFIG)),
        ],
    ),
    works(
        "UpdateSIPDispatchRule",
        &[
            Field("sip_dispatch_rule_id", Works),
            Field("replace", Parts(RULE)),
            Field(
                "update",
                Parts(&[
                    Field("trunk_ids", Works),
                    Field("rule", Parts(RULE_KIND)),
                    Field("name", Works),
                    Field("metadata", Works),
                    Field("attributes", Works),
                    Field("media_encryption", Refused(OF_TRUNK)),
                    Field("media", Refused(OF_TRUNK)),
                ]),
            ),
        ],
    ),
    works(
        "ListSIPDispatchRule",
        &[
            Field("page", Parts(PAGE)),
            Field("dispatch_rule_ids", Works),
            Field("trunk_ids", Works),
        ],
    ),
    works(
        "DeleteSIPDispatchRule",
        &[Field("sip_dispatch_rule_id", Works)],
    ),
    works(
        "CreateSIPParticipant",
        &[
            Field("sip_trunk_id", Works),
            Field("trunk", Parts(OUTBOUND_CONFIG)),
            Field("sip_request_uri", Refused(URI)),
            Field("sip_to_header", Refused(URI)),
            Field(
                "sip_from_header",
                Refused("`sip_number` and `display_name` tell who calls"),
            ),
            Field("sip_call_to", Works),
            Field("to_user_override", Refused(URI)),
            Field("sip_number", Works),
            Field("room_name", Works),
            Field("participant_identity", Works),
            Field("participant_name", Works),
            Field("participant_metadata", Works),
            Field("participant_attributes", Works),
            Field("dtmf", Works),
            Field("play_ringtone", Refused(NO_TONE)),
            Field("play_dialtone", Refused(NO_TONE)),
            Field("hide_phone_number", Works),
            Field("headers", Works),
            INCLUDED,
            Field("ringing_timeout", Works),
            Field("max_call_duration", Works),
            Field("krisp_enabled", Taken(PASSES)),
            Field("media_encryption", Works),
            Field("media", Parts(MEDIA)),
            Field("wait_until_answered", Works),
            Field("display_name", Works),
            Field("destination", Refused(REGION)),
        ],
    ),
    works(
        "TransferSIPParticipant",
        &[
            Field("participant_identity", Works),
            Field("room_name", Works),
            Field("transfer_to", Works),
            Field("play_dialtone", Refused(NO_TONE)),
            Field("headers", Refused(HEADERS)),
            Field("ringing_timeout", Works),
        ],
    ),
];

/// All services.
pub(super) const SERVICES: &[Service] = &[
    Service {
        name: super::ROOM_SERVICE,
        missing: None,
        methods: ROOM_SERVICE,
    },
    Service {
        name: super::DISPATCH_SERVICE,
        missing: None,
        methods: AGENT_DISPATCH_SERVICE,
    },
    Service {
        name: super::SIP_SERVICE,
        missing: None,
        methods: SIP,
    },
    Service {
        name: super::EGRESS_SERVICE,
        missing: None,
        methods: EGRESS,
    },
    Service {
        name: "livekit.Ingress",
        missing: Some(
            "`POST /whip` takes WHIP streams with a participant's token; RTMP does not come into rooms",
        ),
        methods: &[],
    },
];
