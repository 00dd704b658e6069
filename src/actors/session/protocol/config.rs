//! `config` and `update_config`: how a session listens and speaks, its room and its voice activity detection. Both are
//! checked here once and trusted inside.

use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{StreamId, misfit, required};
use crate::session::barge_in::InterruptionMode;
use crate::session::turn::TurnSettings;
use vivavoce_audio::Bandwidth;
use vivavoce_audio::format::{AudioFormat, Channels, Encoding, Layout, SampleRate};
use vivavoce_config::Secret;
use vivavoce_core::json::Misfit;
use vivavoce_seams::{OwnCredential, canonical_slug};
use vivavoce_synthesis::{SpeechConfig, TtsConfig};

/// Providers that may stand by for another.
const MAX_FALLBACKS: usize = 3;
/// The longest name of a room.
const MAX_ROOM_NAME_CHARS: usize = 256;
/// The most identities in `rtc.listen_participants`, which is looked through for every message of the room.
const MAX_LISTENED: usize = 1_024;

/// `config`, checked.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The name that the client chose.
    pub stream_id: Option<StreamId>,
    /// The loading sound, not yet decoded.
    pub loading_audio: Option<LoadingAudio>,
    /// Whether messages with fields that we do not know are refused, from this one on.
    pub strict: bool,
    pub params: SessionParams,
}

/// What stays in force until the next `config`, except for what an `update_config` changes.
#[derive(Debug, Clone)]
pub struct SessionParams {
    /// How to listen; `None` without audio, and where each participant of the room has a recogniser.
    pub stt: Option<ListenConfig>,
    /// How to speak; `None` without audio.
    pub tts: Option<SpeechConfig>,
    /// Voice activity and turns.
    pub vad: VadConfig,
    pub rtc: Option<RoomConfig>,
    /// Who answers, where the server leads the conversation.
    pub agent: Option<AgentConfig>,
    /// Whether a recording is wanted.
    pub recording: bool,
    /// Whether the session waits for its client when the socket breaks.
    pub resume: bool,
}

/// `update_config`: what is not given stays as it is, so that it can be checked only with what is in force.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateConfig")]
pub struct ConfigUpdate {
    /// How to listen from now on. The format of what the client sends cannot change.
    #[serde(default)]
    #[schemars(schema_with = "part_of::<WireStt>")]
    stt_config: Option<WireStt>,
    /// How to speak from the next utterance on. The format of what leaves cannot change.
    #[serde(default)]
    #[schemars(schema_with = "part_of::<TtsConfig>")]
    tts_config: Option<TtsConfig>,
    /// Voice activity and turns.
    #[serde(default)]
    #[schemars(schema_with = "part_of::<WireVad>")]
    vad: Option<WireVad>,
}

/// The schema of a part of `config` in an update: nothing is required, and what is not given has no default.
fn part_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut part = T::json_schema(generator);
    part.remove("required");
    part.insert("type".to_owned(), json!(["object", "null"]));
    if let Some(Value::Object(fields)) = part.get_mut("properties") {
        for field in fields.values_mut().filter_map(Value::as_object_mut) {
            field.remove("default");
            if field.get("type") == Some(&json!("string")) {
                field.insert("type".to_owned(), json!(["string", "null"]));
            }
        }
    }
    part
}

impl ConfigUpdate {
    /// The parameters after the update. `None` if it changes how the session listens or speaks and it does not.
    pub fn over(self, known: &SessionParams) -> Result<Option<SessionParams>, Misfit> {
        let mut params = known.clone();
        if let Some(update) = self.stt_config {
            let of_participants = params
                .rtc
                .as_mut()
                .and_then(|rtc| rtc.listen.as_deref_mut());
            let Some(listen) = params.stt.as_mut().or(of_participants) else {
                return Ok(None);
            };
            *listen = update.check_over(listen)?;
        }
        if let Some(update) = self.tts_config {
            let Some(speech) = &mut params.tts else {
                return Ok(None);
            };
            let checked = update.check_over(speech);
            *speech = checked.map_err(|invalid| misfit(invalid.field, invalid.problem))?;
        }
        if let Some(update) = self.vad {
            params.vad = update.check_over(&known.vad)?;
        }
        Ok(Some(params))
    }
}

