//! The same vendors over TLS, with an authority of the network's own: everything is heard and said, and a connection that
//! is cut, falls silent or ends within a message is found out as it is without TLS.

use super::faults::{self, Outcome};
use super::{Backed, scripted};
use crate::session::client::{Session, config};
use serde_json::json;
use vivavoce::emulators::Vendor;

/// Faults of recognition: none, and those that end a connection.
const HEARING: &[(&str, Outcome)] = &[
    ("slow=0s", Outcome::Everything),
    ("close@700ms*1", Outcome::Everything),
    ("reset@700ms*1", Outcome::Everything),
    ("truncate@700ms*1", Outcome::Everything),
    ("half-open@700ms*1", Outcome::Everything),
];

/// Faults of synthesis.
const SPEAKING: &[(&str, Outcome)] = &[
    ("slow=0s", Outcome::Everything),
    (
        "trickle=100ms+close@300ms",
        Outcome::Error("provider_unavailable"),
    ),
    (
        "trickle=100ms+truncate@300ms",
        Outcome::Error("provider_unavailable"),
    ),
    (
        "trickle=100ms+half-open@300ms",
        Outcome::Error("provider_timeout"),
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn recognition_over_tls_bears_the_same_faults() {
    faults::matrix("stt", HEARING, Backed::securely_by).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn synthesis_over_tls_bears_the_same_faults() {
    faults::matrix("tts", SPEAKING, Backed::securely_by).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vendor_whose_authority_nobody_has_named_is_not_believed() {
    let backed = Backed::with_unknown_authority(scripted(&[]).await);
    for vendor in Vendor::STREAMING {
        let speak = json!({"tts_config": {"provider": vendor.slug(), "model": ""}});
        let mut session = Session::open(&backed.server, config(speak)).await;
        session.speak("u", "1 2 3").await;
        session.end_of("u").await;
        let errors = session.events_of("error");
        assert_eq!(errors.len(), 1, "{vendor:?}: {errors:?}");
        assert_eq!(errors[0]["code"], "provider_unavailable", "{vendor:?}");
        assert!(session.sound().is_empty(), "{vendor:?}");
        session.close().await;
        let mut visits = backed.emulators.emulation.log.all();
        visits.retain(|record| record.vendor == vendor.slug() && record.direction == "tts");
        assert!(visits.is_empty(), "{vendor:?} was told something");
    }
}
