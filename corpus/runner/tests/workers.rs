//! Tests in several processes, of which this program is each: the outcomes are those of one
//! process, and one that a test takes down fails that test alone.

use std::process::{Command, ExitCode, Output};

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, normal};

/// Doubles: `y[i] = 2 * x[i]`.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn twice(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = 2.0 * x[i];
    }
}

fn doubles(t: &mut Cases, factor: f64) {
    t.case("100")
        .input("x", [100], normal(0.0, 1.0))
        .output("y", [100])
        .bound(Bound::relative(1e-6))
        .expect(move |inputs, out| {
            out.set("y", inputs["x"].iter().map(|x| factor * x).collect());
        });
}

#[test_kernel(twice)]
fn a_right_one(t: &mut Cases) {
    doubles(t, 2.0);
}

#[test_kernel(twice)]
fn b_wrong_one(t: &mut Cases) {
    doubles(t, 2.5);
}

#[test_kernel(twice)]
fn c_deadly_one(t: &mut Cases) {
    t.case("1")
        .input("x", [1], normal(0.0, 1.0))
        .output("y", [1])
        .expect(|_, _| std::process::abort());
}

#[test_kernel(twice)]
fn d_right_one_that_prints(t: &mut Cases) {
    print!("no line, ");
    println!("then a line");
    doubles(t, 2.0);
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let has = |word: &str| words.iter().any(|w| w == word);
    match words.get(1).map(String::as_str) {
        Some("test") => iron_runner::main(),
        // What a harness answers to those who list and filter tests.
        _ if has("--list") => {
            if !has("--ignored") {
                println!("workers: test");
            }
            ExitCode::SUCCESS
        }
        _ => {
            the_order_and_the_verdicts_are_those_of_one_process();
            a_process_that_ends_fails_its_test_alone();
            ExitCode::SUCCESS
        }
    }
}

fn runner(arguments: &[&str]) -> Output {
    let program = std::env::current_exe().expect("the program has a path");
    let mut command = Command::new(program);
    command.args(["test", "--backend", "host"]).args(arguments);
    command.output().expect("it starts")
}

/// The lines of the tests, without times.
fn verdicts(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines();
    let lines = lines.filter(|l| l.contains(" host ") && !l.starts_with(' '));
    lines
        .map(|l| l.rsplit_once(", ").unwrap_or((l, "")).0.to_owned())
        .collect()
}

fn the_order_and_the_verdicts_are_those_of_one_process() {
    let alone = runner(&["--filter", "_one", "--jobs", "1"]);
    // The deadly one takes the only process down.
    assert_eq!(alone.status.code(), None, "{alone:?}");
    for filter in ["right_one", "wrong_one"] {
        let alone = runner(&["--filter", filter, "--jobs", "1"]);
        let many = runner(&["--filter", filter, "--jobs", "3"]);
        assert_eq!(alone.status.code(), many.status.code(), "{many:?}");
        assert_eq!(verdicts(&alone), verdicts(&many));
        assert!(!verdicts(&many).is_empty(), "{many:?}");
    }
}

fn a_process_that_ends_fails_its_test_alone() {
    let output = runner(&["--jobs", "2"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines = verdicts(&output);
    let words: Vec<(&str, &str)> = lines
        .iter()
        .map(|l| {
            let mut words = l.split_whitespace();
            let verdict = words.next().unwrap_or_default();
            (verdict, words.nth(1).unwrap_or_default())
        })
        .collect();
    assert_eq!(
        words,
        [
            ("ok", "a_right_one"),
            ("FAIL", "b_wrong_one"),
            ("FAIL", "c_deadly_one"),
            ("ok", "d_right_one_that_prints"),
        ],
        "{output:?}"
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("the process that ran the test ended"),
        "{text}"
    );
}
