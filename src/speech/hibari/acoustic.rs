//! The acoustic network: from phonemes to the spectrum of the voice. It is cut in two where phonemes have become frames:
//! the first part sees the whole sentence at once (durations, melody), the second only some frames to both sides, so it
//! can be run piece by piece without a seam, and the first sound does not wait for the last word.

use std::ops::Range;
use std::path::Path;

use super::table::broken;
use crate::onnx::subgraph::Graph;
use crate::onnx::{Input, Network, OnnxError, Runtime, tensor};
use crate::worker::SpeechError;

/// Bins of the spectrum.
pub const BINS: usize = 601;
/// The parts of a frame of the spectrum, in the network's order.
pub const PARTS: [&str; 5] = ["lh", "theta", "ln", "lr", "phi"];
/// Frames to either side that a frame depends on: nine convolutions over seven frames each.
const CONTEXT: usize = 27;
/// Frames that one step of durations takes.
const FRAMES_PER_STEP: usize = 2;
/// The constant by which the second part is found: the weights of its first convolution.
const SECOND_PART: &str = "m.dec_in.weight";
/// The longest that a phoneme can take, in frames; a longer one is no speech.
const LONGEST_PHONEME: usize = 400;

/// The network of one voice.
#[derive(Debug)]
pub struct Acoustic {
    first: Network,
    second: Network,
    /// The names of values inside the network.
    durations: String,
    frames: String,
    channels: usize,
}

/// A sentence on its way to sound.
#[derive(Debug)]
pub struct Plan {
    /// The frame at which each phoneme ends.
    pub ends: Vec<usize>,
    /// The pitch of each frame in hertz; 0 where there is no voice.
    pub pitch: Vec<f32>,
    /// What the second part needs, channel by channel.
    frames: Vec<f32>,
}

impl Plan {
    /// How many frames the sentence has.
    pub fn length(&self) -> usize {
        self.pitch.len()
    }
}

/// The parts of the spectrum of some frames, each bin by bin.
#[derive(Debug, Default)]
pub struct Spectrum {
    /// Numbers of all frames that were asked of the network.
    parts: [Vec<f32>; PARTS.len()],
    /// How many frames the parts have, and where the wanted ones begin.
    stride: usize,
    offset: usize,
}

impl Spectrum {
    /// A number of a part: its bin and its frame among those wanted.
    pub fn at(&self, part: usize, bin: usize, frame: usize) -> f32 {
        let of = self.parts.get(part);
        of.and_then(|part| part.get(bin * self.stride + self.offset + frame))
            .copied()
            .unwrap_or_default()
    }
}

impl Acoustic {
    /// The network in a file.
    pub fn load(runtime: &Runtime, file: &Path) -> Result<Self, SpeechError> {
        let model = std::fs::read(file).map_err(|error| broken(file, &error))?;
        Self::from_bytes(runtime, &model).map_err(|error| match error {
            SpeechError::Onnx(OnnxError::Load { cause, .. }) => OnnxError::Load {
                file: file.display().to_string(),
                cause,
            }
            .into(),
            error => error,
        })
    }

