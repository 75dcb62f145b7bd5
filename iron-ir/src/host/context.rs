//! What the running fiber knows: its workgroup, its place in it, and the shared memory.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

use corosensei::Yielder;

use super::Fault;
use crate::types::Scalar;

/// A place of the author's source.
pub(crate) type Site = &'static Location<'static>;

thread_local! {
    static CURRENT: Cell<*const GroupContext> = const { Cell::new(std::ptr::null()) };
}

/// Where a fiber waits for the others.
#[derive(Clone, Copy)]
pub(crate) struct SyncPoint {
    /// The function that the author called: `barrier`, `workgroup_sum`.
    pub name: &'static str,
    /// The author's call.
    pub site: Site,
    /// Joins every workgroup of the launch.
    pub whole_grid: bool,
}

impl SyncPoint {
    /// Whether two fibers wait at the same call.
    pub fn same(&self, other: &SyncPoint) -> bool {
        let place = |s: Site| (s.file(), s.line(), s.column());
        self.name == other.name && place(self.site) == place(other.site)
    }
}

/// A shared array or tile: bytes and which elements were written.
pub(crate) struct SharedMemory {
    words: Box<[Cell<u128>]>,
    written: Box<[Cell<bool>]>,
    scalar: Scalar,
}

impl SharedMemory {
    /// Undefined memory for `len` elements of `scalar`.
    pub fn new(scalar: Scalar, len: usize) -> SharedMemory {
        let bytes = len * scalar.bytes() as usize;
        // NaN in every float and -1 in every integer; `bool` must stay a valid value.
        let fill = if scalar == Scalar::Bool { 0 } else { u128::MAX };
        SharedMemory {
            words: vec![Cell::new(fill); bytes.div_ceil(16)].into(),
            written: vec![Cell::new(false); len].into(),
            scalar,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// The element's address; `index` is below [`len`](SharedMemory::len).
    pub fn address(&self, index: usize) -> *mut u8 {
        assert!(index < self.len(), "the caller checks the index");
        let base = self.words.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: `words` holds `len * bytes` bytes and `index < len`.
        unsafe { base.add(index * self.scalar.bytes() as usize) }
    }

    /// Whether the element was written.
    pub fn is_written(&self, index: usize) -> bool {
        self.written[index].get()
    }

    /// Notes a write.
    pub fn mark(&self, index: usize) {
        self.written[index].set(true);
    }
}

type SharedKey = (&'static str, u32, u32, u32);

/// A thread, and the file, line and column that it runs.
type ThreadPlace = (u32, &'static str, u32, u32);

/// One workgroup in flight.
pub(crate) struct GroupContext {
    pub grid: [u32; 3],
    pub workgroup: [u32; 3],
    pub group: [u32; 3],
    pub threads: u32,
    pub subgroup_size: u32,
    /// The fiber that runs.
    pub thread: Cell<u32>,
    /// Rises each time that all fibers have met.
    pub generation: Cell<u64>,
    /// The author's line of the first `index_in` that was out of range.
    pub index_error: Cell<Option<u32>>,
    yielders: RefCell<Vec<*const Yielder<(), SyncPoint>>>,
    operands: RefCell<Vec<(u64, u64)>>,
    results: RefCell<Vec<u64>>,
    done_generation: Cell<u64>,
    shared: RefCell<HashMap<SharedKey, Rc<SharedMemory>>>,
    occurrences: RefCell<HashMap<ThreadPlace, u32>>,
}

impl GroupContext {
    /// A workgroup before its first instruction.
    pub fn new(
        grid: [u32; 3],
        workgroup: [u32; 3],
        group: [u32; 3],
        subgroup_size: u32,
    ) -> GroupContext {
        let threads: u32 = workgroup.iter().product();
        GroupContext {
            grid,
            workgroup,
            group,
            threads,
            subgroup_size,
            thread: Cell::new(0),
            generation: Cell::new(0),
            index_error: Cell::new(None),
            yielders: RefCell::new(vec![std::ptr::null(); threads as usize]),
            operands: RefCell::new(vec![(0, 0); threads as usize]),
            results: RefCell::new(Vec::new()),
            done_generation: Cell::new(0),
            shared: RefCell::new(HashMap::new()),
            occurrences: RefCell::new(HashMap::new()),
        }
    }

    /// Notes how the running fiber suspends itself.
    pub fn set_yielder(&self, yielder: &Yielder<(), SyncPoint>) {
        self.yielders.borrow_mut()[self.thread.get() as usize] = yielder;
    }

    /// Index of the running thread along each axis.
    pub fn local_id(&self) -> [u32; 3] {
        let (index, [x, y, _]) = (self.thread.get(), self.workgroup);
        [index % x, index / x % y, index / x / y]
    }

    fn suspend(&self, point: SyncPoint) {
        let yielder = self.yielders.borrow()[self.thread.get() as usize];
        let thread = self.thread.get();
        // SAFETY: the pointer was set by this fiber when it started, and the yielder lives
        // until the fiber's function ends.
        unsafe { &*yielder }.suspend(point);
        debug_assert_eq!(thread, self.thread.get(), "a fiber resumes as itself");
    }
}

/// Makes `context` the one of fibers resumed by `run`.
pub(crate) fn enter<R>(context: &GroupContext, run: impl FnOnce() -> R) -> R {
    struct Restore(*const GroupContext);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _restore = Restore(CURRENT.replace(context));
    run()
}

/// Whether a fiber runs on this OS thread.
pub(crate) fn is_active() -> bool {
    !CURRENT.get().is_null()
}

/// Calls `f` with the running fiber's workgroup.
pub(crate) fn with<R>(what: &str, site: Site, f: impl FnOnce(&GroupContext) -> R) -> R {
    let context = CURRENT.get();
    if context.is_null() {
        fault(site, format!("`{what}` was called outside a kernel launch"));
    }
    // SAFETY: `enter` set the pointer from a reference that outlives the fibers it resumes.
    f(unsafe { &*context })
}

/// Ends the launch with a fault at the author's line.
#[cold]
pub(crate) fn fault(site: Site, message: String) -> ! {
    let context = CURRENT.get();
    let place = if context.is_null() {
        String::new()
    } else {
        // SAFETY: as in `with`.
        let context = unsafe { &*context };
        let [x, y, z] = context.group;
        format!(", group ({x}, {y}, {z}), thread {}", context.thread.get())
    };
    let message = format!("{message} ({}:{}{place})", site.file(), site.line());
    std::panic::resume_unwind(Box::new(Fault { message }))
}

/// Waits for all threads of the workgroup; then one of them computes every thread's result from
/// every thread's operand and argument, and each gets its own.
pub(crate) fn collective(
    name: &'static str,
    site: Site,
    operand: u64,
    argument: u64,
    compute: impl FnOnce(&GroupContext, &[(u64, u64)]) -> Vec<u64>,
) -> u64 {
    with(name, site, |context| {
        let thread = context.thread.get() as usize;
        context.operands.borrow_mut()[thread] = (operand, argument);
        context.suspend(SyncPoint {
            name,
            site,
            whole_grid: false,
        });
        if context.done_generation.get() != context.generation.get() {
            let results = compute(context, &context.operands.borrow());
            *context.results.borrow_mut() = results;
            context.done_generation.set(context.generation.get());
        }
        context.results.borrow()[thread]
    })
}

/// Waits for all threads of the workgroup; then one of them runs `action`.
pub(crate) fn together(name: &'static str, site: Site, action: impl FnOnce()) {
    with(name, site, |context| {
        context.suspend(SyncPoint {
            name,
            site,
            whole_grid: false,
        });
        if context.done_generation.get() != context.generation.get() {
            action();
            context.done_generation.set(context.generation.get());
        }
    });
}

/// Waits for all threads of the workgroup, or of the launch.
pub(crate) fn wait(name: &'static str, site: Site, whole_grid: bool) {
    with(name, site, |context| {
        context.suspend(SyncPoint {
            name,
            site,
            whole_grid,
        });
    });
}

/// The shared memory that a declaration names: the same for every thread of the workgroup that
/// reaches it for the same time.
pub(crate) fn shared_memory(
    name: &'static str,
    site: Site,
    scalar: Scalar,
    len: usize,
) -> Rc<SharedMemory> {
    with(name, site, |context| {
        let place = (site.file(), site.line(), site.column());
        let occurrence = {
            let mut all = context.occurrences.borrow_mut();
            let n = all
                .entry((context.thread.get(), place.0, place.1, place.2))
                .or_insert(0);
            *n += 1;
            *n
        };
        let memory = context
            .shared
            .borrow_mut()
            .entry((place.0, place.1, place.2, occurrence))
            .or_insert_with(|| Rc::new(SharedMemory::new(scalar, len)))
            .clone();
        if memory.len() != len || memory.scalar != scalar {
            fault(
                site,
                format!(
                    "threads disagree on shared memory: {} elements of {} and {len} of {scalar}",
                    memory.len(),
                    memory.scalar
                ),
            );
        }
        memory
    })
}
