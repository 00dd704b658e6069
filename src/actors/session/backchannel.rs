//! Backchannels: sounds and words that only say that somebody listens, such as "mhm", "okay" and "right". [`Lists`] has
//! them by language, [`BackchannelDetector`] tells by words and sound which finals are nothing else: such a final is no
//! text of a turn. Pure; what playback does meanwhile is decided by [`barge_in`](super::barge_in).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::Deserialize;
use vivavoce_audio::pcm::energy;
use vivavoce_audio::vad::VadEvent;
use vivavoce_config::JsonText;
use vivavoce_seams::Transcript;

/// A backchannel's sound is no longer than this: "mhm", "okay, right".
const LONGEST_SOUND: Duration = Duration::from_millis(1_200);
/// How much louder than usual its speaker may be: nobody raises their voice to say that they listen.
const LOUDER_DB: f32 = 6.0;
/// How much of the level that a speaker usually has is taken from each further stretch of speech.
const NEWEST: f32 = 0.3;
/// A shorter stretch says little about the usual level.
const TELLING: Duration = Duration::from_millis(300);
/// The most that a list of an operator has, and the longest of its entries.
const MAX_ENTRIES: usize = 500;
const MAX_ENTRY_CHARS: usize = 100;

/// Sounds that say in any language that somebody listens.
const ANYWHERE: &str = "mhm, mm, mmm, mmhm, mm hm, mm hmm, m hm, mhmm, hm, hmm, h m, uh, um, er, ah, oh, aha, ahh, uh huh, \
    uhuh, huh, ok, okay, o k";

/// By the language's primary subtag.
const BY_LANGUAGE: [(&str, &str); 8] = [
    (
        "en",
        "yeah, yep, yup, yes, right, sure, i see, got it, all right, alright, of course, great, good, cool, nice, wow, \
         really, exactly, true, fine, uh yeah, go on",
    ),
    (
        "de",
        "ja, jaja, genau, gut, aha, achso, ach so, klar, stimmt, alles klar, verstehe, ich verstehe, echt, gerne, jo, \
         richtig, sicher, nee",
    ),
    (
        "fr",
        "oui, ouais, d'accord, d’accord, bien, voilà, c'est ça, je vois, bien sûr, ah bon, exactement, tout à fait",
    ),
    (
        "es",
        "sí, si, vale, claro, ya, bueno, bien, de acuerdo, ya veo, entiendo, exacto, por supuesto, ajá",
    ),
    (
        "it",
        "sì, si, va bene, certo, esatto, capisco, ho capito, giusto, bene, già, d'accord, d'accordo",
    ),
    (
        "pt",
        "sim, tá, tá bom, está bem, certo, claro, pois, pois é, entendi, isso, exato, beleza, bom",
    ),
    (
        "nl",
        "ja, jaja, precies, juist, goed, oké, oke, ik snap het, natuurlijk, klopt, inderdaad",
    ),
    (
        "pl",
        "tak, no, no tak, dobrze, dobra, jasne, rozumiem, aha, racja, dokładnie",
    ),
];

/// The lists of an operator, which replace those above: phrases by a language's primary subtag, and by `*` those of any
/// language.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lists(HashMap<String, List>);

/// Those of one language, for all sessions.
type List = Arc<[Phrase]>;

/// Those above.
static OURS: LazyLock<HashMap<&str, List>> = LazyLock::new(|| {
    let all = BY_LANGUAGE.into_iter().chain([("*", ANYWHERE)]);
    all.map(|(language, list)| (language, list.split(',').map(words).collect()))
        .collect()
});

/// Words in lower case, without marks.
type Phrase = Vec<String>;

