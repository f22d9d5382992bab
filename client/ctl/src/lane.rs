//! `hugepoolctl lane drain` and `pcp set`: the caches between the zones and the clients.

use hugepool_proto::v1::{DrainLanesRequest, SetPcpRequest};
use serde_json::json;

use crate::{
    cli::{LaneVerb, PcpVerb},
    connect::Admin,
    outcome::{Failure, Outcome},
    output::Output,
    section::holder,
    size,
    status::counted,
};

/// Takes unused pages back. Partly done when some stayed with an operation in flight.
pub async fn run_lane(verb: LaneVerb, admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    let LaneVerb::Drain { client, timeout } = verb;
    let request = DrainLanesRequest {
        slot: client,
        timeout_ms: size::wire_millis(timeout),
    };
    let done = admin.drain_lanes(request).await?.into_inner();
    let json = || {
        json!({
            "drained_pages": done.nr_pages,
            "held_in_flight_pages": done.nr_held_in_flight,
            "holders": done.holders.iter().map(holder::json).collect::<Vec<_>>(),
        })
    };
    let text = || {
        let mut text = format!("took {} back", counted(done.nr_pages, "page"));
        if done.nr_held_in_flight > 0 {
            text += &format!(
                ", left {} in flight",
                counted(done.nr_held_in_flight, "page")
            );
        }
        text.push('\n');
        done.holders
            .iter()
            .for_each(|each| text += &format!("  {}\n", holder::text(each)));
        text
    };
    out.either(json, text)?;
    Ok(match (done.nr_pages, done.nr_held_in_flight) {
        (_, 0) => Outcome::Done,
        (0, _) => Outcome::Refused,
        _ => Outcome::Partly,
    })
}

/// Sets batch and high.
pub async fn run_pcp(verb: PcpVerb, admin: &mut Admin, out: &Output) -> Result<Outcome, Failure> {
    let PcpVerb::Set {
        client,
        batch,
        high,
    } = verb;
    let request = SetPcpRequest {
        slot: client,
        batch,
        high,
    };
    let done = admin.set_pcp(request).await?.into_inner();
    let json = json!({ "nr_clients": done.nr_clients, "batch_pages": done.batch, "high_pages": done.high });
    let value = |pages: u32| {
        if pages == 0 {
            "auto".to_owned()
        } else {
            pages.to_string()
        }
    };
    let text = format!(
        "batch {}, high {} for {}\n",
        value(done.batch),
        value(done.high),
        counted(done.nr_clients.into(), "client")
    );
    out.either(|| json, || text)?;
    Ok(Outcome::Done)
}
