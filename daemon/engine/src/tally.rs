//! How much is lent where: by zone, section, pageblock and client, and since when.
//!
//! Knows counts only; which page is whose is [`owners`](crate::owners). The counts make
//! the sweep of a dead client linear in the pageblocks it holds something in, and name
//! holders with an age that costs one store for each batch and pageblock.

use hugepool_shm::raw::NR_ZONES;

use crate::id::ClientId;

/// Pages of blocks headed in one pageblock that are one client's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockTally {
    /// Pages.
    pub pages: u32,
    /// Since when it is not 0, in milliseconds since boot.
    pub since_ms: u64,
}

/// What one client has in one section.
#[derive(Clone, Debug)]
pub(crate) struct ClientSection {
    /// The section's number.
    pub section: u32,
    /// Pages in all blocks.
    pub pages: u64,
    /// By pageblock of the section.
    pub blocks: Box<[BlockTally]>,
}

/// What one client has.
#[derive(Clone, Debug)]
pub(crate) struct ClientTally {
    pub client: ClientId,
    /// Pages in all sections.
    pub pages: u64,
    /// Of these, by zone index.
    pub zones: [u64; NR_ZONES],
    /// Sorted by section; a section once touched stays until it is removed.
    sections: Vec<ClientSection>,
    /// Position of the section looked at last: batches come in runs.
    last: usize,
}

impl ClientTally {
    pub fn new(client: ClientId) -> ClientTally {
        ClientTally {
            client,
            pages: 0,
            zones: [0; NR_ZONES],
            sections: Vec::new(),
            last: 0,
        }
    }

    /// Sections it has something in, by number.
    pub fn sections(&self) -> impl Iterator<Item = &ClientSection> {
        self.sections.iter().filter(|row| row.pages > 0)
    }

    /// What it has in one section, if anything.
    pub fn section(&self, section: u32) -> Option<&ClientSection> {
        let at = self
            .sections
            .binary_search_by_key(&section, |row| row.section)
            .ok()?;
        self.sections.get(at).filter(|row| row.pages > 0)
    }

    /// Since when it has had something in the section, in milliseconds since boot.
    pub fn since_ms(&self, section: u32) -> Option<u64> {
        let blocks = &self.section(section)?.blocks;
        blocks
            .iter()
            .filter(|block| block.pages > 0)
            .map(|block| block.since_ms)
            .min()
    }

    /// Drops the row of a section that has gone.
    pub fn forget_section(&mut self, section: u32) {
        self.sections.retain(|row| row.section != section);
        self.last = 0;
    }

    fn row(&mut self, section: u32, nr_blocks: usize) -> &mut ClientSection {
        if self
            .sections
            .get(self.last)
            .is_none_or(|row| row.section != section)
        {
            self.last = match self
                .sections
                .binary_search_by_key(&section, |row| row.section)
            {
                Ok(at) => at,
                Err(at) => {
                    let blocks = vec![BlockTally::default(); nr_blocks].into_boxed_slice();
                    self.sections.insert(
                        at,
                        ClientSection {
                            section,
                            pages: 0,
                            blocks,
                        },
                    );
                    at
                }
            };
        }
        &mut self.sections[self.last]
    }

    fn add(&mut self, place: Place, nr_blocks: usize, pages: u32, now_ms: u64) {
        self.pages += u64::from(pages);
        let row = self.row(place.section, nr_blocks);
        row.pages += u64::from(pages);
        let block = &mut row.blocks[place.block];
        if block.pages == 0 {
            block.since_ms = now_ms;
        }
        block.pages += pages;
    }

    fn sub(&mut self, place: Place, nr_blocks: usize, pages: u32) {
        self.pages -= u64::from(pages);
        let row = self.row(place.section, nr_blocks);
        row.pages -= u64::from(pages);
        row.blocks[place.block].pages -= pages;
    }
}

/// A pageblock, by section and position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub section: u32,
    pub block: usize,
}

/// What is lent out of one section.
#[derive(Clone, Debug, Default)]
struct SectionTally {
    pages: u64,
    /// Pages of these that were asked for as reclaimable.
    reclaimable: u64,
    /// By pageblock, made at the first lend: pages of blocks headed there.
    blocks: Box<[u32]>,
}

/// All counts of what is lent.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    nr_blocks: usize,
    sections: Vec<SectionTally>,
    clients: Vec<Option<ClientTally>>,
    /// Pages lent as reclaimable, in all.
    reclaimable: u64,
    /// By zone index.
    zones: [u64; NR_ZONES],
    /// Zone index of each section.
    zone_of: Vec<u8>,
}

impl Tally {
    /// `zone_of` gives the zone index of each section; sections have `nr_blocks` pageblocks.
    pub fn new(zone_of: Vec<u8>, nr_blocks: usize) -> Tally {
        let sections = vec![SectionTally::default(); zone_of.len()];
        Tally {
            nr_blocks,
            sections,
            clients: Vec::new(),
            reclaimable: 0,
            zones: [0; NR_ZONES],
            zone_of,
        }
    }

    /// Opens an account for a client, which has nothing.
    pub fn open(&mut self, client: ClientId) {
        let slot = usize::from(client.slot);
        if self.clients.len() <= slot {
            self.clients.resize(slot + 1, None);
        }
        assert!(self.clients[slot].is_none(), "slot {slot} has an account");
        self.clients[slot] = Some(ClientTally::new(client));
    }

    /// Closes the account of a client that has nothing left.
    pub fn close(&mut self, client: ClientId) {
        let account = self.clients[usize::from(client.slot)].take();
        assert!(account.is_some_and(|account| account.pages == 0 && account.client == client));
    }

