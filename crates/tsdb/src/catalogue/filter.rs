//! Selects the series of a measurement that a filter lets through.
//!
//! A filter is evaluated on postings, from the narrowest term to the widest, each within the result of the one
//! before. A tag that a series does not have counts as empty: if a condition holds for the empty text, it holds for
//! all series but those with a value for which it does not. An expression is evaluated once for each value, or once
//! for each remaining series, if these are fewer.
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

/// Ascending numbers.
type Ids<'c> = Cow<'c, [SeriesId]>;

/// A measurement that is filtered.
pub(super) struct Selection<'c, F> {
    pub(super) postings: &'c Postings,
    pub(super) hasher: &'c Hasher,
    /// Finds a series by its number.
    pub(super) series: F,
}

impl<'c, F: Fn(SeriesId) -> Option<&'c Series>> Selection<'c, F> {
    /// The series that a filter lets through, ascending by number.
    pub(super) fn of(&self, filter: &TagFilter) -> Ids<'c> {
        self.within(None, filter)
    }

    /// The series among `ids`, or among all, that a filter lets through.
    fn within(&self, ids: Option<&[SeriesId]>, filter: &TagFilter) -> Ids<'c> {
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
                    left = Some(self.within(left.as_deref().or(ids), term));
                }
                left.unwrap_or_default()
            }
            TagFilter::Or(..) => {
                let terms = terms(filter);
                unite(terms.into_iter().map(|term| self.within(ids, term)))
            }
        }
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

    fn or_all(&self, ids: Option<&[SeriesId]>) -> Ids<'c> {
        ids.map_or(Cow::Borrowed(self.postings.all()), |ids| ids.to_vec().into())
    }

    fn list(&self, key: &str, value: &str) -> &'c [SeriesId] {
        self.postings.values(key).map_or(&[], |values| values.ids(self.hasher, value))
    }

    fn compare(&self, ids: Option<&[SeriesId]>, key: &str, value: &str, is_equal: bool) -> Ids<'c> {
        if value.is_empty() {
            let tagged =
                self.postings.values(key).map_or(Cow::default(), |it| chosen(it, |_| true));
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
    ) -> Ids<'c> {
        let values = self.postings.values(key);
        if let Some(ids) = ids
            && ids.len() < values.map_or(0, Values::len)
        {
            let passes = |id: &SeriesId| {
                (self.series)(*id).is_some_and(|it| regex.is_match(it.tag(key)) == is_found)
            };
            return ids.iter().copied().filter(passes).collect::<Vec<_>>().into();
        }
        // Series without the tag go with those whose values are not listed.
        let has_absent = regex.is_match("") == is_found;
        let lists = |text: &str| (regex.is_match(text) == is_found) != has_absent;
        let listed = values.map_or(Cow::default(), |values| chosen(values, lists));
        self.keep(ids, listed, !has_absent)
    }

    /// The series among `ids`, or among all, that are in a list, or are not.
    fn keep(&self, ids: Option<&[SeriesId]>, list: Ids<'c>, is_in: bool) -> Ids<'c> {
        match ids {
            None if is_in => list,
            Some(ids) if is_in => intersect(ids, &list).into(),
            _ if list.is_empty() => self.or_all(ids),
            _ => subtract(ids.unwrap_or(self.postings.all()), &list).into(),
        }
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

/// The series of the chosen values.
fn chosen<'c>(values: &'c Values, is_chosen: impl Fn(&str) -> bool) -> Ids<'c> {
    unite(values.iter().filter(|(text, _)| is_chosen(text)).map(|(_, ids)| Cow::Borrowed(ids)))
}

/// The series that are in any list.
fn unite<'c>(lists: impl Iterator<Item = Ids<'c>>) -> Ids<'c> {
    let mut lists = lists.filter(|list| !list.is_empty());
    let Some(first) = lists.next() else { return Cow::default() };
    let Some(second) = lists.next() else { return first };
    let mut all = first.into_owned();
    all.extend_from_slice(&second);
    lists.for_each(|list| all.extend_from_slice(&list));
    // The stable sort merges the lists, which ascend already.
    all.sort();
    all.dedup();
    all.into()
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
