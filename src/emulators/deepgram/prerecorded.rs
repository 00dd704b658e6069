//! `POST /v1/listen`: a whole file, which is the body of the request. Addresses of files are not fetched.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::listen::{Wording, format, keyterms, language, model};
use super::models::uuid;
use super::query::{Problem, Query};
use super::{Direction, Emulation, admitted, bad_request, failure};
use crate::engine::{Whole, announced};
use crate::visit::Visit;
use vivavoce_audio::AudioFormat;
use vivavoce_seams::Word;

/// The largest file that is heard here.
pub(super) const FILE_BYTES: usize = 25 << 20;

/// What the client wants.
struct Options {
    model: String,
    /// Of sound without a header.
    format: Option<AudioFormat>,
    wording: Wording,
    detect_language: bool,
    utterances: bool,
}

fn options(query: &Query) -> Result<Options, Problem> {
    let model = model(query)?;
    keyterms(query, &model)?;
    language(query)?;
    let channels = query.number("channels", 1_u64, 2)?.unwrap_or(1);
    let format = match query.text("encoding") {
        Some(_) => Some(format(query, channels)?),
        None => None,
    };
    let diarize = query.has("diarize_model") || query.flag("diarize", false)?;
    let punctuate = query.flag("punctuate", false)?;
    let smart_format = query.flag("smart_format", false)?;
    Ok(Options {
        model,
        format,
        wording: Wording {
            punctuate: punctuate || smart_format,
            speaker: diarize.then_some(0),
            language: (query.text("language") == Some("multi")).then_some("en"),
        },
        // It names the languages to choose from, or says that all are.
        detect_language: !matches!(query.text("detect_language"), None | Some("false")),
        utterances: query.flag("utterances", false)?,
    })
}

/// Transcribes a file.
pub(super) async fn answer(
    request: HttpRequest,
    emulation: web::Data<Emulation>,
    body: Bytes,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = admitted(&request, &emulation, Direction::Stt)?;
    visit.received(body.len());
    let refused = |problem: &str| bad_request(&visit, problem);
    let options = options(&Query::of(request.query_string())).map_err(|error| refused(&error))?;
    let corrupt = "Bad Request: failed to process audio: corrupt or unsupported data";
    let format = match options.format.or_else(|| announced(&body)) {
        Some(format) => format,
        None if body.starts_with(b"{") => {
            let response = HttpResponse::build(StatusCode::BAD_REQUEST);
            let problem = "The remote server hosting the media could not be reached.";
            return Err(failure(response, &visit, "REMOTE_CONTENT_ERROR", problem));
        }
        None => return Err(refused(corrupt)),
    };
    let heard = visit.hear(format, &body).await;
    let heard = heard.map_err(|_| refused(corrupt))?;
    let answer = told(&visit, &options, &heard, &body);
    visit.sent(answer.to_string().len());
    Ok(HttpResponse::Ok()
        .insert_header(("dg-request-id", visit.request_id().to_string()))
        .json(answer))
}

fn told(visit: &Visit, options: &Options, heard: &Whole, file: &[u8]) -> Value {
    let words = |words: &[Word]| -> Vec<Value> {
        let words = words.iter();
        words.map(|word| options.wording.of(word)).collect()
    };
    let all: Vec<Word> = heard.words().cloned().collect();
    let mut alternative = json!({
        "transcript": heard.text(), "confidence": heard.confidence(), "words": words(&all),
    });
    if let Some(language) = options.wording.language {
        alternative["languages"] = json!([language]);
    }
    let mut channel = json!({"alternatives": [alternative]});
    if options.detect_language {
        channel["detected_language"] = json!("en");
        channel["language_confidence"] = json!(0.99);
    }
    let mut results = json!({"channels": [channel]});
    if options.utterances {
        let utterances = heard.parts.iter().enumerate().map(|(index, part)| {
            let start = part.words.first().map_or(0.0, |word| word.start);
            json!({
                "id": uuid(&format!("{}-{index}", visit.request_id())), "channel": 0, "start": start,
                "end": part.end, "confidence": part.confidence.unwrap_or_default(), "transcript": part.text,
                "words": words(&part.words),
            })
        });
        results["utterances"] = utterances.collect();
    }
    let model = &options.model;
    let id = uuid(model);
    json!({
        "metadata": {
            "transaction_key": "deprecated", "request_id": visit.request_id().to_string(),
            "sha256": format!("{:x}", Sha256::digest(file)),
            // Nobody is known to read it.
            "created": "2026-11-20T10:00:00.000Z",
            "duration": heard.duration.as_secs_f64(), "channels": 1, "models": [id],
            "model_info": {&id: {"name": model, "version": "2025-01-09.0", "arch": model}},
        },
        "results": results,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_vendor_refuses_is_refused() {
        for query in [
            "model=flux-general-en",
            "model=nova-2&keyterm=x",
            "language=klingon",
            "punctuate=yes",
            "encoding=linear16",
        ] {
            assert!(options(&Query::of(query)).is_err(), "{query}");
        }
    }

    #[test]
    fn a_plugins_own_query_is_understood() {
        let query = "model=nova-3&punctuate=true&detect_language=false&smart_format=false&profanity_filter=false&\
                     numerals=false&mip_opt_out=false&language=en-US";
        let options = options(&Query::of(query)).unwrap();
        assert!(options.wording.punctuate && !options.detect_language);
        assert_eq!(options.format, None);
    }
}
