//! Rooms in which everything happens as the scenario says: the provider is in memory, and the scenario has the other end
//! of each link.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use livekit_protocol::{ParticipantInfo, Room, TrackInfo, WebhookEvent};
use tokio::time::Instant;

use super::telephone::ScriptedTelephone;
use vivavoce_audio::opus::{OpusDecoder, OpusEncoder, OpusSettings};
use vivavoce_audio::{Layout, SampleRate};
use vivavoce_auth::{Access, Owner};
use vivavoce_core::party::Party;
use vivavoce_seams::rooms::link::{
    Frame, Join, LinkEnd, LinkEvent, Message, Packet, Payload, RoomLink, TrackWriter, Woken, pair,
};
use vivavoce_seams::rooms::telephone::{Telephone, attribute};
use vivavoce_seams::{
    Creation, EventError, RoomError, RoomErrorKind, RoomPass, RoomProvider, SignedEvent, TrackOf,
};

/// The provider.
#[derive(Default)]
pub struct Rooms {
    kept: Mutex<HashMap<String, Kept>>,
    /// What the next joins get instead of a link.
    refusals: Mutex<Vec<RoomError>>,
    links: Mutex<Vec<(Join, Link)>>,
    /// Who carries calls.
    pub telephone: Arc<ScriptedTelephone>,
}

#[derive(Default, Clone)]
struct Kept {
    metadata: String,
    recorded: bool,
    others: Vec<String>,
    phones: Vec<String>,
}

/// The other end of a link.
#[derive(Clone)]
pub struct Link {
    end: LinkEnd,
    frames: Arc<Mutex<Vec<(Instant, Frame)>>>,
    messages: Arc<Mutex<Vec<(String, String)>>>,
    keys: Arc<Mutex<Vec<(String, char)>>>,
    left: Arc<Mutex<bool>>,
}

impl Rooms {
    /// A room that is there before anybody asks.
    pub fn keep(&self, name: &str, metadata: &str, others: &[&str]) {
        let kept = Kept {
            metadata: metadata.to_owned(),
            recorded: false,
            others: others.iter().map(|other| (*other).to_owned()).collect(),
            phones: Vec::new(),
        };
        self.kept.lock().unwrap().insert(name.to_owned(), kept);
    }

    /// A room ends.
    pub fn forget(&self, name: &str) {
        self.kept.lock().unwrap().remove(name);
    }

    /// Somebody is in a room by telephone.
    pub fn on_the_phone(&self, name: &str, identity: &str) {
        let mut kept = self.kept.lock().unwrap();
        kept.get_mut(name).unwrap().phones.push(identity.to_owned());
    }

    pub fn refuses(&self, kind: RoomErrorKind) {
        let error = RoomError {
            provider: "scripted",
            kind,
            message: "not now".to_owned(),
        };
        self.refusals.lock().unwrap().push(error);
    }

    /// The names of the rooms that there are.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.kept.lock().unwrap().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// The newest link, and who joined with it.
    pub fn link(&self) -> (Join, Link) {
        self.links.lock().unwrap().last().unwrap().clone()
    }
}

impl Link {
    fn new(join: &Join) -> (RoomLink, Self) {
        let told = Arc::new(tokio::sync::Notify::new());
        let wake = Arc::clone(&told);
        let (link, end) = pair(join, move |_: Woken| wake.notify_one());
        let this = Self {
            end,
            frames: Arc::default(),
            messages: Arc::default(),
            keys: Arc::default(),
            left: Arc::default(),
        };
        let peer = this.clone();
        // What leaves is taken at once, as a wire would.
        let weak = Arc::downgrade(&peer.left);
        tokio::task::spawn_local(async move {
            while weak.upgrade().is_some() {
                peer.end.awake();
                while let Some(frame) = peer.end.next_frame() {
                    peer.frames.lock().unwrap().push((Instant::now(), frame));
                }
                while let Some(message) = peer.end.next_message() {
                    if let (Some(key), [who]) = (message.key, &message.destinations[..]) {
                        peer.keys.lock().unwrap().push((who.clone(), key.sign()));
                        continue;
                    }
                    let text = String::from_utf8(message.payload.to_vec()).unwrap();
                    let topic = message.topic.unwrap_or_default();
                    peer.messages.lock().unwrap().push((topic, text));
                }
                if peer.end.wishes().left {
                    peer.end.end(vivavoce_seams::rooms::link::Ending::Left);
                    *peer.left.lock().unwrap() = true;
                    return;
                }
                told.notified().await;
            }
        });
        (link, this)
    }

    pub fn tell(&self, event: LinkEvent) {
        self.end.tell(event);
    }

