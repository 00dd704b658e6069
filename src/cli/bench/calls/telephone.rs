//! A telephone that calls the server under test: our own SIP user agent for signalling, a UDP socket with PCMU for
//! media. It alternates between speech and pauses, and counts what it receives.

use std::f64::consts::TAU;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval_at, timeout};

use super::super::participant::{PACKET, Phase};
use crate::audio::g711::Law;
use crate::audio::pcm::level_dbov;
use crate::telephony::agent::{
    Agent, Failure, InvalidUri, Leg, LegEvent, Outbound, Protocol, TlsSettings, Unacknowledged,
};
use crate::telephony::media::{rtcp, rtp};

/// Packets of silence and then of a voice: 2 s of each.
const CYCLE_PACKETS: usize = 200;
const ONSET: usize = CYCLE_PACKETS / 2;
const RATE_HZ: f64 = 8_000.0;
const PACKET_SAMPLES: usize = 160;
const VOICE_HZ: f64 = 125.0;
/// PCMU (RFC 3551 table 4).
const PAYLOAD_TYPE: u8 = 0;
/// What is louder is a voice.
const VOICE_DBOV: u8 = 50;
/// How long a call may take to be answered.
const PATIENCE: Duration = Duration::from_secs(30);
/// From the end of the measurement until the server has reported how it heard the last packets.
const REPORTING: Duration = Duration::from_secs(rtcp::INTERVAL_S);

/// Why a telephone did not call, or no longer does.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error("its number {0}")]
    Number(#[from] InvalidUri),
    #[error("it was refused: {0:?}")]
    Refused(Failure),
    #[error("it was not answered in time")]
    Unanswered,
    #[error("the answer does not say where sound goes")]
    NoSound,
    #[error("it ended too early")]
    Ended,
}

/// The packets of a cycle.
#[derive(Debug, Clone)]
pub(super) struct Voice(Arc<[Vec<u8>]>);

impl Voice {
    /// A voice after silence, or all the time.
    pub(super) fn new(always: bool) -> Self {
        let packet = |index: usize| {
            let places = index * PACKET_SAMPLES..(index + 1) * PACKET_SAMPLES;
            let speaks = always || index >= ONSET;
            let sound: Vec<i16> = places
                .map(|at| if speaks { sample(at) } else { 0 })
                .collect();
            let mut codes = Vec::with_capacity(PACKET_SAMPLES);
            Law::Mu.compress(&sound, &mut codes);
            codes
        };
        Self((0..CYCLE_PACKETS).map(packet).collect())
    }
}

/// A sample of something with a voice in it.
fn sample(at: usize) -> i16 {
    let time = at as f64 / RATE_HZ;
    let harmonics = (1..20).map(|k| (TAU * VOICE_HZ * f64::from(k) * time).sin() / f64::from(k));
    (6_000.0 * harmonics.sum::<f64>()) as i16
}

/// What a telephone has counted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Packets sent and received while it was measured.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Of those received, the ones in which somebody speaks.
    pub(super) voiced: u64,
    /// How much later than its place after the first one a packet was.
    pub(super) late_ms: Vec<f32>,
    /// Packets that the server missed, by its own last report.
    pub(super) lost_there: u64,
}

impl Counted {
    pub(super) fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.voiced += other.voiced;
        self.late_ms.extend(other.late_ms);
        self.lost_there += other.lost_there;
    }
}

/// Where telephones call from, and whom.
pub(super) struct Line {
    agent: Agent,
    server: SocketAddr,
    voice: Voice,
}

impl Line {
    pub(super) fn new(server: SocketAddr, voice: Voice) -> Self {
        // Nobody calls back.
        let (agent, _) = Agent::start(
            Vec::new(),
            Unacknowledged::default(),
            TlsSettings::default(),
            None,
        );
        Self {
            agent,
            server,
            voice,
        }
    }

    /// Calls; gives the time until it was answered, and the call. What it says begins so many packets into the cycle.
    pub(super) async fn call(
        &self,
        number: &str,
        own: &str,
        place: usize,
        phase: watch::Receiver<Phase>,
    ) -> Result<(Duration, Call), CallError> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let offer = offer(socket.local_addr()?.port());
        let host = self.server.to_string();
        let began = Instant::now();
        let reached = self.agent.reach(Protocol::Udp, self.server, &host).await?;
        let outbound = Outbound {
            protocol: Protocol::Udp,
            remote: self.server,
            host,
            to: number.to_owned(),
            from: own.to_owned(),
            from_domain: None,
            proxy: None,
            identity: crate::providers::rooms::telephone::CallerIdentity::Untold,
            hides_caller: false,
            display_name: None,
            credentials: None,
            headers: Vec::new(),
            private: true,
        };
        let mut leg = self.agent.call(reached, outbound, offer)?;
        let answer = timeout(PATIENCE, answered(&mut leg)).await;
        let answer = answer.map_err(|_| CallError::Unanswered)??;
        let took = began.elapsed();
        let port = media_port(&answer).ok_or(CallError::NoSound)?;
        socket
            .connect((IpAddr::from(Ipv4Addr::LOCALHOST), port))
            .await?;
        let mut ticks = interval_at(tokio::time::Instant::now(), PACKET);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let call = Call {
            leg,
            socket,
            ticks,
            voice: self.voice.clone(),
            place,
            ssrc: fastrand::u32(1..),
            packets: 0,
            first: None,
            phase,
            counted: Counted::default(),
        };
        Ok((took, call))
    }
}

