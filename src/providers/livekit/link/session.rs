//! A participant of a LiveKit server as a state machine. Inputs are signalling messages, datagrams, the time and the
//! requests of the link; outputs are collected in [`Outputs`]. This file has its phases: connecting, joining, resuming after
//! an interruption, and the end. Offers, tracks and packets are in `media`, sockets in the driver.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use livekit_protocol as proto;
use prost::Message as _;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::signal_request::Message as Ask;
use proto::signal_response::Message as Told;
use str0m::net::Transmit;

use super::pc::{Pc, PcError, Wanted};
use super::request::{Request, Route};
use vivavoce_core::backoff::Backoff;
use vivavoce_rooms::shapes::Shaped as _;
use vivavoce_seams::rooms::link::{Ending, Join, LinkEnd, LinkEvent, TrackWriter};
use vivavoce_seams::rooms::packets::{Inbox, Outbox};
use vivavoce_seams::rooms::view::{self, RoomView};

/// How long the first message may take after the socket opened, as in LiveKit's clients.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);
/// How long media may take after that, and an answer after its offer.
const MEDIA: Duration = Duration::from_secs(15);
/// Attempts to reconnect come so fast at first, and so slowly at last.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(600), Duration::from_secs(7), 0.9);
/// Pings where the server does not say how often.
const PING: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// What may happen before media is up: that somebody listens, and a few mutes.
const MOST_EARLY: usize = 64;

/// What a session is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who joins which room.
    pub join: Join,
    /// The access token.
    pub token: String,
    /// For how long a lost connection is sought before the link ends.
    pub patience: Duration,
}

/// What is to be done outside. Fetched after each input.
#[derive(Default)]
pub struct Outputs {
    /// Encoded `SignalRequest`s, in order.
    pub signals: Vec<Bytes>,
    /// Datagrams.
    pub datagrams: Vec<Transmit>,
    /// The signalling socket is to be opened, instead of the one there is.
    pub dial: Option<Request>,
    /// The signalling socket is to be closed after what is sent.
    pub close: bool,
    /// The room was joined for the first time.
    pub joined: bool,
    /// The link is over; the sockets can go when everything was sent.
    pub over: Option<Ending>,
}

/// Why there is no signalling socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialFailure {
    /// The server does not know the path.
    NoRoute,
    /// It answered, and trying again changes nothing.
    Refused(String),
    /// It did not answer, or cannot at the moment.
    Unreachable(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The driver opens a socket.
    Dialling,
    /// The first message is awaited.
    Opening { until: Instant },
    /// Signalling works.
    Open,
    /// The next attempt is awaited.
    Pausing { until: Instant },
    /// Nothing more.
    Over,
}

/// A lost connection on its way back.
#[derive(Debug)]
pub(super) struct Recovery {
    since: Instant,
    attempts: u32,
    /// Whether the session cannot go on and a new one begins.
    full: bool,
    why: String,
}

/// The published track, as far as it has come.
#[derive(Debug)]
pub(super) struct Publication {
    pub cid: String,
    /// What the server made of it.
    pub info: Option<proto::TrackInfo>,
    /// Muted as the server was last told, or told us.
    pub muted: bool,
}

/// The state of a participant.
pub struct Session {
    pub(super) options: Options,
    addresses: Vec<SocketAddr>,
    /// With two connections, those of the sockets of the other one.
    pub subscriber_addresses: Vec<SocketAddr>,
    pub(super) route: Route,
    pub(super) publisher: Pc,
    pub(super) subscriber: Option<Pc>,
    pub(super) view: RoomView,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) end: LinkEnd,
    pub(super) publication: Option<Publication>,
    /// Changed attributes that the server knows.
    pub(super) attributes: BTreeMap<String, String>,
    /// Which track arrives in which section.
    pub(super) carried: HashMap<str0m::media::Mid, String>,
    pub(super) writers: HashMap<String, TrackWriter>,
    /// What the next offer shall bring about.
    pub(super) wanted: Wanted,
    pub(super) last_offer: Option<proto::SessionDescription>,
    pub(super) last_answer: Option<proto::SessionDescription>,
    pub(super) offered_at: Option<Instant>,
    pub(super) phase: Phase,
    pub(super) recovery: Option<Recovery>,
    ever_joined: bool,
    ever_connected: bool,
    /// What happened before media was up; it is told after it.
    early: Vec<LinkEvent>,
    pub(super) media_by: Option<Instant>,
    heard: Instant,
    ping_at: Instant,
    ping_every: Duration,
    ping_timeout: Duration,
    started: Instant,
    pub(super) wake_at: Instant,
    pub(super) out: Outputs,
}

