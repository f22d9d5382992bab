//! An engine and its clients in one thread: the daemon's part and the clients' both played
//! here, over segments on the heap, in told time.
//!
//! Tiny geometry: pageblocks of 32 pages, sections of 128, so that edges come early.
#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use hugepool_engine::{
    AllocBulk, AllocOutcome, AllocReply, AttachSpec, Backing, BlockCopy, ClientId, ClientReport,
    Command, Defaults, Effect, Engine, EngineConfig, Now, OperationReport, OperationState, Outside,
    PageCounts, Patience, Quarantine, Reply, Sections, SectionsRequest, StateShape, StateWords,
    ZoneSettings,
};
use hugepool_mm::{Geometry, Migratetype, Pfn, SectionId, ZoneId, ZoneKind};
use hugepool_shm::control::ControlSegment;
use hugepool_shm::lane_client::{LaneClient, LaneTerms, Miss};
use hugepool_shm::raw::{Class, RawMigratetype, RawPage};

/// Order-0 unmovable pages.
pub const PAGE: Class = Class::PAGE;

/// Order-0 movable pages.
pub fn movable() -> Class {
    Class::new(0, RawMigratetype::Movable, 5).unwrap()
}

/// Counts what the engine asks for at once.
#[derive(Debug, Default)]
pub struct Counted {
    pub nr_barriers: u32,
    pub woken: Vec<ClientId>,
}

impl Outside for Counted {
    fn barrier(&mut self) {
        self.nr_barriers += 1;
    }

    fn wake(&mut self, client: ClientId) {
        self.woken.push(client);
    }
}

/// The engine, the time, and what the runner would do.
pub struct Rig {
    pub engine: Engine,
    /// Outlives the engine.
    pub state: StateWords,
    pub now: Now,
    pub outside: Counted,
    /// Effects that [`Rig::settle_effects`] has carried out.
    pub effects: Vec<Effect>,
    /// Effects that the runner has been handed and not begun.
    pub left: Vec<Effect>,
    /// What the pages hold, a number each.
    pub bytes: Vec<u64>,
}

/// A client as its process has it.
pub struct Tenant {
    pub id: ClientId,
    pub segment: ControlSegment,
    pub terms: LaneTerms,
}

/// Settings of a zone that holds `sections` sections at most.
pub fn zone(name: &str, kind: ZoneKind, sections: u64) -> ZoneSettings {
    ZoneSettings {
        name: name.to_owned(),
        kind,
        node: -1,
        reserve_pages: sections * 128,
        ceiling_pages: None,
        floor_pages: 0,
        quarantine: Quarantine::None,
    }
}

/// 4 KiB pages, pageblocks of 32, largest block of 64, sections of 128 pages.
pub fn tiny() -> Geometry {
    Geometry::new(12, 5, 6, 7).unwrap()
}

impl Rig {
    /// One normal zone of `sections` sections, all online, and one movable one of as many, all
    /// absent.
    pub fn new(sections: u32) -> Rig {
        let reserve = u64::from(sections);
        let zones = vec![
            zone("normal", ZoneKind::Normal, reserve),
            zone("movable", ZoneKind::Movable, reserve),
        ];
        let mut rig = Rig::with(zones, Defaults::default());
        rig.add("normal", sections);
        rig
    }

    /// These zones, all their sections absent.
    pub fn with(zones: Vec<ZoneSettings>, defaults: Defaults) -> Rig {
        let config = EngineConfig {
            geometry: tiny(),
            zones,
            defaults,
        };
        let state = StateWords::private(&StateShape::of(&config)).unwrap();
        Rig::over(config, state)
    }

    /// The same over these words.
    pub fn over(config: EngineConfig, state: StateWords) -> Rig {
        let engine = Engine::with_state(config, state.clone()).unwrap();
        let nr_pages = engine.control_geometry(1).nr_pages;
        let now = Duration::from_secs(100);
        Rig {
            engine,
            state,
            now,
            outside: Counted::default(),
            effects: Vec::new(),
            left: Vec::new(),
            bytes: vec![0; usize::try_from(nr_pages).unwrap()],
        }
    }

    pub fn apply(&mut self, command: Command) -> Reply {
        self.engine
            .apply(command, self.now, &mut self.outside)
            .unwrap()
    }

