//! Reading recordings, and what both comparisons compute of sound.

use std::io::Cursor;
use std::time::Duration;

use vivavoce_audio::decode::{FileDecoder, FileLimits};
use vivavoce_audio::{Layout, OfflineResampler, Pcm, SampleRate};

/// The recordings one after the other with half a second between them, at `hz`, in one channel.
pub fn speech(files: &[&str], hz: u32) -> Vec<i16> {
    let limits = FileLimits {
        duration: Duration::from_mins(10),
    };
    let mut all = Vec::new();
    for file in files {
        let bytes = std::fs::read(file).expect("a file");
        let file = FileDecoder::open(Cursor::new(bytes), limits).expect("a sound file");
        let from = file.layout().rate.hz();
        let pieces = file.map(|sound| sound.expect("sound").into_mono());
        let samples: Vec<i16> = pieces.flat_map(|piece| piece.into_samples()).collect();
        all.extend(at_rate(&samples, from, hz));
        all.resize(all.len() + hz as usize / 2, 0);
    }
    all
}

/// Mono sound at another rate.
pub fn at_rate(samples: &[i16], from: u32, to: u32) -> Vec<i16> {
    let rate = |hz| SampleRate::new(hz).expect("a rate");
    let sound = Pcm::new(Layout::mono(rate(from)), samples.to_vec());
    OfflineResampler::convert(sound, rate(to)).into_samples()
}

pub fn level(samples: &[f32]) -> f32 {
    let energy: f32 = samples.iter().map(|sample| sample * sample).sum();
    (energy / samples.len() as f32).sqrt()
}

pub fn to_f32(samples: &[i16]) -> Vec<f32> {
    samples.iter().map(|&sample| f32::from(sample)).collect()
}

/// How alike two stretches of sound are whatever their loudness: 1 is the same.
pub fn correlation(left: &[f32], right: &[f32]) -> f32 {
    let (mut product, mut of_left, mut of_right) = (0.0, 1.0, 1.0);
    for (a, b) in left.iter().zip(right) {
        product += a * b;
        of_left += a * a;
        of_right += b * b;
    }
    product / (of_left * of_right).sqrt()
}

pub fn percentile(values: &mut [f32], percent: usize) -> f32 {
    values.sort_by(f32::total_cmp);
    values[(values.len() - 1) * percent / 100]
}
