//! Whether the speakers of WAV files or raw samples (16 kHz, mono, 16 bits) have finished: a line of JSON for each, with
//! the CPU time that it took, the mean of so many runs.
//!
//! `turn RUNTIME FOLDER RUNS FILE...` (Linux)

use std::io::Write;
use std::path::Path;

use vivavoce_speech::onnx::Runtime;
use vivavoce_speech::recogniser::RATE_HZ;
use vivavoce_speech::smart_turn::SmartTurn;

type Failure = Box<dyn std::error::Error>;

/// The CPU time of this thread so far, in milliseconds; the kernel counts it in steps of some.
fn cpu_ms() -> Result<f64, Failure> {
    let times = std::fs::read_to_string("/proc/self/schedstat")?;
    let running: f64 = times.split(' ').next().unwrap_or_default().parse()?;
    Ok(running / 1e6)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [runtime, folder, runs, files @ ..] = &arguments[..] else {
        return Err("turn RUNTIME FOLDER RUNS FILE...".into());
    };
    let runs: u32 = runs.parse()?;
    let runtime = Runtime::load(Path::new(runtime))?;
    let began = cpu_ms()?;
    let mut model = SmartTurn::load(&runtime, Path::new(folder))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, r#"{{"loaded_cpu_ms":{:.1}}}"#, cpu_ms()? - began)?;
    for file in files {
        let bytes = std::fs::read(file)?;
        let header = if bytes.starts_with(b"RIFF") { 44 } else { 0 };
        let (samples, _) = bytes.get(header..).unwrap_or_default().as_chunks();
        let samples: Vec<i16> = samples.iter().map(|&b| i16::from_le_bytes(b)).collect();
        let mut finished = 0.0;
        let began = cpu_ms()?;
        for _ in 0..runs {
            finished = model.finished(&samples)?;
        }
        let took = (cpu_ms()? - began) / f64::from(runs);
        let seconds = samples.len() as f64 / RATE_HZ as f64;
        let line = serde_json::json!({
            "file": file, "seconds": seconds, "finished": finished, "cpu_ms": took,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}
