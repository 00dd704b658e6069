//! The playback queue of a session: what `speak` and `clear` ask for and what synthesis brings becomes sound that
//! leaves at the listener's pace, and events that say what was really heard (`docs/protocol.md`, section 3). A pure
//! state machine: the timer, the synthesiser and the way to the listener are its owner's, who calls [`poll`] until it
//! gives nothing more, after every input and at [`next_wakeup`].
//!
//! What the protocol leaves open is decided here:
//!
//! - Parts of one utterance (`flush: false`) share one fate: the first `id` among them is its id, and it is protected
//!   when one part is.
//! - End events come in the order of the utterances, each when the one before has ended; only a blank text completes at
//!   once, whatever plays. So the end of a cleared utterance is told after the protected one before it was heard, for
//!   clients drop what they have buffered when they are told of an interruption. For the same reason nothing leaves
//!   behind a cut or failed utterance before its end was told.
//! - What was cleared before it began has played nothing and heard nothing, and ends as interrupted, too.
//! - `clear` does not touch a protected utterance that is still being written; it stays open. `replace` closes it: the
//!   new text is an utterance of its own behind it.
//! - Sound of a clearable utterance that has left, with sound of a protected one behind it on its way, plays out: it
//!   could be taken back only together with the protected sound.
//! - A failed utterance loses its protection and the text that follows begins another. What was synthesised of it plays
//!   out, then it ends as failed: told at once, the failure of an utterance that is prepared would stop the one before.
//!
//! [`poll`]: PlaybackQueue::poll
//! [`next_wakeup`]: PlaybackQueue::next_wakeup

mod script;
#[cfg(test)]
mod tests;
mod timeline;
mod words;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use script::Script;
use timeline::Timeline;
use vivavoce_audio::encode::Encoded;
use vivavoce_audio::pacer::{LEAD, Pacer};
use vivavoce_audio::pcm::Pcm;

/// Utterances that may wait, and utterances that may be on their way to the listener.
pub const MAX_UTTERANCES: usize = 64;
/// Text that may wait for synthesis, and text of one utterance, in bytes.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;
/// Synthesised sound that may wait, apart from the rest of one chunk.
pub const MAX_SOUND: Duration = Duration::from_secs(5);

/// A piece of sound that leaves whole, usually 20 ms.
pub trait Sound {
    /// How long it lasts when it is played; zero for a header.
    fn duration(&self) -> Duration;

    /// The mean magnitude of each 10 ms of it, where it can be known.
    fn loudness(&self) -> Vec<u16> {
        Vec::new()
    }
}

impl Sound for Encoded {
    fn duration(&self) -> Duration {
        self.duration
    }
}

impl Sound for Pcm {
    fn duration(&self) -> Duration {
        Self::duration(self)
    }
}

/// One utterance of a queue. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtteranceKey(u64);

impl UtteranceKey {
    /// Its place among all utterances of the queue.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The command `speak`.
#[derive(Debug, Clone)]
pub struct Speak {
    /// What to say.
    pub text: String,
    /// Whether the utterance ends with this text.
    pub flush: bool,
    /// Whether `clear` and `replace` may cut it.
    pub allow_interruption: bool,
    /// Whether everything that may be cut is cut first.
    pub replace: bool,
    /// The client's name for the utterance.
    pub id: Option<String>,
}

/// Why a `speak` was refused. Nothing has changed, not even with `replace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Overloaded {
    /// [`MAX_UTTERANCES`].
    #[error("{MAX_UTTERANCES} utterances wait already")]
    Utterances,
    /// [`MAX_TEXT_BYTES`].
    #[error("more than {MAX_TEXT_BYTES} bytes of text would wait")]
    Text,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<S> {
    /// For the listener.
    Sound {
        /// Whose sound.
        utterance: UtteranceKey,
        /// The sound.
        sound: S,
    },
    /// For the client.
    Event(Event),
    /// For synthesis.
    Command(Command),
}

/// What the synthesiser is to do. It has one utterance at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Say this. It must be answered by `done` or `failed`, within the synthesiser's own deadlines.
    Synthesize {
        /// The utterance.
        utterance: UtteranceKey,
        /// Its text, or the first sentences of it.
        text: String,
        /// Whether that is all of it.
        last: bool,
    },
    /// The text goes on.
    MoreText {
        /// The utterance.
        utterance: UtteranceKey,
        /// More sentences; may be empty when it is the last.
        text: String,
        /// Whether the text ends here.
        last: bool,
    },
    /// Stop; what still comes of it is ignored.
    Cancel {
        /// The utterance.
        utterance: UtteranceKey,
    },
}

