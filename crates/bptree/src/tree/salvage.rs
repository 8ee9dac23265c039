//! Saves the sound part of a damaged leaf while it is in use: as long as a leaf is loaded, its directory in DRAM
//! tells where its live records are, and the tree tells its range of keys. A recovery has the page alone.
//!
//! | damaged | action of a scrub |
//! |---|---|
//! | a dead record, or bytes behind the last record | the leaf is rewritten without them |
//! | the head, or a bound | rewritten from the tree |
//! | a live record whose key its tag confirms | it stays, damaged, under its key: any write takes its place |
//! | any other live record | the leaf is in [doubt](crate::tree::doubt) of the keys that it lacks |
//!
//! So no damage is declared sound, and damage has a name, or a range of keys, by which a peer is asked for the
//! data. Once that has been written, the damaged record is dead, and the next scrub leaves it behind.

use crate::leaf::{Head, generation};
use crate::tree::doubt::is_doubtful;
use crate::tree::image::{Item, Source, live_len};
use crate::tree::lock::Locked;
use crate::tree::rewrite::Contents;
use crate::tree::{SUPERSEDED_MARK_LEN, Tree};
use crate::volume::keys::{Edge, tag_of_field};
use coreplane_engine::{Damage, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_record::{Header, Kind, View};

/// The live records of a leaf whose page is damaged.
#[derive(Default)]
struct Salvage<'g> {
    sound: Vec<View<'g>>,
    /// Damaged records whose keys are known.
    named: Vec<View<'g>>,
    /// The number of records that are not kept.
    lost: usize,
}

/// The beginning of a leaf's successors.
struct Beginning<'s> {
    head: Head,
    /// Its edges, if they are made anew.
    edges: Vec<Edge<'s>>,
}