/// `agent`, checked: the server leads the conversation with a language model.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentConfig {
    /// Which of the settings' endpoints; the default one when absent.
    pub endpoint: Option<String>,
    /// An address of the caller's own, in place of an endpoint.
    pub url: Option<String>,
    /// Its key.
    pub api_key: Option<Secret>,
    /// The model; the endpoint's when absent.
    pub model: Option<String>,
    /// What the model is told first.
    pub instructions: String,
    /// Functions, as chat completions have them.
    pub tools: Vec<Value>,
    /// The model's own when absent.
    pub temperature: Option<f64>,
    /// The model's own when absent.
    pub max_tokens: Option<u32>,
    /// What is said first.
    pub greeting: Option<String>,
}

/// Who answers.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "AgentConfig")]
struct WireAgent {
    /// The language model.
    #[schemars(required)]
    llm: Option<WireLlm>,
    /// What is said when the session begins, at most 32 KiB.
    greeting: Option<String>,
}

/// A language model behind chat completions.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "LlmConfig")]
struct WireLlm {
    /// The name of one of the server's endpoints; the default one when absent.
    endpoint: Option<String>,
    /// An address of your own, with `/v1` at its end, where the server allows that.
    url: Option<String>,
    /// Its key, where `url` is given.
    api_key: Option<String>,
    /// The model; the endpoint's when absent.
    model: Option<String>,
    /// What the model is told first, at most 128 KiB.
    instructions: Option<String>,
    /// At most 128 functions that it may have called: `{"type": "function", "function": {"name", "description", "parameters"}}`.
    tools: Option<Vec<Value>>,
    /// The model's own when absent.
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    /// The longest answer; the model's own when absent.
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
}

/// The longest instructions and greeting, and the most functions and bytes of them.
const MAX_INSTRUCTIONS_BYTES: usize = 128 << 10;
const MAX_GREETING_BYTES: usize = 32 << 10;
const MAX_TOOLS: usize = 128;
const MAX_TOOL_BYTES: usize = 256 << 10;

impl WireAgent {
    fn check(self) -> Result<AgentConfig, Misfit> {
        let llm = required(self.llm, "agent.llm")?;
        if llm.url.is_some() == llm.endpoint.is_some() && llm.url.is_some() {
            return Err(misfit("agent.llm.url", "does not go with endpoint"));
        }
        if llm.api_key.is_some() && llm.url.is_none() {
            let problem = "goes with url alone: the server's endpoints have their own";
            return Err(misfit("agent.llm.api_key", problem));
        }
        if llm
            .temperature
            .is_some_and(|value| !(0.0..=2.0).contains(&value))
        {
            return Err(misfit("agent.llm.temperature", "must be from 0 to 2"));
        }
        if llm.max_tokens == Some(0) {
            return Err(misfit("agent.llm.max_tokens", "must be at least 1"));
        }
        let instructions = llm.instructions.unwrap_or_default();
        if instructions.len() > MAX_INSTRUCTIONS_BYTES {
            return Err(misfit(
                "agent.llm.instructions",
                "must have at most 128 KiB",
            ));
        }
        let greeting = self.greeting.filter(|greeting| !greeting.trim().is_empty());
        if greeting
            .as_ref()
            .is_some_and(|text| text.len() > MAX_GREETING_BYTES)
        {
            return Err(misfit("agent.greeting", "must have at most 32 KiB"));
        }
        let tools = llm.tools.unwrap_or_default();
        if tools.len() > MAX_TOOLS || Value::from(tools.clone()).to_string().len() > MAX_TOOL_BYTES
        {
            let problem = "must have at most 128 functions and 256 KiB";
            return Err(misfit("agent.llm.tools", problem));
        }
        for (index, tool) in tools.iter().enumerate() {
            let name = tool["function"]["name"].as_str().unwrap_or_default();
            if tool["type"] != "function" || name.is_empty() {
                let place = format!("agent.llm.tools[{index}]");
                let problem = "must be {\"type\": \"function\", \"function\": {\"name\", …}}";
                return Err(misfit(&place, problem));
            }
        }
        Ok(AgentConfig {
            endpoint: llm.endpoint.filter(|name| !name.is_empty()),
            url: llm.url,
            api_key: llm.api_key.filter(|key| !key.is_empty()).map(Secret::new),
            model: llm.model.filter(|model| !model.is_empty()),
            instructions,
            tools,
            temperature: llm.temperature,
            max_tokens: llm.max_tokens,
            greeting,
        })
    }
}

