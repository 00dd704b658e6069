//! Posts webhooks. One task takes due webhooks from the queue; a short-lived task per delivery signs and posts one and
//! reports the outcome. Receivers' addresses are checked when connecting, redirects are not followed, and response
//! bodies are not read.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, StatusCode, redirect};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::retries::{Due, Outcome, Queue};
use super::signature::signed;
use super::spool::{Spool, SpoolEntry, Webhook};
use super::waiting::{Ask, MAX_SHOWN, Shown, may_see};
use super::{Lane, Receiver, Receivers, Source, WebhookSettings};
use vivavoce_core::causes::causes;
use vivavoce_core::dialect::Dialect;
use vivavoce_core::egress_policy::{EgressPolicy, PublicOnly};
use vivavoce_core::tls_roots::Authorities;
use vivavoce_telemetry::metrics::{self, WebhookLoss};

/// Timeouts for connecting, and for everything up to the head of the response.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);
/// Shorter than most servers' keep-alive timeout, so that a connection is not reused just as the server closes it.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// The task that delivers webhooks.
pub(super) struct WebhookSender {
    spool: Arc<Spool>,
    context: Arc<DeliveryContext>,
    queue: Queue<Lane, (String, SpoolEntry)>,
}

/// What a delivery needs besides the webhook itself.
struct DeliveryContext {
    spool: Arc<Spool>,
    receivers: Arc<ArcSwap<Receivers>>,
    clients: Clients,
    dialect: Dialect,
}

/// HTTP clients, one per egress policy.
#[derive(Clone)]
pub(super) struct Clients {
    anywhere: Client,
    public_only: Client,
}

impl Clients {
    pub(super) fn new(authorities: &Authorities) -> io::Result<Self> {
        let client = || {
            let build = |client: reqwest::ClientBuilder| {
                client
                    .user_agent(concat!("vivavoce/", env!("CARGO_PKG_VERSION")))
                    .redirect(redirect::Policy::none())
                    // A proxy would connect to addresses that were not checked.
                    .no_proxy()
                    .connect_timeout(CONNECT)
                    .timeout(ANSWER)
                    .pool_idle_timeout(IDLE_CONNECTION)
            };
            build(authorities.client())
        };
        // A machine without CA certificates can still post to receivers over plain HTTP.
        let or_plain = |built: reqwest::Result<Client>| {
            built.or_else(|_| Client::builder().tls_certs_only([]).no_proxy().build())
        };
        Ok(Self {
            anywhere: or_plain(client().build()).map_err(io::Error::other)?,
            public_only: client()
                .dns_resolver(PublicOnly)
                .build()
                .map_err(io::Error::other)?,
        })
    }

    /// The client that enforces this policy.
    pub(super) const fn within(&self, egress: EgressPolicy) -> &Client {
        if egress.private {
            &self.anywhere
        } else {
            &self.public_only
        }
    }
}

type Delivered = (Due<Lane, (String, SpoolEntry)>, Outcome);

impl WebhookSender {
    pub(super) fn new(
        spool: Arc<Spool>,
        settings: &WebhookSettings,
        receivers: Arc<ArcSwap<Receivers>>,
        authorities: &Authorities,
    ) -> io::Result<Self> {
        let context = DeliveryContext {
            spool: Arc::clone(&spool),
            receivers,
            clients: Clients::new(authorities)?,
            dialect: settings.dialect.clone(),
        };
        Ok(Self {
            spool,
            context: Arc::new(context),
            queue: Queue::new(settings.patience, settings.share),
        })
    }

