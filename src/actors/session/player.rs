//! The audio output of a session: takes audio from the playback queue, mixes the loading sound under it, encodes it, and
//! sends it to the socket or the room at playback speed. A media task beside the actors and on their thread: the session
//! and the synthesiser call it directly, so that nothing waits in a mailbox. What is sent when is decided by the
//! [`PlaybackQueue`]; this file has its timer, its encoder and its socket.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::prelude::SendError;
use actix::{Addr, Recipient};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::barge_in::InterruptionMode;
use super::ducking::DuckingGain;
use super::error_codes::Refusal;
use super::loading::{Clip, LoadingSound};
use super::playback::{
    CHUNK, Command, CutIds, Event, EventKind, Output, Overloaded, PlaybackQueue, Speak,
    UtteranceKey,
};
use super::protocol::{ErrorCode, ServerMessage};
use super::release::{LastFrame, Silence};
use super::state::recogniser::OutputState;
use super::turn_metrics::TurnClock;
use crate::recorder::Tap;
use crate::responder::{ResponderActor, UtteranceEnded};
use crate::room::TrackPublisher;
use crate::tts::{SpeechSink, Synthesize};
use vivavoce_audio::encode::{Encoded, StreamEncoder};
use vivavoce_audio::{AudioFormat, Bandwidth, Encoding, Layout, Pcm};
use vivavoce_recordings::TranscriptLine;
use vivavoce_socket::{Audio, AudioRefused, Loudness, SocketWriter};
use vivavoce_telemetry::metrics;

/// Steps after which the task yields: a burst of events must not fill the socket's queue before it can send.
const STEPS_AT_ONCE: usize = 64;
/// By how much a timer for sound on a socket is set before it is due, and sound may leave before that: timers are up to two
/// milliseconds late, as tokio's wheel and epoll both round up to whole ones.
const EARLY: Duration = Duration::from_millis(1);
/// By how much sound for a room catches up where this task was late: with the lead, as much as its track keeps (200 ms).
const CATCH_UP: Duration = Duration::from_millis(160);

/// One output; clones are the same output.
#[derive(Clone)]
pub struct Player(Rc<Shared>);

struct Shared {
    state: RefCell<State>,
    /// Something has changed: there may be something to do.
    wake: Notify,
    /// The queue may take audio again.
    room: Notify,
    writer: SocketWriter,
    format: AudioFormat,
    /// Where audio is sent instead of the socket.
    publisher: Option<TrackPublisher>,
    turn_clock: Rc<RefCell<TurnClock>>,
}

struct State {
    queue: PlaybackQueue<Chunk>,
    loading: Option<LoadingSound>,
    /// The one before it, while it fades out.
    fading: Option<LoadingSound>,
    /// Whether the loading sound is wanted, whatever the clip.
    loads: bool,
    /// Without a synthesiser the commands wait.
    synthesizer: Option<Recipient<Synthesize>>,
    commands: VecDeque<Command>,
    encoder: Option<StreamEncoder>,
    /// The utterance in the encoder, where an encoding has one stream per utterance.
    encoding: Option<UtteranceKey>,
    /// Counts cuts, so that audio that was being encoded during one is recognised as unwanted.
    cuts: u64,
    /// The gain of speech that may be cut.
    gain: DuckingGain,
    /// The greatest tag that was sent.
    tag: u64,
    /// When the task was to wake last.
    due: Option<Instant>,
    /// When the sound that waited then was to be sent.
    sound_due: Option<Instant>,
    closed: bool,
    /// Of what is played, for whoever watches.
    loudness: Loudness,
    /// Since when there is no socket to play to: time stands still until there is one.
    frozen: Option<std::time::Instant>,
    recorder: Option<Tap>,
    /// Who is told how utterances end, where the server leads the conversation.
    responder: Option<Addr<ResponderActor>>,
    /// In a room: the last frame of speech, while that may be cut.
    last: Option<LastFrame>,
    /// What follows speech that was cut.
    silence: Option<Silence>,
}

/// Audio that waits to be sent, and since when.
#[derive(Debug)]
struct Chunk {
    sound: Pcm,
    ready: Instant,
}

