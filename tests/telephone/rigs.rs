//! The phones of these tests against each other, without our server: a failure here is a problem of the rig.

use super::NUMBER;
use super::rig::baresip::{Baresip, Kind};
use super::rig::certificates;
use super::rig::kamailio::Kamailio;
use super::rig::sipp::{Run, Scenario, Sipp};
use super::rig::softphone::{Kind as Softphone, Sort};
use crate::harness::is_long;

#[tokio::test]
async fn baresip_hears_what_another_plays_and_the_keys_that_it_presses() {
    let mut called = Baresip::of(Kind {
        hertz: 700,
        ..Kind::default()
    })
    .await;
    let mut caller = Baresip::start().await;
    caller
        .dial(&format!("sip:{NUMBER}@{}", called.address()))
        .await;
    caller.next("CALL_ESTABLISHED").await;
    called.next("CALL_ESTABLISHED").await;
    caller.hears(700).await;
    called.hears(440).await;
    caller.press("12#").await;
    for digit in ["1", "2", "#"] {
        assert_eq!(called.next("CALL_DTMF_START").await["param"], digit);
    }
    called.hang_up().await;
    caller.next("CALL_CLOSED").await;
}

#[tokio::test]
async fn sipp_calls_through_a_proxy_that_wants_a_password() {
    let telephone = Baresip::start().await;
    let proxy = Kamailio::start(telephone.port, "alice", "secret").await;
    let mut caller = Baresip::of(Kind {
        credentials: Some(("alice", "secret")),
        ..Kind::default()
    })
    .await;
    caller
        .dial(&format!("sip:{NUMBER}@127.0.0.1:{}", proxy.port))
        .await;
    caller.next("CALL_ESTABLISHED").await;
    caller.hang_up().await;
    caller.next("CALL_CLOSED").await;
    let scenario = Scenario::is_refused("", 407);
    let mut stranger = Sipp::call(&scenario, NUMBER, &format!("127.0.0.1:{}", proxy.port));
    stranger.passed().await;
}

#[tokio::test]
async fn sipp_does_what_its_scenario_says() {
    let mut refuses = Sipp::start(Scenario::called().reply("486 Busy Here").receive("ACK")).await;
    Sipp::call(
        &Scenario::is_refused("X-A: b\n", 486),
        "x",
        &refuses.address(),
    )
    .passed()
    .await;
    refuses.passed().await;
    assert!(refuses.messages().contains("X-A: b"));

    let scenario = Scenario::answers()
        .offer("sendonly")
        .response(200)
        .acknowledge()
        .ended();
    let mut called = Sipp::start(scenario).await;
    let scenario = Scenario::is_answered("")
        .receive("INVITE")
        .answer()
        .receive("ACK")
        .ends();
    let mut caller = Sipp::call(&scenario, "x", &called.address());
    caller.passed().await;
    called.passed().await;
}

#[tokio::test]
async fn sipp_checks_passwords() {
    let scenario = Scenario::called()
        .challenge("alice", "secret")
        .answer()
        .receive("ACK")
        .ended();
    for (password, established) in [("secret", true), ("wrong", false)] {
        let mut called = Sipp::start(scenario.clone()).await;
        let mut caller = Baresip::of(Kind {
            credentials: Some(("alice", password)),
            ..Kind::default()
        })
        .await;
        caller
            .dial(&format!("sip:{NUMBER}@{}", called.address()))
            .await;
        if established {
            caller.next("CALL_ESTABLISHED").await;
            caller.hang_up().await;
        }
        caller.next("CALL_CLOSED").await;
        called.passed().await;
    }
}

#[tokio::test]
async fn sipp_plays_a_tone_over_tcp_too() {
    let mut called = Baresip::start().await;
    let scenario = Scenario::called()
        .tone(600)
        .answer()
        .receive("ACK")
        .play()
        .ended();
    let mut plays = Sipp::start_with(
        scenario,
        Run {
            transport: "t1",
            ..Run::default()
        },
    )
    .await;
    called
        .dial(&format!("sip:{NUMBER}@{};transport=tcp", plays.address()))
        .await;
    called.next("CALL_ESTABLISHED").await;
    called.hears(600).await;
    called.hang_up().await;
    plays.passed().await;
}

#[tokio::test]
async fn sipp_transfers_and_tells_how_it_went() {
    let mut caller = Baresip::start().await;
    let mut sipp = Sipp::start(
        Scenario::answers()
            .transfers(&["100 Trying", "200 OK"])
            .ended(),
    )
    .await;
    caller
        .dial(&format!("sip:{NUMBER}@{}", sipp.address()))
        .await;
    caller.next("CALL_ESTABLISHED").await;
    caller.command("transfer", "sip:carol@127.0.0.1:9").await;
    sipp.passed().await;
}

#[tokio::test]
async fn sipp_rings_until_it_is_cancelled() {
    let mut sipp = Sipp::start(Scenario::called().reply("180 Ringing").cancelled()).await;
    let mut caller = Baresip::start().await;
    caller
        .dial(&format!("sip:{NUMBER}@{}", sipp.address()))
        .await;
    caller.next("CALL_RINGING").await;
    caller.hang_up().await;
    sipp.passed().await;
}

#[tokio::test]
async fn baresip_speaks_wideband_in_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, _) = certificates(folder.path());
    let kind = |hertz| Kind {
        codec: "G722/16000",
        encryption: "srtp-mand",
        certificate: Some(certificate.clone()),
        transport: "tls",
        hertz,
        ..Kind::default()
    };
    let mut called = Baresip::of(kind(700)).await;
    let mut caller = Baresip::of(kind(440)).await;
    caller
        .dial(&format!(
            "sip:{NUMBER}@127.0.0.1:{};transport=tls",
            called.port + 1
        ))
        .await;
    caller.next("CALL_ESTABLISHED").await;
    caller.hears(700).await;
    called.hears(440).await;
}

/// With `VIVAVOCE_LONG`.
#[tokio::test]
async fn linphone_and_twinkle_hear_each_other_and_their_keys() {
    if !is_long() {
        return;
    }
    let kind = Softphone {
        hertz: 700,
        ..Softphone::default()
    };
    let mut called = Sort::Twinkle.of(kind).await;
    let mut caller = Sort::Linphone.start().await;
    caller.dial(&format!("sip:{NUMBER}@{}", called.address()));
    called.answers().await;
    caller.established().await;
    caller.hears(700).await;
    called.hears(440).await;
    caller.press("12#");
    called.is_pressed("12#").await;
    called.press("0");
    caller.is_pressed("0").await;
    called.hang_up();
    caller.closed().await;
}