    pub fn joins(&self, identity: &str) {
        self.tell(LinkEvent::ParticipantJoined(Box::new(somebody(identity))));
    }

    /// Somebody comes by telephone.
    pub fn calls(&self, identity: &str, status: &str) {
        self.tell(LinkEvent::ParticipantJoined(Box::new(phone(
            identity, status,
        ))));
    }

    pub fn phone_is(&self, identity: &str, status: &str) {
        self.tell(LinkEvent::ParticipantUpdated(Box::new(phone(
            identity, status,
        ))));
    }

    pub fn hangs_up(&self, identity: &str, cause: &str) {
        let mut last = phone(identity, "hangup");
        last.attributes
            .insert(attribute::CAUSE.to_owned(), cause.to_owned());
        self.tell(LinkEvent::ParticipantUpdated(Box::new(last.clone())));
        self.tell(LinkEvent::ParticipantLeft(Box::new(last)));
    }

    /// Keys that were pressed, and for whom.
    pub fn keys(&self) -> Vec<(String, char)> {
        self.keys.lock().unwrap().clone()
    }

    pub fn leaves(&self, identity: &str) {
        self.tell(LinkEvent::ParticipantLeft(Box::new(somebody(identity))));
    }

    pub fn says(&self, identity: &str, topic: &str, text: &[u8]) {
        self.tell(LinkEvent::Message(Message {
            identity: Some(identity.to_owned()),
            topic: Some(topic.to_owned()),
            payload: Bytes::copy_from_slice(text),
            reliable: true,
        }));
    }

    /// Somebody publishes audio.
    pub fn publishes(&self, identity: &str) -> Speaker {
        self.publishes_as(identity, &format!("TR_{identity}"))
    }

    /// Somebody publishes a track of this sid.
    pub fn publishes_as(&self, identity: &str, sid: &str) -> Speaker {
        let (track, audio) = LinkEnd::track();
        let sid = sid.to_owned();
        let info = TrackInfo {
            sid: sid.clone(),
            name: "microphone".to_owned(),
            ..TrackInfo::default()
        };
        let identity = identity.to_owned();
        self.tell(LinkEvent::TrackPublished {
            identity: identity.clone(),
            track: Box::new(info),
        });
        self.tell(LinkEvent::TrackSubscribed {
            identity,
            sid,
            audio,
        });
        Speaker {
            track,
            encoder: OpusEncoder::new(LAYOUT, OpusSettings::SPEECH).unwrap(),
            sequence: 1,
        }
    }

    /// Frames so far, and when each left.
    pub fn frames(&self) -> Vec<(Instant, Frame)> {
        self.frames.lock().unwrap().clone()
    }

    /// The audio of all frames so far.
    pub fn sound(&self) -> Vec<i16> {
        let mut decoder = OpusDecoder::new(LAYOUT).unwrap();
        let mut samples = Vec::new();
        for (_, frame) in self.frames() {
            decoder
                .decode(frame.opus.as_ref().unwrap(), &mut samples)
                .unwrap();
        }
        samples
    }

    /// Topics and texts of what was sent.
    pub fn messages(&self) -> Vec<(String, String)> {
        self.messages.lock().unwrap().clone()
    }

    pub fn was_left(&self) -> bool {
        *self.left.lock().unwrap()
    }

    /// The link ends.
    pub fn ends(&self, ending: vivavoce_seams::rooms::link::Ending) {
        self.end.end(ending.clone());
        self.tell(LinkEvent::Ended(ending));
    }
}

const LAYOUT: Layout = Layout::mono(SampleRate::HZ_48000);

/// Somebody who speaks in a room.
pub struct Speaker {
    track: TrackWriter,
    encoder: OpusEncoder,
    sequence: u64,
}

impl Speaker {
    /// Speaks so long, as a microphone does: a loud tone.
    pub async fn speaks(&mut self, time: Duration) {
        self.live(time, 20_000.0).await;
    }

    /// The same as loud as that.
    pub async fn speaks_at(&mut self, time: Duration, amplitude: f64) {
        self.live(time, amplitude).await;
    }

    pub async fn is_silent(&mut self, time: Duration) {
        self.live(time, 0.0).await;
    }

    async fn live(&mut self, time: Duration, amplitude: f64) {
        for _ in 0..time.as_millis() / 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let sample = |at: u64| {
                let phase = at as f64 * std::f64::consts::TAU * 440.0 / 48_000.0;
                (phase.sin() * amplitude) as i16
            };
            let from = self.sequence * 960;
            let samples: Vec<i16> = (from..from + 960).map(sample).collect();
            let mut packet = [0; 1_276];
            let bytes = self.encoder.encode(&samples, &mut packet).unwrap();
            self.track.write(Packet {
                payload: Payload::Opus(packet[..bytes].into()),
                sequence: self.sequence,
                timestamp: from as u32,
                marker: self.sequence == 1,
                arrived: Instant::now().into_std(),
                level: None,
            });
            self.sequence += 1;
        }
    }
}

