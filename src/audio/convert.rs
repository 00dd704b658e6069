//! Streaming conversion between any two formats: decode, downmix, time-stretch, resample, encode. Used for what a
//! provider cannot produce itself. The resampler depends on whether somebody is listening in real time:
//! [`Converter::live`] or [`Converter::offline`].

use bytes::{Bytes, BytesMut};

use super::decode::{Chunks, DecodeError, StreamDecoder};
use super::encode::{EncodeError, Encoded, StreamEncoder};
use super::format::{AudioFormat, Layout, SampleRate};
use super::offline::OfflineResampler;
use super::pcm::Pcm;
use super::resample::Resampler;
use super::stretch::{Speed, SpeedError, Stretch};

/// Why audio could not be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The input is not in the declared format.
    #[error("the sound cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
    /// The requested output cannot be produced.
    #[error("the sound cannot be encoded: {0}")]
    Encode(#[from] EncodeError),
    /// The speed is not possible.
    #[error(transparent)]
    Speed(#[from] SpeedError),
}

/// Converts one stream. Stereo is mixed down to mono. The duration is divided by the speed.
#[derive(Debug)]
pub struct Converter {
    decoder: StreamDecoder,
    shaper: Shaper,
    encoder: StreamEncoder,
}

/// The stages between decoding and encoding. The rate of the source may only be known from its first audio.
#[derive(Debug)]
struct Shaper {
    resampling: Resampling,
    to: Layout,
    speed: Speed,
    stages: Option<Stages>,
}

#[derive(Debug)]
struct Stages {
    rate: SampleRate,
    stretch: Stretch,
    resampler: RateConverter,
    stretched: Vec<i16>,
}

/// The resampler to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resampling {
    /// [`Resampler`].
    Live,
    /// [`OfflineResampler`].
    Offline,
}

#[derive(Debug)]
enum RateConverter {
    Live(Resampler),
    Offline(OfflineResampler),
}

impl RateConverter {
    fn new(resampling: Resampling, from: SampleRate, to: SampleRate) -> Self {
        let from = Layout::mono(from);
        match resampling {
            Resampling::Live => Self::Live(Resampler::new(from, to)),
            Resampling::Offline => Self::Offline(OfflineResampler::new(from, to)),
        }
    }

    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        match self {
            Self::Live(resampler) => resampler.push(input, output),
            Self::Offline(resampler) => resampler.push(input, output),
        }
    }

    fn finish(&mut self, output: &mut Vec<i16>) {
        match self {
            Self::Live(resampler) => resampler.finish(output),
            Self::Offline(resampler) => resampler.finish(output),
        }
    }
}

impl Converter {
    /// A converter for a stream that is listened to in real time: changing the rate delays it by less than 2 ms. A
    /// `speed` of 2.0 halves the duration without changing the pitch. Must be called in a tokio runtime if the target
    /// is MP3.
    pub fn live(from: AudioFormat, to: AudioFormat, speed: f64) -> Result<Self, ConvertError> {
        Self::new(from, to, speed, Resampling::Live)
    }

    /// The same for audio that nobody listens to in real time: the rate is changed by [`super::offline`], which has a
    /// longer delay and takes more time.
    pub fn offline(from: AudioFormat, to: AudioFormat, speed: f64) -> Result<Self, ConvertError> {
        Self::new(from, to, speed, Resampling::Offline)
    }

    fn new(
        from: AudioFormat,
        to: AudioFormat,
        speed: f64,
        resampling: Resampling,
    ) -> Result<Self, ConvertError> {
        Ok(Self {
            decoder: StreamDecoder::new(from)?,
            shaper: Shaper {
                resampling,
                to: to.layout,
                speed: Speed::new(speed)?,
                stages: None,
            },
            encoder: StreamEncoder::new(to)?,
        })
    }

    /// Converts bytes and returns what is ready.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<Bytes, ConvertError> {
        let mut shaped = Vec::new();
        self.shaper.shape(self.decoder.push(bytes), &mut shaped)?;
        Ok(joined(
            self.encoder.push(&self.shaper.in_layout(shaped)).await?,
        ))
    }

    /// The rest of the stream.
    pub async fn finish(mut self) -> Result<Bytes, ConvertError> {
        let mut shaped = Vec::new();
        self.shaper.shape(self.decoder.finish(), &mut shaped)?;
        self.shaper.finish(&mut shaped);
        let mut ready = self.encoder.push(&self.shaper.in_layout(shaped)).await?;
        ready.extend(self.encoder.finish().await?);
        Ok(joined(ready))
    }
}

impl Shaper {
    /// Appends the chunks to `shaped`, as mono at the target's rate and speed.
    fn shape(&mut self, chunks: Chunks<'_>, shaped: &mut Vec<i16>) -> Result<(), ConvertError> {
        for chunk in chunks {
            let chunk = chunk?.into_mono();
            let stages = self.stages_for(chunk.rate(), shaped);
            stages.stretch.push(chunk.samples(), &mut stages.stretched);
            stages.resampler.push(&stages.stretched, shaped);
            stages.stretched.clear();
        }
        Ok(())
    }

    /// The stages for audio of this rate. If the rate changes (chained files), the old stages are flushed and new ones
    /// created.
    fn stages_for(&mut self, rate: SampleRate, shaped: &mut Vec<i16>) -> &mut Stages {
        if self
            .stages
            .as_ref()
            .is_some_and(|stages| stages.rate != rate)
        {
            self.finish(shaped);
            self.stages = None;
        }
        let (resampling, to, speed) = (self.resampling, self.to.rate, self.speed);
        self.stages.get_or_insert_with(|| Stages {
            rate,
            stretch: Stretch::new(rate, speed),
            resampler: RateConverter::new(resampling, rate, to),
            stretched: Vec::new(),
        })
    }

    fn finish(&mut self, shaped: &mut Vec<i16>) {
        if let Some(stages) = &mut self.stages {
            stages.stretch.finish(&mut stages.stretched);
            stages.resampler.push(&stages.stretched, shaped);
            stages.stretched.clear();
            stages.resampler.finish(shaped);
        }
    }

    fn in_layout(&self, samples: Vec<i16>) -> Pcm {
        Pcm::new(Layout::mono(self.to.rate), samples).into_channels(self.to.channels)
    }
}

fn joined(ready: Vec<Encoded>) -> Bytes {
    let mut ready = ready.into_iter();
    let Some(first) = ready.next() else {
        return Bytes::new();
    };
    let rest: Vec<Encoded> = ready.collect();
    if rest.is_empty() {
        return first.data;
    }
    let mut all = BytesMut::from(first.data);
    for piece in &rest {
        all.extend_from_slice(&piece.data);
    }
    all.freeze()
}
