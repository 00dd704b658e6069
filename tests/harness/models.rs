//! Models of local speech, as `./test` fetches them.

use std::path::{Path, PathBuf};

/// A folder that `./test` fills.
fn filled(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    assert!(
        folder.is_dir(),
        "{} is missing: ./test fetches the models",
        folder.display()
    );
    folder
}

/// The folder of all models.
pub fn all() -> PathBuf {
    filled(".clients/models")
}

/// The folder of the usual recogniser alone: most tests hear with what people get, which takes a fraction of the processor
/// that pocketsphinx takes, and speak with flite, which takes next to nothing.
pub fn ears() -> PathBuf {
    filled(".clients/ears")
}
