//! Where a recording is: its name is its tenant's own, so two tenants may use one name and neither learns of the other.
//! In the store nobody's recordings lie directly below the prefix, as the specification says, and a tenant's in a folder
//! of that tenant; on this disk a journal's folder carries both. No folder of a tenant can be taken for a recording.

use std::borrow::Cow;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::Metadata;
use vivavoce_core::hash::hex;

/// Behind the folders of all tenants and before all recordings of nobody, in the order of a listing.
pub const BEHIND_TENANTS: &str = "%~";
/// What stands before the digest of a tenant whose name is longer than a name of a file may be.
const DIGEST: &str = "%-";
/// The longest that a tenant's folder is called by its name alone, and how much of a longer one is shown.
const MAX_FOLDER: usize = 200;
const SHOWN_OF_LONGER: usize = 100;
/// Between a journal's `stream_id` and the digest of its tenant.
const OF_TENANT: char = '%';

/// Whose a recording is, and what it is called.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The folder of its tenant in the store; none is nobody's.
    folder: Option<String>,
    /// What its journal is called.
    journal: String,
    stream_id: String,
}

impl Place {
    /// Where a recording of this tenant, or of nobody, is.
    pub fn new(tenant: Option<&str>, stream_id: &str) -> Self {
        let journal = match tenant {
            Some(tenant) => format!("{stream_id}{OF_TENANT}{}", digest(tenant)),
            None => stream_id.to_owned(),
        };
        Self {
            folder: tenant.map(tenant_folder),
            journal,
            stream_id: stream_id.to_owned(),
        }
    }

    /// Where what is described so belongs.
    pub fn of(metadata: &Metadata) -> Self {
        Self::new(metadata.tenant.as_deref(), &metadata.stream_id)
    }

    /// In this folder of a tenant, as a listing tells it.
    pub fn listed(folder: &str, stream_id: &str) -> Self {
        Self {
            folder: Some(folder.to_owned()),
            journal: String::new(),
            stream_id: stream_id.to_owned(),
        }
    }

    /// Directly below the prefix: nobody's, or of whatever tenant where version 0.1.0 has kept it.
    pub fn top(stream_id: &str) -> Self {
        Self::new(None, stream_id)
    }

    /// Its name, among its tenant's.
    pub fn stream_id(&self) -> &str {
        &self.stream_id
    }

    /// Below the prefix; the place in a listing of everything, too.
    pub fn path(&self) -> Cow<'_, str> {
        match &self.folder {
            Some(folder) => format!("{folder}/{}", self.stream_id).into(),
            None => self.stream_id.as_str().into(),
        }
    }

    /// The key of one of its files in the store.
    pub fn key(&self, prefix: &str, file: &str) -> String {
        format!("{prefix}/{}/{file}", self.path())
    }

    /// What the folder of its journal, or of what is noted of it, is called on this disk.
    pub fn journal(&self) -> &str {
        &self.journal
    }

    /// Whether what says this of itself may lie here: what is under our keys but not of our making is nobody's recording.
    pub fn holds(&self, metadata: &Metadata) -> bool {
        metadata.stream_id == self.stream_id
            && match &self.folder {
                Some(folder) => {
                    metadata.tenant.as_deref().map(tenant_folder).as_ref() == Some(folder)
                }
                None => true,
            }
    }
}

/// Whether a journal's folder of this name is one of this `stream_id`, whoever it belongs to.
pub fn is_journal_of(name: &str, stream_id: &str) -> bool {
    name.strip_prefix(stream_id)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(OF_TENANT))
}

/// Whether a name in a listing is the folder of a tenant.
pub fn is_tenant(name: &str) -> bool {
    name.starts_with('%')
}

/// The folder of a tenant: its id percent-encoded (RFC 3986), the first byte always, which no `stream_id` can look like,
/// nor `.` and `..` survive. Where that is longer than the names of files may be, its beginning and the id's SHA-256.
pub fn tenant_folder(tenant: &str) -> String {
    let mut folder = String::new();
    let mut shown = 0;
    for (index, byte) in tenant.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if plain && index > 0 {
            folder.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(folder, "%{byte:02X}");
        }
        if folder.len() <= SHOWN_OF_LONGER {
            shown = folder.len();
        }
    }
    if folder.len() > MAX_FOLDER {
        folder.truncate(shown);
        folder.push_str(DIGEST);
        folder.push_str(&digest(tenant));
    }
    folder
}

fn digest(tenant: &str) -> String {
    hex(&Sha256::digest(tenant))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use vivavoce_core::stream_id::StreamId;

    /// What a file system takes as one name, with what is put before and behind it.
    const NAME_MAX: usize = 255 - 30;

    #[test]
    fn nobodys_recordings_lie_where_the_specification_says_and_a_tenants_in_its_folder() {
        let key = |tenant| Place::new(tenant, "call-1").key("recordings", "audio.ogg");
        assert_eq!(key(None), "recordings/call-1/audio.ogg");
        assert_eq!(key(Some("acme")), "recordings/%61cme/call-1/audio.ogg");
        assert_eq!(
            key(Some("Ärzte e.V.")),
            "recordings/%C3%84rzte%20e.V./call-1/audio.ogg"
        );
    }

    #[test]
    fn no_tenant_leads_out_of_the_folder_or_into_anothers() {
        let longest = "€".repeat(85);
        let similar = format!("{}x", &longest[..252]);
        let tenants = [
            ".",
            "..",
            "../..",
            "/",
            "a/b",
            "a%2Fb",
            "a",
            "A",
            "%61",
            "%",
            "call-1",
            "~",
            "%~",
            "audio.ogg",
            ".gone-x",
            &longest,
            &similar,
        ];
        let mut folders = HashSet::new();
        for tenant in tenants {
            let folder = tenant_folder(tenant);
            assert!(
                folder.len() <= NAME_MAX && !folder.contains('/'),
                "{folder}"
            );
            assert!(is_tenant(&folder) && folder.as_str() < BEHIND_TENANTS);
            assert!(StreamId::parse(&folder).is_err(), "{folder}");
            assert!(folders.insert(folder), "{tenant} has the folder of another");
        }
    }

    #[test]
    fn a_journal_of_one_name_is_another_for_every_tenant() {
        let longest = "s".repeat(128);
        let journals = [None, Some("a"), Some("b"), Some("..")]
            .map(|tenant| Place::new(tenant, &longest).journal().to_owned());
        assert!(
            journals
                .iter()
                .all(|name| name.len() <= NAME_MAX && is_journal_of(name, &longest))
        );
        assert_eq!(journals.iter().collect::<HashSet<_>>().len(), 4);
        assert!(!is_journal_of("ab", "a") && !is_journal_of("a", "ab"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn two_tenants_have_two_folders(a in ".{1,64}", b in ".{1,64}") {
            prop_assert_eq!(a == b, tenant_folder(&a) == tenant_folder(&b));
            prop_assert!(tenant_folder(&a).len() <= NAME_MAX);
        }
    }
}
