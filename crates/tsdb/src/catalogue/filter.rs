//! Selects the series of a measurement that a filter lets through.
//!
//! A filter is evaluated on postings, from the narrowest term to the widest, each within the result of the one
//! before. A tag that a series does not have counts as empty: if a condition holds for the empty text, it holds for
//! all series but those with a value for which it does not. An expression is evaluated once for each value, or once
//! for each remaining series, if these are fewer.
//!
//! Other threads go on meanwhile: a search reads the catalogue for a short step at a time. It evaluates expressions
//! between these steps, on a copy of the values, and before series are subtracted from all of them it lists all of
//! them. So a series that is found passes the filter, and each series that was there before is found.
//!
//! Before the values of a tag are copied, before expressions are looked for in texts, and before series are listed,
//! the caller decides whether that may be ([`Work`]). Of the lists of many terms no more is held at a time than some
//! times all series.
//!
//! A chain of equal operators, however long, takes no stack. Alternating operators do; the maker of the filter
//! limits them.

use super::postings::{Postings, Values};
use super::series::Series;
use super::{Catalogue, MeasurementId, SeriesId};
use regex::Regex;
use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

/// Selects series of a measurement. A tag that a series does not have is empty.
#[derive(Debug, Clone)]
pub enum TagFilter {
    /// All of them.
    All,
    /// Series whose tag of this key has this value.
    Equal(String, String),
    /// The other series.
    NotEqual(String, String),
    /// Series whose tag of this key has a value in which the expression is found.
    Match(String, Regex),
    /// The other series.
    NotMatch(String, Regex),
    /// Series that both let through.
    And(Box<TagFilter>, Box<TagFilter>),
    /// Series that either lets through.
    Or(Box<TagFilter>, Box<TagFilter>),
}

/// The next step of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It looks at so many values of a tag, of which it holds a copy.
    Look(usize),
    /// It looks for an expression in texts of so many bytes.
    Match(usize),
    /// It makes a list of so many series.
    List(usize),
}

/// Decides about the next step of a selection.
pub type Permission<'m, E> = &'m dyn Fn(Work) -> Result<(), E>;

/// So many series are always looked at one by one, however few values a tag has: these may have many series.
const FEW: usize = 1024;

/// Series whose values are copied in one step.
const COPIED: usize = 64;

/// Bytes of texts in which expressions are looked for between two questions, and bytes for which each text counts
/// beside its own.
const MATCHED: usize = 1024;
const TEXT: usize = 16;

/// The texts in which expressions were looked for since the last question: one may be long, and take long.
#[derive(Debug, Default)]
pub(crate) struct Matched(Cell<usize>);

impl Matched {
    /// Adds the next text; returns the work before which it is time to ask, if it is.
    pub(crate) fn add(&self, text: &str) -> Option<Work> {
        let bytes = self.0.get().saturating_add(TEXT + text.len());
        let is_many = bytes > MATCHED;
        self.0.set(if is_many { 0 } else { bytes });
        is_many.then_some(Work::Match(bytes))
    }
}

/// Ascending numbers.
type Ids<'c> = Cow<'c, [SeriesId]>;

/// A measurement that is filtered.
struct Selection<'m, F, E> {
    /// Gives the catalogue for one step.
    read: F,
    of: MeasurementId,
    may: Permission<'m, E>,
    matched: Matched,
}

/// The series of a measurement that a filter lets through, ascending by number. `read` gives the catalogue for one
/// step at a time; series that are made or dropped between two steps may be among them or not.
///
/// # Errors
/// That of `may`.
pub(crate) fn select<G: Deref<Target = Catalogue>, E>(
    read: impl Fn() -> G,
    (of, filter): (MeasurementId, &TagFilter),
    may: Permission<'_, E>,
) -> Result<Vec<SeriesId>, E> {
    let found = Selection { read, of, may, matched: Matched::default() }.within(None, filter)?;
    may(Work::List(found.len()))?;
    Ok(found)
}

