//! The crash simulator tests recovery from the memory states that a power cut can leave.
//!
//! # The problem
//!
//! A program on persistent memory is correct if it recovers from a power cut at *any* moment. No
//! test on real memory shows that. Killing the process loses nothing, since the caches still write
//! back lines that were never flushed; and a real power cut shows only one of the many states that
//! are possible at that moment. A missing flush can remain undetected for years.
//!
//! So here the memory is simulated. The program runs on a [`Space`](crate::Space) that reports
//! each store, flush, fence and load. So the simulator knows which stores are certainly durable and
//! which are still between the processor and the medium, and it makes *crash images* from them:
//! possible contents of the medium if the power is cut now.
//!
//! ```text
//!   run       store ─ store ─ flush ─ store ─ fence ─ returned ─ store ─ flush ─ fence ─ …
//!   cuts                                     ✂                ✂                 ✂
//!   images    nothing evicted, everything evicted, each line alone, each line missing, some …
//!   each      recover ─▶ contents ─▶ check against the acknowledged operations
//!                │ some of them:
//!                └─ cut within recovery ─▶ recover again ─▶ the same contents
//! ```
//!
//! # Guarantees of x86 ([`Model::X86`])
//!
//! - An aligned 8-byte store persists wholly or not at all. Nothing larger does; a smaller store
//!   at an odd place may tear too.
//! - Stores to one cache line persist as a prefix, in the order in which they reached the cache.
//! - Different lines are independent: a later store may persist while an earlier one is lost.
//! - Any line may be evicted, and so persist, at any time. So there is no need to cut between
//!   two fences: the images at a fence contain those of every moment since the last one.
//! - A flush starts the write-back of the line's contents at that time; it is complete when the
//!   *same thread's* next fence returns. Another thread's fence does not cover it.
//! - Non-temporal stores are not ordered with any other store until their thread's fence.
//! - A copy of many bytes is stored in no defined order: any subset of its words in a line may
//!   persist. A later store in the same line persists after it.
//!
//! # A file ([`Model::File`])
//!
//! The kernel writes dirty pages back at any time, and a power cut tears them between sectors of
//! 512 bytes. A sector holds its state at some moment since the last sync; sectors are independent.
//! A sync takes time, and it makes durable all flushes of *all* threads before it *began*:
//!
//! ```text
//!   flush ─ draw a generation ─ … ─ ask for it ─ … ─ sync begins ─ … ─ it ends, or fails
//!          ✂ drawn            ✂               ✂ requested       ✂ under way         ✂
//! ```
//!
//! A fence begins a sync and waits for it, while other threads run on. A thread that does not wait
//! draws the generation of the sync that will cover its flush, and may request it later
//! ([`Space::sync_request`](crate::Space::sync_request)); the seed then decides at which later
//! accesses, of any thread, the sync begins and ends. The power is cut in each of these states
//! ([`Report::sync_cuts`]). Rounds are numbered by the same code as for a real file.
//!
//! A sync that fails is the last: pending writes may be lost or not, and every later fence fails
//! ([`SimOptions::failing_sync`], [`Sim::fail_syncs`]).
//!
//! # The parts
//!
//! A [`Subject`] is a workload with its recovery and its check; [`explore`] tests it. The run is
//! recorded once ([`Run`]); cuts are places in that log, checked afterwards by several threads. At
//! each cut all images are tried if they are few, else a seeded choice that begins with the most
//! important ones. Equal images with the same history are tried once.
//!
//! A [`Violation`] is reduced to the few lines that matter, lists their stores, and has a token
//! from which [`replay`] makes the same image again.
//!
//! Threads of a run take turns, as the seed decides ([`Run::threads`]).
//!
//! A program may have several pools, each in a space of its own ([`SimOptions::spaces`]). They lose power together,
//! and the states that a cut leaves in them are independent: each file has its own syncs, and a fence in one space
//! does not cover the others, although it would on one machine. A program may state that it relies on this
//! ([`Space::fence_since`](crate::Space::fence_since)): from then on such a fence counts.
//!
//! [`Sim`] and [`Image`] are for a test that cuts the power at one chosen place; bit flips and
//! wiped lines can be applied to images. [`Run::cost_of`] counts the lines, flushes and fences of
//! an operation.
//!
//! A machine with repeated power cuts, such as a node of a simulated cluster, is a [`Sim`] that runs some
//! steps, loses power within them and is started again with the resulting image:
//!
//! ```
//! # use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
//! # use coreplane_pmem::{Claim, Durable, Space};
//! # fn step(space: &Space) -> Result<(), coreplane_pmem::SyncError> {
//! #     let _again = space.claim_words(0, Claim::WordsAsStored);
//! #     for at in [0, 64] {
//! #         let word = space.word::<Durable>(at).expect("a word");
//! #         word.store(word.load() + 1);
//! #         space.persist(at, 8)?;
//! #     }
//! #     Ok(())
//! # }
//! # let mut draw = 0..;
//! let mut sim = Sim::new(&SimOptions::default())?;
//! for seed in 0..10 {
//!     let before = sim.events();
//!     step(sim.space())?;
//!     // One of the cuts in front of each fence of the step, or the one at its end.
//!     let fences = draw.next().unwrap_or(0) % (sim.fences_since(before) + 1);
//!     sim = sim.crash_at_fence(before, fences, Eviction::Seeded(seed)).reopen()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A load of a [`Durable`](crate::Durable) word or of published bytes that another thread stored
//! and has not made durable is an [`EarlyRead`]: the reader may act on a store that is later lost.
//!
//! # Faults
//!
//! A [`Fault`] hides a flush, a fence or the order of stores from the medium, so that a correct
//! program becomes faulty without being changed. A test of a program is only as good as the faults
//! that it catches.
//!
//! # Limits
//!
//! - The memory model of the *processor* is not simulated: threads switch at accesses to the
//!   space, and see each other's stores in that order.
//! - [`Model::File`] gives each sector of 512 bytes its state of one moment. A real sync may copy a
//!   sector while it is stored to, and so write words of several moments.
//! - A copy to a place that is not aligned stores each aligned word in its range at once. A real
//!   `memcpy` may store such a word in two pieces, of which a power cut may lose one.
//! - The growth of a file is durable at once.
//! - Sampling proves nothing. The report states how many images were tried; other seeds try others.
//! - Threads started by a recovery are not scheduled: its cuts may not replay.
//! - Epochs ([`epoch`](crate::epoch)) are those of the process: a guard elsewhere in the process
//!   delays the reuse of pages in a run, which may then differ when it is replayed. A program that
//!   pins by [`Space::pin`](crate::Space::pin) can avoid this: each of its spaces may have its own
//!   domain ([`SimOptions::own_epochs`]).

mod choice;
mod cost;
mod device;
mod explore;
mod fault;
mod history;
mod image;
mod log;
mod machine;
mod options;
mod recorder;
mod replay;
mod report;
mod rng;
mod run;
mod sample;
pub(crate) mod schedule;
mod shrink;

pub use cost::Cost;
pub use explore::{Subject, explore};
pub use fault::Fault;
pub use history::{History, Mark, Standing};
pub use image::{Eviction, Image, Sim};
pub use machine::{EarlyRead, Model};
pub use options::SimOptions;
pub use replay::replay;
pub use report::{Report, SyncCuts, Violation};
pub use run::{Call, Run};
pub use schedule::Threads;
