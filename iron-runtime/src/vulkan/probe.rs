//! What a driver does that its properties do not say.

use std::sync::Arc;

use iron_ir::contract::Expr;
use iron_ir::entity::Value;
use iron_ir::kernel::{
    Access, Block, Kernel, ParamData, ParamKind, Span, TensorData, TensorLayout,
};
use iron_ir::launch::{Argument, TensorArg};
use iron_ir::op::{AtomicOp, BinaryOp, BuiltinOp, CompareOp, Const, Op, Place, Stmt, Unroll};
use iron_ir::types::{Scalar, Type};

use super::{VulkanDevice, failed_lowering};
use crate::device::{Device, DeviceError, RecordedLaunch};

/// Loop turns that tell whether a driver has a limit: above every one that is known.
const TURNS: u32 = 70_000;

/// Whether `fma` rounds once, on operands where rounding the product first gives another sum.
pub(super) fn fuses_multiply_add(device: &VulkanDevice) -> Result<bool, DeviceError> {
    // (1 + e)(1 - e) - 1 = -e², which a rounded product loses.
    let small = f32::EPSILON;
    let inputs = [1.0 + small, 1.0 - small, -1.0, 0.0].map(f32::to_bits);
    let found = run(device, fma_kernel(), Scalar::F32, inputs)?;
    Ok(f32::from_bits(found) == -small * small)
}

/// Whether `0 / x` loses the sign of `x`.
pub(super) fn drops_zero_operands(device: &VulkanDevice) -> Result<bool, DeviceError> {
    let inputs = [-1.0, 0.0, 0.0, 1.0].map(f32::to_bits);
    let found = run(device, zero_kernel(), Scalar::F32, inputs)?;
    Ok(found != (-0.0f32).to_bits())
}

/// How many turns the loops of an invocation may take altogether; none without a limit.
pub(super) fn loop_turns(device: &VulkanDevice) -> Result<Option<u32>, DeviceError> {
    let found = run(device, loop_kernel(), Scalar::U32, [TURNS, 0, 0, 0])?;
    Ok((found < TURNS).then_some(found))
}

/// Whether the lanes of a subgroup are consecutive threads, which Vulkan does not promise.
pub(super) fn has_linear_subgroups(device: &VulkanDevice) -> Result<bool, DeviceError> {
    let kernel = lanes_kernel();
    let threads = kernel.contract.threads();
    let found = run(device, kernel, Scalar::U32, [0; 4])?;
    Ok(found == threads)
}

/// Runs a kernel on four words and gives the last.
fn run(
    device: &VulkanDevice,
    kernel: Kernel,
    scalar: Scalar,
    inputs: [u32; 4],
) -> Result<u32, DeviceError> {
    let words = iron_lower::spirv::emit(&kernel, &device.profile)
        .map_err(|error| failed_lowering(&kernel, error))?;
    let pipeline = device.compile_module(kernel, &words, "probe".into())?;
    let buffer = device.alloc(16)?;
    let bytes: Vec<u8> = inputs.iter().flat_map(|v| v.to_le_bytes()).collect();
    device.upload(&*buffer, 0, &bytes)?;
    let (shape, strides) = (vec![4], vec![1]);
    let view = TensorArg {
        buffer: buffer.clone(),
        scalar,
        shape,
        strides,
        offset: 0,
    };
    let launch = RecordedLaunch::new(Arc::new(pipeline), vec![Argument::Tensor(view)])?;
    device.submit(&[launch])?;
    let mut found = [0; 4];
    device.download(&*buffer, 12, &mut found)?;
    Ok(u32::from_le_bytes(found))
}

/// `x[3] = fma(x[0], x[1], x[2])`.
fn fma_kernel() -> Kernel {
    let (mut kernel, place, index) = kernel_of("probe_fma", Scalar::F32);
    let span = Span::default();
    let [a, b, c] = [0, 1, 2].map(|i| {
        let load = Op::Load {
            place,
            indices: vec![index[i]],
        };
        let value = kernel.add_value(load, Type::F32, span);
        kernel.body.push(Stmt::Let(value), span);
        value
    });
    let value = kernel.add_value(Op::Fma(a, b, c), Type::F32, span);
    kernel.body.push(Stmt::Let(value), span);
    kernel.body.push(
        Stmt::Store {
            place,
            indices: vec![index[3]],
            value,
        },
        span,
    );
    kernel
}

