//! A call by a carrier's socket. Messages of the carrier come by plain calls and go to the session of the call's agent on the
//! same thread; sound of the session goes back in messages of the size that the carrier wants. Nothing here waits for anybody.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use super::room::{self, CallInRoom, CallRooms};
use vivavoce_actors::session::protocol::CarrierOfCall;
use vivavoce_agents::{AgentLines, Line, LineCall, LineSession};
use vivavoce_audio::g711::Law;
use vivavoce_audio::linear16;
use vivavoce_auth::Access;
use vivavoce_carriers::{
    Account, Carrier, Codec, Encoding, Event, Format, Frame, InputPace, MAX_MESSAGE_BYTES, Misfit,
    Start,
};
use vivavoce_quotas::{Permit, shared_limit};
use vivavoce_socket::{Audio, Closed, ClosedBy, SocketHandler, SocketWriter};
use vivavoce_telemetry::metrics;

/// How long the carrier may take to play what was sent before a hang-up.
const PLAYOUT: Duration = Duration::from_secs(2);
/// The same, of a carrier that does not tell when it has: more than sessions are ahead.
const LEAD: Duration = Duration::from_millis(400);
/// How long a carrier may take to close a call that was hung up by a message.
const CLOSING: Duration = Duration::from_secs(5);
/// After this pause what waits for a full message is sent without.
const PAUSE: Duration = Duration::from_millis(100);
/// The mark before a hang-up.
const LAST: &str = "hangup";

/// What is known of a call before its first message.
pub struct Incoming {
    pub carrier: &'static dyn Carrier,
    pub account: Option<Account>,
    pub access: Access,
    pub agents: AgentLines,
    pub rooms: CallRooms,
    /// How long the carrier may take to say which call it is.
    pub config_timeout: Duration,
    pub session: Permit,
    pub unconfigured: shared_limit::Permit,
    pub work: TaskTrackerToken,
}

/// The handler of a carrier's socket.
pub struct CarrierSocket {
    wire: Rc<Wire>,
    /// Until the call begins, with what closes the socket if it does not.
    incoming: Option<(Incoming, AbortOnDropHandle<()>)>,
    call: Option<Rc<Call>>,
    pace: InputPace,
    /// Messages and sound beyond what a carrier may send.
    dropped: u64,
}

/// The way to the carrier.
struct Wire {
    kind: &'static str,
    codec: RefCell<Box<dyn Codec>>,
    writer: SocketWriter,
}

/// The caller's side of a call.
struct Call {
    wire: Rc<Wire>,
    told: LineCall,
    format: Format,
    hearer: RefCell<Option<Hearer>>,
    /// Samples that wait for a message's worth of them.
    waiting: RefCell<BytesMut>,
    /// So much sound fills a message.
    packet: Duration,
    /// A message of less is not taken.
    pads: bool,
    /// There is sound that does not fill a message.
    partial: Notify,
    /// The carrier has played everything, or has gone.
    played: Notify,
    hanging_up: Cell<bool>,
    over: CancellationToken,
    cause: Cell<&'static str>,
}

/// Where a caller is heard.
#[derive(Clone)]
enum Hearer {
    Session(Rc<LineSession>),
    Room(Rc<CallInRoom>),
}

impl Hearer {
    fn sound(&self, sound: Bytes) {
        match self {
            Self::Session(session) => session.sound(sound),
            Self::Room(room) => room.sound(&sound),
        }
    }

    fn pressed(&self, key: char) {
        match self {
            Self::Session(session) => session.pressed(key),
            Self::Room(room) => room.pressed(key),
        }
    }
}

impl CarrierSocket {
    pub fn new(incoming: Incoming, codec: Box<dyn Codec>, writer: SocketWriter) -> Self {
        let (patience, late) = (incoming.config_timeout, writer.clone());
        let late = tokio::task::spawn_local(async move {
            sleep(patience).await;
            late.close(4408, "no call came in time");
        });
        let wire = Wire {
            kind: incoming.carrier.kind(),
            codec: RefCell::new(codec),
            writer,
        };
        Self {
            wire: Rc::new(wire),
            incoming: Some((incoming, AbortOnDropHandle::new(late))),
            call: None,
            pace: InputPace::new(Instant::now()),
            dropped: 0,
        }
    }

