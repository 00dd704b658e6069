//! Utterances as subtitles: SubRip and WebVTT (W3C, "WebVTT: The Web Video Text Tracks Format", section 4).

use std::fmt::Write;

/// An utterance with its place, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cue<'a> {
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) text: &'a str,
}

/// Hours, minutes, seconds and milliseconds.
struct Clock(f64, char);

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(seconds, point) = self;
        let ms = (seconds.max(0.0) * 1e3).round() as u64;
        let (s, ms) = (ms / 1_000, ms % 1_000);
        let (m, s) = (s / 60, s % 60);
        write!(f, "{:02}:{:02}:{s:02}{point}{ms:03}", m / 60, m % 60)
    }
}

/// SubRip.
pub(super) fn srt<'a>(cues: impl Iterator<Item = Cue<'a>>) -> String {
    let mut text = String::new();
    for (
        number,
        Cue {
            start,
            end,
            text: said,
        },
    ) in (1..).zip(cues)
    {
        let (start, end) = (Clock(start, ','), Clock(end, ','));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{number}\n{start} --> {end}\n{said}\n");
    }
    text
}

/// WebVTT.
pub(super) fn vtt<'a>(cues: impl Iterator<Item = Cue<'a>>) -> String {
    let mut text = String::from("WEBVTT\n\n");
    for Cue {
        start,
        end,
        text: said,
    } in cues
    {
        let (start, end) = (Clock(start, '.'), Clock(end, '.'));
        // What would be taken for a tag, and for the times of another cue.
        let said = said
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace("-->", "--&gt;");
        let _ = writeln!(text, "{start} --> {end}\n{said}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_each_format_has_them() {
        let cues = [
            Cue {
                start: 0.0,
                end: 1.2345,
                text: "Hello <b>.",
            },
            Cue {
                start: 3_599.999_9,
                end: 36_000.5,
                text: "R&D --> here",
            },
        ];
        assert_eq!(
            srt(cues.into_iter()),
            "1\n00:00:00,000 --> 00:00:01,235\nHello <b>.\n\n\
             2\n01:00:00,000 --> 10:00:00,500\nR&D --> here\n\n"
        );
        assert_eq!(
            vtt(cues.into_iter()),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.235\nHello &lt;b>.\n\n\
             01:00:00.000 --> 10:00:00.500\nR&amp;D --&gt; here\n\n"
        );
    }
}
