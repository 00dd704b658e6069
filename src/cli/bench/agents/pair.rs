//! A session in a room and a person who talks to it. They speak for two seconds each in turn; each records when it
//! began, and the other when it was heard.

use std::f64::consts::TAU;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use str0m::rtp::RtpPacket;
use tokio::sync::watch;
use tokio::time::{interval_at, sleep, timeout};

use super::super::load::{CYCLE, PATIENCE, SessionError};
use super::super::participant::{self, Joining, Lost, Media, PACKET, Phase};
use super::super::session::{Came, Session};
use crate::audio::opus::{Application, MAX_FRAME_PACKET, OpusEncoder, OpusError, OpusSettings};
use crate::audio::{Layout, SampleRate};
use crate::providers::null::SLUG as NULL;

/// The sound of a room.
const LAYOUT: Layout = Layout::mono(SampleRate::HZ_48000);
/// Packets of a cycle, and the one with which the person begins to speak: the session is silent by then.
const CYCLE_PACKETS: usize = 200;
const ONSET: usize = CYCLE_PACKETS / 2;
const VOICE_HZ: f64 = 125.0;
/// A packet that is later than its place after the first one by more than this leaves a hole with a listener who waits for
/// one packet.
const LATE: Duration = PACKET;
/// Between two looks whether the session's track is in the room.
const LOOK: Duration = Duration::from_millis(20);

/// Why a pair was not, or did not last.
#[derive(Debug, thiserror::Error)]
pub(super) enum PairError {
    #[error("the session: {0}")]
    Session(#[from] SessionError),
    #[error("the session: {0}")]
    Told(Value),
    #[error("the person in its room: {0}")]
    Person(#[from] Lost),
    #[error("the person in its room does not get the session's track in time")]
    NoTrack,
}

/// The packets of a cycle of the person's.
#[derive(Clone)]
pub(super) struct Voice(Arc<[Vec<u8>]>);

impl Voice {
    /// Silence, then a voice.
    pub(super) fn new() -> Result<Self, OpusError> {
        let settings = OpusSettings {
            application: Application::Voip,
            bitrate_bps: 32_000,
            complexity: 5,
            fec_loss_percent: None,
        };
        let mut encoder = OpusEncoder::new(LAYOUT, settings)?;
        let mut buffer = vec![0; MAX_FRAME_PACKET];
        let samples = LAYOUT.samples_in(PACKET);
        let packet = |index: usize| -> Result<Vec<u8>, OpusError> {
            let sound: Vec<i16> = (index * samples..(index + 1) * samples)
                .map(|at| if index < ONSET { 0 } else { voice(at) })
                .collect();
            let bytes = encoder.encode(&sound, &mut buffer)?;
            Ok(buffer.get(..bytes).unwrap_or_default().to_vec())
        };
        let packets: Result<Vec<_>, _> = (0..CYCLE_PACKETS).map(packet).collect();
        Ok(Self(packets?.into()))
    }
}

/// A sample of something with a voice in it.
fn voice(at: usize) -> i16 {
    let time = at as f64 / f64::from(LAYOUT.rate.hz());
    let harmonics = (1..20).map(|k| (TAU * VOICE_HZ * f64::from(k) * time).sin() / f64::from(k));
    (6_000.0 * harmonics.sum::<f64>()) as i16
}

/// When something began that the other has not heard yet, in nanoseconds since the clock began; 0 is nothing.
#[derive(Debug, Clone)]
struct Begun {
    clock: Instant,
    at: Arc<AtomicU64>,
}

impl Begun {
    fn new(clock: Instant) -> Self {
        let at = Arc::default();
        Self { clock, at }
    }

    /// Now. False if what began before was never heard.
    fn begin(&self) -> bool {
        let now = u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.at.swap(now.max(1), Relaxed) == 0
    }

    /// How long it took until now; `None` of nothing.
    fn heard(&self) -> Option<f64> {
        let begun = Some(self.at.swap(0, Relaxed)).filter(|begun| *begun > 0)?;
        let took = self
            .clock
            .elapsed()
            .saturating_sub(Duration::from_nanos(begun));
        Some(took.as_secs_f64() * 1e3)
    }
}

/// What both have counted while it was measured.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// From the person's first packet of a voice to the session's word of it.
    pub(super) to_session_ms: Vec<f64>,
    /// What began before the session had heard the last.
    pub(super) unheard: u64,
    /// Words for which nobody has spoken.
    pub(super) unasked: u64,
    /// From asking for speech to the first packet at the person.
    pub(super) to_person_ms: Vec<f64>,
    /// Speech of which nothing had come when the next was asked for.
    pub(super) unspoken: u64,
    /// Packets at the person, and how much later each was than its place after the first one.
    pub(super) late_ms: Vec<f32>,
    /// Those of them that are later than [`LATE`].
    pub(super) late: u64,
    /// Packets that never came, or were never sent.
    pub(super) missing: u64,
}

impl Heard {
    pub(super) fn add(&mut self, other: Self) {
        self.to_session_ms.extend(other.to_session_ms);
        self.to_person_ms.extend(other.to_person_ms);
        self.late_ms.extend(other.late_ms);
        self.unheard += other.unheard;
        self.unasked += other.unasked;
        self.unspoken += other.unspoken;
        self.late += other.late;
        self.missing += other.missing;
    }
}

/// The first and the last packet of what is being said.
#[derive(Debug, Clone, Copy)]
struct Spoken {
    began: Instant,
    first_time: u64,
    last_time: u64,
}

/// The person.
struct Person {
    voice: Voice,
    packets: usize,
    asked: Begun,
    voiced: Begun,
    phase: watch::Receiver<Phase>,
    spoken: Option<Spoken>,
    heard: Heard,
}

impl Media for Person {
    fn say(&mut self) -> (Vec<u8>, bool) {
        let place = self.packets % CYCLE_PACKETS;
        self.packets += 1;
        if place == ONSET && !self.voiced.begin() && self.is_measured() {
            self.heard.unheard += 1;
        }
        let packet = self.voice.0.get(place).cloned().unwrap_or_default();
        (packet, place >= ONSET)
    }

