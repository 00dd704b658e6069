//! The way in of a session: what the client sends becomes sound for the recogniser ([`Feed`]) and for voice activity
//! detection. The socket's reading task writes it by plain calls, so that sound never waits in a mailbox; long messages
//! are decoded bit by bit in a task of their own, so that one client does not hold up another.
//!
//! An [`Ear`] hears one format. A `config` that changes the format brings a new ear with the very message behind it,
//! before it is known whether the config can be carried out: until then the sound is kept. Where the format stays, a
//! new recogniser takes the place of the former one within the ear.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::ear::Ear;
use super::messages::{ListenConfig, VadConfig};
use super::turn::Moment;
use crate::recorder::Tap;
use crate::stt::feed::Feed;
use vivavoce_audio::vad::VadEvent;
use vivavoce_audio::{AudioFormat, Layout, Pcm};
use vivavoce_seams::SttResult;
use vivavoce_telemetry::metrics::{self, DropCause};

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
    /// Voice activity, its position in samples of [`RATE`](vivavoce_audio::vad::RATE) since the session began.
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
    /// It hears its room.
    InRoom,
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
        sound: VecDeque<Early>,
        length: Duration,
    },
    /// It is recorded.
    By(Tap),
}

/// Sound, the Opus packet that it came in, and when it came.
type Early = (Pcm, Option<Bytes>, Instant);

impl Recorded {
    fn hear(&mut self, sound: &Pcm, packet: Option<&[u8]>) {
        match self {
            Self::Nowhere => {}
            Self::Early {
                sound: early,
                length,
                ..
            } => {
                *length += sound.duration();
                let packet = packet.map(Bytes::copy_from_slice);
                early.push_back((sound.clone(), packet, Instant::now()));
                while *length > MAX_EARLY
                    && let Some((oldest, ..)) = early.pop_front()
                {
                    *length -= oldest.duration();
                    metrics::audio_dropped(DropCause::Recording, oldest.duration());
                }
            }
            Self::By(tap) => tap.hear(sound, packet, Instant::now()),
        }
    }
}

struct Slot {
    /// Of the config that asked for it.
    config: u64,
    /// `None` hears nothing.
    ear: Option<Rc<RefCell<Ear>>>,
    /// Whether its recogniser takes the place of another in the same ear.
    hands_over: bool,
    /// Whether it hears a room instead of the client.
    in_room: bool,
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

    /// The first sound has this place in the session's audio. To be called before there is a config.
    pub fn begin_at(&self, start: Duration) {
        self.0.state.borrow_mut().position = start;
    }

    /// There is no sound for so long, while the session's audio goes on. It must not be called while sound waits to be
    /// decoded; that of a room never does.
    pub fn skip(&self, gap: Duration) {
        let ear = {
            let state = &mut *self.0.state.borrow_mut();
            let last = state.ears.back().and_then(|slot| slot.ear.clone());
            if last.is_none() {
                state.position += gap;
            }
            last
        };
        if let Some(ear) = ear {
            ear.borrow_mut().skip(gap, &mut |news| self.tell(news));
        }
    }

    /// A config was sent: what comes behind it is in its format. `accepted` is what its recogniser takes. False when
    /// too many wait already.
    pub fn expect(
        &self,
        config: u64,
        listen: Option<(&ListenConfig, AudioFormat)>,
        vad: &VadConfig,
        in_room: bool,
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
            Some(last) if *last.borrow().listen() == *listen => Some(last),
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
        state.ears.push_back(Slot {
            config,
            ear,
            hands_over: false,
            in_room,
        });
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
        for (sound, packet, at) in sound {
            tap.hear(&sound, packet.as_deref(), at);
        }
        state.recorded = Recorded::By(tap.clone());
        tap
    }

    /// Nothing is recorded, or nothing any more.
    pub fn record_nothing(&self) {
        self.0.state.borrow_mut().recorded = Recorded::Nowhere;
    }

    /// A config that leaves the format as it is has its place behind the one in force.
    pub fn follow(&self, config: u64) {
        let mut state = self.0.state.borrow_mut();
        let front = state.ears.front();
        let slot = Slot {
            config,
            ear: front.and_then(|slot| slot.ear.clone()),
            hands_over: false,
            in_room: front.is_some_and(|slot| slot.in_room),
        };
        let place = state.ears.len().min(1);
        state.ears.insert(place, slot);
    }

