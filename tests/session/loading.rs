//! The loading sound on the plain socket: a seamless loop with soft edges, beneath what is said.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::future::join_all;
use serde_json::{Value, json};
use vivavoce::audio::{Channels, Layout, Pcm, SampleRate, linear16};

use super::client::{Hiccups, Session, config, says, with};
use super::sound::{
    CHUNK, LEAD, OUTPUT, OUTPUT_SECOND, Playout, decoded, spoken, stereo, tone, tone_in,
    transcribed, wav_file,
};
use crate::harness::{SENTENCES, Server, share_of_words};

/// How long a loop takes to come and to go.
const FADE: Duration = Duration::from_millis(30);

/// Frames of output in a time.
fn frames(time: Duration) -> usize {
    OUTPUT.layout.rate.frames_in(time)
}

/// A clip as it stands in `config`.
pub fn wav(sound: &Pcm) -> Value {
    json!({"data": BASE64.encode(wav_file(sound)), "format": "wav"})
}

/// The same without a header.
fn pcm(sound: &Pcm) -> Value {
    let layout = sound.layout();
    json!({
        "data": BASE64.encode(linear16::encode(sound.samples())),
        "format": "pcm", "sample_rate": layout.rate.hz(), "channels": layout.channels.count(),
    })
}

fn loading(clip: Value) -> Value {
    config(json!({"loading_audio": clip}))
}

/// Noise that is never twice the same within a clip: its place in the loop can be told from any piece. Its length is no
/// whole number of chunks.
fn noise(amplitude: i32) -> Pcm {
    let mut state = 1u32;
    let samples = (0..frames(Duration::from_millis(777))).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 16) as i32 % (2 * amplitude) - amplitude) as i16
    });
    Pcm::new(OUTPUT.layout, samples.collect())
}

/// Runs the loop for a while; all sound that came of it.
async fn looped(session: &mut Session, time: Duration) -> Vec<i16> {
    session.command("loading_start").await;
    session.received(frames(time) * 2).await;
    session.command("loading_stop").await;
    session.until_silent().await;
    decoded(&session.sound(), OUTPUT).into_samples()
}

/// The sound without its soft edges.
fn steady(sound: &[i16]) -> &[i16] {
    let edge = frames(FADE + CHUNK);
    &sound[edge..sound.len() - edge]
}

#[tokio::test]
async fn the_loop_is_the_clip_sample_by_sample() {
    let server = Server::start();
    let clip = noise(3_000);
    let hiccups = Hiccups::watch();
    let sessions = [wav(&clip), pcm(&clip)].map(|config| async {
        let mut session = Session::open(&server, loading(config)).await;
        let sound = looped(&mut session, Duration::from_millis(2_500)).await;
        let clip = clip.samples();
        let differs = |n: &usize| (sound[*n] - clip[n % clip.len()]).abs() > 1;
        let steady = frames(FADE)..sound.len() - frames(FADE + CHUNK);
        let wrong: Vec<_> = steady.clone().filter(differs).collect();
        assert!(
            wrong.is_empty(),
            "{} of {} samples differ, the first at {}",
            wrong.len(),
            steady.len(),
            wrong[0]
        );
        let chunks = session.sound();
        let playout = Playout::of(&chunks);
        let late = hiccups.worst();
        assert!(
            playout.most_ahead <= LEAD + CHUNK + late,
            "{:?}",
            playout.most_ahead
        );
        assert!(playout.longest_gap <= late, "{:?}", playout.longest_gap);
        let (_, whole) = chunks.split_last().unwrap();
        assert!(
            whole
                .iter()
                .all(|chunk| chunk.data.len() == OUTPUT_SECOND / 50)
        );
        session.close().await;
    });
    join_all(sessions).await;
}

