//! All entries of a store, with or without an order.

use super::Db;
use super::page::{Filler, Page};
use super::range::Range;
use coreplane_engine::{Error, Result};
use std::iter::FusedIterator;

/// Entries per call to a store without an order.
const AT_A_TIME: usize = 64;

/// All entries, from [`Db::iter`].
///
/// For a store that has its keys in order, everything stated at [`Range`] holds. For any other: an entry that exists
/// all the time is shown at least once, perhaps more often; one that is written or deleted meanwhile may be shown or
/// not. Some hundred entries are in memory. An error is the last item. A matrix of `scmkv` remembers 4,096 places:
/// with more iterations at once some begin again.
#[derive(Debug)]
#[must_use = "iterators are lazy and do nothing unless consumed"]
pub struct Iter(Kind);

#[derive(Debug)]
enum Kind {
    Ordered(Box<Range>),
    Unordered { db: Db, cursor: Option<u64>, page: Page, failed: Option<Error> },
}

impl Db {
    /// All entries, as `Result<(key, value)>`: in the order of their keys if the store has one, else in any order.
    /// Shown entries are durable; an error is an item.
    pub fn iter(&self) -> Iter {
        match self.between(Vec::new(), None) {
            Ok(range) => Iter(Kind::Ordered(Box::new(range))),
            Err(_) => {
                let (db, page) = (self.clone(), Page::new());
                Iter(Kind::Unordered { db, cursor: Some(0), page, failed: None })
            }
        }
    }
}

impl Iterator for Iter {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let (db, cursor, page, failed) = match &mut self.0 {
            Kind::Ordered(range) => return range.next(),
            Kind::Unordered { db, cursor, page, failed } => (db, cursor, page, failed),
        };
        while page.is_empty() {
            let Some(from) = *cursor else { return failed.take().map(Err) };
            let mut filler = Filler::new(page);
            let iterated = db.engine().iterate(from, AT_A_TIME, &mut |entry| {
                filler.add(&entry);
            });
            let settled = filler.settle(db);
            if settled.is_err() {
                // Entries that may not be durable must not be shown.
                page.clear();
            }
            match settled.and(iterated) {
                Ok(next) => *cursor = Some(next).filter(|next| *next != 0),
                Err(error) => (*cursor, *failed) = (None, Some(error)),
            }
        }
        page.pop_front().map(Ok)
    }
}

impl FusedIterator for Iter {}
