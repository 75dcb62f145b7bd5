//! Texts of small kernels in all three languages.

use iron_ir::contract::{Expr as Formula, ExprOp, Fact};
use iron_ir::entity::{Array, Local, Param, Value};
use iron_ir::kernel::{
    Access, ArrayData, Block, Kernel, LocalData, ParamData, ParamKind, Space, Span, TensorData,
    TensorLayout,
};
use iron_ir::op::{
    BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp, Const, Op, Place, ReduceOp, Stmt,
    SubgroupOp, UnaryOp, Unroll,
};
use iron_ir::types::{Scalar, Type};

use crate::profile::{Profile, Target, by_name, of};
use crate::{cuda, hip, msl};

/// Writes kernels as the passes leave them.
pub(crate) struct Writer {
    pub kernel: Kernel,
    blocks: Vec<Block>,
    line: u32,
}

impl Writer {
    pub fn new(name: &str, workgroup: u32) -> Writer {
        let mut kernel = Kernel {
            name: name.into(),
            ..Kernel::default()
        };
        kernel.contract.workgroup = [workgroup, 1, 1];
        Writer {
            kernel,
            blocks: vec![Block::default()],
            line: 0,
        }
    }

    pub fn tensor(&mut self, name: &str, scalar: Scalar, dims: &[&str], access: Access) -> Param {
        let shape = dims
            .iter()
            .map(|dim| {
                let known = self.kernel.dim_named(dim);
                Formula::Dim(known.unwrap_or_else(|| self.kernel.dims.push((*dim).into())))
            })
            .collect();
        self.kernel.params.push(ParamData {
            name: name.into(),
            kind: ParamKind::Tensor(TensorData {
                scalar,
                shape,
                access,
                layout: TensorLayout::RowMajor,
                align: 1,
                may_alias: Vec::new(),
            }),
            span: Span::default(),
        })
    }

    pub fn scalar(&mut self, name: &str, scalar: Scalar) -> Param {
        let kind = ParamKind::Scalar(scalar);
        self.kernel.params.push(ParamData {
            name: name.into(),
            kind,
            span: Span::default(),
        })
    }

    pub fn shared(&mut self, name: &str, scalar: Scalar, len: u32) -> Array {
        let span = Span::default();
        self.kernel.arrays.push(ArrayData {
            name: name.into(),
            scalar,
            len,
            space: Space::Shared,
            span,
        })
    }

    pub fn local(&mut self, name: &str, ty: Type) -> Local {
        self.kernel.locals.push(LocalData {
            name: name.into(),
            ty,
            span: Span::default(),
        })
    }

    /// A value that needs no `let`.
    pub fn free(&mut self, op: Op, ty: Type) -> Value {
        self.kernel.add_value(op, ty, Span::default())
    }

    pub fn u32(&mut self, value: u32) -> Value {
        self.constant(Scalar::U32, u64::from(value))
    }

    pub fn f32(&mut self, value: f32) -> Value {
        self.constant(Scalar::F32, u64::from(value.to_bits()))
    }

    pub fn constant(&mut self, scalar: Scalar, bits: u64) -> Value {
        self.free(Op::Const(Const { scalar, bits }), scalar.x(1))
    }

    pub fn dim(&mut self, name: &str) -> Value {
        let dim = self.kernel.dim_named(name).expect("a known dimension");
        self.free(Op::Dim(dim), Type::U32)
    }

    pub fn builtin(&mut self, op: BuiltinOp) -> Value {
        self.free(Op::Builtin(op, 0), Type::U32)
    }

    /// A value computed here.
    pub fn compute(&mut self, op: Op, ty: Type) -> Value {
        let value = self.free(op, ty);
        self.push(Stmt::Let(value));
        value
    }

