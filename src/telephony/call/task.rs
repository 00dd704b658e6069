//! The task of one call: passes events of SIP, the room and the media to the state machine, and carries out its actions.

use std::future::pending;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, sleep_until, timeout};

use super::super::agent::replaces::DialogId;
use super::super::agent::{Failure, Invitation, Leg, LegEvent, Offered, ReferRequest, allows_info};
use super::super::bridge::{Desk, Elsewhere, Redial, Redialled, Referred, Rooms};
use super::super::ladder::Ladder;
use super::super::media::{CallMedia, MediaEvent, MediaReport};
use super::pin::{PinEntry, Prompt, Step};
use super::referral::{self, Referral};
use super::transfer::BYE_AFTER;
use super::{Call, Input, Outcome, Output, attributes};
use vivavoce_auth::Owner;
use vivavoce_seams::rooms::link::{LinkControl, LinkEvent, LinkEvents, RoomLink, TelephoneKey};
use vivavoce_seams::rooms::telephone::{
    self, AnswerFinding, CallError, CallErrorKind, CallNews, CallStatus, CallTrace, Direction,
    HangupCause, NewsSender, TraceState, TransferTarget, attribute,
};

/// How long the end of a call waits for SIP and the room.
const GOODBYE: Duration = Duration::from_secs(2);
/// Interval at which the media report is refreshed.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Callers that may wait for the outcome of one transfer.
const MOST_WAITING: usize = 16;

/// Gateways whose signalling is kept for one call.
const MOST_LADDERS: usize = 16;

/// Whether a call with this end has failed. Who hangs up, or changes their mind, has not.
const fn has_failed(cause: HangupCause, answered: bool) -> bool {
    match cause {
        HangupCause::Busy
        | HangupCause::Declined
        | HangupCause::NoAnswer
        | HangupCause::NotFound
        | HangupCause::Unauthorized
        | HangupCause::Unreachable
        | HangupCause::Media
        | HangupCause::MediaTimeout
        | HangupCause::Failed => true,
        HangupCause::Local => !answered,
        HangupCause::Remote
        | HangupCause::Cancelled
        | HangupCause::Transferred
        | HangupCause::TooLong
        | HangupCause::Shutdown => false,
    }
}

/// A command to a call.
#[derive(Debug)]
pub enum Command {
    /// Hang up.
    HangUp(HangupCause),
    /// Transfer the call.
    Transfer(TransferRequest),
    /// Put it on hold, or take it off.
    Hold(HoldRequest),
    /// Change attributes of its participant. Told when that is done.
    Describe(Vec<(String, String)>, oneshot::Sender<()>),
    /// This was understood of what its phone has said.
    Heard(String),
    /// Another call takes the place of this one.
    Replace(Box<Invitation>),
}

/// A request to part a call from its room, or to bring the two together again.
#[derive(Debug)]
pub struct HoldRequest {
    /// Whether it is parted; `None` leaves that as it is.
    pub held: Option<bool>,
    /// What the phone hears while it is parted.
    pub sound: Option<Sound>,
    /// Whether it could be done: not before the call is answered.
    pub done: oneshot::Sender<bool>,
}

/// A sound for a phone, mono at 48 kHz.
#[derive(Debug, Clone)]
pub struct Sound {
    /// Its samples.
    pub samples: Arc<[i16]>,
    /// Whether it is played again and again.
    pub repeats: bool,
}

/// A request to transfer a call.
#[derive(Debug)]
pub struct TransferRequest {
    /// The target; a request with the same target joins a transfer that is under way.
    pub to: TransferTarget,
    /// The value of `Refer-To`.
    pub refer_to: String,
    /// How long it may ring there.
    pub ringing: Duration,
    /// Whether the end of the call before the other side has taken the wish is no success.
    pub strict: bool,
    /// Notified when the other side has accepted the REFER.
    pub accepted: oneshot::Sender<()>,
    /// The outcome.
    pub done: oneshot::Sender<Result<(), CallError>>,
}

/// A call as the rest of the bridge sees it.
#[derive(Debug)]
pub struct CallHandle {
    /// `SCL_…`.
    pub sip_call_id: String,
    /// Inbound or outbound.
    pub direction: Direction,
    /// Owner of the room; `None` of inbound calls without tenants.
    pub owner: Option<Owner>,
    /// The host in the SIP URI of an extension.
    pub hostname: String,
    /// When the call began.
    pub began: Instant,
    started: SystemTime,
    /// Commands to its task.
    pub commands: mpsc::Sender<Command>,
    state: Mutex<State>,
}

/// What changes during the call.
#[derive(Debug, Clone)]
struct State {
    /// Its room, which may become another; empty before the caller was let in.
    room: String,
    /// Identity of its participant.
    identity: String,
    status: CallStatus,
    opened: Instant,
    answered: Option<Instant>,
    ended: Option<Instant>,
    media: Option<MediaReport>,
    /// What is seen of its signalling: one for each gateway that it was sent to.
    ladders: Vec<Ladder>,
    /// The status that has refused it.
    refused: Option<u16>,
    /// The dialog of its leg, once that is answered.
    dialog: Option<DialogId>,
    /// The address of the other side.
    peer: Option<IpAddr>,
    /// The trunk that has let it in.
    trunk: Option<String>,
}

