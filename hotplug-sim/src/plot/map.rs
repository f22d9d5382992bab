//! The map of a zone's pageblocks: a cell for each, or for as many as share one.
//!
//! The colour is the type that most of them have, its strength how full they are; what is not
//! there stays blank, what is there and not managed is grey.

use hugepool_mm::{Migratetype, Pfn};
use plotters::prelude::*;

use crate::host::build::HostZone;

/// Cells across, and the most down.
const COLUMNS: u64 = 128;
const MOST_ROWS: u64 = 48;
/// The side of a cell, in pixels.
const SIDE: i32 = 7;
const TOP: i32 = 46;
const LEFT: i32 = 10;

/// What shares a cell.
#[derive(Clone, Copy, Default)]
struct Cell {
    pageblocks: [u64; 3],
    isolated: u64,
    free: u64,
    there: u64,
}

/// The colour of a type: for people who cannot tell red from green too.
fn colour(mt: Migratetype) -> RGBColor {
    match mt {
        Migratetype::Unmovable => RGBColor(213, 94, 0),
        Migratetype::Movable => RGBColor(0, 114, 178),
        Migratetype::Reclaimable => RGBColor(0, 158, 115),
    }
}

/// Draws a zone.
///
/// # Errors
/// What the drawing library says.
pub fn draw(host: &HostZone, name: &str) -> Result<String, String> {
    let geometry = host.zone.geometry();
    let pageblock = u64::from(geometry.pageblock_pages());
    let span = host.zone.span();
    let nr = span.nr_pages() / pageblock;
    let per_cell = nr.div_ceil(COLUMNS * MOST_ROWS).max(1);
    let nr_cells = nr.div_ceil(per_cell);
    let rows = i32::try_from(nr_cells.div_ceil(COLUMNS)).map_err(|error| error.to_string())?;
    let columns = i32::try_from(COLUMNS).map_err(|error| error.to_string())?;
    let width = u32::try_from(2 * LEFT + columns * SIDE).map_err(|error| error.to_string())?;
    let height = u32::try_from(TOP + rows * SIDE + 10).map_err(|error| error.to_string())?;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let label = ("sans-serif", 13).into_font();
        let unit = (per_cell * pageblock * geometry.page_bytes()) >> 20;
        let title =
            format!("{name}: a cell is {unit} MiB; the stronger, the fuller; blank is not there");
        root.draw(&Text::new(title, (LEFT, 4), label.clone()))
            .map_err(|error| error.to_string())?;
        for (at, mt) in Migratetype::ALL.into_iter().enumerate() {
            let x = LEFT + 120 * i32::try_from(at).map_err(|error| error.to_string())?;
            root.draw(&Rectangle::new(
                [(x, 24), (x + 11, 35)],
                colour(mt).filled(),
            ))
            .map_err(|error| error.to_string())?;
            root.draw(&Text::new(mt.name(), (x + 16, 22), label.clone()))
                .map_err(|error| error.to_string())?;
        }
        for at in 0..nr_cells {
            let first = span.start + at * per_cell * pageblock;
            let cell = look(host, first, per_cell.min(nr - at * per_cell), pageblock);
            let Some(style) = style(cell, pageblock) else {
                continue;
            };
            let x = LEFT + i32::try_from(at % COLUMNS).map_err(|error| error.to_string())? * SIDE;
            let y = TOP + i32::try_from(at / COLUMNS).map_err(|error| error.to_string())? * SIDE;
            root.draw(&Rectangle::new(
                [(x, y), (x + SIDE - 1, y + SIDE - 1)],
                style.filled(),
            ))
            .map_err(|error| error.to_string())?;
        }
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(svg)
}

fn look(host: &HostZone, first: u64, nr: u64, pageblock: u64) -> Cell {
    let mut cell = Cell::default();
    for at in 0..nr {
        let Ok(pfn) = u32::try_from(first + at * pageblock) else {
            continue;
        };
        let Some(info) = host.zone.pageblock(Pfn::new(pfn)) else {
            continue;
        };
        cell.there += 1;
        cell.free += u64::from(info.nr_free);
        cell.isolated += u64::from(info.isolated);
        cell.pageblocks[info.migratetype.index()] += 1;
    }
    cell
}

fn style(cell: Cell, pageblock: u64) -> Option<RGBAColor> {
    if cell.there == 0 {
        return None;
    }
    if cell.isolated * 2 > cell.there {
        return Some(RGBColor(120, 120, 120).mix(0.8));
    }
    let most = Migratetype::ALL
        .into_iter()
        .max_by_key(|mt| cell.pageblocks[mt.index()])?;
    #[expect(clippy::cast_precision_loss, reason = "a shade")]
    let full = 1.0 - cell.free as f64 / (cell.there * pageblock) as f64;
    Some(colour(most).mix(0.15 + 0.85 * full))
}