impl<G: Deref<Target = Catalogue>, F: Fn() -> G, E> Selection<'_, F, E> {
    /// Takes a step in the catalogue, during which other threads make no names: so it is a short one.
    fn step<T>(&self, step: impl FnOnce(&Postings, &Catalogue) -> T) -> T {
        let catalogue = (self.read)();
        let dropped = Postings::default();
        let measurement = catalogue.measurements.get(self.of);
        step(measurement.map_or(&dropped, |it| &it.postings), &catalogue)
    }

    /// The series among `ids`, or among all, that a filter lets through.
    fn within(&self, ids: Option<&[SeriesId]>, filter: &TagFilter) -> Result<Vec<SeriesId>, E> {
        match filter {
            TagFilter::All => self.step(|postings, _| self.copy(ids.unwrap_or(postings.all()))),
            TagFilter::Equal(key, value) => self.compare(ids, key, value, true),
            TagFilter::NotEqual(key, value) => self.compare(ids, key, value, false),
            TagFilter::Match(key, regex) => self.search(ids, key, regex, true),
            TagFilter::NotMatch(key, regex) => self.search(ids, key, regex, false),
            TagFilter::And(..) => {
                let mut terms = terms(filter);
                terms.sort_by_cached_key(|term| self.bound(term));
                let mut left = None;
                for term in terms {
                    left = Some(self.within(left.as_deref().or(ids), term)?);
                }
                Ok(left.unwrap_or_default())
            }
            TagFilter::Or(..) => {
                let mut union = self.union();
                for term in terms(filter) {
                    union.add(self.within(ids, term)?.into())?;
                }
                Ok(union.whole().into_owned())
            }
        }
    }

    fn union<'c>(&self) -> Union<'c, '_, E> {
        let whole = self.step(|postings, _| postings.all().len());
        Union { whole, all: Cow::default(), is_sorted: true, may: self.may }
    }

    /// An upper bound of the number of series that a filter lets through.
    fn bound(&self, filter: &TagFilter) -> usize {
        match filter {
            TagFilter::Equal(key, value) if !value.is_empty() => {
                self.step(|postings, catalogue| list(postings, catalogue, key, value).len())
            }
            TagFilter::And(..) => {
                terms(filter).into_iter().map(|term| self.bound(term)).min().unwrap_or(0)
            }
            TagFilter::Or(..) => terms(filter)
                .into_iter()
                .fold(0, |sum: usize, term| sum.saturating_add(self.bound(term))),
            // Expressions after comparisons.
            TagFilter::Match(..) | TagFilter::NotMatch(..) => usize::MAX,
            _ => self.step(|postings, _| postings.all().len()),
        }
    }

    fn copy(&self, ids: &[SeriesId]) -> Result<Vec<SeriesId>, E> {
        (self.may)(Work::List(ids.len()))?;
        Ok(ids.to_vec())
    }

    fn compare(
        &self,
        ids: Option<&[SeriesId]>,
        key: &str,
        value: &str,
        is_equal: bool,
    ) -> Result<Vec<SeriesId>, E> {
        if value.is_empty() {
            return self.having(ids, key, !is_equal, |_| true);
        }
        self.step(|postings, catalogue| {
            let list = list(postings, catalogue, key, value).into();
            self.keep(ids, postings.all(), list, is_equal)
        })
    }

    fn search(
        &self,
        ids: Option<&[SeriesId]>,
        key: &str,
        regex: &Regex,
        is_found: bool,
    ) -> Result<Vec<SeriesId>, E> {
        if let Some(ids) = ids
            && (ids.len() <= FEW || ids.len() < self.values(key))
        {
            (self.may)(Work::List(ids.len()))?;
            let mut passed = Vec::new();
            for ids in ids.chunks(COPIED) {
                let all: Vec<Arc<Series>> = self.step(|_, catalogue| {
                    ids.iter().filter_map(|id| catalogue.series(*id)).cloned().collect()
                });
                for series in all {
                    let value = series.tag(key);
                    self.ask(value)?;
                    if regex.is_match(value) == is_found {
                        passed.push(series.id);
                    }
                }
            }
            return Ok(passed);
        }
        // Series without the tag go with those whose values are not listed.
        let has_absent = regex.is_match("") == is_found;
        let lists = |text: &str| (regex.is_match(text) == is_found) != has_absent;
        self.having(ids, key, !has_absent, lists)
    }

    /// The series among `ids`, or among all, that have one of the chosen values, or that have none of them.
    fn having(
        &self,
        ids: Option<&[SeriesId]>,
        key: &str,
        is_in: bool,
        is_chosen: impl Fn(&str) -> bool,
    ) -> Result<Vec<SeriesId>, E> {
        // Before the values: a series that is made in between could be here and not with its value.
        let all = match ids {
            None if !is_in => self.within(None, &TagFilter::All)?,
            _ => Vec::new(),
        };
        let listed = self.chosen(key, is_chosen)?;
        self.keep(ids, &all, listed.into(), is_in)
    }

    /// The number of values of a tag.
    fn values(&self, key: &str) -> usize {
        self.step(|postings, _| postings.values(key).map_or(0, Values::len))
    }

    /// The series of the chosen values. Expressions may take long, so they are evaluated on a copy of the values. The
    /// series of a value are listed later: a value keeps its series, and those that come meanwhile pass as well.
    fn chosen(&self, key: &str, is_chosen: impl Fn(&str) -> bool) -> Result<Vec<SeriesId>, E> {
        (self.may)(Work::Look(self.values(key)))?;
        let texts = self.step(|postings, _| postings.values(key).map(Values::texts));
        let mut union = self.union();
        for text in &texts.unwrap_or_default() {
            self.ask(text)?;
            if is_chosen(text) {
                self.step(|postings, catalogue| {
                    union.add_copy(list(postings, catalogue, key, text))
                })?;
            }
        }
        Ok(union.whole().into_owned())
    }

    /// Asks now and then, before a text is looked at, whether the search may go on.
    fn ask(&self, text: &str) -> Result<(), E> {
        self.matched.add(text).map_or(Ok(()), self.may)
    }

    /// The series among `ids`, or among all, that are in a list, or are not.
    fn keep(
        &self,
        ids: Option<&[SeriesId]>,
        all: &[SeriesId],
        list: Ids<'_>,
        is_in: bool,
    ) -> Result<Vec<SeriesId>, E> {
        match (ids, list) {
            (None, Cow::Borrowed(list)) if is_in => self.copy(list),
            (None, Cow::Owned(list)) if is_in => Ok(list),
            (Some(ids), list) if is_in => {
                (self.may)(Work::List(ids.len().min(list.len())))?;
                Ok(intersect(ids, &list))
            }
            (ids, list) => {
                let from = ids.unwrap_or(all);
                (self.may)(Work::List(from.len()))?;
                Ok(subtract(from, &list))
            }
        }
    }
}

