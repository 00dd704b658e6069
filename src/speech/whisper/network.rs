//! Whisper as two networks, written from its weights. The encoder turns a spectrogram of any length into the keys and
//! values that the decoder attends to, so that a short utterance does not pay for thirty seconds; the decoder takes tokens
//! as embeddings and keeps what it computed of earlier ones as values.
//!
//! The names are those of the papers: `q`, `k` and `v` are queries, keys and values, `x` and `y` what flows.
//!
//! Weights are kept in 8 bits in blocks of a row, which a worker multiplies about three times as fast as floats.

#![expect(
    clippy::many_single_char_names,
    reason = "the names that attention has everywhere"
)]

use super::weights::Weights;
use crate::onnx::layers::Convolution;
use crate::onnx::writer::{Attribute, Graph, Length, MICROSOFT, Name};
use crate::worker::SpeechError;

/// Numbers that share a scale.
const BLOCK: usize = 32;
/// Where a byte means zero.
const ZERO: f32 = 128.0;

/// The sizes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bands of the spectrogram.
    pub bands: usize,
    /// Positions of the encoder, 20 ms each.
    pub positions: usize,
    /// The width of the network.
    pub width: usize,
    /// Heads of each attention.
    pub heads: usize,
    /// Layers of the encoder.
    pub encoder_layers: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Positions of the decoder.
    pub context: usize,
    /// Tokens there are.
    pub vocabulary: usize,
}

impl Sizes {
    /// The sizes that weights have; refused where they are not those of a Whisper that we know.
    pub fn of(weights: &Weights) -> Result<Self, SpeechError> {
        let layers = |side: &str| {
            (0..64)
                .take_while(|layer| {
                    weights.has(&format!("{side}/layer_{layer}/ffn/linear_0/weight"))
                })
                .count()
        };
        let (positions, width) = weights.matrix_shape("encoder/position_encodings/encodings")?;
        let (context, _) = weights.matrix_shape("decoder/position_encodings/encodings")?;
        let (vocabulary, _) = weights.matrix_shape("decoder/embeddings/weight")?;
        let sizes = Self {
            bands: 80,
            positions,
            width,
            heads: weights.number("decoder/num_heads")?,
            encoder_layers: layers("encoder"),
            decoder_layers: layers("decoder"),
            context,
            vocabulary,
        };
        let known = sizes.positions == 1500
            && (64..=1280).contains(&width)
            && width % BLOCK == 0
            && sizes.heads > 0
            && width % sizes.heads == 0
            && sizes.encoder_layers > 0
            && sizes.decoder_layers > 0
            && context == 448
            && (51_864..=51_865).contains(&vocabulary);
        if known {
            Ok(sizes)
        } else {
            Err(SpeechError::Request(format!(
                "a Whisper of these sizes is not known: {sizes:?}"
            )))
        }
    }

    /// The width of a head.
    pub const fn head(&self) -> usize {
        self.width / self.heads
    }
}

/// A network that is being written from weights.
struct Writer<'w> {
    graph: Graph,
    weights: &'w Weights,
    sizes: Sizes,
}

