//! NUMA: how many nodes there are, and tying a file's memory to one of them.
//!
//! The policy is kept with the file, so it holds for every page that is made in it later, by
//! whichever process. The C library has no call for it.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::region::Region;
use crate::span::{Access, Span};

/// Nodes that a mask here can name.
const MAX_NODES: u32 = 1024;

const MASK_WORDS: usize = 16;

/// Nodes that the machine has; 1 where it does not say.
pub fn nr_online_nodes() -> u32 {
    let list = std::fs::read_to_string("/sys/devices/system/node/online");
    list.ok().and_then(|list| count(&list)).unwrap_or(1)
}

/// How many numbers are in a list such as `0-1,4`.
fn count(list: &str) -> Option<u32> {
    let mut nr = 0_u32;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        nr = nr.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(nr)
}

/// Makes all future pages of `region` come from `node`, and fail rather than come from elsewhere.
///
/// # Errors
/// `EINVAL` when the system has no such node, or no policies at all (`ENOSYS`).
pub(crate) fn bind_to_node(region: &Region, node: u32) -> Result<(), Errno> {
    let mask = mask_of(node).ok_or(Errno::EINVAL)?;
    let len = usize::try_from(region.len_bytes()).map_err(|_| Errno::EFBIG)?;
    let span = Span::reserve(len, region.pages().map_align_bytes())?;
    span.map(0, len, region.as_fd(), 0, Access::Read)?;
    let mode = libc::c_ulong::try_from(libc::MPOL_BIND).map_err(|_| Errno::EINVAL)?;
    // The kernel counts one bit less than it is told.
    let nr_bits = libc::c_ulong::from(MAX_NODES) + 1;
    // SAFETY:
    // 1. The range is exactly the span's own mapping, which lives until the end of this function.
    // 2. The mask is `MAX_NODES` bits long and outlives the call; the kernel reads no more of it.
    // 3. The call sets a policy for pages to come and moves or changes none that exist.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            span.base_address(),
            len,
            mode,
            mask.as_ptr(),
            nr_bits,
            0,
        )
    };
    Errno::result(answer).map(drop)
}

fn mask_of(node: u32) -> Option<[libc::c_ulong; MASK_WORDS]> {
    let mut mask = [0; MASK_WORDS];
    let word = usize::try_from(node / libc::c_ulong::BITS).ok()?;
    *mask.get_mut(word)? |= 1 << (node % libc::c_ulong::BITS);
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::FilePages;

    #[test]
    fn a_node_that_is_here_binds_and_one_that_is_not_is_refused() {
        let region = Region::for_zone("numa", 1 << 40, FilePages::Shmem).unwrap();
        match bind_to_node(&region, 0) {
            Ok(()) => {}
            // A kernel without NUMA has node 0 and no policies.
            Err(errno) => assert_eq!(errno, Errno::ENOSYS),
        }
        assert!(bind_to_node(&region, MAX_NODES - 1).is_err());
        assert_eq!(bind_to_node(&region, u32::MAX), Err(Errno::EINVAL));
    }

    #[test]
    fn nodes_are_counted_by_their_list() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-1,4,6-7"), Some(5));
        for nonsense in ["", "a", "3-1", "0-4294967295"] {
            assert_eq!(count(nonsense), None, "{nonsense:?}");
        }
        assert!(nr_online_nodes() >= 1);
    }

    #[test]
    fn a_mask_names_one_node() {
        let mask = mask_of(70).unwrap();
        assert_eq!(mask[1], 1 << 6);
        assert_eq!(mask.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
        assert_eq!(mask_of(MAX_NODES), None);
    }
}
