//! The golden scripts of the parser: `tests/influxql/*.txt`.
//!
//! A line that begins with `> ` is a query. The lines after it are its statements as parsed, one a line, after
//! `= `, or the error after `! `. `COREPLANE_BLESS=1 cargo test -p coreplane-tsdb golden` rewrites these lines.

use super::{Place, pattern};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn query(text: &str) -> super::Parsed<Vec<super::Statement>> {
    super::query(text, Instant::now() + Duration::from_secs(1000))
}

fn answer(text: &str) -> Vec<String> {
    match query(text) {
        Ok(statements) => statements.iter().map(|it| format!("= {it}")).collect(),
        Err(error) => vec![format!("! {error}")],
    }
}

/// A script with the current answers.
fn renewed(script: &str) -> String {
    let mut lines = Vec::new();
    for line in script.lines() {
        if let Some(text) = line.strip_prefix("> ") {
            lines.push(line.to_owned());
            lines.extend(answer(&text.replace("\\n", "\n")));
        } else if !line.starts_with("= ") && !line.starts_with("! ") {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n") + "\n"
}

fn scripts() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/influxql");
    let mut found: Vec<_> = fs::read_dir(directory).unwrap().map(|it| it.unwrap().path()).collect();
    found.retain(|it| it.extension().is_some_and(|it| it == "txt"));
    found.sort();
    found
}

#[test]
fn golden_scripts_are_read_as_they_say() {
    let is_blessed = std::env::var_os("COREPLANE_BLESS").is_some();
    let scripts = scripts();
    assert!(scripts.len() >= 4, "the scripts are missing");
    for path in scripts {
        let script = fs::read_to_string(&path).unwrap();
        let renewed = renewed(&script);
        if is_blessed {
            fs::write(&path, renewed).unwrap();
            continue;
        }
        for (line, (is, should_be)) in renewed.lines().zip(script.lines()).enumerate() {
            assert_eq!(is, should_be, "{} line {}", path.display(), line + 1);
        }
        assert_eq!(renewed.lines().count(), script.lines().count(), "{}", path.display());
    }
}

#[test]
fn what_is_written_is_read_again() {
    for path in scripts() {
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some(text) = line.strip_prefix("= ") else { continue };
            assert_eq!(answer(text), [line], "{}", path.display());
        }
    }
}

/// A short query is parsed on the thread of a connection, while others wait for it.
#[test]
fn expressions_are_compiled_within_the_time_that_is_left() {
    let compiled = |text: &str, micros| {
        pattern(text, Duration::from_micros(micros), Place::default()).map(|it| it.1)
    };
    let late = Err("query-timeout limit exceeded".to_owned());
    let long = "(.{20}){50}";
    assert_eq!(compiled("^host$", 500), Ok("^host$".to_owned()));
    assert_eq!(compiled("^host$", 0), late);
    assert_eq!(compiled(long, 500), late);
    assert_eq!(compiled(long, 1_000_000), Ok(long.to_owned()));
    assert_eq!(compiled(&"h".repeat(1000), 500), late);
    assert!(compiled("(", 500).is_err_and(|it| it.starts_with("error parsing regexp: ")));
    let many =
        format!("SELECT v FROM m WHERE h =~ /{long}/{}", format!(" OR h =~ /{long}/").repeat(127));
    let now = Instant::now();
    assert_eq!(super::query(&many, now), Err("query-timeout limit exceeded".to_owned()));
    assert!(query(&many).is_ok() && super::query("SELECT v FROM m", now).is_ok());
}

#[test]
fn deep_and_long_queries_are_refused() {
    let columns = format!("SELECT {}/a/ FROM m", "/a/,".repeat(500));
    assert!(query(&columns).unwrap_err().contains("128 regular expressions"));
    let statements = "SELECT f FROM /a/;".repeat(129);
    assert!(query(&statements).unwrap_err().contains("128 regular expressions"));
    let words =
        |count: usize| format!("SELECT f FROM m WHERE t =~ /^{}$/", r"\pL+\.".repeat(count));
    assert!(query(&words(12)).is_ok() && query(&words(40)).is_err());
    let sources = format!("SELECT f FROM {}m", "m,".repeat(2000));
    assert!(query(&sources).unwrap_err().contains("sources and dimensions"));
    let dimensions = format!("SELECT f FROM m GROUP BY {}*", "*,".repeat(2000));
    assert!(query(&dimensions).unwrap_err().contains("sources and dimensions"));
    for text in [
        format!("SELECT a FROM m WHERE {}a = 1{}", "(".repeat(5000), ")".repeat(5000)),
        format!("SELECT {}a{} FROM m", "abs(".repeat(5000), ")".repeat(5000)),
        format!("SELECT {}a FROM m", "-".repeat(5000)),
        format!("SELECT {}a FROM m", "-(".repeat(5000)),
        format!("SELECT a FROM m WHERE a = 1{}", " OR a = 1".repeat(5000)),
        format!("SELECT a FROM {}", "(SELECT a FROM ".repeat(5000)),
        format!("SELECT a FROM m WHERE b = '{}'", "x".repeat(1 << 20)),
    ] {
        assert!(query(&text).is_err(), "{}", &text[..40]);
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[ -~\\n]{0,60}") {
        drop(query(&text));
    }

    #[test]
    fn no_words_make_it_panic(words in proptest::collection::vec(proptest::sample::select(vec![
        "SELECT", "FROM", "WHERE", "GROUP BY", "time(", "m", "\"a b\"", "'x'", "(", ")", ",", "*", "/x/", "=~", "=", "1h",
        "10", "-", "+", "AND", "fill(", "LIMIT", "SHOW", "TAG", "VALUES", "WITH", "KEY", "IN", "CREATE", "DATABASE", ".", "::",
        "ORDER BY", "DESC", ";", "mean(", "DISTINCT", "now()", "AS", "1.5", "--", "/*",
    ]), 0..25)) {
        drop(query(&words.join(" ")));
    }
}
