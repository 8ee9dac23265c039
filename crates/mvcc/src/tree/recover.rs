//! Opening a tree: the newest whole commit is searched for from the newest page backwards. Only the table of pages is
//! read besides; the other pages are adopted later ([`rest`](super::rest)), and live bytes are counted later
//! ([`count`](super::count)).
//!
//! ```text
//!   births   7          8          9          10
//!   pages    [… C]      [r n n C]  [r n ✂     [r n C ✂       10 says: proven up to the end of 8, one page since
//!                              └─ counts                     ─▶ 9 is torn, so its C does not count: that in 8 does
//! ```
//!
//! No more pages are read than that takes. Records behind the commit that counts are void; they are damage if one of
//! them states that records before it were durable ([`Header::follows`](coreplane_record::Header::follows)).
//!
//! A damaged record before the place that a commit states to be durable does not count against that commit, even in
//! its own page: it costs what it held. A log has every record checked, and is refused.
//!
//! A life of the store begins in a page of its own, with a commit which states that everything before it is durable.
//! So the remains of a power cut behind a commit are never read again: the page may stay as it is, as long as it has
//! live records.

use super::Tree;
use super::entries::find;
use super::rest::Left;
use super::seal::Commit;
use crate::map::Opening;
use crate::volume::Volume;
use crate::volume::page::Found;
use crate::volume::pages::Pages;
use crate::volume::stream::{Position, Stream};
use crate::volume::table::Life;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{mutant, processors};
use coreplane_record::{View, sync_failed};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pages in which the commit that counts is searched for first.
const NEWEST: usize = 1 << 10;
/// A table of so many pages is read by several threads.
const PARALLEL: u32 = 64;

/// Pages that were in use.
#[derive(Default)]
struct Contents {
    /// Pages of the stream, in the order of their births.
    stream: Vec<(u64, u32)>,
    /// Pages apart.
    apart: Vec<u32>,
    /// There are pages older than these.
    has_older: bool,
}

impl Contents {
    /// All pages; or the newest ones of the stream, at most `count`.
    fn of(volume: &Volume, opening: &Opening<'_>, count: Option<usize>) -> Result<Self> {
        let len = volume.table.len();
        let threads = processors::available().min(4) as u32;
        // In a simulated pool, the events must not depend on threads.
        let step = match volume.pool.path().is_some() && len >= PARALLEL {
            true => len.div_ceil(threads),
            false => len.max(1),
        };
        let first_birth = opening.first_birth;
        let part = |from: u32| {
            Self::of_part(volume, from..len.min(from.saturating_add(step)), first_birth, count)
        };
        let parts: Vec<Result<(Self, u64)>> = std::thread::scope(|threads| {
            let others = (step..len).step_by(step as usize);
            let others: Vec<_> = others.map(|from| threads.spawn(move || part(from))).collect();
            let first = part(0);
            let failed = || Err(Error::Unusable("a thread that reads the table".to_owned()));
            let others = others.into_iter().map(|it| it.join().unwrap_or_else(|_| failed()));
            std::iter::once(first).chain(others).collect()
        });
        let (mut all, mut least) = (Self::default(), 0);
        for part in parts {
            let (part, its_least) = part?;
            all.stream.extend(part.stream);
            all.apart.extend(part.apart);
            least = least.max(its_least);
        }
        // Of the births below this, one part or another has left out pages.
        all.has_older = least > 0;
        all.stream.retain(|it| it.0 >= least);
        if let Some(more) = count.and_then(|count| all.stream.len().checked_sub(count + 1)) {
            let _newest = all.stream.select_nth_unstable(more);
            all.stream.drain(..=more);
            all.has_older = true;
        }
        all.stream.sort_unstable();
        Ok(all)
    }

    /// The same for a part of the table; also returns the birth before which pages were left out.
    fn of_part(
        volume: &Volume,
        of: std::ops::Range<u32>,
        first_birth: u64,
        count: Option<usize>,
    ) -> Result<(Self, u64)> {
        let (mut stream, mut apart) = (Vec::new(), Vec::new());
        let (mut least, mut wrong) = (0, None);
        let most = count.map_or(usize::MAX, |count| 16 * count);
        // The newest pages mostly have the greatest numbers.
        volume.table.lives(of.rev(), |page, life| {
            let Some(Life { birth, is_apart }) = life else { return least };
            if birth == 0 || birth >= first_birth {
                wrong = wrong.or(Some(page));
            } else if is_apart {
                apart.extend(count.is_none().then_some(page));
            } else if birth >= least {
                stream.push((birth, page));
                if let Some(count) = count.filter(|_| stream.len() == most) {
                    let at = most - count;
                    least = stream.select_nth_unstable(at).1.0;
                    stream.drain(..at);
                }
            }
            least
        })?;
        if let Some(page) = wrong {
            let what = format!("page {page} is of a life that there never was");
            return Err(Error::Corrupt { offset: volume.space.start_of(page), what });
        }
        Ok((Self { stream, apart, has_older: least > 0 }, least))
    }
}

