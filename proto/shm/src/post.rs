//! Pages on their way between clients, as this process sees it: offering, claiming, giving back.
//!
//! A parcel is signed for in the sender's [`outbox`](crate::outbox) and offered by its
//! [`transit`](crate::transit) word; whoever swaps that word first has it. No call to the daemon
//! lies on the way, and nobody waits. The daemon hears of it by a [`Notice`](crate::ticket::Notice) in a lane's returns
//! ring, or finds it by the transit word when a process has died before it could say.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use crate::attached::Attached;
use crate::control::ControlSegment;
use crate::lane_client::LaneClient;
use crate::outbox::{Outbox, OutboxSlot, PARCEL_MAX, ParcelHead};
use crate::page::{Page, words_of_pages};
use crate::peers::Peers;
use crate::raw::{NR_ZONES, RawPage};
use crate::slot_pool::{FreeSlot, SlotPool};
use crate::step::reached as step;
use crate::sync::Relaxed;
use crate::ticket::{Holds, ShareWord, Ticket, TicketParts};
use crate::transit::{Taker, Transit, TransitTable, TransitWord};
use crate::word_run::WordRun;
use core::sync::atomic::AtomicU64;

/// How a peer's outbox is come by: a question to the daemon, which takes a round trip.
pub type FetchOutbox = Box<dyn Fn(u16) -> Option<OwnedFd> + Send + Sync>;

/// What an attach has brought for handing pages over.
pub struct PostPlace {
    /// This client, as transit words name it.
    pub me: Taker,
    /// Its own outbox, mapped to be written.
    pub outbox: Outbox,
    /// The first sequence of its slots.
    pub first_sequence: u32,
    /// The transit words of its zones, by zone index.
    pub transits: [Option<TransitTable>; NR_ZONES],
    /// A section is `2^section_order` pages.
    pub section_order: u32,
    /// How outboxes of others are come by.
    pub fetch: FetchOutbox,
}

/// One client's side of all that is on its way.
pub(crate) struct Post {
    me: Taker,
    outbox: Outbox,
    slots: SlotPool,
    transits: [Option<TransitTable>; NR_ZONES],
    section_order: u32,
    peers: Peers,
    fetch: FetchOutbox,
    /// Pages claimed so far and not given back, modulo 2^64.
    nr_claimed: AtomicU64,
    /// What is to be said of shared pages, and there was no room to.
    unsaid: Mutex<Vec<RawPage>>,
}

/// Why pages were not handed over; they are the caller's still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// A parcel has one block at least.
    #[error("there are no pages to hand over")]
    Nothing,
    /// More than one parcel carries.
    #[error("{nr_blocks} blocks were to go into one parcel, which carries {PARCEL_MAX}")]
    TooMany {
        /// As many as there were.
        nr_blocks: usize,
    },
    /// A parcel lies in one zone.
    #[error("the pages of one parcel lie in one zone, these in several")]
    SeveralZones,
    /// The pages are another client's of this process.
    #[error("the pages belong to another client of this process")]
    OtherClient,
    /// All slots are taken by parcels that are not claimed, or not settled yet.
    #[error(
        "no outbox slot is free: parcels are not claimed, or the daemon has not settled them yet"
    )]
    OutboxFull,
    /// The client is gone, shut out, or was made by a daemon without outboxes.
    #[error("the client is detached")]
    Detached,
    /// A page that is shared can only be read, and there is no map left for that.
    #[error("the page cannot be mapped once more, to be read only")]
    NoMapToRead,
    /// This is a forked child.
    #[error("a forked child has no pages")]
    Forked,
}

