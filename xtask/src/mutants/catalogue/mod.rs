//! The mistakes, and the tests that must detect each.

mod bptree;
mod mkvs;
mod mvcc;
mod pmem;
mod record;
mod replica;
mod scmkv;
mod server;
mod tio;
mod tsdb;

/// Tests that are run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Suite {
    pub(super) package: &'static str,
    /// A file of `tests`, or [`Suite::UNIT`].
    pub(super) test: &'static str,
    /// Parts of the names of the tests; nothing for all of them.
    pub(super) filters: &'static [&'static str],
}

impl Suite {
    /// The tests in the crate itself.
    pub(super) const UNIT: &str = crate::programs::UNIT;

    const fn of(
        package: &'static str,
        test: &'static str,
        filters: &'static [&'static str],
    ) -> Self {
        Self { package, test, filters }
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        let Self { package, test, filters } = self;
        format!("{package} {test} {}", filters.join(" ")).trim_end().to_owned()
    }
}

/// A mistake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mutant {
    /// As in the source.
    pub(crate) name: &'static str,
    pub(super) what: &'static str,
    /// The tests that must fail.
    pub(super) suite: Suite,
    /// It may let the suite hang.
    pub(super) hangs: bool,
    /// It is one of the handful.
    pub(super) is_quick: bool,
}

impl Mutant {
    const fn new(name: &'static str, what: &'static str, suite: Suite) -> Self {
        Self { name, what, suite, hangs: false, is_quick: false }
    }

    const fn hangs(self) -> Self {
        Self { hangs: true, ..self }
    }

    const fn quick(self) -> Self {
        Self { is_quick: true, ..self }
    }
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Mutant> {
    [
        pmem::MUTANTS,
        record::MUTANTS,
        scmkv::MUTANTS,
        tio::MUTANTS,
        tsdb::MUTANTS,
        bptree::MUTANTS,
        mkvs::MUTANTS,
        mvcc::MUTANTS,
        replica::MUTANTS,
        server::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own_that_begins_with_its_crate() {
        let mut names: Vec<&str> = all().map(|mutant| mutant.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let crates = [
            "pmem.", "record.", "scmkv.", "bptree.", "mkvs.", "mvcc.", "replica.", "server.",
            "tio.", "tsdb.",
        ];
        assert!(names.iter().all(|name| crates.iter().any(|it| name.starts_with(it))));
    }
}
