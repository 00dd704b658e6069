//! Admission: what a client asks for when it opens its signalling connection, and whether its token allows it.
//!
//! A LiveKit client joins by a WebSocket request to `/rtc` or `/rtc/v1` ([client protocol]). The request carries an access
//! token, a JWT whose video grant names the room, the identity and the permissions ([grants]), and further parameters in
//! the query, or as one compressed `JoinRequest` (`/rtc/v1`). This module parses and verifies the request with pure
//! functions; sockets and HTTP are the caller's, and what depends on the room is checked in `joining`.
//!
//! [client protocol]: https://docs.livekit.io/reference/internals/client-protocol/
//! [grants]: https://docs.livekit.io/frontends/authentication/tokens/

use std::collections::HashMap;
use std::io::Read as _;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use livekit_protocol as proto;

use super::limits;
use super::shapes::Shaped as _;
use super::token::{self, Claims, Keys};
use super::wire::Excess;
use super::workers::check_agents;
use vivavoce_auth::{Owner, Principal, Takeover};
use vivavoce_quotas::{Party, Refused};

/// Some clients pad their base64, others do not.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The two versions of the signalling path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// `/rtc`: a peer connection to publish, and one to subscribe.
    TwoConnections,
    /// `/rtc/v1`: one peer connection, in which the client always makes the offer.
    OneConnection,
}

/// A request that its token and parameters allow.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The requested path.
    pub route: Route,
    /// The verified token.
    pub claims: Claims,
    /// The room to join.
    pub room: String,
    /// What the client says about itself.
    pub client: proto::ClientInfo,
    /// Whether it subscribes to all tracks.
    pub auto_subscribe: bool,
    /// Metadata and attributes of the request, used if the token may update its own.
    pub metadata: String,
    /// See `metadata`.
    pub attributes: HashMap<String, String>,
    /// Tracks it publishes from the start.
    pub tracks: Vec<proto::AddTrackRequest>,
    /// Its first offer (`/rtc/v1`).
    pub offer: Option<proto::SessionDescription>,
    /// The session to resume: its sid, or an empty text to find it by identity.
    pub resume: Option<String>,
    /// The state that a resuming client assumes.
    pub sync_state: Option<proto::SyncState>,
    /// The owner that the room gets before the participant joins: for inbound calls, never from outside.
    pub owner: Option<Takeover>,
    /// Whether somebody of the same identity who is in the room stays there: for inbound calls, whose callers choose their
    /// identities.
    pub puts_nobody_out: bool,
    /// The party that a room created by this admission counts for.
    pub party: Party,
    /// What a client that makes one offer and no other hears; `None` for LiveKit's clients, which make another where they need
    /// more sections.
    pub once: Option<Hears>,
}

/// What a client hears in the sections of its only offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hears {
    /// Nothing: it only publishes.
    Nothing,
    /// The mix of the room ([`vivavoce_seams::rooms::link::JoinKind::Mixer`]).
    Mix,
    /// The tracks of the participant with this identity.
    Participant(String),
}

impl Admission {
    /// The same without what is only used when joining.
    pub(super) fn without_luggage(&self) -> Self {
        Self {
            route: self.route,
            claims: self.claims.clone(),
            room: self.room.clone(),
            client: proto::ClientInfo::default(),
            auto_subscribe: self.auto_subscribe,
            metadata: String::new(),
            attributes: HashMap::new(),
            tracks: Vec::new(),
            offer: None,
            resume: self.resume.clone(),
            sync_state: None,
            owner: self.owner.clone(),
            puts_nobody_out: self.puts_nobody_out,
            party: self.party.clone(),
            once: self.once.clone(),
        }
    }

    /// The participant's identity.
    pub fn identity(&self) -> &str {
        self.claims.identity()
    }

    /// The owner that an unowned room gets by this admission.
    pub(super) fn makes_owner(&self) -> Option<Owner> {
        let of_call = self.owner.as_ref().map(|call| call.owner.clone());
        of_call.or_else(|| match self.claims.principal() {
            Principal::Tenant(tenant) => Some(Owner::Tenant(tenant)),
            Principal::Operator | Principal::Public => None,
        })
    }
}

