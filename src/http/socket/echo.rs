//! A handler that says what it hears, for conformance tests and measurements. No route of the product leads here.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use bytestring::ByteString;

use super::{Audio, Closed, OpenError, SocketHandler, SocketSettings, SocketWriter, open};

/// What binary messages are taken for: linear16 of 16 kHz, mono.
const BYTES_PER_SECOND: u64 = 32_000;

/// Sends every message back: text as events, binary as audio, of which what does not fit is dropped.
pub fn echo(
    request: &HttpRequest,
    payload: web::Payload,
    settings: &SocketSettings,
) -> Result<HttpResponse, OpenError> {
    open(request, payload, settings, Echo)
}

struct Echo(SocketWriter);

impl SocketHandler for Echo {
    fn text(&mut self, text: ByteString) {
        self.0.event(text);
    }

    fn binary(&mut self, bytes: Bytes) {
        let duration = Duration::from_micros(bytes.len() as u64 * 1_000_000 / BYTES_PER_SECOND);
        let tag = 0;
        // Refused audio is what a client that does not read loses.
        let _ = self.0.audio(Audio {
            tag,
            duration,
            bytes,
        });
    }

    fn closed(self, _: Closed) {}
}
