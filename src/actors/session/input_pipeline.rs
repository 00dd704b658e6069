//! The pipeline of one audio format: decoder, noise suppression, resampler, voice activity detection, and the
//! [`ReplayBuffer`] of the recogniser. Which pipeline is in force is decided by the [audio input](super::audio_input).
//!
//! A recogniser that is replaced while the client goes on sending is replaced within the pipeline: the audio goes to the
//! former one until the next quiet gap, so that no word is cut in two, and from there on to the next one. Each sample is
//! sent to exactly one of them.

use std::collections::VecDeque;
use std::time::Duration;

use super::audio_input::InputEvent;
use super::backchannel::SpeechSound;
use super::protocol::{ListenConfig, VadConfig};
use crate::stt::replay_buffer::{self, ReplayBuffer};
use vivavoce_audio::decode::{DecodeError, StreamDecoder};
use vivavoce_audio::denoise::Denoiser;
use vivavoce_audio::rate_check::RateCheck;
use vivavoce_audio::vad::{self, Vad, VadEvent, VadSettings};
use vivavoce_audio::{AudioFormat, Bandwidth, Encoding, Layout, Pcm, Resampler, SampleRate};
use vivavoce_seams::{TURN_RATE, TURN_SOUND};

/// Bytes that are decoded at once. A few bytes of Ogg/Opus may be seconds of audio.
const SLICE: usize = 4 << 10;
const OGG_SLICE: usize = 256;
/// Chunks after which the decoder yields: a page of Ogg may hold half a minute.
const CHUNKS_AT_ONCE: usize = 8;

/// Length of the blocks in which a quiet gap is looked for.
const BLOCK: Duration = Duration::from_millis(10);
/// Quiet blocks in a row that make a quiet gap: longer than the closure of a plosive, which is silent too.
const GAP_BLOCKS: u32 = 7;
/// The ratio of the energy of the loudest block to that of a quiet one: 16 dB.
const FAINTER: u64 = 40;
/// The same where voice activity detection reports a pause, behind speech that may be hardly louder than the noise: 6 dB.
const FAINTER_THAN_SPEECH: u64 = 4;
/// The energy of a sample below which a block is quiet in any case: −55 dBFS.
const QUIET: u64 = 60 * 60;

pub(super) struct InputPipeline {
    listen: ListenConfig,
    decoder: StreamDecoder,
    inner: Inner,
    failed: bool,
    /// Whether the buffer ends once the bytes that wait have been decoded.
    pub(super) ends: bool,
}

/// The stages behind the decoder.
struct Inner {
    noise_suppression: bool,
    /// Apart, as few have one.
    denoiser: Option<Box<Denoiser>>,
    rate: RecogniserRate,
    vad: Option<PipelineVad>,
    vad_config: VadConfig,
    /// Whether a model hears whole turns.
    hears_turns: bool,
    rate_watch: Option<RateWatch>,
    buffer: ReplayBuffer,
    handover: Option<Handover>,
}

/// Listens whether speech can have the rate that the client says.
struct RateWatch {
    said: SampleRate,
    check: RateCheck,
}

/// A handover from one recogniser to the next.
struct Handover {
    /// The config of the former one.
    listen: ListenConfig,
    stage: Stage,
    /// The config of the next one is in force.
    committed: bool,
    /// The former buffer ends with the handover.
    ends: bool,
}

enum Stage {
    /// It waits for a quiet gap.
    Waits {
        next: ReplayBuffer,
        quiet_gap: QuietGap,
    },
    /// It was made, and is taken back if the config fails.
    Made { former: ReplayBuffer },
}

/// Finds a gap in which nobody is in the middle of a word.
#[derive(Default)]
struct QuietGap {
    /// The greatest energy of a sample in any block, on average.
    loudest: u64,
    quiet: u32,
}

/// Resamples to the rate of the recogniser.
struct RecogniserRate {
    accepted: Layout,
    resampler: Option<Resampler>,
    resampled: Vec<i16>,
}

