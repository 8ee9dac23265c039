//! Opening a tree: the newest commit that is whole is looked for from the newest page backwards, and the tree is
//! walked from its root, to count what lives.
//!
//! ```text
//!   births   7          8          9          10
//!   pages    [… C]      [r n n C]  [r n ✂     [r n C ✂       10 says: proven up to the end of 8, one page since
//!                              └─ counts                     ─▶ 9 is torn, so its C does not count: that in 8 does
//! ```
//!
//! No more pages are read than that takes. What is behind the commit that counts is void, and damage if
//! something there says that it was durable ([`Header::follows`](coreplane_record::Header::follows)).
//!
//! A life of the store begins in a page of its own, with a commit that says that everything before is durable.
//! So what a cut has left behind a commit is never read again: the page may stay as it is, as long as something
//! lives in it.

use super::Tree;
use super::look::Look;
use super::node::Sealed;
use super::seal::Commit;
use crate::map::Opening;
use crate::volume::Volume;
use crate::volume::page::Found;
use crate::volume::pages::Pages;
use crate::volume::stream::{Position, Stream};
use crate::volume::table::Life;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{Recovery, mutant};
use coreplane_record::{Kind, View, sync_failed};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Nodes between two words on how far it is.
const PACE: u64 = 1 << 14;

/// What is in the pages.
#[derive(Default)]
struct Contents {
    /// Pages of the stream in the order of their births.
    stream: Vec<(u64, u32)>,
    /// Pages of large values.
    chains: BTreeMap<u32, u64>,
    free: Vec<u32>,
}

/// The commit that counts.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    /// The index of its page.
    index: usize,
    offset: u64,
    len: u32,
    end: Position,
    version: u64,
    commit: Commit,
}

/// Pages as far as they were read.
struct Reading<'v> {
    volume: &'v Volume,
    recovery: &'v Recovery,
    guard: &'v Guard,
    pages: &'v [(u64, u32)],
    found: BTreeMap<usize, Found>,
}

/// Opens the tree that a pool holds.
pub(super) fn recover(volume: &Arc<Volume>, opening: &Opening<'_>) -> Result<Tree> {
    let in_use = || Error::Unusable("the pool was opened before".to_owned());
    let recovery = volume.space.recovery().ok_or_else(in_use)?;
    let mut contents = Contents::default();
    for page in volume.table.data_pages(0) {
        match volume.table.life(page)? {
            None => contents.free.push(page),
            Some(Life { birth, .. }) if birth == 0 || birth >= opening.first_birth => {
                let what = format!("page {page} is of a life that there never was");
                return Err(Error::Corrupt { offset: volume.space.start_of(page), what });
            }
            Some(Life { birth, is_chain: true }) => {
                let _previous = contents.chains.insert(page, birth);
            }
            Some(Life { birth, is_chain: false }) => contents.stream.push((birth, page)),
        }
    }
    contents.stream.sort_unstable();
    for page in contents.stream.iter().map(|(_, page)| page).chain(contents.chains.keys()) {
        if !recovery.adopt(*page, volume.space.page_size()) {
            return Err(Error::Unusable(format!("page {page} is in use")));
        }
    }
    let (tree, chosen) = {
        let guard = recovery.pin();
        let found = BTreeMap::new();
        let pages = &contents.stream;
        let mut reading = Reading { volume, recovery: &recovery, guard: &guard, pages, found };
        let chosen = reading.choose(opening)?;
        let tree = into_tree(volume, &guard, chosen, &contents, opening)?;
        (opening.begin)()?;
        reading.make_durable(chosen)?;
        (tree, chosen)
    };
    // From here on everybody may read, and pages can be given back.
    drop(recovery);
    finish(tree, &contents.stream, chosen)
}

fn damaged(offset: u64) -> Error {
    let what = "no whole commit, and what is behind it says that there was one".to_owned();
    Error::Corrupt { offset, what }
}