impl Writer<'_> {
    /// `x · weightᵀ + bias`.
    fn linear(&mut self, x: &Name, name: &str) -> Result<Name, SpeechError> {
        let (rows, columns) = self.weights.matrix_shape(&format!("{name}/weight"))?;
        let weight = self
            .weights
            .tensor(&format!("{name}/weight"), &[rows, columns])?;
        let product = self.product(x, &weight, rows, columns);
        let bias = format!("{name}/bias");
        if !self.weights.has(&bias) {
            return Ok(product);
        }
        let bias = self.weights.tensor(&bias, &[rows])?;
        let bias = self.graph.floats(&[rows], &bias);
        Ok(self.graph.node("Add", &[&product, &bias], &[]))
    }

    fn product(&mut self, x: &Name, weight: &[f32], rows: usize, columns: usize) -> Name {
        let blocks = columns / BLOCK;
        let mut scales = Vec::with_capacity(rows * blocks);
        let mut bytes = Vec::with_capacity(weight.len());
        for block in weight.chunks(BLOCK) {
            let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scale = (largest / 127.0).max(f32::MIN_POSITIVE);
            scales.push(scale);
            bytes.extend(
                block
                    .iter()
                    .map(|x| (x / scale + ZERO).round().clamp(0.0, 255.0) as u8),
            );
        }
        let weight = self.graph.bytes(&[rows, blocks, BLOCK], bytes);
        let scales = self.graph.floats(&[rows * blocks], &scales);
        let whole = |number: usize| Attribute::Int(number as i64);
        let [product] = self.graph.nodes(
            MICROSOFT,
            "MatMulNBits",
            &[x, &weight, &scales],
            &[
                ("K", whole(columns)),
                ("N", whole(rows)),
                ("bits", Attribute::Int(8)),
                ("block_size", whole(BLOCK)),
                // Computes in 8 bits.
                ("accuracy_level", Attribute::Int(4)),
            ],
        );
        product
    }

    fn layer_norm(&mut self, x: &Name, name: &str) -> Result<Name, SpeechError> {
        let width = self.sizes.width;
        let gamma = self.weights.tensor(&format!("{name}/gamma"), &[width])?;
        let beta = self.weights.tensor(&format!("{name}/beta"), &[width])?;
        Ok(self.graph.layer_norm(x, &gamma, &beta))
    }

    /// `[1, n, width]` as `[1, heads, n, head]`, or as `[1, heads, head, n]` for keys.
    fn split(&mut self, x: &Name, keys: bool) -> Name {
        let heads = [self.sizes.heads, self.sizes.head()];
        self.graph.split(x, heads, keys)
    }

    fn thirds(&mut self, x: &Name) -> [Name; 3] {
        let width = self.sizes.width as i64;
        let widths = self.graph.ints(&[width; 3]);
        self.graph
            .nodes("", "Split", &[x, &widths], &[("axis", Attribute::Int(-1))])
    }

    /// Attention of queries to keys and values, as `[1, n, width]`, and its weights `[1, heads, n, keys]`.
    fn attend(&mut self, q: &Name, k: &Name, v: &Name, mask: Option<&Name>) -> (Name, Name) {
        let heads = [self.sizes.heads, self.sizes.head()];
        self.graph.attend([q, k, v], heads, mask)
    }

    fn feed_forward(&mut self, x: &Name, name: &str) -> Result<Name, SpeechError> {
        let y = self.layer_norm(x, &format!("{name}/layer_norm"))?;
        let y = self.linear(&y, &format!("{name}/linear_0"))?;
        let y = self.graph.node("Gelu", &[&y], &[]);
        let y = self.linear(&y, &format!("{name}/linear_1"))?;
        Ok(self.graph.node("Add", &[x, &y], &[]))
    }

    fn convolution(
        &mut self,
        x: &Name,
        name: &str,
        channels: usize,
        stride: i64,
    ) -> Result<Name, SpeechError> {
        let width = self.sizes.width;
        let weight = format!("{name}/weight");
        let with = Convolution {
            channels,
            weight: &self.weights.tensor(&weight, &[width, channels, 3])?,
            bias: &self.weights.tensor(&format!("{name}/bias"), &[width])?,
            stride,
        };
        Ok(self.graph.convolution(x, with))
    }
}

/// The encoder: `mel` `[1, bands, frames]` and `positions` `[1, frames / 2, width]`, to `cross_key_N` and `cross_value_N`
/// for each layer of the decoder.
pub fn encoder(weights: &Weights, sizes: Sizes) -> Result<Vec<u8>, SpeechError> {
    let mut w = Writer {
        graph: Graph::new(),
        weights,
        sizes,
    };
    let (frames, places) = (Length::Named("frames"), Length::Named("places"));
    let mel = w
        .graph
        .input("mel", &[Length::Is(1), Length::Is(sizes.bands), frames]);
    let positions = w.graph.input(
        "positions",
        &[Length::Is(1), places, Length::Is(sizes.width)],
    );
    let x = w.convolution(&mel, "encoder/conv1", sizes.bands, 1)?;
    let x = w.convolution(&x, "encoder/conv2", sizes.width, 2)?;
    let x = w.graph.transpose(&x, &[0, 2, 1]);
    let mut x = w.graph.node("Add", &[&x, &positions], &[]);
    for layer in 0..sizes.encoder_layers {
        let name = format!("encoder/layer_{layer}");
        let y = w.layer_norm(&x, &format!("{name}/self_attention/layer_norm"))?;
        let y = w.linear(&y, &format!("{name}/self_attention/linear_0"))?;
        let [q, k, v] = w.thirds(&y);
        let (q, k, v) = (w.split(&q, false), w.split(&k, true), w.split(&v, false));
        let (y, _) = w.attend(&q, &k, &v, None);
        let y = w.linear(&y, &format!("{name}/self_attention/linear_1"))?;
        x = w.graph.node("Add", &[&x, &y], &[]);
        x = w.feed_forward(&x, &format!("{name}/ffn"))?;
    }
    let x = w.layer_norm(&x, "encoder/layer_norm")?;
    let (heads, head) = (Length::Is(sizes.heads), Length::Is(sizes.head()));
    for layer in 0..sizes.decoder_layers {
        let name = format!("decoder/layer_{layer}/attention/linear_1");
        let kv = w.linear(&x, &name)?;
        let width = sizes.width as i64;
        let widths = w.graph.ints(&[width; 2]);
        let [k, v] = w.graph.nodes(
            "",
            "Split",
            &[&kv, &widths],
            &[("axis", Attribute::Int(-1))],
        );
        let (k, v) = (w.split(&k, true), w.split(&v, false));
        w.graph.output(
            &format!("cross_key_{layer}"),
            &k,
            &[Length::Is(1), heads, head, places],
        );
        w.graph.output(
            &format!("cross_value_{layer}"),
            &v,
            &[Length::Is(1), heads, places, head],
        );
    }
    Ok(w.graph.into_bytes())
}

