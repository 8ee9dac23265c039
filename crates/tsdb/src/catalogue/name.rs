//! The rules for names.

use crate::point::KEY_MAX;

/// The maximum length of the name of a database or a policy, in bytes.
const NAME_MAX: usize = 255;
/// Checks the name of a database or a policy.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    check(name, NAME_MAX)
}

/// Checks a series' key, or the name of a measurement or a field.
pub(super) fn check_key(key: &str) -> Result<(), String> {
    check(key, KEY_MAX)
}

fn check(name: &str, max: usize) -> Result<(), String> {
    if name.is_empty() {
        Err("invalid name: it is empty".to_owned())
    } else if name.len() > max {
        Err(format!("max key length exceeded: {} > {max}", name.len()))
    } else if name.contains('\n') {
        Err(format!("invalid name: {name:?} has a line break"))
    } else {
        Ok(())
    }
}
