//! What a session was sent and has sent lately, and how loud it was both ways: kept by the way to its client, for whoever
//! watches the session (`src/http/inspect`). Always kept, because what is looked at has mostly happened already; so it costs
//! little: an event is a copy of its text, 60 ms of sound a change of an atomic, and some dozen events together are compressed.
//! Whoever looks holds up nobody: sound takes no lock, and events one that is held for microseconds.
//!
//! What a client sends is not kept as it came, as a `config` holds credentials: sessions note what of it may be shown.

mod entries;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use bytestring::ByteString;
use tokio::time::Instant;
use vivavoce_core::unix_time::unix_ms;

use entries::{Entries, Kept};

/// Of a longer event its length is kept.
const MAX_TEXT_BYTES: usize = 8 << 10;
/// How long each level is, and how many are kept: half a minute.
pub const LEVEL: Duration = Duration::from_millis(100);
const LEVELS: usize = 300;

/// What was sent or received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineEntry {
    /// Its number; entries that are one because they say the same keep the first one's.
    pub id: u64,
    /// Counts changes of the timeline: that of this entry's last.
    pub version: u64,
    /// When, in milliseconds since the session began.
    pub at_ms: u64,
    /// The last time, where there were several.
    pub until_ms: u64,
    /// How often.
    pub times: u32,
    /// Whether the client sent it.
    pub from_client: bool,
    /// JSON with a `type`; the last one, where there were several.
    pub text: ByteString,
}

impl TimelineEntry {
    fn of((id, entry): (u64, Kept)) -> Self {
        Self {
            id,
            version: entry.version,
            at_ms: entry.at_ms,
            until_ms: entry.at_ms + u64::from(entry.lasted_ms),
            times: entry.times,
            from_client: entry.from_client,
            text: entry.text.into_string().into(),
        }
    }
}

/// What a session is made of, as its config says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFacts {
    /// The id of the request that opened it, by which its log lines are found.
    pub request_id: String,
    /// The recogniser.
    pub stt: Option<String>,
    /// The voice's provider.
    pub tts: Option<String>,
    /// The language.
    pub language: Option<String>,
    /// The silence that ends a turn, in milliseconds; `None` without voice activity detection.
    pub silence_ms: Option<u64>,
    /// The room.
    pub room: Option<String>,
    /// Whether the server leads the conversation.
    pub led: bool,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Doing {
    /// No config is in force.
    #[default]
    Begins,
    /// Nobody says anything.
    Waits,
    /// Somebody speaks to it.
    Hears,
    /// A turn has ended, or a language model has been asked, and nothing is said yet.
    Answers,
    /// It speaks.
    Speaks,
    /// It has ended.
    Ended,
}

impl Doing {
    /// For programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Begins => "begins",
            Self::Waits => "waits",
            Self::Hears => "hears",
            Self::Answers => "answers",
            Self::Speaks => "speaks",
            Self::Ended => "ended",
        }
    }
}

/// What a list of sessions shows of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimelineSummary {
    /// What it is made of.
    pub facts: SessionFacts,
    /// What it does.
    pub doing: Doing,
    /// Turns that have ended.
    pub turns: u64,
    /// How long the last answer took, from the end of speech to its first sound.
    pub answer_ms: Option<u64>,
    /// Errors that the client was told.
    pub errors: u64,
    /// How often another provider took over.
    pub fallbacks: u64,
    /// When something was sent or received last, in milliseconds since it began.
    pub last_ms: u64,
}

/// A part of a timeline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimelinePart {
    /// To ask for what comes after it.
    pub version: u64,
    /// What has changed since.
    pub entries: Vec<TimelineEntry>,
    /// The number of the first level.
    pub first_level: u64,
    /// How loud it was, 0 to 255, one for each [`LEVEL`].
    pub heard: Vec<u8>,
    /// The same of what was played.
    pub played: Vec<u8>,
    /// How long the session has lasted.
    pub now_ms: u64,
}

/// The timeline of a session; clones are the same.
#[derive(Debug, Clone)]
pub struct Timeline(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    begun: Instant,
    begun_at: SystemTime,
    levels: Levels,
    journal: Mutex<Journal>,
}

