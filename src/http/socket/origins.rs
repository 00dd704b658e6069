//! The allowed origins.

/// Origins whose pages may use this server, as `scheme://host[:port]`.
#[derive(Debug, Clone, Default)]
pub struct Origins(Vec<String>);

impl Origins {
    /// These origins; a trailing slash is ignored.
    pub fn new<'a>(origins: impl IntoIterator<Item = &'a String>) -> Self {
        let origins = origins
            .into_iter()
            .map(|origin| origin.trim_end_matches('/'));
        Self(origins.map(str::to_owned).collect())
    }

    /// Whether pages of this origin are allowed.
    pub fn contains(&self, origin: &str) -> bool {
        self.0
            .iter()
            .any(|listed| listed.eq_ignore_ascii_case(origin))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
