//! Progress on standard error: a bar on a terminal, a line at each tenth elsewhere.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Counts steps of a known number; used from several threads.
pub struct Progress {
    label: &'static str,
    total: usize,
    done: AtomicUsize,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts at zero of `total`.
    pub fn new(label: &'static str, total: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64);
            if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
                bar.set_style(style);
            }
            bar.set_message(label);
            bar
        });
        Self {
            label,
            total,
            done: AtomicUsize::new(0),
            bar,
        }
    }

    /// One more is done.
    pub fn step(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None if done * 10 / self.total.max(1) > (done - 1) * 10 / self.total.max(1) => {
                eprintln!("{} {done}/{}", self.label, self.total);
            }
            None => {}
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
