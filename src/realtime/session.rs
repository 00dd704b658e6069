//! The session object: what a client sets, in both shapes of the interface, what it is shown, and what it means for the
//! session (`/ws`) that does the work.

use serde_json::{Map, Value, json};

use crate::names::{Named, Names};

/// The rate of `audio/pcm`.
pub const PCM_HZ: u32 = 24_000;
/// The rate of G.711.
const G711_HZ: u32 = 8_000;
/// How long the client waits for the words of what was said. On a busy machine they come late; without them nothing is answered.
const LONGEST_WAIT_FOR_WORDS_MS: u32 = 10_000;
/// The most functions, and bytes of them.
const MAX_TOOLS: usize = 128;
const MAX_TOOL_BYTES: usize = 256 << 10;
/// The longest instructions, in bytes.
const MAX_INSTRUCTIONS: usize = 128 << 10;
/// The most terms that a recogniser is told, and the longest.
const MAX_TERMS: usize = 50;
const MAX_TERM_CHARS: usize = 60;

/// The shape of the interface that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// That of today.
    Current,
    /// That of the beta, which a client asks for.
    Beta,
}

/// What is wrong with an event of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// The field.
    pub param: Option<String>,
}

impl Problem {
    pub(crate) fn new(code: &'static str, param: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            param: Some(param.to_owned()),
        }
    }

    pub(crate) fn value(param: &str, must: &str) -> Self {
        Self::new("invalid_value", param, format!("{param} {must}"))
    }

    pub(crate) fn general(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            param: None,
        }
    }
}

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A conversation with a language model.
    Conversation,
    /// Transcripts only.
    Transcription,
}

/// How sound is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sound {
    /// 16-bit samples, little endian, mono, 24 kHz.
    Pcm,
    /// G.711, mono, 8 kHz.
    Mulaw,
    /// The same in A-law.
    Alaw,
}

impl Sound {
    /// Milliseconds of so many bytes.
    pub fn milliseconds(self, bytes: u64) -> u64 {
        match self {
            Self::Pcm => bytes * 1_000 / u64::from(2 * PCM_HZ),
            Self::Mulaw | Self::Alaw => bytes * 1_000 / u64::from(G711_HZ),
        }
    }

    /// Samples per second.
    pub const fn hz(self) -> u32 {
        match self {
            Self::Pcm => PCM_HZ,
            Self::Mulaw | Self::Alaw => G711_HZ,
        }
    }

    const fn encoding(self) -> &'static str {
        match self {
            Self::Pcm => "linear16",
            Self::Mulaw => "mulaw",
            Self::Alaw => "alaw",
        }
    }

    fn shown(self, version: Version) -> Value {
        match (version, self) {
            (Version::Current, Self::Pcm) => json!({"type": "audio/pcm", "rate": PCM_HZ}),
            (Version::Current, Self::Mulaw) => json!({"type": "audio/pcmu"}),
            (Version::Current, Self::Alaw) => json!({"type": "audio/pcma"}),
            (Version::Beta, Self::Pcm) => json!("pcm16"),
            (Version::Beta, Self::Mulaw) => json!("g711_ulaw"),
            (Version::Beta, Self::Alaw) => json!("g711_alaw"),
        }
    }

    pub fn read(value: &Value, param: &str) -> Result<Self, Problem> {
        let name = match value {
            Value::String(name) => name.as_str(),
            Value::Object(format) => format.get("type").and_then(Value::as_str).unwrap_or(""),
            _ => "",
        };
        let rate = value.get("rate").and_then(Value::as_u64);
        let sound = match name {
            "audio/pcm" | "pcm16" => Self::Pcm,
            "audio/pcmu" | "g711_ulaw" => Self::Mulaw,
            "audio/pcma" | "g711_alaw" => Self::Alaw,
            _ => {
                return Err(Problem::value(
                    param,
                    "must be audio/pcm, audio/pcmu or audio/pcma",
                ));
            }
        };
        if rate.is_some_and(|rate| rate != u64::from(sound.hz())) {
            let must = format!("must have the rate {}", sound.hz());
            return Err(Problem::value(&format!("{param}.rate"), &must));
        }
        Ok(sound)
    }
}

/// Whether and how the input is transcribed for the client. It is recognised in any case.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InputTranscription {
    model: Option<String>,
    language: Option<String>,
    languages: Vec<String>,
    keywords: Vec<String>,
    prompt: Option<String>,
}

