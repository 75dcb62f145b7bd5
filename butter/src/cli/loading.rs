//! The bar that shows on a terminal how much of a model is loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::serve::loading::LoadProgress;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

/// A bar on standard error, until it is dropped; nothing where that is no terminal.
pub(super) struct LoadingBar {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LoadingBar {
    /// Shows a model's progress.
    pub fn start(progress: Arc<LoadProgress>) -> LoadingBar {
        let is_over = Arc::new(AtomicBool::new(false));
        let (_, total) = progress.bytes();
        let bar = ProgressBar::new(total);
        let template = "loading {wide_bar} {bytes}/{total_bytes} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let is_shown = total > 0 && !bar.is_hidden();
        let thread = is_shown.then(|| {
            let is_over = is_over.clone();
            let draw = move || {
                while !is_over.load(Relaxed) {
                    bar.set_position(progress.bytes().0);
                    if progress.has_weights() {
                        bar.set_message("compiling");
                    }
                    std::thread::sleep(TICK);
                }
                bar.finish_and_clear();
            };
            std::thread::spawn(draw)
        });
        LoadingBar { is_over, thread }
    }
}

impl Drop for LoadingBar {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
