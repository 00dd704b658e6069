//! Packet loss concealment for sound whose codec has none of its own: the last pitch period is repeated and faded out (after
//! ITU-T G.711 appendix I, simplified). The caller detects the losses.

use std::ops::RangeInclusive;

/// The rate at which the pitch is looked for at first.
const ROUGH_HZ: usize = 8_000;
/// As fractions of a second: the history that is kept, …
const REMEMBERED: usize = 25;
/// … the shortest and the longest pitch period (400 and 66 Hz), …
const SHORTEST: usize = 400;
const LONGEST: usize = 66;
/// … the window that is correlated, …
const COMPARED: usize = 100;
/// … and the cross-fade back into received audio.
const JOINT: usize = 250;
/// In milliseconds: when concealment begins to fade out, and when it is silent.
const FADE_FROM_MS: usize = 20;
const FADE_TO_MS: usize = 80;

/// Keeps a short history of the audio and continues it where packets are lost.
#[derive(Debug)]
pub struct Concealment {
    rate_hz: usize,
    past: Vec<i16>,
    /// Samples concealed since the last received one, and the period they repeat.
    made_up: usize,
    /// Whether the next audio does not continue the last received one.
    broken_off: bool,
    period: usize,
}

impl Concealment {
    /// For mono audio at this rate.
    pub fn new(rate_hz: u32) -> Self {
        let rate_hz = rate_hz as usize;
        Self {
            rate_hz,
            past: Vec::with_capacity(2 * rate_hz / REMEMBERED),
            made_up: 0,
            broken_off: false,
            period: rate_hz / LONGEST,
        }
    }

    /// Takes received audio. After a loss or a break, its beginning is cross-faded with the concealment.
    pub fn heard(&mut self, sound: &mut [i16]) {
        if std::mem::take(&mut self.broken_off) || self.made_up > 0 {
            let length = (self.rate_hz / JOINT).min(sound.len());
            for n in 0..length {
                let share = n as f32 / length as f32;
                let made_up = f32::from(self.continued(self.made_up + n)) * (1.0 - share);
                if let Some(sample) = sound.get_mut(n) {
                    *sample = (f32::from(*sample) * share + made_up) as i16;
                }
            }
            self.made_up = 0;
        }
        let keep = self.rate_hz / REMEMBERED;
        let tail = sound.len().saturating_sub(keep);
        self.past.extend(sound.get(tail..).unwrap_or_default());
        self.past.drain(..self.past.len().saturating_sub(keep));
    }

    /// Appends `length` concealed samples.
    pub fn conceal(&mut self, length: usize, sound: &mut Vec<i16>) {
        if self.made_up == 0 {
            self.period = self.find_period();
        }
        for n in self.made_up..self.made_up + length {
            sound.push(self.continued(n));
        }
        self.made_up += length;
    }

    /// The next audio does not continue what was received, although nothing was lost.
    pub fn break_off(&mut self) {
        if self.made_up == 0 {
            self.period = self.find_period();
        }
        self.broken_off = true;
    }

    /// Whether what is concealed next is more than silence.
    pub const fn is_audible(&self) -> bool {
        self.made_up < FADE_TO_MS * self.rate_hz / 1_000
    }

    /// Clears the history: the next audio is unrelated.
    pub fn forget(&mut self) {
        self.past.clear();
        self.made_up = 0;
        self.broken_off = false;
    }

    /// The `n`th sample after the last received one.
    fn continued(&self, n: usize) -> i16 {
        let fade_from = FADE_FROM_MS * self.rate_hz / 1_000;
        let fade_to = FADE_TO_MS * self.rate_hz / 1_000;
        let start = self.past.len().saturating_sub(self.period);
        let sample = self.past.get(start + n % self.period.max(1)).copied();
        let left = fade_to.saturating_sub(n.max(fade_from)) as f32;
        (f32::from(sample.unwrap_or(0)) * left / (fade_to - fade_from) as f32) as i16
    }

    /// The pitch period, by normalised correlation: at higher rates roughly at first, and then exactly near the best.
    fn find_period(&self) -> usize {
        let (shortest, longest) = (self.rate_hz / SHORTEST, self.rate_hz / LONGEST);
        let step = (self.rate_hz / ROUGH_HZ).max(1);
        if step == 1 {
            return self
                .best(&self.past, 1, shortest..=longest)
                .unwrap_or(longest);
        }
        let means: Vec<i16> = self
            .past
            .rchunks_exact(step)
            .rev()
            .map(|part| {
                (part.iter().map(|sample| i32::from(*sample)).sum::<i32>() / step as i32) as i16
            })
            .collect();
        let rough = self.best(&means, step, shortest / step..=longest / step);
        rough.map_or(longest, |rough| {
            let near = rough * step;
            let (from, to) = (
                near.saturating_sub(step).max(shortest),
                (near + step).min(longest),
            );
            self.best(&self.past, 1, from..=to).unwrap_or(near)
        })
    }

