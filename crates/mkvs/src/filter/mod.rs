//! Which keys a group may have: a counting Bloom filter whose counters of a key are in one line.
//!
//! A probe says "surely not here" or "perhaps here". The first answer is never wrong for a key whose insertion is
//! known to have returned; the second is wrong for at most one key in a hundred at the design load, and costs such
//! a key a lookup on a device.
//!
//! ```text
//!   hash ─▶ line: 64 bytes, eight words of sixteen 4-bit counters
//!           ┌──────┬──────┬──────┬──────┬──────┬──────┬──────┬──────┐
//!           │      │ 1 2 1│      │      │      │2   1 3│      │      │
//!           └──────┴──────┴──────┴──────┴──────┴──────┴──────┴──────┘
//!                   a key counts in three places of each of two words
//! ```
//!
//! # One line, two words
//!
//! A Bloom filter that puts a key's counters anywhere has a cache miss for each. Here they are in
//! one line, so that a probe is one miss, and in two words of it, so that an insertion is two
//! compare-and-swaps. That has its price in memory. Lines are not equally full (Poisson), full ones
//! are wrong more often, and places that are chosen inside of two words meet more often than places
//! anywhere. For 1 % this was found by simulation, 2^18 lines, best count of places each:
//!
//! | counters of a key | bits a key | words an insertion touches |
//! |---|---|---|
//! | anywhere (textbook) | 38.3 | 7 lines |
//! | six anywhere in a line | 43.6 | 4.4 |
//! | six in three words of a line | 44.5 | 3 |
//! | six in two words of a line (here) | 48.8 | 2 |
//!
//! The design load is [`KEYS_PER_LINE`] = 10 keys a line: 51.2 bits a key, and 0.82 % wrong. A
//! filter that is fuller is slower, never wrong in the other way: 1.1 % at 11 keys a line, 1.5 % at
//! 12, 2.4 % at 14.
//!
//! # Counters
//!
//! The marks of a key in a word are a *set*: places that coincide are counted once, and uncounted once. A counter
//! that has reached 15 stays there, since the number of keys that it counts is not known any more; a key that is
//! removed from it remains as a false "perhaps", until the table is made anew. At the design load one counter in
//! 10^17 reaches 15. A line that gets hundreds of keys gives up, and says "perhaps" to all.
//!
//! # Order
//!
//! All accesses to counters are relaxed. A thread that knows that an insertion has returned (it happens before the
//! probe) sees the word as the insertion left it or later, and later only removals of other keys may have lowered
//! it, each by the amount that its own insertion had added before.
//!
//! # Growing
//!
//! A table does not grow, so a [`Filter`] is given a new one ([`Filter::rebuild`]) that is filled from the keys of
//! the engine, which are authoritative, while probes, insertions and removals go on:
//!
//! ```text
//!   state      probes   insert      remove    keys of the engine
//!   quiet      A        A           A
//!   rebuild    A        A and B     A         are added to B
//!   quiet      B        B           B, if the change began after the switch; else nothing
//! ```
//!
//! The danger is a removal from B of a key that B has not counted: it lowers the counters of *other* keys, and then
//! these are denied. It could happen in two ways: the key is removed before the listing of the engine's keys
//! reaches it, or it is deleted from the engine before that, and removed from the filter only after the switch.
//! Both are impossible by construction:
//!
//! - No removal lowers B before the switch: no way leads from a removal to it.
//! - A writer begins a [`Change`] *before* it touches the engine, and ends it after. A removal lowers
//!   B only within a change that began when B was in force: the engine still had the key then, so it
//!   had it all the time while its keys were listed, and B has counted it; or it was inserted since
//!   the rebuild began, and B has counted that.
//! - Keys are listed only after all changes have ended that began before B was there. So a key
//!   that was inserted into A alone is in the engine, and is listed.
//! - The switch does not return before all changes have ended that began before it. So the next
//!   rebuild has to wait only for changes that began after it.
//!
//! Damage of an engine's index may hide a key while keys are listed. So the removal of a key that B denies lowers
//! nothing.
//!
//! A put that finds its key there already takes back its count ([`Insertion::undo`]). That is exact during a
//! rebuild too, and also in B: the put knows which of the tables that it finds then have counted the key.
//!
//! Some counts stay too high: a key that is removed during a rebuild, or whose removal was under way at the switch,
//! may remain in B as a false "perhaps"; a key that is inserted during a rebuild may be counted twice (as inserted
//! and as listed), and remains when it is removed. So there are at most as many such counts as insertions (not
//! undone) and removals during the rebuild. They are part of [`Filter::len`], so they bring the next rebuild
//! nearer, which drops them.
//!
//! A rebuild that fails is dropped, and A stays in force as if nothing had happened.
//!
//! # Cost
//!
//! A probe pins an epoch (a store), loads two pointers and a line: no lock, and no locked instruction if the kernel
//! fences for the epoch's readers (Linux does). A change is two stores to a line of the thread's own (for threads
//! beyond 64, two locked instructions on a shared one), and an insertion or a removal is two locked instructions on the
//! key's line. Only a rebuild waits.
//!
//! # Departures from the paper
//!
//! The paper names a counting Bloom filter and no more. Its update and delete go to the device, and racing
//! insertions are not mentioned; [`Change`] handles these. That a filter must grow, and be made anew when the
//! counters have lost count, is not in the paper.

mod bloom;
pub(crate) mod bypass;
mod counters;
mod kernel;
mod marks;
mod stripe;

pub use bloom::{Change, Filter, Insertion, Rebuild, hash_of};
pub use kernel::KEYS_PER_LINE;

/// The least number of keys that a filter has room for.
pub(crate) const CAPACITY_MIN: u64 = 4096;
