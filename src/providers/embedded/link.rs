//! The link of a participant in this process: without sockets or encryption. Frames and packets are delivered on the media
//! thread; a task handles signalling.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;
use livekit_protocol as proto;
use prost::Message as _;
use proto::leave_request::Action;
use proto::signal_request::Message as Ask;
use proto::signal_response::Message as Told;
use tokio::sync::Notify;

use crate::messages::Messages;
use vivavoce_auth::Principal;
use vivavoce_rooms::admission::NOT_ADMITTED;
use vivavoce_rooms::token::Claims;
use vivavoce_rooms::{Admission, Connection, Delivery, LocalMedia, LocalWaker, RoomServer, Route};
use vivavoce_seams::rooms::link::{
    Ending, Forms, Frame, Join, JoinKind, LinkEnd, LinkEvent, Listen, Packet, Relay, RoomLink,
    TrackWriter, Woken, pair,
};
use vivavoce_seams::rooms::packets::{Inbox, Outbox};
use vivavoce_seams::rooms::view::{self, RoomView};

/// Joins a room. Must be called on a tokio runtime.
pub async fn connect(server: &RoomServer, api_key: &str, join: Join) -> Result<RoomLink, Ending> {
    let admission = admission(api_key, &join);
    let refused = |refusal: vivavoce_rooms::Refusal| {
        refusal
            .quota
            .map_or(Ending::Refused(refusal.text), Ending::Quota)
    };
    // A participant replaced by a call is counted until it has left.
    if admission.owner.is_none() {
        server.check(&admission).await.map_err(refused)?;
    }
    let woken = Arc::new(Notify::new());
    let waker = Arc::<Mutex<Option<LocalWaker>>>::default();
    let (wake, current) = (Arc::clone(&woken), Arc::clone(&waker));
    let (link, end) = pair(&join, move |what| match what {
        Woken::Media => {
            let current = current.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(waker) = &*current {
                waker.wake();
            }
        }
        Woken::Wishes => wake.notify_one(),
    });
    let agent = Box::new(Agent {
        server: server.clone(),
        admission,
        audio: join.audio,
        publishes: join.audio && join.kind != JoinKind::Recorder,
        records: join.kind == JoinKind::Recorder,
        end,
        woken,
        waker,
        view: RoomView::default(),
        inbox: Inbox::default(),
        track: None,
        attributes: BTreeMap::new(),
        sound: Arc::default(),
    });
    let (connection, messages) = agent.enter().await.ok_or_else(stopped)?;
    tokio::spawn(agent.run(connection, messages));
    Ok(link)
}

fn stopped() -> Ending {
    Ending::Refused("the rooms have closed".to_owned())
}

fn admission(api_key: &str, join: &Join) -> Admission {
    let mut claims = Claims {
        iss: api_key.to_owned(),
        sub: join.identity.clone(),
        name: join.name.clone(),
        kind: join.kind.claim().to_owned(),
        metadata: join.metadata.clone(),
        attributes: join.attributes.iter().cloned().collect(),
        room_config: join.room_config.clone(),
        vivavoce: match &join.principal {
            Principal::Operator => None,
            principal => Some(principal.clone()),
        },
        ..Claims::default()
    };
    claims.video.room_join = true;
    claims.video.room.clone_from(&join.room);
    claims.video.can_update_own_metadata = Some(true);
    if matches!(join.kind, JoinKind::Recorder | JoinKind::Mixer) {
        claims.video.hidden = true;
        claims.video.recorder = true;
        claims.video.can_publish = Some(join.kind == JoinKind::Mixer);
        claims.video.can_publish_data = Some(false);
    }
    Admission {
        route: Route::OneConnection,
        claims,
        room: join.room.clone(),
        client: proto::ClientInfo::default(),
        auto_subscribe: false,
        metadata: String::new(),
        attributes: HashMap::new(),
        tracks: Vec::new(),
        offer: None,
        resume: None,
        sync_state: None,
        owner: join.owner.clone(),
        puts_nobody_out: join.kind == JoinKind::Caller,
        party: join.principal.party(None),
        once: None,
    }
}

/// The state of the task.
struct Agent {
    server: RoomServer,
    admission: Admission,
    audio: bool,
    publishes: bool,
    records: bool,
    end: LinkEnd,
    woken: Arc<Notify>,
    /// Of the connection that it has now.
    waker: Arc<Mutex<Option<LocalWaker>>>,
    view: RoomView,
    inbox: Inbox,
    track: Option<Track>,
    /// Changed attributes that the room knows.
    attributes: BTreeMap<String, String>,
    sound: Arc<Sound>,
}

/// The published track.
struct Track {
    sid: String,
    muted: bool,
}

