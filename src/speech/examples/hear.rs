//! Hears WAV files or raw samples (16 kHz, mono, 16 bits) with a model: a line of JSON for each, with what it took.
//!
//! `hear RUNTIME KIND FOLDER FILE...`, where KIND is `whisper` or `moonshine`.

#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use vivavoce_speech::moonshine::Moonshine;
use vivavoce_speech::onnx::Runtime;
use vivavoce_speech::recogniser::{Hearing, RATE_HZ, Recogniser};
use vivavoce_speech::whisper::Whisper;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [runtime, kind, folder, files @ ..] = &arguments[..] else {
        return Err("hear RUNTIME KIND FOLDER FILE...".into());
    };
    let runtime = Runtime::load(Path::new(runtime))?;
    let began = Instant::now();
    let folder = Path::new(folder);
    let mut model: Box<dyn Recogniser> = match kind.as_str() {
        "whisper" => Box::new(Whisper::load(&runtime, folder)?),
        "moonshine" => Box::new(Moonshine::load(&runtime, folder)?),
        _ => return Err("KIND is whisper or moonshine".into()),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, r#"{{"loaded_ms":{}}}"#, began.elapsed().as_millis())?;
    for file in files {
        let bytes = std::fs::read(file)?;
        let header = if bytes.starts_with(b"RIFF") { 44 } else { 0 };
        let (samples, _) = bytes.get(header..).unwrap_or_default().as_chunks();
        let samples: Vec<i16> = samples.iter().map(|&b| i16::from_le_bytes(b)).collect();
        let hearing = Hearing {
            language: "en".to_owned(),
            ..Hearing::default()
        };
        let began = Instant::now();
        let heard = model.hear(&samples, &hearing)?;
        let took = began.elapsed().as_micros() as f64 / 1000.0;
        let seconds = samples.len() as f64 / RATE_HZ as f64;
        let line = serde_json::json!({
            "file": file, "seconds": seconds, "took_ms": took, "heard": heard,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}
