//! The physical floors, run beside the peers.

use crate::{Error, Peer, Result};
use coreplane::MediaChoice;
use coreplane_bench::{Floor, FloorIndex, FloorRoom, Plan};
use serde_json::{Value, json};
use std::path::Path;

/// A floor in `directory`.
pub(crate) fn open(name: &str, directory: &Path, plan: &Plan, room: FloorRoom) -> Result<Floor> {
    let (placement, is_seen) = match name.strip_suffix("-seen") {
        Some(placement) => (placement, true),
        None => (name, false),
    };
    let index = match placement {
        "floor-pmem" => FloorIndex::Pmem,
        "floor-dram" => FloorIndex::Dram,
        _ => return Err(Error::Plan(format!("`{name}` is no floor"))),
    };
    let file = directory.join("floor");
    Ok(Floor::with_room(&file, MediaChoice::Auto, plan, index, room)?.seen(is_seen))
}

impl Peer for Floor {
    fn settings(&self) -> Value {
        json!({"medium": self.medium().name, "durability": "flush and fence at each write"})
    }
}
