//! A pool as the command line names it, and its directory.
#![allow(dead_code, reason = "each test takes what it needs")]

use crate::session::{Outcome, Served, coreplane, expect, expect_with, text};
use std::path::{Path, PathBuf};
use std::process::Output;

/// A directory that is removed when it is dropped.
pub(crate) struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// In memory.
    pub(crate) fn in_memory() -> Outcome<Self> {
        Ok(Self { directory: tempfile::tempdir_in("/dev/shm")? })
    }

    /// In the directory of the workspace: on an ordinary disk, or at least not in memory.
    pub(crate) fn on_disk() -> Outcome<Self> {
        Ok(Self { directory: tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))? })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The path of `name` as an argument.
    pub(crate) fn argument(&self, name: &str) -> Outcome<String> {
        Ok(text(&self.path(name))?.to_owned())
    }

    /// The pool `name`, which does not exist yet.
    pub(crate) fn pool(&self, name: &str) -> Outcome<Pool> {
        Pool::at(&self.path(name))
    }

    /// The pool `name`, created with these arguments.
    pub(crate) fn created(&self, name: &str, arguments: &[&str]) -> Outcome<Pool> {
        let pool = self.pool(name)?;
        pool.expect(0, &[&["create"], arguments].concat())?;
        Ok(pool)
    }
}

/// A pool, existing or not.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
}

impl Pool {
    pub(crate) fn at(path: &Path) -> Outcome<Self> {
        Ok(Self { path: path.to_owned(), name: text(path)?.to_owned() })
    }

    fn with<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        [command, &["--pool", &self.name]].concat()
    }

    /// Runs a command on it, with this input.
    pub(crate) fn run(&self, command: &[&str], input: &[u8]) -> Outcome<Output> {
        coreplane(&self.with(command), input)
    }

    /// Runs a command on it and expects this exit code; its output.
    pub(crate) fn expect(&self, code: i32, command: &[&str]) -> Outcome<String> {
        expect(code, &self.with(command))
    }

    /// As [`Pool::expect`], with input.
    pub(crate) fn expect_with(&self, code: i32, command: &[&str], input: &[u8]) -> Outcome<String> {
        expect_with(code, &self.with(command), input)
    }

    /// Runs a command on it; the exit code and all its output.
    pub(crate) fn ask(&self, command: &[&str], input: &[u8]) -> Outcome<(i32, String)> {
        let output = self.run(command, input)?;
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code().ok_or_else(|| format!("{command:?} was killed"))?;
        assert!(!complaint.contains("panicked"), "{command:?}: {complaint}");
        Ok((code, format!("{complaint}{}", String::from_utf8_lossy(&output.stdout))))
    }

    /// Runs a command on it that must end with this exit code and print one of `words`.
    pub(crate) fn says(&self, code: i32, words: &[&str], command: &[&str]) -> Outcome<()> {
        self.says_with(code, words, command, b"")
    }

    /// As [`Pool::says`], with input.
    pub(crate) fn says_with(
        &self,
        code: i32,
        words: &[&str],
        command: &[&str],
        input: &[u8],
    ) -> Outcome<()> {
        let (ended, said) = self.ask(command, input)?;
        assert_eq!(ended, code, "{command:?} on {}: {said}", self.name);
        let is_named = words.iter().any(|word| said.contains(word));
        assert!(is_named, "{command:?} on {}: {said}", self.name);
        Ok(())
    }

    /// Removes it.
    pub(crate) fn remove(&self) -> Outcome<()> {
        if self.path.is_dir() {
            return Ok(std::fs::remove_dir_all(&self.path)?);
        }
        Ok(std::fs::remove_file(&self.path)?)
    }

    /// A server of it.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Outcome<Served> {
        Served::start(&self.with(arguments))
    }

    /// `verify` must find no fault.
    pub(crate) fn is_sound(&self) -> Outcome<()> {
        self.expect(0, &["verify"]).map(drop)
    }

    pub(crate) fn is_there(&self) -> Outcome<bool> {
        Ok(std::fs::exists(&self.path)?)
    }

    pub(crate) fn bytes(&self) -> Outcome<Vec<u8>> {
        Ok(std::fs::read(&self.path)?)
    }

    /// Replaces the file's content by `bytes`.
    pub(crate) fn put_bytes(&self, bytes: &[u8]) -> Outcome<()> {
        Ok(std::fs::write(&self.path, bytes)?)
    }
}
