//! The client's side of movable blocks, and an engine with one tenant full of them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use hugepool_engine::{
    Command, Defaults, Effect, MoveBatch, OperationReport, OperationState, Reply, SectionOutcome,
};
use hugepool_mm::ZoneKind;
use hugepool_shm::handle::PinError;
use hugepool_shm::raw::{Class, RawMigratetype, RawPage};

use crate::support::{Rig, Tenant, by_ids, movable, zone};

/// Sections have 128 pages, pageblocks 32.
pub const SECTION: u32 = 128;

pub fn class(order: u32, migratetype: RawMigratetype) -> Class {
    Class::new(order, migratetype, 5).unwrap()
}

/// The client's side of movable blocks.
impl Tenant {
    pub fn fill(&self, handle: u32, raw: RawPage) {
        assert!(self.segment.handles().fill(handle, raw));
    }

    pub fn pin(&self, handle: u32) -> Result<u32, PinError> {
        self.segment.handles().word(handle).unwrap().pin(0)
    }

    pub fn unpin(&self, handle: u32) {
        self.segment.handles().word(handle).unwrap().unpin();
    }

    /// Where a block is, read under a pin.
    pub fn at(&self, handle: u32) -> RawPage {
        let pfn = self.pin(handle).unwrap();
        let raw = self.segment.handles().page(handle, pfn).unwrap();
        self.unpin(handle);
        raw
    }

    /// Takes the block out of its handle.
    pub fn empty(&self, handle: u32) -> Result<RawPage, PinError> {
        let handles = self.segment.handles();
        let pfn = handles.word(handle).unwrap().empty()?;
        Ok(handles.page(handle, pfn).unwrap())
    }
}

/// Takes blocks, marks each with its handle's number plus one, and fills handles from 0 on.
pub fn hold(rig: &mut Rig, tenant: &Tenant, class: Class, count: u32) {
    let pages = rig.take(tenant, 0, class, count as usize);
    assert_eq!(pages.len(), count as usize);
    for (handle, raw) in (0..).zip(pages) {
        rig.bytes[raw.pfn() as usize] = u64::from(handle) + 1;
        tenant.fill(handle, raw);
    }
}

#[track_caller]
pub fn check_bytes(rig: &Rig, tenant: &Tenant, count: u32) {
    for handle in 0..count {
        let raw = tenant.at(handle);
        assert_eq!(
            rig.bytes[raw.pfn() as usize],
            u64::from(handle) + 1,
            "handle {handle} at {raw:?}"
        );
    }
}

/// Frees what the handles have; the daemon finds nothing wrong with it.
#[track_caller]
pub fn free_all(rig: &mut Rig, tenant: &Tenant, count: u32) {
    let pages: Vec<RawPage> = (0..count)
        .filter_map(|handle| tenant.empty(handle).ok())
        .collect();
    tenant.put(0, &pages);
    rig.service();
    let report = rig.client(tenant.id);
    assert_eq!((report.nr_misuses, report.held), (0, 0), "{report:?}");
    rig.verify();
}

pub fn begin_offline(rig: &mut Rig, section: u32, timeout_ms: u64) -> OperationReport {
    let timeout = Some(std::time::Duration::from_millis(timeout_ms));
    let request = by_ids(&[section]);
    let Reply::Operation(report) = rig.apply(Command::OfflineSections { request, timeout }) else {
        panic!()
    };
    report
}

/// Begins to take a section and returns the first batch, which the runner has not touched.
pub fn first_batch(rig: &mut Rig, section: u32) -> (OperationReport, MoveBatch) {
    let report = begin_offline(rig, section, 1000);
    rig.left = rig.engine.take_effects();
    let is_move = |effect: &Effect| matches!(effect, Effect::Move { .. });
    let at = rig.left.iter().position(is_move);
    let Some(Effect::Move { batch }) = at.map(|at| rig.left.remove(at)) else {
        panic!("no batch of moves among {:?}", rig.left)
    };
    (report, batch)
}

pub fn outcome(report: &OperationReport) -> &SectionOutcome {
    &report.sections[0]
}

pub fn is_offline(report: &OperationReport) -> bool {
    report.state == OperationState::Done
}

/// A zone of three sections, a client with `count` movable pages in the first one or two.
pub fn rig_with(count: u32) -> (Rig, Tenant) {
    let mut rig = Rig::with(
        vec![zone("normal", ZoneKind::Normal, 3)],
        Defaults::default(),
    );
    rig.add("normal", 3);
    let tenant = rig.tenant(1);
    hold(&mut rig, &tenant, movable(), count);
    (rig, tenant)
}

/// A section in which the client has at least one of its handles, and that handle.
pub fn section_of(tenant: &Tenant, handle: u32) -> u32 {
    tenant.at(handle).pfn() / SECTION
}
