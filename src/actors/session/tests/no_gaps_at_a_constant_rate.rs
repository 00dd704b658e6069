//! "Gaps and crackle on socket audio."

use super::synthesiser::ramp;
use super::*;

#[actix::test]
async fn ten_minutes_leave_at_the_listener_s_pace_without_gap_or_drift() {
    let stage = Stage::new();
    let client = stage.configured().await;
    for number in 10..70 {
        let sentence = format!("Number {number}: {}", "x".repeat(239));
        client.send(&json!({"type": "speak", "text": sentence, "id": number.to_string()}));
    }
    for _ in 10..70 {
        client.event("tts_playback_complete").await;
    }
    let second = 24_000;
    let heard = client.heard();
    assert_eq!(heard.len(), 600 * second);
    assert_eq!(heard, ramp(0, heard.len()));

    let mut sound = Duration::ZERO;
    let mut start = None;
    for (at, what) in client.read() {
        match what {
            What::Sound(samples) => {
                let start = *start.get_or_insert(at);
                assert!(at <= start + sound, "an underrun at {sound:?}");
                sound += Duration::from_secs(samples.len() as u64) / second as u32;
                assert!(sound <= at - start + LEAD, "ahead at {sound:?}");
            }
            What::Event(event) if event["type"] == "tts_playback_complete" => {
                let number: u32 = event["id"].as_str().unwrap().parse().unwrap();
                let due = start.unwrap() + Duration::from_secs(10) * (number - 9);
                assert!(at >= due && at <= due + ms(20), "{number} ends at {at:?}");
            }
            _ => {}
        }
    }
}

fn clip(samples: &[i16]) -> Value {
    use base64::Engine;
    let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    let data = base64::engine::general_purpose::STANDARD.encode(bytes);
    json!({"data": data, "format": "pcm", "sample_rate": 24_000})
}

#[actix::test]
async fn the_loading_sound_goes_on_under_speech_and_leaves_no_faster_than_it_is_heard() {
    tokio::time::pause();
    for lead in [LEAD, Duration::MAX] {
        let stage = Stage::in_paused_time(lead);
        let client = stage.connect();
        client.send(&config(json!({"loading_audio": clip(&[1_000; 8_000])})));
        client.event("ready").await;
        let start = client.now();
        client.send(&json!({"type": "loading_start"}));
        sleep(Duration::from_secs(2)).await;
        client.send(&speak("Ten chars."));
        client.event("tts_playback_complete").await;
        sleep(Duration::from_secs(2)).await;
        client.send(&json!({"type": "loading_stop"}));
        sleep(Duration::from_secs(1)).await;
        let heard = client.heard();
        let length = Duration::from_secs(heard.len() as u64) / 24_000;
        let time = client.now() - start - Duration::from_secs(1);
        assert!(length <= time + LEAD + ms(40), "{length:?} in {time:?}");
        let spoken = heard.iter().filter(|sample| **sample > 1_000).count();
        assert!((9_590..=9_600).contains(&spoken), "{spoken}");
        let faded_in = &heard[24 * 40..];
        let faded_out = faded_in.len() - 24 * 40;
        assert!(faded_in[..faded_out].iter().all(|sample| *sample >= 1_000));
    }
}
