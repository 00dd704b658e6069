//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`, which only Whisper does. What is heard here is English.

use std::time::Duration;

use actix_multipart::Multipart;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::{Map, Value, json};

use super::{Problem, admit, event, with_id};
use crate::engine::{EngineError, Heard, Listening};
use crate::visit::Visit;
use crate::{Direction, Emulation};
use vivavoce_audio::{AudioFormat, Encoding, SampleRate};
use vivavoce_seams::Transcript;

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
/// What is heard at once.
const PIECE: usize = 8 << 10;
/// Fields of one form.
const MOST_FIELDS: usize = 100;
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

/// A form, without the `[]` behind names of lists.
#[derive(Default)]
struct Form {
    file: Vec<u8>,
    fields: Map<String, Value>,
}

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
    let Form { file, fields } = read(form).await?;
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
    let heard = hear(visit, &file).await?;
    let mut answer = with_id(HttpResponse::Ok(), visit);
    if streams {
        answer.content_type("text/event-stream");
        return Ok(visit.stream(answer, stream::iter(events(&heard))));
    }
    let whole = joined(&heard);
    let seconds = heard.iter().filter_map(|part| part.end).fold(0.0, f64::max);
    let usage = json!({"type": "duration", "seconds": seconds.ceil()});
    let body = match format.as_str() {
        "text" => return Ok(answer.content_type("text/plain").body(whole + "\n")),
        "verbose_json" => {
            let words = heard.iter().flat_map(|part| &part.words);
            let words =
                words.map(|word| json!({"word": word.word, "start": word.start, "end": word.end}));
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

async fn read(mut form: Multipart) -> Result<Form, Problem> {
    let broken = |error: actix_multipart::MultipartError| Problem::of("body", error.to_string());
    let mut read = Form::default();
    let mut has_file = false;
    let mut count = 0;
    while let Some(part) = form.next().await {
        let mut part = part.map_err(broken)?;
        count += 1;
        if count > MOST_FIELDS {
            return Err(Problem::of("body", "The form has too many fields."));
        }
        let name = part.name().unwrap_or_default().to_owned();
        let limit = if name == "file" { FILE_BYTES } else { 1 << 16 };
        let too_large = |_| Problem::of("file", "Maximum content size limit (26214400) exceeded");
        let bytes = part
            .bytes(limit)
            .await
            .map_err(too_large)?
            .map_err(broken)?;
        if name == "file" {
            has_file = true;
            read.file = bytes.into();
            continue;
        }
        let name = name.split('[').next().unwrap_or_default().to_owned();
        if name != "stream" && !FIELDS.contains(&name.as_str()) {
            let problem = format!("Unrecognized request argument supplied: {name}");
            return Err(Problem::of("body", problem));
        }
        let value = String::from_utf8_lossy(&bytes).into_owned();
        match read.fields.get_mut(&name) {
            None => drop(read.fields.insert(name, value.into())),
            Some(Value::Array(all)) => all.push(value.into()),
            Some(one) => *one = json!([one.take(), value]),
        }
    }
    if has_file {
        Ok(read)
    } else {
        Err(Problem::of("file", "you must provide a file"))
    }
}

/// Everything that is said in a file.
async fn hear(visit: &Visit, file: &[u8]) -> Result<Vec<Transcript>, Problem> {
    let encoding = match file {
        [b'R', b'I', b'F', b'F', ..] => Encoding::Wav,
        [b'O', b'g', b'g', b'S', ..] => Encoding::OggOpus,
        [b'I', b'D', b'3', ..] | [0xff, ..] => Encoding::Mp3,
        _ => return Err(Problem::of("file", "Invalid file format.")),
    };
    let listening = Listening {
        format: AudioFormat::mono(encoding, SampleRate::HZ_16000),
        endpointing: Some(Duration::from_millis(500)),
    };
    let failed = |error| Problem::failed(&error);
    let mut recogniser = visit.listen(listening).await.map_err(failed)?;
    let mut heard = Vec::new();
    let mut take = |event: Result<Heard, EngineError>| {
        if let Heard::Final(transcript) = event.map_err(failed)? {
            heard.push(transcript);
        }
        Ok::<_, Problem>(())
    };
    for piece in file.chunks(PIECE) {
        recogniser.push(piece).await.map_err(failed)?;
        // What was heard so far does not wait until nothing more can be said.
        while let Some(Some(event)) = recogniser.next().now_or_never() {
            take(event)?;
        }
    }
    recogniser.finish().await;
    while let Some(event) = recogniser.next().await {
        take(event)?;
    }
    Ok(heard)
}

fn joined(heard: &[Transcript]) -> String {
    let texts: Vec<&str> = heard.iter().map(|part| part.text.trim()).collect();
    texts.join(" ")
}

/// A delta for each word, and the whole.
fn events(heard: &[Transcript]) -> Vec<Bytes> {
    let whole = joined(heard);
    let words = whole.split_inclusive(' ');
    let deltas =
        words.map(|delta| event(&json!({"type": "transcript.text.delta", "delta": delta})));
    let usage = json!({"type": "tokens", "input_tokens": 1, "output_tokens": 1, "total_tokens": 2});
    let done = json!({
        "type": "transcript.text.done", "text": whole, "languages": [{"code": "en"}], "usage": usage,
    });
    deltas.chain([event(&done)]).collect()
}