impl super::playback::Sound for Chunk {
    fn duration(&self) -> Duration {
        self.sound.duration()
    }

    fn loudness(&self) -> Option<[u16; 2]> {
        let samples = self.sound.samples();
        let halves = samples.split_at(samples.len() / 2);
        Some([halves.0, halves.1].map(mean_magnitude))
    }
}

/// Zero for no samples.
fn mean_magnitude(samples: &[i16]) -> u16 {
    // The sum of a piece fits into 32 bits, of which vector instructions add more at once.
    let sum_of = |piece: &[i16]| -> u32 {
        let magnitudes = piece.iter().map(|sample| u32::from(sample.unsigned_abs()));
        magnitudes.sum()
    };
    let sum: u64 = samples
        .chunks(256)
        .map(|piece| u64::from(sum_of(piece)))
        .sum();
    (sum / (samples.len() as u64).max(1)) as u16
}

/// What the task does next.
enum Step {
    Leave {
        utterance: Option<UtteranceKey>,
        sound: Pcm,
        due: Instant,
    },
    Tell(Event),
    /// The stream of an utterance ends.
    FinishStream,
    Wait {
        until: Option<Instant>,
        room: bool,
    },
    End,
}

impl Player {
    /// A player for one output. `lead` is how far ahead of real time audio may be sent. With a publisher audio goes there,
    /// as samples whose rate some [`Bandwidth`] has; events go to the socket in any case.
    pub fn new(
        writer: SocketWriter,
        format: AudioFormat,
        lead: Duration,
        publisher: Option<TrackPublisher>,
        turn_clock: Rc<RefCell<TurnClock>>,
    ) -> Self {
        if let Some(publisher) = &publisher {
            publisher.set_bandwidth(Bandwidth::of(format.layout.rate));
        }
        Self(Rc::new(Shared {
            state: RefCell::new(State {
                queue: PlaybackQueue::new(lead),
                loading: None,
                fading: None,
                loads: false,
                synthesizer: None,
                commands: VecDeque::new(),
                encoder: None,
                encoding: None,
                cuts: 0,
                gain: DuckingGain::FULL,
                tag: 0,
                due: None,
                sound_due: None,
                closed: false,
                loudness: Loudness::default(),
                frozen: None,
                recorder: None,
                responder: None,
                last: None,
                silence: None,
            }),
            wake: Notify::new(),
            room: Notify::new(),
            writer,
            format,
            publisher,
            turn_clock,
        }))
    }

    /// The format that is sent.
    pub fn format(&self) -> AudioFormat {
        self.0.format
    }

    /// Records what is sent from now on; `None` stops recording.
    pub fn set_recorder(&self, recorder: Option<Tap>) {
        self.0.state.borrow_mut().recorder = recorder;
    }

    /// Tells this responder how utterances end; `None` tells nobody.
    pub fn set_responder(&self, responder: Option<Addr<ResponderActor>>) {
        self.0.state.borrow_mut().responder = responder;
    }

    /// Queues an utterance or a part of one.
    pub fn speak(&self, speak: Speak) -> Result<(), Overloaded> {
        let replace = speak.replace;
        let spoken = self.cutting(|queue, now| queue.speak(speak, now))?;
        let Some((_, cut)) = spoken else {
            metrics::late_text_dropped();
            return Ok(());
        };
        if replace {
            self.0.state.borrow_mut().begin_anew();
        }
        self.call_back(cut);
        self.tell_ends();
        self.changed();
        Ok(())
    }

    /// The key of the next utterance.
    pub fn next_utterance(&self) -> UtteranceKey {
        self.0.state.borrow().queue.next_key()
    }

    /// Cuts all speech that may be interrupted. When this returns nothing more of it is sent.
    pub fn clear(&self) {
        self.0.state.borrow_mut().begin_anew();
        let cut = self.cutting(PlaybackQueue::clear);
        self.call_back(cut);
        self.tell_ends();
        self.changed();
    }

    /// Cuts the utterances with this id, as far as they may be interrupted.
    pub fn clear_id(&self, id: &str) {
        let cut = self.cutting(|queue, now| queue.clear_id(id, now));
        self.call_back(cut);
        self.tell_ends();
        self.changed();
    }

