//! Numbers that nobody must guess: tags, branches and Call-IDs, which prove that a message was read (RFC 3261 sections 8.1.1.7
//! and 19.3), and the SSRCs and first sequence numbers of RTP (RFC 3550 section 5.1). They come from the operating system:
//! the state of a fast generator follows from a few of its numbers, which everybody on the way of a call sees.

/// 64 random bits.
pub fn u64() -> u64 {
    // Where the system has no randomness TLS has failed before.
    getrandom::u64().unwrap_or_else(|_| fastrand::u64(..))
}

/// 32 random bits.
pub fn u32() -> u32 {
    u64() as u32
}
