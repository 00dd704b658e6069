//! LiveKit access tokens: JSON Web Tokens (RFC 7519) signed with HMAC-SHA256 by the secret of an API key. Defines their
//! claims, verifies and mints them; who may have one is decided elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, dangerous};
use livekit_protocol as proto;
use serde::{Deserialize, Serialize};

use vivavoce_auth::{Owner, Principal};

/// How far the clocks of two machines may differ, in seconds (the Go server allows as much).
const LEEWAY_S: i64 = 60;
/// A token longer than this is not looked at.
const LONGEST_TOKEN: usize = 64 * 1024;

/// API keys with their secrets. The secrets are not shown in `Debug`.
#[derive(Clone, Default)]
pub struct Keys(BTreeMap<String, String>);

impl Keys {
    /// Keys and secrets in pairs.
    pub fn new<K: Into<String>, S: Into<String>>(pairs: impl IntoIterator<Item = (K, S)>) -> Self {
        let pairs = pairs.into_iter();
        Self(
            pairs
                .map(|(key, secret)| (key.into(), secret.into()))
                .collect(),
        )
    }

    fn secret(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// What a token says. Absent fields have the meaning that the Go server gives them, see the methods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Claims {
    /// The API key that signed.
    pub iss: String,
    /// The participant's identity.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sub: String,
    /// The identity in old tokens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jti: String,
    /// Not valid before, Unix seconds.
    pub nbf: i64,
    /// Not valid from here on, Unix seconds.
    pub exp: i64,
    /// Shown to others.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `standard`, `ingress`, `egress`, `sip`, `agent`; empty means standard.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Free text about the participant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub metadata: String,
    /// Keys and values about the participant.
    #[serde(skip_serializing_if = "HashMap::is_empty")]
    pub attributes: HashMap<String, String>,
    /// What it may do.
    #[serde(skip_serializing_if = "VideoGrant::is_none")]
    pub video: VideoGrant,
    /// What it may do with telephone calls.
    #[serde(skip_serializing_if = "SipGrant::is_none")]
    pub sip: SipGrant,
    /// Base64 of the SHA-256 of a body (webhooks).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// Applied when this token's join makes the room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_config: Option<Box<proto::RoomConfiguration>>,
    /// On whose behalf this server has issued the token. Ours, not LiveKit's, whose servers and clients leave alone what they
    /// do not know. Absent in tokens of the operator, and in those that others have signed with the key pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vivavoce: Option<Principal>,
    /// The job of the agent whose token this is. Ours as well.
    #[serde(rename = "vivavoceAgentJob", skip_serializing_if = "Option::is_none")]
    pub agent_job: Option<String>,
    /// Who alone hears the participant: these identities, all agents where there is none; everybody where it is absent. Ours
    /// as well.
    #[serde(rename = "vivavoceWhisper", skip_serializing_if = "Option::is_none")]
    pub whispers_to: Option<Vec<String>>,
}

/// The `video` claim; the names are those of LiveKit's documentation of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(clippy::struct_excessive_bools, missing_docs)] // the wire's own flags
pub struct VideoGrant {
    #[serde(skip_serializing_if = "is_false")]
    pub room_create: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub room_list: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub room_record: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub room_admin: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub room_join: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub room: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination_room: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub can_publish: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub can_subscribe: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub can_publish_data: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub can_publish_sources: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub can_update_own_metadata: Option<bool>,
    #[serde(skip_serializing_if = "is_false")]
    pub ingress_admin: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub hidden: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub recorder: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub agent: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub can_subscribe_metrics: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub can_manage_agent_session: bool,
}

impl VideoGrant {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The `sip` claim.
#[allow(missing_docs)] // as above
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SipGrant {
    #[serde(skip_serializing_if = "is_false")]
    pub admin: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub call: bool,
}

impl SipGrant {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Claims {
    /// The identity, from the claim that has it.
    pub fn identity(&self) -> &str {
        if self.sub.is_empty() {
            &self.jti
        } else {
            &self.sub
        }
    }

    /// On whose behalf the participant is in the room.
    pub fn principal(&self) -> Principal {
        self.vivavoce.clone().unwrap_or(Principal::Operator)
    }

    /// The metadata of a room that this token's join makes, where the token says something of it: what a tenant makes is the
    /// tenant's.
    pub fn metadata_of_new_room(&self) -> Option<String> {
        let config = self.room_config.as_ref();
        let given = config.map(|config| config.metadata.as_str());
        match &self.vivavoce {
            Some(Principal::Tenant(tenant)) => {
                let owner = Owner::Tenant(tenant.clone());
                Some(owner.in_place_of(given.unwrap_or_default()))
            }
            _ => given.filter(|text| !text.is_empty()).map(str::to_owned),
        }
    }

