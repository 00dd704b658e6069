//! Text that knows where it comes from: every byte has the range of the original text that it stands for, so that what
//! is spoken ("seven thirty") can be traced to what was written ("7:30").

use std::ops::Range;

use fancy_regex::Regex;

/// A match of a pattern.
pub type Found<'t> = fancy_regex::Captures<'t, str>;

/// Text, and what each of its bytes stands for in the original.
#[derive(Debug, Clone, Default)]
pub struct Traced {
    text: String,
    origins: Vec<(u32, u32)>,
}

impl Traced {
    /// The original text itself.
    pub fn original(text: &str) -> Self {
        let mut traced = Self::default();
        for (at, c) in text.char_indices() {
            traced.push(c.encode_utf8(&mut [0; 4]), at..at + c.len_utf8());
        }
        traced
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What a range of the text stands for.
    pub fn origin(&self, range: Range<usize>) -> Range<usize> {
        let of = self.origins.get(range).unwrap_or_default();
        let start = of.iter().map(|(start, _)| *start).min();
        let end = of.iter().map(|(_, end)| *end).max();
        match start.zip(end) {
            Some((start, end)) => start as usize..end as usize,
            None => 0..0,
        }
    }

    /// Appends text that stands for a range of the original.
    pub fn push(&mut self, text: &str, origin: Range<usize>) {
        self.text.push_str(text);
        let origin = (origin.start as u32, origin.end as u32);
        self.origins.extend(std::iter::repeat_n(origin, text.len()));
    }

    /// Appends a range of another text over the same original.
    fn copy(&mut self, of: &Self, range: Range<usize>) {
        if let (Some(text), Some(origins)) =
            (of.text.get(range.clone()), of.origins.get(range.clone()))
        {
            self.text.push_str(text);
            self.origins.extend(origins);
        }
    }

    /// Replaces every match for which `write` gives true by what it has written; keeps the others.
    pub fn rewrite(
        &mut self,
        pattern: &Regex,
        mut write: impl FnMut(&Found<'_>, &mut Rewriting<'_>) -> bool,
    ) {
        // Most patterns do not occur in most sentences.
        let Ok(Some(first)) = pattern.captures(self.text.as_str()) else {
            return;
        };
        let old = self.clone();
        let mut new = Self::default();
        let (mut at, mut found) = (0, Some(first));
        while let Some(captures) = found {
            let Some(matched) = captures.get(0) else {
                break;
            };
            new.copy(&old, at..matched.start());
            let mut rewriting = Rewriting {
                old: &old,
                all: matched.range(),
                new: Self::default(),
            };
            if write(&captures, &mut rewriting) {
                let written = rewriting.new;
                new.copy(&written, 0..written.text.len());
            } else {
                new.copy(&old, matched.range());
            }
            at = matched.end();
            // An empty match would be found again.
            let next = if matched.range().is_empty() {
                let char = old.text.get(at..).and_then(|rest| rest.chars().next());
                let next = at + char.map_or(1, char::len_utf8);
                new.copy(&old, at..next.min(old.text.len()));
                at = next;
                next
            } else {
                at
            };
            if next > old.text.len() {
                break;
            }
            // A pattern that needs too many steps on this text is left alone.
            found = pattern
                .captures_from_pos(old.text.as_str(), next)
                .ok()
                .flatten();
        }
        new.copy(&old, at.min(old.text.len())..old.text.len());
        *self = new;
    }
}

/// What a match is replaced by.
pub struct Rewriting<'t> {
    old: &'t Traced,
    all: Range<usize>,
    new: Traced,
}

impl Rewriting<'_> {
    /// The whole text.
    pub fn text(&self) -> &str {
        &self.old.text
    }

    /// Writes words for the whole match.
    pub fn say(&mut self, words: &str) {
        self.say_for(words, self.all.clone());
    }

    /// Writes words for a range of the text, such as a group of the match.
    pub fn say_for(&mut self, words: &str, range: Range<usize>) {
        let origin = self.old.origin(range);
        self.new.push(words, origin);
    }

    /// Keeps a range of the text.
    pub fn keep(&mut self, range: Range<usize>) {
        self.new.copy(self.old, range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_text_knows_its_origin() {
        let mut text = Traced::original("At 7:30 in Köln");
        let time = Regex::new(r"(\d):(\d+)").unwrap();
        text.rewrite(&time, |found, new| {
            new.say_for("seven", found.get(1).unwrap().range());
            new.say_for(" thirty", found.get(2).unwrap().range());
            true
        });
        assert_eq!(text.text(), "At seven thirty in Köln");
        assert_eq!(text.origin(3..8), 3..4);
        assert_eq!(text.origin(8..15), 5..7);
        assert_eq!(text.origin(3..15), 3..7);
        let end = text.text().len();
        assert_eq!(text.origin(end - 5..end), 11..16);
        text.rewrite(&Regex::new("x?").unwrap(), |_, _| false);
        assert_eq!(text.text(), "At seven thirty in Köln");
    }
}
