//! `hugepoolctl verify`: the daemon checks its whole structure and says what it found.

use hugepool_proto::v1::VerifyRequest;
use serde_json::json;

use crate::{
    connect::Admin,
    outcome::{Failure, Outcome},
    output::{Output, equation},
    status,
};

/// Asks for the check. Its equations are added up here too: a report is a claim like any other.
pub async fn run(admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    let verdict = admin.verify(VerifyRequest {}).await?.into_inner();
    let counts = verdict.pages.unwrap_or_default();
    let mut findings = verdict.findings.clone();
    if !equation::adds_up(&counts) {
        findings.push("the counts of pages do not add up".into());
    }
    let ok = verdict.ok && findings.is_empty();

    let page_bytes = status::page_bytes(admin).await?;
    let json = || {
        json!({
            "ok": ok,
            "findings": findings,
            "pages": verdict.pages.as_ref().map(equation::json),
            "checked_pages": verdict.nr_checked_pages,
            "took_us": verdict.took_us,
        })
    };
    let text = || {
        let pages = verdict.pages.as_ref();
        let mut text =
            pages.map_or_else(String::new, |pages| equation::text(pages, page_bytes, out));
        text += &format!(
            "\nchecked {} pages in {} us: ",
            verdict.nr_checked_pages, verdict.took_us
        );
        text += if ok { "all holds\n" } else { "broken\n" };
        for finding in &findings {
            text += &format!("  {finding}\n");
        }
        text
    };
    out.either(json, text)?;
    Ok(if ok { Outcome::Done } else { Outcome::Broken })
}
