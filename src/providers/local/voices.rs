//! The voices of local engines: what a program calls them and what we show, and how a request's `voice_id` is found
//! among them. Which voices there are is the business of each engine's file.

use vivavoce_audio::format::SampleRate;
use vivavoce_seams::{ErrorKind, ProviderError, Voice};

use super::failure;

/// Voices that an error message names.
const NAMED: usize = 5;

/// A voice that an installed program speaks with.
#[derive(Debug, Clone)]
pub struct LocalVoice {
    /// What we show.
    pub shown: Voice,
    /// What the program calls it.
    pub called: String,
    /// The rate of its sound.
    pub rate: SampleRate,
}

/// The voice for `wanted`: its id, its name, or a language tag, for which the first voice is taken that has exactly this
/// language, then one that speaks it too, then one for the language without its region.
pub fn choose<'a, V>(
    voices: impl Iterator<Item = &'a V> + Clone,
    shown: impl Fn(&V) -> &Voice,
    wanted: &str,
) -> Result<&'a V, ProviderError> {
    let bare = wanted.split(['-', '_']).next().unwrap_or(wanted);
    let rank = |voice: &V| {
        let voice = shown(voice);
        let speaks = |tag: &str| {
            voice
                .languages
                .iter()
                .any(|language| language.eq_ignore_ascii_case(tag))
        };
        if voice.id == wanted {
            Some(0)
        } else if voice.name == wanted {
            // Without what its engine's ids begin with: `slt`.
            Some(1)
        } else if voice.language.eq_ignore_ascii_case(wanted) {
            Some(2)
        } else if speaks(wanted) {
            Some(3)
        } else if speaks(bare) {
            Some(4)
        } else {
            None
        }
    };
    let found = voices
        .clone()
        .filter_map(|voice| rank(voice).map(|rank| (rank, voice)))
        .min_by_key(|(rank, _)| *rank);
    found.map(|(_, voice)| voice).ok_or_else(|| {
        let wanted: String = wanted.chars().take(80).collect();
        let some: Vec<&str> = voices.take(NAMED).map(|v| shown(v).id.as_str()).collect();
        let known = match some.as_slice() {
            [] => String::new(),
            some => format!("; there are {}, …", some.join(", ")),
        };
        let message = format!("there is no voice {wanted:?}{known}");
        failure(ErrorKind::InvalidRequest, message)
    })
}

/// A language tag in the customary case (RFC 5646, section 2.1.1): `pt-br` and `pt_BR` become `pt-BR`.
pub fn language_tag(tag: &str) -> String {
    let mut private = false;
    let subtags = tag.split(['-', '_']).enumerate().map(|(at, subtag)| {
        let letters = subtag.len();
        let cased = if at == 0 || private {
            subtag.to_ascii_lowercase()
        } else if letters == 2 {
            subtag.to_ascii_uppercase()
        } else if letters == 4 && subtag.bytes().all(|b| b.is_ascii_alphabetic()) {
            let (first, rest) = subtag.split_at(1);
            first.to_ascii_uppercase() + &rest.to_ascii_lowercase()
        } else {
            subtag.to_ascii_lowercase()
        };
        private |= letters == 1;
        cased
    });
    subtags.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voice(id: &str, languages: &[&str]) -> Voice {
        Voice {
            id: id.into(),
            name: String::new(),
            language: languages[0].into(),
            languages: languages.iter().map(|&l| l.into()).collect(),
            gender: String::new(),
            accent: String::new(),
            sample: String::new(),
            sample_rates: Vec::new(),
            tags: Vec::new(),
        }
    }

    #[test]
    fn a_voice_is_found_by_its_id_or_its_language() {
        let voices = [
            voice("slt", &["en-US", "en"]),
            voice("gb", &["en-GB", "en"]),
            voice("de", &["de"]),
            voice("mandarin", &["cmn", "zh-cmn", "zh"]),
        ];
        let found = |wanted| choose(voices.iter(), |v| v, wanted).map(|v| v.id.as_str());
        for (wanted, id) in [
            ("slt", "slt"),
            ("en", "slt"),
            ("en-GB", "gb"),
            ("en-AU", "slt"),
            ("de", "de"),
            ("de-at", "de"),
            ("zh-CN", "mandarin"),
        ] {
            assert_eq!(found(wanted).unwrap(), id, "{wanted}");
        }
        let unknown = found("nobody").unwrap_err();
        assert_eq!(unknown.kind, ErrorKind::InvalidRequest);
        assert!(unknown.message.contains("slt, gb, de"), "{unknown}");
    }

    #[test]
    fn language_tags_have_their_customary_case() {
        for (from, to) in [
            ("en-us", "en-US"),
            ("pt_br", "pt-BR"),
            ("en-029", "en-029"),
            ("cmn-latn-pinyin", "cmn-Latn-pinyin"),
            ("en-gb-x-rp", "en-GB-x-rp"),
            ("zh-cmn", "zh-cmn"),
            ("piqd", "piqd"),
            ("", ""),
        ] {
            assert_eq!(language_tag(from), to);
        }
    }
}
