//! A client that sends what the scenario says and notes what it reads, with the virtual time.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::ws::{CloseCode, CloseReason, OpCode, Parser};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::task::AbortOnDropHandle;

use super::LOUD;
use vivavoce_audio::linear16;
use vivavoce_quotas::Share;
use vivavoce_socket::Origins;
use vivavoce_socket::{self, Backlog, MessageBudget, SocketHandler, SocketSettings, SocketWriter};

/// What a client reads.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    Event(Value),
    Sound(Vec<i16>),
    /// The socket closes with this code.
    Closed(u16),
}

pub struct Client {
    wire: RefCell<Option<mpsc::UnboundedSender<io::Result<Bytes>>>>,
    start: Instant,
    read: Rc<RefCell<Vec<(Duration, What)>>>,
    /// How many of them were read; also wakes whoever waits for one.
    count: watch::Receiver<usize>,
    reading: watch::Sender<bool>,
    /// Up to where [`Self::event`] has looked.
    looked: Cell<usize>,
    /// The number of the next stretch of audio.
    next: Cell<i16>,
    rate: Cell<u32>,
    _reader: AbortOnDropHandle<()>,
}

impl Client {
    pub fn connect<H: SocketHandler>(handler: impl FnOnce(SocketWriter) -> H) -> Self {
        let (wire, payload) = mpsc::unbounded_channel();
        let settings = SocketSettings {
            allowed_origins: Origins::default(),
            idle_timeout: Duration::from_mins(1),
            message_timeout: Duration::from_secs(30),
            unfinished: Arc::new(MessageBudget::new(64 << 20)),
            backlog: Backlog::new(Share::NONE),
            max_buffered_audio: Duration::from_secs(2),
        };
        let payload = UnboundedReceiverStream::new(payload);
        let body = vivavoce_socket::open_in_memory(payload, &settings, handler);
        let start = Instant::now();
        let read = Rc::default();
        let (reading, may_read) = watch::channel(true);
        let (counter, count) = watch::channel(0);
        let reader = Reader {
            wire: wire.downgrade(),
            start,
            read: Rc::clone(&read),
            counter,
            may_read,
        };
        let reader = tokio::task::spawn_local(reader.run(body));
        Self {
            wire: RefCell::new(Some(wire)),
            start,
            read,
            count,
            reading,
            looked: Cell::new(0),
            next: Cell::new(0),
            rate: Cell::new(16_000),
            _reader: AbortOnDropHandle::new(reader),
        }
    }

    fn write(&self, payload: &[u8], kind: OpCode) {
        let mut frame = BytesMut::new();
        Parser::write_message(&mut frame, payload, kind, true, true);
        if let Some(wire) = &*self.wire.borrow() {
            let _ = wire.send(Ok(frame.freeze()));
        }
    }

    pub fn send(&self, message: &Value) {
        self.write(message.to_string().as_bytes(), OpCode::Text);
    }

    pub fn sound(&self, samples: &[i16]) {
        self.write(&linear16::encode(samples), OpCode::Binary);
    }

    /// What it sends from now on has this rate.
    pub fn sends_at(&self, rate: u32) {
        self.rate.set(rate);
    }

    /// Sends stretches of 20 ms at once, all samples of each being its number. Returns the numbers.
    pub fn sends(&self, stretches: i16, speech: bool) -> Vec<i16> {
        let numbers = (0..stretches).map(|_| self.send_stretch(speech));
        numbers.collect()
    }

    fn send_stretch(&self, speech: bool) -> i16 {
        let number = self.next.get() + if speech { LOUD } else { 0 };
        self.next.set(self.next.get() + 1);
        self.sound(&vec![number; self.rate.get() as usize / 50]);
        number
    }

    /// Speaks so long, as a microphone sends it.
    pub async fn speaks(&self, time: Duration) -> Vec<i16> {
        self.live(time, true).await
    }

    pub async fn is_silent(&self, time: Duration) -> Vec<i16> {
        self.live(time, false).await
    }

    async fn live(&self, time: Duration, speech: bool) -> Vec<i16> {
        let mut numbers = Vec::new();
        for _ in 0..time.as_millis() / 20 {
            sleep(Duration::from_millis(20)).await;
            numbers.push(self.send_stretch(speech));
        }
        // It arrives.
        sleep(Duration::from_millis(1)).await;
        numbers
    }

    /// Reads, or does not read any more.
    pub fn reads(&self, reads: bool) {
        self.reading.send_replace(reads);
    }

    /// The connection breaks.
    pub fn breaks(&self) {
        self.wire.borrow_mut().take();
    }

