//! The send queue of a client: order and limits. A pure queue: what is taken from it is on its way and cannot be
//! dropped any more; waiting for room or for something to send is done by the writer.
//!
//! Events and audio are sent in the order in which they were queued. A coalesced event is at the position of its latest
//! version. Pings and pongs overtake both; the close frame comes last.

use std::collections::VecDeque;
use std::time::Duration;

use actix_http::ws::{CloseCode, CloseReason, OpCode, Parser};
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use tokio::time::Instant;

use super::backlog::OWN_BYTES;
use vivavoce_telemetry::metrics;

/// The maximum number of queued events, not counting coalesced ones (protocol, section 1).
pub const MAX_EVENTS: usize = 256;
/// The maximum bytes of queued events; a single event may be larger.
pub const MAX_EVENT_BYTES: usize = 4 << 20;
/// The maximum number of queued coalesced events about participants: a few kinds per transcribed participant.
pub const MAX_LATEST_ABOUT: usize = 256;
/// The code with which a socket closes whose session goes on at another one.
pub const SUPERSEDED: u16 = 4410;
/// The session goes on at another server, where its client is to come back (RFC 6455, section 7.4.2: service restart).
pub const MOVES: u16 = 1012;
/// Timeout of flushing, and then of waiting for the peer's close frame.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// The maximum number of queued pongs; the oldest is dropped, as RFC 6455 section 5.5.3 allows.
const MAX_PONGS: usize = 16;
/// What a control frame's 125 bytes leave for the reason, beside the code.
const MAX_REASON_BYTES: usize = 123;

/// Why audio was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AudioRefused {
    /// The queue is full until the client reads.
    #[error("the client reads too slowly for more audio")]
    Full,
    /// The socket is closing or closed.
    #[error("the socket is closing")]
    Closed,
}

/// Who ended the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// Our code, by `close`.
    Server,
    /// The edge: a protocol violation, a timeout, or too much unread output.
    Edge,
    /// The client's close frame.
    Client,
    /// The connection broke without a close frame.
    Transport,
}

/// How a socket ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The close code; 1005 for a close frame without a code, 1006 if there was no close frame.
    pub code: u16,
    /// The reason, for people; may be empty.
    pub reason: String,
    /// Who ended it.
    pub by: ClosedBy,
}

impl Closed {
    pub(super) fn by_edge(code: u16, reason: &str) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            by: ClosedBy::Edge,
        }
    }
}

/// What the transport should do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this frame.
    Frame(Bytes),
    /// Nothing at the moment.
    Wait,
    /// Everything including the close frame has been sent.
    End,
}

/// A message to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// An event.
    Text(ByteString),
    /// Audio.
    Binary(Bytes),
}

#[derive(Debug)]
enum Item {
    Event(ByteString),
    Latest(Topic, ByteString),
    Audio(Audio),
}

/// Of coalesced events with the same topic only the latest is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    kind: &'static str,
    /// The participant it is about; `None` for the session itself.
    identity: Option<Box<str>>,
}

impl Topic {
    /// About the session itself.
    pub const fn of_session(kind: &'static str) -> Self {
        let identity = None;
        Self { kind, identity }
    }

    /// About a participant.
    pub fn about(kind: &'static str, identity: &str) -> Self {
        let identity = Some(Box::from(identity));
        Self { kind, identity }
    }
}

/// Audio for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audio {
    /// Identifies what it belongs to; never decreases.
    pub tag: u64,
    /// Its duration; zero for a header.
    pub duration: Duration,
    /// The payload of the binary message.
    pub bytes: Bytes,
}

#[derive(Debug)]
struct Closing {
    closed: Closed,
    /// When waiting ends and the connection is reset.
    deadline: Instant,
    /// Whether the client's close frame is still expected.
    awaits_peer: bool,
    sent: bool,
}

/// The outgoing side of a connection.
#[derive(Debug)]
pub struct Outbox {
    max_audio: Duration,
    waiting: VecDeque<Item>,
    events: usize,
    event_bytes: usize,
    /// Coalesced events.
    latest_bytes: usize,
    /// What [`Self::settle`] returned last.
    settled: usize,
    audio: Duration,
    /// How many pieces of audio were dropped, not sent, when the socket ended.
    audio_lost: usize,
    pongs: VecDeque<Bytes>,
    ping: bool,
    closing: Option<Closing>,
    ended: bool,
}

