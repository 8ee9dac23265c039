"""redis-py goes on after its server was killed and opened again: resumption.py PORT

Writes without an end. After the line `loaded` the server may be killed; what was acknowledged is read again. The last line
begins with `done`.
"""

import sys
import time

import redis
from redis.exceptions import ConnectionError

EVERY = bytes(range(256))


def value(number):
    return b"%d:" % number + b"v" * (number % 300)


def load(r):
    """Writes until the server is gone and back; the numbers of the writes that were acknowledged."""
    acknowledged, after, first, lost, told = [], 0, 0, False, False
    while after < 500:
        some = range(first, first + 50)
        first += 50
        with r.pipeline(transaction=False) as pipe:
            for number in some:
                pipe.set(f"w:{number}", value(number))
            try:
                assert pipe.execute() == [True] * 50
            except ConnectionError:
                # What is on its way when the connection is lost may be there or not.
                lost = True
                time.sleep(0.001)
                continue
        acknowledged += some
        after += 50 if lost else 0
        if not told and len(acknowledged) >= 2000:
            told = True
            print("loaded", flush=True)
    return acknowledged


def main(port):
    # Without attempts of its own, so that each loss is seen.
    r = redis.Redis(
        host="127.0.0.1", port=int(port), protocol=3, socket_timeout=60, socket_connect_timeout=60, retry=None)
    assert r.set("kept", EVERY, ex=1000) is True
    acknowledged = load(r)
    for number in acknowledged:
        assert r.get(f"w:{number}") == value(number), number
    assert r.get("kept") == EVERY and r.ttl("kept") > 0
    print(f"done: {len(acknowledged)} writes")


if __name__ == "__main__":
    main(*sys.argv[1:])
