//! The pool of a node that does not run: verification and growth.

use crate::nodes::nodes;
use crate::pool::Place;
use crate::session::{Client, Outcome, Reply};
use crate::wait_for;
use std::process::{Command, Output};

fn coreplane(arguments: &[&str]) -> Outcome<Output> {
    Ok(Command::new(env!("CARGO_BIN_EXE_coreplane")).args(arguments).output()?)
}

fn verify_and_grow(map: &str) -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 1, 1, &["--replica-map", map])?;
    wait_for(&nodes[0], "leader:1")?;
    let pool = place.argument("1.pool")?;
    let mut client = Client::connect(&nodes[0].address())?;
    assert_eq!(client.call(&[b"SET", b"k", b"v"])?, Reply::ok());
    // A pool that is served is not opened by a command.
    assert_ne!(coreplane(&["grow", "--pool", &pool, "--size", "48MiB"])?.status.code(), Some(0));
    nodes[0].kill()?;
    for arguments in
        [vec!["verify", "--pool", &pool], vec!["grow", "--pool", &pool, "--size", "48MiB"]]
    {
        let done = coreplane(&arguments)?;
        assert_eq!(done.status.code(), Some(0), "{done:?}");
    }
    assert_eq!(std::fs::metadata(&pool)?.len(), 48 << 20);
    assert_eq!(coreplane(&["verify", "--pool", &pool])?.status.code(), Some(0));
    let repaired = coreplane(&["verify", "--repair", "--pool", &pool])?;
    assert!(String::from_utf8_lossy(&repaired.stderr).contains("remove the pool"), "{repaired:?}");
    nodes[0].start()?;
    wait_for(&nodes[0], "leader:1")?;
    let mut client = Client::connect(&nodes[0].address())?;
    assert_eq!(client.call(&[b"GET", b"k"])?, Reply::Bulk(Some(b"v".to_vec())));
    Ok(())
}

#[test]
fn a_pool_of_a_list_is_verified_and_grown() -> Outcome<()> {
    verify_and_grow("list")
}

#[test]
fn a_pool_of_a_tree_is_verified_and_grown() -> Outcome<()> {
    verify_and_grow("cow-tree")
}
