//! A session in a room: the actor that joins it, tells the session what happens there, and leaves. Sound goes past it: in
//! through [`Ears`], out through the [`Mouth`], both on the session's thread. What is sent and heard over which wire is the
//! [link](crate::providers::rooms::link)'s matter.

mod ears;
mod mouth;
mod stay;

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::stream;
use livekit_protocol::{ParticipantInfo, TrackType};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

pub use ears::{Ears, Listener};
pub use mouth::{LEAD, Mouth};
pub use stay::{EnterError, Entered, enter};

use crate::actors::session::messages::RoomConfig;
use crate::providers::rooms::link::{
    Ending, LinkEvent, Listen, Message as RoomMessage, Outgoing, SendError,
};

/// What the session hears of its room.
#[derive(Debug)]
pub enum RoomNews {
    /// Somebody is there.
    Joined {
        /// Who.
        identity: String,
        /// What people read.
        name: String,
    },
    /// Somebody has left.
    Left {
        /// Who.
        identity: String,
        /// What people read.
        name: String,
    },
    /// Somebody is heard from now on.
    Heard {
        /// Who.
        identity: String,
        /// What they call the track.
        name: String,
        /// Which.
        sid: String,
    },
    /// A message.
    Message(RoomMessage),
    /// The way to the room is lost and sought.
    Reconnecting,
    /// It is found.
    Recovered {
        /// Whether nothing was lost.
        resumed: bool,
    },
    /// Everybody else has been gone for as long as the config says.
    Deserted,
    /// The session is not in the room any more.
    Ended(Ending),
}

/// See [`RoomNews`].
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RoomReport(pub RoomNews);

/// Sends a message into the room.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), SendError>")]
pub struct SendToRoom(pub Outgoing);

/// What may change of a room's config while the session is in it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ChangeRoom(pub RoomConfig);

/// Says whether the session records the room, for everybody in it to see.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct ShowRecording(pub bool);

/// Leaves.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LeaveRoom;

/// The actor.
pub struct RoomActor {
    entered: Entered,
    config: RoomConfig,
    ears: Ears,
    mouth: Mouth,
    /// Who is there beside the session, by identity, with their names.
    others: HashMap<String, String>,
    /// What tracks are called, by sid.
    tracks: HashMap<String, String>,
    desertion: Option<SpawnHandle>,
    report: Recipient<RoomReport>,
}

impl RoomActor {
    /// An actor for a room that was entered. `listener` hears what is said there.
    pub fn new(
        entered: Entered,
        config: RoomConfig,
        listener: Rc<dyn Listener>,
        mouth: Mouth,
        report: Recipient<RoomReport>,
    ) -> Self {
        Self {
            entered,
            config,
            ears: Ears::new(listener),
            mouth,
            others: HashMap::new(),
            tracks: HashMap::new(),
            desertion: None,
            report,
        }
    }

    fn tell(&self, news: RoomNews) {
        // The session's mailbox has room for far more than a room brings between two of its turns; a session that is gone
        // hears nothing.
        if self.report.try_send(RoomReport(news)).is_err() {
            tracing::warn!("news of the room were lost: the session is behind or gone");
        }
    }

    fn listens_to(&self, identity: &str) -> bool {
        listen(&self.config).hears(identity)
    }

    fn joined(&mut self, info: ParticipantInfo, context: &mut Context<Self>) {
        if let Some(desertion) = self.desertion.take() {
            context.cancel_future(desertion);
        }
        let known = self
            .others
            .insert(info.identity.clone(), info.name.clone())
            .is_some();
        if !known {
            self.tell(RoomNews::Joined {
                identity: info.identity,
                name: info.name,
            });
        }
    }

    fn left(&mut self, info: ParticipantInfo, context: &mut Context<Self>) {
        if self.others.remove(&info.identity).is_none() {
            return;
        }
        self.ears.forget(&info.identity);
        self.tell(RoomNews::Left {
            identity: info.identity,
            name: info.name,
        });
        self.watch_desertion(context);
    }

    fn watch_desertion(&mut self, context: &mut Context<Self>) {
        if let Some(desertion) = self.desertion.take() {
            context.cancel_future(desertion);
        }
        if let Some(patience) = self.config.empty_timeout.filter(|_| self.others.is_empty()) {
            let alone = |room: &mut Self, _: &mut Context<Self>| room.tell(RoomNews::Deserted);
            self.desertion = Some(context.run_later(patience, alone));
        }
    }
}

