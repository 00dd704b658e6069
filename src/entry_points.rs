//! The entry points of the server with their resource limits: routes, messages, datagrams, programs and files. The rows of
//! routes come from the route table and those of messages from the types that are parsed, so that a new one without a limit is
//! noticed. The table is part of `docs/threat-model.md`; limits that are constants are read from where they are enforced.

use livekit_protocol as proto;
use prost::Message as _;

use crate::actors::session::protocol::CLIENT_MESSAGES;
use crate::http::socket::{MAX_BINARY_BYTES, MAX_EVENTS, MAX_TEXT_BYTES, MAX_WAITING_BYTES};
use crate::rooms::limits as rooms;
use crate::rooms::{tcp, turn};
use crate::telephony::agent::{bounds as sip, dialog::ALLOW};

/// Marks the table in the page.
const BEGIN: &str = "<!-- entries -->\n";
const HEAD: &str =
    "| entry point | caller | bytes | time | count, memory |\n|---|---|---|---|---|\n";

/// A row of the table.
fn row(name: &str, caller: &str, bytes: &str, time: &str, count: &str) -> String {
    format!("| {name} | {caller} | {bytes} | {time} | {count} |")
}

/// The page with the table generated from the code.
pub fn page(text: &str) -> Option<String> {
    let (before, _) = text.split_once(BEGIN)?;
    let mut rows: Vec<String> = crate::http::entries()
        .iter()
        .map(ToString::to_string)
        .collect();
    rows.extend(socket_messages()?);
    rows.extend(signals()?);
    rows.extend(worker_messages()?);
    rows.extend(room_media());
    rows.extend(sip_requests()?);
    rows.extend(call_media());
    rows.extend(others());
    Some(format!("{before}{BEGIN}\n{HEAD}{}\n", rows.join("\n")))
}

/// Messages of a session's WebSocket; `None` if one has no limit.
fn socket_messages() -> Option<Vec<String>> {
    let caller = "the client of `/ws`";
    let text = format!("text {MAX_TEXT_BYTES}");
    let time = "`socket.message_timeout_seconds`";
    let row = |name: &str, count: &str| row(&format!("`/ws` {name}"), caller, &text, time, count);
    let mut rows = CLIENT_MESSAGES
        .iter()
        .map(|kind| {
            let count = match kind.name {
                "config" => "one at a time, later commands are queued; loading sound 1.92 MB, 10 s; `limits.unconfigured_sockets` before, `limits.sessions` and quotas after",
                "update_config" => "one at a time; quotas of syntheses and recognisers",
                "speak" => "queue of 64 utterances and 64 KiB of text; a document of SSML 64 KiB, 4000 tags and texts, 32 deep, no entities",
                "clear" | "end_turn" | "loading_start" | "loading_stop" | "pause_recording"
                | "resume_recording" => "updates existing state",
                "respond" => "one answer at a time; 256 KiB of text and 32 calls of 64 KiB each",
                "function_result" => "256 KiB, for a call that waits; the newest 512 KiB of a conversation are told",
                "resume" => "the first message of a socket; the session's own limits; 200 events (256 KiB) and 10 s of sound (512 KiB) kept per session",
                "send_message" => "limits of the room's data messages",
                "sip_transfer" => "one at a time per SIP participant",
                "queue_call" => "`sip.queue_max_calls` in a queue, `sip.queue_max_queues` of a tenant",
                "complete_transfer" | "cancel_transfer" | "hold" | "leave_queue" | "next_call" => {
                    "16 transfers and hang-ups of a session at once"
                }
                "hangup" => "ends a call",
                "send_dtmf" => "32 digits per message",
                _ => return None,
            };
            Some(row(&format!("`{}`", kind.name), count))
        })
        .collect::<Option<Vec<_>>>()?;
    rows.push(self::row(
        "`/ws` audio",
        caller,
        &format!("binary {MAX_BINARY_BYTES}"),
        time,
        "10 s buffered while a `config` is applied, oldest dropped; `limits.unfinished_message_bytes` for all sockets",
    ));
    rows.push(self::row(
        "`/ws` output to a client that does not read",
        caller,
        "–",
        "closed within 2 s",
        &format!(
            "`socket.max_buffered_audio_ms`, {MAX_EVENTS} events; {MAX_WAITING_BYTES} bytes for all sockets: the client furthest behind is cut first"
        ),
    ));
    Some(rows)
}

