//! The slow log: the latest of the commands that took longer than a bound.
//!
//! A command that is not slow costs one comparison. The words of a slow one are shown as far as Redis shows them: 32
//! of them, 128 bytes of each.

use crate::stopwatch::SLOW;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

const WORDS_MAX: usize = 32;
const WORD_LEN_MAX: usize = 128;

/// One slow command.
#[derive(Debug)]
pub(crate) struct SlowCommand {
    /// Counts up and is never reused.
    pub id: u64,
    /// Seconds since 1970 at which it had ended.
    pub at: u64,
    /// The duration.
    pub micros: u64,
    /// The words that were sent, shortened.
    pub words: Vec<Vec<u8>>,
    /// The address of the client.
    pub address: String,
    /// The name that the client gave itself.
    pub name: String,
}

/// The latest slow commands.
#[derive(Debug)]
pub(crate) struct SlowLog {
    /// Commands that take at least so many microseconds are kept; negative: none.
    pub slower_than: AtomicI64,
    /// The number of commands that are kept.
    pub len_max: AtomicU64,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next_id: u64,
    newest_first: VecDeque<Arc<SlowCommand>>,
}

impl Default for SlowLog {
    fn default() -> Self {
        Self { slower_than: 10_000.into(), len_max: 128.into(), entries: Mutex::default() }
    }
}

impl SlowLog {
    /// True if it may keep commands.
    pub(crate) fn is_on(&self) -> bool {
        self.slower_than.load(Ordering::Relaxed) >= 0
    }

    /// True if it keeps commands that the stopwatch does not count as slow.
    pub(crate) fn wants_quick(&self) -> bool {
        let bound = u64::try_from(self.slower_than.load(Ordering::Relaxed));
        bound.is_ok_and(|bound| Duration::from_micros(bound) < SLOW)
    }

    /// True if a command of this duration is kept.
    pub(crate) fn wants(&self, took: Duration) -> bool {
        let bound = u64::try_from(self.slower_than.load(Ordering::Relaxed));
        bound.is_ok_and(|bound| took >= Duration::from_micros(bound))
    }

    /// Keeps a command and gives it its id.
    pub(crate) fn push(&self, mut command: SlowCommand) {
        let len_max = usize::try_from(self.len_max.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let mut entries = self.entries.lock();
        command.id = entries.next_id;
        entries.next_id += 1;
        entries.newest_first.push_front(Arc::new(command));
        entries.newest_first.truncate(len_max);
    }

    /// The number of commands kept.
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().newest_first.len()
    }

    /// At most `count` of them, the newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<Arc<SlowCommand>> {
        self.entries.lock().newest_first.iter().take(count).cloned().collect()
    }

    /// Forgets all of them.
    pub(crate) fn reset(&self) {
        self.entries.lock().newest_first.clear();
    }
}

/// The words as the log shows them.
pub(crate) fn shortened<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let count = words.len();
    let shown = if count > WORDS_MAX { WORDS_MAX - 1 } else { count };
    let mut short: Vec<Vec<u8>> = words.take(shown).map(shortened_word).collect();
    if count > shown {
        short.push(format!("... ({} more arguments)", count - shown).into_bytes());
    }
    short
}

fn shortened_word(word: &[u8]) -> Vec<u8> {
    match word.split_at_checked(WORD_LEN_MAX) {
        Some((head, rest @ [_, ..])) => {
            [head, format!("... ({} more bytes)", rest.len()).as_bytes()].concat()
        }
        _ => word.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(micros: u64) -> SlowCommand {
        let (address, name) = (String::new(), String::new());
        SlowCommand { id: 0, at: 0, micros, words: Vec::new(), address, name }
    }

    #[test]
    fn the_newest_are_kept() {
        let log = SlowLog::default();
        log.len_max.store(2, Ordering::Relaxed);
        (1..=3).for_each(|micros| log.push(command(micros)));
        let kept = log.newest(9);
        assert_eq!(
            kept.iter().map(|one| (one.id, one.micros)).collect::<Vec<_>>(),
            [(2, 3), (1, 2)]
        );
        log.reset();
        log.push(command(4));
        assert_eq!(log.newest(1)[0].id, 3);
        assert!(log.wants(Duration::from_millis(10)) && !log.wants(Duration::from_millis(9)));
        log.slower_than.store(-1, Ordering::Relaxed);
        assert!(!log.is_on() && !log.wants_quick() && !log.wants(Duration::from_secs(9)));
        log.slower_than.store(0, Ordering::Relaxed);
        assert!(log.wants_quick() && log.wants(Duration::ZERO));
    }

    #[test]
    fn long_commands_are_shortened() {
        let word = [b'a'; 129];
        let words = [&word[..]; 33];
        let short = shortened(words.into_iter());
        assert_eq!(short.len(), 32);
        assert!(short[0].ends_with(b"a... (1 more bytes)"));
        assert_eq!(short[31], b"... (2 more arguments)");
        assert_eq!(shortened(words[..32].iter().copied()).len(), 32);
        assert_eq!(shortened_word(&word[..128]), word[..128]);
    }
}