    pub fn closes(&self) {
        let mut frame = BytesMut::new();
        let reason = CloseReason::from(CloseCode::Normal);
        Parser::write_close(&mut frame, Some(reason), true);
        if let Some(wire) = &*self.wire.borrow() {
            let _ = wire.send(Ok(frame.freeze()));
        }
    }

    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The next event of this type, behind the last that was asked for; waits for it.
    pub async fn event(&self, kind: &str) -> Value {
        self.event_at(kind).await.1
    }

    pub async fn event_at(&self, kind: &str) -> (Duration, Value) {
        let next = self.next(|what| matches!(what, What::Event(event) if event["type"] == kind));
        match next.await {
            (at, What::Event(event)) => (at, event),
            _ => unreachable!(),
        }
    }

    /// The next [`Self::event`] may be one that was asked for before.
    pub fn looks_again(&self) {
        self.looked.set(0);
    }

    /// The code that the socket closes with.
    pub async fn closed(&self) -> u16 {
        match self.next(|what| matches!(what, What::Closed(_))).await {
            (_, What::Closed(code)) => code,
            _ => unreachable!(),
        }
    }

    async fn next(&self, wanted: impl Fn(&What) -> bool) -> (Duration, What) {
        let mut count = self.count.clone();
        let found = async {
            loop {
                count.borrow_and_update();
                {
                    let read = self.read.borrow();
                    let looked = self.looked.get();
                    let found = read[looked..].iter().position(|(_, what)| wanted(what));
                    if let Some(found) = found {
                        self.looked.set(looked + found + 1);
                        return read[looked + found].clone();
                    }
                }
                assert!(count.changed().await.is_ok(), "the socket has ended");
            }
        };
        let found = tokio::time::timeout(Duration::from_mins(5), found).await;
        found.unwrap_or_else(|_| panic!("it never comes; read: {:#?}", self.events()))
    }

    /// Everything that was read so far.
    pub fn read(&self) -> Vec<(Duration, What)> {
        self.read.borrow().clone()
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Value> {
        let read = self.read.borrow();
        let events = read.iter().filter_map(|(_, what)| match what {
            What::Event(event) => Some(event.clone()),
            _ => None,
        });
        events.collect()
    }

    /// Those of one type.
    pub fn events_of(&self, kind: &str) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| event["type"] == kind);
        events
    }

    /// The types of the events so far, in order.
    pub fn kinds(&self) -> Vec<String> {
        let events = self.events();
        let kinds = events
            .iter()
            .map(|event| event["type"].as_str().unwrap().to_owned());
        kinds.collect()
    }

    /// All audio so far.
    pub fn heard(&self) -> Vec<i16> {
        let read = self.read.borrow();
        let sound = read.iter().filter_map(|(_, what)| match what {
            What::Sound(samples) => Some(samples.clone()),
            _ => None,
        });
        sound.flatten().collect()
    }
}

/// The task that reads.
struct Reader {
    wire: mpsc::WeakUnboundedSender<io::Result<Bytes>>,
    start: Instant,
    read: Rc<RefCell<Vec<(Duration, What)>>>,
    counter: watch::Sender<usize>,
    may_read: watch::Receiver<bool>,
}

impl Reader {
    async fn run(mut self, mut body: impl Stream<Item = Bytes> + Unpin) {
        loop {
            if self.may_read.wait_for(|may| *may).await.is_err() {
                return;
            }
            let Some(frame) = body.next().await else {
                return;
            };
            self.take(&frame);
        }
    }

    fn take(&self, frame: &[u8]) {
        let mut frame = BytesMut::from(frame);
        let (_, kind, payload) = Parser::parse(&mut frame, false, usize::MAX)
            .unwrap()
            .unwrap();
        let payload = payload.unwrap_or_default();
        let what = match kind {
            OpCode::Text => What::Event(serde_json::from_slice(&payload).unwrap()),
            OpCode::Binary => What::Sound(linear16::samples(&payload)),
            OpCode::Close => {
                self.answer(&payload, OpCode::Close);
                What::Closed(u16::from_be_bytes([payload[0], payload[1]]))
            }
            _ => return self.answer(&payload, OpCode::Pong),
        };
        self.read.borrow_mut().push((self.start.elapsed(), what));
        self.counter.send_modify(|count| *count += 1);
    }

    fn answer(&self, payload: &[u8], kind: OpCode) {
        let mut frame = BytesMut::new();
        Parser::write_message(&mut frame, payload, kind, true, true);
        if let Some(wire) = self.wire.upgrade() {
            let _ = wire.send(Ok(frame.freeze()));
        }
    }
}
