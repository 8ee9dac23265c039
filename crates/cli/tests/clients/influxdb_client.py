"""Python's influxdb, unmodified, against a server with a password: PORT USER PASSWORD."""

import sys

from influxdb import InfluxDBClient
from influxdb.exceptions import InfluxDBClientError

port, user, password = sys.argv[1:]
client = InfluxDBClient("127.0.0.1", int(port), user, password, gzip=False)
assert client.ping() == "1.6.7", client.ping()
client.create_database("points")
client.switch_database("points")
assert {"name": "points"} in client.get_list_database()

points = [
    {
        "measurement": "cpu",
        "tags": {"host": "a b" if at % 2 else "c"},
        "time": 1_500_000_000 + at,
        "fields": {"load": at / 4, "count": at, "text": f'"{at}", =', "even": at % 2 == 0},
    }
    for at in range(2_000)
]
assert client.write_points(points, time_precision="s", batch_size=300)
packed = InfluxDBClient("127.0.0.1", int(port), user, password, "points", gzip=True)
assert packed.write_points(points, time_precision="s")

found = list(client.query("SELECT * FROM cpu", epoch="s").get_points())
assert len(found) == len(points), len(found)
for point, row in zip(points, found):
    assert row["time"] == point["time"] and row["host"] == point["tags"]["host"], row
    assert all(row[name] == value for name, value in point["fields"].items()), row

chunked = client.query("SELECT load FROM cpu", epoch="ms", chunked=True, chunk_size=77)
assert [row["load"] for part in chunked for row in part.get_points()] == [at / 4 for at in range(2_000)]

groups = client.query("SELECT count(load) FROM cpu WHERE time < now() GROUP BY host")
assert {tags["host"]: next(rows)["count"] for (_, tags), rows in groups.items()} == {"a b": 1000, "c": 1000}

for wrong in ["SELECT", "SELECT load FROM"]:
    try:
        client.query(wrong)
        raise AssertionError(f"{wrong}: no error")
    except InfluxDBClientError as error:
        assert error.code == 400 and "error parsing query" in str(error), error
try:
    client.write_points([{"measurement": "cpu", "fields": {"load": "text"}}])
    raise AssertionError("no conflict")
except InfluxDBClientError as error:
    assert error.code == 400 and "field type conflict" in str(error), error
try:
    InfluxDBClient("127.0.0.1", int(port), user, "wrong").get_list_database()
    raise AssertionError("no password is needed")
except InfluxDBClientError as error:
    assert error.code == 401, error

assert [it["name"] for it in client.get_list_measurements()] == ["cpu"]
client.drop_measurement("cpu")
assert client.get_list_measurements() == []
client.drop_database("points")
assert {"name": "points"} not in client.get_list_database()
print("done")
