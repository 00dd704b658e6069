//! The session's side of its room: joining it with the config that asks for it, telling the client what happens there, and
//! sending the client's messages.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;
use tokio_util::task::TaskTracker;

use super::SessionActor;
use super::audio_input::AudioInput;
use super::error_codes::Refusal;
use super::participant_transcribers::{Common, ParticipantTranscribers};
use super::player::timestamp;
use super::protocol::{
    ErrorCode, ListenConfig, Origin, RoomConfig, RoomOfSession, RoomParticipant, RoomText,
    RoomTrack, SendMessage, ServerMessage, SessionParams, VadConfig,
};
use crate::registry::rooms::RoomsError;
use crate::room::{
    self, AnswerWords, ChangeRoom, EnterError, Entered, LeaveRoom, RoomActor, RoomAudioSink,
    RoomNews, RoomReport, SendToRoom, ShowRecording, TrackPublisher,
};
use crate::start_in_span;
use vivavoce_audio::{Bandwidth, Pcm};
use vivavoce_seams::RoomErrorKind;
use vivavoce_seams::rooms::link::{Message as RoomMessage, Outgoing, SendError};
use vivavoce_seams::rooms::telephone::HangupCause;

/// The session's membership in its room.
pub(super) struct RoomMembership {
    /// Passes words on to calls that want to know who has answered.
    pub(super) words: Rc<AnswerWords>,
    pub(super) publisher: TrackPublisher,
    pub(super) actor: Addr<RoomActor>,
    /// Transcribes each participant by itself, where the config says so.
    transcribers: Option<Rc<ParticipantTranscribers>>,
    pub(super) name: String,
    /// The session's identity in it.
    pub(super) identity: String,
    provider: &'static str,
}

impl Drop for RoomMembership {
    fn drop(&mut self) {
        // Once per membership.
        self.actor.do_send(LeaveRoom);
    }
}

/// Listens to the mix of the room as to a client.
struct Mixed(AudioInput);

impl RoomAudioSink for Mixed {
    fn bandwidth(&self) -> Bandwidth {
        self.0.bandwidth()
    }

    fn push_mix(&self, sound: Pcm) {
        self.0.push_room(sound);
    }

    fn wants_participant(&self, _identity: &str) -> bool {
        false
    }

    fn push_participant(&self, _identity: &str, _sound: Pcm) {}

    fn participant_left(&self, _identity: &str) {}
}

impl SessionActor {
    /// Joins the room that a config asks for, unless the session is in it.
    pub(super) fn enter_room(
        &self,
        wanted: &SessionParams,
    ) -> impl Future<Output = Result<Option<(Entered, RoomConfig)>, Refusal>> + use<> {
        let config = wanted.rtc.clone().filter(|_| self.membership.is_none());
        let audio = wanted.tts.is_some();
        let rooms = self.services.rooms.clone();
        let (access, work) = (self.access.clone(), self.work.clone());
        let lock = self.membership_lock.clone();
        async move {
            let Some(config) = config else {
                return Ok(None);
            };
            let Some(rooms) = rooms else {
                let problem = "rtc: this server has no rooms";
                return Err(Refusal::new(ErrorCode::RtcNotConfigured, problem));
            };
            let entered = room::enter(rooms, access, config.clone(), audio, work, lock).await;
            entered
                .map(|entered| Some((entered, config)))
                .map_err(|error| refusal(&error))
        }
    }

    /// A room as `ready` shows it.
    pub(super) fn shown(&self, entered: &Entered, config: &RoomConfig) -> RoomOfSession {
        let url = entered
            .url()
            .map_or_else(|| self.own_url.clone(), str::to_owned);
        RoomOfSession {
            rtc_room_name: config.room_name.clone(),
            rtc_url: url,
            service_participant_identity: config.identity.clone(),
            service_participant_name: config.name.clone(),
            dialect: Arc::clone(&self.services.dialect),
        }
    }

