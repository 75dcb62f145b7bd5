//! The printer's state, and the text as a whole.

use std::collections::HashMap;

use iron_ir::entity::{Array, Handle, Value};
use iron_ir::kernel::{Kernel, ParamKind, Space, Span};
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_ir::op::BuiltinOp;

use super::analysis::{Declarations, Uses, array_alignment};
use super::dialect::{ArrayDeclaration, Context, Dialect, Memory, Role};
use super::expr::{Expr, Level};
use super::header::contract_comment;
use super::helpers::Helpers;
use super::names::{Namer, legal_entry_point};
use super::ops::Ops;
use crate::error::LowerError;
use crate::places::Places;
use crate::profile::Profile;

/// Why a construct cannot be printed: the passes should have rewritten it.
pub(crate) struct Fault {
    what: String,
}

impl Fault {
    pub fn new(what: String) -> Fault {
        Fault { what }
    }
}

impl From<String> for Fault {
    fn from(what: String) -> Fault {
        Fault { what }
    }
}

/// Prints one kernel.
pub(crate) struct Printer<'a> {
    pub kernel: &'a Kernel,
    pub profile: &'a Profile,
    pub dialect: &'a dyn Dialect,
    pub ops: Ops<'a>,
    pub uses: Uses,
    pub declarations: Declarations,
    pub layout: BlockLayout,
    pub namer: Namer,
    pub entry: String,
    pub value_names: Vec<Option<String>>,
    pub local_names: Vec<String>,
    pub is_declared: Vec<bool>,
    pub param_names: Vec<String>,
    pub array_names: Vec<String>,
    pub field_names: Vec<String>,
    /// Widened names, which are written wherever they are used.
    pub widened: HashMap<Value, Expr>,
    /// Builtins computed once at the start.
    pub hoisted: HashMap<(BuiltinOp, u8), String>,
    /// Values delayed to their only use, in order.
    pub pending: Vec<(Value, Expr)>,
    /// Where a one-line `if (…) break;` begins in `out`, with the condition of going on.
    pub guards: Vec<(usize, String)>,
    /// The role whose block is at hand.
    pub role: Option<Role>,
    /// The author's place of the statement at hand.
    pub span: Span,
    /// The places of what was written, by where it begins in `out`.
    pub marks: Vec<(usize, Span)>,
    pub out: String,
    pub indent: usize,
}

/// The whole text of a kernel after the passes.
pub(crate) fn emit(
    kernel: &Kernel,
    profile: &Profile,
    dialect: &dyn Dialect,
) -> Result<(String, Places), LowerError> {
    let mut printer = Printer::new(kernel, profile, dialect);
    match printer.text() {
        Ok(text) => Ok(text),
        Err(fault) => Err(LowerError::NotLegalised {
            kernel: kernel.full_name(),
            profile: profile.name.into(),
            what: fault.what,
            line: printer.span.line,
        }),
    }
}

/// The entry point's name: the kernel's and instance's, renamed where the language reserves it.
pub(crate) fn entry_name(kernel: &Kernel, dialect: &dyn Dialect) -> String {
    legal_entry_point(&kernel.entry_point(), dialect.reserved())
}

