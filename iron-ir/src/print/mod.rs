//! The text form of a kernel: printing. Parsing is [`crate::parse`].
//!
//! ```text
//! kernel @axpy "f32" grid(ceil_div(#n, 256), 1, 1) workgroup(256, 1, 1) requires(#n > 0) {
//!   doc "y += a * x"
//!   dim #n
//!   param @a: f32
//!   param @x: tensor<f32, [#n], read, align 1>
//!   param @y: tensor<f32, [#n], read_write, align 1>
//!
//!   %1: bool = lt global_id.0, #n
//!   if %1 {
//!     %x0: f32 = load @x[global_id.0]
//!     store @y[global_id.0] = %x0
//!   }
//! }
//! ```
//!
//! Constants, scalar parameters, dimensions, strides and builtins are written where they are
//! used; one that has a `Let` is written by name after it. Values without a name are numbered,
//! and names that occur twice carry a number: `%x.7`. [`canonical()`] gives the numbering of the
//! text, so that `parse(print(k)) == canonical(k)` exactly; [`Options::spans`] adds every span
//! (`!12:5`, or `!file:line:column`), without which spans are lost.

mod canonical;
pub(crate) use statement::has_axis;
mod statement;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::contract::{CompareOp, Expr, ExprOp};
use crate::entity::{Array, Dim, Handle, Local, Param, Tile, Value};
use crate::kernel::{Access, Kernel, ParamKind, Space, Span, TensorData, TensorLayout};
use crate::op::{Const, TileSpace};
use crate::types::Scalar;

pub use canonical::{canonical, without_spans};

/// What the text shows beside the program.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// Spans of statements and values.
    pub spans: bool,
}

/// The kernel as text, without spans.
pub fn print(kernel: &Kernel) -> String {
    print_with(kernel, Options::default())
}

/// The kernel as text.
pub fn print_with(kernel: &Kernel, options: Options) -> String {
    let kernel = canonical(kernel);
    let mut printer = Printer {
        names: Names::of(&kernel),
        kernel: &kernel,
        options,
        out: String::new(),
        depth: 1,
        visible: vec![false; kernel.values.len()],
    };
    printer.kernel();
    printer.out
}

struct Printer<'k> {
    kernel: &'k Kernel,
    names: Names,
    options: Options,
    out: String,
    depth: usize,
    /// Values that a `Let` in scope has defined.
    visible: Vec<bool>,
}

/// The token after the sigil of every handle.
struct Names {
    values: Vec<String>,
    locals: Vec<String>,
    params: Vec<String>,
    dims: Vec<String>,
    arrays: Vec<String>,
    tiles: Vec<String>,
}

impl Names {
    fn of(kernel: &Kernel) -> Names {
        let values: Vec<Option<&str>> = kernel.values.values().map(|v| v.name.as_deref()).collect();
        Names {
            values: unique(&values),
            locals: unique(
                &kernel
                    .locals
                    .values()
                    .map(|x| Some(&*x.name))
                    .collect::<Vec<_>>(),
            ),
            params: unique(
                &kernel
                    .params
                    .values()
                    .map(|x| Some(&*x.name))
                    .collect::<Vec<_>>(),
            ),
            dims: unique(&kernel.dims.values().map(|x| Some(&**x)).collect::<Vec<_>>()),
            arrays: unique(
                &kernel
                    .arrays
                    .values()
                    .map(|x| Some(&*x.name))
                    .collect::<Vec<_>>(),
            ),
            tiles: unique(
                &kernel
                    .tiles
                    .values()
                    .map(|x| Some(&*x.name))
                    .collect::<Vec<_>>(),
            ),
        }
    }
}

/// A name alone where it occurs once, else with its position; the position alone without one.
fn unique(names: &[Option<&str>]) -> Vec<String> {
    let mut count = HashMap::new();
    for name in names.iter().flatten() {
        *count.entry(*name).or_insert(0) += 1;
    }
    names
        .iter()
        .enumerate()
        .map(|(i, name)| match name {
            None => i.to_string(),
            Some(name) if count[name] == 1 => name.to_string(),
            Some(name) => format!("{name}.{i}"),
        })
        .collect()
}

