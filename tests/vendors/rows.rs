//! Every field of `stt_config` and `tts_config` at every vendor, by sessions and by `/speak`: the table of fields that each
//! provider states is the list of what is tried here, and a row without a check fails. What is the vendor's own parameter
//! arrives at the vendor; what is converted is in the sound; what is ignored is said. The matrix is printed.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use vivavoce::audio::{AudioFormat, Encoding, Layout, Pcm, SampleRate, linear16};
use vivavoce::emulators::engine::Engine;
use vivavoce::emulators::visit::Record;
use vivavoce::emulators::{Settings, Vendor};
use vivavoce::providers::parameters::{Honoured, Parameter};
use vivavoce::providers::{ProviderTable, TtsEvent};

mod wishes;

use self::wishes::{
    Asked, AskedBySpeak, Effect, Lasts, Path, Query, QueryOfSpeak, Says, Sound, Speaker, Wish,
    Words, ignored_wish,
};
use super::faults::heard_numbers;
use super::{
    Backed, all_providers, english, google, numbers_in, providers, scripted, start, tone_words,
};
use crate::harness::{
    SENTENCES, Server, post_speak, speak as speak_locally, text_stream, tts_request,
};
use crate::session::client::{Chunk, Event, Session, config, with};
use crate::session::sound::{WIDE, decoded, encoded, stereo};

const RATE: SampleRate = SampleRate::HZ_16000;
/// How much faster than a microphone the clients send.
const HURRY: u32 = 4;
/// What is said to a session and by it.
const NUMBERS: [u16; 6] = [200, 201, 202, 203, 204, 205];
/// What stands in the matrix where a row has failed.
const FAILED: &str = "FAILED";
/// The key that opens where the server's own does not.
const CALLERS: &str = "callers";

/// One vendor in one direction, whose rows are tried one after the other.
struct Bench<'a> {
    backed: &'a Backed,
    vendor: Vendor,
    direction: &'static str,
}

impl Bench<'_> {
    fn records(&self) -> Vec<Record> {
        let mut records = self.backed.emulators.emulation.log.all();
        records.retain(|record| {
            record.vendor == self.vendor.slug() && record.direction == self.direction
        });
        records
    }

    /// How often the vendor has been asked for this so far; `None` for what does not concern what it was asked for.
    fn count(&self, effect: &Effect) -> Option<usize> {
        let in_query = |record: &Record, wanted: (&str, &str)| {
            let mut query = record.query.iter();
            let (wanted, text) = wanted;
            // Names are kept in lower case.
            let found =
                query.any(|(name, value)| name.eq_ignore_ascii_case(wanted) && value == text);
            usize::from(found)
        };
        let of = |record: &Record| match effect {
            Query(name, value) | QueryOfSpeak(name, value) => Some(in_query(record, (name, value))),
            Path(part) => Some(usize::from(record.path.contains(part))),
            Asked(part) | AskedBySpeak(part) => {
                let asked = record.asked.iter();
                Some(asked.filter(|message| message.contains(part)).count())
            }
            _ => None,
        };
        let counts = self.records().iter().map(of).collect::<Option<Vec<_>>>();
        counts.map(|counts| counts.iter().sum())
    }

    /// That the vendor was asked for nothing of this before, though it was asked for other things.
    fn assert_new(&self, effects: &[Effect]) {
        assert!(!self.records().is_empty(), "a default session comes first");
        for effect in effects {
            let before = self.count(effect).unwrap_or_default();
            assert_eq!(before, 0, "{effect:?} does not tell that the field is set");
        }
    }

    fn assert_asked(&self, effect: &Effect) {
        if let Some(count) = self.count(effect) {
            let records: Vec<_> = self
                .records()
                .into_iter()
                .map(|record| (record.path, record.query, record.asked))
                .collect();
            assert!(count > 0, "{effect:?} did not arrive: {records:#?}");
        }
    }
}

