//! Documents of SSML, by sessions and by `/speak`: vendors that take them get them whole, others refuse them by name, and what is
//! told of them is their text.

use serde_json::json;
use vivavoce::audio::{SampleRate, linear16};
use vivavoce::emulators::Vendor;

use super::{Backed, numbers_in, scripted};
use crate::harness::{assert_error, post_speak};
use crate::session::client::{Session, config, with};

const RATE: SampleRate = SampleRate::HZ_16000;
const TAKE: [Vendor; 2] = [Vendor::Azure, Vendor::Google];
const DOCUMENT: &str = "<speak xml:lang=\"en-US\"><s>101 <emphasis level='strong'>102</emphasis></s><break \
    time='20ms'/><s>103 <sub alias='104'>104</sub> &#x31;05</s></speak>";
const TEXT: &str = "101 102 103 104 105";
const NUMBERS: [u16; 5] = [101, 102, 103, 104, 105];

fn voice(vendor: Vendor) -> serde_json::Value {
    json!({"provider": vendor.slug(), "model": "", "sample_rate": RATE.hz(), "progress": true})
}

fn numbers(session: &Session, id: &str) -> Vec<u16> {
    let sound = session.sound_of(id);
    let samples: Vec<i16> = sound
        .iter()
        .flat_map(|chunk| linear16::samples(&chunk.data))
        .collect();
    numbers_in(&samples, RATE)
}

