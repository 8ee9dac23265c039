#!/usr/bin/env python3
"""Three nodes of Coreplane beside three of etcd, one after the other, round by round; the medians as a table.

usage: measure.py [--rounds 3] [--out DIRECTORY] [--disk DIRECTORY]

Both on a disk (etcd syncs its log; a pool of `--media file` is synced) and both in memory (/dev/shm: a power cut loses
everything, of both). Needs `etcd`, Go, and `cargo build --release -p coreplane-cli`. Clients and nodes share the machine.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile, time, urllib.request

# How many clients put at once, and how many connections they share: none is one for each.
MANY = [(200, 0), (200, 1), (200, 4), (1000, 4)]

HERE = os.path.dirname(os.path.abspath(__file__))
COREPLANE = os.path.join(HERE, "../../target/release/coreplane")


def until(what, patience=30):
    since = time.time()
    while time.time() - since < patience:
        try:
            if what():
                return
        except Exception:
            pass
        time.sleep(0.1)
    sys.exit("a cluster has not begun in time")


class Etcd:
    name = "etcd"

    def __init__(self, directory, _):
        peers = ",".join(f"n{i}=http://127.0.0.1:{2480 + i}" for i in (1, 2, 3))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.nodes = [subprocess.Popen([
            "etcd", "--name", f"n{i}", "--data-dir", f"{directory}/etcd{i}",
            "--listen-client-urls", f"http://127.0.0.1:{2380 + i}",
            "--advertise-client-urls", f"http://127.0.0.1:{2380 + i}",
            "--listen-peer-urls", f"http://127.0.0.1:{2480 + i}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{2480 + i}",
            "--initial-cluster", peers, "--initial-cluster-state", "new"], **quiet) for i in (1, 2, 3)]
        health = lambda i: json.load(urllib.request.urlopen(f"http://127.0.0.1:{2380 + i}/health"))
        until(lambda: all(health(i)["health"] == "true" for i in (1, 2, 3)))
        # Its client asks all three in turn.
        self.arguments = ["-endpoints", ",".join(f"127.0.0.1:{2380 + i}" for i in (1, 2, 3))]


class Coreplane:
    def __init__(self, directory, media):
        peers = ",".join(f"{i}=127.0.0.1:{7480 + i}" for i in (1, 2, 3))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.nodes = [subprocess.Popen([
            COREPLANE, "serve", "--pool", f"{directory}/{i}.pool", "--size", "256MiB", "--media", media,
            "--port", str(7380 + i), "--cluster-id", str(i), "--cluster-peers", peers,
            "--replica-map", self.map], **quiet) for i in (1, 2, 3)]
        ask = lambda i: subprocess.run(
            [COREPLANE, "cluster", "status", "--server", f"127.0.0.1:{7380 + i}"],
            capture_output=True, text=True, check=True).stdout
        self.leader = None

        def leads():
            for i in (1, 2, 3):
                if "role:leader" in ask(i):
                    self.leader = i
            return self.leader
        until(leads)
        self.arguments = ["-resp", "-endpoints", f"127.0.0.1:{7380 + self.leader}"]


class List(Coreplane):
    name, map = "list", "list"


class Tree(Coreplane):
    name, map = "cow-tree", "cow-tree"


def end(cluster):
    for node in cluster.nodes:
        node.terminate()
    for node in cluster.nodes:
        node.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    parser.add_argument("--disk", default=HERE)
    asked = parser.parse_args()
    program = os.path.join(tempfile.gettempdir(), "coreplane-etcd-bench")
    go = shutil.which("go") or "/usr/local/go/bin/go"
    subprocess.run([go, "build", "-o", program, "."], cwd=HERE, check=True)
    results = {}
    for round_ in range(asked.rounds):
        for medium, where, media, few, many in (
                ("disk", asked.disk, "file", 1000, 10000), ("memory", "/dev/shm", "auto", 5000, 50000)):
            kinds = [Etcd, List, Tree]
            for kind in kinds[round_ % 3:] + kinds[:round_ % 3]:
                with tempfile.TemporaryDirectory(dir=where) as directory:
                    cluster = kind(directory, media)
                    works = [("put", 1, 0, few), ("put", 20, 0, many), ("get", 1, 0, few), ("get", 20, 0, many)]
                    works += [("put", clients, shared, 2 * many) for clients, shared in MANY]
                    if kind is not Etcd:
                        works.append(("ping", 1, 0, few))
                    for what, clients, shared, operations in works:
                        ran = subprocess.run([program, *cluster.arguments, "-what", what, "-clients", str(clients),
                                              "-connections", str(shared), "-operations", str(operations)],
                                             capture_output=True, text=True)
                        if ran.returncode:
                            sys.exit(f"{kind.name} on {medium}: {ran.stderr}")
                        one = json.loads(ran.stdout)
                        results.setdefault((medium, what, clients, shared, kind.name), []).append(one)
                    end(cluster)
    lines = ["| medium | what | clients | connections | store | p50 us | p90 us | a second |",
             "|---|---|---|---|---|---|---|---|"]
    best = {}
    for (medium, what, clients, shared, name), some in sorted(results.items()):
        middle = lambda field: statistics.median(it[field] for it in some)
        lines.append(f"| {medium} | {what} | {clients} | {shared or clients} | {name} | {middle('p50_us'):.0f} | "
                     f"{middle('p90_us'):.0f} | {middle('per_second'):.0f} |")
        if what == "put":
            best[medium, name] = max(best.get((medium, name), (0,)), (middle("per_second"), clients, shared or clients))
    print("\n".join(lines))
    print("\n| medium | store | puts a second at its best | clients | connections | times etcd's |\n|---|---|---|---|---|---|")
    for (medium, name), (per_second, clients, connections) in sorted(best.items()):
        print(f"| {medium} | {name} | {per_second:.0f} | {clients} | {connections} | "
              f"{per_second / best[medium, 'etcd'][0]:.1f} |")
    if asked.out:
        os.makedirs(asked.out, exist_ok=True)
        raw = [{"medium": key[0], "store": key[-1], "rounds": some} for key, some in sorted(results.items())]
        with open(os.path.join(asked.out, "results.json"), "w") as file:
            json.dump(raw, file, indent=1)


main()
