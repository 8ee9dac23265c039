//! Where the entries of a field ended in each segment of a shard: the entries of the next field are near.

use smallvec::SmallVec;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Nears {
    places: SmallVec<[u32; 8]>,
    none: u32,
}

impl Nears {
    /// The place where they ended in a segment, given by its index in the shard; 0 at first.
    pub(crate) fn of(&mut self, segment: usize) -> &mut u32 {
        if segment >= self.places.len() {
            self.places.resize(segment + 1, 0);
        }
        self.places.get_mut(segment).unwrap_or(&mut self.none)
    }
}