#[tokio::test]
async fn the_loop_comes_and_goes_softly_within_thirty_milliseconds() {
    const LEVEL: i16 = 12_000;
    let server = Server::start();
    let clip = Pcm::new(OUTPUT.layout, vec![LEVEL; frames(Duration::from_secs(1))]);
    let hiccups = Hiccups::watch();
    let mut session = Session::open(&server, loading(wav(&clip))).await;
    session.command("loading_start").await;
    session.received(OUTPUT_SECOND).await;
    let stopped = session.command_read("loading_stop").await;
    session.until_silent().await;
    let late = hiccups.worst() + session.round_trip().await;
    let chunks = session.sound();
    let sound = decoded(&chunks, OUTPUT).into_samples();

    let full = |sample: &i16| (sample - LEVEL).abs() <= 1;
    let rise = sound.iter().position(full).unwrap();
    let fall = sound.iter().rposition(full).unwrap();
    let silent = sound.iter().rposition(|sample| sample.abs() > 1).unwrap();
    assert!(sound[rise..=fall].iter().all(full), "not level in between");
    let expected = frames(FADE);
    for (what, length) in [("in", rise), ("out", silent - fall)] {
        assert!(
            (expected * 3 / 4..=expected + 2).contains(&length),
            "faded {what} in {length} samples instead of {expected}"
        );
    }
    // Twice the slope of a straight line, which no sensible curve exceeds.
    let steepest = sound
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).unsigned_abs())
        .max();
    assert!(
        steepest.unwrap() <= 2 * LEVEL.unsigned_abs() / expected as u16,
        "{steepest:?}"
    );
    let after = chunks.last().unwrap().at.saturating_duration_since(stopped);
    assert!(
        after <= FADE + 2 * CHUNK + late,
        "sound {after:?} after loading_stop"
    );
    session.close().await;
}

#[tokio::test]
async fn clips_of_any_rate_channels_and_volume_become_the_output() {
    let hz = |hz: u32| SampleRate::new(hz).unwrap();
    let second = Duration::from_secs(1);
    let low = |rate, time| tone(Layout::mono(rate), 440.0, 8_000.0, time);
    let (left, right) = (
        tone(Layout::mono(SampleRate::HZ_48000), 440.0, 8_000.0, second),
        tone(Layout::mono(SampleRate::HZ_48000), 660.0, 8_000.0, second),
    );
    let both = low(SampleRate::HZ_24000, second).into_channels(Channels::Stereo);
    let volume = |clip: &Pcm, volume: f64| with(wav(clip), json!({"volume": volume}));
    let table = [
        (
            "8 kHz",
            wav(&low(SampleRate::HZ_8000, second)),
            8_000.0,
            0.0,
        ),
        ("44.1 kHz", pcm(&low(hz(44_100), second)), 8_000.0, 0.0),
        (
            "250 ms",
            wav(&low(SampleRate::HZ_16000, second / 4)),
            8_000.0,
            0.0,
        ),
        ("two alike", wav(&both), 8_000.0, 0.0),
        (
            "two that differ",
            pcm(&stereo(&left, &right)),
            4_000.0,
            4_000.0,
        ),
        (
            "half as loud",
            volume(&low(SampleRate::HZ_24000, second), 0.5),
            4_000.0,
            0.0,
        ),
        (
            "at most as it is",
            volume(&low(SampleRate::HZ_24000, second), 7.0),
            8_000.0,
            0.0,
        ),
        (
            "at least silence",
            volume(&low(SampleRate::HZ_24000, second), -1.0),
            0.0,
            0.0,
        ),
    ];
    let server = Server::start();
    let sessions = table.map(|(case, clip, first, second)| {
        let server = &server;
        async move {
            let mut session = Session::open(server, loading(clip)).await;
            let sound = looped(&mut session, Duration::from_millis(2_300)).await;
            // Whole periods of both tones.
            let sound = &steady(&sound)[..frames(Duration::from_secs(2))];
            let (low, rest) = tone_in(sound, OUTPUT.layout.rate, 440.0);
            let (high, _) = tone_in(sound, OUTPUT.layout.rate, 660.0);
            assert!((low - first).abs() <= 80.0, "{case}: {low} of 440 Hz");
            assert!((high - second).abs() <= 80.0, "{case}: {high} of 660 Hz");
            if second == 0.0 {
                // A seam would be heard: it is noise.
                assert!(rest <= 80.0, "{case}: noise of {rest}");
            }
            session.close().await;
        }
    });
    join_all(sessions).await;
}

