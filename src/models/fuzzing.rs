//! The fuzz targets of what registries send: the end, directory and headers of an archive, and the page of a package.

use vivavoce_core::fuzzing::{Target, binary, text};

use crate::{simple_index, zip};

/// The targets.
pub const TARGETS: [Target; 2] = [
    binary("model_archive", archive, archives),
    text("package_index", index, indexes),
];

fn archive(input: &[u8]) {
    let total = input.len() as u64;
    let Ok(range) = zip::directory(input, total) else {
        return;
    };
    // `directory` promises that its range lies in the archive.
    let directory = &input[range.start as usize..range.end as usize];
    for name in ["a/b.onnx", "", "c"] {
        let Ok(entry) = zip::find(directory, name) else {
            continue;
        };
        let header = input.get(entry.header_at as usize..).unwrap_or_default();
        let header = &header[..header.len().min(zip::HEADER_BYTES as usize)];
        let _at = zip::data_at(entry, header);
    }
}

/// An archive of one stored and one deflated member, and a comment.
pub(crate) fn archives() -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    let deflated = [0x4b, 0x4c, 0x4a, 0x06, 0x00];
    let members: [(&str, u16, &[u8], u32); 2] =
        [("c", 0, b"stored", 6), ("a/b.onnx", 8, &deflated, 3)];
    for (name, method, data, size) in members {
        let at = bytes.len() as u32;
        let mut common = Vec::new();
        // Version, flags, method, time, date, CRC.
        common.extend(
            [20u16, 0, method, 0, 0, 0, 0]
                .iter()
                .flat_map(|one| one.to_le_bytes()),
        );
        common.extend((data.len() as u32).to_le_bytes());
        common.extend(size.to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(4u16.to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend([0; 4]);
        bytes.extend(data);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        // Extra field, comment, disk, attributes.
        directory.extend([0; 12]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let at = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0\x02\0\x02\0");
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend(b"\x05\0PK\x05\x06!");
    vec![bytes]
}

fn index(input: &[u8]) {
    #[expect(clippy::expect_used, reason = "a constant")]
    let base = "https://index.example/simple/a/".parse().expect("a URL");
    for is_json in [false, true] {
        let _link = simple_index::link(input, is_json, &base, "a-1-py3-none-any.whl");
    }
}

fn indexes() -> Vec<Vec<u8>> {
    [
        r#"<!DOCTYPE html><a href="../../f/a-1-py3-none-any.whl#sha256=00" data-requires-python="&gt;=3">a</a>"#,
        r#"{"meta":{"api-version":"1.0"},"files":[{"filename":"a-1-py3-none-any.whl","url":"/f/a","hashes":{"sha256":"00"}}]}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zip::{Entry, ZipError};

    #[test]
    fn members_of_an_archive_are_found_by_its_directory() {
        let archive = &archives()[0];
        let range = zip::directory(archive, archive.len() as u64).unwrap();
        let directory = &archive[range.start as usize..range.end as usize];
        let stored = zip::find(directory, "c").unwrap();
        let wanted = Entry {
            header_at: 0,
            compressed: 6,
            size: 6,
            deflated: false,
        };
        assert_eq!(stored, wanted);
        let at = zip::data_at(stored, &archive[..30]).unwrap() as usize;
        assert_eq!(&archive[at..at + 6], b"stored");
        let deflated = zip::find(directory, "a/b.onnx").unwrap();
        assert!(deflated.deflated && deflated.size == 3, "{deflated:?}");
        let none = ZipError::NoMember("b".to_owned());
        assert_eq!(zip::find(directory, "b"), Err(none));
    }

    #[test]
    fn an_archive_that_is_cut_or_no_archive_is_refused() {
        let archive = &archives()[0];
        for length in 0..archive.len() {
            let cut = &archive[..length];
            assert!(zip::directory(cut, length as u64).is_err(), "{length}");
        }
        // Its end only, with a directory that lies beyond it.
        let end = &archive[archive.len() - 27..];
        assert_eq!(zip::directory(end, 27), Err(ZipError::NotAnArchive));
        assert_eq!(zip::find(b"PK\x01\x02", "c"), Err(ZipError::NotAnArchive));
    }
}
