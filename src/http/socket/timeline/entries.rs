//! The entries of a timeline. Nearly all memory of a session that lasts would be these, and nobody looks at most of them:
//! the last few are kept as they are, those before them in compressed blocks, at about a third of their size. A block is
//! forgotten as a whole.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, BufMut};

/// Up to how many entries are kept, and up to how many bytes of text in them.
pub(super) const MAX_ENTRIES: usize = 400;
pub(super) const MAX_BYTES: usize = 48 << 10;
/// Once the last entries take more than this, they are compressed as the next one comes.
const BLOCK_BYTES: usize = 6 << 10;
/// By how many entries the room for the last ones grows.
const GROWTH: usize = 16;

/// An entry as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) version: u64,
    pub(super) at_ms: u64,
    /// From the first time to the last.
    pub(super) lasted_ms: u32,
    pub(super) times: u32,
    pub(super) from_client: bool,
    pub(super) text: Box<str>,
}

impl Kept {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.len()
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.put_u64_le(self.version);
        to.put_u64_le(self.at_ms);
        to.put_u32_le(self.lasted_ms);
        to.put_u32_le(self.times);
        to.put_u8(self.from_client.into());
        to.put_u32_le(u32::try_from(self.text.len()).unwrap_or(u32::MAX));
        to.put_slice(self.text.as_bytes());
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        Some(Self {
            version: from.try_get_u64_le().ok()?,
            at_ms: from.try_get_u64_le().ok()?,
            lasted_ms: from.try_get_u32_le().ok()?,
            times: from.try_get_u32_le().ok()?,
            from_client: from.try_get_u8().ok()? != 0,
            text: {
                let length = from.try_get_u32_le().ok()?;
                let text = from.split_off(..length as usize)?;
                std::str::from_utf8(text).ok()?.into()
            },
        })
    }
}

/// Entries that are compressed.
#[derive(Debug)]
struct Block {
    entries: usize,
    text_bytes: usize,
    /// The newest version in it.
    version: u64,
    compressed: Arc<[u8]>,
}

impl Block {
    /// `bytes` is about how many these are.
    fn of(entries: impl Iterator<Item = Kept>, bytes: usize) -> Self {
        let mut plain = Vec::with_capacity(bytes);
        let (mut count, mut text_bytes, mut version) = (0, 0, 0);
        for entry in entries {
            entry.write(&mut plain);
            count += 1;
            text_bytes += entry.text.len();
            version = entry.version;
        }
        Self {
            entries: count,
            text_bytes,
            version,
            compressed: lz4_flex::block::compress_prepend_size(&plain).into(),
        }
    }
}

/// Entries after a version, some of them to be read yet: whoever looks decompresses them, with no lock held.
#[derive(Debug)]
pub(super) struct Since {
    version: u64,
    /// With the number of the first of each.
    blocks: Vec<(u64, Arc<[u8]>)>,
    last: Vec<(u64, Kept)>,
}

impl Since {
    /// All of them, with their numbers.
    pub(super) fn read(self) -> Vec<(u64, Kept)> {
        let mut entries = Vec::new();
        for (first, compressed) in self.blocks {
            let plain = lz4_flex::block::decompress_size_prepended(&compressed);
            let plain = plain.unwrap_or_default();
            let mut left = &plain[..];
            let numbered = (first..).zip(std::iter::from_fn(|| Kept::read(&mut left)));
            entries.extend(numbered.filter(|(_, entry)| entry.version > self.version));
        }
        entries.extend(self.last);
        entries
    }
}

/// The last entries, with consecutive numbers.
#[derive(Debug, Default)]
pub(super) struct Entries {
    blocks: VecDeque<Block>,
    last: VecDeque<Kept>,
    /// The number of the newest.
    newest: u64,
    count: usize,
    text_bytes: usize,
    /// What those that are not compressed take.
    last_bytes: usize,
}

impl Entries {
    /// The newest.
    pub(super) fn newest(&self) -> Option<&Kept> {
        self.last.back()
    }

    /// Changes the newest. It has the newest version.
    pub(super) fn change_newest(&mut self, change: impl FnOnce(&mut Kept)) {
        if let Some(newest) = self.last.back_mut() {
            let before = newest.text.len();
            change(newest);
            let after = newest.text.len();
            self.text_bytes = self.text_bytes - before + after;
            self.last_bytes = self.last_bytes - before + after;
            self.forget();
        }
    }

    pub(super) fn push(&mut self, entry: Kept) {
        if self.last_bytes > BLOCK_BYTES {
            let bytes = self.last_bytes;
            self.blocks.push_back(Block::of(self.last.drain(..), bytes));
            self.last_bytes = 0;
        }
        if self.last.len() == self.last.capacity() {
            self.last.reserve_exact(GROWTH);
        }
        self.newest += 1;
        self.count += 1;
        self.text_bytes += entry.text.len();
        self.last_bytes += entry.bytes();
        self.last.push_back(entry);
        self.forget();
    }

