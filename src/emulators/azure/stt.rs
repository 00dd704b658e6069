//! Recognition, turn by turn. A turn begins with its context, receives a RIFF header and audio, and ends on an empty audio
//! message or at the service's limits.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::frames::{Frame, field, send};
use super::{IDLE, IDLE_REASON, new_id, parameter, refusal, ticks};
use crate::engine::{EngineError, Heard, Listening, Recogniser};
use crate::outlet::Gone;
use crate::socket::{Message, Socket, accept};
use crate::{Direction, Emulation, Vendor};
use vivavoce_audio::{AudioFormat, Channels, Encoding, Layout, SampleRate};
use vivavoce_seams::Transcript;

/// The silence that ends a phrase where the client does not say.
const SEGMENTATION: Duration = Duration::from_millis(500);
/// How much sound without speech a single shot bears.
const INITIAL_SILENCE: Duration = Duration::from_secs(5);
/// A turn is ended after so long, whatever is being said.
const LONGEST_TURN: Duration = Duration::from_mins(10);

/// What the handshake decides.
struct Opened {
    /// One phrase is heard, and the turn is over.
    single_shot: bool,
    detailed: bool,
    word_timings: bool,
    segmentation: Duration,
}

/// A socket for recognition.
pub(super) async fn open(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = emulation.visit(&request, Vendor::Azure, Direction::Stt);
    if let Some(refused) = refusal(&visit, &request) {
        return Ok(refused);
    }
    let mode = request.match_info().get("mode").unwrap_or("conversation");
    if !["interactive", "conversation", "dictation"].contains(&mode) {
        return Ok(HttpResponse::NotFound().finish());
    }
    let parameter = |name: &str| parameter(&request, name);
    let format = parameter("format").unwrap_or_else(|| "simple".to_owned());
    let silence = parameter("segmentationSilenceTimeoutMs").map(|ms| segmentation(ms.parse().ok()));
    let language = parameter("language");
    let valid = ["simple", "detailed"].contains(&format.as_str())
        && language.as_deref().is_none_or(is_locale)
        && silence != Some(None);
    if !valid {
        visit.note("a parameter of the query is wrong");
        return Ok(HttpResponse::BadRequest().body("Bad Request"));
    }
    let opened = Opened {
        single_shot: mode == "interactive",
        detailed: format == "detailed",
        word_timings: parameter("wordLevelTimestamps").as_deref() == Some("true"),
        segmentation: silence.flatten().unwrap_or(SEGMENTATION),
    };
    accept(&request, payload, visit, async move |socket| {
        // A client that has gone needs no goodbye.
        let _ = recognise(socket, &opened).await;
    })
}

/// Within the limits that are documented.
fn segmentation(ms: Option<u64>) -> Option<Duration> {
    ms.filter(|ms| (100..=5_000).contains(ms))
        .map(Duration::from_millis)
}

/// A language with its region: `en-US`.
fn is_locale(language: &str) -> bool {
    let mut parts = language.split('-');
    let first = parts
        .next()
        .is_some_and(|part| (2..=3).contains(&part.len()));
    first && parts.clone().count() >= 1 && parts.all(|part| part.chars().all(char::is_alphanumeric))
}

/// How much is told of a phrase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detail {
    Simple,
    Detailed { words: bool, confidence: bool },
}

/// What a context asks for.
#[derive(Debug)]
struct Context {
    single_shot: bool,
    detail: Detail,
    segmentation: Duration,
    /// Which is told, where the client has asked which it is.
    language: Option<String>,
    diarize: bool,
}

