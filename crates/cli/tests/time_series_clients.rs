//! Unmodified clients of time series: `influx`, InfluxDB's clients for Python, Go and Node, Telegraf and collectd,
//! and the queries of Grafana.
//!
//! `cargo xtask test` installs missing clients. Those that it could not install it names in
//! `COREPLANE_CLIENTS_LEFT_OUT`; without that a missing client is a failure here.

mod disk;
mod pool;
mod series;
mod session;

use disk::{lack, run, succeeds};
use pool::Place;
use series::{Series, ask, query};
use session::{Outcome, expect, text};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A file of a client.
fn of_client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

#[test]
fn the_client_of_influxdb_writes_and_asks() -> Outcome<()> {
    if lack(&["influx"])? {
        return Ok(());
    }
    for series in Series::both()? {
        let served = series.serve(&[])?;
        let port = served.address.rsplit(':').next().unwrap_or_default().to_owned();
        let influx = |arguments: &[&str]| {
            let place =
                ["-host", "127.0.0.1", "-port", &port, "-precision", "ns", "-format", "csv"];
            succeeds("influx", &[&place[..], arguments].concat())
        };
        influx(&["-execute", "CREATE DATABASE points"])?;
        assert_eq!(
            influx(&["-execute", "SHOW DATABASES"])?,
            "name,name\ndatabases,opentsdb\ndatabases,points\n"
        );
        let file = series.place.argument("import")?;
        let mut lines = "# DDL\nCREATE DATABASE more\n# DML\n# CONTEXT-DATABASE: more\n".to_owned();
        for at in 0..10_000 {
            lines += &format!("m,host=h{} v={at}i {at}\n", at % 10);
        }
        std::fs::write(&file, lines)?;
        let said = influx(&["-import", "-path", &file])?;
        assert!(
            said.contains("Processed 10000 inserts") && said.contains("Failed 0 inserts"),
            "{said}"
        );
        influx(&["-database", "points", "-execute", "INSERT m,host=x v=1.5,text=\"a b\" 5"])?;
        let found = influx(&["-database", "points", "-execute", "SELECT * FROM m"])?;
        assert_eq!(found, "name,time,host,text,v\nm,5,x,a b,1.5\n");
        let counted = "SELECT count(v), sum(v), max(v) FROM m WHERE host = 'h3'";
        let found = influx(&["-database", "more", "-execute", counted])?;
        assert_eq!(found, "name,time,count,sum,max\nm,0,1000,4998000,9993\n");
        let groups = "SELECT mean(v) FROM m WHERE time >= 0 AND time < 20 GROUP BY time(10ns)";
        let found = influx(&["-database", "more", "-execute", groups])?;
        assert_eq!(found, "name,time,mean\nm,0,4.5\nm,10,14.5\n");
        let (is_done, said) =
            run("influx", &["-host", "127.0.0.1", "-port", &port, "-execute", "SELECT"])?;
        assert!(!is_done && said.contains("error parsing query"), "{said}");
        series.finish(served)?;
        let served = series.serve(&[])?;
        let asked =
            ["ts", "query", "--url", &format!("http://{}", served.address), "--database", "more"];
        let found = expect(0, &[&asked[..], &[counted]].concat())?;
        assert_eq!(found, "name,tags,time,count,sum,max\nm,,0,1000,4998000,9993\n");
        series.finish(served)?;
        let found = series.expect(0, "query", &["--json", "--database", "more", counted])?;
        let expected = "{\"results\":[{\"statement_id\":0,\"series\":[{\"name\":\"m\",\"columns\":[\"time\",\"count\",\"sum\",\
            \"max\"],\"values\":[[\"1970-01-01T00:00:00Z\",1000,4998000,9993]]}]}]}\n";
        assert_eq!(found, expected);
        series.expect(3, "query", &["--database", "none", "SELECT v FROM m"])?;
        series.expect(3, "query", &["--database", "more", "SELECT"])?;
    }
    Ok(())
}

