#!/usr/bin/env python3
"""The tables of the thesis (4.1): a cluster of three on `list` and `cow-tree` beside the same on `wal`, its baseline (a log
by write and fdatasync, the state in DRAM), and on `wal-pool` (that log in pages of a pool), round by round; the medians,
and their ratios to the baseline, as a table.

usage: thesis.py [--rounds 3] [--out DIRECTORY] [--disk DIRECTORY]

50,000 keys; keys and values of 10 bytes. Puts by one client and by 20, gets by one; on one machine, and with each node
in a network namespace of its own (needs root). Then one follower ends, 15,000 values of 1 to 4 KB are written, and it
comes back: until it has applied all of it. Then it is killed, and started again: until it says that it is ready.
`disk`: wal syncs its log, a pool of `--media file` is synced. `memory`: all in /dev/shm. Needs Go, and
`cargo build --release -p coreplane-cli`. Clients and nodes share the machine.
"""
import argparse, json, os, shutil, socket, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
COREPLANE = os.path.join(HERE, "../../target/release/coreplane")
MAPS = ("wal", "wal-pool", "list", "cow-tree")
KEYS = 50000


class Namespaces:
    """Each node in a network namespace, on one bridge with the clients."""
    name = "namespaces"

    def __init__(self):
        self.end()
        run = lambda text: subprocess.run(text.split(), check=True)
        run("ip link add cpbench type bridge")
        run("ip addr add 10.231.0.100/24 dev cpbench")
        run("ip link set cpbench up")
        for i in (1, 2, 3):
            run(f"ip netns add cpbench{i}")
            run(f"ip link add cpbench{i} type veth peer name eth0 netns cpbench{i}")
            run(f"ip link set cpbench{i} master cpbench up")
            run(f"ip -n cpbench{i} addr add 10.231.0.{i}/24 dev eth0")
            run(f"ip -n cpbench{i} link set eth0 up")
            run(f"ip -n cpbench{i} link set lo up")

    def host(self, i):
        return f"10.231.0.{i}"

    def within(self, i):
        return ["ip", "netns", "exec", f"cpbench{i}"]

    def end(self):
        for what in [f"ip netns del cpbench{i}" for i in (1, 2, 3)] + ["ip link del cpbench"]:
            subprocess.run(what.split(), stderr=subprocess.DEVNULL)


class OneMachine:
    name = "one machine"
    host = staticmethod(lambda i: "127.0.0.1")
    within = staticmethod(lambda i: [])
    end = staticmethod(lambda: None)


class Cluster:
    def __init__(self, place, directory, media, kind):
        self.place, self.kind = place, kind
        peers = ",".join(f"{i}={place.host(i)}:{7480 + i}" for i in (1, 2, 3))
        self.commands = {i: place.within(i) + [
            COREPLANE, "serve", "--pool", f"{directory}/{i}.pool", "--size", "256MiB", "--media", media, "--bind",
            place.host(i), "--no-protected-mode", "--port", str(7380 + i), "--cluster-id", str(i), "--cluster-peers",
            peers, "--replica-map", kind] for i in (1, 2, 3)}
        self.nodes = {}
        for i in self.commands:
            self.start(i)
        self.leader = self.find_leader()

    def start(self, i):
        """Starts a node: the seconds until it says that it is ready."""
        since = time.time()
        self.nodes[i] = subprocess.Popen(self.commands[i], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.nodes[i].stdout.readline()
        if "ready" not in line:
            sys.exit(f"node {i} says {line!r}")
        return time.time() - since

    def kill(self, i):
        self.nodes[i].kill()
        self.nodes[i].wait()

    def connect(self, i):
        return socket.create_connection((self.place.host(i), 7380 + i), timeout=30)

    def ask(self, stream, *words):
        stream.sendall(f"*{len(words)}\r\n".encode() + b"".join(f"${len(word)}\r\n{word}\r\n".encode() for word in words))
        reader = stream.makefile("rb")
        line = reader.readline()
        if line[:1] not in (b"$", b"="):
            return line.decode()
        return reader.read(int(line[1:]) + 2).decode()

    def status(self, stream):
        lines = self.ask(stream, "CLUSTER", "STATUS").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and " " not in line)

    def find_leader(self):
        since = time.time()
        while time.time() - since < 30:
            for i in (1, 2, 3):
                with self.connect(i) as stream:
                    if self.status(stream).get("role") == "leader":
                        return i
            time.sleep(0.05)
        sys.exit("nobody leads")

    def work(self, program, *arguments):
        address = f"{self.place.host(self.leader)}:{7380 + self.leader}"
        ran = subprocess.run([program, "-resp", "-endpoints", address, "-keys", str(KEYS), *map(str, arguments)],
                             capture_output=True, text=True)
        if ran.returncode:
            sys.exit(ran.stderr)
        return json.loads(ran.stdout)

    def written(self, medium):
        """Bytes that the leader has written so far: to the device, or, in memory, lines flushed (maps), or frames (wal, wal-pool)."""
        if medium == "disk":
            with open(f"/proc/{self.nodes[self.leader].pid}/io") as file:
                return int(dict(line.split(": ") for line in file.read().splitlines())["write_bytes"])
        with self.connect(self.leader) as stream:
            lines = self.ask(stream, "INFO", "everything").splitlines()
        figures = dict(line.split(":", 1) for line in lines if ":" in line)
        number = lambda name: int(figures["engine_" + name])
        if self.kind.startswith("wal"):
            return number("log_bytes_written") + number("cleaner_bytes_copied")
        return 64 * number("flushes")

    def end(self):
        for node in self.nodes.values():
            node.kill()
        for node in self.nodes.values():
            node.wait()


