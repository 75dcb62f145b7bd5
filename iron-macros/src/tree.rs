//! The syntax tree of a kernel's body, as bytes.
//!
//! `iron-macros` encodes the author's function into this tree and `iron-ir` interprets it; both
//! compile this one file, so the two sides cannot disagree. A byte string is one token in the
//! expansion: rustc neither type-checks nor compiles it.

macro_rules! trees {
    ($(
        $(#[$meta:meta])*
        $kind:ident $name:ident { $($inner:tt)* }
    )*) => { $( trees!(@$kind [$(#[$meta])*] $name { $($inner)* }); )* };

    (@structure [$(#[$meta:meta])*] $name:ident { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)* }

        impl Tree for $name {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$field.write(out);)*
            }
            fn read(input: &mut &[u8]) -> Option<Self> {
                Some($name { $($field: Tree::read(input)?,)* })
            }
        }
    };

    (@choice [$(#[$meta:meta])*] $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident { $($field:ident: $ty:ty),* $(,)? },)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub enum $name { $($(#[$variant_meta])* $variant { $($field: $ty),* },)* }

        impl Tree for $name {
            #[allow(unused_assignments, reason = "the last variant needs no further tag")]
            fn write(&self, out: &mut Vec<u8>) {
                let mut tag = 0u8;
                $(
                    if let $name::$variant { $($field),* } = self {
                        out.push(tag);
                        $($field.write(out);)*
                        return;
                    }
                    tag += 1;
                )*
            }
            #[allow(unused_assignments, reason = "the last variant needs no further tag")]
            fn read(input: &mut &[u8]) -> Option<Self> {
                let found = u8::read(input)?;
                let mut tag = 0u8;
                $(
                    if found == tag {
                        return Some($name::$variant { $($field: Tree::read(input)?),* });
                    }
                    tag += 1;
                )*
                None
            }
        }
    };
}

/// What can be written to bytes and read back.
pub trait Tree: Sized {
    /// Appends the encoding.
    fn write(&self, out: &mut Vec<u8>);
    /// Takes one from the front; `None` where the bytes are not an encoding.
    fn read(input: &mut &[u8]) -> Option<Self>;
}

trees! {
    /// A place in the author's file.
    structure At {
        line: u32,
        column: u32,
    }

    /// A kernel or a device function.
    structure Function {
        name: String,
        parameters: Vec<Parameter>,
        body: Block,
        header: Option<Header>,
    }

    /// A parameter of a function.
    structure Parameter {
        pattern: Pattern,
        kind: ParameterKind,
        at: At,
    }

    /// What a parameter is.
    choice ParameterKind {
        /// Of a device function: whatever the caller passes; by value unless it is a reference.
        Passed { by_value: bool },
        /// A tensor of a kernel.
        Tensor { scalar: Ty, shape: Vec<Formula>, mutable: bool, strided: bool },
        /// A scalar of a kernel.
        Scalar { ty: Ty },
    }

    /// What only kernels have.
    structure Header {
        doc: String,
        dims: Vec<String>,
        grid: Vec<Formula>,
        workgroup: Vec<Formula>,
        resident: Vec<Formula>,
        requires: Vec<Requirement>,
        in_place: Vec<InPlace>,
        contract_fma: bool,
        approximate: bool,
        cooperative: bool,
        dependent: bool,
    }

    /// Two parameters that may be the same view.
    structure InPlace {
        first: u32,
        second: u32,
    }

    /// An expression of the contract.
    choice Formula {
        Dim { index: u32 },
        Scalar { parameter: u32 },
        Const { index: u32 },
        Int { value: i64 },
        Binary { op: String, lhs: Box<Formula>, rhs: Box<Formula> },
    }

    /// A comparison of the contract.
    structure Requirement {
        op: String,
        lhs: Formula,
        rhs: Formula,
    }

    /// A type: one of the language by name, or an entry of the type table.
    choice Ty {
        Known { name: String },
        Entry { index: u32 },
    }

    /// How a literal gets its type.
    choice LiteralTy {
        /// From what stands beside it: the other operand, the place, the receiver.
        Beside {},
        /// Its suffix, a declared type or a slot.
        Given { ty: Ty },
    }

    /// A block.
    structure Block {
        stmts: Vec<Stmt>,
        value: Option<Expr>,
    }

    /// A statement.
    choice Stmt {
        Let { pattern: Pattern, value: Expr, at: At },
        Expr { value: Expr },
    }

    /// An expression and where it stands.
    structure Expr {
        at: At,
        kind: Box<ExprKind>,
    }

    /// An expression.
    choice ExprKind {
        Int { digits: String, ty: LiteralTy },
        Float { digits: String, ty: LiteralTy },
        Bool { value: bool },
        Name { name: String },
        Const { index: u32 },
        Binary { op: String, lhs: Expr, rhs: Expr },
        Lazy { is_or: bool, lhs: Expr, rhs: Expr },
        Neg { operand: Expr },
        Not { operand: Expr },
        Deref { operand: Expr },
        Reference { mutable: bool, operand: Expr },
        Cast { operand: Expr, ty: Ty },
        Assign { place: Expr, value: Expr },
        AssignOp { op: String, place: Expr, value: Expr },
        Index { base: Expr, index: Expr },
        Field { base: Expr, name: String },
        Tuple { items: Vec<Expr> },
        List { items: Vec<Expr> },
        Repeat { value: Expr, count: u32 },
        Struct { name: String, fields: Vec<FieldValue>, rest: Option<Expr> },
        Block { block: Block, label: Option<String> },
        If { condition: Expr, then_block: Block, else_value: Option<Expr> },
        Match { scrutinee: Expr, arms: Vec<Arm> },
        While { label: Option<String>, condition: Expr, body: Block },
        Loop { label: Option<String>, body: Block },
        For { label: Option<String>, pattern: Pattern, iterator: Expr, body: Block },
        Break { label: Option<String>, value: Option<Expr> },
        Continue { label: Option<String> },
        Return { value: Option<Expr> },
        Range { start: Expr, end: Expr, inclusive: bool },
        Closure { parameters: Vec<Pattern>, body: Expr },
        /// A call of a closure bound by a name in scope.
        Apply { name: String, arguments: Vec<Expr> },
        /// A call of a device function.
        Call { name: String, callee: u32, arguments: Vec<Expr> },
        /// A call of a function of the language.
        Intrinsic { name: String, types: Vec<Ty>, arguments: Vec<Expr> },
        /// `T::name(…)`.
        Associated { ty: Ty, name: String, arguments: Vec<Expr> },
        Method { receiver: Expr, name: String, types: Vec<Ty>, arguments: Vec<Expr> },
    }

    /// A field of a struct expression.
    structure FieldValue {
        name: String,
        value: Expr,
    }

    /// An arm of a `match`.
    structure Arm {
        pattern: Pattern,
        guard: Option<Expr>,
        body: Expr,
    }

    /// A pattern.
    choice Pattern {
        Name { name: String, mutable: bool, at: At },
        Wild {},
        Tuple { items: Vec<Pattern> },
        Struct { fields: Vec<FieldPattern> },
        Int { digits: String, negative: bool },
        Bool { value: bool },
        Const { index: u32 },
        Or { cases: Vec<Pattern> },
        Range { start: Option<Box<Pattern>>, end: Option<Box<Pattern>>, inclusive: bool },
    }

    /// A field of a struct pattern.
    structure FieldPattern {
        name: String,
        pattern: Pattern,
    }
}

impl Tree for u8 {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
    fn read(input: &mut &[u8]) -> Option<Self> {
        let (first, rest) = input.split_first()?;
        *input = rest;
        Some(*first)
    }
}

impl Tree for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn read(input: &mut &[u8]) -> Option<Self> {
        Some(u8::read(input)? != 0)
    }
}

/// Seven bits a byte, low ones first; the top bit says that more follow.
impl Tree for u32 {
    fn write(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    fn read(input: &mut &[u8]) -> Option<Self> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let byte = u8::read(input)?;
            value |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl Tree for i64 {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
    fn read(input: &mut &[u8]) -> Option<Self> {
        let (bytes, rest) = input.split_first_chunk::<8>()?;
        *input = rest;
        Some(i64::from_le_bytes(*bytes))
    }
}

impl Tree for String {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u32).write(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn read(input: &mut &[u8]) -> Option<Self> {
        let len = u32::read(input)? as usize;
        let (bytes, rest) = input.split_at_checked(len)?;
        *input = rest;
        String::from_utf8(bytes.to_vec()).ok()
    }
}

impl<T: Tree> Tree for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u32).write(out);
        for item in self {
            item.write(out);
        }
    }
    fn read(input: &mut &[u8]) -> Option<Self> {
        (0..u32::read(input)?).map(|_| T::read(input)).collect()
    }
}

impl<T: Tree> Tree for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }
    fn read(input: &mut &[u8]) -> Option<Self> {
        Some(match bool::read(input)? {
            true => Some(T::read(input)?),
            false => None,
        })
    }
}

impl<T: Tree> Tree for Box<T> {
    fn write(&self, out: &mut Vec<u8>) {
        (**self).write(out);
    }
    fn read(input: &mut &[u8]) -> Option<Self> {
        T::read(input).map(Box::new)
    }
}