/// Voice activity detection over the audio that the recogniser is sent.
struct PipelineVad {
    vad: Vad,
    resampler: Resampler,
    /// The position of its first sample in the session's audio.
    start: u64,
    resampled: Vec<i16>,
    recent: RecentSound,
    hears_turns: bool,
    /// Where the speech that is under way began, as the detector counts.
    speech: Option<u64>,
}

/// The last sound that voice activity detection has heard: where a model hears the end of turns the turn that is under way,
/// at most [`TURN_SOUND`] of it, elsewhere the end of a stretch of speech. It takes no memory to speak of while nobody speaks.
#[derive(Default)]
struct RecentSound {
    samples: VecDeque<i16>,
    /// How many samples were heard, as the detector counts.
    heard: u64,
    /// How many since the last that were speech, or a pause in it.
    quiet: usize,
}

/// The shortest pause that is no closure within a word.
const BETWEEN_WORDS: Duration = Duration::from_millis(60);
/// What is kept from before a turn: the model has learned with it.
const BEFORE_TURN: Duration = Duration::from_millis(500);
/// What is kept from before speech without such a model: the detector is sure of it some frames later.
const BEFORE_STRETCH: Duration = Duration::from_millis(160);
/// What is kept of speech without such a model: as long as anything that is no turn of its own, and enough to know a voice by.
const STRETCH: Duration = Duration::from_secs(1);
/// By how much the room for it grows.
const GROWTH: Duration = Duration::from_millis(250);
/// Silence after which the sound of a turn is not needed any more.
const AFTER_TURN: Duration = Duration::from_secs(6);

/// How much of the last sound is needed.
#[derive(Clone, Copy)]
struct Keep {
    /// While nobody speaks.
    silence: Duration,
    /// While there is speech, and this long after it.
    speech: Duration,
    after: Duration,
}

impl Keep {
    /// A model hears whole turns.
    const TURNS: Self = Self {
        silence: BEFORE_TURN,
        speech: TURN_SOUND,
        after: AFTER_TURN,
    };
    /// Speech that has ended was heard.
    const STRETCHES: Self = Self {
        silence: BEFORE_STRETCH,
        speech: STRETCH,
        after: Duration::ZERO,
    };
}

impl InputPipeline {
    /// A pipeline whose first sample has the position `start` in the session's audio. `accepted` is what its recogniser
    /// takes.
    pub(super) fn new(
        listen: ListenConfig,
        accepted: AudioFormat,
        vad: &VadConfig,
        start: Duration,
    ) -> Result<Self, DecodeError> {
        let decoder = StreamDecoder::new(listen.format)?;
        let accepted = Layout::mono(accepted.layout.rate);
        let mut inner = Inner {
            noise_suppression: false,
            denoiser: None,
            rate: RecogniserRate::new(accepted),
            vad: None,
            vad_config: VadConfig {
                enabled: false,
                ..*vad
            },
            // Until the config is in force nobody knows that there is none.
            hears_turns: true,
            rate_watch: RateWatch::of(listen.format),
            buffer: ReplayBuffer::new(accepted, start),
            handover: None,
        };
        inner.set_vad(vad, &mut |_| {});
        Ok(Self {
            listen,
            decoder,
            inner,
            failed: false,
            ends: false,
        })
    }

    /// Its config, or that of the handover that waits.
    pub(super) const fn listen(&self) -> &ListenConfig {
        &self.listen
    }

    /// The buffer of the recogniser in force, or of the one that is about to take over, and its layout.
    pub(super) fn newest(&self) -> (ReplayBuffer, Layout) {
        let buffer = match &self.inner.handover {
            Some(Handover {
                stage: Stage::Waits { next, .. },
                ..
            }) => next,
            _ => &self.inner.buffer,
        };
        (buffer.clone(), buffer.layout())
    }

    /// The buffer that audio goes to now.
    pub(super) const fn buffer(&self) -> &ReplayBuffer {
        &self.inner.buffer
    }

