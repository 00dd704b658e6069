//! Events of embedded rooms, posted as a LiveKit server posts them: signed with the rooms' key pair, in order within a
//! room, retried for half a minute and then dropped. The rooms' owners share the capacity and take turns. Events are
//! kept in memory only: as with LiveKit, whoever needs certainty asks the room service for the current state.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use livekit_protocol::WebhookEvent;
use prost::Message as _;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{StatusCode, Url};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::delivery::Clients;
use super::egress_policy;
use vivavoce_config::{HttpUrl, Settings};
use vivavoce_core::backoff::Backoff;
use vivavoce_core::causes::causes;
use vivavoce_core::egress_policy::EgressPolicy;
use vivavoce_core::tls_roots::Authorities;
use vivavoce_quotas::{Party, RoundRobin, Share, Tally};
use vivavoce_seams::ApiKey;
use vivavoce_telemetry::metrics::{self, WebhookLoss};

/// The media type of LiveKit's webhooks.
const MEDIA_TYPE: &str = "application/webhook+json";
/// Capacity of the channel to the task of one URL, which only sorts what it is given.
const CHANNEL_CAPACITY: usize = 64;
/// Events that wait, per room and in all, and how many bytes they have as encoded: one may hold the metadata of a room and a
/// participant.
const MAX_WAITING_PER_ROOM: usize = 200;
const MAX_WAITING: usize = 10_000;
const MAX_WAITING_BYTES: u64 = 64 << 20;
/// Rooms whose events are posted concurrently to one URL.
const MAX_CONCURRENT: usize = 16;
/// Older events are of no use.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often an event is posted, and the pauses between.
const MOST_ATTEMPTS: u32 = 5;
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(8), 0.0);

/// An event, and the party that its room counts for.
type QueuedEvent = (Arc<WebhookEvent>, Party);

