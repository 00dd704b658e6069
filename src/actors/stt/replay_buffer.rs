//! The replay buffer: audio on its way to the recogniser. The task that reads the socket writes it by plain calls, the
//! upload of the current stream reads it, and audio that no final covers is kept, so that the next stream can be sent it
//! again. When streams open and fail, and what a final covers, is the knowledge of the [actor](super).
//!
//! The buffer is bounded. Audio that the recogniser has not been sent is dropped, oldest first, only beyond the limit, and
//! counted. Silence is shortened once it has been sent, or while no stream is open: of more than a second of it the half
//! second after speech and the half second before speech stay. Before the first stream nothing is shortened.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::stream_clock::StreamClock;
use super::uplink::Uplink;
use vivavoce_audio::linear16;
use vivavoce_audio::pcm::energy;
use vivavoce_audio::{Layout, SampleRate};
use vivavoce_seams::Transcript;
use vivavoce_telemetry::metrics::{self, DropCause};

/// Length of the chunks that are sent.
const CHUNK: Duration = Duration::from_millis(20);
/// Chunks of a longer silence that stay after speech and before it: 500 ms.
const AROUND_SPEECH: usize = 25;
/// Chunks of silence that are never shortened: 1 s.
const LONGEST_SILENCE: usize = 2 * AROUND_SPEECH;
/// For how many chunks there is room however few they are once there were more: about those that are kept while nobody speaks.
const ROOM: usize = 64;
/// Speech that is followed by this much silence without a transcript was none.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// The fewest chunks of a pause that ends an utterance, 400 ms: no vendor ends one after less silence.
const PAUSE: usize = 20;
/// The fewest chunks of a pause between two words, 60 ms.
const BETWEEN_WORDS: usize = 3;
/// How much more audio a final that was requested within a word waits for such a pause.
const LONGEST_WORD: Duration = Duration::from_millis(600);
/// Where no audio has come for this long, no word goes on.
pub(super) const NO_MORE_AUDIO: Duration = Duration::from_millis(500);
/// The mean square below which audio is a pause whatever voice activity detection says: −45 dBFS.
const FAINT: f32 = 180.0 * 180.0;
/// The most audio that is kept while the session's config is pending (protocol, section 1).
pub const LIMIT_WHILE_CONFIGURED: Duration = Duration::from_secs(10);
/// The most audio that is kept afterwards (protocol, "STT drops").
pub const LIMIT: Duration = Duration::from_secs(30);

/// The audio of one recogniser, with one writer and one stream at a time that reads it. Clones are the same buffer.
#[derive(Debug, Clone)]
pub struct ReplayBuffer(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    backlog: RefCell<Backlog>,
    /// How often a stream was ended because it did not answer since words came last.
    suspected: Cell<u8>,
    /// There is something to send.
    work: Notify,
    /// Where audio is sent by the call that brings it, while the upload waits for some.
    idle: RefCell<Option<Rc<Uplink>>>,
    /// There will be no more audio.
    ended: Notify,
}

/// 20 ms of audio, or less where it was cut short.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    /// The position of its first sample, counted from the buffer's first.
    at: u64,
    /// linear16.
    pub(super) sound: Bytes,
    speech: bool,
    /// Its energy is below [`FAINT`].
    faint: bool,
    /// A final is requested for everything up to its end.
    finalize: bool,
    /// When it was pushed; of what a stream has accepted, when the last one did.
    moved: Instant,
}

impl Chunk {
    fn samples(&self) -> u64 {
        self.sound.len() as u64 / 2
    }

    fn end(&self) -> u64 {
        self.at + self.samples()
    }

    pub(super) fn is_pause(&self) -> bool {
        !self.speech || self.faint
    }
}

/// What a stream does next.
#[derive(Debug)]
pub(super) enum Upload {
    Sound(Chunk),
    Finalize,
    End,
}

fn is_faint(samples: &[i16]) -> bool {
    energy(samples) < FAINT * samples.len() as f32
}

/// Whether the audio ends between two words.
fn between_words(chunks: &VecDeque<Chunk>) -> bool {
    let mut last = chunks.iter().rev().take(BETWEEN_WORDS);
    chunks.len() >= BETWEEN_WORDS && last.all(Chunk::is_pause)
}