#[derive(Debug, Default)]
struct Journal {
    entries: Entries,
    version: u64,
    summary: TimelineSummary,
    /// Somebody speaks, an answer is due, the session speaks.
    hears: bool,
    answers: bool,
    speaks: bool,
    ended_ms: Option<u64>,
}

/// What was heard and what was played in a ring, with the round of each in the upper bits, so that nobody has to clear old
/// ones.
#[derive(Debug, Default)]
struct Levels(OnceLock<Box<[AtomicU32]>>);

impl Levels {
    fn note(&self, number: u64, [heard, played]: [u8; 2]) {
        let ring = self
            .0
            .get_or_init(|| (0..LEVELS).map(|_| AtomicU32::new(0)).collect());
        let (slot, round) = place(number);
        let Some(slot) = ring.get(slot) else { return };
        slot.update(Relaxed, Relaxed, |before| {
            let [before_heard, before_played] = levels(before, round);
            let [heard, played] = [heard.max(before_heard), played.max(before_played)];
            u32::from(round) << 16 | u32::from(u16::from_be_bytes([heard, played]))
        });
    }

    /// What was heard, and what was played.
    fn get(&self, number: u64) -> [u8; 2] {
        let (slot, round) = place(number);
        let slot = self.0.get().and_then(|ring| ring.get(slot));
        slot.map_or([0, 0], |slot| levels(slot.load(Relaxed), round))
    }
}

/// Where a level is, and its round through the ring, which repeat after three weeks; 0 is none.
const fn place(number: u64) -> (usize, u16) {
    let round = (number / LEVELS as u64 % 0xffff) as u16 + 1;
    ((number % LEVELS as u64) as usize, round)
}

/// What a slot says of this round.
const fn levels(slot: u32, round: u16) -> [u8; 2] {
    if (slot >> 16) as u16 == round {
        (slot as u16).to_be_bytes()
    } else {
        [0, 0]
    }
}

/// The greatest magnitude, of 255.
fn peak(samples: &[i16]) -> u8 {
    let peak = samples.iter().map(|sample| sample.unsigned_abs()).max();
    (peak.unwrap_or(0) >> 7).min(255) as u8
}

/// How loud sound is that comes a little at a time. It is told once there is more than half a [`LEVEL`] of it, so that each
/// level has something and most pieces cost nothing; what is left at the end is told with what follows.
#[derive(Debug, Default)]
pub struct Loudness {
    peak: u8,
    frames: usize,
}

impl Loudness {
    /// Takes the next piece; returns how loud it is with those before it, 0 to 255, when that is to be told.
    pub fn push(&mut self, samples: &[i16], frames: usize, hz: u32) -> Option<u8> {
        const TOLD_MS: usize = 60;
        self.peak = self.peak.max(peak(samples));
        self.frames += frames;
        if self.frames * 1_000 < hz as usize * TOLD_MS {
            return None;
        }
        Some(std::mem::take(self).peak)
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self(Arc::new(Shared {
            begun: Instant::now(),
            begun_at: SystemTime::now(),
            levels: Levels::default(),
            journal: Mutex::default(),
        }))
    }
}

impl Timeline {
    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.0
            .journal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// When it begins, Unix time in milliseconds.
    pub fn begun_unix_ms(&self) -> u64 {
        unix_ms(self.0.begun_at)
    }

    /// The session hears sound that is as loud as this.
    pub fn hear(&self, level: u8) {
        let number = self.now_ms() / LEVEL.as_millis() as u64;
        self.0.levels.note(number, [level, 0]);
    }

    /// The session plays sound that is as loud as this.
    pub fn play(&self, level: u8) {
        let number = self.now_ms() / LEVEL.as_millis() as u64;
        self.0.levels.note(number, [0, level]);
    }

    /// The client has sent this: JSON with a `type`, of what may be shown.
    pub fn received(&self, text: &str) {
        let now = self.now_ms();
        self.journal().add(text, true, now);
    }

