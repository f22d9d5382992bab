//! What is said on the attach socket, and what each part may be.
//!
//! A client asks ([`AttachRequest`]); the daemon answers with a place ([`AttachReply`], and beside
//! it the descriptors of control segment, bell, zones, outbox and the zones' transit words, in that order) or says why not
//! ([`AttachRefused`]); the client maps, registers for the barrier and says so ([`AttachReady`]).
//! Only then are its lanes in use. Later it may ask on the same socket for the outbox of a peer
//! ([`PeerRequest`]), mapped to be read, and for channels ([`ChannelRequest`]). Every value from the other side passes [`AttachMessage::check`]
//! before anybody sees it, and ours pass it before they go out. The bytes are the affair of
//! [`attach_wire`](crate::attach_wire).

use rkyv::{Archive, Deserialize, Serialize};

use crate::token::TOKEN_BYTES;

pub use crate::control::LANES_MAX as MAX_LANES;
pub use crate::layout::LAYOUT_VERSION;
pub use crate::ticket::RING_TICKETS_MAX;

/// The oldest layout that this build still speaks.
pub const OLDEST_LAYOUT_VERSION: u32 = 2;

/// Zones that one client may be given: the page word has three bits for them.
pub const MAX_ZONES: u8 = 8;

/// Clients that one process may hold at a time: the page word has three bits for them.
pub const MAX_CLIENTS_PER_PROCESS: u8 = 8;

/// Bytes of the longest name, of a client or a zone.
pub const MAX_NAME_BYTES: usize = 64;

/// Bytes of the longest explanation of a refusal.
pub const MAX_REFUSAL_BYTES: usize = 1024;

/// Bytes of the largest control segment a client maps; far above what any geometry needs.
pub const MAX_CONTROL_BYTES: u64 = 1 << 36;

/// Pages that all zones together may span: a pfn has 32 bits.
pub const MAX_PFNS: u64 = 1 << 32;

/// A client asks for a place.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AttachRequest {
    /// The newest layout the client speaks.
    pub layout_version: u32,
    /// Lanes it wants, 1 to [`MAX_LANES`].
    pub nr_lanes: u32,
    /// Which of its process's clients it is; the daemon writes this into every page word.
    pub client_index: u8,
    /// What to call it in reports: 1 to [`MAX_NAME_BYTES`] bytes, printable.
    pub name: String,
}

/// The daemon gives a place.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AttachReply {
    /// The layout both sides use from now on.
    pub layout_version: u32,
    /// The client's slot in the daemon's tables.
    pub slot: u16,
    /// Tells this client from the ones that had the slot before.
    pub incarnation: u16,
    /// The session's secret; see [`Token`](crate::token::Token).
    pub token: [u8; TOKEN_BYTES],
    /// Lanes granted, at most as many as asked for.
    pub nr_lanes: u32,
    /// Sizes that hold for all zones.
    pub geometry: AttachGeometry,
    /// Zones given, in the order of their descriptors.
    pub zones: Vec<AttachZone>,
    /// Length of the control segment, in bytes.
    pub control_bytes: u64,
    /// The first sequence of the client's outbox slots: they go on where those of the slot's
    /// former clients ended, and those of a daemon begin at a number of its own.
    pub first_sequence: u32,
}

/// Sizes that hold for all zones, each as a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AttachGeometry {
    /// A page is `2^page_shift` bytes.
    pub page_shift: u8,
    /// A pageblock is `2^pageblock_order` pages.
    pub pageblock_order: u8,
    /// The largest block is `2^max_order` pages.
    pub max_order: u8,
    /// A section is `2^section_order` pages.
    pub section_order: u8,
}

/// One zone, as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AttachZone {
    /// The zone's index, as in the page word.
    pub zone: u8,
    /// Its name.
    pub name: String,
    /// What may be allocated in it.
    pub kind: AttachZoneKind,
    /// Its first page.
    pub start_pfn: u64,
    /// Pages from the first to the end of its reserve.
    pub span_pages: u64,
    /// Whether the client may write to its pages.
    pub writable: bool,
}

