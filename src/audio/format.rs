//! The format of audio: sample rate, channels, encoding, duration. Every conversion between bytes, samples, frames and
//! time is here, so that no other code does untyped byte arithmetic. A *frame* is one sample per channel; a *sample* is
//! one number.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a format is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A rate outside [`SampleRate::MIN`]`..=`[`SampleRate::MAX`].
    #[error("sample rate {0} Hz is outside {min}..={max} Hz", min = SampleRate::MIN.hz(), max = SampleRate::MAX.hz())]
    Rate(u64),
    /// A rate that is allowed in files, but not on the wire.
    #[error("sample rate {0} Hz is outside {min}..={max} Hz", min = SampleRate::MIN.hz(), max = SampleRate::MAX_WIRE.hz())]
    WireRate(u64),
    /// A channel count other than 1 or 2.
    #[error("{0} channels are not supported; use 1 or 2")]
    Channels(u64),
    /// The name of an unknown encoding.
    #[error(
        "unknown audio format {0:?}; use one of linear16, wav, mulaw, alaw, mp3, ogg_opus, opus"
    )]
    Encoding(String),
    /// An encoding that does not support the rate.
    #[error("{encoding} cannot have a sample rate of {rate}; use {allowed}")]
    RateOfEncoding {
        /// The requested encoding.
        encoding: Encoding,
        /// The unsupported rate.
        rate: SampleRate,
        /// The supported rates, for people.
        allowed: String,
    },
}

/// Samples per second and channel. Parsed once at the edge, trusted inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u32")]
pub struct SampleRate(u32);

impl SampleRate {
    /// The lowest rate that the server handles; it is also the lowest on the wire.
    pub const MIN: Self = Self(8_000);
    /// The highest rate that a *file* may have. The wire stops at [`SampleRate::MAX_WIRE`].
    pub const MAX: Self = Self(192_000);
    /// The highest rate that a client may send or ask for.
    pub const MAX_WIRE: Self = Self(48_000);
    /// Narrowband telephony.
    pub const HZ_8000: Self = Self(8_000);
    /// The rate of most recognisers.
    pub const HZ_16000: Self = Self(16_000);
    /// The rate of most synthesisers, and our default output rate.
    pub const HZ_24000: Self = Self(24_000);
    /// The clock rate of Opus, and thereby of rooms.
    pub const HZ_48000: Self = Self(48_000);

    /// A rate from a number; anything outside [`Self::MIN`]`..=`[`Self::MAX`] is an error.
    pub fn new(hz: impl Into<u64>) -> Result<Self, FormatError> {
        let hz = hz.into();
        match u32::try_from(hz) {
            Ok(rate) if (Self::MIN.0..=Self::MAX.0).contains(&rate) => Ok(Self(rate)),
            _ => Err(FormatError::Rate(hz)),
        }
    }

    /// Hertz.
    pub const fn hz(self) -> u32 {
        self.0
    }

    /// Frames that fit into `time`, rounded down.
    pub fn frames_in(self, time: Duration) -> usize {
        let nanos = time.as_nanos().saturating_mul(u128::from(self.0));
        usize::try_from(nanos / 1_000_000_000).unwrap_or(usize::MAX)
    }

    /// How long `frames` frames last.
    pub fn duration_of(self, frames: usize) -> Duration {
        let rate = u64::from(self.0);
        let frames = frames as u64;
        let nanos = (frames % rate) * 1_000_000_000 / rate;
        Duration::from_secs(frames / rate) + Duration::from_nanos(nanos)
    }
}

impl TryFrom<u64> for SampleRate {
    type Error = FormatError;
    fn try_from(hz: u64) -> Result<Self, FormatError> {
        Self::new(hz)
    }
}

impl From<SampleRate> for u32 {
    fn from(rate: SampleRate) -> u32 {
        rate.0
    }
}

impl fmt::Display for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Hz", self.0)
    }
}

/// Mono or stereo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub enum Channels {
    /// One channel.
    Mono,
    /// Left and right, interleaved.
    Stereo,
}

impl Channels {
    /// 1 or 2.
    pub const fn count(self) -> usize {
        match self {
            Self::Mono => 1,
            Self::Stereo => 2,
        }
    }
}

impl TryFrom<u64> for Channels {
    type Error = FormatError;
    fn try_from(count: u64) -> Result<Self, FormatError> {
        match count {
            1 => Ok(Self::Mono),
            2 => Ok(Self::Stereo),
            other => Err(FormatError::Channels(other)),
        }
    }
}

impl From<Channels> for u64 {
    fn from(channels: Channels) -> u64 {
        channels.count() as u64
    }
}

/// The encoding of samples. The names are those of the wire (`audio_format`, `encoding`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Signed 16-bit little-endian PCM without a header.
    Linear16,
    /// The same with a RIFF header.
    Wav,
    /// G.711 µ-law, one byte a sample.
    Mulaw,
    /// G.711 A-law, one byte a sample.
    Alaw,
    /// MPEG-1/2 layer III.
    Mp3,
    /// Opus in Ogg (RFC 7845).
    OggOpus,
    /// Bare Opus packets (RFC 6716), one per message.
    Opus,
}