impl CallHandle {
    /// A handle, and the receiver of its commands.
    pub fn new(
        sip_call_id: String,
        direction: Direction,
        room: String,
        identity: String,
        owner: Option<Owner>,
        hostname: String,
    ) -> (Arc<Self>, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(MOST_WAITING);
        let began = Instant::now();
        let status = match direction {
            Direction::Inbound => CallStatus::Ringing,
            Direction::Outbound => CallStatus::Dialing,
        };
        let handle = Self {
            sip_call_id,
            direction,
            owner,
            hostname,
            began,
            commands,
            state: Mutex::new(State {
                room,
                identity,
                status,
                opened: began,
                answered: None,
                ended: None,
                media: None,
                ladders: Vec::new(),
                refused: None,
                dialog: None,
                peer: None,
                trunk: None,
            }),
            started: SystemTime::now(),
        };
        (Arc::new(handle), receiver)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The room that it is in now.
    pub fn room(&self) -> String {
        self.state().room.clone()
    }

    /// Whether it is in this room now.
    pub fn is_in(&self, room: &str) -> bool {
        self.state().room == room
    }

    /// Whether its participant has this identity.
    pub fn is_called(&self, identity: &str) -> bool {
        self.state().identity == identity
    }

    /// It has a room from now on.
    pub fn move_into(&self, room: &str, identity: &str) {
        let mut state = self.state();
        room.clone_into(&mut state.room);
        identity.clone_into(&mut state.identity);
    }

    /// Hangs up because the server stops. If the queue of commands is full, the call ends with the server.
    pub fn hang_up_for_shutdown(&self) {
        let hang_up = Command::HangUp(HangupCause::Shutdown);
        let _told = self.commands.try_send(hang_up);
    }

    /// When it ended, if it has.
    pub fn ended(&self) -> Option<Instant> {
        self.state().ended
    }

    /// The state of the call for reports.
    pub fn report(&self, now: Instant) -> telephone::CallReport {
        let state = self.state().clone();
        let answered = state.answered;
        // Media times count from the opening of the ports, others from the answer.
        let since_answer = |ms: Option<u32>| {
            let at = state.opened + Duration::from_millis(ms?.into());
            Some(at.saturating_duration_since(answered?))
        };
        telephone::CallReport {
            sip_call_id: self.sip_call_id.clone(),
            direction: self.direction,
            room: state.room.clone(),
            identity: state.identity.clone(),
            status: state.status,
            age: now.saturating_duration_since(self.began),
            answered_after: answered.map(|at| at.saturating_duration_since(self.began)),
            // Without a negotiated codec there is no media.
            media: state.media.as_ref().and_then(|media| {
                Some(telephone::MediaReport {
                    codec: media.codec?.name(),
                    encrypted: media.encrypted,
                    received: media.packets_in,
                    lost: media.lost_in,
                    jitter_ms: media.jitter_ms.into(),
                    sent: media.packets_out,
                    relayed: media.packets_relayed,
                    lost_there: media.lost_out,
                    first_received: since_answer(media.first_in_ms),
                    first_sent: since_answer(media.first_out_ms),
                })
            }),
        }
    }

    /// Its dialog, once it is answered and while it lasts.
    pub fn dialog(&self) -> Option<DialogId> {
        let state = self.state();
        let is_live = state.status == CallStatus::Active;
        state.dialog.clone().filter(|_| is_live)
    }

    /// A trunk has let it in.
    pub fn came_by(&self, trunk: Option<&str>) {
        self.state().trunk = trunk.map(str::to_owned);
    }

    /// The trunk that has let it in.
    pub fn trunk(&self) -> Option<String> {
        self.state().trunk.clone()
    }

    /// The address that has the other side.
    pub fn peer(&self) -> Option<IpAddr> {
        self.state().peer
    }

    /// What is seen of the signalling of one more dialog of this call.
    fn follows(&self, ladder: Ladder) {
        let mut state = self.state();
        if state.ladders.len() < MOST_LADDERS {
            state.ladders.push(ladder);
        }
    }

    /// Whether it is over, and not because somebody has ended it.
    pub fn has_failed(&self) -> bool {
        let state = self.state();
        let answered = state.answered.is_some();
        state
            .status
            .cause()
            .is_some_and(|cause| has_failed(cause, answered))
    }

    /// What was seen of its signalling.
    pub fn trace(&self, with_messages: bool) -> CallTrace {
        let state = self.state().clone();
        let cause = state.status.cause();
        let failed = cause.is_some_and(|cause| has_failed(cause, state.answered.is_some()));
        let mut messages = Vec::new();
        let mut left_out = 0;
        if with_messages {
            for ladder in &state.ladders {
                let (these, less) = ladder.messages();
                messages.extend(these);
                left_out += less;
            }
        }
        CallTrace {
            id: self.sip_call_id.clone(),
            state: match cause {
                None => TraceState::Live,
                Some(_) if failed => TraceState::Failed,
                Some(_) => TraceState::Ended,
            },
            direction: self.direction,
            owner: self.owner.clone(),
            at: self.started,
            room: state.room,
            identity: state.identity,
            status: state.refused.filter(|_| failed),
            reason: cause.map_or("", HangupCause::as_str).to_owned(),
            times: 1,
            seen: state.ladders.iter().map(Ladder::len).sum(),
            left_out,
            messages,
        }
    }

    /// Its participant is in another room now.
    fn moved(&self, room: String) -> CallNews {
        let status = {
            let mut state = self.state();
            state.room = room;
            state.status
        };
        self.news(status)
    }

    fn news(&self, status: CallStatus) -> CallNews {
        let (room, identity) = {
            let state = self.state();
            (state.room.clone(), state.identity.clone())
        };
        CallNews {
            sip_call_id: self.sip_call_id.clone(),
            direction: self.direction,
            room,
            identity,
            owner: self.owner.clone(),
            status,
            finding: None,
        }
    }

    /// It was found out who has answered.
    fn found(&self, finding: AnswerFinding) -> CallNews {
        let status = self.state().status;
        CallNews {
            finding: Some(finding),
            ..self.news(status)
        }
    }
}

/// The membership of the call's participant in its room.
pub enum Membership {
    /// Joining.
    Joining(oneshot::Receiver<Result<RoomLink, String>>),
    /// Joined; `LinkEvent::Connected` has been read.
    Joined(RoomLink),
    /// Not before the caller has entered a PIN.
    Asking(Box<Desk>),
}

/// What a call's task works with.
pub struct Task {
    /// The state machine.
    pub call: Call,
    /// The SIP side.
    pub leg: Leg,
    /// The media.
    pub media: CallMedia,
    /// The room.
    pub membership: Membership,
    /// Where an outbound call goes if this leg fails.
    pub redial: Option<Redial>,
    /// Calls whom the other side wants in its place.
    pub elsewhere: Elsewhere,
    /// The answer to an inbound call's offer.
    pub answer: Option<String>,
    /// DTMF digits to send after the answer.
    pub dtmf: String,
    /// The shared handle.
    pub handle: Arc<CallHandle>,
    /// Commands from the handle.
    pub commands: mpsc::Receiver<Command>,
    /// Told to keep the room once the caller has proved itself.
    pub rooms: Arc<dyn Rooms>,
    /// Receiver of status changes.
    pub news: NewsSender,
}

/// The room's side of the call.
#[derive(Default)]
struct Room {
    events: Option<LinkEvents>,
    control: Option<LinkControl>,
    joining: Option<oneshot::Receiver<Result<RoomLink, String>>>,
}

/// What woke the task.
enum Woken {
    Leg(Option<LegEvent>),
    Link(Option<LinkEvent>),
    Joined(Result<RoomLink, String>),
    Redialled(Option<Box<Redialled>>),
    Referral(referral::Step),
    Media(MediaEvent),
    Command(Option<Command>),
    Tick,
    Report,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Running {
    task: Task,
    room: Room,
    /// The PIN that is asked for before there is a room.
    pin: Option<(Box<Desk>, PinEntry)>,
    /// The leg that takes the place of one that has failed.
    redialling: Option<oneshot::Receiver<Option<Redialled>>>,
    /// Whom the other side wants in its place.
    referral: Option<Referral>,
    /// Whether the other side has hung up meanwhile.
    left: bool,
    /// Whether media has been negotiated.
    agreed: bool,
    /// Whether it is parted from its room.
    held: bool,
    /// Requests that wait for the current transfer, and its target.
    moving: Option<TransferTarget>,
    refer_to: String,
    accepted: Vec<oneshot::Sender<()>>,
    waiting: Vec<(oneshot::Sender<Result<(), CallError>>, bool)>,
    /// Whether the other side takes INFO.
    info: bool,
    goodbye: Goodbye,
    over: bool,
}

/// What is left to exchange with the other side at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goodbye {
    Nothing,
    /// Wait for the final response to the cancelled INVITE.
    Cancelled,
    Bye,
}

impl Task {
    /// Runs the call to its end.
    pub async fn run(mut self) {
        let mut room = Room::default();
        let mut pin = None;
        let membership = std::mem::replace(
            &mut self.membership,
            Membership::Joining(oneshot::channel().1),
        );
        match membership {
            Membership::Joining(joining) => room.joining = Some(joining),
            Membership::Joined(link) => room.enter(link, &self.media),
            Membership::Asking(desk) => {
                let entry = PinEntry::new(desk.longest_pin(), Instant::now());
                pin = Some((desk, entry));
            }
        }
        let agreed = self.answer.is_some();
        let info = self.leg.takes_info();
        let mut running = Running {
            info,
            task: self,
            room,
            pin,
            redialling: None,
            referral: None,
            left: false,
            agreed,
            held: false,
            moving: None,
            refer_to: String::new(),
            accepted: Vec::new(),
            waiting: Vec::new(),
            goodbye: Goodbye::Nothing,
            over: false,
        };
        let (call, direction) = (
            running.task.handle.sip_call_id.clone(),
            running.task.handle.direction,
        );
        tracing::info!(call, ?direction, "call started");
        running.task.handle.follows(running.task.leg.ladder());
        running.note_dialog();
        running.tell(*running.task.call.status()).await;
        if running.pin.is_some() {
            running.give(Input::Ask).await;
        }
        running.follow().await;
        let cause = running
            .task
            .call
            .status()
            .cause()
            .map_or("", HangupCause::as_str);
        if running.task.handle.has_failed() {
            let status = running.task.handle.state().refused;
            tracing::warn!(call, ?direction, cause, status, "call failed");
        } else {
            tracing::info!(call, ?direction, cause, "call ended");
        }
        Box::pin(running.finish()).await;
    }
}

impl Room {
    fn enter(&mut self, link: RoomLink, media: &CallMedia) {
        media.publish(link.publish);
        self.events = Some(link.events);
        self.control = Some(link.control);
        self.joining = None;
    }

