//! What a build costs: lowering everything, and what a first call costs that finds its compiled text
//! in the cache.

use std::fmt;
use std::time::{Duration, Instant};

/// Times one piece of work of this thread by the seconds of a processor that it used, so that other
/// work on the machine does not count; by the clock where the system does not tell.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let (clock, before) = (Instant::now(), processor());
    let result = work();
    let used = match (before, processor()) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ => clock.elapsed(),
    };
    (result, used)
}

/// What this thread has used: the first field of Linux' `schedstat`, in nanoseconds.
fn processor() -> Option<Duration> {
    // The system adds to it when the thread stops, or else once a tick, which is milliseconds.
    std::thread::sleep(Duration::from_nanos(1));
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// The lowering of everything that was selected.
pub struct Emission {
    /// Texts and modules.
    pub texts: usize,
    /// By the clock.
    pub elapsed: Duration,
    /// Of all threads.
    pub processor: Duration,
    /// Threads.
    pub threads: usize,
}

impl fmt::Display for Emission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "emission: {} texts in {:.1} s on {} threads, {:.1} s of a processor",
            self.texts,
            self.elapsed.as_secs_f64(),
            self.threads,
            self.processor.as_secs_f64()
        )
    }
}

/// Lowering and look-up of texts that the cache had: what a first call waits for before the driver.
pub struct WarmCalls {
    /// Ascending, with the kernel and profile.
    costs: Vec<(Duration, String)>,
}

impl WarmCalls {
    /// Of these; the order is of no matter.
    pub fn new(costs: impl Iterator<Item = (Duration, String)>) -> WarmCalls {
        let mut costs: Vec<_> = costs.collect();
        costs.sort();
        WarmCalls { costs }
    }
}

impl fmt::Display for WarmCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((most, slowest)) = self.costs.last() else {
            return write!(f, "first call: no text was in the cache");
        };
        let milliseconds = |d: &Duration| d.as_secs_f64() * 1e3;
        let at = |share: usize| milliseconds(&self.costs[(self.costs.len() - 1) * share / 100].0);
        write!(
            f,
            "first call, compiled text in the cache: {:.2} ms to lower and look up (median of {}), \
             {:.2} ms for 99 of 100, {:.2} ms for {slowest}",
            at(50),
            self.costs.len(),
            at(99),
            milliseconds(most)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_costs_no_processor_and_work_does() {
        let (_, waited) = timed(|| std::thread::sleep(Duration::from_millis(60)));
        let busy = || {
            let start = Instant::now();
            let mut sum = 0u64;
            while start.elapsed() < Duration::from_millis(120) {
                sum = std::hint::black_box(sum.wrapping_mul(3) + 1);
            }
        };
        let (_, worked) = timed(busy);
        assert!(worked > Duration::ZERO);
        if processor().is_some() {
            assert!(waited < Duration::from_millis(30), "{waited:?}");
        }
    }

    // Shorter than a tick.
    #[test]
    fn short_work_counts() {
        let busy = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(500) {
                std::hint::black_box(());
            }
        };
        let used: Duration = (0..5).map(|_| timed(busy).1).min().unwrap_or_default();
        let (least, most) = (Duration::from_micros(50), Duration::from_millis(3));
        assert!(least < used && used < most, "{used:?}");
    }

    #[test]
    fn the_middle_and_the_slowest_are_named() {
        let of = |ms| Duration::from_millis(ms);
        let calls = [(of(9), "c"), (of(1), "a"), (of(2), "b")];
        let text = WarmCalls::new(calls.map(|(d, n)| (d, n.into())).into_iter()).to_string();
        assert!(
            text.contains("2.00 ms to lower and look up (median of 3)"),
            "{text}"
        );
        assert!(text.ends_with("9.00 ms for c"), "{text}");
        let none = WarmCalls::new(std::iter::empty()).to_string();
        assert_eq!(none, "first call: no text was in the cache");
    }
}
