//! What a worker says to the director: lines of JSON on its standard output.

use std::io::Write as _;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// It is attached and works.
    Ready,
    /// It lives; what it has done since it last said so.
    Done(Done),
    /// Something that must not be.
    Wrong(Kind, String),
    /// It stands still, and has these blocks: first page and number of pages.
    Has(Vec<(u32, u32)>),
    /// Nothing is with it but what it has handed over.
    Rested,
    /// Nothing at all is with it.
    Landed,
}

/// What may be wrong with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Nobody has it, and it is not free either.
    Lost,
    /// Two have it.
    Doubled,
    /// Its bytes are not what was written.
    Corrupt,
    /// Something else that must not be.
    Strange,
}

/// Numbers since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Pages taken.
    pub taken: u64,
    /// Parcels claimed.
    pub parcels: u64,
    /// Pages in them.
    pub claimed: u64,
    /// Of these, by a channel.
    pub by_channel: u64,
    /// Pages that the daemon had moved when they were looked at again.
    pub moved: u64,
    /// Pages whose bytes were looked at.
    pub checked: u64,
    /// Calls that no daemon answered in time.
    pub away: u64,
}

impl Done {
    /// Adds what somebody else has done.
    pub fn add(&mut self, other: &Done) {
        self.taken += other.taken;
        self.parcels += other.parcels;
        self.claimed += other.claimed;
        self.by_channel += other.by_channel;
        self.moved += other.moved;
        self.checked += other.checked;
        self.away += other.away;
    }
}

/// Says it, whole. A director that is gone does not hear it, and this process ends by that.
pub fn say(what: &Said) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()?;
    Ok(())
}