    async fn next(&mut self) -> Woken {
        if let Some(joining) = &mut self.joining {
            let joined = joining.await;
            self.joining = None;
            let gone = |_| Err("the rooms have closed".to_owned());
            return Woken::Joined(joined.unwrap_or_else(gone));
        }
        match &mut self.events {
            Some(events) => Woken::Link(events.next().await),
            None => pending().await,
        }
    }
}

impl Running {
    /// What is done for an event is boxed: the task of a call waits nearly all the time, and takes memory for as long.
    async fn follow(&mut self) {
        let mut reports = interval(REPORT_INTERVAL);
        while !self.over {
            let entry = self.pin.as_ref().map(|(_, entry)| entry.deadline());
            let deadline = self.task.call.deadline().into_iter().chain(entry).min();
            let woken = tokio::select! {
                command = self.task.commands.recv() => Woken::Command(command),
                event = self.task.leg.next() => Woken::Leg(event),
                woken = self.room.next() => woken,
                step = referral::next(&mut self.referral) => Woken::Referral(step),
                redialled = redialled(&mut self.redialling) => Woken::Redialled(redialled),
                event = self.task.media.next_event() => Woken::Media(event),
                () = wait_until(deadline) => Woken::Tick,
                _ = reports.tick() => Woken::Report,
            };
            let input = match woken {
                Woken::Leg(Some(LegEvent::Digit(key)))
                | Woken::Media(MediaEvent::Digit { digit: key, .. }) => {
                    Box::pin(self.on_key(key)).await
                }
                Woken::Leg(event) => Box::pin(self.on_leg(event)).await,
                Woken::Link(event) => self.on_link(event),
                Woken::Joined(joined) => self.on_joined(joined),
                Woken::Referral(step) => self.on_referral(step),
                Woken::Redialled(redialled) => Some(self.on_redialled(redialled)),
                Woken::Media(event) => self.on_media(event),
                Woken::Command(command) => self.on_command(command),
                Woken::Tick => {
                    let now = Instant::now();
                    let step = self.pin.as_mut().map(|(_, entry)| entry.tick(now));
                    match step {
                        None | Some(Step::Wait) => Some(Input::Tick),
                        Some(step) => Box::pin(self.ask(step)).await,
                    }
                }
                Woken::Report => {
                    self.report();
                    None
                }
            };
            if let Some(input) = input {
                let answered = matches!(input, Input::Answered);
                Box::pin(self.give(input)).await;
                // The answer could not be used: there would be no audio.
                if answered && !self.agreed {
                    Box::pin(self.give(Input::NoMedia)).await;
                }
            }
        }
    }

