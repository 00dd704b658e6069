//! `vivavoce bench fallback`: the outage when a vendor fails and the next one takes over, for every pair of vendors. A
//! real server uses the emulators; injected faults end what the first vendor does, and the time is measured from when
//! that was visible on the wire to the first audio or transcript of the second.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::backed::Backed;
use super::load::SessionError;
use super::session::{Came, Session};
use super::spread::Spread;
use super::under_test::Cores;
use super::{ConfigArgs, Failure};
use crate::audio::{SampleRate, linear16};
use crate::emulators::tone_words::speak;
use crate::emulators::{Direction, Vendor};
use crate::providers::null::SLUG as NULL;

type Frames = std::iter::Cycle<std::vec::IntoIter<Bytes>>;

const RATE: SampleRate = SampleRate::HZ_16000;
const FRAME: Duration = Duration::from_millis(20);
/// What a failing voice leaves between two messages. Each holds up to 100 ms of sound, so that it speaks about as fast
/// as it is heard, and nothing that came ahead hides the gap.
const TRICKLE_MS: u64 = 70;
/// When a voice fails, after its connection was opened.
const VOICE_FAILS_MS: std::ops::Range<u64> = 300..700;
/// The same of a recogniser: later than ElevenLabs needs, which says nothing before it has had two seconds of sound.
const EARS_FAIL_MS: std::ops::Range<u64> = 2_600..3_600;
/// How often a round in which a failure came before anything else is made again, with one that comes twice as late.
const LATER: u32 = 2;
/// How long one round may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// What the gap should not exceed when the failure is visible at once, in milliseconds.
const GOAL_MS: f64 = 300.0;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce bench fallback                                  every pair of the five vendors\n  \
    vivavoce bench fallback --rounds 10 --json gaps.json     more of it, and every single time\n  \
    vivavoce bench fallback --vendors deepgram,azure         two pairs only\n\n\
    Four things happen to each pair, from the first vendor to the second: a voice is cut off while it speaks; a voice \
    refuses the connection; a recogniser is cut off while it hears, and refuses when it is dialled again; a recogniser \
    refuses the connection. Of each is taken: the gap, from the last sound or transcript (where nothing had come yet: \
    from the request) to the first of the next vendor; what of it came after the failure could be seen on the wire; and \
    of a voice that is cut off, how long a listener hears nothing who plays what comes when it comes. Sound leaves as \
    soon as it is there, but the next utterance not before the last one has been heard. A failing voice pauses for up to \
    70 ms between two messages, and words are spoken every 480 ms: that is in the gaps too. Where a vendor tells no \
    times of words, the next utterance is the first that the fallback speaks. Recognisers are cut off after 2.6 s or \
    more, because ElevenLabs says nothing of the first two seconds of a stream. Ctrl-C ends a measurement early.")]
pub(super) struct Arguments {
    /// Rounds per pair
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Seed for the times of failures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Vendors, separated by commas; default: all
    #[arg(long, value_delimiter = ',', value_parser = super::vendor)]
    vendors: Vec<Vendor>,
    /// Write all results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What happens to the first vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Trial {
    VoiceCut,
    VoiceRefused,
    EarsCut,
    EarsRefused,
}

impl Trial {
    const ALL: [Self; 4] = [
        Self::VoiceCut,
        Self::VoiceRefused,
        Self::EarsCut,
        Self::EarsRefused,
    ];

    const fn title(self) -> &'static str {
        match self {
            Self::VoiceCut => "voice cut off: last sound → first of the next",
            Self::VoiceRefused => "voice refused: `speak` → first sound of the next",
            Self::EarsCut => "recogniser cut off: last transcript → first of the next",
            Self::EarsRefused => "recogniser refused: `config` → `ready`",
        }
    }
}

/// One round.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sample {
    trial: Trial,
    from: &'static str,
    to: &'static str,
    gap_ms: f64,
    /// What of it came after the failure could be seen.
    visible_ms: f64,
    /// What a listener hears of the gap, where sound came before it.
    silence_ms: Option<f64>,
}

/// The JSON file.
#[derive(Serialize)]
struct Document {
    version: &'static str,
    seed: u64,
    goal_ms: f64,
    trials: Vec<Row>,
    failures: Vec<String>,
    samples: Vec<Sample>,
}

#[derive(Serialize)]
struct Row {
    trial: Trial,
    gap: Option<Spread>,
    visible: Option<Spread>,
    silence: Option<Spread>,
}