impl Reading<'_> {
    fn found(&mut self, index: usize) -> &Found {
        let (birth, page) = self.pages[index];
        let look = || self.volume.look_at_page(self.recovery, page, birth);
        self.found.entry(index).or_insert_with(look)
    }

    /// The newest commit that is whole; none if there was none yet.
    fn choose(&mut self, opening: &Opening<'_>) -> Result<Option<Chosen>> {
        // What the newest commit says was durable, whole or not.
        let mut proven: Option<(Position, u64)> = None;
        let mut chosen = None;
        for index in (0..self.pages.len()).rev() {
            let records = self.found(index).records.clone();
            for offset in records.into_iter().rev() {
                let view = self.volume.view(self.guard, offset)?;
                let Some(commit) = Commit::of(&view) else { continue };
                let (proven, _) = *proven.get_or_insert((commit.proven, offset));
                let end = self.end_of(index, &view);
                if self.is_whole(index, &commit) {
                    let (len, version) = (view.len(), view.header.version);
                    chosen = Some(Chosen { index, offset, len, end, version, commit });
                } else if end <= proven {
                    return Err(damaged(offset));
                }
                if chosen.is_some() {
                    break;
                }
            }
            if chosen.is_some() {
                break;
            }
        }
        if let Some((proven, offset)) = proven
            && (chosen.is_none() && proven.birth > 0 || self.is_before(chosen, proven))
        {
            return Err(damaged(offset));
        }
        self.check_behind(chosen, opening)?;
        Ok(chosen)
    }

    /// True if the commit that counts is older than what is known to have been durable in the same life.
    fn is_before(&self, chosen: Option<Chosen>, proven: Position) -> bool {
        chosen.is_some_and(|it| it.end < proven && proven.within != u32::MAX)
    }

    fn end_of(&self, index: usize, view: &View<'_>) -> Position {
        let (birth, page) = self.pages[index];
        let within = (view.offset - self.volume.space.start_of(page)) as u32 + view.len();
        Position { birth, within }
    }

    /// True if all that a commit rests on is there. What is before it in its page is sound.
    fn is_whole(&mut self, index: usize, commit: &Commit) -> bool {
        let Position { birth, within } = commit.proven;
        let mut begun = 0;
        for at in (0..index).rev() {
            let (its, page) = self.pages[at];
            if its < birth {
                break;
            }
            let start = self.volume.space.start_of(page);
            let broken = self.found(at).broken.map(|at| (at - start) as u32);
            let is_torn = broken.is_some_and(|broken| its > birth || broken >= within);
            if is_torn && !mutant!("mvcc.tree.half_groups") {
                return false;
            }
            begun += u32::from(its > birth);
        }
        begun == commit.pages || mutant!("mvcc.tree.half_groups")
    }

    /// Nothing behind what counts says that there was more.
    fn check_behind(&mut self, chosen: Option<Chosen>, opening: &Opening<'_>) -> Result<()> {
        let (first, offset) = chosen.map_or((0, 0), |it| (it.index, it.offset));
        // What follows directly rests on nothing but what counts.
        let mut is_next = true;
        for index in first..self.pages.len() {
            let start = self.volume.space.start_of(self.pages[index].1);
            let (volume, guard) = (self.volume, self.guard);
            let found = self.found(index);
            let behind = |it: &&u64| index > first || chosen.is_none() || **it > offset;
            for offset in found.records.iter().filter(behind) {
                let follows = volume.view(guard, *offset)?.header.follows;
                if follows && !is_next || opening.was_closed {
                    return Err(damaged(*offset));
                }
                is_next = false;
            }
            if let Some(broken) = found.broken {
                if found.follows_behind || opening.was_closed {
                    return Err(damaged(broken));
                }
                is_next &= broken == start;
            }
        }
        Ok(())
    }

    /// A process that was killed may have left in the caches what was found here. Before a record says that it is
    /// durable, it is.
    fn make_durable(&mut self, chosen: Option<Chosen>) -> Result<()> {
        let Some(chosen) = chosen.filter(|_| !mutant!("mvcc.tree.heir")) else { return Ok(()) };
        let (space, size) = (&self.volume.space, u64::from(self.volume.space.page_size()));
        for (_, page) in self.pages[..=chosen.index]
            .iter()
            .rev()
            .take_while(|(birth, _)| *birth >= chosen.commit.proven.birth)
        {
            space.flush(space.start_of(*page), size);
            self.volume.table.flush_life(*page);
        }
        space.fence().map_err(sync_failed)
    }
}

