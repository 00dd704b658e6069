//! Synthesis over HTTP: of a text or of a dialogue, whole or streamed, with or without character timestamps.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};

use super::dialogue::{MOST_VOICES, check_settings};
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

/// What is to be said.
struct Wish {
    text: String,
    model: String,
    speed: f64,
}

/// Why there is nothing to say: a field is missing, or something is wrong.
enum Amiss {
    Missing(&'static [&'static str]),
    Wrong(Problem),
}

impl From<Problem> for Amiss {
    fn from(problem: Problem) -> Self {
        Self::Wrong(problem)
    }
}

/// Reads what is to be said from a request and its body.
type Reading = fn(&HttpRequest, &Value) -> Result<Wish, Amiss>;

/// A text in the voice of the path.
fn text(request: &HttpRequest, body: &Value) -> Result<Wish, Amiss> {
    let text = body["text"].as_str();
    let text = text.ok_or(Amiss::Missing(&["body", "text"]))?;
    check_voice(request.match_info().query("voice_id"))?;
    let model = body["model_id"].as_str();
    Ok(Wish {
        text: text.to_owned(),
        model: model.unwrap_or("eleven_multilingual_v2").to_owned(),
        speed: speed(&body["voice_settings"])?,
    })
}

/// Inputs, each with a voice of its own.
fn dialogue(_: &HttpRequest, body: &Value) -> Result<Wish, Amiss> {
    let inputs = body["inputs"].as_array();
    let inputs = inputs.ok_or(Amiss::Missing(&["body", "inputs"]))?;
    let mut text = String::new();
    let mut voices: Vec<&str> = Vec::new();
    for input in inputs {
        let said = input["text"].as_str();
        let said = said.ok_or(Amiss::Missing(&["body", "inputs", "text"]))?;
        let voice = input["voice_id"].as_str();
        let voice = voice.ok_or(Amiss::Missing(&["body", "inputs", "voice_id"]))?;
        check_voice(voice)?;
        if !voices.contains(&voice) {
            voices.push(voice);
        }
        text.push_str(said);
        text.push(' ');
    }
    if voices.len() > MOST_VOICES {
        return Err(Problem::invalid("A dialogue has at most 10 voices").into());
    }
    let model = body["model_id"].as_str().unwrap_or("eleven_v3");
    catalogue::speaks_dialogue(model)?;
    check_settings(&body["settings"])?;
    Ok(Wish {
        text: text.trim_end().to_owned(),
        model: model.to_owned(),
        speed: 1.0,
    })
}

/// Lets a request in and begins what it asks for; otherwise the answer.
fn begin(
    request: &HttpRequest,
    emulation: &web::Data<Emulation>,
    body: &[u8],
    read: Reading,
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
    let asked = read(request, &body).and_then(|wish| {
        let (speech, format) = speech(request, &wish, streamed, &visit)?;
        Ok((wish.text.chars().count(), speech, format))
    });
    match asked {
        Ok((characters, speech, format)) => Ok(Asked {
            visit,
            speech,
            format,
            characters,
        }),
        Err(Amiss::Missing(place)) => Err(unprocessable(&visit, "Field required", place).into()),
        Err(Amiss::Wrong(problem)) => Err(problem.response(&visit).into()),
    }
}

fn speech(
    request: &HttpRequest,
    wish: &Wish,
    streamed: bool,
    visit: &Visit,
) -> Result<(Speech, AudioFormat), Problem> {
    let query = query(request);
    let name = query.iter().find(|(name, _)| name == "output_format");
    let format = output_format(name.map_or("mp3_44100_128", |(_, value)| value), streamed)?;
    let Wish { text, model, speed } = wish;
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
        speaking_rate: *speed,
        format,
    };
    let speech = visit
        .say(text, &saying)
        .map_err(|error| Problem::failed(&error))?;
    Ok((speech, format))
}

pub(super) fn unprocessable(visit: &Visit, problem: &str, place: &[&str]) -> HttpResponse {
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
    say_whole(&request, &emulation, &body, text).await
}

/// `POST /v1/text-to-dialogue`.
pub(super) async fn whole_dialogue(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> HttpResponse {
    say_whole(&request, &emulation, &body, dialogue).await
}

async fn say_whole(
    request: &HttpRequest,
    emulation: &web::Data<Emulation>,
    body: &[u8],
    read: Reading,
) -> HttpResponse {
    let asked = match begin(request, emulation, body, read, false) {
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

/// `POST /v1/text-to-speech/{voice_id}/stream`.
pub(super) async fn stream(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> HttpResponse {
    say_in_pieces(&request, &emulation, &body, text)
}

/// `POST /v1/text-to-dialogue/stream`.
pub(super) async fn stream_dialogue(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> HttpResponse {
    say_in_pieces(&request, &emulation, &body, dialogue)
}

fn say_in_pieces(
    request: &HttpRequest,
    emulation: &web::Data<Emulation>,
    body: &[u8],
    read: Reading,
) -> HttpResponse {
    match begin(request, emulation, body, read, true) {
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
    let asked = match begin(&request, &emulation, &body, text, false) {
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
    let asked = match begin(&request, &emulation, &body, text, true) {
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
