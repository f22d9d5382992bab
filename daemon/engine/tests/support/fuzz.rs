//! What hostile bytes are to the daemon: a client's segment, and what a daemon before has left.
//!
//! Each target is a function of bytes that panics on a finding. `fuzzed.rs` gives it a corpus and
//! seeded mutations of it, `.ci/fuzz` the same under libFuzzer.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hugepool_engine::{
    ClaimedRun, Command, Defaults, Engine, EngineConfig, FreeBulk, Limit, NoOutside, Now, Patience,
    Quarantine, Saved, StateShape, StateWords, Survivor, Whom, ZoneSettings,
};
use hugepool_mm::ZoneKind;
use hugepool_shm::raw::{Class, RawPage};
use hugepool_shm::scribble::LaneWord;
use hugepool_shm::state::StateSegment;
use hugepool_shm::words::Words;

use crate::support::{PAGE, Rig, Tenant, alloc, by_ids, movable, tiny, zone};

/// Areas of the state segment, by number: a word a pageblock, and a cell a page.
const PAGEBLOCKS: usize = 2;
const CELLS: usize = 9;

/// Takes numbers off the front of the bytes; zeros when there are none left.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}

fn class(byte: u8) -> Class {
    Class::from_index(usize::from(byte) % 15).unwrap()
}

/// A word of the hostile one's: of its own page, of another's, or of anybody's.
fn page_word(bytes: &mut Bytes<'_>, pages: &[RawPage]) -> u64 {
    let which = bytes.byte();
    match which {
        0..192 => {
            let page = pages[usize::from(which) % pages.len()];
            // A bit of it flipped, sometimes.
            let flip = bytes.byte();
            page.bits() ^ if flip < 64 { 1 << flip } else { 0 }
        }
        _ => bytes.word(),
    }
}

fn lane_word(bytes: &mut Bytes<'_>) -> LaneWord {
    let (kind, of, at) = (bytes.byte(), bytes.byte(), u32::from(bytes.short()));
    match kind % 12 {
        0 => LaneWord::Busy,
        1 => LaneWord::Epoch,
        2 => LaneWord::ReturnsTail,
        3 => LaneWord::ReturnsHead,
        4 | 5 => LaneWord::Return(at),
        6 => LaneWord::GrantsHead(class(of)),
        7 => LaneWord::GrantsTail(class(of)),
        8 => LaneWord::Grant(class(of), at),
        9 => LaneWord::MagazineBottom(class(of)),
        10 => LaneWord::MagazineTop(class(of)),
        _ => LaneWord::Cached(class(of), at),
    }
}

