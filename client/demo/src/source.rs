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
/// Of a larger file so much is served: the demo is to be over in seconds.
const MOST_BYTES: u64 = 1 << 30;

/// The file to serve: `named`, or the largest that the build has made.
pub fn choose(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        let cannot = || format!("cannot read {}", path.display());
        // Looked at before it is opened: opening a pipe waits for its writer.
        let found = fs::metadata(path).with_context(cannot)?;
        if !found.is_file() {
            bail!("{} is not a regular file", path.display());
        }
        if found.len() == 0 {
            bail!("{} is empty: there is nothing to serve", path.display());
        }
        File::open(path).with_context(cannot)?;
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

/// Bytes of a file that are served: all, or as many as there is time for.
pub fn served_bytes(file_bytes: u64) -> u64 {
    file_bytes.min(MOST_BYTES)
}

/// CRC-32 of the first `bytes` of a file, read the ordinary way.
pub fn checksum(path: &Path, bytes: u64) -> anyhow::Result<u32> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut file = file.take(bytes);
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

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    reason = "what a test cannot unwrap has failed it"
)]
mod tests {
    use super::*;

    /// Seen to fail: a small file was refused, and a folder called a small file.
    #[test]
    fn any_file_with_bytes_can_be_served_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one byte");
        fs::write(&file, "a").unwrap();
        assert_eq!(choose(Some(&file)).unwrap(), file);
        let refused = |path: &Path| choose(Some(path)).unwrap_err().to_string();
        assert!(refused(folder.path()).ends_with("is not a regular file"));
        assert!(refused(Path::new("/dev/null")).ends_with("is not a regular file"));
        fs::write(&file, "").unwrap();
        assert!(refused(&file).contains("empty"));
        assert!(refused(&folder.path().join("none")).starts_with("cannot read"));
    }

    #[test]
    fn the_checksum_is_that_of_the_bytes_that_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "123456789 and more").unwrap();
        // The check value of CRC-32, as catalogues give it.
        assert_eq!(checksum(&file, 9).unwrap(), 0xcbf4_3926);
        assert_eq!(served_bytes(9), 9);
        assert_eq!(served_bytes(u64::MAX), 1 << 30);
    }
}
