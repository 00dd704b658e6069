//! What one listener of a room receives: a jitter buffer for each track, and a mixer for all of them. Packets are fetched
//! from their sources and played out 20 ms at a time, by the listener's clock. Sessions and telephone calls are listeners;
//! which tracks they receive, and who asks for the next 20 ms, is left to them.
//!
//! Decoding is what costs, and in a room where everybody listens it is done for each of them. If there are more tracks than
//! [`MOST_DECODED`], the packets of most only pass through their jitter buffers, and those are decoded that may be audible:
//!
//! 1. whoever is audible, which depends on what was decoded, not on what they say of themselves;
//! 2. one track at a time in turn, whatever it says, so that nobody can be kept out for ever;
//! 3. whoever says to be loud (RFC 6464), loudest first, for at least [`TRIAL`] frames. Whoever proves to be quieter is only
//!    decoded in turn from then on;
//! 4. those who do not say how loud they are, for [`TRIAL`] frames each. The size of their packets is no measure: at a
//!    constant bit rate silence takes as much as a voice.
//!
//! Of a participant with many tracks one comes before all others.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use super::bandwidth::Bandwidth;
use super::jitter::{Arrived, Due, JitterBuffer};
use super::mix::{Fader, Gain, Mixer};
use super::room_mix::{FALL, MOST_TRACKS, MOST_VOICES, RoomMixer, SILENCE, Standing, TrackKey};

/// The maximum number of tracks decoded for the mix: those that are audible, one in turn, one that may become audible.
pub const MOST_DECODED: usize = MOST_VOICES + 2;
/// The number of tracks that are always decoded of a participant who is heard separately.
const MOST_OF_ONE: usize = 2;
/// For how many frames a track is decoded before another takes its place: 200 ms, so that the decoder has settled and a
/// voice has begun.
const TRIAL: u32 = 10;
/// For how many frames after a packet a track counts as sending: half a second.
const SENDING: u32 = 25;
/// How much louder than it is, in dB, a track may say to be.
const EXAGGERATION: f32 = 20.0;

/// The received packets of a track.
pub trait PacketSource {
    /// The next packet, if there is one. Never blocks.
    fn next_packet(&mut self) -> Option<Arrived>;
}

/// The tracks that one listener receives. See the module.
#[derive(Debug)]
pub struct TrackReceiver<S> {
    bandwidth: Bandwidth,
    /// Those of one participant are neighbours.
    tracks: Vec<Track<S>>,
    mixer: RoomMixer,
    /// Adds up the tracks of one participant.
    participant: Mixer,
    sound: Vec<i16>,
    turn: Turn,
    /// The places of all tracks, by rank.
    order: Vec<usize>,
}

/// Whose turn it is to be decoded.
#[derive(Debug, Default)]
struct Turn {
    key: Option<TrackKey>,
    identity: String,
    frames_left: u32,
}

#[derive(Debug)]
struct Track<S> {
    identity: String,
    sid: String,
    source: S,
    jitter: JitterBuffer,
    key: TrackKey,
    /// For how many frames it has been decoded; 0 if it is not.
    decoded: u32,
    /// For how many frames it has not been decoded.
    rested: u32,
    /// For how many frames it still counts as sending.
    sending: u32,
    /// Whether it says how loud it is.
    is_labelled: bool,
    /// How loud it has recently said to be, in dB below full scale; falls like the mixer's levels.
    claimed: f32,
    /// Whether it has proved to be quieter than it says.
    doubted: bool,
    rank: Rank,
}

/// The priority of a track. The fields are compared in this order.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rank {
    class: Class,
    /// Whether no other track of the participant is decoded.
    alone: bool,
    /// In dB below full scale.
    level: f32,
    /// For how many frames it has not been decoded.
    rested: u32,
}

/// Why a track is decoded, least important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// For no reason.
    Quiet,
    /// It does not say how loud it is.
    Unlabelled,
    /// It is unlabelled, and its decoding has just begun.
    UnlabelledTrial,
    /// It says to be loud.
    Loud,
    /// It says to be loud, and its decoding has just begun.
    LoudTrial,
    /// It is its turn.
    Turn,
    /// It is audible.
    Audible,
}

impl Rank {
    const LOWEST: Self = Self {
        class: Class::Quiet,
        alone: false,
        level: SILENCE,
        rested: 0,
    };

