//! Finds what is silenced of a recording: where words were spoken that its transcript leaves out. What it finds are lines for
//! the journal ([`Mark`]), which is finished without these stretches; encoding and writing are others' matter. A pure struct:
//! times are passed in.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::LATE_FINAL;
use vivavoce_recordings::marks::{EVER, Mark, Side};
use vivavoce_recordings::redaction::Redaction;
use vivavoce_seams::{SttResult, Word};

/// How much more is silenced before and after what was spoken: times of words are not exact.
const BESIDE_WORDS: Duration = Duration::from_millis(250);
/// As long as this, and over so many finals, a number may be read out.
const ONE_NUMBER: Duration = Duration::from_mins(1);
const MAX_RECENT: usize = 64;
/// How long somebody may have spoken of whom there is no final, while others' finals come.
const BESIDE_OTHERS: Duration = Duration::from_secs(30);
/// People of whom it is remembered when their last final came.
const MAX_PEOPLE: usize = 64;
/// Utterances that have begun and not ended: as many as a queue has on their way.
const MAX_UTTERANCES: usize = 64;
/// Input that is so far ahead of the time was not spoken as it came.
const NOT_SPOKEN: Duration = Duration::from_secs(1);
/// The most bytes of marks that wait. They are taken ten times in a second; after a failure nobody takes them.
const MAX_MARKS: usize = 1 << 20;

/// What is known of time when a final comes.
pub(super) struct Timing<'a> {
    /// How much audio there has been on the clock of the words.
    pub(super) heard: Duration,
    /// The place in the recording that is spoken now.
    pub(super) now: Duration,
    /// Between which places of the recording the input is that came so long before the newest.
    pub(super) place: &'a dyn Fn(Duration) -> Range<Duration>,
}

impl Timing<'_> {
    fn place(&self, seconds: f64) -> Option<Range<Duration>> {
        let at = Duration::try_from_secs_f64(seconds).ok()?;
        (at <= self.heard + NOT_SPOKEN).then(|| (self.place)(self.heard.saturating_sub(at)))
    }

    /// Where a word was spoken, if its times can be true.
    fn of(&self, word: &Word) -> Option<Range<Duration>> {
        let place = self.place(word.start)?.start..self.place(word.end)?.end;
        (word.start <= word.end && place.start <= place.end).then_some(place)
    }
}

#[derive(Default)]
pub(super) struct Silencing {
    marks: String,
    /// When the last final came of each person that is heard alone, the oldest first.
    finals: VecDeque<(Option<String>, Duration)>,
    /// The last finals of all.
    recent: VecDeque<Final>,
    /// Whether input has come faster than it can have been spoken.
    hurried: bool,
    /// Until where the input is known.
    known: Duration,
    /// The utterances that are heard, and when they began.
    speaking: VecDeque<(u64, Duration)>,
}

/// A final, and where in the recording it was spoken. Places do not change any more.
struct Final {
    identity: Option<String>,
    came: Duration,
    text: String,
    span: Range<Duration>,
    /// Its words, or all of it as one where the recogniser does not tell when they were spoken.
    words: Vec<(String, Range<Duration>)>,
}

impl Silencing {
    pub(super) fn take_marks(&mut self) -> String {
        std::mem::take(&mut self.marks)
    }

    fn mark(&mut self, mark: Mark) {
        let line = mark.to_line();
        if self.marks.len() + line.len() <= MAX_MARKS {
            self.marks += &line;
            return;
        }
        // What would be lost may have hidden anything.
        let everything = [Side::Heard, Side::Said].map(|side| Mark::Hide {
            side,
            from_ms: 0,
            to_ms: EVER,
        });
        self.marks = everything.map(Mark::to_line).concat();
    }

    fn hide(&mut self, side: Side, place: Range<Duration>) {
        self.mark(Mark::Hide {
            side,
            from_ms: millis(place.start.saturating_sub(BESIDE_WORDS)),
            to_ms: millis(place.end + BESIDE_WORDS),
        });
    }

    /// Input comes that is up to `until` in the recording, while `now` is spoken.
    pub(super) fn hear(&mut self, until: Duration, now: Duration) {
        self.hurried |= until > now + NOT_SPOKEN;
    }

    /// A final has come.
    pub(super) fn note_final(
        &mut self,
        result: &SttResult,
        redaction: &Redaction,
        timing: &Timing<'_>,
    ) {
        let spoken = self.spoken(result, redaction, timing);
        self.recent
            .retain(|recent| timing.now.saturating_sub(recent.came) < ONE_NUMBER);
        if self.recent.len() >= MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(spoken);
        for place in self.found(redaction) {
            self.hide(Side::Heard, place);
        }
        let understood = match result.words.last().and_then(|last| timing.place(last.end)) {
            Some(place) => place.start,
            None if self.hurried => Duration::ZERO,
            None => timing.now.saturating_sub(LATE_FINAL),
        };
        // Others may be speaking meanwhile, each with a recogniser of its own.
        let understood = match result.identity {
            Some(_) => understood.min(timing.now.saturating_sub(BESIDE_OTHERS)),
            None => understood,
        };
        if understood > self.known {
            self.known = understood;
            self.mark(Mark::Known {
                side: Side::Heard,
                until_ms: millis(understood),
            });
        }
    }