/// What finds the end of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Detector {
    /// A pause.
    ServerVad {
        threshold: f64,
        prefix_padding_ms: u64,
        silence_ms: u64,
        idle_timeout_ms: Option<u64>,
    },
    /// A model that hears whether somebody has finished.
    SemanticVad { eagerness: &'static str },
}

/// Turns that the server finds.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnDetection {
    pub detector: Detector,
    pub create_response: bool,
    pub interrupt_response: bool,
}

impl Default for TurnDetection {
    fn default() -> Self {
        Self {
            detector: Detector::ServerVad {
                threshold: 0.5,
                prefix_padding_ms: 300,
                silence_ms: 500,
                idle_timeout_ms: None,
            },
            create_response: true,
            interrupt_response: true,
        }
    }
}

/// What the client has set.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionObject {
    pub kind: Kind,
    pub model: Option<String>,
    pub instructions: String,
    pub tools: Vec<Value>,
    pub tool_choice: Value,
    pub speaks: bool,
    pub temperature: Option<f64>,
    pub max_output_tokens: Option<u32>,
    pub parallel_tool_calls: Option<bool>,
    pub reasoning_effort: Option<String>,
    pub input: Sound,
    pub output: Sound,
    pub transcription: Option<InputTranscription>,
    pub noise_reduction: Option<String>,
    pub turn_detection: Option<TurnDetection>,
    pub voice: Option<String>,
    speed: f64,
}

impl SessionObject {
    /// As a session begins.
    pub fn new(kind: Kind, model: Option<String>) -> Self {
        let is_transcription = kind == Kind::Transcription;
        Self {
            kind,
            model,
            instructions: String::new(),
            tools: Vec::new(),
            tool_choice: json!("auto"),
            speaks: !is_transcription,
            temperature: None,
            max_output_tokens: None,
            parallel_tool_calls: None,
            reasoning_effort: None,
            input: Sound::Pcm,
            output: Sound::Pcm,
            transcription: is_transcription.then(InputTranscription::default),
            noise_reduction: None,
            turn_detection: Some(TurnDetection::default()),
            voice: None,
            speed: 1.0,
        }
    }

    /// Applies an update, all of it or nothing. `param` is what the object is called in errors.
    pub fn update(&self, version: Version, object: &Value, param: &str) -> Result<Self, Problem> {
        let Value::Object(fields) = object else {
            return Err(Problem::value(param, "must be an object"));
        };
        let mut session = self.clone();
        for (name, value) in fields {
            let param = format!("{param}.{name}");
            session.set(version, name, value, &param)?;
        }
        Ok(session)
    }

    fn set(
        &mut self,
        version: Version,
        name: &str,
        value: &Value,
        param: &str,
    ) -> Result<(), Problem> {
        match (version, name) {
            (_, "type") => self.set_kind(value, param)?,
            (_, "model") => self.model = text(value, param)?.or(self.model.take()),
            (_, "instructions") => {
                let instructions = text(value, param)?.unwrap_or_default();
                if instructions.len() > MAX_INSTRUCTIONS {
                    return Err(Problem::value(param, "must have at most 128 KiB"));
                }
                self.instructions = instructions;
            }
            (_, "tools") => self.tools = tools(value, param)?,
            (_, "tool_choice") => self.tool_choice = tool_choice(value, param)?,
            (_, "temperature") => {
                self.temperature = number(value, param, 0.0, 2.0)?;
            }
            (Version::Current, "max_output_tokens")
            | (Version::Beta, "max_response_output_tokens") => {
                self.max_output_tokens = max_tokens(value, param)?;
            }
            (Version::Current, "output_modalities") | (Version::Beta, "modalities") => {
                self.speaks = speaks(value, param)?;
            }
            (Version::Current, "parallel_tool_calls") => {
                self.parallel_tool_calls = flag(value, param)?;
            }
            (Version::Current, "reasoning") => {
                self.reasoning_effort = match value {
                    Value::Null => None,
                    _ => text(value.get("effort").unwrap_or(&Value::Null), param)?,
                };
            }
            (Version::Current, "audio") => self.set_audio(value, param)?,
            (Version::Beta, "input_audio_format") => self.input = Sound::read(value, param)?,
            (Version::Beta, "output_audio_format") => self.output = Sound::read(value, param)?,
            (Version::Beta, "input_audio_transcription") => {
                self.transcription = transcription(value, param)?;
            }
            (Version::Beta, "input_audio_noise_reduction") => {
                self.noise_reduction = noise_reduction(value, param)?;
            }
            (Version::Beta, "turn_detection") => {
                self.turn_detection = turn_detection(value, self.turn_detection.as_ref(), param)?;
            }
            (Version::Beta, "voice") => self.voice = voice(value, param)?,
            (Version::Beta, "speed") => {
                self.speed = number(value, param, 0.25, 1.5)?.unwrap_or(1.0);
            }
            // What the server says of itself comes back from some clients; the rest has no effect here, which docs/openai.md says.
            (_, "id" | "object" | "expires_at" | "client_secret" | "tracing" | "include")
            | (Version::Current, "truncation") => {}
            (_, "prompt") if value.is_null() => {}
            (_, "prompt") => {
                let message = "prompts that are kept at OpenAI are not known here; send their text as instructions";
                return Err(Problem::new("unsupported_parameter", param, message));
            }
            _ => {
                let message = format!("there is no {param} in this version of the interface");
                return Err(Problem::new("unknown_parameter", param, message));
            }
        }
        Ok(())
    }

