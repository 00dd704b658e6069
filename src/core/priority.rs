//! Which threads go first where there are fewer cores than work: those with the lower `nice` value (sched(7)), which Linux keeps for
//! each thread, and gives to the threads and programs that it starts.

use std::io;

/// By how much what may wait is nicer than the server's own threads: enough that a thread of theirs that wakes goes first, and
/// little enough that it still gets a quarter of a core that it shares with one.
pub const MAY_WAIT: i32 = 5;
/// The largest value there is.
const NICEST: i32 = 19;

/// The `nice` value of this thread; that of most where the system does not tell.
pub fn of_this_thread() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// Sets it. A larger one than it has is always allowed, a smaller one needs CAP_SYS_NICE or RLIMIT_NICE.
pub fn set(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(
        None,
        nice.min(NICEST),
    )?)
}

/// Lets the threads that were there go first.
pub fn may_wait() {
    // It is nicer than it was, which is never refused.
    let _ = set(of_this_thread() + MAY_WAIT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_may_wait_is_nicer_than_the_others() {
        let before = of_this_thread();
        let waits = std::thread::spawn(|| {
            may_wait();
            let own = of_this_thread();
            let child = std::thread::spawn(of_this_thread).join().unwrap();
            // Beyond the end there is nothing.
            for _ in 0..8 {
                may_wait();
            }
            (own, child, of_this_thread())
        });
        let nicer = (before + MAY_WAIT).min(NICEST);
        assert_eq!(waits.join().unwrap(), (nicer, nicer, NICEST));
        assert_eq!(of_this_thread(), before);
    }
}
