//! What a listener hears of a room: the voices of those who speak, mixed 20 ms at a time. Microphones with background
//! noise only are left out, so that ten of them are not ten times as loud; a single voice is passed bit by bit; several
//! voices are limited below full scale without audible changes of level.
//!
//! Slots belong to participants: whoever has many tracks gets no more slots than others as long as others want them.
//!
//! The last speaker keeps the floor until somebody else speaks, so that the background does not drop out between words.

use std::time::Duration;

use super::bandwidth::Bandwidth;
use super::pcm::{energy, saturate};

/// The maximum number of audible voices. Neither people nor recognisers understand more at once.
pub const MOST_VOICES: usize = 6;
/// The maximum number of tracks analysed.
pub const MOST_TRACKS: usize = 64;
/// Sub-frames of a frame of 20 ms, for levels and gains: 5 ms each.
const PARTS: usize = 4;
/// How long a track stays open after its last sound above the noise: longer than pauses within words.
const HANG_OVER: Duration = Duration::from_millis(400);
const HANG_OVER_FRAMES: u32 = HANG_OVER.as_millis() as u32 / 20;
/// All levels are in dB below full scale. Anything below this is not a voice.
const QUIETEST_VOICE: f32 = -60.0;
/// Anything above this is considered a voice, however long it lasts: music must not be taken for noise.
const SURELY_VOICE: f32 = -36.0;
/// How far above its noise a track opens …
const OPENS: f32 = 9.0;
/// … and how far above it stays open.
const STAYS: f32 = 5.0;
/// The level of digital silence.
pub const SILENCE: f32 = -100.0;
/// How fast a level falls, in dB per frame: 30 dB per second.
pub const FALL: f32 = 0.6;
/// How fast the noise estimate rises, in dB per frame: 3 dB per second.
const NOISE_RISE: f32 = 0.06;
/// How much louder another voice must be to replace an audible one.
const DISPLACES: f32 = 6.0;
/// The maximum peak of several voices together.
const CEILING: f32 = 32_000.0;
/// How fast the gain recovers after a peak, in dB per sub-frame: 4 dB per second, too slow to be noticed.
const RELEASE: f32 = 0.02;

/// A track of a [`RoomMixer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrackKey(u64);

#[derive(Debug)]
struct Track {
    key: TrackKey,
    /// Its participant, and the first key that the participant had.
    identity: Box<str>,
    speaker: TrackKey,
    /// Whether it is the loudest of its participant; computed only if there are too many.
    leads: bool,
    sound: Box<[i16]>,
    /// Whether there is audio for this frame.
    fresh: bool,
    /// The level of this frame.
    level: f32,
    /// The recent level.
    loudness: f32,
    noise: f32,
    /// Frames until it closes; 0 if it is closed.
    open: u32,
    /// The gain at the end of the previous frame: 0 or 1.
    gain: f32,
}

/// What the mixer knows of a track, in dB below full scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Whether it is audible at present.
    pub heard: bool,
    /// The recent level of what was written.
    pub loudness: f32,
    /// The level above which it may be a voice.
    pub voice_from: f32,
}

/// Mixes the tracks of a room for one listener.
#[derive(Debug)]
pub struct RoomMixer {
    bandwidth: Bandwidth,
    tracks: Vec<Track>,
    next_key: u64,
    /// The last speaker.
    floor: Option<TrackKey>,
    sum: Vec<f32>,
    limiter: Limiter,
}

