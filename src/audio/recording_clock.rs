//! Puts both sides of a conversation on one sample clock: input and output become blocks of 20 ms, with silence where
//! there was nothing. A pure struct; times are passed in, counted from the start.
//!
//! Audio from a socket has no timestamps. Continuous audio is positioned by its samples, however it was delayed on the
//! way: each chunk follows the previous one. If the client paused or something was lost, only arrival times tell for
//! how long: everything after such a gap is late ([`Lateness`]), and the gap becomes silence. So the true position is
//! the time of speaking plus the minimum transit time. With delays varying by up to 60 ms, it is met within 20 ms
//! except for one burst in 500, which is off by up to 30 ms, and errors do not accumulate: silence that was inserted by
//! mistake is worked off by dropping quiet samples as soon as audio is early. Within loud audio, short gaps wait for a
//! pause. Messages of more than 100 ms are late by the excess, because a recording must not wait any longer.
//!
//! Output comes with the time at which the listener hears it. A sender that is faster than real time pushes the clock
//! forward, so that nothing is lost.
//!
//! In mono, Opus packets of the input are passed through ([`Piece::Packet`]) as long as there is a single source and no
//! output, because then there is nothing to mix.

mod lateness;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::format::{Channels, Layout, SampleRate};
use super::opus::{FRAME, clock_frames};
use super::pcm::Pcm;
use super::resample::Resampler;
use lateness::Lateness;

/// How long input is held before it is positioned.
const HOLD: Duration = Duration::from_millis(400);
/// How far behind the clock blocks are returned: later audio has missed its position. More than [`HOLD`] and the lead
/// of paced output, whose cut parts were never heard.
const LAG: Duration = Duration::from_millis(500);
/// How late input must be for silence to be inserted before it: normally, while little is known of the network, and
/// within loud audio, where the silence would be audible.
const LATE: Duration = Duration::from_millis(8);
const LATE_AT_FIRST: Duration = Duration::from_millis(30);
const LATE_IN_SPEECH: Duration = Duration::from_millis(60);
/// How early it must be for quiet samples to be dropped.
const EARLY: Duration = Duration::from_millis(5);
/// Input that is ahead by this much pushes the clock forward; less is worked off.
const SURPLUS: Duration = Duration::from_secs(2);
/// Output that is ahead by this much pushes the clock forward.
const AHEAD: Duration = Duration::from_secs(5);
/// The maximum buffered audio per side.
const MAX_READY: Duration = Duration::from_secs(30);
/// Audio not louder than this (−36 dBFS) is quiet.
const QUIET: u16 = 520;
/// The unit of silence between packets: the shortest Opus frame.
const SHORTEST: Duration = Duration::from_micros(2_500);
/// The maximum size of a packet that is passed through, limited by the size of an Ogg page.
const MAX_PACKET: usize = 60_000;
/// The maximum size of all packets that are held: twice what [`MAX_READY`] takes at the highest bitrate of Opus. Padding
/// makes a packet large, however short it is.
const MAX_PACKETS: usize = 4 << 20;
/// How many changes of where input is are remembered. Without gaps there is one; a bad network makes some in each minute.
const MAX_PLACES: usize = 1_024;

/// The clock, and the audio positioned on it.
#[derive(Debug)]
pub struct RecordingClock {
    layout: Layout,
    /// Frames by which the clock is ahead of real time.
    pushed: u64,
    /// Frames returned so far.
    given: u64,
    /// Packets that follow what was returned; `ready` audio comes after them.
    passed: Passed,
    /// Whether input packets are passed through.
    passing: bool,
    heard: Side,
    played: Side,
    /// Where the recording ends, once it does.
    end: Option<u64>,
    /// Input that is not positioned yet.
    waiting: VecDeque<Waiting>,
    waiting_frames: usize,
    /// Bytes of the packets that wait or follow what was returned.
    packet_bytes: usize,
    lateness: Lateness,
    /// The lateness of waiting chunks; a field to reuse its memory.
    window: Vec<i64>,
    /// Whether the last positioned chunk is loud; `None` before the first.
    was_loud: Option<bool>,
    dropped: u64,
    /// Frames of input that have come, with those that are not recorded.
    came: u64,
    /// Where input is, in order: each counts until the next one.
    places: VecDeque<Place>,
}

/// The frame of the recording at which a frame of the input is; those behind it follow.
#[derive(Debug, Clone, Copy)]
struct Place {
    came: u64,
    frame: u64,
}

