//! Telephones that people have on their desks, Linphone and Twinkle: what they do with our server, both as who calls and as
//! who is called. With `VIVAVOCE_LONG`, as nothing else needs them.

use livekit_api::services::sip::CreateSIPInboundTrunkOptions;
use reqwest::Method;
use serde_json::{Value, json};

use super::rig::certificates_for;
use super::rig::sipp::{Scenario, Sipp};
use super::rig::softphone::{Kind, Softphone, Sort};
use super::{Exchange, PHONE, ROOM};
use crate::harness::{eventually, is_long};
use crate::rooms::client::Kind as Client;
use crate::rooms::{KEY, SECRET, ask, join, token};

/// The number that they call, and its room.
const CALLED: &str = "+14155550199";
const LOBBY: &str = "call-+14155550199";

/// Calls us at an address and is answered; gives the call.
async fn comes_in(exchange: &Exchange, softphone: &mut Softphone, address: &str) -> Value {
    softphone.dial(&format!("sip:{CALLED}@{address}"));
    softphone.established().await;
    let active = |call: &Value| call["direction"] == "inbound" && call["status"] == "active";
    exchange.until("an active inbound one", active).await
}

/// Is called and answers; gives the call's id.
async fn is_called(exchange: &Exchange, softphone: &mut Softphone) -> String {
    let id = exchange.call(&softphone.address()).await;
    softphone.answers().await;
    exchange.answered(&id).await;
    id
}

fn text<'a>(call: &'a Value, field: &str) -> &'a str {
    call[field].as_str().unwrap()
}

/// What the server tells of the sound of a call, once that is over.
async fn sound(exchange: &Exchange, id: &str) -> Value {
    exchange.ended(id).await;
    let calls = exchange.calls().await;
    let call = calls.iter().find(|call| call["sip_call_id"] == id);
    call.unwrap()["media"].clone()
}

#[tokio::test]
async fn softphones_call_and_both_sides_hear() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::start();
    let mut ann = join(&exchange.server, Client::Python, LOBBY, "ann").await;
    ann.publish(700).await;
    for (sort, codec) in [
        (Sort::Linphone, "PCMU/8000"),
        (Sort::Linphone, "PCMA/8000"),
        (Sort::Linphone, "opus/48000"),
        (Sort::Twinkle, "PCMU/8000"),
        (Sort::Twinkle, "PCMA/8000"),
    ] {
        let kind = Kind {
            codec,
            ..Kind::default()
        };
        let mut softphone = sort.of(kind).await;
        let call = comes_in(&exchange, &mut softphone, &exchange.address()).await;
        let identity = text(&call, "participant_identity");
        ann.hears(identity, 440).await;
        softphone.hears(700).await;
        softphone.hang_up();
        softphone.closed().await;
        let id = text(&call, "sip_call_id");
        assert_eq!(exchange.ended(id).await, "remote");
        let media = sound(&exchange, id).await;
        assert_eq!(media["codec"], kind.sound().0, "{media}");
    }
    ann.leave().await;
}

#[tokio::test]
async fn softphones_are_called_put_us_on_hold_and_hear_us_again() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::start();
    let mut ann = join(&exchange.server, Client::Python, ROOM, "ann").await;
    ann.publish(700).await;
    for sort in Sort::ALL {
        let mut softphone = sort.start().await;
        let id = is_called(&exchange, &mut softphone).await;
        ann.hears(PHONE, 440).await;
        softphone.hears(700).await;
        softphone.hold().await;
        ann.hears(PHONE, 0).await;
        exchange.answered(&id).await;
        softphone.resume().await;
        ann.hears(PHONE, 440).await;
        softphone.hears(700).await;
        exchange.hang_up(ROOM, PHONE).await;
        softphone.closed().await;
        assert_eq!(exchange.ended(&id).await, "local");
    }
    ann.leave().await;
}

#[tokio::test]
async fn keys_of_softphones_are_told_both_ways() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::start();
    let mut session = exchange.session(ROOM).await;
    for sort in Sort::ALL {
        for keys_by_info in [false, true] {
            let kind = Kind {
                keys_by_info,
                ..Kind::default()
            };
            let mut softphone = sort.of(kind).await;
            let id = is_called(&exchange, &mut softphone).await;
            softphone.press("42#");
            for digit in ["4", "2", "#"] {
                let event = session.next("dtmf").await;
                assert_eq!(event.text("digit"), digit, "{sort:?}");
            }
            let keys = json!({"type": "send_dtmf", "digits": "17*#"});
            session.send(keys).await;
            softphone.is_pressed("17*#").await;
            softphone.hang_up();
            assert_eq!(exchange.ended(&id).await, "remote");
        }
    }
    assert_eq!(session.events_of("dtmf").len(), 12);
    session.close().await;
}

#[tokio::test]
async fn softphones_do_not_take_every_call() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::start();
    for (sort, cause) in [(Sort::Linphone, "declined"), (Sort::Twinkle, "busy")] {
        let mut softphone = sort.start().await;
        let id = exchange.call(&softphone.address()).await;
        softphone.rings().await;
        softphone.refuse();
        assert_eq!(exchange.ended(&id).await, cause, "{sort:?}");
        let id = exchange.call(&softphone.address()).await;
        softphone.rings().await;
        exchange.hang_up(ROOM, PHONE).await;
        softphone.closed().await;
        assert_eq!(exchange.ended(&id).await, "cancelled");
    }
}

