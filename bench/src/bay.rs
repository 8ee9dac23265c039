//! Where the devices of a matrix are that is measured: pools in a directory, which stall or are pulled
//! out as the measurement wants.

use crate::stall::{Pauses, Stalling, Weather};
use coreplane_bptree::Bptree;
use coreplane_conformance::interceptor::Intercepted;
use coreplane_engine::{Error, Result, StorageEngine};
use coreplane_mkvs::{Position, Rack, TimeSource};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Placement, Scmkv};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Which engine devices have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceEngine {
    /// `bptree`.
    Bptree,
    /// `scmkv`.
    Scmkv,
}

type Stalls = Box<dyn Fn(Position) -> Pauses + Send + Sync>;

pub(crate) struct Bay {
    directory: PathBuf,
    engine: DeviceEngine,
    /// Bytes of a device.
    size: u64,
    check_reads: bool,
    stalls: Stalls,
    weather: Arc<Weather>,
    /// What pulls each of them out.
    pulls: Mutex<BTreeMap<Position, Arc<AtomicBool>>>,
}

impl Bay {
    /// Devices that do not stall.
    pub(crate) fn new(
        directory: PathBuf,
        engine: DeviceEngine,
        size: u64,
        check_reads: bool,
    ) -> Self {
        let never = Pauses { seed: 0, period: Duration::from_secs(1), length: Duration::ZERO };
        let (stalls, weather) = (Box::new(move |_| never), Arc::default());
        Self { directory, engine, size, check_reads, stalls, weather, pulls: Mutex::default() }
    }

    /// Devices that do.
    pub(crate) fn stalling(
        self,
        stalls: impl Fn(Position) -> Pauses + Send + Sync + 'static,
        weather: &Arc<Weather>,
    ) -> Self {
        Self { stalls: Box::new(stalls), weather: Arc::clone(weather), ..self }
    }

    /// Whatever is asked of the device at a place fails from now on.
    pub(crate) fn pull(&self, place: Position) {
        let pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(is_out) = pulls.get(&place) {
            is_out.store(true, Ordering::SeqCst);
        }
    }

    fn path(&self, place: Position) -> PathBuf {
        self.directory.join(place.to_string())
    }
}

impl Rack for Bay {
    fn present(&self) -> Result<Vec<Position>> {
        let pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(pulls.keys().copied().collect())
    }

    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        let (path, media, time) = (self.path(place), MediaChoice::Auto, Some(Arc::clone(time)));
        let check_reads = self.check_reads;
        let options = coreplane_bptree::Options { time, check_reads, ..Default::default() };
        let engine: Arc<dyn StorageEngine> = match self.engine {
            DeviceEngine::Bptree => {
                let page_size = coreplane_bptree::PAGE_SIZE;
                Arc::new(Bptree::create(&path, self.size, page_size, media, &options)?)
            }
            DeviceEngine::Scmkv => {
                Arc::new(Scmkv::create(&path, self.size, media, Placement::Auto, options)?)
            }
        };
        let (pauses, weather) = ((self.stalls)(place), Arc::clone(&self.weather));
        let is_out = Arc::new(AtomicBool::new(false));
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        pulls.insert(place, Arc::clone(&is_out));
        let around = Arc::new(Stalling { pauses, weather, is_out });
        Ok(Arc::new(Intercepted { engine, around }))
    }

    fn open(&self, place: Position, _: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        Err(Error::Unusable(format!("{place} is not opened again")))
    }

    fn remove(&self, place: Position) -> Result<()> {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        match pulls.remove(&place).map(|_| std::fs::remove_file(self.path(place))) {
            Some(Err(source)) => Err(Error::Io { context: format!("remove {place}"), source }),
            _ => Ok(()),
        }
    }
}
