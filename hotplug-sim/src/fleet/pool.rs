//! A fleet under one policy: tenants come and go, sections go to and fro.
//!
//! What comes is drawn before anybody looks whether it fits, so it is the same under every policy.

use std::collections::BTreeMap;

use super::file::{BLOCK_PAGES, Fleet, Kind, Policy};
use super::host::{Demand, Host, Tenant};
use crate::prng::Prng;

/// What a policy came to. Counts and means are of the second half, when the fleet has filled up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tenants that came.
    pub nr_arrivals: u64,
    /// Tenants that found room.
    pub nr_served: u64,
    /// Refused: the pool had too few sections.
    pub nr_pool_empty: u64,
    /// Refused: the host may have no more of the pool, or there is none.
    pub nr_host_full: u64,
    /// Refused: the host's own memory had no room for what cannot be moved.
    pub nr_own_full: u64,
    /// Sections that went from the pool to hosts, and back.
    pub nr_given: u64,
    /// Sections that came back.
    pub nr_back: u64,
    /// Pages moved to empty sections.
    pub nr_moved: u64,
    /// Sums over the hours, in pageblocks: free in the pool.
    pub in_pool: u64,
    /// Free on hosts, in whole pageblocks.
    pub on_hosts: u64,
    /// Free on hosts, in pageblocks that are partly used.
    pub in_pieces: u64,
    /// Sums over the hours: sections of the pool that cannot come back for pages that stay.
    pub stuck: u64,
    /// Hours counted.
    pub nr_hours: u64,
    /// At the end: records of hosts, and their bytes.
    pub nr_records: u64,
    /// Bytes of the records, at the end.
    pub record_bytes: u64,
}

/// A tenth of the pool left: then hosts move pages to empty sections.
const POOL_IS_LOW: u64 = 10;

struct Run<'a> {
    fleet: &'a Fleet,
    policy: Policy,
    hosts: Vec<Host>,
    tenants: Vec<BTreeMap<u32, Tenant>>,
    pool: u64,
    outcome: Outcome,
    is_counted: bool,
}

/// A tenant on its way.
struct Arrival {
    host: usize,
    demand: Demand,
    hours: u32,
}

/// Goes through all hours, and says after each that it is over.
///
/// # Errors
/// A sum does not hold at the end: a mistake of this program.
pub fn run(fleet: &Fleet, policy: Policy, hour_is_over: &dyn Fn()) -> Result<Outcome, String> {
    let mut run = Run::new(fleet, policy);
    let mut prng = Prng::from_seed(fleet.seed);
    let mut deaths: Vec<Vec<(usize, u32)>> = vec![Vec::new(); fleet.nr_hours as usize];
    let (mut number, mut owed) = (0_u32, 0_u64);
    for hour in 0..fleet.nr_hours {
        run.is_counted = hour >= fleet.nr_hours / 2;
        for (host, number) in core::mem::take(&mut deaths[hour as usize]) {
            run.leave(host, number);
        }
        run.rebalance();
        owed += fleet.arrivals_per_1000_hours();
        let nr_arrivals = owed / 1000;
        owed %= 1000;
        for _ in 0..nr_arrivals {
            let arrival = draw(fleet, &mut prng);
            number += 1;
            let end = hour.saturating_add(arrival.hours);
            if run.arrive(&arrival, number)
                && let Some(row) = deaths.get_mut(end as usize)
            {
                row.push((arrival.host, number));
            }
        }
        run.look();
        hour_is_over();
    }
    run.verify()?;
    let records = run.hosts.iter().map(|host| host.nr_records() as u64);
    run.outcome.nr_records = records.sum();
    run.outcome.record_bytes = run
        .hosts
        .iter()
        .map(|host| host.record_bytes() as u64)
        .sum();
    Ok(run.outcome)
}

