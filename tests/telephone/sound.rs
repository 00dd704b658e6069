//! Audio: tones and words between phones and participants in rooms, DTMF, codecs, encryption, hold, and silence.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::timeout;

use super::rig::baresip::{Baresip, Kind};
use super::rig::sipp::{Run, Scenario, Sipp};
use super::{Exchange, PHONE, ROOM};
use crate::harness::*;
use crate::rooms::agent::{heard, understood};
use crate::rooms::client::Kind as Client;
use crate::rooms::join;
use crate::session::client::{Session, config};
use crate::session::recorded::stored;

/// Somebody with LiveKit's client for Python and a telephone hear each other's tones; gives the call.
async fn tones(kind: Kind<'_>, settings: &[(&str, &str)]) -> Value {
    let mut telephone = Baresip::of(kind).await;
    let exchange = Exchange::with(settings);
    let mut ann = join(&exchange.server, Client::Python, ROOM, "ann").await;
    ann.publish(700).await;
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    ann.hears(PHONE, 440).await;
    telephone.hears(700).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.next("CALL_CLOSED").await;
    ann.leave().await;
    // While a call lasts its sound is told of every few seconds only.
    exchange.ended(&id).await;
    let calls = exchange.calls().await;
    let call = calls.iter().find(|call| call["sip_call_id"] == id.as_str());
    call.unwrap()["media"].clone()
}

#[tokio::test]
async fn a_telephone_and_a_person_in_the_room_hear_each_other() {
    let media = tones(Kind::default(), &[]).await;
    assert_eq!(media["codec"], "PCMU", "{media}");
    assert_eq!(media["encrypted"], false, "{media}");
    assert_eq!(media["packets_lost"], 0, "{media}");
}

#[tokio::test]
async fn they_hear_each_other_in_a_law() {
    let kind = Kind {
        codec: "PCMA/8000",
        ..Kind::default()
    };
    let media = tones(kind, &[]).await;
    assert_eq!(media["codec"], "PCMA", "{media}");
}

#[tokio::test]
async fn they_hear_each_other_in_wideband_and_in_secret() {
    let kind = Kind {
        codec: "G722/16000",
        encryption: "srtp-mand",
        ..Kind::default()
    };
    let media = tones(kind, &[("SIP_MEDIA_ENCRYPTION", "require")]).await;
    assert_eq!(media["codec"], "G722", "{media}");
    assert_eq!(media["encrypted"], true, "{media}");
}

#[tokio::test]
async fn a_telephone_that_will_not_encrypt_is_not_spoken_with() {
    let telephone = Baresip::start().await;
    let exchange = Exchange::with(&[("SIP_MEDIA_ENCRYPTION", "require")]);
    let id = exchange.call(&telephone.address()).await;
    assert_eq!(exchange.ended(&id).await, "media");
}

#[tokio::test]
async fn sound_before_the_answer_is_heard() {
    let scenario = Scenario::called()
        .tone(600)
        .reply_sound("183 Session Progress")
        .play()
        .cancelled();
    let mut telephone = Sipp::start(scenario).await;
    let exchange = Exchange::start();
    let mut ann = join(&exchange.server, Client::Python, ROOM, "ann").await;
    let id = exchange.call(&telephone.address()).await;
    ann.hears(PHONE, 600).await;
    exchange.hang_up(ROOM, PHONE).await;
    telephone.passed().await;
    assert_eq!(exchange.ended(&id).await, "cancelled");
    ann.leave().await;
}

#[tokio::test]
async fn a_telephone_on_hold_is_not_heard_and_does_not_end() {
    let mut telephone = Baresip::start().await;
    let exchange = Exchange::with(&[("SIP_MEDIA_TIMEOUT_SECONDS", "2")]);
    let mut ann = join(&exchange.server, Client::Python, ROOM, "ann").await;
    let id = exchange.call(&telephone.address()).await;
    ann.hears(PHONE, 440).await;
    telephone.command("hold", "").await;
    ann.hears(PHONE, 0).await;
    // Longer than sound may be missing otherwise.
    tokio::time::sleep(Duration::from_secs(3)).await;
    exchange.answered(&id).await;
    telephone.command("resume", "").await;
    ann.hears(PHONE, 440).await;
    telephone.hang_up().await;
    assert_eq!(exchange.ended(&id).await, "remote");
    ann.leave().await;
}

