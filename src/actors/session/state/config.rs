//! The configuration of a session: which message is carried out when, which config is pending, and which is in force. While
//! a config is pending the messages after it wait in a bounded backlog.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytestring::ByteString;
use serde_json::Value;

use super::Command;
use crate::session::error_codes::Refusal;
use crate::session::loading::Clip;
use crate::session::protocol::{
    ConfigUpdate, ErrorCode, LoadingAudio, RoomConfig, RoomOfSession, SessionConfig, SessionParams,
    StreamId,
};

/// The most commands that wait for a pending config, and their bytes on the wire.
const MAX_BACKLOG: usize = 256;
const MAX_BACKLOG_BYTES: usize = 5 << 20;
/// The most texts of which a config is made, with their bytes, if another server is to be told them.
const MAX_SAID: usize = 16;
pub const MAX_SAID_BYTES: usize = 64 << 10;

const NOT_CONFIGURED: &str = "send config first";
pub const AUDIO_DISABLED: &str = "the session was configured with audio: false";

/// A config that is being carried out.
#[derive(Debug)]
pub struct Pending {
    /// Its number.
    pub config: u64,
    pub stream_id: StreamId,
    pub params: SessionParams,
    /// How it was said.
    text: Option<ByteString>,
    /// Not yet decoded.
    pub loading_audio: Option<LoadingAudio>,
    /// An `update_config`: what it does not name goes on.
    pub is_update: bool,
    pub clip: Option<Clip>,
    /// The room that was joined for it.
    pub room: Option<RoomOfSession>,
}

/// The config in force.
#[derive(Debug)]
pub struct InForce {
    pub config: u64,
    pub params: SessionParams,
    pub clip: Option<Clip>,
    /// The room that the session is in, as `ready` shows it.
    pub room: Option<RoomOfSession>,
    /// How it was said, with its updates; `None` where another session cannot be made with that.
    said: Option<Vec<ByteString>>,
}

/// What a config that has come into force changes.
#[derive(Debug)]
pub struct Change {
    pub is_update: bool,
    pub changes_clip: bool,
    pub changes_room: bool,
}

/// What becomes of a command.
#[derive(Debug)]
pub enum Admission {
    /// It is carried out now.
    Now(Command),
    /// It waits for the pending config.
    Waits,
    /// Too much waits.
    Refused(Command),
}

#[derive(Debug)]
pub struct ConfigMachine {
    stream_id: Option<StreamId>,
    /// When the first config must be in force.
    due: Option<Instant>,
    timeout: Duration,
    /// Apart, as it is gone soon.
    pending: Option<Box<Pending>>,
    in_force: Option<InForce>,
    backlog: VecDeque<Command>,
    backlog_bytes: usize,
}

impl ConfigMachine {
    /// Without a config, of which the first has to be in force within `timeout`.
    pub fn new(now: Instant, timeout: Duration) -> Self {
        Self {
            stream_id: None,
            due: Some(now + timeout),
            timeout,
            pending: None,
            in_force: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
        }
    }

    pub const fn in_force(&self) -> Option<&InForce> {
        self.in_force.as_ref()
    }

    pub const fn stream_id(&self) -> Option<&StreamId> {
        self.stream_id.as_ref()
    }

    /// The pending config, if it has this number.
    pub fn pending(&mut self, config: u64) -> Option<&mut Pending> {
        let pending = self.pending.as_deref_mut();
        pending.filter(|known| known.config == config)
    }

    pub fn is_pending(&self, config: u64) -> bool {
        let pending = self.pending.as_ref();
        pending.is_some_and(|known| known.config == config)
    }

    /// Takes a command.
    pub fn admit(&mut self, command: Command) -> Admission {
        if self.pending.is_none() {
            return Admission::Now(command);
        }
        if self.backlog.len() >= MAX_BACKLOG
            || self.backlog_bytes + command.bytes > MAX_BACKLOG_BYTES
        {
            return Admission::Refused(command);
        }
        self.backlog_bytes += command.bytes;
        self.backlog.push_back(command);
        Admission::Waits
    }

    /// The next command of the backlog, unless a config is pending.
    pub fn next(&mut self) -> Option<Command> {
        if self.pending.is_some() {
            return None;
        }
        let command = self.backlog.pop_front()?;
        self.backlog_bytes -= command.bytes;
        Some(command)
    }

    /// A `config` becomes pending, unless it asks for what cannot be.
    pub fn configure(
        &mut self,
        config: u64,
        wanted: SessionConfig,
        text: Option<ByteString>,
    ) -> Result<(), Refusal> {
        let SessionConfig {
            stream_id,
            loading_audio,
            strict: _,
            params,
        } = wanted;
        if let (Some(has), Some(wants)) = (&self.stream_id, &stream_id)
            && has != wants
        {
            let problem = "stream_id: cannot change during a session";
            return Err(Refusal::new(ErrorCode::InvalidMessage, problem));
        }
        if let Some(in_force) = &self.in_force {
            check_room(in_force.params.rtc.as_ref(), params.rtc.as_ref())
                .map_err(|problem| Refusal::new(ErrorCode::InvalidMessage, problem))?;
        }
        if params.records() && params.listen().is_none() {
            let problem = "recording: without audio there is nothing to record";
            return Err(Refusal::new(ErrorCode::RecordingUnavailable, problem));
        }
        let known = self.stream_id.clone();
        self.pending = Some(Box::new(Pending {
            config,
            stream_id: known.or(stream_id).unwrap_or_else(StreamId::random),
            params,
            text,
            loading_audio,
            is_update: false,
            clip: None,
            room: None,
        }));
        Ok(())
    }