impl RoomMixer {
    /// For a listener who takes sound of this bandwidth.
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self {
            bandwidth,
            tracks: Vec::new(),
            next_key: 0,
            floor: None,
            sum: Vec::new(),
            limiter: Limiter::default(),
        }
    }

    /// The listener takes sound of another bandwidth from now on.
    pub fn convert(&mut self, bandwidth: Bandwidth) {
        self.bandwidth = bandwidth;
        for track in &mut self.tracks {
            track.sound = silence(bandwidth);
        }
    }

    /// Adds a track. If there are too many, the newest track of the participant with most tracks is removed
    /// ([`Self::has`]), unless that would leave them fewer than somebody else has; then `None` is returned.
    pub fn join(&mut self, identity: &str) -> Option<TrackKey> {
        let of_theirs = |track: &&Track| *track.identity == *identity;
        let theirs = self.tracks.iter().find(of_theirs);
        let theirs = theirs.map(|track| track.speaker);
        if self.tracks.len() >= MOST_TRACKS {
            let held =
                |speaker: TrackKey| self.tracks.iter().filter(|t| t.speaker == speaker).count();
            let newest_of_most = self
                .tracks
                .iter()
                .max_by_key(|track| (held(track.speaker), track.key))?;
            let (key, most) = (newest_of_most.key, held(newest_of_most.speaker));
            if most <= theirs.map_or(0, held) + 1 {
                return None;
            }
            self.leave(key);
        }
        let key = TrackKey(self.next_key);
        self.next_key += 1;
        self.tracks.push(Track {
            key,
            identity: identity.into(),
            speaker: theirs.unwrap_or(key),
            leads: true,
            sound: silence(self.bandwidth),
            fresh: false,
            level: SILENCE,
            loudness: SILENCE,
            noise: QUIETEST_VOICE,
            open: 0,
            gain: 0.0,
        });
        Some(key)
    }

    /// Whether a track has neither been removed nor displaced.
    pub fn has(&self, key: TrackKey) -> bool {
        self.tracks.iter().any(|track| track.key == key)
    }

    /// Removes a track.
    pub fn leave(&mut self, key: TrackKey) {
        self.tracks.retain(|track| track.key != key);
        self.floor = self.floor.filter(|floor| *floor != key);
    }

    /// The buffer for a track's next 20 ms; a track that is not written to is silent. `None` if it has been removed.
    pub fn frame_mut(&mut self, key: TrackKey) -> Option<&mut [i16]> {
        let track = self.tracks.iter_mut().find(|track| track.key == key)?;
        track.fresh = true;
        Some(&mut track.sound)
    }

    /// What is known of a track; `None` if it has been removed.
    pub fn standing(&self, key: TrackKey) -> Option<Standing> {
        let track = self.tracks.iter().find(|track| track.key == key)?;
        Some(Standing {
            heard: track.gain > 0.0,
            loudness: track.loudness,
            voice_from: track.voice_from(STAYS),
        })
    }

    /// Whether a track is audible at present.
    pub fn is_heard(&self, key: TrackKey) -> bool {
        let mut tracks = self.tracks.iter();
        tracks.any(|track| track.key == key && track.gain > 0.0)
    }

    /// Mixes what was written since the last call: as many samples as the listener's bandwidth has in a frame. Allocates when
    /// not exactly one track is heard for the first time, and not again.
    pub fn mix(&mut self, output: &mut [i16]) {
        let alone = self.tracks.len() == 1;
        for track in &mut self.tracks {
            if !std::mem::take(&mut track.fresh) {
                track.sound.fill(0);
            }
            track.listen();
        }
        self.choose();
        let floor = self.floor;
        let chosen = |track: &Track| track.open > 0 || alone || floor == Some(track.key);
        let mut heard = self.tracks.iter().filter(|t| chosen(t) || t.gain > 0.0);
        if let (Some(only), None) = (heard.next(), heard.next())
            && chosen(only)
            && self.limiter.is_idle()
            && (only.gain > 0.0 || only.begins_abruptly())
        {
            for (output, sample) in output.iter_mut().zip(&only.sound) {
                *output = *sample;
            }
            for track in &mut self.tracks {
                track.gain = f32::from(u8::from(chosen(track)));
            }
            return;
        }
        self.sum.clear();
        self.sum.resize(self.bandwidth.frame(), 0.0);
        for track in &mut self.tracks {
            let gain = f32::from(u8::from(
                track.open > 0 || alone || floor == Some(track.key),
            ));
            track.add_to(&mut self.sum, gain);
        }
        self.limiter.run(&mut self.sum);
        for (output, sum) in output.iter_mut().zip(self.sum.iter()) {
            *output = saturate(*sum);
        }
    }

    /// Leaves only the loudest tracks open, one per participant before any gets a second, and determines who has the
    /// floor.
    fn choose(&mut self) {
        let mut open = self.tracks.iter().filter(|track| track.open > 0).count();
        if open > MOST_VOICES {
            self.find_leaders();
        }
        while open > MOST_VOICES {
            let candidates = self.tracks.iter_mut().filter(|track| track.open > 0);
            // Among equals the last to join loses.
            let Some(least) = candidates.rev().min_by(|a, b| {
                let by_weight = || a.weight().total_cmp(&b.weight());
                a.leads.cmp(&b.leads).then_with(by_weight)
            }) else {
                return;
            };
            least.open = 0;
            open -= 1;
        }
        let open = self.tracks.iter().filter(|track| track.open > 0);
        let loudest = open.max_by(|a, b| a.loudness.total_cmp(&b.loudness));
        if let Some(loudest) = loudest {
            self.floor = Some(loudest.key);
        }
    }
}

