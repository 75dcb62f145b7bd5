//! Tiles: blocks of matrices that the whole workgroup works on. Here a tile is plain row-major
//! memory, and each operation is done by one thread once all have arrived.
//!
//! Who holds which element, where it lies and how it gets there is the target's choice. There is
//! no word for stages or asynchronous copies: a tile that a loop loads from a tensor is loaded
//! ahead, turns before its use, where the target can. What makes a kernel fit matrix units
//! (NVIDIA, compute capability 9.0):
//!
//! - tiles of `f16` or `bf16` with columns in multiples of 64, loaded as the tensor lies, and an
//!   accumulator of `f32`;
//! - 128, 256 or 384 threads, and 64 rows of each register tile for every 128 of them;
//! - nothing in the body beside tile operations, control flow and what their places need: no
//!   stores, barriers, collectives or `return`;
//! - a right side of [`matmul`] of at most 256 columns, and no reductions of columns.
//!
//! A tile that is only the rounded copy of a register tile and the left side of products never
//! leaves the registers. Sums of products are f32 with the unit's own rounding, whose error per
//! step is that of a truncated f32 sum; kernels state a bound that covers it.

use std::marker::PhantomData;
use std::panic::Location;
use std::rc::Rc;

use super::arrays::Length;
use super::convert::{Convert, ConvertTarget};
use super::scalar::{Element, Float, Number};
use crate::host::context::{SharedMemory, Site, fault, shared_memory, together};

/// A tile in shared memory, ROWS × COLUMNS, undefined until written.
pub struct SharedTile<T>(Grid<T>);

/// A tile in registers, ROWS × COLUMNS, spread over the workgroup.
pub struct RegTile<T>(Grid<T>);

/// Declares a tile of `rows` × `columns` in shared memory.
#[track_caller]
pub fn shared_tile<T: Number>(rows: impl Length, columns: impl Length) -> SharedTile<T> {
    let site = Location::caller();
    SharedTile(Grid::new(
        "shared_tile",
        site,
        rows.length(),
        columns.length(),
    ))
}

/// Declares a tile of `rows` × `columns` in registers, every element `value`.
#[track_caller]
pub fn reg_tile<T: Number>(rows: impl Length, columns: impl Length, value: T) -> RegTile<T> {
    let site = Location::caller();
    let grid = Grid::new("reg_tile", site, rows.length(), columns.length());
    together("reg_tile", site, || grid.fill(value));
    RegTile(grid)
}

struct Grid<T> {
    memory: Rc<SharedMemory>,
    rows: usize,
    columns: usize,
    element: PhantomData<T>,
}

impl<T: Element> Grid<T> {
    fn new(name: &'static str, site: Site, rows: usize, columns: usize) -> Grid<T> {
        Grid {
            memory: shared_memory(name, site, T::SCALAR, rows * columns),
            rows,
            columns,
            element: PhantomData,
        }
    }

    /// An element; a tile of one row or one column is broadcast.
    fn get(&self, row: usize, column: usize, site: Site) -> T {
        let row = if self.rows == 1 { 0 } else { row };
        let column = if self.columns == 1 { 0 } else { column };
        let index = row * self.columns + column;
        if !self.memory.is_written(index) {
            fault(
                site,
                format!("element ({row}, {column}) of a tile is read before it was written"),
            );
        }
        // SAFETY: in range, written, and threads take turns.
        unsafe { self.memory.address(index).cast::<T>().read() }
    }

    fn set(&self, row: usize, column: usize, value: T) {
        let index = row * self.columns + column;
        self.memory.mark(index);
        // SAFETY: in range, and threads take turns.
        unsafe { self.memory.address(index).cast::<T>().write(value) };
    }

    fn each(&self, mut f: impl FnMut(usize, usize) -> T) {
        for row in 0..self.rows {
            for column in 0..self.columns {
                let value = f(row, column);
                self.set(row, column, value);
            }
        }
    }

    fn fill(&self, value: T) {
        self.each(|_, _| value);
    }

    fn check_shape(&self, expected: [usize; 2], broadcast: bool, what: &str, site: Site) {
        let found = [self.rows, self.columns];
        let fits = |axis: usize| found[axis] == expected[axis] || (broadcast && found[axis] == 1);
        if !fits(0) || !fits(1) {
            fault(
                site,
                format!(
                    "{what} is {} × {}, expected {} × {}",
                    found[0], found[1], expected[0], expected[1]
                ),
            );
        }
    }
}

