//! What it costs to ask of each pageblock whether it is whole, by the answers remembered.

use hugepool_mm::{ContiguityMode, Pfn};

use super::{Answer, row};
use crate::host::Host;
use crate::host::build::HostZone;

/// A walk and a remembered answer, in tenths of a nanosecond (Linux 7.3, native).
const WALK_TENTHS: u64 = 48;
const CACHED_TENTHS: u64 = 22;

/// Which zones are contiguous, and what two scans of each cost with each cache.
pub fn contiguity(mut host: Host) -> Answer {
    let mut answer = Answer::default();
    let names = host.zone_names();
    let (mut whole, mut built) = (Vec::new(), 0);
    for (name, zone) in names.iter().zip(&mut host.zones) {
        if zone.zone.span().is_empty() {
            continue;
        }
        built += 1;
        let is_contiguous = zone.zone.ask_contiguity();
        if is_contiguous {
            whole.push(name.clone());
        }
        for (mode, word) in [
            (ContiguityMode::None, "none"),
            (ContiguityMode::Zone, "zone"),
            (ContiguityMode::Pageblock, "pageblock"),
            (ContiguityMode::Both, "both"),
        ] {
            let (asked, walks) = scan_twice(zone, mode);
            let tenths = walks * WALK_TENTHS + (asked - walks) * CACHED_TENTHS;
            answer.rows.push(row([
                ("zone", name.clone().into()),
                ("contiguous", is_contiguous.into()),
                ("cache", word.into()),
                ("questions", asked.into()),
                ("walks", walks.into()),
                ("microseconds", (tenths / 10_000).into()),
            ]));
        }
    }
    answer.number("zones", built);
    answer.number("contiguous", whole.len());
    answer.because = format!(
        "contiguous: {}; each zone's pageblocks are asked twice, as two compactions would, with a walk counted as \
         {}.{} ns and a remembered answer as {}.{} ns; a zone with one hole has no answer of its own, its pageblocks have",
        if whole.is_empty() {
            "none".to_owned()
        } else {
            whole.join(", ")
        },
        WALK_TENTHS / 10,
        WALK_TENTHS % 10,
        CACHED_TENTHS / 10,
        CACHED_TENTHS % 10
    );
    answer
}

/// Asks every pageblock of the span twice: how many questions, and how many walks they took.
fn scan_twice(host: &mut HostZone, mode: ContiguityMode) -> (u64, u64) {
    let zone = &mut host.zone;
    zone.invalidate_contiguity();
    zone.ask_contiguity();
    zone.set_contiguity_mode(mode);
    let before = zone.contiguity().walks;
    let (span, step) = (zone.span(), u64::from(zone.geometry().pageblock_pages()));
    let mut asked = 0;
    for _ in 0..2 {
        let mut at = span.start;
        while let Some(pfn) = u32::try_from(at).ok().filter(|_| at < span.end) {
            zone.pageblock_pfn_to_page(Pfn::new(pfn));
            asked += 1;
            at += step;
        }
    }
    (asked, zone.contiguity().walks - before)
}
