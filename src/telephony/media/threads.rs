//! The media threads: sockets and timers of calls. Each call is a task; its session decides what to do with datagrams and
//! ticks.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::ports::PortPair;
use super::relay::Passing;
use super::rtp::LARGEST;
use super::session::{Port, Session, Wire};
use super::{Codec, MediaEvent};
use vivavoce_audio::opus::FRAME;
use vivavoce_seams::rooms::link::{Relay, Relayed};

/// Datagrams that are read from a socket before other tasks get their turn.
const MOST_AT_ONCE: usize = 32;
/// Ticks that are later than this are skipped: a burst of old audio helps nobody.
const TOO_LATE: Duration = Duration::from_millis(200);
/// Relayed packets that wait for a session that is busy.
const MOST_WAITING: usize = 16;

/// The threads; they end when this is dropped.
#[derive(Debug)]
pub struct Threads {
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    calls: Arc<AtomicUsize>,
    stop: Arc<Notify>,
}

/// A call on a media thread.
#[derive(Debug)]
pub struct Call {
    session: Mutex<Session>,
    /// Polled at each tick, because a notification would cost every packet.
    over: AtomicBool,
    /// Those of its task, while it lasts: another call's thread sends what it relays.
    sockets: OnceLock<Weak<Sockets>>,
    /// The codec in which it takes what is relayed, as of the last tick; 0 for none.
    takes: AtomicU8,
    /// Relayed packets that came while the session was busy, and whether no more come.
    waiting: Mutex<VecDeque<Passing>>,
    stopped: AtomicBool,
}

