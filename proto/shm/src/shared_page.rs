//! A page that several clients hold at once, to be read: sealed by one, passed on by tickets.
//!
//! Each holding is a word of its own to the daemon: the sealer's, and one for each ticket that was
//! claimed. The page stays where it is and at its generation; it goes home when the last holding
//! has ended, by a drop or by a death. Nobody counts in memory that a client can write.

use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

use crate::client_handle::ClientHandle;
use crate::page::Page;
use crate::post::{ClaimError, HandOverError};
use crate::process;
use crate::raw::RawPage;
use crate::ticket::{Done, Holds, Notice, ShareWord, Ticket};

/// A block that can only be read, by every client that holds it. Clones are the same holding, which
/// ends when the last of them is dropped.
///
/// It is read through a map of the zone that cannot be written. Others of the zone could write by
/// theirs, as to any page of it: a zone is the border of trust.
#[derive(Clone)]
pub struct SharedPage(Arc<Holding>);

struct Holding {
    client: ClientHandle,
    word: RawPage,
    /// Where its bytes are, to be read.
    address: usize,
    len_bytes: usize,
    /// What it was claimed by; none for who sealed it.
    ticket: Option<Ticket>,
}

impl SharedPage {
    pub(crate) fn seal(
        client: &ClientHandle,
        page: Page,
    ) -> Result<SharedPage, (HandOverError, Page)> {
        let attached = client.attached();
        let word = page.raw();
        let why = if process::is_child() {
            HandOverError::Forked
        } else if word.client() != attached.index() {
            HandOverError::OtherClient
        } else if attached.post().is_none() {
            HandOverError::Detached
        } else if let Some((address, len_bytes)) = attached.to_read(word) {
            return Ok(SharedPage(Arc::new(Holding {
                client: client.clone(),
                word: page.into_raw(),
                address,
                len_bytes,
                ticket: None,
            })));
        } else {
            HandOverError::NoMapToRead
        };
        Err((why, page))
    }

    pub(crate) fn claim(client: &ClientHandle, ticket: Ticket) -> Result<SharedPage, ClaimError> {
        if process::is_child() {
            return Err(ClaimError::Forked);
        }
        let (word, address, len_bytes) = client.claim_holding(ticket)?;
        Ok(SharedPage(Arc::new(Holding {
            client: client.clone(),
            word,
            address,
            len_bytes,
            ticket: Some(ticket),
        })))
    }

    /// Offers a further holding, to whoever claims the ticket first: one ticket for each. It keeps
    /// the page, also when this holding ends, until it is claimed and dropped, or taken back, or
    /// this process ends.
    ///
    /// # Errors
    /// [`HandOverError`]; nothing has changed.
    pub fn hand_over(&self) -> Result<Ticket, HandOverError> {
        if process::is_child() {
            return Err(HandOverError::Forked);
        }
        let attached = self.0.client.attached();
        let post = attached.post().ok_or(HandOverError::Detached)?;
        post.share(attached, self.0.word)
    }

    /// Whether it is a holding of this client's, which alone can take back what is offered by it.
    pub fn is_of(&self, client: &ClientHandle) -> bool {
        Arc::ptr_eq(self.0.client.attached(), client.attached())
    }

    /// Page frame number of the first page, unique over all zones.
    pub fn pfn(&self) -> u32 {
        self.0.word.pfn()
    }

    /// The block has `2^order` pages.
    pub fn order(&self) -> u32 {
        self.0.word.order()
    }
}

impl Deref for SharedPage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        assert!(!process::is_child(), "a forked child has no pages");
        let base = ptr::with_exposed_provenance(self.0.address);
        // SAFETY:
        // 1. `Attached::to_read` has mapped the range, inside the zone's second map, which lives as
        //    long as the client does, and `self` keeps the client. The section stays mapped while
        //    a page of it is lent, and this one is as long as the holding lasts.
        // 2. Every bit pattern is a `u8`, and the memory of a zone is always initialised.
        // 3. Nobody writes it: its sealer gave up the `Page`, which was the one way to write it,
        //    and it is nobody's `Page` again before this holding has ended. Other clients of the
        //    zone keep off.
        unsafe { core::slice::from_raw_parts(base, self.0.len_bytes) }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if process::is_child() {
            return;
        }
        self.client.say(match self.ticket {
            Some(ticket) => {
                let done = Done::Freed;
                Notice { ticket, done }.to_word()
            }
            None => {
                let (pfn, generation) = (self.word.pfn(), self.word.generation());
                let says = Holds::LetGo;
                ShareWord {
                    pfn,
                    generation,
                    says,
                }
                .to_word()
            }
        });
    }
}

impl core::fmt::Debug for SharedPage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SharedPage(pfn {}, order {})", self.pfn(), self.order())
    }
}
