//! A thread that was stopped in the midst of an operation on its lane, and how it goes on.
//!
//! Stopped right after it entered its window: it has said its reach and found the lane open,
//! and moves its blocks when it goes on, by the cursors as they are then; that is what the
//! real lane does, which reads each of its own cursors once and nobody else writes them.

use hugepool_shm::control::ControlSegment;
use hugepool_shm::raw::{Class, RawPage};
use hugepool_shm::scribble::LaneWord;

/// What the thread was about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Take blocks: from the magazine, the rest from the grants.
    Taking,
    /// Put its pages into the magazine.
    Putting,
    /// Spill the oldest blocks of the magazine into `returns`.
    Spilling,
}

/// A stopped thread.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// Its lane.
    pub lane: u32,
    /// What it was about to do.
    pub doing: Doing,
    /// With blocks of which class.
    pub class: Class,
    /// Blocks it may move, as it has said.
    pub reach: u32,
    /// In its hands, to be put.
    pub pages: Vec<RawPage>,
}

impl Stopped {
    /// Enters the window of a lane, and stops there; false if the lane is closed or entered.
    pub fn enter(&self, segment: &ControlSegment) -> bool {
        let read = |word| segment.peek(self.lane, word);
        let is_free = read(LaneWord::Busy) == Some(0);
        let is_open = read(LaneWord::Epoch).is_some_and(|epoch| epoch & 1 == 0);
        is_free && is_open && segment.scribble(self.lane, LaneWord::Busy, u64::from(self.reach))
    }

    /// Goes on to the end of the operation and leaves the window. Returns the blocks it has in
    /// hand then: those taken, or those that found no room in the magazine.
    pub fn leave(mut self, segment: &ControlSegment) -> Vec<RawPage> {
        let hands = match self.doing {
            Doing::Taking => self.take(segment),
            Doing::Putting => self.put(segment),
            Doing::Spilling => self.spill(segment),
        };
        segment.scribble(self.lane, LaneWord::Busy, 0);
        hands
    }

    fn take(&self, segment: &ControlSegment) -> Vec<RawPage> {
        let mut words = Vec::new();
        let (bottom, top) = (self.bottom(segment), self.top(segment));
        let count = top.wrapping_sub(bottom).min(self.reach);
        let new_top = top.wrapping_sub(count);
        for offset in 0..count {
            let at = new_top.wrapping_add(offset);
            words.extend(self.word(segment, LaneWord::Cached(self.class, at)));
        }
        self.write(segment, LaneWord::MagazineTop(self.class), new_top);
        words.extend(segment.take_granted(self.lane, self.class, self.reach - count));
        words
    }

    fn put(&mut self, segment: &ControlSegment) -> Vec<RawPage> {
        let (bottom, top) = (self.bottom(segment), self.top(segment));
        let mut top = top;
        while let Some(page) = self.pages.pop() {
            if top.wrapping_sub(bottom) >= magazine_slots(self.class) {
                self.pages.push(page);
                break;
            }
            let slot = LaneWord::Cached(self.class, top);
            segment.scribble(self.lane, slot, page.bits());
            top = top.wrapping_add(1);
        }
        self.write(segment, LaneWord::MagazineTop(self.class), top);
        core::mem::take(&mut self.pages)
    }

    fn spill(&self, segment: &ControlSegment) -> Vec<RawPage> {
        let (mut bottom, top) = (self.bottom(segment), self.top(segment));
        let mut tail = self.cursor(segment, LaneWord::ReturnsTail);
        let head = self.cursor(segment, LaneWord::ReturnsHead);
        for _ in 0..top.wrapping_sub(bottom).min(self.reach) {
            if tail.wrapping_sub(head) as usize >= hugepool_shm::layout::RETURNS {
                break;
            }
            if let Some(page) = self.word(segment, LaneWord::Cached(self.class, bottom)) {
                segment.scribble(self.lane, LaneWord::Return(tail), page.bits());
                tail = tail.wrapping_add(1);
            }
            bottom = bottom.wrapping_add(1);
        }
        self.write(segment, LaneWord::ReturnsTail, tail);
        self.write(segment, LaneWord::MagazineBottom(self.class), bottom);
        Vec::new()
    }

    fn bottom(&self, segment: &ControlSegment) -> u32 {
        self.cursor(segment, LaneWord::MagazineBottom(self.class))
    }

    fn top(&self, segment: &ControlSegment) -> u32 {
        self.cursor(segment, LaneWord::MagazineTop(self.class))
    }

    fn cursor(&self, segment: &ControlSegment, word: LaneWord) -> u32 {
        let value = segment.peek(self.lane, word).unwrap_or(0);
        u32::try_from(value).expect("a cursor has 32 bits")
    }

    fn word(&self, segment: &ControlSegment, word: LaneWord) -> Option<RawPage> {
        segment.peek(self.lane, word).map(RawPage::from_bits)
    }

    fn write(&self, segment: &ControlSegment, word: LaneWord, value: u32) {
        segment.scribble(self.lane, word, u64::from(value));
    }
}

/// Blocks that the magazine of a class holds.
fn magazine_slots(class: Class) -> u32 {
    use hugepool_shm::layout::{BLOCK_MAGAZINE, PAGE_MAGAZINE};
    let is_page = class.index() < hugepool_shm::raw::NR_MIGRATETYPES;
    let slots = if is_page {
        PAGE_MAGAZINE
    } else {
        BLOCK_MAGAZINE
    };
    u32::try_from(slots).expect("a layout's constant")
}
