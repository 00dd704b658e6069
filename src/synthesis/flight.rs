//! A synthesis under way that many may follow: one producer, any number of readers, each of which gets every chunk
//! from the first on. When the last reader has gone the producer is told, so nobody pays for speech that nobody
//! waits for. Which requests share a flight is decided in the parent module.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::SynthesisError;

/// The most encoded sound of one request: half an hour of uncompressed speech at 16 kHz.
pub(super) const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The most encoded sound of all requests that are under way at once.
const MAX_BYTES_OF_ALL: usize = 512 * 1024 * 1024;

/// What all flights of a server may hold together.
#[derive(Debug, Default)]
pub(super) struct Budget {
    held: AtomicUsize,
}

impl Budget {
    fn take(&self, bytes: usize) -> bool {
        let grown = |held: usize| Some(held + bytes).filter(|held| *held <= MAX_BYTES_OF_ALL);
        self.held.fetch_update(Relaxed, Relaxed, grown).is_ok()
    }
}

/// The most words whose places are kept: more than the longest text has.
const MAX_WORDS: usize = 1 << 15;

/// A word and where it begins in the sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpokenWord {
    /// As the provider says it.
    pub word: String,
    /// From the first sample.
    pub start: Duration,
}

#[derive(Debug)]
struct State {
    chunks: Vec<Bytes>,
    words: Vec<SpokenWord>,
    bytes: usize,
    end: Option<Result<(), SynthesisError>>,
    budget: Arc<Budget>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Relaxed);
    }
}

/// The producer's side. Dropping it unfinished fails the readers.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    state: watch::Sender<State>,
}

impl Flight {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        let state = State {
            chunks: Vec::new(),
            words: Vec::new(),
            bytes: 0,
            end: None,
            budget: Arc::clone(budget),
        };
        Self {
            state: watch::Sender::new(state),
        }
    }

    /// Whether both are the same flight.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.state.same_channel(&other.state)
    }

    /// A reader from the first chunk on.
    pub(super) fn join(&self) -> FlightReader {
        FlightReader {
            state: self.state.subscribe(),
            next: 0,
        }
    }

    /// Whether somebody still waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.state.receiver_count() > 0
    }

    /// Waits until nobody follows any more.
    pub(super) async fn abandoned(&self) {
        self.state.closed().await;
    }

    /// The next sound.
    pub(super) fn push(&self, chunk: Bytes) -> Result<(), SynthesisError> {
        if chunk.is_empty() {
            return Ok(());
        }
        let mut pushed = Ok(());
        self.state.send_modify(|state| {
            if state.bytes + chunk.len() > MAX_BYTES {
                pushed = Err(SynthesisError::TooLong { limit: MAX_BYTES });
            } else if !state.budget.take(chunk.len()) {
                pushed = Err(SynthesisError::NoMemory);
            } else {
                state.bytes += chunk.len();
                state.chunks.push(chunk);
            }
        });
        pushed
    }

    /// A word begins there. Readers learn of it when they ask.
    pub(super) fn word(&self, word: SpokenWord) {
        self.state.send_if_modified(|state| {
            if state.words.len() < MAX_WORDS {
                state.words.push(word);
            }
            false
        });
    }

    /// Puts the finished head of the stream in place of the provisional one, for readers who take the whole.
    pub(super) fn replace_first(&self, head: impl FnOnce(&[u8]) -> Bytes) {
        self.state.send_if_modified(|state| {
            if let Some(first) = state.chunks.first_mut() {
                *first = head(first);
            }
            false
        });
    }

    /// Nothing more comes. The first end that is told counts.
    pub(super) fn end(&self, result: Result<(), SynthesisError>) {
        self.state.send_if_modified(|state| {
            let first = state.end.is_none();
            if first {
                state.end = Some(result);
            }
            first
        });
    }

    /// The words that were told so far.
    pub(super) fn words(&self) -> Vec<SpokenWord> {
        self.state.borrow().words.clone()
    }

    /// Everything so far.
    pub(super) fn chunks(&self) -> Vec<Bytes> {
        self.state.borrow().chunks.clone()
    }
}

