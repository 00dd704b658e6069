//! The way in of a session: what the client sends becomes sound for the recogniser ([`Feed`]) and for voice activity
//! detection. The socket's reading task writes it by plain calls, so that sound never waits in a mailbox; long messages
//! are decoded bit by bit in a task of their own, so that one client does not hold up another.
//!
//! An [`Ear`] hears one format. A `config` that changes the format brings a new ear with the very message behind it,
//! before it is known whether the config can be carried out: until then the sound is kept.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::messages::{ListenConfig, VadConfig};
use crate::actors::recorder::Tap;
use crate::actors::stt::feed::{self, Feed};
use crate::audio::decode::{DecodeError, StreamDecoder};
use crate::audio::vad::{self, Vad, VadEvent, VadSettings};
use crate::audio::{AudioFormat, Encoding, Layout, Pcm, Resampler};
use crate::telemetry::metrics::{self, DropCause};

/// Bytes that are decoded at once. A few bytes of Ogg/Opus may be seconds of sound.
const SLICE: usize = 4 << 10;
const OGG_SLICE: usize = 256;
/// Chunks of decoded sound after which others have their turn: a page of Ogg may hold half a minute.
const CHUNKS_AT_ONCE: usize = 8;
/// Bytes that wait to be decoded at most: two of the longest messages.
const MAX_WAITING_BYTES: usize = 2 << 20;
/// News for the session that wait at most; beyond it they are lost, and counted.
const MAX_NEWS: usize = 256;
/// Sound that waits for its recorder at most, for a config may take a while.
const MAX_EARLY: Duration = Duration::from_secs(10);
/// Configs that wait to be carried out at most.
pub const MAX_EARS: usize = 8;

/// What the session hears of its ear.
#[derive(Debug)]
pub enum EarNews {
    /// Voice activity, its position in samples of [`vad::RATE`] since the session began.
    Voice(VadEvent),
    /// What the client sends is not what it announced. Told once per ear.
    Undecodable(String),
}

/// Why sound was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deaf {
    /// No config has come yet.
    NotConfigured,
    /// The session has no sound.
    AudioDisabled,
}

/// The input of one session; clones are the same.
#[derive(Clone)]
pub struct Hearing(Rc<Shared>);

struct Shared {
    state: RefCell<State>,
    wake: Notify,
    news: mpsc::Sender<EarNews>,
}

#[derive(Default)]
struct State {
    /// What the configs have asked for that are carried out or wait to be, the oldest first: before them, what is in
    /// force.
    ears: VecDeque<Slot>,
    waiting: VecDeque<(Rc<RefCell<Ear>>, Bytes)>,
    waiting_bytes: usize,
    undecoded: Duration,
    /// Whether its deafness was told since the last config.
    told_deaf: bool,
    position: Duration,
    recorded: Recorded,
}

/// What becomes of sound beside being heard.
#[derive(Default)]
enum Recorded {
    #[default]
    Nowhere,
    /// It waits for the recorder that a config has asked for.
    Early {
        since: Instant,
        sound: VecDeque<(Pcm, Instant)>,
        length: Duration,
    },
    /// It is recorded.
    By(Tap),
}

impl Recorded {
    fn hear(&mut self, sound: &Pcm) {
        match self {
            Self::Nowhere => {}
            Self::Early {
                sound: early,
                length,
                ..
            } => {
                *length += sound.duration();
                early.push_back((sound.clone(), Instant::now()));
                while *length > MAX_EARLY
                    && let Some((oldest, _)) = early.pop_front()
                {
                    *length -= oldest.duration();
                    metrics::audio_dropped(DropCause::Recording, oldest.duration());
                }
            }
            Self::By(tap) => tap.hear(sound, Instant::now()),
        }
    }
}

struct Slot {
    /// Of the config that asked for it.
    config: u64,
    /// `None` hears nothing.
    ear: Option<Rc<RefCell<Ear>>>,
}

impl Hearing {
    /// An input that was not configured yet, and what comes of it.
    pub fn new() -> (Self, mpsc::Receiver<EarNews>) {
        let (news, receiver) = mpsc::channel(MAX_NEWS);
        let shared = Shared {
            state: RefCell::default(),
            wake: Notify::new(),
            news,
        };
        (Self(Rc::new(shared)), receiver)
    }

