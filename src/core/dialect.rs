//! The words by which clients name the room provider and the service. The protocol says `rtc` and `service`; servers of the
//! same family that are deployed say other words, in the same places. What clients send is read in either spelling, at the
//! edge; what they are answered has theirs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::json::Fields;

/// The words of the protocol.
const ROOM_PROVIDER: &str = "rtc";
const SERVICE: &str = "service";

/// Fields of `config` that have one of the words, at its top and in its `rtc`.
const IN_CONFIG: [&str; 1] = ["rtc"];
const IN_ROOM: [&str; 2] = ["service_participant_identity", "service_participant_name"];

/// Paths of the API that begin with the word, without those of LiveKit's protocol, which no dialect changes.
const PATHS: [&str; 5] = [
    "token",
    "rooms",
    "participant",
    "participant/mute",
    "webhook",
];
/// What is followed by a name.
const PATHS_OF_NAMES: [&str; 1] = ["rooms/"];

/// The two words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    room_provider: String,
    service: String,
}

impl Default for Dialect {
    fn default() -> Self {
        Self::new(ROOM_PROVIDER, SERVICE)
    }
}

/// What a word must be, as the end of a sentence that begins with "must".
pub fn check_word(word: &str) -> Result<(), &'static str> {
    let is_word = (1..=32).contains(&word.len())
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if is_word {
        Ok(())
    } else {
        Err("be one word of lower-case letters and digits, 32 at most")
    }
}

impl Dialect {
    /// The dialect of these words, which [`check_word`] has found to be ones.
    pub fn new(room_provider: &str, service: &str) -> Self {
        Self {
            room_provider: room_provider.to_owned(),
            service: service.to_owned(),
        }
    }

    /// Whether the words are those of the protocol.
    pub fn is_ours(&self) -> bool {
        self.room_provider == ROOM_PROVIDER && self.service == SERVICE
    }

