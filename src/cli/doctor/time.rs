//! Whether the clock is right: signatures, tokens and webhooks are refused by others where it is not.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::{UdpSocket, lookup_host};
use tokio::time::timeout;

use super::PATIENCE;
use super::findings::Finding;

const WHAT: &str = "clock";
/// systemd-timesyncd makes it once it has set the clock.
const TIMESYNCD: &str = "/run/systemd/timesync/synchronized";
const NTP_PORT: u16 = 123;
/// From the era of NTP (1900) to that of Unix (1970), RFC 5905, section 6.
const ERA_SECONDS: u64 = 2_208_988_800;
/// Beyond this, signatures of webhooks and carriers begin to fail.
const FAR_OFF: Duration = Duration::from_secs(30);
/// Beyond this, times in logs of several machines cannot be compared.
const OFF: Duration = Duration::from_secs(1);
const REMEDY: &str = "run a time service (systemd-timesyncd, chrony)";

pub(super) fn synchronised() -> Finding {
    if Path::new(TIMESYNCD).exists() {
        Finding::good(WHAT, "set by systemd-timesyncd")
    } else {
        Finding::note(WHAT, "not compared with another one (--ntp HOST does)")
    }
}

/// Asks a time server (SNTP, RFC 5905, section 14).
pub(super) async fn compare(server: &str) -> Finding {
    let what = format!("{WHAT}, by {server}");
    let asked = timeout(PATIENCE, ask(server)).await;
    match asked.unwrap_or_else(|_| Err("no answer: UDP to its port 123 may be blocked".to_owned()))
    {
        Err(problem) => Finding::warning(what, problem, "name another server, or open UDP"),
        Ok(off) if off > FAR_OFF => Finding::wrong(what, told(off), REMEDY),
        Ok(off) if off > OFF => Finding::warning(what, told(off), REMEDY),
        Ok(off) => Finding::good(what, told(off)),
    }
}

fn told(off: Duration) -> String {
    format!("{} ms off", off.as_millis())
}

async fn ask(server: &str) -> Result<Duration, String> {
    let failed = |error: std::io::Error| error.to_string();
    let addresses = if server.contains(':') && server.parse::<std::net::Ipv6Addr>().is_err() {
        lookup_host(server.to_owned()).await.map_err(failed)?.next()
    } else {
        lookup_host((server, NTP_PORT))
            .await
            .map_err(failed)?
            .next()
    };
    let address: SocketAddr = addresses.ok_or("the name has no address")?;
    let here = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(here).await.map_err(failed)?;
    socket.connect(address).await.map_err(failed)?;
    let mut packet = [0; 48];
    // Version 4, client.
    packet[0] = 0x23;
    let sent = SystemTime::now();
    socket.send(&packet).await.map_err(failed)?;
    let length = socket.recv(&mut packet).await.map_err(failed)?;
    let received = SystemTime::now();
    let theirs = transmitted(packet.get(..length).unwrap_or_default())?;
    // The middle of the exchange is when theirs was read.
    let half = received.duration_since(sent).unwrap_or_default() / 2;
    let ours = sent + half;
    Ok(ours
        .duration_since(theirs)
        .unwrap_or_else(|error| error.duration()))
}

/// The time at which an answer was sent.
fn transmitted(packet: &[u8]) -> Result<SystemTime, String> {
    let time = packet.get(40..48).and_then(|time| time.try_into().ok());
    let time = u64::from_be_bytes(time.ok_or("an answer that is too short")?);
    let (seconds, fraction) = (time >> 32, time & 0xffff_ffff);
    let since_1970 = seconds.checked_sub(ERA_SECONDS);
    let seconds = since_1970.ok_or("a server that does not know the time")?;
    let nanoseconds = (fraction * 1_000_000_000) >> 32;
    Ok(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::findings::Verdict;

    /// A server whose clock is ahead by so much.
    async fn server(ahead: Duration) -> String {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let mut packet = [0; 48];
            let (_, client) = socket.recv_from(&mut packet).await.unwrap();
            assert_eq!(packet[0], 0x23);
            let now = SystemTime::now() + ahead;
            let now = now.duration_since(UNIX_EPOCH).unwrap();
            let seconds = (now.as_secs() + ERA_SECONDS) << 32;
            let fraction = (u64::from(now.subsec_nanos()) << 32) / 1_000_000_000;
            packet[40..].copy_from_slice(&(seconds | fraction).to_be_bytes());
            socket.send_to(&packet, client).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn a_clock_is_judged_by_how_far_it_is_off() {
        for (ahead, verdict) in [
            (Duration::ZERO, Verdict::Good),
            (Duration::from_secs(10), Verdict::Warning),
            (Duration::from_mins(10), Verdict::Wrong),
        ] {
            let found = compare(&server(ahead).await).await;
            assert_eq!(found.verdict, verdict, "{found:?}");
        }
    }

    #[test]
    fn answers_without_a_time_are_refused() {
        assert!(transmitted(&[0; 47]).is_err());
        assert!(transmitted(&[0; 48]).is_err());
    }
}