    /// The socket is closed for what the carrier has sent.
    fn refuse(&self, code: u16, problem: &str) {
        self.end("failed");
        self.wire.refuse(code, problem);
    }

    fn end(&self, cause: &'static str) {
        if let Some(call) = &self.call {
            call.end(cause);
        }
    }

    fn hearer(&self) -> Option<Hearer> {
        self.call.as_ref()?.hearer.borrow().clone()
    }

    fn read(&mut self, read: impl FnOnce(&mut dyn Codec) -> Result<Option<Event>, Misfit>) {
        if !self.pace.message(Instant::now()) {
            return self.drop_one();
        }
        let event = read(&mut **self.wire.codec.borrow_mut());
        match event {
            Ok(Some(event)) => self.take(event),
            Ok(None) => {}
            Err(misfit) => self.refuse(1007, &misfit.to_string()),
        }
    }

    fn drop_one(&mut self) {
        self.dropped += 1;
        metrics::carrier_message_dropped();
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Sound(sound) => {
                let Some(call) = &self.call else {
                    return self.refuse(1007, "sound comes before the call");
                };
                let duration = call.format.duration(sound.len());
                if !self.pace.sound(duration, Instant::now()) {
                    return self.drop_one();
                }
                if let Some(hearer) = self.hearer() {
                    hearer.sound(sound);
                }
            }
            Event::Pressed(key) => {
                if let Some(hearer) = self.hearer() {
                    hearer.pressed(key);
                }
            }
            Event::Mark(name) => {
                if let Some(call) = self.call.as_ref().filter(|_| name == LAST) {
                    call.played.notify_one();
                }
            }
            Event::Start(start) => self.begin(*start),
            Event::Reply(frame) => self.wire.send(frame),
            Event::Opened(frame, start) => {
                self.wire.send(frame);
                self.begin(*start);
            }
            Event::Stop => self.stop(),
            Event::Closed(frame) => {
                self.wire.send(frame);
                self.stop();
            }
        }
    }

    fn stop(&self) {
        self.end("remote");
        self.wire.writer.close(1000, "the call is over");
    }

    fn begin(&mut self, start: Start) {
        let Some((incoming, _late)) = self.incoming.take() else {
            return self.refuse(1007, "a second call comes by the same socket");
        };
        let Incoming {
            account,
            access,
            agents,
            rooms,
            carrier,
            session,
            unconfigured,
            work,
            ..
        } = incoming;
        let to = match &account {
            Some(account) => account.called(start.to),
            None => Some(start.to),
        };
        let Some(to) = to else {
            return self.refuse(1008, "the called number is none of the account's");
        };
        let call_id = if start.call_id.is_empty() {
            Uuid::new_v4().to_string()
        } else {
            start.call_id
        };
        let told = LineCall {
            participant_identity: format!("sip_{}", start.from.as_deref().unwrap_or(&call_id)),
            from: start.from,
            to,
            carrier: CarrierOfCall {
                kind: self.wire.kind.to_owned(),
                call_id,
                parameters: start.parameters,
            },
            encoding: start.format.encoding.name(),
            rate: start.format.rate,
            packet: carrier.packet(),
        };
        let room = account.as_ref().and_then(|account| {
            let (from, to) = (told.from.as_deref(), told.to.as_deref());
            account.room(&told.carrier.call_id, from, to)
        });
        let call = Rc::new(Call {
            wire: Rc::clone(&self.wire),
            told,
            format: start.format,
            hearer: RefCell::default(),
            waiting: RefCell::default(),
            packet: carrier.packet(),
            pads: carrier.pads(),
            partial: Notify::new(),
            played: Notify::new(),
            hanging_up: Cell::new(false),
            over: CancellationToken::new(),
            cause: Cell::new("failed"),
        });
        self.call = Some(Rc::clone(&call));
        drop(unconfigured);
        tokio::task::spawn_local(async move {
            let _work = work;
            let filling = tokio::task::spawn_local(Rc::clone(&call).fill());
            let _filling = AbortOnDropHandle::new(filling);
            match room {
                Some(room) => {
                    call.join(&rooms, &room, &access).await;
                    drop(session);
                }
                None => {
                    // The session of an agent takes a place of its own.
                    drop(session);
                    call.be_answered(&agents, access).await;
                }
            }
            call.hang_up_now().await;
        });
    }
}