    /// The client is sent this event.
    pub(super) fn sent(&self, text: &str) {
        let now = self.now_ms();
        let mut journal = self.journal();
        match kind(text) {
            // It has a token.
            "ready" => journal.add(r#"{"type":"ready"}"#, false, now),
            kind if text.len() > MAX_TEXT_BYTES => {
                let bytes = text.len();
                let instead = format!(r#"{{"type":"{kind}","bytes":{bytes}}}"#);
                journal.add(&instead, false, now);
            }
            _ => journal.add(text, false, now),
        }
    }

    /// Changes what is known of the session.
    pub fn describe(&self, change: impl FnOnce(&mut SessionFacts)) {
        change(&mut self.journal().summary.facts);
    }

    /// The session has ended.
    pub fn end(&self) {
        let now = self.now_ms();
        let mut journal = self.journal();
        journal.ended_ms.get_or_insert(now);
        journal.summary.doing = Doing::Ended;
    }

    /// What a list shows.
    pub fn summary(&self) -> TimelineSummary {
        self.journal().summary.clone()
    }

    /// What has changed after this version, and levels from this number on.
    pub fn since(&self, version: u64, level: u64) -> TimelinePart {
        let (now_ms, version, entries) = {
            let journal = self.journal();
            let now = journal.ended_ms.unwrap_or_else(|| self.now_ms());
            (now, journal.version, journal.entries.since(version))
        };
        let entries = entries.read().into_iter().map(TimelineEntry::of).collect();
        let last = now_ms / LEVEL.as_millis() as u64;
        let first_level = level.max(last.saturating_sub(LEVELS as u64 - 2));
        let levels = (first_level..last).map(|number| self.0.levels.get(number));
        let (heard, played) = levels.map(|[heard, played]| (heard, played)).unzip();
        TimelinePart {
            version,
            entries,
            first_level,
            heard,
            played,
            now_ms,
        }
    }
}

/// The `type` of a message, which our own messages begin with.
fn kind(text: &str) -> &str {
    let rest = text.strip_prefix(r#"{"type":""#);
    let kind = rest.and_then(|rest| rest.split('"').next());
    kind.unwrap_or_default()
}

/// Whether such messages are one entry where they follow each other: parts of one thing, of which the last tells most.
fn is_one_with(before: &str, text: &str) -> bool {
    let is_partial = |text: &str| text.contains(r#""is_final":false"#);
    match kind(text) {
        "response_text" | "tts_progress" => true,
        "stt_result" => is_partial(before) && is_partial(text),
        _ => false,
    }
}

/// A number among the fields of a message.
fn number(text: &str, field: &str) -> Option<u64> {
    let (_, rest) = text.split_once(field)?;
    let digits = rest.trim_start_matches([':', ' ']);
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

impl Journal {
    fn add(&mut self, text: &str, from_client: bool, now: u64) {
        self.version += 1;
        self.summary.last_ms = now;
        if !from_client {
            self.look_at(text);
        }
        let version = self.version;
        let goes_on = self.entries.newest().is_some_and(|last| {
            let same = last.from_client == from_client && kind(&last.text) == kind(text);
            same && is_one_with(&last.text, text)
        });
        if goes_on {
            self.entries.change_newest(|last| {
                last.version = version;
                last.lasted_ms = u32::try_from(now.saturating_sub(last.at_ms)).unwrap_or(u32::MAX);
                last.times = last.times.saturating_add(1);
                last.text = text.into();
            });
        } else {
            self.entries.push(Kept {
                version,
                at_ms: now,
                lasted_ms: 0,
                times: 1,
                from_client,
                text: text.into(),
            });
        }
    }

    /// What the list shows after this event.
    fn look_at(&mut self, text: &str) {
        match kind(text) {
            "vad_event" => {
                self.hears = text.contains(r#""event":"speech_start""#);
                if text.contains(r#""event":"turn_end""#) {
                    self.summary.turns += 1;
                    self.answers = true;
                }
            }
            "response_started" => self.answers = true,
            "response_done" => self.answers = false,
            "tts_started" => {
                self.speaks = true;
                self.answers = false;
            }
            "tts_playback_complete" | "tts_interrupted" => self.speaks = false,
            "turn_metrics" => self.summary.answer_ms = number(text, r#""first_sound_ms""#),
            "error" => {
                self.summary.errors += 1;
                // It may end an utterance.
                self.speaks = self.speaks && !text.contains(r#""played_ms""#);
            }
            "provider_event" if text.contains(r#""state":"switched""#) => {
                self.summary.fallbacks += 1;
            }
            "ready" => {}
            _ => return,
        }
        self.summary.doing = match (self.ended_ms, self.speaks, self.hears, self.answers) {
            (Some(_), ..) => Doing::Ended,
            (None, true, ..) => Doing::Speaks,
            (None, _, true, _) => Doing::Hears,
            (None, _, _, true) => Doing::Answers,
            (None, ..) => Doing::Waits,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sends(timeline: &Timeline, texts: &[&'static str]) {
        for text in texts {
            timeline.sent(text);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn parts_of_one_thing_are_one_entry_and_only_news_are_told_again() {
        let timeline = Timeline::default();
        let partial = r#"{"type":"stt_result","transcript":"a","is_final":false}"#;
        sends(&timeline, &[partial, partial]);
        let seen = timeline.since(0, 0);
        assert_eq!(seen.entries.len(), 1);
        tokio::time::advance(Duration::from_millis(250)).await;
        let last = r#"{"type":"stt_result","transcript":"a b","is_final":false}"#;
        let heard = r#"{"type":"stt_result","transcript":"a b","is_final":true}"#;
        sends(&timeline, &[last, heard]);
        let news = timeline.since(seen.version, 0);
        let [partials, heard_entry] = &news.entries[..] else {
            panic!("{news:?}");
        };
        assert_eq!((partials.id, partials.times), (1, 3));
        assert_eq!((partials.at_ms, partials.until_ms), (0, 250));
        assert_eq!(&*heard_entry.text, heard);
        assert!(timeline.since(news.version, 0).entries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn levels_are_where_they_were_heard_and_old_ones_are_gone() {
        let timeline = Timeline::default();
        timeline.hear(100);
        timeline.play(7);
        timeline.hear(20);
        tokio::time::advance(Duration::from_millis(150)).await;
        timeline.play(255);
        tokio::time::advance(Duration::from_millis(100)).await;
        let part = timeline.since(0, 0);
        assert_eq!((part.heard, part.played), (vec![100, 0], vec![7, 255]));
        tokio::time::advance(Duration::from_mins(1)).await;
        let part = timeline.since(0, 0);
        assert!(part.heard.len() < LEVELS && part.heard.iter().all(|level| *level == 0));
    }

    #[test]
    fn how_loud_sound_is_is_told_for_each_level_at_least_once() {
        let mut loudness = Loudness::default();
        let mut told = Vec::new();
        for chunk in [[0, -12_800, 100], [0, 1, 2], [i16::MIN, 0, 0]] {
            told.push(loudness.push(&chunk, 320, 16_000));
        }
        assert_eq!(told, [None, None, Some(255)]);
        // What comes at once may be longer.
        assert_eq!(loudness.push(&[0, -12_800, 100], 960, 16_000), Some(100));
        assert_eq!(loudness.push(&[0, 0], 320, 16_000), None);
    }

    #[test]
    fn a_list_shows_what_a_session_does_and_no_token() {
        let timeline = Timeline::default();
        let doing = || timeline.summary().doing;
        assert_eq!(doing(), Doing::Begins);
        sends(&timeline, &[r#"{"type":"ready","resume_token":"marker"}"#]);
        assert_eq!(doing(), Doing::Waits);
        assert!(!format!("{timeline:?}").contains("marker"));
        sends(
            &timeline,
            &[r#"{"type":"vad_event","event":"speech_start"}"#],
        );
        assert_eq!(doing(), Doing::Hears);
        sends(&timeline, &[r#"{"type":"vad_event","event":"turn_end"}"#]);
        assert_eq!(doing(), Doing::Answers);
        sends(&timeline, &[r#"{"type":"tts_started","id":null}"#]);
        assert_eq!(doing(), Doing::Speaks);
        sends(
            &timeline,
            &[
                r#"{"type":"tts_playback_complete","id":null}"#,
                r#"{"type":"turn_metrics","turn":1,"first_sound_ms":812,"played_ms":null}"#,
                r#"{"type":"error","message":"no"}"#,
            ],
        );
        let summary = timeline.summary();
        assert_eq!(summary.doing, Doing::Waits);
        assert_eq!((summary.turns, summary.errors), (1, 1));
        assert_eq!(summary.answer_ms, Some(812));
        timeline.end();
        sends(&timeline, &[r#"{"type":"tts_started","id":null}"#]);
        assert_eq!(doing(), Doing::Ended);
    }
}
