//! The promises of a [`RoomLink`], tested with every kind of link: LiveKit's protocol with one and with two peer
//! connections, over real sockets against the embedded server, and the link within the process. This file sets the stage.

mod edge;
mod network;
mod suite;

use std::collections::HashMap;
use std::time::Duration;

use livekit_protocol as proto;

use self::edge::Edge;
use vivavoce_core::tls_roots::Authorities;
use vivavoce_livekit::link::{Links, Options, Server};
use vivavoce_providers::transport::Transport;
use vivavoce_rooms::token::{self, Claims};
use vivavoce_rooms::{Keys, RoomServer, Settings, Sockets};
use vivavoce_seams::rooms::link::{
    Ending, Frame, Join, JoinKind, LinkControl, LinkEvent, LinkEvents, Listen, Message, Outgoing,
    Payload, PublishSink, RoomLink, TrackAudio,
};

/// Longer than anything promised takes.
const PATIENCE: Duration = Duration::from_secs(30);
const FRAME: Duration = Duration::from_millis(20);

/// The kinds of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `/rtc/v1`.
    One,
    /// `/rtc`, as the fallback for a server without `/rtc/v1`.
    Two,
    /// Within the process.
    Local,
}

/// An embedded server with its front end, and the threads of links.
struct House {
    kind: Kind,
    server: RoomServer,
    edge: Edge,
    links: Links,
}

impl House {
    fn new(kind: Kind) -> Self {
        let address = [127, 0, 0, 1].into();
        Self::on(kind, Sockets::bind(&[(address, address)], 0).unwrap())
    }

    fn on(kind: Kind, sockets: Sockets) -> Self {
        let settings = Settings {
            keys: keys(),
            remote_unmute: true,
            threads: 2,
            ..Settings::default()
        };
        let (server, events) = RoomServer::start(settings, sockets).unwrap();
        drop(events);
        let edge = Edge::open(server.clone(), kind == Kind::One);
        Self {
            kind,
            server,
            edge,
            links: Links::start().unwrap(),
        }
    }

    async fn connect(&self, join: Join, patience: Duration) -> Result<RoomLink, Ending> {
        if self.kind == Kind::Local {
            return crate::link::connect(&self.server, "key", join).await;
        }
        let token = token_of(&join);
        self.connect_with(join, token, patience).await
    }

    async fn connect_with(
        &self,
        join: Join,
        token: String,
        patience: Duration,
    ) -> Result<RoomLink, Ending> {
        let server = Server {
            provider: "livekit",
            url: self.edge.url(),
            transport: Transport::new(&Authorities::default()).unwrap(),
        };
        let options = Options {
            join,
            token,
            patience,
        };
        self.links.connect(server, options).await
    }

    async fn enter(&self, identity: &str) -> Guest {
        self.enter_as(join(identity), Duration::from_mins(1)).await
    }

    async fn enter_as(&self, join: Join, patience: Duration) -> Guest {
        let identity = join.identity.clone();
        let link = self.connect(join, patience).await.unwrap();
        let mut guest = Guest::new(identity, link);
        let first = tokio::time::timeout(PATIENCE, guest.events.next()).await;
        let Ok(Some(LinkEvent::Connected { sid, .. })) = first else {
            panic!("{} begins with {first:?}", guest.identity)
        };
        guest.sid = sid;
        guest
    }
}

fn keys() -> Keys {
    Keys::new([("key", "a secret of at least thirty-two bytes")])
}

fn join(identity: &str) -> Join {
    Join {
        room: "kitchen".to_owned(),
        identity: identity.to_owned(),
        name: identity.to_uppercase(),
        kind: JoinKind::Agent,
        principal: vivavoce_auth::Principal::Operator,
        owner: None,
        metadata: String::new(),
        attributes: vec![("colour".to_owned(), "blue".to_owned())],
        room_config: None,
        listen: Listen::All,
        audio: true,
    }
}

fn token_of(join: &Join) -> String {
    let mut claims = Claims {
        iss: "key".into(),
        sub: join.identity.clone(),
        name: join.name.clone(),
        kind: join.kind.claim().into(),
        metadata: join.metadata.clone(),
        exp: 4_000_000_000,
        attributes: join.attributes.iter().cloned().collect(),
        ..Claims::default()
    };
    claims.video.room_join = true;
    claims.video.room.clone_from(&join.room);
    token::mint(&claims, &keys()).unwrap()
}

