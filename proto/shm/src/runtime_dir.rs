//! Where a daemon puts its sockets, and where clients look for them: one rule for all programs.
//!
//! Pure: the environment, the user and the look at the disk are the caller's to give, so that the
//! rule is tested without touching the process.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The place for root's daemon, and the last one clients try.
pub const SYSTEM_PLACE: &str = "/run/hugepool";

/// What a place was named by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceOrigin {
    /// `--runtime-dir`.
    Flag,
    /// `$HUGEPOOL_RUNTIME_DIR`.
    OwnVariable,
    /// `$RUNTIME_DIRECTORY`, as the service manager sets it.
    ServiceManager,
    /// A configuration file.
    Configuration,
    /// `$XDG_RUNTIME_DIR`, of a user that is not root.
    User,
    /// [`SYSTEM_PLACE`].
    System,
}

impl std::fmt::Display for PlaceOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PlaceOrigin::Flag => "--runtime-dir",
            PlaceOrigin::OwnVariable => "$HUGEPOOL_RUNTIME_DIR",
            PlaceOrigin::ServiceManager => "$RUNTIME_DIRECTORY",
            PlaceOrigin::Configuration => "the configuration file",
            PlaceOrigin::User => "$XDG_RUNTIME_DIR",
            PlaceOrigin::System => "the system's place",
        })
    }
}

/// A folder, and what named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The folder.
    pub path: PathBuf,
    /// What named it.
    pub origin: PlaceOrigin,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.path.display(), self.origin)
    }
}

/// What the rule looks at.
pub struct Surroundings<'a> {
    /// The value of `--runtime-dir`, if given.
    pub flag: Option<&'a Path>,
    /// What a configuration file says, if there is one that does.
    pub configured: Option<&'a Path>,
    /// Reads the environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Whether the effective user is root.
    pub is_root: bool,
}

/// No folder can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRuntimeDir {
    /// Nothing names a folder.
    #[error(
        "no run-time directory: give --runtime-dir, or set HUGEPOOL_RUNTIME_DIR or XDG_RUNTIME_DIR"
    )]
    Unnamed,
    /// None of these has a daemon.
    #[error("no hugepoold found; tried {}", Tried(places))]
    NobodyThere {
        /// The places tried, in order.
        places: Vec<Place>,
    },
}

struct Tried<'a>(&'a [Place]);

impl std::fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, place) in self.0.iter().enumerate() {
            let gap = if index > 0 { ", " } else { "" };
            write!(f, "{gap}{place}")?;
        }
        Ok(())
    }
}

/// The folder of a daemon: the first that is named.
///
/// # Errors
/// [`NoRuntimeDir::Unnamed`].
pub fn of_daemon(surroundings: &Surroundings<'_>) -> Result<Place, NoRuntimeDir> {
    named(surroundings).ok_or(NoRuntimeDir::Unnamed)
}

/// The folders a client or tool looks into, in order: the one that is named, then the system's. One
/// that was named for this program (by flag, our own variable or a file) is the only one: finding
/// another daemon than the one asked for would be worse than finding none.
pub fn of_client(surroundings: &Surroundings<'_>) -> Vec<Place> {
    let system = Place {
        path: SYSTEM_PLACE.into(),
        origin: PlaceOrigin::System,
    };
    let Some(place) = named(surroundings) else {
        return vec![system];
    };
    match place.origin {
        PlaceOrigin::Flag | PlaceOrigin::OwnVariable | PlaceOrigin::Configuration => vec![place],
        PlaceOrigin::ServiceManager | PlaceOrigin::User => vec![place, system],
        PlaceOrigin::System => vec![system],
    }
}

/// The first of `places` that has a daemon, by `is_there`, which looks at the disk.
///
/// # Errors
/// [`NoRuntimeDir::NobodyThere`], with the places.
pub fn find(places: Vec<Place>, is_there: &dyn Fn(&Path) -> bool) -> Result<Place, NoRuntimeDir> {
    match places.iter().find(|place| is_there(&place.path)) {
        Some(place) => Ok(place.clone()),
        None => Err(NoRuntimeDir::NobodyThere { places }),
    }
}

