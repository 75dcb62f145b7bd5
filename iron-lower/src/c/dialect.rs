//! What differs between CUDA C++, HIP C++ and MSL.

use iron_ir::kernel::{Access, Kernel};
use iron_ir::machine::MachineStmt;
use iron_ir::op::{AtomicOp, BarrierMemory, BarrierScope, BuiltinOp, SubgroupOp, UnaryOp};
use iron_ir::types::{Scalar, Type};

use super::expr::Expr;
use super::ops::Ops;
use crate::profile::Profile;

/// Where a pointer points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// A tensor.
    Global(Access),
    /// A shared array.
    Shared,
    /// A private array.
    Private,
}

/// An expression, or the construct that has no spelling.
pub(crate) type Printed = Result<Expr, String>;

/// One language of the family.
pub(crate) trait Dialect {
    /// Words that the language reserves beside those of C++.
    fn reserved(&self) -> &'static [&'static str];
    /// Lines before everything else: includes and pragmas.
    fn prologue(&self) -> &'static str;
    /// What stands before the type of a helper function.
    fn helper_prefix(&self) -> &'static str;
    /// Spelling of a scalar type.
    fn scalar_type(&self, scalar: Scalar) -> &'static str;
    /// `ll`, or `l` where `long` has 64 bits.
    fn long_suffix(&self) -> &'static str;
    /// A numeric conversion.
    fn cast(&self, ty: &str, operand: &Expr) -> Expr {
        Expr::cast(ty, operand)
    }

    /// Spelling of a vector type.
    fn vector_type(&self, ty: Type) -> String;
    /// Whether the language has that vector type.
    fn has_vector(&self, ty: Type) -> bool;
    /// The function or constructor that makes a vector that the language has.
    fn vector_maker(&self, ty: Type) -> String;
    /// Whether infix operators work on floats and unsigned integers of the language's vectors.
    fn has_vector_operators(&self) -> bool;
    /// Whether functions, comparisons and `select` work on the language's vectors.
    fn has_vector_functions(&self) -> bool {
        false
    }

    /// An `f32` by its bits.
    fn float_bits(&self, bits: u32) -> Expr;
    /// An `f64` by its bits.
    fn double_bits(&self, bits: u64) -> Expr;
    /// An `f16` by its bits.
    fn half_bits(&self, bits: u16) -> Expr;
    /// A finite `f16`, whose value is also given as an `f32` literal.
    fn half_literal(&self, bits: u16, decimal: &str) -> Expr;
    /// A `bf16` by its bits.
    fn bfloat_bits(&self, bits: u16) -> Expr;
    /// A finite `bf16`, whose value is also given as an `f32` literal.
    fn bfloat_literal(&self, bits: u16, decimal: &str) -> Expr;
    /// The bits of an `f16` or `bf16` as `unsigned short`.
    fn bits_of_half(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr;
    /// An `f16` or `bf16` of the bits in an `unsigned short`.
    fn half_of_bits(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr;
    /// `f16` or `bf16` to `f32`.
    fn half_to_float(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr;
    /// `f32` to `f16` or `bf16`, to nearest even.
    fn float_to_half(&self, ops: &mut Ops<'_>, scalar: Scalar, operand: &Expr) -> Expr;
    /// The same bits as another scalar of 4 or 8 bytes, one of them a float.
    fn bit_cast(&self, from: Scalar, to: Scalar, operand: &Expr) -> Expr;
    /// The same bits as another type of the same size; `to` is its spelling.
    fn bit_cast_any(&self, ops: &mut Ops<'_>, to: &str, operand: &Expr) -> Expr;

    /// A function of one `f32` or `f64`; `None` where the passes should have replaced it.
    fn float_function(&self, op: UnaryOp, scalar: Scalar, approximate: bool) -> Option<String>;
    /// `x^y`.
    fn pow(&self, scalar: Scalar, approximate: bool) -> String;

    /// The text of a helper `fast_exp2` of `f32`, where the target has a fast form without a name.
    fn fast_exp2(&self) -> Option<&'static str> {
        None
    }
    /// Fused multiply-add.
    fn fma(&self, scalar: Scalar) -> String;
    /// The language's minimum or maximum, where it returns the number beside a NaN and orders
    /// zeros.
    fn ordered_minmax(&self, is_max: bool, scalar: Scalar) -> Option<String>;
    /// Saturating conversion of an `f32` or `f64`, where the language has one.
    fn saturating(&self, from: Scalar, to: Scalar) -> Option<&'static str>;
    /// `count_ones`, `leading_zeros`, `trailing_zeros`, `reverse_bits` of an unsigned integer of
    /// 32 or 64 bits, as an unsigned integer.
    fn bit_function(&self, op: UnaryOp, wide: bool, operand: &Expr) -> Expr;
    /// The function of two `i32` or `u32` and a third to add to [`iron_ir::op::BinaryOp::Dot4`] of them, where
    /// the language has one.
    fn dot4(&self) -> Option<&'static str> {
        None
    }
    /// [`iron_ir::Stmt::Mma`] of that type: two parts of `a`, `b` and what is added to.
    fn mma(&self, _ops: &mut Ops<'_>, _scalar: Scalar, _operands: &[Expr]) -> Printed {
        Err("a matrix product of 32 threads".into())
    }
    /// Upper half of a product of 32- or 64-bit integers.
    fn mul_high(&self, scalar: Scalar) -> &'static str;

    /// `const float*` in the right address space, to be followed by a name.
    fn pointer(&self, memory: Memory, ty: &str) -> String;
    /// The thread's place.
    fn builtin(&self, context: &Context<'_>, op: BuiltinOp, axis: u8) -> Expr;
    /// A barrier statement.
    fn barrier(
        &self,
        ops: &mut Ops<'_>,
        context: &Context<'_>,
        scope: BarrierScope,
        memory: BarrierMemory,
    ) -> Result<String, String>;
    /// [`SubgroupOp::Shuffle`], `ShuffleXor`, `ShuffleUp` or `ShuffleDown` of a 32- or 64-bit
    /// scalar from a lane that exists; in the last two an absent lane gives the own value where
    /// [`Dialect::keeps_own_value`]. `present` is the number of lanes where some may be absent.
    fn shuffle(
        &self,
        op: SubgroupOp,
        scalar: Scalar,
        value: &Expr,
        argument: &Expr,
        present: Option<&Expr>,
    ) -> Expr;
    /// Whether a shuffle from a lane past either end gives the own value.
    fn keeps_own_value(&self) -> bool;
    /// [`SubgroupOp::Ballot`], `Any` or `All` of a `bool`.
    fn vote(&self, op: SubgroupOp, value: &Expr, present: Option<&Expr>) -> Expr;
    /// A read-modify-write of the cell `cell`, an lvalue.
    fn atomic(
        &self,
        ops: &mut Ops<'_>,
        op: AtomicOp,
        scalar: Scalar,
        memory: Memory,
        cell: &Expr,
        value: Option<&Expr>,
        compare: Option<&Expr>,
    ) -> Printed;
    /// A machine operation: a statement, or the expression of its result. Only where the
    /// profile's tile route makes them.
    fn machine(
        &self,
        _ops: &mut Ops<'_>,
        stmt: &MachineStmt,
        _names: &MachineNames<'_>,
    ) -> Result<String, String> {
        Err(format!("the machine operation `{}`", stmt.op.name()))
    }
    /// A barrier of the threads of one role.
    fn role_barrier(&self, _ops: &mut Ops<'_>, _role: Role) -> Result<String, String> {
        Err("a barrier of a role".into())
    }
    /// The helper that checks a data-dependent index; returns its text.
    fn check_index_helper(&self) -> String;
    /// Declares a shared array.
    fn shared_array(&self, context: &Context<'_>, declaration: &ArrayDeclaration<'_>) -> String;
    /// Declares a private array of fragments of sums, where its cells are no floats.
    fn fragment_array(&self, _declaration: &ArrayDeclaration<'_>) -> Option<String> {
        None
    }
    /// Statements before the arrays.
    fn entry_statements(&self, _context: &Context<'_>) -> Vec<String> {
        Vec::new()
    }
    /// The text of the declarations before the entry point that only it needs.
    fn entry_types(&self, _context: &Context<'_>) -> String {
        String::new()
    }
    /// Declares a scalar type that the language lacks.
    fn declare_scalar(&self, _ops: &mut Ops<'_>, _scalar: Scalar) {}
    /// The builtins that the entry point's parameters must give, of those that live code asks
    /// for.
    fn entry_builtins(
        &self,
        _context: &Context<'_>,
        asked: &[(BuiltinOp, u8)],
    ) -> Vec<(BuiltinOp, u8)> {
        asked.to_vec()
    }
    /// The entry point up to and with its closing parenthesis. `used` are the builtins that
    /// parameters must give.
    fn signature(&self, context: &Context<'_>, used: &[(BuiltinOp, u8)]) -> String;
    /// How the value of a block field other than an address is spelled, given its name.
    fn block_field(&self, name: &str) -> String {
        name.to_owned()
    }
}

/// How the parts of a machine operation are spelled.
pub(crate) struct MachineNames<'a> {
    /// Arrays.
    pub arrays: Vec<&'a str>,
    /// Element type of the last array; `f32` where there is none.
    pub scalar: Scalar,
    /// Operands.
    pub operands: Vec<String>,
    /// Its tensor.
    pub tensor: Option<&'a str>,
    /// The tensor map of its tensor and rows.
    pub tensor_map: Option<&'a str>,
    /// Lanes of a subgroup, where the profile says.
    pub lanes: Option<u32>,
    /// The word of aligned tensors.
    pub aligned: Option<String>,
}

/// The threads that run one block of a division into roles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Role {
    /// From 1.
    pub number: u32,
    /// Threads.
    pub threads: u32,
}

/// A shared or private array to declare.
pub(crate) struct ArrayDeclaration<'a> {
    /// Name in the text.
    pub name: &'a str,
    /// Spelling of the element type.
    pub ty: &'a str,
    /// Elements.
    pub len: u32,
    /// Alignment in bytes that vector accesses need, 0 where the element's own does.
    pub align: u32,
    /// Bytes from the start of the dynamic shared memory, where that is used.
    pub offset: u64,
}

/// What dialects may know of the kernel.
pub(crate) struct Context<'a> {
    /// Kernel.
    pub kernel: &'a Kernel,
    /// Profile.
    pub profile: &'a Profile,
    /// Name of the entry point.
    pub entry: &'a str,
    /// Names of the block's fields, in its order.
    pub field_names: &'a [String],
    /// Names of the tensors' pointers, one a parameter (empty for scalars).
    pub param_names: &'a [String],
    /// Language.
    pub dialect: &'a dyn Dialect,
}

impl Context<'_> {
    /// Spelling of a scalar type.
    pub fn spelled(&self, scalar: Scalar) -> &'static str {
        self.dialect.scalar_type(scalar)
    }

    /// Threads of the workgroup along an axis.
    pub fn group_size(&self, axis: u8) -> u32 {
        self.kernel
            .contract
            .workgroup
            .get(usize::from(axis))
            .copied()
            .unwrap_or(1)
    }

    /// Lanes of a subgroup; only where the profile fixes them.
    pub fn subgroup_size(&self) -> u32 {
        self.profile.subgroup_size.unwrap_or(32)
    }

    /// Whether the last subgroup of a workgroup lacks lanes.
    pub fn has_partial_subgroup(&self) -> bool {
        match self.profile.subgroup_size {
            Some(size) => !self.kernel.contract.threads().is_multiple_of(size),
            None => !self.kernel.contract.threads().is_multiple_of(64),
        }
    }
}
