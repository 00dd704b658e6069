//! `POST /v1/audio/speech`.

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{Problem, admit, event, with_id};
use crate::speech::{Saying, Speech};
use crate::visit::Visit;
use crate::{Direction, Emulation};
use vivavoce_audio::{AudioFormat, Encoding, SampleRate};

const MODELS: [&str; 4] = [
    "gpt-4o-mini-tts",
    "gpt-4o-mini-tts-2025-12-15",
    "tts-1",
    "tts-1-hd",
];
const VOICES: [&str; 13] = [
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse",
];
/// The longest text.
const CHARACTERS: usize = 4_096;

/// What was asked for.
struct Asked {
    speech: Speech,
    media_type: &'static str,
    as_events: bool,
    characters: usize,
}

/// Says a text.
pub(super) async fn speak(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> HttpResponse {
    let visit = match admit(&request, &emulation, Direction::Tts) {
        Ok(visit) => visit,
        Err(answer) => return *answer,
    };
    visit.received(body.len());
    let asked = match serde_json::from_slice::<Value>(&body) {
        Ok(body @ Value::Object(_)) => {
            visit.asked_by(&body);
            begin(&visit, &body)
        }
        _ => Err(Problem::of(
            "body",
            "We could not parse the JSON body of your request.",
        )),
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(problem) => return problem.response(&visit),
    };
    let mut answer = with_id(HttpResponse::Ok(), &visit);
    if !asked.as_events {
        answer.content_type(asked.media_type);
        return visit.stream(answer, asked.speech.bytes());
    }
    answer.content_type("text/event-stream");
    let characters = asked.characters;
    let deltas = asked.speech.bytes().map(|audio| {
        event(&json!({"type": "speech.audio.delta", "audio": STANDARD.encode(&audio)}))
    });
    let usage =
        json!({"input_tokens": characters, "output_tokens": 1, "total_tokens": characters + 1});
    let done = event(&json!({"type": "speech.audio.done", "usage": usage}));
    visit.stream(answer, deltas.chain(stream::iter([done])))
}

fn begin(visit: &Visit, body: &Value) -> Result<Asked, Problem> {
    let text = |name: &'static str| {
        let text = body[name].as_str();
        text.ok_or_else(|| Problem::of(name, format!("Missing required parameter: '{name}'.")))
    };
    let (model, input) = (text("model")?, text("input")?);
    if !MODELS.contains(&model) {
        return Err(Problem::no_model(model));
    }
    let characters = input.chars().count();
    if characters == 0 || characters > CHARACTERS {
        let problem = format!("Expected a string of 1 to {CHARACTERS} characters.");
        return Err(Problem::of("input", problem));
    }
    let voice = body["voice"]
        .as_str()
        .or_else(|| body["voice"]["id"].as_str());
    if !voice.is_some_and(|voice| VOICES.contains(&voice) || voice.starts_with("voice_")) {
        return Err(Problem::of("voice", "Input should be one of the voices."));
    }
    let speed = match &body["speed"] {
        Value::Null => 1.0,
        speed => speed.as_f64().unwrap_or(f64::NAN),
    };
    if !(0.25..=4.0).contains(&speed) {
        return Err(Problem::of("speed", "Input should be from 0.25 to 4.0."));
    }
    let as_events = match body["stream_format"].as_str() {
        None | Some("audio") => false,
        Some("sse") if !model.starts_with("tts-1") => true,
        Some(_) => {
            return Err(Problem::of(
                "stream_format",
                "It is not supported by this model.",
            ));
        }
    };
    let (encoding, media_type) = match body["response_format"].as_str().unwrap_or("mp3") {
        "mp3" => (Encoding::Mp3, "audio/mpeg"),
        "opus" => (Encoding::OggOpus, "audio/opus"),
        "wav" => (Encoding::Wav, "audio/wav"),
        "pcm" => (Encoding::Linear16, "audio/pcm"),
        _ => return Err(Problem::of("response_format", "It is not emulated.")),
    };
    let saying = Saying {
        // The newer models speak as they are told to, and not by a number.
        speaking_rate: if model.starts_with("tts-1") {
            speed
        } else {
            1.0
        },
        format: AudioFormat::mono(encoding, SampleRate::HZ_24000),
    };
    Ok(Asked {
        speech: visit
            .say(input, &saying)
            .map_err(|error| Problem::failed(&error))?,
        media_type,
        as_events,
        characters,
    })
}