    /// Whether these bytes take so long that they are better decoded piece by piece than in the socket's task.
    pub(super) fn takes_long(&self, bytes: &[u8]) -> bool {
        self.listen.format.encoding == Encoding::OggOpus || bytes.len() > self.slice()
    }

    /// How many bytes are decoded at once.
    pub(super) fn slice(&self) -> usize {
        match self.listen.format.encoding {
            Encoding::OggOpus => OGG_SLICE,
            // One message is one packet.
            Encoding::Opus => usize::MAX,
            _ => SLICE,
        }
    }

    /// About how much audio so many bytes are; zero where only decoding could tell.
    pub(super) fn duration_of(&self, bytes: usize) -> Duration {
        let layout = self.listen.format.layout;
        let frame = match self.listen.format.encoding {
            Encoding::Linear16 => 2 * layout.channels.count(),
            Encoding::Mulaw | Encoding::Alaw => layout.channels.count(),
            _ => return Duration::ZERO,
        };
        layout.rate.duration_of(bytes / frame)
    }

    /// Changes voice activity detection and noise suppression. Speech that is under way ends with a pause.
    pub(super) fn set_vad(&mut self, config: &VadConfig, tell: &mut impl FnMut(InputEvent)) {
        self.inner.set_vad(config, tell);
    }

    /// Whether a model hears whole turns from now on.
    pub(super) fn set_hears_turns(&mut self, hears_turns: bool) {
        self.inner.hears_turns = hears_turns;
        if let Some(vad) = &mut self.inner.vad {
            vad.hears_turns = hears_turns;
        }
    }

    /// Ends speech that is under way with a pause: the pipeline in which it goes on reports that it has resumed.
    pub(super) fn break_off(&mut self) -> Option<InputEvent> {
        self.inner.vad.as_mut().and_then(PipelineVad::break_off)
    }

    /// The sound of a turn that began at `since` in the session's audio, with a little before it.
    pub(super) fn turn_sound(&self, since: Duration) -> Option<Vec<i16>> {
        let vad = self.inner.vad.as_ref()?;
        let since = TURN_RATE.frames_in(since.saturating_sub(BEFORE_TURN)) as u64;
        let since = since.saturating_sub(vad.start);
        Some(vad.recent.between(since, u64::MAX).concat())
    }

    /// Whether speech seems to begin.
    pub(super) fn is_onset(&self) -> bool {
        let vad = self.inner.vad.as_ref();
        vad.is_some_and(|pipeline| pipeline.vad.is_onset())
    }

    /// Whether speech has paused for as long as no closure within a word lasts, and nothing seems to begin.
    pub(super) fn in_pause(&self) -> bool {
        let vad = self.inner.vad.as_ref();
        vad.is_some_and(|pipeline| {
            let paused = vad::RATE.duration_of(usize::try_from(pipeline.vad.pause()).unwrap_or(0));
            paused >= BETWEEN_WORDS && !pipeline.vad.is_onset()
        })
    }

