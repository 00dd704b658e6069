//! The key pair that signs room tokens: the one in the settings or, for embedded rooms, one that is generated on first start
//! and stored in the data folder.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::link::Join;
use super::{RoomError, RoomErrorKind, RoomPass, Supervision};
use crate::rooms::Now;
use crate::rooms::token::{self, Claims, Keys, TokenError, VideoGrant};
use vivavoce_auth::Principal;
use vivavoce_config::Rtc;

/// Where a key pair that nobody has set is kept, below the data folder.
const FILE: &str = "rtc-key.json";
/// Bytes of a key file at most.
const MOST_BYTES: u64 = 4_096;
/// The attribute of sessions without a token in rooms of a deployment, by which they are known when the room becomes
/// somebody's.
pub const ACCESS: &str = "vivavoce.access";
/// What it says.
pub const PUBLIC: &str = "public";
/// How long the token of an agent is good without being refreshed: longer than any loss of the server is waited for.
const AGENT_TOKEN: Duration = Duration::from_mins(10);

/// A key pair. The secret is never shown.
#[derive(Clone, Serialize, Deserialize)]
pub struct ApiKey {
    /// Its name.
    pub key: String,
    /// What signs.
    pub secret: String,
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKey({})", self.key)
    }
}

impl ApiKey {
    /// The one that the settings name.
    pub fn from_settings(settings: &Rtc) -> Option<Self> {
        Some(Self {
            key: settings.api_key.clone()?,
            secret: settings.api_secret.as_ref()?.expose().to_owned(),
        })
    }

    /// The one that is kept in the data folder; where there is none it is made. Of two processes that make one at the
    /// same time both use the same.
    pub fn kept(data_dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(data_dir)?;
        let path = data_dir.join(FILE);
        let new = Self {
            key: format!("API{}", random::<9>()?),
            secret: random::<32>()?,
        };
        // It gets its name when it is complete, and only if nobody has it yet.
        let draft = data_dir.join(format!(".{FILE}.{}", random::<9>()?));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        let written = serde_json::to_writer(&mut file, &new).map_err(io::Error::from);
        let written = written
            .and_then(|()| file.flush())
            .and_then(|()| file.sync_all());
        let named = written.and_then(|()| match std::fs::hard_link(&draft, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        });
        std::fs::remove_file(&draft)?;
        named?;
        let mut text = String::new();
        let file = std::fs::File::open(&path)?;
        file.take(MOST_BYTES).read_to_string(&mut text)?;
        serde_json::from_str(&text).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{}: {error}; remove it, and a new one is made",
                    path.display()
                ),
            )
        })
    }

    /// Makes the token of a participant. `provider` is named in the error.
    pub fn token(&self, provider: &'static str, pass: &RoomPass<'_>) -> Result<String, RoomError> {
        let claims = Claims {
            sub: pass.identity.to_owned(),
            name: pass.name.to_owned(),
            video: match pass.supervises {
                None => participation(pass.room),
                Some(supervision) => supervising(pass.room, supervision),
            },
            whispers_to: match pass.supervises {
                Some(Supervision::Whisper(to)) => Some(to.clone()),
                Some(Supervision::Listen) | None => None,
            },
            vivavoce: pass.tenant.cloned().map(Principal::Tenant),
            ..Claims::default()
        };
        self.sign(provider, claims, pass.lifetime)
    }

    /// Makes the token of a participant that is ours. A server refreshes it for as long as it is in the room.
    pub fn agent_token(&self, provider: &'static str, join: &Join) -> Result<String, RoomError> {
        // Of its participants' tokens a deployment shows only the attributes.
        let public = (join.principal == Principal::Public).then_some((ACCESS, PUBLIC));
        let public = public.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let claims = Claims {
            sub: join.identity.clone(),
            name: join.name.clone(),
            kind: join.kind.claim().to_owned(),
            metadata: join.metadata.clone(),
            attributes: join.attributes.iter().cloned().chain(public).collect(),
            video: participation(&join.room),
            ..Claims::default()
        };
        self.sign(provider, claims, AGENT_TOKEN)
    }

    /// Signs claims that hold from now on, for `lifetime`. `provider` is named in the error.
    pub fn sign(
        &self,
        provider: &'static str,
        claims: Claims,
        lifetime: Duration,
    ) -> Result<String, RoomError> {
        let refused = |message: &str| RoomError {
            provider,
            kind: RoomErrorKind::Refused,
            message: message.to_owned(),
        };
        if self.key.is_empty() || self.secret.is_empty() {
            return Err(refused("a token needs an API key and its secret"));
        }
        if claims.video.room_join && (claims.sub.is_empty() || claims.video.room.is_empty()) {
            return Err(refused(
                "a token that joins a room needs the room and an identity",
            ));
        }
        let now_s = Now::read().unix_s();
        let lifetime_s = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let claims = Claims {
            iss: self.key.clone(),
            nbf: now_s,
            exp: now_s.saturating_add(lifetime_s),
            ..claims
        };
        token::mint(&claims, &self.keys()).ok_or_else(|| refused("the token could not be signed"))
    }

    /// What a token says that was signed with this key pair and holds now.
    pub fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        token::verify(token, &self.keys(), Now::read().unix_s())
    }

    fn keys(&self) -> Keys {
        Keys::new([(self.key.as_str(), self.secret.as_str())])
    }
}