/// What a vendor was asked for in any of its messages.
fn was_asked(backed: &Backed, vendor: Vendor, part: &str) -> bool {
    let records = backed.emulators.emulation.log.all();
    let mut its = records
        .iter()
        .filter(|record| record.vendor == vendor.slug());
    its.any(|record| record.asked.iter().any(|asked| asked.contains(part)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_said_whole_and_told_without_its_tags() {
    let backed = Backed::by(scripted(&[]).await);
    for vendor in TAKE {
        let says = with(
            voice(vendor),
            json!({"pronunciations": [
                {"word": "103", "pronunciation": "113"},
                // Neither in a tag, nor where it is said otherwise.
                {"word": "104", "pronunciation": "999"}, {"word": "strong", "pronunciation": "none"},
            ]}),
        );
        let mut session = Session::open(&backed.server, config(json!({"tts_config": says}))).await;
        session
            .speak_with(DOCUMENT, json!({"id": "a", "text_type": "ssml"}))
            .await;
        session.completion_of("a").await;
        let said = numbers(&session, "a");
        assert_eq!(said, [101, 102, 113, 104, 105], "{vendor:?}");
        let told = session.events_of("tts_progress");
        let words: Vec<_> = told.iter().map(|event| event.text("text")).collect();
        assert_eq!(words, TEXT.split(' ').collect::<Vec<_>>(), "{vendor:?}");
        let asked = was_asked(&backed, vendor, "<emphasis level='strong'>102</emphasis>");
        assert!(asked, "{vendor:?}");
        assert!(session.events_of("warning").is_empty(), "{vendor:?}");

        // What was heard of one that is cut, and an utterance that it ends.
        session
            .speak_with("106 107.", json!({"id": "b", "flush": false}))
            .await;
        session
            .speak_with(DOCUMENT, json!({"id": "c", "text_type": "ssml"}))
            .await;
        session.completion_of("b").await;
        loop {
            let told = session.next("tts_progress").await;
            if told["id"] == "c" && told["text"] == "103" {
                break;
            }
        }
        session.command("clear").await;
        let end = session.end_of("c").await;
        let heard = end.text("heard_text");
        assert!(
            TEXT.starts_with(heard) && heard.starts_with("101 102"),
            "{end}"
        );
        session.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_refused_where_it_is_not_taken_or_not_well_formed() {
    let backed = Backed::by(scripted(&[]).await);
    for vendor in Vendor::STREAMING {
        let config = config(json!({"tts_config": voice(vendor)}));
        let mut session = Session::open(&backed.server, config).await;
        let takes = TAKE.contains(&vendor);
        if !takes {
            session
                .speak_with(DOCUMENT, json!({"id": "a", "text_type": "ssml"}))
                .await;
            let refused = session.refused("invalid_message").await;
            let message = refused.text("message");
            assert!(message.contains("text_type: "), "{message}");
            let both = message.contains("azure") && message.contains("google");
            assert!(both, "{message}");
            assert_eq!(refused["id"], "a");
        }
        for (text, fields, names) in [
            ("<speak>101", json!({}), "text: the element <speak>"),
            ("101", json!({}), "text: an SSML document begins"),
            ("<speak>a &nbsp; b</speak>", json!({}), "text: &nbsp;"),
            ("<speak>101</speak>", json!({"flush": false}), "flush: "),
            ("101", json!({"text_type": "markdown"}), "text_type"),
        ] {
            let fields = with(json!({"id": "b", "text_type": "ssml"}), fields);
            session.speak_with(text, fields).await;
            let refused = session.refused("invalid_message").await;
            assert!(refused.text("message").contains(names), "{refused}");
        }
        // Text that looks like it is said as it always was, with a warning that knows the remedy.
        session.speak("c", "<speak>101</speak>").await;
        let warnings = async {
            session.end_of("c").await;
            session.events_of("warning")
        };
        let warnings = warnings.await;
        let names_it =
            |warning: &crate::session::client::Event| warning.text("message").contains("text_type");
        assert_eq!(
            warnings.iter().any(names_it),
            takes,
            "{vendor:?} {warnings:?}"
        );
        session.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fallback_says_the_rest_of_a_document_whether_it_takes_documents_or_not() {
    let document = "<speak><s>201 202 203 <emphasis>204 205 206 207</emphasis></s> 208 209 210 211 212</speak>";
    let expected: Vec<u16> = (201..=212).collect();
    for to in [Vendor::Google, Vendor::Cartesia] {
        let faults = ["azure:tts:trickle=70ms", "azure:tts:close@900ms"];
        let backed = Backed::by(scripted(&faults).await);
        let says = with(
            voice(Vendor::Azure),
            json!({"fallback": [{"provider": to.slug(), "model": ""}]}),
        );
        let mut session = Session::open(&backed.server, config(json!({"tts_config": says}))).await;
        session
            .speak_with(document, json!({"id": "a", "text_type": "ssml"}))
            .await;
        session.completion_of("a").await;
        let switched = session.events_of("provider_event");
        assert!(
            switched.iter().any(|event| event["state"] == "switched"),
            "{switched:?}"
        );
        // The word in which the vendor was cut off is said again from its beginning.
        let mut said = numbers(&session, "a");
        let again = said.windows(2).position(|two| two[0] == two[1]);
        again.map(|again| said.remove(again));
        assert_eq!(said, expected, "{to:?}");
        assert_eq!(was_asked(&backed, to, "<emphasis>"), to == Vendor::Google);
        session.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn speak_takes_documents() {
    let backed = Backed::by(scripted(&[]).await);
    let body = |vendor: Vendor, text: &str| json!({"text": text, "text_type": "ssml", "tts_config": voice(vendor)});
    for vendor in TAKE {
        let answer = post_speak(&backed.server, body(vendor, DOCUMENT)).await;
        assert_eq!(answer.status(), 200);
        let samples = linear16::samples(&answer.bytes().await.unwrap());
        assert_eq!(numbers_in(&samples, RATE), NUMBERS, "{vendor:?}");
        let broken = post_speak(&backed.server, body(vendor, "<speak>101 & 102</speak>")).await;
        assert_error(broken, 400, "INVALID_REQUEST", "text: & 102").await;
    }
    let refused = post_speak(&backed.server, body(Vendor::Deepgram, DOCUMENT)).await;
    assert_error(
        refused,
        400,
        "INVALID_REQUEST",
        "text_type: deepgram takes no SSML",
    )
    .await;
    let long = format!("<speak>{}</speak>", "101 ".repeat(1_300));
    let refused = post_speak(&backed.server, body(Vendor::Google, &long)).await;
    assert_error(
        refused,
        400,
        "INVALID_REQUEST",
        "text: google takes documents of 5000 bytes",
    )
    .await;
}
