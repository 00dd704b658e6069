//! Who has answered an outbound call: a person, a machine, an assistant that screens calls, a fax, nobody, or a network that
//! says that the number cannot be reached. A state machine without I/O and clock: the far end's sound goes in, at 16 kHz, and
//! with it the time; findings come out. Sound that does not come must be pushed as silence.
//!
//! Three things are listened to. *Tones*: those of networks ([`networks`]), the special information tones, fax machines, and
//! the beep of a machine. *Cadence*: a person says a few words and waits, a machine goes on talking. *Words* of a recogniser,
//! where somebody has them ([`phrases`]). What is decided first, at most 2.4 s after the first sound, comes from whatever there
//! is by then; what is heard later may correct it.

mod loudness;
pub mod networks;
pub mod phrases;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use loudness::{HELD_SAMPLES as HELD, Loudness};
use networks::Network;
use phrases::Meaning;
use vivavoce_audio::SampleRate;
use vivavoce_audio::tones::{HOP, Tone, ToneDetector};
use vivavoce_audio::vad::{Vad, VadEvent, VadSettings};
use vivavoce_core::call::{AnswerFinding, AnswerReason, Answerer, Classification};

/// The rate of the sound.
pub const RATE: SampleRate = SampleRate::HZ_16000;
/// Samples of a millisecond.
const MS: u64 = 16;

/// After so much time from the first sound it is decided.
const DECIDE_WITHIN: u64 = 2_400 * MS;
/// A greeting that is at most so long is a person's, when a pause of so much follows …
const SHORT_GREETING: u64 = 1_250 * MS;
const SHORT_PAUSE: u64 = 650 * MS;
/// … and one that is at most so long, when it is followed by this pause.
const MIDDLE_GREETING: u64 = 1_900 * MS;
const MIDDLE_PAUSE: u64 = 550 * MS;
/// Of [`DECIDE_WITHIN`] a machine has talked for so much, and has not paused for so long at its end.
const TALKS: u64 = 1_300 * MS;
const LAST_PAUSE: u64 = 380 * MS;
/// Somebody who was taken for a machine, has said no more than this, and then waits for so long, is a person.
const WHOLE_GREETING: u64 = 5_000 * MS;
const WAITS: u64 = 1_800 * MS;
/// Nothing to hear for so long is silence, behind a ringing tone for so long: that pauses for up to 5 s.
const SILENCE: u64 = 4_000 * MS;
const SILENCE_AFTER_RINGING: u64 = 6_500 * MS;
/// The level of speech varies by so much; that of noise does not.
const VARIES_DB: f32 = 9.0;
/// How long a decision may be corrected.
const CORRECTED_WITHIN: u64 = 20_000 * MS;
/// Whatever there is to hear, it is listened to for no longer than this, but for a beep.
const LISTENS: u64 = 90_000 * MS;
/// The most decisions about one call.
const MOST_DECISIONS: u8 = 4;

/// A tone that is so pure, and wavers by no more than this share of its frequency, is no speech from so much of it on, and for so
/// long behind it: vowels are neither.
const TONAL_PURITY: f32 = 0.8;
const TONAL_WAVERS: f32 = 0.02;
const TONAL: u64 = 70 * MS;
const AFTER_TONE: u64 = 250 * MS;
/// A beep is a sine from 350 to 2,100 Hz …
const LOWEST_BEEP_HZ: f32 = 330.0;
const HIGHEST_BEEP_HZ: f32 = 2_150.0;
/// … that lasts for so long, wavers by no more than this share of its frequency, and is nearly pure.
const SHORTEST_BEEP_MS: u64 = 90;
const BEEP_WAVERS: f32 = 0.015;
const BEEP_PURITY: f32 = 0.88;
/// One that goes on has been heard after so much of it.
const LONGEST_BEEP_MS: u64 = 1_500;
/// Before it there was so much speech, before one that may be a network's so much.
const SPEECH_BEFORE_BEEP: u64 = 250 * MS;
const SPEECH_BEFORE_LOW_BEEP: u64 = 700 * MS;

