//! What crosses crates: semantics tables, differential tests, end-to-end goldens.
//!
//! | module | what it has |
//! |---|---|
//! | [`backends`] | the devices that a test runs on, and which are missing |
//! | [`mod@prepare`] | many kernels compiled at once |
//! | [`rows`] | the rows of `semantics/*.txt`: reading them |
//! | [`grid`] | generated rows over edge values, with answers by plain Rust |
//! | [`batch`] | rows of one operation and type as kernels: constants, loaded, in vectors |
//! | [`together`] | the rows of collectives, subgroup operations and atomics |
//! | [`flush`] | the answers of devices that turn subnormal `f32` into zero |
//! | [`by_macro`] | the rows' operations as kernels of the kernel language, for `host` |
//! | [`oracle`] | functions in `f64` and the distance in units in the last place |
//! | [`fuzz`] | random well-typed kernels |
//! | [`differential`] | one kernel on every execution, compared bit for bit |
//! | [`reduce`] | a kernel that shows a fault, made smaller |

pub mod backends;
pub mod batch;
pub mod by_macro;
pub mod differential;
pub mod flush;
pub mod fuzz;
pub mod grid;
pub mod oracle;
pub mod prepare;
pub mod reduce;
pub mod rows;
pub mod together;

/// The first instance of a registered kernel, as its author's build makes it.
///
/// # Panics
///
/// Where none is registered under that name, or it does not build.
pub fn built(name: &str) -> iron_ir::Kernel {
    let mut kernels = iron_ir::registry::kernels().into_iter();
    let entry = kernels.find(|k| k.name == name).expect("registered");
    (entry.instances[0].build)().expect("builds")
}
