//! The name of the file that an egress writes, from the template in its request. Templates are LiveKit's; what they give is
//! confined to the folder of the room's owner, and to the characters that every store takes.

use std::time::SystemTime;

use vivavoce_core::unix_time::Utc;
use vivavoce_recordings::recording_location::{MAX_FILE_NAME, is_file_name};

/// The ending of our files.
const ENDING: &str = ".ogg";

/// What the templates stand for.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// `{room_name}`.
    pub room_name: String,
    /// `{room_id}`.
    pub room_id: String,
    /// `{publisher_identity}`, of one participant or track.
    pub publisher_identity: Option<String>,
    /// `{track_id}`, of a track.
    pub track_id: Option<String>,
    /// `{track_source}`, of a track.
    pub track_source: Option<String>,
    /// What LiveKit calls a file that has no name: the first part of it.
    pub unnamed: String,
    /// `{time}` and `{utc}`.
    pub at: Option<SystemTime>,
}

/// The name of the file, below the folder of the recordings; `None` if the template is empty: it then has the place that other
/// recordings have. The error is for the caller, without the name of the field.
pub fn file_name(template: &str, names: &Names) -> Result<Option<String>, String> {
    if template.is_empty() {
        return Ok(None);
    }
    if template.len() > MAX_FILE_NAME {
        return Err(format!("is longer than {MAX_FILE_NAME} bytes"));
    }
    let at = names.at.unwrap_or_else(SystemTime::now);
    let at = Utc::of(at);
    // As LiveKit writes it.
    let time = written(at);
    let utc = format!("{time}{:03}", at.ms);
    let utc: String = utc.chars().filter(char::is_ascii_digit).collect();
    let mut template = template.to_owned();
    if template.ends_with('/') {
        template = format!("{template}{}-{{time}}", plain(&names.unnamed));
    }
    let mut name = String::new();
    let mut rest = template.as_str();
    while let Some((before, from)) = rest.split_once('{') {
        name.push_str(before);
        let Some((key, after)) = from.split_once('}') else {
            return Err("has a { without a }".to_owned());
        };
        let value = match key {
            "room_name" => Some(plain(&names.room_name)),
            "room_id" => Some(plain(&names.room_id)),
            "time" => Some(time.clone()),
            "utc" => Some(utc.clone()),
            "publisher_identity" => names.publisher_identity.as_deref().map(plain),
            "track_id" => names.track_id.as_deref().map(plain),
            "track_source" => names.track_source.as_deref().map(plain),
            "track_type" => names.track_id.as_ref().map(|_| "audio".to_owned()),
            _ => None,
        };
        let Some(value) = value else {
            return Err(format!("{{{key}}} stands for nothing here"));
        };
        name.push_str(&value);
        rest = after;
    }
    name.push_str(rest);
    if !name.ends_with(ENDING) {
        name.push_str(ENDING);
    }
    if is_file_name(&name) {
        return Ok(Some(name));
    }
    Err(format!(
        "must give a path of parts of A-Z a-z 0-9 . _ -, none of which begins with a dot, below the folder of the recordings, \
         and not audio.ogg, but gives {name:?}"
    ))
}

/// A name of somebody's in characters that files may have.
fn plain(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name = name.chars().take(100);
    name.map(|c| if allowed(c) { c } else { '_' }).collect()
}

/// As `2026-01-31T235959`.
fn written(at: Utc) -> String {
    let Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
        ms: _,
    } = at;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    fn names() -> Names {
        Names {
            room_name: "Café/1".to_owned(),
            room_id: "RM_1".to_owned(),
            unnamed: "Café/1".to_owned(),
            at: Some(UNIX_EPOCH + Duration::from_millis(1_709_251_199_042)),
            ..Names::default()
        }
    }

    #[test]
    fn templates_become_names_and_nobodys_name_leaves_the_folder() {
        let of = |template| file_name(template, &names());
        assert_eq!(of(""), Ok(None));
        for (template, name) in [
            (
                "calls/{room_name}-{time}",
                "calls/Caf__1-2024-02-29T235959.ogg",
            ),
            ("a.ogg", "a.ogg"),
            ("calls/", "calls/Caf__1-2024-02-29T235959.ogg"),
            ("{utc}", "20240229235959042.ogg"),
            ("{room_id}", "RM_1.ogg"),
        ] {
            assert_eq!(of(template), Ok(Some(name.to_owned())), "{template}");
        }
        for template in [
            "../a",
            "/a",
            "a//b",
            "a/../b",
            ".a",
            "audio.ogg",
            "x/audio",
            "{nothing}",
            "{room_name",
            "a b",
            "%61/x",
            "{track_id}",
            "a\\b",
        ] {
            assert!(of(template).is_err(), "{template}");
        }
        assert!(of(&"a".repeat(600)).is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_lies_below_the_folder(
            template in "(\\{room_name\\}|\\{time\\}|[a./\\\\{}%~ é-]){0,12}",
            room_name in ".{0,20}",
        ) {
            let names = Names { room_name: room_name.clone(), unnamed: room_name, ..names() };
            if let Ok(Some(name)) = file_name(&template, &names) {
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
                prop_assert!(name.chars().all(plain) && name.ends_with(ENDING));
                let hidden = |part: &str| part.is_empty() || part.starts_with('.');
                prop_assert!(!name.split('/').any(hidden), "{name}");
            }
        }
    }

    #[test]
    fn days_have_their_dates() {
        for (unix_s, date) in [
            (0, "1970-01-01T000000"),
            (951_782_400, "2000-02-29T000000"),
            (1_798_761_599, "2026-12-31T235959"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(unix_s);
            assert_eq!(written(Utc::of(at)), date);
        }
    }
}
