//! Statements that change something.

use super::ast::{Name, PolicyChange, Scope, Statement};
use super::budget::Fallible;
use super::condition::{Said, of_measurement, split};
use super::inputs::named;
use crate::catalogue::Policy;
use crate::error::Error;
use crate::store::Store;

const DEFAULT_POLICY: &str = "autogen";

/// Runs such a statement; `database` is that of the request.
pub(super) fn change(store: &Store, statement: &Statement, database: Option<&str>) -> Fallible<()> {
    match statement {
        Statement::CreateDatabase(name, change) => create_database(store, name, change.as_ref()),
        Statement::DropDatabase(name) => store.drop_database(name).map_err(|it| it.to_string()),
        Statement::CreatePolicy(name, on, change) => {
            let on = named(store, Some(on))?;
            store.create_policy(on, &policy(name, change)?).map_err(|it| it.to_string())
        }
        Statement::AlterPolicy(name, on, change) => {
            let on = named(store, Some(on))?;
            let edited = store.alter_policy(on, name, |known| edit(known, change));
            edited.map_err(|it| it.to_string())
        }
        Statement::DropPolicy(name, on) => dropped(store.drop_policy(on, name)),
        Statement::DropMeasurement(name) => {
            dropped(store.drop_measurement(named(store, database)?, name))
        }
        Statement::DropSeries(scope) => drop_series(store, named(store, database)?, scope),
        _ => Err("the statement is not supported".to_owned()),
    }
}

/// The outcome of a drop, which does nothing if the object does not exist.
fn dropped(outcome: Result<(), Error>) -> Fallible<()> {
    match outcome {
        Ok(()) | Err(Error::NotFound(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn create_database(store: &Store, name: &str, change: Option<&PolicyChange>) -> Fallible<()> {
    if name.is_empty() {
        return Err("invalid name".to_owned());
    }
    let made = match change {
        None => store.create_database(name),
        Some(change) => {
            let policy = policy(change.name.as_deref().unwrap_or(DEFAULT_POLICY), change)?;
            store.create_database_with(name, &policy)
        }
    };
    made.map_err(|it| it.to_string())
}

/// A new policy with the stated values; the store chooses a shard duration that is not stated.
fn policy(name: &str, change: &PolicyChange) -> Fallible<Policy> {
    if name.is_empty() {
        return Err("invalid name".to_owned());
    }
    let mut policy =
        Policy { name: name.to_owned(), duration_ns: 0, shard_ns: 0, is_default: false };
    edit(&mut policy, change);
    Ok(policy)
}

/// Gives a policy the stated values; the others stay. A stated shard duration of 0 counts as none.
fn edit(policy: &mut Policy, change: &PolicyChange) {
    if let Some(duration) = change.duration {
        policy.duration_ns = duration.unsigned_abs();
    }
    if let Some(shard) = change.shard.filter(|it| *it > 0) {
        policy.shard_ns = shard.unsigned_abs();
    }
    policy.is_default |= change.is_default;
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
        if is_source {
            wanted.push(name);
        }
    }
    // One at a time, since each has a copy of the condition.
    let filter = |name: &str| match of_measurement(&reader, name, condition.as_ref()) {
        (filter, None) => Ok(filter),
        _ => Err("fields not supported in WHERE clause during deletion".to_owned()),
    };
    wanted.iter().try_for_each(|name| filter(name).map(drop))?;
    for name in wanted {
        store.drop_series(database, &name, &filter(&name)?).map_err(|it| it.to_string())?;
    }
    Ok(())
}
