//! Makes a queue set, and finds it again.

use super::{COLUMN_SHARE, HeadLog, Set, View};
use crate::error::{Error, Result};
use crate::head::Head;
use crate::log::{Log, Recovered};
use crate::manifest::Manifest;
use crate::pages::{Pages, Role, Use};
use crate::rows::ShardId;
use crate::segment::{Info, LOST, Segment, of_use};
use crate::set::last::Lasts;
use crate::set::seal::IsLive;
use coreplane_pmem::{Pool, Recovery, mutant, spin};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// A pool whose table of pages is read, and nothing else yet.
#[derive(Debug)]
pub(crate) struct Opening {
    pages: Arc<Pages>,
    recovery: Recovery,
    used: Vec<(u32, Use)>,
    damage: Vec<String>,
}

impl Opening {
    /// Opens a pool; `is_new` if it was made a moment ago.
    ///
    /// # Errors
    /// [`Error::Pools`]; [`Error::Damage`] if a page of names or of the manifest may be unknown; [`Error::Sync`].
    pub(crate) fn new(pool: Pool, is_new: bool) -> Result<Self> {
        let (pages, used) = Pages::open(pool, is_new)?;
        if let Some(page) = pages.vital.filter(|_| !mutant!("tsdb.page.vital")) {
            let what = "which may have names or the list of segments";
            return Err(Error::Damage(format!("the use of page {page}, {what}")));
        }
        let twice = || Error::Pools("the pool is open already".to_owned());
        let recovery = pages.space().recovery().ok_or_else(twice)?;
        Ok(Self { pages: Arc::new(pages), recovery, used, damage: Vec::new() })
    }

    /// Finds a log again; its records are shown to `visit`.
    ///
    /// # Errors
    /// The error of `visit`; [`Error::Damage`] of any log but the head's; [`Error::Sync`].
    pub(crate) fn log(
        &mut self,
        role: Role,
        first: u64,
        visit: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Log> {
        let is_its = |(_, used): &&(u32, Use)| used.role == role;
        let list = self.used.iter().filter(is_its).map(|(page, used)| (used.number, *page));
        let place = (&*self.pages, &mut self.recovery);
        let Recovered { log, damage } = Log::recover(place, role, list.collect(), first, visit)?;
        self.damage.extend(damage);
        Ok(log)
    }

    /// Finds manifest, segments and head again. Rows that are not live are left out. Cached last values may take
    /// `last_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Damage`] if the manifest is damaged; [`Error::Sync`].
    pub(crate) fn finish(mut self, is_live: IsLive<'_>, last_bytes: u64) -> Result<Set> {
        let manifest = Manifest::recover(|visit| self.log(Role::Manifest, 0, visit))?;
        let (segments, next) = self.segments(&manifest.segments);
        let mut head = Head::default();
        let log = self.log(Role::Head, manifest.log_from, |record| {
            head.take_in(record, is_live);
            Ok(())
        })?;
        let Self { pages, recovery, mut damage, .. } = self;
        damage.extend(pages.unknown.iter().map(|page| format!("the use of page {page}")));
        drop(recovery);
        pages.space().fence()?;
        let head_bytes = AtomicU64::new(head.bytes + head.columns() * COLUMN_SHARE);
        let view = View { active: Arc::new(RwLock::new(head)), frozen: None, segments };
        let set = Set {
            pages,
            log: Mutex::new(HeadLog { log, waiting: VecDeque::new() }),
            manifest: Mutex::new(manifest),
            view: RwLock::new(Arc::new(view)),
            sealing: Mutex::new(()),
            merging: Mutex::new(()),
            next_segment: AtomicU32::new(next),
            lasts: Lasts::new(last_bytes),
            series_drops: AtomicU64::new(0),
            damaged: Mutex::default(),
            head_bytes,
            is_short: AtomicBool::new(false),
            damage,
        };
        set.note_room(&spin::lock(&set.log).log, false);
        Ok(set)
    }

    /// The segments of the manifest, and a number that no segment has had. Pages of other segments are given up.
    fn segments(
        &mut self,
        infos: &BTreeMap<u32, Info>,
    ) -> (BTreeMap<ShardId, Vec<Arc<Segment>>>, u32) {
        let (mut places, mut left, mut next) = (HashMap::new(), Vec::new(), 1);
        for (page, used) in self.used.iter().filter(|(_, used)| used.role == Role::Segment) {
            let (number, ordinal) = of_use(*used);
            next = next.max(number + 1);
            let is_its = infos.get(&number).is_some_and(|info| ordinal < info.pages);
            if is_its && self.recovery.adopt(*page, self.pages.page_len()) {
                places.insert((number, ordinal), *page);
            } else {
                left.push(*page);
            }
        }
        // The manifest is whole: a page of unknown use is one of it only if three bits of its word have flipped or more.
        self.pages.give_up(left);
        let mut segments: BTreeMap<ShardId, Vec<Arc<Segment>>> = BTreeMap::new();
        for info in infos.values() {
            next = next.max(info.number + 1);
            let list = (0..info.pages).map(|ordinal| {
                let page = places.get(&(info.number, ordinal)).copied();
                if page.is_none() {
                    let number = info.number;
                    self.damage.push(format!("page {ordinal} of segment {number} is lost"));
                }
                // A lost page has no number: reading it reports damage.
                page.unwrap_or(LOST)
            });
            let segment = Segment::new(&self.pages, *info, list.collect());
            segments.entry(info.shard).or_default().push(Arc::new(segment));
        }
        segments
            .values_mut()
            .for_each(|of_shard| of_shard.sort_by_key(|it| (it.info.age, it.info.number)));
        (segments, next)
    }
}
