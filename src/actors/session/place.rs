//! What a session has to do with its room: entering it with the config that asks for it, telling the client what happens
//! there, and sending what the client says in writing.

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
use super::failure::Refusal;
use super::hearing::Hearing;
use super::listeners::{Common, Each};
use super::messages::{
    ErrorCode, ListenConfig, RoomConfig, RoomOfSession, RoomParticipant, RoomText, RoomTrack,
    SendMessage, ServerMessage, SessionConfig, VadConfig,
};
use super::player::timestamp;
use crate::registry::rooms::RoomsError;
use crate::room::{
    self, ChangeRoom, EnterError, Entered, LeaveRoom, Listener, Mouth, RoomActor, RoomNews,
    RoomReport, SendToRoom, ShowRecording,
};
use crate::start_in_span;
use vivavoce_audio::linear16;
use vivavoce_seams::RoomErrorKind;
use vivavoce_seams::rooms::link::{Message as RoomMessage, Outgoing, SendError};
use vivavoce_seams::rooms::telephone::HangupCause;

/// A room that the session is in.
pub(super) struct Place {
    pub(super) mouth: Mouth,
    pub(super) actor: Addr<RoomActor>,
    /// Who hears everybody alone.
    each: Option<Rc<Each>>,
    pub(super) name: String,
    provider: &'static str,
}

impl Drop for Place {
    fn drop(&mut self) {
        // One for each life.
        self.actor.do_send(LeaveRoom);
    }
}

/// Hears everybody together, as a client's sound is heard.
struct Together(Hearing);

impl Listener for Together {
    fn hear(&self, samples: &[i16]) {
        // While no config hears anything there is nobody to tell.
        let _deaf = self.0.hear(linear16::encode(samples));
    }

    fn hear_one(&self, _identity: &str, _samples: &[i16]) {}

    fn lost(&self, _identity: &str) {}
}

impl SessionActor {
    /// Enters the room that a config asks for, unless the session is in it.
    pub(super) fn enter_room(
        &self,
        wanted: &SessionConfig,
    ) -> impl Future<Output = Result<Option<(Entered, RoomConfig)>, Refusal>> + use<> {
        let config = wanted.rtc.clone().filter(|_| self.place.is_none());
        let audio = wanted.tts.is_some();
        let rooms = self.services.rooms.clone();
        let (access, work) = (self.access.clone(), self.work.clone());
        let turn = self.room_turn.clone();
        async move {
            let Some(config) = config else {
                return Ok(None);
            };
            let Some(rooms) = rooms else {
                let problem = "rtc: this server has no rooms";
                return Err(Refusal::new(ErrorCode::RtcNotConfigured, problem));
            };
            let entered = room::enter(rooms, access, config.clone(), audio, work, turn).await;
            entered
                .map(|entered| Some((entered, config)))
                .map_err(|error| refusal(&error))
        }
    }

    /// How `ready` names a room.
    pub(super) fn shown(&self, entered: &Entered, config: &RoomConfig) -> RoomOfSession {
        let url = entered
            .url()
            .map_or_else(|| self.own_url.clone(), str::to_owned);
        RoomOfSession {
            rtc_room_name: config.room_name.clone(),
            rtc_url: url,
            service_participant_identity: config.identity.clone(),
            service_participant_name: config.name.clone(),
        }
    }

    /// The config that asked for a room is in force.
    pub(super) fn take_place(&mut self, vad: VadConfig, context: &Context<Self>) {
        let Some((mut entered, config)) = self.entered_for.take() else {
            if let Some(each) = self.place.as_ref().and_then(|place| place.each.as_ref()) {
                each.change_vad(vad);
            }
            return;
        };
        let complexity = self.services.settings.room_complexity;
        let mouth = entered
            .take_publish()
            .map(|publish| Mouth::new(publish, complexity));
        let mouth = match mouth {
            Some(Ok(mouth)) => mouth,
            Some(Err(error)) => {
                tracing::error!(%error, "nothing can be said in a room");
                return self.writer.close(1011, "internal error");
            }
            None => return,
        };
        let (name, provider) = (config.room_name.clone(), entered.provider());
        let (listener, each): (Rc<dyn Listener>, _) = match &config.listen {
            None => (Rc::new(Together(self.hearing.clone())), None),
            Some(listen) => {
                let each = Rc::new(Each::new(Common {
                    services: Arc::clone(&self.services),
                    party: self.access.party(),
                    writer: self.writer.clone(),
                    player: Rc::clone(&self.output_of_room),
                    wanted: Rc::new(RefCell::new((ListenConfig::clone(listen), vad))),
                    ignored_told: Rc::default(),
                    session: self.hearing.clone(),
                    listening: TaskTracker::new(),
                    transcribed: self.account.of_participants(),
                }));
                (Rc::clone(&each) as Rc<dyn Listener>, Some(each))
            }
        };
        let report = context.address().recipient();
        let room = RoomActor::new(entered, config, listener, mouth.clone(), report);
        self.place = Some(Place {
            mouth,
            actor: start_in_span(move |_| room),
            each,
            name,
            provider,
        });
    }

    /// Everybody in the room sees whether it is recorded.
    pub(super) fn show_recording(&self) {
        if let Some(place) = &self.place {
            // One for each config and one for each recording that fails.
            place.actor.do_send(ShowRecording(self.recording.is_some()));
        }
    }

    pub(super) fn change_room(&self, config: RoomConfig) {
        if let Some(place) = &self.place {
            if let (Some(each), Some(listen)) = (&place.each, &config.listen) {
                each.change_listen(ListenConfig::clone(listen));
            }
            // One for each config.
            place.actor.do_send(ChangeRoom(config));
        }
    }

    /// The session ends: the participants' recognisers finish within this time.
    pub(super) fn end_participants(&self, patience: Duration, context: &mut Context<Self>) {
        let each = self.place.as_ref().and_then(|place| place.each.as_ref());
        let ended = each.map(|each| each.end(patience));
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
        let Some(place) = &self.place else { return };
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
        let sent = place.actor.send(SendToRoom(message));
        // In the order of the client's messages: the session looks at the next one when this one was taken.
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
            session.refuse(code, format!("send_message: {refused}"));
            session.carry_out(context);
        }));
    }

    fn participant(&self, identity: String, name: String) -> Option<RoomParticipant> {
        Some(RoomParticipant {
            identity,
            name,
            room: self.place.as_ref()?.name.clone(),
            timestamp: timestamp(),
        })
    }

    fn news(&mut self, news: RoomNews) {
        let moment = self.moment();
        let Some((provider, room)) = self
            .place
            .as_ref()
            .map(|place| (place.provider, place.name.clone()))
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
            RoomNews::Key { identity, digit } => self.tell(&ServerMessage::Dtmf {
                digit,
                identity,
                timestamp: timestamp(),
            }),
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
        let moment = self.moment();
        self.look_at_output(moment);
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
