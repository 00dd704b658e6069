//! What was found, and how it is shown.

use std::io::{self, Write};

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Good,
    /// Not looked at, or it does not matter here.
    Note,
    /// It works, but somebody should know.
    Warning,
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub verdict: Verdict,
    /// What was looked at.
    pub what: String,
    /// What is so.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn of(verdict: Verdict, what: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            verdict,
            what: what.into(),
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn good(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self::of(Verdict::Good, what, found)
    }

    pub(super) fn note(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self::of(Verdict::Note, what, found)
    }

    pub(super) fn warning(
        what: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::of(Verdict::Warning, what, found).with(remedy)
    }

    pub(super) fn wrong(
        what: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::of(Verdict::Wrong, what, found).with(remedy)
    }

    fn with(self, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..self }
    }
}

/// Shows findings one by one, and counts them.
#[derive(Debug)]
pub(super) struct Report {
    json: bool,
    warnings: usize,
    wrong: usize,
}

impl Report {
    pub(super) const fn new(json: bool) -> Self {
        Self {
            json,
            warnings: 0,
            wrong: 0,
        }
    }

    pub(super) fn add(&mut self, out: &mut impl Write, finding: &Finding) -> io::Result<()> {
        let sign = match finding.verdict {
            Verdict::Good => "good   ",
            Verdict::Note => "note   ",
            Verdict::Warning => {
                self.warnings += 1;
                "warning"
            }
            Verdict::Wrong => {
                self.wrong += 1;
                "WRONG  "
            }
        };
        if self.json {
            serde_json::to_writer(&mut *out, finding)?;
            return writeln!(out);
        }
        writeln!(out, "{sign}  {}: {}", finding.what, finding.found)?;
        if let Some(remedy) = &finding.remedy {
            writeln!(out, "         → {remedy}")?;
        }
        // What takes time is awaited in sight of what is known.
        out.flush()
    }

    /// The number of things that are wrong.
    pub(super) fn finish(&self, out: &mut impl Write) -> usize {
        if !self.json && self.wrong == 0 {
            let _ = match self.warnings {
                0 => writeln!(out, "\nNothing is wrong."),
                1 => writeln!(out, "\nNothing is wrong; there is one warning."),
                many => writeln!(out, "\nNothing is wrong; there are {many} warnings."),
            };
        }
        self.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_counted_and_has_its_remedy_below_it() {
        let mut report = Report::new(false);
        let mut out = Vec::new();
        for finding in [
            Finding::good("clock", "right"),
            Finding::warning("disk", "nearly full", "make room"),
            Finding::wrong("port", "taken", "take another"),
        ] {
            report.add(&mut out, &finding).unwrap();
        }
        assert_eq!(report.finish(&mut out), 1);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "good     clock: right\nwarning  disk: nearly full\n         → make room\n\
             WRONG    port: taken\n         → take another\n"
        );
    }
}