/// What a cell of the matrix shows.
fn shown(honoured: Honoured, wishes: &[Wish]) -> String {
    let of = |effect: &Effect| match effect {
        Query(name, value) | QueryOfSpeak(name, value) => format!("{name}={value}"),
        Path(part) | Asked(part) | AskedBySpeak(part) => (*part).to_owned(),
        Words => "words".to_owned(),
        Speaker => "speaker".to_owned(),
        Sound => "sound".to_owned(),
        Says(_) => "said instead".to_owned(),
        Lasts(share, _) => format!("×{share}"),
    };
    match honoured {
        Honoured::Ignored(_) => "ignored, and said".to_owned(),
        Honoured::Own(_) | Honoured::Converted(_) => {
            let first = wishes.iter().flat_map(|(_, effects)| effects).next();
            first.map_or_else(|| "a test of its own".to_owned(), of)
        }
    }
}

/// That a row is tried as what it claims to be.
fn assert_fits(parameter: &Parameter, wishes: &[Wish]) {
    for (fields, effects) in wishes {
        let sound = effects
            .iter()
            .any(|effect| matches!(effect, Sound | Says(_) | Lasts(..)));
        if let Honoured::Converted(_) = parameter.honoured {
            assert!(sound, "{parameter:?} says nothing of the sound: {fields}");
        }
    }
    let own = wishes.iter().flat_map(|(_, effects)| effects);
    let own = own
        .filter(|effect| !matches!(effect, Sound | Says(_) | Lasts(..)))
        .count();
    if let Honoured::Own(_) = parameter.honoured {
        let elsewhere = wishes.is_empty();
        assert!(own > 0 || elsewhere, "{parameter:?} is not looked for");
    }
}

// --- hearing ---

/// A session that is spoken to until it has understood everything.
struct Heard {
    results: Vec<Event>,
    events: Vec<Event>,
}

/// What the client sends: the numbers, in two channels one here and one there.
async fn sound(fields: &Value) -> (AudioFormat, Vec<vivavoce::audio::encode::Encoded>) {
    let encoding = fields["encoding"].as_str().unwrap_or("linear16");
    let encoding: Encoding = encoding.parse().unwrap();
    let hz = fields["sample_rate"].as_u64().unwrap_or(16_000);
    let mut format = AudioFormat::mono(encoding, SampleRate::new(hz).unwrap());
    let mono = |numbers: &[u16]| {
        let mut sound = tone_words(numbers.iter().copied(), RATE);
        sound.resize(sound.len() + RATE.hz() as usize, 0);
        Pcm::new(Layout::mono(RATE), sound)
    };
    let pcm = if fields["channels"] == 2 {
        format.layout = Layout::new(format.layout.rate, vivavoce::audio::Channels::Stereo);
        let (left, right) = NUMBERS.split_at(3);
        let word = tone_words([0], RATE).len();
        let silence = vec![0; left.len() * word];
        let silent = |before: bool, sound: Pcm| {
            let mut samples = if before { silence.clone() } else { Vec::new() };
            samples.extend_from_slice(sound.samples());
            samples.resize(NUMBERS.len() * word + RATE.hz() as usize, 0);
            Pcm::new(Layout::mono(RATE), samples)
        };
        let spoken = |numbers: &[u16]| {
            Pcm::new(
                Layout::mono(RATE),
                tone_words(numbers.iter().copied(), RATE),
            )
        };
        stereo(&silent(false, spoken(left)), &silent(true, spoken(right)))
    } else {
        mono(&NUMBERS)
    };
    (format, encoded(&pcm, format).await)
}

async fn listen(backed: &Backed, vendor: Vendor, fields: &Value) -> Result<Heard, Vec<Event>> {
    let mut session = Session::connect(&backed.server).await;
    let stt = with(json!({"provider": vendor.slug()}), fields.clone());
    session
        .send(config(
            json!({"stt_config": stt, "vad": {"enabled": false}}),
        ))
        .await;
    if session.next_of(&["ready", "error"]).await.kind() == "ready" {
        for piece in sound(fields).await.1 {
            session.send_sound(piece.data).await;
            tokio::time::sleep(piece.duration / HURRY).await;
        }
        session
            .until_heard(NUMBERS.len(), Duration::from_secs(25))
            .await;
    }
    let errors = session.events_of("error");
    let heard = heard_numbers(&session);
    let events = session.events();
    session.close().await;
    if !errors.is_empty() {
        return Err(errors);
    }
    assert_eq!(heard, NUMBERS, "{vendor:?} {fields}");
    let results = events
        .iter()
        .filter(|event| event.kind() == "stt_result")
        .cloned();
    Ok(Heard {
        results: results.collect(),
        events,
    })
}

