//! Plays launches: hands workgroups out to the workers.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::device::Pipeline;
use iron_lower::cpu::Entry;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// A launch with its addresses filled in.
pub(super) struct Ready {
    pub entry: Entry,
    pub scratch_bytes: usize,
    pub block: Vec<u8>,
    pub grid: [u32; 3],
    pub error_word: Option<Box<AtomicU32>>,
    pub pipeline: Arc<dyn Pipeline>,
}

/// How far a launch is.
#[derive(Default)]
struct Progress {
    /// Workgroups handed out.
    taken: AtomicU64,
    /// Workgroups run.
    done: AtomicU64,
}

/// The workers.
pub(super) struct Player {
    /// Workers beside the caller; none where one thread is all.
    pool: Option<ThreadPool>,
    threads: usize,
}

impl Player {
    /// A player with that many threads, the caller among them.
    pub fn new(threads: usize) -> Result<Player, ThreadPoolBuildError> {
        let pool = if threads > 1 {
            let builder = ThreadPoolBuilder::new()
                .num_threads(threads - 1)
                .thread_name(|i| format!("iron-cpu-{i}"));
            Some(builder.build()?)
        } else {
            None
        };
        Ok(Player { pool, threads })
    }

    /// Runs launches in order.
    pub fn play(&self, launches: &[Ready]) {
        let progress: Vec<Progress> = launches.iter().map(|_| Progress::default()).collect();
        let alone = launches.iter().all(|launch| groups(launch) == 1);
        match &self.pool {
            Some(pool) if !alone => pool.in_place_scope(|scope| {
                scope.spawn_broadcast(|_, _| self.work(launches, &progress));
                self.work(launches, &progress);
            }),
            _ => self.work(launches, &progress),
        }
    }

    fn work(&self, launches: &[Ready], progress: &[Progress]) {
        SCRATCH.with_borrow_mut(|scratch| {
            for (launch, progress) in launches.iter().zip(progress) {
                let total = groups(launch);
                let grain = (total / (self.threads as u64 * 8)).max(1);
                let memory = scratch.at_least(launch.scratch_bytes);
                loop {
                    let first = progress.taken.fetch_add(grain, Ordering::Relaxed);
                    if first >= total {
                        break;
                    }
                    let end = (first + grain).min(total);
                    for group in first..end {
                        run_group(launch, group, memory);
                    }
                    progress.done.fetch_add(end - first, Ordering::Release);
                }
                let mut spins = 0u32;
                while progress.done.load(Ordering::Acquire) < total {
                    spins += 1;
                    if spins < 4096 {
                        std::hint::spin_loop();
                    } else {
                        std::thread::yield_now();
                    }
                }
            }
        });
    }
}

fn groups(launch: &Ready) -> u64 {
    launch.grid.iter().map(|&n| u64::from(n)).product()
}

fn run_group(launch: &Ready, group: u64, scratch: *mut u8) {
    let (x, y) = (u64::from(launch.grid[0]), u64::from(launch.grid[1]));
    let place = [
        (group % x) as u32,
        (group / x % y) as u32,
        (group / x / y) as u32,
    ];
    // SAFETY: the contract was checked when the launch was recorded, so that the views lie in
    // buffers that the recorded launch holds; the block has the kernel's layout; scratch is of
    // the size and alignment asked for and this thread's own.
    unsafe {
        (launch.entry)(
            launch.block.as_ptr(),
            place[0],
            place[1],
            place[2],
            launch.grid.as_ptr(),
            scratch,
        );
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch(Vec::new())) };
}

/// Scratch memory of one worker, in units of 64 bytes.
struct Scratch(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Scratch {
    fn at_least(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(64) + 1;
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        self.0.as_mut_ptr().cast()
    }
}
