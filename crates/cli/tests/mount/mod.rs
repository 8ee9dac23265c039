//! A file system on a disk: nbdfuse makes the export a file, a loop device makes that a block device for ext4.
//!
//! ```text
//!   ext4 ─▶ /dev/loopN ─▶ a file of FUSE ─▶ nbdfuse ─▶ coreplane nbd serve
//! ```
//!
//! In any case the test unmounts what it has mounted. A server that is gone leaves requests in the kernel that are
//! not answered until nbdfuse is killed: that is always done first.

#![allow(dead_code, reason = "each test takes what it needs")]

use crate::disk::{Disk, run, succeeds};
use crate::pool::Place;
use crate::session::{Outcome, text};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The requirements, by the names of `disk::lack`.
pub(crate) const NEEDED: [&str; 4] = ["nbdfuse", "mkfs.ext4", "losetup", "loops"];

pub(crate) struct Mount {
    fuse: Child,
    fuse_at: String,
    device: Option<String>,
    /// The mount point, if the file system is mounted.
    pub(crate) at: PathBuf,
    is_mounted: bool,
}

impl Mount {
    /// The disk, which is being served, as a block device.
    pub(crate) fn attach(disk: &Disk) -> Outcome<Self> {
        Self::attach_export(&disk.uri("@device=1,interval=10ms"), &disk.place)
    }

    /// An export as a block device.
    pub(crate) fn attach_export(uri: &str, place: &Place) -> Outcome<Self> {
        let (fuse_at, at) = (place.path("fuse"), place.path("mount"));
        for directory in [&fuse_at, &at] {
            std::fs::create_dir_all(directory)?;
        }
        let fuse = Command::new("nbdfuse")
            .arg(&fuse_at)
            .arg(uri)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let file = fuse_at.join("nbd");
        let fuse_at = text(&fuse_at)?.to_owned();
        let mut mount = Self { fuse, fuse_at, device: None, at, is_mounted: false };
        while !file.exists() {
            if let Some(status) = mount.fuse.try_wait()? {
                return Err(format!("nbdfuse has ended: {status}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let device = succeeds("losetup", &["--show", "-f", text(&file)?])?;
        mount.device = Some(device.trim().to_owned());
        Ok(mount)
    }

    fn device(&self) -> Outcome<&str> {
        self.device.as_deref().ok_or_else(|| "no loop device".into())
    }

    /// Makes a file system.
    pub(crate) fn make(&self) -> Outcome<()> {
        succeeds("mkfs.ext4", &["-q", "-b", "4096", self.device()?]).map(drop)
    }

    /// Replays the journal; then the file system must be sound.
    pub(crate) fn check(&self) -> Outcome<()> {
        check(self.device()?)
    }

    pub(crate) fn mount(&mut self) -> Outcome<&Path> {
        succeeds("mount", &["-t", "ext4", self.device()?, text(&self.at)?])?;
        self.is_mounted = true;
        Ok(&self.at)
    }

    /// Unmounts and detaches in an orderly way.
    pub(crate) fn detach(mut self) -> Outcome<()> {
        unmount(text(&self.at)?)?;
        self.is_mounted = false;
        self.check()?;
        succeeds("losetup", &["-d", self.device()?])?;
        self.device = None;
        unmount(&self.fuse_at)?;
        self.fuse.wait()?;
        Ok(())
    }

    /// Ends nbdfuse: pending requests of the device fail, and so do all later ones.
    pub(crate) fn cut(&mut self) -> Outcome<()> {
        // It may have ended already.
        let _gone = self.fuse.kill().is_ok();
        self.fuse.wait()?;
        Ok(())
    }
}

/// Unmounts in an orderly way, as soon as the last file is closed: a loop device closes its file a moment after
/// `losetup -d` if another process looks at the device, and a child that was just forked has the files of its parent.
fn unmount(at: &str) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match run("umount", &[at])? {
            (true, _) => return Ok(()),
            (false, said) if said.contains("busy") && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            (false, said) => return Err(format!("umount {at}: {said}").into()),
        }
    }
}

/// Replays the journal of the file system in a device or a file; then the file system must be sound.
pub(crate) fn check(image: &str) -> Outcome<()> {
    succeeds("e2fsck", &["-E", "journal_only", "-p", image])?;
    succeeds("e2fsck", &["-f", "-n", image]).map(drop)
}

fn mix(bits: u64) -> u64 {
    let mut bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Bytes that are computed from a number, and begin with it.
pub(crate) fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    let words = (1..).map(|word| mix(number << 16 ^ word)).flat_map(u64::to_le_bytes);
    number.to_le_bytes().into_iter().chain(words).take(len).collect()
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _cut = self.cut().is_ok();
        let at = self.at.display().to_string();
        if self.is_mounted {
            let _gone = run("umount", &["-l", &at]).is_ok();
        }
        if let Some(device) = self.device.take() {
            let _gone = run("losetup", &["-d", &device]).is_ok();
        }
        let _gone = run("umount", &["-l", &self.fuse_at]).is_ok();
    }
}
