//! The word of a movable page: pinned by its client, closed and opened by the daemon.
//!
//! One atomic word names where the page is now. A pin holds it there; the daemon moves an
//! unpinned page by closing the word, copying, and opening it with the new pfn. No pin ever
//! waits for a daemon that is slow, stopped or dead: a pin that meets a closed word looks a
//! bounded number of times and then takes the word back, and the move is undone. What the
//! pages hold and who owns them is not known here.
//!
//! Shape, from the lowest bit: 32 bits pfn, 14 bits pins, 2 bits state, 16 bits sequence.
//!
//! | state | meaning | who leaves it |
//! |---|---|---|
//! | free (all 0 at first) | names no page; the pfn's bits are its client's to use | the client, which fills it |
//! | open | the page is at `pfn`; `pins` hold it there | client: pins; daemon: closes at no pins |
//! | closed | the daemon copies; the bytes at `pfn` are whole | daemon: opens; client: takes back |
//! | evicted | the page was taken away | the client, which empties it |
//!
//! The sequence rises with each close, so an opening that comes late finds another word and fails.

use crate::step::reached as step;
use crate::sync::{AcqRel, Acquire, AtomicU64, Relaxed, Release};

/// Most pins that one word counts.
pub const PINS_MAX: u32 = (1 << PINS_BITS) - 1;

const PINS_BITS: u32 = 14;
const PINS_SHIFT: u32 = 32;
const STATE_SHIFT: u32 = PINS_SHIFT + PINS_BITS;
const SEQUENCE_SHIFT: u32 = STATE_SHIFT + 2;
const ONE_PIN: u64 = 1 << PINS_SHIFT;
const PINS_MASK: u64 = (PINS_MAX as u64) << PINS_SHIFT;
const STATE_MASK: u64 = 3 << STATE_SHIFT;
const PFN_MASK: u64 = u32::MAX as u64;
const OPEN: u64 = 1 << STATE_SHIFT;
const CLOSED: u64 = 2 << STATE_SHIFT;
const EVICTED: u64 = 3 << STATE_SHIFT;
const ONE_SEQUENCE: u64 = 1 << SEQUENCE_SHIFT;

/// What a handle word says at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleState {
    /// Names no page.
    Free,
    /// The page is at `pfn`, held by `pins` pins.
    Open {
        /// Where it is.
        pfn: u32,
        /// How many hold it there.
        pins: u32,
    },
    /// Being moved from `pfn`.
    Closed {
        /// Where it was, and still is until the word opens.
        pfn: u32,
    },
    /// Taken away.
    Evicted,
}

/// Why a pin was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The page was taken away under pressure.
    #[error("the page was taken away under pressure")]
    Evicted,
    /// [`PINS_MAX`] pins are held already.
    #[error("the page has {PINS_MAX} pins, no more are counted")]
    TooMany,
    /// The word names no page: nobody filled it, or somebody scribbled over it.
    #[error("the handle names no page: its memory was written by somebody else")]
    NoPage,
    /// This process is a fork of the one whose page it is.
    #[error("this process is a fork of the one whose page it is")]
    Forked,
}

/// Why the daemon could not close a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseError {
    /// Pinned, or pinned at that instant.
    Pinned,
    /// The word does not name the page that was to be moved: a claim that does not hold.
    OtherPage,
}

/// A word that this daemon has closed; only exactly this word can be opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a closed word makes its client spin until it is opened or taken back"]
pub struct ClosedHandle(u64);

/// A handle word, wherever it lives.
#[derive(Clone, Copy, Debug)]
pub struct HandleWord<'a>(&'a AtomicU64);

