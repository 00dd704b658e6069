//! Whole calls in virtual time: a phone at one end, a room at the other, and a network in between that loses, delays and
//! reorders packets.

use std::f32::consts::TAU;

use super::super::codec::{Decoder, Encoder};
use super::super::dtls::Fingerprint;
use super::super::offer_answer::OfferAnswer;
use super::super::{Codec, Encryption, ice};
use super::*;
use vivavoce_audio::jitter::{Arrived, JitterBuffer};
use vivavoce_audio::opus::{Application, MAX_FRAME_PACKET, OpusEncoder, OpusSettings};
use vivavoce_audio::{Layout, SampleRate};
use vivavoce_seams::rooms::link::{
    Forms, Frame, Join, JoinKind, LinkEnd, Listen, Packet, Payload, RoomLink, TrackWriter, Woken,
    pair,
};

const MS: Duration = Duration::from_millis(1);
const FRAME: Duration = Duration::from_millis(20);

fn join() -> Join {
    Join {
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
    }
}

fn phone_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 7], 6_000))
}

/// Datagrams with their destinations.
#[derive(Default)]
struct Network(Vec<(Port, SocketAddr, Vec<u8>)>);

impl Wire for Network {
    fn send(&mut self, port: Port, to: SocketAddr, datagram: &[u8]) {
        self.0.push((port, to, datagram.to_vec()));
    }
}

/// A call between a simulated phone and a room.
struct Stage {
    now: Instant,
    session: Session,
    events: mpsc::Receiver<MediaEvent>,
    room: RoomLink,
    frames: LinkEnd,
    sent: Network,
    agreement: Agreement,
    protect: Option<ProtectContext>,
    unprotect: Option<UnprotectContext>,
    header: Header,
    encoder: Encoder,
    decoder: Decoder,
    identity: Arc<Identity>,
}

impl Stage {
    /// A call with this codec, offered by the phone.
    fn new(codec: Codec) -> Self {
        Self::with(codec, Encryption::Off)
    }

    fn with(codec: Codec, encryption: Encryption) -> Self {
        let address = |last: u8, port| SocketAddr::new(IpAddr::from([192, 0, 2, last]), port);
        let mut phone = OfferAnswer::new(&[codec], encryption, phone_address());
        let mut ours = OfferAnswer::new(&Codec::ALL, encryption, address(1, 20_000));
        let offer = phone.offer();
        let answer = ours.answer(&offer).unwrap();
        phone.accepted(&answer).unwrap();
        let agreement = ours.agreement().unwrap().clone();
        let theirs = phone.agreement().unwrap();
        let now = Instant::now();
        let (tell, events) = mpsc::channel(64);
        let identity = Arc::new(Identity::new().unwrap());
        let start = Start {
            now,
            timeout: Duration::from_secs(30),
            peer: phone_address().ip(),
            sources: ["203.0.113.0/24".parse().unwrap()].into(),
            complexity: 1,
            identity: Arc::clone(&identity),
        };
        let mut session = Session::new(start, tell);
        let (room, frames) = pair(&join(), |_: Woken| {});
        let RoomLink {
            events: link_events,
            publish,
            control,
        } = room;
        session.publish(publish);
        let (spare, _end) = pair(&join(), |_| {});
        let room = RoomLink {
            events: link_events,
            publish: spare.publish,
            control,
        };
        session.agree(&agreement, now);
        session.answered(now);
        Self {
            now,
            session,
            events,
            room,
            frames,
            sent: Network::default(),
            protect: theirs
                .crypto
                .as_ref()
                .map(|(ours, _)| ProtectContext::new(ours).unwrap()),
            unprotect: theirs
                .crypto
                .as_ref()
                .map(|(_, theirs)| UnprotectContext::new(theirs.clone())),
            header: Header {
                marker: true,
                payload_type: theirs.payload_type,
                sequence: 65_500,
                timestamp: u32::MAX - 5_000,
                ssrc: 77,
            },
            encoder: Encoder::new(codec, 1).unwrap(),
            decoder: Decoder::new(codec).unwrap(),
            identity,
            agreement,
        }
    }

    fn codec(&self) -> Codec {
        self.agreement.codec
    }

    /// The phone's next packet: a tone at the time of its timestamp.
    fn packet(&mut self, hz: f32, ms: u32) -> Vec<u8> {
        let codec = self.codec();
        let rate = codec.rate().hz();
        let length = (rate * ms / 1_000) as usize;
        let first = codec.samples(self.header.timestamp.wrapping_add(5_001)) % 1_000_000;
        let tone = |n| (8_000.0 * (TAU * hz * ((first + n) as f32 / rate as f32)).sin()) as i16;
        let sound: Vec<i16> = (0..length).map(tone).collect();
        let mut packet = Vec::new();
        self.header.write(&mut packet);
        assert!(self.encoder.encode(&sound, &mut packet));
        self.header.sequence = self.header.sequence.wrapping_add(1);
        self.header.timestamp = self.header.timestamp.wrapping_add(codec.ticks(length));
        self.header.marker = false;
        match &mut self.protect {
            Some(protect) => protect.rtp(&packet).unwrap().to_vec(),
            None => packet,
        }
    }

    fn receive(&mut self, packet: &[u8]) {
        self.session
            .receive(Port::Rtp, packet, phone_address(), self.now, &mut self.sent);
    }

    fn tick(&mut self) {
        self.session.tick(self.now, &mut self.sent);
        self.now += FRAME;
    }

    /// The phone sends a tone for this long, without loss.
    fn say(&mut self, hz: f32, packets: u32) {
        for _ in 0..packets {
            let packet = self.packet(hz, 20);
            self.receive(&packet);
            self.tick();
        }
    }

    /// Frames published in the room since the last call.
    fn frames(&self) -> Vec<Frame> {
        std::iter::from_fn(|| self.frames.next_frame()).collect()
    }

    /// Decrypted RTP sent to the phone since the last call.
    fn heard(&mut self) -> Vec<(Header, Vec<u8>)> {
        let sent = std::mem::take(&mut self.sent.0);
        let mut heard = Vec::new();
        for (port, _, packet) in sent {
            if port == Port::Rtp && !rtp::is_rtcp(&packet) {
                let packet = match &mut self.unprotect {
                    Some(unprotect) => {
                        let (header, _) = Header::parse(&packet).unwrap();
                        unprotect.rtp(&packet, header.ssrc).unwrap().to_vec()
                    }
                    None => packet,
                };
                let (header, payload) = Header::parse(&packet).unwrap();
                heard.push((header, packet[payload].to_vec()));
            }
        }
        heard
    }

    fn events(&mut self) -> Vec<MediaEvent> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}

/// A participant who plays a tone, 20 ms at a time.
struct Speaker {
    writer: TrackWriter,
    encoder: OpusEncoder,
    hz: f32,
    sequence: u64,
}

impl Speaker {
    fn new(stage: &mut Stage, hz: f32) -> Self {
        let (writer, audio) = LinkEnd::track();
        let sid = format!("TR_{hz}");
        stage.session.hear(&sid, &sid, audio);
        let settings = OpusSettings {
            application: Application::Voip,
            bitrate_bps: 40_000,
            complexity: 1,
            fec_loss_percent: None,
        };
        let layout = Layout::mono(SampleRate::HZ_48000);
        Self {
            writer,
            encoder: OpusEncoder::new(layout, settings).unwrap(),
            hz,
            sequence: 0,
        }
    }

    fn say(&mut self, now: Instant) {
        let first = self.sequence as usize * 960;
        let tone = |n| (8_000.0 * (TAU * self.hz * ((first + n) as f32 / 48_000.0)).sin()) as i16;
        let sound: Vec<i16> = (0..960).map(tone).collect();
        let mut packet = vec![0; MAX_FRAME_PACKET];
        let bytes = self.encoder.encode(&sound, &mut packet).unwrap();
        self.writer.write(Packet {
            payload: Payload::Opus(packet[..bytes].into()),
            sequence: self.sequence,
            timestamp: self.sequence as u32 * 960,
            marker: self.sequence == 0,
            arrived: now,
            level: None,
        });
        self.sequence += 1;
    }
}

