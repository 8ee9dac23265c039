//! Whether all that is stored is what was written.

use super::Store;
use crate::error::Result;
use crate::set::Set;

/// What a look at everything has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Chunks that were read, and values in them.
    pub chunks: u64,
    /// Values in them.
    pub points: u64,
    /// What is damaged: of each segment, shard and series, the place.
    pub damage: Vec<String>,
}

impl Findings {
    /// True if nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

impl Store {
    /// Reads all chunks, and says what is damaged, and whose it is. `progress` is told how many segments were read, of how
    /// many. The logs were read when the store was opened.
    ///
    /// # Errors
    /// Only if it could not go on.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Findings> {
        let mut findings = Findings::default();
        findings.damage.extend(self.damage().map(str::to_owned));
        let views: Vec<_> = self.shared.sets.iter().map(|set| (set, set.view())).collect();
        let total = views
            .iter()
            .flat_map(|(_, view)| view.segments.values())
            .map(|it| it.len() as u64)
            .sum();
        let mut done = 0;
        for (set, view) in &views {
            for segment in view.segments.values().flatten() {
                // Its own: the view has its pages, and others are given back meanwhile.
                let guard = &set.pages.space().pin();
                for at in 0..segment.info.entries {
                    let entry = segment.entry(&set.pages, guard, at);
                    let chunk =
                        entry.and_then(|it| Ok((it, segment.chunk(&set.pages, guard, &it)?)));
                    match chunk {
                        Ok((entry, block)) => {
                            findings.chunks += 1;
                            findings.points += block.len() as u64;
                            if !entry.is_of(&block) {
                                findings
                                    .damage
                                    .push(format!("{entry:?} is not what its chunk has"));
                            }
                        }
                        Err(error) => findings.damage.push(error.to_string()),
                    }
                }
                done += 1;
                progress(done, total);
            }
        }
        Ok(findings)
    }

    /// Fails unless each page belongs to one log or segment, or is free.
    ///
    /// # Errors
    /// Which page, and what is wrong with it.
    #[doc(hidden)]
    pub fn check_pages(&self) -> std::result::Result<(), String> {
        let catalogue = self.shared.names.pages();
        for (number, set) in self.shared.sets.iter().enumerate() {
            let others = if number == 0 { catalogue.clone() } else { Vec::new() };
            set.check_pages(others)?;
        }
        Ok(())
    }
}

impl Set {
    fn check_pages(&self, mut used: Vec<u32>) -> std::result::Result<(), String> {
        used.extend(self.log_pages());
        let view = self.view();
        used.extend(view.segments.values().flatten().flat_map(|it| it.pages.iter().copied()));
        self.pages.check(used)
    }
}