/// What may be allocated in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum AttachZoneKind {
    /// Everything.
    Normal,
    /// What can be moved away.
    Movable,
}

/// The daemon gives no place.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AttachRefused {
    /// Why, for programs.
    pub code: RefusalCode,
    /// Why, for people: at most [`MAX_REFUSAL_BYTES`] bytes.
    pub message: String,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum RefusalCode {
    /// The two sides share no layout version.
    LayoutVersion,
    /// The request made no sense.
    BadRequest,
    /// No zone lets this user in.
    NotAllowed,
    /// No slot, descriptor or memory is left for one more client.
    UsedUp,
    /// The client's process cannot be watched, so its death could not be told.
    Unwatchable,
    /// The daemon is stopping, or recovering and lends nothing.
    NotServing,
}

/// The client has mapped everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AttachReady {
    /// Whether it receives barriers; if not, its lane operations fence by themselves.
    pub registered: bool,
}

/// A client asks for the outbox of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct PeerRequest {
    /// The other's slot.
    pub slot: u16,
}

/// The daemon's answer, and beside it the descriptor if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct PeerReply {
    /// As asked.
    pub slot: u16,
    /// Whether a client in that slot shares a zone with the one that asks.
    pub is_there: bool,
}

/// A client asks for a channel: for a new one, or for the other end of one that it was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ChannelRequest {
    /// Comes back in the answer.
    pub number: u32,
    /// What it asks for.
    pub what: ChannelWanted,
}

/// Which channel is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ChannelWanted {
    /// A new one.
    New(NewChannel),
    /// The end that nobody has yet, of one that was made.
    Join(JoinChannel),
}

/// A channel to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct NewChannel {
    /// Tickets that it holds, a power of two.
    pub capacity: u32,
    /// Whether the client is to receive from it, else it sends.
    pub receives: bool,
}

/// A channel to be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct JoinChannel {
    /// Its secret name.
    pub id: [u8; TOKEN_BYTES],
    /// Whether the client is to receive from it, else it sends.
    pub receives: bool,
}

/// The daemon's answer, and beside it the descriptor if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct ChannelReply {
    /// As asked.
    pub number: u32,
    /// The channel's secret name: who knows it can join.
    pub id: [u8; TOKEN_BYTES],
    /// Whether there is one, and why not.
    pub outcome: ChannelOutcome,
}

/// Whether there is a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ChannelOutcome {
    /// Its descriptor comes with the answer.
    Made,
    /// No channel has that name, or it has gone with who made it.
    NoSuchChannel,
    /// That end is somebody's already.
    Taken,
    /// The client has as many channels as it may, or there is no memory or descriptor left.
    UsedUp,
}

/// Anything that is said on the attach socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachMessage {
    /// Client to daemon, first.
    Request(AttachRequest),
    /// Daemon to client: a place.
    Reply(AttachReply),
    /// Daemon to client: no place.
    Refused(AttachRefused),
    /// Client to daemon: from now on its lanes are in use.
    Ready(AttachReady),
    /// Client to daemon, later.
    PeerRequest(PeerRequest),
    /// Daemon to client, when asked.
    PeerReply(PeerReply),
    /// Client to daemon, later.
    ChannelRequest(ChannelRequest),
    /// Daemon to client, when asked.
    ChannelReply(ChannelReply),
}

