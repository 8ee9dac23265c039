//! SHOW.

use super::{Parsed, Parser, at, unexpected};
use crate::influxql::ast::{Counted, Keys, Scope, Statement};
use crate::influxql::token::{Operator, Token};

/// The words that may stand behind SHOW.
const SHOWN: &str = "CONTINUOUS, DATABASES, DIAGNOSTICS, FIELD, GRANTS, MEASUREMENT, MEASUREMENTS, QUERIES, RETENTION, \
     SERIES, SHARD, SHARDS, STATS, SUBSCRIPTIONS, TAG, USERS";

impl Parser<'_> {
    /// Parses a SHOW statement, whose first word was taken.
    pub(super) fn show(&mut self) -> Parsed<Statement> {
        let (token, place) = self.next();
        let Token::Keyword(word) = token else {
            return Err(unexpected(&token, SHOWN, place));
        };
        match word {
            "DATABASES" => Ok(Statement::ShowDatabases),
            "MEASUREMENTS" => self.measurements(),
            "MEASUREMENT" => self.cardinality(Counted::Measurement),
            "SERIES" => match self.ahead().0 {
                Token::Keyword("EXACT" | "CARDINALITY") => self.cardinality(Counted::Series),
                _ => {
                    let mut scope = self.scope(true)?;
                    self.order()?;
                    scope.rows = self.rows()?;
                    Ok(Statement::ShowSeries(scope))
                }
            },
            "TAG" => self.tag(),
            "FIELD" => match self.next() {
                (Token::Keyword("KEYS"), _) => {
                    let mut scope = self.scope(false)?;
                    self.order()?;
                    scope.rows = self.rows()?;
                    Ok(Statement::ShowFieldKeys(scope))
                }
                (Token::Keyword("KEY"), _) => self.cardinality(Counted::FieldKey),
                (token, place) => Err(unexpected(&token, "KEY, KEYS", place)),
            },
            "RETENTION" => {
                self.expect_word("POLICIES")?;
                let on = if self.take_word("ON") { Some(self.name()?) } else { None };
                Ok(Statement::ShowPolicies(on))
            }
            "GRANTS" => {
                self.expect_word("FOR")?;
                self.name()?;
                Err(at("SHOW GRANTS is not supported", place))
            }
            "CONTINUOUS" => {
                self.expect_word("QUERIES")?;
                Ok(Statement::ShowNothing("CONTINUOUS QUERIES"))
            }
            "SHARD" => {
                self.expect_word("GROUPS")?;
                Ok(Statement::ShowNothing("SHARD GROUPS"))
            }
            "STATS" | "DIAGNOSTICS" => {
                if self.take_word("FOR") {
                    match self.next() {
                        (Token::String(_), _) => {}
                        (token, place) => return Err(unexpected(&token, "string", place)),
                    }
                }
                Ok(Statement::ShowNothing(word))
            }
            "QUERIES" | "SHARDS" | "SUBSCRIPTIONS" | "USERS" => Ok(Statement::ShowNothing(word)),
            _ => Err(unexpected(&token, SHOWN, place)),
        }
    }

    /// `[ON database] [FROM sources] [WHERE condition]`
    fn scope(&mut self, has_condition: bool) -> Parsed<Scope> {
        let mut scope = Scope::default();
        self.scope_head(&mut scope)?;
        if has_condition {
            scope.condition = self.condition()?;
        }
        Ok(scope)
    }

    /// `[ON database] [FROM sources]`
    fn scope_head(&mut self, scope: &mut Scope) -> Parsed<()> {
        if self.take_word("ON") {
            scope.database = Some(self.name()?);
        }
        if self.take_word("FROM") {
            scope.sources.push(self.measurement()?);
            while self.take_if(&Token::Mark(",")) {
                scope.sources.push(self.measurement()?);
            }
        }
        Ok(())
    }

    /// `SHOW MEASUREMENTS …`
    fn measurements(&mut self) -> Parsed<Statement> {
        let mut scope = Scope::default();
        if self.take_word("ON") {
            scope.database = Some(self.name()?);
        }
        if self.take_word("WITH") {
            self.expect_word("MEASUREMENT")?;
            match self.next() {
                (Token::Operator(Operator::Equal | Operator::Match), _) => {
                    scope.sources.push(self.measurement()?);
                }
                (token, place) => return Err(unexpected(&token, "=, =~", place)),
            }
        }
        scope.condition = self.condition()?;
        self.order()?;
        scope.rows = self.rows()?;
        Ok(Statement::ShowMeasurements(scope))
    }

    /// `SHOW TAG …`
    fn tag(&mut self) -> Parsed<Statement> {
        match self.next() {
            (Token::Keyword("KEYS"), _) => {
                let mut scope = self.scope(true)?;
                self.order()?;
                scope.rows = self.rows()?;
                scope.series = self.series()?;
                Ok(Statement::ShowTagKeys(scope))
            }
            (Token::Keyword("KEY"), _) => self.cardinality(Counted::TagKey),
            (Token::Keyword("VALUES"), _) => {
                if let Token::Keyword("EXACT" | "CARDINALITY") = self.ahead().0 {
                    return self.cardinality(Counted::TagValues);
                }
                let mut scope = Scope::default();
                self.scope_head(&mut scope)?;
                let keys = self.keys()?;
                scope.condition = self.condition()?;
                self.order()?;
                scope.rows = self.rows()?;
                Ok(Statement::ShowTagValues(scope, keys))
            }
            (token, place) => Err(unexpected(&token, "KEY, KEYS, VALUES", place)),
        }
    }

    /// `WITH KEY …`
    fn keys(&mut self) -> Parsed<Keys> {
        self.expect_word("WITH")?;
        self.expect_word("KEY")?;
        match self.next() {
            (Token::Keyword("IN"), _) => {
                self.expect(&Token::Mark("("))?;
                let names = self.names()?;
                self.expect(&Token::Mark(")"))?;
                Ok(Keys::In(names))
            }
            (Token::Operator(it @ (Operator::Equal | Operator::NotEqual)), _) => {
                Ok(Keys::Is(self.name()?, it == Operator::Equal))
            }
            (Token::Operator(it @ (Operator::Match | Operator::NotMatch)), _) => {
                match self.regex()? {
                    Some(pattern) => Ok(Keys::Match(pattern, it == Operator::Match)),
                    None => {
                        let (token, place) = self.next();
                        Err(unexpected(&token, "regex", place))
                    }
                }
            }
            (token, place) => Err(unexpected(&token, "IN, =, =~", place)),
        }
    }

    /// `[EXACT] CARDINALITY …`
    fn cardinality(&mut self, counted: Counted) -> Parsed<Statement> {
        let is_exact = self.take_word("EXACT");
        let (token, place) = self.next();
        if token != Token::Keyword("CARDINALITY") {
            let expected = if is_exact { "CARDINALITY" } else { "EXACT, CARDINALITY" };
            return Err(unexpected(&token, expected, place));
        }
        let mut scope = Scope::default();
        self.scope_head(&mut scope)?;
        let keys = if counted == Counted::TagValues { Some(self.keys()?) } else { None };
        scope.condition = self.condition()?;
        scope.dimensions = self.dimensions()?;
        scope.rows = self.rows()?;
        Ok(Statement::ShowCardinality(counted, is_exact, scope, keys))
    }

    /// Parses `[FROM sources] [WHERE condition]` of DELETE and DROP SERIES, of which at least one must be there.
    pub(super) fn deletion(&mut self) -> Parsed<Scope> {
        let (token, place) = self.ahead();
        let mut scope = Scope::default();
        if token == Token::Keyword("FROM") {
            self.scope_head(&mut scope)?;
        }
        for source in &scope.sources {
            if source.policy.is_some() {
                return Err("retention policy not supported at line 1, char 1".to_owned());
            }
            if source.database.is_some() {
                return Err("database not supported at line 1, char 1".to_owned());
            }
        }
        scope.condition = self.condition()?;
        if scope.sources.is_empty() && scope.condition.is_none() {
            return Err(unexpected(&token, "FROM, WHERE", place));
        }
        Ok(scope)
    }
}
