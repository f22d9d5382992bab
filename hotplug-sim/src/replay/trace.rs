//! Replays a trace of page allocations through our allocator.
//!
//! Memory is the memory blocks that the trace names a page of. What it does not show is taken
//! for free; pages that it frees before it has allocated them were in use when it began, and lie
//! in both copies where they lay. A page that is allocated while it is in use was freed
//! unseen (tracers lose events); one that is freed while it is free is counted and left alone.
//! Each request goes to our zone itself, without lists in between, and may take the last page.

use std::collections::BTreeMap;

use hugepool_mm::{Geometry, Migratetype, Order, Pfn};

use super::kinds::Numbering;
use super::ledger::{Ledger, PageSet, Part, Piece};
use super::sides::{Scatter, Side};
use crate::import::event::{Event, EventKind};
use crate::import::events::Events;
use crate::progress::Progress;

/// What was asked for is counted by these: Unmovable, Movable, Reclaimable, not said.
pub const NR_KINDS: usize = 4;

/// What was done for one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByOrder {
    /// Blocks that the kernel handed out, by kind.
    pub allocs: [u64; NR_KINDS],
    /// Blocks freed.
    pub frees: u64,
    /// Requests that the kernel refused.
    pub refused: u64,
    /// Of what the kernel handed out, what ours had no block for.
    pub not_served: u64,
    /// Of what the kernel refused, what ours had a block for.
    pub served_though_refused: u64,
}

/// A moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// Events before it.
    pub nr_events: u64,
    /// The trace's clock, in seconds, where it has one.
    pub time: Option<f64>,
    /// Pages in use.
    pub held: u64,
    /// Ours.
    pub ours: Scatter,
    /// The kernel's.
    pub kernel: Scatter,
}

/// What a replay came to.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Sizes of pages, pageblocks, memory blocks.
    pub geometry: Geometry,
    /// Memory blocks that there are.
    pub nr_sections: usize,
    /// How migratetypes were read.
    pub numbering: Numbering,
    /// By order.
    pub by_order: Vec<ByOrder>,
    /// Pages in use before the trace, from what it frees.
    pub held_before: u64,
    /// Allocations of a page in use: a free was lost.
    pub lost_frees: u64,
    /// Frees of a page that was free, in pages.
    pub freed_twice: u64,
    /// Events that name a page or an order that cannot be.
    pub nr_senseless: u64,
    /// Single pages handed out to a CPU right behind the one before: the kernel's and ours.
    pub neighbours: [u64; 2],
    /// Single pages handed out to a CPU that had one before.
    pub nr_followers: u64,
    /// Blocks that ours put where the kernel did.
    pub nr_same_place: u64,
    /// Moments, the first before everything, the last at the end.
    pub moments: Vec<Moment>,
}

/// What is known of a block in use.
#[derive(Clone, Copy, Debug)]
struct Held {
    kind: Option<Migratetype>,
    /// Where ours put it; `None` if ours had no block.
    ours: Option<Pfn>,
    /// Whether the kernel's copy has it.
    is_marked: bool,
}

impl Part for Held {
    fn at(self, pages: u64) -> Held {
        let pages = u32::try_from(pages).unwrap_or(0);
        Held {
            ours: self.ours.and_then(|pfn| pfn.checked_add(pages)),
            ..self
        }
    }
}

impl Part for () {
    fn at(self, _: u64) {}
}

/// A block named by an event: its first page, one past its last, its order.
fn block_of(event: &Event<'_>, max: Order) -> Option<(u64, u64, Order)> {
    let order = u8::try_from(event.order.unwrap_or(0)).ok()?;
    let order = Order::new(order).filter(|order| *order <= max)?;
    let start = event.pfn.filter(|start| *start < u64::from(u32::MAX))?;
    let end = start + u64::from(order.nr_pages());
    start
        .is_multiple_of(u64::from(order.nr_pages()))
        .then_some((start, end, order))
}

/// Replays the allocations and frees among `events`, and looks at `nr_moments` moments.
///
/// # Errors
/// There is no allocation or free among them, or their pages make no memory.
pub fn replay(events: &Events, geometry: Geometry, nr_moments: u64) -> Result<Replayed, String> {
    let past = Past::of(events, geometry);
    let mut replay = Replay {
        ours: Side::new(geometry, &past.sections)?,
        kernel: Side::new(geometry, &past.sections)?,
        held: Ledger::default(),
        last: BTreeMap::new(),
        done: Replayed {
            geometry,
            nr_sections: past.sections.len(),
            numbering: Numbering::of(events),
            by_order: vec![ByOrder::default(); geometry.nr_orders()],
            held_before: 0,
            lost_frees: 0,
            freed_twice: 0,
            nr_senseless: 0,
            neighbours: [0; 2],
            nr_followers: 0,
            nr_same_place: 0,
            moments: Vec::new(),
        },
    };
    for (start, end) in past.held {
        replay.hold(start, end);
    }
    replay.done.held_before = replay.held.nr_pages();
    let nr_events = past.nr_events;
    let every = nr_events.div_ceil(nr_moments.max(1)).max(1);
    let mut at = 0;
    let mut progress = Progress::new(nr_events);
    replay.look(at, past.begin);
    for event in events.iter().filter(is_page_event) {
        replay.one(&event);
        at += 1;
        if at % 4096 == 0 {
            progress.set(at);
        }
        if at % every == 0 || at == nr_events {
            replay.look(at, event.time);
        }
    }
    Ok(replay.done)
}

fn is_page_event(event: &Event<'_>) -> bool {
    matches!(
        event.kind,
        EventKind::Alloc | EventKind::AllocFailed | EventKind::Free
    )
}

