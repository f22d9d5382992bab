//! A ring of tickets between two clients: one sends, one receives, each may die at any time.
//!
//! It lies in a file of its own, which the daemon makes and passes to both. Whoever waits says so,
//! looks once more, and sleeps on a futex with an end; whoever has news wakes only one that sleeps.
//! An end that is let go says so; of one that has died, or was shut out, the daemon says so. What
//! was sent before is still received. A wrong word of the peer's costs the two of them the channel,
//! and nobody else anything.
//!
//! Shape: [`RingHeader`], 4 KiB, then the slots, 8 bytes each, a power of two of them.

use core::cell::Cell;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use crate::futex;
use crate::mapping::{MapError, Mapping, Overlay};
use crate::ring::Ring;
use crate::slots::as_uninit;
use crate::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release, SeqCst, fence};
pub use crate::ticket::RING_TICKETS_MAX;
use crate::ticket::Ticket;

/// First word of a ring: `hugering` in ASCII, read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"hugering");
/// Looks between two looks at the clock.
const SPINS_PER_LOOK: u32 = 64;

/// First 4 KiB of a ring.
#[repr(C, align(4096))]
struct RingHeader {
    magic: AtomicU64,
    capacity: AtomicU32,
    reserved0: [AtomicU32; 13],
    sender: End,
    receiver: End,
    /// Daemon: which ends are gone, [`SENDER_GONE`] and [`RECEIVER_GONE`].
    gone: AtomicU32,
    reserved1: [AtomicU32; 15 + 928],
}

/// What one end writes.
#[repr(C, align(64))]
struct End {
    /// Tickets sent or received so far, modulo 2^32.
    cursor: AtomicU32,
    /// 1 once it has let go.
    closed: AtomicU32,
    reserved: [AtomicU32; 14],
    /// 1 while it sleeps, on this word; who takes the 1 away wakes it.
    sleeping: AtomicU32,
    reserved_sleeping: [AtomicU32; 15],
}

// SAFETY: `repr(C)`, atomics only, every gap is a named field (asserted below), aligned to 4096.
unsafe impl Overlay for RingHeader {}

const _: () = assert!(size_of::<End>() == 128);
const _: () = assert!(size_of::<RingHeader>() == 4096);
const _: () = assert!(core::mem::offset_of!(RingHeader, sender) == 64);
const _: () = assert!(core::mem::offset_of!(RingHeader, receiver) == 192);
const _: () = assert!(core::mem::offset_of!(RingHeader, gone) == 320);

const SENDER_GONE: u32 = 1;
const RECEIVER_GONE: u32 = 2;

/// One of a ring's two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Puts tickets in.
    Sender,
    /// Takes them out.
    Receiver,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::Sender => Side::Receiver,
            Side::Receiver => Side::Sender,
        }
    }

    fn gone(self) -> u32 {
        match self {
            Side::Sender => SENDER_GONE,
            Side::Receiver => RECEIVER_GONE,
        }
    }
}

/// Why nothing was sent, or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingEnd {
    /// Nothing came, or no room, within the time given.
    #[error("nothing came, or no room, within {} ms", waited.as_millis())]
    TimedOut {
        /// The time given.
        waited: Duration,
    },
    /// The other end has let go of the channel.
    #[error("the other end has let go of the channel")]
    Closed,
    /// The other end's process has died, or its client was detached.
    #[error("the other end of the channel is gone: its process died, or it was detached")]
    Gone,
}

/// A ring, as one end or the daemon has it.
#[derive(Clone, Debug)]
pub struct TicketRing {
    mapping: Arc<Mapping>,
    capacity: u32,
}

/// Why a mapping is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Not a power of two up to [`RING_TICKETS_MAX`].
    #[error("no ring holds {capacity} tickets")]
    Capacity {
        /// As asked, or as its header says.
        capacity: u32,
    },
    /// It starts with something else.
    #[error("the file is no ring of tickets")]
    NotARing,
    /// It could not be mapped, or is too short.
    #[error("the ring could not be mapped")]
    Map(#[from] MapError),
}

impl TicketRing {
    /// Bytes of a ring.
    ///
    /// # Errors
    /// [`RingError::Capacity`].
    pub fn len_bytes(capacity: u32) -> Result<usize, RingError> {
        if !capacity.is_power_of_two() || capacity > RING_TICKETS_MAX {
            return Err(RingError::Capacity { capacity });
        }
        Ok(size_of::<RingHeader>() + capacity as usize * size_of::<AtomicU64>())
    }