impl Heard {
    /// The words of the finals.
    fn words(&self) -> Vec<Value> {
        let finals = self.results.iter().filter(|result| result.is("is_final"));
        let words = finals.filter_map(|result| result["words"].as_array());
        words.flatten().cloned().collect()
    }

    fn assert_words(&self) {
        let words = self.words();
        assert_eq!(words.len(), NUMBERS.len(), "{words:?}");
        for (index, word) in words.iter().enumerate() {
            let meant = index as f64 * 0.48;
            let start = word["start"].as_f64().unwrap();
            assert!((start - meant).abs() < 0.1, "{words:?}");
        }
    }

    fn assert_ignored(&self, field: &str) {
        let told = self.events.iter().filter(|event| {
            event.kind() == "provider_event"
                && event["state"] == "ignored"
                && event.text("message").contains(field)
        });
        assert_eq!(told.count(), 1, "{field} is not said to be ignored");
    }
}

impl Bench<'_> {
    async fn hear(&self, parameter: &Parameter) -> String {
        let Parameter { field, honoured } = *parameter;
        let vendor = self.vendor;
        if let Honoured::Ignored(_) = honoured {
            let heard = listen(self.backed, vendor, &ignored_wish(field)).await;
            heard
                .expect("it is heard all the same")
                .assert_ignored(field);
            return shown(honoured, &[]);
        }
        let wishes = wishes::of_hearing(vendor, field)
            .unwrap_or_else(|| panic!("{vendor:?}: stt_config.{field} has no check"));
        assert_fits(parameter, &wishes);
        for (fields, effects) in &wishes {
            self.assert_new(effects);
            let heard = listen(self.backed, vendor, fields).await;
            let heard = heard.unwrap_or_else(|errors| panic!("{vendor:?} {fields}: {errors:?}"));
            for effect in effects {
                self.assert_asked(effect);
                match effect {
                    Words => heard.assert_words(),
                    Speaker => {
                        let words = heard.words();
                        let known = words.iter().filter(|word| word["speaker"].is_string());
                        assert_eq!(known.count(), NUMBERS.len(), "{words:?}");
                    }
                    _ => {}
                }
            }
        }
        shown(honoured, &wishes)
    }

    /// The emulators are sure of what they hear, but never wholly: a demand below that changes nothing, and one above takes
    /// back all that was told in between.
    async fn drop_what_is_uncertain(&self, parameter: &Parameter) -> String {
        if let Honoured::Ignored(_) = parameter.honoured {
            return self.hear(parameter).await;
        }
        let vendor = self.vendor;
        let heard = listen(self.backed, vendor, &json!({"min_confidence": 0.9})).await;
        heard.unwrap_or_else(|errors| panic!("{vendor:?}: {errors:?}"));
        let stt = json!({"provider": vendor.slug(), "min_confidence": 1});
        let fields = json!({"stt_config": stt, "vad": {"enabled": false}});
        let mut session = Session::open(&self.backed.server, config(fields)).await;
        let speaking = session.hear(sound(&json!({})).await.1);
        assert_ne!(session.next("stt_result").await.text("transcript"), "");
        while !session
            .next("stt_result")
            .await
            .text("transcript")
            .is_empty()
        {}
        speaking.await;
        let results = session.events_of("stt_result");
        let told = results
            .iter()
            .filter(|result| result.is("is_final") && !result.text("transcript").is_empty());
        assert_eq!(told.count(), 0, "{vendor:?}: {results:?}");
        session.close().await;
        "below it: taken back".to_owned()
    }
}

// --- speaking ---

/// How a text was said.
struct Spoken {
    numbers: Vec<u16>,
    duration: Duration,
}

fn written() -> String {
    NUMBERS.map(|number| number.to_string()).join(" ")
}

fn spoken(chunks: &[Chunk], fields: &Value) -> Spoken {
    let encoding = fields["audio_format"].as_str().unwrap_or("linear16");
    let encoding: Encoding = encoding.parse().unwrap();
    let hz = fields["sample_rate"].as_u64().unwrap_or(16_000);
    let format = AudioFormat::mono(encoding, SampleRate::new(hz).unwrap());
    let sound = decoded(chunks, format);
    assert_eq!(sound.layout(), format.layout, "{fields}");
    Spoken {
        numbers: numbers_in(sound.samples(), format.layout.rate),
        duration: format.layout.rate.duration_of(sound.samples().len()),
    }
}

