//! Where a key belongs: its slot, the group that owns it, and the order of the group's devices.

pub(crate) mod append_list;
pub(crate) mod order;
pub(crate) mod owners;
pub(crate) mod position;
pub(crate) mod prototype;
pub mod slots;

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