    /// While it rests nothing begins that is not being said already.
    pub fn rest(&self, rests: bool) {
        self.0.state.borrow_mut().queue.rest(rests);
        self.changed();
    }

    /// What nobody has heard yet, as it was asked for; `None` while something is being heard.
    pub fn unsaid(&self) -> Option<Vec<Speak>> {
        let state = self.0.state.borrow();
        // The end of an utterance is told when its stream has ended.
        let has_ended = state.encoding.is_none();
        has_ended.then(|| state.queue.unsaid()).flatten()
    }

    /// The ids that were cut.
    pub fn cut_ids(&self) -> CutIds {
        self.0.state.borrow().queue.cut_ids()
    }

    /// Forgets what nobody has heard, of which another server tells the end.
    pub fn forget(&self) {
        self.0.state.borrow_mut().queue.forget();
        self.changed();
    }

    /// Ids that were cut, for the player of the next output.
    pub fn take_cut_ids(&self) -> CutIds {
        self.0.state.borrow_mut().queue.take_cut_ids()
    }

    /// Takes them over.
    pub fn remember_cut(&self, cut_ids: CutIds) {
        self.0.state.borrow_mut().queue.remember_cut(cut_ids);
    }

    /// What is being played.
    pub fn output_state(&self) -> OutputState {
        let state = self.0.state.borrow();
        OutputState {
            is_interruptible: state.queue.is_interruptible(state.now()),
            speaks: state.queue.speaks(),
        }
    }

    /// Speech that may be cut yields to somebody who speaks. Audio that was sent already cannot.
    pub fn yields(&self, mode: InterruptionMode) {
        {
            let state = &mut *self.0.state.borrow_mut();
            match mode {
                InterruptionMode::Off => {}
                InterruptionMode::Duck => state.gain.duck(),
                InterruptionMode::Pause => state.queue.pause(true),
            }
        }
        if mode == InterruptionMode::Pause {
            self.release();
        }
        self.changed();
    }

    /// Speech goes on as it was, with the next sample.
    pub fn resumes(&self) {
        {
            let state = &mut *self.0.state.borrow_mut();
            if state.queue.is_paused() {
                state.queue.pause(false);
                state.gain = DuckingGain::SILENT;
            }
            state.gain.rise();
        }
        self.changed();
    }

    /// Tells at once which utterances have ended: until then a cut utterance stays in the queue.
    fn tell_ends(&self) {
        let state = &mut *self.0.state.borrow_mut();
        if self.is_away(state) {
            return;
        }
        // The stream of an utterance ends before its end is told.
        while state.encoding.is_none()
            && let Some(event) = state.queue.next_end(now())
        {
            state.note(&event);
            self.tell(event);
        }
    }

    fn tell(&self, event: Event) {
        if matches!(event.kind, EventKind::Progress { .. }) {
            let text = message(event).to_json();
            return self.0.writer.latest("tts_progress", text);
        }
        let mut clock = self.0.turn_clock.borrow_mut();
        let metrics = clock.playback(event.utterance, &event.kind, Instant::now());
        self.0.writer.event(message(event).to_json());
        metrics
            .into_iter()
            .for_each(|told| self.0.writer.event(told.to_json()));
    }

    /// Cuts everything and tells it; nothing is sent after that.
    pub fn stop(&self) {
        {
            let mut state = self.0.state.borrow_mut();
            state.closed = true;
            state.loading = None;
            state.fading = None;
            // The audio in the encoder is cut, too.
            state.cuts += 1;
            state.encoder = None;
            state.encoding = None;
        }
        let cut = self.cutting(PlaybackQueue::stop);
        self.call_back(cut);
        while let Step::Tell(event) = self.next_step() {
            self.tell(event);
        }
        self.changed();
    }

    /// Sets the clip of the loading sound; `None` removes it.
    pub fn set_clip(&self, clip: Option<Clip>) {
        {
            let state = &mut *self.0.state.borrow_mut();
            state.fading = state.loading.take();
            if let Some(fading) = &mut state.fading {
                fading.stop();
            }
            state.loading = clip.map(LoadingSound::new);
            if let (Some(loading), true) = (&mut state.loading, state.loads) {
                loading.start();
            }
        }
        self.changed();
    }

