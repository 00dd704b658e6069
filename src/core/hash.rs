//! SHA-256 of files, and hexadecimal output.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// The SHA-256 of everything left to read.
pub fn sha256(reader: &mut impl Read) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    io::copy(
        &mut io::BufReader::with_capacity(256 * 1024, reader),
        &mut hash,
    )?;
    Ok(hash.finalize().into())
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
