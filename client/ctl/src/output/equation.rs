//! Counts of pages, printed as the sum that they are.

use hugepool_proto::v1::PageCounts;
use serde_json::{Value, json};

use super::Output;

/// The counts as JSON, each in pages.
pub fn json(counts: &PageCounts) -> Value {
    json!({
        "spanned": counts.spanned,
        "present": counts.present,
        "reserved": counts.reserved,
        "managed": counts.managed,
        "free": counts.free,
        "pcp": counts.pcp,
        "lent": counts.lent,
        "isolated": counts.isolated,
    })
}

/// Whether `managed` and `present` are the sums that they claim to be.
pub fn adds_up(counts: &PageCounts) -> bool {
    let sum = |parts: &[u64]| {
        parts
            .iter()
            .try_fold(0_u64, |sum, &part| sum.checked_add(part))
    };
    sum(&[counts.free, counts.pcp, counts.lent, counts.isolated]) == Some(counts.managed)
        && sum(&[counts.managed, counts.reserved]) == Some(counts.present)
}

/// Rows with plus signs, a rule, a total; twice.
pub fn text(counts: &PageCounts, page_bytes: u64, out: &Output) -> String {
    let rows = [
        (" ", counts.free, "free", "on the buddy's lists"),
        ("+", counts.pcp, "pcp", "in the daemon's own lists"),
        ("+", counts.lent, "lent", "in custody of clients"),
        (
            "+",
            counts.isolated,
            "isolated",
            "free, in isolated pageblocks or quarantined",
        ),
        ("=", counts.managed, "managed", "given to the buddy"),
        ("+", counts.reserved, "reserved", "present, never given out"),
        ("=", counts.present, "present", "in sections"),
    ];
    let pages = |count: u64| count.to_string();
    let size = |count: u64| out.size(count.saturating_mul(page_bytes));
    let width = rows
        .iter()
        .map(|row| pages(row.1).len())
        .fold("pages".len(), usize::max);
    let size_width = rows
        .iter()
        .map(|row| size(row.1).len())
        .fold("size".len(), usize::max);

    let mut text = format!("  {:>width$}  {:>size_width$}\n", "pages", "size");
    for (sign, count, name, about) in rows {
        if sign == "=" {
            text += &format!("  {}\n", "-".repeat(width));
        }
        let (pages, size) = (pages(count), size(count));
        text += &format!("{sign} {pages:>width$}  {size:>size_width$}  {name:<8}  {about}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> PageCounts {
        PageCounts {
            spanned: 65536,
            present: 65536,
            reserved: 512,
            managed: 65024,
            free: 63000,
            pcp: 63,
            lent: 1961,
            isolated: 0,
        }
    }

    #[test]
    fn the_sum_reads_from_top_to_bottom() {
        assert_eq!(
            text(&counts(), 4096, &Output::plain()),
            "  pages      size\n\
             \x20 63000  246.0MiB  free      on the buddy's lists\n\
             +    63    252KiB  pcp       in the daemon's own lists\n\
             +  1961    7.6MiB  lent      in custody of clients\n\
             +     0         0  isolated  free, in isolated pageblocks or quarantined\n\
             \x20 -----\n\
             = 65024    254MiB  managed   given to the buddy\n\
             +   512      2MiB  reserved  present, never given out\n\
             \x20 -----\n\
             = 65536    256MiB  present   in sections\n"
        );
    }

    #[test]
    fn a_sum_that_is_off_by_one_page_does_not_add_up() {
        assert!(adds_up(&counts()));
        assert!(!adds_up(&PageCounts {
            free: 62999,
            ..counts()
        }));
        assert!(!adds_up(&PageCounts {
            reserved: 511,
            ..counts()
        }));
        assert!(!adds_up(&PageCounts {
            free: u64::MAX,
            ..counts()
        }));
    }
}
