//! The ports of the TURN server, and what clients are told of them.

use std::net::{IpAddr, SocketAddr};

use rustls::ServerConfig;
use vivavoce_config::Rtc;
use vivavoce_rooms::turn::TurnSockets;
use vivavoce_rooms::{Listeners, Sockets};
use vivavoce_takeover::{self as takeover, SocketUse};

use crate::EmbeddedError;

/// The realm of a server that has no domain.
const REALM: &str = "vivavoce";

/// The sockets with the realm, and the URLs that clients are told.
type Opened = ((TurnSockets, String), Vec<String>);

/// Opens the ports that the settings name; `None` where they name none.
pub fn open(
    settings: &Rtc,
    addresses: &[(IpAddr, IpAddr)],
    all: &takeover::Sockets,
    tls: Option<ServerConfig>,
) -> Result<Option<Opened>, EmbeddedError> {
    let domain = settings.turn_domain.as_deref();
    let mut urls = Vec::new();
    let mut tell = |scheme: &str, transport: &str, at: Vec<SocketAddr>| {
        // A certificate is for a name, by which there is one way only.
        let hosts = match domain.zip(at.first()) {
            Some((domain, address)) => vec![format!("{domain}:{}", address.port())],
            None => at.iter().map(ToString::to_string).collect(),
        };
        let hosts = hosts.into_iter();
        urls.extend(hosts.map(|host| format!("{scheme}:{host}?transport={transport}")));
    };
    let mut sockets = TurnSockets::default();
    if let Some(port) = settings.turn_udp_port {
        let udp = Sockets::take_or_bind((all, SocketUse::TurnUdp), addresses, port);
        let udp = udp.map_err(|error| EmbeddedError::Turn("udp_port", error))?;
        tell("turn", "udp", udp.advertised());
        sockets.udp = Some(udp);
    }
    if let Some(port) = settings.turn_tcp_port {
        let tcp = Listeners::take_or_bind((all, SocketUse::TurnTcp), addresses, port);
        sockets.tcp = tcp.map_err(|error| EmbeddedError::Turn("tcp_port", error))?;
        tell("turn", "tcp", sockets.tcp.advertised());
    }
    if let Some((port, tls)) = settings.turn_tls_port.zip(tls) {
        let listeners = Listeners::take_or_bind((all, SocketUse::TurnTls), addresses, port);
        let listeners = listeners.map_err(|error| EmbeddedError::Turn("tls_port", error))?;
        tell("turns", "tcp", listeners.advertised());
        sockets.tls = Some((listeners, tls));
    }
    if urls.is_empty() {
        return Ok(None);
    }
    tracing::info!(?urls, "clients of rooms are told a TURN server");
    let realm = domain.unwrap_or(REALM).to_owned();
    Ok(Some(((sockets, realm), urls)))
}
