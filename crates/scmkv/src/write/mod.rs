pub(crate) mod ahead;
pub(crate) mod batch;
pub(crate) mod overflow;
pub(crate) mod put;
pub(crate) mod sweep_expired;
