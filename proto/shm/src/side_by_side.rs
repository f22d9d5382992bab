//! Two threads on two processors, for the milliseconds in which both are needed at once.
//!
//! A thread that has just been made may be put on its maker's processor, and stays there: one that is
//! inside a long system call is moved only by the scheduler's next look at its queues, some
//! milliseconds on. Of a section's clearing that is most of the time, so both are told their places.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// The thread that asks.
const MYSELF: Pid = Pid::from_raw(0);

/// Where the thread that made it may run, and where it was. That thread stays there until this is
/// dropped, and may then run where it could before.
#[derive(Debug)]
pub(crate) struct Place {
    before: CpuSet,
    elsewhere: CpuSet,
}

impl Place {
    /// Keeps the calling thread on its processor. `None` where there is no second one for it, or the
    /// system says nothing of them: then threads run where they are put.
    pub(crate) fn keep() -> Option<Place> {
        let before = sched_getaffinity(MYSELF).ok()?;
        let here = sched_getcpu().ok()?;
        let mut elsewhere = before;
        elsewhere.unset(here).ok()?;
        let has_other = (0..CpuSet::count()).any(|cpu| elsewhere.is_set(cpu) == Ok(true));
        let mut kept = CpuSet::new();
        kept.set(here).ok()?;
        (has_other && sched_setaffinity(MYSELF, &kept).is_ok())
            .then_some(Place { before, elsewhere })
    }

    /// Sends the calling thread, another than the one that keeps its place, to any other processor.
    pub(crate) fn leave(&self) {
        // Without leave to do so it stays where it is: slower, no more.
        let _ = sched_setaffinity(MYSELF, &self.elsewhere);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What was allowed before is allowed now.
        let _ = sched_setaffinity(MYSELF, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::test_support::skip::skip;

    /// Seen to fail when the helper does not leave, and when nothing is given back.
    #[test]
    fn two_threads_stand_on_two_processors_and_are_free_afterwards() {
        let before = sched_getaffinity(MYSELF).unwrap();
        let Some(place) = Place::keep() else {
            return skip(
                "two_threads_stand_on_two_processors_and_are_free_afterwards",
                "one processor",
            );
        };
        let here = sched_getcpu().unwrap();
        let there = thread::scope(|scope| {
            let helper = scope.spawn(|| {
                place.leave();
                sched_getcpu().unwrap()
            });
            helper.join().unwrap()
        });
        assert_ne!(here, there);
        assert_eq!(sched_getcpu(), Ok(here));
        drop(place);
        assert_eq!(sched_getaffinity(MYSELF).unwrap(), before);
    }
}
