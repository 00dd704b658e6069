//! From the room to the telephone: what those in the room say, evened out and mixed, every 20 ms; then in the
//! telephone's codec, in packets as long as it wants them. Who is heard is left to others.

use std::time::{Duration, Instant};

use super::Codec;
use super::codec::Encoder;
use super::keys::Keypad;
use vivavoce_audio::jitter::{Arrived, FRAME, JitterBuffer};
use vivavoce_audio::opus::{self, OpusError};
use vivavoce_audio::room_mix::{RoomMixer, TrackKey};
use vivavoce_audio::{Layout, Resampler, SampleRate};
use vivavoce_seams::rooms::link::TrackAudio;

/// What the resampler may hold back.
const HELD_BACK: Duration = Duration::from_millis(2);

/// What is said in the room.
#[derive(Debug, Default)]
pub struct Room {
    voices: Vec<Voice>,
    mixer: RoomMixer,
}

/// A track.
#[derive(Debug)]
struct Voice {
    sid: String,
    audio: TrackAudio,
    jitter: JitterBuffer,
    key: TrackKey,
}

impl Room {
    /// Hears somebody's track from now on, in place of the one of the same sid if there was one.
    pub fn hear(&mut self, sid: &str, identity: &str, audio: TrackAudio) -> Result<(), OpusError> {
        let jitter = JitterBuffer::new()?;
        self.forget(sid);
        let Self { voices, mixer } = self;
        let Some(key) = mixer.join(identity) else {
            tracing::warn!("more tracks than a telephone can hear at once: one is not heard");
            return Ok(());
        };
        // One may have made way for it.
        voices.retain(|voice| mixer.has(voice.key));
        voices.push(Voice {
            sid: sid.to_owned(),
            audio,
            jitter,
            key,
        });
        Ok(())
    }

    /// A track has ended.
    pub fn forget(&mut self, sid: &str) {
        let Self { voices, mixer } = self;
        voices.retain(|voice| {
            let kept = voice.sid != sid;
            if !kept {
                mixer.leave(voice.key);
            }
            kept
        });
    }

    /// The next 20 ms; `false` when there is nobody. `now` is when they are due.
    pub fn next(&mut self, now: Instant, mixed: &mut [i16; FRAME]) -> bool {
        if self.voices.is_empty() {
            return false;
        }
        for voice in &mut self.voices {
            while let Some(packet) = voice.audio.try_next() {
                voice.jitter.push(Arrived {
                    sequence: packet.sequence,
                    timestamp: packet.timestamp,
                    payload: packet.payload,
                    at: packet.arrived,
                });
            }
            if let Some(frame) = self.mixer.frame_mut(voice.key) {
                voice.jitter.pull(now, frame);
            }
        }
        self.mixer.mix(mixed);
        true
    }

    /// The longest that sound waits here to be even, in milliseconds.
    pub fn buffer_ms(&self) -> f32 {
        let depths = self.voices.iter().map(|voice| voice.jitter.stats().depth);
        depths
            .max()
            .map_or(0.0, |depth| depth.as_secs_f32() * 1_000.0)
    }
}

/// The way to payloads of one codec.
#[derive(Debug)]
pub struct Outward {
    codec: Codec,
    encoder: Encoder,
    resampler: Option<Resampler>,
    /// Whether the frame before was silent, and with it all that the resampler remembers.
    silent: bool,
    /// Less than a packet, between two frames.
    sound: Vec<i16>,
    packet_samples: usize,
}

impl Outward {
    /// To packets of so many milliseconds; the complexity is that of Opus.
    pub fn new(codec: Codec, packet_ms: u32, complexity: u8) -> Result<Self, OpusError> {
        let rate = codec.rate();
        let room = SampleRate::HZ_48000;
        Ok(Self {
            codec,
            encoder: Encoder::new(codec, complexity)?,
            resampler: (rate != room).then(|| Resampler::new(Layout::mono(room), rate)),
            silent: false,
            // The resampler holds back up to 2 ms: with them before it, each frame fills a packet.
            sound: vec![0; rate.frames_in(HELD_BACK)],
            packet_samples: (rate.hz() * packet_ms / 1_000) as usize,
        })
    }

    /// Takes 20 ms. Keys that are to be heard as sound take their place.
    pub fn take(&mut self, mixed: &[i16; FRAME], sounding: Option<&mut Keypad>) {
        let start = self.sound.len();
        let silent = mixed.iter().all(|sample| *sample == 0);
        let was_silent = std::mem::replace(&mut self.silent, silent);
        match &mut self.resampler {
            // Silence after silence is silence at any rate.
            Some(_) if silent && was_silent => {
                let frame = self.codec.rate().frames_in(opus::FRAME);
                self.sound.resize(start + frame, 0);
            }
            Some(resampler) => resampler.push(mixed, &mut self.sound),
            None => self.sound.extend_from_slice(mixed),
        }
        if let Some(keypad) = sounding {
            let place = self.sound.get_mut(start..).unwrap_or_default();
            keypad.sound(self.codec.rate().hz(), place);
        }
    }

    /// Appends the payload of the next packet, and says how many ticks it has; `None` when there is not enough sound.
    pub fn packet(&mut self, payload: &mut Vec<u8>) -> Option<u32> {
        let sound = self.sound.get(..self.packet_samples)?;
        let encoded = self.encoder.encode(sound, payload);
        self.sound.drain(..self.packet_samples);
        let ticks = self.codec.ticks(self.packet_samples);
        if !encoded {
            tracing::debug!("a packet to a telephone could not be encoded");
        }
        Some(ticks)
    }

    /// Drops what has not filled a packet: a key comes in between.
    pub fn clear(&mut self) {
        self.sound.clear();
        self.sound.resize(self.codec.rate().frames_in(HELD_BACK), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody with as many tracks as there may be keeps nobody else from being heard.
    #[test]
    fn a_crowd_of_tracks_makes_way() {
        use vivavoce_audio::room_mix::MOST_TRACKS;
        use vivavoce_seams::rooms::link::LinkEnd;

        let mut room = Room::default();
        for n in 0..MOST_TRACKS {
            let (_, audio) = LinkEnd::track();
            room.hear(&format!("TR_{n}"), "hog", audio).unwrap();
        }
        let (_, audio) = LinkEnd::track();
        room.hear("TR_ann", "ann", audio).unwrap();
        assert_eq!(room.voices.len(), MOST_TRACKS);
        assert!(room.voices.iter().any(|voice| voice.sid == "TR_ann"));
    }

    /// A pause that is not resampled changes nothing of what is sent before, in and after it.
    #[test]
    fn a_pause_takes_its_time_and_nothing_else() {
        let tone = |at: usize| ((at as f32 * 0.05).sin() * 8_000.0) as i16;
        let sound = |frame: usize| -> [i16; FRAME] {
            std::array::from_fn(|n| match frame {
                5..12 => 0,
                _ => tone(frame * FRAME + n),
            })
        };
        let rate = Codec::Pcmu.rate();
        let mut outward = Outward::new(Codec::Pcmu, 20, 0).unwrap();
        let mut resampler = Resampler::new(Layout::mono(SampleRate::HZ_48000), rate);
        let mut expected = vec![0; rate.frames_in(HELD_BACK)];
        for frame in 0..20 {
            outward.take(&sound(frame), None);
            resampler.push(&sound(frame), &mut expected);
        }
        assert_eq!(outward.sound, expected);
    }
}
