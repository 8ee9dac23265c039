"""Writes the answers of an InfluxDB 1.6.7 into the golden scripts of crates/tsdb/tests/queries.

    python3 golden.py --url http://127.0.0.1:8086

What stands behind `now()` there is the time of the test; scripts do not use it.
"""
import argparse, glob, json, os, re
from compare import Server

PLACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../crates/tsdb/tests/queries")


def shown(value):
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value)


def answer(server, query):
    lines = []
    for result in server.ask(query).get("results", []):
        if "error" in result:
            lines.append("! " + result["error"])
        for one in result.get("series", []):
            tags = ",".join(f"{key}={value}" for key, value in sorted(one.get("tags", {}).items()))
            lines.append(f"{one.get('name', '-')} {{{tags}}} {', '.join(one['columns'])}")
            lines += ["  " + ", ".join(map(shown, row)) for row in one.get("values", [])]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    server = Server(parser.parse_args().url, "d")
    server.ask("DROP DATABASE d")
    server.ask("CREATE DATABASE d")
    with open(os.path.join(PLACE, "data.lp")) as data:
        server.write(data.read().split("\n"))
    for path in sorted(glob.glob(os.path.join(PLACE, "*.txt"))):
        with open(path) as script:
            parts = re.split(r"^(?=> )", script.read(), flags=re.M)
        text = parts[0]
        for part in parts[1:]:
            query = part.split("\n", 1)[0]
            text += "\n".join([query, *answer(server, query[2:])]) + "\n"
        with open(path, "w") as script:
            script.write(text)


if __name__ == "__main__":
    main()