/// Whom a config wants to hear.
pub fn listen(config: &RoomConfig) -> Listen {
    match config.listen_participants.as_slice() {
        [] => Listen::All,
        some => Listen::Only(some.to_vec()),
    }
}

impl Actor for RoomActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        if let Some(events) = self.entered.take_events() {
            let events = stream::unfold(events, async |mut events| {
                let event = events.next().await?;
                Some((event, events))
            });
            context.add_stream(events);
        }
        let ears = self.ears.clone();
        let ears = tokio::task::spawn_local(ears.run().in_current_span());
        let ears = AbortOnDropHandle::new(ears);
        context.spawn(ears.into_actor(self).map(|ended, room, context| {
            if ended.is_err_and(|error| error.is_panic()) {
                let problem = "the way in of the room's sound has failed".to_owned();
                room.tell(RoomNews::Ended(Ending::Refused(problem)));
                context.stop();
            }
        }));
    }
}

impl StreamHandler<LinkEvent> for RoomActor {
    fn handle(&mut self, event: LinkEvent, context: &mut Context<Self>) {
        match event {
            // It was waited for before the actor began, and comes again with a full reconnect.
            LinkEvent::Connected { .. }
            | LinkEvent::ParticipantUpdated(_)
            | LinkEvent::TrackMuted { .. }
            | LinkEvent::Muted(_)
            | LinkEvent::Dtmf { .. } => {}
            LinkEvent::Reconnecting => self.tell(RoomNews::Reconnecting),
            LinkEvent::Reconnected { resumed } => self.tell(RoomNews::Recovered { resumed }),
            LinkEvent::ParticipantJoined(info) => self.joined(*info, context),
            LinkEvent::ParticipantLeft(info) => self.left(*info, context),
            LinkEvent::TrackPublished { track, .. } => {
                if track.r#type() == TrackType::Audio {
                    self.tracks.insert(track.sid, track.name);
                }
            }
            LinkEvent::TrackUnpublished { sid, .. } => {
                self.tracks.remove(&sid);
                self.ears.close(&sid);
            }
            LinkEvent::TrackSubscribed {
                identity,
                sid,
                audio,
            } => {
                self.ears.open(identity.clone(), sid.clone(), audio);
                self.tell(RoomNews::Heard {
                    name: self.tracks.get(&sid).cloned().unwrap_or_default(),
                    identity,
                    sid,
                });
            }
            LinkEvent::Listened => self.mouth.open(),
            LinkEvent::Message(message) => {
                let sender = message.identity.as_deref();
                if sender.is_none_or(|sender| self.listens_to(sender)) {
                    self.tell(RoomNews::Message(message));
                }
            }
            LinkEvent::Ended(ending) => {
                self.tell(RoomNews::Ended(ending));
                context.stop();
            }
        }
    }

    /// The actor goes on until it is told to leave: what ended the link was told.
    fn finished(&mut self, _: &mut Context<Self>) {}
}

impl Handler<SendToRoom> for RoomActor {
    type Result = Result<(), SendError>;

    fn handle(&mut self, SendToRoom(message): SendToRoom, _: &mut Context<Self>) -> Self::Result {
        let control = self.entered.control();
        control.map_or(Err(SendError::Ended), |control| control.send(message))
    }
}

impl Handler<ChangeRoom> for RoomActor {
    type Result = ();

    fn handle(&mut self, ChangeRoom(config): ChangeRoom, context: &mut Context<Self>) {
        if config.listen_participants != self.config.listen_participants
            && let Some(control) = self.entered.control()
        {
            control.listen(listen(&config));
        }
        self.entered.deletes(config.delete_room);
        let patience = config.empty_timeout;
        let is_other = patience != self.config.empty_timeout;
        self.config = config;
        if is_other && self.desertion.is_some() {
            self.watch_desertion(context);
        }
    }
}

impl Handler<ShowRecording> for RoomActor {
    type Result = ();

    fn handle(&mut self, ShowRecording(recorded): ShowRecording, _: &mut Context<Self>) {
        self.entered.shows_recording(recorded);
    }
}

impl Handler<LeaveRoom> for RoomActor {
    type Result = ();

    fn handle(&mut self, _: LeaveRoom, context: &mut Context<Self>) {
        context.stop();
    }
}

/// How long a session waits for its place in a room.
pub const ENTRY_PATIENCE: Duration = Duration::from_secs(10);
