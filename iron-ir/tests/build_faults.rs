//! What rustc accepts and no device can have: such a kernel is refused when it is built, by a
//! message that names its line and what to write.

use iron_ir::build::{BuildError, BuildFault};
use iron_ir::prelude::*;
use iron_ir::registry::kernels;

const THREADS: u32 = 1024;
const TOO_MANY: u32 = THREADS + 1;
const NO_THREADS: u32 = 0;
const LARGEST: u32 = 1 << 24;

/// A pair with an operator of its own, which `host` alone would run.
#[device_struct]
pub struct Pair {
    a: f32,
    b: f32,
}

impl std::ops::Add for Pair {
    type Output = Pair;
    fn add(self, other: Pair) -> Pair {
        let (a, b) = (self.a * other.a, self.b * other.b);
        Pair { a, b }
    }
}

#[device_fn]
fn even(n: u32) -> bool {
    if n == 0 { true } else { odd(n - 1) }
}

#[device_fn]
fn odd(n: u32) -> bool {
    if n == 0 { false } else { even(n - 1) }
}

#[kernel(grid = [1], workgroup = THREADS)]
fn largest_workgroup(y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [1], workgroup = TOO_MANY)]
fn workgroup_too_large(y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [1], workgroup = [1, NO_THREADS])]
fn workgroup_of_nothing(y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [1], workgroup = 64)]
fn shared_of_a_dimension(y: &mut Tensor<f32, (n,)>) {
    let s = shared::<f32>(n); // here: shared_of_a_dimension
    y[0] = s[0];
}

#[kernel(grid = [1], workgroup = 64)]
fn shared_of_nothing(y: &mut Tensor<f32, (n,)>) {
    let s = shared::<f32>(0); // here: shared_of_nothing
    y[0] = s[0];
}

#[kernel(grid = [1], workgroup = 64)]
fn largest_shared(y: &mut Tensor<f32, (n,)>) {
    let mut s = shared::<f32>(LARGEST);
    s[LARGEST - 1] = 1.0;
    y[0] = s[LARGEST - 1];
}

#[kernel(grid = [1], workgroup = 64)]
fn shared_too_large(y: &mut Tensor<f32, (n,)>) {
    let s = shared::<f32>(LARGEST + 1); // here: shared_too_large
    y[0] = s[0];
}

#[kernel(grid = [1], workgroup = 64)]
fn private_past_its_end(y: &mut Tensor<f32, (n,)>) {
    let mut p = private::<f32>(4);
    p[3] = 1.0;
    p[4] = 1.0; // here: private_past_its_end
    y[0] = p[3];
}

#[kernel(grid = [1], workgroup = 64)]
fn last_axis(y: &mut Tensor<f32, (n,)>) {
    y[group_id(2)] = 1.0;
}

#[kernel(grid = [1], workgroup = 64)]
fn axis_past_the_last(y: &mut Tensor<f32, (n,)>) {
    y[group_id(3)] = 1.0; // here: axis_past_the_last
}

#[kernel(grid = [1], workgroup = 64)]
fn axis_of_a_dimension(y: &mut Tensor<f32, (n,)>) {
    y[group_id(n)] = 1.0; // here: axis_of_a_dimension
}

#[kernel(grid = [1], workgroup = 64)]
fn dimension_past_the_rank(x: &Tensor<f32, (n, m)>, y: &mut Tensor<f32, (n,)>) {
    y[x.dim(1)] = x[[0, 0]];
    y[x.dim(2)] = 1.0; // here: dimension_past_the_rank
}

#[kernel(grid = [1], workgroup = 64)]
fn unrolled_by_a_dimension(y: &mut Tensor<f32, (n,)>) {
    for i in unroll(0..n) {
        y[i] = 1.0;
    }
}

#[kernel(grid = [1], workgroup = 64)]
fn last_lane(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = x.load4(0)[3];
}

#[kernel(grid = [1], workgroup = 64)]
fn lane_past_the_last(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let v = x.load4(0);
    y[0] = v[4]; // here: lane_past_the_last
}

#[kernel(grid = [1], workgroup = 64)]
fn lane_of_a_dimension(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let v = x.load4(0);
    y[0] = v[n as usize]; // here: lane_of_a_dimension
}

#[kernel(grid = [1], workgroup = 64)]
fn recursion_of_two(y: &mut Tensor<f32, (n,)>) {
    y[0] = select(even(n), 1.0, 2.0);
}

#[kernel(grid = [1], workgroup = 64)]
fn operator_of_ones_own(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let p = Pair { a: x[0], b: x[1] };
    let q = p + p; // here: operator_of_ones_own
    y[0] = q.a;
}