/// Rounds to milliseconds: the other digits are noise of the arithmetic.
fn whole_ms(seconds: f64) -> f64 {
    (seconds * 1_000.0).round() / 1_000.0
}

impl ReplayBuffer {
    /// A buffer of mono samples at the recogniser's rate; `start` is the position of the first one in the session's
    /// audio. Its limit is [`LIMIT_WHILE_CONFIGURED`] at first.
    pub fn new(layout: Layout, start: Duration) -> Self {
        Self(Rc::new(Shared {
            backlog: RefCell::new(Backlog::new(layout.rate, start)),
            suspected: Cell::new(0),
            work: Notify::new(),
            idle: RefCell::default(),
            ended: Notify::new(),
        }))
    }

    /// Sets the position of the first sample in the session's audio, before there is one.
    pub fn begin(&self, start: Duration) {
        self.0.backlog.borrow_mut().start = start;
    }

    pub fn layout(&self) -> Layout {
        Layout::mono(self.0.backlog.borrow().rate)
    }

    /// Appends audio; never waits. `speech` says that voice activity detection reports speech, or a pause that is not over
    /// yet; it is always true where there is no detection. Audio after [`ReplayBuffer::end`] is ignored.
    pub fn push(&self, samples: &[i16], speech: bool) {
        let mut backlog = self.0.backlog.borrow_mut();
        backlog.push(samples, speech, Instant::now());
        let uplink = self.0.idle.borrow();
        let uploaded = uplink
            .as_deref()
            .is_some_and(|uplink| backlog.upload(uplink));
        if !uploaded {
            self.0.work.notify_one();
        }
    }

    /// Skips a gap in the session's audio: nothing is sent for it, and the next audio has its position behind it.
    pub fn skip(&self, gap: Duration) {
        self.change(|backlog| backlog.skip(gap, Instant::now()));
    }

    /// Requests a final for everything that was pushed so far.
    pub fn finalize(&self) {
        self.change(|backlog| backlog.finalize(Instant::now()));
    }

    /// The same, but for whoever is speaking: the final is requested for everything up to the next pause, so that no word is
    /// cut in two; `in_pause` where there is one now, however loud. Some recognisers begin anew behind a final.
    pub fn finalize_at_pause(&self, in_pause: bool) {
        self.change(|backlog| backlog.finalize_at_pause(in_pause, Instant::now()));
    }

    /// There is no more audio: the stream is ended once the rest has been sent.
    pub fn end(&self) {
        self.change(|backlog| backlog.end(Instant::now()));
        self.0.ended.notify_one();
    }

    /// Sets how much audio is kept at most.
    pub fn limit(&self, limit: Duration) {
        self.change(|backlog| backlog.limit(limit));
    }

    /// The end of the buffer in the session's audio, exact to the sample.
    pub fn position(&self) -> Duration {
        let backlog = self.0.backlog.borrow();
        backlog.place(backlog.cut + backlog.rest.len() as u64)
    }

    /// How much audio was dropped at the limit before any recogniser was sent it.
    pub fn lost(&self) -> Duration {
        let backlog = self.0.backlog.borrow();
        backlog.rate.duration_of(backlog.lost as usize)
    }

    pub fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Removes all audio that is kept.
    pub fn give_away(&self) -> Vec<i16> {
        self.0.backlog.borrow_mut().give_away()
    }

    /// How much audio is kept.
    pub fn kept(&self) -> Duration {
        let backlog = self.0.backlog.borrow();
        backlog.rate.duration_of(backlog.kept as usize)
    }

    /// Finals cover the session's audio up to here: as far as the current stream was sent it, it need not be kept.
    pub(super) fn acknowledge(&self, until: Duration) {
        let mut backlog = self.0.backlog.borrow_mut();
        let until = backlog.sample(until);
        backlog.acknowledge(until);
    }

    /// Up to where in the session's audio the current stream was sent it.
    pub(super) fn sent(&self) -> Duration {
        let backlog = self.0.backlog.borrow();
        backlog.place(backlog.accepted)
    }

