//! The mutants of a source file: places in its text, each with the text that breaks it.

use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, ReturnType, Stmt, Type, UnOp};

/// How a mutant changes the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Form {
    /// Another expression stands in the range.
    Expression,
    /// The statement in the range is left out.
    Statement,
    /// The function ends at once, here, with a value.
    Return,
    /// The arm whose pattern ends here never matches.
    Arm,
}

/// One way to break a file.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Bytes of the text; empty where something is put in.
    pub range: Range<usize>,
    /// What kind of change.
    pub form: Form,
    /// The other expression, or the value.
    pub with: String,
    /// The change in words.
    pub what: String,
    /// From 1.
    pub line: usize,
}

/// Every mutant of a file, in the order of the text. Tests, constants, patterns, types and what
/// stands in macros have none.
pub fn mutants(text: &str) -> Result<Vec<Mutant>, syn::Error> {
    let file = syn::parse_file(text)?;
    let mut finder = Finder {
        text,
        found: Vec::new(),
    };
    finder.visit_file(&file);
    finder
        .found
        .sort_by_key(|m| (m.range.start, std::cmp::Reverse(m.range.end)));
    Ok(finder.found)
}

struct Finder<'t> {
    text: &'t str,
    found: Vec<Mutant>,
}

impl Finder<'_> {
    fn text_of(&self, node: &impl Spanned) -> String {
        self.text[node.span().byte_range()].to_owned()
    }

    fn add(&mut self, span: Span, range: Range<usize>, form: Form, with: String, what: String) {
        let line = span.start().line;
        self.found.push(Mutant {
            range,
            form,
            with,
            what,
            line,
        });
    }

    fn replace(&mut self, node: &impl Spanned, with: String) {
        let short = |text: &str| {
            let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            match one_line.char_indices().nth(60) {
                Some((end, _)) => format!("{}…", &one_line[..end]),
                None => one_line,
            }
        };
        let what = format!("`{}` → `{}`", short(&self.text_of(node)), short(&with));
        let span = node.span();
        self.add(span, span.byte_range(), Form::Expression, with, what);
    }

    /// A condition, which is turned round unless it is a comparison, which has mutants of its own.
    fn condition(&mut self, condition: &Expr) {
        let has_own = matches!(condition, Expr::Binary(_) | Expr::Unary(_) | Expr::Lit(_));
        if !has_own && !has_let(condition) {
            let negated = format!("!({})", self.text_of(condition));
            self.replace(condition, negated);
        }
    }

    /// The values that a function may end with at once.
    fn body(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let values: &[&str] = match &signature.output {
            ReturnType::Default => &[""],
            ReturnType::Type(_, ty) => values_of(ty),
        };
        let at = block.brace_token.span.open().byte_range().end;
        for value in values {
            let what = match *value {
                "" => format!("`{}` does nothing", signature.ident),
                value => format!("`{}` gives `{value}`", signature.ident),
            };
            self.add(
                signature.ident.span(),
                at..at,
                Form::Return,
                (*value).to_owned(),
                what,
            );
        }
    }
}

/// Values of a return type that say little.
fn values_of(ty: &Type) -> &'static [&'static str] {
    let Type::Path(path) = ty else {
        return &[];
    };
    let Some(last) = path.path.segments.last() else {
        return &[];
    };
    match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "Option" => &["None"],
        "Vec" => &["Vec::new()"],
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" | "i128" | "u128" => &["0"],
        "Result" => match &last.arguments {
            syn::PathArguments::AngleBracketed(list) => match list.args.first() {
                Some(syn::GenericArgument::Type(Type::Tuple(t))) if t.elems.is_empty() => {
                    &["Ok(())"]
                }
                _ => &[],
            },
            _ => &[],
        },
        _ => &[],
    }
}

/// A `let` in a condition cannot stand in parentheses.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(b) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

/// Whether an attribute keeps the item out of the library.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("test")
            || (path.is_ident("cfg")
                && matches!(&attribute.meta, syn::Meta::List(list)
                    if list.tokens.to_string().contains("test")))
    })
}

/// The operators that may stand in an operator's place.
fn others(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["<=", ">"],
        BinOp::Le(_) => &["<", ">="],
        BinOp::Gt(_) => &[">=", "<"],
        BinOp::Ge(_) => &[">", "<="],
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["+"],
        BinOp::Div(_) => &["*"],
        BinOp::Rem(_) => &["/"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) => &["&"],
        BinOp::BitXor(_) => &["|"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) => &["+="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::BitAndAssign(_) => &["|="],
        _ => &[],
    }
}