    fn set_kind(&self, value: &Value, param: &str) -> Result<(), Problem> {
        let kind = match value.as_str() {
            Some("realtime") => Kind::Conversation,
            Some("transcription") => Kind::Transcription,
            _ => return Err(Problem::value(param, "must be realtime or transcription")),
        };
        if kind == self.kind {
            return Ok(());
        }
        let message = "the type is chosen when connecting: ?intent=transcription for transcription sessions, ?model=… for conversations";
        Err(Problem::new("invalid_value", param, message))
    }

    fn set_audio(&mut self, value: &Value, param: &str) -> Result<(), Problem> {
        for (side, fields) in object(value, param)? {
            let param = format!("{param}.{side}");
            let fields = object(fields, &param)?;
            for (name, value) in fields {
                let param = format!("{param}.{name}");
                match (side.as_str(), name.as_str()) {
                    ("input", "format") => self.input = Sound::read(value, &param)?,
                    ("input", "transcription") => {
                        self.transcription = transcription(value, &param)?;
                    }
                    ("input", "noise_reduction") => {
                        self.noise_reduction = noise_reduction(value, &param)?;
                    }
                    ("input", "turn_detection") => {
                        let before = self.turn_detection.as_ref();
                        self.turn_detection = turn_detection(value, before, &param)?;
                    }
                    ("output", "format") => self.output = Sound::read(value, &param)?,
                    ("output", "voice") => self.voice = voice(value, &param)?,
                    ("output", "speed") => {
                        self.speed = number(value, &param, 0.25, 1.5)?.unwrap_or(1.0);
                    }
                    _ => {
                        let message = format!("there is no {param}");
                        return Err(Problem::new("unknown_parameter", &param, message));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a model hears the end of turns: where it is asked for and installed.
    pub fn is_semantic(&self, names: &dyn Names) -> bool {
        let turns = self.turn_detection.as_ref();
        turns.is_some_and(|turns| matches!(turns.detector, Detector::SemanticVad { .. }))
            && names.has_turn_model()
    }

    /// The recogniser.
    pub fn recogniser(&self, names: &dyn Names) -> Result<Named, Problem> {
        let model = self
            .transcription
            .as_ref()
            .and_then(|wanted| wanted.model.as_deref());
        let of_session = self
            .model
            .as_deref()
            .filter(|_| self.kind == Kind::Transcription);
        let model = model.or(of_session);
        let named = names.recogniser(model.filter(|model| !model.is_empty()));
        named.map_err(|problem| {
            let param = "session.audio.input.transcription.model";
            Problem::new("model_not_found", param, problem)
        })
    }

    /// The recogniser and its language.
    pub fn listens(&self, names: &dyn Names) -> Result<(Named, String), Problem> {
        let language = self
            .transcription
            .as_ref()
            .and_then(|wanted| wanted.language.as_deref());
        Ok((
            self.recogniser(names)?,
            names.language(language.unwrap_or("en")),
        ))
    }

    /// The voice.
    pub fn synthesiser(&self, names: &dyn Names) -> Result<Named, Problem> {
        let named = names.voice(self.voice.as_deref());
        let param = "session.audio.output.voice";
        named.map_err(|problem| Problem::new("invalid_value", param, problem))
    }

    /// The `config` of the session that does the work.
    pub fn config(&self, stream_id: &str, names: &dyn Names) -> Result<Value, Problem> {
        let hears = self.recogniser(names)?;
        let says = self.synthesiser(names)?;
        let wanted = self.transcription.clone().unwrap_or_default();
        let mut stt = json!({
            "provider": hears.provider, "model": hears.model,
            "encoding": self.input.encoding(), "sample_rate": self.input.hz(),
            "keyterms": wanted.terms(),
        });
        let mut spoken = wanted.language.into_iter().chain(wanted.languages);
        if let Some(language) = spoken.next() {
            stt["language"] = json!(names.language(&language));
        }
        let others: Vec<String> = spoken.map(|language| names.language(&language)).collect();
        if !others.is_empty() {
            stt["languages"] = json!(others);
        }
        let mut tts = json!({
            "provider": says.provider, "model": says.model,
            "audio_format": self.output.encoding(), "sample_rate": self.output.hz(),
            "speaking_rate": self.speed, "progress": true,
        });
        if let Some(voice) = says.voice {
            tts["voice_id"] = json!(voice);
        }
        Ok(json!({
            "type": "config", "stream_id": stream_id,
            "stt_config": stt, "tts_config": tts, "vad": self.vad(names),
        }))
    }

    /// Voice activity detection. Turns that the client ends itself are divided by it, too: what was said before a pause is text
    /// when the end comes.
    fn vad(&self, names: &dyn Names) -> Value {
        let mut vad = json!({
            "noise_suppression": self.noise_reduction.is_some(), "turn_model": "silence",
        });
        let Some(turns) = &self.turn_detection else {
            vad["speech_final_timeout_ms"] = json!(LONGEST_WAIT_FOR_WORDS_MS);
            return vad;
        };
        match &turns.detector {
            Detector::ServerVad {
                threshold,
                silence_ms,
                ..
            } => {
                vad["threshold"] = json!(scaled(*threshold));
                vad["silence_ms"] = json!(silence_ms);
                vad["speech_final_timeout_ms"] = json!(LONGEST_WAIT_FOR_WORDS_MS);
            }
            Detector::SemanticVad { eagerness } => {
                // As documented: how long somebody may think who has not finished.
                let timeout = match *eagerness {
                    "low" => 8_000,
                    "high" => 2_000,
                    _ => 4_000,
                };
                vad["speech_final_timeout_ms"] = json!(timeout);
                if names.has_turn_model() {
                    vad["turn_model"] = json!("smart-turn");
                }
                if turns.interrupt_response {
                    vad["interruption"] = json!("pause");
                }
            }
        }
        vad
    }

    /// The object as the client is shown it: what is in force.
    pub fn shown(&self, version: Version, id: &str, names: &dyn Names) -> Value {
        let turns = self.shown_turns(names);
        let transcription = self.transcription.as_ref().map(|wanted| {
            let mut shown = Map::new();
            let hears = self.recogniser(names);
            let model = wanted
                .model
                .clone()
                .or(hears.ok().map(|named| named.name()));
            shown.insert("model".to_owned(), json!(model));
            shown.insert("language".to_owned(), json!(wanted.language));
            shown.insert("prompt".to_owned(), json!(wanted.prompt));
            if !wanted.languages.is_empty() {
                shown.insert("languages".to_owned(), json!(wanted.languages));
            }
            if !wanted.keywords.is_empty() {
                shown.insert("keywords".to_owned(), json!(wanted.keywords));
            }
            shown
        });
        let noise = self
            .noise_reduction
            .as_ref()
            .map(|kind| json!({"type": kind}));
        let max = self
            .max_output_tokens
            .map_or(json!("inf"), |max| json!(max));
        let voice = self
            .voice
            .clone()
            .or_else(|| self.synthesiser(names).ok()?.voice);
        let is_transcription = self.kind == Kind::Transcription;
        match version {
            Version::Current if is_transcription => json!({
                "type": "transcription", "object": "realtime.transcription_session", "id": id,
                "audio": {"input": {
                    "format": self.input.shown(version), "transcription": transcription,
                    "noise_reduction": noise, "turn_detection": turns,
                }},
                "include": null,
            }),
            Version::Beta if is_transcription => json!({
                "object": "realtime.transcription_session", "id": id,
                "input_audio_format": self.input.shown(version),
                "input_audio_transcription": transcription,
                "input_audio_noise_reduction": noise, "turn_detection": turns,
            }),
            Version::Current => json!({
                "type": "realtime", "object": "realtime.session", "id": id,
                "model": self.model, "output_modalities": [self.modality()],
                "instructions": self.instructions, "tools": self.tools,
                "tool_choice": self.tool_choice, "max_output_tokens": max,
                "audio": {
                    "input": {
                        "format": self.input.shown(version), "transcription": transcription,
                        "noise_reduction": noise, "turn_detection": turns,
                    },
                    "output": {
                        "format": self.output.shown(version), "voice": voice, "speed": self.speed,
                    },
                },
                "truncation": "auto", "tracing": null, "include": null, "prompt": null,
            }),
            Version::Beta => json!({
                "object": "realtime.session", "id": id, "model": self.model,
                "modalities": if self.speaks { json!(["text", "audio"]) } else { json!(["text"]) },
                "instructions": self.instructions, "voice": voice,
                "input_audio_format": self.input.shown(version),
                "output_audio_format": self.output.shown(version),
                "input_audio_transcription": transcription,
                "input_audio_noise_reduction": noise, "turn_detection": turns,
                "tools": self.tools, "tool_choice": self.tool_choice,
                "temperature": self.temperature.unwrap_or(0.8),
                "max_response_output_tokens": max, "speed": self.speed,
            }),
        }
    }

    /// What it answers with.
    pub const fn modality(&self) -> &'static str {
        if self.speaks { "audio" } else { "text" }
    }

    fn shown_turns(&self, names: &dyn Names) -> Value {
        let Some(turns) = &self.turn_detection else {
            return Value::Null;
        };
        let mut shown = match &turns.detector {
            Detector::ServerVad {
                threshold,
                prefix_padding_ms,
                silence_ms,
                idle_timeout_ms,
            } => json!({
                "type": "server_vad", "threshold": threshold,
                "prefix_padding_ms": prefix_padding_ms, "silence_duration_ms": silence_ms,
                "idle_timeout_ms": idle_timeout_ms,
            }),
            Detector::SemanticVad { eagerness } if names.has_turn_model() => {
                json!({"type": "semantic_vad", "eagerness": eagerness})
            }
            // Without its model there are pauses.
            Detector::SemanticVad { .. } => json!({
                "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300,
                "silence_duration_ms": 500, "idle_timeout_ms": null,
            }),
        };
        if self.kind == Kind::Conversation {
            shown["create_response"] = json!(turns.create_response);
            shown["interrupt_response"] = json!(turns.interrupt_response);
        }
        shown
    }
}

impl InputTranscription {
    /// What the recogniser is told of.
    fn terms(&self) -> Vec<String> {
        let prompt = self.prompt.as_deref().unwrap_or_default();
        let parts = prompt.split([',', ';', '\n']).map(str::trim);
        let own = self.keywords.iter().map(|keyword| keyword.trim());
        let terms = own.chain(parts);
        let fits = |term: &&str| !term.is_empty() && term.chars().count() <= MAX_TERM_CHARS;
        terms
            .filter(fits)
            .take(MAX_TERMS)
            .map(str::to_owned)
            .collect()
    }
}

/// OpenAI's threshold means this one: both are 0 to 1, their defaults 0.5 and 0.65.
fn scaled(threshold: f64) -> f64 {
    let scaled = if threshold <= 0.5 {
        threshold * 1.3
    } else {
        0.65 + (threshold - 0.5) * 0.7
    };
    (scaled * 1_000.0).round() / 1_000.0
}

pub fn object<'a>(value: &'a Value, param: &str) -> Result<&'a Map<String, Value>, Problem> {
    value
        .as_object()
        .ok_or_else(|| Problem::value(param, "must be an object"))
}

pub fn text(value: &Value, param: &str) -> Result<Option<String>, Problem> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(Problem::value(param, "must be a text")),
    }
}

