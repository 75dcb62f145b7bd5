//! Operations: what computes a value ([`Op`]) and what has an effect ([`Stmt`]).
//!
//! Every enum of operators here is declared by one table that gives its variant, its name in
//! the textual IR and its meaning. Matches over them are exhaustive everywhere, so that a new
//! operation fails to compile wherever it must be given an answer.

use crate::entity::{Array, Dim, Local, Param, Tile, Value};
use crate::kernel::Block;
use crate::types::Scalar;

/// Declares a fieldless operator enum with names and `ALL`.
macro_rules! operators {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// Every operator, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The name in the textual IR.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
            /// The operator with that name.
            pub fn from_name(name: &str) -> Option<$name> {
                match name { $($text => Some($name::$variant),)* _ => None }
            }
        }
    };
}
pub(crate) use operators;

operators! {
    /// Operators of one operand; the result has the operand's type unless the doc says otherwise.
    UnaryOp {
        /// Negation. Integers wrap: `-MIN = MIN`. Floats flip the sign bit, but a NaN's sign is
        /// unspecified.
        Neg = "neg",
        /// `bool`: logical not; integers: bitwise complement.
        Not = "not",
        /// Absolute value. Integers wrap: `abs(MIN) = MIN`. Floats clear the sign bit, but a
        /// NaN's sign is unspecified.
        Abs = "abs",
        /// Square root, correctly rounded but on Vulkan (the crate doc has the bounds); NaN below zero;
        /// `sqrt(-0) = -0`.
        Sqrt = "sqrt",
        /// `1 / sqrt(x)`.
        Rsqrt = "rsqrt",
        /// `e^x`.
        Exp = "exp",
        /// `2^x`.
        Exp2 = "exp2",
        /// Natural logarithm.
        Log = "log",
        /// Logarithm to base 2.
        Log2 = "log2",
        /// Sine of radians.
        Sin = "sin",
        /// Cosine of radians.
        Cos = "cos",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// The error function.
        Erf = "erf",
        /// Towards minus infinity.
        Floor = "floor",
        /// Towards plus infinity.
        Ceil = "ceil",
        /// Towards zero.
        Trunc = "trunc",
        /// To nearest, ties to even.
        RoundEven = "round_even",
        /// `bool`: the operand (a float) is NaN.
        IsNan = "is_nan",
        /// `bool`: the operand (a float) is neither NaN nor infinite.
        IsFinite = "is_finite",
        /// `u32`: number of one bits.
        CountOnes = "count_ones",
        /// `u32`: number of leading zero bits; the width for 0.
        LeadingZeros = "leading_zeros",
        /// `u32`: number of trailing zero bits; the width for 0.
        TrailingZeros = "trailing_zeros",
        /// Bits in reverse order.
        ReverseBits = "reverse_bits",
    }
}

operators! {
    /// Operators of two operands of one type, which is also the result's.
    BinaryOp {
        /// Sum. Integers wrap; floats round to nearest even.
        Add = "add",
        /// Difference. Integers wrap.
        Sub = "sub",
        /// Product. Integers wrap.
        Mul = "mul",
        /// Quotient. Integers truncate towards zero; `x / 0 = -1` (all ones); `MIN / -1 = MIN`.
        Div = "div",
        /// Remainder with the dividend's sign; `x % 0 = x`; `MIN % -1 = 0`. Integers only.
        Rem = "rem",
        /// Integers: bitwise; `bool`: logical, both sides evaluated.
        And = "and",
        /// Integers: bitwise; `bool`: logical, both sides evaluated.
        Or = "or",
        /// Integers and `bool`.
        Xor = "xor",
        /// Left shift; the count is taken modulo the width.
        Shl = "shl",
        /// Right shift, arithmetic for signed; the count is taken modulo the width.
        Shr = "shr",
        /// Smaller. Floats: the number where one is NaN, NaN where both are; `-0 < +0`.
        Min = "min",
        /// Larger. Floats: the number where one is NaN, NaN where both are; `-0 < +0`.
        Max = "max",
        /// Smaller float; NaN where either is NaN; `-0 < +0`.
        MinNan = "min_nan",
        /// Larger float; NaN where either is NaN; `-0 < +0`.
        MaxNan = "max_nan",
        /// Upper half of the double-width integer product.
        MulHigh = "mul_high",
        /// `i32` and `u32` alone: sum of the four products of the operands' bytes, each with the
        /// type's sign. It cannot overflow.
        Dot4 = "dot4",
        /// `i32` alone: as [`BinaryOp::Dot4`], where the first operand's bytes have no sign and
        /// the second's are signed.
        Dot4Mixed = "dot4_mixed",
        /// `x^y` of floats.
        Pow = "pow",
    }
}

