//! Mixes of embedded rooms, for players that can hear one track only (WHEP): a participant that nobody sees hears a room and
//! publishes the mix of it, which only those players hear. A room has one mix, however many hear it, and as long as somebody
//! does.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::room::{RoomAudioSink, RoomReceiver, TrackPublisher};
use crate::threads::Threads;
use vivavoce_audio::{Bandwidth, Pcm};
use vivavoce_auth::Principal;
use vivavoce_seams::RoomProvider;
use vivavoce_seams::rooms::link::{Join, JoinKind, LinkEvent, Listen, RoomLink};

/// How long joining may take.
const ENTRY_PATIENCE: Duration = Duration::from_secs(10);

/// The mixes of all rooms. Clones share them.
#[derive(Clone)]
pub struct RoomMixes(Arc<Inner>);

struct Inner {
    rooms: Arc<dyn RoomProvider>,
    /// Of the encoder.
    complexity: u8,
    threads: Threads,
    mixes: Mutex<Mixes>,
}

#[derive(Default)]
struct Mixes {
    by_room: HashMap<String, Mix>,
    next: u64,
}

struct Mix {
    number: u64,
    listeners: usize,
    stop: CancellationToken,
}

/// Somebody who hears the mix of a room. Dropping it ends that.
pub struct Listener {
    all: RoomMixes,
    room: String,
    number: u64,
}

impl RoomMixes {
    /// Mixes of these rooms, on so many threads.
    pub fn new(rooms: Arc<dyn RoomProvider>, complexity: u8, threads: usize) -> Self {
        Self(Arc::new(Inner {
            rooms,
            complexity,
            threads: Threads::new(threads),
            mixes: Mutex::default(),
        }))
    }

    fn mixes(&self) -> MutexGuard<'_, Mixes> {
        self.0.mixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mixes a room that somebody has joined who hears its mix.
    pub fn listen(&self, room: &str) -> Listener {
        let mut mixes = self.mixes();
        let listener = |number| Listener {
            all: self.clone(),
            room: room.to_owned(),
            number,
        };
        if let Some(mix) = mixes.by_room.get_mut(room) {
            mix.listeners += 1;
            return listener(mix.number);
        }
        mixes.next += 1;
        let (number, stop) = (mixes.next, CancellationToken::new());
        let mix = Mix {
            number,
            listeners: 1,
            stop: stop.clone(),
        };
        mixes.by_room.insert(room.to_owned(), mix);
        drop(mixes);
        let (all, name) = (self.clone(), room.to_owned());
        self.0.threads.next().spawn_fn(move || {
            actix::spawn(async move {
                if let Err(error) = all.mix(&name, number, stop).await {
                    tracing::warn!(error, "a room could not be mixed");
                }
                let mut mixes = all.mixes();
                if mixes
                    .by_room
                    .get(&name)
                    .is_some_and(|mix| mix.number == number)
                {
                    mixes.by_room.remove(&name);
                }
            });
        });
        listener(number)
    }

    /// Mixes a room until nobody listens any more, or the room has ended.
    async fn mix(&self, room: &str, number: u64, stop: CancellationToken) -> Result<(), String> {
        let join = Join {
            room: room.to_owned(),
            identity: format!("mix-{number}-{}", uuid::Uuid::new_v4().simple()),
            name: String::new(),
            kind: JoinKind::Mixer,
            // Whoever hears it was admitted to the room.
            principal: Principal::Operator,
            owner: None,
            metadata: String::new(),
            attributes: Vec::new(),
            room_config: None,
            listen: Listen::All,
            audio: true,
        };
        let joining = timeout(ENTRY_PATIENCE, self.0.rooms.connect(join)).await;
        let link = joining.map_err(|_| "it could not be joined in time".to_owned())?;
        let RoomLink {
            mut events,
            publish,
            control: _left_when_dropped,
        } = link.map_err(|error| error.to_string())?;
        let publisher = TrackPublisher::new(publish, Bandwidth::Fullband, self.0.complexity);
        let receiver = RoomReceiver::new(Rc::new(Sink(publisher)));
        let _receiving = AbortOnDropHandle::new(tokio::task::spawn_local(receiver.clone().run()));
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                event = events.next() => event,
            };
            match event {
                None | Some(LinkEvent::Ended(_)) => return Ok(()),
                Some(LinkEvent::TrackSubscribed {
                    identity,
                    sid,
                    audio,
                }) => receiver.open(identity, sid, audio),
                Some(LinkEvent::TrackUnpublished { sid, .. }) => receiver.close(&sid),
                Some(LinkEvent::ParticipantLeft(left)) => receiver.forget(&left.identity),
                Some(_) => {}
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut mixes = self.all.mixes();
        let Some(mix) = mixes.by_room.get_mut(&self.room) else {
            return;
        };
        // The room may have ended, and another of its name have a mix now.
        if mix.number != self.number {
            return;
        }
        mix.listeners -= 1;
        if mix.listeners == 0 {
            mix.stop.cancel();
            mixes.by_room.remove(&self.room);
        }
    }
}

/// Publishes the mix.
struct Sink(TrackPublisher);

impl RoomAudioSink for Sink {
    fn push_mix(&self, sound: Pcm) {
        if let Err(error) = self.0.send(sound.samples()) {
            tracing::debug!(%error, "a mix cannot be encoded");
        }
    }

    fn wants_participant(&self, _: &str) -> bool {
        false
    }

    fn push_participant(&self, _: &str, _: Pcm) {}

    fn participant_left(&self, _: &str) {}
}
