//! Opus (RFC 6716) over libopus: an encoder of 20 ms frames, and a decoder with concealment. Which packets were lost is
//! known to the jitter buffer; [`super::ogg`] is the container.

use std::sync::Arc;
use std::time::Duration;

use super::format::{Channels, Layout, SampleRate};

/// The duration of encoded frames.
pub const FRAME: Duration = Duration::from_millis(20);
/// The maximum size of an encoded frame (RFC 6716, section 3.4, R2), plus the TOC byte.
pub const MAX_FRAME_PACKET: usize = 1_276;
/// The maximum duration of a packet (RFC 6716, section 3.4, R5).
pub const MAX_PACKET_DURATION: Duration = Duration::from_millis(120);
/// The clock of packets, pre-skip and granule positions, whatever the sample rate.
pub const CLOCK_HZ: u32 = 48_000;

/// Why encoding or decoding failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpusError {
    /// Opus does not support the rate.
    #[error("Opus has no sample rate of {0}; use 8000, 12000, 16000, 24000 or 48000 Hz")]
    Rate(SampleRate),
    /// The input is not one frame of [`FRAME`].
    #[error("an Opus frame of 20 ms has {expected} samples, not {got}")]
    FrameLength {
        /// Samples of one frame, over all channels.
        expected: usize,
        /// Samples given.
        got: usize,
    },
    /// Not an Opus packet.
    #[error("not an Opus packet: {0}")]
    Packet(&'static str),
    /// A loss that cannot be concealed in one step.
    #[error("a loss of {} ms cannot be concealed; use a multiple of 2.5 ms up to 120 ms", .0.as_millis())]
    Loss(Duration),
    /// An error of libopus.
    #[error("libopus, {function}: {}", code.description())]
    Library {
        /// The function.
        function: &'static str,
        /// The error.
        code: ::opus::ErrorCode,
    },
}

impl From<::opus::Error> for OpusError {
    fn from(error: ::opus::Error) -> Self {
        Self::Library {
            function: error.function(),
            code: error.code(),
        }
    }
}

/// Whether libopus supports `rate`.
pub const fn has_rate(rate: SampleRate) -> bool {
    matches!(rate.hz(), 8_000 | 12_000 | 16_000 | 24_000 | 48_000)
}

const fn library_channels(channels: Channels) -> ::opus::Channels {
    match channels {
        Channels::Mono => ::opus::Channels::Mono,
        Channels::Stereo => ::opus::Channels::Stereo,
    }
}

/// What the encoder optimises for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// Speech intelligibility.
    Voip,
    /// Fidelity to the input.
    Audio,
}

/// The settings of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpusSettings {
    /// What to optimise for.
    pub application: Application,
    /// Bits per second, 500 to 512,000.
    pub bitrate_bps: u32,
    /// Complexity, from 0 (cheap) to 10 (best).
    pub complexity: u8,
    /// In-band forward error correction (FEC) for this loss rate in percent. Only the SILK mode supports it:
    /// [`Application::Voip`] at a moderate bit rate.
    pub fec_loss_percent: Option<u8>,
}

impl OpusSettings {
    /// A voice over a reliable transport. At this bit rate fidelity is possible: the filters and the SILK mode that
    /// `Voip` prefers would cost 18 dB of signal-to-noise ratio.
    pub const SPEECH: Self = Self {
        application: Application::Audio,
        bitrate_bps: 32_000,
        complexity: 5,
        fec_loss_percent: None,
    };

    /// A recording, of one side or of two that rarely speak at once.
    pub const fn recording(channels: Channels) -> Self {
        Self {
            bitrate_bps: match channels {
                Channels::Mono => 32_000,
                Channels::Stereo => 48_000,
            },
            ..Self::SPEECH
        }
    }
}

/// An encoder; its state spans the whole stream.
#[derive(Debug)]
pub struct OpusEncoder {
    encoder: ::opus::Encoder,
    layout: Layout,
    frame_samples: usize,
    pre_skip: u16,
}