    /// Starts or stops the loading sound.
    pub fn load(&self, on: bool) {
        {
            let state = &mut *self.0.state.borrow_mut();
            state.loads = on;
            match &mut state.loading {
                Some(loading) if on => loading.start(),
                Some(loading) => loading.stop(),
                None => {}
            }
        }
        self.changed();
    }

    /// Whether the loading sound is wanted.
    pub fn loads(&self) -> bool {
        self.0.state.borrow().loads
    }

    /// See [`PlaybackQueue::tell_words`].
    pub fn tell_words(&self, tells: bool) {
        self.0.state.borrow_mut().queue.tell_words(tells);
    }

    /// Queues audio of an utterance, once there is room for it.
    async fn push(&self, utterance: UtteranceKey, sound: Pcm) {
        let mut chunk = Chunk {
            sound,
            ready: Instant::now(),
        };
        loop {
            let room = self.0.room.notified();
            let refused = self.0.state.borrow_mut().queue.sound(utterance, chunk);
            match refused {
                Ok(()) => return self.changed(),
                Err(again) => chunk = again,
            }
            room.await;
        }
    }

    /// The synthesiser has gone. The utterance that it was synthesising fails.
    pub fn synthesizer_lost(&self) {
        {
            let mut state = self.0.state.borrow_mut();
            state.synthesizer = None;
            let unseen = |command: &Command| matches!(command, Command::Synthesize { .. });
            // An utterance that it never saw can still be spoken.
            if !state.commands.iter().any(unseen) {
                state.commands.clear();
                let problem = "the synthesiser has ended in the middle";
                state
                    .queue
                    .fail_running(Refusal::new(ErrorCode::TtsFailed, problem));
            }
        }
        self.changed();
    }

    fn changed(&self) {
        // A cut makes room for the audio that is being synthesised.
        if self.0.state.borrow().queue.wants_sound() {
            self.0.room.notify_waiters();
        }
        self.0.wake.notify_one();
    }

    /// Runs a command that may cut audio that was sent and not yet played; tells the recorder.
    fn cutting<T>(
        &self,
        cut: impl FnOnce(&mut PlaybackQueue<Chunk>, std::time::Instant) -> T,
    ) -> T {
        let state = &mut *self.0.state.borrow_mut();
        self.is_away(state);
        let now = state.now();
        let before = state.queue.unplayed_sound(now);
        let outcome = cut(&mut state.queue, now);
        let unheard = before.saturating_sub(state.queue.unplayed_sound(now));
        if !unheard.is_zero() {
            // What comes now is not late.
            state.sound_due = None;
        }
        if let Some(recorder) = state.recorder.as_ref().filter(|_| !unheard.is_zero()) {
            recorder.cut(unheard);
        }
        outcome
    }

    /// Takes back audio from this utterance on, as far as it has not been sent.
    fn call_back(&self, from: Option<UtteranceKey>) {
        let Some(from) = from else { return };
        let mut state = self.0.state.borrow_mut();
        state.cuts += 1;
        if state.encoding.is_some_and(|key| key >= from) {
            state.encoder = None;
            state.encoding = None;
        }
        if self.0.publisher.is_none() {
            self.0.writer.cut_audio(from.number());
        }
        drop(state);
        self.release();
    }

    /// Speech in a room has been cut: it fades instead of breaking off.
    fn release(&self) {
        let Some(publisher) = &self.0.publisher else {
            return;
        };
        let state = &mut *self.0.state.borrow_mut();
        let last = state.last.take();
        if let Some((faded, silence)) = last.and_then(|last| last.release(Instant::now())) {
            // The session would have learned of a broken encoder before.
            let _sent = publisher.send(&faded);
            state.silence = Some(silence);
        }
    }