    /// Counts pages as the client's.
    pub fn add(&mut self, client: ClientId, place: Place, pages: u32, now_ms: u64) {
        let nr_blocks = self.nr_blocks;
        let index = crate::num::index(place.section);
        let section = &mut self.sections[index];
        if section.blocks.is_empty() {
            section.blocks = vec![0; nr_blocks].into_boxed_slice();
        }
        section.pages += u64::from(pages);
        section.blocks[place.block] += pages;
        let zone = usize::from(self.zone_of[index]);
        self.zones[zone] += u64::from(pages);
        let account = self.account(client);
        account.zones[zone] += u64::from(pages);
        account.add(place, nr_blocks, pages, now_ms);
    }

    /// Counts pages, counted as lent too, as reclaimable.
    pub fn add_reclaimable(&mut self, section: u32, pages: u32) {
        self.sections[crate::num::index(section)].reclaimable += u64::from(pages);
        self.reclaimable += u64::from(pages);
    }

    /// Counts pages as no longer so.
    pub fn sub_reclaimable(&mut self, section: u32, pages: u32) {
        self.sections[crate::num::index(section)].reclaimable -= u64::from(pages);
        self.reclaimable -= u64::from(pages);
    }

    /// Pages lent as reclaimable, in all.
    pub fn all_reclaimable(&self) -> u64 {
        self.reclaimable
    }

    /// Pages lent out of a section as reclaimable.
    pub fn reclaimable(&self, section: u32) -> u64 {
        self.sections[crate::num::index(section)].reclaimable
    }

    /// Counts pages as home.
    pub fn sub(&mut self, client: ClientId, place: Place, pages: u32) {
        let nr_blocks = self.nr_blocks;
        let index = crate::num::index(place.section);
        let section = &mut self.sections[index];
        section.pages -= u64::from(pages);
        section.blocks[place.block] -= pages;
        let zone = usize::from(self.zone_of[index]);
        self.zones[zone] -= u64::from(pages);
        let account = self.account(client);
        account.zones[zone] -= u64::from(pages);
        account.sub(place, nr_blocks, pages);
    }

    /// The account of a client, if it is open.
    pub fn client(&self, client: ClientId) -> Option<&ClientTally> {
        self.clients
            .get(usize::from(client.slot))
            .and_then(Option::as_ref)
            .filter(|account| account.client == client)
    }

    /// All open accounts, by slot.
    pub fn clients(&self) -> impl Iterator<Item = &ClientTally> {
        self.clients.iter().flatten()
    }

    /// Index of a section's zone.
    pub fn zone_of(&self, section: u32) -> u32 {
        u32::from(self.zone_of[crate::num::index(section)])
    }

    /// Pages lent out of a zone.
    pub fn zone_pages(&self, zone: usize) -> u64 {
        self.zones[zone]
    }

    /// Pages lent out of a section.
    pub fn section_pages(&self, section: u32) -> u64 {
        self.sections[crate::num::index(section)].pages
    }

    /// Pages lent by pageblock of the section; empty if nothing ever was.
    pub fn section_blocks(&self, section: u32) -> &[u32] {
        &self.sections[crate::num::index(section)].blocks
    }

    /// Forgets a section that has gone; nothing is lent out of it.
    pub fn forget_section(&mut self, section: u32) {
        let row = &mut self.sections[crate::num::index(section)];
        assert_eq!(row.pages, 0, "section {section} went with pages lent");
        row.blocks = Box::default();
        for account in self.clients.iter_mut().flatten() {
            account.forget_section(section);
        }
    }

    fn account(&mut self, client: ClientId) -> &mut ClientTally {
        self.clients[usize::from(client.slot)]
            .as_mut()
            .expect("an account is open for as long as its client is in the table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId {
        slot: 1,
        incarnation: 1,
    };
    const B: ClientId = ClientId {
        slot: 3,
        incarnation: 9,
    };

    #[test]
    fn counts_by_zone_section_block_and_client_agree() {
        let mut tally = Tally::new(vec![0, 0, 1], 4);
        tally.open(A);
        tally.open(B);
        tally.add(
            A,
            Place {
                section: 2,
                block: 1,
            },
            8,
            100,
        );
        tally.add(
            B,
            Place {
                section: 2,
                block: 1,
            },
            1,
            200,
        );
        tally.add(
            B,
            Place {
                section: 0,
                block: 3,
            },
            2,
            300,
        );
        assert_eq!((tally.zone_pages(0), tally.zone_pages(1)), (2, 9));
        assert_eq!(tally.section_blocks(2), [0, 9, 0, 0]);
        assert_eq!(tally.client(B).unwrap().pages, 3);
        tally.sub(
            A,
            Place {
                section: 2,
                block: 1,
            },
            8,
        );
        assert_eq!(tally.section_pages(2), 1);
        assert_eq!(tally.client(A).unwrap().sections().count(), 0);
        tally.close(A);
        assert!(tally.client(A).is_none());
    }

    #[test]
    fn since_starts_anew_when_nothing_was_left() {
        let mut tally = Tally::new(vec![0], 1);
        tally.open(A);
        let place = Place {
            section: 0,
            block: 0,
        };
        let since = |tally: &Tally| tally.client(A).unwrap().section(0).unwrap().blocks[0].since_ms;
        tally.add(A, place, 1, 10);
        tally.add(A, place, 1, 20);
        assert_eq!(since(&tally), 10);
        tally.sub(A, place, 2);
        tally.add(A, place, 1, 30);
        assert_eq!(since(&tally), 30);
    }
}
