//! Reads the messages of a client: text is parsed and queued for the actor, audio goes to the audio input by a plain call.
//! Called from the socket's reading task, one message after another; nothing here waits.

use actix::Addr;
use actix::prelude::SendError;
use bytes::Bytes;
use bytestring::ByteString;

use super::audio_input::{AudioInput, InputRefused};
use super::listening::accepted;
use super::message_rate::{MessageRate, PER_SECOND};
use super::misuse::{self, Misuse, SoundWatch};
use super::playback::Speak;
use super::protocol::{
    ClientMessage, ErrorCode, Origin, ServerMessage, SessionConfig, UnknownField, WarningCode,
    unknown_fields,
};
use super::state::Command;
use super::{FromClient, SessionActor, SocketClosed};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::Instant;
use tracing::Span;
use vivavoce_seams::ProviderTable;
use vivavoce_socket::{Closed, SocketHandler, SocketWriter};

/// The most things of which one session is warned.
const MAX_WARNINGS: usize = 64;

/// The handler of one session's socket.
pub struct SessionSocketHandler {
    session: Addr<SessionActor>,
    audio_input: AudioInput,
    writer: SocketWriter,
    providers: Arc<ProviderTable>,
    configs: u64,
    rate: MessageRate,
    /// Whether unknown fields are refused.
    strict: bool,
    sound: SoundWatch,
    /// Whether the voice takes tags in a text for instructions.
    takes_tags: bool,
    /// Whether text waits for more of its utterance.
    writing: bool,
    /// What was warned of: each thing is told once.
    warned: HashSet<String>,
    /// The span of the session's log lines.
    span: Span,
}

impl SessionSocketHandler {
    pub fn new(
        session: Addr<SessionActor>,
        audio_input: AudioInput,
        writer: SocketWriter,
        providers: Arc<ProviderTable>,
        span: Span,
    ) -> Self {
        Self {
            session,
            audio_input,
            writer,
            providers,
            configs: 0,
            rate: MessageRate::default(),
            strict: false,
            sound: SoundWatch::default(),
            takes_tags: false,
            writing: false,
            warned: HashSet::new(),
            span,
        }
    }

    fn refuse(&self, origin: &Origin, code: ErrorCode, message: impl Into<String>) {
        let refusal = ServerMessage::refusal(code, message);
        self.writer.error(refusal.answering(origin).to_json());
    }

    /// Warns of `what`, once.
    fn warn(&mut self, what: &str, origin: &Origin, code: WarningCode, message: String) {
        if self.warned.len() >= MAX_WARNINGS || !self.warned.insert(what.to_owned()) {
            return;
        }
        let warning = ServerMessage::Warning {
            message,
            code,
            in_reply_to: origin.message,
            id: origin.id.clone(),
        };
        self.writer.event(warning.to_json());
    }

    /// Fields that have no effect: an error where the client wants it so, else a warning.
    fn look_at_fields(&mut self, origin: &Origin, text: &[u8]) -> Result<(), String> {
        let unknown = unknown_fields(origin.message.unwrap_or_default(), text);
        let names: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        if self.strict && !names.is_empty() {
            let names = names.join(", ");
            return Err(format!(
                "{names}: there is no such field, and config said strict"
            ));
        }
        let is_new = |field: &&UnknownField| !self.warned.contains(&field.path);
        let news: Vec<String> = unknown
            .iter()
            .filter(is_new)
            .map(ToString::to_string)
            .collect();
        if !news.is_empty() {
            let paths = unknown.into_iter().map(|field| field.path);
            let room = MAX_WARNINGS.saturating_sub(self.warned.len());
            self.warned.extend(paths.take(room));
            let message = format!("fields without effect: {}", news.join(", "));
            let all = news.join(",");
            self.warn(&all, origin, WarningCode::UnknownFields, message);
        }
        Ok(())
    }

    /// What a text would not do as it was probably meant.
    fn look_at_text(&mut self, origin: &Origin, speak: &Speak) {
        if !self.takes_tags && misuse::has_markup(&speak.text) {
            let message = "text: this voice says tags as words; send the text without them";
            let code = WarningCode::MarkupAsText;
            self.warn("markup", origin, code, message.to_owned());
        }
        let is_whole = speak.flush && !self.writing;
        let is_blank = speak.text.trim().is_empty();
        if is_whole && !is_blank && !misuse::is_speakable(&speak.text) {
            let message = "text: there is nothing in it that a voice could say; send words";
            let code = WarningCode::NothingToSay;
            self.warn("nothing to say", origin, code, message.to_owned());
        }
        self.writing = !speak.flush;
    }

