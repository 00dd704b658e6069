//! Azure's recogniser. A stream is a sequence of turns, each with its own request id and timestamps from zero. A turn ends
//! on finalisation, and by itself after some minutes; the next one is sent again the audio that no phrase has covered.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::usp::{self, Origin, TICKS_PER_SECOND};
use super::{Location, SLUG, errors};
use crate::transport::stt_driver::{Flow, Protocol, SttIo};
use crate::transport::websocket::Received;
use crate::transport::{Transport, VendorEndpoint};
use vivavoce_audio::format::{AudioFormat, Encoding};
use vivavoce_audio::g711::Law;
use vivavoce_audio::wav::{self, DataLength, SampleFormat};
use vivavoce_config as config;
use vivavoce_seams::parameters::{Parameter, converted, own};
use vivavoce_seams::{
    Accepts, CredentialField, ErrorKind, FinalDelay, ProviderError, SpeechToText, SttEvent,
    SttRequest, SttStream, Transcript, Word,
};

/// The sound of one message.
const CHUNK: Duration = Duration::from_millis(100);
/// The longest sound that is kept for the next turn: longer than Azure's longest phrase.
const KEPT: Duration = Duration::from_secs(30);
/// How long sound is kept while nobody has been heard: a word that Azure has not noticed yet. By the clock and not by its
/// length, for after a drop much is sent at once.
const KEPT_OF_SILENCE: Duration = Duration::from_secs(5);
/// How exactly.
const MARKS: Duration = Duration::from_secs(1);
/// How long the last words of a turn may take.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// A connection is not left without a message for longer; Azure bears 300 s.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Azure changes connections after ten minutes.
const LONGEST: Duration = Duration::from_mins(10);
/// How long connecting may take; the session's own patience is not longer.
const CONNECTING: Duration = Duration::from_secs(10);

/// What becomes of each field of `stt_config`.
const PARAMETERS: &[Parameter] = &[
    own("language", "phraseDetection.language"),
    own("languages", "languageId.languages"),
    own("model", "cid"),
    own("encoding", "RIFF header: linear16, mulaw, alaw"),
    own(
        "sample_rate",
        "RIFF header: 8000 and 16000; others are converted",
    ),
    converted("channels", "mixed to one"),
    own("punctuation", "NBest[].Display or .Lexical"),
    own("keyterms", "dgi.groups"),
    own("diarize", "phraseDetection.speakerDiarization"),
    converted("min_confidence", "finals below it are dropped"),
    own("words", "phraseOutput.detailed.options"),
    own("auth", "Ocp-Apim-Subscription-Key, region"),
];

/// The recogniser `azure`.
pub(super) struct AzureStt {
    vendor: VendorEndpoint,
    location: Location,
}

impl AzureStt {
    pub(super) fn new(settings: &config::Providers, transport: &Transport) -> Option<Self> {
        let url = settings.azure_stt_url.as_ref();
        let (vendor, location) =
            super::endpoint(settings, url, settings.azure_stt_streams, transport)?;
        Some(Self { vendor, location })
    }
}

#[async_trait]
impl SpeechToText for AzureStt {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn answers_within(&self) -> Option<Duration> {
        Some(Duration::from_secs(3))
    }

    fn final_delay(&self) -> FinalDelay {
        FinalDelay::of_ms(1016, 1_345)
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16, Encoding::Mulaw, Encoding::Alaw],
            rates: &[8_000, 16_000],
            stereo: false,
            stream_limit: Some(LONGEST),
        }
    }

    fn credential_fields(&self) -> &'static [CredentialField] {
        super::CREDENTIAL
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        let vendor = &self.vendor;
        let credential = vendor.credential(request.credential.as_ref())?;
        let origin = Origin::new();
        let path = ["stt", "speech", "universal", "v2"];
        let mut url = self.location.address(vendor, &credential, "stt", path)?;
        query(&mut url, &request);
        let handshake = super::handshake(url, &credential, &origin);
        let recognition = Recognition::new(&request, origin);
        vendor
            .recognise(
                handshake,
                &credential,
                &request.party,
                CONNECTING,
                recognition,
            )
            .await
    }
}

