//! Which kernels a step is made of.

use iron_ir::Scalar;
use iron_runtime::{Backend, Device};

/// Rows of one sequence from which a step is a prompt's: tiled products and tiled attention.
pub const PROMPT_ROWS: usize = 16;

/// How the launches of a step are chosen. Routes differ in speed; [`Route::Unfused`] and
/// [`Route::Fused`] give the same bits, [`Route::Rows`] sums in another order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Route {
    /// One thread an output of a product, for processors.
    Rows,
    /// Threads share an output; one kernel an operation.
    Unfused,
    /// As [`Route::Unfused`] with kernels that join several operations, where the model's layers
    /// have them; the others stay as they are.
    Fused,
    /// As [`Route::Fused`], with tiled products for many rows that decode together, where the
    /// device has matrix units. They read the weights once, and sum in another order: a row's
    /// bits depend on how many decode beside it. Never the default.
    Batched,
}

/// Rows that decode together from which [`Route::Batched`] takes tiled products.
pub const BATCHED_ROWS: usize = 8;

impl Route {
    /// Every route.
    pub const ALL: [Route; 4] = [Route::Rows, Route::Unfused, Route::Fused, Route::Batched];

    /// The route that suits a device.
    pub fn of(device: &dyn Device) -> Route {
        match device.backend() {
            Backend::Cpu => Route::Rows,
            Backend::Cuda => Route::Fused,
            _ => Route::Unfused,
        }
    }

    /// Whether layers take fused kernels where there are some.
    pub const fn is_fused(self) -> bool {
        matches!(self, Route::Fused | Route::Batched)
    }

    /// The name on command lines and in receipts.
    pub const fn name(self) -> &'static str {
        match self {
            Route::Rows => "rows",
            Route::Unfused => "unfused",
            Route::Fused => "fused",
            Route::Batched => "batched",
        }
    }

    /// The route of that name.
    pub fn from_name(name: &str) -> Option<Route> {
        Self::ALL.into_iter().find(|route| route.name() == name)
    }

    /// Threads that share an output of a product that reads packed weights.
    pub const fn lanes(self) -> u32 {
        match self {
            Route::Rows => 1,
            Route::Unfused | Route::Fused | Route::Batched => 32,
        }
    }

    /// Threads that share an output of a dense product with rows of `inner` elements. Longer
    /// rows keep more threads busy; measured on an H200.
    pub const fn dense_lanes(self, inner: u64) -> u32 {
        match (self, inner) {
            (Route::Rows, _) => 1,
            (_, 2048..) => 256,
            _ => 128,
        }
    }
}

/// Whether a device has matrix units that the corpus's large tiles use for `dtype`.
pub fn has_tiles(device: &dyn Device, dtype: Scalar) -> bool {
    device.backend() == Backend::Cuda && matches!(dtype, Scalar::F16 | Scalar::BF16)
}

/// The tile of the corpus's `linear` for a product: the larger where it gives every
/// multiprocessor of an H200 one.
pub const fn tile_of(rows: u64, columns: u64) -> u32 {
    if rows.div_ceil(128) * columns.div_ceil(256) >= 132 {
        256
    } else {
        128
    }
}
