//! The jitter buffer of one received track: Opus packets come when the network lets them, sound leaves it 20 ms at a
//! time. It waits no longer than the arrivals ask for, fills what is missing, and follows the publisher's clock without
//! a click. Who asks for the sound and when, and what becomes of it, is left to others.
//!
//! Everything is reckoned in samples of 48 kHz: a packet's *transit* is when it arrived minus its timestamp, the
//! *delay* of a sample is when it is handed out minus its timestamp. Packets are in time as long as the delay exceeds
//! their transit, so the delay is kept near a target: the fastest transit, and on top of it the *depth* that the spread
//! of the transits asks for. It is corrected where that is not heard: in silence between two talk spurts, or by a period
//! of the voice taken out or put in. A publisher's clock that drifts moves all transits, the target with them, and is so
//! corrected in the same way.
//!
//! When nothing is there in time the sound is stretched, not skipped: a packet that comes a little late is still played
//! in full. Words matter more than a few milliseconds, which are won back later.

mod arrivals;
mod splice;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::format::{Layout, SampleRate};
use super::opus::{OpusDecoder, OpusError, carries_redundancy, clock_frames};
use super::pcm::energy;
use arrivals::{Sequences, Transits};

/// Samples that are handed out at a time: 20 ms.
pub const FRAME: usize = 960;
/// The least depth. What is asked for in steps of 20 ms must be there 20 ms before; the rest is room for a correction to
/// wait until it is not heard.
const SHALLOWEST: i64 = 24 * MS;
/// The greatest depth that is aimed at; packets that are later still stretch the sound.
const DEEPEST: i64 = 200 * MS;
/// The most sound that is kept. Of more the oldest is dropped.
const CAPACITY: i64 = 1_000 * MS;
/// The most packets that are kept: a second of the shortest, and what may surround it.
const MOST_PACKETS: usize = 512;
/// A millisecond.
const MS: i64 = 48;
/// libopus conceals in units of 2.5 ms.
const UNIT: usize = 120;
/// Sound that is made up is faded out from here …
const FADE_FROM: usize = 60 * MS as usize;
/// … to here: after that it would be a drone, not a voice.
const FADE_TO: usize = 120 * MS as usize;
/// The fade into a voice after silence, so that it does not click.
const RISE: usize = UNIT;
/// The fade from sound that was made up, and does not meet what follows, to a voice.
const JOINT: usize = 2 * UNIT;
/// Beyond this a packet does not belong to those before it: the publisher has started anew.
const STRANGE: i64 = 2_000 * MS;
/// The same in numbers.
const STRANGE_NUMBERS: u64 = 3_000;
/// Share of lost packets from which on the buffer waits for the redundancy in the next one.
const LOSSY: f32 = 0.01;
/// Share of lost packets below which it no longer does.
const LOSSLESS: f32 = 0.003;

/// A packet as it came.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// The RTP sequence number, extended so that it does not wrap.
    pub sequence: u64,
    /// The RTP timestamp, at 48 kHz.
    pub timestamp: u32,
    /// An Opus packet; anything else is counted and dropped.
    pub payload: Arc<[u8]>,
    /// When it arrived.
    pub at: Instant,
}

/// What a frame is made of; of several the last of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// Digital silence: nobody speaks, or nothing has come for longer than can be made up.
    Silence,
    /// What the publisher sent.
    Voice,
    /// A lost packet was replaced from the redundancy in the next one.
    Recovered,
    /// Something was missing; the sound before it was continued.
    Concealed,
}

/// Counts since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JitterStats {
    /// Packets, doubles not counted.
    pub received: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets that never came.
    pub lost: u64,
    /// Packets that came after their place was filled.
    pub late: u64,
    /// Packets dropped because too many waited.
    pub overrun: u64,
    /// Packets that are not Opus.
    pub unreadable: u64,
    /// Lost or late packets that were replaced from the redundancy in the next one.
    pub recovered: u64,
    /// Sound that was made up for what was lost or late. The end of a talk spurt, where nothing was to come, is not in it.
    pub concealed: Duration,
    /// How many times a piece of sound was shortened.
    pub shortened: u64,
    /// How many times a piece of sound was lengthened.
    pub lengthened: u64,
    /// How many times the publisher started anew.
    pub restarts: u64,
    /// How much later sound is handed out now than it could be without jitter.
    pub depth: Duration,
    /// The depth that is aimed at.
    pub target: Duration,
}