operators! {
    /// Comparisons; the result is `bool` of the operands' lanes. NaN compares unequal to
    /// everything, so every comparison with it is false except `ne`.
    CompareOp {
        /// Equal.
        Eq = "eq",
        /// Not equal.
        Ne = "ne",
        /// Less.
        Lt = "lt",
        /// Less or equal.
        Le = "le",
        /// Greater.
        Gt = "gt",
        /// Greater or equal.
        Ge = "ge",
    }
}

operators! {
    /// What a thread may ask about its place; all `u32`.
    BuiltinOp {
        /// Index of the workgroup along an axis.
        GroupId = "group_id",
        /// Number of workgroups along an axis.
        GroupCount = "group_count",
        /// Index of the thread in its workgroup along an axis.
        LocalId = "local_id",
        /// Threads of a workgroup along an axis.
        GroupSize = "group_size",
        /// Index of the thread in the whole grid along an axis.
        GlobalId = "global_id",
        /// Linear index of the thread in its workgroup (x fastest). The axis is 0.
        LocalIndex = "local_index",
        /// Threads of the whole workgroup. The axis is 0.
        GroupThreads = "group_threads",
        /// Index of the subgroup in its workgroup. The axis is 0.
        SubgroupId = "subgroup_id",
        /// Number of subgroups in the workgroup. The axis is 0.
        SubgroupCount = "subgroup_count",
        /// Index of the thread in its subgroup. The axis is 0.
        SubgroupLane = "subgroup_lane",
        /// Lanes of a subgroup, 4 to 64. The axis is 0.
        SubgroupSize = "subgroup_size",
    }
}

operators! {
    /// Read-modify-write operators on one memory cell; each returns the old value.
    AtomicOp {
        /// Wrapping sum for integers, rounded sum for `f32`.
        Add = "add",
        /// Smaller integer.
        Min = "min",
        /// Larger integer.
        Max = "max",
        /// Bitwise and.
        And = "and",
        /// Bitwise or.
        Or = "or",
        /// Bitwise exclusive or.
        Xor = "xor",
        /// Stores the operand.
        Exchange = "exchange",
        /// Stores the operand where the cell equals `compare`.
        CompareExchange = "compare_exchange",
        /// Reads without a race; the operand is absent.
        Load = "load",
        /// Writes without a race; the old value is not read and the result has no use.
        Store = "store",
    }
}

operators! {
    /// Exchanges within a subgroup. Every lane of the subgroup takes part.
    SubgroupOp {
        /// The value of lane `argument` (any lane index below the width; others are an error).
        Shuffle = "shuffle",
        /// The value of lane `own ^ argument`; the own value where that lane does not exist.
        ShuffleXor = "shuffle_xor",
        /// The value of lane `own - argument`; the own value where that lane does not exist.
        ShuffleUp = "shuffle_up",
        /// The value of lane `own + argument`; the own value where that lane does not exist.
        ShuffleDown = "shuffle_down",
        /// The value of lane `argument`, which is the same in every lane; the result is uniform.
        Broadcast = "broadcast",
        /// `u64` mask of the lanes whose `bool` operand is true; bit `i` is lane `i`.
        Ballot = "ballot",
        /// `bool`: true in some lane.
        Any = "any",
        /// `bool`: true in every lane.
        All = "all",
        /// Reduction over the lanes by the adjacent-pair tree; see [`ReduceOp`].
        Reduce = "reduce",
    }
}

operators! {
    /// The operator of a reduction or scan. A reduction over indices `0..n` is the
    /// **adjacent-pair tree**: at distance `d = 1, 2, 4, …` element `i` (a multiple of `2d`)
    /// becomes `e[i] ∘ e[i + d]`, and stays as it is where `e[i + d]` is absent. The order is the
    /// same on every target and at every subgroup width. The identity below is what an exclusive
    /// scan gives the first thread.
    ReduceOp {
        /// Sum; identity 0 (floats: +0).
        Sum = "sum",
        /// Product; identity 1.
        Product = "product",
        /// [`BinaryOp::Min`]; identity +infinity or the type's maximum.
        Min = "min",
        /// [`BinaryOp::Max`]; identity -infinity or the type's minimum.
        Max = "max",
        /// [`BinaryOp::MinNan`]; identity +infinity.
        MinNan = "min_nan",
        /// [`BinaryOp::MaxNan`]; identity -infinity.
        MaxNan = "max_nan",
        /// Bitwise or logical and.
        And = "and",
        /// Bitwise or logical or.
        Or = "or",
    }
}

