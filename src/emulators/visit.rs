//! One connection or request of a client: which faults it gets, and the record of what it did, for tests to count. A
//! vendor's code opens a [`Visit`] first and gets everything else from it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use actix_web::http::StatusCode;
use actix_web::http::header::{HttpDate, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::clock::Timer;
use super::faults::{Effect, Gate, RetryAfter};
use super::wire::Wire;
use super::{Direction, Emulation, Vendor};

/// Connections that the log remembers.
const REMEMBERED: usize = 4_096;
/// Words that the record of one connection holds, in each direction.
const MAX_WORDS: usize = 20_000;
/// Wishes that the record of one connection holds, and the most bytes of each.
const MAX_WISHES: usize = 100;
const MAX_WISH_BYTES: usize = 2_000;
/// Whose client asks for what nobody here answers, and what for.
const UNKNOWN: &str = "unknown";
/// What stands in a record instead of a secret.
const MASKED: &str = "***";

/// What one connection did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Record {
    /// Counts up from 1.
    pub id: u64,
    /// The vendor's slug; `unknown` of a path that no vendor has.
    pub vendor: &'static str,
    /// `stt`, `tts` or `voices`; `unknown` of what is not answered.
    pub direction: &'static str,
    /// The path of the request, or the method of gRPC.
    pub path: String,
    /// The query, decoded, in its order, secrets masked.
    pub query: Vec<(String, String)>,
    /// The headers, names in lower case, secrets masked.
    pub headers: Vec<(String, String)>,
    /// What its messages asked for, beside the query: as they were written, secrets masked.
    pub asked: Vec<String>,
    /// When it was opened, in milliseconds of the emulators' clock.
    pub opened_ms: u64,
    /// How long it lasted, in the same; absent while it is open.
    pub lasted_ms: Option<u64>,
    /// Messages (or requests) from the client.
    pub messages_in: u64,
    /// Bytes in them.
    pub bytes_in: u64,
    /// Messages (or pieces of an answer) to the client.
    pub messages_out: u64,
    /// Bytes in them.
    pub bytes_out: u64,
    /// The words that were recognised, in order.
    pub heard: Vec<String>,
    /// The words that were spoken, in order.
    pub said: Vec<String>,
    /// The faults that it got.
    pub faults: Vec<String>,
    /// What vendor code found worth telling, and how it ended.
    pub notes: Vec<String>,
}

/// The last connections, oldest first.
#[derive(Debug, Default)]
pub struct Log(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    count: u64,
    records: VecDeque<Arc<Mutex<Record>>>,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, mut record: Record) -> Arc<Mutex<Record>> {
        let mut log = self.lock();
        log.count += 1;
        record.id = log.count;
        let record = Arc::new(Mutex::new(record));
        if log.records.len() >= REMEMBERED {
            log.records.pop_front();
        }
        log.records.push_back(Arc::clone(&record));
        record
    }

    /// What every connection that is remembered has done so far.
    pub fn all(&self) -> Vec<Record> {
        let records = self.lock().records.clone();
        records
            .iter()
            .map(|record| locked(record).clone())
            .collect()
    }

    /// Forgets all; connections that are open are not seen any more.
    pub fn clear(&self) {
        self.lock().records.clear();
    }
}

fn locked(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a client is refused, in the vendor's own words to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The status of HTTP: 401 for a key that is missing or bad, else what the fault says.
    pub status: StatusCode,
    /// When to come again.
    pub retry_after: RetryAfter,
}

impl Refusal {
    /// The value of `Retry-After`.
    pub fn retry_after(&self) -> Option<String> {
        match self.retry_after {
            RetryAfter::Absent => None,
            RetryAfter::Seconds(seconds) => Some(seconds.to_string()),
            RetryAfter::Date(seconds) => {
                let date = SystemTime::now().checked_add(Duration::from_secs(seconds))?;
                Some(HttpDate::from(date).to_string())
            }
        }
    }

    /// An answer with this status and `Retry-After`, to be given the vendor's body.
    pub fn response(&self) -> HttpResponseBuilder {
        let mut response = HttpResponse::build(self.status);
        if let Some(retry_after) = self.retry_after() {
            response.insert_header((RETRY_AFTER, retry_after));
        }
        response
    }
}

/// One connection of a client. Clones are the same visit; it is over when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Visit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    emulation: Arc<Emulation>,
    vendor: Vendor,
    direction: Direction,
    opened: Instant,
    effects: Vec<(Duration, Effect)>,
    wire: Option<Wire>,
    record: Arc<Mutex<Record>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let lasted = self.emulation.clock.emulated(self.opened.elapsed());
        locked(&self.record).lasted_ms = Some(lasted.as_millis() as u64);
    }
}

