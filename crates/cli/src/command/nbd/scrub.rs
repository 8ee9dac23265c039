//! The scrub of a disk that is served: it reads all sectors, extent by extent, using at most a hundredth of a core.

use crate::message;
use crate::scrub::{PERCENT, Scrub};
use coreplane_tio::Disk;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Scrubs a disk until the result is dropped, and reports damaged sectors and names.
pub(super) fn begin(disk: &Arc<Disk>) -> io::Result<Scrub> {
    let disk = Arc::clone(disk);
    let (mut next, mut damaged, mut unreadable) = (0, Known::default(), Known::default());
    Scrub::begin(PERCENT, move || {
        match disk.scrub_next(&mut next) {
            Ok(found) => {
                for sector in damaged.news(next, found.damaged) {
                    message::tell(format_args!(
                        "sector {sector} is damaged: it reads as an error until it is written"
                    ));
                }
                for sector in found.names {
                    message::tell(format_args!(
                        "the name of sector {sector} in the pool was damaged; it is stored anew"
                    ));
                }
                let maps: BTreeMap<u64, _> =
                    found.unreadable_maps.into_iter().map(|it| (it.start, it)).collect();
                for start in unreadable.news(next, maps.keys().copied()) {
                    message::tell(super::of_unreadable_map(&maps[&start]));
                }
                ControlFlow::Continue(())
            }
            // Nothing more can be read.
            Err(error) => {
                message::tell(format_args!("the scrub has ended: {error}"));
                ControlFlow::Break(())
            }
        }
    })
}

/// Sectors that were reported, by extent. A sector that has been written since is forgotten when its extent is read
/// again, so that its next damage is reported, too.
#[derive(Debug, Default)]
struct Known(BTreeMap<u64, BTreeSet<u64>>);

impl Known {
    /// The sectors found in an extent that were not known.
    fn news(&mut self, extent: u64, found: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let found: BTreeSet<u64> = found.into_iter().collect();
        let known = self.0.remove(&extent).unwrap_or_default();
        let news = found.difference(&known).copied().collect();
        if !found.is_empty() {
            self.0.insert(extent, found);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_reported_once_and_again_after_a_write() {
        let mut known = Known::default();
        assert_eq!(known.news(1, [7, 9]), [7, 9]);
        assert_eq!(known.news(2, [300]), [300]);
        assert_eq!(known.news(1, [7, 8]), [8]);
        // All were written.
        assert!(known.news(1, []).is_empty());
        assert_eq!(known.news(1, [7]), [7]);
        assert!(known.news(2, [300]).is_empty());
    }
}
