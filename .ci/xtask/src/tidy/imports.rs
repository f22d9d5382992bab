//! Who may depend on whom: the layering that the crate borders keep.
//!
//! A new edge between crates is the change that deserves the most thought, so
//! it is made here first, in [`LAYERS`], and then in the crate's manifest.
//!
//! Checked are `[dependencies]`, also those of a target; what only tests or a
//! build script need is free, except that nothing of ours may reach `mm` so.
//! A dependency that no file of the crate names is refused too.

use anyhow::Context;
use toml::{Table, Value};

use super::Finding;
use super::code::lines_with_word;
use super::tree::File;

/// What one crate may import.
struct Layer {
    folder: &'static str,
    package: &'static str,
    /// Packages of this workspace, without the common prefix.
    ours: &'static [&'static str],
    /// Packages of others; `None` leaves them free.
    others: Option<&'static [&'static str]>,
}

/// The import table, lowest layer first.
const LAYERS: [Layer; 12] = [
    Layer {
        folder: "daemon/mm",
        package: "hugepool-mm",
        ours: &[],
        others: Some(&[]),
    },
    Layer {
        folder: "proto/shm",
        package: "hugepool-shm",
        ours: &[],
        others: Some(&["libc", "loom", "nix", "rkyv", "shared_memory", "thiserror"]),
    },
    Layer {
        folder: "daemon/engine",
        package: "hugepool-engine",
        ours: &["hugepool-mm", "hugepool-shm"],
        others: Some(&["rkyv", "thiserror"]),
    },
    Layer {
        folder: "proto",
        package: "hugepool-proto",
        ours: &[],
        others: Some(&["prost", "prost-types", "tonic", "tonic-prost"]),
    },
    Layer {
        folder: "daemon",
        package: "hugepool-daemon",
        ours: &[
            "hugepool-engine",
            "hugepool-mm",
            "hugepool-proto",
            "hugepool-shm",
        ],
        others: None,
    },
    Layer {
        folder: "client",
        package: "hugepool",
        ours: &["hugepool-proto", "hugepool-shm"],
        others: None,
    },
    Layer {
        folder: "client/ctl",
        package: "hugepoolctl",
        ours: &["hugepool", "hugepool-proto"],
        others: None,
    },
    Layer {
        folder: "client/demo",
        package: "hugepool-demo",
        ours: &[
            "hugepool",
            "hugepool-daemon",
            "hugepool-engine",
            "hugepool-mm",
            "hugepool-proto",
            "hugepool-shm",
        ],
        others: None,
    },
    Layer {
        folder: "hotplug-sim",
        package: "hotplug-sim",
        ours: &[
            "hugepool",
            "hugepool-engine",
            "hugepool-mm",
            "hugepool-proto",
            "hugepool-shm",
        ],
        others: None,
    },
    Layer {
        folder: ".ci/counts",
        package: "counts",
        ours: &[],
        others: Some(&[]),
    },
    Layer {
        folder: ".ci/soak",
        package: "hugepool-soak",
        ours: &["hugepool", "hugepool-daemon", "hugepool-proto"],
        others: None,
    },
    Layer {
        folder: ".ci/xtask",
        package: "xtask",
        ours: &[],
        others: None,
    },
];

const RULE: &str = "imports";

/// Holds every manifest against [`LAYERS`].
pub fn check(files: &[File], findings: &mut Vec<Finding>) -> anyhow::Result<()> {
    for file in files {
        let Some(folder) = file.path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        let manifest: Table = file
            .text
            .parse()
            .with_context(|| format!("parse {}", file.path))?;
        match LAYERS.iter().find(|layer| layer.folder == folder) {
            Some(layer) => {
                check_manifest(layer, file, &manifest, findings);
                check_use(layer, file, &manifest, files, findings);
            }
            // A fuzz crate or an example's is no member, so it is no layer.
            None if manifest.contains_key("workspace") => {}
            None => findings.push(Finding::new(&file.path, 1, RULE, "crate without a layer")),
        }
    }
    Ok(())
}

fn check_manifest(layer: &Layer, file: &File, manifest: &Table, findings: &mut Vec<Finding>) {
    let name = manifest
        .get("package")
        .and_then(|package| package.get("name"));
    if name.and_then(Value::as_str) != Some(layer.package) {
        let message = format!("this folder's package is {}", layer.package);
        findings.push(Finding::new(&file.path, 1, RULE, message));
    }
    let inherits = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"));
    if inherits.and_then(Value::as_bool) != Some(true) {
        findings.push(Finding::new(
            &file.path,
            1,
            RULE,
            "the workspace's lints are not inherited",
        ));
    }

    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    for table in std::iter::once(manifest).chain(targets) {
        for name in names(table, "dependencies") {
            let allowed = if is_ours(name) {
                Some(layer.ours)
            } else {
                layer.others
            };
            if allowed.is_some_and(|allowed| !allowed.contains(&name)) {
                push(
                    file,
                    name,
                    format!("{} may not import {name}", layer.package),
                    findings,
                );
            }
        }
        for name in names(table, "dev-dependencies") {
            if layer.package == "hugepool-mm" && is_ours(name) {
                push(
                    file,
                    name,
                    format!("hugepool-mm is tested without {name}"),
                    findings,
                );
            }
        }
    }
}

