//! What the SFU's peer connections and those of our own client have in common: str0m's `Rtc`, from whose panics nobody else
//! suffers, and LiveKit's two data channels with the queue in front of the reliable one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bytes::Bytes;
use str0m::change::SdpApi;
use str0m::channel::{ChannelConfig, ChannelId, Reliability};
use str0m::format::CodecConfig;
use str0m::net::{TcpType, Transmit};
use str0m::{Candidate, Event, Input, Output, PacerReason, Reason, Rtc, RtcConfig};

use super::room::Way;

/// The labels of the data channels that clients know.
const RELIABLE: &str = "_reliable";
const LOSSY: &str = "_lossy";
/// Queued messages go out when so little is buffered below.
const LOW_BUFFER_BYTES: usize = 32 << 10;

/// A connection has failed inside, and is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer connection failed inside")]
pub struct Broken;

/// What a connection has next.
pub enum Polled<A> {
    /// To be sent.
    Transmit(Transmit),
    /// To be handled.
    Arrival(A),
    /// To be polled again then, unless something comes before.
    Wait(Instant),
}

/// Which channel a message travels on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In order, again until it arrives.
    Reliable,
    /// Once.
    Lossy,
}

/// Where a server is reached by media.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    pub udp: Vec<SocketAddr>,
    /// It accepts connections there (RFC 6544).
    pub tcp: Vec<SocketAddr>,
}

impl Addresses {
    /// Those by which somebody is reached who wants one way only. What is relayed to the server comes to its UDP port.
    pub(super) fn only(&self, way: Option<Way>) -> Self {
        match way {
            None | Some(Way::Relayed) => self.clone(),
            Some(Way::Tcp) => Self {
                udp: Vec::new(),
                tcp: self.tcp.clone(),
            },
        }
    }

    fn candidates(&self) -> impl Iterator<Item = Candidate> {
        let udp = self
            .udp
            .iter()
            .map(|address| (address, Candidate::builder().udp().host(*address).build()));
        let tcp = self.tcp.iter().map(|address| {
            let candidate = Candidate::builder().tcp().host(*address);
            (address, candidate.tcptype(TcpType::Passive).build())
        });
        udp.chain(tcp).filter_map(|(address, candidate)| match candidate {
            Ok(candidate) => Some(candidate),
            Err(error) => {
                tracing::warn!(%address, %error, "this address cannot be offered to the other side");
                None
            }
        })
    }
}

/// A peer connection. str0m asserts a few things that a hostile peer might reach: one that panics is given up alone.
pub struct Connection {
    rtc: Rtc,
    broken: bool,
    closed_told: bool,
    reliable: Option<ChannelId>,
    lossy: Option<ChannelId>,
    /// What waits for its turn on the reliable channel. Whoever sends sees to it that it does not grow for ever.
    backlog: VecDeque<Bytes>,
    backlog_bytes: usize,
}

impl Connection {
    /// A connection that is reachable at these addresses.
    pub fn new(config: RtcConfig, addresses: &Addresses, now: Instant) -> Self {
        let mut rtc = config.build(now);
        for candidate in addresses.candidates() {
            rtc.add_local_candidate(candidate);
        }
        Self {
            rtc,
            broken: false,
            closed_told: false,
            reliable: None,
            lossy: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
        }
    }

    /// Lets str0m do something.
    pub fn guarded<T>(&mut self, work: impl FnOnce(&mut Rtc) -> T) -> Result<T, Broken> {
        if self.broken {
            return Err(Broken);
        }
        let rtc = &mut self.rtc;
        catch_unwind(AssertUnwindSafe(|| work(rtc))).map_err(|_| {
            self.broken = true;
            tracing::error!("a peer connection panicked and was given up");
            Broken
        })
    }

    /// Whether ICE and DTLS are up.
    pub fn is_connected(&self) -> bool {
        !self.broken && self.rtc.is_connected()
    }

    /// Whether it was last asked to be told the time for its pacer or its estimator of bandwidth, with no packet to send.
    pub fn waits_for_bandwidth(&self) -> bool {
        matches!(
            self.rtc.last_timeout_reason(),
            Reason::Pacer(PacerReason::Handle)
                | Reason::BweDelayControl
                | Reason::BweProbeControl
                | Reason::BweProbeEstimator
        )
    }

    /// Whether it was given up because of a fault inside.
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// The codecs that it knows.
    pub fn codecs(&self) -> &CodecConfig {
        self.rtc.codec_config()
    }

