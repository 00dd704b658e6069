//! Tones: made by sox for telephones to play, and recognised in what telephones have recorded.

use std::path::Path;

use crate::harness::run;

/// A WAV file of so many seconds of a tone; a silent one at 0 Hz.
pub fn wav(file: &Path, rate: u32, hertz: u32, seconds: u32) {
    let volume = if hertz == 0 { "0" } else { "0.4" };
    let arguments = format!(
        "-n -r {rate} -c 1 -b 16 {} synth {seconds} sine {hertz} vol {volume}",
        file.display()
    );
    run("sox", arguments.split_whitespace());
}

/// The same in headerless mu-law at 8 kHz.
pub fn mu_law(file: &Path, hertz: u32, seconds: u32) {
    let arguments = format!(
        "-n -r 8000 -c 1 -e u-law -t raw {} synth {seconds} sine {hertz} vol 0.4",
        file.display()
    );
    run("sox", arguments.split_whitespace());
}

/// What the newest half second of 16-bit samples sounds like: the strongest frequency, and 0 for silence or less sound
/// than that.
pub fn heard(samples: &[i16], rate: u32) -> u32 {
    let length = rate as usize / 2;
    let Some(part) = samples
        .len()
        .checked_sub(length)
        .and_then(|at| samples.get(at..))
    else {
        return 0;
    };
    let energy: f64 = part.iter().map(|&sample| f64::from(sample).powi(2)).sum();
    if (energy / length as f64).sqrt() < 100.0 {
        return 0;
    }
    let candidates = (100..=2_000).step_by(5);
    candidates
        .max_by(|&one, &other| power(part, rate, one).total_cmp(&power(part, rate, other)))
        .unwrap_or(0)
}

/// How much of a frequency there is (Goertzel's algorithm).
fn power(samples: &[i16], rate: u32, hertz: u32) -> f64 {
    let turn = 2.0 * (std::f64::consts::TAU * f64::from(hertz) / f64::from(rate)).cos();
    let (mut last, mut before) = (0.0, 0.0);
    for &sample in samples {
        (last, before) = (f64::from(sample) + turn * last - before, last);
    }
    last * last + before * before - turn * last * before
}

/// The samples of a WAV file that may still be written, whose header therefore does not tell its length.
pub fn samples(file: &Path) -> Vec<i16> {
    const HEADER: usize = 44;
    let bytes = std::fs::read(file).unwrap_or_default();
    let (pairs, _) = bytes.get(HEADER..).unwrap_or_default().as_chunks::<2>();
    pairs.iter().map(|pair| i16::from_le_bytes(*pair)).collect()
}
