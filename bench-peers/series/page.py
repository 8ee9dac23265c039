"""The page of a run: ratios first, beside what is promised."""
import os, statistics, sys
from servers import ALL, HERE
from report import machine, table

US = "coreplane"
# Of queries: what each is, as InfluxQL and as VictoriaMetrics is asked.
QUERIES = {
    "range-1h": ("points of one device, 1 h", "SELECT usage_user FROM cpu WHERE hostname = … AND time …", "/api/v1/export"),
    "range-12h": ("points of one device, 12 h", "the same", "the same"),
    "count-4h": ("count of one device, 4 h", "SELECT count(usage_user) …", "/api/v1/query, count_over_time"),
    "sum-4h": ("sum of one device, 4 h", "SELECT sum(usage_user) …", "/api/v1/query, sum_over_time"),
    "mean-4h": ("mean of one device, 4 h", "SELECT mean(usage_user) …", "/api/v1/query, avg_over_time"),
    "hours-1": ("means by hour and device, one field, 12 h", "SELECT mean(usage_user) … GROUP BY time(1h), hostname",
                "/api/v1/query_range, avg(avg_over_time(cpu_usage_user[1h])) by (__name__, hostname)"),
    "hours-10": ("means by hour and device, ten fields, 12 h", "SELECT mean(…), … GROUP BY time(1h), hostname",
                 "the same of {__name__=~…}"),
}
# How many times InfluxDB, and VictoriaMetrics, must be as fast.
GOALS = {**dict.fromkeys(["range-1h", "range-12h", "count-4h", "sum-4h", "mean-4h"], {"influxdb": 5, "victoria-metrics": 1}),
         "hours-1": {"influxdb": 1, "victoria-metrics": 1}, "hours-10": {"influxdb": 1, "victoria-metrics": 1},
         "load": {"victoria-metrics": 1.3}, "insert": {"influxdb": 3}}


def at(line, path):
    for name in path:
        line = line.get(name) if isinstance(line, dict) else None
    return line


class Lines:
    def __init__(self, asked, lines):
        self.asked, self.lines = asked, lines

    def medians(self, medium, path, part=None, writers=None):
        """The median of each server's rounds."""
        found = {}
        for server in self.asked.servers:
            some = [at(line, path) for line in self.lines if (line["medium"], line["server"]) == (medium, server)
                    and part in (None, line["part"]) and writers in (None, line["writers"])]
            some = [it for it in some if it is not None]
            if some:
                found[server] = statistics.median(some)
        return found


def judged(ratio, goal):
    if ratio is None:
        return "–"
    verdict = "" if goal is None else f" (≥ {goal}: {'met' if ratio >= goal else '**missed**'})"
    return f"{ratio:.2f}{verdict}"


def row(asked, what, medians, goals, is_time=False, scale=1.0, digits=0):
    """Ratios, how many times as good we are, and the medians."""
    cells = [what]
    for server in asked.servers:
        if server != US:
            pair = medians.get(US), medians.get(server)
            ratio = None if None in pair else pair[1] / pair[0] if is_time else pair[0] / pair[1]
            cells.append(judged(ratio, goals.get(server)))
    return cells + [f"{medians[it] * scale:.{digits}f}" if it in medians else "–" for it in asked.servers]


def headings(asked, what, unit):
    others = [it for it in asked.servers if it != US]
    return [what, *(f"times {it}" for it in others), *(f"{it}, {unit}" for it in asked.servers)]


def writes(asked, lines, medium):
    rows = []
    for writers in asked.writers:
        part = "whole" if writers == asked.writers[0] else "load"
        get = lambda name: lines.medians(medium, ("load", name), part, writers)
        rows.append(row(asked, f"points, {writers} writers", get("points_per_second"), GOALS["load"]))
        rows.append(row(asked, f"lines, {writers} writers", get("lines_per_second"), {}))
    for clients in asked.connections:
        get = lines.medians(medium, (f"insert-{clients}", "per_second"), "whole")
        rows.append(row(asked, f"single inserts, {clients} connections", get, GOALS["insert"]))
    text = table(headings(asked, "a second", "a second"), rows) + "\n"
    rows = []
    for clients in asked.connections:
        for name in ("mean_us", "p50_us", "p99_us"):
            get = lines.medians(medium, (f"insert-{clients}", name), "whole")
            rows.append(row(asked, f"single insert, {clients} connections, {name[:-3]}", get, {}, is_time=True))
    return text + table(headings(asked, "latency", "µs"), rows)


