//! What was sent to a client that may come back: its events with their numbers, and the last of its sound. A client that
//! has lost its socket says what it has, and gets the rest again. A pure list with bounds.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use bytestring::ByteString;
use serde::{Deserialize, Serialize};

use super::outbox::{Audio, Topic};

/// The most events that are kept; fewer than a socket takes at once.
const MAX_EVENTS: usize = 200;
/// The most bytes of them.
const MAX_EVENT_BYTES: usize = 256 << 10;
/// The most sound that is kept, and its bytes.
const MAX_SOUND: Duration = Duration::from_secs(10);
const MAX_SOUND_BYTES: usize = 512 << 10;

/// Why a client cannot go on where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CannotResume {
    /// Events that it has not seen are not kept any more.
    #[error("too much has happened since: events after {0} are not kept any more")]
    Forgotten(u64),
    /// It has seen what was never sent.
    #[error("last_event: no event of this number was sent")]
    Unknown,
    /// It has got more than was sent.
    #[error("received_bytes: so much was not sent")]
    Unsent,
}

/// What a client has not got.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// In its order.
    pub again: Vec<Again>,
    /// Bytes of sound before it that are not kept any more.
    pub lost_bytes: u64,
}

#[derive(Debug)]
struct Event {
    seq: u64,
    /// Its place among events and sound.
    order: u64,
    topic: Option<Topic>,
    text: ByteString,
}

#[derive(Debug)]
struct Sound {
    order: u64,
    bytes: u64,
    /// `None` once it was cut: its client has dropped it.
    audio: Option<Audio>,
    duration: Duration,
}

impl Sound {
    /// Its bytes that are kept.
    fn len(&self) -> usize {
        self.audio.as_ref().map_or(0, |audio| audio.bytes.len())
    }
}

/// Something to send again.
#[derive(Debug, PartialEq, Eq)]
pub enum Again {
    Event(ByteString),
    Sound(Audio),
}

/// All of it, for another server. Of events that replace each other it does not say that they do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentState {
    seq: u64,
    forgotten: u64,
    sound_before: u64,
    sent: Vec<SentItem>,
}

impl SentState {
    /// The greatest number of events, bytes or microseconds that is taken from another server.
    const MOST: u64 = 1 << 53;

    /// Whether its numbers can be those of a session: counting on from them never overflows.
    pub fn is_possible(&self) -> bool {
        let mut last_event = 0;
        let mut bytes = self.sound_before;
        let in_order = self.sent.iter().all(|item| match item {
            SentItem::Event { seq, .. } => {
                let is_next = *seq > last_event && *seq <= self.seq;
                last_event = *seq;
                is_next
            }
            SentItem::Sound {
                bytes: more,
                microseconds,
                ..
            } => {
                bytes = bytes.saturating_add(*more);
                *microseconds <= Self::MOST
            }
        });
        in_order && self.seq <= Self::MOST && self.forgotten <= self.seq && bytes <= Self::MOST
    }
}

/// Passes a state that another server may have sent through what a resuming client asks of it, for the fuzz target
/// `given_session`.
#[doc(hidden)]
pub fn fuzz_sent(state: SentState) {
    if !state.is_possible() {
        return;
    }
    let mut log = SentLog::of_state(state);
    log.event(None, &ByteString::from_static("{}"));
    let _missing = log.again(log.forgotten, Some(log.sound_before), 0);
    let _missing = log.again(log.seq, None, 1);
    log.forget();
}

/// Something that was sent, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SentItem {
    Event {
        seq: u64,
        text: String,
    },
    /// In base64; `None` once it was cut.
    Sound {
        bytes: u64,
        audio: Option<String>,
        microseconds: u64,
    },
}

/// What was sent.
#[derive(Debug, Default)]
pub struct SentLog {
    seq: u64,
    order: u64,
    events: VecDeque<Event>,
    event_bytes: usize,
    /// The last event that is not kept any more, although it was no older version of another.
    forgotten: u64,
    sound: VecDeque<Sound>,
    sound_kept: Duration,
    sound_bytes: usize,
    /// Bytes of sound that were sent before what is kept.
    sound_before: u64,
}

