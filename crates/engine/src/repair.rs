//! The findings of the repair of a damaged pool.

/// What became of a key in a damaged part of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// Its value is lost; the key is absent now.
    Lost,
    /// It was deleted, and stays so: nothing is lost.
    Deleted,
    /// Its newest readable record, if any, is kept; it may be out of date.
    Uncertain,
}

impl Fate {
    /// The fate in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Lost => "lost; it is absent now",
            Self::Deleted => "deleted before, and still so; nothing is lost",
            Self::Uncertain => "kept as far as it can be read; it may be out of date",
        }
    }
}

/// A damaged part of the pool, and the keys that it affects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The page.
    pub page: u32,
    /// Where the damage begins in the pool.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// A description.
    pub what: String,
    /// The affected keys, as far as they can be named.
    pub keys: Vec<(Vec<u8>, Fate)>,
}

/// The result of a repair.
#[derive(Debug, Default)]
pub struct Repair {
    /// All damage; if there is none, nothing was changed.
    pub findings: Vec<Finding>,
}

/// Receives each finding, before anything is given up because of it.
pub type Tell<'t> = &'t mut dyn FnMut(&Finding);

impl Repair {
    /// Reports a finding, and keeps it.
    pub fn add(&mut self, tell: Tell<'_>, finding: Finding) {
        tell(&finding);
        self.findings.push(finding);
    }

    /// The same, for damage whose keys are unknown.
    pub fn note(&mut self, tell: Tell<'_>, page: u32, (offset, len): (u64, u64), what: String) {
        self.add(tell, Finding { page, offset, len, what, keys: Vec::new() });
    }
}
