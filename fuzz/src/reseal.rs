//! Corrects the checksums of a pool, as `docs/media-format.md` defines them, so that a target reaches the code behind
//! them.

use crc32c::{crc32c, crc32c_append};

const HEADER: usize = 2048;
const ELEMENT: usize = 32;
const RECORD_HEADER: usize = 20;

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|bytes| bytes.first_chunk())
        .map_or(0, |it| u64::from_le_bytes(*it))
}

fn put(bytes: &mut [u8], at: usize, content: &[u8]) {
    bytes[at..at + content.len()].copy_from_slice(content);
}

/// Corrects the static part, root slots and root state.
pub fn header(bytes: &mut [u8]) {
    if bytes.len() < HEADER {
        return;
    }
    put(bytes, 12, &[0; 4]);
    let crc = crc32c(&bytes[..512]);
    put(bytes, 12, &crc.to_le_bytes());
    let uuid = crc32c(&bytes[16..32]);
    for slot in [512, 1024] {
        let crc = crc32c_append(uuid, &bytes[slot..slot + 120]);
        put(bytes, slot + 120, &u64::from(crc).to_le_bytes());
    }
    let low = word(bytes, 1536) & u64::from(u32::MAX);
    let state = low | u64::from(crc32c_append(uuid, &low.to_le_bytes())) << 32;
    put(bytes, 1536, &state.to_le_bytes());
}

/// Seals the word at `at` again, its content unchanged.
fn seal(bytes: &mut [u8], at: usize) {
    let content = word(bytes, at) & ((1 << 48) - 1);
    let crc = crc32c_append(crc32c(&content.to_le_bytes()), &(at as u64).to_le_bytes());
    let check = u64::from((crc ^ crc >> 16) as u16);
    put(bytes, at, &(content | check << 48).to_le_bytes());
}

const PAGE: usize = 4096;

/// Corrects all checksums of a pool of scmkv with pages of 4 KiB and segments of 256 bytes. Records are where
/// `sound`, the pool before it was changed, has them.
pub fn all(bytes: &mut [u8], sound: &[u8]) {
    const SEGMENTS: usize = PAGE / 256;
    header(bytes);
    for page in 0..bytes.len() / PAGE {
        let element = HEADER + page * ELEMENT;
        for at in [element, element + 8, element + 16, element + 24] {
            if word(bytes, at) != 0 {
                seal(bytes, at);
            }
        }
        let start = page * PAGE;
        match word(sound, element) & 0xf {
            3 => records(bytes, sound, page),
            4 => {
                for at in (start + 8..start + 8 * SEGMENTS).step_by(8) {
                    if word(bytes, at) != 0 {
                        seal(bytes, at);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Corrects the records of a page.
fn records(bytes: &mut [u8], sound: &[u8], page: usize) {
    let (mut at, end) = (page * PAGE, (page + 1) * PAGE);
    while let Some((crc, len)) = record(sound, page, at, end) {
        if sound[at..at + 4] != crc.to_le_bytes() {
            return;
        }
        if let Some((crc, _)) = record(bytes, page, at, end) {
            put(bytes, at, &crc.to_le_bytes());
        }
        at += len.next_multiple_of(8);
    }
}

/// Checksum and length of a possible record at `at`.
fn record(bytes: &[u8], page: usize, at: usize, end: usize) -> Option<(u32, usize)> {
    if at + RECORD_HEADER > end {
        return None;
    }
    let generation = (word(bytes, HEADER + page * ELEMENT) >> 16) as u32;
    let lengths = word(bytes, at) >> 32;
    let (key, kind, flags) = (lengths & 0x1_ffff, lengths >> 17 & 7, lengths >> 20 & 0xf);
    let head = RECORD_HEADER + 8 * (flags & 3).count_ones() as usize + key as usize;
    let len = head + word(bytes, at + 8) as u32 as usize;
    if !(1..=4).contains(&kind) || len > end - at {
        return None;
    }
    let offset = at as u64;
    let seed = crc32c(&bytes[16..32])
        ^ generation.wrapping_mul(0x9e37_79b1)
        ^ ((offset >> 3) as u32).rotate_left(7)
        ^ (offset >> 35) as u32;
    Some((crc32c_append(seed, &bytes[at + 4..at + len]), len))
}