/// Runs a client that takes PORT USER PASSWORD behind its own arguments, and prints `done`.
fn converse(program: &str, arguments: &[&str]) -> Outcome<()> {
    for series in Series::both()? {
        let secret = series.place.argument("secret")?;
        std::fs::write(&secret, "hush\n")?;
        let served = series.serve(&["--requirepass-file", &secret, "--http-user", "me"])?;
        let port = served.address.rsplit(':').next().unwrap_or_default();
        let said = succeeds(program, &[arguments, &[port, "me", "hush"]].concat())?;
        assert_eq!(said.trim_end().lines().last(), Some("done"), "{said}");
        series.finish(served)?;
    }
    Ok(())
}

#[test]
fn the_client_of_python_writes_and_asks() -> Outcome<()> {
    if lack(&["influxdb-python"])? {
        return Ok(());
    }
    converse("python3", &[text(&of_client("influxdb_client.py"))?])
}

#[test]
fn the_client_of_node_writes_and_asks() -> Outcome<()> {
    if lack(&["influx-node"])? {
        return Ok(());
    }
    converse("node", &[text(&of_client("influx_node.js"))?])
}

#[test]
fn the_client_of_go_writes_and_asks() -> Outcome<()> {
    if lack(&["influx-go"])? {
        return Ok(());
    }
    converse("influx-go", &[])
}

/// Two points as Telegraf reads and writes them.
const POINTS: &str = "cpu,host=a\\ b count=3i,load=0.5,ok=true,text=\"a \\\"b\\\", c\" 1500000000000000000\n\
    cpu,host=c load=1.5 1500000001000000000\n";

#[test]
fn telegraf_writes_in_all_its_ways() -> Outcome<()> {
    if lack(&["telegraf"])? {
        return Ok(());
    }
    let series = Series::new(Place::in_memory()?, "auto")?;
    let served = series.serve(&[])?;
    let (lines, config) = (series.place.argument("lines")?, series.place.argument("config")?);
    std::fs::write(&lines, POINTS)?;
    let port = served.address.rsplit(':').next().unwrap_or_default();
    query(&served.address, "CREATE DATABASE v2")?;
    let of_influxdb = |database: &str, encoding: &str| {
        format!(
            "[[outputs.influxdb]]\nurls = [\"http://127.0.0.1:{port}\"]\ndatabase = \"{database}\"\n\
             content_encoding = \"{encoding}\"\n"
        )
    };
    let outputs = [
        // It creates its databases itself.
        of_influxdb("plain", "identity"),
        of_influxdb("packed", "gzip"),
        format!(
            "[[outputs.influxdb_v2]]\nurls = [\"http://127.0.0.1:{port}\"]\ntoken = \"x\"\n\
             organization = \"o\"\nbucket = \"v2/autogen\"\n"
        ),
        format!(
            "[[outputs.opentsdb]]\nhost = \"tcp://127.0.0.1\"\nport = {port}\nprefix = \"l.\"\n"
        ),
        format!(
            "[[outputs.opentsdb]]\nhost = \"http://127.0.0.1\"\nport = {port}\nprefix = \"h.\"\n\
             http_batch_size = 50\nhttp_path = \"/api/put\"\n"
        ),
    ];
    let input = format!("[[inputs.file]]\nfiles = [{lines:?}]\ndata_format = \"influx\"\n");
    let agent = "[agent]\nomit_hostname = true\n";
    std::fs::write(&config, [agent, &input, &outputs.concat()].concat())?;
    let said = succeeds("telegraf", &["--once", "--config", &config])?;
    assert!(!said.contains(" E! "), "{said}");
    series.finish(served)?;
    for database in ["plain", "packed", "v2"] {
        assert_eq!(series.expect(0, "export", &["--database", database])?, POINTS, "{database}");
    }
    let there = series.expect(0, "export", &["--database", "opentsdb"])?;
    let mut there: Vec<&str> = there.lines().collect();
    there.sort_unstable();
    let expected: Vec<String> = ["h", "l"]
        .iter()
        .flat_map(|way| {
            [
                format!("{way}.cpu_count,host=a_b value=3 1500000000000000000"),
                format!("{way}.cpu_load,host=a_b value=0.5 1500000000000000000"),
                format!("{way}.cpu_load,host=c value=1.5 1500000001000000000"),
            ]
        })
        .collect();
    assert_eq!(there, expected);
    Ok(())
}