/// The special information tones (ITU-T E.180, section 6), with what exchanges are allowed to be off.
const INFORMATION_HZ: [f32; 3] = [950.0, 1_400.0, 1_800.0];
const INFORMATION_OFF_HZ: f32 = 55.0;
const SHORTEST_INFORMATION_MS: u64 = 200;
const LONGEST_INFORMATION_MS: u64 = 480;
/// Pauses between the three, and how much of the last one is enough.
const INFORMATION_PAUSE: u64 = 100 * MS;
const LAST_INFORMATION_MS: u64 = 150;
/// The answer tone of a fax machine (ITU-T T.30, section 4.3.3.3: 2,100 Hz for 2.6 to 4 s), and its calling tone (1,100 Hz for half a
/// second every three).
const FAX_ANSWER_HZ: f32 = 2_100.0;
const FAX_ANSWER_OFF_HZ: f32 = 25.0;
const FAX_ANSWER_MS: u64 = 700;
const FAX_CALLING_HZ: f32 = 1_100.0;
const FAX_CALLING_OFF_HZ: f32 = 40.0;
const FAX_CALLING_MS: (u64, u64) = (400, 620);
const FAX_CALLING_PAUSE: u64 = 500 * MS;
/// A continuous tone is one after so much of it.
const CONTINUOUS_MS: u64 = 2_000;

/// Somebody who is so much louder than what was heard for so long before is who has answered; so much of it was heard already.
const FOREGROUND_DB: f32 = 13.0;
const FIRST_SYLLABLES: u64 = 300 * MS;
const SYLLABLE: u64 = 120 * MS;
/// How long sound takes to be as loud as it is.
const ONSET: u64 = 60 * MS;

/// Tones that are remembered.
const REMEMBERED: usize = 6;

/// What is wanted to be known of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The network that is called, where its number tells it.
    pub network: Option<&'static Network>,
    /// How long the beep of a machine is waited for, from when it is known to be one.
    pub beep_within: Option<Duration>,
}

/// Listens to the far end of one call. See the module.
#[derive(Debug)]
pub struct Classifier {
    wanted: Wanted,
    vad: Vad,
    loudness: Loudness,
    tones: ToneDetector,
    /// Less than a [`HOP`], left over.
    pending: Vec<i16>,
    position: u64,
    /// Since when what is heard counts: the answer, once there was one.
    origin: u64,
    answered: bool,
    voice: Voice,
    /// The tones since then, the last one behind.
    heard: VecDeque<Tone>,
    /// Where the first of them began.
    first_tone: Option<u64>,
    decided: Option<Decided>,
    decisions: u8,
    /// What words have told that was not said yet.
    words: Option<Meaning>,
    beep: Beep,
    /// Since when there is nothing to hear.
    quiet_since: u64,
}

#[derive(Debug, Clone, Copy)]
struct Decided {
    result: Answerer,
    reason: AnswerReason,
    at: u64,
}

/// The waiting for a beep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beep {
    /// There is no machine yet.
    Unexpected,
    /// Until then.
    Expected(u64),
    /// It was heard, or does not come.
    Over,
}

/// The speech of the far end.
#[derive(Debug)]
struct Voice {
    /// Where speech has begun, and ended, by the detector of voice activity.
    since: u64,
    until: u64,
    /// Whether it is speech now.
    talks: bool,
    /// The first word.
    first: Option<u64>,
    /// Where the last piece of speech began and ended.
    began: u64,
    ended: u64,
    /// How much there was in all pieces that have ended.
    sum: u64,
    /// How loud the first syllables were, in decibels.
    level: f32,
    /// The quietest and the loudest of it, in decibels.
    quietest: f32,
    loudest: f32,
}

impl Default for Voice {
    fn default() -> Self {
        Self {
            since: 0,
            until: 0,
            talks: false,
            first: None,
            began: 0,
            ended: 0,
            sum: 0,
            level: f32::NEG_INFINITY,
            quietest: f32::INFINITY,
            loudest: f32::NEG_INFINITY,
        }
    }
}

impl Voice {
    /// How much speech there was until now.
    const fn talked(&self, now: u64) -> u64 {
        let more = if self.talks {
            now.saturating_sub(self.began)
        } else {
            0
        };
        self.sum + more
    }