impl SocketHandler for CarrierSocket {
    fn text(&mut self, text: ByteString) {
        if text.len() > MAX_MESSAGE_BYTES {
            return self.refuse(1009, "messages of a carrier have 64 KiB at most");
        }
        self.read(|codec| codec.text(&text));
    }

    fn binary(&mut self, bytes: Bytes) {
        if bytes.len() > MAX_MESSAGE_BYTES {
            return self.refuse(1009, "messages of a carrier have 64 KiB at most");
        }
        self.read(|codec| codec.binary(bytes));
    }

    fn closed(self, closed: Closed) {
        let cause = match closed.by {
            ClosedBy::Client => "remote",
            ClosedBy::Edge if closed.code == 4409 => "media_timeout",
            ClosedBy::Edge | ClosedBy::Transport => "failed",
            ClosedBy::Server => "local",
        };
        self.end(cause);
        let cause = self.call.as_ref().map(|call| call.cause.get());
        tracing::info!(
            carrier = self.wire.kind,
            code = closed.code,
            cause,
            dropped = self.dropped,
            "a carrier's socket has closed"
        );
    }
}

impl Drop for CarrierSocket {
    /// Also without `closed`.
    fn drop(&mut self) {
        self.end("failed");
    }
}

impl Wire {
    fn refuse(&self, code: u16, problem: &str) {
        let carrier = self.kind;
        tracing::warn!(carrier, problem, "a carrier's socket is refused");
        self.writer.close(code, problem);
    }

    /// A message that must arrive.
    fn send(&self, frame: Frame) {
        match frame {
            Frame::Text(text) => self.writer.event(text),
            frame @ Frame::Binary(_) => self.send_sound(frame, Duration::ZERO),
        }
    }

    /// Sound, which is dropped where the carrier does not read.
    fn send_sound(&self, frame: Frame, duration: Duration) {
        let sent = match frame {
            Frame::Text(text) => self.writer.message(text),
            Frame::Binary(bytes) => {
                let audio = Audio {
                    tag: 1,
                    duration,
                    bytes,
                };
                self.writer.audio(audio).is_ok()
            }
        };
        if !sent {
            metrics::carrier_message_dropped();
        }
    }
}

impl Call {
    /// Is in a room until that, or the call, has ended.
    async fn join(&self, rooms: &CallRooms, room: &str, access: &Access) {
        let connect = |room: Option<Rc<CallInRoom>>| {
            *self.hearer.borrow_mut() = room.map(Hearer::Room);
        };
        let joined = room::serve(self, self.format, (rooms, room), access, connect).await;
        if let Err(error) = joined {
            let carrier = self.wire.kind;
            tracing::warn!(carrier, error, "a call cannot join its room");
        }
    }

    /// Is an agent's until the agent, or the call, has ended.
    async fn be_answered(self: &Rc<Self>, agents: &AgentLines, access: Access) {
        let agent = agents.agent_of(self.told.to.as_deref(), access.tenant());
        if let Some(agent) = agent {
            agent.serve(Rc::clone(self) as Rc<dyn Line>, access).await;
        } else {
            let carrier = self.wire.kind;
            tracing::warn!(
                carrier,
                "a call is hung up: there is neither an agent for it (agent.url) nor a room (room, in carriers.accounts_json)"
            );
        }
    }