/// Signalling messages of embedded rooms, found by decoding each tag; `None` if one has no limit.
#[expect(deprecated, reason = "older clients still send deprecated messages")]
fn signals() -> Option<Vec<String>> {
    use proto::signal_request::Message;
    let mut rows = Vec::new();
    for tag in 1u8..=0x7f {
        let Some(message) = signal(tag.into()) else {
            continue;
        };
        let name = format!("{message:?}");
        let name = name.split('(').next()?;
        let count = match message {
            Message::Offer(_) | Message::Answer(_) => format!(
                "{} bytes, {} lines, {} per section, checked before parsing; one at a time, connections take turns",
                rooms::DESCRIPTION_BYTES,
                rooms::DESCRIPTION_LINES,
                rooms::SECTION_LINES
            ),
            Message::AddTrack(_) => {
                format!("{} tracks per participant", rooms::TRACKS_PER_PARTICIPANT)
            }
            Message::Subscription(_) | Message::TrackSetting(_) | Message::UpdateLayers(_) => {
                format!("{} choices per participant", rooms::CHOICES_PER_PARTICIPANT)
            }
            Message::SubscriptionPermission(_) => {
                format!("{} entries", rooms::PERMISSIONS_PER_PARTICIPANT)
            }
            Message::SyncState(_) => format!(
                "{} tracks, {} choices",
                2 * rooms::TRACKS_PER_PARTICIPANT,
                rooms::CHOICES_PER_PARTICIPANT
            ),
            Message::UpdateMetadata(_) => format!(
                "metadata {}, attributes {}, {} per room; {} bytes of updates a second",
                rooms::METADATA_BYTES,
                rooms::ATTRIBUTES_BYTES,
                rooms::ROOM_STATE_BYTES,
                rooms::TOLD_BYTES_PER_SECOND
            ),
            Message::Trickle(_)
            | Message::Mute(_)
            | Message::Leave(_)
            | Message::Ping(_)
            | Message::Simulate(_)
            | Message::PingReq(_)
            | Message::UpdateAudioTrack(_)
            | Message::UpdateVideoTrack(_) => "updates existing state".to_owned(),
            Message::PublishDataTrackRequest(_)
            | Message::UnpublishDataTrackRequest(_)
            | Message::UpdateDataSubscription(_)
            | Message::StoreDataBlobRequest(_)
            | Message::GetDataBlobRequest(_) => "ignored".to_owned(),
        };
        rows.push(row(
            &format!("`/rtc` {name}"),
            "participant",
            &format!("message {}", rooms::SIGNAL_BYTES),
            "connections take turns",
            &format!(
                "{count}; queue of {} messages, {} bytes per connection",
                rooms::WAITING_REQUESTS,
                rooms::WAITING_REQUEST_BYTES
            ),
        ));
    }
    Some(rows)
}

/// The message with a tag: decoded as an empty message or text, else as a number.
fn signal(tag: u32) -> Option<proto::signal_request::Message> {
    [2u32, 0].into_iter().find_map(|wire_type| {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint((tag << 3 | wire_type).into(), &mut bytes);
        bytes.push(0);
        proto::SignalRequest::decode(&*bytes).ok()?.message
    })
}

/// Messages of agent workers, found as those of participants; `None` if one has no limit.
fn worker_messages() -> Option<Vec<String>> {
    use proto::worker_message::Message;
    let mut rows = Vec::new();
    for tag in 1u8..=0x7f {
        let bytes = [tag.checked_shl(3)? | 2, 0];
        let message = (tag < 16).then(|| proto::WorkerMessage::decode(&bytes[..]).ok());
        let Some(message) = message.flatten().and_then(|read| read.message) else {
            continue;
        };
        let name = format!("{message:?}");
        let name = name.split('(').next()?;
        let count = match message {
            Message::Register(_) => format!(
                "once, within {:?}; {} workers and a party's share of them",
                crate::rooms::dispatch::REGISTRATION,
                rooms::AGENT_WORKERS
            ),
            Message::Availability(_) => format!(
                "an answer to a question about one of {} jobs, within {:?}; metadata and attributes {}",
                rooms::AGENT_JOBS,
                crate::rooms::dispatch::ANSWER,
                rooms::AGENT_TEXT_BYTES
            ),
            Message::MigrateJob(_) => "1,024 ids of jobs".to_owned(),
            Message::UpdateWorker(_) | Message::UpdateJob(_) | Message::Ping(_) => {
                "updates existing state".to_owned()
            }
            Message::SimulateJob(_) => "ignored".to_owned(),
        };
        rows.push(row(
            &format!("`/agent` {name}"),
            "agent worker",
            &format!("message {}", rooms::WORKER_BYTES),
            "–",
            &format!(
                "{count}; {} messages a second, {} at once, further ones wait",
                rooms::WORKER_MESSAGES_PER_SECOND,
                rooms::WORKER_MESSAGES_AT_ONCE
            ),
        ));
    }
    Some(rows)
}

