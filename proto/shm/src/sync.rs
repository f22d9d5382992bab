//! Atomics: the machine's, or loom's while a model runs.
//!
//! Decided here alone; the rest of the crate takes its atomics and fences from this module.
//! Orderings always come from `core`. Sequentially consistent accesses are not used anywhere
//! (loom weakens them): where a store must come before a later load, the code uses a fence.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Orders the caller's earlier stores before its later loads, as seen by a daemon that issues
/// `membarrier(GLOBAL_EXPEDITED)`; a real fence where this process could not register for that.
///
/// With `registered` it costs no instruction: it stops the compiler, and the daemon's barrier
/// stops the processor. Loom has no membarrier, so models run with the real fence, which is
/// what the barrier makes of this point when it happens here.
#[inline(always)]
pub(crate) fn light_barrier(registered: bool) {
    #[cfg(not(loom))]
    if registered {
        core::sync::atomic::compiler_fence(SeqCst);
        return;
    }
    let _ = registered;
    // SYNC(window.busy): pairs with the membarrier (in models: the fence) between the daemon's
    // store of an odd epoch and its load of `busy`.
    fence(SeqCst);
}