    /// Runs until the player is stopped and everything has been told.
    pub async fn run(self) {
        let mut steps = 0;
        loop {
            match self.next_step() {
                Step::Leave {
                    utterance,
                    sound,
                    due,
                } => self.leave(utterance, &sound, due).await,
                Step::Tell(event) => self.tell(event),
                Step::FinishStream => self.finish_stream().await,
                Step::Wait { until, room } => {
                    steps = 0;
                    self.wait(until, room).await;
                }
                Step::End => return,
            }
            steps += 1;
            if steps % STEPS_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn wait(&self, until: Option<Instant>, room: bool) {
        let sound = self.0.state.borrow().sound_due;
        let early = sound.filter(|due| self.0.publisher.is_none() && Some(*due) == until);
        let until = early.and_then(|due| due.checked_sub(EARLY)).or(until);
        let alarm = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let has_room = async {
            match &self.0.publisher {
                _ if !room => std::future::pending::<()>().await,
                Some(publisher) => publisher.opened().await,
                None => self.0.writer.audio_room(CHUNK).await,
            }
        };
        tokio::select! {
            () = self.0.wake.notified() => {}
            () = alarm => {}
            () = has_room => {}
        }
    }

    /// Whether there is no socket to play to. While there is none, time stands still for the listener; once there is one, it
    /// goes on with what was sent again.
    fn is_away(&self, state: &mut State) -> bool {
        if self.0.publisher.is_some() {
            return false;
        }
        if let Some(again) = self.0.writer.take_again() {
            state.queue.resume(now(), again);
            state.frozen = None;
            state.due = None;
        }
        let is_away = self.0.writer.is_cut_off();
        if is_away {
            state.frozen.get_or_insert_with(now);
        }
        is_away
    }

    /// The socket has gone, or there is another one.
    pub fn socket_changes(&self) {
        self.changed();
    }

    fn next_step(&self) -> Step {
        let woken = Instant::now();
        let state = &mut *self.0.state.borrow_mut();
        if self.is_away(state) && !state.closed {
            state.pass_on_commands();
            let (until, room) = (None, true);
            return Step::Wait { until, room };
        }
        let (instant, now) = match &self.0.publisher {
            Some(_) => {
                let instant = state.as_of(woken);
                (instant, instant.into_std())
            }
            None => state.nearly(woken),
        };
        let leave = |utterance, sound| Step::Leave {
            utterance,
            sound,
            due: instant,
        };
        let has_room = match &self.0.publisher {
            // The wait for a subscriber begins when there is something to play.
            Some(publisher) => {
                let nothing_to_say = state.queue.is_idle() && !state.is_loading();
                nothing_to_say || publisher.is_open()
            }
            None => self.0.writer.has_audio_room(CHUNK),
        };
        state.queue.hold(!has_room);
        state.pass_on_commands();
        // An utterance's stream is finished before its end is told.
        if let Some(key) = state.encoding
            && !state.queue.is_sending(key)
        {
            return Step::FinishStream;
        }
        let wanted_sound = state.queue.wants_sound();
        while let Some(output) = state.queue.poll(now) {
            match output {
                Output::Sound { utterance, sound } => {
                    if !wanted_sound && state.queue.wants_sound() {
                        self.0.room.notify_waiters();
                    }
                    metrics::output_delay(state.lateness(&sound, woken.max(instant)));
                    state.silence = None;
                    let mut samples = sound.sound.into_samples();
                    if !state.queue.is_protected(utterance) {
                        state.gain.apply(&mut samples, self.layout());
                    }
                    state.mix_loading(&mut samples);
                    let sound = Pcm::new(self.layout(), samples);
                    state.record(&sound, now);
                    return leave(Some(utterance), sound);
                }
                Output::Event(event) => {
                    state.note(&event);
                    return Step::Tell(event);
                }
                Output::Command(command) => {
                    if let Command::Cancel { .. } = command {
                        // There is room again for audio.
                        self.0.room.notify_waiters();
                    }
                    state.commands.push_back(command);
                    state.pass_on_commands();
                }
            }
        }
        if !wanted_sound && state.queue.wants_sound() {
            self.0.room.notify_waiters();
        }
        if state.closed && state.queue.is_idle() {
            return Step::End;
        }
        let mut until = state.queue.next_wakeup(now).map(Instant::from_std);
        if state.is_loading()
            && let Some(wait) = state.queue.filler_wait(now, CHUNK)
        {
            if wait.is_zero() {
                let mut samples = vec![0; self.layout().samples_in(CHUNK)];
                state.mix_loading(&mut samples);
                let sound = Pcm::new(self.layout(), samples);
                state.queue.fill(now, sound.duration());
                state.record(&sound, now);
                state.silence = None;
                return leave(None, sound);
            }
            let filler = instant + wait;
            until = Some(until.map_or(filler, |until| until.min(filler)));
        }
        if let Some(silence) = &mut state.silence {
            if silence.take(instant) {
                let sound = Pcm::silence(self.layout(), CHUNK);
                return leave(None, sound);
            }
            until = until.into_iter().chain(silence.due()).min();
        }
        state.due = until;
        let wait = state.queue.sound_wait(now);
        state.sound_due = wait.map(|wait| instant + wait);
        let room = !has_room;
        Step::Wait { until, room }
    }

    /// Encodes a chunk that was due at this time, and sends it. The room for it was checked before it was taken from the queue.
    async fn leave(&self, utterance: Option<UtteranceKey>, sound: &Pcm, due: Instant) {
        let told = self.0.state.borrow_mut().loudness.push(
            sound.samples(),
            sound.frames(),
            sound.rate().hz(),
        );
        if let Some(level) = told {
            self.0.writer.timeline().play(level);
        }
        if let Some(publisher) = &self.0.publisher {
            let samples = sound.samples().to_vec();
            let left = Instant::now();
            let last = utterance.map(|_| LastFrame { samples, left });
            self.0.state.borrow_mut().last = last;
            if let Err(error) = publisher.send_due(sound.samples(), due) {
                self.encoding_failed(utterance, &error);
            }
            return;
        }
        let (tag, cuts, encoder) = {
            let state = &mut *self.0.state.borrow_mut();
            state.tag = utterance.map_or(state.tag, |key| state.tag.max(key.number()));
            if is_stream_of_utterance(self.0.format.encoding) {
                state.encoding = utterance;
            }
            (state.tag, state.cuts, state.encoder.take())
        };
        let encoder = encoder.map_or_else(|| StreamEncoder::live(self.0.format), Ok);
        let encoded = match encoder {
            Ok(mut encoder) => encoder.push(sound).await.map(|encoded| (encoder, encoded)),
            Err(error) => Err(error),
        };
        match encoded {
            Ok((encoder, encoded)) => self.encoded(tag, cuts, Some(encoder), encoded).await,
            Err(error) => self.encoding_failed(utterance, &error),
        }
    }

    async fn finish_stream(&self) {
        let (tag, cuts, encoder) = {
            let state = &mut *self.0.state.borrow_mut();
            (state.tag, state.cuts, state.encoder.take())
        };
        if let Some(mut encoder) = encoder {
            match encoder.finish().await {
                Ok(encoded) => self.encoded(tag, cuts, None, encoded).await,
                Err(error) => {
                    let utterance = self.0.state.borrow().encoding;
                    self.encoding_failed(utterance, &error);
                }
            }
        }
        // From here on the end of the utterance can be told.
        self.0.state.borrow_mut().encoding = None;
    }

    /// Sends encoded audio, unless it was cut meanwhile. An encoder may return more at once than the chunk for which there
    /// was room.
    async fn encoded(
        &self,
        tag: u64,
        cuts: u64,
        encoder: Option<StreamEncoder>,
        encoded: Vec<Encoded>,
    ) {
        let is_stream = is_stream_of_utterance(self.0.format.encoding);
        if !is_stream || self.is_wanted(cuts) {
            self.0.state.borrow_mut().encoder = encoder;
        }
        for Encoded { data, duration } in encoded {
            let audio = Audio {
                tag,
                duration,
                bytes: data,
            };
            while self.is_wanted(cuts) {
                match self.0.writer.audio(audio.clone()) {
                    Ok(()) => break,
                    Err(AudioRefused::Full) => self.0.writer.audio_room(duration).await,
                    // The session learns of it elsewhere.
                    Err(AudioRefused::Closed) => return,
                }
            }
        }
    }

    fn is_wanted(&self, cuts: u64) -> bool {
        self.0.state.borrow().cuts == cuts
    }

    fn encoding_failed(&self, utterance: Option<UtteranceKey>, error: &dyn std::error::Error) {
        tracing::warn!(%error, "speech could not be encoded");
        let message = format!("the speech could not be encoded: {error}");
        let refusal = Refusal::new(ErrorCode::TtsFailed, message);
        if let Some(utterance) = utterance {
            let state = &mut *self.0.state.borrow_mut();
            state.queue.spoil(utterance, refusal);
            state.encoding = None;
        } else {
            let refusal = ServerMessage::refusal(refusal.code, refusal.message);
            self.0.writer.error(refusal.to_json());
        }
        self.changed();
    }
}

impl SpeechSink for Player {
    fn layout(&self) -> Layout {
        self.0.format.layout
    }

    fn attach(&self, synthesizer: Recipient<Synthesize>) {
        self.0.state.borrow_mut().synthesizer = Some(synthesizer);
        self.changed();
    }

    fn audio(&self, utterance: UtteranceKey, audio: Pcm) -> LocalBoxFuture<'_, ()> {
        self.push(utterance, audio).boxed_local()
    }

    fn begin_text(&self, utterance: UtteranceKey, text: Range<usize>, at: Duration) {
        let state = &mut *self.0.state.borrow_mut();
        state.queue.begin_text(utterance, text, at);
    }

    fn word(&self, utterance: UtteranceKey, byte: usize, start: Duration) {
        self.0.state.borrow_mut().queue.word(utterance, byte, start);
    }

    fn end_text(&self, utterance: UtteranceKey, at: Duration) {
        self.0.state.borrow_mut().queue.end_text(utterance, at);
        self.changed();
    }

    fn done(&self, utterance: UtteranceKey) {
        self.0.state.borrow_mut().queue.done(utterance);
        self.changed();
    }

    fn failed(&self, utterance: UtteranceKey, error: Refusal) {
        self.0.state.borrow_mut().queue.failed(utterance, error);
        self.changed();
    }
}

impl State {
    /// When what is sent now was due, for a room, which goes on while this task is late.
    fn as_of(&self, woken: Instant) -> Instant {
        let due = self.sound_due.filter(|due| *due <= woken);
        let due = due.unwrap_or(woken);
        woken
            .checked_sub(CATCH_UP)
            .map_or(due, |from| due.max(from))
    }