impl OpusEncoder {
    /// An encoder for audio of `layout`.
    pub fn new(layout: Layout, settings: OpusSettings) -> Result<Self, OpusError> {
        if !has_rate(layout.rate) {
            return Err(OpusError::Rate(layout.rate));
        }
        let application = match settings.application {
            Application::Voip => ::opus::Application::Voip,
            Application::Audio => ::opus::Application::Audio,
        };
        let hz = layout.rate.hz();
        let mut encoder = ::opus::Encoder::new(hz, library_channels(layout.channels), application)?;
        let bitrate = i32::try_from(settings.bitrate_bps).unwrap_or(i32::MAX);
        encoder.set_bitrate(::opus::Bitrate::Bits(bitrate))?;
        encoder.set_complexity(settings.complexity.into())?;
        if let Some(percent) = settings.fec_loss_percent {
            encoder.set_inband_fec(true)?;
            encoder.set_packet_loss_perc(percent.into())?;
        }
        let lookahead = u32::try_from(encoder.get_lookahead()?).unwrap_or(0);
        Ok(Self {
            encoder,
            layout,
            frame_samples: layout.samples_in(FRAME),
            pre_skip: u16::try_from(lookahead * (CLOCK_HZ / hz)).unwrap_or(u16::MAX),
        })
    }

    /// The layout of the input.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Samples of one frame, over all channels.
    pub const fn frame_samples(&self) -> usize {
        self.frame_samples
    }

    /// The delay of the decoded audio, in frames at 48 kHz: the pre-skip of RFC 7845.
    pub const fn pre_skip(&self) -> u16 {
        self.pre_skip
    }

    /// Protects packets against this loss in percent from now on, by redundancy, which only SILK has; not any more. Without
    /// loss the input is encoded without SILK: closer to the original, and at several times less. The high-pass filter of
    /// [`Application::Voip`] stays.
    pub fn protect(&mut self, loss_percent: Option<u8>) -> Result<(), OpusError> {
        let signal = match loss_percent {
            Some(_) => ::opus::Signal::Auto,
            // Nothing else keeps `Voip` from SILK.
            None => ::opus::Signal::Music,
        };
        self.encoder.set_signal(signal)?;
        self.encoder.set_inband_fec(loss_percent.is_some())?;
        let percent = loss_percent.unwrap_or(0);
        Ok(self.encoder.set_packet_loss_perc(percent.into())?)
    }

    /// Changes the complexity, 0 to 10.
    pub fn set_complexity(&mut self, complexity: u8) -> Result<(), OpusError> {
        Ok(self.encoder.set_complexity(complexity.into())?)
    }

    /// Encodes exactly one frame into `packet` and returns its length. [`MAX_FRAME_PACKET`] bytes always suffice; with
    /// fewer, the encoder keeps within them.
    pub fn encode(&mut self, frame: &[i16], packet: &mut [u8]) -> Result<usize, OpusError> {
        if frame.len() != self.frame_samples {
            return Err(OpusError::FrameLength {
                expected: self.frame_samples,
                got: frame.len(),
            });
        }
        Ok(self.encoder.encode(frame, packet)?)
    }
}

/// An encoder of frames that exists only while they are needed: it is most of what a stream takes.
#[derive(Debug)]
pub struct OccasionalEncoder {
    layout: Layout,
    settings: OpusSettings,
    /// Whether what [`OpusSettings::fec_loss_percent`] says is needed.
    is_protected: bool,
    encoder: Option<OpusEncoder>,
    packet: Vec<u8>,
}

impl OccasionalEncoder {
    /// For frames of this layout.
    pub fn new(layout: Layout, settings: OpusSettings) -> Self {
        Self {
            layout,
            settings,
            is_protected: true,
            encoder: None,
            packet: vec![0; MAX_FRAME_PACKET],
        }
    }

    /// Whether packets are lost from now on, so that they need the redundancy that the settings ask for.
    pub fn protect(&mut self, needed: bool) -> Result<(), OpusError> {
        let has_changed = self.settings.fec_loss_percent.is_some() && self.is_protected != needed;
        if let Some(encoder) = self.encoder.as_mut().filter(|_| has_changed) {
            encoder.protect(self.settings.fec_loss_percent.filter(|_| needed))?;
        }
        self.is_protected = needed;
        Ok(())
    }

