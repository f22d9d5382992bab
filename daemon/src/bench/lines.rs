//! A line of output: numbers and plain words, no text that would need escaping.

use std::fmt::{Display, Write as _};
use std::io::{self, Write};

/// A JSON object that grows field by field.
#[derive(Clone, Debug)]
pub struct Line(String);

impl Line {
    /// What was measured, on how many, in what.
    pub fn case(case: &str, n: u64, unit: &str) -> Line {
        Line(format!(r#"{{"case":"{case}","n":{n},"unit":"{unit}""#))
    }

    /// A number that names the arm.
    #[must_use]
    pub fn number(mut self, name: &str, value: impl Display) -> Line {
        // Writing to a string cannot fail.
        let _ = write!(self.0, r#","{name}":{value}"#);
        self
    }

    /// A word that names the arm.
    #[must_use]
    pub fn word(mut self, name: &str, value: &str) -> Line {
        let _ = write!(self.0, r#","{name}":"{value}""#);
        self
    }

    /// Prints it with what was measured.
    pub fn print(mut self, samples: &[f64], out: &mut dyn Write) -> io::Result<()> {
        self.0.push_str(r#","samples":["#);
        for (at, sample) in samples.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(self.0, "{comma}{sample:.6}");
        }
        self.0.push_str("]}\n");
        out.write_all(self.0.as_bytes())?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object() {
        let mut out = Vec::new();
        let line = Line::case("check", 1, "ns/call")
            .number("hole", 0)
            .word("walk", "extents");
        line.print(&[1.5, 2.0], &mut out).unwrap();
        let text = r#"{"case":"check","n":1,"unit":"ns/call","hole":0,"walk":"extents","samples":[1.500000,2.000000]}"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("{text}\n"));
    }
}
