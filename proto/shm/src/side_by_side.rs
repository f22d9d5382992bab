//! Two threads on two processors, for the milliseconds in which both are needed at once.
//!
//! A thread that has just been made may be put on its maker's processor, and stays there: one that is
//! inside a long system call is moved only by the scheduler's next look at its queues, some
//! milliseconds on. Of a section's clearing that is most of the time, so both are told their places,
//! near to the memory where that has a node.

use std::ops::RangeInclusive;

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
    /// Keeps the calling thread on its processor, or on one of `near` if two of those may be had.
    /// `None` where there is no second one for it, or the system says nothing of them: then threads
    /// run where they are put.
    pub(crate) fn keep(near: &[RangeInclusive<u32>]) -> Option<Place> {
        let before = sched_getaffinity(MYSELF).ok()?;
        let (kept, elsewhere) = two_places(&before, sched_getcpu().ok()?, near)?;
        let kept = set_of(&[kept])?;
        sched_setaffinity(MYSELF, &kept)
            .is_ok()
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

/// Where the thread that is `here` stays, and where the other one may go.
fn two_places(
    allowed: &CpuSet,
    here: usize,
    near: &[RangeInclusive<u32>],
) -> Option<(usize, CpuSet)> {
    let is_near = |cpu: &usize| {
        let number = u32::try_from(*cpu);
        near.iter()
            .any(|run| number.is_ok_and(|number| run.contains(&number)))
    };
    let all: Vec<usize> = (0..CpuSet::count())
        .filter(|cpu| allowed.is_set(*cpu) == Ok(true))
        .collect();
    let near: Vec<usize> = all.iter().copied().filter(is_near).collect();
    let mut cpus = if near.len() < 2 { all } else { near };
    let at = cpus.iter().position(|cpu| *cpu == here).unwrap_or(0);
    let kept = (cpus.len() >= 2).then(|| cpus.remove(at))?;
    Some((kept, set_of(&cpus)?))
}

fn set_of(cpus: &[usize]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu)).ok()?;
    Some(set)
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
        let Some(place) = Place::keep(&[]) else {
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

    /// Seen to fail when what is near is not looked at.
    #[test]
    fn both_stand_near_the_memory_where_there_is_room_for_two() {
        let allowed = set_of(&[0, 1, 4, 5, 6]).unwrap();
        let places = |here, near: &[RangeInclusive<u32>]| {
            two_places(&allowed, here, near).map(|(kept, elsewhere)| {
                let is_set = |cpu: &usize| elsewhere.is_set(*cpu) == Ok(true);
                (kept, (0..8).filter(is_set).collect::<Vec<_>>())
            })
        };
        assert_eq!(places(1, &[]), Some((1, vec![0, 4, 5, 6])));
        assert_eq!(places(5, &[4..=7]), Some((5, vec![4, 6])));
        assert_eq!(places(1, &[4..=5, 7..=7]), Some((4, vec![5])));
        // One alone would be shared.
        assert_eq!(places(1, &[6..=7]), Some((1, vec![0, 4, 5, 6])));
        assert_eq!(two_places(&set_of(&[3]).unwrap(), 3, &[]), None);
    }
}
