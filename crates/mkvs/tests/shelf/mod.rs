//! A rack of pools in a directory in memory.
#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod pulled;

use coreplane_bptree::Bptree;
use coreplane_engine::{Engine, Error, Result};
use coreplane_mkvs::{Position, Rack, TimeSource};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Placement, Scmkv};
use pulled::{Pulled, Switch};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Which engine the devices have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bptree,
    Scmkv,
}

/// Pools in a directory that goes when it is dropped.
pub(crate) struct Shelf {
    directory: tempfile::TempDir,
    kind: Kind,
    size: u64,
    /// The devices that were opened, and what is done to them.
    switches: Mutex<HashMap<Position, Arc<Switch>>>,
}

impl Shelf {
    pub(crate) fn new(kind: Kind, size: u64) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        Self { directory, kind, size, switches: Mutex::default() }
    }

    pub(crate) fn path(&self, place: Position) -> PathBuf {
        self.directory.path().join(place.to_string())
    }

    /// From now on every call of the device fails.
    pub(crate) fn pull(&self, place: Position) {
        self.switch(place).is_out.store(true, Ordering::SeqCst);
    }

    /// What is done to a device.
    pub(crate) fn switch(&self, place: Position) -> Arc<Switch> {
        Arc::clone(&self.switches.lock().expect("lock")[&place])
    }

    /// The device answers again, with what it has.
    pub(crate) fn put_back(&self, place: Position) {
        let switches = self.switches.lock().expect("lock");
        switches[&place].is_out.store(false, Ordering::SeqCst);
    }

    fn with_switch(&self, place: Position, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let switch = Arc::new(Switch::default());
        self.switches.lock().expect("lock").insert(place, Arc::clone(&switch));
        Arc::new(Pulled { engine, switch })
    }
}

impl Rack for Shelf {
    fn present(&self) -> Result<Vec<Position>> {
        let places = (0..16).flat_map(|group| (0..8).map(move |device| Position { group, device }));
        Ok(places.filter(|place| self.path(*place).exists()).collect())
    }

    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn Engine>> {
        let path = self.path(place);
        if path.exists() {
            return Err(Error::Unusable(format!("there is a device at {place}")));
        }
        let time = Some(Arc::clone(time));
        let engine: Arc<dyn Engine> = match self.kind {
            Kind::Bptree => {
                let options = coreplane_bptree::Options { time, ..Default::default() };
                Arc::new(Bptree::create(&path, self.size, 8192, MediaChoice::Auto, &options)?)
            }
            Kind::Scmkv => {
                let options = coreplane_scmkv::Options { time, ..Default::default() };
                let (media, placement) = (MediaChoice::Auto, Placement::Auto);
                Arc::new(Scmkv::create(&path, self.size, media, placement, options)?)
            }
        };
        Ok(self.with_switch(place, engine))
    }

    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn Engine>> {
        let (path, time) = (self.path(place), Some(Arc::clone(time)));
        let engine: Arc<dyn Engine> = match self.kind {
            Kind::Bptree => {
                let options = coreplane_bptree::Options { time, ..Default::default() };
                Arc::new(Bptree::open(&path, MediaChoice::Auto, &options, &|_| {})?)
            }
            Kind::Scmkv => {
                let options = coreplane_scmkv::Options { time, ..Default::default() };
                Arc::new(Scmkv::open(&path, MediaChoice::Auto, options)?)
            }
        };
        Ok(self.with_switch(place, engine))
    }

    fn remove(&self, place: Position) -> Result<()> {
        match std::fs::remove_file(self.path(place)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { context: "remove a device".to_owned(), source: error })
            }
            _ => Ok(()),
        }
    }
}
