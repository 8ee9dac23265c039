//! The file system of an ordinary file.
//!
//! A fence on `file` media is a sync (`space::sync`). Its effect depends on the file system: one in
//! DRAM syncs at once and loses everything at a power cut.

use std::fs::File;

/// Magic numbers of file systems that live in memory (`statfs(2)`).
const IN_MEMORY: [(u64, &str); 3] =
    [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs")];

/// Other file systems, named in messages.
const ON_DISK: [(u64, &str); 6] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x6969, "nfs"),
    (0x794c_7630, "overlayfs"),
    (0xf2f5_2010, "f2fs"),
];

fn magic(file: &File) -> Option<u64> {
    // The field is a signed word of 32 or 64 bits; magic numbers have 32.
    rustix::fs::fstatfs(file).ok().map(|stat| u64::from(stat.f_type as u32))
}

/// The name of the file system if it lives in memory.
pub(crate) fn memory_filesystem(file: &File) -> Option<&'static str> {
    let magic = magic(file)?;
    IN_MEMORY.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// The name of the file system, for a message.
pub(crate) fn filesystem_name(file: &File) -> String {
    let Some(magic) = magic(file) else {
        return "an unknown file system".to_owned();
    };
    IN_MEMORY
        .iter()
        .chain(&ON_DISK)
        .find(|(number, _)| *number == magic)
        .map_or_else(|| format!("a file system of type {magic:#x}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_lives_in_memory() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        assert_eq!(memory_filesystem(&file), Some("tmpfs"));
        assert_eq!(filesystem_name(&file), "tmpfs");
    }
}