/// Joining one room, with everything that a participant does there.
fn participation(room: &str) -> VideoGrant {
    VideoGrant {
        room_join: true,
        room: room.to_owned(),
        can_publish: Some(true),
        can_subscribe: Some(true),
        can_publish_data: Some(true),
        can_update_own_metadata: Some(true),
        ..VideoGrant::default()
    }
}

/// Who listens is hidden; neither sends data, by which it would be known to all.
fn supervising(room: &str, supervision: &Supervision) -> VideoGrant {
    let whispers = matches!(supervision, Supervision::Whisper(_));
    VideoGrant {
        can_publish: Some(whispers),
        can_publish_sources: if whispers {
            vec!["microphone".to_owned()]
        } else {
            Vec::new()
        },
        can_publish_data: Some(false),
        can_update_own_metadata: Some(false),
        hidden: !whispers,
        ..participation(room)
    }
}

fn random<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // A text takes whatever is written to it.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use livekit_api::access_token::{TokenVerifier, VideoGrants};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SECRET: &str = "a secret of at least thirty-two bytes";

    fn key() -> ApiKey {
        ApiKey {
            key: "key".to_owned(),
            secret: SECRET.to_owned(),
        }
    }

    #[test]
    fn a_token_opens_one_room_and_nothing_else() {
        let pass = RoomPass {
            room: "kitchen",
            identity: "ann",
            name: "Ann",
            lifetime: Duration::from_mins(5),
            tenant: Some(&vivavoce_core::party::TenantId::new("a").unwrap()),
            supervises: None,
        };
        let token = key().token("test", &pass).unwrap();
        // What a deployment does not know it leaves alone; what it knows is as ever.
        let verified = |secret| TokenVerifier::with_api_key("key", secret).verify(&token);
        let claims = verified(SECRET).unwrap();
        assert_eq!((claims.sub.as_str(), claims.name.as_str()), ("ann", "Ann"));
        let expected = VideoGrants {
            room_join: true,
            room: "kitchen".to_owned(),
            can_publish: Some(true),
            can_subscribe: Some(true),
            can_publish_data: Some(true),
            can_update_own_metadata: Some(true),
            ..VideoGrants::default()
        };
        assert_eq!(
            serde_json::to_value(claims.video).unwrap(),
            serde_json::to_value(expected).unwrap()
        );
        assert!(verified("another secret that is long enough").is_err());
    }

    #[test]
    fn a_secret_is_never_shown() {
        assert!(!format!("{:?}", key()).contains(SECRET));
    }

    #[test]
    fn a_kept_key_is_made_once_and_for_the_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let first = ApiKey::kept(folder.path()).unwrap();
        let second = ApiKey::kept(folder.path()).unwrap();
        assert_eq!((&first.key, &first.secret), (&second.key, &second.secret));
        assert!(first.secret.len() >= 32);
        let file = folder.path().join(FILE);
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        std::fs::write(&file, "{").unwrap();
        let error = ApiKey::kept(folder.path()).unwrap_err();
        assert!(error.to_string().contains("remove it"), "{error}");
    }
}