    /// Whether a datagram is for this connection.
    pub fn accepts(&self, input: &Input<'_>) -> bool {
        let accepts = AssertUnwindSafe(|| self.rtc.accepts(input));
        !self.broken && catch_unwind(accepts).unwrap_or(false)
    }

    /// Gives it a datagram or the time.
    pub fn handle(&mut self, input: Input<'_>) {
        if let Ok(Err(error)) = self.guarded(|rtc| rtc.handle_input(input)) {
            tracing::debug!(%error, "a peer connection refused its input");
            self.rtc.disconnect();
        }
    }

    /// Says goodbye to the other side; what is left to send comes out of [`Self::poll`].
    pub fn close(&mut self) {
        let _ = self.guarded(Rtc::close);
    }

    /// The next thing it has. That it is closed is told once, whoever has closed it.
    pub fn poll(&mut self, now: Instant) -> Output {
        loop {
            if self.broken || !self.rtc.is_alive() {
                if self.closed_told {
                    return Output::Timeout(now + Duration::from_hours(24));
                }
                self.closed_told = true;
                return Output::Event(Event::Closed);
            }
            match self.guarded(Rtc::poll_output) {
                Ok(Ok(output)) => {
                    self.closed_told |= matches!(output, Output::Event(Event::Closed));
                    return output;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a peer connection failed");
                    self.broken = true;
                }
                Err(Broken) => {}
            }
        }
    }

    /// Whether both data channels are open.
    pub const fn has_channels(&self) -> bool {
        self.reliable.is_some() && self.lossy.is_some()
    }

    /// What waits for its turn on the reliable channel.
    pub const fn queued_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Which of the two a channel is.
    pub fn delivery(&self, id: ChannelId) -> Option<Delivery> {
        if self.reliable == Some(id) {
            Some(Delivery::Reliable)
        } else {
            (self.lossy == Some(id)).then_some(Delivery::Lossy)
        }
    }

    /// A channel was opened; `None` where it is neither of the two.
    pub fn channel_opened(&mut self, id: ChannelId, label: &str) -> Option<Delivery> {
        match label {
            RELIABLE => self.reliable = Some(id),
            LOSSY => self.lossy = Some(id),
            _ => return None,
        }
        let _ = self.guarded(|rtc| {
            if let Some(mut open) = rtc.channel(id) {
                open.set_buffered_amount_low_threshold(LOW_BUFFER_BYTES);
            }
        });
        self.flush();
        self.delivery(id)
    }

    /// A channel was closed.
    pub fn channel_closed(&mut self, id: ChannelId) {
        self.reliable.take_if(|open| *open == id);
        self.lossy.take_if(|open| *open == id);
    }

    /// Nothing is sent over the channels any more, and what waits is dropped.
    pub fn give_up_channels(&mut self) {
        (self.backlog, self.backlog_bytes) = (VecDeque::new(), 0);
        (self.reliable, self.lossy) = (None, None);
    }

    /// Sends a message as soon as the reliable channel has room.
    pub fn send_reliable(&mut self, message: Bytes) {
        self.backlog_bytes += message.len();
        self.backlog.push_back(message);
        self.flush();
    }

    /// Sends a message on the lossy channel, or leaves it out where there is no room.
    pub fn send_lossy(&mut self, message: &[u8]) {
        if let Some(id) = self.lossy {
            self.write(id, message);
        }
    }

    /// Sends what the reliable channel has room for.
    pub fn flush(&mut self) {
        let Some(id) = self.reliable else { return };
        while let Some(message) = self.backlog.front().cloned() {
            if !self.write(id, &message) {
                break;
            }
            self.backlog_bytes -= message.len();
            self.backlog.pop_front();
        }
    }

    fn write(&mut self, id: ChannelId, message: &[u8]) -> bool {
        let written = self.guarded(|rtc| Some(rtc.channel(id)?.write(true, message)));
        matches!(written, Ok(Some(Ok(true))))
    }
}

/// Offers the two data channels.
pub fn add_channels(api: &mut SdpApi<'_>) {
    api.add_channel(RELIABLE.to_owned());
    api.add_channel_with_config(ChannelConfig {
        label: LOSSY.to_owned(),
        ordered: false,
        reliability: Reliability::MaxRetransmits { retransmits: 0 },
        ..ChannelConfig::default()
    });
}
