//! A ticket names a parcel on its way, in 8 bytes that may travel over any channel.
//!
//! It is a name and no right: whoever has it may try, and the parcel's transit word decides. What
//! a stranger made up names nothing, or a parcel that its sender has offered in a zone that the
//! stranger may use anyway. A *notice* is a ticket in a lane's returns ring: by it a receiver tells
//! the daemon what it has done with the parcel. Among page words it is known by having no
//! migratetype, which every page word has.
//!
//! Shape, from the lowest bit:
//!
//! | bits | what |
//! |---|---|
//! | 0..32 | sequence of the outbox slot |
//! | 32..36 | outbox slot, lower half |
//! | 36..38 | 0 |
//! | 38..41 | zone index |
//! | 41..46 | outbox slot, upper half |
//! | 46..48 | in a notice, what was done; in a ticket 0 |
//! | 48..64 | client slot of the sender, never 0 |

use core::num::NonZeroU64;

use crate::raw::RawPage;

/// Outbox slots of a client: parcels that it may have on their way and not yet settled.
pub const OUTBOX_SLOTS: usize = 512;

/// Most tickets that the ring of a channel holds.
pub const RING_TICKETS_MAX: u32 = 1 << 16;

const LOW_SHIFT: u32 = 32;
const MIGRATETYPE_MASK: u64 = 3 << 36;
const ZONE_SHIFT: u32 = 38;
const HIGH_SHIFT: u32 = 41;
const KIND_SHIFT: u32 = 46;
const KIND_MASK: u64 = 3 << KIND_SHIFT;
const CLIENT_SHIFT: u32 = 48;

const KEPT: u64 = 0;
const FREED: u64 = 1;
const LET_GO: u64 = 2;
const RECALLED: u64 = 3;

/// The low half of a generation, in the place of a slot's; the high half in that of a client's.
const GENERATION_LOW: u32 = 4;

/// The name of a parcel on its way.
///
/// The same 8 bytes name the same parcel for as long as the daemon lives; a name is used again
/// only after the sequences of its slot, 2^32 of them, have gone round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ticket(NonZeroU64);

/// The parts of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketParts {
    /// Client slot of the sender.
    pub client: u16,
    /// Index of the zone that all pages of the parcel lie in, below 8.
    pub zone: u32,
    /// Outbox slot, below [`OUTBOX_SLOTS`].
    pub slot: u32,
    /// The slot's sequence.
    pub sequence: u32,
}

impl Ticket {
    /// The ticket with these bits, if they can be one; whether it names anything is another
    /// question.
    pub const fn from_bits(bits: u64) -> Option<Ticket> {
        if bits & (MIGRATETYPE_MASK | KIND_MASK) != 0 || bits >> CLIENT_SHIFT == 0 {
            return None;
        }
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Ticket(bits)),
            None => None,
        }
    }

    /// Its bits.
    pub const fn bits(self) -> u64 {
        self.0.get()
    }

    /// The 8 bytes to send, least significant first.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.bits().to_le_bytes()
    }

    /// The ticket in 8 bytes that came, if they can be one.
    pub const fn from_bytes(bytes: [u8; 8]) -> Option<Ticket> {
        Ticket::from_bits(u64::from_le_bytes(bytes))
    }

    /// Its parts.
    pub const fn parts(self) -> TicketParts {
        let bits = self.bits();
        TicketParts {
            client: low16(bits >> CLIENT_SHIFT),
            zone: low32(bits >> ZONE_SHIFT) & 7,
            slot: low32(bits >> LOW_SHIFT) & 15 | (low32(bits >> HIGH_SHIFT) & 31) << 4,
            sequence: low32(bits),
        }
    }
}

impl TicketParts {
    /// The ticket of these parts, if each fits its field.
    pub const fn pack(self) -> Option<Ticket> {
        if self.zone >= 8 || self.slot as usize >= OUTBOX_SLOTS {
            return None;
        }
        Ticket::from_bits(
            self.sequence as u64
                | (self.slot as u64 & 15) << LOW_SHIFT
                | (self.zone as u64) << ZONE_SHIFT
                | (self.slot as u64 >> 4) << HIGH_SHIFT
                | (self.client as u64) << CLIENT_SHIFT,
        )
    }
}

impl core::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let TicketParts {
            client,
            zone,
            slot,
            sequence,
        } = self.parts();
        write!(
            f,
            "Ticket(client {client}, zone {zone}, slot {slot}, {sequence})"
        )
    }
}

/// What a receiver says it has done with a parcel that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Its pages are the receiver's own from now on.
    Kept,
    /// All its pages are freed, unused or used up.
    Freed,
}

/// A ticket in a returns ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Of the parcel that was taken.
    pub ticket: Ticket,
    /// What has become of it.
    pub done: Done,
}

impl Notice {
    /// The word for the returns ring.
    pub const fn to_word(self) -> RawPage {
        let kind = match self.done {
            Done::Kept => KEPT,
            Done::Freed => FREED,
        };
        RawPage::from_bits(self.ticket.bits() | kind << KIND_SHIFT)
    }

