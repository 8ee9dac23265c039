//! `cargo xtask measure`: what is promised about speed, measured in one run beside the floors and
//! the peers.
//!
//! A figure of a shared machine is weather. So everything that is to be compared runs in one
//! command and on one mount, contender after contender, round after round ([`Rounds`]), and what
//! is reported are medians, ratios first. The work itself is done by release binaries, built here
//! first: `coreplane` for us, `coreplane-bench-peers` for peers and floors.
//!
//! ```text
//!   measure X ──► build ──► mount a tmpfs ──► rounds of child processes, JSON lines ──► raw.jsonl
//!                                                                                   └─► README.md, *.svg
//! ```
//!
//! Every child runs under `timeout`; a contender that fails is reported as failed, and the others
//! go on. What is mounted is unmounted at the end, and after a broken run by the next one.
//!
//! `cargo xtask measure` installs the servers and libraries that are measured beside, and builds this.
#![allow(clippy::print_stdout, reason = "a command for people: what it prints is its result")]

mod chart;
mod child;
mod competition;
mod cost;
mod disk;
mod drivers;
mod engines;
mod figures;
mod filter;
mod flags;
mod machine;
mod maps;
mod matrix;
mod mount;
mod occupancy;
mod ordered;
mod record;
mod restart;
mod resync;
mod rounds;
mod sector;
mod series;
mod server;
mod server_process;
mod span;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rounds::Rounds;

/// An answer or a reason, for people.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "\
cargo xtask measure competition|cost|disk|drivers|engines|figures|filter|maps|matrix|occupancy|ordered|restart|resync|series|server [OPTION…]

  disk      coreplane nbd serve beside nbdkit, a loop device and a floor: 4 KiB at random, read and written, one
            connection and four, depth 1 and 16; in memory, and in files with each write durable. Needs root
            --contenders floor,coreplane,coreplane+single,coreplane+sync,nbdkit,nbdkit+malloc,loop
            --disk DIR  --disk-contenders coreplane,nbdkit,loop (no value: none)
            --size MiB  --ms N (of a cell)  --connections 1,4  --depths 1,16
            --placing free|apart|together (servers on the last processor; clients on the others, or there)
  drivers   the drivers of a disk of four partitions (multi, single, sync), by the library: sources of four threads
            that write; then devices with skewed intervals, by each way to bind them to queue sets. --media has +
            for commas
            --drivers multi,single,sync  --sources 1,2,3,4,5,6  --lens 4096,256
            --media none,optane+channels=1+wait=yield,…  --ms N (of a cell)
            --policies rate,paper,pid,hash  --paced-media PROFILE  --demand PERCENT (of what the sets can do)
            --skew N (the longest interval over the shortest)  --paced-rounds N  --paced-ms N
  engines   floors, both placements of the index, and peers: put, get, mget, YCSB A, B, C, F,
            overwrite; one thread and two
            --keys N,…  --sizes 16/100,128/512 (the second has a quarter of the keys)
            --operations N  --peer-operations N  --threads 1,2
            --peers all|none|rocksdb,lmdb,lmdb+power,…  (+power: synced at each write)
  competition  gets of a matrix whose devices stall, without and with competition
            --operations N  --rate N  --stalls 0,1000,5000,20000 (microseconds)
  cost      what a matrix costs beside one device of the same engine, one client: load, get, put; written at
            first and at all
            --engine bptree,scmkv  --keys N  --operations N
  figures   SCMKV's figures 8 to 10
            --small N  --large N  --operations N  --threads MAX  --peers leveldb|none|…
  filter    the filter of a matrix's group: wrong answers at 50, 100 and 120 % of its design load, none
            that denies a key, nanoseconds
            --keys 1000000,10000000  --operations N  --threads N
  maps      the maps of NVM-Raft: the thesis's table of data structures (insert, read, delete; a commit every
            ten writes; scmkv and bptree beside); space, DRAM and bytes flushed while every record is written
            over; puts beside the cleaner and a snapshot that is read. --rounds is 5 if not given.
            --engines list,cow-tree  --parts table,space,latency
            table:   --keys N  --value BYTES  --group N (writes of a commit)  --cycles N
            space:   --space-keys N  --times N  --groups 1,10
                     --pools 2,2.5,4 (times the bytes of the newest records)
            latency: --latency-pool MiB  --latency-puts N  --fullness PERCENT
                     --room N (the quiet pool is so many times as large)
                     --put-rate N (beside puts without a pause: so many a second)
            Two questions of the maps are asked by others, of any engine. YCSB beside bptree and LMDB:
              ordered --engines bptree,list,cow-tree --peers lmdb --keys 1000000,10000000 --sizes 16/100
                --power-keys 0
            the start after a kill -9, and the longest write of the first seconds:
              restart --engines list,cow-tree --keys 1000000,10000000 --then-ms 3000
  matrix    MKVS's tables 1 to 6 and figures 3 to 6: the prototypes, as a library and behind coreplane
            serve, beside Redis and memcached; then the same with 1,000,000 records
            --size KEY/VALUE  --threads 1,2,4,8,16  --repeat N  --large N  --large-size KEY/VALUE
            --operations N  --server-operations N (with so many records)
  occupancy overwrites the fuller a pool is: puts a second, and what the longest took, by the share of what
            a load can put in
            --engines scmkv,bptree  --sizes 16/100,128/512  --threads 1,2  --pool GiB  --shares 50,60,…
            --overwrite-ms N
  ordered   bptree between the floors and LMDB, redb, RocksDB, LevelDB, fjall: load, YCSB A, C, and E
            (scans of 50); one thread and two; to survive a kill, and a power cut; the goals
            --engines bptree,list,…  --keys N,…  --sizes 16/100,128/512 (the second has a quarter of the keys)
            --power-keys N (default: a tenth of the keys; 0: a kill alone)
            --operations N  --peer-operations N  --peer-rounds N  --peers lmdb,redb,…
  restart   from the start of a process to its first read and write, after a close and a kill -9
            --engines scmkv,bptree,list,…  --keys 1000000,10000000 (scmkv alone: 40000000 too)
            --matrix 2x2  devices of such a matrix, which waits for all copies (default: one device)
            --then-ms N  overwrites for so long afterwards, and tells the longest
  resync    a 2x2 matrix at W = all under load loses a device and is given another, at full speed and
            throttled: throughput of clients in each stage, failed reads, lost writes
            --engine bptree|scmkv  --keys N  --stage-ms N  --throttle BYTES (a second)
  series    the time-series store by the library: single durable points, batches of lines, bytes a point, DRAM of
            series, the opening of a store that was not closed; in memory, and single points and batches on a disk
            --parts single,batch,space,series,reopen  --threads 1,4  --ms N (of single points)  --devices N
            --points N (of batches)  --reopen-points N  --series N  --seed N  --disk DIR
            --sets N  --size MiB (of a set's pool)  --media MEDIUM
  server    redis-benchmark against coreplane serve and redis-server, on tmpfs and on a disk
            --requests N  --keyspace N  --disk DIR

  of all:   --mount huge|4k|DIR    a tmpfs of its own with huge or 4 KiB pages, or a directory
            --mount-size GIB       of that tmpfs
            --rounds N             medians are of so many
            --out DIR              where the record goes (default: target/measure/COMMAND)
            --quick                small counts and one round: shows that it works, no more
            --no-build             take the release binaries as they are
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&root(), &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}

fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let Some((what, rest)) = arguments.split_first() else {
        return Err(format!("measure what?\n{USAGE}").into());
    };
    match what.as_str() {
        "competition" => competition::run(root, rest),
        "cost" => cost::run(root, rest),
        "disk" => disk::run(root, rest),
        // What `disk` starts.
        "floor-disk" => disk::serve_floor(rest),
        "drivers" => drivers::run(root, rest),
        // What `drivers` starts.
        "drivers-cell" => drivers::run_cell(rest),
        "engines" => engines::run(root, rest),
        "figures" => figures::run(root, rest),
        "filter" => filter::run(root, rest),
        "maps" => maps::run(root, rest),
        "matrix" => matrix::run(root, rest),
        "occupancy" => occupancy::run(root, rest),
        "ordered" => ordered::run(root, rest),
        "restart" => restart::run(root, rest),
        "resync" => resync::run(root, rest),
        "series" => series::run(root, rest),
        // What `series` starts.
        "series-cell" => series::run_cell(rest),
        "server" => server::run(root, rest),
        "help" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("no such measurement: {what}\n{USAGE}").into()),
    }
}

/// The release binaries.
struct Binaries {
    coreplane: PathBuf,
    peers: PathBuf,
}

impl Binaries {
    /// Builds them, unless told not to; the peers' only if they are `wanted`.
    fn prepare(root: &Path, build: bool, wanted: bool) -> Outcome<Self> {
        let release = root.join("target/release");
        let binaries = Self {
            coreplane: release.join("coreplane"),
            peers: release.join("coreplane-bench-peers"),
        };
        if build {
            let mut command =
                Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            command.args(["build", "--release", "-p", "coreplane-cli", "-p", "coreplane-pmem"]);
            // For the comparison with stores that flush nothing.
            command.args(["--features", "coreplane-pmem/noflush"]).current_dir(root);
            if wanted {
                command.args(["-p", "coreplane-bench-peers"]);
            }
            println!("building the release binaries");
            let status = command.status()?;
            if !status.success() {
                return Err(format!("the release binaries do not build: {status}").into());
            }
        }
        Ok(binaries)
    }
}