    /// Sends the first so many bytes of what waits, as samples.
    fn send_waiting(&self, bytes: usize) {
        let samples = {
            let mut waiting = self.waiting.borrow_mut();
            let bytes = bytes.min(waiting.len());
            waiting.split_to(bytes).freeze()
        };
        let mut samples = linear16::samples(&samples);
        if self.pads {
            samples.resize(self.packet_bytes() / 2, 0);
        }
        let law = match self.format.encoding {
            Encoding::Linear16 => None,
            Encoding::Mulaw => Some(Law::Mu),
            Encoding::Alaw => Some(Law::A),
        };
        let sound = match law {
            None => linear16::encode(&samples),
            Some(law) => {
                let mut codes = Vec::with_capacity(samples.len());
                law.compress(&samples, &mut codes);
                Bytes::from(codes)
            }
        };
        let frame = self.wire.codec.borrow_mut().sound(sound);
        self.wire.send_sound(frame, self.packet);
    }

    /// Bytes of samples that fill a message.
    fn packet_bytes(&self) -> usize {
        let samples = Format {
            encoding: Encoding::Linear16,
            ..self.format
        };
        samples.bytes(self.packet)
    }

    /// Sends sound that does not fill a message once nothing more comes, for as long as the call lasts.
    async fn fill(self: Rc<Self>) {
        loop {
            self.partial.notified().await;
            // Silence in the middle of a word is heard, and what was sent ahead lasts for another message at least.
            let pause = if self.pads {
                PAUSE.max(self.packet)
            } else {
                PAUSE
            };
            while timeout(pause, self.partial.notified()).await.is_ok() {}
            if !self.waiting.borrow().is_empty() {
                self.send_waiting(usize::MAX);
            }
        }
    }

    /// The call is over; only the first cause counts.
    fn end(&self, cause: &'static str) {
        if !self.over.is_cancelled() {
            self.cause.set(cause);
            self.over.cancel();
        }
        self.played.notify_one();
    }

    /// Ends the call once what was sent has been played.
    async fn hang_up_now(&self) {
        if self.over.is_cancelled() || self.hanging_up.replace(true) {
            return;
        }
        if !self.waiting.borrow().is_empty() {
            self.send_waiting(usize::MAX);
        }
        let mark = self.wire.codec.borrow_mut().mark(LAST);
        if let Some(mark) = mark {
            self.wire.send(mark);
            // Whoever does not answer in time has had it.
            let _played = timeout(PLAYOUT, self.played.notified()).await;
        } else {
            sleep(LEAD).await;
        }
        let bye = self.wire.codec.borrow_mut().hang_up();
        let waits = bye.is_some();
        if let Some(bye) = bye {
            self.wire.send(bye);
        }
        self.end("local");
        if waits {
            // It closes the socket itself, which is told once more.
            self.played.notified().await;
            let _closed = timeout(CLOSING, self.played.notified()).await;
        }
        self.wire.writer.close(1000, "the call was hung up");
    }
}

impl Line for Call {
    fn call(&self) -> &LineCall {
        &self.told
    }

    fn connect(&self, session: Option<Rc<LineSession>>) {
        *self.hearer.borrow_mut() = session.map(Hearer::Session);
    }

    fn play(&self, sound: Bytes) {
        if self.over.is_cancelled() || self.hanging_up.get() {
            return;
        }
        let full = self.packet_bytes();
        self.waiting.borrow_mut().extend_from_slice(&sound);
        while self.waiting.borrow().len() >= full {
            self.send_waiting(full);
        }
        if !self.waiting.borrow().is_empty() {
            self.partial.notify_one();
        }
    }

    fn cut(&self) {
        self.waiting.borrow_mut().clear();
        self.wire.writer.cut_audio(0);
        let clear = self.wire.codec.borrow_mut().clear();
        if let Some(clear) = clear {
            self.wire.send(clear);
        }
    }

    fn press(&self, digits: &str) -> bool {
        let pressed = self.wire.codec.borrow_mut().press(digits);
        pressed.map(|frame| self.wire.send(frame)).is_some()
    }

    fn hang_up(self: Rc<Self>) {
        tokio::task::spawn_local(async move { self.hang_up_now().await });
    }

    fn over(&self) -> &CancellationToken {
        &self.over
    }

    fn cause(&self) -> &'static str {
        self.cause.get()
    }
}
