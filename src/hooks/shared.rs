//! Hooks shared by several servers through Redis: a hash with a field per host and one for the version, which changes
//! with every modification. Changes are applied only to the version they were based on (optimistic locking).

use std::io;
use std::sync::Arc;

use redis::Script;

use super::table::{Added, Change, Hook};
use vivavoce_config::Secret;
use vivavoce_replicas::{Redis, SharedError};

/// The key of the hash, and its version field, which cannot be a host name.
const KEY: &str = "vivavoce:hooks";
const VERSION: &str = "#version";

/// Modifies the hash if its version still is `ARGV[1]`, sets the version to `ARGV[2]`, and returns whether it did.
/// Pairs of field and value follow; an empty value removes the field.
const CHANGE: &str = r"
local version = redis.call('HGET', KEYS[1], '#version') or ''
if version ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[1], ARGV[i])
  else redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', KEYS[1], '#version', ARGV[2])
return 1
";

/// The content of the hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Empty if nothing has been stored yet.
    pub version: String,
    /// The hooks.
    pub added: Added,
}

/// The hash in Redis.
pub struct Shared(Redis);

impl Shared {
    /// Hooks at this URL; `tls` is used for `rediss://`.
    pub fn new(url: &Secret, tls: Arc<rustls::ClientConfig>) -> Result<Self, String> {
        Redis::new(url, tls).map(Self)
    }

    /// The current version; empty if nothing is stored. Retries once over a new connection if the old one has died.
    pub async fn version(&mut self) -> Result<String, SharedError> {
        let used = self.0.is_connected();
        match self.ask_version().await {
            Err(_) if used => self.ask_version().await,
            answer => answer,
        }
    }

    async fn ask_version(&mut self) -> Result<String, SharedError> {
        let mut query = redis::cmd("HGET");
        query.arg(KEY).arg(VERSION);
        let connection = self.0.connection().await?;
        let answer = query.query_async::<Option<String>>(connection).await;
        Ok(self.0.checked(answer)?.unwrap_or_default())
    }

    /// Reads the whole hash.
    pub async fn load(&mut self) -> Result<Snapshot, SharedError> {
        let mut query = redis::cmd("HGETALL");
        query.arg(KEY);
        let connection = self.0.connection().await?;
        let answer = query.query_async::<Vec<(String, String)>>(connection).await;
        let mut version = String::new();
        let mut hooks = Vec::new();
        for (field, value) in self.0.checked(answer)? {
            if field == VERSION {
                version = value;
                continue;
            }
            match serde_json::from_str::<Hook>(&value) {
                Ok(hook) if hook.host.as_str() == field => hooks.push(hook),
                _ => tracing::warn!(
                    host = field,
                    "a hook in Redis cannot be parsed and is ignored"
                ),
            }
        }
        let added = hooks.into_iter().collect();
        Ok(Snapshot { version, added })
    }

    /// Applies a change if the version is still the one it was based on; returns the new version if so.
    pub async fn change(
        &mut self,
        decided_on: &str,
        change: &Change,
    ) -> Result<Option<String>, SharedError> {
        let version = uuid::Uuid::new_v4().to_string();
        let script = Script::new(CHANGE);
        let mut call = script.key(KEY);
        call.arg(decided_on).arg(&version);
        for host in &change.removed {
            call.arg(host.as_str()).arg("");
        }
        for hook in &change.put {
            let text = serde_json::to_string(hook).map_err(io::Error::other)?;
            call.arg(hook.host.as_str()).arg(text);
        }
        let connection = self.0.connection().await?;
        let answer = call.invoke_async::<bool>(connection).await;
        Ok(self.0.checked(answer)?.then_some(version))
    }
}