    /// Where the latest silence begins in the audio that the current stream was sent.
    pub(super) fn latest_pause(&self) -> Option<Duration> {
        let backlog = self.0.backlog.borrow();
        backlog.latest_pause().map(|at| backlog.place(at))
    }

    /// The end, at a pause, of the utterance that a final without an end has surely transcribed: the first one that is
    /// kept. What was sent until `sure` counts as transcribed as well.
    pub(super) fn end_of_utterance(&self, sure: Option<Instant>) -> Option<Duration> {
        let backlog = self.0.backlog.borrow();
        let end = backlog.end_of_utterance(sure);
        end.map(|at| backlog.place(at))
    }

    /// Nobody is speaking now.
    pub(super) fn is_silent(&self) -> bool {
        self.0.backlog.borrow().is_silent()
    }

    /// A stream is suspected to be dead; whether that has happened less often than so since the last words.
    pub(super) fn suspects(&self, most: u8) -> bool {
        let times = self.0.suspected.get();
        self.0.suspected.set(times.saturating_add(1));
        times < most
    }

    /// Words have come.
    pub(super) fn trusts(&self) {
        self.0.suspected.set(0);
    }

    /// The recogniser reports speech, whatever voice activity detection says.
    pub(super) fn recogniser_hears_speech(&self) {
        self.0.backlog.borrow_mut().recogniser_hears_speech();
    }

    /// A new stream is open and is sent everything that is kept.
    pub(super) fn rewind(&self) {
        self.change(Backlog::rewind);
    }

    /// The stream is lost, and the next one may take a while.
    pub(super) fn interrupt(&self) {
        self.0.backlog.borrow_mut().interrupt();
    }

    /// Waits for what is to be sent next. Cancel-safe. Audio that comes meanwhile is sent over `uplink` at once where that
    /// is possible, which has no other use during the call.
    pub(super) async fn next(&self, uplink: &Rc<Uplink>) -> Upload {
        loop {
            let (next, overdue) = {
                let mut backlog = self.0.backlog.borrow_mut();
                backlog.finalize_if_overdue(Instant::now());
                (backlog.take(), backlog.pause_overdue())
            };
            if let Some(upload) = next {
                return upload;
            }
            let _idle = Idle::new(&self.0.idle, uplink);
            match overdue {
                None => self.0.work.notified().await,
                // Whether it was notified or is overdue is seen above.
                Some(at) => {
                    let _ = timeout_at(at, self.0.work.notified()).await;
                }
            }
        }
    }

    /// The stream has accepted the chunk.
    pub(super) fn accepted(&self, chunk: &Chunk) {
        self.0.backlog.borrow_mut().accepted(chunk);
    }

    /// Waits for [`ReplayBuffer::end`].
    pub(super) async fn ended(&self) {
        while !self.0.backlog.borrow().ended {
            self.0.ended.notified().await;
        }
    }

    /// Maps the times of a transcript from the stream to the session.
    pub(super) fn place_words(&self, transcript: &mut Transcript) {
        let backlog = self.0.backlog.borrow();
        let start = backlog.start.as_secs_f64();
        for word in &mut transcript.words {
            word.start = whole_ms(start + backlog.clock.begin(word.start));
            word.end = whole_ms(start + backlog.clock.end(word.end));
        }
        let end = transcript.end;
        transcript.end = end.map(|end| start + backlog.clock.end(end));
    }

    fn change(&self, change: impl FnOnce(&mut Backlog)) {
        change(&mut self.0.backlog.borrow_mut());
        self.0.work.notify_one();
    }
}

/// While it lives, its uplink is idle.
struct Idle<'a>(&'a RefCell<Option<Rc<Uplink>>>);