impl SentLog {
    /// Numbers an event, and keeps it. Of those with one topic only the latest is kept.
    pub fn event(&mut self, topic: Option<Topic>, text: &ByteString) -> ByteString {
        self.seq += 1;
        self.order += 1;
        let seq = self.seq;
        let numbered = match text.strip_suffix('}') {
            Some(object) => ByteString::from(format!("{object},\"seq\":{seq}}}")),
            None => text.clone(),
        };
        if topic.is_some() {
            let bytes = &mut self.event_bytes;
            self.events.retain(|event| {
                let stays = event.topic != topic;
                *bytes -= if stays { 0 } else { event.text.len() };
                stays
            });
        }
        self.event_bytes += numbered.len();
        self.events.push_back(Event {
            seq,
            order: self.order,
            topic,
            text: numbered.clone(),
        });
        while (self.events.len() > MAX_EVENTS || self.event_bytes > MAX_EVENT_BYTES)
            && let Some(oldest) = self.events.pop_front()
        {
            self.event_bytes -= oldest.text.len();
            self.forgotten = oldest.seq;
        }
        numbered
    }

    /// Keeps sound that was queued for the socket.
    pub fn sound(&mut self, audio: &Audio) {
        self.order += 1;
        self.sound.push_back(Sound {
            order: self.order,
            bytes: audio.bytes.len() as u64,
            duration: audio.duration,
            audio: Some(audio.clone()),
        });
        self.sound_kept += audio.duration;
        self.sound_bytes += audio.bytes.len();
        while (self.sound_kept > MAX_SOUND || self.sound_bytes > MAX_SOUND_BYTES)
            && self.sound.len() > 1
        {
            self.forget_sound();
        }
    }

    /// Forgets what was sent, and not how much that was.
    pub fn forget(&mut self) {
        self.forgotten = self.seq;
        self.events = VecDeque::new();
        self.event_bytes = 0;
        while !self.sound.is_empty() {
            self.forget_sound();
        }
    }

    /// What another server needs to go on.
    pub fn state(&self) -> SentState {
        let events = self.events.iter().map(|event| {
            let (seq, text) = (event.seq, event.text.to_string());
            (event.order, SentItem::Event { seq, text })
        });
        let sound = self.sound.iter().map(|sound| {
            let audio = sound.audio.as_ref();
            let item = SentItem::Sound {
                bytes: sound.bytes,
                audio: audio.map(|audio| STANDARD.encode(&audio.bytes)),
                microseconds: sound.duration.as_micros() as u64,
            };
            (sound.order, item)
        });
        let mut sent: Vec<_> = events.chain(sound).collect();
        sent.sort_by_key(|(order, _)| *order);
        SentState {
            seq: self.seq,
            forgotten: self.forgotten,
            sound_before: self.sound_before,
            sent: sent.into_iter().map(|(_, item)| item).collect(),
        }
    }

    /// What another server has sent.
    pub fn of_state(state: SentState) -> Self {
        let mut log = Self {
            seq: state.seq,
            forgotten: state.forgotten,
            sound_before: state.sound_before,
            ..Self::default()
        };
        for item in state.sent {
            log.order += 1;
            let order = log.order;
            match item {
                SentItem::Event { seq, text } => log.events.push_back(Event {
                    seq,
                    order,
                    topic: None,
                    text: text.into(),
                }),
                SentItem::Sound {
                    bytes,
                    audio,
                    microseconds,
                } => {
                    let duration = Duration::from_micros(microseconds);
                    // Bytes that cannot be read are missing like those that were cut.
                    let audio = audio.and_then(|audio| STANDARD.decode(audio).ok());
                    log.sound.push_back(Sound {
                        order,
                        bytes,
                        duration,
                        audio: audio.map(|audio| Audio {
                            tag: 0,
                            duration,
                            bytes: Bytes::from(audio),
                        }),
                    });
                }
            }
        }
        log.event_bytes = log.events.iter().map(|event| event.text.len()).sum();
        log.measure();
        log
    }

    fn forget_sound(&mut self) {
        if let Some(oldest) = self.sound.pop_front() {
            self.sound_kept -= oldest.duration;
            self.sound_bytes -= oldest.len();
            self.sound_before += oldest.bytes;
        }
    }

