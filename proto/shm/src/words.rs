//! A long run of 8-byte words that one process keeps for itself: the owner table's storage.
//!
//! Sparse in the mapped arm: a word costs memory once its page was touched. It knows nothing of
//! what the words mean. Under loom the words are loom's, on the heap.

use std::sync::Arc;

use crate::mapping::MapError;
#[cfg(not(loom))]
use crate::mapping::Mapping;
use crate::sync::AtomicU64;

/// `len` words of 8 bytes, all zero at first; clones share them.
#[derive(Clone, Debug)]
pub struct Words {
    #[cfg(not(loom))]
    storage: Arc<Mapping>,
    #[cfg(loom)]
    storage: Arc<Vec<AtomicU64>>,
    start: usize,
    len: usize,
}

#[cfg(not(loom))]
impl Words {
    /// Maps `len` words that take memory as they are touched.
    pub fn anonymous(len: usize) -> Result<Words, MapError> {
        Ok(Words::of_mapping(
            Mapping::anonymous(Words::bytes(len)?)?,
            len,
        ))
    }

    /// Takes `len` words from the heap, for tests and interpreters.
    pub fn heap(len: usize) -> Result<Words, MapError> {
        Ok(Words::of_mapping(Mapping::heap(Words::bytes(len)?)?, len))
    }

    /// Uses the first `len` words of a mapping made elsewhere (a state segment, say), or as
    /// many as it has.
    pub fn of_mapping(mapping: Mapping, len: usize) -> Words {
        let len = len.min(mapping.len_bytes() / size_of::<AtomicU64>());
        Words {
            storage: Arc::new(mapping),
            start: 0,
            len,
        }
    }

    /// The words themselves.
    #[inline]
    pub fn cells(&self) -> &[AtomicU64] {
        self.storage
            .words64(self.start * size_of::<AtomicU64>(), self.len)
            .expect("of_mapping and part have bounded start and length")
    }

    /// Zero words become one page: an empty table is a legal one.
    fn bytes(len: usize) -> Result<usize, MapError> {
        len.max(1)
            .checked_mul(size_of::<AtomicU64>())
            .ok_or(MapError::Length {
                len_bytes: usize::MAX,
            })
    }
}

#[cfg(loom)]
impl Words {
    /// Takes `len` words of loom's from the heap.
    pub fn heap(len: usize) -> Result<Words, MapError> {
        let words = (0..len).map(|_| AtomicU64::new(0)).collect();
        Ok(Words {
            storage: Arc::new(words),
            start: 0,
            len,
        })
    }

    /// The words themselves.
    pub fn cells(&self) -> &[AtomicU64] {
        &self.storage[self.start..self.start + self.len]
    }
}

impl Words {
    /// `len` of these words from `start` on, or as many of them as there are: the same memory.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Words {
        let start = start.min(self.len);
        Words {
            storage: self.storage.clone(),
            start: self.start + start,
            len: len.min(self.len - start),
        }
    }

    /// How many words.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no word.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Relaxed;

    #[test]
    fn clones_share_the_words() {
        let words = Words::heap(10).unwrap();
        words.clone().cells()[9].store(5, Relaxed);
        assert_eq!(words.cells()[9].load(Relaxed), 5);
        assert_eq!(words.len(), 10);
    }

    #[test]
    fn a_part_is_the_same_memory_and_never_longer_than_the_whole() {
        let words = Words::heap(10).unwrap();
        let part = words.part(4, 100);
        assert_eq!(part.len(), 6);
        part.part(1, 2).cells()[1].store(7, Relaxed);
        assert_eq!(words.cells()[6].load(Relaxed), 7);
        assert!(words.part(11, 1).is_empty());
    }

    #[test]
    fn no_words_are_a_legal_run() {
        let words = Words::heap(0).unwrap();
        assert!(words.is_empty());
        assert!(words.cells().is_empty());
    }
}