fn room_media() -> Vec<String> {
    let caller = "participant, by its ICE password and DTLS fingerprint";
    vec![
        row(
            "`/rtc` join request in the URL",
            "token of the key pair",
            &format!("{} decompressed", rooms::JOIN_REQUEST_BYTES),
            "–",
            "repeated fields are counted before decoding",
        ),
        row(
            "`/rtc` output to a client that does not read",
            "participant",
            "–",
            "cut, may resume",
            &format!(
                "{} messages, {} bytes; {} per room, {} in total: the client furthest behind is cut first",
                rooms::WAITING_RESPONSES,
                rooms::WAITING_RESPONSE_BYTES,
                rooms::ROOM_WAITING_BYTES,
                rooms::SERVER_WAITING_BYTES
            ),
        ),
        row(
            "`/agent` output to a worker that does not read",
            "agent worker",
            "–",
            "closed within 10 s",
            &format!("{} messages", rooms::WORKER_WAITING),
        ),
        row(
            "UDP of rooms: STUN",
            "anybody",
            "a datagram",
            "–",
            "matched by its user name, else dropped; a response is no larger than its request",
        ),
        row(
            "UDP of rooms: DTLS, SRTP, SRTCP",
            caller,
            "a datagram",
            "–",
            "dropped unless the address pair is known",
        ),
        row(
            "TCP of rooms (ICE-TCP)",
            "anybody",
            "a datagram of 2,048 behind its length",
            &format!(
                "{} s, as what belongs to a participant",
                tcp::UNKNOWN_FOR.as_secs()
            ),
            &format!(
                "{} connections, of which {} that belong to nobody yet, and {} of one peer connection; 64 datagrams wait for each",
                tcp::MOST_CONNECTIONS,
                tcp::MOST_UNKNOWN,
                tcp::MOST_OF_ONE
            ),
        ),
        row(
            "TURN server over UDP",
            "anybody",
            &format!("a datagram of {}", turn::MAX_MESSAGE_BYTES),
            "–",
            &format!(
                "nothing is kept of who has no credentials, and {} answers a second go to such, {} to those of one network; {} allocations, \
                 {} of one party, {} with one name, all to the media port alone",
                turn::ANSWERS_TO_STRANGERS,
                turn::ANSWERS_TO_NETWORK,
                turn::MOST_ALLOCATIONS,
                turn::MOST_OF_PARTY,
                turn::MOST_OF_NAME
            ),
        ),
        row(
            "TURN server over TCP and TLS",
            "anybody",
            &format!("a message of {}", turn::MAX_MESSAGE_BYTES),
            &format!(
                "{} s until an allocation, as long before it for TLS",
                tcp::UNKNOWN_FOR.as_secs()
            ),
            &format!(
                "{} connections, {} with allocations of one party, {} without an allocation",
                tcp::MOST_CONNECTIONS,
                turn::MOST_CONNECTIONS_OF_PARTY,
                tcp::MOST_UNKNOWN
            ),
        ),
        row(
            "UDP of rooms: data channels",
            caller,
            &format!("message {}", rooms::MESSAGE_BYTES),
            "–",
            &format!(
                "{} destinations; a receiver that does not read is disconnected",
                rooms::DESTINATIONS
            ),
        ),
    ]
}

