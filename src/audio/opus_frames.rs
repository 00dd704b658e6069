//! Sound that is to be heard in a room, cut and encoded: mono sound at any rate and in any chunks becomes Opus frames
//! of 20 ms with a place on the clock, a level, and redundancy against loss. In silence nothing is made. When frames
//! leave is left to others; here time passes as sound is given.

use std::sync::Arc;

use super::format::{Layout, SampleRate};
use super::opus::{Application, MAX_FRAME_PACKET, OpusEncoder, OpusError, OpusSettings};
use super::resample::Resampler;

/// Samples of a frame: 20 ms at 48 kHz.
pub const FRAME: usize = 960;
/// Frames of digital silence that are still sent: 400 ms, so that who hears them knows that it is a pause, and the end
/// of a sentence is not taken for a loss.
const SENT_SILENCE: u32 = 20;
/// The level of digital silence.
const SILENT: u8 = 127;

/// How frames are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSettings {
    /// Bits per second.
    pub bitrate_bps: u32,
    /// 0 (cheap) to 10 (best).
    pub complexity: u8,
    /// The share of lost packets that the redundancy is made for, in percent; `None` for no redundancy.
    pub loss_percent: Option<u8>,
}

impl Default for FrameSettings {
    fn default() -> Self {
        Self {
            bitrate_bps: 32_000,
            complexity: 5,
            loss_percent: Some(10),
        }
    }
}

/// 20 ms of sound, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpusFrame {
    /// The Opus packet, mono.
    pub payload: Arc<[u8]>,
    /// Its place on the clock of 48 kHz, modulo 2³²; it goes on in silence.
    pub timestamp: u32,
    /// Whether it is the first, or the first after silence in which nothing was made.
    pub marker: bool,
    /// How loud it is, in −dBov: 0 is the loudest, 127 silence (RFC 6464).
    pub level: u8,
}

/// Makes frames of one stream.
#[derive(Debug)]
pub struct OpusFrames {
    rate: SampleRate,
    resampler: Resampler,
    encoder: OpusEncoder,
    /// At 48 kHz, less than a frame between two calls.
    waiting: Vec<i16>,
    packet: Box<[u8; MAX_FRAME_PACKET]>,
    timestamp: u32,
    /// Frames of digital silence since the last sound.
    silence: u32,
}

impl OpusFrames {
    /// For mono sound at `rate`. The clock begins at `timestamp`, which a sender chooses at random (RFC 3550 section 5.1).
    pub fn new(
        rate: SampleRate,
        settings: FrameSettings,
        timestamp: u32,
    ) -> Result<Self, OpusError> {
        let encoder = OpusEncoder::new(
            Layout::mono(SampleRate::HZ_48000),
            OpusSettings {
                // Only the model of speech has redundancy.
                application: match settings.loss_percent {
                    Some(_) => Application::Voip,
                    None => Application::Audio,
                },
                bitrate_bps: settings.bitrate_bps,
                complexity: settings.complexity.min(10),
                fec_loss_percent: settings.loss_percent.map(|percent| percent.min(100)),
            },
        )?;
        Ok(Self {
            rate,
            resampler: Resampler::new(Layout::mono(rate), SampleRate::HZ_48000),
            encoder,
            waiting: Vec::with_capacity(2 * FRAME),
            packet: Box::new([0; MAX_FRAME_PACKET]),
            timestamp,
            // The first frame with sound in it is the first of a talk spurt.
            silence: SENT_SILENCE,
        })
    }

    /// The rate of the sound that is taken.
    pub const fn rate(&self) -> SampleRate {
        self.rate
    }

    /// Takes sound, silence included, and appends the frames that are full. After an error the frames before it are
    /// there, and the clock goes on.
    pub fn push(&mut self, sound: &[i16], frames: &mut Vec<OpusFrame>) -> Result<(), OpusError> {
        // In pieces, so that memory is bounded whatever the size of a chunk.
        for piece in sound.chunks(FRAME) {
            self.resampler.push(piece, &mut self.waiting);
            self.encode(frames)?;
        }
        Ok(())
    }

    /// The sound has ended for now: appends what is not framed yet, the last frame filled up with silence.
    pub fn flush(&mut self, frames: &mut Vec<OpusFrame>) -> Result<(), OpusError> {
        self.resampler.finish(&mut self.waiting);
        let whole = self.waiting.len().next_multiple_of(FRAME);
        self.waiting.resize(whole, 0);
        self.encode(frames)
    }

    /// Forgets what is not framed yet.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.resampler = Resampler::new(Layout::mono(self.rate), SampleRate::HZ_48000);
    }

    /// The timestamp of the next frame.
    pub const fn timestamp(&self) -> u32 {
        self.timestamp
    }

    fn encode(&mut self, frames: &mut Vec<OpusFrame>) -> Result<(), OpusError> {
        let mut error = None;
        let (whole, _) = self.waiting.as_chunks::<FRAME>();
        for frame in whole {
            let timestamp = self.timestamp;
            self.timestamp = timestamp.wrapping_add(FRAME as u32);
            let level = level(frame);
            let marker = self.silence >= SENT_SILENCE;
            if level < SILENT || frame.iter().any(|sample| *sample != 0) {
                self.silence = 0;
            } else if marker {
                continue;
            } else {
                self.silence += 1;
            }
            match self.encoder.encode(frame, &mut self.packet[..]) {
                Ok(length) => frames.push(OpusFrame {
                    payload: Arc::from(self.packet.get(..length).unwrap_or_default()),
                    timestamp,
                    marker,
                    level,
                }),
                Err(failed) => error = Some(failed),
            }
        }
        let framed = whole.len() * FRAME;
        self.waiting.drain(..framed);
        error.map_or(Ok(()), Err)
    }
}