    /// Decodes some of it; false if there is more. `record` is given the audio as it came, and the Opus packet that it came
    /// in.
    pub(super) fn hear(
        &mut self,
        bytes: &[u8],
        mut record: impl FnMut(&Pcm, Option<&[u8]>),
        mut tell: impl FnMut(InputEvent),
    ) -> bool {
        let mut chunks = self.decoder.push(bytes);
        for _ in 0..CHUNKS_AT_ONCE {
            let Some(chunk) = chunks.next() else {
                return true;
            };
            match chunk {
                Ok(sound) => {
                    record(&sound, chunks.packet());
                    self.inner.listen(sound.into_mono(), &mut tell);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failed, true) {
                        tell(InputEvent::Undecodable(error.to_string()));
                    }
                }
            }
        }
        false
    }

    /// How much of the spectrum is of use.
    pub(super) fn bandwidth(&self) -> Bandwidth {
        if self.inner.noise_suppression {
            return Bandwidth::Fullband;
        }
        let heard = self.inner.rate.accepted.rate;
        Bandwidth::of(match &self.inner.handover {
            Some(Handover {
                stage: Stage::Waits { next, .. },
                ..
            }) => next.layout().rate.max(heard),
            _ => heard,
        })
    }

    /// Takes audio that needs no decoding, whose rate is not the client's to say.
    pub(super) fn push_pcm(&mut self, audio: Pcm, tell: &mut impl FnMut(InputEvent)) {
        self.inner.rate_watch = None;
        self.inner.listen(audio.into_mono(), tell);
    }

    /// Takes audio that went to a pipeline whose config failed.
    pub(super) fn take_over(&mut self, sound: Pcm, tell: &mut impl FnMut(InputEvent)) {
        self.inner.understand(sound, tell);
    }

    /// Removes the audio that no final covers.
    pub(super) fn give_away(&self) -> Pcm {
        Pcm::new(self.inner.rate.accepted, self.inner.buffer.give_away())
    }

    /// No more audio comes: what noise suppression holds back is passed on.
    pub(super) fn finish(&mut self, tell: &mut impl FnMut(InputEvent)) {
        self.inner.drain_denoiser(tell);
    }

    /// Skips a gap in the audio.
    pub(super) fn skip(&mut self, gap: Duration, tell: &mut impl FnMut(InputEvent)) {
        self.inner.skip(gap, tell);
    }

    /// From the next quiet gap on the audio goes to another recogniser.
    pub(super) fn hand_over(
        &mut self,
        listen: ListenConfig,
        accepted: AudioFormat,
        tell: &mut impl FnMut(InputEvent),
    ) {
        self.make_handover(tell);
        let former = std::mem::replace(&mut self.listen, listen);
        let accepted = Layout::mono(accepted.layout.rate);
        self.inner.handover = Some(Handover {
            listen: former,
            stage: Stage::Waits {
                next: ReplayBuffer::new(accepted, Duration::ZERO),
                quiet_gap: QuietGap::default(),
            },
            committed: false,
            ends: false,
        });
    }

    /// Makes a handover that waits.
    pub(super) fn make_handover(&mut self, tell: &mut impl FnMut(InputEvent)) {
        self.inner.make_handover(tell);
    }

    /// The newest config of this pipeline is in force.
    pub(super) fn commit(&mut self) {
        self.newest().0.limit(replay_buffer::LIMIT);
        if let Some(handover) = &mut self.inner.handover {
            handover.committed = true;
            if let Stage::Made { .. } = handover.stage {
                self.inner.handover = None;
            }
        }
    }

    /// Has this buffer end with its handover. False if no handover waits.
    pub(super) fn ends_with_handover(&mut self, buffer: &ReplayBuffer) -> bool {
        match &mut self.inner.handover {
            Some(handover) if self.inner.buffer.is(buffer) => {
                let waits = matches!(handover.stage, Stage::Waits { .. });
                handover.ends |= waits;
                waits
            }
            _ => false,
        }
    }

    /// Takes a handover back: the former recogniser is sent the audio of the next one.
    pub(super) fn take_back(&mut self, tell: &mut impl FnMut(InputEvent)) {
        let Some(handover) = self.inner.handover.take() else {
            return;
        };
        self.listen = handover.listen;
        if let Stage::Made { former } = handover.stage {
            let layout = self.inner.rate.accepted;
            self.inner.hear_at(former.layout(), tell);
            let kept = Pcm::new(layout, self.inner.buffer.give_away());
            self.inner.buffer = former;
            // `convert` is complete, and the audio after it is resampled with the same delay.
            let kept = Resampler::convert(kept, self.inner.rate.accepted.rate);
            // Voice activity detection has had it already.
            self.inner.buffer.push(kept.samples(), true);
        }
    }
}

impl Inner {
    fn set_vad(&mut self, config: &VadConfig, tell: &mut impl FnMut(InputEvent)) {
        self.noise_suppression = config.noise_suppression;
        if !config.noise_suppression {
            self.drain_denoiser(tell);
        }
        let same = VadConfig {
            noise_suppression: self.vad_config.noise_suppression,
            ..*config
        } == self.vad_config;
        if same {
            return;
        }
        if let Some(paused) = self.vad.as_mut().and_then(PipelineVad::break_off) {
            tell(paused);
        }
        self.vad_config = *config;
        self.begin_vad();
    }