#[derive(Debug)]
struct Waiting {
    sequence: u64,
    /// Extended: it does not wrap.
    timestamp: i64,
    length: i64,
    payload: Arc<[u8]>,
}

/// What is to be decoded next.
#[derive(Debug, Clone, Copy)]
struct Next {
    sequence: u64,
    timestamp: i64,
}

/// See the module.
#[derive(Debug)]
pub struct JitterBuffer {
    decoder: OpusDecoder,
    /// Where time begins: at the first packet.
    epoch: Option<Instant>,
    /// By sequence number.
    waiting: VecDeque<Waiting>,
    /// The newest timestamp that was seen, as it came and extended.
    newest: Option<(u32, i64)>,
    /// A packet that does not belong to those before it. A second one like it decides.
    stranger: Option<(Arrived, i64)>,
    next: Option<Next>,
    /// Sound that was decoded and not handed out: less than a frame between two calls.
    ready: Vec<i16>,
    /// What the end of it is.
    tail: Heard,
    /// Samples made up since the last real one.
    made_up: usize,
    /// Those of them that stretched the sound: they stand for nothing yet.
    stretched: i64,
    /// Whether what comes next does not begin where the sound before it ends.
    disjoint: bool,
    /// What the sound before it would go on with, to fade from; mostly empty.
    before: Vec<i16>,
    /// Those samples made up that are not silence, not counted yet: what they stand for is seen afterwards.
    uncounted: usize,
    transits: Transits,
    sequences: Sequences,
    /// Share of packets that were missing when they were needed, of late.
    loss: f32,
    /// How much longer to wait, so that there is time to recover what is lost from the packet after it.
    patience: i64,
    /// The loudest of late, to know a pause by: root mean square.
    loudest: f32,
    /// Frames since the sound was last shortened.
    unchanged: u32,
    stats: JitterStats,
    concealed: u64,
}

impl JitterBuffer {
    /// A buffer for one track.
    pub fn new() -> Result<Self, OpusError> {
        Ok(Self {
            decoder: decoder()?,
            epoch: None,
            waiting: VecDeque::new(),
            newest: None,
            stranger: None,
            next: None,
            ready: Vec::with_capacity(8 * FRAME),
            tail: Heard::Silence,
            made_up: FADE_TO,
            stretched: 0,
            disjoint: false,
            before: Vec::with_capacity(JOINT),
            uncounted: 0,
            transits: Transits::default(),
            sequences: Sequences::default(),
            loss: 0.0,
            patience: 0,
            loudest: 0.0,
            unchanged: 0,
            stats: JitterStats::default(),
            concealed: 0,
        })
    }

    /// Takes a packet, in whatever order they come.
    pub fn push(&mut self, packet: Arrived) {
        let Ok(length) = clock_frames(&packet.payload) else {
            self.stats.unreadable += 1;
            return;
        };
        let arrived = self.clock(packet.at);
        let timestamp = self.extend(packet.timestamp);
        let transit = arrived - timestamp;
        if self.is_strange(packet.sequence, transit) {
            match self.stranger.take() {
                Some((first, before)) if (before - transit).abs() < STRANGE => {
                    self.restart();
                    self.push(first);
                    self.push(packet);
                }
                _ => self.stranger = Some((packet, transit)),
            }
            return;
        }
        self.stranger = None;
        if !self.sequences.push(packet.sequence) {
            return;
        }
        if self.newest.is_none_or(|(_, newest)| newest < timestamp) {
            self.newest = Some((packet.timestamp, timestamp));
        }
        self.transits.push(timestamp, transit);
        let packet = Waiting {
            sequence: packet.sequence,
            timestamp,
            length: i64::from(length),
            payload: packet.payload,
        };
        if self.next.is_some_and(|next| next.is_past(&packet)) {
            self.stats.late += 1;
            return;
        }
        let behind = self.waiting.iter().rev();
        let place = behind
            .take_while(|other| other.sequence > packet.sequence)
            .count();
        self.waiting.insert(self.waiting.len() - place, packet);
        self.drop_oldest();
    }

