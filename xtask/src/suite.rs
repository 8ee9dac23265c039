//! `cargo xtask test`, for newcomers and for continuous integration, in two stages: the quick checks, which are
//! `check` and the unit tests, and the rest. Tests that take longer than a coffee break are in `nightly`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use coreplane_vm::{Build, Verdict};

use crate::clients::{Clients, Toolchains, clients};
use crate::mutants::{self, Baseline, Extent};
use crate::programs::{FEATURE, PACKAGES, Programs};
use crate::sanitize::{self, Compilation, Sanitizer};
use crate::tally::Tally;
use crate::{Outcome, cargo, check, examples, first_steps as page, nightly, programs, schedule};

/// `cargo xtask test [--quick]`; `--quick` runs the workspace's tests alone.
pub(crate) fn test(root: &Path, arguments: &[String]) -> Outcome<()> {
    let quick = match arguments {
        [] => false,
        [only] if only == "--quick" => true,
        _ => return Err("test takes no argument but --quick".into()),
    };
    let mut tally = Tally::new();
    let clients = std::thread::scope(|scope| {
        // Downloads, beside the compiler's work.
        let installation = scope.spawn(|| {
            let mut tally = Tally::new();
            let clients = clients(root, Toolchains::AsBuilt, &mut tally);
            // If that fails its stage says why.
            let _is_ready = !quick && coreplane_vm::prepare(root).is_ok();
            (clients, tally)
        });
        if !quick {
            check::run(root, &mut tally);
        }
        let (clients, installed) = installation.join().map_err(|_| "the installation panicked")?;
        tally.add(installed);
        Outcome::Ok(clients)
    })?;
    tally.stage("first stage: unit tests");
    scheduled(root, (&clients, &mut || ()), "unit tests", ["--lib", "--bins"], &mut tally);
    if tally.has_failures() {
        tally.leave_out("the second stage", "the first has failed");
        return tally.close();
    }
    // Not beside clients with short deadlines, which the compiler slows down even in idle time.
    let mut compilation = None;
    let mut compile = || compilation = (!quick).then(|| Compilation::begin(root));
    integration_tests(root, (&clients, &mut compile), &mut tally)?;
    first_steps(root, &mut tally);
    tally.leave_out("the peers' tests", "they build foreign engines: nightly");
    if quick {
        tally.leave_out("check, mutants, sanitizers and the VM", "--quick");
    } else {
        let baseline = match tally.has_failures() {
            true => Baseline::Unknown,
            false => Baseline::Passed,
        };
        mutants::run(root, &Extent::Handful, baseline, &mut tally)?;
        drop(compilation);
        sanitize::run(root, Sanitizer::Thread, &sanitize::Extent::Kernels, &mut tally)?;
        let arguments = programs::selection();
        machine(
            root,
            &Build { profile: "test", directory: "debug", arguments: &arguments },
            &mut tally,
        );
        let left = "the address sanitizer, fuzzing, most mutants, full scale";
        tally.leave_out(left, "nightly");
    }
    tally.close()
}

/// Builds test programs, and runs them as [`schedule::run`] does.
fn scheduled(
    root: &Path,
    (clients, beside): (&Clients, &mut dyn FnMut()),
    name: &str,
    targets: [&str; 2],
    tally: &mut Tally,
) {
    match Programs::of_workspace(root, &[targets]) {
        Ok(programs) => {
            let started = Instant::now();
            let counts = schedule::run(&programs, &clients.environment(), beside);
            tally.count_tests(name, counts, started.elapsed());
        }
        Err(why) => tally.count(name, Err(why)),
    }
}

/// The second stage: stories, conformance, real clients, the examples in the documentation and the example programs.
/// All are built with the feature that enables mistakes, though none is made here, so that there is one build, and
/// the programs of the mutants' handful exist afterwards.
fn integration_tests(
    root: &Path,
    (clients, beside): (&Clients, &mut dyn FnMut()),
    tally: &mut Tally,
) -> Outcome<()> {
    tally.stage("second stage: integration tests");
    scheduled(root, (clients, beside), "integration tests", ["--test", "*"], tally);
    let mut command = tests(root, clients);
    command.arg("--doc").args(["--features", FEATURE]);
    tally.cargo_test("examples in the documentation", &mut command)?;
    examples::run(root, &programs::selection(), tally)
}

/// The commands of the page for newcomers.
fn first_steps(root: &Path, tally: &mut Tally) {
    tally.stage("first steps");
    match page::run(root, &[], page::Examples::Built) {
        Ok(left_out) => {
            left_out.iter().for_each(|(section, why)| tally.leave_out(section, why));
            tally.count("first steps", Ok::<(), String>(()));
        }
        Err(error) => tally.count("first steps", Err(error)),
    }
}

/// Tests of every crate except the peers.
fn tests(root: &Path, clients: &Clients) -> Command {
    let mut command = Command::new(cargo());
    command
        .args(["test", "--no-fail-fast"])
        .args(PACKAGES)
        .envs(clients.environment())
        .current_dir(root);
    command
}

/// The tests of every crate, end-to-end tests among them.
pub(crate) fn workspace(
    root: &Path,
    clients: &Clients,
    scale: Option<&str>,
    tally: &mut Tally,
) -> Outcome<()> {
    tally.stage("tests of the workspace");
    let mut command = tests(root, clients);
    command.envs(scale.map(|scale| (nightly::SCALE, scale)));
    tally.cargo_test("tests of the workspace", &mut command)?;
    examples::run(root, &PACKAGES, tally)
}

/// The virtual machine, with programs as of the tests, which have built them, or of a release.
pub(crate) fn machine(root: &Path, build: &Build<'_>, tally: &mut Tally) {
    tally.stage("the DAX path in a virtual machine");
    match coreplane_vm::run(root, build, &[]) {
        Ok(Verdict::Passed) => tally.count("vm", Ok::<(), String>(())),
        Ok(Verdict::Skipped(why)) => tally.leave_out("vm", why),
        Err(error) => tally.count("vm", Err(error)),
    }
}
