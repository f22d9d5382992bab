//! The whole structure checked against itself, from the bits up.
//!
//! O(pages); for tests, the simulator and an administrator who asks. It changes
//! nothing and believes no counter: each is counted again.

use core::fmt;

use crate::bits;
use crate::num::index;
use crate::pageblock::{ISOLATE_POOL, NR_POOLS, Row};
use crate::{Pfn, PfnRange, SectionId, SectionState, Zone};

/// The first thing found wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyError {
    /// A pageblock's row contradicts its bits, its place in the index or its section.
    Pageblock {
        /// First page of the pageblock.
        start: Pfn,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A section's row contradicts its pageblocks.
    Section {
        /// The section.
        section: SectionId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A count differs from what was counted again.
    Count {
        /// Which count.
        what: &'static str,
        /// The pool it belongs to (3: isolated), or 0.
        pool: usize,
        /// As kept.
        kept: i64,
        /// As counted.
        counted: i64,
    },
    /// A listed block is free, not managed, isolated or listed twice.
    Listed {
        /// Its first page.
        pfn: Pfn,
    },
    /// A remembered contiguity answer is wrong.
    Contiguity {
        /// First page of the pageblock, or of the zone for the zone's answer.
        start: Pfn,
    },
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerifyError::Pageblock { start, what } => write!(f, "pageblock at pfn {start}: {what}"),
            VerifyError::Section { section, what } => write!(f, "section {section}: {what}"),
            VerifyError::Count {
                what,
                pool,
                kept,
                counted,
            } => {
                write!(f, "{what} of pool {pool}: kept {kept}, counted {counted}")
            }
            VerifyError::Listed { pfn } => {
                write!(f, "the listed block at pfn {pfn} should not be there")
            }
            VerifyError::Contiguity { start } => {
                write!(f, "the contiguity answer at pfn {start} is stale")
            }
        }
    }
}

impl core::error::Error for VerifyError {}

/// What the pageblocks of a pool add up to.
#[derive(Clone, Copy, Default)]
struct Sum {
    nr_free: u64,
    nr_blocks: u64,
    runs: bits::Tally,
    filed: [u64; 16],
}

