//! The jitter buffer of a received track: packets arrive when the network delivers them, Opus or, within this process, samples;
//! audio leaves 20 ms at a time. It adds no more delay than the arrivals require, conceals what is missing, and follows the publisher's clock
//! without clicks.
//!
//! All times are in ticks of a room's clock, which are samples at 48 kHz, whatever the rate at which a listener takes the sound:
//! a packet's *transit* is its arrival minus its timestamp, the *delay* of a sample
//! is its playout minus its timestamp. Packets are in time as long as the delay exceeds their transit, so the delay is
//! kept near a target: the fastest transit plus the *depth*, which depends on the spread of the transits. It is
//! corrected where that is inaudible: in silence between talk spurts, or by removing or inserting a pitch period of the
//! voice. When a publisher's clock drifts, all transits and thus the target move, and the drift is corrected in the
//! same way.
//!
//! If a packet is not there in time, the audio is stretched, not skipped: a packet that arrives a little late is still
//! played in full. Words matter more than a few milliseconds of delay, which are recovered later.

mod arrivals;
mod pcm_decoder;
mod splice;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bandwidth::{Bandwidth, Samples};
use super::format::{Layout, SampleRate};
use super::opus::{OpusDecoder, OpusError, carries_redundancy, clock_frames};
use super::pcm::{Pcm, energy};
use super::resample::Resampler;
use arrivals::{Sequences, Transits};
use pcm_decoder::PcmDecoder;

/// A frame of 20 ms, in ticks.
pub const FRAME: usize = 960;
/// The minimum depth. A 20 ms frame must be there 20 ms before; the rest gives a correction time to wait until it is
/// inaudible.
const SHALLOWEST: i64 = 24 * MS;
/// The maximum target depth; packets that are later still stretch the audio.
const DEEPEST: i64 = 200 * MS;
/// The maximum audio buffered. Beyond it the oldest is dropped.
const CAPACITY: i64 = 1_000 * MS;
/// The maximum number of packets buffered: a second of the shortest, plus some margin.
const MOST_PACKETS: usize = 512;
/// A millisecond.
const MS: i64 = 48;
/// libopus conceals in units of 2.5 ms.
const UNIT: usize = 120;
/// Concealment is faded out from here …
const FADE_FROM: usize = 60 * MS as usize;
/// … to here: after that it would sound like a drone, not like a voice.
const FADE_TO: usize = 120 * MS as usize;
/// The fade-in of a voice after silence, so that it does not click.
const RISE: usize = UNIT;
/// The cross-fade from concealment to a voice that does not continue it.
const JOINT: usize = 2 * UNIT;
/// Beyond this a packet does not belong to the stream before it: the publisher has restarted.
const STRANGE: i64 = 2_000 * MS;
/// The same in sequence numbers.
const STRANGE_NUMBERS: u64 = 3_000;
/// Loss rate above which the buffer waits for the redundancy (FEC) in the next packet.
const LOSSY: f32 = 0.01;
/// Loss rate below which it no longer does.
const LOSSLESS: f32 = 0.003;

/// A received packet.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// The RTP sequence number, extended so that it does not wrap.
    pub sequence: u64,
    /// The RTP timestamp, at 48 kHz.
    pub timestamp: u32,
    /// Its sound.
    pub payload: Payload,
    /// When it arrived.
    pub at: Instant,
    /// How loud its sender says it is, in −dBov: 0 is the loudest, 127 silence (RFC 6464).
    pub level: Option<u8>,
}

/// The sound of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// An Opus packet; anything else is counted and dropped.
    Opus(Arc<[u8]>),
    /// 20 ms of samples: a publisher in this process need not encode for a listener in it.
    Pcm(Samples),
}

impl Payload {
    /// Its length in ticks.
    fn length(&self) -> Result<i64, OpusError> {
        match self {
            Self::Opus(packet) => clock_frames(packet).map(i64::from),
            Self::Pcm(_) => Ok(FRAME as i64),
        }
    }

    /// Whether it has no audio (DTX).
    fn is_empty(&self) -> bool {
        matches!(self, Self::Opus(packet) if packet.len() <= 2)
    }

    /// Whether what precedes it can be recovered from it.
    fn carries_redundancy(&self) -> bool {
        matches!(self, Self::Opus(packet) if carries_redundancy(packet))
    }
}

/// What made the preceding audio, and continues it.
#[derive(Debug)]
enum Decoder {
    Opus(OpusDecoder),
    Pcm(Box<PcmDecoder>),
}

