//! Populating a range of a zone's file by faults, in several threads.
//!
//! `fallocate` holds the file's lock, so two of them on one file take turns; and of shared memory it
//! makes small pages only. Faults of one file go side by side, and most of what populating takes is
//! the clearing of the pages. They are made inside a system call ([`Advice::PopulateWrite`]), which
//! answers an error where a store would have ended in a signal. Each thread has its processor
//! ([`Place`]): left to the scheduler both often shared one, and two took as long as one.

use std::ops::Range;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;

use crate::node_bound::NodeBound;
use crate::region::Region;
use crate::side_by_side::Place;
use crate::span::{Access, Advice, Span};

/// Threads that fill one range side by side: on two processors a section of huge pages takes a
/// little more than half of the time. More of them have not been measured, and would take processors
/// from the clients.
const THREADS: usize = 2;

/// What a thread takes at a time: one that gets no processor holds the other up no longer than that.
const CHUNK_BYTES: usize = 8 << 20;

/// A helper is in its place after a wake-up or two; one that cannot get there now comes later.
const PLACED_WITHIN: Duration = Duration::from_millis(1);

/// Allocates what lacks in `range`, whole pages of the file, and gives the map that it was done by. The
/// threads that are made for it are `bound` as the calling one is.
///
/// # Errors
/// The first answer of the system that was a no; a part may have been allocated.
pub(crate) fn fill(
    region: &Region,
    range: Range<u64>,
    advice: Option<Advice>,
    bound: &NodeBound,
) -> Result<Span, Errno> {
    fill_by(region, range, advice, bound, fill_chunk)
}

/// The same with what is to be done with each chunk.
fn fill_by(
    region: &Region,
    range: Range<u64>,
    advice: Option<Advice>,
    bound: &NodeBound,
    fill_chunk: impl Fn(&Span, usize, usize) -> Result<(), Errno> + Sync,
) -> Result<Span, Errno> {
    let len = usize::try_from(range.end - range.start).map_err(|_| Errno::EFBIG)?;
    let page_bytes = region.pages().map_align_bytes();
    let span = Span::reserve(len, page_bytes)?;
    span.map(0, len, region.as_fd(), range.start, Access::ReadWrite)?;
    if let Some(advice) = advice {
        span.advise(0, len, advice)?;
    }
    let chunk = CHUNK_BYTES.max(page_bytes);
    let next = AtomicUsize::new(0);
    let work = || fill_chunks(&span, chunk, &next, &fill_chunk);
    let helpers = THREADS.min(len.div_ceil(chunk)).saturating_sub(1);
    let place = (helpers > 0)
        .then(|| Place::keep(bound.processors()))
        .flatten();
    let (placed, are_placed) = mpsc::channel();
    let help = || {
        if let Some(place) = &place {
            place.leave();
        }
        // Nobody waits any more: then it was late.
        let _ = placed.send(());
        work()
    };
    std::thread::scope(|scope| {
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, help);
        // Without a thread to be had it takes longer, no more.
        let helpers: Vec<_> = (0..helpers).map(spawn).filter_map(Result::ok).collect();
        for _ in &helpers {
            // Inside a long call this thread would keep a helper from leaving its processor.
            let _ = are_placed.recv_timeout(PLACED_WITHIN);
        }
        // All are waited for: the first error is told, and none goes on behind our back.
        helpers.into_iter().fold(work(), |answer, helper| {
            answer.and(helper.join().unwrap_or(Err(Errno::EIO)))
        })
    })?;
    Ok(span)
}

/// Fills chunks that nobody has taken, until there is none or one could not be filled.
fn fill_chunks(
    span: &Span,
    chunk: usize,
    next: &AtomicUsize,
    fill_chunk: impl Fn(&Span, usize, usize) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let len = span.len_bytes();
    loop {
        let from = next.fetch_add(chunk, Ordering::Relaxed);
        if from >= len {
            return Ok(());
        }
        let filled = fill_chunk(span, from, chunk.min(len - from));
        if filled.is_err() {
            // The others need not go on.
            next.store(len, Ordering::Relaxed);
            return filled;
        }
    }
}

fn fill_chunk(span: &Span, from: usize, len: usize) -> Result<(), Errno> {
    loop {
        match span.advise(from, len, Advice::PopulateWrite) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::node_bound::testing::is_bound_to;
    use crate::region::FilePages;
    use crate::test_support::skip::skip;

    fn unbound() -> NodeBound {
        NodeBound::to(None).unwrap()
    }

    /// Seen to fail when the thread is not bound.
    #[test]
    fn each_thread_that_fills_is_bound_to_the_node() {
        let name = "each_thread_that_fills_is_bound_to_the_node";
        let Ok(bound) = NodeBound::to(Some(0)) else {
            return skip(name, "no memory policies here");
        };
        let region = Region::for_zone("bound", 1 << 30, FilePages::Shmem).unwrap();
        // Each of two threads has one of the two chunks.
        let chunk = u64::try_from(CHUNK_BYTES).unwrap();
        let nr_here = AtomicUsize::new(0);
        let deadline = Instant::now() + Duration::from_secs(10);
        let looked = |_: &Span, _: usize, _: usize| {
            nr_here.fetch_add(1, Ordering::Relaxed);
            while nr_here.load(Ordering::Relaxed) < THREADS {
                if Instant::now() > deadline {
                    return Err(Errno::ETIME);
                }
                std::thread::yield_now();
            }
            match is_bound_to(0) {
                Some(true) => Ok(()),
                _ => Err(Errno::EDOM),
            }
        };
        let filled = fill_by(&region, 0..2 * chunk, None, &bound, looked);
        assert_eq!(filled.map(drop), Ok(()));
    }

    /// Seen to fail with chunks that end before the range does.
    #[test]
    fn every_page_of_a_range_is_made_and_none_beside_it() {
        let region = Region::for_zone("faults", 1 << 30, FilePages::Shmem).unwrap();
        let chunk = u64::try_from(CHUNK_BYTES).unwrap();
        // Not a multiple of the chunk, and not at the file's start.
        let range = chunk..4 * chunk + (2 << 20);
        drop(fill(&region, range.clone(), None, &unbound()).unwrap());
        assert_eq!(region.allocated_bytes(), Ok(range.end - range.start));
    }

    #[test]
    fn what_lies_beyond_the_file_is_an_error() {
        let region = Region::for_zone("beyond", 1 << 24, FilePages::Shmem).unwrap();
        let beyond = fill(&region, 0..1 << 26, None, &unbound());
        assert!(beyond.is_err());
    }
}
