"""Coreplane's own time-series store in place of InfluxDB on a device, for the same workloads, and its clean-up.

    main.go ─▶ HTTP ─▶ coreplane ts serve ─▶ pools in /dev/shm, one for each queue set, each a medium of its own
"""
import signal, urllib.parse
from stack import COREPLANE, PORT, Stack, ended, remove, until


class Series(Stack):
    """An empty store; `start` serves it."""

    def attach(self, medium, driver, balance, size):
        # `single` has one queue set and one medium; what a set can do is the same. A thread of HTTP waits for the medium with what
        # it writes: there are more of them than sets, or they would be what is measured.
        self.command = [COREPLANE, "ts", "serve", "--pool", f"{self.directory}/pool", "--media", medium, "--sets",
                        "4" if driver == "multi" else "1", "--balance", balance, "--size", size, "--http-port", str(PORT),
                        "--http-threads", "8"]

    def start(self):
        self.server = self.spawn(*self.command)
        until("the server", self.answers, child=self.server)
        self.ask("/query", urllib.parse.urlencode({"q": "CREATE DATABASE testdb"}).encode())

    def restart_cold(self):
        """It ends and begins: what it had in memory it finds again in its pools."""
        ended(self.server, signal.SIGINT)
        self.start()

    def written(self):
        return {}

    def end(self):
        ended(self.server, signal.SIGINT)
        remove(self.directory)