/// A participant of a room.
struct Guest {
    identity: String,
    sid: String,
    events: LinkEvents,
    publish: PublishSink,
    control: LinkControl,
    /// Events that were not waited for yet.
    unread: Vec<LinkEvent>,
    heard: HashMap<String, TrackAudio>,
    said: u32,
}

impl Guest {
    fn new(identity: String, link: RoomLink) -> Self {
        Self {
            identity,
            sid: String::new(),
            events: link.events,
            publish: link.publish,
            control: link.control,
            unread: Vec::new(),
            heard: HashMap::new(),
            said: 0,
        }
    }

    /// Waits for an event; others are kept.
    async fn until<T>(
        &mut self,
        what: &str,
        mut is: impl FnMut(LinkEvent) -> Result<T, LinkEvent>,
    ) -> T {
        let mut others = Vec::new();
        let mut unread = std::mem::take(&mut self.unread).into_iter();
        for event in unread.by_ref() {
            match is(event) {
                Ok(found) => {
                    self.unread = others;
                    self.unread.extend(unread);
                    return found;
                }
                Err(event) => others.push(event),
            }
        }
        self.unread = others;
        let waiting = async {
            while let Some(event) = self.events.next().await {
                match is(event) {
                    Ok(found) => return found,
                    Err(event) => self.unread.push(event),
                }
            }
            panic!("the link ended");
        };
        let found = tokio::time::timeout(PATIENCE, waiting).await;
        found
            .unwrap_or_else(|_| panic!("{}: no {what}; there was {:?}", self.identity, self.unread))
    }

    async fn happens(&mut self, what: &str, is: impl Fn(&LinkEvent) -> bool) {
        self.until(what, |event| if is(&event) { Ok(()) } else { Err(event) })
            .await;
    }

    async fn ending(&mut self) -> Ending {
        self.until("end", |event| match event {
            LinkEvent::Ended(ending) => Ok(ending),
            other => Err(other),
        })
        .await
    }

    async fn message(&mut self) -> Message {
        self.until("message", |event| match event {
            LinkEvent::Message(message) => Ok(message),
            other => Err(other),
        })
        .await
    }

    /// Waits until a track of this participant can be read.
    async fn hears(&mut self, whom: &str) {
        let audio = self
            .until("track", |event| match event {
                LinkEvent::TrackSubscribed {
                    identity, audio, ..
                } if identity == whom => Ok(audio),
                other => Err(other),
            })
            .await;
        self.heard.insert(whom.to_owned(), audio);
    }

    async fn listened(&mut self) {
        self.happens("listener", |event| matches!(event, LinkEvent::Listened))
            .await;
    }

    /// Speaks in real time.
    async fn say(&mut self, frames: u32) {
        let mut pace = tokio::time::interval(FRAME);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for _ in 0..frames {
            pace.tick().await;
            let text = format!("{} says {}", self.identity, self.said);
            self.publish.push(Frame {
                opus: Some(text.into_bytes().into()),
                pcm: None,
                timestamp: self.said * 960,
                marker: self.said == 0,
                level: 20,
            });
            self.said += 1;
        }
    }

    /// Reads so many packets of a participant: their sequence numbers.
    async fn hear(&mut self, whom: &str, packets: usize) -> Vec<u32> {
        let audio = &self.heard[whom];
        let mut numbers = Vec::new();
        let reading = async {
            while numbers.len() < packets {
                let Some(packet) = audio.next().await else {
                    break;
                };
                let Payload::Opus(payload) = packet.payload else {
                    panic!("frames that are encoded arrive encoded");
                };
                let text = std::str::from_utf8(&payload).unwrap().to_owned();
                let number = text.strip_prefix(&format!("{whom} says "));
                numbers.push(number.unwrap_or_else(|| panic!("{text}")).parse().unwrap());
            }
        };
        let _ = tokio::time::timeout(PATIENCE, reading).await;
        numbers
    }

    fn send(&self, text: &str, reliable: bool, to: &[&str]) {
        let message = Outgoing {
            key: None,
            topic: Some("messages".to_owned()),
            payload: text.to_owned().into(),
            reliable,
            destinations: to.iter().map(|name| (*name).to_owned()).collect(),
        };
        self.control.send(message).unwrap();
    }
}

/// Waits for a state without an event.
async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let waiting = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, waiting).await;
    found.unwrap_or_else(|_| panic!("never: {what}"))
}

/// The participants of the kitchen.
async fn present(server: &RoomServer) -> Vec<proto::ParticipantInfo> {
    server
        .list_participants("kitchen".to_owned())
        .await
        .unwrap_or_default()
}
