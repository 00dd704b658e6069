//! Synthesis over HTTP: whole or streamed, with or without character timestamps.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};

use super::{
    Problem, alignment, catalogue, check_voice, key, output_format, query, refused, speed, with_id,
};
use crate::speech::{Saying, Speech};
use crate::visit::Visit;
use crate::{Direction, Emulation, Vendor};
use vivavoce_audio::{AudioFormat, Encoding, wav};

/// Speech that was asked for.
struct Asked {
    visit: Visit,
    speech: Speech,
    format: AudioFormat,
    characters: usize,
}

/// Lets a request in and begins what it asks for; otherwise the answer.
fn begin(
    request: &HttpRequest,
    emulation: &web::Data<Emulation>,
    body: &[u8],
    streamed: bool,
) -> Result<Asked, Box<HttpResponse>> {
    let visit = emulation.visit(request, Vendor::ElevenLabs, Direction::Tts);
    if let Err(refusal) = visit.admit(key(request, &[]).as_deref()) {
        return Err(refused(&refusal, &visit).into());
    }
    let body: Value = match serde_json::from_slice(body) {
        Ok(body @ Value::Object(_)) => body,
        _ => {
            return Err(
                unprocessable(&visit, "Input should be a valid dictionary", &["body"]).into(),
            );
        }
    };
    let Some(text) = body["text"].as_str() else {
        return Err(unprocessable(&visit, "Field required", &["body", "text"]).into());
    };
    let said = check_voice(request.match_info().query("voice_id"))
        .and_then(|()| speech(request, &body, text, streamed, &visit));
    let (speech, format) = said.map_err(|problem| Box::new(problem.response(&visit)))?;
    Ok(Asked {
        speech,
        format,
        characters: text.chars().count(),
        visit,
    })
}

fn speech(
    request: &HttpRequest,
    body: &Value,
    text: &str,
    streamed: bool,
    visit: &Visit,
) -> Result<(Speech, AudioFormat), Problem> {
    let query = query(request);
    let name = query.iter().find(|(name, _)| name == "output_format");
    let format = output_format(name.map_or("mp3_44100_128", |(_, value)| value), streamed)?;
    let model = body["model_id"]
        .as_str()
        .unwrap_or("eleven_multilingual_v2");
    let limit = catalogue::text_limit(model)?;
    if text.trim().is_empty() {
        return Err(Problem::invalid("Text is empty"));
    }
    if text.chars().count() > limit {
        let words = format!("The text is longer than {limit} characters, the limit of {model}");
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "max_character_limit_exceeded",
            words,
        ));
    }
    let saying = Saying {
        speaking_rate: speed(&body["voice_settings"])?,
        format,
    };
    let speech = visit
        .say(text, &saying)
        .map_err(|error| Problem::failed(&error))?;
    Ok((speech, format))
}

fn unprocessable(visit: &Visit, problem: &str, place: &[&str]) -> HttpResponse {
    let detail =
        json!({"detail": [{"type": "missing", "loc": place, "msg": problem, "input": null}]});
    with_id(HttpResponse::UnprocessableEntity(), visit).json(detail)
}

impl Asked {
    fn answer(&self, media_type: &str) -> HttpResponseBuilder {
        let mut answer = with_id(HttpResponse::Ok(), &self.visit);
        answer
            .content_type(media_type)
            .insert_header(("character-cost", self.characters.to_string()))
            .insert_header(("current-concurrent-requests", "1"))
            .insert_header(("maximum-concurrent-requests", "10"));
        answer
    }
}

/// `POST /v1/text-to-speech/{voice_id}`.
pub(super) async fn whole(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> HttpResponse {
    let asked = match begin(&request, &emulation, &body, false) {
        Ok(asked) => asked,
        Err(answer) => return *answer,
    };
    let mut answer = asked.answer(asked.format.encoding.media_type());
    match asked.speech.whole().await {
        Ok(piece) => {
            let mut audio = piece.audio.to_vec();
            if asked.format.encoding == Encoding::Wav {
                let length = audio.len() as u64;
                wav::patch_length(&mut audio, length);
            }
            answer.body(audio)
        }
        Err(error) => Problem::failed(&error).response(&asked.visit),
    }
}

/// `POST …/stream`.
pub(super) async fn stream(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> HttpResponse {
    match begin(&request, &emulation, &body, true) {
        Ok(asked) => {
            let answer = asked.answer(asked.format.encoding.media_type());
            asked.visit.stream(answer, asked.speech.bytes())
        }
        Err(answer) => *answer,
    }
}

/// `POST …/with-timestamps`.
pub(super) async fn whole_with_timestamps(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> HttpResponse {
    let asked = match begin(&request, &emulation, &body, false) {
        Ok(asked) => asked,
        Err(answer) => return *answer,
    };
    let mut answer = asked.answer("application/json");
    match asked.speech.whole().await {
        Ok(piece) => answer.json(timed(&piece.audio, &alignment::in_seconds(&piece.words))),
        Err(error) => Problem::failed(&error).response(&asked.visit),
    }
}

/// `POST …/stream/with-timestamps`: a line of JSON for each piece.
pub(super) async fn stream_with_timestamps(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> HttpResponse {
    let asked = match begin(&request, &emulation, &body, true) {
        Ok(asked) => asked,
        Err(answer) => return *answer,
    };
    let answer = asked.answer("application/json");
    let lines = stream::unfold(asked.speech, async |mut speech| {
        // A speech that fails ends early.
        let piece = speech.next().await?.ok()?;
        let alignment = match &piece.words[..] {
            [] => Value::Null,
            words => alignment::in_seconds(words),
        };
        let line = format!("{}\n", timed(&piece.audio, &alignment));
        Some((Bytes::from(line), speech))
    });
    asked.visit.stream(answer, lines)
}

fn timed(audio: &[u8], alignment: &Value) -> Value {
    json!({"audio_base64": STANDARD.encode(audio), "alignment": alignment, "normalized_alignment": alignment})
}
