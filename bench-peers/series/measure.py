#!/usr/bin/env python3
"""The time-series store beside InfluxDB and VictoriaMetrics, one after the other in turn, on the same kinds of media.

usage: measure.py [--quick] [--rounds 3] [--points 20000000] [--restart-points 100000000] [--writers 4,24] [--connections 1,4]
                  [--media memory,disk] [--disk DIRECTORY] [--servers coreplane,influxdb,victoria-metrics] [--ms 5000]
                  [--queries 200] [--tags tsbs] [--order turn] [--seed 1] [--pool-size 1GiB] [--coreplane "…"] [--out DIRECTORY]

1,000 devices with ten fields, as TSBS's cpu-only has them (device.go). In each round each server is given, from nothing: the
load by the first number of writers, then each kind of query, single inserts, and a kill -9 and a start; then, from nothing
again, the load by each other number of writers. --restart-points: on the first medium, once each, as many points are loaded,
and the server is killed and started. Every answer is held against what was written; so the servers' answers are equal, or the
run fails. What each acknowledges when is in the page. Memory is /dev/shm, which no power cut survives, whoever writes there.

Needs Go, InfluxDB 1.6 and VictoriaMetrics (apt: influxdb, victoria-metrics), and `cargo build --release -p coreplane-cli`.
Clients and servers share the machine. Writes README.md and raw.jsonl to --out (target/measure/series).
"""
import argparse, json, os, shutil, signal, subprocess, sys, tempfile, time
from servers import ALL, HERE, PREFIX, COREPLANE, remove_stale, said
from page import page_of

DEVICES, FIELDS = 1000, 10


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="shows that it works, in some minutes")
    numbers = (("rounds", 3, 1), ("points", 20_000_000, 4_000_000), ("restart-points", 100_000_000, 4_000_000),
               ("ms", 5000, 1000), ("queries", 200, 20))
    lists = (("writers", "4,24", "4,24"), ("connections", "1,4", "1,4"), ("media", "memory,disk", "memory,disk"),
             ("servers", ",".join(ALL), ",".join(ALL)))
    for name, full, quick in numbers + lists:
        parser.add_argument(f"--{name}", type=type(full), default=None, help=f"{full}; {quick} if quick")
    parser.add_argument("--disk", default=os.path.join(HERE, "../../target/measure"), help="where the disk is")
    parser.add_argument("--tags", default="tsbs", help="their order: tsbs, or sorted")
    parser.add_argument("--order", default="turn", help="turn: batches by time, whoever sends them; own: a writer has its devices")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool-size", default="1GiB", help="of each of Coreplane's queue sets")
    parser.add_argument("--coreplane", type=str.split, default=[], help="more options of `coreplane ts serve`")
    parser.add_argument("--out", default=os.path.join(HERE, "../../target/measure/series"))
    asked = parser.parse_args()
    for name, full, quick in numbers + lists:
        name = name.replace("-", "_")
        if getattr(asked, name) is None:
            setattr(asked, name, quick if asked.quick else full)
    for name, _, _ in lists:
        setattr(asked, name, [it for it in getattr(asked, name).split(",") if it])
    asked.writers, asked.connections = ([int(it) for it in some] for some in (asked.writers, asked.connections))
    return asked