/// The share of the energy at a frequency: 1 for a pure tone.
fn purity(sound: &[i16], rate_hz: u32, hz: f32) -> f32 {
    let (mut re, mut im, mut energy) = (0.0_f64, 0.0_f64, 1.0_f64);
    for (n, sample) in sound.iter().enumerate() {
        let phase = f64::from(TAU * hz) * n as f64 / f64::from(rate_hz);
        re += f64::from(*sample) * phase.cos();
        im += f64::from(*sample) * phase.sin();
        energy += f64::from(*sample).powi(2);
    }
    (2.0 * (re * re + im * im) / (sound.len().max(1) as f64 * energy)) as f32
}

/// What a subscriber hears of frames, with their arrival times.
fn decoded(frames: &[Frame]) -> Vec<i16> {
    let mut decoder =
        vivavoce_audio::opus::OpusDecoder::new(Layout::mono(SampleRate::HZ_48000)).unwrap();
    let mut sound = Vec::new();
    for frame in frames {
        decoder
            .decode(frame.opus.as_ref().unwrap(), &mut sound)
            .unwrap();
    }
    sound
}

/// Takes frames as they come; at most ten wait.
fn say_and_collect(stage: &mut Stage, hz: f32, packets: u32) -> Vec<Frame> {
    let mut frames = Vec::new();
    for _ in 0..packets {
        stage.say(hz, 1);
        frames.extend(stage.frames());
    }
    frames
}

fn steps(frames: &[Frame]) -> Vec<u32> {
    let steps = frames.windows(2);
    steps
        .map(|w| w[1].timestamp.wrapping_sub(w[0].timestamp))
        .collect()
}

#[test]
fn a_tone_on_the_telephone_is_heard_in_the_room_in_every_codec() {
    for codec in Codec::ALL {
        let mut stage = Stage::new(codec);
        let frames = say_and_collect(&mut stage, 700.0, 100);
        assert_eq!(frames.len(), 100, "{codec:?}");
        assert!(frames[0].marker && !frames[1].marker);
        assert!(steps(&frames).iter().all(|step| *step == 960), "{codec:?}");
        let sound = decoded(&frames);
        let share = purity(&sound[9_600..], 48_000, 700.0);
        assert!(share > 0.95, "{codec:?}: {share}");
        // A sine of 8,000 is 15 dB below full scale.
        assert!(
            (13..=17).contains(&frames[50].level),
            "{}",
            frames[50].level
        );
        assert_eq!(stage.events(), [MediaEvent::FirstPacket]);
        assert_eq!(stage.session.report().lost_in, 0);
    }
}

/// Encoded is what somebody needs encoded, and samples are what somebody in this process takes.
#[test]
fn frames_have_the_forms_that_the_room_wants() {
    for codec in Codec::ALL {
        let mut stage = Stage::new(codec);
        for (opus, pcm) in [(false, true), (true, true), (true, false), (false, false)] {
            let redundancy = false;
            stage.frames.want(Forms {
                opus,
                redundancy,
                pcm,
            });
            let frames = say_and_collect(&mut stage, 700.0, 100);
            assert_eq!(frames.len(), 100);
            assert!(frames.iter().all(|frame| frame.opus.is_some() == opus));
            assert!(frames.iter().all(|frame| frame.pcm.is_some() == pcm));
            assert!(steps(&frames).iter().all(|step| *step == 960));
            // Who speaks is seen, whoever hears it.
            assert!((13..=17).contains(&frames[50].level));
            if opus {
                let share = purity(&decoded(&frames)[9_600..], 48_000, 700.0);
                assert!(share > 0.95, "{codec:?}: {share}");
            }
            if pcm {
                let pcm = frames
                    .iter()
                    .flat_map(|frame| frame.pcm.as_ref().unwrap().to_vec());
                let rate = codec.rate().hz();
                let late: Vec<i16> = pcm.skip(rate as usize / 5).collect();
                let share = purity(&late, rate, 700.0);
                assert!(share > 0.95, "{codec:?}: {share}");
            }
        }
    }
}

#[test]
fn a_tone_in_the_room_is_heard_on_the_telephone_in_every_codec() {
    for codec in Codec::ALL {
        let mut stage = Stage::new(codec);
        let mut speaker = Speaker::new(&mut stage, 600.0);
        for _ in 0..100 {
            speaker.say(stage.now);
            stage.tick();
        }
        let heard = stage.heard();
        assert_eq!(heard.len(), 100);
        let mut sound = Vec::new();
        for (n, (header, payload)) in heard.iter().enumerate() {
            assert_eq!(header.marker, n == 0);
            assert_eq!(header.payload_type, stage.header.payload_type);
            let since = header.timestamp.wrapping_sub(heard[0].0.timestamp);
            assert_eq!(since, n as u32 * codec.clock_hz() / 50);
            assert_eq!(header.sequence, heard[0].0.sequence.wrapping_add(n as u16));
            stage.decoder.decode(payload, &mut sound);
        }
        let rate = codec.rate().hz();
        let share = purity(&sound[sound.len() / 4..], rate, 600.0);
        assert!(share > 0.95, "{codec:?}: {share}");
    }
}

#[test]
fn everybody_in_the_room_is_heard_and_nobody_while_it_is_muted() {
    let mut stage = Stage::new(Codec::Pcma);
    let mut speakers = [440.0, 1_000.0].map(|hz| Speaker::new(&mut stage, hz));
    let mut hear = |stage: &mut Stage| {
        for _ in 0..50 {
            speakers
                .iter_mut()
                .for_each(|speaker| speaker.say(stage.now));
            stage.tick();
        }
        let mut sound = Vec::new();
        for (_, payload) in stage.heard() {
            stage.decoder.decode(&payload, &mut sound);
        }
        sound
    };
    let sound = hear(&mut stage);
    let late = &sound[4_000..];
    for hz in [440.0, 1_000.0] {
        assert!(purity(late, 8_000, hz) > 0.4, "{hz}");
    }
    stage.session.mute(true);
    // The resampler still holds the end of the previous audio.
    assert!(
        hear(&mut stage)[320..]
            .iter()
            .all(|sample| sample.abs() <= 8)
    );
    stage.session.mute(false);
    assert!(purity(&hear(&mut stage)[4_000..], 8_000, 440.0) > 0.4);
    stage.session.forget("TR_1000");
    assert!(purity(&hear(&mut stage)[4_000..], 8_000, 440.0) > 0.95);
}

#[test]
fn packets_of_any_length_become_frames_of_twenty_milliseconds() {
    for ms in [10, 30, 40, 60] {
        let mut stage = Stage::new(Codec::Pcmu);
        let mut frames = Vec::new();
        for _ in 0..1_200 / ms {
            let packet = stage.packet(700.0, ms);
            stage.receive(&packet);
            stage.now += ms * MS;
            frames.extend(stage.frames());
        }
        assert_eq!(frames.len(), 60, "{ms}");
        assert!(steps(&frames).iter().all(|step| *step == 960));
        assert!(purity(&decoded(&frames)[9_600..], 48_000, 700.0) > 0.95);
    }
}

#[test]
fn the_telephone_gets_packets_as_long_as_it_wants_them() {
    for ms in [10, 30, 40, 60] {
        let mut stage = Stage::new(Codec::Pcmu);
        let agreement = Agreement {
            packet_ms: ms,
            ..stage.agreement.clone()
        };
        stage.session.agree(&agreement, stage.now);
        for _ in 0..60 {
            stage.tick();
        }
        let heard = stage.heard();
        assert_eq!(heard.len() as u32, 1_200 / ms);
        for (n, (header, payload)) in heard.iter().enumerate() {
            assert_eq!(payload.len() as u32, 8 * ms);
            let since = header.timestamp.wrapping_sub(heard[0].0.timestamp);
            assert_eq!(since, n as u32 * 8 * ms);
        }
    }
}