/// What became of an utterance: started at most once, then its words where they are wanted,
/// and exactly one of the others, which is the last of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The utterance.
    pub utterance: UtteranceKey,
    /// The client's name for it.
    pub id: Option<String>,
    /// What was heard of its text, once it has ended.
    pub text: String,
    /// What happened.
    pub kind: EventKind,
}

/// Kinds of [`Event`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Its first sound leaves now.
    Started,
    /// The listener has heard its last sample.
    Complete {
        /// All of its sound.
        duration: Duration,
    },
    /// The listener begins to hear a word of it.
    Progress {
        /// Its number in the utterance, from nought.
        word_index: usize,
        /// The word as the client wrote it, with the marks that belong to it.
        text: String,
        /// Where it begins in the utterance's sound.
        played: Duration,
        /// Whether that was estimated: the voice has not told it.
        estimated: bool,
    },
    /// It was cut off, perhaps before it began.
    Interrupted {
        /// What the listener had heard by then.
        played: Duration,
        /// The words in that.
        heard_text: String,
    },
    /// Its synthesis failed, and the listener has heard what there was of it. The error itself is known to whoever
    /// called `failed`.
    Failed {
        /// What the listener has heard.
        played: Duration,
        /// The words in that.
        heard_text: String,
    },
}

/// How far synthesis is with an utterance, or how it ended.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Done,
    Failed,
    Cut { heard_text: String },
}

#[derive(Debug)]
struct Utterance<S> {
    key: UtteranceKey,
    id: Option<String>,
    protected: bool,
    script: Script,
    timeline: Timeline,
    /// Where the next word begins that the client is to be told of.
    next_word: Option<Duration>,
    stage: Stage,
    /// Sound that waits to leave.
    sound: VecDeque<S>,
    /// All sound that synthesis brought.
    synthesised: Duration,
    /// What has left and was not cut.
    left: Duration,
    started: bool,
}

impl<S> Utterance<S> {
    /// Whether text may be added.
    const fn is_open(&self) -> bool {
        !self.script.is_closed() && matches!(self.stage, Stage::Waiting | Stage::Running)
    }

    /// Whether nothing of it will leave any more.
    fn has_left(&self) -> bool {
        self.sound.is_empty() && !matches!(self.stage, Stage::Waiting | Stage::Running)
    }

    /// Whether the sound behind it waits until its end was told.
    const fn holds_up(&self) -> bool {
        matches!(self.stage, Stage::Failed | Stage::Cut { .. })
    }

    fn heard_text(&mut self) -> String {
        let text = self.script.text();
        let heard = self.timeline.heard(text, self.left, self.synthesised);
        heard.to_owned()
    }

    /// The next word to tell of, as soon as `played` of the sound was played.
    fn progress(&mut self, played: Duration) -> Option<EventKind> {
        let text = self.script.text();
        let next = self.timeline.next_word(text, self.synthesised);
        self.next_word = next.as_ref().map(|(_, word)| word.start);
        let (word_index, word) = next.filter(|(_, word)| word.start <= played)?;
        self.timeline.tell();
        Some(EventKind::Progress {
            word_index,
            text: text.get(word.text).unwrap_or_default().to_owned(),
            played: word.start,
            estimated: word.estimated,
        })
    }
}

/// Sound that has left in one go, as long as it may not have been played.
#[derive(Debug)]
struct Stretch {
    /// `None` is filler.
    utterance: Option<UtteranceKey>,
    duration: Duration,
}

