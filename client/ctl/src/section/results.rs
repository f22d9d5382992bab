//! How a verb on sections ended: a line for each, and one exit status for all.

use hugepool_proto::v1::{SectionResult, SectionsResponse};
use serde_json::{Value, json};

use super::holder;
use crate::{
    outcome::{Failure, Outcome},
    output::Output,
    status::counted,
};

/// Prints the answer of a verb on sections.
pub fn print(answer: &SectionsResponse, out: &Output) -> Result<Outcome, Failure> {
    out.either(|| json(answer), || text(answer))?;
    Ok(outcome(&answer.results))
}

/// All, some or none.
pub fn outcome(results: &[SectionResult]) -> Outcome {
    match results.iter().filter(|result| result.ok).count() {
        0 => Outcome::Refused,
        count if count == results.len() => Outcome::Done,
        _ => Outcome::Partly,
    }
}

/// The results as JSON.
pub fn json_list(results: &[SectionResult]) -> Vec<Value> {
    let one = |result: &SectionResult| {
        json!({
            "section_id": result.section_id,
            "ok": result.ok,
            "state": result.state,
            "reason": if result.reason.is_empty() { Value::Null } else { json!(result.reason) },
            "holders": result.holders.iter().map(holder::json).collect::<Vec<_>>(),
            "onlined": result.onlined.as_ref().map(|onlined| json!({
                "nr_pageblocks": onlined.nr_pageblocks,
                "onlined_pages": onlined.nr_pages,
                "blocks_by_order": onlined.blocks_by_order,
            })),
            "moved_pages": result.moved,
            "evicted_pages": result.evicted,
            "took_us": result.took_us,
        })
    };
    results.iter().map(one).collect()
}

fn json(answer: &SectionsResponse) -> Value {
    json!({
        "operation_id": answer.operation_id,
        "dry_run": answer.dry_run,
        "results": json_list(&answer.results),
    })
}

/// One line for each section, with the holders below a refusal.
pub fn text(answer: &SectionsResponse) -> String {
    let mut text = String::new();
    for result in &answer.results {
        text += &line(result, answer.dry_run);
        for each in &result.holders {
            text += &format!("  {}\n", holder::text(each));
        }
    }
    let nr_ok = answer.results.iter().filter(|result| result.ok).count();
    if answer.results.is_empty() {
        text += "no section was done\n";
    } else if answer.results.len() > 1 || nr_ok == 0 {
        let could = if answer.dry_run {
            "could be done"
        } else {
            "done"
        };
        text += &format!("{nr_ok} of {} {could}\n", answer.results.len());
    }
    text
}

fn line(result: &SectionResult, dry_run: bool) -> String {
    let id = result.section_id;
    if !result.ok {
        let reason = if result.reason.is_empty() {
            "refused"
        } else {
            &result.reason
        };
        return format!("section {id}: stays {}: {reason}\n", result.state);
    }
    if dry_run {
        return format!("section {id}: could be done, is {}\n", result.state);
    }
    let onlined = result.onlined.as_ref().map(|onlined| {
        format!(
            ", {} in {}",
            counted(onlined.nr_pages, "page"),
            counted(onlined.nr_pageblocks, "pageblock")
        )
    });
    let gone = [(result.moved, "moved"), (result.evicted, "taken")]
        .into_iter()
        .filter(|(pages, _)| *pages > 0)
        .map(|(pages, how)| format!(", {} {how}", counted(pages, "page")))
        .collect::<String>();
    format!(
        "section {id}: {}{}{gone}, {} us\n",
        result.state,
        onlined.unwrap_or_default(),
        result.took_us
    )
}

#[cfg(test)]
mod tests {
    use hugepool_proto::v1::{Holder, Onlined};

    use super::*;

    fn done(id: u32) -> SectionResult {
        SectionResult {
            section_id: id,
            ok: true,
            state: "online".into(),
            onlined: Some(Onlined {
                nr_pageblocks: 64,
                nr_pages: 32768,
                blocks_by_order: vec![],
            }),
            took_us: 412,
            ..SectionResult::default()
        }
    }

    fn refused(id: u32) -> SectionResult {
        SectionResult {
            section_id: id,
            state: "online".into(),
            reason: "17 pages are held".into(),
            holders: vec![Holder {
                slot: 3,
                nr_pages: 17,
                ..Holder::default()
            }],
            ..SectionResult::default()
        }
    }

    #[test]
    fn the_exit_status_says_all_some_or_none() {
        assert_eq!(outcome(&[done(1), done(2)]), Outcome::Done);
        assert_eq!(outcome(&[done(1), refused(2)]), Outcome::Partly);
        assert_eq!(outcome(&[refused(2)]), Outcome::Refused);
        assert_eq!(outcome(&[]), Outcome::Refused);
    }

    #[test]
    fn a_refusal_stands_above_its_holders() {
        let answer = SectionsResponse {
            operation_id: 1,
            results: vec![done(1), refused(2)],
            dry_run: false,
        };
        assert_eq!(
            text(&answer),
            "section 1: online, 32768 pages in 64 pageblocks, 412 us\n\
             section 2: stays online: 17 pages are held\n\
             \x20 client 3 (pid 0, unnamed) holds 17 pages, any, for 0ms, the first at pfn 0\n\
             1 of 2 done\n"
        );
    }

    #[test]
    fn a_dry_run_says_could() {
        let answer = SectionsResponse {
            operation_id: 0,
            results: vec![done(1)],
            dry_run: true,
        };
        assert_eq!(text(&answer), "section 1: could be done, is online\n");
    }
}