#[tokio::test]
async fn softphones_send_a_call_to_somebody_else() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::with(&[("SIP_ALLOWED_HOSTS", "127.0.0.1")]);
    for sort in Sort::ALL {
        let mut carol = Sipp::start(Scenario::answers().ended()).await;
        let mut softphone = sort.start().await;
        let id = exchange.call(&softphone.address()).await;
        softphone.rings().await;
        softphone.redirect(&format!("sip:carol@{}", carol.address()));
        exchange.answered(&id).await;
        exchange.hang_up(ROOM, PHONE).await;
        carol.passed().await;
        assert_eq!(exchange.ended(&id).await, "local");
    }
}

#[tokio::test]
async fn softphones_register_and_are_called_by_their_name() {
    if !is_long() {
        return;
    }
    for sort in Sort::ALL {
        let phones = json!([{"user": "bob", "password": "softphone-1"}]);
        let exchange = Exchange::with(&[("SIP_PHONES_JSON", &phones.to_string())]);
        let registrar = exchange.address();
        let kind = |password| Kind {
            credentials: Some(("bob", password)),
            registrar: Some(&registrar),
            ..Kind::default()
        };
        let stranger = sort.of(kind("guessed-guessed")).await;
        stranger.not_registered().await;
        drop(stranger);
        let mut softphone = sort.of(kind("softphone-1")).await;
        softphone.registered().await;
        let there = |shown: &Value| {
            let phone = &shown["sip_phones"][0];
            (phone["address"] == softphone.address()).then_some(())
        };
        exchange.shown_once("registered telephone", there).await;
        let body = json!({
            "room_name": ROOM, "participant_name": "Bob", "participant_identity": PHONE,
            "from_phone_number": "100", "to_sip_uri": "sip:bob",
        });
        let placed = ask(&exchange.server, Method::POST, "/sip/call", None, &body).await;
        assert_eq!(placed.0, 200, "{}", placed.1);
        softphone.answers().await;
        let id = text(&placed.1, "sip_call_id");
        exchange.answered(id).await;
        softphone.hang_up();
        assert_eq!(exchange.ended(id).await, "remote");
    }
}

#[tokio::test]
async fn softphones_that_know_the_password_of_a_trunk_may_call() {
    if !is_long() {
        return;
    }
    let (exchange, client) = super::trunks::exchange(&[]);
    let options = CreateSIPInboundTrunkOptions {
        auth_username: Some("shop".to_owned()),
        auth_password: Some("an-open-sesame".to_owned()),
        ..Default::default()
    };
    let numbers = vec![CALLED.to_owned()];
    let made = client.create_sip_inbound_trunk("shop".to_owned(), numbers, options);
    made.await.unwrap();
    for sort in Sort::ALL {
        for (password, is_right) in [("guessed", false), ("an-open-sesame", true)] {
            let kind = Kind {
                credentials: Some(("shop", password)),
                ..Kind::default()
            };
            let mut softphone = sort.of(kind).await;
            softphone.dial(&format!("sip:{CALLED}@{}", exchange.address()));
            if is_right {
                softphone.established().await;
                softphone.hang_up();
                softphone.closed().await;
            } else {
                softphone.prints(&[" error.", "call failed"]).await;
            }
        }
    }
}

#[tokio::test]
async fn softphones_call_and_are_called_by_tcp() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::with(&[("SIP_OUTBOUND_TRANSPORT", "tcp")]);
    for sort in Sort::ALL {
        let kind = Kind {
            by_tcp: true,
            ..Kind::default()
        };
        let mut softphone = sort.of(kind).await;
        // Nobody is there who would answer by another transport.
        let address = format!("{};transport=tcp", exchange.address());
        let call = comes_in(&exchange, &mut softphone, &address).await;
        exchange
            .hang_up(LOBBY, text(&call, "participant_identity"))
            .await;
        softphone.closed().await;
        let id = is_called(&exchange, &mut softphone).await;
        softphone.hang_up();
        assert_eq!(exchange.ended(&id).await, "remote");
    }
}

