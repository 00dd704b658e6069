//! Reads the messages of a client: text is parsed and queued for the actor, audio goes to the audio input by a plain call.
//! Called from the socket's task, one message after another; nothing here waits.

use actix::prelude::SendError;
use actix::{Addr, Recipient};
use bytes::Bytes;
use bytestring::ByteString;
use serde_json::json;

use super::audio_input::{AudioInput, InputRefused};
use super::given::{FORMAT, GiveAway, GivenSession, TakeOver};
use super::listening::accepted;
use super::message_rate::{MessageRate, PER_SECOND};
use super::misuse::{self, Misuse, SoundWatch};
use super::playback::Speak;
use super::protocol::{
    ClientMessage, ErrorCode, Origin, Resume, ServerMessage, SessionConfig, UnknownField,
    WarningCode, unknown_fields,
};
use super::state::Command;
use super::state::config::MAX_SAID_BYTES;
use super::{Expel, FromClient, Resumed, SessionActor, SocketClosed, SocketLost};
use crate::registry::resumes::{NoSession, Resumes, ResumingSocket};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, Span};
use vivavoce_audio::Encoding;
use vivavoce_auth::{Access, Pass};
use vivavoce_core::dialect::Dialect;
use vivavoce_replicas::{self as replicas, Absent, Handshake, Passage, Replicas};
use vivavoce_seams::ProviderTable;
use vivavoce_socket::{
    Closed, ClosedBy, DetachedSocket, FromClient as FromSocket, MOVES, Relay, Relayed, SUPERSEDED,
    SocketHandler, SocketWriter, relay,
};
use vivavoce_telemetry::metrics;

/// The socket of a session: that with which it began, or one that came later and passes on what its client sends.
pub enum SessionSocket {
    First(Box<SessionSocketHandler>),
    Later {
        relay: Relay,
        writer: SocketWriter,
        /// Ends the session with the token of this socket.
        _watch: Option<Watch>,
    },
    /// Its session runs at another replica, which authenticates the client itself.
    Elsewhere {
        relay: Relay,
        writer: SocketWriter,
        closed: Rc<RefCell<Option<Closed>>>,
    },
}

/// Ends a session when the token of a socket is no longer valid.
pub struct Watch {
    session: Rc<RefCell<Recipient<Expel>>>,
    _task: AbortOnDropHandle<()>,
}

impl Watch {
    pub fn begin(pass: Pass, session: Recipient<Expel>) -> Self {
        let session = Rc::new(RefCell::new(session));
        let watched = Rc::clone(&session);
        let watching = async move {
            let why = pass.await.reason();
            // Once for each socket.
            watched.borrow().do_send(Expel(why));
        };
        let task = tokio::task::spawn_local(watching.in_current_span());
        Self {
            session,
            _task: AbortOnDropHandle::new(task),
        }
    }
}

/// What the handler of a socket needs to go on with a session, its own or that of another socket.
pub struct Resumption {
    pub sessions: Arc<Resumes>,
    /// Sockets that come for the session.
    pub sockets: mpsc::Receiver<Box<ResumingSocket>>,
    /// How long the session waits for one.
    pub within: Duration,
    pub access: Access,
    /// Whether there is a place for a session of its own.
    pub may_begin: bool,
    /// Where sessions of other replicas are found.
    pub elsewhere: Option<Elsewhere>,
    /// Whether a replica has opened the socket that takes the session where that may be given away.
    pub takes: bool,
}

/// How a socket goes on at another replica.
pub struct Elsewhere {
    pub replicas: Arc<Replicas>,
    pub handshake: Handshake,
    /// The server waits for the socket when it stops …
    pub work: TaskTrackerToken,
    /// … until this is cancelled.
    pub closing: CancellationToken,
}

/// How much of a text is shown to whoever watches a session.
const MAX_SHOWN_BYTES: usize = 2_000;

/// The most things of which one session is warned.
const MAX_WARNINGS: usize = 64;

/// What a voice does with tags in a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Tags {
    /// It says them as words.
    #[default]
    Said,
    /// The same, but it takes SSML that is said to be that.
    SaidUnlessSsml,
    /// They are instructions.
    Taken,
}

