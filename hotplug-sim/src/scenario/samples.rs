//! Numbers of a run over time, for pictures: as many as a picture can show.

use crate::host::Host;

/// More samples than this are thinned out to half.
const MOST: usize = 512;

/// One moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The unit before which it was taken.
    pub unit: u64,
    /// Told time.
    pub clock_ns: u64,
    /// Free blocks by order, over all zones.
    pub free_blocks: Vec<u64>,
    /// Unusable free space for a pageblock, in thousandths, over all zones.
    pub unusable: u32,
    /// Managed pages.
    pub managed: u64,
    /// Pages moved so far.
    pub moved: u64,
    /// Sections online.
    pub online: usize,
}

/// Moments of a run.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// The moments, ascending.
    pub taken: Vec<Sample>,
    every: u64,
}

impl Samples {
    /// The first moment.
    pub fn new(host: &Host) -> Samples {
        let mut samples = Samples {
            taken: Vec::new(),
            every: 1,
        };
        samples.take(0, host);
        samples
    }

    /// Whether a moment is due at that unit.
    pub fn is_due(&self, unit: u64) -> bool {
        unit.is_multiple_of(self.every)
    }

    /// Takes a moment.
    pub fn take(&mut self, unit: u64, host: &Host) {
        self.taken.push(Sample::of(unit, host));
        if self.taken.len() > MOST {
            let mut at = 0;
            self.taken.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.every *= 2;
        }
    }
}

impl Sample {
    fn of(unit: u64, host: &Host) -> Sample {
        let mut free_blocks = vec![0; host.geometry.nr_orders()];
        let (mut free, mut usable, mut managed) = (0, 0, 0);
        for zone in &host.zones {
            for (total, nr) in free_blocks.iter_mut().zip(zone.zone.buddyinfo()) {
                *total += nr;
            }
            free += zone.zone.free_pages();
            usable += zone.zone.free_pages_in(host.geometry.pageblock_order());
            managed += zone.zone.counts().managed;
        }
        let unusable = ((free - usable) * 1000).checked_div(free).unwrap_or(0);
        Sample {
            unit,
            clock_ns: host.clock_ns,
            free_blocks,
            unusable: u32::try_from(unusable).unwrap_or(1000),
            managed,
            moved: host.nr_moved,
            online: host
                .sections
                .values()
                .filter(|section| !section.zones.is_empty())
                .count(),
        }
    }
}
