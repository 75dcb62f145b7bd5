//! Expands `#[test_kernel]` and `#[bench_kernel]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Ident, ItemFn, Path};

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
    let function: ItemFn = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let error = error.to_compile_error();
            return quote!(#item #error);
        }
    };
    let path: Path = match syn::parse2(attribute) {
        Ok(path) => path,
        Err(_) => {
            let error = syn::Error::new(
                proc_macro2::Span::call_site(),
                "name the kernel: `#[test_kernel(rms_norm)]`",
            )
            .to_compile_error();
            return quote!(#item #error);
        }
    };
    let name = &function.sig.ident;
    let text = name.to_string();
    let kernel = path
        .segments
        .last()
        .map(|s| s.ident.to_string())
        .unwrap_or_default();
    let line = name.span().start().line as u32;
    let entry = Ident::new(
        match kind {
            Kind::Test => "TestEntry",
            Kind::Bench => "BenchEntry",
        },
        proc_macro2::Span::call_site(),
    );
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
