//! What signatures are over, and the algorithms that several carriers share. Comparisons take the same time whatever differs.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Account;
use vivavoce_config::Secret;

/// A request of a carrier.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// The URL as the carrier knows it, with its query; `wss://` for a socket.
    pub url: &'a str,
    /// A header by its name in lower case; `None` where it is missing, comes twice or is not text.
    pub header: &'a dyn Fn(&str) -> Option<&'a str>,
    /// The fields of a form, sorted by name.
    pub form: &'a BTreeMap<String, String>,
    /// The body as it came.
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        (self.header)(name)
    }

    /// The URL as it may have been signed: with the port of its scheme, or without.
    pub fn urls(&self) -> Vec<String> {
        let mut urls = vec![self.url.to_owned()];
        let Some((scheme, rest)) = self.url.split_once("://") else {
            return urls;
        };
        let port = match scheme {
            "wss" | "https" => ":443",
            _ => ":80",
        };
        let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if let Some(bare) = host.strip_suffix(port) {
            urls.push(format!("{scheme}://{bare}{path}"));
        } else if !host.rsplit(']').next().unwrap_or_default().contains(':') {
            urls.push(format!("{scheme}://{host}{port}{path}"));
        }
        urls
    }
}

/// A signature that is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signature {
    /// Two requests may have it.
    Repeated,
    /// It is over something that the carrier says once: a request that comes with it again is a copy.
    Once(Box<[u8]>),
}

impl Account {
    /// The key of the account.
    pub(crate) fn key(&self) -> Option<&str> {
        self.signing_key.as_ref().map(Secret::expose)
    }

    /// Whether this is the HMAC-SHA1 of a text in base64, by the key of the account.
    pub(crate) fn signed_sha1(&self, text: &[u8], signature: &str) -> bool {
        let algorithm = hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY;
        let signature = STANDARD.decode(signature).ok();
        self.key()
            .zip(signature)
            .is_some_and(|(key, signature)| verifies(algorithm, key.as_bytes(), text, &signature))
    }
}

/// The HMAC-SHA256 of a text that no other request has, if it is that.
pub fn signed_once(key: &[u8], text: &[u8], signature: &[u8]) -> Option<Signature> {
    verifies(hmac::HMAC_SHA256, key, text, signature).then(|| Signature::Once(signature.into()))
}

fn verifies(algorithm: hmac::Algorithm, key: &[u8], text: &[u8], signature: &[u8]) -> bool {
    hmac::verify(&hmac::Key::new(algorithm, key), text, signature).is_ok()
}

/// How old a signature may be, and how far ahead the carrier's clock.
pub(crate) const FRESH: Duration = Duration::from_mins(5);

/// Whether something was signed now, by the Unix time that it says.
pub fn is_fresh(signed: u64, now: SystemTime) -> bool {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    now.abs_diff(signed) <= FRESH.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_the_scheme_may_be_in_the_url_or_not() {
        for (url, other) in [
            (
                "wss://a.example/carrier?b=c",
                Some("wss://a.example:443/carrier?b=c"),
            ),
            (
                "wss://a.example:443/carrier",
                Some("wss://a.example/carrier"),
            ),
            ("https://a.example", Some("https://a.example:443")),
            ("ws://[::1]/a", Some("ws://[::1]:80/a")),
            ("ws://[::1]:3001/a", None),
            ("wss://a.example:8443/", None),
            ("none", None),
        ] {
            let form = BTreeMap::new();
            let request = Request {
                method: "GET",
                url,
                header: &|_| None,
                form: &form,
                body: b"",
            };
            let urls = request.urls();
            assert_eq!(urls[0], url);
            assert_eq!(urls.get(1).map(String::as_str), other);
        }
    }
}
