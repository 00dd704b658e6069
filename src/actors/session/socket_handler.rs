//! Reads the messages of a client: text is parsed and queued for the actor, audio goes to the audio input by a plain call.
//! Called from the socket's reading task, one message after another; nothing here waits.

use actix::Addr;
use actix::prelude::SendError;
use bytes::Bytes;
use bytestring::ByteString;

use super::audio_input::{AudioInput, InputRefused};
use super::listening::accepted;
use super::message_rate::{MessageRate, PER_SECOND};
use super::protocol::{ClientMessage, ErrorCode, ServerMessage};
use super::state::Command;
use super::{FromClient, SessionActor, SocketClosed};
use std::sync::Arc;
use tokio::time::Instant;
use tracing::Span;
use vivavoce_seams::ProviderTable;
use vivavoce_socket::{Closed, SocketHandler, SocketWriter};

/// The handler of one session's socket.
pub struct SessionSocketHandler {
    session: Addr<SessionActor>,
    audio_input: AudioInput,
    writer: SocketWriter,
    providers: Arc<ProviderTable>,
    configs: u64,
    rate: MessageRate,
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
            span,
        }
    }

    fn refuse(&self, code: ErrorCode, message: impl Into<String>) {
        self.writer
            .error(ServerMessage::refusal(code, message).to_json());
    }
}

impl SocketHandler for SessionSocketHandler {
    fn text(&mut self, text: ByteString) {
        if !self.rate.accepts(text.len(), Instant::now().into_std()) {
            let message =
                format!("a message was dropped: they may come {PER_SECOND} times a second");
            return self.refuse(ErrorCode::Overloaded, message);
        }
        let message = match ClientMessage::parse(text.as_bytes()) {
            Ok(message) => message,
            Err(misfit) => return self.refuse(ErrorCode::InvalidMessage, misfit.to_string()),
        };
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
                return self.refuse(ErrorCode::Overloaded, message);
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
                self.refuse(ErrorCode::Overloaded, "too many messages wait");
            }
        }
    }

    fn binary(&mut self, bytes: Bytes) {
        match self.audio_input.push(bytes) {
            Ok(()) | Err(None) => {}
            Err(Some(InputRefused::NotConfigured)) => {
                self.refuse(ErrorCode::NotConfigured, "binary: send config first");
            }
            Err(Some(InputRefused::InRoom)) => self.refuse(
                ErrorCode::AudioDisabled,
                "binary: the session takes its audio from its room",
            ),
            Err(Some(InputRefused::AudioDisabled)) => self.refuse(
                ErrorCode::AudioDisabled,
                "binary: the session was configured with audio: false",
            ),
        }
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
