//! Pages of one NUMA node: what a thread allocates while it is bound to the node.
//!
//! A policy that is set for a map (`mbind`) stays with the file of shared memory, but of huge pages it
//! goes with the map. The policy of the thread that allocates serves both, inside `fallocate` and in
//! faults, and the threads that it makes have it too (`mempolicy` in the kernel's admin guide). The C
//! library has no calls for it.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use nix::errno::Errno;

use crate::numa::{MAX_NODES, Nodes};

const MASK_WORDS: usize = 16;

/// What the kernel wants to be told of the masks here: it counts one bit less.
const NR_BITS: libc::c_ulong = 1025;

/// What decides where a thread's pages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    mode: libc::c_int,
    mask: [libc::c_ulong; MASK_WORDS],
}

/// The calling thread, and those that it makes meanwhile, have their pages from one node or none at
/// all; when this is dropped it has what it had before.
#[derive(Debug)]
pub(crate) struct NodeBound {
    before: Option<Policy>,
    processors: Vec<RangeInclusive<u32>>,
    /// The policy is the thread's that set it: no other one gives it back.
    stays_here: PhantomData<*const ()>,
}

impl NodeBound {
    /// Binds the calling thread to a node; without one it stays as it is.
    ///
    /// # Errors
    /// `EINVAL` when the system has no such node with memory, `ENOSYS` when it has no policies at
    /// all, `EPERM` when it forbids them.
    pub(crate) fn to(node: Option<u32>) -> Result<NodeBound, Errno> {
        let (before, processors) = match node {
            None => (None, Vec::new()),
            Some(node) => {
                let bound = Policy::bind(node).ok_or(Errno::EINVAL)?;
                let before = Policy::of_this_thread()?;
                bound.set()?;
                (Some(before), Nodes::read().processors_of(node).to_vec())
            }
        };
        #[cfg(test)]
        testing::LAST.set(node);
        Ok(NodeBound {
            before,
            processors,
            stays_here: PhantomData,
        })
    }

    /// Processors that are near to the node; none without a node.
    pub(crate) fn processors(&self) -> &[RangeInclusive<u32>] {
        &self.processors
    }
}

impl Drop for NodeBound {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // What was in force before is in force again: nothing in it can be refused now.
            let _ = before.set();
        }
    }
}

impl Policy {
    fn bind(node: u32) -> Option<Policy> {
        if node >= MAX_NODES {
            return None;
        }
        let mut mask = [0; MASK_WORDS];
        *mask.get_mut(usize::try_from(node / libc::c_ulong::BITS).ok()?)? |=
            1 << (node % libc::c_ulong::BITS);
        Some(Policy {
            mode: libc::MPOL_BIND,
            mask,
        })
    }

    fn of_this_thread() -> Result<Policy, Errno> {
        let mut policy = Policy {
            mode: libc::MPOL_DEFAULT,
            mask: [0; MASK_WORDS],
        };
        // SAFETY:
        // 1. The kernel writes one word into `mode` and at most `NR_BITS - 1` bits into the mask, which
        //    is so long; both outlive the call.
        // 2. Without flags the address is not looked at.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy.mode,
                policy.mask.as_mut_ptr(),
                NR_BITS,
                0_usize,
                0_usize,
            )
        };
        Errno::result(answer).map(|_| policy)
    }

    fn set(&self) -> Result<(), Errno> {
        let is_empty = self.mask.iter().all(|word| *word == 0);
        let mask = if is_empty {
            std::ptr::null()
        } else {
            self.mask.as_ptr()
        };
        // SAFETY:
        // 1. The mask is null, or `NR_BITS - 1` bits long and outlives the call; the kernel reads no more.
        // 2. The call moves and changes no page: it is about those to come.
        let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, mask, NR_BITS) };
        Errno::result(answer).map(drop)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// What this thread was last bound to.
        pub(crate) static LAST: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Whether the calling thread's pages come from this node alone; `None` without policies here.
    pub(crate) fn is_bound_to(node: u32) -> Option<bool> {
        let policy = Policy::of_this_thread().ok()?;
        Some(Some(policy) == Policy::bind(node))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::is_bound_to;
    use super::*;
    use crate::test_support::skip::skip;

    /// Seen to fail when nothing is given back, and when nothing is set.
    #[test]
    fn a_thread_is_bound_with_those_it_makes_and_free_afterwards() {
        let name = "a_thread_is_bound_with_those_it_makes_and_free_afterwards";
        if is_bound_to(0).is_none() {
            return skip(name, "this kernel has no memory policies");
        }
        let before = Policy::of_this_thread().unwrap();
        let bound = match NodeBound::to(Some(0)) {
            Err(Errno::EPERM) => return skip(name, "memory policies are forbidden here"),
            bound => bound.unwrap(),
        };
        assert_eq!(is_bound_to(0), Some(true));
        let of_another = std::thread::spawn(|| is_bound_to(0)).join().unwrap();
        assert_eq!(of_another, Some(true));
        // One within the other gives back what it found.
        drop(NodeBound::to(Some(0)).unwrap());
        assert_eq!(is_bound_to(0), Some(true));
        drop(bound);
        assert_eq!(Policy::of_this_thread(), Ok(before));
    }

    #[test]
    fn a_node_that_is_not_here_is_refused_and_none_is_no_change() {
        assert!(NodeBound::to(Some(MAX_NODES - 1)).is_err());
        assert_eq!(NodeBound::to(Some(u32::MAX)).unwrap_err(), Errno::EINVAL);
        let none = NodeBound::to(None).unwrap();
        assert_eq!(none.processors(), []);
        assert_ne!(is_bound_to(0), Some(true));
    }

    #[test]
    fn a_mask_names_one_node() {
        let mask = Policy::bind(70).unwrap().mask;
        assert_eq!(mask[1], 1 << 6);
        assert_eq!(mask.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
        assert_eq!(Policy::bind(MAX_NODES), None);
    }
}