    /// Carries out what the engine left to the runner, all of it with success.
    pub fn settle_effects(&mut self) {
        loop {
            let mut effects = std::mem::take(&mut self.left);
            effects.extend(self.engine.take_effects());
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match &effect {
                    Effect::Move { batch } => {
                        let answer = batch.carry_out(&mut |copy| copy_bytes(&mut self.bytes, copy));
                        self.engine.moved(answer, self.now, &mut self.outside);
                    }
                    &Effect::Populate { section, .. } => {
                        let backing = Backing {
                            name: "heap".to_owned(),
                            node: -1,
                            not_taken: Vec::new(),
                        };
                        self.engine.populated(section, Ok(backing), self.now);
                    }
                    &Effect::Punch { section, .. } => {
                        self.engine.punched(section, Ok(()), self.now)
                    }
                    Effect::Close { .. } | Effect::Kill { .. } | Effect::Forget { .. } => {}
                }
                self.effects.push(effect);
            }
        }
    }

    /// Applies a command that is an operation, and drives it to its end.
    pub fn operate(&mut self, command: Command) -> OperationReport {
        let Reply::Operation(begun) = self.apply(command) else {
            panic!("no operation")
        };
        self.finish(begun)
    }

    /// Drives an operation to its end, 10 ms at a time.
    pub fn finish(&mut self, begun: OperationReport) -> OperationReport {
        let mut report = begun;
        for _ in 0..10_000 {
            self.settle_effects();
            if report.id.0 == 0 {
                return report;
            }
            let Reply::Operation(now) = self.apply(Command::GetOperation { id: report.id }) else {
                panic!("no operation")
            };
            report = now;
            if report.state != OperationState::Running {
                return report;
            }
            self.now += Duration::from_millis(10);
            self.poll();
        }
        panic!("{report:?} does not end");
    }

    pub fn poll(&mut self) -> Option<Now> {
        self.engine.poll(self.now, &mut self.outside)
    }

    pub fn advance(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        self.poll();
    }

    pub fn service(&mut self) -> usize {
        self.engine.service(self.now, &mut self.outside, None)
    }

    /// Adds and onlines sections at the lowest absent places.
    pub fn add(&mut self, zone: &str, count: u32) -> OperationReport {
        let request = request(zone, Sections::Count(count));
        let report = self.operate(Command::AddSections {
            request,
            online_order: None,
            keep_offline: false,
        });
        assert_eq!(report.state, OperationState::Done, "{report:?}");
        report
    }

    pub fn offline(&mut self, ids: &[u32], timeout_ms: u64) -> OperationReport {
        let request = by_ids(ids);
        let timeout = Some(Duration::from_millis(timeout_ms));
        self.operate(Command::OfflineSections { request, timeout })
    }

    pub fn remove(&mut self, ids: &[u32]) -> OperationReport {
        self.operate(Command::RemoveSections {
            request: by_ids(ids),
        })
    }

    pub fn spec(&self, pid: u32) -> AttachSpec {
        let Reply::Zones(zones) = self.list_zones() else {
            panic!()
        };
        let zones: Vec<ZoneId> = zones.iter().map(|zone| zone.zone).collect();
        AttachSpec {
            uid: 1000,
            gid: 1000,
            pid,
            name: format!("tenant-{pid}"),
            client_index: 3,
            secret: [7; 16],
            zones,
        }
    }

    fn list_zones(&self) -> Reply {
        Reply::Zones(self.engine.list_zones())
    }

    /// A client in service, with everything mapped.
    pub fn tenant(&mut self, nr_lanes: u32) -> Tenant {
        let spec = self.spec(4000);
        let tenant = self.attach(spec, nr_lanes);
        tenant.map_all();
        tenant
    }

    /// A client in service that has mapped nothing yet.
    pub fn attach(&mut self, spec: AttachSpec, nr_lanes: u32) -> Tenant {
        let geometry = self.engine.control_geometry(nr_lanes);
        let segment = ControlSegment::heap(geometry).unwrap();
        let client_index = spec.client_index;
        let id = self.engine.attach(spec, segment.clone(), self.now).unwrap();
        self.engine.ready(id, true).unwrap();
        let terms = LaneTerms {
            client_index,
            pageblock_order: 5,
            registered: true,
        };
        Tenant { id, segment, terms }
    }

    /// Takes `count` blocks of a class from a lane, asking the daemon when it has none.
    pub fn take(&mut self, tenant: &Tenant, lane: u32, class: Class, count: usize) -> Vec<RawPage> {
        let mut pages = Vec::new();
        for _ in 0..100 {
            let lane = tenant.lane(lane);
            let mut out = vec![RawPage::from_bits(0); count - pages.len()];
            let taken = lane.take_raw(class, &mut out);
            pages.extend_from_slice(&out[..taken.count]);
            if pages.len() == count {
                return pages;
            }
            lane.want(class, u32::try_from(count - pages.len()).unwrap());
            if self.service() == 0 {
                break;
            }
        }
        pages
    }

    /// One call for blocks, answered at once.
    pub fn alloc(&mut self, id: ClientId, order: u32, nr_blocks: u32) -> AllocReply {
        let request = alloc(order, nr_blocks);
        match self.alloc_bulk(id, &request) {
            AllocOutcome::Done(reply) => reply,
            AllocOutcome::Waiting { .. } => panic!("did not ask to wait"),
        }
    }

    pub fn alloc_bulk(&mut self, id: ClientId, request: &AllocBulk) -> AllocOutcome {
        self.engine
            .alloc_bulk(id, request, Patience::None, self.now, &mut self.outside)
            .unwrap()
    }

    pub fn client(&self, id: ClientId) -> ClientReport {
        let clients = self.engine.list_clients(self.now);
        clients
            .into_iter()
            .find(|client| client.client == id)
            .unwrap()
    }

    /// Free pages of the first zone above its mark, those in the daemon's own lists too.
    pub fn list_free(&self) -> u64 {
        let zones = self.engine.list_zones();
        let counts = &zones[0].pages;
        (counts.free + counts.pcp).saturating_sub(zones[0].watermarks.min)
    }

    pub fn pages(&self) -> PageCounts {
        self.engine.status().pages
    }

    /// Checks everything.
    #[track_caller]
    pub fn verify(&self) {
        let report = self.engine.verify();
        assert!(report.is_ok(), "{report:#?}");
    }
}

