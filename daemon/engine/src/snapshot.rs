//! The engine's reports, put together from counters; only `ListPages` and the holders of a
//! refused section walk pages.

use hugepool_mm::{Pfn, PfnRange};

use crate::Engine;
use crate::client::Client;
use crate::command::{CommandError, ListPages};
use crate::id::{ClientId, Now, millis};
use crate::info::{
    ContiguityReport, PageTypeReport, PageTypeRow, Pageset, ZoneBuddyInfo, ZoneInfo,
};
use crate::num;
use crate::report::{
    BackingUse, ClientReport, HeldRun, OperationReport, PageList, SectionReport, StatusReport,
    Watermarks, ZoneReport,
};
use crate::tally::Place;
use crate::zones::ZoneIndex;

/// The most runs of one `ListPages`.
const MAX_RUNS: u32 = 1000;

impl Engine {
    /// The whole, in one line.
    pub fn status(&self) -> StatusReport {
        let nr_linked = self
            .clients
            .iter()
            .filter(|client| client.link.is_some())
            .count();
        let nr_all = self.clients.iter().count();
        StatusReport {
            geometry: self.custody.zones.geometry(),
            pages: self.custody.zones.counts_of_all(),
            nr_zones: num::saturate(num::count(self.custody.zones.len())),
            nr_clients: num::saturate(num::count(nr_linked)),
            nr_connections: num::saturate(num::count(nr_all - nr_linked)),
            nr_misuses: self.nr_misuses,
            nr_reclaimed_pages: self.nr_reclaimed_pages,
            nr_move_faults: self.nr_move_faults,
            nr_operations: num::saturate(num::count(self.operations.nr_running())),
        }
    }

    /// Pages that a client or connection is custodian of; `None` if there is no such.
    pub fn owned_pages(&self, id: ClientId) -> Option<u64> {
        self.clients.get(id)?;
        self.custody
            .owners
            .tally()
            .client(id)
            .map(|account| account.pages)
    }

    /// Pages that are the daemon's own because blocks are being moved to them.
    pub fn pages_on_their_way(&self) -> u64 {
        let account = self.custody.owners.tally().client(ClientId::DAEMON);
        account.map_or(0, |account| account.pages)
    }

    /// The most pages that a client or connection may own, if there is a most.
    pub fn ceiling_pages(&self, id: ClientId) -> Option<u64> {
        self.custody.limits.client(id)?.ceiling_pages
    }

    /// The zones, by index.
    pub fn list_zones(&self) -> Vec<ZoneReport> {
        let zones = self
            .custody
            .zones
            .iter()
            .map(|(at, zone, settings)| ZoneReport {
                zone: zone.id(),
                name: settings.name.clone(),
                kind: settings.kind,
                node: settings.node,
                start: zone.config().start,
                reserve_pages: settings.reserve_pages,
                pages: self.custody.zones.counts(at),
                watermarks: watermarks(zone.watermarks()),
                pressure: self.balance.told(at),
                backing: self.backing_of(at),
                ceiling_pages: settings.ceiling_pages,
                floor_pages: settings.floor_pages,
                quarantined_pages: self.custody.zones.quarantined(at),
            });
        zones.collect()
    }

    fn backing_of(&self, at: usize) -> Vec<BackingUse> {
        let mut uses: Vec<BackingUse> = Vec::new();
        for section in self.custody.zones.zone(at).sections() {
            let row = self.custody.zones.section(section.id);
            let Some(backing) = row.and_then(|row| row.backing.as_ref()) else {
                continue;
            };
            let known = uses.iter().position(|one| one.name == backing.name);
            let at = known.unwrap_or_else(|| {
                let name = backing.name.clone();
                uses.push(BackingUse {
                    name,
                    nr_sections: 0,
                    not_taken: Vec::new(),
                });
                uses.len() - 1
            });
            uses[at].nr_sections += 1;
            for line in &backing.not_taken {
                if !uses[at].not_taken.contains(line) {
                    uses[at].not_taken.push(line.clone());
                }
            }
        }
        uses
    }

    /// The sections of these zones that are not absent, by id.
    pub(crate) fn list_sections(&self, zones: &[usize]) -> Vec<SectionReport> {
        let mut reports = Vec::new();
        for &at in zones {
            for info in self.custody.zones.zone(at).sections() {
                let Some(row) = self.custody.zones.section(info.id) else {
                    continue;
                };
                let lent = self.custody.owners.tally().section_pages(info.id.get());
                reports.push(SectionReport {
                    section: info.id,
                    zone: ZoneIndex(at).id(),
                    zone_name: self.custody.zones.settings(at).name.clone(),
                    start: info.start,
                    nr_pages: info.nr_pages,
                    state: info.state,
                    backing: row.backing.clone(),
                    free: info.free + info.held.saturating_sub(lent),
                    lent,
                    isolated: info.isolated,
                    incarnation: row.incarnation,
                });
            }
        }
        reports
    }

