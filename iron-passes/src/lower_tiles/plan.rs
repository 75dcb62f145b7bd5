//! Whether a kernel's tiles fit warpgroup products, and how shared memory is shared out.

use std::collections::{BTreeMap, BTreeSet};

use iron_ir::Scalar;
use iron_ir::entity::{Param, Tile};
use iron_ir::kernel::{Block, Kernel, TensorLayout};
use iron_ir::machine::{PANEL, WARPGROUP};
use iron_ir::op::{BarrierScope, BuiltinOp, Op, Stmt, TileSpace, TileStmt};

use super::fragment::{FRAGMENT_COLUMNS, FRAGMENT_ROWS};
use crate::Legal;
use crate::legal::TileRoute;

/// Stages beyond which a ring hides no more latency.
const MOST_STAGES: u32 = 8;

/// Stages that hide most of the latency.
const ENOUGH_STAGES: u64 = 5;

/// Bytes left for signals and alignment.
const RESERVED_BYTES: u64 = 2048;

/// Most columns of an accumulator of one product.
const MOST_COLUMNS: u32 = 256;

/// Most dimensions of a tensor map.
const MOST_DIMENSIONS: usize = 5;

/// Registers of a producer and of a consumer thread, by consumer warpgroups; `None` where every
/// thread may have the most anyway. They fill the register file of 64 Ki.
fn registers(groups: u32) -> Option<(u32, u32)> {
    match groups {
        2 => Some((40, 232)),
        3 => Some((24, 160)),
        _ => None,
    }
}

/// How a kernel's tiles become warpgroup products.
pub(super) struct Plan {
    /// Warpgroups that multiply.
    pub groups: u32,
    /// Registers of a producer and of a consumer thread.
    pub registers: Option<(u32, u32)>,
    /// Shared tiles that are loaded from tensors, with their stages.
    pub stages: BTreeMap<Tile, u32>,
    /// Shared tiles that threads read or write by ordinary accesses.
    pub ordinary: BTreeSet<Tile>,
    /// Shared tiles that stay in registers: nothing but the rounded copy of a register tile on
    /// the left of products, whose fragments are laid out alike.
    pub held: BTreeSet<Tile>,
    /// Tensors that tiles are loaded from.
    pub sources: BTreeSet<Param>,
    /// Tensors that tiles are loaded from or stored to.
    pub tensors: BTreeSet<Param>,
}

impl Plan {
    /// Threads that multiply.
    pub fn consumers(&self) -> u32 {
        self.groups * WARPGROUP
    }

    /// The plan of a kernel whose tiles fit, on a target that has warpgroup products.
    pub fn of(kernel: &Kernel, legal: &Legal) -> Option<Plan> {
        if legal.tile_route != TileRoute::Warpgroup {
            return None;
        }
        let [threads, 1, 1] = kernel.contract.workgroup else {
            return None;
        };
        let groups = threads / WARPGROUP;
        if !threads.is_multiple_of(WARPGROUP) || !(1..=3).contains(&groups) {
            return None;
        }
        // A role has other threads than the workgroup, so what counts threads is out.
        let counts_threads = kernel.values.values().any(|v| {
            matches!(
                v.op,
                Op::Builtin(BuiltinOp::GlobalId | BuiltinOp::SubgroupCount, _)
            )
        });
        let is_special = kernel.contract.cooperative || !kernel.arrays.is_empty();
        if is_special || counts_threads || kernel.params.len() > 32 {
            return None;
        }
        let mut plan = Plan {
            groups,
            registers: registers(groups),
            stages: BTreeMap::new(),
            ordinary: BTreeSet::new(),
            held: held(kernel),
            sources: BTreeSet::new(),
            tensors: BTreeSet::new(),
        };
        let mut products = 0;
        let mut looped = BTreeSet::new();
        plan.visit(kernel, &kernel.body, false, &mut products, &mut looped)?;
        if products == 0 || !kernel.tiles.iter().all(|(t, _)| plan.fits(kernel, t)) {
            return None;
        }
        // Ordinary accesses wait for the workgroup anyway, so there is little to run ahead for.
        looped.retain(|tile| !plan.ordinary.contains(tile));
        plan.share_out(kernel, legal, &looped)?;
        Some(plan)
    }

