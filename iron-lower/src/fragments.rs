//! What all targets ask of a kernel's fragments ([`iron_ir::machine`]).

use std::collections::HashSet;

use iron_ir::entity::Array;
use iron_ir::kernel::{Kernel, Space};
use iron_ir::op::Stmt;

/// The private arrays that are fragments of sums.
pub(crate) fn sums(kernel: &Kernel) -> HashSet<Array> {
    let mut found = HashSet::new();
    kernel.body.walk(&mut |stmt, _| {
        if let Stmt::Machine(machine) = stmt
            && machine.op.is_of_fragments()
        {
            found.extend(machine.arrays.first());
        }
    });
    found.retain(|array| kernel.arrays[*array].space == Space::Private);
    found
}
