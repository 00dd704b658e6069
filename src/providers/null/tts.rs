//! Says every text as a tone whose length is that of the text. The sound is made once per request and handed out in
//! slices of one buffer, as fast as it is taken.

use std::f64::consts::TAU;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::SLUG;
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_audio::linear16;
use vivavoce_seams::{
    ProviderError, Speaks, TextStream, TextToSpeech, TtsEvent, TtsRequest, TtsStream, Voice,
};

/// Roughly what people need.
const PER_CHARACTER: Duration = Duration::from_millis(60);
/// The longest sound for one piece of text.
const LONGEST: Duration = Duration::from_mins(1);
/// The pitch, as far as whole samples allow.
const TONE_HZ: u32 = 400;
/// About a quarter of full scale.
const AMPLITUDE: f64 = 8_000.0;
/// Periods in a chunk: about 100 ms.
const PERIODS: usize = 40;

/// The synthesiser `null`.
pub(super) struct NullTts;

#[async_trait]
impl TextToSpeech for NullTts {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn speaks(&self) -> Speaks {
        Speaks {
            speaking_rates: 1.0..=1.0,
        }
    }

    async fn synthesize(
        &self,
        request: TtsRequest,
        text: TextStream,
    ) -> Result<TtsStream, ProviderError> {
        let rate = request.preferred.layout.rate;
        let chunk = chunk(rate);
        let said = text.flat_map(move |text| {
            let length = (PER_CHARACTER * text.chars().count() as u32).min(LONGEST);
            stream::iter(tone(chunk.clone(), 2 * rate.frames_in(length)))
        });
        let events = said
            .map(TtsEvent::Audio)
            .chain(stream::iter([TtsEvent::Done]));
        Ok(TtsStream {
            format: AudioFormat::mono(Encoding::Linear16, rate),
            events: events.map(Ok).boxed(),
        })
    }

    async fn voices(&self) -> Result<Vec<Voice>, ProviderError> {
        Ok(vec![Voice {
            id: "tone".to_owned(),
            name: "Tone".to_owned(),
            language: "en-US".to_owned(),
            languages: vec!["en-US".to_owned()],
            gender: "neutral".to_owned(),
            accent: String::new(),
            sample: String::new(),
            sample_rates: Vec::new(),
            tags: vec!["for measurements".to_owned()],
        }])
    }
}

/// The tone, whole periods of it.
fn chunk(rate: SampleRate) -> Bytes {
    let period = rate.hz().div_ceil(TONE_HZ);
    let samples = (0..period).map(|index| {
        let phase = TAU * f64::from(index) / f64::from(period);
        (AMPLITUDE * phase.sin()) as i16
    });
    let samples: Vec<i16> = samples.collect();
    linear16::encode(&samples.repeat(PERIODS))
}

/// So many bytes of it, in slices.
fn tone(chunk: Bytes, bytes: usize) -> impl Iterator<Item = Bytes> {
    (0..bytes)
        .step_by(chunk.len())
        .map(move |at| chunk.slice(..chunk.len().min(bytes - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn say(pieces: &[&str], hz: u32) -> Vec<i16> {
        let rate = SampleRate::new(hz).unwrap();
        let pieces: Vec<String> = pieces.iter().map(|&piece| piece.to_owned()).collect();
        let request = TtsRequest {
            party: vivavoce_quotas::Party::Operator,
            voice_id: None,
            model: String::new(),
            speaking_rate: 1.0,
            preferred: AudioFormat::mono(Encoding::Mulaw, rate),
            connection_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
            credential: None,
        };
        let text = stream::iter(pieces).boxed();
        let stream = NullTts.synthesize(request, text).await.unwrap();
        assert_eq!(stream.format, AudioFormat::mono(Encoding::Linear16, rate));
        let mut events: Vec<TtsEvent> = stream.events.map(Result::unwrap).collect().await;
        assert!(matches!(events.pop(), Some(TtsEvent::Done)));
        let sound = events.iter().flat_map(|event| match event {
            TtsEvent::Audio(bytes) => linear16::samples(bytes),
            other => panic!("{other:?}"),
        });
        sound.collect()
    }

    #[tokio::test]
    async fn every_character_lasts_60_ms_up_to_a_minute() {
        for (pieces, hz, samples) in [
            (&["Good morning."][..], 16_000, 13 * 960),
            (&["Good ", "morning."], 16_000, 13 * 960),
            (&["é"], 48_000, 2_880),
            (&["a"], 22_050, 1_323),
            (&[], 16_000, 0),
            (&["x".repeat(5_000).as_str()], 8_000, 480_000),
        ] {
            assert_eq!(say(pieces, hz).await.len(), samples, "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn the_tone_has_its_pitch_and_no_seams() {
        for hz in [8_000, 16_000, 22_050, 48_000] {
            let sound = say(&["One second of it, more or less."], hz).await;
            let rising = sound.windows(2).filter(|pair| pair[0] < 0 && pair[1] >= 0);
            let seconds = sound.len() as f64 / f64::from(hz);
            let pitch = rising.count() as f64 / seconds;
            assert!(
                (pitch - f64::from(TONE_HZ)).abs() < 8.0,
                "{pitch} Hz at {hz}"
            );
            let steepest = TAU * f64::from(TONE_HZ) / f64::from(hz) * AMPLITUDE;
            let jump = |pair: &[i16]| f64::from((pair[1] - pair[0]).abs());
            assert!(
                sound
                    .windows(2)
                    .all(|pair| jump(pair) < 1.05 * steepest + 2.0)
            );
        }
    }
}
