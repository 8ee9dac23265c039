//! The columns of a SELECT: wildcards are expanded, names are made, expressions become formulas.

use super::ast::{Cast, Column, Expr};
use super::budget::{Budget, Fallible};
use super::evaluate::{Formula, math};
use super::function::{Call, Function, Whole};
use super::inputs::{Input, Inputs};
use super::kinds::{Kinds, rank};
use super::slots::Slots;
use super::token::Operator;
use crate::value::FieldType;
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// Names, none twice.
    pub(super) names: Vec<String>,
    /// The names before numbers were added to duplicates; a SELECT around finds columns by these names.
    pub(super) bases: Vec<String>,
    /// The kinds of their values.
    pub(super) kinds: Vec<Cast>,
    /// The formulas that compute them from the slots.
    pub(super) formulas: Vec<Formula>,
    /// The calls, which have the first slots.
    pub(super) calls: Vec<Call>,
    /// Fields and tags, which have the other slots.
    pub(super) references: Vec<(String, Cast)>,
}

/// Bytes of a tag key in a set and in a list, about, without its text.
const KEY_BYTES: usize = 96;

/// The tag keys of all inputs.
pub(super) fn tags(
    read: &[Input],
    inputs: &Inputs<'_>,
    budget: &Budget<'_>,
) -> Fallible<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for input in read {
        budget.tick()?;
        match input {
            Input::Stored(it) => {
                let all = inputs.reader(it.reader).map(|reader| reader.tag_keys(&it.name));
                all.iter().flatten().try_for_each(|key| put(key, &mut keys, budget))?;
            }
            Input::Inner(plan) => {
                plan.own_dimensions.iter().try_for_each(|key| put(key, &mut keys, budget))?;
            }
        }
    }
    Ok(keys)
}

/// Adds a tag key to some, and counts it if it is new.
pub(super) fn put(key: &str, to: &mut BTreeSet<String>, budget: &Budget<'_>) -> Fallible<()> {
    budget.tick()?;
    if !to.contains(key) {
        budget.hold(KEY_BYTES + key.len())?;
        to.insert(key.to_owned());
    }
    Ok(())
}

/// The fields of all inputs.
fn fields(read: &[Input], budget: &Budget<'_>) -> Fallible<BTreeMap<String, Cast>> {
    let mut found: BTreeMap<String, Cast> = BTreeMap::new();
    let mut add = |name: &str, kind: Cast| -> Fallible<()> {
        budget.tick()?;
        let known = found.entry(name.to_owned()).or_insert(kind);
        if rank(*known) < rank(kind) {
            *known = kind;
        }
        Ok(())
    };
    for input in read {
        match input {
            Input::Stored(it) => {
                let mut all = it.fields.values();
                all.try_for_each(|it| add(&it.name, Cast::Type(it.field_type)))?;
            }
            Input::Inner(plan) => {
                let mut columns = plan.columns.bases.iter().zip(&plan.columns.kinds);
                columns.try_for_each(|(name, kind)| add(name, *kind))?;
            }
        }
    }
    Ok(found)
}

fn is_wildcard(expr: &Expr) -> bool {
    matches!(expr, Expr::Wildcard(_) | Expr::Regex(_))
}

/// The expression in which a wildcard would stand: the first argument of the innermost call.
fn innermost(expr: &Expr) -> &Expr {
    match expr {
        Expr::Call(_, arguments) => arguments.first().map_or(expr, innermost),
        other => other,
    }
}

/// A call with another expression at the innermost place.
fn with_innermost(expr: &Expr, with: &Expr) -> Expr {
    match expr {
        Expr::Call(name, arguments) => {
            let mut arguments = arguments.clone();
            if let Some(first) = arguments.first_mut() {
                *first = with_innermost(first, with);
            }
            Expr::Call(name.clone(), arguments)
        }
        _ => with.clone(),
    }
}

/// The name of the innermost call.
fn innermost_name(expr: &Expr) -> &str {
    match expr {
        Expr::Call(name, arguments) => match arguments.first() {
            Some(inner @ Expr::Call(..)) => innermost_name(inner),
            _ => name,
        },
        _ => "",
    }
}

/// True if a wildcard within a function stands for fields of this type.
fn is_expanded(function: &str, kind: Cast) -> bool {
    match kind {
        Cast::Type(FieldType::Float | FieldType::Integer | FieldType::Unsigned) => true,
        Cast::Type(FieldType::String) => {
            matches!(function, "count" | "first" | "last" | "distinct" | "elapsed" | "mode")
        }
        Cast::Type(FieldType::Boolean) => {
            matches!(function, "min" | "max")
                || is_expanded(function, Cast::Type(FieldType::String))
        }
        _ => false,
    }
}

