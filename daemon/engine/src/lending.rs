//! Out of the zones, to a client: what it may have, from which zone, and why not more.
//!
//! The other half of [`custody`](crate::custody), which says what lent means and takes home. A zone is
//! asked down to the mark of the request, and one that the request would not rather have keeps some
//! back (`lowmem_reserve`); a client is given nothing in a section that it has not mapped.

use hugepool_mm::{AllocFlags, Mark, Migratetype, Order, Pfn, Shortfall as ZoneShortfall, Zone};
use hugepool_shm::control::ControlSegment;

use crate::call::Shortfall;
use crate::custody::Custody;
use crate::head_run::{self, HeadRun};
use crate::id::ClientId;
use crate::limits::{Headroom, Spare};
use crate::num;

/// Blocks put aside while looking for some in sections that the borrower has mapped.
const MAX_ASIDE: usize = 4096;

/// Who borrows, and what it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Borrower<'a> {
    pub client: ClientId,
    /// Zone indexes, best first.
    pub zonelist: &'a [usize],
    /// Where it marks sections as mapped; one without a segment maps nothing.
    pub segment: Option<&'a ControlSegment>,
    /// How far down it may take a zone's free pages.
    pub mark: Mark,
}

/// What came of borrowing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Borrowed {
    pub nr_blocks: usize,
    /// Why fewer than asked.
    pub shortfall: Option<Shortfall>,
}

/// Why a zone gave less than asked; the worst of all zones is told.
#[derive(Clone, Copy, Debug, Default)]
struct Why {
    is_unmapped: bool,
    /// A ceiling in a zone, and what was owned below it when it was met.
    zone_ceiling: Option<(u64, u64)>,
    /// Pages that zones keep for others than the borrower, above their marks.
    kept_pages: u64,
}

impl Custody {
    /// Lends up to `nr` blocks, and tells each run of them with the generation of its lend. Check and
    /// take are one step, and custody is recorded when it returns: what is told may be
    /// published then.
    pub fn lend(
        &mut self,
        who: &Borrower<'_>,
        order: Order,
        migratetype: Migratetype,
        nr: usize,
        now_ms: u64,
        tell: &mut dyn FnMut(HeadRun, u32),
    ) -> Borrowed {
        let headroom = self.limits.headroom(who.client, self.owners.tally());
        let most = headroom.map_or(u64::MAX, |room| room.pages >> order.get());
        let wanted = nr.min(usize::try_from(most).unwrap_or(usize::MAX));
        let mut heads = core::mem::take(&mut self.heads);
        let mut runs = core::mem::take(&mut self.runs);
        heads.clear();
        runs.clear();
        let mut why = Why::default();
        for (position, &zone) in who.zonelist.iter().enumerate() {
            if heads.len() < wanted && self.zones.zone(zone).admits(migratetype) {
                let ask = Ask {
                    zone,
                    preferred: who.zonelist[0],
                    order,
                    migratetype,
                    mark: who.mark,
                    left_pages: 0,
                };
                debug_assert!(position > 0 || zone == ask.preferred);
                let before = heads.len();
                self.take_from_zone(ask, who, wanted, &mut heads, &mut why);
                // Of one zone each, though zones lie one behind the other.
                head_run::cut(&heads[before..], order, &mut runs);
                let nr_pages = num::count(heads.len() - before) << order.get();
                self.picks.note(&self.zones, zone, ask.preferred, nr_pages);
            }
        }
        let nr_blocks = heads.len();
        self.touch(&runs, order);
        self.owners
            .lend(who.client, order, migratetype, &runs, now_ms, tell);
        self.heads = heads;
        self.runs = runs;
        let shortfall = if nr_blocks == nr {
            None
        } else if let Some(room) = headroom.filter(|_| nr_blocks == wanted) {
            Some(Shortfall::Quota {
                owned_pages: room.owned_pages + (num::count(nr_blocks) << order.get()),
                ceiling_pages: room.ceiling_pages,
            })
        } else {
            let shortfall = self.shortfall(who, order, migratetype, why);
            if matches!(shortfall, Shortfall::Fragmented { .. }) {
                for &zone in who.zonelist {
                    let wanted = &mut self.wanted_orders[zone];
                    *wanted = (*wanted).max(Some(order));
                }
            }
            Some(shortfall)
        };
        Borrowed {
            nr_blocks,
            shortfall,
        }
    }

