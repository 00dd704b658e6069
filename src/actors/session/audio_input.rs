//! The audio input of a session: decodes what the client sends and feeds the recogniser ([`ReplayBuffer`]) and voice activity
//! detection. The task that reads the socket calls it directly, so that audio never waits in a mailbox; long messages
//! are decoded piece by piece in a task of their own, so that one client does not hold up another.
//!
//! An [`InputPipeline`] handles one format. A `config` that changes the format creates a new pipeline for the audio that follows the
//! message, before it is known whether the config can be carried out: until then the audio is kept. Where the format
//! stays, a new recogniser takes over within the pipeline.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::backchannel::SpeechSound;
use super::input_pipeline::InputPipeline;
use super::protocol::{ListenConfig, VadConfig};
use super::turn::Moment;
use crate::recorder::Tap;
use crate::stt::replay_buffer::ReplayBuffer;
use vivavoce_audio::rate_check::WrongRate;
use vivavoce_audio::vad::VadEvent;
use vivavoce_audio::{AudioFormat, Bandwidth, Layout, Pcm, SampleRate};
use vivavoce_seams::SttResult;
use vivavoce_socket::{Loudness, Timeline};
use vivavoce_telemetry::metrics::{self, DropCause};

/// The most bytes that wait to be decoded: two of the longest messages.
const MAX_WAITING_BYTES: usize = 2 << 20;
/// The most events that wait for the session; further ones are lost.
const MAX_NEWS: usize = 256;
/// The most audio that waits for the recorder of a pending config, and its size: padding makes an Opus packet large, however
/// short it is.
const MAX_EARLY: Duration = Duration::from_secs(10);
const MAX_EARLY_BYTES: usize = 4 << 20;
/// The most configs that are pending.
pub const MAX_PIPELINES: usize = 8;

/// What the input tells its session.
#[derive(Debug)]
pub enum InputEvent {
    /// Voice activity.
    Voice {
        /// Its position is in samples of [`RATE`](vivavoce_audio::vad::RATE) since the session began.
        event: VadEvent,
        /// What the speech sounded like that ends with it.
        sound: Option<SpeechSound>,
    },
    /// The audio does not have the format that was announced. Told once per pipeline.
    Undecodable(String),
    /// The client ends the turn behind the sound that came before this.
    TurnEnds,
    /// Speech cannot have the rate that was announced. Told once per pipeline.
    WrongRate { wrong: WrongRate, said: SampleRate },
}

/// Why audio was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputRefused {
    /// No config has come yet.
    NotConfigured,
    /// The session was configured without audio.
    AudioDisabled,
    /// The session takes its audio from its room.
    InRoom,
}

/// The input of one session; clones are the same.
#[derive(Clone)]
pub struct AudioInput(Rc<Shared>);

struct Shared {
    state: RefCell<State>,
    wake: Notify,
    news: mpsc::Sender<InputEvent>,
}

#[derive(Default)]
struct State {
    /// What the config in force and those that are pending ask for, the oldest first.
    pipelines: VecDeque<Slot>,
    waiting: VecDeque<(Rc<RefCell<InputPipeline>>, Bytes)>,
    waiting_bytes: usize,
    undecoded: Duration,
    /// Whether a refusal was reported since the last config.
    told_refused: bool,
    position: Duration,
    recorded: Recorded,
    /// Whoever watches the session sees how loud it is.
    timeline: Timeline,
    loudness: Loudness,
}

/// Where the audio is recorded.
#[derive(Default)]
enum Recorded {
    #[default]
    Nowhere,
    /// It is kept for the recorder that a pending config asks for.
    Early {
        since: Instant,
        sound: VecDeque<Early>,
        length: Duration,
        bytes: usize,
    },
    /// The recorder takes it.
    By(Tap),
}

/// Audio, the Opus packet that it came in, and when it came.
type Early = (Pcm, Option<Bytes>, Instant);