/// The tree below the root that counts.
fn into_tree(
    volume: &Arc<Volume>,
    guard: &Guard,
    chosen: Option<Chosen>,
    contents: &Contents,
    opening: &Opening<'_>,
) -> Result<Tree> {
    let mut pages = Pages::new(&volume.space);
    pages.offer(contents.free.iter().copied());
    contents.stream.iter().for_each(|(birth, page)| pages.adopt(*page, *birth));
    let tree = Tree::new(Stream::new(volume, pages, opening.first_birth), opening.held);
    let mut named = Vec::new();
    let look = Look { volume, guard };
    let mut count = Count { tree, look, opening, nodes: 0, total: 0, named: &mut named };
    if let Some(Chosen { commit, offset, len, version, end, .. }) = chosen {
        count.total = commit.records;
        if commit.root != 0 {
            count.take_node(commit.root, None)?;
        }
        let tree = &mut count.tree;
        if tree.records != commit.records {
            let what = format!("a tree of {} records has {}", commit.records, tree.records);
            return Err(Error::Corrupt { offset: commit.root, what });
        }
        tree.root = (commit.root != 0).then_some(super::Link::Sealed(commit.root));
        (tree.version, tree.horizon) = (version, commit.horizon);
        tree.last.root = (commit.root != 0).then_some(commit.root);
        (tree.last.commit, tree.last.end) = (Some((offset, len)), end);
        tree.stream.pages.add_live(volume.space.page_of(offset), len);
    }
    let mut tree = count.tree;
    for page in named {
        let birth = contents.chains.get(&page).copied().unwrap_or_default();
        tree.stream.pages.adopt_apart(page, birth);
        tree.stream.adopt_chain(&[page]);
    }
    for (page, birth) in &contents.chains {
        if tree.stream.pages.birth(*page) == 0 {
            tree.stream.pages.adopt_apart(*page, *birth);
            tree.stream.drop_chain(&[*page]);
        }
    }
    Ok(tree)
}

/// Counting what lives.
struct Count<'c> {
    tree: Tree,
    look: Look<'c>,
    opening: &'c Opening<'c>,
    nodes: u64,
    total: u64,
    /// Pages of large values that are named.
    named: &'c mut Vec<u32>,
}

impl Count<'_> {
    fn take_node(&mut self, offset: u64, above: Option<u32>) -> Result<()> {
        let (volume, guard) = (self.look.volume, self.look.guard);
        let view = volume.view(guard, offset)?;
        volume.check(&view)?;
        let node = Sealed::of(view).filter(|it| above.is_none_or(|level| it.level + 1 == level));
        let what = || "no node of this level is where one should be".to_owned();
        let node = node.ok_or_else(|| Error::Corrupt { offset, what: what() })?;
        if self.nodes.is_multiple_of(PACE) {
            let (stage, done, total) = ("walking the tree", self.tree.records, self.total);
            (self.opening.progress)(Progress { stage, done: done.min(total), total });
        }
        self.nodes += 1;
        self.tree.height = self.tree.height.max(node.level + 1);
        self.tree.stream.pages.add_live(volume.space.page_of(offset), view.len());
        for at in 0..node.len() {
            match node.level {
                0 => self.take_record(node.key(at), node.offset(at))?,
                level => self.take_node(node.offset(at), Some(level))?,
            }
        }
        Ok(())
    }

    fn take_record(&mut self, key: &[u8], offset: u64) -> Result<()> {
        let (volume, guard) = (self.look.volume, self.look.guard);
        let view = volume.view(guard, offset)?;
        let tree = &mut self.tree;
        match view.header.kind {
            Kind::Put => tree.records += 1,
            Kind::Delete => tree.graves.dig(key, view.header.version, view.sequence()),
            _ => {
                let what = "no record of a key is where one should be".to_owned();
                return Err(Error::Corrupt { offset, what });
            }
        }
        tree.longest_key = tree.longest_key.max(key.len());
        tree.stream.pages.add_live(volume.space.page_of(offset), view.len());
        if view.header.large {
            let chain = volume.chain(guard, view.value(), false)?;
            self.named.extend(chain.into_iter().map(|(page, _)| page));
        }
        Ok(())
    }
}

/// Begins the new life with a commit, durable when it returns; pages of which nothing lives are free then.
fn finish(mut tree: Tree, stream: &[(u64, u32)], chosen: Option<Chosen>) -> Result<Tree> {
    let volume = Arc::clone(&tree.stream.volume);
    // Until then the commit that counts has to be found again, as it was found now.
    let is_needed = |birth: u64| {
        chosen.is_some_and(|it| (it.commit.proven.birth..=it.end.birth).contains(&birth))
    };
    let close = |tree: &mut Tree, needed: bool| {
        for (birth, page) in stream.iter().filter(|it| is_needed(it.0) == needed) {
            debug_assert_eq!(tree.stream.pages.birth(*page), *birth);
            // What is left of it behind its end, nobody knows: it counts as dead.
            tree.stream.pages.set_used(*page, volume.space.page_size());
            tree.stream.pages.close(*page);
        }
    };
    close(&mut tree, false);
    if tree.stream.pages.refresh_free() == 0 {
        tree.stream.settle()?;
        tree.stream.pages.refresh_free();
    }
    if !stream.is_empty() {
        tree.is_due = true;
        tree.seal_all()?;
    }
    tree.stream.settle()?;
    close(&mut tree, true);
    tree.stream.settle()?;
    Ok(tree)
}