    async fn give(&mut self, input: Input) {
        for output in self.task.call.handle(input, Instant::now()) {
            self.perform(output).await;
        }
    }

    /// A key of the caller's: for the PIN that is asked for, else for the room.
    async fn on_key(&mut self, key: char) -> Option<Input> {
        let now = Instant::now();
        let Some((_, entry)) = &mut self.pin else {
            self.press(key);
            return None;
        };
        let step = entry.press(key, now);
        self.ask(step).await
    }

    /// Goes on asking for the PIN.
    async fn ask(&mut self, step: Step) -> Option<Input> {
        let (desk, entry) = self.pin.as_mut()?;
        match step {
            Step::Wait => None,
            Step::Hush => {
                self.task.media.hush();
                None
            }
            Step::Say(prompt) => {
                say(desk, &self.task.media, prompt).await;
                None
            }
            Step::GiveUp => {
                tracing::warn!(
                    call = self.task.handle.sip_call_id,
                    "a call ends: its caller has not entered the PIN of a dispatch rule"
                );
                Some(Input::HangUp(HangupCause::Unauthorized))
            }
            Step::Try(pin) => {
                self.task.media.hush();
                if let Some(joining) = desk.admit(&pin).await {
                    self.room.joining = Some(joining);
                    self.pin = None;
                    return Some(Input::Admitted);
                }
                let again = entry.refused(Instant::now());
                Box::pin(self.ask(again)).await
            }
        }
    }