impl Call {
    /// A call that is not started yet.
    pub fn new(session: Session) -> Arc<Self> {
        Arc::new(Self {
            session: Mutex::new(session),
            over: AtomicBool::new(false),
            sockets: OnceLock::new(),
            takes: AtomicU8::new(0),
            waiting: Mutex::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Locks the session. The media thread holds the lock for one packet or one tick.
    pub fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call at the next tick.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Sends the relayed packets that have waited.
    fn send_waiting(&self, session: &mut Session, now: std::time::Instant, wire: &mut dyn Wire) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for packet in waiting.drain(..) {
            if let Some(packet) = packet.relayed() {
                session.relay(&packet, now, wire);
            }
        }
    }

    fn tick(&self, now: std::time::Instant, mut wire: &Sockets) {
        let mut session = self.session();
        self.send_waiting(&mut session, now, &mut wire);
        if self.stopped.swap(false, Ordering::AcqRel) {
            session.stop_relayed();
        }
        session.tick(now, &mut wire);
        let takes = session.takes_relayed().map_or(0, number);
        self.takes.store(takes, Ordering::Release);
    }
}

/// A codec in an atomic, where 0 is none.
const fn number(codec: Codec) -> u8 {
    codec as u8 + 1
}

/// Called on the thread of the other call, which has let go of its own session: neither ever waits for the other's.
impl Relay for Call {
    fn takes(&self, encoding: &str) -> bool {
        let takes = self.takes.load(Ordering::Acquire);
        Codec::parse(encoding).is_some_and(|codec| number(codec) == takes)
    }

    fn relay(&self, packet: &Relayed<'_>) -> bool {
        let Some(sockets) = self.sockets.get().and_then(Weak::upgrade) else {
            return false;
        };
        if self.over.load(Ordering::Acquire) {
            return false;
        }
        let mut session = match self.session.try_lock() {
            Ok(session) => session,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Sent at its next tick, or before the next packet.
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let copy = Codec::parse(packet.encoding).map(|codec| Passing::copy(packet, codec));
                if waiting.len() < MOST_WAITING {
                    waiting.extend(copy);
                }
                return true;
            }
        };
        let (now, mut wire) = (Instant::now().into_std(), &*sockets);
        self.send_waiting(&mut session, now, &mut wire);
        session.relay(packet, now, &mut wire)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}

impl Threads {
    /// Starts `count` threads, at least one.
    pub fn start(count: usize) -> io::Result<Self> {
        let threads = (0..count.max(1)).map(|_| Thread::start());
        Ok(Self {
            threads: threads.collect::<io::Result<_>>()?,
        })
    }

    /// Starts a call on the thread with the fewest calls.
    pub fn run(&self, call: Arc<Call>, ports: PortPair, events: mpsc::Sender<MediaEvent>) {
        let calls = |thread: &&Thread| thread.calls.load(Ordering::Relaxed);
        let Some(thread) = self.threads.iter().min_by_key(calls) else {
            return;
        };
        let assignment = Assignment::take(&thread.calls, events);
        thread.runtime.spawn(async move {
            if let Err(error) = run(&call, ports).await {
                tracing::error!(%error, "cannot read the media ports of a call");
            }
            drop(assignment);
        });
    }
}

impl Thread {
    fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = Self {
            runtime: runtime.handle().clone(),
            calls: Arc::default(),
            stop: Arc::default(),
        };
        let stop = Arc::clone(&thread.stop);
        std::thread::Builder::new()
            .name("call-media".to_owned())
            .spawn(move || runtime.block_on(stop.notified()))?;
        Ok(thread)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

/// Counts a call on its thread. However the task ends, the count is corrected and the call's owner learns of it.
struct Assignment {
    calls: Arc<AtomicUsize>,
    events: mpsc::Sender<MediaEvent>,
}

impl Assignment {
    fn take(calls: &Arc<AtomicUsize>, events: mpsc::Sender<MediaEvent>) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        Self {
            calls: Arc::clone(calls),
            events,
        }
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
        // After a normal end nobody reads it.
        let _ = self.events.try_send(MediaEvent::Lost);
    }
}

#[derive(Debug)]
struct Sockets {
    rtp: UdpSocket,
    rtcp: UdpSocket,
}

impl Wire for &Sockets {
    fn send(&mut self, port: Port, to: SocketAddr, datagram: &[u8]) {
        let socket = match port {
            Port::Rtp => &self.rtp,
            Port::Rtcp => &self.rtcp,
        };
        // A datagram that the kernel does not accept is lost, as it may be anywhere on the way.
        let _ = socket.try_send_to(datagram, to);
    }
}

async fn run(call: &Call, ports: PortPair) -> io::Result<()> {
    // Dropped after the sockets.
    let _lease = ports.lease;
    let sockets = Arc::new(Sockets {
        rtp: UdpSocket::from_std(ports.rtp)?,
        rtcp: UdpSocket::from_std(ports.rtcp)?,
    });
    // A call has one task.
    let _ = call.sockets.set(Arc::downgrade(&sockets));
    let mut ticks = interval(FRAME);
    // As many packets are sent as time passes.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut datagram = [0; LARGEST + 1];
    let mut passing = Passing::default();
    loop {
        tokio::select! {
            biased;
            due = ticks.tick() => {
                if call.over.load(Ordering::Acquire) {
                    break;
                }
                if due.elapsed() > TOO_LATE {
                    ticks.reset_immediately();
                    continue;
                }
                call.tick(due.into_std(), &sockets);
            }
            ready = sockets.rtp.readable() => {
                ready?;
                take(call, &sockets, Port::Rtp, &mut datagram, &mut passing);
            }
            ready = sockets.rtcp.readable() => {
                ready?;
                take(call, &sockets, Port::Rtcp, &mut datagram, &mut passing);
            }
        }
    }
    call.session()
        .end(Instant::now().into_std(), &mut &*sockets);
    Ok(())
}

/// Reads a bounded number of datagrams.
fn take(
    call: &Call,
    mut sockets: &Sockets,
    port: Port,
    datagram: &mut [u8],
    passing: &mut Passing,
) {
    let socket = match port {
        Port::Rtp => &sockets.rtp,
        Port::Rtcp => &sockets.rtcp,
    };
    for _ in 0..MOST_AT_ONCE {
        match socket.try_recv_from(datagram) {
            Ok((length, from)) => {
                let packet = datagram.get(..length).unwrap_or_default();
                let now = Instant::now().into_std();
                let mut session = call.session();
                session.receive(port, packet, from, now, &mut sockets);
                let passes = session.take_passing(passing);
                drop(session);
                if passes && !passing.send() {
                    call.session().take_back(passing, now);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // An ICMP error about an earlier datagram: it says nothing about the next one.
            Err(_) => {}
        }
    }
}
