//! What may happen in a run, and how often: drawn anew for each seed.
//!
//! Swarm testing: some events are off for a whole run, the others have uneven weights, so
//! that rare mixtures come about. So are sizes and limits drawn.

use hugepool_engine::{Defaults, EngineConfig, Quarantine, ZoneSettings};
use hugepool_mm::{ContiguityMode, Geometry, ZoneKind};

use crate::prng::Prng;

/// Something that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client comes.
    Attach,
    /// A client closes its socket.
    HangUp,
    /// A client's process dies.
    Die,
    /// A connection without a segment comes, allocates or goes.
    Connection,
    /// A thread takes pages from a lane.
    Take,
    /// A thread gives pages back to a lane.
    Put,
    /// A thread gives pages back through the free map.
    PutIntoMap,
    /// A thread puts pages under handles.
    MakeMovable,
    /// A thread pins some of them, and writes.
    Pin,
    /// It lets go of some.
    Unpin,
    /// A thread takes some out of their handles, to keep or to free.
    Unhand,
    /// A client allocates by call.
    Call,
    /// A client gives pages back by call.
    FreeCall,
    /// A client gives back what is not quite its own.
    Probe,
    /// A reply that was lost is asked for again, or given up.
    Repeat,
    /// A client maps and unmaps what was announced.
    Map,
    /// A thread is stopped in its window.
    Stop,
    /// It goes on.
    Resume,
    /// A client does what it must not.
    Misbehave,
    /// The daemon serves one client.
    Ring,
    /// The daemon serves all, and wants to sleep.
    Sweep,
    /// Time passes.
    Wait,
    /// The runner answers what it was asked to do.
    Answer,
    /// Sections are added.
    Add,
    /// Sections are brought online.
    Online,
    /// Sections are taken offline.
    Offline,
    /// Sections are removed.
    Remove,
    /// An operation is cancelled.
    Cancel,
    /// A zone, or all, is compacted.
    Compact,
    /// Lanes are emptied.
    Drain,
    /// A client is shut out.
    Evict,
    /// batch, high or a ceiling is set.
    Tune,
    /// Somebody looks at reports.
    Look,
    /// The daemon dies, and the next one goes on.
    Crash,
}

/// Events with the weight they have when none is off.
const EVENTS: [(Event, u32); 34] = [
    (Event::Attach, 2),
    (Event::HangUp, 1),
    (Event::Die, 2),
    (Event::Connection, 4),
    (Event::Take, 120),
    (Event::Put, 110),
    (Event::PutIntoMap, 10),
    (Event::MakeMovable, 40),
    (Event::Pin, 12),
    (Event::Unpin, 14),
    (Event::Unhand, 20),
    (Event::Call, 30),
    (Event::FreeCall, 15),
    (Event::Probe, 4),
    (Event::Repeat, 8),
    (Event::Map, 12),
    (Event::Stop, 3),
    (Event::Resume, 6),
    (Event::Misbehave, 2),
    (Event::Ring, 60),
    (Event::Sweep, 12),
    (Event::Wait, 30),
    (Event::Answer, 25),
    (Event::Add, 6),
    (Event::Online, 4),
    (Event::Offline, 8),
    (Event::Remove, 5),
    (Event::Cancel, 2),
    (Event::Compact, 5),
    (Event::Drain, 3),
    (Event::Evict, 1),
    (Event::Tune, 2),
    (Event::Look, 2),
    (Event::Crash, 2),
];

/// Events that are never off: without them nothing moves.
const ALWAYS: [Event; 8] = [
    Event::Attach,
    Event::Take,
    Event::Put,
    Event::Map,
    Event::Ring,
    Event::Wait,
    Event::Answer,
    Event::Add,
];

/// Contiguity caches that may be in use.
const MODES: [ContiguityMode; 4] = [
    ContiguityMode::None,
    ContiguityMode::Zone,
    ContiguityMode::Pageblock,
    ContiguityMode::Both,
];

/// NUMA nodes that the zones may be of.
const NODES: [[i32; 3]; 4] = [[-1, -1, -1], [0, 0, 0], [0, 1, 0], [1, 0, -1]];