impl RoomMixer {
    /// Determines the loudest open track of each participant.
    fn find_leaders(&mut self) {
        for at in 0..self.tracks.len() {
            let (before, rest) = self.tracks.split_at_mut(at);
            let Some((track, behind)) = rest.split_first_mut() else {
                return;
            };
            let weight = track.weight();
            let theirs = |other: &&Track| other.open > 0 && other.speaker == track.speaker;
            // Among equals the first to join wins.
            track.leads = !before
                .iter()
                .filter(theirs)
                .any(|other| other.weight() >= weight)
                && !behind
                    .iter()
                    .filter(theirs)
                    .any(|other| other.weight() > weight);
        }
    }
}

impl Track {
    /// Its priority if not all can be audible. A track that is audible has an advantage.
    fn weight(&self) -> f32 {
        self.loudness + self.gain * DISPLACES
    }

    /// The level of a voice that is this far above the noise.
    fn voice_from(&self, above: f32) -> f32 {
        (self.noise + above).max(QUIETEST_VOICE)
    }

    /// Analyses the frame: its level, the noise estimate, and whether somebody speaks.
    fn listen(&mut self) {
        let parts = self.sound.chunks_exact(self.sound.len() / PARTS);
        let (mut loudest, mut quietest) = (SILENCE, 0.0_f32);
        for level in parts.map(level) {
            loudest = level.max(loudest);
            quietest = level.min(quietest);
        }
        self.level = loudest;
        self.loudness = loudest.max(self.loudness - FALL);
        // Digital silence says nothing about a microphone's noise.
        if loudest > SILENCE {
            let risen = self.noise + NOISE_RISE;
            self.noise = quietest.min(risen).clamp(-90.0, SURELY_VOICE - OPENS);
        }
        let above = if self.open > 0 { STAYS } else { OPENS };
        if self.level > self.voice_from(above) {
            self.open = HANG_OVER_FRAMES;
        } else {
            self.open = self.open.saturating_sub(1);
        }
    }

    /// Whether it needs no fade-in: what was left out before was silence, or the audio begins with silence.
    fn begins_abruptly(&self) -> bool {
        self.sound.first().is_some_and(|first| first.abs() < 64)
    }

    /// Adds the frame, with a gain that reaches `gain` within 5 ms when opening and 20 ms when closing.
    fn add_to(&mut self, sum: &mut [f32], gain: f32) {
        let from = std::mem::replace(&mut self.gain, gain);
        if from == 0.0 && gain == 0.0 {
            return;
        }
        let whole = self.sound.len();
        let fade = if gain > from { whole / PARTS } else { whole };
        for (n, (sum, sample)) in sum.iter_mut().zip(self.sound.iter()).enumerate() {
            let share = (n as f32 / fade as f32).min(1.0);
            *sum += f32::from(*sample) * (from + (gain - from) * share);
        }
    }
}

/// Keeps the sum below [`CEILING`]: the gain drops as soon as a peak requires it, and recovers slowly.
#[derive(Debug)]
struct Limiter {
    gain: f32,
}

