//! The SIP bridge of embedded rooms: builds its settings, and implements the `Telephone` seam.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::link;
use vivavoce_auth::{Owner, Takeover};
use vivavoce_config::{MediaEncryption, ReferScheme, RoomMode, Rtc, Sip};
use vivavoce_hooks::CallOwners;
use vivavoce_quotas::Quota;
use vivavoce_rooms::RoomServer;
use vivavoce_seams::rooms::link::{Join, RoomLink};
use vivavoce_seams::rooms::telephone::{
    CallError, CallOf, CallReport, CallTrace, GatewayReport, Hold, Line, NewCall, NewTransfer,
    NewsSender, PhoneReport, PlacedCall, RefusedCall, RegistrationReport, Telephone, Trunk,
};
use vivavoce_takeover::Sockets;
use vivavoce_telephony::agent::{Listen, Protocol, TlsSettings, Unacknowledged};
use vivavoce_telephony::bridge::{Bridge, BridgeSettings, Owners, Prompts, Redirects, Rooms};
use vivavoce_telephony::media::{Codec, Encryption, MediaSettings};
use vivavoce_telephony::phones::{self, Phone};
use vivavoce_telephony::registrations::{self, Account};
use vivavoce_telephony::trunks::{Configured, Trunks};

/// The most media threads; audio is little work.
const MOST_THREADS: usize = 4;
/// A timeout that never expires.
const NEVER: Duration = Duration::from_hours(24 * 365);

/// Telephone calls in embedded rooms, on a thread of their own: what a gateway sends, however much, delays none of the
/// registries that HTTP asks.
pub struct EmbeddedSip {
    bridge: Bridge,
    /// The thread ends when this is dropped.
    _running: oneshot::Sender<()>,
}

/// What the bridge needs besides its settings.
pub struct BridgeParts {
    /// TLS of both roles.
    pub tls: TlsSettings,
    /// The rooms, with the key of their participants.
    pub rooms: (RoomServer, String),
    /// Who owns inbound calls.
    pub owners: Option<CallOwners>,
    /// Counts calls.
    pub quota: Quota,
    /// Takes what happens to calls.
    pub news: NewsSender,
    /// The sockets of a former server.
    pub sockets: Sockets,
    /// The trunks and dispatch rules of inbound calls.
    pub trunks: Arc<Trunks>,
    /// What callers hear before they are in a room.
    pub prompts: Arc<dyn Prompts>,
    /// The gateways of the settings.
    pub gateways: Vec<Trunk>,
    /// Decides about redirections.
    pub redirects: Redirects,
    /// The same of whom the other side of a call wants in its place.
    pub referrals: Redirects,
}