/// The queue. `S` is what leaves: encoded chunks, or samples.
#[derive(Debug)]
pub struct PlaybackQueue<S> {
    pacer: Pacer,
    /// What has left, in order; the last of it, as much as the pacer says, was not played yet.
    on_air: VecDeque<Stretch>,
    on_air_total: Duration,
    utterances: VecDeque<Utterance<S>>,
    /// Blank ones, which complete at once.
    blank: VecDeque<(UtteranceKey, Option<String>)>,
    /// One at most: synthesis has one utterance at a time.
    cancel: Option<UtteranceKey>,
    /// Synthesised sound that waits to leave.
    waiting: Duration,
    held: bool,
    /// Whether what may be cut waits as well: somebody may want to interrupt it.
    paused: bool,
    /// Whether the client wants to know of each word.
    tells_words: bool,
    next_key: u64,
}

impl<S: Sound> PlaybackQueue<S> {
    /// An empty queue whose sound leaves at most `lead` ahead of real time; [`Duration::MAX`] turns pacing off.
    pub const fn new(lead: Duration) -> Self {
        Self {
            pacer: Pacer::new(lead),
            on_air: VecDeque::new(),
            on_air_total: Duration::ZERO,
            utterances: VecDeque::new(),
            blank: VecDeque::new(),
            cancel: None,
            waiting: Duration::ZERO,
            held: false,
            paused: false,
            tells_words: false,
            next_key: 0,
        }
    }

    /// Whether it tells from now on of each word when the listener begins to hear it.
    pub const fn tell_words(&mut self, tells: bool) {
        self.tells_words = tells;
    }

    /// Queues text, or adds it to the utterance that is still being written. Returns which utterance it belongs to,
    /// and what [`clear`](Self::clear) returns where everything else is replaced.
    pub fn speak(
        &mut self,
        speak: Speak,
        now: Instant,
    ) -> Result<(UtteranceKey, Option<UtteranceKey>), Overloaded> {
        self.admit(&speak, now)?;
        let mut cut = None;
        if speak.replace {
            cut = self.clear(now);
            self.close_open("");
        }
        let key = self.open_utterance(speak.id, !speak.allow_interruption);
        if speak.flush {
            self.close_open(&speak.text);
        } else if let Some(open) = self.utterances.back_mut() {
            open.script.push(&speak.text);
        }
        Ok((key, cut))
    }

    /// Cuts everything that is not protected. Nothing of it leaves any more. Returns the first utterance whose sound
    /// was on its way and is not wanted any more, with whatever has left behind it.
    pub fn clear(&mut self, now: Instant) -> Option<UtteranceKey> {
        let spared = self.spared(now);
        self.cut(now, spared, |utterance| utterance.protected)
    }

    /// Cuts everything, protected or not: the session ends, or its output changes.
    pub fn stop(&mut self, now: Instant) -> Option<UtteranceKey> {
        self.cut(now, 0, |_| false)
    }

    /// While it is held no sound leaves: the way to the listener is full, or the listener is not there yet. The
    /// listener's clock goes on with what has left.
    pub const fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// What the next utterance will be.
    pub const fn next_key(&self) -> UtteranceKey {
        UtteranceKey(self.next_key)
    }

    /// While it is paused no sound leaves that may be cut.
    pub const fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Whether it is paused.
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether something is being said that [`clear`](Self::clear) would cut.
    pub fn is_interruptible(&self, now: Instant) -> bool {
        let front = self.utterances.front();
        front.is_some_and(|front| front.started && !front.protected && !front.holds_up())
            && self.spared(now) == 0
    }

    /// Whether this utterance may not be cut.
    pub fn is_protected(&self, utterance: UtteranceKey) -> bool {
        let known = self.utterances.iter().find(|u| u.key == utterance);
        known.is_some_and(|utterance| utterance.protected)
    }

    /// Whether synthesised sound is taken.
    pub fn wants_sound(&self) -> bool {
        self.waiting < MAX_SOUND
    }

    /// Sound that synthesis brings. What comes of a cancelled utterance is ignored. Where too much waits already
    /// ([`wants_sound`](Self::wants_sound)) the sound is given back, to be brought again later.
    pub fn sound(&mut self, utterance: UtteranceKey, sound: S) -> Result<(), S> {
        let full = !self.wants_sound();
        let Some(running) = self.running(utterance) else {
            return Ok(());
        };
        if full {
            return Err(sound);
        }
        let duration = sound.duration();
        running.synthesised += duration;
        running.timeline.sound(&sound.loudness());
        running.sound.push_back(sound);
        self.waiting += duration;
        Ok(())
    }

