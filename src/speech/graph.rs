//! A neural network: a graph of operators in the ONNX format, run by [rten](https://docs.rs/rten) on the caller's thread.
//!
//! Everything that knows rten goes through here, as it is pinned: its interface moves.

use std::sync::Arc;

use rten::{ModelOptions, RunOptions, ThreadPool};
pub use rten::{NodeId, Value, ValueOrView};
pub use rten_tensor::Tensor;
pub use rten_tensor::prelude::*;

/// Why a graph cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// The bytes are no graph, or one with an operator that is not known.
    #[error("the model cannot be read: {0}")]
    Load(String),
    /// It is a graph, but not the one that was expected.
    #[error("the model has no node {0:?}: this is not the model that was expected")]
    Foreign(&'static str),
    /// It does not go together with what it was given.
    #[error("the model does not run: {0}")]
    Run(String),
}

/// A loaded network. It may be shared by threads; each run takes one core.
pub struct Graph {
    model: rten::Model,
    options: RunOptions,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}

impl Graph {
    /// A network from the bytes of an ONNX file.
    pub fn load(onnx: Vec<u8>) -> Result<Self, GraphError> {
        // Weights are not packed ahead: rten 0.27 then multiplies 8-bit weights with a zero point wrongly.
        let model = ModelOptions::with_all_ops()
            .load(onnx)
            .map_err(|error| GraphError::Load(error.to_string()))?;
        // One thread: cores are shared with sessions, and what runs beside is decided by the callers.
        let pool = Arc::new(ThreadPool::with_num_threads(1));
        Ok(Self {
            model,
            options: RunOptions::default().with_thread_pool(Some(pool)),
        })
    }

    /// The input, output or inner value of that name.
    pub fn node(&self, name: &'static str) -> Result<NodeId, GraphError> {
        self.model.find_node(name).ok_or(GraphError::Foreign(name))
    }

    /// The values of `outputs` for these inputs, in their order.
    pub fn run<const N: usize>(
        &self,
        inputs: Vec<(NodeId, ValueOrView<'_>)>,
        outputs: [NodeId; N],
    ) -> Result<[Value; N], GraphError> {
        let failed = |error: String| GraphError::Run(error);
        let values = self
            .model
            .run(inputs, &outputs, Some(self.options.clone()))
            .map_err(|error| failed(error.to_string()))?;
        values
            .try_into()
            .map_err(|values: Vec<_>| failed(format!("{} values instead of {N}", values.len())))
    }
}

/// A value as a tensor of floats.
pub fn floats(value: Value) -> Result<Tensor<f32>, GraphError> {
    value
        .try_into()
        .map_err(|error: rten::TryFromValueError| GraphError::Run(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_model_is_an_error_and_no_panic() {
        for bytes in [
            vec![],
            vec![0; 64],
            b"not a model".repeat(100),
            vec![0xff; 4096],
        ] {
            assert!(matches!(Graph::load(bytes), Err(GraphError::Load(_))));
        }
    }
}
