//! `POST /v1/audio/transcriptions`: a file in, what was said in it out, at once or as it is recognised; and
//! `POST /v1/audio/translations`: the same in English.

use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::body::BodyStream;
use actix_web::http::header::{self, HeaderName};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::{Stream, stream};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::models::{self, Named};
use super::speech::{error_event, event_bytes};
use super::subtitles::{self, Cue};
use super::upload::{self, Form};
use super::{invalid, name_ignored};
use crate::auth::Entered;
use crate::error::{ApiError, Code};
use crate::state::AppState;
use vivavoce_auth::Access;
use vivavoce_quotas::{Permit, Slot};
use vivavoce_seams::{SpeechToText, SttEvent, SttRequest, Transcript, Word};
use vivavoce_transcription::{ANY_FORMAT, Recorded, Transcription, TranscriptionError};

/// How many utterances could not be recognised, where others were.
const LOST: HeaderName = HeaderName::from_static("x-lost-utterances");
/// The language of a request that names none, as of a session, where it is not found out.
const LANGUAGE: &str = "en-US";
/// OpenAI's clients say a language alone, and recognisers want to know where it is spoken.
const SPOKEN_IN: [(&str, &str); 27] = [
    ("ar", "ar-EG"),
    ("bg", "bg-BG"),
    ("ca", "ca-ES"),
    ("cs", "cs-CZ"),
    ("da", "da-DK"),
    ("de", "de-DE"),
    ("el", "el-GR"),
    ("en", "en-US"),
    ("es", "es-ES"),
    ("fi", "fi-FI"),
    ("fr", "fr-FR"),
    ("he", "he-IL"),
    ("hi", "hi-IN"),
    ("hu", "hu-HU"),
    ("id", "id-ID"),
    ("it", "it-IT"),
    ("ja", "ja-JP"),
    ("ko", "ko-KR"),
    ("nl", "nl-NL"),
    ("pl", "pl-PL"),
    ("pt", "pt-BR"),
    ("ro", "ro-RO"),
    ("ru", "ru-RU"),
    ("sv", "sv-SE"),
    ("tr", "tr-TR"),
    ("uk", "uk-UA"),
    ("zh", "zh-CN"),
];
/// The longest sound of a file.
const LONGEST: Duration = Duration::from_hours(4);
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(30);
/// Keywords and the parts of a prompt become so many keyterms at most, and each is this long at most: what is longer is prose.
const KEYTERMS: usize = 50;
const KEYTERM_CHARACTERS: usize = 60;
/// Languages beside the first.
const LANGUAGES: usize = 10;

/// How the answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Text,
    Srt,
    Vtt,
    Verbose,
}

impl FromStr for Format {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            "srt" => Ok(Self::Srt),
            "vtt" => Ok(Self::Vtt),
            "verbose_json" => Ok(Self::Verbose),
            "diarized_json" => Err("diarized_json is not written here; /ws tells speakers apart"),
            _ => Err("must be json, text, srt, verbose_json or vtt"),
        }
    }
}

/// The fields of a form beside the file.
#[derive(Debug)]
struct Asked {
    model: String,
    language: Option<String>,
    languages: Vec<String>,
    prompt: String,
    keywords: Vec<String>,
    format: Format,
    stream: bool,
    words: bool,
    segments: bool,
    ignored: Vec<&'static str>,
}

