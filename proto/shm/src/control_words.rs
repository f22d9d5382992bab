//! What the daemon and a client tell one another through single words of the control segment:
//! sections that come and go, sleeping and waking, detachment, allowance.

use crate::control::ControlSegment;
use crate::doorbell;
use crate::sync::{Acquire, AtomicU32, Relaxed, Release, SeqCst, fence};

/// What the daemon says and asks.
impl ControlSegment {
    /// Announces a section's incarnation, 0 for one that has gone; clients hear of it by
    /// [`ControlSegment::raise_section_epoch`]. False if there is no such section.
    pub fn announce(&self, section: u32, incarnation: u32) -> bool {
        let Some(word) = self.announced_words().get(section as usize) else {
            return false;
        };
        // SYNC(section.announced): the section's storage is there before it is announced.
        word.store(incarnation, Release);
        true
    }

    /// Says that `announced` has changed.
    pub fn raise_section_epoch(&self, epoch: u32) {
        // SYNC(section.epoch): publishes the announcements before it.
        self.header().section_epoch.store(epoch, Release);
    }

    /// Whether the client says that it has mapped this incarnation of the section: a claim that
    /// harms nobody but the client, whose touch of an unmapped page faults.
    pub fn is_mapped(&self, section: u32, incarnation: u32) -> bool {
        // SYNC(section.mapped): pairs with `mark_mapped`.
        let word = self
            .mapped_words()
            .get(section as usize)
            .map(|word| word.load(Acquire));
        word == Some(incarnation) && incarnation != 0
    }

    /// The section epoch up to which the client says that it has mapped.
    pub fn mapped_epoch(&self) -> u32 {
        // SYNC(section.mapped): pairs with `mark_mapped_epoch`.
        self.header().mapped_epoch.load(Acquire)
    }

    /// Says that the daemon is about to sleep; it must look at everything once more first.
    pub fn announce_sleep(&self) {
        doorbell::announce_sleep(&self.header().sleeping);
    }

    /// Says that the daemon is awake.
    pub fn announce_wake(&self) {
        doorbell::announce_wake(&self.header().sleeping);
    }

    /// Says that the client is detached or poisoned; `why` is not 0. Its calls are refused from
    /// now on, its frees go to the free map.
    pub fn close(&self, why: u32) {
        // SYNC(control.closed): nothing follows that a client could miss, but waiters are woken
        // after it and must see it.
        self.header().closed.store(why, Release);
    }

    /// Publishes how many pages the client may still claim from others, `nr_settled` having become
    /// its own by claims so far.
    pub fn set_claim_allowance(&self, nr_pages: u64, nr_settled: u64) {
        let header = self.header();
        header.claim_allowance.store(nr_pages, Relaxed);
        // SYNC(control.allowance): the allowance seen is never older than what it counts as settled.
        header.nr_claims_settled.store(nr_settled, Release);
    }

    /// Publishes that a parcel of the client's is settled: its outbox slot can be used again.
    #[cfg(not(loom))]
    pub fn publish_settled(&self, slot: u32, sequence: u32) {
        if let Some(word) = self.settled_words().get(slot as usize) {
            // SYNC(control.settled): the outbox slot has been read before.
            word.store(sequence, Release);
        }
    }

    /// Outbox slots, from the first on, that may hold a share of the client's, by its own word.
    pub fn share_slots(&self) -> u32 {
        // SYNC(control.shares): pairs with `note_share`.
        self.header().share_slots.load(Acquire)
    }

    /// How often the client found no outbox slot free, by its own word.
    pub fn nr_outbox_full(&self) -> u32 {
        self.header().nr_outbox_full.load(Relaxed)
    }

    /// Raises the wake word after news for waiting clients; true if somebody says that it waits,
    /// and the caller must then wake the futex.
    pub fn raise_wake(&self) -> bool {
        let header = self.header();
        // SYNC(control.wake): what there is news of comes before it.
        header.wake.fetch_add(1, Release);
        // SYNC(control.waiters): pairs with the fence in `begin_wait`: the waiter's look at the
        // wake word and this look cannot both miss.
        fence(SeqCst);
        header.waiters.load(Relaxed) != 0
    }
}