    /// Clients and connections, by slot.
    pub fn list_clients(&self, now: Now) -> Vec<ClientReport> {
        self.clients
            .iter()
            .map(|client| self.report_client(client, now))
            .collect()
    }

    fn report_client(&self, client: &Client, now: Now) -> ClientReport {
        let pageblock_order = self.custody.zones.geometry().pageblock_order();
        let lanes: Vec<_> = client.link.as_ref().map_or_else(Vec::new, |link| {
            link.lanes
                .iter()
                .map(|lane| lane.report(pageblock_order))
                .collect()
        });
        let lent = self
            .custody
            .owners
            .tally()
            .client(client.id)
            .map_or(0, |row| row.pages);
        // By the client's word: more than it owns it cannot have there.
        let in_lanes = lanes
            .iter()
            .map(|lane| lane.granted + lane.magazine)
            .sum::<u64>()
            .min(lent);
        ClientReport {
            client: client.id,
            pid: client.pid,
            uid: client.uid,
            gid: client.gid,
            name: client.name.clone(),
            state: client.state,
            is_connection: client.link.is_none(),
            lent,
            in_lanes,
            held: lent - in_lanes,
            nr_misuses: client.nr_misuses,
            last_misuse: client.last_misuse.map(|misuse| misuse.to_string()),
            nr_moved_pages: client.nr_moved_pages,
            nr_evicted_pages: client.nr_evicted_pages,
            attached_ms: millis(now.saturating_sub(client.attached_at)),
            uses_membarrier: client
                .link
                .as_ref()
                .is_some_and(|link| link.uses_membarrier),
            ceiling_pages: self.ceiling_pages(client.id),
            lanes,
        }
    }

    /// Who holds what since when.
    pub(crate) fn list_pages(
        &self,
        request: &ListPages,
        now: Now,
    ) -> Result<PageList, CommandError> {
        let client = request.slot.map(|slot| self.client_in(slot)).transpose()?;
        let zones = self.zones_named(request.zone.as_deref())?;
        if let Some(section) = request
            .section
            .filter(|&id| self.custody.zones.section(id).is_none())
        {
            return Err(CommandError::NoSuchSection { section });
        }
        let limit = match request.limit {
            0 => MAX_RUNS,
            limit => limit.min(MAX_RUNS),
        };
        let mut list = PageList::default();
        for place in self.lent_places(&zones, request) {
            self.custody.owners.for_each_head(place, &mut |pfn, lent| {
                let is_asked = u64::from(pfn.get()) >= request.from_pfn
                    && lent.client != ClientId::DAEMON
                    && client.is_none_or(|client| client == lent.client);
                if !is_asked || list.next.is_some() {
                    return;
                }
                let run = HeldRun {
                    first: pfn,
                    nr_blocks: 1,
                    order: lent.order,
                    generation: lent.generation,
                    client: lent.client,
                    pid: self.clients.get(lent.client).map_or(0, |client| client.pid),
                    migratetype: lent.migratetype,
                    age_ms: self.age_ms(lent.client, pfn, now),
                };
                let is_full = list.runs.len() >= num::index(limit);
                match list.runs.last_mut().filter(|last| follows(last, &run)) {
                    Some(last) => last.nr_blocks += 1,
                    None if is_full => list.next = Some(u64::from(pfn.get())),
                    None => list.runs.push(run),
                }
            });
            if list.next.is_some() {
                break;
            }
        }
        Ok(list)
    }

    /// The pageblocks out of which something is lent, from the one asked for on.
    fn lent_places(&self, zones: &[usize], request: &ListPages) -> Vec<Place> {
        let geometry = self.custody.zones.geometry();
        let tally = self.custody.owners.tally();
        let mut places = Vec::new();
        for &at in zones {
            for info in self.custody.zones.zone(at).sections() {
                let range = PfnRange::new(info.start, info.nr_pages);
                if request.section.is_some_and(|id| id != info.id) || range.end <= request.from_pfn
                {
                    continue;
                }
                let blocks = tally.section_blocks(info.id.get()).iter().enumerate();
                let lent = blocks
                    .filter(|&(_, &pages)| pages > 0)
                    .map(|(block, _)| block);
                places.extend(lent.map(|block| Place {
                    section: info.id.get(),
                    block,
                }));
            }
        }
        let first = geometry.section_order();
        let pageblock = |place: &Place| (u64::from(place.section) << first, place.block);
        places.sort_by_key(pageblock);
        places
    }

