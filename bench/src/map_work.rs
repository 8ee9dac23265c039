//! How much is done to a map.

/// What the workloads `commits`, `turnover` and `interference` do beside what a [`Plan`](crate::Plan) says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
#[group(skip)]
pub struct MapWork {
    /// commits, turnover: writes that share a commit.
    #[arg(long, default_value_t = MapWork::default().group)]
    pub group: usize,
    /// commits: how often all records are inserted, read and deleted, after a time that does not count.
    #[arg(long, default_value_t = MapWork::default().cycles)]
    pub cycles: u64,
    /// turnover: overwrites of each record.
    #[arg(long, default_value_t = MapWork::default().times)]
    pub times: u64,
    /// interference: percent of the records that a load can put in, the newest and those that a snapshot keeps
    /// together.
    #[arg(long, default_value_t = MapWork::default().fullness)]
    pub fullness: u64,
    /// interference: the pool in which nothing is to be cleaned is so many times as large as the other.
    #[arg(long, default_value_t = MapWork::default().room)]
    pub room: u64,
    /// interference: overwrites a second, each timed from when it was due; 0: each begins when the last has ended.
    #[arg(long, default_value_t = MapWork::default().put_rate)]
    pub put_rate: u64,
}

impl Default for MapWork {
    /// The thesis's commit every ten writes.
    fn default() -> Self {
        Self { group: 10, cycles: 10, times: 100, fullness: 70, room: 16, put_rate: 0 }
    }
}