fn phone(identity: &str, status: &str) -> ParticipantInfo {
    let attributes = [
        (attribute::CALL_ID.to_owned(), format!("SCL_{identity}")),
        (attribute::CALL_STATUS.to_owned(), status.to_owned()),
    ];
    ParticipantInfo {
        kind: livekit_protocol::participant_info::Kind::Sip as i32,
        attributes: attributes.into_iter().collect(),
        ..somebody(identity)
    }
}

fn somebody(identity: &str) -> ParticipantInfo {
    ParticipantInfo {
        identity: identity.to_owned(),
        name: identity.to_uppercase(),
        ..ParticipantInfo::default()
    }
}

#[async_trait]
impl RoomProvider for Rooms {
    fn slug(&self) -> &'static str {
        "scripted"
    }

    fn url(&self) -> Option<&str> {
        None
    }

    async fn rooms(&self) -> Result<Vec<Room>, RoomError> {
        Ok(Vec::new())
    }

    async fn room(&self, name: &str) -> Result<Option<Room>, RoomError> {
        let rooms = self.kept.lock().unwrap();
        Ok(rooms.get(name).map(|kept| Room {
            name: name.to_owned(),
            metadata: kept.metadata.clone(),
            ..Room::default()
        }))
    }

    async fn participants(&self, room: &str) -> Result<Vec<ParticipantInfo>, RoomError> {
        let rooms = self.kept.lock().unwrap();
        let Some(kept) = rooms.get(room) else {
            return Ok(Vec::new());
        };
        let others = kept.others.iter().map(|one| somebody(one));
        let phones = kept.phones.iter().map(|one| phone(one, "active"));
        Ok(others.chain(phones).collect())
    }

    async fn create(&self, name: &str, metadata: &str, _: &Party) -> Result<Creation, RoomError> {
        if let Some(room) = self.room(name).await? {
            return Ok(Creation::Exists(Box::new(room)));
        }
        self.keep(name, metadata, &[]);
        Ok(Creation::Created)
    }

    async fn replace_metadata(
        &self,
        room: &str,
        expected: &str,
        metadata: &str,
    ) -> Result<bool, RoomError> {
        let mut rooms = self.kept.lock().unwrap();
        let Some(kept) = rooms.get_mut(room).filter(|kept| kept.metadata == expected) else {
            return Ok(false);
        };
        metadata.clone_into(&mut kept.metadata);
        Ok(true)
    }

    async fn delete(&self, room: &str, by: &Access) -> Result<(), RoomError> {
        let mut rooms = self.kept.lock().unwrap();
        rooms.retain(|name, kept| name != room || !Owner::of(&kept.metadata).lets(by));
        Ok(())
    }

    async fn show_recording(&self, room: &str, recorded: bool) -> Result<(), RoomError> {
        if let Some(kept) = self.kept.lock().unwrap().get_mut(room) {
            kept.recorded = recorded;
        }
        Ok(())
    }

    async fn remove(&self, _room: &str, _identity: &str, _by: &Access) -> Result<(), RoomError> {
        Ok(())
    }

    async fn mute(
        &self,
        _track: &TrackOf<'_>,
        _muted: bool,
        _by: &Access,
    ) -> Result<TrackInfo, RoomError> {
        Ok(TrackInfo::default())
    }

    async fn connect(&self, join: Join) -> Result<RoomLink, RoomError> {
        if let Some(refusal) = self.refusals.lock().unwrap().pop() {
            return Err(refusal);
        }
        let (room, link) = Link::new(&join);
        link.tell(LinkEvent::Connected {
            sid: "PA_agent".to_owned(),
            identity: join.identity.clone(),
        });
        self.links.lock().unwrap().push((join, link));
        Ok(room)
    }

    fn telephone(&self) -> Option<Arc<dyn Telephone>> {
        Some(self.telephone.clone())
    }

    fn token(&self, _pass: &RoomPass<'_>) -> Result<String, RoomError> {
        Ok(String::new())
    }

    fn check_signature(&self, _authorization: &str) -> Result<(), EventError> {
        unreachable!("nobody posts events")
    }

    fn read_event(&self, _event: &SignedEvent) -> Result<WebhookEvent, EventError> {
        Err(EventError::Body)
    }
}