/// The name of a column without an alias.
fn base(expr: &Expr) -> String {
    match expr {
        Expr::Call(name, _) => name.clone(),
        Expr::Distinct(_) => "distinct".to_owned(),
        Expr::Reference(name, _) => name.clone(),
        Expr::Group(inner) => base(inner),
        Expr::Binary(..) => {
            let mut names = Vec::new();
            collect(expr, &mut names);
            names.join("_")
        }
        _ => String::new(),
    }
}

fn collect<'e>(expr: &'e Expr, names: &mut Vec<&'e str>) {
    match expr {
        Expr::Reference(name, _) | Expr::Call(name, _) => names.push(name),
        Expr::Binary(_, left, right) => {
            collect(left, names);
            collect(right, names);
        }
        Expr::Group(inner) => collect(inner, names),
        _ => {}
    }
}

/// The columns of a SELECT, as its text has them, and its GROUP BY clause.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) columns: &'a [Column],
    pub(super) groups: &'a [Expr],
}

/// Bytes of a column, about, without its names.
const COLUMN_BYTES: usize = 512;

/// Counts a column.
fn hold(budget: &Budget<'_>, names: usize) -> Fallible<()> {
    budget.tick()?;
    // It is in a formula, in a slot, and among the names.
    budget.hold(COLUMN_BYTES + 4 * names)
}

/// Columns without wildcards.
fn expanded(
    Asked { columns: asked, groups }: Asked<'_>,
    dimensions: &BTreeSet<String>,
    read: &[Input],
    inputs: &Inputs<'_>,
    budget: &Budget<'_>,
) -> Fallible<Vec<Column>> {
    asked.iter().try_for_each(|_| hold(budget, 0))?;
    if !asked.iter().any(|it| is_wildcard(innermost(&it.expr))) {
        return Ok(asked.to_vec());
    }
    let mut known: Vec<(String, Cast)> = fields(read, budget)?.into_iter().collect();
    if !known.is_empty() && !groups.iter().any(is_wildcard) {
        let tags = tags(read, inputs, budget)?;
        let others = tags.into_iter().filter(|it| !dimensions.contains(it));
        known.extend(others.map(|it| (it, Cast::Tag)));
        known.sort_by(|a, b| a.0.cmp(&b.0));
    }
    let mut columns = Vec::new();
    for column in asked {
        let reference = |(name, kind): &(String, Cast)| Expr::Reference(name.clone(), *kind);
        let is_call = matches!(column.expr, Expr::Call(..));
        match innermost(&column.expr) {
            Expr::Wildcard(Cast::Tag) if is_call => {
                return Err(format!(
                    "unable to use tag wildcard in {}()",
                    innermost_name(&column.expr)
                ));
            }
            wildcard @ (Expr::Wildcard(_) | Expr::Regex(_)) => {
                let alias = column.alias.as_ref().map_or(0, String::len);
                let asked = if is_call { alias + column.expr.to_string().len() } else { 0 };
                for it in &known {
                    budget.tick()?;
                    let is_wanted = match wildcard {
                        Expr::Wildcard(Cast::Field) => it.1 != Cast::Tag,
                        Expr::Wildcard(Cast::Tag) => it.1 == Cast::Tag,
                        Expr::Regex(pattern) => budget.finds(&pattern.0, &it.0)?,
                        _ => true,
                    };
                    if !is_wanted {
                        continue;
                    }
                    hold(budget, asked + it.0.len())?;
                    if !is_call {
                        columns.push(Column { expr: reference(it), alias: None });
                    } else if is_expanded(innermost_name(&column.expr), it.1) {
                        let name = column.alias.clone().unwrap_or_else(|| base(&column.expr));
                        columns.push(Column {
                            expr: with_innermost(&column.expr, &reference(it)),
                            alias: Some(format!("{name}_{}", it.0)),
                        });
                    }
                }
            }
            _ => columns.push(column.clone()),
        }
    }
    Ok(columns)
}