impl Default for Limiter {
    fn default() -> Self {
        Self { gain: 1.0 }
    }
}

impl Limiter {
    /// Whether it changes nothing.
    fn is_idle(&self) -> bool {
        self.gain >= 1.0
    }

    fn run(&mut self, sum: &mut [f32]) {
        let length = sum.len() / PARTS;
        let release = 10.0_f32.powf(RELEASE / 20.0);
        let mut needed = [1.0_f32; PARTS + 1];
        for (needed, part) in needed.iter_mut().zip(sum.chunks_exact(length)) {
            let peak = part.iter().fold(0.0_f32, |peak, s| peak.max(s.abs()));
            *needed = (CEILING / peak.max(1.0)).min(1.0);
        }
        for (n, part) in sum.chunks_exact_mut(length).enumerate() {
            let (here, next) = (needed[n], needed[n + 1]);
            let from = self.gain;
            let to = (from * release).min(here).min(next).min(1.0);
            // Only if a frame begins with a peak must the gain drop faster than over the previous sub-frame.
            let fade = if from > here { length / 8 } else { length };
            for (n, sample) in part.iter_mut().enumerate() {
                let share = ((n + 1) as f32 / fade as f32).min(1.0);
                *sample *= from + (to - from) * share;
            }
            self.gain = to;
        }
    }
}

fn silence(bandwidth: Bandwidth) -> Box<[i16]> {
    vec![0; bandwidth.frame()].into()
}

