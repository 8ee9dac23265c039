//! A node whose pool is gone is filled again, for any kind of map.

use crate::load::while_clients_work;
use crate::nodes::nodes;
use crate::pool::Place;
use crate::session::Outcome;
use crate::{PATIENCE, applied, wait_for};
use std::time::{Duration, Instant};

/// A node's pool is removed: the node is filled again, and votes again.
fn wipes(more: &[&str], remove: &dyn Fn(&Place, &str) -> Outcome<()>) -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 3, more)?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    while_clients_work(&mut nodes, &ports, |nodes| {
        for victim in [1, 0] {
            let since = Instant::now();
            let before = loop {
                std::thread::sleep(Duration::from_millis(300));
                let before = applied(&nodes[victim])?;
                if before > 100 {
                    break before;
                }
                assert!(since.elapsed() < PATIENCE, "clients have not written");
            };
            nodes[victim].kill()?;
            remove(&place, &format!("{}.pool", victim + 1))?;
            nodes[victim].start()?;
            let since = Instant::now();
            while applied(&nodes[victim])? < before {
                assert!(since.elapsed() < PATIENCE, "it is not filled");
                std::thread::sleep(Duration::from_millis(20));
            }
            wait_for(&nodes[2], &format!("node:{} voter", victim + 1))?;
            std::thread::sleep(Duration::from_millis(300));
        }
        // It takes part again: without the third node the two of them go on.
        nodes[2].kill()?;
        std::thread::sleep(Duration::from_millis(1500));
        nodes[2].start()
    })
}

#[test]
fn a_node_that_was_wiped_comes_back() -> Outcome<()> {
    wipes(&[], &|place, name| place.pool(name)?.remove())
}

#[test]
fn a_node_whose_log_is_gone_comes_back() -> Outcome<()> {
    wipes(&["--replica-map", "wal"], &|place, name| {
        Ok(std::fs::remove_dir_all(place.argument(name)?)?)
    })
}

#[test]
fn a_node_whose_log_in_a_pool_is_gone_comes_back() -> Outcome<()> {
    wipes(&["--replica-map", "wal-pool"], &|place, name| place.pool(name)?.remove())
}