    fn compare(&self, other: &Self) -> Ordering {
        let before = (self.class, self.alone).cmp(&(other.class, other.alone));
        before
            .then(self.level.total_cmp(&other.level))
            .then(self.rested.cmp(&other.rested))
    }
}

impl<S> Track<S> {
    fn is_of_same(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Notes what the packet that is due says of itself.
    fn hear_claim(&mut self, due: Option<Due>) {
        self.claimed = (self.claimed - FALL).max(SILENCE);
        self.sending = self.sending.saturating_sub(1);
        let Some(due) = due.filter(|due| !due.empty) else {
            return;
        };
        self.sending = SENDING;
        self.is_labelled = due.level.is_some();
        if let Some(level) = due.level {
            self.claimed = self.claimed.max(-f32::from(level));
        }
    }

    /// Compares the claims with what was decoded, once that is known.
    fn judge(&mut self, standing: Standing) {
        if self.decoded >= TRIAL / 2 {
            self.doubted = self.claimed > standing.loudness + EXAGGERATION;
        }
    }

    fn rank(&self, standing: Standing, has_turn: bool, alone: bool) -> Rank {
        let on_trial = (1..TRIAL).contains(&self.decoded);
        let class = if self.decoded > 0 && standing.heard {
            Class::Audible
        } else if has_turn {
            Class::Turn
        } else if self.sending > 0 && !self.is_labelled {
            if on_trial {
                Class::UnlabelledTrial
            } else {
                Class::Unlabelled
            }
        } else if self.doubted || self.claimed <= standing.voice_from {
            Class::Quiet
        } else if on_trial {
            Class::LoudTrial
        } else {
            Class::Loud
        };
        let level = match class {
            Class::Unlabelled | Class::UnlabelledTrial => SILENCE,
            _ if self.decoded >= TRIAL => standing.loudness,
            _ => self.claimed,
        };
        Rank {
            class,
            alone,
            level,
            rested: self.rested,
        }
    }
}

impl<S: PacketSource> TrackReceiver<S> {
    /// For a listener who takes sound of this bandwidth.
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self {
            bandwidth,
            tracks: Vec::new(),
            mixer: RoomMixer::new(bandwidth),
            participant: Mixer::default(),
            sound: Vec::new(),
            turn: Turn::default(),
            order: Vec::new(),
        }
    }

    /// What the listener takes.
    pub const fn bandwidth(&self) -> Bandwidth {
        self.bandwidth
    }

    /// The listener takes sound of another bandwidth from now on; less than 20 ms are lost.
    pub fn convert(&mut self, bandwidth: Bandwidth) {
        if self.bandwidth == bandwidth {
            return;
        }
        self.bandwidth = bandwidth;
        self.mixer.convert(bandwidth);
        for track in &mut self.tracks {
            track.jitter.convert(bandwidth);
        }
    }

    /// Receives a participant's track, in place of one with the same sid. `false` if there are too many tracks.
    pub fn add(&mut self, identity: String, sid: String, source: S) -> bool {
        self.remove(&sid);
        let Some(key) = self.mixer.join(&identity) else {
            return false;
        };
        // Another track may have made way for it.
        let Self { tracks, mixer, .. } = self;
        tracks.retain(|track| mixer.has(track.key));
        let place = tracks.partition_point(|track| track.identity <= identity);
        let track = Track {
            identity,
            sid,
            source,
            jitter: JitterBuffer::new(self.bandwidth),
            key,
            decoded: 0,
            rested: 0,
            sending: 0,
            is_labelled: false,
            claimed: SILENCE,
            doubted: false,
            rank: Rank::LOWEST,
        };
        tracks.insert(place, track);
        true
    }

    /// Stops receiving a track.
    pub fn remove(&mut self, sid: &str) {
        self.retain(|track| track.sid != sid);
    }

    /// Stops receiving all tracks of a participant.
    pub fn remove_participant(&mut self, identity: &str) {
        self.retain(|track| track.identity != identity);
    }

    fn retain(&mut self, keep: impl Fn(&Track<S>) -> bool) {
        let Self { tracks, mixer, .. } = self;
        tracks.retain(|track| {
            let kept = keep(track);
            if !kept {
                mixer.leave(track.key);
            }
            kept
        });
    }

    /// Whether there is no track.
    pub fn is_empty(&self) -> bool {
        self.tracks.is_empty()
    }

