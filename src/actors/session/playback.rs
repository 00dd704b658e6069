//! The playback queue of a session: turns `speak`, `clear` and synthesised audio into audio that is sent at playback
//! speed, and into events that say what was really played (`docs/protocol.md`, section 3). A pure state machine: the
//! timer, the synthesiser and the transport belong to its owner, which calls [`poll`] until it returns nothing more, after
//! every input and at [`next_wakeup`].
//!
//! What the protocol leaves open is decided here:
//!
//! - Parts of one utterance (`flush: false`) share one fate: the first `id` among them is its id, and it is protected if
//!   one part is. Text with another id ends it, and begins the next one.
//! - Text for an id that was cut is dropped until the text that ends it: it was on its way when the cut was made.
//! - End events come in the order of the utterances, each when the one before has ended; only a blank text completes at
//!   once, whatever plays. The end of a cleared utterance is therefore told after the protected one before it has been
//!   played, because clients drop what they have buffered when they are told of an interruption. For the same reason
//!   nothing is sent after a cut or failed utterance before its end has been told.
//! - An utterance that is cleared before it has begun ends as interrupted, too, with nothing played.
//! - `clear` does not touch a protected utterance that is still being written; it stays open. `replace` closes it: the
//!   new text is an utterance of its own behind it.
//! - Audio of an utterance that was sent, with audio of one behind it that is not cut, plays out: it could be taken back
//!   only together with that audio.
//! - A failed utterance loses its protection; its id counts as cut, and text without one begins another. The audio that was synthesised of
//!   it plays out before it ends as failed: told at once, the failure of an utterance that is being prepared would stop
//!   the one before.
//!
//! [`poll`]: PlaybackQueue::poll
//! [`next_wakeup`]: PlaybackQueue::next_wakeup

mod cut_ids;
mod script;
#[cfg(test)]
mod tests;
mod word_timeline;
mod words;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error_codes::Refusal;
use super::protocol::ErrorCode;
pub use cut_ids::CutIds;
use script::Script;
use vivavoce_audio::encode::Encoded;
use vivavoce_audio::pacer::{LEAD, Pacer};
use vivavoce_audio::pcm::Pcm;
use vivavoce_core::ssml::Ssml;
use word_timeline::WordTimeline;

/// The most utterances that wait, and the most that have been sent and not played to their end.
pub const MAX_UTTERANCES: usize = 64;
/// The most text that waits for synthesis, and the most of one utterance, in bytes.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;
/// The most synthesised audio that waits, apart from the rest of one chunk.
pub const MAX_SOUND: Duration = Duration::from_secs(5);

/// The most audio that a listener hears once more who was away.
const HEARD_AGAIN: Duration = Duration::from_secs(12);
/// Length of the chunks of synthesised audio.
pub const CHUNK: Duration = Duration::from_millis(20);
/// By how many chunks the room for sound that waits grows: half a second.
const GROWTH: usize = 25;

/// A piece of audio that is sent whole, usually 20 ms.
pub trait Sound {
    /// How long it lasts when it is played; zero for a header.
    fn duration(&self) -> Duration;

