//! Exchanges within a subgroup.
//!
//! Vendors differ in what a lane that does not exist gives; the IR says the own value, and the
//! identity in a reduction. Where all lanes exist the text is the vendor's function; elsewhere a
//! helper computes the source lane.

use iron_ir::entity::Value;
use iron_ir::kernel::Kernel;
use iron_ir::op::{BinaryOp, BuiltinOp, ReduceOp, Stmt, SubgroupOp};
use iron_ir::types::{Class, Scalar, Type};

use super::dialect::Printed;
use super::expr::{Expr, Level};
use super::ops::{Ops, is_half};
use super::printer::{Fault, Printer};

/// The number of lanes of this thread's subgroup that exist, where not all may.
const PRESENT: &str = "subgroup_lanes";

impl Printer<'_> {
    /// Declares the number of lanes that exist, where exchanges need it.
    pub fn subgroup_lanes(&mut self) {
        if !has_exchange(self.kernel) || !self.context().has_partial_subgroup() {
            return;
        }
        let context = self.context();
        let size = self.dialect.builtin(&context, BuiltinOp::SubgroupSize, 0);
        let subgroup = self.dialect.builtin(&context, BuiltinOp::SubgroupId, 0);
        let threads = self.kernel.contract.threads();
        let before = Expr::infix("*", Level::Multiplicative, &subgroup, &size);
        let rest = Expr::infix(
            "-",
            Level::Additive,
            &Expr::primary(format!("{threads}u")),
            &before,
        );
        let uint = self.dialect.scalar_type(Scalar::U32);
        let lanes = Expr::call("min", &[size, rest]);
        self.statement(&format!("const {uint} {PRESENT} = {};", lanes.text));
    }

    /// The call of an exchange.
    pub fn subgroup(
        &mut self,
        op: SubgroupOp,
        reduce: Option<ReduceOp>,
        value: Value,
        argument: Option<Value>,
    ) -> Result<Expr, Fault> {
        let ty = self.kernel.ty(value);
        let constant = argument.and_then(|a| self.kernel.constant(a));
        let x = self.read(value)?;
        let argument = argument.map(|a| self.read(a)).transpose()?;
        let present = self
            .context()
            .has_partial_subgroup()
            .then(|| Expr::primary(PRESENT));
        let context = self.context();
        let lane = self.dialect.builtin(&context, BuiltinOp::SubgroupLane, 0);
        let size = self.dialect.builtin(&context, BuiltinOp::SubgroupSize, 0);
        let known_size = self.profile.subgroup_size;
        match op {
            SubgroupOp::Ballot | SubgroupOp::Any | SubgroupOp::All => {
                Ok(self.dialect.vote(op, &x, present.as_ref()))
            }
            SubgroupOp::Shuffle | SubgroupOp::Broadcast => {
                let Some(source) = argument else {
                    return Err(Fault::new("a shuffle without a lane".into()));
                };
                Ok(self
                    .ops
                    .exchange(SubgroupOp::Shuffle, ty, &x, &source, present.as_ref())?)
            }
            SubgroupOp::ShuffleXor | SubgroupOp::ShuffleUp | SubgroupOp::ShuffleDown => {
                let Some(distance) = argument else {
                    return Err(Fault::new("a shuffle without a distance".into()));
                };
                let least = u64::from(known_size.unwrap_or(4));
                let is_near = constant.is_some_and(|c| c.bits < least);
                let is_direct = present.is_none()
                    && is_near
                    && (op == SubgroupOp::ShuffleXor || self.dialect.keeps_own_value());
                if is_direct {
                    return Ok(self.ops.exchange(op, ty, &x, &distance, None)?);
                }
                let lanes = present.clone().unwrap_or(size);
                let source = self.ops.source_lane(op, &lane, &distance, &lanes);
                Ok(self
                    .ops
                    .exchange(SubgroupOp::Shuffle, ty, &x, &source, present.as_ref())?)
            }
            SubgroupOp::Reduce => {
                let Some(reduce) = reduce else {
                    return Err(Fault::new(
                        "a subgroup reduction without an operator".into(),
                    ));
                };
                Ok(self
                    .ops
                    .subgroup_reduce(reduce, ty, &x, &lane, &size, present.as_ref())?)
            }
        }
    }
}

/// Whether the body exchanges values within subgroups.
fn has_exchange(kernel: &Kernel) -> bool {
    let mut found = false;
    kernel
        .body
        .walk(&mut |stmt, _| found |= matches!(stmt, Stmt::Subgroup { .. }));
    found
}

