//! The keys of a telephone (RFC 4733): heard once each, however often they are sent, and pressed one after the other.
//! The packets that they travel in are the session's.

use std::collections::VecDeque;
use std::f32::consts::TAU;

use vivavoce_seams::rooms::link::TelephoneKey;

/// Bytes of a key in a packet.
pub const PAYLOAD: usize = 4;
/// Keys and pauses that wait to be sent.
const MOST_WAITING: usize = 100;
/// In frames of 20 ms: how long a key is pressed, …
const PRESSED: u32 = 5;
/// … how often its end is said, which belongs to the time between two keys, …
const ENDS: u32 = 3;
/// … how long it takes until the next, from the first packet on, …
const WHOLE: u32 = 8;
/// … and a pause: half a second.
const PAUSE: u32 = 25;
/// dBm0 below nothing, as other telephones have it.
const VOLUME: u8 = 10;
/// The amplitude of each of the two tones where keys are heard as sound: −10 dBm0 or so.
const AMPLITUDE: f32 = 5_000.0;

/// Tells keys from their repetitions.
#[derive(Debug, Default)]
pub struct Hearing {
    /// Stream and timestamp of the last ones.
    last: [Option<(u32, u32)>; 2],
}

impl Hearing {
    /// The event of a packet, if it is the first one of its key that comes: any may be lost.
    pub fn hear(&mut self, ssrc: u32, timestamp: u32, payload: &[u8]) -> Option<u8> {
        let [event, ..]: [u8; PAYLOAD] = *payload.first_chunk()?;
        let key = Some((ssrc, timestamp));
        if TelephoneKey::from_code(event).is_none() || self.last.contains(&key) {
            return None;
        }
        self.last.rotate_right(1);
        self.last[0] = key;
        Some(event)
    }
}

