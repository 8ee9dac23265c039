//! Objects by number.
//!
//! Numbers are never given twice, so a plain vector would keep a slot for every dropped object. Here slots are in
//! pages, and a page without an object takes no memory: a million dropped series leave a few kilobytes behind.

/// Slots of a page.
const SLOTS: usize = 4096;

/// Objects by number.
#[derive(Debug)]
pub(super) struct Pages<T> {
    pages: Vec<Option<Page<T>>>,
    count: usize,
}

#[derive(Debug)]
struct Page<T> {
    slots: Box<[Option<T>]>,
    count: usize,
}

fn place(id: u32) -> (usize, usize) {
    let id = id as usize;
    (id / SLOTS, id % SLOTS)
}

impl<T> Pages<T> {
    pub(super) fn new() -> Self {
        Self { pages: Vec::new(), count: 0 }
    }

    /// The number of objects.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The number of pages that take memory.
    #[cfg(test)]
    pub(super) fn page_count(&self) -> usize {
        self.pages.iter().flatten().count()
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        let (page, slot) = place(id);
        self.pages.get(page)?.as_ref()?.slots.get(slot)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let (page, slot) = place(id);
        self.pages.get_mut(page)?.as_mut()?.slots.get_mut(slot)?.as_mut()
    }

    /// Puts an object into an empty slot.
    pub(super) fn insert(&mut self, id: u32, object: T) {
        let (page, slot) = place(id);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        if let Some(page) = self.pages.get_mut(page) {
            let page = page.get_or_insert_with(|| Page {
                slots: std::iter::repeat_with(|| None).take(SLOTS).collect(),
                count: 0,
            });
            if let Some(slot) = page.slots.get_mut(slot)
                && slot.replace(object).is_none()
            {
                page.count += 1;
                self.count += 1;
            }
        }
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let (at, slot) = place(id);
        let page = self.pages.get_mut(at)?;
        let object = page.as_mut()?.slots.get_mut(slot)?.take()?;
        self.count -= 1;
        if let Some(it) = page {
            it.count -= 1;
            if it.count == 0 {
                *page = None;
            }
        }
        Some(object)
    }

    /// All objects, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.pages.iter().enumerate().flat_map(|(page, it)| {
            let slots = it.as_ref().map_or(&[][..], |page| &page.slots);
            slots.iter().enumerate().filter_map(move |(slot, object)| {
                Some((u32::try_from(page * SLOTS + slot).ok()?, object.as_ref()?))
            })
        })
    }
}
