//! Encodes patterns.

use proc_macro2::Span;
use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{Expr, FieldPat, Lit, Pat, PatIdent, PatWild, RangeLimits, Token, UnOp};

use crate::tree::{FieldPattern, Pattern};
use crate::unit::{Unit, at};

impl Unit {
    /// A pattern; its names are declared in the innermost scope.
    pub fn pattern(&mut self, pattern: &Pat) -> Pattern {
        match pattern {
            Pat::Ident(name) => {
                if let Some(by_ref) = &name.by_ref {
                    self.error(
                        by_ref,
                        "`ref` is not part of the kernel language; values are copied",
                    );
                }
                if let Some((_, inner)) = &name.subpat {
                    self.error(
                        inner,
                        "`@` patterns are not part of the kernel language; use a guard",
                    );
                }
                let text = name.ident.to_string();
                if is_constant_name(&text) && name.mutability.is_none() && !self.is_local(&text) {
                    let ident = &name.ident;
                    return Pattern::Const {
                        index: self.constant(quote!(#ident)),
                    };
                }
                self.declare(&name.ident);
                Pattern::Name {
                    name: text,
                    mutable: name.mutability.is_some(),
                    at: at(name.ident.span()),
                }
            }
            Pat::Wild(_) => Pattern::Wild {},
            Pat::Type(typed) => self.pattern(&typed.pat),
            Pat::Paren(inner) => self.pattern(&inner.pat),
            Pat::Tuple(tuple) => Pattern::Tuple {
                items: tuple.elems.iter().map(|item| self.pattern(item)).collect(),
            },
            Pat::TupleStruct(tuple) => Pattern::Struct {
                fields: tuple
                    .elems
                    .iter()
                    .enumerate()
                    .map(|(i, item)| FieldPattern {
                        name: i.to_string(),
                        pattern: self.pattern(item),
                    })
                    .collect(),
            },
            Pat::Struct(structure) => Pattern::Struct {
                fields: structure
                    .fields
                    .iter()
                    .map(|field| FieldPattern {
                        name: field.member.to_token_stream().to_string(),
                        pattern: self.pattern(&field.pat),
                    })
                    .collect(),
            },
            Pat::Reference(reference) => self.pattern(&reference.pat),
            Pat::Path(path) => Pattern::Const {
                index: self.constant(path.to_token_stream()),
            },
            Pat::Lit(literal) => self.literal_pattern(&Expr::Lit(literal.clone())),
            Pat::Or(or) => Pattern::Or {
                cases: or.cases.iter().map(|case| self.pattern(case)).collect(),
            },
            Pat::Range(range) => {
                let mut bound = |end: &Option<Box<Expr>>| {
                    end.as_ref().map(|end| Box::new(self.literal_pattern(end)))
                };
                let (start, end) = (bound(&range.start), bound(&range.end));
                Pattern::Range {
                    start,
                    end,
                    inclusive: matches!(range.limits, RangeLimits::Closed(_)),
                }
            }
            Pat::Rest(rest) => {
                self.error(
                    rest,
                    "`..` is not part of kernel patterns; name every element",
                );
                Pattern::Wild {}
            }
            Pat::Slice(slice) => {
                self.error(
                    slice,
                    "slice patterns are not part of the kernel language; index the array",
                );
                Pattern::Wild {}
            }
            other => {
                self.error(
                    other,
                    "this pattern is not part of the kernel language; bind a name, a tuple or \
                     a struct, or match on integers",
                );
                Pattern::Wild {}
            }
        }
    }

    fn literal_pattern(&mut self, expression: &Expr) -> Pattern {
        match expression {
            Expr::Lit(literal) => match &literal.lit {
                // A sign may be part of the literal.
                Lit::Int(int) => {
                    let digits = int.base10_digits();
                    let unsigned = digits.strip_prefix('-');
                    Pattern::Int {
                        digits: unsigned.unwrap_or(digits).to_owned(),
                        negative: unsigned.is_some(),
                    }
                }
                Lit::Bool(value) => Pattern::Bool { value: value.value },
                other => {
                    self.error(other, "kernels match on integers and bool only");
                    Pattern::Wild {}
                }
            },
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => {
                match self.literal_pattern(&unary.expr) {
                    Pattern::Int { digits, .. } => Pattern::Int {
                        digits,
                        negative: true,
                    },
                    other => other,
                }
            }
            Expr::Path(path) => Pattern::Const {
                index: self.constant(path.to_token_stream()),
            },
            Expr::Const(block) => Pattern::Const {
                index: self.constant(block.to_token_stream()),
            },
            other => {
                self.error(
                    other,
                    "a pattern's bound is an integer literal or a constant",
                );
                Pattern::Wild {}
            }
        }
    }
}

/// Writes the names that an arm binds as `name @ _`, which a constant of that name cannot be:
/// without it, the name would be the constant in rustc and a new variable in the IR.
pub fn mark_names(pattern: &mut Pat) {
    struct Marker;
    impl VisitMut for Marker {
        fn visit_pat_ident_mut(&mut self, name: &mut PatIdent) {
            if name.subpat.is_none() && !is_constant_name(&name.ident.to_string()) {
                let span = name.ident.span().resolved_at(Span::mixed_site());
                let wild = Pat::Wild(PatWild {
                    attrs: Vec::new(),
                    underscore_token: Token![_](span),
                });
                name.subpat = Some((Token![@](span), Box::new(wild)));
            }
        }
        fn visit_field_pat_mut(&mut self, field: &mut FieldPat) {
            // `S { x }` has no place for `@ _`; as `S { x: x @ _ }` it has.
            if field.colon_token.is_none() {
                field.colon_token = Some(Token![:](field.member.span()));
            }
            self.visit_pat_mut(&mut field.pat);
        }
        // A guard is an expression.
        fn visit_expr_mut(&mut self, _: &mut Expr) {}
    }
    Marker.visit_pat_mut(pattern);
}

/// `LIMIT`, not `limit`: in a pattern, the first is a constant and the second a new name.
pub fn is_constant_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && !name.contains(|c: char| c.is_ascii_lowercase())
}
