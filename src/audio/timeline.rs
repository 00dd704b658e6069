//! Both sides of a conversation on one sample clock: what was heard and what was played become blocks of 20 ms, silence
//! where nothing was. A pure struct; times are given by the caller, counted from the beginning.
//!
//! Heard sound is placed by counting its samples, never by when it came: a chunk follows the one before unless
//! everything that comes within [`HOLD`] behind it is late as well. Then there was silence or a loss between them.
//! Played sound comes with the time at which the listener hears it. What is early is worked off by leaving out quiet
//! chunks; a sender that is faster than time itself pushes the clock on, so that nothing that was said is lost.

use std::collections::VecDeque;
use std::time::Duration;

use super::format::{Channels, Layout, SampleRate};
use super::opus::FRAME;
use super::pcm::Pcm;
use super::resample::Resampler;

/// How long heard sound is looked at before it is placed.
const HOLD: Duration = Duration::from_millis(200);
/// How far behind the clock blocks are given out: later sound has lost its place. More than [`HOLD`] and the lead of a
/// paced output, whose cut parts were never heard.
const LAG: Duration = Duration::from_millis(400);
/// How late heard sound must be for silence before it: where it is quiet, and where that would be heard.
const LATE: Duration = Duration::from_millis(15);
const LATE_IN_SPEECH: Duration = Duration::from_millis(60);
/// How early it must be for something quiet to be left out.
const EARLY: Duration = Duration::from_millis(5);
/// Heard sound that is ahead by so much pushes the clock on; less is worked off.
const SURPLUS: Duration = Duration::from_secs(2);
/// Played sound that is ahead by so much pushes the clock on.
const AHEAD: Duration = Duration::from_secs(5);
/// Sound of one side that waits to be given out.
const MAX_READY: Duration = Duration::from_secs(30);
/// What is not louder than this (−36 dB of full scale) is quiet.
const QUIET: u16 = 520;

/// The clock and what lies on it.
#[derive(Debug)]
pub struct Timeline {
    layout: Layout,
    /// Frames by which the clock runs before time.
    pushed: u64,
    /// Frames that were given out.
    given: u64,
    heard: Side,
    played: Side,
    /// Heard sound that is not placed yet.
    waiting: VecDeque<Waiting>,
    waiting_frames: usize,
    dropped: u64,
}

/// Sound that is placed: it begins where what was given out ends.
#[derive(Debug, Default)]
struct Side {
    ready: VecDeque<i16>,
    resampler: Option<Resampler>,
}

#[derive(Debug)]
struct Waiting {
    samples: Vec<i16>,
    at: Duration,
    /// Where it would begin if its last sample had been heard when it came.
    start: i64,
}

