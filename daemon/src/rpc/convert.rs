//! From the engine's reports to the messages of the contract: fields renamed, nothing decided.

use hugepool_engine::{
    AllocReply, BackingUse, ClientReport, Compacted, ContiguityReport, Event, FreeReply, HeldRun,
    Holder, LaneReport, LentRun, LimitReport, Misuse, NodeReport, Onlined, OperationReport,
    PageCounts, PageTypeReport, PageTypeRow, Pageset, Refused, SectionOutcome, SectionReport,
    Shortfall, Watermarks, Whom, ZoneBuddyInfo, ZoneInfo, ZonePressure, ZoneReport,
};
use hugepool_mm::{Geometry, Migratetype, Pressure, ZoneId, ZoneKind};
use hugepool_proto::v1;

/// Milliseconds of a duration, as far as the field reaches.
pub fn millis_u32(duration: std::time::Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// Sizes, in bytes where the name says so.
pub fn geometry(g: Geometry) -> v1::Geometry {
    v1::Geometry {
        page_size_bytes: g.page_bytes(),
        pageblock_order: g.pageblock_order().get().into(),
        max_page_order: g.max_order().get().into(),
        section_size_bytes: g.section_bytes(),
    }
}

/// Pages that add up.
pub fn counts(c: PageCounts) -> v1::PageCounts {
    v1::PageCounts {
        spanned: c.spanned,
        present: c.present,
        reserved: c.reserved,
        managed: c.managed,
        free: c.free,
        pcp: c.pcp,
        lent: c.lent,
        isolated: c.isolated,
    }
}

fn watermarks(w: Watermarks) -> v1::Watermarks {
    v1::Watermarks {
        min: w.min,
        low: w.low,
        high: w.high,
    }
}

fn migratetype(m: Migratetype) -> i32 {
    let typed = match m {
        Migratetype::Unmovable => v1::Migratetype::Unmovable,
        Migratetype::Movable => v1::Migratetype::Movable,
        Migratetype::Reclaimable => v1::Migratetype::Reclaimable,
    };
    typed.into()
}

fn zone_index(zone: ZoneId) -> u32 {
    zone.get().into()
}

fn backing_use(b: BackingUse) -> v1::BackingUse {
    v1::BackingUse {
        backing: b.name,
        nr_sections: b.nr_sections,
        not_taken: b.not_taken,
    }
}

/// A zone; `page_bytes` turns its reserve into bytes.
pub fn zone(z: ZoneReport, page_bytes: u64) -> v1::Zone {
    let kind = match z.kind {
        ZoneKind::Normal => "normal",
        ZoneKind::Movable => "movable",
    };
    v1::Zone {
        name: z.name,
        index: zone_index(z.zone),
        kind: kind.to_owned(),
        node: z.node,
        start_pfn: z.start.get(),
        reserve_bytes: z.reserve_pages.saturating_mul(page_bytes),
        pages: Some(counts(z.pages)),
        watermarks: Some(watermarks(z.watermarks)),
        backing: z.backing.into_iter().map(backing_use).collect(),
        pressure: z.pressure.name().to_owned(),
        ceiling_pages: z.ceiling_pages,
        floor_pages: z.floor_pages,
        quarantined_pages: z.quarantined_pages,
    }
}

/// A section, with what the audit of its zone's file found.
pub fn section(s: SectionReport, audit_difference_bytes: i64) -> v1::Section {
    let backing = s.backing.unwrap_or_default();
    v1::Section {
        id: s.section.get(),
        zone: s.zone_name,
        start_pfn: s.start.get(),
        nr_pages: s.nr_pages,
        state: s.state.name().to_owned(),
        backing: backing.name,
        node: backing.node,
        free: s.free,
        lent: s.lent,
        isolated: s.isolated,
        incarnation: s.incarnation,
        audit_difference_bytes,
    }
}

/// A limit that is set.
pub fn limit(l: LimitReport) -> v1::Limit {
    let (whom, slot, uid) = match l.whom {
        Whom::EachClient => ("each", None, None),
        Whom::Client(slot) => ("client", Some(slot.into()), None),
        Whom::User(uid) => ("user", None, Some(uid)),
        Whom::Zone => ("zone", None, None),
    };
    v1::Limit {
        whom: whom.to_owned(),
        slot,
        uid,
        zone: l.zone_name.unwrap_or_default(),
        floor_pages: l.limit.floor_pages,
        ceiling_pages: l.limit.ceiling_pages,
        owned_pages: l.owned_pages,
    }
}

/// A client or a connection.
pub fn client(c: ClientReport) -> v1::Client {
    v1::Client {
        slot: c.client.slot.into(),
        incarnation: c.client.incarnation.into(),
        pid: c.pid,
        uid: c.uid,
        gid: c.gid,
        name: c.name,
        state: c.state.name().to_owned(),
        nr_lanes: u32::try_from(c.lanes.len()).unwrap_or(u32::MAX),
        lent: c.lent,
        in_lanes: c.in_lanes,
        held: c.held,
        nr_misuses: c.nr_misuses,
        attached_ms: c.attached_ms,
        barrier: match (c.is_connection, c.uses_membarrier) {
            (true, _) => String::new(),
            (false, true) => "membarrier".to_owned(),
            (false, false) => "fence".to_owned(),
        },
        lanes: c.lanes.into_iter().map(lane).collect(),
        moved: c.nr_moved_pages,
        evicted: c.nr_evicted_pages,
    }
}

fn lane(l: LaneReport) -> v1::Lane {
    v1::Lane {
        index: l.index,
        state: l.state.name().to_owned(),
        granted: l.granted,
        magazine: l.magazine,
        returns: l.returns,
    }
}

/// Blocks that somebody holds.
pub fn held_run(h: HeldRun) -> v1::HeldRun {
    v1::HeldRun {
        run: Some(v1::Run {
            first_pfn: h.first.get(),
            nr_pages: h.nr_blocks,
            order: h.order.get().into(),
            generation: h.generation,
        }),
        slot: h.client.slot.into(),
        incarnation: h.client.incarnation.into(),
        pid: h.pid,
        migratetype: migratetype(h.migratetype),
        age_ms: h.age_ms,
    }
}

/// Who stands in the way.
pub fn holder(h: Holder) -> v1::Holder {
    v1::Holder {
        slot: h.client.slot.into(),
        incarnation: h.client.incarnation.into(),
        pid: h.pid,
        name: h.name,
        nr_pages: h.nr_pages,
        blocks_by_order: h.blocks_by_order,
        migratetype: migratetype(h.migratetype),
        first_pfn: h.first.get(),
        age_ms: h.age_ms,
        in_flight: h.nr_in_flight > 0,
        pinned: h.nr_pinned,
        hot: h.nr_hot,
        homeless: h.nr_homeless,
    }
}

fn onlined(o: Onlined) -> v1::Onlined {
    v1::Onlined {
        nr_pageblocks: o.nr_pageblocks,
        nr_pages: o.nr_pages,
        blocks_by_order: o.blocks_by_order,
    }
}

fn section_result(s: SectionOutcome) -> v1::SectionResult {
    let (ok, reason) = match s.done {
        Some(Ok(())) => (true, String::new()),
        Some(Err(refusal)) => (false, refusal.to_string()),
        None => (false, "not done yet".to_owned()),
    };
    v1::SectionResult {
        section_id: s.section.get(),
        ok,
        state: s.state.name().to_owned(),
        reason,
        holders: s.holders.into_iter().map(holder).collect(),
        onlined: s.onlined.map(onlined),
        took_us: s.took_us,
        moved: s.nr_moved_pages,
        evicted: s.nr_evicted_pages,
    }
}

/// An operation as the answer to the call that began it.
pub fn sections_response(o: OperationReport) -> v1::SectionsResponse {
    v1::SectionsResponse {
        operation_id: o.id.0,
        dry_run: o.dry_run,
        results: o.sections.into_iter().map(section_result).collect(),
    }
}

/// An operation.
pub fn operation(o: OperationReport) -> v1::Operation {
    v1::Operation {
        id: o.id.0,
        kind: o.kind.name().to_owned(),
        state: o.state.name().to_owned(),
        done_pages: o.done_pages,
        total_pages: o.total_pages,
        estimate_ms: o.estimate_ms,
        age_ms: o.age_ms,
        compacted: o.compacted.map(|done| compacted(o.id.0, done)),
        results: o.sections.into_iter().map(section_result).collect(),
    }
}

/// A NUMA node's part.
pub fn node(n: NodeReport) -> v1::Node {
    v1::Node {
        node: n.node,
        zones: n.zones,
        pages: Some(counts(n.pages)),
        hit_pages: n.hit_pages,
        miss_pages: n.miss_pages,
        foreign_pages: n.foreign_pages,
    }
}

/// How a zone stands.
pub fn pressure(stand: ZonePressure, zone: String) -> v1::Pressure {
    let level = match stand.level {
        Pressure::None => v1::PressureLevel::None,
        Pressure::Low => v1::PressureLevel::Low,
        Pressure::Min => v1::PressureLevel::Min,
    };
    v1::Pressure {
        zone,
        level: level.into(),
        free_pages: stand.free_pages,
        min_pages: stand.watermarks.min,
        low_pages: stand.watermarks.low,
        high_pages: stand.watermarks.high,
    }
}

/// What a compaction has done.
pub fn compacted(operation_id: u64, done: Compacted) -> v1::CompactResponse {
    let counts = done.counts;
    v1::CompactResponse {
        operation_id,
        ended: done.end.map_or("", |end| end.name()).to_owned(),
        nr_migrate_scanned: counts.nr_migrate_scanned,
        nr_free_scanned: counts.nr_free_scanned,
        nr_migrated: counts.nr_moved,
        nr_failed: counts.nr_failed,
        nr_blocks_made: counts.nr_blocks_made,
        nr_contiguity_checks: counts.nr_checks,
        seconds: std::time::Duration::from_micros(done.took_us).as_secs_f64(),
    }
}

/// Both caches of contiguity.
pub fn contiguity(c: ContiguityReport) -> v1::ZoneContiguity {
    v1::ZoneContiguity {
        zone: c.zone,
        mode: c.mode.to_owned(),
        contiguous: c.contiguous,
        nr_hits: c.nr_hits,
        nr_misses: c.nr_misses,
        nr_walks: c.nr_walks,
        nr_pageblocks: c.nr_pageblocks,
        nr_pb_cached: c.nr_pb_cached,
        nr_pb_contiguous: c.nr_pb_contiguous,
        pb_cached: c.pb_cached,
        pb_contiguous: c.pb_contiguous,
        first_pfn: c.first.get(),
    }
}

/// A line of buddyinfo.
pub fn buddy_info(b: ZoneBuddyInfo) -> v1::ZoneBuddyInfo {
    v1::ZoneBuddyInfo {
        node: b.node,
        zone: b.zone,
        free_blocks_by_order: b.free_blocks_by_order,
    }
}

/// The lines of pagetypeinfo of a zone.
pub fn page_type_info(p: PageTypeReport) -> v1::ZonePageTypeInfo {
    let row = |r: PageTypeRow| v1::TypeRow {
        migratetype: r.name.to_owned(),
        free_blocks_by_order: r.free_blocks_by_order,
        nr_pageblocks: r.nr_pageblocks,
    };
    v1::ZonePageTypeInfo {
        node: p.node,
        zone: p.zone,
        types: p.rows.into_iter().map(row).collect(),
    }
}

/// What zoneinfo says of a zone.
pub fn zone_info(z: ZoneInfo) -> v1::ZoneInfo {
    let pageset = |p: Pageset| v1::Pageset {
        cpu: p.cpu,
        count: p.count,
        high: p.high,
        batch: p.batch,
    };
    v1::ZoneInfo {
        node: z.node,
        zone: z.zone,
        pages: Some(counts(z.pages)),
        watermarks: Some(watermarks(z.watermarks)),
        protection: z.protection,
        start_pfn: z.start.get(),
        pagesets: z.pagesets.into_iter().map(pageset).collect(),
    }
}

/// Something that happened; `zone` is its zone's name.
pub fn event(e: Event, zone: String) -> v1::Event {
    v1::Event {
        seq: e.seq,
        at_ms: e.at_ms,
        kind: e.kind.to_owned(),
        text: e.text,
        section_id: e.section.map(|section| section.get()),
        slot: e.client.map(|client| client.slot.into()),
        zone,
    }
}

/// What was lent.
pub fn alloc_response(reply: AllocReply) -> v1::AllocBulkResponse {
    let run = |r: LentRun| v1::Run {
        first_pfn: r.first.get(),
        nr_pages: r.nr_blocks,
        order: r.order.get().into(),
        generation: r.generation,
    };
    v1::AllocBulkResponse {
        runs: reply.runs.into_iter().map(run).collect(),
        nr_pages: reply.nr_blocks,
        shortfall: reply.shortfall.map(shortfall),
    }
}

fn shortfall(s: Shortfall) -> v1::Shortfall {
    use v1::shortfall::{self as why, Reason};
    let reason = match s {
        Shortfall::Quota {
            owned_pages,
            ceiling_pages,
        } => Reason::Quota(why::Quota {
            owned_pages,
            ceiling_pages,
        }),
        Shortfall::ZoneEmpty {
            free_pages,
            min_pages,
        } => Reason::ZoneEmpty(why::ZoneEmpty {
            free_pages,
            min_pages,
        }),
        Shortfall::Fragmented {
            free_pages,
            largest_order,
        } => Reason::Fragmented(why::Fragmented {
            free_pages,
            largest_order: largest_order.map(|order| order.get().into()),
        }),
        Shortfall::Offlining => Reason::Offlining(why::Offlining {}),
        Shortfall::NotMapped { section_epoch } => {
            Reason::NotMapped(why::NotMapped { section_epoch })
        }
        Shortfall::Deadline { timeout } => Reason::Deadline(why::Deadline {
            timeout_ms: millis_u32(timeout),
        }),
    };
    v1::Shortfall {
        reason: Some(reason),
    }
}

/// What was taken back, and what was not.
pub fn free_response(reply: FreeReply) -> v1::FreeBulkResponse {
    v1::FreeBulkResponse {
        nr_pages: reply.nr_blocks,
        refused: reply.refused.into_iter().map(refused).collect(),
    }
}

fn refused(r: Refused) -> v1::Refused {
    use v1::refused::Reason;
    let reason = match r.misuse {
        Misuse::NoSuchPage { .. } => Reason::NoSuchPage,
        // Nobody's is not the caller's either: a double free.
        Misuse::NotLent { .. } | Misuse::NotYours { .. } => Reason::NotYours,
        // It is as little the caller's alone.
        Misuse::Shared { .. } => Reason::NotYours,
        // Calls name no parcels.
        Misuse::NoSuchParcel { .. } | Misuse::ParcelElsewhere { .. } => Reason::NotYours,
        Misuse::Stale { .. } => Reason::Stale,
        Misuse::WrongOrder { .. } => Reason::WrongOrder,
    };
    v1::Refused {
        pfn: r.pfn,
        reason: reason.into(),
    }
}
