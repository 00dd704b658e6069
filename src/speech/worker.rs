//! What the server and a worker process say to each other: requests down the worker's standard input, replies up its
//! standard output, each a frame of two lengths (32 bits, little-endian), a JSON header and sound (mono, 16-bit
//! little-endian). Neither side trusts the other: what is not the protocol is an error, of bounded size.
//!
//! A worker is started with a [`Spec`] as its argument, loads one model, says [`Reply::Ready`], answers requests one by
//! one, and ends when its input ends, so that it never outlives the server.

use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::hibari::Hibari;
use crate::moonshine::Moonshine;
use crate::onnx::{OnnxError, Runtime};
use crate::piper::{PhonemicWord, Piper};
use crate::recogniser::{Heard, Hearing};
use crate::smart_turn::SmartTurn;
use crate::whisper::Whisper;

/// The hidden subcommand that starts a worker.
pub const SUBCOMMAND: &str = "speech-worker";
/// The longest header: the words of the longest utterance take about a tenth of it.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;
/// The most sound of one frame: a minute at 48 kHz.
pub const MAX_SOUND_BYTES: usize = 2 * 60 * 48_000;

/// Which model a worker loads, with which library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// ONNX Runtime.
    pub runtime: PathBuf,
    /// The kind of model.
    pub kind: Kind,
    /// The folder with its files.
    pub folder: PathBuf,
}

/// The models that there is code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Hears: [`crate::whisper`].
    Whisper,
    /// Hears: [`crate::moonshine`].
    Moonshine,
    /// Says whether somebody has finished speaking.
    SmartTurn,
    /// Speaks English: [`crate::hibari`].
    Hibari,
    /// Speaks phonemes: [`crate::piper`].
    Piper,
}

/// What a worker is asked. The sound of the frame belongs to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Request {
    /// What is said here? The sound is an utterance, at 16 kHz.
    Hear(Hearing),
    /// Has whoever said this finished? The sound is the end of it, at 16 kHz.
    Turn,
    /// Say a sentence.
    Speak {
        /// What to say.
        text: String,
        /// Which of the model's voices; its first where there is none.
        voice: Option<String>,
        /// The rate of speech, where 1 is normal.
        rate: f32,
    },
    /// Say a sentence that is in phonemes already.
    SpeakPhonemes {
        /// What to say.
        words: Vec<PhonemicWord>,
        /// Which of the voice's speakers; its first where there is none.
        speaker: Option<String>,
        /// The rate of speech, where 1 is normal.
        rate: f32,
    },
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The model is loaded. The first reply of every worker, unless it is [`Reply::Failed`].
    Ready,
    /// To [`Request::Hear`].
    Heard(Heard),
    /// To [`Request::Turn`].
    Turn {
        /// How likely the speaker has finished, 0–1.
        finished: f32,
    },
    /// To [`Request::Speak`] and [`Request::SpeakPhonemes`]: the words of the sound that follows, up to the next words, in the order of the text.
    Words {
        /// The words.
        words: Vec<SpokenWord>,
    },
    /// To both: the next samples, in this frame.
    Sound,
    /// To both: everything was said.
    Said,
    /// A request could not be carried out; the next may be.
    Refused {
        /// Why, for people.
        message: String,
    },
    /// The worker cannot go on, and ends.
    Failed {
        /// Why, for people.
        message: String,
    },
}

/// A word of a text that is spoken, and when it is heard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpokenWord {
    /// Where it begins in the text, in bytes.
    pub start_byte: u32,
    /// Where it ends.
    pub end_byte: u32,
    /// When it begins, from the first sample of the answer.
    pub start_seconds: f64,
    /// When it ends.
    pub end_seconds: f64,
}

/// Why a model cannot be loaded, or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum SpeechError {
    /// One of its networks.
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    /// Another of its files.
    #[error("{file}: {cause}")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        cause: String,
    },
    /// It was asked for something that it does not do.
    #[error("{0}")]
    Request(String),
    /// The pipes to the server, or something on them that is not the protocol.
    #[error("the worker and its server do not understand each other: {0}")]
    Wire(#[from] io::Error),
}

/// A loaded model in its worker.
pub trait Model {
    /// Answers a request by any number of replies with their sound.
    fn answer(
        &mut self,
        request: Request,
        sound: &[i16],
        reply: &mut dyn FnMut(&Reply, &[i16]) -> io::Result<()>,
    ) -> Result<(), SpeechError>;
}

/// The frame of a header and its sound.
pub fn frame(header: &impl Serialize, sound: &[i16]) -> io::Result<Vec<u8>> {
    let header = serde_json::to_vec(header)?;
    let mut bytes = Vec::with_capacity(8 + header.len() + 2 * sound.len());
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend((2 * sound.len() as u32).to_le_bytes());
    bytes.extend(header);
    bytes.extend(sound.iter().flat_map(|sample| sample.to_le_bytes()));
    Ok(bytes)
}