    /// Makes a ring in a zeroed mapping: the daemon's step.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn create(mapping: Mapping, capacity: u32) -> Result<TicketRing, RingError> {
        let len_bytes = TicketRing::len_bytes(capacity)?;
        if mapping.len_bytes() < len_bytes {
            return Err(MapError::Length { len_bytes }.into());
        }
        let ring = TicketRing {
            mapping: Arc::new(mapping),
            capacity,
        };
        ring.header().capacity.store(capacity, Relaxed);
        // SYNC(ticket_ring.magic): the header is whole once it shows.
        ring.header().magic.store(MAGIC, Release);
        Ok(ring)
    }

    /// Enters a ring that the daemon made.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn open(mapping: Mapping) -> Result<TicketRing, RingError> {
        let header: &RingHeader = mapping.overlay(0).map_err(|_| RingError::NotARing)?;
        // SYNC(ticket_ring.magic): pairs with `create`.
        if header.magic.load(Acquire) != MAGIC {
            return Err(RingError::NotARing);
        }
        let capacity = header.capacity.load(Relaxed);
        let len_bytes = TicketRing::len_bytes(capacity)?;
        if mapping.len_bytes() < len_bytes {
            return Err(MapError::Length { len_bytes }.into());
        }
        Ok(TicketRing {
            mapping: Arc::new(mapping),
            capacity,
        })
    }

    /// Daemon: says that an end is gone, and wakes the other one.
    pub fn mark_gone(&self, side: Side) {
        // SYNC(ticket_ring.gone): nothing follows that the other end could miss.
        self.header().gone.fetch_or(side.gone(), Release);
        self.wake(side.other());
    }

    /// Whether an end has let go, by its own word, or is gone.
    pub fn is_over(&self, side: Side) -> bool {
        let is_gone = self.header().gone.load(Relaxed) & side.gone() != 0;
        is_gone || self.end(side).closed.load(Relaxed) != 0
    }

    fn header(&self) -> &RingHeader {
        self.mapping.overlay(0).expect(FITS)
    }

    fn end(&self, side: Side) -> &End {
        match side {
            Side::Sender => &self.header().sender,
            Side::Receiver => &self.header().receiver,
        }
    }

    fn ring(&self) -> Ring<'_> {
        Ring {
            head: &self.end(Side::Receiver).cursor,
            tail: &self.end(Side::Sender).cursor,
            slots: self
                .mapping
                .words64(size_of::<RingHeader>(), self.capacity as usize)
                .expect(FITS),
        }
    }

    /// Wakes an end if it sleeps; the caller has left news for it.
    fn wake(&self, side: Side) {
        let sleeping = &self.end(side).sleeping;
        // SYNC(ticket_ring.sleeping): pairs with the fence in `sleep`: the sleeper's last look and
        // this one cannot both miss.
        fence(SeqCst);
        if sleeping.load(Relaxed) == 1 && sleeping.swap(0, Relaxed) == 1 {
            // The word is mapped for as long as `self` lives.
            let _ = futex::wake(sleeping, u32::MAX);
        }
    }
}

const FITS: &str = "`create` and `open` have checked the length";

/// One end of a ring; there must be one of each side, in one process each.
#[derive(Debug)]
pub struct RingSide {
    ring: TicketRing,
    side: Side,
    /// The other's cursor as last looked at.
    seen: Cell<u32>,
    nr_spins: u32,
}

impl RingSide {
    /// Takes a side of a ring. Before it sleeps it looks `nr_spins` times.
    pub fn new(ring: TicketRing, side: Side, nr_spins: u32) -> RingSide {
        let seen = ring.end(side.other()).cursor.load(Relaxed);
        RingSide {
            ring,
            side,
            seen: Cell::new(seen),
            nr_spins,
        }
    }

    /// Before it sleeps it looks so many times: for who has a processor to spare.
    pub fn set_spins(&mut self, nr_spins: u32) {
        self.nr_spins = nr_spins;
    }

    /// Sender: sends if there is room.
    #[inline]
    pub fn try_send(&mut self, ticket: Ticket) -> Result<bool, RingEnd> {
        debug_assert_eq!(self.side, Side::Sender);
        if let Some(end) = self.ended() {
            return Err(end);
        }
        let is_sent = self.ring.ring().push(&self.seen, &[ticket.bits()]) == 1;
        if is_sent {
            self.ring.wake(Side::Receiver);
        }
        Ok(is_sent)
    }

    /// Sender: sends, waiting for room until the deadline.
    ///
    /// # Errors
    /// [`RingEnd`]: it was not sent.
    #[inline]
    pub fn send(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), RingEnd> {
        match self.try_send(ticket)? {
            true => Ok(()),
            false => self.wait(timeout, &mut |side| {
                side.try_send(ticket).map(|sent| sent.then_some(()))
            }),
        }
    }

