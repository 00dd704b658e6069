//! [Smart Turn](https://github.com/pipecat-ai/smart-turn) v3: whether somebody who has paused has finished speaking, from
//! the last seconds of their sound, by its melody more than by its words. The encoder of Whisper tiny with a classifier
//! on top. When to ask, and what follows from the answer, is left to the caller.
//!
//! The published network hears 8 s, and so it costs 8 s. What runs here is written from its weights and hears the last 3 s
//! (`network.rs`); how loud they are is still judged by all 8.

mod network;

use std::io;
use std::path::Path;

use crate::mel::{BANDS, HOP, Mel, RATE_HZ, log_mel};
use crate::onnx::{Input, Network, OnnxError, Runtime, tensor};
use crate::worker::{Model, Reply, Request, SpeechError};

/// The file of the published network in its folder.
pub const NETWORK: &str = "smart-turn-v3.2-cpu.onnx";
/// How much sound counts, in samples of [`RATE_HZ`]: the end of what is given.
pub const HEARS: usize = 8 * RATE_HZ;
/// Samples of a place of the encoder.
const PLACE: usize = 2 * HOP;
/// Places of the published network.
const PLACES: usize = HEARS / PLACE;
/// Places that are heard, the last ones: with 3 s the network tells ends from holds as well as with 8
/// (benches/RESULTS.md, "A shorter window for the end of turn").
const KEPT: usize = 3 * RATE_HZ / PLACE;
/// Places of silence that stand for all before those.
const SILENT: usize = 10;
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
        let file = folder.join(NETWORK);
        let failed = |cause: String| OnnxError::Load {
            file: file.display().to_string(),
            cause,
        };
        let published = std::fs::read(&file).map_err(|error| failed(error.to_string()))?;
        let written = network::write(&published).map_err(|error| failed(error.to_string()))?;
        let network = Network::from_bytes(runtime, &written)?;
        Ok(Self { network })
    }

    /// How likely it is, 0–1, that whoever said this has finished. The sound is the end of what they have said, with the
    /// pause after it.
    pub fn finished(&mut self, sound: &[i16]) -> Result<f32, SpeechError> {
        let features = features(sound);
        let shape = [1, BANDS, 2 * (SILENT + KEPT)];
        let input = Input::of(&shape, &features)?;
        let mut outputs = self.network.run(vec![("features", input)])?;
        let output = outputs.take("finished")?;
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

/// What the network takes: the frames of the last places, and those of silence before them.
fn features(sound: &[i16]) -> Vec<f32> {
    let mel = spectrogram(sound);
    let kept = 2 * KEPT;
    let columns = |row: &[f32]| -> Vec<f32> {
        let silence = row.first().copied().unwrap_or_default();
        let mut columns = vec![silence; 2 * SILENT];
        columns.extend_from_slice(row.get(row.len() - kept..).unwrap_or_default());
        columns
    };
    mel.data.chunks(mel.frames).flat_map(columns).collect()
}

/// The spectrogram of the last eight seconds, at the loudness that the network was trained on: a mean of 0 and a variance
/// of 1, with the silence before what is shorter. It begins with a frame of that silence; of the rest of it are only as
/// many as the network hears, since they are all the same.
fn spectrogram(sound: &[i16]) -> Mel {
    const LEAD: usize = 2 * HOP;
    let heard = sound.len().saturating_sub(HEARS);
    let sound = sound.get(heard..).unwrap_or_default();
    let all = HEARS as f64 * 32_768.0;
    let sum: i64 = sound.iter().map(|&sample| i64::from(sample)).sum();
    let squares: i64 = sound.iter().map(|&sample| i64::from(sample).pow(2)).sum();
    let mean = sum as f64 / all;
    let variance = squares as f64 / 32_768.0 / all - mean.powi(2);
    let scale = (variance.max(0.0) + LEAST_VARIANCE).sqrt();
    let normal = |sample: f64| ((sample - mean) / scale) as f32;
    let length = LEAD + sound.len().next_multiple_of(HOP).max(KEPT * PLACE);
    let mut samples = vec![normal(0.0); length - sound.len()];
    samples.extend(sound.iter().map(|&x| normal(f64::from(x) / 32_768.0)));
    let mut mel = log_mel(&samples);
    mel.normalise();
    mel
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    // Seconds of `sound`, seconds of silence after it, and what the published network says with its weights as floats,
    // of the same places with the same weights, in an independent implementation.
    const REFERENCE: [(f64, f64, f32); 6] = [
        (0.3, 0.2, 0.8104),
        (0.3, 1.0, 0.9356),
        (1.5, 0.0, 0.0235),
        (2.0, 0.2, 0.0146),
        (6.3, 0.0, 0.0348),
        (11.0, 0.0, 0.0730),
    ];
    /// What products in 8 bits may change of it: they do most where the network is in doubt.
    const TOLERANCE: f32 = 0.1;

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
        for (seconds, pause, expected) in REFERENCE {
            let mut sound = sound(seconds);
            sound.resize(sound.len() + (pause * RATE_HZ as f64) as usize, 0);
            let finished = model.finished(&sound).unwrap();
            assert!(
                (finished - expected).abs() < TOLERANCE,
                "{seconds} s, {pause} s: {finished}, not {expected}"
            );
        }
    }

    /// The whole of the published network's features: 8 s, brought to a mean of 0 and a variance of 1.
    fn published_features(sound: &[i16]) -> Mel {
        let mut samples = vec![0.0; HEARS - sound.len()];
        samples.extend(sound.iter().map(|&sample| f64::from(sample) / 32_768.0));
        let mean = samples.iter().sum::<f64>() / HEARS as f64;
        let spread = samples.iter().map(|sample| (sample - mean).powi(2));
        let scale = (spread.sum::<f64>() / HEARS as f64 + 1e-7).sqrt();
        let samples = samples
            .iter()
            .map(|sample| ((sample - mean) / scale) as f32);
        let mut mel = log_mel(&samples.collect::<Vec<_>>());
        mel.normalise();
        mel
    }

    #[test]
    fn features_are_silence_and_the_end_of_the_published_ones() {
        for (samples, offset) in [(5, 0), (20_007, 0), (48_001, 300), (127_999, -90)] {
            let mut sound = sound(samples as f64 / RATE_HZ as f64);
            // Silence is heard as what is far from the mean.
            sound.iter_mut().for_each(|sample| *sample += offset);
            let published = published_features(&sound);
            let features = features(&sound);
            let rows = features.chunks(2 * (SILENT + KEPT));
            for (row, expected) in rows.zip(published.data.chunks(published.frames)) {
                let (silence, kept) = row.split_at(2 * SILENT);
                let near = |(a, b): (&f32, &f32)| (a - b).abs() < 2e-3;
                // Eight seconds have no silence before them to compare with.
                let quiet = if samples > 127_000 {
                    silence[0]
                } else {
                    expected[0]
                };
                assert!(silence.iter().all(|a| near((a, &quiet))));
                let expected = &expected[expected.len() - 2 * KEPT..];
                assert!(kept.iter().zip(expected).all(near), "{samples}");
            }
        }
    }

    #[test]
    fn only_the_last_eight_seconds_count() {
        let long = sound(11.0);
        let last = &long[long.len() - HEARS..];
        assert_eq!(features(&long), features(last));
        assert_eq!(features(&long).len(), BANDS * 2 * (SILENT + KEPT));
    }

    #[test]
    fn a_file_that_is_cut_or_another_network_is_an_error() {
        let published = std::fs::read(testing::model("smart-turn").join(NETWORK)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let another = std::fs::read(testing::model("hibari/oov.onnx")).unwrap();
        let cut = |length: usize| published[..length].to_vec();
        let lengths = [0, 3, 100, 1_000_000, published.len() - 1];
        for bytes in lengths.map(cut).into_iter().chain([another]) {
            std::fs::write(folder.path().join(NETWORK), bytes).unwrap();
            let refused = SmartTurn::load(&testing::runtime(), folder.path()).unwrap_err();
            assert!(refused.to_string().contains(NETWORK), "{refused}");
        }
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
