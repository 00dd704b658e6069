//! The types of settings: how each is parsed, displayed and documented. All sources (flags, environment, file,
//! defaults) provide text, so a value is parsed the same way wherever it comes from.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::endpoint::Endpoint;

/// The type of a setting.
pub trait SettingValue: Sized {
    /// What is accepted, for people: completes the sentence "must be …".
    const SHAPE: &'static str;
    /// Whether the value must never be displayed.
    const SECRET: bool = false;
    /// Parses a text that is not empty.
    fn parse(text: &str) -> Option<Self>;
    /// The value of a setting that is not set and has no default.
    fn absent() -> Option<Self> {
        None
    }
}

/// A text that is never displayed: not by `Debug`, in logs or in errors. It has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the code that must send or compare it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A percentage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percent(pub u8);

impl Percent {
    /// This part of `all`, rounded so that something is always left of something.
    pub fn of(self, all: usize) -> usize {
        let part = all as u128 * u128::from(self.0) / 100;
        usize::try_from(part).unwrap_or(all).max(1).min(all)
    }
}

/// A number of bytes, written as a number or with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

/// A comma-separated list (in YAML also a sequence).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List(pub Vec<String>);

/// A comma-separated list of IP addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Addresses(pub Vec<IpAddr>);

/// A comma-separated list of IP networks; a single address is a network of one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Networks(pub Vec<IpNet>);

/// An inclusive range of ports, `first-last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// An `http` or `https` URL with a host and without user information, which could be a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl(pub reqwest::Url);

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::masked(self.0.as_str()))
    }
}

/// A comma-separated list of such URLs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpUrls(pub Vec<HttpUrl>);

/// The base URL of a vendor's API. `ws` and `wss` are accepted for `http` and `https`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorUrl(reqwest::Url);

impl VendorUrl {
    /// The URL of a path below it; each segment is percent-encoded.
    pub fn at<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> reqwest::Url {
        let mut url = self.0.clone();
        // http and https URLs always have path segments.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// The URL itself.
    pub const fn url(&self) -> &reqwest::Url {
        &self.0
    }

    /// The URL with the scheme `ws` or `wss`, without a trailing slash.
    pub fn socket(&self) -> String {
        let text = self.0.as_str().trim_end_matches('/');
        text.strip_prefix("http")
            .map_or_else(|| text.to_owned(), |rest| format!("ws{rest}"))
    }
}

/// JSON text, kept verbatim; its shape is known to whoever uses it. It may contain secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(pub serde_json::Value);

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const SHAPE: &'static str = T::SHAPE;
    const SECRET: bool = T::SECRET;
    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Some)
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl SettingValue for String {
    const SHAPE: &'static str = "a text";
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl SettingValue for Secret {
    const SHAPE: &'static str = "a text";
    const SECRET: bool = true;
    fn parse(text: &str) -> Option<Self> {
        Some(Self::new(text))
    }
}

impl SettingValue for PathBuf {
    const SHAPE: &'static str = "a path";
    fn parse(text: &str) -> Option<Self> {
        Some(text.into())
    }
}

impl SettingValue for bool {
    const SHAPE: &'static str = "true or false";
    fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }
}

impl SettingValue for u8 {
    const SHAPE: &'static str = "a whole number from 0 to 255";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl SettingValue for u16 {
    const SHAPE: &'static str = "a port number from 0 to 65535";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A port that need not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionalPort {
    /// None is opened.
    Off,
    /// This one; 0: any that is free.
    At(u16),
}

impl SettingValue for OptionalPort {
    const SHAPE: &'static str = "a port number from 0 to 65535, or off";
    fn parse(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self::Off);
        }
        text.parse().ok().map(Self::At)
    }
}

impl SettingValue for usize {
    const SHAPE: &'static str = "a whole number from 0";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl SettingValue for u32 {
    const SHAPE: &'static str = "a whole number from 0";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl SettingValue for NonZeroU32 {
    const SHAPE: &'static str = "a whole number from 1";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl SettingValue for Endpoint {
    const SHAPE: &'static str = "the address of a Wyoming server, tcp://host:port or unix:///path";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl SettingValue for HttpUrl {
    const SHAPE: &'static str = "an address, http://… or https://…, without a user name in it";
    fn parse(text: &str) -> Option<Self> {
        let url = reqwest::Url::parse(text).ok()?;
        let plain = url.username().is_empty() && url.password().is_none();
        let web = matches!(url.scheme(), "http" | "https") && url.has_host();
        (plain && web).then_some(Self(url))
    }
}

