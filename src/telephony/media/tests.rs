//! Calls over real sockets, and input that no phone should send.

use std::f32::consts::TAU;
use std::net::Ipv4Addr;

use super::offer_answer::tests::OFFERS;
use super::*;
use vivavoce_audio::opus::{Application, OpusDecoder, OpusEncoder, OpusSettings};
use vivavoce_audio::{Layout, SampleRate};
use vivavoce_seams::rooms::link::{Frame, Join, JoinKind, LinkEnd, Listen, Packet, Payload, pair};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ROOM: Layout = Layout::mono(SampleRate::HZ_48000);

fn media(ports: RangeInclusive<u16>, encryption: Encryption) -> Media {
    Media::start(MediaSettings {
        ports,
        threads: 1,
        timeout: Duration::from_secs(30),
        encryption,
        codecs: vec![Codec::G722, Codec::Pcmu, Codec::Pcma],
        advertised: Vec::new(),
        sources: [].into(),
        complexity: 0,
        relay: true,
    })
    .unwrap()
}

/// Where the audio of a call is published.
fn room(call: &CallMedia) -> LinkEnd {
    let join = Join {
        room: "room".to_owned(),
        identity: "sip_1".to_owned(),
        name: String::new(),
        kind: JoinKind::Telephone,
        principal: vivavoce_auth::Principal::Operator,
        owner: None,
        metadata: String::new(),
        attributes: Vec::new(),
        room_config: None,
        listen: Listen::All,
        audio: true,
    };
    let (link, end) = pair(&join, |_| {});
    call.publish(link.publish);
    end
}

/// Plays a tone into a call's room until it is dropped.
fn speaker(call: &CallMedia, hz: f32) -> tokio::task::AbortHandle {
    let (writer, audio) = LinkEnd::track();
    call.hear("TR_1", "somebody", audio);
    let settings = OpusSettings {
        application: Application::Audio,
        bitrate_bps: 32_000,
        complexity: 0,
        fec_loss_percent: None,
    };
    let mut encoder = OpusEncoder::new(ROOM, settings).unwrap();
    let task = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        for sequence in 0.. {
            ticks.tick().await;
            let first = sequence as usize * 960;
            let tone = |n| (8_000.0 * (TAU * hz * (n as f32 / 48_000.0)).sin()) as i16;
            let sound: Vec<i16> = (first..first + 960).map(tone).collect();
            let mut packet = vec![0; 1_276];
            let bytes = encoder.encode(&sound, &mut packet).unwrap();
            writer.write(Packet {
                payload: Payload::Opus(packet[..bytes].into()),
                sequence,
                timestamp: (sequence * 960) as u32,
                marker: sequence == 0,
                arrived: Instant::now(),
                level: None,
            });
        }
    });
    task.abort_handle()
}