/// A value that has the right shape and no possible meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "each variant's message says what its numbers are"
)]
pub enum Meaningless {
    #[error("a name of {nr_bytes} bytes, where 1 to {MAX_NAME_BYTES} are allowed")]
    NameLength { nr_bytes: usize },
    #[error("a name with a control character")]
    NameCharacter,
    #[error("an explanation of {nr_bytes} bytes, where {MAX_REFUSAL_BYTES} are allowed")]
    RefusalLength { nr_bytes: usize },
    #[error("{nr_lanes} lanes, where 1 to {MAX_LANES} are allowed")]
    NrLanes { nr_lanes: u32 },
    #[error("client {index} of a process, where {MAX_CLIENTS_PER_PROCESS} are allowed")]
    ClientIndex { index: u8 },
    #[error("layout version {version}, where they count from 1")]
    LayoutVersion { version: u32 },
    #[error("{nr_zones} zones, where 1 to {MAX_ZONES} are allowed")]
    NrZones { nr_zones: usize },
    #[error("zone index {zone}, where they count to {MAX_ZONES}")]
    ZoneIndex { zone: u8 },
    #[error("zone {zone} twice")]
    ZoneTwice { zone: u8 },
    #[error("zone {zone} from pfn {start_pfn} over {span_pages} pages, which no section divides")]
    ZoneUnaligned {
        zone: u8,
        start_pfn: u64,
        span_pages: u64,
    },
    #[error("zone {zone} from pfn {start_pfn} over {span_pages} pages, beyond the last pfn")]
    ZoneRange {
        zone: u8,
        start_pfn: u64,
        span_pages: u64,
    },
    #[error("zones {first} and {second} overlap")]
    ZonesOverlap { first: u8, second: u8 },
    #[error(
        "pages of 2^{} bytes, pageblocks of 2^{}, blocks of up to 2^{} and sections of 2^{} pages",
        .0.page_shift, .0.pageblock_order, .0.max_order, .0.section_order
    )]
    Geometry(AttachGeometry),
    #[error(
        "a channel of {capacity} tickets, where a power of two up to {RING_TICKETS_MAX} is allowed"
    )]
    Capacity { capacity: u32 },
    #[error("a control segment of {bytes} bytes")]
    ControlBytes { bytes: u64 },
}

impl AttachMessage {
    /// Whether every value can mean something.
    ///
    /// # Errors
    /// The first value that cannot.
    pub fn check(&self) -> Result<(), Meaningless> {
        match self {
            AttachMessage::Request(request) => request.check(),
            AttachMessage::Reply(reply) => reply.check(),
            AttachMessage::Refused(refused) => refused.check(),
            AttachMessage::Ready(_)
            | AttachMessage::PeerRequest(_)
            | AttachMessage::PeerReply(_)
            | AttachMessage::ChannelReply(_) => Ok(()),
            AttachMessage::ChannelRequest(request) => request.check(),
        }
    }
}

impl AttachRequest {
    fn check(&self) -> Result<(), Meaningless> {
        check_version(self.layout_version)?;
        check_lanes(self.nr_lanes)?;
        if self.client_index >= MAX_CLIENTS_PER_PROCESS {
            return Err(Meaningless::ClientIndex {
                index: self.client_index,
            });
        }
        check_name(&self.name)
    }
}

impl ChannelRequest {
    fn check(&self) -> Result<(), Meaningless> {
        match self.what {
            ChannelWanted::New(NewChannel { capacity, .. })
                if !capacity.is_power_of_two() || capacity > RING_TICKETS_MAX =>
            {
                Err(Meaningless::Capacity { capacity })
            }
            ChannelWanted::New(_) | ChannelWanted::Join(_) => Ok(()),
        }
    }
}

impl AttachReply {
    /// Descriptors that come with it: control segment, bell, a file for each zone, outbox, and the
    /// transit words of each zone.
    pub fn nr_fds(&self) -> usize {
        3 + 2 * self.zones.len()
    }

    fn check(&self) -> Result<(), Meaningless> {
        check_version(self.layout_version)?;
        check_lanes(self.nr_lanes)?;
        self.geometry.check()?;
        // Whole pages of the smallest size any machine here has.
        let is_whole_pages = self.control_bytes.is_multiple_of(4096);
        if !(1..=MAX_CONTROL_BYTES).contains(&self.control_bytes) || !is_whole_pages {
            return Err(Meaningless::ControlBytes {
                bytes: self.control_bytes,
            });
        }
        let nr_zones = self.zones.len();
        if !(1..=usize::from(MAX_ZONES)).contains(&nr_zones) {
            return Err(Meaningless::NrZones { nr_zones });
        }
        for (index, zone) in self.zones.iter().enumerate() {
            zone.check(self.geometry)?;
            for other in &self.zones[..index] {
                zone.check_beside(other)?;
            }
        }
        Ok(())
    }
}