    /// Starts voice activity detection anew at the current position.
    fn begin_vad(&mut self) {
        let settings: VadSettings = self.vad_config.turn_settings().vad();
        let start = vad::RATE.frames_in(self.buffer.position()) as u64;
        self.vad = self.vad_config.enabled.then(|| PipelineVad {
            vad: voice_activity(settings),
            resampler: Resampler::new(self.rate.accepted, vad::RATE),
            start,
            resampled: Vec::new(),
            recent: RecentSound::default(),
            hears_turns: self.hears_turns,
            speech: None,
        });
    }

    fn skip(&mut self, gap: Duration, tell: &mut impl FnMut(InputEvent)) {
        self.drain_denoiser(tell);
        self.drain_resampler(tell);
        if let Some(paused) = self.vad.as_mut().and_then(PipelineVad::break_off) {
            tell(paused);
        }
        self.buffer.skip(gap);
        self.begin_vad();
    }

    /// Takes decoded audio.
    fn listen(&mut self, sound: Pcm, tell: &mut impl FnMut(InputEvent)) {
        if !self.noise_suppression {
            return self.understand(sound, tell);
        }
        // A stream with a header may change its rate.
        if self
            .denoiser
            .as_ref()
            .is_some_and(|known| known.layout() != sound.layout())
        {
            self.drain_denoiser(tell);
        }
        let layout = sound.layout();
        let denoiser = self
            .denoiser
            .get_or_insert_with(|| Box::new(Denoiser::new(layout.rate)));
        let mut clean = Vec::with_capacity(sound.frames());
        denoiser.push(sound.samples(), &mut clean);
        self.understand(Pcm::new(layout, clean), tell);
    }

    fn drain_denoiser(&mut self, tell: &mut impl FnMut(InputEvent)) {
        if let Some(mut denoiser) = self.denoiser.take() {
            let mut rest = Vec::new();
            denoiser.finish(&mut rest);
            self.understand(Pcm::new(denoiser.layout(), rest), tell);
        }
    }

    /// Sends audio to the recogniser; from a quiet gap on, to the next one.
    fn understand(&mut self, mut sound: Pcm, tell: &mut impl FnMut(InputEvent)) {
        if let Some(Handover {
            stage: Stage::Waits { quiet_gap, .. },
            ..
        }) = &mut self.handover
        {
            let paused = |vad: &&PipelineVad| vad.vad.is_pause() && !vad.vad.is_onset();
            let speech = self.vad.as_ref().filter(paused);
            let speech = speech.map(|vad| vad.recent.loudest());
            if let Some(end) = quiet_gap.end_in(&sound, speech) {
                let (layout, mut samples) = (sound.layout(), sound.into_samples());
                let rest = samples.split_off(end);
                self.send(&Pcm::new(layout, samples), tell);
                self.make_handover(tell);
                sound = Pcm::new(layout, rest);
            }
        }
        self.send(&sound, tell);
    }

    fn send(&mut self, sound: &Pcm, tell: &mut impl FnMut(InputEvent)) {
        let samples = self.rate.bring(sound);
        let watch = &mut self.rate_watch;
        let vad = self.vad.as_mut();
        let speech = vad.is_none_or(|vad| vad.hear(samples, watch, tell));
        self.buffer.push(samples, speech);
    }

    /// Passes on audio at the recogniser's rate.
    fn pass_on(&mut self, samples: &[i16], tell: &mut impl FnMut(InputEvent)) {
        let watch = &mut self.rate_watch;
        let vad = self.vad.as_mut();
        let speech = vad.is_none_or(|vad| vad.hear(samples, watch, tell));
        self.buffer.push(samples, speech);
    }

