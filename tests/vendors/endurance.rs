//! Long conversations with vendors that end their streams again and again: what is counted is words, in both directions.
//! The clock of the emulators, of whoever speaks and of whoever is spoken to runs faster than real time; that of the
//! server does not, so that its deadlines and delays weigh that much more.

use std::time::Duration;

use fastrand::Rng;
use serde_json::json;
use tokio::time::Instant;
use vivavoce::audio::{SampleRate, linear16};
use vivavoce::emulators::clock::Clock;
use vivavoce::emulators::engine::Engine;
use vivavoce::emulators::tone_words::Listener;
use vivavoce::emulators::{Emulators, Settings, Vendor};

use super::faults::heard_numbers;
use super::{Backed, start, tone_words};
use crate::harness::is_long;
use crate::session::client::{Session, config};

const RATE: SampleRate = SampleRate::HZ_16000;
/// How much faster than real time the clock runs.
const SPEED: u32 = 5;
/// Words that may wait to be heard before the speaker waits, too: what is not final is kept for half a minute only.
const UNHEARD: usize = 10;
/// How long a word may take, by the clock on the wall.
const PATIENCE: Duration = Duration::from_secs(20);
/// Chooses the lengths of sentences and pauses.
const SEED: u64 = 20_261_122;

/// Every stream lasts twenty seconds, and speech comes at the pace at which it is spoken.
async fn hurried() -> Emulators {
    let mut settings = Settings::new(Engine::Scripted);
    settings.clock = Clock::new(f64::from(SPEED)).unwrap();
    let faults = ["any:any:limit=20s", "any:tts:trickle=100ms"];
    settings.faults = faults.map(|fault| fault.parse().unwrap()).to_vec();
    start(settings).await
}

/// Words that went in, and those that came out.
#[derive(Debug, Default)]
struct Words {
    sent: Vec<u16>,
    came: Vec<u16>,
}

impl Words {
    /// The next so many numbers.
    fn more(&mut self, first: usize, count: usize) -> Vec<u16> {
        let next = first + self.sent.len();
        let numbers = next..next + count;
        let numbers: Vec<_> = numbers.map(|number| (number % 10_000) as u16).collect();
        self.sent.extend(&numbers);
        numbers
    }

    /// Where they begin to differ.
    fn difference(&self) -> Option<String> {
        let Self { sent, came } = self;
        let place = sent.iter().zip(came).take_while(|(a, b)| a == b).count();
        let near = |all: &[u16]| {
            let near = all.iter().skip(place.saturating_sub(1)).take(4);
            near.copied().collect::<Vec<_>>()
        };
        (sent != came).then(|| format!("word {place}: {:?} became {:?}", near(sent), near(came)))
    }
}

/// One conversation.
struct Conversation {
    session: Session,
    heard: Words,
    said: Words,
    /// Hears what the session says.
    listener: Listener,
    /// Pieces of its sound that were listened to.
    listened: usize,
    random: Rng,
}

impl Conversation {
    async fn begin(backed: &Backed, vendor: Vendor) -> Self {
        let slug = vendor.slug();
        let both = json!({
            "stt_config": {"provider": slug},
            "tts_config": {"provider": slug, "model": "", "sample_rate": RATE.hz()},
            // Tones are no voice.
            "vad": {"enabled": false},
        });
        Self {
            session: Session::open(&backed.server, config(both)).await,
            heard: Words::default(),
            said: Words::default(),
            listener: Listener::new(RATE),
            listened: 0,
            random: Rng::with_seed(SEED),
        }
    }

    /// Some words of a speaker, with a pause behind them, while the session says a few itself. Gives how long they
    /// sounded.
    async fn turn(&mut self, begin: Instant) -> Duration {
        let said = self.said.more(5_000, self.random.usize(2..=6));
        let text: Vec<_> = said.iter().map(u16::to_string).collect();
        self.session.speak("answer", &text.join(" ")).await;
        let heard = self.heard.more(0, self.random.usize(4..=14));
        let pause = Duration::from_millis(self.random.u64(1_100..2_000));
        // Word by word: a machine that hesitates does so between words.
        let words = heard.into_iter().map(|number| tone_words([number], RATE));
        let mut sounded = Duration::ZERO;
        for sound in words.chain([vec![0; RATE.frames_in(pause)]]) {
            sounded += RATE.duration_of(sound.len());
            tokio::time::sleep_until(begin + sounded / SPEED).await;
            self.session.send_sound(linear16::encode(&sound)).await;
        }
        self.until_said().await;
        let enough = self.heard.sent.len().saturating_sub(UNHEARD);
        self.session.until_heard(enough, PATIENCE).await;
        sounded
    }

    /// Waits until everything was said. Whoever listens has heard it by then: by the server's clock it would go on.
    async fn until_said(&mut self) {
        let Self {
            session,
            said,
            listener,
            listened,
            ..
        } = self;
        let enough = session.until_sound(PATIENCE, |sound| {
            for chunk in sound.iter().skip(*listened) {
                let words = listener.hear(&linear16::samples(&chunk.data));
                said.came.extend(words.iter().map(|word| word.number));
            }
            *listened = sound.len();
            said.came.len() >= said.sent.len()
        });
        enough.await;
        session.command("clear").await;
    }

    fn failed(&self) -> bool {
        !self.session.events_of("error").is_empty()
    }
}

/// Converses for so long. Gives what went in and out, and what went wrong.
async fn converse(backed: &Backed, vendor: Vendor, minutes: u64) -> Vec<String> {
    let mut conversation = Conversation::begin(backed, vendor).await;
    let mut sounded = Duration::ZERO;
    let mut begin = Instant::now();
    while sounded < Duration::from_mins(minutes) && !conversation.failed() {
        let lasted = conversation.turn(begin).await;
        sounded += lasted;
        // A speaker who had to wait does not hurry afterwards.
        begin = Instant::now().max(begin + lasted / SPEED);
    }
    let Conversation {
        mut session,
        mut heard,
        said,
        ..
    } = conversation;
    session.until_heard(heard.sent.len(), PATIENCE).await;
    heard.came = heard_numbers(&session);
    let mut wrong: Vec<_> = [&heard, &said]
        .iter()
        .filter_map(|words| words.difference())
        .collect();
    let errors = session.events_of("error");
    wrong.extend(errors.iter().map(ToString::to_string));
    let redialled = session
        .events_of("provider_event")
        .iter()
        .filter(|event| event["state"] == "recovered")
        .count();
    println!(
        "{:11} heard {} of {} words, its streams dialled again {redialled} times; said {} of {} words; {:.1} minutes",
        vendor.slug(),
        heard.came.len(),
        heard.sent.len(),
        said.came.len(),
        said.sent.len(),
        sounded.as_secs_f64() / 60.0,
    );
    session.close().await;
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_outlives_the_limits_of_streams_with_every_word_heard_and_said_once() {
    let minutes = if is_long() { 30 } else { 2 };
    // As before the limits that are known: no connection for speech is used when it is near them.
    let backed = Backed::with(
        hurried().await,
        &[
            ("OUTGOING_CONNECTION_SECONDS", "1.5"),
            ("SOCKET_PACING", "off"),
        ],
    );
    let all = Vendor::STREAMING.map(|vendor| converse(&backed, vendor, minutes));
    let wrong = futures_util::future::join_all(all).await;
    let wrong: Vec<_> = Vendor::STREAMING
        .iter()
        .map(|vendor| vendor.slug())
        .zip(wrong)
        .filter(|(_, wrong)| !wrong.is_empty())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
