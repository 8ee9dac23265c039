//! What the repair of a damaged pool tells.

/// What became of a key that was in something damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// Its value is lost; the key is absent now.
    Lost,
    /// It was deleted, and stays so: nothing is lost.
    Deleted,
    /// Its newest record that can be read is kept, if there is one, and may be out of date.
    Uncertain,
}

impl Fate {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Lost => "lost; it is absent now",
            Self::Deleted => "deleted before, and still so; nothing is lost",
            Self::Uncertain => "kept as far as it can be read; it may be out of date",
        }
    }
}

/// Something damaged, and what was lost by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Of the page.
    pub page: u32,
    /// Where the damage begins in the pool.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// What it is.
    pub what: String,
    /// The keys that it is about, as far as they can be named.
    pub keys: Vec<(Vec<u8>, Fate)>,
}

/// What a repair has found.
#[derive(Debug, Default)]
pub struct Repair {
    /// All that was damaged; if there is none nothing was changed.
    pub findings: Vec<Finding>,
}

/// Where findings go, one by one, before anything is changed because of them.
pub type Tell<'t> = &'t mut dyn FnMut(&Finding);

impl Repair {
    /// Tells of a finding, and keeps it.
    pub fn add(&mut self, tell: Tell<'_>, finding: Finding) {
        tell(&finding);
        self.findings.push(finding);
    }

    /// The same, of damage whose keys nobody knows.
    pub fn note(&mut self, tell: Tell<'_>, page: u32, (offset, len): (u64, u64), what: String) {
        self.add(tell, Finding { page, offset, len, what, keys: Vec::new() });
    }
}