    /// Receiver: takes the next ticket, if there is one.
    ///
    /// # Errors
    /// [`RingEnd`] once all that was sent is received and the sender is gone.
    #[inline]
    pub fn try_recv(&mut self) -> Result<Option<Ticket>, RingEnd> {
        debug_assert_eq!(self.side, Side::Receiver);
        if let Some(ticket) = self.pop() {
            return Ok(Some(ticket));
        }
        match self.ended() {
            None => Ok(None),
            // It may have sent before it went.
            Some(end) => self.pop().map(Some).ok_or(end),
        }
    }

    fn pop(&mut self) -> Option<Ticket> {
        let ring = self.ring.ring();
        loop {
            let mut word = [0];
            if ring.pop(&self.seen, as_uninit(&mut word)).count == 0 {
                return None;
            }
            self.ring.wake(Side::Sender);
            // What cannot be a ticket was not sent by a client of ours.
            if let Some(ticket) = Ticket::from_bits(word[0]) {
                return Some(ticket);
            }
        }
    }

    /// Receiver: takes the next ticket, waiting until the deadline.
    ///
    /// # Errors
    /// [`RingEnd`].
    #[inline]
    pub fn recv(&mut self, timeout: Duration) -> Result<Ticket, RingEnd> {
        match self.try_recv()? {
            Some(ticket) => Ok(ticket),
            None => self.wait(timeout, &mut RingSide::try_recv),
        }
    }

    /// Why nothing more comes from the other end, if so.
    pub fn ended(&self) -> Option<RingEnd> {
        let other = self.side.other();
        // What it said itself counts before what was found out after it.
        // SYNC(ticket_ring.closed): pairs with `close`.
        if self.ring.end(other).closed.load(Acquire) != 0 {
            return Some(RingEnd::Closed);
        }
        // SYNC(ticket_ring.gone): pairs with `mark_gone`.
        let is_gone = self.ring.header().gone.load(Acquire) & other.gone() != 0;
        is_gone.then_some(RingEnd::Gone)
    }

    /// Tries until it succeeds, ends, or the time is over: at first without sleeping.
    #[cold]
    fn wait<T>(
        &mut self,
        timeout: Duration,
        attempt: &mut dyn FnMut(&mut RingSide) -> Result<Option<T>, RingEnd>,
    ) -> Result<T, RingEnd> {
        let begun = Instant::now();
        for nr in 1..=self.nr_spins {
            core::hint::spin_loop();
            if let Some(done) = attempt(self)? {
                return Ok(done);
            }
            if nr.is_multiple_of(SPINS_PER_LOOK) && begun.elapsed() >= timeout {
                return Err(RingEnd::TimedOut { waited: timeout });
            }
        }
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(RingEnd::TimedOut { waited: timeout });
            }
            if let Some(done) = self.sleep(left, attempt)? {
                return Ok(done);
            }
        }
    }

    /// Says that it sleeps, tries once more, and sleeps.
    fn sleep<T>(
        &mut self,
        at_most: Duration,
        attempt: &mut dyn FnMut(&mut RingSide) -> Result<Option<T>, RingEnd>,
    ) -> Result<Option<T>, RingEnd> {
        let ring = self.ring.clone();
        let sleeping = &ring.end(self.side).sleeping;
        sleeping.store(1, Relaxed);
        // SYNC(ticket_ring.sleeping): pairs with the fence in `wake`.
        fence(SeqCst);
        let answer = attempt(self);
        if let Ok(None) = answer {
            // An interruption or a wake for nothing: the caller tries again.
            let _ = futex::wait(sleeping, 1, at_most);
        }
        sleeping.store(0, Relaxed);
        match answer {
            Ok(None) => attempt(self),
            answer => answer,
        }
    }
}