/// Why a ticket brought no pages. Nothing has changed by the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// It names no parcel that is on its way: of another daemon, of a client that is gone, of a
    /// parcel long settled, or made up.
    #[error("the ticket names no parcel that is on its way")]
    NoSuchParcel,
    /// Somebody else was first, or this client itself, before.
    #[error("the parcel was claimed by client slot {}", .by.slot)]
    Claimed {
        /// Who has it.
        by: Taker,
    },
    /// The sender has taken it back, or the receiver has given it back.
    #[error("the parcel is its sender's again")]
    TakenBack,
    /// The sender died before anybody claimed it.
    #[error("the sender of the parcel is dead")]
    SenderDied,
    /// It is not this client's to take back.
    #[error("the parcel is another client's")]
    NotYours,
    /// It lies in a zone that this client may not use.
    #[error("the parcel lies in zone {zone}, which this client may not use")]
    WrongZone {
        /// The zone's index.
        zone: u32,
    },
    /// It is of a shared page, which is claimed by `claim_shared`; or it is not, and was to be.
    #[error("the ticket is of {}", if *.is_shared { "a shared page" } else { "a parcel, not of a shared page" })]
    OtherKind {
        /// What it is.
        is_shared: bool,
    },
    /// Who holds a shared page already has as many of it as it likes by cloning it.
    #[error("the ticket of the shared page is this client's own")]
    Own,
    /// What the sender has signed for cannot be used.
    #[error("the sender has signed for what is no parcel")]
    Malformed,
    /// A section of it could not be mapped here.
    #[error("a section of the parcel is not mapped here")]
    NotMapped,
    /// More than this client may own.
    #[error("the parcel has {nr_pages} pages, this client may claim {allowance} more")]
    Quota {
        /// Pages of the parcel.
        nr_pages: u64,
        /// What may still be claimed.
        allowance: u64,
    },
    /// The lane has no room to tell the daemon of it; it reads that room when it is awake.
    #[error("the lane's returns are full: the daemon has not read them yet")]
    ReturnsFull,
    /// The sender's outbox is not mapped here and the daemon did not answer.
    #[error("the sender's outbox could not be had from the daemon")]
    DaemonAway,
    /// The client is gone or shut out.
    #[error("the client is detached")]
    Detached,
    /// This is a forked child.
    #[error("a forked child has no pages")]
    Forked,
}

/// What a claim has brought.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// Whole and untold: the daemon knows nothing of it. None for one's own parcel.
    pub untold: bool,
}

impl Post {
    pub fn new(place: PostPlace) -> Post {
        let nr_clients = place
            .transits
            .iter()
            .flatten()
            .map(TransitTable::nr_clients);
        Post {
            me: place.me,
            outbox: place.outbox,
            slots: SlotPool::new(place.first_sequence),
            peers: Peers::new(nr_clients.max().unwrap_or(0)),
            transits: place.transits,
            section_order: place.section_order,
            fetch: place.fetch,
            nr_claimed: AtomicU64::new(0),
            unsaid: Mutex::default(),
        }
    }

    /// Offers pages, which are no longer the caller's to touch if it succeeds.
    pub fn hand_over(&self, attached: &Attached, pages: &[Page]) -> Result<Ticket, HandOverError> {
        let words = RawPage::of_bits(words_of_pages(pages));
        let sign = |slot: &OutboxSlot, free: FreeSlot| slot.sign(free.sequence, words);
        let ticket = self.offer(attached, words, &sign)?;
        attached.count_taken_away_by(pages.len());
        Ok(ticket)
    }

    /// Offers a holding of a page that this client holds, to be read.
    pub fn share(&self, attached: &Attached, page: RawPage) -> Result<Ticket, HandOverError> {
        self.offer(attached, &[page], &|slot, free| {
            attached.control().note_share(free.slot);
            slot.sign_shared(free.sequence, page);
        })
    }

    fn offer(
        &self,
        attached: &Attached,
        words: &[RawPage],
        sign: &dyn Fn(&OutboxSlot, FreeSlot),
    ) -> Result<Ticket, HandOverError> {
        let zone = self.check_outgoing(attached, words)?;
        let transits = self.transits[zone as usize].as_ref();
        let transits = transits.ok_or(HandOverError::Detached)?;
        let Some(free) = self.slots.take(attached.control()) else {
            attached.control().note_outbox_full();
            attached.ring();
            return Err(HandOverError::OutboxFull);
        };
        let parts = TicketParts {
            client: self.me.slot,
            zone,
            slot: free.slot,
            sequence: free.sequence,
        };
        let slot = self.outbox.slot(free.slot);
        let transit = transits.word(self.me.slot, free.slot);
        let (Some(slot), Some(transit), Some(ticket)) = (slot, transit, parts.pack()) else {
            return Err(HandOverError::Detached);
        };
        self.slots.goes_out(free);
        sign(slot, free);
        step("hand_over.signed");
        transit.offer(free.sequence);
        step("hand_over.offered");
        Ok(ticket)
    }