    fn make_handover(&mut self, tell: &mut impl FnMut(InputEvent)) {
        let Some(handover) = self.handover.take() else {
            return;
        };
        let Stage::Waits { next, .. } = handover.stage else {
            self.handover = Some(handover);
            return;
        };
        self.hear_at(next.layout(), tell);
        next.begin(self.buffer.position());
        let former = std::mem::replace(&mut self.buffer, next);
        former.finalize();
        if handover.ends {
            former.end();
        }
        if !handover.committed {
            self.handover = Some(Handover {
                stage: Stage::Made { former },
                ..handover
            });
        }
    }

    fn drain_resampler(&mut self, tell: &mut impl FnMut(InputEvent)) {
        if let Some(mut resampler) = self.rate.resampler.take() {
            let mut rest = Vec::new();
            resampler.finish(&mut rest);
            self.pass_on(&rest, tell);
        }
    }

    /// Changes the rate to that of the next recogniser. Where it is the same not a sample is lost.
    fn hear_at(&mut self, accepted: Layout, tell: &mut impl FnMut(InputEvent)) {
        if accepted == self.rate.accepted {
            return;
        }
        self.drain_resampler(tell);
        self.rate = RecogniserRate::new(accepted);
        if let Some(vad) = &mut self.vad {
            vad.resampler = Resampler::new(accepted, vad::RATE);
        }
    }
}

impl QuietGap {
    /// Where a quiet gap has lasted long enough, in samples of this audio. Where voice activity detection reports a pause, `speech`
    /// is the energy of the loudest block of the speech before it: it is late to hear that the pause is over, and does not hear
    /// every word as speech, so sound that is nearly as loud is no pause.
    fn end_in(&mut self, sound: &Pcm, speech: Option<u64>) -> Option<usize> {
        let block = sound.rate().frames_in(BLOCK).max(1);
        let mut end = 0;
        for block in sound.samples().chunks(block) {
            let energy = energy(block.iter().copied());
            if end == 0 && speech.is_some_and(|speech| energy < speech / FAINTER_THAN_SPEECH) {
                return Some(0);
            }
            end += block.len();
            let quiet = energy < (self.loudest / FAINTER).max(QUIET);
            self.loudest = self.loudest.max(energy);
            self.quiet = if quiet { self.quiet + 1 } else { 0 };
            if self.quiet >= GAP_BLOCKS {
                return Some(end);
            }
        }
        None
    }
}

/// The energy of a sample, on average.
fn energy(block: impl ExactSizeIterator<Item = i16>) -> u64 {
    let count = block.len().max(1) as u64;
    let energy = block.map(|sample| i64::from(sample).pow(2) as u64);
    energy.sum::<u64>() / count
}

#[cfg(not(test))]
fn voice_activity(settings: VadSettings) -> Vad {
    Vad::new(settings)
}

/// In tests loud audio is speech.
#[cfg(test)]
fn voice_activity(settings: VadSettings) -> Vad {
    Vad::with_score(settings, Box::new(super::tests::loudness))
}

impl RecogniserRate {
    const fn new(accepted: Layout) -> Self {
        Self {
            accepted,
            resampler: None,
            resampled: Vec::new(),
        }
    }

    /// A stream with a header may have another rate than was announced, or change it.
    fn bring<'a>(&'a mut self, sound: &'a Pcm) -> &'a [i16] {
        self.resampled.clear();
        let of_another = |former: &mut Resampler| former.input_layout() != sound.layout();
        if let Some(mut former) = self.resampler.take_if(of_another) {
            former.finish(&mut self.resampled);
        }
        if sound.layout() != self.accepted {
            let new = || Resampler::new(sound.layout(), self.accepted.rate);
            let resampler = self.resampler.get_or_insert_with(new);
            resampler.push(sound.samples(), &mut self.resampled);
        } else if self.resampled.is_empty() {
            return sound.samples();
        } else {
            self.resampled.extend_from_slice(sound.samples());
        }
        &self.resampled
    }
}

