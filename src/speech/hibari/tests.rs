//! The voice with its own files: what is read, when words are heard, what is refused.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use proptest::prelude::*;

use super::*;
use crate::onnx::OnnxError;
use crate::testing;

fn voice() -> MutexGuard<'static, Hibari> {
    static LOADED: OnceLock<Mutex<Hibari>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let loaded = Hibari::load(&testing::runtime(), &testing::model("hibari"));
        Mutex::new(loaded.unwrap())
    });
    loaded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The phonemes of a text without stress, spaces and marks.
fn sounds(voice: &mut Hibari, text: &str) -> String {
    let said = voice.phonemes(text, None).unwrap();
    let phonemes = said.iter().flat_map(|said| said.phonemes.chars());
    phonemes
        .filter(|c| c.is_alphabetic() && !"ˈˌ".contains(*c))
        .collect()
}

#[derive(Default)]
struct Heard {
    words: Vec<SpokenWord>,
    samples: Vec<f32>,
    pieces: usize,
}

fn hear(voice: &mut Hibari, text: &str, rate: f32) -> Result<Heard, SpeechError> {
    let mut heard = Heard::default();
    voice.speak(text, None, rate, &mut |piece, samples| {
        match piece {
            Piece::Words(words) => heard.words.extend(words),
            Piece::Sound => heard.pieces += 1,
        }
        heard.samples.extend_from_slice(samples);
        Ok(())
    })?;
    Ok(heard)
}

#[test]
fn texts_are_read_as_they_are_spoken() {
    let mut voice = voice();
    let table = include_str!("spoken_texts.txt");
    assert!(table.lines().count() >= 100);
    for line in table.lines() {
        let (written, spoken) = line.split_once(" | ").unwrap();
        let (one, other) = (sounds(&mut voice, written), sounds(&mut voice, spoken));
        assert_eq!(one, other, "{written:?} is not read as {spoken:?}");
    }
}

#[test]
fn every_word_of_the_text_is_heard_in_order_within_the_sound() {
    let mut voice = voice();
    for text in [
        "Hello there, this is a test.",
        "On the 3rd of March 2024, 1,250 people paid $9.99 each, at 7:30 pm — really!",
        "Dr. Smith said “Wi-Fi isn't $3.2 billion” … so call 555-123-4567 (ext. 42).",
        "Zürich, São Paulo and Łódź are cities.",
    ] {
        let heard = hear(&mut voice, text, 1.0).unwrap();
        let words: Vec<&str> = heard
            .words
            .iter()
            .map(|word| &text[word.start_byte as usize..word.end_byte as usize])
            .collect();
        let written: Vec<&str> = written_words(text)
            .into_iter()
            .map(|at| &text[at])
            .collect();
        assert_eq!(words, written);
        let seconds = heard.samples.len() as f64 / f64::from(RATE_HZ);
        for pair in heard.words.windows(2) {
            assert!(pair[0].start_seconds <= pair[1].start_seconds, "{pair:?}");
            assert!(pair[0].end_seconds <= pair[1].end_seconds, "{pair:?}");
        }
        for word in &heard.words {
            assert!(word.start_seconds < word.end_seconds && word.end_seconds <= seconds);
        }
    }
}

#[test]
fn the_sound_is_where_the_words_are() {
    let mut voice = voice();
    let heard = hear(&mut voice, "Stop. Now go on.", 1.0).unwrap();
    let loudness = |from: f64, to: f64| {
        let at = |seconds: f64| (seconds * f64::from(RATE_HZ)) as usize;
        let part = &heard.samples[at(from)..at(to)];
        (part.iter().map(|s| s * s).sum::<f32>() / part.len().max(1) as f32).sqrt()
    };
    let end = heard.samples.len() as f64 / f64::from(RATE_HZ);
    for word in &heard.words {
        let word = loudness(word.start_seconds, word.end_seconds);
        let before = loudness(0.0, 0.025);
        let behind = loudness(end - 0.1, end);
        assert!(word > 5.0 * before, "{word} against {before}");
        assert!(word > 5.0 * behind, "{word} against {behind}");
    }
    assert!(heard.samples.iter().all(|sample| sample.abs() <= 1.0));
}

#[test]
fn a_short_pause_follows_the_last_sound() {
    let mut voice = voice();
    for text in [
        "Hello.",
        "He lost his hat.",
        "The six ships.",
        "Is that a good bath?",
        "Stop it, please",
        "No!",
    ] {
        for rate in [0.7, 1.0, 1.5] {
            let heard = hear(&mut voice, text, rate).unwrap();
            let loudest = heard.samples.iter().fold(0f32, |most, x| most.max(x.abs()));
            // Consonants at the end are 20 to 40 dB below the loudest vowel.
            let audible = |x: &f32| x.abs() > loudest * 0.003;
            let last = heard.samples.iter().rposition(audible).unwrap();
            let silence = (heard.samples.len() - last) as f32 / RATE_HZ as f32 * rate;
            assert!((0.14..0.3).contains(&silence), "{text} {rate}: {silence}");
            let end = heard.samples.len() as f64 / f64::from(RATE_HZ);
            assert!(heard.words.last().unwrap().end_seconds <= end, "{text}");
        }
    }
}

