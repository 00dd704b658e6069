//! The same numbers as a picture: for each detector, what a longer silence costs and what it saves.

use crate::{Outcome, SILENCES};

/// A detector in noise of one level.
pub struct Line {
    pub candidate: &'static str,
    pub suppressed: bool,
    pub snr: f64,
    pub outcomes: Vec<Outcome>,
}

const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 70.0;
const GAP: f64 = 40.0;
const LONGEST_MS: f64 = 2_200.0;

fn colour(snr: f64) -> &'static str {
    match snr as u32 {
        20 => "#2166ac",
        10 => "#e08214",
        _ => "#b2182b",
    }
}

/// Panels side by side: turns that end early, in per cent of the pauses, over the median delay; missed ends as the size
/// of the points.
pub fn svg(lines: &[Line], pauses: usize, turns: usize) -> String {
    let mut names: Vec<&str> = lines.iter().map(|line| line.candidate).collect();
    names.dedup();
    let width = LEFT + names.len() as f64 * (WIDTH + GAP);
    let height = TOP + HEIGHT + 90.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Ends inside turns against the delay of ends, silence_ms 200 to 1200 from left to right</text>\n\
         <text x=\"{LEFT}\" y=\"42\" fill=\"#444\">solid: as it is; dashed: with noise suppression. A ring is as large as the share of ends that were missed.</text>\n"
    );
    for (place, name) in names.iter().enumerate() {
        let left = LEFT + place as f64 * (WIDTH + GAP);
        svg += &panel(left, name);
        for line in lines.iter().filter(|line| line.candidate == *name) {
            svg += &curve(left, line, pauses, turns);
        }
    }
    for (place, snr) in [20.0, 10.0, 5.0].into_iter().enumerate() {
        let x = LEFT + 90.0 * place as f64;
        let y = height - 18.0;
        svg += &format!(
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{}\" stroke-width=\"3\"/>\
             <text x=\"{}\" y=\"{}\">{snr} dB</text>\n",
            x + 24.0,
            colour(snr),
            x + 30.0,
            y + 4.0
        );
    }
    svg + "</svg>\n"
}

fn x_of(left: f64, delay: f64) -> f64 {
    left + WIDTH * (delay / LONGEST_MS).min(1.0)
}

fn y_of(share: f64) -> f64 {
    TOP + HEIGHT * (1.0 - share.min(1.0))
}

fn panel(left: f64, name: &str) -> String {
    let mut panel = format!(
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{name}</text>\n",
        TOP - 8.0
    );
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let y = y_of(share);
        panel += &format!(
            "<line x1=\"{left}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#444\">{:.0} %</text>\n",
            left + WIDTH,
            left - 4.0,
            y + 4.0,
            share * 100.0
        );
    }
    for delay in [0.0, 500.0, 1_000.0, 1_500.0, 2_000.0] {
        let x = x_of(left, delay);
        panel += &format!(
            "<line x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{}\" stroke=\"#eee\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#444\">{delay:.0} ms</text>\n",
            TOP + HEIGHT,
            TOP + HEIGHT + 16.0
        );
    }
    panel
}

fn curve(left: f64, line: &Line, pauses: usize, turns: usize) -> String {
    let colour = colour(line.snr);
    let points: Vec<(f64, f64)> = line
        .outcomes
        .iter()
        .map(|outcome| {
            let share = outcome.early as f64 / pauses as f64;
            (x_of(left, outcome.delay(0.5) as f64), y_of(share))
        })
        .collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let dashes = if line.suppressed { " stroke-dasharray=\"6 4\"" } else { "" };
    let mut curve = format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>\n",
        path.join(" ")
    );
    for ((x, y), (outcome, silence)) in points.iter().zip(line.outcomes.iter().zip(SILENCES)) {
        let missed = outcome.missed as f64 / turns as f64;
        curve += &format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{}\" fill=\"{colour}\"><title>{silence} ms</title></circle>\
             <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{:.1}\" fill=\"none\" stroke=\"{colour}\"/>\n",
            if silence == 500 { 5 } else { 3 },
            3.0 + 30.0 * missed.sqrt()
        );
    }
    curve
}
