//! `hugepoolctl limit …`, as it is typed.

use clap::{Args, Subcommand};

use crate::size;

#[derive(Debug, Subcommand)]
pub enum LimitVerb {
    /// List the limits that are set, and what is owned below them
    List,
    /// Set floor and ceiling, live; what is not given is none
    ///
    /// A floor is pages of one zone that are kept until they are owned; floors that the zone could
    /// not keep are refused with their sum. Pages owned beyond a ceiling stay.
    #[command(after_help = "\
Examples:
  hugepoolctl limit set --uid 1000 --zone normal --floor 16384 --ceiling 65536
  hugepoolctl limit set --client 3 --ceiling 4096
  hugepoolctl limit set --zone normal --ceiling 8192          # each client
  hugepoolctl limit set --whole-zone --zone normal --floor 32768")]
    Set(LimitSet),
}

#[derive(Debug, Args)]
pub struct LimitSet {
    /// Of the client in this slot; with none of the three, of each client
    #[arg(long, value_name = "SLOT", group = "whom")]
    pub client: Option<u32>,
    /// Of all clients of this user together
    #[arg(long, value_name = "UID", group = "whom")]
    pub uid: Option<u32>,
    /// Of all clients of the zone together; the floor is what offline leaves of it
    #[arg(long, group = "whom", requires = "zone")]
    pub whole_zone: bool,
    /// In this zone only
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// Pages that are kept
    #[arg(long, value_name = "PAGES", default_value_t = 0, requires = "zone")]
    pub floor: u64,
    /// The most pages, or `none`
    #[arg(long, value_name = "PAGES|none", default_value = "none", value_parser = size::parse_limit)]
    pub ceiling: size::Limit,
}
