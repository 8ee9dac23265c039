//! Where a key belongs: its slot, the group that owns it, and the order of the group's devices.

mod append_list;
mod order;
mod owners;
mod position;
mod prototype;
pub mod slots;

pub(crate) use append_list::AppendList;
pub(crate) use order::{Order, nth, numbers};
pub(crate) use owners::{Owners, Route};
pub(crate) use position::Devices;
pub use position::{Ack, DEVICES_MAX, GROUPS_MAX, Position, RESERVED, is_reserved};
pub use prototype::{Prototype, ReadPath};
pub use slots::SLOTS;
pub(crate) use slots::{deal, share_of, slot_of};

/// The engine's name.
pub const NAME: &str = "mkvs";

/// The choice of a name, as in options and records.
///
/// # Errors
/// If there is none; the message lists all names.
pub(crate) fn parse<T: Copy>(text: &str, choices: &[(T, &str)]) -> Result<T, String> {
    let known = choices.iter().find(|(_, name)| *name == text);
    known.map(|(choice, _)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(_, name)| *name).collect();
        format!("`{text}` is none of {}", names.join(", "))
    })
}