impl Lists {
    /// Reads the setting: `{"en": ["mhm", "go on"], "*": ["mhm"]}`; on failure says what is wrong.
    pub fn read(setting: Option<&JsonText>) -> Result<Self, String> {
        let wrong = r#"must be {"en": ["mhm", "go on"], …}"#;
        let Some(JsonText(json)) = setting else {
            return Ok(Self::default());
        };
        let lists = HashMap::<String, Vec<String>>::deserialize(json)
            .map_err(|error| format!("{wrong}: {error}"))?;
        let mut read = HashMap::new();
        for (language, entries) in lists {
            let is_subtag = (2..=8).contains(&language.len())
                && language.bytes().all(|byte| byte.is_ascii_alphabetic());
            if language != "*" && !is_subtag {
                return Err(format!(
                    "{wrong}: {language:?} is no primary language subtag"
                ));
            }
            let fits = |entry: &String| entry.chars().count() <= MAX_ENTRY_CHARS;
            if entries.len() > MAX_ENTRIES || !entries.iter().all(fits) {
                return Err(format!(
                    "{language}: at most {MAX_ENTRIES} phrases of at most {MAX_ENTRY_CHARS} characters"
                ));
            }
            let phrases = entries.iter().map(|entry| words(entry));
            let phrases = phrases.filter(|phrase| !phrase.is_empty()).collect();
            read.insert(language.to_ascii_lowercase(), phrases);
        }
        Ok(Self(read))
    }

    /// Those of these languages (BCP-47), and of any.
    pub fn of<'a>(&self, languages: impl IntoIterator<Item = &'a str>) -> Phrases {
        let primary = languages.into_iter().map(|language| {
            let primary = language.split(['-', '_']).next().unwrap_or_default();
            primary.to_ascii_lowercase()
        });
        let all = ["*".to_owned()].into_iter().chain(primary);
        Phrases(all.filter_map(|language| self.list(&language)).collect())
    }

    fn list(&self, language: &str) -> Option<List> {
        self.0.get(language).or_else(|| OURS.get(language)).cloned()
    }
}

/// The backchannels of the languages that are spoken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Phrases(Vec<List>);

impl Phrases {
    fn all(&self) -> impl Iterator<Item = &Phrase> {
        self.0.iter().flat_map(|list| list.iter())
    }

    /// How many words are no part of a backchannel. The last ones of a segment that is not final may be the beginning of
    /// one.
    pub fn others(&self, words: &[String], is_final: bool) -> usize {
        let mut rest = words;
        let mut others = 0;
        while let Some((_, behind)) = rest.split_first() {
            let longest = self.all().filter(|phrase| rest.starts_with(phrase));
            // None is empty, so this ends.
            if let Some(length) = longest.map(Vec::len).max() {
                rest = rest.get(length..).unwrap_or_default();
            } else if !is_final && others == 0 && self.all().any(|phrase| may_become(rest, phrase))
            {
                break;
            } else {
                others += 1;
                rest = behind;
            }
        }
        others
    }
}

/// Whether these words are the beginning of a phrase, the last of them perhaps not complete.
fn may_become(words: &[String], phrase: &[String]) -> bool {
    let Some((last, before)) = words.split_last() else {
        return true;
    };
    let next = phrase.get(before.len());
    phrase.starts_with(before) && next.is_some_and(|next| next.starts_with(last.as_str()))
}

/// In lower case and without marks.
pub fn words(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !(c.is_alphanumeric() || matches!(c, '\'' | '’')));
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// What a stretch of speech sounded like, from its onset to the pause after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeechSound {
    /// How long it lasted.
    pub length: Duration,
    /// Its level in dB below full scale.
    pub level_db: f32,
}

impl SpeechSound {
    /// Of so many samples at the rate of voice activity detection, the last of which are these, in pieces.
    pub fn of(length: u64, samples: &[&[i16]]) -> Self {
        let count = samples.iter().map(|piece| piece.len()).sum::<usize>();
        let energy: f64 = samples.iter().map(|piece| f64::from(energy(piece))).sum();
        let mean = energy / count.max(1) as f64 / f64::from(i16::MAX).powi(2);
        Self {
            length: vivavoce_audio::vad::RATE.duration_of(usize::try_from(length).unwrap_or(count)),
            level_db: (10.0 * mean.max(1e-10).log10()) as f32,
        }
    }
}

