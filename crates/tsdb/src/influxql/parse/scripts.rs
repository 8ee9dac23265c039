//! The golden scripts of the parser: `tests/influxql/*.txt`.
//!
//! A line that begins with `> ` is a query. The lines after it are its statements as parsed, one a line, after
//! `= `, or the error after `! `. `COREPLANE_BLESS=1 cargo test -p coreplane-tsdb golden` rewrites these lines.

use super::query;
use std::fs;
use std::path::{Path, PathBuf};

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
