//! Smart Turn's network over a shorter window, written from the weights of the published file: the encoder of Whisper
//! tiny, attention that pools its places into one, and a classifier.
//!
//! The published network hears 8 s, [`PLACES`] places of 20 ms, most of which are silence before a short turn. This one
//! hears the last [`KEPT`] of them, and [`SILENT`] places of silence, which are weighted in every attention as the many
//! that they stand for.
//!
//! The products with weights, where its time goes, are in 8 bits: activations by a scale of their own at each run, and
//! weights in 7 bits, as processors without VNNI add two products in 16 bits and saturate at the published weights of 8.
//! The rest are floats.

use super::{BANDS, KEPT, PLACES, SILENT};
use crate::onnx::OnnxError;
use crate::onnx::constants::Constants;
use crate::onnx::layers::Convolution;
use crate::onnx::writer::{Attribute, Graph, Length, MICROSOFT, Name};

const WIDTH: usize = 384;
/// How many heads an attention has, and how wide each is.
const HEADS: [usize; 2] = [6, WIDTH / 6];
/// Between the two products of a layer.
const WIDE: usize = 4 * WIDTH;
/// The widths of the classifier's layers.
const CLASSES: [usize; 2] = [256, 64];
/// What the published file calls the weights of each layer: those of queries, keys, values, of the attention's output,
/// and of the two products behind it.
const LAYERS: [[&str; 6]; 4] = [
    ["val_17", "val_25", "val_32", "val_75", "val_79", "val_88"],
    [
        "val_92", "val_100", "val_107", "val_148", "val_152", "val_161",
    ],
    [
        "val_165", "val_173", "val_180", "val_221", "val_225", "val_234",
    ],
    [
        "val_238", "val_246", "val_253", "val_294", "val_298", "val_307",
    ],
];
/// The same of the two products of the pooling.
const POOLING: [&str; 2] = ["val_311", "val_313"];

/// The network as the bytes of an `.onnx` file: `features` `[1, bands, 2 · (SILENT + KEPT)]` to `finished` `[1, 1]`.
pub fn write(published: &[u8]) -> Result<Vec<u8>, OnnxError> {
    let weights = &Constants::read(published)?;
    let graph = Graph::new();
    let mut writer = Writer { graph, weights };
    let encoded = writer.encoder()?;
    let pooled = writer.pooling(&encoded)?;
    let finished = writer.classifier(&pooled)?;
    let mut graph = writer.graph;
    graph.output("finished", &finished, &[Length::Is(1), Length::Is(1)]);
    Ok(graph.into_bytes())
}

/// The places of the published network that this one has, and the logarithm of how many each stands for.
fn places() -> Vec<(usize, f32)> {
    let silence = PLACES - KEPT;
    // The first place has half a window before it and is like no other.
    let (others, rest) = (SILENT - 1, silence - 1);
    let share = rest as f32 / others as f32;
    // The middle of each share.
    let middle = |share: usize| 1 + (2 * share + 1) * rest / (2 * others);
    let silent = (0..others).map(|share_at| (middle(share_at), share.ln()));
    let kept = (silence..PLACES).map(|place| (place, 0.0));
    std::iter::once((0, 0.0))
        .chain(silent)
        .chain(kept)
        .collect()
}

struct Writer<'w> {
    graph: Graph,
    weights: &'w Constants,
}

