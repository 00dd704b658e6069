//! Google's list of voices, and what is known from the name of a voice: its language and its family.

use super::wire::texttospeech::{SsmlVoiceGender, Voice as Listed};
use vivavoce_seams::Voice;

/// The voice that speaks when none is asked for.
pub(super) const DEFAULT: &str = "en-US-Chirp3-HD-Charon";
/// The same for Gemini's models, whose voices have no language in their names.
const DEFAULT_OF_GEMINI: &str = "Charon";
/// The language of a voice whose name has none.
const LANGUAGE: &str = "en-US";
/// The family of voices that speak text as it comes.
const STREAMING: &str = "-Chirp3-HD-";

/// A voice that is asked for, and what is known by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chosen {
    /// As it is listed.
    pub name: String,
    /// BCP-47.
    pub language: String,
    /// Whether it speaks text as it comes; the others are given whole sentences.
    pub streams: bool,
}

impl Chosen {
    /// The voice for these wishes.
    pub(super) fn new(voice_id: Option<&str>, model: &str) -> Self {
        let gemini = model.starts_with("gemini");
        let default = if gemini { DEFAULT_OF_GEMINI } else { DEFAULT };
        let name = voice_id.unwrap_or(default).to_owned();
        Self {
            language: language_of(&name).unwrap_or(LANGUAGE).to_owned(),
            streams: gemini || name.contains(STREAMING),
            name,
        }
    }
}

/// `en-US` of `en-US-Chirp3-HD-Charon`.
fn language_of(name: &str) -> Option<&str> {
    let mut dashes = name.match_indices('-');
    let (first, _) = dashes.next()?;
    let (second, _) = dashes.next()?;
    let primary = &name[..first];
    let is_language =
        (2..=3).contains(&primary.len()) && primary.bytes().all(|byte| byte.is_ascii_lowercase());
    is_language.then(|| &name[..second])
}

/// A voice of Google's list.
pub(super) fn listed(voice: Listed) -> Voice {
    let language = voice.language_codes.first().cloned().unwrap_or_default();
    let of_family = language_of(&voice.name).map(|language| &voice.name[language.len() + 1..]);
    let family = of_family.and_then(|rest| Some(rest.rsplit_once('-')?.0));
    let gender = match voice.ssml_gender() {
        SsmlVoiceGender::Female => "female",
        SsmlVoiceGender::Male => "male",
        SsmlVoiceGender::Neutral => "neutral",
        SsmlVoiceGender::Unspecified => "",
    };
    Voice {
        language,
        gender: gender.to_owned(),
        accent: String::new(),
        sample: String::new(),
        sample_rates: u32::try_from(voice.natural_sample_rate_hertz)
            .into_iter()
            .filter(|hz| *hz > 0)
            .collect(),
        tags: family.map(str::to_owned).into_iter().collect(),
        name: voice.name.clone(),
        id: voice.name,
        languages: voice.language_codes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voices_name_tells_its_language_and_whether_it_streams() {
        for (id, model, name, language, streams) in [
            (None, "", DEFAULT, "en-US", true),
            (None, "gemini-2.5-flash-tts", "Charon", "en-US", true),
            (
                Some("de-DE-Neural2-A"),
                "",
                "de-DE-Neural2-A",
                "de-DE",
                false,
            ),
            (
                Some("cmn-CN-Chirp3-HD-Kore"),
                "",
                "cmn-CN-Chirp3-HD-Kore",
                "cmn-CN",
                true,
            ),
            (Some("Achernar"), "", "Achernar", "en-US", false),
            (Some("é-ü-x"), "", "é-ü-x", "en-US", false),
            (Some("--"), "", "--", "en-US", false),
        ] {
            let chosen = Chosen::new(id, model);
            assert_eq!(
                (
                    chosen.name.as_str(),
                    chosen.language.as_str(),
                    chosen.streams
                ),
                (name, language, streams)
            );
        }
    }

    #[test]
    fn a_listed_voice_keeps_what_google_says_of_it() {
        let voice = listed(Listed {
            language_codes: vec!["en-US".to_owned(), "en-GB".to_owned()],
            name: "en-US-Chirp3-HD-Aoede".to_owned(),
            ssml_gender: SsmlVoiceGender::Female.into(),
            natural_sample_rate_hertz: 24_000,
        });
        assert_eq!(voice.id, "en-US-Chirp3-HD-Aoede");
        assert_eq!(voice.language, "en-US");
        assert_eq!(voice.languages, ["en-US", "en-GB"]);
        assert_eq!(voice.gender, "female");
        assert_eq!(voice.sample_rates, [24_000]);
        assert_eq!(voice.tags, ["Chirp3-HD"]);
        let odd = listed(Listed {
            name: "Achernar".to_owned(),
            natural_sample_rate_hertz: -1,
            ..Listed::default()
        });
        assert_eq!((odd.language.as_str(), odd.sample_rates.len()), ("", 0));
    }
}
