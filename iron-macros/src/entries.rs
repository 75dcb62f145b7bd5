//! Expands `#[test_kernel]` and `#[bench_kernel]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Ident, Path};

use crate::unit::free_function;

/// Which registry an entry goes to.
#[derive(Clone, Copy)]
pub enum Kind {
    /// `#[test_kernel]`.
    Test,
    /// `#[bench_kernel]`.
    Bench,
}

/// The expansion of `#[test_kernel(kernel)] fn name(t: &mut Cases) { … }`.
pub fn expand(attribute: TokenStream, item: TokenStream, kind: Kind) -> TokenStream {
    let (attribute_name, entry, argument) = match kind {
        Kind::Test => ("test_kernel", "TestEntry", "Cases"),
        Kind::Bench => ("bench_kernel", "BenchEntry", "Benches"),
    };
    let function = match free_function(&item, attribute_name) {
        Ok(function) => function,
        Err(refusal) => return refusal,
    };
    let path: Path = match syn::parse2(attribute.clone()) {
        Ok(path) => path,
        Err(_) => {
            let message = format!("name one kernel: `#[{attribute_name}(rms_norm)]`");
            let error = match attribute.is_empty() {
                true => syn::Error::new(function.sig.ident.span(), message),
                false => syn::Error::new_spanned(attribute, message),
            }
            .to_compile_error();
            return quote!(#item #error);
        }
    };
    if function.sig.inputs.len() != 1 || !function.sig.generics.params.is_empty() {
        let name = &function.sig.ident;
        let error = syn::Error::new_spanned(
            name,
            format!("`#[{attribute_name}]` takes a function of one argument: `fn {name}(t: &mut {argument})`"),
        )
        .to_compile_error();
        return quote!(#item #error);
    }
    let name = &function.sig.ident;
    let text = name.to_string();
    let kernel = path
        .segments
        .last()
        .map(|s| s.ident.to_string())
        .unwrap_or_default();
    let line = name.span().start().line as u32;
    let entry = Ident::new(entry, proc_macro2::Span::call_site());
    quote! {
        #function
        const _: () = {
            // The kernel exists, and its launcher says so.
            #[allow(unused_imports, reason = "only its existence matters")]
            use #path::Args as _;
            ::iron_ir::inventory::submit! {
                ::iron_ir::testing::#entry {
                    name: #text,
                    kernel: #kernel,
                    module: ::core::module_path!(),
                    file: ::core::file!(),
                    line: #line,
                    build: #name,
                }
            }
        };
    }
}
