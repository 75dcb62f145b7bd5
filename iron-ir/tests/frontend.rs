//! Kernels through the macro into IR.

use iron_ir::kernel::Access;
use iron_ir::prelude::*;
use iron_ir::registry::kernels;
use iron_ir::{Kernel, Op, Stmt};

/// `y[i] = a * x[i] + y[i]`.
///
/// A second paragraph is not part of the contract header.
#[kernel(grid = [ceil_div(n, 256)], workgroup = 256, instances(T = [f32, f16]))]
pub fn axpy<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>, a: f32) {
    let i = global_id(0);
    if i >= n {
        return;
    }
    y[i] = T::from_f32(a * x[i].to_f32() + y[i].to_f32());
}

/// Root-mean-square norm of each row.
#[kernel(grid = [rows], workgroup = 256, requires(cols % 4 == 0), instances(T = [f32, bf16]))]
pub fn rms_norm<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    w: &Tensor<T, (cols,)>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let row = group_id(0);
    let mut sum = 0.0f32;
    for i in strided(cols / 4) {
        let v = x.load4([row, i]).to_f32();
        sum += v.dot(v);
    }
    let scale = rsqrt(workgroup_sum(sum) / cols as f32 + eps);
    for i in strided(cols / 4) {
        let v = x.load4([row, i]).to_f32() * scale * w.load4(i).to_f32();
        y.store4([row, i], v.to::<T>());
    }
}

/// Counts of each byte.
#[kernel(grid = [ceil_div(n, 1024)], workgroup = 256)]
pub fn histogram(x: &Tensor<u8, (n,)>, bins: &mut Tensor<u32, { (256,) }>) {
    let mut counts = shared::<u32>(256);
    counts[local_index()] = 0;
    barrier();
    for i in grid_strided(n) {
        counts.atomic_add(x[i] as u32, 1);
    }
    barrier();
    bins.atomic_add(local_index(), counts[local_index()]);
}

fn built(name: &str, instance: &str) -> Kernel {
    let entry = kernels()
        .into_iter()
        .find(|k| k.name == name)
        .expect("registered");
    let instance = entry
        .instances
        .iter()
        .find(|i| i.name == instance)
        .expect("listed");
    match (instance.build)() {
        Ok(kernel) => kernel,
        Err(error) => panic!("{error}"),
    }
}

fn statements(kernel: &Kernel) -> Vec<String> {
    let mut all = Vec::new();
    kernel.body.walk(&mut |stmt, _| {
        all.push(match stmt {
            Stmt::Let(value) => match &kernel.values[*value].op {
                Op::Load { .. } => "load".to_string(),
                _ => return,
            },
            Stmt::Store { .. } => "store".into(),
            Stmt::Barrier(..) => "barrier".into(),
            Stmt::Atomic { op, .. } => format!("atomic {}", op.name()),
            Stmt::Group { op, .. } => format!("group {}", op.name()),
            Stmt::For { .. } => "for".into(),
            Stmt::If { .. } => "if".into(),
            Stmt::Return => "return".into(),
            Stmt::Set(local, _) => format!("set {}", kernel.locals[*local].name),
            _ => return,
        });
    });
    all
}

#[test]
fn axpy_has_its_contract_and_statements() {
    let kernel = built("axpy", "f16");
    assert_eq!(&*kernel.doc, "`y[i] = a * x[i] + y[i]`.");
    assert_eq!(kernel.contract.workgroup, [256, 1, 1]);
    assert_eq!(
        kernel.contract.grid[0].display(&kernel).to_string(),
        "ceil_div(n, 256)"
    );
    let names: Vec<_> = kernel.params.values().map(|p| p.name.to_string()).collect();
    assert_eq!(names, ["x", "y", "a"]);
    let y = kernel.params.handles().nth(1).expect("y");
    assert_eq!(kernel.tensor(y).map(|t| t.access), Some(Access::ReadWrite));
    assert_eq!(
        statements(&kernel),
        ["if", "return", "load", "load", "store"]
    );
}

