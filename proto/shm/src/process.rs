//! The clients of this process: where their pages' bytes are, and who serves their frees.
//!
//! A page word names its client by an index below 8, so there are at most 8 clients at a time.
//! The table here is global, because a page is only a word: touching or dropping one must find
//! everything by it. Steps: [`reserve_client_index`], then attach, then
//! [`ClientIndex::register`]; the client is gone with the last [`ClientHandle`], and its index can
//! be used again once no page of it is left.
//!
//! Fork: what the fast paths look at lies in memory that a forked child finds wiped, so there
//! dropping a page does nothing and touching one panics.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::attached::Attached;
pub use crate::client_handle::{ClientHandle, ClientStats, LocalLane, Registration};
use crate::mapping::{MapError, Mapping};
use crate::raw::{NR_CLIENTS, NR_ZONES, RawPage};
use crate::sync::{Acquire, Relaxed, Release, SeqCst};
pub use crate::zone_bytes::ZoneBytes;

/// Why no further client can be had in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// All indices are used by clients, or by pages of clients that are gone.
    #[error("this process has {NR_CLIENTS} clients, or pages of former ones, already")]
    TooManyClients,
    /// This is a forked child of a process that has clients.
    #[error("a forked child of a process with clients can have none itself")]
    Forked,
    /// The memory that a child finds wiped could not be had.
    #[error("the process's table of clients could not be mapped")]
    Map(#[from] MapError),
}

/// What the fast paths look at; all zeros in a forked child.
#[repr(C)]
struct Table {
    /// 1, but 0 in a forked child.
    alive: AtomicU32,
    reserved: AtomicU32,
    zones: [[ZoneEntry; NR_ZONES]; NR_CLIENTS],
}

/// One zone of one client. All zeros: no page lies in it.
#[repr(C)]
#[derive(Debug)]
struct ZoneEntry {
    /// Address that pfn 0 would have, modulo 2^64.
    pfn_zero: AtomicU64,
    /// First pfn, as a count of pages.
    start: AtomicU64,
    /// Pages from there on.
    nr_pages: AtomicU64,
    /// A page has `2^page_shift` bytes.
    page_shift: AtomicU32,
    reserved: AtomicU32,
}

const _: () = assert!(size_of::<Table>() == 8 + 64 * 32);

/// The table, in wiped memory; null before the first client. Never freed.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// A client of this process, found without a lock.
struct Slot {
    current: AtomicPtr<Attached>,
    nr_visitors: AtomicU32,
}

static SLOTS: [Slot; NR_CLIENTS] = [const {
    Slot {
        current: AtomicPtr::new(ptr::null_mut()),
        nr_visitors: AtomicU32::new(0),
    }
}; NR_CLIENTS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    Reserved,
    Registered,
    /// The last handle is gone; pages may be left.
    Gone,
}

/// State of each slot; held while one changes, never on a path that frees.
static STATES: Mutex<[SlotState; NR_CLIENTS]> = Mutex::new([SlotState::Free; NR_CLIENTS]);

/// An index that no other client of this process has; given back when dropped unregistered.
#[derive(Debug)]
pub struct ClientIndex(usize);

/// Takes an index for a new client, making the table if this is the first one.
pub fn reserve_client_index() -> Result<ClientIndex, ReserveError> {
    if is_child() {
        return Err(ReserveError::Forked);
    }
    let mut states = lock_states();
    make_table()?;
    for (index, state) in states.iter_mut().enumerate() {
        if *state == SlotState::Gone {
            try_release(index, state);
        }
    }
    let free = states.iter().position(|&state| state == SlotState::Free);
    let index = free.ok_or(ReserveError::TooManyClients)?;
    states[index] = SlotState::Reserved;
    Ok(ClientIndex(index))
}

