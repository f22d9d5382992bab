//! A replay as pictures: our allocator's lines beside the kernel's, over the events of the trace;
//! what a log brings and takes, over its lines.

use super::log::ReplayedLog;
use super::sides::Scatter;
use super::trace::{Moment, Replayed};
use crate::plot::lines::{self, Line};
use crate::plot::{Picture, PlotError};

const EVENTS: &str = "events of the trace";

#[expect(clippy::cast_precision_loss, reason = "a point of a picture")]
fn point(x: u64, y: u64) -> (u64, f64) {
    (x, y as f64)
}

fn line(trace: &Replayed, name: &str, value: impl Fn(&Moment) -> u64) -> Line {
    let moments = trace.moments.iter();
    Line {
        name: name.to_owned(),
        points: moments
            .map(|moment| point(moment.nr_events, value(moment)))
            .collect(),
    }
}

/// A number of both sides.
fn both(trace: &Replayed, what: &str, value: impl Fn(&Scatter) -> u64) -> [Line; 2] {
    [
        line(trace, &format!("{what}ours"), |moment| value(&moment.ours)),
        line(trace, &format!("{what}the kernel's"), |moment| {
            value(&moment.kernel)
        }),
    ]
}

fn by_order(trace: &Replayed, of: impl Fn(&Moment) -> &Scatter) -> Vec<Line> {
    let nr_orders = trace.geometry.nr_orders();
    let blocks = |moment: &Moment, order: usize| of(moment).free_blocks.get(order).copied();
    (0..nr_orders)
        .map(|order| {
            line(trace, &format!("order {order}"), |moment| {
                blocks(moment, order).unwrap_or(0)
            })
        })
        .collect()
}

fn picture(
    name: &str,
    title: &str,
    along: &str,
    unit: &str,
    lines: &[Line],
) -> Result<Picture, PlotError> {
    Ok(Picture {
        name: name.to_owned(),
        title: title.to_owned(),
        svg: lines::draw(title, along, unit, lines).map_err(PlotError::Draw)?,
    })
}

/// The pictures of a trace.
///
/// # Errors
/// One cannot be drawn.
pub fn of_trace(trace: &Replayed) -> Result<Vec<Picture>, PlotError> {
    let in_use = [line(trace, "in use", |moment| moment.held)];
    let pageblocks = [
        both(trace, "stuck, ", |side| side.stuck_pageblocks),
        both(trace, "of several kinds, ", |side| side.mixed_pageblocks),
    ];
    Ok(vec![
        picture("in-use", "Pages in use", EVENTS, "pages", &in_use)?,
        picture(
            "free-blocks-ours",
            "Free blocks by order, ours",
            EVENTS,
            "blocks",
            &by_order(trace, |moment| &moment.ours),
        )?,
        picture(
            "free-blocks-kernel",
            "Free blocks by order, the kernel's",
            EVENTS,
            "blocks",
            &by_order(trace, |moment| &moment.kernel),
        )?,
        picture(
            "unusable",
            lines::UNUSABLE_TITLE,
            EVENTS,
            "thousandths of the free pages",
            &both(trace, "", |side| u64::from(side.unusable)),
        )?,
        picture(
            "pageblocks",
            "Pageblocks that could not go, and of several kinds",
            EVENTS,
            "pageblocks",
            &pageblocks.concat(),
        )?,
    ])
}

/// The picture of a log.
///
/// # Errors
/// It cannot be drawn.
pub fn of_log(log: &ReplayedLog) -> Result<Picture, PlotError> {
    let pages_per_mib = ((1 << 20) / log.geometry.page_bytes()).max(1);
    let managed = log.managed_after.iter();
    let managed = Line {
        name: "managed".to_owned(),
        points: managed
            .map(|&(line, pages)| point(line, pages / pages_per_mib))
            .collect(),
    };
    picture(
        "managed",
        "Memory online as the log goes on",
        "lines of the log",
        "MiB",
        &[managed],
    )
}
