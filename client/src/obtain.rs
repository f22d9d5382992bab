//! How pages are come by: the lane first, the remainder by one call.
//!
//! The array's semantics are those of the kernel's `alloc_pages_bulk`: only empty slots are
//! filled, in order of index, and the answer is how far from the start the array is populated. A
//! full array and one of no slots cost a look. A short answer is ordinary; at least one page comes
//! if one can be had within the deadline.

use std::time::{Duration, Instant};

use hugepool_shm::{
    futex,
    lane_client::{Miss, Taken},
    process,
    raw::Class,
};

use crate::{Bulk, Page, Request, Shortfall, remote::Want};

/// Pauses between two looks at a lane.
const NR_PAUSES: u32 = 8;
/// How long a lane may be waited for that the daemon was told to fill.
const MOMENT: Duration = Duration::from_micros(300);
/// Blocks that a lane may come to hold in that time; more are asked for by call at once.
const LANE_WORTH: usize = 256;

/// One block.
#[inline]
pub(crate) fn one(request: &Request<'_>, may_wait: bool) -> Result<Page, Shortfall> {
    let miss = match class(request) {
        Some(class) => match request.client.inner().lanes.take_one(class) {
            Ok(page) => return Ok(page),
            Err(miss) => Some(miss),
        },
        None => None,
    };
    one_after(request, miss, may_wait)
}

/// The same after the lane has missed, or was not asked.
#[cold]
pub(crate) fn one_after(
    request: &Request<'_>,
    miss: Option<Miss>,
    may_wait: bool,
) -> Result<Page, Shortfall> {
    let mut slot = [None];
    let taken = Taken { count: 0, miss };
    let shortfall = remainder(request, taken, may_wait, &mut slot, 1);
    let [page] = slot;
    page.ok_or(shortfall.unwrap_or(Shortfall::DaemonAway))
}

/// Fills the empty slots of an array.
#[inline]
pub(crate) fn array(request: &Request<'_>, slots: &mut [Option<Page>], may_wait: bool) -> Bulk {
    let taken = match class(request) {
        Some(class) => request.client.inner().lanes.fill(class, slots),
        None => Taken {
            count: 0,
            miss: Some(Miss::Empty),
        },
    };
    match taken.miss {
        None => Bulk::all(slots.len()),
        Some(_) => array_after(request, slots, taken, may_wait),
    }
}

/// The same after the lane has given what it has.
#[cold]
pub(crate) fn array_after(
    request: &Request<'_>,
    slots: &mut [Option<Page>],
    taken: Taken,
    may_wait: bool,
) -> Bulk {
    let nr_missing = slots.iter().filter(|slot| slot.is_none()).count();
    let shortfall = match nr_missing {
        0 => None,
        _ => remainder(request, taken, may_wait, slots, nr_missing),
    };
    let populated = slots
        .iter()
        .position(Option::is_none)
        .unwrap_or(slots.len());
    Bulk {
        populated,
        shortfall,
    }
}

/// Appends blocks to a list.
#[inline]
pub(crate) fn list(request: &Request<'_>, n: usize, list: &mut Vec<Page>, may_wait: bool) -> Bulk {
    let taken = match class(request) {
        Some(class) => request.client.inner().lanes.take_into(class, n, list),
        None => Taken {
            count: 0,
            miss: Some(Miss::Empty),
        },
    };
    match taken.miss {
        None => Bulk::all(n),
        Some(_) => list_after(request, n, list, taken, may_wait),
    }
}

/// The same after the lane has given what it has.
#[cold]
pub(crate) fn list_after(
    request: &Request<'_>,
    n: usize,
    list: &mut Vec<Page>,
    taken: Taken,
    may_wait: bool,
) -> Bulk {
    let nr_missing = n - taken.count;
    if nr_missing == 0 {
        return Bulk::all(n);
    }
    let mut slots = empty_slots(nr_missing);
    let shortfall = remainder(request, taken, may_wait, &mut slots, nr_missing);
    let nr_before = list.len();
    list.extend(slots.into_iter().flatten());
    Bulk {
        populated: taken.count + list.len() - nr_before,
        shortfall,
    }
}

