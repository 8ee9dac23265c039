//! External programs: finding, installing and running them.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use crate::Outcome;

/// The cargo that runs this command, or the one on the path.
#[must_use]
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// True if `program` is found on the path (or in the places of system programs).
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(program).is_file())
}

/// Runs `command`, whose output is shown only if it fails.
///
/// # Errors
///
/// If the command cannot be started, or has failed, with its output.
pub fn quiet(command: &mut Command) -> Outcome<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!(
        "{} failed ({}):\n{}",
        command.get_program().to_string_lossy(),
        output.status,
        String::from_utf8_lossy(&said).trim()
    )
    .into())
}

/// Installs Debian packages; nothing to do if `packages` is empty.
///
/// # Errors
///
/// If apt could not install them, with the reason.
pub fn apt_install(packages: &[&str]) -> Outcome<()> {
    if packages.is_empty() {
        return Ok(());
    }
    println!("installing by apt: {}", packages.join(" "));
    let install =
        || quiet(apt()?.args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages));
    // The lists may be old or absent: they are updated only in that case.
    install().or_else(|_| {
        apt_update()?;
        install()
    })
}

/// Updates the package lists.
///
/// # Errors
///
/// If apt could not, with the reason.
pub fn apt_update() -> Outcome<()> {
    quiet(apt()?.args(["update", "-qq"]))
}

fn apt() -> Outcome<Command> {
    if !have("apt-get") {
        return Err("there is no apt-get here".into());
    }
    let mut command = if rustix::process::geteuid().is_root() {
        Command::new("apt-get")
    } else if have("sudo") {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "apt-get"]);
        sudo
    } else {
        return Err("not root, and there is no sudo".into());
    };
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=300"]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name() {
        assert!(have("sh"));
        assert!(!have("no-such-program-anywhere"));
    }

    #[test]
    fn a_failure_shows_what_was_said() {
        let error = quiet(Command::new("sh").args(["-c", "echo heard; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("heard"));
        assert!(quiet(&mut Command::new("true")).is_ok());
    }
}