impl Outbox {
    /// An open outbox that holds at most this much audio.
    pub const fn new(max_audio: Duration) -> Self {
        Self {
            max_audio,
            waiting: VecDeque::new(),
            events: 0,
            event_bytes: 0,
            latest_bytes: 0,
            settled: 0,
            audio: Duration::ZERO,
            audio_lost: 0,
            pongs: VecDeque::new(),
            ping: false,
            closing: None,
            ended: false,
        }
    }

    /// Queues an event that must be delivered. If the queue is full, the socket closes with 1013 and drops what waits,
    /// because it would not be read.
    pub fn event(&mut self, text: ByteString, now: Instant) {
        if self.closing.is_some() {
            return;
        }
        let too_large = self.event_bytes + text.len() > MAX_EVENT_BYTES && self.events > 0;
        if self.events == MAX_EVENTS || too_large {
            self.fall_behind(now);
            return;
        }
        self.events += 1;
        self.event_bytes += text.len();
        self.waiting.push_back(Item::Event(text));
    }

    /// Too much waits for this client, or for all clients while this one is furthest behind: drops what waits and
    /// closes.
    pub fn fall_behind(&mut self, now: Instant) {
        metrics::socket_fell_behind();
        self.drop_waiting();
        self.end(Closed::by_edge(1013, "the client reads too slowly"), now);
    }

    /// By how much the bytes of events beyond the socket's allowance have changed since the last call.
    pub fn settle(&mut self) -> isize {
        let waiting = (self.event_bytes + self.latest_bytes).saturating_sub(OWN_BYTES);
        let before = std::mem::replace(&mut self.settled, waiting);
        waiting.cast_signed() - before.cast_signed()
    }

    /// Queues a message from somebody else. Such messages never close the socket: if the queue is half full they are
    /// dropped, and `false` is returned.
    pub fn message(&mut self, text: ByteString, now: Instant) -> bool {
        if self.closing.is_some() {
            return true;
        }
        let fits = self.event_bytes + text.len() <= MAX_EVENT_BYTES / 2 || self.events == 0;
        if self.events >= MAX_EVENTS / 2 || !fits {
            metrics::room_message_dropped();
            return false;
        }
        self.event(text, now);
        true
    }

    /// Whether few enough events are queued that more may be caused.
    pub const fn has_event_room(&self) -> bool {
        self.closing.is_some() || self.events < MAX_EVENTS / 4
    }

    /// Queues an event that supersedes an earlier one of its kind.
    pub fn latest(&mut self, kind: &'static str, text: ByteString) {
        self.coalesce(Topic::of_session(kind), text);
    }

    /// The same per participant: an event does not supersede that of another participant. Their number has a limit of
    /// its own, because participants may come and go while the client does not read.
    pub fn latest_about(
        &mut self,
        kind: &'static str,
        identity: &str,
        text: ByteString,
        now: Instant,
    ) {
        self.coalesce(Topic::about(kind, identity), text);
        let (mut about, mut bytes) = (0, 0);
        for item in &self.waiting {
            if let Item::Latest(topic, text) = item
                && topic.identity.is_some()
            {
                about += 1;
                bytes += text.len();
            }
        }
        if about > MAX_LATEST_ABOUT || (bytes > MAX_EVENT_BYTES && about > 1) {
            self.fall_behind(now);
        }
    }

    fn coalesce(&mut self, topic: Topic, text: ByteString) {
        if self.closing.is_some() {
            return;
        }
        let waiting = self.waiting.len();
        let bytes = &mut self.latest_bytes;
        self.waiting.retain(|item| match item {
            Item::Latest(other, text) if *other == topic => {
                *bytes -= text.len();
                false
            }
            _ => true,
        });
        if self.waiting.len() < waiting {
            metrics::event_coalesced();
        }
        self.latest_bytes += text.len();
        self.waiting.push_back(Item::Latest(topic, text));
    }

    /// Queues an error that must be delivered as long as the client reads; of those that queue up behind many other
    /// events only the latest is kept.
    pub fn error(&mut self, text: ByteString, now: Instant) {
        if self.events < MAX_EVENTS / 2 {
            self.event(text, now);
        } else {
            self.latest("error", text);
        }
    }

