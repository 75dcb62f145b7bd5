//! Encodes expressions of the contract: shapes, grid, workgroup and facts.

use quote::{ToTokens, quote};
use syn::{BinOp, Expr, Lit, UnOp};

use crate::pattern::is_constant_name;
use crate::tree::{Formula, Requirement};
use crate::unit::Unit;

/// The names that a contract may use.
#[derive(Default)]
pub struct Names {
    /// Named dimensions, in order of first appearance.
    pub dims: Vec<String>,
    /// Scalar parameters: name and position.
    pub scalars: Vec<(String, u32)>,
    /// Const parameters.
    pub consts: Vec<String>,
    /// Whether the value is the same in every launch.
    pub is_fixed: bool,
}

impl Unit {
    /// An expression over dimensions, scalar parameters and constants.
    pub fn formula(&mut self, expression: &Expr, names: &Names) -> Formula {
        match expression {
            Expr::Paren(inner) => self.formula(&inner.expr, names),
            Expr::Group(inner) => self.formula(&inner.expr, names),
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(int) => match int.base10_parse() {
                    Ok(value) => Formula::Int { value },
                    Err(error) => {
                        self.push_error(error);
                        Formula::Int { value: 0 }
                    }
                },
                other => self.no_formula(other, "the contract's numbers are integers"),
            },
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => {
                match self.formula(&unary.expr, names) {
                    Formula::Int { value } => Formula::Int { value: -value },
                    operand => Formula::Binary {
                        op: "-".into(),
                        lhs: Box::new(Formula::Int { value: 0 }),
                        rhs: Box::new(operand),
                    },
                }
            }
            Expr::Path(path) => self.named(path, names),
            Expr::Binary(binary) => {
                let op = match binary.op {
                    BinOp::Add(_) => "+",
                    BinOp::Sub(_) => "-",
                    BinOp::Mul(_) => "*",
                    BinOp::Div(_) => "/",
                    BinOp::Rem(_) => "%",
                    other => {
                        return self.no_formula(
                            other,
                            "the contract's operators are `+ - * / %`, `ceil_div`, `min` and `max`",
                        );
                    }
                };
                Formula::Binary {
                    op: op.into(),
                    lhs: Box::new(self.formula(&binary.left, names)),
                    rhs: Box::new(self.formula(&binary.right, names)),
                }
            }
            Expr::Call(call) => {
                let name = call.func.to_token_stream().to_string();
                let known = matches!(name.as_str(), "ceil_div" | "min" | "max");
                if !known || call.args.len() != 2 {
                    return self.no_formula(
                        call,
                        "the contract's functions are `ceil_div(a, b)`, `min(a, b)` and `max(a, b)`",
                    );
                }
                Formula::Binary {
                    op: name,
                    lhs: Box::new(self.formula(&call.args[0], names)),
                    rhs: Box::new(self.formula(&call.args[1], names)),
                }
            }
            Expr::MethodCall(call) => self.no_formula(
                &call.method,
                "the contract has no methods; write `ceil_div(a, b)`, `min(a, b)` or `max(a, b)`",
            ),
            other => self.no_formula(
                other,
                "the contract's expressions are integers, dimensions, scalar parameters, \
                 constants and `+ - * / %`, `ceil_div`, `min`, `max` of them",
            ),
        }
    }

    fn named(&mut self, path: &syn::ExprPath, names: &Names) -> Formula {
        let ident = path.path.get_ident().map(ToString::to_string);
        if let Some(name) = &ident {
            if let Some(index) = names.dims.iter().position(|dim| dim == name) {
                return Formula::Dim {
                    index: index as u32,
                };
            }
            if let Some((_, parameter)) = names.scalars.iter().find(|(scalar, _)| scalar == name) {
                return Formula::Scalar {
                    parameter: *parameter,
                };
            }
            let is_const = names.consts.contains(name) || is_constant_name(name);
            if !is_const {
                let message = match names.is_fixed {
                    true => format!(
                        "`{name}` is no constant: a workgroup's size is a number, a constant in \
                         capitals or a const parameter"
                    ),
                    false => format!(
                        "`{name}` is neither a dimension of a tensor nor an integer scalar parameter"
                    ),
                };
                return self.no_formula(path, &message);
            }
        }
        Formula::Const {
            index: self.constant(quote!((#path) as i64)),
        }
    }

    fn no_formula(&mut self, tokens: impl ToTokens, message: &str) -> Formula {
        self.error(tokens, message);
        Formula::Int { value: 0 }
    }

    /// `a <= b`, or several joined by `&&`.
    pub fn requirements(&mut self, expression: &Expr, names: &Names, out: &mut Vec<Requirement>) {
        let Expr::Binary(binary) = expression else {
            self.error(
                expression,
                "a fact is a comparison: `requires(cols % 4 == 0)`",
            );
            return;
        };
        match binary.op {
            BinOp::And(_) => {
                self.requirements(&binary.left, names, out);
                self.requirements(&binary.right, names, out);
            }
            BinOp::Eq(_)
            | BinOp::Ne(_)
            | BinOp::Lt(_)
            | BinOp::Le(_)
            | BinOp::Gt(_)
            | BinOp::Ge(_) => {
                let lhs = self.formula(&binary.left, names);
                let rhs = self.formula(&binary.right, names);
                out.push(Requirement {
                    op: binary.op.to_token_stream().to_string(),
                    lhs,
                    rhs,
                });
            }
            other => self.error(other, "a fact is a comparison: `requires(cols % 4 == 0)`"),
        }
    }
}
