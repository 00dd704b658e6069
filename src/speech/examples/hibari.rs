//! Scratch.
#![allow(missing_docs)]
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;
use vivavoce_speech::hibari::{Hibari, Piece, to_i16};
use vivavoce_speech::onnx::Runtime;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let models = Path::new(&args[1]);
    let runtime = Runtime::load(&models.join("onnxruntime/libonnxruntime.so")).unwrap();
    let t = Instant::now();
    let mut hibari = Hibari::load(&runtime, &models.join("hibari")).unwrap();
    eprintln!("load {:?}", t.elapsed());
    let rate: f32 = args.get(3).map_or(1.0, |r| r.parse().unwrap());
    for (n, line) in std::io::stdin().lock().lines().enumerate() {
        let line = line.unwrap();
        if args[2] == "phonemes" {
            let said = match hibari.phonemes(&line, None) {
                Ok(said) => said,
                Err(e) => {
                    println!("ERR {e}");
                    continue;
                }
            };
            let mut out = String::new();
            for s in &said {
                out += &s.phonemes;
                if s.space {
                    out.push(' ');
                }
            }
            println!("{}", out.trim());
        } else {
            let t = Instant::now();
            let mut first = None;
            let mut all: Vec<i16> = Vec::new();
            let mut words = Vec::new();
            let r = hibari.speak(&line, None, rate, &mut |p, s| {
                match p {
                    Piece::Words(w) => words.extend(w),
                    Piece::Sound => {
                        first.get_or_insert_with(|| t.elapsed());
                        all.extend(s.iter().map(|&s| to_i16(s)));
                    }
                }
                Ok(())
            });
            let secs = all.len() as f64 / 24000.0;
            println!(
                "{r:?} first {:?} all {:?} sound {secs:.2} s = {:.0} x  | {line}",
                first,
                t.elapsed(),
                secs / t.elapsed().as_secs_f64()
            );
            if args[2] == "words" {
                for w in &words {
                    println!(
                        "   {:.3} {:.3} {}",
                        w.start_seconds,
                        w.end_seconds,
                        &line[w.start_byte as usize..w.end_byte as usize]
                    );
                }
            }
            let mut f = std::fs::File::create(format!("/tmp/hib/{n}.raw")).unwrap();
            for s in all {
                f.write_all(&s.to_le_bytes()).unwrap();
            }
        }
    }
}
