//! Random kernels give one answer on every execution.
//!
//! `IRON_FUZZ_KERNELS` and `IRON_FUZZ_SEED` make a longer or another run; the default is the
//! same in every run. A difference is shrunk and printed as a kernel in the textual IR, which
//! becomes a file of `cases/` once it is mended. `IRON_FUZZ_AS_IS=1` ends at the first one and
//! leaves it as large as it is.

use std::time::Instant;

use iron_tests::backends::{Target, targets};
use iron_tests::differential::{Compared, Depth, check, legal_tables};
use iron_tests::fuzz::kernel_text;
use iron_tests::prepare::prepare_texts;
use iron_tests::reduce::reduce;
use proptest::collection::vec;
use proptest::num::u32::ANY;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Kernels of a run without a number of its own.
const KERNELS: usize = 300;
/// Differences after which a run ends.
const MOST_FAULTS: usize = 8;
/// Kernels that are compiled together, where a device gains by it.
const PREPARED: usize = 96;
/// Every so many kernels one is lowered for every profile.
const LOWERED: usize = 4;

fn number(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is `{text}`, no number")),
        Err(_) => default,
    }
}

/// How far kernel `index` is compared: after every pass for one table of what is legal, in turn.
fn depth(index: usize) -> Depth {
    Depth {
        table: Some(index % legal_tables().len()),
        lower: index.is_multiple_of(LOWERED),
    }
}

#[test]
fn random_kernels_have_one_answer() {
    let targets = targets();
    let seed = number("IRON_FUZZ_SEED", 1);
    let first = number("IRON_FUZZ_FIRST", 0);
    let kernels = number("IRON_FUZZ_KERNELS", KERNELS);
    let mut compared = Compared::default();
    // Difference, its kind, and the kernel.
    let mut faults: Vec<(String, String, String)> = Vec::new();
    let start = Instant::now();
    for index in first..first + kernels {
        if (index - first).is_multiple_of(PREPARED) {
            let end = (index + PREPARED).min(first + kernels);
            let texts: Vec<String> = (index..end).map(|i| text_of(&drawn(seed, i))).collect();
            prepare_texts(&targets, &texts);
        }
        let mut tree = drawn(seed, index);
        let text = text_of(&tree);
        let Err(what) = check(&text, &targets, depth(index), &mut compared) else {
            if (index + 1 - first).is_multiple_of(1000) {
                println!(
                    "{} kernels, {:.0} s",
                    index + 1 - first,
                    start.elapsed().as_secs_f64()
                );
            }
            continue;
        };
        println!("kernel {index} of seed {seed}: {what}");
        if kernels == 1 {
            println!("{text}");
        }
        let kind = kind_of(&what);
        if faults.iter().any(|(_, known, _)| *known == kind) {
            continue;
        }
        if std::env::var_os("IRON_FUZZ_AS_IS").is_some() {
            faults.push((format!("kernel {index}: {what}"), kind, text));
            break;
        }
        let (text, what) = shrink(&mut tree, &targets, depth(index), text, what);
        println!("made smaller: {what}\n{text}");
        faults.push((format!("kernel {index}: {what}"), kind, text));
        if faults.len() == MOST_FAULTS {
            break;
        }
    }
    println!(
        "seed {seed}: {} kernels alike on the reference, {} more after passes, {} lowered for \
         every profile, {:?}, unsupported {:?}; {:.1} s",
        compared.kernels,
        compared.stages,
        compared.lowered,
        compared.devices,
        compared.unsupported,
        start.elapsed().as_secs_f64()
    );
    let shown: Vec<String> = faults
        .iter()
        .map(|(what, _, text)| format!("{what}\n{text}"))
        .collect();
    assert!(
        faults.is_empty(),
        "{} kinds of difference:\n{}",
        faults.len(),
        shown.join("\n")
    );
    assert!(compared.kernels > 0, "no kernel was compared");
}

/// The decisions of kernel `index`. Each kernel has its own numbers, so that one can be run again
/// alone.
fn drawn(seed: usize, index: usize) -> impl ValueTree<Value = Vec<u32>> {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&(seed as u64).to_le_bytes());
    key[8..16].copy_from_slice(&(index as u64).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &key);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let tree = vec(ANY, 20..260).new_tree(&mut runner);
    tree.expect("lists of numbers are never refused")
}

fn text_of(tree: &impl ValueTree<Value = Vec<u32>>) -> String {
    kernel_text(&tree.current())
}

/// Where a difference showed and of what sort it is, without values and names.
fn kind_of(what: &str) -> String {
    let place = what.split(": `").next().unwrap_or(what);
    place
        .chars()
        .take(70)
        .take_while(|c| !matches!(c, '%' | '(' | '['))
        .filter(|c| !c.is_ascii_digit())
        .collect()
}

/// The smallest kernel that shows a difference of the same kind: first by the list of decisions,
/// then by the text.
fn shrink(
    tree: &mut impl ValueTree<Value = Vec<u32>>,
    targets: &[Target],
    depth: Depth,
    mut text: String,
    mut what: String,
) -> (String, String) {
    let kind = kind_of(&what);
    let mut ignored = Compared::default();
    // The device that differs is enough, and for a fault before any device none is needed.
    let named: Vec<Target> = targets
        .iter()
        .filter(|t| what.contains(&format!("on {}", t.name())))
        .cloned()
        .collect();
    let mut fails = |text: &str| match check(text, &named, depth, &mut ignored) {
        Err(found) if kind_of(&found) == kind => Some(found),
        _ => None,
    };
    'shrinking: for _ in 0..300 {
        if !tree.simplify() {
            break;
        }
        loop {
            let smaller = kernel_text(&tree.current());
            if let Some(found) = fails(&smaller) {
                (text, what) = (smaller, found);
                break;
            }
            if !tree.complicate() {
                break 'shrinking;
            }
        }
    }
    let small = reduce(&text, 1500, &mut |text| fails(text).is_some());
    if let Some(found) = fails(&small) {
        (text, what) = (small, found);
    }
    (text, what)
}

/// Kernels of faults that other compilers had, and of those that were found here.
fn cases() -> Vec<(String, String)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    // One kernel of one's own, for looking at a difference.
    let paths: Vec<_> = match std::env::var_os("IRON_FUZZ_CASE") {
        Some(path) => vec![path.into()],
        None => std::fs::read_dir(&folder)
            .expect("the folder of cases is there")
            .map(|entry| entry.expect("a file of the folder").path())
            .collect(),
    };
    let mut cases: Vec<(String, String)> = paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let kernel: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
            let name = path.file_name().unwrap_or_default();
            (name.to_string_lossy().into_owned(), kernel.join("\n"))
        })
        .collect();
    cases.sort();
    cases
}

#[test]
fn cases_have_one_answer() {
    let targets = targets();
    let mut compared = Compared::default();
    let cases = cases();
    let texts: Vec<String> = cases.iter().map(|(_, text)| text.clone()).collect();
    prepare_texts(&targets, &texts);
    let mut faults = Vec::new();
    for (file, kernel) in &cases {
        if let Err(what) = check(kernel, &targets, Depth::WHOLE, &mut compared) {
            faults.push(format!("{file}: {what}"));
        }
    }
    println!("{} cases alike: {:?}", compared.kernels, compared.devices);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(compared.kernels > 0, "no case was read");
}
