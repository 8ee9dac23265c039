//! An initial file system in cpio's `newc` form, as the kernel unpacks it.

/// A cpio archive under construction.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

impl Archive {
    /// An archive without files.
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), entries: 0 }
    }

    /// Adds a directory; its parent must be there already.
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, (0, 0), &[]);
    }

    /// Adds a file that may be run.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, (0, 0), content);
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, CHARACTER_DEVICE, (major, minor), &[]);
    }

    /// The archive's bytes, with its trailer.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0, // owner
            0, // group
            1, // links
            0, // modified
            u32::try_from(content.len()).unwrap_or(u32::MAX),
            0,
            0,
            device.0,
            device.1,
            u32::try_from(path.len() + 1).unwrap_or(u32::MAX),
            0, // checksum: none in this form
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_closed_by_the_trailer() {
        let mut archive = Archive::new();
        archive.directory("bin");
        archive.file("bin/x", b"12345");
        archive.device("dev/console", 5, 1);
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let magic = bytes.windows(6).filter(|window| window == b"070701");
        assert_eq!(magic.count(), 4);
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
