//! Makes the same crash image again.

use super::choice::{self, Pending};
use super::explore::{Explorer, Subject, record};
use super::machine::Machine;
use super::options::SimOptions;
use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;

/// Runs the workload again and recovers from exactly the image that `token` denotes (of a
/// [`Violation`](super::Violation) found with the same options and subject).
///
/// # Errors
/// What is wrong with that image, or with the token.
pub fn replay<S: Subject>(options: &SimOptions, subject: &S, token: &str) -> Result<(), String> {
    let bad = || format!("`{token}` does not fit this workload");
    let mut parts = token.split(':');
    if parts.next() != Some("sim1") {
        return Err(bad());
    }
    let number =
        |text: Option<&str>| u64::from_str_radix(text.unwrap_or_default(), 16).map_err(|_| bad());
    let seed = number(parts.next())?;
    let cut = number(parts.next())? as usize;
    let kept = parts.next().ok_or_else(bad)?;
    let options = SimOptions { seed, ..options.clone() };
    let recorded = record(&options, subject)?;
    let found = AtomicUsize::new(0);
    let left_out = HashSet::new();
    let explorer = Explorer {
        options: &options,
        subject,
        recorded: &recorded,
        left_out: &left_out,
        found: &found,
    };
    let (machine, marks) = explorer.machine_at(cut).ok_or_else(bad)?;
    let image = image(&machine, kept).ok_or_else(bad)?;
    let Some(second) = parts.next() else {
        return explorer.first_time(image, marks, false).map(drop);
    };
    let second = number(Some(second))? as usize;
    let kept = parts.next().ok_or_else(bad)?;
    let (sim, contents) = explorer.first_time(image, marks, true)?;
    let mut machine = Machine::new(sim.model(), sim.before().to_vec(), sim.spaces().len());
    let log = sim.log();
    for event in log.events.get(..second).ok_or_else(bad)? {
        machine.step(&log, event, &mut Vec::new());
    }
    let image = self::image(&machine, kept).ok_or_else(bad)?;
    explorer.second_time(image, marks, &contents)
}

fn image(machine: &Machine, text: &str) -> Option<Vec<u8>> {
    let pending: Vec<Pending<'_>> = choice::pending(machine);
    let kept = choice::from_text(&pending, text)?;
    Some(choice::bytes(machine, &pending, &kept))
}