#[kernel(grid = [1], workgroup = 64)]
fn greatest_of_bools(y: &mut Tensor<f32, (n,)>) {
    let any = (n > 1).max(n > 2); // here: greatest_of_bools
    y[0] = select(any, 1.0, 2.0);
}

#[kernel(grid = [1], workgroup = 64)]
fn product_of_other_sizes(x: &Tensor<f32, (n, n)>, y: &mut Tensor<f32, (n, n)>) {
    let mut a = shared_tile::<f32>(16, 8);
    let mut b = shared_tile::<f32>(16, 16);
    let mut c = reg_tile::<f32>(16, 16, 0.0);
    a.load(x, [0, 0]);
    b.load(x, [0, 0]);
    matmul(&mut c, &a, &b); // here: product_of_other_sizes
    c.store(y, [0, 0]);
}

#[kernel(grid = [1], workgroup = 64)]
fn tile_of_a_dimension(x: &Tensor<f32, (n, n)>, y: &mut Tensor<f32, (n, n)>) {
    let mut a = reg_tile::<f32>(16, n, 0.0); // here: tile_of_a_dimension
    a.load(x, [0, 0]);
    a.store(y, [0, 0]);
}

fn build(name: &str) -> Result<iron_ir::Kernel, BuildError> {
    let entry = kernels()
        .into_iter()
        .find(|k| k.name == name)
        .unwrap_or_else(|| panic!("`{name}` is registered"));
    (entry.instances[0].build)()
}

/// The line of the comment that names a kernel; the kernel's own where there is none.
fn marked(name: &str) -> Option<u32> {
    let mark = format!("// here: {name}");
    let at = include_str!("build_faults.rs")
        .lines()
        .position(|line| line.ends_with(&mark))?;
    Some(at as u32 + 1)
}

#[test]
fn what_is_at_the_limit_is_built() {
    for name in [
        "largest_workgroup",
        "largest_shared",
        "last_axis",
        "last_lane",
    ] {
        let kernel = build(name).unwrap_or_else(|error| panic!("{error}"));
        iron_ir::verify::verify(&kernel).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn what_is_past_it_is_refused_at_its_line() {
    let range = |what: &str, found: i128, allowed: &str| BuildFault::OutOfRange {
        what: what.into(),
        found,
        allowed: allowed.into(),
    };
    let no_constant = |what: &str| BuildFault::NotConstant { what: what.into() };
    let axis = "the workgroup's size along an axis";
    let length = "the length of this array";
    for (name, fault) in [
        ("workgroup_too_large", range(axis, 1025, "1 to 1024")),
        ("workgroup_of_nothing", range(axis, 0, "1 to 1024")),
        ("shared_of_a_dimension", no_constant(length)),
        ("shared_of_nothing", range(length, 0, "1 to 16777216")),
        (
            "shared_too_large",
            range(length, 16_777_217, "1 to 16777216"),
        ),
        ("private_past_its_end", range("this index", 4, "0 to 3")),
        ("axis_past_the_last", range("the axis", 3, "0 to 2")),
        ("axis_of_a_dimension", no_constant("the axis")),
        ("lane_past_the_last", range("the lane", 4, "0 to 3")),
        ("lane_of_a_dimension", no_constant("the lane of a vector")),
    ] {
        let error = build(name).expect_err(name);
        assert_eq!(error.fault, fault, "{name}");
        located(name, &error);
    }
}

#[test]
fn what_has_no_form_on_devices_is_refused_at_its_line() {
    for (name, says) in [
        ("dimension_past_the_rank", "is 2, allowed are 0 to 1"),
        (
            "unrolled_by_a_dimension",
            "must be a constant; use a literal, a `const`",
        ),
        (
            "recursion_of_two",
            "nests more than 64 deep; kernels have no recursion",
        ),
        (
            "operator_of_ones_own",
            "needs a number or a vector, but this is a struct",
        ),
        ("greatest_of_bools", "does not exist for `bool` in a kernel"),
        ("product_of_other_sizes", "allowed"),
        ("tile_of_a_dimension", "must be a constant"),
    ] {
        let error = build(name).expect_err(name);
        let text = error.to_string();
        assert!(text.contains(says), "{name}: {text}");
        assert!(!text.contains('\n'), "{text}");
        located(name, &error);
    }
}

fn located(name: &str, error: &BuildError) {
    assert_eq!(error.kernel, name);
    if let Some(line) = marked(name) {
        assert!(error.file.ends_with("tests/build_faults.rs"), "{error}");
        assert_eq!(error.line, line, "{error}");
        let place = format!("{}:{}:{}: kernel `{name}`", error.file, line, error.column);
        assert!(error.to_string().starts_with(&place), "{error}");
    }
}
