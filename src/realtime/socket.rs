//! A conversation over a socket: carries out what [`Realtime`] decides. Everything runs on the socket's thread; what the
//! client sends goes on by plain calls, as with any session.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Cursor;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bytestring::ByteString;
use futures_util::StreamExt;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use vivavoce_actors::session::{
    Caller, InnerSession, MessageRate, Places, SessionServices, open_session,
};
use vivavoce_audio::g711::Law;
use vivavoce_audio::{Layout, SampleRate, linear16, wav};
use vivavoce_llm::{AnswerEvent, ChatRequest, Endpoint, LlmError};
use vivavoce_seams::{SttEvent, SttRequest};
use vivavoce_socket::{Closed, InnerClient, Message, SocketHandler, SocketSettings, SocketWriter};
use vivavoce_transcription::{ANY_FORMAT, Recorded, Transcription};

use crate::machine::{Begin, Output, Realtime};
use crate::names::Named;
use crate::session::Sound;

/// The longest sound of an item that a client creates: more does not fit a message.
const LONGEST_ITEM: Duration = Duration::from_mins(10);

/// What a conversation needs.
pub struct Open {
    /// What all sessions share.
    pub services: Arc<SessionServices>,
    /// The bounds of the session's inner socket.
    pub settings: SocketSettings,
    /// Its permits.
    pub places: Places,
    /// Its client.
    pub caller: Caller,
    /// What it begins with.
    pub begin: Begin,
}

/// The handler of a client's socket.
pub struct RealtimeSocket(Rc<Shared>);

struct Shared {
    machine: RefCell<Realtime>,
    /// `None` once the client has gone.
    session: RefCell<Option<InnerSession>>,
    writer: SocketWriter,
    services: Arc<SessionServices>,
    caller: vivavoce_auth::Access,
    rate: RefCell<MessageRate>,
    /// Answers that are being made, by their responses.
    answers: RefCell<HashMap<u64, AbortOnDropHandle<()>>>,
    /// Sound of items that is being recognised, one after the other.
    items: RefCell<Option<AbortOnDropHandle<()>>>,
    /// The deadline may have changed.
    changed: Notify,
}

/// Starts a conversation.
pub fn open(open: Open, writer: SocketWriter) -> RealtimeSocket {
    let Open {
        services,
        settings,
        places,
        caller,
        begin,
    } = open;
    let access = caller.access.clone();
    let (mut session, events) = open_session(Arc::clone(&services), &settings, places, caller);
    // The client's events are counted here, and answers of models are bounded.
    session.take_any_rate();
    let shared = Rc::new(Shared {
        machine: RefCell::new(Realtime::new(begin)),
        session: RefCell::new(Some(session)),
        writer,
        services,
        caller: access,
        rate: RefCell::default(),
        answers: RefCell::default(),
        items: RefCell::default(),
        changed: Notify::new(),
    });
    shared.carry_out();
    let running = Rc::clone(&shared).run(events);
    tokio::task::spawn_local(running.in_current_span());
    RealtimeSocket(shared)
}

impl SocketHandler for RealtimeSocket {
    fn text(&mut self, text: ByteString) {
        let now = Instant::now();
        if !self.0.rate.borrow_mut().accepts(text.len(), now) {
            self.0.change(|machine, _| machine.too_fast());
            return;
        }
        self.0.change(|machine, now| machine.client(&text, now));
    }

    fn binary(&mut self, _: Bytes) {
        self.0.change(|machine, _| machine.binary());
    }

    fn closed(self, _: Closed) {
        self.0.answers.borrow_mut().clear();
        *self.0.items.borrow_mut() = None;
        // Its session ends.
        *self.0.session.borrow_mut() = None;
    }
}

impl Shared {
    fn change(self: &Rc<Self>, change: impl FnOnce(&mut Realtime, Instant)) {
        change(&mut self.machine.borrow_mut(), Instant::now());
        self.carry_out();
    }

