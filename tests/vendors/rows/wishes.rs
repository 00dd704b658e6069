//! What is wished of each vendor to see what becomes of a field, and what must come of it. A field that is missing here has
//! no check, which the parent module takes for a failure.

use serde_json::{Value, json};
use vivavoce::emulators::Vendor;

use super::NUMBERS;
use crate::session::client::with;

/// What must be seen when a field is set.
#[derive(Debug, Clone)]
pub enum Effect {
    /// The vendor's query has this pair.
    Query(&'static str, &'static str),
    /// So it has, when `/speak` asks: a session's sound is made of linear16.
    QueryOfSpeak(&'static str, &'static str),
    /// The path that the vendor was asked for has this part.
    Path(&'static str),
    /// A message to the vendor has this part.
    Asked(&'static str),
    /// So it has, when `/speak` asks.
    AskedBySpeak(&'static str),
    /// The finals have words with their places.
    Words,
    /// The finals have another label of whoever speaks than none.
    Speaker,
    /// The sound was understood, or is what was asked for: of every wish, and by itself enough for conversions.
    Sound,
    /// The sound has these numbers in place of the usual ones.
    Says([u16; 6]),
    /// The sound lasts this share of what it does with these other fields.
    Lasts(f64, Value),
}
pub use Effect::{
    Asked, AskedBySpeak, Lasts, Path, Query, QueryOfSpeak, Says, Sound, Speaker, Words,
};

/// Fields that are set, and what must come of it.
pub type Wish = (Value, Vec<Effect>);

fn wish<const N: usize>(fields: Value, effects: [Effect; N]) -> Wish {
    (fields, effects.into())
}

fn one(fields: Value, effect: Effect) -> Vec<Wish> {
    vec![wish(fields, [effect])]
}

fn model(name: &str) -> Value {
    json!({"model": name})
}

/// What an ignored field is set to, so that it is said.
pub fn ignored_wish(field: &str) -> Value {
    match field {
        "languages" => json!({"languages": ["de-DE"]}),
        "punctuation" => json!({"punctuation": false}),
        "keyterms" => json!({"keyterms": ["Vivavoce"]}),
        "diarize" => json!({"diarize": true}),
        "min_confidence" => json!({"min_confidence": 0.5}),
        other => panic!("how is {other} wished for?"),
    }
}

// --- hearing ---

/// What is wished of a recogniser. How credentials and what a vendor ignores are tried is the same for all.
pub fn of_hearing(vendor: Vendor, field: &str) -> Option<Vec<Wish>> {
    match (field, vendor) {
        ("channels", _) => Some(one(json!({"channels": 2}), Sound)),
        ("words", Vendor::Cartesia) => Some(one(model("ink-whisper"), Words)),
        ("words", _) => Some(one(json!({}), Words)),
        (_, Vendor::Deepgram) => deepgram_hears(field),
        (_, Vendor::ElevenLabs) => elevenlabs_hears(field),
        (_, Vendor::Google) => google_hears(field),
        (_, Vendor::Azure) => azure_hears(field),
        (_, Vendor::Cartesia) => cartesia_hears(field),
        // It hears no tone-words: `openai.rs` looks at what it is asked for.
        (_, Vendor::OpenAi) => None,
    }
}

fn german() -> Value {
    json!({"language": "de-DE"})
}

fn further() -> Value {
    json!({"languages": ["de-DE"]})
}

fn mulaw() -> Value {
    json!({"encoding": "mulaw"})
}

fn narrow() -> Value {
    json!({"sample_rate": 8_000})
}

fn terms() -> Value {
    json!({"keyterms": ["Vivavoce"]})
}

fn unpunctuated() -> Value {
    json!({"punctuation": false})
}

fn diarized() -> Value {
    json!({"diarize": true})
}

fn deepgram_hears(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "language" => one(german(), Query("language", "de-DE")),
        "languages" => vec![wish(
            further(),
            [
                Query("language", "multi"),
                Query("language_hint", "en"),
                Query("language_hint", "de"),
            ],
        )],
        "model" => vec![
            wish(model("nova-2"), [Query("model", "nova-2")]),
            wish(
                model("flux-general-en"),
                [Query("model", "flux-general-en"), Path("/v2/listen")],
            ),
        ],
        "encoding" => one(mulaw(), Query("encoding", "mulaw")),
        "sample_rate" => vec![
            wish(narrow(), [Query("sample_rate", "8000")]),
            wish(
                json!({"sample_rate": 44_100}),
                [Query("sample_rate", "44100")],
            ),
        ],
        "punctuation" => one(unpunctuated(), Query("punctuate", "false")),
        "keyterms" => vec![
            wish(terms(), [Query("keyterm", "Vivavoce")]),
            wish(
                with(terms(), model("nova-2-general")),
                [Query("keywords", "Vivavoce")],
            ),
        ],
        "diarize" => vec![wish(
            diarized(),
            [Query("diarize_model", "latest"), Speaker],
        )],
        _ => return None,
    })
}

fn elevenlabs_hears(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "language" => one(german(), Query("language_code", "de")),
        "languages" => one(further(), Query("secondary_languages", "de")),
        "model" => one(model("scribe_v3_live"), Query("model_id", "scribe_v3_live")),
        "encoding" => one(mulaw(), Sound),
        "sample_rate" => vec![
            wish(narrow(), [Query("audio_format", "pcm_8000"), Sound]),
            wish(
                json!({"sample_rate": 32_000}),
                [Query("audio_format", "pcm_44100"), Sound],
            ),
        ],
        "keyterms" => one(terms(), Query("keyterms", "Vivavoce")),
        _ => return None,
    })
}

