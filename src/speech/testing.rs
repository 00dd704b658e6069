//! Models for tests: fetched by `./test` into `.clients/models`, or where `MODELS_PATH` says.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::onnx::Runtime;

/// A file below the folder of models. A test without it fails and says how to get it.
pub fn model(file: &str) -> PathBuf {
    let folder = std::env::var_os("MODELS_PATH").map_or_else(
        || {
            PathBuf::from(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../.clients/models"
            ))
        },
        PathBuf::from,
    );
    let path = folder.join(file);
    assert!(
        path.exists(),
        "{} is missing: ./test fetches it",
        path.display()
    );
    path
}

/// The runtime, loaded once.
pub fn runtime() -> Runtime {
    static LOADED: OnceLock<Runtime> = OnceLock::new();
    LOADED
        .get_or_init(|| Runtime::load(&model("onnxruntime/libonnxruntime.so")).unwrap())
        .clone()
}