    /// A config was sent: what comes behind it is in its format. `accepted` is what its recogniser takes. False when
    /// too many wait already.
    pub fn expect(
        &self,
        config: u64,
        listen: Option<(&ListenConfig, AudioFormat)>,
        vad: &VadConfig,
    ) -> bool {
        let mut state = self.0.state.borrow_mut();
        if state.ears.len() > MAX_EARS {
            return false;
        }
        state.told_deaf = false;
        let last = state.ears.back().and_then(|slot| slot.ear.clone());
        let waiting = last
            .as_ref()
            .map_or(Duration::ZERO, |last| state.waiting_of(last));
        state.position = state.position(last.as_ref()) + waiting;
        let former = last.clone();
        let ear = listen.and_then(|(listen, accepted)| match last {
            Some(last) if last.borrow().listen == *listen => Some(last),
            _ => {
                let start = state.position;
                let ear = Ear::new(listen.clone(), accepted, vad, start);
                // A format that cannot be decoded at all is refused when the config is carried out.
                ear.ok().map(|ear| Rc::new(RefCell::new(ear)))
            }
        });
        let goes_on = |former: &Rc<RefCell<Ear>>| {
            let same = ear.as_ref().is_some_and(|ear| Rc::ptr_eq(ear, former));
            same || state.is_behind(former)
        };
        let breaks_off = former.filter(|former| !goes_on(former));
        state.ears.push_back(Slot { config, ear });
        drop(state);
        if let Some(former) = breaks_off {
            self.break_off(&former);
        }
        true
    }

    /// A config asks for a recording: from now on what is heard is kept for it.
    pub fn expect_recorder(&self) {
        let state = &mut *self.0.state.borrow_mut();
        if matches!(state.recorded, Recorded::Nowhere) {
            state.recorded = Recorded::Early {
                since: Instant::now(),
                sound: VecDeque::new(),
                length: Duration::ZERO,
            };
        }
    }

    /// The recorder is there; `make` is told since when there is sound for it.
    pub fn record(&self, make: impl FnOnce(Instant) -> Tap) -> Tap {
        let state = &mut *self.0.state.borrow_mut();
        let before = std::mem::take(&mut state.recorded);
        let (since, sound) = match before {
            Recorded::Early { since, sound, .. } => (since, sound),
            Recorded::Nowhere | Recorded::By(_) => (Instant::now(), VecDeque::new()),
        };
        let tap = make(since);
        for (sound, at) in sound {
            tap.hear(&sound, at);
        }
        state.recorded = Recorded::By(tap.clone());
        tap
    }

    /// Nothing is recorded, or nothing any more.
    pub fn record_nothing(&self) {
        self.0.state.borrow_mut().recorded = Recorded::Nowhere;
    }

    /// The recogniser of this feed has heard everything, as soon as what waits for it is decoded.
    pub fn end(&self, feed: &Feed) {
        let state = self.0.state.borrow();
        let mut waiting = state.waiting.iter().map(|(ear, _)| ear);
        match waiting.find(|ear| ear.borrow().feed.is(feed)) {
            Some(ear) => ear.borrow_mut().ends = true,
            None => feed.end(),
        }
    }

    /// What the voice was doing goes on elsewhere, or not: here nothing more is heard of it.
    fn break_off(&self, ear: &Rc<RefCell<Ear>>) {
        let paused = ear.borrow_mut().vad.as_mut().and_then(EarVad::break_off);
        if let Some(paused) = paused {
            self.tell(paused);
        }
    }

    /// What a config's recogniser is to hear, and what that sound is; `None` where it hears nothing.
    pub fn feed(&self, config: u64) -> Option<(Feed, Layout)> {
        let state = self.0.state.borrow();
        let slot = state.ears.iter().find(|slot| slot.config == config)?;
        let ear = slot.ear.as_ref()?.borrow();
        Some((ear.feed.clone(), ear.rate.accepted))
    }

    /// The config is in force: what was before it is not heard any more.
    pub fn commit(&self, config: u64, vad: &VadConfig) {
        let mut state = self.0.state.borrow_mut();
        while state.ears.front().is_some_and(|slot| slot.config != config) {
            state.ears.pop_front();
        }
        if let Some(Slot { ear: Some(ear), .. }) = state.ears.front() {
            let mut ear = ear.borrow_mut();
            ear.feed.limit(feed::LIMIT);
            if let Some(paused) = ear.set_vad(vad) {
                self.tell(paused);
            }
        }
    }

    /// The config could not be carried out: what came behind it is for the one in force, as what comes now is.
    pub fn discard(&self, config: u64) {
        let (gone, back) = {
            let mut state = self.0.state.borrow_mut();
            state.told_deaf = false;
            let asked = state.ears.iter().position(|slot| slot.config == config);
            let before = asked.and_then(|index| index.checked_sub(1));
            let back = before.and_then(|before| state.ears[before].ear.clone());
            let gone = asked.and_then(|index| state.ears.remove(index)?.ear);
            // A config behind it may have left the ear as it is.
            let heard = |ear: &Rc<RefCell<Ear>>| {
                let mut others = state.ears.iter().filter_map(|slot| slot.ear.as_ref());
                others.any(|other| Rc::ptr_eq(other, ear))
            };
            (gone.filter(|gone| !heard(gone)), back)
        };
        if let (Some(gone), Some(back)) = (gone, back)
            && !Rc::ptr_eq(&gone, &back)
        {
            let gone = gone.borrow();
            let sound = Pcm::new(gone.rate.accepted, gone.feed.give_away());
            let Ear {
                rate, vad, feed, ..
            } = &mut *back.borrow_mut();
            listen(rate, vad.as_mut(), feed, sound, &mut |news| self.tell(news));
        }
    }