    /// Notes what statements do with tiles; `None` where one does what the route lacks.
    fn visit(
        &mut self,
        kernel: &Kernel,
        block: &Block,
        in_loop: bool,
        products: &mut u32,
        looped: &mut BTreeSet<Tile>,
    ) -> Option<()> {
        let shared = |tile: &Tile| kernel.tiles[*tile].space == TileSpace::Shared;
        for (stmt, _) in &block.0 {
            match stmt {
                Stmt::Tile(tile) => match tile {
                    TileStmt::Load {
                        tile,
                        source,
                        transposed,
                        ..
                    } => {
                        let tensor = kernel.tensor(*source)?;
                        let copies = !transposed
                            && tensor.layout == TensorLayout::RowMajor
                            && tensor.scalar == kernel.tiles[*tile].scalar
                            && tensor.shape.len() <= MOST_DIMENSIONS;
                        if !shared(tile) || !copies {
                            return None;
                        }
                        self.stages.insert(*tile, 1);
                        self.tensors.insert(*source);
                        self.sources.insert(*source);
                        if in_loop {
                            looped.insert(*tile);
                        }
                    }
                    TileStmt::Store { tile, target, .. } => {
                        self.ordinary.extend(Some(*tile).filter(shared));
                        self.tensors.insert(*target);
                    }
                    TileStmt::Fill { tile, .. } => {
                        self.ordinary.extend(Some(*tile).filter(shared));
                    }
                    TileStmt::Copy { to, from } => {
                        self.ordinary
                            .extend([*to, *from].into_iter().filter(shared));
                    }
                    TileStmt::Map { to, from, .. } => {
                        let named = from.iter().chain([to]).copied();
                        self.ordinary.extend(named.filter(shared));
                    }
                    TileStmt::Matmul {
                        accumulator, a, b, ..
                    } => {
                        let [a, b, sum] = [a, b, accumulator].map(|t| &kernel.tiles[*t]);
                        let depth = match tile {
                            TileStmt::Matmul {
                                transpose_a: true, ..
                            } => a.rows,
                            _ => a.columns,
                        };
                        let fits = a.scalar == b.scalar
                            && sum.columns <= MOST_COLUMNS
                            && sum.columns > 1
                            && sum.rows > 1
                            && depth.is_multiple_of(16);
                        if !fits {
                            return None;
                        }
                        *products += 1;
                    }
                    // The order of a column's sum is that of its rows, which a fragment
                    // does not keep.
                    TileStmt::ReduceColumns { .. } => return None,
                    TileStmt::ReduceRows { .. } => {}
                },
                Stmt::Let(_) | Stmt::Set(..) | Stmt::CheckIndex { .. } => {}
                // Each thread of either role waits for itself.
                Stmt::Barrier(BarrierScope::Launch, _) => {}
                Stmt::Break | Stmt::Continue => {}
                Stmt::If { .. } | Stmt::For { .. } | Stmt::Loop { .. } => {
                    let in_loop = in_loop || !matches!(stmt, Stmt::If { .. });
                    for nested in stmt.blocks() {
                        self.visit(kernel, nested, in_loop, products, looped)?;
                    }
                }
                Stmt::Store { .. }
                | Stmt::Atomic { .. }
                | Stmt::Barrier(..)
                | Stmt::Subgroup { .. }
                | Stmt::Group { .. }
                | Stmt::Machine(_)
                | Stmt::Roles { .. }
                | Stmt::Return => return None,
            }
        }
        Some(())
    }