    /// The sound from `at` on says these bytes of the utterance's text.
    pub fn begin_text(&mut self, utterance: UtteranceKey, text: Range<usize>, at: Duration) {
        if let Some(running) = self.running(utterance) {
            running.timeline.begin(text, at);
        }
    }

    /// The voice tells that the word at this byte of the utterance's text begins so long after what was last begun.
    pub fn word(&mut self, utterance: UtteranceKey, byte: usize, start: Duration) {
        if let Some(running) = self.running(utterance) {
            running.timeline.word(byte, start);
        }
    }

    /// The sound up to `at` says all of the text that was last begun.
    pub fn end_text(&mut self, utterance: UtteranceKey, at: Duration) {
        if let Some(running) = self.running(utterance) {
            running.timeline.end(running.script.text(), at);
        }
    }

    /// Synthesis has brought all sound of an utterance. Before it had all of the text that is a failure.
    pub fn done(&mut self, utterance: UtteranceKey) {
        if let Some(running) = self.running(utterance) {
            if running.script.is_given() {
                running.stage = Stage::Done;
            } else {
                self.failed(utterance);
            }
        }
    }

    /// Synthesis of an utterance has failed. Its protection ends here.
    pub fn failed(&mut self, utterance: UtteranceKey) {
        if let Some(running) = self.running(utterance) {
            running.stage = Stage::Failed;
            running.protected = false;
        }
    }

    /// The next thing to do now. `None`: nothing before [`next_wakeup`](Self::next_wakeup) or the next input.
    pub fn poll(&mut self, now: Instant) -> Option<Output<S>> {
        if let Some(utterance) = self.cancel.take() {
            return Some(Output::Command(Command::Cancel { utterance }));
        }
        if let Some(event) = self.next_end(now) {
            return Some(Output::Event(event));
        }
        if let Some(command) = self.next_text() {
            return Some(Output::Command(command));
        }
        self.next_sound(now)
    }