/// Why a session ended.
enum Over {
    /// Finally.
    Ended(Ending),
    /// The server has asked for a reconnect.
    Again,
}

impl Agent {
    async fn enter(&self) -> Option<(Connection, Arc<Messages>)> {
        let messages = Arc::<Messages>::default();
        let media = |waker: LocalWaker| -> Arc<dyn LocalMedia> {
            *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
            Arc::new(Media {
                end: self.end.clone(),
                identity: self.admission.identity().to_owned(),
                records: self.records,
                outbox: Mutex::default(),
                sound: Arc::clone(&self.sound),
                messages: Arc::clone(&messages),
            })
        };
        let connection = self
            .server
            .connect_local(self.admission.clone(), media)
            .await?;
        Some((connection, messages))
    }

    /// If the participant was removed and may not return, says why.
    async fn explained(&self, ending: Ending) -> Ending {
        if ending != Ending::Removed || self.admission.owner.is_some() {
            return ending;
        }
        match self.server.check(&self.admission).await {
            Err(refusal) if refusal.text == NOT_ADMITTED => Ending::Disowned,
            _ => ending,
        }
    }

    /// Boxed are it and what is rare: a task keeps room for all that it ever does, and for what it is given twice.
    async fn run(mut self: Box<Self>, mut connection: Connection, mut messages: Arc<Messages>) {
        loop {
            match self.follow(connection, &messages).await {
                Over::Ended(ending) => {
                    let ending = Box::pin(self.explained(ending)).await;
                    return self.end.end(ending);
                }
                Over::Again => {}
            }
            let again = match self.tell(vec![LinkEvent::Reconnecting]) {
                Some(over) => Err(over),
                None => Box::pin(self.enter()).await.ok_or_else(stopped),
            };
            match again {
                Ok(entered) => (connection, messages) = entered,
                Err(ending) => return self.end.end(ending),
            }
        }
    }

    /// Runs one session.
    async fn follow(&mut self, mut connection: Connection, messages: &Messages) -> Over {
        loop {
            let mut asks = Vec::new();
            let over = tokio::select! {
                biased;
                response = connection.responses.next() => match response {
                    Some(bytes) => self.told(&bytes, &mut asks),
                    None => Some(Over::Ended(stopped())),
                },
                (message, reliable) = next(messages, &self.end) => {
                    let event = self.inbox.read(&message, reliable);
                    self.tell(event.into_iter().collect()).map(Over::Ended)
                }
                () = self.woken.notified() => None,
            };
            if let Some(over) = over {
                return over;
            }
            // Read before the other requests, so that those made before leaving are seen.
            let left = self.end.wishes().left;
            let over = self.follow_wishes(&mut asks);
            for message in asks {
                ask(&connection, message).await;
            }
            if left {
                let leave = proto::LeaveRequest::default();
                ask(&connection, Ask::Leave(leave)).await;
                return Over::Ended(Ending::Left);
            }
            if let Some(ending) = over {
                return Over::Ended(ending);
            }
        }
    }

    fn told(&mut self, bytes: &Bytes, asks: &mut Vec<Ask>) -> Option<Over> {
        let message = proto::SignalResponse::decode(bytes.clone()).ok()?.message?;
        let events = match message {
            Told::Join(join) => {
                self.track = None;
                self.attributes.clear();
                self.sound.clear();
                if self.publishes {
                    let muted = self.end.wishes().muted;
                    asks.push(Ask::AddTrack(view::microphone("agent", muted)));
                }
                let mut events = self.view.joined(join);
                let first = self.view.connected();
                if first.is_empty() {
                    events.push(LinkEvent::Reconnected { resumed: false });
                }
                events.extend(first);
                events
            }
            Told::RoomMoved(moved) => {
                if let Some(room) = &moved.room {
                    self.admission.room.clone_from(&room.name);
                    self.admission.claims.video.room.clone_from(&room.name);
                }
                let events = self.view.moved(moved);
                let view = &self.view;
                self.inbox.retain(|sid| view.knows(sid));
                events
            }
            Told::Update(update) => {
                let events = self.view.update(update.participants);
                let view = &self.view;
                self.inbox.retain(|sid| view.knows(sid));
                events
            }
            Told::TrackPublished(published) => {
                let muted = published.track.as_ref().is_some_and(|track| track.muted);
                let sid = published.track.unwrap_or_default().sid;
                self.track = Some(Track { sid, muted });
                Vec::new()
            }
            Told::TrackUnpublished(_) => {
                self.track = None;
                Vec::new()
            }
            Told::TrackSubscribed(_) => vec![LinkEvent::Listened],
            Told::Mute(mute) => match &mut self.track {
                Some(track) if track.sid == mute.sid && track.muted != mute.muted => {
                    track.muted = mute.muted;
                    self.end.muted_by_server(mute.muted);
                    vec![LinkEvent::Muted(mute.muted)]
                }
                _ => Vec::new(),
            },
            Told::Leave(leave) => {
                return Some(match leave.action() {
                    Action::Disconnect => Over::Ended(view::ending(leave.reason())),
                    Action::Resume | Action::Reconnect => Over::Again,
                });
            }
            _ => Vec::new(),
        };
        self.tell(events).map(Over::Ended)
    }

