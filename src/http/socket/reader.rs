//! The incoming side of a socket: a task that reads whatever the client sends, however busy the session is and whether
//! or not the client reads. It answers pings, enforces the connection's timeouts, and passes messages on by plain
//! calls, so that audio never waits in a mailbox.

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_http::ws::CloseReason;
use bytes::Bytes;
use bytestring::ByteString;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, sleep_until};

use super::SocketSettings;
use super::budget::Held;
use super::frames::{Frames, Input};
use super::outbox::{Closed, ClosedBy, Outbox};
use super::writer::Shared;
use vivavoce_core::party::Party;
use vivavoce_telemetry::metrics;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// How long a socket's input is processed before its task yields to others on its thread.
const LONGEST_TURN: Duration = Duration::from_millis(1);

/// The ping interval (protocol, section 1).
pub const PING_INTERVAL: Duration = Duration::from_secs(15);

/// Handles a client's messages. The calls come in order, one at a time, from the socket's task, and must not block. Work
/// that has to wait must be queued by the handler, with a limit.
pub trait SocketHandler: 'static {
    /// A text message.
    fn text(&mut self, text: ByteString);
    /// A binary message.
    fn binary(&mut self, bytes: Bytes);
    /// The last call: the socket has started to close, by either side. What was queued before is still sent.
    fn closed(self, closed: Closed);
}

pub(super) struct Reader<H: SocketHandler> {
    handler: Option<H>,
    frames: Frames,
    shared: Arc<Shared>,
    idle_timeout: Duration,
    message_timeout: Duration,
    /// The memory of the incomplete message.
    held: Held,
    /// When its first byte arrived.
    begun: Option<Instant>,
    /// When the last frame arrived.
    heard: Instant,
    next_ping: Instant,
    /// When the task last yielded.
    turn: Instant,
}

impl<H: SocketHandler> Reader<H> {
    pub(super) fn new(
        handler: H,
        shared: Arc<Shared>,
        settings: &SocketSettings,
        key: Party,
    ) -> Self {
        let now = Instant::now();
        Self {
            handler: Some(handler),
            frames: Frames::default(),
            shared,
            idle_timeout: settings.idle_timeout,
            message_timeout: settings.message_timeout,
            held: Held::of(&settings.unfinished, key),
            begun: None,
            heard: now,
            next_ping: now + PING_INTERVAL,
            turn: now,
        }
    }

    /// Reads frames of another kind than those of clients.
    pub(super) fn reading(mut self, frames: Frames) -> Self {
        self.frames = frames;
        self
    }

    pub(super) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Bytes that came before [`Self::run`].
    pub(super) fn came(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
    }

    /// Reads until the connection is gone.
    pub(super) async fn run<T: AsyncRead + Unpin>(&mut self, io: &RefCell<T>) {
        self.take(Instant::now()).await;
        // One timer for all timeouts. It is not moved when a frame arrives; the state is checked when it fires.
        let mut alarm = pin!(sleep_until(self.next_alarm()));
        let shared = Arc::clone(&self.shared);
        let mut closing = pin!(shared.closing.notified());
        loop {
            let mut waited = false;
            let more = poll_fn(|context| {
                let more = self.poll_more(io, context);
                waited |= more.is_pending();
                more
            });
            tokio::select! {
                // A client that always sends does not keep its socket from closing.
                biased;
                () = &mut closing => {
                    self.tell_closed();
                    alarm.as_mut().reset(self.next_alarm());
                    closing.set(shared.closing.notified());
                }
                () = &mut alarm => {
                    if self.clocks(Instant::now()) {
                        return;
                    }
                    alarm.as_mut().reset(self.next_alarm());
                }
                more = more => {
                    if !more {
                        return;
                    }
                    let now = Instant::now();
                    if waited {
                        self.turn = now;
                    }
                    self.take(now).await;
                    if self.begun.is_some() {
                        let due = self.next_alarm();
                        if due < alarm.deadline() {
                            alarm.as_mut().reset(due);
                        }
                    }
                }
            }
        }
    }