    /// The depth of the deepest jitter buffer.
    pub fn depth(&self) -> Duration {
        let depths = self.tracks.iter().map(|track| track.jitter.stats().depth);
        depths.max().unwrap_or_default()
    }

    /// Plays out the 20 ms due at `now`, as many samples as the listener's bandwidth has in a frame: first each participant who
    /// is heard `separately`, with all their tracks together, then the mix of all.
    pub fn next(
        &mut self,
        now: Instant,
        separately: impl Fn(&str) -> bool,
        mut each: impl FnMut(&str, &[i16]),
        mixed: &mut [i16],
    ) {
        for track in &mut self.tracks {
            while let Some(packet) = track.source.next_packet() {
                track.jitter.push(packet);
            }
            let due = track.jitter.due(now);
            track.hear_claim(due);
        }
        self.choose(&separately);
        let frame = self.bandwidth.frame();
        let Self {
            tracks,
            mixer,
            participant,
            sound,
            ..
        } = self;
        for tracks in tracks.chunk_by_mut(Track::is_of_same) {
            let is_separate = matches!(&*tracks, [track, ..] if separately(&track.identity));
            let has_others = tracks.len() > 1;
            participant.begin(frame);
            for track in &mut *tracks {
                if track.decoded == 0 {
                    track.jitter.skip(now);
                    continue;
                }
                let Some(frame) = mixer.frame_mut(track.key) else {
                    continue;
                };
                track.jitter.pull(now, frame);
                match (is_separate, has_others) {
                    (true, true) => participant.add(frame, &mut Fader::new(Gain::UNITY)),
                    (true, false) => each(&track.identity, frame),
                    (false, _) => {}
                }
            }
            if let (true, true, [track, ..]) = (is_separate, has_others, &*tracks) {
                sound.clear();
                participant.finish(sound);
                each(&track.identity, sound);
            }
        }
        mixer.mix(mixed);
        for track in tracks.iter_mut().filter(|track| track.decoded > 0) {
            if let Some(standing) = mixer.standing(track.key) {
                track.judge(standing);
            }
        }
    }

    /// Instead of [`Self::next`]: the 20 ms due at `now` are not wanted.
    pub fn skip(&mut self, now: Instant) {
        for track in &mut self.tracks {
            while let Some(packet) = track.source.next_packet() {
                track.jitter.push(packet);
            }
            track.jitter.skip(now);
        }
    }

    /// Decides which tracks are decoded in this frame.
    fn choose(&mut self, separately: impl Fn(&str) -> bool) {
        let is_crowded = self.tracks.len() > MOST_DECODED;
        if is_crowded {
            self.pass_turn();
            self.rank();
        } else {
            self.order.clear();
            self.order.extend(0..self.tracks.len());
        }
        let Self { tracks, order, .. } = self;
        let mut chosen = [false; MOST_TRACKS];
        for at in order.iter().take(MOST_DECODED) {
            if let (Some(chosen), Some(track)) = (chosen.get_mut(*at), tracks.get(*at)) {
                *chosen = !is_crowded || track.rank.class > Class::Quiet;
            }
        }
        let mut chosen = chosen.as_mut_slice();
        for tracks in tracks.chunk_by_mut(Track::is_of_same) {
            let Some((chosen_here, rest)) = chosen.split_at_mut_checked(tracks.len()) else {
                return;
            };
            chosen = rest;
            if matches!(&*tracks, [track, ..] if separately(&track.identity)) {
                choose_of_one(tracks, chosen_here);
            }
            for (track, chosen) in tracks.iter_mut().zip(chosen_here) {
                track.decoded = if *chosen {
                    track.decoded.saturating_add(1)
                } else {
                    0
                };
                track.rested = if *chosen {
                    0
                } else {
                    track.rested.saturating_add(1)
                };
            }
        }
    }

    /// Ranks all tracks.
    fn rank(&mut self) {
        let Self {
            tracks,
            mixer,
            turn,
            order,
            ..
        } = self;
        for tracks in tracks.chunk_by_mut(Track::is_of_same) {
            let decoded = tracks.iter().filter(|track| track.decoded > 0).count();
            for track in tracks {
                let alone = decoded == usize::from(track.decoded > 0);
                let has_turn = turn.key == Some(track.key);
                let standing = mixer.standing(track.key);
                track.rank = standing.map_or(Rank::LOWEST, |standing| {
                    track.rank(standing, has_turn, alone)
                });
            }
        }
        order.clear();
        order.extend(0..tracks.len());
        let rank = |at: &usize| tracks.get(*at).map_or(&Rank::LOWEST, |track| &track.rank);
        order.sort_unstable_by(|one, other| rank(other).compare(rank(one)).then(one.cmp(other)));
    }