async fn answered(leg: &mut Leg) -> Result<String, CallError> {
    loop {
        match leg.next().await {
            Some(LegEvent::Answered { sdp, .. }) => return sdp.ok_or(CallError::NoSound),
            Some(LegEvent::Failed(failure)) => return Err(CallError::Refused(failure)),
            Some(_) => {}
            None => return Err(CallError::Ended),
        }
    }
}

fn offer(port: u16) -> String {
    format!(
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n\
         m=audio {port} RTP/AVP {PAYLOAD_TYPE}\r\na=rtpmap:{PAYLOAD_TYPE} PCMU/8000\r\na=ptime:20\r\na=rtcp-mux\r\n"
    )
}

fn media_port(answer: &str) -> Option<u16> {
    let section = answer
        .lines()
        .find_map(|line| line.strip_prefix("m=audio "))?;
    let port = section.split(' ').next()?.parse().ok()?;
    (port > 0).then_some(port)
}

/// A telephone in a call.
pub(super) struct Call {
    leg: Leg,
    socket: UdpSocket,
    ticks: Interval,
    voice: Voice,
    place: usize,
    ssrc: u32,
    packets: u32,
    /// When the first packet that counts came, and its place on the clock.
    first: Option<(Instant, u32)>,
    phase: watch::Receiver<Phase>,
    counted: Counted,
}

impl Call {
    /// Talks until the measurement is over and the server has said how it heard it; then hangs up.
    pub(super) async fn run(mut self) -> Result<Counted, CallError> {
        let mut buffer = [0; rtp::LARGEST];
        let mut packet = Vec::with_capacity(rtp::HEADER + PACKET_SAMPLES);
        let mut over = None;
        while over.is_none_or(|over: Instant| over.elapsed() < REPORTING) {
            tokio::select! {
                _ = self.ticks.tick() => {
                    self.say(&mut packet).await?;
                    if over.is_none() && *self.phase.borrow() == Phase::Over {
                        over = Some(Instant::now());
                    }
                }
                length = self.socket.recv(&mut buffer) => {
                    self.hear(buffer.get(..length?).unwrap_or_default());
                }
                event = self.leg.next() => match event {
                    Some(LegEvent::Ended) | None => return Err(CallError::Ended),
                    Some(_) => {}
                },
            }
        }
        self.leg.hang_up().await;
        Ok(self.counted)
    }

    async fn say(&mut self, packet: &mut Vec<u8>) -> io::Result<()> {
        let header = rtp::Header {
            marker: self.packets == 0,
            payload_type: PAYLOAD_TYPE,
            sequence: (self.packets & 0xFFFF) as u16,
            timestamp: self.packets.wrapping_mul(PACKET_SAMPLES as u32),
            ssrc: self.ssrc,
        };
        packet.clear();
        header.write(packet);
        let sound = self.voice.0.get(self.place % CYCLE_PACKETS);
        packet.extend(sound.into_iter().flatten());
        self.socket.send(packet).await?;
        self.packets = self.packets.wrapping_add(1);
        self.place += 1;
        self.counted.sent += u64::from(self.is_measured());
        Ok(())
    }

    fn hear(&mut self, datagram: &[u8]) {
        if rtp::is_rtcp(datagram) {
            let block = rtcp::parse(datagram, self.ssrc).and_then(|reported| reported.ours);
            if let Some(block) = block {
                self.counted.lost_there = u64::try_from(block.lost).unwrap_or(0);
            }
            return;
        }
        let Some((header, payload)) = rtp::Header::parse(datagram) else {
            return;
        };
        if !self.is_measured() {
            return;
        }
        let now = Instant::now();
        let (began, start) = *self.first.get_or_insert((now, header.timestamp));
        let place = f64::from(header.timestamp.wrapping_sub(start)) / RATE_HZ;
        let late = now.duration_since(began).as_secs_f64() - place;
        let mut sound = Vec::with_capacity(PACKET_SAMPLES);
        Law::Mu.expand(datagram.get(payload).unwrap_or_default(), &mut sound);
        let counted = &mut self.counted;
        counted.received += 1;
        counted.voiced += u64::from(level_dbov(&sound) < VOICE_DBOV);
        counted.late_ms.push((late.max(0.0) * 1e3) as f32);
    }

    fn is_measured(&self) -> bool {
        *self.phase.borrow() == Phase::Measured
    }
}
