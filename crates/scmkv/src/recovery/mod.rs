pub(crate) mod open;
pub(crate) mod recover;