    /// The zone that all of the pages lie in, if they can go into one parcel.
    fn check_outgoing(&self, attached: &Attached, words: &[RawPage]) -> Result<u32, HandOverError> {
        let first = *words.first().ok_or(HandOverError::Nothing)?;
        let nr_blocks = words.len();
        if nr_blocks > PARCEL_MAX {
            return Err(HandOverError::TooMany { nr_blocks });
        }
        if attached.is_gone() || attached.control().closed() != 0 {
            return Err(HandOverError::Detached);
        }
        let first_bits = first.bits();
        let differing = words
            .iter()
            .fold(0, |bits, word| bits | (word.bits() ^ first_bits));
        let differing = RawPage::from_bits(differing);
        if first.client() != attached.index() || differing.client() != 0 {
            return Err(HandOverError::OtherClient);
        }
        if differing.zone() != 0 {
            return Err(HandOverError::SeveralZones);
        }
        Ok(first.zone())
    }

    /// Takes the pages of a parcel that nobody has, and appends them to `list`.
    pub fn claim(
        &self,
        attached: &Attached,
        lane: &LaneClient<'_>,
        ticket: Ticket,
        list: &mut Vec<Page>,
    ) -> Result<Claimed, ClaimError> {
        let parts = ticket.parts();
        if parts.client == self.me.slot {
            self.take_back(attached, ticket, list)?;
            return Ok(Claimed { untold: false });
        }
        let transit = self.incoming(attached, lane, parts)?;
        let nr_before = list.len();
        let copied = self.copy(parts, &mut |slot, head| {
            if head.is_shared {
                return Err(ClaimError::OtherKind { is_shared: true });
            }
            self.copy_words(attached, parts.zone, slot, head.nr_blocks, list)
        });
        let taken = copied.and_then(|nr_pages| {
            self.charge(attached.control(), nr_pages)?;
            step("claim.copied");
            transit.take(parts.sequence, self.me).map_err(|found| {
                self.nr_claimed.fetch_sub(nr_pages, Relaxed);
                refusal(found).err().unwrap_or(ClaimError::NoSuchParcel)
            })
        });
        if let Err(why) = taken {
            // They never were this process's.
            list.drain(nr_before..).for_each(core::mem::forget);
            return Err(why);
        }
        step("claim.taken");
        attached.count_brought_by(list.len() - nr_before);
        Ok(Claimed { untold: true })
    }

    /// Takes a holding of a shared page that nobody has; returns the page word, and where the
    /// bytes can be read.
    pub fn claim_shared(
        &self,
        attached: &Attached,
        lane: &LaneClient<'_>,
        ticket: Ticket,
    ) -> Result<(RawPage, usize, usize), ClaimError> {
        let parts = ticket.parts();
        if parts.client == self.me.slot {
            return Err(ClaimError::Own);
        }
        let transit = self.incoming(attached, lane, parts)?;
        let (word, (address, len)) = self.copy(parts, &mut |slot, head| {
            if !head.is_shared {
                return Err(ClaimError::OtherKind { is_shared: false });
            }
            let span = attached.zone_span(parts.zone);
            let span = span.ok_or(ClaimError::WrongZone { zone: parts.zone })?;
            let word = slot.first_word();
            let run = WordRun::of_one(word);
            self.check_incoming(&mut self.mapped(attached), span, parts.zone, run)?;
            let bytes = attached.to_read(word).ok_or(ClaimError::NotMapped)?;
            Ok((word.with_client(attached.index()), bytes))
        })?;
        step("claim.copied");
        let taken = transit.take(parts.sequence, self.me);
        taken.map_err(|found| refusal(found).err().unwrap_or(ClaimError::NoSuchParcel))?;
        step("claim.taken");
        Ok((word, address, len))
    }