/// What a first reading of the trace tells.
struct Past {
    sections: Vec<u64>,
    /// Runs of pages that were in use before the trace.
    held: Vec<(u64, u64)>,
    nr_events: u64,
    begin: Option<f64>,
}

impl Past {
    fn of(events: &Events, geometry: Geometry) -> Past {
        let mut seen = PageSet::default();
        let mut past = Past {
            sections: Vec::new(),
            held: Vec::new(),
            nr_events: 0,
            begin: None,
        };
        for event in events.iter().filter(is_page_event) {
            past.nr_events += 1;
            past.begin = past.begin.or(event.time);
            if event.kind == EventKind::AllocFailed {
                continue;
            }
            let Some((start, end, _)) = block_of(&event, geometry.max_order()) else {
                continue;
            };
            let fresh = seen.add(start, end);
            if event.kind == EventKind::Free {
                past.held.extend(fresh);
            }
        }
        past.sections = seen.blocks(geometry.section_order());
        past
    }
}

struct Replay {
    ours: Side,
    kernel: Side,
    held: Ledger<Held>,
    /// By CPU: where the last single page was, the kernel's and ours.
    last: BTreeMap<u32, (u64, u64)>,
    done: Replayed,
}

impl Replay {
    /// A run of pages is in use from the beginning, in the same place on both sides.
    fn hold(&mut self, start: u64, end: u64) {
        let max = self.done.geometry.max_order();
        let mut at = start;
        while at < end {
            let room = u64::BITS - 1 - (end - at).leading_zeros();
            let order = at.trailing_zeros().min(room).min(u32::from(max.get()));
            let order = u8::try_from(order)
                .ok()
                .and_then(Order::new)
                .expect("it is not above the largest order");
            let is_taken = self.ours.mark(at, order, None) && self.kernel.mark(at, order, None);
            assert!(is_taken, "nothing else is in use yet");
            let ours = u32::try_from(at).ok().map(Pfn::new);
            self.held.insert(Piece {
                start: at,
                order: order.get(),
                what: Held {
                    kind: None,
                    ours,
                    is_marked: true,
                },
            });
            at += u64::from(order.nr_pages());
        }
    }

    fn one(&mut self, event: &Event<'_>) {
        let max = self.done.geometry.max_order();
        let kind = self.done.numbering.kind(event);
        if event.kind == EventKind::AllocFailed {
            let order = event.order.and_then(|order| u8::try_from(order).ok());
            match order.and_then(Order::new).filter(|order| *order <= max) {
                Some(order) => self.refused(order, kind),
                None => self.done.nr_senseless += 1,
            }
            return;
        }
        let Some((start, end, order)) = block_of(event, max) else {
            self.done.nr_senseless += 1;
            return;
        };
        let gone = self.held.remove(start, end);
        let nr_gone: u64 = gone.iter().map(|piece| 1 << piece.order).sum();
        for piece in gone {
            self.give(piece);
        }
        if event.kind == EventKind::Free {
            self.done.by_order[order.index()].frees += 1;
            self.done.freed_twice += end - start - nr_gone;
        } else {
            self.done.lost_frees += u64::from(nr_gone > 0);
            self.alloc(event, start, order, kind);
        }
    }

    fn give(&mut self, piece: Piece<Held>) {
        let order = Order::new(piece.order).expect("it was taken with an order");
        if let Some(pfn) = piece.what.ours {
            self.ours.give(pfn, order, piece.what.kind);
        }
        if piece.what.is_marked {
            let pfn = u32::try_from(piece.start).expect("it was marked");
            self.kernel.give(Pfn::new(pfn), order, piece.what.kind);
        }
    }

    fn alloc(&mut self, event: &Event<'_>, start: u64, order: Order, kind: Option<Migratetype>) {
        let counts = &mut self.done.by_order[order.index()];
        counts.allocs[kind.map_or(NR_KINDS - 1, Migratetype::index)] += 1;
        let ours = self.ours.take(order, kind).ok();
        counts.not_served += u64::from(ours.is_none());
        let is_marked = self.kernel.mark(start, order, kind);
        self.held.insert(Piece {
            start,
            order: order.get(),
            what: Held {
                kind,
                ours,
                is_marked,
            },
        });
        let Some(pfn) = ours.map(|pfn| u64::from(pfn.get())) else {
            return;
        };
        self.done.nr_same_place += u64::from(pfn == start);
        if order == Order::ZERO {
            let cpu = event.cpu.unwrap_or(0);
            if let Some((kernel, ours)) = self.last.insert(cpu, (start, pfn)) {
                self.done.nr_followers += 1;
                self.done.neighbours[0] += u64::from(start == kernel + 1);
                self.done.neighbours[1] += u64::from(pfn == ours + 1);
            }
        }
    }

    fn refused(&mut self, order: Order, kind: Option<Migratetype>) {
        let counts = &mut self.done.by_order[order.index()];
        counts.refused += 1;
        // The kernel's client went without: what ours found goes back at once.
        if let Ok(pfn) = self.ours.take(order, kind) {
            counts.served_though_refused += 1;
            self.ours.give(pfn, order, kind);
        }
    }

    fn look(&mut self, nr_events: u64, time: Option<f64>) {
        debug_assert_eq!(self.ours.zone().verify(), Ok(()));
        debug_assert_eq!(self.kernel.zone().verify(), Ok(()));
        self.done.moments.push(Moment {
            nr_events,
            time,
            held: self.held.nr_pages(),
            ours: self.ours.scatter(),
            kernel: self.kernel.scatter(),
        });
    }
}
