//! The Redis protocol: what a request looks like ([`frame`], [`inline`]) and what an answer looks
//! like ([`reply`]), in version 2 and 3.
//!
//! A request is an array of bulk strings (`*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`) or a line of words.
//! Nothing is copied on the way in: a parsed command is a list of spans of the read buffer. On
//! the way out every value is copied once, from the engine's record into the output buffer.

pub(crate) mod frame;
pub(crate) mod inline;
pub(crate) mod measure;
pub(crate) mod number;
pub(crate) mod reply;
