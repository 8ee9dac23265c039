//! A slower medium, emulated in DRAM.
//!
//! ```text
//!   flush ─▶ granules of 256 bytes ─▶ channel = granule mod n ─▶ a queue per channel
//!   fence ─▶ waits until the last granule of this thread is written, plus the write latency
//!   read  ─▶ touches the bytes, waits until they would have arrived
//! ```
//!
//! A *channel* (a DIMM, a bank) serves one granule after the other; its queue is one number, the
//! time at which it will be free. So bandwidth, parallelism and the contention of writers follow
//! from the same rule: a granule for a busy channel waits. Where concurrent writers also make a
//! medium less efficient (Optane's buffer thrashes), each further writer that has granules at the
//! same channel at that moment, waiting or being written, lengthens the service by a share; a
//! writer at other channels, or one whose granules are written, does not. A granule is always
//! written as a whole; successive lines of one granule before a fence are one write.
//!
//! Times are *absolute*: an operation ends at the time that the model says or when the real one
//! ends, whichever is later. So the cost of DRAM, flush instruction and model is not added to the
//! modelled time, and no medium that is faster than this machine can be emulated.
//!
//! # Waiting
//!
//! A load or a fence keeps the processor while it waits for a medium, and so does a thread here: it
//! spins (`wait=spin`). Where there are more threads than cores this distorts results: a wait
//! occupies a core that another thread could use, and a measurement shows how the scheduler
//! distributes cores. With `wait=yield` a thread yields its core between looks at the clock, as if
//! it waited for the medium in a system call. The wait still ends at the modelled time or later:
//! later by a system call, and by the time that the other thread keeps the core, which is not
//! modelled. A thread that never waits keeps it for a time slice of some milliseconds. So `yield` is
//! for throughput, and for threads that share cores with threads that also wait now and then. In a
//! wait of more than 200 µs the thread sleeps for all but the end, in both modes.
//!
//! # Jitter
//!
//! Media with wear levelling sometimes stall while a block is moved. With probability `jitter` the
//! write of a granule blocks its channel for `stall` microseconds; which writes stall depends only
//! on `seed` and the number of the write.

use super::LatencyModel;
use crate::order::lines;
use crate::space::thread_number;
use crossbeam_utils::CachePadded;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod clock;

pub use clock::Wait;
use clock::{Clock, Processor};

/// Bytes that a medium writes at once; successive granules alternate between channels.
const GRANULE: u64 = 256;

/// An emulated medium: `NAME` or `NAME,key=value,…` with keys `read`, `write` (nanoseconds),
/// `read-gbps`, `write-gbps` (of one channel), `channels`, `contention` (share), `jitter`
/// (probability), `stall` (microseconds), `seed`, `wait` (`spin` or `yield`).
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// `none`, `optane`, `pcm`, `stt-ram`, `nv-cmm`.
    pub name: &'static str,
    /// Nanoseconds from a load to its first bytes.
    pub read_ns: u64,
    /// Nanoseconds from the end of a granule's transfer to its durability.
    pub write_ns: u64,
    /// Bytes a nanosecond that one channel reads.
    pub read_gbps: f64,
    /// Bytes a nanosecond that one channel writes.
    pub write_gbps: f64,
    /// Channels.
    pub channels: u32,
    /// The share by which each further writer with granules at the same channel lengthens a
    /// granule's write there.
    pub contention: f64,
    /// Probability that a granule's write stalls its channel.
    pub jitter: f64,
    /// Microseconds of such a stall.
    pub stall_us: u64,
    /// Decides which writes stall.
    pub seed: u64,
    /// How a thread uses its core while it waits.
    pub wait: Wait,
}

/// The profiles. `optane` has published measurements of six interleaved DIMMs of the first
/// generation (random read 305 ns; 2.3 GB/s written and 6.6 GB/s read by each DIMM); `pcm` and
/// `stt-ram` have the figures that papers on these cells commonly assume; `nv-cmm` stands for
/// battery-backed DRAM behind a coherent link.
const PROFILES: [Profile; 5] = [
    Profile::NONE,
    Profile { contention: 0.05, ..profile("optane", (305, 6.6), (94, 2.3), 6) },
    profile("pcm", (300, 2.0), (1000, 0.5), 8),
    profile("stt-ram", (150, 12.8), (200, 12.8), 4),
    profile("nv-cmm", (400, 16.0), (450, 16.0), 2),
];

/// A profile from latency (in nanoseconds) and bandwidth (in bytes a nanosecond) of reads and of writes.
const fn profile(
    name: &'static str,
    (read_ns, read_gbps): (u64, f64),
    (write_ns, write_gbps): (u64, f64),
    channels: u32,
) -> Profile {
    Profile {
        name,
        read_ns,
        write_ns,
        read_gbps,
        write_gbps,
        channels,
        contention: 0.0,
        jitter: 0.0,
        stall_us: 50,
        seed: 0,
        wait: Wait::Spin,
    }
}

impl Profile {
    /// Plain DRAM.
    pub const NONE: Self = profile("none", (0, f64::INFINITY), (0, f64::INFINITY), 1);

