//! Sections and zones by name: ids, states, kinds, and what a section row holds.
//!
//! The table keeps the legal transitions; what they do to pages is
//! [`hotplug`](crate::hotplug) and [`online`](crate::online).

use core::fmt;

use crate::{Pfn, PfnRange};

/// Number of a section, over all zones: its pages start at `id << section_order`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionId(u32);

impl SectionId {
    /// The section with this number.
    #[must_use]
    pub const fn new(id: u32) -> SectionId {
        SectionId(id)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for SectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Number of a zone in this daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneId(u8);

impl ZoneId {
    /// The zone with this number.
    #[must_use]
    pub const fn new(id: u8) -> ZoneId {
        ZoneId(id)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for ZoneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a zone is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZoneKind {
    /// Serves every migratetype; a section may stay for good.
    Normal,
    /// Serves movable requests only, so that its sections can always be emptied.
    Movable,
}

impl fmt::Display for ZoneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ZoneKind::Normal => "Normal",
            ZoneKind::Movable => "Movable",
        })
    }
}

/// Where a section is on its way up or down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SectionState {
    /// No memory, no metadata.
    #[default]
    Absent,
    /// Its backing is being made; undone by `abort_add`.
    Adding,
    /// Present, and none of its pages is managed.
    Offline,
    /// Its pages are in use or free.
    Online,
    /// All its pageblocks are isolated; ends `Offline`, or `Online` as before.
    GoingOffline,
    /// Its backing is being given up.
    Removing,
}

impl SectionState {
    /// Whether its pages count as present.
    #[must_use]
    pub const fn is_present(self) -> bool {
        !matches!(self, SectionState::Absent | SectionState::Adding)
    }

    /// Whether its pages are managed.
    #[must_use]
    pub const fn is_managed(self) -> bool {
        matches!(self, SectionState::Online | SectionState::GoingOffline)
    }

    /// The name shown to people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SectionState::Absent => "absent",
            SectionState::Adding => "adding",
            SectionState::Offline => "offline",
            SectionState::Online => "online",
            SectionState::GoingOffline => "going-offline",
            SectionState::Removing => "removing",
        }
    }
}

impl fmt::Display for SectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a section did not change its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionError {
    /// The section is not in this zone's reserve.
    NotInZone {
        /// The section asked for.
        section: SectionId,
    },
    /// The verb does not start from this state.
    WrongState {
        /// The section asked for.
        section: SectionId,
        /// The state it is in.
        state: SectionState,
    },
    /// The extents given do not lie, ascending and apart, in the section.
    BadExtents {
        /// The section asked for.
        section: SectionId,
    },
    /// Pages are still held, so the section stays `GoingOffline`.
    Busy {
        /// The section asked for.
        section: SectionId,
        /// The first page that is neither free nor in a hole.
        first: Pfn,
        /// Number of such pages.
        nr_held: u64,
    },
}

impl fmt::Display for SectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SectionError::NotInZone { section } => {
                write!(f, "section {section} is not in this zone's reserve")
            }
            SectionError::WrongState { section, state } => {
                write!(f, "section {section} is {state}")
            }
            SectionError::BadExtents { section } => {
                write!(
                    f,
                    "the extents do not lie ascending and apart in section {section}"
                )
            }
            SectionError::Busy {
                section,
                first,
                nr_held,
            } => write!(
                f,
                "section {section} still has {nr_held} pages held, the first at pfn {first}"
            ),
        }
    }
}

impl core::error::Error for SectionError {}

/// One line of the section list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionInfo {
    /// Its number.
    pub id: SectionId,
    /// First page.
    pub start: Pfn,
    /// Pages of a section, holes included.
    pub nr_pages: u64,
    /// Where it is on its way.
    pub state: SectionState,
    /// Pages that exist.
    pub present: u64,
    /// Pages given to the buddy and not reserved.
    pub managed: u64,
    /// Free pages that may be handed out.
    pub free: u64,
    /// Free pages in isolated pageblocks.
    pub isolated: u64,
    /// Managed pages that are not free (in lists of the daemon or lent).
    pub held: u64,
}

/// The row of a section.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    pub state: SectionState,
    /// Pages that exist; 0 while not present.
    pub present: u32,
    /// Pages given to the buddy and not reserved; 0 unless managed.
    pub managed: u32,
    /// Pages counted out of `managed` while somebody holds them.
    pub reserved: u32,
    /// The pages that exist, ascending and apart; `None` if all do.
    pub extents: Option<Box<[PfnRange]>>,
}

impl Section {
    /// Whether the section has all its pages.
    pub fn is_whole(&self) -> bool {
        self.extents.is_none()
    }
}