/// A method of the same type that does another thing.
fn other_method(name: &str) -> Option<&'static str> {
    Some(match name {
        "any" => "all",
        "all" => "any",
        "min" => "max",
        "max" => "min",
        "is_some" => "is_none",
        "is_none" => "is_some",
        "is_some_and" => "is_none_or",
        "is_none_or" => "is_some_and",
        "first" => "last",
        "last" => "first",
        "is_ok" => "is_err",
        "is_err" => "is_ok",
        _ => return None,
    })
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) && item.sig.constness.is_none() {
            self.body(&item.sig, &item.block);
            self.visit_block(&item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) && item.sig.constness.is_none() {
            self.body(&item.sig, &item.block);
            self.visit_block(&item.block);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_variant(&mut self, _: &'ast syn::Variant) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, pat: &'ast syn::Pat) {
        if let syn::Pat::Guard(guarded) = pat {
            self.visit_expr(&guarded.guard);
        }
    }
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_angle_bracketed_generic_arguments(
        &mut self,
        _: &'ast syn::AngleBracketedGenericArguments,
    ) {
    }

    fn visit_expr_repeat(&mut self, expr: &'ast syn::ExprRepeat) {
        self.visit_expr(&expr.expr);
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        if !has_let(&expr.left) && !has_let(&expr.right) {
            let (left, right) = (self.text_of(&*expr.left), self.text_of(&*expr.right));
            for op in others(&expr.op) {
                self.replace(expr, format!("{left} {op} {right}"));
            }
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        if matches!(expr.op, UnOp::Not(_)) {
            let inner = self.text_of(&*expr.expr);
            self.replace(expr, inner);
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_lit(&mut self, expr: &'ast syn::ExprLit) {
        match &expr.lit {
            Lit::Int(number) => {
                if let Ok(value) = number.base10_parse::<u128>() {
                    let suffix = number.suffix();
                    self.replace(expr, format!("{}{suffix}", value + 1));
                    if let Some(less) = value.checked_sub(1) {
                        self.replace(expr, format!("{less}{suffix}"));
                    }
                }
            }
            Lit::Bool(value) => self.replace(expr, (!value.value).to_string()),
            _ => {}
        }
    }

    fn visit_expr_method_call(&mut self, expr: &'ast syn::ExprMethodCall) {
        if let Some(other) = other_method(&expr.method.to_string()) {
            let whole = expr.span().byte_range();
            let name = expr.method.span().byte_range();
            let before = &self.text[whole.start..name.start];
            let after = &self.text[name.end..whole.end];
            let with = format!("{before}{other}{after}");
            self.replace(expr, with);
        }
        visit::visit_expr_method_call(self, expr);
    }

    fn visit_expr_macro(&mut self, expr: &'ast syn::ExprMacro) {
        if expr.mac.path.is_ident("matches") {
            let negated = format!("!{}", self.text_of(expr));
            self.replace(expr, negated);
        }
    }

    fn visit_expr_if(&mut self, expr: &'ast syn::ExprIf) {
        self.condition(&expr.cond);
        visit::visit_expr_if(self, expr);
    }

    fn visit_expr_while(&mut self, expr: &'ast syn::ExprWhile) {
        self.condition(&expr.cond);
        visit::visit_expr_while(self, expr);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        // Without an arm for everything else, a match that lacks one does not compile.
        let is_rest = |pat: &syn::Pat| matches!(pat, syn::Pat::Wild(_) | syn::Pat::Ident(_));
        let has_rest = expr.arms.iter().any(|arm| is_rest(&arm.pat));
        for arm in &expr.arms {
            if let syn::Pat::Guard(guarded) = &arm.pat {
                if !has_let(&guarded.guard) {
                    self.replace(&*guarded.guard, "true".into());
                    self.replace(&*guarded.guard, "false".into());
                }
            } else if has_rest && !is_rest(&arm.pat) {
                let at = arm.pat.span().byte_range().end;
                let pattern = self.text_of(&arm.pat);
                let first = pattern.lines().next().unwrap_or_default().to_owned();
                let what = format!("the arm `{first}` never matches");
                self.add(arm.pat.span(), at..at, Form::Arm, String::new(), what);
            }
        }
        visit::visit_expr_match(self, expr);
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = stmt {
            let is_effect = matches!(
                expr,
                Expr::Call(_)
                    | Expr::MethodCall(_)
                    | Expr::Assign(_)
                    | Expr::Return(_)
                    | Expr::Break(_)
                    | Expr::Continue(_)
                    | Expr::Try(_)
                    | Expr::Binary(_)
            );
            if is_effect {
                let text = self.text_of(stmt);
                let first = text.lines().next().unwrap_or_default().to_owned();
                let span = stmt.span();
                let what = format!("`{first}` is left out");
                self.add(
                    span,
                    span.byte_range(),
                    Form::Statement,
                    String::new(),
                    what,
                );
            }
        }
        visit::visit_stmt(self, stmt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_place_is_found_and_tests_and_constants_are_not() {
        let text = "const A: u32 = 1 + 1;
            fn f(x: &[u32]) -> bool {
                g(x);
                if x.is_empty() && matches!(x, [1]) { return false; }
                match x { [a, ..] => *a < 3, _ => true }
            }
            #[cfg(test)] mod tests { fn t() -> bool { 1 < 2 } }";
        let found: Vec<String> = mutants(text)
            .expect("it parses")
            .into_iter()
            .map(|m| m.what)
            .collect();
        for wanted in [
            "`f` gives `true`",
            "`f` gives `false`",
            "`g(x);` is left out",
            "`x.is_empty() && matches!(x, [1])` → `x.is_empty() || matches!(x, [1])`",
            "`matches!(x, [1])` → `!matches!(x, [1])`",
            "`return false;` is left out",
            "`false` → `true`",
            "the arm `[a, ..]` never matches",
            "`*a < 3` → `*a <= 3`",
            "`*a < 3` → `*a > 3`",
            "`3` → `4`",
            "`3` → `2`",
            "`true` → `false`",
        ] {
            assert!(found.iter().any(|f| f == wanted), "{wanted}: {found:#?}");
        }
        assert_eq!(found.len(), 13, "{found:#?}");
    }
}
