//! The naive twin: who holds each page, in a plain table.
//!
//! It knows what clients have in hand, nothing of buddies, lanes or generations. Every page a
//! client is handed is looked up here first, and every page must be nobody's then. What a
//! client that breaks the rules says it holds is not believed: its pages are only known to be
//! nobody else's business.

use hugepool_engine::ClientId;
use hugepool_shm::raw::RawPage;

/// What the twin found to be wrong.
pub type Broken = String;

/// Who holds each page.
#[derive(Clone, Debug)]
pub struct Model {
    /// By pfn.
    holders: Vec<Option<ClientId>>,
    /// Sections that are there, by id.
    present: Vec<bool>,
    nr_held: u64,
}

impl Model {
    /// A model of so many pages, all of them nobody's.
    pub fn new(nr_pages: usize, nr_sections: usize) -> Model {
        Model {
            holders: vec![None; nr_pages],
            present: vec![false; nr_sections],
            nr_held: 0,
        }
    }

    /// A client has been handed a block.
    ///
    /// # Errors
    /// Somebody holds a page of it.
    pub fn take(&mut self, client: ClientId, page: RawPage) -> Result<(), Broken> {
        let pages = self.block(page)?;
        if let Some(other) = pages.iter().find_map(|holder| *holder) {
            return Err(format!(
                "client {client} was handed {page:?}, which client {other} holds"
            ));
        }
        pages.fill(Some(client));
        self.nr_held += 1 << page.order();
        Ok(())
    }

    /// A client lets go of a block that it holds.
    ///
    /// # Errors
    /// It does not hold all of it: the simulator's own mistake.
    pub fn give(&mut self, client: ClientId, page: RawPage) -> Result<(), Broken> {
        let pages = self.block(page)?;
        if pages.iter().any(|holder| *holder != Some(client)) {
            return Err(format!(
                "client {client} lets go of {page:?}, which it does not hold"
            ));
        }
        pages.fill(None);
        self.nr_held -= 1 << page.order();
        Ok(())
    }

    /// Pages in hand, of all clients.
    pub fn nr_held(&self) -> u64 {
        self.nr_held
    }

    /// A section has come or gone.
    ///
    /// # Errors
    /// It was so before.
    pub fn set_present(&mut self, section: u32, present: bool) -> Result<(), Broken> {
        let row = self.present.get_mut(section as usize);
        let row = row.ok_or_else(|| format!("there is no section {section}"))?;
        if *row == present {
            return Err(format!("section {section} came or went twice"));
        }
        *row = present;
        Ok(())
    }

    /// Sections that are there.
    pub fn nr_present(&self) -> u64 {
        self.present.iter().filter(|present| **present).count() as u64
    }

    fn block(&mut self, page: RawPage) -> Result<&mut [Option<ClientId>], Broken> {
        let start = page.pfn() as usize;
        let pages = self.holders.get_mut(start..start + (1 << page.order()));
        pages.ok_or_else(|| format!("{page:?} is beyond all zones"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugepool_shm::raw::{PageParts, RawMigratetype};

    const A: ClientId = ClientId {
        slot: 1,
        incarnation: 1,
    };
    const B: ClientId = ClientId {
        slot: 2,
        incarnation: 1,
    };

    fn block(pfn: u32, order: u32) -> RawPage {
        let migratetype = RawMigratetype::Movable;
        PageParts {
            pfn,
            order,
            migratetype,
            zone: 0,
            client: 0,
            generation: 0,
        }
        .pack()
        .unwrap()
    }

    #[test]
    fn a_page_that_is_handed_out_twice_is_found() {
        let mut model = Model::new(64, 2);
        model.take(A, block(8, 3)).unwrap();
        assert!(model.take(B, block(15, 0)).is_err());
        assert!(model.take(A, block(8, 0)).is_err());
        assert!(model.give(B, block(8, 3)).is_err());
        assert_eq!(model.nr_held(), 8);
        model.give(A, block(8, 3)).unwrap();
        model.take(B, block(15, 0)).unwrap();
        assert!(model.take(B, block(64, 0)).is_err());
    }
}
