//! Events of rooms as LiveKit's webhooks carry them: JSON, and beside it a token that names its digest and is signed with
//! the key pair of the rooms (<https://docs.livekit.io/home/server/webhooks/>).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use livekit_protocol::WebhookEvent;
use sha2::{Digest, Sha256};

use super::ApiKey;
use super::token::Claims;

/// How long a signature is good.
const LIFETIME: Duration = Duration::from_mins(5);

/// An event that is ready to be posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedEvent {
    /// The value of `Authorization`.
    pub authorization: String,
    /// JSON, to be sent byte by byte as it is.
    pub body: String,
}

/// Why an event is not taken. Says nothing of what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// It has no token, or one that is not signed with this key pair, is out of date, or names another body.
    #[error(
        "Authorization: must be a token, signed with the key pair of the rooms, of this body and of now"
    )]
    Signature,
    /// What is signed is no event.
    #[error("the body is no event of a room")]
    Body,
    /// It could not be written.
    #[error("an event cannot be written as JSON")]
    Unwritable,
}

impl ApiKey {
    /// Signs an event, for five minutes from now.
    pub fn sign_event(&self, event: &WebhookEvent) -> Result<SignedEvent, EventError> {
        let body = serde_json::to_string(event).map_err(|_| EventError::Unwritable)?;
        let claims = Claims {
            sha256: STANDARD.encode(Sha256::digest(&body)),
            ..Claims::default()
        };
        let authorization = self.sign("webhook", claims, LIFETIME);
        Ok(SignedEvent {
            authorization: authorization.map_err(|_| EventError::Unwritable)?,
            body,
        })
    }

    /// Whether `Authorization` is signed with this key pair and holds now; the body that it is for is not known yet.
    pub fn check_signature(&self, authorization: &str) -> Result<(), EventError> {
        self.digest(authorization).map(drop)
    }

    /// Reads an event that was signed with this key pair.
    pub fn read_event(&self, event: &SignedEvent) -> Result<WebhookEvent, EventError> {
        let digest = self.digest(&event.authorization)?;
        let digest = STANDARD.decode(digest).map_err(|_| EventError::Signature)?;
        if digest[..] != Sha256::digest(&event.body)[..] {
            return Err(EventError::Signature);
        }
        serde_json::from_str(&event.body).map_err(|_| EventError::Body)
    }

    /// The digest of the body, in Base64, that a token of ours names.
    fn digest(&self, authorization: &str) -> Result<String, EventError> {
        let claims = self.verify(token(authorization)).ok();
        let digest = claims.map(|claims| claims.sha256);
        let digest = digest.filter(|digest| !digest.is_empty());
        digest.ok_or(EventError::Signature)
    }
}

/// LiveKit sends the token bare; some gateways put what is usual before it.
fn token(authorization: &str) -> &str {
    authorization
        .strip_prefix("Bearer ")
        .unwrap_or(authorization)
}

#[cfg(test)]
mod tests {
    use livekit_api::access_token::AccessToken;

    use super::*;

    fn key(secret: &str) -> ApiKey {
        ApiKey {
            key: "key".to_owned(),
            secret: format!("{secret}, a secret of at least thirty-two bytes"),
        }
    }

    fn event() -> WebhookEvent {
        WebhookEvent {
            event: "room_started".to_owned(),
            id: "EV_1".to_owned(),
            created_at: 1_700_000_000,
            ..WebhookEvent::default()
        }
    }

    #[test]
    fn what_is_signed_is_read_again_and_nothing_else_is() {
        let signed = key("a").sign_event(&event()).unwrap();
        let body: serde_json::Value = serde_json::from_str(&signed.body).unwrap();
        let written =
            serde_json::json!({"event": "room_started", "id": "EV_1", "createdAt": "1700000000"});
        assert_eq!(body, written);
        assert_eq!(key("a").read_event(&signed), Ok(event()));
        assert_eq!(key("b").read_event(&signed), Err(EventError::Signature));
        let altered = SignedEvent {
            body: signed.body.replace("EV_1", "EV_2"),
            ..signed.clone()
        };
        assert_eq!(key("a").read_event(&altered), Err(EventError::Signature));
        let unsigned = SignedEvent {
            authorization: String::new(),
            ..signed
        };
        assert_eq!(key("a").read_event(&unsigned), Err(EventError::Signature));
    }

    #[test]
    fn a_stale_signature_and_a_token_for_a_room_open_nothing() {
        let body = serde_json::to_string(&event()).unwrap();
        let token = |lifetime: Duration, digest: &str| {
            let ApiKey { key, secret } = key("a");
            AccessToken::with_api_key(&key, &secret)
                .with_ttl(lifetime)
                .with_sha256(digest)
                .to_jwt()
                .unwrap()
        };
        let digest = STANDARD.encode(Sha256::digest(&body));
        let read = |authorization: String| {
            let body = body.clone();
            key("a").read_event(&SignedEvent {
                authorization,
                body,
            })
        };
        let check = |authorization: &str| key("a").check_signature(authorization);
        assert_eq!(check(&token(LIFETIME, &digest)), Ok(()));
        for bad in [token(LIFETIME, ""), stale(&digest), String::new()] {
            assert_eq!(check(&bad), Err(EventError::Signature));
        }
        let other = key("b").check_signature(&token(LIFETIME, &digest));
        assert_eq!(other, Err(EventError::Signature));
        assert_eq!(read(token(LIFETIME, &digest)), Ok(event()));
        assert_eq!(read(token(LIFETIME, "")), Err(EventError::Signature));
        assert_eq!(
            read(stale(&digest)),
            Err(EventError::Signature),
            "a token that ended five minutes ago"
        );
    }

    /// A token whose time was over five minutes ago.
    fn stale(digest: &str) -> String {
        use hmac::{Hmac, Mac};

        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let ApiKey { key, secret } = key("a");
        let url_safe = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let header = url_safe.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let claims =
            serde_json::json!({"iss": key, "nbf": now - 600, "exp": now - 300, "sha256": digest});
        let claims = url_safe.encode(claims.to_string());
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(format!("{header}.{claims}").as_bytes());
        let signature = url_safe.encode(mac.finalize().into_bytes());
        format!("{header}.{claims}.{signature}")
    }
}