/// A tile that may be read: [`SharedTile`] or [`RegTile`].
pub trait TileSource {
    /// Element type.
    type Element: Number;
    #[doc(hidden)]
    fn at(&self, row: usize, column: usize, site: Site) -> Self::Element;
    #[doc(hidden)]
    fn extents(&self) -> [usize; 2];
}

/// A tensor of rank `R` that tiles are loaded from: [`super::Tensor`], [`super::StridedTensor`],
/// or a reference to one.
pub trait TileTensor<const R: usize> {
    /// Element type.
    type Element: Element;
    #[doc(hidden)]
    fn extent(&self, axis: usize) -> u32;
    #[doc(hidden)]
    fn read(&self, index: [u32; R], site: Site) -> Self::Element;
}

/// A tensor that tiles are stored to.
pub trait TileTensorMut<const R: usize>: TileTensor<R> {
    #[doc(hidden)]
    fn write(&mut self, index: [u32; R], value: Self::Element, site: Site);
}

macro_rules! through_references {
    ($($reference:ty)*) => { $(
        impl<V: TileTensor<R>, const R: usize> TileTensor<R> for $reference {
            type Element = V::Element;
            fn extent(&self, axis: usize) -> u32 {
                (**self).extent(axis)
            }
            fn read(&self, index: [u32; R], site: Site) -> V::Element {
                (**self).read(index, site)
            }
        }
    )* };
}

through_references!(&V &mut V);

impl<V: TileTensorMut<R>, const R: usize> TileTensorMut<R> for &mut V {
    fn write(&mut self, index: [u32; R], value: V::Element, site: Site) {
        (**self).write(index, value, site);
    }
}

/// Reads the element at `(row, column)` from the corner `origin`, zero outside.
fn load_at<V: TileTensor<R>, const R: usize>(
    source: &V,
    origin: [u32; R],
    row: usize,
    column: usize,
    site: Site,
) -> Option<V::Element> {
    let mut index = origin;
    for (axis, by) in [(R - 2, row), (R - 1, column)] {
        let at = u64::from(origin[axis]) + by as u64;
        if at >= u64::from(source.extent(axis)) {
            return None;
        }
        index[axis] = at as u32;
    }
    Some(source.read(index, site))
}

