#!/usr/bin/env python3
"""Figures 5 to 10 of the TS-PMEM paper (section 6): its drivers beside each other, below InfluxDB on a block device of ours, and
with our own time-series store, which has the queue sets itself.

usage: measure.py [--store influxdb|tsdb] [--quick] [--runs 10] [--sources 1,2,3,4,5,6] [--points 10000] [--queries 1000] [--media none,optane,slow]
                  [--drivers multi,single,sync] [--workloads a,b] [--balance pid|rate] [--pairs 20] [--size 512MiB] [--out DIRECTORY]

testworkloada and testworkloadb as the paper writes them (main.go; YCSB-TS itself is not to be had): each source has
4 threads, and loads so many points, one a request, each synced by InfluxDB before it answers; then InfluxDB is restarted
without caches, and each source asks so many queries, of b with a quarter as many scans, counts, sums and averages each.
--store tsdb: the same to `coreplane ts serve`, which takes the place of TS-NSM: `multi` has four queue sets with a medium each,
`single` one set with one such medium; a point is durable before it is answered.

`multi` is the paper's driver with 4 queue sets; `single` has one queue for all; `sync` none, as Linux's driver of persistent
memory. All three of a run follow each other, in turn, each on a fresh device; ratios are medians of those of single runs.
--pairs: one source alone, load of a, multi and single in turn, on the first medium.

Media: none (DRAM), optane (each partition is a DIMM of its own, 2.3 GB/s), slow (the same with 5 MB/s, of tsdb 2 MB/s, so that
what is written is more than one partition can take), or any profile of `--media emulated:`, with + for commas. Needs root, Go,
nbdfuse, InfluxDB 1.6 (apt: influxdb, libnbd-bin; of all that tsdb needs Go alone), and `cargo build --release -p coreplane-cli`. Client and servers share the
machine. Writes README.md and raw.jsonl to --out (target/measure/influx, or influx-tsdb).
"""
import argparse, json, os, shutil, signal, subprocess, sys, tempfile, time
from stack import COREPLANE, HERE, PORT, Stack, remove_stale, said
from series import Series
from report import report

OPTANE = "optane,channels=1,wait=yield"
MEDIA = {"influxdb": {"none": "none", "optane": OPTANE, "slow": f"{OPTANE},write-gbps=0.005"},
         "tsdb": {"none": "none", "optane": OPTANE, "slow": f"{OPTANE},write-gbps=0.002"}}
# What each store is, what it needs, which drivers there are, and how its devices are bound as in the paper.
STORES = {"influxdb": (Stack, ("nbdfuse", "influxd", "losetup", "mkfs.ext4", "fusermount3"), "multi,single,sync", "pid"),
          "tsdb": (Series, (), "multi,single", "rate")}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", default="influxdb", choices=list(STORES))
    parser.add_argument("--quick", action="store_true", help="shows that it works, in some minutes")
    for name, full, quick in (("runs", 10, 1), ("points", 10000, 200), ("queries", 1000, 40), ("pairs", 20, 2)):
        parser.add_argument(f"--{name}", type=int, default=None, help=f"{full}; {quick} if quick")
        parser.set_defaults(**{f"{name}_defaults": (full, quick)})
    for name, full, quick in (("sources", "1,2,3,4,5,6", "1,6"), ("media", "none,optane,slow", "none,slow"),
                              ("drivers", None, None), ("workloads", "a,b", "a,b")):
        parser.add_argument(f"--{name}", default=None, help=f"{full}; {quick} if quick" if full else "all")
        parser.set_defaults(**{f"{name}_defaults": (full, quick)})
    parser.add_argument("--balance", default=None, help="pid: as the paper where devices are not known; of tsdb rate")
    parser.add_argument("--size", default="512MiB")
    parser.add_argument("--out", default=None)
    asked = parser.parse_args()
    _, _, asked.drivers_defaults, balance = STORES[asked.store]
    asked.drivers_defaults = (asked.drivers_defaults, asked.drivers_defaults)
    asked.balance = asked.balance or balance
    name = "influx" if asked.store == "influxdb" else "influx-tsdb"
    asked.out = asked.out or os.path.join(HERE, "../../target/measure", name)
    for name in ("runs", "points", "queries", "pairs", "sources", "media", "drivers", "workloads"):
        if getattr(asked, name) is None:
            setattr(asked, name, getattr(asked, f"{name}_defaults")[asked.quick])
        value = getattr(asked, name)
        setattr(asked, name, value.split(",") if isinstance(value, str) else value)
    asked.sources = [int(count) for count in asked.sources]
    return asked


