//! `POST /v1/speech-to-text`: a whole file. What is heard here is English.

use actix_multipart::Multipart;
use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::http::unprocessable;
use super::scribe::timed;
use super::{Problem, key, refused, with_id};
use crate::engine::announced;
use crate::form::{Form, FormError};
use crate::visit::Visit;
use crate::{Direction, Emulation, Vendor};
use vivavoce_audio::{AudioFormat, Encoding, SampleRate};

const MODELS: [&str; 3] = ["scribe_v1", "scribe_v1_experimental", "scribe_v2"];
/// The largest file that is heard here.
const FILE_BYTES: usize = 25 << 20;
const MOST_KEYTERMS: usize = 100;
const KEYTERM_CHARACTERS: usize = 50;

/// Transcribes a file.
pub(super) async fn answer(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    form: Multipart,
) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::ElevenLabs, Direction::Stt);
    if let Err(refusal) = visit.admit(key(&request, &[]).as_deref()) {
        return refused(&refusal, &visit);
    }
    let form = match Form::read(form, FILE_BYTES).await {
        Ok(form) => form,
        Err(error @ (FormError::Broken(_) | FormError::TooMany)) => {
            return unprocessable(&visit, &error.to_string(), &["body"]);
        }
        Err(error @ FormError::TooLarge(_)) => {
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Problem::new(status, "file_too_large", error.to_string()).response(&visit);
        }
    };
    visit.received(form.file.as_ref().map_or(0, bytes::Bytes::len));
    visit.asked_by(&Value::Object(form.fields.clone()));
    if form.text("model_id").is_none() {
        return unprocessable(&visit, "Field required", &["body", "model_id"]);
    }
    match transcript(&visit, &form).await {
        Ok(transcript) => {
            visit.sent(transcript.to_string().len());
            with_id(HttpResponse::Ok(), &visit).json(transcript)
        }
        Err(problem) => problem.response(&visit),
    }
}

/// What a form asks for.
struct Asked<'a> {
    language: &'a str,
    words: bool,
    diarize: bool,
    format: AudioFormat,
}

fn asked<'a>(form: &'a Form, file: &[u8]) -> Result<Asked<'a>, Problem> {
    let model = form.text("model_id").unwrap_or_default();
    if !MODELS.contains(&model) {
        return Err(Problem::invalid(format!(
            "'{model}' is not a valid model_id. Only {} are supported.",
            MODELS.map(|model| format!("'{model}'")).join(", ")
        )));
    }
    let flag = |name: &str, usual: bool| match form.text(name) {
        None => Ok(usual),
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(_) => Err(Problem::invalid(format!("{name} must be true or false"))),
    };
    flag("tag_audio_events", true)?;
    flag("no_verbatim", false)?;
    let language = form.text("language_code").unwrap_or("en");
    if !(2..=3).contains(&language.len()) || !language.bytes().all(|byte| byte.is_ascii_lowercase())
    {
        return Err(Problem::invalid(format!(
            "language_code {language} is not an ISO 639 code"
        )));
    }
    let keyterms = form.all("keyterms");
    if !keyterms.is_empty() && model != "scribe_v2" {
        return Err(Problem::invalid("keyterms are supported by scribe_v2 only"));
    }
    let too_long = |term: &&str| term.chars().count() > KEYTERM_CHARACTERS;
    if keyterms.len() > MOST_KEYTERMS || keyterms.iter().any(too_long) {
        return Err(Problem::invalid(
            "keyterms: at most 100 of at most 50 characters",
        ));
    }
    let words = match form.text("timestamps_granularity") {
        None | Some("word" | "character") => true,
        Some("none") => false,
        Some(other) => {
            return Err(Problem::invalid(format!(
                "timestamps_granularity {other} does not exist"
            )));
        }
    };
    let format = match form.text("file_format") {
        Some("pcm_s16le_16") => Some(AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000)),
        _ => announced(file),
    };
    Ok(Asked {
        language,
        words,
        diarize: flag("diarize", false)?,
        format: format.ok_or_else(corrupted)?,
    })
}

fn corrupted() -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "invalid_audio",
        "The uploaded file is corrupted or is no audio. Please ensure that it is playable audio.",
    )
}

async fn transcript(visit: &Visit, form: &Form) -> Result<Value, Problem> {
    let Some(file) = &form.file else {
        return Err(Problem::invalid(
            "Must provide either file or cloud_storage_url parameter.",
        ));
    };
    let asked = asked(form, file)?;
    let heard = visit.hear(asked.format, file).await;
    let heard = heard.map_err(|_| corrupted())?;
    let words: Vec<_> = heard.words().cloned().collect();
    let mut words = if asked.words {
        timed(&words)
    } else {
        Vec::new()
    };
    if asked.diarize {
        for word in &mut words {
            word["speaker_id"] = json!("speaker_0");
        }
    }
    Ok(json!({
        "language_code": asked.language, "language_probability": 0.99, "text": heard.text(), "words": words,
        "transcription_id": visit.request_id().simple().to_string(), "audio_duration_secs": heard.duration.as_secs_f64(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(fields: Value) -> Form {
        let Value::Object(fields) = fields else {
            panic!("{fields}");
        };
        Form { file: None, fields }
    }

    #[test]
    fn what_the_plugins_ask_is_understood() {
        let form = form(json!({
            "model_id": "scribe_v2", "tag_audio_events": "true", "language_code": "eng", "keyterms": ["Vivavoce", "tokio"],
        }));
        let asked = asked(&form, b"RIFF....").unwrap();
        assert_eq!(
            (asked.language, asked.words, asked.diarize),
            ("eng", true, false)
        );
        assert_eq!(asked.format.encoding, Encoding::Wav);
    }

    #[test]
    fn what_the_vendor_refuses_is_refused() {
        for fields in [
            json!({"model_id": "scribe_v2_realtime"}),
            json!({"model_id": "scribe_v2", "language_code": "English"}),
            json!({"model_id": "scribe_v1", "keyterms": "x"}),
            json!({"model_id": "scribe_v2", "keyterms": "x".repeat(51)}),
            json!({"model_id": "scribe_v2", "timestamps_granularity": "syllable"}),
            json!({"model_id": "scribe_v2", "diarize": "yes"}),
        ] {
            assert!(
                asked(&form(fields.clone()), b"RIFF....").is_err(),
                "{fields}"
            );
        }
        assert!(asked(&form(json!({"model_id": "scribe_v2"})), b"text").is_err());
    }
}
