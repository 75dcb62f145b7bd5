//! The kernel library: what language models need, each kernel with its contract, its
//! oracle tests and its benches in one file a family.
//!
//! Every kernel is generic over `f32`, `f16` and `bf16` and accumulates in f32.

pub mod affine;
pub mod affine_q8;
pub mod arrivals;
pub mod attention;
mod attention_cases;
pub mod attention_join;
pub mod decode;
pub mod delta;
pub mod dynamic_conv;
pub mod elementwise;
pub mod experts;
pub mod f8_cache;
pub mod f8_table;
pub mod grid;
pub mod grouped_attention;
pub mod heads;
pub mod latent;
pub mod layout;
pub mod matmul;
pub mod matrix_attention;
pub mod moe;
pub mod norm;
pub mod products_ahead;
pub mod proposals;
pub mod quant;
pub mod quant_k;
pub mod quant_product;
pub mod recurrent;
pub mod reduce;
pub mod rope;
mod row_products;
pub mod sampling;
pub mod scan;
pub mod selection;
pub mod top;

/// Keeps this library's registrations in a binary that calls it: a library that nothing refers
/// to is dropped by the linker, and its kernels with it. Returns how many kernels it has.
pub fn link() -> usize {
    iron_ir::registry::kernels()
        .iter()
        .filter(|k| k.module.starts_with("iron_corpus"))
        .count()
}