/// What is known of a client, to tell it of its mistakes.
#[derive(Default)]
struct Mistakes {
    /// About as much is a second of the session's output.
    output_bytes_per_second: u32,
    /// Whether unknown fields are refused.
    strict: bool,
    sound: SoundWatch,
    tags: Tags,
    /// Whether text waits for more of its utterance.
    writing: bool,
    /// What was warned of: each thing is told once.
    warned: HashSet<String>,
}

impl Mistakes {
    /// How long about so much of the session's output is.
    fn duration_of(&self, bytes: u64) -> Duration {
        let milliseconds = 1_000 * bytes / u64::from(self.output_bytes_per_second.max(1));
        Duration::from_millis(milliseconds)
    }
}

/// The handler of one session's socket.
pub struct SessionSocketHandler {
    session: Addr<SessionActor>,
    audio_input: AudioInput,
    writer: SocketWriter,
    providers: Arc<ProviderTable>,
    dialect: Arc<Dialect>,
    configs: u64,
    rate: MessageRate,
    mistakes: Mistakes,
    resumption: Resumption,
    watch: Option<Watch>,
    /// Whether a message has come.
    has_begun: bool,
    /// Whether what comes was said before, to another server.
    is_told_again: bool,
    /// The span of the session's log lines.
    span: Span,
}

impl SessionSocket {
    pub fn new(
        session: Addr<SessionActor>,
        audio_input: AudioInput,
        writer: SocketWriter,
        (providers, dialect): (Arc<ProviderTable>, Arc<Dialect>),
        span: Span,
        (resumption, watch): (Resumption, Option<Watch>),
    ) -> Self {
        Self::First(Box::new(SessionSocketHandler {
            session,
            audio_input,
            writer,
            providers,
            dialect,
            configs: 0,
            rate: MessageRate::default(),
            mistakes: Mistakes::default(),
            resumption,
            watch,
            has_begun: false,
            is_told_again: false,
            span,
        }))
    }
}

impl SessionSocket {
    /// Takes messages at any rate.
    pub(super) const fn take_any_rate(&mut self) {
        if let Self::First(handler) = self {
            handler.rate = MessageRate::UNLIMITED;
        }
    }
}

impl SocketHandler for SessionSocket {
    fn text(&mut self, text: ByteString) {
        match self {
            Self::First(handler) => match handler.resumes(&text) {
                None => handler.text(&text),
                Some(GoesOn::Here(later)) => *self = later,
                Some(GoesOn::Elsewhere(going)) => {
                    let elsewhere = going.socket();
                    if let Self::First(handler) = std::mem::replace(self, elsewhere) {
                        tokio::task::spawn_local(going.run(handler).in_current_span());
                    }
                }
            },
            Self::Later { relay, writer, .. } | Self::Elsewhere { relay, writer, .. } => {
                pass_on(relay, writer, FromSocket::Text(text));
            }
        }
    }

    fn binary(&mut self, bytes: Bytes) {
        match self {
            Self::First(handler) => {
                handler.has_begun = true;
                handler.binary(bytes);
            }
            Self::Later { relay, writer, .. } | Self::Elsewhere { relay, writer, .. } => {
                pass_on(relay, writer, FromSocket::Binary(bytes));
            }
        }
    }

    /// A later socket's session learns of it by the end of its relay.
    fn closed(self, closed: Closed) {
        match self {
            Self::First(handler) => handler.closed(&closed),
            Self::Later { .. } => {}
            Self::Elsewhere { closed: told, .. } => *told.borrow_mut() = Some(closed),
        }
    }
}

fn pass_on(relay: &Relay, writer: &SocketWriter, message: FromSocket) {
    if !relay.pass_on(message) {
        writer.close(1013, "messages come faster than the session takes them");
    }
}

/// What a socket looks for at another replica.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Session,
    Room,
}

/// How a socket goes on whose session is not the one that began with it.
enum GoesOn {
    /// With a session of this server.
    Here(SessionSocket),
    Elsewhere(Box<Going>),
}

/// A socket on its way to another replica.
struct Going {
    elsewhere: Elsewhere,
    replica: String,
    wanted: Wanted,
    /// The message that says so, and what it says where it is about a session.
    first: ByteString,
    resume: Option<Resume>,
    plug: DetachedSocket,
    /// Where the client's messages go meanwhile; taken by its socket.
    relay: Cell<Option<Relay>>,
    input: Relayed,
    closed: Rc<RefCell<Option<Closed>>>,
}

