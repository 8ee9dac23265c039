"""redis-py talks to a server: conversation.py PORT UNIX_SOCKET

Run by clients.rs. Whatever is not as Redis answers it is an AssertionError and a non-zero exit; at
the end one line says how many parts there were, for RESP2 and for RESP3.
"""

import sys
import threading
import time

import redis
from redis.exceptions import ConnectionError, ResponseError, WatchError


def strings(r, _):
    assert r.set("greeting", "hello") is True
    assert r.get("greeting") == b"hello"
    assert r.get("absent") is None
    assert r.append("greeting", ", world") == 12
    assert r.strlen("greeting") == 12
    assert r.getrange("greeting", 0, 4) == b"hello"
    assert r.setrange("greeting", 7, "redis") == 12
    assert r.get("greeting") == b"hello, redis"
    assert r.mset({"a": "1", "b": "2"}) is True
    assert r.mget("a", "none", "b") == [b"1", None, b"2"]
    assert r.msetnx({"b": "3", "c": "3"}) is False
    assert r.msetnx({"c": "3", "d": "4"}) is True
    assert r.getset("a", "9") == b"1"
    assert r.getdel("a") == b"9"
    assert r.exists("a", "b", "c", "b") == 3
    assert r.type("b") == b"string" and r.type("a") == b"none"


def numbers(r, _):
    assert r.incr("n") == 1
    assert r.incrby("n", 41) == 42
    assert r.decr("n", 2) == 40
    assert r.incrbyfloat("n", 0.5) == 40.5
    r.set("text", "no number")
    for command in (r.incr, r.decr):
        try:
            command("text")
            raise AssertionError("a text was counted up")
        except ResponseError as error:
            assert "not an integer" in str(error), error
    r.set("largest", 2**63 - 1)
    try:
        r.incr("largest")
        raise AssertionError("a number overflowed")
    except ResponseError as error:
        assert "overflow" in str(error), error


def set_options(r, _):
    assert r.set("k", "1", nx=True) is True
    assert r.set("k", "2", nx=True) is None
    assert r.set("k", "2", xx=True) is True
    assert r.set("absent", "2", xx=True) is None
    assert r.set("k", "3", get=True) == b"2"
    assert r.set("new", "1", get=True) is None
    assert r.set("k", "4", ex=100) is True and 0 < r.ttl("k") <= 100
    assert r.set("k", "5", keepttl=True) is True and 0 < r.ttl("k") <= 100
    assert r.set("k", "6") is True and r.ttl("k") == -1
    assert r.set("k", "7", px=100_000) is True and 0 < r.pttl("k") <= 100_000
    then = int(time.time()) + 1000
    assert r.set("k", "8", exat=then) is True and r.expiretime("k") == then
    assert r.set("k", "9", pxat=then * 1000 + 5) is True and r.pexpiretime("k") == then * 1000 + 5
    assert r.setex("k", 50, "10") is True and 0 < r.ttl("k") <= 50
    assert r.psetex("k", 50_000, "11") is True and 0 < r.pttl("k") <= 50_000
    assert r.setnx("k", "12") is False and r.get("k") == b"11"
    for bad in (dict(ex=0), dict(px=-1)):
        try:
            r.set("k", "13", **bad)
            raise AssertionError("a lifetime without life")
        except ResponseError as error:
            assert "invalid expire time" in str(error), error
    assert r.get("k") == b"11"


def expiry(r, _):
    r.set("soon", "gone", px=30)
    r.set("later", "there")
    assert r.expire("later", 100) is True
    assert r.expire("later", 200, nx=True) is False
    assert r.expire("later", 50, gt=True) is False
    assert r.expire("later", 300, gt=True) is True
    assert r.expire("later", 20, lt=True) is True
    assert r.expire("none", 20) is False
    assert r.getex("later", persist=True) == b"there" and r.ttl("later") == -1
    assert r.getex("later", px=60_000) == b"there" and r.persist("later") is True
    assert r.ttl("none") == -2
    deadline = time.time() + 30
    while r.exists("soon"):
        assert time.time() < deadline, "a key outlives its time"
        time.sleep(0.005)
    assert r.get("soon") is None and r.ttl("soon") == -2
    r.set("past", "x")
    assert r.pexpireat("past", 1) is True and r.exists("past") == 0


def keyspace(r, _):
    r.mset({f"user:{number}": number for number in range(2500)})
    r.mset({f"other:{number}": number for number in range(700)})
    assert r.dbsize() == 3200
    seen = set(r.scan_iter(match="user:*", count=100))
    assert seen == {b"user:%d" % number for number in range(2500)}, len(seen)
    assert len(set(r.scan_iter())) == 3200
    assert len(set(r.scan_iter(_type="string"))) == 3200
    assert set(r.scan_iter(_type="list")) == set()
    assert len(r.keys("other:1?")) == 10
    assert r.randomkey().split(b":")[0] in (b"user", b"other")
    assert r.rename("user:1", "renamed") is True and r.get("renamed") == b"1"
    assert r.renamenx("renamed", "user:2") is False
    assert r.copy("renamed", "copied") is True and r.copy("renamed", "user:2") is False
    assert r.copy("renamed", "user:2", replace=True) is True and r.get("user:2") == b"1"
    try:
        r.rename("none", "x")
        raise AssertionError("what is not there was renamed")
    except ResponseError as error:
        assert "no such key" in str(error), error
    assert r.delete("user:2", "none", "copied") == 2
    assert r.unlink(*[f"other:{number}" for number in range(700)]) == 700
    assert r.touch("user:3", "user:4", "none") == 2
    assert r.object("encoding", "user:3") in (b"int", b"embstr", b"raw")
    assert r.flushdb() is True and r.dbsize() == 0