impl Session {
    /// A session that is about to dial. Its sockets have these addresses.
    pub fn new(options: Options, addresses: Vec<SocketAddr>, end: LinkEnd, now: Instant) -> Self {
        let publisher = Pc::new(&addresses, now);
        let mut session = Self {
            options,
            addresses,
            subscriber_addresses: Vec::new(),
            route: Route::One,
            publisher,
            subscriber: None,
            view: RoomView::default(),
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            end,
            publication: None,
            attributes: BTreeMap::new(),
            carried: HashMap::new(),
            writers: HashMap::new(),
            wanted: Wanted::default(),
            last_offer: None,
            last_answer: None,
            offered_at: None,
            phase: Phase::Dialling,
            recovery: None,
            ever_joined: false,
            ever_connected: false,
            early: Vec::new(),
            media_by: None,
            heard: now,
            ping_at: now + PING,
            ping_every: PING,
            ping_timeout: PING_TIMEOUT,
            started: now,
            wake_at: now,
            out: Outputs::default(),
        };
        session.begin(now);
        session.settle(now);
        session
    }

    /// What is to be done outside since the last time.
    pub fn take_outputs(&mut self) -> Outputs {
        std::mem::take(&mut self.out)
    }

    /// The present token: that of the server's last refresh.
    pub fn token(&self) -> &str {
        &self.options.token
    }

    /// Dials for a new session, with new peer connections.
    fn begin(&mut self, now: Instant) {
        self.publisher = Pc::new(&self.addresses, now);
        self.subscriber = None;
        self.outbox = Outbox::default();
        self.inbox = Inbox::default();
        self.publication = None;
        self.carried.clear();
        self.writers.clear();
        self.last_answer = None;
        self.offered_at = None;
        self.wanted = Wanted::default();
        let mut request = Request {
            route: self.route,
            offer: None,
            resume: None,
        };
        if self.route == Route::One {
            let first = Wanted {
                slots: if self.options.join.audio { 3 } else { 0 },
                channels: true,
                ..Wanted::default()
            };
            request.offer = self.publisher.offer(&first).ok().flatten();
            self.last_offer.clone_from(&request.offer);
        }
        self.phase = Phase::Dialling;
        self.out.dial = Some(request);
    }

    /// The socket is open.
    pub fn opened(&mut self, now: Instant) {
        if self.phase == Phase::Dialling {
            self.heard = now;
            self.phase = Phase::Opening {
                until: now + FIRST_MESSAGE,
            };
        }
    }

    /// There is no socket.
    pub fn dial_failed(&mut self, failure: DialFailure, now: Instant) {
        if self.phase != Phase::Dialling {
            return;
        }
        match failure {
            DialFailure::NoRoute if self.route == Route::One && !self.ever_joined => {
                self.route = Route::Two;
                self.begin(now);
            }
            DialFailure::NoRoute => {
                self.finish(Ending::Refused("this is no LiveKit server".to_owned()), now);
            }
            DialFailure::Refused(why) => self.finish(Ending::Refused(why), now),
            DialFailure::Unreachable(why) => self.trouble(&why, false, now),
        }
        self.settle(now);
    }

    /// The socket was closed, or broke.
    pub fn signal_lost(&mut self, why: &str, now: Instant) {
        if matches!(self.phase, Phase::Opening { .. } | Phase::Open) {
            self.trouble(why, false, now);
            self.settle(now);
        }
    }

