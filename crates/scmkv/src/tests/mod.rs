//! Tests that look into several rooms.

mod checkpoints;
mod cleaner;
mod elements;
mod headers;
mod holes;
#[path = "../../tests/kill/mod.rs"]
mod kill;
mod large;
mod pages;
mod reindex;
mod sparse;
mod unflushed;
mod victims;
mod windows;
