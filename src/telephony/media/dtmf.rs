//! DTMF digits as RTP events (RFC 4733); sent as in-band tones where the other side knows no events. A received digit is
//! reported once, however many packets repeat it; digits to be sent are queued. The session writes the packets. Digits in
//! SIP INFO are read by `agent::refer`; tones in received audio are not recognised.

use std::collections::VecDeque;
use std::f32::consts::TAU;

use vivavoce_seams::rooms::link::TelephoneKey;

/// Bytes of an event payload.
pub const PAYLOAD: usize = 4;
/// Digits and pauses that wait to be sent.
const MOST_WAITING: usize = 100;
/// In frames of 20 ms: how long a digit sounds, …
const PRESSED: u32 = 5;
/// … how many packets mark its end, sent in the gap after it, …
const ENDS: u32 = 3;
/// … from the start of one digit to the start of the next, …
const WHOLE: u32 = 8;
/// … and a pause (`w`): half a second.
const PAUSE: u32 = 25;
/// Volume of the events, in −dBm0, as other phones send it.
const VOLUME: u8 = 10;
/// Amplitude of each of the two in-band tones: about −10 dBm0.
const AMPLITUDE: f32 = 5_000.0;

/// Reports each received digit once.
#[derive(Debug, Default)]
pub struct DtmfReceiver {
    /// SSRC and timestamp of the last two events.
    last: [Option<(u32, u32)>; 2],
}

impl DtmfReceiver {
    /// The event code, if this is the first packet of its event to arrive: any of its packets may be lost.
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

/// What to send in a 20 ms frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Audio.
    Audio,
    /// Nothing.
    Nothing,
    /// An event packet.
    Event {
        /// Whether it is the first packet of its event.
        marker: bool,
        /// When the event began.
        timestamp: u32,
        /// The payload.
        payload: [u8; PAYLOAD],
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Press {
    Key(u8),
    Pause,
}

/// Queues digits and sends them one after the other.
#[derive(Debug, Default)]
pub struct DtmfSender {
    waiting: VecDeque<Press>,
    now: Option<Pressed>,
}

#[derive(Debug, Clone, Copy)]
struct Pressed {
    press: Press,
    /// When it began, on the stream's clock.
    timestamp: u32,
    /// Frames since then.
    frames: u32,
}

impl DtmfSender {
    /// Queues digits: `w` is a pause, other characters that are no digit are skipped.
    pub fn press(&mut self, digits: &str) {
        let presses = digits.chars().filter_map(|digit| match digit {
            'w' | 'W' => Some(Press::Pause),
            _ => TelephoneKey::new(digit).map(|key| Press::Key(key.code())),
        });
        let room = MOST_WAITING - self.waiting.len().min(MOST_WAITING);
        self.waiting.extend(presses.take(room));
    }

    /// Whether a digit or pause is being sent or waits.
    pub fn is_busy(&self) -> bool {
        self.now.is_some() || !self.waiting.is_empty()
    }

    /// What to send in the frame that begins at `timestamp` and has `ticks` ticks.
    pub fn next(&mut self, timestamp: u32, ticks: u32) -> Sent {
        let Some(pressed) = self.advance(timestamp) else {
            return Sent::Audio;
        };
        let Press::Key(event) = pressed.press else {
            return Sent::Audio;
        };
        if pressed.frames >= PRESSED - 1 + ENDS {
            return Sent::Nothing;
        }
        let frames = (pressed.frames + 1).min(PRESSED);
        let duration = u16::try_from(frames * ticks).unwrap_or(u16::MAX);
        let end = pressed.frames + 1 >= PRESSED;
        let [high, low] = duration.to_be_bytes();
        Sent::Event {
            marker: pressed.frames == 0,
            timestamp: pressed.timestamp,
            payload: [event, u8::from(end) << 7 | VOLUME, high, low],
        }
    }

    /// Replaces a frame by the tones of the current digit, for a peer without `telephone-event`. `false` if there is none.
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

    /// Advances to the next frame of the current digit or pause, or to the next one.
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

/// The two frequencies of an event, in hertz (ITU-T Q.23).
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

    /// What is sent in so many frames.
    fn frames(sender: &mut DtmfSender, count: u32) -> Vec<Sent> {
        (0..count)
            .map(|n| sender.next(1_000 + n * TICKS, TICKS))
            .collect()
    }

    #[test]
    fn a_key_grows_ends_three_times_and_leaves_a_gap() {
        let mut sender = DtmfSender::default();
        sender.press("5");
        let sent = frames(&mut sender, 9);
        let packet = |marker, end: u8, duration: u16| {
            let [high, low] = duration.to_be_bytes();
            Sent::Event {
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
            Sent::Audio,
        ];
        assert_eq!(sent, expected);
    }

    #[test]
    fn keys_that_are_sent_are_heard_once_each_whatever_is_lost() {
        for lost in 0..5 {
            let mut sender = DtmfSender::default();
            sender.press("1w2-3*#aD");
            let sent = frames(&mut sender, 8 * 8 + 25 + 1);
            assert!(!sender.is_busy());
            let mut receiver = DtmfReceiver::default();
            let mut heard = String::new();
            for (n, sent) in sent.iter().enumerate() {
                if let Sent::Event {
                    timestamp, payload, ..
                } = sent
                    && n % 5 != lost
                {
                    let event = receiver.hear(9, *timestamp, payload);
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
        let mut sender = DtmfSender::default();
        sender.press(&"1".repeat(1_000));
        let sent = frames(&mut sender, 10_000);
        let pressed = sent
            .iter()
            .filter(|sent| matches!(sent, Sent::Event { marker: true, .. }));
        assert_eq!(pressed.count(), MOST_WAITING);
    }

    #[test]
    fn what_is_no_key_is_not_heard() {
        let mut receiver = DtmfReceiver::default();
        assert_eq!(receiver.hear(1, 1, &[16, 0, 0, 0]), None);
        assert_eq!(receiver.hear(1, 1, &[1, 0, 0]), None);
        assert_eq!(receiver.hear(1, 1, &[1, 0x8A, 0, 0]), Some(1));
    }

    #[test]
    fn where_there_are_no_events_keys_have_their_two_tones() {
        let mut sender = DtmfSender::default();
        sender.press("9");
        let mut sound = Vec::new();
        let mut frame = [0; 160];
        while sender.sound(8_000, &mut frame) {
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
