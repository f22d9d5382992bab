//! Why a link of the backing chain does not serve, with the numbers, for people and programs.
//!
//! The values are made in [`backing`](crate::backing), from what the system said at that moment.

use std::fmt;

use crate::backing::{Backing, BackingChoice};
use crate::huge_pool::{HugePool, ShmemThp};
use crate::memory_room::MemoryBound;

/// Why a link of the chain cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNot {
    /// The kernel has no huge pages of that size.
    #[error("this system has no huge pages of that size")]
    NoPool,
    /// The pool has too few pages.
    #[error(
        "{need_pages} huge pages of {} bytes are needed, {short_pages} ({short_bytes} bytes) more than can be had{}: {}",
        pool.page_bytes, OnNode(*node), PoolState(pool)
    )]
    PoolShort {
        /// Pages needed.
        need_pages: u64,
        /// Pages lacking.
        short_pages: u64,
        /// The same in bytes.
        short_bytes: u64,
        /// The node they must come from, if any.
        node: Option<u32>,
        /// The pool as it was.
        pool: HugePool,
    },
    /// The kernel does not use transparent huge pages for shared memory.
    #[error(
        "transparent huge pages for shared memory are off: shmem_enabled is '{}', for 2 MiB '{}'",
        .0.general, .0.for_2m
    )]
    ThpOff(ShmemThp),
    /// Too little ordinary memory.
    #[error("{need_bytes} bytes are needed where {room_bytes} can be had: {bound}")]
    MemoryShort {
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes that can be had.
        room_bytes: u64,
        /// What bounds them.
        bound: MemoryBound,
    },
    /// Sections or reserve are no multiple of the huge page.
    #[error("a section of {section_bytes} bytes is no multiple of a page of {page_bytes} bytes")]
    SectionUnaligned {
        /// Bytes of a section.
        section_bytes: u64,
        /// Bytes of a huge page.
        page_bytes: u64,
    },
}

struct OnNode(Option<u32>);

impl fmt::Display for OnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(node) => write!(f, " on node {node}"),
            None => Ok(()),
        }
    }
}

/// A pool in one line: what is free of what there is, promised, allowed, and by node.
struct PoolState<'a>(&'a HugePool);

impl fmt::Display for PoolState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pool = self.0;
        write!(f, "free {} of {}", pool.free, pool.total)?;
        if pool.reserved > 0 {
            write!(f, ", {} of them promised to others", pool.reserved)?;
        }
        if pool.allowed < u64::MAX {
            write!(f, ", {} allowed by the control group", pool.allowed)?;
        }
        for entry in &pool.nodes {
            write!(
                f,
                "; node {}: {} of {}",
                entry.node, entry.free, entry.total
            )?;
        }
        Ok(())
    }
}

/// A link that was passed over, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// The link.
    pub backing: Backing,
    /// Why it cannot serve.
    pub why: WhyNot,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backing, self.why)
    }
}

/// No link of the chain can serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no backing for {need_bytes} bytes as {choice}: {}", List(passed_over))]
pub struct NoBacking {
    /// What was asked for.
    pub choice: BackingChoice,
    /// Bytes needed.
    pub need_bytes: u64,
    /// Every link that was asked for, in order, and why it cannot serve.
    pub passed_over: Vec<PassedOver>,
}

struct List<'a>(&'a [PassedOver]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, passed) in self.0.iter().enumerate() {
            let gap = if index > 0 { "; " } else { "" };
            write!(f, "{gap}{passed}")?;
        }
        Ok(())
    }
}