/// In dB below full scale.
fn level(part: &[i16]) -> f32 {
    let mean = energy(part) / (part.len().max(1) as f32 * 32_768.0 * 32_768.0);
    (10.0 * mean.max(1e-12).log10()).max(SILENCE)
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;

    use super::*;

    const FRAME: usize = Bandwidth::Fullband.frame();

    type Frame = [i16; FRAME];

    /// Bursts of voice of 300 ms, 200 ms apart, over noise of some microphone.
    struct Microphone {
        random: fastrand::Rng,
        noise: f32,
        voice: f32,
        hz: f32,
        now: usize,
    }

    impl Microphone {
        fn new(seed: u64, noise: f32, voice: f32) -> Self {
            let hz = 90.0 + 37.0 * seed as f32;
            let random = fastrand::Rng::with_seed(seed);
            Self {
                random,
                noise,
                voice,
                hz,
                now: 0,
            }
        }

        fn next(&mut self) -> Frame {
            std::array::from_fn(|_| {
                let phase = self.now as f32 * self.hz / 48_000.0;
                let spoken = (self.now / 4_800) % 5 < 3;
                self.now += 1;
                let tone = (phase.fract() * TAU).sin() + 0.5 * ((3.0 * phase).fract() * TAU).sin();
                let voice = if spoken { self.voice * tone } else { 0.0 };
                (voice + (self.random.f32() - 0.5) * 2.0 * self.noise) as i16
            })
        }
    }

    fn room(microphones: usize) -> (RoomMixer, Vec<TrackKey>) {
        let mut mixer = RoomMixer::new(Bandwidth::Fullband);
        let somebody = |n: usize| mixer.join(&format!("somebody {n}")).unwrap();
        let keys = (0..microphones).map(somebody).collect();
        (mixer, keys)
    }

    fn pass(mixer: &mut RoomMixer, frames: &[(TrackKey, Frame)]) -> Frame {
        for (key, frame) in frames {
            mixer.frame_mut(*key).unwrap().copy_from_slice(frame);
        }
        let mut output = [1; FRAME];
        mixer.mix(&mut output);
        output
    }

    fn loudness(frames: &[Frame]) -> f32 {
        level(frames.as_flattened())
    }

    #[test]
    fn one_alone_is_heard_bit_by_bit_noise_and_all() {
        let (mut mixer, keys) = room(1);
        let mut microphone = Microphone::new(1, 30.0, 20_000.0);
        for n in 0..500 {
            let frame = microphone.next();
            let heard = pass(&mut mixer, &[(keys[0], frame)]);
            assert!(n == 0 || heard == frame, "{n}");
        }
    }

    #[test]
    fn one_who_speaks_among_silent_ones_is_heard_bit_by_bit() {
        let (mut mixer, keys) = room(10);
        let mut voice = Microphone::new(3, 0.0, 20_000.0);
        for n in 0..500 {
            let frame = voice.next();
            // Some send silence, some nothing.
            let heard = pass(&mut mixer, &[(keys[4], frame), (keys[1], [0; FRAME])]);
            assert!(heard == frame, "{n}");
        }
    }

    #[test]
    fn ten_open_microphones_rustle_no_louder_than_one() {
        let (mut mixer, keys) = room(10);
        let mut microphones: Vec<_> = (0..10)
            .map(|n| {
                Microphone::new(
                    n,
                    60.0 + 20.0 * n as f32,
                    if n == 0 { 9_000.0 } else { 0.0 },
                )
            })
            .collect();
        let (mut said, mut heard) = (Vec::new(), Vec::new());
        for _ in 0..1_000 {
            let frames: Vec<_> = keys
                .iter()
                .zip(&mut microphones)
                .map(|(key, microphone)| (*key, microphone.next()))
                .collect();
            heard.push(pass(&mut mixer, &frames));
            said.push(frames[0].1);
        }
        // Once the noise is known, only the one who speaks is heard.
        assert!(heard[500..] == said[500..]);
    }

    #[test]
    fn three_loud_voices_neither_clip_nor_pump() {
        let (mut mixer, keys) = room(3);
        let mut microphones: Vec<_> = (1..4)
            .map(|seed| Microphone::new(seed, 10.0, 19_000.0))
            .collect();
        let (mut heard, mut gains) = (Vec::new(), Vec::new());
        for _ in 0..500 {
            let frames: Vec<_> = keys
                .iter()
                .zip(&mut microphones)
                .map(|(key, microphone)| (*key, microphone.next()))
                .collect();
            heard.push(pass(&mut mixer, &frames));
            gains.push(20.0 * mixer.limiter.gain.log10());
        }
        let full = heard
            .as_flattened()
            .iter()
            .filter(|s| s.unsigned_abs() >= 32_700);
        let full = full.count();
        let (low, high) = gains[100..]
            .iter()
            .fold((0.0_f32, -99.0_f32), |(low, high), gain| {
                (low.min(*gain), high.max(*gain))
            });
        println!("{full} samples at full scale, gain {low:.1} to {high:.1} dB");
        assert_eq!(full, 0);
        assert!(high - low < 2.0, "{low} {high}");
        assert!(loudness(&heard) > -14.0);
    }

    #[test]
    fn after_the_others_fall_silent_the_voice_is_as_it_was_again() {
        let (mut mixer, keys) = room(3);
        let mut voices = [1, 2, 3].map(|seed| Microphone::new(seed, 0.0, 18_000.0));
        for _ in 0..100 {
            let frames = [0, 1, 2].map(|n| (keys[n], voices[n].next()));
            pass(&mut mixer, &frames);
        }
        for n in 0..300 {
            let frame = voices[0].next();
            let heard = pass(&mut mixer, &[(keys[0], frame)]);
            assert!(n < 200 || heard == frame, "{n}");
        }
    }

    #[test]
    fn of_ten_who_speak_the_loudest_six_are_heard_and_do_not_alternate() {
        let (mut mixer, keys) = room(10);
        let mut voices: Vec<_> = (0..10)
            .map(|n| Microphone::new(n, 5.0, if n < 6 { 4_000.0 } else { 2_500.0 }))
            .collect();
        for n in 0..300 {
            let frames: Vec<_> = keys
                .iter()
                .zip(&mut voices)
                .map(|(key, voice)| (*key, voice.next()))
                .collect();
            pass(&mut mixer, &frames);
            let heard: Vec<_> = keys.iter().map(|key| mixer.is_heard(*key)).collect();
            if n > 5 {
                assert_eq!(heard, [[true; 6].as_slice(), &[false; 4]].concat(), "{n}");
            }
        }
        mixer.leave(keys[0]);
        assert!(mixer.frame_mut(keys[0]).is_none());
    }

    /// Tones that last, of participants by the number of their name.
    fn speakers(mixer: &mut RoomMixer, of: &[usize]) -> Vec<TrackKey> {
        let join = |n: &usize| mixer.join(&format!("somebody {n}")).unwrap();
        of.iter().map(join).collect()
    }

    #[test]
    fn many_loud_tracks_of_one_take_no_place_from_others() {
        let mut mixer = RoomMixer::new(Bandwidth::Fullband);
        // Twenty tracks of one, then five others, who are quieter.
        let keys = speakers(&mut mixer, &[&[0_usize; 20][..], &[1, 2, 3, 4, 5]].concat());
        let mut voices: Vec<_> = (0..25)
            .map(|n| Microphone::new(n, 5.0, if n < 20 { 12_000.0 } else { 2_000.0 }))
            .collect();
        for n in 0..300 {
            let frames: Vec<_> = keys
                .iter()
                .zip(&mut voices)
                .map(|(key, voice)| (*key, voice.next()))
                .collect();
            pass(&mut mixer, &frames);
            let heard = |keys: &[TrackKey]| keys.iter().filter(|key| mixer.is_heard(**key)).count();
            if n > 5 {
                assert_eq!((heard(&keys[..20]), heard(&keys[20..])), (1, 5), "{n}");
            }
        }
        // While the others are silent there is room for more of them.
        for _ in 0..100 {
            let frames: Vec<_> = keys[..20]
                .iter()
                .zip(&mut voices)
                .map(|(key, voice)| (*key, voice.next()))
                .collect();
            pass(&mut mixer, &frames);
        }
        let heard = keys.iter().filter(|key| mixer.is_heard(**key)).count();
        assert_eq!(heard, MOST_VOICES);
    }

    #[test]
    fn whoever_has_most_tracks_makes_way_for_whoever_comes() {
        let mut mixer = RoomMixer::new(Bandwidth::Fullband);
        let hogs = speakers(&mut mixer, &[0; MOST_TRACKS]);
        assert_eq!(mixer.join("somebody 0"), None);
        let others = speakers(&mut mixer, &[1, 2, 3, 1]);
        assert!(others.iter().all(|key| mixer.has(*key)));
        // Their oldest tracks stay.
        let kept: Vec<_> = hogs.iter().map(|key| mixer.has(*key)).collect();
        let expected = [[true; MOST_TRACKS - 4].as_slice(), &[false; 4]].concat();
        assert_eq!(kept, expected);
        assert_eq!(mixer.tracks.len(), MOST_TRACKS);
        // Nobody takes more than an equal share from others, and nobody's only track is taken.
        let (mut mixer, keys) = room(MOST_TRACKS);
        assert_eq!(mixer.join("one too many"), None);
        assert_eq!(mixer.join("somebody 3"), None);
        assert!(keys.iter().all(|key| mixer.has(*key)));
    }

    #[test]
    fn an_empty_room_is_silent_and_a_track_that_is_not_written_to_does_not_repeat() {
        let (mut mixer, _) = room(0);
        assert!(pass(&mut mixer, &[]) == [0; FRAME]);
        let key = mixer.join("somebody").unwrap();
        pass(&mut mixer, &[(key, [9_000; FRAME])]);
        assert!(pass(&mut mixer, &[]) == [0; FRAME]);
    }

    #[test]
    fn the_loudest_that_can_be_is_no_louder_than_full_scale() {
        let (mut mixer, keys) = room(6);
        for sign in [i16::MIN, i16::MAX, i16::MIN] {
            let frames: Vec<_> = keys.iter().map(|key| (*key, [sign; FRAME])).collect();
            let heard = pass(&mut mixer, &frames);
            assert!(
                heard
                    .iter()
                    .skip(FRAME / PARTS)
                    .all(|s| s.unsigned_abs() <= 32_002)
            );
        }
    }
}