    async fn on_leg(&mut self, event: Option<LegEvent>) -> Option<Input> {
        let media = &mut self.task.media;
        let input = match event? {
            LegEvent::Progress { code, sdp } => {
                if let Some(sdp) = sdp {
                    self.agreed |= media.accepted(&sdp).is_ok();
                }
                Input::Progress(code)
            }
            LegEvent::Answered { sdp, headers } => {
                if let Some(sdp) = sdp {
                    self.agreed = media.accepted(&sdp).is_ok();
                }
                self.info = allows_info(&headers);
                self.note_dialog();
                let tag = self.task.leg.remote_tag();
                let mut told = attributes::of_dialog(self.task.leg.call_id(), tag.as_deref());
                // Only headers that the gateway has added: numbers are known already.
                let headers = attributes::of_headers(&headers).into_iter();
                told.extend(headers.filter(|(name, _)| name.starts_with("sip.h.x-")));
                self.tell_attributes(told);
                Input::Answered
            }
            LegEvent::Failed(failure) => {
                if let Failure::Refused { code, .. } | Failure::Redirected { code, .. } = &failure {
                    self.task.handle.state().refused = Some(*code);
                }
                let contacts = match &failure {
                    Failure::Redirected { contacts, .. } => contacts.as_slice(),
                    _ => &[],
                };
                let redial = self.task.redial.as_mut().filter(|_| !contacts.is_empty());
                if redial.is_some_and(|redial| redial.redirect(contacts)) {
                    Input::Redirected
                } else {
                    Input::Failed(failure)
                }
            }
            LegEvent::Cancelled => Input::Cancelled,
            LegEvent::Acknowledged { sdp } => {
                media.acknowledged();
                if let Some((desk, entry)) = &mut self.pin {
                    // Nobody hears it before.
                    say(desk, media, Prompt::EnterPin).await;
                    *entry = PinEntry::new(desk.longest_pin(), Instant::now());
                }
                let (rooms, handle) = (Arc::clone(&self.task.rooms), Arc::clone(&self.task.handle));
                tokio::spawn(async move { rooms.keep(&handle.room()).await });
                if let Some(sdp) = sdp {
                    self.agreed = media.accepted(&sdp).is_ok();
                }
                return (!self.agreed).then_some(Input::NoMedia);
            }
            LegEvent::Unacknowledged => Input::Unacknowledged,
            LegEvent::Offered(offered) => {
                self.renegotiate(*offered);
                return None;
            }
            LegEvent::Notified(notification) => Input::Notified(notification),
            LegEvent::Referred { attempt, code } => Input::Referred { attempt, code },
            LegEvent::Asked(wish) => {
                self.refer(&wish);
                return None;
            }
            LegEvent::Digit(digit) => {
                self.press(digit);
                return None;
            }
            LegEvent::DigitRefused(digit) => {
                // From now on it hears tones.
                self.info = false;
                media.dtmf(digit.encode_utf8(&mut [0; 4]));
                return None;
            }
            // Whoever is called takes its place, or nobody does.
            LegEvent::Ended if self.referral.is_some() => {
                self.left = true;
                return None;
            }
            LegEvent::Ended => Input::Ended,
        };
        Some(input)
    }

    fn renegotiate(&mut self, offered: Offered) {
        let media = &mut self.task.media;
        match &offered.sdp {
            Some(offer) => match media.answer(offer) {
                Ok(answer) => offered.accept(Some(answer)),
                Err(error) => offered.refuse(error.status(), &error.to_string()),
            },
            None if offered.offerless => {
                let offer = media.offer();
                offered.accept(Some(offer));
            }
            None => offered.accept(None),
        }
        // Its address may be another one.
        self.note_dialog();
    }

    fn on_link(&mut self, event: Option<LinkEvent>) -> Option<Input> {
        let Some(event) = event else {
            self.room.events = None;
            return Some(Input::Left);
        };
        let media = &self.task.media;
        match event {
            LinkEvent::Connected { .. } => return Some(Input::Joined),
            LinkEvent::Listened => return Some(Input::Heard),
            LinkEvent::TrackSubscribed {
                identity,
                sid,
                audio,
            } => media.hear(&sid, &identity, audio),
            LinkEvent::TrackUnpublished { sid, .. } => media.forget(&sid),
            LinkEvent::Dtmf { digit, .. } if self.task.call.active() => self.send_digits(&digit),
            LinkEvent::Moved { room } => {
                let news = self.task.handle.moved(room);
                // Who is told late learns it with what comes next.
                let _full = self.task.news.try_send(news);
            }
            LinkEvent::Ended(ending) => {
                tracing::debug!(call = self.task.handle.sip_call_id, %ending, "left the room");
                self.room.events = None;
                return Some(Input::Left);
            }
            _ => {}
        }
        None
    }

