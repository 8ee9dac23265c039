//! Time series of which something is missing, and how a user learns of it: of damaged points in an export, of failed
//! statements and of answers that were cut off.

mod pool;
mod series;
mod session;

use coreplane_tsdb::{FieldValue, Options, Point, SeriesKey, Store};
use pool::Place;
use series::{Series, ask};
use session::{Outcome, coreplane, expect};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

const MARKER: &str = "a value that is looked for in the file";

/// Flips a bit of the value wherever it is in a pool: what was sealed is still in a page of the log.
fn damage(directory: &str) -> Outcome<()> {
    let mut found = 0;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let mut bytes = std::fs::read(&path)?;
        let is_marker = |at: &usize| bytes[*at..].starts_with(MARKER.as_bytes());
        let its: Vec<usize> = (0..bytes.len() - MARKER.len()).filter(is_marker).collect();
        its.iter().for_each(|at| bytes[at + 3] ^= 0x10);
        found += its.len();
        std::fs::write(&path, bytes)?;
    }
    if found == 0 { Err("the value is in no pool".into()) } else { Ok(()) }
}

/// The acknowledged points of a log that is damaged below its durable mark are missing.
#[test]
fn an_export_says_what_it_lacks() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    let served = series.serve(&[])?;
    for at in 0..50 {
        let value = if at == 10 { MARKER } else { "another one" };
        let line = format!("m v=\"{value}\" {at}\n");
        assert_eq!(ask(&served.address, "POST", "/write?db=opentsdb", &line)?.0, 204);
    }
    served.kill()?;
    damage(&series.pool)?;
    for command in
        [&["export"][..], &["export", "--database", "opentsdb"], &["export", "/dev/stdout"]]
    {
        let output = coreplane(&series.with(command[0], &command[1..]), b"")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(said.contains("damaged: "), "{command:?}: {said}");
        // The others are there.
        let lines = String::from_utf8(output.stdout)?;
        assert!(lines.contains("another one") && !lines.contains(MARKER), "{lines}");
    }
    // An export that lacks points does not replace one that may be whole.
    let before = series.place.path("before");
    std::fs::write(&before, "the last export")?;
    let output = coreplane(&series.with("export", &[&before.display().to_string()]), b"")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(std::fs::read_to_string(&before)?, "the last export");
    for command in [&["stats"][..], &["query", "SHOW DATABASES"]] {
        let output = coreplane(&series.with(command[0], &command[1..]), b"")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {said}");
        assert!(said.contains("damaged: "), "{command:?}: {said}");
    }
    let verdict = coreplane(&series.with("verify", &[]), b"")?;
    assert_eq!((verdict.status.code(), verdict.stderr.len()), (Some(1), 0));
    Ok(())
}

/// A sealed chunk that is damaged is found while the points are read: those behind it come as well.
#[test]
fn an_export_has_what_is_behind_a_damaged_chunk() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    let options = Options { sets: 1, size: 4 << 20, page_len: 4096, ..Options::default() };
    let store = Store::open(Path::new(&series.pool), &options)?;
    for database in ["d", "e"] {
        store.create_database(database)?;
        // A shard each.
        let point = |name: &str, at: i64, value: &str| {
            let series = SeriesKey::of_text(name)?.into_owned();
            let fields = [("v".into(), FieldValue::String(value.to_owned().into()))];
            let fields = fields.into_iter().collect();
            Outcome::Ok(Point { series, fields, time: at << 50 })
        };
        for (at, value) in [(1, "before"), (2, MARKER), (3, "behind")] {
            store.write(database, None, &[point("a", at, value)?, point("b", at, "other")?])?;
        }
    }
    store.seal()?;
    drop(store);
    let whole = series.expect(0, "export", &[])?;
    damage(&series.pool)?;
    let lines = whole.lines().filter(|line| !line.contains(MARKER));
    let rest: String = lines.map(|line| format!("{line}\n")).collect();
    assert_eq!(whole.lines().count(), rest.lines().count() + 2, "{whole}");
    let output = coreplane(&series.with("export", &[]), b"")?;
    let said = String::from_utf8(output.stderr)?;
    assert_eq!(
        (output.status.code(), String::from_utf8(output.stdout)?),
        (Some(1), rest),
        "{said}"
    );
    assert_eq!(said.matches("damaged: a chunk").count(), 2, "{said}");
    assert!(said.contains("field v of a in the database d"), "{said}");
    let file = series.place.path("export");
    let name = file.display().to_string();
    series.expect(1, "export", &["--database", "d", &name])?;
    assert_eq!(std::fs::read_to_string(&file)?.lines().count(), 5);
    std::fs::write(&file, "the last export")?;
    for options in [&["--database", "d"][..], &["--gzip"]] {
        series.expect(3, "export", &[options, &[&*name]].concat())?;
        assert_eq!(std::fs::read_to_string(&file)?, "the last export");
    }
    Ok(())
}

