//! Who may hold pages: clients with a segment, and connections without one.

use hugepool_mm::ZoneId;
use thiserror::Error;

/// What the attach socket learnt of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachSpec {
    /// Its user, by peer credentials.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process.
    pub pid: u32,
    /// The name it gave itself.
    pub name: String,
    /// Lanes of its segment.
    pub nr_lanes: u32,
    /// Its index among the clients of its process, 0..8: it goes into page words.
    pub client_index: u32,
    /// The zones it may use, in the order of its zonelist.
    pub zones: Vec<ZoneId>,
}

/// What a connection without a segment is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectSpec {
    /// Its user, by peer credentials.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process.
    pub pid: u32,
    /// The zones it may use, in the order of its zonelist.
    pub zones: Vec<ZoneId>,
}

/// Why a client was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AttachError {
    /// Used up.
    #[error("{max_clients} clients are attached, no more are taken")]
    TooManyClients {
        /// The most.
        max_clients: u16,
    },
    /// A bad value.
    #[error("the client's index in its process is below 8, not {client_index}")]
    ClientIndex {
        /// As asked.
        client_index: u32,
    },
    /// A bad value: the segment was made for other numbers.
    #[error("the segment has {there} {what}, {asked} are needed")]
    Segment {
        /// "lanes" or "sections".
        what: &'static str,
        /// In the segment.
        there: u32,
        /// As asked.
        asked: u32,
    },
    /// A bad value.
    #[error("there is no zone {zone}")]
    NoSuchZone {
        /// As asked.
        zone: ZoneId,
    },
}