macro_rules! tiles {
    ($($name:ident)*) => { $(
        impl<T: Number> TileSource for $name<T> {
            type Element = T;
            fn at(&self, row: usize, column: usize, site: Site) -> T {
                self.0.get(row, column, site)
            }
            fn extents(&self) -> [usize; 2] {
                [self.0.rows, self.0.columns]
            }
        }

        impl<T: Number> $name<T> {
            /// Rows.
            pub fn rows(&self) -> u32 {
                self.0.rows as u32
            }
            /// Columns.
            pub fn columns(&self) -> u32 {
                self.0.columns as u32
            }
            /// Every element `value`.
            #[track_caller]
            pub fn fill(&mut self, value: T) {
                together("fill", Location::caller(), || self.0.fill(value));
            }
            /// Reads the block of the last two dimensions whose corner is `index`; elements
            /// outside the tensor are zero.
            #[track_caller]
            pub fn load<V: TileTensor<R>, const R: usize>(&mut self, source: &V, index: [u32; R])
            where
                V::Element: Convert,
            {
                let site = Location::caller();
                together("load", site, || {
                    self.0.each(|row, column| {
                        load_at(source, index, row, column, site).map_or(T::ZERO, |x| x.to())
                    });
                });
            }
            /// As [`load`](Self::load), transposed: element `(r, c)` is the tensor's at
            /// `(index[R - 2] + c, index[R - 1] + r)`.
            #[track_caller]
            pub fn load_transposed<V: TileTensor<R>, const R: usize>(
                &mut self,
                source: &V,
                index: [u32; R],
            ) where
                V::Element: Convert,
            {
                let site = Location::caller();
                together("load_transposed", site, || {
                    self.0.each(|row, column| {
                        load_at(source, index, column, row, site).map_or(T::ZERO, |x| x.to())
                    });
                });
            }
            /// Writes the block whose corner is `index`, rounded to the tensor's type; elements
            /// outside are dropped.
            #[track_caller]
            pub fn store<V: TileTensorMut<R>, const R: usize>(&self, target: &mut V, index: [u32; R])
            where
                V::Element: ConvertTarget,
            {
                let site = Location::caller();
                together("store", site, || {
                    let inside = |axis: usize, by: usize| {
                        let at = u64::from(index[axis]) + by as u64;
                        (at < u64::from(target.extent(axis))).then_some(at as u32)
                    };
                    let mut cells = Vec::new();
                    for row in 0..self.0.rows {
                        for column in 0..self.0.columns {
                            let (r, c) = (inside(R - 2, row), inside(R - 1, column));
                            if let (Some(r), Some(c)) = (r, c) {
                                cells.push((r, c, self.0.get(row, column, site)));
                            }
                        }
                    }
                    for (r, c, value) in cells {
                        let mut at = index;
                        at[R - 2] = r;
                        at[R - 1] = c;
                        target.write(at, value.to(), site);
                    }
                });
            }
            /// Copies a tile of the same shape, rounding to this tile's type.
            #[track_caller]
            pub fn copy_from<S: TileSource>(&mut self, source: &S) {
                let site = Location::caller();
                together("copy_from", site, || {
                    self.0.check_shape(source.extents(), false, "the target tile", site);
                    self.0.each(|row, column| source.at(row, column, site).to());
                });
            }

            /// Each element becomes `f` of it.
            #[track_caller]
            pub fn map(&mut self, f: impl Fn(T) -> T) {
                let site = Location::caller();
                together("map", site, || {
                    self.0.each(|r, c| f(self.0.get(r, c, site)))
                });
            }

            /// Each element becomes `f(element, row, column)`.
            #[track_caller]
            pub fn map_indexed(&mut self, f: impl Fn(T, u32, u32) -> T) {
                let site = Location::caller();
                together("map_indexed", site, || {
                    self.0
                        .each(|r, c| f(self.0.get(r, c, site), r as u32, c as u32));
                });
            }
        }
    )* };
}

tiles!(SharedTile RegTile);

impl<T: Number> RegTile<T> {
    /// Each element becomes `f(element, other's)`; one row or one column is broadcast.
    #[track_caller]
    pub fn map2<U: Number>(&mut self, other: &RegTile<U>, f: impl Fn(T, U) -> T) {
        let site = Location::caller();
        together("map2", site, || {
            other
                .0
                .check_shape(self.extents(), true, "the source tile", site);
            self.0
                .each(|r, c| f(self.0.get(r, c, site), other.0.get(r, c, site)));
        });
    }

    /// Each element becomes `f(element, other's, row, column)`.
    #[track_caller]
    pub fn map2_indexed<U: Number>(&mut self, other: &RegTile<U>, f: impl Fn(T, U, u32, u32) -> T) {
        let site = Location::caller();
        together("map2_indexed", site, || {
            other
                .0
                .check_shape(self.extents(), true, "the source tile", site);
            self.0.each(|r, c| {
                let (x, o) = (self.0.get(r, c, site), other.0.get(r, c, site));
                f(x, o, r as u32, c as u32)
            });
        });
    }

    /// Each element becomes `f(element, p's, q's)`; one row or one column is broadcast.
    #[track_caller]
    pub fn map3<U: Number, W: Number>(
        &mut self,
        p: &RegTile<U>,
        q: &RegTile<W>,
        f: impl Fn(T, U, W) -> T,
    ) {
        let site = Location::caller();
        together("map3", site, || {
            p.0.check_shape(self.extents(), true, "the first source tile", site);
            q.0.check_shape(self.extents(), true, "the second source tile", site);
            self.0.each(|r, c| {
                let x = self.0.get(r, c, site);
                f(x, p.0.get(r, c, site), q.0.get(r, c, site))
            });
        });
    }