impl SettingValue for HttpUrls {
    const SHAPE: &'static str = "addresses, http://… or https://…, with commas";
    fn parse(text: &str) -> Option<Self> {
        let List(items) = List::parse(text)?;
        let urls = items.iter().map(|item| HttpUrl::parse(item));
        urls.collect::<Option<_>>().map(Self)
    }
    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl SettingValue for VendorUrl {
    const SHAPE: &'static str =
        "an address, http://…, https://…, ws://… or wss://…, without a user name or a query in it";
    fn parse(text: &str) -> Option<Self> {
        let web = match text.split_once("://")? {
            ("ws", rest) => format!("http://{rest}"),
            ("wss", rest) => format!("https://{rest}"),
            _ => text.to_owned(),
        };
        let HttpUrl(url) = HttpUrl::parse(&web)?;
        (url.query().is_none() && url.fragment().is_none()).then_some(Self(url))
    }
}

impl SettingValue for IpAddr {
    const SHAPE: &'static str = "an IP address";
    fn parse(text: &str) -> Option<Self> {
        if text == "localhost" {
            Some(Ipv4Addr::LOCALHOST.into())
        } else {
            text.parse().ok()
        }
    }
}

impl SettingValue for SocketAddr {
    const SHAPE: &'static str = "an IP address and a port, host:port";
    fn parse(text: &str) -> Option<Self> {
        let port = text.strip_prefix("localhost:").map(str::parse);
        let local = port
            .and_then(Result::ok)
            .map(|port| (Ipv4Addr::LOCALHOST, port).into());
        text.parse().ok().or(local)
    }
}

/// A duration in milliseconds; the keys of such settings end in `_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Millis(pub Duration);

/// Durations are whole or decimal seconds; the keys of such settings end in `_seconds`.
impl SettingValue for Duration {
    const SHAPE: &'static str = "a number of seconds from 0 to 3153600000";
    fn parse(text: &str) -> Option<Self> {
        let seconds: f64 = text.parse().ok()?;
        (0.0..=3_153_600_000.0)
            .contains(&seconds)
            .then(|| Self::from_secs_f64(seconds))
    }
}

impl SettingValue for Millis {
    const SHAPE: &'static str = "a whole number of milliseconds from 0 to 3600000";
    fn parse(text: &str) -> Option<Self> {
        let ms = text.parse().ok().filter(|ms| *ms <= 3_600_000)?;
        Some(Self(Duration::from_millis(ms)))
    }
}

impl SettingValue for ByteSize {
    const SHAPE: &'static str = "a number of bytes, or one with KiB, MiB or GiB behind it";
    fn parse(text: &str) -> Option<Self> {
        const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
        let (number, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), *unit)))
            .unwrap_or((text, 1));
        number.parse::<u64>().ok()?.checked_mul(unit).map(Self)
    }
}

impl SettingValue for Percent {
    const SHAPE: &'static str = "a whole number from 1 to 100";
    fn parse(text: &str) -> Option<Self> {
        let percent = text
            .parse()
            .ok()
            .filter(|percent| (1..=100).contains(percent))?;
        Some(Self(percent))
    }
}