impl Context {
    fn read(context: &Value, opened: &Opened) -> Result<Self, String> {
        let text = |path: &[&str]| field(context, path).and_then(Value::as_str);
        let detection = "phraseDetection";
        let languages = field(context, &["languageId", "languages"]).and_then(Value::as_array);
        let languages: Vec<&str> = languages
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let wrong = text(&[detection, "language"])
            .into_iter()
            .chain(languages.iter().copied())
            .find(|language| !is_locale(language));
        if let Some(language) = wrong {
            return Err(format!("Unsupported language: {language}."));
        }
        let silence = [
            detection,
            "conversation",
            "segmentation",
            "segmentationSilenceTimeoutMs",
        ];
        let silence = match field(context, &silence) {
            Some(ms) => segmentation(ms.as_u64()).ok_or("Invalid segmentation silence timeout.")?,
            None => opened.segmentation,
        };
        let options = field(context, &["phraseOutput", "detailed", "options"]);
        let options = options
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let option = |name: &str| options.iter().any(|option| option == name);
        let same = |path: &[&str], wanted: &str| {
            text(path).is_some_and(|text| text.eq_ignore_ascii_case(wanted))
        };
        Ok(Self {
            single_shot: opened.single_shot || same(&[detection, "mode"], "interactive"),
            detail: if opened.detailed || same(&["phraseOutput", "format"], "detailed") {
                Detail::Detailed {
                    words: opened.word_timings || option("WordTimings"),
                    confidence: option("WordConfidence"),
                }
            } else {
                Detail::Simple
            },
            segmentation: silence,
            language: languages.first().map(|language| (*language).to_owned()),
            diarize: field(context, &[detection, "speakerDiarization"]).is_some(),
        })
    }
}

/// The turn that is being heard.
struct Turn {
    request: String,
    context: Context,
    started: bool,
    /// It has all of its sound.
    complete: bool,
    speech: bool,
    recogniser: Option<Recogniser>,
}

async fn recognise(socket: &mut Socket, opened: &Opened) -> Result<(), Gone> {
    let mut turn: Option<Turn> = None;
    let mut idle = socket.visit().timer(IDLE);
    let mut limit = socket.visit().stream_limit(Some(LONGEST_TURN));
    loop {
        tokio::select! {
            biased;
            message = socket.recv() => {
                idle.restart();
                let Some(message) = message else { return Err(Gone) };
                if matches!(message, Message::Close { .. }) {
                    return Ok(());
                }
                let Some(frame) = Frame::read(message) else {
                    socket.close(1002, "Malformed message").await;
                    return Ok(());
                };
                match frame.path.as_str() {
                    "speech.context" => {
                        socket.visit().asked_by(&frame.json());
                        match Context::read(&frame.json(), opened) {
                            Ok(context) => turn = Some(Turn::new(frame.request, context)),
                            Err(problem) => {
                                socket.close(1007, &problem).await;
                                return Ok(());
                            }
                        }
                        limit.restart();
                    }
                    "audio" => {
                        let Some(current) = turn.as_mut().filter(|turn| turn.request == frame.request) else {
                            // Of a turn that is over.
                            continue;
                        };
                        if let Err(problem) = current.sound(socket, &frame).await? {
                            socket.close(1007, problem).await;
                            return Ok(());
                        }
                        if current.is_over() {
                            turn = None;
                        }
                    }
                    // Configuration, telemetry and whatever else a client says of itself.
                    _ => {}
                }
            }
            heard = next(&mut turn) => {
                let Some(current) = turn.as_mut() else { continue };
                match heard {
                    Some(Ok(heard)) => current.tell(socket, &heard).await?,
                    Some(Err(_)) => {
                        socket.close(1011, "Internal server error").await;
                        return Ok(());
                    }
                    None => current.end(socket).await?,
                }
                if current.is_over() {
                    turn = None;
                }
            }
            () = limit.expired() => {
                limit.restart();
                // Whatever is being said: the client has to send again what no phrase has covered.
                if let Some(over) = turn.take_if(|turn| !turn.complete) {
                    socket.visit().note("a turn was ended");
                    send(socket, &over.request, "turn.end", &json!({})).await?;
                }
            }
            () = idle.expired() => {
                socket.close(1000, IDLE_REASON).await;
                return Ok(());
            }
        }
    }
}

async fn next(turn: &mut Option<Turn>) -> Option<Result<Heard, EngineError>> {
    match turn.as_mut().and_then(|turn| turn.recogniser.as_mut()) {
        Some(recogniser) => recogniser.next().await,
        None => std::future::pending().await,
    }
}

impl Turn {
    fn new(request: String, context: Context) -> Self {
        Self {
            request,
            context,
            started: false,
            complete: false,
            speech: false,
            recogniser: None,
        }
    }

    /// Ended turns have no name.
    fn is_over(&self) -> bool {
        self.request.is_empty()
    }