    /// Participants take turns; of each, the track that has waited longest.
    fn pass_turn(&mut self) {
        let Self {
            tracks,
            mixer,
            turn,
            ..
        } = self;
        turn.frames_left = turn.frames_left.saturating_sub(1);
        if turn.frames_left > 0 && turn.key.is_some_and(|key| mixer.has(key)) {
            return;
        }
        turn.key = None;
        let waits = |track: &&Track<S>| track.decoded == 0 && track.sending > 0;
        let place = tracks.partition_point(|track| track.identity <= turn.identity);
        let (before, behind) = tracks.split_at(place);
        let Some(next) = behind.iter().chain(before).find(waits) else {
            return;
        };
        let theirs = tracks.iter().filter(|track| track.is_of_same(next));
        let next = theirs.filter(waits).max_by_key(|track| track.rested);
        if let Some(next) = next {
            turn.key = Some(next.key);
            turn.identity.clone_from(&next.identity);
            turn.frames_left = TRIAL;
        }
    }
}

/// Completes the tracks that are decoded of a participant who is heard separately.
fn choose_of_one<S>(tracks: &[Track<S>], chosen: &mut [bool]) {
    let already = chosen.iter().filter(|chosen| **chosen).count();
    for _ in already..MOST_OF_ONE {
        let left = tracks
            .iter()
            .zip(&mut *chosen)
            .filter(|(_, chosen)| !**chosen);
        let Some((_, chosen)) = left.max_by(|(one, _), (other, _)| one.rank.compare(&other.rank))
        else {
            return;
        };
        *chosen = true;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::{BTreeSet, VecDeque};
    use std::f32::consts::TAU;
    use std::rc::Rc;

    use super::super::format::{Layout, SampleRate};
    use super::super::jitter::{FRAME, Payload};
    use super::super::opus::{MAX_FRAME_PACKET, OpusEncoder, OpusSettings};
    use super::*;

    struct Silent;

    impl PacketSource for Silent {
        fn next_packet(&mut self) -> Option<Arrived> {
            None
        }
    }

    fn add(receiver: &mut TrackReceiver<Silent>, identity: &str, sid: &str) {
        let added = receiver.add(identity.to_owned(), sid.to_owned(), Silent);
        assert!(added);
    }

    /// A participant with as many tracks as there may be keeps nobody else from being heard.
    #[test]
    fn a_crowd_of_tracks_makes_way() {
        let mut receiver = TrackReceiver::new(Bandwidth::Fullband);
        for n in 0..MOST_TRACKS {
            add(&mut receiver, "hog", &format!("TR_{n}"));
        }
        add(&mut receiver, "ann", "TR_ann");
        assert_eq!(receiver.tracks.len(), MOST_TRACKS);
        assert!(receiver.tracks.iter().any(|track| track.sid == "TR_ann"));
    }

    #[test]
    fn each_participant_is_heard_once_with_all_their_tracks() {
        let mut receiver = TrackReceiver::new(Bandwidth::Fullband);
        for (identity, sid) in [("bob", "TR_1"), ("ann", "TR_2"), ("bob", "TR_3")] {
            add(&mut receiver, identity, sid);
        }
        let mut heard = Vec::new();
        let mut mixed = [1; FRAME];
        let each = |identity: &str, sound: &[i16]| heard.push((identity.to_owned(), sound.len()));
        receiver.next(Instant::now(), |_| true, each, &mut mixed);
        assert_eq!(
            heard,
            [("ann".to_owned(), FRAME), ("bob".to_owned(), FRAME)]
        );
        assert_eq!(mixed, [0; FRAME]);
        receiver.remove_participant("bob");
        receiver.remove("TR_2");
        assert!(receiver.is_empty());
    }

    /// Sends a tone, and says how loud it is.
    struct Microphone {
        encoder: OpusEncoder,
        /// The peak; 0 sends digital silence.
        amplitude: f32,
        claims: Option<u8>,
        sent: u64,
        packets: Rc<RefCell<VecDeque<Arrived>>>,
    }

    #[derive(Default)]
    struct Wire(Rc<RefCell<VecDeque<Arrived>>>);

    impl PacketSource for Wire {
        fn next_packet(&mut self) -> Option<Arrived> {
            self.0.borrow_mut().pop_front()
        }
    }

    impl Microphone {
        fn send(&mut self, at: Instant) {
            let from = self.sent as usize * FRAME;
            let sample = |n: usize| {
                let at = (from + n) as f32 / 48_000.0;
                (self.amplitude * (TAU * 300.0 * at).sin()) as i16
            };
            let sound: Vec<i16> = (0..FRAME).map(sample).collect();
            let mut packet = [0; MAX_FRAME_PACKET];
            let length = self.encoder.encode(&sound, &mut packet).unwrap();
            self.packets.borrow_mut().push_back(Arrived {
                sequence: self.sent,
                timestamp: from as u32,
                payload: Payload::Opus(packet[..length].into()),
                at,
                level: self.claims,
            });
            self.sent += 1;
        }
    }

    /// A room as one listener receives it, 20 ms at a time.
    struct Room {
        now: Instant,
        receiver: TrackReceiver<Wire>,
        microphones: Vec<Microphone>,
        /// Who is heard separately.
        separate: &'static [&'static str],
        told: BTreeSet<String>,
        /// The most tracks that were decoded at once.
        most: usize,
    }

    const QUIET: Option<u8> = Some(90);

    impl Room {
        fn new() -> Self {
            Self {
                now: Instant::now(),
                receiver: TrackReceiver::new(Bandwidth::Fullband),
                microphones: Vec::new(),
                separate: &[],
                told: BTreeSet::new(),
                most: 0,
            }
        }

        fn join(&mut self, identity: &str, amplitude: f32, claims: Option<u8>) -> usize {
            let settings = OpusSettings {
                complexity: 0,
                ..OpusSettings::SPEECH
            };
            let encoder = OpusEncoder::new(Layout::mono(SampleRate::HZ_48000), settings).unwrap();
            let wire = Wire::default();
            let microphone = Microphone {
                encoder,
                amplitude,
                claims,
                sent: 0,
                packets: Rc::clone(&wire.0),
            };
            let number = self.microphones.len();
            self.microphones.push(microphone);
            let sid = format!("TR_{number}");
            assert!(self.receiver.add(identity.to_owned(), sid, wire));
            number
        }

        /// Participants that nobody hears: microphones that say to be quiet, and are.
        fn crowd(&mut self, size: usize) {
            for number in 0..size {
                self.join(&format!("crowd {number}"), 0.0, QUIET);
            }
        }

        fn pass(&mut self, frames: usize) -> Vec<[i16; FRAME]> {
            let mut heard = Vec::new();
            for _ in 0..frames {
                for microphone in &mut self.microphones {
                    microphone.send(self.now);
                }
                let Self { told, separate, .. } = self;
                let each = |identity: &str, _: &[i16]| {
                    told.insert(identity.to_owned());
                };
                let mut mixed = [0; FRAME];
                let is_separate = |identity: &str| separate.contains(&identity);
                self.receiver.next(self.now, is_separate, each, &mut mixed);
                heard.push(mixed);
                let decoded = self
                    .receiver
                    .tracks
                    .iter()
                    .filter(|track| track.decoded > 0);
                self.most = self.most.max(decoded.count());
                self.now += Duration::from_millis(20);
            }
            heard
        }

        /// Frames until this microphone is heard, in at most so many.
        fn until_heard(&mut self, number: usize, most: usize) -> Option<usize> {
            (0..most).find(|_| {
                self.pass(1);
                self.is_heard(number)
            })
        }

        fn is_heard(&self, number: usize) -> bool {
            let sid = format!("TR_{number}");
            let mut tracks = self.receiver.tracks.iter();
            let key = tracks.find(|track| track.sid == sid).unwrap().key;
            self.receiver.mixer.is_heard(key)
        }
    }

    fn peak(sound: &[[i16; FRAME]]) -> u16 {
        let samples = sound.as_flattened().iter();
        samples
            .map(|sample| sample.unsigned_abs())
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn of_many_only_those_who_may_be_audible_are_decoded() {
        let mut room = Room::new();
        room.crowd(30);
        let ann = room.join("ann", 8_000.0, Some(15));
        assert!(room.until_heard(ann, 5).is_some());
        room.pass(100);
        // Whoever speaks, and one in turn.
        assert!(room.most <= MOST_DECODED, "{}", room.most);
        let many: Vec<_> = (0..20)
            .map(|number| room.join(&format!("speaker {number}"), 8_000.0, Some(15)))
            .collect();
        let heard = room.pass(100);
        assert!(room.most <= MOST_DECODED, "{}", room.most);
        let audible = many.iter().filter(|number| room.is_heard(**number)).count();
        assert_eq!(audible + usize::from(room.is_heard(ann)), MOST_VOICES);
        assert!(peak(&heard[50..]) > 20_000);
    }

    #[test]
    fn a_word_begins_where_it_would_if_everything_were_decoded() {
        let heard = |size: usize| {
            let mut room = Room::new();
            room.crowd(size);
            let ann = room.join("ann", 0.0, QUIET);
            room.pass(100);
            room.microphones[ann].amplitude = 8_000.0;
            room.microphones[ann].claims = Some(15);
            room.pass(60)
        };
        let (few, many) = (heard(2), heard(40));
        let begins = |heard: &[[i16; FRAME]]| {
            let mut samples = heard.as_flattened().iter();
            samples
                .position(|sample| sample.unsigned_abs() > 2_000)
                .unwrap()
        };
        // Jitter buffers tolerate some more delay than they need; one that was skipped begins without it.
        let (before, after) = (begins(&few), begins(&many));
        assert!(after < before + 96, "{after}, not {before}");
        // Once its decoder has settled the voice is the same.
        let voice = |heard: &[[i16; FRAME]], from: usize| {
            let samples = heard.as_flattened().iter();
            samples.skip(from).take(FRAME).copied().collect::<Vec<_>>()
        };
        let far = |early: usize| {
            let (few, many) = (voice(&few, 30 * FRAME + early), voice(&many, 30 * FRAME));
            let differences = few.iter().zip(&many).map(|(few, many)| few.abs_diff(*many));
            differences.max().unwrap()
        };
        assert!((0..FRAME).map(far).min().unwrap() < 300);
    }

    #[test]
    fn whoever_says_to_be_loud_and_is_not_keeps_nobody_out() {
        let mut room = Room::new();
        // All of one participant, or each of another.
        for liar in 0..40 {
            room.join(&format!("liar {liar}"), 0.0, Some(0));
        }
        for _ in 0..20 {
            room.join("liar with many", 0.0, Some(0));
        }
        let ann = room.join("ann", 4_000.0, Some(25));
        // A fifth of a second for each of them, several of them at once, and never again.
        let first = room.until_heard(ann, 60 * TRIAL as usize);
        assert!(first.is_some());
        room.pass(60 * TRIAL as usize);
        room.microphones[ann].amplitude = 0.0;
        room.microphones[ann].claims = QUIET;
        room.pass(100);
        // They take the floor from the last speaker only by being heard.
        let bob = room.join("bob", 4_000.0, Some(25));
        let second = room.until_heard(bob, 5);
        assert!(second.is_some(), "{first:?} {second:?}");
        assert!(room.most <= MOST_DECODED);
    }

    #[test]
    fn whoever_says_to_be_silent_or_says_nothing_is_heard_in_turn() {
        for claims in [Some(127), None] {
            let mut room = Room::new();
            room.crowd(30);
            let ann = room.join("ann", 8_000.0, claims);
            // The latest to come in a round of all.
            let heard = room.until_heard(ann, 32 * TRIAL as usize);
            assert!(heard.is_some(), "{claims:?}");
            // And then for as long as they speak.
            for frame in 0..200 {
                room.pass(1);
                assert!(room.is_heard(ann), "{claims:?} {frame}");
            }
        }
    }

    #[test]
    fn whoever_is_heard_separately_is_always_decoded() {
        let mut room = Room::new();
        room.crowd(20);
        room.join("ann", 0.0, QUIET);
        room.separate = &["ann", "crowd 3"];
        for _ in 0..50 {
            room.told.clear();
            room.pass(1);
            let told: Vec<_> = room.told.iter().map(String::as_str).collect();
            assert_eq!(told, ["ann", "crowd 3"]);
        }
        assert!(room.most <= MOST_DECODED + 2);
        // Many tracks of one cost no more than two.
        let mut room = Room::new();
        for _ in 0..30 {
            room.join("ann", 0.0, QUIET);
        }
        room.separate = &["ann"];
        room.pass(50);
        assert!(room.most <= MOST_DECODED + MOST_OF_ONE);
    }
}
