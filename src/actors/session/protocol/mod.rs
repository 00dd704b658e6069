//! The socket's protocol (docs/protocol.md, sections 2 and 3): the messages of both sides and their schema.

pub mod client;
pub mod config;
mod schema;
pub mod server;
mod unknown_fields;

use vivavoce_core::json::Misfit;
pub use vivavoce_core::stream_id::StreamId;

pub use client::{
    CLIENT_MESSAGES, CallCommand, ClientMessage, Origin, Resume, SendMessage, SipTransfer,
    WarmTransfer,
};
pub use config::{
    AgentConfig, ConfigUpdate, DeleteRoom, ListenConfig, LoadingAudio, RoomConfig, SessionConfig,
    SessionParams, TurnModelChoice, VadConfig,
};
pub use schema::socket_schema;
pub use server::{
    CarrierOfCall, ErrorCode, QueueState, ResponseStatus, ResponseUsage, RoomOfSession,
    RoomParticipant, RoomText, RoomTrack, ServerMessage, TransferErrorCode, TransferState,
    WarningCode,
};
pub use unknown_fields::{UnknownField, unknown_fields};

/// The error of a message: which field, and what is wrong with it.
fn misfit(place: &str, problem: impl Into<String>) -> Misfit {
    Misfit {
        place: place.to_owned(),
        problem: problem.into(),
    }
}

