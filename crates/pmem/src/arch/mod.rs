//! The instructions that write lines back, one file per architecture behind one face:
//! `available`, `flush_line`, `fence`, `copy_nt`.
//!
//! `RUSTFLAGS="--cfg coreplane_portable"` builds the twin for unknown processors anywhere, so
//! that it is tested on the processors that we have.

#[cfg(all(target_arch = "aarch64", not(coreplane_portable)))]
mod aarch64;
#[cfg(any(coreplane_portable, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod portable;
#[cfg(all(target_arch = "x86_64", not(coreplane_portable)))]
mod x86_64;

#[cfg(all(target_arch = "aarch64", not(coreplane_portable)))]
pub(crate) use aarch64::{available, copy_nt, fence, flush_line};
#[cfg(any(coreplane_portable, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(crate) use portable::{available, copy_nt, fence, flush_line};
#[cfg(all(target_arch = "x86_64", not(coreplane_portable)))]
pub(crate) use x86_64::{available, copy_nt, fence, flush_line};
