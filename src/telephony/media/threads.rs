//! The media threads: sockets and clocks of calls. Each call is a task; what it does with a datagram or a tick is its
//! session's.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::MediaEvent;
use super::ports::PortPair;
use super::rtp::LARGEST;
use super::session::{Port, Session, Wire};
use vivavoce_audio::opus::FRAME;

/// Datagrams that are taken before anything else has its turn.
const MOST_AT_ONCE: usize = 32;
/// Ticks that are so late are left out: a burst of old sound helps nobody.
const TOO_LATE: Duration = Duration::from_millis(200);

/// All of them. They end when this is dropped.
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

/// A call: its session, and its end.
#[derive(Debug)]
pub struct Call {
    session: Mutex<Session>,
    /// Looked at with each tick: to be woken for it costs each packet a look.
    over: AtomicBool,
}

impl Call {
    /// A call that is to be started.
    pub fn new(session: Session) -> Arc<Self> {
        Arc::new(Self {
            session: Mutex::new(session),
            over: AtomicBool::new(false),
        })
    }

    /// The session; it is kept for the length of a packet, or of a tick.
    pub fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call, with the next tick.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

impl Threads {
    /// Starts so many; at least one.
    pub fn start(count: usize) -> io::Result<Self> {
        let threads = (0..count.max(1)).map(|_| Thread::start());
        Ok(Self {
            threads: threads.collect::<io::Result<_>>()?,
        })
    }

    /// Starts a call on the thread with the fewest.
    pub fn run(&self, call: Arc<Call>, ports: PortPair, events: mpsc::Sender<MediaEvent>) {
        let calls = |thread: &&Thread| thread.calls.load(Ordering::Relaxed);
        let Some(thread) = self.threads.iter().min_by_key(calls) else {
            return;
        };
        let place = Place::take(&thread.calls, events);
        thread.runtime.spawn(async move {
            if let Err(error) = run(&call, ports).await {
                tracing::error!(%error, "the media ports of a call cannot be read");
            }
            drop(place);
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
            .name("telephone".to_owned())
            .spawn(move || runtime.block_on(stop.notified()))?;
        Ok(thread)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

/// A call's place on its thread. However the call ends, it is left and whoever has the call is told.
struct Place {
    calls: Arc<AtomicUsize>,
    events: mpsc::Sender<MediaEvent>,
}

impl Place {
    fn take(calls: &Arc<AtomicUsize>, events: mpsc::Sender<MediaEvent>) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        Self {
            calls: Arc::clone(calls),
            events,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
        // Where the end was wished nobody reads it.
        let _ = self.events.try_send(MediaEvent::Lost);
    }
}

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
        // A datagram that the kernel does not take is lost, as it may be anywhere on the way.
        let _ = socket.try_send_to(datagram, to);
    }
}

async fn run(call: &Call, ports: PortPair) -> io::Result<()> {
    // The lease ends after the sockets.
    let _lease = ports.lease;
    let sockets = Sockets {
        rtp: UdpSocket::from_std(ports.rtp)?,
        rtcp: UdpSocket::from_std(ports.rtcp)?,
    };
    let mut ticks = interval(FRAME);
    // As much is sent as time passes.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut datagram = [0; LARGEST + 1];
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
                call.session().tick(due.into_std(), &mut &sockets);
            }
            ready = sockets.rtp.readable() => {
                ready?;
                take(call, &sockets.rtp, Port::Rtp, &mut datagram);
            }
            ready = sockets.rtcp.readable() => {
                ready?;
                take(call, &sockets.rtcp, Port::Rtcp, &mut datagram);
            }
        }
    }
    call.session().end(Instant::now().into_std(), &mut &sockets);
    Ok(())
}

/// Takes what there is, within bounds.
fn take(call: &Call, socket: &UdpSocket, port: Port, datagram: &mut [u8]) {
    for _ in 0..MOST_AT_ONCE {
        match socket.try_recv_from(datagram) {
            Ok((length, from)) => {
                let packet = datagram.get(..length).unwrap_or_default();
                let now = Instant::now().into_std();
                call.session().receive(port, packet, from, now);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // Somebody's port was closed (ICMP): it says nothing about the next datagram.
            Err(_) => {}
        }
    }
}
