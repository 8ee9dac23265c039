//! Answers that do not depend on stored data: those of InfluxDB 1.6.7, and of OpenTSDB.

mod server;

use coreplane_http::Options;
use server::{Outcome, Served};

const JSON: &str = "application/json";

#[test]
fn whoever_asks_whether_it_is_there_is_answered() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    for path in ["/ping", "/status", "/ping?verbose=false", "/ping?verbose=0"] {
        for method in ["GET", "HEAD"] {
            let answer = served.ask(method, path, b"")?;
            assert_eq!((answer.status, answer.body.as_str()), (204, ""), "{method} {path}");
            assert_eq!(answer.header("x-influxdb-version"), "1.6.7");
            assert_eq!(answer.header("x-influxdb-build"), "Coreplane");
            assert_eq!(answer.header("request-id").len(), 36);
            assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
        }
    }
    assert_eq!(served.ask("GET", "/ping?verbose=true", b"")?.body, "{\"version\":\"1.6.7\"}\n");
    let health: serde_json::Value = serde_json::from_str(&served.ask("GET", "/health", b"")?.body)?;
    assert_eq!((&health["status"], &health["name"]), (&"pass".into(), &"influxdb".into()));
    let ready: serde_json::Value = serde_json::from_str(&served.ask("GET", "/ready", b"")?.body)?;
    assert_eq!(ready["status"], "ready");
    let metrics = served.ask("GET", "/metrics", b"")?.body;
    assert!(
        metrics.contains("coreplane_http_requests_total{endpoint=\"other\",status=\"2xx\"} 11"),
        "{metrics}"
    );
    Ok(())
}

#[test]
fn requests_that_are_wrong_are_answered_as_influxdb_does() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    for (method, path, status, kind, body) in [
        ("POST", "/write", 400, JSON, "{\"error\":\"database is required\"}\n"),
        ("GET", "/query", 400, JSON, "{\"error\":\"missing required parameter \\\"q\\\"\"}\n"),
        (
            "GET",
            "/query?pretty=true",
            400,
            JSON,
            "{\n    \"error\": \"missing required parameter \\\"q\\\"\"\n}\n",
        ),
        ("GET", "/nothere", 404, "text/plain; charset=utf-8", "404 page not found\n"),
        ("PUT", "/query", 405, "text/plain; charset=utf-8", "Method Not Allowed\n"),
        ("GET", "/write", 405, "text/plain; charset=utf-8", "Method Not Allowed\n"),
        (
            "POST",
            "/api/v2/write",
            400,
            JSON,
            "{\"code\":\"invalid\",\"message\":\"bucket is required: DATABASE or DATABASE/POLICY\"}",
        ),
        (
            "POST",
            "/api/v2/query",
            501,
            JSON,
            "{\"code\":\"not implemented\",\"message\":\"Flux is not supported: ask in InfluxQL, by /query\"}",
        ),
        (
            "GET",
            "/api/nothere",
            404,
            JSON,
            "{\"error\":{\"code\":404,\"message\":\"Endpoint not found\",\"details\":\"The requested endpoint was not found\"}}",
        ),
        (
            "DELETE",
            "/api/put",
            405,
            JSON,
            "{\"error\":{\"code\":405,\"message\":\"Method not allowed\",\"details\":\"The HTTP method [DELETE] is not permitted for this endpoint\"}}",
        ),
        (
            "GET",
            "/api/query?m=sum:m",
            400,
            JSON,
            "{\"error\":{\"code\":400,\"message\":\"Missing start time\"}}",
        ),
        (
            "GET",
            "/api/suggest?type=x",
            400,
            JSON,
            "{\"error\":{\"code\":400,\"message\":\"Invalid 'type' parameter:x\"}}",
        ),
    ] {
        let answer = served.ask(method, path, b"")?;
        let found = (answer.status, answer.header("content-type"), answer.body.as_str());
        assert_eq!(found, (status, kind, body), "{method} {path}");
    }
    Ok(())
}

