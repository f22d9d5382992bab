//! What must hold: sums, pageblocks, contiguity answers.
//!
//! After each step only what it touched is looked at, which is what makes a million steps a
//! matter of seconds; [`Host::verify`] looks at everything.

use hugepool_mm::{Pfn, SectionState};

use super::Host;
use super::build::HostZone;
use crate::model::Broken;

impl Host {
    /// Checks what was touched since the last check.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&mut self) -> Result<(), Broken> {
        let mut touched = core::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        let mut last = usize::MAX;
        for &(zone, block) in &touched {
            if zone != last {
                self.check_sums(zone)?;
                last = zone;
            }
            self.check_pageblock(zone, block)?;
        }
        touched.clear();
        self.touched = touched;
        for (zone, section) in core::mem::take(&mut self.hot) {
            self.check_sums(zone)?;
            self.check_contiguity(zone, section)?;
            self.check_records(zone, section)?;
        }
        Ok(())
    }

    /// Checks everything.
    ///
    /// # Errors
    /// What does not hold.
    pub fn verify(&self) -> Result<(), Broken> {
        for (at, host) in self.zones.iter().enumerate() {
            host.zone
                .verify()
                .map_err(|error| format!("zone {}: {error}", self.zone_name(at)))?;
            self.check_sums(at)?;
            for info in host
                .zone
                .sections()
                .filter(|info| info.state == SectionState::Online)
            {
                let first = host.held.block_of(info.start);
                let nr = info.nr_pages >> self.geometry.pageblock_order().get();
                let nr = usize::try_from(nr).expect("a section is small");
                for block in first..first + nr {
                    self.check_pageblock(at, block)?;
                }
            }
        }
        for (&section, row) in &self.sections {
            if row.zones.is_empty() {
                (0..self.zones.len()).try_for_each(|at| self.check_records(at, section))?;
            }
        }
        let nr_listed: u64 = self.clients.iter().map(|client| client.nr_pages).sum();
        let mut nr_noted = 0;
        for client in &self.clients {
            for loc in &client.blocks {
                let entry = self.zones[loc.zone()].held.get(loc.pfn);
                nr_noted += entry.map_or(0, |entry| 1_u64 << entry.order);
            }
        }
        if nr_listed != nr_noted {
            return Err(format!(
                "clients list {nr_listed} pages, {nr_noted} are noted as theirs"
            ));
        }
        Ok(())
    }

    fn check_sums(&self, at: usize) -> Result<(), Broken> {
        let host = &self.zones[at];
        let counts = host.zone.counts();
        let held = host.held.nr_pages() - host.held.nr_counted_out() + host.held.past.nr_pages();
        if counts.lent != held {
            return Err(format!(
                "zone {}: {} pages are lent, {held} are held by somebody",
                self.zone_name(at),
                counts.lent
            ));
        }
        if counts.reserved != host.held.nr_counted_out() {
            return Err(format!(
                "zone {}: {} pages are not managed, {} are counted out",
                self.zone_name(at),
                counts.reserved,
                host.held.nr_counted_out()
            ));
        }
        Ok(())
    }

    fn check_pageblock(&self, at: usize, block: usize) -> Result<(), Broken> {
        let host = &self.zones[at];
        // Pages in the zone's own lists are neither free nor anybody's.
        if host.zone.counts().pcp > 0 {
            return Ok(());
        }
        let page = u32::try_from(block).expect("pageblocks of 2^32 pages")
            << self.geometry.pageblock_order().get();
        let pfn = host.held.pfn_of(page);
        let Some(info) = host.zone.pageblock(pfn) else {
            return self.check_unmanaged(host, block, pfn);
        };
        let covered = host.held.nr_covered(block, self.geometry.max_order());
        let held = covered + host.held.past.count(block);
        let exists = present_in(host, pfn, self.geometry.pageblock_pages());
        if info.nr_free + held != exists {
            return Err(format!(
                "pageblock at pfn {pfn} of zone {}: {} free and {held} held pages of {exists}",
                self.zone_name(at),
                info.nr_free
            ));
        }
        Ok(())
    }

    /// A block that a zone does not have online has records that nobody has written.
    fn check_records(&self, at: usize, section: u64) -> Result<(), Broken> {
        let row = self.sections.get(&section);
        if row.is_some_and(|row| row.zones.contains(&at)) {
            return Ok(());
        }
        let held = &self.zones[at].held;
        let mut blocks = self.blocks_in(at, section).into_iter();
        match blocks.find(|&block| !held.is_poisoned(block)) {
            Some(block) => Err(format!(
                "zone {}: the records of pageblock {block} were written, and block {section} is \
                 not online in it",
                self.zone_name(at)
            )),
            None => Ok(()),
        }
    }

    fn check_unmanaged(&self, host: &HostZone, block: usize, pfn: Pfn) -> Result<(), Broken> {
        if host.held.is_poisoned(block) {
            return Ok(());
        }
        let held =
            host.held.nr_covered(block, self.geometry.max_order()) + host.held.past.count(block);
        if held > 0 {
            return Err(format!(
                "{held} pages are held in pageblock {pfn}, which is not managed"
            ));
        }
        Ok(())
    }

    /// Asks the caches, and holds their answers against the honest ones.
    fn check_contiguity(&mut self, at: usize, section: u64) -> Result<(), Broken> {
        let pageblock = u64::from(self.geometry.pageblock_pages());
        let pages = u64::from(self.geometry.section_pages());
        let name = self.zone_name(at);
        let host = &mut self.zones[at];
        let span = host.zone.span();
        let ends = [span.start, span.end.saturating_sub(1)];
        let inside = (section * pages..(section + 1) * pages)
            .step_by(usize::try_from(pageblock).expect("a pageblock is small"))
            .filter_map(|pfn| host.ours(pfn));
        let asked: Vec<Pfn> = ends
            .iter()
            .filter_map(|end| u32::try_from(*end).ok().map(Pfn::new))
            .chain(inside)
            .collect();
        for pfn in asked {
            let honest = host.zone.is_whole_pageblock(pfn);
            if host.zone.pageblock_pfn_to_page(pfn).is_some() != honest {
                return Err(format!(
                    "zone {name}: a cache says that pageblock {pfn} is{} whole",
                    if honest { " not" } else { "" }
                ));
            }
        }
        Ok(())
    }
}

/// Pages of a pageblock that exist.
fn present_in(host: &HostZone, pfn: Pfn, pageblock_pages: u32) -> u32 {
    let geometry = host.zone.geometry();
    if host.zone.is_whole_pageblock(pfn) {
        return pageblock_pages;
    }
    let block = pfn.block(geometry.pageblock_order());
    let extents = host.zone.extents(geometry.section_of(pfn));
    let pages: u64 = extents
        .iter()
        .map(|extent| extent.intersect(block).nr_pages())
        .sum();
    u32::try_from(pages).expect("a pageblock is small")
}
