//! Something like a vowel, for measurements that need sound with harmonics.

use vivavoce::audio::{Layout, Pcm};

/// So many frames of it, each as long as `samples` samples over all channels.
pub fn frames(layout: Layout, samples: usize, count: usize) -> Vec<Pcm> {
    let vowel: Vec<i16> = (0..samples * count)
        .map(|n| {
            let time = n as f64 / f64::from(layout.rate.hz()) * std::f64::consts::TAU;
            let sum: f64 = (1..20)
                .map(|k| (time * 140.0 * f64::from(k)).sin() / f64::from(k))
                .sum();
            (sum * 6_000.0) as i16
        })
        .collect();
    let frames = vowel.chunks_exact(samples);
    frames
        .map(|frame| Pcm::new(layout, frame.to_vec()))
        .collect()
}
