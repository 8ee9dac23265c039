//! Two accounts whose sum is constant, and a journal that recovery carries out.
//!
//! Words 0 and 8 are the accounts. The journal is words 16 (armed), 24 and 32.

use super::*;
use coreplane_pmem::media::sim::{Fault, History, Run};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The journal holds the new balances: they can be set any number of times.
    Right,
    /// The journal holds the amounts to be added: twice is too much.
    Additions,
}

struct Journal(Version);

const START: u64 = 100;

impl Journal {
    fn carry_out(&self, space: &Space) {
        for account in 0..2 {
            let entry = load(space, 24 + 8 * account);
            let balance = match self.0 {
                Version::Right => entry,
                Version::Additions => load(space, 8 * account).wrapping_add(entry),
            };
            store(space, 8 * account, balance);
            flush(space, 8 * account);
        }
        fence(space);
        persist(space, 16, 0);
    }
}

impl Subject for Journal {
    type Op = u64;
    type Store = Arc<Space>;
    type Contents = [u64; 2];

    fn work(&self, run: &Run<'_, u64>) {
        let space = run.space();
        claim(space, Claim::WordsAsStored);
        persist(space, 0, START);
        for moved in 1..4 {
            run.acknowledged(moved, || {
                let entries = match self.0 {
                    Version::Right => [load(space, 0) - moved, load(space, 8) + moved],
                    Version::Additions => [0_u64.wrapping_sub(moved), moved],
                };
                store(space, 24, entries[0]);
                store(space, 32, entries[1]);
                space.flush(24 * 8, 128);
                fence(space);
                persist(space, 16, 1);
                self.carry_out(space);
            });
        }
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Arc<Space>, String> {
        claim(space, Claim::WordsAsStored);
        if load(space, 16) == 1 {
            self.carry_out(space);
        }
        Ok(space.clone())
    }

    fn contents(&self, space: &Arc<Space>) -> Result<[u64; 2], String> {
        Ok([load(space, 0), load(space, 8)])
    }

    fn check(&self, contents: &[u64; 2], history: &History<'_, u64>) -> Result<(), String> {
        if history.marks().is_empty() {
            return Ok(());
        }
        let least: u64 = history.acknowledged().sum();
        let most: u64 = least + history.in_flight().sum::<u64>();
        if contents[0].wrapping_add(contents[1]) == START
            && (contents[1] == least || contents[1] == most)
        {
            return Ok(());
        }
        Err(format!("balances {contents:?}, moved {least} or {most}"))
    }
}

/// Every image is cut again within its recovery.
fn always_cut_again() -> SimOptions {
    SimOptions { recovery_cut_in: 1, ..options(1) }
}

#[test]
fn the_right_one_can_be_cut_in_recovery() {
    let report = assert_right(&always_cut_again(), &Journal(Version::Right));
    assert!(report.recovery_images > 40, "{report}");
}

#[test]
fn a_recovery_that_cannot_be_repeated_is_caught() {
    assert_caught(&always_cut_again(), &Journal(Version::Additions), "balances");
}

/// A fault that is only in recovery is found only by cutting recovery.
#[test]
fn a_fault_of_recovery_alone_is_caught_by_the_second_cut() {
    let faulty = SimOptions { recovery_fault: Some(Fault::DropFence(0)), ..always_cut_again() };
    let report = assert_caught(&faulty, &Journal(Version::Right), "balances");
    assert!(report.violations.iter().all(|it| it.cut_in_recovery.is_some()), "{report}");
    let first_only = SimOptions { recovery_cut_in: 0, ..faulty };
    let report = explore(&first_only, &Journal(Version::Right));
    assert!(report.is_clean(), "{report}");
}
