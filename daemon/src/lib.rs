//! The rooms of `hugepoold`, and who talks to whom.
//!
//! ```text
//! flags ─► config ─► app: build (bind, populate), run (serve, drain)
//!                     │
//!        ┌────────────┼──────────────┐
//!      lanes       shared            rpc          two threads, one engine behind a lock
//!        │        (engine)            │
//!      attach     registry       pages, admin
//!                     │
//!                  effects ─► memory              blocking threads, without the lock
//! ```
//!
//! [`run`] is the whole daemon; a program may carry it in itself and call it in a process of its
//! own.
#![forbid(unsafe_code)]

pub mod app;
pub mod attach;
pub mod backing_plan;
pub mod bench;
pub mod check;
pub mod config;
pub mod confine;
pub mod effects;
pub mod exit;
pub mod fair;
pub mod flags;
pub mod keeper;
pub mod keeping;
pub mod kept;
pub mod lanes;
pub mod man;
pub mod memory;
pub mod registry;
pub mod reload;
pub mod rpc;
pub mod runtime_dir;
pub mod sealed;
pub mod shared;
pub mod size;
pub mod sockets;
pub mod startup;
pub mod stats;
pub mod store;
pub mod systemd;
pub mod takeover;
pub mod telemetry;
pub mod waiting;

pub use app::{App, AppError, run, run_reloadable};
pub use config::{Config, ConfigError};
