//! The responder of a session: where the server leads the conversation with a language model, what the session tells it and
//! does for it.

use actix::prelude::*;

use super::SessionActor;
use super::error_codes::Refusal;
use super::playback::Speak;
use super::player::Player;
use super::protocol::{AgentConfig, ErrorCode, ServerMessage};
use crate::responder::{
    CancelAnswer, DismissResponder, FunctionResult, Instruct, Respond, ResponderActor,
    ResponderOrder, Turn,
};
use crate::start_in_span;
use vivavoce_llm::{ClientEndpoint, Endpoint};

impl SessionActor {
    /// The endpoint that a config names.
    pub(super) fn endpoint(&self, agent: &AgentConfig) -> Result<Endpoint, Refusal> {
        let (llm, model) = (&self.services.llm, agent.model.as_deref());
        let found = match &agent.url {
            Some(url) => llm.brought(
                &ClientEndpoint {
                    url: url.clone(),
                    key: agent.api_key.clone(),
                },
                model,
            ),
            None => llm.find(agent.endpoint.as_deref(), model, self.access.tenant()),
        };
        found
            .map_err(|error| Refusal::new(ErrorCode::InvalidMessage, format!("agent.llm: {error}")))
    }

    /// Leads the conversation like this from now on; what was said so far stays known.
    pub(super) fn lead(&mut self, agent: Option<AgentConfig>, context: &mut Context<Self>) {
        let Some(config) = agent else {
            // The player knows it until its last answer is over.
            if let Some(responder) = self.responder.take() {
                responder.do_send(DismissResponder);
            }
            return;
        };
        let endpoint = match self.endpoint(&config) {
            Ok(endpoint) => endpoint,
            // It was there when the config was checked.
            Err(Refusal { code, message }) => {
                return self.tell(&ServerMessage::refusal(code, message));
            }
        };
        let responder = match &self.responder {
            Some(responder) => {
                // At most one for each config.
                responder.do_send(Instruct { config, endpoint });
                responder.clone()
            }
            None => {
                let session = context.address().recipient();
                let before = self.take_conversation();
                let actor = ResponderActor::new(config, endpoint, session, before);
                start_in_span(|_| actor)
            }
        };
        self.responder = Some(responder.clone());
        self.to_player(|player| player.set_responder(Some(responder)));
        if let Some(unanswered) = self.take_unanswered() {
            self.turn_for_responder(&unanswered);
        }
    }

    /// The caller has ended a turn.
    pub(super) fn turn_for_responder(&self, text: &str) {
        if let Some(responder) = &self.responder {
            // One for each turn.
            responder.do_send(Turn(text.to_owned()));
        }
    }

    /// The model is to answer.
    pub(super) fn have_answer(&self, respond: Respond) {
        if let Some(responder) = &self.responder {
            // One for each message of the client, whose rate is limited.
            responder.do_send(respond);
        }
    }

    /// A function has returned.
    pub(super) fn function_returned(&self, result: FunctionResult) {
        if let Some(responder) = &self.responder {
            // Likewise.
            responder.do_send(result);
        }
    }

    /// The client wants nothing more of what is being said.
    pub(super) fn clear_all(&self) {
        self.to_player(Player::clear);
        if let Some(responder) = &self.responder {
            // Likewise.
            responder.do_send(CancelAnswer);
        }
    }
}

impl Handler<ResponderOrder> for SessionActor {
    type Result = ();

    fn handle(&mut self, order: ResponderOrder, _: &mut Context<Self>) {
        match order {
            ResponderOrder::Tell(message) => {
                self.look_at_answer(&message);
                self.tell(&message);
            }
            ResponderOrder::Say { id, text, ends } => self.queue_speech(Speak {
                text,
                flush: ends,
                allow_interruption: true,
                replace: false,
                id: Some(id),
                ssml: None,
            }),
            ResponderOrder::Cut(id) => self.to_player(|player| player.clear_id(&id)),
        }
    }
}