fn check_use(
    layer: &Layer,
    file: &File,
    manifest: &Table,
    files: &[File],
    findings: &mut Vec<Finding>,
) {
    let source = format!("{}/src/", layer.folder);
    let code = || files.iter().filter(|file| file.path.starts_with(&source));
    for name in names(manifest, "dependencies") {
        let ident = name.replace('-', "_");
        let is_used = code().any(|file| lines_with_word(&file.code, &ident).next().is_some());
        if !is_used && !file.allows(line_of(file, name), "unused") {
            let message = format!("{name} is not used");
            findings.push(Finding::new(
                &file.path,
                line_of(file, name) + 1,
                "unused",
                message,
            ));
        }
    }
}

fn names<'a>(table: &'a Table, section: &str) -> impl Iterator<Item = &'a str> {
    let section = table.get(section).and_then(Value::as_table);
    section
        .into_iter()
        .flat_map(Table::keys)
        .map(String::as_str)
}

fn is_ours(name: &str) -> bool {
    LAYERS.iter().any(|layer| layer.package == name)
}

fn push(file: &File, name: &str, message: String, findings: &mut Vec<Finding>) {
    findings.push(Finding::new(
        &file.path,
        line_of(file, name) + 1,
        RULE,
        message,
    ));
}

/// Where a manifest names a dependency, counted from 0.
fn line_of(file: &File, name: &str) -> usize {
    let is_name = |line: &str| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    file.text.lines().position(is_name).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        let source = path.replace("Cargo.toml", "src/lib.rs");
        let files = [
            File::new(path, text),
            File::new(source, "use {libc, tokio, hugepool_mm};"),
        ];
        check(&files, &mut findings).unwrap();
        findings.iter().map(ToString::to_string).collect()
    }

    const MM: &str = "[package]\nname = \"hugepool-mm\"\n[lints]\nworkspace = true\n";

    #[test]
    fn mm_imports_nothing_and_is_tested_without_us() {
        let path = "daemon/mm/Cargo.toml";
        assert!(findings(path, MM).is_empty());
        assert!(findings(path, &format!("{MM}[dev-dependencies]\nproptest = \"1\"\n")).is_empty());
        let bad = format!("{MM}[dependencies]\nlibc = \"1\"\n");
        assert_eq!(
            findings(path, &bad),
            ["daemon/mm/Cargo.toml:6: imports: hugepool-mm may not import libc"]
        );
        let bad = format!("{MM}[dev-dependencies]\nhugepool-shm.workspace = true\n");
        assert_eq!(findings(path, &bad).len(), 1);
    }

    #[test]
    fn a_target_is_no_way_round() {
        let bad = format!("{MM}[target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n");
        assert_eq!(findings("daemon/mm/Cargo.toml", &bad).len(), 1);
    }

    #[test]
    fn the_client_does_not_know_the_allocator() {
        let bad = "[package]\nname = \"hugepool\"\n[lints]\nworkspace = true\n\
                   [dependencies]\nhugepool-mm.workspace = true\ntokio = \"1\"\n";
        assert_eq!(findings("client/Cargo.toml", bad).len(), 1);
    }

    #[test]
    fn a_dependency_is_used() {
        let text = "[package]\nname = \"xtask\"\n[lints]\nworkspace = true\n[dependencies]\n";
        let bad = format!("{text}tokio = \"1\"\ntokio-util = \"1\"\n");
        let path = ".ci/xtask/Cargo.toml";
        assert_eq!(
            findings(path, &bad),
            [".ci/xtask/Cargo.toml:7: unused: tokio-util is not used"]
        );
        let good = format!("{text}tokio-util = \"1\" # tidy: unused: in generated code\n");
        assert!(findings(path, &good).is_empty());
    }

    #[test]
    fn a_crate_needs_a_layer_its_name_and_the_lints() {
        assert_eq!(findings("new/Cargo.toml", MM).len(), 1);
        assert_eq!(
            findings("daemon/mm/Cargo.toml", "[package]\nname = \"mm\"\n").len(),
            2
        );
    }
}
