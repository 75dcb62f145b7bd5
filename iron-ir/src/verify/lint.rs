//! Lints: what is right but rarely meant.

use super::error::Location;
use crate::kernel::{Kernel, Span};
use crate::op::{BinaryOp, Op, ReduceOp, Stmt, TileStmt};
use crate::types::{Scalar, Type};

/// A warning.
#[derive(Clone, PartialEq, Debug)]
pub struct Lint {
    /// Where.
    pub span: Span,
    /// The same with the file's name.
    pub location: Location,
    /// What, and what to do.
    pub message: String,
}

/// The warnings of a kernel as built.
///
/// K18: a sum or product whose accumulator is a float narrower than `f32`: of a collective, of a
/// tile, and of a variable that a loop adds to.
pub fn lint(kernel: &Kernel) -> Vec<Lint> {
    let mut lints = Vec::new();
    let narrow = |ty: Type| matches!(ty.scalar, Scalar::F16 | Scalar::BF16);
    let sums = |op: ReduceOp| matches!(op, ReduceOp::Sum | ReduceOp::Product);
    let mut add = |span, what: String, scalar: Scalar| {
        let message = format!(
            "{what} accumulates in {scalar}, which loses the small addends of long sums; accumulate in f32 and round once"
        );
        lints.push(Lint {
            span,
            location: Location::of(kernel, span),
            message,
        });
    };
    let mut loops: Vec<&crate::Block> = Vec::new();
    kernel.body.walk(&mut |stmt, span| match stmt {
        Stmt::Subgroup {
            reduce: Some(op),
            value,
            ..
        }
        | Stmt::Group {
            reduce: Some(op),
            value,
            ..
        } if sums(*op) && narrow(kernel.ty(*value)) => {
            add(
                span,
                format!("this {}", op.name()),
                kernel.ty(*value).scalar,
            );
        }
        Stmt::Tile(
            TileStmt::ReduceRows { to, op, .. } | TileStmt::ReduceColumns { to, op, .. },
        ) if sums(*op) && narrow(kernel.tiles[*to].scalar.x(1)) => {
            add(
                span,
                format!("this {}", op.name()),
                kernel.tiles[*to].scalar,
            );
        }
        Stmt::For { body, .. } | Stmt::Loop { body } => loops.push(body),
        _ => {}
    });
    let mut seen = Vec::new();
    for body in loops {
        body.walk(&mut |stmt, span| {
            let Stmt::Set(local, value) = stmt else {
                return;
            };
            let Op::Binary(BinaryOp::Add | BinaryOp::Mul, a, b) = kernel.values[*value].op else {
                return;
            };
            let reads = |v| matches!(kernel.values[v].op, Op::Get(l) if l == *local);
            if narrow(kernel.ty(*value)) && (reads(a) || reads(b)) && !seen.contains(local) {
                seen.push(*local);
                let name = &kernel.locals[*local].name;
                add(span, format!("`{name}`"), kernel.ty(*value).scalar);
            }
        });
    }
    lints
}
