//! Tests that look into several rooms.

mod cleaner;
mod elements;
mod holes;
mod large;
mod pages;
mod unflushed;
mod victims;
mod windows;
