//! The statistics and reports of an engine.

/// Counters since the store was opened, and sizes as they are now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Reads that found a record.
    pub hits: u64,
    /// Reads that found none.
    pub misses: u64,
    /// Records written.
    pub puts: u64,
    /// Records deleted.
    pub deletes: u64,
    /// Batches applied.
    pub batches: u64,
    /// Bytes of keys and values given to writes.
    pub user_bytes_written: u64,
    /// Bytes appended to logs for them.
    pub log_bytes_written: u64,
    /// Bytes that the cleaner copied.
    pub cleaner_bytes_copied: u64,
    /// Pages that the cleaner gave back.
    pub cleaner_pages_freed: u64,
    /// Lines flushed.
    pub flushes: u64,
    /// Fences (on `file`: syncs).
    pub fences: u64,
    /// Live records, as far as counted: an engine may count them in the background after a crash.
    /// [`Engine::len`](crate::Engine::len) is exact.
    pub records: u64,
    /// Bytes of live records in the pool.
    pub live_bytes: u64,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of the pool that are free without cleaning.
    pub free_bytes: u64,
    /// Bytes of DRAM for index and tables.
    pub dram_bytes: u64,
    /// Records removed because they had expired: counted before [`Engine::len`](crate::Engine::len)
    /// leaves them out.
    pub expired: u64,
    /// Other figures, by name.
    pub more: Vec<(&'static str, u64)>,
    /// The devices of an engine that has several: an entry for each place, even if no device is there.
    pub devices: Vec<DeviceStats>,
    /// The groups that they are in.
    pub groups: Vec<GroupStats>,
}

/// The statistics of one device of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Its name, such as `g0d1`.
    pub name: String,
    /// Its figures, by name.
    pub figures: Vec<(&'static str, u64)>,
    /// Its latencies, by kind of call.
    pub latencies: Vec<Latency>,
}

/// The statistics of a group of devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Its name, such as `g0`.
    pub name: String,
    /// Its figures, by name.
    pub figures: Vec<(&'static str, u64)>,
}

/// The latencies of the calls that were timed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latency {
    /// The kind of call: `get`, `put`.
    pub name: &'static str,
    /// The number of calls by latency: bucket `n` counts those below `2^n` nanoseconds, and the last one all above.
    pub buckets: Vec<u64>,
    /// The sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
}

impl Latency {
    /// The number of calls that were timed.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// An upper bound of the latencies of `share` of the calls: nanoseconds, a power of two; 0 if none was timed.
    pub fn below_ns(&self, share: f64) -> u64 {
        let count = self.count();
        let wanted = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|held| {
            seen += held;
            seen >= wanted
        });
        bucket.map_or(0, |bucket| 1 << bucket)
    }
}

impl Stats {
    /// The figure of that name among [`Stats::more`].
    pub fn figure(&self, name: &str) -> Option<u64> {
        self.more.iter().find(|(known, _)| *known == name).map(|(_, figure)| *figure)
    }
}

/// The progress of a long job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The current stage, in words for an operator.
    pub stage: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in all; 0 if unknown.
    pub total: u64,
}

/// One thing that `verify` found wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Where in the pool.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// The keys whose records are damaged, as far as they can be named.
    pub keys: Vec<Vec<u8>>,
}

impl Damage {
    /// Damage at an offset in the pool (0 if it has no place), without keys.
    pub fn new(offset: u64, what: impl Into<String>) -> Self {
        Self { offset, what: what.into(), keys: Vec::new() }
    }

    /// The same damage, of the record of `key` too.
    #[must_use]
    pub fn of(mut self, key: &[u8]) -> Self {
        self.keys.push(key.to_vec());
        self
    }
}

/// A range of keys, some of whose records were lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key of the range.
    pub start: Vec<u8>,
    /// The first key behind the range; none: the range has no end.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// True if the key lies in the range.
    pub fn has(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && !self.ends_before(key)
    }

    /// True if the range and the one from `start` to below `end` have a part in common.
    pub fn overlaps(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        end.is_none_or(|end| self.start.as_slice() < end) && !self.ends_before(start)
    }

    /// True if all of another range lies in this one.
    pub fn covers(&self, other: &Self) -> bool {
        let end = other.end.as_deref();
        self.start <= other.start
            && self.end.as_deref().is_none_or(|own| end.is_some_and(|end| end <= own))
    }

    /// The key of the range, if it has just one.
    pub fn only_key(&self) -> Option<&[u8]> {
        let last = self.end.as_deref().and_then(<[u8]>::split_last);
        (last == Some((&0, self.start.as_slice()))).then_some(&self.start)
    }

    fn ends_before(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_some_and(|end| end <= key)
    }
}