    /// The mean magnitude of its two halves, where it can be known.
    fn loudness(&self) -> Option<[u16; 2]> {
        None
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

/// Names one utterance of a queue. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtteranceKey(u64);

impl UtteranceKey {
    /// Its position among all utterances of the queue.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The command `speak`.
#[derive(Debug, Clone)]
pub struct Speak {
    pub text: String,
    /// Whether the utterance ends with this text.
    pub flush: bool,
    /// Whether `clear` and `replace` may cut it.
    pub allow_interruption: bool,
    /// Whether everything that may be cut is cut before.
    pub replace: bool,
    /// The client's name for the utterance.
    pub id: Option<String>,
    /// The document of which this is the text. It is an utterance of its own.
    pub ssml: Option<Arc<Ssml>>,
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

/// What the owner has to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<S> {
    /// Send audio.
    Sound { utterance: UtteranceKey, sound: S },
    /// Tell the client.
    Event(Event),
    /// Command the synthesiser.
    Command(Command),
}

/// A command to the synthesiser, which has one utterance at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Synthesise this. It must be answered by `done` or `failed`, within the synthesiser's own deadlines.
    Synthesize {
        utterance: UtteranceKey,
        /// Its text, or the first sentences of it.
        text: String,
        /// Whether that is all of it.
        last: bool,
        /// The document that says how all of it is spoken.
        ssml: Option<Arc<Ssml>>,
    },
    /// The text goes on.
    MoreText {
        utterance: UtteranceKey,
        /// More sentences; may be empty when it is the last.
        text: String,
        /// Whether the text ends here.
        last: bool,
    },
    /// Stop; audio that still comes of it is ignored.
    Cancel { utterance: UtteranceKey },
}

/// An event of an utterance: started at most once, then its words where they are wanted, and exactly one of the others,
/// which is its last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub utterance: UtteranceKey,
    /// The client's id of it.
    pub id: Option<String>,
    /// The part of its text that was played, once it has ended.
    pub text: String,
    pub kind: EventKind,
}

/// Kinds of [`Event`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Its first audio is being sent.
    Started,
    /// Its last sample has been played.
    Complete {
        /// The length of its audio.
        duration: Duration,
    },
    /// A word of it begins to be played.
    Progress {
        /// Its number in the utterance, from 0.
        word_index: usize,
        /// The word as the client wrote it, with its punctuation.
        text: String,
        /// Where it begins in the utterance's audio.
        played: Duration,
        /// Whether that was estimated, because the provider does not report it.
        estimated: bool,
    },
    /// It was cut off, perhaps before it began.
    Interrupted {
        /// How much was played.
        played: Duration,
        /// The words in it.
        heard_text: String,
    },
    /// Its synthesis has failed, and the audio that there was has been played.
    Failed {
        /// Why.
        error: Refusal,
        /// How much was played.
        played: Duration,
        /// The words in it.
        heard_text: String,
    },
}

/// How far the synthesis of an utterance is, or how it ended.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Done,
    Failed(Refusal),
    Cut { heard_text: String },
}

#[derive(Debug)]
struct Utterance<S> {
    key: UtteranceKey,
    id: Option<String>,
    protected: bool,
    script: Script,
    timeline: WordTimeline,
    /// Where the next word begins of which the client is to be told.
    next_word: Option<Duration>,
    stage: Stage,
    /// The document of which it is the text.
    document: Option<Arc<Ssml>>,
    /// Audio that waits to be sent.
    sound: VecDeque<S>,
    /// How much audio synthesis has brought.
    synthesised: Duration,
    /// How much was sent and not cut.
    left: Duration,
    started: bool,
}

impl<S> Utterance<S> {
    /// Whether text may be added.
    const fn is_open(&self) -> bool {
        !self.script.is_closed() && matches!(self.stage, Stage::Waiting | Stage::Running)
    }

    /// Whether text belongs to it as long as it is open: text of the same id, or of none, and all where it has none.
    fn continues_with(&self, speak: &Speak) -> bool {
        match (&self.id, &speak.id) {
            _ if speak.ssml.is_some() => false,
            (Some(id), Some(of_text)) => id == of_text,
            _ => true,
        }
    }

    /// Whether nothing more of it will be sent.
    fn has_left(&self) -> bool {
        self.sound.is_empty() && !matches!(self.stage, Stage::Waiting | Stage::Running)
    }

    /// Whether the audio behind it waits until its end has been told.
    const fn holds_up(&self) -> bool {
        matches!(self.stage, Stage::Failed(_) | Stage::Cut { .. })
    }

    fn heard_text(&mut self) -> String {
        let text = self.script.text();
        let heard = self.timeline.heard(text, self.left, self.synthesised);
        heard.to_owned()
    }

    /// The next word to tell, as soon as `played` of the audio has been played.
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

/// Audio that was sent without a break, until it has surely been played.
#[derive(Debug)]
struct Stretch {
    /// `None` is filler.
    utterance: Option<UtteranceKey>,
    duration: Duration,
}

/// What keeps sound from being sent.
#[derive(Debug, Default)]
struct Stops {
    /// The transport takes nothing.
    held: bool,
    /// Speech that may be cut waits: somebody may be interrupting it.
    paused: bool,
    /// No utterance begins.
    rests: bool,
}

/// The queue. `S` is what is sent: encoded chunks, or samples.
#[derive(Debug)]
pub struct PlaybackQueue<S> {
    pacer: Pacer,
    /// How much of the lead is to be free before that alone is a reason to wake, which costs several times what a chunk does.
    worth_waking: Duration,
    /// What was sent, in order; the last part of it, as much as the pacer says, has not been played yet.
    on_air: VecDeque<Stretch>,
    on_air_total: Duration,
    utterances: VecDeque<Utterance<S>>,
    /// Blank ones, which complete at once.
    blank: VecDeque<(UtteranceKey, Option<String>)>,
    cut_ids: CutIds,
    /// At most one: synthesis has one utterance at a time.
    cancel: Option<UtteranceKey>,
    /// Synthesised audio that waits to be sent.
    waiting: Duration,
    stops: Stops,
    /// Whether the client wants to know of each word.
    tells_words: bool,
    next_key: u64,
}

impl<S: Sound> PlaybackQueue<S> {
    /// An empty queue that sends audio at most `lead` ahead of real time; [`Duration::MAX`] turns pacing off.
    pub fn new(lead: Duration) -> Self {
        Self {
            pacer: Pacer::new(lead),
            worth_waking: (lead / 3).min(3 * CHUNK),
            on_air: VecDeque::new(),
            on_air_total: Duration::ZERO,
            // Mostly there is one at a time, or none.
            utterances: VecDeque::with_capacity(1),
            blank: VecDeque::new(),
            cut_ids: CutIds::default(),
            cancel: None,
            waiting: Duration::ZERO,
            stops: Stops::default(),
            tells_words: false,
            next_key: 0,
        }
    }

