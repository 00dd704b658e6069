//! A session in a room: the actor that joins it, tells the session what happens there, and leaves. Sound goes past it: in
//! through [`Ears`], out through the [`Mouth`], both on the session's thread. What is sent and heard over which wire is the
//! [link](vivavoce_seams::rooms::link)'s matter.

mod ears;
mod mouth;
mod phones;
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
pub use stay::{EnterError, Entered, Turn, enter};

use crate::session::messages::RoomConfig;
use phones::Phones;
use vivavoce_seams::rooms::link::{
    Ending, LinkEvent, Listen, Message as RoomMessage, Outgoing, SendError, TelephoneKey,
};
use vivavoce_seams::rooms::telephone::CallStatus;

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
    /// Somebody's telephone call has come further.
    Call {
        /// Which.
        sip_call_id: String,
        /// Whose.
        identity: String,
        /// Where it is.
        status: CallStatus,
    },
    /// Somebody has pressed a key of their telephone.
    Key {
        /// Who.
        identity: String,
        /// Which.
        digit: String,
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

/// Asks who is on the telephone: this one, or the first where nobody is named.
#[derive(Debug, Message)]
#[rtype(result = "Option<String>")]
pub struct OnThePhone {
    /// Who is meant.
    pub identity: Option<String>,
}

/// Presses keys on a telephone call: this one's, or the first one's where nobody is named. `None` means that there is no
/// such call.
#[derive(Debug, Message)]
#[rtype(result = "Option<Result<(), SendError>>")]
pub struct PressKeys {
    /// Which, one after the other.
    pub keys: Vec<TelephoneKey>,
    /// Who is meant.
    pub identity: Option<String>,
}

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
    /// Who of them is on the telephone.
    phones: Phones,
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
            phones: Phones::default(),
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

    fn joined(&mut self, info: &ParticipantInfo, context: &mut Context<Self>) {
        if let Some(desertion) = self.desertion.take() {
            context.cancel_future(desertion);
        }
        let known = self
            .others
            .insert(info.identity.clone(), info.name.clone())
            .is_some();
        if !known {
            self.tell(RoomNews::Joined {
                identity: info.identity.clone(),
                name: info.name.clone(),
            });
        }
        self.tell_of_call(Phones::there, info);
    }

    /// Takes what is said of somebody who may be on the telephone.
    fn tell_of_call(
        &mut self,
        take: impl FnOnce(&mut Phones, &ParticipantInfo) -> Option<(String, CallStatus)>,
        info: &ParticipantInfo,
    ) {
        if let Some((sip_call_id, status)) = take(&mut self.phones, info) {
            self.tell(RoomNews::Call {
                sip_call_id,
                identity: info.identity.clone(),
                status,
            });
        }
    }

    fn left(&mut self, info: ParticipantInfo, context: &mut Context<Self>) {
        if self.others.remove(&info.identity).is_none() {
            return;
        }
        self.ears.forget(&info.identity);
        self.tell_of_call(Phones::gone, &info);
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
            LinkEvent::Connected { .. } | LinkEvent::TrackMuted { .. } | LinkEvent::Muted(_) => {}
            LinkEvent::ParticipantUpdated(info) => self.tell_of_call(Phones::there, &info),
            LinkEvent::Dtmf { identity, digit } => {
                if self.listens_to(&identity) && self.phones.knows(&identity) {
                    self.tell(RoomNews::Key { identity, digit });
                }
            }
            LinkEvent::Reconnecting => self.tell(RoomNews::Reconnecting),
            LinkEvent::Reconnected { resumed } => self.tell(RoomNews::Recovered { resumed }),
            LinkEvent::ParticipantJoined(info) => self.joined(&info, context),
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

impl Handler<OnThePhone> for RoomActor {
    type Result = Option<String>;

    fn handle(
        &mut self,
        OnThePhone { identity }: OnThePhone,
        _: &mut Context<Self>,
    ) -> Self::Result {
        self.phones.find(identity.as_deref()).map(str::to_owned)
    }
}

impl Handler<PressKeys> for RoomActor {
    type Result = Option<Result<(), SendError>>;

    fn handle(
        &mut self,
        PressKeys { keys, identity }: PressKeys,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let identity = self.phones.find(identity.as_deref())?;
        let Some(control) = self.entered.control() else {
            return Some(Err(SendError::Ended));
        };
        let mut keys = keys.into_iter();
        Some(keys.try_for_each(|key| control.press(key, vec![identity.to_owned()])))
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
