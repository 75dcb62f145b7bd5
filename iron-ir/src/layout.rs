//! The parameter block: what a launch hands to a kernel, byte for byte.
//!
//! One block a kernel, in natural alignment and this order: the 64-bit base address of each
//! tensor, the 64-bit address of the error word (where the body checks indices), 64-bit
//! strides in elements, then dimensions, then scalars, wide ones first. CUDA and HIP take it as
//! the packed argument list of the entry point, Metal as one constant buffer (the addresses in
//! it unused, buffers bound beside it), Vulkan as push constants or a buffer.

use crate::entity::{Dim, Param};
use crate::kernel::{Kernel, ParamKind, TensorLayout};
use crate::op::Stmt;
use crate::types::Scalar;

/// What a field of the parameter block holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FieldKind {
    /// Base address of a tensor view: buffer address plus the view's byte offset.
    Address(Param),
    /// Address of the launch's error word, a `u32`.
    ErrorWord,
    /// Stride of one axis, in elements.
    Stride(Param, u8),
    /// A dimension.
    Dim(Dim),
    /// A scalar parameter.
    Scalar(Param),
    /// Bit `i` is set where base address and strides of parameter `i`, a tensor, are multiples
    /// of 16 bytes: what [`MachineOp::IsAligned`](crate::machine::MachineOp::IsAligned) asks.
    Aligned,
    /// A tensor map (CUDA: `CUtensorMap`) for copies of that many rows.
    TensorMap(Param, u32),
}

/// Bytes and alignment of a tensor map.
const TENSOR_MAP: (u32, u32) = (128, 64);

/// A field of the parameter block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// What it holds.
    pub kind: FieldKind,
    /// Its type: `u64`, `u32` or the scalar's.
    pub scalar: Scalar,
    /// Bytes from the start of the block.
    pub offset: u32,
    /// The name in generated text, before the target's namer: `x`, `x_stride0`, `rows`.
    pub name: String,
}

impl Field {
    /// Bytes.
    pub fn bytes(&self) -> u32 {
        match self.kind {
            FieldKind::TensorMap(..) => TENSOR_MAP.0,
            FieldKind::Address(_)
            | FieldKind::ErrorWord
            | FieldKind::Stride(..)
            | FieldKind::Dim(_)
            | FieldKind::Scalar(_)
            | FieldKind::Aligned => self.scalar.bytes(),
        }
    }

    fn alignment(&self) -> u32 {
        match self.kind {
            FieldKind::TensorMap(..) => TENSOR_MAP.1,
            _ => self.bytes(),
        }
    }
}

/// The parameter block of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockLayout {
    /// Fields by offset.
    pub fields: Vec<Field>,
    /// Bytes, a multiple of 8.
    pub bytes: u32,
}

impl BlockLayout {
    /// The layout of a kernel's block. It depends on the declaration and on whether the body
    /// checks indices, so it is the same before and after every pass but a target's tile
    /// lowering, which may append tensor maps.
    pub fn of(kernel: &Kernel) -> BlockLayout {
        let mut fields = Vec::new();
        let mut add = |kind, scalar: Scalar, name: String| {
            fields.push(Field {
                kind,
                scalar,
                offset: 0,
                name,
            });
        };
        for (param, data) in kernel.params.iter() {
            if let ParamKind::Tensor(_) = data.kind {
                add(
                    FieldKind::Address(param),
                    Scalar::U64,
                    data.name.to_string(),
                );
            }
        }
        if kernel.checks_indices() {
            add(FieldKind::ErrorWord, Scalar::U64, "error_word".into());
        }
        for (param, data) in kernel.params.iter() {
            if let ParamKind::Tensor(tensor) = &data.kind {
                let rank = tensor.shape.len();
                let strided = match tensor.layout {
                    TensorLayout::RowMajor => rank.saturating_sub(1),
                    TensorLayout::Strided => rank,
                };
                for axis in 0..strided {
                    let name = format!("{}_stride{axis}", data.name);
                    add(FieldKind::Stride(param, axis as u8), Scalar::U64, name);
                }
            }
        }
        let scalars = |wide: bool| {
            kernel
                .params
                .iter()
                .filter_map(move |(param, data)| match data.kind {
                    ParamKind::Scalar(s) if (s.bytes() == 8) == wide => {
                        Some((FieldKind::Scalar(param), s, data.name.to_string()))
                    }
                    ParamKind::Scalar(_) | ParamKind::Tensor(_) => None,
                })
        };
        for (kind, scalar, name) in scalars(true) {
            add(kind, scalar, name);
        }
        for (dim, name) in kernel.dims.iter() {
            add(FieldKind::Dim(dim), Scalar::U32, name.to_string());
        }
        for (kind, scalar, name) in scalars(false) {
            add(kind, scalar, name);
        }
        let panels = kernel.copied_panels();
        if kernel.asks_alignment() || !panels.is_empty() {
            add(FieldKind::Aligned, Scalar::U32, "aligned".into());
        }
        for (param, rows) in panels {
            let name = format!("{}_map{rows}", kernel.params[param].name);
            add(FieldKind::TensorMap(param, rows), Scalar::U64, name);
        }
        let mut end = 0u32;
        for field in &mut fields {
            end = end.next_multiple_of(field.alignment());
            field.offset = end;
            end += field.bytes();
        }
        BlockLayout {
            fields,
            bytes: end.next_multiple_of(8),
        }
    }

    /// Bytes up to the end of the last field, without the padding behind it: what an argument
    /// list of these fields takes. CUDA refuses a longer one.
    pub fn packed_bytes(&self) -> u32 {
        self.fields
            .last()
            .map_or(0, |field| field.offset + field.bytes())
    }

    /// The field that holds `kind`.
    pub fn field(&self, kind: FieldKind) -> Option<&Field> {
        self.fields.iter().find(|f| f.kind == kind)
    }
}

impl Kernel {
    /// Whether the body has a [`Stmt::CheckIndex`], and so needs an error word.
    pub fn checks_indices(&self) -> bool {
        let mut found = false;
        self.body
            .walk(&mut |stmt, _| found |= matches!(stmt, Stmt::CheckIndex { .. }));
        found
    }

    /// Tensor parameters in order with their position among them: the Metal buffer slot.
    pub fn tensor_slots(&self) -> impl Iterator<Item = (u32, Param)> + '_ {
        self.params
            .iter()
            .filter(|(_, p)| matches!(p.kind, ParamKind::Tensor(_)))
            .enumerate()
            .map(|(slot, (param, _))| (slot as u32, param))
    }

    /// The dimension of that name.
    pub fn dim_named(&self, name: &str) -> Option<Dim> {
        self.dims
            .iter()
            .find(|(_, n)| &***n == name)
            .map(|(d, _)| d)
    }
}
