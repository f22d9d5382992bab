//! `hotplug-sim fleet`: many hosts and a pool of memory that they share, section by section.
//!
//! [`file`](mod@file) says what there is and what comes; [`host`] is one host, of which only what is fragmented
//! is written down; [`pool`] lets arrivals and deaths go by under one policy; [`command`] prints the
//! policies beside each other. A CXL memory pool hands out and takes back dynamic capacity in the same way:
//! in extents of memory blocks, and only those that the host has emptied.

pub mod command;
pub mod file;
pub mod host;
pub mod pool;