    /// The transit word of a parcel that is to be claimed, if it looks as if it could be.
    fn incoming(
        &self,
        attached: &Attached,
        lane: &LaneClient<'_>,
        parts: TicketParts,
    ) -> Result<TransitWord<'_>, ClaimError> {
        if attached.control().closed() != 0 {
            return Err(ClaimError::Detached);
        }
        let transits = self.transits[parts.zone as usize].as_ref();
        let transits = transits.ok_or(ClaimError::WrongZone { zone: parts.zone })?;
        let transit = transits.word(parts.client, parts.slot);
        let transit = transit.ok_or(ClaimError::NoSuchParcel)?;
        refusal(transit.look(parts.sequence))?;
        if !lane.has_room_for_notice() {
            attached.ring();
            return Err(ClaimError::ReturnsFull);
        }
        Ok(transit)
    }

    /// What `read` makes of what the sender has signed for.
    fn copy<T>(
        &self,
        parts: TicketParts,
        read: &mut dyn FnMut(&OutboxSlot, ParcelHead) -> Result<T, ClaimError>,
    ) -> Result<T, ClaimError> {
        for may_fetch in [true, false] {
            let copied = self.peers.read(parts.client, |outbox| {
                let slot = outbox.slot(parts.slot)?;
                let head = slot.head()?;
                (head.sequence == parts.sequence).then(|| read(slot, head))
            });
            match copied.flatten() {
                Some(answer) => return answer,
                // Not mapped here, or that of a former client in the slot.
                None if may_fetch => {
                    let file = (self.fetch)(parts.client).ok_or(ClaimError::DaemonAway)?;
                    let outbox = Outbox::of_peer(std::os::fd::AsFd::as_fd(&file))
                        .map_err(|_| ClaimError::DaemonAway)?;
                    self.peers.enter(parts.client, outbox);
                }
                None => return Err(ClaimError::Malformed),
            }
        }
        Err(ClaimError::Malformed)
    }

    /// Copies what the sender has signed for, checked, as pages that are not this client's yet;
    /// returns how many pages of order 0 they are.
    fn copy_words(
        &self,
        attached: &Attached,
        zone: u32,
        slot: &OutboxSlot,
        nr_blocks: usize,
        list: &mut Vec<Page>,
    ) -> Result<u64, ClaimError> {
        let span = attached
            .zone_span(zone)
            .ok_or(ClaimError::WrongZone { zone })?;
        let nr_before = list.len();
        let mut mapped = self.mapped(attached);
        let mut nr_pages = 0;
        list.reserve(nr_blocks);
        let mut take = |run: WordRun| {
            nr_pages += self.check_incoming(&mut mapped, span, zone, run)?;
            let words = run
                .words()
                .filter_map(|word| word.handed_on(attached.index()).non_zero());
            list.extend(words.map(Page::of_word));
            Ok(())
        };
        let answer = slot.runs(nr_blocks).try_for_each(&mut take);
        if let Err(why) = answer {
            list.drain(nr_before..).for_each(core::mem::forget);
            return Err(why);
        }
        Ok(nr_pages)
    }

    fn mapped<'a>(&self, attached: &'a Attached) -> Mapped<'a> {
        Mapped {
            attached,
            section_order: self.section_order,
            last: u64::MAX,
        }
    }

    /// Whether a word that came is a block of the zone, and mapped; returns its pages.
    #[inline]
    fn check_incoming(
        &self,
        mapped: &mut Mapped<'_>,
        (start, end): (u64, u64),
        zone: u32,
        run: WordRun,
    ) -> Result<u64, ClaimError> {
        let (word, block) = (run.first, 1_u64 << run.first.order());
        let first = u64::from(word.pfn());
        let pages = block * u64::from(run.nr_blocks);
        let is_whole = word.migratetype().is_some()
            && word.zone() == zone
            && first & (block - 1) == 0
            && start <= first
            && first + pages <= end;
        if !is_whole {
            return Err(ClaimError::Malformed);
        }
        if !mapped.covers(first, pages) {
            // Once: what came a moment ago is mapped by this.
            mapped.attached.follow_sections();
            if !mapped.covers(first, pages) {
                return Err(ClaimError::NotMapped);
            }
        }
        Ok(pages)
    }

    /// Counts pages against the allowance, if they fit.
    fn charge(&self, control: &ControlSegment, nr_pages: u64) -> Result<(), ClaimError> {
        let (allowance, nr_settled) = control.claim_allowance();
        let nr_claimed = self.nr_claimed.fetch_add(nr_pages, Relaxed);
        if allowance == u64::MAX {
            return Ok(());
        }
        // Settled first and counted here later, by another thread: then nothing is under way.
        let under_way = i64::try_from(nr_claimed.wrapping_sub(nr_settled)).unwrap_or(0);
        let allowance = allowance.saturating_sub(u64::try_from(under_way).unwrap_or(0));
        if nr_pages > allowance {
            self.nr_claimed.fetch_sub(nr_pages, Relaxed);
            return Err(ClaimError::Quota {
                nr_pages,
                allowance,
            });
        }
        Ok(())
    }

    /// Takes a parcel of this client's own back, if nobody has it or it was given back; of a
    /// holding of a shared page, nothing comes but the word that the daemon is to be told.
    pub fn take_back(
        &self,
        attached: &Attached,
        ticket: Ticket,
        list: &mut Vec<Page>,
    ) -> Result<Option<RawPage>, ClaimError> {
        let parts = ticket.parts();
        let transits = self.transits[parts.zone as usize].as_ref();
        let transit = transits.and_then(|transits| transits.word(parts.client, parts.slot));
        let (Some(transit), Some(slot)) = (transit, self.outbox.slot(parts.slot)) else {
            return Err(ClaimError::NoSuchParcel);
        };
        if parts.client != self.me.slot {
            return Err(ClaimError::NotYours);
        }
        if !self.slots.is_out(parts.slot, parts.sequence) {
            return Err(ClaimError::NoSuchParcel);
        }
        match transit.look(parts.sequence) {
            Transit::Offered => transit.withdraw(parts.sequence),
            Transit::GivenBack(by) => transit.regain(parts.sequence, by),
            found => Err(found),
        }
        .map_err(|found| refusal(found).err().unwrap_or(ClaimError::NoSuchParcel))?;
        step("take_back.withdrawn");
        // This client's own words, which nobody else can write.
        let head = slot.head();
        let shared = head
            .filter(|head| head.is_shared)
            .map(|_| slot.first_word());
        let nr_blocks = head.map_or(0, |head| head.nr_blocks * usize::from(!head.is_shared));
        let words = slot.words(nr_blocks).filter_map(RawPage::non_zero);
        list.extend(words.map(Page::of_word));
        slot.clear();
        step("take_back.cleared");
        self.slots.comes_back(parts.slot, parts.sequence);
        attached.count_brought_by(nr_blocks);
        Ok(shared.map(|page| {
            let (pfn, generation) = (page.pfn(), page.generation());
            let says = Holds::Recalled;
            ShareWord {
                pfn,
                generation,
                says,
            }
            .to_word()
        }))
    }

    /// Gives a parcel back to its sender, whole and untold; false if the daemon has made it this
    /// client's own meanwhile, and nothing has changed then.
    pub fn give_back(&self, attached: &Attached, ticket: Ticket, pages: &[Page]) -> bool {
        let parts = ticket.parts();
        let transits = self.transits[parts.zone as usize].as_ref();
        let transit = transits.and_then(|transits| transits.word(parts.client, parts.slot));
        let is_given = transit.is_some_and(|word| word.give_back(parts.sequence, self.me).is_ok());
        if is_given {
            step("give_back.given");
            let nr_pages = pages.iter().map(|page| 1 << page.order()).sum();
            self.nr_claimed.fetch_sub(nr_pages, Relaxed);
            attached.count_taken_away_by(pages.len());
        }
        is_given
    }

    /// Says something of shared pages, after what could not be said before; `word` is kept for the
    /// next time if there is no room, and for nobody if this process ends: its holdings end then.
    pub fn say(&self, attached: &Attached, put: &dyn Fn(RawPage) -> bool, word: RawPage) {
        let mut unsaid = self.unsaid.lock().unwrap_or_else(PoisonError::into_inner);
        unsaid.push(word);
        let nr_said = unsaid.iter().take_while(|&&word| put(word)).count();
        unsaid.drain(..nr_said);
        if !unsaid.is_empty() {
            attached.ring();
        }
    }

    /// Tells the daemon what has become of a parcel; false if there was no room to. Then it finds
    /// the parcel by its transit word, when it meets one of the pages.
    pub fn tell(lane: &LaneClient<'_>, notice: RawPage) -> bool {
        let is_told = lane.put_notice(notice);
        step("notice.told");
        is_told
    }
}