    pub fn named(&mut self, name: &str, value: Value) -> Value {
        self.kernel.values[value].name = Some(name.into());
        value
    }

    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a);
        self.compute(Op::Binary(op, a, b), ty)
    }

    pub fn widen(&mut self, value: Value) -> Value {
        self.compute(Op::Convert(value), Type::U64)
    }

    pub fn load(&mut self, param: Param, offset: Value, ty: Type) -> Value {
        self.compute(
            Op::Load {
                place: Place::Flat(param),
                indices: vec![offset],
            },
            ty,
        )
    }

    pub fn store(&mut self, param: Param, offset: Value, value: Value) {
        self.push(Stmt::Store {
            place: Place::Flat(param),
            indices: vec![offset],
            value,
        });
    }

    pub fn push(&mut self, stmt: Stmt) {
        self.line += 1;
        let span = Span {
            line: self.line,
            ..Span::default()
        };
        self.blocks
            .last_mut()
            .expect("an open block")
            .push(stmt, span);
    }

    pub fn block(&mut self, write: impl FnOnce(&mut Writer)) -> Block {
        self.blocks.push(Block::default());
        write(self);
        self.blocks.pop().expect("the block just opened")
    }

    pub fn finish(mut self) -> Kernel {
        self.kernel.body = self.blocks.pop().expect("the body");
        self.kernel
    }
}

pub(crate) fn text(kernel: &Kernel, profile: &str) -> String {
    let profile = by_name(profile).expect("a profile");
    emit(kernel, &profile).expect("a text")
}

fn emit(kernel: &Kernel, profile: &Profile) -> Result<String, crate::LowerError> {
    let emitted = match profile.target {
        Target::Msl => msl::emit(kernel, profile),
        Target::Hip => hip::emit(kernel, profile),
        Target::Cuda | Target::SpirV | Target::Cpu => cuda::emit(kernel, profile),
    };
    emitted.map(|(text, _)| text)
}

/// `y[i] = a * x[i] + y[i]`, with a tail.
pub(crate) fn axpy(scalar: Scalar) -> Kernel {
    let mut w = Writer::new("axpy", 256);
    w.kernel.doc = "Adds `a` times `x` to `y`.".into();
    w.kernel.instance = scalar.name().into();
    let x = w.tensor("x", scalar, &["n"], Access::Read);
    let y = w.tensor("y", scalar, &["n"], Access::ReadWrite);
    let a = w.scalar("a", Scalar::F32);
    let n = w.kernel.dim_named("n").expect("bound by x");
    w.kernel.contract.grid[0] =
        Formula::binary(ExprOp::CeilDiv, Formula::Dim(n), Formula::Const(256));
    w.kernel.contract.requires.push(Fact {
        op: CompareOp::Gt,
        lhs: Formula::Dim(n),
        rhs: Formula::Const(0),
    });
    let i = w.builtin(BuiltinOp::GlobalId);
    w.push(Stmt::Let(i));
    let i = w.named("i", i);
    let n = w.dim("n");
    let past = w.compute(Op::Compare(CompareOp::Ge, i, n), Type::BOOL);
    let leave = w.block(|w| w.push(Stmt::Return));
    w.push(Stmt::If {
        condition: past,
        then_block: leave,
        else_block: Block::default(),
    });
    let offset = w.widen(i);
    let x_value = w.load(x, offset, scalar.x(1));
    let x_float = w.compute(Op::Convert(x_value), Type::F32);
    let a = w.free(Op::Scalar(a), Type::F32);
    let product = w.binary(BinaryOp::Mul, a, x_float);
    let offset = w.widen(i);
    let y_value = w.load(y, offset, scalar.x(1));
    let y_float = w.compute(Op::Convert(y_value), Type::F32);
    let sum = w.binary(BinaryOp::Add, product, y_float);
    let rounded = w.compute(Op::Convert(sum), scalar.x(1));
    let offset = w.widen(i);
    w.store(y, offset, rounded);
    w.finish()
}