    /// Sets whether each word is told when it begins to be played.
    pub const fn tell_words(&mut self, tells: bool) {
        self.tells_words = tells;
    }

    /// Goes on after another queue: text of what was cut there is dropped here.
    pub fn remember_cut(&mut self, cut_ids: CutIds) {
        self.cut_ids = cut_ids;
    }

    /// The ids that were cut, for the queue after this one.
    pub fn take_cut_ids(&mut self) -> CutIds {
        std::mem::take(&mut self.cut_ids)
    }

    /// Queues text, or adds it to the utterance that is still being written. Returns which utterance it belongs to,
    /// and what [`clear`](Self::clear) returns where everything else is replaced. `None`: it belongs to an utterance that
    /// was cut, and is dropped.
    pub fn speak(
        &mut self,
        speak: Speak,
        now: Instant,
    ) -> Result<Option<(UtteranceKey, Option<UtteranceKey>)>, Overloaded> {
        let is_open = |open: &Utterance<S>| open.id.is_some() && open.id == speak.id;
        let is_open = self.open().is_some_and(is_open);
        // What replaces everything was not on its way when that was cut.
        if !is_open && !speak.replace && self.cut_ids.drops(&speak) {
            return Ok(None);
        }
        self.admit(&speak, now)?;
        let mut cut = None;
        if speak.replace {
            cut = self.clear(now);
            self.close_open("");
        }
        if let Some(id) = &speak.id {
            self.cut_ids.begin_anew(id);
        }
        if self.open().is_some_and(|open| !open.continues_with(&speak)) {
            self.close_open("");
        }
        let key = self.open_utterance(speak.id, !speak.allow_interruption);
        if let (Some(ssml), Some(open)) = (speak.ssml, self.utterances.back_mut()) {
            open.document = Some(Arc::clone(&ssml));
            open.script.mark_up(ssml);
        }
        if speak.flush {
            self.close_open(&speak.text);
        } else if let Some(open) = self.utterances.back_mut() {
            open.script.push(&speak.text);
        }
        Ok(Some((key, cut)))
    }

    /// Cuts everything that is not protected: nothing more of it is sent. Returns the first utterance whose audio was sent
    /// and is to be dropped, with all audio behind it.
    pub fn clear(&mut self, now: Instant) -> Option<UtteranceKey> {
        self.cut(now, |utterance| !utterance.protected)
    }

    /// The same, but for the utterances with this id only.
    pub fn clear_id(&mut self, id: &str, now: Instant) -> Option<UtteranceKey> {
        self.cut(now, |utterance| {
            !utterance.protected && utterance.id.as_deref() == Some(id)
        })
    }

    /// Cuts everything, protected or not: the session ends, or its output changes.
    pub fn stop(&mut self, now: Instant) -> Option<UtteranceKey> {
        self.cut(now, |_| true)
    }

    /// The listener was away, and hears this much of what was sent before once more.
    pub fn resume(&mut self, now: Instant, again: Duration) {
        let missing = again.saturating_sub(self.on_air_total);
        if !missing.is_zero() {
            // Of utterances whose end was told before.
            self.on_air.push_front(Stretch {
                utterance: None,
                duration: missing,
            });
            self.on_air_total += missing;
        }
        self.pacer.clear(now);
        if !again.is_zero() {
            self.pacer.leave(now, again);
        }
    }

    /// While it is held no audio is sent: the transport is full, or there is no subscriber yet. What was sent plays on.
    pub const fn hold(&mut self, held: bool) {
        self.stops.held = held;
    }

