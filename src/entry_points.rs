//! Every way into the server with what it may cost: routes, messages, datagrams, programs and files. The rows of routes come from
//! the route table, those of messages from the types that are parsed, so that what is new and has no bound does not go
//! unnoticed. `docs/threat-model.md` holds the table; bounds that are constants are read from where they are enforced.

use livekit_protocol as proto;
use prost::Message as _;

use crate::actors::session::messages::CLIENT_SCHEMAS;
use crate::http::socket::{MAX_BINARY_BYTES, MAX_EVENTS, MAX_TEXT_BYTES, MAX_WAITING_BYTES};
use crate::rooms::limits as rooms;
use crate::telephony::agent::{bounds as sip, dialog::ALLOW};

/// Where the table stands in the page.
const BEGIN: &str = "<!-- entries -->\n";
const HEAD: &str = "| way in | who | bytes | time | count, memory |\n|---|---|---|---|---|\n";

/// A row: way in, who, bytes, time, count.
fn row(name: &str, who: &str, bytes: &str, time: &str, count: &str) -> String {
    format!("| {name} | {who} | {bytes} | {time} | {count} |")
}

/// The page with the table as the code has it.
pub fn page(text: &str) -> Option<String> {
    let (before, _) = text.split_once(BEGIN)?;
    let mut rows: Vec<String> = crate::http::entries()
        .iter()
        .map(ToString::to_string)
        .collect();
    rows.extend(socket_messages()?);
    rows.extend(signals()?);
    rows.extend(room_media());
    rows.extend(sip_requests()?);
    rows.extend(telephone_media());
    rows.extend(others());
    Some(format!("{before}{BEGIN}\n{HEAD}{}\n", rows.join("\n")))
}

/// Messages of a session's socket; `None` where one has no bound.
fn socket_messages() -> Option<Vec<String>> {
    let who = "whoever opened `/ws`";
    let text = format!("text {MAX_TEXT_BYTES}");
    let time = "`socket.message_timeout_seconds`";
    let row = |name: &str, count: &str| row(&format!("`/ws` {name}"), who, &text, time, count);
    let mut rows = CLIENT_SCHEMAS
        .iter()
        .map(|(name, _)| {
            let count = match *name {
                "config" => "one at a time, later commands wait in order; loading sound 1.92 MB, 10 s; `limits.unconfigured_sockets` before, `limits.sessions` and quotas after",
                "update_config" => "one at a time; quotas of syntheses and recognisers",
                "speak" => "64 utterances and 64 KiB of text wait",
                "clear" | "loading_start" | "loading_stop" => "changes what is there",
                "send_message" => "bounded by the room's data messages",
                "sip_transfer" => "one under way for each telephone participant",
                "hangup" => "ends a call",
                "send_dtmf" => "32 digits a message",
                _ => return None,
            };
            Some(row(&format!("`{name}`"), count))
        })
        .collect::<Option<Vec<_>>>()?;
    rows.push(self::row(
        "`/ws` sound",
        who,
        &format!("binary {MAX_BINARY_BYTES}"),
        time,
        "10 s wait while a `config` is carried out, oldest dropped; `limits.unfinished_message_bytes` over all sockets",
    ));
    rows.push(self::row(
        "`/ws` output to a client that does not read",
        who,
        "–",
        "closed within 2 s",
        &format!(
            "`socket.max_buffered_audio_ms`, {MAX_EVENTS} events; {MAX_WAITING_BYTES} bytes of all sockets: who is furthest behind goes first"
        ),
    ));
    Some(rows)
}

/// Signalling messages of embedded rooms, found by decoding each tag; `None` where one has no bound.
#[expect(deprecated, reason = "older clients still send what is deprecated")]
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
                "{} bytes, {} lines, {} a section before it is parsed; one step at a time, in turn between connections",
                rooms::DESCRIPTION_BYTES,
                rooms::DESCRIPTION_LINES,
                rooms::SECTION_LINES
            ),
            Message::AddTrack(_) => {
                format!("{} tracks of a participant", rooms::TRACKS_PER_PARTICIPANT)
            }
            Message::Subscription(_) | Message::TrackSetting(_) | Message::UpdateLayers(_) => {
                format!(
                    "{} choices of a participant",
                    rooms::CHOICES_PER_PARTICIPANT
                )
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
                "metadata {}, attributes {}, {} in a room; told bytes {} a second",
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
            | Message::UpdateVideoTrack(_) => "changes what is there, or nothing".to_owned(),
            Message::PublishDataTrackRequest(_)
            | Message::UnpublishDataTrackRequest(_)
            | Message::UpdateDataSubscription(_)
            | Message::StoreDataBlobRequest(_)
            | Message::GetDataBlobRequest(_) => "not kept here".to_owned(),
        };
        rows.push(row(
            &format!("`/rtc` {name}"),
            "participant",
            &format!("message {}", rooms::SIGNAL_BYTES),
            "in turn",
            &format!(
                "{count}; {} messages, {} bytes wait of a connection",
                rooms::WAITING_REQUESTS,
                rooms::WAITING_REQUEST_BYTES
            ),
        ));
    }
    Some(rows)
}

