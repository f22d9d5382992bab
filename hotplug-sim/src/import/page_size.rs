//! The page size, worked out from what a source shows beside each other.
//!
//! Nothing of the kernel prints it. But the first label of a buddy list is one page, a
//! page count stands beside the bytes that it counts or cannot exceed, and the edges of
//! ranges are page-aligned. [`PageSizes`] collects such evidence; [`PageSizes::derive`]
//! answers if it leaves one size only. It does not guess from the architecture, except
//! that a firmware map named e820 is of a machine that has 4096 only.

/// The sizes that are told apart by exclusion, in bytes. Others must be stated.
pub const CANDIDATES: [u64; 3] = [4096, 16_384, 65_536];

/// A size, and how it came to be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The page size in bytes.
    pub bytes: u64,
    /// The line that decided.
    pub line: u64,
    /// In words.
    pub how: String,
}

/// Evidence about the page size.
#[derive(Clone, Debug, Default)]
pub struct PageSizes {
    stated: Option<Derived>,
    /// Set where a candidate is impossible, with the line that says so.
    excluded: [Option<u64>; 3],
    /// A size that contradicts the stated one, and its line.
    pub contradiction: Option<Derived>,
}

impl PageSizes {
    /// A text that can only be the size of a page.
    pub fn state(&mut self, line: u64, bytes: u64, how: impl Into<String>) {
        if bytes < 1024 || !bytes.is_power_of_two() {
            return;
        }
        let fresh = Derived {
            bytes,
            line,
            how: how.into(),
        };
        match &self.stated {
            None => self.stated = Some(fresh),
            Some(before) if before.bytes != bytes && self.contradiction.is_none() => {
                self.contradiction = Some(fresh)
            }
            Some(_) => {}
        }
    }

    /// An edge of a range that consists of whole pages.
    pub fn edge(&mut self, line: u64, byte: u64) {
        self.keep_if(line, |size| byte.is_multiple_of(size));
    }

    /// A number of pages that lie in so many bytes, and need not be all of them.
    pub fn at_most(&mut self, line: u64, pages: u64, bytes: u64) {
        let fits = |size: u64| {
            pages
                .checked_mul(size)
                .is_some_and(|counted| counted <= bytes)
        };
        // If none fits, not all of the memory is shown.
        if CANDIDATES.iter().any(|size| fits(*size)) {
            self.keep_if(line, fits);
        }
    }

    /// A number of pages that are most of so many bytes: the allocator's total of a boot log.
    ///
    /// The sizes lie a factor of four apart, and no kernel reserves three quarters of its memory
    /// before it builds the zone lists, so at most one size fits.
    pub fn most_of(&mut self, line: u64, pages: u64, bytes: u64) {
        let fits = |size: u64| {
            pages
                .checked_mul(size)
                .is_some_and(|counted| counted <= bytes && counted > bytes / 4)
        };
        if CANDIDATES.iter().any(|size| fits(*size)) {
            self.keep_if(line, fits);
        }
    }

    /// A number of pages that is exactly so many bytes, rounded to a page at most at either end.
    pub fn exactly(&mut self, line: u64, pages: u64, bytes: u64) {
        let fits = |size: u64| {
            pages
                .checked_mul(size)
                .is_some_and(|counted| counted.abs_diff(bytes) <= 2 * size)
        };
        // Two or three pages could be anything within the rounding.
        if pages > 8 && CANDIDATES.iter().any(|size| fits(*size)) {
            self.keep_if(line, fits);
        }
    }

    fn keep_if(&mut self, line: u64, possible: impl Fn(u64) -> bool) {
        for (size, excluded) in CANDIDATES.iter().zip(&mut self.excluded) {
            if excluded.is_none() && !possible(*size) {
                *excluded = Some(line);
            }
        }
    }

    /// The page size, if it was stated or one candidate is left of those that were tried.
    pub fn derive(&self) -> Option<Derived> {
        if let Some(stated) = &self.stated {
            return Some(stated.clone());
        }
        let mut left = CANDIDATES
            .iter()
            .zip(self.excluded)
            .filter(|(_, excluded)| excluded.is_none());
        let (size, _) = left.next()?;
        if left.next().is_some() {
            return None;
        }
        let line = self.excluded.iter().flatten().max().copied().unwrap_or(0);
        Some(Derived {
            bytes: *size,
            line,
            how: "the counts and the edges of ranges leave no other".to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(fill: impl Fn(&mut PageSizes)) -> Option<u64> {
        let mut sizes = PageSizes::default();
        fill(&mut sizes);
        sizes.derive().map(|derived| derived.bytes)
    }

    #[test]
    fn without_evidence_it_is_unknown() {
        assert_eq!(derived(|_| {}), None);
        assert_eq!(derived(|sizes| sizes.edge(1, 1 << 27)), None);
        assert_eq!(
            derived(|sizes| sizes.edge(1, 0x4000)),
            None,
            "4 KiB or 16 KiB"
        );
    }

    #[test]
    fn an_edge_excludes_what_it_is_no_multiple_of() {
        assert_eq!(derived(|sizes| sizes.edge(1, 0x1000)), Some(4096));
    }

    #[test]
    fn a_count_excludes_what_it_would_exceed() {
        assert_eq!(
            derived(|sizes| sizes.at_most(1, 258_055, 1_071_644_672)),
            Some(4096)
        );
        assert_eq!(
            derived(|sizes| sizes.most_of(1, 654_720, 40 << 30)),
            Some(65_536)
        );
        assert_eq!(
            derived(|sizes| sizes.most_of(1, 16_384, 512 << 20)),
            Some(16_384)
        );
    }

    #[test]
    fn a_label_states_it_and_another_contradicts() {
        let mut sizes = PageSizes::default();
        sizes.state(3, 65_536, "first label");
        sizes.state(4, 4096, "first label");
        assert_eq!(sizes.derive().map(|derived| derived.bytes), Some(65_536));
        assert_eq!(sizes.contradiction.map(|other| other.bytes), Some(4096));
    }
}
