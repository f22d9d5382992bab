//! Filling a range of shared memory with transparent huge pages.
//!
//! `fallocate` makes small pages whatever was advised, so the pages are made
//! [by faults](crate::by_faults). Whether huge pages are switched on is the question of
//! [`huge_pool`](crate::huge_pool).

use std::ops::Range;

use nix::errno::Errno;

use crate::by_faults;
use crate::node_bound::NodeBound;
use crate::region::Region;
use crate::span::Advice;

/// Allocates what lacks in `range` of a file of shared memory, and says how many bytes of it are in
/// huge pages: where none can be had, the kernel takes small ones.
pub(crate) fn fill(region: &Region, range: Range<u64>, bound: &NodeBound) -> Result<u64, Errno> {
    let span = by_faults::fill(region, range, Some(Advice::HugePage), bound)?;
    Ok(huge_bytes_mapped(span.base_address(), span.len_bytes()))
}

/// Bytes of the mapping at `address` that are mapped by huge pages, as the kernel tells it; 0 where
/// it does not.
fn huge_bytes_mapped(address: usize, len: usize) -> u64 {
    use std::io::{BufRead, BufReader};
    let Ok(file) = std::fs::File::open("/proc/self/smaps") else {
        return 0;
    };
    let end = address.saturating_add(len);
    let mut is_ours = false;
    let mut huge_kib = 0_u64;
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        if let Some((start, stop)) = range_of(&line) {
            if start >= end {
                break;
            }
            is_ours = start >= address && stop <= end;
        } else if is_ours && let Some(value) = line.strip_prefix("ShmemPmdMapped:") {
            let kib = value.trim().trim_end_matches("kB").trim().parse();
            huge_kib = huge_kib.saturating_add(kib.unwrap_or(0));
        }
    }
    huge_kib.saturating_mul(1024)
}

/// The addresses at the head of a line of `smaps` that opens a mapping.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (range, _) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_smaps_that_open_a_mapping_are_told_from_the_others() {
        let line = "7f00-7f10 rw-s 00000000 00:01 1029 /memfd:x (deleted)";
        assert_eq!(range_of(line), Some((0x7f00, 0x7f10)));
        for line in [
            "Size:   4 kB",
            "ShmemPmdMapped:   0 kB",
            "",
            "VmFlags: rd-wr sh",
        ] {
            assert_eq!(range_of(line), None, "{line}");
        }
    }
}
