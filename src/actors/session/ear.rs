//! An ear hears one format: it decodes what the client sends, suppresses noise where that is wanted, looks for voice
//! activity, and writes the [`Feed`] of its recogniser. Which ear is in force is decided by the
//! [hearing](super::hearing).
//!
//! A recogniser that is replaced while the client goes on sending is replaced within the ear: the sound goes to the
//! former one until the next lull, so that no word is cut in two, and from there on to the next one. Nothing is heard
//! twice, and nothing by nobody.

use std::time::Duration;

use super::hearing::EarNews;
use super::messages::{ListenConfig, VadConfig};
use crate::stt::feed::{self, Feed};
use vivavoce_audio::decode::{DecodeError, StreamDecoder};
use vivavoce_audio::denoise::Denoiser;
use vivavoce_audio::vad::{self, Vad, VadEvent, VadSettings};
use vivavoce_audio::{AudioFormat, Encoding, Layout, Pcm, Resampler};

/// Bytes that are decoded at once. A few bytes of Ogg/Opus may be seconds of sound.
const SLICE: usize = 4 << 10;
const OGG_SLICE: usize = 256;
/// Chunks of decoded sound after which others have their turn: a page of Ogg may hold half a minute.
const CHUNKS_AT_ONCE: usize = 8;

/// What a lull is looked for in.
const BLOCK: Duration = Duration::from_millis(10);
/// Quiet blocks in a row that make a lull: longer than the closure of a plosive, which is silent too.
const LULL: u32 = 7;
/// How much fainter than what was heard before a quiet block is, as a part of its energy: 16 dB.
const FAINTER: u64 = 40;
/// The energy of a sample that is quiet whatever was before: 55 dB below full scale.
const QUIET: u64 = 60 * 60;

/// Hears one format.
pub(super) struct Ear {
    listen: ListenConfig,
    decoder: StreamDecoder,
    inner: Inner,
    failed: bool,
    /// Whether the feed ends with what waits to be decoded.
    pub(super) ends: bool,
}

/// What decoded sound goes through.
struct Inner {
    noise_suppression: bool,
    denoiser: Option<Denoiser>,
    rate: RecogniserRate,
    vad: Option<EarVad>,
    vad_config: VadConfig,
    feed: Feed,
    handover: Option<Handover>,
}

/// A recogniser that takes the place of another.
struct Handover {
    /// What the former one was to listen for.
    listen: ListenConfig,
    stage: Stage,
    /// The next one is in force, whatever comes.
    committed: bool,
    /// The former feed ends with the handover.
    ends: bool,
}

enum Stage {
    /// The next lull is waited for.
    Waits { next: Feed, lull: Lull },
    /// It was made, and may have to be taken back.
    Made { former: Feed },
}

/// Looks for a place where nobody is in the middle of a word.
#[derive(Default)]
struct Lull {
    /// The greatest energy of a sample in any block, on average.
    loudest: u64,
    quiet: u32,
}

/// Brings sound to what the recogniser takes.
struct RecogniserRate {
    accepted: Layout,
    resampler: Option<Resampler>,
    resampled: Vec<i16>,
}

/// Voice activity detection of an ear, which hears what the recogniser hears.
struct EarVad {
    vad: Vad,
    resampler: Resampler,
    /// The first sample that it heard, in the session's audio.
    start: u64,
    resampled: Vec<i16>,
}

impl Ear {
    /// An ear for this format, whose first sample has this place in the session's audio. `accepted` is what its recogniser
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
            feed: Feed::new(accepted, start),
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

    /// What it listens for, or will as soon as a handover is made.
    pub(super) const fn listen(&self) -> &ListenConfig {
        &self.listen
    }

    /// What the recogniser hears that is in force, or will be, and what that sound is.
    pub(super) fn newest(&self) -> (Feed, Layout) {
        let feed = match &self.inner.handover {
            Some(Handover {
                stage: Stage::Waits { next, .. },
                ..
            }) => next,
            _ => &self.inner.feed,
        };
        (feed.clone(), feed.layout())
    }

