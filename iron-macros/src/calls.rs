//! Encodes calls: of device functions, closures, functions and methods of the language.

use proc_macro2::{Ident, Span};
use quote::quote_spanned;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Expr, Path, PathArguments, Token};

use crate::encode::own_span;
use crate::names::{self, Literals};
use crate::tree::{self, ExprKind, FieldValue, Ty};
use crate::unit::{PRIMITIVES, Unit, at};

impl Unit {
    pub fn call(&mut self, expression: &mut Expr) -> tree::Expr {
        let place = at(own_span(expression));
        let Expr::Call(call) = expression else {
            unreachable!("the caller matched a call")
        };
        let Expr::Path(callee) = &*call.func else {
            let kind = self.refuse(
                &call.func,
                "only device functions, functions of the language and closures bound by `let` can be called",
            );
            return tree::Expr {
                at: place,
                kind: Box::new(kind),
            };
        };
        let path = callee.path.clone();
        let name = path
            .segments
            .last()
            .map(|s| s.ident.to_string())
            .unwrap_or_default();
        let owner = path
            .segments
            .iter()
            .rev()
            .nth(1)
            .map(|s| s.ident.to_string());
        let kind = if path.get_ident().is_some() && self.is_local(&name) {
            ExprKind::Apply {
                name,
                arguments: self.exprs(&mut call.args),
            }
        } else if let Some(owner) = owner.filter(|owner| is_type_name(owner)) {
            self.associated(&path, &owner, &name, &mut call.args)
        } else if path.segments.len() == 1 && names::find(names::FUNCTIONS, &name).is_some() {
            let kind = self.intrinsic(&path, &name, &mut call.args);
            *call.func = of_the_language(&path);
            kind
        } else if is_type_name(&name) {
            let fields = call
                .args
                .iter_mut()
                .enumerate()
                .map(|(i, value)| FieldValue {
                    name: i.to_string(),
                    value: self.expr(value),
                })
                .collect();
            if matches!(name.as_str(), "Some" | "Ok" | "Err" | "Box") {
                self.error(&path, "`Option`, `Result` and `Box` do not exist in a kernel; use a `bool` or a tuple");
            }
            ExprKind::Struct {
                name,
                fields,
                rest: None,
            }
        } else {
            if path.segments.len() > 1
                && matches!(
                    path.segments[0].ident.to_string().as_str(),
                    "std" | "core" | "alloc"
                )
            {
                self.error(
                    &path,
                    "functions of the standard library do not exist in a kernel; use operators, \
                     methods as in `a.max(b)`, or a `const { … }` block for a constant",
                );
            }
            if self
                .device_fn
                .as_ref()
                .is_some_and(|own| path.is_ident(own))
            {
                self.error(
                    &path,
                    format!("`{name}` calls itself, and kernels have no recursion; write a loop"),
                );
            }
            let slot = self.bare_slot(path.span());
            let index = self.callee(&path, &slot);
            let arguments = self.exprs(&mut call.args);
            // `f::see(slot, f)` returns `f`, with its type parameters tied to the slot.
            let owner = without_inferred(&path);
            let span = path.span();
            let function = quote_spanned!(span=> #owner::see(#slot, #path));
            *call.func = Expr::Verbatim(function);
            ExprKind::Call {
                name,
                callee: index,
                arguments,
            }
        };
        tree::Expr {
            at: place,
            kind: Box::new(kind),
        }
    }

    fn intrinsic(
        &mut self,
        path: &Path,
        name: &str,
        arguments: &mut Punctuated<Expr, Token![,]>,
    ) -> ExprKind {
        let types = self.turbofish(path.segments.last().map(|s| &s.arguments));
        if matches!(name, "shared" | "private" | "shared_tile" | "reg_tile") && types.is_empty() {
            self.error(path, format!("write the element type: `{name}::<f32>(…)`"));
        }
        if matches!(name, "strided" | "grid_strided" | "unroll") {
            self.error(path, format!("`{name}(…)` stands in the head of a `for`"));
        }
        let literals = names::find(names::FUNCTIONS, name).map_or(Literals::Slot, |e| e.literals);
        let arguments = arguments
            .iter_mut()
            .map(|argument| match literals {
                Literals::Beside => self.index(argument),
                Literals::Slot => self.expr(argument),
            })
            .collect();
        ExprKind::Intrinsic {
            name: name.to_string(),
            types,
            arguments,
        }
    }

    fn associated(
        &mut self,
        path: &Path,
        owner: &str,
        name: &str,
        arguments: &mut Punctuated<Expr, Token![,]>,
    ) -> ExprKind {
        if !names::ASSOCIATED.contains(&name) {
            let advice = match owner {
                "Vec" | "String" | "Box" | "Rc" | "Arc" | "HashMap" => {
                    "a kernel has no heap: use a fixed array `[x; N]` or `shared::<T>(N)`"
                        .to_string()
                }
                "f16" | "bf16" | "f32" | "f64" | "T" if matches!(name, "from" | "try_from") => {
                    "write `x as f32` or `x.to::<f16>()`".to_string()
                }
                _ if names::find(names::METHODS, name).is_some() => {
                    format!("write it as a method: `x.{name}(…)`")
                }
                _ => format!(
                    "functions of types are {}; those of your own types are free device functions \
                     here: `#[device_fn]`",
                    names::ASSOCIATED.join(", ")
                ),
            };
            self.error(
                path,
                format!("`{owner}::{name}` is not part of the kernel language; {advice}"),
            );
            return ExprKind::Tuple { items: Vec::new() };
        }
        let mut ty = path.clone();
        ty.segments.pop();
        ty.segments.pop_punct();
        let ty = self.ty(&syn::Type::Path(syn::TypePath {
            attrs: Vec::new(),
            qself: None,
            path: ty,
        }));
        ExprKind::Associated {
            ty,
            name: name.to_string(),
            arguments: self.exprs(arguments),
        }
    }

    pub fn method(&mut self, expression: &mut Expr) -> tree::Expr {
        let place = at(own_span(expression));
        let mut conversion_slot = None;
        let kind = {
            let Expr::MethodCall(call) = expression else {
                unreachable!("the caller matched a call")
            };
            let name = call.method.to_string();
            let Some(entry) = names::find(names::METHODS, &name) else {
                self.unknown_method(&call.method);
                self.expr(&mut call.receiver);
                let kind = ExprKind::Tuple { items: Vec::new() };
                return tree::Expr {
                    at: place,
                    kind: Box::new(kind),
                };
            };
            let receiver = self.expr(&mut call.receiver);
            let arguments = call
                .turbofish
                .as_ref()
                .map(|t| PathArguments::AngleBracketed(t.clone()));
            let mut types = self.turbofish(arguments.as_ref());
            if matches!(name.as_str(), "to" | "bitcast") && types.is_empty() {
                let (slot, ty) = self.slot(call.method.span());
                conversion_slot = Some(slot);
                types.push(ty);
            }
            let arguments = call
                .args
                .iter_mut()
                .map(|argument| match entry.literals {
                    Literals::Beside => self.index(argument),
                    Literals::Slot => self.expr(argument),
                })
                .collect();
            ExprKind::Method {
                receiver,
                name,
                types,
                arguments,
            }
        };
        if let Some(slot) = conversion_slot {
            let span = own_span(expression).resolved_at(Span::mixed_site());
            *expression = Expr::Verbatim(quote_spanned!(span=> #slot.value(#expression)));
        }
        tree::Expr {
            at: place,
            kind: Box::new(kind),
        }
    }

    pub fn unknown_method(&mut self, method: &Ident) {
        let name = method.to_string();
        let advice = match name.as_str() {
            "iter" | "iter_mut" | "into_iter" | "collect" | "fold" | "zip" | "enumerate"
            | "chunks" => "iterators do not exist in a kernel; write `for i in 0..n`".to_string(),
            "push" | "pop" | "insert" | "extend" => {
                "a kernel has no heap: use a fixed array `[x; N]` or `shared::<T>(N)`".to_string()
            }
            "into" | "try_into" | "as_" => "write `x as f32` or `x.to::<f16>()`".to_string(),
            "get" | "get_mut" => "index it: `x[i]`".to_string(),
            "unwrap" | "expect" | "ok" | "map_err" | "unwrap_or" | "unwrap_or_else" => {
                "`Option` and `Result` do not exist in a kernel".to_string()
            }
            "clone" | "to_owned" => "kernel values are copied; remove it".to_string(),
            "sin_cos" => "write `(x.sin(), x.cos())`".to_string(),
            "rem_euclid" => "write `((x % n) + n) % n`".to_string(),
            "rev" => "count up and compute the index: `let i = n - 1 - k;`".to_string(),
            "sqrtf" | "rsqrtf" => "write `sqrt` or `rsqrt`".to_string(),
            "recip" => "write `1.0 / x`".to_string(),
            "log" | "log10" => "use `ln` or `log2`".to_string(),
            "round" => "use `round_ties_even`".to_string(),
            "powi" => "use `powf`, or multiply".to_string(),
            "exp_m1" => "write `x.exp() - 1.0`".to_string(),
            "ln_1p" => "write `(1.0 + x).ln()`".to_string(),
            _ => match nearest(&name) {
                Some(known) => format!("did you mean `{known}`?"),
                None => "methods of your own types are device functions here: `#[device_fn]`"
                    .to_string(),
            },
        };
        self.error(
            method,
            format!("the method `{name}` is not part of the kernel language; {advice}"),
        );
    }

    fn turbofish(&mut self, arguments: Option<&PathArguments>) -> Vec<Ty> {
        let Some(PathArguments::AngleBracketed(arguments)) = arguments else {
            return Vec::new();
        };
        let mut types = Vec::new();
        for argument in &arguments.args {
            match argument {
                syn::GenericArgument::Type(ty) => types.push(self.ty(ty)),
                other => self.error(other, "only types stand here in the kernel language"),
            }
        }
        types
    }

    pub fn macro_call(&mut self, call: &syn::Macro) {
        let name = call
            .path
            .segments
            .last()
            .map(|s| s.ident.to_string())
            .unwrap_or_default();
        let advice = match name.as_str() {
            "vec" => "a kernel has no heap: use a fixed array `[x; N]`",
            "assert" | "debug_assert" | "assert_eq" => {
                "state it in the contract, `requires(…)`, or check an index with `index_in(i, bound)`"
            }
            "println" | "print" | "eprintln" | "dbg" => {
                "write to a tensor instead, or print on the host with a test on the `host` backend"
            }
            "panic" | "unreachable" | "todo" | "unimplemented" => {
                "a kernel cannot panic; give every path a value"
            }
            _ => "write its expansion, or a `#[device_fn]`",
        };
        self.error(
            call,
            format!("macros cannot be called in a kernel; {advice}"),
        );
    }
}

/// A function of the language in the typed copy; rustc refuses another one of that name, which
/// `host` alone would call.
pub fn of_the_language(path: &Path) -> Expr {
    let span = path.span();
    Expr::Verbatim(quote_spanned! {span=>
        ::iron_ir::build::of_the_language(#path, ::iron_ir::prelude::#path)
    })
}

/// `f::<T, _>` as a path to the type of the same name: what is inferred stays away.
fn without_inferred(path: &Path) -> Path {
    let mut path = path.clone();
    if let Some(last) = path.segments.last_mut()
        && let PathArguments::AngleBracketed(arguments) = &mut last.arguments
    {
        let kept = arguments
            .args
            .iter()
            .filter(|a| !matches!(a, syn::GenericArgument::Type(syn::Type::Infer(_))))
            .cloned();
        arguments.args = kept.collect();
    }
    path
}

/// Whether what precedes `::` is a type: `T`, `Vector`, `f32`, or one of the half types, which
/// have no literals but functions.
fn is_type_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        || PRIMITIVES.contains(&name)
        || matches!(name, "f16" | "bf16")
}

/// The method whose name differs least, if one is near.
fn nearest(name: &str) -> Option<&'static str> {
    names::METHODS
        .iter()
        .flat_map(|list| list.iter())
        .map(|entry| (edit_distance(name, entry.name), entry.name))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .map(|(_, known)| known)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(left != *right);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