fn google_hears(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "language" => one(german(), Asked(r#"language_codes: ["de-DE"]"#)),
        "languages" => one(further(), Asked(r#"language_codes: ["en-US", "de-DE"]"#)),
        "model" => one(model("telephony"), Asked(r#"model: "telephony""#)),
        "encoding" => one(mulaw(), Asked("encoding: 2,")),
        "sample_rate" => one(narrow(), Asked("sample_rate_hertz: 8000")),
        "punctuation" => one(unpunctuated(), Asked("enable_automatic_punctuation: false")),
        "keyterms" => one(terms(), Asked(r#"value: "Vivavoce""#)),
        "diarize" => one(diarized(), Asked("diarization_config: Some")),
        _ => return None,
    })
}

fn azure_hears(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "language" => vec![wish(
            german(),
            [Asked(r#""language":"de-DE""#), Query("language", "de-DE")],
        )],
        "languages" => one(further(), Asked(r#""languages":["en-US","de-DE"]"#)),
        "model" => one(model("my-model"), Query("cid", "my-model")),
        "encoding" => one(mulaw(), Asked("RIFF mulaw 16000 Hz 1 channel")),
        "sample_rate" => vec![
            wish(narrow(), [Asked("RIFF linear16 8000 Hz 1 channel")]),
            wish(json!({"sample_rate": 44_100}), [Sound]),
        ],
        // Only a text that is more than numbers has any: see the test of its own.
        "punctuation" => Vec::new(),
        "keyterms" => one(terms(), Asked(r#"[{"text":"Vivavoce"}]"#)),
        "diarize" => vec![wish(
            diarized(),
            [Asked(r#""speakerDiarization""#), Speaker],
        )],
        _ => return None,
    })
}

fn cartesia_hears(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "language" => vec![wish(
            german(),
            [Query("language", "de"), Path("/stt/websocket")],
        )],
        "model" => one(
            model("ink-whisper-2025-06-04"),
            Query("model", "ink-whisper-2025-06-04"),
        ),
        "encoding" => one(mulaw(), Query("encoding", "pcm_mulaw")),
        "sample_rate" => vec![
            wish(narrow(), [Query("sample_rate", "8000")]),
            wish(
                json!({"sample_rate": 20_000}),
                [Query("sample_rate", "22050")],
            ),
        ],
        "keyterms" => one(terms(), Query("keyterm", "Vivavoce")),
        _ => return None,
    })
}

// --- speaking ---

/// What is wished of a synthesiser.
pub fn of_speech(vendor: Vendor, field: &str) -> Option<Vec<Wish>> {
    match (field, vendor) {
        ("pronunciations", _) => {
            let mut meant = NUMBERS;
            meant[3] = 999;
            let instead = json!({"word": "203", "pronunciation": "999"});
            Some(one(json!({"pronunciations": [instead]}), Says(meant)))
        }
        (_, Vendor::Deepgram) => deepgram_says(field),
        (_, Vendor::ElevenLabs) => elevenlabs_says(field),
        (_, Vendor::Google) => google_says(field),
        (_, Vendor::Azure) => azure_says(field),
        (_, Vendor::Cartesia) => cartesia_says(field),
        (_, Vendor::OpenAi) => None,
    }
}

fn telephone() -> Value {
    json!({"audio_format": "mulaw", "sample_rate": 8_000})
}

fn mp3() -> Wish {
    wish(json!({"audio_format": "mp3"}), [Sound])
}

fn at(hz: u32) -> Value {
    json!({"sample_rate": hz})
}

fn speed(rate: f64) -> Value {
    json!({"speaking_rate": rate})
}

/// Twice as fast as the vendor can: it speaks as fast as it can, and the sound is stretched to half its length.
fn beyond(most: f64) -> Wish {
    wish(speed(2.0 * most), [Lasts(0.5, speed(most))])
}

fn voice(id: &str) -> Value {
    json!({"voice_id": id})
}

fn deepgram_says(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "model" => one(model("aura-2-draco-en"), Query("model", "aura-2-draco-en")),
        "voice_id" => one(voice("aura-orion-en"), Query("model", "aura-orion-en")),
        "audio_format" => vec![
            wish(telephone(), [QueryOfSpeak("encoding", "mulaw"), Sound]),
            mp3(),
        ],
        "sample_rate" => vec![
            wish(at(48_000), [Query("sample_rate", "48000")]),
            wish(at(22_050), [Sound]),
        ],
        "speaking_rate" => vec![wish(speed(1.25), [Query("speed", "1.25")]), beyond(1.5)],
        _ => return None,
    })
}

fn elevenlabs_says(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "model" => one(
            model("eleven_turbo_v2_5"),
            Query("model_id", "eleven_turbo_v2_5"),
        ),
        "voice_id" => one(
            voice("21m00Tcm4TlvDq8ikWAM"),
            Path("/21m00Tcm4TlvDq8ikWAM/"),
        ),
        "audio_format" => vec![
            wish(
                telephone(),
                [QueryOfSpeak("output_format", "ulaw_8000"), Sound],
            ),
            mp3(),
        ],
        "sample_rate" => vec![
            wish(at(48_000), [Query("output_format", "pcm_48000"), Sound]),
            wish(at(11_025), [Sound]),
        ],
        "speaking_rate" => vec![wish(speed(1.125), [Asked(r#""speed":1.125"#)]), beyond(1.2)],
        _ => return None,
    })
}

fn google_says(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "model" => one(
            model("gemini-2.5-flash-tts"),
            Asked(r#"model_name: "gemini-2.5-flash-tts""#),
        ),
        "voice_id" => vec![
            wish(
                voice("de-DE-Chirp3-HD-Kore"),
                [
                    Asked(r#"name: "de-DE-Chirp3-HD-Kore""#),
                    Asked(r#"language_code: "de-DE""#),
                ],
            ),
            wish(
                voice("en-GB-Neural2-A"),
                [Asked(r#"name: "en-GB-Neural2-A""#)],
            ),
        ],
        "audio_format" => vec![wish(telephone(), [Sound]), mp3()],
        "sample_rate" => one(at(48_000), Asked("sample_rate_hertz: 48000")),
        "speaking_rate" => vec![
            wish(speed(1.25), [Asked("speaking_rate: 1.25")]),
            beyond(2.0),
        ],
        _ => return None,
    })
}

fn azure_says(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "model" => one(model("my-voice"), Query("deploymentId", "my-voice")),
        "voice_id" => vec![
            wish(
                voice("en-US-AndrewMultilingualNeural"),
                [Asked(r#""voiceName":"en-US-AndrewMultilingualNeural""#)],
            ),
            wish(
                voice("en-US-JennyNeural"),
                [Asked("<voice name='en-US-JennyNeural'>")],
            ),
        ],
        "audio_format" => vec![
            wish(
                telephone(),
                [AskedBySpeak("raw-8khz-8bit-mono-mulaw"), Sound],
            ),
            mp3(),
        ],
        "sample_rate" => vec![
            wish(at(48_000), [Asked("raw-48khz-16bit-mono-pcm"), Sound]),
            wish(at(11_025), [Sound]),
        ],
        "speaking_rate" => vec![
            wish(speed(1.25), [Asked("<prosody rate='1.250'>")]),
            beyond(2.0),
        ],
        _ => return None,
    })
}

fn cartesia_says(field: &str) -> Option<Vec<Wish>> {
    Some(match field {
        "model" => one(model("sonic-3"), Asked(r#""model_id":"sonic-3","#)),
        "voice_id" => one(
            voice("a0e99841-438c-4a64-b679-ae501e7d6091"),
            Asked(r#""id":"a0e99841-438c-4a64-b679-ae501e7d6091""#),
        ),
        "audio_format" => vec![
            wish(
                telephone(),
                [AskedBySpeak(r#""encoding":"pcm_mulaw""#), Sound],
            ),
            mp3(),
        ],
        "sample_rate" => vec![
            wish(at(48_000), [Asked(r#""sample_rate":48000"#), Sound]),
            wish(at(11_025), [Sound]),
        ],
        "speaking_rate" => vec![wish(speed(1.25), [Asked(r#""speed":1.25"#)]), beyond(1.5)],
        _ => return None,
    })
}
