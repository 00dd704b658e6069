//! Reading from unauthenticated callers, in turns. A worker thread has sessions beside its connections: thousands of strangers'
//! requests that arrive at once would be handled before any of a session's messages, because tasks run in the order in which
//! they were woken. So a thread reads from strangers a limited number of times per interval; beyond that their
//! addresses take turns.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Reads of strangers in an interval, on one thread: 4,000 a second. A refused request takes about 0.1 ms.
const READS: u32 = 16;
const INTERVAL: Duration = Duration::from_millis(4);

thread_local! {
    static READERS: Rc<Readers> = Rc::default();
}

/// The connections of one thread that wait for their turn.
#[derive(Default)]
struct Readers {
    waiting: RefCell<Queue>,
    /// Turns given in the current interval, and when it began.
    given: Cell<u32>,
    since: Cell<Option<Instant>>,
    /// Whether a task gives turns to those who wait.
    serving: Cell<bool>,
}

/// Who waits, by address.
#[derive(Default)]
struct Queue {
    addresses: VecDeque<IpAddr>,
    of_address: HashMap<IpAddr, VecDeque<Weak<Turn>>>,
}

impl Queue {
    fn push(&mut self, address: IpAddr, turn: &Rc<Turn>) {
        let of_address = self.of_address.entry(address).or_default();
        if of_address.is_empty() {
            self.addresses.push_back(address);
        }
        of_address.push_back(Rc::downgrade(turn));
    }

    /// The next one that is still connected, of the address whose turn it is.
    fn pop(&mut self) -> Option<Rc<Turn>> {
        while let Some(address) = self.addresses.pop_front() {
            let Some(of_address) = self.of_address.get_mut(&address) else {
                continue;
            };
            let next =
                std::iter::from_fn(|| of_address.pop_front()).find_map(|turn| turn.upgrade());
            if of_address.is_empty() {
                self.of_address.remove(&address);
            } else {
                self.addresses.push_back(address);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

/// Where a connection stands in the queue.
#[derive(Debug, Default)]
pub struct Turn {
    state: Cell<State>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Absent,
    Waiting,
    Given,
}

impl Turn {
    /// The turn that was just given is for the next read.
    pub fn keep(&self) {
        self.state.set(State::Given);
    }
}

/// Resolves when this connection may read once.
pub fn poll_turn(address: IpAddr, turn: &Rc<Turn>, context: &Context<'_>) -> Poll<()> {
    READERS.with(|readers| readers.poll(address, turn, context))
}

impl Readers {
    fn poll(self: &Rc<Self>, address: IpAddr, turn: &Rc<Turn>, context: &Context<'_>) -> Poll<()> {
        if turn.state.get() == State::Given {
            turn.state.set(State::Absent);
            return Poll::Ready(());
        }
        if turn.state.get() == State::Absent {
            if !self.serving.get() && self.take(Instant::now()) {
                return Poll::Ready(());
            }
            turn.state.set(State::Waiting);
            self.waiting.borrow_mut().push(address, turn);
            if !self.serving.replace(true) {
                actix_web::rt::spawn(Rc::clone(self).serve());
            }
        }
        let mut waker = turn.waker.borrow_mut();
        if !waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(context.waker()))
        {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Whether there is a turn left in this interval.
    fn take(&self, now: Instant) -> bool {
        let since = self.since.get();
        if since.is_none_or(|since| now.duration_since(since) >= INTERVAL) {
            self.since.set(Some(now));
            self.given.set(0);
        }
        let given = self.given.get();
        self.given.set(given + 1);
        given < READS
    }

    /// Gives turns, interval by interval, until nobody waits.
    async fn serve(self: Rc<Self>) {
        loop {
            sleep(INTERVAL).await;
            for _ in 0..READS {
                let Some(turn) = self.waiting.borrow_mut().pop() else {
                    self.serving.set(false);
                    return;
                };
                turn.state.set(State::Given);
                if let Some(waker) = turn.waker.take() {
                    waker.wake();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::task::{LocalSet, spawn_local};
    use tokio::time;

    use super::*;

    /// The times, in milliseconds from the start, at which so many connections that are there at once may read.
    async fn times(
        connections: usize,
        address: impl Fn(usize) -> u8,
        leave: impl Fn(usize) -> bool,
    ) -> Vec<(usize, u128)> {
        let begun = Instant::now();
        let readers = Rc::<Readers>::default();
        let told = Rc::<RefCell<Vec<_>>>::default();
        let mut tasks = Vec::new();
        for number in 0..connections {
            let (readers, told) = (Rc::clone(&readers), Rc::clone(&told));
            let address = IpAddr::from([192, 0, 2, address(number)]);
            let task = spawn_local(async move {
                let turn = Rc::<Turn>::default();
                poll_fn(|context| readers.poll(address, &turn, context)).await;
                told.borrow_mut()
                    .push((number, begun.elapsed().as_millis()));
            });
            tasks.push(task);
        }
        tokio::task::yield_now().await;
        for (number, task) in tasks.iter().enumerate() {
            if leave(number) {
                task.abort();
            }
        }
        for task in tasks {
            let _ = task.await;
        }
        time::sleep(3 * INTERVAL).await;
        assert!(!readers.serving.get(), "nobody waits any more");
        told.take()
    }

    fn run<F: Future>(future: F) -> F::Output {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, future)
    }

    #[test]
    fn strangers_read_so_many_times_an_interval_in_the_order_in_which_they_came() {
        let told = run(times(40, |_| 1, |_| false));
        let order: Vec<_> = told.iter().map(|(number, _)| *number).collect();
        assert_eq!(order, (0..40).collect::<Vec<_>>());
        // Timers have a resolution of a millisecond, so an interval may end one later.
        let of = |number: usize| told[number].1;
        assert_eq!((of(0), of(15)), (0, 0));
        assert!((4..=5).contains(&of(16)) && of(31) == of(16), "{told:?}");
        assert!((8..=10).contains(&of(32)) && of(39) == of(32), "{told:?}");
    }

    #[test]
    fn who_has_left_takes_no_turn() {
        let told = run(times(64, |_| 1, |number| (16..48).contains(&number)));
        let last = told.last().unwrap();
        assert!(last.0 == 63 && last.1 <= 5, "{told:?}");
        assert_eq!(told.len(), 32);
    }
    #[test]
    fn one_of_another_address_does_not_wait_for_all_of_a_crowd() {
        let told = run(times(1_000, |number| u8::from(number == 999), |_| false));
        let place = told.iter().position(|(number, _)| *number == 999);
        assert_eq!(
            place,
            Some(17),
            "after what came at once and one of the crowd"
        );
    }
}