    /// From the first word to the last one.
    fn length(&self, now: u64) -> u64 {
        let end = if self.talks { now } else { self.ended };
        self.first.map_or(0, |first| end.saturating_sub(first))
    }

    /// For how long nothing was said after something was.
    const fn pause(&self, now: u64) -> u64 {
        if self.talks || self.first.is_none() {
            0
        } else {
            now.saturating_sub(self.ended)
        }
    }

    /// Whether it is louder at times.
    fn varies(&self) -> bool {
        self.loudest - self.quietest >= VARIES_DB
    }

    fn turn(&mut self, talks: bool, at: u64) {
        if std::mem::replace(&mut self.talks, talks) == talks {
            return;
        }
        if talks {
            self.began = at;
            self.first.get_or_insert(at);
        } else {
            self.ended = at.max(self.began);
            self.sum += self.ended - self.began;
        }
    }
}

impl Classifier {
    /// Listens to a call that is not answered yet.
    pub fn new(wanted: Wanted) -> Self {
        let settings = VadSettings {
            hang_over: Duration::from_millis(200),
            min_speech: Duration::from_millis(80),
            ..VadSettings::default()
        };
        Self {
            wanted,
            vad: Vad::new(settings),
            loudness: Loudness::new(),
            tones: ToneDetector::new(),
            pending: Vec::with_capacity(2 * HOP),
            position: 0,
            origin: 0,
            answered: false,
            voice: Voice::default(),
            heard: VecDeque::with_capacity(REMEMBERED + 1),
            first_tone: None,
            decided: None,
            decisions: 0,
            words: None,
            beep: Beep::Unexpected,
            quiet_since: 0,
        }
    }

