//! What the encoder collects beside the tree: tables of types, callees and constants, slots,
//! hoisted items and errors.

use std::collections::HashMap;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{Attribute, Item, ItemFn, Path, Signature, Type};

use crate::tree::{At, Function, Tree, Ty};

/// One function being encoded.
#[derive(Default)]
pub struct Unit {
    errors: Vec<syn::Error>,
    scopes: Vec<Vec<String>>,
    /// With the places in the author's body that they stand for, where rustc reports what their
    /// types lack.
    slots: Vec<Ident>,
    types: Vec<TokenStream>,
    type_index: HashMap<String, u32>,
    callees: Vec<TokenStream>,
    consts: Vec<TokenStream>,
    const_index: HashMap<String, u32>,
    /// How many blocks are open.
    pub open_blocks: usize,
    /// The name of the device function being encoded.
    pub device_fn: Option<Ident>,
    /// `const` items of the body, which the tables may name too.
    pub items: Vec<Item>,
}

/// The place of a token.
pub fn at(span: Span) -> At {
    let start = span.start();
    At {
        line: start.line as u32,
        column: start.column as u32 + 1,
    }
}

/// The primitive types of the language.
pub const PRIMITIVES: &[&str] = &[
    "bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "usize", "f32", "f64",
];

impl Unit {
    /// Records an error at a token.
    pub fn error(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.errors.push(syn::Error::new_spanned(tokens, message));
    }

    /// Records an error.
    pub fn push_error(&mut self, error: syn::Error) {
        self.errors.push(error);
    }

    /// Whether nothing was refused so far.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// How many things were refused so far.
    pub fn refused(&self) -> usize {
        self.errors.len()
    }

    /// Refuses `async`, `unsafe`, `extern` and variadic functions; `what` names the function.
    pub fn check_qualifiers(&mut self, signature: &Signature, what: &str) {
        let unsafe_token = match &signature.safety {
            syn::Safety::Unsafe(token) => Some(token.to_token_stream()),
            _ => None,
        };
        for (token, word) in [
            (signature.asyncness.map(|t| t.to_token_stream()), "async"),
            (unsafe_token, "unsafe"),
            (
                signature.abi.as_ref().map(|t| t.to_token_stream()),
                "extern",
            ),
            (signature.constness.map(|t| t.to_token_stream()), "const"),
        ] {
            if let Some(token) = token {
                self.error(token, format!("{what} is not `{word}`; remove the word"));
            }
        }
    }

