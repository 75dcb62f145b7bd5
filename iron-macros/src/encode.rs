//! Encodes statements and expressions, and puts slots into the typed copy on the way.

use proc_macro2::Span;
use quote::{ToTokens, quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{BinOp, Expr, Item, Lit, Member, Pat, RangeLimits, Stmt, Token, Type, UnOp};

use crate::calls::of_the_language;
use crate::names;
use crate::pattern::{is_constant_name, mark_names};
use crate::tree::{self, ExprKind, FieldValue, LiteralTy, Ty};
use crate::unit::{PRIMITIVES, Unit, at};

/// How an unsuffixed literal in a position gets its type.
#[derive(Clone)]
enum Want {
    Slot,
    Beside,
    Given(Ty),
}

impl Unit {
    /// A block, in a scope of its own.
    pub fn block(&mut self, block: &mut syn::Block) -> tree::Block {
        self.open_blocks += 1;
        let encoded = self.scoped(|unit| unit.statements(&mut block.stmts));
        self.open_blocks -= 1;
        encoded
    }

    fn statements(&mut self, statements: &mut Vec<Stmt>) -> tree::Block {
        let mut encoded = tree::Block {
            stmts: Vec::new(),
            value: None,
        };
        let count = statements.len();
        let mut hoisted = Vec::new();
        for (index, statement) in statements.iter_mut().enumerate() {
            match statement {
                Stmt::Local(local) => {
                    if let Some(stmt) = self.local(local) {
                        encoded.stmts.push(stmt);
                    }
                }
                Stmt::Expr(expression, semicolon) => {
                    let is_value = semicolon.is_none() && index + 1 == count;
                    let value = self.expr(expression);
                    if is_value {
                        encoded.value = Some(value);
                    } else {
                        encoded.stmts.push(tree::Stmt::Expr { value });
                    }
                }
                Stmt::Item(item @ (Item::Const(_) | Item::Use(_))) => {
                    if self.open_blocks > 1 {
                        self.error(&*item, "move this item to the function's outermost block: the tables of constants know one scope");
                    }
                    self.items.push(item.clone());
                    hoisted.push(index);
                }
                Stmt::Item(item) => {
                    self.error(item, "only `const` and `use` may be declared inside a kernel; move this item out");
                }
                Stmt::Macro(call) => self.macro_call(&call.mac),
            }
        }
        for index in hoisted.into_iter().rev() {
            statements.remove(index);
        }
        encoded
    }

    fn local(&mut self, local: &mut syn::Local) -> Option<tree::Stmt> {
        let at = at(local.let_token.span);
        let Some(init) = &mut local.init else {
            self.error(
                &local.pat,
                "give the variable a value where it is declared: `let x = if … { … } else { … };`",
            );
            self.pattern(&local.pat);
            return None;
        };
        if let Some((token, _)) = &init.diverge {
            self.error(
                token,
                "`let … else` is not part of the kernel language; use `if` or `match`",
            );
        }
        let declared = match &local.pat {
            Pat::Type(typed) => Some(&*typed.ty),
            _ => None,
        };
        if let Some(ty) = declared {
            self.declared_type(ty);
        }
        let value = match declared {
            Some(ty) if is_bare_literal(&init.expr) => {
                let ty = self.ty(ty);
                self.expr_wanted(&mut init.expr, &Want::Given(ty))
            }
            Some(ty) if is_untyped_conversion(&init.expr) => {
                let ty = self.ty(ty);
                self.conversion(&mut init.expr, ty)
            }
            _ => self.expr(&mut init.expr),
        };
        let pattern = self.pattern(&local.pat);
        Some(tree::Stmt::Let { pattern, value, at })
    }

    /// Refuses what no kernel value has, by its name.
    fn declared_type(&mut self, ty: &Type) {
        match ty {
            Type::TraitObject(object) => self.error(
                object,
                "trait objects do not exist in a kernel; bind the closure by `let f = |x| …`, \
                 or pass it to a device function that takes `impl Fn(…) -> …`",
            ),
            Type::Ptr(pointer) => {
                self.error(pointer, "pointers do not exist in a kernel; index a tensor");
            }
            Type::Slice(slice) => {
                self.error(
                    slice,
                    "slices do not exist in a kernel; index the tensor or the array",
                );
            }
            Type::FnPtr(function) => self.error(
                function,
                "function pointers do not exist in a kernel; bind a closure by `let f = |x| …`",
            ),
            Type::Path(path) if path.qself.is_none() => {
                let Some(last) = path.path.segments.last() else {
                    return;
                };
                let advice = match last.ident.to_string().as_str() {
                    "Vec" | "String" | "Box" | "Rc" | "Arc" | "HashMap" | "VecDeque" => {
                        "a kernel has no heap: use a fixed array `[x; N]` or `shared::<T>(N)`"
                    }
                    "Option" | "Result" => "use a `bool` or a tuple",
                    _ => return,
                };
                let name = &last.ident;
                self.error(
                    name,
                    format!("`{name}` does not exist in a kernel; {advice}"),
                );
            }
            Type::Reference(reference) => self.declared_type(&reference.elem),
            Type::Paren(inner) => self.declared_type(&inner.elem),
            _ => {}
        }
    }

    /// `x.to()` under `let y: T`, whose type the declaration gives.
    fn conversion(&mut self, expression: &mut Expr, ty: Ty) -> tree::Expr {
        let at = at(expression.span());
        match expression {
            Expr::MethodCall(call) => {
                let receiver = self.expr(&mut call.receiver);
                let name = call.method.to_string();
                let kind = ExprKind::Method {
                    receiver,
                    name,
                    types: vec![ty],
                    arguments: Vec::new(),
                };
                tree::Expr {
                    at,
                    kind: Box::new(kind),
                }
            }
            other => self.expr(other),
        }
    }

    /// An expression whose literals take slots.
    pub fn expr(&mut self, expression: &mut Expr) -> tree::Expr {
        self.expr_wanted(expression, &Want::Slot)
    }

    fn beside(&mut self, expression: &mut Expr) -> tree::Expr {
        self.expr_wanted(expression, &Want::Beside)
    }

    fn expr_wanted(&mut self, expression: &mut Expr, want: &Want) -> tree::Expr {
        let mut place = at(own_span(expression));
        let kind = match expression {
            Expr::Paren(inner) => return self.expr_wanted(&mut inner.expr, want),
            Expr::Group(inner) => return self.expr_wanted(&mut inner.expr, want),
            Expr::Lit(_) => self.literal(expression, want),
            Expr::Path(path) => match (&path.qself, path.path.get_ident()) {
                (None, Some(name)) if self.is_local(&name.to_string()) => ExprKind::Name {
                    name: name.to_string(),
                },
                (None, Some(name)) if !is_constant_name(&name.to_string()) => {
                    // rustc says that it does not exist, or that it is no kernel's name.
                    let span = name.span().resolved_at(Span::mixed_site());
                    *expression =
                        Expr::Verbatim(quote_spanned!(span=> ::iron_ir::build::named(#name)));
                    ExprKind::Tuple { items: Vec::new() }
                }
                _ => ExprKind::Const {
                    index: self.constant(path.to_token_stream()),
                },
            },
            Expr::Binary(_) => {
                let Expr::Binary(binary) = expression else {
                    unreachable!("matched above")
                };
                place = at(binary.op.span());
                self.binary(binary)
            }
            Expr::Unary(unary) => match unary.op {
                UnOp::Neg(_) => ExprKind::Neg {
                    operand: self.expr_wanted(&mut unary.expr, want),
                },
                UnOp::Not(_) => ExprKind::Not {
                    operand: self.expr_wanted(&mut unary.expr, want),
                },
                UnOp::Deref(_) => ExprKind::Deref {
                    operand: self.expr(&mut unary.expr),
                },
                _ => self.refuse(unary.op, "this operator is not part of the kernel language"),
            },
            Expr::Reference(reference) => ExprKind::Reference {
                mutable: reference.mutability.is_some(),
                operand: self.expr(&mut reference.expr),
            },
            Expr::Cast(cast) => {
                if let Expr::Lit(literal) = &*cast.expr
                    && matches!(literal.lit, Lit::Char(_) | Lit::Byte(_))
                {
                    self.error(
                        literal,
                        "characters do not exist in a kernel; write the number",
                    );
                }
                if let Type::Path(path) = &*cast.ty
                    && let Some(name) = path.path.get_ident().map(ToString::to_string)
                    && matches!(name.as_str(), "f16" | "bf16" | "F8E4M3" | "F8E5M2" | "E8M0")
                {
                    self.error(
                        &cast.ty,
                        format!("`as` knows Rust's own types only; write `x.to::<{name}>()`"),
                    );
                }
                let ty = self.ty(&cast.ty);
                ExprKind::Cast {
                    operand: self.beside(&mut cast.expr),
                    ty,
                }
            }
            Expr::Assign(assign) => {
                let value = self.beside(&mut assign.right);
                ExprKind::Assign {
                    place: self.expr(&mut assign.left),
                    value,
                }
            }
            Expr::Index(index) => {
                let base = self.expr(&mut index.expr);
                ExprKind::Index {
                    base,
                    index: self.index(&mut index.index),
                }
            }
            Expr::Field(field) => ExprKind::Field {
                base: self.expr(&mut field.base),
                name: member_name(&field.member),
            },
            Expr::Tuple(tuple) => ExprKind::Tuple {
                items: self.exprs(&mut tuple.elems),
            },
            Expr::Array(array) => ExprKind::List {
                items: self.exprs(&mut array.elems),
            },
            Expr::Repeat(repeat) => {
                let len = &repeat.len;
                let count = self.constant(quote!({ let __count: usize = #len; __count }));
                ExprKind::Repeat {
                    value: self.expr(&mut repeat.expr),
                    count,
                }
            }
            Expr::Struct(structure) => {
                let name = structure.path.to_token_stream().to_string();
                let mut fields = Vec::new();
                for field in &mut structure.fields {
                    let value = self.expr(&mut field.expr);
                    // A value that was rewritten is no longer the shorthand of `S { x }`.
                    if field.colon_token.is_none() && !matches!(field.expr, Expr::Path(_)) {
                        field.colon_token = Some(Token![:](field.member.span()));
                    }
                    fields.push(FieldValue {
                        name: member_name(&field.member),
                        value,
                    });
                }
                let rest = structure.rest.as_mut().map(|rest| self.expr(rest));
                ExprKind::Struct { name, fields, rest }
            }
            Expr::Block(block) => ExprKind::Block {
                label: block
                    .label
                    .as_ref()
                    .map(|label| label.name.ident.to_string()),
                block: self.block(&mut block.block),
            },
            Expr::If(branch) => {
                if let Expr::Let(condition) = &*branch.cond {
                    let token = condition.let_token;
                    let advice =
                        "`if let` is not part of the kernel language; use `match` on integers";
                    return tree::Expr {
                        at: place,
                        kind: Box::new(self.refuse(token, advice)),
                    };
                }
                ExprKind::If {
                    condition: self.expr(&mut branch.cond),
                    then_block: self.block(&mut branch.then_branch),
                    else_value: branch
                        .else_branch
                        .as_mut()
                        .map(|(_, value)| self.expr(value)),
                }
            }
            Expr::Match(branch) => {
                let scrutinee = self.expr(&mut branch.expr);
                let arms = branch.arms.iter_mut().map(|arm| self.arm(arm)).collect();
                ExprKind::Match { scrutinee, arms }
            }
            Expr::While(repeat) => {
                if let Expr::Let(condition) = &*repeat.cond {
                    let token = condition.let_token;
                    let advice = "`while let` is not part of the kernel language; use `while` with a condition";
                    return tree::Expr {
                        at: place,
                        kind: Box::new(self.refuse(token, advice)),
                    };
                }
                ExprKind::While {
                    label: repeat
                        .label
                        .as_ref()
                        .map(|label| label.name.ident.to_string()),
                    condition: self.expr(&mut repeat.cond),
                    body: self.block(&mut repeat.body),
                }
            }
            Expr::Loop(repeat) => ExprKind::Loop {
                label: repeat
                    .label
                    .as_ref()
                    .map(|label| label.name.ident.to_string()),
                body: self.block(&mut repeat.body),
            },
            Expr::ForLoop(repeat) => {
                let label = repeat
                    .label
                    .as_ref()
                    .map(|label| label.name.ident.to_string());
                let iterator = self.iterator(&mut repeat.expr);
                self.scoped(|unit| ExprKind::For {
                    label,
                    pattern: unit.pattern(&repeat.pat),
                    iterator,
                    body: unit.block(&mut repeat.body),
                })
            }
            Expr::Break(exit) => ExprKind::Break {
                label: exit.label.as_ref().map(|label| label.ident.to_string()),
                value: exit.expr.as_mut().map(|value| self.expr(value)),
            },
            Expr::Continue(exit) => ExprKind::Continue {
                label: exit.label.as_ref().map(|label| label.ident.to_string()),
            },
            Expr::Return(exit) => ExprKind::Return {
                value: exit.expr.as_mut().map(|value| self.expr(value)),
            },
            Expr::Range(range) => self.refuse(
                range,
                "a range stands in the head of a `for`, in `unroll(…)` or before `.step_by(…)`",
            ),
            Expr::Closure(closure) => self.closure(closure),
            Expr::Call(_) => return self.call(expression),
            Expr::MethodCall(_) => return self.method(expression),
            Expr::Const(block) => ExprKind::Const {
                index: self.constant(block.to_token_stream()),
            },
            Expr::Macro(call) => {
                self.macro_call(&call.mac);
                ExprKind::Tuple { items: Vec::new() }
            }
            Expr::Try(token) => self.refuse(
                token.question_token,
                "`?` is not part of the kernel language: a kernel has no `Result`; test with \
                 `if`, and check a data-dependent index with `index_in(i, bound)`",
            ),
            Expr::Let(condition) => self.refuse(
                condition.let_token,
                "`let` in a condition is not part of the kernel language; use `match` on integers",
            ),
            Expr::Unsafe(block) => self.refuse(
                block.unsafe_token,
                "`unsafe` is not part of the kernel language; there is nothing that needs it",
            ),
            Expr::Async(block) => self.refuse(
                block.async_token,
                "`async` is not part of the kernel language",
            ),
            Expr::Await(wait) => self.refuse(
                wait.await_token,
                "`await` is not part of the kernel language; threads meet at `barrier()`",
            ),
            Expr::RawAddr(address) => {
                self.refuse(address, "pointers do not exist in a kernel; index a tensor")
            }
            other => self.refuse(
                other,
                "this expression is not part of the kernel language; see its list of statements \
                 and expressions",
            ),
        };
        tree::Expr {
            at: place,
            kind: Box::new(kind),
        }
    }

    /// What `for` runs over: a range, stepped or unrolled, or a range over threads.
    fn iterator(&mut self, expression: &mut Expr) -> tree::Expr {
        let place = at(own_span(expression));
        let kind = match expression {
            Expr::Paren(inner) => return self.iterator(&mut inner.expr),
            Expr::Group(inner) => return self.iterator(&mut inner.expr),
            Expr::Range(range) => match (&mut range.start, &mut range.end) {
                (Some(start), Some(end)) => {
                    let (start, end) = self.pair(start, end, true);
                    let inclusive = matches!(range.limits, RangeLimits::Closed(_));
                    ExprKind::Range {
                        start,
                        end,
                        inclusive,
                    }
                }
                _ => self.refuse(range, "a range in a kernel has both ends: `0..n`"),
            },
            Expr::MethodCall(call) if call.method == "step_by" && call.args.len() == 1 => {
                let receiver = self.iterator(&mut call.receiver);
                let arguments = call.args.iter_mut().map(|step| self.beside(step)).collect();
                ExprKind::Method {
                    receiver,
                    name: "step_by".into(),
                    types: Vec::new(),
                    arguments,
                }
            }
            Expr::Call(call) => {
                let name = call.func.to_token_stream().to_string();
                if self.is_local(&name) {
                    return self.no_iterator(expression);
                }
                let arguments = match name.as_str() {
                    "unroll" => call
                        .args
                        .iter_mut()
                        .map(|range| self.iterator(range))
                        .collect(),
                    "strided" | "grid_strided" => {
                        call.args.iter_mut().map(|end| self.beside(end)).collect()
                    }
                    _ => {
                        return self.no_iterator(expression);
                    }
                };
                if let Expr::Path(path) = &*call.func {
                    *call.func = of_the_language(&path.path);
                }
                ExprKind::Intrinsic {
                    name,
                    types: Vec::new(),
                    arguments,
                }
            }
            _ => return self.no_iterator(expression),
        };
        tree::Expr {
            at: place,
            kind: Box::new(kind),
        }
    }

    fn no_iterator(&mut self, expression: &mut Expr) -> tree::Expr {
        match &*expression {
            Expr::MethodCall(call)
                if names::find(names::METHODS, &call.method.to_string()).is_none() =>
            {
                self.unknown_method(&call.method);
            }
            other => self.error(
                other,
                "a kernel's `for` runs over `a..b`, `a..=b`, `(a..b).step_by(k)`, `strided(n)`, \
                 `grid_strided(n)` or `unroll(a..b)`; index arrays by such a range",
            ),
        }
        let kind = Box::new(ExprKind::Tuple { items: Vec::new() });
        tree::Expr {
            at: at(own_span(expression)),
            kind,
        }
    }

    pub fn refuse(&mut self, tokens: impl ToTokens, message: &str) -> ExprKind {
        self.error(tokens, message);
        ExprKind::Tuple { items: Vec::new() }
    }

    pub fn exprs(&mut self, list: &mut Punctuated<Expr, Token![,]>) -> Vec<tree::Expr> {
        list.iter_mut().map(|item| self.expr(item)).collect()
    }

    /// Two operands of one type: a bare literal takes the other's type.
    fn pair(
        &mut self,
        lhs: &mut Expr,
        rhs: &mut Expr,
        same_type: bool,
    ) -> (tree::Expr, tree::Expr) {
        match (is_bare_literal(lhs), is_bare_literal(rhs)) {
            (true, false) if same_type => (self.beside(lhs), self.expr(rhs)),
            (_, true) => (self.expr(lhs), self.beside(rhs)),
            _ => (self.expr(lhs), self.expr(rhs)),
        }
    }

    fn binary(&mut self, binary: &mut syn::ExprBinary) -> ExprKind {
        let op = binary.op.to_token_stream().to_string();
        let (lhs, rhs) = (&mut *binary.left, &mut *binary.right);
        match binary.op {
            BinOp::And(_) | BinOp::Or(_) => ExprKind::Lazy {
                is_or: matches!(binary.op, BinOp::Or(_)),
                lhs: self.expr(lhs),
                rhs: self.expr(rhs),
            },
            BinOp::Shl(_) | BinOp::Shr(_) => {
                let (lhs, rhs) = self.pair(lhs, rhs, false);
                ExprKind::Binary { op, lhs, rhs }
            }
            BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_) => {
                let value = self.beside(rhs);
                if matches!(binary.op, BinOp::RemAssign(_)) {
                    integer_only(rhs);
                }
                let op = op.trim_end_matches('=').trim().to_string();
                ExprKind::AssignOp {
                    op,
                    place: self.expr(lhs),
                    value,
                }
            }
            _ => {
                let operands = self.pair(lhs, rhs, true);
                if matches!(binary.op, BinOp::Rem(_)) {
                    integer_only(if is_bare_literal(lhs) { rhs } else { lhs });
                }
                ExprKind::Binary {
                    op,
                    lhs: operands.0,
                    rhs: operands.1,
                }
            }
        }
    }

    fn literal(&mut self, expression: &mut Expr, want: &Want) -> ExprKind {
        let Expr::Lit(literal) = expression else {
            return ExprKind::Tuple { items: Vec::new() };
        };
        let (digits, suffix, is_float) = match &literal.lit {
            Lit::Bool(value) => return ExprKind::Bool { value: value.value },
            Lit::Int(int) => (
                int.base10_digits().to_string(),
                int.suffix().to_string(),
                false,
            ),
            Lit::Float(float) => (
                float.base10_digits().to_string(),
                float.suffix().to_string(),
                true,
            ),
            Lit::Str(_) | Lit::ByteStr(_) | Lit::CStr(_) => {
                return self.refuse(
                    &*literal,
                    "strings do not exist in a kernel; its values are numbers",
                );
            }
            Lit::Char(_) | Lit::Byte(_) => {
                return self.refuse(
                    &*literal,
                    "characters do not exist in a kernel; write the number",
                );
            }
            other => {
                return self.refuse(other, "only numbers and `bool` have literals in a kernel");
            }
        };
        let ty = if !suffix.is_empty() {
            if !PRIMITIVES.contains(&suffix.as_str()) {
                self.error(
                    &*literal,
                    format!("`{suffix}` is no type of kernel literals; integers are at most 64 bits wide"),
                );
            }
            LiteralTy::Given {
                ty: Ty::Known {
                    name: suffix.clone(),
                },
            }
        } else {
            match want {
                Want::Beside => LiteralTy::Beside {},
                Want::Given(ty) => LiteralTy::Given { ty: ty.clone() },
                Want::Slot => {
                    let (slot, ty) = self.slot(literal.span());
                    let span = literal.span().resolved_at(Span::mixed_site());
                    *expression = Expr::Verbatim(quote_spanned!(span=> #slot.literal(#literal)));
                    LiteralTy::Given { ty }
                }
            }
        };
        if is_float || matches!(suffix.as_str(), "f32" | "f64") {
            ExprKind::Float { digits, ty }
        } else {
            ExprKind::Int { digits, ty }
        }
    }

    /// An index: `i`, `[r, c]`; its literals are the builder's to type.
    pub fn index(&mut self, expression: &mut Expr) -> tree::Expr {
        match expression {
            Expr::Array(array) => {
                let at = at(array.bracket_token.span.open());
                let items = array
                    .elems
                    .iter_mut()
                    .map(|item| self.beside(item))
                    .collect();
                tree::Expr {
                    at,
                    kind: Box::new(ExprKind::List { items }),
                }
            }
            Expr::Range(range) => {
                let kind = self.refuse(
                    range,
                    "slices do not exist in a kernel; index one element, or take `x.row(r)`",
                );
                tree::Expr {
                    at: at(Span::call_site()),
                    kind: Box::new(kind),
                }
            }
            other => self.beside(other),
        }
    }

    fn arm(&mut self, arm: &mut syn::Arm) -> tree::Arm {
        self.scoped(|unit| {
            let (pattern, guard) = match &mut arm.pat {
                Pat::Guard(guarded) => (
                    unit.pattern(&guarded.pat),
                    Some(unit.expr(&mut guarded.guard)),
                ),
                pattern => (unit.pattern(pattern), None),
            };
            mark_names(&mut arm.pat);
            tree::Arm {
                pattern,
                guard,
                body: unit.expr(&mut arm.body),
            }
        })
    }

    fn closure(&mut self, closure: &mut syn::ExprClosure) -> ExprKind {
        if let Some(token) = &closure.capture {
            self.error(
                token,
                "remove `move`: a kernel's closures read the variables where they are called",
            );
        }
        if let Some(token) = &closure.asyncness {
            self.error(token, "`async` is not part of the kernel language");
        }
        self.scoped(|unit| ExprKind::Closure {
            parameters: closure
                .inputs
                .iter()
                .map(|input| unit.pattern(input))
                .collect(),
            body: unit.expr(&mut closure.body),
        })
    }
}

/// A number without a suffix, perhaps negated or in parentheses.
pub fn is_bare_literal(expression: &Expr) -> bool {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(int) => int.suffix().is_empty(),
            Lit::Float(float) => float.suffix().is_empty(),
            _ => false,
        },
        Expr::Unary(unary) => !matches!(unary.op, UnOp::Deref(_)) && is_bare_literal(&unary.expr),
        Expr::Paren(inner) => is_bare_literal(&inner.expr),
        Expr::Group(inner) => is_bare_literal(&inner.expr),
        _ => false,
    }
}

fn is_untyped_conversion(expression: &Expr) -> bool {
    matches!(expression, Expr::MethodCall(call)
        if call.turbofish.is_none() && (call.method == "to" || call.method == "bitcast"))
}

/// Wraps an operand of `%` so that rustc refuses floats there.
fn integer_only(operand: &mut Expr) {
    // As an argument, `(a + b)` would draw a warning about its parentheses.
    while let Expr::Paren(inner) = operand {
        *operand = (*inner.expr).clone();
    }
    let span = own_span(operand).resolved_at(Span::mixed_site());
    *operand = Expr::Verbatim(quote_spanned!(span=> ::iron_ir::build::remainder_operand(#operand)));
}

/// The token that an expression is known by: a call's name, a method's name.
pub fn own_span(expression: &Expr) -> Span {
    match expression {
        Expr::MethodCall(call) => call.method.span(),
        Expr::Call(call) => call.func.span(),
        Expr::Index(index) => own_span(&index.expr),
        Expr::Field(field) => own_span(&field.base),
        Expr::Assign(assign) => own_span(&assign.left),
        Expr::Cast(cast) => own_span(&cast.expr),
        other => other.span(),
    }
}

fn member_name(member: &Member) -> String {
    match member {
        Member::Named(name) => name.to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}