/// One who follows a flight.
#[derive(Debug, Clone)]
pub struct FlightReader {
    state: watch::Receiver<State>,
    next: usize,
}

impl FlightReader {
    /// The next chunk; `None` at the end of a complete synthesis.
    pub async fn next(&mut self) -> Option<Result<Bytes, SynthesisError>> {
        let next = self.next;
        let state = self
            .state
            .wait_for(|state| state.chunks.len() > next || state.end.is_some())
            .await;
        let Ok(state) = state else {
            return Some(Err(SynthesisError::Abandoned));
        };
        if let Some(chunk) = state.chunks.get(next) {
            self.next += 1;
            return Some(Ok(chunk.clone()));
        }
        match &state.end {
            Some(Err(error)) => Some(Err(error.clone())),
            _ => None,
        }
    }

    /// The words whose places are known by now, behind the first so many; none where the provider tells none.
    pub fn words(&self, known: usize) -> Vec<SpokenWord> {
        let state = self.state.borrow();
        state.words.get(known..).unwrap_or_default().to_vec()
    }

    /// All chunks of a complete synthesis.
    pub async fn whole(mut self) -> Result<Vec<Bytes>, SynthesisError> {
        let Ok(state) = self.state.wait_for(|state| state.end.is_some()).await else {
            return Err(SynthesisError::Abandoned);
        };
        match &state.end {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(state.chunks.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_who_comes_late_hears_everything() {
        let flight = Flight::new(&Arc::default());
        let mut early = flight.join();
        flight.push("one".into()).unwrap();
        assert_eq!(early.next().await.unwrap().unwrap(), "one");
        let late = flight.join();
        flight.push("two".into()).unwrap();
        flight.end(Ok(()));
        assert_eq!(early.next().await.unwrap().unwrap(), "two");
        assert!(early.next().await.is_none());
        assert_eq!(late.whole().await.unwrap(), ["one", "two"]);
    }

    #[tokio::test]
    async fn the_producer_learns_that_nobody_waits() {
        let flight = Flight::new(&Arc::default());
        let reader = flight.join();
        assert!(flight.is_wanted());
        drop(reader);
        flight.abandoned().await;
        assert!(!flight.is_wanted());
    }

    #[tokio::test]
    async fn a_producer_that_dies_fails_its_readers() {
        let flight = Flight::new(&Arc::default());
        let mut reader = flight.join();
        flight.push("one".into()).unwrap();
        drop(flight);
        assert!(reader.next().await.unwrap().is_ok());
        assert!(matches!(
            reader.next().await,
            Some(Err(SynthesisError::Abandoned))
        ));
    }

    #[test]
    fn all_flights_together_are_bounded_and_give_back_what_they_held() {
        let budget = Arc::default();
        let chunk = Bytes::from(vec![0; MAX_BYTES]);
        let flights: Vec<_> = (0..MAX_BYTES_OF_ALL / MAX_BYTES)
            .map(|_| {
                let flight = Flight::new(&budget);
                flight.push(chunk.clone()).unwrap();
                flight
            })
            .collect();
        let next = Flight::new(&budget);
        assert!(matches!(
            next.push("x".into()),
            Err(SynthesisError::NoMemory)
        ));
        drop(flights);
        assert!(next.push(chunk).is_ok());
    }

    #[test]
    fn a_flight_is_bounded() {
        let flight = Flight::new(&Arc::default());
        let chunk = Bytes::from(vec![0; MAX_BYTES / 2]);
        assert!(flight.push(chunk.clone()).is_ok());
        assert!(flight.push(chunk.clone()).is_ok());
        assert!(matches!(
            flight.push(chunk),
            Err(SynthesisError::TooLong { .. })
        ));
    }
}
