//! Runs of neighbours in a batch of pages: what one entry of an iovec can hold.
//!
//! A batch comes in as few runs as the zone allows, in ascending order. Here it is only cut where
//! neighbours end; who wants fewer runs sorts by pfn first.

use crate::page::Page;
use crate::process;

/// Whether `b` begins where `a` ends, in the same zone of the same client.
fn are_neighbours(a: &Page, b: &Page) -> bool {
    let (a, b) = (a.raw(), b.raw());
    (a.client(), a.zone()) == (b.client(), b.zone())
        && u64::from(a.pfn()) + (1 << a.order()) == u64::from(b.pfn())
}

/// Cuts a batch into its runs of neighbours.
pub fn runs(pages: &[Page]) -> impl Iterator<Item = &[Page]> {
    pages.chunk_by(are_neighbours)
}

/// The bytes of each run of neighbours, in one piece: a 256 KiB READ into memory that is not
/// fragmented needs one or two, instead of 64.
///
/// ```no_run
/// # fn read(file: &std::fs::File, pages: &mut [hugepool_shm::page::Page]) -> std::io::Result<usize> {
/// use std::io::{IoSliceMut, Read};
/// let mut vectors: Vec<IoSliceMut<'_>> =
///     hugepool_shm::page_runs::runs_mut(pages).map(IoSliceMut::new).collect();
/// (&*file).read_vectored(&mut vectors)
/// # }
/// ```
///
/// # Panics
/// In a forked child, as touching a page does.
pub fn runs_mut(pages: &mut [Page]) -> impl Iterator<Item = &mut [u8]> {
    pages.chunk_by_mut(are_neighbours).map(|run| {
        let bytes = |page: &Page| process::bytes_of(page.raw());
        let (Some(first), Some(last)) = (run.first().map(bytes), run.last().map(bytes)) else {
            return &mut [][..];
        };
        let len = last.0.addr() - first.0.addr() + last.1;
        // SAFETY:
        // 1. `bytes_of` has found the first and the last block in the same zone of this process,
        //    which is one reserved range of addresses, ascending with the pfn; so what lies
        //    between the first byte of the one and the last of the other is inside it too.
        // 2. All of it belongs to pages of the run, since each begins where the one before ends,
        //    and they are borrowed exclusively for as long as the bytes are.
        // 3. Every bit pattern is a `u8`, as for a single page.
        unsafe { core::slice::from_raw_parts_mut(first.0, len) }
    })
}