#[test]
fn losses_are_made_up_pauses_are_kept_and_order_is_restored() {
    for codec in [Codec::Pcmu, Codec::G722] {
        let mut stage = Stage::new(codec);
        let mut random = fastrand::Rng::with_seed(7);
        let mut frames = Vec::new();
        let mut overtaken: Option<Vec<u8>> = None;
        let mut lost = 0;
        for n in 0..500 {
            let packet = stage.packet(400.0, 20);
            match random.u8(..100) {
                0..5 if n > 0 && n < 499 => lost += 1,
                5..15 if overtaken.is_none() && n < 499 => overtaken = Some(packet),
                _ => {
                    stage.receive(&packet);
                    if let Some(late) = overtaken.take() {
                        stage.receive(&late);
                    }
                }
            }
            stage.tick();
            frames.extend(stage.frames());
        }
        assert_eq!(stage.session.report().lost_in, lost, "{codec:?}");
        assert_eq!(frames.len(), 500, "{codec:?}");
        assert!(steps(&frames).iter().all(|step| *step == 960));
        let share = purity(&decoded(&frames)[9_600..], 48_000, 400.0);
        assert!(share > 0.85, "{codec:?}: {share}");
        assert!(stage.session.report().packets_in == 500 - lost);
    }
}

#[test]
fn a_pause_stays_a_pause_and_a_clock_set_anew_does_not_stop_the_sound() {
    let mut stage = Stage::new(Codec::Pcmu);
    let mut frames = say_and_collect(&mut stage, 700.0, 10);
    // A pause of a second, without loss.
    stage.header.timestamp = stage.header.timestamp.wrapping_add(8_000);
    stage.header.marker = true;
    stage.now += Duration::from_secs(1);
    frames.extend(say_and_collect(&mut stage, 700.0, 10));
    assert_eq!(steps(&frames)[9], 960 + 48_000);
    assert!(frames[10].marker);
    // A jump of the timestamp, the sequence number, the SSRC.
    for change in 0..3 {
        match change {
            0 => stage.header.timestamp = stage.header.timestamp.wrapping_sub(500_000),
            1 => stage.header.sequence = stage.header.sequence.wrapping_add(20_000),
            _ => stage.header.ssrc += 1,
        }
        stage.now += Duration::from_millis(480);
        let before = frames.last().unwrap().timestamp;
        let after = say_and_collect(&mut stage, 700.0, 10);
        assert!(after.len() >= 9, "{change}: {}", after.len());
        assert!(after[0].marker, "{change}");
        let step = after[0].timestamp.wrapping_sub(before);
        assert!(
            (960 + 480 * 48..=960 * 2 + 480 * 48).contains(&step),
            "{change}: {step}"
        );
        frames = after;
    }
}

#[test]
fn silence_is_not_sent_and_speech_after_it_begins_where_it_belongs() {
    let mut stage = Stage::new(Codec::Pcmu);
    say_and_collect(&mut stage, 700.0, 10);
    let silence = say_and_collect(&mut stage, 0.0, 100);
    assert!((10..20).contains(&silence.len()), "{}", silence.len());
    let speech = say_and_collect(&mut stage, 700.0, 10);
    assert_eq!(speech.len(), 10);
    assert!(speech[0].marker);
    let step = speech[0].timestamp.wrapping_sub(silence[0].timestamp);
    assert_eq!(step, 100 * 960);
}

#[test]
fn keys_are_heard_once_and_are_not_sound() {
    let mut stage = Stage::new(Codec::Pcmu);
    say_and_collect(&mut stage, 700.0, 5);
    stage.events();
    let (pressed, sound) = (stage.header.timestamp, stage.header.payload_type);
    for n in 0..10_u16 {
        let duration = (160 * (n + 1).min(8)).to_be_bytes();
        let mut packet = Vec::new();
        stage.header.payload_type = 101;
        stage.header.timestamp = pressed;
        stage.header.marker = n == 0;
        stage.header.write(&mut packet);
        packet.extend([11, u8::from(n >= 7) << 7 | 0x0A, duration[0], duration[1]]);
        stage.header.sequence = stage.header.sequence.wrapping_add(1);
        // Some are lost.
        if n % 3 != 0 {
            stage.receive(&packet);
        }
        stage.tick();
    }
    assert_eq!(
        stage.events(),
        [MediaEvent::Digit {
            code: 11,
            digit: '#'
        }]
    );
    assert!(stage.frames().is_empty());
    stage.header.timestamp = pressed.wrapping_add(1_600);
    stage.header.payload_type = sound;
    let after = say_and_collect(&mut stage, 700.0, 5);
    assert_eq!(after.len(), 5);
    assert!(after[0].marker);
}

#[test]
fn keys_are_pressed_in_place_of_sound_and_sound_goes_on_after_them() {
    let mut stage = Stage::new(Codec::Pcmu);
    let mut speaker = Speaker::new(&mut stage, 600.0);
    let mut frames = |stage: &mut Stage, count| {
        for _ in 0..count {
            speaker.say(stage.now);
            stage.tick();
        }
        stage.heard()
    };
    let before = frames(&mut stage, 20);
    stage.session.press("1w2");
    let heard = frames(&mut stage, 8 + 25 + 8 + 10);
    let start = before[0].0;
    let keys: Vec<_> = heard
        .iter()
        .filter(|(h, _)| h.payload_type == 101)
        .collect();
    assert_eq!(keys.len(), 14);
    let events: Vec<u8> = keys.iter().map(|(_, payload)| payload[0]).collect();
    assert_eq!(events, [[1; 7], [2; 7]].concat());
    assert_eq!(keys[0].0.timestamp.wrapping_sub(start.timestamp), 20 * 160);
    assert_eq!(
        keys[7].0.timestamp.wrapping_sub(start.timestamp),
        (20 + 33) * 160
    );
    let (last, _) = heard.last().unwrap();
    assert_eq!(last.payload_type, 0);
    assert_eq!(
        last.timestamp.wrapping_sub(start.timestamp),
        (20 + 50) * 160
    );
    let numbers = heard.windows(2);
    let mut numbers = numbers.map(|w| w[1].0.sequence.wrapping_sub(w[0].0.sequence));
    assert!(numbers.all(|step| step == 1));
    // No audio during a digit; audio in the pause.
    assert_eq!(heard.len(), 8 + 25 + 8 + 10 - 2);
}

#[test]
fn where_no_keys_are_known_they_are_heard_as_tones() {
    let mut stage = Stage::new(Codec::Pcma);
    let agreement = Agreement {
        dtmf: None,
        ..stage.agreement.clone()
    };
    stage.session.agree(&agreement, stage.now);
    stage.session.press("5");
    let mut sound = Vec::new();
    for _ in 0..6 {
        stage.tick();
    }
    for (_, payload) in stage.heard() {
        stage.decoder.decode(&payload, &mut sound);
    }
    let tone = &sound[160..720];
    assert!(purity(tone, 8_000, 770.0) > 0.4 && purity(tone, 8_000, 1_336.0) > 0.4);
}

#[test]
fn encrypted_calls_are_heard_both_ways_and_forgeries_are_not() {
    let mut stage = Stage::with(Codec::Pcmu, Encryption::Require);
    let mut speaker = Speaker::new(&mut stage, 600.0);
    let mut frames = Vec::new();
    for _ in 0..60 {
        speaker.say(stage.now);
        stage.say(700.0, 1);
        frames.extend(stage.frames());
    }
    assert!(purity(&decoded(&frames)[9_600..], 48_000, 700.0) > 0.95);
    let mut sound = Vec::new();
    for (_, payload) in stage.heard() {
        stage.decoder.decode(&payload, &mut sound);
    }
    assert!(purity(&sound[4_000..], 8_000, 600.0) > 0.95);
    let mut forged = Vec::new();
    stage.header.write(&mut forged);
    forged.extend([0; 170]);
    let before = stage.session.report();
    stage.receive(&forged);
    let after = stage.session.report();
    assert_eq!(after.packets_in, before.packets_in);
    assert_eq!(after.refused, before.refused + 1);
    assert!(after.encrypted && stage.frames().is_empty());
}

