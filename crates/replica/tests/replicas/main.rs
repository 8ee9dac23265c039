//! Replicas in one thread: clocks that differ, leaderships that come and go, pools that are nearly full.

mod changes;
mod clear;
mod drafts;
mod expiry;
mod followers;
mod leaderships;
mod seat;
mod snapshots;
mod stop;
