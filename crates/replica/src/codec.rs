//! Messages between nodes, as bytes.
//!
//! ```text
//!   crc32c of the rest   version  kind   cluster  identity  start  life  from  to   body
//! ```
//!
//! A fixed format with a checksum. Consensus has protobuf types for its messages; they are filled here field by
//! field, and bytes of a peer are never parsed as protobuf. A message that decodes is one that *could* have been
//! sent; whether to believe it is for the node to decide ([`crate::node`]).
//!
//! The transport gives the length of a message.

use crate::entry::{CONTEXT_MAX, Reader, decode_changes};
use crate::members::{NodeId, Peer, decode_change, to_conf_change};
use bytes::Bytes;
use coreplane_engine::UnixMillis;
use protobuf::{Message as _, ProtobufEnum};
use raft::eraftpb::{Entry, EntryType, Message as RaftMessage, MessageType};

/// The version of the format; others are refused.
const VERSION: u8 = 3;
const RAFT: u8 = 1;
const PAGE: u8 = 2;
const RECEIPT: u8 = 3;
const HELLO: u8 = 4;
const ASK: u8 = 5;
const TOLD: u8 = 6;
const KEEPALIVE: u8 = 7;
const CHANGES: u8 = 1;
const MEMBERS: u8 = 2;

/// A message of one node to another.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// The sender's cluster; 0 if that has no name yet, or the sender belongs to none.
    pub cluster: u64,
    /// The identity of the sender's pool.
    pub identity: u64,
    /// How often the sender was started.
    pub start: u64,
    /// The life of this start, which tells apart several starts with the same number after a pool was put back.
    pub life: u64,
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    pub(crate) body: Body,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Body {
    Raft(RaftMessage),
    Page(Page),
    Receipt(Receipt),
    Hello(Hello),
    /// A follower asks, by this number, for the committed index.
    Ask(u64),
    /// The answer: the number of the question, and the index.
    Told(u64, u64),
    /// A part of a long message has arrived.
    Keepalive,
}

/// The sender's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// It belongs to a cluster.
    pub(crate) is_bound: bool,
    /// It wants a hello in return.
    pub(crate) asks: bool,
    /// The leader that it knows; 0 if none.
    pub(crate) leader: NodeId,
    /// The entry that made the members it knows.
    pub(crate) index: u64,
    /// The longest key that its map takes, in bytes.
    pub(crate) key_len_max: u64,
    /// Its knowledge of the receiver.
    pub(crate) known: Peer,
}

/// A part of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) term: u64,
    /// The last applied entry in it.
    pub(crate) index: u64,
    /// Pages of a snapshot are numbered from 0 on.
    pub(crate) number: u64,
    pub(crate) is_last: bool,
    /// Live bytes of the sender.
    pub(crate) bytes: u64,
    /// The header of that entry, and the members at that time.
    pub(crate) header: Bytes,
    pub(crate) members: Bytes,
    pub(crate) records: Vec<Record>,
}

/// A record of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The index of the entry that wrote it.
    pub timestamp: u64,
    /// When it expires, if it does.
    pub expires_at: Option<UnixMillis>,
}

/// The answer to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) term: u64,
    pub(crate) index: u64,
    pub(crate) state: Received,
}

/// How far the receiver is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// It wants this page next.
    Wants(u64),
    /// All of it is installed, or its entries were there before.
    All,
    /// It is older than the receiver's state: a newer one is wanted.
    Older,
    /// The receiver's pool has no room for it.
    Unfit,
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    /// The checksum is wrong.
    Checksum,
    /// The version is unknown.
    Version(u8),
    /// The format is wrong.
    Form,
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Checksum => f.write_str("a message whose checksum is wrong"),
            Self::Version(version) => write!(f, "a message of version {version}"),
            Self::Form => f.write_str("a message that makes no sense"),
        }
    }
}

impl std::error::Error for Invalid {}

struct Writer<'b>(&'b mut Vec<u8>);

