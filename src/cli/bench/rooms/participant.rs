//! One client of the measurement: str0m for its media, a WebSocket for its signalling. It speaks or it listens, and does
//! only what a server needs to forward to it.

use std::fmt::Display;
use std::future::Future;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use futures_util::{SinkExt, StreamExt};
use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_response::Message as Response;
use str0m::change::SdpAnswer;
use str0m::format::PayloadParams;
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{ExtensionValues, RtpWrite};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::super::load::socket_config;
use super::{PACKET, Phase};
use crate::rooms::token::{self, Claims};
use crate::rooms::{Keys, Now};

/// The key pair of the server under test, which nobody else can reach.
pub(super) const KEY: &str = "bench";
/// See [`KEY`].
pub(super) const SECRET: &str = "the secret of a measurement, which is no secret";
const ROOM: &str = "bench";
/// Clients show that they are there so often.
const PING: Duration = Duration::from_secs(5);
const CLOCK_HZ: u32 = 48_000;
/// Longer than any datagram.
const DATAGRAM_BYTES: usize = 2_048;

/// What is the same for all who join.
pub(super) struct Joining {
    /// `host:port` of the server.
    pub(super) address: String,
    pub(super) publishers: u16,
    /// Of sound in a packet.
    pub(super) bytes: usize,
    /// What send times are counted from.
    pub(super) epoch: Instant,
}

/// What one does in the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Publisher(u16),
    Subscriber(u16),
}

/// Why a participant is there no more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Signalling(#[from] tungstenite::Error),
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    #[error(transparent)]
    Media(#[from] str0m::RtcError),
    #[error("the server sent it away: {0}")]
    Left(String),
    #[error("its media ended")]
    Ended,
    #[error("{0}")]
    Setup(String),
}

/// What was received while it was measured.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// One for each packet.
    pub(super) delays_ms: Vec<f32>,
    /// The longest datagram.
    pub(super) datagram_bytes: u64,
}

impl Received {
    pub(super) fn count(&mut self, epoch: Instant, sent: Duration, datagram_bytes: usize) {
        let delay = epoch.elapsed().saturating_sub(sent);
        self.delays_ms.push((delay.as_secs_f64() * 1e3) as f32);
        self.datagram_bytes = self.datagram_bytes.max(datagram_bytes as u64);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.delays_ms.extend(other.delays_ms);
        self.datagram_bytes = self.datagram_bytes.max(other.datagram_bytes);
    }
}

/// So many bytes that say when they were sent.
pub(super) fn stamp(epoch: Instant, bytes: usize) -> Vec<u8> {
    let since = u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut stamp = since.to_be_bytes().to_vec();
    stamp.resize(bytes.max(stamp.len()), 0x5a);
    stamp
}

/// When bytes of [`stamp`] were sent, since the epoch.
pub(super) fn sent_at(payload: &[u8]) -> Option<Duration> {
    let since = payload.first_chunk::<8>()?;
    Some(Duration::from_nanos(u64::from_be_bytes(*since)))
}

