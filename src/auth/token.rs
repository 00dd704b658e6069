//! Extracting the token from a request: from the `Authorization` header, or from the query if the header is absent or
//! malformed.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::AuthError;
use vivavoce_core::party::TenantId;

/// The slots where a request may contain a token.
#[derive(Clone)]
pub struct Credentials<'a> {
    /// The values of all `Authorization` headers.
    pub authorization: Vec<&'a [u8]>,
    /// The raw query string.
    pub query: &'a str,
}

impl Credentials<'_> {
    /// Whether the request contains a token, valid or not.
    pub fn show_token(&self) -> bool {
        self.token().is_ok()
    }

    /// The token as the value of an `Authorization` header, wherever it was.
    pub fn bearer(&self) -> Option<String> {
        let token = self.token().ok()?;
        Some(format!("Bearer {}", token.expose()))
    }

    pub(super) fn token(&self) -> Result<Token, AuthError> {
        let header = match self.authorization.as_slice() {
            [] => Err(AuthError::MissingHeader),
            [header] => bearer(header).ok_or(AuthError::InvalidHeader),
            // A proxy in front of this server may have checked another one of them.
            _ => Err(AuthError::InvalidHeader),
        };
        header.or_else(|error| api_key(self.query).ok_or(error))
    }
}

/// The holder of a valid token: a tenant, or somebody without a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) tenant: Option<TenantId>,
    /// Whether it changes nothing.
    pub(super) reads_only: bool,
}

#[cfg(test)]
impl Holder {
    /// Somebody who may also change things.
    pub(super) const fn of(tenant: Option<TenantId>) -> Self {
        Self {
            tenant,
            reads_only: false,
        }
    }
}

/// A token from a request: never empty, without spaces and control characters, never printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token(String);

impl Token {
    pub(super) fn new(text: &str) -> Option<Self> {
        let odd = |c: char| c.is_whitespace() || c.is_control();
        (!text.is_empty() && !text.contains(odd)).then(|| Self(text.to_owned()))
    }

    /// The token itself, for the authentication service.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// How long the token remains valid by its `exp` claim, if it looks like a JWT that has one (RFC 7519, section
    /// 4.1.4). The signature has not been verified. `None` if there is no such claim or it has passed.
    pub(super) fn time_left(&self, now: SystemTime) -> Option<Duration> {
        let mut parts = self.0.split('.');
        let (Some(_), Some(claims), Some(_), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        let exp = claims.get("exp")?.as_f64()?;
        let end = UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(exp).ok()?)?;
        end.duration_since(now).ok().filter(|left| !left.is_zero())
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn bearer(header: &[u8]) -> Option<Token> {
    let (scheme, token) = std::str::from_utf8(header).ok()?.trim().split_once(' ')?;
    let token = Token::new(token.trim_start())?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// `None` if there are several, because it would be ambiguous which one is meant.
fn api_key(query: &str) -> Option<Token> {
    let mut keys = form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| name == "api_key")
        .map(|(_, value): (_, Cow<'_, str>)| value);
    let key = keys.next()?;
    keys.next().is_none().then(|| Token::new(&key)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(headers: &[&str], query: &str) -> Result<String, AuthError> {
        let authorization = headers.iter().map(|header| header.as_bytes()).collect();
        let credentials = Credentials {
            authorization,
            query,
        };
        credentials.token().map(|token| token.0)
    }

    #[test]
    fn the_header_is_looked_at_first() {
        for header in ["Bearer t", "bearer t", "BEARER   t"] {
            assert_eq!(
                token(&[header], "api_key=q"),
                Ok("t".to_owned()),
                "{header}"
            );
        }
        assert_eq!(token(&[], "a=b&api_key=q%2B1"), Ok("q+1".to_owned()));
    }

    #[test]
    fn a_header_that_is_not_understood_leaves_the_query() {
        let malformed = [
            &["Bearer"][..],
            &["Bearer "],
            &["Basic dTpw"],
            &["Bearer a b"],
            &["Bearera"],
            &["t"],
            &[""],
            &["Bearer a", "Bearer b"],
        ];
        for headers in malformed {
            assert_eq!(
                token(headers, "api_key=q"),
                Ok("q".to_owned()),
                "{headers:?}"
            );
            for query in ["", "api_key=", "api_key=a%20b", "api_key=a&api_key=b"] {
                let got = token(headers, query);
                assert_eq!(got, Err(AuthError::InvalidHeader), "{headers:?} {query}");
            }
        }
    }

    #[test]
    fn without_a_usable_token_the_header_is_missing() {
        for query in [
            "",
            "api_key",
            "api_key=",
            "api_key=%00",
            "API_KEY=q",
            "api_key=a&api_key=a",
        ] {
            assert_eq!(token(&[], query), Err(AuthError::MissingHeader), "{query}");
        }
    }

    #[test]
    fn a_token_that_looks_like_a_jwt_says_how_long_it_is_good() {
        let left = |token: String| {
            let now = UNIX_EPOCH + Duration::from_secs(1_000);
            Token::new(&token).unwrap().time_left(now)
        };
        let jwt = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        for (claims, seconds) in [
            (r#"{"exp": 1060}"#, 60.0),
            (r#"{"sub": "x", "exp": 1000.5}"#, 0.5),
        ] {
            let expected = Duration::from_secs_f64(seconds);
            assert_eq!(left(jwt(claims)), Some(expected), "{claims}");
        }
        for claims in [
            "{}",
            r#"{"exp": 1000}"#,
            r#"{"exp": 0}"#,
            r#"{"exp": -1}"#,
            r#"{"exp": "1060"}"#,
            r#"{"exp": 1e300}"#,
            "[1060]",
            "1060",
            "{",
        ] {
            assert_eq!(left(jwt(claims)), None, "{claims}");
        }
        let good = jwt(r#"{"exp": 1060}"#);
        for token in [
            "t".to_owned(),
            format!("{good}.x"),
            good.replacen('.', "_", 1),
            "a.%.c".to_owned(),
        ] {
            assert_eq!(left(token.clone()), None, "{token}");
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        assert_eq!(format!("{:?}", Token::new("marker")), "Some(***)");
    }
}