/// What the interface before "universal" took from the query, and containers still do.
fn query(url: &mut url::Url, request: &SttRequest) {
    let mut query = url.query_pairs_mut();
    query.append_pair("language", &request.language);
    query.append_pair("format", "detailed");
    query.append_pair("wordLevelTimestamps", "true");
    if !request.languages.is_empty() {
        query.append_pair("lidEnabled", "true");
    }
    if !request.model.is_empty() {
        query.append_pair("cid", &request.model);
    }
}

/// What Azure is told about every turn.
fn context(request: &SttRequest, origin: &Origin) -> Value {
    let mut context = json!({
        "phraseDetection": {"mode": "Conversation", "language": request.language},
        "phraseOutput": {
            "format": "Detailed",
            "detailed": {"options": ["WordTimings", "WordConfidence"]},
            "interimResults": {"resultType": "Auto"},
            "phraseResults": {"resultType": "Always"},
        },
    });
    if !request.languages.is_empty() {
        let mut languages = vec![request.language.as_str()];
        languages.extend(request.languages.iter().map(String::as_str));
        context["languageId"] = json!({
            "languages": languages, "mode": "DetectContinuous", "priority": "PrioritizeLatency",
            "onSuccess": {"action": "Recognize"}, "onUnknown": {"action": "None"},
        });
    }
    if !request.keyterms.is_empty() {
        let items: Vec<Value> = request
            .keyterms
            .iter()
            .map(|term| json!({"text": term}))
            .collect();
        context["dgi"] = json!({"groups": [{"type": "Generic", "items": items}], "bias": 1.0});
    }
    if request.diarize {
        context["phraseDetection"]["speakerDiarization"] = json!({
            "mode": "Anonymous", "audioSessionId": origin.connection_id(), "audioOffsetMs": 0,
            "diarizeIntermediates": false,
        });
    }
    context
}

/// A stream of turns over one socket.
struct Recognition {
    origin: Origin,
    format: AudioFormat,
    punctuation: bool,
    context: String,
    sound: Sound,
    /// Counts the turns so far.
    turns: u64,
    turn: Option<Turn>,
    /// Sound up to here shall become final: the end of a turn.
    finalize_at: Option<u64>,
    /// What has come of the phrase that is not complete yet.
    unfinished: Unfinished,
    ended: bool,
    /// The present turn hears again what the last one may not have heard.
    repeated: bool,
    /// Since when nothing is left to wait for.
    finished: Option<Instant>,
}

/// A phrase before its final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unfinished {
    /// Nobody is heard.
    Silence,
    /// Somebody is, and no word is known.
    Speech,
    /// A partial was reported that nothing has replaced.
    Partial,
}

/// Positions are bytes from the stream's first.
struct Turn {
    id: String,
    /// Where it began.
    start: u64,
    /// When its last words are overdue; set once it was told that it has all of its sound.
    closing: Option<Instant>,
    /// Azure has said that it has heard all of it.
    heard_all: bool,
}

impl Turn {
    fn is_open(&self) -> bool {
        self.closing.is_none()
    }

    /// Tells that it has all of its sound.
    fn close(&mut self, origin: &Origin, io: &mut SttIo<'_>) {
        io.out.binary(origin.audio(&self.id, None, &[]));
        self.closing = Some(io.now + LAST_WORDS);
    }
}

impl Recognition {
    fn new(request: &SttRequest, origin: Origin) -> Self {
        Self {
            origin,
            format: request.format,
            punctuation: request.punctuation,
            context: context(request, &origin).to_string(),
            sound: Sound::default(),
            turns: 0,
            turn: None,
            finalize_at: None,
            unfinished: Unfinished::Silence,
            ended: false,
            repeated: false,
            finished: None,
        }
    }

    fn bytes_in(&self, seconds: f64) -> u64 {
        let frames = (seconds * f64::from(self.format.layout.rate.hz())).round();
        (frames as u64).saturating_mul(self.bytes_per_frame())
    }

    fn bytes_per_frame(&self) -> u64 {
        let sample = if self.format.encoding == Encoding::Linear16 {
            2
        } else {
            1
        };
        sample * self.format.layout.channels.count() as u64
    }

    fn seconds_of(&self, bytes: u64) -> f64 {
        let frames = bytes / self.bytes_per_frame();
        frames as f64 / f64::from(self.format.layout.rate.hz())
    }

