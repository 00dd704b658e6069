//! A session's membership in a room: the actor that reports the room's events to the session, carries out its requests,
//! and leaves. Audio bypasses it: in through the [`RoomReceiver`], out through the [`TrackPublisher`], both on the
//! session's thread. The wire is the business of the [link](vivavoce_seams::rooms::link).

mod answer_words;
mod membership_lifecycle;
mod phones;
mod room_receiver;
mod track_publisher;

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::stream;
use livekit_protocol::{ParticipantInfo, TrackType};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

pub use answer_words::AnswerWords;
pub use membership_lifecycle::{EnterError, Entered, MembershipLock, enter};
pub use room_receiver::{RoomAudioSink, RoomReceiver};
pub use track_publisher::{LAYOUT, LEAD, TrackPublisher};

use crate::session::protocol::{QueueState, RoomConfig, TransferState};
use phones::{Phones, TransferSteps};
use vivavoce_seams::rooms::link::{
    Ending, LinkEvent, Listen, Message as RoomMessage, Outgoing, SendError, TelephoneKey,
};
use vivavoce_seams::rooms::telephone::{AnswerFinding, CallStatus};

/// What a room reports to its session.
#[derive(Debug)]
pub enum RoomNews {
    /// A participant is in the room.
    Joined {
        identity: String,
        /// The display name.
        name: String,
    },
    /// A participant has left.
    Left {
        identity: String,
        /// The display name.
        name: String,
    },
    /// A track has been subscribed to.
    Heard {
        /// Whose track.
        identity: String,
        /// The name of the track.
        name: String,
        sid: String,
    },
    /// The status of a participant's telephone call has changed.
    Call {
        sip_call_id: String,
        identity: String,
        status: CallStatus,
    },
    /// It was found out who has answered a participant's call.
    Answered {
        sip_call_id: String,
        identity: String,
        finding: AnswerFinding,
    },
    /// A warm transfer has come further.
    Transfer(TransferState),
    /// A telephone waits in a queue, or does no longer.
    Queue(QueueState),
    /// A participant has pressed a DTMF key.
    Key { identity: String, digit: String },
    /// A data message.
    Message(RoomMessage),
    /// The link is lost and is being re-established.
    Reconnecting,
    /// The link is re-established.
    Recovered {
        /// Whether nothing was lost.
        resumed: bool,
    },
    /// The session has been alone in the room for as long as `empty_timeout` allows.
    Deserted,
    /// The session is no longer in the room.
    Ended(Ending),
}

/// Carries [`RoomNews`] to the session.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RoomReport(pub RoomNews);

/// Sends a message into the room.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), SendError>")]
pub struct SendToRoom(pub Outgoing);

/// Finds the telephone participant with this identity, or the first one.
#[derive(Debug, Message)]
#[rtype(result = "Option<String>")]
pub struct OnThePhone {
    /// `None` means the first telephone participant.
    pub identity: Option<String>,
}

/// Sends DTMF keys on the call of this participant, or of the first telephone participant. The result `None` means that
/// there is no such call.
#[derive(Debug, Message)]
#[rtype(result = "Option<Result<(), SendError>>")]
pub struct PressKeys {
    pub keys: Vec<TelephoneKey>,
    /// `None` means the first telephone participant.
    pub identity: Option<String>,
}

/// Applies the parts of a room's config that may change while the session is in it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ChangeRoom(pub RoomConfig);

/// Shows or hides the room's recording indicator, which all participants see.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct ShowRecording(pub bool);

/// Leaves the room.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LeaveRoom;

/// The membership of one session in its room.
pub struct RoomActor {
    entered: Entered,
    config: RoomConfig,
    receiver: RoomReceiver,
    publisher: TrackPublisher,
    /// Display names of the other participants, by identity.
    others: HashMap<String, String>,
    /// Names of the published tracks, by sid.
    tracks: HashMap<String, String>,
    /// The participants that are telephone calls.
    phones: Phones,
    transfers: TransferSteps,
    words: Rc<AnswerWords>,
    desertion: Option<SpawnHandle>,
    report: Recipient<RoomReport>,
}

impl RoomActor {
    /// An actor for a room that has been joined. `sink` is given the room's audio.
    pub fn new(
        entered: Entered,
        config: RoomConfig,
        sink: Rc<dyn RoomAudioSink>,
        publisher: TrackPublisher,
        words: Rc<AnswerWords>,
        report: Recipient<RoomReport>,
    ) -> Self {
        Self {
            entered,
            config,
            receiver: RoomReceiver::new(sink),
            publisher,
            others: HashMap::new(),
            tracks: HashMap::new(),
            phones: Phones::default(),
            transfers: TransferSteps::default(),
            words,
            desertion: None,
            report,
        }
    }

