//! Response bodies shared by many clients: one text in memory, given to each connection a chunk at a time, so that slow
//! clients do not hold copies of it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use actix_web::web::Bytes;

/// What a connection holds at a time.
const PIECE_BYTES: usize = 16 << 10;

/// A body whose bytes are shared.
pub struct BodyChunks(Bytes);

impl BodyChunks {
    /// A static text.
    pub const fn of(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }
}

impl MessageBody for BodyChunks {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.0.len() as u64)
    }

    fn poll_next(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let rest = &mut self.get_mut().0;
        let piece = rest.split_to(rest.len().min(PIECE_BYTES));
        Poll::Ready((!piece.is_empty()).then_some(Ok(piece)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_are_the_text_and_no_copies_of_it() {
        let text: &'static str = "0123456789".repeat(5_000).leak();
        let (mut body, mut context) = (
            BodyChunks::of(text),
            Context::from_waker(std::task::Waker::noop()),
        );
        assert_eq!(body.size(), BodySize::Sized(50_000));
        let mut at = 0;
        while let Poll::Ready(Some(Ok(piece))) = Pin::new(&mut body).poll_next(&mut context) {
            assert!(piece.len() <= PIECE_BYTES);
            assert_eq!(piece.as_ptr(), text[at..].as_ptr());
            at += piece.len();
        }
        assert_eq!(at, text.len());
    }
}
