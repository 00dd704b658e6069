//! People who speak: the recordings in the source distribution of pocketsphinx (PyPI, 5.1.1), which `./test` puts into
//! `.clients/human`, with what is said in them.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the recordings.
pub fn human(file: &str) -> PathBuf {
    let folder = std::env::var_os("VIVAVOCE_HUMAN_SPEECH").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(".clients/human"),
        PathBuf::from,
    );
    let data = folder.join("test/data");
    assert!(
        data.is_dir(),
        "human speech is missing: unpack the source distribution of pocketsphinx 5.1.1 from PyPI into {} or set VIVAVOCE_HUMAN_SPEECH",
        folder.display()
    );
    data.join(file)
}

/// The recordings of a folder with what is said in each, from lines like `<s> ten of clubs </s> (001)`.
pub fn transcribed(folder: &str, transcription: &str) -> Vec<(PathBuf, String)> {
    let lines = fs::read_to_string(human(folder).join(transcription)).unwrap();
    let recordings: Vec<_> = lines
        .lines()
        .map(|line| {
            let (said, name) = line.rsplit_once('(').unwrap();
            let said = said.replace("<s>", "").replace("</s>", "");
            let name = name.trim_end().trim_end_matches(')');
            (
                human(folder).join(format!("{name}.wav")),
                said.trim().to_owned(),
            )
        })
        .collect();
    assert!(!recordings.is_empty());
    recordings
}

/// Mono samples at 16 kHz, 16-bit little-endian, from a WAV file with the plain header that flite and the recordings have,
/// or without any.
pub fn linear16(file: &Path) -> Vec<u8> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    match bytes.windows(4).position(|four| four == b"data") {
        Some(at) if bytes.starts_with(b"RIFF") => {
            bytes[at + 8..][..(bytes.len() - at - 8) / 2 * 2].to_vec()
        }
        _ => bytes,
    }
}

/// How many of the words that were said were heard, in their order, and how many were said: the longest common
/// subsequence. Both sides must be written alike.
pub fn words_right(said: &str, heard: &str) -> (usize, usize) {
    let said: Vec<&str> = said.split_whitespace().collect();
    let mut row = vec![0; said.len() + 1];
    for heard in heard.split_whitespace() {
        let mut diagonal = 0;
        for (n, said) in said.iter().enumerate() {
            let above = row[n + 1];
            row[n + 1] = if *said == heard {
                diagonal + 1
            } else {
                above.max(row[n])
            };
            diagonal = above;
        }
    }
    (row[said.len()], said.len())
}

/// A transcript as it is spoken: in lower case and without punctuation.
pub fn spoken(transcript: &str) -> String {
    transcript.to_lowercase().replace(
        |c: char| !(c.is_alphanumeric() || c == '\'' || c == ' '),
        " ",
    )
}