    /// Sound with this tag or a greater one was cut, while this many of the last pieces had not been sent. Returns how many
    /// of these there are no more.
    pub fn cut_sound(&mut self, from: u64, unsent: usize) -> usize {
        let before = self.sound.len();
        let sent = before.saturating_sub(unsent);
        let mut at = 0;
        self.sound.retain_mut(|sound| {
            at += 1;
            if sound.audio.as_ref().is_none_or(|audio| audio.tag < from) {
                return true;
            }
            sound.audio = None;
            at <= sent
        });
        self.measure();
        before - self.sound.len()
    }

    fn measure(&mut self) {
        self.sound_kept = self.sound.iter().map(|sound| sound.duration).sum();
        self.sound_bytes = self.sound.iter().map(Sound::len).sum();
    }

    /// What a client has not got, which has seen events up to `last_event` and this many bytes of sound, or all that was
    /// sent but for this many pieces. It is taken to have the rest.
    pub fn again(
        &mut self,
        last_event: u64,
        received: Option<u64>,
        unsent: usize,
    ) -> Result<Missing, CannotResume> {
        if last_event > self.seq {
            return Err(CannotResume::Unknown);
        }
        let sent = self
            .sound
            .iter()
            .rev()
            .skip(unsent)
            .map(|sound| sound.bytes);
        if received.is_some_and(|received| received > self.sound_before + sent.sum::<u64>()) {
            return Err(CannotResume::Unsent);
        }
        let lost_bytes = received.map_or(0, |received| self.sound_before.saturating_sub(received));
        if last_event < self.forgotten {
            return Err(CannotResume::Forgotten(last_event));
        }
        while self
            .events
            .front()
            .is_some_and(|event| event.seq <= last_event)
            && let Some(seen) = self.events.pop_front()
        {
            self.event_bytes -= seen.text.len();
        }
        match received {
            Some(received) => {
                while !self.sound.is_empty() && self.sound_before < received {
                    self.forget_sound();
                }
            }
            None => {
                while self.sound.len() > unsent {
                    self.forget_sound();
                }
            }
        }
        let events = self.events.iter();
        let events = events.map(|event| (event.order, Again::Event(event.text.clone())));
        let sound = self.sound.iter().filter_map(|sound| {
            let audio = sound.audio.clone()?;
            Some((sound.order, Again::Sound(audio)))
        });
        let mut all: Vec<(u64, Again)> = events.chain(sound).collect();
        all.sort_by_key(|(order, _)| *order);
        // What was cut is not sent again.
        self.sound.retain(|sound| sound.audio.is_some());
        self.measure();
        let again = all.into_iter().map(|(_, again)| again).collect();
        Ok(Missing { again, lost_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const CHUNK: Duration = Duration::from_millis(20);

    fn audio(tag: u64, bytes: usize) -> Audio {
        Audio {
            tag,
            duration: CHUNK,
            bytes: Bytes::from(vec![tag as u8; bytes]),
        }
    }

    fn event(log: &mut SentLog, name: &str) {
        log.event(None, &ByteString::from(format!("{{\"type\":\"{name}\"}}")));
    }

    fn told(missing: &Missing) -> Vec<String> {
        missing
            .again
            .iter()
            .map(|again| match again {
                Again::Event(text) => text.to_string(),
                Again::Sound(audio) => format!("{} of {}", audio.bytes.len(), audio.tag),
            })
            .collect()
    }

    #[test]
    fn what_was_not_seen_comes_again_in_its_order() {
        let mut log = SentLog::default();
        event(&mut log, "a");
        log.sound(&audio(1, 10));
        event(&mut log, "b");
        log.sound(&audio(1, 20));
        event(&mut log, "c");
        let again = log.again(1, Some(10), 0).unwrap();
        let expected = [
            r#"{"type":"b","seq":2}"#,
            "20 of 1",
            r#"{"type":"c","seq":3}"#,
        ];
        assert_eq!(told(&again), expected);
        // The client has the first ten bytes, and sees the others now.
        log.sound(&audio(2, 5));
        assert_eq!(told(&log.again(3, Some(30), 0).unwrap()), ["5 of 2"]);
        assert_eq!(log.again(4, None, 0), Err(CannotResume::Unknown));
        assert_eq!(log.again(3, Some(36), 0), Err(CannotResume::Unsent));
    }

    #[test]
    fn without_a_count_what_the_socket_took_was_received() {
        let mut log = SentLog::default();
        (1..=5).for_each(|tag| log.sound(&audio(tag, 10)));
        assert_eq!(
            told(&log.again(0, None, 2).unwrap()),
            ["10 of 4", "10 of 5"]
        );
    }

    #[test]
    fn what_was_cut_is_not_sent_again_and_counts_where_it_was_sent() {
        let mut log = SentLog::default();
        (1..=4).for_each(|tag| log.sound(&audio(tag, 10)));
        // The last two had not left.
        assert_eq!(log.cut_sound(2, 2), 2);
        log.sound(&audio(5, 7));
        assert_eq!(told(&log.again(0, Some(20), 1).unwrap()), ["7 of 5"]);
        assert_eq!(log.sound_kept, CHUNK);
    }

    #[test]
    fn of_a_topic_the_latest_comes_again() {
        let mut log = SentLog::default();
        let topic = || Some(Topic::of_session("stt_result"));
        for text in ["{\"t\":1}", "{\"t\":2}"] {
            log.event(topic(), &ByteString::from(text));
        }
        assert_eq!(
            told(&log.again(0, None, 0).unwrap()),
            ["{\"t\":2,\"seq\":2}"]
        );
    }

    #[test]
    fn another_server_goes_on_where_this_one_was() {
        let mut log = SentLog::default();
        event(&mut log, "a");
        log.sound(&audio(1, 10));
        event(&mut log, "b");
        log.sound(&audio(2, 20));
        log.cut_sound(2, 0);
        event(&mut log, "c");
        let text = serde_json::to_string(&log.state()).unwrap();
        let mut other = SentLog::of_state(serde_json::from_str(&text).unwrap());
        assert_eq!(other.state(), log.state());
        for (last, received) in [(0, Some(0)), (1, Some(10)), (2, None), (3, Some(30))] {
            let mut here = SentLog::of_state(log.state());
            let mut there = SentLog::of_state(log.state());
            let again = here.again(last, received, 0).unwrap();
            assert_eq!(again, there.again(last, received, 0).unwrap());
        }
        assert_eq!(other.again(4, None, 0), Err(CannotResume::Unknown));
        assert_eq!(other.again(3, Some(31), 0), Err(CannotResume::Unsent));
        event(&mut other, "d");
        let expected = [r#"{"type":"c","seq":3}"#, r#"{"type":"d","seq":4}"#];
        assert_eq!(told(&other.again(2, Some(30), 0).unwrap()), expected);
    }

    #[test]
    fn numbers_that_no_session_has_are_not_taken() {
        let state = |text: &str| serde_json::from_str::<SentState>(text).unwrap();
        let possible = r#"{"seq":2,"forgotten":0,"sound_before":10,"sent":[
            {"event":{"seq":1,"text":"{}"}},{"sound":{"bytes":4,"audio":"AAAAAA==","microseconds":250}}]}"#;
        assert!(state(possible).is_possible());
        for (what, instead) in [
            (r#""seq":2"#, r#""seq":18446744073709551615"#),
            (r#""seq":1"#, r#""seq":3"#),
            (r#""forgotten":0"#, r#""forgotten":3"#),
            (
                r#""sound_before":10"#,
                r#""sound_before":18446744073709551615"#,
            ),
            (r#""bytes":4"#, r#""bytes":9007199254740993"#),
            (
                r#""microseconds":250"#,
                r#""microseconds":18446744073709551615"#,
            ),
        ] {
            assert!(
                !state(&possible.replace(what, instead)).is_possible(),
                "{instead}"
            );
        }
    }

    #[test]
    fn it_is_bounded_and_says_what_it_has_forgotten() {
        let mut log = SentLog::default();
        (0..=MAX_EVENTS).for_each(|_| event(&mut log, "a"));
        assert_eq!(log.again(0, None, 0), Err(CannotResume::Forgotten(0)));
        assert_eq!(log.again(1, None, 0).unwrap().again.len(), MAX_EVENTS);
        (0..1_000).for_each(|_| log.sound(&audio(1, 10)));
        assert_eq!(log.sound_kept, MAX_SOUND);
        assert_eq!(log.again(201, Some(10), 0).unwrap().lost_bytes, 4_990);
        assert_eq!(log.sound_before + 10 * log.sound.len() as u64, 10_000);
    }
}