    /// The call is answered: what was heard before was the network's.
    pub fn answered(&mut self) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        self.origin = self.position;
        self.quiet_since = self.position;
        self.voice = Voice::default();
        self.vad.interrupt();
        self.loudness.restart();
        self.heard.clear();
        self.first_tone = None;
        self.words = None;
        // A number that cannot be called is answered by an announcement at most.
        if self
            .decided
            .is_some_and(|decided| decided.result != Answerer::NotInService)
        {
            self.decided = None;
        }
    }

    /// Samples pushed.
    pub const fn position(&self) -> u64 {
        self.position + self.pending.len() as u64
    }

    /// Whether there is nothing more to find out.
    pub fn is_over(&self) -> bool {
        if !self.answered || matches!(self.beep, Beep::Expected(_)) {
            return false;
        }
        let listened = self.position - self.origin;
        let decided = self.decided.is_some_and(|decided| {
            let final_by_beep = decided.reason == AnswerReason::Beep || self.beep == Beep::Over;
            final_by_beep || self.position - decided.at.max(self.origin) > CORRECTED_WITHIN
        });
        decided || listened > LISTENS || self.decisions >= MOST_DECISIONS
    }

    /// What is understood so far of what is being said, or all of it, tells this.
    pub const fn words(&mut self, meaning: Meaning) {
        self.words = Some(meaning);
    }

    /// Takes sound at [`RATE`], and adds to `findings` what it tells.
    pub fn push(&mut self, mut sound: &[i16], findings: &mut Vec<AnswerFinding>) {
        if !self.pending.is_empty() {
            let missing = (HOP - self.pending.len()).min(sound.len());
            let (part, rest) = sound.split_at(missing);
            self.pending.extend_from_slice(part);
            sound = rest;
            if self.pending.len() < HOP {
                return;
            }
            let mut hop = std::mem::take(&mut self.pending);
            self.hop(&hop, findings);
            hop.clear();
            self.pending = hop;
        }
        let (hops, rest) = sound.as_chunks::<HOP>();
        for hop in hops {
            self.hop(hop, findings);
        }
        self.pending.extend_from_slice(rest);
    }

    fn hop(&mut self, sound: &[i16], findings: &mut Vec<AnswerFinding>) {
        self.position += sound.len() as u64;
        let now = self.position;
        let ended = self.tones.push(sound).filter(|tone| tone.end > self.origin);
        for event in self.vad.push(sound) {
            match event {
                VadEvent::SpeechStart { at } | VadEvent::SpeechResumed { at } => {
                    self.voice.since = at;
                }
                VadEvent::SilenceBegan { at } | VadEvent::SpeechEnd { at } => {
                    self.voice.until = at;
                }
            }
        }
        if let Some(tone) = ended {
            self.first_tone.get_or_insert(tone.start.max(self.origin));
            self.heard.push_back(tone);
            if self.heard.len() > REMEMBERED {
                self.heard.pop_front();
            }
        }
        let tone = self.tones.current().filter(|tone| tone.end > self.origin);
        self.follow_voice(sound, tone.as_ref(), now);
        if let Some(tone) = tone.filter(is_no_voice) {
            self.first_tone.get_or_insert(tone.start.max(self.origin));
            self.quiet_since = now;
        }
        if self.voice.talks {
            self.quiet_since = now;
        }
        if self.is_over() {
            return;
        }
        self.decide(tone.as_ref(), ended.as_ref(), now, findings);
    }

    /// Whether there is speech now: voice activity that is no tone, of somebody near.
    fn follow_voice(&mut self, sound: &[i16], tone: Option<&Tone>, now: u64) {
        let active = self.vad.is_active() && !self.vad.is_pause() && !self.vad.is_onset();
        let tonal = tone.filter(|tone| is_no_voice(tone));
        let last_tone = self.heard.iter().rev().find(|tone| is_no_voice(tone));
        let last_tone = last_tone.map_or(0, |tone| tone.end);
        let behind_tone = now.saturating_sub(last_tone) < AFTER_TONE && last_tone > 0;
        let speaks = active && tonal.is_none() && !behind_tone;
        self.loudness.take(sound, speaks);
        let talks = speaks && self.loudness.is_near();
        let at = if talks {
            let began = if self.voice.first.is_none() || self.voice.since > self.voice.ended {
                self.voice.since
            } else {
                // It was in the background before.
                now
            };
            began.max(last_tone).max(self.origin)
        } else if active {
            tonal.map_or(now.saturating_sub(HELD), |tone| tone.start)
        } else {
            self.voice.until
        };
        self.voice.turn(talks, at);
        // What was taken for the beginning of speech was that of the tone.
        if let Some(tone) = tonal
            && self
                .voice
                .first
                .is_some_and(|first| first + TONAL > tone.start)
        {
            self.voice = Voice {
                until: tone.start,
                ..Voice::default()
            };
        }
        if talks && now.saturating_sub(self.voice.began) > ONSET {
            let level = self.loudness.now();
            self.voice.quietest = self.voice.quietest.min(level);
            self.voice.loudest = self.voice.loudest.max(level);
        }
        // Noise that has begun.
        let waits = self.voice.pause(now) >= MIDDLE_PAUSE;
        let nobody_yet = self
            .decided
            .is_none_or(|decided| decided.result == Answerer::Silence);
        if waits && nobody_yet && !self.voice.varies() {
            self.voice = Voice {
                until: self.voice.until,
                ..Voice::default()
            };
        }
        if talks && nobody_yet {
            self.find_foreground(now);
        }
    }

    /// What was heard before somebody who is much louder was the background.
    fn find_foreground(&mut self, now: u64) {
        let level = self.loudness.level();
        let first = self.voice.first.unwrap_or(now);
        if now.saturating_sub(first) < FIRST_SYLLABLES {
            self.voice.level = self.voice.level.max(level);
        } else if level > self.voice.level + FOREGROUND_DB {
            let at = now.saturating_sub(SYLLABLE);
            self.voice = Voice {
                since: at,
                talks: true,
                first: Some(at),
                began: at,
                level,
                ..Voice::default()
            };
        }
    }

    fn decide(
        &mut self,
        tone: Option<&Tone>,
        ended: Option<&Tone>,
        now: u64,
        findings: &mut Vec<AnswerFinding>,
    ) {
        if self.has_information_tones(tone) {
            self.say(
                Answerer::NotInService,
                AnswerReason::InformationTones,
                97,
                findings,
            );
            return;
        }
        if let Some(meaning) = self.words.take() {
            self.take_words(meaning, findings);
        }
        if !self.answered {
            return;
        }
        if let Some((who, reason, confidence)) = self.of_tones(tone, ended, now) {
            self.say(who, reason, confidence, findings);
        }
        self.look_for_beep(tone, ended, now, findings);
        match self.decided {
            None => {
                if let Some((who, reason, confidence)) = self.of_cadence(now) {
                    self.say(who, reason, confidence, findings);
                }
            }
            Some(decided) => self.correct(decided, now, findings),
        }
        if let Beep::Expected(until) = self.beep
            && now >= until
        {
            self.beep = Beep::Over;
            findings.push(AnswerFinding::Beep {
                heard: false,
                after_ms: self.after(now),
            });
        }
    }

    /// Whether what is decided comes from before the answer: a number that cannot be called. Somebody may answer all the same.
    fn was_before_answer(&self) -> bool {
        let before = |decided: Decided| decided.at <= self.origin;
        self.answered && self.decided.is_some_and(before)
    }

    /// What words tell counts more than how they are said.
    fn take_words(&mut self, meaning: Meaning, findings: &mut Vec<AnswerFinding>) {
        let who = meaning.who;
        // What was said before the answer was the network's.
        let before = self.decided.filter(|_| !self.was_before_answer());
        let before = before.map(|decided| (decided.result, decided.reason));
        if meaning.is_ambiguous && before.is_some_and(|(result, _)| result == Answerer::Person) {
            return;
        }
        let by_sound = |reason| {
            matches!(
                reason,
                AnswerReason::ShortGreeting
                    | AnswerReason::LongGreeting
                    | AnswerReason::Waits
                    | AnswerReason::NoSound
            )
        };
        let (takes, confidence) = match (who, before) {
            // An announcement before the answer.
            (Answerer::NotInService | Answerer::Screening, Some((Answerer::Person, reason))) => {
                (self.answered && by_sound(reason), 93)
            }
            (Answerer::NotInService, _) => (true, 93),
            _ if !self.answered => (false, 0),
            (Answerer::Screening, Some((Answerer::NotInService, _))) => (false, 0),
            (Answerer::Screening, _) => (true, 93),
            (Answerer::Machine, None | Some((Answerer::Machine, AnswerReason::LongGreeting))) => {
                (true, 96)
            }
            (Answerer::Machine, Some((_, reason))) => (by_sound(reason), 96),
            (Answerer::Person, None) => (true, 85),
            (Answerer::Person, Some((_, reason))) => (by_sound(reason), 85),
            _ => (false, 0),
        };
        if takes {
            self.say(who, AnswerReason::Words, confidence, findings);
        }
    }

    /// What tones tell.
    fn of_tones(
        &self,
        tone: Option<&Tone>,
        ended: Option<&Tone>,
        now: u64,
    ) -> Option<(Answerer, AnswerReason, u8)> {
        if self.decided.is_some_and(|decided| {
            !matches!(
                decided.result,
                Answerer::Silence | Answerer::Machine | Answerer::Person
            )
        }) {
            return None;
        }
        if let Some(tone) = tone
            && tone.is_at(FAX_ANSWER_HZ, FAX_ANSWER_OFF_HZ)
            && tone.ms() >= FAX_ANSWER_MS
        {
            return Some((Answerer::Fax, AnswerReason::FaxTone, 95));
        }
        if self.voice.talked(now) >= SPEECH_BEFORE_BEEP {
            // Whoever has spoken is no network.
            return None;
        }
        if let Some(last) = self.heard.back()
            && last.is_at(FAX_CALLING_HZ, FAX_CALLING_OFF_HZ)
            && (FAX_CALLING_MS.0..=FAX_CALLING_MS.1).contains(&last.ms())
            && now.saturating_sub(last.end) >= FAX_CALLING_PAUSE
            && tone.is_none()
        {
            return Some((Answerer::Fax, AnswerReason::FaxTone, 88));
        }
        let mut last = self.heard.iter().rev();
        if ended.is_some()
            && let (Some(second), Some(first)) = (last.next(), last.next())
            && let Some(reason) = networks::refusal(self.wanted.network, first, second)
        {
            return Some((Answerer::Busy, reason, 93));
        }
        let unobtainable = self.wanted.network?.unobtainable?;
        let continues = tone.filter(|tone| tone.ms() >= CONTINUOUS_MS)?;
        unobtainable.sounds_like(continues).then_some((
            Answerer::NotInService,
            AnswerReason::UnobtainableTone,
            90,
        ))
    }

    /// Whether the three information tones were heard, the last one long enough.
    fn has_information_tones(&self, tone: Option<&Tone>) -> bool {
        if self
            .decided
            .is_some_and(|decided| decided.result == Answerer::NotInService)
        {
            return false;
        }
        let Some(last) = tone.or_else(|| self.heard.back()) else {
            return false;
        };
        let mut before = self.heard.iter().rev();
        if tone.is_none() {
            before.next();
        }
        let (Some(second), Some(first)) = (before.next(), before.next()) else {
            return false;
        };
        let [low, middle, high] = INFORMATION_HZ;
        let length = SHORTEST_INFORMATION_MS..=LONGEST_INFORMATION_MS;
        first.is_at(low, INFORMATION_OFF_HZ)
            && second.is_at(middle, INFORMATION_OFF_HZ)
            && last.is_at(high, INFORMATION_OFF_HZ)
            && length.contains(&first.ms())
            && length.contains(&second.ms())
            && last.ms() >= LAST_INFORMATION_MS
            && second.start.saturating_sub(first.end) <= INFORMATION_PAUSE
            && last.start.saturating_sub(second.end) <= INFORMATION_PAUSE
    }

    fn look_for_beep(
        &mut self,
        tone: Option<&Tone>,
        ended: Option<&Tone>,
        now: u64,
        findings: &mut Vec<AnswerFinding>,
    ) {
        let lasting = tone.filter(|tone| tone.ms() >= LONGEST_BEEP_MS);
        let Some(tone) = ended.or(lasting).filter(|tone| is_beep(tone)) else {
            return;
        };
        let result = self.decided.filter(|_| !self.was_before_answer());
        // Somebody who has said what people say may have a device that beeps.
        if result.is_some_and(|decided| {
            decided.result == Answerer::Person && decided.reason == AnswerReason::Words
        }) {
            return;
        }
        let result = result.map(|decided| decided.result);
        let least = if networks::is_progress(tone) {
            SPEECH_BEFORE_LOW_BEEP
        } else {
            SPEECH_BEFORE_BEEP
        };
        let follows_speech = self.voice.first.is_some_and(|first| first < tone.start)
            && self.voice.talked(now) >= least;
        match result {
            Some(Answerer::Machine | Answerer::Screening) => {}
            None | Some(Answerer::Person) if follows_speech => {
                self.say(Answerer::Machine, AnswerReason::Beep, 92, findings);
            }
            // A machine without a greeting; a fax would wait longer.
            None | Some(Answerer::Silence)
                if !networks::is_progress(tone)
                    && !tone.is_at(FAX_CALLING_HZ, FAX_CALLING_OFF_HZ)
                    && !tone.is_at(FAX_ANSWER_HZ, FAX_ANSWER_OFF_HZ)
                    && !INFORMATION_HZ
                        .iter()
                        .any(|hz| tone.is_at(*hz, INFORMATION_OFF_HZ)) =>
            {
                self.say(Answerer::Machine, AnswerReason::Beep, 75, findings);
            }
            _ => return,
        }
        if let Beep::Expected(_) = self.beep {
            self.beep = Beep::Over;
            findings.push(AnswerFinding::Beep {
                heard: true,
                after_ms: self.after(now),
            });
        }
    }

    /// What is known by how it is said.
    fn of_cadence(&self, now: u64) -> Option<(Answerer, AnswerReason, u8)> {
        let Some(first) = self.voice.first else {
            let rings = self.heard.back().is_some_and(networks::is_progress);
            let longest = if rings {
                SILENCE_AFTER_RINGING
            } else {
                SILENCE
            };
            let silent = now.saturating_sub(self.quiet_since) >= longest;
            return silent.then_some((Answerer::Silence, AnswerReason::NoSound, 90));
        };
        let (length, pause) = (self.voice.length(now), self.voice.pause(now));
        if length <= SHORT_GREETING && pause >= SHORT_PAUSE {
            return Some((Answerer::Person, AnswerReason::ShortGreeting, 90));
        }
        if length <= MIDDLE_GREETING && pause >= MIDDLE_PAUSE && length > SHORT_GREETING {
            return Some((Answerer::Person, AnswerReason::ShortGreeting, 75));
        }
        if now.saturating_sub(first) < DECIDE_WITHIN {
            return None;
        }
        if self.voice.talked(now) >= TALKS && pause < LAST_PAUSE {
            Some((Answerer::Machine, AnswerReason::LongGreeting, 80))
        } else {
            Some((Answerer::Person, AnswerReason::ShortGreeting, 60))
        }
    }

    /// What is heard later.
    fn correct(&mut self, decided: Decided, now: u64, findings: &mut Vec<AnswerFinding>) {
        match (decided.result, decided.reason) {
            (Answerer::Silence, _) if self.voice.first.is_some() => {
                if let Some((who, reason, confidence)) = self.of_cadence(now) {
                    self.say(who, reason, confidence, findings);
                }
            }
            (Answerer::Machine, AnswerReason::LongGreeting)
                if self.voice.pause(now) >= WAITS && self.voice.length(now) <= WHOLE_GREETING =>
            {
                self.say(Answerer::Person, AnswerReason::Waits, 60, findings);
            }
            _ => {}
        }
    }

    /// Milliseconds from the answer to a position; before the answer, from the first tone.
    fn after(&self, now: u64) -> u32 {
        let from = if self.answered {
            self.origin
        } else {
            self.first_tone.unwrap_or(now)
        };
        millis(now.saturating_sub(from))
    }

    fn say(
        &mut self,
        result: Answerer,
        reason: AnswerReason,
        confidence: u8,
        findings: &mut Vec<AnswerFinding>,
    ) {
        let now = self.position;
        if self.decisions >= MOST_DECISIONS {
            return;
        }
        let before = self.decided.map(|decided| decided.result);
        // What is only surer now may not be corrected for longer.
        let at = match self.decided {
            Some(decided) if decided.result == result => decided.at,
            _ => now,
        };
        self.decided = Some(Decided { result, reason, at });
        // What is only surer now was said before.
        if before != Some(result) {
            self.decisions += 1;
            let first = [self.voice.first, self.first_tone]
                .into_iter()
                .flatten()
                .min();
            findings.push(AnswerFinding::Classified(Classification {
                result,
                confidence,
                reason,
                after_ms: self.after(now),
                sound_ms: first.map_or(0, |first| millis(now.saturating_sub(first))),
            }));
        }
        let is_machine = matches!(result, Answerer::Machine | Answerer::Screening);
        self.beep = match (self.beep, self.wanted.beep_within) {
            (Beep::Unexpected, Some(within)) if is_machine => {
                Beep::Expected(now + RATE.frames_in(within) as u64)
            }
            // It was a person.
            (Beep::Expected(_), _) if !is_machine => Beep::Unexpected,
            (beep, _) => beep,
        };
    }
}

/// Whether a tone is none of somebody's voice.
fn is_no_voice(tone: &Tone) -> bool {
    let wavers = (tone.low_hz * TONAL_WAVERS).max(10.0);
    tone.end - tone.start >= TONAL
        && tone.purity >= TONAL_PURITY
        && (tone.spread_hz <= wavers || networks::is_progress(tone) && tone.spread_hz <= 50.0)
}

/// Whether a tone may be the beep of a machine.
fn is_beep(tone: &Tone) -> bool {
    tone.high_hz.is_none()
        && (LOWEST_BEEP_HZ..=HIGHEST_BEEP_HZ).contains(&tone.low_hz)
        && tone.ms() >= SHORTEST_BEEP_MS
        && tone.spread_hz <= (tone.low_hz * BEEP_WAVERS).max(8.0)
        && tone.purity >= BEEP_PURITY
}

fn millis(samples: u64) -> u32 {
    u32::try_from(samples / MS).unwrap_or(u32::MAX)
}