fn draw(fleet: &Fleet, prng: &mut Prng) -> Arrival {
    let nr_hot = u64::from(fleet.nr_hosts) * u64::from(fleet.hot_percent) / 100;
    let nr_other = u64::from(fleet.nr_hosts) - nr_hot;
    let weight_hot = nr_hot * u64::from(fleet.hot_factor);
    let at = prng.below(weight_hot + nr_other);
    let host = if at < weight_hot {
        at / u64::from(fleet.hot_factor)
    } else {
        nr_hot + at - weight_hot
    };
    let weights: u64 = fleet.kinds.iter().map(|kind| u64::from(kind.weight)).sum();
    let mut at = prng.below(weights);
    let mut kinds = fleet.kinds.iter();
    let kind = loop {
        let kind = kinds.next().expect("the weights add up");
        if at < u64::from(kind.weight) {
            break *kind;
        }
        at -= u64::from(kind.weight);
    };
    Arrival {
        host: usize::try_from(host).expect("hosts are counted in 32 bits"),
        demand: demand(kind, prng),
        hours: 1 + prng.below_u32(2 * kind.hours - 1),
    }
}

/// From half to one and a half of what the kind takes, so that sizes are not all multiples.
fn demand(kind: Kind, prng: &mut Prng) -> Demand {
    let vary = |pages: u64, prng: &mut Prng| pages / 2 + prng.below(pages + 1);
    let unmovable = vary(kind.unmovable, prng);
    let movable = vary(kind.pages - kind.unmovable, prng);
    let rest = movable % u64::from(BLOCK_PAGES);
    Demand {
        blocks: movable / u64::from(BLOCK_PAGES),
        movable: u16::try_from(rest).expect("less than a pageblock"),
        unmovable,
    }
}

