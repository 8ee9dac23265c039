//! A shell that receives one command after the other, as from a person who types them and reads the answers.
//!
//! A command that ends with `&` is a server: the shell waits for its line that says that it is ready. After `kill`
//! the shell waits for the end of the killed programs. When the shell is dropped, all programs that it has started
//! are killed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Outcome;
use crate::groups::Running;

/// Ends a command's answer; its exit code follows.
const MARK: &str = "=== the command has ended with ";
const READY: &str = "ready on ";
/// The time limit for a line: only a build takes longer than seconds.
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// The shell, and its output.
pub(super) struct Shell {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    _running: Running,
}

impl Shell {
    /// A shell in this directory with this variable, which looks commands up in `programs` first.
    pub(super) fn start(
        directory: &Path,
        programs: &Path,
        variable: (&str, &str),
    ) -> Outcome<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path));
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .current_dir(directory)
            .env(variable.0, variable.1)
            .env("PATH", std::env::join_paths(places)?)
            // The shell's own messages, such as that a job was killed.
            .stderr(Stdio::null())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let running = Running::of(Pid::from_child(&child));
        let input = child.stdin.take().ok_or("a shell without input")?;
        let output = child.stdout.take().ok_or("a shell without output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut all = BufReader::new(output).split(b'\n').map_while(Result::ok);
            all.all(|line| sender.send(String::from_utf8_lossy(&line).into_owned()).is_ok())
        });
        Ok(Self { child, input, lines, _running: running })
    }

    /// Runs a command: the lines of its answer and its exit code.
    pub(super) fn run(&mut self, command: &str) -> Outcome<(Vec<String>, i32)> {
        writeln!(self.input, "{{ {command}\n}} 2>&1 < /dev/null; code=$?")?;
        let mut answer = Vec::new();
        while command.ends_with('&') && !answer.last().is_some_and(|it: &String| it.contains(READY))
        {
            answer.push(self.line(&answer)?);
        }
        let wait = match command {
            all if all.starts_with("kill ") && all.contains("jobs -p") => "wait",
            one if one.starts_with("kill ") => "wait -n",
            _ => "true",
        };
        writeln!(self.input, "{wait}; printf '\\n{MARK}%d\\n' $code")?;
        loop {
            let line = self.line(&answer)?;
            if let Some(code) = line.strip_prefix(MARK) {
                let code = code.parse()?;
                // The mark begins a line of its own.
                answer.pop_if(|last| last.is_empty());
                return Ok((answer, code));
            }
            answer.push(line);
        }
    }

    fn line(&self, before: &[String]) -> Outcome<String> {
        let line = self.lines.recv_timeout(ANSWER_MAX);
        line.map_err(|why| format!("it does not end: {why}: {}", before.join("\n")).into())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // The shell may be gone already, and its servers with it.
        let _gone = group.is_some_and(|group| kill_process_group(group, Signal::KILL).is_ok())
            && self.child.wait().is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_answered_one_after_the_other() {
        let mut shell = Shell::start(Path::new("/"), Path::new("/bin"), ("it", "/")).unwrap();
        assert_eq!(
            shell.run("x=3; echo a; echo b >&2").unwrap(),
            (vec!["a".into(), "b".into()], 0)
        );
        assert_eq!(shell.run("printf $x; false").unwrap(), (vec!["3".into()], 1));
        assert_eq!(shell.run("cat; pwd; cd $it").unwrap(), (vec!["/".into()], 0));
        let served = "(echo starts; echo ready on 1; exec sleep 1000) &";
        assert_eq!(shell.run(served).unwrap(), (vec!["starts".into(), "ready on 1".into()], 0));
        assert_eq!(shell.run("kill -9 $!").unwrap(), (vec![], 0));
        assert_eq!(shell.run("kill -0 $!").unwrap().1, 1, "it is waited for");
    }
}