impl Asked {
    fn read(fields: Vec<(String, String)>) -> Result<Self, ApiError> {
        let mut asked = Self {
            model: String::new(),
            language: None,
            languages: Vec::new(),
            prompt: String::new(),
            keywords: Vec::new(),
            format: Format::Json,
            stream: false,
            words: false,
            segments: false,
            ignored: Vec::new(),
        };
        for (name, text) in fields {
            match name.as_str() {
                "model" => asked.model = text,
                "language" if text.is_empty() => {}
                "language" => asked.language = Some(language("language", text)?),
                "languages" if asked.languages.len() == LANGUAGES => {
                    return Err(invalid(format!("languages: must be at most {LANGUAGES}")));
                }
                "languages" => asked.languages.push(language("languages", text)?),
                "prompt" => asked.prompt = text,
                "keywords" => asked.keywords.push(text),
                "response_format" => {
                    let format = text.parse();
                    asked.format =
                        format.map_err(|problem| invalid(format!("response_format: {problem}")))?;
                }
                "stream" => {
                    asked.stream = text
                        .parse()
                        .map_err(|_| invalid("stream: must be true or false"))?;
                }
                "timestamp_granularities" => match text.as_str() {
                    "word" => asked.words = true,
                    "segment" => asked.segments = true,
                    _ => {
                        let problem = "timestamp_granularities: must be word or segment";
                        return Err(invalid(problem));
                    }
                },
                "temperature" => {
                    let temperature: f64 = text.parse().unwrap_or(f64::NAN);
                    if !(0.0..=1.0).contains(&temperature) {
                        return Err(invalid("temperature: must be from 0 to 1"));
                    }
                    // Recognisers here are asked for what is most likely.
                    if temperature > 0.0 {
                        asked.ignored.push("temperature");
                    }
                }
                "include" => asked.ignored.push("include"),
                // Long sound is divided in any case, but not as is said here.
                "chunking_strategy" => {}
                name if name.starts_with("chunking_strategy[") => {
                    asked.ignored.push("chunking_strategy");
                }
                "known_speaker_names" | "known_speaker_references" => {
                    return Err(invalid(format!("{name}: speakers are not told apart here")));
                }
                other => {
                    let other = upload::shown(other);
                    return Err(invalid(format!("{other}: is no field of this request")));
                }
            }
        }
        if (asked.words || asked.segments) && asked.format != Format::Verbose {
            let problem = "timestamp_granularities: needs response_format verbose_json";
            return Err(invalid(problem));
        }
        if asked.stream && asked.format != Format::Json {
            asked.ignored.push("response_format");
        }
        if asked.has_prose() {
            asked.ignored.push("prompt");
        }
        Ok(asked)
    }

    fn terms(&self) -> impl Iterator<Item = &str> {
        let parts = self.prompt.split([',', ';', '\n']);
        let terms = self.keywords.iter().map(String::as_str).chain(parts);
        terms.map(str::trim).filter(|term| !term.is_empty())
    }

    /// Whether there is more than can be listened for.
    fn has_prose(&self) -> bool {
        self.terms().count() > KEYTERMS || self.terms().any(|term| !is_short(term))
    }

    /// What may be heard: the keywords, and the parts of the prompt.
    fn keyterms(&self) -> Vec<String> {
        let short = self.terms().filter(|term| is_short(term));
        short.map(str::to_owned).take(KEYTERMS).collect()
    }

    /// The language that is expected, and others that may be spoken.
    fn spoken(&self, finds_language: bool) -> (String, Vec<String>) {
        let mut languages = self.language.iter().chain(&self.languages).cloned();
        let expected = languages.next().unwrap_or_else(|| {
            let unknown = if finds_language { "" } else { LANGUAGE };
            unknown.to_owned()
        });
        (expected, languages.collect())
    }
}

fn is_short(term: &str) -> bool {
    term.chars().count() <= KEYTERM_CHARACTERS
}

/// A language as recognisers know it; one that is not known stays as it is.
pub(super) fn spoken_in(tag: &str) -> String {
    language("language", tag.to_owned()).unwrap_or_else(|_| tag.to_owned())
}

/// ISO 639-1, or a longer tag of BCP 47.
fn language(field: &str, tag: String) -> Result<String, ApiError> {
    let is_tag = (2..=35).contains(&tag.len())
        && tag.starts_with(|c: char| c.is_ascii_alphabetic())
        && tag.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !is_tag {
        return Err(invalid(format!(
            "{field}: must be a tag such as en or pt-BR"
        )));
    }
    let lower = tag.to_ascii_lowercase();
    let known = SPOKEN_IN.iter().find(|(language, _)| *language == lower);
    Ok(known.map_or(tag, |(_, usual)| (*usual).to_owned()))
}

