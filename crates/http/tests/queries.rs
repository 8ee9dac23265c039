//! InfluxQL over HTTP: the answers of InfluxDB 1.6.7 to the same requests on the same points, byte for byte.

mod server;

use coreplane_http::Options;
use server::{Answer, Outcome, Served};

const POINTS: &str = "f a=1.5,b=2i,c=true,d=\"<a&b>\",e=1e-7,g=1e21,h=123456789012 1000000001\n\
    f,host=x a=1 2000000000\nf,host=x a=2 3000000000\nm v=1 5\nm v=2 6\nm v=1 8\n";

fn start(options: Options) -> Outcome<Served> {
    let served = Served::start(options)?;
    served.store.create_database("d")?;
    assert_eq!(served.ask("POST", "/write?db=d", POINTS.as_bytes())?.status, 204);
    Ok(served)
}

fn get(served: &Served, parameters: &str, accept: &str) -> Outcome<Answer> {
    let parameters = parameters.replace(' ', "+").replace('"', "%22");
    served.connect()?.ask("GET", &format!("/query?{parameters}"), &[("Accept", accept)], b"")
}

const GROUPS: &str = "q=SELECT a FROM f GROUP BY host; SELECT * FROM m; SELECT * from nothere";

#[test]
fn answers_are_those_of_influxdb() -> Outcome<()> {
    let served = start(Options::default())?;
    let groups = "{\"results\":[{\"statement_id\":0,\"series\":[{\"name\":\"f\",\"tags\":{\"host\":\"\"},\"columns\":[\"time\",\"a\"],\
        \"values\":[[\"1970-01-01T00:00:01.000000001Z\",1.5]]},{\"name\":\"f\",\"tags\":{\"host\":\"x\"},\"columns\":[\"time\",\"a\"],\
        \"values\":[[\"1970-01-01T00:00:02Z\",1],[\"1970-01-01T00:00:03Z\",2]]}]},{\"statement_id\":1,\"series\":[{\"name\":\"m\",\
        \"columns\":[\"time\",\"v\"],\"values\":[[\"1970-01-01T00:00:00.000000005Z\",1],[\"1970-01-01T00:00:00.000000006Z\",2],\
        [\"1970-01-01T00:00:00.000000008Z\",1]]}]},{\"statement_id\":2}]}\n";
    for accept in ["", "*/*", "application/json", "application/x-msgpack", "text/plain"] {
        let answer = get(&served, &format!("db=d&{GROUPS}"), accept)?;
        assert_eq!((answer.status, answer.body.as_str()), (200, groups), "{accept}");
        assert_eq!(answer.header("content-type"), "application/json");
    }
    let csv = "name,tags,time,a\nf,,1000000001,1.5\nf,host=x,2000000000,1\nf,host=x,3000000000,2\n\n\
        name,tags,time,v\nm,,5,1\nm,,6,2\nm,,8,1\n";
    for accept in ["text/csv", "application/csv"] {
        let answer = get(&served, &format!("db=d&{GROUPS}"), accept)?;
        assert_eq!((answer.header("content-type"), answer.body.as_str()), ("text/csv", csv));
    }
    let all = "{\"results\":[{\"statement_id\":0,\"series\":[{\"name\":\"f\",\"columns\":[\"time\",\"a\",\"b\",\"c\",\"d\",\"e\",\"g\",\
        \"h\",\"host\"],\"values\":[[1,1.5,2,true,\"\\u003ca\\u0026b\\u003e\",1e-7,1e+21,123456789012,null],[2,1,null,null,null,\
        null,null,null,\"x\"],[3,2,null,null,null,null,null,null,\"x\"]]}]}]}\n";
    assert_eq!(get(&served, "db=d&epoch=s&q=SELECT * FROM f", "")?.body, all);
    for (epoch, values) in [
        ("ns", "[[1000000001,1.5],[2000000000,1],[3000000000,2]]"),
        ("u", "[[1000000,1.5],[2000000,1],[3000000,2]]"),
        ("ms", "[[1000,1.5],[2000,1],[3000,2]]"),
        ("h", "[[0,1.5],[0,1],[0,2]]"),
        ("xx", "[[1000000001,1.5],[2000000000,1],[3000000000,2]]"),
    ] {
        let body = get(&served, &format!("db=d&epoch={epoch}&q=SELECT a FROM f"), "")?.body;
        assert!(
            body.ends_with(&format!("\"columns\":[\"time\",\"a\"],\"values\":{values}}}]}}]}}\n")),
            "{epoch}: {body}"
        );
    }
    Ok(())
}

#[test]
fn chunks_are_those_of_influxdb() -> Outcome<()> {
    let served = start(Options::default())?;
    let asked =
        "db=d&chunked=true&chunk_size=1&q=SELECT a FROM f GROUP BY host; SELECT * from nothere";
    let answer = get(&served, asked, "")?;
    assert_eq!(answer.header("transfer-encoding"), "chunked");
    let row = |tag: &str, row: &str, is_last: bool, rest: &str| {
        let partial = if is_last { "" } else { ",\"partial\":true" };
        format!(
            "{{\"results\":[{{\"statement_id\":0,\"series\":[{{\"name\":\"f\",\"tags\":{{\"host\":\"{tag}\"}},\
             \"columns\":[\"time\",\"a\"],\"values\":[[\"1970-01-01T00:00:0{row}]]{partial}}}]{rest}}}]}}\n"
        )
    };
    let more = ",\"partial\":true";
    let expected = [
        row("", "1.000000001Z\",1.5", true, more),
        row("x", "2Z\",1", false, more),
        row("x", "3Z\",2", true, ""),
        "{\"results\":[{\"statement_id\":1}]}\n".to_owned(),
    ];
    assert_eq!(answer.body, expected.concat());
    Ok(())
}