impl SettingValue for List {
    const SHAPE: &'static str = "a list with commas";
    fn parse(text: &str) -> Option<Self> {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        Some(Self(items.map(str::to_owned).collect()))
    }
    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl SettingValue for Addresses {
    const SHAPE: &'static str = "IP addresses with commas";
    fn parse(text: &str) -> Option<Self> {
        let List(items) = List::parse(text)?;
        let addresses = items.iter().map(|item| IpAddr::parse(item));
        addresses.collect::<Option<_>>().map(Self)
    }
    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl SettingValue for Networks {
    const SHAPE: &'static str = "addresses or networks (10.0.0.0/8) with commas";
    fn parse(text: &str) -> Option<Self> {
        let network = |item: String| {
            let address = || item.parse::<IpAddr>().ok().map(IpNet::from);
            item.parse().ok().or_else(address)
        };
        let List(items) = List::parse(text)?;
        items
            .into_iter()
            .map(network)
            .collect::<Option<_>>()
            .map(Self)
    }
    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl SettingValue for PortRange {
    const SHAPE: &'static str = "a range of ports, first-last";
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        let range = Self {
            first: first.trim().parse().ok()?,
            last: last.trim().parse().ok()?,
        };
        (range.first > 0 && range.first <= range.last).then_some(range)
    }
}

impl SettingValue for JsonText {
    const SHAPE: &'static str = "JSON";
    const SECRET: bool = true;
    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }
}

/// Defines a setting with a fixed set of values as an enum.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? } $shape:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl SettingValue for $name {
            const SHAPE: &'static str = $shape;
            fn parse(text: &str) -> Option<Self> {
                match text { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words! {
    /// The room provider behind `/rtc`.
    RtcMode {
        /// The embedded SFU.
        Embedded = "embedded",
        /// A LiveKit deployment at `rtc.url`.
        Livekit = "livekit",
        /// No rooms.
        Off = "off",
    } "embedded, livekit or off"
}

words! {
    /// Where recordings are stored.
    RecordingBackend {
        /// A folder.
        File = "file",
        /// An S3 bucket.
        S3 = "s3",
        /// Recording is off: requests to record are refused.
        Off = "off",
    } "file, s3 or off"
}

words! {
    /// The channel layout of recordings.
    RecordingLayout {
        /// Input on the left, output on the right.
        Stereo = "stereo",
        /// Both mixed.
        Mono = "mono",
    } "stereo or mono"
}

words! {
    /// Whether `GET /ws` requires a token.
    SocketAuth {
        /// No, but a token that is given must be valid.
        Public = "public",
        /// Yes, like the protected endpoints.
        Required = "required",
    } "public or required"
}

words! {
    /// Which calls share a room.
    RoomMode {
        /// Calls to the same number.
        Number = "number",
        /// None.
        Call = "call",
    } "number or call"
}

words! {
    /// How a transfer names an international number.
    ReferScheme {
        /// As one of the telephone network.
        Tel = "tel",
        /// As a user of the gateway.
        Sip = "sip",
    } "tel or sip"
}

words! {
    /// Whose INVITE may take the place of a call (`Replaces`).
    AcceptReplaces {
        /// Nobody's.
        Off = "off",
        /// That of the address that has the call.
        SameAddress = "same_address",
        /// That of everybody who may call.
        Any = "any",
    } "off, same_address or any"
}

words! {
    /// What becomes of a warm transfer whose agent does not come back.
    TransferWithoutAgent {
        /// It is cancelled.
        Back = "back",
        /// It is completed.
        Complete = "complete",
    } "back or complete"
}

words! {
    /// What becomes of somebody who has waited too long in a queue.
    QueueTimeout {
        /// They are off hold, where somebody is in the room.
        Back = "back",
        /// They are hung up.
        HangUp = "hang_up",
    } "back or hang_up"
}

words! {
    /// The transport of SIP signalling.
    SipTransport {
        /// UDP.
        Udp = "udp",
        /// TCP.
        Tcp = "tcp",
        /// TLS.
        Tls = "tls",
    } "udp, tcp or tls"
}

words! {
    /// Whether the media of calls is encrypted (SRTP).
    MediaEncryption {
        /// Never.
        Off = "off",
        /// If the other side offers it.
        Allow = "allow",
        /// Always; calls without it are refused.
        Require = "require",
    } "off, allow or require"
}

words! {
    /// The format of log lines.
    LogFormat {
        /// Human-readable text.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    } "text or json"
}

words! {
    /// The log level of Vivavoce's own code; dependencies stay at `warn` whatever is set here.
    LogLevel {
        /// Failures.
        Error = "error",
        /// Conditions that an operator should look at.
        Warn = "warn",
        /// Events.
        Info = "info",
        /// Details, including what people said.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    } "error, warn, info, debug or trace"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_boolean_is_an_error_and_never_off() {
        assert_eq!(bool::parse("TRUE"), Some(true));
        assert_eq!(bool::parse("off"), Some(false));
        for text in ["ture", "flase", "enabled", "2", "y"] {
            assert_eq!(bool::parse(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_and_ranges_are_read_or_refused() {
        assert_eq!(ByteSize::parse("1GiB"), Some(ByteSize(1 << 30)));
        assert_eq!(ByteSize::parse("64 KiB"), Some(ByteSize(65_536)));
        assert_eq!(ByteSize::parse("99999999999GiB"), None);
        assert_eq!(ByteSize::parse("-1"), None);
        assert_eq!(
            PortRange::parse("20000-20999"),
            Some(PortRange {
                first: 20_000,
                last: 20_999
            })
        );
        assert_eq!(PortRange::parse("5-4"), None);
        let networks = Networks::parse("10.0.0.0/8, ::1").unwrap();
        assert_eq!(networks.0.len(), 2);
        assert_eq!(Networks::parse("10.0.0.0/33"), None);
        assert_eq!(Networks::parse("10.0.0.0/8, proxy"), None);
        assert_eq!(Duration::parse("2.5"), Some(Duration::from_millis(2_500)));
        assert_eq!(Duration::parse("1e300"), None);
        assert_eq!(Duration::parse("NaN"), None);
    }

    #[test]
    fn an_address_of_a_service_is_one_of_the_web_without_credentials() {
        for text in ["http://127.0.0.1:8080/check", "https://auth.example/"] {
            assert!(HttpUrl::parse(text).is_some(), "{text}");
        }
        for text in [
            "auth.example",
            "ftp://auth.example",
            "http://",
            "https://u:p@auth.example",
        ] {
            assert_eq!(HttpUrl::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_vendors_paths_go_below_its_address_and_stay_in_their_segment() {
        let at = |base: &str, segments: &[&str]| {
            let base = VendorUrl::parse(base).unwrap();
            base.at(segments.iter().copied()).to_string()
        };
        assert_eq!(
            at("wss://v.example", &["v1", "listen"]),
            "https://v.example/v1/listen"
        );
        assert_eq!(at("ws://h:1/proxy/", &["v1"]), "http://h:1/proxy/v1");
        assert_eq!(
            at("https://v.example", &["voice", "../a?b#c/d"]),
            "https://v.example/voice/..%2Fa%3Fb%23c%2Fd"
        );
        assert_eq!(
            at("https://v.example", &["a", "..", "b"]),
            "https://v.example/a/b"
        );
        assert_eq!(VendorUrl::parse("https://v.example/?key=1"), None);
    }

    #[test]
    fn a_secret_shows_nothing() {
        let shown = format!(
            "{:?} {:?}",
            Secret::new("marker"),
            JsonText::parse("\"marker\"")
        );
        assert!(!shown.contains("marker"), "{shown}");
    }
}
