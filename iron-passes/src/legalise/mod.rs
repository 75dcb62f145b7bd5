//! Legalisation of arithmetic and types for a target's profile, IR to IR.
//!
//! In this order: [`half`] (arithmetic on `f16` and `bf16` is `f32` arithmetic rounded once an
//! operation), [`storage`] (conversions of packed and half types, `bool` in memory),
//! [`exchange`] (shuffles of narrow types), [`arithmetic`] (division, shifts, saturating
//! conversions, ordered minima, functions that the target lacks) and [`vectors`] (widths).

mod arithmetic;
mod exchange;
mod formats;
mod half;
mod storage;
#[cfg(test)]
mod tests;
mod vectors;

use iron_ir::Kernel;

use crate::{Legal, PassError};

/// Half arithmetic, storage types, exchanges and arithmetic; see the module doc.
pub fn legalise_arithmetic(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    half::half(kernel, legal);
    storage::storage(kernel, legal);
    exchange::exchange(kernel);
    arithmetic::arithmetic(kernel, legal);
    Ok(())
}

/// Vectors wider than the target's become several; see [`vectors`].
pub fn split_vectors(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    vectors::split(kernel, legal);
    Ok(())
}