    /// Those that run and those that have ended, by id.
    pub(crate) fn list_operations(&self, now: Now) -> Vec<OperationReport> {
        let mut reports: Vec<OperationReport> = self.operations.all_ended().cloned().collect();
        let running = self.operations.running();
        reports.extend(running.map(|operation| operation.report(&self.custody.zones, now, true)));
        reports.sort_by_key(|report| report.id);
        reports
    }

    pub(crate) fn contiguity(&self, zones: &[usize]) -> Vec<ContiguityReport> {
        let report = |&at: &usize| {
            let zone = self.custody.zones.zone(at);
            let report = zone.contiguity();
            let span = zone.span();
            let pageblock_pages = u64::from(zone.geometry().pageblock_pages());
            let (mut pb_cached, mut pb_contiguous) = (Bits::default(), Bits::default());
            let mut start = span.start;
            while start < span.end {
                let block = zone.pageblock(Pfn::new(num::saturate(start)));
                let answer = block.and_then(|block| block.contiguity);
                pb_cached.push(answer.is_some());
                pb_contiguous.push(answer == Some(true));
                start += pageblock_pages;
            }
            ContiguityReport {
                zone: zone.name().to_owned(),
                mode: report.mode.name(),
                contiguous: report.zone == Some(true),
                nr_hits: report.zone_hits + report.pageblock_hits,
                nr_misses: report.misses,
                nr_walks: report.walks,
                nr_pageblocks: span.nr_pages() / pageblock_pages,
                nr_pb_cached: report.nr_cached,
                nr_pb_contiguous: report.nr_contiguous,
                pb_cached: pb_cached.bytes,
                pb_contiguous: pb_contiguous.bytes,
                first: Pfn::new(num::saturate(span.start)),
            }
        };
        zones.iter().map(report).collect()
    }

    pub(crate) fn buddy_info(&self, zones: &[usize]) -> Vec<ZoneBuddyInfo> {
        let line = |&at: &usize| ZoneBuddyInfo {
            node: self.custody.zones.settings(at).node,
            zone: self.custody.zones.settings(at).name.clone(),
            free_blocks_by_order: self.custody.zones.zone(at).buddyinfo(),
        };
        zones.iter().map(line).collect()
    }

    pub(crate) fn page_type_info(&self, zones: &[usize]) -> Vec<PageTypeReport> {
        let report = |&at: &usize| PageTypeReport {
            node: self.custody.zones.settings(at).node,
            zone: self.custody.zones.settings(at).name.clone(),
            rows: self
                .custody
                .zones
                .zone(at)
                .pagetypeinfo()
                .rows
                .map(|row| PageTypeRow {
                    name: row.name(),
                    free_blocks_by_order: row.free_blocks,
                    nr_pageblocks: row.nr_pageblocks,
                })
                .into(),
        };
        zones.iter().map(report).collect()
    }

    pub(crate) fn zone_info(&self, zones: &[usize]) -> Vec<ZoneInfo> {
        let report = |&at: &usize| {
            let zone = self.custody.zones.zone(at);
            let info = zone.zoneinfo();
            let span = zone.span();
            ZoneInfo {
                node: self.custody.zones.settings(at).node,
                zone: info.name,
                pages: self.custody.zones.counts(at),
                watermarks: watermarks(info.watermarks),
                protection: info.protection,
                start: if span.is_empty() {
                    info.start
                } else {
                    Pfn::new(num::saturate(span.start))
                },
                pagesets: vec![Pageset {
                    cpu: 0,
                    count: info.pcp_count,
                    high: info.pcp_high,
                    batch: info.pcp_batch,
                }],
            }
        };
        zones.iter().map(report).collect()
    }
}

fn watermarks(marks: hugepool_mm::Watermarks) -> Watermarks {
    Watermarks {
        min: marks.min,
        low: marks.low,
        high: marks.high,
    }
}

/// Whether a block goes on where a run ends, and is alike.
fn follows(run: &HeldRun, next: &HeldRun) -> bool {
    let nr_pages = run.nr_blocks.saturating_mul(run.order.nr_pages());
    run.first.checked_add(nr_pages) == Some(next.first)
        && run.order == next.order
        && run.generation == next.generation
        && run.client == next.client
        && run.migratetype == next.migratetype
        && run.age_ms == next.age_ms
}

/// Bits, lowest first.
#[derive(Clone, Debug, Default)]
struct Bits {
    bytes: Vec<u8>,
    len: usize,
}

impl Bits {
    fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut().filter(|_| bit) {
            *last |= 1 << (self.len % 8);
        }
        self.len += 1;
    }
}