impl ClientIndex {
    /// The index, below 8; the daemon writes it into the page words of this client's grants.
    pub fn get(&self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// Enters an attached client, so that its pages can be had, touched and dropped.
    pub fn register(self, registration: Registration) -> Result<ClientHandle, MapError> {
        let attached = Attached::new(self.get(), registration)?;
        let table = table().expect("reserving an index has made the table");
        for zone in attached.zones() {
            if let Some(entry) = table.zones[self.0].get(zone.index() as usize) {
                entry.set(zone);
            }
        }
        let mut states = lock_states();
        states[self.0] = SlotState::Registered;
        // SYNC(process.current): the client is whole before it is found.
        SLOTS[self.0]
            .current
            .store(Arc::into_raw(attached.clone()).cast_mut(), Release);
        core::mem::forget(self);
        Ok(ClientHandle::new(attached))
    }
}

impl Drop for ClientIndex {
    fn drop(&mut self) {
        if !is_child() {
            lock_states()[self.0] = SlotState::Free;
        }
    }
}

impl ZoneEntry {
    fn set(&self, zone: &ZoneBytes) {
        self.pfn_zero.store(zone.pfn_zero_address() as u64, Relaxed);
        self.start.store(zone.start_pfn(), Relaxed);
        self.page_shift.store(zone.page_shift(), Relaxed);
        // SYNC(process.zone): the rest is set before pages are in range.
        self.nr_pages.store(zone.nr_pages(), Release);
    }
}

/// Whether this is a forked child of a process that had made its table: nothing of the parent's
/// clients may be touched here.
pub fn is_child() -> bool {
    // SYNC(process.table): pairs with `make_table`.
    table().is_some_and(|table| table.alive.load(Acquire) == 0)
}

/// Where a block's bytes are and how many.
///
/// # Panics
/// If it does not lie in a zone of its client: in a forked child, where none does.
#[inline]
pub(crate) fn bytes_of(raw: RawPage) -> (*mut u8, usize) {
    match find_bytes(raw) {
        Some(range) => range,
        None => unreachable_page(raw),
    }
}

/// Where a block's bytes are, if it lies in a zone of its client.
#[inline]
pub(crate) fn find_bytes(raw: RawPage) -> Option<(*mut u8, usize)> {
    let zone = &table()?.zones[raw.client() as usize][raw.zone() as usize];
    let nr_pages = 1u64 << raw.order();
    // SYNC(process.zone): pairs with `set`.
    let span = zone.nr_pages.load(Acquire);
    let offset = u64::from(raw.pfn()).wrapping_sub(zone.start.load(Relaxed));
    if offset >= span || nr_pages > span - offset {
        return None;
    }
    let shift = zone.page_shift.load(Relaxed);
    let address = zone
        .pfn_zero
        .load(Relaxed)
        .wrapping_add(u64::from(raw.pfn()) << shift);
    // The table is of a 64-bit process: addresses and lengths of zones fit both ways.
    let (Ok(address), Ok(len)) = (usize::try_from(address), usize::try_from(nr_pages << shift))
    else {
        return None;
    };
    Some((ptr::with_exposed_provenance_mut(address), len))
}

#[cold]
#[inline(never)]
fn unreachable_page(raw: RawPage) -> ! {
    panic!("{raw:?} is in no zone of this process; a forked child has no pages")
}

/// A look at a client that keeps it from being taken down.
pub(crate) struct Visit {
    slot: &'static Slot,
    attached: &'static Attached,
}

impl Visit {
    /// The client at an index, registered or gone. It takes no lock.
    pub(crate) fn to(index: u32) -> Option<Visit> {
        if is_child() {
            return None;
        }
        let slot = SLOTS.get(index as usize)?;
        slot.nr_visitors.fetch_add(1, Relaxed);
        // SYNC(process.visit): pairs with the fence in `take_down`: one of the two sees the other.
        core::sync::atomic::fence(SeqCst);
        // SYNC(process.current): pairs with `register`.
        let current = slot.current.load(Acquire);
        // SAFETY: a client whose pointer was read between these two changes of the count is not
        // dropped: `take_down` takes the pointer away first and then sees the count.
        match unsafe { current.as_ref() } {
            Some(attached) => Some(Visit { slot, attached }),
            None => {
                // SYNC(process.leave): nothing was touched.
                slot.nr_visitors.fetch_sub(1, Release);
                None
            }
        }
    }

