//! The fuzz target of this crate: events of a client, of the session and of the language model, in any order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::machine::{Begin, Realtime};
use crate::names::{Named, Names};
use crate::session::{Kind, SessionObject, Version};
use vivavoce_core::fuzzing::{Target, text};
use vivavoce_llm::{AnswerEvent, Endpoints, Finish, FunctionCall, Usage};

/// The targets.
pub const TARGETS: [Target; 1] = [text("realtime_events", events, samples)];

/// Every name means the local engine.
pub struct Local;

impl Names for Local {
    fn recogniser(&self, _: Option<&str>) -> Result<Named, String> {
        self.voice(None)
    }

    fn voice(&self, _: Option<&str>) -> Result<Named, String> {
        Ok(Named {
            provider: "local".to_owned(),
            model: String::new(),
            voice: None,
        })
    }

    fn language(&self, language: &str) -> String {
        language.to_owned()
    }

    fn has_turn_model(&self) -> bool {
        true
    }
}

/// A line is an event: of the client, of the session (`s` before it), text of the model (`m`), a call of it (`f`), its end
/// (`d`), or sound (`a`).
pub fn events(input: &[u8]) {
    let kind = match input.first() {
        Some(b't') => Kind::Transcription,
        _ => Kind::Conversation,
    };
    let version = match input.first() {
        Some(b'b') => Version::Beta,
        _ => Version::Current,
    };
    let mut machine = Realtime::new(Begin {
        version,
        session: SessionObject::new(kind, None),
        seed: "seed".to_owned(),
        names: Arc::new(Local),
        endpoints: Endpoints::for_tests(),
        tenant: None,
    });
    let mut now = Instant::now();
    for line in String::from_utf8_lossy(input).lines().take(64) {
        now += Duration::from_millis(100);
        let rest = line.get(1..).unwrap_or_default();
        let answer = match line.bytes().next() {
            Some(b's') => {
                machine.session_event(rest, now);
                None
            }
            Some(b'a') => {
                machine.sound(&Bytes::copy_from_slice(rest.as_bytes()));
                None
            }
            Some(b'm') => Some(AnswerEvent::Text(rest.to_owned())),
            Some(b'f') => Some(AnswerEvent::Call {
                index: 0,
                begins: Some(FunctionCall {
                    id: "call".to_owned(),
                    name: "function".to_owned(),
                }),
                arguments: rest.to_owned(),
            }),
            Some(b'd') => Some(AnswerEvent::Done {
                finish: Finish::Complete,
                usage: Some(Usage::default()),
            }),
            _ => {
                machine.client(line, now);
                None
            }
        };
        if let Some(answer) = answer {
            for key in 1..4 {
                machine.answer(key, Ok(answer.clone()), now);
            }
        }
        machine.tick(now);
        machine.take();
    }
}

/// A conversation with everything in it.
fn samples() -> Vec<Vec<u8>> {
    [
        r#"
s{"type":"ready"}
{"type":"session.update","session":{"type":"realtime","audio":{"input":{"turn_detection":{"type":"server_vad","idle_timeout_ms":5000},"transcription":{"model":"whisper-1"}},"output":{"voice":"alloy","speed":1.1}},"tools":[{"type":"function","name":"f"}],"max_output_tokens":9}}
s{"type":"ready"}
{"type":"input_audio_buffer.append","audio":"AAAA"}
s{"type":"vad_event","event":"speech_start","timestamp_ms":100}
s{"type":"stt_result","is_final":true,"is_speech_final":true,"transcript":"Hello","turn_transcript":"Hello"}
s{"type":"vad_event","event":"turn_end","timestamp_ms":900,"reason":"silence"}
mGood day, how are you?
f{}
d
s{"type":"tts_started","id":"item_seed0016"}
s{"type":"tts_progress","id":"item_seed0016","text":"Good","played_ms":10}
a0123456789
s{"type":"vad_event","event":"speech_start","timestamp_ms":1900}
s{"type":"tts_interrupted","id":"item_seed0016","heard_text":"Good","played_ms":80}"#,
        r#"
{"type":"session.update","session":{"type":"realtime","audio":{"input":{"turn_detection":null}},"output_modalities":["text"]}}
{"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"},{"type":"input_image","image_url":"data:image/png;base64,AA"}]}}
{"type":"response.create","response":{"conversation":"none","input":[],"metadata":{"a":"b"}}}
mHi
d
{"type":"conversation.item.truncate","item_id":"item_seed0005","content_index":0,"audio_end_ms":10}
{"type":"conversation.item.delete","item_id":"item_seed0005"}
{"type":"input_audio_buffer.commit"}
{"type":"input_audio_buffer.clear"}
{"type":"response.cancel"}"#,
        r#"t
{"type":"session.update","session":{"type":"transcription","audio":{"input":{"format":{"type":"audio/pcmu"},"noise_reduction":{"type":"far_field"}}}}}
s{"type":"error","code":"stt_failed","message":"gone","in_reply_to":"config"}"#,
        r#"b
{"type":"session.update","session":{"modalities":["text"],"voice":"alloy","input_audio_format":"g711_alaw","turn_detection":{"type":"semantic_vad","eagerness":"high"},"max_response_output_tokens":"inf"}}
{"type":"response.create"}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn the_samples_are_conversations() {
        for sample in super::samples() {
            super::events(&sample);
        }
    }

    proptest! {
        #[test]
        fn any_lines_are_taken(input in prop::collection::vec(any::<u8>(), 0..400)) {
            super::events(&input);
        }
    }
}