/// An encrypted call longer than a cycle of sequence numbers, which wrap in both directions.
fn long_encrypted_call() -> Stage {
    let mut stage = Stage::with(Codec::Pcmu, Encryption::Require);
    stage.session.stream.sequence = 65_500;
    hears_both_ways(&mut stage);
    assert!(stage.session.stream.sequence < 100 && stage.header.sequence < 100);
    stage
}

/// Both sides decrypt each other for a second.
fn hears_both_ways(stage: &mut Stage) {
    stage.heard();
    let frames = say_and_collect(stage, 700.0, 50);
    assert_eq!(frames.len(), 50);
    assert_eq!(stage.heard().len(), 50);
    assert_eq!(stage.session.report().refused, 0);
}

fn keys(agreement: &mut Agreement) -> &mut (Crypto, Crypto) {
    agreement.crypto.as_mut().unwrap()
}

#[test]
fn keys_that_stay_go_on_counting_when_the_rest_is_agreed_upon_anew() {
    let mut stage = long_encrypted_call();
    let ssrc = stage.session.stream.ssrc;
    let mut agreement = stage.agreement.clone();
    // The other side uses other tags.
    let (ours, theirs) = keys(&mut agreement);
    (ours.tag, theirs.tag) = (7, 7);
    stage.session.agree(&agreement, stage.now);
    hears_both_ways(&mut stage);
    // It has a new key, we do not: it begins a new rollover counter.
    let (_, theirs) = keys(&mut agreement);
    *theirs = Crypto::new(7, theirs.suite).unwrap();
    stage.protect = ProtectContext::new(theirs);
    stage.session.agree(&agreement, stage.now);
    hears_both_ways(&mut stage);
    assert_eq!(stage.session.stream.ssrc, ssrc);
}

#[test]
fn a_key_of_ours_never_locks_two_packets_alike() {
    let mut stage = long_encrypted_call();
    let sent = stage.session.report().packets_out;
    let encrypted = stage.agreement.clone();
    let plain = Agreement {
        crypto: None,
        ..encrypted.clone()
    };
    let ssrc = stage.session.stream.ssrc;
    stage.session.agree(&plain, stage.now);
    stage.tick();
    stage.sent.0.clear();
    stage.session.agree(&encrypted, stage.now);
    // So does the phone.
    stage.protect = ProtectContext::new(&keys(&mut encrypted.clone()).1);
    stage.header.ssrc += 1;
    assert_ne!(stage.session.stream.ssrc, ssrc);
    hears_both_ways(&mut stage);
    // A new key of ours begins a new stream, too: nobody knows its rollover counter.
    let ssrc = stage.session.stream.ssrc;
    let mut other = encrypted;
    let (ours, _) = keys(&mut other);
    *ours = Crypto::new(1, ours.suite).unwrap();
    stage.unprotect = Some(UnprotectContext::new(ours.clone()));
    stage.session.agree(&other, stage.now);
    hears_both_ways(&mut stage);
    assert_ne!(stage.session.stream.ssrc, ssrc);
    assert_eq!(stage.session.report().packets_out, sent + 1 + 50 + 50);
}

#[test]
fn media_goes_to_where_it_comes_from_and_strangers_are_not_heard() {
    let mut stage = Stage::new(Codec::Pcmu);
    stage.tick();
    assert_eq!(stage.sent.0[0].1, phone_address());
    // Another port of the signalling peer: a NAT.
    let behind_nat = SocketAddr::new(phone_address().ip(), 33_333);
    let packet = stage.packet(700.0, 20);
    stage
        .session
        .receive(Port::Rtp, &packet, behind_nat, stage.now, &mut stage.sent);
    stage.sent.0.clear();
    stage.tick();
    assert_eq!(stage.sent.0[0].1, behind_nat);
    let packet = stage.packet(700.0, 20);
    let stranger = SocketAddr::from(([198, 51, 100, 1], 1));
    stage
        .session
        .receive(Port::Rtp, &packet, stranger, stage.now, &mut stage.sent);
    stage.sent.0.clear();
    stage.tick();
    assert_eq!(stage.sent.0[0].1, behind_nat);
    assert_eq!(stage.session.report().refused, 1);
    assert_eq!(stage.session.report().packets_in, 1);
}

/// An attacker sends well-formed packets to every port from many addresses: before the phone's first packet, while it
/// sends, while it is silent, and after media was moved. None of them is heard, and nothing is sent there.
#[test]
fn a_call_is_not_taken_by_who_sprays_ports() {
    let mut stage = Stage::new(Codec::Pcmu);
    let mut thief = (1..=306_u32).map(|n| {
        let header = Header {
            ssrc: 0x6666,
            sequence: n as u16,
            timestamp: n * 160,
            ..stage.header
        };
        let mut packet = Vec::new();
        header.write(&mut packet);
        packet.extend([0x20; 160]);
        let from = SocketAddr::from(([198, 51, 100, (n % 3) as u8], 5_000));
        (packet, from)
    });
    let thief: Vec<_> = thief.by_ref().collect();
    let mut report = Vec::new();
    let block = rtcp::ReportBlock {
        ssrc: stage.session.stream.ssrc,
        lost: 9,
        ..Default::default()
    };
    rtcp::write(&mut report, 0x6666, None, Some(block), "thief", true);
    let mut frames = 0;
    for (n, (packet, from)) in thief.iter().enumerate() {
        let now = stage.now;
        stage
            .session
            .receive(Port::Rtp, packet, *from, now, &mut stage.sent);
        stage
            .session
            .receive(Port::Rtcp, &report, *from, now, &mut stage.sent);
        // The phone sends, is silent for more than a second, and moves.
        match n {
            50..100 | 200..250 => stage.say(700.0, 1),
            150 => {
                let moved = Agreement {
                    rtp: Some(SocketAddr::new(phone_address().ip(), 6_100)),
                    ..stage.agreement.clone()
                };
                stage.session.agree(&moved, now);
                stage.tick();
            }
            _ => stage.tick(),
        }
        frames += stage.frames().len();
    }
    assert_eq!(frames, 100);
    let told = stage.session.report();
    assert_eq!((told.packets_in, told.lost_out), (100, 0));
    assert_eq!(told.refused, 2 * thief.len() as u64);
    let astray = stage
        .sent
        .0
        .iter()
        .filter(|(_, to, _)| to.ip() != phone_address().ip());
    assert_eq!(astray.count(), 0);
}

/// Before the ACK it is unknown whether the described address wants media.
#[test]
fn a_call_that_nobody_acknowledges_is_sent_nothing() {
    let mut stage = Stage::new(Codec::Pcmu);
    stage.session.await_acknowledgement();
    let mut speaker = Speaker::new(&mut stage, 600.0);
    for _ in 0..50 * 35 {
        speaker.say(stage.now);
        stage.tick();
    }
    stage.session.end(stage.now, &mut stage.sent);
    assert!(stage.sent.0.is_empty());
    assert_eq!(stage.session.report().packets_out, 0);
}