impl AttachGeometry {
    fn check(self) -> Result<(), Meaningless> {
        let is_page = matches!(self.page_shift, 12 | 14 | 16);
        let is_ordered = (5..=13).contains(&self.pageblock_order)
            && self.pageblock_order <= self.max_order
            && self.max_order <= self.section_order;
        // A section is at most 2 GiB.
        let is_section = self.section_order.saturating_add(self.page_shift) <= 31;
        if is_page && is_ordered && is_section {
            Ok(())
        } else {
            Err(Meaningless::Geometry(self))
        }
    }
}

impl AttachZone {
    fn check(&self, geometry: AttachGeometry) -> Result<(), Meaningless> {
        let AttachZone {
            zone,
            start_pfn,
            span_pages,
            ..
        } = *self;
        check_name(&self.name)?;
        if zone >= MAX_ZONES {
            return Err(Meaningless::ZoneIndex { zone });
        }
        let end = start_pfn.checked_add(span_pages);
        if span_pages == 0 || end.is_none_or(|end| end > MAX_PFNS) {
            return Err(Meaningless::ZoneRange {
                zone,
                start_pfn,
                span_pages,
            });
        }
        let section_pages = 1_u64 << geometry.section_order;
        if !start_pfn.is_multiple_of(section_pages) || !span_pages.is_multiple_of(section_pages) {
            return Err(Meaningless::ZoneUnaligned {
                zone,
                start_pfn,
                span_pages,
            });
        }
        Ok(())
    }

    fn check_beside(&self, other: &AttachZone) -> Result<(), Meaningless> {
        if self.zone == other.zone {
            return Err(Meaningless::ZoneTwice { zone: self.zone });
        }
        let self_end = self.start_pfn.saturating_add(self.span_pages);
        let other_end = other.start_pfn.saturating_add(other.span_pages);
        if self.start_pfn < other_end && other.start_pfn < self_end {
            return Err(Meaningless::ZonesOverlap {
                first: other.zone,
                second: self.zone,
            });
        }
        Ok(())
    }
}

impl AttachRefused {
    fn check(&self) -> Result<(), Meaningless> {
        let nr_bytes = self.message.len();
        if nr_bytes > MAX_REFUSAL_BYTES {
            return Err(Meaningless::RefusalLength { nr_bytes });
        }
        Ok(())
    }
}

fn check_version(version: u32) -> Result<(), Meaningless> {
    if version == 0 {
        return Err(Meaningless::LayoutVersion { version });
    }
    Ok(())
}

fn check_lanes(nr_lanes: u32) -> Result<(), Meaningless> {
    if !(1..=MAX_LANES).contains(&nr_lanes) {
        return Err(Meaningless::NrLanes { nr_lanes });
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), Meaningless> {
    let nr_bytes = name.len();
    if !(1..=MAX_NAME_BYTES).contains(&nr_bytes) {
        return Err(Meaningless::NameLength { nr_bytes });
    }
    // Names go into logs and tables, where a line break would be a forged line.
    if name.chars().any(char::is_control) {
        return Err(Meaningless::NameCharacter);
    }
    Ok(())
}

/// The layout two sides use: the newest that both speak.
///
/// # Errors
/// [`NoCommonLayout`], with both ranges.
pub fn agree_on_layout(theirs: u32) -> Result<u32, NoCommonLayout> {
    let agreed = theirs.min(LAYOUT_VERSION);
    if agreed < OLDEST_LAYOUT_VERSION {
        return Err(NoCommonLayout { theirs });
    }
    Ok(agreed)
}

/// The client's layout is too old for this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the client speaks layout version {theirs}, the daemon versions {OLDEST_LAYOUT_VERSION} to {LAYOUT_VERSION}"
)]
pub struct NoCommonLayout {
    /// The newest layout the client speaks.
    pub theirs: u32,
}
