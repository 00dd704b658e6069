//! The clients' ids of utterances that were cut. A client learns of a cut later than it happens, and tokens of a language
//! model are in flight until then: they belong to what was cut, and are no beginning of something new.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use serde::{Deserialize, Serialize};

use super::Speak;

/// How many ids are remembered.
const REMEMBERED: usize = 64;

/// The last ids that were cut, as hashes: an id may be long. They are the same in every process, as the session may go on in
/// another one; whoever makes two ids alike does that to nobody else.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct CutIds {
    #[serde(skip)]
    hasher: BuildHasherDefault<DefaultHasher>,
    ids: VecDeque<CutId>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct CutId {
    hash: u64,
    /// Whether text has come for it that was not its last.
    goes_on: bool,
}

impl CutIds {
    /// An utterance with this id was cut.
    pub fn cut(&mut self, id: &str) {
        let hash = self.hasher.hash_one(id);
        self.ids.retain(|known| known.hash != hash);
        if self.ids.len() >= REMEMBERED {
            self.ids.pop_front();
        }
        let goes_on = false;
        self.ids.push_back(CutId { hash, goes_on });
    }

    /// Whether text still belongs to an utterance that was cut: whatever does not end it, and what ends it. A whole text
    /// [begins another](Self::begin_anew) of that id: some clients use one id for everything.
    pub fn drops(&mut self, speak: &Speak) -> bool {
        let Some(id) = &speak.id else { return false };
        let hash = self.hasher.hash_one(id);
        let Some(known) = self.ids.iter_mut().find(|known| known.hash == hash) else {
            return false;
        };
        let went_on = std::mem::replace(&mut known.goes_on, !speak.flush);
        !speak.flush || went_on || speak.text.trim().is_empty()
    }

    /// There is a new utterance with this id.
    pub fn begin_anew(&mut self, id: &str) {
        let hash = self.hasher.hash_one(id);
        self.ids.retain(|known| known.hash != hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(id: &str, text: &str, flush: bool) -> Speak {
        Speak {
            text: text.to_owned(),
            flush,
            allow_interruption: true,
            replace: false,
            id: Some(id.to_owned()),
            ssml: None,
        }
    }

    #[test]
    fn text_that_was_on_its_way_is_dropped_with_what_ends_it() {
        let mut cut = CutIds::default();
        assert!(!cut.drops(&text("a", "word", false)));
        cut.cut("a");
        for _ in 0..3 {
            assert!(cut.drops(&text("a", "word ", false)));
        }
        assert!(!cut.drops(&text("b", "word", false)));
        assert!(cut.drops(&text("a", "end.", true)));
        assert!(!cut.drops(&text("a", "Whole.", true)));
    }

    #[test]
    fn an_end_without_text_is_no_beginning_and_a_whole_text_is_one() {
        let mut cut = CutIds::default();
        cut.cut("a");
        assert!(cut.drops(&text("a", " ", true)));
        assert!(!cut.drops(&text("a", "Whole.", true)));
        cut.begin_anew("a");
        assert!(!cut.drops(&text("a", "word", false)));
    }

    #[test]
    fn an_id_is_forgotten_after_sixty_four_others() {
        let mut cut = CutIds::default();
        cut.cut("a");
        (1..REMEMBERED).for_each(|n| cut.cut(&n.to_string()));
        assert!(cut.drops(&text("a", "word", false)));
        cut.cut("another");
        assert!(!cut.drops(&text("a", "word", false)));
    }
}
