//! Pictures of a run, as SVG: [`map`] of the pageblocks, [`lines`] over time.

use std::path::Path;

use crate::scenario::runner::Runner;

pub mod lines;
pub mod map;

/// A picture: what it is called, and its SVG.
#[derive(Clone, Debug)]
pub struct Picture {
    /// A name for a file, without its ending.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The picture.
    pub svg: String,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// A file cannot be written.
    #[error("{0}")]
    Write(#[from] std::io::Error),
    /// It cannot be drawn.
    #[error("cannot draw: {0}")]
    Draw(String),
}

/// Every picture of a run.
///
/// # Errors
/// One cannot be drawn.
pub fn pictures(runner: &Runner) -> Result<Vec<Picture>, PlotError> {
    let mut pictures = Vec::new();
    for (at, zone) in runner.host.zones.iter().enumerate() {
        if zone.zone.span().is_empty() {
            continue;
        }
        let name = runner.host.zone_name(at);
        pictures.push(Picture {
            svg: map::draw(zone, &name).map_err(PlotError::Draw)?,
            name: format!("map-{name}"),
            title: format!("Pageblocks of zone {name}"),
        });
    }
    for (name, title, svg) in [
        (
            "free-blocks",
            "Free blocks by order",
            lines::free_blocks(&runner.samples),
        ),
        (
            "unusable",
            lines::UNUSABLE_TITLE,
            lines::unusable(&runner.samples),
        ),
        (
            "offline",
            "Memory blocks online, and pages moved",
            lines::offline(&runner.samples),
        ),
    ] {
        pictures.push(Picture {
            name: name.to_owned(),
            title: title.to_owned(),
            svg: svg.map_err(PlotError::Draw)?,
        });
    }
    Ok(pictures)
}

/// Writes every picture of a run into a folder, which is made if need be.
///
/// # Errors
/// One cannot be drawn or written.
pub fn draw(folder: &Path, runner: &Runner) -> Result<(), PlotError> {
    write(folder, pictures(runner)?)
}

/// Writes pictures into a folder, which is made if need be.
///
/// # Errors
/// One cannot be written.
pub fn write(folder: &Path, pictures: Vec<Picture>) -> Result<(), PlotError> {
    std::fs::create_dir_all(folder)?;
    for picture in pictures {
        std::fs::write(folder.join(format!("{}.svg", picture.name)), picture.svg)?;
    }
    Ok(())
}
