//! Progress bars for long work, on the standard error.

use coreplane::admin::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar that shows nothing if the standard error is no terminal.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar of `total` units (0: unknown), which are bytes or a count of `unit`.
    pub(crate) fn new(stage: &'static str, total: u64, bytes: bool) -> Self {
        let bar = if total == 0 { ProgressBar::no_length() } else { ProgressBar::new(total) };
        let figures = match (total, bytes) {
            (0, _) => "{human_pos} ({per_sec})",
            (_, true) => "{bytes}/{total_bytes} ({binary_bytes_per_sec}, {eta} left)",
            (_, false) => "{human_pos}/{human_len} ({per_sec}, {eta} left)",
        };
        let template = format!("{{msg:<24}} {{bar:30}} {figures}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.set_message(stage);
        Self { bar }
    }

    /// Adds `units` to the progress.
    pub(crate) fn advance(&self, units: u64) {
        self.bar.inc(units);
    }

    /// Shows the progress reported by a server.
    pub(crate) fn tell(&self, stage: &str, done: u64, total: u64) {
        self.bar.set_message(stage.to_owned());
        if total > 0 {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }

    /// Shows the progress reported by the engine.
    pub(crate) fn show(&self, progress: Progress) {
        self.bar.set_message(progress.stage);
        if progress.total > 0 {
            self.bar.set_length(progress.total);
        }
        self.bar.set_position(progress.done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
