//! Calls that are in no room, such as those that come by a carrier's socket. The agent speaks to its session as any client does,
//! but for sound: that of its session is the call's. What it may say of a telephone (`hangup`, `send_dtmf`) is carried out here,
//! because the session knows of none, and what there is to tell of one (`sip_call`, `dtmf`) is told here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use bytestring::ByteString;
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::dialler::{Opening, Place};
use super::socket::{Progress, is_resume};
use vivavoce_actors::session::protocol::{
    CallCommand, CarrierOfCall, ClientMessage, ErrorCode, Origin, ServerMessage, TransferErrorCode,
};
use vivavoce_actors::session::{Caller, InnerSession, SessionServices, open_session};
use vivavoce_core::dialect::Dialect;
use vivavoce_core::json::{Fields, quoted};
use vivavoce_socket::{Closed, InnerClient, Message, SocketHandler, SocketWriter};

/// How long a session stays when its call is over, for the last words and for an agent that has something to finish.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// The caller's side of a call that is in no room.
pub trait Line {
    /// The call.
    fn call(&self) -> &LineCall;

    /// Where the caller is heard from now on; nowhere between two agents.
    fn connect(&self, session: Option<Rc<LineSession>>);

    /// Sound for the caller: 16-bit samples at the rate of the call.
    fn play(&self, sound: Bytes);

    /// Drops what was played and not yet heard.
    fn cut(&self);

    /// Presses keys; whether that can be done.
    fn press(&self, digits: &str) -> bool;

    /// Ends the call, once what was played has been heard.
    fn hang_up(self: Rc<Self>);

    /// Cancelled when the call is over.
    fn over(&self) -> &CancellationToken;

    /// Why the call is over, as `sip_call` says it.
    fn cause(&self) -> &'static str;
}

/// A call that is in no room.
#[derive(Debug, Clone)]
pub struct LineCall {
    /// Who the caller is in events.
    pub participant_identity: String,
    /// The calling number.
    pub from: Option<String>,
    /// The called number.
    pub to: Option<String>,
    /// Where it comes from.
    pub carrier: CarrierOfCall,
    /// How the sound of the caller is encoded, as `stt_config` says it.
    pub encoding: &'static str,
    /// Samples a second, both ways.
    pub rate: u32,
    /// How much sound it takes at once.
    pub packet: Duration,
}

/// The session of a call, while it has an agent.
pub struct LineSession {
    session: RefCell<Option<InnerSession>>,
    agent: SocketWriter,
    identity: String,
    /// Whether the agent has configured it.
    is_ready: Cell<bool>,
    /// The agent's socket has closed.
    gone: CancellationToken,
}

impl LineSession {
    /// Sound of the caller. Before a config nobody would hear it, and the agent be told that it has not sent one.
    pub fn sound(&self, sound: Bytes) {
        if !self.is_ready.get() {
            return;
        }
        if let Some(session) = &mut *self.session.borrow_mut() {
            session.binary(sound);
        }
    }

    /// The caller has pressed a key.
    pub fn pressed(&self, key: char) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let told = ServerMessage::Dtmf {
            digit: key.to_string(),
            identity: self.identity.clone(),
            timestamp: now.unwrap_or_default().as_millis() as u64,
        };
        // Others decide how many there are.
        self.agent.message(told.to_json());
    }

    fn text(&self, text: ByteString) {
        if let Some(session) = &mut *self.session.borrow_mut() {
            session.text(text);
        }
    }

    fn end(&self) {
        // Dropped when nothing is borrowed: it may call back.
        let session = self.session.borrow_mut().take();
        drop(session);
    }
}

/// A call on a line.
pub(crate) struct OnLine(pub(crate) Rc<dyn Line>);

impl Place for OnLine {
    type Socket = LineSocket;

    fn told(&self, stream_id: &str) -> ServerMessage {
        let call = self.0.call();
        ServerMessage::Call {
            room_name: None,
            participant_identity: call.participant_identity.clone(),
            from: call.from.clone(),
            to: call.to.clone(),
            headers: BTreeMap::new(),
            stream_id: stream_id.to_owned(),
            carrier: Some(call.carrier.clone()),
        }
    }