    /// The next 20 ms, to be called once every 20 ms. `now` is when they are due rather than when the caller came round
    /// to it: its own unpunctuality would be taken for the network's.
    pub fn pull(&mut self, now: Instant, frame: &mut [i16; FRAME]) -> Heard {
        let now = self.clock(now);
        let mut heard = Heard::Silence;
        if !self.ready.is_empty() {
            heard = self.tail;
        }
        self.fill(now, &mut heard);
        if self.adapt(now) {
            self.fill(now, &mut heard);
        }
        if let Some(first) = self.ready.first_chunk::<FRAME>() {
            *frame = *first;
            self.ready.drain(..FRAME);
        }
        heard
    }

    /// The counts.
    pub fn stats(&self) -> JitterStats {
        JitterStats {
            received: self.sequences.received(),
            duplicates: self.sequences.duplicates(),
            lost: self.sequences.lost(),
            concealed: SampleRate::HZ_48000
                .duration_of(usize::try_from(self.concealed).unwrap_or(usize::MAX)),
            ..self.stats
        }
    }

    fn clock(&mut self, at: Instant) -> i64 {
        let epoch = *self.epoch.get_or_insert(at);
        let micros = at.saturating_duration_since(epoch).as_micros();
        i64::try_from(micros * 48 / 1_000).unwrap_or(i64::MAX / 4)
    }

    fn extend(&self, timestamp: u32) -> i64 {
        self.newest.map_or(i64::from(timestamp), |(raw, extended)| {
            extended + i64::from(timestamp.wrapping_sub(raw).cast_signed())
        })
    }

    fn is_strange(&self, sequence: u64, transit: i64) -> bool {
        let Some(fastest) = self.transits.fastest() else {
            return false;
        };
        let far = self
            .next
            .is_some_and(|next| next.sequence.abs_diff(sequence) > STRANGE_NUMBERS);
        far || (transit - fastest).abs() > STRANGE
    }

    /// Begins anew with the next packet; what was heard last is faded out.
    fn restart(&mut self) {
        self.stats.restarts += 1;
        self.waiting.clear();
        self.newest = None;
        self.next = None;
        self.transits.clear();
        self.sequences.restart();
        if let Ok(decoder) = decoder() {
            self.decoder = decoder;
        }
    }

    fn drop_oldest(&mut self) {
        while let (Some(first), Some(last)) = (self.waiting.front(), self.waiting.back()) {
            let held = last.timestamp + last.length - first.timestamp;
            if held <= CAPACITY && self.waiting.len() <= MOST_PACKETS {
                break;
            }
            self.waiting.pop_front();
            self.stats.overrun += 1;
            self.next = self.waiting.front().map(|first| Next {
                sequence: first.sequence,
                timestamp: first.timestamp,
            });
        }
    }

    /// The delay that is aimed at.
    fn target(&self) -> i64 {
        let depth = self.transits.spread() + SHALLOWEST + self.patience;
        self.transits.fastest().unwrap_or(0) + depth.clamp(SHALLOWEST, DEEPEST)
    }

    /// The delay with which what has this timestamp is handed out, if it comes after what is ready.
    fn delay(&self, now: i64, timestamp: i64) -> i64 {
        now + self.ready.len() as i64 - timestamp
    }

    fn fill(&mut self, now: i64, heard: &mut Heard) {
        while self.ready.len() < FRAME {
            self.tail = self.step(now);
            *heard = self.tail.max(*heard);
        }
    }

    /// Appends at least one sample.
    fn step(&mut self, now: i64) -> Heard {
        let Some(first) = self.waiting.front() else {
            let missing = self.missing();
            self.stretched += missing as i64;
            self.disjoint = true;
            return self.make_up(missing);
        };
        let (sequence, timestamp) = (first.sequence, first.timestamp);
        let gap = match self.next {
            Some(next) if self.made_up < FADE_TO => timestamp - next.timestamp,
            // It begins, or begins again: as late as is good for it.
            _ => return self.wait_for(now, timestamp),
        };
        if gap <= 0 {
            return self.decode();
        }
        let follows = self.next.is_some_and(|next| next.sequence == sequence);
        if follows || gap > CAPACITY {
            return self.wait_for(now, timestamp);
        }
        self.bridge(now, gap)
    }

