//! Events of embedded rooms, posted as a LiveKit server posts them: signed with the key pair of the rooms, those of one
//! room one behind the other, tried for half a minute and then given up. The owners of rooms take turns, and share the places.
//! Events are kept in memory only: whoever relies on them asks the room service what is, as with LiveKit.

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
use vivavoce_config::{HttpUrl, Settings};
use vivavoce_core::outgoing::Authorities;
use vivavoce_core::outgoing::reach::Reach;
use vivavoce_quotas::{InTurn, Party, Share, Tally};
use vivavoce_seams::ApiKey;
use vivavoce_telemetry::metrics::{self, WebhookLoss};

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

/// An event, and for whom its room counts.
type Happened = (Arc<WebhookEvent>, Party);

/// Posts events to every address of `rtc.webhook_urls`. Clones are the same.
#[derive(Debug, Clone)]
pub struct RoomEvents {
    addresses: Vec<mpsc::Sender<Happened>>,
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
            let lanes = Lanes::new(Share::of(settings));
            tasks.spawn(run(Arc::new(post), lanes, receiver, closing.clone()));
            addresses.push(sender);
        }
        Ok(Self {
            addresses,
            tasks,
            closing,
        })
    }

    /// Hands in an event of a room that counts for somebody. Where too many of the room or of theirs wait already it is lost
    /// and counted.
    pub async fn tell(&self, event: &Arc<WebhookEvent>, of: Party) {
        for address in &self.addresses {
            // Waits for the task to put away what came before, never for a receiver. Fails when it has given up.
            let happened = (Arc::clone(event), of.clone());
            if address.send(happened).await.is_err() {
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
    mut lanes: Lanes,
    mut events: mpsc::Receiver<Happened>,
    closing: CancellationToken,
) {
    let mut under_way = JoinSet::new();
    let mut open = true;
    loop {
        while let Some((room, waiting)) = lanes.next() {
            let post = Arc::clone(&post);
            under_way.spawn(async move {
                post.deliver(&waiting).await;
                (room, waiting.of)
            });
        }
        if !open && under_way.is_empty() {
            return;
        }
        tokio::select! {
            () = closing.cancelled() => return,
            event = events.recv(), if open => match event {
                Some((event, of)) => lanes.add(event, of, Instant::now()),
                None => open = false,
            },
            Some(ended) = under_way.join_next() => {
                // A delivery does not panic.
                if let Ok((room, of)) = ended {
                    lanes.ended(&room, &of);
                }
            }
        }
    }
}

/// An event that waits.
#[derive(Debug)]
struct Waiting {
    event: Arc<WebhookEvent>,
    /// For whom its room counted.
    of: Party,
    until: Instant,
}

/// What waits, by room. A room is in `order` once for as long as something of it waits and nothing is under way; it has the
/// turn of whoever it counted for when the first that waits has happened.
#[derive(Debug)]
struct Lanes {
    rooms: HashMap<String, VecDeque<Waiting>>,
    order: InTurn<Party, String>,
    waiting: Tally,
    under_way: Tally,
}

impl Lanes {
    /// Of whose places nobody has more than this share.
    fn new(share: Share) -> Self {
        Self {
            rooms: HashMap::new(),
            order: InTurn::default(),
            waiting: Tally::new(MOST_WAITING as u64, share),
            under_way: Tally::new(MOST_AT_ONCE as u64, share),
        }
    }

    fn add(&mut self, event: Arc<WebhookEvent>, of: Party, now: Instant) {
        let room = event.room.as_ref();
        let room = room.map(|room| room.name.clone()).unwrap_or_default();
        let known = self.rooms.get(&room);
        let full = known.is_some_and(|lane| lane.len() >= MOST_OF_A_ROOM);
        if full || self.waiting.take(&of, 1).is_err() {
            metrics::webhook_lost(WebhookLoss::Receiver);
            return;
        }
        if known.is_none() {
            self.order.push(of.clone(), room.clone());
        }
        self.rooms.entry(room).or_default().push_back(Waiting {
            event,
            of,
            until: now + PATIENCE,
        });
    }

    /// The next event that may be posted, of whoever's turn it is, of the room of theirs that has waited longest.
    fn next(&mut self) -> Option<(String, Waiting)> {
        let under_way = &self.under_way;
        if under_way.free() == 0 {
            return None;
        }
        let may = |of: &Party| under_way.check(of, 1).is_ok();
        let (_, room) = self.order.pop(may)?;
        let waiting = self.rooms.get_mut(&room)?.pop_front()?;
        self.waiting.release(&waiting.of, 1);
        self.under_way.hold(&waiting.of, 1);
        Some((room, waiting))
    }

    /// What was under way of this room, for whom it counts, is out.
    fn ended(&mut self, room: &str, of: &Party) {
        self.under_way.release(of, 1);
        match self.rooms.get(room).and_then(VecDeque::front) {
            Some(next) => self.order.push(next.of.clone(), room.to_owned()),
            None => drop(self.rooms.remove(room)),
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

    fn tenant(id: &str) -> Party {
        Party::Tenant(vivavoce_auth::TenantId::new(id).unwrap())
    }

    fn lanes() -> Lanes {
        Lanes::new(Share::default())
    }

    fn next(lanes: &mut Lanes) -> Option<(String, String)> {
        let (room, waiting) = lanes.next()?;
        Some((room, waiting.event.id.clone()))
    }

    #[test]
    fn events_of_a_room_are_posted_one_behind_the_other_and_delay_no_other_room() {
        let now = Instant::now();
        let mut lanes = lanes();
        let nobody = Party::Operator;
        for id in 0..3 {
            lanes.add(event("a", id), nobody.clone(), now);
        }
        lanes.add(event("b", 9), nobody.clone(), now);
        let own = |room: &str, id: &str| Some((room.to_owned(), id.to_owned()));
        assert_eq!(next(&mut lanes), own("a", "0"));
        assert_eq!(next(&mut lanes), own("b", "9"));
        assert_eq!(next(&mut lanes), None);
        lanes.ended("a", &nobody);
        assert_eq!(next(&mut lanes), own("a", "1"));
        lanes.add(event("a", 3), nobody.clone(), now);
        assert_eq!(next(&mut lanes), None);
        for id in ["2", "3"] {
            lanes.ended("a", &nobody);
            assert_eq!(next(&mut lanes), own("a", id));
        }
        lanes.ended("a", &nobody);
        lanes.ended("b", &nobody);
        assert!(lanes.rooms.is_empty() && lanes.order.is_empty());
        assert!(lanes.waiting.is_empty() && lanes.under_way.is_empty());
    }

    #[test]
    fn what_waits_is_bounded_by_room_and_in_all() {
        let (now, nobody) = (Instant::now(), Party::Operator);
        let mut lanes = lanes();
        for id in 0..2 * MOST_OF_A_ROOM {
            lanes.add(event("a", id), nobody.clone(), now);
        }
        assert_eq!(lanes.waiting.total(), MOST_OF_A_ROOM as u64);
        for room in 0..2 * MOST_WAITING {
            lanes.add(event(&room.to_string(), 0), nobody.clone(), now);
        }
        assert_eq!(lanes.waiting.total(), MOST_WAITING as u64);
        assert!(lanes.rooms.len() <= MOST_WAITING);
    }

    #[test]
    fn thousands_of_rooms_of_one_tenant_neither_delay_nor_lose_anothers_event() {
        let now = Instant::now();
        let mut lanes = lanes();
        for room in 0..2 * MOST_WAITING {
            lanes.add(event(&room.to_string(), room), tenant("greedy"), now);
        }
        while lanes.next().is_some() {}
        lanes.add(event("small", 1), tenant("innocent"), now);
        // Although nothing of the other's is out, and before whatever of theirs waits.
        assert_eq!(next(&mut lanes).unwrap().0, "small");
    }

    #[test]
    fn a_room_that_becomes_anothers_keeps_its_order_and_counts_for_each_in_turn() {
        let now = Instant::now();
        let mut lanes = lanes();
        lanes.add(event("room", 1), tenant("a"), now);
        lanes.add(event("room", 2), tenant("b"), now);
        let (room, first) = lanes.next().unwrap();
        assert!(lanes.next().is_none());
        lanes.ended(&room, &first.of);
        let (room, second) = lanes.next().unwrap();
        assert_eq!([&first.of, &second.of], [&tenant("a"), &tenant("b")]);
        lanes.ended(&room, &second.of);
        assert!(lanes.rooms.is_empty() && lanes.under_way.is_empty());
    }
}