fn size_of_early(early: &Early) -> usize {
    let (sound, packet, _) = early;
    size_of::<Early>() + size_of_val(sound.samples()) + packet.as_ref().map_or(0, Bytes::len)
}

impl Recorded {
    fn hear(&mut self, sound: &Pcm, packet: Option<&[u8]>) {
        match self {
            Self::Nowhere => {}
            Self::Early {
                sound: early,
                length,
                bytes,
                ..
            } => {
                *length += sound.duration();
                let packet = packet.map(Bytes::copy_from_slice);
                let newest = (sound.clone(), packet, Instant::now());
                *bytes += size_of_early(&newest);
                early.push_back(newest);
                while (*length > MAX_EARLY || *bytes > MAX_EARLY_BYTES)
                    && let Some(oldest) = early.pop_front()
                {
                    *bytes -= size_of_early(&oldest);
                    let (oldest, ..) = oldest;
                    *length -= oldest.duration();
                    metrics::audio_dropped(DropCause::Recording, oldest.duration());
                }
            }
            Self::By(tap) => tap.hear(sound, packet, Instant::now()),
        }
    }
}

struct Slot {
    config: u64,
    /// `None` takes no audio.
    pipeline: Option<Rc<RefCell<InputPipeline>>>,
    /// Whether its recogniser takes over from another in the same pipeline.
    hands_over: bool,
    /// Whether its audio is that of a room instead of the client.
    in_room: bool,
}

impl AudioInput {
    /// An input without a config, and its events.
    pub fn new() -> (Self, mpsc::Receiver<InputEvent>) {
        Self::watched(Timeline::default())
    }

    /// The same, of the session of this timeline.
    pub fn watched(timeline: Timeline) -> (Self, mpsc::Receiver<InputEvent>) {
        let (news, receiver) = mpsc::channel(MAX_NEWS);
        let shared = Shared {
            state: RefCell::new(State {
                timeline,
                ..State::default()
            }),
            wake: Notify::new(),
            news,
        };
        (Self(Rc::new(shared)), receiver)
    }

    /// Sets the position of the first sample in the session's audio, before there is a config.
    pub fn begin_at(&self, start: Duration) {
        self.0.state.borrow_mut().position = start;
    }

    /// Skips a gap in the session's audio. It must not be called while audio waits to be decoded; that of a room never
    /// does.
    pub fn skip(&self, gap: Duration) {
        let pipeline = {
            let state = &mut *self.0.state.borrow_mut();
            let last = state
                .pipelines
                .back()
                .and_then(|slot| slot.pipeline.clone());
            if last.is_none() {
                state.position += gap;
            }
            last
        };
        if let Some(pipeline) = pipeline {
            pipeline.borrow_mut().skip(gap, &mut |news| self.tell(news));
        }
    }

    /// A config was sent: the audio that follows has its format. `accepted` is what its recogniser takes. False if too
    /// many are pending.
    pub fn expect(
        &self,
        config: u64,
        listen: Option<(&ListenConfig, AudioFormat)>,
        vad: &VadConfig,
        in_room: bool,
    ) -> bool {
        let mut state = self.0.state.borrow_mut();
        if state.pipelines.len() > MAX_PIPELINES {
            return false;
        }
        state.told_refused = false;
        let last = state
            .pipelines
            .back()
            .and_then(|slot| slot.pipeline.clone());
        let waiting = last
            .as_ref()
            .map_or(Duration::ZERO, |last| state.waiting_of(last));
        state.position = state.position(last.as_ref()) + waiting;
        let former = last.clone();
        let pipeline = listen.and_then(|(listen, accepted)| match last {
            Some(last) if *last.borrow().listen() == *listen => Some(last),
            _ => {
                let start = state.position;
                let pipeline = InputPipeline::new(listen.clone(), accepted, vad, start);
                // A format that cannot be decoded at all is refused when the config is carried out.
                pipeline
                    .ok()
                    .map(|pipeline| Rc::new(RefCell::new(pipeline)))
            }
        });
        let goes_on = |former: &Rc<RefCell<InputPipeline>>| {
            let same = pipeline
                .as_ref()
                .is_some_and(|pipeline| Rc::ptr_eq(pipeline, former));
            same || state.is_behind(former)
        };
        let breaks_off = former.filter(|former| !goes_on(former));
        state.pipelines.push_back(Slot {
            config,
            pipeline,
            hands_over: false,
            in_room,
        });
        drop(state);
        if let Some(former) = breaks_off {
            self.break_off(&former);
        }
        true
    }