    /// The way to the server is lost: it is sought anew, at first with the same session.
    pub(super) fn trouble(&mut self, why: &str, full: bool, now: Instant) {
        if self.phase == Phase::Over {
            return;
        }
        if !self.ever_joined {
            return self.finish(Ending::Network(why.to_owned()), now);
        }
        self.out.close = true;
        self.media_by = None;
        self.offered_at = None;
        let first = self.recovery.is_none();
        let recovery = self.recovery.get_or_insert_with(|| Recovery {
            since: now,
            attempts: 0,
            full: false,
            why: why.to_owned(),
        });
        // A resumption that fails late has had its chance.
        recovery.full |= full;
        if now.saturating_duration_since(recovery.since) >= self.options.patience {
            let why = format!(
                "{}; not found again within {} s",
                recovery.why,
                self.options.patience.as_secs()
            );
            return self.finish(Ending::Network(why), now);
        }
        let pause = pause(recovery.attempts);
        recovery.attempts += 1;
        self.phase = Phase::Pausing { until: now + pause };
        if first && self.ever_connected {
            tracing::info!(why, "a room's connection is lost and sought anew");
            self.tell(vec![LinkEvent::Reconnecting], now);
        }
    }

    fn dial_again(&mut self, now: Instant) {
        if self.recovery.as_ref().is_none_or(|recovery| recovery.full) {
            return self.begin(now);
        }
        self.phase = Phase::Dialling;
        self.out.dial = Some(Request {
            route: self.route,
            offer: None,
            resume: Some(self.view.sid().to_owned()),
        });
    }

    /// A signalling message.
    pub fn signal(&mut self, bytes: &[u8], now: Instant) {
        let Ok(response) = proto::SignalResponse::read(bytes) else {
            return self.signal_lost("a signalling message could not be read", now);
        };
        self.heard = now;
        if let Some(message) = response.message {
            match self.phase {
                Phase::Opening { .. } => self.first(message, now),
                Phase::Open => self.told(message, now),
                Phase::Dialling | Phase::Pausing { .. } | Phase::Over => {}
            }
        }
        self.settle(now);
    }

    fn first(&mut self, message: Told, now: Instant) {
        match message {
            Told::Join(join) => self.joined(join, now),
            Told::Reconnect(reconnect) => self.reconnected(&reconnect, now),
            Told::Leave(leave) => self.leave(&leave, now),
            _ => self.trouble(
                "the server began with something else than a join",
                true,
                now,
            ),
        }
    }

    fn joined(&mut self, join: proto::JoinResponse, now: Instant) {
        let seconds = |value: i32, default| match u64::try_from(value) {
            Ok(value @ 1..) => Duration::from_secs(value),
            _ => default,
        };
        self.ping_every = seconds(join.ping_interval, PING);
        self.ping_timeout = seconds(join.ping_timeout, PING_TIMEOUT);
        self.enter_open(now);
        let events = self.view.joined(join);
        self.tell(events, now);
        if !std::mem::replace(&mut self.ever_joined, true) {
            self.out.joined = true;
        }
        if self.options.join.audio {
            self.announce_track();
        }
        if self.route == Route::Two {
            self.wanted.channels = true;
        }
    }

    fn enter_open(&mut self, now: Instant) {
        self.phase = Phase::Open;
        // A new session has those of the token only; telling a resumed one again does no harm.
        self.attributes.clear();
        self.ping_at = now + self.ping_every;
        self.media_by = Some(now + MEDIA);
    }

    fn announce_track(&mut self) {
        let publication = self.publication.get_or_insert_with(|| Publication {
            cid: format!("agent-{:016x}", fastrand::u64(..)),
            info: None,
            muted: self.end.wishes().muted,
        });
        if publication.info.is_some() {
            return;
        }
        let ask = view::microphone(&publication.cid, publication.muted);
        self.ask(Ask::AddTrack(ask));
    }

