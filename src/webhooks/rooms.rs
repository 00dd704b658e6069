//! Events of embedded rooms, posted as a LiveKit server posts them: signed with the key pair of the rooms, those of one
//! room one behind the other, tried for half a minute and then given up. They are kept in memory only: whoever relies on
//! them asks the room service what is, as with LiveKit.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use livekit_protocol::WebhookEvent;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{StatusCode, Url};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::delivery::{Clients, causes};
use super::reach;
use crate::config::{HttpUrl, Settings};
use crate::outgoing::Authorities;
use crate::outgoing::reach::Reach;
use crate::providers::ApiKey;
use crate::telemetry::metrics::{self, WebhookLoss};

/// Of LiveKit's webhooks.
const MEDIA_TYPE: &str = "application/webhook+json";
/// Events on their way to the task of one address.
const MOST_HANDED_IN: usize = 1_024;
/// Events of one room that wait, and of all rooms.
const MOST_OF_A_ROOM: usize = 200;
const MOST_WAITING: usize = 10_000;
/// Rooms whose events are posted at once to one address.
const MOST_AT_ONCE: usize = 16;
/// An event that is older is news to nobody.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pauses between attempts.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

/// Posts events to every address of `rtc.webhook_urls`. Clones are the same.
#[derive(Debug, Clone)]
pub struct RoomEvents {
    addresses: Vec<mpsc::Sender<Arc<WebhookEvent>>>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl RoomEvents {
    /// Begins to post. Must be called in a runtime.
    pub fn open(settings: &Settings, key: &ApiKey, authorities: &Authorities) -> io::Result<Self> {
        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let mut addresses = Vec::new();
        for HttpUrl(url) in &settings.rtc.webhook_urls.0 {
            let (sender, receiver) = mpsc::channel(MOST_HANDED_IN);
            let post = Post {
                url: url.clone(),
                key: key.clone(),
                reach: reach(settings),
                clients: Clients::new(authorities)?,
            };
            tasks.spawn(run(Arc::new(post), receiver, closing.clone()));
            addresses.push(sender);
        }
        Ok(Self {
            addresses,
            tasks,
            closing,
        })
    }

    /// Hands an event in. Where too many wait already it is lost and counted.
    pub fn tell(&self, event: &Arc<WebhookEvent>) {
        for address in &self.addresses {
            if address.try_send(Arc::clone(event)).is_err() {
                metrics::webhook_lost(WebhookLoss::Receiver);
            }
        }
    }

    /// Waits until everything is posted or given up, for `patience` at most. All other clones must have gone.
    pub async fn finish(self, patience: Duration) {
        drop(self.addresses);
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait())
            .await
            .is_err()
        {
            self.closing.cancel();
            self.tasks.wait().await;
        }
    }
}

/// What is wrong with the settings of them.
pub(super) fn problems(settings: &Settings) -> Vec<String> {
    let urls = &settings.rtc.webhook_urls.0;
    let refused = urls
        .iter()
        .filter_map(|HttpUrl(url)| reach(settings).check(url).err());
    let allow = "unless webhooks.allow_insecure, webhooks.allow_private say otherwise";
    refused
        .map(|error| format!("rtc.webhook_urls: {error}, {allow}"))
        .collect()
}

/// Posts what comes until nothing can come any more and all of it is out.
async fn run(
    post: Arc<Post>,
    mut events: mpsc::Receiver<Arc<WebhookEvent>>,
    closing: CancellationToken,
) {
    let mut lanes = Lanes::default();
    let mut under_way = JoinSet::new();
    let mut open = true;
    loop {
        while let Some((room, waiting)) = lanes.next() {
            let post = Arc::clone(&post);
            under_way.spawn(async move {
                post.deliver(&waiting).await;
                room
            });
        }
        if !open && under_way.is_empty() {
            return;
        }
        tokio::select! {
            () = closing.cancelled() => return,
            event = events.recv(), if open => match event {
                Some(event) => lanes.add(event, Instant::now()),
                None => open = false,
            },
            Some(ended) = under_way.join_next() => {
                // A delivery does not panic.
                if let Ok(room) = ended {
                    lanes.ended(&room);
                }
            }
        }
    }
}

/// An event that waits.
#[derive(Debug)]
struct Waiting {
    event: Arc<WebhookEvent>,
    until: Instant,
}

/// What waits, by room. A room is in `order` once for as long as something of it waits and nothing is under way.
#[derive(Debug, Default)]
struct Lanes {
    rooms: HashMap<String, VecDeque<Waiting>>,
    order: VecDeque<String>,
    waiting: usize,
    under_way: usize,
}

impl Lanes {
    fn add(&mut self, event: Arc<WebhookEvent>, now: Instant) {
        let room = event
            .room
            .as_ref()
            .map(|room| room.name.clone())
            .unwrap_or_default();
        let known = self.rooms.contains_key(&room);
        let lane = self.rooms.entry(room.clone()).or_default();
        if lane.len() >= MOST_OF_A_ROOM || self.waiting >= MOST_WAITING {
            metrics::webhook_lost(WebhookLoss::Receiver);
            if !known {
                self.rooms.remove(&room);
            }
            return;
        }
        self.waiting += 1;
        lane.push_back(Waiting {
            event,
            until: now + PATIENCE,
        });
        if !known {
            self.order.push_back(room);
        }
    }

