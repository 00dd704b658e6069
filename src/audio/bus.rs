//! The audio bus: one writer and many readers, each with its own position in a bounded ring buffer. The writer never
//! waits; a reader that is too slow loses the oldest audio, which is counted for that reader alone.

use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};

use super::pcm::Pcm;

/// The writing end. Once it is dropped, readers get what is left and then the end of the stream.
#[derive(Debug)]
pub struct AudioBus {
    ring: broadcast::Sender<Arc<Pcm>>,
}

/// A reader. It gets what is written after it was created.
#[derive(Debug)]
pub struct BusReader {
    ring: broadcast::Receiver<Arc<Pcm>>,
    dropped: u64,
}

/// Why nothing can be read without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nothing {
    /// Nothing at the moment.
    Yet,
    /// The stream has ended.
    EverAgain,
}

impl AudioBus {
    /// A bus that keeps at least `chunks` chunks for its slowest reader (rounded up to a power of two).
    pub fn new(chunks: usize) -> Self {
        Self {
            ring: broadcast::Sender::new(chunks.max(1)),
        }
    }

    /// Adds a reader.
    pub fn reader(&self) -> BusReader {
        BusReader {
            ring: self.ring.subscribe(),
            dropped: 0,
        }
    }

    /// Writes a chunk. Not an error if there are no readers.
    pub fn write(&mut self, sound: impl Into<Arc<Pcm>>) {
        let _unheard = self.ring.send(sound.into());
    }
}

impl BusReader {
    /// The next chunk; `None` at the end of the stream. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Arc<Pcm>> {
        loop {
            match self.ring.recv().await {
                Ok(sound) => return Some(sound),
                Err(RecvError::Lagged(chunks)) => self.dropped += chunks,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The next chunk, if there is one.
    pub fn try_recv(&mut self) -> Result<Arc<Pcm>, Nothing> {
        loop {
            match self.ring.try_recv() {
                Ok(sound) => return Ok(sound),
                Err(TryRecvError::Lagged(chunks)) => self.dropped += chunks,
                Err(TryRecvError::Empty) => return Err(Nothing::Yet),
                Err(TryRecvError::Closed) => return Err(Nothing::EverAgain),
            }
        }
    }

    /// Chunks that this reader has lost.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, SampleRate};

    fn chunk(n: i16) -> Pcm {
        Pcm::new(Layout::mono(SampleRate::HZ_8000), vec![n])
    }

    fn number(sound: &Pcm) -> i16 {
        sound.samples()[0]
    }

    #[test]
    fn a_slow_reader_loses_the_oldest_sound_and_nobody_else_does() {
        let mut bus = AudioBus::new(4);
        let (mut slow, mut fast) = (bus.reader(), bus.reader());
        for n in 0..10 {
            bus.write(chunk(n));
            assert_eq!(number(&fast.try_recv().unwrap()), n);
        }
        let kept: Vec<_> = std::iter::from_fn(|| slow.try_recv().ok())
            .map(|sound| number(&sound))
            .collect();
        assert_eq!(kept, [6, 7, 8, 9]);
        assert_eq!((slow.dropped(), fast.dropped()), (6, 0));
    }

    #[tokio::test]
    async fn readers_hear_everything_before_the_end() {
        let mut bus = AudioBus::new(8);
        let mut reader = bus.reader();
        assert_eq!(reader.try_recv(), Err(Nothing::Yet));
        let waiting = tokio::spawn(async move {
            let mut heard = Vec::new();
            while let Some(sound) = reader.recv().await {
                heard.push(number(&sound));
            }
            (heard, reader)
        });
        bus.write(chunk(1));
        bus.write(chunk(2));
        drop(bus);
        let (heard, mut reader) = waiting.await.unwrap();
        assert_eq!(heard, [1, 2]);
        assert_eq!(reader.try_recv(), Err(Nothing::EverAgain));
    }

    #[test]
    fn writing_with_nobody_there_is_no_error_and_late_readers_hear_only_what_follows() {
        let mut bus = AudioBus::new(0);
        bus.write(chunk(1));
        let mut late = bus.reader();
        bus.write(chunk(2));
        assert_eq!(number(&late.try_recv().unwrap()), 2);
    }
}
