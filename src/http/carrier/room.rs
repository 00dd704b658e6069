//! A carrier's call as a participant of a room: the caller is heard there as anybody is, hears the mix of all others, and keys go
//! both ways. What happens on the telephone stands in the participant's attributes, as it does for calls by SIP.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use vivavoce_actors::registry::rooms::{EnterRoom, RoomRegistry};
use vivavoce_actors::room::TrackPublisher;
use vivavoce_agents::Line;
use vivavoce_audio::g711::Law;
use vivavoce_audio::resample::EvenResampler;
use vivavoce_audio::track_receiver::TrackReceiver;
use vivavoce_audio::{Bandwidth, Layout, Resampler, SampleRate, linear16, opus};
use vivavoce_auth::Access;
use vivavoce_carriers::{Encoding, Format};
use vivavoce_seams::RoomProvider;
use vivavoce_seams::rooms::link::{
    Join, JoinKind, LinkControl, LinkEvent, Listen, RoomLink, TelephoneKey, TrackAudio,
};
use vivavoce_seams::rooms::telephone::attribute;

/// How long joining a room may take.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// How long leaving it may take.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// Frames of the caller's sound that wait for their turn: what is older is dropped.
const MAX_WAITING: usize = 50;
/// With more than this, two leave at a time: carriers send up to 200 ms at once.
const CATCH_UP: usize = 15;
/// After so many ticks without a whole frame the caller pauses.
const PAUSE: u32 = 15;
/// After so many frames of silence nothing is sent to the carrier, which plays silence by itself.
const SILENT_FRAMES: u32 = 10;
/// What is passed on of what the answer document gave to a call.
const MAX_PARAMETERS: usize = 32;
const MAX_PARAMETER_BYTES: usize = 1_024;

/// The rooms that calls join.
#[derive(Clone)]
pub struct CallRooms {
    pub registry: Addr<RoomRegistry>,
    /// Complexity of the Opus encoder, 0 (cheap) to 10.
    pub complexity: u8,
}

/// The caller's side of a call in a room.
pub struct CallInRoom {
    encoding: Encoding,
    /// From a rate that no bandwidth has.
    resampler: RefCell<Option<Resampler>>,
    /// Samples of a frame.
    frame: usize,
    /// Samples that wait for their turn.
    waiting: RefCell<VecDeque<i16>>,
    control: LinkControl,
}

impl CallInRoom {
    fn new(encoding: Encoding, rate: SampleRate, control: LinkControl) -> Self {
        let bandwidth = Bandwidth::of(rate);
        let to = bandwidth.rate();
        Self {
            encoding,
            frame: bandwidth.frame(),
            resampler: RefCell::new((rate != to).then(|| Resampler::new(Layout::mono(rate), to))),
            waiting: RefCell::default(),
            control,
        }
    }

    /// Sound of the caller.
    pub fn sound(&self, sound: &Bytes) {
        let samples = match self.encoding {
            Encoding::Linear16 => linear16::samples(sound),
            Encoding::Mulaw => expanded(Law::Mu, sound),
            Encoding::Alaw => expanded(Law::A, sound),
        };
        let mut waiting = self.waiting.borrow_mut();
        match &mut *self.resampler.borrow_mut() {
            None => waiting.extend(samples),
            Some(resampler) => {
                let mut resampled = Vec::with_capacity(samples.len() * 2);
                resampler.push(&samples, &mut resampled);
                waiting.extend(resampled);
            }
        }
        let late = waiting.len().saturating_sub(MAX_WAITING * self.frame);
        waiting.drain(..late);
    }

    /// The caller has pressed a key.
    pub fn pressed(&self, key: char) {
        if let Some(key) = TelephoneKey::new(key)
            && let Err(error) = self.control.press(key, Vec::new())
        {
            tracing::warn!(%error, "a key of a carrier's call is not passed on");
        }
    }

