//! The instructions that write lines back, one file per architecture behind one face:
//! `flush_line`, `fence`, `copy_nt`, `detect`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{available, copy_nt, fence, flush_line};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use portable::{available, copy_nt, fence, flush_line};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{available, copy_nt, fence, flush_line};
