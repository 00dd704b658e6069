//! The way in from a room: the packets of everybody who is heard become sound, 20 ms at a time and by our clock, for
//! whoever listens. A media task beside the actors and on their thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

use vivavoce_audio::jitter::{Arrived, FRAME as SAMPLES, JitterBuffer};
use vivavoce_audio::mix::{Fader, Gain, Mixer};
use vivavoce_audio::room_mix::{RoomMixer, TrackKey};
use vivavoce_seams::rooms::link::TrackAudio;

/// What is heard at once.
const FRAME: Duration = vivavoce_audio::opus::FRAME;
/// Silence that is still heard when the last voice has gone, so that whoever listens notices the end of a sentence.
const TRAILING_SILENCE: Duration = Duration::from_secs(3);

/// Hears a room, 20 ms after 20 ms, mono at 48 kHz.
pub trait Listener {
    /// Everybody together.
    fn hear(&self, samples: &[i16]);

    /// One of them, all their tracks together. Called before [`Self::hear`], once at most for each.
    fn hear_one(&self, identity: &str, samples: &[i16]);

    /// Somebody is not heard any more.
    fn lost(&self, identity: &str);
}

/// The ears of a session in a room; clones are the same.
#[derive(Clone)]
pub struct Ears(Rc<Inner>);

struct Inner {
    state: RefCell<State>,
    listener: Rc<dyn Listener>,
    /// There is somebody to be heard.
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// Those of one participant are neighbours.
    voices: Vec<Voice>,
    mixer: RoomMixer,
    /// Adds up the tracks of one participant.
    tracks: Mixer,
    sound: Vec<i16>,
}

/// A track.
struct Voice {
    identity: String,
    sid: String,
    audio: TrackAudio,
    jitter: JitterBuffer,
    key: TrackKey,
}

impl Ears {
    pub(super) fn new(listener: Rc<dyn Listener>) -> Self {
        Self(Rc::new(Inner {
            state: RefCell::default(),
            listener,
            wake: Notify::new(),
        }))
    }

    /// Hears a track from now on, in place of the one of the same sid if there was one.
    pub(super) fn open(&self, identity: String, sid: String, audio: TrackAudio) {
        let jitter = match JitterBuffer::new() {
            Ok(jitter) => jitter,
            Err(error) => {
                tracing::error!(%error, "a track cannot be decoded");
                return;
            }
        };
        self.close(&sid);
        let state = &mut *self.0.state.borrow_mut();
        let Some(key) = state.mixer.join(&identity) else {
            tracing::warn!("more tracks than can be heard at once: one is not heard");
            return;
        };
        // One may have made way for it.
        let State { voices, mixer, .. } = state;
        voices.retain(|voice| mixer.has(voice.key));
        let place = voices.partition_point(|voice| voice.identity <= identity);
        let voice = Voice {
            identity,
            sid,
            audio,
            jitter,
            key,
        };
        voices.insert(place, voice);
        self.0.wake.notify_one();
    }

    /// A track has ended.
    pub(super) fn close(&self, sid: &str) {
        self.0.state.borrow_mut().retain(|voice| voice.sid != sid);
    }

    /// Somebody has left.
    pub(super) fn forget(&self, identity: &str) {
        let mut state = self.0.state.borrow_mut();
        state.retain(|voice| voice.identity != identity);
        drop(state);
        self.0.listener.lost(identity);
    }

    fn is_alone(&self) -> bool {
        self.0.state.borrow().voices.is_empty()
    }

    /// Hears until it is dropped.
    pub(super) async fn run(self) {
        loop {
            while self.is_alone() {
                self.0.wake.notified().await;
            }
            self.listen().await;
        }
    }

    /// Hears for as long as there is somebody, and a little longer.
    async fn listen(&self) {
        let mut ticks = interval(FRAME);
        // What was late is heard at once: on average as much is heard as time passes.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut alone = Duration::ZERO;
        while alone < TRAILING_SILENCE {
            // The nominal time of the tick: its own lateness is no delay of the network.
            let now = ticks.tick().await;
            self.tick(now);
            alone = if self.is_alone() {
                alone + FRAME
            } else {
                Duration::ZERO
            };
        }
    }

    fn tick(&self, now: Instant) {
        let State {
            voices,
            mixer,
            tracks,
            sound,
        } = &mut *self.0.state.borrow_mut();
        let listener = &self.0.listener;
        let of_one = |one: &Voice, other: &Voice| one.identity == other.identity;
        for voices in voices.chunk_by_mut(of_one) {
            let has_others = voices.len() > 1;
            tracks.begin(SAMPLES);
            for voice in &mut *voices {
                voice.take_packets();
                let Some(frame) = mixer.frame_mut(voice.key) else {
                    continue;
                };
                voice.jitter.pull(now.into_std(), frame);
                if has_others {
                    tracks.add(frame, &mut Fader::new(Gain::UNITY));
                } else {
                    listener.hear_one(&voice.identity, frame);
                }
            }
            if let (true, [voice, ..]) = (has_others, &*voices) {
                sound.clear();
                tracks.finish(sound);
                listener.hear_one(&voice.identity, sound);
            }
        }
        let mut mixed = [0; SAMPLES];
        mixer.mix(&mut mixed);
        listener.hear(&mixed);
    }
}

impl Voice {
    fn take_packets(&mut self) {
        while let Some(packet) = self.audio.try_next() {
            self.jitter.push(Arrived {
                sequence: packet.sequence,
                timestamp: packet.timestamp,
                payload: packet.payload,
                at: packet.arrived,
            });
        }
    }
}

impl State {
    fn retain(&mut self, keep: impl Fn(&Voice) -> bool) {
        let Self { voices, mixer, .. } = self;
        voices.retain(|voice| {
            let kept = keep(voice);
            if !kept {
                mixer.leave(voice.key);
            }
            kept
        });
    }
}
