//! The same numbers as a picture of nine small panels: ours by `silence_ms` in steady noise and in babble, and the
//! detectors side by side.

use std::fmt::Write;

use crate::scores::CANDIDATES;
use crate::{COMPARED_AT, Condition, Measurement, OURS, Outcome, SILENCES, SNRS};

const WIDTH: f64 = 280.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 60.0;
const ACROSS: f64 = WIDTH + 80.0;
const DOWN: f64 = HEIGHT + 100.0;
const COLOURS: [&str; 4] = ["#2166ac", "#e08214", "#b2182b", "#666666"];

/// One line of a panel: a value at each place of the x axis where there is one.
struct Line {
    colour: &'static str,
    dashed: bool,
    values: Vec<Option<f64>>,
}

/// What is asked of an outcome, and how far the y axis goes.
struct Quantity {
    title: &'static str,
    unit: &'static str,
    most: f64,
    of: fn(&Outcome) -> Option<f64>,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        title: "false ends, of pauses shorter than silence_ms",
        unit: " %",
        most: 40.0,
        of: |outcome| share(outcome.false_ends, outcome.short),
    },
    Quantity {
        title: "ends missed, of turns",
        unit: " %",
        most: 100.0,
        of: |outcome| share(outcome.missed, outcome.turns),
    },
    Quantity {
        title: "median delay of the end",
        unit: " ms",
        most: 1_600.0,
        of: |outcome| outcome.delay(0.5).map(|delay| delay as f64),
    },
];

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| 100.0 * part as f64 / whole as f64)
}

pub fn svg(measured: &Measurement) -> String {
    let width = LEFT + 3.0 * ACROSS;
    let height = TOP + 3.0 * DOWN - 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (row, steady) in [true, false].into_iter().enumerate() {
        let kind = if steady {
            "steady noise (white, pink)"
        } else {
            "babble (six voices)"
        };
        let top = TOP + row as f64 * DOWN;
        svg += &heading(
            top,
            &format!("Ours in {kind}, by silence_ms; dashed: with noise suppression"),
        );
        let names = SNRS.map(|snr| format!("{snr:.0} dB"));
        svg += &legend(top, &names);
        for (column, quantity) in QUANTITIES.iter().enumerate() {
            let mut lines = Vec::new();
            for suppressed in [false, true] {
                for (colour, snr) in COLOURS.into_iter().zip(SNRS) {
                    let of = Condition {
                        candidate: 0,
                        suppressed,
                        steady,
                        snr,
                    };
                    let value = |silence| (quantity.of)(&measured.outcome(of, OURS, silence));
                    lines.push(Line {
                        colour,
                        dashed: suppressed,
                        values: SILENCES.map(value).to_vec(),
                    });
                }
            }
            let left = LEFT + column as f64 * ACROSS;
            let places = SILENCES.map(|silence| format!("{silence} ms"));
            svg += &panel(left, top, quantity, &places, &lines);
        }
    }
    let top = TOP + 2.0 * DOWN;
    svg += &heading(
        top,
        &format!(
            "Detectors, each at its best threshold, steady noise, silence_ms {COMPARED_AT}; dashed: with noise suppression"
        ),
    );
    svg += &legend(top, &CANDIDATES.map(|candidate| candidate.name.to_owned()));
    for (column, quantity) in QUANTITIES.iter().enumerate() {
        let left = LEFT + column as f64 * ACROSS;
        let places = SNRS.map(|snr| format!("{snr:.0} dB"));
        svg += &panel(left, top, quantity, &places, &detectors(measured, quantity));
    }
    svg + "</svg>\n"
}

fn detectors(measured: &Measurement, quantity: &Quantity) -> Vec<Line> {
    let mut lines = Vec::new();
    for (candidate, colour) in COLOURS.into_iter().enumerate() {
        for suppressed in [false, true] {
            let threshold = measured.best_threshold(candidate, suppressed);
            let value = |snr| {
                let of = Condition {
                    candidate,
                    suppressed,
                    steady: true,
                    snr,
                };
                (quantity.of)(&measured.outcome(of, threshold, COMPARED_AT))
            };
            lines.push(Line {
                colour,
                dashed: suppressed,
                values: SNRS.map(value).to_vec(),
            });
        }
    }
    lines
}

fn heading(top: f64, text: &str) -> String {
    format!(
        "<text x=\"{LEFT}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\">{text}</text>\n",
        top - 32.0
    )
}

fn legend(top: f64, names: &[String]) -> String {
    let y = top + HEIGHT + 34.0;
    let mut legend = String::new();
    let mut x = LEFT;
    for (name, colour) in names.iter().zip(COLOURS) {
        let _ = writeln!(
            legend,
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"3\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            x + 24.0,
            x + 30.0,
            y + 4.0
        );
        x += 60.0 + 8.0 * name.len() as f64;
    }
    legend
}

fn panel(left: f64, top: f64, quantity: &Quantity, places: &[String], lines: &[Line]) -> String {
    let mut panel = format!(
        "<text x=\"{left}\" y=\"{}\" fill=\"#222\">{}</text>\n",
        top - 10.0,
        quantity.title
    );
    for step in 0..=4 {
        let value = quantity.most * f64::from(step) / 4.0;
        let y = y_of(top, value, quantity.most);
        let _ = writeln!(
            panel,
            "<line x1=\"{left}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#444\">{value}{}</text>",
            left + WIDTH,
            left - 6.0,
            y + 4.0,
            quantity.unit
        );
    }
    let x_of =
        |place: usize| left + 15.0 + (WIDTH - 30.0) * place as f64 / (places.len() - 1) as f64;
    for (place, name) in places.iter().enumerate() {
        let _ = writeln!(
            panel,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#444\">{name}</text>",
            x_of(place),
            top + HEIGHT + 16.0
        );
    }
    for line in lines {
        let mut path = String::new();
        for (place, value) in line.values.iter().enumerate() {
            let Some(value) = *value else { continue };
            let (x, y) = (x_of(place), y_of(top, value, quantity.most));
            let _ = write!(path, "{x:.1},{y:.1} ");
            let _ = writeln!(
                panel,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>",
                line.colour
            );
        }
        let dashes = if line.dashed {
            " stroke-dasharray=\"6 4\""
        } else {
            ""
        };
        let _ = writeln!(
            panel,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dashes}/>",
            path.trim_end(),
            line.colour
        );
    }
    panel
}

fn y_of(top: f64, value: f64, most: f64) -> f64 {
    top + HEIGHT * (1.0 - (value / most).min(1.0))
}
