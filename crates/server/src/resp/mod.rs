//! The Redis protocol, versions 2 and 3: requests ([`frame`], [`inline`]) and answers ([`reply`]).
//!
//! A request is an array of bulk strings (`*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`) or a line of words. Nothing is copied on
//! input: a parsed command is a list of spans of the read buffer. On output every value is copied once, from the
//! engine's record into the output buffer.

pub(crate) mod frame;
pub(crate) mod inline;
pub(crate) mod measure;
pub(crate) mod number;
pub(crate) mod reply;
