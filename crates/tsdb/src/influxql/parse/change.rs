//! CREATE, ALTER and DROP.

use super::{Parsed, Parser, at, unexpected};
use crate::influxql::ast::{PolicyChange, Statement};
use crate::influxql::token::{Place, Token};

impl Parser<'_> {
    /// Parses a CREATE statement, whose first word was taken.
    pub(super) fn create(&mut self) -> Parsed<Statement> {
        match self.next() {
            (Token::Keyword("DATABASE"), _) => self.create_database(),
            (Token::Keyword("RETENTION"), _) => {
                self.expect_word("POLICY")?;
                self.create_policy()
            }
            (Token::Keyword(word @ ("CONTINUOUS" | "USER" | "SUBSCRIPTION")), place) => {
                Err(unsupported("CREATE", word, place))
            }
            (token, place) => {
                let expected = "CONTINUOUS, DATABASE, USER, RETENTION, SUBSCRIPTION";
                Err(unexpected(&token, expected, place))
            }
        }
    }

    /// `CREATE DATABASE name [WITH …]`
    fn create_database(&mut self) -> Parsed<Statement> {
        let name = self.name()?;
        if !self.take_word("WITH") {
            return Ok(Statement::CreateDatabase(name, None));
        }
        let (token, place) = self.ahead();
        match token {
            Token::Keyword("DURATION" | "NAME" | "REPLICATION" | "SHARD") => {}
            token => {
                return Err(unexpected(&token, "DURATION, NAME, REPLICATION, SHARD", place));
            }
        }
        let mut policy = PolicyChange::default();
        if self.take_word("DURATION") {
            policy.duration = Some(self.duration()?);
        }
        if self.take_word("REPLICATION") {
            policy.replication = Some(self.integer(1, i64::from(i32::MAX))?);
        }
        if self.take_word("SHARD") {
            self.expect_word("DURATION")?;
            policy.shard = Some(self.duration()?);
        }
        if self.take_word("NAME") {
            policy.name = Some(self.name()?);
        }
        Ok(Statement::CreateDatabase(name, Some(policy)))
    }

    /// Parses `name ON database` of a policy.
    fn policy_of(&mut self) -> Parsed<(String, String)> {
        let name = self.name()?;
        self.expect_word("ON")?;
        Ok((name, self.name()?))
    }

    /// `CREATE RETENTION POLICY …`, whose first words were taken.
    fn create_policy(&mut self) -> Parsed<Statement> {
        let (name, database) = self.policy_of()?;
        let mut policy = PolicyChange::default();
        self.expect_word("DURATION")?;
        policy.duration = Some(self.duration()?);
        self.expect_word("REPLICATION")?;
        policy.replication = Some(self.integer(1, i64::from(i32::MAX))?);
        if self.take_word("SHARD") {
            policy.shard = Some(self.shard()?);
        }
        policy.is_default = self.take_word("DEFAULT");
        Ok(Statement::CreatePolicy(name, database, policy))
    }

    /// Parses the duration of a shard, which must be finite.
    fn shard(&mut self) -> Parsed<i64> {
        self.expect_word("DURATION")?;
        if let (Token::Keyword("INF"), place) = self.ahead() {
            return Err(at("invalid duration INF for shard duration", place));
        }
        self.duration()
    }

    /// `ALTER RETENTION POLICY …`, whose first word was taken.
    pub(super) fn alter(&mut self) -> Parsed<Statement> {
        self.expect_word("RETENTION")?;
        self.expect_word("POLICY")?;
        let name = match self.next() {
            (Token::Keyword("DEFAULT"), _) => "default".to_owned(),
            (Token::Name(name), _) => name,
            (token, place) => return Err(unexpected(&token, "identifier", place)),
        };
        self.expect_word("ON")?;
        let database = self.name()?;
        let mut policy = PolicyChange::default();
        let mut is_changed = false;
        loop {
            let before = self.lexer;
            let (token, place) = self.next();
            let is_twice = match &token {
                Token::Keyword("DURATION") => policy.duration.is_some(),
                Token::Keyword("REPLICATION") => policy.replication.is_some(),
                Token::Keyword("SHARD") => policy.shard.is_some(),
                Token::Keyword("DEFAULT") => policy.is_default,
                token if !is_changed => {
                    let expected = "DURATION, REPLICATION, SHARD, DEFAULT";
                    return Err(unexpected(token, expected, place));
                }
                _ => {
                    self.lexer = before;
                    return Ok(Statement::AlterPolicy(name, database, policy));
                }
            };
            if is_twice {
                return Err(at(&format!("found duplicate {} option", token.found()), place));
            }
            match token {
                Token::Keyword("DURATION") => policy.duration = Some(self.duration()?),
                Token::Keyword("REPLICATION") => {
                    policy.replication = Some(self.integer(1, i64::from(i32::MAX))?);
                }
                Token::Keyword("SHARD") => policy.shard = Some(self.shard()?),
                _ => policy.is_default = true,
            }
            is_changed = true;
        }
    }

    /// Parses a DROP statement, whose first word was taken.
    pub(super) fn drop_statement(&mut self) -> Parsed<Statement> {
        match self.next() {
            (Token::Keyword("DATABASE"), _) => self.name().map(Statement::DropDatabase),
            (Token::Keyword("MEASUREMENT"), _) => self.name().map(Statement::DropMeasurement),
            (Token::Keyword("SERIES"), _) => self.deletion().map(Statement::DropSeries),
            (Token::Keyword("RETENTION"), _) => {
                self.expect_word("POLICY")?;
                let (name, database) = self.policy_of()?;
                Ok(Statement::DropPolicy(name, database))
            }
            (Token::Keyword(word @ ("CONTINUOUS" | "SHARD" | "SUBSCRIPTION" | "USER")), place) => {
                Err(unsupported("DROP", word, place))
            }
            (token, place) => {
                let expected = "CONTINUOUS, DATABASE, MEASUREMENT, RETENTION, SERIES, SHARD, SUBSCRIPTION, USER";
                Err(unexpected(&token, expected, place))
            }
        }
    }
}

/// The error for a known statement that is not supported.
fn unsupported(verb: &str, word: &str, place: Place) -> String {
    let what = if word == "CONTINUOUS" { "CONTINUOUS QUERY" } else { word };
    at(&format!("{verb} {what} is not supported"), place)
}
