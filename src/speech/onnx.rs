//! Neural networks in the ONNX format, run by [ONNX Runtime](https://onnxruntime.ai) through the `ort` crate. The
//! runtime is a shared library that is loaded when it is needed: it is fetched like a model, costs no build time, and is
//! never linked. Everything that knows `ort` is here, as it is pinned: its interface moves.

pub mod constants;
pub mod layers;
pub mod subgraph;
pub mod writer;

use std::borrow::Cow;
use std::path::Path;

use ort::environment::Environment;
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{Session, SessionInputValue};
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor, TensorRef};

/// Why a network cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// ONNX Runtime itself.
    #[error("ONNX Runtime cannot be loaded from {file}: {cause}")]
    Runtime {
        /// The library.
        file: String,
        /// The loader's words.
        cause: String,
    },
    /// The file is no network, or one with operators that are not known.
    #[error("{file} is not a network that can be loaded: {cause}")]
    Load {
        /// The file.
        file: String,
        /// The runtime's words.
        cause: String,
    },
    /// It is a network, but not the one that was expected.
    #[error("the network has no {0:?}: this is not the model that was expected")]
    Foreign(String),
    /// It does not go together with what it was given.
    #[error("the network does not run: {0}")]
    Run(String),
}

/// ONNX Runtime, loaded. One per process.
#[derive(Clone)]
pub struct Runtime {
    environment: Environment,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Loads the library, which stays loaded until the process ends.
    pub fn load(library: &Path) -> Result<Self, OnnxError> {
        let failed = |cause: String| OnnxError::Runtime {
            file: library.display().to_string(),
            cause,
        };
        let environment = ort::environment::init_from(library)
            .map_err(|error| failed(error.to_string()))?
            .with_telemetry(false)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { environment })
    }
}

/// A loaded network. Each run takes one core.
pub struct Network {
    session: Session,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

/// A tensor that a network gave, or that it starts with.
#[derive(Debug)]
pub struct Value(DynValue);

impl Value {
    /// A tensor of zeros; a length of it may be zero, too.
    pub fn zeros(shape: &[usize]) -> Result<Self, OnnxError> {
        let allocator = ort::memory::Allocator::default();
        let mut tensor = Tensor::<f32>::new(&allocator, shape.to_vec()).map_err(run_error)?;
        tensor.extract_tensor_mut().1.fill(0.0);
        Ok(Self(tensor.into_dyn()))
    }
}

impl Network {
    /// A network from an `.onnx` or `.ort` file.
    pub fn load(runtime: &Runtime, file: &Path) -> Result<Self, OnnxError> {
        let failed = |cause: String| OnnxError::Load {
            file: file.display().to_string(),
            cause,
        };
        let bytes = std::fs::read(file).map_err(|error| failed(error.to_string()))?;
        Self::from_bytes(runtime, &bytes).map_err(|error| failed(error.to_string()))
    }

    /// A network from the bytes of such a file.
    pub fn from_bytes(runtime: &Runtime, bytes: &[u8]) -> Result<Self, OnnxError> {
        let load = || -> ort::Result<Session> {
            let plain = |error: ort::Error<_>| ort::Error::new(error.to_string());
            // One thread, which does not spin: cores are shared with sessions.
            Session::builder(&runtime.environment)?
                .with_intra_threads(1)
                .map_err(plain)?
                .with_inter_threads(1)
                .map_err(plain)?
                .with_intra_op_spinning(false)
                .map_err(plain)?
                .with_optimization_level(GraphOptimizationLevel::All)
                .map_err(plain)?
                .commit_from_memory(bytes)
        };
        let session = load().map_err(|error| OnnxError::Load {
            file: "the model".to_owned(),
            cause: error.to_string(),
        })?;
        Ok(Self { session })
    }

    /// Refuses a network without these inputs and outputs.
    pub fn expect(&self, inputs: &[&str], outputs: &[&str]) -> Result<(), OnnxError> {
        let has = |outlets: &[ort::value::Outlet], name: &str| {
            outlets.iter().any(|outlet| outlet.name() == name)
        };
        let missing = inputs
            .iter()
            .find(|name| !has(self.session.inputs(), name))
            .or_else(|| {
                outputs
                    .iter()
                    .find(|name| !has(self.session.outputs(), name))
            });
        match missing {
            Some(name) => Err(OnnxError::Foreign((*name).to_owned())),
            None => Ok(()),
        }
    }