    async fn send(&self, socket: &Socket, path: &str, body: &Value) -> Result<(), Gone> {
        send(socket, &self.request, path, body).await
    }

    /// A message of sound; the inner error closes the socket.
    async fn sound(
        &mut self,
        socket: &Socket,
        frame: &Frame,
    ) -> Result<Result<(), &'static str>, Gone> {
        if !self.started {
            self.started = true;
            let tag = json!({"context": {"serviceTag": new_id()}});
            self.send(socket, "turn.start", &tag).await?;
        }
        if frame.body.is_empty() {
            self.complete = true;
            match &mut self.recogniser {
                // The rest comes from `next`.
                Some(recogniser) => recogniser.finish().await,
                None => self.end(socket).await?,
            }
            return Ok(Ok(()));
        }
        let Some(recogniser) = &mut self.recogniser else {
            let Some((format, sound)) = riff(&frame.body) else {
                return Ok(Err("Unsupported audio format"));
            };
            let (encoding, layout) = (format.encoding.name(), format.layout);
            let (hz, channels) = (layout.rate.hz(), layout.channels.count());
            let visit = socket.visit();
            visit.asked(format!("RIFF {encoding} {hz} Hz {channels} channel"));
            let endpointing = Some(self.context.segmentation);
            let listening = Listening {
                format,
                endpointing,
            };
            let Ok(mut recogniser) = visit.listen(listening).await else {
                return Ok(Err("Unsupported audio format"));
            };
            if recogniser.push(sound).await.is_err() {
                return Ok(Err("Invalid audio data"));
            }
            self.recogniser = Some(recogniser);
            return Ok(Ok(()));
        };
        if recogniser.push(&frame.body).await.is_err() {
            return Ok(Err("Invalid audio data"));
        }
        if self.context.single_shot && !self.speech && recogniser.position() >= INITIAL_SILENCE {
            self.nothing(socket, "InitialSilenceTimeout").await?;
            self.over(socket).await?;
        }
        Ok(Ok(()))
    }

    async fn tell(&mut self, socket: &Socket, heard: &Heard) -> Result<(), Gone> {
        match heard {
            Heard::SpeechStarted { at } => {
                self.speech = true;
                let offset = json!({"Offset": ticks(*at)});
                self.send(socket, "speech.startDetected", &offset).await
            }
            Heard::Partial(transcript) => {
                let hypothesis = self.hypothesis(transcript);
                self.send(socket, "speech.hypothesis", &hypothesis).await
            }
            Heard::Final(transcript) => {
                let phrase = self.phrase(transcript);
                if self.context.single_shot {
                    self.end_detected(socket).await?;
                    self.send(socket, "speech.phrase", &phrase).await?;
                    return self.over(socket).await;
                }
                self.send(socket, "speech.phrase", &phrase).await
            }
            // In conversations the end of speech is the phrase.
            Heard::EndOfSpeech { .. } | Heard::Finalized { .. } => Ok(()),
        }
    }

    /// All of its sound was heard.
    async fn end(&mut self, socket: &Socket) -> Result<(), Gone> {
        let status = if !self.context.single_shot {
            "EndOfDictation"
        } else if self.speech {
            "NoMatch"
        } else {
            "InitialSilenceTimeout"
        };
        self.nothing(socket, status).await?;
        self.over(socket).await
    }

    /// A phrase without words.
    async fn nothing(&self, socket: &Socket, status: &str) -> Result<(), Gone> {
        self.end_detected(socket).await?;
        let phrase = json!({
            "Id": new_id(), "RecognitionStatus": status, "Offset": self.position(), "Duration": 0,
        });
        self.send(socket, "speech.phrase", &phrase).await
    }

    async fn end_detected(&self, socket: &Socket) -> Result<(), Gone> {
        let offset = json!({"Offset": self.position()});
        self.send(socket, "speech.endDetected", &offset).await
    }

    async fn over(&mut self, socket: &Socket) -> Result<(), Gone> {
        self.send(socket, "turn.end", &json!({})).await?;
        self.request.clear();
        Ok(())
    }

    /// How much sound it has had.
    fn position(&self) -> u64 {
        let recogniser = self.recogniser.as_ref();
        recogniser.map_or(0, |recogniser| ticks(recogniser.position()))
    }

    fn hypothesis(&self, transcript: &Transcript) -> Value {
        let (offset, duration) = self.span(transcript);
        let mut hypothesis = json!({
            "Id": new_id(), "Text": transcript.text, "Offset": offset, "Duration": duration, "Channel": 0,
        });
        self.label(&mut hypothesis, "Unknown");
        hypothesis
    }

    fn phrase(&self, transcript: &Transcript) -> Value {
        let (offset, duration) = self.span(transcript);
        let display = displayed(&transcript.text);
        let mut phrase = json!({
            "Id": new_id(), "RecognitionStatus": "Success", "Offset": offset, "Duration": duration,
            "DisplayText": display, "Channel": 0,
        });
        if let Detail::Detailed { words, confidence } = self.context.detail {
            let text = &transcript.text;
            let sure = transcript.confidence.unwrap_or(0.9);
            let mut best = json!({
                "Confidence": sure, "Lexical": text, "ITN": text, "MaskedITN": text, "Display": display,
            });
            if words {
                best["Words"] = timed(transcript, confidence);
            }
            phrase["NBest"] = json!([best]);
        }
        self.label(&mut phrase, "Guest-1");
        phrase
    }

    /// Where it is; where the engine does not know its words, it ends now.
    fn span(&self, transcript: &Transcript) -> (u64, u64) {
        let start = transcript
            .words
            .first()
            .map_or(0, |word| in_ticks(word.start));
        let end = transcript.words.last().map(|word| in_ticks(word.end));
        let end = end.unwrap_or_else(|| self.position());
        (start, end.saturating_sub(start))
    }

    fn label(&self, message: &mut Value, speaker: &str) {
        if let Some(language) = &self.context.language {
            message["PrimaryLanguage"] = json!({"Language": language, "Confidence": "High"});
        }
        if self.context.diarize {
            message["SpeakerId"] = json!(speaker);
        }
    }
}