    /// The config that has joined a room is in force; later ones may change `vad`.
    pub(super) fn start_membership(
        &mut self,
        vad: VadConfig,
        joined: Option<(Entered, RoomConfig)>,
        context: &Context<Self>,
    ) {
        let Some((mut entered, config)) = joined else {
            if let Some(transcribers) = self
                .membership
                .as_ref()
                .and_then(|membership| membership.transcribers.as_ref())
            {
                transcribers.change_vad(vad);
            }
            return;
        };
        let complexity = self.services.settings.room_complexity;
        let Some(publish) = entered.take_publish() else {
            return;
        };
        let publisher = TrackPublisher::new(publish, Bandwidth::Superwideband, complexity);
        let (name, provider) = (config.room_name.clone(), entered.provider());
        let words = Rc::new(AnswerWords::new(name.clone(), self.services.calls.clone()));
        let (sink, transcribers): (Rc<dyn RoomAudioSink>, _) = match &config.listen {
            None => (Rc::new(Mixed(self.listening.input.clone())), None),
            Some(listen) => {
                let transcribers = Rc::new(ParticipantTranscribers::new(Common {
                    services: Arc::clone(&self.services),
                    party: self.access.party(),
                    trace: self.trace.clone(),
                    writer: self.writer.clone(),
                    player: Rc::clone(&self.output_of_room),
                    wanted: Rc::new(RefCell::new((ListenConfig::clone(listen), vad))),
                    ignored_told: Rc::default(),
                    session: self.listening.input.clone(),
                    clock: Rc::default(),
                    words: Rc::clone(&words),
                    running: TaskTracker::new(),
                    transcribed: self.usage.of_participants(),
                }));
                (
                    Rc::clone(&transcribers) as Rc<dyn RoomAudioSink>,
                    Some(transcribers),
                )
            }
        };
        let report = context.address().recipient();
        let identity = config.identity.clone();
        let of_room = Rc::clone(&words);
        let room = RoomActor::new(entered, config, sink, publisher.clone(), of_room, report);
        self.membership = Some(RoomMembership {
            words,
            publisher,
            actor: start_in_span(move |_| room),
            transcribers,
            name,
            identity,
            provider,
        });
    }

    /// Shows everybody in the room whether it is recorded.
    pub(super) fn show_recording(&self) {
        if let Some(membership) = &self.membership {
            // Once per config and per recording that fails.
            membership
                .actor
                .do_send(ShowRecording(self.recording.is_some()));
        }
    }

    pub(super) fn change_room(&self, config: RoomConfig) {
        if let Some(membership) = &self.membership {
            if let (Some(transcribers), Some(listen)) = (&membership.transcribers, &config.listen) {
                transcribers.change_listen(ListenConfig::clone(listen));
            }
            // Once per config.
            membership.actor.do_send(ChangeRoom(config));
        }
    }

    /// The session ends: the recognisers of participants drain within this time.
    pub(super) fn end_participants(&self, patience: Duration, context: &mut Context<Self>) {
        let transcribers = self
            .membership
            .as_ref()
            .and_then(|membership| membership.transcribers.as_ref());
        let ended = transcribers.map(|transcribers| transcribers.end(patience));
        let ended = async move {
            if let Some(ended) = ended {
                ended.await;
            }
        };
        context.spawn(ended.into_actor(self).map(|(), session, context| {
            let moment = session.moment();
            session.state.participants_ended(moment);
            session.carry_out(context);
        }));
    }

    pub(super) fn send_to_room(&mut self, message: SendMessage, context: &mut Context<Self>) {
        let Some(membership) = &self.membership else {
            return;
        };
        let SendMessage {
            message,
            role,
            topic,
            debug,
        } = message;
        let mut body = json!({"message": message, "role": role});
        if let (Some(debug), Some(fields)) = (debug, body.as_object_mut()) {
            fields.insert("debug".to_owned(), debug);
        }
        let message = Outgoing {
            key: None,
            topic: Some(topic),
            payload: Bytes::from(body.to_string()),
            reliable: true,
            destinations: Vec::new(),
        };
        let sent = membership.actor.send(SendToRoom(message));
        // In the order of the client's messages: the session handles the next one when this one has been sent.
        context.wait(sent.into_actor(self).map(|sent, session, context| {
            let refused = match sent {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(_) => SendError::Ended,
            };
            let code = match refused {
                SendError::TooLarge => ErrorCode::InvalidMessage,
                SendError::Full => ErrorCode::Overloaded,
                SendError::Ended => ErrorCode::RtcFailed,
            };
            let origin = Origin::of("send_message");
            session.refuse(&origin, code, format!("send_message: {refused}"));
            session.carry_out(context);
        }));
    }