    /// Where the words of a final were spoken.
    fn spoken(&mut self, result: &SttResult, redaction: &Redaction, timing: &Timing<'_>) -> Final {
        let its = self
            .finals
            .iter()
            .position(|(of, _)| *of == result.identity);
        let before = its.and_then(|its| self.finals.remove(its));
        if self.finals.len() >= MAX_PEOPLE {
            self.finals.pop_front();
        }
        self.finals.push_back((result.identity.clone(), timing.now));
        let since = match before {
            Some((_, came)) if !self.hurried => came.saturating_sub(LATE_FINAL),
            _ => Duration::ZERO,
        };
        let newest = (timing.place)(Duration::ZERO).end;
        let span = since..timing.now.max(newest);
        let word = |word: &Word| Some((word.word.clone(), timing.of(word)?));
        let words: Option<Vec<_>> = result.words.iter().map(word).collect();
        // A number may be written otherwise than its words are.
        let tells = |words: &Vec<(String, Range<Duration>)>| {
            let words: Vec<&str> = words.iter().map(|(word, _)| &**word).collect();
            redaction.of_pieces(&words).len() >= redaction.count(&result.transcript)
        };
        let whole = || vec![(result.transcript.clone(), span.clone())];
        Final {
            identity: result.identity.clone(),
            came: timing.now,
            text: result.transcript.clone(),
            words: words.filter(tells).unwrap_or_else(whole),
            span,
        }
    }

    /// Where that was spoken which the last final ends, or which is in it.
    fn found(&self, redaction: &Redaction) -> Vec<Range<Duration>> {
        let Some(newest) = self.recent.back() else {
            return Vec::new();
        };
        // Who reads a number out makes pauses, and each group of its digits may be a final.
        let theirs = self.recent.iter();
        let theirs: Vec<&Final> = theirs
            .filter(|recent| recent.identity == newest.identity)
            .collect();
        let mut places = found_in(&theirs, redaction);
        // Digits before it, that belong to something else, do not hide what is in one final.
        places.extend(found_in(&[newest], redaction));
        places
    }

    /// An utterance begins.
    pub(super) fn begins(&mut self, utterance: u64, now: Duration) {
        // Of more than there can be the first ones count.
        if self.speaking.len() < MAX_UTTERANCES {
            self.speaking.push_back((utterance, now));
        }
        if self.speaking.len() == 1 {
            self.mark_said();
        }
    }

    /// It has ended; whether some of it is left out.
    pub(super) fn ends(&mut self, utterance: u64, is_left_out: bool, now: Duration) {
        let its = self.speaking.iter().position(|(of, _)| *of == utterance);
        let began = its.and_then(|its| self.speaking.remove(its));
        if is_left_out {
            // One whose beginning is not known had begun before the recording.
            let began = began.map(|(_, began)| began).unwrap_or_default();
            self.hide(Side::Said, began..now);
        }
        if began.is_some() {
            self.mark_said();
        }
    }

    /// Until where it is known what was said.
    fn mark_said(&mut self) {
        let first = self.speaking.front();
        let began = |began: Duration| millis(began.saturating_sub(BESIDE_WORDS));
        self.mark(Mark::Known {
            side: Side::Said,
            until_ms: first.map_or(EVER, |(_, at)| began(*at)),
        });
    }
}

/// Where that was spoken which is left out of these finals of one person, as far as it is in the last of them.
fn found_in(finals: &[&Final], redaction: &Redaction) -> Vec<Range<Duration>> {
    let Some(last) = finals.len().checked_sub(1) else {
        return Vec::new();
    };
    let of_final = |(at, one): (usize, &&Final)| (at, one.words.len());
    let owners: Vec<usize> = finals
        .iter()
        .enumerate()
        .map(of_final)
        .flat_map(|(at, count)| std::iter::repeat_n(at, count))
        .collect();
    let words: Vec<&(String, Range<Duration>)> = finals.iter().flat_map(|one| &one.words).collect();
    let pieces: Vec<&str> = words.iter().map(|(word, _)| &**word).collect();
    let found = redaction.of_pieces(&pieces);
    let texts: Vec<&str> = finals.iter().map(|one| &*one.text).collect();
    let in_texts = redaction.of_pieces(&texts);
    let mut places = Vec::new();
    if in_texts.len() > found.len() {
        // What stands in the texts is not among the words.
        let whole = in_texts.into_iter().filter(|found| found.contains(&last));
        places.extend(
            whole
                .filter_map(|found| finals.get(found))
                .flatten()
                .map(|one| one.span.clone()),
        );
    }
    for found in found {
        let mut its: Vec<(usize, &Range<Duration>)> = Vec::new();
        for at in found {
            if let (Some(owner), Some((_, place))) = (owners.get(at), words.get(at)) {
                its.push((*owner, place));
            }
        }
        if its.last().is_none_or(|(owner, _)| *owner != last) {
            // It was found when the final came that ends it.
            continue;
        }
        // With what is said between its words, but not what is heard between two finals.
        for of_final in its.chunk_by(|one, other| one.0 == other.0) {
            let from = of_final.iter().map(|(_, place)| place.start).min();
            let to = of_final.iter().map(|(_, place)| place.end).max();
            places.extend(from.zip(to).map(|(from, to)| from..to));
        }
    }
    places
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
