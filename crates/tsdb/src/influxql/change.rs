//! Statements that change something.

use super::ast::{Cast, Name, PolicyChange, Scope, Statement};
use super::budget::Fallible;
use super::condition::{Said, postings, resolved, split};
use super::inputs::named;
use crate::catalogue::{Policy, TagFilter};
use crate::store::Store;

const HOUR: i64 = 3_600_000_000_000;
const DAY: i64 = 24 * HOUR;
const DEFAULT_POLICY: &str = "autogen";

/// Runs such a statement; `database` is that of the request.
pub(super) fn change(store: &Store, statement: &Statement, database: Option<&str>) -> Fallible<()> {
    match statement {
        Statement::CreateDatabase(name, change) => create_database(store, name, change.as_ref()),
        Statement::DropDatabase(name) => store.drop_database(name).map_err(|it| it.to_string()),
        Statement::CreatePolicy(name, on, change) => {
            let on = named(store, Some(on))?;
            let known = store.policies(on).map_err(|it| it.to_string())?;
            let policy = policy(name, change, None)?;
            if let Some(known) = known.iter().find(|it| it.name == policy.name) {
                let is_same = known.duration_ns == policy.duration_ns
                    && known.shard_ns == policy.shard_ns
                    && (known.is_default || !policy.is_default);
                return match is_same {
                    true => Ok(()),
                    false => Err("retention policy already exists".to_owned()),
                };
            }
            store.put_policy(on, &policy).map_err(|it| it.to_string())
        }
        Statement::AlterPolicy(name, on, change) => {
            let on = named(store, Some(on))?;
            let known = store.policies(on).map_err(|it| it.to_string())?;
            let Some(known) = known.iter().find(|it| it.name == *name) else {
                return Err(format!("retention policy not found: {name}"));
            };
            let policy = policy(name, change, Some(known))?;
            store.put_policy(on, &policy).map_err(|it| it.to_string())
        }
        Statement::DropPolicy(name, on) => {
            let is_there = named(store, Some(on)).is_ok()
                && store
                    .policies(on)
                    .map_err(|it| it.to_string())?
                    .iter()
                    .any(|it| it.name == *name);
            match is_there {
                true => store.drop_policy(on, name).map_err(|it| it.to_string()),
                false => Ok(()),
            }
        }
        Statement::DropMeasurement(name) => {
            let database = named(store, database)?;
            let reader = store.names(database).map_err(|it| it.to_string())?;
            if !reader.measurements().iter().any(|it| **it == **name) {
                return Ok(());
            }
            store.drop_measurement(database, name).map_err(|it| it.to_string())
        }
        Statement::DropSeries(scope) => drop_series(store, named(store, database)?, scope),
        _ => Err("the statement is not supported".to_owned()),
    }
}

fn create_database(store: &Store, name: &str, change: Option<&PolicyChange>) -> Fallible<()> {
    if name.is_empty() {
        return Err("invalid name".to_owned());
    }
    let is_new = !store.databases().iter().any(|it| **it == *name);
    let Some(change) = change else {
        return store.create_database(name).map_err(|it| it.to_string());
    };
    let wanted = PolicyChange { is_default: true, ..change.clone() };
    let policy = policy(change.name.as_deref().unwrap_or(DEFAULT_POLICY), &wanted, None)?;
    if !is_new {
        let known = store.policies(name).map_err(|it| it.to_string())?;
        let is_same = known.contains(&policy);
        return match is_same {
            true => Ok(()),
            false => Err("retention policy conflicts with an existing policy".to_owned()),
        };
    }
    store.create_database(name).map_err(|it| it.to_string())?;
    store.put_policy(name, &policy).map_err(|it| it.to_string())?;
    if policy.name != DEFAULT_POLICY {
        store.drop_policy(name, DEFAULT_POLICY).map_err(|it| it.to_string())?;
    }
    Ok(())
}

/// A policy with the stated values; others stay as they are, or get defaults.
fn policy(name: &str, change: &PolicyChange, known: Option<&Policy>) -> Fallible<Policy> {
    if name.is_empty() {
        return Err("invalid name".to_owned());
    }
    let of = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
    let duration = change.duration.unwrap_or(known.map_or(0, |it| of(it.duration_ns)));
    if duration > 0 && duration < HOUR {
        return Err("retention policy duration must be at least 1h0m0s".to_owned());
    }
    let said = change.shard.filter(|it| *it > 0);
    let kept = known.map(|it| of(it.shard_ns));
    let shard = match said.or(kept) {
        Some(it) => it.max(HOUR),
        None if duration == 0 || duration >= 180 * DAY => 7 * DAY,
        None if duration >= 2 * DAY => DAY,
        None => HOUR,
    };
    if duration > 0 && shard > duration {
        return Err("retention policy duration must be greater than the shard duration".to_owned());
    }
    Ok(Policy {
        name: name.to_owned(),
        duration_ns: duration.unsigned_abs(),
        shard_ns: shard.unsigned_abs(),
        is_default: change.is_default || known.is_some_and(|it| it.is_default),
    })
}

fn drop_series(store: &Store, database: &str, scope: &Scope) -> Fallible<()> {
    let (condition, said) = split(scope.condition.as_ref(), 0)?;
    if said != Said::default() {
        return Err("DROP SERIES doesn't support time in WHERE clause".to_owned());
    }
    let reader = store.names(database).map_err(|it| it.to_string())?;
    let mut wanted = Vec::new();
    for name in reader.measurements() {
        let is_source = scope.sources.is_empty()
            || scope.sources.iter().any(|it| match &it.name {
                Name::Is(wanted) => **wanted == *name,
                Name::Match(pattern) => pattern.0.is_match(&name),
            });
        if !is_source {
            continue;
        }
        let Some(condition) = &condition else {
            wanted.push((name, TagFilter::All));
            continue;
        };
        let fields = reader.fields(&name);
        let kind = |wanted: &str, cast: Cast| {
            let field = fields.iter().find(|it| *it.name == *wanted);
            field.map_or(cast, |it| Cast::Type(it.field_type))
        };
        match postings(&resolved(condition, &kind)) {
            (filter, true) => wanted.push((name, filter)),
            (_, false) => {
                return Err("fields not supported in WHERE clause during deletion".to_owned());
            }
        }
    }
    drop(reader);
    for (name, filter) in wanted {
        store.drop_series(database, &name, &filter).map_err(|it| it.to_string())?;
    }
    Ok(())
}