fn tts(vendor: Vendor, fields: &Value) -> Value {
    let usual = json!({"provider": vendor.slug(), "model": "", "sample_rate": 16_000});
    with(usual, fields.clone())
}

async fn say(backed: &Backed, vendor: Vendor, fields: &Value) -> Result<Spoken, Vec<Event>> {
    let config = config(json!({"tts_config": tts(vendor, fields)}));
    let mut session = Session::open(&backed.server, config).await;
    session.speak("u", &written()).await;
    session.end_of("u").await;
    let errors = session.events_of("error");
    let sound = session.sound();
    session.close().await;
    if errors.is_empty() {
        Ok(spoken(&sound, fields))
    } else {
        Err(errors)
    }
}

async fn speak(backed: &Backed, vendor: Vendor, fields: &Value) -> Result<Spoken, Value> {
    let body = json!({"text": written(), "tts_config": tts(vendor, fields)});
    let answer = post_speak(&backed.server, body).await;
    if answer.status() != 200 {
        return Err(answer.json().await.unwrap());
    }
    let named = answer.headers()["x-audio-format"].to_str().unwrap();
    assert_eq!(named, fields["audio_format"].as_str().unwrap_or("linear16"));
    let (at, data) = (Instant::now(), answer.bytes().await.unwrap());
    Ok(spoken(&[Chunk { at, data }], fields))
}

impl Bench<'_> {
    async fn say(&self, parameter: &Parameter) -> String {
        let Parameter { field, honoured } = *parameter;
        let vendor = self.vendor;
        let wishes = wishes::of_speech(vendor, field)
            .unwrap_or_else(|| panic!("{vendor:?}: tts_config.{field} has no check"));
        assert_fits(parameter, &wishes);
        for (fields, effects) in &wishes {
            self.assert_new(effects);
            let wrong = |why: String| -> Spoken { panic!("{vendor:?} {fields}: {why}") };
            let by_session = say(self.backed, vendor, fields).await;
            let by_session = by_session.unwrap_or_else(|errors| wrong(format!("{errors:?}")));
            for effect in effects {
                if !matches!(effect, QueryOfSpeak(..) | AskedBySpeak(_)) {
                    self.assert_asked(effect);
                }
            }
            let asked: Vec<_> = effects.iter().map(|effect| self.count(effect)).collect();
            let by_speak = speak(self.backed, vendor, fields).await;
            let by_speak = by_speak.unwrap_or_else(|error| wrong(error.to_string()));
            for (effect, before) in effects.iter().zip(asked) {
                self.assert_asked(effect);
                // A message is sent for each utterance, and an address is asked for once.
                if let Asked(_) = effect {
                    assert!(self.count(effect) > before, "{effect:?}, by /speak");
                }
                for spoken in [&by_session, &by_speak] {
                    self.assert_said(effect, spoken, fields).await;
                }
            }
        }
        shown(honoured, &wishes)
    }

    async fn assert_said(&self, effect: &Effect, spoken: &Spoken, fields: &Value) {
        match effect {
            Says(numbers) => assert_eq!(spoken.numbers, numbers, "{fields}"),
            Lasts(share, other) => {
                let other = speak(self.backed, self.vendor, other).await;
                let other = other.unwrap_or_else(|error| panic!("{fields}: {error}"));
                let ratio = spoken.duration.as_secs_f64() / other.duration.as_secs_f64();
                assert!((ratio - share).abs() < 0.05, "{fields} lasts ×{ratio}");
            }
            _ => assert_eq!(spoken.numbers, NUMBERS, "{:?} {fields}", self.vendor),
        }
    }
}