impl Ops<'_> {
    /// A shuffle of any type, carried in 32- or 64-bit scalars.
    fn exchange(
        &mut self,
        op: SubgroupOp,
        ty: Type,
        x: &Expr,
        argument: &Expr,
        present: Option<&Expr>,
    ) -> Printed {
        if ty.lanes > 1 {
            let mut types = vec![ty, Type::U32];
            let mut operands = vec![x.clone(), argument.clone()];
            if let Some(present) = present {
                types.push(Type::U32);
                operands.push(present.clone());
            }
            return self.lanewise(op.name(), ty, &types, &operands, |ops, l| {
                ops.exchange(op, ty.scalar.x(1), &l[0], &l[1], l.get(2))
            });
        }
        let scalar = ty.scalar;
        let carrier = match (scalar.class(), scalar.bytes()) {
            (_, 8) => scalar,
            (Class::Float, 4) => scalar,
            (Class::Signed, _) => Scalar::I32,
            _ => Scalar::U32,
        };
        let sent = if carrier == scalar {
            x.clone()
        } else if is_half(scalar) {
            let bits = self.bitcast(scalar, Scalar::U16, x)?;
            self.dialect.cast(self.dialect.scalar_type(carrier), &bits)
        } else {
            self.dialect.cast(self.dialect.scalar_type(carrier), x)
        };
        let received = self
            .dialect
            .shuffle(op, carrier, &sent.plain(), argument, present);
        if carrier == scalar {
            return Ok(received);
        }
        if is_half(scalar) {
            let bits = self
                .dialect
                .cast(self.dialect.scalar_type(Scalar::U16), &received);
            return self.bitcast(Scalar::U16, scalar, &bits);
        }
        self.convert(carrier, scalar, &received)
    }

    /// The lane that a relative shuffle reads: the own one where the other does not exist.
    fn source_lane(&mut self, op: SubgroupOp, lane: &Expr, distance: &Expr, lanes: &Expr) -> Expr {
        let uint = self.dialect.scalar_type(Scalar::U32);
        let prefix = self.dialect.helper_prefix();
        let (name, body) = match op {
            SubgroupOp::ShuffleXor => (
                "subgroup_lane_xor",
                "(lane ^ distance) < lanes ? lane ^ distance : lane",
            ),
            SubgroupOp::ShuffleUp => (
                "subgroup_lane_up",
                "distance <= lane ? lane - distance : lane",
            ),
            _ => (
                "subgroup_lane_down",
                "distance < lanes - lane ? lane + distance : lane",
            ),
        };
        self.helpers.require(name, || {
            format!(
                "// The lane to read: the own one where the other does not exist.\n\
                 {prefix}{uint} {name}({uint} lane, {uint} distance, {uint} lanes) {{\n    \
                 return {body};\n}}"
            )
        });
        Expr::call(name, &[lane.clone(), distance.clone(), lanes.clone()])
    }

    /// A reduction by the adjacent-pair tree.
    fn subgroup_reduce(
        &mut self,
        reduce: ReduceOp,
        ty: Type,
        x: &Expr,
        lane: &Expr,
        size: &Expr,
        present: Option<&Expr>,
    ) -> Printed {
        let uint = self.dialect.scalar_type(Scalar::U32);
        let spelled = self.type_name(ty);
        let name = format!("subgroup_{}", reduce.name());
        let key = format!("{name} {ty}");
        if self.helpers.is_new(&key) {
            let (mine, other) = (Expr::primary("x"), Expr::primary("other"));
            let lanes = Expr::primary("lanes");
            let sum = self.lane_reduce(reduce, ty, &mine, &other)?;
            let distance = Expr::primary("distance");
            let text = if present.is_some() {
                let partner = self.source_lane(
                    SubgroupOp::ShuffleXor,
                    &Expr::primary("lane"),
                    &distance,
                    &lanes,
                );
                let fetched =
                    self.exchange(SubgroupOp::Shuffle, ty, &mine, &partner, Some(&lanes))?;
                let zero = Expr::primary("0u");
                let first = self.exchange(SubgroupOp::Shuffle, ty, &mine, &zero, Some(&lanes))?;
                format!(
                    "// Adjacent pairs, so that the order is the same at every width; absent lanes\n\
                     // take no part, and lane 0 has the whole.\n\
                     {}{spelled} {name}({spelled} x, {uint} lane, {uint} lanes) {{\n    \
                     for ({uint} distance = 1u; distance < lanes; distance <<= 1) {{\n        \
                     const {spelled} other = {};\n        \
                     if ((lane ^ distance) < lanes) x = {};\n    }}\n    return {};\n}}",
                    self.dialect.helper_prefix(),
                    fetched.text,
                    sum.text,
                    first.text,
                )
            } else {
                let fetched = self.exchange(SubgroupOp::ShuffleXor, ty, &mine, &distance, None)?;
                format!(
                    "// Adjacent pairs, so that the order is the same at every width.\n\
                     {}{spelled} {name}({spelled} x, {uint} lanes) {{\n    \
                     for ({uint} distance = 1u; distance < lanes; distance <<= 1) {{\n        \
                     const {spelled} other = {};\n        \
                     x = {};\n    }}\n    return x;\n}}",
                    self.dialect.helper_prefix(),
                    fetched.text,
                    sum.text,
                )
            };
            self.helpers.add(text);
        }
        Ok(match present {
            Some(present) => Expr::call(&name, &[x.clone(), lane.clone(), present.clone()]),
            None => Expr::call(&name, &[x.clone(), size.clone()]),
        })
    }

    fn lane_reduce(&mut self, reduce: ReduceOp, ty: Type, x: &Expr, y: &Expr) -> Printed {
        let op = match reduce {
            ReduceOp::Sum => BinaryOp::Add,
            ReduceOp::Product => BinaryOp::Mul,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::MinNan => BinaryOp::MinNan,
            ReduceOp::MaxNan => BinaryOp::MaxNan,
            ReduceOp::And => BinaryOp::And,
            ReduceOp::Or => BinaryOp::Or,
        };
        if ty.lanes == 1 {
            return self.binary(op, ty.scalar, x, y);
        }
        self.lanewise(
            op.name(),
            ty,
            &[ty, ty],
            &[x.clone(), y.clone()],
            |ops, l| ops.binary(op, ty.scalar, &l[0], &l[1]),
        )
    }
}