impl Emulation {
    /// Opens the visit of a request, with the faults that are its turn.
    pub fn visit(
        self: &Arc<Self>,
        request: &HttpRequest,
        vendor: Vendor,
        direction: Direction,
    ) -> Visit {
        let headers = headers(request);
        let wire = Wire::of(request);
        self.open(
            vendor,
            direction,
            request.path(),
            request.query_string(),
            headers,
            wire,
        )
    }

    /// The same for what is no request of `actix-web`: gRPC.
    pub fn visit_by<'a>(
        self: &Arc<Self>,
        vendor: Vendor,
        direction: Direction,
        method: &str,
        headers: impl Iterator<Item = (&'a str, String)>,
    ) -> Visit {
        self.open(vendor, direction, method, "", headers, None)
    }

    fn open<'a>(
        self: &Arc<Self>,
        vendor: Vendor,
        direction: Direction,
        path: &str,
        query: &str,
        headers: impl Iterator<Item = (&'a str, String)>,
        wire: Option<Wire>,
    ) -> Visit {
        let effects = self.faults.take(vendor, direction);
        let opened = Instant::now();
        let record = self.log.open(Record {
            vendor: vendor.slug(),
            direction: direction.name(),
            faults: effects
                .iter()
                .map(|(_, effect)| effect.to_string())
                .collect(),
            ..self.record(path, query, headers)
        });
        Visit(Arc::new(Inner {
            emulation: Arc::clone(self),
            vendor,
            direction,
            opened,
            effects,
            wire,
            record,
        }))
    }

    /// Records a request that nothing here answers. It takes no fault's turn: those are for what is answered.
    pub(super) fn unanswered<'a>(
        &self,
        vendor: Option<Vendor>,
        path: &str,
        query: &str,
        headers: impl Iterator<Item = (&'a str, String)>,
        note: &str,
    ) {
        self.log.open(Record {
            vendor: vendor.map_or(UNKNOWN, Vendor::slug),
            direction: UNKNOWN,
            lasted_ms: Some(0),
            messages_in: 1,
            notes: vec![note.to_owned()],
            ..self.record(path, query, headers)
        });
    }

    /// What is recorded of every request when it comes.
    fn record<'a>(
        &self,
        path: &str,
        query: &str,
        headers: impl Iterator<Item = (&'a str, String)>,
    ) -> Record {
        let query = form_urlencoded::parse(query.as_bytes());
        Record {
            path: path.to_owned(),
            query: query
                .map(|(name, value)| masked(&name, value.into_owned()))
                .collect(),
            headers: headers.map(|(name, value)| masked(name, value)).collect(),
            opened_ms: self.clock.emulated(self.started.elapsed()).as_millis() as u64,
            ..Record::default()
        }
    }

    /// Whether this key opens the door: any, or the one that was set; none that begins with `bad`.
    pub fn admits(&self, key: &str) -> bool {
        !key.is_empty()
            && !key.starts_with("bad")
            && self.key.as_deref().is_none_or(|own| own == key)
    }
}

/// The headers of a request, as they are recorded.
pub(super) fn headers(request: &HttpRequest) -> impl Iterator<Item = (&str, String)> {
    request.headers().iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str(), value)
    })
}

/// Whether a secret goes by this name, which is in lower case.
fn is_secret(name: &str) -> bool {
    const SECRET: [&str; 5] = [
        "key",
        "token",
        "authorization",
        "cookie",
        "sec-websocket-protocol",
    ];
    const HARMLESS: [&str; 3] = ["keyterm", "keyword", "sec-websocket-key"];
    SECRET.iter().any(|secret| name.contains(secret))
        && !HARMLESS.iter().any(|harmless| name.contains(harmless))
}

/// A pair of name and value without its secret.
fn masked(name: &str, value: String) -> (String, String) {
    let name = name.to_ascii_lowercase();
    let value = if is_secret(&name) {
        MASKED.to_owned()
    } else {
        value
    };
    (name, value)
}

/// The credential of a header like `Authorization`: what follows the scheme, or everything where there is none.
pub fn credential(value: &str) -> &str {
    let value = value.trim();
    value
        .split_once(' ')
        .map_or(value, |(_, credential)| credential.trim())
}

/// The credential in a header of a request.
pub fn header_credential<'a>(request: &'a HttpRequest, name: &str) -> Option<&'a str> {
    let value = request.headers().get(name)?.to_str().ok()?;
    Some(credential(value)).filter(|credential| !credential.is_empty())
}

