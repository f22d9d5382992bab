//! The whole structure checked: allocator, owner table, counts, equations.
//!
//! Every page that a zone has handed out and does not keep in its own lists is lent exactly
//! once, by one head of the right order; all counts agree. Costs time by pages in use:
//! pageblocks that are wholly free and have nothing lent are passed by.

use hugepool_mm::{Pfn, PfnRange, SectionId, SectionState, Zone};

use crate::Engine;
use crate::cell::Cell;
use crate::id::ClientId;
use crate::num;
use crate::operation::Step;
use crate::report::PageCounts;
use crate::tally::Place;

/// Findings told in words; the rest is counted only.
const MAX_TOLD: usize = 100;

/// What a check of everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// What does not hold, one line each, the first 100; empty when all does.
    pub findings: Vec<String>,
    /// Findings in all.
    pub nr_findings: u64,
    /// Sum over all zones.
    pub pages: PageCounts,
    /// Pages looked at.
    pub nr_checked_pages: u64,
}

impl VerifyReport {
    /// Whether everything holds.
    pub fn is_ok(&self) -> bool {
        self.nr_findings == 0
    }

    fn find(&mut self, text: String) {
        self.nr_findings += 1;
        if self.findings.len() < MAX_TOLD {
            self.findings.push(text);
        }
    }

    fn expect(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.find(text());
        }
    }
}

/// Where each page of a section is accounted for, one bit a page.
#[derive(Clone, Debug)]
struct PageSet {
    start: u64,
    words: Vec<u64>,
}

impl PageSet {
    fn of(range: PfnRange) -> PageSet {
        let nr_words = range.nr_pages().div_ceil(64);
        PageSet {
            start: range.start,
            words: vec![0; usize::try_from(nr_words).unwrap_or(0)],
        }
    }

    /// Adds pages; false if any was there before or lies outside.
    fn add(&mut self, range: PfnRange) -> bool {
        let mut is_new = true;
        for pfn in range.start..range.end {
            let at = pfn.wrapping_sub(self.start);
            let word = usize::try_from(at / 64)
                .ok()
                .and_then(|at| self.words.get_mut(at));
            let Some(word) = word else { return false };
            is_new &= *word >> (at % 64) & 1 == 0;
            *word |= 1 << (at % 64);
        }
        is_new
    }

    /// The first page in which the two differ.
    fn first_difference(&self, other: &PageSet) -> Option<u64> {
        let words = self.words.iter().zip(&other.words).enumerate();
        let differing = words
            .map(|(at, (a, b))| (at, a ^ b))
            .find(|&(_, bits)| bits != 0);
        differing
            .map(|(at, bits)| self.start + num::count(at) * 64 + u64::from(bits.trailing_zeros()))
    }
}

impl Engine {
    /// Checks the contiguity caches alone, for those who look after every step: what is stale, in
    /// one line.
    ///
    /// # Errors
    /// The first stale answer.
    pub fn verify_contiguity(&self) -> Result<(), String> {
        let mut zones = self.custody.zones.iter();
        zones.try_for_each(|(_, zone, _)| zone.verify_contiguity().map_err(|e| e.to_string()))
    }

    /// Checks everything that can be checked from here.
    pub fn verify(&self) -> VerifyReport {
        let zones = &self.custody.zones;
        let mut report = VerifyReport {
            pages: zones.counts_of_all(),
            ..VerifyReport::default()
        };
        let mut owned = std::collections::BTreeMap::new();
        for (at, zone, settings) in zones.iter() {
            if let Err(error) = zone.verify() {
                report.find(format!("zone {}: {error}", settings.name));
            }
            let counts = zones.counts(at);
            report.expect(counts.adds_up(), || {
                format!(
                    "zone {}: the equations do not add up: {counts:?}",
                    settings.name
                )
            });
            let lent = self.custody.owners.tally().zone_pages(at);
            let out = counts.lent + zones.quarantined(at);
            report.expect(out == lent, || {
                let name = &settings.name;
                format!("zone {name}: {out} pages are out, {lent} are lent")
            });
            let mut nr_leaving = 0;
            for info in zone.sections() {
                nr_leaving += u32::from(info.state == SectionState::GoingOffline);
                self.verify_step(info.id, info.state, &mut report);
                if info.state.is_managed() {
                    self.verify_section(zone, info.id, &mut owned, &mut report);
                } else {
                    let lent = self.custody.owners.tally().section_pages(info.id.get());
                    report.expect(lent == 0, || {
                        format!(
                            "section {} is {} and has {lent} pages lent",
                            info.id, info.state
                        )
                    });
                }
            }
            let counted = zones.nr_leaving(at);
            report.expect(counted == nr_leaving, || {
                let name = &settings.name;
                format!("zone {name}: {nr_leaving} sections are leaving, {counted} counted")
            });
        }
        self.verify_accounts(&owned, &mut report);
        self.verify_intents(&owned, &mut report);
        self.verify_shares(&mut report);
        report
    }

    /// A shared page is lent, marked, and its owner is one of those who hold it.
    fn verify_shares(&self, report: &mut VerifyReport) {
        for pfn in self.custody.shares.heads() {
            let cell = self.custody.owners.cell(pfn);
            let is_right = matches!(cell, Cell::Lent(lent) if lent.is_shared
                && self.custody.shares.is_held_by(pfn, lent.generation, lent.client));
            report.expect(is_right, || {
                format!("page {pfn} is shared, and is {cell:?}")
            });
        }
    }

