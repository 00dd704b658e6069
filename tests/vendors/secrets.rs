//! Vendors' credentials, the server's own and its callers', with sessions that are really opened and really refused: none
//! of them is in any log line, answer, event, count, span or `Debug` text, with our crates at trace.

use std::fmt::Write;

use futures_util::future::join_all;
use serde_json::{Value, json};
use vivavoce::actors::session::protocol::ClientMessage;
use vivavoce::audio::{SampleRate, linear16};
use vivavoce::config::Config;
use vivavoce::emulators::Vendor;
use vivavoce::emulators::visit::Record;
use vivavoce::providers::{Credential, OwnCredential};

use super::{Backed, google, scripted, stt_request, tone_words};
use crate::harness::{PATIENCE, Server, VIVAVOCE, client, stdout, tts_request};
use crate::session::client::{Session, config};
use crate::telemetry::Collector;

/// In every credential.
const SECRET: &str = "mArKeR-91cd";
const RATE: SampleRate = SampleRate::HZ_16000;

/// Whose credential it is, and whether the vendor takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Servers,
    Callers,
}

/// A key by which it can be told whose it was. The emulators take none that begins with `bad`.
fn key(good: bool, whose: &str, vendor: Vendor) -> String {
    let prefix = if good { "good" } else { "bad" };
    format!("{prefix}-{SECRET}-{whose}-{}", vendor.slug())
}

/// The `auth` of a caller; empty where the server's credential is meant.
fn auth(backed: &Backed, vendor: Vendor, whose: Whose, good: bool) -> Value {
    let key = key(good, "callers", vendor);
    match (whose, vendor) {
        (Whose::Servers, _) => json!({}),
        (Whose::Callers, Vendor::Google) => {
            json!({"credentials": google::account(&backed.emulators, &key)})
        }
        (Whose::Callers, Vendor::Azure) => json!({"api_key": key, "region": "westeurope"}),
        (Whose::Callers, _) => json!({"api_key": key}),
    }
}

/// Everything that one caller is told by `/speak` and by a session, which both come to what they should.
async fn told(backed: &Backed, vendor: Vendor, whose: Whose, good: bool) -> String {
    let slug = vendor.slug();
    let auth = auth(backed, vendor, whose, good);
    let speech = json!({"provider": slug, "model": "", "sample_rate": RATE.hz(), "auth": auth});
    let url = format!("{}/speak", backed.server.url);
    let body = json!({"text": "201 202", "tts_config": speech});
    let answer = client().post(url).json(&body).send().await.unwrap();
    let status = answer.status().as_u16();
    let expected = match whose {
        _ if good => 200,
        Whose::Servers => 500,
        Whose::Callers => 400,
    };
    let mut told = format!("{:?}\n", answer.headers());
    let body = answer.bytes().await.unwrap();
    let body = String::from_utf8_lossy(&body);
    assert_eq!(status, expected, "{slug} {whose:?}");
    if !good {
        assert!(body.contains("PROVIDER_AUTH"), "{slug} {whose:?}: {body}");
    }
    told += &body;

    let mut session = Session::connect(&backed.server).await;
    let listen = json!({"provider": slug, "sample_rate": RATE.hz(), "auth": auth});
    session
        .send(config(json!({
            "stt_config": listen, "tts_config": speech, "vad": {"enabled": false},
        })))
        .await;
    let opened = session.next_of(&["ready", "error"]).await;
    // Some vendors look at a credential only when there is something to do.
    if opened.kind() == "ready" {
        session.speak("u", "201 202").await;
        let mut sound = tone_words(100..106, RATE);
        sound.resize(sound.len() + RATE.hz() as usize, 0);
        for frame in sound.chunks(RATE.hz() as usize / 50) {
            session.send_sound(linear16::encode(frame)).await;
        }
        if good {
            session.completion_of("u").await;
            session.until_heard(6, PATIENCE).await;
        } else {
            session.next("error").await;
        }
    }
    for event in session.events() {
        writeln!(told, "{event}").unwrap();
    }
    let refused = session.events_of("error");
    assert_eq!(refused.is_empty(), good, "{slug} {whose:?}: {refused:?}");
    session.close().await;
    told
}

