//! Commit records of batches: they live as long as a page that they name. When one is copied the
//! cleaner remembers the copy, and counts it dead when the last of those pages is freed; the copies
//! of an earlier run of the store count as dead, and are copied and remembered once more.

use crate::clean::Cleaner;
use crate::clean::CleanerState;
use crate::clean::copies::Moving;
use crate::table::log::Appended;
use crate::table::page;
use crate::table::run::Run;
use coreplane_engine::Result;
use coreplane_pmem::mutant;
use coreplane_record::View;

/// A commit record that was copied because it is still needed.
#[derive(Debug)]
pub(super) struct CommitCopy {
    pub(super) appended: Appended,
    /// The pages with its batch's members, and their generations.
    pub(super) members: Vec<(u32, u32)>,
}

impl Cleaner {
    /// Copies a commit record while another page may hold batched records of it.
    pub(super) fn clean_commit(
        &self,
        state: &mut CleanerState,
        view: &View<'_>,
        moving: &mut Moving<'_>,
    ) -> Result<()> {
        let here = self.space.page_of(view.offset);
        let members: Vec<_> = Run::decode_all(view.value())
            .map(|run| (self.space.page_of(run.start), run.generation))
            .filter(|member| member.0 != here && self.is_there(*member))
            .collect();
        if !members.is_empty() && !mutant!("scmkv.clean.forget_commit") {
            self.room_for_copy(state, view.len() as usize, moving)?;
            let appended = self.append_copy(state, &view.header, &[], view.value(), moving)?;
            self.count_commit(state, appended);
            moving.commits.push(CommitCopy { appended, members });
        }
        Ok(())
    }

    /// True if a log page still has this generation.
    fn is_there(&self, (page, generation): (u32, u32)) -> bool {
        page < self.pages.len() && {
            let cell = self.pages.cell(page);
            cell.kind() == Some(page::Kind::Log) && cell.generation() == generation
        }
    }

    /// Counts the copies of commit records that are no longer needed as dead.
    pub(super) fn forget_commits(&self, state: &mut CleanerState) {
        state.commits.retain(|commit| {
            let needed = commit.members.iter().any(|member| self.is_there(*member));
            if !needed {
                self.add_toll(commit.appended.offset, -i64::from(commit.appended.len));
            }
            needed
        });
    }
}
