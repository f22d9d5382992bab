//! `/proc/buddyinfo`: free blocks by order, one line for each zone.
//!
//! `Node 0, zone   Normal    460    485 …`: as many columns as the kernel has orders, 9 to
//! 17 of them. The kernel pads each to six places, people do not.

use super::draft::{Aspect, Draft};
use super::format::Format;
use super::line::Line;
use super::outcome::{Outcome, zone_heading};
use super::text;

/// No kernel has fewer orders than this; a shorter last line was cut.
const LEAST_ORDERS: usize = 7;

/// Most kernels have so many.
const USUAL_ORDERS: usize = 11;

/// What the lines before had in common.
#[derive(Clone, Debug, Default)]
pub struct Buddyinfo {
    /// Number of orders, and the column at which the last number ended.
    shape: Option<(usize, usize)>,
}

impl Buddyinfo {
    /// Reads a line.
    pub fn line(&mut self, line: &Line<'_>, draft: &mut Draft) -> Outcome {
        let Some((node, name, rest)) = zone_heading(line.body()) else {
            return Outcome::No;
        };
        let words: Vec<&[u8]> = text::words(rest).collect();
        if words
            .first()
            .is_none_or(|word| text::counter(word).is_none())
        {
            return Outcome::No;
        }
        // The row may go on in the next line: a mail has wrapped it.
        let usual = self.shape.map_or(USUAL_ORDERS, |(orders, _)| orders);
        if line.wraps && words.len() < usual {
            return Outcome::More;
        }
        let name = text::lossy(name);
        let mut blocks = Vec::with_capacity(words.len());
        for (order, word) in words.iter().enumerate() {
            match text::counter(word) {
                Some(counter) => blocks.push(Some(draft.value(
                    line.number,
                    &format!("order {order} of zone {name} of node {node}"),
                    counter,
                ))),
                None => {
                    draft.warn(
                        line.number,
                        format!(
                            "order {order} of zone {name} of node {node} is no number: {}",
                            text::lossy(word)
                        ),
                    );
                    blocks.push(None);
                }
            }
        }
        let end = line.text.len();
        let cut = line.cut && self.stops_short(blocks.len(), end, rest);
        if cut {
            blocks.pop();
            draft.cut(
                line.number,
                format!("the input ends in the orders of zone {name} of node {node}"),
            );
        } else if self.shape.is_some_and(|(orders, _)| orders != blocks.len()) {
            draft.warn(
                line.number,
                format!(
                    "zone {name} of node {node} has {} orders, the line before has another number",
                    blocks.len()
                ),
            );
        }
        if line.cut && !cut {
            draft.note(
                line.number,
                "the last line has no line feed; its last number is taken as whole",
            );
        }
        self.shape = Some((blocks.len(), end));
        let zone = draft.zones.show(node, &name, Aspect::Buddy, line.number);
        zone.free_blocks = Some(blocks);
        zone.list_cut = cut;
        draft.met(Format::Buddyinfo);
        Outcome::Yes
    }

    /// Whether the last line, which has no line feed, shows that its last number is not complete.
    fn stops_short(&self, orders: usize, end: usize, columns: &[u8]) -> bool {
        match self.shape {
            Some((others, other_end)) => orders < others || (is_padded(columns) && end < other_end),
            None => orders < LEAST_ORDERS,
        }
    }
}

/// Whether the numbers are padded as the kernel pads them.
fn is_padded(columns: &[u8]) -> bool {
    columns.windows(3).any(|three| three == b"   ")
}
