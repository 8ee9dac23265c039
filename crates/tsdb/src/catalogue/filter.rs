//! Selects the series of a measurement that a filter lets through.
//!
//! A filter is evaluated on postings, from the narrowest term to the widest, each within the result of the one
//! before. A tag that a series does not have counts as empty: if a condition holds for the empty text, it holds for
//! all series but those with a value for which it does not. An expression is evaluated once for each value, or once
//! for each remaining series, if these are fewer.
//!
//! Before the values of a tag are looked at, and before series are listed, the caller decides whether that may be
//! ([`Work`]). Of the lists of many terms no more is held at a time than some times all series.
//!
//! A chain of equal operators, however long, takes no stack. Alternating operators do; the maker of the filter
//! limits them.

use super::postings::{Postings, Values};
use super::series::Series;
use super::{Hasher, SeriesId};
use regex::Regex;
use std::borrow::Cow;
use std::cmp::Ordering;

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
    /// It looks at so many values of a tag, or series.
    Look(usize),
    /// It makes a list of so many series.
    List(usize),
}

/// Decides about the next step of a selection.
pub type Permission<'m, E> = &'m dyn Fn(Work) -> Result<(), E>;

/// Values that are looked at between two questions.
const LOOKS: usize = 64;

/// Ascending numbers.
type Ids<'c> = Cow<'c, [SeriesId]>;

/// A measurement that is filtered.
pub(super) struct Selection<'c, F, E> {
    pub(super) postings: &'c Postings,
    pub(super) hasher: &'c Hasher,
    /// Finds a series by its number.
    pub(super) series: F,
    pub(super) may: Permission<'c, E>,
}

impl<'c, F: Fn(SeriesId) -> Option<&'c Series>, E> Selection<'c, F, E> {
    /// The series that a filter lets through, ascending by number.
    ///
    /// # Errors
    /// That of `may`.
    pub(super) fn of(&self, filter: &TagFilter) -> Result<Ids<'c>, E> {
        self.within(None, filter)
    }

    /// The series among `ids`, or among all, that a filter lets through.
    fn within(&self, ids: Option<&[SeriesId]>, filter: &TagFilter) -> Result<Ids<'c>, E> {
        match filter {
            TagFilter::All => self.or_all(ids),
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
                    union.add(self.within(ids, term)?)?;
                }
                Ok(union.whole())
            }
        }
    }

    fn union(&self) -> Union<'c, E> {
        let whole = self.postings.all().len();
        Union { whole, all: Cow::default(), is_sorted: true, may: self.may }
    }

    /// An upper bound of the number of series that a filter lets through.
    fn bound(&self, filter: &TagFilter) -> usize {
        match filter {
            TagFilter::Equal(key, value) if !value.is_empty() => self.list(key, value).len(),
            TagFilter::And(..) => {
                terms(filter).into_iter().map(|term| self.bound(term)).min().unwrap_or(0)
            }
            TagFilter::Or(..) => terms(filter)
                .into_iter()
                .fold(0, |sum: usize, term| sum.saturating_add(self.bound(term))),
            // Expressions after comparisons.
            TagFilter::Match(..) | TagFilter::NotMatch(..) => usize::MAX,
            _ => self.postings.all().len(),
        }
    }

    fn or_all(&self, ids: Option<&[SeriesId]>) -> Result<Ids<'c>, E> {
        let Some(ids) = ids else { return Ok(Cow::Borrowed(self.postings.all())) };
        (self.may)(Work::List(ids.len()))?;
        Ok(ids.to_vec().into())
    }

    fn list(&self, key: &str, value: &str) -> &'c [SeriesId] {
        self.postings.values(key).map_or(&[], |values| values.ids(self.hasher, value))
    }

    fn compare(
        &self,
        ids: Option<&[SeriesId]>,
        key: &str,
        value: &str,
        is_equal: bool,
    ) -> Result<Ids<'c>, E> {
        if value.is_empty() {
            let tagged = self.chosen(self.postings.values(key), |_| true)?;
            self.keep(ids, tagged, !is_equal)
        } else {
            self.keep(ids, Cow::Borrowed(self.list(key, value)), is_equal)
        }
    }

    fn search(
        &self,
        ids: Option<&[SeriesId]>,
        key: &str,
        regex: &Regex,
        is_found: bool,
    ) -> Result<Ids<'c>, E> {
        let values = self.postings.values(key);
        if let Some(ids) = ids
            && ids.len() < values.map_or(0, Values::len)
        {
            (self.may)(Work::List(ids.len()))?;
            let passes = |id: &SeriesId| {
                (self.series)(*id).is_some_and(|it| regex.is_match(it.tag(key)) == is_found)
            };
            let mut passed = Vec::new();
            for (at, id) in ids.iter().enumerate() {
                self.look(at)?;
                if passes(id) {
                    passed.push(*id);
                }
            }
            return Ok(passed.into());
        }
        // Series without the tag go with those whose values are not listed.
        let has_absent = regex.is_match("") == is_found;
        let lists = |text: &str| (regex.is_match(text) == is_found) != has_absent;
        let listed = self.chosen(values, lists)?;
        self.keep(ids, listed, !has_absent)
    }

    /// The series of the chosen values.
    fn chosen(
        &self,
        values: Option<&'c Values>,
        is_chosen: impl Fn(&str) -> bool,
    ) -> Result<Ids<'c>, E> {
        let Some(values) = values else { return Ok(Cow::default()) };
        (self.may)(Work::Look(values.len()))?;
        let mut union = self.union();
        for (at, (text, ids)) in values.iter().enumerate() {
            self.look(at)?;
            if is_chosen(text) {
                union.add(Cow::Borrowed(ids))?;
            }
        }
        Ok(union.whole())
    }

    /// Asks again, after some values, whether the search may go on: an expression may take long.
    fn look(&self, at: usize) -> Result<(), E> {
        if at % LOOKS == LOOKS - 1 { (self.may)(Work::Look(0)) } else { Ok(()) }
    }

    /// The series among `ids`, or among all, that are in a list, or are not.
    fn keep(&self, ids: Option<&[SeriesId]>, list: Ids<'c>, is_in: bool) -> Result<Ids<'c>, E> {
        match ids {
            None if is_in => Ok(list),
            Some(ids) if is_in => {
                (self.may)(Work::List(ids.len().min(list.len())))?;
                Ok(intersect(ids, &list).into())
            }
            _ if list.is_empty() => self.or_all(ids),
            _ => {
                let from = ids.unwrap_or(self.postings.all());
                (self.may)(Work::List(from.len()))?;
                Ok(subtract(from, &list).into())
            }
        }
    }
}

/// The series that are in any of some lists.
struct Union<'c, E> {
    /// The number of all series of the measurement.
    whole: usize,
    all: Ids<'c>,
    /// True if `all` ascends and has no series twice.
    is_sorted: bool,
    may: Permission<'c, E>,
}

impl<'c, E> Union<'c, E> {
    /// Adds a list.
    fn add(&mut self, list: Ids<'c>) -> Result<(), E> {
        if list.is_empty() {
            return Ok(());
        }
        if self.all.is_empty() {
            self.all = list;
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
        self.all.to_mut().extend_from_slice(&list);
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