    fn reconnected(&mut self, reconnect: &proto::ReconnectResponse, now: Instant) {
        self.enter_open(now);
        self.view.resumed();
        let published = self.publication.iter().filter_map(|publication| {
            Some(proto::TrackPublishedResponse {
                cid: publication.cid.clone(),
                track: Some(publication.info.clone()?),
            })
        });
        let state = proto::SyncState {
            answer: self.last_answer.clone(),
            offer: self.last_offer.clone(),
            subscription: Some(proto::UpdateSubscription {
                track_sids: self.view.asked().map(|(sid, _)| sid.to_owned()).collect(),
                subscribe: true,
                ..Default::default()
            }),
            publish_tracks: published.collect(),
            datachannel_receive_states: self.inbox.states(),
            ..Default::default()
        };
        self.ask(Ask::SyncState(state));
        if self.options.join.audio {
            self.announce_track();
        }
        // With two connections the server does the same for the other one.
        self.wanted.restart = true;
        for message in self
            .outbox
            .after(reconnect.last_message_seq)
            .collect::<Vec<_>>()
        {
            self.publisher.send(message, true);
        }
    }

    fn told(&mut self, message: Told, now: Instant) {
        match message {
            Told::Update(update) => {
                let events = self.view.update(update.participants);
                let view = &self.view;
                self.inbox.retain(|sid| view.knows(sid));
                self.tell(events, now);
            }
            Told::RoomMoved(moved) => {
                if !moved.token.is_empty() {
                    self.options.token.clone_from(&moved.token);
                }
                let events = self.view.moved(moved);
                let view = &self.view;
                self.inbox.retain(|sid| view.knows(sid));
                self.tell(events, now);
            }
            Told::Answer(answer) => self.answered(&answer, now),
            Told::Offer(offer) => self.offered(&offer, now),
            Told::Trickle(trickle) => self.trickled(&trickle),
            Told::TrackPublished(published) => {
                let own = self.publication.as_mut();
                if let Some(own) = own.filter(|own| own.cid == published.cid) {
                    self.wanted.publish = Some(own.cid.clone());
                    own.info = published.track;
                }
            }
            Told::TrackUnpublished(unpublished) => {
                self.publication.take_if(|own| {
                    let sid = own.info.as_ref().map(|info| &info.sid);
                    sid == Some(&unpublished.track_sid)
                });
            }
            Told::TrackSubscribed(_) => self.tell(vec![LinkEvent::Listened], now),
            Told::Mute(mute) => {
                let own = self.publication.as_mut();
                if let Some(own) =
                    own.filter(|own| own.info.as_ref().is_some_and(|info| info.sid == mute.sid))
                    && std::mem::replace(&mut own.muted, mute.muted) != mute.muted
                {
                    self.end.muted_by_server(mute.muted);
                    self.tell(vec![LinkEvent::Muted(mute.muted)], now);
                }
            }
            Told::MediaSectionsRequirement(need) => {
                self.wanted.slots += need.num_audios;
                self.wanted.force = true;
            }
            Told::RefreshToken(token) => self.options.token = token,
            Told::Leave(leave) => self.leave(&leave, now),
            Told::RequestResponse(response) => {
                if let Some(proto::request_response::Request::AddTrack(_)) = response.request {
                    tracing::warn!(
                        message = response.message,
                        "the room takes no track of ours"
                    );
                }
            }
            // Speakers, qualities, rooms, data tracks: nothing here depends on them.
            _ => {}
        }
    }

    fn leave(&mut self, leave: &proto::LeaveRequest, now: Instant) {
        let reason = leave.reason();
        match leave.action() {
            Action::Resume => self.trouble("the server asked to resume", false, now),
            Action::Reconnect => self.trouble("the server asked to start anew", true, now),
            Action::Disconnect if leave.can_reconnect => {
                self.trouble("the server asked to start anew", true, now);
            }
            Action::Disconnect => self.finish(view::ending(reason), now),
        }
    }

