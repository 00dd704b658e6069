//! Telephones of a team that register here, and certificates of those who connect.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::rig::baresip::{Baresip, Kind};
use super::rig::certificates;
use super::{Exchange, PHONE, ROOM};
use crate::rooms::ask;

/// The telephone of the settings once it is somewhere.
async fn registered(exchange: &Exchange) -> Value {
    let there = |shown: &Value| {
        let phone = &shown["sip_phones"][0];
        phone["address"].is_string().then(|| phone.clone())
    };
    exchange.shown_once("registered telephone", there).await
}

#[tokio::test]
async fn a_softphone_registers_and_is_called_by_its_name() {
    let phones = json!([{"user": "bob", "password": "softphone-1"}]);
    let exchange = Exchange::with(&[("SIP_PHONES_JSON", &phones.to_string())]);
    let account = |password: &str| {
        format!(
            "<sip:bob@{}>;auth_user=bob;auth_pass={password};regint=60;answermode=auto;audio_codecs=PCMU/8000",
            exchange.address()
        )
    };
    let mut stranger = Baresip::start().await;
    stranger.command("uanew", &account("guessed-guessed")).await;
    stranger.next("REGISTER_FAIL").await;
    let mut telephone = Baresip::start().await;
    telephone.command("uanew", &account("softphone-1")).await;
    telephone.next("REGISTER_OK").await;
    let phone = registered(&exchange).await;
    assert_eq!(phone["address"], telephone.address());
    let body = json!({
        "room_name": ROOM, "participant_name": "Bob", "participant_identity": PHONE,
        "from_phone_number": "100", "to_sip_uri": "sip:bob",
    });
    let (status, placed) = ask(&exchange.server, Method::POST, "/sip/call", None, &body).await;
    assert_eq!(status, 200, "{placed}");
    telephone.next("CALL_ESTABLISHED").await;
    exchange
        .answered(placed["sip_call_id"].as_str().unwrap())
        .await;
    telephone.hang_up().await;
}

#[tokio::test]
async fn who_connects_without_a_certificate_is_not_listened_to_where_one_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (both, alone) = certificates(folder.path());
    let key = folder.path().join("key.pem").display().to_string();
    let alone = alone.display().to_string();
    let other = tempfile::tempdir().unwrap();
    let (others, _) = certificates(other.path());
    let exchange = Exchange::with(&[
        ("SIP_TLS_CERT", &alone),
        ("SIP_TLS_KEY", &key),
        ("SIP_TLS_CLIENT_CA", &alone),
    ]);
    let address = format!(
        "sip:+14155550123@127.0.0.1:{};transport=tls",
        exchange.port + 1
    );
    let telephone = async |certificate| {
        let kind = Kind {
            transport: "tls",
            certificate: Some(certificate),
            ..Kind::default()
        };
        let mut telephone = Baresip::of(kind).await;
        telephone.dial(&address).await;
        telephone
    };
    // It finds its connection closed again and again.
    let _unknown = telephone(others).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(exchange.calls().await.is_empty());
    let mut known = telephone(both).await;
    known.next("CALL_ESTABLISHED").await;
    assert_eq!(exchange.calls().await.len(), 1);
}