/// The commit that counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen {
    /// The index of its page.
    index: usize,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) end: Position,
    version: u64,
    pub(super) commit: Commit,
}

/// A reader of pages.
#[derive(Clone, Copy)]
struct Reader<'v> {
    volume: &'v Volume,
    guard: &'v Guard,
}

/// The newest pages, as far as they were read.
struct Reading<'v> {
    reader: Reader<'v>,
    /// In the order of their births.
    pages: &'v [(u64, u32)],
    /// Older pages are needed; older pages exist.
    is_short: bool,
    has_older: bool,
    found: BTreeMap<usize, Found<'v>>,
}

/// Opens the tree that a pool holds. Of a log all pages are examined, since pending records can be anywhere;
/// otherwise the [rest](super::rest) is deferred.
pub(super) fn recover(volume: &Arc<Volume>, opening: &Opening<'_>) -> Result<Tree> {
    let in_use = || Error::Unusable("the pool was opened before".to_owned());
    let recovery = volume.space.recovery().ok_or_else(in_use)?;
    let mut count = (!volume.is_log()).then_some(NEWEST);
    let (mut tree, left, entries) = loop {
        (opening.progress)(Progress { stage: "reading the table of pages", done: 0, total: 1 });
        let contents = Contents::of(volume, opening, count)?;
        for page in contents.stream.iter().map(|it| it.1).chain(contents.apart.iter().copied()) {
            let _is_new = recovery.adopt(page, volume.space.page_size());
        }
        let guard = recovery.pin();
        let reader = Reader { volume, guard: &guard };
        match reader.choose(&contents, opening)? {
            Choice::Made(left) => {
                let commit = left.chosen.map(|it| it.offset);
                let entries = find(volume, &guard, commit, &contents.stream)?;
                (opening.begin)()?;
                break (below(volume, left.chosen, opening), left, entries);
            }
            Choice::NeedsOlder => count = None,
        }
    };
    // From here on all threads may read, and pages can be given back.
    drop(recovery);
    if volume.is_log() {
        let rest = tree.find_rest(left)?;
        let voids = tree.adopt(left, rest);
        tree.adopt_entries(entries);
        tree.begin_life(left, &voids)?;
    } else {
        tree.left = Some(left);
    }
    Ok(tree)
}

enum Choice {
    Made(Left),
    /// More pages are needed to decide.
    NeedsOlder,
}

impl Reader<'_> {
    /// The commit that counts.
    fn choose(self, contents: &Contents, opening: &Opening<'_>) -> Result<Choice> {
        let Contents { stream, has_older, .. } = contents;
        let (has_older, found) = (*has_older, BTreeMap::new());
        let mut reading =
            Reading { reader: self, pages: stream, is_short: false, has_older, found };
        let chosen = reading.choose(opening);
        if reading.is_short {
            return Ok(Choice::NeedsOlder);
        }
        let chosen = chosen?;
        reading.make_durable(chosen)?;
        Ok(Choice::Made(Left { chosen }))
    }
}

fn damaged(offset: u64) -> Error {
    let what = "no whole commit, and what is behind it says that there was one".to_owned();
    Error::Corrupt { offset, what }
}

