//! What is silenced of a recording's sound before it is stored. The words that tell it are known only after the sound is in
//! the journal, so a line of a file of the journal says it, as soon as it is known, and the journal is finished without these
//! stretches. What a killed process has recorded and nobody has understood yet is silenced as well.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use vivavoce_audio::ogg::{Silenced, Stretch};

/// The largest file that is read: of finals each second, for days.
const MAX_FILE: u64 = 64 << 20;
/// Beyond any end.
pub const EVER: u64 = u64::MAX;

/// A line of the file. Times are in milliseconds from the start of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mark", rename_all = "snake_case")]
pub enum Mark {
    /// This is silenced.
    Hide {
        side: Side,
        from_ms: u64,
        to_ms: u64,
    },
    /// What of this is to be silenced before here has been told.
    Known { side: Side, until_ms: u64 },
    /// The session has ended: nothing more will be understood.
    Ended,
}

/// A side of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Heard,
    Said,
}

impl Mark {
    /// The line, with its break.
    pub fn to_line(self) -> String {
        // Names and numbers can always be serialised.
        let mut line = serde_json::to_string(&self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// What is silenced by the file at this path, if there is one.
pub fn read(path: &Path) -> io::Result<Vec<Stretch>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    // The last line may be torn.
    let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let lines = bytes.get(..end).unwrap_or_default();
    let lines = lines.split(|byte| *byte == b'\n');
    let marks = lines
        .filter(|line| !line.is_empty())
        .map(serde_json::from_slice);
    let is_whole = (bytes.len() as u64) < MAX_FILE;
    Ok(match marks.collect::<Result<Vec<Mark>, _>>() {
        Ok(marks) if is_whole => stretches(&marks),
        // A disk may lose power: what nobody can read may have hidden anything.
        _ => [Silenced::Left, Silenced::Right]
            .map(|what| stretch(0, EVER, what))
            .into(),
    })
}

fn stretch(from_ms: u64, to_ms: u64, what: Silenced) -> Stretch {
    let frames = |ms: u64| ms.saturating_mul(48);
    Stretch {
        frames: frames(from_ms)..frames(to_ms),
        what,
    }
}

fn stretches(marks: &[Mark]) -> Vec<Stretch> {
    let channel = |side| match side {
        Side::Heard => Silenced::Left,
        Side::Said => Silenced::Right,
    };
    let mut stretches = Vec::new();
    // Nothing has been said until that is marked.
    let (mut heard, mut said) = (0, EVER);
    for mark in marks {
        match *mark {
            Mark::Hide {
                side,
                from_ms,
                to_ms,
            } => stretches.push(stretch(from_ms, to_ms, channel(side))),
            Mark::Known { side, until_ms } => match side {
                Side::Heard => heard = until_ms,
                Side::Said => said = until_ms,
            },
            Mark::Ended => heard = EVER,
        }
    }
    for (side, known) in [(Side::Heard, heard), (Side::Said, said)] {
        if known < EVER {
            stretches.push(stretch(known, EVER, channel(side)));
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(text: &[u8]) -> Vec<Stretch> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        std::fs::write(&path, text).unwrap();
        read(&path).unwrap()
    }

    fn known(side: Side, until_ms: u64) -> Mark {
        Mark::Known { side, until_ms }
    }

    #[test]
    fn what_was_found_is_silenced() {
        let hide = |side| Mark::Hide {
            side,
            from_ms: 1_000,
            to_ms: 2_000,
        };
        let lines = [
            hide(Side::Heard),
            known(Side::Heard, 2_500),
            known(Side::Said, 3_000),
            hide(Side::Said),
            known(Side::Said, EVER),
            Mark::Ended,
        ];
        let text: String = lines.map(Mark::to_line).concat();
        assert_eq!(
            read_of(text.as_bytes()),
            [
                stretch(1_000, 2_000, Silenced::Left),
                stretch(1_000, 2_000, Silenced::Right)
            ]
        );
        assert_eq!(read(Path::new("/not/there")).unwrap(), []);
    }

    #[test]
    fn what_nobody_has_understood_when_the_process_died_is_silenced() {
        let rest = |from_ms, what| stretch(from_ms, EVER, what);
        assert_eq!(read_of(b""), [rest(0, Silenced::Left)]);
        let text = known(Side::Heard, 9_000).to_line() + &known(Side::Said, 9_500).to_line();
        let expected = [rest(9_000, Silenced::Left), rest(9_500, Silenced::Right)];
        assert_eq!(read_of(text.as_bytes()), expected);
        // The last line is torn: it is as if the session had not ended.
        let ended = Mark::Ended.to_line();
        assert_eq!(
            read_of((text.clone() + ended.trim_end()).as_bytes()),
            expected
        );
        // Of an utterance nobody knows what it was.
        assert_eq!(read_of((text + &ended).as_bytes()), expected[1..]);
    }

    #[test]
    fn of_marks_that_cannot_be_read_nothing_is_kept() {
        let everything = [
            stretch(0, EVER, Silenced::Left),
            stretch(0, EVER, Silenced::Right),
        ];
        let ended = Mark::Ended.to_line();
        for broken in [&b"\0\0\0\n"[..], b"{}\n", b"\xff\n"] {
            let text = [broken, ended.as_bytes()].concat();
            assert_eq!(read_of(&text), everything);
        }
    }
}