/// The first folder that something names. An empty value names nothing.
fn named(surroundings: &Surroundings<'_>) -> Option<Place> {
    let variable = |name| (surroundings.variable)(name).filter(|value| !value.is_empty());
    let place = |path: PathBuf, origin| Some(Place { path, origin });
    if let Some(flag) = surroundings.flag {
        return place(flag.to_owned(), PlaceOrigin::Flag);
    }
    if let Some(own) = variable("HUGEPOOL_RUNTIME_DIR") {
        return place(own.into(), PlaceOrigin::OwnVariable);
    }
    if let Some(list) = variable("RUNTIME_DIRECTORY") {
        // A unit with several directories gets them all, with colons between.
        let first = list.as_bytes().split(|byte| *byte == b':').next();
        let first = OsString::from_vec(first.unwrap_or_default().to_vec());
        if !first.is_empty() {
            return place(first.into(), PlaceOrigin::ServiceManager);
        }
    }
    if let Some(configured) = surroundings.configured {
        return place(configured.to_owned(), PlaceOrigin::Configuration);
    }
    if surroundings.is_root {
        return place(SYSTEM_PLACE.into(), PlaceOrigin::System);
    }
    let user = PathBuf::from(variable("XDG_RUNTIME_DIR")?);
    place(user.join("hugepool"), PlaceOrigin::User)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAG: Option<&str> = Some("/flag");
    const OWN: (&str, &str) = ("HUGEPOOL_RUNTIME_DIR", "/own");
    const UNIT: (&str, &str) = ("RUNTIME_DIRECTORY", "/run/unit:/run/other");
    const XDG: (&str, &str) = ("XDG_RUNTIME_DIR", "/run/user/1000");

    fn with<T>(
        flag: Option<&str>,
        pairs: &[(&str, &str)],
        is_root: bool,
        ask: impl FnOnce(&Surroundings<'_>) -> T,
    ) -> T {
        let variable = |name: &str| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        ask(&Surroundings {
            flag: flag.map(Path::new),
            configured: None,
            variable: &variable,
            is_root,
        })
    }

    fn daemon(flag: Option<&str>, pairs: &[(&str, &str)], is_root: bool) -> String {
        with(flag, pairs, is_root, |s| match of_daemon(s) {
            Ok(place) => place.path.display().to_string(),
            Err(error) => error.to_string(),
        })
    }

    fn client(flag: Option<&str>, pairs: &[(&str, &str)], is_root: bool) -> Vec<String> {
        with(flag, pairs, is_root, |s| {
            let places = of_client(s);
            places
                .iter()
                .map(|p| p.path.display().to_string())
                .collect()
        })
    }

    #[test]
    fn the_first_that_is_named_is_the_daemons() {
        assert_eq!(daemon(FLAG, &[OWN, UNIT, XDG], true), "/flag");
        assert_eq!(daemon(None, &[OWN, UNIT, XDG], true), "/own");
        assert_eq!(daemon(None, &[UNIT, XDG], true), "/run/unit");
        assert_eq!(daemon(None, &[XDG], true), "/run/hugepool");
        assert_eq!(daemon(None, &[XDG], false), "/run/user/1000/hugepool");
        assert!(daemon(None, &[], false).starts_with("no run-time directory"));
    }

    #[test]
    fn a_configuration_file_comes_after_the_environment() {
        for (pairs, expected) in [(&[UNIT][..], "/run/unit"), (&[XDG], "/configured")] {
            let place = with(None, pairs, true, |surroundings| {
                of_daemon(&Surroundings {
                    configured: Some(Path::new("/configured")),
                    ..*surroundings
                })
            });
            assert_eq!(place.unwrap().path, Path::new(expected));
        }
    }

    #[test]
    fn an_empty_variable_names_nothing() {
        let empty = [("HUGEPOOL_RUNTIME_DIR", ""), ("RUNTIME_DIRECTORY", ""), XDG];
        assert_eq!(daemon(None, &empty, false), "/run/user/1000/hugepool");
        let only = [("RUNTIME_DIRECTORY", ":"), ("XDG_RUNTIME_DIR", "")];
        assert!(daemon(None, &only, false).starts_with("no run-time directory"));
    }

    #[test]
    fn clients_try_the_systems_place_unless_a_person_named_another() {
        assert_eq!(client(FLAG, &[OWN, XDG], false), ["/flag"]);
        assert_eq!(client(None, &[OWN, XDG], false), ["/own"]);
        assert_eq!(client(None, &[UNIT], false), ["/run/unit", "/run/hugepool"]);
        let both = ["/run/user/1000/hugepool", "/run/hugepool"];
        assert_eq!(client(None, &[XDG], false), both);
        assert_eq!(client(None, &[XDG], true), ["/run/hugepool"]);
        assert_eq!(client(None, &[], false), ["/run/hugepool"]);
    }

    #[test]
    fn nobody_anywhere_lists_the_places_and_what_named_them() {
        let places = with(None, &[XDG], false, of_client);
        let found = find(places.clone(), &|path| path == Path::new(SYSTEM_PLACE));
        assert_eq!(found.unwrap().origin, PlaceOrigin::System);
        let text = find(places, &|_| false).unwrap_err().to_string();
        assert_eq!(
            text,
            "no hugepoold found; tried /run/user/1000/hugepool ($XDG_RUNTIME_DIR), \
             /run/hugepool (the system's place)"
        );
    }
}
