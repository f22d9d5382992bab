//! `bench --plot DIR`: nanoseconds a page against n, as an SVG; with `--peer FILE`, a peer's beside.
//!
//! A peer's file is what its program prints: a JSON object a line with `case` `pair`, `n`, `touch`
//! and `ns_median` (or `median`); those with a `cache` of 0 are left out, as are strided ones.

use std::{collections::BTreeMap, fs, path::Path};

use plotters::prelude::*;
use serde_json::{Map, Value};

use crate::outcome::Failure;

const SIZE: (u32, u32) = (800, 480);

/// What to draw, and where.
#[derive(Clone, Copy, Debug)]
pub struct Plot<'a> {
    /// Folder for the picture.
    pub dir: &'a Path,
    /// Lines of a peer.
    pub peer: Option<&'a Path>,
}

/// Nanoseconds a page by n.
type Curve = BTreeMap<u64, f64>;

impl Plot<'_> {
    /// Draws the pairs among the lines, if there are any, into `pair.svg`.
    pub fn draw(&self, lines: &[Map<String, Value>]) -> Result<(), Failure> {
        let mut curves = vec![
            ("array", curve(lines, "pair", "median")),
            ("list", curve(lines, "pair_list", "median")),
        ];
        if let Some(peer) = self.peer {
            let text = fs::read_to_string(peer).map_err(|error| unreadable(peer, error))?;
            let lines: Vec<Map<String, Value>> = text
                .lines()
                .filter(|line| !line.trim().is_empty())
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()
                .map_err(|error| unreadable(peer, error))?;
            let mut of_peer = curve(&lines, "pair", "ns_median");
            of_peer.extend(curve(&lines, "pair", "median"));
            curves.push(("peer", of_peer));
        }
        curves.retain(|(_, curve)| !curve.is_empty());
        if curves.is_empty() {
            return Ok(());
        }
        let path = self.dir.join("pair.svg");
        let refused = |error: String| {
            let what = format!("cannot draw {}: {error}", path.display());
            Failure::refused(what, "name a folder that can be written with --plot")
        };
        fs::create_dir_all(self.dir).map_err(|error| refused(error.to_string()))?;
        let picture = picture(&curves).map_err(|error| refused(error.to_string()))?;
        fs::write(&path, picture).map_err(|error| refused(error.to_string()))
    }
}

fn unreadable(peer: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::usage(
        format_args!("{}: {error}", peer.display()),
        "--peer takes a file with a JSON object a line",
    )
}

/// The untouched pairs of a case.
fn curve(lines: &[Map<String, Value>], case: &str, key: &str) -> Curve {
    let is_plain = |line: &&Map<String, Value>| {
        line.get("case").and_then(Value::as_str) == Some(case)
            && line.get("touch").and_then(Value::as_u64) == Some(0)
            && line.get("cache").and_then(Value::as_u64) != Some(0)
            && !line.contains_key("stride")
            && !line.contains_key("call")
    };
    let point = |line: &Map<String, Value>| {
        let n = line.get("n")?.as_u64().filter(|&n| n > 0)?;
        Some((n, line.get(key)?.as_f64()?))
    };
    lines.iter().filter(is_plain).filter_map(point).collect()
}

fn picture(curves: &[(&str, Curve)]) -> Result<String, Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let last = points().map(|(&n, _)| n).max().unwrap_or(1);
    let most = points().map(|(_, &ns)| ns).fold(0.0, f64::max);
    let least = points().map(|(_, &ns)| ns).fold(most, f64::min);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption("Taking and giving back n pages", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(
                (1..last.max(2)).log_scale(),
                (least * 0.8..most * 1.2).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("n")
            .y_desc("ns a page")
            .light_line_style(WHITE)
            .draw()?;
        for (at, (name, curve)) in curves.iter().enumerate() {
            let colour = Palette99::pick(at).to_rgba();
            let points = curve.iter().map(|(&n, &ns)| (n, ns));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE)
            .border_style(BLACK)
            .position(SeriesLabelPosition::UpperRight)
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(values: &[Value]) -> Vec<Map<String, Value>> {
        let lines = values.iter().filter_map(Value::as_object);
        lines.cloned().collect()
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test may panic")]
    fn pairs_are_drawn_beside_a_peers_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let peer = dir.path().join("peer.json");
        let of_peer = [
            json!({"case": "pair", "n": 1, "touch": 0, "cache": 512, "ns_median": 4.7}),
            json!({"case": "pair", "n": 1, "touch": 0, "cache": 0, "ns_median": 99.0}),
            json!({"case": "pair", "n": 65, "touch": 0, "cache": 512, "ns_median": 0.3}),
        ];
        fs::write(&peer, of_peer.each_ref().map(Value::to_string).join("\n")).unwrap();
        let ours = lines(&[
            json!({"case": "environment"}),
            json!({"case": "pair", "n": 0, "touch": 0, "median": 1.8}),
            json!({"case": "pair", "n": 1, "touch": 0, "median": 2.1}),
            json!({"case": "pair", "n": 1, "touch": 0, "call": "alloc_page", "median": 7.0}),
            json!({"case": "pair", "n": 65, "touch": 0, "median": 0.4}),
            json!({"case": "pair", "n": 65, "touch": 1, "median": 5.0}),
        ]);
        let expected = Curve::from([(1, 2.1), (65, 0.4)]);
        assert_eq!(curve(&ours, "pair", "median"), expected);
        let expected = Curve::from([(1, 4.7), (65, 0.3)]);
        assert_eq!(curve(&lines(&of_peer), "pair", "ns_median"), expected);

        let plot = Plot {
            dir: dir.path(),
            peer: Some(&peer),
        };
        plot.draw(&ours).unwrap();
        let svg = fs::read_to_string(dir.path().join("pair.svg")).unwrap();
        assert!(svg.contains("peer") && svg.contains("array") && !svg.contains("list"));

        fs::write(&peer, "no JSON").unwrap();
        assert!(plot.draw(&ours).is_err());
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test may panic")]
    fn a_bench_without_pairs_draws_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let plot = Plot {
            dir: dir.path(),
            peer: None,
        };
        plot.draw(&lines(&[json!({"case": "attach", "n": 1, "median": 1.0})]))
            .unwrap();
        assert!(!dir.path().join("pair.svg").exists());
    }
}