impl<'a> Printer<'a> {
    fn new(kernel: &'a Kernel, profile: &'a Profile, dialect: &'a dyn Dialect) -> Printer<'a> {
        let mut namer = Namer::new(dialect.reserved());
        let entry = namer.entry_point(&kernel.entry_point());
        let layout = BlockLayout::of(kernel);
        let mut param_names = vec![String::new(); kernel.params.len()];
        let mut field_names = Vec::new();
        for field in &layout.fields {
            let name = match field.kind {
                FieldKind::ErrorWord => "error_word".to_owned(),
                FieldKind::Address(_)
                | FieldKind::Stride(..)
                | FieldKind::Dim(_)
                | FieldKind::Scalar(_)
                | FieldKind::Aligned
                | FieldKind::TensorMap(..) => namer.name(&field.name),
            };
            if let FieldKind::Address(param) = field.kind {
                param_names[param.index()] = name.clone();
            }
            field_names.push(name);
        }
        let array_names = kernel
            .arrays
            .values()
            .map(|a| namer.name(&a.name))
            .collect();
        Printer {
            kernel,
            profile,
            dialect,
            ops: Ops {
                dialect,
                helpers: Helpers::default(),
                approximate: kernel.contract.permissions.approximate,
            },
            uses: Uses::of(kernel),
            declarations: Declarations::of(kernel),
            layout,
            namer,
            entry,
            value_names: vec![None; kernel.values.len()],
            local_names: vec![String::new(); kernel.locals.len()],
            is_declared: vec![false; kernel.locals.len()],
            param_names,
            array_names,
            field_names,
            widened: HashMap::new(),
            hoisted: HashMap::new(),
            pending: Vec::new(),
            guards: Vec::new(),
            role: None,
            span: Span::default(),
            marks: Vec::new(),
            out: String::new(),
            indent: 1,
        }
    }

    /// What dialects may know.
    pub fn context(&self) -> Context<'_> {
        Context {
            kernel: self.kernel,
            profile: self.profile,
            entry: &self.entry,
            field_names: &self.field_names,
            param_names: &self.param_names,
            dialect: self.dialect,
        }
    }

    fn text(&mut self) -> Result<(String, Places), Fault> {
        for line in self.dialect.entry_statements(&self.context()) {
            self.statement(&line);
        }
        self.arrays();
        self.subgroup_lanes();
        let asked = self.uses.builtins(self.kernel);
        for &((op, axis), count) in &asked {
            let expr = self.dialect.builtin(&self.context(), op, axis);
            if count > 1 && expr.level < Level::Primary {
                let wanted = match op {
                    BuiltinOp::GlobalId => ["global_x", "global_y", "global_z"]
                        .get(usize::from(axis))
                        .copied()
                        .unwrap_or("global"),
                    BuiltinOp::LocalIndex => "thread_index",
                    BuiltinOp::SubgroupId => "subgroup",
                    BuiltinOp::SubgroupLane => "lane_index",
                    _ => op.name(),
                };
                let name = self.namer.name(wanted);
                let ty = self.dialect.scalar_type(iron_ir::Scalar::U32);
                self.statement(&format!("const {ty} {name} = {};", expr.text));
                self.hoisted.insert((op, axis), name);
            }
        }
        let kernel = self.kernel;
        self.block(&kernel.body)?;
        let body = std::mem::take(&mut self.out);
        let used: Vec<(BuiltinOp, u8)> = self.dialect.entry_builtins(
            &self.context(),
            &asked.iter().map(|a| a.0).collect::<Vec<_>>(),
        );
        for data in self.kernel.params.values() {
            if let ParamKind::Tensor(tensor) = &data.kind {
                let scalar = self.profile.legal.memory_scalar(tensor.scalar);
                self.dialect.declare_scalar(&mut self.ops, scalar);
            }
        }
        let signature = self.dialect.signature(&self.context(), &used);
        let mut text = contract_comment(self.kernel, self.profile.name);
        text.push('\n');
        let prologue = self.dialect.prologue();
        if !prologue.is_empty() {
            text.push_str(prologue);
            text.push('\n');
        }
        text.push_str(&wrapped(&self.ops.helpers.finish()));
        text.push_str(&self.dialect.entry_types(&self.context()));
        text.push_str(&signature);
        text.push_str(" {\n");
        let before = text.matches('\n').count();
        let places = Places::of_text(self.kernel, &body, before, &self.marks);
        text.push_str(&body);
        text.push_str("}\n");
        Ok((text, places))
    }

