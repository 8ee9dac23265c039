//! The handshake: from the greeting to the choice of the export, over bytes.
//!
//! ```text
//!   greeting ─► client's flags ─► option ─► option ─► … ─► EXPORT_NAME or GO ─► transmission
//!                                   └─► ABORT, nonsense, too many ─► over
//! ```
//!
//! Fixed newstyle: an unknown option is refused, and the next one is accepted. Of the client's bytes,
//! the state keeps only the name for which it chose contexts; incomplete messages stay with the
//! caller, which needs room for [`OPTION_MAX`] and a head.

use crate::export::{Export, Parameters, STRING_MAX};
use crate::protocol::handshake_flag::{FIXED_NEWSTYLE, NO_ZEROES};
use crate::protocol::{self as wire, Fields, answer, info, option};

/// The longest data of an option, in bytes; longer options are skipped.
pub(crate) const OPTION_MAX: usize = 16 << 10;
/// The number of options after which a connection ends.
pub(crate) const OPTIONS_MAX: usize = 64;
/// The head of an option: magic, number, length.
const HEAD: usize = 16;
/// The only context.
const CONTEXT: &[u8] = b"base:allocation";
/// The id of the context in answers to `BLOCK_STATUS`.
pub(crate) const CONTEXT_ID: u32 = 1;

/// The result of the negotiation between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) parameters: Parameters,
    /// Replies are structured.
    pub(crate) is_structured: bool,
    /// `BLOCK_STATUS` is allowed.
    pub(crate) has_status: bool,
}

/// The progress of a handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More bytes are needed, or an answer must be sent first.
    Ongoing,
    /// The transmission begins.
    Chosen(Agreement),
    /// The connection must be closed after the prepared answers are sent.
    Over,
}

#[derive(Debug)]
enum State {
    Flags,
    Option,
    /// The rest of an option that is too long.
    Skip {
        option: u32,
        left: u32,
    },
}

/// A handshake under way.
#[derive(Debug)]
pub(crate) struct Handshake {
    export: Export,
    len: u64,
    state: State,
    has_no_zeroes: bool,
    is_structured: bool,
    /// The name of the export for which the context was chosen.
    context_of: Option<Vec<u8>>,
    options: usize,
}

impl Handshake {
    /// Begins a handshake for an export of `len` bytes; the greeting is appended to `out`.
    pub(crate) fn new(export: Export, len: u64, out: &mut Vec<u8>) -> Self {
        out.extend(wire::GREETING.to_be_bytes());
        out.extend(wire::OPTION.to_be_bytes());
        out.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        Self {
            export,
            len,
            state: State::Flags,
            has_no_zeroes: false,
            is_structured: false,
            context_of: None,
            options: 0,
        }
    }

