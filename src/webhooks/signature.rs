//! The signature by which a receiver knows that a webhook is ours and when it was sent (protocol, section 4).

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use vivavoce_config::Secret;

/// The value of `X-Service-Signature-Version`, and the prefix of the signed text.
const VERSION: &str = "v1";

/// The headers that sign a body, sent now.
pub fn signed(secret: &Secret, event_id: &str, body: &str) -> [(&'static str, String); 4] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    [
        ("x-service-signature", sign(secret, now, event_id, body)),
        ("x-service-signature-version", VERSION.to_owned()),
        ("x-service-timestamp", now.to_string()),
        ("x-service-event-id", event_id.to_owned()),
    ]
}

/// The value of `X-Service-Signature`: HMAC-SHA256 over `v1:{timestamp}:{event_id}:{body}`, in hexadecimal.
fn sign(secret: &Secret, timestamp: u64, event_id: &str, body: &str) -> String {
    // HMAC accepts keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()) else {
        return String::new();
    };
    for part in [
        VERSION,
        ":",
        &timestamp.to_string(),
        ":",
        event_id,
        ":",
        body,
    ] {
        mac.update(part.as_bytes());
    }
    let mut signature = format!("{VERSION}=");
    for byte in mac.finalize().into_bytes() {
        let _ = write!(signature, "{byte:02x}");
    }
    signature
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_one_that_other_programs_compute() {
        // printf 'v1:1700000000:evt:{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef
        let secret = Secret::new("0123456789abcdef");
        assert_eq!(
            sign(&secret, 1_700_000_000, "evt", r#"{"a":1}"#),
            "v1=4fbdf35bf2c8fac697b0e26a187578f3a3d95abc9e1714433516367ac256d533"
        );
    }
}