#[test]
fn what_is_said_while_the_answer_is_on_its_way_is_heard_from_its_beginning() {
    let mut stage = Stage::new(Codec::Pcmu);
    stage.session.answered = false;
    stage.session.await_acknowledgement();
    stage.tick();
    stage.session.answered(stage.now);
    let mut speaker = Speaker::new(&mut stage, 600.0);
    // A greeting of a second, acknowledged after 200 ms.
    for n in 0..150 {
        if n == 10 {
            stage.session.acknowledged();
        }
        if n < 50 {
            speaker.say(stage.now);
        }
        stage.tick();
    }
    let mut sound = Vec::new();
    for (_, payload) in stage.heard() {
        stage.decoder.decode(&payload, &mut sound);
    }
    let loud = |frame: &&[i16]| vivavoce_audio::pcm::level_dbov(frame) < 40;
    let heard = sound.chunks_exact(160).filter(loud).count();
    // The jitter buffer takes a little of the beginning and adds it at the end.
    assert!((48..=56).contains(&heard), "{heard} of 50 frames");
    assert_eq!(sound.len() / 160, 140, "nothing is late at the end");
}

#[test]
fn who_speaks_before_its_acknowledgement_is_neither_heard_nor_sent_anything_until_it_arrives() {
    let mut stage = Stage::new(Codec::Pcmu);
    stage.session.await_acknowledgement();
    // A phone behind a NAT, which speaks, presses a key and reports all the while.
    let behind = SocketAddr::new(phone_address().ip(), 7_000);
    let mut speaker = Speaker::new(&mut stage, 600.0);
    let say = |stage: &mut Stage, speaker: &mut Speaker| {
        speaker.say(stage.now);
        let packet = stage.packet(700.0, 20);
        stage
            .session
            .receive(Port::Rtp, &packet, behind, stage.now, &mut stage.sent);
        let mut key = Vec::new();
        stage.header.payload_type = 101;
        stage.header.write(&mut key);
        key.extend([5, 0x8A, 0, 160]);
        stage.header.sequence = stage.header.sequence.wrapping_add(1);
        stage.header.payload_type = stage.agreement.payload_type;
        stage
            .session
            .receive(Port::Rtp, &key, behind, stage.now, &mut stage.sent);
        let mut report = Vec::new();
        rtcp::write(&mut report, 77, None, None, "phone", false);
        let from = SocketAddr::new(behind.ip(), 7_001);
        stage
            .session
            .receive(Port::Rtcp, &report, from, stage.now, &mut stage.sent);
        stage.tick();
    };
    for _ in 0..300 {
        say(&mut stage, &mut speaker);
        assert!(stage.frames().is_empty());
    }
    assert!(stage.sent.0.is_empty() && stage.events().is_empty());
    let report = stage.session.report();
    assert_eq!((report.packets_in, report.packets_out), (0, 0));

    stage.session.acknowledged();
    let mut frames = 0;
    for n in 0..50 {
        say(&mut stage, &mut speaker);
        frames += stage.frames().len();
        let events = stage.events();
        let pressed = MediaEvent::Digit {
            code: 5,
            digit: '5',
        };
        let first = [MediaEvent::FirstPacket, pressed];
        assert!(events.ends_with(&[pressed]), "{n}: {events:?}");
        assert_eq!(events.starts_with(&first), n == 0, "{n}: {events:?}");
    }
    assert_eq!(frames, 50, "heard from the acknowledgement on");
    assert_eq!(stage.session.report().lost_in, 0);
    // The room is heard where the phone sends from, the greeting first.
    let sent = std::mem::take(&mut stage.sent.0);
    let rtp = sent.iter().filter(|(port, ..)| *port == Port::Rtp);
    assert!(rtp.clone().all(|(_, to, _)| *to == behind));
    assert_eq!(rtp.count(), 50);
}

/// The peer of a call may send packets as fast as the network allows: the work must stay bounded.
#[test]
fn more_sound_than_time_is_not_work_and_more_keys_than_fingers_are_not_told() {
    let mut stage = Stage::new(Codec::Pcmu);
    let (mut frames, mut keys) = (0, 0);
    for _ in 0..50 {
        for _ in 0..100 {
            let packet = stage.packet(700.0, 20);
            stage.receive(&packet);
            stage.header.payload_type = 101;
            let mut key = Vec::new();
            stage.header.write(&mut key);
            key.extend([5, 0x0A, 0, 160]);
            stage.header.sequence = stage.header.sequence.wrapping_add(1);
            stage.header.payload_type = stage.agreement.payload_type;
            stage.receive(&key);
            frames += stage.frames().len();
        }
        keys += stage.events().len();
        stage.tick();
    }
    // One second: at most twice the audio of that time and the burst; 5,000 packets of each arrived.
    assert!((150..=260).contains(&frames), "{frames} frames");
    assert!((40..=65).contains(&keys), "{keys} keys");
}

#[test]
fn a_silent_telephone_is_told_and_a_held_one_is_not() {
    let mut stage = Stage::new(Codec::Pcmu);
    stage.say(700.0, 10);
    stage.events();
    let wait = |stage: &mut Stage, seconds: u32| {
        for _ in 0..50 * seconds {
            stage.tick();
        }
        stage.events()
    };
    assert_eq!(wait(&mut stage, 29), []);
    assert_eq!(wait(&mut stage, 2), [MediaEvent::Silent]);
    let held = Agreement {
        sends: false,
        hears: false,
        ..stage.agreement.clone()
    };
    stage.session.agree(&held, stage.now);
    stage.sent.0.clear();
    assert_eq!(wait(&mut stage, 60), [MediaEvent::Held(true)]);
    assert!(stage.heard().is_empty());
    let agreement = stage.agreement.clone();
    stage.session.agree(&agreement, stage.now);
    assert_eq!(wait(&mut stage, 29), [MediaEvent::Held(false)]);
    let heard = stage.heard();
    assert!(heard[0].0.marker && heard.len() == 29 * 50);
    assert_eq!(wait(&mut stage, 2), [MediaEvent::Silent]);
}

#[test]
fn silence_before_the_answer_does_not_count() {
    let mut stage = Stage::new(Codec::Pcmu);
    stage.session.answered = false;
    let wait = |stage: &mut Stage, ticks: u32| {
        for _ in 0..ticks {
            stage.tick();
        }
        stage.events()
    };
    // Early media was negotiated but none arrived, however long it rang.
    assert_eq!(wait(&mut stage, 50 * 95), []);
    stage.session.answered(stage.now);
    // The answer changes nothing.
    let agreement = stage.agreement.clone();
    stage.session.agree(&agreement, stage.now);
    assert_eq!(wait(&mut stage, 50 * 30), []);
    assert_eq!(wait(&mut stage, 1), [MediaEvent::Silent]);
}

#[test]
fn a_call_that_we_hold_is_silent_both_ways() {
    let mut stage = Stage::new(Codec::Pcmu);
    let mut speaker = Speaker::new(&mut stage, 600.0);
    stage.session.hold(true);
    let mut sound = Vec::new();
    for _ in 0..50 {
        speaker.say(stage.now);
        stage.say(700.0, 1);
    }
    for (_, payload) in stage.heard() {
        stage.decoder.decode(&payload, &mut sound);
    }
    assert!(sound.len() == 8_000 && sound.iter().all(|sample| sample.abs() <= 8));
    assert!(stage.frames().is_empty());
    assert_eq!(stage.session.report().packets_in, 50);
}

