//! Sleeping on a word that two processes map, and waking who sleeps there.
//!
//! This is the way daemon → client: a futex has no counter that a peer could fill and no flag that
//! it could clear, so waking never waits. Every sleep has an end. What the word means is the
//! affair of its owner; see `doorbell`.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::errno::Errno;

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Somebody woke this sleeper (or, as the kernel allows, nobody did: look at the word).
    Woken,
    /// The word was not what the caller had seen, so there was no sleep.
    Changed,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while `word` is `expected`, at most for `timeout`.
///
/// # Errors
/// `EFAULT` when the page of the word cannot be had: the segment it lies in is gone.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> Result<WaitEnd, Errno> {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY:
    // 1. The word is four aligned bytes, valid for the call, because it is borrowed.
    // 2. The kernel only compares it, atomically, which a shared reference to an atomic allows.
    // 3. `limit` is a live timespec; FUTEX_WAIT reads it and does not keep it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const limit,
        )
    };
    match Errno::result(answer) {
        Ok(_) => Ok(WaitEnd::Woken),
        Err(Errno::EAGAIN) => Ok(WaitEnd::Changed),
        Err(Errno::ETIMEDOUT) => Ok(WaitEnd::TimedOut),
        Err(Errno::EINTR) => Ok(WaitEnd::Interrupted),
        Err(errno) => Err(errno),
    }
}

/// Wakes at most `nr_sleepers` of those who sleep on `word`, and says how many that were.
///
/// # Errors
/// `EFAULT` when the page of the word cannot be had.
pub fn wake(word: &AtomicU32, nr_sleepers: u32) -> Result<u32, Errno> {
    let most = i32::try_from(nr_sleepers).unwrap_or(i32::MAX);
    // SAFETY: the word is four aligned bytes, valid for the call; FUTEX_WAKE takes the address as a
    // name and neither reads nor writes there.
    let answer = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, most) };
    let woken = Errno::result(answer)?;
    // The kernel answers at most `most`, so this conversion cannot fail.
    Ok(u32::try_from(woken).unwrap_or(nr_sleepers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::{Acquire, Release};
    use std::time::Instant;

    #[test]
    fn a_word_that_has_moved_on_is_not_waited_for() {
        let word = AtomicU32::new(1);
        assert_eq!(
            wait(&word, 0, Duration::from_secs(60)),
            Ok(WaitEnd::Changed)
        );
    }

    #[test]
    fn a_sleep_ends_by_itself() {
        let word = AtomicU32::new(0);
        let start = Instant::now();
        assert_eq!(
            wait(&word, 0, Duration::from_millis(20)),
            Ok(WaitEnd::TimedOut)
        );
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(wait(&word, 0, Duration::ZERO), Ok(WaitEnd::TimedOut));
    }

    #[test]
    fn waking_nobody_is_no_error() {
        assert_eq!(wake(&AtomicU32::new(0), 1), Ok(0));
    }

    /// Seen to fail: `wake` with FUTEX_PRIVATE_FLAG does not find the (shared) sleeper, which then
    /// times out.
    #[test]
    fn a_sleeper_is_woken() {
        let word = Arc::new(AtomicU32::new(0));
        let sleeper = std::thread::spawn({
            let word = Arc::clone(&word);
            move || {
                let mut ends = Vec::new();
                while word.load(Acquire) == 0 {
                    ends.push(wait(&word, 0, Duration::from_secs(30)).unwrap());
                }
                ends
            }
        });
        // Only a wake that found its sleeper proves anything, so knock until one did.
        let patience = Instant::now() + Duration::from_secs(20);
        let mut found = 0;
        while found == 0 && Instant::now() < patience {
            found = wake(&word, 1).unwrap();
            std::thread::yield_now();
        }
        word.store(1, Release);
        while !sleeper.is_finished() {
            wake(&word, u32::MAX).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(found, 1);
        assert!(!sleeper.join().unwrap().contains(&WaitEnd::TimedOut));
    }
}