/// The contents of a control segment, as the daemon sees them: rings, magazine, free map, handles,
/// and calls. An honest client beside it keeps what it holds, and the books add up.
pub fn segment(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let quarantined = ZoneSettings {
        quarantine: Quarantine::For(Duration::from_millis(50)),
        ..zone("movable", ZoneKind::Movable, 2)
    };
    let zones = vec![zone("normal", ZoneKind::Normal, 2), quarantined];
    let mut rig = Rig::with(zones, Defaults::default());
    rig.add("normal", 2);
    rig.add("movable", 2);
    let honest = rig.tenant(1);
    let kept = rig.take(&honest, 0, PAGE, 9);
    let hostile = rig.tenant(2);
    let mut pages = rig.take(&hostile, 0, PAGE, 20);
    pages.extend(rig.take(&hostile, 1, movable(), 20));
    pages.extend(&kept);
    for (handle, page) in (0..).zip(pages[20..40].iter()) {
        hostile.segment.scribble_handle(handle, page.bits());
    }
    let id = hostile.id;
    for _ in 0..256 {
        if bytes.0.is_empty() {
            break;
        }
        match bytes.byte() % 16 {
            0..6 => {
                let lane = u32::from(bytes.byte()) % 2;
                let word = lane_word(&mut bytes);
                let value = match word {
                    LaneWord::Return(_) | LaneWord::Grant(..) | LaneWord::Cached(..) => {
                        page_word(&mut bytes, &pages)
                    }
                    // Near what is there, or anywhere.
                    _ if bytes.byte() < 200 => {
                        let there = hostile.segment.peek(lane, word).unwrap();
                        there.wrapping_add(u64::from(bytes.byte())).wrapping_sub(8)
                    }
                    _ => bytes.word(),
                };
                hostile.segment.scribble(lane, word, value);
            }
            6 => {
                let value = page_word(&mut bytes, &pages);
                hostile
                    .segment
                    .scribble_handle(u32::from(bytes.byte()), value);
            }
            7 => {
                hostile.segment.free_map().set(u32::from(bytes.short()));
            }
            8 => {
                rig.service();
            }
            9 => {
                let timeout = Some(Duration::from_millis(u64::from(bytes.byte())));
                let slot = Some(id.slot).filter(|_| rig.engine.owned_pages(id).is_some());
                // Refused once too many of them are waited for.
                let command = Command::DrainLanes { slot, timeout };
                let _ = rig.engine.apply(command, rig.now, &mut rig.outside);
                rig.settle_effects();
            }
            10 => rig.advance(u64::from(bytes.byte())),
            11 => {
                let mut request = alloc(u32::from(bytes.byte()) % 40, u32::from(bytes.short()));
                request.request_id = u64::from(bytes.byte() % 4);
                let now = rig.now;
                let patience = Patience::None;
                let _ = rig
                    .engine
                    .alloc_bulk(id, &request, patience, now, &mut rig.outside);
            }
            12 => {
                let runs = (0..bytes.byte() % 4).map(|_| {
                    let of = pages[usize::from(bytes.byte()) % pages.len()];
                    ClaimedRun {
                        first_pfn: of.pfn() ^ u32::from(bytes.byte() & 3),
                        nr_blocks: u32::from(bytes.byte()),
                        order: u32::from(bytes.byte() & 7),
                        generation: of.generation() ^ u32::from(bytes.byte() & 1),
                    }
                });
                let request = FreeBulk {
                    request_id: 0,
                    acknowledged: 0,
                    runs: runs.collect(),
                };
                let _ = rig.engine.free_bulk(id, &request);
            }
            13 => {
                let section = u32::from(bytes.byte()) % 4;
                let request = by_ids(&[section]);
                let timeout = Some(Duration::from_millis(20));
                let command = Command::OfflineSections { request, timeout };
                let _ = rig.engine.apply(command, rig.now, &mut rig.outside);
                rig.settle_effects();
            }
            14 => {
                let limit = Limit {
                    floor_pages: u64::from(bytes.byte()),
                    ceiling_pages: None,
                };
                let command = Command::SetLimits {
                    whom: Whom::User(u32::from(bytes.byte())),
                    zone: Some("normal".to_owned()),
                    limit,
                };
                let _ = rig.engine.apply(command, rig.now, &mut rig.outside);
            }
            _ => rig.engine.detach(id, rig.now, &mut rig.outside),
        }
    }
    rig.service();
    rig.settle_effects();
    rig.verify();
    assert!(
        rig.client(honest.id).nr_misuses == 0,
        "an honest client is blamed"
    );
    rig.engine.bury(id, rig.now);
    for _ in 0..8 {
        rig.advance(50);
        rig.settle_effects();
    }
    rig.verify();
    assert_eq!(
        rig.engine.owned_pages(id),
        None,
        "the dead one's pages are home"
    );
    // What the honest one holds is still its own, page by page.
    honest.put(0, &kept);
    rig.operate(Command::DrainLanes {
        slot: Some(honest.id.slot),
        timeout: None,
    });
    assert_eq!(rig.engine.owned_pages(honest.id), Some(0));
    rig.verify();
    assert_eq!(
        rig.client(honest.id).nr_misuses,
        0,
        "an honest client was robbed"
    );
}

/// Few of everything: a segment is made for each input.
fn few() -> Defaults {
    Defaults {
        max_clients: 3,
        max_lanes: 2,
        ..Defaults::default()
    }
}