fn flag(value: &Value, param: &str) -> Result<Option<bool>, Problem> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(flag) => Ok(Some(*flag)),
        _ => Err(Problem::value(param, "must be true or false")),
    }
}

fn number(value: &Value, param: &str, min: f64, max: f64) -> Result<Option<f64>, Problem> {
    if value.is_null() {
        return Ok(None);
    }
    let number = value.as_f64().filter(|number| (min..=max).contains(number));
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(Problem::value(
            param,
            &format!("must be a number from {min} to {max}"),
        )),
    }
}

fn whole(value: &Value, param: &str, min: u64, max: u64) -> Result<Option<u64>, Problem> {
    if value.is_null() {
        return Ok(None);
    }
    let number = value.as_u64().filter(|number| (min..=max).contains(number));
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(Problem::value(
            param,
            &format!("must be a whole number from {min} to {max}"),
        )),
    }
}

pub fn max_tokens(value: &Value, param: &str) -> Result<Option<u32>, Problem> {
    if value.as_str() == Some("inf") {
        return Ok(None);
    }
    let tokens = whole(value, param, 1, 1 << 20)?;
    Ok(tokens.map(|tokens| tokens as u32))
}

/// Whether the answer is spoken.
pub fn speaks(value: &Value, param: &str) -> Result<bool, Problem> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let names = list.map(|list| list.iter().map(|name| name.as_str().unwrap_or("")));
    let must = "must be [\"audio\"] or [\"text\"]";
    let mut speaks = false;
    for name in names.ok_or_else(|| Problem::value(param, must))? {
        match name {
            "audio" => speaks = true,
            "text" => {}
            _ => return Err(Problem::value(param, must)),
        }
    }
    Ok(speaks)
}