/// What may happen in one run.
#[derive(Clone, Debug)]
pub struct Swarm {
    weights: Vec<(Event, u32)>,
    total: u32,
    /// The most clients at a time.
    pub max_clients: usize,
    /// The engine's settings.
    pub config: EngineConfig,
}

impl Swarm {
    /// Draws what may happen.
    pub fn draw(prng: &mut Prng) -> Swarm {
        let mut weights = Vec::new();
        for (event, weight) in EVENTS {
            let is_off = prng.chance(1, 4) && !ALWAYS.contains(&event);
            let scale = 1 + prng.below_u32(4);
            if !is_off {
                weights.push((event, weight * scale));
            }
        }
        let total = weights.iter().map(|(_, weight)| weight).sum();
        let max_clients = 1 + prng.index(6);
        Swarm {
            weights,
            total,
            max_clients,
            config: draw_config(prng),
        }
    }

    /// Draws what happens next.
    pub fn next(&self, prng: &mut Prng) -> Event {
        let mut at = prng.below_u32(self.total);
        for &(event, weight) in &self.weights {
            if at < weight {
                return event;
            }
            at -= weight;
        }
        Event::Wait
    }

    /// The events that are off, for the record.
    pub fn off(&self) -> Vec<Event> {
        let is_on = |event: &Event| self.weights.iter().any(|(on, _)| on == event);
        EVENTS
            .iter()
            .map(|(event, _)| *event)
            .filter(|event| !is_on(event))
            .collect()
    }
}

fn draw_config(prng: &mut Prng) -> EngineConfig {
    // Pageblock order, largest order, section order: tiny, so that edges come early.
    let shapes = [(5, 6, 7), (5, 5, 5), (6, 8, 8), (5, 7, 8)];
    let (pageblock, max, section) = *prng.pick(&shapes).expect("there are shapes");
    let geometry = Geometry::new(12, pageblock, max, section)
        .expect("the shapes above keep the rules of geometry");
    let zone = |name: &str, kind, sections: u64, ceiling_pages| ZoneSettings {
        name: name.to_owned(),
        kind,
        node: -1,
        reserve_pages: sections << section,
        ceiling_pages,
        floor_pages: 0,
        quarantine: Quarantine::None,
    };
    let ceiling = |prng: &mut Prng| prng.chance(1, 6).then(|| 20 + prng.below(400));
    let mut zones = vec![
        zone("normal", ZoneKind::Normal, 1 + prng.below(8), ceiling(prng)),
        zone(
            "movable",
            ZoneKind::Movable,
            1 + prng.below(8),
            ceiling(prng),
        ),
    ];
    if prng.chance(1, 3) {
        zones.push(zone("second", ZoneKind::Normal, 1 + prng.below(4), None));
    }
    let nodes = prng.pick(&NODES).expect("there are nodes");
    for (zone, node) in zones.iter_mut().zip(nodes) {
        zone.node = *node;
    }
    let defaults = Defaults {
        client_ceiling_pages: prng.chance(1, 6).then(|| 10 + prng.below(200)),
        lane_credit_pages: 1 << (2 + prng.below_u32(10)),
        offline_timeout: core::time::Duration::from_millis(50),
        max_clients: 12,
        max_lanes: 8,
        max_unacknowledged: 1 + prng.index(8),
        contiguity: *prng.pick(&MODES).expect("there are modes"),
        proactiveness: *prng.pick(&[0, 20, 60, 100]).expect("there are some"),
        background_pages_per_second: *prng.pick(&[0, 64, 25_600]).expect("there are some"),
    };
    EngineConfig {
        geometry,
        zones,
        defaults,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_has_a_swarm_of_its_own() {
        let off = |seed| Swarm::draw(&mut Prng::from_seed(seed)).off();
        assert_ne!(off(1), off(2));
        assert_eq!(off(1), off(1));
        assert!((0..200).all(|seed| ALWAYS.iter().all(|event| !off(seed).contains(event))));
    }
}