/// Why a round has given no time.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("nobody took over within {} s", PATIENCE.as_secs())]
    Late,
    #[error("the emulators have seen no connection")]
    Unseen,
    #[error("the failure came before anything else did")]
    Early,
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let cores = Cores::divide().map_err(Failure::work)?;
    let runtime = super::runtime(cores.as_ref()).map_err(Failure::work)?;
    let stop = super::stop_token(&runtime).map_err(Failure::work)?;
    let mut bench = Bench {
        rounds: arguments.rounds,
        random: fastrand::Rng::with_seed(arguments.seed),
        stop,
        samples: Vec::new(),
        failures: Vec::new(),
    };
    let vendors = super::chosen(&arguments.vendors);
    if vendors.len() < 2 {
        return Err(Failure::usage("--vendors must name two at least"));
    }
    runtime.block_on(bench.all(config, cores.as_ref(), &vendors))?;
    let document = bench.document(arguments.seed);
    print!("{}", document.table());
    if let Some(file) = &arguments.json {
        super::write_json(file, &document)?;
    }
    match document.failures.len() {
        0 => Ok(()),
        failures => Err(Failure::work(format!("{failures} failures, see above"))),
    }
}

struct Bench {
    rounds: u32,
    random: fastrand::Rng,
    stop: CancellationToken,
    samples: Vec<Sample>,
    failures: Vec<String>,
}

impl Bench {
    async fn all(
        &mut self,
        config: &ConfigArgs,
        cores: Option<&Cores>,
        vendors: &[Vendor],
    ) -> Result<(), Failure> {
        for &from in vendors {
            // A server of its own: another would have connections to this vendor that know of no fault.
            let backed = Backed::start(config, cores).await?;
            for &to in vendors.iter().filter(|&&to| to != from) {
                eprintln!("{} → {}", from.slug(), to.slug());
                for trial in Trial::ALL {
                    for _ in 0..self.rounds {
                        if self.stop.is_cancelled() {
                            return Ok(());
                        }
                        self.round(&backed, trial, from, to).await?;
                    }
                }
            }
            backed.emulators.stop().await;
        }
        Ok(())
    }

    async fn round(
        &mut self,
        backed: &Backed,
        trial: Trial,
        from: Vendor,
        to: Vendor,
    ) -> Result<(), Failure> {
        let mut fails_ms = self.random.u64(match trial {
            Trial::EarsCut => EARS_FAIL_MS,
            _ => VOICE_FAILS_MS,
        });
        let mut later = 0;
        let measured = loop {
            let round = Round {
                backed,
                from,
                to,
                fails_ms,
            };
            backed.forget();
            backed.set_faults(&round.faults(trial))?;
            let measured = match trial {
                Trial::VoiceCut => timeout(PATIENCE, round.voice_cut()).await,
                Trial::VoiceRefused => timeout(PATIENCE, round.voice_refused()).await,
                Trial::EarsCut => timeout(PATIENCE, round.ears_cut()).await,
                Trial::EarsRefused => timeout(PATIENCE, round.ears_refused()).await,
            };
            match measured.unwrap_or(Err(Lost::Late)) {
                // There is nothing to measure, which says something of this machine and nothing of the server.
                Err(Lost::Early) if later < LATER => {
                    let (from, to) = (from.slug(), to.slug());
                    eprintln!(
                        "{trial:?}, {from} → {to}, {fails_ms} ms: {}; again, later",
                        Lost::Early
                    );
                    later += 1;
                    fails_ms *= 2;
                }
                measured => break measured,
            }
        };
        match measured {
            Ok(times) => self.samples.push(Sample {
                trial,
                from: from.slug(),
                to: to.slug(),
                gap_ms: ms(times.last, times.first),
                visible_ms: ms(times.seen, times.first),
                silence_ms: times.played_out.map(|end| ms(end, times.first)),
            }),
            Err(lost) => {
                let (from, to) = (from.slug(), to.slug());
                let failure = format!("{trial:?}, {from} → {to}, {fails_ms} ms: {lost}");
                eprintln!("{failure}");
                self.failures.push(failure);
            }
        }
        Ok(())
    }

    fn document(self, seed: u64) -> Document {
        let rows = Trial::ALL.map(|trial| {
            let of_trial = || self.samples.iter().filter(move |one| one.trial == trial);
            Row {
                trial,
                gap: Spread::of(of_trial().map(|one| one.gap_ms)),
                visible: Spread::of(of_trial().map(|one| one.visible_ms)),
                silence: Spread::of(of_trial().filter_map(|one| one.silence_ms)),
            }
        });
        Document {
            version: env!("CARGO_PKG_VERSION"),
            seed,
            goal_ms: GOAL_MS,
            trials: rows.into(),
            failures: self.failures,
            samples: self.samples,
        }
    }
}

