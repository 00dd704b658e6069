//! Documents of SSML (W3C, version 1.1) as a client writes them: checked to be well formed, and known by their text, so that what
//! was heard can be told in words. Which elements a voice understands is left to its vendor. There are no document types and
//! no entities but those of XML itself, so that nothing grows when it is read.

use std::fmt::Write;

/// Deeper documents are refused, and those with more tags and texts.
const MAX_DEPTH: usize = 32;
const MAX_PIECES: usize = 4_000;
/// Tags with more are refused: each is compared with the others.
const MAX_ATTRIBUTES: usize = 32;
/// Longer documents are refused.
pub const MAX_BYTES: usize = 64 * 1024;
/// Elements whose text is said otherwise than it is written.
const VERBATIM: [&str; 4] = ["phoneme", "say-as", "sub", "lookup"];
/// Elements whose text is not said at all.
const UNSAID: [&str; 2] = ["desc", "metadata"];

/// Why a document is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SsmlError {
    #[error(
        "an SSML document begins with <speak> and ends with </speak>, and there is no text outside"
    )]
    NoRoot,
    #[error("the element <{0}> is not closed")]
    Unclosed(String),
    #[error("</{0}> closes nothing that is open there")]
    Unopened(String),
    #[error("a tag does not end, or a < is not written as &lt;")]
    Tag,
    #[error("{0:?} is no name of an element or attribute")]
    Name(String),
    #[error("an attribute of <{0}> has no value in quotes, or is there twice")]
    Attribute(String),
    #[error("&{0} is no character: write & as &amp;, and others as &#…;")]
    Entity(String),
    #[error("there is a character that XML does not allow")]
    Character,
    #[error("document types, CDATA sections and processing instructions are not taken")]
    Declaration,
    #[error("there are more than {MAX_BYTES} bytes, or {MAX_PIECES} tags and texts, in it")]
    TooLong,
    #[error("<{0}> has more than {MAX_ATTRIBUTES} attributes")]
    TooManyAttributes(String),
    #[error("elements are nested more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("the element <voice> is not taken: tts_config.voice_id names the voice")]
    Voice,
}

/// A document that is well formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssml {
    /// The attributes of its root, with a space before.
    attributes: String,
    /// What is within the root.
    pieces: Vec<Piece>,
    /// What is said, as it is written, without tags; white space is one space.
    text: String,
    /// How long the document is of which this is all or the rest.
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// A tag that opens an element, without its brackets.
    Open(String),
    /// The name of an element that is closed.
    Close(String),
    /// An element without content, without its brackets.
    Empty(String),
    /// So many bytes of the text.
    Said { bytes: usize, verbatim: bool },
    /// A space of the text that is not in the document: there is a tag between two words.
    Gap,
    /// Text that is not said.
    Unsaid(String),
}

impl Ssml {
    /// Reads a document.
    pub fn parse(document: &str) -> Result<Self, SsmlError> {
        Reader::default().read(document)
    }

    /// What it says, without tags.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How much there was to read.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The whole document.
    pub fn document(&self) -> String {
        format!("<speak{}>{}</speak>", self.attributes, self.content())
    }

    /// What is within its root.
    pub fn content(&self) -> String {
        self.content_from(0)
    }

    /// The rest of it, from this byte of its text on, in the elements that are open there.
    pub fn rest(&self, from: usize) -> Self {
        if from == 0 {
            return self.clone();
        }
        let from = (from..=self.text.len())
            .find(|at| self.text.is_char_boundary(*at))
            .unwrap_or(self.text.len());
        let mut open: Vec<&Piece> = Vec::new();
        let mut pieces = Vec::new();
        let mut at = 0;
        let mut begun = false;
        for piece in &self.pieces {
            let bytes = piece.bytes();
            let end = at + bytes;
            if !begun && bytes > 0 && end > from {
                pieces = open.iter().map(|piece| (*piece).clone()).collect();
                begun = true;
            }
            match piece {
                Piece::Said { verbatim, .. } if begun => pieces.push(Piece::Said {
                    bytes: end - at.max(from),
                    verbatim: *verbatim,
                }),
                piece if begun => pieces.push(piece.clone()),
                Piece::Open(_) => open.push(piece),
                Piece::Close(_) => drop(open.pop()),
                _ => {}
            }
            at = end;
        }
        Self {
            attributes: self.attributes.clone(),
            pieces,
            text: self.text.get(from..).unwrap_or_default().to_owned(),
            bytes: self.bytes,
        }
    }

