//! G.711 companding: µ-law and A-law, one byte per sample (ITU-T G.711, with the rounding of the reference code in
//! G.191), by table look-up. Rates, channels and chunk sizes are left to the callers.

/// The companding law.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Law {
    /// µ-law: North America and Japan, PCMU in RTP.
    Mu,
    /// A-law: everywhere else, PCMA in RTP.
    A,
}

/// The samples of the 128 positive codes, ordered by the magnitude bits as transmitted.
static MU_SAMPLES: [i16; 256] = samples_of(Law::Mu);
static A_SAMPLES: [i16; 256] = samples_of(Law::A);

/// The codes of non-negative samples: µ-law uses 13 bits of magnitude, A-law 11.
static MU_CODES: [u8; 1 << 13] = codes_of(Law::Mu);
static A_CODES: [u8; 1 << 11] = codes_of(Law::A);

const MU_SHIFT: u32 = 2;
const A_SHIFT: u32 = 4;

/// µ-law adds this to a magnitude so that every segment begins at a power of two (33 in G.711's 14-bit numbers).
const MU_BIAS: i32 = 33 << MU_SHIFT;
/// A-law inverts every other bit on the line, µ-law all bits.
const A_LINE: u8 = 0x55;
const POSITIVE: u8 = 0x80;

impl Law {
    /// Decodes: appends the samples for `codes`.
    pub fn expand(self, codes: &[u8], samples: &mut Vec<i16>) {
        let table = match self {
            Self::Mu => &MU_SAMPLES,
            Self::A => &A_SAMPLES,
        };
        samples.extend(codes.iter().map(|&code| table[usize::from(code)]));
    }

    /// Encodes: appends the codes for `samples`.
    pub fn compress(self, samples: &[i16], codes: &mut Vec<u8>) {
        match self {
            Self::Mu => codes.extend(samples.iter().map(|&s| code::<MU_SHIFT, _>(&MU_CODES, s))),
            Self::A => codes.extend(samples.iter().map(|&s| code::<A_SHIFT, _>(&A_CODES, s))),
        }
    }
}

/// A negative sample has the code of its ones' complement with the sign bit flipped, as in G.191.
fn code<const SHIFT: u32, const LEN: usize>(positive: &[u8; LEN], sample: i16) -> u8 {
    let sign = sample >> 15;
    let magnitude = (sample ^ sign) as usize;
    // The index is in range by construction; the remainder lets the compiler see it.
    positive[(magnitude >> SHIFT) % LEN] ^ (sign as u8 & POSITIVE)
}

const fn codes_of<const LEN: usize>(law: Law) -> [u8; LEN] {
    let mut codes = [0; LEN];
    let mut index = 0;
    while index < LEN {
        codes[index] = match law {
            Law::Mu => mu_code((index as i32) << MU_SHIFT),
            Law::A => a_code(index as i32),
        };
        index += 1;
    }
    codes
}

/// The code of a non-negative 16-bit sample: three bits of segment, four of position within it, all inverted.
const fn mu_code(sample: i32) -> u8 {
    const CLIP: i32 = 32_635;
    let biased = MU_BIAS + if sample > CLIP { CLIP } else { sample };
    let segment = biased.ilog2() - 7;
    let step = (biased >> (segment + 3)) & 0x0F;
    !((segment as u8) << 4 | step as u8)
}

/// The code of a non-negative sample in A-law's 12 bits. The first two segments share one step size.
const fn a_code(magnitude: i32) -> u8 {
    let (segment, step) = if magnitude < 16 {
        (0, magnitude)
    } else {
        let segment = magnitude.ilog2() - 3;
        (segment, (magnitude >> (segment - 1)) & 0x0F)
    };
    (POSITIVE | (segment as u8) << 4 | step as u8) ^ A_LINE
}

const fn samples_of(law: Law) -> [i16; 256] {
    let mut samples = [0; 256];
    let mut code = 0;
    while code < 256 {
        samples[code] = match law {
            Law::Mu => mu_sample(code as u8),
            Law::A => a_sample(code as u8),
        };
        code += 1;
    }
    samples
}

