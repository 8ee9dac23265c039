//! Runs: the parts of a batch that its commit record names.

/// A run of a batch's records: where, how long, and in which generation of its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) len: u32,
    pub(crate) generation: u32,
}

impl Run {
    pub(crate) const LEN: usize = 16;

    // media-format: begin pool
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.start.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
    }
    // media-format: end

    /// The offset behind its last byte.
    pub(crate) fn end(self) -> u64 {
        self.start.saturating_add(u64::from(self.len))
    }

    /// The run as a commit record holds it.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        self.encode(&mut bytes);
        bytes
    }

    /// The runs that the value of a commit record names.
    pub(crate) fn decode_all(value: &[u8]) -> impl Iterator<Item = Self> + '_ {
        value.chunks_exact(Self::LEN).map(|bytes| {
            let word =
                |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
            Self { start: word(0), len: word(1) as u32, generation: (word(1) >> 32) as u32 }
        })
    }
}
