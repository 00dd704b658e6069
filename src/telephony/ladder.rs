//! The ladders of calls: which SIP messages went to and fro, with times and addresses, for those who ask why a call failed.
//! A message is kept as its first line, its CSeq, and what it says of a reason: no other header, so that no password, no key
//! and no body is ever in a ladder. The users of URIs are masked unless the settings say otherwise.
//!
//! Of a call as many messages are kept as fit; calls that a [`Leg`](super::agent::Leg) has are bounded by the number of calls,
//! all others by [`MOST_LOOSE`].

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rsipstack::sip::prelude::HeadersExt as _;
use rsipstack::sip::{Headers, SipMessage as Message};
use rsipstack::transaction::endpoint::MessageInspector;
use rsipstack::transport::SipAddr;

use super::agent::{Protocol, header};
use vivavoce_seams::rooms::telephone::SipMessage;

/// Messages of one ladder: those of its beginning, and the last ones.
const MOST_FIRST: usize = 24;
const MOST_LAST: usize = 40;
/// Ladders of calls that no leg has: they have not begun yet, or are over.
const MOST_LOOSE: usize = 512;
/// Calls whose Call-ID is longer have no ladder.
const MOST_CALL_ID: usize = 256;
/// What is kept of a text of the other side.
const MOST_CHARS: usize = 160;

/// The ladder of one dialog; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Ladder(Arc<Mutex<Steps>>);

#[derive(Debug, Default)]
struct Steps {
    first: Vec<SipMessage>,
    last: VecDeque<SipMessage>,
    left_out: u64,
}

impl Steps {
    fn add(&mut self, message: SipMessage) {
        let same = |known: &&mut SipMessage| {
            known.sent == message.sent
                && known.line == message.line
                && known.cseq == message.cseq
                && known.remote == message.remote
        };
        let mut known = self.last.iter_mut().chain(self.first.iter_mut());
        if let Some(known) = known.find(same) {
            known.times += 1;
            return;
        }
        if self.first.len() < MOST_FIRST {
            return self.first.push(message);
        }
        if self.last.len() >= MOST_LAST {
            self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(message);
    }

    /// Where the other side was heard last.
    fn remote(&self) -> Option<String> {
        let all = self.first.iter().chain(&self.last);
        all.rev()
            .find(|one| !one.sent)
            .map(|one| one.remote.clone())
    }
}

impl Ladder {
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The messages, in order, and how many are left out between the first and the last ones.
    pub fn messages(&self) -> (Vec<SipMessage>, u64) {
        let steps = self.steps();
        let all = steps.first.iter().chain(&steps.last);
        (all.cloned().collect(), steps.left_out)
    }

    /// How many messages it has.
    pub fn len(&self) -> usize {
        let steps = self.steps();
        steps.first.len() + steps.last.len()
    }