impl<'v> Reading<'v> {
    fn found(&mut self, index: usize) -> &Found<'v> {
        let (birth, page) = self.pages[index];
        let Reader { volume, guard } = self.reader;
        let look = || volume.look_at_page(guard, page, birth);
        self.found.entry(index).or_insert_with(look)
    }

    /// The newest whole commit; none if there was none yet.
    fn choose(&mut self, opening: &Opening<'_>) -> Result<Option<Chosen>> {
        // The place that the newest commit, whole or not, states to be durable.
        let mut proven: Option<(Position, u64)> = None;
        let mut chosen = None;
        for index in (0..self.pages.len()).rev() {
            for view in self.records_of(index).into_iter().rev() {
                let offset = view.offset;
                let Some(commit) = Commit::of(&view) else { continue };
                let (proven, _) = *proven.get_or_insert((commit.proven, offset));
                let end = self.end_of(index, &view);
                // A close has made everything durable.
                let is_ended = self.is_ended(index, opening) && !self.reader.volume.is_log();
                if is_ended || self.is_whole((index, offset), &commit) {
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
        if chosen.is_none() && self.has_older {
            self.is_short = true;
            return Ok(None);
        }
        if let Some((proven, offset)) = proven
            && (chosen.is_none() && proven.birth > 0 || self.is_before(chosen, proven))
        {
            return Err(damaged(offset));
        }
        self.check_behind(chosen, opening)?;
        Ok(chosen)
    }

    /// True if the commit that counts is older than a place that is known to have been durable in the same life.
    fn is_before(&self, chosen: Option<Chosen>, proven: Position) -> bool {
        chosen.is_some_and(|it| it.end < proven && proven.within != u32::MAX)
    }

    fn end_of(&self, index: usize, view: &View<'_>) -> Position {
        let (birth, page) = self.pages[index];
        let within = (view.offset - self.reader.volume.space.start_of(page)) as u32 + view.len();
        Position { birth, within }
    }

    /// True if a page was ended durably by a close.
    fn is_ended(&self, index: usize, opening: &Opening<'_>) -> bool {
        opening.was_closed || self.pages[index].0 < opening.births_closed
    }

    /// The sound records of a page; of a log, those before the first damage.
    fn records_of(&mut self, index: usize) -> Vec<View<'v>> {
        let is_log = self.reader.volume.is_log();
        let found = self.found(index);
        let behind: &[View<'_>] = if is_log { &[] } else { &found.behind };
        [&found.records, behind].concat()
    }

    /// True if all records that a commit, at `offset`, rests on are there.
    fn is_whole(&mut self, (index, offset): (usize, u64), commit: &Commit) -> bool {
        let Position { birth, within } = commit.proven;
        let (mut begun, mut is_begun) = (0, !self.has_older);
        for at in (0..=index).rev() {
            let (its, page) = self.pages[at];
            if its < birth {
                is_begun = true;
                break;
            }
            let start = self.reader.volume.space.start_of(page);
            // What stands behind it in its own page does not matter.
            let end = if at == index { offset } else { u64::MAX };
            let broken = self.found(at).broken.filter(|broken| *broken < end);
            let is_torn = match broken.map(|at| (at - start) as u32) {
                None => false,
                Some(broken) if its > birth || broken >= within => true,
                // Records before `within` may be damaged, which does not matter.
                Some(_) => within != u32::MAX && !self.is_sound_from(at, within, end),
            };
            if is_torn && !mutant!("mvcc.tree.half_groups") {
                return false;
            }
            begun += u32::from(its > birth && at < index);
        }
        self.is_short |= !is_begun;
        begun == commit.pages || mutant!("mvcc.tree.half_groups")
    }

    /// True if the records of a page are sound from one up to the offset `end`.
    fn is_sound_from(&self, index: usize, within: u32, end: u64) -> bool {
        self.found_from(index, within).broken.is_none_or(|broken| broken >= end)
    }

    /// The contents of a page from a record, or its end mark, on.
    fn found_from(&self, index: usize, within: u32) -> Found<'v> {
        let (birth, page) = self.pages[index];
        let Reader { volume, guard } = self.reader;
        volume.look_from(guard, page, birth, within)
    }

    /// Checks that no record behind the commit that counts proves that there was more.
    fn check_behind(&mut self, chosen: Option<Chosen>, opening: &Opening<'_>) -> Result<()> {
        let first = chosen.map_or(0, |it| it.index);
        // The record that follows directly rests only on records that count.
        let mut is_next = true;
        for index in first..self.pages.len() {
            let start = self.reader.volume.space.start_of(self.pages[index].1);
            let is_ended = self.is_ended(index, opening);
            let of_first = match chosen {
                Some(chosen) if index == first => Some(self.found_from(first, chosen.end.within)),
                _ => None,
            };
            let found = of_first.as_ref().unwrap_or_else(|| self.found(index));
            for view in &found.records {
                if view.header.follows && !is_next || is_ended {
                    return Err(damaged(view.offset));
                }
                is_next = false;
            }
            if let Some(broken) = found.broken {
                if found.follows_behind || is_ended {
                    return Err(damaged(broken));
                }
                is_next &= broken == start;
            }
        }
        Ok(())
    }

    /// A process that was killed may have left records in the caches that were found here. They are made durable
    /// before a record states that they are.
    fn make_durable(&mut self, chosen: Option<Chosen>) -> Result<()> {
        let Some(chosen) = chosen.filter(|_| !mutant!("mvcc.tree.heir")) else { return Ok(()) };
        let Reader { volume, .. } = self.reader;
        let (space, size) = (&volume.space, u64::from(volume.space.page_size()));
        for (_, page) in self.pages[..=chosen.index]
            .iter()
            .rev()
            .take_while(|(birth, _)| *birth >= chosen.commit.proven.birth)
        {
            space.flush(space.start_of(*page), size);
            volume.table.flush_life(*page);
        }
        space.fence().map_err(sync_failed)
    }
}

/// The tree below the root that counts.
fn below(volume: &Arc<Volume>, chosen: Option<Chosen>, opening: &Opening<'_>) -> Tree {
    let pages = Pages::none(&volume.space);
    let mut tree = Tree::new(Stream::new(volume, pages, opening.first_birth), opening.held);
    if let Some(Chosen { commit, offset, len, version, end, .. }) = chosen {
        let root = Some(commit.root).filter(|root| *root != 0);
        tree.root = root.map(super::Link::Sealed);
        tree.records = commit.records;
        (tree.version, tree.horizon) = (version, commit.horizon);
        (tree.longest_key, tree.height) = (commit.longest_key as usize, commit.height);
        tree.last.root = root;
        (tree.last.commit, tree.last.end) = (Some((offset, len)), end);
        tree.is_doubtful = root.is_some();
    }
    tree
}