    /// How hard it tries from now on, see [`OpusSettings::complexity`].
    pub fn set_complexity(&mut self, complexity: u8) -> Result<(), OpusError> {
        if self.settings.complexity != complexity {
            self.settings.complexity = complexity;
            if let Some(encoder) = &mut self.encoder {
                encoder.set_complexity(complexity)?;
            }
        }
        Ok(())
    }

    /// The packet of a frame where that is needed; else the encoder goes until one is.
    pub fn encode(&mut self, frame: &[i16], needed: bool) -> Result<Option<Arc<[u8]>>, OpusError> {
        if !needed {
            self.encoder = None;
            return Ok(None);
        }
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => {
                let mut encoder = OpusEncoder::new(self.layout, self.settings)?;
                if !self.is_protected && self.settings.fec_loss_percent.is_some() {
                    encoder.protect(None)?;
                }
                none.insert(encoder)
            }
        };
        let bytes = encoder.encode(frame, &mut self.packet)?;
        Ok(self.packet.get(..bytes).map(Arc::from))
    }
}

/// A decoder for one stream. Its output layout is independent of the encoder's.
#[derive(Debug)]
pub struct OpusDecoder {
    decoder: ::opus::Decoder,
    layout: Layout,
}

impl OpusDecoder {
    /// A decoder with output of `layout`.
    pub fn new(layout: Layout) -> Result<Self, OpusError> {
        if !has_rate(layout.rate) {
            return Err(OpusError::Rate(layout.rate));
        }
        let decoder = ::opus::Decoder::new(layout.rate.hz(), library_channels(layout.channels))?;
        Ok(Self { decoder, layout })
    }

    /// The layout of the output.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Appends the audio of `packet` to `samples`.
    pub fn decode(&mut self, packet: &[u8], samples: &mut Vec<i16>) -> Result<(), OpusError> {
        let frames = clock_frames(packet)? / (CLOCK_HZ / self.layout.rate.hz());
        self.run(packet, frames as usize, false, samples)
    }

    /// Conceals a loss: appends `lost` of audio that continues what was decoded before. `lost` is a multiple of 2.5 ms,
    /// at most [`MAX_PACKET_DURATION`].
    pub fn conceal(&mut self, lost: Duration, samples: &mut Vec<i16>) -> Result<(), OpusError> {
        let frames = self.lost_frames(lost)?;
        self.run(&[], frames, false, samples)
    }

    /// Appends the last `lost` of audio before `next`, from the FEC data in `next` if there is any, otherwise like
    /// [`Self::conceal`]. `next` itself is to be decoded afterwards.
    pub fn recover(
        &mut self,
        next: &[u8],
        lost: Duration,
        samples: &mut Vec<i16>,
    ) -> Result<(), OpusError> {
        clock_frames(next)?;
        let frames = self.lost_frames(lost)?;
        self.run(next, frames, true, samples)
    }

    fn lost_frames(&self, lost: Duration) -> Result<usize, OpusError> {
        let frames = self.layout.rate.frames_in(lost);
        let unit = self.layout.rate.hz() as usize / 400;
        if lost > MAX_PACKET_DURATION || frames == 0 || !frames.is_multiple_of(unit) {
            return Err(OpusError::Loss(lost));
        }
        Ok(frames)
    }

    fn run(
        &mut self,
        packet: &[u8],
        frames: usize,
        fec: bool,
        samples: &mut Vec<i16>,
    ) -> Result<(), OpusError> {
        let channels = self.layout.channels.count();
        let start = samples.len();
        samples.resize(start + frames * channels, 0);
        match self.decoder.decode(packet, &mut samples[start..], fec) {
            Ok(decoded) => {
                samples.truncate(start + decoded * channels);
                Ok(())
            }
            Err(error) => {
                samples.truncate(start);
                Err(error.into())
            }
        }
    }
}

/// Packets of digital silence, for this many times 2.5 ms: full-band CELT frames (configurations 28 to 31 of table 2 in
/// RFC 6716) that only contain the silence flag (section 4.3).
pub fn silent_packets(mut units: u32) -> impl Iterator<Item = [u8; 3]> {
    const SIZES: [(u32, u8); 4] = [(8, 31), (4, 30), (2, 29), (1, 28)];
    std::iter::from_fn(move || {
        let (size, configuration) = SIZES.into_iter().find(|(size, _)| *size <= units)?;
        units -= size;
        Some([configuration << 3, 0xFF, 0xFE])
    })
}