impl Tenant {
    /// Marks every announced section as mapped.
    pub fn map_all(&self) {
        for section in 0..self.segment.geometry().nr_sections {
            self.segment
                .mark_mapped(section, self.segment.announced(section));
        }
        self.segment.mark_mapped_epoch(self.segment.section_epoch());
    }

    /// The client's side of one lane, as its thread has it.
    pub fn lane(&self, index: u32) -> LaneClient<'_> {
        LaneClient::new(&self.segment, index, self.terms, None).unwrap()
    }

    pub fn put(&self, lane: u32, pages: &[RawPage]) {
        self.lane(lane).put_raw(pages);
    }

    /// Takes without asking the daemon.
    pub fn take_there(
        &self,
        lane: u32,
        class: Class,
        count: usize,
    ) -> (Vec<RawPage>, Option<Miss>) {
        let mut out = vec![RawPage::from_bits(0); count];
        let taken = self.lane(lane).take_raw(class, &mut out);
        out.truncate(taken.count);
        (out, taken.miss)
    }
}

/// Copies a block, as the runner does.
pub fn copy_bytes(bytes: &mut [u64], copy: &BlockCopy) -> bool {
    let at = |pfn: Pfn| usize::try_from(pfn.get()).unwrap();
    let nr_pages = usize::try_from(copy.nr_pages).unwrap();
    bytes.copy_within(at(copy.from)..at(copy.from) + nr_pages, at(copy.to));
    true
}

/// A request for sections of a zone.
pub fn request(zone: &str, sections: Sections) -> SectionsRequest {
    SectionsRequest {
        zone: Some(zone.to_owned()),
        sections,
        dry_run: false,
    }
}

/// A request for sections by id.
pub fn by_ids(ids: &[u32]) -> SectionsRequest {
    let ids = ids.iter().copied().map(SectionId::new).collect();
    SectionsRequest {
        zone: None,
        sections: Sections::Ids(ids),
        dry_run: false,
    }
}

/// A call without an id, for unmovable blocks of the caller's own zones.
pub fn alloc(order: u32, nr_blocks: u32) -> AllocBulk {
    AllocBulk {
        request_id: 0,
        acknowledged: 0,
        abandoned: Vec::new(),
        zone: None,
        order,
        nr_blocks,
        migratetype: Migratetype::Unmovable,
        is_urgent: false,
    }
}