/// A refusal, before the socket is opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The HTTP status code.
    pub status: u16,
    /// The response body. Clients display it; after a 404 with any other text than [`NO_ROOM`] they assume a server without
    /// this route.
    pub text: String,
    /// The quota that is used up, if one is.
    pub quota: Option<Refused>,
}

/// The text of a 404 about the room, not the route.
pub const NO_ROOM: &str = "requested room does not exist";

/// The text of a refusal because the room has another owner.
pub const NOT_ADMITTED: &str = "this room belongs to somebody else";

/// The text of a refusal because the identity is in use.
pub const IDENTITY_TAKEN: &str = "somebody in this room has this identity";

impl Refusal {
    /// A refusal because a quota is used up, the caller's own or the common one.
    pub fn of_quota(refused: Refused) -> Self {
        let status = if refused.is_callers() { 429 } else { 503 };
        Self {
            quota: Some(refused),
            ..Self::new(status, refused.to_string())
        }
    }

    /// A refusal with this status code and text.
    pub fn new(status: u16, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            quota: None,
        }
    }
}

/// Parses and verifies a request. `query` is the raw query string; `authorization`, the header, takes precedence over
/// `access_token` in the query; `now_s` is in Unix seconds.
pub fn admit(
    route: Route,
    query: &str,
    authorization: Option<&str>,
    keys: &Keys,
    now_s: i64,
) -> Result<Admission, Refusal> {
    let parameters = Parameters::read(query);
    let (claims, room) = parameters.place(authorization, keys, now_s)?;
    checked(match route {
        Route::OneConnection => from_join_request(&parameters, claims, room)?,
        Route::TwoConnections => from_query(&parameters, claims, room),
    })
}

/// The same for a client that makes one offer and no other, by a request to the path of WHIP or WHEP. The offer and its tracks
/// are added once the body is read.
pub fn admit_once(
    query: &str,
    authorization: Option<&str>,
    keys: &Keys,
    now_s: i64,
    hears: Hears,
) -> Result<Admission, Refusal> {
    let parameters = Parameters::read(query);
    let (claims, room) = parameters.place(authorization, keys, now_s)?;
    let permission = claims.permission();
    if hears == Hears::Nothing && !permission.can_publish {
        return Err(Refusal::new(
            403,
            "the access token does not grant canPublish",
        ));
    }
    if hears != Hears::Nothing && !permission.can_subscribe {
        return Err(Refusal::new(
            403,
            "the access token does not grant canSubscribe",
        ));
    }
    checked(Admission {
        route: Route::OneConnection,
        claims,
        room,
        client: proto::ClientInfo::default(),
        auto_subscribe: hears != Hears::Nothing,
        metadata: String::new(),
        attributes: HashMap::new(),
        tracks: Vec::new(),
        offer: None,
        resume: None,
        sync_state: None,
        owner: None,
        puts_nobody_out: false,
        party: Party::Operator,
        once: Some(hears),
    })
}

/// Whose token this is: the room and the identity.
pub fn identify(
    query: &str,
    authorization: Option<&str>,
    keys: &Keys,
    now_s: i64,
) -> Result<(String, String), Refusal> {
    let place = Parameters::read(query).place(authorization, keys, now_s);
    place.map(|(claims, room)| (room, claims.identity().to_owned()))
}

/// Checks what somebody says about itself.
fn checked(mut admission: Admission) -> Result<Admission, Refusal> {
    if !admission.claims.permission().can_update_metadata {
        admission.metadata.clear();
        admission.attributes.clear();
    }
    let metadata = [&admission.metadata, &admission.claims.metadata];
    if metadata
        .iter()
        .any(|text| text.len() > limits::METADATA_BYTES)
    {
        return Err(Refusal::new(400, "the metadata is too large"));
    }
    let attributes = [&admission.attributes, &admission.claims.attributes];
    if attributes
        .iter()
        .any(|map| limits::size_of(map) > limits::ATTRIBUTES_BYTES)
    {
        return Err(Refusal::new(400, "the attributes are too large"));
    }
    if attributes.iter().any(|map| map.len() > limits::ATTRIBUTES) {
        return Err(Refusal::new(400, "there are too many attributes"));
    }
    if admission.claims.name.chars().count() > limits::NAME_CHARACTERS {
        return Err(Refusal::new(400, "the name is too long"));
    }
    if let Some(config) = &admission.claims.room_config {
        check_room_config(config)?;
    }
    Ok(admission)
}