impl<'a> Idle<'a> {
    fn new(idle: &'a RefCell<Option<Rc<Uplink>>>, uplink: &Rc<Uplink>) -> Self {
        idle.replace(Some(Rc::clone(uplink)));
        Self(idle)
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// The state of a buffer. Positions are samples from its first one.
#[derive(Debug)]
struct Backlog {
    rate: SampleRate,
    /// Where the buffer begins in the session's audio.
    start: Duration,
    limit: u64,
    /// Samples that do not fill a chunk yet.
    rest: Vec<i16>,
    rest_is_speech: bool,
    /// Samples that have been cut into chunks so far.
    cut: u64,
    chunks: VecDeque<Chunk>,
    /// The samples in `chunks`.
    kept: u64,
    /// The first chunk that the current stream has not been given.
    unsent: usize,
    /// Up to here silence has been shortened.
    shortened: usize,
    /// The chunks of silence that end there.
    silence: usize,
    /// Up to where the current stream has accepted audio.
    accepted: u64,
    /// Up to where any stream has.
    ever_accepted: u64,
    clock: StreamClock,
    finalize_next: bool,
    /// A final is requested at the next pause, or where there is none at this sample.
    finalize_by: Option<u64>,
    /// When audio was pushed last.
    last_push: Option<Instant>,
    ended: bool,
    streams: Streams,
    /// Samples that there were when the current stream opened.
    opened_at: u64,
    lost: u64,
    /// Speech that was sent and is no longer kept, though no final has covered it.
    not_replayable: u64,
}

/// The streams so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Streams {
    NoneYet,
    Open,
    Lost,
}

impl Backlog {
    fn give_away(&mut self) -> Vec<i16> {
        let mut samples = Vec::with_capacity(self.kept as usize + self.rest.len());
        for chunk in self.chunks.drain(..) {
            linear16::decode(&chunk.sound, &mut samples);
        }
        samples.append(&mut self.rest);
        (self.kept, self.unsent, self.shortened, self.silence) = (0, 0, 0, 0);
        self.finalize_by = None;
        samples
    }

    fn new(rate: SampleRate, start: Duration) -> Self {
        Self {
            rate,
            start,
            limit: rate.frames_in(LIMIT_WHILE_CONFIGURED) as u64,
            rest: Vec::new(),
            rest_is_speech: false,
            cut: 0,
            chunks: VecDeque::new(),
            kept: 0,
            unsent: 0,
            shortened: 0,
            silence: 0,
            accepted: 0,
            ever_accepted: 0,
            clock: StreamClock::new(rate),
            finalize_next: false,
            finalize_by: None,
            last_push: None,
            ended: false,
            streams: Streams::NoneYet,
            opened_at: 0,
            lost: 0,
            not_replayable: 0,
        }
    }

    fn place(&self, sample: u64) -> Duration {
        self.start + self.rate.duration_of(sample as usize)
    }

    /// The sample nearest to a position in the session's audio.
    fn sample(&self, place: Duration) -> u64 {
        let half_a_sample = Duration::from_secs(1) / (2 * self.rate.hz());
        let since = place.saturating_sub(self.start);
        self.rate.frames_in(since.saturating_add(half_a_sample)) as u64
    }

    fn push(&mut self, mut samples: &[i16], speech: bool, now: Instant) {
        if self.ended {
            return;
        }
        self.last_push = Some(now);
        let chunk = self.rate.frames_in(CHUNK);
        while !samples.is_empty() {
            if self.rest.is_empty()
                && let Some((whole, others)) = samples.split_at_checked(chunk)
            {
                self.cut(whole, speech, now);
                samples = others;
                continue;
            }
            let (taken, others) = samples.split_at(samples.len().min(chunk - self.rest.len()));
            samples = others;
            self.rest.extend_from_slice(taken);
            self.rest_is_speech |= speech;
            if self.rest.len() == chunk {
                self.cut_rest(now);
            }
        }
    }

    fn cut_rest(&mut self, now: Instant) {
        if self.rest.is_empty() {
            return;
        }
        let mut rest = std::mem::take(&mut self.rest);
        let speech = std::mem::take(&mut self.rest_is_speech);
        self.cut(&rest, speech, now);
        rest.clear();
        self.rest = rest;
    }

    fn cut(&mut self, samples: &[i16], speech: bool, now: Instant) {
        let chunk = Chunk {
            at: self.cut,
            sound: linear16::encode(samples),
            speech,
            faint: is_faint(samples),
            finalize: false,
            moved: now,
        };
        self.cut += chunk.samples();
        self.kept += chunk.samples();
        self.chunks.push_back(chunk);
        let waited = |by: &mut u64| self.cut >= *by || between_words(&self.chunks);
        if self.finalize_by.take_if(waited).is_some() {
            self.finalize_last();
        }
        self.shorten_silence();
        self.keep_to_limit();
    }