/// A piece of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A block of [`FRAME`] was appended.
    Block,
    /// An Opus packet of the input, unchanged.
    Packet(Bytes),
    /// Silence between packets, in units of 2.5 ms, at most one [`FRAME`].
    Silence(u32),
}

/// Packets passed through, and the silence between them.
#[derive(Debug, Default)]
struct Passed {
    pieces: VecDeque<PassedPiece>,
    frames: u64,
}

/// Its duration on the clock; without a packet it is silence.
#[derive(Debug)]
struct PassedPiece {
    packet: Option<Bytes>,
    frames: u64,
}

/// The positioned audio of one side, starting where the returned audio ends.
#[derive(Debug, Default)]
struct Side {
    ready: VecDeque<i16>,
    /// What was returned last; a field to reuse its memory.
    given: Vec<i16>,
    resampler: Option<Resampler>,
}

#[derive(Debug)]
struct Waiting {
    samples: Vec<i16>,
    /// Its duration on the clock.
    frames: usize,
    /// The packet it was decoded from, if that can be passed through.
    packet: Option<Bytes>,
    /// The frames of input that have come before it.
    came: u64,
    at: Duration,
    /// Where it would begin if its last sample had been spoken on arrival.
    start: i64,
}

impl RecordingClock {
    /// An empty clock that returns blocks of `layout`: stereo has input on the left and output on the right, mono mixes
    /// them.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            pushed: 0,
            given: 0,
            passed: Passed::default(),
            passing: layout.channels == Channels::Mono,
            heard: Side::default(),
            played: Side::default(),
            end: None,
            waiting: VecDeque::new(),
            waiting_frames: 0,
            packet_bytes: 0,
            lateness: Lateness::default(),
            window: Vec::new(),
            was_loud: None,
            dropped: 0,
            came: 0,
            places: VecDeque::new(),
        }
    }

    /// The layout of the blocks.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Frames returned so far.
    pub const fn frames(&self) -> u64 {
        self.given
    }

    /// How much audio is held, of the side that holds more.
    pub fn held(&self) -> Duration {
        let passed = usize::try_from(self.passed.frames).unwrap_or(usize::MAX);
        let heard = self.heard.ready.len() + self.waiting_frames;
        let frames = passed.saturating_add(heard.max(self.played.ready.len()));
        self.layout.rate.duration_of(frames)
    }

    /// How much audio was dropped because it was not taken in time.
    pub fn dropped(&self) -> Duration {
        let frames = usize::try_from(self.dropped).unwrap_or(usize::MAX);
        self.layout.rate.duration_of(frames)
    }

    /// The position of a moment on the clock.
    pub fn position(&self, at: Duration) -> Duration {
        at + self.layout.rate.duration_of(self.pushed as usize)
    }

    /// Until where there is input, once what waits has been positioned.
    pub fn heard_until(&self) -> Duration {
        self.time_of((self.next_heard() + self.waiting_frames as i64).unsigned_abs())
    }

    /// Input has come that is not recorded, so long.
    pub fn miss(&mut self, sound: Duration) {
        self.came += self.frames_in(sound);
    }

    /// Where the input is that came so long before the newest. It is between the two; they are the same as soon as it has
    /// been positioned, unless that is too long ago.
    pub fn place_of_input(&self, ago: Duration) -> Range<Duration> {
        let place = self.place_of(self.came.saturating_sub(self.frames_in(ago)));
        self.time_of(place.start)..self.time_of(place.end)
    }

    fn place_of(&self, came: u64) -> Range<u64> {
        let mut next = self.next_heard() as u64;
        let waits = |waiting: &Waiting| waiting.came <= came;
        if self.waiting.front().is_none_or(|first| !waits(first)) {
            let behind = self.places.partition_point(|place| place.came <= came);
            let limit = self.places.get(behind).map_or(next, |place| place.frame);
            let place = behind.checked_sub(1).and_then(|at| self.places.get(at));
            let frame = place.map(|place| (place.frame + (came - place.came)).min(limit));
            // Input that nobody remembers is anywhere before.
            return frame.unwrap_or_default()..frame.unwrap_or(limit);
        }
        // It follows what came before, or is as late as it has come.
        let mut latest = next;
        for waiting in &self.waiting {
            let frames = waiting.frames as u64;
            latest = latest.max(u64::try_from(waiting.start).unwrap_or_default());
            let within = came.saturating_sub(waiting.came);
            if within < frames {
                return next + within..latest + within;
            }
            (next, latest) = (next + frames, latest + frames);
        }
        next..latest
    }

    /// Adds input that arrived at `at`, with the Opus packet it was decoded from, if any. After the end nothing is added.
    pub fn hear(&mut self, sound: &Pcm, packet: Option<&[u8]>, at: Duration) {
        if self.end.is_some() {
            return;
        }
        let mut samples = Vec::new();
        self.heard.bring(sound, self.layout.rate, &mut samples);
        let packet = packet.filter(|packet| self.passing && packet.len() <= MAX_PACKET);
        if samples.is_empty() {
            return;
        }
        // The whole duration of a packet, even if some of its audio is skipped at the start of a stream.
        let frames = packet.map_or(samples.len(), |packet| self.frames_of(packet));
        let bytes = packet.map_or(0, <[u8]>::len);
        if self.packet_bytes + bytes > MAX_PACKETS {
            self.dropped += frames as u64;
            return;
        }
        self.packet_bytes += bytes;
        let came = self.came;
        self.came += frames as u64;
        let packet = packet.map(Bytes::copy_from_slice);
        let start = self.clock(at) as i64 - frames as i64;
        self.waiting_frames += frames;
        self.waiting.push_back(Waiting {
            samples,
            frames,
            packet,
            came,
            at,
            start,
        });
        self.place(at);
    }

    /// Adds output sent at `at` to a listener who still has `unplayed` to hear before it. After the end nothing is added.
    pub fn play(&mut self, sound: &Pcm, at: Duration, unplayed: Duration) {
        if self.end.is_some() {
            return;
        }
        let mut samples = Vec::new();
        self.played.bring(sound, self.layout.rate, &mut samples);
        self.passing = false;
        let clock = self.clock(at);
        let next = self.next_of(&self.played) as u64;
        // Output that follows other output is contiguous, whatever the clock says.
        if unplayed.is_zero() {
            let silence = clock.saturating_sub(next);
            self.played.silence(silence, self.max_ready());
        }
        self.dropped += self.played.add(&samples, self.max_ready());
        let next = self.next_of(&self.played) as u64;
        let ahead = next.saturating_sub(clock + self.frames_in(AHEAD));
        self.push_clock(ahead);
    }

    /// The end of the output was cut and will not be heard.
    pub fn cut(&mut self, unheard: Duration) {
        let frames = self.layout.rate.frames_in(unheard);
        let kept = self.played.ready.len().saturating_sub(frames);
        self.played.ready.truncate(kept);
    }

    /// Until which frame the recording is due.
    pub fn due(&mut self, now: Duration) -> u64 {
        match self.end {
            // At most one packet may extend beyond the end.
            Some(end) => end.next_multiple_of(self.frames_in(SHORTEST)),
            None => {
                self.place(now);
                self.clock(now).saturating_sub(self.frames_in(LAG))
            }
        }
    }

    /// The next piece, if it is due. Blocks are appended to `block`.
    pub fn take(&mut self, now: Duration, block: &mut Vec<i16>) -> Option<Piece> {
        let horizon = self.due(now);
        let frames = self.layout.rate.frames_in(FRAME);
        let due = usize::try_from(horizon.saturating_sub(self.given)).unwrap_or(usize::MAX);
        if self.passing || self.passed.frames > 0 {
            return self.give_passed(due);
        }
        let is_due = self.end.map_or(due >= frames, |end| self.given < end);
        is_due.then(|| {
            self.give(frames, block);
            Piece::Block
        })
    }

    /// Ends the recording at `end`: the rest can be taken at once, padded with silence; frames beyond the returned
    /// number are to be dropped. Output that would have been heard later is dropped, input is not.
    pub fn finish(&mut self, end: Duration) -> u64 {
        self.place(end + HOLD);
        let total = self.clock(end).max(self.next_heard() as u64);
        *self.end.insert(total)
    }

    fn clock(&self, at: Duration) -> u64 {
        self.frames_in(at) + self.pushed
    }

    fn frames_in(&self, time: Duration) -> u64 {
        self.layout.rate.frames_in(time) as u64
    }

    fn time_of(&self, frame: u64) -> Duration {
        let frames = usize::try_from(frame).unwrap_or(usize::MAX);
        self.layout.rate.duration_of(frames)
    }

    /// The duration of a packet on the clock, in frames.
    fn frames_of(&self, packet: &[u8]) -> usize {
        let frames = clock_frames(packet).unwrap_or(0) as usize;
        frames / (SampleRate::HZ_48000.hz() / self.layout.rate.hz()) as usize
    }

    fn max_ready(&self) -> usize {
        self.layout.rate.frames_in(MAX_READY)
    }

    fn push_clock(&mut self, frames: u64) {
        self.pushed += frames;
        for waiting in &mut self.waiting {
            waiting.start += frames as i64;
        }
    }

    /// Positions the chunks that have waited long enough.
    fn place(&mut self, now: Duration) {
        let surplus = self.frames_in(SURPLUS) as i64;
        while let Some(first) = self.waiting.front()
            && (first.at + HOLD <= now || self.waiting_frames as i64 > surplus)
        {
            let mut late = self.late();
            if late <= -surplus {
                self.push_clock(late.unsigned_abs());
                late = 0;
            }
            let Some(chunk) = self.waiting.pop_front() else {
                return;
            };
            self.waiting_frames -= chunk.frames;
            // Another source, or one that cannot be passed through.
            self.passing &= chunk.packet.is_some();
            let loud = !is_quiet(&chunk.samples);
            let (next, len) = (self.next_heard(), chunk.frames);
            let (mut silence, mut left_out) = self.correction(late, loud, len);
            if self.passing {
                silence -= silence % self.frames_in(SHORTEST) as i64;
                left_out = if left_out < len { 0 } else { len };
            }
            if !loud {
                // Loud audio may still have to wait for a correction.
                let late = chunk.start - next - silence + left_out as i64;
                self.lateness.learn(late);
            }
            self.was_loud = Some(loud);
            self.put(chunk, silence as u64, left_out);
        }
    }

    /// Puts input at its position.
    fn put(&mut self, chunk: Waiting, silence: u64, left_out: usize) {
        let limit = self.max_ready();
        let bytes = chunk.packet.as_ref().map_or(0, Bytes::len);
        self.packet_bytes -= bytes;
        if left_out < chunk.frames {
            let came = chunk.came + left_out as u64;
            self.remember(came, self.next_heard() as u64 + silence);
        }
        if !self.passing {
            self.heard.silence(silence, limit);
            let samples = chunk.samples.get(left_out..).unwrap_or_default();
            self.dropped += self.heard.add(samples, limit);
            return;
        }
        let frames = chunk.frames as u64;
        self.passed.add(None, silence);
        if left_out > 0 {
            return;
        }
        if self.passed.frames + frames > limit as u64 {
            self.dropped += frames;
        } else if frames > 0 {
            self.packet_bytes += bytes;
            self.passed.add(chunk.packet, frames);
        }
    }

    /// Input is put at this frame.
    fn remember(&mut self, came: u64, frame: u64) {
        let last = self.places.back();
        if last.is_some_and(|last| last.frame + (came - last.came) == frame) {
            return;
        }
        if self.places.len() >= MAX_PLACES {
            self.places.pop_front();
        }
        self.places.push_back(Place { came, frame });
    }

    /// The silence to insert before a chunk that is late, and how much of it to drop if it is early.
    fn correction(&self, late: i64, loud: bool, len: usize) -> (i64, usize) {
        let needed = match self.was_loud {
            None => Duration::ZERO,
            Some(true) if loud => LATE_IN_SPEECH,
            Some(_) if self.lateness.knows() => LATE,
            Some(_) => LATE_AT_FIRST,
        };
        if late > 0 && late >= self.frames_in(needed) as i64 {
            (late, 0)
        } else if !loud && late <= -(self.frames_in(EARLY) as i64) {
            let early = usize::try_from(late.unsigned_abs()).unwrap_or(usize::MAX);
            (0, early.min(len))
        } else {
            (0, 0)
        }
    }

    /// How late the waiting input is, in frames; negative if it is early.
    fn late(&mut self) -> i64 {
        let mut next = self.next_heard();
        self.window.clear();
        for waiting in &self.waiting {
            self.window.push(waiting.start - next);
            next += waiting.frames as i64;
        }
        self.lateness.of(&self.window)
    }

    /// The position where input continues.
    fn next_heard(&self) -> i64 {
        self.next_of(&self.heard)
    }

    fn next_of(&self, side: &Side) -> i64 {
        (self.given + self.passed.frames + side.ready.len() as u64) as i64
    }

    /// Returns the next packet that is due, or at most `due` frames of silence.
    fn give_passed(&mut self, due: usize) -> Option<Piece> {
        let [shortest, longest] = [SHORTEST, FRAME].map(|time| self.layout.rate.frames_in(time));
        let silence = match self.passed.pieces.front() {
            Some(PassedPiece {
                packet: Some(_),
                frames,
            }) => {
                // At the end everything is due.
                if (due as u64) < *frames && self.end.is_none() {
                    return None;
                }
                let piece = self.passed.pieces.pop_front()?;
                self.passed.frames -= piece.frames;
                self.given += piece.frames;
                self.packet_bytes -= piece.packet.as_ref().map_or(0, Bytes::len);
                return piece.packet.map(Piece::Packet);
            }
            Some(silence) => due.min(usize::try_from(silence.frames).unwrap_or(usize::MAX)),
            None => due,
        };
        let units = silence.min(longest) / shortest;
        if units == 0 {
            return None;
        }
        let frames = (units * shortest) as u64;
        self.passed.silence_given(frames);
        self.given += frames;
        Some(Piece::Silence(units as u32))
    }

    fn give(&mut self, frames: usize, block: &mut Vec<i16>) {
        self.given += frames as u64;
        let (heard, played) = (self.heard.give(frames), self.played.give(frames));
        let both = heard.iter().zip(played);
        let start = block.len();
        match self.layout.channels {
            Channels::Stereo => {
                block.resize(start + 2 * frames, 0);
                let block = block.get_mut(start..).unwrap_or_default();
                for (frame, (heard, played)) in block.as_chunks_mut().0.iter_mut().zip(both) {
                    *frame = [*heard, *played];
                }
            }
            Channels::Mono => {
                block.extend(both.map(|(heard, played)| heard.saturating_add(*played)));
            }
        }
    }
}

