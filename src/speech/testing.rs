//! Models for tests: fetched by `./test` into `.clients/models`, or where `MODELS_PATH` says.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::hibari::{Hibari, Piece};
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

/// A text as hibari says it: samples at 16 kHz.
pub fn spoken(text: &str) -> Vec<i16> {
    let mut voice = Hibari::load(&runtime(), &model("hibari")).unwrap();
    let mut sound = Vec::new();
    let mut give = |_: Piece, samples: &[f32]| {
        sound.extend_from_slice(samples);
        Ok(())
    };
    voice.speak(text, None, 1.0, &mut give).unwrap();
    // Of three samples two remain; what is above 8 kHz is hardly heard in this voice.
    let at = |place: usize| sound.get(place).copied().unwrap_or_default() * 30_000.0;
    let thirds = (0..sound.len()).step_by(3);
    let both = thirds.flat_map(|place| [at(place), f32::midpoint(at(place + 1), at(place + 2))]);
    both.map(|sample| sample as i16).collect()
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