    fn on_joined(&mut self, joined: Result<RoomLink, String>) -> Option<Input> {
        match joined {
            Ok(link) => {
                self.room.enter(link, &self.task.media);
                None
            }
            Err(error) => {
                tracing::info!(
                    call = self.task.handle.sip_call_id,
                    error,
                    "no place in a room"
                );
                Some(Input::Left)
            }
        }
    }

    fn on_redialled(&mut self, redialled: Option<Box<Redialled>>) -> Input {
        let Some(redialled) = redialled else {
            return Input::NotRedialled;
        };
        let Redialled {
            leg,
            peer,
            public_only,
            redial,
        } = *redialled;
        if self.task.call.active() {
            // The former one was answered meanwhile.
            leg.cancel();
            return Input::Redialled(false);
        }
        self.task.leg = leg;
        self.task.handle.follows(self.task.leg.ladder());
        self.task.media.redirect(peer);
        self.task.media.public_only(public_only);
        self.agreed = false;
        let more = redial.has_more();
        self.task.redial = Some(redial);
        self.tell_attributes(attributes::of_dialog(self.task.leg.call_id(), None));
        Input::Redialled(more)
    }

    fn on_media(&mut self, event: MediaEvent) -> Option<Input> {
        match event {
            MediaEvent::Digit { digit, .. } => {
                self.press(digit);
                None
            }
            MediaEvent::Silent => Some(Input::Silent),
            MediaEvent::Lost => Some(Input::NoMedia),
            MediaEvent::FirstPacket | MediaEvent::Held(_) => {
                self.report();
                None
            }
            MediaEvent::Found(finding) => {
                self.tell_finding(finding);
                None
            }
        }
    }

    fn tell_finding(&self, finding: AnswerFinding) {
        if let AnswerFinding::Classified(found) = finding {
            tracing::info!(
                call = self.task.handle.sip_call_id,
                result = found.result.as_str(),
                reason = found.reason.as_str(),
                confidence = found.confidence,
                after_ms = found.after_ms,
                "call classified"
            );
        }
        self.tell_attributes(attributes::of_finding(finding));
        let news = self.task.handle.found(finding);
        // It is told in the order in which it happens; where the queue is full it is lost, as it is late by then.
        if self.task.news.try_send(news).is_err() {
            tracing::warn!("who has answered a call is not told: too many news wait");
        }
    }

    /// Sends digits as events; where the other side has negotiated none and takes INFO, by INFO, else as tones.
    fn send_digits(&mut self, digits: &str) {
        if self.info && !self.task.media.sends_events() {
            self.task.leg.info(digits);
        } else {
            self.task.media.dtmf(digits);
        }
    }

    fn press(&self, digit: char) {
        if let (Some(key), Some(control)) = (TelephoneKey::new(digit), &self.room.control)
            && let Err(error) = control.press(key, Vec::new())
        {
            tracing::warn!(call = self.task.handle.sip_call_id, %error, "cannot publish a DTMF digit");
        }
    }

    fn on_command(&mut self, command: Option<Command>) -> Option<Input> {
        match command {
            // All handles are gone.
            None => Some(Input::HangUp(HangupCause::Local)),
            Some(Command::HangUp(cause)) => Some(Input::HangUp(cause)),
            Some(Command::Hold(request)) => {
                self.hold(request);
                None
            }
            Some(Command::Replace(invitation)) => {
                self.replace(*invitation);
                None
            }
            Some(Command::Heard(text)) => {
                self.task.media.words(&text);
                None
            }
            Some(Command::Describe(attributes, done)) => {
                self.tell_attributes(attributes);
                let _told = done.send(());
                None
            }
            Some(Command::Transfer(request)) => {
                let elsewhere = self.moving.as_ref().is_some_and(|to| *to != request.to);
                if elsewhere || self.waiting.len() >= MOST_WAITING {
                    let error = CallError::new(
                        CallErrorKind::Precondition,
                        "another transfer of this call is under way",
                    );
                    let _told = request.done.send(Err(error));
                    return None;
                }
                self.moving = Some(request.to);
                self.refer_to = request.refer_to;
                self.accepted.push(request.accepted);
                self.waiting.push((request.done, request.strict));
                Some(Input::Transfer(request.ringing))
            }
        }
    }

    /// Notes what others may name of the leg.
    fn note_dialog(&self) {
        let leg = &self.task.leg;
        let mut state = self.task.handle.state();
        state.dialog = leg.dialog();
        state.peer = Some(leg.remote_address().ip());
    }

    /// Calls whom the other side wants in its place.
    fn refer(&mut self, wish: &ReferRequest) {
        let is_free = self.task.call.active() && self.referral.is_none() && self.moving.is_none();
        let dialling = is_free.then(|| {
            let offer = self.task.media.offer();
            self.task.elsewhere.call(wish, offer)
        });
        let call = &self.task.handle.sip_call_id;
        match dialling {
            Some(Some(dialling)) => {
                tracing::info!(
                    call,
                    "the other side of a call wants somebody else in its place"
                );
                self.task.leg.notify(wish.id, 100);
                self.referral = Some(Referral::new(wish.id, dialling, Instant::now()));
            }
            Some(None) => {
                tracing::warn!(
                    call,
                    "a call is referred to where it may not go (sip.allowed_hosts, sip.allowed_destinations)"
                );
                self.task.leg.notify(wish.id, 603);
            }
            None => self.task.leg.notify(wish.id, 491),
        }
    }