    /// Samples that lack to a frame, in whole units.
    fn missing(&self) -> usize {
        (FRAME.saturating_sub(self.ready.len())).next_multiple_of(UNIT)
    }

    /// Between two talk spurts time can be left out or put in freely, so that the second has the delay aimed at.
    fn wait_for(&mut self, now: i64, timestamp: i64) -> Heard {
        self.disjoint = true;
        let early = self.target() - self.delay(now, timestamp);
        match usize::try_from(early) {
            Ok(early @ 1..) => self.make_up(early.min(self.missing())),
            _ => self.decode(),
        }
    }

    /// Goes on through a gap left by lost packets.
    fn bridge(&mut self, now: i64, gap: i64) -> Heard {
        let (Some(next), Some(first)) = (&mut self.next, self.waiting.front()) else {
            return self.decode();
        };
        let redundancy = if carries_redundancy(&first.payload) {
            first.length.min(gap)
        } else {
            0
        };
        if self.stretched > 0 {
            // It was already bridged when nobody could know that it was lost. What can be recovered is, all the same.
            let bridged = self.stretched.min(gap - redundancy);
            next.timestamp += bridged;
            self.stretched = 0;
            return self.step(now);
        }
        if gap <= redundancy {
            next.timestamp += gap;
            let payload = first.payload.clone();
            return self.recover(&payload, gap);
        }
        let length = usize::try_from(gap - redundancy)
            .unwrap_or(FRAME)
            .min(FRAME);
        next.timestamp += length as i64;
        self.make_up(length)
    }

    /// Appends the `gap` before a packet, from what it holds of it.
    fn recover(&mut self, following: &[u8], gap: i64) -> Heard {
        self.prolong();
        let start = self.ready.len();
        let length = usize::try_from(gap).unwrap_or(FRAME);
        let lost = SampleRate::HZ_48000.duration_of(length);
        match self.decoder.recover(following, lost, &mut self.ready) {
            Ok(()) if self.ready.len() > start => {
                self.stats.recovered += 1;
                self.voiced(start);
                Heard::Recovered
            }
            _ => self.make_up(length),
        }
    }

    fn decode(&mut self) -> Heard {
        let Some(first) = self.waiting.pop_front() else {
            return self.make_up(FRAME);
        };
        let before = self.next.replace(Next {
            sequence: first.sequence.wrapping_add(1),
            timestamp: first.timestamp + first.length,
        });
        if let Some(before) = before {
            let pause = before.sequence == first.sequence && before.timestamp < first.timestamp;
            if !pause {
                self.concealed += self.uncounted as u64;
            }
            let missing = first.sequence.saturating_sub(before.sequence).min(50);
            for lost in std::iter::repeat_n(1.0, missing as usize).chain([0.0]) {
                self.loss += (lost - self.loss) / 256.0;
            }
        }
        if self.loss > LOSSY && carries_redundancy(&first.payload) {
            self.patience = first.length;
        } else if self.loss < LOSSLESS {
            self.patience = 0;
        }
        self.uncounted = 0;
        self.prolong();
        let start = self.ready.len();
        match self.decoder.decode(&first.payload, &mut self.ready) {
            Ok(()) if self.ready.len() > start => {
                self.voiced(start);
                Heard::Voice
            }
            _ => {
                self.stats.unreadable += 1;
                let length = usize::try_from(first.length).unwrap_or(FRAME);
                self.make_up(length.clamp(UNIT, FRAME))
            }
        }
    }

    /// Real sound begins at `start` of what is ready.
    fn voiced(&mut self, start: usize) {
        if self.made_up >= FADE_TO {
            for (n, sample) in self.ready.iter_mut().skip(start).take(RISE).enumerate() {
                *sample = scaled(*sample, n as f32 / RISE as f32);
            }
        }
        let joint = self.ready.iter_mut().skip(start).zip(&self.before);
        for (n, (sample, before)) in joint.enumerate() {
            let share = n as f32 / JOINT as f32;
            *sample = scaled(*sample, share).saturating_add(scaled(*before, 1.0 - share));
        }
        self.before.clear();
        self.disjoint = false;
        self.made_up = 0;
        self.stretched = 0;
    }

