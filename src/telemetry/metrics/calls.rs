//! Metrics of telephone calls.

use std::fmt::{self, Write as _};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Durations, METRICS, durations};
use vivavoce_core::call::{Classification, Direction, HangupCause, MediaReport};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Way {
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ending {
    direction: &'static str,
    cause: &'static str,
}

/// The limit because of which SIP signalling was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SipRefusal {
    /// The source address is not allowed.
    NotAllowed,
    /// Too many requests.
    Rate,
    /// The message was too large.
    Size,
    /// Too many calls wait for their acknowledgement.
    Unacknowledged,
    /// The call's room has too many calls.
    Room,
    /// Too many connections are open.
    Connection,
    /// The trunk of its number does not let it in.
    Trunk,
    /// It has not the name and password of its trunk.
    Password,
}

impl EncodeLabelValue for SipRefusal {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::NotAllowed => "not_allowed",
            Self::Rate => "rate",
            Self::Size => "size",
            Self::Unacknowledged => "unacknowledged",
            Self::Room => "room",
            Self::Connection => "connection",
            Self::Trunk => "trunk",
            Self::Password => "password",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    cause: SipRefusal,
}

/// Signalling was refused.
pub fn sip_refused(cause: SipRefusal) {
    let refused = &METRICS.calls.refused;
    refused.get_or_create(&Refused { cause }).inc();
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedCall {
    status: u16,
}

/// An inbound call was refused with this SIP status.
pub fn sip_call_refused(status: u16) {
    let refused = &METRICS.calls.refused_with;
    refused.get_or_create(&RefusedCall { status }).inc();
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Attempt {
    outcome: &'static str,
}

/// An attempt to register at a SIP registrar has ended like this.
pub fn sip_registered(outcome: &'static str) {
    let attempts = &METRICS.calls.registration_attempts;
    attempts.get_or_create(&Attempt { outcome }).inc();
}

/// So many of all accounts are registered.
pub fn sip_registrations(registered: usize, all: usize) {
    let set = |gauge: &Gauge, count: usize| gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    set(&METRICS.calls.registrations, registered);
    set(&METRICS.calls.registration_accounts, all);
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Gateways {
    state: &'static str,
}

/// So many gateways of the settings answer, and so many do not.
pub fn sip_gateways(up: usize, down: usize) {
    for (state, count) in [("up", up), ("down", down)] {
        let gauge = METRICS.calls.gateways.get_or_create(&Gateways { state });
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// So many telephones are registered here.
pub fn sip_phones(count: usize) {
    let gauge = &METRICS.calls.phones;
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

impl Way {
    const fn of(direction: Direction) -> Self {
        Self {
            direction: direction.as_str(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Classified {
    result: &'static str,
    reason: &'static str,
}

/// It was found out who has answered an outbound call.
pub fn call_classified(found: &Classification) {
    let answered = Classified {
        result: found.result.as_str(),
        reason: found.reason.as_str(),
    };
    METRICS.calls.classified.get_or_create(&answered).inc();
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Waited {
    outcome: &'static str,
}

/// Somebody waits in a queue.
pub fn queue_entered() {
    METRICS.calls.queued.inc();
}

/// Somebody has waited so long in a queue, and does no longer.
pub fn queue_left(outcome: &'static str, waited: Duration) {
    METRICS.calls.queued.dec();
    let waits = METRICS.calls.queue_waits.get_or_create(&Waited { outcome });
    waits.observe(waited.as_secs_f64());
}

/// From those who are taken at once to those who give up.
fn waits() -> Durations {
    Durations::new([
        1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0,
    ])
}

/// All metrics of calls.
pub(super) struct Calls {
    live: Family<Way, Gauge>,
    begun: Family<Way, Counter>,
    ended: Family<Ending, Counter>,
    setup: Family<Way, Durations>,
    classified: Family<Classified, Counter>,
    queued: Gauge,
    queue_waits: Family<Waited, Durations>,
    received: Counter,
    lost: Counter,
    sent: Counter,
    first_packet: Durations,
    refused: Family<Refused, Counter>,
    refused_with: Family<RefusedCall, Counter>,
    registrations: Gauge,
    gateways: Family<Gateways, Gauge>,
    phones: Gauge,
    registration_accounts: Gauge,
    registration_attempts: Family<Attempt, Counter>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self {
            live: Family::default(),
            begun: Family::default(),
            ended: Family::default(),
            setup: Family::new_with_constructor(durations),
            classified: Family::default(),
            queued: Gauge::default(),
            queue_waits: Family::new_with_constructor(waits),
            received: Counter::default(),
            lost: Counter::default(),
            sent: Counter::default(),
            first_packet: durations(),
            refused: Family::default(),
            refused_with: Family::default(),
            registrations: Gauge::default(),
            gateways: Family::default(),
            phones: Gauge::default(),
            registration_accounts: Gauge::default(),
            registration_attempts: Family::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("calls", "Live telephone calls", self.live.clone());
        registry.register(
            "sip_refused",
            "What was refused in the telephone's signalling, by the bound that did",
            self.refused.clone(),
        );
        registry.register(
            "sip_refused_calls",
            "Inbound calls that were refused before they were calls, by SIP status",
            self.refused_with.clone(),
        );
        registry.register(
            "sip_registrations",
            "Accounts that are registered at SIP registrars",
            self.registrations.clone(),
        );
        registry.register(
            "sip_gateways",
            "Gateways of the settings, by how they answer OPTIONS",
            self.gateways.clone(),
        );
        registry.register(
            "sip_phones",
            "Telephones that are registered here",
            self.phones.clone(),
        );
        registry.register(
            "sip_registration_accounts",
            "Accounts that should be registered at SIP registrars",
            self.registration_accounts.clone(),
        );
        registry.register(
            "sip_registration_attempts",
            "Attempts to register at SIP registrars, and how they ended",
            self.registration_attempts.clone(),
        );
        registry.register(
            "calls_begun",
            "Telephone calls that have begun",
            self.begun.clone(),
        );
        registry.register(
            "calls_ended",
            "Telephone calls that are over, and why",
            self.ended.clone(),
        );
        registry.register(
            "call_classifications",
            "Who has answered outbound calls, as far as it was found out, and what has told it, corrections included",
            self.classified.clone(),
        );
        registry.register(
            "call_queued",
            "Callers that wait in a queue",
            self.queued.clone(),
        );
        registry.register_with_unit(
            "call_queue_wait",
            "How long callers have waited in a queue, by how that has ended",
            Unit::Seconds,
            self.queue_waits.clone(),
        );
        registry.register_with_unit(
            "call_setup",
            "From a telephone call's beginning to its answer",
            Unit::Seconds,
            self.setup.clone(),
        );
        registry.register(
            "call_packets_received",
            "Packets of sound that came, of telephone calls that are over",
            self.received.clone(),
        );
        registry.register(
            "call_packets_lost",
            "Packets of sound that should have come and did not, of telephone calls that are over",
            self.lost.clone(),
        );
        registry.register(
            "call_packets_sent",
            "Packets of sound that were sent, of telephone calls that are over",
            self.sent.clone(),
        );
        registry.register_with_unit(
            "call_first_packet",
            "From a telephone call's answer to the first packet of sound that came",
            Unit::Seconds,
            self.first_packet.clone(),
        );
    }
}

/// A call has started.
pub fn call_began(direction: Direction) {
    let way = Way::of(direction);
    METRICS.calls.live.get_or_create(&way).inc();
    METRICS.calls.begun.get_or_create(&way).inc();
}

/// A call was answered, this long after it started.
pub fn call_answered(direction: Direction, after: Duration) {
    let setup = METRICS.calls.setup.get_or_create(&Way::of(direction));
    setup.observe(after.as_secs_f64());
}

/// A call has ended.
pub fn call_ended(direction: Direction, cause: HangupCause) {
    METRICS.calls.live.get_or_create(&Way::of(direction)).dec();
    let ending = Ending {
        direction: direction.as_str(),
        cause: cause.as_str(),
    };
    METRICS.calls.ended.get_or_create(&ending).inc();
}

/// The media statistics of a call that has ended.
pub fn call_sounded(report: &MediaReport) {
    let calls = &METRICS.calls;
    calls.received.inc_by(report.received);
    calls.lost.inc_by(report.lost);
    calls.sent.inc_by(report.sent);
    if let Some(first) = report.first_received {
        calls.first_packet.observe(first.as_secs_f64());
    }
}
