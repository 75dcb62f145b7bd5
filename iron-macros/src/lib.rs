//! The attribute macros of the kernel language.
//!
//! Each function is expanded twice. The **typed copy** is the author's body, unchanged but for
//! type slots around literals that nobody typed: rustc checks it, and it runs as the `host`
//! execution. The **syntax tree** (`tree`) is a byte string that `iron_ir::build` interprets
//! into IR, with a table of types, callees and constants that the typed copy fills.
//!
//! Whatever cannot be translated is a `compile_error!` at its token; the typed copy is emitted
//! all the same, so that rustc's own errors are shown with it.

use proc_macro::TokenStream;

mod attribute;
mod calls;
mod device;
mod encode;
mod entries;
mod formula;
mod kernel;
mod names;
mod pattern;
mod signature;
#[allow(dead_code, reason = "this crate writes trees, iron-ir reads them")]
mod tree;
mod unit;

/// Turns a function into a GPU kernel, registered with its instances.
///
/// `docs/language.md` of the repository has the attribute's entries and what a body may hold.
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attribute.into(), item.into()).into()
}

/// Makes a function callable from kernels; it is inlined into each.
#[proc_macro_attribute]
pub fn device_fn(attribute: TokenStream, item: TokenStream) -> TokenStream {
    device::expand_function(attribute.into(), item.into()).into()
}

/// Makes a struct of kernel values usable in kernels.
#[proc_macro_attribute]
pub fn device_struct(attribute: TokenStream, item: TokenStream) -> TokenStream {
    device::expand_struct(attribute.into(), item.into()).into()
}

/// Registers a test of a kernel: `#[test_kernel(name)] fn what(t: &mut Cases) { … }`.
#[proc_macro_attribute]
pub fn test_kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    entries::expand(attribute.into(), item.into(), entries::Kind::Test).into()
}

/// Registers a benchmark of a kernel: `#[bench_kernel(name)] fn what(b: &mut Benches) { … }`.
#[proc_macro_attribute]
pub fn bench_kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    entries::expand(attribute.into(), item.into(), entries::Kind::Bench).into()
}