    fn skip(&mut self, gap: Duration, now: Instant) {
        if !self.ended {
            self.cut_rest(now);
            if self.finalize_by.is_some() {
                self.finalize_last();
            }
            self.cut += self.rate.frames_in(gap) as u64;
        }
    }

    fn finalize(&mut self, now: Instant) {
        self.cut_rest(now);
        self.finalize_last();
    }

    /// A final is requested for everything up to the end of the last chunk.
    fn finalize_last(&mut self) {
        self.finalize_by = None;
        self.finalize_next |= self.unsent == self.chunks.len();
        if let Some(last) = self.chunks.back_mut() {
            last.finalize = true;
        }
    }

    fn finalize_at_pause(&mut self, in_pause: bool, now: Instant) {
        if self.is_silent() {
            return self.finalize(now);
        }
        if in_pause || between_words(&self.chunks) {
            // What follows it may be the beginning of a word.
            return self.finalize_last();
        }
        let by = self.cut + self.rest.len() as u64 + self.rate.frames_in(LONGEST_WORD) as u64;
        self.finalize_by.get_or_insert(by);
        self.finalize_if_overdue(now);
    }

    /// When a final is requested although there was no pause, unless more audio comes.
    fn pause_overdue(&self) -> Option<Instant> {
        let last = self.last_push.filter(|_| self.finalize_by.is_some());
        last.map(|last| last + NO_MORE_AUDIO)
    }

    fn finalize_if_overdue(&mut self, now: Instant) {
        if self.pause_overdue().is_some_and(|at| at <= now) {
            self.finalize(now);
        }
    }

    fn end(&mut self, now: Instant) {
        self.cut_rest(now);
        // The end is a final of everything.
        self.finalize_by = None;
        self.ended = true;
    }

    fn limit(&mut self, limit: Duration) {
        self.limit = self.rate.frames_in(limit) as u64;
        self.keep_to_limit();
    }

    fn keep_to_limit(&mut self) {
        while self.kept > self.limit
            && let Some(oldest) = self.chunks.front()
        {
            if self.unsent == 0 {
                let cause = match self.streams {
                    Streams::NoneYet => DropCause::Configuring,
                    Streams::Open | Streams::Lost => DropCause::Replay,
                };
                let lost = self.rate.duration_of(oldest.samples() as usize);
                metrics::audio_dropped(cause, lost);
                self.lost += oldest.samples();
            } else if oldest.speech {
                self.not_replayable += oldest.samples();
            }
            self.forget(1);
        }
    }

    /// Drops the oldest chunks.
    fn forget(&mut self, chunks: usize) {
        self.kept -= self
            .chunks
            .drain(..chunks)
            .map(|chunk| chunk.samples())
            .sum::<u64>();
        self.unsent = self.unsent.saturating_sub(chunks);
        self.shortened = self.shortened.saturating_sub(chunks);
        self.silence = self.silence.min(self.shortened);
    }

    /// What the current stream sends next.
    fn take(&mut self) -> Option<Upload> {
        if self.finalize_next {
            self.finalize_next = false;
            return Some(Upload::Finalize);
        }
        let Some(chunk) = self.chunks.get(self.unsent).cloned() else {
            return self.ended.then_some(Upload::End);
        };
        self.unsent += 1;
        self.finalize_next = chunk.finalize;
        self.shorten_silence();
        Some(Upload::Sound(chunk))
    }

    /// Sends what waits over an idle uplink. Whether nothing is left for the task that uploads.
    fn upload(&mut self, uplink: &Uplink) -> bool {
        while self.finalize_by.is_none() && !self.finalize_next {
            if self.unsent == self.chunks.len() {
                return true;
            }
            let sent = uplink.try_send(|| match self.take() {
                Some(Upload::Sound(chunk)) => Some(chunk),
                _ => None,
            });
            match sent {
                Some(chunk) => self.accepted(&chunk),
                None => return false,
            }
        }
        false
    }