/// `stt_config`, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenConfig {
    /// The provider's slug, with aliases resolved.
    pub provider: String,
    /// BCP-47.
    pub language: String,
    /// What the client sends; in a room, what the recogniser hears.
    pub format: AudioFormat,
    /// Whether punctuation is wanted.
    pub punctuation: bool,
    /// The provider's model; empty means its default.
    pub model: String,
    /// The caller's own credential; empty means the server's.
    pub auth: OwnCredential,
    /// Words and phrases to be listened for.
    pub keyterms: Vec<String>,
    /// BCP-47: further languages that may be spoken.
    pub languages: Vec<String>,
    /// Whether speakers shall be told apart.
    pub diarize: bool,
    /// Finals below it, 0–1, are dropped.
    pub min_confidence: f32,
    /// Who hears when the provider cannot, in this order; their formats are this one's.
    pub fallback: Vec<ListenConfig>,
}

impl ListenConfig {
    /// All languages that may be spoken, BCP-47.
    pub fn spoken(&self) -> impl Iterator<Item = &str> {
        let languages = std::iter::once(&self.language).chain(&self.languages);
        languages.map(String::as_str)
    }

    /// How many recognisers there are to choose from.
    pub fn choices(&self) -> usize {
        1 + self.fallback.len()
    }

    /// What the recogniser of this number is asked for; nought is the one that was wanted.
    pub fn choice(&self, number: usize) -> Self {
        let chosen = number
            .checked_sub(1)
            .and_then(|index| self.fallback.get(index));
        Self {
            format: self.format,
            ..chosen.unwrap_or(self).clone()
        }
    }
}

/// `rtc`, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct RoomConfig {
    /// Which room.
    pub room_name: String,
    /// Whether the room is recorded.
    pub enable_recording: bool,
    /// Who records it.
    pub recording: RoomRecording,
    /// Who the session is in the room.
    pub identity: String,
    /// What it is called there.
    pub name: String,
    /// Whom it hears; everybody when empty.
    pub listen_participants: Vec<String>,
    /// Whether everybody is heard together.
    pub stt_mode: RoomHearing,
    /// How to listen to each, where everybody is heard alone; the session itself hears nothing then.
    pub listen: Option<Box<ListenConfig>>,
    /// What becomes of the room when the session ends.
    pub delete_room: DeleteRoom,
    /// How long the session stays when nobody else is left; `None` is for ever.
    pub empty_timeout: Option<Duration>,
}

/// Who records a room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RoomRecording {
    /// This server, what it hears and says.
    #[default]
    Own,
    /// The LiveKit deployment that keeps the room.
    Egress,
}

/// How the participants of a room are heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RoomHearing {
    /// All together.
    #[default]
    Mixed,
    /// Each by a recogniser of their own.
    PerParticipant,
}

/// Whether a room is deleted when the session ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeleteRoom {
    /// If this session created it and nobody else is left.
    #[default]
    Auto,
    /// In any case.
    Always,
    /// In no case.
    Never,
}

/// A short sound that is heard in a loop while the client works on something: 16-bit PCM of 250 ms to 10 s.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct LoadingAudio {
    /// Base64, at most 1.92 MB decoded.
    #[schemars(extend("contentEncoding" = "base64"))]
    pub data: String,
    /// `wav` or `pcm`; found by signature when absent.
    #[schemars(extend("enum" = ["wav", "pcm", null]))]
    pub format: Option<String>,
    /// Hertz; of `pcm` only, and required there.
    #[schemars(range(min = 8000, max = 48000))]
    pub sample_rate: Option<u64>,
    /// Of `pcm` only.
    #[schemars(range(min = 1, max = 2), extend("default" = 1))]
    pub channels: Option<u64>,
    /// Clamped to 0–1.
    #[schemars(extend("default" = 1.0))]
    pub volume: Option<f64>,
}

/// What hears the end of a turn beside the recogniser.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TurnModelChoice {
    /// The model if there is one, else silence; a provider's end of speech comes first.
    #[default]
    Installed,
    /// The model, which comes before a provider's end of speech.
    SmartTurn,
    /// Silence alone.
    Silence,
}

