//! The keywords of InfluxQL.

/// The keywords, ascending.
#[rustfmt::skip]
const KEYWORDS: [&str; 78] = [
    "ALL", "ALTER", "ANALYZE", "ANY", "AS", "ASC", "BEGIN", "BY", "CARDINALITY", "CONTINUOUS",
    "CREATE", "DATABASE", "DATABASES", "DEFAULT", "DELETE", "DESC", "DESTINATIONS", "DIAGNOSTICS",
    "DISTINCT", "DROP", "DURATION", "END", "EVERY", "EXACT", "EXPLAIN", "FALSE", "FIELD", "FOR",
    "FROM", "GRANT", "GRANTS", "GROUP", "GROUPS", "IN", "INF", "INSERT", "INTO", "KEY", "KEYS",
    "KILL", "LIMIT", "MEASUREMENT", "MEASUREMENTS", "NAME", "OFFSET", "ON", "ORDER", "PASSWORD",
    "POLICIES", "POLICY", "PRIVILEGES", "QUERIES", "QUERY", "READ", "REPLICATION", "RESAMPLE",
    "RETENTION", "REVOKE", "SELECT", "SERIES", "SET", "SHARD", "SHARDS", "SHOW", "SLIMIT",
    "SOFFSET", "STATS", "SUBSCRIPTION", "SUBSCRIPTIONS", "TAG", "TO", "TRUE", "USER", "USERS",
    "VALUES", "WHERE", "WITH", "WRITE",
];

/// The keyword that equals a word, in capitals.
pub(super) fn keyword(word: &str) -> Option<&'static str> {
    let capitals = || word.bytes().map(|byte| byte.to_ascii_uppercase());
    let found = KEYWORDS.binary_search_by(|known| known.bytes().cmp(capitals()));
    KEYWORDS.get(found.ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_ascend_and_are_found_in_any_case() {
        assert!(KEYWORDS.is_sorted());
        assert!(KEYWORDS.iter().all(|known| keyword(&known.to_lowercase()) == Some(known)));
        assert_eq!(keyword("sElEcT"), Some("SELECT"));
        assert_eq!(keyword("selec"), None);
    }
}