    fn on_referral(&mut self, step: referral::Step) -> Option<Input> {
        let id = self.referral.as_ref()?.id;
        let code = match step {
            referral::Step::Nothing => return None,
            referral::Step::Failed(code) => code,
            referral::Step::Answered(referred, sdp) => match self.refer_to_answered(*referred, sdp)
            {
                Ok(former) => {
                    self.referral = None;
                    let (mut former, left) = (former, std::mem::take(&mut self.left));
                    if !left {
                        former.notify(id, 200);
                        referral::leave(former, BYE_AFTER);
                    }
                    return None;
                }
                Err(code) => code,
            },
        };
        if let Some(referral) = self.referral.take() {
            referral.cancel();
        }
        if std::mem::take(&mut self.left) {
            return Some(Input::Ended);
        }
        self.task.leg.notify(id, code);
        None
    }

    /// Puts the leg of somebody who has answered in place of the one that there is, which is given back.
    fn refer_to_answered(&mut self, referred: Referred, sdp: Option<String>) -> Result<Leg, u16> {
        let Referred {
            leg,
            peer,
            public_only,
        } = referred;
        let media = &mut self.task.media;
        let accepted = |sdp: String| media.accepted_by_another(&sdp, peer, public_only);
        if sdp.map(accepted) != Some(Ok(())) {
            referral::leave(leg, Duration::ZERO);
            return Err(488);
        }
        Ok(self.take_over(leg))
    }

    /// Goes on with another leg; the former one is given back.
    fn take_over(&mut self, leg: Leg) -> Leg {
        self.info = leg.takes_info();
        let former = std::mem::replace(&mut self.task.leg, leg);
        let leg = &self.task.leg;
        self.task.handle.follows(leg.ladder());
        self.note_dialog();
        let tag = leg.remote_tag();
        self.tell_attributes(attributes::of_dialog(leg.call_id(), tag.as_deref()));
        let call = &self.task.handle.sip_call_id;
        tracing::info!(call, "another leg has taken the place of a call's");
        former
    }

    /// Takes another leg in place of the one that there is, with its media. In the room nothing changes but what is said of the
    /// dialog.
    fn replace(&mut self, invitation: Invitation) {
        if !self.task.call.active() {
            return invitation.refuse(481);
        }
        if self.moving.is_some() || self.referral.is_some() {
            // It may be what the transfer was for: whoever was asked has to end that first.
            return invitation.refuse(491);
        }
        let media = &mut self.task.media;
        let Some(offer) = invitation.offer() else {
            return invitation.refuse_because(488, "it has no offer for the media of the call");
        };
        let encrypted = media.report().encrypted;
        // Whoever it is, the other side has to prove that it is there.
        media.await_acknowledgement();
        let answer = match media.answer_another(&offer, invitation.source(), encrypted) {
            Ok(answer) => answer,
            Err(error) => {
                media.acknowledged();
                return invitation.refuse_because(error.status(), &error.to_string());
            }
        };
        let leg = invitation.take();
        leg.answer(answer);
        referral::leave(self.take_over(leg), Duration::ZERO);
    }

    fn hold(&mut self, request: HoldRequest) {
        let HoldRequest { held, sound, done } = request;
        let possible = self.task.call.active();
        let media = &self.task.media;
        if let Some(held) = held.filter(|_| possible) {
            let is_news = std::mem::replace(&mut self.held, held) != held;
            media.part(held);
            media.hush();
            if is_news {
                let value = if held { "true" } else { "" };
                self.tell_attributes(vec![(attribute::HOLD.to_owned(), value.to_owned())]);
            }
        }
        match sound.filter(|_| self.held) {
            Some(sound) if sound.repeats => media.repeat(sound.samples),
            Some(sound) => media.say(sound.samples),
            None => {}
        }
        let _told = done.send(possible);
    }