impl Encoding {
    /// Every encoding, in the order of the documents.
    pub const ALL: [Self; 7] = [
        Self::Linear16,
        Self::Wav,
        Self::Mulaw,
        Self::Alaw,
        Self::Mp3,
        Self::OggOpus,
        Self::Opus,
    ];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear16 => "linear16",
            Self::Wav => "wav",
            Self::Mulaw => "mulaw",
            Self::Alaw => "alaw",
            Self::Mp3 => "mp3",
            Self::OggOpus => "ogg_opus",
            Self::Opus => "opus",
        }
    }

    /// The registered media type (RFC 2586, 3551, 7845, 3003 and the customary `audio/wav`).
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Linear16 => "audio/pcm",
            Self::Wav => "audio/wav",
            Self::Mulaw => "audio/basic",
            Self::Alaw => "audio/x-alaw-basic",
            Self::Mp3 => "audio/mpeg",
            Self::OggOpus => "audio/ogg",
            Self::Opus => "audio/opus",
        }
    }

    /// The default output rate (protocol, section 2).
    pub const fn default_rate(self) -> SampleRate {
        match self {
            Self::Mulaw | Self::Alaw => SampleRate::HZ_8000,
            _ => SampleRate::HZ_24000,
        }
    }

    /// The supported output rates; `None` means any rate allowed on the wire.
    pub const fn output_rates(self) -> Option<&'static [u32]> {
        match self {
            Self::Linear16 | Self::Wav | Self::Mulaw | Self::Alaw => None,
            Self::Mp3 => Some(&[16_000, 22_050, 24_000, 32_000, 44_100, 48_000]),
            Self::OggOpus | Self::Opus => Some(&[8_000, 12_000, 16_000, 24_000, 48_000]),
        }
    }

    /// The output rate for a request: the default if `hz` is absent, an error if this encoding does not support it.
    pub fn output_rate(self, hz: Option<u64>) -> Result<SampleRate, FormatError> {
        let Some(hz) = hz else {
            return Ok(self.default_rate());
        };
        let rate = SampleRate::new(hz)
            .ok()
            .filter(|rate| *rate <= SampleRate::MAX_WIRE)
            .ok_or(FormatError::WireRate(hz))?;
        let allowed = match self.output_rates() {
            None => return Ok(rate),
            Some(rates) if rates.contains(&rate.hz()) => return Ok(rate),
            Some(rates) => {
                let names: Vec<_> = rates.iter().map(u32::to_string).collect();
                names.join(", ") + " Hz"
            }
        };
        Err(FormatError::RateOfEncoding {
            encoding: self,
            rate,
            allowed,
        })
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Encoding {
    type Err = FormatError;
    fn from_str(name: &str) -> Result<Self, FormatError> {
        Self::ALL
            .into_iter()
            .find(|encoding| encoding.name() == name)
            .ok_or_else(|| FormatError::Encoding(name.chars().take(40).collect()))
    }
}

/// Encoding, rate and channels: what bytes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AudioFormat {
    /// The encoding.
    pub encoding: Encoding,
    /// Rate and channels.
    pub layout: Layout,
}

impl AudioFormat {
    /// Mono of `encoding` at `rate`, as speech nearly always is.
    pub const fn mono(encoding: Encoding, rate: SampleRate) -> Self {
        Self {
            encoding,
            layout: Layout::mono(rate),
        }
    }
}

impl fmt::Display for AudioFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.encoding, self.layout)
    }
}

/// Rate and channels of audio in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Frames per second.
    pub rate: SampleRate,
    /// Samples per frame.
    pub channels: Channels,
}

impl Layout {
    /// A layout.
    pub const fn new(rate: SampleRate, channels: Channels) -> Self {
        Self { rate, channels }
    }

    /// One channel at `rate`.
    pub const fn mono(rate: SampleRate) -> Self {
        Self::new(rate, Channels::Mono)
    }

    /// Samples (over all channels) that fit into `time`, whole frames only.
    pub fn samples_in(self, time: Duration) -> usize {
        self.rate
            .frames_in(time)
            .saturating_mul(self.channels.count())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = match self.channels {
            Channels::Mono => "mono",
            Channels::Stereo => "stereo",
        };
        write!(f, "{}, {channels}", self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rate_of_nought_or_four_gigahertz_is_an_error() {
        for hz in [0, 1, 7_999, 192_001, 4_000_000_000, u64::MAX] {
            assert_eq!(SampleRate::new(hz), Err(FormatError::Rate(hz)));
        }
    }

    #[test]
    fn output_rates_follow_the_table() {
        assert_eq!(
            Encoding::Mulaw.output_rate(None).unwrap(),
            SampleRate::HZ_8000
        );
        assert_eq!(
            Encoding::Mp3.output_rate(None).unwrap(),
            SampleRate::HZ_24000
        );
        assert!(Encoding::Linear16.output_rate(Some(11_025)).is_ok());
        assert!(Encoding::Linear16.output_rate(Some(96_000)).is_err());
        let refused = Encoding::Mp3
            .output_rate(Some(8_000))
            .unwrap_err()
            .to_string();
        assert!(refused.contains("16000, 22050"), "{refused}");
    }

    #[test]
    fn every_encoding_is_found_by_its_name() {
        for encoding in Encoding::ALL {
            assert_eq!(encoding.name().parse::<Encoding>().unwrap(), encoding);
            assert_eq!(serde_json::to_value(encoding).unwrap(), encoding.name());
        }
        assert!("LINEAR16".parse::<Encoding>().is_err());
    }

    proptest! {
        #[test]
        fn frames_and_durations_agree(hz in 8_000u32..=192_000, frames in 0usize..500_000_000) {
            let rate = SampleRate::new(hz).unwrap();
            let back = rate.frames_in(rate.duration_of(frames));
            // The duration is rounded down to a nanosecond, so at most one frame is lost.
            prop_assert!(back == frames || back + 1 == frames);
        }
    }
}
