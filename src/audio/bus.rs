//! The audio bus: one writer, many readers, each with its own place in a bounded ring. The writer never waits; a
//! reader that is too slow loses the oldest sound, which is counted for that reader alone. What the readers do with
//! the sound is theirs.

use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};

use super::pcm::Pcm;

/// The writer's end. Readers hear the end of the stream once it is dropped and they have read what was left.
#[derive(Debug)]
pub struct AudioBus {
    ring: broadcast::Sender<Arc<Pcm>>,
}

/// One reader. It hears what is written after it was made.
#[derive(Debug)]
pub struct BusReader {
    ring: broadcast::Receiver<Arc<Pcm>>,
    dropped: u64,
}

/// There is nothing to read without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nothing {
    /// Not yet.
    Yet,
    /// Never again: the writer is gone.
    EverAgain,
}

impl AudioBus {
    /// A bus that remembers at least `chunks` chunks for its slowest reader (the next power of two).
    pub fn new(chunks: usize) -> Self {
        Self {
            ring: broadcast::Sender::new(chunks.max(1)),
        }
    }

    /// Another reader.
    pub fn reader(&self) -> BusReader {
        BusReader {
            ring: self.ring.subscribe(),
            dropped: 0,
        }
    }

    /// Writes one chunk. Nobody listening is no error.
    pub fn write(&mut self, sound: impl Into<Arc<Pcm>>) {
        let _unheard = self.ring.send(sound.into());
    }
}

impl BusReader {
    /// The next chunk; `None` at the end of the stream. Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Option<Arc<Pcm>> {
        loop {
            match self.ring.recv().await {
                Ok(sound) => return Some(sound),
                Err(RecvError::Lagged(chunks)) => self.dropped += chunks,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The next chunk if it is there.
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

    /// Chunks that this reader has lost because it was slow.
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