    /// The permissions these grants amount to.
    pub fn permission(&self) -> proto::ParticipantPermission {
        let video = &self.video;
        let can_publish = video.can_publish.unwrap_or(true);
        proto::ParticipantPermission {
            can_subscribe: video.can_subscribe.unwrap_or(true),
            can_publish,
            can_publish_data: video.can_publish_data.unwrap_or(can_publish),
            can_publish_sources: video
                .can_publish_sources
                .iter()
                .map(|name| source(name) as i32)
                .collect(),
            hidden: video.hidden,
            can_update_metadata: video.can_update_own_metadata.unwrap_or(false),
            can_subscribe_metrics: video.can_subscribe_metrics,
            can_manage_agent_session: video.can_manage_agent_session,
            ..Default::default()
        }
    }

    /// Writes changed permissions back, so that a refreshed token carries them.
    pub fn set_permission(&mut self, permission: &proto::ParticipantPermission) {
        self.video.can_subscribe = Some(permission.can_subscribe);
        self.video.can_publish = Some(permission.can_publish);
        self.video.can_publish_data = Some(permission.can_publish_data);
        self.video.can_update_own_metadata = Some(permission.can_update_metadata);
        self.video.hidden = permission.hidden;
        let sources = permission.can_publish_sources.iter();
        self.video.can_publish_sources = sources
            .filter_map(|number| proto::TrackSource::try_from(*number).ok())
            .map(|source| source.as_str_name().to_lowercase())
            .collect();
    }

    /// The kind of participant.
    pub fn participant_kind(&self) -> proto::participant_info::Kind {
        use proto::participant_info::Kind;
        if self.kind.is_empty() && self.video.agent {
            return Kind::Agent;
        }
        Kind::from_str_name(&self.kind.to_uppercase()).unwrap_or(Kind::Standard)
    }
}

/// A source by its name in a token; an unknown one is one that nobody can publish.
fn source(name: &str) -> proto::TrackSource {
    proto::TrackSource::from_str_name(&name.to_uppercase()).unwrap_or(proto::TrackSource::Unknown)
}

/// Why a token is refused. The texts are for the client; none says anything of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not three parts of base64 and JSON.
    #[error("the access token is not a signed JSON Web Token")]
    Malformed,
    /// Another algorithm, or none.
    #[error("the access token is not signed with HS256")]
    Algorithm,
    /// `iss` is none of ours.
    #[error("the access token names an unknown API key")]
    UnknownKey,
    /// Signed with another secret, or changed.
    #[error("the access token's signature is wrong")]
    Signature,
    /// `exp` is past.
    #[error("the access token has expired")]
    Expired,
    /// `nbf` is to come.
    #[error("the access token is not valid yet")]
    TooEarly,
}

impl From<Error> for TokenError {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidAlgorithm => Self::Algorithm,
            ErrorKind::InvalidSignature => Self::Signature,
            _ => Self::Malformed,
        }
    }
}

/// Reads a token and checks its signature and its times against `now_s`, Unix seconds.
pub fn verify(token: &str, keys: &Keys, now_s: i64) -> Result<Claims, TokenError> {
    #[derive(Deserialize)]
    struct Issuer {
        #[serde(default)]
        iss: String,
    }
    if token.len() > LONGEST_TOKEN {
        return Err(TokenError::Malformed);
    }
    let header = jsonwebtoken::decode_header(token).map_err(|error| match error.kind() {
        // An algorithm without a name in the library, such as `none`, is an error of the JSON to it.
        ErrorKind::Json(_) => TokenError::Algorithm,
        _ => error.into(),
    })?;
    if header.alg != Algorithm::HS256 {
        return Err(TokenError::Algorithm);
    }
    let issuer: Issuer = dangerous::insecure_decode_claims(token)?;
    let secret = keys.secret(&issuer.iss).ok_or(TokenError::UnknownKey)?;
    let mut validation = Validation::new(Algorithm::HS256);
    // The library looks at the system's clock; the times are checked below, against the one that is given.
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let key = DecodingKey::from_secret(secret.as_bytes());
    let claims = jsonwebtoken::decode::<Claims>(token, &key, &validation)?.claims;
    if claims.exp.saturating_add(LEEWAY_S) <= now_s {
        return Err(TokenError::Expired);
    }
    if claims.nbf > now_s.saturating_add(LEEWAY_S) {
        return Err(TokenError::TooEarly);
    }
    Ok(claims)
}

/// A signed token with these claims; `None` when the key that `iss` names is not known.
pub fn mint(claims: &Claims, keys: &Keys) -> Option<String> {
    let key = EncodingKey::from_secret(keys.secret(&claims.iss)?.as_bytes());
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &key).ok()
}