/// One failure of one vendor.
struct Round<'a> {
    backed: &'a Backed,
    from: Vendor,
    to: Vendor,
    fails_ms: u64,
}

struct Times {
    /// The last sign of the failing vendor, or the request.
    last: Instant,
    /// When the failure was on the wire.
    seen: Instant,
    /// The first sign of the next vendor.
    first: Instant,
    /// When a listener has heard all that came of the failing voice.
    played_out: Option<Instant>,
}

/// Milliseconds from one moment to another, nought where that is earlier.
fn ms(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}

impl Round<'_> {
    fn faults(&self, trial: Trial) -> Vec<String> {
        let (from, ms) = (self.from.slug(), self.fails_ms);
        match trial {
            Trial::VoiceCut => vec![
                format!("{from}:tts:trickle={TRICKLE_MS}ms"),
                format!("{from}:tts:close@{ms}ms"),
            ],
            Trial::VoiceRefused => vec![format!("{from}:tts:refuse")],
            Trial::EarsCut => vec![format!("{from}:stt:close@{ms}ms")],
            Trial::EarsRefused => vec![format!("{from}:stt:refuse")],
        }
    }

    /// A session in which the two vendors do what `direction` says, and vendors that cost nothing do the rest.
    async fn session(&self, direction: Direction) -> Result<Session, SessionError> {
        let mut stt = json!({"provider": NULL, "sample_rate": RATE.hz()});
        let mut tts = json!({"provider": NULL, "model": "", "sample_rate": RATE.hz()});
        let changed = match direction {
            Direction::Stt => &mut stt,
            _ => &mut tts,
        };
        changed["provider"] = self.from.slug().into();
        changed["fallback"] = json!([{"provider": self.to.slug(), "model": ""}]);
        let config = json!({
            "type": "config", "stt_config": stt, "tts_config": tts,
            // Tones are no voice: what a recogniser has missed must not be shortened as silence.
            "vad": {"enabled": false},
        });
        Session::open(&self.backed.url, config).await
    }

    /// When the vendor's first connection of the round was opened.
    fn opened(&self, direction: Direction) -> Result<Instant, Lost> {
        let record = self.backed.first(self.from, direction);
        let record = record.ok_or(Lost::Unseen)?;
        Ok(self.backed.emulators.emulation.moment(record.opened_ms))
    }

    async fn voice_cut(&self) -> Result<Times, Lost> {
        let mut session = self.session(Direction::Tts).await?;
        session.send(speak_message("long", 40)).await?;
        session.send(speak_message("next", 4)).await?;
        let (mut last, mut played_out, mut switched) = (None, None, false);
        let first = loop {
            let (at, came) = session.next().await?;
            match came {
                Came::Sound(_) if switched => break at,
                Came::Sound(bytes) => {
                    last = Some(at);
                    let begins = played_out.map_or(at, |end: Instant| end.max(at));
                    played_out = Some(begins + RATE.duration_of(bytes / 2));
                }
                came @ Came::Event(_) => switched |= came.is("provider_event", "switched"),
            }
        };
        let seen = self.opened(Direction::Tts)? + Duration::from_millis(self.fails_ms);
        session.close().await;
        Ok(Times {
            last: last.ok_or(Lost::Early)?,
            seen,
            first,
            played_out,
        })
    }

    async fn voice_refused(&self) -> Result<Times, Lost> {
        let mut session = self.session(Direction::Tts).await?;
        let last = Instant::now();
        session.send(speak_message("short", 4)).await?;
        let first = loop {
            if let (at, Came::Sound(_)) = session.next().await? {
                break at;
            }
        };
        let seen = self.opened(Direction::Tts)?;
        session.close().await;
        Ok(Times {
            last,
            seen,
            first,
            played_out: None,
        })
    }

    async fn ears_cut(&self) -> Result<Times, Lost> {
        let mut hearing = SttSession::new(self.session(Direction::Stt).await?);
        let (mut last, mut seen) = (None, None);
        let first = loop {
            let (at, came) = hearing.next().await?;
            if let (None, Ok(opened)) = (seen, self.opened(Direction::Stt)) {
                seen = Some(opened + Duration::from_millis(self.fails_ms));
                // What is open keeps its fault; whoever dials again is refused.
                let refuses = self.faults(Trial::EarsRefused);
                let set = self.backed.set_faults(&refuses);
                set.map_err(|_| Lost::Unseen)?;
            }
            if came.is_some_and(|came| came.is("stt_result", "")) {
                if hearing.session.switched {
                    break at;
                }
                last = Some(at);
            }
        };
        hearing.session.close().await;
        Ok(Times {
            last: last.ok_or(Lost::Early)?,
            seen: seen.ok_or(Lost::Unseen)?,
            first,
            played_out: None,
        })
    }

    /// Where the vendor refuses only what it is sent, the session is ready before, and has recovered in the end.
    async fn ears_refused(&self) -> Result<Times, Lost> {
        let mut hearing = SttSession::new(self.session(Direction::Stt).await?);
        let mut last = hearing.session.configured;
        let mut first = hearing.session.ready;
        if !hearing.session.switched {
            last = Instant::now();
            loop {
                let (at, came) = hearing.next().await?;
                let recovered = came.is_some_and(|came| came.is("provider_event", "recovered"));
                if recovered && hearing.session.switched {
                    first = at;
                    break;
                }
            }
        }
        let refused = self.opened(Direction::Stt)?;
        hearing.session.close().await;
        Ok(Times {
            last,
            seen: refused,
            first,
            played_out: None,
        })
    }
}