impl RateWatch {
    /// For a format whose rate is nothing but what the client says.
    fn of(format: AudioFormat) -> Option<Self> {
        let is_raw = matches!(
            format.encoding,
            Encoding::Linear16 | Encoding::Mulaw | Encoding::Alaw
        );
        is_raw.then(|| Self {
            said: format.layout.rate,
            check: RateCheck::default(),
        })
    }
}

impl PipelineVad {
    fn break_off(&mut self) -> Option<InputEvent> {
        let speech = self.vad.is_active() && !self.vad.is_pause();
        self.vad.interrupt();
        let at = self.vad.position();
        speech.then(|| self.told(VadEvent::SilenceBegan { at }))
    }

    /// Reports voice activity; true while there is speech, or a pause that is not over.
    fn hear(
        &mut self,
        samples: &[i16],
        watch: &mut Option<RateWatch>,
        tell: &mut impl FnMut(InputEvent),
    ) -> bool {
        let samples = if self.resampler.input_layout() == self.resampler.output_layout() {
            samples
        } else {
            self.resampled.clear();
            self.resampler.push(samples, &mut self.resampled);
            &self.resampled
        };
        let events = self.vad.push(samples);
        let keep = if self.hears_turns {
            Keep::TURNS
        } else {
            Keep::STRETCHES
        };
        // Speech that ends with this sound is looked at behind it.
        let speech = self.vad.is_active() || !events.is_empty();
        self.recent.push(samples, speech, keep);
        for event in events {
            let wrong_rate = self.wrong_rate(event, watch);
            tell(self.told(event));
            if let Some(wrong_rate) = wrong_rate {
                tell(wrong_rate);
            }
        }
        self.vad.is_active()
    }

    /// Whether the speech that ends with this event cannot have the rate that it is said to have.
    fn wrong_rate(&self, event: VadEvent, watch: &mut Option<RateWatch>) -> Option<InputEvent> {
        let (VadEvent::SilenceBegan { at }, Some(since)) = (event, self.speech) else {
            return None;
        };
        let RateWatch { said, check } = watch.as_mut()?;
        let said = *said;
        let speech = self.recent.between(since, at).concat();
        let wrong = check.hear(&speech);
        if check.is_over() {
            *watch = None;
        }
        wrong.map(|wrong| InputEvent::WrongRate { wrong, said })
    }

    /// An event in the session's audio, with the sound of the speech that ends with it.
    fn told(&mut self, event: VadEvent) -> InputEvent {
        let sound = match event {
            VadEvent::SpeechStart { at } | VadEvent::SpeechResumed { at } => {
                self.speech = Some(at);
                None
            }
            VadEvent::SilenceBegan { at } => {
                let since = self.speech.take();
                since.map(|since| {
                    SpeechSound::of(at.saturating_sub(since), &self.recent.between(since, at))
                })
            }
            VadEvent::SpeechEnd { .. } => None,
        };
        let event = event.later(self.start);
        InputEvent::Voice { event, sound }
    }
}

impl RecentSound {
    /// The energy of a sample of the loudest block, on average.
    fn loudest(&self) -> u64 {
        let block = vad::RATE.frames_in(BLOCK);
        let starts = (0..self.samples.len()).step_by(block);
        let ends = |start: usize| (start + block).min(self.samples.len());
        let energies = starts.map(|start| energy(self.samples.range(start..ends(start)).copied()));
        energies.max().unwrap_or_default()
    }

