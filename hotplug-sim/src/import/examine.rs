//! What must hold for any bytes at all: the one function that every fuzzer of the parsers calls.

use super::format::Format;
use super::machine::{Machine, MachineError};
use super::table::Table;

/// Imports bytes, sniffed or as one format, and does with the result all that the commands do:
/// prints it both ways, saves it as a machine, reads that back.
///
/// # Errors
/// Something that must hold does not. A panic is as much a finding.
pub fn examine(bytes: &[u8], only: Option<Format>) -> Result<(), String> {
    let outcome = super::import(&[("text".to_owned(), bytes.to_vec())], only);
    let Some(import) = outcome.import else {
        let is_told = outcome.nothing.iter().any(|line| line.contains(':'));
        return if is_told {
            Ok(())
        } else {
            Err("nothing understood, and not a word why".to_owned())
        };
    };
    serde_json::to_writer(std::io::sink(), &import).map_err(|error| error.to_string())?;
    let _ = Table(&import).to_string();
    let nr_lines = bytes.split(|byte| *byte == b'\n').count() as u64;
    for one in &import.diagnostics {
        if one.line > nr_lines || one.what.is_empty() {
            return Err(format!(
                "a remark about line {} of {nr_lines}: {:?}",
                one.line, one.what
            ));
        }
    }
    let machine = Machine::of(&import, vec!["text".to_owned()]);
    match machine.to_toml() {
        // A number that TOML cannot hold.
        Err(MachineError::Write(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(text) => match Machine::from_toml(&text) {
            Ok(again) if again == machine => Ok(()),
            Ok(_) => Err("a saved machine reads back as another".to_owned()),
            Err(error) => Err(format!("a saved machine cannot be read: {error}")),
        },
    }
}
