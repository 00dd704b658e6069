//! Ports of this machine, and how others reach them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use stun_types::attribute::XorMappedAddress;
use stun_types::message::{BINDING, Message, MessageWrite, MessageWriteExt, MessageWriteVec};
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::PATIENCE;
use super::findings::Finding;
use crate::cli::health;
use crate::config::{OptionalPort, RtcMode, Settings};
use crate::providers::{embedded, livekit};
use vivavoce_core::egress_policy::is_public;
use vivavoce_telephony::agent::{Listen, Protocol};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp,
}

/// Whether the server could listen where it is to, or does.
pub(super) fn ports(settings: &Settings) -> Vec<Finding> {
    let runs = health::answers(settings);
    wanted(settings)
        .into_iter()
        .map(|(setting, kind, address)| match listen(kind, address) {
            Ok(()) => Finding::good(place(setting, kind, address), "free"),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && runs => Finding::good(
                place(setting, kind, address),
                "in use, and a server with these settings is running",
            ),
            Err(error) => Finding::wrong(
                place(setting, kind, address),
                error.to_string(),
                remedy(&error, setting),
            ),
        })
        .collect()
}

fn place(setting: &str, kind: Kind, address: SocketAddr) -> String {
    let kind = match kind {
        Kind::Tcp => "TCP",
        Kind::Udp => "UDP",
    };
    format!("{setting} {kind} {address}")
}

fn remedy(error: &io::Error, setting: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "end the program that has it (ss -tulpn shows it), or set {setting}; if that is your own server, run doctor with its settings"
            )
        }
        io::ErrorKind::PermissionDenied => format!(
            "ports below 1024 need CAP_NET_BIND_SERVICE (AmbientCapabilities of the unit); or set {setting}"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!("this machine does not have that address: set {setting} to one of its own")
        }
        _ => format!("set {setting}"),
    }
}

fn listen(kind: Kind, address: SocketAddr) -> io::Result<()> {
    match kind {
        Kind::Tcp => TcpListener::bind(address).map(drop),
        Kind::Udp => UdpSocket::bind(address).map(drop),
    }
}

/// Where the server is to listen; free ports that it picks itself are not among them.
fn wanted(settings: &Settings) -> Vec<(&'static str, Kind, SocketAddr)> {
    let server = &settings.server;
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let mut wanted = vec![(
        "server.port",
        Kind::Tcp,
        SocketAddr::new(server.host, server.port),
    )];
    if let Some(address) = settings.telemetry.metrics_address {
        wanted.push(("metrics.address", Kind::Tcp, address));
    }
    if livekit::mode(&settings.rtc) == RtcMode::Embedded {
        let rtc = &settings.rtc;
        let tcp = match rtc.tcp_port {
            Some(OptionalPort::At(port)) => Some(port),
            _ => None,
        };
        let ports = [
            ("rtc.udp_port", Kind::Udp, Some(rtc.udp_port)),
            ("rtc.tcp_port", Kind::Tcp, tcp),
            ("rtc.turn.udp_port", Kind::Udp, rtc.turn_udp_port),
            ("rtc.turn.tcp_port", Kind::Tcp, rtc.turn_tcp_port),
            ("rtc.turn.tls_port", Kind::Tcp, rtc.turn_tls_port),
        ];
        let ports = ports.into_iter().filter_map(|(setting, kind, port)| {
            Some((setting, kind, SocketAddr::new(everywhere, port?)))
        });
        wanted.extend(ports);
        let listens = settings.sip.listen.0.iter();
        wanted.extend(listens.filter_map(|text| sip(text)));
    }
    wanted.retain(|(_, _, address)| address.port() != 0);
    wanted
}

/// What cannot be read was refused with the other settings.
fn sip(text: &str) -> Option<(&'static str, Kind, SocketAddr)> {
    let Listen { protocol, address } = embedded::sip::listen(text).ok()?;
    let kind = match protocol {
        Protocol::Udp => Kind::Udp,
        _ => Kind::Tcp,
    };
    Some(("sip.listen", kind, address))
}

/// Whether clients of other networks are told an address that they can reach.
pub(super) fn advertised(settings: &Settings) -> Vec<Finding> {
    if livekit::mode(&settings.rtc) != RtcMode::Embedded {
        return Vec::new();
    }
    let what = "rtc.advertised_addresses";
    let told = &settings.rtc.advertised_addresses.0;
    let rooms = if told.is_empty() {
        let found = "those of all interfaces; where clients come from other networks through a NAT, set its public \
                     address (--stun HOST:PORT shows it)";
        Finding::note(what, found)
    } else if let Some(private) = told.iter().find(|address| !is_public(**address)) {
        let found = format!("{private} is not public: only clients of its network reach it");
        Finding::note(what, found)
    } else {
        Finding::good(what, "public")
    };
    vec![rooms]
}

