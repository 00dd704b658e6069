//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`, which only Whisper does. What is heard here is English.

use actix_multipart::Multipart;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Map, Value, json};

use super::{Problem, admit, event, with_id};
use crate::engine::announced;
use crate::form::{Form, FormError};
use crate::visit::Visit;
use crate::{Direction, Emulation};

/// Models, and whether they are of the Whisper family: those know times, the others answer as they find it.
const MODELS: [(&str, bool); 5] = [
    ("gpt-transcribe", false),
    ("gpt-4o-transcribe", false),
    ("gpt-4o-mini-transcribe", false),
    ("gpt-4o-mini-transcribe-2025-12-15", false),
    ("whisper-1", true),
];
/// The largest file.
const FILE_BYTES: usize = 25 << 20;
/// Fields that this emulator knows.
const FIELDS: [&str; 12] = [
    "chunking_strategy",
    "include",
    "keywords",
    "known_speaker_names",
    "known_speaker_references",
    "language",
    "languages",
    "model",
    "prompt",
    "response_format",
    "temperature",
    "timestamp_granularities",
];

/// Transcribes a file.
pub(super) async fn transcribe(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    form: Multipart,
) -> HttpResponse {
    let visit = match admit(&request, &emulation, Direction::Stt) {
        Ok(visit) => visit,
        Err(answer) => return *answer,
    };
    let translates = request.path().ends_with("translations");
    match answer(&visit, form, translates).await {
        Ok(answer) => answer,
        Err(problem) => problem.response(&visit),
    }
}

async fn answer(visit: &Visit, form: Multipart, translates: bool) -> Result<HttpResponse, Problem> {
    let (file, fields) = read(form).await?;
    visit.received(file.len());
    visit.asked_by(&Value::Object(fields.clone()));
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let Some(model) = text("model") else {
        return Err(Problem::of("model", "you must provide a model parameter"));
    };
    let Some((_, is_whisper)) = MODELS.iter().find(|(known, _)| *known == model) else {
        return Err(Problem::no_model(model));
    };
    if translates && !is_whisper {
        return Err(Problem::no_model(model));
    }
    let format = text("response_format").unwrap_or("json").to_owned();
    let known = if *is_whisper {
        ["json", "text", "srt", "verbose_json", "vtt"].contains(&format.as_str())
    } else {
        format == "json"
    };
    if !known {
        let problem = format!("response_format '{format}' is not compatible with model '{model}'.");
        return Err(Problem::of("response_format", problem));
    }
    // Of Whisper it is ignored.
    let streams = text("stream") == Some("true") && !is_whisper;
    let sound = announced(&file).ok_or_else(|| Problem::of("file", "Invalid file format."))?;
    let heard = visit.hear(sound, &file).await;
    let heard = heard.map_err(|error| Problem::failed(&error))?;
    let whole = heard.text();
    let mut answer = with_id(HttpResponse::Ok(), visit);
    if streams {
        answer.content_type("text/event-stream");
        return Ok(visit.stream(answer, stream::iter(events(&whole))));
    }
    let ends = heard.parts.iter().filter_map(|part| part.end);
    let seconds = ends.fold(0.0, f64::max);
    let usage = json!({"type": "duration", "seconds": seconds.ceil()});
    let body = match format.as_str() {
        "text" => return Ok(answer.content_type("text/plain").body(whole + "\n")),
        "verbose_json" => {
            let words = heard
                .words()
                .map(|word| json!({"word": word.word, "start": word.start, "end": word.end}));
            json!({
                "task": "transcribe", "language": "english", "duration": seconds, "text": whole,
                "words": words.collect::<Vec<_>>(), "segments": [], "usage": usage,
            })
        }
        "json" => json!({"text": whole, "usage": usage}),
        _ => return Err(Problem::of("response_format", "It is not emulated.")),
    };
    let body = Bytes::from(body.to_string());
    answer.content_type("application/json");
    Ok(visit.stream(answer, stream::iter([body])))
}

async fn read(form: Multipart) -> Result<(Bytes, Map<String, Value>), Problem> {
    let read = Form::read(form, FILE_BYTES).await;
    let read = read.map_err(|error| match error {
        FormError::TooLarge(_) => {
            Problem::of("file", "Maximum content size limit (26214400) exceeded")
        }
        FormError::Broken(_) | FormError::TooMany => Problem::of("body", error.to_string()),
    })?;
    let mut names = read.fields.keys();
    if let Some(name) = names.find(|name| *name != "stream" && !FIELDS.contains(&name.as_str())) {
        let problem = format!("Unrecognized request argument supplied: {name}");
        return Err(Problem::of("body", problem));
    }
    match read.file {
        Some(file) => Ok((file, read.fields)),
        None => Err(Problem::of("file", "you must provide a file")),
    }
}

/// A delta for each word, and the whole.
fn events(whole: &str) -> Vec<Bytes> {
    let words = whole.split_inclusive(' ');
    let deltas =
        words.map(|delta| event(&json!({"type": "transcript.text.delta", "delta": delta})));
    let usage = json!({"type": "tokens", "input_tokens": 1, "output_tokens": 1, "total_tokens": 2});
    let done = json!({
        "type": "transcript.text.done", "text": whole, "languages": [{"code": "en"}], "usage": usage,
    });
    deltas.chain([event(&done)]).collect()
}