    /// The recogniser of this config takes the place of the one in force in the same ear, at the next lull.
    pub fn hand_over(&self, config: u64, listen: &ListenConfig, accepted: AudioFormat) {
        let ear = {
            let mut state = self.0.state.borrow_mut();
            let slot = state.ears.iter_mut().find(|slot| slot.config == config);
            slot.and_then(|slot| {
                slot.hands_over = true;
                slot.ear.clone()
            })
        };
        if let Some(ear) = ear {
            let listen = listen.clone();
            ear.borrow_mut()
                .hand_over(listen, accepted, &mut |news| self.tell(news));
        }
    }

    /// The next lull has been waited for long enough.
    pub fn make_handover(&self, config: u64) {
        let ear = {
            let state = self.0.state.borrow();
            let slot = state.ears.iter().find(|slot| slot.config == config);
            slot.and_then(|slot| slot.ear.clone())
        };
        if let Some(ear) = ear {
            ear.borrow_mut().make_handover(&mut |news| self.tell(news));
        }
    }

    /// The recogniser of this feed has heard everything, as soon as what waits for it is decoded or the next one has
    /// taken its place.
    pub fn end(&self, feed: &Feed) {
        self.hand_over_to(feed);
        let (waiting, ear, is_heard) = {
            let state = self.0.state.borrow();
            let of_feed = |ear: &&Rc<RefCell<Ear>>| ear.borrow().feed().is(feed);
            let waiting = state.waiting.iter().map(|(ear, _)| ear).find(of_feed);
            let mut ears = state.ears.iter().filter_map(|slot| slot.ear.as_ref());
            let ear = waiting.or_else(|| ears.find(of_feed)).cloned();
            let last = state.ears.back().and_then(|slot| slot.ear.as_ref());
            let is_heard = match (&ear, last) {
                (Some(ear), Some(last)) => Rc::ptr_eq(ear, last),
                _ => false,
            };
            (waiting.is_some(), ear, is_heard)
        };
        let Some(ear) = ear else { return feed.end() };
        let ear = &mut *ear.borrow_mut();
        if ear.ends_with_handover(feed) {
            if !waiting && !is_heard {
                ear.make_handover(&mut |news| self.tell(news));
            }
        } else if waiting {
            ear.ends = true;
        } else {
            ear.finish(&mut |news| self.tell(news));
            feed.end();
        }
    }

    /// Whoever hears this feed next hears it from now on.
    fn hand_over_to(&self, feed: &Feed) {
        let next = {
            let state = self.0.state.borrow();
            let mut ears = state.ears.iter().filter_map(|slot| slot.ear.as_ref());
            let waits_for = |ear: &&Rc<RefCell<Ear>>| {
                let ear = ear.borrow();
                ear.newest().0.is(feed) && !ear.feed().is(feed)
            };
            ears.find(waits_for).cloned()
        };
        if let Some(ear) = next {
            ear.borrow_mut().make_handover(&mut |news| self.tell(news));
        }
    }

    /// The recogniser of this feed, and whoever is about to take its place, shall make final what was heard.
    pub fn finalize(&self) {
        let state = self.0.state.borrow();
        if let Some(Slot { ear: Some(ear), .. }) = state.ears.front() {
            let ear = ear.borrow();
            let (newest, _) = ear.newest();
            ear.feed().finalize();
            if !newest.is(ear.feed()) {
                newest.finalize();
            }
        }
    }

    /// What the voice was doing goes on elsewhere, or not: here nothing more is heard of it.
    fn break_off(&self, ear: &Rc<RefCell<Ear>>) {
        let paused = ear.borrow_mut().break_off();
        if let Some(paused) = paused {
            self.tell(paused);
        }
    }

    /// What a config's recogniser is to hear, and what that sound is; `None` where it hears nothing.
    pub fn feed(&self, config: u64) -> Option<(Feed, Layout)> {
        let state = self.0.state.borrow();
        let slot = state.ears.iter().find(|slot| slot.config == config)?;
        Some(slot.ear.as_ref()?.borrow().newest())
    }