/// Root mean square of each row, with vectors, a loop, shared memory and subgroups.
pub(crate) fn row_norm(scalar: Scalar, lanes: u8) -> Kernel {
    let mut w = Writer::new("row_norm", 128);
    w.kernel.instance = scalar.name().into();
    let x = w.tensor("x", scalar, &["rows", "cols"], Access::Read);
    let y = w.tensor("y", Scalar::F32, &["rows"], Access::ReadWrite);
    let eps = w.scalar("eps", Scalar::F32);
    let partial = w.shared("partial", Scalar::F32, 4);
    let sum = w.local("sum", Type::F32);
    let rows = w.kernel.dim_named("rows").expect("bound by x");
    w.kernel.contract.grid[0] = Formula::Dim(rows);
    let row = w.builtin(BuiltinOp::GroupId);
    w.push(Stmt::Let(row));
    let row = w.named("row", row);
    let zero = w.f32(0.0);
    w.push(Stmt::Set(sum, zero));
    let (first, cols, step) = (w.builtin(BuiltinOp::LocalIndex), w.dim("cols"), w.u32(128));
    let lanes_value = w.u32(u32::from(lanes));
    let end = w.binary(BinaryOp::Div, cols, lanes_value);
    let index = w.free(Op::Result, Type::U32);
    let index = w.named("i", index);
    let body = w.block(|w| {
        let wide_row = w.widen(row);
        let stride = w.free(Op::Stride(x, 0), Type::U64);
        let start = w.binary(BinaryOp::Mul, wide_row, stride);
        let wide = w.widen(index);
        let count = w.constant(Scalar::U64, u64::from(lanes));
        let column = w.binary(BinaryOp::Mul, wide, count);
        let offset = w.binary(BinaryOp::Add, start, column);
        let v = w.load(x, offset, scalar.x(lanes));
        let v = w.named("v", v);
        for half in 0..lanes.div_ceil(4) {
            let parts = (0..lanes.min(4)).map(|lane| {
                let part = w.compute(Op::Extract(v, half * 4 + lane), scalar.x(1));
                w.compute(Op::Convert(part), Type::F32)
            });
            let parts: Vec<Value> = parts.collect();
            let wide_type = Scalar::F32.x(lanes.min(4));
            let floats = w.compute(Op::Vector(parts), wide_type);
            let floats = w.named("f", floats);
            let squares = w.binary(BinaryOp::Mul, floats, floats);
            let squares = w.named("squares", squares);
            for lane in 0..lanes.min(4) {
                let before = w.compute(Op::Get(sum), Type::F32);
                let square = w.compute(Op::Extract(squares, lane), Type::F32);
                let after = w.binary(BinaryOp::Add, before, square);
                w.push(Stmt::Set(sum, after));
            }
        }
    });
    w.push(Stmt::For {
        index,
        start: first,
        end,
        step,
        unroll: Unroll::Auto,
        body,
    });
    let mine = w.compute(Op::Get(sum), Type::F32);
    let total = w.free(Op::Result, Type::F32);
    w.push(Stmt::Subgroup {
        result: total,
        op: SubgroupOp::Reduce,
        reduce: Some(ReduceOp::Sum),
        value: mine,
        argument: None,
    });
    let lane = w.builtin(BuiltinOp::SubgroupLane);
    let zero_index = w.u32(0);
    let is_first = w.compute(Op::Compare(CompareOp::Eq, lane, zero_index), Type::BOOL);
    let subgroup = w.builtin(BuiltinOp::SubgroupId);
    let note = w.block(|w| {
        w.push(Stmt::Store {
            place: Place::Array(partial),
            indices: vec![subgroup],
            value: total,
        });
    });
    w.push(Stmt::If {
        condition: is_first,
        then_block: note,
        else_block: Block::default(),
    });
    w.push(Stmt::Barrier(
        BarrierScope::Workgroup,
        BarrierMemory::Shared,
    ));
    let thread = w.builtin(BuiltinOp::LocalIndex);
    let is_first = w.compute(Op::Compare(CompareOp::Eq, thread, zero_index), Type::BOOL);
    let finish = w.block(|w| {
        let cell = w.u32(0);
        let whole = w.compute(
            Op::Load {
                place: Place::Array(partial),
                indices: vec![cell],
            },
            Type::F32,
        );
        let cols = w.dim("cols");
        let count = w.compute(Op::Convert(cols), Type::F32);
        let mean = w.binary(BinaryOp::Div, whole, count);
        let eps = w.free(Op::Scalar(eps), Type::F32);
        let shifted = w.binary(BinaryOp::Add, mean, eps);
        let root = w.compute(Op::Unary(UnaryOp::Rsqrt, shifted), Type::F32);
        let offset = w.widen(row);
        w.store(y, offset, root);
    });
    w.push(Stmt::If {
        condition: is_first,
        then_block: finish,
        else_block: Block::default(),
    });
    w.finish()
}

