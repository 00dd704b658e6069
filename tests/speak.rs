//! `POST /speak` as a client sees it: every format and rate, the cache, and every error.

use serde_json::{Value, json};

use crate::harness::*;

const SENTENCE: &str = "The weather is very nice in the summer.";

/// Formats with the rates to try, how ffprobe names the codec, and its options for headerless sound.
const TABLE: &[(&str, &[u32], &str, Option<&str>)] = &[
    (
        "linear16",
        &[8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000],
        "pcm_s16le",
        Some("s16le"),
    ),
    (
        "wav",
        &[8000, 12345, 16000, 22050, 24000, 32000, 44100, 48000],
        "pcm_s16le",
        None,
    ),
    (
        "mulaw",
        &[8000, 16000, 24000, 48000],
        "pcm_mulaw",
        Some("mulaw"),
    ),
    (
        "alaw",
        &[8000, 16000, 24000, 48000],
        "pcm_alaw",
        Some("alaw"),
    ),
    (
        "mp3",
        &[16000, 22050, 24000, 32000, 44100, 48000],
        "mp3",
        None,
    ),
    (
        "ogg_opus",
        &[8000, 12000, 16000, 24000, 48000],
        "opus",
        None,
    ),
];

#[actix_web::test]
async fn every_format_and_rate_of_the_table_is_the_same_sentence() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let reference = speak(
        &server,
        SENTENCE,
        json!({"audio_format": "linear16", "sample_rate": 16000}),
    )
    .await;
    let reference = reference.bytes().await.unwrap().len() as f64 / 32_000.0;
    assert!((1.5..5.0).contains(&reference), "{reference} s");
    for &(format, rates, codec, raw) in TABLE {
        let media_type = match format {
            "linear16" => "audio/pcm",
            "mulaw" => "audio/basic",
            "alaw" => "audio/x-alaw-basic",
            "mp3" => "audio/mpeg",
            "ogg_opus" => "audio/ogg",
            _ => "audio/wav",
        };
        for rate in some_of(rates, 3) {
            let answer = speak(
                &server,
                SENTENCE,
                json!({"audio_format": format, "sample_rate": rate}),
            )
            .await;
            let case = format!("{format} at {rate} Hz");
            assert_eq!(answer.status(), 200, "{case}");
            assert_eq!(answer.headers()["content-type"], media_type, "{case}");
            assert_eq!(answer.headers()["x-provider"], "local", "{case}");
            assert_eq!(answer.headers()["x-audio-format"], format, "{case}");
            assert_eq!(
                answer.headers()["x-sample-rate"],
                rate.to_string(),
                "{case}"
            );
            let length = answer.content_length().unwrap();
            let sound = answer.bytes().await.unwrap();
            assert_eq!(sound.len() as u64, length, "{case}");
            let extension = if format == "ogg_opus" { "ogg" } else { format };
            let file = folder.path().join(format!("{rate}.{extension}"));
            std::fs::write(&file, &sound).unwrap();
            let hz = rate.to_string();
            let raw_options = raw.map_or(vec![], |name| vec!["-f", name, "-ar", &hz, "-ac", "1"]);
            let probed = ffprobe(&file, &raw_options);
            assert_eq!(probed["streams"][0]["codec_name"], codec, "{case}");
            // Opus files are always decoded at 48 kHz (RFC 7845, section 5.1).
            let decoded_rate = if format == "ogg_opus" { "48000" } else { &hz };
            assert_eq!(probed["streams"][0]["sample_rate"], decoded_rate, "{case}");
            let duration: f64 = probed["format"]["duration"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            // MP3 pads to whole frames and has the encoder's delay in front.
            let tolerance = if format == "mp3" { 0.15 } else { 0.011 };
            assert!(
                (duration - reference).abs() < tolerance,
                "{case}: {duration} s instead of {reference} s"
            );
            let heard = transcribe_as(&file, raw.map(|_| (format, rate)));
            let share = share_of_words(SENTENCE, &heard);
            let expected = if rate < 16_000 { 0.5 } else { 0.85 };
            assert!(
                share >= expected,
                "{case}: {:.0} % of the words, heard {heard:?}",
                share * 100.0
            );
        }
    }
}

