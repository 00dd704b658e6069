//! Measures every standard pair of rates on each resampler and prints one Markdown table: speed, sound held after each
//! 20 ms chunk, ripple of the passband (to 0.40 of the lower rate) and rejection (from 0.60 of it); the last row has
//! the geometric mean of the speeds and the worst of the rest. `cargo run --release [FROM TO]`; with
//! `--speed ENGINE FROM TO` it only converts (for an instruction counter), with `--open` it times the second opening
//! of every pair.

mod engines;
mod measure;

use engines::{ENGINES, Engine};
use measure::Quality;

const RATES: [u32; 7] = [8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

/// What was measured of one engine at one pair.
struct Cell {
    nanos: f64,
    mean_held_ms: f64,
    max_held_ms: f64,
    quality: Quality,
}

impl Cell {
    fn measure(engine: &Engine, from: u32, to: u32) -> Self {
        let (mean_held_ms, max_held_ms) = measure::held(engine, from, to);
        Self {
            nanos: measure::nanos_per_chunk(engine, from, to, 40),
            mean_held_ms,
            max_held_ms,
            quality: measure::quality(engine, from, to),
        }
    }

    /// The geometric mean of the speeds, the mean of the means, and the worst of everything else.
    fn summary(of: &[&Self]) -> Self {
        let mean = |value: fn(&Self) -> f64| {
            of.iter().map(|cell| value(cell)).sum::<f64>() / of.len() as f64
        };
        let most = |value: fn(&Self) -> f64| of.iter().map(|cell| value(cell)).fold(0.0, f64::max);
        Self {
            nanos: mean(|cell| cell.nanos.ln()).exp(),
            mean_held_ms: mean(|cell| cell.mean_held_ms),
            max_held_ms: most(|cell| cell.max_held_ms),
            quality: Quality {
                ripple_db: most(|cell| cell.quality.ripple_db),
                rejection_db: -of
                    .iter()
                    .map(|cell| -cell.quality.rejection_db)
                    .fold(f64::MIN, f64::max),
            },
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|a| a.parse::<u32>().ok());
    match arguments.first().map(String::as_str) {
        Some("--speed") => {
            let engine = ENGINES.iter().find(|engine| engine.name == arguments[1]);
            let engine = engine.expect("the name of an engine");
            let (from, to) = (number(2).expect("a rate"), number(3).expect("a rate"));
            println!("{:.0} ns", measure::nanos_per_chunk(engine, from, to, 3));
        }
        Some("--open") => {
            for engine in &ENGINES {
                let micros = pairs().map(|(from, to)| measure::open_micros(engine, from, to));
                let micros: Vec<f64> = micros.collect();
                let mean = micros.iter().sum::<f64>() / micros.len() as f64;
                let most = micros.iter().copied().fold(0.0, f64::max);
                println!("{}: mean {mean:.0} us, most {most:.0} us", engine.name);
            }
        }
        _ => print_table(|from, to| {
            number(0).is_none_or(|asked| asked == from) && number(1).is_none_or(|asked| asked == to)
        }),
    }
}

fn pairs() -> impl Iterator<Item = (u32, u32)> {
    let all = RATES
        .into_iter()
        .flat_map(|from| RATES.map(|to| (from, to)));
    all.filter(|(from, to)| from != to)
}

fn print_table(asked: impl Fn(u32, u32) -> bool) {
    let head = |what: &str| {
        let cells = ENGINES
            .iter()
            .map(|engine| format!(" {} {what} |", engine.name));
        cells.collect::<String>()
    };
    println!(
        "| from → to, Hz |{}{}{}{}",
        head("ns"),
        head("held ms, mean / max"),
        head("ripple dB"),
        head("rejection dB")
    );
    println!("|---|{}", "--:|".repeat(4 * ENGINES.len()));
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (from, to) in pairs().filter(|&(from, to)| asked(from, to)) {
        let row = ENGINES.iter().map(|engine| Cell::measure(engine, from, to));
        let row: Vec<Cell> = row.collect();
        print_row(&format!("{from} → {to}"), &row);
        rows.push(row);
    }
    let column = |n: usize| rows.iter().map(|row| &row[n]).collect::<Vec<_>>();
    let last = (0..ENGINES.len()).map(|n| Cell::summary(&column(n)));
    print_row("**all**", &last.collect::<Vec<_>>());
}

fn print_row(name: &str, row: &[Cell]) {
    let across = |text: fn(&Cell) -> String| {
        let cells = row.iter().map(|cell| format!(" {} |", text(cell)));
        cells.collect::<String>()
    };
    println!(
        "| {name} |{}{}{}{}",
        across(|cell| format!("{:.0}", cell.nanos)),
        across(|cell| format!("{:.2} / {:.2}", cell.mean_held_ms, cell.max_held_ms)),
        across(|cell| format!("{:.2}", cell.quality.ripple_db)),
        across(|cell| format!("{:.1}", cell.quality.rejection_db)),
    );
}
