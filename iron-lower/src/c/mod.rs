//! The printer that the three C-family lowerings share.
//!
//! It takes kernels after the passes and writes what a careful person would: the author's
//! names, one expression where a value is used once, `for` loops as `for` loops, early returns
//! on one line. A value is delayed to its use only while nothing that it reads changes and no
//! loop would repeat it, so statements keep the IR's order of effects.

pub(crate) mod analysis;
mod convert;
pub(crate) mod dialect;
pub(crate) mod expr;
pub(crate) mod fragments;
mod header;
pub(crate) mod helpers;
mod literals;
pub(crate) mod names;
pub(crate) mod nvidia_amd;
pub(crate) mod ops;
mod printer;
mod statements;
mod subgroup;
#[cfg(test)]
mod tests;
mod values;
mod vectors;

pub(crate) use printer::{emit, entry_name};
