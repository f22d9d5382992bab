//! Who holds what in a zone, by pageblock: what the custody of the daemon is to its engine,
//! at a cost that a machine of terabytes can pay.
//!
//! Blocks of clients are entries of the pageblock that they begin in; pages that were in use
//! before the simulation began are bits ([`Past`]).

use hugepool_mm::{Migratetype, MovableBlock, Order, Pfn, PfnRange, Surroundings};

use super::past::Past;

/// The row of a pageblock that is in no zone's hands: nobody wrote it, and nobody may read it.
const POISON: u32 = u32::MAX;

/// A holder: a client by its number, or one of those below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(pub u16);

impl Owner {
    /// What the machine kept for itself when it booted: counted out of the managed pages.
    pub const RESERVED: Owner = Owner(0);
    /// Pages that the kernel keeps for urgent large requests.
    pub const HIGH_ATOMIC: Owner = Owner(1);
    /// A balloon: may be moved, is counted out of the managed pages.
    pub const BALLOON: Owner = Owner(2);
    /// Sub-blocks of a virtio-mem device that are not plugged: counted out as well.
    pub const UNPLUGGED: Owner = Owner(3);
    /// Pages of the past that were moved among pages of another kind.
    pub const PAST: Owner = Owner(4);
    /// A section's records of its own pages, in its first ones: counted out as well.
    pub const RECORDS: Owner = Owner(5);

    /// Whether its pages are counted out of the managed ones.
    pub fn is_counted_out(self) -> bool {
        matches!(self, Owner::RESERVED | Owner::BALLOON) || self.goes_with_section()
    }

    /// Whether its pages are in nobody's way when their section goes.
    pub fn goes_with_section(self) -> bool {
        matches!(self, Owner::UNPLUGGED | Owner::RECORDS)
    }
}

/// A held block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First page, counted from the start of its pageblock.
    pub off: u16,
    /// Its order.
    pub order: u8,
    /// What it was asked for as.
    pub mt: Migratetype,
    /// Stays where it is, whatever its type.
    pub is_pinned: bool,
    /// Whose it is.
    pub owner: Owner,
    /// Its place in the owner's list.
    pub at: u32,
}

impl Entry {
    /// Whether compaction and offline may move it.
    pub fn is_movable(&self) -> bool {
        self.mt != Migratetype::Unmovable && !self.is_pinned
    }
}

/// What is held in a zone.
#[derive(Clone, Debug)]
pub struct Held {
    base: u32,
    shift: u32,
    rows: Vec<u32>,
    slots: Vec<Vec<Entry>>,
    spare: Vec<u32>,
    /// Pages that were in use before.
    pub past: Past,
    nr_pages: u64,
    nr_counted_out: u64,
}

fn index(value: u32) -> usize {
    usize::try_from(value).expect("32 bits fit")
}

impl Held {
    /// Nothing held in the reserve of `nr_pages` pages from `base` on.
    pub fn new(base: Pfn, pageblock: Order, nr_pages: u64) -> Held {
        let shift = u32::from(pageblock.get());
        let nr_pageblocks = usize::try_from(nr_pages >> shift).expect("a reserve fits");
        Held {
            base: base.get(),
            shift,
            rows: vec![0; nr_pageblocks],
            slots: Vec::new(),
            spare: Vec::new(),
            past: Past::new(shift, nr_pageblocks),
            nr_pages: 0,
            nr_counted_out: 0,
        }
    }

    /// Pages of all entries.
    pub fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    /// Those of them that are counted out of the managed pages.
    pub fn nr_counted_out(&self) -> u64 {
        self.nr_counted_out
    }

    /// The pageblock of a page, as an index.
    pub fn block_of(&self, pfn: Pfn) -> usize {
        index((pfn.get() - self.base) >> self.shift)
    }

    /// A page's offset in the reserve.
    pub fn page_of(&self, pfn: Pfn) -> u32 {
        pfn.get() - self.base
    }

    /// The page at an offset in the reserve.
    pub fn pfn_of(&self, page: u32) -> Pfn {
        Pfn::new(self.base + page)
    }

    /// Entries that begin in a pageblock, ascending.
    ///
    /// # Panics
    /// If the pageblock is not online: what is noted of it then is nobody's, and no answer.
    pub fn entries(&self, block: usize) -> &[Entry] {
        match self.rows[block] {
            0 => &[],
            POISON => panic!("the records of pageblock {block} were read, and it is not online"),
            slot => &self.slots[index(slot - 1)],
        }
    }

    /// The pageblock is not online, or no longer: its records are filled with what nobody may
    /// read, as the kernel fills those of memory that it has added and not brought online.
    ///
    /// # Panics
    /// If something is noted in it.
    pub fn poison(&mut self, block: usize) {
        if !self.is_poisoned(block) {
            assert_eq!(self.rows[block], 0, "pageblock {block} goes, and is held");
            self.rows[block] = POISON;
            self.past.poison(block);
        }
    }

    /// The pageblock comes online: nothing is held in it.
    pub fn clear(&mut self, block: usize) {
        if self.is_poisoned(block) {
            self.rows[block] = 0;
            self.past.clear(block);
        }
    }

    /// Whether nobody wrote the records of the pageblock since they were poisoned.
    pub fn is_poisoned(&self, block: usize) -> bool {
        self.rows[block] == POISON && self.past.is_poisoned(block)
    }

