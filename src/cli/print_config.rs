//! `vivavoce print-config`: every setting with its value and source. Secrets are masked.

use std::io::{BufWriter, Write, stdout};

use crate::config::Config;

pub(super) fn run(config: &Config) {
    let mut out = BufWriter::new(stdout().lock());
    let width = config
        .resolved
        .iter()
        .map(|resolved| resolved.setting.key.len())
        .max()
        .unwrap_or(0);
    for resolved in &config.resolved {
        let shown = resolved.shown();
        let value = if shown.is_empty() { "-" } else { &shown };
        let line = writeln!(
            out,
            "{:width$}  {value}  ({})",
            resolved.setting.key, resolved.origin
        );
        if line.is_err() {
            // A closed pipe is not an error.
            return;
        }
    }
    let _ = out.flush();
}