/// What the first message of a socket says about where it goes on.
enum First {
    /// At the session of another socket.
    Resume(Resume),
    /// At another replica, which has the room.
    At(String),
    Here,
}

/// Whether a client whose socket has ended like this may come back.
fn may_come_back(closed: &Closed) -> bool {
    match closed.by {
        ClosedBy::Transport => true,
        ClosedBy::Client => matches!(closed.code, 1001 | 1006 | 1011 | 1012),
        // Nothing was heard from it.
        ClosedBy::Edge => closed.code == 4409,
        ClosedBy::Server => matches!(closed.code, SUPERSEDED | MOVES),
    }
}

impl SessionSocketHandler {
    /// Whether this socket has come for the session of another one, or for a room elsewhere.
    fn resumes(&mut self, text: &ByteString) -> Option<GoesOn> {
        if self.has_begun {
            return None;
        }
        let resume = match self.first(text) {
            First::Resume(resume) => resume,
            First::At(replica) => {
                self.has_begun = true;
                return self.goes_elsewhere(text, replica, None);
            }
            First::Here => {
                self.has_begun = true;
                self.resumption.elsewhere = None;
                return None;
            }
        };
        let Resumption {
            sessions, access, ..
        } = &self.resumption;
        let Ok(found) = sessions.find(&resume.token, access) else {
            self.has_begun = true;
            let elsewhere = self.resumption.elsewhere.as_ref()?;
            let replica = elsewhere.replicas.other_of(&resume.token)?.to_owned();
            return self.goes_elsewhere(text, replica, Some(resume));
        };
        let plug = self.writer.unplug()?;
        let writer = plug.writer();
        let (relay, input) = relay();
        // What is left of the one before, which its session learns before it takes this one.
        found.writer.supersede();
        let resuming = ResumingSocket {
            socket: Some(plug),
            token: resume.token,
            last_event: resume.last_event,
            received_bytes: resume.received_bytes,
            takes: self.resumption.takes,
            input,
        };
        // One that cannot be taken says so itself.
        let _refused = found.resuming_sockets.try_send(Box::new(resuming));
        let watch = self.watch.take();
        if let Some(watch) = &watch {
            watch.session.replace(found.expel);
        }
        Some(GoesOn::Here(SessionSocket::Later {
            relay,
            writer,
            _watch: watch,
        }))
    }

    fn first(&self, text: &ByteString) -> First {
        let respelled = self.dialect.config(text);
        let text = respelled.as_deref().unwrap_or(text);
        match ClientMessage::parse(text.as_bytes()) {
            Ok(ClientMessage::Resume(resume)) => First::Resume(resume),
            Ok(ClientMessage::Config(wanted)) => {
                let elsewhere = self.resumption.elsewhere.as_ref();
                let replica = elsewhere.zip(wanted.params.rtc.as_ref());
                let replica = replica
                    .and_then(|(elsewhere, room)| elsewhere.replicas.with_room(&room.room_name));
                replica.map_or(First::Here, |replica| First::At(replica.to_owned()))
            }
            _ => First::Here,
        }
    }

    /// The socket goes on at another replica, where its session or room is.
    fn goes_elsewhere(
        &mut self,
        text: &ByteString,
        replica: String,
        resume: Option<Resume>,
    ) -> Option<GoesOn> {
        let elsewhere = self.resumption.elsewhere.take()?;
        let plug = self.writer.unplug()?;
        let (relay, input) = relay();
        let wanted = match resume {
            Some(_) => Wanted::Session,
            None => Wanted::Room,
        };
        Some(GoesOn::Elsewhere(Box::new(Going {
            elsewhere,
            replica,
            wanted,
            first: text.clone(),
            resume,
            plug,
            relay: Cell::new(Some(relay)),
            input,
            closed: Rc::default(),
        })))
    }