    /// Queues audio if it fits, or if none is queued.
    pub fn audio(&mut self, audio: Audio) -> Result<(), AudioRefused> {
        if self.closing.is_some() {
            return Err(AudioRefused::Closed);
        }
        if !self.has_room(audio.duration) {
            return Err(AudioRefused::Full);
        }
        self.audio += audio.duration;
        self.waiting.push_back(Item::Audio(audio));
        Ok(())
    }

    /// Queues audio that was queued for another socket before, however much it is.
    pub fn audio_again(&mut self, audio: Audio) {
        if self.closing.is_some() {
            self.audio_lost += 1;
            return;
        }
        self.audio += audio.duration;
        self.waiting.push_back(Item::Audio(audio));
    }

    /// So many pieces of audio that were not sent need not be sent again.
    pub const fn forget_lost(&mut self, pieces: usize) {
        self.audio_lost = self.audio_lost.saturating_sub(pieces);
    }

    /// How many pieces of audio the transport has not taken.
    pub fn audio_waiting(&self) -> usize {
        let audio = |item: &&Item| matches!(item, Item::Audio(_));
        self.waiting.iter().filter(audio).count() + self.audio_lost
    }

    /// Another socket takes the place of this one: what waits is dropped.
    pub fn supersede(&mut self, now: Instant) {
        self.drop_waiting();
        self.end(
            Closed {
                code: SUPERSEDED,
                reason: "the session goes on at another socket".to_owned(),
                by: ClosedBy::Server,
            },
            now,
        );
    }

    /// Whether [`Self::audio`] would not return [`AudioRefused::Full`].
    pub fn has_room(&self, sound: Duration) -> bool {
        self.closing.is_some() || self.audio.is_zero() || self.audio + sound <= self.max_audio
    }

    /// Drops queued audio with this tag or a greater one, and returns how much it was.
    pub fn cut_audio(&mut self, from: u64) -> Duration {
        let before = self.audio;
        let left = &mut self.audio;
        self.waiting.retain(|item| match item {
            Item::Audio(audio) if audio.tag >= from => {
                *left = left.saturating_sub(audio.duration);
                false
            }
            _ => true,
        });
        before - self.audio
    }

    /// Queues the answer to a ping.
    pub fn pong(&mut self, payload: Bytes) {
        if self.closing.is_none() {
            if self.pongs.len() == MAX_PONGS {
                self.pongs.pop_front();
            }
            self.pongs.push_back(payload);
        }
    }

    /// Queues a ping, unless one is queued already.
    pub fn ping(&mut self) {
        self.ping = self.closing.is_none();
    }

    /// Starts to close: sends what is queued, then the close frame, then waits for the client's.
    pub fn close(&mut self, closed: Closed, now: Instant) {
        self.begin_closing(closed, true, now);
    }

    /// Closes without waiting for the client: its close frame has arrived, or its input can no longer be parsed.
    pub fn end(&mut self, closed: Closed, now: Instant) {
        self.begin_closing(closed, false, now);
    }

    /// The connection is gone: nothing can be sent any more.
    pub fn transport_gone(&mut self, now: Instant) {
        let closed = Closed {
            code: 1006,
            reason: String::new(),
            by: ClosedBy::Transport,
        };
        self.begin_closing(closed, false, now);
        self.drop_waiting();
        self.ended = true;
    }

    /// The first reason counts; a later call can only end the wait for the client.
    fn begin_closing(&mut self, closed: Closed, awaits_peer: bool, now: Instant) {
        let closing = self.closing.get_or_insert(Closing {
            closed,
            deadline: now + CLOSE_PATIENCE,
            awaits_peer,
            sent: false,
        });
        if closing.awaits_peer && !awaits_peer {
            closing.awaits_peer = false;
            closing.deadline = now + CLOSE_PATIENCE;
        }
    }

    fn drop_waiting(&mut self) {
        self.audio_lost = self.audio_waiting();
        self.waiting = VecDeque::new();
        self.events = 0;
        self.event_bytes = 0;
        self.latest_bytes = 0;
        self.audio = Duration::ZERO;
    }

    /// How it ended, once it is closing.
    pub fn closed(&self) -> Option<&Closed> {
        self.closing.as_ref().map(|closing| &closing.closed)
    }

    /// When the timeout of closing ends.
    pub fn deadline(&self) -> Option<Instant> {
        self.closing.as_ref().map(|closing| closing.deadline)
    }