    /// The current stream has accepted this.
    fn accepted(&mut self, chunk: &Chunk) {
        let now = Instant::now();
        self.clock.append(chunk.at, chunk.samples());
        self.accepted = chunk.end();
        let kept = self.chunks.range_mut(..self.unsent).next_back();
        if let Some(kept) = kept.filter(|kept| kept.at == chunk.at) {
            kept.moved = now;
        }
        if chunk.end() > self.ever_accepted {
            self.ever_accepted = chunk.end();
            metrics::input_delay(now - chunk.moved);
        }
    }

    fn acknowledge(&mut self, until: u64) {
        let until = until.min(self.accepted);
        let sent = self.chunks.range(..self.unsent);
        let covered = sent.take_while(|chunk| chunk.end() <= until).count();
        self.forget(covered);
        if let Some(chunk) = self.chunks.front_mut()
            && chunk.at < until
        {
            let samples = until - chunk.at;
            chunk.sound.advance(samples as usize * 2);
            chunk.at = until;
            self.kept -= samples;
        }
        self.not_replayable = 0;
        // Gives back the memory of a long replay.
        self.chunks.shrink_to(ROOM);
    }

    fn latest_pause(&self) -> Option<u64> {
        self.chunks
            .range(..self.unsent)
            .rev()
            .skip_while(|chunk| chunk.end() > self.accepted || chunk.speech)
            .take_while(|chunk| !chunk.speech)
            .last()
            .map(|chunk| chunk.at)
    }

    fn end_of_utterance(&self, sure: Option<Instant>) -> Option<u64> {
        let sent = self.chunks.range(..self.unsent);
        let sent = sent.take_while(|chunk| chunk.end() <= self.accepted);
        let (mut spoken, mut pause) = (false, 0);
        let (mut pause_at, mut end, mut sure_until) = (0, None, None);
        for chunk in sent {
            let is_sure = Some(chunk.moved) <= sure;
            if is_sure {
                sure_until = Some(chunk.end());
            }
            if !chunk.is_pause() {
                (spoken, pause) = (true, 0);
                continue;
            }
            if pause == 0 {
                pause_at = chunk.at;
            }
            pause += 1;
            if spoken && pause == PAUSE && (end.is_none() || is_sure) {
                end = Some(pause_at);
            }
        }
        end.or(sure_until)
    }

    fn is_silent(&self) -> bool {
        !self.rest_is_speech && self.chunks.back().is_none_or(|chunk| !chunk.speech)
    }

    fn recogniser_hears_speech(&mut self) {
        let mut sent = self.chunks.range_mut(..self.unsent);
        if !sent.any(|chunk| chunk.speech) {
            let sent = self.chunks.range_mut(..self.unsent);
            sent.for_each(|chunk| chunk.speech = true);
            self.silence = self.silence.min(self.shortened.saturating_sub(self.unsent));
        }
    }

    fn rewind(&mut self) {
        if self.streams != Streams::NoneYet {
            let leading = self.chunks.iter().take_while(|chunk| !chunk.speech).count();
            self.forget(leading.saturating_sub(AROUND_SPEECH));
        }
        self.streams = Streams::Open;
        self.unsent = 0;
        self.accepted = self.chunks.front().map_or(self.cut, |chunk| chunk.at);
        self.clock = StreamClock::new(self.rate);
        self.finalize_next = false;
        self.opened_at = self.cut;
    }

    fn interrupt(&mut self) {
        if self.streams == Streams::Open {
            self.streams = Streams::Lost;
            self.lost += std::mem::take(&mut self.not_replayable);
            self.unsent = 0;
            self.shorten_silence();
        }
    }

    /// Shortens silence in the audio that has been sent; while there is no stream, in all of it.
    fn shorten_silence(&mut self) {
        loop {
            let end = match self.streams {
                Streams::NoneYet => 0,
                Streams::Open => self.unsent,
                Streams::Lost => self.chunks.len(),
            };
            if self.shortened >= end {
                return;
            }
            let speech = self
                .chunks
                .get(self.shortened)
                .is_some_and(|chunk| chunk.speech);
            self.silence = if speech { 0 } else { self.silence + 1 };
            self.shortened += 1;
            self.shorten_last_silence();
        }
    }