/// What our own `transcribe` hears in a file; headerless sound gets a header first.
fn transcribe_as(file: &std::path::Path, raw: Option<(&str, u32)>) -> String {
    let with_header = file.with_extension("headed.wav");
    let file = match raw {
        None => file,
        Some((format, rate)) => {
            let encoding = match format {
                "mulaw" => ["-e", "mu-law", "-b", "8"],
                "alaw" => ["-e", "a-law", "-b", "8"],
                _ => ["-e", "signed-integer", "-b", "16"],
            };
            let rate = rate.to_string();
            let input = ["-t", "raw", "-r", &rate, "-c", "1"]
                .into_iter()
                .chain(encoding)
                .map(Into::into);
            let files = [
                file.as_os_str().to_owned(),
                with_header.as_os_str().to_owned(),
            ];
            run(
                "sox",
                input.chain(files).collect::<Vec<std::ffi::OsString>>(),
            );
            &with_header
        }
    };
    let output = vivavoce(["transcribe".as_ref(), file.as_os_str()]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[actix_web::test]
async fn who_asks_for_the_content_type_of_the_specification_gets_it() {
    let server = Server::start();
    // Clients of another server of the family expect it without asking.
    let of_others = Server::start_with(&[("DIALECT_SERVICE", "vox")]);
    for (server, format, accept, expected) in [
        (&server, "mp3", "*/*", "audio/mpeg"),
        (&server, "wav", "text/html, Audio/PCM;q=0.9", "audio/pcm"),
        (&server, "wav", "audio/pcm, audio/wav", "audio/wav"),
        (&of_others, "mp3", "audio/mpeg", "audio/mpeg"),
        (&of_others, "wav", "text/html, audio/wav;q=0.9", "audio/wav"),
        (&of_others, "ogg_opus", "AUDIO/OGG", "audio/ogg"),
        (&of_others, "mp3", "*/*", "audio/pcm"),
        (&of_others, "mp3", "audio/*", "audio/pcm"),
        (&of_others, "wav", "audio/mpeg", "audio/pcm"),
    ] {
        let body = json!({"text": "Yes.", "tts_config": local(json!({"audio_format": format}))});
        let request = client()
            .post(format!("{}/speak", server.url))
            .header("accept", accept)
            .json(&body);
        let answer = request.send().await.unwrap();
        assert_eq!(
            answer.headers()["content-type"],
            expected,
            "{format} for {accept}"
        );
    }
}

#[actix_web::test]
async fn speaking_rates_from_a_quarter_to_four_last_as_long_as_they_should() {
    let server = Server::start();
    let duration = async |rate: f64| {
        let answer = speak(
            &server,
            SENTENCE,
            json!({"sample_rate": 16000, "speaking_rate": rate}),
        )
        .await;
        answer.bytes().await.unwrap().len() as f64 / 32_000.0
    };
    let normal = duration(1.0).await;
    for rate in [0.25, 0.5, 0.8, 1.25, 2.0, 4.0] {
        let ratio = normal / duration(rate).await;
        assert!(
            (ratio / rate - 1.0).abs() < 0.1,
            "speaking rate {rate} is {ratio:.2} times as fast"
        );
    }
}

#[actix_web::test]
async fn pronunciations_change_what_is_said() {
    let server = Server::start();
    let fields = json!({"audio_format": "wav", "sample_rate": 16000, "pronunciations": [
        {"word": "sunday", "pronunciation": "summer"},
    ]});
    let answer = speak(&server, "The weather is very nice in the Sunday.", fields).await;
    let file = tempfile::Builder::new().suffix(".wav").tempfile().unwrap();
    std::fs::write(file.path(), answer.bytes().await.unwrap()).unwrap();
    let heard = words(&transcribe_as(file.path(), None));
    assert!(
        heard.contains(&"summer".to_owned()) && !heard.contains(&"sunday".to_owned()),
        "{heard:?}"
    );
}

#[actix_web::test]
async fn the_second_identical_request_comes_from_the_cache_also_after_a_restart() {
    let server = Server::start();
    let first = speak(&server, SENTENCE, json!({"audio_format": "wav"})).await;
    assert_eq!(first.headers()["x-cache"], "miss");
    let first = first.bytes().await.unwrap();
    let second = speak(&server, SENTENCE, json!({"audio_format": "wav"})).await;
    assert_eq!(second.headers()["x-cache"], "hit");
    assert_eq!(second.bytes().await.unwrap(), first);
    let other = speak(
        &server,
        SENTENCE,
        json!({"audio_format": "wav", "speaking_rate": 1.1}),
    )
    .await;
    assert_eq!(other.headers()["x-cache"], "miss");

    let server = Server::start_in(server.into_data(), &[]);
    let third = speak(&server, SENTENCE, json!({"audio_format": "wav"})).await;
    assert_eq!(third.headers()["x-cache"], "hit");
    assert_eq!(third.bytes().await.unwrap(), first);
}

#[actix_web::test]
async fn a_cache_that_is_switched_off_keeps_nothing() {
    let server = Server::start_with(&[("CACHE_ENABLED", "false")]);
    for _ in 0..2 {
        assert_eq!(
            speak(&server, "Yes.", json!({})).await.headers()["x-cache"],
            "miss"
        );
    }
    assert!(!server.data.path().join("cache").exists());
}

#[actix_web::test]
async fn identical_requests_at_the_same_time_are_synthesised_once() {
    // Each synthesis says its own number, and waits until all requests have come.
    let programs = Programs::new();
    let gate = programs.0.path().join("gate");
    let flite = which("flite");
    let script = format!(
        "case \"$*\" in *-lv*) exec {flite} \"$@\";; esac\n\
         while ! [ -e {gate} ]; do sleep 0.01; done\nexec {flite} -voice slt -t \"$$\" -o /dev/stdout",
        flite = flite.display(),
        gate = gate.display(),
    );
    let programs = programs.script("flite", &script);
    let server = Server::start_with(&[("PATH", &programs.first())]);
    let body = json!({"text": "Once.", "tts_config": local(json!({}))});
    let request = || async {
        let answer = post_speak(&server, body.clone()).await;
        assert_eq!(answer.status(), 200);
        answer.bytes().await.unwrap()
    };
    let gate_opens = async {
        let says = || !server.children("flite").is_empty();
        eventually("nothing was said", says).await;
        // The other requests are long on their way; those that come later find the flight or the cache.
        std::fs::write(&gate, "").unwrap();
    };
    let (sounds, ()) = tokio::join!(
        futures_util::future::join_all((0..20).map(|_| request())),
        gate_opens
    );
    assert!(
        sounds
            .iter()
            .all(|sound| *sound == sounds[0] && !sound.is_empty())
    );
}

#[actix_web::test]
async fn a_stream_begins_before_the_synthesis_ends() {
    // The second sentence waits until the first has been heard.
    let programs = Programs::new();
    let gate = programs.0.path().join("gate");
    let flite = which("flite");
    let script = format!(
        "text=$(cat)\ncase \"$text $*\" in *second*) while ! [ -e {gate} ]; do sleep 0.01; done;; esac\n\
         printf '%s' \"$text\" | exec {flite} \"$@\"",
        flite = flite.display(),
        gate = gate.display(),
    );
    let programs = programs.script("flite", &script);
    let server = Server::start_with(&[("PATH", &programs.first())]);
    let body =
        json!({"text": "The first sentence. The second sentence.", "tts_config": local(json!({}))});
    let request = client()
        .post(format!("{}/speak?stream=true", server.url))
        .json(&body);
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let first = answer.chunk().await.unwrap().unwrap();
    assert!(!first.is_empty());
    std::fs::write(&gate, "").unwrap();
    let mut length = first.len();
    while let Some(chunk) = answer.chunk().await.unwrap() {
        length += chunk.len();
    }
    let whole = post_speak(&server, body).await;
    assert_eq!(whole.headers()["x-cache"], "hit");
    assert_eq!(whole.bytes().await.unwrap().len(), length);
}

#[actix_web::test]
async fn every_bad_request_gets_its_own_error() {
    let server = Server::start();
    let text = "Yes.";
    let long = "x".repeat(32 * 1024 + 1);
    for (body, code, part) in [
        (
            json!({"tts_config": local(json!({}))}),
            "INVALID_REQUEST",
            "text",
        ),
        (
            json!({"text": "", "tts_config": local(json!({}))}),
            "INVALID_REQUEST",
            "text",
        ),
        (
            json!({"text": " \n", "tts_config": local(json!({}))}),
            "INVALID_REQUEST",
            "text",
        ),
        (
            json!({"text": null, "tts_config": local(json!({}))}),
            "INVALID_REQUEST",
            "text",
        ),
        (
            json!({"text": long, "tts_config": local(json!({}))}),
            "INVALID_REQUEST",
            "32768",
        ),
        (
            json!({"text": 5, "tts_config": local(json!({}))}),
            "INVALID_REQUEST",
            "text",
        ),
        (json!({"text": text}), "INVALID_REQUEST", "tts_config"),
        (
            json!({"text": text, "tts_config": "x"}),
            "INVALID_REQUEST",
            "tts_config",
        ),
        (
            json!({"text": text, "tts_config": {"model": ""}}),
            "INVALID_REQUEST",
            "tts_config.provider",
        ),
        (
            json!({"text": text, "tts_config": {"provider": "nobody", "model": ""}}),
            "UNSUPPORTED_PROVIDER",
            "nobody",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"sample_rate": 0}))}),
            "INVALID_REQUEST",
            "sample_rate",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"sample_rate": -1}))}),
            "INVALID_REQUEST",
            "tts_config.sample_rate",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"sample_rate": 4_000_000_000u64}))}),
            "INVALID_REQUEST",
            "sample_rate",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"audio_format": "mp3", "sample_rate": 8000}))}),
            "INVALID_REQUEST",
            "16000",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"audio_format": "aiff"}))}),
            "INVALID_REQUEST",
            "audio_format",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"audio_format": "opus"}))}),
            "INVALID_REQUEST",
            "ogg_opus",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"speaking_rate": 5}))}),
            "INVALID_REQUEST",
            "speaking_rate",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"voice_id": "nobody"}))}),
            "INVALID_REQUEST",
            "nobody",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"pronunciations": [{"word": "x"}]}))}),
            "INVALID_REQUEST",
            "pronunciations[0]",
        ),
        (
            json!({"text": text, "tts_config": local(json!({"auth": {"api_key": "x"}}))}),
            "INVALID_REQUEST",
            "auth",
        ),
        (
            json!({"text": "a ".repeat(16_000), "tts_config": local(json!({
                "pronunciations": [{"word": "a", "pronunciation": "x".repeat(1000)}],
            }))}),
            "INVALID_REQUEST",
            "65536",
        ),
        (
            json!({"text": text, "tts_config": local(json!({
                "pronunciations": [{"word": "a", "pronunciation": "x".repeat(1001)}],
            }))}),
            "INVALID_REQUEST",
            "1000",
        ),
    ] {
        assert_error(post_speak(&server, body).await, 400, code, part).await;
    }
}

