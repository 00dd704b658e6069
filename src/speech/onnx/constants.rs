//! The constants of a network's file: for a network that is written anew from the weights of one that was published.

use std::collections::HashMap;

use prost::Message;

use super::OnnxError;

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    // Numbers are here, or in `raw_data`.
    #[prost(float, repeated, tag = "4")]
    float_data: Vec<f32>,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
}

const FLOAT: i32 = 1;
const INT8: i32 = 3;
const INT32: i32 = 6;

/// The constants of a file, by name.
#[derive(Debug)]
pub struct Constants {
    tensors: HashMap<String, TensorProto>,
}

impl Constants {
    /// Reads an `.onnx` file.
    pub fn read(model: &[u8]) -> Result<Self, OnnxError> {
        let graph = ModelProto::decode(model).map(|model| model.graph);
        let Ok(Some(graph)) = graph else {
            return Err(OnnxError::Load {
                file: "the model".to_owned(),
                cause: "it is not in the ONNX format".to_owned(),
            });
        };
        let named = |tensor: TensorProto| (tensor.name.clone(), tensor);
        Ok(Self {
            tensors: graph.initializer.into_iter().map(named).collect(),
        })
    }

    /// The numbers of a tensor of floats of this shape.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, OnnxError> {
        let tensor = self.tensor(name, shape, FLOAT)?;
        let numbers = if tensor.raw_data.is_empty() {
            tensor.float_data.clone()
        } else {
            let (numbers, _) = tensor.raw_data.as_chunks();
            numbers.iter().map(|&x| f32::from_le_bytes(x)).collect()
        };
        whole(numbers, name, shape)
    }

    /// The numbers of a tensor of bytes with signs of this shape.
    pub fn bytes(&self, name: &str, shape: &[usize]) -> Result<Vec<i8>, OnnxError> {
        let tensor = self.tensor(name, shape, INT8)?;
        let numbers = tensor.raw_data.iter().map(|&x| x.cast_signed()).collect();
        whole(numbers, name, shape)
    }

    /// The numbers of a tensor of whole numbers of 32 bits of this shape.
    pub fn ints(&self, name: &str, shape: &[usize]) -> Result<Vec<i32>, OnnxError> {
        let tensor = self.tensor(name, shape, INT32)?;
        let (numbers, _) = tensor.raw_data.as_chunks();
        let numbers = numbers.iter().map(|&x| i32::from_le_bytes(x)).collect();
        whole(numbers, name, shape)
    }

    fn tensor(
        &self,
        name: &str,
        shape: &[usize],
        data_type: i32,
    ) -> Result<&TensorProto, OnnxError> {
        let as_expected = |tensor: &&TensorProto| {
            let dims = tensor.dims.iter().map(|&length| usize::try_from(length));
            tensor.data_type == data_type && dims.eq(shape.iter().map(|&length| Ok(length)))
        };
        self.tensors
            .get(name)
            .filter(as_expected)
            .ok_or_else(|| foreign(name, shape))
    }
}

/// Refuses a tensor with more or fewer numbers than its shape says.
fn whole<T>(numbers: Vec<T>, name: &str, shape: &[usize]) -> Result<Vec<T>, OnnxError> {
    if numbers.len() == shape.iter().product::<usize>() {
        Ok(numbers)
    } else {
        Err(foreign(name, shape))
    }
}

fn foreign(name: &str, shape: &[usize]) -> OnnxError {
    OnnxError::Foreign(format!("{name} {shape:?}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file with one constant of this type.
    fn file(data_type: i32, dims: &[i64], float_data: &[f32], raw_data: &[u8]) -> Vec<u8> {
        let tensor = TensorProto {
            dims: dims.to_vec(),
            data_type,
            float_data: float_data.to_vec(),
            name: "a".to_owned(),
            raw_data: raw_data.to_vec(),
        };
        let initializer = vec![tensor];
        let graph = Some(GraphProto { initializer });
        ModelProto { graph }.encode_to_vec()
    }

    #[test]
    fn numbers_are_read_however_they_are_stored() {
        let typed = Constants::read(&file(FLOAT, &[2, 1], &[1.0, 2.5], &[])).unwrap();
        assert_eq!(typed.floats("a", &[2, 1]).unwrap(), [1.0, 2.5]);
        let raw = 2.5f32.to_le_bytes();
        let raw = Constants::read(&file(FLOAT, &[], &[], &raw)).unwrap();
        assert_eq!(raw.floats("a", &[]).unwrap(), [2.5]);
        let bytes = Constants::read(&file(INT8, &[2], &[], &[0xff, 7])).unwrap();
        assert_eq!(bytes.bytes("a", &[2]).unwrap(), [-1, 7]);
        let ints = Constants::read(&file(INT32, &[1], &[], &[0xfe, 0xff, 0xff, 0xff])).unwrap();
        assert_eq!(ints.ints("a", &[1]).unwrap(), [-2]);
    }

    #[test]
    fn another_name_shape_type_or_length_is_an_error() {
        let constants = Constants::read(&file(FLOAT, &[2], &[1.0, 2.0], &[])).unwrap();
        assert!(constants.floats("b", &[2]).is_err());
        assert!(constants.floats("a", &[2, 1]).is_err());
        assert!(constants.bytes("a", &[2]).is_err());
        let short = Constants::read(&file(FLOAT, &[2], &[1.0], &[])).unwrap();
        assert!(short.floats("a", &[2]).is_err());
        let negative = Constants::read(&file(INT8, &[-1], &[], &[1])).unwrap();
        assert!(negative.bytes("a", &[1]).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_or_has_constants_and_never_a_panic(bytes: Vec<u8>) {
            if let Ok(constants) = Constants::read(&bytes) {
                prop_assert!(constants.floats("a", &[1]).is_err());
            }
        }
    }
}
