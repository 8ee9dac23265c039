//! The statements that recreate a database.

use super::ast::{PolicyChange, Statement};
use crate::catalogue::Policy;

/// The statements that make a database with these policies, one after the other, where it does not exist: the
/// default policy comes first, with the database.
#[must_use]
pub fn creation(database: &str, policies: &[Policy]) -> Vec<String> {
    let change = |policy: &Policy| PolicyChange {
        duration: Some(i64::try_from(policy.duration_ns).unwrap_or(i64::MAX)),
        replication: Some(1),
        shard: Some(i64::try_from(policy.shard_ns).unwrap_or(i64::MAX)),
        is_default: false,
        name: None,
    };
    let first = policies.iter().find(|policy| policy.is_default).or(policies.first());
    let of_first = first.map(|it| PolicyChange { name: Some(it.name.clone()), ..change(it) });
    let others = policies.iter().filter(|policy| Some(*policy) != first);
    let others = others.map(|it| {
        Statement::CreatePolicy(it.name.clone(), database.to_owned(), change(it)).to_string()
    });
    let made = Statement::CreateDatabase(database.to_owned(), of_first).to_string();
    std::iter::once(made).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_made_with_its_policies() {
        const HOUR: u64 = 3_600_000_000_000;
        let policy = |name: &str, hours: u64, is_default| Policy {
            name: name.to_owned(),
            duration_ns: hours * 2 * HOUR,
            shard_ns: (hours + 1) * HOUR,
            is_default,
        };
        let policies = [policy("short", 1, false), policy("a \"b\"", 0, true)];
        assert_eq!(
            creation("select", &policies),
            [
                r#"CREATE DATABASE "select" WITH DURATION INF REPLICATION 1 SHARD DURATION 1h NAME "a \"b\"""#,
                r#"CREATE RETENTION POLICY short ON "select" DURATION 2h REPLICATION 1 SHARD DURATION 2h"#,
            ]
        );
        assert_eq!(creation("d", &[]), ["CREATE DATABASE d"]);
    }
}