    /// Takes what the client has sent. Deafness is told once.
    pub fn hear(&self, bytes: Bytes) -> Result<(), Option<Deaf>> {
        let ear = {
            let mut state = self.0.state.borrow_mut();
            let slot = state.ears.back();
            let deaf = match slot.map(|slot| &slot.ear) {
                None => Deaf::NotConfigured,
                Some(None) => Deaf::AudioDisabled,
                Some(Some(ear)) => {
                    let ear = Rc::clone(ear);
                    if !state.waiting.is_empty() || ear.borrow().takes_long(&bytes) {
                        let dropped = state.wait(ear, bytes);
                        drop(state);
                        for ear in dropped {
                            self.last_was_decoded(&ear);
                        }
                        self.0.wake.notify_one();
                        return Ok(());
                    }
                    drop(state);
                    self.decode(&ear, &bytes);
                    return Ok(());
                }
            };
            (!std::mem::replace(&mut state.told_deaf, true)).then_some(deaf)
        };
        Err(ear)
    }

    /// How much sound the session has heard.
    pub fn position(&self) -> Duration {
        let state = self.0.state.borrow();
        let last = state.ears.back().and_then(|slot| slot.ear.clone());
        state.position(last.as_ref())
    }

    /// Decodes what waits, until the session drops it.
    pub async fn run(self) {
        loop {
            let next = self.0.state.borrow_mut().next_slice();
            match next {
                Some((ear, slice)) => {
                    let mut all = self.decode(&ear, &slice);
                    while !all {
                        tokio::task::yield_now().await;
                        all = self.decode(&ear, &[]);
                    }
                    self.last_was_decoded(&ear);
                    tokio::task::yield_now().await;
                }
                None => self.0.wake.notified().await,
            }
        }
    }

    /// Whether all of it was decoded; the rest comes with the next bytes, or with none.
    fn decode(&self, ear: &Rc<RefCell<Ear>>, bytes: &[u8]) -> bool {
        let record = |sound: &Pcm| self.0.state.borrow_mut().recorded.hear(sound);
        ear.borrow_mut().hear(bytes, record, |news| self.tell(news))
    }

    /// How much sound was dropped because more came than can be decoded.
    pub fn undecoded(&self) -> Duration {
        self.0.state.borrow().undecoded
    }

    /// Does what had to wait for the last bytes of an ear, if those were the last.
    fn last_was_decoded(&self, ear: &Rc<RefCell<Ear>>) {
        let is_heard = {
            let state = self.0.state.borrow();
            if state.is_behind(ear) {
                return;
            }
            let last = state.ears.back().and_then(|slot| slot.ear.as_ref());
            last.is_some_and(|last| Rc::ptr_eq(last, ear))
        };
        if ear.borrow().ends {
            ear.borrow().feed.end();
        }
        if !is_heard {
            self.break_off(ear);
        }
    }

    fn tell(&self, news: EarNews) {
        if self.0.news.try_send(news).is_err() {
            tracing::warn!("voice activity was lost: the session is behind");
        }
    }
}

impl State {
    fn position(&self, last: Option<&Rc<RefCell<Ear>>>) -> Duration {
        last.map_or(self.position, |ear| ear.borrow().feed.position())
    }

    /// Returns the ears whose oldest sound had to be dropped.
    fn wait(&mut self, ear: Rc<RefCell<Ear>>, bytes: Bytes) -> Vec<Rc<RefCell<Ear>>> {
        let mut dropped = Vec::new();
        self.waiting_bytes += bytes.len();
        self.waiting.push_back((ear, bytes));
        while self.waiting_bytes > MAX_WAITING_BYTES
            && let Some((ear, oldest)) = self.waiting.pop_front()
        {
            self.waiting_bytes -= oldest.len();
            let lost = ear.borrow().duration_of(oldest.len());
            metrics::audio_dropped(DropCause::Decoding, lost);
            self.undecoded += lost;
            dropped.push(ear);
        }
        dropped
    }

    /// Whether bytes of this ear wait to be decoded.
    fn is_behind(&self, ear: &Rc<RefCell<Ear>>) -> bool {
        self.waiting
            .iter()
            .any(|(waiting, _)| Rc::ptr_eq(waiting, ear))
    }

