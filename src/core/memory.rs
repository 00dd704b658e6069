//! What the C library's allocator keeps of memory that was given back to it. It serves the libraries in C; what the program
//! allocates itself is mimalloc's (`src/main.rs`), which gives back within a second what it does not need.
//!
//! glibc keeps freed memory in the arena of the thread that asked for it, below what is still in use, and gives none of
//! it to the kernel by itself. After a flood that is all the flood has taken. [`Surplus`] decides when to ask for it.

use std::time::Duration;

/// How often [`Surplus::is_due`] should be asked.
pub const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What may be kept: not worth the walk through the arenas, which stops whoever allocates from the one that is walked.
const KEPT: u64 = 32 << 20;

/// What the process may grow between two looks and count as quiet.
const QUIET: u64 = 4 << 20;

/// Decides when freed memory is given back: when the process has taken [`KEPT`] bytes more than after the last time and
/// has stopped growing. What is really in use makes it due once and then counts as the new least.
#[derive(Debug, Default)]
pub struct Surplus {
    least: Option<u64>,
    last: u64,
}

impl Surplus {
    /// Whether [`give_back`] should be called, from the bytes that are resident now. [`Surplus::given_back`] says what it did.
    pub fn is_due(&mut self, resident: u64) -> bool {
        let least = self.least.map_or(resident, |least| least.min(resident));
        self.least = Some(least);
        let is_growing = resident > self.last.saturating_add(QUIET);
        self.last = resident;
        !is_growing && resident > least.saturating_add(KEPT)
    }

    /// What is resident after memory was given back.
    pub fn given_back(&mut self, resident: u64) {
        self.least = Some(resident);
        self.last = resident;
    }
}

/// The bytes of this process that are in memory; `None` where the kernel does not say (`VmRSS` of `/proc/self/status`, proc(5)).
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Gives freed memory back to the kernel. Takes about a millisecond for each 10 MiB, so not for threads that serve.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "a function of the C library")]
pub fn give_back() {
    // SAFETY: malloc_trim(3) may be called from any thread at any time; it takes the arenas' locks itself.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries keep no such surplus.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn freed_memory_is_given_back_once_a_flood_is_over() {
        let mut surplus = Surplus::default();
        assert!(!surplus.is_due(57 * MIB));
        assert!(!surplus.is_due(120 * MIB), "still growing");
        assert!(!surplus.is_due(179 * MIB), "still growing");
        assert!(surplus.is_due(173 * MIB));
        surplus.given_back(60 * MIB);
        assert!(!surplus.is_due(62 * MIB));
        assert!(!surplus.is_due(80 * MIB));
    }

    #[test]
    fn memory_in_use_is_walked_through_once() {
        let mut surplus = Surplus::default();
        assert!(!surplus.is_due(57 * MIB));
        assert!(!surplus.is_due(500 * MIB));
        assert!(surplus.is_due(500 * MIB));
        surplus.given_back(499 * MIB);
        assert!(!surplus.is_due(500 * MIB));
        assert!(!surplus.is_due(520 * MIB));
        assert!(!surplus.is_due(100 * MIB), "it shrank by itself");
        assert!(!surplus.is_due(140 * MIB), "growing");
        assert!(surplus.is_due(140 * MIB), "the least is what it shrank to");
    }

    /// Every second piece stays in use, so that no heap shrinks by itself.
    #[cfg(target_env = "gnu")]
    #[test]
    fn what_is_freed_between_what_is_used_leaves_the_process() {
        let pieces: Vec<Vec<u8>> = (0..4096).map(|_| vec![1; 32 << 10]).collect();
        let kept: Vec<_> = pieces.into_iter().step_by(2).collect();
        let before = resident().unwrap();
        give_back();
        let after = resident().unwrap();
        assert!(before > after + 32 * MIB, "{before} → {after}");
        assert_eq!(kept.len(), 2048);
    }
}