    fn participant(&self, identity: String, name: String) -> Option<RoomParticipant> {
        Some(RoomParticipant {
            identity,
            name,
            room: self.membership.as_ref()?.name.clone(),
            timestamp: timestamp(),
        })
    }

    fn news(&mut self, news: RoomNews) {
        let moment = self.moment();
        let Some((provider, room)) = self
            .membership
            .as_ref()
            .map(|membership| (membership.provider, membership.name.clone()))
        else {
            return;
        };
        match news {
            RoomNews::Joined { identity, name } => {
                if let Some(participant) = self.participant(identity, name) {
                    self.tell(&ServerMessage::ParticipantConnected { participant });
                }
            }
            RoomNews::Left { identity, name } => {
                if let Some(participant) = self.participant(identity, name) {
                    self.tell(&ServerMessage::ParticipantDisconnected { participant });
                }
            }
            RoomNews::Heard {
                identity,
                name,
                sid,
            } => self.tell(&ServerMessage::TrackSubscribed {
                track: RoomTrack {
                    identity,
                    name,
                    track_kind: "audio",
                    track_sid: sid,
                    room,
                    timestamp: timestamp(),
                },
            }),
            RoomNews::Call {
                sip_call_id,
                identity,
                status,
            } => self.tell(&ServerMessage::SipCall {
                sip_call_id,
                participant_identity: identity,
                status: status.as_str(),
                cause: status.cause().map(HangupCause::as_str),
            }),
            RoomNews::Answered {
                sip_call_id,
                identity,
                finding,
            } => self.tell(&ServerMessage::of_finding(sip_call_id, identity, finding)),
            RoomNews::Transfer(state) => self.tell(&ServerMessage::SipTransferState(state)),
            RoomNews::Queue(state) => self.tell(&ServerMessage::QueueState(state)),
            RoomNews::Key { identity, digit } => {
                self.hide_key();
                self.tell(&ServerMessage::Dtmf {
                    digit,
                    identity,
                    timestamp: timestamp(),
                });
            }
            RoomNews::Message(message) => self.tell(&ServerMessage::Message {
                message: text(message, room),
            }),
            RoomNews::Reconnecting => {
                let message = "the connection to the room is lost and sought anew";
                self.state.room_changes("reconnecting", provider, message);
            }
            RoomNews::Recovered { resumed } => {
                let message = if resumed {
                    "it is the same as before"
                } else {
                    "the room was joined anew: what was said and sent meanwhile may be lost"
                };
                self.state.room_changes("recovered", provider, message);
            }
            RoomNews::Deserted => self.state.deserted(moment),
            RoomNews::Ended(ending) => self.state.room_lost(provider, &ending, moment),
        }
    }
}

impl Handler<RoomReport> for SessionActor {
    type Result = ();

    fn handle(&mut self, RoomReport(news): RoomReport, context: &mut Context<Self>) {
        self.news(news);
        self.carry_out(context);
    }
}

fn refusal(error: &EnterError) -> Refusal {
    let code = match error {
        EnterError::Rooms(RoomsError::NotConfigured) => ErrorCode::RtcNotConfigured,
        EnterError::Rooms(RoomsError::AccessDenied | RoomsError::IdentityTaken) => {
            ErrorCode::RoomAccessDenied
        }
        EnterError::Rooms(RoomsError::Provider(cause)) | EnterError::Provider(cause)
            if matches!(cause.kind, RoomErrorKind::Quota(_)) =>
        {
            ErrorCode::Overloaded
        }
        _ => ErrorCode::RtcFailed,
    };
    Refusal::new(code, format!("rtc: {error}"))
}

fn text(message: RoomMessage, room: String) -> RoomText {
    let RoomMessage {
        identity,
        topic,
        payload,
        ..
    } = message;
    let (message, data) = match String::from_utf8(payload.to_vec()) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
    };
    RoomText {
        message,
        data,
        identity,
        topic,
        room,
        timestamp: timestamp(),
    }
}