/// A key whose record exists and cannot be shown: a part of it, or of the key itself, is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedKey {
    /// The range in which the key lies.
    pub within: KeyRange,
    /// The sequence of its record.
    pub sequence: u64,
}

/// The result of `verify`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Live records checked.
    pub records: u64,
    /// Bytes checked.
    pub bytes: u64,
    /// The damage found; empty if the store is sound.
    pub damages: Vec<Damage>,
}

/// The result of a scrub.
#[derive(Debug, Clone, Default)]
pub struct ScrubReport {
    /// Pages that were rewritten.
    pub rewritten: u64,
    /// The damage that is left.
    pub damages: Vec<Damage>,
}

impl ScrubReport {
    /// True if no damage is left.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }
}

impl VerifyReport {
    /// Merges the entries about each damage, in the order of their places. Damage that was found several times at one
    /// place, for instance as part of a page and as the record of a key, is one entry: it keeps the first description
    /// and has all the keys.
    #[must_use]
    pub fn merged(mut self) -> Self {
        self.damages.sort_by(|a, b| {
            let words = if a.offset == 0 { a.what.cmp(&b.what) } else { std::cmp::Ordering::Equal };
            a.offset.cmp(&b.offset).then(words)
        });
        let mut merged: Vec<Damage> = Vec::with_capacity(self.damages.len());
        for damage in self.damages {
            let is_same = |last: &Damage| {
                last.offset == damage.offset && (damage.offset > 0 || last.what == damage.what)
            };
            let Some(last) = merged.last_mut().filter(|last| is_same(last)) else {
                merged.push(damage);
                continue;
            };
            last.keys.extend(damage.keys);
            last.keys.sort_unstable();
            last.keys.dedup();
        }
        Self { damages: merged, ..self }
    }

    /// True if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranges_have_in_common() {
        let range = |start: &[u8], end: Option<&[u8]>| KeyRange {
            start: start.to_vec(),
            end: end.map(<[u8]>::to_vec),
        };
        let (middle, tail, one) =
            (range(b"b", Some(b"d")), range(b"b", None), range(b"b", Some(b"b\0")));
        for (key, is_in_middle) in [(&b"az"[..], false), (b"b", true), (b"cz", true), (b"d", false)]
        {
            assert_eq!((middle.has(key), tail.has(key)), (is_in_middle, key >= b"b"), "{key:?}");
        }
        assert!(!middle.overlaps(b"", Some(b"b")) && !middle.overlaps(b"d", None));
        assert!(middle.overlaps(b"", Some(b"b\0")) && middle.overlaps(b"cz", None));
        assert!(tail.overlaps(b"z", None) && middle.overlaps(b"", None));
        assert!(middle.covers(&one) && middle.covers(&middle) && tail.covers(&middle));
        assert!(!one.covers(&middle) && !middle.covers(&tail));
        assert!(!middle.covers(&range(b"a", Some(b"c"))));
        let keys = [&one, &middle, &tail].map(KeyRange::only_key);
        assert_eq!(keys, [Some(&b"b"[..]), None, None]);
        assert_eq!(range(b"b", Some(b"c\0")).only_key(), None);
    }

    #[test]
    fn a_damage_that_was_found_twice_is_one() {
        let damages = vec![
            Damage::new(64, "the page").of(b"b"),
            Damage::new(0, "the header"),
            Damage::new(32, "another"),
            Damage::new(64, "the record").of(b"a"),
            Damage::new(64, "the record").of(b"b"),
            Damage::new(0, "members differ"),
            Damage::new(0, "the header"),
        ];
        let report = VerifyReport { damages, records: 7, bytes: 9 }.merged();
        let told: Vec<_> =
            report.damages.iter().map(|it| (it.offset, &*it.what, it.keys.len())).collect();
        let expected = [
            (0, "members differ", 0),
            (0, "the header", 0),
            (32, "another", 0),
            (64, "the page", 2),
        ];
        assert_eq!(told, expected);
        assert_eq!(report.damages[3].keys, [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!((report.records, report.bytes), (7, 9));
    }

    #[test]
    fn shares_of_a_latency_are_upper_bounds() {
        let mut latency = Latency { name: "get", buckets: vec![0; 8], sum_ns: 0 };
        assert_eq!((latency.count(), latency.below_ns(0.5)), (0, 0));
        for ns in [3_u64, 3, 3, 70] {
            latency.buckets[(u64::BITS - ns.leading_zeros()) as usize] += 1;
        }
        assert_eq!(latency.count(), 4);
        assert_eq!([0.0, 0.5, 0.75, 0.99].map(|share| latency.below_ns(share)), [4, 4, 4, 128]);
    }
}