#[tokio::test]
async fn a_call_without_sound_ends() {
    let run = Run {
        echo: false,
        ..Run::default()
    };
    let mut telephone = Sipp::start_with(Scenario::answers().ended(), run).await;
    let exchange = Exchange::with(&[("SIP_MEDIA_TIMEOUT_SECONDS", "1")]);
    let id = exchange.call(&telephone.address()).await;
    assert_eq!(exchange.ended(&id).await, "media_timeout");
    telephone.passed().await;
}

/// A telephone and a session press keys for each other.
pub async fn keys(telephone: &mut Baresip, session: &mut Session) {
    telephone.press("42#").await;
    for digit in ["4", "2", "#"] {
        let event = session.next("dtmf").await;
        assert_eq!(
            (event.text("digit"), event.text("identity")),
            (digit, PHONE)
        );
    }
    session
        .send(json!({"type": "send_dtmf", "digits": "17*#"}))
        .await;
    for digit in ["1", "7", "*", "#"] {
        assert_eq!(telephone.next("CALL_DTMF_START").await["param"], digit);
    }
}

#[tokio::test]
async fn keys_are_told_both_ways() {
    let mut telephone = Baresip::start().await;
    let exchange = Exchange::start();
    let mut session = exchange.session(ROOM).await;
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    keys(&mut telephone, &mut session).await;
    assert_eq!(session.events_of("dtmf").len(), 3);
    session.close().await;
}

/// What a telephone and a session say: of all sentences those that the recogniser knows in the band of telephones too.
pub const THEIRS: &str = SENTENCES[2];
pub const OURS: &str = SENTENCES[6];

/// A telephone of somebody who says [`THEIRS`] again and again, as people do who are not sure that they were heard.
pub async fn persistent(server: &Server, folder: &Path) -> Baresip {
    let sound = json!({"audio_format": "wav", "sample_rate": 8000});
    let sound = speak(server, THEIRS, sound).await.bytes().await.unwrap();
    let [spoken, said] = ["spoken.wav", "said.wav"].map(|name| folder.join(name));
    std::fs::write(&spoken, sound).unwrap();
    let arguments = format!("{} {} pad 0 2 repeat 8", spoken.display(), said.display());
    run("sox", arguments.split_whitespace());
    let kind = Kind {
        says: Some(said),
        ..Kind::default()
    };
    Baresip::of(kind).await
}

/// Waits until a session has understood most of [`THEIRS`].
pub async fn understands(session: &mut Session) {
    let deadline = Instant::now() + PATIENCE;
    while share_of_words(THEIRS, &heard(session)) < 0.7 {
        assert!(Instant::now() < deadline, "understood {:?}", heard(session));
        let _ = timeout(Duration::from_secs(5), session.news()).await;
    }
}

#[tokio::test]
async fn a_telephone_and_a_session_talk_and_the_recording_holds_both() {
    let folder = tempfile::tempdir().unwrap();
    let exchange = Exchange::start();
    let server = &exchange.server;
    let mut telephone = persistent(server, folder.path()).await;

    let config = config(json!({
        "stream_id": "call", "rtc": {"room_name": ROOM, "enable_recording": true},
    }));
    let mut session = Session::open(server, config).await;
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    understands(&mut session).await;
    // As often as it takes the telephone here too: of what comes 40 ms late it plays nothing, and that is a word.
    for id in ["a", "b", "c"] {
        session.speak(id, OURS).await;
        session.completion_of(id).await;
    }
    // What was said last is still on its way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    telephone.hang_up().await;
    telephone.next("CALL_CLOSED").await;
    assert_eq!(exchange.ended(&id).await, "remote");
    let heard = understood(&telephone.recording("dec").unwrap());
    assert!(
        share_of_words(OURS, &heard) >= 0.6,
        "the telephone heard {heard:?}"
    );
    session.close().await;

    let file = folder.path().join("recording.ogg");
    std::fs::write(&file, stored(server, "call").await).unwrap();
    for (channel, text) in [(0, THEIRS), (1, OURS)] {
        let side = folder.path().join(format!("{channel}.wav"));
        let arguments = format!(
            "-v error -i {} -af pan=mono|c0=c{channel} {}",
            file.display(),
            side.display()
        );
        run("ffmpeg", arguments.split_whitespace());
        let heard = understood(&side);
        assert!(
            share_of_words(text, &heard) >= 0.6,
            "side {channel}: {heard:?}"
        );
    }
}
