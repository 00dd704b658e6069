//! Request coalescing ("single flight", as in Go's `singleflight`): a synthesis in progress with one producer and any
//! number of readers, each of which gets every chunk from the first on. When the last reader is dropped the producer is
//! notified, so that nobody pays for without_readers speech. The parent module decides which requests share a flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::SynthesisError;
use vivavoce_quotas::{Kind, Party, Refused, Share, Tally, Why};

/// The maximum encoded audio of one request: half an hour of uncompressed speech at 16 kHz.
pub(super) const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The maximum encoded audio of all requests in progress or not yet read.
const MAX_BYTES_OF_ALL: usize = 512 * 1024 * 1024;

/// Memory is counted in blocks of this size, more than a second of audio, so that the shared counter is seldom touched.
const BLOCK: usize = 64 * 1024;

/// The memory for audio, in total and per party: of syntheses in progress, and of results not yet read, including those
/// from the cache.
#[derive(Debug)]
pub(super) struct Budget {
    blocks: Mutex<Tally>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(Share::default())
    }
}

impl Budget {
    /// A budget of which no party may use more than its share.
    pub(super) fn new(share: Share) -> Self {
        let blocks = Tally::new((MAX_BYTES_OF_ALL / BLOCK) as u64, share);
        Self {
            blocks: Mutex::new(blocks),
        }
    }

    fn blocks(&self) -> MutexGuard<'_, Tally> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory taken from the budget. Dropping it releases it.
#[derive(Debug)]
pub(super) struct MemoryReservation {
    budget: Arc<Budget>,
    /// The party it counts for, and the number of blocks.
    party: Party,
    blocks: u64,
}

impl MemoryReservation {
    /// An empty reservation for the party.
    pub(super) fn of(budget: &Arc<Budget>, party: &Party) -> Self {
        Self {
            budget: Arc::clone(budget),
            party: party.clone(),
            blocks: 0,
        }
    }

    /// Extends the reservation to this many bytes.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), SynthesisError> {
        let wanted = bytes.div_ceil(BLOCK) as u64;
        let more = wanted.saturating_sub(self.blocks);
        if more > 0 {
            let taken = self.budget.blocks().take(&self.party, more);
            taken.map_err(|why| match why {
                Why::Full => SynthesisError::NoMemory,
                why => SynthesisError::Quota(Refused {
                    kind: Kind::Syntheses,
                    why,
                }),
            })?;
            self.blocks = wanted;
        }
        Ok(())
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.budget.blocks().release(&self.party, self.blocks);
    }
}

/// The maximum number of word timings: more than the longest text has words.
const MAX_WORDS: usize = 1 << 15;

/// A word and when it begins in the audio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpokenWord {
    /// The word, as the provider spells it.
    pub word: String,
    /// Offset from the first sample.
    pub start: Duration,
}

#[derive(Debug)]
struct State {
    chunks: Vec<Bytes>,
    words: Vec<SpokenWord>,
    bytes: usize,
    end: Option<Result<(), SynthesisError>>,
    /// The party that started it, while it waits in the queue.
    waits_for: Option<Party>,
    /// Its memory, counted as long as there is a reader.
    held: MemoryReservation,
}

/// The producer's side. Dropping it unfinished fails the readers.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    state: watch::Sender<State>,
}

impl Flight {
    /// A synthesis that waits in the queue for `party`.
    pub(super) fn new(budget: &Arc<Budget>, party: &Party) -> Self {
        let state = State {
            chunks: Vec::new(),
            words: Vec::new(),
            bytes: 0,
            end: None,
            waits_for: Some(party.clone()),
            held: MemoryReservation::of(budget, party),
        };
        Self {
            state: watch::Sender::new(state),
        }
    }

    /// Whether both are the same synthesis.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.state.same_channel(&other.state)
    }

    /// The wait in the queue is over.
    pub(super) fn leave_queue(&self) {
        self.state.send_if_modified(|state| {
            state.waits_for = None;
            false
        });
    }

    /// Whether `party` may join without waiting for another party's turn.
    pub(super) fn may_be_joined_by(&self, party: &Party) -> bool {
        let state = self.state.borrow();
        state.waits_for.as_ref().is_none_or(|first| first == party)
    }

    /// A reader that gets all chunks from the first on.
    pub(super) fn join(&self) -> FlightReader {
        FlightReader {
            state: self.state.subscribe(),
            next: 0,
        }
    }

    /// Whether there is a reader.
    pub(super) fn has_readers(&self) -> bool {
        self.state.receiver_count() > 0
    }

    /// Waits until there are no readers.
    pub(super) async fn abandoned(&self) {
        self.state.closed().await;
    }

    /// Appends a chunk.
    pub(super) fn push(&self, chunk: Bytes) -> Result<(), SynthesisError> {
        if chunk.is_empty() {
            return Ok(());
        }
        let mut pushed = Ok(());
        self.state.send_modify(|state| {
            let bytes = state.bytes + chunk.len();
            pushed = if bytes > MAX_BYTES {
                Err(SynthesisError::TooLong { limit: MAX_BYTES })
            } else {
                state.held.grow_to(bytes)
            };
            if pushed.is_ok() {
                state.bytes = bytes;
                state.chunks.push(chunk);
            }
        });
        pushed
    }

    /// Adds a word timing. Readers see it when they ask.
    pub(super) fn word(&self, word: SpokenWord) {
        self.state.send_if_modified(|state| {
            if state.words.len() < MAX_WORDS {
                state.words.push(word);
            }
            false
        });
    }

    /// Replaces the provisional header at the start of the stream, for readers who read the whole.
    pub(super) fn replace_first(&self, head: impl FnOnce(&[u8]) -> Bytes) {
        self.state.send_if_modified(|state| {
            if let Some(first) = state.chunks.first_mut() {
                *first = head(first);
            }
            false
        });
    }

    /// Ends the stream. Only the first call has an effect.
    pub(super) fn end(&self, result: Result<(), SynthesisError>) {
        self.state.send_if_modified(|state| {
            let first = state.end.is_none();
            if first {
                state.end = Some(result);
            }
            first
        });
    }

    /// The word timings so far.
    pub(super) fn words(&self) -> Vec<SpokenWord> {
        self.state.borrow().words.clone()
    }

    /// All chunks so far.
    pub(super) fn chunks(&self) -> Vec<Bytes> {
        self.state.borrow().chunks.clone()
    }
}