    /// Sends what can be sent now.
    fn advance(&mut self, io: &mut SttIo<'_>) {
        self.finalize_at.take_if(|at| *at <= self.sound.start);
        let until = self.finalize_at.unwrap_or(self.sound.end());
        if self.turn.is_none() && self.sound.start < until {
            self.begin_turn(io);
        }
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.is_open()) else {
            return;
        };
        for piece in self.sound.take(until) {
            io.out.binary(self.origin.audio(&turn.id, None, &piece));
        }
        if self
            .finalize_at
            .take_if(|at| *at <= self.sound.sent)
            .is_some()
        {
            turn.close(&self.origin, io);
        }
    }

    /// The next turn hears everything that is kept.
    fn begin_turn(&mut self, io: &mut SttIo<'_>) {
        self.turns += 1;
        let id = self.origin.request_id(self.turns);
        let json = "application/json";
        let context = self
            .origin
            .text("speech.context", Some(&id), json, &self.context);
        io.out.text(context);
        let header = riff_header(self.format);
        io.out
            .binary(self.origin.audio(&id, Some("audio/x-wav"), &header));
        self.sound.rewind();
        self.turn = Some(Turn {
            id,
            start: self.sound.start,
            closing: None,
            heard_all: false,
        });
    }

    fn end_turn(&mut self, io: &mut SttIo<'_>) {
        let Some(turn) = self.turn.take() else { return };
        self.nothing_was_heard(io);
        let crossed = !turn.is_open() && !turn.heard_all && self.sound.start < self.sound.sent;
        if crossed && !self.repeated {
            // Azure had ended it before it was told that there is no more sound: the next one hears the rest, once.
            self.finalize_at = self.finalize_at.max(Some(self.sound.sent));
            self.repeated = true;
        } else {
            self.repeated = false;
            if !turn.is_open() {
                // Everything that it had is final.
                self.sound.forget(self.sound.sent);
            }
        }
        self.advance(io);
        if self.ended && self.turn.is_none() {
            self.finished = Some(io.now);
        }
    }

    /// What was reported as heard has come to nothing.
    fn nothing_was_heard(&mut self, io: &mut SttIo<'_>) {
        let unfinished = std::mem::replace(&mut self.unfinished, Unfinished::Silence);
        if unfinished == Unfinished::Partial {
            io.events.push(SttEvent::Partial(Transcript::default()));
        }
    }

    /// Counts as an answer only to having been told that there is no more sound.
    fn all_was_heard(&mut self) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_open()) {
            turn.heard_all = true;
        }
    }

    fn speech_has_begun(&mut self) {
        if self.unfinished == Unfinished::Silence {
            self.unfinished = Unfinished::Speech;
        }
    }

    fn hypothesis(&mut self, heard: Hypothesis, io: &mut SttIo<'_>) {
        if heard.text.is_empty() {
            return self.speech_has_begun();
        }
        self.unfinished = Unfinished::Partial;
        io.events.push(SttEvent::Partial(Transcript {
            text: heard.text,
            language: heard.primary_language.map(|heard| heard.language),
            ..Transcript::default()
        }));
    }

    fn phrase(&mut self, phrase: Phrase, io: &mut SttIo<'_>) -> Result<(), ProviderError> {
        if let Some(error) = errors::status(&phrase.recognition_status) {
            return Err(error);
        }
        let Some(turn) = &self.turn else {
            return Ok(());
        };
        let (start, pause) = (turn.start, turn.is_open());
        let end = (phrase.offset + phrase.duration) / TICKS_PER_SECOND;
        let covered = start.saturating_add(self.bytes_in(end));
        let transcript = self.transcript(phrase, self.seconds_of(start));
        self.sound.forget(covered.min(self.sound.sent));
        match transcript {
            None => self.nothing_was_heard(io),
            Some(transcript) => {
                self.unfinished = Unfinished::Silence;
                io.events.push(SttEvent::Final(transcript));
                // The end of a turn is no pause of the speaker's.
                if pause {
                    io.events.push(SttEvent::EndOfSpeech);
                }
            }
        }
        Ok(())
    }

    /// `start` is where its turn began.
    fn transcript(&self, phrase: Phrase, start: f64) -> Option<Transcript> {
        let end = start + (phrase.offset + phrase.duration) / TICKS_PER_SECOND;
        let best = phrase.n_best.into_iter().next();
        let (text, confidence, words) = match best {
            Some(best) => {
                let plain = !self.punctuation && !best.lexical.is_empty();
                let text = if plain { best.lexical } else { best.display };
                (text, best.confidence, best.words)
            }
            None => (phrase.display_text, None, Vec::new()),
        };
        let success = phrase.recognition_status.eq_ignore_ascii_case("Success");
        if !success || text.trim().is_empty() {
            return None;
        }
        let speaker = phrase
            .speaker_id
            .filter(|id| !id.is_empty() && id != "Unknown");
        let words = words.into_iter().map(|word| {
            let at = |ticks: f64| start + ticks / TICKS_PER_SECOND;
            Word {
                start: at(word.offset),
                end: at(word.offset + word.duration),
                word: word.word,
                confidence: word.confidence,
                speaker: speaker.clone(),
            }
        });
        Some(Transcript {
            text,
            confidence,
            words: words.collect(),
            language: phrase.primary_language.map(|heard| heard.language),
            end: Some(end),
        })
    }
}

