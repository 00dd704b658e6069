//! Where a member of a ZIP archive lies, from the archive's end, its central directory and the member's header (APPNOTE
//! 4.3). Pure parsing: whoever calls reads those bytes from a file or by ranges from a server. Members are stored or
//! deflated, and archives shorter than 4 GiB, as those of Python packages are.

use std::ops::Range;

/// The longest record at the end of an archive: 22 bytes and a comment.
pub(crate) const MAX_END_BYTES: u64 = 22 + 65_535;
/// The part of a member's header that has a fixed length.
pub(crate) const HEADER_BYTES: u64 = 30;
/// The longest directory that is read; one with a thousand members has about 100 KiB.
pub(crate) const MAX_DIRECTORY_BYTES: u64 = 16 << 20;

const END: u32 = 0x0605_4b50;
const ENTRY: u32 = 0x0201_4b50;
const HEADER: u32 = 0x0403_4b50;
const END_LEN: usize = 22;
const ENTRY_LEN: usize = 46;

/// Why a member cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ZipError {
    #[error("is no ZIP archive, or is cut short")]
    NotAnArchive,
    #[error("is a ZIP archive of a kind that is not supported")]
    Unsupported,
    #[error("has no member {0}")]
    NoMember(String),
}

/// A member, according to the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where its header begins.
    pub header_at: u64,
    /// Its bytes in the archive.
    pub compressed: u64,
    /// Its bytes.
    pub size: u64,
    /// Whether it is compressed.
    pub deflated: bool,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Where the directory of an archive of `total` bytes lies; `tail` are its last bytes, up to [`MAX_END_BYTES`].
pub(crate) fn directory(tail: &[u8], total: u64) -> Result<Range<u64>, ZipError> {
    let last = tail.len().checked_sub(END_LEN);
    let last = last.ok_or(ZipError::NotAnArchive)?;
    // Backwards: the comment behind the record may hold anything.
    let end = (0..=last).rev().find(|at| {
        let comment = u16_at(tail, at + 20).map(usize::from);
        u32_at(tail, *at) == Some(END) && comment == Some(last - at)
    });
    let end = end.ok_or(ZipError::NotAnArchive)?;
    let field = |at| u32_at(tail, end + at).ok_or(ZipError::NotAnArchive);
    let (length, start) = (field(12)?, field(16)?);
    if length == u32::MAX || start == u32::MAX {
        return Err(ZipError::Unsupported);
    }
    let (start, length) = (u64::from(start), u64::from(length));
    let before_end = total.saturating_sub((tail.len() - end) as u64);
    if start + length > before_end || length > MAX_DIRECTORY_BYTES {
        return Err(ZipError::NotAnArchive);
    }
    Ok(start..start + length)
}

/// The member with this name.
pub(crate) fn find(directory: &[u8], name: &str) -> Result<Entry, ZipError> {
    let mut rest = directory;
    while !rest.is_empty() {
        let (entry, found, length) = entry(rest).ok_or(ZipError::NotAnArchive)?;
        if found == name.as_bytes() {
            return entry;
        }
        rest = rest.get(length..).ok_or(ZipError::NotAnArchive)?;
    }
    Err(ZipError::NoMember(name.to_owned()))
}

/// The first entry of a directory, its name, and the bytes it takes.
fn entry(bytes: &[u8]) -> Option<(Result<Entry, ZipError>, &[u8], usize)> {
    if u32_at(bytes, 0) != Some(ENTRY) {
        return None;
    }
    let name_len = usize::from(u16_at(bytes, 28)?);
    let extra_len = usize::from(u16_at(bytes, 30)?);
    let comment_len = usize::from(u16_at(bytes, 32)?);
    let name = bytes.get(ENTRY_LEN..ENTRY_LEN + name_len)?;
    let (flags, method) = (u16_at(bytes, 8)?, u16_at(bytes, 10)?);
    let (compressed, size) = (u32_at(bytes, 20)?, u32_at(bytes, 24)?);
    let header_at = u32_at(bytes, 42)?;
    let encrypted = flags & 1 != 0;
    let is_long = [compressed, size, header_at].contains(&u32::MAX);
    let entry = match method {
        0 | 8 if !encrypted && !is_long => Ok(Entry {
            header_at: header_at.into(),
            compressed: compressed.into(),
            size: size.into(),
            deflated: method == 8,
        }),
        _ => Err(ZipError::Unsupported),
    };
    Some((entry, name, ENTRY_LEN + name_len + extra_len + comment_len))
}

/// Where a member's bytes begin; `header` are the first [`HEADER_BYTES`] of its header.
pub(crate) fn data_at(entry: Entry, header: &[u8]) -> Result<u64, ZipError> {
    let lengths = u16_at(header, 26).zip(u16_at(header, 28));
    match lengths {
        Some((name, extra)) if u32_at(header, 0) == Some(HEADER) => {
            Ok(entry.header_at + HEADER_BYTES + u64::from(name) + u64::from(extra))
        }
        _ => Err(ZipError::NotAnArchive),
    }
}