/// `vad`, checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VadConfig {
    /// Whether voice activity is looked for.
    pub enabled: bool,
    /// The score, 0–1, from which sound is speech.
    pub threshold: f32,
    /// Silence that may end a turn.
    pub silence_ms: u32,
    /// Speech shorter than this is none.
    pub min_speech_ms: u32,
    /// How long after the last words a turn ends by itself.
    pub speech_final_timeout_ms: u32,
    /// The longest turn; 0 means none.
    pub max_turn_ms: u32,
    /// What hears the end of a turn beside the recogniser.
    pub turn_model: TurnModelChoice,
    /// Whether noise is suppressed.
    pub noise_suppression: bool,
    /// What playback does when somebody speaks over it.
    pub interruption: InterruptionMode,
    /// How long it may take to decide whether that is an interruption.
    pub interruption_window_ms: u32,
}

impl Default for VadConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            threshold: 0.65,
            silence_ms: 500,
            min_speech_ms: 100,
            speech_final_timeout_ms: 1800,
            max_turn_ms: 0,
            turn_model: TurnModelChoice::Installed,
            noise_suppression: false,
            interruption: InterruptionMode::Off,
            interruption_window_ms: 600,
        }
    }
}

impl VadConfig {
    /// What turn-taking needs of it.
    pub fn turn_settings(&self) -> TurnSettings {
        let ms = |ms: u32| Duration::from_millis(ms.into());
        TurnSettings {
            enabled: self.enabled,
            threshold: self.threshold,
            silence: ms(self.silence_ms),
            min_speech: ms(self.min_speech_ms),
            speech_final_timeout: ms(self.speech_final_timeout_ms),
            max_turn: (self.max_turn_ms > 0).then(|| ms(self.max_turn_ms)),
            ..TurnSettings::default()
        }
    }
}

/// Begins a session, or changes it. `stt_config` and `tts_config` are required unless `audio` is false.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Config", transform = needs_both_unless_silent)]
pub(super) struct WireConfig {
    /// The name of the session; a UUID when absent.
    #[schemars(with = "Option<StreamId>")]
    stream_id: Option<String>,
    /// Whether the session hears and speaks.
    #[schemars(extend("default" = true))]
    audio: Option<bool>,
    /// How to listen.
    stt_config: Option<WireStt>,
    /// How to speak.
    tts_config: Option<TtsConfig>,
    /// The loading sound.
    loading_audio: Option<LoadingAudio>,
    /// Voice activity and turns.
    vad: Option<WireVad>,
    /// The room to join.
    rtc: Option<WireRtc>,
    /// Who answers: the server leads the conversation with a language model. Needs audio, and `stt_mode` "mixed".
    agent: Option<WireAgent>,
    /// Whether the session is recorded.
    #[schemars(extend("default" = false))]
    recording: Option<bool>,
    /// Whether messages with unknown fields are refused, this one too; else a warning names them.
    #[schemars(extend("default" = false))]
    strict: Option<bool>,
    /// Whether the session waits for its client when the socket breaks.
    #[schemars(extend("default" = false))]
    resume: Option<bool>,
}

/// A rule that no single field of `config` can state.
fn needs_both_unless_silent(schema: &mut Schema) {
    let present = json!({"type": "object"});
    schema.insert(
        "if".to_owned(),
        json!({"properties": {"audio": {"const": false}}, "required": ["audio"]}),
    );
    schema.insert(
        "else".to_owned(),
        json!({
            "required": ["stt_config", "tts_config"],
            "properties": {"stt_config": present, "tts_config": present},
        }),
    );
}