/// Asks a STUN server which address our UDP comes from (RFC 8489).
pub(super) async fn stun(server: &str, settings: &Settings) -> Vec<Finding> {
    let what = format!("UDP, by {server}");
    let port = settings.rtc.udp_port;
    let asked = timeout(PATIENCE, mapped(server, port)).await;
    let told = &settings.rtc.advertised_addresses.0;
    vec![
        match asked.unwrap_or_else(|_| Err("no answer".to_owned())) {
            Err(problem) => Finding::wrong(
                what,
                problem,
                "let UDP through the firewall, name another server, or give clients TCP (rtc.tcp_port, rtc.turn.*)",
            ),
            Ok(seen) if told.is_empty() || told.contains(&seen.ip()) => {
                Finding::good(what, format!("leaves from {seen}"))
            }
            Ok(seen) => Finding::warning(
                what,
                format!("leaves from {seen}, which is not among rtc.advertised_addresses"),
                format!(
                    "if that is this machine's public address, set rtc.advertised_addresses={}",
                    seen.ip()
                ),
            ),
        },
    ]
}

async fn mapped(server: &str, port: u16) -> Result<SocketAddr, String> {
    let failed = |error: io::Error| error.to_string();
    let mut addresses = lookup_host(server).await.map_err(failed)?;
    let server = addresses.next().ok_or("the name has no address")?;
    let here: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // From the port of the rooms where nobody has it: firewalls go by ports.
    let socket = match tokio::net::UdpSocket::bind((here, port)).await {
        Ok(socket) => socket,
        Err(_) => tokio::net::UdpSocket::bind((here, 0))
            .await
            .map_err(failed)?,
    };
    socket.connect(server).await.map_err(failed)?;
    let request = Message::builder_request(BINDING, MessageWriteVec::new());
    let id = request.transaction_id();
    let request = request.finish();
    let mut answer = [0; 1500];
    loop {
        socket.send(&request).await.map_err(failed)?;
        let wait = timeout(std::time::Duration::from_secs(1), socket.recv(&mut answer));
        let length = match wait.await {
            Ok(length) => length.map_err(failed)?,
            // It may have been lost.
            Err(_) => continue,
        };
        let bytes = answer.get(..length).unwrap_or_default();
        let message = Message::from_bytes(bytes).map_err(|_| "an answer that is no STUN")?;
        if message.transaction_id() == id {
            let address = message.attribute::<XorMappedAddress>();
            let address = address.map_err(|_| "an answer without our address")?;
            return Ok(address.addr(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::findings::Verdict;
    use crate::config::Config;

    fn settings(fields: &[(&str, &str)]) -> Settings {
        let fields: Vec<_> = fields
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let config: Config = crate::server::settings::load(&fields, None).unwrap();
        config.settings
    }

    #[test]
    fn a_port_that_another_program_has_is_wrong_and_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let settings = settings(&[
            ("server.host", "127.0.0.1"),
            ("server.port", &port),
            ("rtc.udp_port", "0"),
        ]);
        let found = ports(&settings);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].verdict, Verdict::Wrong);
        assert!(found[0].what.starts_with("server.port TCP 127.0.0.1:"));
        drop(taken);
        assert_eq!(ports(&settings)[0].verdict, Verdict::Good);
    }

    #[test]
    fn the_telephones_addresses_are_looked_at() {
        let listen = |text| sip(text).map(|(_, kind, address)| (kind, address.to_string()));
        assert_eq!(
            listen("udp:0.0.0.0:5070"),
            Some((Kind::Udp, "0.0.0.0:5070".to_owned()))
        );
        assert_eq!(
            listen("tls:192.0.2.1"),
            Some((Kind::Tcp, "192.0.2.1:5061".to_owned()))
        );
        assert_eq!(listen("tcp:[::1]:5060").unwrap().1, "[::1]:5060");
    }

    /// A STUN server that sees everybody at this address.
    async fn sees(address: &'static str) -> String {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = socket.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let mut bytes = [0; 1500];
            let (length, client) = socket.recv_from(&mut bytes).await.unwrap();
            let request = Message::from_bytes(&bytes[..length]).unwrap();
            let mut answer = Message::builder_success(&request, MessageWriteVec::new());
            let id = request.transaction_id();
            let attribute = XorMappedAddress::new(address.parse().unwrap(), id);
            answer.add_attribute(&attribute).unwrap();
            socket.send_to(&answer.finish(), client).await.unwrap();
        });
        server
    }

    #[tokio::test]
    async fn the_address_that_others_see_is_compared_with_the_advertised_one() {
        let seen = sees("198.51.100.7:4000").await;
        let found = stun(&seen, &settings(&[("rtc.udp_port", "0")])).await;
        assert_eq!(found[0].verdict, Verdict::Good, "{found:?}");
        let seen = sees("198.51.100.7:4000").await;
        let other = settings(&[
            ("rtc.udp_port", "0"),
            ("rtc.advertised_addresses", "203.0.113.9"),
        ]);
        let found = stun(&seen, &other).await;
        assert_eq!(found[0].verdict, Verdict::Warning, "{found:?}");
        assert!(found[0].remedy.as_ref().unwrap().ends_with("=198.51.100.7"));
    }
}
