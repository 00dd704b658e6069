//! Aligns the words of a text with its audio. Times that the provider reports are taken as they are; between them, and
//! where there are none, they are estimated from the energy of the audio: a longer word takes more of the voiced time, and
//! clauses end in pauses.

use std::ops::Range;
use std::time::Duration;

use unicode_segmentation::UnicodeSegmentation;

/// The frames in which energy is measured.
pub(super) const FRAME: Duration = Duration::from_millis(10);
/// Speech at normal speed, in [`weight`] per frame, with its closures and short pauses: used only until all audio is there.
const WEIGHT_PER_FRAME: f64 = 0.13;
/// How much audio it takes to tell which share of a voice's speech is voiced.
const FRAMES_FOR_A_SHARE: usize = 50;
/// How far below the loudest frame audio is unvoiced.
const QUIET_SHARE: u16 = 24;
/// The mean magnitude below which a frame is silence in any case.
const SILENCE: u16 = 24;
/// The fewest unvoiced frames that may end a clause: closures of plosives and gaps between slow words are shorter.
const SHORTEST_PAUSE: usize = 12;
/// How many frames after its onset a word may be reported to begin.
const ONSET_SLACK: usize = 3;
/// The cost of an unmatched clause, and of each frame of an unmatched pause.
const CLAUSE_ALONE: f64 = 100.0;
const PAUSE_FRAME_ALONE: f64 = 0.6;
/// The most clauses times pauses that are matched.
const MOST_PAIRS: usize = 40_000;

/// A word and its position in the audio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlacedWord {
    /// Bytes of the text, with its punctuation.
    pub(super) text: Range<usize>,
    /// Where it begins in the audio.
    pub(super) start: Duration,
    /// Where it ends, before any pause behind it.
    pub(super) end: Duration,
    /// Whether the provider has not reported where it begins.
    pub(super) estimated: bool,
}

/// A word of a text.
#[derive(Debug, PartialEq)]
struct Word {
    /// With its punctuation.
    text: Range<usize>,
    weight: f64,
    ends_clause: bool,
}

/// The audio of a text, as far as it is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sound<'a> {
    /// Mean magnitude of each frame; frames beyond are taken as voiced.
    pub(super) loudness: &'a [u16],
    /// Its length so far.
    pub(super) duration: Duration,
    /// Whether that is all of it.
    pub(super) finished: bool,
}

/// Places the words of a text. `told` are bytes of the text and where the provider reports that the words there begin.
pub(super) fn place(text: &str, told: &[(usize, Duration)], sound: Sound<'_>) -> Vec<PlacedWord> {
    let words = split(text);
    let voice = Voice::of(sound);
    let told = told_starts(&words, told, &voice);
    let curve = Curve::through(&words, &told, &voice, sound.finished);
    let mut before = 0.0;
    let mut starts = Vec::with_capacity(words.len() + 1);
    for (word, told) in words.iter().zip(&told) {
        let estimate = || voice.onset(curve.voiced_at(before));
        starts.push(told.unwrap_or_else(estimate));
        before += word.weight;
    }
    starts.push(voice.offset(curve.voiced_at(before)));
    let spans = starts.windows(2);
    let places = words.into_iter().zip(told).zip(spans);
    let placed = places.map(|((word, told), span)| PlacedWord {
        text: word.text,
        start: time(span[0]),
        end: time(voice.before_pause(span[1]).max(span[0])),
        estimated: told.is_none(),
    });
    placed.collect()
}

fn time(frames: f64) -> Duration {
    // To the hundredth of a frame, so that equal sums do not differ by rounding.
    FRAME / 100 * (frames.max(0.0) * 100.0).round() as u32
}

/// Words by Unicode's boundaries, each with the punctuation around it.
fn split(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    // Where the punctuation begins that belongs to the next word.
    let mut opening = None;
    let mut glued = false;
    for (at, piece) in text.split_word_bound_indices() {
        let end = at + piece.len();
        if piece.trim().is_empty() {
            glued = false;
        } else if piece.contains(char::is_alphanumeric) {
            words.push(Word {
                text: opening.take().unwrap_or(at)..end,
                weight: weight(piece),
                ends_clause: false,
            });
            glued = true;
        } else if let Some(word) = words.last_mut().filter(|_| glued) {
            word.text.end = end;
            word.ends_clause |= piece.contains(ends_clause);
        } else {
            if let Some(word) = words.last_mut() {
                word.ends_clause |= piece.contains(ends_clause);
            }
            opening = opening.or(Some(at));
        }
    }
    words
}