#[test]
fn parameters_that_are_wrong_are_told() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let answer = served.ask("POST", "/write", b"m v=1")?;
    assert_eq!(answer.header("x-influxdb-error"), "database is required");
    let answer = served.ask("POST", "/write?db=d&precision=week", b"m v=1")?;
    assert_eq!(answer.status, 400, "{answer:?}");
    let answer = served.ask("GET", "/query?q=x&params=%7B%22a%22%3A1%7D", b"")?;
    assert!(answer.status == 400 && answer.body.contains("params"), "{answer:?}");
    // Clients for Go and for Node send these for no parameters.
    for none in ["", "null", "%7B%7D"] {
        let asked = format!("/query?q=SHOW+DATABASES&params={none}");
        assert_eq!(served.ask("GET", &asked, b"")?.status, 200, "{none}");
    }
    let csv = [("Accept", "application/csv")];
    let answer = served.connect()?.ask("GET", "/query", &csv, b"")?;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (400, "error\n\"missing required parameter \"\"q\"\"\"\n")
    );
    Ok(())
}

#[test]
fn without_the_password_nothing_is_told() -> Outcome<()> {
    let password = Some("secret".to_owned());
    let served = Served::start(Options { password, ..Options::default() })?;
    for (path, body) in [
        ("/query?q=SHOW+DATABASES", "{\"error\":\"unable to parse authentication credentials\"}\n"),
        ("/query?q=SHOW+DATABASES&u=a&p=wrong", "{\"error\":\"authorization failed\"}\n"),
        ("/metrics", "{\"error\":\"unable to parse authentication credentials\"}\n"),
        ("/nothere", "{\"error\":\"unable to parse authentication credentials\"}\n"),
        (
            "/api/v2/write?u=a&p=b",
            "{\"code\":\"unauthorized\",\"message\":\"authorization failed\"}",
        ),
        (
            "/api/suggest?type=metrics",
            "{\"error\":{\"code\":401,\"message\":\"unable to parse authentication credentials\"}}",
        ),
    ] {
        let answer = served.ask("GET", path, b"")?;
        assert_eq!((answer.status, answer.body.as_str()), (401, body), "{path}");
    }
    let answer = served.ask("GET", "/query", b"")?;
    assert_eq!(answer.header("www-authenticate"), "Basic realm=\"InfluxDB\"");
    for headers in
        [&[("Authorization", "Basic YTpzZWNyZXQ=")], &[("Authorization", "Token a:secret")]]
    {
        assert_eq!(served.connect()?.ask("GET", "/metrics", headers, b"")?.status, 200);
    }
    assert_eq!(served.ask("GET", "/metrics?u=a&p=secret", b"")?.status, 200);
    assert_eq!(served.ask("GET", "/ping", b"")?.status, 204);
    let mut lines = served.connect()?;
    lines.send(b"put m 1 1 a=b\n")?;
    assert_eq!(lines.line()?, "error: lines have no password: use /api/put");
    assert!(lines.is_ended()?);
    Ok(())
}

#[test]
fn lines_of_opentsdb_are_told_what_is_wrong() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let mut client = served.connect()?;
    client.send(
        b"version\nput\r\nput m x 1 a=b\nnonsense\nput m 1 x a=b\nput m 1 1 a\n\n put m 1 1 a=b\n",
    )?;
    for expected in [
        "net.opentsdb.tools 2.4.0 built by coreplane",
        "put: illegal argument: not enough arguments (need least 4, got 0)",
        "put: illegal argument: invalid timestamp: x",
        "unknown command: nonsense.  Try `help'.",
        "put: invalid value: For input string: \"x\"",
        "put: illegal argument: invalid tag: a",
        // It begins with a space.
        "unknown command: .  Try `help'.",
    ] {
        assert_eq!(client.line()?, expected);
    }
    // Once, though it is asked for twice.
    client.send(b"stats\nstats\nversion\n")?;
    let mut names = std::collections::BTreeSet::new();
    loop {
        let line = client.line()?;
        if line.starts_with("net.opentsdb") {
            break;
        }
        assert!(names.insert(line.split(' ').next().unwrap_or_default().to_owned()), "{line}");
    }
    client.send(b"stats\nexit\nversion\n")?;
    assert!(client.line()?.starts_with("tsd.coreplane_http_points_written_total "));
    assert!(client.is_ended()?);
    let version = served.ask("GET", "/api/version", b"")?.body;
    assert!(version.starts_with("{\"version\":\"2.4.0\""), "{version}");
    assert!(served.ask("GET", "/api/aggregators", b"")?.body.contains("\"sum\""));
    let filters: serde_json::Value =
        serde_json::from_str(&served.ask("GET", "/api/config/filters", b"")?.body)?;
    assert!(filters["literal_or"].is_object());
    Ok(())
}