    /// Whether it has no message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The ladders by Call-ID; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Ladders {
    table: Arc<Mutex<Table>>,
    shows_users: bool,
}

#[derive(Debug, Default)]
struct Table {
    ladders: HashMap<String, Held>,
    /// Those that no leg has, the oldest first.
    loose: VecDeque<String>,
}

#[derive(Debug, Default)]
struct Held {
    ladder: Ladder,
    legs: usize,
    is_loose: bool,
}

impl Ladders {
    /// Ladders in which the users of URIs are shown, or masked.
    pub fn new(shows_users: bool) -> Self {
        Self {
            shows_users,
            ..Self::default()
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ladder of a call that may begin.
    pub(super) fn open(&self, call_id: &str) -> Ladder {
        if call_id.len() > MOST_CALL_ID {
            return Ladder::default();
        }
        let mut table = self.table();
        if let Some(held) = table.ladders.get(call_id) {
            return held.ladder.clone();
        }
        let held = table.ladders.entry(call_id.to_owned()).or_default();
        let ladder = held.ladder.clone();
        table.loosen(call_id);
        ladder
    }

    /// The ladder of a call that a leg has from now on.
    pub(super) fn claim(&self, call_id: &str) -> Ladder {
        let ladder = self.open(call_id);
        if let Some(held) = self.table().ladders.get_mut(call_id) {
            held.legs += 1;
        }
        ladder
    }

    /// A leg is gone. Its last messages may still come.
    pub(super) fn release(&self, call_id: &str) {
        let mut table = self.table();
        if let Some(held) = table.ladders.get_mut(call_id) {
            held.legs = held.legs.saturating_sub(1);
            if held.legs == 0 {
                table.loosen(call_id);
            }
        }
    }

    /// A message of a call that has a ladder.
    pub(super) fn note(
        &self,
        message: &Message,
        sent: bool,
        protocol: Protocol,
        remote: Option<String>,
    ) {
        let Some(call_id) = call_id(message) else {
            return;
        };
        let ladder = {
            let table = self.table();
            table.ladders.get(call_id).map(|held| held.ladder.clone())
        };
        if let Some(ladder) = ladder {
            self.write(&ladder, message, sent, protocol, remote);
        }
    }

    /// A message of this ladder.
    pub(super) fn write(
        &self,
        ladder: &Ladder,
        message: &Message,
        sent: bool,
        protocol: Protocol,
        remote: Option<String>,
    ) {
        let mut steps = ladder.steps();
        let remote = remote.or_else(|| steps.remote()).unwrap_or_default();
        steps.add(SipMessage {
            at: SystemTime::now(),
            sent,
            transport: protocol.name(),
            remote,
            line: self.line(message),
            cseq: cseq(message),
            note: self.told_with(message),
            times: 1,
        });
    }

    /// The first line. Of a URI what may be a secret is left out: password, parameters and headers.
    fn line(&self, message: &Message) -> String {
        match message {
            Message::Response(response) => {
                let status = response.status_code.code();
                cut(&format!("{status} {}", response.status_code.text()))
            }
            Message::Request(request) => {
                let uri = request.uri.to_string();
                let address = header::Address::parse(&uri);
                let user = address.user().map(|user| self.user(&user));
                let host = request.uri.host_with_port.to_string();
                let tel = uri
                    .get(..4)
                    .is_some_and(|scheme| scheme.eq_ignore_ascii_case("tel:"));
                let uri = match user {
                    Some(user) if tel => format!("tel:{user}"),
                    Some(user) => format!("sip:{user}@{host}"),
                    None => format!("sip:{host}"),
                };
                cut(&format!("{} {uri}", request.method))
            }
        }
    }

    fn user(&self, user: &str) -> String {
        if self.shows_users {
            return user.to_owned();
        }
        masked(user)
    }

    /// What is told with a message.
    fn told_with(&self, message: &Message) -> String {
        let (headers, body) = match message {
            Message::Request(request) => (&request.headers, &request.body),
            Message::Response(response) => (&response.headers, &response.body),
        };
        let mut told = Vec::new();
        let is_sdp = |value: &str| value.to_ascii_lowercase().contains("application/sdp");
        if !body.is_empty() && value(headers, "content-type").is_some_and(is_sdp) {
            told.push("SDP".to_owned());
        }
        for name in ["Reason", "Warning"] {
            if let Some(value) = value(headers, name) {
                let value = if self.shows_users {
                    value.to_owned()
                } else {
                    without_numbers(value)
                };
                told.push(format!("{name}: {value}"));
            }
        }
        cut(&told.join(", "))
    }
}

impl Table {
    /// No leg has it. The oldest of these is forgotten where there are too many.
    fn loosen(&mut self, call_id: &str) {
        let Some(held) = self.ladders.get_mut(call_id) else {
            return;
        };
        if std::mem::replace(&mut held.is_loose, true) {
            return;
        }
        self.loose.push_back(call_id.to_owned());
        while self.loose.len() > MOST_LOOSE {
            let Some(oldest) = self.loose.pop_front() else {
                return;
            };
            match self.ladders.get_mut(&oldest) {
                // A leg has it meanwhile.
                Some(held) if held.legs > 0 => held.is_loose = false,
                _ => drop(self.ladders.remove(&oldest)),
            }
        }
    }
}

/// Notes what an endpoint of the stack sends.
pub(super) struct Sent {
    pub ladders: Ladders,
    pub protocol: Protocol,
}

impl MessageInspector for Sent {
    fn before_send(&self, message: Message, to: Option<&SipAddr>) -> Message {
        let remote = to.map(|to| to.addr.to_string());
        self.ladders.note(&message, true, self.protocol, remote);
        message
    }

    fn after_received(&self, message: Message, _: Option<&SipAddr>) -> Message {
        message
    }
}

fn call_id(message: &Message) -> Option<&str> {
    let call_id = match message {
        Message::Request(request) => request.call_id_header(),
        Message::Response(response) => response.call_id_header(),
    };
    call_id.ok().map(rsipstack::sip::CallId::value)
}

fn cseq(message: &Message) -> String {
    let cseq = match message {
        Message::Request(request) => request.cseq_header(),
        Message::Response(response) => response.cseq_header(),
    };
    cseq.map_or_else(|_| String::new(), |cseq| cut(cseq.value()))
}

fn value<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    let mut headers = headers.iter();
    let found = headers.find(|header| header.name().eq_ignore_ascii_case(name));
    found.map(rsipstack::sip::Header::value)
}

/// A text of the other side, on one line.
fn cut(text: &str) -> String {
    let text = text.chars().take(MOST_CHARS);
    text.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A user of whom the end is shown.
pub fn masked(user: &str) -> String {
    let count = user.chars().count();
    let shown = if count > 4 { 2 } else { 0 };
    std::iter::once('…')
        .chain(user.chars().skip(count - shown))
        .collect()
}

/// A text without what may be a telephone number, or somebody's address.
fn without_numbers(text: &str) -> String {
    let words = text.split_inclusive(|c: char| c.is_whitespace() || "<>\";,".contains(c));
    let mut out = String::new();
    for word in words {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        let numeric = word
            .bytes()
            .all(|c| c.is_ascii_digit() || b"+-.() \";,".contains(&c));
        if word.contains('@') || (digits >= 6 && numeric) {
            out.push_str("… ");
        } else {
            out.push_str(word);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::try_from(text.replace('\n', "\r\n").as_bytes()).unwrap()
    }

    fn invite(call_id: &str) -> Message {
        message(&format!(
            "INVITE sip:+4930123456:s3cret@gw.example:5080;token=s3cret?X=s3cret SIP/2.0\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\n\
             From: <sip:+491701234567@h>;tag=f\nTo: <sip:+4930123456@h>\nCall-ID: {call_id}\nCSeq: 7 INVITE\n\
             Proxy-Authorization: Digest response=\"s3cret\"\nX-Key: s3cret\nContent-Type: application/sdp\n\
             Content-Length: 9\n\na=s3cret\n"
        ))
    }

    #[test]
    fn a_ladder_tells_what_went_where_and_no_secret() {
        for (shows, line) in [
            (false, "INVITE sip:…56@gw.example:5080"),
            (true, "INVITE sip:+4930123456@gw.example:5080"),
        ] {
            let ladders = Ladders::new(shows);
            let ladder = ladders.claim("c");
            let remote = Some("192.0.2.1:5060".to_owned());
            ladders.note(&invite("c"), false, Protocol::Tcp, remote.clone());
            ladders.note(&invite("other"), false, Protocol::Tcp, remote);
            let refused = message(
                "SIP/2.0 488 Not Acceptable Here\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\nFrom: <sip:a@h>;tag=f\nTo: <sip:b@h>;tag=t\n\
                 Call-ID: c\nCSeq: 7 INVITE\nWarning: 304 gw \"no codec for +49301234567, ask bob@gw\"\nContent-Length: 0\n\n",
            );
            ladders.note(&refused, true, Protocol::Tcp, None);
            ladders.note(&refused, true, Protocol::Tcp, None);
            let (messages, left_out) = ladder.messages();
            assert_eq!((messages.len(), left_out), (2, 0));
            assert_eq!(messages[0].line, line);
            assert_eq!(messages[0].note, "SDP");
            assert_eq!(messages[0].cseq, "7 INVITE");
            assert_eq!(messages[1].line, "488 Not Acceptable Here");
            // Answers go where the request came from.
            assert_eq!(
                (&*messages[1].remote, messages[1].times),
                ("192.0.2.1:5060", 2)
            );
            assert!(
                messages[1]
                    .note
                    .starts_with("Warning: 304 gw \"no codec for ")
            );
            assert_eq!(
                messages[1].note.contains("+49301234567"),
                shows,
                "{messages:?}"
            );
            assert!(!format!("{messages:?}").contains("s3cret"), "{messages:?}");
        }
    }

    #[test]
    fn neither_a_long_call_nor_many_of_them_grow_without_end() {
        let ladders = Ladders::default();
        let ladder = ladders.claim("kept");
        for number in 0..1_000 {
            let options = message(&format!(
                "OPTIONS sip:a@h SIP/2.0\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\nFrom: <sip:a@h>;tag=f\nTo: <sip:b@h>;tag=t\n\
                 Call-ID: kept\nCSeq: {number} OPTIONS\nContent-Length: 0\n\n"
            ));
            ladders.note(&options, false, Protocol::Udp, None);
        }
        let (messages, left_out) = ladder.messages();
        assert_eq!(messages.len() as u64 + left_out, 1_000);
        assert_eq!(messages.len(), MOST_FIRST + MOST_LAST);
        assert_eq!(messages.last().unwrap().cseq, "999 OPTIONS");
        for number in 0..10 * MOST_LOOSE {
            ladders.open(&number.to_string());
        }
        assert!(ladders.table().ladders.len() <= MOST_LOOSE + 1);
        assert_eq!(ladders.open("kept").len(), messages.len());
        ladders.release("kept");
        for number in 0..2 * MOST_LOOSE {
            ladders.open(&format!("later {number}"));
        }
        assert!(ladders.open("kept").is_empty());
        ladders.open(&"x".repeat(10_000));
        assert!(ladders.table().ladders.len() <= MOST_LOOSE);
    }
}