impl Drop for RingSide {
    fn drop(&mut self) {
        // SYNC(ticket_ring.closed): all that was sent is seen by who sees this.
        self.ring.end(self.side).closed.store(1, Release);
        self.ring.wake(self.side.other());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket::TicketParts;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn ticket(sequence: u32) -> Ticket {
        let parts = TicketParts {
            client: 1,
            zone: 0,
            slot: 0,
            sequence,
        };
        parts.pack().unwrap()
    }

    fn pair(capacity: u32) -> (RingSide, RingSide, TicketRing) {
        let len = TicketRing::len_bytes(capacity).unwrap();
        let ring = TicketRing::create(Mapping::anonymous(len).unwrap(), capacity).unwrap();
        let side = |side| RingSide::new(ring.clone(), side, 0);
        (side(Side::Sender), side(Side::Receiver), ring.clone())
    }

    /// Seen to fail: `sleep` without its last look (it waits for ever).
    #[test]
    fn all_that_is_sent_is_received_in_order_by_sides_that_sleep() {
        let (mut sender, mut receiver, _) = pair(4);
        let sending = thread::spawn(move || {
            for sequence in 0..20_000 {
                sender.send(ticket(sequence), PATIENCE).unwrap();
            }
        });
        for sequence in 0..20_000 {
            assert_eq!(receiver.recv(PATIENCE), Ok(ticket(sequence)));
        }
        assert_eq!(receiver.recv(PATIENCE), Err(RingEnd::Closed));
        sending.join().unwrap();
    }

    /// Looks often, and lets others go on now and then.
    fn spin_while(goes_on: &dyn Fn() -> bool) {
        for nr in 1_u32.. {
            if !goes_on() {
                return;
            }
            if nr.is_multiple_of(256) {
                thread::yield_now();
            }
        }
    }

    /// Seen to fail: `wake` before the push.
    #[test]
    fn who_is_woken_finds_what_it_was_woken_for() {
        const NR: u32 = 30_000;
        let (mut sender, _receiver, ring) = pair(NR.next_power_of_two());
        let nr_asleep = Arc::new(AtomicU32::new(0));
        let sleeper = thread::spawn({
            let nr_asleep = nr_asleep.clone();
            move || {
                let (sleeping, sent) = (
                    &ring.end(Side::Receiver).sleeping,
                    &ring.end(Side::Sender).cursor,
                );
                for nr in 1..=NR {
                    sleeping.store(1, SeqCst);
                    nr_asleep.store(nr, SeqCst);
                    spin_while(&|| sleeping.load(SeqCst) == 1);
                    assert_eq!(sent.load(SeqCst), nr, "woken too early");
                }
            }
        });
        for nr in 1..=NR {
            spin_while(&|| nr_asleep.load(SeqCst) < nr && !sleeper.is_finished());
            assert_eq!(sender.try_send(ticket(nr)), Ok(true));
        }
        sleeper.join().unwrap();
    }

    #[test]
    fn each_wait_has_its_end() {
        let (mut sender, mut receiver, _) = pair(1);
        let soon = Duration::from_millis(5);
        assert_eq!(receiver.recv(soon), Err(RingEnd::TimedOut { waited: soon }));
        sender.set_spins(1000);
        sender.send(ticket(1), soon).unwrap();
        let refused = sender.send(ticket(2), soon);
        assert_eq!(refused, Err(RingEnd::TimedOut { waited: soon }));
        assert_eq!(receiver.try_recv(), Ok(Some(ticket(1))));
        assert_eq!(receiver.try_recv(), Ok(None));
    }

    #[test]
    fn what_was_sent_before_the_end_is_received_and_then_the_end() {
        let (mut sender, mut receiver, ring) = pair(8);
        sender.send(ticket(1), PATIENCE).unwrap();
        ring.mark_gone(Side::Sender);
        assert_eq!(receiver.recv(PATIENCE), Ok(ticket(1)));
        assert_eq!(receiver.recv(PATIENCE), Err(RingEnd::Gone));
        drop(receiver);
        assert_eq!(sender.send(ticket(2), PATIENCE), Err(RingEnd::Closed));
    }

    #[test]
    fn the_daemons_word_ends_a_sleep() {
        let (_sender, mut receiver, ring) = pair(8);
        let waiting = thread::spawn(move || receiver.recv(PATIENCE));
        while ring.end(Side::Receiver).sleeping.load(Relaxed) == 0 {
            thread::yield_now();
        }
        ring.mark_gone(Side::Sender);
        assert_eq!(waiting.join().unwrap(), Err(RingEnd::Gone));
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let fresh = Mapping::heap(8192).unwrap();
        assert_eq!(TicketRing::open(fresh).unwrap_err(), RingError::NotARing);
        for capacity in [0, 3, 1 << 17, u32::MAX] {
            let answer = TicketRing::len_bytes(capacity);
            assert_eq!(answer, Err(RingError::Capacity { capacity }));
        }
        let (_, _, ring) = pair(8);
        ring.header().capacity.store(1 << 16, Relaxed);
        let len = ring.mapping.len_bytes();
        let copy = Mapping::heap(len).unwrap();
        for (to, from) in copy
            .words64(0, len / 8)
            .unwrap()
            .iter()
            .zip(ring.mapping.words64(0, len / 8).unwrap())
        {
            to.store(from.load(Relaxed), Relaxed);
        }
        assert!(matches!(TicketRing::open(copy), Err(RingError::Map(_))));
    }

    #[test]
    fn words_that_are_no_tickets_are_passed_over() {
        let (mut sender, mut receiver, ring) = pair(8);
        let seen = Cell::new(0);
        assert_eq!(ring.ring().push(&seen, &[0, u64::MAX, 3 << 36]), 3);
        sender.send(ticket(9), PATIENCE).unwrap();
        assert_eq!(receiver.recv(PATIENCE), Ok(ticket(9)));
        ring.end(Side::Sender).cursor.store(u32::MAX / 2, Relaxed);
        assert_eq!(receiver.try_recv(), Ok(None));
    }
}