impl Writer<'_> {
    fn encoder(&mut self) -> Result<Name, OnnxError> {
        let frames = Length::Is(2 * (SILENT + KEPT));
        let shape = [Length::Is(1), Length::Is(BANDS), frames];
        let x = self.graph.input("features", &shape);
        let x = self.convolution(&x, "inner.encoder.conv1", BANDS, 1)?;
        let x = self.convolution(&x, "inner.encoder.conv2", WIDTH, 2)?;
        let x = self.graph.transpose(&x, &[0, 2, 1]);
        let positions = self.positions()?;
        let mut x = self.graph.node("Add", &[&x, &positions], &[]);
        let counts = self.counts(&[1, SILENT + KEPT]);
        for (at, names) in LAYERS.into_iter().enumerate() {
            x = self.layer(&x, &format!("inner.encoder.layers.{at}"), names, &counts)?;
        }
        self.layer_norm(&x, "inner.encoder.layer_norm", WIDTH)
    }

    /// The encodings of the places that are heard.
    fn positions(&mut self) -> Result<Name, OnnxError> {
        let all = "inner.encoder.embed_positions.weight";
        let all = self.weights.floats(all, &[PLACES, WIDTH])?;
        let rows = places().into_iter().map(|(place, _)| place * WIDTH);
        let rows = rows.filter_map(|row| all.get(row..row + WIDTH));
        let rows: Vec<f32> = rows.flatten().copied().collect();
        Ok(self.graph.floats(&[SILENT + KEPT, WIDTH], &rows))
    }

    /// How many places each stands for, as attention adds it to its scores.
    fn counts(&mut self, shape: &[usize]) -> Name {
        let counts: Vec<f32> = places().into_iter().map(|(_, count)| count).collect();
        self.graph.floats(shape, &counts)
    }

    fn layer(
        &mut self,
        x: &Name,
        name: &str,
        [query, key, value, output, first, second]: [&str; 6],
        counts: &Name,
    ) -> Result<Name, OnnxError> {
        let attention = format!("{name}.self_attn");
        let y = self.layer_norm(x, &format!("{attention}_layer_norm"), WIDTH)?;
        let y = self.attention(&y, &attention, [query, key, value, output], counts)?;
        let x = self.graph.node("Add", &[x, &y], &[]);
        let y = self.layer_norm(&x, &format!("{name}.final_layer_norm"), WIDTH)?;
        let y = self.linear(&y, first, [WIDTH, WIDE], Some(&format!("{name}.fc1")))?;
        let y = self.graph.node("Gelu", &[&y], &[]);
        let y = self.linear(&y, second, [WIDE, WIDTH], Some(&format!("{name}.fc2")))?;
        Ok(self.graph.node("Add", &[&x, &y], &[]))
    }

    fn attention(
        &mut self,
        x: &Name,
        name: &str,
        [query, key, value, output]: [&str; 4],
        counts: &Name,
    ) -> Result<Name, OnnxError> {
        let square = [WIDTH, WIDTH];
        let q = self.linear(x, query, square, Some(&format!("{name}.q_proj")))?;
        let k = self.linear(x, key, square, None)?;
        let v = self.linear(x, value, square, Some(&format!("{name}.v_proj")))?;
        let q = self.graph.split(&q, HEADS, false);
        let k = self.graph.split(&k, HEADS, true);
        let v = self.graph.split(&v, HEADS, false);
        let (x, _) = self.graph.attend([&q, &k, &v], HEADS, Some(counts));
        self.linear(&x, output, square, Some(&format!("{name}.out_proj")))
    }

    /// The mean of the places, each weighted by what attention makes of it.
    fn pooling(&mut self, x: &Name) -> Result<Name, OnnxError> {
        let [first, second] = POOLING;
        let shape = [WIDTH, CLASSES[0]];
        let y = self.linear(x, first, shape, Some("inner.pool_attention.0"))?;
        let y = self.graph.node("Tanh", &[&y], &[]);
        let shape = [CLASSES[0], 1];
        let y = self.linear(&y, second, shape, Some("inner.pool_attention.2"))?;
        let counts = self.counts(&[SILENT + KEPT, 1]);
        let scores = self.graph.node("Add", &[&y, &counts], &[]);
        let over_places = [("axis", Attribute::Int(1))];
        let weights = self.graph.node("Softmax", &[&scores], &over_places);
        let weighted = self.graph.node("Mul", &[x, &weights], &[]);
        let places = self.graph.ints(&[1]);
        let flat = [("keepdims", Attribute::Int(0))];
        Ok(self.graph.node("ReduceSum", &[&weighted, &places], &flat))
    }

    fn classifier(&mut self, x: &Name) -> Result<Name, OnnxError> {
        let [wide, narrow] = CLASSES;
        let x = self.dense(x, "inner.classifier.0", [wide, WIDTH])?;
        let x = self.layer_norm(&x, "inner.classifier.1", wide)?;
        let x = self.graph.node("Gelu", &[&x], &[]);
        let x = self.dense(&x, "inner.classifier.4", [narrow, wide])?;
        let x = self.graph.node("Gelu", &[&x], &[]);
        let x = self.dense(&x, "inner.classifier.6", [1, narrow])?;
        Ok(self.graph.node("Sigmoid", &[&x], &[]))
    }

    fn layer_norm(&mut self, x: &Name, name: &str, width: usize) -> Result<Name, OnnxError> {
        let gamma = self.weights.floats(&format!("{name}.weight"), &[width])?;
        let beta = self.weights.floats(&format!("{name}.bias"), &[width])?;
        Ok(self.graph.layer_norm(x, &gamma, &beta))
    }

    fn convolution(
        &mut self,
        x: &Name,
        name: &str,
        channels: usize,
        stride: i64,
    ) -> Result<Name, OnnxError> {
        let with = Convolution {
            channels,
            weight: &self.weight(name, &[WIDTH, channels, 3])?,
            bias: &self.bias(name, WIDTH)?,
            stride,
        };
        Ok(self.graph.convolution(x, with))
    }

    /// `weight · x + bias` in floats: for a single place, which costs nothing.
    fn dense(&mut self, x: &Name, name: &str, shape: [usize; 2]) -> Result<Name, OnnxError> {
        let weight = self.weight(name, &shape)?;
        let weight = self.graph.floats(&shape, &weight);
        let bias = self.bias(name, shape[0])?;
        let bias = self.graph.floats(&[shape[0]], &bias);
        let transposed = [("transB", Attribute::Int(1))];
        Ok(self.graph.node("Gemm", &[x, &weight, &bias], &transposed))
    }

    /// `x · weight + bias`, in 8 bits.
    fn linear(
        &mut self,
        x: &Name,
        weight: &str,
        shape: [usize; 2],
        bias: Option<&str>,
    ) -> Result<Name, OnnxError> {
        let columns = [shape[1]];
        let bytes = format!("{weight}_quantized");
        let bytes = self.weights.bytes(&bytes, &shape)?;
        let halves = bytes.iter().map(|&x| half(x)).collect();
        let scale = self.weights.floats(&format!("{weight}_scale"), &columns)?;
        let scale: Vec<f32> = scale.iter().map(|scale| 2.0 * scale).collect();
        let weight = self.graph.signed_bytes(&shape, halves);
        let scale = self.graph.floats(&columns, &scale);
        let zero = self.graph.signed_bytes(&columns, vec![0; columns[0]]);
        let bias = bias.map(|name| self.weights.floats(&format!("{name}.bias"), &columns));
        let bias = bias.transpose()?;
        let bias = bias.map(|bias| self.graph.floats(&columns, &bias));
        let mut inputs = vec![x, &weight, &scale, &zero];
        inputs.extend(&bias);
        let op = "DynamicQuantizeMatMul";
        let [product] = self.graph.nodes(MICROSOFT, op, &inputs, &[]);
        Ok(product)
    }

    /// A weight with a scale for each of its rows, as floats.
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, OnnxError> {
        let bytes = format!("{name}.weight_quantized");
        let bytes = self.weights.bytes(&bytes, shape)?;
        let rows = shape.get(..1).unwrap_or_default();
        let scale = format!("{name}.weight_scale");
        let scale = self.weights.floats(&scale, rows)?;
        let row = bytes.len() / scale.len().max(1);
        let rows = bytes.chunks(row.max(1)).zip(scale);
        let row = |(row, scale): (&[i8], f32)| -> Vec<f32> {
            row.iter().map(|&x| f32::from(x) * scale).collect()
        };
        Ok(rows.flat_map(row).collect())
    }

    /// A bias that is stored in whole numbers, as floats.
    fn bias(&self, name: &str, length: usize) -> Result<Vec<f32>, OnnxError> {
        let ints = format!("{name}.bias_quantized");
        let scale = format!("{ints}_scale");
        let ints = self.weights.ints(&ints, &[length])?;
        let scale = self.weights.floats(&scale, &[length])?;
        let numbers = ints.iter().zip(scale);
        Ok(numbers.map(|(&x, scale)| x as f32 * scale).collect())
    }
}

/// Half of a weight, to the even one where it lies between two.
fn half(weight: i8) -> i8 {
    (f32::from(weight) / 2.0).round_ties_even() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stand_for_all_that_the_published_network_has() {
        let places = places();
        assert_eq!(places.len(), SILENT + KEPT);
        assert!(places.is_sorted());
        assert_eq!(
            places[..3],
            [(0, 0.0), (14, places[1].1), (42, places[1].1)]
        );
        assert_eq!(places[SILENT], (PLACES - KEPT, 0.0));
        let all: f32 = places.iter().map(|(_, count)| count.exp()).sum();
        assert!((all - PLACES as f32).abs() < 1e-2, "{all}");
    }

    #[test]
    fn weights_are_halved_to_seven_bits() {
        let halves = [-128, -127, -3, -1, 0, 1, 3, 126, 127].map(half);
        assert_eq!(halves, [-64, -64, -2, 0, 0, 0, 2, 63, 64]);
    }
}
