//! Which link of the backing chain each zone takes, all zones together: what one zone takes is no
//! longer there for the next.
//!
//! Only the answer is made here; memory is taken by [`memory`](crate::memory).

use hugepool_shm::backing::{
    Backing, BackingChoice, BackingFacts, BackingNeed, ChosenBacking, NoBacking, choose,
};
use hugepool_shm::huge_pool::HugePool;

use crate::config::{Config, ZonePlan};

/// What became of each zone, in order.
pub fn choose_all(config: &Config, facts: &BackingFacts) -> Vec<Result<ChosenBacking, NoBacking>> {
    let mut facts = facts.clone();
    let section_bytes = config.geometry.section_bytes();
    let zones = config.zones.iter();
    zones
        .map(|zone| {
            let need = BackingNeed {
                need_bytes: section_bytes.saturating_mul(zone.nr_sections.into()),
                section_bytes,
                node: zone.node,
            };
            let chosen = choose(zone.backing, need, &facts);
            if let Ok(chosen) = &chosen {
                take(&mut facts, chosen.backing, need);
            }
            chosen
        })
        .collect()
}

/// Whether a zone's choice could serve one section more now, and by which link: for hot-add. The
/// file of a zone is made of one kind of page for good, so only links of its kind come into
/// question; the others are named as they were passed over at the start.
pub fn choose_more(
    zone: &ZonePlan,
    at_start: &ChosenBacking,
    section_bytes: u64,
    facts: &BackingFacts,
) -> Result<ChosenBacking, NoBacking> {
    let need = BackingNeed {
        need_bytes: section_bytes,
        section_bytes,
        node: zone.node,
    };
    let may_be_thp = zone.backing == BackingChoice::Auto
        && matches!(at_start.backing, Backing::Thp | Backing::Shm);
    if !may_be_thp {
        let mut chosen = choose(BackingChoice::Only(at_start.backing), need, facts)?;
        chosen.passed_over.clone_from(&at_start.passed_over);
        return Ok(chosen);
    }
    let mut passed_over = at_start.passed_over.clone();
    passed_over.retain(|passed| passed.backing != Backing::Thp);
    for link in [Backing::Thp, Backing::Shm] {
        match choose(BackingChoice::Only(link), need, facts) {
            Ok(chosen) => {
                return Ok(ChosenBacking {
                    passed_over,
                    ..chosen
                });
            }
            Err(error) => passed_over.extend(error.passed_over),
        }
    }
    Err(NoBacking {
        choice: zone.backing,
        need_bytes: need.need_bytes,
        passed_over,
    })
}

/// Takes from the facts what a zone will take from the system.
fn take(facts: &mut BackingFacts, backing: Backing, need: BackingNeed) {
    let bytes = need.need_bytes;
    match backing {
        Backing::Hugetlb => take_pages(facts.pool_2m.as_mut(), bytes, need.node),
        Backing::Hugetlb1G => take_pages(facts.pool_1g.as_mut(), bytes, need.node),
        Backing::Thp | Backing::Shm => {
            facts.memory.room_bytes = facts.memory.room_bytes.saturating_sub(bytes);
        }
    }
}

fn take_pages(pool: Option<&mut HugePool>, bytes: u64, node: Option<u32>) {
    let Some(pool) = pool else { return };
    let wanted = bytes.div_ceil(pool.page_bytes);
    let from_free = wanted.min(pool.free.saturating_sub(pool.reserved));
    pool.free -= from_free;
    pool.surplus = pool.surplus.saturating_add(wanted - from_free);
    pool.allowed = match pool.allowed {
        u64::MAX => u64::MAX,
        allowed => allowed.saturating_sub(wanted),
    };
    // Without a node they come from anywhere; which ones is not ours to know beforehand.
    for entry in &mut pool.nodes {
        if node == Some(entry.node) {
            entry.free = entry.free.saturating_sub(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugepool_shm::huge_pool::{NodePool, ShmemThp};
    use hugepool_shm::memory_room::{MemoryBound, MemoryRoom};
    use std::path::Path;

    fn facts(free_pages: u64, room_bytes: u64) -> BackingFacts {
        BackingFacts {
            pool_2m: Some(HugePool {
                page_bytes: 2 << 20,
                total: free_pages,
                free: free_pages,
                reserved: 0,
                surplus: 0,
                overcommit: 0,
                allowed: u64::MAX,
                nodes: vec![NodePool {
                    node: 0,
                    total: free_pages,
                    free: free_pages,
                }],
            }),
            pool_1g: None,
            thp: ShmemThp {
                general: "never".into(),
                for_2m: "inherit".into(),
            },
            memory: MemoryRoom {
                room_bytes,
                bound: MemoryBound::Unknown,
            },
        }
    }

    fn config(zones: &[&str]) -> Config {
        let zones = zones.iter().map(|zone| zone.parse().unwrap()).collect();
        Config::embedded(Path::new("/run/test"), zones).unwrap()
    }

    #[test]
    fn what_one_zone_takes_is_not_there_for_the_next() {
        let config = config(&["a=128MiB", "b=128MiB", "c=128MiB"]);
        let chosen = choose_all(&config, &facts(100, 128 << 20));
        let backing: Vec<_> = chosen
            .iter()
            .map(|c| c.as_ref().unwrap().backing)
            .take(2)
            .collect();
        assert_eq!(backing, [Backing::Hugetlb, Backing::Shm]);
        let passed = chosen[1].as_ref().unwrap().passed_over[0].to_string();
        assert!(
            passed.contains("64 huge pages") && passed.contains("28 (58720256 bytes) more"),
            "{passed}"
        );
        let error = chosen[2].as_ref().unwrap_err().to_string();
        assert!(
            error.contains("134217728 bytes are needed where 0 can be had"),
            "{error}"
        );
    }

    #[test]
    fn a_node_is_emptied_apart_from_the_others() {
        let config = config(&["a=128MiB,node=0", "b=128MiB,node=0"]);
        let chosen = choose_all(&config, &facts(64, u64::MAX));
        assert_eq!(chosen[0].as_ref().unwrap().backing, Backing::Hugetlb);
        assert_eq!(chosen[1].as_ref().unwrap().backing, Backing::Shm);
    }

    #[test]
    fn one_section_more_stays_with_the_pages_of_the_zones_file() {
        let config = config(&["a=128MiB"]);
        let at_start = choose_all(&config, &facts(64, u64::MAX)).remove(0).unwrap();
        let zone = &config.zones[0];
        let error = choose_more(zone, &at_start, 128 << 20, &facts(10, u64::MAX)).unwrap_err();
        assert_eq!(error.passed_over.len(), 1, "huge pages or nothing: {error}");
        let more = choose_more(zone, &at_start, 128 << 20, &facts(64, u64::MAX)).unwrap();
        assert_eq!(more.backing, Backing::Hugetlb);

        let at_start = choose_all(&config, &facts(0, u64::MAX)).remove(0).unwrap();
        assert_eq!(
            (at_start.backing, at_start.passed_over.len()),
            (Backing::Shm, 2)
        );
        let mut later = facts(64, u64::MAX);
        later.thp.general = "advise".into();
        let more = choose_more(zone, &at_start, 128 << 20, &later).unwrap();
        assert_eq!((more.backing, more.passed_over.len()), (Backing::Thp, 1));
    }
}
