//! Selects the outbound trunk of a call. Newer deployments take the trunk with the call. Older ones require a stored trunk:
//! one of ours with the same address, credentials and number, or else a new one. A stored trunk is never used for a call
//! that differs in any of these, and trunks of others are never used.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hmac::{Hmac, Mac};
use livekit_protocol::{
    CreateSipOutboundTrunkRequest, DeleteSipTrunkRequest, ListSipOutboundTrunkRequest,
    ListSipOutboundTrunkResponse, SipOutboundConfig, SipOutboundTrunkInfo,
};
use sha2::Sha256;
use tokio::sync::Mutex;

use super::wire;
use crate::server_api::{ApiError, Grant, ServerApi, code};
use vivavoce_config::Secret;
use vivavoce_seams::ApiKey;
use vivavoce_seams::rooms::telephone::{CallError, Trunk};

/// What the names of our trunks begin with.
const NAME: &str = "vivavoce-";
/// So many trunks of ours a deployment keeps; a new one takes the place of the one that has not been used for longest.
const MOST: usize = 200;
/// No call waits for more of them to be removed.
const MOST_REMOVED: usize = 4;
/// How a deployment says that it needs a stored trunk: one that knows no other, also if one came with the call.
const WANTS_STORED: &str = "missing sip trunk id";

/// The stored trunks of a deployment, as far as they are ours.
pub struct OutboundTrunks {
    /// Signs what a trunk is for, so that its name tells it and nothing of a password.
    secret: Secret,
    /// Whether the deployment may know trunks that come with a call.
    inline: AtomicBool,
    /// The names of those that were used here, the latest last. Of two calls that need the same new trunk one makes it.
    used: Mutex<Vec<String>>,
}

/// The trunk of a call, to come with it.
pub fn inline(trunk: &Trunk) -> SipOutboundConfig {
    let (auth_username, auth_password) = login(trunk);
    SipOutboundConfig {
        hostname: trunk.gateway.to_string(),
        transport: wire(trunk.transport) as i32,
        auth_username,
        auth_password,
        from_host: trunk.from_domain.clone().unwrap_or_default(),
        ..SipOutboundConfig::default()
    }
}

/// Whether a deployment has refused a trunk because it came with the call: nobody has been called then.
pub fn wants_stored(error: &ApiError) -> bool {
    error.twirp().is_some_and(|answer| {
        answer.code == code::INVALID_ARGUMENT
            && !answer.meta.contains_key("sip_status_code")
            && answer.msg.to_lowercase().contains(WANTS_STORED)
    })
}

fn login(trunk: &Trunk) -> (String, String) {
    match &trunk.login {
        Some(login) => (login.username.clone(), login.password.expose().to_owned()),
        None => (String::new(), String::new()),
    }
}

impl OutboundTrunks {
    pub fn new(key: &ApiKey) -> Self {
        Self {
            secret: Secret::new(key.secret.as_str()),
            inline: AtomicBool::new(true),
            used: Mutex::new(Vec::new()),
        }
    }

    pub fn may_be_inline(&self) -> bool {
        self.inline.load(Relaxed)
    }

    pub fn never_inline(&self) {
        if self.inline.swap(false, Relaxed) {
            tracing::info!(
                "the LiveKit deployment wants stored SIP trunks: calls go through those from now on"
            );
        }
    }

    /// The id of a stored trunk that is for exactly this.
    pub async fn find_or_make(
        &self,
        api: &ServerApi,
        trunk: &Trunk,
        number: &str,
    ) -> Result<String, CallError> {
        let mut used = self.used.lock().await;
        let wanted = self.stored(trunk, number);
        used.retain(|name| *name != wanted.name);
        used.push(wanted.name.clone());
        if used.len() > MOST {
            used.remove(0);
        }
        let every = ListSipOutboundTrunkRequest::default();
        let all: ListSipOutboundTrunkResponse = api
            .call("SIP/ListSIPOutboundTrunk", Grant::SipAdmin, &every)
            .await?;
        let all = all.items;
        if let Some(found) = all.iter().find(|known| is_same(known, &wanted)) {
            return Ok(found.sip_trunk_id.clone());
        }
        for sip_trunk_id in superfluous(all, &used) {
            // Calls that were placed by it go on. One that cannot be removed is so again next time.
            let request = DeleteSipTrunkRequest { sip_trunk_id };
            let removed = api.call::<()>("SIP/DeleteSIPTrunk", Grant::SipAdmin, &request);
            if let Err(error) = removed.await {
                tracing::warn!(error = %CallError::from(error), "a SIP trunk of ours cannot be removed");
            }
        }
        let request = CreateSipOutboundTrunkRequest {
            trunk: Some(wanted),
        };
        let made: SipOutboundTrunkInfo = api
            .call("SIP/CreateSIPOutboundTrunk", Grant::SipAdmin, &request)
            .await?;
        Ok(made.sip_trunk_id)
    }