/// How to listen.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "SttConfig")]
struct WireStt {
    /// Slug of the provider, for example `local`.
    #[schemars(required, length(min = 1))]
    provider: Option<String>,
    /// BCP-47.
    #[schemars(extend("default" = "en-US"))]
    language: Option<String>,
    /// Hertz of what the client sends; in a room, of what the recogniser hears.
    #[schemars(range(min = 8000, max = 48000), extend("default" = 16000))]
    sample_rate: Option<u64>,
    /// Channels of what the client sends.
    #[schemars(range(min = 1, max = 2), extend("default" = 1))]
    channels: Option<u64>,
    /// Whether punctuation is wanted.
    #[schemars(extend("default" = true))]
    punctuation: Option<bool>,
    /// What the client sends in binary messages; of `opus` one packet each.
    #[schemars(extend(
        "enum" = ["linear16", "mulaw", "alaw", "opus", "ogg_opus", null],
        "default" = "linear16"
    ))]
    encoding: Option<String>,
    /// Model of the provider; its default when absent or empty.
    model: Option<String>,
    /// The caller's own credential for the provider; the server's when absent or empty.
    auth: Option<OwnCredential>,
    /// Words and phrases to be listened for, where the provider can.
    #[schemars(length(max = 100), inner(length(min = 1, max = 100)))]
    keyterms: Option<Vec<String>>,
    /// BCP-47: further languages that may be spoken, where the provider can tell them.
    #[schemars(length(max = 10), inner(length(min = 1, max = 35)))]
    languages: Option<Vec<String>>,
    /// Whether speakers shall be told apart, where the provider can.
    #[schemars(extend("default" = false))]
    diarize: Option<bool>,
    /// Finals whose confidence is below it are dropped.
    #[schemars(range(min = 0, max = 1), extend("default" = 0))]
    min_confidence: Option<f32>,
    /// Who hears when the provider fails to open or cannot be reached again, in this order. They hear what the client
    /// sends, in its format, and have no fallbacks of their own.
    #[schemars(length(max = 3))]
    fallback: Option<Vec<WireStt>>,
}

/// Voice activity and turns.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "VadConfig")]
struct WireVad {
    /// Whether voice activity is looked for.
    #[schemars(extend("default" = true))]
    enabled: Option<bool>,
    /// The score from which sound is speech.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.65))]
    threshold: Option<f32>,
    /// Silence that may end a turn.
    #[schemars(range(max = 3_600_000), extend("default" = 500))]
    silence_ms: Option<u32>,
    /// Speech shorter than this is none.
    #[schemars(range(max = 3_600_000), extend("default" = 100))]
    min_speech_ms: Option<u32>,
    /// How long after the last words a turn ends by itself.
    #[schemars(range(max = 3_600_000), extend("default" = 1800))]
    speech_final_timeout_ms: Option<u32>,
    /// The longest turn: 0 for none, else at least 1000.
    #[schemars(
        range(max = 3_600_000),
        extend("default" = 0, "not" = {"type": "integer", "minimum": 1, "maximum": 999})
    )]
    max_turn_ms: Option<u32>,
    /// What hears in a pause whether the speaker has finished: a model (needs `enabled`), or nothing but the length of
    /// the silence. The model if it is installed when absent.
    #[schemars(extend("enum" = ["smart-turn", "silence", null]))]
    turn_model: Option<String>,
    /// Whether noise is suppressed.
    #[schemars(extend("default" = false))]
    noise_suppression: Option<bool>,
    /// What playback does when somebody speaks over it, until it is decided whether that is an interruption. Needs
    /// `enabled`.
    #[schemars(extend("default" = "off"))]
    interruption: Option<InterruptionMode>,
    /// How long that may take.
    #[schemars(range(min = 100, max = 10_000), extend("default" = 600))]
    interruption_window_ms: Option<u32>,
}

/// The room that a session joins.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "RtcConfig")]
struct WireRtc {
    /// Which room.
    #[schemars(required, length(min = 1, max = 256))]
    room_name: Option<String>,
    /// Whether the room is recorded.
    #[schemars(extend("default" = false))]
    enable_recording: Option<bool>,
    /// Who records it.
    #[schemars(extend("default" = "own"))]
    recording: Option<RoomRecording>,
    /// Who the session is in the room.
    #[schemars(extend("default" = "voice-agent"))]
    service_participant_identity: Option<String>,
    /// What it is called there.
    #[schemars(extend("default" = "Voice Agent"))]
    service_participant_name: Option<String>,
    /// Whom it hears, at most 1,024; everybody when empty.
    #[schemars(length(max = MAX_LISTENED))]
    listen_participants: Option<Vec<String>>,
    /// Whether everybody is heard together or each alone.
    #[schemars(extend("default" = "mixed"))]
    stt_mode: Option<RoomHearing>,
    /// What becomes of the room when the session ends.
    #[schemars(extend("default" = "auto"))]
    delete_room: Option<DeleteRoom>,
    /// Seconds that the session stays when nobody else is left; 0 is for ever.
    #[schemars(extend("default" = 20))]
    empty_timeout_seconds: Option<u32>,
}