/// `x[3] = 0 / x[0]`.
fn zero_kernel() -> Kernel {
    let (mut kernel, place, index) = kernel_of("probe_zero", Scalar::F32);
    let span = Span::default();
    let load = Op::Load {
        place,
        indices: vec![index[0]],
    };
    let x = kernel.add_value(load, Type::F32, span);
    let zero = Const {
        scalar: Scalar::F32,
        bits: 0,
    };
    let zero = kernel.add_value(Op::Const(zero), Type::F32, span);
    let value = kernel.add_value(Op::Binary(BinaryOp::Div, zero, x), Type::F32, span);
    for value in [x, value] {
        kernel.body.push(Stmt::Let(value), span);
    }
    let indices = vec![index[3]];
    kernel.body.push(
        Stmt::Store {
            place,
            indices,
            value,
        },
        span,
    );
    kernel
}

/// `for _ in 0..x[0] { x[3] += 1 }`, through memory so that no compiler counts for itself.
fn loop_kernel() -> Kernel {
    let (mut kernel, place, index) = kernel_of("probe_loop", Scalar::U32);
    let span = Span::default();
    let [end, old] = [index[0], index[3]].map(|i| {
        let load = Op::Load {
            place,
            indices: vec![i],
        };
        kernel.add_value(load, Type::U32, span)
    });
    let [zero, one] = [0, 1].map(|bits| {
        kernel.add_value(
            Op::Const(Const {
                scalar: Scalar::U32,
                bits,
            }),
            Type::U32,
            span,
        )
    });
    let turn = kernel.add_value(Op::Result, Type::U32, span);
    let value = kernel.add_value(Op::Binary(BinaryOp::Add, old, one), Type::U32, span);
    let mut body = Block::default();
    body.push(Stmt::Let(old), span);
    body.push(Stmt::Let(value), span);
    body.push(
        Stmt::Store {
            place,
            indices: vec![index[3]],
            value,
        },
        span,
    );
    kernel.body.push(Stmt::Let(end), span);
    let unroll = Unroll::Never;
    let repeat = Stmt::For {
        index: turn,
        start: zero,
        end,
        step: one,
        unroll,
        body,
    };
    kernel.body.push(repeat, span);
    kernel
}

/// Adds to `x[3]` each thread that is where a linear order puts it.
fn lanes_kernel() -> Kernel {
    let (mut kernel, place, index) = kernel_of("probe_lanes", Scalar::U32);
    kernel.contract.workgroup = [256, 1, 1];
    let span = Span::default();
    let [thread, subgroup, size, lane] = [
        BuiltinOp::LocalIndex,
        BuiltinOp::SubgroupId,
        BuiltinOp::SubgroupSize,
        BuiltinOp::SubgroupLane,
    ]
    .map(|op| kernel.add_value(Op::Builtin(op, 0), Type::U32, span));
    let one = Const {
        scalar: Scalar::U32,
        bits: 1,
    };
    let one = kernel.add_value(Op::Const(one), Type::U32, span);
    let before = kernel.add_value(Op::Binary(BinaryOp::Mul, subgroup, size), Type::U32, span);
    let linear = kernel.add_value(Op::Binary(BinaryOp::Add, before, lane), Type::U32, span);
    let same = Op::Compare(CompareOp::Eq, linear, thread);
    let condition = kernel.add_value(same, Type::BOOL, span);
    let result = kernel.add_value(Op::Result, Type::U32, span);
    for value in [before, linear, condition] {
        kernel.body.push(Stmt::Let(value), span);
    }
    let mut then_block = Block::default();
    let add = Stmt::Atomic {
        result,
        op: AtomicOp::Add,
        place,
        indices: vec![index[3]],
        value: Some(one),
        compare: None,
    };
    then_block.push(add, span);
    let else_block = Block::default();
    kernel.body.push(
        Stmt::If {
            condition,
            then_block,
            else_block,
        },
        span,
    );
    kernel
}

/// A kernel of one thread on four elements, with the indices 0 to 3.
fn kernel_of(name: &str, scalar: Scalar) -> (Kernel, Place, [Value; 4]) {
    let span = Span::default();
    let mut kernel = Kernel {
        name: name.into(),
        ..Kernel::default()
    };
    let kind = ParamKind::Tensor(TensorData {
        scalar,
        shape: vec![Expr::Const(4)],
        access: Access::ReadWrite,
        layout: TensorLayout::RowMajor,
        align: 1,
        may_alias: Vec::new(),
    });
    let param = kernel.params.push(ParamData {
        name: "x".into(),
        kind,
        span,
    });
    let index = [0, 1, 2, 3].map(|bits| {
        kernel.add_value(
            Op::Const(Const {
                scalar: Scalar::U64,
                bits,
            }),
            Type::U64,
            span,
        )
    });
    (kernel, Place::Flat(param), index)
}
