//! Objects of which little is read, and the rest is passed on as it is written.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The fields of an object, in their order and as they are written; those that come twice stay so.
pub struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        object.deserialize_map(Object)
    }
}

impl<'a> Fields<'a> {
    /// Those of `{}`.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// The first field of this name, unless it is null.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        let known = self.0.iter().find(|(known, _)| known == name);
        known
            .map(|(_, value)| *value)
            .filter(|value| value.get() != "null")
    }

    /// Gives fields another name, unless there is a field of that name; returns whether there were any.
    pub fn rename(&mut self, from: &str, to: &str) -> bool {
        if self.0.iter().any(|(name, _)| name == to) {
            return false;
        }
        let mut renamed = false;
        for (name, _) in self.0.iter_mut().filter(|(name, _)| name == from) {
            to.clone_into(name);
            renamed = true;
        }
        renamed
    }

    /// The object with these fields, which are JSON, in place of its own.
    pub fn with(&self, given: &BTreeMap<&str, String>) -> String {
        let mut text = String::from("{");
        let own = self
            .0
            .iter()
            .filter(|(name, _)| !given.contains_key(name.as_str()));
        let own = own.map(|(name, value)| (name.as_str(), value.get()));
        let given = given.iter().map(|(name, value)| (*name, value.as_str()));
        for (nth, (name, value)) in own.chain(given).enumerate() {
            let comma = if nth == 0 { "" } else { "," };
            // Writing into a string does not fail.
            let _ = write!(text, "{comma}{}:{value}", quoted(name));
        }
        text.push('}');
        text
    }
}

/// A text as JSON.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