/// Gives each call and each reference a slot; those of references follow those of calls.
fn find_slots(
    expr: &Expr,
    kind: &dyn Fn(&str, Cast) -> Cast,
    slots: &mut (&mut Slots<Call>, &mut Slots<(String, Cast)>),
) {
    match expr {
        Expr::Call(name, arguments) if math(name).is_some() => {
            arguments.iter().for_each(|it| find_slots(it, kind, slots));
        }
        Expr::Binary(_, left, right) => {
            find_slots(left, kind, slots);
            find_slots(right, kind, slots);
        }
        Expr::Group(inner) => find_slots(inner, kind, slots),
        Expr::Reference(name, cast) => slots.1.put(name, (name.clone(), kind(name, *cast))),
        _ => {
            let Some(call) = Call::new(expr, kind) else { return };
            if let Function::Whole(Whole::Rank(_, _, tags)) = &call.function {
                for tag in tags {
                    find_slots(&Expr::Reference(tag.clone(), Cast::None), kind, slots);
                }
            }
            slots.0.put(&call.field.clone(), call);
        }
    }
}

impl Columns {
    /// The columns that a SELECT asks for.
    pub(super) fn new(
        asked: Asked<'_>,
        dimensions: &BTreeSet<String>,
        read: &[Input],
        inputs: &Inputs<'_>,
        budget: &Budget<'_>,
    ) -> Fallible<Self> {
        let asked = expanded(asked, dimensions, read, inputs, budget)?;
        let kinds = Kinds::new(read, inputs, budget);
        let made = Self::of(&asked, &kinds);
        // Without their kinds the columns may be wrong.
        kinds.end()?;
        made
    }

    fn of(asked: &[Column], kinds: &Kinds<'_, '_>) -> Fallible<Self> {
        let kind = |name: &str, cast: Cast| kinds.of(name, cast);
        let is_tag = |name: &str| kinds.is_tag(name);
        let mut columns = Self::default();
        let mut aliases = Vec::new();
        let (mut calls, mut references) = (Slots::default(), Slots::default());
        let along = &mut (&mut calls, &mut references);
        asked.iter().for_each(|it| find_slots(&it.expr, &kind, along));
        // The order is InfluxDB's, whose merge compares the values beside at equal times.
        let order =
            |a: &(String, Cast), b: &(String, Cast)| a.0.cmp(&b.0).then(rank(b.1).cmp(&rank(a.1)));
        references.sort(|all| all.sort_by(order), |it| &it.0);
        let slots = (&calls, &references);
        for column in asked {
            aliases.push(column.alias.clone());
            columns.push(&column.expr, &kind, &is_tag, slots)?;
            let call = Call::new(&column.expr, &kind);
            if let Some(Call { function: Function::Whole(Whole::Rank(_, _, tags)), .. }) = call {
                for tag in tags {
                    aliases.push(None);
                    columns.push(&Expr::Reference(tag, Cast::None), &kind, &is_tag, slots)?;
                }
            }
        }
        columns.name(&aliases);
        (columns.calls, columns.references) = (calls.all, references.all);
        Ok(columns)
    }

    fn push(
        &mut self,
        expr: &Expr,
        kind: &dyn Fn(&str, Cast) -> Cast,
        is_tag: &dyn Fn(&str) -> bool,
        (calls, references): (&Slots<Call>, &Slots<(String, Cast)>),
    ) -> Fallible<()> {
        self.bases.push(base(expr));
        // To find out whether a name is a tag, the postings must be read; it matters only beside operators.
        let known = |name: &str, cast: Cast| match kind(name, cast) {
            Cast::Tag if cast != Cast::Tag && !is_tag(name) => Cast::None,
            kind => kind,
        };
        let found = match expr {
            Expr::Reference(..) => type_of(expr, kind)?,
            // Errors quote the expression with the types.
            _ => type_of(&super::condition::resolved(expr, &known), &known)?,
        };
        self.kinds.push(found.unwrap_or(Cast::None));
        let formula = Formula::new(expr, &mut |it| match it {
            Expr::Reference(name, cast) => {
                let wanted = (name.clone(), kind(name, *cast));
                let at = references.find(name, &wanted);
                at.map_or(Formula::Literal(None), |at| Formula::Slot(calls.all.len() + at))
            }
            other => {
                let call = Call::new(other, kind);
                let at = call.and_then(|call| calls.find(&call.field, &call));
                at.map_or(Formula::Literal(None), Formula::Slot)
            }
        });
        self.formulas.push(formula);
        Ok(())
    }

