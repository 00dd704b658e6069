//! `/sip/traces`: what was seen of the signalling of telephone calls. A ladder has the first lines of messages, and nothing that
//! could be a secret.

use actix_web::web;
use schemars::JsonSchema;
use serde::Serialize;

use crate::AppState;
use crate::auth::Entered;
use crate::error::{ApiError, Code};
use vivavoce_actors::registry::calls::{GetTrace, ListTraces};
use vivavoce_core::unix_time::unix_ms;
use vivavoce_seams::rooms::telephone::{CallTrace, SipMessage};

/// Response of `GET /sip/traces`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TraceList {
    /// Calls that there are, those that were refused or have failed lately, and those that ended in the last minute; the newest
    /// last. A tenant sees its own.
    traces: Vec<TraceInfo>,
}

/// A traced call.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TraceInfo {
    /// The id: that of the call (`SCL_…`), or of a call that was refused before it was one (`SRF_…`).
    trace_id: String,
    /// How the call is.
    #[schemars(extend("enum" = ["live", "ended", "failed", "refused"]))]
    state: &'static str,
    /// `inbound` or `outbound`.
    #[schemars(extend("enum" = ["inbound", "outbound"]))]
    direction: &'static str,
    /// When it began, or was refused last, in Unix milliseconds.
    at: u64,
    /// The room; null where it has none.
    room_name: Option<String>,
    /// The identity of the call's participant; null likewise.
    participant_identity: Option<String>,
    /// The SIP status that has refused it; null where none has.
    status: Option<u16>,
    /// Why it is over: the cause of a call, or a sentence; null before.
    reason: Option<String>,
    /// How often the same was refused.
    times: u64,
    /// How many messages its ladder has.
    messages: usize,
}

/// Response of `GET /sip/traces/{trace_id}`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Trace {
    #[serde(flatten)]
    info: TraceInfo,
    /// Messages between the first and the last ones that are not kept.
    left_out: u64,
    /// The messages, in order.
    ladder: Vec<Message>,
}

/// A SIP message, without headers and body.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Message {
    /// When, for the first time, in Unix milliseconds.
    at: u64,
    /// Whether this server has sent or received it.
    #[schemars(extend("enum" = ["sent", "received"]))]
    direction: &'static str,
    /// How it travelled.
    #[schemars(extend("enum" = ["udp", "tcp", "tls"]))]
    transport: &'static str,
    /// The address of the other side.
    remote: String,
    /// The request and its URI, or the status and its phrase. Users are masked unless `sip.trace_numbers` says otherwise.
    line: String,
    /// The number of the request and its method.
    cseq: String,
    /// That it carries SDP, and the reasons that it tells; may be empty.
    note: String,
    /// How often it was sent or received.
    times: u64,
}

impl From<CallTrace> for TraceInfo {
    fn from(trace: CallTrace) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        Self {
            trace_id: trace.id,
            state: trace.state.as_str(),
            direction: trace.direction.as_str(),
            at: unix_ms(trace.at),
            room_name: some(trace.room),
            participant_identity: some(trace.identity),
            status: trace.status,
            reason: some(trace.reason),
            times: trace.times,
            messages: trace.seen,
        }
    }
}

impl From<SipMessage> for Message {
    fn from(message: SipMessage) -> Self {
        Self {
            at: unix_ms(message.at),
            direction: if message.sent { "sent" } else { "received" },
            transport: message.transport,
            remote: message.remote,
            line: message.line,
            cseq: message.cseq,
            note: message.note,
            times: message.times,
        }
    }
}

/// Lists traced calls.
pub async fn list(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<TraceList>, ApiError> {
    let traces = state.calls.send(ListTraces { access }).await?;
    let traces = traces.into_iter().map(TraceInfo::from).collect();
    Ok(web::Json(TraceList { traces }))
}

/// Shows one with its ladder.
pub async fn show(
    Entered(access): Entered,
    state: web::Data<AppState>,
    id: web::Path<String>,
) -> Result<web::Json<Trace>, ApiError> {
    let id = id.into_inner();
    let trace = state.calls.send(GetTrace { access, id }).await?;
    let unknown = || {
        ApiError::new(
            Code::NotFound,
            "trace_id: no call of this id was seen lately",
        )
    };
    let mut trace = trace.ok_or_else(unknown)?;
    let messages = std::mem::take(&mut trace.messages);
    Ok(web::Json(Trace {
        left_out: trace.left_out,
        info: trace.into(),
        ladder: messages.into_iter().map(Message::from).collect(),
    }))
}
