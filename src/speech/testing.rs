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

/// Sentences that a reader of LibriVox says, from pocketsphinx' own test data, which `./test` fetches: the samples at
/// 16 kHz and the words, in lower case.
pub fn sentences() -> Vec<(Vec<i16>, Vec<String>)> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../.clients/human/test/data/librivox"
    ));
    let list = std::fs::read_to_string(folder.join("fileids"));
    let list = list.expect("pocketsphinx' test data are missing: ./test fetches them");
    list.lines()
        .map(|name| {
            let sound = std::fs::read(folder.join(format!("{name}.wav"))).unwrap();
            let (samples, _) = sound[44..].as_chunks();
            let text = std::fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap();
            let samples = samples.iter().map(|&x| i16::from_le_bytes(x)).collect();
            (samples, words(&text))
        })
        .collect()
}

/// The words of a text: lower case, hyphens part them, titles as they are said.
pub fn words(text: &str) -> Vec<String> {
    text.to_lowercase()
        .split(|letter: char| !letter.is_alphanumeric() && letter != '\'')
        .filter(|word| !word.is_empty())
        .map(|word| if word == "mr" { "mister" } else { word }.to_owned())
        .collect()
}

/// How many words are other than said, left out or invented.
pub fn words_wrong(said: &[String], heard: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (at, word) in said.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (to, other) in heard.iter().enumerate() {
            let cost = (diagonal + usize::from(word != other))
                .min(row[to] + 1)
                .min(row[to + 1] + 1);
            diagonal = std::mem::replace(&mut row[to + 1], cost);
        }
    }
    row[heard.len()]
}