const fn mu_sample(code: u8) -> i16 {
    let inverted = !code;
    let segment = (inverted >> 4) & 7;
    let step = (inverted & 0x0F) as i32;
    let magnitude = (((step << 3) + MU_BIAS) << segment) - MU_BIAS;
    (if code & POSITIVE == 0 {
        -magnitude
    } else {
        magnitude
    }) as i16
}

const fn a_sample(code: u8) -> i16 {
    let plain = code ^ A_LINE;
    let segment = (plain >> 4) & 7;
    let middle = ((plain & 0x0F) as i32) << 4 | 8;
    let magnitude = if segment == 0 {
        middle
    } else {
        (middle | 0x100) << (segment - 1)
    };
    (if code & POSITIVE == 0 {
        -magnitude
    } else {
        magnitude
    }) as i16
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    fn all_samples() -> Vec<i16> {
        (i16::MIN..=i16::MAX).collect()
    }

    fn compressed(law: Law) -> Vec<u8> {
        let mut codes = Vec::new();
        law.compress(&all_samples(), &mut codes);
        codes
    }

    fn expanded(law: Law, codes: &[u8]) -> Vec<i16> {
        let mut samples = Vec::new();
        law.expand(codes, &mut samples);
        samples
    }

    /// Decision values and output values of the positive half as tables 1a and 2a of G.711 build them, in 16-bit
    /// numbers: eight segments of sixteen steps, written without the bit tricks of the code under test.
    fn reference(law: Law) -> Vec<(i32, i32)> {
        let mut table = Vec::new();
        for segment in 0..8 {
            for step in 0..16 {
                let (low, size) = match law {
                    Law::Mu => {
                        let size = 8 << segment;
                        let low = (0..segment).map(|s| 16 * (8 << s)).sum::<i32>() + step * size;
                        (low - 4, size)
                    }
                    Law::A => {
                        let size = 16 << (segment - 1).max(0);
                        let start = if segment == 0 {
                            0
                        } else {
                            256 << (segment - 1)
                        };
                        (start + step * size, size)
                    }
                };
                // µ-law is centred on zero, so each of its steps begins half a smallest step early and its output
                // value lies in the middle of what is left.
                let output = match law {
                    Law::Mu => (low + 4) + ((size / 2) - 4),
                    Law::A => low + size / 2,
                };
                table.push((low.max(0), output));
            }
        }
        table
    }

    #[test]
    fn every_sample_has_the_code_of_the_standards_decision_values() {
        for law in [Law::Mu, Law::A] {
            let table = reference(law);
            for (sample, code) in all_samples().into_iter().zip(compressed(law)) {
                let magnitude = i32::from(if sample < 0 { !sample } else { sample });
                let interval = table.partition_point(|&(decision, _)| decision <= magnitude) - 1;
                let output = table[interval].1 * if sample < 0 { -1 } else { 1 };
                assert_eq!(
                    i32::from(expanded(law, &[code])[0]),
                    output,
                    "{law:?} {sample}"
                );
            }
        }
    }

    #[test]
    fn every_sample_has_the_code_that_the_reference_code_gives_it() {
        // SHA-256 of the codes of -32768..=32767. A-law's is also what CPython's audioop (Sun's g711.c) gives.
        let sum = |law| format!("{:x}", Sha256::digest(compressed(law)));
        assert_eq!(
            sum(Law::Mu),
            "90c29de505fb68e766118303bd552a16005dcf810873698bee1d8f3b247ce28c"
        );
        assert_eq!(
            sum(Law::A),
            "38488f6fd710f4686360edc4d38639f96c491595ef93f8eb8d62d5e07ca6ce7b"
        );
    }

    #[test]
    fn every_code_survives_a_round_trip_except_the_second_zero() {
        let codes: Vec<u8> = (0..=255).collect();
        for law in [Law::Mu, Law::A] {
            let mut back = Vec::new();
            law.compress(&expanded(law, &codes), &mut back);
            for (code, back) in codes.iter().zip(back) {
                // µ-law has a negative zero, which is sent as the positive one.
                let expected = if law == Law::Mu && *code == 0x7F {
                    0xFF
                } else {
                    *code
                };
                assert_eq!(back, expected, "{law:?}");
            }
        }
    }
}
