//! What the server and a worker process say to each other: binary commands down the worker's standard input, one JSON
//! report a line up its standard output. Both sides are here, and neither trusts the other: what is not the protocol is
//! an error, of bounded size.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::library::CepstralMean;

/// The most samples that one [`Command::Audio`] carries: half a second.
pub const MAX_AUDIO_SAMPLES: usize = 8_000;
/// The longest line that a worker may report. The final of the longest utterance takes about a tenth of it.
pub const MAX_REPORT_BYTES: usize = 64 * 1024;

/// What a worker is told. On the wire: a tag, the payload's length (32 bits, little-endian) and the payload.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// An utterance begins, of a speaker with this mean. Payload: its coefficients, 32-bit little-endian floats.
    Begin(CepstralMean),
    /// More of it. Payload: mono samples at 16 kHz, 16-bit little-endian.
    Audio(Vec<i16>),
    /// It is complete; the worker answers with [`Report::Final`].
    End,
}

const BEGIN: u8 = b'B';
const AUDIO: u8 = b'A';
const END: u8 = b'E';

impl Command {
    /// The bytes on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (tag, payload) = match self {
            Self::Begin(mean) => (BEGIN, mean.iter().flat_map(|c| c.to_le_bytes()).collect()),
            Self::Audio(samples) => (
                AUDIO,
                samples.iter().flat_map(|s| s.to_le_bytes()).collect(),
            ),
            Self::End => (END, Vec::new()),
        };
        let mut bytes = Vec::with_capacity(5 + payload.len());
        bytes.push(tag);
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    /// The next command; `None` at an end between two commands. Anything that is not a command is
    /// [`io::ErrorKind::InvalidData`].
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut tag = [0];
        if from.read(&mut tag)? == 0 {
            return Ok(None);
        }
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_AUDIO_SAMPLES * 2 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload)?;
        Self::parse(tag[0], &payload)
            .map(Some)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(tag: u8, payload: &[u8]) -> Option<Self> {
        match tag {
            BEGIN => {
                let (coefficients, []) = payload.as_chunks() else {
                    return None;
                };
                let mean: Vec<f32> = coefficients
                    .iter()
                    .map(|&bytes| f32::from_le_bytes(bytes))
                    .filter(|coefficient| coefficient.is_finite())
                    .collect();
                mean.try_into().ok().map(Self::Begin)
            }
            AUDIO => {
                let (samples, []) = payload.as_chunks() else {
                    return None;
                };
                let samples = samples.iter().map(|&bytes| i16::from_le_bytes(bytes));
                Some(Self::Audio(samples.collect()))
            }
            END if payload.is_empty() => Some(Self::End),
            _ => None,
        }
    }
}

/// What a worker reports, one JSON object a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The model is loaded. The first report of every worker, unless it is [`Report::Failed`].
    Ready,
    /// The utterance as heard so far; only when it has changed.
    Partial {
        /// The words.
        text: String,
    },
    /// The utterance as it will stay.
    Final {
        /// Its words; none when it was not speech.
        words: Vec<HeardWord>,
        /// The speaker's mean, for the next utterance of the same speaker.
        mean: CepstralMean,
    },
    /// The worker cannot go on, and ends.
    Failed {
        /// Why, for people.
        message: String,
    },
}

/// A word of an utterance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeardWord {
    /// The word.
    pub word: String,
    /// Seconds from the beginning of the utterance.
    pub start: f64,
    /// Seconds from the beginning of the utterance.
    pub end: f64,
    /// Posterior probability, 0–1.
    pub confidence: f32,
}

impl Report {
    /// The line on the wire, with its end.
    pub fn to_line(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// A report from a line, with or without its end.
    pub fn parse(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

#[cfg(test)]
mod tests {
    use super::super::library::UNKNOWN_SPEAKER;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_report_survives_its_line() {
        let word = HeardWord {
            word: "can't \"stop\"\n".to_owned(),
            start: 0.25,
            end: 0.5,
            confidence: 0.75,
        };
        let reports = [
            Report::Ready,
            Report::Partial {
                text: "go\nforward".to_owned(),
            },
            Report::Final {
                words: vec![word],
                mean: UNKNOWN_SPEAKER,
            },
            Report::Failed {
                message: "no model".to_owned(),
            },
        ];
        for report in reports {
            let line = report.to_line().unwrap();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(Report::parse(&line).unwrap(), report);
        }
    }

    #[test]
    fn a_command_that_claims_gigabytes_is_refused_before_they_are_read() {
        let claim = [AUDIO, 0xff, 0xff, 0xff, 0xff];
        let refused = Command::read(&mut claim.as_slice()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_mean_that_is_not_a_number_is_refused() {
        let mut mean = UNKNOWN_SPEAKER;
        mean[3] = f32::NAN;
        let bytes = Command::Begin(mean).to_bytes();
        assert!(Command::read(&mut bytes.as_slice()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn commands_survive_the_wire(samples in prop::collection::vec(any::<i16>(), 0..=MAX_AUDIO_SAMPLES)) {
            let sent = [Command::Begin(UNKNOWN_SPEAKER), Command::Audio(samples), Command::End];
            let bytes: Vec<u8> = sent.iter().flat_map(Command::to_bytes).collect();
            let mut wire = bytes.as_slice();
            for command in sent {
                prop_assert_eq!(Command::read(&mut wire).unwrap(), Some(command));
            }
            prop_assert_eq!(Command::read(&mut wire).unwrap(), None);
        }

        #[test]
        fn garbage_is_an_error_or_a_command_and_never_a_panic(bytes: Vec<u8>, line: String) {
            let mut wire = bytes.as_slice();
            while let Ok(Some(_)) = Command::read(&mut wire) {}
            let _ = Report::parse(&line);
        }
    }
}