    fn look_at_config(&mut self, wanted: &SessionConfig) {
        self.strict = wanted.strict;
        if let Some(listen) = &wanted.params.stt {
            self.sound.expect(listen.format);
        }
        let speech = wanted.params.tts.as_ref();
        let voice = speech.and_then(|speech| self.providers.text_to_speech(&speech.provider));
        self.takes_tags = voice.is_some_and(|voice| voice.takes_tags());
    }
}

impl SocketHandler for SessionSocketHandler {
    fn text(&mut self, text: ByteString) {
        if !self.rate.accepts(text.len(), Instant::now().into_std()) {
            let message =
                format!("a message was dropped: they may come {PER_SECOND} times a second");
            // Not even looked at.
            return self.refuse(&Origin::default(), ErrorCode::Overloaded, message);
        }
        let message = match ClientMessage::parse(text.as_bytes()) {
            Ok(message) => message,
            Err(misfit) => {
                let origin = Origin::of_misfit(text.as_bytes());
                let mut problem = misfit.to_string();
                if misuse::is_base64(text.as_bytes()) {
                    problem.push_str("; sound is sent as bytes in binary messages");
                }
                return self.refuse(&origin, ErrorCode::InvalidMessage, problem);
            }
        };
        let origin = message.origin();
        match &message {
            ClientMessage::Config(wanted) => self.look_at_config(wanted),
            ClientMessage::Speak(speak) => self.look_at_text(&origin, speak),
            ClientMessage::Clear { .. } => self.writing = false,
            _ => {}
        }
        if let Err(problem) = self.look_at_fields(&origin, text.as_bytes()) {
            return self.refuse(&origin, ErrorCode::InvalidMessage, problem);
        }
        let mut config = 0;
        if let ClientMessage::Config(_) | ClientMessage::UpdateConfig(_) = message {
            self.configs += 1;
            config = self.configs;
        }
        // An update leaves the format of the audio behind it as it is.
        if let ClientMessage::Config(wanted) = &message {
            let wanted = &wanted.params;
            if wanted.records() {
                self.audio_input.expect_recorder();
            }
            let listen = wanted.stt.as_ref();
            let listen = listen.map(|listen| (listen, accepted(&self.providers, listen)));
            if !self
                .audio_input
                .expect(config, listen, &wanted.vad, wanted.rtc.is_some())
            {
                let message = "too many configs wait to be carried out";
                return self.refuse(&origin, ErrorCode::Overloaded, message);
            }
        }
        let command = Command {
            config,
            message,
            bytes: text.len(),
        };
        match self.session.try_send(FromClient(command)) {
            // A session that has failed closes the socket.
            Ok(()) | Err(SendError::Closed(_)) => {}
            Err(SendError::Full(FromClient(refused))) => {
                if matches!(refused.message, ClientMessage::Config(_)) {
                    self.audio_input.discard(config);
                }
                self.refuse(&origin, ErrorCode::Overloaded, "too many messages wait");
            }
        }
    }

    fn binary(&mut self, bytes: Bytes) {
        if let Some(found) = self.sound.hear(&bytes) {
            let code = match found {
                Misuse::Container(_) => WarningCode::ContainerAsSamples,
                Misuse::Base64 => WarningCode::Base64AsSamples,
                Misuse::Stereo => WarningCode::StereoAsMono,
            };
            let what = format!("{found:?}");
            self.warn(&what, &Origin::of("binary"), code, found.message());
        }
        let (code, problem) = match self.audio_input.push(bytes) {
            Ok(()) | Err(None) => return,
            Err(Some(InputRefused::NotConfigured)) => {
                (ErrorCode::NotConfigured, "binary: send config first")
            }
            Err(Some(InputRefused::InRoom)) => (
                ErrorCode::AudioDisabled,
                "binary: the session takes its audio from its room",
            ),
            Err(Some(InputRefused::AudioDisabled)) => (
                ErrorCode::AudioDisabled,
                "binary: the session was configured with audio: false",
            ),
        };
        self.refuse(&Origin::of("binary"), code, problem);
    }

    fn closed(self, closed: Closed) {
        let _session = self.span.enter();
        tracing::debug!(code = closed.code, by = ?closed.by, "a socket has closed");
    }
}

impl Drop for SessionSocketHandler {
    /// Also without `closed`: after a panic, or when the server stops.
    fn drop(&mut self) {
        self.session.do_send(SocketClosed);
    }
}