    /// A config asks for a recording: from now on audio is kept for it.
    pub fn expect_recorder(&self) {
        let state = &mut *self.0.state.borrow_mut();
        if matches!(state.recorded, Recorded::Nowhere) {
            state.recorded = Recorded::Early {
                since: Instant::now(),
                sound: VecDeque::new(),
                length: Duration::ZERO,
                bytes: 0,
            };
        }
    }

    /// Starts to record; `make` is given the time since which audio was kept.
    pub fn record(&self, make: impl FnOnce(Instant) -> Tap) -> Tap {
        let state = &mut *self.0.state.borrow_mut();
        let before = std::mem::take(&mut state.recorded);
        let (since, sound) = match before {
            Recorded::Early { since, sound, .. } => (since, sound),
            Recorded::Nowhere | Recorded::By(_) => (Instant::now(), VecDeque::new()),
        };
        let tap = make(since);
        for (sound, packet, at) in sound {
            tap.hear(&sound, packet.as_deref(), at);
        }
        state.recorded = Recorded::By(tap.clone());
        tap
    }

    /// Stops recording, or keeping audio for a recorder.
    pub fn record_nothing(&self) {
        self.0.state.borrow_mut().recorded = Recorded::Nowhere;
    }

    /// A config that leaves the format as it is follows the one in force.
    pub fn follow(&self, config: u64) {
        let mut state = self.0.state.borrow_mut();
        let front = state.pipelines.front();
        let slot = Slot {
            config,
            pipeline: front.and_then(|slot| slot.pipeline.clone()),
            hands_over: false,
            in_room: front.is_some_and(|slot| slot.in_room),
        };
        let place = state.pipelines.len().min(1);
        state.pipelines.insert(place, slot);
    }

    /// The recogniser of this config takes over from the one in force in the same pipeline, at the next quiet gap.
    pub fn hand_over(&self, config: u64, listen: &ListenConfig, accepted: AudioFormat) {
        let pipeline = {
            let mut state = self.0.state.borrow_mut();
            let slot = state
                .pipelines
                .iter_mut()
                .find(|slot| slot.config == config);
            slot.and_then(|slot| {
                slot.hands_over = true;
                slot.pipeline.clone()
            })
        };
        if let Some(pipeline) = pipeline {
            let listen = listen.clone();
            pipeline
                .borrow_mut()
                .hand_over(listen, accepted, &mut |news| self.tell(news));
        }
    }

    /// Makes the handover of this config now: a quiet gap has been waited for long enough.
    pub fn make_handover(&self, config: u64) {
        let pipeline = {
            let state = self.0.state.borrow();
            let slot = state.pipelines.iter().find(|slot| slot.config == config);
            slot.and_then(|slot| slot.pipeline.clone())
        };
        if let Some(pipeline) = pipeline {
            pipeline
                .borrow_mut()
                .make_handover(&mut |news| self.tell(news));
        }
    }