impl Writer<'_> {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    fn count(&mut self, count: usize) {
        self.0.extend_from_slice(&(count as u32).to_le_bytes());
    }

    fn part(&mut self, part: &[u8]) {
        self.count(part.len());
        self.0.extend_from_slice(part);
    }
}

impl Envelope {
    /// Appends the message to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let begin = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        let mut writer = Writer(bytes);
        writer.byte(VERSION);
        writer.byte(match self.body {
            Body::Raft(_) => RAFT,
            Body::Page(_) => PAGE,
            Body::Receipt(_) => RECEIPT,
            Body::Hello(_) => HELLO,
            Body::Ask(_) => ASK,
            Body::Told(..) => TOLD,
            Body::Keepalive => KEEPALIVE,
        });
        let Self { cluster, identity, start, life, from, to, .. } = *self;
        [cluster, identity, start, life, from, to].into_iter().for_each(|it| writer.word(it));
        match &self.body {
            Body::Raft(message) => encode_raft(message, &mut writer),
            Body::Page(page) => encode_page(page, &mut writer),
            Body::Receipt(receipt) => encode_receipt(receipt, &mut writer),
            Body::Hello(hello) => {
                writer.byte(u8::from(hello.is_bound) | u8::from(hello.asks) << 1);
                let Peer { node, identity, start, life } = hello.known;
                let of_node = [hello.leader, hello.index, hello.key_len_max];
                let words = of_node.into_iter().chain([node, identity, start, life]);
                words.for_each(|it| writer.word(it));
            }
            Body::Ask(number) => writer.word(*number),
            Body::Told(number, index) => {
                [*number, *index].into_iter().for_each(|it| writer.word(it));
            }
            Body::Keepalive => {}
        }
        let crc = crc32c::crc32c(bytes.get(begin + 4..).unwrap_or_default());
        if let Some(to) = bytes.get_mut(begin..begin + 4) {
            to.copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Reads a message, which is all of `bytes`.
    ///
    /// # Errors
    /// If they are not a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let (crc, rest) = bytes.split_first_chunk::<4>().ok_or(Invalid::Form)?;
        if crc32c::crc32c(rest) != u32::from_le_bytes(*crc) {
            return Err(Invalid::Checksum);
        }
        let mut reader = Reader(rest);
        match reader.byte() {
            Some(VERSION) => {}
            Some(version) => return Err(Invalid::Version(version)),
            None => return Err(Invalid::Form),
        }
        decode_rest(&mut reader).ok_or(Invalid::Form)
    }
}

fn decode_rest(reader: &mut Reader<'_>) -> Option<Envelope> {
    let kind = reader.byte()?;
    let (cluster, identity) = (reader.word()?, reader.word()?);
    let (start, life) = (reader.word()?, reader.word()?);
    let (from, to) = (reader.word()?, reader.word()?);
    let body = match kind {
        RAFT => Body::Raft(decode_raft(reader, from, to)?),
        PAGE => Body::Page(decode_page(reader)?),
        RECEIPT => Body::Receipt(decode_receipt(reader)?),
        HELLO => {
            let flags = reader.byte()?;
            let (leader, index) = (reader.word()?, reader.word()?);
            let key_len_max = reader.word()?;
            let (node, identity) = (reader.word()?, reader.word()?);
            let known = Peer { node, identity, start: reader.word()?, life: reader.word()? };
            let (is_bound, asks) = (flags & 1 != 0, flags & 2 != 0);
            Body::Hello(Hello { is_bound, asks, leader, index, key_len_max, known })
        }
        ASK => Body::Ask(reader.word()?),
        TOLD => Body::Told(reader.word()?, reader.word()?),
        KEEPALIVE => Body::Keepalive,
        _ => return None,
    };
    reader.0.is_empty().then_some(Envelope { cluster, identity, start, life, from, to, body })
}