/// The next frames of a call.
async fn frames(end: &LinkEnd, count: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    while frames.len() < count {
        match end.next_frame() {
            Some(frame) => frames.push(frame),
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    frames
}

fn share(frames: &[Frame], hz: f32) -> f32 {
    let mut decoder = OpusDecoder::new(ROOM).unwrap();
    let mut sound = Vec::new();
    for frame in frames {
        decoder
            .decode(frame.opus.as_ref().unwrap(), &mut sound)
            .unwrap();
    }
    let (mut re, mut im, mut energy) = (0.0, 0.0, 1.0);
    for (n, sample) in sound.iter().enumerate() {
        let phase = TAU * hz * n as f32 / 48_000.0;
        re += f32::from(*sample) * phase.cos();
        im += f32::from(*sample) * phase.sin();
        energy += f32::from(*sample).powi(2);
    }
    2.0 * (re * re + im * im) / (sound.len() as f32 * energy)
}

/// A call between two, each with its own room.
async fn two_rooms_hear_each_other(ports: RangeInclusive<u16>, encryption: Encryption) {
    let media = media(ports, encryption);
    let mut caller = media.open(HERE, HERE).unwrap();
    let mut called = media.open(HERE, HERE).unwrap();
    let answer = called.answer(&caller.offer()).unwrap();
    caller.accepted(&answer).unwrap();
    let (caller_room, called_room) = (room(&caller), room(&called));
    let speakers = [speaker(&caller, 500.0), speaker(&called, 900.0)];
    assert_eq!(caller.next_event().await, MediaEvent::FirstPacket);
    assert_eq!(called.next_event().await, MediaEvent::FirstPacket);
    let (at_called, at_caller) = tokio::join!(frames(&called_room, 50), frames(&caller_room, 50));
    assert!(share(&at_called[25..], 500.0) > 0.8);
    assert!(share(&at_caller[25..], 900.0) > 0.8);
    caller.dtmf("7");
    let digit = MediaEvent::Digit {
        code: 7,
        digit: '7',
    };
    assert_eq!(called.next_event().await, digit);
    let report = called.report();
    assert_eq!(report.codec, Some(Codec::G722));
    assert_eq!(report.encrypted, encryption == Encryption::Require);
    assert!(report.packets_in > 40 && report.packets_out > 40);
    speakers.iter().for_each(tokio::task::AbortHandle::abort);
}

#[tokio::test]
async fn two_calls_hear_each_other_over_the_network() {
    let calls = two_rooms_hear_each_other(28_000..=28_031, Encryption::Off);
    tokio::time::timeout(Duration::from_mins(1), calls)
        .await
        .unwrap();
}

#[tokio::test]
async fn two_encrypted_calls_hear_each_other_over_the_network() {
    let calls = two_rooms_hear_each_other(28_032..=28_063, Encryption::Require);
    tokio::time::timeout(Duration::from_mins(1), calls)
        .await
        .unwrap();
}

#[tokio::test]
async fn sound_goes_nowhere_private_unless_it_comes_from_there() {
    let media = media(28_064..=28_095, Encryption::Off);
    let gateways = [(); 2].map(|()| std::net::UdpSocket::bind((HERE, 0)).unwrap());
    let mut calls = [(); 2].map(|()| media.open(HERE, HERE).unwrap());
    calls[1].public_only(true);
    let mut rooms = Vec::new();
    for (call, gateway) in calls.iter_mut().zip(&gateways) {
        gateway.set_nonblocking(true).unwrap();
        let port = gateway.local_addr().unwrap().port();
        call.offer();
        let answer = format!(
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n"
        );
        call.accepted(&answer).unwrap();
        rooms.push((room(call), speaker(call, 500.0)));
    }
    let gateways = gateways.map(|gateway| tokio::net::UdpSocket::from_std(gateway).unwrap());
    let mut packet = [0; rtp::LARGEST];
    for _ in 0..10 {
        let length = gateways[0].recv(&mut packet).await.unwrap();
        assert!(rtp::Header::parse(&packet[..length]).is_some());
    }
    assert_eq!(calls[1].report().packets_out, 0);
    let (length, from) = gateways[0].recv_from(&mut packet).await.unwrap();
    // The second call gets the next pair.
    let to = (from.ip(), from.port() + 2);
    gateways[1].send_to(&packet[..length], to).await.unwrap();
    gateways[1].recv(&mut packet).await.unwrap();
    rooms.iter().for_each(|(_, speaker)| speaker.abort());
}

/// Rounds of a seed, or as many as there is time for.
struct Rounds {
    rng: fastrand::Rng,
    left: u64,
    until: Option<Instant>,
}

impl Rounds {
    /// So many rounds, unless `VIVAVOCE_FUZZ_SECONDS` or `VIVAVOCE_LONG` sets a time.
    fn new(name: &str, most: u64) -> Self {
        let given = std::env::var("VIVAVOCE_FUZZ_SECONDS").ok();
        let long = std::env::var_os("VIVAVOCE_LONG").map(|_| 600);
        let seconds = given.and_then(|seconds| seconds.parse().ok()).or(long);
        let seed = seconds.map_or(1, |_: u64| fastrand::u64(..));
        println!("{name}: seed {seed}");
        Self {
            rng: fastrand::Rng::with_seed(seed),
            left: seconds.map_or(most, |_| u64::MAX),
            until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        }
    }

    fn next(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0 && self.until.is_none_or(|until| Instant::now() < until)
    }

    /// A sample with a few mutations.
    fn change(&mut self, sample: &[u8]) -> Vec<u8> {
        const NUMBERS: [&[u8]; 8] = [
            b"0",
            b"-1",
            b"127",
            b"128",
            b"65535",
            b"65536",
            b"4294967296",
            b"99999999999999999999",
        ];
        let rng = &mut self.rng;
        let mut bytes = sample.to_vec();
        for _ in 0..rng.u8(1..6) {
            if bytes.is_empty() {
                break;
            }
            let at = rng.usize(..bytes.len());
            let to = rng.usize(at..=bytes.len().min(at + 40));
            match rng.u8(..8) {
                0 => bytes[at] = rng.u8(..),
                1 => bytes[at] ^= 1 << rng.u8(..8),
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(at..to)),
                4 => {
                    let piece = bytes[at..to].to_vec();
                    bytes.splice(at..at, piece);
                }
                5 => {
                    let number = NUMBERS[rng.usize(..NUMBERS.len())];
                    bytes.splice(at..to.min(at + 4), number.iter().copied());
                }
                6 => {
                    let piece = bytes[at..to].to_vec();
                    let many = rng.usize(..600);
                    bytes.extend(piece.iter().copied().cycle().take(piece.len() * many));
                }
                _ => {
                    let other = rng.usize(..bytes.len());
                    bytes.swap(at, other);
                }
            }
        }
        bytes
    }
}

#[test]
fn no_description_is_too_strange() {
    let mut rounds = Rounds::new("descriptions", 5_000);
    let local = SocketAddr::new(HERE, 20_000);
    let wishes = [Encryption::Off, Encryption::Allow, Encryption::Require];
    while rounds.next() {
        let sample = OFFERS[rounds.rng.usize(..OFFERS.len())];
        let encryption = wishes[rounds.rng.usize(..3)];
        let mut call = OfferAnswer::new(&Codec::ALL, encryption, local);
        for _ in 0..3 {
            let text = rounds.change(sample.as_bytes());
            let text = String::from_utf8_lossy(&text);
            if rounds.rng.bool()
                && let Ok(answer) = call.answer(&text)
            {
                // Our descriptions can be parsed by ourselves, whatever we were sent.
                sdp::Description::parse(&answer).unwrap();
            }
            sdp::Description::parse(&call.offer()).unwrap();
            let _ = call.accepted(&text);
        }
        // Whatever happened before, a valid offer is accepted.
        let mut other = OfferAnswer::new(&Codec::ALL, encryption, local);
        call = OfferAnswer::new(&Codec::ALL, encryption, local);
        let answer = call.answer(&other.offer());
        other.accepted(&answer.unwrap()).unwrap();
    }
}

#[test]
fn no_report_is_too_strange() {
    let mut rounds = Rounds::new("reports", 20_000);
    let mut sample = Vec::new();
    let sent = rtcp::Sent {
        time: 1 << 40,
        timestamp: 5,
        packets: 6,
        bytes: 7,
    };
    rtcp::write(
        &mut sample,
        1,
        Some(sent),
        Some(rtcp::ReportBlock::default()),
        "x",
        true,
    );
    while rounds.next() {
        let changed = rounds.change(&sample);
        let _ = rtcp::parse(&changed, 0);
    }
}
