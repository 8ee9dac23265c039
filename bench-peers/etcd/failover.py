#!/usr/bin/env python3
"""The leader of three nodes is killed: how long until a SET by way of another node is answered, round by round.

usage: failover.py [--rounds 9]. Needs `cargo build --release -p coreplane-cli`. The default --cluster-tick.
"""
import argparse, os, socket, statistics, subprocess, tempfile, time

COREPLANE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target/release/coreplane")


def call(port, *words):
    stream = socket.create_connection(("127.0.0.1", port), timeout=10)
    stream.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
    answer = stream.makefile("rb").readline()
    stream.close()
    return answer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        peers = ",".join(f"{i}=127.0.0.1:{7480 + i}" for i in (1, 2, 3))
        start = lambda i: subprocess.Popen([
            COREPLANE, "serve", "--pool", f"{directory}/{i}.pool", "--size", "64MiB", "--port", str(7380 + i),
            "--cluster-id", str(i), "--cluster-peers", peers], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        nodes = {i: start(i) for i in (1, 2, 3)}
        took = []
        for _ in range(rounds):
            time.sleep(2)
            role = lambda i: subprocess.run(
                [COREPLANE, "cluster", "status", "--server", f"127.0.0.1:{7380 + i}"], capture_output=True, text=True).stdout
            leader = next(i for i in (1, 2, 3) if "role:leader" in role(i))
            other = 1 + leader % 3
            nodes[leader].kill()
            since = time.time()
            while not call(7380 + other, b"SET", b"k", b"v").startswith(b"+OK"):
                time.sleep(0.002)
            took.append(1000 * (time.time() - since))
            nodes[leader].wait()
            nodes[leader] = start(leader)
        for node in nodes.values():
            node.kill()
    print(f"ms until a SET is answered: median {statistics.median(took):.0f}, "
          f"all {', '.join(f'{one:.0f}' for one in sorted(took))}")


main()