/// A kernel whose every name some language reserves. (K20)
pub(crate) fn reserved_names() -> Kernel {
    let mut w = Writer::new("kernel", 32);
    let names = [
        "thread", "device", "half", "new", "and", "assert", "min", "float4", "main",
    ];
    let tensors: Vec<Param> = names
        .iter()
        .map(|n| w.tensor(n, Scalar::F32, &["__x"], Access::Read))
        .collect();
    let y = w.tensor("a__b", Scalar::F32, &["__x"], Access::ReadWrite);
    let shared = w.shared("threadgroup", Scalar::F32, 32);
    let total = w.local("parameters", Type::F32);
    let i = w.builtin(BuiltinOp::LocalIndex);
    w.push(Stmt::Let(i));
    let i = w.named("threadIdx", i);
    let zero = w.f32(0.0);
    w.push(Stmt::Set(total, zero));
    for param in tensors {
        let before = w.compute(Op::Get(total), Type::F32);
        let offset = w.widen(i);
        let value = w.load(param, offset, Type::F32);
        let value = w.named("__shfl_sync", value);
        let after = w.binary(BinaryOp::Add, before, value);
        w.push(Stmt::Set(total, after));
    }
    let value = w.compute(Op::Get(total), Type::F32);
    w.push(Stmt::Store {
        place: Place::Array(shared),
        indices: vec![i],
        value,
    });
    let back = w.compute(
        Op::Load {
            place: Place::Array(shared),
            indices: vec![i],
        },
        Type::F32,
    );
    let offset = w.widen(i);
    w.store(y, offset, back);
    w.finish()
}

/// Every integer operation at one width.
pub(crate) fn integers(scalar: Scalar) -> Kernel {
    let mut w = Writer::new("integers", 1);
    w.kernel.instance = scalar.name().into();
    let x = w.tensor("x", scalar, &["n"], Access::Read);
    let y = w.tensor("y", scalar, &["n"], Access::ReadWrite);
    let counts = w.tensor("counts", Scalar::U32, &["n"], Access::ReadWrite);
    let (zero, one) = (w.constant(Scalar::U64, 0), w.constant(Scalar::U64, 1));
    let a = w.load(x, zero, scalar.x(1));
    let a = w.named("a", a);
    let b = w.load(x, one, scalar.x(1));
    let b = w.named("b", b);
    let mut at = 0;
    for &op in BinaryOp::ALL {
        // The last two are the passes' to take apart, but where CUDA has the first.
        use BinaryOp::{Dot4, Dot4Mixed, MaxNan, MinNan, Pow};
        if matches!(op, MinNan | MaxNan | Pow | Dot4 | Dot4Mixed) {
            continue;
        }
        let result = w.binary(op, a, b);
        let offset = w.constant(Scalar::U64, at);
        w.store(y, offset, result);
        at += 1;
    }
    for op in [
        UnaryOp::Neg,
        UnaryOp::Not,
        UnaryOp::Abs,
        UnaryOp::ReverseBits,
    ] {
        let result = w.compute(Op::Unary(op, a), scalar.x(1));
        let offset = w.constant(Scalar::U64, at);
        w.store(y, offset, result);
        at += 1;
    }
    let float = w.compute(Op::Convert(a), Type::F32);
    let back = w.compute(Op::Convert(float), scalar.x(1));
    let offset = w.constant(Scalar::U64, at);
    w.store(y, offset, back);
    for (at, op) in [
        UnaryOp::CountOnes,
        UnaryOp::LeadingZeros,
        UnaryOp::TrailingZeros,
    ]
    .into_iter()
    .enumerate()
    {
        let result = w.compute(Op::Unary(op, a), Type::U32);
        let offset = w.constant(Scalar::U64, at as u64);
        w.store(counts, offset, result);
    }
    w.finish()
}

