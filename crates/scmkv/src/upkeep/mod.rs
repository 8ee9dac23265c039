pub(crate) mod background;
pub(crate) mod checkpoint;
pub(crate) mod repair;
pub(crate) mod scrub;
pub(crate) mod verify;