/// How much of the loop is in each piece of sound, which began with the clip's first sample; and the sound without it.
fn without(sound: &[i16], clip: &[i16], piece: usize) -> (Vec<f64>, Vec<i16>) {
    let (mut gains, mut rest) = (Vec::new(), Vec::new());
    for (n, sound) in sound.chunks(piece).enumerate() {
        let place = |m: usize| f64::from(clip[(n * piece + m) % clip.len()]);
        let pairs = || {
            sound
                .iter()
                .enumerate()
                .map(|(m, s)| (f64::from(*s), place(m)))
        };
        let (common, energy) = pairs().fold((0.0, 0.0), |(common, energy), (sound, clip)| {
            (common + sound * clip, energy + clip * clip)
        });
        let gain = common / energy;
        rest.extend(pairs().map(|(sound, clip)| (sound - gain * clip).round() as i16));
        gains.push(gain);
    }
    (gains, rest)
}

#[tokio::test]
async fn the_loop_goes_on_beneath_speech_without_a_seam() {
    let server = Server::start();
    let clip = noise(3_000);
    let mut session = Session::open(&server, loading(wav(&clip))).await;
    session.command("loading_start").await;
    session.received(OUTPUT_SECOND / 2).await;
    session.speak("over", SENTENCES[3]).await;
    let started = session.next("tts_started").await;
    let complete = session.next("tts_playback_complete").await;
    session
        .received(session.sound().len() * OUTPUT_SECOND / 50 + OUTPUT_SECOND / 2)
        .await;
    session.command("loading_stop").await;
    session.until_silent().await;

    let sound = decoded(&session.sound(), OUTPUT).into_samples();
    // Long enough that speech looks unlike noise.
    let piece = frames(Duration::from_millis(200));
    let (gains, rest) = without(steady_from_begin(&sound), clip.samples(), piece);
    let gains = &gains[1..gains.len() - 1];
    let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
    let most = gains.iter().copied().fold(0.0, f64::max);
    assert!(least > 0.15 && most < 1.25, "{gains:.2?}");
    assert!((gains[0] - 1.0).abs() < 0.02, "{gains:.2?}");
    assert!((gains.last().unwrap() - 1.0).abs() < 0.05, "{gains:.2?}");

    let heard = transcribed(&Pcm::new(OUTPUT.layout, rest));
    assert!(share_of_words(SENTENCES[3], &heard) >= 0.8, "{heard}");
    let expected = spoken(&server, SENTENCES[3], OUTPUT).await.duration();
    let lasted = complete.time("duration_ms");
    assert!(
        lasted.abs_diff(expected) <= CHUNK,
        "{lasted:?} instead of {expected:?}"
    );
    assert!(complete.at - started.at + LEAD >= expected);
    session.close().await;
}

/// The sound without its end.
fn steady_from_begin(sound: &[i16]) -> &[i16] {
    &sound[..sound.len() - frames(FADE + CHUNK)]
}

#[tokio::test]
async fn starting_and_stopping_twice_is_the_same_as_once() {
    let server = Server::start();
    let clip = noise(3_000);
    let mut session = Session::open(&server, loading(wav(&clip))).await;
    session.command("loading_stop").await;
    session.command("loading_start").await;
    session.received(OUTPUT_SECOND / 2).await;
    session.command("loading_start").await;
    session.received(OUTPUT_SECOND).await;
    session.command("loading_stop").await;
    session.command("loading_stop").await;
    session.until_silent().await;
    let sound = decoded(&session.sound(), OUTPUT).into_samples();
    let clip = clip.samples();
    let range = frames(FADE)..sound.len() - frames(FADE + CHUNK);
    let same = range
        .clone()
        .all(|n| (sound[n] - clip[n % clip.len()]).abs() <= 1);
    assert!(same, "the loop began again");
    assert_eq!(session.events_of("error").len(), 0);

    // And it can be started anew.
    let before = session.sound().len();
    session.command("loading_start").await;
    session.received((before + 20) * OUTPUT_SECOND / 50).await;
    session.close().await;
}