    /// The key of the next utterance.
    pub const fn next_key(&self) -> UtteranceKey {
        UtteranceKey(self.next_key)
    }

    /// While it is paused no audio is sent that may be cut.
    pub const fn pause(&mut self, paused: bool) {
        self.stops.paused = paused;
    }

    /// While it rests no utterance begins to be sent.
    pub const fn rest(&mut self, rests: bool) {
        self.stops.rests = rests;
    }

    /// What waits to be said, as it was asked for; `None` while something is being said, or has ended and this is not told.
    pub fn unsaid(&self) -> Option<Vec<Speak>> {
        let waits = |utterance: &Utterance<S>| {
            let stage = &utterance.stage;
            !utterance.started && matches!(stage, Stage::Waiting | Stage::Running | Stage::Done)
        };
        let all_wait = self.blank.is_empty() && self.utterances.iter().all(waits);
        all_wait.then(|| {
            let speaks = self.utterances.iter().map(|utterance| Speak {
                text: utterance.script.text().to_owned(),
                flush: utterance.script.is_closed(),
                allow_interruption: !utterance.protected,
                replace: false,
                id: utterance.id.clone(),
                ssml: utterance.document.clone(),
            });
            speaks.collect()
        })
    }

    /// The ids that were cut.
    pub fn cut_ids(&self) -> CutIds {
        self.cut_ids.clone()
    }

    /// Forgets what waits, of which another server tells the end.
    pub fn forget(&mut self) {
        self.utterances.clear();
        self.waiting = Duration::ZERO;
    }

    /// Whether it is paused.
    pub const fn is_paused(&self) -> bool {
        self.stops.paused
    }

    /// Whether speech is being played that [`clear`](Self::clear) would cut.
    pub fn is_interruptible(&self, now: Instant) -> bool {
        let front = self.utterances.front();
        front.is_some_and(|front| front.started && !front.protected && !front.holds_up())
            && self.spared(now, |utterance| !utterance.protected) == 0
    }

    /// Whether speech is being played, also where it may not be cut.
    pub fn speaks(&self) -> bool {
        let front = self.utterances.front();
        front.is_some_and(|front| front.started && !front.holds_up())
    }

    /// Whether this utterance may not be cut.
    pub fn is_protected(&self, utterance: UtteranceKey) -> bool {
        let known = self.utterances.iter().find(|u| u.key == utterance);
        known.is_some_and(|utterance| utterance.protected)
    }

    /// Whether it takes synthesised audio.
    pub fn wants_sound(&self) -> bool {
        self.waiting < MAX_SOUND
    }

    /// Takes synthesised audio. Audio of a cancelled utterance is ignored. If too much waits already
    /// ([`wants_sound`](Self::wants_sound)) the audio is given back, to be brought again later.
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
        if let Some(loudness) = sound.loudness() {
            running.timeline.sound(&loudness);
        }
        if running.sound.len() == running.sound.capacity() {
            running.sound.reserve_exact(GROWTH);
        }
        running.sound.push_back(sound);
        self.waiting += duration;
        Ok(())
    }

    /// The audio from `at` on speaks these bytes of the utterance's text.
    pub fn begin_text(&mut self, utterance: UtteranceKey, text: Range<usize>, at: Duration) {
        if let Some(running) = self.running(utterance) {
            running.timeline.begin(text, at);
        }
    }

    /// The provider reports that the word at this byte of the utterance's text begins this long after the text that was
    /// begun last.
    pub fn word(&mut self, utterance: UtteranceKey, byte: usize, start: Duration) {
        if let Some(running) = self.running(utterance) {
            running.timeline.word(byte, start);
        }
    }

    /// The audio up to `at` speaks all of the text that was begun last.
    pub fn end_text(&mut self, utterance: UtteranceKey, at: Duration) {
        if let Some(running) = self.running(utterance) {
            running.timeline.end(running.script.text(), at);
        }
    }

    /// Synthesis has brought all audio of an utterance. Before it had all of the text that is a failure.
    pub fn done(&mut self, utterance: UtteranceKey) {
        if let Some(running) = self.running(utterance) {
            if running.script.is_given() {
                running.stage = Stage::Done;
            } else {
                let problem = "the synthesiser has ended before the text";
                self.failed(utterance, Refusal::new(ErrorCode::TtsFailed, problem));
            }
        }
    }

