//! `hugepoolctl generate`: completions and man pages, from the definition that help comes from.

use std::{fs, io};

use clap::CommandFactory as _;

use crate::{
    cli::{Cli, Generated, Shell},
    outcome::{Failure, Outcome},
    output::Output,
};

/// Writes what was asked for.
pub fn run(what: &Generated, out: &Output) -> Result<Outcome, Failure> {
    let mut command = Cli::command();
    match what {
        Generated::Completions { shell } => {
            let generator = match shell {
                Shell::Bash => clap_complete::Shell::Bash,
                Shell::Fish => clap_complete::Shell::Fish,
                Shell::Zsh => clap_complete::Shell::Zsh,
            };
            let mut script = Vec::new();
            clap_complete::generate(generator, &mut command, "hugepoolctl", &mut script);
            out.text(&String::from_utf8_lossy(&script))?;
        }
        Generated::Man { dir } => {
            let refuse = |error: io::Error| {
                let what = format!("cannot write man pages to {}: {error}", dir.display());
                Failure::refused(what, "name a folder that you may write to")
            };
            fs::create_dir_all(dir).map_err(refuse)?;
            clap_mangen::generate_to(command, dir).map_err(refuse)?;
        }
    }
    Ok(Outcome::Done)
}