/// Held as long as a transcription lasts.
struct Held {
    _turn: Slot,
    _recogniser: Permit,
    _work: TaskTrackerToken,
}

/// A transcription under way.
struct Running {
    transcription: Transcription,
    heard: Heard,
    /// Why the first of the utterances that could not be recognised was lost, and how many they are.
    lost: Option<(ApiError, usize)>,
    own_language: String,
    task: &'static str,
    _held: Held,
}

/// An answer.
struct Written {
    media_type: &'static str,
    text: String,
    lost: usize,
}

/// What was heard so far.
#[derive(Debug, Default)]
struct Heard {
    utterances: Vec<Transcript>,
}

/// Transcribes a file.
pub async fn transcribe(
    entered: Entered,
    state: web::Data<AppState>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    write(entered, &state, request, payload, false).await
}

/// Writes in English what is said in a file.
pub async fn translate(
    entered: Entered,
    state: web::Data<AppState>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    write(entered, &state, request, payload, true).await
}

async fn write(
    Entered(access): Entered,
    state: &AppState,
    request: HttpRequest,
    payload: web::Payload,
    translate: bool,
) -> Result<HttpResponse, ApiError> {
    let work = state.begin_work()?;
    let party = access.party();
    let turn = timeout(PATIENCE, state.openai.transcriptions.acquire(&party)).await;
    let turn = turn.map_err(|_| {
        let problem = "too many files are transcribed at the moment (limits.transcriptions)";
        ApiError::new(Code::Overloaded, problem).retry_after(PATIENCE)
    })?;
    let Form { file, fields } =
        upload::receive(&request, payload.into_inner(), &state.openai.folder).await?;
    let mut asked = Asked::read(fields)?;
    let model = models::wanted(state, Some(&asked.model))?;
    let provider = recogniser(state, &model, translate)?;
    let wanted = wanted(&asked, &model, &access, &*provider, translate);
    note_ignored(&mut asked, &*provider, &wanted);
    let recogniser = state.recognisers.take(&party)?;
    let opened = tokio::task::spawn_blocking(move || Recorded::open(file, LONGEST)).await;
    let opened = opened.map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    let recorded = opened.map_err(|error| invalid(format!("file: {error}")))?;
    let duration = recorded.duration();
    let own_language = wanted.language.clone();
    let begun = Transcription::begin(provider, wanted, recorded).await;
    let running = Running {
        transcription: begun.map_err(|error| ApiError::provider(&error, false))?,
        heard: Heard::default(),
        lost: None,
        own_language,
        task: if translate { "translate" } else { "transcribe" },
        _held: Held {
            _turn: turn,
            _recogniser: recogniser,
            _work: work,
        },
    };
    let mut response = HttpResponse::Ok();
    name_ignored(&mut response, std::mem::take(&mut asked.ignored));
    if asked.stream {
        response.insert_header((header::CONTENT_TYPE, "text/event-stream"));
        return Ok(response.body(BodyStream::new(events(running))));
    }
    let Written {
        media_type,
        text,
        lost,
    } = running.whole(&asked, duration).await?;
    if lost > 0 {
        response.insert_header((LOST, lost));
    }
    response.insert_header((header::CONTENT_TYPE, media_type));
    Ok(response.body(text))
}

/// The recogniser of a model.
fn recogniser(
    state: &AppState,
    model: &Named,
    translate: bool,
) -> Result<Arc<dyn SpeechToText>, ApiError> {
    let provider = state.providers.speech_to_text(&model.provider);
    let provider = provider.ok_or_else(|| {
        let problem = format!("model: {} has no recogniser", model.provider);
        ApiError::new(Code::ModelNotFound, problem)
    })?;
    if model.voice.is_some() {
        return Err(invalid("model: a recogniser has no voice"));
    }
    if translate && !provider.translates(&model.model) {
        let problem = "model: it does not translate; local/whisper-base and openai/whisper-1 do";
        return Err(invalid(problem));
    }
    Ok(provider)
}