#[tokio::test]
async fn linphone_calls_by_tls_in_wideband_and_in_secret() {
    if !is_long() {
        return;
    }
    // It looks for names in certificates, not for addresses.
    let folder = tempfile::tempdir().unwrap();
    let (_, certificate) = certificates_for(folder.path(), "localhost");
    let key = folder.path().join("key.pem").display().to_string();
    let exchange = Exchange::with(&[
        ("SIP_TLS_CERT", &certificate.display().to_string()),
        ("SIP_TLS_KEY", &key),
        ("SIP_MEDIA_ENCRYPTION", "require"),
    ]);
    let mut ann = join(&exchange.server, Client::Python, LOBBY, "ann").await;
    ann.publish(700).await;
    let secure = format!("localhost:{};transport=tls", exchange.port + 1);
    let kind = Kind {
        codec: "G722/16000",
        encrypts: true,
        ..Kind::default()
    };
    let mut stranger = Sort::Linphone.of(kind).await;
    stranger.dial(&format!("sip:{CALLED}@{secure}"));
    stranger.prints(&[" error."]).await;
    assert_eq!(exchange.calls().await, [] as [Value; 0]);
    let mut softphone = Sort::Linphone
        .of(Kind {
            believes: Some(&certificate),
            ..kind
        })
        .await;
    let call = comes_in(&exchange, &mut softphone, &secure).await;
    ann.hears(text(&call, "participant_identity"), 440).await;
    softphone.hears(700).await;
    softphone.hang_up();
    let media = sound(&exchange, text(&call, "sip_call_id")).await;
    assert_eq!(media["codec"], "G722", "{media}");
    assert_eq!(media["encrypted"], true, "{media}");
    // And where we call, by another transport.
    let id = is_called(&exchange, &mut softphone).await;
    softphone.hang_up();
    let media = sound(&exchange, &id).await;
    assert_eq!(media["encrypted"], true, "{media}");
    ann.leave().await;
}

#[tokio::test]
async fn softphones_call_whom_they_are_moved_to() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::with(&[("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)]);
    let grants = json!({"roomAdmin": true, "room": ROOM});
    let token = token(600, &grants, &json!({"sip": {"call": true}}));
    let path = "/twirp/livekit.SIP/TransferSIPParticipant";
    for sort in Sort::ALL {
        let mut carol = Sipp::start(Scenario::answers()).await;
        let mut softphone = sort.start().await;
        let id = is_called(&exchange, &mut softphone).await;
        let moved = async |target: &str| {
            let body =
                json!({"room_name": ROOM, "participant_identity": PHONE, "transfer_to": target});
            ask(&exchange.server, Method::POST, path, Some(&token), &body).await
        };
        // Numbers are told as tel:, of which they know nothing: `sip.refer_scheme` is for them.
        let (status, answer) = moved("tel:+14155550111").await;
        assert_ne!(status, 200, "{sort:?}: {answer}");
        exchange.answered(&id).await;
        let (status, answer) = moved(&format!("sip:carol@{}", carol.address())).await;
        assert_eq!(status, 200, "{sort:?}: {answer}");
        carol.passed().await;
        assert_eq!(exchange.ended(&id).await, "transferred");
    }
}

#[tokio::test]
async fn softphones_move_their_calls_to_others() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::with(&[
        ("SIP_ACCEPT_REFER", "true"),
        ("SIP_ALLOWED_HOSTS", "127.0.0.1"),
    ]);
    for sort in Sort::ALL {
        let mut carol = Sipp::start(Scenario::answers().ended()).await;
        let mut softphone = sort.start().await;
        let id = is_called(&exchange, &mut softphone).await;
        softphone.transfer(&format!("sip:carol@{}", carol.address()));
        softphone.closed().await;
        let acknowledged = || carol.messages().contains("\nACK ");
        eventually("carol is not called", acknowledged).await;
        exchange.answered(&id).await;
        exchange.hang_up(ROOM, PHONE).await;
        carol.passed().await;
        assert_eq!(exchange.ended(&id).await, "local");
    }
}

#[tokio::test]
async fn two_softphones_hear_each_other_and_their_keys_while_they_are_relayed() {
    if !is_long() {
        return;
    }
    let exchange = Exchange::start();
    let mut called = Sort::Twinkle
        .of(Kind {
            hertz: 600,
            ..Kind::default()
        })
        .await;
    let mut caller = Sort::Linphone.start().await;
    let call = comes_in(&exchange, &mut caller, &exchange.address()).await;
    let there = json!({"outbound_address": called.address()});
    let id = exchange.call_to(LOBBY, there).await;
    called.answers().await;
    exchange.answered(&id).await;
    super::relay::relayed(&exchange, LOBBY, 50).await;
    called.hears(440).await;
    caller.hears(600).await;
    caller.press("4#");
    called.is_pressed("4#").await;
    called.press("7");
    caller.is_pressed("7").await;
    caller.hang_up();
    assert_eq!(exchange.ended(text(&call, "sip_call_id")).await, "remote");
    exchange.hang_up(LOBBY, PHONE).await;
    called.closed().await;
}

#[tokio::test]
async fn softphones_say_that_they_are_there() {
    if !is_long() {
        return;
    }
    let linphone = Sort::Linphone.start().await;
    let twinkle = Sort::Twinkle.start().await;
    let gateways = json!([{"address": linphone.address()}, {"address": twinkle.address()}]);
    let exchange = Exchange::with(&[
        ("SIP_GATEWAYS_JSON", &gateways.to_string()),
        ("SIP_GATEWAY_CHECK_SECONDS", "1"),
    ]);
    let up = |shown: &Value| {
        let gateways = shown["sip_gateways"].as_array()?;
        let up = gateways.iter().filter(|one| one["state"] == "up").count();
        (up == 2).then_some(())
    };
    exchange.shown_once("gateways that are both up", up).await;
}
