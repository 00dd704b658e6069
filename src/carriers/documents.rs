//! Answer documents: what a carrier is told to do with a call. Each is ready to be pasted at the carrier, too.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub content_type: &'static str,
    pub body: String,
}

/// The socket that a document names.
#[derive(Debug, Clone, Copy)]
pub struct Stream<'a> {
    /// `wss://…`, with the secret of the account where it has one.
    pub url: &'a str,
    /// What the query of the document's own URL gives to the call.
    pub given: &'a BTreeMap<String, String>,
}

/// The longest parameter that is passed on.
const MAX_PARAMETER_BYTES: usize = 500;

impl Stream<'_> {
    /// The parameters of the call: its numbers, by the names that the carrier has for them, and what was given.
    pub fn parameters<const N: usize>(
        &self,
        asked: &BTreeMap<String, String>,
        numbers: [(&'static str, &str); N],
    ) -> BTreeMap<String, String> {
        let mut parameters = self.given.clone();
        for (name, theirs) in numbers {
            if let Some(number) = asked.get(theirs).filter(|number| !number.is_empty()) {
                parameters.insert(name.to_owned(), number.clone());
            }
        }
        parameters.retain(|name, value| name.len() + value.len() <= MAX_PARAMETER_BYTES);
        parameters
    }
}

impl Document {
    /// A document of XML.
    pub(crate) fn xml(write: impl FnOnce(&mut Xml)) -> Self {
        let mut xml = Xml {
            text: String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"),
            open: Vec::new(),
        };
        write(&mut xml);
        Self {
            content_type: "text/xml; charset=utf-8",
            body: xml.end(),
        }
    }

    /// A document of JSON.
    pub(crate) fn json(value: &serde_json::Value) -> Self {
        Self {
            content_type: "application/json",
            body: format!("{value:#}\n"),
        }
    }
}

/// Writes elements, one a line.
pub struct Xml {
    text: String,
    open: Vec<&'static str>,
}

impl Xml {
    /// Begins an element, which ends with the document.
    pub fn open(&mut self, name: &'static str, attributes: &[(&str, &str)]) {
        self.tag(name, attributes, ">");
        self.open.push(name);
    }

    /// An element without content.
    pub fn empty(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.tag(name, attributes, "/>");
    }

    /// An element that holds a text.
    pub fn text(&mut self, name: &str, attributes: &[(&str, &str)], text: &str) {
        self.indent();
        self.begin(name, attributes);
        // Writing to a text does not fail.
        let _ = writeln!(self.text, ">{}</{name}>", escaped(text));
    }

    fn tag(&mut self, name: &str, attributes: &[(&str, &str)], end: &str) {
        self.indent();
        self.begin(name, attributes);
        self.text.push_str(end);
        self.text.push('\n');
    }

    fn begin(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.text.push('<');
        self.text.push_str(name);
        for (name, value) in attributes {
            let _ = write!(self.text, " {name}=\"{}\"", escaped(value));
        }
    }

    fn indent(&mut self) {
        for _ in &self.open {
            self.text.push_str("  ");
        }
    }

    fn end(mut self) -> String {
        while let Some(name) = self.open.pop() {
            self.indent();
            let _ = writeln!(self.text, "</{name}>");
        }
        self.text
    }
}

/// Without what would end a value; control characters, which XML does not have, are spaces.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            sign if sign.is_control() || matches!(sign, '\u{fffe}' | '\u{ffff}') => {
                escaped.push(' ');
            }
            sign => escaped.push(sign),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_caller_brings_ends_an_element() {
        let document = Document::xml(|xml| {
            xml.open("Response", &[]);
            xml.empty("Parameter", &[("value", "\"/><Dial>+1</Dial>\n")]);
        });
        assert!(
            document
                .body
                .contains("value=\"&quot;/&gt;&lt;Dial&gt;+1&lt;/Dial&gt; \""),
            "{}",
            document.body
        );
        assert!(document.body.ends_with("</Response>\n"));
    }
}
