//! Our jitter buffer beside neteq's and our time stretching beside that of Sonic, Signalsmith and `wsola`, on recordings of
//! people. Prints Markdown tables.
//!
//!     cargo run --release -- jitter SPEECH.wav...
//!     cargo run --release -- stretch SPEECH.wav...
//!
//! `run.py` beside this calls both and counts instructions.

mod jitter;
mod sound;
mod stretch;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["jitter", files @ ..] if !files.is_empty() => jitter::compare(files),
        ["stretch", files @ ..] if !files.is_empty() => stretch::compare(files),
        // For callgrind: only the functions `counted_…` count.
        ["count-jitter", engine, files @ ..] => jitter::count(engine, files),
        ["count-stretch", engine, files @ ..] => stretch::count(engine, files),
        _ => panic!("see the head of main.rs"),
    }
}
