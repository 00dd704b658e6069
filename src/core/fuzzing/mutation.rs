//! Generates malformed inputs: picks a sample at random and mutates it a few times, from a seed.

use fastrand::Rng;

/// Numbers at which code tends to fail: around zero, and at the limits of integer types.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];
/// The maximum size of an input, so that rounds stay short.
const LONGEST: usize = 128 << 10;
/// The maximum number of mutations of one sample.
const MOST_CHANGES: usize = 6;

/// Generates inputs from samples.
pub struct Mutator {
    pub rng: Rng,
    samples: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(seed: u64, samples: Vec<Vec<u8>>) -> Self {
        let rng = Rng::with_seed(seed);
        Self { rng, samples }
    }

    /// An unchanged sample.
    pub fn sample(&mut self) -> Vec<u8> {
        self.samples[self.rng.usize(..self.samples.len())].clone()
    }

    /// A mutated sample; one in thirty is unchanged.
    pub fn make(&mut self) -> Vec<u8> {
        let mut bytes = self.sample();
        if self.rng.u8(..30) == 0 {
            return bytes;
        }
        for _ in 0..self.rng.usize(1..=MOST_CHANGES) {
            self.change(&mut bytes);
            bytes.truncate(LONGEST);
        }
        bytes
    }

    /// The same for text: mostly mutations that keep lines and numbers intact as such.
    pub fn make_text(&mut self) -> String {
        let mut text = self.sample();
        let most = if self.rng.bool() { 1 } else { MOST_CHANGES };
        for _ in 0..self.rng.usize(1..=most) {
            match self.rng.u8(..8) {
                0..3 => self.change_lines(&mut text),
                3..6 => self.change_number(&mut text),
                6 => self.change_word(&mut text),
                _ => self.change(&mut text),
            }
            text.truncate(LONGEST);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            bytes.push(self.rng.u8(..));
            return;
        }
        let (from, to) = self.range(bytes.len());
        match self.rng.u8(..9) {
            0 | 1 => bytes[from] ^= 1 << self.rng.u8(..8),
            2 => bytes[from] = self.rng.u8(..),
            3 => bytes.truncate(from),
            4 => drop(bytes.drain(from..to)),
            5 => {
                let piece = bytes[from..to].to_vec();
                let at = self.rng.usize(..=bytes.len());
                bytes.splice(at..at, piece);
            }
            6 => {
                let other = self.sample();
                if !other.is_empty() {
                    let (start, end) = self.range(other.len());
                    bytes.splice(from..to, other[start..end].iter().copied());
                }
            }
            // A wrong length field, in all widths and both byte orders.
            7 => {
                let edge = self.edge();
                let width = 1 << self.rng.u32(..4);
                let number = if self.rng.bool() {
                    edge.to_be_bytes()[8 - width..].to_vec()
                } else {
                    edge.to_le_bytes()[..width].to_vec()
                };
                let end = (from + width).min(bytes.len());
                bytes.splice(from..end, number);
            }
            _ => {
                let noise: Vec<u8> = (0..self.rng.usize(..32)).map(|_| self.rng.u8(..)).collect();
                bytes.splice(from..from, noise);
            }
        }
    }

    fn change_lines(&mut self, text: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> = text
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        if lines.is_empty() {
            return;
        }
        let (from, to) = self.range(lines.len());
        match self.rng.u8(..5) {
            0 => drop(lines.drain(from..to)),
            1 => {
                let piece = lines[from..to].to_vec();
                let at = self.rng.usize(..=lines.len());
                lines.splice(at..at, piece);
            }
            2 => lines.swap(from, to - 1),
            3 => {
                let other = self.sample();
                let other: Vec<&[u8]> = other.split_inclusive(|byte| *byte == b'\n').collect();
                let (start, end) = self.range(other.len());
                let piece = other[start..end].iter().map(|line| line.to_vec());
                lines.splice(from..from, piece);
            }
            _ => {
                let from = self.rng.usize(..lines.len());
                self.change(&mut lines[from]);
            }
        }
        *text = lines.concat();
    }

    /// Replaces a number with another one.
    fn change_number(&mut self, text: &mut Vec<u8>) {
        let starts: Vec<usize> = (0..text.len())
            .filter(|at| text[*at].is_ascii_digit() && (*at == 0 || !text[at - 1].is_ascii_digit()))
            .collect();
        if let Some(from) = self.rng.choice(starts) {
            let digits = text[from..].iter().take_while(|byte| byte.is_ascii_digit());
            let to = from + digits.count();
            let sign = if self.rng.u8(..8) == 0 { "-" } else { "" };
            let number = match self.rng.u8(..3) {
                0 => self.rng.u64(..256),
                _ => self.edge(),
            };
            text.splice(from..to, format!("{sign}{number}").into_bytes());
        }
    }

    /// Replaces a word with another word of a sample.
    fn change_word(&mut self, text: &mut Vec<u8>) {
        let other = self.sample();
        let theirs = words(&other);
        let ours = words(text);
        if let (Some((from, to)), Some((start, end))) =
            (self.rng.choice(ours), self.rng.choice(theirs))
        {
            text.splice(from..to, other[start..end].iter().copied());
        }
    }

    pub fn edge(&mut self) -> u64 {
        self.rng.choice(EDGES).unwrap_or(0)
    }

    fn range(&mut self, length: usize) -> (usize, usize) {
        let from = self.rng.usize(..length);
        // Short ones more often than long ones.
        let most = 1 << self.rng.u32(..12);
        let to = from + 1 + self.rng.usize(..most);
        (from, to.min(length))
    }
}

fn words(text: &[u8]) -> Vec<(usize, usize)> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-+/|{}*".contains(&byte);
    let mut found = Vec::new();
    let mut from = None;
    for (at, byte) in text.iter().copied().chain([b' ']).enumerate() {
        match (is_word(byte), from) {
            (true, None) => from = Some(at),
            (false, Some(start)) => {
                found.push((start, at));
                from = None;
            }
            _ => {}
        }
    }
    found
}
