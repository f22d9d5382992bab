//! Which lane a thread has of each client, and where a dropped page goes.
//!
//! A thread gets a lane at first use, if one is parked, and keeps it until it ends; then the lane
//! is parked for the next thread, with what lies in it, in reach of a recall. Without a lane of
//! its own a thread uses the shared one if it is free at once, else the client's free map. So a
//! page dropped by a destructor that runs after ours finds its way too.

use core::cell::Cell;
use core::ptr;

use crate::attached::{Attached, Seat};
use crate::process::Visit;
use crate::raw::{NR_CLIENTS, RawPage};

thread_local! {
    /// This thread's seats by client index. Without a destructor, so it is one load away.
    static SEATS: [Cell<*const Seat>; NR_CLIENTS] =
        const { [const { Cell::new(ptr::null()) }; NR_CLIENTS] };
    /// The one of them that a page was freed to last.
    static NEAREST: Cell<*const Seat> = const { Cell::new(ptr::null()) };
    /// Gives the seats up when the thread ends.
    static KEEPER: Keeper = const { Keeper };
}

struct Keeper;

impl Drop for Keeper {
    fn drop(&mut self) {
        for index in 0..NR_CLIENTS {
            give_up(index);
        }
    }
}

/// The seat that this thread has at an index, of whichever client.
#[inline(always)]
fn seat_at(index: usize) -> Option<&'static Seat> {
    let seat = SEATS.with(|seats| seats[index & (NR_CLIENTS - 1)].get());
    // SAFETY: null, or a seat that this thread took in `take_seat`; it lives until `give_up`, which
    // clears the entry first. References are used up before that: `give_up` is called at the end
    // of the thread and in `take_seat` only, whose callers hold none.
    unsafe { seat.as_ref() }
}

fn give_up(index: usize) {
    let seat = seat_at(index);
    SEATS.with(|seats| seats[index].set(ptr::null()));
    NEAREST.set(ptr::null());
    drop(seat.and_then(Seat::stand_up));
}

/// This thread's seat of a client, if it has one already.
#[inline(always)]
pub(crate) fn own_seat(attached: &Attached) -> Option<&'static Seat> {
    seat_at(attached.index() as usize).filter(|seat| seat.is_of(attached))
}

/// Gets this thread a seat of a client, if one is parked and the thread is not about to end.
#[cold]
pub(crate) fn take_seat(attached: &Attached) -> Option<&'static Seat> {
    if let Some(seat) = own_seat(attached) {
        return Some(seat);
    }
    KEEPER.try_with(|_| ()).ok()?;
    let index = attached.index() as usize;
    // Of a former client with the same index.
    give_up(index);
    let seat = attached.sit()?;
    SEATS.with(|seats| seats[index].set(seat));
    Some(seat)
}

/// Frees a page of any client: what dropping one does.
#[inline]
pub(crate) fn free(raw: RawPage) {
    // The seat used last and a comparison, though the table would do: the branch is guessed, and
    // so nothing waits for the word to come out of where it was stored just before.
    //
    // SAFETY: as in `seat_at`, whose answer it was.
    if let Some(seat) = unsafe { NEAREST.get().as_ref() }
        && seat.lane.is_ours(raw.bits())
        && seat.lane.keep_usual_word(raw.bits())
    {
        return;
    }
    free_elsewhere(raw);
}

/// Frees a page of another client than the last one, or when the lane does not just keep it.
#[cold]
#[inline(never)]
fn free_elsewhere(raw: RawPage) {
    if let Some(seat) = seat_at(raw.client() as usize) {
        NEAREST.set(seat);
        if seat.lane.put_word(raw.bits()) {
            return;
        }
    }
    free_slowly(raw);
}

/// Frees pages for which the caller's lane is the wrong one.
#[cold]
pub(crate) fn free_run_slowly(words: &[u64]) {
    words
        .iter()
        .filter(|&&word| word != 0)
        .for_each(|&word| free(RawPage::from_bits(word)));
}

/// Frees a page that this thread has no lane for, or one of a client that is gone.
#[cold]
fn free_slowly(raw: RawPage) {
    let Some(visit) = Visit::to(raw.client()) else {
        return;
    };
    let attached = visit.attached();
    if !attached.is_gone() {
        let own = take_seat(attached).is_some_and(|seat| seat.lane.put_word(raw.bits()));
        if own {
            return;
        }
        let shared = attached.try_share();
        if shared.is_some_and(|shared| shared.lane.put_word(raw.bits())) {
            return;
        }
    }
    attached.free_into_map(raw);
}
