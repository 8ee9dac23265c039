//! `docs/redis-commands.md` lists the commands of `COMMAND LIST`, each once. The commands that it lists as not there
//! are all others of the installed Redis.

use crate::wire::redis::Redis;
use crate::wire::{Running, Wire, config};
use coreplane::{EngineChoice, MapKind, StoreConfig};
use coreplane_conformance::model::ModelEngine;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const README: &str = include_str!("../../../../README.md");
const PAGE: &str = include_str!("../../../../docs/redis-commands.md");

/// The words that begin a paragraph of existing commands.
const THERE: [&str; 3] = ["There: ", "Redis 7.2: ", "Coreplane: "];
const NOT_THERE: &str = "Not there: ";

/// A family: its commands that exist here, and those that do not.
#[derive(Debug, Default)]
struct Family {
    there: Vec<String>,
    not_there: Vec<String>,
}

/// The families by their headings, in lower case.
fn families() -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let sections = PAGE.split("\n## ").skip(1);
    for section in sections {
        let (title, text) = section.split_once('\n').expect("a heading");
        let family = families.entry(title.to_lowercase()).or_default();
        for paragraph in text.split("\n\n").map(str::trim_start) {
            if let Some(names) = paragraph.strip_prefix(NOT_THERE) {
                family.not_there.extend(commands(names));
            } else if let Some(names) = THERE.iter().find_map(|it| paragraph.strip_prefix(it)) {
                family.there.extend(commands(names));
            }
        }
    }
    families
}

/// `CLIENT LIST` in backquotes is `client|list`.
fn commands(paragraph: &str) -> impl Iterator<Item = String> {
    paragraph.split('`').skip(1).step_by(2).map(|name| name.to_lowercase().replace(' ', "|"))
}

/// The elements of the answer of `COMMAND LIST`.
fn listed(wire: &mut Wire) -> BTreeSet<String> {
    let reply = wire.ask(&[b"COMMAND", b"LIST"]);
    let text = String::from_utf8(reply).expect("names");
    text.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect()
}

fn ours() -> BTreeSet<String> {
    let server = Running::start(config(), Arc::new(ModelEngine::new()));
    listed(&mut server.connect())
}

#[test]
fn the_page_has_the_commands_of_the_table_each_once() {
    let mut told: Vec<String> = families().into_values().flat_map(|it| it.there).collect();
    told.sort();
    let table: Vec<String> = ours().into_iter().collect();
    assert!(table.len() > 80, "{table:?}");
    assert_eq!(told, table);
}

#[test]
fn the_page_counts_what_it_has() {
    let families = families();
    let mut rows = 0;
    for row in PAGE.lines().filter_map(|line| line.strip_prefix("| ")).skip(1) {
        let (title, counts) = row.split_once(" | ").expect("two columns");
        let family = &families[&title.to_lowercase()];
        let whole = |names: &[String]| names.iter().filter(|name| !name.contains('|')).count();
        let (there, not_there) = (whole(&family.there), whole(&family.not_there));
        assert_eq!(counts, format!("{there} of {} |", there + not_there), "{title}");
        rows += 1;
    }
    assert_eq!(rows + 1, families.len(), "all but those that Redis 7.0 does not have");
}

#[test]
fn the_readme_counts_the_same() {
    let rows = |text: &str| -> Vec<(String, String)> {
        let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
        rows.filter_map(|row| row.split_once(" | "))
            .filter(|(_, count)| *count == "none" || count.split_once(" of ").is_some())
            .map(|(title, count)| (title.to_owned(), count.to_owned()))
            .collect()
    };
    let table = README.split("| family | there |").nth(1).expect("the table of families");
    let table = table.split("\n\n").next().unwrap_or_default();
    let mut told = BTreeMap::new();
    for (title, count) in rows(table) {
        match count.as_str() {
            "none" => told.extend(title.split(", ").map(|it| (it.to_lowercase(), None))),
            _ => told.extend([(title.to_lowercase(), Some(count))]),
        }
    }
    let is_some = |count: &String| !count.starts_with("0 of ");
    let page = rows(PAGE).into_iter().filter(|(title, _)| title != "family");
    let page: BTreeMap<String, Option<String>> =
        page.map(|(title, count)| (title.to_lowercase(), Some(count).filter(is_some))).collect();
    assert!(page.len() > 10, "{page:?}");
    assert_eq!(told, page);
}

#[test]
fn what_is_not_there_is_the_rest_of_redis() {
    let Some(redis) = Redis::start("docs/redis-commands.md beside redis-server's commands") else {
        return;
    };
    let told = families().into_values().flat_map(|it| it.not_there);
    let told: BTreeSet<String> = told.collect();
    let ours = ours();
    let mut expected = BTreeSet::new();
    for name in listed(&mut Wire::unix(&redis.socket())).difference(&ours) {
        let whole = name.split('|').next().unwrap_or(name);
        // A command without any part here is listed as a whole; a command here may be one row for all parts of
        // Redis's.
        let has_parts = ours.iter().any(|other| other.starts_with(&format!("{whole}|")));
        if !ours.contains(whole) {
            expected.insert(whole.to_owned());
        } else if has_parts {
            expected.insert(name.clone());
        }
    }
    assert_eq!(told, expected);
}

/// A number as the page writes it.
fn grouped(number: usize) -> String {
    match number / 1000 {
        0 => number.to_string(),
        thousands => format!("{},{:03}", grouped(thousands), number % 1000),
    }
}

/// The page says how long a key may be, and how many changes a transaction may make, with each engine.
#[test]
fn the_limits_are_those_of_the_engines() {
    let page = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    let directory = tempfile::tempdir().expect("a directory");
    let limits = [
        EngineChoice::Scmkv,
        EngineChoice::Bptree,
        EngineChoice::Map(MapKind::List),
        EngineChoice::Map(MapKind::CowTree),
    ]
    .map(|engine| {
        let path = directory.path().join("pool");
        let config = StoreConfig::at(&path).engine(engine).size(64 << 20);
        let store = config.create().expect("a store");
        let limits = store.engine().limits();
        store.close().expect("close");
        std::fs::remove_file(path).expect("removed");
        limits
    });
    let [scmkv, bptree, list, cow_tree] = limits.map(|it| it.key_len_max);
    assert_eq!((scmkv, bptree), (64 << 10, 64 << 10));
    assert!(page.contains("A key has at most 64 KiB"));
    let by_page = format!("pages of 4 KiB {} and {} bytes", grouped(list), grouped(cow_tree));
    assert!(page.contains(&by_page), "{by_page}");
    let changes = limits.map(|it| it.batch_len_max);
    let changes_max = format!("make at most {} changes", grouped(changes[0]));
    assert!(page.contains(&changes_max) && changes.iter().all(|it| *it == changes[0]));
}