    /// When something happens by itself, said after [`poll`](Self::poll) gave `None`.
    pub fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        let end = self
            .utterances
            .front()
            .filter(|front| front.has_left())
            .map(|_| self.unplayed(0, now));
        let sound = self
            .sender()
            .filter(|sender| !self.must_wait(*sender))
            .and_then(|sender| self.utterances[sender].sound.front())
            .map(|sound| self.pacer.wait(now, sound.duration()));
        let words = self.utterances.iter().enumerate();
        let word = words
            .filter_map(|(index, utterance)| self.until_played(index, utterance.next_word?, now))
            .min();
        let waits = end.into_iter().chain(sound).chain(word);
        waits.min().map(|wait| now + wait)
    }

    /// How long to wait before filler of this length may leave; `None` while speech waits to leave or nothing may. It
    /// has no end, and so it is paced also where speech is not.
    pub fn filler_wait(&self, now: Instant, duration: Duration) -> Option<Duration> {
        let speech_waits = self
            .sender()
            .is_some_and(|sender| !self.utterances[sender].sound.is_empty());
        let in_real_time = LEAD.saturating_sub(duration);
        let ahead = self.pacer.unplayed(now).saturating_sub(in_real_time);
        (!self.held && !speech_waits).then(|| self.pacer.wait(now, duration).max(ahead))
    }

    /// Says that filler leaves now, sound that belongs to no utterance: what is spoken next is heard after it.
    pub fn fill(&mut self, now: Instant, duration: Duration) {
        self.leave(now, None, duration);
    }

    /// What is left of an utterance cannot be brought to the listener: it fails with what has left, however far its
    /// synthesis is.
    pub fn spoil(&mut self, utterance: UtteranceKey) {
        let known = self.utterances.iter_mut().find(|u| u.key == utterance);
        let Some(known) = known.filter(|u| !matches!(u.stage, Stage::Cut { .. })) else {
            return;
        };
        if known.stage == Stage::Running {
            self.cancel = Some(utterance);
        }
        let waiting: Duration = known.sound.drain(..).map(|s| s.duration()).sum();
        known.stage = Stage::Failed;
        known.protected = false;
        self.waiting -= waiting;
    }

    /// Whether more sound of an utterance may leave.
    pub fn is_sending(&self, utterance: UtteranceKey) -> bool {
        let known = self.utterances.iter().find(|u| u.key == utterance);
        known.is_some_and(|utterance| !utterance.has_left())
    }

    /// Whoever synthesises has gone: what it had in hand has failed. Returns whether there was anything.
    pub fn fail_running(&mut self) -> bool {
        let running = |u: &&Utterance<S>| u.stage == Stage::Running;
        let running = self.utterances.iter().find(running).map(|u| u.key);
        if let Some(running) = running {
            self.failed(running);
        }
        running.is_some()
    }

    /// How much has left that the listener has not heard.
    pub fn unplayed_sound(&self, now: Instant) -> Duration {
        self.pacer.unplayed(now)
    }

    /// Whether the listener hears something now, by the paced clock.
    pub fn is_playing(&self, now: Instant) -> bool {
        !self.pacer.unplayed(now).is_zero()
    }

    /// Whether everything that was asked for has ended and was told.
    pub fn is_idle(&self) -> bool {
        self.utterances.is_empty() && self.blank.is_empty() && self.cancel.is_none()
    }

    /// Whether there is room for what `speak` brings.
    fn admit(&self, speak: &Speak, now: Instant) -> Result<(), Overloaded> {
        let open = self.open().filter(|_| !speak.replace);
        let (utterances, text) = self.waiting_after(speak.replace, now);
        if open.is_none() && utterances >= MAX_UTTERANCES {
            return Err(Overloaded::Utterances);
        }
        // An id is kept where there is none, and costs what text costs.
        let id = |id: &Option<String>| id.as_ref().map_or(0, String::len);
        let more = match open {
            Some(Utterance { id: Some(_), .. }) => speak.text.len(),
            _ => speak.text.len() + id(&speak.id),
        };
        let of_one = open.map_or(0, |open| open.script.len() + id(&open.id));
        if text.max(of_one) + more > MAX_TEXT_BYTES {
            return Err(Overloaded::Text);
        }
        Ok(())
    }

    /// The utterances of which nothing has left, and the bytes of text that wait, now or after a `clear`.
    fn waiting_after(&self, clear: bool, now: Instant) -> (usize, usize) {
        let spared = self.spared(now);
        let (mut utterances, mut text) = (self.blank.len(), 0);
        let mut one_stays = false;
        for (index, utterance) in self.utterances.iter().enumerate() {
            let stays = !clear || utterance.protected || index < spared;
            one_stays |= stays;
            // A cut one is there until its end may be told.
            utterances += usize::from(one_stays && !utterance.started);
            text += if stays { utterance.script.waiting() } else { 0 };
        }
        (utterances, text)
    }

    fn open(&self) -> Option<&Utterance<S>> {
        self.utterances.back().filter(|last| last.is_open())
    }

    /// The utterance that is being written, or a new one.
    fn open_utterance(&mut self, id: Option<String>, protected: bool) -> UtteranceKey {
        if let Some(open) = self.utterances.back_mut().filter(|last| last.is_open()) {
            open.id = open.id.take().or(id);
            open.protected |= protected;
            return open.key;
        }
        let key = UtteranceKey(self.next_key);
        self.next_key += 1;
        self.utterances.push_back(Utterance {
            key,
            id,
            protected,
            script: Script::default(),
            timeline: Timeline::default(),
            next_word: None,
            stage: Stage::Waiting,
            sound: VecDeque::new(),
            synthesised: Duration::ZERO,
            left: Duration::ZERO,
            started: false,
        });
        key
    }

    /// The utterance that is being written, if there is one, ends with `text`.
    fn close_open(&mut self, text: &str) {
        if let Some(mut open) = self.utterances.pop_back_if(|last| last.is_open()) {
            open.script.close(text);
            if open.script.is_blank() {
                self.blank.push_back((open.key, open.id));
            } else {
                self.utterances.push_back(open);
            }
        }
    }

    fn running(&mut self, key: UtteranceKey) -> Option<&mut Utterance<S>> {
        self.utterances
            .iter_mut()
            .find(|utterance| utterance.key == key && utterance.stage == Stage::Running)
    }

    /// What has left of an utterance and was not heard yet. Sound is heard in the order in which it has left.
    fn unplayed(&self, index: usize, now: Instant) -> Duration {
        let key = self.utterances[index].key;
        let mut unplayed = self.pacer.unplayed(now);
        let mut its = Duration::ZERO;
        for stretch in self.on_air.iter().rev() {
            if unplayed.is_zero() {
                break;
            }
            let of_stretch = unplayed.min(stretch.duration);
            if stretch.utterance == Some(key) {
                its += of_stretch;
            }
            unplayed -= of_stretch;
        }
        its
    }

    /// How long until the listener hears this place of an utterance's sound; `None` before it has left.
    fn until_played(&self, index: usize, place: Duration, now: Instant) -> Option<Duration> {
        let utterance = &self.utterances[index];
        let mut behind = utterance.left.checked_sub(place)?;
        let mut unplayed = self.pacer.unplayed(now);
        for stretch in self.on_air.iter().rev() {
            if stretch.utterance != Some(utterance.key) {
                unplayed = unplayed.saturating_sub(stretch.duration);
            } else if behind > stretch.duration {
                behind -= stretch.duration;
                unplayed = unplayed.saturating_sub(stretch.duration);
            } else {
                return Some(unplayed.saturating_sub(behind));
            }
        }
        Some(Duration::ZERO)
    }

    fn leave(&mut self, now: Instant, utterance: Option<UtteranceKey>, duration: Duration) {
        let unplayed = self.pacer.unplayed(now);
        while let Some(first) = self.on_air.front()
            && self.on_air_total - first.duration >= unplayed
        {
            self.on_air_total -= first.duration;
            self.on_air.pop_front();
        }
        self.pacer.leave(now, duration);
        self.on_air_total += duration;
        match self
            .on_air
            .back_mut()
            .filter(|last| last.utterance == utterance)
        {
            Some(last) => last.duration += duration,
            None => self.on_air.push_back(Stretch {
                utterance,
                duration,
            }),
        }
    }

    /// How many utterances `clear` cannot cut: all up to the last protected one whose sound is on its way.
    fn spared(&self, now: Instant) -> usize {
        (0..self.utterances.len())
            .rev()
            .find(|&index| self.utterances[index].protected && !self.unplayed(index, now).is_zero())
            .map_or(0, |last| last + 1)
    }

    /// Cuts the utterances from index `first` on, except those to keep.
    fn cut(
        &mut self,
        now: Instant,
        first: usize,
        keep: impl Fn(&Utterance<S>) -> bool,
    ) -> Option<UtteranceKey> {
        let mut called_back = None;
        let mut is_heard = false;
        for index in (first..self.utterances.len()).rev() {
            let its = self.unplayed(index, now);
            let utterance = &mut self.utterances[index];
            let has_ended = utterance.has_left() && its.is_zero();
            if has_ended || keep(utterance) {
                continue;
            }
            if utterance.started {
                called_back = Some(utterance.key);
                is_heard = utterance.left > its;
            }
            utterance.left -= its;
            if utterance.stage == Stage::Running {
                self.cancel = Some(utterance.key);
            }
            let waiting: Duration = utterance.sound.drain(..).map(|s| s.duration()).sum();
            self.waiting -= waiting;
            let heard_text = utterance.heard_text();
            utterance.stage = Stage::Cut { heard_text };
            utterance.script = Script::default();
            utterance.timeline = Timeline::default();
            utterance.next_word = None;
        }
        if let Some(key) = called_back {
            self.call_back(now, key, is_heard);
        }
        called_back
    }

    /// The listener drops what has left of this utterance and behind it: no protected sound, for that is spared with
    /// everything before it. `is_heard` is whether the listener has heard some of it already, and so everything before.
    fn call_back(&mut self, now: Instant, from: UtteranceKey, is_heard: bool) {
        let is_its = |stretch: &Stretch| {
            stretch.utterance.is_some_and(|key| key >= from) && !stretch.duration.is_zero()
        };
        let first = if is_heard {
            Some(0)
        } else {
            self.on_air.iter().position(is_its)
        };
        let Some(first) = first else {
            return;
        };
        let dropped: Duration = self.on_air.drain(first..).map(|s| s.duration).sum();
        self.on_air_total -= dropped;
        let kept = self.pacer.unplayed(now).saturating_sub(dropped);
        self.pacer.clear(now);
        // What is left to be heard was there before what was cut.
        if !kept.is_zero() {
            self.pacer.leave(now, kept);
        }
    }

    /// The next word that the listener hears.
    fn next_progress(&mut self, now: Instant) -> Option<Event> {
        if !self.tells_words {
            return None;
        }
        for index in 0..self.utterances.len() {
            let unplayed = self.unplayed(index, now);
            let utterance = &mut self.utterances[index];
            if !utterance.started {
                break;
            }
            let played = utterance.left.saturating_sub(unplayed);
            if let Some(kind) = utterance.progress(played) {
                return Some(Event {
                    utterance: utterance.key,
                    id: utterance.id.clone(),
                    text: String::new(),
                    kind,
                });
            }
        }
        None
    }

    /// The words that were heard, the end of a blank utterance, or of the first one when it was heard.
    /// [`poll`](Self::poll) tells it, too.
    pub fn next_end(&mut self, now: Instant) -> Option<Event> {
        if let Some((utterance, id)) = self.blank.pop_front() {
            let duration = Duration::ZERO;
            let kind = EventKind::Complete { duration };
            return Some(Event {
                utterance,
                id,
                text: String::new(),
                kind,
            });
        }
        if let Some(progress) = self.next_progress(now) {
            return Some(progress);
        }
        let front = self.utterances.front()?;
        if !front.has_left() || !self.unplayed(0, now).is_zero() {
            return None;
        }
        let mut ended = self.utterances.pop_front()?;
        let played = ended.left;
        let text = match &ended.stage {
            Stage::Cut { heard_text } => heard_text.clone(),
            _ => ended.heard_text(),
        };
        let kind = match ended.stage {
            Stage::Failed => EventKind::Failed {
                played,
                heard_text: text.clone(),
            },
            Stage::Cut { heard_text } => EventKind::Interrupted { played, heard_text },
            Stage::Done | Stage::Waiting | Stage::Running => {
                EventKind::Complete { duration: played }
            }
        };
        Some(Event {
            utterance: ended.key,
            id: ended.id,
            text,
            kind,
        })
    }

    /// More text for the utterance that synthesis has; else, where there is room for its sound, the first text of the
    /// one whose turn it is to play or of the one behind it.
    fn next_text(&mut self) -> Option<Command> {
        let has_room = self.wants_sound();
        let mut next_two = self.utterances.iter_mut().filter(|u| !u.has_left()).take(2);
        let next = next_two.find(|u| matches!(u.stage, Stage::Waiting | Stage::Running))?;
        let utterance = next.key;
        if next.stage == Stage::Running {
            let (text, last) = next.script.take()?;
            return Some(Command::MoreText {
                utterance,
                text,
                last,
            });
        }
        let (text, last) = has_room.then(|| next.script.take())??;
        next.stage = Stage::Running;
        Some(Command::Synthesize {
            utterance,
            text,
            last,
        })
    }

    /// The index of the utterance whose turn it is to leave.
    fn sender(&self) -> Option<usize> {
        if self.held {
            return None;
        }
        let mut on_their_way = self.utterances.iter().take(MAX_UTTERANCES);
        let index = on_their_way.position(|u| !u.has_left() || u.holds_up())?;
        (!self.utterances[index].has_left()).then_some(index)
    }

    /// Whether this one, whose turn it is, has to wait.
    fn must_wait(&self, sender: usize) -> bool {
        self.paused && !self.utterances[sender].protected
    }

    fn next_sound(&mut self, now: Instant) -> Option<Output<S>> {
        let index = self.sender().filter(|sender| !self.must_wait(*sender))?;
        let sender = &mut self.utterances[index];
        let duration = sender.sound.front()?.duration();
        if !self.pacer.wait(now, duration).is_zero() {
            return None;
        }
        let utterance = sender.key;
        if !std::mem::replace(&mut sender.started, true) {
            return Some(Output::Event(Event {
                utterance,
                id: sender.id.clone(),
                text: String::new(),
                kind: EventKind::Started,
            }));
        }
        let sound = sender.sound.pop_front()?;
        sender.left += duration;
        self.waiting -= duration;
        self.leave(now, Some(utterance), duration);
        Some(Output::Sound { utterance, sound })
    }
}
