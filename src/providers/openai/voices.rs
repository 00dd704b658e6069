//! Voices: OpenAI documents its own and has no list of them; servers of others have one at `/audio/voices`, each in a shape of
//! its own.

use serde_json::Value;

use super::{authorized, errors};
use crate::transport::VendorEndpoint;
use vivavoce_seams::{ErrorKind, ProviderError, Voice};

/// OpenAI's voices.
const VOICES: [&str; 13] = [
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse",
];
/// The voice that is taken where none is named.
pub(super) const DEFAULT: &str = "alloy";
/// Its sound has this rate.
const RATE: u32 = 24_000;

/// OpenAI's own.
pub(super) fn own() -> Vec<Voice> {
    VOICES.map(|name| voice(name, name, "en")).into()
}

fn voice(id: &str, name: &str, language: &str) -> Voice {
    Voice {
        id: id.to_owned(),
        name: name.to_owned(),
        language: language.to_owned(),
        languages: vec![language.to_owned()],
        gender: String::new(),
        accent: String::new(),
        sample: String::new(),
        sample_rates: vec![RATE],
        tags: Vec::new(),
    }
}

/// Those of another server; none of one that has no list.
pub(super) async fn of_server(vendor: &VendorEndpoint) -> Result<Vec<Voice>, ProviderError> {
    let credential = vendor.credential(None)?;
    let request = vendor.transport.http().get(vendor.url.at(["audio", "voices"]));
    let list = match vendor.answer(authorized(request, &credential)?).await {
        Ok(list) => list,
        Err(error) if error.kind == ErrorKind::InvalidRequest => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let list: Value = serde_json::from_slice(&list).map_err(errors::unreadable)?;
    Ok(listed(&list))
}

/// A list of names or of objects, by itself or under `voices` or `data`.
fn listed(list: &Value) -> Vec<Voice> {
    let all = ["voices", "data"].iter().find_map(|name| list.get(name));
    let all = all.unwrap_or(list).as_array();
    all.into_iter().flatten().filter_map(one).collect()
}

fn one(entry: &Value) -> Option<Voice> {
    if let Some(name) = entry.as_str() {
        return Some(voice(name, name, ""));
    }
    let text = |names: &[&str]| names.iter().find_map(|name| entry.get(name)?.as_str());
    let id = text(&["id", "voice_id", "name"])?;
    let name = text(&["name"]).unwrap_or(id);
    Some(voice(id, name, text(&["language", "lang"]).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_are_read_in_each_of_their_shapes() {
        for list in [
            json!(["af_bella", "am_adam"]),
            json!({"voices": ["af_bella", "am_adam"]}),
            json!({"voices": [{"id": "af_bella", "name": "Bella"}, {"voice_id": "am_adam"}]}),
            json!({"object": "list", "data": [{"id": "af_bella"}, {"name": "am_adam"}, {"x": 1}]}),
        ] {
            let ids: Vec<String> = listed(&list).into_iter().map(|voice| voice.id).collect();
            assert_eq!(ids, ["af_bella", "am_adam"], "{list}");
        }
        assert!(listed(&json!({"error": "none"})).is_empty());
        assert!(own().iter().any(|voice| voice.id == DEFAULT));
    }
}