def recovery(cluster, program):
    """A follower ends, misses 15,000 values, comes back; then it is killed and started once more."""
    follower = next(i for i in (1, 2, 3) if i != cluster.leader)
    cluster.kill(follower)
    cluster.work(program, "-what", "put", "-clients", 20, "-operations", 15000, "-value-least", 1024, "-value-most", 4096)
    with cluster.connect(cluster.leader) as stream:
        want = int(cluster.status(stream)["applied"])
    since = time.time()
    cluster.start(follower)
    with cluster.connect(follower) as stream:
        while int(cluster.status(stream)["applied"]) < want:
            time.sleep(0.001)
    caught_up = time.time() - since
    time.sleep(1)
    cluster.kill(follower)
    return {"recovery_ms": 1000 * caught_up, "start_ms": 1000 * cluster.start(follower)}


def one_round(program, place, medium, where, media, kind, few, many, results):
    with tempfile.TemporaryDirectory(dir=where) as directory:
        cluster = Cluster(place, directory, media, kind)
        put = lambda what, value: results.setdefault((medium, place.name, what), {}).setdefault(kind, []).append(value)
        cluster.work(program, "-what", "put", "-clients", 20, "-operations", KEYS // 5)
        put("put, 1 client, p50 us", cluster.work(program, "-what", "put", "-clients", 1, "-operations", few)["p50_us"])
        before = cluster.written(medium)
        many_puts = cluster.work(program, "-what", "put", "-clients", 20, "-operations", many)
        written = cluster.written(medium) - before
        put("put, 20 clients, p50 us", many_puts["p50_us"])
        put("put, 20 clients, p90 us", many_puts["p90_us"])
        put("put, 20 clients, a second", many_puts["per_second"])
        put("get, 1 client, p50 us", cluster.work(program, "-what", "get", "-clients", 1, "-operations", few)["p50_us"])
        put("bytes written a set by the leader, 20 clients", written / (many - many % 20))
        if place.name == OneMachine.name:
            for what, value in recovery(cluster, program).items():
                put(what.replace("_", " "), value)
        cluster.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    parser.add_argument("--disk", default=HERE)
    asked = parser.parse_args()
    program = os.path.join(tempfile.gettempdir(), "coreplane-etcd-bench")
    go = shutil.which("go") or "/usr/local/go/bin/go"
    subprocess.run([go, "build", "-o", program, "."], cwd=HERE, check=True)
    places = [OneMachine()]
    if os.geteuid() == 0:
        places.append(Namespaces())
    else:
        print("left out: namespaces, which need root")
    results = {}
    try:
        for round_ in range(asked.rounds):
            for place in places:
                for medium, where, media, few, many in (
                        ("disk", asked.disk, "file", 1000, 10000), ("memory", "/dev/shm", "auto", 5000, 50000)):
                    turn = round_ % len(MAPS)
                    for kind in MAPS[turn:] + MAPS[:turn]:
                        one_round(program, place, medium, where, media, kind, few, many, results)
    finally:
        for place in places:
            place.end()
    columns = ["medium", "place", "what", *MAPS, *(f"{kind}/{MAPS[0]}" for kind in MAPS[1:])]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for key, kinds in sorted(results.items()):
        medians = [statistics.median(kinds[kind]) for kind in MAPS]
        ratios = [f"{value / medians[0]:.2f}" if medians[0] else "-" for value in medians[1:]]
        lines.append("| " + " | ".join([*key, *(f"{value:.0f}" for value in medians), *ratios]) + " |")
    print("\n".join(lines))
    if asked.out:
        os.makedirs(asked.out, exist_ok=True)
        raw = [{"medium": key[0], "place": key[1], "what": key[2], "rounds": kinds} for key, kinds in sorted(results.items())]
        with open(os.path.join(asked.out, "raw.json"), "w") as file:
            json.dump(raw, file, indent=1)


main()
