//! Posts webhooks: one task takes what is due from the queue, one short-lived task for each delivery signs, posts and
//! says how it ended. Addresses are checked when they are connected to, redirects are not followed, and answers are not
//! read beyond their head.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, StatusCode, redirect};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::queue::{Due, Outcome, Queue};
use super::signature::{VERSION, sign};
use super::spool::{Slip, Spool, Webhook};
use super::{Addressee, HookKeys, Lane, Receiver, WebhookSettings};
use vivavoce_core::outgoing::Authorities;
use vivavoce_core::outgoing::reach::{PublicOnly, Reach};
use vivavoce_telemetry::metrics::{self, WebhookLoss};

/// For a connection, and for everything up to the head of the answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);
/// Shorter than what servers keep an idle connection for, so that none is used just as it closes.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// Who delivers.
pub(super) struct Postman {
    spool: Arc<Spool>,
    round: Arc<Round>,
    queue: Queue<Lane, (String, Slip)>,
}

/// What a delivery needs beside its webhook.
struct Round {
    spool: Arc<Spool>,
    receiver: Option<Receiver>,
    hooks: HookKeys,
    clients: Clients,
}

/// What posts, to receivers of either reach.
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
        // A machine without certificates of authorities can tell receivers on it all the same.
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

    /// The one that connects to nothing beyond this reach.
    pub(super) const fn within(&self, reach: Reach) -> &Client {
        if reach.private {
            &self.anywhere
        } else {
            &self.public_only
        }
    }
}

type Delivered = (Due<Lane, (String, Slip)>, Outcome);

impl Postman {
    pub(super) fn new(
        spool: Arc<Spool>,
        settings: &WebhookSettings,
        authorities: &Authorities,
    ) -> io::Result<Self> {
        let round = Round {
            spool: Arc::clone(&spool),
            receiver: settings.receiver.clone(),
            hooks: settings.hooks.clone(),
            clients: Clients::new(authorities)?,
        };
        Ok(Self {
            spool,
            round: Arc::new(round),
            queue: Queue::new(settings.patience, settings.share),
        })
    }

    /// Delivers until it is closed, or nobody can hand anything in any more.
    pub(super) async fn run(
        mut self,
        found: Vec<Slip>,
        mut slips: mpsc::Receiver<(String, Slip)>,
        closing: CancellationToken,
    ) {
        let mut under_way = JoinSet::<Delivered>::new();
        for slip in found {
            let lane = slip.to.lane();
            let of = slip.of.clone();
            self.queue
                .add(lane, of, (String::new(), slip), Instant::now());
        }
        loop {
            while let Some(due) = self.queue.next(Instant::now()) {
                let round = Arc::clone(&self.round);
                under_way.spawn(async move {
                    let outcome = round.deliver(&due.item.1).await;
                    (due, outcome)
                });
            }
            metrics::webhooks_waiting(self.queue.len());
            let next = self.queue.next_due();
            tokio::select! {
                () = closing.cancelled() => return,
                slip = slips.recv() => match slip {
                    Some(slip) => {
                        let (lane, of) = (slip.1.to.lane(), slip.1.of.clone());
                        self.queue.add(lane, of, slip, Instant::now());
                    }
                    None => return,
                },
                Some(ended) = under_way.join_next() => {
                    // A delivery does not panic; one that did would be found by the next process.
                    if let Ok((due, outcome)) = ended {
                        self.ended(due, outcome).await;
                    }
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    async fn ended(&mut self, due: Due<Lane, (String, Slip)>, outcome: Outcome) {
        metrics::webhook_tried(outcome == Outcome::Delivered);
        let over = self
            .queue
            .finished(due, outcome, Instant::now(), fastrand::f64());
        for ((_, slip), delivered) in over {
            if !delivered {
                metrics::webhook_lost(WebhookLoss::Receiver);
                tracing::error!(receiver = ?slip.to, "a webhook has waited too long for its receiver and is lost");
            }
            let spool = Arc::clone(&self.spool);
            let removed = tokio::task::spawn_blocking(move || spool.remove(&slip)).await;
            if let Ok(Err(error)) = removed {
                tracing::warn!(%error, "a webhook cannot be removed from disk and will be sent again at the next start");
            }
        }
    }
}

impl Round {
    async fn deliver(&self, slip: &Slip) -> Outcome {
        let receiver = match &slip.to {
            Addressee::Hook(address) => self.hooks.receiver(address),
            Addressee::Settings => self.receiver.clone(),
        };
        // The settings may name one, or what signs for it, again in the life of another process.
        let Some(receiver) = receiver else {
            return Outcome::Away;
        };
        let (spool, read) = (Arc::clone(&self.spool), slip.clone());
        let webhook = tokio::task::spawn_blocking(move || spool.read(&read)).await;
        let webhook = match webhook {
            Ok(Ok(webhook)) => webhook,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a webhook on disk cannot be read");
                return Outcome::Refused { retry_after: None };
            }
            Err(_) => return Outcome::Refused { retry_after: None },
        };
        self.post(&receiver, webhook).await
    }

    async fn post(&self, receiver: &Receiver, webhook: Webhook) -> Outcome {
        let host = receiver.url.host_str().unwrap_or_default();
        let Webhook { id, body, .. } = webhook;
        if let Err(error) = receiver.reach.check(&receiver.url) {
            tracing::warn!(host, event = id, %error, "a webhook's receiver is out of reach");
            return Outcome::Away;
        }
        let client = self.clients.within(receiver.reach);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let request = client
            .post(receiver.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(
                "x-service-signature",
                sign(&receiver.secret, now, &id, &body),
            )
            .header("x-service-signature-version", VERSION)
            .header("x-service-timestamp", now)
            .header("x-service-event-id", &id)
            .body(body);
        match request.send().await {
            Ok(answer) if answer.status().is_success() => {
                tracing::debug!(host, event = id, "a webhook is delivered");
                Outcome::Delivered
            }
            Ok(answer) => {
                let status = answer.status();
                tracing::warn!(host, event = id, %status, "a webhook is not taken");
                let retry_after = answer.headers().get(RETRY_AFTER);
                let seconds = retry_after.and_then(|after| after.to_str().ok()?.parse().ok());
                judge(status, seconds)
            }
            Err(error) => {
                // The address may hold a secret.
                let error = error.without_url();
                tracing::warn!(host, event = id, error = %causes(&error), "a webhook's receiver is away");
                Outcome::Away
            }
        }
    }
}

/// A server that fails or asks for patience speaks for everything that it would get; any other refusal is about this one.
const fn judge(status: StatusCode, retry_after_seconds: Option<u64>) -> Outcome {
    match status.as_u16() {
        502..=504 => Outcome::Away,
        _ => Outcome::Refused {
            retry_after: match retry_after_seconds {
                Some(seconds) => Some(Duration::from_secs(seconds)),
                None => None,
            },
        },
    }
}

/// An error with its causes: the outermost says only that something did not work.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    text
}