    /// When what is sent now was due, for a socket, and the time of the listener: sound that is almost due is due.
    fn nearly(&self, woken: Instant) -> (Instant, std::time::Instant) {
        let almost = |due: &Instant| *due > woken && *due <= woken + EARLY;
        match self.sound_due.filter(almost) {
            Some(due) if self.frozen.is_none() => (due, due.into_std()),
            // One look at the clock for both: what is due then is the same to the nanosecond.
            _ => (woken, self.frozen.unwrap_or_else(|| woken.into_std())),
        }
    }

    /// The time of the listener.
    fn now(&self) -> std::time::Instant {
        self.frozen.unwrap_or_else(now)
    }

    /// Speech from now on does not yield.
    const fn begin_anew(&mut self) {
        self.queue.pause(false);
        self.gain = DuckingGain::FULL;
    }

    /// Records audio that has just been sent.
    fn record(&self, sound: &Pcm, now: std::time::Instant) {
        if let Some(recorder) = &self.recorder {
            let unplayed = self.queue.unplayed_sound(now);
            recorder.play(sound, unplayed.saturating_sub(sound.duration()));
        }
    }

    fn note(&self, event: &Event) {
        if let (Some(responder), Some(id)) = (&self.responder, &event.id) {
            let heard = match &event.kind {
                EventKind::Started | EventKind::Progress { .. } => None,
                EventKind::Complete { .. } => Some(None),
                EventKind::Interrupted { heard_text, .. }
                | EventKind::Failed { heard_text, .. } => Some(Some(heard_text.clone())),
            };
            if let Some(heard) = heard {
                let id = id.clone();
                let failed = matches!(event.kind, EventKind::Failed { .. });
                // Once for each utterance, of which few wait.
                responder.do_send(UtteranceEnded { id, heard, failed });
            }
        }
        if let Some(recorder) = &self.recorder {
            match &event.kind {
                EventKind::Started => recorder.begins(event.utterance.number()),
                EventKind::Progress { .. } => {}
                EventKind::Complete { .. }
                | EventKind::Interrupted { .. }
                | EventKind::Failed { .. } => recorder.ends(event.utterance.number(), &event.text),
            }
            let text = recorder.redacted(&event.text);
            recorder.note(|at_ms| {
                let line = line(event, &text, at_ms);
                line.map_or_else(String::new, |line| line.to_json())
            });
        }
    }

