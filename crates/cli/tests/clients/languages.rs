//! Clients of Python, Node, Go and Java: each converses with a server, sees it killed in the middle of its writes and
//! started again at the same address, and reads the acknowledged writes again.

use super::{is_left_out, no_redis_py, run};
use crate::pool::Place;
use crate::session::{Outcome, Served, free_port, text};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file of a client.
fn of_client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs `program` with these arguments, followed by a port. Its server is killed at the line `loaded`, and started
/// again; the program prints `lines` before that, and its last line begins with `done`.
fn resumes(program: &str, arguments: &[&str], lines: &[&str]) -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--size", "256MiB"])?;
    let (port, complaints) = (free_port()?.to_string(), place.path("complaints"));
    let place = ["serve", "--port", &port];
    let serve = || Served::start_as(&place, Stdio::null(), &["--pool", &pool.name]);
    let mut served = serve()?;
    // A client that never stops waiting for its server is a failure.
    let mut child = Command::new("timeout")
        .args(["-k", "5", "300", program])
        .args(arguments)
        .arg(&port)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&complaints)?)
        .spawn()?;
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().ok_or("no output")?).lines() {
        let line = line?;
        if line == "loaded" {
            served.kill()?;
            served = serve()?;
        }
        said.push(line);
    }
    let is_done = child.wait()?.success();
    let complaint = std::fs::read_to_string(&complaints)?;
    assert!(is_done, "{program} {arguments:?}: {said:?}\n{complaint}");
    assert_eq!(said[..said.len().saturating_sub(2)], *lines);
    let [.., loaded, done] = &said[..] else {
        return Err(format!("{said:?}").into());
    };
    assert!(loaded == "loaded" && done.starts_with("done: "), "{said:?}");
    served.terminate()?;
    pool.is_sound()
}

/// Runs a program for Node, unless its package was left out.
fn node(name: &str, package: &str, script: &str, lines: &[&str]) -> Outcome<()> {
    let statement = format!("require('{package}')");
    let is_there = run("node", &["-e", &statement], b"").is_ok_and(|it| it.status.success());
    if is_left_out(name, is_there)? {
        return Ok(());
    }
    resumes("node", &[text(&of_client(script))?], lines)
}

/// Runs a program for Java from its source, unless the clients for Java were left out.
fn java(package: &str, source: &str) -> Outcome<()> {
    let statement =
        format!("import {package}; class Check {{ public static void main(String[] a) {{}} }}");
    let directory = Place::in_memory()?;
    let check = directory.path("Check.java");
    std::fs::write(&check, statement)?;
    let is_there = run("java", &[text(&check)?], b"").is_ok_and(|it| it.status.success());
    if is_left_out("redis-java", is_there)? {
        return Ok(());
    }
    resumes("java", &[text(&of_client(source))?], &["RESP2: 8 parts", "RESP3: 8 parts"])
}

#[test]
fn redis_py_goes_on_after_a_kill() -> Outcome<()> {
    if no_redis_py()? {
        return Ok(());
    }
    resumes("python3", &[text(&of_client("resumption.py"))?], &[])
}

#[test]
fn ioredis_converses_and_goes_on_after_a_kill() -> Outcome<()> {
    node("ioredis", "ioredis", "redis_ioredis.js", &["RESP2: 7 parts"])
}

#[test]
fn node_redis_converses_and_goes_on_after_a_kill() -> Outcome<()> {
    node("node-redis", "redis", "redis_node.js", &["RESP2: 8 parts", "RESP3: 8 parts"])
}

#[test]
fn go_redis_converses_and_goes_on_after_a_kill() -> Outcome<()> {
    if is_left_out("redis-go", run("which", &["redis-go"], b"")?.status.success())? {
        return Ok(());
    }
    resumes("redis-go", &[], &["RESP2: 8 parts", "RESP3: 8 parts"])
}

#[test]
fn jedis_converses_and_goes_on_after_a_kill() -> Outcome<()> {
    java("redis.clients.jedis.RedisClient", "redis_java/Jedis.java")
}

#[test]
fn lettuce_converses_and_goes_on_after_a_kill() -> Outcome<()> {
    java("io.lettuce.core.RedisClient", "redis_java/Lettuce.java")
}