fn empty_slots(count: usize) -> Vec<Option<Page>> {
    std::iter::repeat_with(|| None).take(count).collect()
}

/// All or nothing.
pub(crate) fn exact(request: &Request<'_>, n: usize) -> Result<Vec<Page>, Shortfall> {
    let mut pages = Vec::new();
    let taken = match class(request) {
        Some(class) => request.client.inner().lanes.take_into(class, n, &mut pages),
        None => Taken {
            count: 0,
            miss: Some(Miss::Empty),
        },
    };
    let nr_missing = n - taken.count;
    if nr_missing == 0 {
        return Ok(pages);
    }
    let mut slots = empty_slots(nr_missing);
    let shortfall = match may_call(request, taken.miss, true) {
        Err(why) => Some(why),
        // It waits for all of them.
        Ok(()) => match call(request, &mut slots, nr_missing, true, end_of(request)) {
            (count, _) if count == nr_missing => None,
            (_, shortfall) => Some(shortfall.unwrap_or(Shortfall::DaemonAway)),
        },
    };
    pages.extend(slots.into_iter().flatten());
    match shortfall {
        None => Ok(pages),
        Some(why) => {
            request.client.free_pages_bulk(pages);
            Err(why)
        }
    }
}

/// The lanes' class of the request, if lanes can serve it.
#[inline]
fn class(request: &Request<'_>) -> Option<Class> {
    if request.zone.is_some() {
        return None;
    }
    let order = u32::from(request.order.get());
    Class::new(
        order,
        request.migratetype,
        request.client.inner().shape.pageblock_order,
    )
}

/// One call for the `nr_missing` empty ones among the slots; and where nothing was had at all and
/// the caller may wait, a second one that waits for the first block.
fn remainder(
    request: &Request<'_>,
    taken: Taken,
    may_wait: bool,
    slots: &mut [Option<Page>],
    nr_missing: usize,
) -> Option<Shortfall> {
    if let Err(why) = may_call(request, taken.miss, may_wait) {
        return Some(why);
    }
    let (mut nr_missing, mut nr_had) = (nr_missing, taken.count);
    if let Some(class) = class(request) {
        // So that the lane has more next time, or in a moment.
        let nr_wanted = u32::try_from(nr_missing).unwrap_or(u32::MAX);
        request.client.inner().lanes.want(class, nr_wanted);
        let nr_filled = look_again(request, class, slots, nr_missing);
        nr_missing -= nr_filled;
        nr_had += nr_filled;
        if nr_missing == 0 {
            return None;
        }
    }
    let ends = end_of(request);
    // With a page in hand there is nothing to wait for.
    let may_wait = nr_had == 0 && !request.deadline.is_zero();
    let only_one = nr_missing == 1;
    let (count, shortfall) = call(request, slots, nr_missing, may_wait && only_one, ends);
    if count > 0 || only_one || !may_wait || !may_help(shortfall) {
        return shortfall;
    }
    match call(request, slots, 1, true, ends) {
        // The first reason still holds for the rest.
        (1.., _) => shortfall,
        (0, later) => later.or(shortfall),
    }
}

/// Looks at the lane for a while: the daemon may be filling it just now. Returns how many of the
/// empty slots it has filled.
fn look_again(
    request: &Request<'_>,
    class: Class,
    slots: &mut [Option<Page>],
    nr_missing: usize,
) -> usize {
    let inner = request.client.inner();
    let mut nr_filled = 0;
    let mut look = |nr_filled: &mut usize| {
        let taken = inner.lanes.fill(class, slots);
        *nr_filled += taken.count;
        let is_open = matches!(taken.miss, None | Some(Miss::Empty));
        is_open && *nr_filled < nr_missing
    };
    let begun = Instant::now();
    while begun.elapsed() < inner.spin {
        for _ in 0..NR_PAUSES {
            std::hint::spin_loop();
        }
        if !look(&mut nr_filled) {
            return nr_filled;
        }
    }
    if nr_missing > LANE_WORTH {
        return nr_filled;
    }
    // It was rung for, and is quicker at filling a lane than at answering a call; it says so also
    // if it has nothing to fill it with.
    let seen = inner.control.begin_wait();
    if look(&mut nr_filled) {
        // However it ends, the next look says what there is.
        let _ = futex::wait(inner.control.wake_word(), seen, MOMENT);
        look(&mut nr_filled);
    }
    inner.control.end_wait();
    nr_filled
}

