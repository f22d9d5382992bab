//! What became of it all.

use std::{fmt, time::Duration};

use crate::said::{Done, Kind};

/// Findings that are printed; of more there is the number.
const PRINTED: usize = 20;

/// The sums.
#[derive(Debug, Default)]
pub struct Tally {
    pub kills: u64,
    pub stops: u64,
    pub restarts: u64,
    pub slowest_restart: Duration,
    pub added: u64,
    pub removed: u64,
    pub moved_for_sections: u64,
    pub landings: u64,
    pub done: Done,
    lost: u64,
    doubled: u64,
    corrupt: u64,
    strange: u64,
}

impl Tally {
    /// Something that must not be, of so many pages.
    pub fn wrong(&mut self, kind: Kind, nr_pages: u64, text: &str) {
        let nr_before = self.lost + self.doubled + self.corrupt + self.strange;
        if nr_before < PRINTED as u64 {
            println!("soak: {kind:?}: {text}");
        }
        match kind {
            Kind::Lost => self.lost += nr_pages,
            Kind::Doubled => self.doubled += nr_pages,
            Kind::Corrupt => self.corrupt += nr_pages,
            Kind::Strange => self.strange += nr_pages,
        }
    }

    /// Whether all is as it should be.
    pub fn is_well(&self) -> bool {
        self.lost + self.doubled + self.corrupt + self.strange == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = &self.done;
        writeln!(
            f,
            "soak: {} clients killed, {} stopped a while; {} daemons killed, the next one ready within {} ms; {} landings",
            self.kills,
            self.stops,
            self.restarts,
            self.slowest_restart.as_millis(),
            self.landings,
        )?;
        writeln!(
            f,
            "soak: {} sections added, {} removed; {} pages moved out of them, {} found elsewhere by their clients",
            self.added, self.removed, self.moved_for_sections, done.moved,
        )?;
        writeln!(
            f,
            "soak: {} pages taken, {} handed over in {} parcels, {} of those by channels; {} looked at; {} calls were not answered in time",
            done.taken, done.claimed, done.parcels, done.by_channel, done.checked, done.away,
        )?;
        if self.strange > 0 {
            writeln!(f, "soak: {} other findings", self.strange)?;
        }
        write!(
            f,
            "soak: lost {} doubled {} corrupt {}",
            self.lost, self.doubled, self.corrupt
        )
    }
}