    /// Takes one message from the front of `input`, if it is complete, and answers it. Returns the
    /// number of bytes taken: zero if it needs more.
    pub(crate) fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Progress) {
        match self.state {
            State::Flags => self.flags(input),
            State::Option => self.option(input, out),
            State::Skip { option, left } => {
                let taken = u32::try_from(input.len()).unwrap_or(u32::MAX).min(left);
                self.state = State::Skip { option, left: left - taken };
                if taken == left {
                    refuse(out, option, answer::TOO_BIG, "the option is too long");
                    self.state = State::Option;
                }
                (taken as usize, Progress::Ongoing)
            }
        }
    }

    fn flags(&mut self, input: &[u8]) -> (usize, Progress) {
        let Some(flags) = Fields(input).u32() else { return (0, Progress::Ongoing) };
        self.state = State::Option;
        self.has_no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        // The meaning of other flags is unknown.
        let is_known = flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) == 0;
        (4, if is_known { Progress::Ongoing } else { Progress::Over })
    }

    fn option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Progress) {
        let mut fields = Fields(input);
        let head = (fields.u64(), fields.u32(), fields.u32());
        let (Some(magic), Some(option), Some(len)) = head else { return (0, Progress::Ongoing) };
        if magic != wire::OPTION || self.options == OPTIONS_MAX {
            return (HEAD, Progress::Over);
        }
        if len as usize > OPTION_MAX {
            self.options += 1;
            self.state = State::Skip { option, left: len };
            // A request for an export without `GO` can only be refused by ending the connection.
            let is_refusable = option != option::EXPORT_NAME;
            return (HEAD, if is_refusable { Progress::Ongoing } else { Progress::Over });
        }
        let Some(data) = fields.bytes(len as usize) else { return (0, Progress::Ongoing) };
        self.options += 1;
        (HEAD + data.len(), self.answer(option, data, out))
    }

    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        match option {
            option::EXPORT_NAME => return self.export_name(data, out),
            option::GO => return self.go(data, out),
            option::INFO => {
                self.tell(option::INFO, data, out);
            }
            option::ABORT => {
                reply(out, option, answer::ACK, &[]);
                return Progress::Over;
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                refuse(out, option, answer::INVALID, "the option takes no data");
            }
            option::LIST => {
                let name = self.export.name.as_bytes();
                let description = self.export.description.as_bytes();
                reply(out, option, answer::SERVER, &[&len_of(name), name, description]);
                reply(out, option, answer::ACK, &[]);
            }
            option::STRUCTURED_REPLY => {
                self.is_structured = true;
                reply(out, option, answer::ACK, &[]);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(option, data, out);
            }
            _ => refuse(out, option, answer::UNSUPPORTED, "the option is not known here"),
        }
        Progress::Ongoing
    }

    fn agreement(&self, parameters: Parameters, name: &[u8]) -> Agreement {
        let has_status = self.is_structured && self.context_of.as_deref() == Some(name);
        Agreement { parameters, is_structured: self.is_structured, has_status }
    }

    fn export_name(&self, name: &[u8], out: &mut Vec<u8>) -> Progress {
        let Ok(parameters) = self.export.find(name) else { return Progress::Over };
        out.extend(self.len.to_be_bytes());
        out.extend(self.export.flags(self.is_structured).to_be_bytes());
        if !self.has_no_zeroes {
            out.extend([0; 124]);
        }
        Progress::Chosen(self.agreement(parameters, name))
    }

    fn go(&self, data: &[u8], out: &mut Vec<u8>) -> Progress {
        match self.tell(option::GO, data, out) {
            Some((parameters, name)) => Progress::Chosen(self.agreement(parameters, name)),
            None => Progress::Ongoing,
        }
    }

    /// Answers `INFO` or `GO`; returns the requested name, if there is such an export.
    fn tell<'a>(
        &self,
        option: u32,
        data: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Option<(Parameters, &'a [u8])> {
        let Some((name, wanted)) = name_and_infos(data) else {
            refuse(out, option, answer::INVALID, "the option's lengths do not agree");
            return None;
        };
        let parameters = self.find(option, name, out)?;
        let mut flags = [0; 10];
        flags[..8].copy_from_slice(&self.len.to_be_bytes());
        flags[8..].copy_from_slice(&self.export.flags(self.is_structured).to_be_bytes());
        let mut tell = |info: u16, data: &[&[u8]]| {
            let info = info.to_be_bytes();
            reply(out, option, answer::INFO, &[&[&info[..]], data].concat());
        };
        tell(info::EXPORT, &[&flags]);
        let sizes = Export::block_sizes().map(u32::to_be_bytes);
        tell(info::BLOCK_SIZE, &[sizes.as_flattened()]);
        let has_asked = |info: u16| wanted.chunks_exact(2).any(|it| it == info.to_be_bytes());
        if has_asked(info::NAME) {
            tell(info::NAME, &[&self.export.full_name(name)]);
        }
        if has_asked(info::DESCRIPTION) && !self.export.description.is_empty() {
            tell(info::DESCRIPTION, &[self.export.description.as_bytes()]);
        }
        reply(out, option, answer::ACK, &[]);
        Some((parameters, name))
    }

    fn find(&self, option: u32, name: &[u8], out: &mut Vec<u8>) -> Option<Parameters> {
        self.export
            .find(name)
            .map_err(|message| refuse(out, option, answer::UNKNOWN, &message))
            .ok()
    }

    /// Answers `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
    fn contexts(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let is_choice = option == option::SET_META_CONTEXT;
        if is_choice {
            self.context_of = None;
        }
        if !self.is_structured {
            return refuse(out, option, answer::INVALID, "contexts need structured replies");
        }
        let Some((name, queries)) = name_and_queries(data) else {
            return refuse(out, option, answer::INVALID, "the option's lengths do not agree");
        };
        if self.find(option, name, out).is_none() {
            return;
        }
        let lists = |query: &[u8]| query == CONTEXT || (!is_choice && query == b"base:");
        if queries.clone().any(lists) || (!is_choice && queries.count() == 0) {
            let id = if is_choice { CONTEXT_ID } else { 0 };
            reply(out, option, answer::META_CONTEXT, &[&id.to_be_bytes(), CONTEXT]);
            if is_choice {
                self.context_of = Some(name.to_vec());
            }
        }
        reply(out, option, answer::ACK, &[]);
    }
}

/// The data of `INFO` and `GO`: a name, and numbers of two bytes.
fn name_and_infos(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = usize::from(fields.u16()?);
    let wanted = fields.bytes(2 * count)?;
    fields.0.is_empty().then_some((name, wanted))
}

/// The data of the options for contexts: a name, and queries, all of them complete.
fn name_and_queries(data: &[u8]) -> Option<(&[u8], impl Iterator<Item = &[u8]> + Clone)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    let queries = fields.0;
    for _ in 0..count {
        // Each takes four bytes at least, so that the count is bounded by the option's length.
        fields.string().filter(|query| query.len() <= STRING_MAX)?;
    }
    let mut rest = Fields(queries);
    fields.0.is_empty().then_some((name, std::iter::from_fn(move || rest.string())))
}