fn required<T>(value: Option<T>, place: &str) -> Result<T, Misfit> {
    value.ok_or_else(|| misfit(place, "is required"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
    use vivavoce_seams::SttResult;

    use super::*;

    fn refused(message: &Value) -> String {
        ClientMessage::parse(message.to_string().as_bytes())
            .unwrap_err()
            .place
    }

    #[allow(clippy::needless_pass_by_value)] // so that tables of cases read well
    fn config(fields: Value) -> Value {
        let mut config = json!({
            "type": "config", "stt_config": {"provider": "local"}, "tts_config": {"provider": "local", "model": ""},
        });
        config
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        config
    }

    fn accepted(message: &Value) -> SessionConfig {
        match ClientMessage::parse(message.to_string().as_bytes()).unwrap() {
            ClientMessage::Config(config) => *config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_smallest_config_has_every_default() {
        let config = accepted(&config(json!({"vad": null, "unknown": 1})));
        let stt = config.params.stt.unwrap();
        assert_eq!(
            stt.format,
            AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000)
        );
        assert_eq!(
            (stt.language.as_str(), stt.punctuation, stt.model.as_str()),
            ("en-US", true, "")
        );
        assert_eq!(config.params.vad, VadConfig::default());
        assert!(config.stream_id.is_none() && config.loading_audio.is_none());
        assert_eq!(
            config.params.tts.unwrap().format,
            AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_24000)
        );
    }

    #[test]
    fn a_session_without_sound_needs_no_providers() {
        let config = accepted(&json!({"type": "config", "audio": false}));
        assert!(config.params.stt.is_none() && config.params.tts.is_none());
    }

    #[test]
    fn every_field_that_does_not_fit_is_named() {
        for (message, place) in [
            (json!({}), "type"),
            (json!({"type": 5}), "type"),
            (json!({"type": "dance"}), "type"),
            (json!({"type": "speak"}), "text"),
            (json!({"type": "speak", "text": 5}), "text"),
            (
                json!({"type": "speak", "text": "x", "flush": "yes"}),
                "flush",
            ),
            (json!({"type": "send_message", "message": "x"}), "role"),
            (json!({"type": "sip_transfer"}), "transfer_to"),
            (
                json!({"type": "sip_transfer", "transfer_to": "1", "mode": "hot"}),
                "mode",
            ),
            (
                json!({"type": "sip_transfer", "transfer_to": "1", "person_name": "p"}),
                "person_name",
            ),
            (
                json!({"type": "sip_transfer", "transfer_to": "1", "mode": "warm", "person_identity": " "}),
                "person_identity",
            ),
            (
                json!({"type": "complete_transfer", "agent": "hides"}),
                "agent",
            ),
            (json!({"type": "hold", "held": "yes"}), "held"),
            (json!({"type": "queue_call"}), "queue"),
            (json!({"type": "next_call", "queue": 1}), "queue"),
            (json!({"type": "send_dtmf"}), "digits"),
            (json!({"type": "send_dtmf", "digits": ""}), "digits"),
            (json!({"type": "send_dtmf", "digits": "12w"}), "digits"),
            (
                json!({"type": "send_dtmf", "digits": "1".repeat(33)}),
                "digits",
            ),
            (
                json!({"type": "hangup", "participant_identity": 5}),
                "participant_identity",
            ),
            (json!({"type": "config"}), "stt_config"),
            (
                json!({"type": "config", "stt_config": {"provider": "local"}}),
                "tts_config",
            ),
            (config(json!({"stt_config": {}})), "stt_config.provider"),
            (
                config(json!({"stt_config": {"provider": "local", "sample_rate": 7999}})),
                "stt_config.sample_rate",
            ),
            (
                config(json!({"stt_config": {"provider": "local", "sample_rate": 96000}})),
                "stt_config.sample_rate",
            ),
            (
                config(json!({"stt_config": {"provider": "local", "channels": 3}})),
                "stt_config.channels",
            ),
            (
                config(json!({"stt_config": {"provider": "local", "encoding": "mp3"}})),
                "stt_config.encoding",
            ),
            (
                config(json!({"tts_config": {"model": ""}})),
                "tts_config.provider",
            ),
            (config(json!({"vad": {"threshold": 1.5}})), "vad.threshold"),
            (config(json!({"vad": {"silence_ms": -1}})), "vad.silence_ms"),
            (
                config(json!({"vad": {"enabled": false, "interruption": "duck"}})),
                "vad.interruption",
            ),
            (
                config(json!({"vad": {"interruption": "shout"}})),
                "vad.interruption",
            ),
            (
                config(json!({"vad": {"interruption_window_ms": 99}})),
                "vad.interruption_window_ms",
            ),
            (
                config(json!({"vad": {"max_turn_ms": 4_000_000_000u32}})),
                "vad.max_turn_ms",
            ),
            (config(json!({"stream_id": "../x"})), "stream_id"),
            (config(json!({"rtc": {}})), "rtc.room_name"),
            (config(json!({"rtc": {"room_name": ""}})), "rtc.room_name"),
            (
                config(json!({"rtc": {"room_name": "a", "stt_mode": "both"}})),
                "rtc.stt_mode",
            ),
        ] {
            assert_eq!(refused(&message), place, "{message}");
        }
    }

    #[test]
    fn a_stream_id_is_safe_as_a_file_name() {
        for good in ["a", "7", "A.b_c-d", &"x".repeat(128)] {
            assert!(StreamId::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            ".a",
            "-a",
            "_a",
            "a/b",
            "a..b",
            "a b",
            "ä",
            &"x".repeat(129),
        ] {
            assert!(StreamId::parse(bad).is_err(), "{bad}");
        }
        assert!(StreamId::parse(StreamId::random().as_str()).is_ok());
    }

    #[test]
    fn messages_look_as_the_protocol_says() {
        let result = ServerMessage::SttResult(SttResult {
            transcript: "hello".to_owned(),
            is_final: true,
            is_speech_final: false,
            confidence: None,
            turn_transcript: None,
            words: Vec::new(),
            backchannel: false,
            language: None,
            identity: None,
        });
        let expected = json!({"type": "stt_result", "transcript": "hello", "is_final": true,
            "is_speech_final": false, "confidence": null});
        assert_eq!(
            serde_json::from_str::<Value>(&result.to_json()).unwrap(),
            expected
        );
        let error = ServerMessage::refusal(ErrorCode::StreamIdInUse, "taken");
        let expected = json!({"type": "error", "message": "taken", "code": "stream_id_in_use", "fatal": false});
        assert_eq!(
            serde_json::from_str::<Value>(&error.to_json()).unwrap(),
            expected
        );
    }

    proptest! {
        #[test]
        fn no_text_ends_the_process(text in "\\PC{0,200}") {
            let _ = ClientMessage::parse(text.as_bytes());
        }
    }
}