    /// What sound goes to now.
    pub(super) const fn feed(&self) -> &Feed {
        &self.inner.feed
    }

    /// Whether these bytes are better decoded bit by bit than in the reading task.
    pub(super) fn takes_long(&self, bytes: &[u8]) -> bool {
        self.listen.format.encoding == Encoding::OggOpus || bytes.len() > self.slice()
    }

    /// Bytes that are decoded at once.
    pub(super) fn slice(&self) -> usize {
        match self.listen.format.encoding {
            Encoding::OggOpus => OGG_SLICE,
            // One message is one packet.
            Encoding::Opus => usize::MAX,
            _ => SLICE,
        }
    }

    /// About how long so many bytes last; nought where only decoding could tell.
    pub(super) fn duration_of(&self, bytes: usize) -> Duration {
        let layout = self.listen.format.layout;
        let frame = match self.listen.format.encoding {
            Encoding::Linear16 => 2 * layout.channels.count(),
            Encoding::Mulaw | Encoding::Alaw => layout.channels.count(),
            _ => return Duration::ZERO,
        };
        layout.rate.duration_of(bytes / frame)
    }

    /// Listens for voice activity in this way from now on, and suppresses noise or does not. What becomes of speech that
    /// was heard in another way is told.
    pub(super) fn set_vad(&mut self, config: &VadConfig, tell: &mut impl FnMut(EarNews)) {
        self.inner.set_vad(config, tell);
    }

    /// Ends speech that is heard here no further, as a pause: whoever hears it go on says that it has resumed.
    pub(super) fn break_off(&mut self) -> Option<EarNews> {
        self.inner.vad.as_mut().and_then(EarVad::break_off)
    }

    /// Whether a voice seems to begin.
    pub(super) fn is_onset(&self) -> bool {
        let vad = self.inner.vad.as_ref();
        vad.is_some_and(|ear| ear.vad.is_onset())
    }

    /// Decodes some of it; false when there is more. `record` is given the sound as it came, and
    /// the Opus packet that it came in.
    pub(super) fn hear(
        &mut self,
        bytes: &[u8],
        mut record: impl FnMut(&Pcm, Option<&[u8]>),
        mut tell: impl FnMut(EarNews),
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
                        tell(EarNews::Undecodable(error.to_string()));
                    }
                }
            }
        }
        false
    }

    /// Hears sound that another ear was given by mistake.
    pub(super) fn take_over(&mut self, sound: Pcm, tell: &mut impl FnMut(EarNews)) {
        self.inner.understand(sound, tell);
    }

    /// Gives away what its recogniser was not sent.
    pub(super) fn give_away(&self) -> Pcm {
        Pcm::new(self.inner.rate.accepted, self.inner.feed.give_away())
    }

    /// No more sound comes: what is still held back is heard.
    pub(super) fn finish(&mut self, tell: &mut impl FnMut(EarNews)) {
        self.inner.drain_denoiser(tell);
    }

    /// There is no audio for so long, while the clock goes on.
    pub(super) fn skip(&mut self, gap: Duration, tell: &mut impl FnMut(EarNews)) {
        self.inner.skip(gap, tell);
    }

    /// From the next lull on another recogniser hears, which takes this.
    pub(super) fn hand_over(
        &mut self,
        listen: ListenConfig,
        accepted: AudioFormat,
        tell: &mut impl FnMut(EarNews),
    ) {
        self.make_handover(tell);
        let former = std::mem::replace(&mut self.listen, listen);
        let accepted = Layout::mono(accepted.layout.rate);
        self.inner.handover = Some(Handover {
            listen: former,
            stage: Stage::Waits {
                next: Feed::new(accepted, Duration::ZERO),
                lull: Lull::default(),
            },
            committed: false,
            ends: false,
        });
    }

    /// A handover that is still to be made is made now.
    pub(super) fn make_handover(&mut self, tell: &mut impl FnMut(EarNews)) {
        self.inner.make_handover(tell);
    }

    /// The config in force is this ear's newest.
    pub(super) fn commit(&mut self) {
        self.newest().0.limit(feed::LIMIT);
        if let Some(handover) = &mut self.inner.handover {
            handover.committed = true;
            if let Stage::Made { .. } = handover.stage {
                self.inner.handover = None;
            }
        }
    }

    /// Ends this feed as soon as it is handed over. False where there is no such thing to wait for.
    pub(super) fn ends_with_handover(&mut self, feed: &Feed) -> bool {
        match &mut self.inner.handover {
            Some(handover) if self.inner.feed.is(feed) => {
                let waits = matches!(handover.stage, Stage::Waits { .. });
                handover.ends |= waits;
                waits
            }
            _ => false,
        }
    }

    /// The next recogniser will not hear: the former one goes on, with what the next was to hear.
    pub(super) fn take_back(&mut self, tell: &mut impl FnMut(EarNews)) {
        let Some(handover) = self.inner.handover.take() else {
            return;
        };
        self.listen = handover.listen;
        if let Stage::Made { former } = handover.stage {
            let layout = self.inner.rate.accepted;
            self.inner.hear_at(former.layout(), tell);
            let kept = Pcm::new(layout, self.inner.feed.give_away());
            self.inner.feed = former;
            // Complete, but live: the recogniser waits for it, and the sound after it is resampled in the same way.
            let kept = Resampler::convert(kept, self.inner.rate.accepted.rate);
            // Voice activity detection has heard it already.
            self.inner.feed.push(kept.samples(), true);
        }
    }
}

