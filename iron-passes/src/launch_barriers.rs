//! Dependent launches: takes the licence and its barriers out where launches run one after the
//! other, or where the kernel is not declared `dependent`.

use iron_ir::op::BarrierScope;
use iron_ir::{Block, Kernel, Stmt};

use crate::{Legal, PassError};

/// See the module doc.
pub fn launch_barriers(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    if legal.has_dependent_launch && kernel.contract.dependent {
        return Ok(());
    }
    kernel.contract.dependent = false;
    let mut body = std::mem::take(&mut kernel.body);
    drop_barriers(&mut body);
    kernel.body = body;
    Ok(())
}

fn drop_barriers(block: &mut Block) {
    let is_launch = |stmt: &Stmt| matches!(stmt, Stmt::Barrier(BarrierScope::Launch, _));
    block.0.retain(|(stmt, _)| !is_launch(stmt));
    for (stmt, _) in &mut block.0 {
        stmt.blocks_mut().into_iter().for_each(drop_barriers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iron_ir::op::BarrierMemory;
    use iron_ir::parse::parse;

    #[test]
    fn barriers_between_launches_stay_only_where_launches_overlap() {
        let barrier = || {
            (
                Stmt::Barrier(BarrierScope::Launch, BarrierMemory::SharedAndGlobal),
                Default::default(),
            )
        };
        for (has, dependent, left) in [(true, true, 1), (true, false, 0), (false, true, 0)] {
            let mut kernel = parse(KERNEL).expect("parses");
            kernel.contract.dependent = dependent;
            kernel.body.0.push(barrier());
            let legal = Legal {
                has_dependent_launch: has,
                ..Legal::PORTABLE
            };
            launch_barriers(&mut kernel, &legal).expect("runs");
            let found = kernel.body.0.iter();
            let found = found.filter(|(s, _)| matches!(s, Stmt::Barrier(BarrierScope::Launch, _)));
            assert_eq!(found.count(), left);
            assert_eq!(kernel.contract.dependent, has && dependent);
        }
    }

    const KERNEL: &str = "kernel @k grid(1, 1, 1) workgroup(1, 1, 1) {\n}\n";
}
