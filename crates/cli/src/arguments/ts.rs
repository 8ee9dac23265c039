//! The arguments of time series.

use crate::scrub::PERCENT;
use crate::terms;
use clap::builder::RangedU64ValueParser;
use clap::{Arg, ArgAction, Args, Subcommand, value_parser};
use coreplane::MediaChoice;
use coreplane_tio::Policy;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Ts {
    /// Serve time series over HTTP, as InfluxDB 1.x and OpenTSDB do; a store that is not there is made first.
    Serve(TsServe),
    /// Ask in InfluxQL: a store that nobody has open, or a server.
    Query(TsQuery),
    /// Write points from line protocol, or from an export, which may be packed by gzip.
    Import(TsImport),
    /// Write the points of a database as line protocol, or all of a store: its backup.
    Export(TsExport),
    /// Show the counters of a store.
    Stats(TsAsked),
    /// Read all chunks and hold them against their checksums: exit code 0 sound, 1 damaged, 2 unusable.
    Verify(TsAsked),
    /// Make each pool of the store larger. What was cut off goes on with the same command.
    Grow(TsGrow),
}

/// A time-series store.
#[derive(Debug, Args)]
pub(crate) struct TsPool {
    /// The directory of the store's pools (q0, q1 …).
    #[arg(long, value_name = "DIR")]
    pub(crate) pool: PathBuf,
    /// The medium: auto, file, dax, emulated:PROFILE[,KEY=VALUE...] (none, optane, pcm, stt-ram, nv-cmm).
    #[arg(long, default_value = "auto")]
    pub(crate) media: MediaChoice,
}

/// A store that is asked about.
#[derive(Debug, Args)]
pub(crate) struct TsAsked {
    #[command(flatten)]
    pub(crate) pool: TsPool,
    /// Answer in JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TsGrow {
    #[command(flatten)]
    pub(crate) pool: TsPool,
    /// Answer in JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Bytes that each pool shall have, for example 8GiB.
    #[arg(long, value_parser = terms::size)]
    pub(crate) size: u64,
}

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new()
}

/// How HTTP is served.
#[derive(Debug, Clone, Args)]
pub(crate) struct Http {
    /// Addresses to listen on for HTTP.
    #[arg(long, default_value = "127.0.0.1", value_delimiter = ',', value_name = "ADDRESS")]
    pub(crate) http_bind: Vec<String>,
    /// Threads for connections of HTTP.
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    pub(crate) http_threads: usize,
    /// Connections of HTTP at a time.
    #[arg(long, default_value_t = 4096, value_parser = count().range(1..), value_name = "COUNT")]
    pub(crate) http_connections_max: usize,
    /// Bytes of a body of HTTP, before and after it is unpacked.
    #[arg(long, default_value = "25000000", value_parser = terms::some, value_name = "SIZE")]
    pub(crate) http_body_max: u64,
    /// Bytes of all bodies and answers together.
    #[arg(long, default_value = "512MiB", value_parser = terms::some, value_name = "SIZE")]
    pub(crate) http_memory_max: u64,
    /// Queries at a time; others wait for some seconds.
    #[arg(long, default_value_t = 4, value_parser = count().range(1..=65_536), value_name = "COUNT")]
    pub(crate) http_queries_max: usize,
    /// How long a query may take.
    #[arg(long, default_value = "60s", value_parser = terms::duration, value_name = "TIME")]
    pub(crate) http_query_time_max: Duration,
    /// Bytes that a query may hold.
    #[arg(long, default_value = "256MiB", value_parser = terms::some, value_name = "SIZE")]
    pub(crate) http_query_memory_max: u64,
    /// Rows of an answer that is not in chunks; 0: all.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub(crate) http_rows_max: usize,
    /// How long a connection of HTTP may be idle.
    #[arg(long, default_value = "180s", value_parser = terms::duration, value_name = "TIME")]
    pub(crate) http_timeout: Duration,
    /// The name of the user who has the password [default: any].
    #[arg(long, value_name = "NAME")]
    pub(crate) http_user: Option<String>,
    /// The database that OpenTSDB's clients write to and ask; it is made if it is not there.
    #[arg(long, default_value = "opentsdb", value_name = "NAME")]
    pub(crate) opentsdb_database: String,
    /// Numbers that OpenTSDB's clients write as strings are taken as numbers.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub(crate) opentsdb_strings_as_numbers: bool,
}