    /// Begins the session anew that another server has given away, and stays with it.
    async fn take_over(
        mut self: Box<Self>,
        given: GivenSession,
        going: (Resume, DetachedSocket, Relayed),
    ) {
        let GivenSession { given, sent, .. } = given;
        let (resume, plug, mut input) = going;
        self.writer.take_sent(sent);
        self.audio_input.begin_at(given.heard());
        let (last_event, received) = (resume.last_event, resume.received_bytes);
        let lost = match self.writer.attach(plug, last_event, received) {
            Ok(lost) => self.mistakes.duration_of(lost),
            Err((cannot, plug)) => return cannot_resume(plug, &cannot.to_string()),
        };
        tracing::debug!("a session of another server goes on here");
        metrics::session_taken_over();
        let messages: Vec<String> = given.messages().collect();
        let token = resume.token.clone();
        // Once for each socket, like what follows.
        self.session.do_send(TakeOver { given, token });
        self.session.do_send(Resumed { lost });
        self.is_told_again = true;
        for message in messages {
            self.text(&message.into());
        }
        self.is_told_again = false;
        self.listen(&resume.token, &mut input).await;
        if self.may_stay() {
            self.stay().await;
        }
    }

    /// Waits for the client to come back, as often as it does in time.
    async fn stay(mut self: Box<Self>) {
        loop {
            // Once for each socket.
            self.session.do_send(SocketLost);
            let within = self.resumption.within;
            let Ok(Some(resuming)) = timeout(within, self.resumption.sockets.recv()).await else {
                tracing::debug!("a client has not come back");
                return;
            };
            if !self.come_back(resuming).await || !self.may_stay() {
                return;
            }
        }
    }

    /// Whether the client may come back whose socket has just ended.
    fn may_stay(&self) -> bool {
        let closed = self.writer.closed();
        closed.is_some_and(|closed| may_come_back(&closed))
    }

    fn refuse(&self, origin: &Origin, code: ErrorCode, message: impl Into<String>) {
        let message = self.dialect.sentence(message.into());
        let refusal = ServerMessage::refusal(code, message);
        self.writer.error(refusal.answering(origin).to_json());
    }

    /// Warns of `what`, once.
    fn warn(&mut self, what: &str, origin: &Origin, code: WarningCode, message: String) {
        if self.mistakes.warned.len() >= MAX_WARNINGS
            || !self.mistakes.warned.insert(what.to_owned())
        {
            return;
        }
        self.tell_warning(origin, code, message);
    }

    fn tell_warning(&self, origin: &Origin, code: WarningCode, message: String) {
        let warning = ServerMessage::Warning {
            message,
            code,
            in_reply_to: origin.message,
            id: origin.id.clone(),
        };
        self.writer.event(warning.to_json());
    }

    /// Fields that have no effect: an error where the client wants it so, else a warning.
    fn look_at_fields(&mut self, origin: &Origin, text: &[u8], strict: bool) -> Result<(), String> {
        let unknown = unknown_fields(origin.message.unwrap_or_default(), text);
        let names: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        if strict && !names.is_empty() {
            let names = names.join(", ");
            return Err(format!(
                "{names}: there is no such field, and config said strict"
            ));
        }
        if self.mistakes.warned.len() >= MAX_WARNINGS {
            return Ok(());
        }
        let is_new = |field: &&UnknownField| !self.mistakes.warned.contains(&field.path);
        let news: Vec<String> = unknown
            .iter()
            .filter(is_new)
            .map(ToString::to_string)
            .collect();
        if !news.is_empty() {
            let paths = unknown.into_iter().map(|field| field.path);
            let room = MAX_WARNINGS.saturating_sub(self.mistakes.warned.len());
            self.mistakes.warned.extend(paths.take(room));
            let message = format!("fields without effect: {}", news.join(", "));
            self.tell_warning(origin, WarningCode::UnknownFields, message);
        }
        Ok(())
    }

