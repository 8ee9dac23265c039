//! Choices by their names, as in options and records.

/// The choice of a name.
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
