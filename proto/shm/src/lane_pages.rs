//! Pages through a lane: the words of [`LaneClient`] moved between it and the caller's slots.
//!
//! Straight copies where the slots allow it. What a page is, and where it goes when no lane takes
//! it, is said in [`page`](crate::page) and [`thread_lane`](crate::thread_lane).

use core::mem::MaybeUninit;

use crate::block_copy::{Any, Wide, Width};
use crate::lane_client::{LaneClient, Miss, TAKE_MAX, Taken};
use crate::page::{Page, words_of_pages, words_of_slots};
use crate::raw::Class;
use crate::slots::as_uninit;
use crate::thread_lane::free_run_slowly;

/// Words that are taken at once for slots that lie spread.
const SPREAD_CHUNK: usize = 64;

impl LaneClient<'_> {
    /// Takes one block out of the magazine if that goes without more ado.
    #[inline(always)]
    pub(crate) fn take_page_at_hand(&self, class: Class) -> Option<Page> {
        self.take_word_at_hand(class).map(Page::of_word)
    }

    /// Takes one block.
    #[inline]
    pub(crate) fn take_page(&self, class: Class) -> Result<Page, Miss> {
        self.take_word(class).map(Page::of_word)
    }

    /// Fills the empty slots, from the front, and leaves the others untouched.
    #[inline]
    pub(crate) fn fill_pages(&self, class: Class, slots: &mut [Option<Page>]) -> Taken {
        if let [slot] = slots {
            return self.fill_one(class, slot);
        }
        let words = words_of_slots(slots);
        match Wide::worth(words.len()) {
            Some(wide) => wide.run(|wide| self.fill_words(wide, class, words)),
            None => self.fill_words(Any, class, words),
        }
    }

    /// Fills the zero words.
    #[inline(always)]
    fn fill_words(&self, width: impl Width, class: Class, words: &mut [u64]) -> Taken {
        let nr_empty = width.count_zeros(words);
        if nr_empty == words.len() {
            self.take_words(width, class, as_uninit(words)).0
        } else if nr_empty == 0 {
            Taken::NOTHING_ASKED
        } else {
            self.fill_spread(class, words, nr_empty)
        }
    }

    /// One slot is no slower than one page.
    #[inline]
    fn fill_one(&self, class: Class, slot: &mut Option<Page>) -> Taken {
        if slot.is_some() {
            return Taken::NOTHING_ASKED;
        }
        match self.take_page(class) {
            Ok(page) => *slot = Some(page),
            Err(miss) => return Taken::nothing(miss),
        }
        Taken {
            count: 1,
            miss: None,
        }
    }

    /// Fills the zero words among others.
    fn fill_spread(&self, class: Class, words: &mut [u64], nr_empty: usize) -> Taken {
        let mut chunk = [0; SPREAD_CHUNK];
        let mut slots = words.iter_mut();
        let mut count = 0;
        while count < nr_empty {
            let nr_wanted = (nr_empty - count).min(SPREAD_CHUNK);
            let (taken, _) = self.take_words(Any, class, as_uninit(&mut chunk[..nr_wanted]));
            let mut next = 0;
            while next < taken.count {
                let Some(slot) = slots.next() else { break };
                let is_empty = *slot == 0;
                *slot = if is_empty { chunk[next] } else { *slot };
                next += usize::from(is_empty);
            }
            count += taken.count;
            if taken.miss.is_some() {
                return Taken { count, ..taken };
            }
        }
        Taken { count, miss: None }
    }

    /// Appends up to `count` blocks to a list.
    #[inline]
    pub(crate) fn take_pages_into(
        &self,
        class: Class,
        count: usize,
        list: &mut Vec<Page>,
    ) -> Taken {
        if count == 1 {
            // One page is no slower in a list.
            return match self.take_page(class) {
                Ok(page) => {
                    list.push(page);
                    Taken { count, miss: None }
                }
                Err(miss) => Taken::nothing(miss),
            };
        }
        let nr_at_once = count.min(TAKE_MAX);
        list.reserve(nr_at_once);
        let len = list.len();
        let spare = &mut list.spare_capacity_mut()[..nr_at_once];
        let base = spare.as_mut_ptr().cast::<MaybeUninit<u64>>();
        // SAFETY: the same memory under a type of the same size and alignment that, like the
        // other, need not be initialised; it borrows the only reference to it.
        let words = unsafe { core::slice::from_raw_parts_mut(base, nr_at_once) };
        let (mut taken, has_zero) = match Wide::worth(nr_at_once) {
            Some(wide) => wide.run(|wide| self.take_words(wide, class, words)),
            None => self.take_words(Any, class, words),
        };
        if has_zero {
            taken = without_zeros(&mut words[..taken.count]);
        }
        // SAFETY: `len + count <= capacity`, since `count <= nr_at_once`, and the words up to it
        // were written and are not 0, so they are pages.
        unsafe { list.set_len(len + taken.count) };
        let miss = taken.miss.or((taken.count < count).then_some(Miss::Empty));
        Taken { miss, ..taken }
    }

    /// Frees one block, whichever client's it is.
    #[inline]
    pub(crate) fn put_page(&self, page: Page) {
        let word = page.raw().bits();
        core::mem::forget(page);
        self.put_one(word);
    }

    /// Frees one block's word, whichever client's it is.
    #[inline(always)]
    fn put_one(&self, word: u64) {
        if !(self.is_ours(word) && self.keep_word(word)) {
            self.put_one_slowly(word);
        }
    }

    #[cold]
    #[inline(never)]
    fn put_one_slowly(&self, word: u64) {
        if !(self.is_ours(word) && self.put_word(word)) {
            free_run_slowly(&[word]);
        }
    }

    /// Frees what is in the slots and leaves them empty.
    #[inline]
    pub(crate) fn put_slots(&self, slots: &mut [Option<Page>]) {
        if let [slot] = slots {
            // One slot is no slower than one page.
            return slot.take().map_or((), |page| self.put_page(page));
        }
        let words = words_of_slots(slots);
        match Wide::worth(words.len()) {
            Some(wide) => wide.run(|wide| self.put_and_clear(wide, words)),
            None => self.put_and_clear(Any, words),
        }
    }

    /// Frees what the words name and makes them 0.
    #[inline(always)]
    fn put_and_clear(&self, width: impl Width, words: &mut [u64]) {
        self.put_words(width, words, &mut free_run_slowly);
        width.clear(words);
    }

    /// Frees what is in the list and leaves it empty.
    #[inline]
    pub(crate) fn put_list(&self, list: &mut Vec<Page>) {
        match words_of_pages(list) {
            &[word] => self.put_one(word),
            words => match Wide::worth(words.len()) {
                Some(wide) => {
                    wide.run(|wide| self.put_words(wide, words, &mut free_run_slowly));
                }
                None => self.put_words(Any, words, &mut free_run_slowly),
            },
        }
        // SAFETY: 0 is not above the capacity, and nothing below it need be initialised. The
        // pages were freed just now by their words, so they must not be dropped.
        unsafe { list.set_len(0) };
    }
}

/// Closes up over words that are no pages. None is ever granted, but it is not this process alone
/// that could have written one.
#[cold]
fn without_zeros(words: &mut [MaybeUninit<u64>]) -> Taken {
    let mut count = 0;
    for index in 0..words.len() {
        // SAFETY: the caller hands in words that were taken, which writes all of them.
        let word = unsafe { words[index].assume_init() };
        words[count].write(word);
        count += usize::from(word != 0);
    }
    Taken {
        count,
        miss: Some(Miss::Empty),
    }
}
