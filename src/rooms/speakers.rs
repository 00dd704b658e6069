//! Active speaker detection from the audio-level RTP header extension (RFC 6464): judged per interval and smoothed as
//! LiveKit's server does, so that speaker indicators of clients behave as usual.

/// The interval at which speakers are judged.
pub const INTERVAL_MS: u32 = 400;
/// Louder than this counts as speech, in −dBov.
const ACTIVE_BELOW: u8 = 35;
/// The share of an interval that must be speech, in percent.
const ACTIVE_PERCENT: u32 = 40;
/// Steps of the reported level.
const STEPS: f32 = 8.0;
/// Smoothing over two intervals: 2 / (n + 1).
const SMOOTHING: f32 = 2.0 / 3.0;
/// The most audio a packet stands for: a longer gap (DTX) was silence.
const LONGEST_PACKET_MS: u32 = 60;

/// The audio level of one track.
#[derive(Debug, Default)]
pub struct LevelMeter {
    loudest: Option<u8>,
    active_ms: u32,
    smoothed: f32,
    last_time: Option<u32>,
}

impl LevelMeter {
    /// Takes a packet's level in −dBov (0 is the loudest, 127 silence) and its timestamp at 48 kHz.
    pub fn observe(&mut self, level: u8, time: u32) {
        let passed = self
            .last_time
            .map_or(20, |last| time.wrapping_sub(last) / 48);
        self.last_time = Some(time);
        if level > ACTIVE_BELOW {
            return;
        }
        self.active_ms += passed.min(LONGEST_PACKET_MS);
        self.loudest = Some(self.loudest.map_or(level, |loudest| loudest.min(level)));
    }

    /// The level of an interval, 0 to 1 in steps of an eighth; 0 is silence.
    pub fn judge(&mut self) -> f32 {
        let speaks = self.active_ms * 100 >= INTERVAL_MS * ACTIVE_PERCENT;
        let level = match self.loudest.take() {
            // Speech for only a part of the interval counts less.
            Some(loudest) if speaks => {
                10f32.powf(-f32::from(loudest) / 20.0)
                    * (self.active_ms.min(INTERVAL_MS) as f32 / INTERVAL_MS as f32).sqrt()
            }
            _ => 0.0,
        };
        self.active_ms = 0;
        self.smoothed += (level - self.smoothed) * SMOOTHING;
        if self.smoothed < 10f32.powf(-f32::from(ACTIVE_BELOW) / 20.0) {
            self.smoothed = 0.0;
        }
        (self.smoothed * STEPS).ceil() / STEPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speak(meter: &mut LevelMeter, level: u8, packets: u32) {
        for packet in 0..packets {
            meter.observe(level, packet * 960);
        }
    }

    #[test]
    fn speech_is_told_and_ends() {
        let mut meter = LevelMeter::default();
        speak(&mut meter, 12, 20);
        assert!(meter.judge() > 0.1);
        let ended = (0..20).position(|_| meter.judge() <= 0.0);
        assert!(ended.is_some_and(|intervals| intervals < 5), "{ended:?}");
    }

    #[test]
    fn a_click_and_a_murmur_are_not_speech() {
        let mut meter = LevelMeter::default();
        speak(&mut meter, 5, 3);
        assert!(meter.judge() <= 0.0);
        speak(&mut meter, 50, 20);
        assert!(meter.judge() <= 0.0);
    }
}