impl Decoder {
    fn new(payload: &Payload, to: Bandwidth) -> Result<Self, OpusError> {
        Ok(match payload {
            Payload::Opus(_) => Self::Opus(OpusDecoder::new(Layout::mono(to.rate()))?),
            Payload::Pcm(samples) => Self::Pcm(Box::new(PcmDecoder::new(samples.bandwidth(), to))),
        })
    }

    /// Whether it is for packets like this.
    fn takes(&self, payload: &Payload) -> bool {
        match (self, payload) {
            (Self::Opus(_), Payload::Opus(_)) => true,
            (Self::Pcm(decoder), Payload::Pcm(samples)) => decoder.takes(samples),
            _ => false,
        }
    }

    fn decode(&mut self, payload: &Payload, sound: &mut Vec<i16>) -> Result<(), OpusError> {
        match (self, payload) {
            (Self::Opus(decoder), Payload::Opus(packet)) => decoder.decode(packet, sound),
            (Self::Pcm(decoder), Payload::Pcm(samples)) => {
                decoder.decode(samples, sound);
                Ok(())
            }
            // See `takes`.
            _ => Ok(()),
        }
    }

    /// Appends at least `ticks` that continue the preceding audio; fewer if that fails.
    fn conceal(&mut self, ticks: usize, sound: &mut Vec<i16>) {
        match self {
            Self::Opus(decoder) => {
                let units = ticks.div_ceil(UNIT) as u32;
                let _ = decoder.conceal(units * Duration::from_micros(2_500), sound);
            }
            Self::Pcm(decoder) => decoder.conceal(ticks, sound),
        }
    }
}

/// A packet that is due, without its audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// As in [`Arrived`].
    pub level: Option<u8>,
    /// Whether it has no audio: an Opus packet of only its first byte (DTX), and perhaps the number of its frames.
    pub empty: bool,
}

/// The origin of a frame; if there are several, the last of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// Digital silence: nobody speaks, or nothing has arrived for longer than can be concealed.
    Silence,
    /// Received audio.
    Voice,
    /// A lost packet was recovered from the redundancy (FEC) in the next one.
    Recovered,
    /// Concealment: the preceding audio was continued.
    Concealed,
}

/// Statistics since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JitterStats {
    /// Packets received, excluding duplicates.
    pub received: u64,
    /// Duplicate packets.
    pub duplicates: u64,
    /// Packets never received.
    pub lost: u64,
    /// Packets received after their playout.
    pub late: u64,
    /// Packets dropped because too many were buffered.
    pub overrun: u64,
    /// Packets that cannot be decoded.
    pub unreadable: u64,
    /// Lost or late packets recovered from the redundancy in the next one.
    pub recovered: u64,
    /// Concealment of lost or late packets. Excludes the end of talk spurts, where no packets were due.
    pub concealed: Duration,
    /// How often audio was shortened.
    pub shortened: u64,
    /// How often audio was lengthened.
    pub lengthened: u64,
    /// How often the publisher restarted.
    pub restarts: u64,
    /// How much later audio is played than would be necessary without jitter.
    pub depth: Duration,
    /// The target depth.
    pub target: Duration,
}

#[derive(Debug)]
struct Waiting {
    sequence: u64,
    /// Extended: it does not wrap.
    timestamp: i64,
    length: i64,
    payload: Payload,
    level: Option<u8>,
}

/// The next packet to decode.
#[derive(Debug, Clone, Copy)]
struct Next {
    sequence: u64,
    timestamp: i64,
}

/// The jitter buffer of one track.
#[derive(Debug)]
pub struct JitterBuffer {
    bandwidth: Bandwidth,
    /// Absent before the first packet and while the audio is passed over: of all this it is what takes most memory.
    decoder: Option<Decoder>,
    /// The origin of time: the first packet's arrival.
    epoch: Option<Instant>,
    /// By sequence number.
    waiting: VecDeque<Waiting>,
    /// The newest timestamp, as received and extended.
    newest: Option<(u32, i64)>,
    /// A packet that does not belong to the stream before it. A second one like it decides.
    stranger: Option<(Arrived, i64)>,
    next: Option<Next>,
    /// Decoded audio waiting for playout: less than a frame between two calls.
    ready: Vec<i16>,
    /// The origin of its end.
    tail: Heard,
    /// Ticks concealed since the last received sample.
    made_up: usize,
    /// Of these, those that stretch the audio: they do not stand for anything yet.
    stretched: i64,
    /// Whether the next audio does not continue the preceding one.
    disjoint: bool,
    /// The continuation of the preceding audio to cross-fade from; usually empty.
    before: Vec<i16>,
    /// Concealed ticks that are not silence and not counted yet: what they stand for is known later.
    uncounted: usize,
    transits: Transits,
    sequences: Sequences,
    /// The recent rate of packets missing at their playout.
    loss: f32,
    /// Whether the audio is passed over: see [`JitterBuffer::skip`].
    skipped: bool,
    /// Additional delay, so that lost packets can be recovered from their successors.
    patience: i64,
    /// The recent peak level (RMS), relative to which pauses are detected.
    loudest: f32,
    /// Frames since the audio was last shortened.
    unchanged: u32,
    stats: JitterStats,
    concealed: u64,
}