    /// With other texts in the same elements. `replace` is given each text, where in the whole one it begins, and whether it
    /// has to stay as it is. `None` where that gives none.
    pub fn replaced(
        &self,
        mut replace: impl FnMut(&str, usize, bool) -> Option<String>,
    ) -> Option<Self> {
        let mut text = String::with_capacity(self.text.len());
        let mut pieces = Vec::with_capacity(self.pieces.len());
        let mut at = 0;
        for piece in &self.pieces {
            let end = at + piece.bytes();
            let written = self.text.get(at..end).unwrap_or_default();
            let verbatim = !matches!(
                piece,
                Piece::Said {
                    verbatim: false,
                    ..
                }
            );
            let said = match written {
                "" => String::new(),
                written => replace(written, at, verbatim)?,
            };
            pieces.push(match piece {
                Piece::Said { verbatim, .. } => Piece::Said {
                    bytes: said.len(),
                    verbatim: *verbatim,
                },
                other => other.clone(),
            });
            text.push_str(&said);
            at = end;
        }
        Some(Self {
            attributes: self.attributes.clone(),
            pieces,
            text,
            bytes: self.bytes,
        })
    }

    fn content_from(&self, mut at: usize) -> String {
        let mut content = String::with_capacity(2 * self.text.len());
        for piece in &self.pieces {
            let end = at + piece.bytes();
            let written = self.text.get(at..end).unwrap_or_default();
            // Writing into a string does not fail.
            let _ = match piece {
                Piece::Open(tag) => write!(content, "<{tag}>"),
                Piece::Close(name) => write!(content, "</{name}>"),
                Piece::Empty(tag) => write!(content, "<{tag}/>"),
                Piece::Said { .. } => write!(content, "{}", escaped(written)),
                Piece::Unsaid(text) => write!(content, "{}", escaped(text)),
                Piece::Gap => Ok(()),
            };
            at = end;
        }
        content
    }
}

impl Piece {
    /// How much of the text it is.
    const fn bytes(&self) -> usize {
        match self {
            Self::Said { bytes, .. } => *bytes,
            Self::Gap => 1,
            _ => 0,
        }
    }
}

/// A text within XML. What XML does not allow becomes a space.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            c if is_allowed(c) => escaped.push(c),
            _ => escaped.push(' '),
        }
    }
    escaped
}

/// Whether a character may be in XML 1.0.
const fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..)
}

#[derive(Default)]
struct Reader {
    attributes: Option<String>,
    pieces: Vec<Piece>,
    text: String,
    /// The elements that are open, without the root.
    open: Vec<String>,
    ended: bool,
}

impl Reader {
    fn read(mut self, document: &str) -> Result<Ssml, SsmlError> {
        if document.len() > MAX_BYTES {
            return Err(SsmlError::TooLong);
        }
        if !document.chars().all(is_allowed) {
            return Err(SsmlError::Character);
        }
        let mut rest = document.trim();
        if let Some(declared) = rest.strip_prefix("<?xml ") {
            let (_, behind) = declared.split_once("?>").ok_or(SsmlError::Declaration)?;
            rest = behind;
        }
        while !rest.is_empty() {
            let (text, tag) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
            self.characters(text)?;
            if self.pieces.len() > MAX_PIECES {
                return Err(SsmlError::TooLong);
            }
            let Some(tag) = tag.strip_prefix('<') else {
                break;
            };
            if let Some(comment) = tag.strip_prefix("!--") {
                let (_, behind) = comment.split_once("-->").ok_or(SsmlError::Tag)?;
                rest = behind;
                continue;
            }
            if tag.starts_with(['!', '?']) {
                return Err(SsmlError::Declaration);
            }
            let (tag, behind) = split_tag(tag)?;
            self.tag(tag)?;
            rest = behind;
        }
        match (self.attributes, self.open.pop(), self.ended) {
            (Some(attributes), None, true) => {
                // Behind the last word.
                let length = self.text.trim_end().len();
                let ends_in_gap = length < self.text.len()
                    && matches!(
                        self.pieces.iter().rfind(|piece| piece.bytes() > 0),
                        Some(Piece::Gap)
                    );
                if ends_in_gap {
                    self.text.truncate(length);
                    let gap = self.pieces.iter().rposition(|piece| *piece == Piece::Gap);
                    gap.map(|gap| self.pieces.remove(gap));
                }
                Ok(Ssml {
                    attributes,
                    pieces: self.pieces,
                    text: self.text,
                    bytes: document.len(),
                })
            }
            (_, Some(open), _) => Err(SsmlError::Unclosed(open)),
            (Some(_), None, false) => Err(SsmlError::Unclosed("speak".to_owned())),
            (None, ..) => Err(SsmlError::NoRoot),
        }
    }

