//! Receives the audio of a room: decodes the subscribed tracks behind their jitter buffers, mixes them, and hands out a
//! frame every 20 ms of local time. A media task beside the actors and on their thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

use vivavoce_audio::track_receiver::TrackReceiver;
use vivavoce_audio::{Bandwidth, Layout, Pcm};
use vivavoce_seams::rooms::link::TrackAudio;

/// Length of the frames that are handed out.
const FRAME: Duration = vivavoce_audio::opus::FRAME;
/// Silence that follows the end of the last track, so that endpointing sees the end of a sentence.
const TRAILING_SILENCE: Duration = Duration::from_secs(3);

/// Takes the audio of a room in frames of 20 ms, mono.
pub trait RoomAudioSink {
    /// How much of it is of use: what nobody hears is not decoded.
    fn bandwidth(&self) -> Bandwidth {
        Bandwidth::Fullband
    }

    /// The mix of all participants.
    fn push_mix(&self, sound: Pcm);

    /// Whether [`Self::push_participant`] wants this one: each costs decoding.
    fn wants_participant(&self, identity: &str) -> bool;

    /// All tracks of one participant. Called before [`Self::push_mix`], at most once per participant and frame.
    fn push_participant(&self, identity: &str, sound: Pcm);

    /// No more audio comes from this participant.
    fn participant_left(&self, identity: &str);
}

/// Receives the audio of one session's room; clones are the same receiver.
#[derive(Clone)]
pub struct RoomReceiver(Rc<Inner>);

struct Inner {
    tracks: RefCell<TrackReceiver<TrackAudio>>,
    sink: Rc<dyn RoomAudioSink>,
    /// A track has been added.
    wake: Notify,
}

impl RoomReceiver {
    pub(crate) fn new(sink: Rc<dyn RoomAudioSink>) -> Self {
        Self(Rc::new(Inner {
            tracks: RefCell::new(TrackReceiver::new(sink.bandwidth())),
            sink,
            wake: Notify::new(),
        }))
    }

    /// Receives a track from now on, instead of the one with the same sid if there was one.
    pub(crate) fn open(&self, identity: String, sid: String, audio: TrackAudio) {
        if self.0.tracks.borrow_mut().add(identity, sid, audio) {
            self.0.wake.notify_one();
        } else {
            tracing::warn!("too many tracks at once: one is left out of the mix");
        }
    }

    /// Stops receiving a track that has ended.
    pub(crate) fn close(&self, sid: &str) {
        self.0.tracks.borrow_mut().remove(sid);
    }

    /// Stops receiving a participant who has left.
    pub(crate) fn forget(&self, identity: &str) {
        self.0.tracks.borrow_mut().remove_participant(identity);
        self.0.sink.participant_left(identity);
    }

    fn has_no_tracks(&self) -> bool {
        self.0.tracks.borrow().is_empty()
    }

    /// Receives until it is dropped.
    pub(crate) async fn run(self) {
        loop {
            while self.has_no_tracks() {
                self.0.wake.notified().await;
            }
            self.receive().await;
        }
    }

    /// Hands out frames while there are tracks, then the trailing silence.
    async fn receive(&self) {
        let mut ticks = interval(FRAME);
        // Late ticks are made up for at once, so that as much audio is handed out as time has passed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut silent_for = Duration::ZERO;
        while silent_for < TRAILING_SILENCE {
            // The nominal time of the tick: its own lateness is no delay of the network.
            let now = ticks.tick().await;
            self.tick(now);
            silent_for = if self.has_no_tracks() {
                silent_for + FRAME
            } else {
                Duration::ZERO
            };
        }
    }

    fn tick(&self, now: Instant) {
        let sink = &self.0.sink;
        let bandwidth = sink.bandwidth();
        let layout = Layout::mono(bandwidth.rate());
        let mut mixed = vec![0; bandwidth.frame()];
        let each = |identity: &str, samples: &[i16]| {
            sink.push_participant(identity, Pcm::new(layout, samples.to_vec()));
        };
        let wanted = |identity: &str| sink.wants_participant(identity);
        let mut tracks = self.0.tracks.borrow_mut();
        tracks.convert(bandwidth);
        tracks.next(now.into_std(), wanted, each, &mut mixed);
        drop(tracks);
        sink.push_mix(Pcm::new(layout, mixed));
    }
}