    /// The config is in force: what was before it is not heard any more.
    pub fn commit(&self, config: u64, vad: &VadConfig) {
        let (gone, ear) = {
            let mut state = self.0.state.borrow_mut();
            let mut gone = Vec::new();
            while let Some(slot) = state.ears.pop_front_if(|slot| slot.config != config) {
                gone.extend(slot.ear);
            }
            let heard = |ear: &Rc<RefCell<Ear>>| {
                let mut others = state.ears.iter().filter_map(|slot| slot.ear.as_ref());
                state.is_behind(ear) || others.any(|other| Rc::ptr_eq(other, ear))
            };
            gone.retain(|ear| !heard(ear));
            (gone, state.ears.front().and_then(|slot| slot.ear.clone()))
        };
        let mut tell = |news| self.tell(news);
        for ear in gone {
            ear.borrow_mut().finish(&mut tell);
        }
        if let Some(ear) = ear {
            let mut ear = ear.borrow_mut();
            ear.commit();
            ear.set_vad(vad, &mut tell);
        }
    }

    /// The config could not be carried out: what came behind it is for the one in force, as what comes now is.
    pub fn discard(&self, config: u64) {
        let (gone, back, taken_back) = {
            let mut state = self.0.state.borrow_mut();
            state.told_deaf = false;
            let asked = state.ears.iter().position(|slot| slot.config == config);
            let before = asked.and_then(|index| index.checked_sub(1));
            let back = before.and_then(|before| state.ears[before].ear.clone());
            let slot = asked.and_then(|index| state.ears.remove(index));
            let hands_over = slot.as_ref().is_some_and(|slot| slot.hands_over);
            let gone = slot.and_then(|slot| slot.ear);
            let taken_back = gone.clone().filter(|_| hands_over);
            // A config behind it may have left the ear as it is.
            let heard = |ear: &Rc<RefCell<Ear>>| {
                let mut others = state.ears.iter().filter_map(|slot| slot.ear.as_ref());
                others.any(|other| Rc::ptr_eq(other, ear))
            };
            (gone.filter(|gone| !heard(gone)), back, taken_back)
        };
        if let Some(ear) = taken_back {
            ear.borrow_mut().take_back(&mut |news| self.tell(news));
        }
        if let (Some(gone), Some(back)) = (gone, back)
            && !Rc::ptr_eq(&gone, &back)
        {
            gone.borrow_mut().finish(&mut |news| self.tell(news));
            let sound = gone.borrow().give_away();
            back.borrow_mut()
                .take_over(sound, &mut |news| self.tell(news));
        }
    }

    /// Takes what the client has sent. Deafness is told once.
    pub fn hear_client(&self, bytes: Bytes) -> Result<(), Option<Deaf>> {
        {
            let state = &mut *self.0.state.borrow_mut();
            if state.ears.back().is_some_and(|slot| slot.in_room) {
                let told = std::mem::replace(&mut state.told_deaf, true);
                return Err((!told).then_some(Deaf::InRoom));
            }
        }
        self.hear(bytes)
    }

    /// Takes sound. Deafness is told once.
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

    /// Sound that others hear is recorded as the session's.
    pub fn overhear(&self, sound: &Pcm) {
        self.0.state.borrow_mut().recorded.hear(sound, None);
    }

    /// What others have understood is noted as the session's.
    pub fn note_final(&self, result: &SttResult) {
        if let Recorded::By(tap) = &self.0.state.borrow().recorded {
            tap.note_final(result);
        }
    }

    /// How much sound the session has heard.
    pub fn position(&self) -> Duration {
        let state = self.0.state.borrow();
        let last = state.ears.back().and_then(|slot| slot.ear.clone());
        state.position(last.as_ref())
    }

    /// Now, in what is heard.
    pub fn moment(&self) -> Moment {
        let state = self.0.state.borrow();
        let last = state.ears.back().and_then(|slot| slot.ear.as_ref());
        Moment {
            now: Instant::now().into_std(),
            heard: state.position(last),
            onset: last.is_some_and(|ear| ear.borrow().is_onset()),
        }
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
        let record = |sound: &Pcm, packet: Option<&[u8]>| {
            self.0.state.borrow_mut().recorded.hear(sound, packet);
        };
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
        if !is_heard {
            ear.borrow_mut().finish(&mut |news| self.tell(news));
        }
        if ear.borrow().ends {
            ear.borrow().feed().end();
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
        last.map_or(self.position, |ear| ear.borrow().feed().position())
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