    /// Runs the network on these inputs, by name.
    pub fn run<'i>(&mut self, inputs: Vec<(&'i str, Input<'i>)>) -> Result<Outputs, OnnxError> {
        let inputs: Vec<(Cow<'i, str>, SessionInputValue<'i>)> = inputs
            .into_iter()
            .map(|(name, input)| (Cow::Borrowed(name), input.0))
            .collect();
        let outputs = self.session.run(inputs).map_err(run_error)?;
        let values = outputs
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value(value)))
            .collect();
        Ok(Outputs { values })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn run_error(error: ort::Error) -> OnnxError {
    OnnxError::Run(error.to_string())
}

/// What a network is given under one name.
pub struct Input<'v>(SessionInputValue<'v>);

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").finish_non_exhaustive()
    }
}

impl<'v> Input<'v> {
    /// A tensor of this shape.
    pub fn new<T>(shape: &[usize], data: Vec<T>) -> Result<Self, OnnxError>
    where
        T: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static,
    {
        let tensor = Tensor::from_array((shape.to_vec(), data)).map_err(run_error)?;
        Ok(Self(tensor.into()))
    }

    /// The same over borrowed data.
    pub fn of<T>(shape: &[usize], data: &'v [T]) -> Result<Self, OnnxError>
    where
        T: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static,
    {
        let tensor = TensorRef::from_array_view((shape.to_vec(), data)).map_err(run_error)?;
        Ok(Self(tensor.into()))
    }

    /// What a network gave before.
    pub fn again(value: &'v Value) -> Self {
        Self((&value.0).into())
    }
}

/// What a network gave.
#[derive(Debug)]
pub struct Outputs {
    values: Vec<(String, Value)>,
}

impl Outputs {
    /// The value of that name, taken out.
    pub fn take(&mut self, name: &str) -> Result<Value, OnnxError> {
        let at = self.values.iter().position(|(known, _)| known == name);
        at.map(|at| self.values.swap_remove(at).1)
            .ok_or_else(|| OnnxError::Foreign(name.to_owned()))
    }
}

/// The shape and the numbers of a tensor.
pub fn tensor<T: PrimitiveTensorElementType>(
    value: &Value,
) -> Result<(Vec<usize>, &[T]), OnnxError> {
    let (shape, data) = value.0.try_extract_tensor::<T>().map_err(run_error)?;
    let shape = shape.iter().map(|&length| length.max(0) as usize).collect();
    Ok((shape, data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_is_no_network_is_an_error_and_no_panic() {
        let runtime = testing::runtime();
        let model = std::fs::read(testing::model("smart-turn/smart-turn-v3.2-cpu.onnx")).unwrap();
        let half = &model[..model.len() / 2];
        let garbled: Vec<u8> = model.iter().map(|byte| byte ^ 0x55).collect();
        for bytes in [
            &[] as &[u8],
            &[0; 64],
            &b"not a model".repeat(100),
            &[0xff; 4096],
            half,
            &garbled,
        ] {
            let refused = Network::from_bytes(&runtime, bytes);
            assert!(matches!(refused, Err(OnnxError::Load { .. })));
        }
    }

    #[test]
    fn a_library_that_is_none_is_an_error() {
        let none = Runtime::load(Path::new("/nonexistent/libonnxruntime.so")).unwrap_err();
        assert!(none.to_string().contains("/nonexistent"), "{none}");
    }

    #[test]
    fn a_network_runs_and_a_foreign_one_is_refused() {
        let runtime = testing::runtime();
        let file = testing::model("smart-turn/smart-turn-v3.2-cpu.onnx");
        let mut network = Network::load(&runtime, &file).unwrap();
        network.expect(&["input_features"], &["logits"]).unwrap();
        assert!(matches!(
            network.expect(&["ids"], &[]),
            Err(OnnxError::Foreign(name)) if name == "ids"
        ));
        let silence = vec![0.0f32; 80 * 800];
        let inputs = vec![(
            "input_features",
            Input::of(&[1, 80, 800], &silence).unwrap(),
        )];
        let mut outputs = network.run(inputs).unwrap();
        let logits = outputs.take("logits").unwrap();
        let (shape, logits) = tensor::<f32>(&logits).unwrap();
        assert_eq!(shape, [1, 1]);
        assert!(logits[0].is_finite());
        let wrong = vec![("input_features", Input::of(&[2], &[0.0f32; 2]).unwrap())];
        assert!(matches!(network.run(wrong), Err(OnnxError::Run(_))));
    }
}
