//! What a driver does that its properties do not say.

use std::sync::Arc;

use iron_ir::contract::Expr;
use iron_ir::kernel::{Access, Kernel, ParamData, ParamKind, Span, TensorData, TensorLayout};
use iron_ir::launch::{Argument, TensorArg};
use iron_ir::op::{Const, Op, Place, Stmt};
use iron_ir::types::{Scalar, Type};

use super::{VulkanDevice, failed_lowering};
use crate::device::{Device, DeviceError, RecordedLaunch};

/// Whether `fma` rounds once, on operands where rounding the product first gives another sum.
pub(super) fn fuses_multiply_add(device: &VulkanDevice) -> Result<bool, DeviceError> {
    let kernel = fma_kernel();
    let words = iron_lower::spirv::emit(&kernel, &device.profile)
        .map_err(|error| failed_lowering(&kernel, error))?;
    let pipeline = device.compile_module(kernel, &words, "probe".into())?;
    let buffer = device.alloc(16)?;
    // (1 + e)(1 - e) - 1 = -e², which a rounded product loses.
    let small = f32::EPSILON;
    let inputs = [1.0 + small, 1.0 - small, -1.0, 0.0];
    let bytes: Vec<u8> = inputs.iter().flat_map(|v: &f32| v.to_le_bytes()).collect();
    device.upload(&*buffer, 0, &bytes)?;
    let view = TensorArg {
        buffer: buffer.clone(),
        scalar: Scalar::F32,
        shape: vec![4],
        strides: vec![1],
        offset: 0,
    };
    let launch = RecordedLaunch::new(Arc::new(pipeline), vec![Argument::Tensor(view)])?;
    device.submit(&[launch])?;
    let mut found = [0; 4];
    device.download(&*buffer, 12, &mut found)?;
    Ok(f32::from_le_bytes(found) == -small * small)
}

/// `x[3] = fma(x[0], x[1], x[2])`.
fn fma_kernel() -> Kernel {
    let span = Span::default();
    let mut kernel = Kernel {
        name: "probe_fma".into(),
        ..Kernel::default()
    };
    let param = kernel.params.push(ParamData {
        name: "x".into(),
        kind: ParamKind::Tensor(TensorData {
            scalar: Scalar::F32,
            shape: vec![Expr::Const(4)],
            access: Access::ReadWrite,
            layout: TensorLayout::RowMajor,
            align: 1,
            may_alias: Vec::new(),
        }),
        span,
    });
    let index = [0u64, 1, 2, 3].map(|bits| {
        kernel.add_value(
            Op::Const(Const {
                scalar: Scalar::U64,
                bits,
            }),
            Type::U64,
            span,
        )
    });
    let place = Place::Flat(param);
    let operands = [0, 1, 2].map(|i| {
        let load = Op::Load {
            place,
            indices: vec![index[i]],
        };
        let value = kernel.add_value(load, Type::F32, span);
        kernel.body.push(Stmt::Let(value), span);
        value
    });
    let [a, b, c] = operands;
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
