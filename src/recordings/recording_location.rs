//! The keys and folder names of recordings. Names are scoped to tenants: two tenants may use the same name, and neither
//! learns of the other. In the store, recordings without a tenant lie directly below the prefix, as the specification
//! says, and a tenant's lie in a folder of that tenant; on local disk the folder name of a journal encodes both. A
//! tenant's folder cannot be mistaken for a recording.

use std::borrow::Cow;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::{AUDIO, Metadata};
use vivavoce_core::hash::hex;

/// Sorts after the folders of all tenants and before all recordings without a tenant.
pub const BEHIND_TENANTS: &str = "%~";
/// Precedes the digest in the folder name of a tenant whose id is too long for a file name.
const DIGEST: &str = "%-";
/// The maximum length of a tenant folder without a digest, and how much of a longer id is kept in front of the digest.
const MAX_FOLDER: usize = 200;
const SHOWN_OF_LONGER: usize = 100;
/// Separates the `stream_id` from the digest of its tenant in the name of a journal.
const OF_TENANT: char = '%';

/// Precedes, in the name of a part's journal, when the part began that it follows.
const FOLLOWS: &str = "%+";

/// The owner and name of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecordingLocation {
    /// The tenant's folder in the store, if it has a tenant.
    folder: Option<String>,
    /// The name of its journal.
    journal: String,
    stream_id: String,
}

impl RecordingLocation {
    /// The location of a recording with or without a tenant.
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

    /// The location of the recording that `metadata` describes.
    pub fn of(metadata: &Metadata) -> Self {
        Self::new(metadata.tenant.as_deref(), &metadata.stream_id)
    }

    /// A recording in a tenant's folder, found in a listing.
    pub fn listed(folder: &str, stream_id: &str) -> Self {
        Self {
            folder: Some(folder.to_owned()),
            journal: String::new(),
            stream_id: stream_id.to_owned(),
        }
    }

    /// Directly below the prefix: without a tenant, or stored there by version 0.1.0 for any tenant.
    pub fn top(stream_id: &str) -> Self {
        Self::new(None, stream_id)
    }

    /// The recording's name.
    pub fn stream_id(&self) -> &str {
        &self.stream_id
    }

    /// The tenant's folder in the store, if it has a tenant.
    pub fn folder(&self) -> Option<&str> {
        self.folder.as_deref()
    }

    /// The path below the prefix, which is also its position in a listing of everything.
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

    /// The key of its audio in the store.
    pub fn audio(&self, prefix: &str, metadata: &Metadata) -> String {
        match (&metadata.file, &self.folder) {
            (Some(file), Some(folder)) => format!("{prefix}/{folder}/{file}"),
            (Some(file), None) => format!("{prefix}/{file}"),
            (None, _) => self.key(prefix, AUDIO),
        }
    }

    /// The folder name of its journal, or of its egress note, on local disk.
    pub fn journal(&self) -> &str {
        &self.journal
    }

    /// The folder name of the journal that this describes: a part that follows another server's may have its journal beside
    /// the other's.
    pub fn journal_of(metadata: &Metadata) -> String {
        let journal = Self::of(metadata).journal;
        match metadata.continues {
            Some(before) => format!("{journal}{FOLLOWS}{before}"),
            None => journal,
        }
    }

    /// Whether the journal in this folder is that of a part of the recording that follows another one.
    pub fn is_journal_of_part(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.journal);
        rest.is_some_and(|rest| rest.starts_with(FOLLOWS))
    }

    /// Whether metadata found at this location belongs here. An object under our keys that we have not written is
    /// ignored.
    pub fn holds(&self, metadata: &Metadata) -> bool {
        metadata.stream_id == self.stream_id
            && metadata.file.as_deref().is_none_or(is_file_name)
            && match &self.folder {
                Some(folder) => {
                    metadata.tenant.as_deref().map(tenant_folder).as_ref() == Some(folder)
                }
                None => true,
            }
    }
}

/// The longest name of a file that an egress may ask for, in bytes, and the longest of its parts.
pub const MAX_FILE_NAME: usize = 512;
const MAX_PART: usize = 200;
/// Of audio files.
const ENDING: &str = ".ogg";

/// Whether a name may be that of an audio file: parts of `A-Z a-z 0-9 . _ -`, ending in `.ogg`, that is no other file of ours.
pub fn is_file_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_part = |part: &str| {
        (1..=MAX_PART).contains(&part.len()) && part.chars().all(allowed) && !part.starts_with('.')
    };
    name.len() <= MAX_FILE_NAME
        && name.split('/').all(is_part)
        && name.ends_with(ENDING)
        && name != AUDIO
        && !name.ends_with("/audio.ogg")
}

/// Whether a journal's folder belongs to this `stream_id`, of any tenant.
pub fn is_journal_of(name: &str, stream_id: &str) -> bool {
    name.strip_prefix(stream_id)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(OF_TENANT))
}

/// Whether a name in a listing is a tenant's folder.
pub fn is_tenant(name: &str) -> bool {
    name.starts_with('%')
}

/// The folder of a tenant: its percent-encoded id (RFC 3986). The first byte is always encoded, so that the folder
/// differs from every `stream_id` and from `.` and `..`. If that is too long for a file name, its beginning and the
/// SHA-256 of the id.
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

    /// The maximum length of a file name, less what is added before and after it.
    const NAME_MAX: usize = 255 - 30;

    #[test]
    fn nobodys_recordings_lie_where_the_specification_says_and_a_tenants_in_its_folder() {
        let key = |tenant| RecordingLocation::new(tenant, "call-1").key("recordings", "audio.ogg");
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
        let journals = [None, Some("a"), Some("b"), Some("..")].map(|tenant| {
            RecordingLocation::new(tenant, &longest)
                .journal()
                .to_owned()
        });
        assert!(
            journals
                .iter()
                .all(|name| name.len() <= NAME_MAX && is_journal_of(name, &longest))
        );
        assert_eq!(journals.iter().collect::<HashSet<_>>().len(), 4);
        assert!(!is_journal_of("ab", "a") && !is_journal_of("a", "ab"));
    }

    #[test]
    fn the_journal_of_a_part_is_beside_that_of_the_part_that_it_follows() {
        for tenant in [None, Some("a")] {
            let mut metadata = crate::journal::tests::metadata("call-1");
            metadata.tenant = tenant.map(str::to_owned);
            let first = RecordingLocation::journal_of(&metadata);
            let location = RecordingLocation::of(&metadata);
            assert_eq!(first, location.journal());
            metadata.continues = Some(5);
            let second = RecordingLocation::journal_of(&metadata);
            assert!(location.is_journal_of_part(&second) && is_journal_of(&second, "call-1"));
            assert!(!location.is_journal_of_part(&first));
            let other = RecordingLocation::new(Some("b"), "call-1");
            assert!(!other.is_journal_of_part(&second));
        }
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