/// Until when the daemon may answer. Who does not want to wait for pages still has to wait for an
/// answer.
fn end_of(request: &Request<'_>) -> Instant {
    let patience = match request.deadline {
        Duration::ZERO => request.client.deadline(),
        deadline => deadline,
    };
    // One too long for the clock is as good as a day.
    let now = Instant::now();
    now.checked_add(patience)
        .unwrap_or(now + Duration::from_secs(86_400))
}

/// Whether waiting may change this answer.
fn may_help(shortfall: Option<Shortfall>) -> bool {
    shortfall.is_some_and(|why| why.is_transient() && why != Shortfall::DaemonAway)
        || matches!(shortfall, Some(Shortfall::Quota { .. }))
}

/// Whether the daemon may be asked, after a lane has missed.
fn may_call(request: &Request<'_>, miss: Option<Miss>, may_wait: bool) -> Result<(), Shortfall> {
    // First: in a fork nothing of the client may be touched.
    if process::is_child() {
        return Err(Shortfall::Forked);
    }
    let inner = request.client.inner();
    let max_order = inner.max_order;
    if request.order.get() > max_order {
        return Err(Shortfall::OrderTooLarge { max_order });
    }
    if inner.control.closed() != 0 {
        return Err(Shortfall::Detached);
    }
    match miss {
        Some(Miss::Detached) => Err(Shortfall::Detached),
        // A lane of the thread's own is busy only in a signal handler; the shared one may just
        // be used by another thread, and then the daemon is asked.
        Some(Miss::Reentered) if !inner.lanes.local().is_shared() => Err(Shortfall::Reentered),
        Some(Miss::Closed) if !may_wait => Err(Shortfall::Recalled),
        _ if !may_wait => Err(Shortfall::Deadline {
            waited: Duration::ZERO,
        }),
        _ => Ok(()),
    }
}

/// One call for `n` blocks; what it brings goes into the empty slots in order of index.
fn call(
    request: &Request<'_>,
    slots: &mut [Option<Page>],
    n: usize,
    may_wait: bool,
    ends: Instant,
) -> (usize, Option<Shortfall>) {
    let inner = request.client.inner();
    inner.follow_sections();
    let mut empty = slots.iter_mut().filter(|slot| slot.is_none());
    let mut nr_left = n;
    let mut may_retry = true;
    loop {
        let left = ends.saturating_duration_since(Instant::now());
        let want = Want {
            zone: request.zone.unwrap_or_default(),
            order: request.order.get(),
            migratetype: request.migratetype,
            nr_blocks: nr_left,
            urgent: request.urgent,
            wait: if may_wait { left } else { Duration::ZERO },
            patience: left,
        };
        let asked = want.nr_asked();
        let lent = inner.remote.alloc_bulk(&want);
        let mut nr_lent = 0;
        inner.adopt(&lent.runs, request.migratetype, &mut |page| {
            // A block too many is dropped, and so freed.
            if let Some(slot) = empty.next() {
                *slot = Some(page);
                nr_lent += 1;
            }
        });
        nr_left -= nr_lent.min(nr_left);
        // Once: a section that cannot be mapped is news each time.
        let has_news =
            may_retry && lent.shortfall == Some(Shortfall::NotMapped) && inner.follow_sections();
        may_retry &= !has_news;
        if nr_left == 0 || (nr_lent < asked && !has_news) {
            let shortfall = if nr_left == 0 { None } else { lent.shortfall };
            return (n - nr_left, shortfall);
        }
    }
}
