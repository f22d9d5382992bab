//! `hugepoolctl compact`: pages move so that larger blocks become free.

use hugepool_proto::v1::{CompactRequest, CompactResponse};
use serde_json::{Value, json};

use crate::{
    connect::Admin,
    outcome::{Failure, Outcome},
    output::Output,
    progress,
    status::counted,
};

/// Has it done, and says what it came to.
pub async fn run(
    request: CompactRequest,
    admin: &mut Admin,
    out: &Output,
) -> Result<Outcome, Failure> {
    let is_detached = request.detach;
    let mut caller = admin.clone();
    let done = progress::follow(admin, "compact", caller.compact(request)).await?;
    out.either(|| json(&done), || text(&done))?;
    Ok(if is_detached || done.ended == "reached" {
        Outcome::Done
    } else {
        Outcome::Refused
    })
}

/// As JSON, also for an operation.
pub fn json(done: &CompactResponse) -> Value {
    json!({
        "operation_id": done.operation_id,
        "ended": done.ended,
        "migrate_scanned_pages": done.nr_migrate_scanned,
        "free_scanned_pages": done.nr_free_scanned,
        "migrated_pages": done.nr_migrated,
        "failed_pages": done.nr_failed,
        "nr_blocks_made": done.nr_blocks_made,
        "nr_contiguity_checks": done.nr_contiguity_checks,
        "seconds": done.seconds,
    })
}

/// For people.
pub fn text(done: &CompactResponse) -> String {
    let ended = match done.ended.as_str() {
        "" => "running",
        "reached" => "done",
        "not-reached" => "in vain: nothing is left that could be moved",
        "deferred" => "not begun: it failed not long ago; mode manual does it all the same",
        "not-fragmented" => "not begun: memory lacks, it is not scattered",
        "too-few-free" => "stopped: what is free is kept back",
        other => other,
    };
    format!(
        "operation {}: {ended}\n\
         moved {}, {} could not be, {} made\n\
         scanned {} to move and {} to move to, {} pageblock checks, {:.3} s\n",
        done.operation_id,
        counted(done.nr_migrated, "page"),
        done.nr_failed,
        counted(done.nr_blocks_made, "block"),
        counted(done.nr_migrate_scanned, "page"),
        done.nr_free_scanned,
        done.nr_contiguity_checks,
        done.seconds,
    )
}