impl WireConfig {
    pub(super) fn check(self) -> Result<SessionConfig, Misfit> {
        let (stt, tts) = if self.audio.unwrap_or(true) {
            let stt = required(self.stt_config, "stt_config")?.check()?;
            let tts = required(self.tts_config, "tts_config")?;
            let tts = tts
                .check()
                .map_err(|invalid| misfit(invalid.field, invalid.problem))?;
            (Some(stt), Some(tts))
        } else {
            (None, None)
        };
        let rtc = self.rtc.map(WireRtc::check).transpose()?;
        let recorded = rtc.as_ref().is_some_and(|rtc| rtc.enable_recording);
        let stream_id = self.stream_id.as_deref().map(StreamId::parse).transpose()?;
        let mut params = SessionParams {
            stt,
            tts,
            vad: match self.vad {
                Some(vad) => {
                    let leads = self.agent.is_some() && vad.enabled != Some(false);
                    vad.check_over(&vad_of(leads))?
                }
                None => vad_of(self.agent.is_some()),
            },
            rtc,
            agent: self.agent.map(WireAgent::check).transpose()?,
            recording: recorded || self.recording.unwrap_or(false),
            resume: self.resume.unwrap_or(false),
        };
        if params.rtc.is_some() {
            params.use_room_audio();
        }
        if params.agent.is_some() && params.stt.is_none() {
            return Err(misfit("agent", "needs audio, and stt_mode mixed"));
        }
        Ok(SessionConfig {
            stream_id,
            loading_audio: self.loading_audio,
            strict: self.strict.unwrap_or(false),
            params,
        })
    }
}

impl SessionParams {
    /// How to listen to the client, or to each participant of the room.
    pub fn listen(&self) -> Option<&ListenConfig> {
        let of_participants = || self.rtc.as_ref()?.listen.as_deref();
        self.stt.as_ref().or_else(of_participants)
    }

    /// Whether this server is to record it.
    pub fn records(&self) -> bool {
        self.recording && !self.has_egress()
    }

    /// The room that its provider is to record.
    pub fn room_for_egress(&self) -> Option<&str> {
        let room = self.rtc.as_ref().filter(|_| self.has_egress());
        room.map(|room| room.room_name.as_str())
    }

    fn has_egress(&self) -> bool {
        let egress = |room: &RoomConfig| room.recording == RoomRecording::Egress;
        self.recording && self.rtc.as_ref().is_some_and(egress)
    }

    /// In a room the session plays and hears mono samples, at the rates that were asked for.
    fn use_room_audio(&mut self) {
        if let Some(stt) = &mut self.stt {
            stt.format = AudioFormat::mono(Encoding::Linear16, stt.format.layout.rate);
        }
        if let Some(tts) = &mut self.tts {
            let rate = Bandwidth::of(tts.format.layout.rate).rate();
            tts.format = AudioFormat::mono(Encoding::Linear16, rate);
        }
        if let Some(rtc) = &mut self.rtc
            && rtc.stt_mode == RoomHearing::PerParticipant
        {
            rtc.listen = self.stt.take().map(Box::new);
        }
    }
}

impl WireStt {
    fn check(self) -> Result<ListenConfig, Misfit> {
        let provider = match required(self.provider, "stt_config.provider")?.as_str() {
            "" => return Err(misfit("stt_config.provider", "must not be empty")),
            name => canonical_slug(name).to_owned(),
        };
        let encoding = match self.encoding.as_deref().unwrap_or("linear16") {
            "linear16" => Encoding::Linear16,
            "mulaw" => Encoding::Mulaw,
            "alaw" => Encoding::Alaw,
            "opus" => Encoding::Opus,
            "ogg_opus" => Encoding::OggOpus,
            _ => {
                let known = "must be linear16, mulaw, alaw, opus or ogg_opus";
                return Err(misfit("stt_config.encoding", known));
            }
        };
        let rate = SampleRate::new(self.sample_rate.unwrap_or(16_000))
            .ok()
            .filter(|rate| *rate <= SampleRate::MAX_WIRE)
            .ok_or_else(|| misfit("stt_config.sample_rate", "must be from 8000 to 48000"))?;
        let channels = Channels::try_from(self.channels.unwrap_or(1))
            .map_err(|_| misfit("stt_config.channels", "must be 1 or 2"))?;
        Ok(ListenConfig {
            provider,
            language: self
                .language
                .filter(|language| !language.is_empty())
                .unwrap_or_else(|| "en-US".to_owned()),
            format: AudioFormat {
                encoding,
                layout: Layout::new(rate, channels),
            },
            punctuation: self.punctuation.unwrap_or(true),
            model: self.model.unwrap_or_default(),
            auth: self.auth.unwrap_or_default(),
            keyterms: phrases(self.keyterms, "stt_config.keyterms", 100, 100)?,
            languages: phrases(self.languages, "stt_config.languages", 10, 35)?,
            diarize: self.diarize.unwrap_or(false),
            min_confidence: match self.min_confidence.unwrap_or(0.0) {
                least @ 0.0..=1.0 => least,
                _ => return Err(misfit("stt_config.min_confidence", "must be from 0 to 1")),
            },
            fallback: fallbacks(self.fallback)?,
        })
    }
}

