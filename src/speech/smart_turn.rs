//! [Smart Turn](https://github.com/pipecat-ai/smart-turn) v3: whether somebody who has paused has finished speaking, from
//! the last seconds of their sound, by its melody more than by its words. The encoder of Whisper tiny with a classifier
//! on top. When to ask, and what follows from the answer, is left to the caller.

use std::io;
use std::path::Path;

use crate::mel::{BANDS, HOP, RATE_HZ, log_mel};
use crate::onnx::{Input, Network, Runtime, tensor};
use crate::worker::{Model, Reply, Request, SpeechError};

/// The file of the network in its folder.
pub const NETWORK: &str = "smart-turn-v3.2-cpu.onnx";
/// How much sound the network hears, in samples of [`RATE_HZ`]: the end of what it is given.
pub const HEARS: usize = 8 * RATE_HZ;
const FRAMES: usize = HEARS / HOP;
/// Keeps the scale of silence finite.
const LEAST_VARIANCE: f64 = 1e-7;

/// The loaded network.
#[derive(Debug)]
pub struct SmartTurn {
    network: Network,
}

impl SmartTurn {
    /// Loads the network from its folder.
    pub fn load(runtime: &Runtime, folder: &Path) -> Result<Self, SpeechError> {
        let network = Network::load(runtime, &folder.join(NETWORK))?;
        network.expect(&["input_features"], &["logits"])?;
        Ok(Self { network })
    }

    /// How likely it is, 0–1, that whoever said this has finished. The sound is the end of what they have said, with the
    /// pause after it.
    pub fn finished(&mut self, sound: &[i16]) -> Result<f32, SpeechError> {
        let features = features(sound);
        let input = Input::of(&[1, BANDS, FRAMES], &features)?;
        let mut outputs = self.network.run(vec![("input_features", input)])?;
        // The network's last step is a sigmoid, whatever its output is called.
        let output = outputs.take("logits")?;
        let (_, probability) = tensor::<f32>(&output)?;
        match probability {
            [finished] if finished.is_finite() => Ok(finished.clamp(0.0, 1.0)),
            _ => Err(SpeechError::Request(
                "the network gave no probability".to_owned(),
            )),
        }
    }
}

impl Model for SmartTurn {
    fn answer(
        &mut self,
        request: Request,
        sound: &[i16],
        reply: &mut dyn FnMut(&Reply, &[i16]) -> io::Result<()>,
    ) -> Result<(), SpeechError> {
        let Request::Turn = request else {
            return Err(SpeechError::Request(
                "this model only judges the end of turns".to_owned(),
            ));
        };
        let finished = self.finished(sound)?;
        Ok(reply(&Reply::Turn { finished }, &[])?)
    }
}

/// What the network takes: the last eight seconds, silence before what is shorter, at the loudness that it was trained
/// on (a mean of 0 and a variance of 1, the silence included), as a spectrogram.
fn features(sound: &[i16]) -> Vec<f32> {
    let heard = sound.len().saturating_sub(HEARS);
    let sound = sound.get(heard..).unwrap_or_default();
    let mut samples = vec![0.0f32; HEARS - sound.len()];
    samples.extend(sound.iter().map(|&sample| f32::from(sample) / 32_768.0));
    let count = samples.len() as f64;
    let mean = samples.iter().map(|&sample| f64::from(sample)).sum::<f64>() / count;
    let spread = samples
        .iter()
        .map(|&sample| (f64::from(sample) - mean).powi(2));
    let scale = (spread.sum::<f64>() / count + LEAST_VARIANCE).sqrt();
    for sample in &mut samples {
        *sample = ((f64::from(*sample) - mean) / scale) as f32;
    }
    let mut mel = log_mel(&samples);
    mel.normalise();
    mel.data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    // Seconds of `sound`, and what the publisher's own code says of it.
    const REFERENCE: [(f64, f32); 4] =
        [(0.5, 0.3933), (2.0, 0.0146), (6.3, 0.0260), (11.0, 0.2209)];

    fn model() -> SmartTurn {
        let folder = testing::model("smart-turn");
        SmartTurn::load(&testing::runtime(), &folder).unwrap()
    }

    /// A tone that falls from 400 to 100 Hz, and swells and fades as syllables do.
    fn sound(seconds: f64) -> Vec<i16> {
        let samples = (seconds * RATE_HZ as f64) as usize;
        let sample = |at: usize| {
            let second = at as f64 / RATE_HZ as f64;
            let falls = 400.0 * second - 150.0 * second * second / seconds;
            let swells = (std::f64::consts::TAU * 2.0 * second).sin().abs();
            (8_000.0 * swells * (std::f64::consts::TAU * falls).sin()) as i16
        };
        (0..samples).map(sample).collect()
    }

    #[test]
    fn the_answer_is_that_of_the_reference() {
        let mut model = model();
        for (seconds, expected) in REFERENCE {
            let finished = model.finished(&sound(seconds)).unwrap();
            assert!(
                (finished - expected).abs() < 0.02,
                "{seconds} s: {finished}, not {expected}"
            );
        }
    }

    #[test]
    fn only_the_last_eight_seconds_count() {
        let long = sound(11.0);
        let last = &long[long.len() - HEARS..];
        assert_eq!(features(&long), features(last));
        assert_eq!(features(&long).len(), BANDS * FRAMES);
    }

    #[test]
    fn nothing_and_silence_have_an_answer() {
        let mut model = model();
        for sound in [vec![], vec![0; 10], vec![i16::MIN; 3 * RATE_HZ]] {
            let finished = model.finished(&sound).unwrap();
            assert!((0.0..=1.0).contains(&finished));
        }
    }
}