/// What is sent in place of 20 ms of sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Sound.
    Sound,
    /// Nothing.
    Nothing,
    /// A key.
    Key {
        /// Whether it is the first packet of it.
        marker: bool,
        /// When it was pressed.
        timestamp: u32,
        /// What the packet holds.
        payload: [u8; PAYLOAD],
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Press {
    Key(u8),
    Pause,
}

/// Presses keys.
#[derive(Debug, Default)]
pub struct Keypad {
    waiting: VecDeque<Press>,
    now: Option<Pressed>,
}

#[derive(Debug, Clone, Copy)]
struct Pressed {
    press: Press,
    /// When it was begun, on the stream's clock.
    timestamp: u32,
    /// Frames since.
    frames: u32,
}

impl Keypad {
    /// Presses these keys after those that wait: `w` is a pause, anything that is no key is left out.
    pub fn press(&mut self, digits: &str) {
        let presses = digits.chars().filter_map(|digit| match digit {
            'w' | 'W' => Some(Press::Pause),
            _ => TelephoneKey::new(digit).map(|key| Press::Key(key.code())),
        });
        let room = MOST_WAITING - self.waiting.len().min(MOST_WAITING);
        self.waiting.extend(presses.take(room));
    }

    /// Whether there is something else than sound.
    pub fn is_busy(&self) -> bool {
        self.now.is_some() || !self.waiting.is_empty()
    }

    /// What the next frame is, beginning at `timestamp` and `ticks` long.
    pub fn next(&mut self, timestamp: u32, ticks: u32) -> Sent {
        let Some(pressed) = self.advance(timestamp) else {
            return Sent::Sound;
        };
        let Press::Key(event) = pressed.press else {
            return Sent::Sound;
        };
        if pressed.frames >= PRESSED - 1 + ENDS {
            return Sent::Nothing;
        }
        let frames = (pressed.frames + 1).min(PRESSED);
        let duration = u16::try_from(frames * ticks).unwrap_or(u16::MAX);
        let end = pressed.frames + 1 >= PRESSED;
        let [high, low] = duration.to_be_bytes();
        Sent::Key {
            marker: pressed.frames == 0,
            timestamp: pressed.timestamp,
            payload: [event, u8::from(end) << 7 | VOLUME, high, low],
        }
    }

    /// Replaces a frame by the sound of a key where the other side knows no others. `false` when none is pressed.
    pub fn sound(&mut self, rate_hz: u32, samples: &mut [i16]) -> bool {
        let Some(pressed) = self.advance(0) else {
            return false;
        };
        let Press::Key(event) = pressed.press else {
            return false;
        };
        samples.fill(0);
        if pressed.frames < PRESSED {
            let (low, high) = tones(event);
            let first = pressed.frames as usize * samples.len();
            for (n, sample) in samples.iter_mut().enumerate() {
                let time = (first + n) as f32 / rate_hz as f32;
                let both = (TAU * low * time).sin() + (TAU * high * time).sin();
                *sample = (AMPLITUDE * both) as i16;
            }
        }
        true
    }

    /// The present key or pause, or the next one.
    fn advance(&mut self, timestamp: u32) -> Option<Pressed> {
        let next = self.now.and_then(|mut pressed| {
            pressed.frames += 1;
            let whole = match pressed.press {
                Press::Key(_) => WHOLE,
                Press::Pause => PAUSE,
            };
            (pressed.frames < whole).then_some(pressed)
        });
        self.now = next.or_else(|| {
            let press = self.waiting.pop_front()?;
            Some(Pressed {
                press,
                timestamp,
                frames: 0,
            })
        });
        self.now
    }
}

/// Of an event, in hertz (ITU-T Q.23).
fn tones(event: u8) -> (f32, f32) {
    let (row, column) = match event {
        0 => (3, 1),
        1..=9 => ((event - 1) / 3, (event - 1) % 3),
        10 => (3, 0),
        11 => (3, 2),
        _ => (event.saturating_sub(12), 3),
    };
    let low = [697.0, 770.0, 852.0, 941.0];
    let high = [1_209.0, 1_336.0, 1_477.0, 1_633.0];
    (low[usize::from(row) % 4], high[usize::from(column) % 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: u32 = 160;

    /// So many frames of what is sent.
    fn frames(keypad: &mut Keypad, count: u32) -> Vec<Sent> {
        (0..count)
            .map(|n| keypad.next(1_000 + n * TICKS, TICKS))
            .collect()
    }

    #[test]
    fn a_key_grows_ends_three_times_and_leaves_a_gap() {
        let mut keypad = Keypad::default();
        keypad.press("5");
        let sent = frames(&mut keypad, 9);
        let packet = |marker, end: u8, duration: u16| {
            let [high, low] = duration.to_be_bytes();
            Sent::Key {
                marker,
                timestamp: 1_000,
                payload: [5, end << 7 | VOLUME, high, low],
            }
        };
        let expected = [
            packet(true, 0, 160),
            packet(false, 0, 320),
            packet(false, 0, 480),
            packet(false, 0, 640),
            packet(false, 1, 800),
            packet(false, 1, 800),
            packet(false, 1, 800),
            Sent::Nothing,
            Sent::Sound,
        ];
        assert_eq!(sent, expected);
    }

    #[test]
    fn keys_that_are_sent_are_heard_once_each_whatever_is_lost() {
        for lost in 0..5 {
            let mut keypad = Keypad::default();
            keypad.press("1w2-3*#aD");
            let sent = frames(&mut keypad, 8 * 8 + 25 + 1);
            assert!(!keypad.is_busy());
            let mut hearing = Hearing::default();
            let mut heard = String::new();
            for (n, sent) in sent.iter().enumerate() {
                if let Sent::Key {
                    timestamp, payload, ..
                } = sent
                    && n % 5 != lost
                {
                    let event = hearing.hear(9, *timestamp, payload);
                    heard.extend(
                        event
                            .and_then(TelephoneKey::from_code)
                            .map(TelephoneKey::sign),
                    );
                }
            }
            assert_eq!(heard, "123*#AD");
        }
    }

    #[test]
    fn no_more_keys_wait_than_somebody_would_press() {
        let mut keypad = Keypad::default();
        keypad.press(&"1".repeat(1_000));
        let sent = frames(&mut keypad, 10_000);
        let pressed = sent
            .iter()
            .filter(|sent| matches!(sent, Sent::Key { marker: true, .. }));
        assert_eq!(pressed.count(), MOST_WAITING);
    }

    #[test]
    fn what_is_no_key_is_not_heard() {
        let mut hearing = Hearing::default();
        assert_eq!(hearing.hear(1, 1, &[16, 0, 0, 0]), None);
        assert_eq!(hearing.hear(1, 1, &[1, 0, 0]), None);
        assert_eq!(hearing.hear(1, 1, &[1, 0x8A, 0, 0]), Some(1));
    }

    #[test]
    fn where_there_are_no_events_keys_have_their_two_tones() {
        let mut keypad = Keypad::default();
        keypad.press("9");
        let mut sound = Vec::new();
        let mut frame = [0; 160];
        while keypad.sound(8_000, &mut frame) {
            sound.extend(frame);
        }
        assert_eq!(sound.len(), 8 * 160);
        assert!(sound[800..].iter().all(|sample| *sample == 0));
        let strength = |hz: f32| {
            let (mut re, mut im) = (0.0, 0.0);
            for (n, sample) in sound[..800].iter().enumerate() {
                let phase = TAU * hz * n as f32 / 8_000.0;
                re += f32::from(*sample) * phase.cos();
                im += f32::from(*sample) * phase.sin();
            }
            re.hypot(im) / 400.0
        };
        assert!(strength(852.0) > 4_000.0 && strength(1_477.0) > 4_000.0);
        assert!(strength(770.0) < 1_000.0 && strength(1_336.0) < 1_000.0);
        assert_eq!(tones(0), (941.0, 1_336.0));
        assert_eq!(tones(15), (941.0, 1_633.0));
    }
}
