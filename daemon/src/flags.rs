//! The command line of `hugepoold`: what was typed, nothing more.
//!
//! What it means, together with the file and the defaults, is [`config`](crate::config).

use std::{path::PathBuf, str::FromStr};

use crate::{
    bench::Bench,
    size::{Bytes, SizeError},
};

/// Owns a region of shared memory and lends its pages to other processes.
#[derive(clap::Parser, Clone, Debug, Default)]
#[command(
    name = "hugepoold",
    version,
    about,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "\
Says `ready` on standard error when clients can attach, and stops on SIGTERM or SIGINT.

Examples:
  hugepoold --runtime-dir /tmp/pool                      two zones of 128MiB
  hugepoold --zone dma=256MiB --zone rest=1GiB,kind=movable,reserve=8GiB
  hugepoold --zone all=512MiB,backing=shm --section-size 16MiB
  hugepoold --config /etc/hugepool/hugepoold.toml --check
  hugepoolctl --runtime-dir /tmp/pool status             asks it
  hugepoolctl config explain                             tells the configuration's keys

Exit status: 0 stopped as asked (--check: could start), 1 could not start or go on, 2 usage or
configuration (--check: could not start)."
)]
pub struct Flags {
    /// Configuration file (TOML). Flags win over the environment, that over the file.
    #[arg(long, value_name = "FILE", env = "HUGEPOOLD_CONFIG")]
    pub config: Option<PathBuf>,

    /// Where sockets and the lock lie [default: $RUNTIME_DIRECTORY, else /run/hugepool for root,
    /// else $XDG_RUNTIME_DIR/hugepool].
    #[arg(long, value_name = "DIR", env = "HUGEPOOL_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// A zone: `NAME=SIZE[,kind=normal|movable][,reserve=SIZE][,node=N][,backing=auto|hugetlb|thp|shm]`.
    /// Given any, they replace the zones of the file [default: normal=128MiB movable=128MiB,kind=movable].
    #[allow(rustdoc::broken_intra_doc_links, reason = "the brackets are help text")]
    #[arg(
        long = "zone",
        value_name = "ZONE",
        env = "HUGEPOOLD_ZONES",
        value_delimiter = ' '
    )]
    pub zones: Vec<ZoneFlag>,

    /// Grain of hot-add and hot-remove [default: 128MiB].
    #[arg(long, value_name = "SIZE", env = "HUGEPOOLD_SECTION_SIZE")]
    pub section_size: Option<Bytes>,

    /// Microseconds that the daemon goes on looking for work after the last was done, before it
    /// sleeps [default: 0 on machines with fewer than 4 processors, 50 else].
    #[arg(long, value_name = "US", env = "HUGEPOOLD_SPIN_US")]
    pub spin_us: Option<u32>,

    /// Keeps the memory across a crash of the daemon without systemd.
    #[arg(long)]
    pub keeper: bool,

    /// Prints the checked plan, shortfalls of the backing included, and exits: 0 could start, 2 could not.
    #[arg(long)]
    pub check: bool,

    /// What is logged, as `level` or `target=level,…` [default: info].
    #[arg(long, value_name = "FILTER", env = "HUGEPOOLD_LOG")]
    pub log: Option<String>,

    /// Not for people: what other programs of ours start.
    #[command(subcommand)]
    pub hidden: Option<Hidden>,
}

/// What other programs of ours start.
#[derive(clap::Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// Measures the allocator alone; for `hugepoolctl bench`
    #[command(hide = true)]
    Bench {
        /// What
        #[command(subcommand)]
        bench: Bench,
    },
    /// Writes the manual page; for packagers
    #[command(hide = true)]
    Man {
        /// The folder that it is written to
        dir: PathBuf,
    },
    /// Prints configuration; for `hugepoolctl config`
    #[command(hide = true)]
    Config {
        /// What
        #[command(subcommand)]
        print: PrintConfig,
    },
}