    fn tell(&self, news: RoomNews) {
        // The session's mailbox holds far more than a room reports between two polls of the session.
        if self.report.try_send(RoomReport(news)).is_err() {
            tracing::warn!(
                "an event of the room was lost: the mailbox of the session is full or closed"
            );
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
        self.tell_findings(info);
        self.tell_queue(info);
        let found = self.transfers.found(info);
        found
            .into_iter()
            .for_each(|state| self.tell(RoomNews::Transfer(state)));
    }

    /// Reports where a telephone is in a queue, if that is news.
    fn tell_queue(&mut self, info: &ParticipantInfo) {
        if let Some(state) = self.phones.queued(info) {
            self.tell(RoomNews::Queue(state));
        }
    }

    /// Reports a change of a participant's telephone call, if `take` finds one.
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

    /// Reports what was found out of who has answered a participant's call.
    fn tell_findings(&mut self, info: &ParticipantInfo) {
        self.words.there(info, self.others.len());
        for (sip_call_id, finding) in self.phones.findings(info) {
            self.tell(RoomNews::Answered {
                sip_call_id,
                identity: info.identity.clone(),
                finding,
            });
        }
    }

    fn left(&mut self, info: ParticipantInfo, context: &mut Context<Self>) {
        if self.others.remove(&info.identity).is_none() {
            return;
        }
        self.receiver.forget(&info.identity);
        self.words.gone(&info.identity, self.others.len());
        self.tell_of_call(Phones::gone, &info);
        self.tell(RoomNews::Left {
            identity: info.identity,
            name: info.name,
        });
        self.watch_desertion(context);
    }

    fn reconnected(&mut self, resumed: bool, context: &mut Context<Self>) {
        let returned = if resumed {
            None
        } else {
            self.entered.returned()
        };
        let Some(returned) = returned else {
            return self.tell(RoomNews::Recovered { resumed });
        };
        let returned = returned.in_current_span().into_actor(self);
        context.spawn(returned.map(move |may_stay, room, context| match may_stay {
            Ok(()) => room.tell(RoomNews::Recovered { resumed }),
            Err(ending) => {
                room.tell(RoomNews::Ended(ending));
                context.stop();
            }
        }));
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

/// The participants that a config subscribes to.
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
        let receiver = self.receiver.clone();
        let receiver = tokio::task::spawn_local(receiver.run().in_current_span());
        let receiver = AbortOnDropHandle::new(receiver);
        context.spawn(receiver.into_actor(self).map(|ended, room, context| {
            if ended.is_err_and(|error| error.is_panic()) {
                let problem = "receiving the audio of the room has failed".to_owned();
                room.tell(RoomNews::Ended(Ending::Refused(problem)));
                context.stop();
            }
        }));
    }
}

impl StreamHandler<LinkEvent> for RoomActor {
    fn handle(&mut self, event: LinkEvent, context: &mut Context<Self>) {
        match event {
            // `enter` has waited for the first one; a full reconnect brings another.
            LinkEvent::Connected { .. } | LinkEvent::TrackMuted { .. } | LinkEvent::Muted(_) => {}
            LinkEvent::ParticipantUpdated(info) => {
                self.tell_of_call(Phones::there, &info);
                self.tell_findings(&info);
                self.tell_queue(&info);
                let changed = self.transfers.changed(&info);
                changed
                    .into_iter()
                    .for_each(|state| self.tell(RoomNews::Transfer(state)));
            }
            LinkEvent::Dtmf { identity, digit } => {
                if self.listens_to(&identity) && self.phones.knows(&identity) {
                    self.tell(RoomNews::Key { identity, digit });
                }
            }
            // Embedded rooms refuse it for sessions, whose recording and room they are.
            LinkEvent::Moved { .. } => tracing::warn!(
                "the session was moved to another room: it goes on there, and calls it by its former name"
            ),
            LinkEvent::Reconnecting => self.tell(RoomNews::Reconnecting),
            LinkEvent::Reconnected { resumed } => self.reconnected(resumed, context),
            LinkEvent::ParticipantJoined(info) => self.joined(&info, context),
            LinkEvent::ParticipantLeft(info) => self.left(*info, context),
            LinkEvent::TrackPublished { track, .. } => {
                if track.r#type() == TrackType::Audio {
                    self.tracks.insert(track.sid, track.name);
                }
            }
            LinkEvent::TrackUnpublished { sid, .. } => {
                self.tracks.remove(&sid);
                self.receiver.close(&sid);
            }
            LinkEvent::TrackSubscribed {
                identity,
                sid,
                audio,
            } => {
                self.receiver.open(identity.clone(), sid.clone(), audio);
                self.tell(RoomNews::Heard {
                    name: self.tracks.get(&sid).cloned().unwrap_or_default(),
                    identity,
                    sid,
                });
            }
            LinkEvent::Listened => self.publisher.open(),
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

    /// The actor stays until it is told to leave: the end of the link has been reported.
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

/// How long joining a room may take.
pub const ENTRY_PATIENCE: Duration = Duration::from_secs(10);
