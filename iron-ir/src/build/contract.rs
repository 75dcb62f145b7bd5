//! Declares the parameters and the contract of a kernel.

use crate::build::error::BuildFault;
use crate::build::tree::{Formula, Function, Header, ParameterKind, Pattern};
use crate::build::value::Val;
use crate::contract::{Contract, Expr, ExprOp, Fact};
use crate::entity::{Dim, Handle, Param};
use crate::kernel::{Access, FloatPermissions, ParamData, ParamKind, TensorData, TensorLayout};
use crate::op::{CompareOp, Op};
use crate::types::Type;

use super::interpreter::{Builder, Eval};

impl Builder {
    pub(super) fn declare(&mut self, function: &Function, header: &Header) -> Eval<()> {
        self.kernel.doc = header.doc.as_str().into();
        for name in &header.dims {
            let dim = self.kernel.dims.push(name.as_str().into());
            let value = self.push(Op::Dim(dim), Type::U32);
            self.dims.push(value);
            self.names.bind(name, Val::Scalar(value));
        }
        for parameter in &function.parameters {
            self.locate(&parameter.at);
            let Pattern::Name { name, .. } = &parameter.pattern else {
                return self.fail(BuildFault::Malformed);
            };
            let kind = match &parameter.kind {
                ParameterKind::Tensor {
                    scalar,
                    shape,
                    mutable,
                    strided,
                } => ParamKind::Tensor(TensorData {
                    scalar: self.value_type(scalar)?.scalar,
                    shape: shape
                        .iter()
                        .map(|dim| self.formula(dim))
                        .collect::<Eval<_>>()?,
                    access: if *mutable {
                        Access::ReadWrite
                    } else {
                        Access::Read
                    },
                    layout: if *strided {
                        TensorLayout::Strided
                    } else {
                        TensorLayout::RowMajor
                    },
                    align: 1,
                    may_alias: Vec::new(),
                }),
                ParameterKind::Scalar { ty } => ParamKind::Scalar(self.value_type(ty)?.scalar),
                ParameterKind::Passed { .. } => return self.fail(BuildFault::Malformed),
            };
            let scalar = match &kind {
                ParamKind::Scalar(scalar) => Some(*scalar),
                ParamKind::Tensor(_) => None,
            };
            let data = ParamData {
                name: name.as_str().into(),
                kind,
                span: self.span,
            };
            let param = self.kernel.params.push(data);
            let value = match scalar {
                Some(scalar) => Val::Scalar(self.push(Op::Scalar(param), scalar.x(1))),
                None => Val::Tensor(param),
            };
            self.names.bind(name, value);
        }
        for pair in &header.in_place {
            for (one, other) in [(pair.first, pair.second), (pair.second, pair.first)] {
                let other = Param::from_index(other as usize);
                if let ParamKind::Tensor(tensor) =
                    &mut self.kernel.params[Param::from_index(one as usize)].kind
                {
                    tensor.may_alias.push(other);
                }
            }
        }
        self.kernel.contract = self.contract(header)?;
        Ok(())
    }

    fn contract(&self, header: &Header) -> Eval<Contract> {
        let mut contract = Contract {
            permissions: FloatPermissions {
                contract: header.contract_fma,
                approximate: header.approximate,
            },
            cooperative: header.cooperative,
            dependent: header.dependent,
            ..Contract::default()
        };
        for (axis, formula) in header.grid.iter().enumerate() {
            contract.grid[axis] = self.formula(formula)?;
        }
        for (axis, formula) in header.workgroup.iter().enumerate() {
            let found = self.formula(formula)?.eval(&Default::default());
            let limit = 1024;
            match found {
                Some(found) if (1..=limit).contains(&found) => {
                    contract.workgroup[axis] = found as u32;
                }
                Some(found) => {
                    return self.fail(BuildFault::OutOfRange {
                        what: "the workgroup's size along an axis".into(),
                        found,
                        allowed: format!("1 to {limit}"),
                    });
                }
                None => {
                    return self.fail(BuildFault::NotConstant {
                        what: "the workgroup's size".into(),
                    });
                }
            }
        }
        for count in &header.resident {
            let limit = 32;
            contract.resident = match self.formula(count)?.eval(&Default::default()) {
                Some(found) if (0..=limit).contains(&found) => found as u32,
                Some(found) => {
                    return self.fail(BuildFault::OutOfRange {
                        what: "the number of resident workgroups".into(),
                        found,
                        allowed: format!("0 to {limit}"),
                    });
                }
                None => {
                    return self.fail(BuildFault::NotConstant {
                        what: "the number of resident workgroups".into(),
                    });
                }
            };
        }
        for fact in &header.requires {
            let op = match fact.op.as_str() {
                "==" => CompareOp::Eq,
                "!=" => CompareOp::Ne,
                "<" => CompareOp::Lt,
                "<=" => CompareOp::Le,
                ">" => CompareOp::Gt,
                ">=" => CompareOp::Ge,
                _ => return self.fail(BuildFault::Malformed),
            };
            let (lhs, rhs) = (self.formula(&fact.lhs)?, self.formula(&fact.rhs)?);
            contract.requires.push(Fact { op, lhs, rhs });
        }
        Ok(contract)
    }

    fn formula(&self, formula: &Formula) -> Eval<Expr> {
        Ok(match formula {
            Formula::Int { value } => Expr::Const(*value),
            Formula::Dim { index } => Expr::Dim(Dim::from_index(*index as usize)),
            Formula::Scalar { parameter } => Expr::Scalar(Param::from_index(*parameter as usize)),
            Formula::Const { index } => {
                let constant = self.context.consts.get(*index as usize);
                match constant.map(|constant| constant.values.as_slice()) {
                    Some([value]) => Expr::Const(value.bits as i64),
                    _ => return self.fail(BuildFault::Malformed),
                }
            }
            Formula::Binary { op, lhs, rhs } => {
                let op = match op.as_str() {
                    "+" => ExprOp::Add,
                    "-" => ExprOp::Sub,
                    "*" => ExprOp::Mul,
                    "/" => ExprOp::Div,
                    "%" => ExprOp::Rem,
                    "ceil_div" => ExprOp::CeilDiv,
                    "min" => ExprOp::Min,
                    "max" => ExprOp::Max,
                    _ => return self.fail(BuildFault::Malformed),
                };
                let (lhs, rhs) = (self.formula(lhs)?, self.formula(rhs)?);
                if let (Expr::Const(_), Expr::Const(_)) = (&lhs, &rhs)
                    && let Some(value) = Expr::binary(op, lhs.clone(), rhs.clone())
                        .eval(&Default::default())
                        .and_then(|value| i64::try_from(value).ok())
                {
                    return Ok(Expr::Const(value));
                }
                Expr::binary(op, lhs, rhs)
            }
        })
    }
}
