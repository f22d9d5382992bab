//! The file that is served, and its checksum.
//!
//! Without a file named by the user it is the largest file that the build has made beside
//! this program, so the demo reads real data on any machine.

use std::{
    env,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

/// Bytes of one READ.
pub const READ_BYTES: usize = 256 << 10;
const LEAST_BUILT_BYTES: u64 = 8 << 20;

/// The file to serve: `named`, or the largest that the build has made.
pub fn choose(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        let bytes = fs::metadata(path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .len();
        if bytes < READ_BYTES as u64 {
            bail!(
                "{} has {bytes} bytes, less than one READ of {READ_BYTES}; name a larger file",
                path.display()
            );
        }
        return Ok(path.to_owned());
    }
    let exe = env::current_exe().context("cannot find this program's own file")?;
    let mut candidates = vec![exe.clone()];
    if let Some(deps) = exe.parent().map(|folder| folder.join("deps")) {
        candidates.extend(
            fs::read_dir(deps)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path()),
        );
    }
    let size = |path: &PathBuf| {
        fs::metadata(path).map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 })
    };
    let largest = candidates.into_iter().max_by_key(size).unwrap_or(exe);
    if size(&largest) < LEAST_BUILT_BYTES {
        bail!(
            "the build has left no file of {LEAST_BUILT_BYTES} bytes here; name one with --file PATH"
        );
    }
    Ok(largest)
}

/// CRC-32 of the whole file, read the ordinary way.
pub fn checksum(path: &Path) -> anyhow::Result<u32> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file
            .read(&mut buffer)
            .with_context(|| format!("cannot read {}", path.display()))?
        {
            0 => return Ok(hasher.finalize()),
            n => hasher.update(&buffer[..n]),
        }
    }
}