    /// Prepares to fade into what does not begin where the sound before it ends.
    fn prolong(&mut self) {
        self.before.clear();
        if self.disjoint && self.made_up < FADE_TO {
            let length = SampleRate::HZ_48000.duration_of(JOINT);
            // Where it fails there is nothing to fade from.
            let _ = self.decoder.conceal(length, &mut self.before);
            let left = FADE_TO - self.made_up;
            for sample in &mut self.before {
                *sample = scaled(*sample, left as f32 / (FADE_TO - FADE_FROM) as f32);
            }
        }
    }

    /// Appends `length` samples that nobody sent, at most a frame: what was heard before goes on, fading, then silence.
    fn make_up(&mut self, length: usize) -> Heard {
        let length = length.clamp(1, FRAME);
        let start = self.ready.len();
        let silence = self.made_up >= FADE_TO;
        if !silence {
            let units = length.div_ceil(UNIT) as u32;
            // Where it fails there is silence.
            let _ = self
                .decoder
                .conceal(units * Duration::from_micros(2_500), &mut self.ready);
            self.uncounted += length.min(FADE_TO - self.made_up);
        }
        self.ready.resize(start + length, 0);
        if silence {
            return Heard::Silence;
        }
        for (n, sample) in self.ready.iter_mut().skip(start).enumerate() {
            let left = FADE_TO.saturating_sub(self.made_up + n);
            *sample = scaled(*sample, left as f32 / (FADE_TO - FADE_FROM) as f32);
        }
        self.made_up = (self.made_up + length).min(FADE_TO);
        Heard::Concealed
    }

    /// Brings the delay nearer to the target where that is not heard; true when something was taken out.
    fn adapt(&mut self, now: i64) -> bool {
        let (Some(next), Some(fastest)) = (self.next, self.transits.fastest()) else {
            return false;
        };
        let (delay, target) = (self.delay(now, next.timestamp), self.target());
        // While the sound is stretched nobody knows whether what is missing is late or lost.
        if self.stretched == 0 {
            self.stats.depth = duration(delay - fastest);
        }
        self.stats.target = duration(target - fastest);
        self.unchanged = self.unchanged.saturating_add(1);
        let Some(piece) = self.ready.last_chunk::<FRAME>() else {
            return false;
        };
        let loudness = root_mean_square(piece);
        self.loudest = loudness.max(self.loudest * 0.995);
        let pause = loudness < (self.loudest * 0.03).max(20.0);
        if self.tail != Heard::Voice {
            return false;
        }
        let excess = delay - target;
        let (alike, longest) = match excess {
            ..-960 => (0.3, FRAME),
            -960..-48 => (if pause { -1.0 } else { 0.7 }, 12 * MS as usize),
            720.. if pause && self.unchanged >= 2 => (-1.0, excess as usize),
            4_800.. if self.unchanged >= 3 => (0.5, FRAME),
            1_200.. if self.unchanged >= 10 => (0.8, FRAME),
            _ => return false,
        };
        match splice::find(&self.ready, longest) {
            Some(cut) if cut.alike >= alike && excess < 0 => {
                splice::lengthen(&mut self.ready, cut.lag);
                self.stats.lengthened += 1;
                false
            }
            Some(cut) if cut.alike >= alike => {
                splice::shorten(&mut self.ready, cut.lag);
                self.stats.shortened += 1;
                self.unchanged = 0;
                true
            }
            _ => false,
        }
    }
}

impl Next {
    /// Whether the place of a packet is filled.
    const fn is_past(&self, packet: &Waiting) -> bool {
        packet.sequence < self.sequence || packet.timestamp + packet.length <= self.timestamp
    }
}

fn decoder() -> Result<OpusDecoder, OpusError> {
    OpusDecoder::new(Layout::mono(SampleRate::HZ_48000))
}

fn duration(samples: i64) -> Duration {
    SampleRate::HZ_48000.duration_of(usize::try_from(samples).unwrap_or(0))
}

fn root_mean_square(samples: &[i16]) -> f32 {
    (energy(samples) / samples.len() as f32).sqrt()
}

/// A sample times a factor, at most as large as it is.
fn scaled(sample: i16, factor: f32) -> i16 {
    (f32::from(sample) * factor.clamp(0.0, 1.0)) as i16
}
