"""The servers that are measured: how each is started, watched, killed, and how much it has on its medium."""
import json, os, shutil, signal, subprocess, sys, time, urllib.parse, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "../influx"))
from stack import CONFIGURATION, COREPLANE, ended, said, until

PREFIX = "coreplane-series-"


class Server:
    """One that runs on an empty directory, and is gone with its files at the end."""
    dialect, port = "influxql", 18186

    def __init__(self, directory, asked):
        self.directory, self.asked, self.child = directory, asked, None
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        self.address = f"127.0.0.1:{self.port}"
        self.start()
        self.prepare()

    def command(self):
        raise NotImplementedError

    def prepare(self):
        self.get("/query", {"q": "CREATE DATABASE bench"})

    def spawn(self):
        with open(f"{self.directory}/log", "a") as log:
            self.child = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          start_new_session=True)

    def start(self):
        self.spawn()
        until(self.name, self.answers, limit=300, child=self.child)

    def get(self, path, form=None):
        data = urllib.parse.urlencode(form).encode() if form else None
        with urllib.request.urlopen(f"http://{self.address}{path}", data, timeout=300) as answer:
            return answer.read().decode()

    def answers(self):
        try:
            self.get(self.ready_path)
            return True
        except OSError:
            return False

    def before_kill(self):
        """What it must be given before all that it has acknowledged survives."""

    def kill(self):
        ended(self.child, signal.SIGKILL)
        self.child = None

    def stop(self):
        ended(self.child, limit=120)
        self.child = None

    def end(self):
        ended(self.child, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self):
        with open(f"{self.directory}/log", errors="replace") as file:
            return file.read()[-2000:]

    def processor_seconds(self):
        with open(f"/proc/{self.child.pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """The most that it ever had, and what is its own now."""
        found = {}
        with open(f"/proc/{self.child.pid}/status") as file:
            for line in file:
                if line.startswith(("VmHWM", "RssAnon")):
                    found[line.split(":")[0]] = int(line.split()[1]) << 10
        return found

    def rest(self, limit=60):
        """Waits until it does nothing any more: less than 5 % of a processor for two seconds."""
        since = time.monotonic()
        calm, last = 0, self.processor_seconds()
        while calm < 4 and time.monotonic() - since < limit:
            time.sleep(0.5)
            now = self.processor_seconds()
            calm = calm + 1 if now - last < 0.025 else 0
            last = now
        return time.monotonic() - since

    def on_medium(self):
        """Bytes that its files take."""
        return sum(os.lstat(os.path.join(at, name)).st_blocks * 512
                   for at, _, names in os.walk(self.directory) for name in names if name != "log")

    def settled(self):
        """What its points take when all that is done in the background has been done; it does not run any more."""
        self.rest(120)
        found = {"on_medium": self.on_medium()}
        self.stop()
        return found


class Coreplane(Server):
    name, ready_path = "coreplane", "/ping"
    said = "each acknowledged point is durable: fenced in memory, synced on a disk"

    def command(self):
        return [COREPLANE, "ts", "serve", "--pool", f"{self.directory}/pool", "--size", self.asked.pool_size, "--http-port",
                str(self.port), *self.asked.coreplane]

    def on_medium(self):
        """Its pools are allocated as a whole, so that nothing can run out."""

    def settled(self):
        self.rest(120)
        self.stop()
        stats = json.loads(said(COREPLANE, "ts", "stats", "--pool", f"{self.directory}/pool", "--json", limit=300))
        return {"on_medium": stats["used_bytes"], **{it: stats[it] for it in ("sealed_bytes", "sealed_points", "head_points")}}


class InfluxDB(Server):
    name, ready_path = "influxdb", "/ping"
    said = "each acknowledged point is in a log that has been synced (wal-fsync-delay 0)"

    def command(self):
        return ["influxd", "-config", f"{self.directory}/influxdb.conf"]

    def configure(self, more=""):
        text = CONFIGURATION.format(at=self.directory, rpc=self.port + 1, port=self.port)
        with open(f"{self.directory}/influxdb.conf", "w") as file:
            file.write(text.replace("[data]\n", "[data]\n" + more))

    def start(self):
        if not os.path.exists(f"{self.directory}/influxdb.conf"):
            self.configure()
        super().start()

    def settled(self):
        # Otherwise it compacts what nobody has written to for four hours.
        self.stop()
        self.configure('  cache-snapshot-write-cold-duration = "1s"\n  compact-full-write-cold-duration = "1s"\n')
        self.start()
        time.sleep(5)
        return super().settled()


class VictoriaMetrics(Server):
    name, ready_path, dialect = "victoria-metrics", "/health", "metricsql"
    said = ("an acknowledged point is in its memory, and on the medium some seconds later: a kill loses it. It is given 15 s "
            "before it is killed here")

    def command(self):
        return ["victoria-metrics", "-storageDataPath", f"{self.directory}/data", "-retentionPeriod", "100y", "-httpListenAddr",
                self.address, "-loggerLevel", "ERROR"]

    def prepare(self):
        pass

    def before_kill(self):
        self.get("/internal/force_flush")
        time.sleep(15)

    def settled(self):
        self.get("/internal/force_flush")
        self.get("/internal/force_merge")
        time.sleep(1)
        return super().settled()


ALL = {it.name: it for it in (Coreplane, InfluxDB, VictoriaMetrics)}


def remove_stale(place):
    """What killed runs have left."""
    for name in os.listdir(place):
        pid = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and not os.path.exists(f"/proc/{pid}"):
            shutil.rmtree(os.path.join(place, name), ignore_errors=True)