/// Posts events to every URL of `rtc.webhook_urls`. Clones share the same queues.
#[derive(Debug, Clone)]
pub struct RoomEvents {
    addresses: Vec<mpsc::Sender<QueuedEvent>>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl RoomEvents {
    /// Starts the tasks that post. Must be called in a tokio runtime.
    pub fn open(settings: &Settings, key: &ApiKey, authorities: &Authorities) -> io::Result<Self> {
        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let mut addresses = Vec::new();
        for HttpUrl(url) in &settings.rtc.webhook_urls.0 {
            let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
            let post = Post {
                url: url.clone(),
                key: key.clone(),
                egress: egress_policy(settings),
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

    /// Queues an event of a room that counts for `of`. An event beyond the limits of the room or the party is dropped
    /// and counted.
    pub async fn enqueue(&self, event: &Arc<WebhookEvent>, of: Party) {
        for address in &self.addresses {
            // Waits only until the task has queued earlier events, never for a receiver. Fails once the task has ended.
            let queued = (Arc::clone(event), of.clone());
            if address.send(queued).await.is_err() {
                metrics::webhook_lost(WebhookLoss::Receiver);
            }
        }
    }

    /// Waits until everything has been posted or given up, for `patience` at most. All other clones must have been
    /// dropped.
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

/// Contradictions in the settings of room webhooks.
pub(super) fn problems(settings: &Settings) -> Vec<String> {
    let urls = &settings.rtc.webhook_urls.0;
    let refused = urls
        .iter()
        .filter_map(|HttpUrl(url)| egress_policy(settings).check(url).err());
    let allow = "unless webhooks.allow_insecure, webhooks.allow_private say otherwise";
    refused
        .map(|error| format!("rtc.webhook_urls: {error}, {allow}"))
        .collect()
}

/// Posts events until no more can arrive and all have been posted.
async fn run(
    post: Arc<Post>,
    mut lanes: Lanes,
    mut events: mpsc::Receiver<QueuedEvent>,
    closing: CancellationToken,
) {
    let mut in_progress = JoinSet::new();
    let mut open = true;
    loop {
        while let Some((room, waiting)) = lanes.next() {
            let post = Arc::clone(&post);
            in_progress.spawn(async move {
                post.deliver(&waiting).await;
                (room, waiting.of)
            });
        }
        if !open && in_progress.is_empty() {
            return;
        }
        tokio::select! {
            () = closing.cancelled() => return,
            event = events.recv(), if open => match event {
                Some((event, of)) => lanes.add(event, of, Instant::now()),
                None => open = false,
            },
            Some(ended) = in_progress.join_next() => {
                // Deliveries do not panic.
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
    /// The party that its room counted for when it happened.
    of: Party,
    bytes: u64,
    until: Instant,
}

/// Waiting events by room. A room is in `order` exactly once while events wait and none is being posted; it takes the
/// turn of the party that its first waiting event counts for.
#[derive(Debug)]
struct Lanes {
    rooms: HashMap<String, VecDeque<Waiting>>,
    order: RoundRobin<Party, String>,
    waiting: Tally,
    waiting_bytes: Tally,
    in_progress: Tally,
}

impl Lanes {
    /// With a limit on what one party may use.
    fn new(share: Share) -> Self {
        Self {
            rooms: HashMap::new(),
            order: RoundRobin::default(),
            waiting: Tally::new(MAX_WAITING as u64, share),
            waiting_bytes: Tally::new(MAX_WAITING_BYTES, share),
            in_progress: Tally::new(MAX_CONCURRENT as u64, share),
        }
    }

    fn add(&mut self, event: Arc<WebhookEvent>, of: Party, now: Instant) {
        let of_room = event.room.as_ref().map(|room| &room.name);
        let of_egress = event.egress_info.as_ref().map(|egress| &egress.room_name);
        let room = of_room.or(of_egress).cloned().unwrap_or_default();
        let known = self.rooms.get(&room);
        let bytes = event.encoded_len() as u64;
        let full = known.is_some_and(|lane| lane.len() >= MAX_WAITING_PER_ROOM)
            || self.waiting.check(&of, 1).is_err()
            || self.waiting_bytes.check(&of, bytes).is_err();
        if full {
            metrics::webhook_lost(WebhookLoss::Receiver);
            return;
        }
        self.waiting.hold(&of, 1);
        self.waiting_bytes.hold(&of, bytes);
        if known.is_none() {
            self.order.push(of.clone(), room.clone());
        }
        self.rooms.entry(room).or_default().push_back(Waiting {
            event,
            of,
            bytes,
            until: now + PATIENCE,
        });
    }

    /// The next event to post: of the party whose turn it is, from the room that has waited longest.
    fn next(&mut self) -> Option<(String, Waiting)> {
        let in_progress = &self.in_progress;
        if in_progress.free() == 0 {
            return None;
        }
        let may = |of: &Party| in_progress.check(of, 1).is_ok();
        let (_, room) = self.order.pop(may)?;
        let waiting = self.rooms.get_mut(&room)?.pop_front()?;
        self.waiting.release(&waiting.of, 1);
        self.waiting_bytes.release(&waiting.of, waiting.bytes);
        self.in_progress.hold(&waiting.of, 1);
        Some((room, waiting))
    }

    /// The event being posted for this room, counted for `of`, is done.
    fn ended(&mut self, room: &str, of: &Party) {
        self.in_progress.release(of, 1);
        match self.rooms.get(room).and_then(VecDeque::front) {
            Some(next) => self.order.push(next.of.clone(), room.to_owned()),
            None => drop(self.rooms.remove(room)),
        }
    }
}

/// One receiver URL.
struct Post {
    url: Url,
    key: ApiKey,
    egress: EgressPolicy,
    clients: Clients,
}

impl Post {
    async fn deliver(&self, waiting: &Waiting) {
        for attempt in 0..MOST_ATTEMPTS {
            if Instant::now() < waiting.until {
                match self.attempt(&waiting.event).await {
                    Attempt::Delivered => {
                        metrics::webhook_tried(true);
                        return;
                    }
                    Attempt::Refused => break,
                    Attempt::Unavailable => {}
                }
            }
            let pause = BACKOFF.delay(attempt, 0.0);
            if attempt + 1 == MOST_ATTEMPTS || Instant::now() + pause >= waiting.until {
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
                tracing::error!(%error, event = event.id, "a room event could not be signed and is dropped");
                return Attempt::Refused;
            }
        };
        let request = self
            .clients
            .within(self.egress)
            .post(self.url.clone())
            .header(CONTENT_TYPE, MEDIA_TYPE)
            .header(AUTHORIZATION, signed.authorization)
            .body(signed.body);
        match request.send().await {
            Ok(answer) if answer.status().is_success() => Attempt::Delivered,
            Ok(answer) => {
                let status = answer.status();
                tracing::warn!(host, event = event.id, %status, "a receiver refused a room event");
                if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
                    Attempt::Unavailable
                } else {
                    Attempt::Refused
                }
            }
            Err(error) => {
                // The URL may contain a secret.
                let error = error.without_url();
                tracing::warn!(host, event = event.id, error = %causes(&error), "a receiver of room events cannot be reached");
                Attempt::Unavailable
            }
        }
    }
}

/// The outcome of an attempt.
enum Attempt {
    Delivered,
    /// A retry would not help.
    Refused,
    Unavailable,
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
        assert!(lanes.waiting.is_empty() && lanes.in_progress.is_empty());
        assert!(lanes.waiting_bytes.is_empty());
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_of_which_each_has_a_share() {
        let now = Instant::now();
        let mut lanes = lanes();
        let large = |room: usize| {
            let mut event = WebhookEvent::clone(&event(&room.to_string(), 0));
            let room = event.room.get_or_insert_default();
            room.metadata = "x".repeat(64 << 10);
            Arc::new(event)
        };
        for room in 0..2_000 {
            lanes.add(large(room), tenant("greedy"), now);
        }
        let held = lanes.waiting_bytes.total();
        assert!(held < MAX_WAITING_BYTES, "{held}");
        assert_eq!(lanes.waiting.total(), lanes.rooms.len() as u64);
        lanes.add(large(9_999), tenant("innocent"), now);
        assert!(lanes.waiting_bytes.total() > held);
    }

    #[test]
    fn what_waits_is_bounded_by_room_and_in_all() {
        let (now, nobody) = (Instant::now(), Party::Operator);
        let mut lanes = lanes();
        for id in 0..2 * MAX_WAITING_PER_ROOM {
            lanes.add(event("a", id), nobody.clone(), now);
        }
        assert_eq!(lanes.waiting.total(), MAX_WAITING_PER_ROOM as u64);
        for room in 0..2 * MAX_WAITING {
            lanes.add(event(&room.to_string(), 0), nobody.clone(), now);
        }
        assert_eq!(lanes.waiting.total(), MAX_WAITING as u64);
        assert!(lanes.rooms.len() <= MAX_WAITING);
    }

    #[test]
    fn thousands_of_rooms_of_one_tenant_neither_delay_nor_lose_anothers_event() {
        let now = Instant::now();
        let mut lanes = lanes();
        for room in 0..2 * MAX_WAITING {
            lanes.add(event(&room.to_string(), room), tenant("greedy"), now);
        }
        while lanes.next().is_some() {}
        lanes.add(event("small", 1), tenant("innocent"), now);
        // Although none of the other tenant's events has been posted yet, and before those that wait.
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
        assert!(lanes.rooms.is_empty() && lanes.in_progress.is_empty());
    }
}
