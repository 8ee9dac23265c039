//! The command on pools and matrices, served and closed.

#[path = "../pool/mod.rs"]
mod pool;
#[path = "../session/mod.rs"]
mod session;

mod command_line;
mod damage;
mod devices;
mod disks;
mod killed;
mod lost;
mod matrix;
mod ordered;
mod outputs;
mod poisoned;
mod pools;
mod read_only;
mod refused;
mod remote;
mod truncation;
mod watched;