impl Inner {
    fn set_vad(&mut self, config: &VadConfig, tell: &mut impl FnMut(EarNews)) {
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
        if let Some(paused) = self.vad.as_mut().and_then(EarVad::break_off) {
            tell(paused);
        }
        self.vad_config = *config;
        self.begin_vad();
    }

    /// Voice activity detection begins anew where the audio is now.
    fn begin_vad(&mut self) {
        let settings: VadSettings = self.vad_config.turn_settings().vad();
        let start = vad::RATE.frames_in(self.feed.position()) as u64;
        self.vad = self.vad_config.enabled.then(|| EarVad {
            vad: voice_activity(settings),
            resampler: Resampler::new(self.rate.accepted, vad::RATE),
            start,
            resampled: Vec::new(),
        });
    }

    fn skip(&mut self, gap: Duration, tell: &mut impl FnMut(EarNews)) {
        self.drain_denoiser(tell);
        self.drain_resampler(tell);
        if let Some(paused) = self.vad.as_mut().and_then(EarVad::break_off) {
            tell(paused);
        }
        self.feed.skip(gap);
        self.begin_vad();
    }

    /// Takes decoded sound.
    fn listen(&mut self, sound: Pcm, tell: &mut impl FnMut(EarNews)) {
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
            .get_or_insert_with(|| Denoiser::new(layout.rate));
        let mut clean = Vec::with_capacity(sound.frames());
        denoiser.push(sound.samples(), &mut clean);
        self.understand(Pcm::new(layout, clean), tell);
    }

    fn drain_denoiser(&mut self, tell: &mut impl FnMut(EarNews)) {
        if let Some(mut denoiser) = self.denoiser.take() {
            let mut rest = Vec::new();
            denoiser.finish(&mut rest);
            self.understand(Pcm::new(denoiser.layout(), rest), tell);
        }
    }

    /// Gives sound to voice activity detection and to the recogniser; where there is a lull, to the next one.
    fn understand(&mut self, mut sound: Pcm, tell: &mut impl FnMut(EarNews)) {
        if let Some(Handover {
            stage: Stage::Waits { lull, .. },
            ..
        }) = &mut self.handover
        {
            let paused = self.vad.as_ref().is_some_and(|vad| vad.vad.is_pause());
            if let Some(end) = lull.end_in(&sound, paused) {
                let (layout, mut samples) = (sound.layout(), sound.into_samples());
                let rest = samples.split_off(end);
                self.send(&Pcm::new(layout, samples), tell);
                self.make_handover(tell);
                sound = Pcm::new(layout, rest);
            }
        }
        self.send(&sound, tell);
    }

