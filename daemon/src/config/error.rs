//! What can be wrong with a configuration, each with what to do next.

use std::{io, path::PathBuf};

use crate::size::Bytes;

/// Why the flags, the environment and the file do not make a plan.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file named by `--config`.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The file is no TOML, or has a key that we do not know.
    #[error("{} is not a valid configuration", path.display())]
    Parse {
        /// The file named by `--config`.
        path: PathBuf,
        /// Line, column and reason.
        source: Box<toml::de::Error>,
    },
    /// No rule gives a run-time directory.
    #[error(
        "no run-time directory: tried --runtime-dir, $HUGEPOOL_RUNTIME_DIR, $RUNTIME_DIRECTORY, \
         runtime_dir of the file and $XDG_RUNTIME_DIR; give one with --runtime-dir"
    )]
    NoRuntimeDir,
    /// A value of the geometry that is out of its range, or does not fit the others.
    #[error("geometry: {0}")]
    Geometry(String),
    /// No zone, or more than a page word can name.
    #[error("{count} zones are configured: give 1 to {max}")]
    NrZones {
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// A name that would not survive being typed.
    #[error("`{0}` is not a zone name: use 1 to 31 letters, digits, `-` and `_`")]
    ZoneName(String),
    /// Two zones of one name.
    #[error("zone `{0}` is configured twice: names are unique")]
    ZoneTwice(String),
    /// A word where one of a few is expected.
    #[error("zone `{zone}`: {key} `{value}` is unknown: use one of {allowed}")]
    ZoneWord {
        /// The zone.
        zone: String,
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What may be given.
        allowed: &'static str,
    },
    /// A word that is none of those known.
    #[error("{key} `{value}` is not one of {allowed}")]
    Word {
        /// The key, with its table.
        key: &'static str,
        /// What was given.
        value: String,
        /// What may be given.
        allowed: &'static str,
    },
    /// A size that is not a whole number of sections.
    #[error(
        "zone `{zone}`: {key} {value} is not a multiple of the section size {section}: \
         the nearest are {below} and {above}"
    )]
    NotSections {
        /// The zone.
        zone: String,
        /// `size` or `reserve`.
        key: &'static str,
        /// What was given.
        value: Bytes,
        /// The grain.
        section: Bytes,
        /// Next lower multiple.
        below: Bytes,
        /// Next higher multiple.
        above: Bytes,
    },
    /// A zone that starts larger than it may grow.
    #[error("zone `{zone}`: size {size} is above its reserve {reserve}: raise reserve")]
    AboveReserve {
        /// The zone.
        zone: String,
        /// Bytes at the start.
        size: Bytes,
        /// Bytes it may grow to.
        reserve: Bytes,
    },
    /// A reserve of nothing.
    #[error("zone `{0}`: reserve is 0: it must hold at least one section")]
    NoReserve(String),
    /// More pages than a pfn can name.
    #[error(
        "the reserves of all zones come to {total}, pfns name at most {max}: \
         lower reserve= of some zones"
    )]
    SpanTooLarge {
        /// Sum of the reserves.
        total: Bytes,
        /// 2^32 pages.
        max: Bytes,
    },
    /// A reserve of so many sections that keeping them apart costs too much.
    #[error(
        "the reserves of all zones come to {nr_sections} sections of {section}, at most {max}: \
         lower reserve= of some zones or raise section_size"
    )]
    TooManySections {
        /// Sections of all reserves.
        nr_sections: u64,
        /// Their size.
        section: Bytes,
        /// The most.
        max: u64,
    },
    /// The zonelist names what is no zone, or one twice.
    #[error("zonelist names `{0}`, which is not a zone or is named twice")]
    Zonelist(String),
    /// The zonelist leaves a zone out.
    #[error("zonelist leaves out zone `{0}`: name every zone once, in the order they are taken")]
    ZonelistLacks(String),
    /// A limit in a zone that is not there.
    #[error("a limit names zone `{0}`, which is not configured")]
    LimitZone(String),
    /// A floor in no zone.
    #[error("a limit has a floor and no zone: floors are kept in one zone, name it")]
    FloorWithoutZone,
    /// Two limits for the same.
    #[error("the limit of {whom} in {zone} is configured twice: give floor and ceiling at once")]
    LimitTwice {
        /// For whom.
        whom: String,
        /// Where.
        zone: String,
    },
    /// More is kept than may be had.
    #[error("{whose}: floor {floor} is above ceiling {ceiling}")]
    FloorAboveCeiling {
        /// The zone, or whose limit.
        whose: String,
        /// What is kept.
        floor: Bytes,
        /// What may be had.
        ceiling: Bytes,
    },
    /// More is kept than there is.
    #[error(
        "zone `{zone}`: the floors in it come to {floors}, its size is {size}: lower floors or \
         raise size"
    )]
    Floors {
        /// The zone.
        zone: String,
        /// Their sum.
        floors: Bytes,
        /// What is there at the start.
        size: Bytes,
    },
    /// A limit of nothing.
    #[error("{key} is {value}: give {min} to {max}")]
    Range {
        /// The key, with its table.
        key: &'static str,
        /// What was given.
        value: u64,
        /// Lowest.
        min: u64,
        /// Highest.
        max: u64,
    },
    /// A log filter that cannot be read.
    #[error(
        "log filter `{filter}` is not valid: use a level (error, warn, info, debug, trace) or target=level, …"
    )]
    LogFilter {
        /// What was given.
        filter: String,
        /// Where it went wrong.
        source: Box<tracing_subscriber::filter::ParseError>,
    },
}