    fn characters(&mut self, raw: &str) -> Result<(), SsmlError> {
        let plain = unescaped(raw)?;
        if self.attributes.is_none() || self.ended {
            return if plain.trim().is_empty() {
                Ok(())
            } else {
                Err(SsmlError::NoRoot)
            };
        }
        let is_in = |names: &[&str]| self.open.iter().any(|open| names.contains(&&**open));
        if is_in(&UNSAID) {
            self.pieces.push(Piece::Unsaid(plain));
            return Ok(());
        }
        let verbatim = is_in(&VERBATIM);
        let begin = self.text.len();
        for c in plain.chars() {
            if !c.is_whitespace() {
                self.text.push(c);
            } else if !self.text.is_empty() && !self.text.ends_with(' ') {
                self.text.push(' ');
            }
        }
        let bytes = self.text.len() - begin;
        if bytes > 0 {
            self.pieces.push(Piece::Said { bytes, verbatim });
        }
        Ok(())
    }

    fn tag(&mut self, tag: &str) -> Result<(), SsmlError> {
        if let Some(name) = tag.strip_prefix('/') {
            return self.close(name.trim_end());
        }
        let (tag, is_empty) = match tag.strip_suffix('/') {
            Some(tag) => (tag.trim_end(), true),
            None => (tag.trim_end(), false),
        };
        let end = tag.find(char::is_whitespace).unwrap_or(tag.len());
        let (name, attributes) = tag.split_at(end);
        check_name(name)?;
        check_attributes(name, attributes)?;
        if self.attributes.is_none() {
            if name != "speak" {
                return Err(SsmlError::NoRoot);
            }
            self.attributes = Some(attributes.to_owned());
            self.ended = is_empty;
            return Ok(());
        }
        match name {
            _ if self.ended => return Err(SsmlError::NoRoot),
            "voice" => return Err(SsmlError::Voice),
            "speak" => return Err(SsmlError::NoRoot),
            _ => {}
        }
        self.gap(name);
        if is_empty {
            self.pieces.push(Piece::Empty(tag.to_owned()));
            return Ok(());
        }
        // The root is one level.
        if self.open.len() + 1 >= MAX_DEPTH {
            return Err(SsmlError::TooDeep);
        }
        self.open.push(name.to_owned());
        self.pieces.push(Piece::Open(tag.to_owned()));
        Ok(())
    }

    fn close(&mut self, name: &str) -> Result<(), SsmlError> {
        match self.open.pop() {
            Some(open) if open == name => {
                self.pieces.push(Piece::Close(open));
                self.gap(name);
                Ok(())
            }
            Some(open) => Err(SsmlError::Unclosed(open)),
            None if name == "speak" && self.attributes.is_some() && !self.ended => {
                self.ended = true;
                Ok(())
            }
            None => Err(SsmlError::Unopened(name.chars().take(40).collect())),
        }
    }

    /// A pause, or the edge of a sentence or paragraph, is between two words.
    fn gap(&mut self, name: &str) {
        let parts_words = matches!(name, "p" | "s" | "break");
        if parts_words && !self.text.is_empty() && !self.text.ends_with(' ') {
            self.text.push(' ');
            self.pieces.push(Piece::Gap);
        }
    }
}

/// A tag and what follows it. A `>` in quotes is no end.
fn split_tag(text: &str) -> Result<(&str, &str), SsmlError> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '>') => {
                let behind = text.get(at + 1..).unwrap_or_default();
                return Ok((text.get(..at).unwrap_or_default(), behind));
            }
            (_, '<') => break,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    Err(SsmlError::Tag)
}

fn check_name(name: &str) -> Result<(), SsmlError> {
    let begins = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let is_of_name = |c: char| c.is_alphanumeric() || "_-.:".contains(c);
    if begins && name.chars().all(is_of_name) {
        return Ok(());
    }
    Err(SsmlError::Name(name.chars().take(40).collect()))
}

