//! Flite, the English synthesiser of Carnegie Mellon University: which voices of it we offer, and how it is asked to
//! say one sentence. It prints the whole sentence at once, after about 13 ms of work per second of speech.

use std::ffi::OsString;

use vivavoce_audio::format::SampleRate;
use vivavoce_core::process::Program;
use vivavoce_seams::Voice;

use super::tts::{Engine, Invocation};
use super::voices::LocalVoice;

/// The engine.
pub static FLITE: Engine = Engine {
    program: Program {
        name: "flite",
        package: "flite",
    },
    prefix: "flite-",
    list: &["-lv"],
    parse_list,
    say,
};

/// One voice that Flite's package may bring.
struct Known {
    called: &'static str,
    gender: &'static str,
    accent: &'static str,
    rate: SampleRate,
}

/// The voices, best first. `awb_time` is not among them: it can only tell the time.
const KNOWN: [Known; 5] = [
    known("slt", "female", "American", SampleRate::HZ_16000),
    known("rms", "male", "American", SampleRate::HZ_16000),
    known("awb", "male", "Scottish", SampleRate::HZ_16000),
    known("kal16", "male", "American", SampleRate::HZ_16000),
    known("kal", "male", "American", SampleRate::HZ_8000),
];

const fn known(
    called: &'static str,
    gender: &'static str,
    accent: &'static str,
    rate: SampleRate,
) -> Known {
    Known {
        called,
        gender,
        accent,
        rate,
    }
}

/// Reads `Voices available: kal awb_time …`.
fn parse_list(printed: &str) -> Vec<LocalVoice> {
    let (_, installed) = printed.split_once(':').unwrap_or_default();
    let installed: Vec<&str> = installed.split_whitespace().collect();
    KNOWN
        .iter()
        .filter(|known| installed.contains(&known.called))
        .map(|known| LocalVoice {
            shown: Voice {
                id: format!("flite-{}", known.called),
                name: known.called.to_owned(),
                // The lexicon is American even where the speaker is not.
                language: "en-US".to_owned(),
                languages: vec!["en-US".to_owned(), "en".to_owned()],
                gender: known.gender.to_owned(),
                accent: known.accent.to_owned(),
                sample: String::new(),
                sample_rates: vec![known.rate.hz()],
                tags: vec!["flite".to_owned()],
            },
            called: known.called.to_owned(),
            rate: known.rate,
        })
        .collect()
}

/// The text is an argument: from a file or a pipe Flite writes in pieces, for which it seeks in its output, and so
/// hangs for ever on a pipe.
fn say(voice: &LocalVoice, speaking_rate: f64, text: &str) -> Invocation {
    let stretch = format!("duration_stretch={:.4}", speaking_rate.recip());
    let arguments = [
        "-voice",
        &voice.called,
        "--setf",
        &stretch,
        "-t",
        text,
        "-o",
        "/dev/stdout",
    ];
    Invocation {
        arguments: arguments.iter().map(OsString::from).collect(),
        input: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_voices_are_listed_best_first() {
        let voices = parse_list("Voices available: kal awb_time kal16 awb rms slt \n");
        let ids: Vec<&str> = voices.iter().map(|voice| voice.shown.id.as_str()).collect();
        assert_eq!(
            ids,
            [
                "flite-slt",
                "flite-rms",
                "flite-awb",
                "flite-kal16",
                "flite-kal"
            ]
        );
        assert_eq!(voices[4].rate, SampleRate::HZ_8000);
        assert!(parse_list("segmentation fault").is_empty());
    }
}
