//! Sizes as people write them: `4KiB`, `512MiB`, `2GiB`; `512M` and `2G` mean the same.
//!
//! Always binary. `MB`, which some read as a million, is refused rather than guessed.

use std::fmt;

/// A number of bytes that prints as its largest whole binary unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No digits at the start.
    #[error("`{0}` is not a size: write a number and a unit, like 512MiB or 2G")]
    NoNumber(String),
    /// A unit that does not say whether it is binary, or is none.
    #[error("`{unit}` in `{text}` is not a unit: use KiB, MiB, GiB or TiB (or K, M, G, T)")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// What followed the number.
        unit: String,
    },
    /// More than 64 bits of bytes.
    #[error("`{0}` is too large: sizes end at 16777215TiB")]
    TooLarge(String),
}

/// Units by the power of two they stand for, largest first.
const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];

/// Reads a size; a bare number is bytes.
///
/// # Errors
/// [`SizeError`] says what is wrong with the text and what would be right.
pub fn parse(text: &str) -> Result<Bytes, SizeError> {
    let trimmed = text.trim();
    let digits = trimmed.len()
        - trimmed
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .len();
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::NoNumber(text.to_owned()));
    }
    let number: u64 = number
        .parse()
        .map_err(|_| SizeError::TooLarge(text.to_owned()))?;
    let unit = unit.trim();
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => {
            return Err(SizeError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
            });
        }
    };
    number
        .checked_mul(1 << shift)
        .map(Bytes)
        .ok_or_else(|| SizeError::TooLarge(text.to_owned()))
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in UNITS {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl std::str::FromStr for Bytes {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Bytes, SizeError> {
        parse(text)
    }
}

impl<'de> serde::Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).map_err(serde::de::Error::custom)
    }
}

impl serde::Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl schemars::JsonSchema for Bytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "size" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_short_units_mean_the_same() {
        for (text, bytes) in [
            ("4KiB", 4 << 10),
            ("4k", 4 << 10),
            ("512MiB", 512 << 20),
            ("512M", 512 << 20),
            ("2GiB", 2 << 30),
            ("2G", 2 << 30),
            ("1TiB", 1 << 40),
            ("1 t", 1 << 40),
            ("4096", 4096),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_could_be_read_two_ways_is_refused() {
        for text in ["512MB", "1.5GiB", "2GB", "12 apples"] {
            assert!(
                matches!(parse(text), Err(SizeError::UnknownUnit { .. })),
                "{text}"
            );
        }
        for text in ["", "MiB", "-1M", " "] {
            assert!(matches!(parse(text), Err(SizeError::NoNumber(_))), "{text}");
        }
        for text in ["16777216TiB", "99999999999999999999"] {
            assert!(matches!(parse(text), Err(SizeError::TooLarge(_))), "{text}");
        }
    }

    #[test]
    fn printing_gives_back_what_was_read() {
        for text in [
            "4KiB",
            "512MiB",
            "2GiB",
            "1TiB",
            "1000B",
            "0B",
            "16777215TiB",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }
}