fn wanted(
    asked: &Asked,
    model: &Named,
    access: &Access,
    provider: &dyn SpeechToText,
    translate: bool,
) -> SttRequest {
    let (language, languages) = asked.spoken(provider.finds_language(&model.model));
    SttRequest {
        language,
        model: model.model.clone(),
        punctuation: true,
        format: ANY_FORMAT,
        keyterms: asked.keyterms(),
        languages,
        diarize: false,
        translate,
        credential: None,
        party: access.party(),
    }
}

fn note_ignored(asked: &mut Asked, provider: &dyn SpeechToText, wanted: &SttRequest) {
    let others = wanted.languages.iter().map(String::as_str);
    let spoken: Vec<&str> = std::iter::once(wanted.language.as_str())
        .chain(others)
        .collect();
    let ignored = |field| {
        let because = provider.ignored_because(field, &wanted.model, &spoken);
        because.is_some()
    };
    let given = [
        ("prompt", "keyterms", !asked.prompt.trim().is_empty()),
        ("keywords", "keyterms", !asked.keywords.is_empty()),
        ("language", "language", asked.language.is_some()),
        ("languages", "languages", !wanted.languages.is_empty()),
        ("timestamp_granularities", "words", asked.words),
    ];
    for (name, field, is_given) in given {
        if is_given && ignored(field) {
            asked.ignored.push(name);
        }
    }
    if asked.stream && (asked.words || asked.segments) {
        asked.ignored.push("timestamp_granularities");
    }
}

fn failed(error: TranscriptionError) -> ApiError {
    match error {
        TranscriptionError::File(error) => invalid(format!("file: {error}")),
        TranscriptionError::Provider(error) => ApiError::provider(&error, false),
        TranscriptionError::Abandoned => ApiError::new(Code::Overloaded, error.to_string()),
    }
}

impl Running {
    /// The next utterance. What is lost is told only where nothing else was heard.
    async fn next(&mut self) -> Option<Result<Transcript, ApiError>> {
        loop {
            let Some(event) = self.transcription.next().await else {
                let (lost, _) = self.lost.take_if(|_| self.heard.utterances.is_empty())?;
                return Some(Err(lost));
            };
            match event {
                Ok(SttEvent::Final(heard)) if heard.text.trim().is_empty() => {}
                Ok(SttEvent::Final(heard)) => return Some(Ok(heard)),
                Ok(SttEvent::Partial(_) | SttEvent::EndOfSpeech) => {}
                Ok(SttEvent::UtteranceLost(error)) => match &mut self.lost {
                    Some((_, lost)) => *lost += 1,
                    none => *none = Some((ApiError::provider(&error, false), 1)),
                },
                Err(error) => return Some(Err(failed(error))),
            }
        }
    }

    async fn whole(
        mut self,
        asked: &Asked,
        duration: Option<Duration>,
    ) -> Result<Written, ApiError> {
        while let Some(heard) = self.next().await {
            self.heard.utterances.push(heard?);
        }
        let heard = &self.heard;
        let sent = self.transcription.position();
        let seconds = duration.unwrap_or(sent).max(sent).as_secs_f64();
        let (media_type, text) = match asked.format {
            Format::Json => {
                let mut text = json!({"text": heard.text(), "usage": usage(seconds)});
                if let Some(language) = heard.language() {
                    text["languages"] = json!([{"code": language}]);
                }
                ("application/json", text.to_string())
            }
            Format::Text => ("text/plain; charset=utf-8", heard.text() + "\n"),
            Format::Srt => (
                "application/x-subrip; charset=utf-8",
                subtitles::srt(heard.cues()),
            ),
            Format::Vtt => ("text/vtt; charset=utf-8", subtitles::vtt(heard.cues())),
            Format::Verbose => {
                let language = heard.language().unwrap_or(&self.own_language);
                let mut verbose = heard.verbose(asked, seconds, language);
                verbose["task"] = self.task.into();
                ("application/json", verbose.to_string())
            }
        };
        Ok(Written {
            media_type,
            text,
            lost: self.lost.map_or(0, |(_, lost)| lost),
        })
    }
}