    async fn is_over(&self, _: &SessionServices) -> bool {
        self.0.over().is_cancelled()
    }

    async fn over(&self) {
        self.0.over().cancelled().await;
    }

    fn open(&self, opening: Opening) -> LineSocket {
        let line = Rc::clone(&self.0);
        let dialect = Arc::clone(&opening.services.dialect);
        let (inner, client) = open_session(
            opening.services,
            &opening.sockets,
            opening.places,
            Caller {
                // The next piece is whole before the last one has been played.
                least_lead: line.call().packet * 2,
                ..opening.caller
            },
        );
        let session = Rc::new(LineSession {
            session: RefCell::new(Some(inner)),
            agent: opening.writer,
            identity: line.call().participant_identity.clone(),
            is_ready: Cell::new(false),
            gone: CancellationToken::new(),
        });
        line.connect(Some(Rc::clone(&session)));
        let passing_on = pass_on(client, Rc::clone(&session), Rc::clone(&line));
        tokio::task::spawn_local(passing_on);
        LineSocket {
            line,
            session,
            dialect,
            stream_id: opening.stream_id,
            progress: opening.progress,
            binary_refused: Cell::new(false),
        }
    }
}

/// Passes on what the session sends: events to the agent, sound to the caller.
async fn pass_on(mut client: InnerClient, session: Rc<LineSession>, line: Rc<dyn Line>) {
    let call = |status, cause| ServerMessage::SipCall {
        sip_call_id: line.call().carrier.call_id.clone(),
        participant_identity: session.identity.clone(),
        status,
        cause,
    };
    // Whether something has been played of the utterance whose end is told next.
    let mut is_heard = false;
    let passing_on = async {
        while let Some(message) = client.next().await {
            let text = match message {
                Message::Text(text) => text,
                Message::Binary(sound) => {
                    line.play(sound);
                    continue;
                }
            };
            let event: Event = serde_json::from_str(&text).unwrap_or_default();
            match event.r#type.as_str() {
                "tts_started" => is_heard = true,
                "tts_playback_complete" => is_heard = false,
                // What waited behind another utterance has not been sent, and that one may be followed by a third.
                "tts_interrupted" if std::mem::take(&mut is_heard) => line.cut(),
                _ => {}
            }
            event.send(&session.agent, text);
            if event.r#type == "ready" && !session.is_ready.replace(true) {
                session.agent.event(call("active", None).to_json());
            }
        }
    };
    let afterwards = async {
        line.over().cancelled().await;
        session
            .agent
            .event(call("hangup", Some(line.cause())).to_json());
        sleep(AFTERWARDS).await;
    };
    tokio::select! {
        () = passing_on => {}
        () = afterwards => {}
        () = session.gone.cancelled() => {}
    }
    line.connect(None);
    session.end();
    let closed = client.closed();
    let (code, reason) =
        closed.map_or((1000, String::new()), |closed| (closed.code, closed.reason));
    // What a socket may not say is the end of the call.
    let code = if matches!(code, 1005 | 1006) {
        1000
    } else {
        code
    };
    session.agent.close(code, reason);
}

/// What must be known of an event to pass it on.
#[derive(Default, Deserialize)]
struct Event {
    #[serde(default)]
    r#type: String,
    /// Which one of voice activity.
    #[serde(default, rename = "event")]
    voice: Option<String>,
    #[serde(default)]
    is_final: Option<bool>,
}