impl Zone {
    /// Checks everything that can be checked.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn verify(&self) -> Result<(), VerifyError> {
        let mut sums = [Sum::default(); NR_POOLS];
        for (at, section) in (0u32..).zip(&self.sections) {
            let blocks = self.section_blocks(at);
            if section.state.is_present() {
                blocks
                    .into_iter()
                    .try_for_each(|block| self.verify_block(block, &mut sums))?;
            } else if !self.buddy.rows_are_empty(blocks.start, blocks.end) {
                let section = self.section_id(at);
                return Err(VerifyError::Section {
                    section,
                    what: "absent, with pageblocks",
                });
            }
        }
        for (at, sum) in sums.iter().enumerate() {
            self.verify_pool(at, sum)?;
        }
        self.verify_sections()?;
        self.verify_lists()?;
        self.verify_contiguity()
    }

    fn verify_block(&self, block: u32, sums: &mut [Sum; NR_POOLS]) -> Result<(), VerifyError> {
        let shape = self.buddy.shape;
        let row = self.buddy.row(block);
        let start = self.absolute(shape.join(block, 0));
        let wrong = |what| Err(VerifyError::Pageblock { start, what });
        let section = &self.sections[index(block >> shape.section_shift)];
        if !row.is_managed() {
            return if row == Row::default() {
                Ok(())
            } else {
                wrong("not managed, but its row is not empty")
            };
        }
        if !section.state.is_managed() {
            return wrong("managed in a section that is not online");
        }
        if row.is_isolated() != (section.state == SectionState::GoingOffline) {
            return wrong("isolated against its section's state");
        }
        let pool = row.pool();
        let sum = &mut sums[pool];
        sum.nr_blocks += 1;
        sum.nr_free += u64::from(row.nr_free());
        if row.nr_free() == shape.block_pages {
            return self.verify_whole(block, start, sum);
        }
        let Some(words) = self.buddy.block_bits(block) else {
            return if row.nr_free() == 0 {
                Ok(())
            } else {
                wrong("partly free without bits")
            };
        };
        if words.iter().map(|word| word.count_ones()).sum::<u32>() != row.nr_free() {
            return wrong("its bits are not as many as its free pages");
        }
        if bits::largest_run(words, shape.pageblock_order) != Some(row.largest()) {
            return wrong("its largest free run is another");
        }
        if !self.buddy.pools[pool].contains(row.largest(), block) {
            return wrong("it is not filed under its largest free run");
        }
        sum.filed[index(row.largest())] += 1;
        for (count, runs) in sum
            .runs
            .iter_mut()
            .zip(bits::tally_block(words, shape.pageblock_order))
        {
            *count += runs;
        }
        let extents = section.extents.as_deref().unwrap_or_default();
        let exists = |run: &PfnRange| extents.iter().any(|extent| extent.covers(*run));
        if !section.is_whole() && !self.free_runs(start).iter().all(exists) {
            return wrong("a page in a hole is free");
        }
        Ok(())
    }

    /// A wholly free pageblock lies in exactly one free block, and its buddy is not free too.
    fn verify_whole(&self, block: u32, start: Pfn, sum: &mut Sum) -> Result<(), VerifyError> {
        let shape = self.buddy.shape;
        let row = self.buddy.row(block);
        let wrong = |what| Err(VerifyError::Pageblock { start, what });
        let mut found = None;
        for order in shape.pageblock_order..=shape.max_order {
            let up = order - shape.pageblock_order;
            for pool in 0..NR_POOLS {
                if self.buddy.pools[pool].contains(order, block >> up) {
                    if pool != row.pool() {
                        return wrong("wholly free in the list of another type");
                    }
                    if found.replace(order).is_some() {
                        return wrong("wholly free in two lists");
                    }
                }
            }
        }
        let Some(order) = found else {
            return wrong("wholly free and in no list");
        };
        let up = order - shape.pageblock_order;
        let member = block >> up;
        if block == member << up {
            sum.filed[index(order)] += 1;
        }
        let merges = |pool: usize| self.buddy.pools[pool].contains(order, member ^ 1);
        let may_merge = if row.is_isolated() {
            merges(ISOLATE_POOL)
        } else {
            (0..ISOLATE_POOL).any(merges)
        };
        if order < shape.max_order && may_merge {
            return wrong("free beside its free buddy");
        }
        Ok(())
    }

    fn verify_pool(&self, at: usize, sum: &Sum) -> Result<(), VerifyError> {
        let pool = &self.buddy.pools[at];
        let same = |what, kept: u64, counted: u64| {
            let (kept, counted) = (kept.cast_signed(), counted.cast_signed());
            if kept == counted {
                Ok(())
            } else {
                Err(VerifyError::Count {
                    what,
                    pool: at,
                    kept,
                    counted,
                })
            }
        };
        same("free pages", pool.nr_free, sum.nr_free)?;
        same("pageblocks", pool.nr_blocks, sum.nr_blocks)?;
        for (kept, counted) in pool.runs.iter().zip(sum.runs) {
            same("free runs", kept.cast_unsigned(), counted.cast_unsigned())?;
        }
        for order in 0..=self.buddy.shape.max_order {
            let set = pool.set(order);
            same(
                "filed blocks",
                u64::from(set.len()),
                sum.filed[index(order)],
            )?;
            let is_filled = pool.filled() >> order & 1 == 1;
            if !set.is_sound() || is_filled == set.is_empty() {
                return same(
                    "index words",
                    u64::from(is_filled),
                    u64::from(!set.is_empty()) + 2,
                );
            }
        }
        Ok(())
    }

    fn verify_sections(&self) -> Result<(), VerifyError> {
        let (mut present, mut managed, mut reserved, mut whole) = (0, 0, 0, 0);
        for (at, row) in (0u32..).zip(&self.sections) {
            let wrong = |what| {
                Err(VerifyError::Section {
                    section: self.section_id(at),
                    what,
                })
            };
            present += u64::from(row.present);
            managed += u64::from(row.managed);
            reserved += u64::from(row.reserved);
            whole += u64::from(row.state.is_managed() && row.is_whole());
            if row.state.is_present() != self.present_sections.contains(at) {
                return wrong("present, and not in the set of present ones, or the reverse");
            }
            if (row.state == SectionState::Absent) != self.absent_sections.contains(at) {
                return wrong("absent, and not in the set of absent ones, or the reverse");
            }
            let all = if row.state.is_managed() {
                row.present
            } else {
                0
            };
            if row.managed + row.reserved != all {
                return wrong("its managed and reserved pages are not its present ones");
            }
            let free: u64 = self
                .section_blocks(at)
                .map(|block| u64::from(self.buddy.row(block).nr_free()))
                .sum();
            if free > u64::from(row.managed) {
                return wrong("it has more free than managed pages");
            }
        }
        let same = |what, kept: u64, counted: u64| {
            let (kept, counted) = (kept.cast_signed(), counted.cast_signed());
            if kept == counted {
                Ok(())
            } else {
                Err(VerifyError::Count {
                    what,
                    pool: 0,
                    kept,
                    counted,
                })
            }
        };
        same(
            "spanned pages",
            self.span.nr_pages(),
            self.find_span().nr_pages(),
        )?;
        same("present pages", self.present, present)?;
        same("managed pages", self.managed, managed)?;
        same("set aside pages", self.set_aside, reserved)?;
        same("whole sections", self.contiguity.nr_whole_sections, whole)
    }

    fn verify_lists(&self) -> Result<(), VerifyError> {
        let mut pages = Vec::new();
        for (pfn, order) in self.pcp.blocks() {
            for page in pfn.get()..pfn.get() + order.nr_pages() {
                let page = Pfn::new(page);
                let block = self.pageblock(page);
                if self.is_free(page) || block.is_none_or(|block| block.isolated) {
                    return Err(VerifyError::Listed { pfn });
                }
                pages.push(page);
            }
        }
        pages.sort_unstable();
        if let Some(pair) = pages.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(VerifyError::Listed { pfn: pair[0] });
        }
        let (kept, counted) = (
            self.pcp.nr_pages().cast_signed(),
            (pages.len() as u64).cast_signed(),
        );
        if kept == counted {
            Ok(())
        } else {
            Err(VerifyError::Count {
                what: "listed pages",
                pool: 0,
                kept,
                counted,
            })
        }
    }

    /// Checks that no remembered contiguity answer is stale: asks each pageblock of the span
    /// honestly. A part of [`verify`](Self::verify) that is cheap enough after every step.
    ///
    /// # Errors
    /// [`VerifyError::Contiguity`]: the first stale one.
    pub fn verify_contiguity(&self) -> Result<(), VerifyError> {
        let mut all_whole = !self.present_sections.is_empty();
        let first = self.present_sections.first().unwrap_or(0);
        let spanned = first..self.present_sections.last().map_or(first, |last| last + 1);
        for block in spanned.flat_map(|section| self.section_blocks(section)) {
            let start = self.absolute(self.buddy.shape.join(block, 0));
            let honest = self.is_whole_pageblock(start);
            if self
                .buddy
                .row(block)
                .contiguity()
                .is_some_and(|answer| answer != honest)
            {
                return Err(VerifyError::Contiguity { start });
            }
            all_whole &= honest;
        }
        match self.contiguity.zone() {
            Some(answer) if answer != all_whole => Err(VerifyError::Contiguity {
                start: self.config.start,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{bring_online, zone};
    use crate::{AllocFlags, ContiguityMode, Migratetype, Order};

    /// A zone with broken, full and whole pageblocks, listed pages and cached answers.
    fn busy_zone() -> Zone {
        let mut zone = zone();
        bring_online(&mut zone, 1);
        bring_online(&mut zone, 2);
        zone.set_pcp(Some((8, 99)));
        zone.set_contiguity_mode(ContiguityMode::Pageblock);
        let mut pages = Vec::new();
        zone.rmqueue_bulk(
            Order::ZERO,
            Migratetype::Movable,
            70,
            AllocFlags::DIP,
            &mut pages,
        );
        zone.pcp_put(pages[9], Order::ZERO);
        zone.pageblock_pfn_to_page(Pfn::new(256));
        zone.verify().unwrap();
        zone
    }

    #[test]
    fn every_kind_of_damage_is_found() {
        type Damage = (&'static str, fn(&mut Zone));
        let damages: [Damage; 17] = [
            ("a free count", |z| z.buddy.pools[1].nr_free += 1),
            ("a pageblock count", |z| z.buddy.pools[1].nr_blocks -= 1),
            ("a run count", |z| z.buddy.pools[1].runs[2] += 1),
            ("present", |z| z.present += 1),
            ("managed", |z| z.managed -= 1),
            ("a section's managed", |z| z.sections[0].managed -= 1),
            ("a section's reserved", |z| z.sections[0].reserved += 1),
            ("a section's state", |z| {
                z.sections[0].state = SectionState::Offline
            }),
            ("the set of present sections", |z| {
                z.present_sections.remove(1)
            }),
            ("a row's free pages", |z| {
                edit(z, 2, |row| row.with_free(row.nr_free() - 1, 4))
            }),
            ("a row's largest run", |z| {
                edit(z, 2, |row| row.with_free(row.nr_free(), 1))
            }),
            ("a row's type", |z| {
                edit(z, 5, |row| row.with_migratetype(Migratetype::Unmovable))
            }),
            ("a row's isolation", |z| {
                edit(z, 5, |row| row.with_isolated(true))
            }),
            ("a row of an absent section", |z| {
                edit(z, 20, |row| row.with_skip(true))
            }),
            ("a stale answer", |z| {
                edit(z, 0, |row| row.with_contiguity(Some(false)))
            }),
            ("a page listed twice", |z| {
                let list = z.pcp.list(Order::ZERO, Migratetype::Movable).unwrap();
                z.pcp.push(list, Pfn::new(256 + 9));
            }),
            ("a free page that is listed", |z| {
                z.free(Pfn::new(256 + 9), Order::ZERO)
            }),
        ];
        for (what, damage) in damages {
            let mut zone = busy_zone();
            damage(&mut zone);
            assert!(zone.verify().is_err(), "{what} went unseen");
        }
    }

    fn edit(zone: &mut Zone, block: u32, change: impl Fn(Row) -> Row) {
        let row = zone.buddy.row(block);
        zone.buddy.set_row(block, change(row));
    }
}
