//! Where the control groups of this process are to be read, versions 1 and 2.
//!
//! Knows the layout of hierarchies and mounts and nothing of what a controller counts.

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// The folders of the groups under `controller` that this process is in, itself and those above,
/// as far as they are visible here. Not each of them has the controller's files.
pub(crate) fn folders(root: &Path, controller: &str) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut folders = Vec::new();
    for line in groups.lines() {
        // `hierarchy:controllers:path`; version 2 is hierarchy 0 with no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(group)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let is_v2 = hierarchy == "0" && controllers.is_empty();
        let is_v1 = controllers.split(',').any(|name| name == controller);
        if !(is_v1 || is_v2) {
            continue;
        }
        let v1_controller = is_v1.then_some(controller);
        let mount = mounts.lines().find_map(|line| mount(line, v1_controller));
        let Some((top, base)) = mount else {
            continue;
        };
        // In a container the mount may show only a part of the hierarchy; a group outside of that
        // part (`/../…`) cannot be seen from here, but what bounds all of the part can.
        let below = Path::new(group).strip_prefix(&top).unwrap_or(Path::new(""));
        let below: PathBuf = below
            .components()
            .filter(|part| matches!(part, Component::Normal(_)))
            .collect();
        let visible = root.join(base.strip_prefix("/").unwrap_or(&base));
        folders.extend(below.ancestors().map(|above| visible.join(above)));
    }
    folders
}

/// Which part of a hierarchy a line of `mountinfo` shows, and where: that of a controller of
/// version 1, or version 2.
fn mount(line: &str, v1_controller: Option<&str>) -> Option<(PathBuf, PathBuf)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (top, base) = (mount.next()?, mount.next()?);
    let mut system = system.split(' ');
    let (kind, _, options) = (system.next()?, system.next()?, system.next()?);
    let is_wanted = match v1_controller {
        None => kind == "cgroup2",
        Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
    };
    is_wanted.then(|| (PathBuf::from(top), PathBuf::from(base)))
}

/// The number that a file consists of. Such files are read a dozen at a time before a section is
/// populated, so by one call of the system and not by three.
pub(crate) fn number(path: &Path) -> Option<u64> {
    let mut text = [0; 32];
    let len = File::open(path).ok()?.read(&mut text).ok()?;
    std::str::from_utf8(text.get(..len)?)
        .ok()?
        .trim()
        .parse()
        .ok()
}