/// Whether a provider tells where its words are, as its row says.
async fn tell_words(table: &ProviderTable, vendor: Vendor, honoured: Honoured) -> String {
    let provider = table.text_to_speech(vendor.slug()).unwrap();
    let stream = provider.synthesize(tts_request(None), text_stream(&[&written()]));
    let events: Vec<_> = stream.await.unwrap().events.collect().await;
    let words: Vec<_> = events
        .into_iter()
        .filter_map(|event| match event.unwrap() {
            TtsEvent::Word { word, start } => Some((word, start)),
            _ => None,
        })
        .collect();
    if let Honoured::Ignored(_) = honoured {
        assert!(words.is_empty(), "{vendor:?} tells words after all");
        return "none".to_owned();
    }
    let said: Vec<_> = words.iter().map(|(word, _)| word.as_str()).collect();
    assert_eq!(said.join(" "), written(), "{vendor:?}");
    for (index, (_, start)) in words.iter().enumerate() {
        let meant = index as f64 * 0.48;
        assert!((start.as_secs_f64() - meant).abs() < 0.1, "{words:?}");
    }
    "words".to_owned()
}

// --- credentials ---

/// The caller's own credential.
fn auth(backed: &Backed, vendor: Vendor) -> Value {
    match vendor {
        Vendor::Google => json!({"credentials": google::account(&backed.emulators, CALLERS)}),
        Vendor::Azure => json!({"api_key": CALLERS, "region": "westeurope"}),
        _ => json!({"api_key": CALLERS}),
    }
}

/// A vendor that knows the caller's credential and not the server's.
async fn opened_by_the_caller() -> Backed {
    let mut settings = Settings::new(Engine::Scripted);
    settings.key = Some(CALLERS.to_owned());
    Backed::by(start(settings).await)
}

async fn hear_with_own_credential(backed: &Backed, vendor: Vendor) -> String {
    let refused = listen(backed, vendor, &json!({})).await;
    let refused = refused.err().expect("the server's key opens nothing");
    let code = refused[0].text("code");
    assert!(
        ["provider_auth", "stt_failed"].contains(&code),
        "{refused:?}"
    );
    let own = json!({"auth": auth(backed, vendor)});
    let heard = listen(backed, vendor, &own).await;
    heard.unwrap_or_else(|errors| panic!("{vendor:?}: {errors:?}"));
    "the caller's".to_owned()
}

async fn say_with_own_credential(backed: &Backed, vendor: Vendor) -> String {
    let refused = say(backed, vendor, &json!({})).await;
    let refused = refused.err().expect("the server's key opens nothing");
    assert_eq!(refused[0].text("code"), "provider_auth", "{refused:?}");
    let refused = speak(backed, vendor, &json!({})).await;
    let refused = refused.err().expect("the server's key opens nothing");
    assert_eq!(refused["error"], "PROVIDER_AUTH", "{refused}");
    let own = json!({"auth": auth(backed, vendor)});
    let by_session = say(backed, vendor, &own).await;
    let by_session = by_session.unwrap_or_else(|errors| panic!("{vendor:?}: {errors:?}"));
    let by_speak = speak(backed, vendor, &own).await;
    let by_speak = by_speak.unwrap_or_else(|error| panic!("{vendor:?}: {error}"));
    for spoken in [by_session, by_speak] {
        assert_eq!(spoken.numbers, NUMBERS, "{vendor:?}");
    }
    "the caller's".to_owned()
}

// --- the matrices ---

/// What a row shows. One that fails has told why, and the others are tried all the same.
async fn cell(row: impl Future<Output = String>) -> String {
    let row = AssertUnwindSafe(row).catch_unwind().await;
    row.unwrap_or_else(|_| FAILED.to_owned())
}

