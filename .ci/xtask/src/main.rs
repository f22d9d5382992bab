//! Developer tasks, one verb per line: `cargo xtask VERB`.
//!
//! The stages of the whole check are in `.ci/run`; what needs more than a
//! line of shell is here.

#![forbid(unsafe_code)]

mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Developer tasks of hugepool.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Check the house rules: layering, file heads and lengths, sync tags, words.
    Tidy,
    /// Let clients, daemon and sections come and go for a while, and count every page.
    Soak {
        /// What `hugepool-soak --help` lists.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().verb {
        Verb::Tidy => {
            let findings = tidy::check(&workspace_root()?)?;
            for finding in &findings {
                eprintln!("{finding}");
            }
            eprintln!("tidy: {} findings", findings.len());
            Ok(ExitCode::from(u8::from(!findings.is_empty())))
        }
        Verb::Soak { flags } => soak(&flags),
    }
}

/// Builds the soak and runs it; its exit status.
fn soak(flags: &[OsString]) -> anyhow::Result<ExitCode> {
    let status = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--locked",
            "--release",
            "--package",
            "hugepool-soak",
            "--",
        ])
        .args(flags)
        .current_dir(workspace_root()?)
        .status()
        .context("cannot run cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// The workspace's folder, by what cargo tells the program it runs.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let manifest_dir =
        std::env::var_os("CARGO_MANIFEST_DIR").context("run this through cargo: `cargo xtask`")?;
    let root = PathBuf::from(manifest_dir);
    let root = root
        .ancestors()
        .nth(2)
        .context("xtask lies two folders deep")?;
    Ok(root.to_path_buf())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_house_is_tidy() {
        let root = super::workspace_root().unwrap();
        let findings = super::tidy::check(&root).unwrap();
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{}", lines.join("\n"));
    }
}