    /// Passes on what the session says, until it has ended.
    async fn run(self: Rc<Self>, mut events: InnerClient) {
        loop {
            let deadline = self.machine.borrow().deadline();
            let alarm = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = events.next() => match message {
                    Some(Message::Text(text)) => {
                        self.change(|machine, now| machine.session_event(&text, now));
                    }
                    Some(Message::Binary(sound)) => self.change(|machine, _| machine.sound(&sound)),
                    None => break,
                },
                () = alarm => self.change(Realtime::tick),
                () = self.changed.notified() => {}
            }
            // What a client does not read waits where it is bounded and can be cut.
            self.writer.event_room().await;
        }
        if let Some(Closed { code, reason, .. }) = events.closed() {
            self.writer.close(code, reason);
        }
    }

    fn carry_out(self: &Rc<Self>) {
        let outputs = self.machine.borrow_mut().take();
        for output in outputs {
            match output {
                Output::Tell(event) => self.writer.event(event),
                Output::Send(message) => {
                    if let Some(session) = &mut *self.session.borrow_mut() {
                        session.text(message);
                    }
                }
                Output::Sound(sound) => {
                    if let Some(session) = &mut *self.session.borrow_mut() {
                        session.binary(sound);
                    }
                }
                Output::Ask {
                    key,
                    endpoint,
                    request,
                } => {
                    let asking = Rc::clone(self).ask(key, *endpoint, *request);
                    let asking = tokio::task::spawn_local(asking.in_current_span());
                    let asking = AbortOnDropHandle::new(asking);
                    self.answers.borrow_mut().insert(key, asking);
                }
                Output::Forget(key) => {
                    self.answers.borrow_mut().remove(&key);
                }
                Output::Transcribe {
                    item,
                    sound,
                    format,
                    recogniser,
                    language,
                } => {
                    let before = self.items.borrow_mut().take();
                    let shared = Rc::clone(self);
                    let work = async move {
                        if let Some(before) = before {
                            let _ended = before.await;
                        }
                        let text = shared
                            .transcribe(sound, format, &recogniser, language)
                            .await;
                        shared.change(|machine, now| machine.transcribed(&item, text, now));
                    };
                    let work = tokio::task::spawn_local(work.in_current_span());
                    *self.items.borrow_mut() = Some(AbortOnDropHandle::new(work));
                }
            }
        }
        self.changed.notify_one();
    }

    /// Has the model answer, and passes its answer on.
    async fn ask(self: Rc<Self>, key: u64, endpoint: Endpoint, request: ChatRequest) {
        let take = |event: Result<AnswerEvent, LlmError>| {
            self.change(|machine, now| machine.answer(key, event, now));
        };
        match endpoint.answer(request).await {
            Ok(mut answer) => {
                let limits = answer.rate_limits().to_vec();
                self.change(|machine, _| machine.rate_limits(&limits));
                while let Some(event) = answer.next().await {
                    take(event);
                    self.writer.event_room().await;
                }
                // Dropping a task that has ended does nothing.
                self.answers.borrow_mut().remove(&key);
            }
            Err(error) => {
                tracing::warn!(%error, "a language model does not answer");
                take(Err(error));
            }
        }
    }

    /// Recognises the sound of an item.
    async fn transcribe(
        &self,
        sound: Vec<u8>,
        format: Sound,
        named: &Named,
        language: String,
    ) -> Result<(String, u64), String> {
        let length = format.milliseconds(sound.len() as u64);
        let provider = self.services.providers.speech_to_text(&named.provider);
        let provider = provider.ok_or_else(|| format!("{} has no recogniser", named.provider))?;
        let party = self.caller.party();
        let taken = self.services.quotas.recognisers.take(&party);
        let _permit = taken.map_err(|refused| refused.to_string())?;
        let opening = move || Recorded::open(Cursor::new(as_wav(&sound, format)), LONGEST_ITEM);
        let opened = tokio::task::spawn_blocking(opening).await;
        let recorded = opened.map_err(|error| error.to_string())?;
        let recorded = recorded.map_err(|error| error.to_string())?;
        let request = SttRequest {
            language,
            model: named.model.clone(),
            punctuation: true,
            format: ANY_FORMAT,
            keyterms: Vec::new(),
            languages: Vec::new(),
            diarize: false,
            translate: false,
            credential: None,
            party,
        };
        let begun = Transcription::begin(provider, request, recorded).await;
        let mut transcription = begun.map_err(|error| error.to_string())?;
        let mut text = String::new();
        while let Some(event) = transcription.next().await {
            if let SttEvent::Final(segment) = event.map_err(|error| error.to_string())? {
                let space = if text.is_empty() { "" } else { " " };
                text.push_str(space);
                text.push_str(segment.text.trim());
            }
        }
        Ok((text, length))
    }
}

fn as_wav(sound: &[u8], format: Sound) -> Vec<u8> {
    let mut samples = Vec::new();
    let rate = match format {
        Sound::Pcm => {
            linear16::decode(sound, &mut samples);
            SampleRate::HZ_24000
        }
        Sound::Mulaw => {
            Law::Mu.expand(sound, &mut samples);
            SampleRate::HZ_8000
        }
        Sound::Alaw => {
            Law::A.expand(sound, &mut samples);
            SampleRate::HZ_8000
        }
    };
    let data = linear16::encode(&samples);
    let length = u32::try_from(data.len()).ok();
    let mut file = wav::header(Layout::mono(rate), length).to_vec();
    file.extend_from_slice(&data);
    file
}