#[test]
fn both_sides_report_how_they_hear_each_other() {
    let mut stage = Stage::new(Codec::Pcmu);
    for n in 0..300 {
        let packet = stage.packet(700.0, 20);
        if n % 10 != 5 {
            stage.receive(&packet);
        }
        stage.tick();
        stage.frames();
    }
    let reports: Vec<_> = stage
        .sent
        .0
        .iter()
        .filter(|(port, ..)| *port == Port::Rtcp)
        .collect();
    assert_eq!(reports.len(), 1);
    let (_, to, packet) = reports[0];
    assert_eq!(*to, SocketAddr::new(phone_address().ip(), 6_001));
    let reported = rtcp::parse(packet, 77).unwrap();
    let block = reported.ours.unwrap();
    assert_eq!(block.lost, 25);
    assert!(
        (24..=26).contains(&block.fraction_lost),
        "{}",
        block.fraction_lost
    );
    let ours = reported.sender.unwrap().0;
    let mut theirs = Vec::new();
    let block = rtcp::ReportBlock {
        ssrc: ours,
        lost: 4,
        jitter: 80,
        ..Default::default()
    };
    rtcp::write(&mut theirs, 77, None, Some(block), "phone", false);
    let stranger = SocketAddr::from(([198, 51, 100, 1], 6_001));
    stage
        .session
        .receive(Port::Rtcp, &theirs, stranger, stage.now, &mut stage.sent);
    assert_eq!(stage.session.report().lost_out, 0);
    let from = SocketAddr::new(phone_address().ip(), 6_001);
    stage
        .session
        .receive(Port::Rtcp, &theirs, from, stage.now, &mut stage.sent);
    let report = stage.session.report();
    assert_eq!((report.lost_out, report.packets_out), (4, 300));
    assert!((report.jitter_out_ms - 10.0).abs() < 0.01);
    assert_eq!(
        (report.first_in_ms, report.first_out_ms),
        (Some(0), Some(0))
    );
    stage.sent.0.clear();
    stage.session.end(stage.now, &mut stage.sent);
    assert!(rtcp::parse(&stage.sent.0[0].2, 77).unwrap().goodbye);
}

#[test]
fn jitter_of_the_network_reaches_the_room_as_such_and_is_evened_out_there() {
    let mut stage = Stage::new(Codec::Pcmu);
    let mut random = fastrand::Rng::with_seed(3);
    let start = stage.now;
    let mut arrivals: Vec<(Instant, Vec<u8>)> = (0..500)
        .map(|n| {
            let packet = stage.packet(700.0, 20);
            (start + n * FRAME + random.u32(0..35) * MS, packet)
        })
        .collect();
    arrivals.sort_by_key(|(at, _)| *at);
    let mut jitter = JitterBuffer::new(Bandwidth::Fullband);
    let (mut sound, mut frame, mut due) = (Vec::new(), [0; Bandwidth::Fullband.frame()], start);
    let mut sequence = 0;
    for (at, packet) in arrivals {
        while due <= at {
            jitter.pull(due, &mut frame);
            sound.extend(frame);
            due += FRAME;
        }
        stage.now = at;
        stage.receive(&packet);
        for frame in stage.frames() {
            sequence += 1;
            jitter.push(Arrived {
                sequence,
                timestamp: frame.timestamp,
                payload: Payload::Opus(frame.opus.unwrap()),
                at,
                level: Some(frame.level),
            });
        }
    }
    assert!(purity(&sound[96_000..144_000], 48_000, 700.0) > 0.9);
    let report = stage.session.report();
    assert_eq!(report.lost_in, 0);
    assert!(
        (5.0..20.0).contains(&report.jitter_ms),
        "{}",
        report.jitter_ms
    );
}

#[test]
fn no_datagram_ends_a_call() {
    let mut stage = Stage::new(Codec::Pcmu);
    let sample = stage.packet(700.0, 20);
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        let mut packet = sample.clone();
        packet.truncate(random.usize(..=sample.len()));
        for _ in 0..random.u8(..6) {
            if let Some(byte) = packet.get_mut(random.usize(..40)) {
                *byte = random.u8(..);
            }
        }
        let port = if random.bool() { Port::Rtp } else { Port::Rtcp };
        stage
            .session
            .receive(port, &packet, phone_address(), stage.now, &mut stage.sent);
        if random.u8(..20) == 0 {
            stage.tick();
            stage.sent.0.clear();
        }
        stage.frames();
    }
    stage.header.ssrc = 4_242;
    let frames = say_and_collect(&mut stage, 700.0, 50);
    assert!(purity(&decoded(&frames[frames.len() - 30..]), 48_000, 700.0) > 0.9);
    drop(stage.room.control);
}

/// Offers of a browser, and what it knows of us.
struct Browser {
    offer: String,
    identity: Identity,
    credentials: ice::Credentials,
    handshake: Option<Handshake>,
}

impl Browser {
    fn new() -> Self {
        let (identity, credentials) = (Identity::new().unwrap(), ice::Credentials::random());
        let offer = format!(
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\na=fingerprint:{}\r\n\
             m=audio 9 UDP/TLS/RTP/SAVPF 111 0 110\r\nc=IN IP4 0.0.0.0\r\na=ice-ufrag:{}\r\na=ice-pwd:{}\r\n\
             a=setup:actpass\r\na=mid:0\r\na=sendrecv\r\na=rtcp-mux\r\na=rtpmap:111 opus/48000/2\r\n\
             a=rtpmap:0 PCMU/8000\r\na=rtpmap:110 telephone-event/48000\r\n",
            identity.fingerprint().write(),
            credentials.fragment,
            credentials.password
        );
        Self {
            offer,
            identity,
            credentials,
            handshake: None,
        }
    }

    /// Takes an answer, and becomes the client of the handshake.
    fn accept(&mut self, answer: &str, now: Instant) -> ice::Credentials {
        let value = |name: &str| {
            let mut lines = answer.lines();
            let line = lines.find_map(|line| line.strip_prefix(&format!("a={name}:")));
            line.unwrap_or_else(|| panic!("no {name} in {answer}"))
        };
        assert_eq!(value("setup"), "passive");
        let association = Association {
            fingerprint: Fingerprint::parse(value("fingerprint")).unwrap(),
            active: true,
            ice: None,
        };
        self.handshake = Some(Handshake::new(&self.identity, &association, now));
        ice::Credentials::parse(value("ice-ufrag"), value("ice-pwd")).unwrap()
    }
}

#[test]
fn a_browser_is_found_by_its_checks_and_heard_after_a_handshake_with_nobody_else() {
    let mut browser = Browser::new();
    let mut stage = Stage::new(Codec::Pcmu);
    let address = SocketAddr::from(([192, 0, 2, 1], 20_000));
    let mut ours = OfferAnswer::new(&[Codec::Pcmu], Encryption::Off, address)
        .with_certificate(stage.identity.fingerprint());
    let answer = ours.answer(&browser.offer).unwrap();
    for line in [
        "a=ice-lite",
        "a=group:BUNDLE 0",
        "a=mid:0",
        "a=rtcp-mux",
        "a=candidate:1 1 udp 2130706431 192.0.2.1 20000 typ host",
        "m=audio 20000 UDP/TLS/RTP/SAVPF 0",
    ] {
        assert!(
            answer.lines().any(|one| one.starts_with(line)),
            "{line}: {answer}"
        );
    }
    stage.agreement = ours.agreement().unwrap().clone();
    stage.session.agree(&stage.agreement, stage.now);
    let theirs = browser.accept(&answer, stage.now);
    assert!(stage.session.report().encrypted);

    // Neither is anything sent, nor is anybody heard who has proven nothing.
    let there = SocketAddr::from(([203, 0, 113, 99], 50_000));
    let thief = SocketAddr::from(([198, 51, 100, 6], 6));
    let plain = stage.packet(700.0, 20);
    for from in [there, thief, phone_address()] {
        stage
            .session
            .receive(Port::Rtp, &plain, from, stage.now, &mut stage.sent);
    }
    let mut handshake = browser.handshake.take().unwrap();
    let mut hello = Vec::new();
    handshake.tick(stage.now, |one| hello.push(one.to_vec()));
    for one in &hello {
        stage
            .session
            .receive(Port::Rtp, one, thief, stage.now, &mut stage.sent);
    }
    stage.tick();
    assert_eq!(stage.sent.0, []);
    assert!(stage.frames().is_empty());

    // Its check is answered, and the handshake is made where it came from.
    let check = ice::write_check(&browser.credentials, &theirs, true);
    stage
        .session
        .receive(Port::Rtp, &check, there, stage.now, &mut stage.sent);
    let (_, to, answered) = stage.sent.0.remove(0);
    assert_eq!((to, answered[0]), (there, 1));
    let mut keys = None;
    let mut said = hello;
    for _ in 0..200 {
        for one in std::mem::take(&mut said) {
            stage
                .session
                .receive(Port::Rtp, &one, there, stage.now, &mut stage.sent);
        }
        let sent = std::mem::take(&mut stage.sent.0);
        for (_, to, datagram) in sent {
            assert_eq!(to, there);
            if (20..64).contains(&datagram[0]) {
                let found = handshake.receive(&datagram, stage.now, |one| said.push(one.to_vec()));
                keys = found.or(keys);
            }
        }
        let found = handshake.tick(stage.now, |one| said.push(one.to_vec()));
        keys = found.or(keys);
        stage.tick();
    }
    let (own, their) = keys.expect("no keys");
    stage.protect = ProtectContext::new(&own);
    stage.unprotect = Some(UnprotectContext::new(their));
    stage.sent.0.clear();

    // Now both are heard.
    let mut frames = Vec::new();
    for _ in 0..50 {
        let packet = stage.packet(700.0, 20);
        stage
            .session
            .receive(Port::Rtp, &packet, there, stage.now, &mut stage.sent);
        stage.tick();
        frames.extend(stage.frames());
    }
    assert!(purity(&decoded(&frames[frames.len() - 30..]), 48_000, 700.0) > 0.9);
    assert!(stage.heard().len() >= 49);

    // The same description again, or a restart of ICE, keeps the keys; it moves where the next check comes from.
    let again = browser.offer.replace(&browser.credentials.fragment, "anew");
    let answer = ours.answer(&again).unwrap();
    stage.session.agree(ours.agreement().unwrap(), stage.now);
    assert!(
        !answer.contains(&theirs.fragment),
        "the answer to a restart is one"
    );
    let packet = stage.packet(700.0, 20);
    stage
        .session
        .receive(Port::Rtp, &packet, there, stage.now, &mut stage.sent);
    stage.tick();
    assert_eq!(stage.frames().len(), 1);
}

