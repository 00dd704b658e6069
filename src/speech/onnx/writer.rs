//! Writes networks in the ONNX format: for weights that come in another layout than a network, such as Whisper's. Only
//! what our networks consist of is here; the format is ONNX' `onnx.proto`.

use prost::Message;

/// The format's version (IR), of 2023.
const IR_VERSION: i64 = 9;
/// The set of operators: the first with `Gelu`.
const OPSET: i64 = 20;
/// Operators of ONNX Runtime itself.
pub const MICROSOFT: &str = "com.microsoft";

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSetProto>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorSetProto {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfoProto>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    domain: String,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(float, tag = "2")]
    f: f32,
    #[prost(int64, tag = "3")]
    i: i64,
    #[prost(int64, repeated, tag = "8")]
    ints: Vec<i64>,
    #[prost(int32, tag = "20")]
    r#type: i32,
}

#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfoProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor_type: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    dim_param: Option<String>,
}

const FLOAT: i32 = 1;
const UINT8: i32 = 2;
const INT8: i32 = 3;
const INT64: i32 = 7;

/// A length of a shape: known, or told by the caller at each run.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    /// Always this.
    Is(usize),
    /// Any; equal names are equal lengths.
    Named(&'static str),
}

/// An attribute of a node.
#[derive(Debug, Clone)]
pub enum Attribute {
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f32),
    /// Several whole numbers.
    Ints(Vec<i64>),
}

/// A value in the graph, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

/// A network that is being written.
#[derive(Debug, Default)]
pub struct Graph {
    graph: GraphProto,
    named: usize,
}

impl Graph {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn fresh(&mut self) -> String {
        self.named += 1;
        format!("v{}", self.named)
    }

    /// An input of floats.
    pub fn input(&mut self, name: &str, shape: &[Length]) -> Name {
        self.graph.input.push(info(name, shape));
        Name(name.to_owned())
    }

    /// Makes `value` an output called `name`.
    pub fn output(&mut self, name: &str, value: &Name, shape: &[Length]) {
        self.graph.node.push(NodeProto {
            input: vec![value.0.clone()],
            output: vec![name.to_owned()],
            op_type: "Identity".to_owned(),
            ..NodeProto::default()
        });
        self.graph.output.push(info(name, shape));
    }

    /// A constant of floats.
    pub fn floats(&mut self, shape: &[usize], data: &[f32]) -> Name {
        let raw = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.constant(FLOAT, shape, raw)
    }

    /// A constant of whole numbers, such as a shape.
    pub fn ints(&mut self, data: &[i64]) -> Name {
        let raw = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.constant(INT64, &[data.len()], raw)
    }

    /// A constant of bytes.
    pub fn bytes(&mut self, shape: &[usize], data: Vec<u8>) -> Name {
        self.constant(UINT8, shape, data)
    }

    /// A constant of bytes with signs.
    pub fn signed_bytes(&mut self, shape: &[usize], data: Vec<i8>) -> Name {
        let raw = data.into_iter().map(i8::cast_unsigned).collect();
        self.constant(INT8, shape, raw)
    }

    fn constant(&mut self, data_type: i32, shape: &[usize], raw_data: Vec<u8>) -> Name {
        let name = self.fresh();
        self.graph.initializer.push(TensorProto {
            dims: shape.iter().map(|&length| length as i64).collect(),
            data_type,
            name: name.clone(),
            raw_data,
        });
        Name(name)
    }

    /// The only output of an operator.
    pub fn node(&mut self, op: &str, inputs: &[&Name], attributes: &[(&str, Attribute)]) -> Name {
        let output = Name(self.fresh());
        self.add("", op, inputs, attributes, std::slice::from_ref(&output));
        output
    }

    /// The outputs of an operator of a domain.
    pub fn nodes<const N: usize>(
        &mut self,
        domain: &str,
        op: &str,
        inputs: &[&Name],
        attributes: &[(&str, Attribute)],
    ) -> [Name; N] {
        let outputs = std::array::from_fn(|_| Name(self.fresh()));
        self.add(domain, op, inputs, attributes, &outputs);
        outputs
    }

    fn add(
        &mut self,
        domain: &str,
        op: &str,
        inputs: &[&Name],
        attributes: &[(&str, Attribute)],
        outputs: &[Name],
    ) {
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|name| name.0.clone()).collect(),
            output: outputs.iter().map(|name| name.0.clone()).collect(),
            op_type: op.to_owned(),
            attribute: attributes.iter().map(attribute).collect(),
            domain: domain.to_owned(),
        });
    }

    /// The bytes of an ONNX file.
    pub fn into_bytes(mut self) -> Vec<u8> {
        "graph".clone_into(&mut self.graph.name);
        let operators = |domain: &str, version| OperatorSetProto {
            domain: domain.to_owned(),
            version,
        };
        let model = ModelProto {
            ir_version: IR_VERSION,
            graph: Some(self.graph),
            opset_import: vec![operators("", OPSET), operators(MICROSOFT, 1)],
        };
        model.encode_to_vec()
    }
}

fn attribute((name, value): &(&str, Attribute)) -> AttributeProto {
    let mut attribute = AttributeProto {
        name: (*name).to_owned(),
        ..AttributeProto::default()
    };
    match value {
        Attribute::Float(f) => (attribute.f, attribute.r#type) = (*f, 1),
        Attribute::Int(i) => (attribute.i, attribute.r#type) = (*i, 2),
        Attribute::Ints(ints) => (attribute.ints, attribute.r#type) = (ints.clone(), 7),
    }
    attribute
}

fn info(name: &str, shape: &[Length]) -> ValueInfoProto {
    let dim = shape
        .iter()
        .map(|length| match length {
            Length::Is(length) => DimensionProto {
                dim_value: Some(*length as i64),
                dim_param: None,
            },
            Length::Named(name) => DimensionProto {
                dim_value: None,
                dim_param: Some((*name).to_owned()),
            },
        })
        .collect();
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: FLOAT,
                shape: Some(ShapeProto { dim }),
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::{Input, Network, tensor};
    use crate::testing;

    #[test]
    fn a_written_network_runs() {
        let mut graph = Graph::new();
        let x = graph.input("x", &[Length::Named("n"), Length::Is(2)]);
        let weights = graph.floats(&[2, 1], &[10.0, 1.0]);
        let y = graph.node("MatMul", &[&x, &weights], &[]);
        graph.output("y", &y, &[Length::Named("n"), Length::Is(1)]);
        let mut network = Network::from_bytes(&testing::runtime(), &graph.into_bytes()).unwrap();
        let x = Input::new(&[2, 2], vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let y = network.run(vec![("x", x)]).unwrap().take("y").unwrap();
        assert_eq!(tensor::<f32>(&y).unwrap(), (vec![2, 1], &[12.0, 34.0][..]));
    }
}