    /// Whether input from the client still matters.
    pub fn reads(&self) -> bool {
        let closing = self.closing.as_ref();
        !self.ended && closing.is_none_or(|closing| closing.awaits_peer)
    }

    /// Whether nothing more will be sent.
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// The next frame to send. What is taken cannot be dropped any more.
    pub fn next(&mut self, now: Instant) -> Next {
        if self.ended || self.closing.as_ref().is_some_and(|closing| closing.sent) {
            return self.end_or_wait();
        }
        if std::mem::take(&mut self.ping) {
            return encode(&Bytes::new(), OpCode::Ping);
        }
        if let Some(payload) = self.pongs.pop_front() {
            return encode(&payload, OpCode::Pong);
        }
        match self.pop() {
            Some(Message::Text(text)) => return encode(text.as_bytes(), OpCode::Text),
            Some(Message::Binary(bytes)) => return encode(&bytes, OpCode::Binary),
            None => {}
        }
        let Some(closing) = &mut self.closing else {
            return Next::Wait;
        };
        closing.sent = true;
        if closing.awaits_peer {
            closing.deadline = now + CLOSE_PATIENCE;
        }
        encode_close(&closing.closed)
    }

    /// The next message, for a client without a network, which answers neither pings nor close frames. Once this socket is
    /// closing and nothing waits, it has ended.
    pub fn next_message(&mut self) -> Option<Message> {
        let message = self.pop();
        self.ended |= message.is_none() && self.closing.is_some();
        message
    }

    fn pop(&mut self) -> Option<Message> {
        Some(match self.waiting.pop_front()? {
            Item::Event(text) => {
                self.events -= 1;
                self.event_bytes -= text.len();
                Message::Text(text)
            }
            Item::Latest(_, text) => {
                self.latest_bytes -= text.len();
                Message::Text(text)
            }
            Item::Audio(audio) => {
                self.audio = self.audio.saturating_sub(audio.duration);
                Message::Binary(audio.bytes)
            }
        })
    }

    fn end_or_wait(&mut self) -> Next {
        if self
            .closing
            .as_ref()
            .is_some_and(|closing| closing.awaits_peer)
        {
            return Next::Wait;
        }
        self.ended = true;
        Next::End
    }
}

fn encode(payload: &[u8], opcode: OpCode) -> Next {
    Next::Frame(frame(payload, opcode))
}

/// A whole message of a server in one frame.
pub(super) fn frame(payload: &[u8], opcode: OpCode) -> Bytes {
    // RFC 6455, section 5.2. What has no room left over is frozen as it is.
    let head = match payload.len() {
        0..126 => 2,
        126..=0xffff => 4,
        _ => 10,
    };
    let mut frame = BytesMut::with_capacity(head + payload.len());
    Parser::write_message(&mut frame, payload, opcode, true, false);
    frame.freeze()
}

