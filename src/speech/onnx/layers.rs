//! Layers that the networks we write have in common: those of Whisper's encoder.
//!
//! `q`, `k` and `v` are queries, keys and values, `x` and `y` what flows.

use super::writer::{Attribute, Graph, Name};

/// The weights of a convolution over time with a kernel of three.
#[derive(Debug, Clone, Copy)]
pub struct Convolution<'w> {
    /// The channels that come in.
    pub channels: usize,
    /// `[out, in, 3]`.
    pub weight: &'w [f32],
    /// One for each channel that goes out.
    pub bias: &'w [f32],
    /// How many times shorter it makes time.
    pub stride: i64,
}

impl Graph {
    /// Layer normalisation of the last axis.
    pub fn layer_norm(&mut self, x: &Name, gamma: &[f32], beta: &[f32]) -> Name {
        let gamma = self.floats(&[gamma.len()], gamma);
        let beta = self.floats(&[beta.len()], beta);
        let attributes = [
            ("axis", Attribute::Int(-1)),
            ("epsilon", Attribute::Float(1e-5)),
        ];
        self.node("LayerNormalization", &[x, &gamma, &beta], &attributes)
    }

    /// A convolution of `[1, channels, time]`, and GELU.
    pub fn convolution(&mut self, x: &Name, with: Convolution<'_>) -> Name {
        let width = with.bias.len();
        let weight = self.floats(&[width, with.channels, 3], with.weight);
        let bias = self.floats(&[width], with.bias);
        let attributes = [
            ("kernel_shape", Attribute::Ints(vec![3])),
            ("pads", Attribute::Ints(vec![1, 1])),
            ("strides", Attribute::Ints(vec![with.stride])),
        ];
        let x = self.node("Conv", &[x, &weight, &bias], &attributes);
        self.node("Gelu", &[&x], &[])
    }

    /// `[1, n, heads · head]` as `[1, heads, n, head]`, or as `[1, heads, head, n]` for keys.
    pub fn split(&mut self, x: &Name, [heads, head]: [usize; 2], keys: bool) -> Name {
        let shape = self.ints(&[0, 0, heads as i64, head as i64]);
        let x = self.node("Reshape", &[x, &shape], &[]);
        let order = if keys { [0, 2, 3, 1] } else { [0, 2, 1, 3] };
        self.transpose(&x, &order)
    }

    /// The axes in another order.
    pub fn transpose(&mut self, x: &Name, order: &[i64]) -> Name {
        let order = Attribute::Ints(order.to_vec());
        self.node("Transpose", &[x], &[("perm", order)])
    }

    /// Attention of queries to keys and values of that many heads of that width, as `[1, n, heads · head]`, and its
    /// weights `[1, heads, n, keys]`. The mask is added to the scores.
    pub fn attend(
        &mut self,
        [q, k, v]: [&Name; 3],
        [heads, head]: [usize; 2],
        mask: Option<&Name>,
    ) -> (Name, Name) {
        let scale = self.floats(&[], &[(head as f32).powf(-0.5)]);
        let q = self.node("Mul", &[q, &scale], &[]);
        let mut scores = self.node("MatMul", &[&q, k], &[]);
        if let Some(mask) = mask {
            scores = self.node("Add", &[&scores, mask], &[]);
        }
        let weights = self.node("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
        let mixed = self.node("MatMul", &[&weights, v], &[]);
        let mixed = self.transpose(&mixed, &[0, 2, 1, 3]);
        let shape = self.ints(&[0, 0, (heads * head) as i64]);
        (self.node("Reshape", &[&mixed, &shape], &[]), weights)
    }
}