    /// How a field of ours is spelled.
    pub fn field<'f>(&self, ours: &'f str) -> Cow<'f, str> {
        let with = |word: &str, rest: &str| Cow::Owned(format!("{word}{rest}"));
        let is_whole = |rest: &&str| rest.is_empty() || rest.starts_with('_');
        if let Some(rest) = ours.strip_prefix(ROOM_PROVIDER).filter(is_whole) {
            return with(&self.room_provider, rest);
        }
        match ours.strip_prefix(SERVICE).filter(is_whole) {
            Some(rest) => with(&self.service, rest),
            None => Cow::Borrowed(ours),
        }
    }

    /// How a header of ours, `x-service-…` in lower case, is spelled.
    pub fn header<'h>(&self, ours: &'h str) -> Cow<'h, str> {
        let rest = ours
            .strip_prefix("x-")
            .and_then(|rest| rest.strip_prefix(SERVICE));
        match rest {
            Some(rest) if self.service != SERVICE => {
                Cow::Owned(format!("x-{}{rest}", self.service))
            }
            _ => Cow::Borrowed(ours),
        }
    }

    /// The `sub` of requests to the authentication service.
    pub fn subject(&self) -> String {
        format!("{}-auth", self.service)
    }

    /// Our spelling of a path that is spelled in this dialect.
    pub fn path(&self, theirs: &str) -> Option<String> {
        if self.room_provider == ROOM_PROVIDER {
            return None;
        }
        let rest = theirs
            .strip_prefix('/')?
            .strip_prefix(&*self.room_provider)?;
        let rest = rest.strip_prefix('/')?;
        let is_one =
            PATHS.contains(&rest) || PATHS_OF_NAMES.iter().any(|names| rest.starts_with(names));
        is_one.then(|| format!("/{ROOM_PROVIDER}/{rest}"))
    }

    /// Our spelling of a `config` that is spelled in this dialect; `None` where there is nothing to change, or the text is none.
    pub fn config(&self, theirs: &str) -> Option<String> {
        if self.is_ours() {
            return None;
        }
        let mut fields: Fields<'_> = serde_json::from_str(theirs).ok()?;
        if fields.get("type")?.get() != "\"config\"" {
            return None;
        }
        let changed = self.respell(&mut fields, &IN_CONFIG);
        let room = fields.get(ROOM_PROVIDER).map(|room| room.get().to_owned());
        if let Some(room) = room
            && let Ok(mut room) = serde_json::from_str::<Fields<'_>>(&room)
            && self.respell(&mut room, &IN_ROOM)
        {
            let room = room.with(&BTreeMap::new());
            return Some(fields.with(&BTreeMap::from([(ROOM_PROVIDER, room)])));
        }
        changed.then(|| fields.with(&BTreeMap::new()))
    }

    /// Names fields as we do; whether any was named otherwise.
    fn respell(&self, fields: &mut Fields<'_>, ours: &[&str]) -> bool {
        let mut changed = false;
        for name in ours {
            changed |= fields.rename(&self.field(name), name);
        }
        changed
    }

    /// A sentence that names fields of ours, as in errors, with the names of this dialect.
    pub fn sentence(&self, ours: String) -> String {
        if self.is_ours() {
            return ours;
        }
        let mut sentence = ours;
        for name in IN_ROOM {
            sentence = sentence.replace(name, &self.field(name));
        }
        match sentence.strip_prefix(ROOM_PROVIDER) {
            Some(rest) if rest.starts_with(['.', ':']) => format!("{}{rest}", self.room_provider),
            _ => sentence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_in_all_names_and_in_no_others() {
        let dialect = Dialect::new("livekit", "vox");
        for (ours, theirs) in [
            ("rtc", "livekit"),
            ("rtc_url", "livekit_url"),
            ("rtc_room_name", "livekit_room_name"),
            ("service_participant_identity", "vox_participant_identity"),
            ("rtcp", "rtcp"),
            ("services", "services"),
            ("room_name", "room_name"),
        ] {
            assert_eq!(dialect.field(ours), theirs);
            assert_eq!(Dialect::default().field(ours), ours);
        }
        assert_eq!(dialect.header("x-service-signature"), "x-vox-signature");
        assert_eq!(dialect.header("x-request-id"), "x-request-id");
        assert_eq!(dialect.subject(), "vox-auth");
        assert_eq!(Dialect::default().subject(), "service-auth");
        assert_eq!(
            dialect.sentence("rtc.service_participant_name: must not be empty".to_owned()),
            "livekit.vox_participant_name: must not be empty"
        );
        assert_eq!(dialect.sentence("rtcp: no".to_owned()), "rtcp: no");
    }

    #[test]
    fn paths_are_ours_but_for_those_of_livekits_protocol() {
        let dialect = Dialect::new("livekit", "vox");
        for (theirs, ours) in [
            ("/livekit/token", Some("/rtc/token")),
            ("/livekit/rooms/a%20b", Some("/rtc/rooms/a%20b")),
            ("/livekit/participant/mute", Some("/rtc/participant/mute")),
            ("/livekit/webhook", Some("/rtc/webhook")),
            ("/livekit", None),
            ("/livekit/v1", None),
            ("/livekit/validate", None),
            ("/livekits/token", None),
            ("/rtc/token", None),
        ] {
            assert_eq!(dialect.path(theirs).as_deref(), ours, "{theirs}");
            assert_eq!(Dialect::default().path(theirs), None);
        }
    }

    #[test]
    fn a_config_is_read_in_either_spelling() {
        let dialect = Dialect::new("livekit", "vox");
        let ours = r#"{"type":"config","audio":1.50,"rtc":{"room_name":"a","service_participant_name":"b"}}"#;
        for theirs in [
            r#"{"type":"config","audio":1.50,"livekit":{"room_name":"a","vox_participant_name":"b"}}"#,
            r#"{"type":"config","audio":1.50,"rtc":{"room_name":"a","vox_participant_name":"b"}}"#,
            r#"{"type":"config","audio":1.50,"livekit":{"room_name":"a","service_participant_name":"b"}}"#,
        ] {
            assert_eq!(dialect.config(theirs).as_deref(), Some(ours));
        }
        for same in [
            ours,
            r#"{"type":"speak","livekit":1}"#,
            "[]",
            "{",
            r#"{"type":"config","livekit2":7}"#,
        ] {
            assert_eq!(dialect.config(same), None);
            assert_eq!(Dialect::default().config(same), None);
        }
        // What is no object is refused by whoever reads it; what is given in both spellings stays, and is an unknown field.
        let wrong = dialect.config(r#"{"type":"config","livekit":7}"#);
        assert_eq!(wrong.as_deref(), Some(r#"{"type":"config","rtc":7}"#));
        let twice = dialect.config(r#"{"type":"config","rtc":null,"livekit":{}}"#);
        assert_eq!(twice, None);
    }

    #[test]
    fn words_are_checked() {
        for word in ["livekit", "a1"] {
            assert_eq!(check_word(word), Ok(()));
        }
        for word in ["", "Livekit", "1a", "a-b", "a/b", "a b", &"a".repeat(33)] {
            assert!(check_word(word).is_err(), "{word}");
        }
    }
}
