//! Tests that look into several rooms.

mod cleaner;
mod elements;
mod pages;
mod unflushed;