/// A server answers the request well, and a statement with an error.
#[test]
fn a_statement_that_failed_at_a_server_is_told() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    let served = series.serve(&[])?;
    let url = format!("http://{}", served.address);
    let query = |code: i32, options: &[&str], statement: &str| {
        let asked = [&["ts", "query", "--url", &url][..], options, &[statement]].concat();
        let output = coreplane(&asked, b"")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{options:?} {statement}: {said}");
        Outcome::Ok((String::from_utf8(output.stdout)?, said))
    };
    query(0, &[], "CREATE DATABASE d")?;
    let lines = "m error=\"error\",s=\"a\n\nerror\nb\" 1\nerror v=1 1\n";
    assert_eq!(ask(&served.address, "POST", "/write?db=d", lines)?.0, 204);
    for options in [&["--database", "d"][..], &["--database", "d", "--json"]] {
        let (all, _) =
            query(0, options, "SELECT * FROM m, error; SHOW FIELD KEYS; SELECT error FROM m")?;
        assert!(all.matches("error").count() > 3, "{all}");
        let two = "SELECT * FROM m; SELECT * FROM none.autogen.m";
        let (all, said) = query(3, options, two)?;
        assert!(said.contains("database not found") && all.contains("database not found"), "{all}");
    }
    let none = ["--database", "none"];
    for options in [&none[..], &[&none[..], &["--json"]].concat()] {
        let (_, said) = query(3, options, "SELECT * FROM m")?;
        assert!(said.contains("database not found"), "{said}");
    }
    series.finish(served)
}

/// A server that answers each request with this, and closes the connection.
fn answering(answer: &'static str, times: usize) -> Outcome<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || -> Outcome<()> {
        for _ in 0..times {
            let (mut stream, _) = listener.accept()?;
            let mut request = [0; 4096];
            let mut filled = 0;
            // Its form ends with the statement.
            while !request[..filled].ends_with(b"DATABASES") {
                filled += stream.read(&mut request[filled..])?;
            }
            stream.write_all(answer.as_bytes())?;
        }
        Ok(())
    });
    Ok(url)
}

#[test]
fn an_answer_that_was_cut_off_is_told() -> Outcome<()> {
    for (code, answer) in [
        (5, "HTTP/1.0 200 OK\r\ncontent-length: 100\r\n\r\n0123456789"),
        (5, "HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n{\"results\":[{\"statement_id\":0}]}\n"),
        (0, "HTTP/1.0 200 OK\r\nContent-Length: 33\r\n\r\n{\"results\":[{\"statement_id\":0}]}\n"),
        (0, "HTTP/1.0 200 OK\r\n\r\n{\"results\":[{\"statement_id\":0}]}\n"),
    ] {
        let url = answering(answer, 2)?;
        for options in [&[][..], &["--json"]] {
            let asked = [&["ts", "query", "--url", &url][..], options, &["DATABASES"]].concat();
            let shown = expect(code, &asked)?;
            assert!(answer.ends_with(&shown) && !shown.is_empty(), "{shown}");
        }
    }
    // A head that does not end, and one that is not waited for.
    let endless: &str = format!("HTTP/1.0 200 OK\r\n{}", "a: b\r\n".repeat(20_000)).leak();
    for head in ["HTTP/1.0 200 OK\r\nname: value\r\n", endless] {
        let url = answering(head, 1)?;
        expect(5, &["ts", "query", "--url", &url, "DATABASES"])?;
    }
    // A server of another protocol.
    let url = answering("SSH-2.0-x y\r\n", 1)?;
    expect(3, &["ts", "query", "--url", &url, "DATABASES"])?;
    // Without a length, a document that does not end.
    let url = answering("HTTP/1.0 200 OK\r\n\r\n{\"results\":[{\"stat", 1)?;
    expect(5, &["ts", "query", "--url", &url, "--json", "DATABASES"])?;
    Ok(())
}

/// A statement has quotes where points have strings.
#[test]
fn names_that_end_in_a_sign_of_equality_are_imported() -> Outcome<()> {
    let series = Series::new(Place::in_memory()?, "auto")?;
    series.make()?;
    for statement in [
        "CREATE DATABASE \"first=\"",
        "CREATE RETENTION POLICY \"long =\" ON \"first=\" DURATION INF REPLICATION 1",
        "CREATE DATABASE second",
    ] {
        series.expect(0, "query", &[statement])?;
    }
    let text = b"# CONTEXT-DATABASE:first=\n# CONTEXT-RETENTION-POLICY:long =\nm v=\"a\nb\" 1\n\
        # CONTEXT-DATABASE:second\nm v=2 2\n";
    assert!(coreplane(&series.with("import", &[]), text)?.status.success());
    let all = series.expect(0, "export", &[])?;
    let other = Series::new(Place::in_memory()?, "auto")?;
    other.make()?;
    let file = series.place.argument("all")?;
    std::fs::write(Path::new(&file), &all)?;
    assert_eq!(other.expect(0, "import", &[&file])?, "2 points written, 0 refused\n");
    assert_eq!(other.expect(0, "export", &[])?, all);
    Ok(())
}
