//! The socket of an agent: what it sends is what any client sends, but for `config`, of which it may leave out what the
//! call has decided: `stream_id`, and the room in `rtc`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;

use vivavoce_actors::session::SessionSocket;
use vivavoce_core::dialect::Dialect;
use vivavoce_core::json::{Fields, quoted};
use vivavoce_socket::{Closed, SocketHandler, SocketWriter};

/// What the server knows before the agent says anything.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) stream_id: String,
    pub(crate) room_name: String,
    /// In which it names things.
    pub(crate) dialect: Arc<Dialect>,
}

/// How far an agent has come.
#[derive(Default)]
pub(crate) struct Progress {
    /// It has sent `config`.
    pub(crate) configured: Cell<bool>,
    /// How its socket has ended.
    pub(crate) closed: Cell<Option<Closed>>,
}

/// The handler of an agent's socket.
pub(crate) struct AgentSocket {
    session: SessionSocket,
    given: Given,
    progress: Rc<Progress>,
    writer: SocketWriter,
}

impl AgentSocket {
    pub(crate) const fn new(
        session: SessionSocket,
        given: Given,
        progress: Rc<Progress>,
        writer: SocketWriter,
    ) -> Self {
        Self {
            session,
            given,
            progress,
            writer,
        }
    }
}

impl SocketHandler for AgentSocket {
    fn text(&mut self, text: ByteString) {
        if !self.progress.configured.get() && is_resume(&text) {
            // It would be another session's socket then, and this call without one.
            return self
                .writer
                .close(1008, "an agent that was dialled has nothing to resume");
        }
        let config = config(&text, &self.given);
        self.progress
            .configured
            .set(self.progress.configured.get() || config.is_some());
        self.session.text(config.map_or(text, ByteString::from));
    }

    fn binary(&mut self, bytes: Bytes) {
        self.session.binary(bytes);
    }

    fn closed(self, closed: Closed) {
        self.progress.closed.set(Some(closed.clone()));
        self.session.closed(closed);
    }
}

pub(crate) fn is_resume(text: &str) -> bool {
    let fields: Result<Fields<'_>, _> = serde_json::from_str(text);
    let kind = fields.ok().and_then(|fields| fields.get("type"));
    kind.is_some_and(|kind| kind.get() == "\"resume\"")
}

/// A `config` with what it has left out; `None` where a text is none.
fn config(text: &str, given: &Given) -> Option<String> {
    let respelled = given.dialect.config(text);
    let fields: Fields<'_> = serde_json::from_str(respelled.as_deref().unwrap_or(text)).ok()?;
    if fields.get("type")?.get() != "\"config\"" {
        return None;
    }
    let mut missing = BTreeMap::new();
    // Whoever was dialled cannot come back; the next one is dialled.
    if fields.get("resume").is_some() {
        missing.insert("resume", "false".to_owned());
    }
    if fields.get("stream_id").is_none() {
        missing.insert("stream_id", quoted(&given.stream_id));
    }
    let room = BTreeMap::from([("room_name", quoted(&given.room_name))]);
    match fields
        .get("rtc")
        .map(|rtc| serde_json::from_str::<Fields<'_>>(rtc.get()))
    {
        None => {
            missing.insert("rtc", Fields::none().with(&room));
        }
        Some(Ok(rtc)) if rtc.get("room_name").is_none() => {
            missing.insert("rtc", rtc.with(&room));
        }
        // The session says what is wrong with it.
        Some(Ok(_) | Err(_)) => {}
    }
    Some(fields.with(&missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_config_leaves_out_is_filled_in_and_nothing_else_is_changed() {
        let given = Given {
            stream_id: "id-1".to_owned(),
            room_name: "call-\"+49".to_owned(),
            dialect: Arc::new(Dialect::new("livekit", "vox")),
        };
        for (sent, taken) in [
            (
                r#"{"type":"config","audio":true}"#,
                Some(
                    r#"{"type":"config","audio":true,"rtc":{"room_name":"call-\"+49"},"stream_id":"id-1"}"#,
                ),
            ),
            (
                r#"{"type":"config","stream_id":"own","livekit":{"vox_participant_name":"a"}}"#,
                Some(
                    r#"{"type":"config","stream_id":"own","rtc":{"service_participant_name":"a","room_name":"call-\"+49"}}"#,
                ),
            ),
            (
                r#"{"type":"config","stream_id":"own","rtc":{"stt_mode":"mixed"}}"#,
                Some(
                    r#"{"type":"config","stream_id":"own","rtc":{"stt_mode":"mixed","room_name":"call-\"+49"}}"#,
                ),
            ),
            (
                r#"{"type":"config","stream_id":null,"rtc":{"room_name":"other"}}"#,
                Some(r#"{"type":"config","rtc":{"room_name":"other"},"stream_id":"id-1"}"#),
            ),
            // A field that comes twice is refused by the session.
            (
                r#"{"type":"config","stream_id":"a","audio":1,"audio":2,"rtc":7}"#,
                Some(r#"{"type":"config","stream_id":"a","audio":1,"audio":2,"rtc":7}"#),
            ),
            (
                r#"{"type":"config","stream_id":"a","resume":true,"rtc":{"room_name":"b"}}"#,
                Some(r#"{"type":"config","stream_id":"a","rtc":{"room_name":"b"},"resume":false}"#),
            ),
            (r#"{"type":"speak","text":"Hi."}"#, None),
            ("[]", None),
            ("{", None),
        ] {
            assert_eq!(config(sent, &given).as_deref(), taken, "{sent}");
        }
    }
}