impl Tree {
    /// Rewrites a leaf whose page is damaged, with the records that can be saved, and room for more as
    /// [`Tree::rewrite`]; returns the damage that remains.
    ///
    /// # Errors
    /// As [`Writer::make_room`](crate::write::Writer::make_room).
    pub(crate) fn rewrite_damaged(
        &self,
        guard: &Guard,
        locked: Locked<'_>,
        room: (&[u8], usize, u32),
    ) -> Result<Vec<Damage>> {
        let beginning = self.beginning(guard, &locked)?;
        let salvage = self.salvage(guard, &locked)?;
        let is_lost = locked.leaf.doubt() > 0 || salvage.lost > 0;
        let mut contents = Contents::new();
        for view in &salvage.sound {
            self.take_over(guard, &locked, *view, is_lost, &mut contents)?;
        }
        let given = locked.held.given();
        contents.kept.extend(salvage.named.iter().map(|view| damaged_item(view, given)));
        contents.cuts = self.sort_items(guard, &mut contents.kept)?;
        let live = salvage.sound.iter().chain(&salvage.named).map(live_len).sum::<u32>();
        contents.lost_bytes = i64::from(locked.leaf.live()) - i64::from(live);
        // A tombstone has no live bytes. If several records are lost, it is unknown how many of them were
        // tombstones.
        contents.lost = if contents.lost_bytes > 0 { salvage.lost as i64 } else { 0 };
        if salvage.lost > 0 {
            self.counters.be_unsure();
        }
        let page = locked.page;
        let head = Head { is_lost, ..beginning.head };
        let rewritten = self.rewrite_as(guard, locked, room, (head, contents));
        // The write counts, whatever the result of the rest.
        if !matches!(rewritten, Err(coreplane_engine::Error::NoSpace { .. })) {
            beginning.edges.into_iter().filter_map(|edge| edge.rest).for_each(|rest| rest.own());
        }
        rewritten?;
        let of_key = |view: &View<'_>| {
            let what = format!("the record of \"{}\" is damaged", view.key().escape_ascii());
            Damage::new(view.offset, what)
        };
        let mut damages: Vec<Damage> = salvage.named.iter().map(of_key).collect();
        if salvage.lost > 0 {
            let what = format!("{} records that cannot be told", salvage.lost);
            damages.push(Damage::new(self.space.start_of(page), what));
        }
        Ok(damages)
    }

    /// The head of a locked leaf, made from DRAM if the one in the page is damaged.
    ///
    /// # Errors
    /// As [`Volume::edge`](crate::volume::Volume::edge).
    fn beginning(&self, guard: &Guard, locked: &Locked<'_>) -> Result<Beginning<'_>> {
        let (page, birth) = (locked.page, locked.held.birth());
        if let Ok(head) = self.sound_head(guard, page, birth) {
            return Ok(Beginning { head, edges: Vec::new() });
        }
        let (least, bound) = self.inner.bounds_of(page).ok_or_else(|| self.not_a_leaf(page))?;
        let least = self.edge(least, 0)?;
        let bound = bound.map(|bound| self.edge(bound, 0)).transpose()?;
        let head = Head {
            birth,
            version: locked.held.given(),
            least: least.field.clone(),
            bound: bound.as_ref().map(|bound| bound.field.clone()),
            ..Head::default()
        };
        Ok(Beginning { head, edges: std::iter::once(least).chain(bound).collect() })
    }

    /// Sorts the live records of a locked leaf into sound, named and lost ones.
    ///
    /// # Errors
    /// If the page is not that of a leaf.
    fn salvage<'g>(&'g self, guard: &'g Guard, locked: &Locked<'_>) -> Result<Salvage<'g>> {
        let (page, leaf) = (locked.page, locked.leaf);
        let bytes = self.space.page_bytes(guard, page).ok_or_else(|| self.not_a_leaf(page))?;
        let (mut salvage, used) = (Salvage::default(), leaf.used());
        for place in used {
            let within = leaf.offset(place);
            let is_short = |view: &View<'_>| view.len() as usize <= self.record_len_max();
            let Some(view) = View::of(&bytes, within).filter(is_short) else {
                salvage.lost += 1;
                continue;
            };
            let generation = generation(locked.held.birth());
            let seed = coreplane_record::seed(self.seed, generation, view.offset);
            if view.check(seed).is_ok() {
                salvage.sound.push(view);
            } else if !is_doubtful(leaf, view.header.doubtful, within)
                && self.is_named(page, leaf.tag(place), &view)
            {
                salvage.named.push(view);
            } else {
                salvage.lost += 1;
            }
        }
        let Salvage { sound, named, lost } = &mut salvage;
        // A damaged record with the key of a sound one is not a record of that key.
        let is_alone = |view: &View<'_>| sound.iter().all(|other| other.key() != view.key());
        let capacity = self.space.page_size() as usize - 2 * self.field_max() - SUPERSEDED_MARK_LEN;
        let mut len: usize = sound.iter().map(|view| view.len() as usize).sum();
        let before = named.len();
        named.retain(|view| {
            len += view.len() as usize;
            is_alone(view) && len <= capacity
        });
        *lost += before - named.len();
        Ok(salvage)
    }

    /// True if a damaged record of a leaf surely has its original key, as far as a tag can tell.
    fn is_named(&self, page: u32, tag: u8, view: &View<'_>) -> bool {
        let (key, header) = (view.key(), &view.header);
        let is_plain = header.kind == Kind::Put && !header.large && !self.is_long(key);
        is_plain
            && tag_of_field(key, self.field_max()) == tag
            && self.inner.descend(key).leaf == page
    }
}

/// A damaged record as it is kept: any write takes its place. If it has expired, no read without a check may show it
/// again.
fn damaged_item<'g>(view: &View<'g>, given: u64) -> Item<'g> {
    let (version, expires_at) = (view.header.version.min(given), view.header.expires_at);
    let header = Header { sequence: Some(0), expires_at, ..Header::put(version) };
    Item { header, key: view.key(), value: view.value(), source: Source::Damaged }
}