fn check_attributes(element: &str, mut text: &str) -> Result<(), SsmlError> {
    let shown = || element.chars().take(40).collect();
    let wrong = || SsmlError::Attribute(shown());
    let mut known = Vec::new();
    loop {
        let begin = text.trim_start();
        if begin.is_empty() {
            return Ok(());
        }
        if begin.len() == text.len() {
            return Err(wrong());
        }
        let (name, value) = begin.split_once('=').ok_or_else(wrong)?;
        let name = name.trim_end();
        check_name(name)?;
        let value = value.trim_start();
        let quote = value.chars().next().filter(|c| ['\'', '"'].contains(c));
        let quote = quote.ok_or_else(wrong)?;
        let (value, behind) = value[1..].split_once(quote).ok_or_else(wrong)?;
        unescaped(value)?;
        if known.contains(&name) {
            return Err(wrong());
        }
        if known.len() == MAX_ATTRIBUTES {
            return Err(SsmlError::TooManyAttributes(shown()));
        }
        known.push(name);
        text = behind;
    }
}

/// A text or the value of an attribute, with its entities as the characters that they stand for.
pub fn unescaped(text: &str) -> Result<String, SsmlError> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let unknown = || SsmlError::Entity(after.chars().take(10).collect());
        let (entity, after) = after.split_once(';').ok_or_else(unknown)?;
        plain.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "apos" => '\'',
            "quot" => '"',
            _ => numbered(entity).ok_or_else(unknown)?,
        });
        rest = after;
    }
    plain.push_str(rest);
    Ok(plain)
}

