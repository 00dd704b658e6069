//! An echo handler, for conformance tests and measurements. No route of the product uses it.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use bytestring::ByteString;

use super::{Audio, Closed, OpenError, SocketHandler, SocketSettings, SocketWriter, open};

/// How binary messages are interpreted: linear16 at 16 kHz, mono.
const BYTES_PER_SECOND: u64 = 32_000;

/// Returns every message: text as events, binary as audio, which is dropped if it does not fit.
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
        // Audio is refused only if the client does not read.
        let _ = self.0.audio(Audio {
            tag,
            duration,
            bytes,
        });
    }

    fn closed(self, _: Closed) {}
}