operators! {
    /// Collectives over a workgroup. Every thread of the workgroup takes part.
    GroupOp {
        /// Reduction over the linear thread index; the result is uniform.
        Reduce = "reduce",
        /// Inclusive scan over the linear thread index by Sklansky's tree: at distance
        /// `d = 1, 2, 4, …` element `i` with bit `d` set becomes
        /// `e[(i & !(2d - 1)) + d - 1] ∘ e[i]` ([`crate::fold::tree_scan`]).
        ScanInclusive = "scan_inclusive",
        /// Exclusive scan; thread 0 gets the identity.
        ScanExclusive = "scan_exclusive",
        /// The value of the thread whose linear index is `argument` (uniform); uniform.
        Broadcast = "broadcast",
    }
}

operators! {
    /// The memory that a barrier orders.
    BarrierMemory {
        /// Shared memory of the workgroup.
        Shared = "shared",
        /// Shared memory, and global memory among the threads of the workgroup.
        SharedAndGlobal = "shared_and_global",
        /// Shared memory, and global memory on the whole device by way of atomics: what a workgroup
        /// did before such a barrier comes before what another does behind one of its own, where
        /// between the two the first changed a cell atomically and the other's atomic saw that
        /// change, or a later one that saw it. A named feature
        /// ([`crate::Feature::DeviceBarrier`]).
        Device = "device",
    }
}

operators! {
    /// The threads that a barrier joins.
    BarrierScope {
        /// The threads of one subgroup.
        Subgroup = "subgroup",
        /// The threads of one workgroup.
        Workgroup = "workgroup",
        /// Every thread of the launch: a named feature ([`crate::Feature::GridBarrier`]).
        Grid = "grid",
        /// The launches before this one, of whose writes nothing may be read before it; in a
        /// kernel declared `dependent`. What stands before may read only what no launch still
        /// under way writes. Nothing where launches run one after the other.
        Launch = "launch",
    }
}

/// Memory that loads, stores and atomics address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// A tensor by logical indices, one `u32` a dimension. A vector access reads consecutive
    /// elements of the last dimension; its last index is a multiple of the lanes.
    Tensor(Param),
    /// A tensor by one flat `u64` offset in elements from its base, made by the addressing
    /// pass; strides are already in it.
    Flat(Param),
    /// A shared or private array by one `u32` index in elements.
    Array(Array),
}

/// A constant scalar: its bits, zero-extended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Const {
    /// Type.
    pub scalar: Scalar,
    /// The low bits hold the value, the rest are zero.
    pub bits: u64,
}

/// What computes a value. Pure, but for loads and reads of variables, whose position matters:
/// a value is computed where its [`Stmt::Let`] stands.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// A constant; needs no `Let` (it may be used anywhere) but may have one.
    Const(Const),
    /// A scalar parameter. As [`Op::Const`], usable anywhere.
    Scalar(Param),
    /// A dimension, `u32`. Usable anywhere.
    Dim(Dim),
    /// The stride in elements, `u64`, of one axis of a tensor. Usable anywhere.
    Stride(Param, u8),
    /// The thread's place. Usable anywhere.
    Builtin(BuiltinOp, u8),
    /// See [`UnaryOp`].
    Unary(UnaryOp, Value),
    /// See [`BinaryOp`].
    Binary(BinaryOp, Value, Value),
    /// See [`CompareOp`].
    Compare(CompareOp, Value, Value),
    /// The second operand where the first (`bool`, scalar or of the lanes) is true, else the third.
    Select(Value, Value, Value),
    /// `a * b + c`, rounded once.
    Fma(Value, Value, Value),
    /// Numeric conversion to the value's type; see the crate doc for every pair.
    Convert(Value),
    /// The same bits as another type of the same size.
    Bitcast(Value),
    /// Every lane the scalar operand.
    Splat(Value),
    /// A vector of scalars.
    Vector(Vec<Value>),
    /// One lane.
    Extract(Value, u8),
    /// The vector with one lane replaced: vector, lane, scalar.
    Insert(Value, u8, Value),
    /// Reads a variable.
    Get(Local),
    /// Reads memory; lanes as the value's type says.
    Load {
        /// What is read.
        place: Place,
        /// As [`Place`] says.
        indices: Vec<Value>,
    },
    /// Defined by the effect statement that names this value as its result.
    Result,
}