/// The decoder: `x` `[1, n, width]`, the embeddings of tokens with their positions, `mask` `[n, past + n]`, what it gave
/// for earlier tokens (`key_N`, `value_N`) and what the encoder gave, to `logits` `[1, n, vocabulary]`, the next
/// `key_N` and `value_N`, and the attention to the sound of the layers that show where a word is (`attention_N`).
pub fn decoder(weights: &Weights, sizes: Sizes, shows: &[usize]) -> Result<Vec<u8>, SpeechError> {
    let mut w = Writer {
        graph: Graph::new(),
        weights,
        sizes,
    };
    let one = Length::Is(1);
    let (n, past, total, places) = (
        Length::Named("n"),
        Length::Named("past"),
        Length::Named("total"),
        Length::Named("places"),
    );
    let (heads, head) = (Length::Is(sizes.heads), Length::Is(sizes.head()));
    let mut x = w.graph.input("x", &[one, n, Length::Is(sizes.width)]);
    let mask = w.graph.input("mask", &[n, total]);
    for layer in 0..sizes.decoder_layers {
        let name = format!("decoder/layer_{layer}");
        let past_key = w
            .graph
            .input(&format!("key_{layer}"), &[one, heads, head, past]);
        let past_value = w
            .graph
            .input(&format!("value_{layer}"), &[one, heads, past, head]);
        let cross_key = w
            .graph
            .input(&format!("cross_key_{layer}"), &[one, heads, head, places]);
        let cross_value = w
            .graph
            .input(&format!("cross_value_{layer}"), &[one, heads, places, head]);

        let y = w.layer_norm(&x, &format!("{name}/self_attention/layer_norm"))?;
        let y = w.linear(&y, &format!("{name}/self_attention/linear_0"))?;
        let [q, k, v] = w.thirds(&y);
        let (q, k, v) = (w.split(&q, false), w.split(&k, true), w.split(&v, false));
        let k = w
            .graph
            .node("Concat", &[&past_key, &k], &[("axis", Attribute::Int(3))]);
        let v = w
            .graph
            .node("Concat", &[&past_value, &v], &[("axis", Attribute::Int(2))]);
        w.graph
            .output(&format!("next_key_{layer}"), &k, &[one, heads, head, total]);
        w.graph.output(
            &format!("next_value_{layer}"),
            &v,
            &[one, heads, total, head],
        );
        let (y, _) = w.attend(&q, &k, &v, Some(&mask));
        let y = w.linear(&y, &format!("{name}/self_attention/linear_1"))?;
        x = w.graph.node("Add", &[&x, &y], &[]);

        let y = w.layer_norm(&x, &format!("{name}/attention/layer_norm"))?;
        let q = w.linear(&y, &format!("{name}/attention/linear_0"))?;
        let q = w.split(&q, false);
        let (y, attention) = w.attend(&q, &cross_key, &cross_value, None);
        if shows.contains(&layer) {
            let shape = [one, heads, n, places];
            w.graph
                .output(&format!("attention_{layer}"), &attention, &shape);
        }
        let y = w.linear(&y, &format!("{name}/attention/linear_2"))?;
        x = w.graph.node("Add", &[&x, &y], &[]);
        x = w.feed_forward(&x, &format!("{name}/ffn"))?;
    }
    let x = w.layer_norm(&x, "decoder/layer_norm")?;
    let embeddings = weights.tensor(
        "decoder/embeddings/weight",
        &[sizes.vocabulary, sizes.width],
    )?;
    let logits = w.product(&x, &embeddings, sizes.vocabulary, sizes.width);
    w.graph
        .output("logits", &logits, &[one, n, Length::Is(sizes.vocabulary)]);
    Ok(w.graph.into_bytes())
}