#[test]
fn a_gap_inside_a_sentence_stays_and_nothing_loud_is_lost() {
    let mut pause = Pause::default();
    let sound = [0.5, 0.0, 0.001, -0.4, 0.0, 0.0];
    assert_eq!(pause.before(sound.to_vec()), [0.5, 0.0, 0.001, -0.4]);
    assert!(pause.before(vec![0.0; 3]).is_empty());
    assert_eq!(pause.before(vec![0.2, 0.0]), [0.0, 0.0, 0.0, 0.0, 0.0, 0.2]);
    assert_eq!(pause.of(3), [0.0; 3]);
}

#[test]
fn a_voice_is_listed_where_its_network_and_its_accent_are() {
    let model = testing::model("hibari");
    let folder = tempfile::tempdir().unwrap();
    let names = || -> Vec<String> {
        let voices = voices(folder.path()).unwrap();
        voices.into_iter().map(|(name, _)| name).collect()
    };
    let listed = std::fs::read(model.join("voices.json")).unwrap();
    std::fs::write(folder.path().join("voices.json"), listed).unwrap();
    let write = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
    write("bf_emma.int8.onnx");
    write("am_fenrir_v2.int8.onnx");
    assert_eq!(names(), [""; 0]);
    Accent::American.files().into_iter().for_each(write);
    assert_eq!(names(), ["fenrir"]);
    Accent::British.files().into_iter().for_each(write);
    assert_eq!(names(), ["emma", "fenrir"]);
}

#[test]
fn sound_made_in_pieces_is_the_sound_made_at_once() {
    let mut voice = voice();
    let text =
        "The quick brown fox jumps over the lazy dog, and she sells sea shells by the shore.";
    let said = voice.phonemes(text, None).unwrap();
    let part = cut(&said, &voice.ids).remove(0);
    let network = voice.networks.values_mut().next().unwrap();
    let plan = network.plan(&part.ids, 1.0).unwrap();
    let whole = network.spectrum(&plan, 0..plan.length()).unwrap();
    let (mut difference, mut count) = (0.0, 0.0);
    for start in (0..plan.length()).step_by(40) {
        let end = (start + 40).min(plan.length());
        let piece = network.spectrum(&plan, start..end).unwrap();
        for frame in start..end {
            for bin in 0..acoustic::BINS {
                difference += (piece.at(0, bin, frame - start) - whole.at(0, bin, frame)).abs();
                count += 1.0;
            }
        }
    }
    // Logarithms of magnitudes. They differ by what the network's own quantisation, which is by the whole input, makes.
    assert!(difference / count < 0.1, "{}", difference / count);
}

#[test]
fn a_slower_rate_takes_longer_by_as_much() {
    let mut voice = voice();
    let text = "One two three four five six seven eight nine ten.";
    let last = |heard: &Heard| heard.words.last().unwrap().end_seconds;
    let normal = last(&hear(&mut voice, text, 1.0).unwrap());
    let slow = last(&hear(&mut voice, text, 0.5).unwrap());
    let fast = last(&hear(&mut voice, text, 2.0).unwrap());
    assert!((1.8..2.2).contains(&(slow / normal)), "{slow} {normal}");
    assert!((0.4..0.65).contains(&(fast / normal)), "{fast} {normal}");
    for rate in [0.0, -1.0, 3.0, f32::NAN] {
        let refused = hear(&mut voice, text, rate);
        assert!(matches!(refused, Err(SpeechError::Request(_))));
    }
}

#[test]
fn the_first_piece_of_a_long_sentence_is_short() {
    let mut voice = voice();
    let text = "the quick brown fox jumps over the lazy dog and ".repeat(5);
    let mut first = 0;
    voice
        .speak(&text, None, 1.0, &mut |piece, samples| {
            if piece == Piece::Sound && first == 0 {
                first = samples.len();
            }
            Ok(())
        })
        .unwrap();
    assert!((1..=RATE_HZ as usize / 3).contains(&first), "{first}");
}

#[test]
fn text_of_another_script_or_without_a_word_is_refused() {
    let mut voice = voice();
    for text in [
        "Привет, как дела?",
        "今天天气很好。",
        "안녕하세요",
        "مرحبا",
        "",
        " ",
        "...",
        "?!",
        "😀",
        "—",
    ] {
        let refused = hear(&mut voice, text, 1.0);
        assert!(matches!(refused, Err(SpeechError::Request(_))), "{text}");
    }
    let long = "word ".repeat(500);
    assert!(matches!(
        hear(&mut voice, &long, 1.0),
        Err(SpeechError::Request(_))
    ));
    let nobody = voice.speak("Hello.", Some("nobody"), 1.0, &mut |_, _| Ok(()));
    assert!(matches!(nobody, Err(SpeechError::Request(_))));
    // One foreign word among others is left out.
    let heard = hear(&mut voice, "The word Привет means hello to them.", 1.0).unwrap();
    assert_eq!(heard.words.len(), 6);
}

