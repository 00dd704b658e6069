//! Validation of hook URLs.

use ::url::Url;

use vivavoce_core::egress_policy::EgressPolicy;

/// The maximum length of a URL, in bytes.
pub const MAX_URL_BYTES: usize = 2_048;

/// Validates a hook's URL; an error completes the sentence "url: …" and does not quote the URL. Its host name is
/// resolved and checked when connecting.
pub fn check_url(text: &str, egress: EgressPolicy) -> Result<Url, String> {
    if text.len() > MAX_URL_BYTES {
        return Err(format!("must have {MAX_URL_BYTES} bytes at most"));
    }
    let url = Url::parse(text).map_err(|_| "must be a URL".to_owned())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user or a password".to_owned());
    }
    egress.check(&url).map_err(|error| error.to_string())?;
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_told_over_tls_at_a_public_address_unless_the_settings_say_otherwise() {
        let narrow = EgressPolicy::default();
        let wide = EgressPolicy {
            insecure: true,
            private: true,
        };
        for (url, egress, good) in [
            ("https://hooks.example/a?b=c", narrow, true),
            ("HTTPS://hooks.example", narrow, true),
            ("http://hooks.example/", narrow, false),
            ("http://hooks.example/", wide, true),
            ("https://127.0.0.1/", narrow, false),
            ("http://127.0.0.1:8080/", wide, true),
            ("ftp://hooks.example/", wide, false),
            ("file:///etc/passwd", wide, false),
            ("https://user@hooks.example/", wide, false),
            ("https://:word@hooks.example/", wide, false),
            ("https://", wide, false),
            ("/a", wide, false),
            ("", wide, false),
        ] {
            assert_eq!(check_url(url, egress).is_ok(), good, "{url}");
        }
        let long = format!("https://a.example/{}", "a".repeat(MAX_URL_BYTES));
        assert!(check_url(&long, wide).is_err());
    }
}