    fn take_from_zone(
        &mut self,
        ask: Ask,
        who: &Borrower<'_>,
        wanted: usize,
        heads: &mut Vec<Pfn>,
        why: &mut Why,
    ) {
        let (asked, mut wanted) = (wanted, wanted);
        let before = heads.len();
        let blocks = |pages: u64| usize::try_from(pages >> ask.order.get()).unwrap_or(usize::MAX);
        let ceiling = self.ceiling_in(ask.zone, who.client);
        if let Some(room) = ceiling {
            wanted = wanted.min(before.saturating_add(blocks(room.pages)));
        }
        let capped = wanted;
        let asked_pages = num::count(wanted.saturating_sub(before)) << ask.order.get();
        let share = self.share(ask, who.client, asked_pages);
        if let Some(spare) = share.spare {
            wanted = wanted.min(before.saturating_add(blocks(spare.pages)));
            // What it is sure of it is given down to the last page.
            let sure = wanted.min(before.saturating_add(blocks(spare.own_pages)));
            let last = Ask {
                mark: Mark::None,
                ..ask
            };
            why.is_unmapped |= self.take_mapped(last, who.segment, sure, heads);
        }
        if share.left_pages > 0 {
            let room = num::count(heads.len() - before) << ask.order.get();
            let room = room + self.until_low(ask.zone);
            wanted = wanted.min(before.saturating_add(blocks(room)));
        }
        let ask = Ask {
            left_pages: share.left_pages,
            ..ask
        };
        let wanted = wanted.max(heads.len());
        why.is_unmapped |= self.take_mapped(ask, who.segment, wanted, heads);
        if heads.len() < asked {
            why.kept_pages += share.left_pages + share.spare.map_or(0, |spare| spare.kept_pages);
        }
        if let Some(room) = ceiling.filter(|_| capped < asked && heads.len() == capped) {
            let taken = num::count(heads.len() - before) << ask.order.get();
            why.zone_ceiling = Some((room.owned_pages + taken, room.ceiling_pages));
        }
    }

    /// The tightest of the ceilings in a zone: its own, the borrower's, the borrower's user's.
    fn ceiling_in(&self, zone: usize, client: ClientId) -> Option<Headroom> {
        let tally = self.owners.tally();
        let zones = self.zones.settings(zone).ceiling_pages.map(|most| {
            let owned_pages = tally.zone_pages(zone);
            Headroom {
                pages: most.saturating_sub(owned_pages),
                owned_pages,
                ceiling_pages: most,
            }
        });
        let own = self.limits.headroom_in(zone, client, tally);
        [zones, own]
            .into_iter()
            .flatten()
            .min_by_key(|room| room.pages)
    }

    /// Pages that take a zone to just below its low mark, those in the daemon's own lists too.
    fn until_low(&self, zone: usize) -> u64 {
        let counts = self.zones.zone(zone).counts();
        let low = self.zones.zone(zone).watermarks().low;
        (counts.free + counts.pcp).saturating_sub(low.saturating_sub(1))
    }

    /// What is left to the borrower of a zone's pages.
    fn share(&self, ask: Ask, client: ClientId, asked_pages: u64) -> Share {
        let zone = self.zones.zone(ask.zone);
        let tally = self.owners.tally();
        let marks = zone.watermarks();
        let counts = || zone.counts();
        let spare = self.limits.has_floors(ask.zone).then(|| {
            let counts = counts();
            let above_min = (counts.free + counts.pcp).saturating_sub(marks.min);
            self.limits.spare(ask.zone, client, tally, above_min)
        });
        let is_greedy = ask.mark == Mark::Min
            && zone.free_pages() < marks.low + asked_pages
            && self
                .limits
                .is_greedy(ask.zone, client, counts().managed, tally);
        Share {
            spare: spare.flatten(),
            // The one page below `low` tells of the pressure, and begins the reclaim.
            left_pages: if is_greedy {
                (marks.low - marks.min).saturating_sub(1)
            } else {
                0
            },
        }
    }

    /// Takes blocks that lie in sections which the borrower has mapped, until there are so many in
    /// all. Returns whether others were there.
    fn take_mapped(
        &mut self,
        ask: Ask,
        segment: Option<&ControlSegment>,
        wanted: usize,
        heads: &mut Vec<Pfn>,
    ) -> bool {
        let zones = &mut self.zones;
        let segment = segment.filter(|segment| segment.mapped_epoch() != zones.epoch());
        let Some(segment) = segment else {
            take(zones.zone_mut(ask.zone), ask, wanted - heads.len(), heads);
            return false;
        };
        let mut aside = Vec::new();
        while heads.len() < wanted && aside.len() < MAX_ASIDE {
            let from = heads.len();
            if take(zones.zone_mut(ask.zone), ask, wanted - from, heads) == 0 {
                break;
            }
            let usable = |pfn: &Pfn| {
                let section = zones.geometry().section_of(*pfn);
                segment.is_mapped(section.get(), zones.announced(section))
            };
            // Asked once for each: the client may be marking the section just now, and a page that
            // was not usable and then is would be both lent and free.
            let fresh = heads.split_off(from);
            let (good, bad): (Vec<Pfn>, Vec<Pfn>) = fresh.into_iter().partition(usable);
            heads.extend(good);
            aside.extend(bad);
        }
        let is_unmapped = !aside.is_empty();
        let zone = zones.zone_mut(ask.zone);
        aside.into_iter().for_each(|pfn| zone.free(pfn, ask.order));
        is_unmapped
    }