    /// The period within this range after which the last of this audio, of which each sample stands for `step`, is most like
    /// itself.
    fn best(&self, past: &[i16], step: usize, periods: RangeInclusive<usize>) -> Option<usize> {
        let compared = self.rate_hz / COMPARED / step;
        let start = past.len().checked_sub(compared)?;
        let end = past.get(start..).unwrap_or_default();
        let alike = |period: usize| {
            let before = past.get(start.checked_sub(period)?..)?.get(..compared)?;
            let (mut product, mut energy) = (0.0_f32, 1.0_f32);
            for (a, b) in end.iter().zip(before) {
                product += f32::from(*a) * f32::from(*b);
                energy += f32::from(*b) * f32::from(*b);
            }
            Some((period, product / energy.sqrt()))
        };
        let best = periods.filter_map(alike).max_by(|a, b| a.1.total_cmp(&b.1));
        best.map(|(period, _)| period)
    }
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;

    use super::*;

    fn tone(hz: f32, range: std::ops::Range<usize>) -> Vec<i16> {
        let sample = |n| (8_000.0 * (TAU * hz * n as f32 / 8_000.0).sin()) as i16;
        range.map(sample).collect()
    }

    fn energy(sound: &[i16]) -> f32 {
        sound.iter().map(|s| f32::from(*s).powi(2)).sum::<f32>() / sound.len() as f32
    }

    #[test]
    fn the_period_is_found_at_any_rate() {
        for rate in [8_000, 16_000, 48_000] {
            for hz in [75.0, 100.0, 150.0, 237.0, 390.0] {
                let mut concealment = Concealment::new(rate);
                let sample = |n: u32| {
                    let phase = TAU * hz * n as f32 / rate as f32;
                    (6_000.0 * phase.sin() + 3_000.0 * (2.0 * phase).sin()) as i16
                };
                concealment.heard(&mut (0..rate / 10).map(sample).collect::<Vec<_>>());
                let period = concealment.find_period() as f32;
                // Or of several periods.
                let periods = (period * hz / rate as f32).round();
                let error = (period - periods * rate as f32 / hz).abs();
                assert!(periods >= 1.0 && error <= 1.0, "{rate}, {hz}: {period}");
            }
        }
    }

    #[test]
    fn a_lost_packet_is_continued_without_a_break() {
        for hz in [100.0, 150.0, 237.0, 390.0] {
            let mut concealment = Concealment::new(8_000);
            concealment.heard(&mut tone(hz, 0..800));
            let mut sound = Vec::new();
            concealment.conceal(160, &mut sound);
            let mut after = tone(hz, 960..1_120);
            concealment.heard(&mut after);
            let whole = [tone(hz, 0..800), sound, after].concat();
            let steepest = whole.windows(2).map(|w| (w[0] - w[1]).abs()).max().unwrap();
            // The tone itself has no steeper slope.
            let slope = TAU * hz / 8_000.0 * 8_000.0;
            assert!(
                f32::from(steepest) < 1.8 * slope,
                "{hz}: {steepest}, {slope}"
            );
            let error: Vec<i16> = whole[800..960]
                .iter()
                .zip(tone(hz, 800..960))
                .map(|(a, b)| a - b)
                .collect();
            assert!(energy(&error) < 0.2 * energy(&whole[800..960]), "{hz}");
        }
    }

    #[test]
    fn what_is_made_up_fades_away_and_comes_back() {
        let mut concealment = Concealment::new(8_000);
        concealment.heard(&mut tone(200.0, 0..800));
        let mut sound = Vec::new();
        for _ in 0..6 {
            concealment.conceal(160, &mut sound);
        }
        assert!(energy(&sound[160..320]) < energy(&sound[..160]));
        assert!(sound[640..].iter().all(|sample| *sample == 0));
        let mut after = tone(200.0, 960..1_120);
        concealment.heard(&mut after);
        assert!(energy(&after[80..]) > 1e6);
    }

    #[test]
    fn before_anything_was_heard_there_is_silence() {
        let mut concealment = Concealment::new(16_000);
        let mut sound = Vec::new();
        concealment.conceal(320, &mut sound);
        assert_eq!(sound, [0; 320]);
        concealment.heard(&mut [5; 3]);
        concealment.conceal(320, &mut sound);
        assert_eq!(sound.len(), 640);
    }
}
