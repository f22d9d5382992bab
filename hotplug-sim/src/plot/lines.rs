//! Numbers of a run over its units: free blocks, unusable space, memory blocks and moves.
//!
//! The *unusable free space index* is Mel Gorman's and Andy Whitcroft's (*The What, The Why and the
//! Where To of Anti-Fragmentation*, Ottawa Linux Symposium 2006): of the free pages, the part that
//! lies in blocks too small for a request of the order in question, `(F - sum over j >= order of
//! 2^j * k_j) / F`, here in thousandths for a pageblock. 0 is no fragmentation at all, 1000 that no
//! such block is free. The kernel shows it as `/sys/kernel/debug/extfrag/unusable_index`.

use plotters::coord::types::{RangedCoordf64, RangedCoordu64};
use plotters::prelude::*;

use crate::scenario::samples::{Sample, Samples};

const SIZE: (u32, u32) = (916, 360);

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordu64, RangedCoordf64>>;

/// What the index of unusable free space is called in pictures.
pub const UNUSABLE_TITLE: &str = "Unusable free space index for a pageblock (Gorman and Whitcroft)";

/// A line: its name and points.
#[derive(Clone, Debug)]
pub struct Line {
    /// As in the legend.
    pub name: String,
    /// What along the x axis, and how much.
    pub points: Vec<(u64, f64)>,
}

/// What along the x axis of a run.
const UNITS: &str = "units of the run";

fn line(samples: &Samples, name: String, value: impl Fn(&Sample) -> u64) -> Line {
    let point = |sample: &Sample| {
        #[expect(clippy::cast_precision_loss, reason = "a point of a picture")]
        let y = value(sample) as f64;
        (sample.unit, y)
    };
    Line {
        name,
        points: samples.taken.iter().map(point).collect(),
    }
}

/// Free blocks by order, over all zones.
///
/// # Errors
/// What the drawing library says.
pub fn free_blocks(samples: &Samples) -> Result<String, String> {
    let orders = samples
        .taken
        .first()
        .map_or(0, |sample| sample.free_blocks.len());
    let lines: Vec<Line> = (0..orders)
        .map(|order| {
            line(samples, format!("order {order}"), |sample| {
                sample.free_blocks[order]
            })
        })
        .collect();
    draw("Free blocks by order", UNITS, "blocks", &lines)
}

/// Of the free space, the part that is no use to a request of a pageblock: Gorman's and Whitcroft's
/// index.
///
/// # Errors
/// What the drawing library says.
pub fn unusable(samples: &Samples) -> Result<String, String> {
    let lines = [line(samples, "thousandths".to_owned(), |sample| {
        u64::from(sample.unusable)
    })];
    draw(
        UNUSABLE_TITLE,
        UNITS,
        "thousandths of the free pages",
        &lines,
    )
}

/// How offline gets on: memory blocks online, and pages moved, each in parts of its most.
///
/// # Errors
/// What the drawing library says.
pub fn offline(samples: &Samples) -> Result<String, String> {
    let most =
        |value: &dyn Fn(&Sample) -> u64| samples.taken.iter().map(value).max().unwrap_or(0).max(1);
    let online = |sample: &Sample| sample.online as u64;
    let (most_online, most_moved) = (most(&online), most(&|sample| sample.moved));
    let lines = [
        line(samples, format!("online, of {most_online}"), |sample| {
            online(sample) * 1000 / most_online
        }),
        line(samples, format!("moved, of {most_moved} pages"), |sample| {
            sample.moved * 1000 / most_moved
        }),
    ];
    draw(
        "Memory blocks online, and pages moved",
        UNITS,
        "thousandths of the most",
        &lines,
    )
}

/// Lines over what `along` says, in the `unit` of the y axis.
///
/// # Errors
/// What the drawing library says.
pub fn draw(title: &str, along: &str, unit: &str, lines: &[Line]) -> Result<String, String> {
    let last = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|point| point.0)
        .max()
        .unwrap_or(0);
    let most = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|point| point.1)
        .fold(1.0, f64::max);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let mut chart: Chart<'_, '_> = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(70)
            .build_cartesian_2d(0..last.max(1), 0.0..most * 1.05)
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .x_desc(along)
            .y_desc(unit)
            .light_line_style(WHITE)
            .draw()
            .map_err(|error| error.to_string())?;
        for (at, line) in lines.iter().enumerate() {
            let colour = Palette99::pick(at).to_rgba();
            chart
                .draw_series(LineSeries::new(
                    line.points.iter().copied(),
                    colour.stroke_width(2),
                ))
                .map_err(|error| error.to_string())?
                .label(line.name.clone())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .position(SeriesLabelPosition::UpperRight)
            .draw()
            .map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(svg)
}
