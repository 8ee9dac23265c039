"""The page of a run: drivers beside each other, and beside what the paper says of its own."""
import os, statistics, subprocess, sys
from stack import HERE, said, tried

# What is compared: figure of the paper, its name, workload, where it is in a line, and whether less is better.
FIGURES = [
    (5, "writes a second", "a", ("load", "per_second"), False),
    (6, "writes a second", "b", ("load", "per_second"), False),
    (7, "write latency, mean", "a", ("load", "mean_us"), True),
    (8, "random queries a second", "a", ("run", "all", "per_second"), False),
    (9, "range queries a second", "b", ("run", "all", "per_second"), False),
    (10, "query latency, mean", "a", ("run", "all", "mean_us"), True),
]
# What the paper's driver gained at most, in percent: for InfluxDB, and for TS-NSM, whose place our store has. The text of figure
# 6 has the two interchanged.
GOALS = {
    "influxdb": {5: (5.6, "+5.6"), 6: (7.8, "+7.8 (printed: 18.6)"), 7: (-2.8, "-2.8"), 8: (0.9, "+0.9"),
                 9: (None, "small, no number"), 10: (-1.4, "-1.4")},
    "tsdb": {5: (14.8, "+14.8"), 6: (18.6, "+18.6 (printed: 7.8)"), 7: (-8.3, "-8.3"), 8: (9.5, "+9.5"), 9: (10.6, "+10.6"),
             10: (-6.4, "-6.4")},
}
# From 1 source to 6, in percent, as the paper has it: on PMEM, and on TS-PMEM.
DECLINES = {
    "influxdb": {6: ("-13.5", "-6"), 7: ("+52.5", "+47.8"), 8: ("-17.8", "-17.6")},
    "tsdb": {6: ("-13", "+5"), 7: ("+44.6", "+30.2"), 8: ("-14.1", "-4.4")},
}
TITLES = {"influxdb": "InfluxDB on the drivers", "tsdb": "The time-series store with one queue set and with four"}


def machine(load, packages=("influxdb", "libnbd-bin")):
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "?")
    version = lambda *command: said(*command).splitlines()[0] if tried(*command) else "?"
    root = os.path.join(HERE, "../..")
    return [
        ("processor", f"{model}, {os.cpu_count()} cores"), ("kernel", os.uname().release), ("load when it began", load),
        ("date", version("date", "-u", "+%Y-%m-%d %H:%M UTC")), ("coreplane", version("git", "-C", root, "rev-parse", "--short", "HEAD")),
        *((it, version("dpkg-query", "-W", "-f", "${Version}", it)) for it in packages),
    ]


def of(line, path):
    for name in path:
        line = line.get(name) if line else None
    return line


def found(lines, path, **wanted):
    """The figures of all runs that are so, by their number."""
    fits = lambda line: all(line[name] == value for name, value in wanted.items())
    return {line["round"]: of(line, path) for line in lines if fits(line) and of(line, path)}


def ratios(one, other):
    return [one[run] / other[run] for run in one if run in other]


def percent(ratio):
    return f"{100 * (ratio - 1):+.1f} %"


def spread(some):
    if not some:
        return "–"
    low, high = (percent(edge) for edge in (min(some), max(some)))
    return percent(statistics.median(some)) + (f" ({low} … {high})" if len(some) > 1 else "")


def table(headings, rows):
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def compared(asked, lines, medium):
    """multi against each other driver, by figure and number of sources."""
    others = [driver for driver in asked.drivers if driver != "multi"]
    rows = []
    for number, name, workload, path, _ in FIGURES:
        goal = GOALS[asked.store][number][1]
        if workload not in asked.workloads:
            continue
        for sources in asked.sources:
            get = lambda driver: found(lines, path, part="figures", medium=medium, workload=workload, sources=sources,
                                       driver=driver)
            medians = [statistics.median(some.values()) if some else None for some in map(get, ["multi"] + others)]
            shown = ["–" if it is None else f"{it:.0f}" for it in medians]
            rows.append([number, f"{name} ({workload})", sources, *(spread(ratios(get("multi"), get(it))) for it in others),
                         goal if sources > 1 else "-0.3 to -2" if number == 5 else "", *shown])
    units = [f"{driver}, a second or µs" for driver in ["multi"] + others]
    return table(["figure", "what", "sources", *(f"multi/{it}" for it in others), "the paper's, at most", *units], rows)