/// A session that is spoken to in real time.
struct SttSession {
    session: Session,
    frames: Frames,
    ticks: Interval,
}

impl SttSession {
    fn new(session: Session) -> Self {
        Self {
            session,
            frames: frames(),
            ticks: interval(FRAME),
        }
    }

    /// What comes next, or nothing once a frame was sent.
    async fn next(&mut self) -> Result<(Instant, Option<Came>), SessionError> {
        tokio::select! {
            at = self.ticks.tick() => {
                let frame = self.frames.next().unwrap_or_default();
                self.session.send_sound(frame).await?;
                Ok((at, None))
            }
            came = self.session.next() => {
                let (at, came) = came?;
                self.session.switched |= came.is("provider_event", "switched");
                Ok((at, Some(came)))
            }
        }
    }
}

/// A `speak` of so many words.
fn speak_message(id: &str, words: u16) -> Value {
    let words: Vec<String> = (200..200 + words).map(|word| word.to_string()).collect();
    json!({"type": "speak", "id": id, "text": words.join(" ")})
}

/// Words without an end, in frames of linear16.
fn frames() -> Frames {
    let samples = (100..140).flat_map(|number| speak(number, RATE));
    let sound = linear16::encode(&samples.collect::<Vec<i16>>());
    let bytes = RATE.frames_in(FRAME) * 2;
    let frames: Vec<Bytes> = (0..sound.len() / bytes)
        .map(|index| sound.slice(index * bytes..(index + 1) * bytes))
        .collect();
    frames.into_iter().cycle()
}

impl Document {
    /// Markdown; times are p50 / p99 in ms. By pairs first, then all of them.
    fn table(&self) -> String {
        let mut table = String::from(
            "| | gap | after the failure could be seen | heard as silence | rounds |\n\
             |---|---:|---:|---:|---:|\n",
        );
        for row in &self.trials {
            let count = row.gap.map_or(0, |gap| gap.count);
            let times = [row.gap, row.visible, row.silence].map(Spread::shown);
            table += &format!(
                "| {} | {} | {count} |\n",
                row.trial.title(),
                times.join(" | ")
            );
        }
        table += "\n| after the failure could be seen |";
        for trial in Trial::ALL {
            let (title, _) = trial.title().split_once(':').unwrap_or_default();
            table += &format!(" {title} |");
        }
        table += "\n|---|---:|---:|---:|---:|\n";
        for vendor in Vendor::STREAMING {
            for (word, of_vendor) in [("from", true), ("to", false)] {
                let slug = vendor.slug();
                let cells = Trial::ALL.map(|trial| {
                    let ours = self.samples.iter().filter(|one| {
                        one.trial == trial && (if of_vendor { one.from } else { one.to }) == slug
                    });
                    Spread::shown(Spread::of(ours.map(|one| one.visible_ms)))
                });
                if cells.iter().any(|cell| cell != "–") {
                    table += &format!("| {word} {slug} | {} |\n", cells.join(" | "));
                }
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_long_as_they_last_and_do_not_end() {
        assert!(frames().take(5_000).all(|frame| frame.len() == 640));
    }

    #[test]
    fn what_is_over_before_it_began_lasts_no_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!((ms(at(60), at(100)) - 40.0).abs() < 1e-6);
        assert!(ms(at(100), at(60)).abs() < 1e-6);
    }
}