class Program:
    """The load generator."""

    def __init__(self, asked):
        self.asked = asked
        self.path = os.path.join(tempfile.gettempdir(), f"coreplane-influx-load-{os.getpid()}")
        go = shutil.which("go") or "/usr/local/go/bin/go"
        subprocess.run([go, "build", "-o", self.path, "."], cwd=HERE, check=True)

    def work(self, phase, workload, sources):
        points, queries = self.asked.points, self.asked.queries
        limit = 120 + sources * (points + 4 * queries) // 20
        return json.loads(said(self.path, "-url", f"http://127.0.0.1:{PORT}", "-phase", phase, "-workload", workload,
                               "-sources", str(sources), "-points", str(points), "-queries", str(queries), "-more",
                               str(queries // 4), limit=limit))


def one(asked, program, medium, driver, workload, sources, runs=True):
    """Loads a fresh device, and asks it: what came out."""
    profile = MEDIA[asked.store].get(medium, medium.replace("+", ","))
    stack = STORES[asked.store][0](f"emulated:{profile}", driver, asked.balance, asked.size)
    try:
        stack.start()
        before, processor = stack.written(), stack.processor_seconds()
        since = time.monotonic()
        load = program.work("load", workload, sources)
        seconds = time.monotonic() - since
        found = {"load": load["all"], "load_seconds": seconds, "server_processor_seconds": stack.processor_seconds() - processor,
                 **{name: count - before[name] for name, count in stack.written().items()}}
        if runs:
            stack.restart_cold()
            found["run"] = program.work("run", workload, sources)
        return found
    except BaseException:
        print(stack.log(), file=sys.stderr)
        raise
    finally:
        stack.end()


def cells(asked):
    """What is measured, in this order: drivers take turns in being first."""
    turn = lambda number: asked.drivers[number % len(asked.drivers):] + asked.drivers[:number % len(asked.drivers)]
    for medium in asked.media:
        for run in range(asked.runs):
            for workload in asked.workloads:
                for sources in asked.sources:
                    for driver in turn(run):
                        yield "figures", medium, run, workload, sources, driver
    for run in range(asked.pairs):
        for driver in ("multi", "single")[::1 if run % 2 else -1]:
            yield "pairs", asked.media[0], run, "a", 1, driver


def main():
    asked = arguments()
    if os.geteuid() and asked.store == "influxdb":
        sys.exit("mounting needs root")
    for name in (COREPLANE, *STORES[asked.store][1]):
        if not shutil.which(name):
            sys.exit(f"{name} is not there")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    remove_stale()
    os.makedirs(asked.out, exist_ok=True)
    program, lines = Program(asked), []
    with open("/proc/loadavg") as file:
        load = file.read().strip()
    try:
        with open(os.path.join(asked.out, "raw.jsonl"), "w") as raw:
            for part, medium, run, workload, sources, driver in cells(asked):
                line = {"part": part, "medium": medium, "round": run, "workload": workload, "sources": sources, "driver": driver}
                try:
                    line |= one(asked, program, medium, driver, workload, sources, runs=part == "figures")
                except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                    # The others go on.
                    line["failed"] = str(error)
                rate = f"{line['load']['per_second']:.0f} writes/s" if "load" in line else line["failed"]
                print(f"{part}, {medium}, run {run + 1}, {workload}, {sources} sources, {driver}: {rate}", flush=True)
                print(json.dumps(line), file=raw, flush=True)
                lines.append(line)
    finally:
        os.remove(program.path)
    page = report(asked, MEDIA[asked.store], load, lines)
    with open(os.path.join(asked.out, "README.md"), "w") as file:
        file.write(page)
    print(page)
    if any("failed" in line for line in lines):
        sys.exit("some runs have failed")


main()
