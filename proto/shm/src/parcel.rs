//! A parcel that was claimed: pages of another client's, to be used, kept, freed or given back.

use core::ops::Deref;

use crate::client_handle::ClientHandle;
use crate::page::Page;
use crate::post::{ClaimError, HandOverError};
use crate::ticket::{Done, Ticket};

/// Pages that came by a [`Ticket`].
///
/// As long as it is whole the daemon knows nothing of it: [`give_back`](Parcel::give_back) makes
/// the pages their sender's again as if they had never left. Taking the pages out
/// ([`into_pages`](Parcel::into_pages)) makes them this client's own. Dropping the parcel frees
/// them, all by one word. Whoever dies meanwhile, each page ends with one client or at home.
#[derive(Debug)]
pub struct Parcel {
    client: ClientHandle,
    /// None: the daemon has been told, or knows.
    ticket: Option<Ticket>,
    pages: Vec<Page>,
}

impl Parcel {
    pub(crate) fn claim(client: &ClientHandle, ticket: Ticket) -> Result<Parcel, ClaimError> {
        let mut pages = Vec::new();
        let untold = client.claim_into(ticket, &mut pages)?;
        Ok(Parcel {
            client: client.clone(),
            ticket: untold.then_some(ticket),
            pages,
        })
    }

    /// Makes the pages this client's own, and hands them out.
    pub fn into_pages(mut self) -> Vec<Page> {
        self.keep();
        core::mem::take(&mut self.pages)
    }

    /// The page of a parcel of one block; none if there are more, which are freed then.
    pub fn into_page(self) -> Option<Page> {
        let mut pages = self.into_pages();
        let page = pages.pop();
        page.filter(|_| pages.is_empty())
    }

    /// Gives the pages back to their sender, which gets them by `take_back`, or by a claim, of the
    /// ticket returned: the one that they came by, if nothing has happened to them. If the sender
    /// died meanwhile they are this client's own, and the ticket is that of a new parcel.
    ///
    /// # Errors
    /// [`HandOverError`] with the parcel, if a new one was needed and there was no room for it.
    pub fn give_back(mut self) -> Result<Ticket, (HandOverError, Parcel)> {
        if let Some(ticket) = self.ticket
            && self.client.give_back(ticket, &self.pages)
        {
            self.ticket = None;
            self.pages.drain(..).for_each(core::mem::forget);
            return Ok(ticket);
        }
        self.keep();
        match self.client.hand_over(&mut self.pages) {
            Ok(ticket) => Ok(ticket),
            Err(why) => Err((why, self)),
        }
    }

    /// The bytes of each block, to be written.
    pub fn bytes_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        // Not the pages themselves: one exchanged for another would be given back in its place.
        self.pages.iter_mut().map(|page| &mut **page)
    }

    /// The bytes of the block at `index`, to be written.
    pub fn block_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        self.pages.get_mut(index).map(|page| &mut **page)
    }

    fn keep(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            // Without room to tell, the daemon finds out when one of the pages is freed.
            let _ = self.client.tell(ticket, Done::Kept);
        }
    }
}

impl Deref for Parcel {
    type Target = [Page];

    fn deref(&self) -> &[Page] {
        &self.pages
    }
}

impl IntoIterator for Parcel {
    type Item = Page;
    type IntoIter = std::vec::IntoIter<Page>;

    fn into_iter(self) -> Self::IntoIter {
        self.into_pages().into_iter()
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        if self.pages.is_empty() {
            return;
        }
        let is_told = self
            .ticket
            .take()
            .is_some_and(|ticket| self.client.tell(ticket, Done::Freed));
        if is_told {
            self.client.count_freed(self.pages.len());
            self.pages.drain(..).for_each(core::mem::forget);
        } else {
            self.client.put_list(&mut self.pages);
        }
    }
}
