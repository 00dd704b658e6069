//! Parses SSML as far as emulators need it: the voice, the rate, the words. Invalid XML is refused, so that a client that
//! does not escape its text is noticed.

/// What an SSML document asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ssml {
    /// The name of its voice.
    pub voice: String,
    /// 1.0 is normal.
    pub rate: f64,
    /// What is said.
    pub text: String,
}

/// Why it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("SSML parsing error: {0}")]
pub(crate) struct SsmlError(&'static str);

/// Deeper documents are refused.
const MAX_DEPTH: usize = 32;

impl Ssml {
    /// Reads a document that names its voice.
    pub fn parse(document: &str) -> Result<Self, SsmlError> {
        let ssml = Self::read(document)?;
        if ssml.voice.is_empty() {
            return Err(SsmlError("a voice is missing"));
        }
        Ok(ssml)
    }

    /// Reads a document whose voice is named elsewhere.
    pub fn read(document: &str) -> Result<Self, SsmlError> {
        let mut ssml = Self {
            voice: String::new(),
            rate: 1.0,
            text: String::new(),
        };
        let mut open: Vec<&str> = Vec::new();
        let mut rest = document.trim();
        while !rest.is_empty() {
            let (text, tag) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
            if open.is_empty() && !text.trim().is_empty() {
                return Err(SsmlError("text outside of speak"));
            }
            ssml.text.push_str(&unescaped(text)?);
            let Some(tag) = tag.strip_prefix('<') else {
                break;
            };
            let (tag, after) = split_tag(tag)?;
            ssml.tag(tag, &mut open)?;
            rest = after;
        }
        if !open.is_empty() {
            return Err(SsmlError("an element is not closed"));
        }
        Ok(ssml)
    }

    fn tag<'a>(&mut self, tag: &'a str, open: &mut Vec<&'a str>) -> Result<(), SsmlError> {
        if tag.starts_with(['?', '!']) {
            return Ok(());
        }
        if let Some(name) = tag.strip_prefix('/') {
            let closed = open.pop();
            return if closed == Some(name.trim()) {
                self.part_words(name.trim());
                Ok(())
            } else {
                Err(SsmlError("elements overlap"))
            };
        }
        let (tag, empty) = tag
            .strip_suffix('/')
            .map_or((tag, false), |tag| (tag, true));
        let name_end = tag.find(char::is_whitespace).unwrap_or(tag.len());
        let (name, attributes) = tag.split_at(name_end);
        if open.is_empty() && name != "speak" || open.len() >= MAX_DEPTH {
            return Err(SsmlError("an unexpected element"));
        }
        for (attribute, value) in attributes_of(attributes)? {
            match (name, attribute) {
                ("voice", "name") => self.voice = value,
                ("prosody", "rate") => self.rate = rate(&value)?,
                _ => {}
            }
        }
        self.part_words(name);
        if !empty {
            open.push(name);
        }
        Ok(())
    }

    /// Words with a pause, or the edge of a sentence, between them are two.
    fn part_words(&mut self, name: &str) {
        if matches!(name, "break" | "p" | "s") && !self.text.ends_with(' ') {
            self.text.push(' ');
        }
    }
}

/// A tag and what follows it. A `>` in quotes is no end.
fn split_tag(text: &str) -> Result<(&str, &str), SsmlError> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '>') => return Ok((&text[..at], &text[at + 1..])),
            (None, '<') => break,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    Err(SsmlError("a tag is not closed"))
}

fn attributes_of(mut text: &str) -> Result<Vec<(&str, String)>, SsmlError> {
    let mut attributes = Vec::new();
    loop {
        text = text.trim_start();
        if text.is_empty() {
            return Ok(attributes);
        }
        let (name, value) = text
            .split_once('=')
            .ok_or(SsmlError("an attribute has no value"))?;
        let quote = value.chars().next().filter(|c| ['\'', '"'].contains(c));
        let quote = quote.ok_or(SsmlError("a value without quotes"))?;
        let value = &value[1..];
        let end = value.find(quote).ok_or(SsmlError("a value does not end"))?;
        attributes.push((name.trim(), unescaped(&value[..end])?));
        text = &value[end + 1..];
        if !text.is_empty() && !text.starts_with(char::is_whitespace) {
            return Err(SsmlError("attributes without a space between them"));
        }
    }
}

fn unescaped(text: &str) -> Result<String, SsmlError> {
    let plain = vivavoce_core::ssml::unescaped(text).map_err(|_| SsmlError("an unknown entity"))?;
    let forbidden = |c: char| c < ' ' && !['\t', '\n', '\r'].contains(&c);
    if plain.contains(forbidden) {
        return Err(SsmlError("a character that XML does not have"));
    }
    Ok(plain)
}

/// A bare number multiplies; a percentage is a change, so `150%` is two and a half times as fast.
fn rate(value: &str) -> Result<f64, SsmlError> {
    const NAMES: &[(&str, f64)] = &[
        ("x-slow", 0.5),
        ("slow", 0.64),
        ("medium", 1.0),
        ("default", 1.0),
        ("fast", 1.55),
        ("x-fast", 2.0),
    ];
    let bad = SsmlError("a rate that is none");
    if let Some((_, rate)) = NAMES.iter().find(|(name, _)| *name == value) {
        return Ok(*rate);
    }
    let rate = match value.strip_suffix('%') {
        Some(change) => 1.0 + change.parse::<f64>().map_err(|_| bad)? / 100.0,
        None => value.parse().map_err(|_| bad)?,
    };
    Ok(rate.clamp(0.5, 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(inside: &str) -> Result<Ssml, SsmlError> {
        Ssml::parse(&format!(
            "<speak version='1.0' xml:lang='en-US'><voice name=\"en-US-Ava\">{inside}</voice></speak>"
        ))
    }

    #[test]
    fn the_voice_the_rate_and_the_words_are_found() {
        let ssml =
            parsed("<prosody rate='1.5'>1 &lt; 2 &amp; &#x33;</prosody><break/>bye").unwrap();
        assert_eq!(ssml.voice, "en-US-Ava");
        assert_eq!(ssml.text, "1 < 2 & 3 bye");
    }

    #[test]
    fn a_percentage_is_a_change() {
        for (written, rate) in [
            ("0.75", 0.75),
            ("+50%", 1.5),
            ("150%", 2.0),
            ("-25%", 0.75),
            ("slow", 0.64),
            ("9", 2.0),
        ] {
            let ssml = parsed(&format!("<prosody rate='{written}'>a</prosody>")).unwrap();
            assert!((ssml.rate - rate).abs() < 1e-9, "{written}: {}", ssml.rate);
        }
    }

    #[test]
    fn what_is_not_escaped_is_refused() {
        for bad in [
            "a & b",
            "a < b",
            "<b>",
            "</voice>",
            "<x a=1/>",
            "<x a='1'b='2'/>",
            "&nbsp;",
            "\u{1}",
            "<x",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        for bad in [
            "",
            "hello",
            "<speak></speak>",
            "<voice name='x'>a</voice>",
            "<speak><voice name='x'>a",
        ] {
            assert!(Ssml::parse(bad).is_err(), "{bad}");
        }
    }
}