/// The duration of `packet`, read from its first two bytes without decoding.
pub fn packet_duration(packet: &[u8]) -> Result<Duration, OpusError> {
    Ok(SampleRate::HZ_48000.duration_of(clock_frames(packet)? as usize))
}

/// [`packet_duration`] in frames of 48 kHz: at least 120 (2.5 ms), at most 5,760 (120 ms).
pub fn clock_frames(packet: &[u8]) -> Result<u32, OpusError> {
    /// Frames at 48 kHz of the 32 configurations, table 2 of RFC 6716.
    const FRAMES: [u32; 32] = {
        const SILK: [u32; 4] = [480, 960, 1_920, 2_880];
        const CELT: [u32; 4] = [120, 240, 480, 960];
        let mut frames = [0; 32];
        let mut config = 0;
        while config < 32 {
            frames[config] = match config {
                0..12 => SILK[config % 4],
                // Hybrid: 10 and 20 ms.
                12..16 => SILK[config % 2],
                _ => CELT[config % 4],
            };
            config += 1;
        }
        frames
    };
    const MAX: u32 = CLOCK_HZ / 1_000 * 120;

    let toc = *packet.first().ok_or(OpusError::Packet("it is empty"))?;
    let count = match toc & 0b11 {
        0 => 1,
        1 if packet.len().is_multiple_of(2) => {
            return Err(OpusError::Packet("two equal frames of odd length"));
        }
        1 | 2 => 2,
        _ => match packet.get(1) {
            Some(byte) if byte & 0x3F > 0 => u32::from(byte & 0x3F),
            _ => return Err(OpusError::Packet("it has no frames")),
        },
    };
    match count * FRAMES[usize::from(toc >> 3)] {
        frames @ 1..=MAX => Ok(frames),
        _ => Err(OpusError::Packet("it is longer than 120 ms")),
    }
}