    /// What a text would not do as it was probably meant.
    fn look_at_text(&mut self, origin: &Origin, speak: &Speak) {
        let is_plain = speak.ssml.is_none();
        if is_plain && self.mistakes.tags != Tags::Taken && misuse::has_markup(&speak.text) {
            let message = if self.mistakes.tags == Tags::SaidUnlessSsml {
                "text: tags are said as words; send a whole document, with text_type \"ssml\", or the text without them"
            } else {
                "text: this voice says tags as words; send the text without them"
            };
            let code = WarningCode::MarkupAsText;
            self.warn("markup", origin, code, message.to_owned());
        }
        let is_whole = speak.flush && !self.mistakes.writing;
        let is_blank = speak.text.trim().is_empty();
        if is_plain && is_whole && !is_blank && !misuse::is_speakable(&speak.text) {
            let message = "text: there is nothing in it that a voice could say; send words";
            let code = WarningCode::NothingToSay;
            self.warn("nothing to say", origin, code, message.to_owned());
        }
        self.mistakes.writing = !speak.flush;
    }

    fn look_at_config(&mut self, wanted: &SessionConfig) {
        self.mistakes.output_bytes_per_second = wanted.params.tts.as_ref().map_or(0, |speech| {
            let layout = speech.format.layout;
            match speech.format.encoding {
                Encoding::Linear16 => 2 * layout.rate.hz(),
                _ => layout.rate.hz() / 8,
            }
        });
        if let Some(listen) = &wanted.params.stt {
            self.mistakes.sound.expect(listen.format);
        }
        let speech = wanted.params.tts.as_ref();
        let voice = speech.and_then(|speech| self.providers.text_to_speech(&speech.provider));
        self.mistakes.tags = match voice {
            Some(voice) if voice.takes_tags() => Tags::Taken,
            Some(voice) if voice.takes_ssml().is_some() => Tags::SaidUnlessSsml,
            _ => Tags::Said,
        };
    }
}

impl SessionSocketHandler {
    /// Goes on with a socket until it has gone; `false` where it does not fit.
    async fn come_back(&mut self, mut resuming: Box<ResumingSocket>) -> bool {
        let Some(plug) = resuming.socket.take() else {
            return false;
        };
        if !self.session.connected() {
            cannot_resume(plug, "the session has ended");
            return false;
        }
        if resuming.takes
            && let Some(given) = self.give_away().await
        {
            tracing::debug!("a session is given to another server");
            plug.end_with(given.to_json(), 1000, "");
            return false;
        }
        let (last_event, received) = (resuming.last_event, resuming.received_bytes);
        let lost = match self.writer.attach(plug, last_event, received) {
            Ok(lost) => self.mistakes.duration_of(lost),
            Err((cannot, plug)) => {
                cannot_resume(plug, &cannot.to_string());
                return false;
            }
        };
        tracing::debug!("a client has come back");
        metrics::session_resumed();
        // The token of the socket that comes is watched with it.
        self.watch = None;
        // Once for each socket.
        self.session.do_send(Resumed { lost });
        self.listen(&resuming.token, &mut resuming.input).await;
        true
    }

    /// Takes what comes of a socket that has come with this token, until that has gone.
    async fn listen(&mut self, token: &str, input: &mut Relayed) {
        let mut is_known = false;
        while let Some(message) = input.next().await {
            // It may have sent this before the next token came; then it has lost a chance, and nothing else.
            if !std::mem::replace(&mut is_known, true) {
                self.resumption.sessions.use_up(token);
            }
            match message {
                FromSocket::Text(text) => self.text(&text),
                FromSocket::Binary(bytes) => self.binary(bytes),
            }
        }
    }

    /// The session, where it goes on at the server that asks for it; it has ended here, then.
    async fn give_away(&self) -> Option<GivenSession> {
        let (told, given) = oneshot::channel();
        // Once for each socket.
        self.session.do_send(GiveAway { told });
        let given = given.await.ok()??;
        let sent = self.writer.sent_state()?;
        Some(GivenSession::new(given, sent))
    }
}

