//! Where the entries of a field ended in each segment of a shard: those of the next field are near.

use smallvec::SmallVec;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Nears {
    places: SmallVec<[u32; 8]>,
    none: u32,
}

impl Nears {
    /// Where they ended in a segment, by its place in the shard; 0 at first.
    pub(crate) fn of(&mut self, segment: usize) -> &mut u32 {
        if segment >= self.places.len() {
            self.places.resize(segment + 1, 0);
        }
        self.places.get_mut(segment).unwrap_or(&mut self.none)
    }
}