/// The message of a tag: as a message or text without content, else as a number.
fn signal(tag: u32) -> Option<proto::signal_request::Message> {
    [2u32, 0].into_iter().find_map(|wire_type| {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint((tag << 3 | wire_type).into(), &mut bytes);
        bytes.push(0);
        proto::SignalRequest::decode(&*bytes).ok()?.message
    })
}

fn room_media() -> Vec<String> {
    let who = "participant, by its ICE password and DTLS fingerprint";
    vec![
        row(
            "`/rtc` join request in the URL",
            "whoever has a token of the key pair",
            &format!("{} unpacked", rooms::JOIN_REQUEST_BYTES),
            "–",
            "counts of repeated fields are looked at before it is decoded",
        ),
        row(
            "`/rtc` output to a client that does not read",
            "participant",
            "–",
            "cut off, may resume",
            &format!(
                "{} messages, {} bytes; {} of a room, {} of the server: who is furthest behind goes first",
                rooms::WAITING_RESPONSES,
                rooms::WAITING_RESPONSE_BYTES,
                rooms::ROOM_WAITING_BYTES,
                rooms::SERVER_WAITING_BYTES
            ),
        ),
        row(
            "UDP of rooms: STUN",
            "anybody",
            "a datagram",
            "–",
            "found by its user name, else dropped; an answer is no larger than what asks",
        ),
        row(
            "UDP of rooms: DTLS, SRTP, SRTCP",
            who,
            "a datagram",
            "–",
            "from a known address pair only, else dropped",
        ),
        row(
            "UDP of rooms: data channels",
            who,
            &format!("message {}", rooms::MESSAGE_BYTES),
            "–",
            &format!(
                "{} destinations; a receiver that does not read loses its connection",
                rooms::DESTINATIONS
            ),
        ),
    ]
}

/// Requests of SIP, those that answers allow; `None` where one has no bound.
fn sip_requests() -> Option<Vec<String>> {
    let mut rows = ALLOW
        .split(',')
        .map(|method| {
            let count = match method.trim() {
                "INVITE" => "`sip.max_calls`, `sip.max_calls_per_room`, `sip.max_unacknowledged_calls`, `sip.max_unacknowledged_calls_per_address`; a description of 16 KiB, 400 lines, 16 sections",
                "ACK" | "CANCEL" | "BYE" => "within a call or transaction that there is",
                "OPTIONS" => "one answer",
                "INFO" | "NOTIFY" | "UPDATE" | "MESSAGE" | "PRACK" => "within a call",
                "REFER" => "refused",
                _ => return None,
            };
            Some(row(
                &format!("SIP {}", method.trim()),
                "`sip.allowed_addresses`, or in a dialog of ours",
                &format!("head {}, message {}", sip::LARGEST_HEAD, sip::LARGEST),
                "`sip.ack_timeout_seconds`, RFC 3261's timers",
                count,
            ))
        })
        .collect::<Option<Vec<_>>>()?;
    rows.push(row(
        "SIP of others",
        "anybody",
        "as above, 8 KiB",
        "10 s a connection",
        "UDP: a short refusal, a bounded number a second; 100 TCP connections in all",
    ));
    Some(rows)
}

fn telephone_media() -> Vec<String> {
    let who = "from the described or signalled address, or proven; SRTP by its keys";
    vec![
        row(
            "RTP of calls",
            who,
            "a datagram of 1,500",
            "`sip.media_timeout_seconds`",
            "one stream a call; a jitter buffer",
        ),
        row(
            "RTCP of calls",
            who,
            "a datagram of 1,500",
            "–",
            "one report at a time",
        ),
        row(
            "DTMF (RFC 4733, INFO)",
            who,
            "4 bytes an event",
            "–",
            "told once for each key",
        ),
    ]
}

fn others() -> Vec<String> {
    vec![
        row(
            "vendors' messages",
            "whom the settings name, by TLS",
            "16 MiB",
            "deadlines of the vendor",
            "`limits.syntheses_per_provider`, streams of a credential",
        ),
        row(
            "Wyoming servers",
            "whom the settings name",
            "header 64 KiB, payload 16 MiB",
            "as of a vendor",
            "one a stream",
        ),
        row(
            "programs (flite, espeak-ng, lame, recogniser)",
            "started by us",
            "pipes, bounded reads",
            "CPU and wall time",
            "memory, files and processes by limits of the kernel; one recogniser a core",
        ),
        row(
            "authentication service",
            "`auth.service_url`",
            "64 KiB",
            "`auth.timeout_seconds`",
            "256 questions at once, a quarter of an address",
        ),
        row(
            "settings file",
            "who starts the server",
            "1 MiB",
            "at start",
            "–",
        ),
        row(
            "journals, metadata, spool, hooks in `data_dir`",
            "this server",
            "bounded lines and files",
            "at start",
            "what cannot be read is left where it is, and said",
        ),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_way_in_has_its_bounds_in_the_threat_model() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/threat-model.md");
        let committed = std::fs::read_to_string(file).unwrap();
        let page = super::page(&committed).expect("a way in has no bound");
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