#[test]
fn points_of_opentsdb_are_told_what_is_wrong() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let answer = served.ask(
        "POST",
        "/api/put?details",
        br#"{"metric":"m","timestamp":1,"value":"x","tags":{"a":1}}"#,
    )?;
    let expected = "{\"errors\":[{\"datapoint\":{\"metric\":\"m\",\"timestamp\":1,\"value\":\"x\",\"tags\":{\"a\":1}},\
        \"error\":\"Unable to parse value to a number\"}],\"failed\":1,\"success\":0}";
    assert_eq!((answer.status, answer.body.as_str()), (400, expected));
    let answer = served.ask("POST", "/api/put?summary", b"[{},{}]")?;
    assert_eq!((answer.status, answer.body.as_str()), (400, "{\"failed\":2,\"success\":0}"));
    let answer = served.ask("POST", "/api/put", b"[{}]")?;
    assert!(answer.body.contains("One or more data points had errors"), "{answer:?}");
    assert_eq!(served.ask("POST", "/api/put", b"[]")?.status, 204);
    let answer = served.ask("POST", "/api/put", b"[{]")?;
    assert!(answer.status == 400 && answer.body.contains("Unable to parse the given JSON"));
    Ok(())
}

/// Without a password a page of another site cannot use the browser of this machine to change something.
#[test]
fn a_page_of_another_site_changes_nothing_without_a_password() -> Outcome<()> {
    let served = Served::start(Options::default())?;
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let point = b"{\"metric\":\"m\",\"timestamp\":1,\"value\":1,\"tags\":{\"a\":\"b\"}}";
    let ask = |served: &Served, site, path, body: &[u8]| {
        served.connect()?.ask("POST", path, &[form, ("Sec-Fetch-Site", site)], body)
    };
    assert_eq!(ask(&served, "same-site", "/query", b"q=CREATE+DATABASE+d")?.status, 200);
    for (path, body) in [
        ("/query", &b"q=DROP+DATABASE+d"[..]),
        ("/write?db=d", b"m v=1"),
        ("/api/v2/write?bucket=d", b"m v=1"),
        ("/api/put", point),
    ] {
        let answer = ask(&served, "cross-site", path, body)?;
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
        assert!(answer.body.contains("page of another site"), "{path}: {answer:?}");
    }
    let found = served.ask("GET", "/query?q=SHOW+MEASUREMENTS+ON+d;SHOW+DATABASES", b"")?;
    assert!(found.body.contains("[\"d\"]") && !found.body.contains("[\"m\"]"), "{found:?}");
    // Pages of this site, such as those of a Grafana, and programs.
    for site in ["same-site", "same-origin", "none"] {
        assert_eq!(ask(&served, site, "/write?db=d", b"m v=1")?.status, 204, "{site}");
    }
    let get = "/query?q=SHOW+DATABASES";
    let cross = [("Sec-Fetch-Site", "cross-site")];
    assert_eq!(served.connect()?.ask("GET", get, &cross, b"")?.status, 200);
    served.stop();
    let is_protected = false;
    let served = Served::start(Options { is_protected, ..Options::default() })?;
    assert_eq!(ask(&served, "cross-site", "/query", b"q=CREATE+DATABASE+d")?.status, 200);
    let served = Served::start(Options { password: Some("p".to_owned()), ..Options::default() })?;
    let path = "/query?u=x&p=p";
    assert_eq!(ask(&served, "cross-site", path, b"q=CREATE+DATABASE+d")?.status, 200);
    Ok(())
}