    /// The names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|profile| profile.name)
    }

    /// True if nothing is added to DRAM.
    pub fn is_none(&self) -> bool {
        Self { wait: Wait::Spin, ..self.clone() } == Self::NONE
    }

    /// Nanoseconds that a channel needs for the write of a granule while `writers` threads have
    /// granules there.
    fn granule_write_ns(&self, writers: u64) -> u64 {
        let alone = GRANULE as f64 / self.write_gbps;
        let others = writers.saturating_sub(1) as f64;
        (alone * (1.0 + self.contention * others)).round() as u64
    }

    fn transfer_read_ns(&self, len: u64) -> u64 {
        (len as f64 / self.read_gbps).round() as u64
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let wrong = || format!("`{key}={value}` is out of bounds");
        let real = |least: f64, most: f64| {
            value.parse::<f64>().ok().filter(|v| (least..=most).contains(v)).ok_or_else(wrong)
        };
        let whole = |least: u64, most: u64| {
            value.parse::<u64>().ok().filter(|v| (least..=most).contains(v)).ok_or_else(wrong)
        };
        const SECOND_NS: u64 = 1_000_000_000;
        match key {
            "read" => self.read_ns = whole(0, SECOND_NS)?,
            "write" => self.write_ns = whole(0, SECOND_NS)?,
            "read-gbps" => self.read_gbps = real(1e-6, 1e6)?,
            "write-gbps" => self.write_gbps = real(1e-6, 1e6)?,
            "channels" => self.channels = whole(1, 256)? as u32,
            "contention" => self.contention = real(0.0, 100.0)?,
            "jitter" => self.jitter = real(0.0, 1.0)?,
            "stall" => self.stall_us = whole(0, 10_000_000)?,
            "seed" => self.seed = whole(0, u64::MAX)?,
            "wait" => self.wait = Wait::named(value).ok_or_else(wrong)?,
            _ => return Err(format!("there is no parameter `{key}`")),
        }
        Ok(())
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let Some(usual) = PROFILES.iter().find(|usual| usual.name == self.name) else {
            return Ok(());
        };
        let mut changed = |key: &str, value: String, usual: String| {
            if value == usual { Ok(()) } else { write!(f, ",{key}={value}") }
        };
        changed("read", self.read_ns.to_string(), usual.read_ns.to_string())?;
        changed("write", self.write_ns.to_string(), usual.write_ns.to_string())?;
        changed("read-gbps", self.read_gbps.to_string(), usual.read_gbps.to_string())?;
        changed("write-gbps", self.write_gbps.to_string(), usual.write_gbps.to_string())?;
        changed("channels", self.channels.to_string(), usual.channels.to_string())?;
        changed("contention", self.contention.to_string(), usual.contention.to_string())?;
        changed("jitter", self.jitter.to_string(), usual.jitter.to_string())?;
        changed("stall", self.stall_us.to_string(), usual.stall_us.to_string())?;
        changed("seed", self.seed.to_string(), usual.seed.to_string())?;
        changed("wait", self.wait.name().to_owned(), usual.wait.name().to_owned())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let Some(usual) = PROFILES.iter().find(|profile| profile.name == name) else {
            let names: Vec<_> = Self::names().collect();
            return Err(format!("there is none of that name; there are {}", names.join(", ")));
        };
        let mut profile = usual.clone();
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is not key=value"))?;
            profile.set(key, value)?;
        }
        Ok(profile)
    }
}

/// The model of a profile; none for plain DRAM.
pub(crate) fn model(profile: &Profile) -> Option<Arc<dyn LatencyModel>> {
    if profile.is_none() {
        return None;
    }
    let clock = Processor::calibrated();
    // The time that the model itself takes, beside the waiting, must be part of the modelled time.
    let even = Profile { read_ns: 300, write_ns: 300, ..Profile::NONE };
    let model = Model::new(even, clock);
    let persist = |line: u64| {
        model.flush(line * GRANULE, 64);
        model.fence();
    };
    let writing = clock.excess(300, persist);
    let reading = clock.excess(300, |line| model.read(line * GRANULE, 64, &|| {}));
    Some(Arc::new(Model::new(profile.clone(), clock.hurried(writing.min(reading)))))
}

/// The pending writes of one thread (or, beyond 64, of a few).
#[derive(Debug, Default)]
struct Waiter {
    /// The time when its last granule will be durable; 0 if it flushed nothing since its last fence.
    done: AtomicU64,
    /// The number of the last granule that it flushed, plus one.
    granule: AtomicU64,
    /// The time when its last granule at each channel will be written; empty where writers do not contend.
    written: Box<[AtomicU64]>,
}

#[derive(Debug)]
struct Model<C> {
    profile: Profile,
    clock: C,
    /// The time when each channel will be free for writes; reads have separate queues.
    writes: Box<[CachePadded<AtomicU64>]>,
    reads: Box<[CachePadded<AtomicU64>]>,
    waiters: Box<[CachePadded<Waiter>]>,
    /// A bit for each waiter that has flushed and not fenced since; no other waiter has granules at
    /// any channel. All zero where writers do not contend.
    writers: CachePadded<AtomicU64>,
    /// Granules written so far.
    written: CachePadded<AtomicU64>,
}

