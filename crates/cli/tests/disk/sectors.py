# Writes numbered sectors until the server is gone, and finds them again:
#   sectors.py write URI LEDGER CONNECTION      sectors.py check URI LEDGER CONNECTION
#
# A connection has sectors of its own, of which one request at a time is under way. The ledger has a line when a request
# is sent (`s NUMBER SECTOR COUNT KIND`) and one when it is acknowledged (`a NUMBER`). A sector holds what its last
# acknowledged request has left, or one that was sent since; never parts of two. The bytes follow from the number.
import random
import struct
import sys

import nbd

SECTOR = 4096
# Of a connection, and how many requests it has under way.
SECTORS = 1024
DEPTH = 8

mode, uri, path, connection = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
base = connection * SECTORS


def content(number, sector, kind):
    if kind == "z":
        return bytes(SECTOR)
    head = struct.pack("<QQQ", connection, number, sector)
    seed = int.from_bytes(head, "little")
    return head + random.Random(seed).randbytes(SECTOR - len(head))


def connect():
    handle = nbd.NBD()
    handle.connect_uri(uri)
    assert handle.can_fua() and handle.can_multi_conn()
    return handle


class Ledger:
    """What each sector holds by the last acknowledgement, and the requests that were sent since."""

    def __init__(self):
        self.last = 0
        self.kept = {}
        self.sent = {}
        self.open = {}
        try:
            lines = open(path).read().split("\n")
        except FileNotFoundError:
            lines = [""]
        # The last line may be cut off: it was not acknowledged to anybody.
        for line in lines[:-1]:
            self.take(line.split())

    def take(self, words):
        if words[0] == "s":
            number, sector, count = map(int, words[1:4])
            self.last = number
            self.sent[number] = (sector, count, words[4])
            for at in range(sector, sector + count):
                self.open.setdefault(at, []).append(number)
        elif words[0] == "a":
            number = int(words[1])
            sector, count, _ = self.sent[number]
            for at in range(sector, sector + count):
                self.kept[at] = number
                self.open[at] = [it for it in self.open[at] if it > number]
        else:
            # What a check has found: that, and nothing that was sent before.
            sector, number = map(int, words[1:])
            self.kept[sector] = number
            self.open[sector] = []


def write():
    ledger = Ledger()
    number = ledger.last
    draw = random.Random(number * 64 + connection)
    lines = open(path, "a", buffering=1)
    handle = connect()
    busy = set()
    fails = []

    def begin():
        nonlocal number
        count = draw.choice([1, 1, 1, 1, 1, 4, 16])
        sector = draw.randrange(SECTORS - count + 1)
        touched = range(sector, sector + count)
        if busy.intersection(touched):
            return
        number += 1
        kind = draw.choice("ffwwz")
        lines.write("s %d %d %d %s\n" % (number, sector, count, kind))
        busy.update(touched)
        its = number

        def done(error):
            if error.value:
                fails.append(error.value)
                return 1
            lines.write("a %d\n" % its)
            busy.difference_update(touched)
            return 1

        offset, length = (base + sector) * SECTOR, count * SECTOR
        flags = nbd.CMD_FLAG_FUA if kind == "f" else 0
        if kind == "z":
            handle.aio_zero(length, offset, done, draw.choice([0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FUA]))
        else:
            data = bytearray(b"".join(content(number, at, kind) for at in touched))
            handle.aio_pwrite(nbd.Buffer.from_bytearray(data), offset, done, flags)

    try:
        while not fails:
            begin()
            if number % 50 == 0:
                handle.flush()
            while handle.aio_in_flight() >= DEPTH:
                handle.poll(-1)
    except nbd.Error:
        # The server was killed.
        pass
    lines.close()


def check():
    ledger = Ledger()
    handle = connect()
    found = handle.pread(SECTORS * SECTOR, base * SECTOR)
    acknowledged = 0
    lines = open(path, "a")
    for sector in range(SECTORS):
        is_there = found[sector * SECTOR : (sector + 1) * SECTOR]
        kept = ledger.kept.get(sector, 0)
        acknowledged += kept > 0
        allowed = [kept] + ledger.open.get(sector, [])
        holds = [number for number in allowed if is_there == left(ledger, number, sector)]
        if not holds:
            head = struct.unpack("<QQQ", is_there[:24])
            sys.exit("sector %d of %d: head %s, and not of any of %s" % (sector, connection, head, allowed))
        lines.write("c %d %d\n" % (sector, holds[-1]))
    lines.close()
    print("sectors", acknowledged, "requests", ledger.last)


def left(ledger, number, sector):
    return content(number, sector, ledger.sent[number][2] if number else "z")


check() if mode == "check" else write()