    /// The notice in a word of a returns ring, if it is one and no page word.
    #[inline]
    pub const fn of_word(word: RawPage) -> Option<Notice> {
        if word.migratetype().is_some() {
            return None;
        }
        Notice::of_odd_word(word)
    }

    #[cold]
    const fn of_odd_word(word: RawPage) -> Option<Notice> {
        let done = match (word.bits() & KIND_MASK) >> KIND_SHIFT {
            KEPT => Done::Kept,
            FREED => Done::Freed,
            _ => return None,
        };
        match Ticket::from_bits(word.bits() & !KIND_MASK) {
            Some(ticket) => Some(Notice { ticket, done }),
            None => None,
        }
    }
}

/// What a client says of a page that it has sealed, to be read by several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It holds the page no longer itself. Others may, and what it has offered stays offered.
    LetGo,
    /// It has taken back a holding that it had offered, and perhaps nobody holds the page now.
    Recalled,
}

/// A word of a returns ring that speaks of a shared page. As a notice it has no migratetype; its
/// generation lies where a ticket has the client and part of the slot, its pfn where the sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareWord {
    /// The page's head.
    pub pfn: u32,
    /// Of 20 bits, as in the page word.
    pub generation: u32,
    /// What is said of it.
    pub says: Holds,
}

impl ShareWord {
    /// The word for the returns ring.
    pub const fn to_word(self) -> RawPage {
        let kind = match self.says {
            Holds::LetGo => LET_GO,
            Holds::Recalled => RECALLED,
        };
        let low = self.generation as u64 & ((1 << GENERATION_LOW) - 1);
        let high = self.generation as u64 >> GENERATION_LOW & 0xffff;
        RawPage::from_bits(
            self.pfn as u64 | low << LOW_SHIFT | kind << KIND_SHIFT | high << CLIENT_SHIFT,
        )
    }

    /// What a word of a returns ring says of a shared page, if it is such a word.
    pub const fn of_word(word: RawPage) -> Option<ShareWord> {
        const UNUSED: u64 = 0xff << ZONE_SHIFT | MIGRATETYPE_MASK;
        let bits = word.bits();
        let says = match (bits & KIND_MASK) >> KIND_SHIFT {
            LET_GO => Holds::LetGo,
            RECALLED => Holds::Recalled,
            _ => return None,
        };
        if bits & UNUSED != 0 {
            return None;
        }
        let low = low32(bits >> LOW_SHIFT) & ((1 << GENERATION_LOW) - 1);
        let high = low32(bits >> CLIENT_SHIFT);
        Some(ShareWord {
            pfn: low32(bits),
            generation: low | high << GENERATION_LOW,
            says,
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "cutting off is what it is for"
)]
const fn low32(bits: u64) -> u32 {
    bits as u32
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "cutting off is what it is for"
)]
const fn low16(bits: u64) -> u16 {
    bits as u16
}

const _: () = assert!(size_of::<Ticket>() == 8 && size_of::<Option<Ticket>>() == 8);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_come_back_as_they_were_packed(
            client in 1u16.., zone in 0u32..8, slot in 0u32..512, sequence: u32,
        ) {
            let parts = TicketParts { client, zone, slot, sequence };
            let ticket = parts.pack().unwrap();
            prop_assert_eq!(ticket.parts(), parts);
            prop_assert_eq!(Ticket::from_bytes(ticket.to_bytes()), Some(ticket));
            for done in [Done::Kept, Done::Freed] {
                let notice = Notice { ticket, done };
                prop_assert_eq!(Notice::of_word(notice.to_word()), Some(notice));
            }
        }

        #[test]
        fn a_word_of_a_shared_page_says_all_again(pfn: u32, generation in 0u32..1 << 20) {
            for says in [Holds::LetGo, Holds::Recalled] {
                let share = ShareWord { pfn, generation, says };
                prop_assert_eq!(ShareWord::of_word(share.to_word()), Some(share));
            }
        }

        #[test]
        fn any_bits_can_be_looked_at(bits: u64) {
            if let Some(ticket) = Ticket::from_bits(bits) {
                prop_assert_eq!(ticket.parts().pack(), Some(ticket));
                let _ = format!("{ticket:?}");
            }
            let word = RawPage::from_bits(bits);
            if let Some(share) = ShareWord::of_word(word) {
                prop_assert_eq!(share.to_word(), word);
                prop_assert!(word.parts().is_none() && Notice::of_word(word).is_none());
            }
            if let Some(notice) = Notice::of_word(word) {
                prop_assert_eq!(notice.to_word(), word);
                prop_assert!(word.parts().is_none());
            }
        }
    }

    #[test]
    fn parts_too_large_for_their_field_are_refused() {
        let fits = TicketParts {
            client: 1,
            zone: 0,
            slot: 0,
            sequence: 0,
        };
        assert!(fits.pack().is_some());
        assert_eq!(TicketParts { client: 0, ..fits }.pack(), None);
        assert_eq!(TicketParts { zone: 8, ..fits }.pack(), None);
        assert_eq!(TicketParts { slot: 512, ..fits }.pack(), None);
    }
}