fn usage(seconds: f64) -> Value {
    json!({"type": "duration", "seconds": seconds.ceil()})
}

impl Heard {
    fn text(&self) -> String {
        let texts = self.utterances.iter().map(|heard| heard.text.trim());
        texts.collect::<Vec<_>>().join(" ")
    }

    fn language(&self) -> Option<&str> {
        self.utterances
            .iter()
            .find_map(|heard| heard.language.as_deref())
    }

    /// Utterances with their places: those of their words, else from the end of the one before.
    fn cues(&self) -> impl Iterator<Item = Cue<'_>> {
        let mut before = 0.0;
        self.utterances.iter().map(move |heard| {
            let start = heard.words.first().map_or(before, |word| word.start);
            let end = heard.words.last().map(|word| word.end).or(heard.end);
            let end = end.unwrap_or(start).max(start);
            before = end;
            Cue {
                start,
                end,
                text: heard.text.trim(),
            }
        })
    }

    fn verbose(&self, asked: &Asked, seconds: f64, language: &str) -> Value {
        let mut verbose = json!({
            "language": language, "duration": seconds, "text": self.text(),
            "usage": usage(seconds),
        });
        // Segments are the default.
        if asked.segments || !asked.words {
            let cues = self.cues().zip(&self.utterances).enumerate();
            let segments = cues.map(|(id, (cue, heard))| segment(id, &cue, heard.confidence));
            verbose["segments"] = segments.collect();
        }
        if asked.words {
            let words = self.utterances.iter().flat_map(|heard| &heard.words);
            let word =
                |word: &Word| json!({"word": word.word, "start": word.start, "end": word.end});
            verbose["words"] = words.map(word).collect();
        }
        verbose
    }
}

/// What is not known of a segment has the value of one of which there is nothing to say.
fn segment(id: usize, cue: &Cue<'_>, confidence: Option<f32>) -> Value {
    let logprob = confidence.map_or(0.0, |confidence| f64::from(confidence).max(1e-9).ln());
    json!({
        "id": id, "seek": 0, "start": cue.start, "end": cue.end, "text": cue.text, "tokens": [],
        "temperature": 0.0, "avg_logprob": logprob, "compression_ratio": 1.0, "no_speech_prob": 0.0,
    })
}

