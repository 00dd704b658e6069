//! The sound of rooms as participants in one process give it to each other: 20 ms at the rate that its publisher has. What a
//! telephone says is not made six times as long on its way to another telephone.

use std::ops::Deref;
use std::sync::Arc;

use super::format::SampleRate;
use super::opus::{CLOCK_HZ, FRAME};

/// How much of the spectrum there is, by the names of RFC 6716, section 2. Opus decodes to each of these rates, and a tick
/// of a room's clock is a part of a sample of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bandwidth {
    /// G.711: 4 kHz, sampled at 8 kHz.
    Narrowband,
    /// G.722 and recognisers: 8 kHz, sampled at 16 kHz.
    Wideband,
    /// Most voices of vendors: 12 kHz, sampled at 24 kHz.
    Superwideband,
    /// All that is audible, sampled at 48 kHz.
    Fullband,
}

impl Bandwidth {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Narrowband,
        Self::Wideband,
        Self::Superwideband,
        Self::Fullband,
    ];

    /// The least with which sound of this rate loses nothing, of what rooms have.
    pub fn of(rate: SampleRate) -> Self {
        let enough = Self::ALL
            .into_iter()
            .find(|bandwidth| bandwidth.rate() >= rate);
        enough.unwrap_or(Self::Fullband)
    }

    /// Samples in a second.
    pub const fn rate(self) -> SampleRate {
        match self {
            Self::Narrowband => SampleRate::HZ_8000,
            Self::Wideband => SampleRate::HZ_16000,
            Self::Superwideband => SampleRate::HZ_24000,
            Self::Fullband => SampleRate::HZ_48000,
        }
    }

    /// Samples in a frame of 20 ms.
    pub const fn frame(self) -> usize {
        self.rate().hz() as usize * FRAME.as_millis() as usize / 1_000
    }

    /// Ticks of a room's clock from one sample to the next.
    pub const fn ticks(self) -> usize {
        (CLOCK_HZ / self.rate().hz()) as usize
    }
}

/// 20 ms of mono sound.
#[derive(Clone, PartialEq, Eq)]
pub struct Samples(Arc<[i16]>);

impl Samples {
    /// From as many samples as a frame of some [`Bandwidth`] has.
    pub fn new(frame: &[i16]) -> Option<Self> {
        let mut all = Bandwidth::ALL.into_iter();
        all.any(|bandwidth| bandwidth.frame() == frame.len())
            .then(|| Self(frame.into()))
    }

    /// What it has.
    pub fn bandwidth(&self) -> Bandwidth {
        let mut all = Bandwidth::ALL.into_iter();
        all.find(|bandwidth| bandwidth.frame() == self.0.len())
            .unwrap_or(Bandwidth::Fullband)
    }
}

impl Deref for Samples {
    type Target = [i16];

    fn deref(&self) -> &[i16] {
        &self.0
    }
}

/// What people say is not for logs.
impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Samples({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_bandwidth_of_their_length() {
        for bandwidth in Bandwidth::ALL {
            let frame = vec![7; bandwidth.frame()];
            let samples = Samples::new(&frame).unwrap();
            assert_eq!((samples.bandwidth(), &*samples), (bandwidth, &*frame));
            assert_eq!(Bandwidth::of(bandwidth.rate()), bandwidth);
            assert_eq!(bandwidth.ticks() * bandwidth.frame(), 960);
        }
        assert_eq!(Samples::new(&[0; 240]), None);
        assert_eq!(Samples::new(&[]), None);
    }

    #[test]
    fn no_rate_loses_what_it_has() {
        let of = |hz: u32| Bandwidth::of(SampleRate::new(hz).unwrap());
        assert_eq!(of(8_000), Bandwidth::Narrowband);
        assert_eq!(of(11_025), Bandwidth::Wideband);
        assert_eq!(of(22_050), Bandwidth::Superwideband);
        assert_eq!(of(24_000), Bandwidth::Superwideband);
        assert_eq!(of(44_100), Bandwidth::Fullband);
        assert_eq!(of(96_000), Bandwidth::Fullband);
    }
}