/// A daemon before, in use, and the segment that it has left.
fn left() -> (Words, StateSegment, Vec<Tenant>, Saved, Now) {
    let config = EngineConfig {
        geometry: tiny(),
        zones: vec![
            zone("normal", ZoneKind::Normal, 2),
            zone("movable", ZoneKind::Movable, 2),
        ],
        defaults: few(),
    };
    let shape = StateShape::of(&config);
    let areas = shape.areas().unwrap();
    let words = Words::heap(StateSegment::nr_words(&areas).unwrap()).unwrap();
    let segment = StateSegment::create(words.clone(), &areas).unwrap();
    let mut rig = Rig::over(config, StateWords::over(&shape, segment.areas()).unwrap());
    rig.add("normal", 2);
    rig.add("movable", 1);
    let tenants = vec![rig.tenant(2), rig.tenant(1)];
    for tenant in &tenants {
        let pages = rig.take(tenant, 0, PAGE, 12);
        rig.take(tenant, 0, movable(), 7);
        tenant.put(0, &pages[..3]);
        let mut request = alloc(3, 2);
        request.request_id = 1;
        rig.alloc_bulk(tenant.id, &request);
    }
    rig.service();
    (words, segment, tenants, rig.engine.save(), rig.now)
}

/// The state segment: what a daemon before has written, changed at places. It is refused by name, or
/// what comes of it adds up.
pub fn state(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let (words, segment, tenants, saved, now) = left();
    let shape = saved.shape();
    let mut archive = saved.encode().unwrap();
    // The archive: bytes of it changed, with a checksum that is right.
    for _ in 0..bytes.byte() % 4 {
        let at = usize::from(bytes.short()) % archive.len();
        archive[at] ^= bytes.byte();
    }
    segment.write_snapshot(&archive).unwrap();
    // The words: of the header, or of an area near its beginning, where most is.
    while !bytes.0.is_empty() {
        let (area, at, value) = (bytes.byte(), usize::from(bytes.short()), bytes.word());
        let cells = match segment.areas().get(usize::from(area) % 16) {
            Some(area) => area.cells(),
            None => &words.cells()[..512],
        };
        if !cells.is_empty() {
            let cell = &cells[at % cells.len()];
            let there = cell.load(Relaxed);
            // A bit, or all of it.
            let value = if area & 0x80 == 0 {
                there ^ 1 << (value % 64)
            } else {
                value
            };
            let at = at % cells.len();
            let announced = |at: usize| segment.areas()[PAGEBLOCKS].cells()[at / 32].load(Relaxed);
            let value = match usize::from(area) % 16 {
                // A pageblock's word is stored before the first cell there, and never taken back: a
                // cell that it does not announce is not looked for.
                PAGEBLOCKS => there | value,
                CELLS if announced(at) == 0 => there,
                _ => value,
            };
            cell.store(value, Relaxed);
        }
    }
    let Ok(segment) = StateSegment::adopt(words) else {
        return;
    };
    let Ok(read) = segment.read_snapshot() else {
        return;
    };
    let Ok(saved) = Saved::decode(&read) else {
        return;
    };
    // What would take more memory than a test may have is somebody else's zone.
    if saved.shape() != shape {
        return;
    }
    let Some(words) = StateWords::over(&shape, segment.areas()) else {
        return;
    };
    recover(&saved, words, &tenants, now);
}

fn recover(saved: &Saved, words: StateWords, tenants: &[Tenant], now: Now) {
    let alive = saved.clients().iter().filter_map(|client| {
        let tenant = tenants.iter().find(|tenant| tenant.id == client.id())?;
        Some(Survivor {
            client: tenant.id,
            segment: tenant.segment.clone(),
            outbox: None,
            is_lost: false,
        })
    });
    let alive = alive.collect();
    let outside = &mut NoOutside;
    let recovered = Engine::recover(saved, few(), words, alive, vec![], now, outside);
    let Ok((mut engine, _)) = recovered else {
        return;
    };
    let report = engine.verify();
    assert!(report.is_ok(), "{report:#?}");
    engine.service(now, outside, None);
    for tenant in tenants {
        engine.bury(tenant.id, now);
    }
    let report = engine.verify();
    assert!(report.is_ok(), "after the burials: {report:#?}");
}