    /// An `update_config` becomes pending, unless it asks for what cannot be.
    pub fn update(
        &mut self,
        config: u64,
        update: ConfigUpdate,
        text: Option<ByteString>,
    ) -> Result<(), Refusal> {
        let (Some(in_force), Some(stream_id)) = (&self.in_force, &self.stream_id) else {
            return Err(Refusal::new(ErrorCode::NotConfigured, NOT_CONFIGURED));
        };
        let params = update
            .over(&in_force.params)
            .map_err(|misfit| Refusal::new(ErrorCode::InvalidMessage, misfit.to_string()))?
            .ok_or_else(|| Refusal::new(ErrorCode::AudioDisabled, AUDIO_DISABLED))?;
        self.pending = Some(Box::new(Pending {
            config,
            stream_id: stream_id.clone(),
            params,
            text,
            loading_audio: None,
            is_update: true,
            clip: in_force.clip.clone(),
            room: None,
        }));
        Ok(())
    }

    pub fn pending_number(&self) -> Option<u64> {
        self.pending.as_ref().map(|pending| pending.config)
    }

    /// Drops the pending config.
    pub const fn abandon(&mut self) -> Option<Box<Pending>> {
        self.pending.take()
    }

    /// The session ends: nothing is carried out any more.
    pub fn end(&mut self) -> Option<u64> {
        self.backlog.clear();
        self.abandon().map(|pending| pending.config)
    }

    /// The pending config comes into force.
    pub fn commit(&mut self) -> Option<Change> {
        let Pending {
            config,
            stream_id,
            params,
            text,
            is_update,
            clip,
            room,
            ..
        } = *self.pending.take()?;
        let mut before = self.in_force.take();
        let said_before = match &mut before {
            Some(before) if is_update => before.said.take(),
            _ => Some(Vec::new()),
        };
        let said = said_before.and_then(|before| said(before, text));
        let said = said.filter(|_| may_go_on_elsewhere(&params));
        let was_in = before
            .as_ref()
            .and_then(|before| before.params.rtc.as_ref());
        let change = Change {
            is_update,
            changes_room: was_in.is_some() && was_in != params.rtc.as_ref(),
            changes_clip: before.as_ref().and_then(|before| before.clip.as_ref()) != clip.as_ref(),
        };
        self.in_force = Some(InForce {
            config,
            room: room.or_else(|| before?.room),
            params,
            clip,
            said,
        });
        self.due = None;
        self.stream_id = Some(stream_id);
        Some(change)
    }

    /// The messages that make another session what this one is; `None` where none can.
    pub fn said(&self) -> Option<Vec<Value>> {
        let (in_force, stream_id) = (self.in_force.as_ref()?, self.stream_id.as_ref()?);
        let said = in_force.said.as_ref()?.iter();
        let said = said.map(|text| serde_json::from_str(text).ok());
        let mut said: Vec<Value> = said.collect::<Option<_>>()?;
        let config = said.first_mut()?.as_object_mut()?;
        config.insert("stream_id".to_owned(), stream_id.as_str().into());
        Some(said)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.due.filter(|_| self.pending.is_none())
    }

    /// The timeout, if no config came into force within it.
    pub fn timed_out(&self, now: Instant) -> Option<Duration> {
        let is_due = self.next_deadline().is_some_and(|at| at <= now);
        is_due.then_some(self.timeout)
    }

    /// Why a command other than a config cannot be carried out yet.
    pub fn configured(&self) -> Result<&InForce, Refusal> {
        self.in_force
            .as_ref()
            .ok_or_else(|| Refusal::new(ErrorCode::NotConfigured, NOT_CONFIGURED))
    }
}

/// How a config is said that comes into force, after those of which it is an update; `None` where that is too much.
fn said(mut said: Vec<ByteString>, text: Option<ByteString>) -> Option<Vec<ByteString>> {
    said.push(text?);
    let bytes: usize = said.iter().map(|text| text.len()).sum();
    (said.len() <= MAX_SAID && bytes <= MAX_SAID_BYTES).then_some(said)
}

/// Whether a session like this can go on at another server: its client comes back, and nothing of it has to stay where it is.
fn may_go_on_elsewhere(params: &SessionParams) -> bool {
    params.resume && params.rtc.is_none()
}

/// A session joins its room with its first config, and stays in it as who it is.
fn check_room(has: Option<&RoomConfig>, wants: Option<&RoomConfig>) -> Result<(), &'static str> {
    let (has, wants) = match (has, wants) {
        (None, None) => return Ok(()),
        (None, Some(_)) => return Err("rtc: a session joins its room with its first config"),
        (Some(_), None) => return Err("rtc: the room of a session cannot change"),
        (Some(has), Some(wants)) => (has, wants),
    };
    if has.room_name != wants.room_name {
        return Err("rtc.room_name: cannot change during a session");
    }
    if has.identity != wants.identity {
        return Err("rtc.service_participant_identity: cannot change during a session");
    }
    if has.name != wants.name {
        return Err("rtc.service_participant_name: cannot change during a session");
    }
    if has.stt_mode != wants.stt_mode {
        return Err("rtc.stt_mode: cannot change during a session");
    }
    Ok(())
}
