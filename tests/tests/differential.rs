//! Random kernels give one answer on every execution.
//!
//! `IRON_FUZZ_KERNELS` and `IRON_FUZZ_SEED` make a longer or another run; the default is the
//! same in every run. A difference is shrunk and printed as a kernel in the textual IR, which
//! becomes a file of `cases/` once it is mended.

use std::time::Instant;

use iron_tests::backends::{Target, targets};
use iron_tests::differential::{Compared, check};
use iron_tests::fuzz::kernel_text;
use proptest::collection::vec;
use proptest::num::u32::ANY;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Kernels of a run without a number of its own.
const KERNELS: usize = 160;
/// Differences after which a run ends.
const MOST_FAULTS: usize = 6;

fn number(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is `{text}`, no number")),
        Err(_) => default,
    }
}

#[test]
fn random_kernels_have_one_answer() {
    let targets = targets();
    let seed = number("IRON_FUZZ_SEED", 1);
    let kernels = number("IRON_FUZZ_KERNELS", KERNELS);
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&(seed as u64).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &key);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = vec(ANY, 20..260);
    let mut compared = Compared::default();
    let mut faults: Vec<(String, String)> = Vec::new();
    let start = Instant::now();
    for _ in 0..kernels {
        let mut tree = strategy
            .new_tree(&mut runner)
            .expect("lists of numbers are never refused");
        let text = kernel_text(&tree.current());
        let Err(what) = check(&text, &targets, &mut compared) else {
            continue;
        };
        let kind = kind_of(&what);
        if faults.iter().any(|(known, _)| kind_of(known) == kind) {
            continue;
        }
        let (text, what) = shrink(&mut tree, &targets, text, what);
        faults.push((what, text));
        if faults.len() == MOST_FAULTS {
            break;
        }
    }
    println!(
        "seed {seed}: {} kernels alike on the reference, {} more after passes, {:?}; {:.1} s",
        compared.kernels,
        compared.stages,
        compared.devices,
        start.elapsed().as_secs_f64()
    );
    let shown: Vec<String> = faults
        .iter()
        .map(|(what, text)| format!("{what}\n{text}"))
        .collect();
    assert!(
        faults.is_empty(),
        "{} kinds of difference:\n{}",
        faults.len(),
        shown.join("\n")
    );
    assert!(compared.kernels > 0, "no kernel was compared");
}

/// Where a difference showed, without the values.
fn kind_of(what: &str) -> String {
    what.split('`')
        .next()
        .unwrap_or(what)
        .chars()
        .filter(|c| !c.is_ascii_digit())
        .collect()
}

/// The smallest list of decisions that shows a difference of the same kind.
fn shrink(
    tree: &mut impl ValueTree<Value = Vec<u32>>,
    targets: &[Target],
    mut text: String,
    mut what: String,
) -> (String, String) {
    let kind = kind_of(&what);
    let mut ignored = Compared::default();
    for _ in 0..400 {
        if !tree.simplify() {
            break;
        }
        loop {
            let smaller = kernel_text(&tree.current());
            match check(&smaller, targets, &mut ignored) {
                Err(found) if kind_of(&found) == kind => {
                    (text, what) = (smaller, found);
                    break;
                }
                _ => {
                    if !tree.complicate() {
                        return (text, what);
                    }
                }
            }
        }
    }
    (text, what)
}

/// Kernels of faults that other compilers had, and of those that were found here.
const CASES: [(&str, &str); 2] = [
    (
        "store_between_loads.txt",
        include_str!("../cases/store_between_loads.txt"),
    ),
    (
        "variable_in_loop.txt",
        include_str!("../cases/variable_in_loop.txt"),
    ),
];

#[test]
fn cases_have_one_answer() {
    let targets = targets();
    let mut compared = Compared::default();
    for (file, text) in CASES {
        let kernel = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect::<Vec<_>>()
            .join("\n");
        if let Err(what) = check(&kernel, &targets, &mut compared) {
            panic!("{file}: {what}");
        }
    }
    assert_eq!(compared.kernels, CASES.len());
    println!("{} cases alike: {:?}", compared.kernels, compared.devices);
}