#[actix_web::test]
async fn bodies_paths_and_methods_that_do_not_fit_are_refused_in_the_same_shape() {
    let server = Server::start();
    let url = |path: &str| format!("{}{path}", server.url);
    let post = |body: &str, content_type: &str| {
        client()
            .post(url("/speak"))
            .header("content-type", content_type)
            .body(body.to_owned())
            .send()
    };
    assert_error(
        post("{", "application/json").await.unwrap(),
        400,
        "INVALID_REQUEST",
        "body",
    )
    .await;
    assert_error(
        post("{} x", "application/json").await.unwrap(),
        400,
        "INVALID_REQUEST",
        "body",
    )
    .await;
    assert_error(
        post("", "application/json").await.unwrap(),
        400,
        "INVALID_REQUEST",
        "body",
    )
    .await;
    let twice = r#"{"text": "a", "tts_config": {"provider": "local", "model": "", "model": ""}}"#;
    assert_error(
        post(twice, "application/json").await.unwrap(),
        400,
        "INVALID_REQUEST",
        "tts_config.model: is given more than once",
    )
    .await;
    assert_error(
        post("{}", "text/plain").await.unwrap(),
        415,
        "UNSUPPORTED_MEDIA_TYPE",
        "application/json",
    )
    .await;
    let large = "x".repeat((1 << 20) + 1);
    assert_error(
        post(&large, "application/json").await.unwrap(),
        413,
        "PAYLOAD_TOO_LARGE",
        "1048576",
    )
    .await;
    assert_error(
        client().get(url("/nowhere")).send().await.unwrap(),
        404,
        "NOT_FOUND",
        "/nowhere",
    )
    .await;
    let bad_query = client()
        .post(url("/speak?stream=perhaps"))
        .json(&json!({}))
        .send()
        .await
        .unwrap();
    assert_error(bad_query, 400, "INVALID_REQUEST", "query").await;
    for (method, path, allow) in [
        ("GET", "/speak", "POST"),
        ("POST", "/voices", "GET, HEAD"),
        ("DELETE", "/", "GET, HEAD"),
    ] {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let answer = client().request(method, url(path)).send().await.unwrap();
        assert_eq!(answer.headers()["allow"], allow);
        assert_error(answer, 405, "METHOD_NOT_ALLOWED", allow).await;
    }
}