/// How a loop is to be unrolled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Unroll {
    /// As the passes and the vendor's compiler like.
    #[default]
    Auto,
    /// Fully; the trip count is constant.
    Full,
    /// Not at all.
    Never,
}

/// A statement.
#[derive(Clone, PartialEq, Debug)]
pub enum Stmt {
    /// Computes a value here.
    Let(Value),
    /// Assigns a variable.
    Set(Local, Value),
    /// Writes memory; as [`Op::Load`].
    Store {
        /// What is written.
        place: Place,
        /// As [`Place`] says.
        indices: Vec<Value>,
        /// The value.
        value: Value,
    },
    /// Read-modify-write of one cell, relaxed order, device scope for tensors and workgroup
    /// scope for shared arrays.
    Atomic {
        /// The old value (type of the cell).
        result: Value,
        /// Operator.
        op: AtomicOp,
        /// Cell.
        place: Place,
        /// As [`Place`] says.
        indices: Vec<Value>,
        /// Operand; none for a load.
        value: Option<Value>,
        /// Expected old value of a compare-exchange.
        compare: Option<Value>,
    },
    /// Joins threads and orders memory. Needs uniform control flow.
    Barrier(BarrierScope, BarrierMemory),
    /// Exchange within a subgroup. Needs control flow uniform in the workgroup.
    Subgroup {
        /// Result.
        result: Value,
        /// Operator.
        op: SubgroupOp,
        /// Operator of a reduction.
        reduce: Option<ReduceOp>,
        /// Operand.
        value: Value,
        /// Lane or distance, `u32`.
        argument: Option<Value>,
    },
    /// Collective over the workgroup. Needs control flow uniform in the workgroup.
    Group {
        /// Result.
        result: Value,
        /// Operator.
        op: GroupOp,
        /// Operator of a reduction or scan.
        reduce: Option<ReduceOp>,
        /// Operand.
        value: Value,
        /// Thread index of a broadcast, `u32`.
        argument: Option<Value>,
    },
    /// Multiplies matrices of 16-bit floats in each 32 consecutive threads of the workgroup, whose
    /// number is a multiple of 32: `result = sum + a · b`, where `a` has 16 rows and 16 columns,
    /// `b` has 16 rows and 8 columns. Thread `4 g + t` of the 32 (`t < 4`) gives columns
    /// `4 t .. 4 t + 4` of `a`'s rows `g` and `g + 8`, and rows `4 t .. 4 t + 4` of `b`'s column
    /// `g`. Of `sum` and `result` it has columns `2 t` and `2 t + 1` of row `g`, then of row
    /// `g + 8`. Needs control flow uniform in the workgroup.
    ///
    /// Each element is `sum` and 16 products in `f32`, added one after the other with `fma` where
    /// the target has no unit for it; matrix units add in an order and with roundings of their
    /// own, and are within `2^-19` of the exact element, relative to its terms' magnitudes.
    Mma {
        /// Sums, four `f32`.
        result: Value,
        /// Four elements of row `g` and of row `g + 8`, `f16` or `bf16`.
        a: [Value; 2],
        /// Four elements of column `g`, of the same type.
        b: Value,
        /// What is added to, four `f32`.
        sum: Value,
    },
    /// `result = index` where `index < bound` (both `u32`); otherwise the launch's error word
    /// takes the code and `result = 0`.
    CheckIndex {
        /// The checked index, `u32`.
        result: Value,
        /// The data-dependent index.
        index: Value,
        /// Exclusive bound.
        bound: Value,
    },
    /// Two-way branch.
    If {
        /// `bool`.
        condition: Value,
        /// Run where true.
        then_block: Block,
        /// Run where false; may be empty.
        else_block: Block,
    },
    /// `for index in (start..end).step_by(step)`: bounds are evaluated once, before the loop;
    /// `step` is above zero (a zero step is an error that the checker reports); the index
    /// never wraps.
    For {
        /// The index (an [`Op::Result`]), of the bounds' integer type.
        index: Value,
        /// First.
        start: Value,
        /// Exclusive end.
        end: Value,
        /// Distance.
        step: Value,
        /// Unrolling.
        unroll: Unroll,
        /// Body.
        body: Block,
    },
    /// Repeats until a `Break`.
    Loop {
        /// Body.
        body: Block,
    },
    /// Leaves the innermost loop.
    Break,
    /// Next turn of the innermost loop.
    Continue,
    /// Ends the thread.
    Return,
    /// An operation on tiles; gone after the tile pass.
    Tile(TileStmt),
    /// An operation that only a target's tile lowering makes.
    Machine(crate::machine::MachineStmt),
    /// The last threads of the workgroup do one thing, the others another, side by side. A
    /// barrier of the workgroup in either block joins that block's threads, and control flow is
    /// uniform there where those threads agree. Made by a target's tile lowering alone; not
    /// nested.
    Roles {
        /// Threads that run `producer`, a multiple of the subgroup.
        producers: u32,
        /// Run by the last threads.
        producer: Block,
        /// Run by the others.
        consumer: Block,
    },
}