impl core::fmt::Debug for Post {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Post({:?})", self.me)
    }
}

/// Which sections were found mapped; the last one is not asked for again.
struct Mapped<'a> {
    attached: &'a Attached,
    section_order: u32,
    last: u64,
}

impl Mapped<'_> {
    fn covers(&mut self, first: u64, pages: u64) -> bool {
        let sections = (first >> self.section_order)..=((first + pages - 1) >> self.section_order);
        sections.into_iter().all(|section| {
            section == self.last || {
                let id = u32::try_from(section).unwrap_or(u32::MAX);
                let control = self.attached.control();
                let is_mapped = control.is_mapped(id, control.announced(id));
                if is_mapped {
                    self.last = section;
                }
                is_mapped
            }
        })
    }
}

/// Why a parcel in this state cannot be claimed, or taken back.
fn refusal(found: Transit) -> Result<(), ClaimError> {
    match found {
        Transit::Offered => Ok(()),
        Transit::Taken(by) | Transit::Settled(by) => Err(ClaimError::Claimed { by }),
        Transit::Withdrawn | Transit::GivenBack(_) => Err(ClaimError::TakenBack),
        Transit::Closed => Err(ClaimError::SenderDied),
        Transit::OtherSequence => Err(ClaimError::NoSuchParcel),
    }
}