fn encode_raft(message: &RaftMessage, writer: &mut Writer<'_>) {
    writer.byte(message.get_msg_type().value() as u8);
    writer.byte(u8::from(message.reject));
    for word in [
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
        message.priority.cast_unsigned(),
    ] {
        writer.word(word);
    }
    writer.part(&message.context);
    writer.count(message.entries.len());
    for entry in message.get_entries() {
        let is_changes = entry.get_entry_type() == EntryType::EntryNormal;
        writer.byte(if is_changes { CHANGES } else { MEMBERS });
        writer.word(entry.term);
        writer.word(entry.index);
        writer.part(&entry.context);
        // The context states the change of members.
        writer.part(if is_changes { &entry.data } else { &[] });
    }
}

fn decode_raft(reader: &mut Reader<'_>, from: NodeId, to: NodeId) -> Option<RaftMessage> {
    let mut message = RaftMessage::default();
    message.set_msg_type(MessageType::from_i32(i32::from(reader.byte()?))?);
    message.reject = reader.byte()? != 0;
    (message.from, message.to) = (from, to);
    message.term = reader.word()?;
    message.log_term = reader.word()?;
    message.index = reader.word()?;
    message.commit = reader.word()?;
    message.commit_term = reader.word()?;
    message.reject_hint = reader.word()?;
    message.priority = reader.word()?.cast_signed();
    message.context = Bytes::copy_from_slice(reader.part()?);
    let count = reader.count()?;
    let entries = (0..count).map(|_| decode_entry(reader)).collect::<Option<Vec<Entry>>>()?;
    message.set_entries(entries.into());
    Some(message)
}

fn decode_entry(reader: &mut Reader<'_>) -> Option<Entry> {
    let kind = reader.byte()?;
    let mut entry = Entry { term: reader.word()?, index: reader.word()?, ..Entry::default() };
    let (context, data) = (reader.part()?, reader.part()?);
    if context.len() > CONTEXT_MAX {
        return None;
    }
    match kind {
        CHANGES => {
            let _sound = decode_changes(data)?;
            entry.data = Bytes::copy_from_slice(data);
        }
        MEMBERS => to_members_entry(&mut entry, context)?,
        _ => return None,
    }
    entry.context = Bytes::copy_from_slice(context);
    Some(entry)
}

/// Turns an entry into a change of members according to its context; none if the context states none.
pub(crate) fn to_members_entry(entry: &mut Entry, context: &[u8]) -> Option<()> {
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    entry.data = to_conf_change(&decode_change(context)?).write_to_bytes().ok()?.into();
    Some(())
}

fn encode_page(page: &Page, writer: &mut Writer<'_>) {
    [page.term, page.index, page.number].into_iter().for_each(|it| writer.word(it));
    writer.byte(u8::from(page.is_last));
    writer.word(page.bytes);
    writer.part(&page.header);
    writer.part(&page.members);
    writer.count(page.records.len());
    for record in &page.records {
        writer.word(record.timestamp);
        writer.byte(u8::from(record.expires_at.is_some()));
        writer.word(record.expires_at.map_or(0, |at| at.0));
        writer.part(&record.key);
        writer.part(&record.value);
    }
}

fn decode_page(reader: &mut Reader<'_>) -> Option<Page> {
    let (term, index, number) = (reader.word()?, reader.word()?, reader.word()?);
    let (is_last, bytes) = (reader.byte()? != 0, reader.word()?);
    let header = Bytes::copy_from_slice(reader.part()?);
    let members = Bytes::copy_from_slice(reader.part()?);
    let count = reader.count()?;
    let records = (0..count).map(|_| {
        let timestamp = reader.word()?;
        let expires = reader.byte()? != 0;
        let expires_at = Some(UnixMillis(reader.word()?)).filter(|_| expires);
        let (key, value) = (reader.part()?.to_vec(), reader.part()?.to_vec());
        Some(Record { key, value, timestamp, expires_at })
    });
    let records = records.collect::<Option<Vec<Record>>>()?;
    Some(Page { term, index, number, is_last, bytes, header, members, records })
}

fn encode_receipt(receipt: &Receipt, writer: &mut Writer<'_>) {
    let (state, number) = match receipt.state {
        Received::Wants(number) => (0, number),
        Received::All => (1, 0),
        Received::Older => (2, 0),
        Received::Unfit => (3, 0),
    };
    writer.word(receipt.term);
    writer.word(receipt.index);
    writer.byte(state);
    writer.word(number);
}

