//! What bounds the lanes of a client: its share of the zones, the kernel's figures, what was set by
//! hand, and whether a zone is short of pages.
//!
//! Computed again when something of that has changed; how a lane moves within it is
//! [`demand`](crate::demand)'s.

use hugepool_mm::watermark::pcp_batch;
use hugepool_shm::raw::Class;

use crate::Engine;
use crate::client::Client;
use crate::custody::Custody;
use crate::demand::{AllBounds, Bounds};
use crate::id::ClientId;
use crate::lanes::{class_capacity, class_migratetype, class_order};
use crate::num;

/// The most of a zone's pages that the grants of all its clients' lanes should hold: 2^-3.
const CREDIT_SHIFT: u32 = 3;

/// Pages moved per visit and kept in a magazine without demand, where the client's share of its
/// zones allows it: above what a call for 65 pages takes and gives, which the kernel's figures for
/// small zones are not. Pages that lie idle in a lane can be recalled, the kernel's cannot.
const LEAST_BATCH_PAGES: u32 = 63;
const LEAST_HIGH_PAGES: u32 = 256;

/// While a zone is short of pages, the grants hold no more than so many batches (the kernel's
/// figure for its lists while it reclaims).
const SHORT_BATCHES: u32 = 4;

impl Engine {
    /// Recomputes what bounds a client's lanes, if that has changed.
    pub(crate) fn refresh_bounds(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else {
            return;
        };
        let Some(link) = &client.link else { return };
        if link.bounds_version == self.bounds_version {
            return;
        }
        let nr_clients = self
            .clients
            .iter()
            .filter(|client| client.link.is_some())
            .count();
        let credit_pages = u64::from(self.defaults.lane_credit_pages);
        let bounds = compute_bounds(
            client,
            &self.custody,
            num::count(nr_clients),
            credit_pages,
            self.balance.short(),
        );
        let version = self.bounds_version;
        if let Some(link) = self
            .clients
            .get_mut(id)
            .and_then(|client| client.link.as_mut())
        {
            link.bounds = bounds;
            link.bounds_version = version;
            link.lanes.iter_mut().for_each(|lane| lane.publish(&bounds));
        }
    }
}

fn compute_bounds(
    client: &Client,
    custody: &Custody,
    nr_clients: u64,
    credit_pages: u64,
    short: u32,
) -> AllBounds {
    let geometry = custody.zones.geometry();
    let leaving = custody.zones.leaving();
    core::array::from_fn(|index| {
        let class = Class::ALL[index];
        let order = class_order(class, geometry.pageblock_order()).get();
        let zonelist = client.zonelist(class_migratetype(class));
        let counts = zonelist.iter().map(|&at| custody.zones.counts(at));
        let managed: u64 = counts.map(|counts| counts.managed).sum();
        let share = (managed >> CREDIT_SHIFT) / nr_clients.max(1);
        let zones = (0..custody.zones.len()).filter(|&at| client.may_use(at));
        let zones = zones.fold(0, |bits, at| bits | 1 << at);
        let credit: u32 = num::saturate(share.min(credit_pages) >> order);
        let kernels: u32 = num::saturate(pcp_batch(managed, geometry.page_bytes()) >> order);
        let least = (LEAST_BATCH_PAGES >> order).min(credit / 8);
        let base_batch = kernels.max(least).max(1);
        let is_short = zonelist.iter().any(|&at| short >> at & 1 == 1);
        let credit = if is_short {
            credit.min(base_batch.saturating_mul(SHORT_BATCHES))
        } else {
            credit
        };
        Bounds {
            base_batch,
            base_high: (LEAST_HIGH_PAGES >> order).min(credit / 2),
            capacity: class_capacity(class),
            credit: credit.max(1),
            fixed_batch: client.pcp.batch.map(|pages| (pages >> order).max(1)),
            fixed_high: client.pcp.high.map(|pages| pages >> order),
            // Frees into a zone that a section is leaving go home instead of into magazines.
            zones: zones & !leaving,
        }
    })
}