/// `transcript.text.delta` for each utterance, and `transcript.text.done`. A failure is the last event.
fn events(running: Running) -> Pin<Box<dyn Stream<Item = Result<Bytes, ApiError>>>> {
    let events = stream::unfold(Some(running), |running| async {
        let mut running = running?;
        let (event, rest) = match running.next().await {
            Some(Ok(heard)) => {
                let first = running.heard.utterances.is_empty();
                let said = heard.text.trim();
                let delta = if first {
                    said.to_owned()
                } else {
                    format!(" {said}")
                };
                running.heard.utterances.push(heard);
                let delta = json!({"type": "transcript.text.delta", "delta": delta});
                (delta.to_string(), Some(running))
            }
            Some(Err(error)) => return Some((Ok(error_event(&error)), None)),
            None => {
                let seconds = running.transcription.position().as_secs_f64();
                let done = json!({
                    "type": "transcript.text.done", "text": running.heard.text(),
                    "usage": usage(seconds),
                });
                (done.to_string(), None)
            }
        };
        Some((Ok(event_bytes(&event)), rest))
    });
    Box::pin(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &[(&str, &str)]) -> Result<Asked, ApiError> {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        Asked::read(fields.iter().map(owned).collect())
    }

    #[test]
    fn a_field_that_is_wrong_or_unknown_is_named() {
        for (name, text) in [
            ("response_format", "diarized_json"),
            ("response_format", "xml"),
            ("stream", "yes"),
            ("temperature", "2"),
            ("temperature", "warm"),
            ("language", "the language of Shakespeare"),
            ("timestamp_granularities", "letter"),
            ("timestamp_granularities", "word"),
            ("known_speaker_names", "Ada"),
            ("colour", "red"),
        ] {
            let error = read(&[("model", "local"), (name, text)]).unwrap_err();
            let message = error.to_string();
            assert!(message.starts_with(&format!("{name}: ")), "{message}");
        }
    }

    #[test]
    fn what_has_no_effect_is_noted_and_a_prompt_is_what_may_be_heard() {
        let asked = read(&[
            ("model", "local"),
            ("temperature", "0"),
            ("chunking_strategy", "auto"),
            ("prompt", "Vivavoce, smart-turn;\nAda Lovelace,,"),
        ]);
        let asked = asked.unwrap();
        assert!(asked.ignored.is_empty());
        assert_eq!(asked.keyterms(), ["Vivavoce", "smart-turn", "Ada Lovelace"]);
        let prose =
            "This is a talk about voice servers and how they are built by people who like them.";
        let asked = read(&[
            ("temperature", "0.5"),
            ("include", "logprobs"),
            ("chunking_strategy[threshold]", "0.5"),
            ("prompt", prose),
            ("keywords", "Ada"),
        ]);
        let asked = asked.unwrap();
        assert_eq!(asked.keyterms(), ["Ada"]);
        let ignored = ["temperature", "include", "chunking_strategy", "prompt"];
        assert_eq!(asked.ignored, ignored);
    }

    #[test]
    fn a_language_alone_is_that_of_its_usual_country_and_none_is_found_out_where_it_can_be() {
        let asked = read(&[
            ("language", "de"),
            ("languages", "EN"),
            ("languages", "gsw"),
        ]);
        let (expected, others) = asked.unwrap().spoken(true);
        assert_eq!(
            (expected.as_str(), others),
            ("de-DE", vec!["en-US".to_owned(), "gsw".to_owned()])
        );
        let none = read(&[]).unwrap();
        assert_eq!(none.spoken(true).0, "");
        assert_eq!(none.spoken(false).0, "en-US");
    }

    #[test]
    fn utterances_without_words_begin_where_the_one_before_ended() {
        let heard = |text: &str, words: &[(f64, f64)], end| Transcript {
            text: text.to_owned(),
            words: words
                .iter()
                .map(|&(start, end)| Word {
                    word: text.to_owned(),
                    start,
                    end,
                    confidence: None,
                    speaker: None,
                })
                .collect(),
            end,
            ..Transcript::default()
        };
        let heard = Heard {
            utterances: vec![
                heard(" one ", &[(0.5, 1.0), (1.0, 1.5)], Some(2.0)),
                heard("two", &[], Some(3.0)),
                heard("three", &[], None),
            ],
        };
        let places: Vec<_> = heard.cues().map(|cue| (cue.start, cue.end)).collect();
        assert_eq!(places, [(0.5, 1.5), (1.5, 3.0), (3.0, 3.0)]);
        assert_eq!(heard.text(), "one two three");
        let asked = read(&[
            ("response_format", "verbose_json"),
            ("timestamp_granularities", "word"),
        ]);
        let verbose = heard.verbose(&asked.unwrap(), 3.2, "en");
        assert_eq!(verbose["words"].as_array().map(Vec::len), Some(2));
        assert!(verbose.get("segments").is_none());
        assert_eq!(verbose["usage"]["seconds"], 4.0);
    }
}