/// Whether this is what every socket of a draining server is told.
fn is_draining(text: &str) -> bool {
    text.starts_with(r#"{"type":"draining""#)
}

impl Going {
    /// What the client's socket is meanwhile.
    fn socket(&self) -> SessionSocket {
        // Asked once; another one would pass nothing on.
        let relay = self.relay.take().unwrap_or_else(|| relay().0);
        SessionSocket::Elsewhere {
            relay,
            writer: self.plug.writer(),
            closed: Rc::clone(&self.closed),
        }
    }

    /// Opens a socket there, and carries on with what it is: that of the session, or the session itself, which goes on here.
    async fn run(self: Box<Self>, handler: Box<SessionSocketHandler>) {
        let Self {
            elsewhere,
            replica,
            wanted,
            first,
            resume,
            plug,
            input,
            closed,
            relay: _,
        } = *self;
        let Elsewhere {
            replicas,
            handshake,
            work: _work,
            closing,
        } = elsewhere;
        let may_take = handler.resumption.may_begin && replicas.takes_from(&replica);
        let takes = resume.filter(|_| may_take);
        let format = takes.as_ref().map(|_| FORMAT);
        let opened = match replicas.open(&replica, handshake, format).await {
            Ok(stream) => Passage::open(stream, first).await.map_err(|_| Absent::Late),
            Err(why) => Err(why),
        };
        let mut passage = match opened {
            Ok(passage) => passage,
            Err(why) if wanted == Wanted::Session && !why.is_busy() => {
                return cannot_resume(plug, &why.to_string());
            }
            Err(why) if wanted == Wanted::Session => {
                return plug.writer().close(1013, why.to_string());
            }
            // Later there is a place, or the room begins anew.
            Err(_) => {
                let problem = "the server that has the room cannot be asked; try again";
                return plug.writer().close(1013, problem);
            }
        };
        let writer = plug.writer();
        if let Some(resume) = takes {
            let answer = tokio::select! {
                answer = passage.answer(is_draining, GivenSession::read) => answer,
                () = closing.cancelled() => return writer.close(1001, "the server is stopping"),
            };
            if let Some(given) = answer {
                drop(passage);
                return handler.take_over(given, (resume, plug, input)).await;
            }
        }
        drop(handler);
        tracing::debug!(replica, "a socket goes on at another replica");
        let _forwarded = metrics::socket_forwarded();
        let closed = || closed.borrow().clone();
        let forwarding = replicas::forward(passage, input, writer.clone(), closed);
        tokio::select! {
            ended = forwarding => tracing::debug!(?ended, "a socket was passed on"),
            () = closing.cancelled() => writer.close(1001, "the server is stopping"),
        }
    }
}

pub(crate) fn cannot_resume(plug: DetachedSocket, why: &str) {
    let refusal = ServerMessage::refusal(ErrorCode::CannotResume, why);
    let refusal = refusal.answering(&Origin::of("resume"));
    plug.refuse(refusal.to_json(), "the session cannot be resumed");
}

impl SessionSocketHandler {
    fn text(&mut self, text: &ByteString) {
        if !self.is_told_again && !self.rate.accepts(text.len(), Instant::now().into_std()) {
            let message =
                format!("a message was dropped: they may come {PER_SECOND} times a second");
            // Not even looked at.
            return self.refuse(&Origin::default(), ErrorCode::Overloaded, message);
        }
        let respelled = self.dialect.config(text).map(ByteString::from);
        let text = respelled.as_ref().unwrap_or(text);
        let message = match ClientMessage::parse(text.as_bytes()) {
            Ok(message) => message,
            Err(misfit) => {
                let origin = Origin::of_misfit(text.as_bytes());
                let mut problem = misfit.to_string();
                if misuse::is_base64(text.as_bytes()) {
                    problem.push_str("; sound is sent as bytes in binary messages");
                }
                return self.refuse(&origin, ErrorCode::InvalidMessage, problem);
            }
        };
        let origin = message.origin();
        match &message {
            ClientMessage::Resume(_) => {
                let problem = if self.configs == 0 {
                    NoSession.to_string()
                } else {
                    "resume is the first message of a socket".to_owned()
                };
                return self.refuse(&origin, ErrorCode::CannotResume, problem);
            }
            ClientMessage::Config(wanted) => self.look_at_config(wanted),
            ClientMessage::Speak(speak) if !self.is_told_again => {
                self.look_at_text(&origin, speak);
            }
            ClientMessage::Clear { .. } => self.mistakes.writing = false,
            _ => {}
        }
        let strict = match &message {
            ClientMessage::Config(wanted) => wanted.strict,
            _ => self.mistakes.strict,
        };
        if !self.is_told_again
            && let Err(problem) = self.look_at_fields(&origin, text.as_bytes(), strict)
        {
            return self.refuse(&origin, ErrorCode::InvalidMessage, problem);
        }
        if let ClientMessage::Config(_) = &message
            && !self.resumption.may_begin
        {
            let problem = "there is no place for another session: this socket may only resume one";
            return self.refuse(&origin, ErrorCode::Overloaded, problem);
        }
        self.mistakes.strict = strict;
        self.show(&message);
        let mut config = 0;
        if let ClientMessage::Config(_) | ClientMessage::UpdateConfig(_) = message {
            self.configs += 1;
            config = self.configs;
        }
        // An update leaves the format of the audio behind it as it is.
        if let ClientMessage::Config(wanted) = &message {
            let wanted = &wanted.params;
            if wanted.records() {
                self.audio_input.expect_recorder();
            }
            let listen = wanted.stt.as_ref();
            let listen = listen.map(|listen| (listen, accepted(&self.providers, listen)));
            if !self
                .audio_input
                .expect(config, listen, &wanted.vad, wanted.rtc.is_some())
            {
                let message = "too many configs wait to be carried out";
                return self.refuse(&origin, ErrorCode::Overloaded, message);
            }
        }
        // It belongs to the sound before it, which may wait to be decoded.
        if let ClientMessage::EndTurn = message {
            self.audio_input.end_turn();
        }
        let is_short = text.len() <= MAX_SAID_BYTES;
        let command = Command {
            config,
            message,
            text: (config > 0 && is_short).then(|| text.clone()),
            bytes: text.len(),
        };
        match self.session.try_send(FromClient(command)) {
            // A session that has failed closes the socket.
            Ok(()) | Err(SendError::Closed(_)) => {}
            Err(SendError::Full(FromClient(refused))) => {
                if matches!(refused.message, ClientMessage::Config(_)) {
                    self.audio_input.discard(config);
                }
                self.refuse(&origin, ErrorCode::Overloaded, "too many messages wait");
            }
        }
    }

    /// Shows a message to whoever watches the session, without what a credential could be in.
    fn show(&self, message: &ClientMessage) {
        let kind = message.origin().message.unwrap_or_default();
        let shown = match message {
            ClientMessage::Speak(speak) => {
                let cut = |text: &str| text[..text.floor_char_boundary(MAX_SHOWN_BYTES)].to_owned();
                let (id, text) = (speak.id.as_deref().map(cut), cut(&speak.text));
                json!({"type": kind, "id": id, "text": text, "flush": speak.flush})
            }
            _ => json!({"type": kind}),
        };
        self.writer.timeline().received(&shown.to_string());
    }

    fn binary(&mut self, bytes: Bytes) {
        if let Some(found) = self.mistakes.sound.hear(&bytes) {
            let code = match found {
                Misuse::Container(_) => WarningCode::ContainerAsSamples,
                Misuse::Base64 => WarningCode::Base64AsSamples,
                Misuse::Stereo => WarningCode::StereoAsMono,
            };
            let what = format!("{found:?}");
            self.warn(&what, &Origin::of("binary"), code, found.message());
        }
        let (code, problem) = match self.audio_input.push(bytes) {
            Ok(()) | Err(None) => return,
            Err(Some(InputRefused::NotConfigured)) => {
                (ErrorCode::NotConfigured, "binary: send config first")
            }
            Err(Some(InputRefused::InRoom)) => (
                ErrorCode::AudioDisabled,
                "binary: the session takes its audio from its room",
            ),
            Err(Some(InputRefused::AudioDisabled)) => (
                ErrorCode::AudioDisabled,
                "binary: the session was configured with audio: false",
            ),
        };
        self.refuse(&Origin::of("binary"), code, problem);
    }

    fn closed(self: Box<Self>, closed: &Closed) {
        let span = self.span.clone();
        let _session = span.enter();
        tracing::debug!(code = closed.code, by = ?closed.by, "a socket has closed");
        if self.writer.keeps_sent() && may_come_back(closed) && self.session.connected() {
            tokio::task::spawn_local(self.stay().in_current_span());
        }
    }
}

impl Drop for SessionSocketHandler {
    /// Also without `closed`: after a panic, or when the server stops.
    fn drop(&mut self) {
        self.session.do_send(SocketClosed);
    }
}
