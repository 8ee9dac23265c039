"""redis-py goes through ranges of a matrix while others write: ranges.py PORT

Run by clients.rs. Whatever is not in order, or not there, is an AssertionError and a non-zero exit.
"""

import sys
import threading

import redis

KEYS = 3000


def key(number):
    return b"key:%06d" % number


def pages(r, *more, low=b"-", high=b"+"):
    """All keys between the bounds, as a client pages through them."""
    found = []
    while low is not None and high is not None:
        bound, page = r.execute_command("RANGE", low, high, "LIMIT", 100, *more)
        found += page
        if "REV" in more:
            high = bound
        else:
            low = bound
    return found


def disturb(port, seed, stop):
    r = redis.Redis(port=port, socket_timeout=60, socket_connect_timeout=60)
    number = seed
    while not stop.is_set():
        number = (number * 6364136223846793005 + 1442695040888963407) % 2**64
        odd = key((number >> 33) % KEYS * 2 + 1)
        with r.pipeline(transaction=False) as pipe:
            pipe.set(odd, "odd").delete(odd) if number >> 60 & 1 else pipe.set(odd, "odd")
            pipe.execute()
    r.close()


def main(port):
    even = [key(2 * number) for number in range(KEYS)]
    stop = threading.Event()
    writers = [threading.Thread(target=disturb, args=(port, seed, stop)) for seed in range(2)]
    for protocol in (2, 3):
        r = redis.Redis(port=port, protocol=protocol, socket_timeout=60, socket_connect_timeout=60)
        if protocol == 2:
            r.mset({key(number * 7919 % KEYS * 2): number for number in range(KEYS)})
            for writer in writers:
                writer.start()
        try:
            for more in ((), ("REV",), ("PREFIX", "key:")):
                found = pages(r, *more)
                if "REV" in more:
                    found.reverse()
                assert all(one < other for one, other in zip(found, found[1:])), more
                assert [name for name in found if int(name[4:]) % 2 == 0] == even, more
            part = pages(r, low=b"[" + key(100), high=b"(" + key(200))
            assert [name for name in part if int(name[4:]) % 2 == 0] == even[50:100]
            bound, page = r.execute_command("RANGE", "-", "+", "LIMIT", 1, "WITHVALUES")
            assert page == [key(0), b"0"] and bound == b"(" + key(0), page
        finally:
            if protocol == 3:
                stop.set()
        r.close()
    for writer in writers:
        writer.join()
    print("ranges: in order")


if __name__ == "__main__":
    main(int(sys.argv[1]))
