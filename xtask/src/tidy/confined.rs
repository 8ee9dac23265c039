//! `unsafe`, inline assembly and the calls by which stores become durable live in `crates/pmem`.
//!
//! A flush that a reader of `pmem` does not see is a flush that the crash simulator does not see either: then the
//! proof that nothing is lost would no longer apply to this program. The compiler forbids `unsafe` by the workspace's
//! lints; this rule checks every file again, whichever manifest builds it.
//!
//! A line that makes something durable that is no pool (a written report) is marked above:
//! `// tidy-allow: persistence: REASON`.

use super::source::{Source, line_of};
use super::{Finding, Tree};

/// The only place where all of this is allowed.
const HOME: &str = "crates/pmem/";
/// Calls C libraries to compare with, and touches no pool of ours, so that only `unsafe` is allowed.
const FOREIGN: &str = "bench-peers/bindings/";
/// The escape, which needs a reason.
const ESCAPE: &str = "tidy-allow: persistence:";

/// Words that write back, order, map or sync.
const PERSISTENCE: [&str; 22] = [
    "clwb",
    "clflush",
    "clflushopt",
    "sfence",
    "_mm_clflush",
    "_mm_sfence",
    "_mm_mfence",
    "_mm_stream_si64",
    "_mm_stream_si128",
    "_mm256_stream_si256",
    "msync",
    "mmap",
    "mmap_anonymous",
    "munmap",
    "mremap",
    "madvise",
    "memmap2",
    "fsync",
    "fdatasync",
    "sync_data",
    "sync_all",
    "sync_file_range",
];

const ASSEMBLY: [&str; 3] = ["asm", "global_asm", "naked_asm"];

/// Finds such words outside of their home.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in tree.rust.iter().filter(|s| !s.path.starts_with(HOME)) {
        check_words(source, findings);
        for (at, _) in source.code.match_indices("rustix::mm") {
            report(source, line_of(&source.code, at), "rustix::mm", findings);
        }
    }
}

fn check_words(source: &Source, findings: &mut Vec<Finding>) {
    for (line, at, word) in source.words() {
        let macro_call = source.code[at + word.len()..].starts_with('!');
        if word == "unsafe" && source.path.starts_with(FOREIGN) {
            continue;
        }
        if word == "unsafe" {
            findings.push(Finding {
                path: source.path.clone(),
                line,
                rule: "unsafe",
                message: "`unsafe` belongs in crates/pmem alone".to_owned(),
            });
        } else if PERSISTENCE.contains(&word) || (macro_call && ASSEMBLY.contains(&word)) {
            report(source, line, word, findings);
        }
    }
}

fn report(source: &Source, line: usize, what: &str, findings: &mut Vec<Finding>) {
    if excused(source, line) {
        return;
    }
    findings.push(Finding {
        path: source.path.clone(),
        line,
        rule: "persistence",
        message: format!("`{what}` belongs in crates/pmem alone"),
    });
}

/// True if the line, or the comment right above it, gives a reason.
fn excused(source: &Source, line: usize) -> bool {
    source
        .comments
        .lines()
        .skip(line.saturating_sub(2))
        .take(2)
        .filter_map(|comment| comment.split_once(ESCAPE))
        .any(|(_, reason)| !reason.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<&'static str> {
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut findings);
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn persistence_outside_pmem_fires() {
        for text in [
            "core::arch::asm!(\"nop\");",
            "file.sync_all()?;",
            "use rustix::mm::MapFlags;",
            "clwb(line);",
            "rustix::fs::fdatasync(&file)?;",
        ] {
            assert_eq!(findings("crates/scmkv/src/a.rs", text), ["persistence"], "{text}");
            assert!(findings("crates/pmem/src/a.rs", text).is_empty());
        }
    }

    #[test]
    fn unsafe_outside_pmem_fires() {
        let text = "fn f() { unsafe { g() } }";
        assert_eq!(findings("fuzz/src/a.rs", text), ["unsafe"]);
        assert_eq!(findings("bench-peers/src/a.rs", text), ["unsafe"]);
        assert!(findings("crates/pmem/src/a.rs", text).is_empty());
        assert!(findings("bench-peers/bindings/src/a.rs", text).is_empty());
        let synced = "fn f() { unsafe { msync() } }";
        assert_eq!(findings("bench-peers/bindings/src/a.rs", synced), ["persistence"]);
        assert!(findings("a.rs", "// unsafe\nlet unsafe_code = 1;").is_empty());
    }

    #[test]
    fn words_in_strings_and_names_that_contain_them_pass() {
        assert!(findings("a.rs", "let a = \"mmap\"; // clwb\nlet msyncs = asm;").is_empty());
    }

    #[test]
    fn the_escape_needs_a_reason() {
        let with = "// tidy-allow: persistence: a report, not a pool\nfile.sync_all()?;";
        let without = "// tidy-allow: persistence:\nfile.sync_all()?;";
        let far = "// tidy-allow: persistence: a report\n\nfile.sync_all()?;";
        assert!(findings("a.rs", with).is_empty());
        assert_eq!(findings("a.rs", without), ["persistence"]);
        assert_eq!(findings("a.rs", far), ["persistence"]);
    }
}