/// What of the configuration is printed.
#[derive(clap::Subcommand, Clone, Debug, PartialEq, Eq)]
pub enum PrintConfig {
    /// The plan that flags, environment and file make, as a file would say it
    Show {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// The keys of the file, a JSON object a line
    Explain,
}

/// One `--zone`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneFlag {
    /// What requests call it.
    pub name: String,
    /// Bytes that are there at the start.
    pub size: Bytes,
    /// `normal` or `movable`, as typed.
    pub kind: Option<String>,
    /// Bytes it may grow to.
    pub reserve: Option<Bytes>,
    /// NUMA node.
    pub node: Option<u32>,
    /// `auto`, `hugetlb`, `thp` or `shm`, as typed.
    pub backing: Option<String>,
}

/// Why a `--zone` cannot be taken apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZoneFlagError {
    /// No `NAME=SIZE` in front.
    #[error("`{0}` does not start with NAME=SIZE, like normal=128MiB")]
    NoNameAndSize(String),
    /// A word that is no `KEY=VALUE`, or whose key we do not know.
    #[error("`{0}` is not one of kind=, reserve=, node=, backing=")]
    UnknownKey(String),
    /// The same key twice.
    #[error("`{0}=` is given twice")]
    Twice(String),
    /// A node that is no number.
    #[error("node `{0}` is not a number: NUMA nodes count from 0")]
    Node(String),
    /// A size that is none.
    #[error(transparent)]
    Size(#[from] SizeError),
}

impl FromStr for ZoneFlag {
    type Err = ZoneFlagError;

    fn from_str(text: &str) -> Result<ZoneFlag, ZoneFlagError> {
        let mut words = text.split(',');
        let (name, size) = words
            .next()
            .and_then(|first| first.split_once('='))
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| ZoneFlagError::NoNameAndSize(text.to_owned()))?;
        let mut zone = ZoneFlag {
            name: name.to_owned(),
            size: size.parse()?,
            kind: None,
            reserve: None,
            node: None,
            backing: None,
        };
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| ZoneFlagError::UnknownKey(word.to_owned()))?;
            let before = match key {
                "kind" => zone.kind.replace(value.to_owned()).is_some(),
                "backing" => zone.backing.replace(value.to_owned()).is_some(),
                "reserve" => zone.reserve.replace(value.parse()?).is_some(),
                "node" => {
                    let node = value
                        .parse()
                        .map_err(|_| ZoneFlagError::Node(value.to_owned()))?;
                    zone.node.replace(node).is_some()
                }
                _ => return Err(ZoneFlagError::UnknownKey(word.to_owned())),
            };
            if before {
                return Err(ZoneFlagError::Twice(key.to_owned()));
            }
        }
        Ok(zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_a_name_a_size_and_keys_in_any_order() {
        let zone: ZoneFlag = "fast=2G,node=1,kind=movable,backing=hugetlb,reserve=4GiB"
            .parse()
            .unwrap();
        assert_eq!(zone.name, "fast");
        assert_eq!(zone.size, Bytes(2 << 30));
        assert_eq!(zone.reserve, Some(Bytes(4 << 30)));
        assert_eq!(zone.node, Some(1));
        assert_eq!(zone.kind.as_deref(), Some("movable"));
        assert_eq!(zone.backing.as_deref(), Some("hugetlb"));
    }

    #[test]
    fn a_zone_that_cannot_be_read_says_which_word() {
        for text in ["normal", "=128MiB", ""] {
            let error = text.parse::<ZoneFlag>().unwrap_err();
            assert_eq!(error, ZoneFlagError::NoNameAndSize(text.to_owned()));
        }
        let parse = |text: &str| text.parse::<ZoneFlag>().unwrap_err();
        assert_eq!(parse("a=1M,huge"), ZoneFlagError::UnknownKey("huge".into()));
        assert_eq!(
            parse("a=1M,size=2M"),
            ZoneFlagError::UnknownKey("size=2M".into())
        );
        assert_eq!(parse("a=1M,node=x"), ZoneFlagError::Node("x".into()));
        assert_eq!(
            parse("a=1M,node=0,node=1"),
            ZoneFlagError::Twice("node".into())
        );
        assert!(matches!(parse("a=1MB"), ZoneFlagError::Size(_)));
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory as _;
        Flags::command().debug_assert();
    }
}