/// A store that is served. An option has `ts-` before its name, as it is beside records.
#[derive(Debug, Clone, Args)]
pub(crate) struct SeriesStore {
    /// Queue sets of a store of time series that is made, each with a pool of its own.
    #[arg(long, default_value_t = 4, value_name = "COUNT")]
    pub(crate) ts_sets: u32,
    /// Bytes of each pool of time series that is made, for example 4GiB. All of it is allocated then, so that nothing
    /// can run out later.
    #[arg(long, default_value = "1GiB", value_parser = terms::size, value_name = "SIZE")]
    pub(crate) ts_size: u64,
    /// How the queue set of a new device is chosen: rate (the least sum of rates), paper (the highest mean interval), pid (the
    /// number of the device), hash.
    #[arg(long, default_value = "rate", value_name = "POLICY")]
    pub(crate) ts_balance: Policy,
    /// The tag that states the sampling interval of a device, as 10ms [default: none; it is measured].
    #[arg(long, value_name = "KEY")]
    pub(crate) ts_interval_tag: Option<String>,
    /// Series that there may be.
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    pub(crate) ts_series_max: u64,
    /// Bytes of DRAM that names may take: those of series, tags and fields.
    #[arg(long, default_value = "1GiB", value_parser = terms::size, value_name = "SIZE")]
    pub(crate) ts_names_memory_max: u64,
    /// Hundredths of a core that the scrub takes at most, which reads all that is sealed, and says what is damaged; 0: no
    /// scrub.
    #[arg(long, default_value_t = PERCENT, value_parser = value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    pub(crate) ts_scrub_percent: u8,
    /// Threads that read for a query of many series; 0: as many as there are cores.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub(crate) ts_query_threads: usize,
    /// Bytes of DRAM that last values may take, which are kept once they were asked for; 0: none are kept.
    #[arg(long, default_value = "128MiB", value_parser = terms::size, value_name = "SIZE")]
    pub(crate) ts_last_memory_max: u64,
}

/// Where nothing else is served, an option has a name without `ts-` as well.
fn plain(option: Arg) -> Arg {
    let Some(("", name)) = option.get_long().and_then(|long| long.split_once("ts-")) else {
        return option;
    };
    // Names live as long as the process.
    let name: &'static str = name.to_owned().leak();
    let long: &'static str = format!("ts-{name}").leak();
    option.long(name).alias(long)
}

#[derive(Debug, Args)]
#[command(mut_args(plain))]
pub(crate) struct TsServe {
    #[command(flatten)]
    pub(crate) pool: TsPool,
    #[command(flatten)]
    pub(crate) store: SeriesStore,
    /// The TCP port of HTTP; 0 for any free one.
    #[arg(long, default_value_t = 8086)]
    pub(crate) http_port: u16,
    /// The file that holds the password which clients must give [default: no password].
    #[arg(long, value_name = "PATH")]
    pub(crate) requirepass_file: Option<PathBuf>,
    /// Serve clients from other machines although there is no password.
    #[arg(long)]
    pub(crate) no_protected_mode: bool,
    #[command(flatten, next_help_heading = "HTTP")]
    pub(crate) http: Http,
}

