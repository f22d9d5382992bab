//! What could go: block by block, and together.

use serde_json::Value;

use super::{Answer, Row, row};
use crate::host::Host;
use crate::host::cost;
use crate::host::hotplug::Refused;
use crate::progress::Progress;

/// What is known of one block: pages to move, or what stands in the way.
type Verdict = Result<u64, Refused>;

/// Which blocks could go, each by itself.
pub fn removable(host: &Host) -> Answer {
    let online: Vec<(u64, Verdict)> = host
        .sections
        .iter()
        .filter(|(_, section)| !section.zones.is_empty())
        .map(|(id, _)| (*id, host.could_go(*id)))
        .collect();
    let mut answer = Answer::default();
    let can = online.iter().filter(|(_, verdict)| verdict.is_ok()).count();
    let moves: u64 = online
        .iter()
        .filter_map(|(_, verdict)| verdict.as_ref().ok())
        .sum();
    let offline = host.sections.len() - online.len();
    answer.number("block_bytes", host.geometry.section_bytes());
    answer.number("blocks_online", online.len());
    answer.number("blocks_offline", offline);
    answer.number("removable", can);
    answer.number("pages_to_move", moves);
    let mut ways: Vec<(String, u64)> = Vec::new();
    for refused in online
        .iter()
        .filter_map(|(_, verdict)| verdict.as_ref().err())
    {
        let way = match &refused.holder {
            Some(holder) => format!("{} ({holder})", refused.word),
            None => refused.word.to_owned(),
        };
        match ways.iter_mut().find(|(known, _)| *known == way) {
            Some((_, nr)) => *nr += 1,
            None => ways.push((way, 1)),
        }
    }
    answer.rows = runs(host, &online);
    let ways: Vec<String> = ways
        .iter()
        .map(|(way, nr)| format!("{nr} by {way}"))
        .collect();
    let held_up = if ways.is_empty() {
        "none".to_owned()
    } else {
        ways.join(", ")
    };
    let known = host.removable_as_told();
    let told = if known.is_empty() {
        String::new()
    } else {
        let alike = online
            .iter()
            .filter(|(id, verdict)| known.get(id) == Some(&verdict.is_ok()))
            .count();
        format!(
            "; the source itself says so of {alike} of {} blocks",
            known.len()
        )
    };
    answer.because = format!(
        "a block can go if every page in it that is in use may be moved, and {moves} pages would have to be; \
         held up: {held_up}{told}"
    );
    answer
}

/// Neighbouring blocks with the same verdict are one row.
fn runs(host: &Host, online: &[(u64, Verdict)]) -> Vec<Row> {
    struct Run {
        first: u64,
        last: u64,
        zone: String,
        verdict: String,
        holder: Option<String>,
        pages: u64,
    }
    let mut runs: Vec<Run> = Vec::new();
    for (id, verdict) in online {
        let zones: Vec<String> = host.sections[id]
            .zones
            .iter()
            .map(|at| host.zone_name(*at))
            .collect();
        let zone = zones.join("/");
        let (word, holder, pages) = match verdict {
            Ok(pages) => ("removable", None, *pages),
            Err(refused) => (refused.word, refused.holder.clone(), 0),
        };
        match runs.last_mut() {
            Some(run)
                if run.last + 1 == *id
                    && run.zone == zone
                    && run.verdict == word
                    && run.holder == holder =>
            {
                run.last = *id;
                run.pages += pages;
            }
            _ => runs.push(Run {
                first: *id,
                last: *id,
                zone,
                verdict: word.to_owned(),
                holder,
                pages,
            }),
        }
    }
    runs.into_iter()
        .map(|run| {
            row([
                ("first_block", run.first.into()),
                ("last_block", run.last.into()),
                ("zone", run.zone.into()),
                ("verdict", run.verdict.into()),
                ("holder", run.holder.map_or(Value::Null, Value::from)),
                ("pages_to_move", run.pages.into()),
            ])
        })
        .collect()
}

/// How far the machine shrinks, from its highest block down.
pub fn shrink(mut host: Host, to: u64) -> Answer {
    let block = host.geometry.section_bytes();
    let online: Vec<u64> = host
        .sections
        .iter()
        .rev()
        .filter(|(_, section)| !section.zones.is_empty())
        .map(|(id, _)| *id)
        .collect();
    let before = online.len() as u64 * block;
    let began = host.clock_ns;
    let (mut left, mut gone, mut moved) = (before, 0_u64, 0);
    let mut refusals: Vec<(&'static str, u64)> = Vec::new();
    let mut progress = Progress::new(before.saturating_sub(to));
    for id in online {
        if left <= to {
            break;
        }
        progress.set(before - left);
        match host.offline(id) {
            Ok(pages) => {
                moved += pages;
                left -= block;
                gone += 1;
            }
            Err(refused) => {
                moved += refused.nr_moved;
                match refusals.iter_mut().find(|(word, _)| *word == refused.word) {
                    Some((_, nr)) => *nr += 1,
                    None => refusals.push((refused.word, 1)),
                }
            }
        }
    }
    let mut answer = Answer::default();
    answer.number("online_bytes_before", before);
    answer.number("wanted_bytes", to);
    answer.number("reached_bytes", left);
    answer.number("is_reached", left <= to);
    answer.number("blocks_gone", gone);
    answer.number(
        "blocks_refused",
        refusals.iter().map(|(_, nr)| nr).sum::<u64>(),
    );
    answer.number("pages_moved", moved);
    answer.number("milliseconds", (host.clock_ns - began) / 1_000_000);
    answer.rows = refusals
        .iter()
        .map(|(word, nr)| {
            row([
                ("refused_because", (*word).into()),
                ("blocks", (*nr).into()),
            ])
        })
        .collect();
    let each = cost::move_pages(1, host.geometry.page_bytes());
    answer.because = format!(
        "blocks were taken offline from the highest down, {gone} of them; moving a page is counted as {each} ns, \
         isolating a pageblock as {} ns twice",
        cost::ISOLATE_PAGEBLOCK_NS
    );
    answer
}