    fn hear(&mut self, packet: &RtpPacket, _datagram_bytes: usize) {
        let now = Instant::now();
        let time = packet.time.numer();
        if let Some(took) = self.asked.heard() {
            self.spoken = None;
            if self.is_measured() {
                self.heard.to_person_ms.push(took);
            }
        }
        let is_measured = self.is_measured();
        let spoken = self.spoken.get_or_insert(Spoken {
            began: now,
            first_time: time,
            last_time: time,
        });
        let ticks = LAYOUT.samples_in(PACKET) as u64;
        let missing = (time.saturating_sub(spoken.last_time) / ticks).saturating_sub(1);
        spoken.last_time = spoken.last_time.max(time);
        let place = time.saturating_sub(spoken.first_time);
        let due = spoken.began + LAYOUT.rate.duration_of(place as usize);
        let late = now.saturating_duration_since(due);
        if is_measured {
            self.heard.missing += missing;
            self.heard.late += u64::from(late > LATE);
            self.heard.late_ms.push((late.as_secs_f64() * 1e3) as f32);
        }
    }
}

impl Person {
    fn is_measured(&self) -> bool {
        *self.phase.borrow() == Phase::Measured
    }
}

/// Where pairs meet.
#[derive(Debug, Clone)]
pub(super) struct Meeting {
    /// `ws://host:port/ws` of the sessions.
    pub(super) sessions: String,
    /// `host:port` of the rooms.
    pub(super) rooms: String,
    pub(super) clock: Instant,
}

/// What a session in a room of this name is.
pub(super) fn config(room: &str) -> Value {
    json!({
        "type": "config",
        "rtc": {"room_name": room},
        "stt_config": {"provider": NULL, "model": "onsets"},
        "tts_config": {"provider": NULL, "model": ""},
    })
}

/// Opens the session, then joins its room; what is given back runs until the measurement is over. `offset` is how much
/// later than now it begins.
pub(super) async fn meet(
    meeting: &Meeting,
    room: &str,
    voice: &Voice,
    offset: Duration,
    phase: watch::Receiver<Phase>,
) -> Result<impl Future<Output = Result<Heard, PairError>> + Send + use<>, PairError> {
    let session = Session::open(&meeting.sessions, config(room)).await?;
    let (asked, voiced) = (Begun::new(meeting.clock), Begun::new(meeting.clock));
    let joining = Joining {
        address: &meeting.rooms,
        room,
        identity: "person",
        voice: Some(offset),
        hears: 1,
    };
    let join = async {
        loop {
            let person = Person {
                voice: voice.clone(),
                packets: 0,
                asked: asked.clone(),
                voiced: voiced.clone(),
                phase: phase.clone(),
                spoken: None,
                heard: Heard::default(),
            };
            match Box::pin(participant::join(joining, person, phase.clone())).await {
                // The session publishes its track when it is ready, not before.
                Err(Lost::Tracks(_)) => sleep(LOOK).await,
                joined => return joined,
            }
        }
    };
    let person = timeout(PATIENCE, join).await;
    let person = person.map_err(|_| PairError::NoTrack)??;
    let talk = talk(session, asked, voiced, offset, phase);
    Ok(async move {
        let person = async { person.await.map_err(PairError::Person) };
        let ((mut heard, mut session), person) = tokio::try_join!(talk, person)?;
        // Who leaves last takes the room along.
        while !session.next().await?.1.is("participant_disconnected", "") {}
        session.close().await;
        heard.add(person.heard);
        Ok(heard)
    })
}

/// The session's client: asks for speech once in a cycle, and takes what comes.
async fn talk(
    mut session: Session,
    asked: Begun,
    voiced: Begun,
    offset: Duration,
    mut phase: watch::Receiver<Phase>,
) -> Result<(Heard, Session), PairError> {
    let mut heard = Heard::default();
    let mut cycles = interval_at(tokio::time::Instant::now() + offset, CYCLE);
    loop {
        let now = *phase.borrow_and_update();
        if now == Phase::Over {
            break;
        }
        tokio::select! {
            _ = cycles.tick() => {
                // Just under two seconds, at 60 ms a character.
                let speak = json!({"type": "speak", "text": "A sentence of thirty-three signs."});
                if !asked.begin() && now == Phase::Measured {
                    heard.unspoken += 1;
                }
                session.send(speak).await?;
            }
            came = session.next() => {
                let (_, came) = came?;
                if came.is("error", "") || came.is("provider_event", "failed") {
                    return Err(told(came));
                }
                // That a turn is over is told with the same message.
                if !came.is("stt_result", "") || came.has("is_speech_final") {
                    continue;
                }
                match voiced.heard() {
                    _ if now != Phase::Measured => {}
                    Some(took) => heard.to_session_ms.push(took),
                    None => heard.unasked += 1,
                }
            }
            _ = phase.changed() => {}
        }
    }
    Ok((heard, session))
}

fn told(came: Came) -> PairError {
    PairError::Told(match came {
        Came::Event(event) => event,
        Came::Sound(_) => Value::Null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_is_heard_once() {
        let begun = Begun::new(Instant::now());
        assert_eq!(begun.heard(), None);
        assert!(begun.begin());
        assert!(!begun.begin(), "the first was not heard");
        assert!(begun.heard().is_some());
        assert_eq!(begun.heard(), None);
    }

    #[test]
    fn half_of_a_cycle_has_a_voice() {
        let voice = Voice::new().unwrap();
        assert_eq!(PACKET * CYCLE_PACKETS as u32, CYCLE);
        let longest = |packets: &[Vec<u8>]| packets.iter().map(Vec::len).max();
        let (silent, voiced) = voice.0.split_at(ONSET);
        assert!(longest(silent) < longest(voiced));
    }
}