class Program:
    """The load generator."""

    def __init__(self, asked):
        self.asked = asked
        self.path = os.path.join(tempfile.gettempdir(), f"{PREFIX}load-{os.getpid()}")
        go = shutil.which("go") or "/usr/local/go/bin/go"
        subprocess.run([go, "build", "-o", self.path, "."], cwd=HERE, check=True)

    def command(self, server, phase, points, **more):
        asked = self.asked
        options = {"address": server.address, "dialect": server.dialect, "phase": phase, "seed": asked.seed, "devices": DEVICES,
                   "steps": points // DEVICES // FIELDS, "tags": asked.tags, "order": asked.order, **more}
        return [self.path, *(f"-{name}={value}" for name, value in options.items())]

    def run(self, server, phase, points, **more):
        return json.loads(said(*self.command(server, phase, points, **more), limit=3600))

    def until_right(self, server, points):
        """The server starts: seconds until the first right answer, from before its process is there; None if none comes."""
        patience = 30_000 + points // 500
        asks = subprocess.Popen(self.command(server, "first", points, ms=patience), stdout=subprocess.PIPE, text=True)
        try:
            # It knows what the answer is.
            asks.stdout.readline()
            since = time.time_ns()
            server.spawn()
            answer = asks.stdout.readline()
        finally:
            is_right = asks.wait() == 0
        return (json.loads(answer)["ns"] - since) / 1e9 if is_right else None


def counted(program, server, want, patience=30):
    """How many points are there at last; VictoriaMetrics shows them some seconds later."""
    since = time.monotonic()
    while True:
        found = program.run(server, "count", DEVICES * FIELDS)
        if found == want or time.monotonic() - since > patience:
            return found
        time.sleep(0.2)


def loaded(program, server, points, writers, **more):
    """What a load came to, and what the server used for it: at once, and with what it did behind it."""
    before, since = server.processor_seconds(), time.monotonic()
    found = program.run(server, "load", points, clients=writers, **more)
    found["processor_seconds"] = server.processor_seconds() - before
    found["memory"], found["on_medium"] = server.memory(), server.on_medium()
    found["rest_seconds"] = server.rest()
    found["processor_seconds_at_rest"] = server.processor_seconds() - before
    found["counted"] = counted(program, server, {"cpu": points // FIELDS, "single": 0})
    if found["counted"]["cpu"] != points // FIELDS:
        raise RuntimeError(f"{found['counted']} of {points // FIELDS} lines are there")
    return found


def restarted(program, server, points, want):
    server.before_kill()
    server.kill()
    found = {"seconds": program.until_right(server, points)}
    there = counted(program, server, want, 5)
    found["missing"] = {name: count - there[name] for name, count in want.items()}
    found["memory"] = server.memory()
    return found


def whole(asked, program, server):
    """Load, queries, inserts, kill."""
    found = {"load": loaded(program, server, asked.points, asked.writers[0])}
    found["query"] = program.run(server, "query", asked.points, queries=asked.queries)
    inserted = 0
    for turn, clients in enumerate(asked.connections):
        its = program.run(server, "insert", asked.points, clients=clients, ms=asked.ms, first=turn * 10_000)
        inserted += its["written"]
        found[f"insert-{clients}"] = its
    found["restart"] = restarted(program, server, asked.points, {"cpu": asked.points // FIELDS, "single": inserted})
    found["settled"] = server.settled()
    found["settled"]["points"] = asked.points + inserted
    return found


def large(asked, program, server):
    """As many points as a restart is to find. It is killed right behind the last acknowledgement, or as soon as it may be."""
    points = asked.restart_points
    found = {"load": program.run(server, "load", points, clients=asked.writers[0], stream=True)}
    found["restart"] = restarted(program, server, points, {"cpu": points // FIELDS, "single": 0})
    return found


def cells(asked):
    """What is measured, in this order: servers take turns in being first."""
    for number in range(asked.rounds):
        turn = asked.servers[number % len(asked.servers):] + asked.servers[:number % len(asked.servers)]
        for medium in asked.media:
            for name in turn:
                yield medium, number, name, "whole", asked.writers[0]
            for writers in asked.writers[1:]:
                for name in turn:
                    yield medium, number, name, "load", writers
    if asked.restart_points:
        for name in asked.servers:
            yield asked.media[0], 0, name, "large", asked.writers[0]


def measured(asked, program, server, part, writers):
    if part == "load":
        return {"load": loaded(program, server, asked.points, writers)}
    return (whole if part == "whole" else large)(asked, program, server)


def main():
    asked = arguments()
    for name in (COREPLANE, "influxd", "victoria-metrics"):
        if not shutil.which(name):
            sys.exit(f"{name} is not there")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    os.makedirs(asked.out, exist_ok=True)
    places = {"memory": "/dev/shm", "disk": os.path.abspath(asked.disk)}
    for medium in asked.media:
        os.makedirs(places[medium], exist_ok=True)
        remove_stale(places[medium])
    with open("/proc/loadavg") as file:
        load = file.read().strip()
    program, lines = Program(asked), []
    try:
        with open(os.path.join(asked.out, "raw.jsonl"), "w") as raw:
            for medium, number, name, part, writers in cells(asked):
                line = {"medium": medium, "round": number, "server": name, "part": part, "writers": writers}
                server, directory = None, os.path.join(places[medium], f"{PREFIX}{os.getpid()}")
                try:
                    server = ALL[name](directory, asked)
                    line |= measured(asked, program, server, part, writers)
                except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                    # The others go on.
                    line["failed"] = f"{error}; {server.log() if server else ''}"
                finally:
                    if server:
                        server.end()
                rate = f"{line['load']['points_per_second']:.0f} points/s" if "load" in line else line["failed"]
                print(f"{medium}, round {number + 1}, {name}, {part}, {writers} writers: {rate}", flush=True)
                print(json.dumps(line), file=raw, flush=True)
                lines.append(line)
    finally:
        os.remove(program.path)
    page = page_of(asked, load, lines)
    with open(os.path.join(asked.out, "README.md"), "w") as file:
        file.write(page)
    print(page)
    if any("failed" in line for line in lines):
        sys.exit("some runs have failed")


main()