/// What the client says and asks.
impl ControlSegment {
    /// The incarnation in which a section is announced, 0 if it is not there.
    pub fn announced(&self, section: u32) -> u32 {
        // SYNC(section.announced): pairs with `announce`.
        self.announced_words()
            .get(section as usize)
            .map_or(0, |word| word.load(Acquire))
    }

    /// The epoch of the announcements: it has moved when some of them changed.
    pub fn section_epoch(&self) -> u32 {
        // SYNC(section.epoch): pairs with `raise_section_epoch`.
        self.header().section_epoch.load(Acquire)
    }

    /// Says which incarnation of a section is mapped here, 0 for none; after the map is made,
    /// before it is taken away.
    pub fn mark_mapped(&self, section: u32, incarnation: u32) -> bool {
        let Some(word) = self.mapped_words().get(section as usize) else {
            return false;
        };
        // SYNC(section.mapped): the map was made before.
        word.store(incarnation, Release);
        true
    }

    /// Says up to which section epoch this client has mapped and unmapped.
    pub fn mark_mapped_epoch(&self, epoch: u32) {
        // SYNC(section.mapped): the marks come before.
        self.header().mapped_epoch.store(epoch, Release);
    }

    /// Says whether this process is registered for the global membarrier.
    pub fn mark_registered(&self, registered: bool) {
        self.header()
            .registered
            .store(u32::from(registered), Relaxed);
    }

    /// Why the daemon closed this client, 0 while it has not.
    pub fn closed(&self) -> u32 {
        // SYNC(control.closed): pairs with `close`.
        self.header().closed.load(Acquire)
    }

    /// Pages that may still be claimed from others, and how many have become this client's own by
    /// claims so far: what was claimed beyond these counts against the allowance.
    pub fn claim_allowance(&self) -> (u64, u64) {
        let header = self.header();
        // SYNC(control.allowance): pairs with `set_claim_allowance`.
        let nr_settled = header.nr_claims_settled.load(Acquire);
        (header.claim_allowance.load(Relaxed), nr_settled)
    }

    /// The last sequence of an outbox slot that the daemon has settled.
    #[cfg(not(loom))]
    pub fn settled(&self, slot: u32) -> Option<u32> {
        // SYNC(control.settled): pairs with `publish_settled`.
        Some(self.settled_words().get(slot as usize)?.load(Acquire))
    }

    /// Says that an outbox slot is about to hold a share.
    pub fn note_share(&self, slot: u32) {
        // SYNC(control.shares): it is said before the share is offered.
        self.header().share_slots.fetch_max(slot + 1, Release);
    }

    /// Says that no outbox slot was free; the caller rings.
    pub fn note_outbox_full(&self) {
        self.header().nr_outbox_full.fetch_add(1, Relaxed);
    }

    /// The futex word that the daemon raises with news.
    pub fn wake_word(&self) -> &AtomicU32 {
        &self.header().wake
    }

    /// Announces a waiter and returns the wake word's value to wait on. The caller must look
    /// once more whether there is still something to wait for, then wait for the word to differ,
    /// then call [`ControlSegment::end_wait`].
    pub fn begin_wait(&self) -> u32 {
        let header = self.header();
        header.waiters.fetch_add(1, Relaxed);
        // SYNC(control.waiters): pairs with the fence in `raise_wake`.
        fence(SeqCst);
        // SYNC(control.wake): pairs with `raise_wake`.
        header.wake.load(Acquire)
    }

    /// Takes the waiter's announcement back.
    pub fn end_wait(&self) {
        self.header().waiters.fetch_sub(1, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::control::ControlGeometry;

    const TINY: ControlGeometry = ControlGeometry {
        nr_lanes: 2,
        nr_sections: 4,
        nr_pages: 256,
    };

    #[test]
    fn a_section_is_lent_from_only_in_the_incarnation_that_is_mapped() {
        let segment = ControlSegment::heap(TINY).unwrap();
        assert!(segment.announce(3, 7) && !segment.announce(4, 7));
        assert_eq!((segment.announced(3), segment.announced(4)), (7, 0));
        assert!(!segment.is_mapped(3, 7) && !segment.is_mapped(0, 0));
        assert!(segment.mark_mapped(3, 7));
        assert!(segment.is_mapped(3, 7) && !segment.is_mapped(3, 8));
    }
}
