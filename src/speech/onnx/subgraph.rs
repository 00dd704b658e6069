//! Cuts a part out of a network in the ONNX format: the nodes between given values, as a network of its own. So a
//! network that was published as one can be run in steps, and a value inside it be seen.
//!
//! This reads and writes the few fields of the format's protobuf messages (`ModelProto`, `GraphProto`, `NodeProto`,
//! `TensorProto`, `ValueInfoProto`) that it needs, and copies the rest. Nodes with graphs inside them (`If`, `Loop`) are
//! copied without a look inside: where those use values that were cut off, ONNX Runtime refuses the result.

use std::collections::{HashMap, HashSet};

use super::OnnxError;

// Field numbers of onnx.proto.
const MODEL_GRAPH: u32 = 7;
const GRAPH_NODE: u32 = 1;
const GRAPH_NAME: u32 = 2;
const GRAPH_INITIALIZER: u32 = 5;
const GRAPH_INPUT: u32 = 11;
const GRAPH_OUTPUT: u32 = 12;
const NODE_INPUT: u32 = 1;
const NODE_OUTPUT: u32 = 2;
const NODE_OP_TYPE: u32 = 4;
const TENSOR_SHAPE: u32 = 1;
const TENSOR_NAME: u32 = 8;
const VALUE_NAME: u32 = 1;
const VALUE_TYPE: u32 = 2;
const TYPE_TENSOR: u32 = 1;
const TENSOR_TYPE_ELEMENT: u32 = 1;
const TENSOR_TYPE_SHAPE: u32 = 2;
const SHAPE_DIMENSION: u32 = 1;
const DIMENSION_VALUE: u32 = 1;
const DIMENSION_PARAMETER: u32 = 2;
const FLOAT: u64 = 1;

/// A network's graph, borrowed from the bytes of its file.
pub struct Graph<'m> {
    /// The fields of the model beside the graph, as they are.
    beside: Vec<&'m [u8]>,
    name: &'m [u8],
    nodes: Vec<Node<'m>>,
    /// Constants by name, each with its field as it is.
    initializers: HashMap<&'m str, &'m [u8]>,
    inputs: Vec<(&'m str, &'m [u8])>,
}

/// One operation.
pub struct Node<'m> {
    /// The operator.
    pub op_type: &'m str,
    /// The names of what it takes.
    pub inputs: Vec<&'m str>,
    /// The names of what it makes.
    pub outputs: Vec<&'m str>,
    field: &'m [u8],
}

impl std::fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a graph of {} nodes", self.nodes.len())
    }
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {:?}", self.op_type, self.outputs)
    }
}

/// A float tensor that a part of a network is given: its name, and its shape, where `None` is any length.
pub type NewInput<'n> = (&'n str, &'n [Option<usize>]);

impl<'m> Graph<'m> {
    /// Reads the graph of an `.onnx` file.
    pub fn parse(model: &'m [u8]) -> Result<Self, OnnxError> {
        Self::read(model).ok_or_else(|| OnnxError::Load {
            file: "the model".to_owned(),
            cause: "it is not in the ONNX format".to_owned(),
        })
    }

    fn read(model: &'m [u8]) -> Option<Self> {
        let mut graph = None;
        let mut beside = Vec::new();
        for field in Fields(model) {
            let field = field?;
            match field.number {
                MODEL_GRAPH => graph = Some(field.payload),
                _ => beside.push(field.whole),
            }
        }
        let mut read = Self {
            beside,
            name: &[],
            nodes: Vec::new(),
            initializers: HashMap::new(),
            inputs: Vec::new(),
        };
        for field in Fields(graph?) {
            let field = field?;
            match field.number {
                GRAPH_NODE => read.nodes.push(Node::read(field)?),
                GRAPH_NAME => read.name = field.whole,
                GRAPH_INITIALIZER => {
                    let name = text_of(field.payload, TENSOR_NAME)?;
                    read.initializers.insert(name, field.whole);
                }
                GRAPH_INPUT => {
                    let name = text_of(field.payload, VALUE_NAME)?;
                    read.inputs.push((name, field.whole));
                }
                _ => {}
            }
        }
        Some(read)
    }

    /// The nodes in the order of the file, in which each stands behind those that it needs.
    pub fn nodes(&self) -> &[Node<'m>] {
        &self.nodes
    }