    /// Takes sound. Of silence as much is needed as belongs to the speech that may follow it.
    fn push(&mut self, samples: &[i16], speech: bool, keep: Keep) {
        self.heard += samples.len() as u64;
        self.quiet = if speech {
            0
        } else {
            self.quiet + samples.len()
        };
        let nobody_speaks = !speech && self.quiet >= TURN_RATE.frames_in(keep.after);
        let needed = TURN_RATE.frames_in(if nobody_speaks {
            keep.silence
        } else {
            keep.speech
        });
        let samples = samples
            .get(samples.len().saturating_sub(needed)..)
            .unwrap_or_default();
        // Room is made first: otherwise it would grow to twice of what is needed.
        let excess = (self.samples.len() + samples.len()).saturating_sub(needed);
        self.samples.drain(..excess);
        if self.samples.capacity() < self.samples.len() + samples.len() {
            // In steps, and to exactly what is needed in the end: doubling would take up to twice of it.
            let step = TURN_RATE.frames_in(GROWTH).min(needed - self.samples.len());
            self.samples.reserve_exact(samples.len().max(step));
        }
        self.samples.extend(samples);
        if nobody_speaks && self.samples.capacity() >= 2 * needed {
            self.samples.shrink_to_fit();
        }
    }

    /// What is left of the samples from one position to another.
    fn between(&self, from: u64, to: u64) -> [&[i16]; 2] {
        let oldest = self.heard - self.samples.len() as u64;
        let index = |at: u64| (at.clamp(oldest, self.heard) - oldest) as usize;
        let (from, to) = (index(from), index(to));
        let from = from.min(to);
        let (older, newer) = self.samples.as_slices();
        let split = older.len();
        // Two slices, as they lie in memory, and not one sample after another: a stretch of speech is long.
        [
            &older[from.min(split)..to.min(split)],
            &newer[from.saturating_sub(split)..to.saturating_sub(split)],
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_voice_activity_detection_reports_a_pause_a_word_that_has_begun_is_not_cut() {
        let layout = Layout::mono(SampleRate::HZ_16000);
        let tone = |level: i16| Pcm::new(layout, [level, -level].repeat(160));
        let speech = Some(energy([8_000_i16; 160].into_iter()));
        let end_in = |sound: &Pcm, speech| QuietGap::default().end_in(sound, speech);
        // The noise of a pause, also where it is loud.
        for level in [0, 100, 3_000] {
            assert_eq!(end_in(&tone(level), speech), Some(0), "{level}");
        }
        // A word; and noise of which nobody says that it is a pause.
        assert_eq!(end_in(&tone(6_000), speech), None);
        assert_eq!(end_in(&tone(3_000), None), None);
    }

    #[test]
    fn the_sound_of_a_turn_is_bounded_and_forgotten_after_it() {
        let mut recent = RecentSound::default();
        let second: Vec<i16> = (0..16_000).collect();
        for frame in second.chunks(320).cycle().take(200) {
            recent.push(frame, true, Keep::STRETCHES);
        }
        assert_eq!(recent.samples.len(), TURN_RATE.frames_in(STRETCH));
        assert!(recent.samples.capacity() <= TURN_RATE.frames_in(STRETCH));
        recent.push(&second[..320], false, Keep::STRETCHES);
        assert_eq!(recent.samples.len(), TURN_RATE.frames_in(BEFORE_STRETCH));
        assert!(recent.samples.capacity() < 2 * recent.samples.len());
        // How long it takes until the detector is sure: what comes then has its beginning.
        recent.push(&second[..320], true, Keep::STRETCHES);
        let began = recent.heard - TURN_RATE.frames_in(Duration::from_millis(100)) as u64;
        assert_eq!(recent.between(began, recent.heard).concat().len(), 1_600);
        let mut recent = RecentSound::default();
        for _ in 0..20 {
            recent.push(&second, true, Keep::TURNS);
        }
        assert_eq!(recent.samples.len(), TURN_RATE.frames_in(TURN_SOUND));
        let between = |from, to| recent.between(from, to).concat();
        assert_eq!(between(19 * 16_000 + 5, 19 * 16_000 + 8), [5, 6, 7]);
        assert_eq!(between(0, u64::MAX).len(), recent.samples.len());
        assert_eq!(between(u64::MAX, 0).len(), 0);
        for _ in 0..6 {
            recent.push(&second, false, Keep::TURNS);
        }
        assert_eq!(recent.samples.len(), TURN_RATE.frames_in(BEFORE_TURN));
        assert!(recent.samples.capacity() < 2 * recent.samples.len());
    }
}