    fn arrays(&mut self) {
        let align = array_alignment(self.kernel);
        let fragments = crate::fragments::sums(self.kernel);
        let mut offset = 0u64;
        let kernel = self.kernel;
        let handles: Vec<Array> = kernel.arrays.handles().collect();
        let mut lines = Vec::new();
        for array in handles {
            let data = &kernel.arrays[array];
            let scalar = self.profile.legal.memory_scalar(data.scalar);
            self.dialect.declare_scalar(&mut self.ops, scalar);
            let declaration = ArrayDeclaration {
                name: &self.array_names[array.index()],
                ty: self.dialect.scalar_type(scalar),
                len: data.len,
                align: align.get(&array).copied().unwrap_or(0),
                offset,
            };
            lines.push(match data.space {
                Space::Shared => {
                    offset +=
                        (u64::from(data.len) * u64::from(data.scalar.bytes())).next_multiple_of(16);
                    self.dialect.shared_array(&self.context(), &declaration)
                }
                Space::Private | Space::Ahead => (fragments.contains(&array))
                    .then(|| self.dialect.fragment_array(&declaration))
                    .flatten()
                    .unwrap_or_else(|| private_array(&declaration)),
            });
        }
        for line in lines {
            self.statement(&line);
        }
    }

    /// Writes one line at the current indentation.
    pub fn statement(&mut self, line: &str) {
        if self.marks.last().is_none_or(|(_, span)| *span != self.span) {
            self.marks.push((self.out.len(), self.span));
        }
        wrap(line, self.indent, &mut self.out);
    }

    /// The memory that a place is in.
    pub fn memory(&self, place: iron_ir::Place) -> Memory {
        match place {
            iron_ir::Place::Tensor(param) | iron_ir::Place::Flat(param) => {
                let access = self.kernel.tensor(param).map(|t| t.access);
                Memory::Global(access.unwrap_or(iron_ir::kernel::Access::Read))
            }
            iron_ir::Place::Array(array) => match self.kernel.arrays[array].space {
                Space::Shared => Memory::Shared,
                Space::Private | Space::Ahead => Memory::Private,
            },
        }
    }
}

/// Columns that a line should not pass.
const WIDTH: usize = 100;

/// Writes a line; a long one has the arguments of its longest call on lines of their own.
pub(super) fn wrap(line: &str, indent: usize, out: &mut String) {
    let pad = "    ".repeat(indent);
    let is_head = line.ends_with('{') || line.starts_with("if (");
    let list = if pad.len() + line.len() > WIDTH && !is_head {
        longest_list(line)
    } else {
        None
    };
    let Some((open, close)) = list else {
        out.push_str(&pad);
        out.push_str(line);
        out.push('\n');
        return;
    };
    out.push_str(&pad);
    out.push_str(&line[..=open]);
    out.push('\n');
    let arguments = split_list(&line[open + 1..close]);
    let count = arguments.len();
    for (n, argument) in arguments.into_iter().enumerate() {
        let comma = if n + 1 < count { "," } else { "" };
        wrap(&format!("{argument}{comma}"), indent + 1, out);
    }
    out.push_str(&pad);
    out.push_str(&line[close..]);
    out.push('\n');
}

/// Every line of a text wrapped at its own indentation.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let inner = line.trim_start();
        let is_comment = inner.starts_with("//");
        if is_comment || inner.is_empty() {
            out.push_str(line);
            out.push('\n');
        } else {
            wrap(inner, (line.len() - inner.len()) / 4, &mut out);
        }
    }
    out
}

/// The parentheses of the longest outermost argument list with a comma in it.
fn longest_list(line: &str) -> Option<(usize, usize)> {
    let mut open = Vec::new();
    let mut best: Option<(usize, usize)> = None;
    for (at, c) in line.char_indices() {
        match c {
            '(' => open.push(at),
            ')' => {
                let start = open.pop()?;
                let is_longer = best.is_none_or(|(a, b)| at - start > b - a);
                let is_call = line[..start]
                    .ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '>');
                let is_list = split_list(&line[start + 1..at]).len() > 1 || at - start > 40;
                if is_longer && is_call && is_list {
                    best = Some((start, at));
                }
            }
            _ => {}
        }
    }
    best
}

/// The arguments of a list.
fn split_list(list: &str) -> Vec<&str> {
    let mut depth = 0i32;
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, c) in list.char_indices() {
        match c {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(list[start..].trim());
    parts
}

fn private_array(declaration: &ArrayDeclaration<'_>) -> String {
    let align = match declaration.align {
        0 => String::new(),
        n => format!("alignas({n}) "),
    };
    format!(
        "{align}{} {}[{}];",
        declaration.ty, declaration.name, declaration.len
    )
}