impl EmbeddedSip {
    /// Starts the bridge. The error names the setting.
    pub async fn start(sip: &Sip, rtc: &Rtc, parts: BridgeParts) -> Result<Self, io::Error> {
        let BridgeParts {
            tls,
            rooms: (server, api_key),
            owners,
            quota,
            news,
            sockets,
            trunks,
            prompts,
            gateways,
            redirects,
            referrals,
        } = parts;
        let settings = BridgeSettings {
            sockets,
            trunks: Some(trunks),
            prompts: Some(prompts),
            gateways,
            redirects: Some(redirects),
            referrals: sip.accept_refer.then_some(referrals),
            ..settings(sip, rtc, tls, owners, quota)?
        };
        let rooms = Arc::new(Local { server, api_key });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (started, bridge) = oneshot::channel();
        let (running, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("sip".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    // Fails if nobody waits for it any more: then it is dropped with all its tasks.
                    let _begun = started.send(Bridge::start(settings, rooms, news).await);
                    let _dropped = ended.await;
                });
            })?;
        let bridge = bridge.await.map_err(io::Error::other)?;
        let bridge = bridge.map_err(io::Error::other)?;
        Ok(Self {
            bridge,
            _running: running,
        })
    }

    /// Checks the settings without opening sockets or files. The error names the setting.
    pub fn check(sip: &Sip) -> Result<(), io::Error> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        for text in &sip.listen.0 {
            let secured = sip.tls_cert.is_some() && sip.tls_key.is_some();
            if listen(text)?.protocol.is_encrypted() && !secured {
                let needs = "needs sip.tls_cert and sip.tls_key";
                return Err(wrong(format!("sip.listen: {text}: {needs}")));
            }
        }
        codecs(sip)?;
        if sip.tls_client_cert.is_some() != sip.tls_client_key.is_some() {
            let needs = "sip.tls_client_cert, sip.tls_client_key: one needs the other";
            return Err(wrong(needs.to_owned()));
        }
        if sip.tls_client_ca.is_some() && sip.tls_cert.is_none() {
            return Err(wrong(
                "sip.tls_client_ca: needs sip.tls_cert and sip.tls_key".to_owned(),
            ));
        }
        let (first, last) = (sip.rtp_ports.first, sip.rtp_ports.last);
        if first
            .checked_next_multiple_of(2)
            .is_none_or(|rtp| rtp >= last)
        {
            let needs = "a call needs an even port and the one above it";
            return Err(wrong(format!("sip.rtp_ports: {first}-{last}: {needs}")));
        }
        Ok(())
    }

    /// Refuses new calls; existing ones continue.
    pub fn take_no_more(&self) {
        self.bridge.take_no_more();
    }

    /// Ends all calls.
    pub async fn stop(&self) {
        self.bridge.stop().await;
    }
}

#[async_trait]
impl Telephone for EmbeddedSip {
    async fn call(&self, call: NewCall, line: Line) -> Result<PlacedCall, CallError> {
        self.bridge.call(call, line).await
    }

    async fn transfer(
        &self,
        transfer: NewTransfer,
        accepted: oneshot::Sender<()>,
    ) -> Result<(), CallError> {
        self.bridge.transfer(transfer, accepted).await
    }

    async fn connect(&self, first: &CallOf, second: &CallOf) -> Result<(), CallError> {
        self.bridge.connect(first, second).await
    }

    async fn hang_up(&self, call: &CallOf) -> Result<(), CallError> {
        self.bridge.hang_up(call).await
    }

    async fn hold(&self, call: &CallOf, hold: Hold) -> Result<(), CallError> {
        self.bridge.hold(call, hold).await
    }

    async fn say_position(&self, call: &CallOf, position: u32) -> Result<Duration, CallError> {
        self.bridge.say_position(call, position).await
    }

    async fn describe(
        &self,
        call: &CallOf,
        attributes: Vec<(String, String)>,
    ) -> Result<(), CallError> {
        self.bridge.describe(call, attributes).await
    }

    async fn dismiss(&self, call: &CallOf) -> Result<(), CallError> {
        self.bridge.dismiss(call).await
    }

    fn classifies(&self) -> bool {
        true
    }

    fn heard(&self, call: &CallOf, text: &str) {
        self.bridge.heard(call, text);
    }

    fn calls(&self) -> Vec<CallReport> {
        self.bridge.calls()
    }

    fn refused(&self) -> Vec<RefusedCall> {
        self.bridge.refused()
    }

    fn gateways(&self) -> Vec<GatewayReport> {
        self.bridge.gateways()
    }

    fn phones(&self) -> Vec<PhoneReport> {
        self.bridge.phones()
    }

    fn traces(&self) -> Vec<CallTrace> {
        self.bridge.traces()
    }

    fn trace(&self, id: &str) -> Option<CallTrace> {
        self.bridge.trace(id)
    }

    fn registrations(&self) -> Vec<RegistrationReport> {
        self.bridge.registrations()
    }
}

/// Rooms of this process.
struct Local {
    server: RoomServer,
    api_key: String,
}

#[async_trait]
impl Rooms for Local {
    async fn join(&self, join: Join) -> Result<RoomLink, String> {
        let joined = link::connect(&self.server, &self.api_key, join).await;
        joined.map_err(|ending| ending.to_string())
    }