/// A name, or an object with an id.
pub fn voice(value: &Value, param: &str) -> Result<Option<String>, Problem> {
    let id = match value {
        Value::Object(voice) => voice.get("id").unwrap_or(&Value::Null),
        other => other,
    };
    Ok(text(id, param)?.filter(|voice| !voice.is_empty()))
}

pub fn tools(value: &Value, param: &str) -> Result<Vec<Value>, Problem> {
    let Value::Array(tools) = value else {
        if value.is_null() {
            return Ok(Vec::new());
        }
        return Err(Problem::value(param, "must be an array"));
    };
    if tools.len() > MAX_TOOLS || value.to_string().len() > MAX_TOOL_BYTES {
        return Err(Problem::value(
            param,
            "must have at most 128 functions and 256 KiB",
        ));
    }
    for (index, tool) in tools.iter().enumerate() {
        let param = format!("{param}[{index}]");
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {}
            Some("mcp") => {
                let message = "servers of the Model Context Protocol are not asked from here; call them from the client, and offer their tools as functions";
                return Err(Problem::new("unsupported_value", &param, message));
            }
            _ => return Err(Problem::value(&format!("{param}.type"), "must be function")),
        }
        let name = tool.get("name").and_then(Value::as_str).unwrap_or("");
        if name.is_empty() || name.len() > 64 {
            return Err(Problem::value(
                &format!("{param}.name"),
                "must have 1 to 64 characters",
            ));
        }
    }
    Ok(tools.clone())
}

