//! Values as expressions.

use iron_ir::entity::{Handle, Value};
use iron_ir::kernel::Space;
use iron_ir::layout::FieldKind;
use iron_ir::op::{BinaryOp, Op, Place, UnaryOp};
use iron_ir::types::{Scalar, Type};

use super::dialect::Memory;
use super::expr::{Expr, Level};
use super::printer::{Fault, Printer};

impl Printer<'_> {
    /// The expression that reads a value: its name, the delayed expression, or what needs no
    /// statement.
    pub fn read(&mut self, value: Value) -> Result<Expr, Fault> {
        if let Some(at) = self.pending.iter().position(|(v, _)| *v == value) {
            return Ok(self.pending.remove(at).1);
        }
        if let Some(expr) = self.widened.get(&value) {
            return Ok(expr.clone());
        }
        if let Some(name) = &self.value_names[value.index()] {
            return Ok(Expr::primary(name.clone()));
        }
        match self.kernel.values[value].op {
            Op::Const(_) | Op::Scalar(_) | Op::Dim(_) | Op::Stride(..) | Op::Builtin(..) => {
                self.compute(value)
            }
            _ => Err(Fault::new(format!(
                "{value}, read where it is not defined,"
            ))),
        }
    }

    /// The expression that computes a value where its `Let` stands.
    pub fn compute(&mut self, value: Value) -> Result<Expr, Fault> {
        let ty = self.kernel.ty(value);
        let op = self.kernel.values[value].op.clone();
        match op {
            // C++ evaluates these operands only where they matter; an exchange between lanes
            // needs all of them.
            Op::Select(_, a, b) | Op::Binary(BinaryOp::And | BinaryOp::Or, a, b) => {
                self.name_exchanges(&[a, b]);
            }
            _ => {}
        }
        let expr = match op {
            Op::Const(constant) => self.ops.constant(constant.scalar, constant.bits),
            Op::Scalar(param) => self.field(FieldKind::Scalar(param))?,
            Op::Dim(dim) => self.field(FieldKind::Dim(dim))?,
            Op::Stride(param, axis) => self.field(FieldKind::Stride(param, axis))?,
            Op::Builtin(op, axis) => match self.hoisted.get(&(op, axis)) {
                Some(name) => Expr::primary(name.clone()),
                None => self.dialect.builtin(&self.context(), op, axis),
            },
            Op::Unary(op, a) => {
                let (from, x) = (self.kernel.ty(a), self.read(a)?);
                self.unary(op, from, ty, x)?
            }
            Op::Binary(op, a, b) => {
                let (x, y) = (self.read(a)?, self.read(b)?);
                self.binary(op, ty, a, b, x, y)?
            }
            Op::Compare(op, a, b) => {
                let from = self.kernel.ty(a);
                let (x, y) = (self.read(a)?, self.read(b)?);
                if self.ops.is_direct(from, false) {
                    self.ops.compare(op, from.scalar, &x, &y)?
                } else {
                    self.ops
                        .lanewise(op.name(), ty, &[from, from], &[x, y], |ops, l| {
                            ops.compare(op, from.scalar, &l[0], &l[1])
                        })?
                }
            }
            Op::Select(c, a, b) => {
                let condition = self.kernel.ty(c);
                let (c, x, y) = (self.read(c)?, self.read(a)?, self.read(b)?);
                if ty.lanes == 1 {
                    Expr::conditional(&c, &x, &y)
                } else {
                    self.ops
                        .lanewise("select", ty, &[condition, ty, ty], &[c, x, y], |_, l| {
                            Ok(Expr::conditional(&l[0], &l[1], &l[2]))
                        })?
                }
            }
            Op::Fma(a, b, c) => {
                let (x, y, z) = (self.read(a)?, self.read(b)?, self.read(c)?);
                if self.ops.is_direct(ty, false) {
                    self.ops.fma(ty.scalar, &x, &y, &z)?
                } else {
                    self.ops
                        .lanewise("fma", ty, &[ty, ty, ty], &[x, y, z], |ops, l| {
                            ops.fma(ty.scalar, &l[0], &l[1], &l[2])
                        })?
                }
            }
            Op::Convert(a) => {
                let (from, x) = (self.kernel.ty(a), self.read(a)?);
                if ty.lanes == 1 {
                    self.ops.convert(from.scalar, ty.scalar, &x)?
                } else {
                    let name = format!("to_{}", ty.scalar);
                    self.ops.lanewise(&name, ty, &[from], &[x], |ops, l| {
                        ops.convert(from.scalar, ty.scalar, &l[0])
                    })?
                }
            }
            Op::Bitcast(a) => {
                let (from, x) = (self.kernel.ty(a), self.read(a)?);
                self.bitcast(from, ty, x)?
            }
            Op::Splat(a) => {
                let x = self.read(a)?;
                self.ops.splat(ty, &x)?
            }
            Op::Vector(parts) => {
                let lanes = parts
                    .iter()
                    .map(|&p| self.read(p))
                    .collect::<Result<Vec<_>, _>>()?;
                self.ops.make(ty, &lanes)?
            }
            Op::Extract(a, lane) => {
                let (from, x) = (self.kernel.ty(a), self.read(a)?);
                self.ops.lane(from, &x, lane)?
            }
            Op::Insert(a, lane, b) => {
                let (x, y) = (self.read(a)?, self.read(b)?);
                let scalar = ty.scalar.x(1);
                self.ops
                    .lanewise(&format!("insert_{lane}"), ty, &[ty, scalar], &[x, y], {
                        let mut index = 0;
                        move |_, l| {
                            let chosen = if index == lane {
                                l[1].clone()
                            } else {
                                l[0].clone()
                            };
                            index += 1;
                            Ok(chosen)
                        }
                    })?
            }
            Op::Get(local) => {
                let mut expr = Expr::primary(self.local_names[local.index()].clone());
                expr.reads.locals.push(local);
                expr.variable = Some(local);
                expr
            }
            Op::Load { place, indices } => {
                let mut expr = self.access(place, &indices, ty)?;
                expr.reads.memory = true;
                expr
            }
            Op::Result => {
                return Err(Fault::new(format!(
                    "{value}, the result of a statement, in a `let`"
                )));
            }
        };
        Ok(expr)
    }

    /// The lvalue of a memory access of `ty`.
    pub fn access(&mut self, place: Place, indices: &[Value], ty: Type) -> Result<Expr, Fault> {
        let &[index] = indices else {
            return Err(Fault::new("an access by several indices".into()));
        };
        let (name, memory) = match place {
            Place::Flat(param) => {
                let Some(tensor) = self.kernel.tensor(param) else {
                    return Err(Fault::new(format!("an access of the scalar {param}")));
                };
                (
                    self.param_names[param.index()].clone(),
                    Memory::Global(tensor.access),
                )
            }
            Place::Array(array) => {
                let memory = match self.kernel.arrays[array].space {
                    Space::Shared => Memory::Shared,
                    Space::Private | Space::Ahead => Memory::Private,
                };
                (self.array_names[array.index()].clone(), memory)
            }
            Place::Tensor(_) => return Err(Fault::new("a tensor access by indices".into())),
        };
        let index = self.read(index)?;
        // A subscript widens by itself.
        let reads = index.reads.clone();
        let index = match index.narrow {
            Some(inner) => *inner,
            None => index,
        };
        let index = match index.text.trim_end_matches(['u', 'l']) {
            digits if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                Expr::primary(digits)
            }
            _ => index,
        };
        let mut expr = if ty.is_vector() {
            let spelled = self.ops.type_name(ty);
            let pointer = self.dialect.pointer(memory, &spelled);
            let address = match index.text.as_str() {
                "0" => name,
                _ => format!("{name} + {}", index.at(Level::Additive)),
            };
            Expr::new(
                format!("*reinterpret_cast<{pointer}>({address})"),
                Level::Unary,
            )
        } else {
            Expr::primary(format!("{name}[{}]", index.text))
        };
        expr.reads = reads;
        Ok(expr)
    }

    fn field(&self, kind: FieldKind) -> Result<Expr, Fault> {
        let at = self.layout.fields.iter().position(|f| f.kind == kind);
        match at {
            Some(at) => Ok(Expr::primary(
                self.dialect.block_field(&self.field_names[at]),
            )),
            None => Err(Fault::new(format!(
                "{kind:?}, which the parameter block lacks,"
            ))),
        }
    }

    fn unary(&mut self, op: UnaryOp, from: Type, to: Type, x: Expr) -> Result<Expr, Fault> {
        let is_infix = op == UnaryOp::Neg && from.scalar.is_float();
        let is_direct = self
            .ops
            .is_direct(from, is_infix && self.dialect.has_vector_operators())
            && (from.lanes == 1 || from.scalar.is_float());
        if is_direct {
            return Ok(self.ops.unary(op, from.scalar, &x)?);
        }
        Ok(self.ops.lanewise(op.name(), to, &[from], &[x], |ops, l| {
            ops.unary(op, from.scalar, &l[0])
        })?)
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        ty: Type,
        left: Value,
        right: Value,
        x: Expr,
        y: Expr,
    ) -> Result<Expr, Fault> {
        let scalar = ty.scalar;
        let constant = self.kernel.constant(right);
        let y = match op {
            BinaryOp::Shl | BinaryOp::Shr if ty.lanes == 1 => {
                self.masked_count(scalar, right, y)?
            }
            _ => y,
        };
        let _ = left;
        let infix = match op {
            BinaryOp::Add => Some(("+", Level::Additive)),
            BinaryOp::Sub => Some(("-", Level::Additive)),
            BinaryOp::Mul => Some(("*", Level::Multiplicative)),
            BinaryOp::Div if scalar.is_float() => Some(("/", Level::Multiplicative)),
            _ => None,
        };
        let is_minmax_of_number = matches!(
            op,
            BinaryOp::Min | BinaryOp::Max | BinaryOp::MinNan | BinaryOp::MaxNan
        ) && scalar.is_float();
        let is_division = matches!(op, BinaryOp::Div | BinaryOp::Rem) && scalar.is_int();
        let is_shift = matches!(op, BinaryOp::Shl | BinaryOp::Shr);
        let is_direct = self.ops.is_direct(ty, infix.is_some())
            && !(ty.is_vector() && (is_minmax_of_number || is_division || is_shift));
        if is_direct {
            return Ok(self.ops.binary_with(op, scalar, &x, &y, constant)?);
        }
        let is_plain = scalar == Scalar::F32
            || scalar == Scalar::F64
            || (scalar.bytes() >= 4 && scalar.is_int() && !scalar.is_signed());
        if let (Some((symbol, level)), true) = (infix, is_plain) {
            return Ok(self.ops.vector_operator(symbol, level, ty, &x, &y)?);
        }
        Ok(self
            .ops
            .lanewise(op.name(), ty, &[ty, ty], &[x, y], |ops, l| {
                let count = match op {
                    BinaryOp::Shl | BinaryOp::Shr => ops.mask(scalar, &l[1])?,
                    _ => l[1].clone(),
                };
                ops.binary_with(op, scalar, &l[0], &count, None)
            })?)
    }

    /// The shift count taken modulo the width, unless it is a smaller constant or masked already.
    fn masked_count(&mut self, scalar: Scalar, count: Value, text: Expr) -> Result<Expr, Fault> {
        let width = u64::from(scalar.bits());
        if let Some(constant) = self.kernel.constant(count) {
            let reduced = constant.bits % width;
            return Ok(self.ops.constant(Scalar::I32, reduced));
        }
        let is_masked = match &self.kernel.values[count].op {
            Op::Binary(BinaryOp::And, a, b) => [a, b]
                .into_iter()
                .any(|&v| self.kernel.constant(v).is_some_and(|c| c.bits < width)),
            _ => false,
        };
        if is_masked {
            Ok(text)
        } else {
            Ok(self.ops.mask(scalar, &text)?)
        }
    }

    fn bitcast(&mut self, from: Type, to: Type, x: Expr) -> Result<Expr, Fault> {
        if from == to {
            return Ok(x);
        }
        if from.bytes() != to.bytes() {
            return Err(Fault::new(format!("a bit cast from {from} to {to}")));
        }
        if from.lanes == 1 && to.lanes == 1 {
            return Ok(self.ops.bitcast(from.scalar, to.scalar, &x)?);
        }
        if from.lanes == to.lanes {
            let name = format!("bits_as_{}", to.scalar);
            return Ok(self.ops.lanewise(&name, to, &[from], &[x], |ops, l| {
                ops.bitcast(from.scalar, to.scalar, &l[0])
            })?);
        }
        self.ops.type_name(from);
        let name = self.ops.type_name(to);
        if let Some(words) = self.ops.words(from, to, &name, &x) {
            return Ok(words);
        }
        let dialect = self.dialect;
        Ok(dialect.bit_cast_any(&mut self.ops, &name, &x))
    }
}