/// The entry point without the helpers before it.
fn entry(text: &str) -> &str {
    let start = text
        .find("extern \"C\"")
        .or_else(|| text.find("[[max_total"))
        .expect("an entry");
    &text[start..]
}

#[test]
fn axpy_reads_as_a_person_would_write_it() {
    let expected = "\
extern \"C\" __global__ void __launch_bounds__(256) axpy_f32(
    const float* __restrict__ x,
    float* __restrict__ y,
    unsigned int n,
    float a
) {
    const unsigned int i = blockIdx.x * 256u + threadIdx.x;
    if (i >= n) return;
    y[i] = a * x[i] + y[i];
}
";
    let kernel = axpy(Scalar::F32);
    assert_eq!(entry(&text(&kernel, "sm_90a")), expected);
    assert_eq!(entry(&text(&kernel, "gfx942")), expected);
    let expected = "\
[[max_total_threads_per_threadgroup(256)]]
kernel void axpy_f32(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    constant Parameters& parameters [[buffer(2)]],
    uint3 global_id [[thread_position_in_grid]]
) {
    const uint i = global_id.x;
    if (i >= parameters.n) return;
    y[i] = parameters.a * x[i] + y[i];
}
";
    assert_eq!(entry(&text(&kernel, "metal3.1")), expected);
}

#[test]
fn resident_workgroups_bound_the_registers_on_cuda_alone() {
    let mut kernel = axpy(Scalar::F32);
    kernel.contract.resident = 4;
    let bounds = |profile| {
        let text = text(&kernel, profile);
        let found = text.split("__launch_bounds__").nth(1).map(str::to_owned);
        found.and_then(|rest| rest.split(' ').next().map(str::to_owned))
    };
    assert_eq!(bounds("gfx942").as_deref(), Some("(256)"));
    let found = text(&kernel, "sm_90a");
    assert!(found.contains("__launch_bounds__(256, 4) axpy"), "{found}");
}