#[actix_web::test]
async fn a_program_that_fails_in_any_way_is_a_clear_error_and_the_next_request_works() {
    for (script, part) in [
        ("exec sleep 600", "not"),
        ("echo this is no sound", "flite"),
        ("exec yes", "flite"),
        (
            "echo the voice is broken >&2; exit 7",
            "the voice is broken",
        ),
        ("kill -9 $$", "signal"),
        ("exit 0", "flite"),
    ] {
        let listing = format!(
            "case \"$*\" in *-lv*) exec {} -lv;; esac",
            which("flite").display()
        );
        let programs = Programs::new().script("flite", &format!("{listing}\n{script}"));
        let server = Server::start_with(&[("PATH", &programs.first())]);
        let failed = speak(
            &server,
            "Yes.",
            json!({"voice_id": "flite-slt", "request_timeout": 1}),
        )
        .await;
        assert_error(failed, 500, "PROVIDER_ERROR", part).await;
        let next = speak(&server, "Ja.", json!({"voice_id": "espeak-de"})).await;
        assert_eq!(next.status(), 200, "after {script:?}");
        eventually("something is left running", || {
            let names = ["flite", "sleep", "yes"];
            names.iter().all(|name| server.children(name).is_empty())
        })
        .await;
        let cached = speak(
            &server,
            "Yes.",
            json!({"voice_id": "flite-slt", "request_timeout": 1}),
        )
        .await;
        assert_eq!(
            cached.status(),
            500,
            "a failed synthesis was kept after {script:?}"
        );
    }
}

