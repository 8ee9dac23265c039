//! A group of two devices with processors of their own.

mod apply_batch;
mod followers;
mod hedges;
mod items;
pub(super) mod pair;
mod submit;
mod urgency;