const fn ends_clause(c: char) -> bool {
    matches!(
        c,
        '.' | ','
            | ';'
            | ':'
            | '!'
            | '?'
            | '…'
            | '–'
            | '—'
            | '('
            | ')'
            | '。'
            | '，'
            | '、'
            | '；'
            | '：'
            | '！'
            | '？'
    )
}

/// About how long a word takes, in letters of the Latin script.
fn weight(word: &str) -> f64 {
    let shouted = word.chars().count() > 1 && word.chars().all(char::is_uppercase);
    let of = |c: char| match c {
        '0'..='9' => 4.0,
        // Letters that are spelled out.
        'A'..='Z' if shouted => 3.0,
        '\u{3040}'..='\u{30ff}' => 2.0,
        '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' => 3.5,
        c if c.is_alphanumeric() => 1.0,
        _ => 0.0,
    };
    word.chars().map(of).sum::<f64>().max(1.0)
}

/// Which frames are voiced.
struct Voice {
    /// How many frames before each one are voiced; one more entry than there are frames.
    voiced: Vec<u32>,
}

impl Voice {
    fn of(sound: Sound<'_>) -> Self {
        let frames = sound.duration.as_nanos().div_ceil(FRAME.as_nanos()) as usize;
        let known = &sound.loudness[..frames.min(sound.loudness.len())];
        let loudest = known.iter().copied().max().unwrap_or(0);
        let least = (loudest / QUIET_SHARE).max(SILENCE);
        let mut voiced = Vec::with_capacity(frames + 1);
        let mut count = 0;
        voiced.push(count);
        for frame in 0..frames {
            count += u32::from(known.get(frame).is_none_or(|mean| *mean >= least));
            voiced.push(count);
        }
        Self { voiced }
    }

    fn frames(&self) -> usize {
        self.voiced.len() - 1
    }

    fn total(&self) -> f64 {
        f64::from(self.voiced[self.frames()])
    }

    /// The share of voiced frames: voices differ in it without speaking slower.
    fn share(&self) -> f64 {
        if self.frames() < FRAMES_FOR_A_SHARE {
            return 1.0;
        }
        (self.total() / self.frames() as f64).max(0.1)
    }

    fn is_voice(&self, frame: usize) -> bool {
        self.voiced[frame + 1] > self.voiced[frame]
    }

    /// How many voiced frames there are before a frame; beyond the end all are taken as voiced.
    fn before(&self, frame: f64) -> f64 {
        let whole = frame.max(0.0) as usize;
        if whole >= self.frames() {
            return self.total() + frame - self.frames() as f64;
        }
        let part = if self.is_voice(whole) {
            frame - whole as f64
        } else {
            0.0
        };
        f64::from(self.voiced[whole]) + part
    }

    /// The last frame with this many voiced frames before it: where voice begins again.
    fn onset(&self, voiced: f64) -> f64 {
        if voiced >= self.total() {
            return self.frames() as f64 + voiced - self.total();
        }
        let behind = self
            .voiced
            .partition_point(|count| f64::from(*count) <= voiced);
        let frame = behind.saturating_sub(1);
        frame as f64 + voiced - f64::from(self.voiced[frame])
    }

    /// The first frame with this many voiced frames before it: where voice ends.
    fn offset(&self, voiced: f64) -> f64 {
        if voiced > self.total() {
            return self.onset(voiced);
        }
        let frame = self
            .voiced
            .partition_point(|count| f64::from(*count) < voiced);
        frame as f64 - (f64::from(self.voiced[frame]) - voiced)
    }

    /// The end of the voice before this frame, where a word begins: providers do not report that to the frame.
    fn before_pause(&self, frame: f64) -> f64 {
        let begins = (frame.max(0.0) as usize).min(self.frames());
        let pauses = |at: &usize| *at > 0 && !self.is_voice(*at - 1);
        let nearest = (begins.saturating_sub(ONSET_SLACK)..=begins)
            .rev()
            .find(pauses);
        let voiced = nearest.map_or_else(|| self.before(frame), |at| f64::from(self.voiced[at]));
        self.offset(voiced).min(frame)
    }

    /// The pauses: how many voiced frames are before each, and its frames.
    fn pauses(&self) -> Vec<(f64, usize)> {
        let mut pauses = Vec::new();
        let mut length = 0;
        for frame in 0..self.frames() {
            if !self.is_voice(frame) {
                length += 1;
                continue;
            }
            let before = self.voiced[frame];
            if before > 0 && length >= SHORTEST_PAUSE {
                pauses.push((f64::from(before), length));
            }
            length = 0;
        }
        pauses
    }
}

