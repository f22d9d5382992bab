//! A replayed trace as tables.

use core::fmt;

use hugepool_mm::Migratetype;

use super::sides::Scatter;
use super::trace::{Moment, NR_KINDS, Replayed};

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        self.write_orders(f)?;
        self.write_moments(f)?;
        self.write_end(f)
    }
}

impl Replayed {
    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let geometry = self.geometry;
        writeln!(
            f,
            "memory: {} memory blocks of {} MiB, those that the trace names a page of (pages of {} bytes, \
             pageblocks of order {})",
            self.nr_sections,
            geometry.section_bytes() >> 20,
            geometry.page_bytes(),
            geometry.pageblock_order()
        )?;
        writeln!(
            f,
            "in use before: {} pages, which the trace frees and never allocated; what it does not show is \
             taken for free",
            self.held_before
        )?;
        let order = if self.numbering.is_new {
            "1 is Movable, 2 Reclaimable"
        } else {
            "1 is Reclaimable, 2 Movable (kernels up to 4.3)"
        };
        let why = if self.numbering.is_known {
            "the flags beside the numbers say so"
        } else {
            "no flag says which; this is so since 4.4"
        };
        writeln!(f, "migratetypes: {order}; {why}")?;
        for (nr, what) in [
            (
                self.lost_frees,
                "allocations of a page in use: its free was lost",
            ),
            (self.freed_twice, "pages freed that were free: left alone"),
            (
                self.nr_senseless,
                "events whose page or order cannot be: left out",
            ),
        ] {
            if nr > 0 {
                writeln!(f, "note: {nr} {what}")?;
            }
        }
        Ok(())
    }

    fn write_orders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nblocks by order and kind")?;
        writeln!(
            f,
            "{:>5}{:>12}{:>12}{:>12}{:>10}{:>12}{:>10}{:>14}",
            "order",
            "unmovable",
            "movable",
            "reclaimable",
            "not said",
            "freed",
            "refused",
            "ours lacked"
        )?;
        let mut pages = [0_u64; NR_KINDS];
        for (order, counts) in self.by_order.iter().enumerate() {
            for (total, nr) in pages.iter_mut().zip(counts.allocs) {
                *total += nr << order;
            }
            let [unmovable, movable, reclaimable, unsaid] = [
                counts.allocs[Migratetype::Unmovable.index()],
                counts.allocs[Migratetype::Movable.index()],
                counts.allocs[Migratetype::Reclaimable.index()],
                counts.allocs[NR_KINDS - 1],
            ];
            if counts.allocs == [0; NR_KINDS] && counts.frees + counts.refused == 0 {
                continue;
            }
            writeln!(
                f,
                "{order:>5}{unmovable:>12}{movable:>12}{reclaimable:>12}{unsaid:>10}{:>12}{:>10}{:>14}",
                counts.frees, counts.refused, counts.not_served
            )?;
        }
        let [unmovable, movable, reclaimable] = Migratetype::ALL
            .map(|mt| (mt.index(), pages[mt.index()]))
            .map(|(_, nr)| nr);
        writeln!(
            f,
            "pages{unmovable:>12}{movable:>12}{reclaimable:>12}{:>10}",
            pages[NR_KINDS - 1]
        )?;
        let refused: u64 = self.by_order.iter().map(|counts| counts.refused).sum();
        let served: u64 = self
            .by_order
            .iter()
            .map(|counts| counts.served_though_refused)
            .sum();
        if refused > 0 {
            writeln!(
                f,
                "of {refused} requests that the kernel refused, ours had a block for {served} (it had what \
                 the trace does not show)"
            )?;
        }
        Ok(())
    }

    fn write_moments(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nfragmentation over time (kernel / ours)")?;
        writeln!(
            f,
            "{:>10}{:>14}{:>10}{:>19}{:>19}{:>19}",
            "events",
            "seconds",
            "in use",
            "unusable, 1/1000",
            "free pageblocks",
            "stuck pageblocks"
        )?;
        for moment in &self.moments {
            let time = moment
                .time
                .map_or("-".to_owned(), |time| format!("{time:.6}"));
            let Moment { kernel, ours, .. } = moment;
            writeln!(
                f,
                "{:>10}{time:>14}{:>10}{:>19}{:>19}{:>19}",
                moment.nr_events,
                moment.held,
                format!("{} / {}", kernel.unusable, ours.unusable),
                format!("{} / {}", kernel.free_pageblocks, ours.free_pageblocks),
                format!("{} / {}", kernel.stuck_pageblocks, ours.stuck_pageblocks)
            )?;
        }
        Ok(())
    }

    fn write_end(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(end) = self.moments.last() else {
            return Ok(());
        };
        writeln!(f, "\nat the end{:>46}{:>12}", "kernel", "ours")?;
        let mut row =
            |what: &str, kernel: u64, ours: u64| writeln!(f, "{what:<44}{kernel:>12}{ours:>12}");
        let scatter = |pick: fn(&Scatter) -> u64| (pick(&end.kernel), pick(&end.ours));
        for (what, (kernel, ours)) in [
            (
                "pageblocks wholly free",
                scatter(|side| side.free_pageblocks),
            ),
            (
                "pageblocks that unmovable pages are in",
                scatter(|side| side.stuck_pageblocks),
            ),
            (
                "pageblocks of mixed kinds",
                scatter(|side| side.mixed_pageblocks),
            ),
        ] {
            row(what, kernel, ours)?;
        }
        row(
            "single pages right behind the one before",
            self.neighbours[0],
            self.neighbours[1],
        )?;
        for (order, (kernel, ours)) in end
            .kernel
            .free_blocks
            .iter()
            .zip(&end.ours.free_blocks)
            .enumerate()
        {
            row(&format!("free blocks of order {order}"), *kernel, *ours)?;
        }
        let nr_allocs: u64 = self.by_order.iter().flat_map(|counts| counts.allocs).sum();
        writeln!(
            f,
            "of {nr_allocs} blocks ours put {} where the kernel did; {} single pages had one before them",
            self.nr_same_place, self.nr_followers
        )
    }
}