    fn send(&mut self, sound: &Pcm, tell: &mut impl FnMut(EarNews)) {
        let samples = self.rate.bring(sound);
        let vad = self.vad.as_mut();
        let speech = vad.is_none_or(|vad| vad.hear(samples, tell));
        self.feed.push(samples, speech);
    }

    /// Passes on sound that has the recogniser's rate.
    fn pass_on(&mut self, samples: &[i16], tell: &mut impl FnMut(EarNews)) {
        let vad = self.vad.as_mut();
        let speech = vad.is_none_or(|vad| vad.hear(samples, tell));
        self.feed.push(samples, speech);
    }

    fn make_handover(&mut self, tell: &mut impl FnMut(EarNews)) {
        let Some(handover) = self.handover.take() else {
            return;
        };
        let Stage::Waits { next, .. } = handover.stage else {
            self.handover = Some(handover);
            return;
        };
        self.hear_at(next.layout(), tell);
        next.begin(self.feed.position());
        let former = std::mem::replace(&mut self.feed, next);
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

    fn drain_resampler(&mut self, tell: &mut impl FnMut(EarNews)) {
        if let Some(mut resampler) = self.rate.resampler.take() {
            let mut rest = Vec::new();
            resampler.finish(&mut rest);
            self.pass_on(&rest, tell);
        }
    }

    /// Another recogniser hears from now on, at this rate. Where that is the same, the sound goes on to the sample.
    fn hear_at(&mut self, accepted: Layout, tell: &mut impl FnMut(EarNews)) {
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

impl Lull {
    /// Where a lull has lasted long enough, in samples of this sound. `paused` says that voice activity detection hears
    /// a pause.
    fn end_in(&mut self, sound: &Pcm, paused: bool) -> Option<usize> {
        if paused {
            return Some(0);
        }
        let block = sound.rate().frames_in(BLOCK).max(1);
        let mut end = 0;
        for block in sound.samples().chunks(block) {
            end += block.len();
            let energy = block.iter().map(|&sample| i64::from(sample).pow(2) as u64);
            let energy = energy.sum::<u64>() / block.len() as u64;
            let quiet = energy < (self.loudest / FAINTER).max(QUIET);
            self.loudest = self.loudest.max(energy);
            self.quiet = if quiet { self.quiet + 1 } else { 0 };
            if self.quiet >= LULL {
                return Some(end);
            }
        }
        None
    }
}

#[cfg(not(test))]
fn voice_activity(settings: VadSettings) -> Vad {
    Vad::new(settings)
}

/// In tests what is loud is speech.
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
        if sound.layout() == self.accepted {
            return sound.samples();
        }
        let known = self
            .resampler
            .take()
            .filter(|resampler| resampler.input_layout() == sound.layout());
        let new = || Resampler::new(sound.layout(), self.accepted.rate);
        let resampler = self.resampler.insert(known.unwrap_or_else(new));
        self.resampled.clear();
        resampler.push(sound.samples(), &mut self.resampled);
        &self.resampled
    }
}

impl EarVad {
    fn break_off(&mut self) -> Option<EarNews> {
        let speech = self.vad.is_active() && !self.vad.is_pause();
        self.vad.interrupt();
        let at = self.vad.position();
        speech.then(|| EarNews::Voice(VadEvent::SilenceBegan { at }.later(self.start)))
    }

    /// Tells what the voice does; true while there is speech, or a pause that is not over.
    fn hear(&mut self, samples: &[i16], tell: &mut impl FnMut(EarNews)) -> bool {
        let samples = if self.resampler.input_layout() == self.resampler.output_layout() {
            samples
        } else {
            self.resampled.clear();
            self.resampler.push(samples, &mut self.resampled);
            &self.resampled
        };
        for event in self.vad.push(samples) {
            tell(EarNews::Voice(event.later(self.start)));
        }
        self.vad.is_active()
    }
}
