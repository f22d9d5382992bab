//! The whole structure checked: allocator, owner table, equations.

use crate::report::PageCounts;

/// What a check of everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// What does not hold, one line each, the first 100; empty when all does.
    pub findings: Vec<String>,
    /// Findings in all.
    pub nr_findings: u64,
    /// Sum over all zones.
    pub pages: PageCounts,
    /// Pages looked at.
    pub nr_checked_pages: u64,
}

impl VerifyReport {
    /// Whether everything holds.
    pub fn is_ok(&self) -> bool {
        self.nr_findings == 0
    }
}