    /// Ends the session, and everything that belongs to it.
    pub(super) fn finish(&mut self, ending: Ending, now: Instant) {
        if self.phase == Phase::Over {
            return;
        }
        if ending == Ending::Left || ending == Ending::Overrun {
            let leave = proto::LeaveRequest {
                reason: DisconnectReason::ClientInitiated as i32,
                action: Action::Disconnect as i32,
                ..Default::default()
            };
            self.ask(Ask::Leave(leave));
        }
        self.phase = Phase::Over;
        self.writers.clear();
        self.publisher.close();
        if let Some(subscriber) = &mut self.subscriber {
            subscriber.close();
        }
        self.poll(now);
        self.end.end(ending.clone());
        self.out.close = true;
        self.out.dial = None;
        self.out.over = Some(ending);
    }

    /// Sends a request where there is a socket; what counts is said again after a reconnect.
    pub(super) fn ask(&mut self, message: Ask) {
        if self.phase == Phase::Open {
            let request = proto::SignalRequest {
                message: Some(message),
            };
            self.out.signals.push(request.encode_to_vec().into());
        }
    }

    pub(super) fn tell(&mut self, events: Vec<LinkEvent>, now: Instant) {
        for event in events {
            let told = if self.ever_connected {
                self.end.tell(event)
            } else {
                let room = self.early.len() < MOST_EARLY;
                if room {
                    self.early.push(event);
                }
                room
            };
            if !told {
                return self.finish(Ending::Overrun, now);
            }
        }
    }

    /// A peer connection that cannot go on is replaced with the session.
    pub(super) fn failed(&mut self, error: &PcError, now: Instant) {
        self.trouble(&error.to_string(), true, now);
    }

    /// Media may have come up.
    pub(super) fn check_media(&mut self, now: Instant) {
        if self.phase != Phase::Open || !self.media_is_up() {
            return;
        }
        self.media_by = None;
        if !std::mem::replace(&mut self.ever_connected, true) {
            self.recovery = None;
            let mut events = self.view.connected();
            events.append(&mut self.early);
            self.tell(events, now);
        } else if let Some(recovery) = self.recovery.take() {
            let resumed = !recovery.full;
            self.tell(vec![LinkEvent::Reconnected { resumed }], now);
        }
    }

    /// When [`Self::tick`] is due.
    pub fn deadline(&self) -> Instant {
        let phase = match self.phase {
            Phase::Opening { until } | Phase::Pausing { until } => Some(until),
            Phase::Open => Some(self.ping_at.min(self.heard + self.ping_timeout)),
            Phase::Dialling | Phase::Over => None,
        };
        let offered = self.offered_at.map(|at| at + MEDIA);
        let earliest = [phase, self.media_by, offered].into_iter().flatten().min();
        earliest.map_or(self.wake_at, |at| at.min(self.wake_at))
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.media_time(now);
        let late = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        match self.phase {
            Phase::Pausing { until } if until <= now => self.dial_again(now),
            Phase::Opening { until } if until <= now => {
                self.trouble("the server did not answer", false, now);
            }
            Phase::Open if now.saturating_duration_since(self.heard) >= self.ping_timeout => {
                self.trouble("the server fell silent", false, now);
            }
            Phase::Open if late(self.media_by) => self.trouble("no media came", true, now),
            Phase::Open if late(self.offered_at.map(|at| at + MEDIA)) => {
                self.trouble("the server left an offer unanswered", true, now);
            }
            Phase::Open if self.ping_at <= now => {
                self.ping_at = now + self.ping_every;
                let since = now.saturating_duration_since(self.started).as_millis();
                let timestamp = i64::try_from(since).unwrap_or(i64::MAX);
                self.ask(Ask::PingReq(proto::Ping { timestamp, rtt: 0 }));
            }
            _ => {}
        }
        self.settle(now);
    }
}

/// Before the next attempt. The first is made at once.
fn pause(attempts: u32) -> Duration {
    match attempts {
        0 => Duration::ZERO,
        more => BACKOFF.delay(more - 1, fastrand::f64()),
    }
}
