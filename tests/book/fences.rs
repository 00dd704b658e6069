//! The fenced blocks of a Markdown page, and what their info strings ask for. A block is run unless it is marked; a mark
//! says what is done instead, and, of blocks that are only parsed, why:
//!
//! ```text
//! sh                          commands, run in the page's folder
//! sh serve                    the command of a server, which the rest of the page talks to
//! sh background               runs until the page has been read
//! python file="agent.py"      saved under this name, for the commands that follow
//! text output                 what the block before has printed: its lines, `…` for anything
//! json answer                 what the block before has printed: the fields, and the types of their values
//! json of="SpeakRequest"      a body of the API, validated against its schema
//! yaml parsed="a cluster"     not run, and why
//! ```

use std::collections::BTreeMap;

/// What becomes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Run as a user would.
    Run,
    /// Compared with a schema, the settings, or what was printed.
    Checked,
    /// Parsed by the language's own parser.
    Parsed,
    /// A drawing or a text.
    Shown,
}

/// A block of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line at which it begins, from 1.
    pub line: usize,
    pub language: String,
    marks: BTreeMap<String, String>,
    pub text: String,
}

/// The marks that there are.
const MARKS: [&str; 10] = [
    "answer",
    "background",
    "client",
    "file",
    "of",
    "output",
    "parsed",
    "serve",
    "server",
    "verifies",
];
/// Languages whose blocks are drawings or other people's output.
const SHOWN: [&str; 1] = ["text"];

impl Block {
    /// The value of a mark; empty where it has none.
    pub fn mark(&self, name: &str) -> Option<&str> {
        self.marks.get(name).map(String::as_str)
    }

    pub fn is(&self, name: &str) -> bool {
        self.marks.contains_key(name)
    }

    pub fn fate(&self) -> Fate {
        if self.is("parsed") {
            Fate::Parsed
        } else if self.is("output") || self.is("answer") {
            Fate::Checked
        } else if SHOWN.contains(&self.language.as_str()) {
            Fate::Shown
        } else if ["json", "yaml"].contains(&self.language.as_str()) {
            Fate::Checked
        } else {
            Fate::Run
        }
    }
}

/// All blocks of a page.
pub fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, Block)> = None;
    for (index, line) in page.lines().enumerate() {
        let fence: String = line
            .trim_start()
            .chars()
            .take_while(|c| *c == '`')
            .collect();
        if let Some((begun, block)) = &mut open {
            if fence.len() >= begun.len() && line.trim() == fence {
                blocks.extend(open.take().map(|(_, block)| block));
            } else {
                block.text.push_str(line);
                block.text.push('\n');
            }
        } else if fence.len() >= 3 {
            let info = &line.trim_start()[fence.len()..];
            let block = begun(index + 1, info)?;
            open = Some((fence, block));
        }
    }
    match open {
        Some((_, block)) => Err(format!("line {}: the block does not end", block.line)),
        None => Ok(blocks),
    }
}

/// A block by its info string.
fn begun(line: usize, info: &str) -> Result<Block, String> {
    let info = info.trim();
    let (language, mut rest) = info.split_once(' ').unwrap_or((info, ""));
    if language.is_empty() {
        return Err(format!(
            "line {line}: a block needs a language, of a drawing `text`"
        ));
    }
    let mut marks = BTreeMap::new();
    loop {
        rest = rest.trim_start();
        let end = rest.find([' ', '=']).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        if name.is_empty() {
            break;
        }
        if !MARKS.contains(&name) {
            return Err(format!("line {line}: no mark is called `{name}`"));
        }
        let mut value = "";
        rest = behind;
        if let Some(quoted) = behind.strip_prefix("=\"") {
            let Some((inside, behind)) = quoted.split_once('"') else {
                return Err(format!("line {line}: the value of `{name}` does not end"));
            };
            (value, rest) = (inside, behind);
        }
        if ["file", "of", "parsed"].contains(&name) && value.is_empty() {
            return Err(format!("line {line}: `{name}` needs a value"));
        }
        marks.insert(name.to_owned(), value.to_owned());
    }
    Ok(Block {
        line,
        language: language.to_owned(),
        marks,
        text: String::new(),
    })
}

#[test]
fn blocks_have_a_language_and_known_marks() {
    let page = "# Page\n\n```sh\necho 1\n```\ntext\n  ````python file=\"a.py\" parsed=\"needs a carrier\"\n```\n  ````\n";
    let found = blocks(page).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].line, found[0].text.as_str()), (3, "echo 1\n"));
    assert_eq!(found[0].fate(), Fate::Run);
    assert_eq!(found[1].mark("parsed"), Some("needs a carrier"));
    assert_eq!(found[1].mark("file"), Some("a.py"));
    assert_eq!(
        (found[1].fate(), found[1].text.as_str()),
        (Fate::Parsed, "```\n")
    );
    for wrong in [
        "```\nx\n```",
        "```sh parsed\nx\n```",
        "```sh skipped\nx\n```",
        "```sh parsed=\"x\nx\n```",
        "```sh\nx",
    ] {
        assert!(blocks(wrong).is_err(), "{wrong}");
    }
}