    /// Reads some bytes; false once there will be no more. While the socket is closing only the client's close frame
    /// matters, and after that nothing.
    fn poll_more<T: AsyncRead + Unpin>(
        &mut self,
        io: &RefCell<T>,
        context: &mut Context<'_>,
    ) -> Poll<bool> {
        // On the stack: a socket keeps only what is not complete.
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space);
        let read = ready!(Pin::new(&mut *io.borrow_mut()).poll_read(context, &mut buffer));
        if read.is_ok() && !self.refused() {
            self.frames.push(buffer.filled());
        }
        Poll::Ready(read.is_ok() && !buffer.filled().is_empty())
    }

    fn next_alarm(&self) -> Instant {
        self.shared.lock().deadline().unwrap_or_else(|| {
            let clocks = self.next_ping.min(self.heard + self.idle_timeout);
            let complete = self.begun.map(|begun| begun + self.message_timeout);
            complete.map_or(clocks, |complete| complete.min(clocks))
        })
    }

    /// Handles what is due; true once the timeout of closing has passed.
    fn clocks(&mut self, now: Instant) -> bool {
        if let Some(deadline) = self.shared.lock().deadline() {
            return now >= deadline;
        }
        if now >= self.heard + self.idle_timeout {
            let closed = Closed::by_edge(4409, "nothing was heard from the client");
            self.shared.change(|outbox| outbox.close(closed, now));
        } else if self
            .begun
            .is_some_and(|begun| now >= begun + self.message_timeout)
        {
            let patience = self.message_timeout.as_secs_f64();
            metrics::message_cut_off();
            self.give_up(
                4408,
                &format!("a message was not complete within {patience} s"),
            );
        } else if now >= self.next_ping {
            self.next_ping = now + PING_INTERVAL;
            self.shared.change(Outbox::ping);
        }
        false
    }

    /// Handles what has come by `now`.
    async fn take(&mut self, mut now: Instant) {
        while !self.refused() {
            // Processing one client's input may take long, so yield in between.
            if now - self.turn > LONGEST_TURN {
                tokio::task::yield_now().await;
                now = Instant::now();
                self.turn = now;
            }
            match self.frames.next_frame() {
                Ok(Some(input)) => self.input(input, now),
                Ok(None) => return self.keep(now),
                Err(error) => return self.give_up(error.close_code(), &error.to_string()),
            }
            if !self.frames.is_empty() {
                now = Instant::now();
            }
        }
    }

    /// The remainder waits for the rest of its message.
    fn keep(&mut self, now: Instant) {
        let unfinished = self.frames.unfinished();
        if unfinished == 0 {
            self.begun = None;
        } else {
            self.begun.get_or_insert(now);
        }
        if self.held.set(unfinished).is_err() {
            metrics::message_cut_off();
            self.give_up(
                1013,
                "unfinished messages hold all that limits.unfinished_message_bytes allows",
            );
        }
    }

    /// The client's input can no longer be parsed; drops what is buffered.
    fn give_up(&mut self, code: u16, reason: &str) {
        let closed = Closed::by_edge(code, reason);
        self.shared
            .change(|outbox| outbox.end(closed, Instant::now()));
        self.tell_closed();
        self.frames = Frames::default();
        self.begun = None;
        self.held.give_back();
    }

    /// Whether input from the client no longer matters.
    fn refused(&self) -> bool {
        !self.shared.lock().reads()
    }

    fn input(&mut self, input: Input, now: Instant) {
        self.heard = now;
        match input {
            Input::Text(text) => {
                if let Some(handler) = self.open_handler() {
                    handler.text(text);
                }
            }
            Input::Binary(bytes) => {
                if let Some(handler) = self.open_handler() {
                    handler.binary(bytes);
                }
            }
            Input::Ping(payload) => self.shared.change(|outbox| outbox.pong(payload)),
            Input::Pong(_) | Input::Fragment => {}
            Input::Close(reason) => {
                let closed = by_client(reason);
                self.shared.change(|outbox| outbox.end(closed, self.heard));
                self.tell_closed();
            }
        }
        if !self.frames.within_message() {
            self.begun = None;
        }
    }

    /// The handler, unless it has been or will be told that the socket closes.
    fn open_handler(&mut self) -> Option<&mut H> {
        if self.shared.lock().closed().is_some() {
            self.tell_closed();
        }
        self.handler.as_mut()
    }

    fn tell_closed(&mut self) {
        let closed = self.shared.lock().closed().cloned();
        if let Some(closed) = closed
            && let Some(handler) = self.handler.take()
        {
            handler.closed(closed);
        }
    }
}