    /// Ends this buffer, as soon as the audio that waits for it is decoded or the next recogniser has taken over.
    pub fn end(&self, buffer: &ReplayBuffer) {
        self.hand_over_to(buffer);
        let (waiting, pipeline, is_heard) = {
            let state = self.0.state.borrow();
            let of_buffer =
                |pipeline: &&Rc<RefCell<InputPipeline>>| pipeline.borrow().buffer().is(buffer);
            let waiting = state
                .waiting
                .iter()
                .map(|(pipeline, _)| pipeline)
                .find(of_buffer);
            let mut pipelines = state
                .pipelines
                .iter()
                .filter_map(|slot| slot.pipeline.as_ref());
            let pipeline = waiting.or_else(|| pipelines.find(of_buffer)).cloned();
            let last = state
                .pipelines
                .back()
                .and_then(|slot| slot.pipeline.as_ref());
            let is_heard = match (&pipeline, last) {
                (Some(pipeline), Some(last)) => Rc::ptr_eq(pipeline, last),
                _ => false,
            };
            (waiting.is_some(), pipeline, is_heard)
        };
        let Some(pipeline) = pipeline else {
            return buffer.end();
        };
        let pipeline = &mut *pipeline.borrow_mut();
        if pipeline.ends_with_handover(buffer) {
            if !waiting && !is_heard {
                pipeline.make_handover(&mut |news| self.tell(news));
            }
        } else if waiting {
            pipeline.ends = true;
        } else {
            pipeline.finish(&mut |news| self.tell(news));
            buffer.end();
        }
    }

    /// If this buffer waits for a handover, it is made now.
    fn hand_over_to(&self, buffer: &ReplayBuffer) {
        let next = {
            let state = self.0.state.borrow();
            let mut pipelines = state
                .pipelines
                .iter()
                .filter_map(|slot| slot.pipeline.as_ref());
            let waits_for = |pipeline: &&Rc<RefCell<InputPipeline>>| {
                let pipeline = pipeline.borrow();
                pipeline.newest().0.is(buffer) && !pipeline.buffer().is(buffer)
            };
            pipelines.find(waits_for).cloned()
        };
        if let Some(pipeline) = next {
            pipeline
                .borrow_mut()
                .make_handover(&mut |news| self.tell(news));
        }
    }

    /// Requests a final from the recogniser in force, and from one that is about to take over; where somebody is speaking, at
    /// the next pause.
    pub fn finalize(&self) {
        let state = self.0.state.borrow();
        if let Some(Slot {
            pipeline: Some(pipeline),
            ..
        }) = state.pipelines.front()
        {
            let pipeline = pipeline.borrow();
            let (newest, _) = pipeline.newest();
            let in_pause = pipeline.in_pause();
            pipeline.buffer().finalize_at_pause(in_pause);
            if !newest.is(pipeline.buffer()) {
                newest.finalize_at_pause(in_pause);
            }
        }
    }

    /// Ends speech that is under way in a pipeline that gets no more audio.
    fn break_off(&self, pipeline: &Rc<RefCell<InputPipeline>>) {
        let paused = pipeline.borrow_mut().break_off();
        if let Some(paused) = paused {
            self.tell(paused);
        }
    }

    /// The buffer of a config's recogniser, and its layout; `None` if the config has none.
    pub fn buffer(&self, config: u64) -> Option<(ReplayBuffer, Layout)> {
        let state = self.0.state.borrow();
        let slot = state.pipelines.iter().find(|slot| slot.config == config)?;
        Some(slot.pipeline.as_ref()?.borrow().newest())
    }

    /// The config is in force: pipelines before it get no more audio.
    pub fn commit(&self, config: u64, vad: &VadConfig, hears_turns: bool) {
        let (gone, pipeline) = {
            let mut state = self.0.state.borrow_mut();
            let mut gone = Vec::new();
            while let Some(slot) = state.pipelines.pop_front_if(|slot| slot.config != config) {
                gone.extend(slot.pipeline);
            }
            let heard = |pipeline: &Rc<RefCell<InputPipeline>>| {
                let mut others = state
                    .pipelines
                    .iter()
                    .filter_map(|slot| slot.pipeline.as_ref());
                state.is_behind(pipeline) || others.any(|other| Rc::ptr_eq(other, pipeline))
            };
            gone.retain(|pipeline| !heard(pipeline));
            (
                gone,
                state
                    .pipelines
                    .front()
                    .and_then(|slot| slot.pipeline.clone()),
            )
        };
        let mut tell = |news| self.tell(news);
        for pipeline in gone {
            pipeline.borrow_mut().finish(&mut tell);
        }
        if let Some(pipeline) = pipeline {
            let mut pipeline = pipeline.borrow_mut();
            pipeline.commit();
            pipeline.set_vad(vad, &mut tell);
            pipeline.set_hears_turns(hears_turns);
        }
    }