impl<'a> HandleWord<'a> {
    /// The handle in `word`.
    pub fn new(word: &'a AtomicU64) -> HandleWord<'a> {
        HandleWord(word)
    }

    /// What it says now.
    pub fn state(self) -> HandleState {
        let bits = self.0.load(Acquire);
        match bits & STATE_MASK {
            OPEN => HandleState::Open {
                pfn: pfn(bits),
                pins: pins(bits),
            },
            CLOSED => HandleState::Closed { pfn: pfn(bits) },
            EVICTED => HandleState::Evicted,
            _ => HandleState::Free,
        }
    }

    /// Fills a free slot with an unpinned page; the sequence goes on from what the slot had.
    pub fn fill(self, pfn: u32) {
        let sequence = self.0.load(Relaxed) & !(ONE_SEQUENCE - 1);
        self.0.store(sequence | OPEN | u64::from(pfn), Release);
    }

    /// Client: takes the page out and leaves the word free, in one step: a word that is closed
    /// is taken back by it, and the move is undone. Pins do not keep it: whoever owns the page
    /// knows that none is in use, and those that were forgotten go too. An evicted word is left
    /// free as well.
    ///
    /// The pfn, which is the caller's from now on.
    pub fn empty(self) -> Result<u32, PinError> {
        let mut bits = self.0.load(Acquire);
        loop {
            if bits & STATE_MASK == 0 {
                return Err(PinError::NoPage);
            }
            let free = bits & !(ONE_SEQUENCE - 1);
            // SYNC(handle.open): as in `pin`.
            match self.0.compare_exchange_weak(bits, free, Acquire, Acquire) {
                Ok(_) if bits & STATE_MASK == EVICTED => return Err(PinError::Evicted),
                Ok(_) => {
                    step("handle.emptied");
                    return Ok(pfn(bits));
                }
                Err(now) => bits = now,
            }
        }
    }

    /// Client: the number that its owner left in a free word.
    pub fn link(self) -> u32 {
        pfn(self.0.load(Relaxed))
    }

    /// Client: leaves a number in a free word.
    pub fn set_link(self, link: u32) {
        let sequence = self.0.load(Relaxed) & !(ONE_SEQUENCE - 1);
        self.0.store(sequence | u64::from(link), Relaxed);
    }

    /// Client: holds the page in place and returns its pfn.
    ///
    /// A closed word is looked at `spins` times, as long as the copy of one block may take, and
    /// then taken back with one pin: the bytes at the old place are whole until the word opens.
    pub fn pin(self, spins: u32) -> Result<u32, PinError> {
        let mut spins_left = spins;
        let mut bits = self.0.load(Acquire);
        loop {
            let wanted = match bits & STATE_MASK {
                OPEN if bits & PINS_MASK == PINS_MASK => return Err(PinError::TooMany),
                OPEN => bits + ONE_PIN,
                CLOSED if spins_left > 0 => {
                    spins_left -= 1;
                    pause();
                    bits = self.0.load(Acquire);
                    continue;
                }
                CLOSED => (bits & !(STATE_MASK | PINS_MASK)) | OPEN | ONE_PIN,
                EVICTED => return Err(PinError::Evicted),
                _ => return Err(PinError::NoPage),
            };
            // SYNC(handle.open): pairs with the Release in `open`, so the bytes at a new place
            // are seen; and keeps the accesses of this pin behind it.
            match self.0.compare_exchange_weak(bits, wanted, Acquire, Acquire) {
                Ok(_) => {
                    step("handle.pinned");
                    return Ok(pfn(bits));
                }
                Err(now) => bits = now,
            }
        }
    }

    /// Client: lets go of one pin.
    ///
    /// A word without a pin to let go of (scribbled over) is left as it is.
    pub fn unpin(self) {
        let mut bits = self.0.load(Relaxed);
        while bits & STATE_MASK == OPEN && bits & PINS_MASK != 0 {
            // SYNC(handle.unpin): pairs with the Acquire in `close`, so the daemon copies all
            // that was written under this pin.
            match self
                .0
                .compare_exchange_weak(bits, bits - ONE_PIN, Release, Relaxed)
            {
                Ok(_) => {
                    step("handle.unpinned");
                    return;
                }
                Err(now) => bits = now,
            }
        }
    }

    /// Daemon: closes the word of the page at `from`, if nobody pins it.
    pub fn close(self, from: u32) -> Result<ClosedHandle, CloseError> {
        let bits = self.0.load(Relaxed);
        if bits & STATE_MASK != OPEN || pfn(bits) != from {
            return Err(CloseError::OtherPage);
        }
        if bits & PINS_MASK != 0 {
            return Err(CloseError::Pinned);
        }
        let closed = ((bits & !STATE_MASK) | CLOSED).wrapping_add(ONE_SEQUENCE);
        // SYNC(handle.unpin): pairs with the Release in `unpin`.
        match self.0.compare_exchange(bits, closed, AcqRel, Relaxed) {
            Ok(_) => Ok(ClosedHandle(closed)),
            Err(_) => Err(CloseError::Pinned),
        }
    }

    /// Daemon: opens the word at its new place, from exactly the closed word.
    ///
    /// False: the client took it back, and the page stays where it was.
    pub fn open(self, closed: ClosedHandle, to: u32) -> bool {
        let open = (closed.0 & !(STATE_MASK | PFN_MASK)) | OPEN | u64::from(to);
        // SYNC(handle.open): publishes the copied bytes to the next pin.
        self.0
            .compare_exchange(closed.0, open, Release, Relaxed)
            .is_ok()
    }

    /// Daemon: opens the word where it was; a client that took it back has done so already.
    pub fn undo(self, closed: ClosedHandle) {
        self.open(closed, pfn(closed.0));
    }

    /// Daemon: opens a word that a daemon before this one has left closed, where it was. What it
    /// says then.
    pub fn reopen(self) -> HandleState {
        let bits = self.0.load(Relaxed);
        if bits & STATE_MASK == CLOSED {
            let _ = self.open(ClosedHandle(bits), pfn(bits));
        }
        self.state()
    }

    /// Daemon: says that the page is gone, from exactly the closed word.
    ///
    /// False: the client took it back and keeps the page.
    pub fn evict(self, closed: ClosedHandle) -> bool {
        let evicted = (closed.0 & !(STATE_MASK | PFN_MASK)) | EVICTED;
        self.0
            .compare_exchange(closed.0, evicted, Release, Relaxed)
            .is_ok()
    }
}

#[cfg(not(loom))]
fn pause() {
    core::hint::spin_loop();
}

#[cfg(loom)]
fn pause() {
    loom::thread::yield_now();
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is the pfn")]
const fn pfn(bits: u64) -> u32 {
    bits as u32
}

const fn pins(bits: u64) -> u32 {
    ((bits & PINS_MASK) >> PINS_SHIFT) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn open_at(pfn: u32) -> AtomicU64 {
        let word = AtomicU64::new(0);
        HandleWord::new(&word).fill(pfn);
        word
    }

    #[test]
    fn a_pinned_page_cannot_be_closed() {
        let word = open_at(7);
        let handle = HandleWord::new(&word);
        assert_eq!(handle.pin(0), Ok(7));
        assert_eq!(handle.state(), HandleState::Open { pfn: 7, pins: 1 });
        assert_eq!(handle.close(7), Err(CloseError::Pinned));
        handle.unpin();
        let closed = handle.close(7).unwrap();
        assert_eq!(handle.state(), HandleState::Closed { pfn: 7 });
        assert!(handle.open(closed, 9));
        assert_eq!(handle.pin(0), Ok(9));
    }

    #[test]
    fn a_pin_takes_a_closed_word_back_and_the_move_is_lost() {
        let word = open_at(7);
        let handle = HandleWord::new(&word);
        let closed = handle.close(7).unwrap();
        assert_eq!(handle.pin(3), Ok(7));
        assert!(!handle.open(closed, 9));
        assert!(!handle.evict(closed));
        assert_eq!(handle.state(), HandleState::Open { pfn: 7, pins: 1 });
    }

    #[test]
    fn an_opening_from_an_earlier_close_fails() {
        let word = open_at(7);
        let handle = HandleWord::new(&word);
        let first = handle.close(7).unwrap();
        assert_eq!(handle.pin(0), Ok(7));
        handle.unpin();
        let second = handle.close(7).unwrap();
        assert!(!handle.open(first, 8));
        assert!(handle.open(second, 9));
    }

    #[test]
    fn an_evicted_page_says_so_and_its_slot_is_free_after() {
        let word = open_at(7);
        let handle = HandleWord::new(&word);
        let closed = handle.close(7).unwrap();
        assert!(handle.evict(closed));
        assert_eq!(handle.pin(5), Err(PinError::Evicted));
        assert_eq!(handle.empty(), Err(PinError::Evicted));
        assert_eq!(handle.state(), HandleState::Free);
        assert_eq!(handle.pin(0), Err(PinError::NoPage));
        assert_eq!(handle.empty(), Err(PinError::NoPage));
        handle.fill(3);
        assert_eq!(handle.close(4), Err(CloseError::OtherPage));
        assert_eq!(handle.pin(0), Ok(3));
    }

    #[test]
    fn pins_are_counted_to_their_limit_and_no_further() {
        let word = open_at(1);
        let handle = HandleWord::new(&word);
        for _ in 0..PINS_MAX {
            assert_eq!(handle.pin(0), Ok(1));
        }
        assert_eq!(handle.pin(0), Err(PinError::TooMany));
        handle.unpin();
        assert_eq!(
            handle.state(),
            HandleState::Open {
                pfn: 1,
                pins: PINS_MAX - 1
            }
        );
    }

    #[test]
    fn unpinning_what_is_not_pinned_changes_nothing() {
        let word = open_at(1);
        let handle = HandleWord::new(&word);
        handle.unpin();
        assert_eq!(handle.state(), HandleState::Open { pfn: 1, pins: 0 });
        assert_eq!(handle.empty(), Ok(1));
        handle.unpin();
        assert_eq!(handle.state(), HandleState::Free);
    }

    #[test]
    fn a_page_taken_out_of_a_closed_word_is_the_old_one_and_the_move_is_lost() {
        let word = open_at(7);
        let handle = HandleWord::new(&word);
        let closed = handle.close(7).unwrap();
        assert_eq!(handle.empty(), Ok(7));
        // In a free list, and out again, under the same pfn: still not the word that was closed.
        handle.set_link(7);
        assert_eq!((handle.link(), handle.state()), (7, HandleState::Free));
        assert!(!handle.open(closed, 9) && !handle.evict(closed));
        handle.fill(7);
        assert!(!handle.open(closed, 9));
        assert_eq!(handle.state(), HandleState::Open { pfn: 7, pins: 0 });
    }
}