impl<H: SocketHandler> Drop for Reader<H> {
    /// When reading ends the connection ends, also after a timeout or a panic of the handler.
    fn drop(&mut self) {
        if !self.shared.lock().ended() {
            self.shared
                .change(|outbox| outbox.transport_gone(Instant::now()));
        }
        // A handler that has panicked is not called again.
        if !std::thread::panicking() {
            self.tell_closed();
        }
    }
}

fn by_client(reason: Option<CloseReason>) -> Closed {
    let (code, reason) = reason.map_or((1005, None), |reason| {
        (reason.code.into(), reason.description)
    });
    Closed {
        code,
        reason: reason.unwrap_or_default(),
        by: ClosedBy::Client,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Next;
    use actix_http::ws::{OpCode, Parser};
    use bytes::BytesMut;
    use std::io;
    use tokio::sync::mpsc;
    use tokio::task::LocalSet;
    use tokio_stream::wrappers::UnboundedReceiverStream;
    use tokio_util::io::StreamReader;

    struct Record(mpsc::UnboundedSender<Closed>);

    impl SocketHandler for Record {
        fn text(&mut self, _: ByteString) {}
        fn binary(&mut self, _: Bytes) {}
        fn closed(self, closed: Closed) {
            let _ = self.0.send(closed);
        }
    }

    struct Bench {
        client: mpsc::UnboundedSender<io::Result<Bytes>>,
        shared: Arc<Shared>,
        closed: mpsc::UnboundedReceiver<Closed>,
        task: tokio::task::JoinHandle<()>,
    }

    fn bench(idle_timeout: Duration) -> Bench {
        let (client, payload) = mpsc::unbounded_channel();
        let (sender, closed) = mpsc::unbounded_channel();
        let settings = SocketSettings {
            idle_timeout,
            ..SocketSettings::of_tests()
        };
        let shared = Shared::new(&settings, Party::Operator);
        let mut reader = Reader::new(
            Record(sender),
            Arc::clone(&shared),
            &settings,
            Party::Operator,
        );
        let payload = UnboundedReceiverStream::new(payload);
        Bench {
            client,
            shared,
            closed,
            task: tokio::task::spawn_local(async move {
                reader.run(&RefCell::new(StreamReader::new(payload))).await;
            }),
        }
    }

    fn frame(opcode: OpCode) -> Bytes {
        frame_of(opcode, true, 0)
    }

    fn frame_of(opcode: OpCode, last: bool, length: usize) -> Bytes {
        let mut bytes = BytesMut::new();
        Parser::write_message(&mut bytes, vec![b'a'; length], opcode, last, true);
        bytes.freeze()
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_pings_every_15_seconds_and_gives_up_after_60_of_silence() {
        let test = async {
            let mut bench = bench(Duration::from_mins(1));
            let start = Instant::now();
            let mut pings = 0;
            let closed = loop {
                tokio::select! {
                    closed = bench.closed.recv() => break closed.unwrap(),
                    () = tokio::time::sleep(Duration::from_millis(100)) => {
                        if let Next::Frame(frame) = bench.shared.lock().next(Instant::now()) {
                            assert_eq!(frame[..], [0x89, 0]);
                            pings += 1;
                        }
                    }
                }
            };
            assert_eq!((closed.code, pings), (4409, 3));
            assert_eq!(start.elapsed().as_secs(), 60);
            // The client does not read: there is a timeout, then the end.
            bench.task.await.unwrap();
            assert_eq!(start.elapsed().as_secs(), 62);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn any_frame_is_a_sign_of_life_and_half_a_frame_is_none() {
        let test = async {
            let mut bench = bench(Duration::from_secs(10));
            let start = Instant::now();
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                bench.client.send(Ok(frame(OpCode::Pong))).unwrap();
            }
            assert!(bench.closed.try_recv().is_err());
            for byte in [0x82, 0xfe, 0x01, 0x00, 0, 0, 0, 0, 1, 2, 3, 4] {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let _ = bench.client.send(Ok(vec![byte].into()));
            }
            assert_eq!(bench.closed.recv().await.unwrap().code, 4409);
            assert_eq!(start.elapsed().as_secs(), 102);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_must_be_complete_in_time_however_alive_its_client_is() {
        let test = async {
            let mut bench = bench(Duration::from_mins(1));
            let start = Instant::now();
            bench
                .client
                .send(Ok(frame_of(OpCode::Text, false, 9)))
                .unwrap();
            for _ in 0..29 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                bench.client.send(Ok(frame(OpCode::Pong))).unwrap();
                let more = frame_of(OpCode::Continue, false, 9);
                bench.client.send(Ok(more)).unwrap();
            }
            assert!(bench.closed.try_recv().is_err());
            assert_eq!(bench.closed.recv().await.unwrap().code, 4408);
            assert_eq!(start.elapsed(), Duration::from_secs(30));
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn each_message_has_its_own_time() {
        let test = async {
            let mut bench = bench(Duration::from_mins(1));
            let message = frame_of(OpCode::Text, true, 9);
            let (first, second) = message.split_at(5);
            bench
                .client
                .send(Ok(Bytes::copy_from_slice(first)))
                .unwrap();
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(29)).await;
                // The end of one message and the beginning of the next.
                let both = [second, first].concat();
                bench.client.send(Ok(both.into())).unwrap();
            }
            tokio::time::sleep(Duration::from_secs(29)).await;
            assert!(bench.closed.try_recv().is_err());
            assert_eq!(bench.closed.recv().await.unwrap().code, 4408);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_for_which_there_is_no_memory_ends_its_socket_only() {
        let test = async {
            let mut bench = bench(Duration::from_mins(1));
            for _ in 0..3 {
                let half = frame_of(OpCode::Text, true, 1 << 19);
                bench.client.send(Ok(half)).unwrap();
            }
            bench.client.send(Ok(frame(OpCode::Ping))).unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(bench.closed.try_recv().is_err());
            let long = frame_of(OpCode::Text, false, (1 << 20) + (64 << 10));
            bench.client.send(Ok(long)).unwrap();
            assert_eq!(bench.closed.recv().await.unwrap().code, 1013);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_answers_a_close_frame_is_dropped_after_two_seconds() {
        let test = async {
            let mut bench = bench(Duration::from_mins(1));
            let closed = Closed::by_edge(1001, "draining");
            let start = Instant::now();
            bench.shared.change(|outbox| outbox.close(closed, start));
            tokio::time::sleep(Duration::from_secs(1)).await;
            let frame = bench.shared.lock().next(Instant::now());
            assert!(matches!(frame, Next::Frame(_)));
            assert_eq!(bench.closed.recv().await.unwrap().code, 1001);
            bench.task.await.unwrap();
            assert_eq!(start.elapsed(), Duration::from_secs(3));
        };
        LocalSet::new().run_until(test).await;
    }
}
