//! What client and floor say to each other: NBD, fixed newstyle, simple replies.

pub(super) const MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const OPTIONS: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST: u32 = 0x2560_9513;
pub(super) const REPLY: u32 = 0x6744_6698;

/// Fixed newstyle, and no zeroes after the export; both sides.
pub(super) const HANDSHAKE_FLAGS: u16 = 3;
/// The option that asks for an export and begins.
pub(super) const GO: u32 = 7;
pub(super) const ACK: u32 = 1;
pub(super) const INFO: u32 = 3;
pub(super) const UNSUPPORTED: u32 = (1 << 31) + 1;

pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
pub(super) const DISCONNECT: u16 = 2;
/// A write is durable when it is answered.
pub(super) const FUA: u16 = 1;

/// Bytes of a request's head, and of a reply's.
pub(super) const REQUEST_LEN: usize = 28;
pub(super) const REPLY_LEN: usize = 16;

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) place: u64,
    pub(super) len: u32,
}

impl Head {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&REQUEST.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.place.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }

    /// None of what is no request.
    pub(super) fn read(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (command, rest) = rest.split_first_chunk()?;
        let (cookie, rest) = rest.split_first_chunk()?;
        let (place, rest) = rest.split_first_chunk()?;
        let head = Self {
            flags: u16::from_be_bytes(*flags),
            command: u16::from_be_bytes(*command),
            cookie: u64::from_be_bytes(*cookie),
            place: u64::from_be_bytes(*place),
            len: u32::from_be_bytes(*rest.first_chunk()?),
        };
        (u32::from_be_bytes(*magic) == REQUEST).then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = Head { flags: FUA, command: WRITE, cookie: 7, place: 1 << 40, len: 4096 };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        assert_eq!(Head::read(bytes.as_slice().try_into().unwrap()), Some(head));
        bytes[0] ^= 1;
        assert_eq!(Head::read(bytes.as_slice().try_into().unwrap()), None);
    }
}