    async fn perform(&mut self, output: Output) {
        match output {
            Output::Cancel => {
                self.goodbye = Goodbye::Cancelled;
                self.task.leg.cancel();
            }
            Output::Redial => {
                self.goodbye = Goodbye::Nothing;
                let offer = self.task.media.offer();
                self.redialling = self.task.redial.take().map(|redial| redial.begin(offer));
            }
            Output::Answer => {
                let answer = self.task.answer.take();
                let sdp = answer.unwrap_or_else(|| self.task.media.offer());
                self.task.leg.answer(sdp);
                self.task.media.answered();
            }
            Output::Refuse(code) => {
                self.task.handle.state().refused = Some(code);
                self.task.leg.refuse(code);
            }
            // Sent at the end, while leaving the room.
            Output::Bye => self.goodbye = Goodbye::Bye,
            Output::Status(status) => {
                if status == CallStatus::Active {
                    self.task.handle.state().answered = Some(Instant::now());
                    if let Some(redial) = &self.task.redial {
                        redial.works();
                    }
                    self.task.media.answered();
                    let digits = std::mem::take(&mut self.task.dtmf);
                    self.send_digits(&digits);
                }
                self.tell_attributes(status_attributes(&status));
                self.tell(status).await;
            }
            Output::Refer(attempt) => self.task.leg.refer(attempt, &self.refer_to, &[]),
            Output::MuteRoom(muted) => self.task.media.mute_room(muted),
            Output::TransferAccepted => {
                for accepted in self.accepted.drain(..) {
                    let _told = accepted.send(());
                }
            }
            Output::Transferred(outcome) => self.moved(outcome),
            Output::Over => self.over = true,
        }
    }

    fn moved(&mut self, outcome: Outcome) {
        self.moving = None;
        self.accepted.clear();
        for (waiting, strict) in self.waiting.drain(..) {
            let told = match outcome {
                Outcome::Left if strict => Err(CallError::new(
                    CallErrorKind::NotFound,
                    "the call has ended",
                )),
                outcome => result(outcome),
            };
            let _told = waiting.send(told);
        }
    }

    async fn tell(&mut self, status: CallStatus) {
        self.task.handle.state().status = status;
        let news = self.task.handle.news(status);
        // While the server stops nobody reads it.
        let _told = self.task.news.send(news).await;
    }

    fn tell_attributes(&self, changes: Vec<(String, String)>) {
        if let Some(control) = &self.room.control {
            control.attributes(changes);
        }
    }

    fn report(&self) {
        self.task.handle.state().media = Some(self.task.media.report());
    }

    /// The end: hangs up, leaves the room and reports it.
    async fn finish(mut self) {
        self.report();
        self.task.commands.close();
        while let Ok(command) = self.task.commands.try_recv() {
            if let Command::Replace(invitation) = command {
                invitation.refuse(481);
            }
        }
        if let Some(referral) = self.referral.take() {
            referral.cancel();
        }
        let control = self.room.control.take();
        let leaving = async {
            if let Some(control) = control {
                let _left = timeout(GOODBYE, control.leave()).await;
            }
        };
        let cause = self.task.call.status().cause();
        let unheard = cause == Some(HangupCause::Unreachable);
        let leg = &mut self.task.leg;
        let goodbye = self.goodbye;
        let ending = async {
            match goodbye {
                Goodbye::Nothing => {}
                Goodbye::Cancelled => {
                    while let Some(event) = leg.next().await {
                        if matches!(event, LegEvent::Failed(_)) {
                            break;
                        }
                    }
                }
                // Who has acknowledged nothing may never respond: the line, the ports and the place in the room are free
                // for the next call at once.
                Goodbye::Bye if unheard => leg.hang_up_within(GOODBYE),
                Goodbye::Bye => leg.hang_up().await,
            }
        };
        let _ended = tokio::join!(leaving, timeout(GOODBYE, ending));
        self.task.handle.state().ended = Some(Instant::now());
    }
}

/// The leg that takes the place of one that has failed; never, where there is none.
async fn redialled(
    redialling: &mut Option<oneshot::Receiver<Option<Redialled>>>,
) -> Option<Box<Redialled>> {
    let Some(waiting) = redialling else {
        return pending().await;
    };
    let redialled = waiting.await.ok().flatten();
    *redialling = None;
    redialled.map(Box::new)
}

/// Says a prompt to a caller, if there is anything to say it with.
async fn say(desk: &Desk, media: &CallMedia, prompt: Prompt) {
    match desk.sound(prompt).await {
        Some(sound) => media.say(sound),
        None => tracing::warn!(
            ?prompt,
            "a caller is asked without words: there is no prompt"
        ),
    }
}

fn status_attributes(status: &CallStatus) -> Vec<(String, String)> {
    let name = attribute::CALL_STATUS.to_owned();
    let mut changes = vec![(name, status.as_str().to_owned())];
    if let CallStatus::Hangup(cause) = status {
        changes.push((attribute::CAUSE.to_owned(), cause.as_str().to_owned()));
    }
    changes
}

fn result(outcome: Outcome) -> Result<(), CallError> {
    let error = |kind, message: &str| Err(CallError::new(kind, message));
    match outcome {
        Outcome::Done | Outcome::Left => Ok(()),
        Outcome::Rejected(code) => {
            let message = format!("the other side refused the transfer: SIP status {code}");
            Err(CallError::new(CallErrorKind::Rejected(code), message))
        }
        Outcome::Untold => error(
            CallErrorKind::Unavailable,
            "the other side did not report the outcome of the transfer",
        ),
        Outcome::Timeout => error(CallErrorKind::Timeout, "the transfer timed out"),
        Outcome::NotActive => error(CallErrorKind::Precondition, "the call is not answered yet"),
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => pending().await,
    }
}