    /// Synthesis of an utterance has failed. Its protection ends here.
    pub fn failed(&mut self, utterance: UtteranceKey, error: Refusal) {
        if let Some(running) = self.running(utterance) {
            running.stage = Stage::Failed(error);
            running.protected = false;
            let id = running.id.clone();
            id.into_iter().for_each(|id| self.cut_ids.cut(&id));
        }
    }

    /// What to do now. `None`: nothing before [`next_wakeup`](Self::next_wakeup) or the next input.
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

    /// When to poll again without an input, after [`poll`](Self::poll) has returned `None`.
    pub fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        let end = self
            .utterances
            .front()
            .filter(|front| front.has_left())
            .map(|_| self.unplayed(0, now));
        let words = self.utterances.iter().enumerate();
        let word = words
            .filter_map(|(index, utterance)| self.until_played(index, utterance.next_word?, now))
            .min();
        let waits = end.into_iter().chain(self.sound_wait(now)).chain(word);
        waits.min().map(|wait| now + wait)
    }

    /// How long to wait until it is worth waking to send sound, if there is any already.
    pub fn sound_wait(&self, now: Instant) -> Option<Duration> {
        let sender = self.sender().filter(|sender| !self.must_wait(*sender))?;
        let sound = self.utterances[sender].sound.front()?;
        let room = sound.duration().max(self.worth_waking);
        Some(self.pacer.wait(now, room))
    }

    /// How long to wait before filler of this length may be sent; `None` while speech waits or nothing may be sent. Filler
    /// has no end, so that it is paced even where speech is not.
    pub fn filler_wait(&self, now: Instant, duration: Duration) -> Option<Duration> {
        let speech_waits = self
            .sender()
            .is_some_and(|sender| !self.utterances[sender].sound.is_empty());
        let in_real_time = LEAD.saturating_sub(duration);
        let ahead = self.pacer.unplayed(now).saturating_sub(in_real_time);
        (!self.stops.held && !speech_waits).then(|| self.pacer.wait(now, duration).max(ahead))
    }

    /// Filler is being sent, audio that belongs to no utterance: the next speech is played after it.
    pub fn fill(&mut self, now: Instant, duration: Duration) {
        self.leave(now, None, duration);
    }

    /// The rest of an utterance cannot be sent: it fails with what was sent, however far its synthesis is.
    pub fn spoil(&mut self, utterance: UtteranceKey, error: Refusal) {
        let known = self.utterances.iter_mut().find(|u| u.key == utterance);
        let Some(known) = known.filter(|u| !matches!(u.stage, Stage::Cut { .. })) else {
            return;
        };
        if known.stage == Stage::Running {
            self.cancel = Some(utterance);
        }
        let waiting: Duration = known.sound.drain(..).map(|s| s.duration()).sum();
        known.stage = Stage::Failed(error);
        known.protected = false;
        let id = known.id.clone();
        id.into_iter().for_each(|id| self.cut_ids.cut(&id));
        self.waiting -= waiting;
    }

    /// Whether more audio of an utterance may be sent.
    pub fn is_sending(&self, utterance: UtteranceKey) -> bool {
        let known = self.utterances.iter().find(|u| u.key == utterance);
        known.is_some_and(|utterance| !utterance.has_left())
    }

    /// The synthesiser has gone: its utterance fails.
    pub fn fail_running(&mut self, error: Refusal) {
        let running = |u: &&Utterance<S>| u.stage == Stage::Running;
        let running = self.utterances.iter().find(running).map(|u| u.key);
        if let Some(running) = running {
            self.failed(running, error);
        }
    }

    /// How much was sent that has not been played.
    pub fn unplayed_sound(&self, now: Instant) -> Duration {
        self.pacer.unplayed(now)
    }

    /// Whether something is being played now, by the paced clock.
    pub fn is_playing(&self, now: Instant) -> bool {
        !self.pacer.unplayed(now).is_zero()
    }

    /// Whether all utterances have ended and this has been told.
    pub fn is_idle(&self) -> bool {
        self.utterances.is_empty() && self.blank.is_empty() && self.cancel.is_none()
    }

    /// Whether there is room for this `speak`.
    fn admit(&self, speak: &Speak, now: Instant) -> Result<(), Overloaded> {
        let open = self
            .open()
            .filter(|open| !speak.replace && open.continues_with(speak));
        let (utterances, text) = self.waiting_after(speak.replace, now);
        if open.is_none() && utterances >= MAX_UTTERANCES {
            return Err(Overloaded::Utterances);
        }
        // An id takes memory as text does.
        let id = |id: &Option<String>| id.as_ref().map_or(0, String::len);
        let text_bytes = match &speak.ssml {
            Some(document) => document.bytes().max(speak.text.len()),
            None => speak.text.len(),
        };
        let more = match open {
            Some(Utterance { id: Some(_), .. }) => text_bytes,
            _ => text_bytes + id(&speak.id),
        };
        let of_one = open.map_or(0, |open| open.script.len() + id(&open.id));
        if text.max(of_one) + more > MAX_TEXT_BYTES {
            return Err(Overloaded::Text);
        }
        Ok(())
    }

    /// The utterances of which nothing was sent, and the bytes of text that wait, now or after a `clear`.
    fn waiting_after(&self, clear: bool, now: Instant) -> (usize, usize) {
        let spared = self.spared(now, |utterance| !utterance.protected);
        let (mut utterances, mut text) = (self.blank.len(), 0);
        let mut one_stays = false;
        for (index, utterance) in self.utterances.iter().enumerate() {
            let stays = !clear || utterance.protected || index < spared;
            one_stays |= stays;
            // A cut one stays until its end may be told.
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
            timeline: WordTimeline::default(),
            next_word: None,
            stage: Stage::Waiting,
            document: None,
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

    /// How much of an utterance was sent and has not been played yet.
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

    /// How long until this position in an utterance's audio is played; `None` before it was sent.
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
        // A listener who was away may hear the last of it once more.
        while let Some(first) = self.on_air.front()
            && self.on_air_total - first.duration >= unplayed + HEARD_AGAIN
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

    /// How many utterances cannot be cut where `cuts` says which are to be: all up to the last of the others of which audio
    /// was sent.
    fn spared(&self, now: Instant, cuts: impl Fn(&Utterance<S>) -> bool) -> usize {
        (0..self.utterances.len())
            .rev()
            .find(|&index| !cuts(&self.utterances[index]) && !self.unplayed(index, now).is_zero())
            .map_or(0, |last| last + 1)
    }

    fn cut(&mut self, now: Instant, cuts: impl Fn(&Utterance<S>) -> bool) -> Option<UtteranceKey> {
        let first = self.spared(now, &cuts);
        let mut called_back = None;
        let mut is_heard = false;
        for index in (first..self.utterances.len()).rev() {
            let its = self.unplayed(index, now);
            let utterance = &mut self.utterances[index];
            let has_ended = utterance.has_left() && its.is_zero();
            if has_ended || !cuts(utterance) {
                continue;
            }
            if let Some(id) = &utterance.id {
                self.cut_ids.cut(id);
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
            utterance.timeline = WordTimeline::default();
            utterance.next_word = None;
        }
        if let Some(key) = called_back {
            self.call_back(now, key, is_heard);
        }
        called_back
    }

    /// The client drops the audio that was sent of this utterance and behind it. None of it is protected, because protected
    /// audio is spared with everything before it. `is_heard` is whether some of it has been played already.
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
        // What is left to be played was sent before what was cut.
        if !kept.is_zero() {
            self.pacer.leave(now, kept);
        }
    }

    /// The next word that begins to be played.
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

    /// The next word or end to tell: the end of a blank utterance, or of the first one once it has been played.
    /// [`poll`](Self::poll) returns it, too.
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
            Stage::Failed(error) => EventKind::Failed {
                error,
                played,
                heard_text: text.clone(),
            },
            Stage::Cut { heard_text } => EventKind::Interrupted { played, heard_text },
            Stage::Done | Stage::Waiting | Stage::Running => {
                if let Some(id) = &ended.id {
                    self.cut_ids.begin_anew(id);
                }
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

    /// More text for the utterance that is being synthesised; else, if there is room for its audio, the first text of the
    /// one that is played next or of the one behind it.
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
        let ssml = next.script.take_document();
        Some(Command::Synthesize {
            utterance,
            text,
            last,
            ssml,
        })
    }

    /// The index of the utterance that is sent next.
    fn sender(&self) -> Option<usize> {
        if self.stops.held {
            return None;
        }
        let mut on_their_way = self.utterances.iter().take(MAX_UTTERANCES);
        let index = on_their_way.position(|u| !u.has_left() || u.holds_up())?;
        (!self.utterances[index].has_left()).then_some(index)
    }

    /// Whether the one that is sent next has to wait.
    fn must_wait(&self, sender: usize) -> bool {
        let next = &self.utterances[sender];
        (self.stops.paused && !next.protected) || (self.stops.rests && !next.started)
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