impl<C: Clock> Model<C> {
    /// The number of bits of a word.
    const WAITERS: usize = 64;

    fn new(profile: Profile, clock: C) -> Self {
        let queues = || (0..profile.channels).map(|_| CachePadded::default()).collect();
        let contended = if profile.contention == 0.0 { 0 } else { profile.channels };
        let waiter = || Waiter {
            written: (0..contended).map(|_| AtomicU64::default()).collect(),
            ..Waiter::default()
        };
        Self {
            writes: queues(),
            reads: queues(),
            waiters: (0..Self::WAITERS).map(|_| CachePadded::new(waiter())).collect(),
            writers: CachePadded::default(),
            written: CachePadded::default(),
            profile,
            clock,
        }
    }

    /// The number of this thread's waiter.
    fn own() -> usize {
        thread_number() % Self::WAITERS
    }

    fn channel(&self, granule: u64) -> usize {
        (granule % u64::from(self.profile.channels)) as usize
    }

    /// The number of threads that have granules at the channel at `now`, including this one, which adds some.
    fn writers_at(&self, channel: usize, own: usize, now: u64) -> u64 {
        let mut others = self.writers.load(Ordering::Relaxed) & !(1 << own);
        let mut writers = 1;
        while others != 0 {
            let other = &self.waiters[others.trailing_zeros() as usize];
            let written = other.written.get(channel);
            writers += u64::from(written.is_some_and(|it| it.load(Ordering::Relaxed) > now));
            others &= others - 1;
        }
        writers
    }

    /// Adds granules to the queue of a channel; returns the time when the last one will be written.
    fn write(&self, channel: usize, granules: u64, own: usize, now: u64) -> u64 {
        let stalls: u64 = match self.profile.jitter {
            0.0 => 0,
            _ => (0..granules).map(|_| self.stall_ns()).sum(),
        };
        let service = self.profile.granule_write_ns(self.writers_at(channel, own, now));
        let written = enqueue(&self.writes[channel], now, granules * service + stalls);
        if let Some(last) = self.waiters[own].written.get(channel) {
            last.store(written, Ordering::Relaxed);
        }
        written
    }

    /// Nanoseconds for which the next write stalls.
    fn stall_ns(&self) -> u64 {
        if self.profile.jitter == 0.0 {
            return 0;
        }
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let drawn = mix(self.profile.seed ^ mix(number)) as f64 / u64::MAX as f64;
        if drawn < self.profile.jitter { self.profile.stall_us * 1000 } else { 0 }
    }
}

/// Adds a request that takes `service` to the queue at `now`; returns the time when it ends.
fn enqueue(queue: &AtomicU64, now: u64, service: u64) -> u64 {
    let mut free = queue.load(Ordering::Relaxed);
    loop {
        let through = free.max(now) + service;
        match queue.compare_exchange_weak(free, through, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return through,
            Err(other) => free = other,
        }
    }
}

/// SplitMix64: maps a number to one that looks random.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl<C: Clock> LatencyModel for Model<C> {
    fn flush(&self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let own = Self::own();
        let waiter = &self.waiters[own];
        let now = self.clock.now();
        let mut done = waiter.done.load(Ordering::Relaxed);
        if done == 0 && !waiter.written.is_empty() {
            self.writers.fetch_or(1 << own, Ordering::Relaxed);
        }
        let (mut first, last) = (offset / GRANULE, (offset + len - 1) / GRANULE);
        if waiter.granule.load(Ordering::Relaxed) == first + 1 {
            first += 1;
        }
        waiter.granule.store(last + 1, Ordering::Relaxed);
        let (granules, channels) = ((last + 1) - first, u64::from(self.profile.channels));
        // One step for each channel, with all its granules together.
        for nth in 0..granules.min(channels) {
            let mine = (granules - nth).div_ceil(channels);
            let written = self.write(self.channel(first + nth), mine, own, now);
            done = done.max(written + self.profile.write_ns);
        }
        waiter.done.store(done.max(1), Ordering::Relaxed);
    }

    fn fence(&self) {
        let own = Self::own();
        let waiter = &self.waiters[own];
        let done = waiter.done.swap(0, Ordering::Relaxed);
        if done == 0 {
            return;
        }
        waiter.granule.store(0, Ordering::Relaxed);
        self.clock.wait_until(done, self.profile.wait);
        if !waiter.written.is_empty() {
            self.writers.fetch_and(!(1 << own), Ordering::Relaxed);
        }
    }

    fn read(&self, offset: u64, len: u64, touch: &dyn Fn()) {
        let now = self.clock.now();
        touch();
        let lines = lines(offset, len);
        let mut come = now;
        let mut at = lines.start;
        while at < lines.end {
            let granule = at / GRANULE;
            let end = ((granule + 1) * GRANULE).min(lines.end);
            let service = self.profile.transfer_read_ns(end - at);
            come = come.max(enqueue(&self.reads[self.channel(granule)], now, service));
            at = end;
        }
        self.clock.wait_until(come + self.profile.read_ns, self.profile.wait);
    }
}

#[cfg(test)]
mod tests;