/// The SIP requests in `Allow`; `None` if one has no limit.
fn sip_requests() -> Option<Vec<String>> {
    let mut rows = ALLOW
        .split(',')
        .map(|method| {
            let count = match method.trim() {
                "INVITE" => "`sip.max_calls`, `sip.max_calls_per_room`, `sip.max_unacknowledged_calls`, `sip.max_unacknowledged_calls_per_address`; session description of 16 KiB, 400 lines, 16 sections",
                "ACK" | "CANCEL" | "BYE" => "within an existing call or transaction",
                "OPTIONS" => "one stateless response",
                "INFO" | "NOTIFY" | "UPDATE" | "MESSAGE" | "PRACK" => "within a call",
                _ => return None,
            };
            Some(row(
                &format!("SIP {}", method.trim()),
                "`sip.allowed_addresses`, or within a dialog",
                &format!("head {}, message {}", sip::LARGEST_HEAD, sip::LARGEST),
                "`sip.ack_timeout_seconds`, RFC 3261's timers",
                count,
            ))
        })
        .collect::<Option<Vec<_>>>()?;
    rows.push(row(
        "SIP from other addresses",
        "anybody",
        "as above, 8 KiB",
        "10 s per connection",
        "UDP: short, rate-limited refusals; 100 TCP connections in total",
    ));
    rows.push(row(
        "SIP over WebSocket",
        "telephones of `sip.phones_json`, by digest",
        &format!("message {}, before it has registered 8 KiB", sip::LARGEST),
        "10 s until it has registered, 5 min idle",
        "1,000 connections with those of TCP and TLS, shared by address",
    ));
    Some(rows)
}

fn call_media() -> Vec<String> {
    let caller = "the address in SDP or of signalling, or a proven stream; SRTP by its keys";
    vec![
        row(
            "STUN of calls",
            "who has read our session description: signed with its password",
            "a datagram of 1,500",
            "–",
            "a response is no larger than its request",
        ),
        row(
            "DTLS of calls",
            "the address that a signed check has proven, else that in SDP or of signalling",
            "a datagram of 1,500",
            "40 s for a handshake",
            "one handshake per call; a cookie first",
        ),
        row(
            "RTP of calls",
            caller,
            "a datagram of 1,500",
            "`sip.media_timeout_seconds`",
            "one stream per call; a reorder buffer",
        ),
        row(
            "RTCP of calls",
            caller,
            "a datagram of 1,500",
            "–",
            "one report at a time",
        ),
        row(
            "DTMF (RFC 4733, INFO)",
            caller,
            "4 bytes per event",
            "–",
            "one event per digit, rate-limited",
        ),
    ]
}

fn others() -> Vec<String> {
    vec![
        row(
            "vendors' messages",
            "named by the settings, by TLS",
            "16 MiB",
            "deadlines per vendor",
            "`limits.syntheses_per_provider`, streams per credential",
        ),
        row(
            "Wyoming servers",
            "named by the settings",
            "header 64 KiB, payload 16 MiB",
            "as vendors",
            "one connection per stream",
        ),
        row(
            "programs (flite, espeak-ng, lame, recogniser)",
            "started by the server",
            "pipes, bounded reads",
            "CPU and wall time",
            "memory, files and processes limited by the kernel; one recogniser per core",
        ),
        row(
            "files of models, by `vivavoce models` and `serve --fetch-models`",
            "the catalogue's publishers, and the package index of the machine or the settings; no source is trusted",
            "what the catalogue says; index pages 32 MiB, directories of archives 16 MiB",
            "30 s without a byte",
            "one at a time; kept only with the catalogue's SHA-256",
        ),
        row(
            "language models",
            "`llm.url`, `llm.endpoints_json`; with `llm.allow_client_urls` addresses of callers, public ones by https",
            "a line of 1 MiB; an answer of 256 KiB of text and 32 calls of 64 KiB each; 16 KiB of a refusal",
            "`llm.timeout_seconds` without a byte",
            "one answer of a conversation at a time, four beside it; no redirects",
        ),
        row(
            "authentication service",
            "`auth.service_url`",
            "64 KiB",
            "`auth.timeout_seconds`",
            "256 requests at once, a quarter of them per address",
        ),
        row("settings file", "the operator", "1 MiB", "at start", "–"),
        row(
            "journals, metadata, spool, hooks in `data_dir`",
            "this server",
            "bounded lines and files",
            "at start",
            "unreadable files are left in place and logged",
        ),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_way_in_has_its_bounds_in_the_threat_model() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/threat-model.md");
        let committed = std::fs::read_to_string(file).unwrap();
        let page = super::page(&committed).expect("an entry point has no limit");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(file, &page).unwrap();
            return;
        }
        assert!(
            committed == page,
            "docs/threat-model.md is stale; run UPDATE_DOCS=1 cargo test --lib every_way_in"
        );
    }
}
