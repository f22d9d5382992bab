//! What taking from a lane has brought, and why not more.

/// Why a lane gave fewer blocks than were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Miss {
    /// It has no more.
    #[error("the lane has no more blocks of this class")]
    Empty,
    /// The daemon is taking it back, for the moment.
    #[error("the lane is being recalled")]
    Closed,
    /// An operation of the same lane is in flight: this came from a signal handler, or the lane
    /// is shared and another thread uses it.
    #[error("the lane is in the middle of another operation")]
    Reentered,
    /// The client is gone, or this is a forked child.
    #[error("the lane belongs to no attached client of this process")]
    Detached,
}

/// What a take has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Taken {
    /// Slots filled.
    pub count: usize,
    /// Why not all of them.
    pub miss: Option<Miss>,
}

#[cfg(not(loom))]
impl Taken {
    /// What a take of nothing brings.
    pub(crate) const NOTHING_ASKED: Taken = Taken {
        count: 0,
        miss: None,
    };

    pub(crate) const fn nothing(miss: Miss) -> Taken {
        Taken {
            count: 0,
            miss: Some(miss),
        }
    }
}