    /// Whether a client may be given a page there: it has mapped what is announced of its section.
    pub fn is_mapped(&self, who: &Borrower<'_>, pfn: Pfn) -> bool {
        who.segment.is_none_or(|segment| {
            let section = self.zones.geometry().section_of(pfn);
            segment.mapped_epoch() == self.zones.epoch()
                || segment.is_mapped(section.get(), self.zones.announced(section))
        })
    }

    /// Takes one block for a client's block to be moved to: from `first`, the zone it is in, if
    /// that has one, else from the others of the client's list. It may be the last one of a zone:
    /// a move gives back as much as it takes. It is nobody's yet.
    pub fn take_target(
        &mut self,
        who: &Borrower<'_>,
        first: usize,
        order: Order,
        migratetype: Migratetype,
    ) -> Option<Pfn> {
        let mut heads = core::mem::take(&mut self.heads);
        heads.clear();
        let others = who.zonelist.iter().copied().filter(|&zone| zone != first);
        let zones: Vec<usize> = core::iter::once(first).chain(others).collect();
        for mark in [Mark::Min, Mark::None] {
            for &zone in &zones {
                if heads.is_empty() && self.zones.zone(zone).admits(migratetype) {
                    let ask = Ask {
                        zone,
                        preferred: first,
                        order,
                        migratetype,
                        mark,
                        left_pages: 0,
                    };
                    self.take_mapped(ask, who.segment, 1, &mut heads);
                }
            }
        }
        let target = heads.pop();
        self.heads = heads;
        target
    }

    /// Why the zones of the borrower's list gave less.
    fn shortfall(
        &self,
        who: &Borrower<'_>,
        order: Order,
        migratetype: Migratetype,
        why: Why,
    ) -> Shortfall {
        if let Some((owned_pages, ceiling_pages)) = why.zone_ceiling {
            return Shortfall::Quota {
                owned_pages,
                ceiling_pages,
            };
        }
        if why.is_unmapped {
            return Shortfall::NotMapped {
                section_epoch: self.zones.epoch(),
            };
        }
        let (mut free_pages, mut min_pages, mut isolated) = (0, why.kept_pages, 0);
        let mut fragmented = None;
        for &at in who.zonelist {
            let zone = self.zones.zone(at);
            if !zone.admits(migratetype) {
                continue;
            }
            free_pages += zone.free_pages();
            min_pages += zone.watermarks().min;
            if self.zones.leaving() >> at & 1 == 1 {
                isolated += self.zones.counts(at).isolated;
            }
            match zone.shortfall(order, AllocFlags::MIN) {
                // A block that is large enough is not lacking: it is kept back for others.
                ZoneShortfall::Fragmented { largest_order, .. } if largest_order < order => {
                    fragmented = fragmented.max(Some(largest_order));
                }
                _ => {}
            }
        }
        match fragmented {
            Some(_) if why.kept_pages == 0 || free_pages > min_pages => Shortfall::Fragmented {
                free_pages,
                largest_order: fragmented,
            },
            None if isolated >= u64::from(order.nr_pages()) => Shortfall::Offlining,
            _ => Shortfall::ZoneEmpty {
                free_pages,
                min_pages,
            },
        }
    }
}

/// One visit to a zone.
#[derive(Clone, Copy, Debug)]
struct Ask {
    zone: usize,
    /// The zone that the request would rather have.
    preferred: usize,
    order: Order,
    migratetype: Migratetype,
    /// What the zone keeps.
    mark: Mark,
    /// Pages above the mark that are left to others.
    left_pages: u64,
}

/// What a borrower may have of a zone beside others.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// By the floors that are set there.
    spare: Option<Spare>,
    /// Pages above the mark that are left to who owns less.
    left_pages: u64,
}

/// Takes up to `nr` blocks; with nothing left, the daemon's own lists are drained once
/// and it is tried again. Returns how many.
fn take(zone: &mut Zone, ask: Ask, nr: usize, out: &mut Vec<Pfn>) -> usize {
    let reserve_pages = zone.protection().get(ask.preferred).copied().unwrap_or(0);
    let flags = AllocFlags {
        reserve_pages: if ask.mark == Mark::None {
            0
        } else {
            reserve_pages + ask.left_pages
        },
        ..AllocFlags::to(ask.mark)
    };
    let mut taken = zone.pcp_take(ask.order, ask.migratetype, nr, flags, out);
    if taken < nr && zone.counts().pcp > 0 {
        zone.pcp_drain();
        taken += zone.pcp_take(ask.order, ask.migratetype, nr - taken, flags, out);
    }
    taken
}