    /// Delivers until `closing` is cancelled or all senders are gone, and what has been begun by then to its end.
    pub(super) async fn run(
        mut self,
        found: Vec<SpoolEntry>,
        mut entries: mpsc::Receiver<(String, SpoolEntry)>,
        mut asks: mpsc::Receiver<Ask>,
        closing: CancellationToken,
    ) {
        let mut in_progress = JoinSet::<Delivered>::new();
        for entry in found {
            let lane = entry.to.lane();
            let of = entry.of.clone();
            self.queue
                .add(lane, of, (String::new(), entry), Instant::now());
        }
        loop {
            while let Some(due) = self.queue.next(Instant::now()) {
                let context = Arc::clone(&self.context);
                in_progress.spawn(async move {
                    let outcome = context.deliver(&due.item.1).await;
                    (due, outcome)
                });
            }
            metrics::webhooks_waiting(self.queue.len());
            let next = self.queue.next_due();
            tokio::select! {
                () = closing.cancelled() => break,
                entry = entries.recv() => match entry {
                    Some(entry) => {
                        let (lane, of) = (entry.1.to.lane(), entry.1.of.clone());
                        self.queue.add(lane, of, entry, Instant::now());
                    }
                    None => break,
                },
                // Whoever asked may have gone.
                Some(ask) = asks.recv() => self.answer(ask),
                Some(ended) = in_progress.join_next() => self.ended(ended).await,
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
        while let Some(ended) = in_progress.join_next().await {
            self.ended(ended).await;
        }
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Waiting(access, answer) => {
                let now = Instant::now();
                let shown = |of: &Source| may_see(&access, of);
                let waiting = self.queue.waiting();
                let waiting = waiting.filter(|(of, ..)| shown(of));
                let mut waiting: Vec<_> = waiting
                    .map(|(of, (_, entry), attempts, last, due)| Shown {
                        tenant: of.party.tenant().map(|id| id.as_str().to_owned()),
                        entry: entry.clone(),
                        attempts,
                        last,
                        due_in: due.saturating_duration_since(now),
                    })
                    .collect();
                let count = waiting.len();
                // Names begin with when they were taken.
                waiting.sort_by_key(|one| (std::cmp::Reverse(one.attempts > 0), one.entry.name()));
                waiting.truncate(MAX_SHOWN);
                let _gone = answer.send((count, waiting));
            }
            Ask::Again(access, name, answer) => {
                let found = self.queue.hasten(Instant::now(), |of, (_, entry)| {
                    may_see(&access, of) && name.as_ref().is_none_or(|name| entry.name() == *name)
                });
                let _gone = answer.send(found);
            }
        }
    }

    async fn ended(&mut self, ended: Result<Delivered, JoinError>) {
        // Deliveries do not panic; if one did, the next process would deliver its webhook.
        let Ok((due, outcome)) = ended else {
            return;
        };
        metrics::webhook_tried(outcome == Outcome::Delivered);
        let over = self
            .queue
            .finished(due, outcome, Instant::now(), fastrand::f64());
        for ((_, entry), delivered) in over {
            if !delivered {
                metrics::webhook_lost(WebhookLoss::Receiver);
                tracing::error!(receiver = ?entry.to, "a webhook could not be delivered within webhooks.retry_seconds and is dropped");
            }
            let spool = Arc::clone(&self.spool);
            let removed = tokio::task::spawn_blocking(move || spool.remove(&entry)).await;
            if let Ok(Err(error)) = removed {
                tracing::warn!(%error, "a delivered webhook could not be removed from the spool and will be sent again after a restart");
            }
        }
    }
}

impl DeliveryContext {
    async fn deliver(&self, entry: &SpoolEntry) -> Outcome {
        // A later process may be configured with this receiver, or with a key for it, again.
        let Some(receiver) = self.receivers.load().of(&entry.to) else {
            return Outcome::Unavailable;
        };
        let (spool, read) = (Arc::clone(&self.spool), entry.clone());
        let webhook = tokio::task::spawn_blocking(move || spool.read(&read)).await;
        let webhook = match webhook {
            Ok(Ok(webhook)) => webhook,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a webhook in the spool cannot be read");
                return Outcome::Refused { retry_after: None };
            }
            Err(_) => return Outcome::Refused { retry_after: None },
        };
        self.post(&receiver, webhook).await
    }

    async fn post(&self, receiver: &Receiver, webhook: Webhook) -> Outcome {
        let host = receiver.url.host_str().unwrap_or_default();
        let Webhook { id, body, .. } = webhook;
        if let Err(error) = receiver.egress.check(&receiver.url) {
            tracing::warn!(host, event = id, %error, "the egress policy forbids a webhook's receiver");
            return Outcome::Unavailable;
        }
        let client = self.clients.within(receiver.egress);
        let mut request = client
            .post(receiver.url.clone())
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in signed(&receiver.secret, &id, &body) {
            request = request.header(&*self.dialect.header(name), value);
        }
        let request = request.body(body);
        match request.send().await {
            Ok(answer) if answer.status().is_success() => {
                tracing::debug!(host, event = id, "webhook delivered");
                Outcome::Delivered
            }
            Ok(answer) => {
                let status = answer.status();
                tracing::warn!(host, event = id, %status, "a webhook's receiver refused it");
                let retry_after = answer.headers().get(RETRY_AFTER);
                let seconds = retry_after.and_then(|after| after.to_str().ok()?.parse().ok());
                judge(status, seconds)
            }
            Err(error) => {
                // The URL may contain a secret.
                let error = error.without_url();
                tracing::warn!(host, event = id, error = %causes(&error), "a webhook's receiver cannot be reached");
                Outcome::Unavailable
            }
        }
    }
}

/// 502, 503 and 504 concern the receiver as a whole; any other failure concerns this webhook.
const fn judge(status: StatusCode, retry_after_seconds: Option<u64>) -> Outcome {
    match status.as_u16() {
        502..=504 => Outcome::Unavailable,
        _ => Outcome::Refused {
            retry_after: match retry_after_seconds {
                Some(seconds) => Some(Duration::from_secs(seconds)),
                None => None,
            },
        },
    }
}