impl Timeline {
    /// An empty one that gives out blocks of `layout`: in stereo what was heard is left and what was played right, in
    /// mono both are mixed.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            pushed: 0,
            given: 0,
            heard: Side::default(),
            played: Side::default(),
            waiting: VecDeque::new(),
            waiting_frames: 0,
            dropped: 0,
        }
    }

    /// Rate and channels of the blocks.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Frames that were given out.
    pub const fn frames(&self) -> u64 {
        self.given
    }

    /// How much sound was dropped because more came than was taken.
    pub fn dropped(&self) -> Duration {
        let frames = usize::try_from(self.dropped).unwrap_or(usize::MAX);
        self.layout.rate.duration_of(frames)
    }

    /// Where on the clock a moment is.
    pub fn position(&self, at: Duration) -> Duration {
        at + self.layout.rate.duration_of(self.pushed as usize)
    }

    /// Sound that was heard and has come at `at`.
    pub fn hear(&mut self, sound: &Pcm, at: Duration) {
        let mut samples = Vec::new();
        self.heard.bring(sound, self.layout.rate, &mut samples);
        if samples.is_empty() {
            return;
        }
        let start = self.clock(at) as i64 - samples.len() as i64;
        self.waiting_frames += samples.len();
        self.waiting.push_back(Waiting { samples, at, start });
        self.place(at);
    }

    /// Sound that leaves at `at` for a listener who has `unplayed` to hear before it.
    pub fn play(&mut self, sound: &Pcm, at: Duration, unplayed: Duration) {
        let mut samples = Vec::new();
        self.played.bring(sound, self.layout.rate, &mut samples);
        let clock = self.clock(at);
        let next = self.given + self.played.ready.len() as u64;
        // What follows other sound follows it whatever the clock does.
        if unplayed.is_zero() {
            let silence = clock.saturating_sub(next);
            self.played.silence(silence, self.max_ready());
        }
        self.dropped += self.played.add(&samples, self.max_ready());
        let next = self.given + self.played.ready.len() as u64;
        let ahead = next.saturating_sub(clock + self.frames_in(AHEAD));
        self.push_clock(ahead);
    }

    /// The last of what was played will not be heard.
    pub fn cut(&mut self, unheard: Duration) {
        let frames = self.layout.rate.frames_in(unheard);
        let kept = self.played.ready.len().saturating_sub(frames);
        self.played.ready.truncate(kept);
    }

    /// Appends the next block, if its time has come.
    pub fn take(&mut self, now: Duration, block: &mut Vec<i16>) -> bool {
        self.place(now);
        let frames = self.layout.rate.frames_in(FRAME);
        let horizon = self.clock(now).saturating_sub(self.frames_in(LAG));
        let due = self.given + frames as u64 <= horizon;
        if due {
            self.give(frames, block);
        }
        due
    }

    /// Appends what is left when everything ends at `end`, filled up with silence to whole blocks, and returns the
    /// frames that there were in all. What the listener would have heard after that is left out, what was heard is not.
    pub fn finish(mut self, end: Duration, blocks: &mut Vec<i16>) -> u64 {
        self.place(end + HOLD);
        let clock = self.clock(end);
        let total = clock.max(self.given + self.heard.ready.len() as u64);
        let frames = self.layout.rate.frames_in(FRAME);
        while self.given < total {
            self.give(frames, blocks);
        }
        total
    }

    fn clock(&self, at: Duration) -> u64 {
        self.frames_in(at) + self.pushed
    }

    fn frames_in(&self, time: Duration) -> u64 {
        self.layout.rate.frames_in(time) as u64
    }

    fn max_ready(&self) -> usize {
        self.layout.rate.frames_in(MAX_READY)
    }

    fn push_clock(&mut self, frames: u64) {
        self.pushed += frames;
        for waiting in &mut self.waiting {
            waiting.start += frames as i64;
        }
    }

    /// Places what has waited long enough.
    fn place(&mut self, now: Duration) {
        let [late_when_quiet, late_in_speech, early] =
            [LATE, LATE_IN_SPEECH, EARLY].map(|time| self.frames_in(time) as i64);
        let surplus = self.frames_in(SURPLUS) as i64;
        while let Some(first) = self.waiting.front()
            && (first.at + HOLD <= now || self.waiting_frames as i64 > surplus)
        {
            let mut late = self.lateness();
            if late <= -surplus {
                self.push_clock(late.unsigned_abs());
                late = 0;
            }
            let Some(Waiting { samples, .. }) = self.waiting.pop_front() else {
                return;
            };
            self.waiting_frames -= samples.len();
            let quiet = is_quiet(&samples);
            let too_late = if quiet {
                late_when_quiet
            } else {
                late_in_speech
            };
            if late >= too_late {
                self.heard.silence(late as u64, self.max_ready());
            }
            let left_out = if quiet && late <= -early {
                usize::try_from(late.unsigned_abs())
                    .map_or(samples.len(), |early| early.min(samples.len()))
            } else {
                0
            };
            let samples = samples.get(left_out..).unwrap_or_default();
            self.dropped += self.heard.add(samples, self.max_ready());
        }
    }

    /// How late the sound that waits is at least, in frames; negative when it is early.
    fn lateness(&self) -> i64 {
        let mut next = (self.given + self.heard.ready.len() as u64) as i64;
        let mut least = i64::MAX;
        for waiting in &self.waiting {
            least = least.min(waiting.start - next);
            next += waiting.samples.len() as i64;
        }
        least
    }

    fn give(&mut self, frames: usize, block: &mut Vec<i16>) {
        for _ in 0..frames {
            let left = self.heard.ready.pop_front().unwrap_or(0);
            let right = self.played.ready.pop_front().unwrap_or(0);
            match self.layout.channels {
                Channels::Stereo => block.extend([left, right]),
                Channels::Mono => block.push(left.saturating_add(right)),
            }
        }
        self.given += frames as u64;
    }
}