impl Event {
    /// As the session itself would send it: what the next one replaces does not wait in a queue.
    fn send(&self, agent: &SocketWriter, text: ByteString) {
        match (self.r#type.as_str(), self.voice.as_deref()) {
            ("stt_result", _) if self.is_final == Some(false) => agent.latest("stt_result", text),
            ("tts_progress", _) => agent.latest("tts_progress", text),
            ("vad_event", Some("speech_start")) => agent.latest("speech_start", text),
            ("vad_event", Some("silence_detected")) => agent.latest("silence_detected", text),
            ("vad_event", Some("speech_resumed")) => agent.latest("speech_resumed", text),
            ("vad_event", Some("turn_end")) => agent.latest("turn_end", text),
            ("error", _) => agent.error(text),
            _ => agent.event(text),
        }
    }
}

/// The handler of an agent's socket.
pub(crate) struct LineSocket {
    line: Rc<dyn Line>,
    session: Rc<LineSession>,
    dialect: Arc<Dialect>,
    stream_id: String,
    progress: Rc<Progress>,
    binary_refused: Cell<bool>,
}

impl LineSocket {
    fn refuse(&self, origin: &'static str, code: ErrorCode, problem: &str) {
        let told = ServerMessage::refusal(code, problem).answering(&Origin::of(origin));
        self.session.agent.error(told.to_json());
    }

    /// What there is to do with the telephone; `false` where the message is about something else, or is none.
    fn telephone(&self, text: &str) -> bool {
        let fields: Result<Fields<'_>, _> = serde_json::from_str(text);
        let kind = fields.ok().and_then(|fields| fields.get("type"));
        let known = [
            "\"hangup\"",
            "\"send_dtmf\"",
            "\"sip_transfer\"",
            "\"complete_transfer\"",
            "\"cancel_transfer\"",
            "\"hold\"",
            "\"queue_call\"",
            "\"leave_queue\"",
            "\"next_call\"",
        ];
        if !kind.is_some_and(|kind| known.contains(&kind.get())) {
            return false;
        }
        // What does not fit is told by the session.
        let Ok(ClientMessage::Call(command)) = ClientMessage::parse(text.as_bytes()) else {
            return false;
        };
        let name = command.name();
        let whose = match &command {
            CallCommand::Transfer(transfer) => transfer.participant_identity.as_ref(),
            CallCommand::HangUp {
                participant_identity,
            }
            | CallCommand::Press {
                participant_identity,
                ..
            }
            | CallCommand::Hold {
                participant_identity,
                ..
            }
            | CallCommand::Queue {
                participant_identity,
                ..
            }
            | CallCommand::LeaveQueue {
                participant_identity,
            } => participant_identity.as_ref(),
            CallCommand::Finish { .. } | CallCommand::Next { .. } => None,
        };
        let stranger = whose.is_some_and(|identity| *identity != self.session.identity);
        if stranger || self.line.over().is_cancelled() {
            let problem = "participant_identity: nobody of this identity is on the telephone";
            self.refuse(name, ErrorCode::ParticipantNotFound, problem);
            return true;
        }
        match command {
            CallCommand::HangUp { .. } => Rc::clone(&self.line).hang_up(),
            CallCommand::Press { keys, .. } => {
                let digits: String = keys.iter().map(|key| key.sign()).collect();
                if !self.line.press(&digits) {
                    let problem = "this carrier's socket cannot press keys";
                    self.refuse(name, ErrorCode::CallFailed, problem);
                }
            }
            CallCommand::Hold { .. }
            | CallCommand::Finish { .. }
            | CallCommand::Queue { .. }
            | CallCommand::LeaveQueue { .. }
            | CallCommand::Next { .. } => {
                let problem = "this carrier's socket can neither transfer a call nor hold it";
                self.refuse(name, ErrorCode::CallFailed, problem);
            }
            CallCommand::Transfer(_) => {
                let told = ServerMessage::SipTransferError {
                    message: "this carrier's socket cannot transfer a call".to_owned(),
                    code: TransferErrorCode::TransferFailed,
                };
                self.session.agent.event(told.to_json());
            }
        }
        true
    }
}