impl JitterBuffer {
    /// For a listener who takes sound of this bandwidth.
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self {
            bandwidth,
            decoder: None,
            epoch: None,
            waiting: VecDeque::new(),
            newest: None,
            stranger: None,
            next: None,
            ready: Vec::with_capacity(2 * bandwidth.frame()),
            tail: Heard::Silence,
            made_up: FADE_TO,
            stretched: 0,
            disjoint: false,
            before: Vec::new(),
            uncounted: 0,
            transits: Transits::default(),
            sequences: Sequences::default(),
            loss: 0.0,
            skipped: false,
            patience: 0,
            loudest: 0.0,
            unchanged: 0,
            stats: JitterStats::default(),
            concealed: 0,
        }
    }

    /// Inserts a packet; any order is fine.
    pub fn push(&mut self, packet: Arrived) {
        let Ok(length) = packet.payload.length() else {
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
            length,
            payload: packet.payload,
            level: packet.level,
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

    /// The listener takes sound of another bandwidth from now on. What has been decoded already is converted; behind it the
    /// voice fades out and in again, within a few milliseconds, as its decoder is a new one.
    pub fn convert(&mut self, bandwidth: Bandwidth) {
        let former = Layout::mono(self.bandwidth.rate());
        self.bandwidth = bandwidth;
        let ready = Pcm::new(former, std::mem::take(&mut self.ready));
        self.ready = Resampler::convert(ready, bandwidth.rate()).into_samples();
        let fall = (RISE / bandwidth.ticks()).min(self.ready.len());
        for (n, sample) in self.ready.iter_mut().rev().take(fall).enumerate() {
            *sample = scaled(*sample, n as f32 / fall as f32);
        }
        self.before.clear();
        self.decoder = None;
    }

    /// The next 20 ms, as many samples as the listener's bandwidth has in a frame, to be called every 20 ms. `now` is the
    /// nominal playout time, not the time of the call: the caller's own jitter would otherwise be attributed to the network.
    pub fn pull(&mut self, now: Instant, frame: &mut [i16]) -> Heard {
        let now = self.clock(now);
        self.skipped = false;
        let mut heard = Heard::Silence;
        if !self.ready.is_empty() {
            heard = self.tail;
        }
        self.fill(now, &mut heard);
        if self.adapt(now) {
            self.fill(now, &mut heard);
        }
        for (sample, ready) in frame.iter_mut().zip(&self.ready) {
            *sample = *ready;
        }
        let taken = self.bandwidth.frame().min(self.ready.len());
        self.ready.drain(..taken);
        heard
    }

    /// Instead of [`Self::pull`]: the next 20 ms are not wanted, and their packets are dropped without being decoded. The
    /// audio that is pulled afterwards has the target delay.
    pub fn skip(&mut self, now: Instant) {
        let now = self.clock(now);
        if !std::mem::replace(&mut self.skipped, true) {
            self.break_off();
        }
        let target = self.target();
        // Also those that reach beyond: decoding one from its middle is impossible, and from its beginning too late.
        let played = now + FRAME as i64 - target;
        while let Some(first) = self.waiting.pop_front_if(|first| first.timestamp < played) {
            self.next = Some(Next {
                sequence: first.sequence.wrapping_add(1),
                timestamp: first.timestamp + first.length,
            });
        }
        self.stats.target = duration(target - self.transits.fastest().unwrap_or(0));
        self.stats.depth = self.stats.target;
    }

    /// The next packet, if it is due within the next 20 ms.
    pub fn due(&mut self, now: Instant) -> Option<Due> {
        let now = self.clock(now);
        let first = self.waiting.front()?;
        let continues = !self.skipped && self.made_up < FADE_TO;
        let due = self.delay(now, first.timestamp) + FRAME as i64 > self.target();
        (continues || due).then_some(Due {
            level: first.level,
            empty: first.payload.is_empty(),
        })
    }

    /// The statistics.
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

    /// What was decoded is not continued, and takes no memory.
    fn break_off(&mut self) {
        self.decoder = None;
        self.ready = Vec::new();
        self.before = Vec::new();
        self.tail = Heard::Silence;
        self.made_up = FADE_TO;
        self.stretched = 0;
        self.uncounted = 0;
        self.disjoint = true;
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

    /// Restarts with the next packet; the preceding audio is faded out.
    fn restart(&mut self) {
        self.stats.restarts += 1;
        self.waiting.clear();
        self.newest = None;
        self.next = None;
        self.transits.clear();
        self.sequences.restart();
        self.decoder = None;
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

    /// The target delay.
    fn target(&self) -> i64 {
        let depth = self.transits.spread() + SHALLOWEST + self.patience;
        self.transits.fastest().unwrap_or(0) + depth.clamp(SHALLOWEST, DEEPEST)
    }

    /// The playout delay of a timestamp, if it follows what is buffered.
    fn delay(&self, now: i64, timestamp: i64) -> i64 {
        now + self.ready_ticks() as i64 - timestamp
    }

    const fn ready_ticks(&self) -> usize {
        self.ready.len() * self.bandwidth.ticks()
    }

    fn fill(&mut self, now: i64, heard: &mut Heard) {
        while self.ready_ticks() < FRAME {
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
            // A start or restart: with the target delay.
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

    /// Ticks missing to a frame, in whole concealment units.
    const fn missing(&self) -> usize {
        FRAME
            .saturating_sub(self.ready_ticks())
            .next_multiple_of(UNIT)
    }

    /// Between talk spurts time can be removed or inserted freely, so that the second one has the target delay.
    fn wait_for(&mut self, now: i64, timestamp: i64) -> Heard {
        self.disjoint = true;
        let early = self.target() - self.delay(now, timestamp);
        match usize::try_from(early) {
            Ok(early @ 1..) => self.make_up(early.min(self.missing())),
            _ => self.decode(),
        }
    }

    /// Continues across a gap left by lost packets.
    fn bridge(&mut self, now: i64, gap: i64) -> Heard {
        let (Some(next), Some(first)) = (&mut self.next, self.waiting.front()) else {
            return self.decode();
        };
        let redundancy = if first.payload.carries_redundancy() {
            first.length.min(gap)
        } else {
            0
        };
        if self.stretched > 0 {
            // It was concealed before it was known to be lost. What can be recovered is recovered all the same.
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

    /// Appends the `gap` before a packet, from the packet's redundancy.
    fn recover(&mut self, following: &Payload, gap: i64) -> Heard {
        let length = usize::try_from(gap).unwrap_or(FRAME);
        let lost = SampleRate::HZ_48000.duration_of(length);
        self.prolong(following);
        let start = self.ready.len();
        let recovered = match (&mut self.decoder, following) {
            (Some(Decoder::Opus(decoder)), Payload::Opus(packet)) => {
                Some(decoder.recover(packet, lost, &mut self.ready))
            }
            _ => None,
        };
        match recovered {
            Some(Ok(())) if self.ready.len() > start => {
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
        if self.loss > LOSSY && first.payload.carries_redundancy() {
            self.patience = first.length;
        } else if self.loss < LOSSLESS {
            self.patience = 0;
        }
        self.uncounted = 0;
        self.prolong(&first.payload);
        let start = self.ready.len();
        let decoder = self.decoder.as_mut();
        let decoded = decoder.map(|decoder| decoder.decode(&first.payload, &mut self.ready));
        match decoded {
            Some(Ok(())) if self.ready.len() > start => {
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

    /// Received audio begins at `start` of what is buffered.
    fn voiced(&mut self, start: usize) {
        if self.made_up >= FADE_TO {
            let rise = RISE / self.bandwidth.ticks();
            for (n, sample) in self.ready.iter_mut().skip(start).take(rise).enumerate() {
                *sample = scaled(*sample, n as f32 / rise as f32);
            }
        }
        let length = JOINT / self.bandwidth.ticks();
        let before = self.before.iter().take(length);
        let joint = self.ready.iter_mut().skip(start).zip(before);
        for (n, (sample, before)) in joint.enumerate() {
            let share = n as f32 / length as f32;
            *sample = scaled(*sample, share).saturating_add(scaled(*before, 1.0 - share));
        }
        self.before.clear();
        self.disjoint = false;
        self.made_up = 0;
        self.stretched = 0;
    }

    /// Prepares the decoder for a packet, and a cross-fade to audio that does not continue what precedes it.
    fn prolong(&mut self, following: &Payload) {
        self.before.clear();
        let changes = !self
            .decoder
            .as_ref()
            .is_some_and(|decoder| decoder.takes(following));
        if (self.disjoint || changes) && self.made_up < FADE_TO {
            match &mut self.decoder {
                // It fades over by itself.
                Some(Decoder::Pcm(decoder)) if !changes => decoder.break_off(),
                Some(decoder) => decoder.conceal(JOINT, &mut self.before),
                None => self.before.resize(JOINT / self.bandwidth.ticks(), 0),
            }
            let left = FADE_TO - self.made_up;
            for sample in &mut self.before {
                *sample = scaled(*sample, left as f32 / (FADE_TO - FADE_FROM) as f32);
            }
        }
        if changes {
            // If this fails, the audio is silence.
            self.decoder = Decoder::new(following, self.bandwidth).ok();
        }
    }

    /// Appends `length` ticks of concealment, at most a frame: the preceding audio continued and fading, then
    /// silence.
    fn make_up(&mut self, length: usize) -> Heard {
        let ticks = self.bandwidth.ticks();
        let samples = (length / ticks).clamp(1, self.bandwidth.frame());
        let length = samples * ticks;
        let start = self.ready.len();
        let silence = self.made_up >= FADE_TO;
        if !silence {
            if let Some(decoder) = &mut self.decoder {
                // If this fails the result is silence.
                decoder.conceal(length, &mut self.ready);
            }
            self.uncounted += length.min(FADE_TO - self.made_up);
        }
        self.ready.resize(start + samples, 0);
        if silence {
            return Heard::Silence;
        }
        for (n, sample) in self.ready.iter_mut().skip(start).enumerate() {
            let left = FADE_TO.saturating_sub(self.made_up + n * ticks);
            *sample = scaled(*sample, left as f32 / (FADE_TO - FADE_FROM) as f32);
        }
        self.made_up = (self.made_up + length).min(FADE_TO);
        Heard::Concealed
    }

    /// Moves the delay towards the target where that is inaudible; true if something was removed.
    fn adapt(&mut self, now: i64) -> bool {
        let (Some(next), Some(fastest)) = (self.next, self.transits.fastest()) else {
            return false;
        };
        let (delay, target) = (self.delay(now, next.timestamp), self.target());
        // While the audio is stretched it is unknown whether what is missing is late or lost.
        if self.stretched == 0 {
            self.stats.depth = duration(delay - fastest);
        }
        self.stats.target = duration(target - fastest);
        self.unchanged = self.unchanged.saturating_add(1);
        let (frame, ticks) = (self.bandwidth.frame(), self.bandwidth.ticks());
        let Some(start) = self.ready.len().checked_sub(frame) else {
            return false;
        };
        let loudness = root_mean_square(self.ready.get(start..).unwrap_or_default());
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
        match splice::find(&self.ready, frame, longest / ticks) {
            Some(cut) if cut.alike >= alike && excess < 0 => {
                splice::lengthen(&mut self.ready, frame, cut.lag);
                self.stats.lengthened += 1;
                false
            }
            Some(cut) if cut.alike >= alike => {
                splice::shorten(&mut self.ready, frame, cut.lag);
                self.stats.shortened += 1;
                self.unchanged = 0;
                true
            }
            _ => false,
        }
    }
}

impl Next {
    /// Whether a packet is too late for its playout.
    const fn is_past(&self, packet: &Waiting) -> bool {
        packet.sequence < self.sequence || packet.timestamp + packet.length <= self.timestamp
    }
}

fn duration(ticks: i64) -> Duration {
    SampleRate::HZ_48000.duration_of(usize::try_from(ticks).unwrap_or(0))
}

fn root_mean_square(samples: &[i16]) -> f32 {
    (energy(samples) / samples.len().max(1) as f32).sqrt()
}

/// A sample times a factor, at most as large as it is.
fn scaled(sample: i16, factor: f32) -> i16 {
    (f32::from(sample) * factor.clamp(0.0, 1.0)) as i16
}