/// Time series beside a pool that is served to Redis clients, with the same password.
#[derive(Debug, Args)]
#[command(mut_args(of_series))]
pub(crate) struct SeriesBeside {
    /// Serve time series, too, on this TCP port, over HTTP as InfluxDB 1.x and OpenTSDB do; 0 for any free one.
    #[arg(long)]
    pub(crate) http_port: Option<u16>,
    #[command(flatten)]
    pub(crate) http: Http,
    /// The directory of the pools of time series [default: that of --pool, with .ts behind it].
    #[arg(long, value_name = "DIR")]
    pub(crate) ts_pool: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: SeriesStore,
}

/// The options of time series have no effect without the port on which they are served.
fn of_series(option: Arg) -> Arg {
    let id = option.get_id().as_str();
    let is_one = ["http_", "opentsdb_", "ts_"].iter().any(|start| id.starts_with(start));
    if is_one && id != "http_port" { option.requires("http_port") } else { option }
}

#[derive(Debug, Args)]
pub(crate) struct TsQuery {
    /// The directory of the store's pools, which nobody has open.
    #[arg(long, value_name = "DIR", required_unless_present = "url")]
    pub(crate) pool: Option<PathBuf>,
    /// The medium, as `ts serve` takes it.
    #[arg(long, default_value = "auto")]
    pub(crate) media: MediaChoice,
    /// Ask a server, http://HOST:PORT, in place of opening the store.
    #[arg(long, conflicts_with = "pool")]
    pub(crate) url: Option<String>,
    /// The user of that server.
    #[arg(long, requires = "url", default_value = "default")]
    pub(crate) user: String,
    /// The file that holds the password of that server.
    #[arg(long, value_name = "PATH", requires = "url")]
    pub(crate) password_file: Option<PathBuf>,
    /// The database of statements that name none.
    #[arg(long)]
    pub(crate) database: Option<String>,
    /// The retention policy of statements that name none.
    #[arg(long)]
    pub(crate) policy: Option<String>,
    /// Answer in JSON, as InfluxDB does [default: comma-separated values].
    #[arg(long)]
    pub(crate) json: bool,
    /// How long it may take.
    #[arg(long, default_value = "60s", value_parser = terms::duration)]
    pub(crate) within: Duration,
    /// Bytes that it may hold.
    #[arg(long, default_value = "1GiB", value_parser = terms::some, value_name = "SIZE")]
    pub(crate) memory_max: u64,
    /// The statements.
    pub(crate) query: String,
}

#[derive(Debug, Args)]
pub(crate) struct TsImport {
    #[command(flatten)]
    pub(crate) pool: TsPool,
    /// Answer in JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The database, which is made if it is not there [default: what headings of the text say, as InfluxDB's exports have
    /// them; their statements are run, too].
    #[arg(long)]
    pub(crate) database: Option<String>,
    /// The retention policy [default: that of a heading, or of the database].
    #[arg(long)]
    pub(crate) policy: Option<String>,
    /// How the queue set of a new device is chosen, which stays: rate, paper, pid, hash (`ts serve --help` has them).
    #[arg(long, default_value = "rate", value_name = "POLICY")]
    pub(crate) balance: Policy,
    /// The tag that states the sampling interval of a device, as 10ms [default: none; it is measured].
    #[arg(long, value_name = "KEY")]
    pub(crate) interval_tag: Option<String>,
    /// The unit of times: n, u, ms, s, m, h.
    #[arg(long, default_value = "n")]
    pub(crate) precision: String,
    /// The lines [default: the standard input].
    pub(crate) input: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TsExport {
    #[command(flatten)]
    pub(crate) pool: TsPool,
    /// The database [default: all, each policy of them, with the statements that make them, as `influx_inspect export`
    /// writes it].
    #[arg(long)]
    pub(crate) database: Option<String>,
    /// The retention policy [default: that of the database].
    #[arg(long, requires = "database")]
    pub(crate) policy: Option<String>,
    /// Pack the lines by gzip.
    #[arg(long)]
    pub(crate) gzip: bool,
    /// Where to write; a file is made or replaced when all is written [default: the standard output].
    pub(crate) output: Option<PathBuf>,
}
