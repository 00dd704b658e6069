//! eSpeak NG, the synthesiser of a hundred languages: which voices are installed, and how it is asked to say one
//! sentence. It prints sound while it works; its first sound leaves after some 5 ms.

use vivavoce_audio::format::SampleRate;
use vivavoce_core::process::Program;
use vivavoce_seams::Voice;

use super::tts::{Engine, Invocation};
use super::voices::{LocalVoice, language_tag};

/// The engine.
pub static ESPEAK: Engine = Engine {
    program: Program {
        name: "espeak-ng",
        package: "espeak-ng",
    },
    prefix: "espeak-",
    list: &["--voices"],
    parse_list,
    say,
};

/// Words a minute at the normal rate (the program's own default).
const WORDS_PER_MINUTE: f64 = 175.0;
/// The rate of every voice that is not MBROLA's.
const RATE_HZ: u32 = 22_050;
/// MBROLA's voices are listed whether or not their (non-free) data are installed.
const MBROLA: &str = "mb/";

/// Reads the table of `--voices`, whose columns are priority, language, age/gender, name, file and other languages.
fn parse_list(printed: &str) -> Vec<LocalVoice> {
    printed.lines().skip(1).filter_map(parse_line).collect()
}

/// The id comes from the file, which is unique where the language is not (`yue` has two).
fn parse_line(line: &str) -> Option<LocalVoice> {
    let mut columns = line.split_whitespace();
    let _priority = columns.next()?;
    let language = language_tag(columns.next()?);
    let gender = columns.next()?.rsplit('/').next()?;
    let name = columns.next()?.replace('_', " ").trim().to_owned();
    let file = columns.next().filter(|file| !file.starts_with(MBROLA))?;
    // "(zh-cmn 5)(zh 5)": a language and the voice's priority for it.
    let others = columns
        .filter_map(|part| part.rsplit('(').next())
        .filter(|part| !part.is_empty() && !part.ends_with(')'))
        .map(language_tag);
    let languages = std::iter::once(language.clone()).chain(others).collect();
    let accent = name
        .split_once('(')
        .map_or("", |(_, accent)| accent.trim_end_matches(')'))
        .to_owned();
    let stem = file.rsplit('/').next()?.to_lowercase();
    Some(LocalVoice {
        shown: Voice {
            id: format!("espeak-{stem}"),
            name,
            language,
            languages,
            gender: match gender {
                "M" => "male",
                "F" => "female",
                _ => "",
            }
            .to_owned(),
            accent,
            sample: String::new(),
            sample_rates: vec![RATE_HZ],
            tags: vec!["espeak-ng".to_owned()],
        },
        called: file.to_owned(),
        rate: SampleRate::new(RATE_HZ).ok()?,
    })
}

fn say(voice: &LocalVoice, speaking_rate: f64, text: &str) -> Invocation {
    let speed = format!("{:.0}", WORDS_PER_MINUTE * speaking_rate);
    let arguments = [
        "--stdout",
        "-b",
        "1",
        "-v",
        &voice.called,
        "-s",
        &speed,
        "--stdin",
    ];
    Invocation {
        arguments: arguments.iter().map(Into::into).collect(),
        // Two brackets would begin a passage in phonemes.
        input: text.replace('[', " [ "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "\
Pty Language       Age/Gender VoiceName          File                 Other Languages
 5  cmn             --/M      Chinese_(Mandarin,_latin_as_English) sit/cmn              (zh-cmn 5)(zh 5)
 5  de              --/M      German             gmw/de               
 2  en-gb           --/M      English_(Great_Britain) gmw/en               (en 2)
 5  pt-br           --/M      Portuguese_(Brazil) roa/pt-BR            (pt 6)
 1  ar              --/M      arabic-mbrola-1    mb/mb-ar1            
 5  yue             --/M      Chinese_(Cantonese) sit/yue              (zh-yue 5)(zh 8)
 5  yue             --/M      Chinese_(Cantonese,_latin_as_Jyutping) sit/yue-Latn-jyutping (zh-yue 5)(zh 8)
garbage
";

    #[test]
    fn installed_voices_are_read_from_the_table() {
        let voices = parse_list(LISTED);
        let seen: Vec<(&str, &str, &str)> = voices
            .iter()
            .map(|v| {
                (
                    v.shown.id.as_str(),
                    v.shown.language.as_str(),
                    v.called.as_str(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("espeak-cmn", "cmn", "sit/cmn"),
                ("espeak-de", "de", "gmw/de"),
                ("espeak-en", "en-GB", "gmw/en"),
                ("espeak-pt-br", "pt-BR", "roa/pt-BR"),
                ("espeak-yue", "yue", "sit/yue"),
                ("espeak-yue-latn-jyutping", "yue", "sit/yue-Latn-jyutping"),
            ]
        );
        assert_eq!(voices[0].shown.languages, ["cmn", "zh-cmn", "zh"]);
        assert_eq!(voices[2].shown.accent, "Great Britain");
        assert_eq!(voices[3].shown.languages, ["pt-BR", "pt"]);
    }

    #[test]
    fn text_cannot_begin_a_passage_in_phonemes() {
        let voice = &parse_list(LISTED)[1];
        assert!(!say(voice, 1.0, "a [[[b]]").input.contains("[["));
    }
}
