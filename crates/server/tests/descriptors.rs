//! The limit of open files. It belongs to the process, so that this program has one test.

mod wire;

use coreplane_conformance::model::ModelEngine;
use coreplane_server::{Config, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use wire::{Running, config};

fn limit(current: u64, maximum: Option<u64>) {
    let limit = Rlimit { current: Some(current), maximum };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
}

fn server(max_clients: u32) -> Server {
    let config = Config { max_clients, ..config() };
    Server::bind(config, Arc::new(ModelEngine::new())).expect("bind")
}

#[test]
fn no_more_clients_are_admitted_than_find_a_descriptor() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // The limit is raised as far as that is permitted.
    limit(128, maximum);
    assert_eq!(server(500).max_clients(), 500);
    assert!(getrlimit(Resource::Nofile).current.is_none_or(|current| current > 500));
    limit(128, Some(300));
    let small = server(500);
    let places = small.max_clients();
    assert!((1..300).contains(&places), "{places}");
    let running = Running::of(small);
    let mut wire = running.connect();
    let refused = wire.say("CONFIG SET maxclients 500");
    assert!(refused.contains("try with "), "{refused}");
    assert_eq!(wire.say("CONFIG GET maxclients").matches(&format!("{places}\\r")).count(), 1);
    assert_eq!(wire.say("CONFIG SET maxclients 20"), "+OK\\r\\n");
}