/// The lengths of a header and of its sound, from the eight bytes that begin a frame.
pub fn lengths(prefix: [u8; 8]) -> io::Result<(usize, usize)> {
    let (lengths, _) = prefix.as_chunks::<4>();
    let [header, sound] = [0, 1].map(|at| {
        lengths
            .get(at)
            .map_or(0, |&bytes| u32::from_le_bytes(bytes) as usize)
    });
    let bounded = header <= MAX_HEADER_BYTES && sound <= MAX_SOUND_BYTES && sound % 2 == 0;
    bounded
        .then_some((header, sound))
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A header and its sound from the bytes of a frame after its lengths.
pub fn parse<H: DeserializeOwned>(header: &[u8], sound: &[u8]) -> io::Result<(H, Vec<i16>)> {
    let (samples, rest) = sound.as_chunks();
    if !rest.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let samples = samples.iter().map(|&bytes| i16::from_le_bytes(bytes));
    Ok((serde_json::from_slice(header)?, samples.collect()))
}

/// Samples between -1 and 1 as frames carry them.
pub fn in_16_bits(samples: &[f32]) -> Vec<i16> {
    let of = |&sample: &f32| (sample.clamp(-1.0, 1.0) * 32_767.0) as i16;
    samples.iter().map(of).collect()
}

/// The next frame; `None` at an end between two frames.
pub fn read<H: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<(H, Vec<i16>)>> {
    let mut prefix = [0; 8];
    if from.read(&mut prefix[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut prefix[1..])?;
    let (header, sound) = lengths(prefix)?;
    let mut bytes = vec![0; header + sound];
    from.read_exact(&mut bytes)?;
    let (header, sound) = bytes.split_at(header);
    parse(header, sound).map(Some)
}

/// Serves until standard input ends. Whatever ends it earlier is reported before it is returned.
pub fn run(spec: &Spec) -> Result<(), SpeechError> {
    let mut replies = take_stdout()?;
    let mut requests = BufReader::new(io::stdin().lock());
    let served = load(spec).and_then(|model| serve(model, &mut requests, &mut replies));
    if let Err(error) = &served {
        let failed = Reply::Failed {
            message: error.to_string(),
        };
        // The server may be gone, which is one reason to be here.
        let _ = frame(&failed, &[]).and_then(|frame| replies.write_all(&frame));
    }
    served
}

/// Standard output for the protocol alone: whatever a library prints there goes to standard error instead.
fn take_stdout() -> io::Result<std::fs::File> {
    use std::os::fd::AsFd;
    let ours = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(ours.into())
}

fn load(spec: &Spec) -> Result<Box<dyn Model>, SpeechError> {
    let runtime = Runtime::load(&spec.runtime)?;
    match spec.kind {
        Kind::Whisper => Ok(Box::new(Whisper::load(&runtime, &spec.folder)?)),
        Kind::Moonshine => Ok(Box::new(Moonshine::load(&runtime, &spec.folder)?)),
        Kind::SmartTurn => Ok(Box::new(SmartTurn::load(&runtime, &spec.folder)?)),
        Kind::Piper => Ok(Box::new(Piper::load(&runtime, &spec.folder)?)),
        Kind::Hibari => Ok(Box::new(Hibari::load(&runtime, &spec.folder)?)),
    }
}

fn serve(
    mut model: Box<dyn Model>,
    requests: &mut impl Read,
    replies: &mut impl Write,
) -> Result<(), SpeechError> {
    let mut send = |reply: &Reply, sound: &[i16]| replies.write_all(&frame(reply, sound)?);
    send(&Reply::Ready, &[])?;
    while let Some((request, sound)) = read(requests)? {
        match model.answer(request, &sound, &mut send) {
            Ok(()) => {}
            Err(SpeechError::Wire(error)) => return Err(error.into()),
            Err(error) => {
                let message = error.to_string();
                send(&Reply::Refused { message }, &[])?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_that_claims_gigabytes_is_refused_before_they_are_read() {
        let claim = [2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let refused = read::<Reply>(&mut claim.as_slice()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn frames_survive_the_wire(sound in prop::collection::vec(any::<i16>(), 0..2000), finished in 0.0f32..1.0) {
            let sent = Reply::Turn { finished };
            let bytes = frame(&sent, &sound).unwrap();
            let mut wire = bytes.as_slice();
            prop_assert_eq!(read(&mut wire).unwrap(), Some((sent, sound)));
            prop_assert_eq!(read::<Reply>(&mut wire).unwrap(), None);
        }

        #[test]
        fn garbage_is_an_error_or_a_frame_and_never_a_panic(bytes: Vec<u8>) {
            let mut wire = bytes.as_slice();
            while let Ok(Some(_)) = read::<Request>(&mut wire) {}
        }
    }
}