impl Side {
    /// Brings sound to one channel of this rate.
    fn bring(&mut self, sound: &Pcm, rate: SampleRate, samples: &mut Vec<i16>) {
        let mono;
        let sound = match sound.layout().channels {
            Channels::Mono => sound,
            Channels::Stereo => {
                mono = sound.clone().into_mono();
                &mono
            }
        };
        if sound.rate() == rate {
            samples.extend_from_slice(sound.samples());
            return;
        }
        let known = self.resampler.take();
        let known = known.filter(|resampler| resampler.input_layout() == sound.layout());
        let new = || Resampler::new(sound.layout(), rate);
        let resampler = self.resampler.insert(known.unwrap_or_else(new));
        resampler.push(sound.samples(), samples);
    }

    fn silence(&mut self, frames: u64, limit: usize) {
        let len = self.ready.len();
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        self.ready
            .resize(len.saturating_add(frames).min(len.max(limit)), 0);
    }

    /// Returns how many samples found no place.
    fn add(&mut self, samples: &[i16], limit: usize) -> u64 {
        let room = limit.saturating_sub(self.ready.len()).min(samples.len());
        self.ready.extend(&samples[..room]);
        (samples.len() - room) as u64
    }
}

fn is_quiet(samples: &[i16]) -> bool {
    samples.iter().all(|sample| sample.unsigned_abs() <= QUIET)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: SampleRate = SampleRate::HZ_16000;
    const MS: usize = 16;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn stereo() -> Timeline {
        Timeline::new(Layout::new(RATE, Channels::Stereo))
    }

    fn loud(frames: usize) -> Pcm {
        Pcm::new(Layout::mono(RATE), vec![10_000; frames])
    }

    /// The edges, in milliseconds, at which a side becomes loud.
    fn onsets(blocks: &[i16], side: usize) -> Vec<usize> {
        let loud: Vec<_> = blocks
            .iter()
            .skip(side)
            .step_by(2)
            .map(|s| *s > 5_000)
            .collect();
        let mut before = false;
        let mut onsets = Vec::new();
        for (frame, now) in loud.into_iter().enumerate() {
            if now && !before {
                onsets.push(frame / MS);
            }
            before = now;
        }
        onsets
    }

    /// A sender with 100 ms of tone each second, in chunks of 20 ms. `fate` says when a chunk comes, in milliseconds
    /// after it was said, or that it never does. What is played is the same tone, half a second later.
    fn converse(seconds: u64, mut fate: impl FnMut(u64) -> Option<u64>) -> (Vec<i16>, u64) {
        let mut timeline = stereo();
        let mut arrivals: Vec<(u64, bool, u64)> = Vec::new();
        for chunk in 0..seconds * 50 {
            if let Some(delay) = fate(chunk) {
                arrivals.push(((chunk + 1) * 20 + delay, chunk % 50 < 5, chunk));
            }
        }
        // A stream: nothing overtakes.
        let mut latest = 0;
        for arrival in &mut arrivals {
            latest = latest.max(arrival.0);
            arrival.0 = latest;
        }
        let mut arrivals = arrivals.into_iter().peekable();
        let mut blocks = Vec::new();
        for now in 0..seconds * 1_000 {
            while let Some((_, tone, _)) = arrivals.next_if(|(at, ..)| *at <= now) {
                let level = if tone { 10_000 } else { 20 };
                let sound = Pcm::new(Layout::mono(RATE), vec![level; 20 * MS]);
                timeline.hear(&sound, ms(now));
            }
            if now % 1_000 == 500 {
                for chunk in 0..5 {
                    timeline.play(&loud(20 * MS), ms(now), ms(chunk * 20));
                }
            }
            if now % 100 == 0 {
                while timeline.take(ms(now), &mut blocks) {}
            }
        }
        let total = timeline.finish(ms(seconds * 1_000), &mut blocks);
        (blocks, total)
    }

    fn in_step(blocks: &[i16], seconds: u64, heard: impl Fn(u64) -> bool) {
        let expected: Vec<_> = (0..seconds)
            .filter(|n| heard(*n))
            .map(|n| n * 1_000)
            .collect();
        let found = onsets(blocks, 0);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (*found as u64).abs_diff(expected) <= 20,
                "{found} instead of {expected}"
            );
        }
        let played: Vec<_> = (0..seconds).map(|n| (n * 1_000 + 500) as usize).collect();
        let found = onsets(blocks, 1);
        assert_eq!(found.len(), played.len());
        for (found, expected) in found.iter().zip(played) {
            assert!(
                found.abs_diff(expected) <= 1,
                "{found} instead of {expected}"
            );
        }
    }

    #[test]
    fn sound_that_comes_as_it_is_said_is_where_it_was_said() {
        let (blocks, total) = converse(10, |_| Some(0));
        in_step(&blocks, 10, |_| true);
        assert_eq!(total, 10 * 16_000);
        assert_eq!(blocks.len(), 2 * 10 * 16_000);
    }

    #[test]
    fn ten_minutes_of_jitter_loss_and_pauses_stay_in_step() {
        let mut random = fastrand::Rng::with_seed(7);
        // Every minute a pause of 3.5 s and a stall of 350 ms behind which everything comes at once.
        let pauses = |chunk: u64| (chunk % 3_000) >= 1_000 && (chunk % 3_000) < 1_175;
        let (blocks, _) = converse(600, |chunk| {
            let jitter = random.u64(..40);
            let lost = chunk % 50 >= 6 && random.u32(..200) == 0;
            let stalled = (2_010..2_027).contains(&(chunk % 3_000));
            let stall = if stalled {
                (2_027 - chunk % 3_000) * 20
            } else {
                0
            };
            (!lost && !pauses(chunk)).then_some(jitter.max(stall))
        });
        in_step(&blocks, 600, |second| !pauses(second * 50));
    }

    #[test]
    fn sound_that_is_cut_was_not_heard() {
        let mut timeline = stereo();
        for chunk in 0..10 {
            timeline.play(&loud(20 * MS), ms(1_000), ms(chunk * 20));
        }
        // 50 ms later everything that was not heard yet is cut.
        timeline.cut(ms(150));
        let mut blocks = Vec::new();
        timeline.finish(ms(2_000), &mut blocks);
        let loud = blocks.iter().skip(1).step_by(2).filter(|s| **s > 0).count();
        assert_eq!(loud, 50 * MS);
        assert_eq!(onsets(&blocks, 1), [1_000]);
    }

    #[test]
    fn a_sender_faster_than_time_loses_nothing() {
        let mut timeline = stereo();
        let mut blocks = Vec::new();
        for chunk in 0..3_000_u64 {
            timeline.hear(&loud(20 * MS), ms(chunk / 100));
            while timeline.take(ms(chunk / 100), &mut blocks) {}
        }
        timeline.finish(ms(30), &mut blocks);
        let loud = blocks.iter().step_by(2).filter(|s| **s > 0).count();
        assert_eq!(loud, 3_000 * 20 * MS);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut timeline = stereo();
        for chunk in 0..10_000_u64 {
            timeline.hear(&loud(20 * MS), Duration::ZERO);
            timeline.play(&loud(20 * MS), Duration::ZERO, ms(chunk * 20));
        }
        let waits = timeline.heard.ready.len().max(timeline.played.ready.len());
        assert!(waits <= timeline.max_ready());
        assert!(timeline.dropped() > ms(1));
    }

    #[test]
    fn both_sides_are_mixed_in_mono() {
        let mut timeline = Timeline::new(Layout::mono(RATE));
        timeline.hear(&loud(20 * MS), ms(20));
        timeline.play(
            &Pcm::new(Layout::mono(RATE), vec![30_000; 20 * MS]),
            ms(0),
            ms(0),
        );
        let mut blocks = Vec::new();
        assert_eq!(timeline.finish(ms(20), &mut blocks), 20 * MS as u64);
        assert!(blocks.iter().all(|sample| *sample == i16::MAX));
    }
}