/// What a server tells of itself and its voices.
async fn asked(server: &Server) -> String {
    let mut told = String::new();
    for path in ["/voices", "/metrics", "/sessions", "/openapi.json"] {
        let answer = client().get(format!("{}{path}", server.url)).send().await;
        told += &answer.unwrap().text().await.unwrap();
    }
    for vendor in Vendor::STREAMING {
        let url = format!("{}/voices?provider={}", server.url, vendor.slug());
        told += &client()
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
    }
    told
}

/// No line holds a credential: neither a key nor a line of a private key in PEM.
fn assert_clean(text: &str, private_key: &str) {
    let pem: Vec<_> = private_key
        .lines()
        .filter(|line| !line.contains("KEY"))
        .collect();
    assert!(pem.len() > 10);
    for line in text.lines() {
        let leaked = line.contains(SECRET) || pem.iter().any(|part| line.contains(part));
        assert!(!leaked, "{line}");
    }
}

async fn nothing_is_told(good: bool) {
    let collector = Collector::start();
    let more = [
        ("LOG_LEVEL", "trace"),
        ("LOG_FORMAT", "json"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str()),
    ];
    let mut backed = Backed::keyed(
        scripted(&[]).await,
        |vendor| key(good, "servers", vendor),
        &more,
        Server::start_logged,
    );
    let mut text = String::new();
    for whose in [Whose::Servers, Whose::Callers] {
        let all = Vendor::STREAMING.map(|vendor| told(&backed, vendor, whose, good));
        text += &join_all(all).await.concat();
    }
    text += &asked(&backed.server).await;
    for vendor in Vendor::STREAMING {
        for direction in ["stt", "tts"] {
            let mut records = backed.emulators.emulation.log.all();
            // Whom Google gives no token does not come as far as that.
            let comes = |record: &Record| !good || record.direction == direction;
            records.retain(|record| record.vendor == vendor.slug() && comes(record));
            let asked = records.len();
            assert!(asked >= 2, "{} {direction}: {asked}", vendor.slug());
        }
    }
    let log = backed.server.log();
    assert!(
        log.contains("\"DEBUG\""),
        "the server was not at trace:\n{log}"
    );
    let spans = collector.spans();
    assert!(!spans.is_empty());
    writeln!(text, "{log}\n{spans:?}").unwrap();
    let account = google::account(&backed.emulators, "");
    assert_clean(&text, account["private_key"].as_str().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_credential_that_opens_a_vendors_door_is_told_to_anybody() {
    nothing_is_told(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_credential_that_a_vendor_refuses_is_told_to_anybody() {
    nothing_is_told(false).await;
}

#[tokio::test]
async fn no_debug_text_of_what_carries_a_credential_shows_it() {
    let own: OwnCredential = serde_json::from_value(json!({"api_key": SECRET})).unwrap();
    let credential = Credential::new([("api_key", vivavoce::config::Secret::new(SECRET))]);
    let (mut listen, mut speech) = (stt_request(RATE), tts_request(None));
    listen.credential = Some(credential.clone());
    speech.credential = Some(credential.clone());
    let mut text = format!("{own:?} {credential:?} {listen:?} {speech:?}");
    let mut flags = Vec::new();
    for vendor in Vendor::STREAMING {
        let auth = json!({"api_key": SECRET, "region": "eastus", "credentials": SECRET});
        let message = config(json!({
            "stt_config": {"provider": vendor.slug(), "auth": auth},
            "tts_config": {"provider": vendor.slug(), "model": "", "auth": auth},
        }));
        let message = ClientMessage::parse(message.to_string().as_bytes()).unwrap();
        write!(text, "{message:?}").unwrap();
        let key = match vendor {
            Vendor::Google => continue,
            Vendor::Azure => "providers.azure.subscription_key".to_owned(),
            _ => format!("providers.{}.api_key", vendor.slug()),
        };
        flags.push((key, SECRET.to_owned()));
    }
    let loaded = Config::load(&flags, None).unwrap();
    let table = vivavoce::server::providers(&loaded.settings).unwrap();
    for vendor in Vendor::STREAMING.map(Vendor::slug) {
        let known =
            table.speech_to_text(vendor).is_some() && table.text_to_speech(vendor).is_some();
        assert!(known, "{vendor} has no credential");
    }
    write!(text, "{loaded:?}").unwrap();
    let printed = std::process::Command::new(VIVAVOCE)
        .arg("print-config")
        .env("DEEPGRAM_API_KEY", SECRET)
        .output();
    text += &stdout(&printed.unwrap());
    assert!(text.contains("providers.deepgram.api_key"));
    assert!(!text.contains(SECRET), "{text}");
}