#[actix_web::test]
async fn what_is_not_installed_is_named_with_its_package() {
    let programs = Programs::new().installed("flite");
    let server = Server::start_with(&[("PATH", &programs.only())]);
    assert_eq!(speak(&server, "Yes.", json!({})).await.status(), 200);
    let answer = speak(&server, "Yes.", json!({"audio_format": "mp3"})).await;
    assert_error(answer, 500, "SYNTHESIS_FAILED", "package lame").await;
    let none = Server::start_with(&[("PATH", &Programs::new().only())]);
    assert_error(
        speak(&none, "Yes.", json!({})).await,
        500,
        "PROVIDER_ERROR",
        "flite",
    )
    .await;
    let voices = client()
        .get(format!("{}/voices", none.url))
        .send()
        .await
        .unwrap();
    assert_eq!(voices.json::<Value>().await.unwrap(), json!({}));
}

#[actix_web::test]
async fn nobody_pays_for_speech_that_nobody_waits_for() {
    let listing = format!(
        "case \"$*\" in *-lv*) exec {} -lv;; esac",
        which("flite").display()
    );
    let programs = Programs::new().script("flite", &format!("{listing}\nexec sleep 600"));
    let server = Server::start_with(&[("PATH", &programs.first())]);
    let impatient = client();
    let body = json!({"text": "Yes.", "tts_config": local(json!({"request_timeout": 600}))});
    let request = impatient
        .post(format!("{}/speak", server.url))
        .json(&body)
        .send();
    let started = eventually("no synthesis began", || {
        !server.children("sleep").is_empty()
    });
    tokio::select! {
        _ = request => panic!("the synthesis cannot have ended"),
        () = started => {}
    }
    drop(impatient);
    eventually("the abandoned synthesis goes on", || {
        server.children("sleep").is_empty()
    })
    .await;
}