    async fn has(&self, room: &str, identity: &str) -> bool {
        let found = self
            .server
            .get_participant(room.to_owned(), identity.to_owned());
        found.await.is_ok()
    }

    async fn may_take(&self, room: &str, call: &Takeover) -> bool {
        let may = self.server.may_take(room.to_owned(), call.clone()).await;
        // Where the rooms have stopped nothing can be taken; the call fails to join.
        may.unwrap_or(true)
    }

    async fn keep(&self, room: &str) {
        // A room that has ended cannot be kept.
        let _kept = self.server.keep_room(room.to_owned()).await;
    }
}

/// The accounts of the settings. The problems quote no value.
pub fn registrations(sip: &Sip) -> Result<Vec<Account>, Vec<String>> {
    let json = sip.registrations_json.as_ref();
    json.map_or_else(|| Ok(Vec::new()), |json| registrations::read(&json.0))
}

/// The trunks and rules of the settings. The problems quote no value but ids.
pub fn trunks(sip: &Sip) -> Result<Configured, Vec<String>> {
    let json = sip.trunks_json.as_ref();
    json.map_or_else(
        || Ok(Configured::default()),
        |json| Configured::read(&json.0),
    )
}

/// Decides who owns an inbound call, and why, from its attributes.
fn owners(owners: CallOwners) -> Owners {
    Arc::new(move |headers, number| {
        let header = |name: &str| {
            let mut headers = headers.iter();
            let found = headers.find(|(known, _)| known == name);
            found.map(|(_, value)| value.as_str())
        };
        let owner = owners.owner(header, number);
        let of_number = owners.tenant_of(number);
        let by_number = matches!(&owner, Owner::Tenant(tenant) if of_number == Some(tenant));
        Takeover { owner, by_number }
    })
}

fn settings(
    sip: &Sip,
    rtc: &Rtc,
    tls: TlsSettings,
    call_owners: Option<CallOwners>,
    quota: Quota,
) -> Result<BridgeSettings, io::Error> {
    let listen = sip.listen.0.iter().map(|one| listen(one));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let timeout = sip.media_timeout_seconds;
    Ok(BridgeSettings {
        listen: listen.collect::<Result<_, _>>()?,
        sockets: Sockets::default(),
        allowed: sip.allowed_addresses.0.clone(),
        advertised: sip.advertised_address,
        tls,
        room_prefix: sip.room_prefix.clone().unwrap_or_default(),
        // With tenants, each call has its own room, unless the settings say otherwise.
        room_mode: sip.room_mode.unwrap_or(if call_owners.is_some() {
            RoomMode::Call
        } else {
            RoomMode::Number
        }),
        owners: call_owners.map(owners),
        quota,
        most_calls: sip.max_calls,
        most_calls_per_room: sip.max_calls_per_room,
        unacknowledged: Unacknowledged {
            most: sip.max_unacknowledged_calls,
            most_of_address: sip.max_unacknowledged_calls_per_address,
            patience: sip.ack_timeout_seconds,
        },
        max_duration: sip.max_call_seconds,
        replaces: sip.accept_replaces,
        refers_by_sip: sip.refer_scheme == ReferScheme::Sip,
        trunks: None,
        prompts: None,
        trace_numbers: sip.trace_numbers,
        gateways: Vec::new(),
        gateway_checks: sip.gateway_check_seconds,
        redirects: None,
        referrals: None,
        // The server does not start with a setting that cannot be read.
        phones: phones(sip).unwrap_or_default(),
        // The server does not start with a setting that cannot be read.
        registrations: registrations(sip).unwrap_or_default(),
        media: MediaSettings {
            ports: sip.rtp_ports.first..=sip.rtp_ports.last,
            relay: sip.relay,
            threads: threads.min(MOST_THREADS),
            timeout: if timeout.is_zero() { NEVER } else { timeout },
            encryption: match sip.media_encryption {
                MediaEncryption::Off => Encryption::Off,
                MediaEncryption::Allow => Encryption::Allow,
                MediaEncryption::Require => Encryption::Require,
            },
            codecs: codecs(sip)?,
            advertised: sip.advertised_address.into_iter().collect(),
            sources: {
                let also = sip.media_addresses.0.iter();
                sip.allowed_addresses
                    .0
                    .iter()
                    .chain(also)
                    .copied()
                    .collect()
            },
            complexity: rtc.complexity,
        },
    })
}

