//! A client's movable pages: its handle words, and for each page which handle names it.
//!
//! A *record* stands at the place of a page and says which handle the block headed there has, and
//! what else its page word holds. The client writes it when it fills a handle; the daemon writes
//! that of a new place before it opens the word there. So whoever holds the block in place finds
//! its page word, and the daemon finds the handle of a page that it wants to move. Both records
//! and words are claims to the daemon: it moves only what the owner table says is the client's.
//!
//! A record that is out of date names a handle that does not name the page, and so says nothing.
//!
//! Shape of a record: a page word ([`raw`](crate::raw)) in which the handle's number plus one
//! stands in place of the pfn; 0 is none.

use crate::handle::{CloseError, ClosedHandle, HandleState, HandleWord};
use crate::raw::RawPage;
use crate::sync::{AtomicU64, Relaxed};

const PFN_MASK: u64 = u32::MAX as u64;

/// What stands at a page's place: a claim that a handle names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRecord(u64);

impl PageRecord {
    /// No handle names the page.
    pub const NONE: PageRecord = PageRecord(0);

    /// Says that `handle` names the block of this page word.
    pub const fn new(raw: RawPage, handle: u32) -> PageRecord {
        PageRecord(raw.bits() & !PFN_MASK | (handle as u64 + 1))
    }

    /// The handle that should name the page.
    pub fn handle(self) -> Option<u32> {
        let number = u32::try_from(self.0 & PFN_MASK).ok()?;
        number.checked_sub(1)
    }

    /// The page word of the block, if it is headed at `pfn`.
    pub const fn page(self, pfn: u32) -> RawPage {
        RawPage::from_bits(self.0 & !PFN_MASK | pfn as u64)
    }
}

/// What a client's words say of a block, at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The handle that names it.
    pub handle: u32,
    /// What stands at its place.
    pub record: PageRecord,
    /// Whether the handle is pinned.
    pub is_pinned: bool,
}

/// A move whose word is closed: the bytes may be copied, and then the word opened.
#[derive(Clone, Copy, Debug)]
#[must_use = "a closed word makes its client spin until it is opened or taken back"]
pub struct BegunMove<'a> {
    handles: Handles<'a>,
    word: HandleWord<'a>,
    closed: ClosedHandle,
}

/// The handles of one client and the records of its pages, wherever they live.
#[derive(Clone, Copy, Debug)]
pub struct Handles<'a> {
    words: &'a [AtomicU64],
    records: &'a [AtomicU64],
}

impl<'a> Handles<'a> {
    /// Handles in `words`, records in `records`.
    #[inline(always)]
    pub fn new(words: &'a [AtomicU64], records: &'a [AtomicU64]) -> Handles<'a> {
        Handles { words, records }
    }

    /// How many handles there are.
    pub fn len(self) -> u32 {
        u32::try_from(self.words.len()).unwrap_or(u32::MAX)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.words.is_empty()
    }

    /// A handle, if there is one of that number.
    #[inline(always)]
    pub fn word(self, handle: u32) -> Option<HandleWord<'a>> {
        self.words.get(handle as usize).map(HandleWord::new)
    }

    /// What stands at a page's place.
    #[inline(always)]
    pub fn record(self, pfn: u32) -> PageRecord {
        let word = self.records.get(pfn as usize);
        PageRecord(word.map_or(0, |word| word.load(Relaxed)))
    }

    fn set_record(self, pfn: u32, record: PageRecord) {
        if let Some(word) = self.records.get(pfn as usize) {
            word.store(record.0, Relaxed);
        }
    }
}

/// The client's side.
impl<'a> Handles<'a> {
    /// For [`scribble`](crate::scribble).
    #[cfg(not(loom))]
    pub(crate) fn scribble(self, handle: u32, value: u64) -> bool {
        let word = self.words.get(handle as usize);
        word.is_some_and(|word| {
            word.store(value, Relaxed);
            true
        })
    }

    /// Fills a free handle with a block that is the caller's; from now on the daemon may move it.
    pub fn fill(self, handle: u32, raw: RawPage) -> bool {
        let Some(word) = self.word(handle) else {
            return false;
        };
        self.set_record(raw.pfn(), PageRecord::new(raw, handle));
        crate::step::reached("handle.record");
        // Publishes the record too.
        word.fill(raw.pfn());
        crate::step::reached("handle.filled");
        true
    }

    /// The page word of the block at `pfn`, which `handle` names and the caller keeps in place (by
    /// a pin, or because it has just emptied the handle).
    #[inline(always)]
    pub fn page(self, handle: u32, pfn: u32) -> Option<RawPage> {
        let record = self.record(pfn);
        (record.handle() == Some(handle)).then(|| record.page(pfn))
    }
}

/// The daemon's side.
impl<'a> Handles<'a> {
    /// The handle of the block headed at `pfn`, if one names it and it is not closed.
    pub fn look(self, pfn: u32) -> Option<Named> {
        let record = self.record(pfn);
        let handle = record.handle()?;
        match self.word(handle)?.state() {
            HandleState::Open { pfn: at, pins } if at == pfn => Some(Named {
                handle,
                record,
                is_pinned: pins > 0,
            }),
            _ => None,
        }
    }