impl WireStt {
    /// The same where what is not given stays as it is. A model and a credential are their provider's, and go with it.
    fn check_over(mut self, known: &ListenConfig) -> Result<ListenConfig, Misfit> {
        let fixed = |place: &str| {
            let problem = "cannot change while the session runs: send config";
            Err(misfit(place, problem))
        };
        let format = known.format;
        let sample_rate = self
            .sample_rate
            .get_or_insert(format.layout.rate.hz().into());
        if *sample_rate != u64::from(format.layout.rate.hz()) {
            return fixed("stt_config.sample_rate");
        }
        let channels = self
            .channels
            .get_or_insert(format.layout.channels.count() as u64);
        if *channels != format.layout.channels.count() as u64 {
            return fixed("stt_config.channels");
        }
        let encoding = self
            .encoding
            .get_or_insert(format.encoding.name().to_owned());
        if encoding != format.encoding.name() {
            return fixed("stt_config.encoding");
        }
        self.provider.get_or_insert_with(|| known.provider.clone());
        self.language.get_or_insert_with(|| known.language.clone());
        self.punctuation.get_or_insert(known.punctuation);
        self.keyterms.get_or_insert_with(|| known.keyterms.clone());
        self.languages
            .get_or_insert_with(|| known.languages.clone());
        self.diarize.get_or_insert(known.diarize);
        self.min_confidence.get_or_insert(known.min_confidence);
        let (model, auth) = (self.model.is_none(), self.auth.is_none());
        let fallback = self.fallback.is_none();
        let mut checked = self.check()?;
        if checked.provider == known.provider {
            if model {
                checked.model.clone_from(&known.model);
            }
            if auth {
                checked.auth = known.auth.clone();
            }
        }
        if fallback {
            checked.fallback.clone_from(&known.fallback);
        }
        Ok(checked)
    }
}

fn fallbacks(wanted: Option<Vec<WireStt>>) -> Result<Vec<ListenConfig>, Misfit> {
    let wanted = wanted.unwrap_or_default();
    if wanted.len() > MAX_FALLBACKS {
        let problem = format!("must be at most {MAX_FALLBACKS}");
        return Err(misfit("stt_config.fallback", problem));
    }
    let place = |(index, fallback): (usize, WireStt)| {
        let place = format!("stt_config.fallback[{index}]");
        if fallback
            .fallback
            .as_ref()
            .is_some_and(|list| !list.is_empty())
        {
            return Err(misfit(
                &format!("{place}.fallback"),
                "must not be given there",
            ));
        }
        fallback.check().map_err(
            |Misfit {
                 place: field,
                 problem,
             }| {
                let field = field.strip_prefix("stt_config").unwrap_or(&field);
                misfit(&format!("{place}{field}"), problem)
            },
        )
    };
    wanted.into_iter().enumerate().map(place).collect()
}

/// A list of at most `most` texts of 1 to `longest` characters.
fn phrases(
    list: Option<Vec<String>>,
    place: &str,
    most: usize,
    longest: usize,
) -> Result<Vec<String>, Misfit> {
    let list = list.unwrap_or_default();
    let fits = |text: &String| (1..=longest).contains(&text.chars().count());
    if list.len() <= most && list.iter().all(fits) {
        return Ok(list);
    }
    let problem = format!("must be at most {most} texts of 1 to {longest} characters");
    Err(misfit(place, problem))
}