impl Protocol for Recognition {
    fn begin(&mut self, io: &mut SttIo<'_>) {
        let bits = 8 * self.bytes_per_frame() / self.format.layout.channels.count() as u64;
        io.out.text(self.origin.config(Some(json!({"source": {
            "type": "Stream",
            "samplerate": self.format.layout.rate.hz().to_string(),
            "bitspersample": bits.to_string(),
            "channelcount": self.format.layout.channels.count().to_string(),
        }}))));
    }

    fn chunk_bytes(&self) -> usize {
        self.bytes_in(CHUNK.as_secs_f64()) as usize
    }

    fn audio(&mut self, audio: Bytes, io: &mut SttIo<'_>) {
        self.sound.push(audio);
        self.advance(io);
        let unnoticed = self.sound.sent_before(io.now);
        if self.unfinished == Unfinished::Silence {
            self.sound.forget(unnoticed);
        }
        let most = self.bytes_in(KEPT.as_secs_f64());
        self.sound.keep(most);
    }

    fn finalize(&mut self, io: &mut SttIo<'_>) {
        self.finalize_at = Some(self.sound.end()).filter(|end| self.sound.start < *end);
        self.advance(io);
    }

    fn end(&mut self, io: &mut SttIo<'_>) {
        self.ended = true;
        self.finalize(io);
        let owed =
            self.finalize_at.is_some() || self.turn.as_ref().is_some_and(|turn| !turn.is_open());
        self.finished = (!owed).then_some(io.now);
    }

    fn keep_alive(&self) -> Option<Duration> {
        Some(KEEP_ALIVE)
    }

    /// There is no message for it: a turn that gets no sound is ended, and after it a moment of silence has its own.
    fn idle(&mut self, io: &mut SttIo<'_>) {
        let silence = self.turn.is_none().then(|| silence(self.format, CHUNK));
        if silence.is_some() {
            self.begin_turn(io);
        }
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.is_open()) {
            if let Some(silence) = silence {
                io.out.binary(self.origin.audio(&turn.id, None, &silence));
            }
            turn.close(&self.origin, io);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let closing = self.turn.as_ref().and_then(|turn| turn.closing);
        self.finished.or(closing)
    }

    fn tick(&mut self, _io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
        if self.finished.is_some() {
            return Ok(Flow::Finished);
        }
        let waited = LAST_WORDS.as_secs();
        let problem = format!("did not end a turn within {waited} s");
        Err(ProviderError::new(SLUG, ErrorKind::Timeout, problem))
    }

    fn receive(&mut self, message: Received, io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
        let current = self.turn.as_ref().map(|turn| turn.id.as_str());
        let message = usp::read(message, current)?;
        if current != Some(message.request.as_str()) {
            // Of a turn that is over.
            return Ok(Flow::Continue);
        }
        match message.path.as_str() {
            "speech.startdetected" => self.speech_has_begun(),
            "speech.enddetected" => self.all_was_heard(),
            "speech.hypothesis" | "speech.fragment" => self.hypothesis(message.json()?, io),
            "speech.phrase" => self.phrase(message.json()?, io)?,
            "turn.end" => {
                self.end_turn(io);
                if self.finished.is_some() {
                    return Ok(Flow::Finished);
                }
            }
            _ => {}
        }
        Ok(Flow::Continue)
    }
}