def bytes_of_all_kinds(r, _):
    every = bytes(range(256))
    r.set(every, every[::-1])
    assert r.get(every) == every[::-1]
    assert r.keys() == [every] and list(r.scan_iter()) == [every]
    r.set("", "the empty key")
    assert r.get("") == b"the empty key"
    r.set("empty", "")
    assert r.get("empty") == b""
    for size in (1 << 16, 1 << 20, 20 << 20):
        value = (every * (size // 256 + 1))[: size + 1]
        r.set("large", value)
        assert r.get("large") == value, size
    assert r.getrange("large", (20 << 20) - 3, -1) == b"\xfd\xfe\xff\x00"
    longest = b"k" * (64 << 10)
    r.set(longest, "v")
    assert r.get(longest) == b"v"
    try:
        r.set(longest + b"k", "v")
        raise AssertionError("a key over the limit")
    except ResponseError as error:
        assert "over the limit" in str(error), error
    assert r.get(longest) == b"v", "the connection lives on"


def pipelines(r, _):
    with r.pipeline(transaction=False) as pipe:
        for number in range(5000):
            pipe.set(f"p:{number}", number)
        for number in range(5000):
            pipe.get(f"p:{number}")
        answers = pipe.execute()
    assert answers[:5000] == [True] * 5000
    assert answers[5000:] == [b"%d" % number for number in range(5000)]
    with r.pipeline(transaction=False) as pipe:
        answers = pipe.set("t", "x").incr("t").get("t").execute(raise_on_error=False)
    assert answers[0] is True and isinstance(answers[1], ResponseError) and answers[2] == b"x"


def transactions(r, other):
    with r.pipeline(transaction=True) as pipe:
        assert pipe.set("x", 1).incr("x").get("x").execute() == [True, 2, b"2"]
    with r.pipeline() as pipe:
        pipe.watch("x")
        other.set("x", "changed")
        pipe.multi()
        pipe.set("x", "mine")
        try:
            pipe.execute()
            raise AssertionError("a watched key had changed")
        except WatchError:
            pass
    assert r.get("x") == b"changed"
    with r.pipeline() as pipe:
        pipe.watch("x")
        value = pipe.get("x")
        pipe.multi()
        pipe.set("x", value + b"!")
        assert pipe.execute() == [True]
    try:
        with r.pipeline() as pipe:
            pipe.set("x", 1)
            pipe.execute_command("NONSENSE")
            pipe.execute()
        raise AssertionError("nonsense was executed")
    except ResponseError:
        pass
    assert r.get("x") == b"changed!", "nothing of a refused transaction is done"


def increments_of_many(r, _, threads=6, each=60):
    r.set("count", 0)

    def work():
        for _ in range(each):
            r.transaction(add_one, "count")

    def add_one(pipe):
        value = int(pipe.get("count"))
        pipe.multi()
        pipe.set("count", value + 1)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert int(r.get("count")) == threads * each


def administration(r, _):
    assert r.ping() is True and r.echo("here") == b"here"
    info = r.info()
    assert info["redis_version"].startswith("7.") and info["loading"] == 0
    assert r.info("keyspace") is not None and r.config_get("save") is not None
    assert r.client_setname("conversation") is True and r.client_getname() in (
        b"conversation",
        "conversation",
    )
    assert any(client["name"] == "conversation" for client in r.client_list())
    assert r.command_count() > 60 and len(r.time()) == 2
    # Truthful: the pool of this test lies in memory, which a power cut takes.
    assert r.waitaof(0, 0, 1000) == [0, 0]
    assert r.lastsave() is not None


def reconnection(r, other):
    mine = r.client_id()
    assert other.client_kill_filter(_id=str(mine)) == 1
    try:
        r.ping()
    except ConnectionError:
        pass
    assert r.ping() is True and r.client_id() != mine


def several_databases(r, _):
    try:
        r.execute_command("SELECT", 1)
    except ResponseError as error:
        assert "DB index is out of range" in str(error), error


PARTS = [
    strings,
    numbers,
    set_options,
    expiry,
    keyspace,
    bytes_of_all_kinds,
    pipelines,
    transactions,
    increments_of_many,
    administration,
    reconnection,
    several_databases,
]


def main(port, socket):
    for protocol in (2, 3):
        for place in (dict(host="127.0.0.1", port=int(port)), dict(unix_socket_path=socket)):
            options = dict(protocol=protocol, socket_timeout=60, socket_connect_timeout=60, **place)
            r, other = (redis.Redis(**options) for _ in "12")
            for part in PARTS:
                r.flushall()
                part(r, other)
            r.close()
            other.close()
        print(f"RESP{protocol}: {len(PARTS)} parts")
    print(f"redis-py {redis.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