    fn is_loading(&self) -> bool {
        let both = self.loading.iter().chain(&self.fading);
        both.into_iter().any(LoadingSound::is_heard)
    }

    fn mix_loading(&mut self, samples: &mut Vec<i16>) {
        let both = self.loading.iter_mut().chain(&mut self.fading);
        for loading in both.filter(|loading| loading.is_heard()) {
            loading.mix_into(samples);
        }
    }

    fn pass_on_commands(&mut self) {
        let Some(synthesizer) = &self.synthesizer else {
            return;
        };
        while let Some(command) = self.commands.pop_front() {
            let refused = match synthesizer.try_send(Synthesize(command)) {
                Ok(()) => continue,
                // The rest is sent with the next step, or to the next synthesiser.
                Err(SendError::Full(refused) | SendError::Closed(refused)) => refused,
            };
            self.commands.push_front(refused.0);
            return;
        }
    }

    /// How much later a chunk is sent than was meant.
    fn lateness(&self, chunk: &Chunk, now: Instant) -> Duration {
        let due = self.due.filter(|due| *due <= now);
        let due = due.map_or(chunk.ready, |due| due.max(chunk.ready));
        now.saturating_duration_since(due)
    }
}

/// Whether every utterance is a stream of its own, with a header and an end: players take such a stream for a file.
const fn is_stream_of_utterance(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::Mp3 | Encoding::OggOpus | Encoding::Wav)
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Unix time in milliseconds, for events; nothing is measured by it.
pub(super) fn timestamp() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

fn line<'a>(event: &'a Event, text: &'a str, at_ms: u64) -> Option<TranscriptLine<'a>> {
    let id = event.id.as_deref();
    let played = match &event.kind {
        EventKind::Progress { .. } => return None,
        EventKind::Started => return Some(TranscriptLine::Begins { at_ms, id }),
        EventKind::Complete { duration } => duration,
        EventKind::Interrupted { played, .. } | EventKind::Failed { played, .. } => played,
    };
    Some(TranscriptLine::Said {
        at_ms,
        id,
        text,
        played_ms: played.as_millis() as u64,
        whole: matches!(event.kind, EventKind::Complete { .. }),
    })
}

fn message(event: Event) -> ServerMessage {
    let Event { id, kind, .. } = event;
    let timestamp = timestamp();
    match kind {
        EventKind::Started => ServerMessage::TtsStarted { id, timestamp },
        EventKind::Progress {
            word_index,
            text,
            played,
            estimated,
        } => ServerMessage::TtsProgress {
            id,
            word_index: word_index as u64,
            text,
            played_ms: played.as_millis() as u64,
            estimated,
        },
        EventKind::Complete { duration } => ServerMessage::TtsPlaybackComplete {
            timestamp,
            id,
            duration_ms: duration.as_millis() as u64,
        },
        EventKind::Interrupted { played, heard_text } => ServerMessage::TtsInterrupted {
            id,
            timestamp,
            played_ms: played.as_millis() as u64,
            heard_text,
        },
        EventKind::Failed {
            error,
            played,
            heard_text,
        } => ServerMessage::Error {
            message: error.message,
            code: error.code,
            fatal: false,
            id,
            in_reply_to: Some("speak"),
            played_ms: Some(played.as_millis() as u64),
            heard_text: Some(heard_text),
        },
    }
}