#[test]
fn rms_norm_joins_rows_by_the_group_sum() {
    let kernel = built("rms_norm", "bf16");
    let expected = [
        "set sum",
        "for",
        "load",
        "set sum",
        "group reduce",
        "for",
        "load",
        "load",
        "store",
    ];
    assert_eq!(statements(&kernel), expected);
    let aligned: Vec<_> = kernel
        .params
        .handles()
        .filter_map(|p| kernel.tensor(p))
        .map(|t| t.align)
        .collect();
    assert_eq!(aligned, [4, 4, 4]);
    assert_eq!(
        kernel.contract.requires[0].display(&kernel).to_string(),
        "cols % 4 == 0"
    );
}

#[test]
fn histogram_keeps_the_order_of_barriers_and_atomics() {
    let kernel = built("histogram", "");
    let expected = [
        "store",
        "barrier",
        "for",
        "load",
        "atomic add",
        "barrier",
        "load",
        "atomic add",
    ];
    assert_eq!(statements(&kernel), expected);
    let array = kernel.arrays.values().next().expect("one array");
    assert_eq!((&*array.name, array.len), ("counts", 256));
}

const START: u32 = 2 + 3;

/// A variable whose initialiser is a folded constant, changed in a loop.
#[kernel(grid = [1], workgroup = 1)]
fn folded_start(y: &mut Tensor<u32, (n,)>) {
    let mut at = START * 2;
    for i in 0..n {
        y[i] = at;
        at += 1;
    }
    let mut twice = 1;
    for _ in unroll(0..3u32) {
        twice *= 2;
    }
    y[0] = twice;
}

// K38: a `let mut` is a variable, whatever its initialiser folds to.
#[test]
fn a_variable_from_a_folded_constant_stays_a_variable() {
    let kernel = built("folded_start", "");
    let sets: Vec<_> = statements(&kernel)
        .into_iter()
        .filter(|s| s.starts_with("set"))
        .collect();
    assert_eq!(
        sets,
        [
            "set at",
            "set at",
            "set twice",
            "set twice",
            "set twice",
            "set twice"
        ]
    );
    let text = iron_ir::print::print(&kernel);
    assert!(text.contains("$at = 10u32"), "{text}");
}

/// Neighbours exchange through shared memory.
#[kernel(grid = [1], workgroup = 64)]
fn rotate(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let i = local_index();
    let mut s = shared::<f32>(64);
    s[i] = x[i];
    barrier();
    let neighbour = s[(i + 1) % 64];
    barrier();
    s[i] = neighbour;
    y[i] = s[i];
}

// K01: nothing crosses a barrier.
#[test]
fn statements_keep_their_order_around_barriers() {
    let expected = [
        "load", "store", "barrier", "load", "barrier", "store", "load", "store",
    ];
    assert_eq!(statements(&built("rotate", "")), expected);
}

struct Memory;

impl iron_ir::launch::DeviceBuffer for Memory {
    fn bytes(&self) -> u64 {
        1024
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn the_typed_launcher_names_the_instance_and_orders_the_arguments() {
    let view = |scalar| iron_ir::launch::TensorArg {
        buffer: std::sync::Arc::new(Memory),
        scalar,
        shape: vec![8],
        strides: vec![1],
        offset: 0,
    };
    let (x, mut y) = (view(iron_ir::Scalar::F16), view(iron_ir::Scalar::F16));
    let request = axpy::launch::<f16>(axpy::Args {
        x: &x,
        y: &mut y,
        a: 2.0,
    });
    assert_eq!((request.kernel, request.instance.as_str()), ("axpy", "f16"));
    assert_eq!(request.module, module_path!());
    assert_eq!(request.arguments.len(), 3);
    let entry = kernels()
        .into_iter()
        .find(|k| k.name == request.kernel)
        .expect("registered");
    assert_eq!(entry.module, request.module);
    assert!(entry.instances.iter().any(|i| i.name == request.instance));
}