/// Tells which finals of a speaker are backchannels.
#[derive(Debug, Default)]
pub struct BackchannelDetector {
    /// Since when somebody speaks, in the session's audio, and whether the server spoke then.
    speaking: Option<(Duration, bool)>,
    /// What was said since the last final.
    said: Said,
    /// The usual level of the speaker, in dB.
    usual_db: Option<f32>,
}

/// Stretches of speech that one final covers.
#[derive(Debug, Default, Clone, Copy)]
struct Said {
    length: Duration,
    loudest_db: Option<f32>,
    /// Whether all of it began while the server spoke, and how many stretches there were.
    over_speech: bool,
    stretches: u32,
}

impl Said {
    fn add(&mut self, length: Duration, over_speech: bool) {
        self.over_speech = over_speech && (self.over_speech || self.stretches == 0);
        self.length += length;
        self.stretches = self.stretches.saturating_add(1);
    }
}

impl BackchannelDetector {
    /// Takes an event of voice activity detection, with the sound of the speech that ends with it. `server_speaks` is
    /// whether the server does.
    pub fn vad(&mut self, event: VadEvent, sound: Option<SpeechSound>, server_speaks: bool) {
        let position = |samples: u64| {
            let samples = usize::try_from(samples).unwrap_or(usize::MAX);
            vivavoce_audio::vad::RATE.duration_of(samples)
        };
        match event {
            VadEvent::SpeechStart { at } | VadEvent::SpeechResumed { at } => {
                self.speaking = Some((position(at), server_speaks));
            }
            VadEvent::SilenceBegan { at } => {
                if let Some((since, over_speech)) = self.speaking.take() {
                    let length = position(at).saturating_sub(since);
                    self.said.add(length, over_speech);
                    self.heard(sound, over_speech);
                }
            }
            VadEvent::SpeechEnd { .. } => {}
        }
    }

    fn heard(&mut self, sound: Option<SpeechSound>, over_speech: bool) {
        let Some(SpeechSound { length, level_db }) = sound else {
            return;
        };
        let loudest = self.said.loudest_db.into_iter().chain([level_db]);
        self.said.loudest_db = loudest.reduce(f32::max);
        if !over_speech && length >= TELLING {
            let usual = self.usual_db.unwrap_or(level_db);
            self.usual_db = Some(usual + NEWEST * (level_db - usual));
        }
    }

