//! The kinds of names in the inputs of a SELECT.
//!
//! There may be as many inputs as measurements, and thousands of names: so each name is looked up once, and each
//! input that is looked at counts against the time of the query. When that is over all names are unknown, and
//! [`Kinds::end`] has the error.

use super::ast::Cast;
use super::budget::{Budget, Fallible};
use super::inputs::{Input, Inputs};
use crate::value::FieldType;
use hashbrown::HashMap;
use std::cell::RefCell;

/// The rank of a kind: a name that is of several kinds counts as the highest one.
pub(super) fn rank(kind: Cast) -> u8 {
    match kind {
        Cast::Type(FieldType::Float) => 7,
        Cast::Type(FieldType::Integer) => 6,
        Cast::Type(FieldType::Unsigned) => 5,
        Cast::Type(FieldType::String) => 4,
        Cast::Type(FieldType::Boolean) => 3,
        Cast::Tag => 2,
        Cast::Field => 1,
        Cast::None => 0,
    }
}

/// See the module.
pub(super) struct Kinds<'a, 's> {
    read: &'a [Input],
    inputs: &'a Inputs<'s>,
    budget: &'a Budget<'a>,
    /// The kinds of names that were looked up, and whether they are tags.
    kinds: RefCell<HashMap<String, Cast>>,
    tags: RefCell<HashMap<String, bool>>,
    error: RefCell<Option<String>>,
}

impl<'a, 's> Kinds<'a, 's> {
    /// No name is looked up yet.
    pub(super) fn new(read: &'a [Input], inputs: &'a Inputs<'s>, budget: &'a Budget<'a>) -> Self {
        let (kinds, tags, error) = Default::default();
        Self { read, inputs, budget, kinds, tags, error }
    }

    /// The kind of a reference.
    pub(super) fn of(&self, name: &str, cast: Cast) -> Cast {
        if matches!(cast, Cast::Type(_) | Cast::Tag) {
            return cast;
        }
        let found = known(&self.kinds, name, || {
            let all = self.read.iter().take_while(|_| self.goes_on());
            let kinds = all.map(|it| self.kind_in(it, name));
            kinds.max_by_key(|it| rank(*it)).unwrap_or(Cast::None)
        });
        match found {
            Cast::Tag if cast == Cast::Field => Cast::Field,
            kind => kind,
        }
    }

    /// True if a series of an input has such a tag.
    pub(super) fn is_tag(&self, name: &str) -> bool {
        known(&self.tags, name, || {
            let mut all = self.read.iter().take_while(|_| self.goes_on());
            all.any(|input| match input {
                Input::Stored(it) => self
                    .inputs
                    .reader(it.reader)
                    .is_some_and(|reader| reader.tag_keys(&it.name).iter().any(|it| **it == *name)),
                Input::Inner(plan) => plan.own_dimensions.contains(name),
            })
        })
    }

    /// Fails if the time was over while a name was looked up.
    pub(super) fn end(&self) -> Fallible<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    fn goes_on(&self) -> bool {
        if let Err(error) = self.budget.tick() {
            self.error.replace(Some(error));
        }
        self.error.borrow().is_none()
    }

    fn kind_in(&self, input: &Input, name: &str) -> Cast {
        match input {
            Input::Stored(it) => {
                it.fields.get(name).map_or(Cast::Tag, |field| Cast::Type(field.field_type))
            }
            Input::Inner(plan) => {
                let columns = plan.columns.bases.iter().zip(&plan.columns.kinds);
                let columns = columns.take_while(|_| self.goes_on());
                let found = columns.filter(|(base, _)| *base == name).map(|(_, kind)| *kind);
                match found.max_by_key(|it| rank(*it)) {
                    Some(kind) if kind != Cast::None => kind,
                    _ if plan.own_dimensions.contains(name) => Cast::Tag,
                    _ => Cast::None,
                }
            }
        }
    }
}

/// The answer for a name, which is found once.
fn known<T: Copy>(answers: &RefCell<HashMap<String, T>>, name: &str, find: impl Fn() -> T) -> T {
    if let Some(known) = answers.borrow().get(name) {
        return *known;
    }
    let found = find();
    answers.borrow_mut().insert(name.to_owned(), found);
    found
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::super::inputs::Stored;
    use super::*;
    use crate::catalogue::Field;
    use crate::store::{Options, Store};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn a_name_is_looked_up_once_and_within_the_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { sets: 1, size: 4 << 20, ..Options::default() };
        let store = Store::open(&directory.path().join("ts"), &options).expect("a store");
        let inputs = Inputs::new(&store, None, None);
        let read = |at: u32| {
            let name: Arc<str> = format!("f{at}").into();
            let field = Field { id: at, name: Arc::clone(&name), field_type: FieldType::Integer };
            let fields = BTreeMap::from([(name, field)]);
            Input::Stored(Stored { reader: 0, name: "m".into(), fields })
        };
        let read: Vec<Input> = (0..10_000).map(read).collect();
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let limits = Limits {
            rows_max: 0,
            buckets_max: 0,
            bytes_max: 0,
            deadline: Instant::now() + Duration::from_secs(1000),
            cancel: Some(Arc::clone(&is_cancelled)),
            threads_max: 1,
        };
        let budget = Budget::new(&limits);
        let kinds = Kinds::new(&read, &inputs, &budget);
        let of = |name: &str| kinds.of(name, Cast::None);
        let integer = Cast::Type(FieldType::Integer);
        assert_eq!((of("f9999"), of("x")), (integer, Cast::Tag));
        assert_eq!(kinds.end(), Ok(()));
        is_cancelled.store(true, Ordering::Relaxed);
        assert_eq!((of("f9999"), kinds.of("x", Cast::Field)), (integer, Cast::Field));
        assert_eq!(kinds.end(), Ok(()));
        assert_ne!(of("f9998"), integer);
        assert_eq!(kinds.end(), Err("query interrupted".to_owned()));
    }
}