    /// Publishes what is due of the caller's sound. Its time is that of its samples, as in packets of a telephone: a thread or a
    /// network that is late makes no gaps in it, and whoever listens evens it out. Only a pause takes time of its own.
    fn publish(&self, publisher: &TrackPublisher, idle: &mut u32) {
        let mut waiting = self.waiting.borrow_mut();
        let frames = if waiting.len() > CATCH_UP * self.frame {
            2
        } else {
            1
        };
        for _ in 0..frames {
            if waiting.len() < self.frame {
                *idle += 1;
                break;
            }
            *idle = 0;
            send(publisher, &waiting.drain(..self.frame).collect::<Vec<_>>());
        }
        match (*idle).cmp(&PAUSE) {
            Ordering::Less => {}
            Ordering::Equal => {
                if !waiting.is_empty() {
                    send(publisher, &waiting.drain(..).collect::<Vec<_>>());
                }
                (0..PAUSE).for_each(|_| publisher.send_nothing());
            }
            Ordering::Greater => publisher.send_nothing(),
        }
    }
}

fn send(publisher: &TrackPublisher, samples: &[i16]) {
    if let Err(error) = publisher.send_next(samples) {
        tracing::debug!(%error, "a frame of a carrier's call cannot be encoded");
    }
}

fn expanded(law: Law, codes: &[u8]) -> Vec<i16> {
    let mut samples = Vec::with_capacity(codes.len());
    law.expand(codes, &mut samples);
    samples
}

/// What the caller hears.
struct Ear {
    tracks: TrackReceiver<TrackAudio>,
    mixed: Vec<i16>,
    /// To the carrier's rate, where no bandwidth has that.
    resampler: EvenResampler,
    /// Samples of a frame for the caller.
    frame: usize,
    silent: u32,
}

impl Ear {
    fn new(rate: SampleRate) -> Self {
        let bandwidth = Bandwidth::of(rate);
        Self {
            tracks: TrackReceiver::new(bandwidth),
            mixed: vec![0; bandwidth.frame()],
            resampler: EvenResampler::new(bandwidth.rate(), rate),
            frame: rate.frames_in(opus::FRAME),
            silent: SILENT_FRAMES,
        }
    }

    fn hear(&mut self, identity: String, sid: String, audio: TrackAudio) {
        if !self.tracks.add(identity, sid, audio) {
            tracing::warn!("too many tracks in the room: a call does not hear one");
        }
    }

    /// The next 20 ms of the room; `None` in silence.
    fn next(&mut self, now: Instant) -> Option<Bytes> {
        self.mixed.fill(0);
        if !self.tracks.is_empty() {
            self.tracks
                .next(now.into_std(), |_| false, |_, _| {}, &mut self.mixed);
        }
        if self.mixed.iter().any(|sample| *sample != 0) {
            self.silent = 0;
        } else if self.silent >= SILENT_FRAMES {
            return None;
        } else {
            self.silent += 1;
        }
        self.resampler.push(&self.mixed);
        let frame: Vec<i16> = self.resampler.take(self.frame).collect();
        Some(linear16::encode(&frame))
    }
}

/// Joins a room with a call, and stays until one of them has ended. `connect` is told where the caller is heard meanwhile. An
/// error is for the log.
pub async fn serve(
    line: &dyn Line,
    format: Format,
    (rooms, room): (&CallRooms, &str),
    access: &Access,
    connect: impl Fn(Option<Rc<CallInRoom>>),
) -> Result<(), String> {
    let joining = timeout(JOIN_PATIENCE, join(line, rooms, room, access));
    let joined = tokio::select! {
        joined = joining => joined.map_err(|_| "joining the room timed out".to_owned())?,
        () = line.over().cancelled() => return Ok(()),
    };
    let RoomLink {
        mut events,
        publish,
        control,
    } = joined?;
    let rate = SampleRate::new(format.rate).map_err(|error| error.to_string())?;
    let publisher = TrackPublisher::new(publish, Bandwidth::of(rate), rooms.complexity);
    let call = Rc::new(CallInRoom::new(format.encoding, rate, control));
    connect(Some(Rc::clone(&call)));
    let mut ear = Ear::new(rate);
    let mut ticks = interval(opus::FRAME);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut idle = 0;
    loop {
        tokio::select! {
            // The nominal time of the tick: its own lateness is no delay of the network.
            now = ticks.tick() => {
                call.publish(&publisher, &mut idle);
                if let Some(sound) = ear.next(now) {
                    line.play(sound);
                }
            }
            event = events.next() => match event {
                None | Some(LinkEvent::Ended(_)) => break,
                Some(event) => follow(event, line, &mut ear),
            },
            () = line.over().cancelled() => break,
        }
    }
    connect(None);
    drop(events);
    leave(call, line).await;
    Ok(())
}

