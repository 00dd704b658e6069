//! Asks the gateways of the settings how they are (OPTIONS, RFC 3261 section 11), so that a call does not have to find out. A
//! gateway is up when one of its addresses answers, with whatever status. One that is down comes last, as does an address.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::time::{sleep, timeout};

use super::Inner;
use vivavoce_config::SipTransport;
use vivavoce_seams::rooms::telephone::{GatewayReport, GatewayState, Trunk};
use vivavoce_telemetry::metrics;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(4);

/// The gateways and how they are.
pub(super) struct Gateways(Mutex<Vec<(Trunk, GatewayReport)>>);

impl Gateways {
    pub fn new(trunks: Vec<Trunk>) -> Self {
        let entries = trunks.into_iter().map(|trunk| {
            let report = GatewayReport {
                address: trunk.gateway.to_string(),
                transport: match trunk.transport {
                    SipTransport::Udp => "udp",
                    SipTransport::Tcp => "tcp",
                    SipTransport::Tls => "tls",
                },
                state: GatewayState::Unknown,
                checked_at: None,
                round_trip: None,
            };
            (trunk, report)
        });
        Self(Mutex::new(entries.collect()))
    }

    fn table(&self) -> MutexGuard<'_, Vec<(Trunk, GatewayReport)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn reports(&self) -> Vec<GatewayReport> {
        self.table()
            .iter()
            .map(|(_, report)| report.clone())
            .collect()
    }

    /// How one is now; whether that has changed.
    fn set(&self, number: usize, answered: Option<Duration>) -> bool {
        let mut table = self.table();
        let Some((_, report)) = table.get_mut(number) else {
            return false;
        };
        let state = match answered {
            Some(_) => GatewayState::Up,
            None => GatewayState::Down,
        };
        let before = std::mem::replace(&mut report.state, state);
        report.checked_at = Some(SystemTime::now());
        report.round_trip = answered;
        let count = |state| table.iter().filter(|(_, one)| one.state == state).count();
        metrics::sip_gateways(count(GatewayState::Up), count(GatewayState::Down));
        before != state
    }
}

/// Begins to ask all of them, each on its own.
pub(super) fn begin(inner: &Arc<Inner>, interval: Duration) {
    let trunks: Vec<Trunk> = {
        let table = inner.settings.gateways.table();
        table.iter().map(|(trunk, _)| trunk.clone()).collect()
    };
    for (number, trunk) in trunks.into_iter().enumerate() {
        // The bridge ends while they wait.
        let (inner, stopped) = (Arc::downgrade(inner), inner.agent.stopped());
        tokio::spawn(async move {
            loop {
                let Some(inner) = inner.upgrade() else {
                    return;
                };
                check(&inner, number, &trunk).await;
                drop(inner);
                // Not all at the same moment.
                let pause = interval.mul_f64(0.9 + 0.2 * fastrand::f64());
                tokio::select! {
                    () = stopped.cancelled() => return,
                    () = sleep(pause) => {}
                }
            }
        });
    }
}

async fn check(inner: &Inner, number: usize, trunk: &Trunk) {
    let mut answered = None;
    let addresses = inner.addresses(trunk).await.unwrap_or_default();
    let several = addresses.len() > 1;
    for remote in addresses {
        let began = Instant::now();
        let asked = async {
            let reached = inner.flow(trunk, remote).await.ok()?;
            inner
                .agent
                .options(reached, &trunk.gateway.to_string())
                .await
        };
        let status = timeout(PATIENCE, asked).await.ok().flatten();
        if several {
            inner
                .settings
                .health
                .found(&remote.to_string(), status.is_some());
        }
        if status.is_some() && answered.is_none() {
            answered = Some(began.elapsed());
        }
    }
    let gateway = trunk.gateway.to_string();
    inner.settings.health.found(&gateway, answered.is_some());
    if inner.settings.gateways.set(number, answered) {
        match answered {
            Some(_) => tracing::info!(gateway, "a SIP gateway is up"),
            None => tracing::warn!(gateway, "a SIP gateway is down: it does not answer OPTIONS"),
        }
    }
}
