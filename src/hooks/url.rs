//! Which addresses a hook may have.

use ::url::Url;

use vivavoce_core::outgoing::reach::Reach;

/// The longest address, in bytes.
pub const LONGEST_URL: usize = 2_048;

/// Reads where a hook leads; an error completes the sentence "url: …" and does not quote it. What its name means is looked
/// at when it is connected to.
pub fn check_url(text: &str, reach: Reach) -> Result<Url, String> {
    if text.len() > LONGEST_URL {
        return Err(format!("must have {LONGEST_URL} bytes at most"));
    }
    let url = Url::parse(text).map_err(|_| "must be a URL".to_owned())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user or a password".to_owned());
    }
    reach.check(&url).map_err(|error| error.to_string())?;
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_told_over_tls_at_a_public_address_unless_the_settings_say_otherwise() {
        let narrow = Reach::default();
        let wide = Reach {
            insecure: true,
            private: true,
        };
        for (url, reach, good) in [
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
            assert_eq!(check_url(url, reach).is_ok(), good, "{url}");
        }
        let long = format!("https://a.example/{}", "a".repeat(LONGEST_URL));
        assert!(check_url(&long, wide).is_err());
    }
}