/// Whether `packet` contains FEC data for [`OpusDecoder::recover`]: the LBRR flag at the start of its first SILK frame
/// (RFC 6716, section 4.2.3), which only SILK and hybrid packets have.
pub fn carries_redundancy(packet: &[u8]) -> bool {
    let Some(toc) = packet.first() else {
        return false;
    };
    let silk_frames = match toc >> 3 {
        configuration @ 0..12 => [1, 1, 2, 3][usize::from(configuration % 4)],
        12..16 => 1,
        _ => return false,
    };
    let head = match toc & 0b11 {
        0 | 1 => 1,
        // Two frames with a length between them, of one or two bytes.
        2 if packet.get(1).is_some_and(|length| *length >= 252) => 3,
        2 => 2,
        // With padding and lengths: rare, and concealment is good enough.
        _ => return false,
    };
    // After a voice activity flag for each SILK frame of the channel.
    packet
        .get(head)
        .is_some_and(|flags| flags & (0x80 >> silk_frames) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATES: [u32; 5] = [8_000, 12_000, 16_000, 24_000, 48_000];

    fn layout(hz: u32, channels: Channels) -> Layout {
        Layout::new(SampleRate::new(hz).unwrap(), channels)
    }

    fn tone(layout: Layout, frames: usize) -> Vec<i16> {
        let step = 440.0 * std::f32::consts::TAU / layout.rate.hz() as f32;
        (0..frames)
            .flat_map(|n| {
                let sample = ((n as f32 * step).sin() * 12_000.0) as i16;
                std::iter::repeat_n(sample, layout.channels.count())
            })
            .collect()
    }

    fn packets(encoder: &mut OpusEncoder, sound: &[i16]) -> Vec<Vec<u8>> {
        sound
            .chunks_exact(encoder.frame_samples())
            .map(|frame| {
                let mut packet = vec![0; MAX_FRAME_PACKET];
                let len = encoder.encode(frame, &mut packet).unwrap();
                packet.truncate(len);
                packet
            })
            .collect()
    }

    fn energy(samples: &[i16]) -> f64 {
        samples.iter().map(|&s| f64::from(s).powi(2)).sum::<f64>() / samples.len() as f64
    }

    #[test]
    fn silent_packets_are_silent_and_as_long_as_they_say() {
        let layout = layout(48_000, Channels::Mono);
        for units in 1..=20 {
            let mut decoder = OpusDecoder::new(layout).unwrap();
            let mut samples = Vec::new();
            for packet in silent_packets(units) {
                decoder.decode(&packet, &mut samples).unwrap();
            }
            assert_eq!(samples.len(), units as usize * 120);
            assert!(samples.iter().all(|sample| *sample == 0));
        }
    }

    #[test]
    fn a_tone_survives_at_every_rate_and_with_every_number_of_channels() {
        for hz in RATES {
            for channels in [Channels::Mono, Channels::Stereo] {
                let layout = layout(hz, channels);
                let sound = tone(layout, hz as usize / 2);
                let mut encoder = OpusEncoder::new(layout, OpusSettings::SPEECH).unwrap();
                let mut decoder = OpusDecoder::new(layout).unwrap();
                let mut heard = Vec::new();
                for packet in packets(&mut encoder, &sound) {
                    assert_eq!(packet_duration(&packet), Ok(FRAME));
                    decoder.decode(&packet, &mut heard).unwrap();
                }
                assert_eq!(heard.len(), sound.len());
                let ratio = energy(&heard[heard.len() / 2..]) / energy(&sound);
                assert!((0.8..1.25).contains(&ratio), "{layout}: {ratio}");
            }
        }
    }

    #[test]
    fn a_rate_that_opus_lacks_and_a_frame_of_another_length_are_errors() {
        let odd = layout(44_100, Channels::Mono);
        assert!(matches!(OpusDecoder::new(odd), Err(OpusError::Rate(_))));
        let narrow = layout(8_000, Channels::Mono);
        let mut encoder = OpusEncoder::new(narrow, OpusSettings::SPEECH).unwrap();
        assert!(matches!(
            encoder.encode(&[0; 159], &mut [0; 100]),
            Err(OpusError::FrameLength { .. })
        ));
    }

    #[test]
    fn a_lost_packet_is_concealed_and_with_forward_error_correction_recovered() {
        let wide = layout(16_000, Channels::Mono);
        let settings = OpusSettings {
            application: Application::Voip,
            fec_loss_percent: Some(30),
            ..OpusSettings::SPEECH
        };
        // A burst of sound in one packet alone: only the redundancy in the next one can bring it back.
        let mut sound = vec![0; 320 * 20];
        sound[320 * 10..320 * 11].copy_from_slice(&tone(wide, 320));
        let mut encoder = OpusEncoder::new(wide, settings).unwrap();
        let packets = packets(&mut encoder, &sound);
        let mut heard = [Vec::new(), Vec::new()];
        for (fec, heard) in heard.iter_mut().enumerate() {
            let mut decoder = OpusDecoder::new(wide).unwrap();
            for (n, packet) in packets.iter().enumerate() {
                match n {
                    10 if fec == 1 => decoder.recover(&packets[11], FRAME, heard).unwrap(),
                    10 => decoder.conceal(FRAME, heard).unwrap(),
                    _ => decoder.decode(packet, heard).unwrap(),
                }
            }
            assert_eq!(heard.len(), sound.len());
        }
        assert!(packets.iter().any(|packet| carries_redundancy(packet)));
        let lost = 320 * 10..320 * 11;
        let [concealed, recovered] = heard;
        assert!(energy(&recovered[lost.clone()]) > 100.0 * energy(&concealed[lost]).max(1.0));
    }

    #[test]
    fn without_forward_error_correction_no_packet_claims_to_carry_any() {
        let sound = tone(layout(16_000, Channels::Mono), 16_000);
        let settings = OpusSettings {
            application: Application::Voip,
            ..OpusSettings::SPEECH
        };
        let mut encoder = OpusEncoder::new(layout(16_000, Channels::Mono), settings).unwrap();
        let packets = packets(&mut encoder, &sound);
        assert!(packets.iter().any(|packet| packet[0] >> 3 < 16));
        assert!(!packets.iter().any(|packet| carries_redundancy(packet)));
        assert!(!carries_redundancy(&[]) && !carries_redundancy(&[0]));
    }

    /// Protected or not, from one frame to the next, without a click.
    #[test]
    fn packets_carry_redundancy_where_they_are_lost() {
        let layout = layout(48_000, Channels::Mono);
        let settings = OpusSettings {
            application: Application::Voip,
            bitrate_bps: 40_000,
            complexity: 5,
            fec_loss_percent: Some(10),
        };
        let mut encoder = OccasionalEncoder::new(layout, settings);
        let mut decoder = OpusDecoder::new(layout).unwrap();
        let tone = |n: usize| ((n as f32 * 300.0 / 48_000.0).fract() * std::f32::consts::TAU).sin();
        let sound: Vec<i16> = (0..300 * 960)
            .map(|n| (tone(n) * 10_000.0) as i16)
            .collect();
        let mut heard = Vec::new();
        let mut carrying = [0; 6];
        for (n, frame) in sound.chunks_exact(960).enumerate() {
            encoder.protect((n / 50).is_multiple_of(2)).unwrap();
            let packet = encoder.encode(frame, true).unwrap().unwrap();
            carrying[n / 50] += usize::from(carries_redundancy(&packet));
            decoder.decode(&packet, &mut heard).unwrap();
        }
        // What was in the packet before a change may still be in the one behind it.
        let [first, plain, second, again, third, last] = carrying;
        assert!(
            [first, second, third].iter().all(|carry| *carry > 20),
            "{carrying:?}"
        );
        assert!(
            [plain, again, last].iter().all(|carry| *carry <= 2),
            "{carrying:?}"
        );
        let steps = heard[9_600..]
            .windows(2)
            .map(|pair| pair[0].abs_diff(pair[1]));
        // Its own steepest step is 393.
        assert!(steps.clone().all(|step| step < 800), "{:?}", steps.max());
    }

    #[test]
    fn no_loss_or_an_endless_one_is_not_concealed() {
        let mut decoder = OpusDecoder::new(layout(48_000, Channels::Mono)).unwrap();
        let mut samples = Vec::new();
        for lost in [0, 1, 140, 3_600_000].map(Duration::from_millis) {
            assert_eq!(
                decoder.conceal(lost, &mut samples),
                Err(OpusError::Loss(lost))
            );
        }
        assert!(samples.is_empty());
    }

    #[test]
    fn durations_follow_the_table_of_configurations() {
        let micros = |toc: u8| packet_duration(&[toc, 0]).unwrap().as_micros();
        let silk = [10_000, 20_000, 40_000, 60_000];
        let celt = [2_500, 5_000, 10_000, 20_000];
        for config in 0..32u8 {
            let expected = match config {
                0..=11 => silk[usize::from(config % 4)],
                12..=15 => silk[usize::from(config % 2)],
                _ => celt[usize::from(config % 4)],
            };
            assert_eq!(micros(config << 3), expected);
            assert_eq!(micros(config << 3 | 2), 2 * expected);
        }
        assert!(packet_duration(&[]).is_err());
        assert!(packet_duration(&[3]).is_err());
        assert!(packet_duration(&[3, 0]).is_err());
        assert_eq!(packet_duration(&[3, 12]), Ok(MAX_PACKET_DURATION));
        assert!(packet_duration(&[3, 13]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn garbage_is_an_error_or_as_long_as_it_says(garbage: Vec<u8>, stereo: bool) {
            let channels = if stereo { Channels::Stereo } else { Channels::Mono };
            let mut decoder = OpusDecoder::new(layout(48_000, channels)).unwrap();
            let mut samples = Vec::new();
            let decoded = decoder.decode(&garbage, &mut samples);
            // Our reading of the first bytes is libopus' own.
            prop_assert_eq!(
                clock_frames(&garbage).ok(),
                ::opus::packet::get_nb_samples(&garbage, CLOCK_HZ).ok()
                    .filter(|_| garbage[0] & 3 != 1 || garbage.len() % 2 == 1)
                    .filter(|&frames| frames > 0)
                    .map(|frames| frames as u32)
            );
            match decoded {
                Ok(()) => prop_assert_eq!(
                    samples.len(),
                    clock_frames(&garbage).unwrap() as usize * channels.count()
                ),
                Err(_) => prop_assert!(samples.is_empty()),
            }
        }
    }
}