    /// The config is not carried out: the audio since then goes to the one before it.
    pub fn discard(&self, config: u64) {
        let (gone, back, taken_back) = {
            let mut state = self.0.state.borrow_mut();
            state.told_refused = false;
            let asked = state
                .pipelines
                .iter()
                .position(|slot| slot.config == config);
            let before = asked.and_then(|index| index.checked_sub(1));
            let back = before.and_then(|before| state.pipelines[before].pipeline.clone());
            let slot = asked.and_then(|index| state.pipelines.remove(index));
            let hands_over = slot.as_ref().is_some_and(|slot| slot.hands_over);
            let gone = slot.and_then(|slot| slot.pipeline);
            let taken_back = gone.clone().filter(|_| hands_over);
            // A later config may use the same pipeline.
            let heard = |pipeline: &Rc<RefCell<InputPipeline>>| {
                let mut others = state
                    .pipelines
                    .iter()
                    .filter_map(|slot| slot.pipeline.as_ref());
                others.any(|other| Rc::ptr_eq(other, pipeline))
            };
            (gone.filter(|gone| !heard(gone)), back, taken_back)
        };
        if let Some(pipeline) = taken_back {
            pipeline.borrow_mut().take_back(&mut |news| self.tell(news));
        }
        if let (Some(gone), Some(back)) = (gone, back)
            && !Rc::ptr_eq(&gone, &back)
        {
            gone.borrow_mut().finish(&mut |news| self.tell(news));
            let sound = gone.borrow().give_away();
            back.borrow_mut()
                .take_over(sound, &mut |news| self.tell(news));
        }
    }

    /// Takes audio of the client. A refusal is reported once.
    pub fn push(&self, bytes: Bytes) -> Result<(), Option<InputRefused>> {
        let mut state = self.0.state.borrow_mut();
        let pipeline = match state.pipelines.back() {
            None => Err(InputRefused::NotConfigured),
            Some(slot) if slot.in_room => Err(InputRefused::InRoom),
            Some(slot) => slot.pipeline.clone().ok_or(InputRefused::AudioDisabled),
        };
        let pipeline = pipeline.map_err(|refused| {
            let told = std::mem::replace(&mut state.told_refused, true);
            (!told).then_some(refused)
        })?;
        if state.waiting.is_empty() && !pipeline.borrow().takes_long(&bytes) {
            drop(state);
            self.decode(&pipeline, &bytes);
            return Ok(());
        }
        let dropped = state.wait(pipeline, bytes);
        drop(state);
        for pipeline in dropped {
            self.last_was_decoded(&pipeline);
        }
        self.0.wake.notify_one();
        Ok(())
    }

    /// The turn ends with the sound that has come so far, when that is decoded.
    pub fn end_turn(&self) {
        let mut state = self.0.state.borrow_mut();
        let last = state.pipelines.back();
        match last.and_then(|slot| slot.pipeline.clone()) {
            // Sound without bytes marks the place.
            Some(pipeline) if !state.waiting.is_empty() => {
                state.waiting.push_back((pipeline, Bytes::new()));
            }
            _ => {
                drop(state);
                self.tell(InputEvent::TurnEnds);
            }
        }
    }

    /// Takes audio of the room, which is never decoded here and never waits. False while no config listens.
    pub fn push_room(&self, audio: Pcm) -> bool {
        let state = self.0.state.borrow();
        let last = state.pipelines.back();
        let Some(pipeline) = last.and_then(|slot| slot.pipeline.clone()) else {
            return false;
        };
        drop(state);
        self.record_only(&audio);
        pipeline
            .borrow_mut()
            .push_pcm(audio, &mut |event| self.tell(event));
        true
    }