/// Refuses what a token asks of the room that it may create and would not happen, as `CreateRoom` does.
fn check_room_config(config: &proto::RoomConfiguration) -> Result<(), Refusal> {
    let refused = |problem: &str| Err(Refusal::new(400, format!("roomConfig.{problem}")));
    if config.egress.is_some() {
        return refused("egress: embedded rooms cannot do that; `CreateRoom` can");
    }
    check_agents(&config.agents).or_else(|error| refused(&error.to_string()))
}

/// Verifies the token of an agent worker, with the arguments of [`admit`].
pub fn admit_worker(
    query: &str,
    authorization: Option<&str>,
    keys: &Keys,
    now_s: i64,
) -> Result<Claims, Refusal> {
    let claims = Parameters::read(query).claims(authorization, keys, now_s)?;
    // The token of a job is for its room, whoever does the job.
    let is_workers = claims.video.agent && claims.agent_job.is_none();
    if !is_workers || claims.principal() == Principal::Public {
        return Err(Refusal::new(401, "the access token does not grant agent"));
    }
    Ok(claims)
}

fn check_name(what: &str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Err(Refusal::new(400, format!("the {what} is empty")));
    }
    if value.chars().count() > limits::NAME_CHARACTERS {
        return Err(Refusal::new(
            400,
            format!(
                "the {what} is longer than {} characters",
                limits::NAME_CHARACTERS
            ),
        ));
    }
    Ok(())
}

struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn read(query: &str) -> Self {
        let pairs = form_urlencoded::parse(query.as_bytes()).take(limits::QUERY_PARAMETERS);
        Self(
            pairs
                .map(|(key, value)| (key.into_owned(), value.into_owned()))
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// What the token says, which the header or the query has.
    fn claims(
        &self,
        authorization: Option<&str>,
        keys: &Keys,
        now_s: i64,
    ) -> Result<Claims, Refusal> {
        let bearer = authorization.and_then(|header| header.strip_prefix("Bearer "));
        let token = bearer
            .or_else(|| self.get("access_token"))
            .unwrap_or_default();
        if token.is_empty() {
            return Err(Refusal::new(401, "no access token was given"));
        }
        token::verify(token, keys, now_s).map_err(|error| Refusal::new(401, error.to_string()))
    }

    /// What the token says, and the room to join.
    fn place(
        &self,
        authorization: Option<&str>,
        keys: &Keys,
        now_s: i64,
    ) -> Result<(Claims, String), Refusal> {
        let claims = self.claims(authorization, keys, now_s)?;
        if !claims.video.room_join {
            return Err(Refusal::new(
                401,
                "the access token does not grant roomJoin",
            ));
        }
        check_name("identity", claims.identity())?;
        let room = Some(claims.video.room.as_str()).filter(|room| !room.is_empty());
        let room = room
            .or_else(|| self.get("room"))
            .unwrap_or_default()
            .to_owned();
        check_name("room", &room)?;
        Ok((claims, room))
    }

    fn number(&self, name: &str) -> i32 {
        self.get(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or_default()
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| matches!(value, "1" | "true"))
    }
}

fn from_query(parameters: &Parameters, claims: Claims, room: String) -> Admission {
    let text = |name| parameters.get(name).unwrap_or_default().to_owned();
    let sdk = text("sdk").to_uppercase();
    let sdk = if sdk == "REACTNATIVE" {
        "REACT_NATIVE".to_owned()
    } else {
        sdk
    };
    let capabilities = text("capabilities");
    let client = proto::ClientInfo {
        sdk: proto::client_info::Sdk::from_str_name(&sdk)
            .unwrap_or(proto::client_info::Sdk::Unknown) as i32,
        version: text("version"),
        protocol: parameters.number("protocol"),
        os: text("os"),
        os_version: text("os_version"),
        device_model: text("device_model"),
        browser: text("browser"),
        browser_version: text("browser_version"),
        network: text("network"),
        other_sdks: text("other_sdks"),
        client_protocol: parameters.number("client_protocol"),
        capabilities: capabilities
            .split(',')
            .filter_map(|name| proto::client_info::Capability::from_str_name(name.trim()))
            .map(|capability| capability as i32)
            .collect(),
        ..Default::default()
    };
    Admission {
        route: Route::TwoConnections,
        claims,
        room,
        client,
        auto_subscribe: parameters.flag("auto_subscribe").unwrap_or(true),
        metadata: String::new(),
        attributes: HashMap::new(),
        tracks: Vec::new(),
        offer: None,
        resume: parameters
            .flag("reconnect")
            .unwrap_or(false)
            .then(|| text("sid")),
        sync_state: None,
        owner: None,
        puts_nobody_out: false,
        party: Party::Operator,
        once: None,
    }
}

fn from_join_request(
    parameters: &Parameters,
    claims: Claims,
    room: String,
) -> Result<Admission, Refusal> {
    let text = parameters
        .get("join_request")
        .ok_or_else(|| Refusal::new(400, "join_request is missing"))?;
    let bytes = LENIENT
        .decode(text)
        .map_err(|_| Refusal::new(400, "join_request is not base64"))?;
    let request = decode_join_request(&bytes).map_err(|what| Refusal::new(400, what))?;
    let settings = request
        .connection_settings
        .unwrap_or(proto::ConnectionSettings {
            auto_subscribe: true,
            ..Default::default()
        });
    Ok(Admission {
        route: Route::OneConnection,
        claims,
        room,
        client: request.client_info.unwrap_or_default(),
        auto_subscribe: settings.auto_subscribe,
        metadata: request.metadata,
        attributes: request.participant_attributes,
        tracks: request.add_track_requests,
        offer: request.publisher_offer,
        resume: request.reconnect.then_some(request.participant_sid),
        sync_state: request.sync_state,
        owner: None,
        puts_nobody_out: false,
        party: Party::Operator,
        once: None,
    })
}

/// The join request in its wrapping, inflated to at most [`limits::JOIN_REQUEST_BYTES`].
pub fn decode_join_request(bytes: &[u8]) -> Result<proto::JoinRequest, &'static str> {
    let wrapped = proto::WrappedJoinRequest::read(bytes).map_err(|excess| match excess {
        Excess::Long(..) => "join_request is too large",
        _ => "join_request is not a WrappedJoinRequest",
    })?;
    let inner = match proto::wrapped_join_request::Compression::try_from(wrapped.compression) {
        Ok(proto::wrapped_join_request::Compression::None) => wrapped.join_request,
        Ok(proto::wrapped_join_request::Compression::Gzip) => {
            let mut unpacked = Vec::new();
            let most = limits::JOIN_REQUEST_BYTES as u64;
            let mut reader = flate2::read::GzDecoder::new(&*wrapped.join_request).take(most + 1);
            reader
                .read_to_end(&mut unpacked)
                .map_err(|_| "join_request is not gzip")?;
            unpacked
        }
        Err(_) => return Err("join_request has an unknown compression"),
    };
    if inner.len() > limits::JOIN_REQUEST_BYTES {
        return Err("join_request is too large");
    }
    proto::JoinRequest::read(&inner).map_err(|excess| match excess {
        Excess::Malformed => "join_request does not hold a JoinRequest",
        _ => "join_request holds too much",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use std::io::Write as _;

    const NOW_S: i64 = 1_500;

    fn keys() -> Keys {
        Keys::new([("key", "secret")])
    }

    fn token(change: impl FnOnce(&mut Claims)) -> String {
        let mut claims = Claims {
            iss: "key".into(),
            sub: "alice".into(),
            exp: 2_000,
            ..Claims::default()
        };
        claims.video.room_join = true;
        claims.video.room = "kitchen".into();
        change(&mut claims);
        token::mint(&claims, &keys()).unwrap()
    }

    fn ask(route: Route, query: &str, token: &str) -> Result<Admission, Refusal> {
        admit(
            route,
            query,
            Some(&format!("Bearer {token}")),
            &keys(),
            NOW_S,
        )
    }

    fn gzipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        let wrapped = proto::WrappedJoinRequest {
            compression: 1,
            join_request: encoder.finish().unwrap(),
        };
        wrapped.encode_to_vec()
    }

    #[test]
    fn a_compressed_join_request_is_read() {
        let request = proto::JoinRequest {
            participant_sid: "PA_x".into(),
            reconnect: true,
            ..Default::default()
        };
        let query = format!(
            "join_request={}",
            LENIENT.encode(gzipped(&request.encode_to_vec()))
        );
        let admission = ask(Route::OneConnection, &query, &token(|_| ())).unwrap();
        assert_eq!(
            (admission.room.as_str(), admission.identity()),
            ("kitchen", "alice")
        );
        assert_eq!(admission.resume.as_deref(), Some("PA_x"));
    }

    #[test]
    fn a_bomb_of_zeros_is_refused_early() {
        let bomb = gzipped(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(
            decode_join_request(&bomb).unwrap_err(),
            "join_request is too large"
        );
    }

    #[test]
    fn every_refusal_has_its_status() {
        let status = |route, query: &str, token: &str| ask(route, query, token).unwrap_err().status;
        assert_eq!(
            admit(Route::TwoConnections, "", None, &keys(), NOW_S)
                .unwrap_err()
                .status,
            401
        );
        assert_eq!(status(Route::TwoConnections, "", "nonsense"), 401);
        assert_eq!(
            status(Route::TwoConnections, "", &token(|c| c.exp = 1_000)),
            401
        );
        assert_eq!(
            status(
                Route::TwoConnections,
                "",
                &token(|c| c.video.room_join = false)
            ),
            401
        );
        assert_eq!(
            status(Route::TwoConnections, "", &token(|c| c.sub.clear())),
            400
        );
        assert_eq!(
            status(Route::TwoConnections, "", &token(|c| c.video.room.clear())),
            400
        );
        for broken in ["", "join_request=", "join_request=%25", "join_request=AAAA"] {
            let refused = ask(Route::OneConnection, broken, &token(|_| ()));
            assert!(
                matches!(&refused, Err(refusal) if refusal.status == 400)
                    || broken == "join_request=",
                "{broken}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_token_that_asks_for_a_room_that_would_not_be_is_refused_by_the_field() {
        let refused = |config: proto::RoomConfiguration| {
            let token = token(|claims| claims.room_config = Some(Box::new(config)));
            ask(Route::TwoConnections, "", &token).unwrap_err()
        };
        let recorded = refused(proto::RoomConfiguration {
            egress: Some(proto::RoomEgress::default()),
            ..Default::default()
        });
        assert_eq!(recorded.status, 400);
        assert!(
            recorded.text.starts_with("roomConfig.egress: "),
            "{recorded}"
        );
        let agent = proto::RoomAgentDispatch {
            agent_name: "x".repeat(limits::NAME_CHARACTERS + 1),
            ..Default::default()
        };
        let agents = refused(proto::RoomConfiguration {
            agents: vec![agent],
            ..Default::default()
        });
        assert_eq!(agents.text, "roomConfig.agent_name: is too long");
    }

    #[test]
    fn the_query_of_two_connections_is_read() {
        let query = "auto_subscribe=0&protocol=16&sdk=js&capabilities=CAP_PACKET_TRAILER&reconnect=1&sid=PA_9&room=cellar";
        let admission = ask(
            Route::TwoConnections,
            query,
            &token(|c| c.video.room.clear()),
        )
        .unwrap();
        assert!(!admission.auto_subscribe);
        assert_eq!(admission.client.protocol, 16);
        assert_eq!(admission.client.capabilities.len(), 1);
        assert_eq!(admission.resume.as_deref(), Some("PA_9"));
        assert_eq!(admission.room, "cellar");
    }

    #[test]
    fn what_a_client_says_of_itself_counts_only_with_the_right() {
        let request = proto::JoinRequest {
            metadata: "mine".into(),
            ..Default::default()
        };
        let wrapped = proto::WrappedJoinRequest {
            compression: 0,
            join_request: request.encode_to_vec(),
        };
        let query = format!("join_request={}", LENIENT.encode(wrapped.encode_to_vec()));
        assert_eq!(
            ask(Route::OneConnection, &query, &token(|_| ()))
                .unwrap()
                .metadata,
            ""
        );
        let may = token(|c| c.video.can_update_own_metadata = Some(true));
        assert_eq!(
            ask(Route::OneConnection, &query, &may).unwrap().metadata,
            "mine"
        );
    }
}
