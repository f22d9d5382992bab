//! The kernel's own files, read here and printed again, must come out byte for byte.

use hugepool_proto::v1::{PageCounts, Pageset, TypeRow, Watermarks};

use super::*;

/// Lines of a Linux 6.1 machine.
const BUDDYINFO: &str = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 
Node 0, zone   Normal  10260   5886   4312   2513   1467    645    292    148     89     29    123 
";

fn read_buddyinfo(text: &str) -> Vec<ZoneBuddyInfo> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        ZoneBuddyInfo {
            node: words[1].trim_end_matches(',').parse().unwrap(),
            zone: words[3].into(),
            free_blocks_by_order: words[4..]
                .iter()
                .map(|word| word.parse().unwrap())
                .collect(),
        }
    };
    text.lines().map(line).collect()
}

#[test]
fn buddyinfo_comes_out_as_the_kernel_prints_it() {
    assert_eq!(buddyinfo_text(&read_buddyinfo(BUDDYINFO)), BUDDYINFO);
    let live = std::fs::read_to_string("/proc/buddyinfo").unwrap();
    assert_eq!(buddyinfo_text(&read_buddyinfo(&live)), live);
}

#[test]
fn a_zone_on_any_node_is_printed_under_node_0() {
    let zone = ZoneBuddyInfo {
        node: -1,
        zone: "normal".into(),
        free_blocks_by_order: vec![1, 2],
    };
    assert_eq!(
        buddyinfo_text(&[zone]),
        "Node 0, zone   normal      1      2 \n"
    );
}

const PAGETYPEINFO: &str = "\
Page block order: 9
Pages per block:  512

Free pages count per migrate type at order       0      1      2 
Node    0, zone      DMA, type    Unmovable      0      0      7 
Node    0, zone      DMA, type      Movable      1      0      3 
Node    0, zone   Normal, type    Unmovable    274    364    160 
Node    0, zone   Normal, type      Movable   3949    530 100469 

Number of blocks type     Unmovable      Movable 
Node 0, zone      DMA            1            7 
Node 0, zone   Normal           58         2515 
";

#[test]
fn pagetypeinfo_comes_out_as_the_kernel_prints_it() {
    let row = |migratetype: &str, free: [u64; 3], nr_pageblocks| TypeRow {
        migratetype: migratetype.into(),
        free_blocks_by_order: free.into(),
        nr_pageblocks,
    };
    let zone = |name: &str, types| ZonePageTypeInfo {
        node: 0,
        zone: name.into(),
        types,
    };
    let info = GetPageTypeInfoResponse {
        pageblock_order: 9,
        pages_per_block: 512,
        zones: vec![
            zone(
                "DMA",
                vec![row("Unmovable", [0, 0, 7], 1), row("Movable", [1, 0, 3], 7)],
            ),
            zone(
                "Normal",
                vec![
                    row("Unmovable", [274, 364, 160], 58),
                    row("Movable", [3949, 530, 100_469], 2515),
                ],
            ),
        ],
    };
    assert_eq!(pagetypeinfo_text(&info), PAGETYPEINFO);
}

/// A Linux 6.1 zone with the counters that we do not have taken out.
const ZONEINFO: &str = "\
Node 0, zone   Normal
  pages free     3840
        min      30
        low      37
        high     44
        spanned  4095
        present  3998
        managed  3840
        protection: (0, 3018, 8394)
      nr_free_pages 3840
  pagesets
    cpu: 0
              count: 0
              high:  63
              batch: 1
    cpu: 1
              count: 5
              high:  63
              batch: 1
  start_pfn:           1
";

fn zone() -> ZoneInfo {
    let set = |cpu, count| Pageset {
        cpu,
        count,
        high: 63,
        batch: 1,
    };
    ZoneInfo {
        node: 0,
        zone: "Normal".into(),
        pages: Some(PageCounts {
            free: 3840,
            spanned: 4095,
            present: 3998,
            managed: 3840,
            ..PageCounts::default()
        }),
        watermarks: Some(Watermarks {
            min: 30,
            low: 37,
            high: 44,
        }),
        protection: vec![0, 3018, 8394],
        start_pfn: 1,
        pagesets: vec![set(0, 0), set(1, 5)],
    }
}

#[test]
fn zoneinfo_comes_out_as_the_kernel_prints_it() {
    assert_eq!(zoneinfo_text(&zone()), ZONEINFO);
}

#[test]
fn every_line_of_zoneinfo_is_a_line_that_this_kernel_prints_too() {
    // Numbers and the blanks before them apart: later kernels changed those for the pagesets.
    let shape = |line: &str| {
        let is_number = |c: char| c.is_ascii_digit() || c == ' ';
        line.trim_end_matches(is_number).to_owned()
    };
    let live = std::fs::read_to_string("/proc/zoneinfo").unwrap();
    let known: std::collections::HashSet<String> = live.lines().map(shape).collect();
    for line in zoneinfo_text(&zone())
        .lines()
        .filter(|line| !line.contains("protection"))
    {
        assert!(
            known.contains(&shape(line)),
            "{line:?} is no line of /proc/zoneinfo"
        );
    }
}

#[test]
fn an_empty_zone_ends_after_its_protection() {
    let zone = ZoneInfo {
        node: -1,
        zone: "movable".into(),
        ..ZoneInfo::default()
    };
    assert!(zoneinfo_text(&zone).ends_with("        protection: (0)\n"));
}