/// A reader of a synthesis.
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

    /// The word timings known by now, from index `known` on; none if the provider reports none.
    pub fn words(&self, known: usize) -> Vec<SpokenWord> {
        let state = self.state.borrow();
        state.words.get(known..).unwrap_or_default().to_vec()
    }

    /// All chunks of a complete synthesis. Their memory stays counted as long as the reader exists.
    pub async fn whole(&mut self) -> Result<Vec<Bytes>, SynthesisError> {
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
        let flight = Flight::new(&Arc::default(), &Party::Operator);
        let mut early = flight.join();
        flight.push("one".into()).unwrap();
        assert_eq!(early.next().await.unwrap().unwrap(), "one");
        let mut late = flight.join();
        flight.push("two".into()).unwrap();
        flight.end(Ok(()));
        assert_eq!(early.next().await.unwrap().unwrap(), "two");
        assert!(early.next().await.is_none());
        assert_eq!(late.whole().await.unwrap(), ["one", "two"]);
    }

    #[tokio::test]
    async fn the_producer_learns_that_nobody_waits() {
        let flight = Flight::new(&Arc::default(), &Party::Operator);
        let reader = flight.join();
        assert!(flight.has_readers());
        drop(reader);
        flight.abandoned().await;
        assert!(!flight.has_readers());
    }

    #[tokio::test]
    async fn a_producer_that_dies_fails_its_readers() {
        let flight = Flight::new(&Arc::default(), &Party::Operator);
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
                let flight = Flight::new(&budget, &Party::Operator);
                flight.push(chunk.clone()).unwrap();
                flight
            })
            .collect();
        let next = Flight::new(&budget, &Party::Operator);
        assert!(matches!(
            next.push("x".into()),
            Err(SynthesisError::NoMemory)
        ));
        drop(flights);
        assert!(next.push(chunk).is_ok());
    }

    #[test]
    fn the_sound_of_one_tenant_leaves_memory_for_anothers() {
        let budget = Arc::default();
        let tenant = |id| Party::Tenant(vivavoce_auth::TenantId::new(id).unwrap());
        let chunk = Bytes::from(vec![0; MAX_BYTES / 2]);
        let push = |id| {
            let flight = Flight::new(&budget, &tenant(id));
            flight.push(chunk.clone()).map(|()| flight)
        };
        let mut held = Vec::new();
        let refused = loop {
            match push("greedy") {
                Ok(flight) => held.push(flight),
                Err(refused) => break refused,
            }
        };
        assert_eq!(held.len(), 12);
        assert!(matches!(refused, SynthesisError::Quota(_)), "{refused}");
        assert!(push("innocent").is_ok());
        drop(held);
        assert!(push("greedy").is_ok());
    }

    #[tokio::test]
    async fn what_was_said_is_counted_until_its_reader_has_gone() {
        let budget = Arc::<Budget>::default();
        let flight = Flight::new(&budget, &Party::Operator);
        let mut reader = flight.join();
        flight.push(Bytes::from(vec![0; MAX_BYTES])).unwrap();
        flight.end(Ok(()));
        drop(flight);
        let unread = reader.whole().await.unwrap();
        let blocks = || budget.blocks().total();
        assert_eq!(blocks(), (MAX_BYTES / BLOCK) as u64);
        drop((unread, reader));
        assert_eq!(blocks(), 0);
    }

    #[test]
    fn a_flight_is_bounded() {
        let flight = Flight::new(&Arc::default(), &Party::Operator);
        let chunk = Bytes::from(vec![0; MAX_BYTES / 2]);
        assert!(flight.push(chunk.clone()).is_ok());
        assert!(flight.push(chunk.clone()).is_ok());
        assert!(matches!(
            flight.push(chunk),
            Err(SynthesisError::TooLong { .. })
        ));
    }
}
