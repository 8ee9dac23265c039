//! The remaining limits of a query: the memory that it may hold, counted in samples, and its time.

use crate::host::Unwanted;
use crate::influx::Refused;
use coreplane_tsdb::Work;
use std::time::{Duration, Instant};

/// Bytes of a sample.
const SAMPLE: usize = size_of::<(i64, f64)>();

/// Nanoseconds to list a series, to look at a value of a tag, or to look for an expression in a byte of it, about.
const SERIES_NS: u64 = 100;

/// See the module.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) deadline: Instant,
    pub(super) samples: usize,
    pub(super) intervals: u64,
    /// True once the client has disconnected.
    pub(super) unwanted: Unwanted,
}

impl Meter {
    /// A meter for so many bytes, and for a time from now on.
    pub(super) fn new(bytes: usize, intervals: u64, within: Duration, unwanted: &Unwanted) -> Self {
        let (deadline, unwanted) = (Instant::now() + within, unwanted.clone());
        Self { deadline, samples: bytes / SAMPLE, intervals, unwanted }
    }

    /// Takes so many samples.
    pub(super) fn take(&mut self, samples: usize) -> Result<(), Refused> {
        self.check()?;
        self.samples = self.samples.checked_sub(samples).ok_or_else(Self::too_many)?;
        Ok(())
    }

    /// Takes bytes of something else; returns the number of samples that have the same room.
    pub(super) fn take_bytes(&mut self, bytes: usize) -> Result<usize, Refused> {
        let samples = bytes.div_ceil(SAMPLE);
        self.check()?;
        self.samples = self.samples.checked_sub(samples).ok_or_else(Self::too_many_series)?;
        Ok(samples)
    }

    /// Gives bytes back that [`Meter::take_bytes`] has taken.
    pub(super) fn give_bytes(&mut self, bytes: usize) {
        self.samples += bytes.div_ceil(SAMPLE);
    }

    /// Refuses another sample beside so many that are held and not taken yet.
    pub(super) fn may_hold(&self, held: usize) -> Result<(), Refused> {
        if held < self.samples { Ok(()) } else { Err(Self::too_many()) }
    }

    /// Refuses a step of a search for series without time and memory for it.
    pub(super) fn may_search(&self, work: Work) -> Result<(), Refused> {
        // A number and a reference for each take as much as a sample, and a copy of a value twice as much.
        let (of, samples) = match work {
            Work::Look(values) => (values, values.saturating_mul(2)),
            Work::List(series) => (series, series),
            Work::Match(bytes) => (bytes, 0),
        };
        self.check_within(Duration::from_nanos(SERIES_NS.saturating_mul(of as u64)))?;
        if samples > self.samples { Err(Self::too_many_series()) } else { Ok(()) }
    }

    pub(super) fn too_many() -> Refused {
        Refused::new(413, "the query has too many points: ask for less time, or downsample")
    }

    fn too_many_series() -> Refused {
        Refused::new(413, "the query has too many series: ask for fewer")
    }

    pub(super) fn check(&self) -> Result<(), Refused> {
        self.check_within(Duration::ZERO)
    }

    fn check_within(&self, within: Duration) -> Result<(), Refused> {
        if self.unwanted.get() {
            // No client reads the answer.
            return Err(Refused::new(503, "whoever asked has gone"));
        }
        if Instant::now() + within < self.deadline {
            return Ok(());
        }
        Err(Refused::new(504, "the query takes too long: ask for less time, or for fewer series"))
    }
}