    /// Passes on requests of the link.
    fn follow_wishes(&mut self, asks: &mut Vec<Ask>) -> Option<Ending> {
        let wishes = self.end.wishes();
        if let Some(track) = &mut self.track
            && track.muted != wishes.muted
        {
            track.muted = wishes.muted;
            let (sid, muted) = (track.sid.clone(), track.muted);
            asks.push(Ask::Mute(proto::MuteTrackRequest { sid, muted }));
        }
        if self.attributes != wishes.attributes {
            self.attributes.clone_from(&wishes.attributes);
            asks.push(view::attributes(&self.attributes));
        }
        let nobody = Listen::Only(Vec::new());
        let listen = if self.audio { &wishes.listen } else { &nobody };
        let subscriptions = self.view.subscriptions(listen);
        let mut events = Vec::new();
        let mut tracks = self.sound.tracks();
        let asked: Vec<(&str, &str)> = self.view.asked().collect();
        tracks.retain(|sid, _| asked.iter().any(|(asked, _)| asked == sid));
        for (sid, identity) in asked {
            if !tracks.contains_key(sid) {
                let (writer, audio) = LinkEnd::track();
                tracks.insert(sid.to_owned(), writer);
                events.push(LinkEvent::TrackSubscribed {
                    identity: identity.to_owned(),
                    sid: sid.to_owned(),
                    audio,
                });
            }
        }
        drop(tracks);
        asks.extend(subscriptions.into_iter().map(Ask::Subscription));
        self.tell(events)
    }

    fn tell(&self, events: Vec<LinkEvent>) -> Option<Ending> {
        let mut events = events.into_iter();
        events
            .any(|event| !self.end.tell(event))
            .then_some(Ending::Overrun)
    }
}

/// The next data message. It waits until the events before it are read: they are bounded by number, and whoever has too many
/// of them waiting loses its place in the room. Cancel safe.
async fn next(messages: &Messages, end: &LinkEnd) -> (Bytes, bool) {
    end.takes_messages().await;
    messages.next().await
}

async fn ask(connection: &Connection, message: Ask) {
    let request = proto::SignalRequest {
        message: Some(message),
    };
    connection
        .requests
        .send(request.encode_to_vec().into())
        .await;
}

/// Subscribed tracks.
#[derive(Debug, Default)]
struct Sound(Mutex<HashMap<String, TrackWriter>>);

impl Sound {
    fn tracks(&self) -> MutexGuard<'_, HashMap<String, TrackWriter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear(&self) {
        self.tracks().clear();
    }
}

/// The media thread's side of the link.
#[derive(Debug)]
struct Media {
    end: LinkEnd,
    identity: String,
    /// Tracks are recorded as they were encoded.
    records: bool,
    outbox: Mutex<Outbox>,
    sound: Arc<Sound>,
    messages: Arc<Messages>,
}

impl LocalMedia for Media {
    fn awake(&self) {
        self.end.awake();
    }

    fn next_frame(&self) -> Option<Frame> {
        self.end.next_frame()
    }

    fn next_message(&self) -> Option<(Delivery, Bytes)> {
        let message = self.end.next_message()?;
        let delivery = if message.reliable {
            Delivery::Reliable
        } else {
            Delivery::Lossy
        };
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        Some((
            delivery,
            outbox.packet(message, &self.identity, Instant::now()),
        ))
    }

    fn hear(&self, track: &str, packet: Packet) {
        if let Some(writer) = self.sound.tracks().get(track) {
            writer.write(packet);
        }
    }

    fn needs_opus(&self) -> bool {
        self.records
    }

    fn want(&self, forms: Forms) {
        self.end.want(forms);
    }

    fn relay(&self) -> Option<Weak<dyn Relay>> {
        self.end.relay()
    }

    fn relay_to(&self, other: Option<Weak<dyn Relay>>) {
        self.end.relay_to(other);
    }

    fn receive(&self, delivery: Delivery, message: &Bytes) -> bool {
        let reliable = delivery == Delivery::Reliable;
        self.messages.push(message.clone(), reliable)
    }
}
