"""redis-py's cluster client against a Coreplane cluster: it finds the leader by CLUSTER SLOTS, follows MOVED, and reads
from followers. Arguments: the port of any node, and the protocol."""
import sys
import redis

place = {"host": "127.0.0.1", "port": int(sys.argv[1]), "protocol": int(sys.argv[2]),
         "socket_timeout": 60, "socket_connect_timeout": 60}
client = redis.RedisCluster(**place)
for number in range(300):
    assert client.set(f"key:{number}", number)
for number in range(300):
    assert client.get(f"key:{number}") == str(number).encode()
assert client.mget_nonatomic([f"key:{number}" for number in range(10)]) == [str(n).encode() for n in range(10)]
with client.pipeline() as pipeline:
    for number in range(50):
        pipeline.incr("{counter}a")
    assert pipeline.execute() == list(range(1, 51))
nodes = client.get_nodes()
primaries, replicas = client.get_primaries(), client.get_replicas()
assert (len(nodes), len(primaries), len(replicas)) == (3, 1, 2), nodes

# Stale by choice: what was written a moment ago may be missing, what was written long ago is not.
import time
time.sleep(1)
reader = redis.RedisCluster(**place, read_from_replicas=True)
for _ in range(20):
    for number in range(30):
        assert reader.get(f"key:{number}") == str(number).encode()
print("cluster: 300 keys")