    /// Makes names: aliases as they are, and with a number added if the name exists already.
    fn name(&mut self, aliases: &[Option<String>]) {
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for alias in aliases.iter().flatten() {
            known.insert(alias.clone(), 1);
        }
        for (base, alias) in self.bases.iter_mut().zip(aliases) {
            if let Some(alias) = alias {
                *base = alias.clone();
                self.names.push(alias.clone());
                continue;
            }
            let mut name = base.clone();
            if let Some(mut count) = known.get(&name).copied() {
                let mut numbered = format!("{name}_{count}");
                while known.contains_key(&numbered) {
                    count += 1;
                    numbered = format!("{name}_{count}");
                }
                known.insert(name, count + 1);
                name = numbered;
            }
            known.insert(name.clone(), 1);
            self.names.push(name);
        }
    }
}

/// The type of an expression; none if it is unknown.
fn type_of(expr: &Expr, kind: &dyn Fn(&str, Cast) -> Cast) -> Fallible<Option<Cast>> {
    Ok(match expr {
        Expr::Reference(name, cast) => Some(kind(name, *cast)).filter(|it| *it != Cast::None),
        Expr::Call(name, arguments) => match math(name) {
            None => {
                let of = arguments.first().map_or(Ok(None), |it| type_of(it, kind))?;
                let call = Call::new(expr, kind).filter(|it| of.is_some() || it.kind != Cast::None);
                call.and_then(|it| it.result()).map(Cast::Type)
            }
            Some(super::evaluate::Math::Abs | super::evaluate::Math::Whole(_)) => {
                arguments.first().map_or(Ok(None), |it| type_of(it, kind))?
            }
            Some(_) => Some(Cast::Type(FieldType::Float)),
        },
        Expr::Distinct(name) => Some(kind(name, Cast::None)).filter(|it| *it != Cast::None),
        Expr::Group(inner) => type_of(inner, kind)?,
        Expr::Number(_) => Some(Cast::Type(FieldType::Float)),
        Expr::Integer(_) => Some(Cast::Type(FieldType::Integer)),
        Expr::Unsigned(_) => Some(Cast::Type(FieldType::Unsigned)),
        Expr::String(_) => Some(Cast::Type(FieldType::String)),
        Expr::Boolean(_) => Some(Cast::Type(FieldType::Boolean)),
        Expr::Binary(operator, left, right) => {
            match (type_of(left, kind)?, type_of(right, kind)?) {
                (Some(a), Some(b)) => Some(type_of_two(*operator, a, b, expr, left, right)?),
                (a, b) => a.or(b),
            }
        }
        Expr::Wildcard(_) | Expr::Regex(_) | Expr::Duration(_) => None,
    })
}

fn type_of_two(
    operator: Operator,
    a: Cast,
    b: Cast,
    expr: &Expr,
    left: &Expr,
    right: &Expr,
) -> Fallible<Cast> {
    use FieldType::{Boolean, Float, Integer, Unsigned};
    let is_of_bits = matches!(operator, Operator::BitAnd | Operator::BitOr | Operator::BitXor);
    let sign = operator.text();
    let mixed = |literal: &Expr, other: &Expr| {
        if literal.is_literal() {
            Err(format!(
                "type error: {expr}: cannot use {sign} with an integer and unsigned literal"
            ))
        } else if other.is_literal() {
            Ok(Cast::Type(Unsigned))
        } else {
            Err(format!(
                "type error: {expr}: cannot use {sign} between an integer and unsigned, an explicit cast is required"
            ))
        }
    };
    match (a, b) {
        (Cast::Type(Unsigned), Cast::Type(Integer)) => mixed(left, right),
        (Cast::Type(Integer), Cast::Type(Unsigned)) => mixed(right, left),
        (Cast::Type(Integer), Cast::Type(Integer)) => Ok(Cast::Type(Integer)),
        (Cast::Type(Unsigned), Cast::Type(Unsigned)) => Ok(Cast::Type(Unsigned)),
        (Cast::Type(Boolean), Cast::Type(Boolean)) if is_of_bits => Ok(Cast::Type(Boolean)),
        (Cast::Type(Float | Integer | Unsigned), Cast::Type(Float | Integer | Unsigned))
            if !is_of_bits =>
        {
            Ok(Cast::Type(Float))
        }
        _ => {
            let name = |kind: Cast| match kind {
                Cast::Type(it) => it.name(),
                _ => "tag",
            };
            Err(format!("type error: {expr}: incompatible types: {} and {}", name(a), name(b)))
        }
    }
}