#[test]
fn phonemes_in_a_text_are_said_as_they_are() {
    let mut voice = voice();
    let ipa = sounds(&mut voice, "Say [hibari](/hɪˈbɑːri/) now.");
    assert!(ipa.contains("hɪbɑɹi") || ipa.contains("hɪbɑːɹi"), "{ipa}");
    let text = "Say [I P A](/ˈaɪ piː ˈeɪ/) and [see](https://example.com/a) it.";
    let words = written_words(text).into_iter().map(|word| &text[word]);
    let words: Vec<&str> = words.collect();
    assert_eq!(words, ["Say", "I", "P", "A", "and", "see", "it"]);
    assert_eq!(hear(&mut voice, text, 1.0).unwrap().words.len(), 7);
    let joined = sounds(&mut voice, "Say [dʒɪn](/dʒɪn/) now.");
    assert!(joined.contains("ʤɪn"), "{joined}");
}

#[test]
fn files_that_are_not_the_models_are_errors() {
    let runtime = testing::runtime();
    let model = testing::model("hibari");
    let load = |spoil: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&model).unwrap() {
            let entry = entry.unwrap();
            std::os::unix::fs::symlink(entry.path(), folder.path().join(entry.file_name()))
                .unwrap();
        }
        spoil(folder.path());
        Hibari::load(&runtime, folder.path())
    };
    let replace = |folder: &Path, name: &str, bytes: &[u8]| {
        std::fs::remove_file(folder.join(name)).unwrap();
        std::fs::write(folder.join(name), bytes).unwrap();
    };
    let half = |name: &str| {
        let bytes = std::fs::read(model.join(name)).unwrap();
        bytes[..bytes.len() / 2].to_vec()
    };
    for name in [
        "vocab.json",
        "voices.json",
        "normalize.json",
        "tokenizer_exceptions.json",
        "oov.json",
    ] {
        let broken = load(&|folder| replace(folder, name, b"{\"a\": [1, 2"));
        assert!(matches!(broken, Err(SpeechError::File { .. })), "{name}");
    }
    let missing = load(&|folder| std::fs::remove_file(folder.join("vocab.json")).unwrap());
    assert!(matches!(missing, Err(SpeechError::File { .. })));
    let cut_off = load(&|folder| replace(folder, "normalize.json", &half("normalize.json")));
    assert!(matches!(cut_off, Err(SpeechError::File { .. })));
    let foreign = std::fs::read(model.join("oov.onnx")).unwrap();
    let foreign = load(&|folder| replace(folder, "hibari.onnx", &foreign));
    assert!(
        matches!(foreign, Err(SpeechError::Onnx(OnnxError::Foreign(_)))),
        "{foreign:?}"
    );
    let garbage = load(&|folder| replace(folder, "hibari.onnx", &[0x55; 5000]));
    assert!(matches!(
        garbage,
        Err(SpeechError::Onnx(OnnxError::Load { .. }))
    ));
}

#[test]
fn very_long_words_and_numbers_are_bounded() {
    let mut voice = voice();
    for text in [
        "a".repeat(700),
        "9".repeat(700),
        "-".repeat(700) + "a",
        "a-".repeat(700),
        "1,".repeat(700),
        "A.".repeat(700),
        "((((".repeat(350) + "a",
        "x'".repeat(700),
        "a1".repeat(700),
        "$".repeat(1500) + "5",
    ] {
        let said = voice.phonemes(&text, None).unwrap();
        let count: usize = said.iter().map(|said| said.phonemes.chars().count()).sum();
        assert!(count <= 40 * text.len(), "{count} phonemes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_text_has_phonemes_that_stand_for_parts_of_it(text in "\\PC{0,80}") {
        let mut voice = voice();
        for said in voice.phonemes(&text, None).unwrap() {
            prop_assert!(text.get(said.origin.clone()).is_some(), "{:?}", said);
        }
    }

    #[test]
    fn any_english_with_numbers_and_marks_has_phonemes(
        words in prop::collection::vec("[A-Za-z]{0,6}|[0-9.,:/$%-]{0,8}|Dr\\.|\\$[0-9]{1,4}|[0-9]{1,2}:[0-9]{2}|am|Jan|['’&+=#()]{1,3}", 0..20),
    ) {
        let text = words.join(" ");
        let mut voice = voice();
        for said in voice.phonemes(&text, None).unwrap() {
            prop_assert!(text.get(said.origin.clone()).is_some(), "{:?}", said);
        }
    }

    #[test]
    fn written_words_are_parts_of_any_text(text in "\\PC{0,80}") {
        for word in written_words(&text) {
            prop_assert!(!text[word].contains(char::is_whitespace));
        }
    }
}