fn len_of(bytes: &[u8]) -> [u8; 4] {
    // All answers are shorter than an option.
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    out.extend(wire::OPTION_REPLY.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    let at = out.len();
    out.extend([0; 4]);
    data.iter().for_each(|part| out.extend(*part));
    let len = len_of(&out[at + 4..]);
    out[at..at + 4].copy_from_slice(&len);
}

fn refuse(out: &mut Vec<u8>, option: u32, why: u32, message: &str) {
    reply(out, option, why, &[message.as_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin() -> (Handshake, Vec<u8>) {
        let export =
            Export { name: "disk".to_owned(), description: "a disk".to_owned(), read_only: false };
        let mut out = Vec::new();
        let handshake = Handshake::new(export, 1 << 20, &mut out);
        assert_eq!(out, *b"NBDMAGICIHAVEOPT\0\x03");
        out.clear();
        (handshake, out)
    }

    fn option(number: u32, data: &[u8]) -> Vec<u8> {
        let (number, len) = (number.to_be_bytes(), (data.len() as u32).to_be_bytes());
        [&b"IHAVEOPT"[..], &number, &len, data].concat()
    }

    /// Feeds all of `input`, and returns the last progress.
    fn feed(handshake: &mut Handshake, mut input: &[u8], out: &mut Vec<u8>) -> Progress {
        loop {
            let (taken, progress) = handshake.step(input, out);
            input = &input[taken..];
            if taken == 0 || input.is_empty() || progress != Progress::Ongoing {
                return progress;
            }
        }
    }

    #[test]
    fn an_option_that_is_too_long_is_skipped() {
        let (mut handshake, mut out) = begin();
        let long = option(option::GO, &vec![7; 100_000]);
        let input = [&[0, 0, 0, 3][..], &long, &option(option::LIST, b"")].concat();
        assert_eq!(feed(&mut handshake, &input, &mut out), Progress::Ongoing);
        let message = b"the option is too long";
        assert_eq!(out[12..16], answer::TOO_BIG.to_be_bytes());
        assert_eq!(&out[20..20 + message.len()], message);
        assert!(out.ends_with(&[0, 0, 0, 1, 0, 0, 0, 0]), "LIST was answered");
    }

    #[test]
    fn options_are_counted() {
        let (mut handshake, mut out) = begin();
        let input = [vec![0, 0, 0, 1], option(99, b"").repeat(OPTIONS_MAX)].concat();
        assert_eq!(feed(&mut handshake, &input, &mut out), Progress::Ongoing);
        let go = option(option::GO, &[0; 6]);
        assert_eq!(feed(&mut handshake, &go, &mut out), Progress::Over);
    }

    #[test]
    fn a_context_counts_for_the_export_that_it_was_chosen_for() {
        for (name, has_status) in [("", true), ("disk", false)] {
            let (mut handshake, mut out) = begin();
            let structured = option(option::STRUCTURED_REPLY, b"");
            let query = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
            let set = option(option::SET_META_CONTEXT, query);
            let go = [&len_of(name.as_bytes()), name.as_bytes(), &[0, 0]].concat();
            let input = [&[0, 0, 0, 1][..], &structured, &set, &option(option::GO, &go)].concat();
            let progress = feed(&mut handshake, &input, &mut out);
            let parameters = Parameters::default();
            let agreement = Agreement { parameters, is_structured: true, has_status };
            assert_eq!(progress, Progress::Chosen(agreement));
        }
    }

    #[test]
    fn contexts_without_structured_replies_are_refused() {
        let (mut handshake, mut out) = begin();
        let set = option(option::SET_META_CONTEXT, b"\0\0\0\0\0\0\0\0");
        let input = [&[0, 0, 0, 1][..], &set].concat();
        assert_eq!(feed(&mut handshake, &input, &mut out), Progress::Ongoing);
        assert_eq!(out[12..16], answer::INVALID.to_be_bytes());
    }

    #[test]
    fn lengths_that_do_not_agree_are_refused() {
        for data in
            [&b""[..], b"\0\0\0\x09", b"\0\0\0\0\0\x01", b"\0\0\0\0\0\0!", b"\xff\xff\xff\xff"]
        {
            let (mut handshake, mut out) = begin();
            let input = [&[0, 0, 0, 1][..], &option(option::GO, data)].concat();
            assert_eq!(feed(&mut handshake, &input, &mut out), Progress::Ongoing);
            assert_eq!(out[12..16], answer::INVALID.to_be_bytes(), "{data:?}");
        }
    }

    #[test]
    fn unknown_flags_and_magic_end_it() {
        let (mut handshake, mut out) = begin();
        assert_eq!(feed(&mut handshake, &[0, 0, 0, 4], &mut out), Progress::Over);
        let (mut handshake, mut out) = begin();
        let input = [&[0, 0, 0, 1][..], b"IHAVEOPS\0\0\0\x03\0\0\0\0"].concat();
        assert_eq!(feed(&mut handshake, &input, &mut out), Progress::Over);
    }
}