    /// A section is on its way exactly while an operation works on it; only what could not be
    /// given back may wait without one.
    fn verify_step(&self, section: SectionId, state: SectionState, report: &mut VerifyReport) {
        let row = self.custody.zones.section(section);
        let operation = row.and_then(|row| row.operation);
        let task = operation.and_then(|id| self.operations.get(id)?.step_of(section));
        let is_right = match state {
            SectionState::Absent | SectionState::Offline | SectionState::Online => {
                operation.is_none()
            }
            SectionState::Adding => matches!(task, Some(Step::Populating | Step::Unwinding)),
            SectionState::GoingOffline => task == Some(Step::Leaving),
            SectionState::Removing => operation.is_none() || task == Some(Step::Punching),
        };
        report.expect(is_right, || {
            format!("section {section} is {state}, operation {operation:?} is at {task:?} with it")
        });
    }

    /// What is under way has a new place in the daemon's custody, and nothing else is there.
    fn verify_intents(
        &self,
        owned: &std::collections::BTreeMap<ClientId, u64>,
        report: &mut VerifyReport,
    ) {
        let mut nr_pages = 0;
        for intent in self.custody.intents.iter() {
            let cell = self.custody.owners.cell(intent.new);
            nr_pages += u64::from(intent.lent.order.nr_pages());
            let is_there = matches!(cell, Cell::Lent(lent) if lent.client == ClientId::DAEMON
                && lent.order == intent.lent.order);
            report.expect(is_there, || {
                format!("a block is on its way to {}, which is {cell:?}", intent.new)
            });
        }
        let counted = owned.get(&ClientId::DAEMON).copied().unwrap_or(0);
        report.expect(counted == nr_pages, || {
            format!("{counted} pages are the daemon's, {nr_pages} are being moved to")
        });
    }

    /// What is not free in a section is in the zone's lists or lent, and nothing else is.
    fn verify_section(
        &self,
        zone: &Zone,
        section: SectionId,
        owned: &mut std::collections::BTreeMap<ClientId, u64>,
        report: &mut VerifyReport,
    ) {
        let range = zone.geometry().section_range(section);
        report.nr_checked_pages += range.nr_pages();
        let mut out = PageSet::of(range);
        for pageblock in zone.pageblocks(section) {
            if pageblock.nr_free < zone.geometry().pageblock_pages() {
                for run in zone.held_runs(pageblock.start) {
                    out.add(run);
                }
            }
        }
        let mut known = PageSet::of(range);
        for (pfn, order) in zone.pcp_blocks().filter(|&(pfn, _)| range.contains(pfn)) {
            report.expect(known.add(pfn.block(order)), || {
                format!("the block at {pfn} is in the zone's lists twice, or across an edge")
            });
        }
        let mut lent_pages = 0;
        for block in 0..num::index(zone.geometry().section_pageblocks()) {
            let place = Place {
                section: section.get(),
                block,
            };
            let mut pages = 0;
            self.custody.owners.for_each_cell(place, &mut |pfn, lent| {
                pages += u64::from(lent.order.nr_pages());
                *owned.entry(lent.client).or_insert(0) += u64::from(lent.order.nr_pages());
                report.expect(pfn.is_aligned(lent.order), || {
                    format!(
                        "no block of order {} starts at {pfn}, but it is lent",
                        lent.order
                    )
                });
                let is_known =
                    lent.client == ClientId::DAEMON || self.clients.get(lent.client).is_some();
                report.expect(is_known, || {
                    format!(
                        "page {pfn} is lent to client {}, who is not there",
                        lent.client
                    )
                });
                report.expect(known.add(pfn.block(lent.order)), || {
                    format!("the block at {pfn} is lent, and a page of it is elsewhere too")
                });
            });
            let counts = self.custody.owners.tally().section_blocks(section.get());
            let counted = u64::from(counts.get(block).copied().unwrap_or(0));
            report.expect(counted == pages, || {
                format!("section {section}, pageblock {block}: {pages} lent, {counted} counted")
            });
            lent_pages += pages;
        }
        let counted = self.custody.owners.tally().section_pages(section.get());
        report.expect(counted == lent_pages, || {
            format!("section {section}: {lent_pages} pages lent, {counted} counted")
        });
        if let Some(pfn) = out.first_difference(&known) {
            let is_out = zone.is_free(Pfn::new(num::saturate(pfn)));
            let text = if is_out {
                "free, and lent or listed"
            } else {
                "neither free, lent nor listed"
            };
            report.find(format!("page {pfn} of section {section} is {text}"));
        }
    }

    /// What each client owns is what its account says.
    fn verify_accounts(
        &self,
        owned: &std::collections::BTreeMap<ClientId, u64>,
        report: &mut VerifyReport,
    ) {
        for client in self.clients.iter() {
            let account = self.custody.owners.tally().client(client.id);
            let counted = account.map_or(0, |account| account.pages);
            let by_section =
                account.map_or(0, |account| account.sections().map(|row| row.pages).sum());
            let by_block: u64 = account.map_or(0, |account| {
                let blocks = account.sections().flat_map(|row| row.blocks.iter());
                blocks.map(|block| u64::from(block.pages)).sum()
            });
            let pages = owned.get(&client.id).copied().unwrap_or(0);
            report.expect(
                pages == counted && by_section == counted && by_block == counted,
                || {
                    format!(
                        "client {}: {pages} pages by cells, {counted} counted, {by_section} by \
                     section, {by_block} by pageblock",
                        client.id
                    )
                },
            );
        }
    }
}
