//! Time series of which something is missing, and how a user learns of it: of damaged points in an export, of failed
//! statements and of answers that were cut off.

mod pool;
mod series;
mod session;

use pool::Place;
use series::{Series, ask};
use session::{Outcome, coreplane, expect};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

const MARKER: &str = "a value that is looked for in the file";

/// Flips a bit of the value in the pool that has it.
fn damage(directory: &str) -> Outcome<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let mut bytes = std::fs::read(&path)?;
        let is_marker = |at: &usize| bytes[*at..].starts_with(MARKER.as_bytes());
        if let Some(at) = (0..bytes.len() - MARKER.len()).find(is_marker) {
            bytes[at + 3] ^= 0x10;
            return Ok(std::fs::write(&path, bytes)?);
        }
    }
    Err("the value is in no pool".into())
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