    /// The shape of a constant.
    pub fn shape(&self, initializer: &str) -> Option<Vec<usize>> {
        let field = Fields(self.initializers.get(initializer)?).next()??;
        let mut shape = Vec::new();
        for part in Fields(field.payload) {
            let part = part?;
            if part.number != TENSOR_SHAPE {
                continue;
            }
            // Packed, or one number to a field.
            let mut numbers = if part.payload.is_empty() {
                varint(part.whole)?.1
            } else {
                part.payload
            };
            while !numbers.is_empty() {
                let (length, rest) = varint(numbers)?;
                shape.push(usize::try_from(length).ok()?);
                numbers = rest;
            }
        }
        Some(shape)
    }

    /// The part that makes `outputs` from `new_inputs` and the network's own inputs, as the bytes of an `.onnx` file.
    /// All outputs must be float tensors.
    pub fn cut(&self, new_inputs: &[NewInput<'_>], outputs: &[&str]) -> Result<Vec<u8>, OnnxError> {
        let mut wanted: HashSet<&str> = outputs.iter().copied().collect();
        let given = |name: &str| new_inputs.iter().any(|(new, _)| *new == name);
        let mut kept: Vec<&Node<'_>> = Vec::new();
        for node in self.nodes.iter().rev() {
            let made = |name: &&str| wanted.contains(name) && !given(name);
            if node.outputs.iter().any(made) {
                wanted.extend(node.inputs.iter().filter(|name| !name.is_empty()));
                kept.push(node);
            }
        }
        let mut graph = self.name.to_vec();
        for node in kept.iter().rev() {
            graph.extend(node.field);
        }
        let mut initializers: Vec<_> = self
            .initializers
            .iter()
            .filter(|(name, _)| wanted.contains(**name) && !given(name))
            .collect();
        initializers.sort();
        for (_, field) in initializers {
            graph.extend(*field);
        }
        for (name, field) in &self.inputs {
            if wanted.contains(name) {
                graph.extend(*field);
            }
        }
        for (name, shape) in new_inputs {
            write(&mut graph, GRAPH_INPUT, &float_value(name, Some(shape)));
        }
        let made: HashSet<&str> = kept
            .iter()
            .flat_map(|node| node.outputs.iter().copied())
            .collect();
        for name in outputs {
            if !made.contains(name) {
                return Err(OnnxError::Run(format!("the network makes no {name:?}")));
            }
            write(&mut graph, GRAPH_OUTPUT, &float_value(name, None));
        }
        let mut model = self.beside.concat();
        write(&mut model, MODEL_GRAPH, &graph);
        Ok(model)
    }
}

impl<'m> Node<'m> {
    fn read(field: Field<'m>) -> Option<Self> {
        let mut node = Self {
            op_type: "",
            inputs: Vec::new(),
            outputs: Vec::new(),
            field: field.whole,
        };
        for part in Fields(field.payload) {
            let part = part?;
            let text = || std::str::from_utf8(part.payload).ok();
            match part.number {
                NODE_INPUT => node.inputs.push(text()?),
                NODE_OUTPUT => node.outputs.push(text()?),
                NODE_OP_TYPE => node.op_type = text()?,
                _ => {}
            }
        }
        Some(node)
    }
}

/// The text in that field of a message.
fn text_of(message: &[u8], number: u32) -> Option<&str> {
    for field in Fields(message) {
        let field = field?;
        if field.number == number {
            return std::str::from_utf8(field.payload).ok();
        }
    }
    None
}

/// The declaration of a float tensor.
fn float_value(name: &str, shape: Option<&[Option<usize>]>) -> Vec<u8> {
    let mut tensor = Vec::new();
    write_number(&mut tensor, TENSOR_TYPE_ELEMENT, FLOAT);
    if let Some(shape) = shape {
        let mut dimensions = Vec::new();
        for (at, length) in shape.iter().enumerate() {
            let mut dimension = Vec::new();
            match length {
                Some(length) => write_number(&mut dimension, DIMENSION_VALUE, *length as u64),
                None => {
                    let parameter = format!("{name}_{at}");
                    write(&mut dimension, DIMENSION_PARAMETER, parameter.as_bytes());
                }
            }
            write(&mut dimensions, SHAPE_DIMENSION, &dimension);
        }
        write(&mut tensor, TENSOR_TYPE_SHAPE, &dimensions);
    }
    let mut of_type = Vec::new();
    write(&mut of_type, TYPE_TENSOR, &tensor);
    let mut value = Vec::new();
    write(&mut value, VALUE_NAME, name.as_bytes());
    write(&mut value, VALUE_TYPE, &of_type);
    value
}

/// One field of a protobuf message.
#[derive(Clone, Copy)]
struct Field<'m> {
    number: u32,
    /// With its tag and length.
    whole: &'m [u8],
    /// What is in it; empty for a number.
    payload: &'m [u8],
}