/// The start of each word for which one was reported, in frames.
fn told_starts(words: &[Word], told: &[(usize, Duration)], voice: &Voice) -> Vec<Option<f64>> {
    let mut starts = vec![None; words.len()];
    let mut latest = 0.0;
    for &(byte, start) in told {
        let index = words.partition_point(|word| word.text.end <= byte);
        let start = start.as_secs_f64() / FRAME.as_secs_f64();
        // Of several parts of a word the first counts; times that go back are errors.
        if start < latest {
            continue;
        }
        if let Some(place @ None) = starts.get_mut(index) {
            latest = start.min(voice.frames().max(1) as f64 + 1e7);
            *place = Some(latest);
        }
    }
    // No word is placed behind a later one that was reported.
    starts
}

/// Maps text to voiced frames, between points that are known.
struct Curve(Vec<(f64, f64)>);

impl Curve {
    fn through(words: &[Word], told: &[Option<f64>], voice: &Voice, finished: bool) -> Self {
        let total: f64 = words.iter().map(|word| word.weight).sum();
        let mut points = vec![(0.0, 0.0)];
        let mut before = 0.0;
        for (word, told) in words.iter().zip(told) {
            if let Some(start) = told {
                points.push((before, voice.before(*start)));
            }
            before += word.weight;
        }
        if points.len() == 1 && finished {
            points.extend(clause_ends(words, total, voice));
        }
        let (weight, voiced) = points[points.len() - 1];
        let end = if finished {
            voice.total()
        } else {
            let at_normal_speed = voiced + (total - weight) / WEIGHT_PER_FRAME * voice.share();
            at_normal_speed.max(voice.total())
        };
        points.push((total, end.max(voiced)));
        Self(points)
    }

    fn voiced_at(&self, weight: f64) -> f64 {
        let next = self.0.partition_point(|(w, _)| *w <= weight);
        let Some(&(w1, v1)) = self.0.get(next) else {
            return self.0.last().map_or(0.0, |point| point.1);
        };
        let (w0, v0) = next.checked_sub(1).map_or((0.0, 0.0), |last| self.0[last]);
        v0 + (v1 - v0) * (weight - w0) / (w1 - w0)
    }
}

/// The pauses that clauses end in: the cheapest way to match them in order, where a mismatch costs the voiced frames
/// between where a clause should end and where the pause is.
fn clause_ends(words: &[Word], total: f64, voice: &Voice) -> Vec<(f64, f64)> {
    let mut weight = 0.0;
    let mut clauses = Vec::new();
    for word in words
        .get(..words.len().saturating_sub(1))
        .unwrap_or_default()
    {
        weight += word.weight;
        if word.ends_clause {
            clauses.push(weight);
        }
    }
    let pauses = voice.pauses();
    if clauses.is_empty() || pauses.is_empty() || clauses.len() * pauses.len() > MOST_PAIRS {
        return Vec::new();
    }
    let expected = |clause: usize| clauses[clause] / total * voice.total();
    let alone = |pause: usize| (pauses[pause].1 as f64 * PAUSE_FRAME_ALONE).min(60.0);
    let columns = pauses.len() + 1;
    // The cost of the rest from each clause and each pause on.
    let mut costs = vec![0.0; (clauses.len() + 1) * columns];
    let cell = |clause: usize, pause: usize| clause * columns + pause;
    let choices = |costs: &[f64], clause: usize, pause: usize| {
        let cost = |clause: usize, pause: usize| costs[cell(clause, pause)];
        let mismatch = (expected(clause) - pauses[pause].0).abs();
        [
            mismatch + cost(clause + 1, pause + 1),
            CLAUSE_ALONE + cost(clause + 1, pause),
            alone(pause) + cost(clause, pause + 1),
        ]
    };
    for clause in (0..clauses.len()).rev() {
        costs[cell(clause, pauses.len())] = CLAUSE_ALONE + costs[cell(clause + 1, pauses.len())];
    }
    for pause in (0..pauses.len()).rev() {
        costs[cell(clauses.len(), pause)] = alone(pause) + costs[cell(clauses.len(), pause + 1)];
    }
    for clause in (0..clauses.len()).rev() {
        for pause in (0..pauses.len()).rev() {
            let [both, without_pause, without_clause] = choices(&costs, clause, pause);
            costs[cell(clause, pause)] = both.min(without_pause).min(without_clause);
        }
    }
    let mut ends = Vec::new();
    let (mut clause, mut pause) = (0, 0);
    while clause < clauses.len() && pause < pauses.len() {
        let [both, without_pause, without_clause] = choices(&costs, clause, pause);
        if both <= without_pause && both <= without_clause {
            ends.push((clauses[clause], pauses[pause].0));
            clause += 1;
            pause += 1;
        } else if without_pause <= without_clause {
            clause += 1;
        } else {
            pause += 1;
        }
    }
    ends
}

#[cfg(test)]
mod tests;
