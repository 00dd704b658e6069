//! Where a client's messages come in: text is parsed and handed to the actor, sound goes to the hearing by a plain call.
//! Called from the socket's reading task, one message after another; nothing here waits.

use actix::Addr;
use actix::prelude::SendError;
use bytes::Bytes;
use bytestring::ByteString;

use super::hearing::{Deaf, Hearing};
use super::messages::{ClientMessage, ErrorCode, ListenConfig, ServerMessage};
use super::state::Command;
use super::{FromClient, SessionActor, SocketClosed};
use std::sync::Arc;
use tracing::Span;
use vivavoce_audio::{AudioFormat, Encoding};
use vivavoce_seams::ProviderTable;
use vivavoce_socket::{Closed, SocketHandler, SocketWriter};

/// The handler of one session's socket.
pub struct Door {
    session: Addr<SessionActor>,
    hearing: Hearing,
    writer: SocketWriter,
    providers: Arc<ProviderTable>,
    configs: u64,
    /// Of the session's log lines.
    span: Span,
}

impl Door {
    /// The door of a session.
    pub const fn new(
        session: Addr<SessionActor>,
        hearing: Hearing,
        writer: SocketWriter,
        providers: Arc<ProviderTable>,
        span: Span,
    ) -> Self {
        Self {
            session,
            hearing,
            writer,
            providers,
            configs: 0,
            span,
        }
    }

    fn refuse(&self, code: ErrorCode, message: impl Into<String>) {
        self.writer
            .error(ServerMessage::refusal(code, message).to_json());
    }
}

/// What the sound behind a config becomes for its recogniser.
pub(super) fn accepted(providers: &ProviderTable, listen: &ListenConfig) -> AudioFormat {
    let offered = AudioFormat {
        encoding: Encoding::Linear16,
        layout: listen.format.layout,
    };
    // The config of a provider that there is not is refused, and its sound with it.
    providers
        .speech_to_text(&listen.provider)
        .map_or(offered, |provider| provider.accepts().nearest(offered))
}

impl SocketHandler for Door {
    fn text(&mut self, text: ByteString) {
        let message = match ClientMessage::parse(text.as_bytes()) {
            Ok(message) => message,
            Err(misfit) => return self.refuse(ErrorCode::InvalidMessage, misfit.to_string()),
        };
        let mut config = 0;
        if let ClientMessage::Config(_) | ClientMessage::UpdateConfig(_) = message {
            self.configs += 1;
            config = self.configs;
        }
        // An update leaves the format of the sound behind it as it is.
        if let ClientMessage::Config(wanted) = &message {
            if wanted.records() {
                self.hearing.expect_recorder();
            }
            let listen = wanted.stt.as_ref();
            let listen = listen.map(|listen| (listen, accepted(&self.providers, listen)));
            if !self
                .hearing
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
            // What has failed closes the socket by its end.
            Ok(()) | Err(SendError::Closed(_)) => {}
            Err(SendError::Full(FromClient(refused))) => {
                if matches!(refused.message, ClientMessage::Config(_)) {
                    self.hearing.discard(config);
                }
                self.refuse(ErrorCode::Overloaded, "too many messages wait");
            }
        }
    }

    fn binary(&mut self, bytes: Bytes) {
        match self.hearing.hear_client(bytes) {
            Ok(()) | Err(None) => {}
            Err(Some(Deaf::NotConfigured)) => {
                self.refuse(ErrorCode::NotConfigured, "binary: send config first");
            }
            Err(Some(Deaf::InRoom)) => self.refuse(
                ErrorCode::AudioDisabled,
                "binary: the session hears its room",
            ),
            Err(Some(Deaf::AudioDisabled)) => self.refuse(
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

impl Drop for Door {
    /// Also when it was not told that the socket closes: it has panicked, or the server stops.
    fn drop(&mut self) {
        self.session.do_send(SocketClosed);
    }
}