impl Passed {
    fn add(&mut self, packet: Option<Bytes>, frames: u64) {
        if frames > 0 {
            self.frames += frames;
            self.pieces.push_back(PassedPiece { packet, frames });
        }
    }

    /// Consumes silence at the front, if there is any.
    fn silence_given(&mut self, frames: u64) {
        let Some(silence) = self.pieces.front_mut() else {
            return;
        };
        silence.frames -= frames;
        self.frames -= frames;
        if silence.frames == 0 {
            self.pieces.pop_front();
        }
    }
}

impl Side {
    /// Converts audio to mono at this rate.
    fn bring(&mut self, sound: &Pcm, rate: SampleRate, samples: &mut Vec<i16>) {
        let mono;
        let sound = match sound.layout().channels {
            Channels::Mono => sound,
            Channels::Stereo => {
                mono = sound.clone().into_mono();
                &mono
            }
        };
        if sound.rate() == rate {
            samples.extend_from_slice(sound.samples());
            return;
        }
        let known = self.resampler.take();
        let known = known.filter(|resampler| resampler.input_layout() == sound.layout());
        let new = || Resampler::new(sound.layout(), rate);
        let resampler = self.resampler.insert(known.unwrap_or_else(new));
        resampler.push(sound.samples(), samples);
    }