/// Two telephones in one room that pass on each other's packets, or do not: what the room and the threads do between them.
struct Pair {
    one: Stage,
    other: Stage,
    /// What of the one is heard in the room by the other.
    track: TrackWriter,
    sequence: u64,
    /// The other, as the one knows it.
    port: Arc<OtherEnd>,
}

/// The other's end of the relay: packets that it was handed.
#[derive(Debug, Default)]
struct OtherEnd {
    alone: std::sync::atomic::AtomicBool,
    takes: std::sync::Mutex<Option<Codec>>,
    stopped: std::sync::atomic::AtomicBool,
    handed: std::sync::Mutex<Vec<Passing>>,
}

impl Relay for OtherEnd {
    fn takes(&self, encoding: &str) -> bool {
        let alone = self.alone.load(std::sync::atomic::Ordering::Relaxed);
        alone
            && self
                .takes
                .lock()
                .unwrap()
                .is_some_and(|codec| codec.name() == encoding)
    }

    fn relay(&self, packet: &Relayed<'_>) -> bool {
        let codec = Codec::parse(packet.encoding).unwrap();
        let copy = Passing::copy(packet, codec);
        self.handed.lock().unwrap().push(copy);
        true
    }

    fn stop(&self) {
        self.stopped
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Pair {
    fn new(codec: Codec, encryption: Encryption) -> Self {
        let (one, mut other) = (
            Stage::with(codec, encryption),
            Stage::with(codec, encryption),
        );
        let (track, audio) = LinkEnd::track();
        other.session.hear("TR_1", "one", audio);
        let port = Arc::<OtherEnd>::default();
        let relay: Arc<dyn Relay> = Arc::clone(&port) as Arc<dyn Relay>;
        one.frames.relay_to(Some(Arc::downgrade(&relay)));
        Self {
            one,
            other,
            track,
            sequence: 0,
            port,
        }
    }

    /// Whether nobody else is in the room.
    fn alone(&self, alone: bool) {
        self.port
            .alone
            .store(alone, std::sync::atomic::Ordering::Relaxed);
    }

    /// One packet of the one's arrives, if it does, and 20 ms pass at the other.
    fn step(&mut self, packet: Option<&[u8]>) {
        if let Some(packet) = packet {
            self.one.receive(packet);
            let mut passing = Passing::default();
            if self.one.session.take_passing(&mut passing) {
                assert!(passing.send());
            }
        }
        let now = self.other.now;
        for packet in std::mem::take(&mut *self.port.handed.lock().unwrap()) {
            let packet = packet.relayed().unwrap();
            // Between two ticks.
            let taken = self
                .other
                .session
                .relay(&packet, now - 7 * MS, &mut self.other.sent);
            assert!(taken);
        }
        for frame in self.one.frames() {
            self.track.write(Packet {
                payload: Payload::Opus(frame.opus.unwrap()),
                sequence: self.sequence,
                timestamp: frame.timestamp,
                marker: frame.marker,
                arrived: now - 5 * MS,
                level: Some(frame.level),
            });
            self.sequence += 1;
        }
        if self
            .port
            .stopped
            .swap(false, std::sync::atomic::Ordering::Relaxed)
        {
            self.other.session.stop_relayed();
        }
        self.one.tick();
        self.other.tick();
        *self.port.takes.lock().unwrap() = self.other.session.takes_relayed();
    }

    fn say(&mut self, hz: f32, packets: u32) {
        for _ in 0..packets {
            let packet = self.one.packet(hz, 20);
            self.step(Some(&packet));
        }
    }

    fn relayed(&self) -> u64 {
        self.other.session.report().packets_relayed
    }
}

/// The sound of packets by their place on the clock, and the largest gap between two.
fn placed(heard: &[(Header, Vec<u8>)], codec: Codec) -> (Vec<i16>, u32) {
    let mut decoder = Decoder::new(codec).unwrap();
    let (mut sound, mut widest, mut next) = (Vec::new(), 0, None::<u32>);
    for (header, payload) in heard {
        if let Some(next) = next {
            widest = widest.max(header.timestamp.wrapping_sub(next));
        }
        let before = sound.len();
        decoder.decode(payload, &mut sound);
        next = Some(
            header
                .timestamp
                .wrapping_add(codec.ticks(sound.len() - before)),
        );
    }
    (sound, widest)
}

#[test]
fn two_who_are_alone_get_each_others_packets_in_every_codec_and_in_secret() {
    for (codec, encryption) in [
        (Codec::Pcmu, Encryption::Off),
        (Codec::Pcma, Encryption::Require),
        (Codec::G722, Encryption::Off),
        (Codec::Opus, Encryption::Require),
    ] {
        let mut pair = Pair::new(codec, encryption);
        pair.say(700.0, 50);
        assert_eq!(pair.relayed(), 0);
        pair.alone(true);
        pair.say(700.0, 100);
        // Not before it is certain that it stays so.
        assert_eq!(pair.relayed(), 75, "{codec:?}");
        pair.alone(false);
        pair.say(700.0, 50);
        assert_eq!(pair.relayed(), 75, "{codec:?}");
        pair.alone(true);
        pair.say(700.0, 100);
        assert_eq!(pair.relayed(), 150, "{codec:?}");
        let heard = pair.other.heard();
        assert!(
            (299..=302).contains(&heard.len()),
            "{codec:?}: {}",
            heard.len()
        );
        let one_by_one = heard.windows(2).all(|two| {
            two[1].0.sequence == two[0].0.sequence.wrapping_add(1) && two[1].0.ssrc == two[0].0.ssrc
        });
        assert!(one_by_one, "{codec:?}");
        let (sound, widest) = placed(&heard, codec);
        assert_eq!(widest, 0, "{codec:?}");
        let second = codec.rate().hz() as usize;
        let share = purity(&sound[sound.len() - second..], codec.rate().hz(), 700.0);
        assert!(share > 0.95, "{codec:?}: {share}");
        let report = pair.one.session.report();
        assert_eq!((report.packets_in, report.lost_in), (300, 0), "{codec:?}");
    }
}

/// Beginning and end are heard neither as clicks nor as gaps.
#[test]
fn what_is_relayed_and_what_is_not_are_one_sound() {
    let mut pair = Pair::new(Codec::Pcmu, Encryption::Off);
    for alone in [false, true, false, true, false] {
        pair.alone(alone);
        pair.say(250.0, 75);
    }
    assert_eq!(pair.relayed(), 100);
    let heard = pair.other.heard();
    let (sound, _) = placed(&heard, Codec::Pcmu);
    let sound = &sound[8_000..];
    // A sine of 8,000 at 250 Hz has no steeper slope than 1,571 between two samples of 8 kHz; G.711 rounds by up to 256.
    let steepest = sound
        .windows(2)
        .map(|two| two[0].abs_diff(two[1]))
        .max()
        .unwrap();
    assert!(steepest < 2_600, "{steepest}");
    let quietest = sound
        .chunks(160)
        .map(|frame| frame.iter().map(|s| s.unsigned_abs()).max().unwrap());
    let quiet = quietest.filter(|peak| *peak < 2_000).count();
    assert!(quiet <= 2, "{quiet} frames of silence");
}

#[test]
fn losses_order_and_pauses_are_passed_on() {
    let mut pair = Pair::new(Codec::Pcmu, Encryption::Require);
    pair.alone(true);
    pair.say(700.0, 60);
    pair.other.heard();
    let packets: Vec<_> = (0..6).map(|_| pair.one.packet(700.0, 20)).collect();
    // The second is lost, the fourth overtakes the third, and the fifth comes twice.
    for packet in [0, 3, 2, 4, 4, 5] {
        let arrived = packets[packet].clone();
        pair.step(Some(&arrived));
    }
    let heard = pair.other.heard();
    let first = heard[0].0;
    let places: Vec<_> = heard
        .iter()
        .map(|(header, _)| {
            let ticks = header.timestamp.wrapping_sub(first.timestamp);
            (header.sequence.wrapping_sub(first.sequence), ticks / 160)
        })
        .collect();
    assert_eq!(places, [(0, 0), (3, 3), (2, 2), (4, 4), (5, 5)]);
    let report = pair.one.session.report();
    assert_eq!(report.lost_in, 1);
    // Without packets the other gets silence after a while, and then what comes, on one clock.
    for _ in 0..50 {
        pair.step(None);
    }
    pair.one.header.timestamp = pair.one.header.timestamp.wrapping_add(50 * 160);
    pair.one.header.marker = true;
    pair.say(700.0, 40);
    let heard = pair.other.heard();
    assert!(heard.len() > 60, "{}", heard.len());
    let grows = |two: &[(Header, Vec<u8>)]| {
        let ticks = two[1].0.timestamp.wrapping_sub(two[0].0.timestamp);
        two[1].0.sequence == two[0].0.sequence.wrapping_add(1) && (160..2_000).contains(&ticks)
    };
    assert!(heard.windows(2).all(grows));
    let clock = heard
        .last()
        .unwrap()
        .0
        .timestamp
        .wrapping_sub(first.timestamp)
        / 160;
    assert!((90..=100).contains(&clock), "{clock}");
}

#[test]
fn digits_are_reported_and_sent_while_packets_are_relayed() {
    let mut pair = Pair::new(Codec::Pcmu, Encryption::Off);
    pair.alone(true);
    pair.say(700.0, 60);
    pair.other.heard();
    // The one's phone presses a key, in five packets with the number of an event.
    let events = (1..=5_u16).map(|n| (n * 160, n == 5));
    let (number, timestamp) = (
        pair.one.agreement.dtmf.unwrap().0,
        pair.one.header.timestamp,
    );
    for (duration, end) in events {
        let mut packet = Vec::new();
        let header = Header {
            payload_type: number,
            timestamp,
            ..pair.one.header
        };
        header.write(&mut packet);
        let [high, low] = duration.to_be_bytes();
        packet.extend([7, u8::from(end) << 7 | 0xA, high, low]);
        pair.one.header.sequence = pair.one.header.sequence.wrapping_add(1);
        pair.one.header.timestamp = pair.one.header.timestamp.wrapping_add(160);
        pair.step(Some(&packet));
    }
    let digit = MediaEvent::Digit {
        code: 7,
        digit: '7',
    };
    assert!(pair.one.events().contains(&digit));
    // The call of the other presses it there, as the room tells it.
    pair.other.session.press("7");
    pair.say(700.0, 40);
    let heard = pair.other.heard();
    let number = pair.other.agreement.dtmf.unwrap().0;
    let (events, sound): (Vec<_>, Vec<_>) = heard
        .iter()
        .partition(|(header, _)| header.payload_type == number);
    assert_eq!(events.len(), 7);
    assert!(events.iter().all(|(_, payload)| payload[0] == 7));
    assert!(sound.len() >= 30, "{}", sound.len());
    let in_order =
        |two: &[(Header, Vec<u8>)]| two[1].0.sequence == two[0].0.sequence.wrapping_add(1);
    assert!(heard.windows(2).all(in_order));
    assert!(pair.relayed() > 60);
}

/// Something that ends relaying, and its name.
type Ending = (&'static str, fn(&mut Session));

/// Whatever else is to be heard, or keeps the phone from hearing, ends it.
#[test]
fn who_gets_anything_else_gets_nothing_relayed() {
    let ends: [Ending; 6] = [
        ("hold", |session| session.hold(true)),
        ("mute", |session| session.mute(true)),
        ("part", |session| session.part(true, Instant::now())),
        ("clip", |session| session.repeat([0; 960].into())),
        ("redirect", |session| {
            session.redirect([198, 51, 100, 1].into());
        }),
        ("tones", |session| {
            session.agreement.as_mut().unwrap().dtmf = None;
            session.press("1");
        }),
    ];
    for (name, end) in ends {
        let mut pair = Pair::new(Codec::Pcmu, Encryption::Off);
        pair.alone(true);
        pair.say(700.0, 40);
        assert!(pair.other.session.takes_relayed().is_some());
        end(&mut pair.other.session);
        assert_eq!(pair.other.session.takes_relayed(), None, "{name}");
    }
    let ends: [Ending; 4] = [
        ("hold", |session| session.hold(true)),
        ("part", |session| session.part(true, Instant::now())),
        ("classify", |session| {
            let wanted = Wanted {
                network: None,
                beep_within: None,
            };
            session.classify(wanted, Instant::now());
        }),
        ("hears", |session| {
            session.agreement.as_mut().unwrap().hears = false;
        }),
    ];
    for (name, end) in ends {
        let mut pair = Pair::new(Codec::Pcmu, Encryption::Off);
        pair.alone(true);
        pair.say(700.0, 60);
        let before = pair.relayed();
        assert!(before > 0);
        end(&mut pair.one.session);
        pair.say(700.0, 30);
        assert_eq!(pair.relayed(), before, "{name}");
    }
}

/// After a re-INVITE with another codec the phone hears nothing of what was relayed in the former one.
#[test]
fn a_change_of_codec_ends_what_is_relayed() {
    let mut pair = Pair::new(Codec::Pcmu, Encryption::Off);
    pair.alone(true);
    pair.say(700.0, 60);
    let before = pair.relayed();
    assert!(before > 0);
    pair.other.heard();
    let mut agreement = pair.other.agreement.clone();
    agreement.codec = Codec::Pcma;
    let now = pair.other.now;
    pair.other.session.agree(&agreement, now);
    for _ in 0..20 {
        pair.step(None);
    }
    assert_eq!(pair.relayed(), before);
    let heard = pair.other.heard();
    let (sound, _) = placed(&heard, Codec::Pcma);
    let loudest = sound.iter().map(|sample| sample.unsigned_abs()).max();
    assert!(loudest < Some(100), "{loudest:?}");
}
