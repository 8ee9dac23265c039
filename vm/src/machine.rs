//! One boot of QEMU and the conversation over its serial line.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::image::NVDIMM_MIB;

/// The parameters of a boot.
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: &'a Path,
    pub(crate) nvdimm: &'a Path,
    /// `mem-ctrl` or `cpu`: how far the emulated platform's power-fail protection reaches.
    pub(crate) persistence: &'a str,
    /// Words for the guest, each `coreplane.NAME=VALUE`.
    pub(crate) options: &'a str,
}

/// A running machine; dropping it kills it.
pub(crate) struct Machine {
    qemu: Child,
    serial: Receiver<String>,
    /// The guest's lines so far, without their `@@ `.
    seen: Vec<String>,
    /// The last other lines, for the report of a failure.
    noise: Vec<String>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Fails only where the machine has ended already.
        drop(self.qemu.kill());
        drop(self.qemu.wait());
    }
}

const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off \
    cryptomgr.notests no_timer_check tsc=reliable random.trust_cpu=on";

impl Machine {
    pub(crate) fn boot(boot: &Boot<'_>) -> Outcome<Self> {
        let mut qemu = Command::new("qemu-system-x86_64")
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-no-reboot", "-nic", "none", "-serial", "stdio"])
            .args(["-accel", "tcg,thread=single", "-cpu", "max", "-smp", "1"])
            .arg("-M")
            .arg(format!("q35,nvdimm=on,nvdimm-persistence={}", boot.persistence))
            .args(["-m", "512M,slots=2,maxmem=2G", "-object"])
            .arg(format!(
                "memory-backend-file,id=m1,share=on,pmem=off,mem-path={},size={NVDIMM_MIB}M",
                boot.nvdimm.display()
            ))
            .args(["-device", "nvdimm,id=nv1,memdev=m1"])
            .arg("-kernel")
            .arg(boot.kernel)
            .arg("-initrd")
            .arg(boot.initrd)
            .arg("-append")
            .arg(format!("{KERNEL_OPTIONS} {}", boot.options))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let output = qemu.stdout.take().ok_or("qemu has no output")?;
        let (sender, serial) = channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                // A line that the power cut left unfinished does not count.
                if line.ends_with(b"\n") {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if sender.send(text).is_err() {
                        break;
                    }
                }
                line.clear();
            }
        });
        Ok(Self { qemu, serial, seen: Vec::new(), noise: Vec::new() })
    }

    /// The guest's lines so far.
    pub(crate) fn seen(&self) -> &[String] {
        &self.seen
    }

    /// Waits until the guest reports that it is done, and returns all its lines.
    pub(crate) fn lines_until_end(&mut self, patience: Duration) -> Outcome<Vec<String>> {
        let deadline = Instant::now() + patience;
        while let Some(line) = self.next(deadline)? {
            if line == "done" {
                self.qemu.wait()?;
                return Ok(std::mem::take(&mut self.seen));
            }
        }
        Err(self.complain("the machine ended before it was done"))
    }

    /// Lets the guest write until `enough` operations in all are acknowledged and every connection has some, or
    /// `driving` is over; returns each connection's last acknowledged operation.
    pub(crate) fn drive(
        &mut self,
        enough: u64,
        driving: Duration,
        patience: Duration,
    ) -> Outcome<Vec<u64>> {
        let mut deadline = Instant::now() + patience;
        let mut acknowledged = Vec::new();
        let mut first = None;
        loop {
            let Some(line) = self.next(deadline)? else {
                return Err(self.complain("the machine ended while it was driven"));
            };
            if !record(&line, &mut acknowledged)? {
                continue;
            }
            let begun = *first.get_or_insert_with(Instant::now);
            deadline = begun + driving + Duration::from_secs(20);
            let total: u64 = acknowledged.iter().sum();
            let all = acknowledged.len() == 4 && acknowledged.iter().all(|count| *count > 0);
            if all && (total >= enough || begun.elapsed() > driving) {
                return Ok(acknowledged);
            }
        }
    }

    /// Kills the machine as a power cut would, and reads the lines that it had written until then.
    pub(crate) fn kill(&mut self) -> Outcome<()> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(())
    }

    /// The next line of the guest; none at the end of the machine.
    fn next(&mut self, deadline: Instant) -> Outcome<Option<String>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = match self.serial.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.complain("the machine fell silent"));
                }
            };
            let Some((_, said)) = line.split_once("@@ ") else {
                self.noise.push(line);
                continue;
            };
            if !said.starts_with("ack ") {
                println!("vm: {said}");
            }
            if let Some(why) = said.strip_prefix("failed ") {
                return Err(self.complain(why));
            }
            self.seen.push(said.to_owned());
            return Ok(Some(said.to_owned()));
        }
    }

    fn complain(&self, what: &str) -> Box<dyn std::error::Error + Send + Sync> {
        let tail = self.noise.len().saturating_sub(15);
        format!("{what}\nlast kernel lines:\n  {}", self.noise[tail..].join("\n  ")).into()
    }
}

/// Records `ack CONNECTION NUMBER` in `acknowledged`; false if it is another line.
fn record(line: &str, acknowledged: &mut Vec<u64>) -> Outcome<bool> {
    let Some(rest) = line.strip_prefix("ack ") else {
        return Ok(false);
    };
    let (connection, number) = rest.split_once(' ').ok_or("a broken acknowledgement")?;
    let connection: usize = connection.parse()?;
    if acknowledged.len() <= connection {
        acknowledged.resize(connection + 1, 0);
    }
    acknowledged[connection] = number.parse()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_recorded_by_connection() {
        let mut acknowledged = Vec::new();
        assert!(record("ack 2 16", &mut acknowledged).unwrap());
        assert!(record("ack 0 32", &mut acknowledged).unwrap());
        assert!(record("ack 2 32", &mut acknowledged).unwrap());
        assert!(!record("serve ready", &mut acknowledged).unwrap());
        assert_eq!(acknowledged, [32, 0, 32]);
        assert!(record("ack x", &mut acknowledged).is_err());
    }
}