    pub(crate) fn attached(&self) -> &Attached {
        self.attached
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // SYNC(process.leave): whatever the visitor did comes before the client's end.
        self.slot.nr_visitors.fetch_sub(1, Release);
    }
}

/// The last handle of a client has gone: it takes no more pages, and its lanes no more frees.
pub(crate) fn retire(attached: &Attached) {
    let mut states = lock_states();
    attached.retire();
    if let Some(state) = states.get_mut(attached.index() as usize) {
        *state = SlotState::Gone;
        try_release(attached.index() as usize, state);
    }
}

/// Frees the index of a client that is gone if no page of it is left.
fn try_release(index: usize, state: &mut SlotState) {
    let is_empty = u32::try_from(index)
        .ok()
        .and_then(Visit::to)
        .is_none_or(|visit| visit.attached().nr_held() == 0);
    if !is_empty {
        return;
    }
    if let Some(table) = table() {
        for zone in &table.zones[index] {
            zone.nr_pages.store(0, Relaxed);
        }
    }
    take_down(&SLOTS[index]);
    *state = SlotState::Free;
}

/// Lets go of a slot's client. Threads that have a lane of it keep it until they notice.
fn take_down(slot: &Slot) {
    let current = slot.current.swap(ptr::null_mut(), Relaxed);
    // SYNC(process.visit): pairs with the fence in `Visit::to`.
    core::sync::atomic::fence(SeqCst);
    // SYNC(process.leave): pairs with the end of visits.
    let is_visited = slot.nr_visitors.load(Acquire) != 0;
    if current.is_null() || is_visited {
        // With a visitor inside, the client is left where it is for ever. That happens only to a
        // thread that is stopped in the last steps of its last free.
        return;
    }
    // SAFETY: the pointer came from `Arc::into_raw` in `register`, and was taken out of the slot
    // just now, so this is the one time that this reference is given back. No visitor uses it.
    drop(unsafe { Arc::from_raw(current) });
}

/// A page has left this process by another way than being freed.
pub(crate) fn count_taken_away(raw: RawPage) {
    if let Some(visit) = Visit::to(raw.client()) {
        visit.attached().count_taken_away();
    }
}

fn lock_states() -> MutexGuard<'static, [SlotState; NR_CLIENTS]> {
    STATES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline(always)]
fn table() -> Option<&'static Table> {
    // SYNC(process.table): pairs with `make_table`.
    let table = TABLE.load(Acquire);
    // SAFETY: null or a table that was made by `make_table` and is never freed; all its fields are
    // atomics, for which any bits do, so also those of a child that finds it wiped.
    unsafe { table.as_ref() }
}

/// Makes the table if there is none; the caller holds the lock on the states.
fn make_table() -> Result<(), MapError> {
    if table().is_some() {
        return Ok(());
    }
    let mapping = Attached::wiped_memory(size_of::<Table>())?;
    let base = mapping.base().cast::<Table>().as_ptr();
    core::mem::forget(mapping);
    // SAFETY: the mapping is page-aligned, at least as long as the table, zeroed (which is a
    // valid table), and never unmapped, since it was forgotten.
    unsafe { &*base }.alive.store(1, Relaxed);
    // SYNC(process.table): the table is whole before it is found.
    TABLE.store(base, Release);
    Ok(())
}

/// Memory that a forked child finds wiped; under Miri, which has no such advice, plain heap.
impl Attached {
    pub(crate) fn wiped_memory(len_bytes: usize) -> Result<Mapping, MapError> {
        if cfg!(miri) {
            Mapping::heap(len_bytes)
        } else {
            Mapping::wiped_on_fork(len_bytes)
        }
    }
}