    fn stored(&self, trunk: &Trunk, number: &str) -> SipOutboundTrunkInfo {
        let (auth_username, auth_password) = login(trunk);
        let address = trunk.gateway.to_string();
        let transport = wire(trunk.transport);
        let said = [
            &address,
            transport.as_str_name(),
            &auth_username,
            &auth_password,
            number,
        ];
        SipOutboundTrunkInfo {
            name: format!("{NAME}{}", self.fingerprint(&said)),
            address,
            transport: transport as i32,
            numbers: vec![number.to_owned()],
            auth_username,
            auth_password,
            ..SipOutboundTrunkInfo::default()
        }
    }

    fn fingerprint(&self, said: &[&str]) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.secret.expose().as_bytes()) else {
            return String::new();
        };
        for part in said {
            mac.update(part.as_bytes());
            mac.update(&[0]);
        }
        let digest = mac.finalize().into_bytes();
        digest
            .iter()
            .take(12)
            .fold(String::new(), |mut text, byte| {
                // A text takes whatever is written to it.
                let _ = write!(text, "{byte:02x}");
                text
            })
    }
}

/// Which of ours are to make place for another one: first those that nobody has used here, then by their last use.
fn superfluous(all: Vec<SipOutboundTrunkInfo>, used: &[String]) -> Vec<String> {
    let mut ours: Vec<_> = all
        .into_iter()
        .filter(|known| known.name.starts_with(NAME))
        .collect();
    let excess = (ours.len() + 1).saturating_sub(MOST).min(MOST_REMOVED);
    // `None` comes first, and of these the oldest.
    ours.sort_by_key(|known| {
        let last_use = used.iter().position(|name| *name == known.name);
        let made = known.created_at.as_ref().map_or(0, |at| at.seconds);
        (last_use, made)
    });
    let ids = ours.into_iter().map(|known| known.sip_trunk_id);
    ids.take(excess).collect()
}

/// Whether a stored trunk is for exactly what is wanted. Some deployments do not show passwords: then the name tells.
fn is_same(known: &SipOutboundTrunkInfo, wanted: &SipOutboundTrunkInfo) -> bool {
    let same_password = known.auth_password == wanted.auth_password
        || known.auth_password.is_empty()
        || known.auth_password.bytes().all(|byte| byte == b'*');
    known.name == wanted.name
        && known.address == wanted.address
        && known.transport == wanted.transport
        && known.numbers == wanted.numbers
        && known.auth_username == wanted.auth_username
        && same_password
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_config::SipTransport;
    use vivavoce_core::phone::Gateway;
    use vivavoce_seams::rooms::telephone::{CallerIdentity, Login};

    fn trunk(address: &str, password: &str) -> Trunk {
        Trunk {
            gateway: Gateway::parse(address).unwrap(),
            transport: SipTransport::Udp,
            login: Some(Login {
                username: "ann".to_owned(),
                password: Secret::new(password),
            }),
            private: false,
            from_domain: None,
            headers: Vec::new(),
            via: None,
            identity: CallerIdentity::default(),
        }
    }

    #[test]
    fn a_trunk_is_used_only_for_the_same_address_credential_and_number() {
        let key = ApiKey {
            key: "k".to_owned(),
            secret: "s".to_owned(),
        };
        let trunks = OutboundTrunks::new(&key);
        let wanted = trunks.stored(&trunk("a.example", "one"), "+1");
        assert!(is_same(&wanted, &wanted));
        let hidden = SipOutboundTrunkInfo {
            auth_password: "****".to_owned(),
            ..wanted.clone()
        };
        assert!(is_same(&hidden, &wanted));
        for other in [
            trunks.stored(&trunk("b.example", "one"), "+1"),
            trunks.stored(&trunk("a.example:5070", "one"), "+1"),
            trunks.stored(&trunk("a.example", "two"), "+1"),
            trunks.stored(&trunk("a.example", "one"), "+2"),
            SipOutboundTrunkInfo {
                name: "somebody's".to_owned(),
                ..wanted.clone()
            },
        ] {
            assert!(!is_same(&other, &wanted), "{}", other.name);
            let hidden = SipOutboundTrunkInfo {
                auth_password: String::new(),
                ..other
            };
            assert!(!is_same(&hidden, &wanted), "{}", hidden.name);
        }
        assert!(!wanted.name.contains("one"));
    }
}