/// The level of a piece of sound in −dBov (RFC 6464 section 3): its mean power relative to that of a square wave at full
/// scale.
pub fn level(samples: &[i16]) -> u8 {
    let energy: f64 = samples.iter().map(|&s| f64::from(s) * f64::from(s)).sum();
    let power = energy / (samples.len().max(1) as f64 * 32_768.0 * 32_768.0);
    // From a float to an integer is saturating: silence, which is infinitely quiet, too.
    (-10.0 * power.log10())
        .round()
        .clamp(0.0, f64::from(SILENT)) as u8
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;

    use proptest::prelude::*;

    use super::super::opus::{OpusDecoder, carries_redundancy};
    use super::*;

    fn tone(hz: u32, ms: u32) -> Vec<i16> {
        (0..hz / 1_000 * ms)
            .map(|n| ((440.0 / hz as f32 * n as f32).fract() * TAU).sin() * 12_000.0)
            .map(|sample| sample as i16)
            .collect()
    }

    fn at(hz: u32) -> OpusFrames {
        let rate = SampleRate::new(hz).unwrap();
        OpusFrames::new(rate, FrameSettings::default(), u32::MAX - 1_000).unwrap()
    }

    fn frames(opus: &mut OpusFrames, sound: &[i16], chunk: usize) -> Vec<OpusFrame> {
        let mut frames = Vec::new();
        for chunk in sound.chunks(chunk) {
            opus.push(chunk, &mut frames).unwrap();
        }
        frames
    }

    #[test]
    fn sound_at_every_rate_arrives_as_long_and_as_loud_as_it_was() {
        for hz in [8_000, 16_000, 22_050, 24_000, 44_100, 48_000] {
            let sound = tone(hz, 1_000);
            let mut opus = at(hz);
            let mut made = frames(&mut opus, &sound, 777);
            opus.flush(&mut made).unwrap();
            // What 44.1 kHz has in a whole second of thousandths is a little less than a second.
            assert!((49..=51).contains(&made.len()), "{hz}: {}", made.len());
            let mut decoder = OpusDecoder::new(Layout::mono(SampleRate::HZ_48000)).unwrap();
            let mut heard = Vec::new();
            for frame in &made {
                decoder.decode(&frame.payload, &mut heard).unwrap();
            }
            assert!(level(&heard[9_600..38_400]).abs_diff(level(&sound)) <= 1);
            assert!(made.iter().any(|frame| carries_redundancy(&frame.payload)));
        }
    }

    #[test]
    fn timestamps_go_on_through_silence_in_which_nothing_is_made() {
        let mut opus = at(48_000);
        let sound = [tone(48_000, 200), vec![0; 48_000], tone(48_000, 100)].concat();
        let made = frames(&mut opus, &sound, 480);
        // 200 ms, 400 ms of silence, 100 ms.
        assert_eq!(made.len(), 10 + 20 + 5);
        for (n, frame) in made.iter().enumerate() {
            let place = if n < 30 { n } else { n + 30 } as u32;
            let first = u32::MAX - 1_000;
            assert_eq!(frame.timestamp, first.wrapping_add(place * 960));
            assert_eq!(frame.marker, n == 0 || n == 30);
            assert_eq!(frame.level == SILENT, (10..30).contains(&n));
        }
    }

    #[test]
    fn before_the_first_sound_nothing_is_made() {
        assert!(frames(&mut at(16_000), &vec![0; 16_000], 320).is_empty());
    }

    #[test]
    fn what_is_cleared_is_in_no_frame() {
        let mut opus = at(24_000);
        let mut made = frames(&mut opus, &tone(24_000, 39), 24);
        assert_eq!(made.len(), 1);
        opus.clear();
        opus.flush(&mut made).unwrap();
        assert_eq!(made.len(), 1);
        let silent = frames(&mut opus, &[0; 480], 480);
        assert!(silent.iter().all(|frame| frame.level == SILENT));
    }

    #[test]
    fn levels_are_those_of_the_standard() {
        assert_eq!(level(&[i16::MIN; 960]), 0);
        assert_eq!(level(&[0; 960]), 127);
        assert_eq!(level(&[]), 127);
        assert_eq!(level(&[3_277; 960]), 20);
        let sine: Vec<i16> = tone(48_000, 100).iter().map(|s| s * 2).collect();
        assert_eq!(level(&sine), 6);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn frames_do_not_depend_on_the_chunks(
            sound in proptest::collection::vec(any::<i16>(), 0..4_000),
            chunk in 1_usize..2_000,
        ) {
            let whole = frames(&mut at(16_000), &sound, 4_000);
            prop_assert!(whole == frames(&mut at(16_000), &sound, chunk));
        }
    }
}