    fn reduce(
        &self,
        name: &'static str,
        site: Site,
        from: &RegTile<T>,
        rows: bool,
        combine: impl Fn(T, T) -> T,
    ) {
        together(name, site, || {
            let [m, n] = from.extents();
            let expected = if rows { [m, 1] } else { [1, n] };
            self.0
                .check_shape(expected, false, "the reduced tile", site);
            for i in 0..if rows { m } else { n } {
                let mut line: Vec<T> = if rows {
                    (0..n).map(|c| from.0.get(i, c, site)).collect()
                } else {
                    (0..m).map(|r| from.0.get(r, i, site)).collect()
                };
                let mut distance = 1;
                while distance < line.len() {
                    for k in (0..line.len() - distance).step_by(2 * distance) {
                        line[k] = combine(line[k], line[k + distance]);
                    }
                    distance *= 2;
                }
                let (row, column) = if rows { (i, 0) } else { (0, i) };
                self.0.set(row, column, line[0]);
            }
        });
    }

    /// This tile of ROWS × 1 becomes the greatest of each row of `from`.
    #[track_caller]
    pub fn reduce_rows_max(&mut self, from: &RegTile<T>) {
        self.reduce("reduce_rows_max", Location::caller(), from, true, |a, b| {
            a.max(b)
        });
    }

    /// This tile of ROWS × 1 becomes the sum of each row of `from`.
    #[track_caller]
    pub fn reduce_rows_sum(&mut self, from: &RegTile<T>) {
        self.reduce("reduce_rows_sum", Location::caller(), from, true, T::sum_of);
    }

    /// This tile of 1 × COLUMNS becomes the greatest of each column of `from`.
    #[track_caller]
    pub fn reduce_columns_max(&mut self, from: &RegTile<T>) {
        self.reduce(
            "reduce_columns_max",
            Location::caller(),
            from,
            false,
            |a, b| a.max(b),
        );
    }

    /// This tile of 1 × COLUMNS becomes the sum of each column of `from`.
    #[track_caller]
    pub fn reduce_columns_sum(&mut self, from: &RegTile<T>) {
        self.reduce(
            "reduce_columns_sum",
            Location::caller(),
            from,
            false,
            T::sum_of,
        );
    }
}

fn multiply<T: Float>(
    name: &'static str,
    site: Site,
    accumulator: &mut RegTile<f32>,
    a: &SharedTile<T>,
    b: &SharedTile<T>,
    transpose_a: bool,
    transpose_b: bool,
) {
    together(name, site, || {
        let [m, n] = accumulator.extents();
        let k = if transpose_a { a.0.rows } else { a.0.columns };
        let expected_a = if transpose_a { [k, m] } else { [m, k] };
        let expected_b = if transpose_b { [n, k] } else { [k, n] };
        a.0.check_shape(expected_a, false, "the left tile", site);
        b.0.check_shape(expected_b, false, "the right tile", site);
        let element = |grid: &Grid<T>, transposed: bool, row: usize, column: usize| {
            let (row, column) = if transposed {
                (column, row)
            } else {
                (row, column)
            };
            grid.get(row, column, site).to_f32()
        };
        for row in 0..m {
            for column in 0..n {
                let mut sum = accumulator.0.get(row, column, site);
                for i in 0..k {
                    let x = element(&a.0, transpose_a, row, i);
                    let y = element(&b.0, transpose_b, i, column);
                    sum = x.mul_add(y, sum);
                }
                accumulator.0.set(row, column, sum);
            }
        }
    });
}

/// `accumulator += a · b` in `f32`: M × N, M × K, K × N; one fused multiply-add a step of K.
#[track_caller]
pub fn matmul<T: Float>(accumulator: &mut RegTile<f32>, a: &SharedTile<T>, b: &SharedTile<T>) {
    multiply(
        "matmul",
        Location::caller(),
        accumulator,
        a,
        b,
        false,
        false,
    );
}

/// `accumulator += a · bᵀ` in `f32`: M × N, M × K, N × K.
#[track_caller]
pub fn matmul_nt<T: Float>(accumulator: &mut RegTile<f32>, a: &SharedTile<T>, b: &SharedTile<T>) {
    multiply(
        "matmul_nt",
        Location::caller(),
        accumulator,
        a,
        b,
        false,
        true,
    );
}

/// `accumulator += aᵀ · b` in `f32`: M × N, K × M, K × N.
#[track_caller]
pub fn matmul_tn<T: Float>(accumulator: &mut RegTile<f32>, a: &SharedTile<T>, b: &SharedTile<T>) {
    multiply(
        "matmul_tn",
        Location::caller(),
        accumulator,
        a,
        b,
        true,
        false,
    );
}