impl WireRtc {
    fn check(self) -> Result<RoomConfig, Misfit> {
        let room_name = required(self.room_name, "rtc.room_name")?;
        if !(1..=MAX_ROOM_NAME_CHARS).contains(&room_name.chars().count()) {
            return Err(misfit("rtc.room_name", "must be 1 to 256 characters"));
        }
        let text = |value: Option<String>, default: &str, place| {
            let value = value.unwrap_or_else(|| default.into());
            if (1..=MAX_ROOM_NAME_CHARS).contains(&value.chars().count()) {
                Ok(value)
            } else {
                Err(misfit(place, "must be 1 to 256 characters"))
            }
        };
        let listen_participants = self.listen_participants.unwrap_or_default();
        let is_identity = |text: &String| text.chars().count() <= MAX_ROOM_NAME_CHARS;
        if listen_participants.len() > MAX_LISTENED || !listen_participants.iter().all(is_identity)
        {
            return Err(misfit(
                "rtc.listen_participants",
                "must be at most 1024 identities of at most 256 characters",
            ));
        }
        let identity = "rtc.service_participant_identity";
        let empty_timeout = self.empty_timeout_seconds.unwrap_or(20);
        Ok(RoomConfig {
            room_name,
            enable_recording: self.enable_recording.unwrap_or(false),
            recording: self.recording.unwrap_or_default(),
            identity: text(self.service_participant_identity, "voice-agent", identity)?,
            name: text(
                self.service_participant_name,
                "Voice Agent",
                "rtc.service_participant_name",
            )?,
            listen_participants,
            stt_mode: self.stt_mode.unwrap_or_default(),
            listen: None,
            delete_room: self.delete_room.unwrap_or_default(),
            empty_timeout: (empty_timeout > 0).then(|| Duration::from_secs(empty_timeout.into())),
        })
    }
}

/// Where the server leads the conversation, it decides who interrupts it.
fn vad_of(leads: bool) -> VadConfig {
    let interruption = if leads {
        InterruptionMode::Pause
    } else {
        InterruptionMode::Off
    };
    VadConfig {
        interruption,
        ..VadConfig::default()
    }
}

impl WireVad {
    /// The longest that any of its times may be: an hour.
    const LONGEST_MS: u32 = 3_600_000;

    /// The same where what is not given stays as it is.
    fn check_over(self, default: &VadConfig) -> Result<VadConfig, Misfit> {
        let threshold = self.threshold.unwrap_or(default.threshold);
        if !(0.0..=1.0).contains(&threshold) {
            return Err(misfit("vad.threshold", "must be from 0 to 1"));
        }
        let time = |value: Option<u32>, default: u32, place: &str| match value.unwrap_or(default) {
            ms @ 0..=Self::LONGEST_MS => Ok(ms),
            _ => Err(misfit(place, "must be at most 3600000")),
        };
        let enabled = self.enabled.unwrap_or(default.enabled);
        let interruption = self.interruption.unwrap_or(default.interruption);
        if interruption != InterruptionMode::Off && !enabled {
            return Err(misfit("vad.interruption", "needs vad.enabled"));
        }
        let turn_model = match self.turn_model.as_deref() {
            None => default.turn_model,
            Some("smart-turn") => TurnModelChoice::SmartTurn,
            Some("silence") => TurnModelChoice::Silence,
            Some(_) => return Err(misfit("vad.turn_model", "must be smart-turn or silence")),
        };
        if turn_model == TurnModelChoice::SmartTurn && !enabled {
            return Err(misfit("vad.turn_model", "smart-turn needs vad.enabled"));
        }
        Ok(VadConfig {
            enabled,
            threshold,
            silence_ms: time(self.silence_ms, default.silence_ms, "vad.silence_ms")?,
            min_speech_ms: time(
                self.min_speech_ms,
                default.min_speech_ms,
                "vad.min_speech_ms",
            )?,
            speech_final_timeout_ms: time(
                self.speech_final_timeout_ms,
                default.speech_final_timeout_ms,
                "vad.speech_final_timeout_ms",
            )?,
            max_turn_ms: match time(self.max_turn_ms, default.max_turn_ms, "vad.max_turn_ms")? {
                1..1000 => return Err(misfit("vad.max_turn_ms", "must be 0 or at least 1000")),
                ms => ms,
            },
            turn_model,
            noise_suppression: self.noise_suppression.unwrap_or(default.noise_suppression),
            interruption,
            interruption_window_ms: match self.interruption_window_ms {
                None => default.interruption_window_ms,
                Some(ms @ 100..=10_000) => ms,
                Some(_) => {
                    let problem = "must be from 100 to 10000";
                    return Err(misfit("vad.interruption_window_ms", problem));
                }
            },
        })
    }
}