    /// About how long what waits for this ear lasts.
    fn waiting_of(&self, ear: &Rc<RefCell<Ear>>) -> Duration {
        let its = self
            .waiting
            .iter()
            .filter(|(waiting, _)| Rc::ptr_eq(waiting, ear));
        its.map(|(ear, bytes)| ear.borrow().duration_of(bytes.len()))
            .sum()
    }

    /// The next bytes to decode. One packet of bare Opus stays whole.
    fn next_slice(&mut self) -> Option<(Rc<RefCell<Ear>>, Bytes)> {
        let (ear, bytes) = self.waiting.front_mut()?;
        let ear = Rc::clone(ear);
        let slice = ear.borrow().slice().min(bytes.len());
        let slice = bytes.split_to(slice);
        self.waiting_bytes -= slice.len();
        if bytes.is_empty() {
            self.waiting.pop_front();
        }
        Some((ear, slice))
    }
}

/// Hears one format.
struct Ear {
    listen: ListenConfig,
    decoder: StreamDecoder,
    rate: RecogniserRate,
    vad: Option<EarVad>,
    vad_config: VadConfig,
    feed: Feed,
    /// Whether the feed ends with what waits to be decoded.
    ends: bool,
    failed: bool,
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
    fn new(
        listen: ListenConfig,
        accepted: AudioFormat,
        vad: &VadConfig,
        start: Duration,
    ) -> Result<Self, DecodeError> {
        let decoder = StreamDecoder::new(listen.format)?;
        let accepted = Layout::mono(accepted.layout.rate);
        let feed = Feed::new(accepted, start);
        let mut ear = Self {
            listen,
            decoder,
            rate: RecogniserRate {
                accepted,
                resampler: None,
                resampled: Vec::new(),
            },
            vad: None,
            vad_config: VadConfig {
                enabled: false,
                ..*vad
            },
            feed,
            ends: false,
            failed: false,
        };
        ear.set_vad(vad);
        Ok(ear)
    }

    /// Whether these bytes are better decoded bit by bit than in the reading task.
    fn takes_long(&self, bytes: &[u8]) -> bool {
        self.listen.format.encoding == Encoding::OggOpus || bytes.len() > self.slice()
    }

    fn slice(&self) -> usize {
        match self.listen.format.encoding {
            Encoding::OggOpus => OGG_SLICE,
            // One message is one packet.
            Encoding::Opus => usize::MAX,
            _ => SLICE,
        }
    }

    /// About how long so many bytes last; nought where only decoding could tell.
    fn duration_of(&self, bytes: usize) -> Duration {
        let layout = self.listen.format.layout;
        let frame = match self.listen.format.encoding {
            Encoding::Linear16 => 2 * layout.channels.count(),
            Encoding::Mulaw | Encoding::Alaw => layout.channels.count(),
            _ => return Duration::ZERO,
        };
        layout.rate.duration_of(bytes / frame)
    }

    /// Listens for voice activity in this way from now on. Returns what becomes of speech that was heard in another.
    fn set_vad(&mut self, config: &VadConfig) -> Option<EarNews> {
        if *config == self.vad_config {
            return None;
        }
        let paused = self.vad.as_mut().and_then(EarVad::break_off);
        self.vad_config = *config;
        let settings: VadSettings = config.turn_settings().vad();
        let start = vad::RATE.frames_in(self.feed.position()) as u64;
        self.vad = config.enabled.then(|| EarVad {
            vad: voice_activity(settings),
            resampler: Resampler::new(self.rate.accepted, vad::RATE),
            start,
            resampled: Vec::new(),
        });
        paused
    }

    /// Decodes some of it; false when there is more.
    fn hear(
        &mut self,
        bytes: &[u8],
        mut record: impl FnMut(&Pcm),
        mut tell: impl FnMut(EarNews),
    ) -> bool {
        let mut chunks = self.decoder.push(bytes);
        for _ in 0..CHUNKS_AT_ONCE {
            let Some(chunk) = chunks.next() else {
                return true;
            };
            match chunk {
                Ok(sound) => {
                    record(&sound);
                    let (rate, vad) = (&mut self.rate, self.vad.as_mut());
                    listen(rate, vad, &self.feed, sound, &mut tell);
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

/// Gives sound to voice activity detection and to the recogniser.
fn listen(
    rate: &mut RecogniserRate,
    vad: Option<&mut EarVad>,
    feed: &Feed,
    sound: Pcm,
    tell: &mut impl FnMut(EarNews),
) {
    let sound = sound.into_mono();
    let samples = rate.bring(&sound);
    let speech = vad.is_none_or(|vad| vad.hear(samples, tell));
    feed.push(samples, speech);
}

impl RecogniserRate {
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
    /// Ends speech that is heard here no further, as a pause: whoever hears it go on says that it has resumed.
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
