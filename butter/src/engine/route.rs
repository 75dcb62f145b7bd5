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
    /// As [`Route::Fused`], but rows that decode, however many, multiply by dense weights in the
    /// corpus's products of few rows, which read the weights once for up to 64 rows. They sum in
    /// one order for any number of rows, so that a row's bits do not depend on its company; it is
    /// another order than that of the other routes. With activations of 32 bits, for which there
    /// are no such products, it is [`Route::Fused`].
    Batched,
}

impl Route {
    /// Every route.
    pub const ALL: [Route; 4] = [Route::Rows, Route::Unfused, Route::Fused, Route::Batched];

    /// The route that suits a device.
    pub fn of(device: &dyn Device) -> Route {
        match device.backend() {
            Backend::Cpu => Route::Rows,
            Backend::Cuda => Route::Fused,
            // A GPU with room for the kernels: 30% faster there, while a software driver, whose
            // threads do not run together, has nothing of fewer launches.
            Backend::Vulkan
                if device.subgroup_size() >= 32 && device.max_shared_bytes() >= 48 << 10 =>
            {
                Route::Fused
            }
            _ => Route::Unfused,
        }
    }

    /// The route that suits a device for up to `sequences` in company, with activations of `dtype`:
    /// [`Self::Batched`] for several where it has matrix units, the device's own otherwise.
    pub fn of_company(device: &dyn Device, dtype: Scalar, sequences: usize) -> Route {
        if sequences > 1 && has_large_tiles(device, dtype) {
            Route::Batched
        } else {
            Route::of(device)
        }
    }

    /// Whether rows that decode share a reading of dense weights.
    pub const fn shares_weights(self, dtype: Scalar) -> bool {
        matches!(self, Route::Batched) && matches!(dtype, Scalar::F16 | Scalar::BF16)
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

/// Whether a device has matrix units that the corpus's products by tiles use for `dtype`.
pub fn has_tiles(device: &dyn Device, dtype: Scalar) -> bool {
    device.has_matrix_units(dtype)
}

/// Whether a multiprocessor holds two workgroups of the corpus's products whose weights are copied
/// ahead: 200 KB of shared memory, as from compute capability 9.0 on.
pub fn has_ahead(device: &dyn Device) -> bool {
    device.backend() == Backend::Cuda && device.max_shared_bytes() >= 200 << 10
}

/// Whether it also has the shared memory of the corpus's other large tiles: those of attention, of
/// chunks of a prompt and of products of few rows.
pub fn has_large_tiles(device: &dyn Device, dtype: Scalar) -> bool {
    device.backend() == Backend::Cuda && has_tiles(device, dtype)
}

/// The tile of the corpus's `linear` for a product whose shape was not measured (`super::tuned`):
/// the larger where it gives every multiprocessor of an H200 one.
pub const fn tile_of(rows: u64, columns: u64) -> u32 {
    if rows.div_ceil(128) * columns.div_ceil(256) >= 132 {
        256
    } else {
        128
    }
}
