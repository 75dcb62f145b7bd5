//! Right and wrong kernels through the whole runner: the verdicts, not the wording.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal};

/// Doubles: `y[i] = 2 * x[i]`.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, requires(n % 4 == 0))]
pub fn twice(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = 2.0 * x[i];
    }
}

/// As `twice`, without the last element.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn forgets_the_last(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let i = global_id(0);
    if i + 1 < n {
        y[i] = 2.0 * x[i];
    }
}

/// Reads one element past the end.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64)]
pub fn reads_beyond(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let i = global_id(0);
    if i < n {
        y[i] = 2.0 * x[i + 1];
    }
}

/// Reverses each row through shared memory; the barrier can be left out.
#[kernel(grid = [rows], workgroup = 32, requires(cols == 32), instances(WAIT = [true, false]))]
pub fn neighbours<const WAIT: bool>(
    x: &Tensor<u32, (rows, cols)>,
    y: &mut Tensor<u32, (rows, cols)>,
) {
    let row = group_id(0);
    let i = local_index();
    let mut cells = shared::<u32>(32);
    cells[i] = x[[row, i]];
    if WAIT {
        barrier();
    }
    y[[row, i]] = cells[31 - i];
}

/// Counts the elements above zero of the whole tensor.
#[kernel(grid = [ceil_div(n, 64)], workgroup = 64, requires(cells == 1))]
pub fn count_above_zero(x: &Tensor<f32, (n,)>, count: &mut Tensor<u32, (cells,)>) {
    let i = global_id(0);
    if i < n && x[i] > 0.0 {
        count.atomic_add(0, 1);
    }
}

/// `y[i] = 2 * x[i]`, `EACH` elements a thread; with 3, another thing.
#[kernel(grid = [ceil_div(n, 64 * EACH)], workgroup = 64, instances(EACH = [1, 4, 3]))]
pub fn twice_each<const EACH: u32>(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    for i in 0..EACH {
        let at = (group_id(0) * EACH + i) * 64 + local_index();
        if at < n {
            y[at] = if EACH == 3 { 2.1 * x[at] } else { 2.0 * x[at] };
        }
    }
}

#[bench_kernel(twice_each)]
fn twice_of_a_page(b: &mut Benches) {
    let n = if b.constant("EACH") == 3 { 128 } else { 1024 };
    for (case, n) in [("page", n), ("small", 128)] {
        b.bench(case)
            .input("x", [n], normal(0.0, 1.0))
            .output("y", [n]);
    }
}

fn doubles(t: &mut Cases, factor: f64) {
    for n in [4u64, 64, 132] {
        t.case(n.to_string())
            .input("x", [n], normal(0.0, 1.0))
            .output("y", [n])
            .bound(Bound::relative(1e-6))
            .expect(move |inputs, out| {
                out.set("y", inputs["x"].iter().map(|x| factor * x).collect());
            });
    }
}

#[test_kernel(twice)]
fn twice_is_right(t: &mut Cases) {
    doubles(t, 2.0);
    t.case("large")
        .production()
        .input("x", [1 << 18], normal(0.0, 1.0))
        .output("y", [1 << 18])
        .bound(Bound::exact())
        .expect(|inputs, out| out.set("y", inputs["x"].iter().map(|x| 2.0 * x).collect()));
}

#[test_kernel(twice)]
fn wrong_oracle(t: &mut Cases) {
    doubles(t, 2.001);
}

#[test_kernel(forgets_the_last)]
fn unwritten_output(t: &mut Cases) {
    doubles(t, 2.0);
}

#[test_kernel(reads_beyond)]
fn out_of_bounds(t: &mut Cases) {
    doubles(t, 2.0);
}

#[test_kernel(neighbours)]
fn reversed_rows(t: &mut Cases) {
    t.case("3 rows")
        .input("x", [3, 32], ints(0, 1000))
        .output("y", [3, 32])
        .expect(|inputs, out| {
            let rows = inputs.ints("x").chunks(32);
            out.set_ints("y", rows.flat_map(|r| r.iter().rev().copied()).collect());
        });
}

#[test_kernel(count_above_zero)]
fn counts(t: &mut Cases) {
    for n in [1u64, 1000] {
        t.case(n.to_string())
            .input("x", [n], normal(0.0, 1.0))
            .inout("count", [1], ints(5, 6))
            .expect(|inputs, out| {
                let above = inputs["x"].iter().filter(|x| **x > 0.0).count();
                out.set_ints("count", vec![5 + above as i64]);
            });
    }
}