/// Sound that no phrase has covered. Positions are bytes from the stream's first.
#[derive(Default)]
struct Sound {
    pieces: VecDeque<Bytes>,
    /// Where the first piece begins.
    start: u64,
    len: u64,
    /// Up to here the present turn was sent it.
    sent: u64,
    /// How far that was at some times of the last [`KEPT_OF_SILENCE`].
    marks: VecDeque<(Instant, u64)>,
}

impl Sound {
    fn end(&self) -> u64 {
        self.start + self.len
    }

    fn push(&mut self, piece: Bytes) {
        self.len += piece.len() as u64;
        self.pieces.push_back(piece);
    }

    /// What has not been sent and lies before `until`.
    fn take(&mut self, until: u64) -> Vec<Bytes> {
        let (from, mut at) = (self.sent, self.start);
        let mut taken = Vec::new();
        for piece in &self.pieces {
            let (begin, end) = (at.max(from), (at + piece.len() as u64).min(until));
            if begin < end {
                taken.push(piece.slice((begin - at) as usize..(end - at) as usize));
            }
            at += piece.len() as u64;
        }
        self.sent = self.sent.max(until.min(at));
        taken
    }

    fn forget(&mut self, until: u64) {
        while self.start < until
            && let Some(mut piece) = self.pieces.pop_front()
        {
            let part = (until - self.start).min(piece.len() as u64);
            self.start += part;
            self.len -= part;
            let rest = piece.split_off(part as usize);
            if !rest.is_empty() {
                self.pieces.push_front(rest);
            }
        }
        self.sent = self.sent.max(self.start);
    }

    /// Up to where the present turn had been sent it so long ago that speech would have been noticed.
    fn sent_before(&mut self, now: Instant) -> u64 {
        let is_old = |mark: &mut (Instant, u64)| mark.0 + KEPT_OF_SILENCE <= now;
        let mut until = self.start;
        while let Some((_, sent)) = self.marks.pop_front_if(is_old) {
            until = until.max(sent);
        }
        if self.marks.back().is_none_or(|(at, _)| *at + MARKS <= now) {
            self.marks.push_back((now, self.sent));
        }
        until
    }

    /// The next turn hears it from the beginning.
    fn rewind(&mut self) {
        self.sent = self.start;
        self.marks.clear();
    }

    /// Keeps so many bytes.
    fn keep(&mut self, bytes: u64) {
        self.forget(self.end().saturating_sub(bytes));
    }
}

/// Says what the sound of a turn is. Its length is not known yet, for which Azure's own clients write zeros.
fn riff_header(format: AudioFormat) -> [u8; wav::HEADER_LEN] {
    let samples = match format.encoding {
        Encoding::Alaw => SampleFormat::Companded(Law::A),
        Encoding::Mulaw => SampleFormat::Companded(Law::Mu),
        _ => SampleFormat::I16,
    };
    wav::header_of(samples, format.layout, DataLength::UnknownAsZero)
}

fn silence(format: AudioFormat, length: Duration) -> Vec<u8> {
    let (byte, sample) = match format.encoding {
        Encoding::Alaw => (0xd5, 1),
        Encoding::Mulaw => (0xff, 1),
        _ => (0, 2),
    };
    let samples = format.layout.rate.frames_in(length) * format.layout.channels.count();
    vec![byte; samples * sample]
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Hypothesis {
    #[serde(default)]
    text: String,
    primary_language: Option<PrimaryLanguage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrimaryLanguage {
    language: String,
}

/// Offsets and durations are ticks from the start of the turn.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Phrase {
    recognition_status: String,
    #[serde(default)]
    offset: f64,
    #[serde(default)]
    duration: f64,
    #[serde(default)]
    display_text: String,
    #[serde(default, rename = "NBest")]
    n_best: Vec<Best>,
    primary_language: Option<PrimaryLanguage>,
    speaker_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Best {
    confidence: Option<f32>,
    #[serde(default)]
    lexical: String,
    #[serde(default)]
    display: String,
    #[serde(default)]
    words: Vec<PhraseWord>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PhraseWord {
    word: String,
    offset: f64,
    duration: f64,
    confidence: Option<f32>,
}

#[cfg(test)]
mod tests;
