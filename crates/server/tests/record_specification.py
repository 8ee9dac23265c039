#!/usr/bin/env python3
"""Writes src/command/specification.resp3 from the answers of a running redis-server 7.0.15.

usage: record_specification.py PORT < names > specification.resp3

`names` holds one command (or `command|part`) a line. Commands that are younger than 7.0 are
written by hand below, after their documentation, and so are our own, which Redis does not have.
"""
import re
import socket
import sys

sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
stream = sock.makefile("rb")


def bulk(text):
    return b"$%d\r\n%s\r\n" % (len(text), text.encode())


def read():
    line = stream.readline()
    kind, number = line[:1], line[1:-2]
    if kind in b"$=":
        return [line + stream.read(int(number) + 2)]
    if kind in b"*%~":
        count = int(number) * (2 if kind == b"%" else 1)
        return [line] + [read() for _ in range(count)]
    return [line]


def flat(value):
    return b"".join(part if isinstance(part, bytes) else flat(part) for part in value)


def ask(*words):
    sock.sendall(b"*%d\r\n" % len(words) + b"".join(map(bulk, words)))
    return read()


def text(value):
    raw = flat(value)
    return raw.split(b"\r\n")[1].decode() if raw[:1] == b"$" else raw[1:-2].decode()


def array(parts, kind=b"*"):
    return [kind + b"%d\r\n" % len(parts), *parts]


def simple_info(name, arity, flags, categories):
    words = lambda items: array([[b"+%s\r\n" % item.encode()] for item in items], b"~")
    numbers = [[b":%d\r\n" % number] for number in (0, 0, 0)]
    empty = [[b"*0\r\n"], [b"*0\r\n"], [b"*0\r\n"]]
    return array([[bulk(name)], [b":%d\r\n" % arity], words(flags), *numbers, words(categories), *empty])


def simple_docs(summary, since, group, complexity, arguments=()):
    pairs = [("summary", summary), ("since", since), ("group", group), ("complexity", complexity)]
    texts = [[bulk(item)] for pair in pairs for item in pair]
    if arguments:
        texts += [[bulk("arguments")], array([argument(*one) for one in arguments])]
    return [b"%%%d\r\n" % (len(texts) // 2), *texts]


def argument(name, kind, token=None, flags=()):
    texts = [[bulk("name")], [bulk(name)], [bulk("type")], [bulk(kind)]]
    if token:
        texts += [[bulk("token")], [bulk(token)]]
    if flags:
        texts += [[bulk("flags")], array([[b"+%s\r\n" % flag.encode()] for flag in flags], b"~")]
    return [b"%%%d\r\n" % (len(texts) // 2), *texts]


YOUNGER = {
    "client|setinfo": (4, ["noscript", "loading", "stale"], ["@slow", "@connection"],
                       "Sets information specific to the client or connection.", "7.2.0", "connection", "O(1)"),
    "client|no-touch": (3, ["noscript", "loading", "stale"], ["@slow", "@connection"],
                        "Controls whether commands sent by the client affect the LRU/LFU of accessed keys.",
                        "7.2.0", "connection", "O(1)"),
    "waitaof": (4, ["noscript"], ["@slow", "@connection"],
                "Blocks until all of the preceding write commands sent by the connection are written to the append-only file of the master and/or replicas.",
                "7.2.0", "generic", "O(1)"),
}

OPTIONAL = ["optional"]
OWN = {
    "cluster": (-2, ["admin", "noscript", "no_multi"], ["@admin", "@slow", "@dangerous"],
                "Tells of the cluster that the server is a node of, and changes its members.",
                "0.2.0", "cluster", "O(N) with N being the number of nodes.",
                [("subcommand", "string"), ("argument", "string", None, ["optional", "multiple"])]),
    "matrix": (-2, ["admin", "noscript", "no_multi"], ["@admin", "@slow", "@dangerous"],
               "Looks after the devices of a matrix: its status, a device that is replaced, a group that is added, a scrub.",
               "0.1.0", "server", "STATUS: O(N) with N being the number of devices; the others only begin their work.",
               [("subcommand", "string"), ("argument", "string", None, ["optional", "multiple"])]),
    "once": (-4, ["write", "no_multi"], ["@write", "@slow", "@transaction"],
             "Runs a command that writes, once, however often it is sent with this number.",
             "0.2.0", "generic", "That of the command.",
             [("client", "string"), ("sequence", "integer"), ("command", "string"),
              ("arg", "string", None, ["optional", "multiple"])]),
    "range": (-3, ["readonly", "no_multi"], ["@keyspace", "@read", "@slow"],
              "Shows keys in their order, from a bound to another, and the bound to go on with.",
              "0.1.0", "generic", "O(log(N)+M) with N being the number of keys and M the number of keys shown.",
              [("min", "string"), ("max", "string"), ("prefix", "string", "PREFIX", OPTIONAL),
               ("count", "integer", "LIMIT", OPTIONAL), ("rev", "pure-token", "REV", OPTIONAL),
               ("withvalues", "pure-token", "WITHVALUES", OPTIONAL),
               ("withexpiries", "pure-token", "WITHEXPIRIES", OPTIONAL)]),
}
OWN["store"] = (
    -2, ["admin", "noscript", "no_multi"], ["@admin", "@slow", "@dangerous"],
    "Looks after the store that is served: what it is, its counters, its records, a verification, its growth.",
    "0.2.0", "server", "RECORDS: O(N) with N being the number of records shown; the others are O(1) or only begin their work.",
    [("subcommand", "string"), ("argument", "string", None, ["optional", "multiple"])])
BY_HAND = {**YOUNGER, **OWN}

names = sys.stdin.read().split()
ask("HELLO", "3")


def info(name):
    if name in BY_HAND:
        return simple_info(name, *BY_HAND[name][:3])
    found = ask("COMMAND", "INFO", name)[1]
    parts = found[10]
    kept = [part for part in parts[1:] if text(part[1]) in names]
    kept += [info(young) for young in YOUNGER if young.startswith(name + "|") and young in names]
    if kept or len(parts) > 1:
        found[10] = array(kept, parts[0][:1])
    return found


def docs(name):
    if name in BY_HAND:
        return simple_docs(*BY_HAND[name][3:])
    found = ask("COMMAND", "DOCS", name)[2]
    pairs = list(zip(found[1::2], found[2::2]))
    for index, (key, value) in enumerate(pairs):
        if text(key) == "subcommands":
            kept = [(k, v) for k, v in zip(value[1::2], value[2::2]) if text(k) in names]
            kept += [([bulk(young)], docs(young)) for young in YOUNGER
                     if young.startswith(name + "|") and young in names]
            value = [b"%%%d\r\n" % len(kept), *[item for pair in kept for item in pair]]
            pairs[index] = (key, value)
    return [b"%%%d\r\n" % len(pairs), *[item for pair in pairs for item in pair]]


out = sys.stdout.buffer
for name in names:
    out.write(bulk(name) + flat(info(name)) + flat(docs(name)))