    /// Shortens the silence that ends at `shortened` if it has just become too long.
    fn shorten_last_silence(&mut self) {
        if self.silence <= LONGEST_SILENCE {
            return;
        }
        let begin = self.shortened - self.silence;
        if begin == 0 {
            return self.forget(1);
        }
        let since = self.opened_at.max(self.chunks[begin].at);
        let lasts = self.chunks[self.shortened - 1].end().saturating_sub(since);
        if self.streams == Streams::Open && self.rate.duration_of(lasts as usize) > FORGOTTEN_AFTER
        {
            return self.forget(begin);
        }
        self.leave_out(begin + AROUND_SPEECH);
    }

    /// Removes a chunk before `shortened`.
    fn leave_out(&mut self, index: usize) {
        let Some(chunk) = self.chunks.remove(index) else {
            return;
        };
        self.kept -= chunk.samples();
        self.shortened -= 1;
        self.silence -= 1;
        if index < self.unsent {
            self.unsent -= 1;
        }
        self.chunks[index - 1].finalize |= chunk.finalize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: SampleRate = SampleRate::HZ_8000;
    /// Samples of a chunk.
    const WHOLE: u64 = 160;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Push {
            chunks: usize,
            speech: bool,
        },
        Send(usize),
        /// Of what was sent, in per cent.
        Acknowledge(u64),
        Fail,
        Reopen,
        /// The recogniser hears speech.
        Hears,
        GiveAway,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1usize..40).prop_map(|chunks| Step::Push {
                chunks,
                speech: true
            }),
            // Never so much in one test that speech before it is forgotten.
            (1usize..40).prop_map(|chunks| Step::Push {
                chunks,
                speech: false
            }),
            (1usize..80).prop_map(Step::Send),
            (0u64..=100).prop_map(Step::Acknowledge),
            Just(Step::Fail),
            Just(Step::Reopen),
        ]
    }

    /// A buffer, what was pushed, and what the present stream has heard.
    struct Fed {
        backlog: Backlog,
        speech: Vec<bool>,
        covered: u64,
        heard: Vec<(u64, u64)>,
        open: bool,
    }

    impl Fed {
        fn new(limit: Duration) -> Self {
            let mut backlog = Backlog::new(RATE, Duration::ZERO);
            backlog.limit(limit);
            Self {
                backlog,
                speech: Vec::new(),
                covered: 0,
                heard: Vec::new(),
                open: false,
            }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Push { chunks, speech } => {
                    let samples = vec![0; chunks * WHOLE as usize];
                    self.backlog.push(&samples, speech, Instant::now());
                    self.speech.extend(vec![speech; chunks]);
                }
                Step::Send(chunks) if self.open => self.send(chunks),
                Step::Acknowledge(per_cent) if self.open => {
                    let until = self.backlog.accepted * per_cent / 100;
                    self.backlog.acknowledge(until);
                    self.covered = self.covered.max(until);
                }
                Step::Fail if self.open => {
                    self.backlog.interrupt();
                    self.open = false;
                }
                Step::Hears => self.backlog.recogniser_hears_speech(),
                Step::GiveAway => drop(self.backlog.give_away()),
                Step::Reopen if !self.open => {
                    self.backlog.rewind();
                    self.heard.clear();
                    self.open = true;
                }
                _ => {}
            }
            self.check();
        }

        fn send(&mut self, chunks: usize) {
            for _ in 0..chunks {
                let Some(Upload::Sound(chunk)) = self.backlog.take() else {
                    return;
                };
                self.backlog.accepted(&chunk);
                self.heard.push((chunk.at, chunk.end()));
            }
        }

        fn check(&self) {
            let backlog = &self.backlog;
            let kept: u64 = backlog.chunks.iter().map(Chunk::samples).sum();
            assert_eq!(backlog.kept, kept);
            assert!(kept <= backlog.limit);
            assert!(backlog.unsent.max(backlog.shortened) <= backlog.chunks.len());
            let heard = backlog.chunks.range(..backlog.shortened).rev();
            let silence = heard.take_while(|chunk| !chunk.speech).count();
            assert_eq!(backlog.silence, silence);
        }

        /// Whether somebody would miss this chunk: speech, or what is around it.
        fn matters(&self, chunk: usize) -> bool {
            let from = chunk.saturating_sub(AROUND_SPEECH);
            let to = (chunk + AROUND_SPEECH + 1).min(self.speech.len());
            (from..to).any(|near| self.speech[near] && near as u64 * WHOLE >= self.covered)
        }
    }

    #[test]
    fn what_comes_behind_a_gap_has_its_place_there_and_the_gap_is_not_sent() {
        let mut backlog = Backlog::new(RATE, Duration::from_secs(1));
        backlog.rewind();
        backlog.push(&[0; 240], true, Instant::now());
        backlog.skip(Duration::from_secs(2), Instant::now());
        backlog.push(&[0; 160], true, Instant::now());
        let mut sent = Vec::new();
        while let Some(Upload::Sound(chunk)) = backlog.take() {
            backlog.accepted(&chunk);
            sent.push((chunk.at, chunk.end()));
        }
        assert_eq!(sent, [(0, 160), (160, 240), (16_240, 16_400)]);
        assert_eq!(backlog.place(backlog.cut), Duration::from_millis(3_050));
        // 10 ms into the last of what was sent.
        assert!((backlog.clock.begin(0.04) - 2.04).abs() < 1e-9);
        assert_eq!(backlog.lost, 0);
    }

    proptest! {
        #[test]
        fn a_stream_hears_what_no_final_covers_in_order_once_and_nothing_else(
            steps in prop::collection::vec(step(), 0..40),
        ) {
            let silence: usize = steps.iter().map(|step| match step {
                Step::Push { chunks, speech: false } => *chunks,
                _ => 0,
            }).sum();
            prop_assume!(CHUNK * (silence as u32) < FORGOTTEN_AFTER);
            let mut fed = Fed::new(Duration::from_hours(1));
            steps.into_iter().for_each(|step| fed.step(step));
            fed.step(Step::Fail);
            let covered = fed.covered;
            fed.step(Step::Reopen);
            fed.send(usize::MAX);
            prop_assert!(fed.heard.iter().all(|&(from, _)| from >= covered));
            prop_assert!(fed.heard.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            for chunk in (0..fed.speech.len()).filter(|&chunk| fed.matters(chunk)) {
                let (from, to) = (chunk as u64 * WHOLE, (chunk as u64 + 1) * WHOLE);
                let from = from.max(covered);
                let heard = fed.heard.contains(&(from, to));
                prop_assert!(heard || from >= to, "chunk {} is not heard", chunk);
            }
            prop_assert_eq!(fed.backlog.lost, 0);
        }

        /// Also where silence is so long that the speech before it is forgotten.
        #[test]
        fn silence_is_counted_whatever_happens(
            steps in prop::collection::vec(
                prop_oneof![
                    6 => step(),
                    2 => (1usize..300).prop_map(|chunks| Step::Push { chunks, speech: false }),
                    2 => Just(Step::Send(usize::MAX)),
                    1 => Just(Step::Hears),
                    1 => Just(Step::GiveAway),
                ],
                0..80,
            ),
        ) {
            let mut fed = Fed::new(Duration::from_secs(30));
            fed.step(Step::Reopen);
            // Each checks.
            steps.into_iter().for_each(|step| fed.step(step));
        }

        #[test]
        fn beyond_the_limit_what_is_not_heard_is_counted(
            steps in prop::collection::vec(
                prop_oneof![
                    (1usize..200).prop_map(|chunks| Step::Push { chunks, speech: true }),
                    (1usize..200).prop_map(Step::Send),
                ],
                0..40,
            ),
        ) {
            let mut fed = Fed::new(Duration::from_secs(2));
            fed.step(Step::Reopen);
            steps.into_iter().for_each(|step| fed.step(step));
            fed.send(usize::MAX);
            let heard: u64 = fed.heard.iter().map(|(from, to)| to - from).sum();
            prop_assert_eq!(heard + fed.backlog.lost, fed.backlog.cut);
            // What was heard but is not kept is lost with the stream.
            let gone = fed.backlog.cut - fed.backlog.kept;
            fed.step(Step::Fail);
            prop_assert_eq!(fed.backlog.lost, gone);
        }
    }
}