fn follow(event: LinkEvent, line: &dyn Line, ear: &mut Ear) {
    match event {
        LinkEvent::TrackSubscribed {
            identity,
            sid,
            audio,
        } => ear.hear(identity, sid, audio),
        LinkEvent::TrackUnpublished { sid, .. } => ear.tracks.remove(&sid),
        LinkEvent::ParticipantLeft(who) => ear.tracks.remove_participant(&who.identity),
        LinkEvent::Dtmf { digit, .. } if !line.press(&digit) => {
            let carrier = &line.call().carrier.kind;
            tracing::debug!(carrier, "this carrier's socket cannot press keys");
        }
        _ => {}
    }
}

/// Tells how the call has ended, and leaves.
async fn leave(call: Rc<CallInRoom>, line: &dyn Line) {
    if line.over().is_cancelled() {
        call.control.attributes([
            (attribute::CALL_STATUS.to_owned(), "hangup".to_owned()),
            (attribute::CAUSE.to_owned(), line.cause().to_owned()),
        ]);
    }
    // Nobody else has it: the socket has been told to forget it.
    if let Some(call) = Rc::into_inner(call) {
        let _left = timeout(LEAVE_PATIENCE, call.control.leave()).await;
    }
}

async fn join(
    line: &dyn Line,
    rooms: &CallRooms,
    room: &str,
    access: &Access,
) -> Result<RoomLink, String> {
    let told = line.call();
    let wish = EnterRoom {
        access: access.clone(),
        room: room.to_owned(),
        identity: told.participant_identity.clone(),
    };
    let opened = rooms.registry.send(wish).await;
    let opened = opened.map_err(|error| error.to_string())?;
    let provider = opened.map_err(|error| error.to_string())?.provider;
    let join = Join {
        room: room.to_owned(),
        identity: identity(line, &*provider, room).await?,
        name: format!("Phone {}", told.from.as_deref().unwrap_or_default())
            .trim()
            .to_owned(),
        kind: JoinKind::Caller,
        principal: access.principal(),
        owner: None,
        metadata: String::new(),
        attributes: attributes(line),
        room_config: None,
        listen: Listen::All,
        audio: true,
    };
    let link = provider.connect(join).await;
    let mut link = link.map_err(|error| error.to_string())?;
    match link.events.next().await {
        Some(LinkEvent::Connected { .. }) => Ok(link),
        Some(LinkEvent::Ended(ending)) => Err(ending.to_string()),
        _ => Err("the room was left".to_owned()),
    }
}

/// The caller has chosen the number: nobody who is there is put out for it.
async fn identity(
    line: &dyn Line,
    provider: &dyn RoomProvider,
    room: &str,
) -> Result<String, String> {
    let told = line.call();
    let everybody = provider.participants(room).await;
    let everybody = everybody.map_err(|error| error.to_string())?;
    let identity = &told.participant_identity;
    Ok(if everybody.iter().any(|one| one.identity == *identity) {
        format!("{identity}_{}", told.carrier.call_id)
    } else {
        identity.clone()
    })
}

fn attributes(line: &dyn Line) -> Vec<(String, String)> {
    let told = line.call();
    let own = [
        (attribute::CARRIER, Some(&told.carrier.kind)),
        (attribute::CALL_ID, Some(&told.carrier.call_id)),
        (attribute::PHONE_NUMBER, told.from.as_ref()),
        (attribute::TRUNK_PHONE_NUMBER, told.to.as_ref()),
    ];
    let own = own
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.clone())));
    // The carrier opens its socket when it has answered the call.
    let status = (attribute::CALL_STATUS.to_owned(), "active".to_owned());
    let given = told.carrier.parameters.iter();
    let given = given
        .filter(|(name, value)| name.len() + value.len() <= MAX_PARAMETER_BYTES)
        .take(MAX_PARAMETERS)
        .map(|(name, value)| {
            (
                format!("{}{name}", attribute::CARRIER_PARAMETER),
                value.clone(),
            )
        });
    own.chain([status]).chain(given).collect()
}
