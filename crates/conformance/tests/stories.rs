//! The stories on the reference engine. `UPDATE_STORIES=1` records their answers anew.

use coreplane_conformance::model::{ManualClock, ModelEngine};
use coreplane_conformance::script::{self, STORIES};
use coreplane_engine::UnixMillis;

#[test]
fn the_model_tells_them_as_recorded() {
    let update = std::env::var_os("UPDATE_STORIES").is_some();
    for (name, text) in STORIES {
        let clock = ManualClock::starting_at(UnixMillis(1_000_000));
        let engine = ModelEngine::with_clock(clock.as_clock());
        let told = script::run(&engine, Some(&clock), text);
        if update {
            let path = format!("{}/tests/scripts/{name}.txt", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, &told).unwrap();
        } else {
            assert_eq!(told, *text, "the story `{name}`");
        }
        let wrong = told.lines().find(|line| line.starts_with("error: cannot read"));
        assert_eq!(wrong, None, "in the story `{name}`");
    }
}
