//! Requests as bytes: the head of a request, and the server's verdict.

use crate::disk::{Errno, Op};
use crate::export::REQUEST_MAX;
use crate::protocol::{Fields, REQUEST, command, command_flag as flag};

/// The bytes of a head.
pub(crate) const HEAD: usize = 28;

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Bytes that are not a request: nothing behind them can be parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nonsense;

/// The verdict on a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The disk executes it.
    Run(Op),
    /// A flush.
    Flush,
    /// A query for the extents of a range; with `is_one`, for the first alone.
    Status { is_one: bool },
    /// The client disconnects.
    Disconnect,
    /// A request of no bytes.
    Nothing,
    /// The request is refused.
    Refuse(Errno, &'static str),
}

/// The limits that a request is checked against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Bytes of the disk.
    pub(crate) len: u64,
    pub(crate) read_only: bool,
    pub(crate) is_structured: bool,
    pub(crate) has_status: bool,
}

impl Head {
    /// Reads the head at the front of `input`; none if it is not all there.
    pub(crate) fn parse(input: &[u8]) -> Result<Option<Self>, Nonsense> {
        let mut fields = Fields(input);
        match fields.u32() {
            Some(REQUEST) => {}
            Some(_) => return Err(Nonsense),
            None => return Ok(None),
        }
        let mut rest = || {
            Some(Self {
                flags: fields.u16()?,
                command: fields.u16()?,
                cookie: fields.u64()?,
                offset: fields.u64()?,
                len: fields.u32()?,
            })
        };
        Ok(rest())
    }

    /// How many bytes follow the head.
    pub(crate) fn payload(&self) -> u32 {
        if self.command == command::WRITE { self.len } else { 0 }
    }

    /// The verdict on this request.
    pub(crate) fn verdict(&self, bounds: &Bounds) -> Verdict {
        if self.command == command::DISCONNECT {
            return Verdict::Disconnect;
        }
        if let Err((errno, why)) = self.check(bounds) {
            return Verdict::Refuse(errno, why);
        }
        let has = |flag: u16| self.flags & flag != 0;
        let fua = has(flag::FUA);
        match self.command {
            command::FLUSH => Verdict::Flush,
            command::BLOCK_STATUS => Verdict::Status { is_one: has(flag::REQ_ONE) },
            _ if self.len == 0 => Verdict::Nothing,
            command::READ => Verdict::Run(Op::Read),
            command::WRITE => Verdict::Run(Op::Write { fua }),
            command::TRIM => Verdict::Run(Op::Trim { fua }),
            command::WRITE_ZEROES => {
                Verdict::Run(Op::WriteZeroes { fua, no_hole: has(flag::NO_HOLE) })
            }
            _ => Verdict::Run(Op::Cache),
        }
    }