fn decode_receipt(reader: &mut Reader<'_>) -> Option<Receipt> {
    let (term, index) = (reader.word()?, reader.word()?);
    let state = match (reader.byte()?, reader.word()?) {
        (0, number) => Received::Wants(number),
        (1, _) => Received::All,
        (2, _) => Received::Older,
        (3, _) => Received::Unfit,
        _ => return None,
    };
    Some(Receipt { term, index, state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::encode_changes;
    use crate::members::{MemberChange, encode_change};
    use coreplane_engine::Batch;

    fn entry(index: u64) -> Entry {
        let mut batch = Batch::new();
        batch.put(b"key", b"value").delete(b"other");
        let data = encode_changes(batch.changes()).into();
        Entry { index, term: 3, data, context: Bytes::from_static(b"who"), ..Entry::default() }
    }

    fn envelopes() -> Vec<Envelope> {
        let mut append = RaftMessage::default();
        append.set_msg_type(MessageType::MsgAppend);
        (append.from, append.to, append.term, append.index) = (1, 2, 3, 7);
        let mut members = Entry { index: 9, term: 3, ..Entry::default() };
        let context = encode_change(&[(MemberChange::Learner(4), 5)]);
        to_members_entry(&mut members, &context).unwrap();
        members.context = context.into();
        append.set_entries(vec![entry(8), members].into());
        let mut vote = RaftMessage::default();
        vote.set_msg_type(MessageType::MsgRequestVoteResponse);
        (vote.from, vote.to, vote.term, vote.reject) = (1, 2, 9, true);
        let record = Record {
            key: b"a".to_vec(),
            value: vec![7; 300],
            timestamp: 5,
            expires_at: Some(UnixMillis(0)),
        };
        let page = Page {
            term: 3,
            index: 70,
            number: 1,
            is_last: true,
            bytes: 700,
            header: Bytes::from_static(b"header"),
            members: Bytes::new(),
            records: vec![record.clone(), Record { expires_at: None, ..record }],
        };
        let receipt = Receipt { term: 3, index: 70, state: Received::Wants(2) };
        [
            Body::Raft(append),
            Body::Raft(vote),
            Body::Page(page),
            Body::Receipt(receipt),
            Body::Receipt(Receipt { state: Received::All, ..receipt }),
            Body::Receipt(Receipt { state: Received::Older, ..receipt }),
            Body::Receipt(Receipt { state: Received::Unfit, ..receipt }),
            Body::Ask(9),
            Body::Told(9, 70),
            Body::Keepalive,
            Body::Hello(Hello {
                is_bound: true,
                asks: false,
                leader: 3,
                index: 9,
                key_len_max: 1988,
                known: Peer { node: 2, identity: 3, start: 4, life: 5 },
            }),
        ]
        .map(|body| Envelope { cluster: 1, identity: 8, start: 4, life: 6, from: 1, to: 2, body })
        .to_vec()
    }

    #[test]
    fn messages_are_what_they_were() {
        for envelope in envelopes() {
            let mut bytes = b"before".to_vec();
            envelope.encode(&mut bytes);
            assert_eq!(Envelope::decode(&bytes[6..]), Ok(envelope));
        }
    }

    #[test]
    fn no_bytes_are_a_panic_and_no_flip_is_a_message() {
        for envelope in envelopes() {
            let mut bytes = Vec::new();
            envelope.encode(&mut bytes);
            for at in 0..bytes.len() {
                assert!(Envelope::decode(&bytes[..at]).is_err());
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[at] ^= 1 << bit;
                    assert!(Envelope::decode(&other).is_err());
                    // The same bytes with a correct checksum: any result but a panic will do.
                    let crc = crc32c::crc32c(&other[4..]);
                    other[..4].copy_from_slice(&crc.to_le_bytes());
                    if let Ok(read) = Envelope::decode(&other) {
                        let mut again = Vec::new();
                        read.encode(&mut again);
                        assert_eq!(Envelope::decode(&again), Ok(read));
                    }
                }
            }
        }
    }
}