/// The fields of a message; `None` where it is broken, which ends it.
struct Fields<'m>(&'m [u8]);

impl<'m> Iterator for Fields<'m> {
    type Item = Option<Field<'m>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'m> Fields<'m> {
    fn field(&mut self) -> Option<Field<'m>> {
        let whole = self.0;
        let (tag, rest) = varint(whole)?;
        let (before, length) = match tag & 7 {
            0 => (rest.len(), rest.len() - varint(rest)?.1.len()),
            1 => (rest.len(), 8),
            2 => {
                let (length, rest) = varint(rest)?;
                (rest.len(), usize::try_from(length).ok()?)
            }
            5 => (rest.len(), 4),
            _ => return None,
        };
        let start = whole.len() - before;
        let end = start.checked_add(length)?;
        let (whole, after) = whole.split_at_checked(end)?;
        self.0 = after;
        let payload = if tag & 7 == 2 {
            whole.get(start..)?
        } else {
            &[]
        };
        Some(Field {
            number: u32::try_from(tag >> 3).ok()?,
            whole,
            payload,
        })
    }
}

/// A number of variable length, and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
        if byte & 0x80 == 0 {
            return Some((number, bytes.get(at + 1..)?));
        }
    }
    None
}

fn write_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn write_number(to: &mut Vec<u8>, field: u32, number: u64) {
    write_varint(to, u64::from(field) << 3);
    write_varint(to, number);
}

fn write(to: &mut Vec<u8>, field: u32, payload: &[u8]) {
    write_varint(to, u64::from(field) << 3 | 2);
    write_varint(to, payload.len() as u64);
    to.extend(payload);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::onnx::{Input, Network, tensor};
    use crate::testing;

    #[test]
    fn a_network_cut_in_two_gives_what_the_whole_gives() {
        let runtime = testing::runtime();
        let model = std::fs::read(testing::model("hibari/oov.onnx")).unwrap();
        let graph = Graph::parse(&model).unwrap();
        let run = |network: &mut Network| {
            let inputs = vec![("chars", Input::of(&[1, 3], &[27i64, 40, 41]).unwrap())];
            network.run(inputs).unwrap()
        };
        let mut whole = Network::from_bytes(&runtime, &model).unwrap();
        let ids = run(&mut whole).take("ids").unwrap();
        let (_, ids) = tensor::<i64>(&ids).unwrap();
        // The value that the ids are the greatest of.
        let of = |op: &str| graph.nodes().iter().rfind(|node| node.op_type == op);
        let scores = of("ArgMax").unwrap().inputs[0];
        let part = graph.cut(&[], &[scores]).unwrap();
        let mut part = Network::from_bytes(&runtime, &part).unwrap();
        let value = run(&mut part).take(scores).unwrap();
        let (shape, scores) = tensor::<f32>(&value).unwrap();
        let classes = *shape.last().unwrap();
        let greatest: Vec<i64> = scores
            .chunks(classes)
            .map(|row| {
                let best = (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b]));
                best.unwrap() as i64
            })
            .collect();
        assert_eq!(greatest, ids);
        assert!(graph.cut(&[], &["nothing of the sort"]).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_or_a_graph_and_never_a_panic(bytes: Vec<u8>) {
            let mut model = Vec::new();
            write(&mut model, MODEL_GRAPH, &bytes);
            for bytes in [bytes, model] {
                if let Ok(graph) = Graph::parse(&bytes) {
                    let _ = graph.cut(&[("a", &[None])], &["b"]);
                }
            }
        }
    }
}