    /// Notes a block.
    pub fn insert(&mut self, pfn: Pfn, entry: Entry) {
        let block = self.block_of(pfn);
        assert_ne!(self.rows[block], POISON, "a page of what is not online");
        if self.rows[block] == 0 {
            let slot = self.spare.pop().unwrap_or_else(|| {
                self.slots.push(Vec::new());
                u32::try_from(self.slots.len()).expect("fewer than pageblocks")
            });
            self.rows[block] = slot;
        }
        let entries = &mut self.slots[index(self.rows[block] - 1)];
        let place = entries.partition_point(|other| other.off < entry.off);
        entries.insert(place, entry);
        self.count(entry, true);
    }

    /// Forgets the block that begins there; `None` if none does.
    pub fn remove(&mut self, pfn: Pfn) -> Option<Entry> {
        let block = self.block_of(pfn);
        let place = self.find(pfn)?;
        let slot = self.rows[block];
        let entries = &mut self.slots[index(slot - 1)];
        let entry = entries.remove(place);
        if entries.is_empty() {
            self.rows[block] = 0;
            self.spare.push(slot);
        }
        self.count(entry, false);
        Some(entry)
    }

    /// The block that begins there.
    pub fn get(&self, pfn: Pfn) -> Option<&Entry> {
        let place = self.find(pfn)?;
        self.entries(self.block_of(pfn)).get(place)
    }

    /// The same, to note another place in its owner's list.
    pub fn get_mut(&mut self, pfn: Pfn) -> Option<&mut Entry> {
        let place = self.find(pfn)?;
        let slot = self.rows[self.block_of(pfn)];
        self.slots[index(slot - 1)].get_mut(place)
    }

    /// First page of an entry of a pageblock.
    pub fn head(&self, block: usize, entry: &Entry) -> Pfn {
        let first = u32::try_from(block).expect("pageblocks of 2^32 pages") << self.shift;
        self.pfn_of(first + u32::from(entry.off))
    }

    /// Pages of a pageblock that entries cover; those of larger blocks that begin before it too.
    pub fn nr_covered(&self, block: usize, max_order: Order) -> u32 {
        let inside: u32 = self
            .entries(block)
            .iter()
            .map(|entry| (1 << entry.order).min(1_u32 << self.shift))
            .sum();
        if inside > 0 || u32::from(max_order.get()) == self.shift {
            return inside;
        }
        let group = 1_usize << (u32::from(max_order.get()) - self.shift);
        let first = block & !(group - 1);
        let covers = |head: usize| {
            self.entries(head).first().is_some_and(|entry| {
                u32::from(entry.order) > self.shift
                    && head + (1 << (u32::from(entry.order) - self.shift)) > block
            })
        };
        if (first..block).any(covers) {
            1 << self.shift
        } else {
            0
        }
    }

    /// Every held block of a pageblock, the past's page by page: first page, order, whether it
    /// may be moved. Ascending.
    pub fn blocks(&self, block: usize) -> Vec<(Pfn, Order, bool)> {
        let order = |order| Order::new(order).expect("orders are checked where they come from");
        let mut all: Vec<_> = self
            .entries(block)
            .iter()
            .map(|entry| {
                (
                    self.head(block, entry),
                    order(entry.order),
                    entry.is_movable(),
                )
            })
            .collect();
        let is_movable = self.past.migratetype(block) != Migratetype::Unmovable;
        for (page, nr) in self.past.runs(block) {
            all.extend((page..page + nr).map(|page| (self.pfn_of(page), Order::ZERO, is_movable)));
        }
        all.sort_unstable_by_key(|(pfn, ..)| *pfn);
        all
    }

    /// Pageblocks of the reserve.
    pub fn nr_pageblocks(&self) -> usize {
        self.rows.len()
    }

    fn find(&self, pfn: Pfn) -> Option<usize> {
        let off = u16::try_from(self.page_of(pfn) & ((1 << self.shift) - 1)).ok()?;
        self.entries(self.block_of(pfn))
            .binary_search_by_key(&off, |entry| entry.off)
            .ok()
    }

    fn count(&mut self, entry: Entry, comes: bool) {
        let nr = 1_u64 << entry.order;
        let add = |total: &mut u64| *total = if comes { *total + nr } else { *total - nr };
        add(&mut self.nr_pages);
        if entry.owner.is_counted_out() {
            add(&mut self.nr_counted_out);
        }
    }
}

impl Surroundings for &Held {
    fn movable_blocks(&mut self, pageblock: PfnRange, out: &mut Vec<MovableBlock>) {
        let first = Pfn::new(u32::try_from(pageblock.start).expect("a pageblock of a zone"));
        for (pfn, order, is_movable) in self.blocks(self.block_of(first)) {
            if is_movable {
                out.push(MovableBlock { pfn, order });
            }
        }
    }

    fn is_still_movable(&mut self, block: &MovableBlock) -> bool {
        match self.get(block.pfn) {
            Some(entry) => entry.is_movable() && entry.order == block.order.get(),
            None => {
                block.order == Order::ZERO
                    && self.past.contains(self.page_of(block.pfn))
                    && self.past.migratetype(self.block_of(block.pfn)) != Migratetype::Unmovable
            }
        }
    }
}