impl Visit {
    /// To be asked first, with the client's key where it has sent one: whether the client is let in. A refused one
    /// gets the vendor's own error body.
    pub fn admit(&self, key: Option<&str>) -> Result<(), Refusal> {
        for (_, effect) in &self.0.effects {
            match *effect {
                Effect::Refuse => {
                    self.reset();
                    return Err(self.refused(StatusCode::SERVICE_UNAVAILABLE, RetryAfter::Absent));
                }
                Effect::Status(status, retry_after) => {
                    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
                    return Err(self.refused(status, retry_after));
                }
                _ => {}
            }
        }
        if key.is_some_and(|key| self.0.emulation.admits(key)) {
            Ok(())
        } else {
            Err(self.refused(StatusCode::UNAUTHORIZED, RetryAfter::Absent))
        }
    }

    fn refused(&self, status: StatusCode, retry_after: RetryAfter) -> Refusal {
        self.note(format!("refused with {status}"));
        Refusal {
            status,
            retry_after,
        }
    }

    /// Whose client it is.
    pub fn vendor(&self) -> Vendor {
        self.0.vendor
    }

    /// What it came for.
    pub fn direction(&self) -> Direction {
        self.0.direction
    }

    /// Everything that the visits share.
    pub fn emulation(&self) -> &Arc<Emulation> {
        &self.0.emulation
    }

    /// Changes with every visit; 32 hexadecimal digits, the same for the same number.
    pub fn request_id(&self) -> uuid::Uuid {
        uuid::Uuid::from_u128(
            0x7669_7661_766f_4365_8000_0000_0000_0000 | u128::from(locked(&self.0.record).id),
        )
    }

    /// A timer by the emulators' clock.
    pub fn timer(&self, time: Duration) -> Timer {
        self.0.emulation.clock.timer(Some(time))
    }

    /// The vendor's limit of a stream: its own (`None` is none), or what a fault says. When it goes off, vendor code
    /// says goodbye as the vendor does.
    pub fn stream_limit(&self, own: Option<Duration>) -> Timer {
        let fault = self.effect(|effect| match effect {
            Effect::Limit(time) => Some(*time),
            _ => None,
        });
        self.0.emulation.clock.timer(fault.or(own))
    }

    /// The way out, for what is sent neither by a socket nor as the body of an answer: gRPC.
    pub fn gate(&self) -> Gate {
        Gate::new(
            self.0.emulation.clock,
            self.0.opened,
            self.0.effects.clone(),
        )
    }

    /// The first fault that this makes something of.
    pub(super) fn effect<T>(&self, of: impl Fn(&Effect) -> Option<T>) -> Option<T> {
        self.0.effects.iter().find_map(|(_, effect)| of(effect))
    }

    /// Counts what came from the client. Sockets do it themselves.
    pub fn received(&self, bytes: usize) {
        let mut record = locked(&self.0.record);
        record.messages_in += 1;
        record.bytes_in += bytes as u64;
    }

    /// Counts what went to the client. Sockets and bodies do it themselves.
    pub fn sent(&self, bytes: usize) {
        let mut record = locked(&self.0.record);
        record.messages_out += 1;
        record.bytes_out += bytes as u64;
    }

    /// Puts a remark into the record: no secrets.
    pub fn note(&self, note: impl Into<String>) {
        let mut record = locked(&self.0.record);
        if record.notes.len() < 100 {
            record.notes.push(note.into());
        }
    }

    /// Puts what a message asks for into the record: no secrets.
    pub(super) fn asked(&self, wish: impl Into<String>) {
        let mut record = locked(&self.0.record);
        if record.asked.len() < MAX_WISHES {
            let mut wish = wish.into();
            wish.truncate(wish.floor_char_boundary(MAX_WISH_BYTES));
            record.asked.push(wish);
        }
    }

    /// The same of a message that is an object, whose secrets are masked.
    pub(super) fn asked_by(&self, message: &Value) {
        let mut message = message.clone();
        for (name, value) in message.as_object_mut().into_iter().flatten() {
            if is_secret(&name.to_ascii_lowercase()) {
                *value = MASKED.into();
            }
        }
        self.asked(message.to_string());
    }

    pub(super) fn heard(&self, words: impl IntoIterator<Item = String>) {
        add(&mut locked(&self.0.record).heard, words);
    }

    pub(super) fn said(&self, words: impl IntoIterator<Item = String>) {
        add(&mut locked(&self.0.record).said, words);
    }

    /// Resets the connection now.
    pub(super) fn reset(&self) {
        if let Some(wire) = &self.0.wire {
            wire.reset();
        }
    }

    /// Ends what is sent; the client may still speak.
    pub(super) fn finish(&self) {
        if let Some(wire) = &self.0.wire {
            wire.finish();
        }
    }
}

fn add(words: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    let room = MAX_WORDS.saturating_sub(words.len());
    words.extend(more.into_iter().take(room));
}
