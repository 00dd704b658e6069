//! Text that is spoken while it is written: the first sound is there before the last word, at every vendor, by its provider
//! and by a session that is sent a language model's tokens.

use futures_util::StreamExt;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use vivavoce::audio::{AudioFormat, Encoding, SampleRate, linear16};
use vivavoce::emulators::Vendor;
use vivavoce::providers::{TtsEvent, TtsRequest};

use super::{Backed, all_providers, numbers_in, scripted};
use crate::harness::{PATIENCE, tts_request};
use crate::session::client::{Session, config};

const RATE: SampleRate = SampleRate::HZ_16000;
/// The first sentence as it is written, and the rest.
const BEGINNING: [&str; 3] = ["200 20", "1 202", ". "];
const REST: [&str; 3] = ["203 ", "204. ", "205"];
const NUMBERS: [u16; 6] = [200, 201, 202, 203, 204, 205];

#[tokio::test(flavor = "multi_thread")]
async fn a_vendor_speaks_before_the_text_is_complete_and_in_one_breath() {
    let emulators = scripted(&[]).await;
    let table = all_providers(&emulators);
    for vendor in Vendor::STREAMING {
        let request = TtsRequest {
            preferred: AudioFormat::mono(Encoding::Linear16, RATE),
            ..tts_request(None)
        };
        let (text, pieces) = mpsc::channel(8);
        let provider = table.text_to_speech(vendor.slug()).unwrap();
        let pieces = ReceiverStream::new(pieces).boxed();
        let mut events = provider.synthesize(request, pieces).await.unwrap().events;
        for piece in BEGINNING {
            text.send(piece.to_owned()).await.unwrap();
        }
        let mut sound = Vec::new();
        while sound.is_empty() {
            let event = tokio::time::timeout(PATIENCE, events.next()).await;
            let event = event.unwrap_or_else(|_| panic!("{vendor:?} waits for all of the text"));
            if let TtsEvent::Audio(audio) = event.unwrap().unwrap() {
                sound.extend_from_slice(&audio);
            }
        }
        for piece in REST {
            text.send(piece.to_owned()).await.unwrap();
        }
        drop(text);
        while let Some(event) = events.next().await {
            if let TtsEvent::Audio(audio) = event.unwrap() {
                sound.extend_from_slice(&audio);
            }
        }
        assert_eq!(numbers_in(&linear16::samples(&sound), RATE), NUMBERS);
        let mut visits = emulators.emulation.log.all();
        visits.retain(|record| record.vendor == vendor.slug() && record.direction == "tts");
        assert_eq!(visits.len(), 1, "{vendor:?}");
        // One context, turn or call for the whole text; Deepgram has no such thing.
        let asked = usize::from(vendor != Vendor::Deepgram);
        assert_eq!(visits[0].asked.len(), asked, "{:?}", visits[0].asked);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_speaks_before_its_language_model_has_finished() {
    let backed = Backed::by(scripted(&[]).await);
    for vendor in Vendor::STREAMING {
        let speak = json!({"provider": vendor.slug(), "model": "", "sample_rate": RATE.hz()});
        let mut session = Session::open(&backed.server, config(json!({"tts_config": speak}))).await;
        for piece in BEGINNING {
            session
                .speak_with(piece, json!({"id": "u", "flush": false}))
                .await;
        }
        // Nothing has said that the text is complete, and the first sentence is heard.
        session.received(640).await;
        for piece in REST {
            session
                .speak_with(piece, json!({"id": "u", "flush": false}))
                .await;
        }
        session.speak_with("", json!({"id": "u"})).await;
        session.completion_of("u").await;
        let sound = session.sound();
        let samples: Vec<i16> = sound
            .iter()
            .flat_map(|chunk| linear16::samples(&chunk.data))
            .collect();
        assert_eq!(numbers_in(&samples, RATE), NUMBERS, "{vendor:?}");
        // Its sentences share a socket.
        let mut visits = backed.emulators.emulation.log.all();
        visits.retain(|record| record.vendor == vendor.slug() && record.direction == "tts");
        if vendor != Vendor::Google {
            assert_eq!(visits.len(), 1, "{vendor:?}");
        }
        session.close().await;
    }
}