/// Joins; what is given back runs until the measurement is over.
pub(super) async fn join(
    joining: &Joining,
    part: Part,
    measuring: watch::Receiver<Phase>,
) -> Result<impl Future<Output = Result<Received, Lost>> + Send + use<>, Lost> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = socket.local_addr()?;
    let mut rtc = RtcConfig::new()
        .set_rtp_mode(true)
        .clear_codecs()
        .enable_opus(true, false)
        .build(Instant::now());
    let candidate = Candidate::host(address, "udp").map_err(|error| setup(&error))?;
    rtc.add_local_candidate(candidate);
    let mut api = rtc.sdp_api();
    let mut tracks = Vec::new();
    let mut voice = None;
    match part {
        Part::Publisher(index) => {
            let cid = format!("voice{index}");
            let (kind, direction) = (MediaKind::Audio, Direction::SendOnly);
            let stream = Some("bench".to_owned());
            voice = Some(api.add_media(kind, direction, stream, Some(cid.clone()), None));
            tracks.push(proto::AddTrackRequest {
                cid,
                source: proto::TrackSource::Microphone as i32,
                ..Default::default()
            });
        }
        Part::Subscriber(_) => {
            for _ in 0..joining.publishers {
                api.add_media(MediaKind::Audio, Direction::RecvOnly, None, None, None);
            }
        }
    }
    api.add_channel("_reliable".to_owned());
    let (offer, pending) = api
        .apply()
        .ok_or_else(|| setup(&"there is nothing to offer"))?;
    let request = proto::JoinRequest {
        connection_settings: Some(proto::ConnectionSettings {
            auto_subscribe: voice.is_none(),
            ..Default::default()
        }),
        add_track_requests: tracks,
        publisher_offer: Some(proto::SessionDescription {
            r#type: "offer".to_owned(),
            sdp: offer.to_sdp_string(),
            id: 1,
            ..Default::default()
        }),
        ..Default::default()
    };
    let url = url(joining, part, &request)?;
    let (signalling, _) = connect_async_with_config(url, Some(socket_config()), true).await?;
    let start = tokio::time::Instant::now();
    let phase = match part {
        Part::Publisher(index) => PACKET * u32::from(index) / u32::from(joining.publishers),
        Part::Subscriber(_) => PACKET,
    };
    let mut ticks = interval_at(start + phase, PACKET);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut participant = Participant {
        rtc,
        socket,
        address,
        signalling,
        ticks,
        pings: interval_at(start + PING, PING),
        voice,
        sent: 0,
        bytes: joining.bytes,
        epoch: joining.epoch,
        received: Received::default(),
        measuring,
        connected: false,
    };
    let answer = participant.answer().await?;
    let carried = answer.mid_to_track_id.len();
    if voice.is_none() && carried != usize::from(joining.publishers) {
        return Err(setup(&format!("it is given {carried} tracks")));
    }
    let answer = SdpAnswer::from_sdp_string(&answer.sdp).map_err(|error| setup(&error))?;
    let accepted = participant.rtc.sdp_api().accept_answer(pending, answer);
    accepted?;
    while !participant.connected {
        participant.step().await?;
    }
    Ok(async move {
        while *participant.measuring.borrow() != Phase::Over {
            participant.step().await?;
        }
        Ok(participant.received)
    })
}

fn setup(what: &dyn Display) -> Lost {
    Lost::Setup(what.to_string())
}

fn url(joining: &Joining, part: Part, request: &proto::JoinRequest) -> Result<String, Lost> {
    let now_s = Now::read().unix_s();
    let mut claims = Claims {
        iss: KEY.to_owned(),
        sub: format!("{part:?}"),
        nbf: now_s,
        exp: now_s + 3_600,
        ..Claims::default()
    };
    claims.video.room_join = true;
    ROOM.clone_into(&mut claims.video.room);
    let keys = Keys::new([(KEY, SECRET)]);
    let token = token::mint(&claims, &keys).ok_or_else(|| setup(&"no token can be made"))?;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(&request.encode_to_vec())?;
    let wrapped = proto::WrappedJoinRequest {
        compression: proto::wrapped_join_request::Compression::Gzip as i32,
        join_request: packed.finish()?,
    };
    let join_request = URL_SAFE.encode(wrapped.encode_to_vec());
    let address = &joining.address;
    Ok(format!(
        "ws://{address}/rtc/v1?access_token={token}&join_request={join_request}"
    ))
}

struct Participant {
    rtc: Rtc,
    socket: UdpSocket,
    address: SocketAddr,
    signalling: WebSocketStream<MaybeTlsStream<TcpStream>>,
    ticks: Interval,
    pings: Interval,
    /// The section in which it sends.
    voice: Option<Mid>,
    sent: u32,
    bytes: usize,
    epoch: Instant,
    received: Received,
    measuring: watch::Receiver<Phase>,
    connected: bool,
}