    fn silence(&mut self, frames: u64, limit: usize) {
        let len = self.ready.len();
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        self.ready
            .resize(len.saturating_add(frames).min(len.max(limit)), 0);
    }

    /// The first samples, so many; where there are fewer, silence follows them.
    fn give(&mut self, frames: usize) -> &[i16] {
        if self.ready.len() < frames {
            self.ready.resize(frames, 0);
        }
        // Copied, as what is ready goes round in its memory: to move all of it to the beginning took longer.
        let (front, back) = self.ready.as_slices();
        let front = front.get(..frames).unwrap_or(front);
        self.given.clear();
        self.given.extend_from_slice(front);
        let rest = frames - front.len();
        self.given
            .extend_from_slice(back.get(..rest).unwrap_or_default());
        self.ready.drain(..frames);
        &self.given
    }

    /// Returns how many samples did not fit.
    fn add(&mut self, samples: &[i16], limit: usize) -> u64 {
        let room = limit.saturating_sub(self.ready.len()).min(samples.len());
        self.ready.extend(&samples[..room]);
        (samples.len() - room) as u64
    }
}

fn is_quiet(samples: &[i16]) -> bool {
    // In pieces, as the loudest of a piece is found many samples at a time.
    let loudest = |piece: &[i16]| piece.iter().map(|sample| sample.unsigned_abs()).max();
    samples
        .chunks(64)
        .all(|piece| loudest(piece) <= Some(QUIET))
}

#[cfg(any(test, feature = "testing"))]
pub mod impaired_network;

#[cfg(test)]
mod tests;
