//! A sync that fails under several partitions.

use super::{Disk, Options};
use crate::balance::Policy;
use crate::tio::{Source, Tio};
use coreplane_pmem::MediaChoice;
use std::time::Duration;

/// The partitions are synced concurrently, and each reports its own result.
#[test]
fn a_sync_that_fails_is_told_to_those_who_wrote_there_and_to_all_who_flush() {
    for failing in [0, 1] {
        let place = tempfile::tempdir().expect("a place");
        let (media, policy) = (MediaChoice::File, Policy::Pid);
        let options =
            Options { size: 16 << 20, partitions: 2, media, policy, ..Options::default() };
        let disk = Disk::create(&place.path().join("disk"), &options).expect("a disk");
        let source = |connection| {
            let interval = Some(Duration::from_millis(1));
            Source { connection, device: None, interval }
        };
        let write = |extent: u64, byte| {
            let bytes = vec![byte; options.sector_len as usize];
            Tio { fua: true, ..Tio::write(extent * disk.shared.extent_len(), bytes) }
        };
        for connection in [0, 1] {
            let mut tios = [write(connection, 1)];
            disk.run(&source(connection), &mut tios);
            assert!(tios[0].outcome.is_ok());
            assert_eq!(disk.shared.owner(connection), Some(connection as usize));
        }
        disk.shared.volumes[failing].pool().space().fail_syncs();
        let mut tios = [write(0, 2), write(1, 2)];
        disk.run(&source(0), &mut tios);
        let failed = tios.each_ref().map(|tio| tio.outcome.is_err());
        assert_eq!(failed, [failing == 0, failing == 1]);
        assert!(disk.flush().is_err() && disk.flush().is_err());
    }
}