fn numbered(entity: &str) -> Option<char> {
    let number = entity.strip_prefix('#')?;
    let code = match number.strip_prefix('x') {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => number.parse().ok()?,
    };
    char::from_u32(code).filter(|c| is_allowed(*c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(content: &str) -> Result<Ssml, SsmlError> {
        Ssml::parse(&format!("<speak version=\"1.0\">{content}</speak>"))
    }

    #[test]
    fn a_tag_with_too_many_attributes_is_refused() {
        let many = |count: usize| {
            let attributes = (0..count).map(|n| format!(" a{n}='1'"));
            parsed(&format!("<p{}/>", attributes.collect::<String>()))
        };
        assert!(many(MAX_ATTRIBUTES).is_ok());
        let refused = Err(SsmlError::TooManyAttributes("p".to_owned()));
        assert_eq!(many(MAX_ATTRIBUTES + 1), refused);
    }

    #[test]
    fn a_document_is_known_by_its_text_and_given_on_as_it_is() {
        let written = "<?xml version='1.0'?>\n<speak xml:lang=\"en-US\"><!-- greets -->\n\
            <s>Hello,  <emphasis level='strong'>Tom</emphasis> &amp; Kim.</s><s>It is\n\
            <say-as interpret-as=\"time\">2:30</say-as><break time='300ms'/>now.</s>\
            <audio src='a.wav'><desc>a bell</desc></audio> <sub alias='W W W'>WWW</sub></speak>";
        let ssml = Ssml::parse(written).unwrap();
        assert_eq!(ssml.text(), "Hello, Tom & Kim. It is 2:30 now. WWW");
        assert_eq!(
            ssml.document(),
            "<speak xml:lang=\"en-US\"><s>Hello, <emphasis level='strong'>Tom</emphasis> &amp; Kim.</s><s>It is \
             <say-as interpret-as=\"time\">2:30</say-as><break time='300ms'/>now.</s>\
             <audio src='a.wav'><desc>a bell</desc></audio><sub alias='W W W'>WWW</sub></speak>"
        );
        assert_eq!(Ssml::parse(&ssml.document()).unwrap().text(), ssml.text());
        assert_eq!(Ssml::parse("<speak/>").unwrap().text(), "");
    }

    #[test]
    fn what_is_not_well_formed_is_refused_with_the_reason() {
        let name = |name: &str| name.to_owned();
        for (content, error) in [
            ("a & b", SsmlError::Entity(name(" b"))),
            ("&nbsp;", SsmlError::Entity(name("nbsp;"))),
            ("&#0;", SsmlError::Entity(name("#0;"))),
            ("&#xD800;", SsmlError::Entity(name("#xD800;"))),
            ("a < b", SsmlError::Tag),
            ("<b", SsmlError::Tag),
            ("<b>", SsmlError::Unclosed(name("b"))),
            ("<a><b></a></b>", SsmlError::Unclosed(name("b"))),
            ("</b>", SsmlError::Unopened(name("b"))),
            ("<1/>", SsmlError::Name(name("1"))),
            ("<b a=1/>", SsmlError::Attribute(name("b"))),
            ("<b a='1'b='2'/>", SsmlError::Attribute(name("b"))),
            ("<b a='1' a='2'/>", SsmlError::Attribute(name("b"))),
            ("<b a='<'/>", SsmlError::Tag),
            ("<b a='&lol;'/>", SsmlError::Entity(name("lol;"))),
            ("<![CDATA[a]]>", SsmlError::Declaration),
            ("<?php ?>", SsmlError::Declaration),
            ("\u{1}", SsmlError::Character),
            ("<voice name='x'>a</voice>", SsmlError::Voice),
            ("<speak>a</speak>", SsmlError::NoRoot),
        ] {
            assert_eq!(parsed(content).unwrap_err(), error, "{content}");
        }
        for document in [
            "",
            "Hello.",
            "<p>Hello.</p>",
            "<speak>a</speak>b",
            "a<speak>b</speak>",
        ] {
            assert_eq!(Ssml::parse(document), Err(SsmlError::NoRoot), "{document}");
        }
        let bomb =
            "<!DOCTYPE speak [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><speak>&b;</speak>";
        assert_eq!(Ssml::parse(bomb), Err(SsmlError::Declaration));
        let deep = |depth: usize| parsed(&("<p>".repeat(depth) + &"</p>".repeat(depth)));
        assert_eq!(
            parsed(&"<a/>".repeat(MAX_PIECES + 1)),
            Err(SsmlError::TooLong)
        );
        assert_eq!(parsed(&"a".repeat(MAX_BYTES)), Err(SsmlError::TooLong));
        assert!(deep(MAX_DEPTH - 1).is_ok());
        assert_eq!(deep(MAX_DEPTH), Err(SsmlError::TooDeep));
    }

    #[test]
    fn the_rest_is_in_the_elements_that_are_open_there() {
        let ssml =
            parsed("<p>One <prosody rate='slow'>two three</prosody></p><break/>four").unwrap();
        let from = |word: &str| ssml.rest(ssml.text().find(word).unwrap());
        let rest = from("three");
        assert_eq!(rest.text(), "three four");
        assert_eq!(
            rest.content(),
            "<p><prosody rate='slow'>three</prosody></p><break/>four"
        );
        assert_eq!(from("four").content(), "four");
        assert_eq!(ssml.rest(0), ssml);
        assert_eq!(ssml.rest(1_000).text(), "");
    }

    #[test]
    fn words_are_replaced_in_texts_and_neither_in_tags_nor_where_they_are_said_otherwise() {
        let ssml = parsed("sub <sub alias='sub'>sub</sub> a&amp;b <break time='sub'/>").unwrap();
        let mut places = Vec::new();
        let said = ssml.replaced(|text, at, verbatim| {
            places.push((at, verbatim));
            let replaced = text.replace("sub", "under < over");
            Some(if verbatim { text.to_owned() } else { replaced })
        });
        let said = said.unwrap();
        assert_eq!(
            said.content(),
            "under &lt; over <sub alias='sub'>sub</sub> a&amp;b <break time='sub'/>"
        );
        assert_eq!(said.text(), "under < over sub a&b ");
        assert_eq!(places, [(0, false), (4, true), (7, false)]);
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(document in "\\PC{0,80}") {
            let _ = Ssml::parse(&document);
        }

        #[test]
        fn any_document_is_the_same_when_it_is_read_again_and_so_is_each_rest(
            parts in prop::collection::vec(
                prop_oneof![
                    "[ a&lt;é]{0,6}".prop_map(|text| escaped(&text)),
                    Just("<break/>".to_owned()), Just("<s>one two</s>".to_owned()),
                    Just("<p><emphasis>a</emphasis>b</p>".to_owned()),
                ], 0..8),
            from in 0_usize..40,
        ) {
            let ssml = parsed(&parts.concat()).unwrap();
            let again = Ssml::parse(&ssml.document()).unwrap();
            prop_assert_eq!(again.text(), ssml.text());
            let rest = ssml.rest(from);
            prop_assert!(ssml.text().ends_with(rest.text()));
            prop_assert!(Ssml::parse(&rest.document()).is_ok());
        }
    }
}