    fn from_bytes(runtime: &Runtime, model: &[u8]) -> Result<Self, SpeechError> {
        let graph = Graph::parse(model)?;
        let nodes = graph.nodes();
        let inputs_of = |found: &dyn Fn(&&crate::onnx::subgraph::Node<'_>) -> bool| {
            nodes.iter().find(found).map(|node| node.inputs.as_slice())
        };
        // Durations are whole numbers before they are added up.
        let Some([steps, ..]) = inputs_of(&|node| node.op_type == "CumSum") else {
            return Err(OnnxError::Foreign("durations".to_owned()).into());
        };
        let Some([durations, ..]) = inputs_of(&|node| node.outputs.contains(steps)) else {
            return Err(OnnxError::Foreign("durations".to_owned()).into());
        };
        let Some([frames, ..]) = inputs_of(&|node| node.inputs.contains(&SECOND_PART)) else {
            return Err(OnnxError::Foreign(SECOND_PART.to_owned()).into());
        };
        let first = graph.cut(&[], &[durations, frames, "f0"])?;
        let mut first = Network::from_bytes(runtime, &first)?;
        first.expect(&["ids", "speed"], &["f0"])?;
        // How many channels it has, a run tells.
        let channels = {
            let mut outputs = run_first(&mut first, &[0, 0, 0], 1.0)?;
            let value = outputs.take(frames)?;
            let (shape, _) = tensor::<f32>(&value)?;
            match shape.as_slice() {
                [1, channels, _] => *channels,
                _ => return Err(OnnxError::Foreign("channels of frames".to_owned()).into()),
            }
        };
        let second = graph.cut(&[(frames, &[Some(1), Some(channels), None])], &PARTS)?;
        let second = Network::from_bytes(runtime, &second)?;
        second.expect(&[], &PARTS)?;
        Ok(Self {
            first,
            second,
            durations: (*durations).to_owned(),
            frames: (*frames).to_owned(),
            channels,
        })
    }

    /// How a sentence of these phonemes will be said. A rate of 1 is normal.
    pub fn plan(&mut self, ids: &[i64], rate: f32) -> Result<Plan, SpeechError> {
        let mut outputs = run_first(&mut self.first, ids, rate)?;
        let durations = outputs.take(&self.durations)?;
        let (_, durations) = tensor::<f32>(&durations)?;
        let pitch = outputs.take("f0")?;
        let (_, pitch) = tensor::<f32>(&pitch)?;
        let frames = outputs.take(&self.frames)?;
        let (shape, frames) = tensor::<f32>(&frames)?;
        let fits = shape == [1, self.channels, pitch.len()]
            && durations.len() == ids.len()
            && pitch.len() <= ids.len() * LONGEST_PHONEME;
        if !fits {
            return Err(OnnxError::Foreign("frames of phonemes".to_owned()).into());
        }
        let ends = durations.iter().scan(0, |end, steps| {
            *end = (*end + *steps as usize * FRAMES_PER_STEP).min(pitch.len());
            Some(*end)
        });
        Ok(Plan {
            ends: ends.collect(),
            pitch: pitch.to_vec(),
            frames: frames.to_vec(),
        })
    }

    /// The spectrum of some frames of a sentence.
    pub fn spectrum(&mut self, plan: &Plan, wanted: Range<usize>) -> Result<Spectrum, SpeechError> {
        let all = plan.length();
        let start = wanted.start.saturating_sub(CONTEXT);
        let end = (wanted.end + CONTEXT).min(all);
        let stride = end.saturating_sub(start);
        let seen: Vec<f32> = plan
            .frames
            .chunks(all.max(1))
            .flat_map(|channel| channel.get(start..end).unwrap_or_default())
            .copied()
            .collect();
        let inputs = vec![(
            self.frames.as_str(),
            Input::new(&[1, self.channels, stride], seen)?,
        )];
        let mut outputs = self.second.run(inputs)?;
        let mut spectrum = Spectrum {
            stride,
            offset: wanted.start - start,
            ..Spectrum::default()
        };
        for (part, name) in spectrum.parts.iter_mut().zip(PARTS) {
            let value = outputs.take(name)?;
            let (shape, data) = tensor::<f32>(&value)?;
            if shape != [1, BINS, stride] {
                return Err(OnnxError::Foreign("601 bins".to_owned()).into());
            }
            *part = data.to_vec();
        }
        Ok(spectrum)
    }
}

fn run_first(
    network: &mut Network,
    ids: &[i64],
    rate: f32,
) -> Result<crate::onnx::Outputs, SpeechError> {
    let inputs = vec![
        ("ids", Input::of(&[1, ids.len()], ids)?),
        ("speed", Input::new(&[1], vec![rate])?),
    ];
    Ok(network.run(inputs)?)
}
