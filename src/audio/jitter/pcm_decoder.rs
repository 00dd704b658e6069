//! Samples need no decoder. What is lost of them is concealed at their own rate, and they are converted where that is not the
//! listener's.

use std::collections::VecDeque;

use super::super::bandwidth::{Bandwidth, Samples};
use super::super::concealment::Concealment;
use super::super::resample::EvenResampler;

/// Frames that concealment goes by: 40 ms.
const PAST: usize = 2;

/// Takes the frames of one publisher. See the module.
#[derive(Debug)]
pub(super) struct PcmDecoder {
    from: Bandwidth,
    past: VecDeque<Samples>,
    /// From a loss or a break until the next packet.
    concealment: Option<Concealment>,
    converter: Option<Converter>,
}

impl PcmDecoder {
    pub(super) fn new(from: Bandwidth, to: Bandwidth) -> Self {
        Self {
            from,
            past: VecDeque::with_capacity(PAST),
            concealment: None,
            converter: (from != to).then(|| Converter::new(from, to)),
        }
    }

    /// Whether it is for frames like this.
    pub(super) fn takes(&self, samples: &Samples) -> bool {
        self.from == samples.bandwidth()
    }

    /// Appends a frame.
    pub(super) fn decode(&mut self, samples: &Samples, sound: &mut Vec<i16>) {
        match &mut self.converter {
            None => {
                let start = sound.len();
                sound.extend_from_slice(samples);
                if let Some(mut concealment) = self.concealment.take() {
                    concealment.heard(sound.get_mut(start..).unwrap_or_default());
                }
            }
            Some(converter) => match self.concealment.take() {
                None => converter.convert(samples, converter.to.frame(), sound),
                Some(mut concealment) => {
                    let mut frame = samples.to_vec();
                    concealment.heard(&mut frame);
                    converter.convert(&frame, converter.to.frame(), sound);
                }
            },
        }
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back(samples.clone());
    }

    /// Appends `ticks` of concealment, whole samples of the listener's.
    pub(super) fn conceal(&mut self, ticks: usize, sound: &mut Vec<i16>) {
        let concealment = continued(&mut self.concealment, self.from, &self.past);
        match &mut self.converter {
            None => concealment.conceal(ticks / self.from.ticks(), sound),
            Some(converter) => {
                let needed = ticks.saturating_sub(converter.ahead);
                let length = needed.div_ceil(self.from.ticks());
                converter.ahead = converter.ahead + length * self.from.ticks() - ticks;
                let mut made_up = Vec::with_capacity(length);
                concealment.conceal(length, &mut made_up);
                converter.convert(&made_up, ticks / converter.to.ticks(), sound);
            }
        }
    }

    /// The next frame does not continue the last one, although nothing was lost.
    pub(super) fn break_off(&mut self) {
        continued(&mut self.concealment, self.from, &self.past).break_off();
    }
}

/// What continues the past.
fn continued<'a>(
    concealment: &'a mut Option<Concealment>,
    from: Bandwidth,
    past: &VecDeque<Samples>,
) -> &'a mut Concealment {
    concealment.get_or_insert_with(|| {
        let mut concealment = Concealment::new(from.rate().hz());
        for samples in past {
            concealment.heard(&mut samples.to_vec());
        }
        concealment
    })
}

/// Converts to the listener's rate, a frame for each frame.
#[derive(Debug)]
struct Converter {
    to: Bandwidth,
    resampler: EvenResampler,
    /// Ticks that it was given and has not given yet, less than a sample.
    ahead: usize,
}

impl Converter {
    fn new(from: Bandwidth, to: Bandwidth) -> Self {
        Self {
            to,
            resampler: EvenResampler::new(from.rate(), to.rate()),
            ahead: 0,
        }
    }

    /// Appends `length` samples of what it has, with these.
    fn convert(&mut self, samples: &[i16], length: usize, sound: &mut Vec<i16>) {
        self.resampler.push(samples);
        sound.extend(self.resampler.take(length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long what is made up, there is as much as was asked for, and nothing is kept of it.
    #[test]
    fn it_gives_what_it_is_asked_for() {
        let mut random = fastrand::Rng::with_seed(5);
        for from in Bandwidth::ALL {
            for to in Bandwidth::ALL {
                let mut decoder = PcmDecoder::new(from, to);
                let frame: Vec<i16> = (0..from.frame()).map(|_| random.i16(-900..900)).collect();
                let samples = Samples::new(&frame).unwrap();
                assert!(decoder.takes(&samples));
                for _ in 0..500 {
                    let mut sound = Vec::new();
                    decoder.decode(&samples, &mut sound);
                    assert_eq!(sound.len(), to.frame(), "{from:?} to {to:?}");
                    sound.clear();
                    let length = random.usize(1..=to.frame());
                    decoder.conceal(length * to.ticks(), &mut sound);
                    assert_eq!(sound.len(), length, "{from:?} to {to:?}");
                    if random.bool() {
                        decoder.break_off();
                    }
                }
                let kept = decoder.converter.map_or(0, |mut converter| {
                    converter.resampler.take(usize::MAX).count()
                });
                assert!(kept <= to.frame() / 5, "{from:?} to {to:?}: {kept}");
            }
        }
    }
}
