//! Sections come and go: add and remove, and the table of what may follow what.
//!
//! Two phases up and two down, each a pair of calls where the caller has slow work to
//! do in between (backing, recalls). Every call either makes its transition or leaves
//! everything as it was. What happens to pages is [`online`](crate::online).
//!
//! | from | verb | to |
//! |---|---|---|
//! | Absent | `begin_add` | Adding |
//! | Adding | `finish_add`, `finish_add_with_holes` | Offline |
//! | Adding | `abort_add` | Absent |
//! | Offline | `online` | Online |
//! | Online | `isolate` | GoingOffline |
//! | GoingOffline | `undo_isolate` | Online |
//! | GoingOffline | `finish_offline` | Offline |
//! | Offline | `begin_remove` | Removing |
//! | Removing | `abort_remove` | Offline |
//! | Removing | `finish_remove` | Absent |

use crate::num::{index, low_u32};
use crate::section::Section;
use crate::{PfnRange, SectionError, SectionId, SectionState, Zone};

impl Zone {
    /// Starts to add an absent section: its backing is about to be made.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn begin_add(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Absent)?;
        self.sections[index(at)].state = SectionState::Adding;
        self.absent_sections.remove(at);
        Ok(())
    }

    /// The backing could not be made: the section is absent again.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn abort_add(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Adding)?;
        self.sections[index(at)].state = SectionState::Absent;
        self.absent_sections.insert(at);
        Ok(())
    }

    /// The backing is there: all pages of the section are present, and it is offline.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn finish_add(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Adding)?;
        self.set_present(at, self.geometry.section_pages(), None);
        Ok(())
    }

    /// As [`finish_add`](Self::finish_add) for a section of which only `extents` exist.
    ///
    /// # Errors
    /// As there, and [`SectionError::BadExtents`] if the extents are not ascending,
    /// apart, inside the section, and at least one page.
    pub fn finish_add_with_holes(
        &mut self,
        section: SectionId,
        extents: &[PfnRange],
    ) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Adding)?;
        let range = self.geometry.section_range(section);
        let ascending = extents.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let inside = extents
            .iter()
            .all(|extent| !extent.is_empty() && range.covers(*extent));
        if extents.is_empty() || !ascending || !inside {
            return Err(SectionError::BadExtents { section });
        }
        // Extents that touch are one, so that a pageblock is whole if one extent has it.
        let mut joined: Vec<PfnRange> = Vec::with_capacity(extents.len());
        for &extent in extents {
            match joined.last_mut().filter(|last| last.end == extent.start) {
                Some(last) => last.end = extent.end,
                None => joined.push(extent),
            }
        }
        let present = low_u32(joined.iter().map(|extent| extent.nr_pages()).sum());
        let is_whole = joined == [range];
        self.set_present(at, present, (!is_whole).then(|| joined.into_boxed_slice()));
        Ok(())
    }

    /// Starts to remove an offline section: its backing is about to be given up.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn begin_remove(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Offline)?;
        self.sections[index(at)].state = SectionState::Removing;
        Ok(())
    }

    /// The backing could not be given up: the section is offline again.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn abort_remove(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Removing)?;
        self.sections[index(at)].state = SectionState::Offline;
        Ok(())
    }

    /// The backing is gone: the section is absent, and the span shrinks if it was outermost.
    ///
    /// # Errors
    /// [`SectionError::NotInZone`], [`SectionError::WrongState`].
    pub fn finish_remove(&mut self, section: SectionId) -> Result<(), SectionError> {
        let at = self.expect_state(section, SectionState::Removing)?;
        let row = core::mem::take(&mut self.sections[index(at)]);
        self.present = self
            .present
            .checked_sub(u64::from(row.present))
            .expect("a zone has its sections' pages");
        self.present_sections.remove(at);
        self.span = self.find_span();
        self.absent_sections.insert(at);
        self.contiguity_changed();
        Ok(())
    }

    pub(crate) fn expect_state(
        &self,
        section: SectionId,
        wanted: SectionState,
    ) -> Result<u32, SectionError> {
        let Some(at) = self.section_index(section) else {
            return Err(SectionError::NotInZone { section });
        };
        let state = self.sections[index(at)].state;
        if state != wanted {
            return Err(SectionError::WrongState { section, state });
        }
        Ok(at)
    }

    fn set_present(&mut self, at: u32, present: u32, extents: Option<Box<[PfnRange]>>) {
        self.sections[index(at)] = Section {
            state: SectionState::Offline,
            present,
            managed: 0,
            reserved: 0,
            extents,
        };
        self.present += u64::from(present);
        self.present_sections.insert(at);
        self.span = self.find_span();
        self.contiguity_changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OnlineOrder;
    use crate::fixture::{bring_online, zone};

    const ONE: SectionId = SectionId::new(1);

    #[test]
    fn each_verb_starts_from_its_own_state_only() {
        type Verb = fn(&mut Zone) -> Result<(), SectionError>;
        let verbs: [(SectionState, Verb); 9] = [
            (SectionState::Absent, |zone| zone.begin_add(ONE)),
            (SectionState::Adding, |zone| zone.abort_add(ONE)),
            (SectionState::Adding, |zone| zone.finish_add(ONE)),
            (SectionState::Offline, |zone| {
                zone.online(ONE, OnlineOrder::Page).map(drop)
            }),
            (SectionState::Online, |zone| zone.isolate(ONE).map(drop)),
            (SectionState::GoingOffline, |zone| zone.undo_isolate(ONE)),
            (SectionState::GoingOffline, |zone| zone.finish_offline(ONE)),
            (SectionState::Offline, |zone| zone.begin_remove(ONE)),
            (SectionState::Removing, |zone| zone.finish_remove(ONE)),
        ];
        // One way through all states; at each, every verb of another state is refused.
        let mut zone = zone();
        for step in [0, 2, 3, 4, 5, 4, 6, 7, 8] {
            let state = zone.section_state(ONE).unwrap();
            for (from, verb) in &verbs {
                if *from != state {
                    let refused = SectionError::WrongState {
                        section: ONE,
                        state,
                    };
                    assert_eq!(verb(&mut zone), Err(refused));
                }
            }
            verbs[step].1(&mut zone).unwrap();
            zone.verify().unwrap();
        }
        assert_eq!(zone.section_state(ONE), Some(SectionState::Absent));
        let nowhere = SectionId::new(9);
        assert_eq!(
            zone.begin_add(nowhere),
            Err(SectionError::NotInZone { section: nowhere })
        );
    }

    #[test]
    fn bad_extents_leave_the_section_adding() {
        let mut zone = zone();
        zone.begin_add(ONE).unwrap();
        let range = |start, end| PfnRange { start, end };
        for extents in [
            vec![],
            vec![range(200, 300)],
            vec![range(300, 300)],
            vec![range(300, 400), range(399, 420)],
            vec![range(400, 420), range(300, 310)],
            vec![range(500, 513)],
        ] {
            let refused = Err(SectionError::BadExtents { section: ONE });
            assert_eq!(zone.finish_add_with_holes(ONE, &extents), refused);
        }
        assert_eq!(zone.section_state(ONE), Some(SectionState::Adding));
        assert_eq!(zone.finish_add_with_holes(ONE, &[range(256, 512)]), Ok(()));
        assert!(zone.sections[0].is_whole());
    }

    #[test]
    fn the_lowest_absent_sections_are_offered() {
        let mut zone = zone();
        bring_online(&mut zone, 2);
        let ids = |ids: Vec<SectionId>| ids.into_iter().map(SectionId::get).collect::<Vec<_>>();
        assert_eq!(ids(zone.lowest_absent(2)), [1, 3]);
        assert_eq!(ids(zone.lowest_absent(9)), [1, 3, 4]);
    }
}
