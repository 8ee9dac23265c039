//! Damaged stores: what is read of them, and what a repair leaves.

#[path = "../home/mod.rs"]
mod home;
#[path = "../kill/mod.rs"]
mod kill;
#[path = "../scale/mod.rs"]
mod scale;
#[path = "../tiny/mod.rs"]
mod tiny;

mod anywhere;
mod damage;
mod exactness;
mod flips;
mod image;
mod interrupted;
mod lost_pages;
mod slots;
mod undurable;
mod unreadable;
mod wreck;