/// Where a tile lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TileSpace {
    /// In shared memory, whole.
    Shared,
    /// In registers, spread over the workgroup; who holds which element is the target's choice.
    Register,
}

/// An operation on tiles. Every thread of the workgroup takes part. Operations on shared tiles
/// synchronise by themselves: a tile may be read by the next statement.
#[derive(Clone, PartialEq, Debug)]
pub enum TileStmt {
    /// Every element the scalar.
    Fill {
        /// Written.
        tile: Tile,
        /// Of the tile's scalar type.
        value: Value,
    },
    /// Reads a block of the last two dimensions of a tensor; elements outside are zero.
    Load {
        /// Written; its scalar is the tensor's, or a float that the tensor's widens to.
        tile: Tile,
        /// Source.
        source: Param,
        /// `u32` indices of the leading dimensions, in bounds.
        leading: Vec<Value>,
        /// `u32` index of the tile's first row and column in the last two dimensions. For a
        /// transposed load, of the tensor's row and column that land in the tile's corner.
        origin: [Value; 2],
        /// Element `(r, c)` of the tile is the tensor's `(origin.0 + c, origin.1 + r)`.
        transposed: bool,
    },
    /// Writes a block; elements outside are dropped. Floats are rounded to the tensor's type.
    Store {
        /// Read.
        tile: Tile,
        /// Destination.
        target: Param,
        /// `u32` indices of the leading dimensions, in bounds.
        leading: Vec<Value>,
        /// As in `Load`.
        origin: [Value; 2],
    },
    /// Copies between tiles of one shape, rounding floats to the target's scalar.
    Copy {
        /// Written.
        to: Tile,
        /// Read.
        from: Tile,
    },
    /// `accumulator += a · b` in f32, `k` ascending, one fused multiply-add a step in the
    /// portable lowering; matrix units have their own stated bound.
    Matmul {
        /// Register tile of f32, M × N.
        accumulator: Tile,
        /// M × K (K × M where `transpose_a`), shared.
        a: Tile,
        /// K × N (N × K where `transpose_b`), shared.
        b: Tile,
        /// Reads `a` transposed.
        transpose_a: bool,
        /// Reads `b` transposed.
        transpose_b: bool,
    },
    /// Element-wise: for every element of `to`, binds `elements` to those of `from` (a source
    /// of one column or one row is broadcast), `row` and `column` to its position, runs `body`
    /// and stores `result`.
    Map {
        /// Written; may be among `from`.
        to: Tile,
        /// Read, register tiles (or `to`).
        from: Vec<Tile>,
        /// One [`Op::Result`] value a source.
        elements: Vec<Value>,
        /// Position in the tile, `u32` [`Op::Result`] values.
        row: Value,
        /// See `row`.
        column: Value,
        /// Pure statements: no store, barrier or collective.
        body: Block,
        /// Of `to`'s scalar.
        result: Value,
    },
    /// Reduces each row of `from` (M × N) into `to` (M × 1), both register tiles, by the
    /// adjacent-pair tree over its elements ([`ReduceOp`]).
    ReduceRows {
        /// Written.
        to: Tile,
        /// Read.
        from: Tile,
        /// Operator.
        op: ReduceOp,
    },
    /// Reduces each column of `from` (M × N) into `to` (1 × N), both register tiles, by the same
    /// tree.
    ReduceColumns {
        /// Written.
        to: Tile,
        /// Read.
        from: Tile,
        /// Operator.
        op: ReduceOp,
    },
}