impl Participant {
    async fn answer(&mut self) -> Result<proto::SessionDescription, Lost> {
        loop {
            let frame = self.signalling.next().await;
            if let Some(Response::Answer(answer)) = told(frame)? {
                return Ok(answer);
            }
        }
    }

    /// The next thing that happens.
    async fn step(&mut self) -> Result<(), Lost> {
        let deadline = self.flush(0)?;
        tokio::select! {
            readable = self.socket.readable() => {
                readable?;
                self.receive()?;
            }
            frame = self.signalling.next() => drop(told(frame)?),
            () = sleep_until(deadline.into()) => {
                self.rtc.handle_input(Input::Timeout(Instant::now()))?;
            }
            _ = self.ticks.tick(), if self.voice.is_some() && self.connected => self.speak()?,
            _ = self.pings.tick() => {
                let message = Some(proto::signal_request::Message::Ping(1));
                let ping = proto::SignalRequest { message }.encode_to_vec();
                self.signalling.send(Message::binary(ping)).await?;
            }
            _ = self.measuring.changed() => {}
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Lost> {
        let mut buffer = [0; DATAGRAM_BYTES];
        loop {
            let (length, source) = match self.socket.try_recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let datagram = buffer.get(..length).unwrap_or_default();
            let Ok(receive) = Receive::new(Protocol::Udp, source, self.address, datagram) else {
                continue;
            };
            self.rtc
                .handle_input(Input::Receive(Instant::now(), receive))?;
            self.flush(length)?;
        }
    }

    fn speak(&mut self) -> Result<(), Lost> {
        let now = Instant::now();
        let payload = stamp(self.epoch, self.bytes);
        let pt = self
            .rtc
            .codec_config()
            .params()
            .first()
            .map(PayloadParams::pt);
        if let (Some(mid), Some(pt)) = (self.voice, pt)
            && let Some(stream) = self.rtc.direct_api().stream_tx_by_mid(mid, None)
        {
            let time = self.sent.wrapping_mul(CLOCK_HZ / 50);
            let extensions = ExtensionValues {
                audio_level: Some(-20),
                voice_activity: Some(true),
                ..ExtensionValues::default()
            };
            let write = RtpWrite::new(pt, u64::from(self.sent).into(), time, now, payload);
            stream.write_rtp(write.ext_vals(extensions));
            self.sent += 1;
        }
        // Nothing leaves str0m before it is told the time.
        self.rtc.handle_input(Input::Timeout(now))?;
        Ok(())
    }

    /// Sends what is to be sent and notes what came, in a datagram of this length; says when time is to be told again.
    fn flush(&mut self, datagram_bytes: usize) -> Result<Instant, Lost> {
        loop {
            match self.rtc.poll_output()? {
                Output::Timeout(at) => return Ok(at),
                Output::Transmit(sent) => {
                    // As good as lost on the way.
                    let _ = self.socket.try_send_to(&sent.contents, sent.destination);
                }
                Output::Event(Event::Connected) => self.connected = true,
                Output::Event(Event::RtpPacket(packet)) => {
                    if *self.measuring.borrow() == Phase::Measured
                        && let Some(sent) = sent_at(&packet.payload)
                    {
                        self.received.count(self.epoch, sent, datagram_bytes);
                    }
                }
                Output::Event(Event::Closed) => return Err(Lost::Ended),
                Output::Event(_) => {}
            }
        }
    }
}

/// What a frame of the server says.
fn told(frame: Option<Result<Message, tungstenite::Error>>) -> Result<Option<Response>, Lost> {
    let Message::Binary(bytes) = frame.ok_or(Lost::Ended)?? else {
        return Ok(None);
    };
    match proto::SignalResponse::decode(bytes)?.message {
        Some(Response::Leave(leave)) => Err(Lost::Left(format!("{:?}", leave.reason()))),
        message => Ok(message),
    }
}