#[test]
fn errors_are_those_of_influxdb() -> Outcome<()> {
    let served = start(Options::default())?;
    let answer = get(&served, "q=SELECT", "")?;
    let wrong = "error parsing query: found EOF, expected identifier, string, number, bool at line 1, char 8";
    assert_eq!((answer.status, answer.header("x-influxdb-error")), (400, wrong));
    assert_eq!(answer.body, format!("{{\"error\":\"{wrong}\"}}\n"));
    let answer = get(&served, "q=SELECT", "text/csv")?;
    assert_eq!((answer.status, answer.body), (400, format!("error\n\"{wrong}\"\n")));
    let answer = get(&served, "q=SELECT a FROM f", "")?;
    let expected = "{\"results\":[{\"statement_id\":0,\"error\":\"database name required\"}]}\n";
    assert_eq!((answer.status, answer.body.as_str()), (200, expected));
    let answer = get(&served, "q=CREATE DATABASE e", "")?;
    assert!(answer.status == 200 && answer.body.contains("\"error\":"), "{answer:?}");
    assert!(!served.store.databases().iter().any(|name| **name == *"e"));
    let head = served.ask("HEAD", "/query?q=CREATE+DATABASE+e", b"")?;
    assert_eq!(head.status, 200);
    assert!(!served.store.databases().iter().any(|name| **name == *"e"), "HEAD is as GET");
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let answer =
        served.connect()?.ask("POST", "/query?db=none", &form, b"q=CREATE+DATABASE+e&db=d")?;
    assert_eq!(answer.body, "{\"results\":[{\"statement_id\":0}]}\n");
    let answer =
        served.connect()?.ask("POST", "/query?db=none", &form, b"q=SELECT+a+FROM+f&db=d")?;
    assert!(answer.body.contains("\"values\":"), "what a form says comes first: {answer:?}");
    assert!(served.store.databases().iter().any(|name| **name == *"e"));
    Ok(())
}

#[test]
fn answers_are_bounded() -> Outcome<()> {
    let served = start(Options { rows_max: 2, ..Options::default() })?;
    let body = get(&served, "db=d&epoch=ns&q=SELECT v FROM m", "")?.body;
    assert!(body.ends_with("\"values\":[[5,1],[6,2]],\"partial\":true}]}]}\n"), "{body}");
    for (asked, expected) in [
        ("SELECT v FROM m", "name,tags,time,v\nm,,5,1\nm,,6,2\n"),
        (
            "SELECT a FROM f GROUP BY host",
            "name,tags,time,a\nf,,1000000001,1.5\nf,host=x,2000000000,1\n",
        ),
        ("SELECT v FROM m LIMIT 2; SELECT v FROM m", "name,tags,time,v\nm,,5,1\nm,,6,2\n"),
    ] {
        assert_eq!(get(&served, &format!("db=d&q={asked}"), "text/csv")?.body, expected, "{asked}");
    }
    let all = get(&served, "db=d&chunked=true&q=SELECT v FROM m", "text/csv")?.body;
    assert_eq!(all.lines().count(), 4);
    let options = Options { memory_max: 1 << 20, query_bytes_max: 64 << 20, ..Options::default() };
    let served = start(options)?;
    for part in 0..4 {
        let times = part * 5_000..(part + 1) * 5_000;
        let lines: String = times.map(|at| format!("n v={at} {at}\n")).collect();
        assert_eq!(served.ask("POST", "/write?db=d", lines.as_bytes())?.status, 204);
    }
    let answer = get(&served, "db=d&q=SELECT v FROM n", "")?;
    assert!(answer.status == 503 && answer.body.contains("no memory"), "{answer:?}");
    assert_eq!(get(&served, "db=d&q=SELECT v FROM n LIMIT 10", "")?.status, 200);
    Ok(())
}

/// The answer counts as long as the client has not taken it.
#[test]
fn names_that_are_suggested_take_memory() -> Outcome<()> {
    let served = Served::start(Options { memory_max: 200_000, ..Options::default() })?;
    for at in 0..30 {
        let line = format!("m,host={at:02}{} v=1 1", "x".repeat(9_000));
        assert_eq!(served.ask("POST", "/write?db=opentsdb", line.as_bytes())?.status, 204);
    }
    let answer = served.ask("GET", "/api/suggest?type=tagv&max=10", b"")?;
    assert_eq!((answer.status, answer.body.len()), (200, 10 * 9_004 + 11));
    let answer = served.ask("GET", "/api/suggest?type=tagv&max=30", b"")?;
    assert_eq!(answer.status, 503, "{} bytes", answer.body.len());
    assert!(answer.body.contains("no memory"), "{answer:?}");
    Ok(())
}