/// The same grants for `valid_s` more seconds.
pub fn refresh(claims: &Claims, keys: &Keys, now_s: i64, valid_s: i64) -> Option<String> {
    let refreshed = Claims {
        nbf: now_s,
        exp: now_s.saturating_add(valid_s),
        ..claims.clone()
    };
    mint(&refreshed, keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new([("key", "a secret of some length")])
    }

    fn claims() -> Claims {
        Claims {
            iss: "key".into(),
            sub: "alice".into(),
            nbf: 1_000,
            exp: 2_000,
            ..Claims::default()
        }
    }

    #[test]
    fn a_minted_token_says_what_was_put_in() {
        let token = mint(&claims(), &keys()).unwrap();
        assert_eq!(verify(&token, &keys(), 1_500), Ok(claims()));
    }

    #[test]
    fn a_token_of_the_python_library_is_read() {
        // Made by livekit-api 1.2.2 with key "devkey" and the secret below.
        let token = include_str!("testdata/python-token.txt").trim();
        let keys = Keys::new([("devkey", "a secret for tests only, thirty-two bytes")]);
        let claims = verify(token, &keys, 1_800_000_000).unwrap();
        assert_eq!(claims.identity(), "alice");
        assert_eq!(claims.video.room, "kitchen");
        assert!(claims.video.room_join && claims.permission().can_publish_data);
        assert_eq!(claims.room_config.unwrap().max_participants, 7);
        assert_eq!(claims.attributes["a"], "b");
    }

    #[test]
    fn a_token_is_refused_outside_its_time_and_with_a_minute_of_grace() {
        let token = mint(&claims(), &keys()).unwrap();
        assert!(verify(&token, &keys(), 2_059).is_ok());
        assert_eq!(verify(&token, &keys(), 2_060), Err(TokenError::Expired));
        assert!(verify(&token, &keys(), 940).is_ok());
        assert_eq!(verify(&token, &keys(), 939), Err(TokenError::TooEarly));
    }

    #[test]
    fn a_changed_token_is_refused() {
        let token = mint(&claims(), &keys()).unwrap();
        let other = Keys::new([("key", "another secret")]);
        assert_eq!(verify(&token, &other, 1_500), Err(TokenError::Signature));
        assert_eq!(
            verify(&token, &Keys::default(), 1_500),
            Err(TokenError::UnknownKey)
        );
        // {"alg":"none"}
        let none = format!("eyJhbGciOiJub25lIn0.{}.", token.split('.').nth(1).unwrap());
        assert_eq!(verify(&none, &keys(), 1_500), Err(TokenError::Algorithm));
        let longer = Header::new(Algorithm::HS512);
        let secret = EncodingKey::from_secret(b"a secret of some length");
        let longer = jsonwebtoken::encode(&longer, &claims(), &secret).unwrap();
        assert_eq!(verify(&longer, &keys(), 1_500), Err(TokenError::Algorithm));
        for broken in [
            "",
            ".",
            "..",
            "a.b.c",
            "e30.e30.",
            &token[..token.len() - 1],
        ] {
            assert!(verify(broken, &keys(), 1_500).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_refreshed_token_still_says_whose_it_is_and_livekit_reads_it() {
        let tenant = vivavoce_core::party::TenantId::new("a").unwrap();
        let mut claims = claims();
        claims.vivavoce = Some(Principal::Tenant(tenant));
        let refreshed = refresh(&claims, &keys(), 1_900, 600).unwrap();
        let read = verify(&refreshed, &keys(), 1_950).unwrap();
        assert_eq!(read.principal(), claims.principal());
        // LiveKit's own reader; its clock is the system's.
        claims.exp = i64::from(u32::MAX);
        let token = mint(&claims, &keys()).unwrap();
        let secret = "a secret of some length";
        let verifier = livekit_api::access_token::TokenVerifier::with_api_key("key", secret);
        assert_eq!(verifier.verify(&token).unwrap().sub, "alice");
    }

    #[test]
    fn a_token_that_names_nobody_a_tenant_can_be_is_refused() {
        let key = EncodingKey::from_secret(b"a secret of some length");
        for vivavoce in [
            serde_json::json!({"tenant": ""}),
            serde_json::json!("somebody"),
            serde_json::json!(7),
        ] {
            let claims = serde_json::json!({
                "iss": "key", "sub": "alice", "nbf": 1_000, "exp": 2_000, "vivavoce": vivavoce,
            });
            let header = Header::new(Algorithm::HS256);
            let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
            assert_eq!(verify(&token, &keys(), 1_500), Err(TokenError::Malformed));
        }
    }

    #[test]
    fn absent_grants_mean_what_the_go_server_makes_of_them() {
        let mut claims = claims();
        let permission = claims.permission();
        assert!(permission.can_publish && permission.can_subscribe && permission.can_publish_data);
        assert!(!permission.can_update_metadata);
        claims.video.can_publish = Some(false);
        assert!(!claims.permission().can_publish_data);
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(format!("{:?}", keys()), r#"{"key"}"#);
    }
}
