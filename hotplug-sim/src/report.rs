//! `hotplug-sim report`: a run's tables and pictures as one HTML page that needs nothing else.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::plot::{self, PlotError};
use crate::scenario::command::{self, Wanted};
use crate::scenario::file::Scenario;
use crate::scenario::runner::{Runner, Stop};

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:right}\
    td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}\
    .ok{color:#07642c}.bad{color:#a3001b}";

/// `report`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit status: that of the run (0, 1, 3), 2 usage.")]
pub struct ReportArgs {
    /// The machine: saved by `import --save`, or any file that `import` reads.
    machine: Option<PathBuf>,
    /// The scenario; without one the everyday of a machine.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Operations, without a scenario.
    #[arg(long, default_value_t = 100_000)]
    steps: u64,
    /// Where the page is written.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// Runs, and writes the page.
pub fn run(args: &ReportArgs) -> ExitCode {
    let wanted = Wanted {
        machine: args.machine.as_deref(),
        scenario: args.scenario.as_deref(),
        seed: args.seed,
        steps: args.steps,
        until: None,
        trace: false,
        verify_every: 250_000,
        plot: None,
    };
    let usage = |error: String| {
        eprintln!("hotplug-sim: {error}");
        ExitCode::from(2)
    };
    let loaded = match command::load(&wanted) {
        Ok(loaded) => loaded,
        Err(error) => return usage(error),
    };
    let notes = loaded.host.notes.clone();
    let mut runner = Runner::new(loaded.host, loaded.options);
    runner.show_progress(command::nr_units(&loaded.scenario));
    let stopped = runner.run(&loaded.scenario);
    runner.hide_progress();
    let page = match page(&loaded.scenario, &notes, &runner, stopped.as_ref().err()) {
        Ok(page) => page,
        Err(error) => return usage(error.to_string()),
    };
    if let Err(error) = std::fs::write(&args.output, page) {
        return usage(format!("{}: {error}", args.output.display()));
    }
    match stopped {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Broken { .. }) => ExitCode::from(3),
        Err(Stop::Failed { .. }) => ExitCode::from(1),
        Err(stop) => usage(stop.to_string()),
    }
}

/// The page of a run.
///
/// # Errors
/// A picture cannot be drawn.
pub fn page(
    scenario: &Scenario,
    notes: &[String],
    runner: &Runner,
    stopped: Option<&Stop>,
) -> Result<String, PlotError> {
    // Every element is closed: who reads XML can read it, and check it.
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n");
    page.push_str("<title>hotplug-sim report</title>\n");
    page.push_str(&format!(
        "<style>{STYLE}</style></head><body>\n<h1>{}</h1>\n",
        escape(&scenario.about)
    ));
    page.push_str(&match stopped {
        None => "<p class=\"ok\">All held, and came as expected.</p>\n".to_owned(),
        Some(stop) => format!(
            "<p class=\"bad\">Stopped: {}</p>\n",
            escape(&stop.to_string())
        ),
    });
    page.push_str(&zones(runner));
    page.push_str(&format!(
        "<p>Seed {}, {} units, {} ms of told time, {} pages moved, hash {:016x}.</p>\n",
        runner.options.seed,
        runner.unit,
        runner.host.clock_ns / 1_000_000,
        runner.host.nr_moved,
        runner.hash()
    ));
    for picture in plot::pictures(runner)? {
        page.push_str(&format!(
            "<h2>{}</h2>\n{}\n",
            escape(&picture.title),
            inline(&picture.svg)
        ));
    }
    page.push_str("<h2>What was assumed</h2>\n<ul>\n");
    for note in notes {
        page.push_str(&format!("<li>{}</li>\n", escape(note)));
    }
    page.push_str("</ul>\n</body></html>\n");
    Ok(page)
}

fn zones(runner: &Runner) -> String {
    let mut table = String::from(
        "<table><tr><th>zone</th><th>present</th><th>managed</th><th>free</th><th>lent</th>\
         <th>min</th><th>largest free order</th><th>free blocks by order</th></tr>\n",
    );
    for (at, zone) in runner.host.zones.iter().enumerate() {
        let counts = zone.zone.counts();
        if counts.present == 0 {
            continue;
        }
        let largest = zone
            .zone
            .largest_free_order()
            .map_or("-".to_owned(), |order| order.to_string());
        let blocks: Vec<String> = zone.zone.buddyinfo().iter().map(u64::to_string).collect();
        table.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{largest}</td><td>{}</td></tr>\n",
            escape(&runner.host.zone_name(at)),
            counts.present,
            counts.managed,
            counts.free,
            counts.lent,
            zone.zone.watermarks().min,
            blocks.join(" ")
        ));
    }
    table.push_str("</table>\n");
    table
}

/// A picture as a part of the page: there it needs no name space.
fn inline(svg: &str) -> String {
    let start = svg.find("<svg").unwrap_or(0);
    svg[start..].replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
}

/// Text that may stand in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