#[tokio::test]
async fn clear_stops_speech_and_not_the_loop() {
    let server = Server::start();
    let clip = noise(1_500);
    let mut session = Session::open(&server, loading(wav(&clip))).await;
    session.command("loading_start").await;
    session.speak("long", &SENTENCES.join(" ")).await;
    session.next("tts_started").await;
    session.received(OUTPUT_SECOND).await;
    session.command("clear").await;
    let interrupted = session.next("tts_interrupted").await;
    let before = interrupted.chunks_before;
    session.received((before + 50) * OUTPUT_SECOND / 50).await;
    // What comes behind the event is the loop alone, wherever it is.
    let sound = decoded(&session.sound()[before..], OUTPUT).into_samples();
    let clip = clip.samples();
    let matches = |shift: &usize| {
        let mut pairs = sound.iter().zip(clip.iter().cycle().skip(*shift));
        pairs.all(|(sound, clip)| (sound - clip).abs() <= 1)
    };
    assert!((0..clip.len()).any(|shift| matches(&shift)), "not the loop");
    session.close().await;
}

#[tokio::test]
async fn a_bad_clip_is_an_error_and_the_session_runs_without_it() {
    let ok = tone(OUTPUT.layout, 440.0, 8_000.0, Duration::from_secs(1));
    let lasting = |layout, time| wav(&Pcm::silence(layout, time));
    let wide = Layout::new(SampleRate::HZ_48000, Channels::Stereo);
    let mut eight_bits = wav_file(&ok);
    eight_bits[34] = 8;
    let file = |bytes: &[u8]| json!({"data": BASE64.encode(bytes)});
    let without = |field: &str| {
        let mut clip = pcm(&ok);
        clip.as_object_mut().unwrap().remove(field);
        clip
    };
    let table = [
        ("nothing", json!({"data": ""})),
        ("no base64", json!({"data": "***", "format": "wav"})),
        ("no sound", file(&[0; 44])),
        ("a header only", file(&wav_file(&ok)[..44])),
        ("8 bits", file(&eight_bits)),
        (
            "too short",
            lasting(OUTPUT.layout, Duration::from_millis(249)),
        ),
        (
            "too long",
            lasting(OUTPUT.layout, Duration::from_millis(10_001)),
        ),
        ("too large", lasting(wide, Duration::from_millis(10_001))),
        ("no rate", without("sample_rate")),
        ("low rate", with(pcm(&ok), json!({"sample_rate": 7_999}))),
        ("high rate", with(pcm(&ok), json!({"sample_rate": 96_000}))),
        ("three channels", with(pcm(&ok), json!({"channels": 3}))),
        ("another format", with(wav(&ok), json!({"format": "mp3"}))),
    ];
    let server = Server::start();
    for (case, clip) in table {
        let mut session = Session::connect(&server).await;
        session.send(loading(clip)).await;
        let (mut error, mut ready) = (None, false);
        while error.is_none() || !ready {
            let event = session.next_of(&["ready", "error"]).await;
            match event.kind() {
                "ready" => ready = true,
                _ => error = Some(event),
            }
        }
        let error = error.unwrap();
        assert_eq!(error["code"], "invalid_loading_audio", "{case}: {error}");
        assert_eq!(error["fatal"], false, "{case}: {error}");
        session.command("loading_start").await;
        session.refused("loading_unavailable").await;
        session.close().await;
    }
}

#[tokio::test]
async fn a_loop_needs_a_clip_and_samples_to_mix_it_with() {
    let server = Server::start();
    let mut without = Session::open(&server, config(json!({}))).await;
    without.command("loading_start").await;
    without.refused("loading_unavailable").await;
    without.command("loading_stop").await;
    without.speak("x", "Yes.").await;
    without.completion_of("x").await;
    without.close().await;

    let clip = wav(&noise(3_000));
    for format in ["mulaw", "wav", "opus", "ogg_opus", "mp3"] {
        let config = says(json!({"audio_format": format}));
        let config = with(config, json!({"loading_audio": clip}));
        let mut session = Session::open(&server, config).await;
        session.command("loading_start").await;
        session.refused("loading_unavailable").await;
        session.close().await;
    }
}
