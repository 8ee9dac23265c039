"""InfluxDB on a block device of ours, and its clean-up, whatever has happened.

    influxd ─▶ ext4 ─▶ loop device ─▶ nbdfuse (4 connections) ─▶ Unix socket ─▶ coreplane nbd serve ─▶ pools in /dev/shm

All of it lies in one directory, named after the process that made it; what a killed run has left is removed by the next.
Things end from the left to the right: a mount whose server has gone hangs. Every step has a time limit.
"""
import os, shutil, signal, subprocess, time, urllib.parse, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
COREPLANE = os.path.join(HERE, "../../target/release/coreplane")
PLACE = "/dev/shm"
PREFIX = "coreplane-influx-"
PORT, RPC_PORT = 18086, 18088

CONFIGURATION = """
reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
  dir = "{at}/meta"
  logging-enabled = false
[data]
  dir = "{at}/data"
  wal-dir = "{at}/wal"
  wal-fsync-delay = "0s"
  query-log-enabled = false
[retention]
  enabled = false
[shard-precreation]
  enabled = false
[monitor]
  store-enabled = false
[subscriber]
  enabled = false
[continuous_queries]
  enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
"""


def said(*command, limit=60):
    """What a command prints; it has so many seconds, and must not fail."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ran.returncode}: {ran.stderr.strip()[-500:]}")
    return ran.stdout.strip()


def tried(*command, limit=60):
    """True if a command does not fail."""
    try:
        said(*command, limit=limit)
        return True
    except (RuntimeError, subprocess.TimeoutExpired):
        return False


def until(what, is_so, limit=60, child=None):
    since = time.monotonic()
    while not is_so():
        if child and child.poll() is not None:
            raise RuntimeError(f"{what}: ended with {child.returncode}")
        if time.monotonic() - since > limit:
            raise RuntimeError(f"{what}: not after {limit} s")
        time.sleep(0.02)


def ended(child, first=signal.SIGTERM, limit=30):
    if not child:
        return
    child.send_signal(first)
    try:
        child.wait(limit)
    except subprocess.TimeoutExpired:
        child.kill()
        # One that waits for a device that does not answer is left to the kernel.
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            pass


def unmounted(at):
    return tried("umount", at, limit=60) or tried("umount", "-l", at, limit=10)


def without_fuse(at):
    return tried("fusermount3", "-u", at, limit=20) or tried("fusermount3", "-uz", at, limit=10)


def mounts_below(directory):
    with open("/proc/self/mounts") as file:
        found = [line.split()[1:3] for line in file]
    return [(at, kind) for at, kind in reversed(found) if at.startswith(directory + "/")]


def detach_loops(directory):
    for line in said("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines():
        name, _, back = line.partition(" ")
        if back.strip().startswith(directory + "/"):
            tried("losetup", "-d", name, limit=20)


def remove(directory):
    """Whatever is left of a stack there: what it mounted, its processes, its files."""
    pids = []
    if os.path.exists(f"{directory}/pids"):
        with open(f"{directory}/pids") as file:
            pids = [int(line) for line in file]
    def kill_one(pid):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                # Numbers are given anew: it must speak of this directory.
                if directory in file.read():
                    os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass
    # The server last.
    for pid in reversed(pids[1:]):
        kill_one(pid)
        time.sleep(0.1)
        for at, kind in mounts_below(directory):
            unmounted(at) if not kind.startswith("fuse") else None
        detach_loops(directory)
    for at, kind in mounts_below(directory):
        without_fuse(at)
    if pids:
        kill_one(pids[0])
    if not mounts_below(directory):
        shutil.rmtree(directory, ignore_errors=True)


def remove_stale():
    for name in os.listdir(PLACE):
        pid = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and not os.path.exists(f"/proc/{pid}"):
            remove(os.path.join(PLACE, name))


class Stack:
    """A fresh device with an empty file system; InfluxDB is started by `start`."""

    def __init__(self, medium, driver, balance, size):
        self.directory = os.path.join(PLACE, f"{PREFIX}{os.getpid()}")
        self.server = self.fuse = self.loop = self.influxd = None
        remove(self.directory)
        for name in ("fuse", "disk"):
            os.makedirs(f"{self.directory}/{name}")
        self.at = f"{self.directory}/disk"
        try:
            self.attach(medium, driver, balance, size)
        except BaseException:
            self.end()
            raise

    def spawn(self, *command):
        with open(f"{self.directory}/log", "a") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        with open(f"{self.directory}/pids", "a") as file:
            file.write(f"{child.pid}\n")
        return child

    def attach(self, medium, driver, balance, size):
        socket, file = f"{self.directory}/socket", f"{self.directory}/fuse/nbd"
        self.server = self.spawn(COREPLANE, "nbd", "serve", "--pool", f"{self.directory}/pool", "--size", size, "--queues",
                                 "4", "--balance", balance, "--driver", driver, "--media", medium, "--unixsocket", socket)
        until("the server", lambda: os.path.exists(socket), child=self.server)
        self.fuse = self.spawn("nbdfuse", file, f"nbd+unix:///disk?socket={socket}")
        until("nbdfuse", lambda: os.path.exists(file), child=self.fuse)
        # Sectors of 4 KiB, the least that the export takes. Without a cache of its own; where that cannot be, none of nbdfuse.
        for direct in ("on", "off"):
            if tried("losetup", "--find", "--sector-size", "4096", f"--direct-io={direct}", file):
                break
        loops = said("losetup", "--list", "--noheadings", "--output", "NAME", "--associated", file).split()
        if len(loops) != 1:
            raise RuntimeError("no loop device")
        self.loop = loops[0]
        # Nothing is left for the kernel to do behind the measurement.
        said("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.loop, limit=120)
        self.mount()

    def mount(self):
        said("mount", "-t", "ext4", "-o", "noatime", self.loop, self.at)

    def ask(self, path, data=None):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", data, timeout=30) as answer:
            return answer.read()

    def answers(self):
        try:
            self.ask("/ping")
            return True
        except OSError:
            return False

    def start(self):
        path = f"{self.directory}/influxdb.conf"
        with open(path, "w") as file:
            file.write(CONFIGURATION.format(at=self.at, rpc=RPC_PORT, port=PORT))
        self.influxd = self.spawn("influxd", "-config", path)
        until("influxd", self.answers, child=self.influxd)
        self.ask("/query", urllib.parse.urlencode({"q": "CREATE DATABASE testdb"}).encode())

    def restart_cold(self):
        """InfluxDB ends, and its file system is mounted anew: nothing of it is cached when it starts."""
        ended(self.influxd)
        self.influxd = None
        said("umount", self.at, limit=120)
        self.mount()
        self.start()

    def written(self):
        """Writes that the device was given so far, their bytes, and flushes."""
        with open(f"/sys/block/{os.path.basename(self.loop)}/stat") as file:
            numbers = [int(word) for word in file.read().split()]
        return {"device_writes": numbers[4], "device_bytes": 512 * numbers[6], "device_flushes": numbers[15]}

    def processor_seconds(self):
        with open(f"/proc/{self.server.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log(self):
        with open(f"{self.directory}/log") as file:
            return file.read()[-2000:]

    def end(self):
        ended(self.influxd)
        for at, kind in mounts_below(self.directory):
            if not kind.startswith("fuse"):
                unmounted(at)
        detach_loops(self.directory)
        for at, _ in mounts_below(self.directory):
            without_fuse(at)
        ended(self.fuse)
        ended(self.server, signal.SIGINT)
        remove(self.directory)
