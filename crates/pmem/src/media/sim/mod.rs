//! The crash simulator: every order of stores that a power cut can leave, tried out.
//!
//! # The problem
//!
//! A program on persistent memory is right if it recovers from a power cut at *any* moment. No
//! test on real memory shows that. Killing the process loses nothing, since the caches go on to
//! write back what was never flushed; and a power cut, if one had it, shows one of the many
//! states that the moment allowed. A missing flush can hide for years.
//!
//! So here the memory is simulated. The program runs on a [`Space`](crate::Space) that reports
//! each store, flush, fence and load. From that the simulator knows which stores are durable for
//! sure and which are still somewhere between the processor and the medium, and it makes from
//! them the *crash images*: what the medium may hold if the power goes now.
//!
//! ```text
//!   run       store ─ store ─ flush ─ store ─ fence ─ returned ─ store ─ flush ─ fence ─ …
//!   cuts                                     ✂                ✂                 ✂
//!   images    nothing evicted, everything evicted, each line alone, each line missing, some …
//!   each      recover ─▶ contents ─▶ check against what was acknowledged
//!                │ some of them:
//!                └─ cut within recovery ─▶ recover again ─▶ the same contents
//! ```
//!
//! # What x86 promises, and what it does not ([`Model::X86`])
//!
//! - An aligned 8-byte store persists wholly or not at all. Nothing larger does; a smaller store
//!   at an odd place may tear too.
//! - Stores to one cache line persist as a prefix, in the order in which they reached the cache.
//! - Different lines are independent: the later may persist and the earlier be lost.
//! - Any line may be evicted, and so persist, at any time. So there is no need to cut between
//!   two fences: the images at a fence contain those of every moment since the last one.
//! - A flush starts the write-back of what the line held by then; that is done when the *same
//!   thread's* next fence returns. Another thread's fence says nothing about it.
//! - Non-temporal stores are in no order with anything until their thread's fence.
//! - A copy of many bytes is stored in no order that one could rely on: any subset of its words
//!   in a line may be there. A store that comes after it in the same line persists after it.
//!
//! # A file ([`Model::File`])
//!
//! The kernel writes dirty pages back when it likes, and a power cut tears them between sectors of
//! 512 bytes. A sector holds some moment of its past since the last sync; sectors are independent.
//! A sync takes time, and it makes durable all that *anybody* flushed before it *began*:
//!
//! ```text
//!   flush ─ draw a generation ─ … ─ ask for it ─ … ─ sync begins ─ … ─ it ends, or fails
//!          ✂ drawn            ✂               ✂ requested       ✂ under way         ✂
//! ```
//!
//! A fence begins one and waits for it, while other threads run on. Whoever does not wait draws
//! the generation of the sync that will cover its flush, and asks for it when it likes
//! ([`Space::sync_request`](crate::Space::sync_request)); then the seed says at which later
//! accesses, of any thread, it begins and ends. The power is cut in each of these states
//! ([`Report::sync_cuts`]). Rounds are numbered by the code that numbers those of a real file.
//!
//! A sync that fails is the last: what was pending may be lost or not, and every later fence
//! fails ([`SimOptions::failing_sync`], [`Sim::fail_syncs`]).
//!
//! # The parts
//!
//! A [`Subject`] is a workload with its recovery and its truth; [`explore`] tries it. The run is
//! recorded once ([`Run`]); cuts are places in that log, checked afterwards by several threads.
//! At each cut all images are tried if they are few, else a choice by seed that begins with the
//! ones that matter most. Images that are equal while the history is equal are tried once.
//!
//! A [`Violation`] is shrunk to the few lines that matter, tells their stores, and has a token
//! with which [`replay`] makes the same image again.
//!
//! Threads of a run take turns as the seed says ([`Run::threads`]).
//!
//! A program may have several pools, each in a space of its own ([`SimOptions::spaces`]). They lose
//! power together, and a cut leaves of each what it may, whatever it leaves of the others: files have
//! each their own syncs, and a fence in one says nothing about the others, though on one machine it would. But a program may say that
//! it relies on that ([`Space::fence_since`](crate::Space::fence_since)): from then on it counts.
//!
//! [`Sim`] and [`Image`] are the parts for a test that cuts the power at one place of its own;
//! images take bit flips and wiped lines. [`Run::cost_of`] counts the lines, flushes and fences
//! of an operation.
//!
//! A machine whose power goes again and again, such as a node of a simulated cluster, is a [`Sim`] that is
//! run for some steps, cut in the midst of them and started again with what that has left:
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
//! and has not made durable is an [`EarlyRead`]: whoever acts on it acts on what may never have
//! been.
//!
//! # Is it any good?
//!
//! A [`Fault`] hides a flush, a fence or the order of stores from the medium, so that a sound
//! program becomes a faulty one without being touched. A test of a program is only as good as
//! the faults that it catches.
//!
//! # Limits
//!
//! - The memory model of the *processor* is not simulated: threads switch at accesses to the
//!   space, and see each other's stores in that order.
//! - What is sampled is not proven. The report says how many images were tried; other seeds try
//!   others.
//! - A recovery that itself starts threads is not scheduled: its cuts may not replay.
//! - Epochs ([`epoch`](crate::epoch)) are those of the process: a guard that lives elsewhere in it
//!   delays the reuse of pages in a run, which may then differ when it is replayed. But for a program
//!   that pins by [`Space::pin`](crate::Space::pin): its spaces may have a domain each
//!   ([`SimOptions::own_epochs`]).

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
