//! Sockets that this server has opened itself: after the handshake it is the client of the connection, so what it sends is
//! masked and what it reads is not (RFC 6455, section 5.1). Everything else is as with sockets that others open.

use std::io;
use std::sync::Arc;

use actix_http::ws::{OpCode, Parser};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use super::SocketSettings;
use super::carry::carry;
use super::frames::Frames;
use super::reader::{Reader, SocketHandler};
use super::writer::{Body, Shared, SocketWriter};
use vivavoce_core::party::Party;

/// Runs a socket over a stream whose handshake this server has made, until it has closed. It counts for `party`. Must be
/// called in a `LocalSet`, as actors are.
pub async fn run_dialled<S, H>(
    stream: S,
    settings: &SocketSettings,
    party: Party,
    handler: impl FnOnce(SocketWriter) -> H,
) where
    S: AsyncRead + AsyncWrite + 'static,
    H: SocketHandler,
{
    let shared = Shared::new(settings, party.clone());
    let handler = handler(SocketWriter::new(Arc::clone(&shared)));
    let reader =
        Reader::new(handler, Arc::clone(&shared), settings, party).reading(Frames::of_server());
    let encode = |frame: Bytes| Ok(masked(&frame, mask()?).freeze());
    carry(Box::pin(stream), reader, Body::new(shared), encode, drop_it).await;
}

/// Dropping the stream is enough.
const fn drop_it<S>(_: &S) {}

/// A mask that nobody can foresee (RFC 6455, section 10.3).
fn mask() -> io::Result<[u8; 4]> {
    let mut mask = [0; 4];
    getrandom::fill(&mut mask).map_err(io::Error::other)?;
    Ok(mask)
}

/// A whole frame of a server, as a client sends it.
fn masked(frame: &[u8], mask: [u8; 4]) -> BytesMut {
    let length_bytes = match frame.get(1).map(|second| second & 0x7f) {
        Some(126) => 2,
        Some(127) => 8,
        _ => 0,
    };
    let (head, payload) = frame.split_at(frame.len().min(2 + length_bytes));
    let mut out = BytesMut::with_capacity(frame.len() + mask.len());
    out.extend_from_slice(head);
    if let Some(second) = out.get_mut(1) {
        *second |= 0x80;
    }
    out.extend_from_slice(&mask);
    let bytes = payload.iter().zip(mask.iter().cycle());
    out.extend(bytes.map(|(byte, mask)| byte ^ mask));
    out
}

/// A whole text message as a server sends it.
pub fn text_frame_of_server(text: impl Into<Bytes>) -> BytesMut {
    let mut frame = BytesMut::new();
    Parser::write_message(&mut frame, text.into(), OpCode::Text, true, false);
    frame
}

#[cfg(test)]
mod tests {

    use bytestring::ByteString;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    use super::*;
    use crate::frames::Input;
    use crate::outbox::Closed;

    #[test]
    fn a_masked_frame_is_what_clients_send() {
        // RFC 6455, section 5.7: "Hello", unmasked and masked.
        let frame = [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
        let sent = [
            0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
        ];
        assert_eq!(masked(&frame, [0x37, 0xfa, 0x21, 0x3d])[..], sent);
        for length in [125_usize, 126, 65_535, 65_536] {
            let mut frame = BytesMut::new();
            let payload = Bytes::from(vec![7; length]);
            Parser::write_message(&mut frame, payload.clone(), OpCode::Binary, true, false);
            let mut frames = Frames::default();
            frames.push(&masked(&frame, [1, 2, 3, 4]));
            assert_eq!(frames.next_frame(), Ok(Some(Input::Binary(payload))));
        }
    }

    struct Told(mpsc::UnboundedSender<String>);

    impl SocketHandler for Told {
        fn text(&mut self, text: ByteString) {
            let _ = self.0.send(text.to_string());
        }
        fn binary(&mut self, bytes: Bytes) {
            let _ = self.0.send(format!("{} bytes", bytes.len()));
        }
        fn closed(self, closed: Closed) {
            let _ = self.0.send(format!("closed {}", closed.code));
        }
    }

    fn of_server(opcode: OpCode, payload: &'static [u8]) -> BytesMut {
        let mut frame = BytesMut::new();
        let payload = Bytes::from_static(payload);
        Parser::write_message(&mut frame, payload, opcode, true, false);
        frame
    }

    #[actix_web::test]
    async fn both_sides_are_understood_and_the_other_side_may_close() {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let (sender, mut told) = mpsc::unbounded_channel();
        let (writers, mut writer) = mpsc::unbounded_channel();
        let settings = SocketSettings::of_tests();
        let running = actix_web::rt::spawn(async move {
            run_dialled(near, &settings, Party::Operator, |writer| {
                let _ = writers.send(writer);
                Told(sender)
            })
            .await;
        });
        writer.recv().await.unwrap().event("{\"type\":\"call\"}");
        let mut frames = Frames::default();
        let mut bytes = [0; 256];
        let read = far.read(&mut bytes).await.unwrap();
        frames.push(&bytes[..read]);
        let sent = frames.next_frame().unwrap();
        assert_eq!(sent, Some(Input::Text("{\"type\":\"call\"}".into())));
        far.write_all(&of_server(OpCode::Text, b"hello"))
            .await
            .unwrap();
        far.write_all(&of_server(OpCode::Binary, &[0; 3]))
            .await
            .unwrap();
        assert_eq!(told.recv().await.unwrap(), "hello");
        assert_eq!(told.recv().await.unwrap(), "3 bytes");
        far.write_all(&of_server(OpCode::Close, &[0x03, 0xe8]))
            .await
            .unwrap();
        assert_eq!(told.recv().await.unwrap(), "closed 1000");
        // It is answered, and then the connection ends.
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.first(), Some(&0x88));
        running.await.unwrap();
    }

    #[actix_web::test]
    async fn a_masked_frame_of_a_server_is_refused() {
        for opcode in [OpCode::Text, OpCode::Binary] {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let (sender, mut told) = mpsc::unbounded_channel();
            let settings = SocketSettings::of_tests();
            actix_web::rt::spawn(async move {
                run_dialled(near, &settings, Party::Operator, |_| Told(sender)).await;
            });
            let frame = masked(&of_server(opcode, b"a"), [1, 2, 3, 4]);
            far.write_all(&frame).await.unwrap();
            assert_eq!(told.recv().await.unwrap(), "closed 1002");
        }
    }
}