    fn fits(&self, kernel: &Kernel, tile: Tile) -> bool {
        let data = &kernel.tiles[tile];
        let space = match self.held.contains(&tile) {
            true => TileSpace::Register,
            false => data.space,
        };
        match space {
            TileSpace::Shared => {
                matches!(data.scalar, Scalar::F16 | Scalar::BF16)
                    && data.columns.is_multiple_of(PANEL)
                    && data.rows.is_multiple_of(8)
                    && (!self.stages.contains_key(&tile) || data.rows <= 256)
            }
            TileSpace::Register => {
                let rows = FRAGMENT_ROWS * self.groups;
                let is_few = self.groups == 1 && data.rows < rows && data.rows.is_multiple_of(8);
                (data.rows == 1 || data.rows.is_multiple_of(rows) || is_few)
                    && (data.columns == 1 || data.columns.is_multiple_of(FRAGMENT_COLUMNS))
            }
        }
    }

    /// As many stages for tiles loaded in loops as fit.
    fn share_out(&mut self, kernel: &Kernel, legal: &Legal, looped: &BTreeSet<Tile>) -> Option<()> {
        let bytes = |tile: Tile| {
            let data = &kernel.tiles[tile];
            u64::from(data.rows) * u64::from(data.columns) * u64::from(data.scalar.bytes())
        };
        let beyond = |tile: Tile| {
            let data = &kernel.tiles[tile];
            u64::from(rows_beyond(data.rows) * PANEL * data.scalar.bytes())
        };
        let is_shared =
            |t: &Tile| kernel.tiles[*t].space == TileSpace::Shared && !self.held.contains(t);
        let shared = || kernel.tiles.handles().filter(is_shared);
        let once = shared().filter(|t| !looped.contains(t)).map(bytes);
        let once: u64 = once.chain(shared().map(beyond)).sum();
        let stage: u64 = looped.iter().copied().map(bytes).sum();
        // Nothing is loaded in a loop, or as many stages as fit.
        let fitting = |limit: u64| {
            let left = limit.checked_sub(RESERVED_BYTES)?.checked_sub(once)?;
            Some(left.checked_div(stage).unwrap_or(1))
        };
        // A single warpgroup leaves room for another workgroup, which multiplies while it waits.
        let halved = fitting(legal.shared_bytes_limit / 2);
        let stages = match halved.filter(|n| self.groups == 1 && *n >= ENOUGH_STAGES) {
            Some(stages) => stages,
            None => fitting(legal.shared_bytes_limit)?,
        };
        let stages = stages.min(u64::from(MOST_STAGES)) as u32;
        if stages == 0 {
            return None;
        }
        for tile in looped {
            self.stages.insert(*tile, stages);
        }
        Some(())
    }
}

/// Rows that a product reads past the end of a tile of few: it takes 64, and the sums that come
/// of what is not the tile's are nobody's.
pub(super) fn rows_beyond(rows: u32) -> u32 {
    FRAGMENT_ROWS.saturating_sub(rows)
}

/// The shared tiles that can stay in registers.
fn held(kernel: &Kernel) -> BTreeSet<Tile> {
    let mut held: BTreeSet<Tile> = kernel
        .tiles
        .iter()
        .filter(|(_, data)| {
            data.space == TileSpace::Shared && matches!(data.scalar, Scalar::F16 | Scalar::BF16)
        })
        .map(|(tile, _)| tile)
        .collect();
    let mut written = BTreeSet::new();
    kernel.body.walk(&mut |stmt, _| {
        let Stmt::Tile(stmt) = stmt else {
            return;
        };
        match stmt {
            TileStmt::Copy { to, from } => {
                held.remove(from);
                if kernel.tiles[*from].space == TileSpace::Register {
                    written.insert(*to);
                } else {
                    held.remove(to);
                }
            }
            TileStmt::Matmul {
                a, b, transpose_a, ..
            } => {
                held.remove(b);
                if *transpose_a {
                    held.remove(a);
                }
            }
            TileStmt::Fill { tile, .. }
            | TileStmt::Load { tile, .. }
            | TileStmt::Store { tile, .. } => {
                held.remove(tile);
            }
            TileStmt::Map { to, from, .. } => {
                for tile in from.iter().chain([to]) {
                    held.remove(tile);
                }
            }
            TileStmt::ReduceRows { to, from, .. } | TileStmt::ReduceColumns { to, from, .. } => {
                held.remove(to);
                held.remove(from);
            }
        }
    });
    held.intersection(&written).copied().collect()
}
