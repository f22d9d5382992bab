//! What the books of a zone cost in memory: the allocator's, and the owner table's once pages were
//! lent.
//!
//! By the resident memory of this process, before and after, over a zone so large that nothing else
//! shows. No memory is behind the zone.

use std::io::{self, Write};
use std::time::Duration;

use hugepool_engine::{
    AllocBulk, AllocOutcome, Backing, Command, ConnectSpec, Defaults, Effect, Engine, EngineConfig,
    Patience, Quarantine, Sections, SectionsRequest, ZoneSettings,
};
use hugepool_mm::{Geometry, Migratetype, ZoneId, ZoneKind};

use super::lines::Line;
use crate::shared::Outer;

/// 16 GiB in sections of 128 MiB.
const NR_SECTIONS: u32 = 128;
/// Pages of a call.
const PER_CALL: u32 = 4096;

/// Measures once: a count of bytes does not vary from window to window.
pub fn run(out: &mut dyn Write) -> io::Result<()> {
    let geometry = Geometry::standard();
    let nr_pages = u64::from(NR_SECTIONS) << geometry.section_order();
    let config = EngineConfig {
        geometry,
        zones: vec![ZoneSettings {
            name: "bench".to_owned(),
            kind: ZoneKind::Normal,
            node: -1,
            reserve_pages: nr_pages,
            ceiling_pages: None,
            floor_pages: 0,
            quarantine: Quarantine::None,
        }],
        defaults: Defaults::default(),
    };
    let before = resident_bytes()?;
    let mut engine = Engine::new(config).map_err(io::Error::other)?;
    add_all(&mut engine)?;
    let free = resident_bytes()?;
    lend_all(&mut engine)?;
    let lent = resident_bytes()?;
    std::hint::black_box(&engine);
    for (state, now) in [("free", free), ("lent", lent)] {
        let bytes = now.saturating_sub(before) as f64 / nr_pages as f64;
        Line::case("metadata", nr_pages, "bytes")
            .word("state", state)
            .print(&[bytes], out)?;
    }
    Ok(())
}

fn add_all(engine: &mut Engine) -> io::Result<()> {
    let now = Duration::ZERO;
    let request = SectionsRequest {
        zone: Some("bench".to_owned()),
        sections: Sections::Count(NR_SECTIONS),
        dry_run: false,
    };
    let command = Command::AddSections {
        request,
        online_order: None,
        keep_offline: false,
    };
    let added = engine.apply(command, now, &mut Outer::default());
    added.map_err(io::Error::other)?;
    loop {
        let effects = engine.take_effects();
        if effects.is_empty() {
            return Ok(());
        }
        for effect in effects {
            if let Effect::Populate { section, .. } = effect {
                let backing = Backing {
                    name: "none".to_owned(),
                    node: -1,
                    not_taken: Vec::new(),
                };
                engine.populated(section, Ok(backing), now);
            }
        }
    }
}

/// Lends all pages, one by one, as far as the zone's marks allow.
fn lend_all(engine: &mut Engine) -> io::Result<()> {
    let now = Duration::ZERO;
    let session = engine.connect(
        ConnectSpec {
            uid: 0,
            gid: 0,
            pid: std::process::id(),
            zones: vec![ZoneId::new(0)],
        },
        now,
    );
    let session = session.map_err(io::Error::other)?;
    loop {
        let request = AllocBulk {
            // Not remembered.
            request_id: 0,
            acknowledged: 0,
            abandoned: Vec::new(),
            zone: None,
            order: 0,
            nr_blocks: PER_CALL,
            migratetype: Migratetype::Unmovable,
            is_urgent: false,
        };
        let outcome = engine.alloc_bulk(
            session,
            &request,
            Patience::None,
            now,
            &mut Outer::default(),
        );
        match outcome.map_err(io::Error::other)? {
            AllocOutcome::Done(reply) if reply.nr_blocks == PER_CALL => {}
            _ => return Ok(()),
        }
    }
}

/// Without what is a file's: pages of the program come as it runs.
fn resident_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let kib = text.lines().filter_map(|line| {
        let rest = line
            .strip_prefix("RssAnon:")
            .or_else(|| line.strip_prefix("RssShmem:"))?;
        rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    Ok(kib.sum::<u64>() * 1024)
}