impl SocketHandler for LineSocket {
    fn text(&mut self, text: ByteString) {
        if !self.progress.configured.get() && is_resume(&text) {
            let problem = "an agent that was dialled has nothing to resume";
            return self.session.agent.close(1008, problem);
        }
        if self.telephone(&text) {
            return;
        }
        match config(&text, &self.stream_id, self.line.call(), &self.dialect) {
            Some(Ok(config)) => {
                self.progress.configured.set(true);
                self.session.text(config.into());
            }
            Some(Err(problem)) => self.refuse("config", ErrorCode::InvalidMessage, problem),
            None => self.session.text(text),
        }
    }

    fn binary(&mut self, _: Bytes) {
        if !self.binary_refused.replace(true) {
            let problem = "the sound of this session is that of its call";
            self.refuse("binary", ErrorCode::AudioDisabled, problem);
        }
    }

    fn closed(self, closed: Closed) {
        self.progress.closed.set(Some(closed));
        self.session.gone.cancel();
    }
}

/// A `config` with what the call has decided: the id, where it has none, and the formats. `None` where a text is none.
fn config(
    text: &str,
    stream_id: &str,
    call: &LineCall,
    dialect: &Dialect,
) -> Option<Result<String, &'static str>> {
    let respelled = dialect.config(text);
    let fields: Fields<'_> = serde_json::from_str(respelled.as_deref().unwrap_or(text)).ok()?;
    if fields.get("type")?.get() != "\"config\"" {
        return None;
    }
    let of = |name: &str| {
        let part: Option<Fields<'_>> = serde_json::from_str(fields.get(name)?.get()).ok();
        part
    };
    if of("rtc").is_some_and(|rtc| rtc.get("room_name").is_some()) {
        return Some(Err("rtc.room_name: this call is in no room"));
    }
    // Whoever was dialled cannot come back; the next one is dialled. What else is in `rtc` is about a room.
    let mut given = BTreeMap::from([("resume", "false".to_owned()), ("rtc", "null".to_owned())]);
    if fields.get("stream_id").is_none() {
        given.insert("stream_id", quoted(stream_id));
    }
    let rate = call.rate.to_string();
    if let Some(stt) = of("stt_config") {
        let format = [
            ("encoding", quoted(call.encoding)),
            ("sample_rate", rate.clone()),
            ("channels", "1".to_owned()),
        ];
        given.insert("stt_config", stt.with(&BTreeMap::from(format)));
    }
    if let Some(tts) = of("tts_config") {
        let format = [("audio_format", quoted("linear16")), ("sample_rate", rate)];
        given.insert("tts_config", tts.with(&BTreeMap::from(format)));
    }
    Some(Ok(fields.with(&given)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_has_the_formats_of_the_call_and_no_room() {
        let call = LineCall {
            participant_identity: "sip_+4930".to_owned(),
            from: None,
            to: None,
            carrier: CarrierOfCall {
                kind: "twilio".to_owned(),
                call_id: "CA1".to_owned(),
                parameters: BTreeMap::new(),
            },
            encoding: "mulaw",
            rate: 8_000,
            packet: Duration::from_millis(20),
        };
        let config = |text: &str| config(text, "id-1", &call, &Dialect::default());
        let sent = r#"{"type":"config","stt_config":{"provider":"a","sample_rate":48000},"tts_config":{"provider":"b","model":""},"resume":true,"rtc":{"stt_mode":"mixed"}}"#;
        let taken: serde_json::Value =
            serde_json::from_str(&config(sent).unwrap().unwrap()).unwrap();
        let expected = serde_json::json!({"type": "config", "stream_id": "id-1", "resume": false, "rtc": null,
            "stt_config": {"provider": "a", "encoding": "mulaw", "sample_rate": 8000, "channels": 1},
            "tts_config": {"provider": "b", "model": "", "audio_format": "linear16", "sample_rate": 8000}});
        assert_eq!(taken, expected);
        assert!(
            config(r#"{"type":"config","rtc":{"room_name":"a"}}"#)
                .unwrap()
                .is_err()
        );
        assert!(config(r#"{"type":"speak","text":"Hi."}"#).is_none() && config("{").is_none());
    }
}