pub fn tool_choice(value: &Value, param: &str) -> Result<Value, Problem> {
    let is_named = value.get("type").and_then(Value::as_str) == Some("function")
        && value.get("name").is_some_and(Value::is_string);
    match value {
        Value::Null => Ok(json!("auto")),
        Value::String(choice) if matches!(choice.as_str(), "auto" | "none" | "required") => {
            Ok(value.clone())
        }
        _ if is_named => Ok(value.clone()),
        _ => Err(Problem::value(
            param,
            "must be auto, none, required or {\"type\": \"function\", \"name\"}",
        )),
    }
}

/// Tools as chat completions have them.
pub fn chat_tools(tools: &[Value]) -> Vec<Value> {
    let fields = ["name", "description", "parameters", "strict"];
    let chat = |tool: &Value| {
        let known = fields.iter().filter_map(|name| {
            let value = tool.get(name).filter(|value| !value.is_null())?;
            Some(((*name).to_owned(), value.clone()))
        });
        json!({"type": "function", "function": Value::Object(known.collect())})
    };
    tools.iter().map(chat).collect()
}

/// The choice, likewise.
pub fn chat_tool_choice(choice: &Value) -> Value {
    match choice.get("name") {
        Some(name) => json!({"type": "function", "function": {"name": name}}),
        None => choice.clone(),
    }
}