#[test_kernel(twice)]
fn missing_input(t: &mut Cases) {
    t.case("no x")
        .output("y", [4])
        .expect(|_, out| out.set("y", vec![0.0; 4]));
}

fn verdict(backend: &str, filter: &str) -> u8 {
    iron_runner::run(["runner", "test", "--backend", backend, "--filter", filter])
}

#[test]
fn right_kernels_pass() {
    for backend in ["host", "reference"] {
        for test in ["twice_is_right", "reversed_rows[WAIT=true]", "counts"] {
            assert_eq!(verdict(backend, test), 0, "{test} on {backend}");
        }
    }
    assert_eq!(verdict("host", "twice_is_right/132"), 0);
}

#[test]
fn wrong_kernels_fail() {
    for backend in ["host", "reference"] {
        for test in [
            "wrong_oracle",
            "unwritten_output",
            "out_of_bounds",
            "missing_input",
        ] {
            assert_eq!(verdict(backend, test), 1, "{test} on {backend}");
        }
        assert_eq!(
            verdict(backend, "reversed_rows[WAIT=false]"),
            1,
            "{backend}"
        );
    }
}

#[test]
fn what_did_not_run_has_its_own_code() {
    assert_eq!(verdict("host", "no_such_test"), 4);
    assert_eq!(verdict("host", "twice_is_right/no such case"), 4);
    if !cfg!(target_os = "macos") {
        assert_eq!(verdict("metal", "twice_is_right"), 3);
        assert_eq!(verdict("host,metal", "twice_is_right"), 3);
        assert_eq!(verdict("host,metal", "wrong_oracle"), 1);
    }
}

#[test]
fn other_commands_answer() {
    assert_eq!(iron_runner::run(["runner", "list", "--json"]), 0);
    assert_eq!(
        iron_runner::run(["runner", "devices", "--backend", "host"]),
        0
    );
    assert_eq!(
        iron_runner::run(["runner", "explain", "twice", "--after", "all"]),
        0
    );
    assert_eq!(
        iron_runner::run(["runner", "explain", "twice", "--target", "cuda"]),
        0
    );
    assert_eq!(
        iron_runner::run(["runner", "explain", "twice", "--after", "nothing"]),
        2
    );
    assert_eq!(iron_runner::run(["runner", "explain", "thrice"]), 4);
}

/// What `tune` ends with, and the table that it leaves.
fn tuned(filter: &str, table: &std::path::Path) -> (u8, Option<serde_json::Value>) {
    let table_name = table.to_str().expect("a path");
    let code = iron_runner::run([
        "runner",
        "tune",
        "--backend",
        "cpu",
        "--warm-up",
        "0",
        "--repetitions",
        "1",
        "--filter",
        filter,
        "--table",
        table_name,
    ]);
    let text = std::fs::read_to_string(table).ok();
    (code, text.and_then(|text| serde_json::from_str(&text).ok()))
}

#[test]
fn a_table_holds_the_choice_of_candidates_that_agree() {
    let folder = std::env::temp_dir().join(format!("iron-tune-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let table = folder.join("table.json");
    let (code, found) = tuned("twice_of_a_page[EACH=/page", &table);
    assert_eq!(code, 4, "a filter that ends with nothing");
    assert_eq!(found.expect("a table")["choices"], serde_json::json!([]));
    // The third instance's page has another shape, so it is no candidate there.
    let (code, found) = tuned("]/page", &table);
    assert_eq!(code, 0);
    let found = found.expect("a table");
    let choices = found["choices"].as_array().expect("a list");
    assert_eq!(choices.len(), 1, "{found}");
    assert_eq!(choices[0]["kernel"], "twice_each");
    assert_eq!(choices[0]["shapes"], serde_json::json!([[1024], [1024]]));
    let candidates = choices[0]["candidates"].as_array().expect("a list");
    assert_eq!(candidates.len(), 2);
    let names: Vec<_> = candidates.iter().map(|c| &c["instance"]).collect();
    assert!(names.contains(&&choices[0]["instance"]), "{found}");
    // It is one where the shapes are equal, and then they do not agree; the choice before stays.
    let (code, after) = tuned("]/small", &table);
    assert_eq!((code, after.as_ref()), (1, Some(&found)));
    // A table of another device is no place for choices.
    let text = found.to_string().replace("\"cpu\"", "\"cuda\"");
    std::fs::write(&table, &text).expect("written");
    assert_eq!(tuned("]/page", &table).0, 2);
    assert_eq!(std::fs::read_to_string(&table).expect("read"), text);
    std::fs::remove_dir_all(&folder).expect("removed");
}