/// Prints all rows, none of which has failed.
fn print(direction: &str, columns: &[(Vendor, BTreeMap<&'static str, String>)], rows: &[&str]) {
    let mut printed = format!("{direction:16}");
    for (vendor, _) in columns {
        printed += &format!("{:28}", vendor.slug());
    }
    for row in rows {
        printed += &format!("\n{row:16}");
        for (_, cells) in columns {
            let cell: String = cells[row].chars().take(27).collect();
            printed += &format!("{cell:28}");
        }
    }
    println!("{printed}");
    assert!(!printed.contains(FAILED), "{printed}");
}

fn fields_of(parameters: &[Parameter]) -> Vec<&'static str> {
    parameters.iter().map(|parameter| parameter.field).collect()
}

/// Runs each vendor's rows one after the other, the vendors side by side.
async fn columns<F>(run: impl Fn(Vendor) -> F) -> Vec<(Vendor, BTreeMap<&'static str, String>)>
where
    F: Future<Output = BTreeMap<&'static str, String>>,
{
    let run = &run;
    let columns = Vendor::STREAMING.map(|vendor| async move { (vendor, run(vendor).await) });
    join_all(columns).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_hearing_has_its_effect_at_every_vendor() {
    let table = providers(&[]);
    let backed = Backed::by(scripted(&[]).await);
    let closed = opened_by_the_caller().await;
    let rows = |vendor: Vendor| {
        let provider = table.speech_to_text(vendor.slug()).unwrap();
        provider.parameters()
    };
    let columns = columns(|vendor| {
        let (backed, closed, rows) = (&backed, &closed, rows(vendor));
        async move {
            let bench = Bench {
                backed,
                vendor,
                direction: "stt",
            };
            let usual = listen(backed, vendor, &json!({})).await;
            usual.unwrap_or_else(|errors| panic!("{vendor:?}: {errors:?}"));
            let mut cells = BTreeMap::new();
            for parameter in rows {
                let row = async {
                    match parameter.field {
                        "auth" => hear_with_own_credential(closed, vendor).await,
                        "min_confidence" => bench.drop_what_is_uncertain(parameter).await,
                        _ => bench.hear(parameter).await,
                    }
                };
                cells.insert(parameter.field, cell(row).await);
            }
            cells
        }
    })
    .await;
    print("stt_config", &columns, &fields_of(rows(Vendor::Deepgram)));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_speaking_has_its_effect_at_every_vendor() {
    let backed = Backed::by(scripted(&[]).await);
    let closed = opened_by_the_caller().await;
    let table = all_providers(&backed.emulators);
    let rows = |vendor: Vendor| {
        let provider = table.text_to_speech(vendor.slug()).unwrap();
        provider.parameters()
    };
    let columns = columns(|vendor| {
        let (backed, closed, table, rows) = (&backed, &closed, &table, rows(vendor));
        async move {
            let bench = Bench {
                backed,
                vendor,
                direction: "tts",
            };
            let usual = say(backed, vendor, &json!({})).await;
            usual.unwrap_or_else(|errors| panic!("{vendor:?}: {errors:?}"));
            let mut cells = BTreeMap::new();
            for parameter in rows {
                let row = async {
                    match parameter.field {
                        "auth" => say_with_own_credential(closed, vendor).await,
                        "words" => tell_words(table, vendor, parameter.honoured).await,
                        _ => bench.say(parameter).await,
                    }
                };
                cells.insert(parameter.field, cell(row).await);
            }
            cells
        }
    })
    .await;
    print("tts_config", &columns, &fields_of(rows(Vendor::Deepgram)));
}

/// What Azure makes of a sentence, with `punctuation` as it is asked for.
async fn transcribed_by_azure(backed: &Backed, sentence: &Pcm, punctuation: bool) -> String {
    let mut session = Session::open(
        &backed.server,
        config(json!({
            "stt_config": {"provider": "azure", "punctuation": punctuation},
            "vad": {"enabled": false},
        })),
    )
    .await;
    let speaking = session.hear(encoded(sentence, WIDE).await);
    let turn = session.end_of_turn().await;
    speaking.await;
    session.close().await;
    turn.text("turn_transcript").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn azures_text_has_punctuation_where_it_is_wanted() {
    let backed = Backed::by(english().await);
    let local = Server::start();
    let fields = json!({"sample_rate": 16_000});
    let answer = speak_locally(&local, SENTENCES[2], fields).await;
    let mut samples = linear16::samples(&answer.bytes().await.unwrap());
    samples.resize(samples.len() + 2 * RATE.hz() as usize, 0);
    let sentence = Pcm::new(WIDE.layout, samples);
    let written = transcribed_by_azure(&backed, &sentence, true).await;
    assert!(written.ends_with('.'), "{written}");
    assert!(written.starts_with(char::is_uppercase), "{written}");
    let bare = transcribed_by_azure(&backed, &sentence, false).await;
    assert!(!bare.is_empty() && !bare.contains('.'), "{bare}");
    assert!(bare.starts_with(char::is_lowercase), "{bare}");
}
