//! The bar that shows on a terminal how much of a model is loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::checkpoint::Checkpoint;
use crate::serve::loading::LoadProgress;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);
/// Time before it shows, since what is loaded at once needs none.
const PATIENCE: Duration = Duration::from_millis(300);

/// A bar on standard error, until it is dropped; nothing where that is no terminal.
pub(super) struct LoadingBar {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LoadingBar {
    /// Shows how much of a checkpoint is loaded.
    pub fn of(checkpoint: &Checkpoint) -> LoadingBar {
        let progress = LoadProgress::new(vec![checkpoint.catalogue.progress()]);
        Self::start(Arc::new(progress))
    }

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
                let begun = Instant::now();
                while !is_over.load(Relaxed) {
                    if begun.elapsed() > PATIENCE {
                        bar.set_position(progress.bytes().0);
                        bar.set_message(if progress.has_weights() {
                            "compiling"
                        } else {
                            ""
                        });
                    }
                    // Until it is over, too.
                    std::thread::park_timeout(TICK);
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
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