impl Printer<'_> {
    fn kernel(&mut self) {
        let kernel = self.kernel;
        let contract = &kernel.contract;
        self.write("kernel @");
        self.write(&kernel.name);
        if !kernel.instance.is_empty() {
            self.write(" ");
            self.quoted(&kernel.instance);
        }
        self.write(" grid(");
        for (i, expr) in contract.grid.iter().enumerate() {
            self.write(if i > 0 { ", " } else { "" });
            self.expr(expr, false);
        }
        let [x, y, z] = contract.workgroup;
        self.write(&format!(") workgroup({x}, {y}, {z})"));
        if contract.resident > 0 {
            self.write(&format!(" resident({})", contract.resident));
        }
        if !contract.requires.is_empty() {
            self.write(" requires(");
            for (i, fact) in contract.requires.iter().enumerate() {
                self.write(if i > 0 { ", " } else { "" });
                self.expr(&fact.lhs, false);
                self.write(compare_symbol(fact.op));
                self.expr(&fact.rhs, false);
            }
            self.write(")");
        }
        for (set, word) in [
            (contract.permissions.contract, " contract_fma"),
            (contract.permissions.approximate, " approximate"),
            (contract.cooperative, " cooperative"),
            (contract.dependent, " dependent"),
        ] {
            self.write(if set { word } else { "" });
        }
        self.write(" {\n");
        if !kernel.doc.is_empty() {
            self.write("  doc ");
            self.quoted(&kernel.doc);
            self.write("\n");
        }
        for file in &kernel.files {
            self.write("  file ");
            self.quoted(file);
            self.write("\n");
        }
        for dim in kernel.dims.handles() {
            self.write("  dim ");
            self.dim(dim);
            self.write("\n");
        }
        for (param, data) in kernel.params.iter() {
            self.write("  param ");
            self.param(param);
            self.write(": ");
            match &data.kind {
                ParamKind::Scalar(scalar) => self.write(scalar.name()),
                ParamKind::Tensor(tensor) => self.tensor(tensor),
            }
            self.line_end(data.span);
        }
        for (local, data) in kernel.locals.iter() {
            self.write("  local ");
            self.local(local);
            self.write(&format!(": {}", data.ty));
            self.line_end(data.span);
        }
        for (array, data) in kernel.arrays.iter() {
            self.write(match data.space {
                Space::Shared => "  shared ",
                Space::Private => "  private ",
                Space::Ahead => "  ahead ",
            });
            self.array(array);
            self.write(&format!(": [{}; {}]", data.scalar, data.len));
            self.line_end(data.span);
        }
        for (tile, data) in kernel.tiles.iter() {
            self.write("  tile ");
            self.tile(tile);
            let space = match data.space {
                TileSpace::Shared => "shared",
                TileSpace::Register => "register",
            };
            let (scalar, rows, columns) = (data.scalar, data.rows, data.columns);
            self.write(&format!(": {space} [{scalar}; {rows}, {columns}]"));
            self.line_end(data.span);
        }
        self.write("\n");
        self.statements(&kernel.body);
        self.write("}\n");
    }

    fn tensor(&mut self, tensor: &TensorData) {
        self.write("tensor<");
        self.write(tensor.scalar.name());
        self.write(", [");
        for (i, expr) in tensor.shape.iter().enumerate() {
            self.write(if i > 0 { ", " } else { "" });
            self.expr(expr, false);
        }
        self.write(match tensor.access {
            Access::Read => "], read",
            Access::ReadWrite => "], read_write",
        });
        self.write(match tensor.layout {
            TensorLayout::RowMajor => "",
            TensorLayout::Strided => ", strided",
        });
        self.write(&format!(", align {}", tensor.align));
        for param in &tensor.may_alias {
            self.write(", alias ");
            self.param(*param);
        }
        self.write(">");
    }

    fn expr(&mut self, expr: &Expr, nested: bool) {
        match expr {
            Expr::Const(c) => self.write(&c.to_string()),
            Expr::Dim(dim) => self.dim(*dim),
            Expr::Scalar(param) => self.param(*param),
            Expr::Binary(op @ (ExprOp::CeilDiv | ExprOp::Min | ExprOp::Max), a, b) => {
                self.write(op.name());
                self.write("(");
                self.expr(a, false);
                self.write(", ");
                self.expr(b, false);
                self.write(")");
            }
            Expr::Binary(op, a, b) => {
                self.write(if nested { "(" } else { "" });
                self.expr(a, true);
                self.write(&format!(" {} ", op.name()));
                self.expr(b, true);
                self.write(if nested { ")" } else { "" });
            }
        }
    }

    fn write(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn quoted(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn span(&mut self, span: Span) {
        if !self.options.spans {
            return;
        }
        let Span { file, line, column } = span;
        let _ = match file {
            0 => write!(self.out, " !{line}:{column}"),
            _ => write!(self.out, " !{file}:{line}:{column}"),
        };
    }

    /// The span, unless it is unknown, and the end of the line.
    fn line_end(&mut self, span: Span) {
        if span != Span::default() {
            self.span(span);
        }
        self.write("\n");
    }

    fn dim(&mut self, dim: Dim) {
        let name = format!("#{}", self.names.dims.get(dim.index()).map_or("?", |n| n));
        self.write(&name);
    }

    fn param(&mut self, param: Param) {
        let name = format!(
            "@{}",
            self.names.params.get(param.index()).map_or("?", |n| n)
        );
        self.write(&name);
    }

    fn local(&mut self, local: Local) {
        let name = format!(
            "${}",
            self.names.locals.get(local.index()).map_or("?", |n| n)
        );
        self.write(&name);
    }

    fn array(&mut self, array: Array) {
        let name = format!(
            "&{}",
            self.names.arrays.get(array.index()).map_or("?", |n| n)
        );
        self.write(&name);
    }

    fn tile(&mut self, tile: Tile) {
        let name = format!("!{}", self.names.tiles.get(tile.index()).map_or("?", |n| n));
        self.write(&name);
    }

    fn value_name(&mut self, value: Value) {
        let name = format!(
            "%{}",
            self.names.values.get(value.index()).map_or("?", |n| n)
        );
        self.write(&name);
    }
}

fn compare_symbol(op: CompareOp) -> &'static str {
    match op {
        CompareOp::Eq => " == ",
        CompareOp::Ne => " != ",
        CompareOp::Lt => " < ",
        CompareOp::Le => " <= ",
        CompareOp::Gt => " > ",
        CompareOp::Ge => " >= ",
    }
}

/// A constant: `5u32`, `-0.0f32`, `true`; bits where no decimal form has them:
/// `f32:0x7f800000`.
pub fn constant(c: Const) -> String {
    let bits = |c: Const| format!("{}:{:#x}", c.scalar, c.bits);
    match c.scalar {
        Scalar::Bool => if c.as_bool() { "true" } else { "false" }.to_string(),
        s if s.is_int() => format!("{}{s}", c.as_int()),
        Scalar::F64 if c.as_f64().is_finite() => format!("{:?}f64", c.as_f64()),
        s if s.is_float() && c.as_f64().is_finite() => format!("{:?}{s}", c.as_f64() as f32),
        _ => bits(c),
    }
}