/// The series of a value of a tag.
fn list<'c>(
    postings: &'c Postings,
    catalogue: &Catalogue,
    key: &str,
    value: &str,
) -> &'c [SeriesId] {
    postings.values(key).map_or(&[], |values| values.ids(&catalogue.hasher, value))
}

/// The series that are in any of some lists.
struct Union<'c, 'm, E> {
    /// The number of all series of the measurement.
    whole: usize,
    all: Ids<'c>,
    /// True if `all` ascends and has no series twice.
    is_sorted: bool,
    may: Permission<'m, E>,
}

impl<'c, E> Union<'c, '_, E> {
    /// Adds a list.
    fn add(&mut self, list: Ids<'c>) -> Result<(), E> {
        if self.all.is_empty() {
            self.all = list;
            return Ok(());
        }
        self.extend(&list)
    }

    /// Adds a list that is borrowed for the present step only.
    fn add_copy(&mut self, list: &[SeriesId]) -> Result<(), E> {
        if self.all.is_empty() {
            (self.may)(Work::List(list.len()))?;
            self.all = list.to_vec().into();
            return Ok(());
        }
        self.extend(list)
    }

    fn extend(&mut self, list: &[SeriesId]) -> Result<(), E> {
        if list.is_empty() {
            return Ok(());
        }
        let len = self.all.len();
        let room = match &self.all {
            Cow::Borrowed(_) => 0,
            Cow::Owned(all) => all.capacity(),
        };
        if len + list.len() > room {
            let room = (2 * len).max(len + list.len());
            (self.may)(Work::List(room))?;
            self.all.to_mut().reserve_exact(room - len);
        }
        self.all.to_mut().extend_from_slice(list);
        self.is_sorted = false;
        if self.all.len() > 2 * self.whole {
            self.sort();
        }
        Ok(())
    }

    fn sort(&mut self) {
        if !self.is_sorted {
            let all = self.all.to_mut();
            // The stable sort merges the lists, which ascend already.
            all.sort();
            all.dedup();
            self.is_sorted = true;
        }
    }

    fn whole(mut self) -> Ids<'c> {
        self.sort();
        self.all
    }
}

/// The operands of a chain of one operator, in their order.
fn terms(filter: &TagFilter) -> Vec<&TagFilter> {
    let is_and = matches!(filter, TagFilter::And(..));
    let (mut open, mut terms) = (vec![filter], Vec::new());
    while let Some(term) = open.pop() {
        match term {
            TagFilter::And(left, right) if is_and => open.extend([&**right, &**left]),
            TagFilter::Or(left, right) if !is_and => open.extend([&**right, &**left]),
            _ => terms.push(term),
        }
    }
    terms
}

/// From this ratio of lengths on the longer list is searched instead of scanned.
const SEARCH_RATIO: usize = 16;

/// The series that are in both lists.
fn intersect(left: &[SeriesId], right: &[SeriesId]) -> Vec<SeriesId> {
    let (short, long) = if left.len() <= right.len() { (left, right) } else { (right, left) };
    if short.len() * SEARCH_RATIO < long.len() {
        return short.iter().copied().filter(|id| long.binary_search(id).is_ok()).collect();
    }
    let mut long = long.iter().peekable();
    let is_in = |id: &SeriesId| is_next(&mut long, *id);
    short.iter().copied().filter(is_in).collect()
}

/// The series of the first list that are not in the second.
fn subtract(from: &[SeriesId], list: &[SeriesId]) -> Vec<SeriesId> {
    if from.len() * SEARCH_RATIO < list.len() {
        return from.iter().copied().filter(|id| list.binary_search(id).is_err()).collect();
    }
    let mut list = list.iter().peekable();
    from.iter().copied().filter(|id| !is_next(&mut list, *id)).collect()
}

/// Advances in an ascending list to a number; true if the list has it.
fn is_next(list: &mut std::iter::Peekable<std::slice::Iter<'_, SeriesId>>, id: SeriesId) -> bool {
    while let Some(next) = list.peek() {
        match (**next).cmp(&id) {
            Ordering::Less => _ = list.next(),
            Ordering::Equal => return true,
            Ordering::Greater => return false,
        }
    }
    false
}