/// A program that runs until it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _gone = self.0.kill().is_ok() && self.0.wait().is_ok();
    }
}

/// A conversation with collectd's socket, once the socket exists: each line is answered by one line.
fn tell_collectd(socket: &Path, lines: &[&str]) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(format!("collectd is not there: {error}").into()),
        }
    };
    let mut stream = BufReader::new(stream);
    for line in lines {
        stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_line(&mut answer)?;
        assert!(answer.starts_with("0 "), "{line}: {answer}");
    }
    Ok(())
}

#[test]
fn collectd_writes_lines_of_opentsdb() -> Outcome<()> {
    if lack(&["collectd"])? {
        return Ok(());
    }
    let series = Series::new(Place::in_memory()?, "auto")?;
    let served = series.serve(&[])?;
    let (socket, config) = (series.place.path("socket"), series.place.argument("config")?);
    let directory = series.place.argument("")?;
    let (at, port) = (text(&socket)?, served.address.rsplit(':').next().unwrap_or_default());
    let lines = [
        "Hostname \"box\"",
        "FQDNLookup false",
        "Interval 1",
        &format!("BaseDir {directory:?}\nPIDFile \"{directory}pid\""),
        "LoadPlugin load",
        &format!("LoadPlugin unixsock\n<Plugin unixsock>\nSocketFile {at:?}\n</Plugin>"),
        "LoadPlugin write_tsdb\n<Plugin write_tsdb>\n<Node>\nHost \"127.0.0.1\"",
        &format!("Port \"{port}\"\nHostTags \"site=a\"\nAlwaysAppendDS true\n</Node>\n</Plugin>\n"),
    ];
    std::fs::write(&config, lines.join("\n"))?;
    let mut collectd = Command::new("collectd");
    collectd.args(["-f", "-C", &config]).stdout(Stdio::null()).stderr(Stdio::null());
    let collectd = Running(collectd.spawn()?);
    let values = [
        "PUTVAL box/test-x/gauge-a interval=10 1500000000:42.5",
        "PUTVAL box/test-x/gauge-a interval=10 1500000010:-1",
        "PUTVAL box/interface-eth0/if_octets interval=10 1500000000:7:8",
        "FLUSH plugin=write_tsdb",
    ];
    tell_collectd(&socket, &values)?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let own = "SELECT * FROM /^(test|interface)/";
    let expected = "{\"results\":[{\"statement_id\":0,\"series\":[\
        {\"name\":\"interface.eth0.if_octets.rx\",\"columns\":[\"time\",\"fqdn\",\"site\",\"value\"],\
        \"values\":[[1500000000000000000,\"box\",\"a\",7]]},\
        {\"name\":\"interface.eth0.if_octets.tx\",\"columns\":[\"time\",\"fqdn\",\"site\",\"value\"],\
        \"values\":[[1500000000000000000,\"box\",\"a\",8]]},\
        {\"name\":\"test.x.gauge.a.value\",\"columns\":[\"time\",\"fqdn\",\"site\",\"value\"],\
        \"values\":[[1500000000000000000,\"box\",\"a\",42.5],[1500000010000000000,\"box\",\"a\",-1]]}]}]}\n";
    loop {
        let found = query(&served.address, own)?;
        let measured = query(&served.address, "SELECT count(value) FROM /^load/")?;
        if found == expected && measured.contains("load.load.shortterm") {
            break;
        }
        assert!(Instant::now() < deadline, "{found}{measured}");
        // Its measurements are sent when its buffer is full.
        tell_collectd(&socket, &["FLUSH plugin=write_tsdb"])?;
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(collectd);
    series.finish(served)
}

/// Points of two hosts, with gaps, in the policy that is the default and in another.
fn fill_for_grafana(address: &str) -> Outcome<()> {
    let change = |text: &str| query(address, text).map(drop);
    // On the server of a blessing, the database may exist.
    change("DROP DATABASE grafana")?;
    change("CREATE DATABASE grafana")?;
    change("CREATE RETENTION POLICY short ON grafana DURATION INF REPLICATION 1")?;
    let mut lines = String::new();
    for at in 0..7_i64 {
        let seconds = 1_500_000_000 + at * 10;
        let (load, count) = (at as f64 * 1.25 + 0.5, at * at);
        lines += &format!("cpu,dc=x\\ y,host=a load={load},count={count}i {seconds}\n");
        if at % 3 != 1 {
            lines +=
                &format!("cpu,dc=z,host=b load={},count={}i {seconds}\n", load / 2.0, count * 3);
        }
        if at % 4 == 0 {
            lines += &format!("cpu,dc=z,host=b note=\"n {at}\" {seconds}\n");
        }
    }
    assert_eq!(ask(address, "POST", "/write?db=grafana&precision=s", &lines)?.0, 204);
    let line = "mem,host=a used=5i 1500000007";
    assert_eq!(ask(address, "POST", "/write?db=grafana&rp=short&precision=s", line)?.0, 204);
    Ok(())
}

/// Sends a query as Grafana does (`pkg/tsdb/influxdb/influxql`): in the URL, or in a form.
fn ask_as_grafana(address: &str, method: &str, text: &str) -> Outcome<String> {
    let q = form_urlencoded::Serializer::new(String::new()).append_pair("q", text).finish();
    let path = "/query?db=grafana&epoch=ms";
    let (status, body) = match method {
        "GET" => ask(address, method, &format!("{path}&{q}"), "")?,
        _ => {
            let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
            series::ask_with(address, method, path, kind, &q)?
        }
    };
    Ok(format!("{status} {}", body.trim_end()))
}

/// The answers in `clients/grafana.txt` are those of InfluxDB 1.6.7: `COREPLANE_GOLDEN_FROM=127.0.0.1:8086` records
/// them.
#[test]
fn queries_of_grafana_are_answered_as_influxdb_does() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    let served = series.serve(&["--opentsdb-database", ""])?;
    let blessed = std::env::var("COREPLANE_GOLDEN_FROM").ok();
    let address = blessed.as_deref().unwrap_or(&served.address);
    fill_for_grafana(address)?;
    let golden = of_client("grafana.txt");
    let script = std::fs::read_to_string(&golden)?;
    let mut found = String::new();
    for asked in script.lines().filter_map(|line| line.strip_prefix("> ")) {
        let by_url = ask_as_grafana(address, "GET", asked)?;
        assert_eq!(ask_as_grafana(address, "POST", asked)?, by_url, "{asked}");
        found += &format!("> {asked}\n{by_url}\n");
    }
    if blessed.is_some() {
        std::fs::write(&golden, &found)?;
    }
    for (found, expected) in found.lines().zip(script.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), script.lines().count());
    // Times that depend on the clock.
    let now = std::time::UNIX_EPOCH.elapsed()?.as_secs();
    let line = format!("late,host=a x=7 {}", now - 100);
    assert_eq!(ask(address, "POST", "/write?db=grafana&precision=s", &line)?.0, 204);
    let asked = "SELECT mean(\"x\") FROM \"late\" WHERE (\"host\" = 'a') AND time >= now() - 1h GROUP BY time(10s), \
                 \"host\" fill(null)";
    let answer = ask_as_grafana(address, "GET", asked)?;
    let rows = answer.matches("],[").count() + 1;
    assert!((360..=362).contains(&rows) && answer.matches(",7]").count() == 1, "{rows}: {answer}");
    series.finish(served)
}