#[test]
fn the_contract_stands_in_the_header() {
    let text = text(&axpy(Scalar::BF16), "sm_90a");
    for line in [
        "// axpy (bf16) for sm_90a\n",
        "// Adds `a` times `x` to `y`.\n",
        "// grid       ceil_div(n, 256)\n",
        "// requires   n > 0\n",
        "// y          bf16 [n], written\n",
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
}

// K20
#[test]
fn reserved_words_are_renamed_in_every_language() {
    let kernel = reserved_names();
    for profile in ["sm_90a", "gfx942", "metal3.1"] {
        let text = text(&kernel, profile);
        let body = entry(&text);
        for renamed in [
            "half_", "new_", "and_", "assert_", "min_", "float4_", "main_", "a_b",
        ] {
            assert!(
                body.contains(renamed),
                "{profile}: no `{renamed}` in\n{body}"
            );
        }
        assert!(
            !body.contains("a__b") && !body.contains(" __x"),
            "{profile}:\n{body}"
        );
    }
    assert!(text(&kernel, "metal3.1").contains("kernel void kernel_("));
    assert!(text(&kernel, "sm_90a").contains("threadIdx_ = threadIdx.x"));
}

#[test]
fn promotion_and_overflow_cannot_change_an_integer() {
    for (scalar, lines) in [
        (
            Scalar::U16,
            &[
                "(unsigned short)(a + b)",
                "(unsigned short)((unsigned int)a * b)",
                "(unsigned short)~a",
            ][..],
        ),
        (
            Scalar::I8,
            &[
                "(signed char)(a * b)",
                "(signed char)((unsigned int)a << (b & 7))",
            ][..],
        ),
        (
            Scalar::I32,
            &[
                "(int)((unsigned int)a + (unsigned int)b)",
                "(int)(0u - (unsigned int)a)",
                "(int)((unsigned int)a << (b & 31))",
                "b == 0 ? -1 : b == -1 ? (int)(0u - (unsigned int)a) : a / b",
            ][..],
        ),
        (
            Scalar::U64,
            &["a + b", "b == 0 ? 18446744073709551615ull : a / b"][..],
        ),
    ] {
        let text = text(&integers(scalar), "sm_90a");
        for line in lines {
            assert!(text.contains(line), "{scalar}: no `{line}` in\n{text}");
        }
    }
}

// K06
#[test]
fn offsets_are_taken_in_64_bits() {
    let text = text(&row_norm(Scalar::F32, 4), "sm_90a");
    assert!(text.contains("unsigned long long x_stride0"), "{text}");
    assert!(text.contains("x + row * x_stride0 + i * 4ull"), "{text}");
}

// K27
#[test]
fn subgroups_follow_the_profile() {
    let kernel = row_norm(Scalar::F16, 8);
    let wave64 = text(&kernel, "gfx942");
    assert!(
        wave64.contains("threadIdx.x % 64u") && wave64.contains("__shfl_xor(x"),
        "{wave64}"
    );
    assert!(text(&kernel, "gfx1100").contains("threadIdx.x % 32u"));
    assert!(text(&kernel, "sm_90a").contains("__shfl_xor_sync(0xffffffffu"));
    assert!(text(&kernel, "metal3.1").contains("[[threads_per_simdgroup]]"));
}

#[test]
fn texts_are_the_same_every_time() {
    for kernel in [
        axpy(Scalar::F16),
        row_norm(Scalar::BF16, 8),
        integers(Scalar::I64),
    ] {
        assert_eq!(text(&kernel, "sm_90a"), text(&kernel, "sm_90a"));
    }
}

#[test]
fn illegal_ir_is_an_error_that_names_it() {
    let mut w = Writer::new("illegal", 1);
    let x = w.tensor("x", Scalar::F32, &["n"], Access::ReadWrite);
    let (index, value) = (w.u32(0), w.f32(1.0));
    w.push(Stmt::Store {
        place: Place::Tensor(x),
        indices: vec![index],
        value,
    });
    let kernel = w.finish();
    for target in [Target::Cuda, Target::Hip, Target::Msl] {
        let error = emit(&kernel, &of(target).remove(0))
            .expect_err("illegal")
            .to_string();
        assert!(
            error.contains("`illegal`") && error.contains("tensor access"),
            "{error}"
        );
    }
}

// K22, K23
#[test]
fn limits_are_checked_with_both_values() {
    let metal = by_name("metal3.1").expect("a profile");
    let cuda = by_name("sm_90a").expect("a profile");
    let with_tensors = |count: usize| {
        let mut w = Writer::new("wide", 32);
        for n in 0..count {
            w.tensor(&format!("x{n}"), Scalar::F32, &["n"], Access::Read);
        }
        w.finish()
    };
    assert_eq!(metal.check(&with_tensors(30)), Ok(()));
    let error = metal
        .check(&with_tensors(31))
        .expect_err("32 slots")
        .to_string();
    assert!(
        error.contains("32 buffer slots") && error.contains("has 31"),
        "{error}"
    );
    assert_eq!(cuda.check(&with_tensors(32)), Ok(()));
    let with_shared = |len: u32| {
        let mut w = Writer::new("deep", 32);
        w.shared("tile", Scalar::F32, len);
        w.finish()
    };
    assert_eq!(metal.check(&with_shared(8192)), Ok(()));
    let error = metal
        .check(&with_shared(8196))
        .expect_err("too much")
        .to_string();
    assert!(
        error.contains("32784 bytes") && error.contains("`tile`"),
        "{error}"
    );
    assert!(error.contains("32768"), "{error}");
}