def verdicts(asked, lines, medium):
    """The best that several sources saw, as the paper tells its own."""
    rows, others = [], [driver for driver in asked.drivers if driver != "multi"]
    for number, name, workload, path, is_less_better in FIGURES:
        wanted, goal = GOALS[asked.store][number]
        for other in others:
            get = lambda driver, sources: found(lines, path, part="figures", medium=medium, workload=workload,
                                                sources=sources, driver=driver)
            pairs_of = lambda sources: ratios(get("multi", sources), get(other, sources))
            gains = [(100 * (statistics.median(pairs_of(it)) - 1), it) for it in asked.sources if it > 1 and pairs_of(it)]
            if not gains:
                continue
            best, sources = min(gains) if is_less_better else max(gains)
            is_met = wanted is None or (best <= wanted if is_less_better else best >= wanted)
            verdict = "no number" if wanted is None else "met" if is_met else "**missed**"
            rows.append([number, f"{name} ({workload})", f"multi/{other}", f"{best:+.1f} % ({sources} sources)", goal, verdict])
    return table(["figure", "what", "drivers", "at best", "the paper's, at most, %", "verdict"], rows)


def declines(asked, lines, medium):
    first, last = min(asked.sources), max(asked.sources)
    rows = []
    for number, name, workload, path, _ in FIGURES:
        if workload not in asked.workloads or first == last:
            continue
        get = lambda driver, sources: found(lines, path, part="figures", medium=medium, workload=workload, sources=sources,
                                            driver=driver)
        shown = [spread(ratios(get(it, last), get(it, first))) for it in asked.drivers]
        pmem, ts_pmem = DECLINES[asked.store].get(number, ("no number", "no number"))
        rows.append([number, f"{name} ({workload})", *shown, pmem, ts_pmem])
    return table(["figure", f"from {first} to {last} sources", *asked.drivers, "paper, PMEM, %", "paper, TS-PMEM, %"], rows)


def demand(asked, lines, medium):
    rows = []
    for sources in asked.sources:
        for driver in asked.drivers:
            some = [line for line in lines if "load" in line and (line["part"], line["medium"], line["sources"], line["driver"])
                    == ("figures", medium, sources, driver) and line["workload"] == asked.workloads[0]]
            if some:
                mean = lambda value: statistics.mean(map(value, some))
                points = lambda line: line["load"]["count"]
                processor = f"{mean(lambda it: 1e6 * it['server_processor_seconds'] / points(it)):.0f}"
                device = [f"{mean(lambda it: it['device_bytes'] / it['load_seconds'] / 1e6):.2f}",
                          f"{mean(lambda it: it['device_writes'] / points(it)):.2f}",
                          f"{mean(lambda it: it['device_flushes'] / points(it)):.2f}"] if "device_bytes" in some[0] else []
                rows.append([sources, driver, processor, *device])
    headings = ["sources", "driver", "server's processor, µs a point"]
    if asked.store == "influxdb":
        headings += ["MB/s written to the device", "writes a point", "flushes a point"]
    return table(headings, rows)


def pairs(lines):
    rows = []
    for name, path in (("writes a second", ("load", "per_second")), ("write latency, mean", ("load", "mean_us"))):
        get = lambda driver: found(lines, path, part="pairs", driver=driver)
        some = ratios(get("multi"), get("single"))
        is_met = some and (statistics.median(some) >= 0.99 if path[-1] == "per_second" else statistics.median(some) <= 1.01)
        rows.append([name, len(some), spread(some), "loses at most 1 %", "met" if is_met else "**missed**"])
    return table(["one source, load of a", "pairs", "multi/single", "goal", "verdict"], rows)


def report(asked, media, load, lines):
    page = f"# {TITLES[asked.store]}\n\n    bench-peers/influx/measure.py " + " ".join(sys.argv[1:]) + "\n\n"
    if asked.quick:
        page += "**A quick run: it shows that the command works. Its figures mean nothing.**\n\n"
    page += "Every run as it came is in [raw.jsonl](raw.jsonl).\n\n"
    page += "".join(f"- {what}: {value}\n" for what, value in machine(load))
    page += (f"- load: {asked.points} points of each source, {asked.queries} queries of each; {asked.runs} runs, drivers "
             f"in turn; sources of 4 threads; 4 queue sets, --balance {asked.balance}\n"
             "- figures: medians of runs, ratios medians of each run's, in brackets the least and the greatest\n")
    for medium in asked.media:
        page += f"\n## Medium {medium}: emulated:{media.get(medium, medium.replace('+', ','))}\n\n"
        page += "\n".join(part(asked, lines, medium) for part in (verdicts, compared, declines, demand))
    if asked.pairs:
        page += f"\n## One source\n\nMedium {asked.media[0]}.\n\n" + pairs(lines)
    failed = [line for line in lines if "failed" in line]
    if failed:
        page += "\n## What failed\n\n" + "".join(f"- {line}\n" for line in failed)
    return page