    /// Whether a recorder takes it, or will.
    pub fn is_recorded(&self) -> bool {
        !matches!(self.0.state.borrow().recorded, Recorded::Nowhere)
    }

    /// How much of the spectrum of a room is of use: what its recogniser hears, unless it is recorded, or freed of noise, too.
    pub fn bandwidth(&self) -> Bandwidth {
        let state = self.0.state.borrow();
        let last = state.pipelines.back();
        match last.and_then(|slot| slot.pipeline.as_ref()) {
            Some(pipeline) if !self.is_recorded() => pipeline.borrow().bandwidth(),
            _ => Bandwidth::Fullband,
        }
    }

    /// Records audio that is transcribed elsewhere.
    pub fn record_only(&self, audio: &Pcm) {
        self.0.state.borrow_mut().hear(audio, None);
    }

    /// Notes a final of a participant in the session's recording, whose clock has come to `heard`.
    pub fn note_final(&self, result: &SttResult, heard: Duration) {
        if let Recorded::By(tap) = &self.0.state.borrow().recorded {
            tap.note_final(result, heard);
        }
    }

    /// The sound of a turn that began at `since`, with a little before it, up to now, for the model that hears whether it
    /// has ended. `None` without voice activity detection.
    pub fn turn_sound(&self, since: Duration) -> Option<Vec<i16>> {
        let state = self.0.state.borrow();
        let last = state.pipelines.back()?;
        last.pipeline.as_ref()?.borrow().turn_sound(since)
    }

    /// How much audio the session has heard.
    pub fn position(&self) -> Duration {
        let state = self.0.state.borrow();
        let last = state
            .pipelines
            .back()
            .and_then(|slot| slot.pipeline.clone());
        state.position(last.as_ref())
    }

    /// Now, on both clocks.
    pub fn moment(&self) -> Moment {
        let state = self.0.state.borrow();
        let last = state
            .pipelines
            .back()
            .and_then(|slot| slot.pipeline.as_ref());
        Moment {
            now: Instant::now().into_std(),
            heard: state.position(last),
            onset: last.is_some_and(|pipeline| pipeline.borrow().is_onset()),
        }
    }

    /// Decodes the audio that waits, until it is dropped.
    pub async fn run(self) {
        loop {
            let next = self.0.state.borrow_mut().next_slice();
            match next {
                Some((_, slice)) if slice.is_empty() => self.tell(InputEvent::TurnEnds),
                Some((pipeline, slice)) => {
                    let mut all = self.decode(&pipeline, &slice);
                    while !all {
                        tokio::task::yield_now().await;
                        all = self.decode(&pipeline, &[]);
                    }
                    self.last_was_decoded(&pipeline);
                    tokio::task::yield_now().await;
                }
                None => self.0.wake.notified().await,
            }
        }
    }

    /// Decodes some audio. False if there is more: it comes with the next bytes, or with none.
    fn decode(&self, pipeline: &Rc<RefCell<InputPipeline>>, bytes: &[u8]) -> bool {
        let record = |sound: &Pcm, packet: Option<&[u8]>| {
            self.0.state.borrow_mut().hear(sound, packet);
        };
        pipeline
            .borrow_mut()
            .hear(bytes, record, |news| self.tell(news))
    }

    /// How much audio was dropped because more came than can be decoded.
    pub fn undecoded(&self) -> Duration {
        self.0.state.borrow().undecoded
    }

    /// Does what waited for the last bytes of a pipeline, if those were the last.
    fn last_was_decoded(&self, pipeline: &Rc<RefCell<InputPipeline>>) {
        let is_heard = {
            let state = self.0.state.borrow();
            if state.is_behind(pipeline) {
                return;
            }
            let last = state
                .pipelines
                .back()
                .and_then(|slot| slot.pipeline.as_ref());
            last.is_some_and(|last| Rc::ptr_eq(last, pipeline))
        };
        if !is_heard {
            pipeline.borrow_mut().finish(&mut |news| self.tell(news));
        }
        if pipeline.borrow().ends {
            pipeline.borrow().buffer().end();
        }
        if !is_heard {
            self.break_off(pipeline);
        }
    }

