//! Pages that the medium has lost: whoever looks for damage names them, and is not ended by them.

mod home;

use coreplane_engine::Engine;
use coreplane_scmkv::Placement;
use home::{Home, New, write};
use std::fs::OpenOptions;

const POOL_BYTES: u64 = 96 << 20;
/// What lies behind is lost.
const KEPT_BYTES: u64 = 40 << 20;

fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(250)
}

#[test]
fn verify_names_what_is_lost_and_goes_on() {
    for placement in [Placement::Pool, Placement::Dram] {
        let home = Home::in_memory();
        let store = home.create(New::of_size(POOL_BYTES).placed(placement));
        for number in 0..60_000_u32 {
            let key = number.to_le_bytes();
            store.put(&key, &value(number), &write()).expect("put");
        }
        let sound = store.verify(&mut |_| {}).expect("verify");
        assert!(sound.is_sound() && sound.records == 60_000, "{sound:?}");
        // A load from behind the end of a mapped file is a SIGBUS, as one from a poisoned page.
        let file = OpenOptions::new().write(true).open(home.path()).expect("open");
        file.set_len(KEPT_BYTES).expect("cut");
        let report = store.verify(&mut |_| {}).expect("verify");
        assert!(!report.is_sound(), "{placement:?}: nothing was missed");
        let beyond = report.damages.iter().filter(|damage| damage.offset >= KEPT_BYTES).count();
        assert_eq!(beyond, report.damages.len(), "{placement:?}: what was kept is sound");
        assert!(report.damages[0].what.contains("poisoned"), "{}", report.damages[0].what);
        assert!(report.records > 0 && report.records < 60_000, "{} records", report.records);
        file.set_len(POOL_BYTES).expect("restore");
    }
}
