//! A client in a room: str0m for media, a WebSocket for signalling. It does only what a server requires to accept its
//! audio and to forward that of others; what it sends and does with what it receives is up to its [`Media`].

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
use proto::signal_request::Message as Request;
use proto::signal_response::Message as Response;
use str0m::change::SdpAnswer;
use str0m::format::PayloadParams;
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{ExtensionValues, RtpPacket, RtpWrite};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::load::socket_config;
use crate::rooms::token::{self, Claims};
use crate::rooms::{Keys, Now};

/// The key pair of the server under test, which nobody else can reach.
pub(super) const KEY: &str = "bench";
/// See [`KEY`].
pub(super) const SECRET: &str = "the secret of a measurement, which is no secret";
/// What one packet of sound lasts.
pub(super) const PACKET: Duration = Duration::from_millis(20);
/// Clients show that they are there so often.
const PING: Duration = Duration::from_secs(5);
const CLOCK_HZ: u32 = 48_000;
/// Longer than any datagram.
const DATAGRAM_BYTES: usize = 2_048;

/// Where a measurement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Warming,
    Measured,
    Over,
}

/// Who joins what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joining<'a> {
    /// `host:port` of the server.
    pub(super) address: &'a str,
    pub(super) room: &'a str,
    pub(super) identity: &'a str,
    /// Whether it speaks, and how much later than now its packets begin.
    pub(super) voice: Option<Duration>,
    /// Those whom it hears; they must be there.
    pub(super) hears: u16,
}

/// What a participant says and hears.
pub(super) trait Media {
    /// The sound of the next packet, and whether there is a voice in it.
    fn say(&mut self) -> (Vec<u8>, bool);

    /// A packet came, in a datagram of this length.
    fn hear(&mut self, packet: &RtpPacket, datagram_bytes: usize);
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
    /// Not all whom it should hear are there.
    #[error("it is given {0} tracks")]
    Tracks(usize),
    #[error("{0}")]
    Setup(String),
}

/// Joins; what is given back runs until the measurement is over.
pub(super) async fn join<M: Media + Send>(
    joining: Joining<'_>,
    media: M,
    phase: watch::Receiver<Phase>,
) -> Result<impl Future<Output = Result<M, Lost>> + Send + use<M>, Lost> {
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
    if joining.voice.is_some() {
        let cid = joining.identity.to_owned();
        let (kind, direction) = (MediaKind::Audio, Direction::SendOnly);
        let stream = Some("bench".to_owned());
        voice = Some(api.add_media(kind, direction, stream, Some(cid.clone()), None));
        tracks.push(proto::AddTrackRequest {
            cid,
            source: proto::TrackSource::Microphone as i32,
            ..Default::default()
        });
    }
    for _ in 0..joining.hears {
        api.add_media(MediaKind::Audio, Direction::RecvOnly, None, None, None);
    }
    api.add_channel("_reliable".to_owned());
    let (offer, pending) = api
        .apply()
        .ok_or_else(|| setup(&"there is nothing to offer"))?;
    let request = proto::JoinRequest {
        connection_settings: Some(proto::ConnectionSettings {
            auto_subscribe: joining.hears > 0,
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
    let url = url(joining, &request)?;
    let (signalling, _) = connect_async_with_config(url, Some(socket_config()), true).await?;
    let start = tokio::time::Instant::now();
    let mut ticks = interval_at(start + joining.voice.unwrap_or(PACKET), PACKET);
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
        media,
        phase,
        connected: false,
    };
    let answer = participant.answer().await?;
    let own = voice.map(|mid| mid.to_string());
    let given = answer.mid_to_track_id.keys();
    let given = given.filter(|mid| own.as_ref() != Some(mid)).count();
    if given != usize::from(joining.hears) {
        return Err(Lost::Tracks(given));
    }
    let answer = SdpAnswer::from_sdp_string(&answer.sdp).map_err(|error| setup(&error))?;
    let accepted = participant.rtc.sdp_api().accept_answer(pending, answer);
    accepted?;
    while !participant.connected {
        participant.step().await?;
    }
    // What it would have said while it was connecting is not said at once.
    let begin = joining.voice.unwrap_or(PACKET);
    participant.ticks.reset_after(begin);
    Ok(async move {
        while *participant.phase.borrow() != Phase::Over {
            participant.step().await?;
        }
        participant.leave().await?;
        Ok(participant.media)
    })
}

fn setup(what: &dyn Display) -> Lost {
    Lost::Setup(what.to_string())
}

fn url(joining: Joining<'_>, request: &proto::JoinRequest) -> Result<String, Lost> {
    let now_s = Now::read().unix_s();
    let mut claims = Claims {
        iss: KEY.to_owned(),
        sub: joining.identity.to_owned(),
        nbf: now_s,
        exp: now_s + 3_600,
        ..Claims::default()
    };
    claims.video.room_join = true;
    joining.room.clone_into(&mut claims.video.room);
    let keys = Keys::new([(KEY, SECRET)]);
    let token = token::mint(&claims, &keys).ok_or_else(|| setup(&"no token can be made"))?;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(&request.encode_to_vec())?;
    let wrapped = proto::WrappedJoinRequest {
        compression: proto::wrapped_join_request::Compression::Gzip as i32,
        join_request: packed.finish()?,
    };
    let join_request = URL_SAFE.encode(wrapped.encode_to_vec());
    let address = joining.address;
    Ok(format!(
        "ws://{address}/rtc/v1?access_token={token}&join_request={join_request}"
    ))
}

struct Participant<M> {
    rtc: Rtc,
    socket: UdpSocket,
    address: SocketAddr,
    signalling: WebSocketStream<MaybeTlsStream<TcpStream>>,
    ticks: Interval,
    pings: Interval,
    /// The section in which it sends.
    voice: Option<Mid>,
    sent: u32,
    media: M,
    phase: watch::Receiver<Phase>,
    connected: bool,
}

impl<M: Media> Participant<M> {
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
            _ = self.pings.tick() => self.ask(Request::Ping(1)).await?,
            _ = self.phase.changed() => {}
        }
        Ok(())
    }

    async fn ask(&mut self, message: Request) -> Result<(), Lost> {
        let message = Some(message);
        let request = proto::SignalRequest { message }.encode_to_vec();
        Ok(self.signalling.send(Message::binary(request)).await?)
    }

    /// Says goodbye, so that nobody waits for it to come back.
    async fn leave(&mut self) -> Result<(), Lost> {
        self.ask(Request::Leave(proto::LeaveRequest::default()))
            .await
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
        let (payload, voiced) = self.media.say();
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
                audio_level: Some(if voiced { -20 } else { -127 }),
                voice_activity: Some(voiced),
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
                    self.media.hear(&packet, datagram_bytes);
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
