//! A store over four devices that goes on when one of them is lost, and gets another.
//!
//!     cargo run --example device_loss
//!
//! A matrix has groups of devices. The keys are spread over the groups, and all devices of a group have the same
//! keys. It is a directory with a pool for each device, or a link to one on another disk.
#![allow(clippy::print_stdout, reason = "a tutorial: it shows what it does")]

use coreplane::admin::{CopyOptions, Done, MemberState, Position, Work};
use coreplane::{Ack, Db, MatrixShape, StoreConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("matrix");
    let shape = MatrixShape { groups: 2, devices: 2 };
    // `All`: a write returns when it is durable on both devices of its group.
    let config = StoreConfig::at(&path).matrix(shape).ack(Ack::All).size(16 << 20);
    let db = config.create_db()?;
    for number in 0..500_u32 {
        db.put(number.to_be_bytes(), "written to two devices")?;
    }
    db.close()?;
    drop(db);

    // The disk of one device is gone.
    let lost: Position = "g0d1".parse()?;
    std::fs::remove_file(path.join(lost.to_string()))?;

    // All records are still present, and can be written.
    let db = Db::open(&path)?;
    let matrix = db.store().matrix().ok_or("it is a matrix")?;
    for warning in matrix.warnings() {
        println!("{warning}");
    }
    assert!(matrix.is_degraded());
    assert_eq!(db.iter().count(), 500);
    db.put("meanwhile", "written to what is left of its group")?;

    // A new device is filled from its peer, while reads and writes go on.
    let done = matrix.run(Work::Replace(lost, CopyOptions::default()), &|_| {})?;
    let Done::Copied(copied) = done else { return Err("nothing was copied".into()) };
    println!("{} records were copied to {lost}", copied.records);
    assert!(matrix.member_states().contains(&(lost, MemberState::Current)));
    assert!(!matrix.is_degraded() && copied.records > 0);
    db.close()?;
    drop(db);

    // It has everything that its group has: now its peer may go.
    std::fs::remove_file(path.join("g0d0"))?;
    let db = Db::open(&path)?;
    println!("without the other device of its group there are {} records", db.len()?);
    assert_eq!((db.iter().count(), db.contains_key("meanwhile")?), (501, true));
    db.close()?;
    Ok(())
}
