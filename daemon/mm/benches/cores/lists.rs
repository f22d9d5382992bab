//! The core that was not taken: free lists threaded through a record per page.
//!
//! As small as an honest peer can be, and laid out as the kernel's: a list per order
//! and type, doubly linked by page number, and merging by asking the buddy's record.
//! It has no sections, watermarks or fallback, so it is measured with less to do.
//!
//! Shape: 12 bytes per page (two links, order, state), a byte of type per pageblock.

const NONE: u32 = u32::MAX;
const MAX_ORDER: u32 = 10;
const NR_ORDERS: usize = MAX_ORDER as usize + 1;
const PAGEBLOCK_ORDER: u32 = 9;

/// One page's record.
#[derive(Clone, Copy)]
struct Record {
    next: u32,
    prev: u32,
    order: u8,
    /// Heads a free block.
    is_free: bool,
    /// What the kernel writes when a page comes online.
    is_online: bool,
}

const OFFLINE: Record = Record {
    next: NONE,
    prev: NONE,
    order: 0,
    is_free: false,
    is_online: false,
};

/// Free lists and the records they run through.
pub struct ListCore {
    records: Vec<Record>,
    types: Vec<u8>,
    heads: [[u32; 3]; NR_ORDERS],
    pub nr_free: u64,
}

impl ListCore {
    /// Records for that many pages, none of them free.
    pub fn new(nr_pages: u32) -> ListCore {
        ListCore {
            records: vec![OFFLINE; nr_pages as usize],
            types: vec![1; (nr_pages >> PAGEBLOCK_ORDER) as usize],
            heads: [[NONE; 3]; NR_ORDERS],
            nr_free: 0,
        }
    }

    pub fn metadata_bytes(&self) -> u64 {
        (self.records.len() * size_of::<Record>() + self.types.len()) as u64
    }

    /// Brings a range online in blocks of `order`. Each page's record is written, as in
    /// the kernel.
    pub fn online(&mut self, start: u32, nr_pages: u32, order: u32) {
        for pfn in start..start + nr_pages {
            self.records[pfn as usize].is_online = true;
        }
        for pfn in (start..start + nr_pages).step_by(1 << order) {
            self.free(pfn, order);
        }
    }

    /// Forgets a range, all of it free in blocks of the largest order.
    pub fn offline(&mut self, start: u32, nr_pages: u32) {
        for pfn in (start..start + nr_pages).step_by(1 << MAX_ORDER) {
            self.unlink(pfn, MAX_ORDER);
            self.nr_free -= 1 << MAX_ORDER;
        }
        for pfn in start..start + nr_pages {
            self.records[pfn as usize] = OFFLINE;
        }
    }

    /// Takes a block of a type from the smallest list that has one, splitting downward.
    pub fn take(&mut self, order: u32, mt: usize) -> Option<u32> {
        let found = (order..=MAX_ORDER).find(|&o| self.heads[o as usize][mt] != NONE)?;
        let pfn = self.heads[found as usize][mt];
        self.unlink(pfn, found);
        for half in (order..found).rev() {
            self.link(pfn + (1 << half), half);
        }
        self.nr_free -= 1 << order;
        Some(pfn)
    }

    /// Takes up to `nr` blocks, one after another: lists know no runs.
    pub fn take_bulk(&mut self, order: u32, mt: usize, nr: usize, out: &mut Vec<u32>) -> usize {
        for taken in 0..nr {
            let Some(pfn) = self.take(order, mt) else {
                return taken;
            };
            out.push(pfn);
        }
        nr
    }

    /// Frees a block and merges it upward while its buddy is free.
    pub fn free(&mut self, pfn: u32, order: u32) {
        self.nr_free += 1 << order;
        let (mut head, mut order) = (pfn, order);
        while order < MAX_ORDER {
            let buddy = head ^ (1 << order);
            match self.records.get(buddy as usize) {
                Some(record) if record.is_free && u32::from(record.order) == order => {}
                _ => break,
            }
            self.unlink(buddy, order);
            head &= buddy;
            order += 1;
        }
        self.link(head, order);
    }

    /// Free blocks by order.
    pub fn free_blocks(&self) -> Vec<u64> {
        let mut blocks = vec![0; NR_ORDERS];
        for record in self.records.iter().filter(|record| record.is_free) {
            blocks[usize::from(record.order)] += 1;
        }
        blocks
    }

    fn link(&mut self, pfn: u32, order: u32) {
        let mt = usize::from(self.types[(pfn >> PAGEBLOCK_ORDER) as usize]);
        let head = &mut self.heads[order as usize][mt];
        let next = core::mem::replace(head, pfn);
        let record = &mut self.records[pfn as usize];
        record.next = next;
        record.prev = NONE;
        record.order = order.to_le_bytes()[0];
        record.is_free = true;
        if next != NONE {
            self.records[next as usize].prev = pfn;
        }
    }

    fn unlink(&mut self, pfn: u32, order: u32) {
        let mt = usize::from(self.types[(pfn >> PAGEBLOCK_ORDER) as usize]);
        let Record { next, prev, .. } = self.records[pfn as usize];
        match prev {
            NONE => self.heads[order as usize][mt] = next,
            prev => self.records[prev as usize].next = next,
        }
        if next != NONE {
            self.records[next as usize].prev = prev;
        }
        self.records[pfn as usize].is_free = false;
    }
}