    /// Refuses attributes inside of a function: what they do to the Rust text, its device code
    /// would not do.
    pub fn check_attributes(&mut self, function: &ItemFn) {
        struct Finder<'a>(&'a mut Unit);
        impl<'ast> Visit<'ast> for Finder<'_> {
            fn visit_attribute(&mut self, attribute: &'ast Attribute) {
                const LINTS: [&str; 6] = ["allow", "expect", "warn", "deny", "forbid", "doc"];
                let path = attribute.path();
                if !LINTS.iter().any(|lint| path.is_ident(lint)) {
                    let name = path.to_token_stream().to_string().replace(' ', "");
                    self.0.error(
                        attribute,
                        format!(
                            "`#[{name}]` inside of a kernel would change its Rust text and not its \
                             device code; put it on the whole function, or branch on a `const`"
                        ),
                    );
                }
            }
        }
        let mut finder = Finder(self);
        finder.visit_signature(&function.sig);
        finder.visit_block(&function.block);
    }

    /// The errors as `compile_error!`s.
    pub fn compile_errors(&self) -> TokenStream {
        self.errors
            .iter()
            .map(syn::Error::to_compile_error)
            .collect()
    }

    /// Runs `inside` in a new scope of names.
    pub fn scoped<R>(&mut self, inside: impl FnOnce(&mut Self) -> R) -> R {
        self.scopes.push(Vec::new());
        let result = inside(self);
        self.scopes.pop();
        result
    }

    /// Declares a local name.
    pub fn declare(&mut self, name: &Ident) {
        if self.scopes.is_empty() {
            self.scopes.push(Vec::new());
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(name.to_string());
        }
    }

    /// Whether a name is a local, a parameter or a dimension.
    pub fn is_local(&self, name: &str) -> bool {
        self.scopes.iter().flatten().any(|known| known == name)
    }

    /// A new slot: its name in the expansion and its entry in the table of types.
    pub fn slot(&mut self, place: Span) -> (Ident, Ty) {
        let name = self.bare_slot(place);
        let index = self.types.len() as u32;
        self.types.push(quote!(#name.shape()));
        (name, Ty::Entry { index })
    }

    /// A new slot that is no type of a value.
    pub fn bare_slot(&mut self, place: Span) -> Ident {
        let name = format!("__slot{}", self.slots.len());
        let name = Ident::new(&name, place.resolved_at(Span::mixed_site()));
        self.slots.push(name.clone());
        name
    }

    /// The type that the author wrote.
    pub fn ty(&mut self, ty: &Type) -> Ty {
        if let Type::Path(path) = ty
            && let Some(name) = path.path.get_ident().map(Ident::to_string)
            && PRIMITIVES.contains(&name.as_str())
        {
            return Ty::Known { name };
        }
        if contains_infer(ty) {
            self.error(
                ty,
                "write the type: the builder does not see what `_` stands for",
            );
        }
        let key = ty.to_token_stream().to_string();
        if let Some(&index) = self.type_index.get(&key) {
            return Ty::Entry { index };
        }
        let index = self.types.len() as u32;
        let span = ty.span();
        self.types
            .push(quote_spanned!(span=> <#ty as ::iron_ir::build::KernelType>::SHAPE));
        self.type_index.insert(key, index);
        Ty::Entry { index }
    }

    /// A constant that rustc evaluates.
    pub fn constant(&mut self, expression: TokenStream) -> u32 {
        let key = expression.to_string();
        if let Some(&index) = self.const_index.get(&key) {
            return index;
        }
        let index = self.consts.len() as u32;
        self.consts.push(expression);
        self.const_index.insert(key, index);
        index
    }

    /// A device function that a slot instantiates.
    pub fn callee(&mut self, path: &Path, slot: &Ident) -> u32 {
        let mut path = path.clone();
        if let Some(last) = path.segments.last_mut() {
            last.arguments = syn::PathArguments::None;
        }
        let span = path.span();
        self.callees
            .push(quote_spanned!(span=> #path::entry(#slot)));
        self.callees.len() as u32 - 1
    }

    /// `let s0 = Slot::new(); …`, one a slot.
    pub fn slot_declarations(&self) -> TokenStream {
        let declare = |name: &Ident| {
            let span = name.span();
            quote_spanned!(span=> let #name = ::iron_ir::build::Slot::new();)
        };
        self.slots.iter().map(declare).collect()
    }

    /// Whether the typed copy must be checked together with the tables.
    pub fn has_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The expression of type `Unit`: the tree and the tables.
    pub fn describe(&self, function: &Function) -> TokenStream {
        let mut bytes = Vec::new();
        function.write(&mut bytes);
        let bytes = proc_macro2::Literal::byte_string(&bytes);
        let Unit {
            types,
            callees,
            consts,
            ..
        } = self;
        // A constant of a type that kernels cannot hold is reported where the author wrote it.
        let consts = consts.iter().map(|constant| {
            let span = constant
                .clone()
                .into_iter()
                .next()
                .map_or(Span::call_site(), |t| t.span());
            quote_spanned!(span=> &{ #constant })
        });
        let name = &function.name;
        quote! {
            {
                static SOURCE: ::iron_ir::build::Source = ::iron_ir::build::Source {
                    name: #name,
                    file: ::core::file!(),
                    tree: #bytes,
                };
                ::iron_ir::build::Unit::new(
                    &SOURCE,
                    &[#(#types),*],
                    &[#(#callees),*],
                    &[#(#consts),*],
                )
            }
        }
    }
}

/// The function that an attribute stands on; else what to emit instead: the item and one error.
pub fn free_function(item: &TokenStream, attribute: &str) -> Result<ItemFn, TokenStream> {
    let error = match syn::parse2(item.clone()) {
        Ok(Item::Fn(function)) => return Ok(function),
        Ok(other) => syn::Error::new(
            first_token(other.to_token_stream()),
            format!("`#[{attribute}]` stands on a function with a body"),
        ),
        Err(error) => error,
    };
    let error = error.to_compile_error();
    Err(quote!(#item #error))
}

/// The place of an item's first word that is no attribute.
fn first_token(tokens: TokenStream) -> Span {
    tokens
        .into_iter()
        .find_map(|token| match token {
            proc_macro2::TokenTree::Ident(ident) => Some(ident.span()),
            _ => None,
        })
        .unwrap_or_else(Span::call_site)
}

fn contains_infer(ty: &Type) -> bool {
    struct Finder(bool);
    impl<'ast> syn::visit::Visit<'ast> for Finder {
        fn visit_type_infer(&mut self, _: &'ast syn::TypeInfer) {
            self.0 = true;
        }
    }
    let mut finder = Finder(false);
    syn::visit::Visit::visit_type(&mut finder, ty);
    finder.0
}