    /// The next event that may be posted, of the room that has waited longest.
    fn next(&mut self) -> Option<(String, Waiting)> {
        if self.under_way >= MOST_AT_ONCE {
            return None;
        }
        let room = self.order.pop_front()?;
        let waiting = self.rooms.get_mut(&room)?.pop_front()?;
        self.waiting = self.waiting.saturating_sub(1);
        self.under_way += 1;
        Some((room, waiting))
    }

    /// What was under way of this room is out.
    fn ended(&mut self, room: &str) {
        self.under_way = self.under_way.saturating_sub(1);
        match self.rooms.get(room) {
            Some(lane) if !lane.is_empty() => self.order.push_back(room.to_owned()),
            _ => drop(self.rooms.remove(room)),
        }
    }
}

/// One address.
struct Post {
    url: Url,
    key: ApiKey,
    reach: Reach,
    clients: Clients,
}

impl Post {
    async fn deliver(&self, waiting: &Waiting) {
        let mut pauses = PAUSES.into_iter();
        loop {
            if Instant::now() < waiting.until {
                match self.attempt(&waiting.event).await {
                    Attempt::Delivered => {
                        metrics::webhook_tried(true);
                        return;
                    }
                    Attempt::Refused => break,
                    Attempt::Away => {}
                }
            }
            let Some(pause) = pauses.next() else { break };
            if Instant::now() + pause >= waiting.until {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        metrics::webhook_tried(false);
        metrics::webhook_lost(WebhookLoss::Receiver);
    }

    async fn attempt(&self, event: &WebhookEvent) -> Attempt {
        let host = self.url.host_str().unwrap_or_default();
        let signed = match self.key.sign_event(event) {
            Ok(signed) => signed,
            Err(error) => {
                tracing::error!(%error, event = event.id, "an event of a room is lost");
                return Attempt::Refused;
            }
        };
        let request = self
            .clients
            .within(self.reach)
            .post(self.url.clone())
            .header(CONTENT_TYPE, MEDIA_TYPE)
            .header(AUTHORIZATION, signed.authorization)
            .body(signed.body);
        match request.send().await {
            Ok(answer) if answer.status().is_success() => Attempt::Delivered,
            Ok(answer) => {
                let status = answer.status();
                tracing::warn!(host, event = event.id, %status, "an event of a room is not taken");
                if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
                    Attempt::Away
                } else {
                    Attempt::Refused
                }
            }
            Err(error) => {
                // The address may hold a secret.
                let error = error.without_url();
                tracing::warn!(host, event = event.id, error = %causes(&error), "an event's receiver is away");
                Attempt::Away
            }
        }
    }
}

/// How an attempt ended.
enum Attempt {
    Delivered,
    /// It will not be taken later either.
    Refused,
    Away,
}

#[cfg(test)]
mod tests {
    use livekit_protocol::Room;

    use super::*;

    fn event(room: &str, id: usize) -> Arc<WebhookEvent> {
        Arc::new(WebhookEvent {
            id: id.to_string(),
            room: Some(Room {
                name: room.to_owned(),
                ..Room::default()
            }),
            ..WebhookEvent::default()
        })
    }

    fn next(lanes: &mut Lanes) -> Option<(String, String)> {
        let (room, waiting) = lanes.next()?;
        Some((room, waiting.event.id.clone()))
    }

    #[test]
    fn events_of_a_room_are_posted_one_behind_the_other_and_delay_no_other_room() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for id in 0..3 {
            lanes.add(event("a", id), now);
        }
        lanes.add(event("b", 9), now);
        let own = |room: &str, id: &str| Some((room.to_owned(), id.to_owned()));
        assert_eq!(next(&mut lanes), own("a", "0"));
        assert_eq!(next(&mut lanes), own("b", "9"));
        assert_eq!(next(&mut lanes), None);
        lanes.ended("a");
        assert_eq!(next(&mut lanes), own("a", "1"));
        lanes.add(event("a", 3), now);
        assert_eq!(next(&mut lanes), None);
        for id in ["2", "3"] {
            lanes.ended("a");
            assert_eq!(next(&mut lanes), own("a", id));
        }
        lanes.ended("a");
        lanes.ended("b");
        assert!(lanes.rooms.is_empty() && lanes.order.is_empty());
        assert_eq!((lanes.waiting, lanes.under_way), (0, 0));
    }

    #[test]
    fn what_waits_is_bounded_by_room_and_in_all() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for id in 0..2 * MOST_OF_A_ROOM {
            lanes.add(event("a", id), now);
        }
        assert_eq!(lanes.waiting, MOST_OF_A_ROOM);
        for room in 0..2 * MOST_WAITING {
            lanes.add(event(&room.to_string(), 0), now);
        }
        assert_eq!(lanes.waiting, MOST_WAITING);
        assert!(lanes.rooms.len() <= MOST_WAITING);
    }
}