/// The codecs in order of preference.
fn codecs(sip: &Sip) -> Result<Vec<Codec>, io::Error> {
    let wrong =
        |text: String| io::Error::new(io::ErrorKind::InvalidInput, format!("sip.codecs: {text}"));
    let mut codecs = Vec::new();
    for text in &sip.codecs.0 {
        let named = Codec::parse(text);
        let codec =
            named.ok_or_else(|| wrong(format!("{text:?} is none of opus, G722, PCMU, PCMA")))?;
        if codecs.contains(&codec) {
            return Err(wrong(format!("{text} is there twice")));
        }
        codecs.push(codec);
    }
    if codecs.is_empty() {
        return Err(wrong("at least one is needed".to_owned()));
    }
    Ok(codecs)
}

/// The telephones that may register. The problems quote no value.
pub fn phones(sip: &Sip) -> Result<Vec<Phone>, Vec<String>> {
    let json = sip.phones_json.as_ref();
    json.map_or_else(|| Ok(Vec::new()), |json| phones::read(&json.0))
}

/// Parses `udp:host:port`; the port is optional.
pub fn listen(text: &str) -> Result<Listen, io::Error> {
    let wrong = |problem: &str| {
        let message = format!("sip.listen: {text}: {problem}");
        io::Error::new(io::ErrorKind::InvalidInput, message)
    };
    let (name, address) = text.split_once(':').unwrap_or((text, ""));
    let protocol = Protocol::parse(name.trim());
    let protocol =
        protocol.ok_or_else(|| wrong("must begin with udp:, tcp:, tls:, ws: or wss:"))?;
    let address = address.trim();
    let default = protocol.default_port();
    let parsed = address.parse::<SocketAddr>().ok().or_else(|| {
        let ip = address.trim_start_matches('[').trim_end_matches(']');
        let ip = ip.parse::<IpAddr>().ok()?;
        Some((ip, default).into())
    });
    let address = match parsed {
        Some(address) => address,
        None => {
            let named = match address.rsplit_once(':') {
                Some(_) => address.to_socket_addrs(),
                None => (address, default).to_socket_addrs(),
            };
            let mut addresses = named.map_err(|error| wrong(&error.to_string()))?;
            addresses.next().ok_or_else(|| wrong("has no address"))?
        }
    };
    Ok(Listen { protocol, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_listen_is_a_protocol_and_an_address() {
        let read = |text: &str| listen(text).map(|one| (one.protocol, one.address.to_string()));
        for (text, protocol, address) in [
            ("udp:127.0.0.1:5070", Protocol::Udp, "127.0.0.1:5070"),
            ("TCP:0.0.0.0:0", Protocol::Tcp, "0.0.0.0:0"),
            ("tls:[::1]:5071", Protocol::Tls, "[::1]:5071"),
            ("tls:127.0.0.1", Protocol::Tls, "127.0.0.1:5061"),
            ("udp:[::]", Protocol::Udp, "[::]:5060"),
            ("ws:127.0.0.1", Protocol::Ws, "127.0.0.1:5066"),
            ("wss:0.0.0.0:443", Protocol::Wss, "0.0.0.0:443"),
        ] {
            assert_eq!(read(text).unwrap(), (protocol, address.to_owned()));
        }
        for text in [
            "",
            "udp",
            "127.0.0.1:5060",
            "sctp:127.0.0.1",
            "udp:127.0.0.1:x",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("sip.listen: "), "{error}");
        }
    }
}