    /// Closes the word of a block at `from`, if it is still the one that was looked at: then it
    /// may be copied.
    pub fn begin_move(self, from: u32, named: Named) -> Result<BegunMove<'a>, CloseError> {
        let word = self.word(named.handle).ok_or(CloseError::OtherPage)?;
        let closed = word.close(from)?;
        // The client may have freed the block and had another one of the same head meanwhile;
        // while the word is closed it can do neither without taking it back.
        if self.record(from) != named.record {
            word.undo(closed);
            return Err(CloseError::OtherPage);
        }
        Ok(BegunMove {
            handles: self,
            word,
            closed,
        })
    }

    /// Takes a block at `from` away, if nobody pins it and it is the one that was looked at.
    pub fn evict(self, from: u32, named: Named) -> Result<bool, CloseError> {
        let begun = self.begin_move(from, named)?;
        Ok(begun.word.evict(begun.closed))
    }
}

impl BegunMove<'_> {
    /// Opens the word at `to`, where the bytes have been copied to. False: the client took the
    /// word back, and the block stays where it was.
    pub fn finish(self, to: u32, record: PageRecord) -> bool {
        // The new place is not the client's yet, so nobody else writes there.
        self.handles.set_record(to, record);
        // SYNC(handle.open), inside: publishes the record with the bytes.
        let is_open = self.word.open(self.closed, to);
        if !is_open {
            self.handles.set_record(to, PageRecord::NONE);
        }
        is_open
    }

    /// Opens the word where it was.
    pub fn give_up(self) {
        self.word.undo(self.closed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::handle::PinError;
    use crate::raw::{PageParts, RawMigratetype};

    struct World {
        words: Vec<AtomicU64>,
        records: Vec<AtomicU64>,
    }

    impl World {
        fn new() -> World {
            let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
            World {
                words: words(4),
                records: words(16),
            }
        }

        fn handles(&self) -> Handles<'_> {
            Handles::new(&self.words, &self.records)
        }
    }

    fn page(pfn: u32, generation: u32) -> RawPage {
        let parts = PageParts {
            pfn,
            order: 2,
            migratetype: RawMigratetype::Movable,
            zone: 5,
            client: 3,
            generation,
        };
        parts.pack().expect("small numbers fit")
    }

    #[test]
    fn a_record_keeps_all_of_the_page_word() {
        let raw = page(12, 0xabcde);
        let record = PageRecord::new(raw, 77);
        assert_eq!((record.handle(), record.page(12)), (Some(77), raw));
        assert_eq!(PageRecord::NONE.handle(), None);
        assert_eq!(
            PageRecord::new(raw, u32::MAX - 1).handle(),
            Some(u32::MAX - 1)
        );
    }

    #[test]
    fn a_moved_block_is_found_with_its_new_page_word() {
        let world = World::new();
        let handles = world.handles();
        assert!(handles.fill(1, page(4, 7)) && !handles.fill(4, page(4, 7)));
        let named = handles.look(4).unwrap();
        assert_eq!((named.handle, named.is_pinned), (1, false));
        let begun = handles.begin_move(4, named).unwrap();
        assert!(begun.finish(8, PageRecord::new(page(8, 9), 1)));
        assert_eq!(handles.word(1).unwrap().pin(0), Ok(8));
        assert_eq!(handles.page(1, 8), Some(page(8, 9)));
        assert_eq!(
            handles.look(4),
            None,
            "the record at the old place says nothing"
        );
        assert!(handles.look(8).unwrap().is_pinned);
    }

    #[test]
    fn a_block_taken_back_keeps_its_page_word_and_the_new_place_none() {
        let world = World::new();
        let handles = world.handles();
        handles.fill(0, page(4, 7));
        let begun = handles.begin_move(4, handles.look(4).unwrap()).unwrap();
        assert_eq!(handles.word(0).unwrap().pin(0), Ok(4));
        assert!(!begun.finish(8, PageRecord::new(page(8, 9), 0)));
        assert_eq!(handles.page(0, 4), Some(page(4, 7)));
        assert_eq!(handles.record(8), PageRecord::NONE);
    }

    #[test]
    fn another_block_with_the_same_head_and_handle_is_not_moved() {
        let world = World::new();
        let handles = world.handles();
        handles.fill(0, page(4, 7));
        let named = handles.look(4).unwrap();
        let word = handles.word(0).unwrap();
        assert_eq!(word.empty(), Ok(4));
        handles.fill(0, page(4, 8));
        let refused = handles.begin_move(4, named).err();
        assert_eq!(refused, Some(CloseError::OtherPage));
        assert_eq!(word.pin(0), Ok(4), "the word was opened again");
    }

    #[test]
    fn a_pinned_block_is_neither_moved_nor_evicted() {
        let world = World::new();
        let handles = world.handles();
        handles.fill(2, page(4, 7));
        let named = handles.look(4).unwrap();
        let word = handles.word(2).unwrap();
        assert_eq!(word.pin(0), Ok(4));
        assert_eq!(handles.evict(4, named), Err(CloseError::Pinned));
        word.unpin();
        assert_eq!(handles.evict(4, named), Ok(true));
        assert_eq!(word.pin(0), Err(PinError::Evicted));
        assert_eq!(handles.look(4), None);
    }

    #[test]
    fn nonsense_in_the_words_names_nothing() {
        let world = World::new();
        let handles = world.handles();
        world.records[4].store(u64::MAX, Relaxed);
        assert_eq!(handles.look(4), None);
        assert_eq!(handles.look(400), None);
        handles.fill(0, page(5, 1));
        world.records[4].store(PageRecord::new(page(4, 1), 0).0, Relaxed);
        assert_eq!(handles.look(4), None, "the handle names another page");
    }
}
