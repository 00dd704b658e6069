//! The audio formats that a synthesiser delivers, as data, and the choice of the nearest one.

use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};

/// An encoding that a synthesiser delivers, with one channel, at these rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputFormat {
    /// Without a header: linear16, mulaw or alaw.
    pub encoding: Encoding,
    /// In hertz, ascending.
    pub rates: &'static [u32],
    /// The vendor's name of the encoding, or of the encoding at its only rate.
    pub name: &'static str,
}

impl OutputFormat {
    /// A row of a vendor's table.
    pub const fn new(encoding: Encoding, rates: &'static [u32], name: &'static str) -> Self {
        Self {
            encoding,
            rates,
            name,
        }
    }

    /// The format of `delivered` that is nearest to the preferred one, and its name: the same encoding at the same rate
    /// where there is one, else linear16 at the next higher rate (nothing is lost), else at the highest.
    pub fn nearest(delivered: &[Self], preferred: AudioFormat) -> (AudioFormat, &'static str) {
        let wanted = preferred.layout.rate;
        let all = || {
            delivered.iter().flat_map(|row| {
                let rates = row.rates.iter().filter_map(|&hz| SampleRate::new(hz).ok());
                rates.map(|rate| (AudioFormat::mono(row.encoding, rate), row.name))
            })
        };
        let linear = || all().filter(|(format, _)| format.encoding == Encoding::Linear16);
        let rate = |(format, _): &(AudioFormat, _)| format.layout.rate;
        let same = AudioFormat::mono(preferred.encoding, wanted);
        all()
            .find(|(format, _)| *format == same)
            .or_else(|| linear().filter(|row| rate(row) >= wanted).min_by_key(rate))
            .or_else(|| linear().max_by_key(rate))
            // Whoever declares no linear16 delivers it at any rate.
            .unwrap_or((AudioFormat::mono(Encoding::Linear16, wanted), ""))
    }

    /// The rates of linear16, as a voice lists them.
    pub fn linear_rates(delivered: &[Self]) -> Vec<u32> {
        let linear = delivered
            .iter()
            .filter(|row| row.encoding == Encoding::Linear16);
        linear.flat_map(|row| row.rates).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Encoding::{Alaw, Linear16, Mp3, Mulaw};

    const DELIVERED: &[OutputFormat] = &[
        OutputFormat::new(Mulaw, &[8_000], "ulaw"),
        OutputFormat::new(Linear16, &[8_000, 16_000], "pcm"),
        OutputFormat::new(Linear16, &[22_050], "pcm22"),
    ];

    #[test]
    fn a_format_that_loses_nothing_is_chosen() {
        for (encoding, hz, chosen) in [
            (Mulaw, 8_000, (Mulaw, 8_000, "ulaw")),
            (Mulaw, 16_000, (Linear16, 16_000, "pcm")),
            (Alaw, 8_000, (Linear16, 8_000, "pcm")),
            (Mp3, 11_025, (Linear16, 16_000, "pcm")),
            (Linear16, 16_001, (Linear16, 22_050, "pcm22")),
            (Linear16, 48_000, (Linear16, 22_050, "pcm22")),
        ] {
            let preferred = AudioFormat::mono(encoding, SampleRate::new(hz as u32).unwrap());
            let (format, name) = OutputFormat::nearest(DELIVERED, preferred);
            assert_eq!((format.encoding, format.layout.rate.hz(), name), chosen);
        }
        assert_eq!(
            OutputFormat::linear_rates(DELIVERED),
            [8_000, 16_000, 22_050]
        );
    }
}
