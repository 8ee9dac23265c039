"""The same data and the same random queries for two servers that speak InfluxDB's version 1: are the answers equal?

    python3 compare.py --urls http://127.0.0.1:8086 http://127.0.0.1:8087 --queries 10000 --seed 1

Both servers get a new database with measurements of several fields and tags: points out of order, points twice, gaps, series
without some of the fields. Queries are made from the grammar by a seed; each is asked of both. Floats may differ by 1e-12 of the
greater one. A difference is printed with its query and the seed of the query alone (`--only SEED`). It ends with 1 if there
is one that `KNOWN` does not explain.
"""
import argparse, json, math, random, sys, time, urllib.error, urllib.parse, urllib.request

START = 1_600_000_000_000_000_000  # in one shard of a week
SECOND = 1_000_000_000
SPAN = 3 * 3600
HOSTS, REGIONS = ["a", "b", "c", "d", "e"], ["east", "west", ""]
FLOATS, INTEGERS = ["f", "g"], ["i", "j"]
NUMBERS = FLOATS + INTEGERS


class Server:
    def __init__(self, url, database):
        self.url, self.database = url.rstrip("/"), database

    def ask(self, query, **parameters):
        form = {"q": query, "db": self.database, "epoch": "ns", **parameters}
        body = urllib.parse.urlencode(form).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/query", body, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.loads(error.read() or b"{}")

    def write(self, lines):
        url = f"{self.url}/write?db={self.database}"
        with urllib.request.urlopen(url, "\n".join(lines).encode(), timeout=60):
            pass