impl<'a> Run<'a> {
    fn new(fleet: &'a Fleet, policy: Policy) -> Run<'a> {
        let is_pool_for_all = matches!(policy, Policy::Static | Policy::Kernel);
        let (share, pool) = match policy {
            Policy::Static => {
                let share = fleet.pool_sections / u64::from(fleet.nr_hosts);
                (u32::try_from(share).unwrap_or(u32::MAX), 0)
            }
            _ => (0, fleet.pool_sections),
        };
        let own = fleet.own_sections.saturating_add(share);
        let reserve = u64::from(fleet.own_reserve) * u64::from(fleet.section_blocks);
        let host = Host::new(fleet.section_blocks, own, is_pool_for_all, reserve);
        Run {
            fleet,
            policy,
            hosts: vec![host; fleet.nr_hosts as usize],
            tenants: vec![BTreeMap::new(); fleet.nr_hosts as usize],
            pool,
            outcome: Outcome::default(),
            is_counted: false,
        }
    }

    fn count(&mut self, what: fn(&mut Outcome) -> &mut u64, nr: u64) {
        if self.is_counted {
            *what(&mut self.outcome) += nr;
        }
    }

    fn arrive(&mut self, arrival: &Arrival, number: u32) -> bool {
        self.count(|outcome| &mut outcome.nr_arrivals, 1);
        let lack = self.hosts[arrival.host].lacks(arrival.demand);
        if lack.any > 0 && !self.fetch(arrival.host, lack.any) {
            return false;
        }
        // Kernel memory of the pool has come by now, if it will do.
        if self.hosts[arrival.host].lacks(arrival.demand).own > 0 {
            self.count(|outcome| &mut outcome.nr_own_full, 1);
            return false;
        }
        let tenant = self.hosts[arrival.host].admit(arrival.demand);
        self.tenants[arrival.host].insert(number, tenant);
        self.count(|outcome| &mut outcome.nr_served, 1);
        true
    }

    /// Brings enough sections of the pool to a host, or none.
    fn fetch(&mut self, host: usize, nr_blocks: u64) -> bool {
        let wanted = nr_blocks.div_ceil(u64::from(self.fleet.section_blocks));
        let has = u64::from(self.hosts[host].pool_sections());
        if self.policy == Policy::Static || has + wanted > u64::from(self.fleet.most_per_host) {
            self.count(|outcome| &mut outcome.nr_host_full, 1);
            return false;
        }
        if wanted > self.pool {
            self.count(|outcome| &mut outcome.nr_pool_empty, 1);
            return false;
        }
        self.pool -= wanted;
        self.hosts[host].plug(u32::try_from(wanted).expect("it is within the host's limit"));
        self.count(|outcome| &mut outcome.nr_given, wanted);
        true
    }

    fn leave(&mut self, host: usize, number: u32) {
        if let Some(tenant) = self.tenants[host].remove(&number) {
            self.hosts[host].leave(&tenant);
        }
    }

    /// Free sections go back; with `compact` and a pool that is low, more are made free.
    fn rebalance(&mut self) {
        if self.policy == Policy::Static {
            return;
        }
        let is_low = self.pool * POOL_IS_LOW < self.fleet.pool_sections;
        for (host, tenants) in self.hosts.iter_mut().zip(&mut self.tenants) {
            if self.policy == Policy::Compact && is_low {
                let moved = host.compact(tenants.values_mut(), self.fleet.moves_per_hour);
                if self.is_counted {
                    self.outcome.nr_moved += moved;
                }
            }
            let nr = u64::from(host.unplug(self.fleet.keep_free));
            self.pool += nr;
            if self.is_counted {
                self.outcome.nr_back += nr;
            }
        }
    }

    fn look(&mut self) {
        if !self.is_counted {
            return;
        }
        self.outcome.nr_hours += 1;
        self.outcome.in_pool += self.pool * u64::from(self.fleet.section_blocks);
        for host in &self.hosts {
            self.outcome.on_hosts += host.free_blocks();
            self.outcome.in_pieces += host.free_pages_in_mixed() / u64::from(BLOCK_PAGES);
            self.outcome.stuck += host.stuck_sections();
        }
    }

    fn verify(&self) -> Result<(), String> {
        let mut sections = self.pool;
        for (at, (host, tenants)) in self.hosts.iter().zip(&self.tenants).enumerate() {
            host.verify(tenants.values())
                .map_err(|error| format!("host {at}: {error}"))?;
            sections += u64::from(host.pool_sections());
        }
        if self.policy != Policy::Static && sections != self.fleet.pool_sections {
            return Err(format!(
                "{sections} sections of the pool are left of {}",
                self.fleet.pool_sections
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(fleet: &Fleet, policy: Policy) -> Result<Outcome, String> {
        super::run(fleet, policy, &|| ())
    }

    const SMALL: &str = r#"
        hosts = 12
        host_memory = "8GiB"
        pool_memory = "32GiB"
        pool_per_host = "8GiB"
        keep_free = "128MiB"
        hours = 200
        load_percent = 90
        hot_percent = 25
        hot_factor = 3
        seed = 7
        [[tenant]]
        memory = "300MiB"
        unmovable = "3MiB"
        weight = 5
        hours = 10
        [[tenant]]
        memory = "2GiB"
        weight = 1
        hours = 20
    "#;

    #[test]
    fn sums_hold_after_every_hour_under_every_policy() {
        // Each run verifies at its end; ending it at every hour checks them all.
        for policy in Policy::ALL {
            for hours in 1..60 {
                let mut fleet = Fleet::from_toml(SMALL).unwrap();
                fleet.nr_hours = hours;
                run(&fleet, policy)
                    .unwrap_or_else(|error| panic!("{policy:?}, {hours} h: {error}"));
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_fleet_and_the_same_tenants_under_all_policies() {
        let fleet = Fleet::from_toml(SMALL).unwrap();
        let outcomes = Policy::ALL.map(|policy| run(&fleet, policy).unwrap());
        assert_eq!(run(&fleet, Policy::Compact).unwrap(), outcomes[3]);
        assert!(
            outcomes
                .iter()
                .all(|one| one.nr_arrivals == outcomes[0].nr_arrivals)
        );
        let other = Fleet { seed: 8, ..fleet };
        assert_ne!(run(&other, Policy::Compact).unwrap(), outcomes[3]);
    }

    #[test]
    fn a_pool_serves_more_than_fixed_shares_and_movable_memory_comes_back() {
        let fleet = Fleet::from_toml(SMALL).unwrap();
        let [fixed, kernel, movable, compact] =
            Policy::ALL.map(|policy| run(&fleet, policy).unwrap());
        assert!(movable.nr_served > fixed.nr_served, "{movable:?} {fixed:?}");
        assert!(
            kernel.stuck > 0 && movable.stuck == 0 && compact.stuck == 0,
            "{kernel:?}"
        );
        assert!(compact.nr_served > fixed.nr_served, "{compact:?} {fixed:?}");
        assert!(movable.nr_moved == 0 && compact.nr_moved > 0);
    }
}