fn timed(transcript: &Transcript, confidence: bool) -> Value {
    let words = transcript.words.iter().map(|word| {
        let (start, end) = (in_ticks(word.start), in_ticks(word.end));
        let mut timed =
            json!({"Word": word.word, "Offset": start, "Duration": end.saturating_sub(start)});
        if confidence {
            timed["Confidence"] = json!(word.confidence);
        }
        timed
    });
    words.collect()
}

fn in_ticks(seconds: f64) -> u64 {
    (seconds * super::TICKS).round() as u64
}

/// A sentence as it is written; numbers alone are none.
fn displayed(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) if text.chars().any(char::is_alphabetic) => {
            format!("{}{}.", first.to_uppercase(), chars.as_str())
        }
        _ => text.to_owned(),
    }
}

/// What a RIFF header says of the sound, and the sound behind it.
fn riff(bytes: &[u8]) -> Option<(AudioFormat, &[u8])> {
    let mut rest = bytes
        .strip_prefix(b"RIFF")?
        .get(4..)?
        .strip_prefix(b"WAVE")?;
    let mut format = None;
    loop {
        let (id, after) = rest.split_first_chunk::<4>()?;
        let (length, after) = after.split_first_chunk::<4>()?;
        if id == b"data" {
            return Some((format?, after));
        }
        let (chunk, next) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if id == b"fmt " {
            format = Some(described(chunk)?);
        }
        rest = next;
    }
}

fn described(chunk: &[u8]) -> Option<AudioFormat> {
    let number = |at: usize| Some(u16::from_le_bytes(*chunk.get(at..)?.first_chunk()?));
    let rate = u32::from_le_bytes(*chunk.get(4..)?.first_chunk()?);
    let encoding = match (number(0)?, number(14)?) {
        (1, 16) => Encoding::Linear16,
        (6, 8) => Encoding::Alaw,
        (7, 8) => Encoding::Mulaw,
        _ => return None,
    };
    let channels = match number(2)? {
        1 => Channels::Mono,
        2 => Channels::Stereo,
        _ => return None,
    };
    let rate = SampleRate::new(rate).ok()?;
    let layout = Layout::new(rate, channels);
    Some(AudioFormat { encoding, layout })
}