    /// Those of a later version.
    pub(super) fn since(&self, version: u64) -> Since {
        let mut number = self.newest + 1 - self.count as u64;
        let mut blocks = Vec::new();
        for block in &self.blocks {
            if block.version > version {
                blocks.push((number, Arc::clone(&block.compressed)));
            }
            number += block.entries as u64;
        }
        let last = (number..).zip(&self.last);
        let last = last.filter(|(_, entry)| entry.version > version);
        Since {
            version,
            blocks,
            last: last
                .map(|(number, entry)| (number, entry.clone()))
                .collect(),
        }
    }

    /// The oldest go where there are too many, those of a block together.
    fn forget(&mut self) {
        while self.count > MAX_ENTRIES || self.text_bytes > MAX_BYTES {
            let (entries, text_bytes) = if let Some(block) = self.blocks.pop_front() {
                (block.entries, block.text_bytes)
            } else if let Some(entry) = self.last.pop_front() {
                self.last_bytes -= entry.bytes();
                (1, entry.text.len())
            } else {
                return;
            };
            self.count -= entries;
            self.text_bytes -= text_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(version: u64, text: &str) -> Kept {
        Kept {
            version,
            at_ms: version * 250,
            lasted_ms: version as u32,
            times: 3,
            from_client: version.is_multiple_of(3),
            text: text.into(),
        }
    }

    fn bytes_of(entries: &[(u64, Kept)]) -> usize {
        entries.iter().map(|(_, entry)| entry.text.len()).sum()
    }

    proptest! {
        /// Pushes and some changes, with texts that are short but for a few.
        #[test]
        fn the_last_ones_are_there_as_they_were_given_with_their_numbers(
            steps in prop::collection::vec((0..5u8, "[a-zü\"]{1,4}", 0..8_000usize), 0..900),
            asked in 0..900u64,
        ) {
            let mut entries = Entries::default();
            let mut given: Vec<Kept> = Vec::new();
            for (version, (step, text, times)) in (1..).zip(&steps) {
                let text = text.repeat(if times % 400 == 0 { *times } else { times % 40 });
                if *step == 0 && entries.newest().is_some() {
                    let newest = given.last_mut().unwrap();
                    (newest.version, newest.text) = (version, text.clone().into());
                    entries.change_newest(|newest| (newest.version, newest.text) = (version, text.into()));
                } else {
                    given.push(entry(version, &text));
                    entries.push(entry(version, &text));
                }
                let fits = given.last().filter(|last| last.text.len() <= MAX_BYTES);
                prop_assert_eq!(entries.newest(), fits);
            }
            let kept = entries.since(0).read();
            let bytes = bytes_of(&kept);
            prop_assert!(kept.len() <= MAX_ENTRIES && bytes <= MAX_BYTES);
            prop_assert_eq!((kept.len(), bytes), (entries.count, entries.text_bytes));
            let last: usize = entries.last.iter().map(Kept::bytes).sum();
            prop_assert_eq!(entries.last_bytes, last);
            let gone = given.len() - kept.len();
            let numbered: Vec<_> = (1..).zip(given).skip(gone).collect();
            prop_assert_eq!(&kept, &numbered);
            let news = numbered.into_iter().filter(|(_, entry)| entry.version > asked);
            prop_assert_eq!(entries.since(asked).read(), news.collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_more_are_kept_than_may_be_and_hardly_fewer() {
        let mut entries = Entries::default();
        for version in 1..=3 * MAX_ENTRIES as u64 {
            entries.push(entry(version, "short"));
            let kept = entries.count;
            assert!(kept <= MAX_ENTRIES, "{kept}");
            // A block has as many as take so much.
            let fewest = MAX_ENTRIES - BLOCK_BYTES / size_of::<Kept>() - 1;
            assert!(kept == version as usize || kept >= fewest, "{kept}");
        }
        assert!(entries.last.capacity() <= BLOCK_BYTES / size_of::<Kept>() + GROWTH);
        let newest = entries.since(0).read().pop();
        assert_eq!(
            newest.map(|(number, _)| number),
            Some(3 * MAX_ENTRIES as u64)
        );
        let mut entries = Entries::default();
        for version in 1..=1_000 {
            entries.push(entry(version, &"x".repeat(1_000)));
            let bytes = bytes_of(&entries.since(0).read());
            assert!(bytes <= MAX_BYTES, "{bytes}");
            let fewest = MAX_BYTES - BLOCK_BYTES - 2_000;
            assert!(
                bytes == version as usize * 1_000 || bytes >= fewest,
                "{bytes}"
            );
        }
    }

    #[test]
    fn most_of_what_a_long_conversation_says_takes_a_third_of_its_size() {
        let mut entries = Entries::default();
        for version in 1..=MAX_ENTRIES as u64 {
            let at = version as f64 * 0.25;
            entries.push(entry(version, &format!(
                r#"{{"type":"stt_result","transcript":"word {version} of these","is_final":true,"confidence":0.9{version},"start":{at}}}"#
            )));
        }
        let compressed: usize = entries
            .blocks
            .iter()
            .map(|block| block.compressed.len())
            .sum();
        let blocks = entries.count - entries.last.len();
        let plain = blocks * entries.since(0).read()[0].1.bytes();
        assert!(
            blocks > MAX_ENTRIES * 4 / 5,
            "{blocks} entries are compressed"
        );
        assert!(compressed * 3 < plain, "{compressed} of {plain} bytes");
    }
}