fn transcription(value: &Value, param: &str) -> Result<Option<InputTranscription>, Problem> {
    if value.is_null() {
        return Ok(None);
    }
    let mut wanted = InputTranscription::default();
    for (name, value) in object(value, param)? {
        let param = format!("{param}.{name}");
        match name.as_str() {
            "model" => wanted.model = text(value, &param)?,
            "language" => wanted.language = text(value, &param)?.filter(|text| !text.is_empty()),
            "languages" => wanted.languages = texts(value, &param)?,
            "keywords" => wanted.keywords = texts(value, &param)?,
            "prompt" => wanted.prompt = text(value, &param)?,
            // How long OpenAI's own recogniser waits: this one has its own ways.
            "delay" => {}
            _ => {
                let message = format!("there is no {param}");
                return Err(Problem::new("unknown_parameter", &param, message));
            }
        }
    }
    Ok(Some(wanted))
}

fn texts(value: &Value, param: &str) -> Result<Vec<String>, Problem> {
    let must = || Problem::value(param, "must be at most 50 texts");
    let list = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) if list.len() <= MAX_TERMS => list,
        _ => return Err(must()),
    };
    let texts = list.iter().map(|text| text.as_str().map(str::to_owned));
    texts.collect::<Option<Vec<_>>>().ok_or_else(must)
}

fn noise_reduction(value: &Value, param: &str) -> Result<Option<String>, Problem> {
    if value.is_null() {
        return Ok(None);
    }
    let kind = object(value, param)?.get("type").and_then(Value::as_str);
    match kind {
        None => Ok(Some("near_field".to_owned())),
        Some(kind @ ("near_field" | "far_field")) => Ok(Some(kind.to_owned())),
        Some(_) => Err(Problem::value(
            &format!("{param}.type"),
            "must be near_field or far_field",
        )),
    }
}

fn turn_detection(
    value: &Value,
    before: Option<&TurnDetection>,
    param: &str,
) -> Result<Option<TurnDetection>, Problem> {
    if value.is_null() {
        return Ok(None);
    }
    let fields = object(value, param)?;
    let kind = fields.get("type").and_then(Value::as_str);
    let mut turns = match (kind, before) {
        (Some("server_vad"), Some(before))
            if matches!(before.detector, Detector::ServerVad { .. }) =>
        {
            before.clone()
        }
        (Some("server_vad"), _) | (None, None) => TurnDetection::default(),
        (None, Some(before)) => before.clone(),
        (Some("semantic_vad"), _) => TurnDetection {
            detector: Detector::SemanticVad { eagerness: "auto" },
            ..TurnDetection::default()
        },
        (Some(_), _) => {
            let must = "must be server_vad or semantic_vad";
            return Err(Problem::value(&format!("{param}.type"), must));
        }
    };
    for (name, value) in fields {
        let param = format!("{param}.{name}");
        match (name.as_str(), &mut turns.detector) {
            ("type", _) => {}
            ("create_response", _) => turns.create_response = flag(value, &param)?.unwrap_or(true),
            ("interrupt_response", _) => {
                turns.interrupt_response = flag(value, &param)?.unwrap_or(true);
            }
            ("threshold", Detector::ServerVad { threshold, .. }) => {
                *threshold = number(value, &param, 0.0, 1.0)?.unwrap_or(0.5);
            }
            (
                "prefix_padding_ms",
                Detector::ServerVad {
                    prefix_padding_ms, ..
                },
            ) => {
                *prefix_padding_ms = whole(value, &param, 0, 5_000)?.unwrap_or(300);
            }
            ("silence_duration_ms", Detector::ServerVad { silence_ms, .. }) => {
                *silence_ms = whole(value, &param, 100, 10_000)?.unwrap_or(500);
            }
            (
                "idle_timeout_ms",
                Detector::ServerVad {
                    idle_timeout_ms, ..
                },
            ) => {
                *idle_timeout_ms = whole(value, &param, 1_000, 600_000)?;
            }
            ("eagerness", Detector::SemanticVad { eagerness }) => {
                *eagerness = match value.as_str() {
                    None if value.is_null() => "auto",
                    Some("auto") => "auto",
                    Some("low") => "low",
                    Some("medium") => "medium",
                    Some("high") => "high",
                    _ => return Err(Problem::value(&param, "must be low, medium, high or auto")),
                };
            }
            // Some clients send the fields of both, without values.
            _ if value.is_null() => {}
            _ => {
                let message = format!("there is no {param} with this type");
                return Err(Problem::new("unknown_parameter", &param, message));
            }
        }
    }
    Ok(Some(turns))
}
