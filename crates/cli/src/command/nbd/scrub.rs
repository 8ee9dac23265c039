//! The scrub of a disk that is served: it reads all sectors, extent by extent, using at most a hundredth of a core.

use crate::scrub::{PERCENT, Scrub};
use coreplane_tio::Disk;
use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Scrubs a disk until the result is dropped, and reports damaged sectors and names.
pub(super) fn begin(disk: &Arc<Disk>) -> io::Result<Scrub> {
    let disk = Arc::clone(disk);
    let (mut next, mut known, mut known_maps) = (0, BTreeSet::new(), BTreeSet::new());
    Scrub::begin(PERCENT, move || {
        match disk.scrub_next(&mut next) {
            Ok(found) => {
                for sector in found.damaged.into_iter().filter(|sector| known.insert(*sector)) {
                    eprintln!(
                        "coreplane: sector {sector} is damaged: it reads as an error until it is written"
                    );
                }
                for sector in found.names {
                    eprintln!(
                        "coreplane: the name of sector {sector} in the pool was damaged; it is stored anew"
                    );
                }
                for sectors in found.unreadable_maps {
                    if known_maps.insert(sectors.start) {
                        eprintln!("coreplane: {}", super::of_unreadable_map(&sectors));
                    }
                }
                ControlFlow::Continue(())
            }
            // Nothing more can be read.
            Err(error) => {
                eprintln!("coreplane: the scrub has ended: {error}");
                ControlFlow::Break(())
            }
        }
    })
}