    /// Takes a final that came when this much audio had been heard: whether it is nothing but a backchannel. Where voice
    /// activity is not known its words alone tell.
    pub fn is_backchannel(
        &mut self,
        segment: &Transcript,
        phrases: &Phrases,
        heard: Duration,
        server_speaks: bool,
    ) -> bool {
        let mut said = std::mem::take(&mut self.said);
        if let Some((since, over_speech)) = self.speaking {
            // The final has come before the pause: what follows belongs to the next one.
            said.add(heard.saturating_sub(since), over_speech);
            self.speaking = Some((heard, over_speech));
        }
        let words = words(&segment.text);
        let over_speech = server_speaks && (said.over_speech || said.stretches == 0);
        let is_short = said.length <= LONGEST_SOUND;
        let is_soft = match (said.loudest_db, self.usual_db) {
            (Some(level), Some(usual)) => level <= usual + LOUDER_DB,
            _ => true,
        };
        let only_that = !words.is_empty() && phrases.others(&words, true) == 0;
        over_speech && is_short && is_soft && only_that
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says something at this level for this long, beginning at `at_ms`.
    fn speaks(detector: &mut BackchannelDetector, at_ms: u64, ms: u64, level_db: f32, over: bool) {
        let at = 16 * at_ms;
        detector.vad(VadEvent::SpeechStart { at }, None, over);
        let sound = SpeechSound {
            length: Duration::from_millis(ms),
            level_db,
        };
        let paused = VadEvent::SilenceBegan { at: at + 16 * ms };
        detector.vad(paused, Some(sound), over);
    }

    fn is_backchannel(detector: &mut BackchannelDetector, text: &str, server_speaks: bool) -> bool {
        let segment = Transcript {
            text: text.to_owned(),
            ..Transcript::default()
        };
        let phrases = Lists::default().of(["en-US"]);
        detector.is_backchannel(&segment, &phrases, Duration::from_mins(1), server_speaks)
    }

    #[test]
    fn short_words_that_say_that_somebody_listens_are_backchannels() {
        for text in ["Mhm.", "Okay, right.", "yeah", "Uh huh.", "I see."] {
            let mut detector = BackchannelDetector::default();
            speaks(&mut detector, 1_000, 500, -30.0, true);
            assert!(is_backchannel(&mut detector, text, true), "{text}");
        }
    }

    #[test]
    fn what_is_said_to_a_silent_server_is_an_answer() {
        let mut detector = BackchannelDetector::default();
        speaks(&mut detector, 1_000, 500, -30.0, false);
        assert!(!is_backchannel(&mut detector, "Yes.", false));
        // It began to speak only then, or has finished meanwhile.
        speaks(&mut detector, 2_000, 500, -30.0, false);
        assert!(!is_backchannel(&mut detector, "Yes.", true));
        speaks(&mut detector, 3_000, 500, -30.0, true);
        assert!(!is_backchannel(&mut detector, "Yes.", false));
    }

    #[test]
    fn other_words_long_ones_and_loud_ones_are_none() {
        let mut detector = BackchannelDetector::default();
        speaks(&mut detector, 1_000, 500, -30.0, true);
        assert!(!is_backchannel(&mut detector, "Okay, stop.", true));
        speaks(&mut detector, 2_000, 1_300, -30.0, true);
        assert!(!is_backchannel(&mut detector, "Right.", true));
        // How loud somebody usually is has to be known first.
        speaks(&mut detector, 4_000, 2_000, -30.0, false);
        assert!(!is_backchannel(&mut detector, "My name is Ann.", false));
        speaks(&mut detector, 7_000, 400, -20.0, true);
        assert!(!is_backchannel(&mut detector, "Okay!", true));
        speaks(&mut detector, 8_000, 400, -28.0, true);
        assert!(is_backchannel(&mut detector, "Okay.", true));
    }

    #[test]
    fn a_final_has_the_sound_of_all_speech_since_the_last_one() {
        let mut detector = BackchannelDetector::default();
        for at_ms in [1_000, 2_000, 3_000] {
            speaks(&mut detector, at_ms, 500, -30.0, true);
        }
        assert!(!is_backchannel(&mut detector, "Okay.", true));
        speaks(&mut detector, 4_000, 500, -30.0, true);
        assert!(is_backchannel(&mut detector, "Okay.", true));
    }

    #[test]
    fn lists_of_an_operator_replace_those_of_their_language() {
        let read = |json: &str| {
            let json = serde_json::from_str(json).unwrap();
            Lists::read(Some(&JsonText(json)))
        };
        let lists = read(r#"{"en": ["Go ahead!"], "sv": ["precis"]}"#).unwrap();
        let others = |languages: &[&str], text: &str| {
            lists
                .of(languages.iter().copied())
                .others(&words(text), true)
        };
        assert_eq!(others(&["en-GB"], "mhm, go ahead"), 0);
        assert_eq!(others(&["en-GB"], "right"), 1);
        assert_eq!(others(&["en", "sv"], "precis"), 0);
        assert_eq!(others(&["de"], "genau"), 0);
        for wrong in [
            "[]",
            r#"{"": ["a"]}"#,
            r#"{"en-US": ["a"]}"#,
            r#"{"en": "a"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