    fn tell(&self, news: InputEvent) {
        if self.0.news.try_send(news).is_err() {
            tracing::warn!("voice activity was lost: the session is behind");
        }
    }
}

impl State {
    /// Audio has come.
    fn hear(&mut self, sound: &Pcm, packet: Option<&[u8]>) {
        let told = self
            .loudness
            .push(sound.samples(), sound.frames(), sound.rate().hz());
        if let Some(level) = told {
            self.timeline.hear(level);
        }
        self.recorded.hear(sound, packet);
    }

    fn position(&self, last: Option<&Rc<RefCell<InputPipeline>>>) -> Duration {
        last.map_or(self.position, |pipeline| {
            pipeline.borrow().buffer().position()
        })
    }

    /// Queues bytes. Returns the pipelines whose oldest bytes had to be dropped.
    fn wait(
        &mut self,
        pipeline: Rc<RefCell<InputPipeline>>,
        bytes: Bytes,
    ) -> Vec<Rc<RefCell<InputPipeline>>> {
        let mut dropped = Vec::new();
        self.waiting_bytes += bytes.len();
        self.waiting.push_back((pipeline, bytes));
        while self.waiting_bytes > MAX_WAITING_BYTES
            && let Some((pipeline, oldest)) = self.waiting.pop_front()
        {
            self.waiting_bytes -= oldest.len();
            let lost = pipeline.borrow().duration_of(oldest.len());
            metrics::audio_dropped(DropCause::Decoding, lost);
            self.undecoded += lost;
            dropped.push(pipeline);
        }
        dropped
    }

    /// Whether bytes of this pipeline wait to be decoded.
    fn is_behind(&self, pipeline: &Rc<RefCell<InputPipeline>>) -> bool {
        self.waiting
            .iter()
            .any(|(waiting, _)| Rc::ptr_eq(waiting, pipeline))
    }

    /// About how much audio waits for this pipeline.
    fn waiting_of(&self, pipeline: &Rc<RefCell<InputPipeline>>) -> Duration {
        let its = self
            .waiting
            .iter()
            .filter(|(waiting, _)| Rc::ptr_eq(waiting, pipeline));
        its.map(|(pipeline, bytes)| pipeline.borrow().duration_of(bytes.len()))
            .sum()
    }

    /// The next bytes to decode. One packet of bare Opus stays whole.
    fn next_slice(&mut self) -> Option<(Rc<RefCell<InputPipeline>>, Bytes)> {
        let (pipeline, bytes) = self.waiting.front_mut()?;
        let pipeline = Rc::clone(pipeline);
        let slice = pipeline.borrow().slice().min(bytes.len());
        let slice = bytes.split_to(slice);
        self.waiting_bytes -= slice.len();
        if bytes.is_empty() {
            self.waiting.pop_front();
        }
        Some((pipeline, slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audio_that_waits_for_a_recorder_is_bounded_in_bytes() {
        let (input, _news) = AudioInput::new();
        input.expect_recorder();
        let sound = Pcm::new(Layout::mono(SampleRate::HZ_16000), vec![0; 40]);
        let packet = vec![0; 1 << 20];
        for _ in 0..20 {
            let recorded = &mut input.0.state.borrow_mut().recorded;
            recorded.hear(&sound, Some(&packet));
        }
        let state = input.0.state.borrow();
        let Recorded::Early {
            sound, bytes: told, ..
        } = &state.recorded
        else {
            panic!("no recorder was expected");
        };
        let bytes: usize = sound.iter().map(size_of_early).sum();
        assert!(bytes <= MAX_EARLY_BYTES, "{bytes}");
        assert_eq!(bytes, *told);
        // The newest are kept.
        assert_eq!(sound.len(), 3);
    }
}