    fn check(&self, bounds: &Bounds) -> Result<(), (Errno, &'static str)> {
        let may_have = flag::FUA
            | match self.command {
                command::READ if bounds.is_structured => flag::DF,
                command::BLOCK_STATUS => flag::REQ_ONE,
                command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
                command::READ
                | command::WRITE
                | command::FLUSH
                | command::TRIM
                | command::CACHE => 0,
                _ => return Err((Errno::Invalid, "the command is not known here")),
            };
        if self.flags & !may_have != 0 {
            return Err((Errno::Invalid, "the command does not take this flag"));
        }
        let is_write = matches!(self.command, command::WRITE | command::WRITE_ZEROES);
        if bounds.read_only && (is_write || self.command == command::TRIM) {
            return Err((Errno::NotPermitted, "the export is read-only"));
        }
        if self.command == command::FLUSH {
            // Offset and length are reserved; some clients leave old values in them.
            return Ok(());
        }
        let is_inside = self.offset.checked_add(self.len.into()).is_some_and(|it| it <= bounds.len);
        if !is_inside {
            let errno = if is_write { Errno::NoSpace } else { Errno::Invalid };
            return Err((errno, "the range goes beyond the end of the disk"));
        }
        let is_copied = matches!(self.command, command::READ | command::WRITE);
        if is_copied && self.len > REQUEST_MAX {
            return Err((Errno::Invalid, "the request is longer than 32 MiB"));
        }
        if self.command == command::BLOCK_STATUS && (!bounds.has_status || self.len == 0) {
            return Err((Errno::Invalid, "no context was agreed on, or no range is asked for"));
        }
        // Writing zeroes that take space takes as long as any write.
        if self.flags & flag::FAST_ZERO != 0 && self.flags & flag::NO_HOLE != 0 {
            return Err((Errno::NotSupported, "zeroes that take space are not fast"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { len: 1 << 30, read_only: false, is_structured: true, has_status: true };

    fn head(command: u16, flags: u16, offset: u64, len: u32) -> Head {
        Head { flags, command, cookie: 1, offset, len }
    }

    fn errno(head: Head, bounds: Bounds) -> Option<Errno> {
        match head.verdict(&bounds) {
            Verdict::Refuse(errno, _) => Some(errno),
            _ => None,
        }
    }

    #[test]
    fn ranges_end_with_the_disk() {
        let end = BOUNDS.len;
        for (command, expected) in [
            (command::READ, Errno::Invalid),
            (command::WRITE, Errno::NoSpace),
            (command::TRIM, Errno::Invalid),
            (command::WRITE_ZEROES, Errno::NoSpace),
            (command::CACHE, Errno::Invalid),
            (command::BLOCK_STATUS, Errno::Invalid),
        ] {
            assert_eq!(errno(head(command, 0, end - 512, 512), BOUNDS), None);
            assert_eq!(errno(head(command, 0, end - 511, 512), BOUNDS), Some(expected));
            assert_eq!(errno(head(command, 0, u64::MAX, 512), BOUNDS), Some(expected));
        }
        assert_eq!(errno(head(command::FLUSH, 0, u64::MAX, 512), BOUNDS), None);
    }

    #[test]
    fn what_is_copied_is_bounded() {
        for command in [command::READ, command::WRITE] {
            assert_eq!(errno(head(command, 0, 0, REQUEST_MAX), BOUNDS), None);
            assert_eq!(errno(head(command, 0, 0, REQUEST_MAX + 1), BOUNDS), Some(Errno::Invalid));
        }
        let verdict = head(command::TRIM, 0, 0, REQUEST_MAX + 1).verdict(&BOUNDS);
        assert_eq!(verdict, Verdict::Run(Op::Trim { fua: false }));
    }

    #[test]
    fn flags_belong_to_commands() {
        for (command, known) in [
            (command::READ, flag::FUA | flag::DF),
            (command::WRITE, flag::FUA),
            (command::TRIM, flag::FUA),
            (command::BLOCK_STATUS, flag::FUA | flag::REQ_ONE),
            (command::WRITE_ZEROES, flag::FUA | flag::NO_HOLE | flag::FAST_ZERO),
        ] {
            for bit in (0..16).map(|bit| 1 << bit) {
                let refused = errno(head(command, bit, 0, 512), BOUNDS).is_some();
                assert_eq!(refused, known & bit == 0, "{command} {bit}");
            }
        }
        let both = head(command::WRITE_ZEROES, flag::FAST_ZERO | flag::NO_HOLE, 0, 512);
        assert_eq!(errno(both, BOUNDS), Some(Errno::NotSupported));
        let bounds = Bounds { is_structured: false, ..BOUNDS };
        assert_eq!(errno(head(command::READ, flag::DF, 0, 512), bounds), Some(Errno::Invalid));
    }

    #[test]
    fn a_read_only_export_is_not_changed() {
        let bounds = Bounds { read_only: true, ..BOUNDS };
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(errno(head(command, 0, 0, 512), bounds), Some(Errno::NotPermitted));
        }
        assert_eq!(errno(head(command::READ, 0, 0, 512), bounds), None);
        assert_eq!(errno(head(command::FLUSH, 0, 0, 0), bounds), None);
    }

    #[test]
    fn other_commands_are_refused() {
        for command in (8..12).chain([u16::MAX]) {
            assert_eq!(errno(head(command, 0, 0, 512), BOUNDS), Some(Errno::Invalid));
        }
        let bounds = Bounds { has_status: false, ..BOUNDS };
        assert!(errno(head(command::BLOCK_STATUS, 0, 0, 512), bounds).is_some());
        assert!(errno(head(command::BLOCK_STATUS, 0, 0, 0), BOUNDS).is_some());
    }

    #[test]
    fn heads_are_whole_or_awaited() {
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend([0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 2, 0]);
        for end in 0..HEAD {
            assert_eq!(Head::parse(&bytes[..end]), Ok(None));
        }
        let head = Head { flags: 1, command: 1, cookie: 9, offset: 4096, len: 512 };
        assert_eq!(Head::parse(&bytes), Ok(Some(head)));
        bytes[0] ^= 1;
        assert_eq!(Head::parse(&bytes[..4]), Err(Nonsense));
    }
}