fn encode_close(closed: &Closed) -> Next {
    // A code that must not be sent is replaced by a close frame without one (RFC 6455, section 7.4.1).
    let reason = (closed.code != 1005).then(|| CloseReason {
        code: CloseCode::from(closed.code),
        description: Some(
            closed.reason[..closed.reason.floor_char_boundary(MAX_REASON_BYTES)].to_owned(),
        ),
    });
    let mut frame = BytesMut::new();
    Parser::write_close(&mut frame, reason, false);
    Next::Frame(frame.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: Duration = Duration::from_millis(20);

    fn outbox() -> Outbox {
        Outbox::new(Duration::from_secs(2))
    }

    fn ours(code: u16) -> Closed {
        Closed {
            code,
            reason: String::new(),
            by: ClosedBy::Server,
        }
    }

    /// Everything sent now: first byte and payload of each frame.
    /// The number of frames sent.
    fn frames(outbox: &mut Outbox, now: Instant) -> usize {
        std::iter::from_fn(|| matches!(outbox.next(now), Next::Frame(_)).then_some(())).count()
    }

    fn sent(outbox: &mut Outbox, now: Instant) -> Vec<(u8, Bytes)> {
        std::iter::from_fn(|| match outbox.next(now) {
            Next::Frame(frame) => {
                assert_eq!(frame[1] as usize, frame.len() - 2, "a short frame");
                Some((frame[0] & 0x0f, frame.slice(2..)))
            }
            Next::Wait | Next::End => None,
        })
        .collect()
    }

    #[tokio::test]
    async fn audio_waits_up_to_its_bound_and_a_chunk_always_fits_alone() {
        let mut outbox = outbox();
        let long = Duration::from_secs(5);
        assert_eq!(outbox.audio(audio("", long)), Ok(()));
        assert_eq!(outbox.audio(audio("", CHUNK)), Err(AudioRefused::Full));
        outbox.next(Instant::now());
        let taken = (0..1000).take_while(|_| outbox.audio(audio("", CHUNK)).is_ok());
        assert_eq!(taken.count(), 100);
        assert_eq!(outbox.cut_audio(0), Duration::from_secs(2));
        assert!(outbox.has_room(CHUNK));
    }

    #[tokio::test]
    async fn the_latest_of_a_kind_stands_where_it_was_given() {
        let mut outbox = outbox();
        let now = Instant::now();
        outbox.latest("interim", "first words".into());
        outbox.latest("level", "3".into());
        outbox.event("final".into(), now);
        outbox.latest("interim", "next turn".into());
        let texts: Vec<_> = sent(&mut outbox, now)
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        assert_eq!(texts, ["3", "final", "next turn"]);
    }

    #[tokio::test]
    async fn the_latest_about_one_participant_does_not_replace_that_about_another() {
        let mut outbox = outbox();
        let now = Instant::now();
        outbox.latest("interim", "own".into());
        outbox.latest_about("interim", "ann", "ann, first words".into(), now);
        outbox.latest_about("interim", "bob", "bob".into(), now);
        outbox.latest_about("interim", "ann", "ann, next turn".into(), now);
        let texts: Vec<_> = sent(&mut outbox, now)
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        assert_eq!(texts, ["own", "bob", "ann, next turn"]);
    }

    #[tokio::test]
    async fn the_latest_about_ever_new_participants_is_bounded() {
        let mut outbox = outbox();
        let now = Instant::now();
        for number in 0..MAX_LATEST_ABOUT {
            outbox.latest_about("interim", &number.to_string(), "x".into(), now);
        }
        assert_eq!(outbox.closed(), None);
        outbox.latest_about("interim", "0", "y".into(), now);
        assert_eq!(outbox.closed(), None);
        outbox.latest_about("interim", "one more", "x".into(), now);
        assert_eq!(outbox.closed().map(|closed| closed.code), Some(1013));
    }

    #[tokio::test]
    async fn one_event_too_many_closes_and_only_the_close_frame_leaves() {
        let mut outbox = outbox();
        let now = Instant::now();
        for _ in 0..MAX_EVENTS {
            outbox.event("x".into(), now);
        }
        for _ in 0..1000 {
            outbox.latest("interim", "y".into());
        }
        assert_eq!(outbox.closed(), None);
        outbox.event("x".into(), now);
        assert_eq!(outbox.closed().map(|closed| closed.code), Some(1013));
        let frames = sent(&mut outbox, now);
        assert_eq!(frames.len(), 1);
        assert_eq!(
            (frames[0].0, &frames[0].1[..2]),
            (8, &1013_u16.to_be_bytes()[..])
        );
        assert_eq!(outbox.next(now), Next::End);
    }

    #[tokio::test]
    async fn messages_of_others_are_dropped_before_they_close_anything() {
        let mut outbox = outbox();
        let now = Instant::now();
        let large = ByteString::from("x".repeat(MAX_EVENT_BYTES / 4));
        let taken = (0..1_000)
            .filter(|_| outbox.message(large.clone(), now))
            .count();
        assert_eq!(taken, 2);
        assert_eq!(outbox.closed(), None);
        assert_eq!(frames(&mut outbox, now), 2);
        let taken = (0..1_000)
            .filter(|_| outbox.message("x".into(), now))
            .count();
        assert_eq!(taken, MAX_EVENTS / 2);
        outbox.event("our own".into(), now);
        assert_eq!(outbox.closed(), None);
    }

    #[tokio::test]
    async fn few_events_that_are_large_close_as_many_do() {
        let mut outbox = outbox();
        let now = Instant::now();
        let large = ByteString::from("x".repeat(MAX_EVENT_BYTES));
        // A single event is sent whatever its size.
        outbox.event(large.clone(), now);
        assert_eq!(outbox.closed(), None);
        assert_eq!(frames(&mut outbox, now), 1);
        outbox.event("x".into(), now);
        outbox.event(large, now);
        assert_eq!(outbox.closed().map(|closed| closed.code), Some(1013));
    }

    #[tokio::test]
    async fn closing_waits_for_the_answer_and_not_for_ever() {
        let mut outbox = outbox();
        let now = Instant::now();
        outbox.close(ours(1000), now);
        assert_eq!(outbox.deadline(), Some(now + CLOSE_PATIENCE));
        let later = now + Duration::from_secs(1);
        assert_eq!(sent(&mut outbox, later).len(), 1);
        assert_eq!(outbox.deadline(), Some(later + CLOSE_PATIENCE));
        assert_eq!(outbox.next(later), Next::Wait);
        assert!(outbox.reads());
        outbox.end(ours(1000), later);
        assert_eq!(outbox.next(later), Next::End);
        assert!(!outbox.reads());
    }

    #[tokio::test]
    async fn a_reason_is_cut_to_what_a_control_frame_carries() {
        let mut outbox = outbox();
        let now = Instant::now();
        let reason = "ä".repeat(100);
        outbox.end(Closed::by_edge(1011, &reason), now);
        let frames = sent(&mut outbox, now);
        assert_eq!(&frames[0].1[2..], "ä".repeat(61).as_bytes());
    }

    fn audio(bytes: &str, duration: Duration) -> Audio {
        Audio {
            tag: 0,
            duration,
            bytes: Bytes::copy_from_slice(bytes.as_bytes()),
        }
    }

    #[tokio::test]
    async fn errors_beyond_half_of_the_places_coalesce() {
        let mut outbox = outbox();
        let now = Instant::now();
        for number in 0..1000 {
            outbox.error(number.to_string().into(), now);
        }
        assert_eq!(outbox.closed(), None);
        let texts = sent(&mut outbox, now);
        assert_eq!(texts.len(), MAX_EVENTS / 2 + 1);
        assert_eq!(texts.last().unwrap().1, "999");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Event,
        Latest(bool),
        Audio,
        Cut(u64),
        Pong,
        Send,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => Just(Step::Event),
            1 => any::<bool>().prop_map(Step::Latest),
            3 => Just(Step::Audio),
            1 => (0_u64..40).prop_map(Step::Cut),
            1 => Just(Step::Pong),
            3 => Just(Step::Send),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compared with a plain list: order is kept, no event is lost, nothing that was cut is sent.
        #[test]
        fn what_leaves_is_what_was_given_less_what_was_cut(steps in prop::collection::vec(step(), 0..200)) {
            let now = Instant::now();
            let mut outbox = outbox();
            let mut model: Vec<(char, String)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                let name = number.to_string();
                match step {
                    Step::Event => {
                        outbox.event(name.clone().into(), now);
                        model.push(('e', name));
                    }
                    Step::Latest(which) => {
                        let kind = if which { "a" } else { "b" };
                        outbox.latest(kind, name.clone().into());
                        let mark = if which { 'a' } else { 'b' };
                        model.retain(|(other, _)| *other != mark);
                        model.push((mark, name));
                    }
                    Step::Audio => {
                        let tag = number as u64;
                        if outbox.audio(Audio { tag, ..audio(&name, CHUNK) }).is_ok() {
                            model.push(('s', name));
                        }
                    }
                    Step::Cut(age) => {
                        let from = (number as u64).saturating_sub(age);
                        let cut = outbox.cut_audio(from);
                        let before = model.len();
                        model.retain(|(kind, name)| *kind != 's' || name.parse::<u64>().unwrap() < from);
                        prop_assert_eq!(cut, CHUNK * (before - model.len()) as u32);
                    }
                    Step::Pong => {
                        outbox.pong(Bytes::from_static(b"?"));
                        prop_assert_eq!(outbox.next(now), encode(b"?", OpCode::Pong));
                    }
                    Step::Send => match outbox.next(now) {
                        Next::Frame(frame) => {
                            let (kind, name) = model.remove(0);
                            prop_assert_eq!(frame[0] & 0x0f, if kind == 's' { 2 } else { 1 });
                            prop_assert_eq!(&frame[2..], name.as_bytes());
                        }
                        _ => prop_assert!(model.is_empty()),
                    },
                }
            }
        }
    }
}