def queries(asked, lines, medium):
    rows = []
    for name, (what, _, _) in QUERIES.items():
        for column in ("p50_us", "mean_us"):
            get = lines.medians(medium, ("query", name, column), "whole")
            goals = GOALS[name] if column == "p50_us" else {}
            rows.append(row(asked, f"{what}, {column[:-3]}", get, goals, is_time=True))
    return table(headings(asked, "query", "µs"), rows)


def costs(asked, lines, medium):
    rows = []
    get = lambda path, part="whole": lines.medians(medium, path, part)
    for name, what in (("processor_seconds", "until the last acknowledgement"),
                       ("processor_seconds_at_rest", "and what is done behind it")):
        seconds = get(("load", name))
        scaled = {it: value / asked.points * 1e6 for it, value in seconds.items()}
        rows.append(row(asked, f"processor seconds a million points, {what}", scaled, {}, is_time=True, digits=3))
    for part, path, what in (("load", "on_medium", "right behind the load"), ("settled", "on_medium", "in the end")):
        some = get((part, path))
        points = get(("settled", "points")) if part == "settled" else dict.fromkeys(some, asked.points)
        scaled = {it: value / points[it] for it, value in some.items()}
        rows.append(row(asked, f"bytes a point on the medium, {what}", scaled, {}, is_time=True, digits=2))
    sealed, points = get(("settled", "sealed_bytes")), get(("settled", "sealed_points"))
    if sealed.get(US) and points.get(US):
        rows.append(row(asked, "bytes a point in sealed chunks", {US: sealed[US] / points[US]}, {}, digits=2))
    rows.append(row(asked, "MiB of its own memory behind the load", get(("load", "memory", "RssAnon")), {}, True, 2 ** -20))
    rows.append(row(asked, f"seconds from a start after kill -9 to the first right answer, {asked.points / 1e6:.0f} M points",
                    get(("restart", "seconds")), {}, is_time=True, digits=3))
    if medium == asked.media[0] and asked.restart_points:
        some = get(("restart", "seconds"), "large")
        rows.append(row(asked, f"the same, {asked.restart_points / 1e6:.0f} M points", some, {}, is_time=True, digits=3))
    text = table(headings(asked, "cost", "as said"), rows)
    for part in ("whole", "large"):
        for name in ("cpu", "single"):
            missing = {it: value for it, value in get(("restart", "missing", name), part).items() if value}
            for server, count in missing.items():
                text += f"\n- {server}, {part}: {count:.0f} acknowledged {'lines' if name == 'cpu' else 'inserts'} were lost by kill -9"
    return text + "\n"


def page_of(asked, load, lines):
    page = "# Time series beside InfluxDB and VictoriaMetrics\n\n    bench-peers/series/measure.py " + " ".join(sys.argv[1:]) + "\n\n"
    if asked.quick:
        page += "**A quick run: it shows that the command works. Its figures mean nothing.**\n\n"
    page += "Every run as it came is in [raw.jsonl](raw.jsonl).\n\n"
    page += "".join(f"- {what}: {value}\n" for what, value in machine(load, ("influxdb", "victoria-metrics")))
    page += (f"- load: 1,000 devices with ten fields as TSBS's cpu-only has them, seed {asked.seed}; {asked.points:,} points; lines "
             f"of ten points, batches of 5,000 lines; tags in the order of {asked.tags}, batches: {asked.order}\n"
             f"- {asked.rounds} rounds, servers in turn; figures are medians; ratios are how many times as good Coreplane is\n"
             "- a point is one value of one field; each answer was held against what was written, to 1e-12\n")
    page += "".join(f"- {name}: {ALL[name].said}\n" for name in asked.servers)
    page += "\n" + table(["query", "InfluxQL", "VictoriaMetrics, nocache=1"], QUERIES.values())
    kinds = {"memory": "/dev/shm, which no power cut survives, whoever writes there", "disk": f"files in {asked.disk}"}
    found = Lines(asked, lines)
    for medium in asked.media:
        page += f"\n## Medium: {medium} ({kinds[medium]})\n\n"
        page += "\n".join(part(asked, found, medium) for part in (writes, queries, costs))
    failed = [line for line in lines if "failed" in line]
    if failed:
        page += "\n## What failed\n\n" + "".join(f"- {line}\n" for line in failed)
    return page
