//! Where words are: tokens joined to words, and their places by dynamic time warping over the decoder's attention to the
//! sound, as OpenAI's own implementation finds them.

use crate::recogniser::HeardWord;
use crate::tokens::Vocabulary;

/// Seconds of a position of the encoder.
const POSITION: f64 = 0.02;
/// Positions over which attention is smoothed.
const MEDIAN: usize = 7;
/// Written before the word that it belongs to.
const OPENING: [char; 7] = ['"', '\'', '“', '¿', '¡', '(', '['];

/// Attention of each token (rows, in order) to positions of the sound, of several heads.
#[derive(Debug, Default)]
pub struct Attention {
    /// For each head `tokens × positions`.
    pub heads: Vec<Vec<f32>>,
    /// Positions of a row.
    pub positions: usize,
}

/// Words of tokens, with the probability of each token. `attention` has a row for each token and one for the end.
pub fn words(
    vocabulary: &Vocabulary,
    tokens: &[u32],
    probabilities: &[f32],
    attention: &Attention,
    spaced: bool,
) -> Vec<HeardWord> {
    let starts = token_starts(attention, tokens.len() + 1);
    let at = |token: usize| starts.get(token).copied().unwrap_or_default() as f64 * POSITION;
    let mut words: Vec<HeardWord> = Vec::new();
    let mut bytes: Vec<u8> = Vec::new();
    let mut first = 0;
    for (index, &token) in tokens.iter().enumerate() {
        if bytes.is_empty() {
            first = index;
        }
        bytes.extend(vocabulary.bytes(token));
        // A character may be spread over several tokens.
        let Ok(text) = std::str::from_utf8(&bytes) else {
            continue;
        };
        let begins = text.starts_with(' ') || !spaced;
        let text = text.trim();
        let opening = |text: &str| text.chars().all(|letter| OPENING.contains(&letter));
        let begins = begins && (text.chars().any(char::is_alphanumeric) || opening(text));
        let of = probabilities.get(first..=index).unwrap_or_default();
        let confidence = of.iter().sum::<f32>() / of.len().max(1) as f32;
        match words.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if !begins || opening(&last.word) => {
                last.confidence = if opening(&last.word) {
                    confidence
                } else {
                    last.confidence.min(confidence)
                };
                last.word.push_str(text);
                last.end = at(index + 1);
            }
            _ => words.push(HeardWord {
                word: text.to_owned(),
                start: at(first),
                end: at(index + 1),
                confidence,
            }),
        }
        bytes.clear();
    }
    for word in &mut words {
        word.confidence = word.confidence.clamp(0.0, 1.0);
        word.end = word.end.max(word.start);
    }
    words
}

/// The position at which each token begins: the path through the attention that keeps the order and costs least.
pub fn token_starts(attention: &Attention, tokens: usize) -> Vec<usize> {
    let positions = attention.positions;
    if positions == 0 || attention.heads.is_empty() {
        return vec![0; tokens];
    }
    let mut cost = vec![0f32; tokens * positions];
    for head in &attention.heads {
        let rows = head.len() / positions;
        if rows < tokens {
            return vec![0; tokens];
        }
        let mut normal = vec![0f32; tokens * positions];
        for position in 0..positions {
            let column = || (0..tokens).map(|token| head[token * positions + position]);
            let mean = column().sum::<f32>() / tokens as f32;
            let variance = column().map(|x| (x - mean).powi(2)).sum::<f32>() / tokens as f32;
            let deviation = variance.sqrt().max(1e-9);
            for (token, x) in column().enumerate() {
                normal[token * positions + position] = (x - mean) / deviation;
            }
        }
        for (row, to) in normal.chunks(positions).zip(cost.chunks_mut(positions)) {
            for (position, to) in to.iter_mut().enumerate() {
                *to -= median(row, position);
            }
        }
    }
    warp(&cost, tokens, positions)
}

/// The middle value around a position.
fn median(row: &[f32], position: usize) -> f32 {
    let from = position.saturating_sub(MEDIAN / 2);
    let to = (position + MEDIAN / 2 + 1).min(row.len());
    let mut around = [0f32; MEDIAN];
    let length = to - from;
    around[..length].copy_from_slice(&row[from..to]);
    let around = &mut around[..length];
    around.sort_unstable_by(f32::total_cmp);
    around[length / 2]
}

fn warp(cost: &[f32], tokens: usize, positions: usize) -> Vec<usize> {
    let width = positions + 1;
    let mut total = vec![f32::INFINITY; (tokens + 1) * width];
    // 0: from both, 1: from the token before, 2: from the position before.
    let mut came = vec![0u8; (tokens + 1) * width];
    total[0] = 0.0;
    for token in 1..=tokens {
        for position in 1..=positions {
            let from = [
                total[(token - 1) * width + position - 1],
                total[(token - 1) * width + position],
                total[token * width + position - 1],
            ];
            let best = if from[0] < from[1] && from[0] < from[2] {
                0
            } else if from[1] < from[0] && from[1] < from[2] {
                1
            } else {
                2
            };
            total[token * width + position] =
                cost[(token - 1) * positions + position - 1] + from[best];
            came[token * width + position] = best as u8;
        }
    }
    let mut starts = vec![0; tokens];
    let (mut token, mut position) = (tokens, positions);
    while token > 0 && position > 0 {
        starts[token - 1] = position - 1;
        match came[token * width + position] {
            0 => (token, position) = (token - 1, position - 1),
            1 => token -= 1,
            _ => position -= 1,
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_follows_the_attention() {
        // Three tokens, attended to at positions 1, 4 and 8 of ten.
        let mut head = vec![0.01; 30];
        for (token, places) in [(0, 0..4), (1, 4..7), (2, 7..10)] {
            for place in places {
                head[token * 10 + place] = 1.0;
            }
        }
        let attention = Attention {
            heads: vec![head],
            positions: 10,
        };
        let starts = token_starts(&attention, 3);
        assert!(starts[0] <= 1 && (3..=5).contains(&starts[1]) && (6..=8).contains(&starts[2]));
    }
}
