//! Names of clients and operations, and the time as the engine knows it.
//!
//! The engine has no clock: every entry that needs the time is told it, as time
//! since boot. Neighbours: [`command`](crate::command) and [`report`](crate::report)
//! are written in these words.

use core::fmt;
use core::time::Duration;

/// Time since boot, told by the caller; it never goes back.
pub type Now = Duration;

/// Milliseconds since boot, as reports show them.
pub(crate) fn millis(now: Now) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A client: its slot in the client table, and which life of that slot.
///
/// Slot 0 is the daemon itself and never a client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    /// Place in the client table, from 1.
    pub slot: u16,
    /// Number of the client in that place, from 1, counted modulo 2^16.
    pub incarnation: u16,
}

impl ClientId {
    /// The daemon: custodian of places that blocks are being moved to, until they have arrived.
    pub const DAEMON: ClientId = ClientId {
        slot: 0,
        incarnation: 0,
    };
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.incarnation)
    }
}

/// A long task that was asked for; 0 is none (a dry run).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