def made(generator):
    """Lines of points: most of them once, some of them again with other values, in any order."""
    points, seen = [], set()
    for measurement in ("m", "n"):
        for host in HOSTS:
            for region in REGIONS:
                if generator.random() < 0.3:
                    continue
                tags = f"{measurement},host={host}" + (f",region={region}" if region else "")
                step = generator.choice([7, 10, 60, 61, 300])
                at = generator.randrange(0, 600)
                while at < SPAN:
                    if generator.random() < 0.02:
                        at += generator.randrange(300, 2400)
                    points.append((tags, START + at * SECOND + generator.choice([0, 0, 0, 1, 500_000_000])))
                    at += step
    lines = []
    for tags, when in points:
        fields = []
        for name in FLOATS:
            if generator.random() < 0.8:
                # Sums of eighths are exact, whatever the order.
                fields.append(f"{name}={generator.randrange(-80000, 80000) / 8}")
        for name in INTEGERS:
            if generator.random() < 0.8:
                fields.append(f"{name}={generator.randrange(-50, 50) if name == 'j' else generator.randrange(10**6)}i")
        if generator.random() < 0.3:
            fields.append(f's="{generator.choice(["x", "y", "z z", ""])}"')
        if generator.random() < 0.3:
            fields.append(f"b={generator.choice(['true', 'false'])}")
        if fields:
            lines.append(f"{tags} {','.join(fields)} {when}")
    again = [line.replace("=", "=", 1) for line in generator.sample(lines, len(lines) // 20)]
    shuffled = lines[:]
    generator.shuffle(shuffled)
    # The second writing of a time wins, so it must come later in both.
    for line in again:
        head, _, when = line.rpartition(" ")
        tags = head.split(" ", 1)[0]
        shuffled.append(f"{tags} f={generator.randrange(-800, 800) / 8} {when}")
    return shuffled


class Queries:
    """Random queries; what they may contain follows from what they contain already."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, of):
        return self.random.random() < of

    def one(self, *of):
        return self.random.choice(of)

    def field(self):
        return self.one(*NUMBERS)

    def any_field(self):
        return self.one(*NUMBERS, "s", "b")

    def source(self):
        return self.random.choices(["m", "n", "m, n", "/^[mn]$/", "nothing", '"autogen".m'], [60, 15, 8, 5, 1, 2])[0]

    def instant(self, at):
        when = START + at * SECOND
        shape = self.random.randrange(4)
        if shape == 0:
            return str(when)
        if shape == 1:
            return f"{when // SECOND}s"
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when // SECOND))
        return f"'{text}Z'" if shape == 2 else "'" + text.replace("T", " ") + ".000'"

    def bounds(self, is_needed=False):
        low, high = sorted(self.random.sample(range(-600, SPAN + 600), 2))
        lower = f"time {self.one('>', '>=')} {self.instant(low)}"
        upper = f"time {self.one('<', '<=')} {self.instant(high)}"
        kind = 0 if is_needed else self.random.randrange(6)
        if kind == 0 and is_needed or kind <= 2:
            return [lower, upper], high - low
        if kind == 3:
            return [upper], SPAN
        if kind == 4:
            return [lower], SPAN
        return [], SPAN

    def tag_condition(self):
        return self.one(
            f"host = '{self.one(*HOSTS)}'", f"host != '{self.one(*HOSTS)}'", f"host =~ /[{self.one('ab', 'cd', 'a-c')}]/",
            f"host !~ /{self.one('a', 'b|c')}/", f"region = '{self.one(*REGIONS)}'", f"region != '{self.one(*REGIONS)}'",
            "region =~ /.*/", "region =~ /.+/", "region !~ /st$/", "other = ''", "other != 'x'")

    def field_condition(self):
        return self.one(
            f"{self.field()} {self.one('<', '<=', '>', '>=', '=', '!=')} {self.random.randrange(-60, 60)}",
            f"f {self.one('<', '>')} {self.random.randrange(-5000, 5000)}.5", f"i > {self.random.randrange(10**6)}",
            f"s = '{self.one('x', 'y', '', 'z z')}'", f"s != '{self.one('x', 'y')}'", "s =~ /z|y/", "s !~ /x/",
            f"b = {self.one('true', 'false')}", "b != true", f"f + g > {self.random.randrange(-900, 900)}",
            f"j * 2 < i", "i % 3 = 1", f"{self.random.randrange(-60, 60)} < j", "nothing = 5")

    def condition(self, deep=0):
        shape = self.random.randrange(10)
        if shape < 3 or deep > 2:
            return self.tag_condition()
        if shape < 6:
            return self.field_condition()
        joined = f"{self.condition(deep + 1)} {self.one('AND', 'OR')} {self.condition(deep + 1)}"
        return f"({joined})" if self.chance(0.6) or deep else joined

    def where(self, is_bounded=False):
        bounds, span = self.bounds(is_bounded)
        parts = bounds[:]
        if self.chance(0.4):
            condition = self.condition()
            parts.append(f"({condition})" if " OR " in condition else condition)
        self.random.shuffle(parts)
        return (" WHERE " + " AND ".join(parts) if parts else ""), span

    def tail(self, is_raw=False, no_limits=False):
        text = self.one("", "", "", " ORDER BY time ASC", " ORDER BY time DESC", " ORDER BY time DESC")
        if no_limits:
            return text
        if self.chance(0.5 if is_raw else 0.25):
            text += f" LIMIT {self.random.randrange(1, 40)}"
            if self.chance(0.4):
                text += f" OFFSET {self.random.randrange(0, 20)}"
        if self.chance(0.1):
            text += f" SLIMIT {self.random.randrange(1, 5)}"
            if self.chance(0.5):
                text += f" SOFFSET {self.random.randrange(0, 3)}"
        return text

    def tags(self):
        return self.one([], [], ["host"], ["region"], ["host", "region"], ["*"], ["/^h/"], ["other"])

    def interval(self, span, may_shift=True):
        seconds = max(span, 60)
        width = self.one(*[it for it in (10, 60, 61, 300, 600, 1800, 3600, 10**5) if seconds / it < 400] or [3600])
        # InfluxDB counts from the beginning of time if there is an offset and no lower bound, and does not end.
        offset = self.one("", "", "", ", 7s", ", -30s", ", 90s") if may_shift else ""
        return f"time({width}s{offset})"

    def fill(self):
        return self.one("", "", "", " fill(null)", " fill(none)", " fill(previous)", " fill(linear)", " fill(0)", " fill(-7)",
                        " fill(2.5)")

    def raw(self):
        kind = self.random.randrange(8)
        if kind == 0:
            columns = "*"
        elif kind == 1:
            columns = self.one("*::field", "/^[fi]/", "/./", "*::field, host", "f, *::tag")
        elif kind == 2:
            a, b = self.field(), self.field()
            columns = self.one(f"{a} + {b}", f"{a} - {b} * 2", f"{a} / {b}", f"{a} % 7", f"-{a}", f"({a} + 1) * {b} AS x",
                               f"abs({a})", f"{a} + {b}, {a}", f"floor({a} / 3)", f"{a}, {a}")
        elif kind == 3:
            columns = f"{self.one('f::integer', 'i::float', 'f::float', 'j::field', 'host::tag, f')}"
        else:
            names = self.random.sample(NUMBERS + ["s", "b", "host", "region", "nothing"], self.random.randrange(1, 5))
            if all(it in ("host", "region", "nothing") for it in names):
                names.append(self.field())
            columns = ", ".join(f"{it} AS z_{it}" if self.chance(0.1) else it for it in names)
        where, _ = self.where()
        tags = self.tags()
        group = f" GROUP BY {', '.join(tags)}" if tags else ""
        return f"SELECT {columns} FROM {self.source()}{where}{group}{self.tail(True)}"

    def call(self, is_wild=True):
        kind = self.random.randrange(20)
        if kind < 11:
            name = self.one("count", "sum", "mean", "min", "max", "first", "last", "spread", "median", "mode", "stddev")
            if name in ("count", "first", "last", "mode") and self.chance(0.2):
                return f"{name}({self.any_field()})"
            if is_wild and self.chance(0.1):
                return f"{name}({self.one('*', '/^[fi]/', '*::field')})"
            return f"{name}({self.field()})"
        if kind < 13:
            return f"percentile({self.field()}, {self.one('50', '90', '99.9', '0', '100', '33.3')})"
        if kind < 14:
            return f"count(distinct({self.any_field()}))"
        a, b = self.field(), self.field()
        return self.one(f"max({a}) - min({a})", f"mean({a}) * 2", f"sum({a}) / count({a})", f"sum({a}) + sum({b})",
                        f"-count({a})", f"round(mean({a}))")

    def aggregate(self):
        where, span = self.where()
        tags, has_time = self.tags(), self.chance(0.6)
        calls = [self.call() for _ in range(self.one(1, 1, 1, 2, 3))]
        if self.chance(0.15):
            calls = [f"distinct({self.any_field()})"]
        fill = self.fill() if has_time else self.one("", "", " fill(0)")
        groups = tags + ([self.interval(span, "time >" in where)] if has_time else [])
        self.random.shuffle(groups)
        group = f" GROUP BY {', '.join(groups)}" if groups else ""
        if has_time and "now()" not in where and " time <" not in where.replace("WHERE time <", " time <"):
            # Else it would end now, and not be asked at the same time.
            where += (" AND " if where else " WHERE ") + f"time <= {START + SPAN * SECOND}"
        tail = self.tail()
        if has_time and "DESC" in tail and "time >" not in where:
            # InfluxDB fills some of the buckets twice if times descend to no lower bound.
            where += f" AND time >= {START - 60 * SECOND}"
        return f"SELECT {', '.join(calls)} FROM {self.source()}{where}{group}{fill}{tail}"

    def selector(self):
        where, span = self.where(True)
        name = self.one("min", "max", "first", "last", "percentile")
        field = self.one("f", "g", "i")
        call = f"percentile({field}, {self.one(50, 95)})" if name == "percentile" else f"{name}({field})"
        beside = ", ".join(self.random.sample(["host", "region", *NUMBERS, "s"], self.one(1, 2)))
        tags, has_time = self.tags(), self.chance(0.4)
        groups = tags + ([self.interval(span)] if has_time else [])
        group = f" GROUP BY {', '.join(groups)}" if groups else ""
        fill = self.one("", " fill(none)", " fill(0)") if has_time else ""
        return f"SELECT {call}, {beside} FROM {self.source()}{where}{group}{fill}{self.tail()}"

    def ranking(self):
        where, span = self.where(True)
        tags = self.random.sample(["host", "region"], self.one(0, 0, 1, 2))
        beside = self.one("", "", ", j", ", host, s")
        call = f"{self.one('top', 'bottom')}({', '.join([self.one('f', 'g', 'i'), *tags, str(self.one(1, 2, 3, 10))])})"
        groups = self.one([], [], ["host"], ["region"]) + ([self.interval(span)] if self.chance(0.4) else [])
        group = f" GROUP BY {', '.join(groups)}" if groups else ""
        order = self.one("", "", " ORDER BY time DESC")
        return f"SELECT {call}{beside} FROM {self.one('m', 'n')}{where}{group}{order}"

    def step(self):
        where, span = self.where(True)
        tags = self.tags()
        name = self.one("derivative", "non_negative_derivative", "difference", "non_negative_difference", "moving_average",
                        "cumulative_sum", "elapsed", "integral")
        has_call = name != "integral" and self.chance(0.5)
        of = f"{self.one('mean', 'max', 'sum', 'count', 'last', 'median')}({self.field()})" if has_call else self.field()
        more = {"moving_average": f", {self.one(2, 3, 5)}", "elapsed": self.one("", ", 1s", ", 1m")}.get(name, "")
        if name.endswith("derivative") or name == "integral":
            more = self.one("", ", 1s", ", 10s", ", 1h")
        has_time = has_call or name == "integral" and self.chance(0.5)
        if name == "integral":
            # InfluxDB gives the groups of an integral in any order, and interpolates integers at the wrong place.
            of, tags = self.one("f", "g"), []
        groups = tags + ([self.interval(span)] if has_time else [])
        group = f" GROUP BY {', '.join(groups)}" if groups else ""
        fill = self.one("", "", " fill(none)", " fill(previous)", " fill(0)", " fill(linear)") if has_call else ""
        return f"SELECT {name}({of}{more}) FROM {self.one('m', 'n')}{where}{group}{fill}{self.tail()}"

    def inner(self):
        """Sub-queries. Those that group more finely than the query around them fill nothing: InfluxDB mixes their series up."""
        where, span = self.where(True)
        tags = self.one([], ["host"], ["host", "region"])
        kind = self.random.randrange(3)
        outer_tags = self.one([], tags, tags[:1])
        interval = self.interval(span)
        if kind == 0:
            inside = f"SELECT {self.one('mean', 'max', 'sum', 'count', 'last')}(f) AS v FROM m{where}"
            inside += f" GROUP BY {', '.join(tags + [interval])}"
        elif kind == 1:
            inside = f"SELECT {self.one('mean', 'max', 'min', 'first', 'sum')}({self.field()}) AS v FROM m{where}"
            inside += f" GROUP BY {', '.join(tags)}" if tags else ""
        else:
            inside = f"SELECT {self.one('f', 'i', 'f + g', 'f * 2')} AS v, j FROM m{where}"
            inside += f" GROUP BY {', '.join(tags)}" if tags else ""
        outside = self.one("mean(v)", "max(v)", "min(v)", "sum(v)", "count(v)", "spread(v)", "median(v)", "stddev(v)",
                           "first(v)", "last(v)", "percentile(v, 50)")
        condition = self.one("", "", "", f" WHERE v > {self.random.randrange(-1000, 1000)}")
        if kind == 2 and self.chance(0.2):
            condition = " WHERE j > 0 AND v != 7"
        if kind == 2 and self.chance(0.3):
            outside = "v" if outer_tags == tags else outside
        group = f" GROUP BY {', '.join(outer_tags)}" if outer_tags else ""
        return f"SELECT {outside} FROM ({inside}){condition}{group}{self.one('', '', ' LIMIT 7') if outside == 'v' else ''}"

    def names(self):
        where = self.one("", "", f" WHERE {self.tag_condition()}")
        limit = self.one("", "", " LIMIT 2", " LIMIT 2 OFFSET 1")
        source = self.one("", " FROM m", " FROM m, n", " FROM /m|n/", " FROM nothing")
        keys = self.one("= host", "!= host", "=~ /o/", "!~ /o/", "IN (host, region)", "= nothing")
        plain = f" WHERE host = '{self.one(*HOSTS)}'" if self.chance(0.3) else ""
        return self.one(
            f"SHOW TAG KEYS{source}{plain}{limit}", f"SHOW TAG VALUES{source} WITH KEY {keys}{where}{limit}",
            f"SHOW FIELD KEYS{source}{limit}", f"SHOW SERIES{source}{where}{limit}", f"SHOW MEASUREMENTS{plain}{limit}",
            "SHOW MEASUREMENTS WITH MEASUREMENT =~ /m/", "SHOW MEASUREMENTS WITH MEASUREMENT = n",
            f"SHOW SERIES EXACT CARDINALITY{source}", f"SHOW TAG KEY CARDINALITY{source}",
            f"SHOW FIELD KEY CARDINALITY{source}", "SHOW SERIES CARDINALITY", "SHOW MEASUREMENT CARDINALITY",
            "SHOW RETENTION POLICIES", f"SHOW TAG VALUES CARDINALITY{source} WITH KEY = host")

    def wrong(self):
        return self.one(
            "SELECT mean(s) FROM m", "SELECT sum(b) FROM m", "SELECT f, mean(g) FROM m", "SELECT max(f), min(g), host FROM m",
            "SELECT mean(f) + g FROM m", "SELECT derivative(mean(f)) FROM m", "SELECT f FROM m GROUP BY time(1m)",
            "SELECT top(f, 5) FROM m LIMIT 2", "SELECT percentile(f) FROM m", "SELECT nope(f) FROM m", "SELECT 1 FROM m",
            "SELECT mean(f) FROM m GROUP BY time(1m), time(2m)", "SELECT distinct(f), g FROM m", "SELECT time FROM m",
            "SELECT f FROM none..m", "SELECT f FROM nope.m", "SELECT f FROM m WHERE time > 'x'", "SELECT f FROM m WHERE f",
            "SELECT f FROM m WHERE mean(f) > 1", "SELECT f + s FROM m", "SELECT moving_average(f, 1) FROM m",
            "SELECT f FROM m WHERE time > '2020-13-01'", "SELECT f FROM m fill(none)", "SELECT * + 1 FROM m",
            "SELECT mean(*::tag) FROM m", "SELECT elapsed(f, 5) FROM m", "SELECT count(distinct(*)) FROM m",
            "SELECT f FROM m WHERE time != 5", "SELECT f FROM (SELECT f FROM m ORDER BY time DESC)", "SHOW TAG KEYS ON none")

    def query(self):
        kinds = [self.raw, self.aggregate, self.selector, self.ranking, self.step, self.inner, self.names, self.wrong]
        return self.random.choices(kinds, [24, 36, 8, 6, 12, 10, 5, 1])[0]()


# What differs, and why.
KNOWN = [
    ("mode(", True, "of equally frequent values InfluxDB takes one by the order of a sort that is not stable; ours is the first"),
    ("percentile(", True, "of equal values InfluxDB takes the time and the tags of one by the order of a sort that is not stable"),
    ("percentile(", False, "InfluxDB ends its answer at the first bucket that has too few points for the rank"),
    ("EXACT CARDINALITY", True, "InfluxDB counts a series once for each of its shards"),
]
# Not asked, since InfluxDB 1.6.7 is wrong in them: `time(…, offset)` without lower bound (it does not end), filled buckets that
# descend without lower bound (some come twice), functions of functions without lower bound (no answer), groups of integrals (in
# any order), integrals of integers (interpolated wrongly), sub-queries with fill that group more finely than the query around.
# With `--start` at the end of a shard the order of series at equal times is that of InfluxDB's shards, and so are functions from
# point to point over several series.


def is_equal(a, b):
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_equal(a[it], b[it]) for it in a)
    return a == b


def rows_of(answer):
    """The rows of each series, sorted: for queries whose order at equal times is nobody's to say."""
    results = answer.get("results", [])
    return [[(one.get("name"), json.dumps(one.get("tags"), sort_keys=True), one["columns"],
              sorted(map(json.dumps, one.get("values", [])))) for one in result.get("series", [])] for result in results]


def shape(answer):
    """The series, and how many rows each has."""
    results = answer.get("results", [])
    return [[(one.get("name"), one.get("tags"), one["columns"], len(one.get("values", []))) for one in result.get("series", [])]
            for result in results]


def main():
    global START
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--urls", nargs=2, required=True)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the seed of one query, which is shown with both answers")
    parser.add_argument("--kind", help="queries of one kind alone: raw, aggregate, selector, ranking, step, inner, names, wrong")
    parser.add_argument("--keep", action="store_true", help="take the data that is there")
    parser.add_argument("--start", type=int, default=START // SECOND,
                        help="seconds since 1970 of the first point; 1600036000 has the end of a shard in the middle")
    parser.add_argument("--show", type=int, default=20, help="so many differences are printed")
    asked = parser.parse_args()
    START = asked.start * SECOND
    servers = [Server(url, f"compare_{asked.seed}") for url in asked.urls]
    if not asked.keep:
        lines = made(random.Random(asked.seed))
        for server in servers:
            server.ask(f"DROP DATABASE {server.database}")
            server.ask(f"CREATE DATABASE {server.database}")
            for at in range(0, len(lines), 2000):
                server.write(lines[at:at + 2000])
        print(f"{len(lines)} lines in each")
    seeds = [asked.only] if asked.only is not None else range(asked.seed * 10**6, asked.seed * 10**6 + asked.queries)
    differ = order = failed = 0
    known = {}
    for seed in seeds:
        queries = Queries(seed)
        query = getattr(queries, asked.kind or "query")()
        one, other = (server.ask(query) for server in servers)
        if asked.only is not None:
            print(query, json.dumps(one), json.dumps(other), sep="\n")
        failed += any("error" in it for it in one.get("results", [one]))
        if is_equal(one, other):
            continue
        if is_equal(rows_of(one), rows_of(other)) and "error" not in json.dumps([one, other]):
            order += 1
            if order <= 3:
                print(f"order at equal times, seed {seed}: {query}")
            continue
        is_shaped = shape(one) == shape(other)
        reason = next((why for part, alike, why in KNOWN if part in query and alike == is_shaped), None)
        if reason and "error" not in json.dumps([one, other]):
            known[reason] = known.get(reason, 0) + 1
            continue
        differ += 1
        if differ <= asked.show:
            print(f"seed {seed}: {query}")
            print("  " + first_difference(one, other))
    for reason, count in known.items():
        print(f"{count} differ as it is known: {reason}")
    print(f"{len(seeds)} queries, {failed} with an error in the first; {differ} differ, {order} in the order at equal times alone")
    return 1 if differ else 0


def first_difference(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            if not is_equal(a[key], b[key]):
                return first_difference(a[key], b[key], f"{path}.{key}")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, pair in enumerate(zip(a, b)):
            if not is_equal(*pair):
                return first_difference(*pair, f"{path}[{at}]")
    if isinstance(a, list) and isinstance(b, list):
        for at, pair in enumerate(zip(a, b)):
            if not is_equal(*pair):
                return f"{path}: {len(a)} and {len(b)}; [{at}] " + first_difference(*pair, "")[:300]
        return f"{path}: {len(a)} and {len(b)}; the first " + json.dumps((a if len(a) > len(b) else b)[min(len(a), len(b))])[:200]
    return f"{path}: {json.dumps(a)[:300]}  |  {json.dumps(b)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
