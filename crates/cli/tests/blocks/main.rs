//! The command's block devices, without a mount of the kernel but for the power cuts.

#[path = "../disk/mod.rs"]
mod disk;
#[path = "../mount/mod.rs"]
mod mount;
#[path = "../pool/mod.rs"]
mod pool;
#[path = "../session/mod.rs"]
mod session;

mod cuts;
mod device;
mod kills;
mod server;
mod trace;
