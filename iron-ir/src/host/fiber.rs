//! The fiber executor: resumes every thread of a workgroup until all wait at one
//! synchronisation point, and reports threads that wait at different ones or have ended.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use corosensei::{Coroutine, CoroutineResult};

use super::context::{GroupContext, SyncPoint, enter, is_active};
use super::stack::FiberStack;
use super::{Fault, Handles, HostArgs, HostLaunch, HostReport};

/// Bytes of a fiber's stack. Pages that no fiber touches cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// Runs the workgroups with these linear indices (x fastest), one after the other. A kernel
/// with grid barriers gets all its workgroups at once and needs every one listed.
///
/// # Safety
/// Each tensor of `launch` describes memory that is valid for reads and writes over the whole
/// view, aligned for its element, and that nobody else accesses while this runs.
pub unsafe fn run(
    launch: &HostLaunch<'_>,
    groups: impl IntoIterator<Item = u64>,
) -> Result<HostReport, Fault> {
    catch_author_panics();
    let mut report = HostReport::default();
    let mut pool = Vec::new();
    if launch.kernel.contract.cooperative {
        let mut live: Vec<Group> = groups
            .into_iter()
            .map(|g| Group::new(launch, g, &mut pool))
            .collect::<Result<_, _>>()?;
        loop {
            let mut at_barrier = 0;
            for group in &mut live {
                if group.advance()? == Progress::GridBarrier {
                    at_barrier += 1;
                }
            }
            if at_barrier == 0 {
                break;
            }
            if at_barrier != live.len() {
                return Err(Fault {
                    message: format!(
                        "divergent grid barrier: {at_barrier} of {} workgroups wait, \
                         the others have ended",
                        live.len()
                    ),
                });
            }
        }
        for group in &live {
            report.merge(&group.context);
        }
    } else {
        for index in groups {
            let mut group = Group::new(launch, index, &mut pool)?;
            if group.advance()? == Progress::GridBarrier {
                return Err(Fault {
                    message: "`grid_barrier` in a kernel that is not declared `cooperative`".into(),
                });
            }
            report.merge(&group.context);
            group.recycle(&mut pool);
        }
    }
    Ok(report)
}

impl HostReport {
    fn merge(&mut self, context: &GroupContext) {
        self.index_out_of_range = self.index_out_of_range.or(context.index_error.get());
    }
}

type Fiber = Coroutine<(), SyncPoint, (), FiberStack>;

struct Group {
    /// Before `context`, so that a suspended fiber unwinds while its context is alive.
    fibers: Vec<Fiber>,
    context: Box<GroupContext>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Ended,
    GridBarrier,
}

impl Group {
    fn new(
        launch: &HostLaunch<'_>,
        index: u64,
        pool: &mut Vec<FiberStack>,
    ) -> Result<Group, Fault> {
        let [x, y, z] = launch.grid.map(u64::from);
        let all = x * y * z;
        if index >= all {
            return Err(Fault {
                message: format!("workgroup {index} was asked for, the grid has {all}"),
            });
        }
        let group = [index % x, index / x % y, index / x / y].map(|i| i as u32);
        let context = Box::new(GroupContext::new(
            launch.grid,
            launch.kernel.contract.workgroup,
            group,
            launch.subgroup_size,
        ));
        let launch: *const HostLaunch<'_> = launch;
        let launch = launch.cast::<HostLaunch<'static>>();
        let context_pointer: *const GroupContext = &*context;
        let mut fibers = Vec::with_capacity(context.threads as usize);
        for thread in 0..context.threads as usize {
            let stack = match pool.pop() {
                Some(stack) => stack,
                None => FiberStack::new(STACK_BYTES, thread).map_err(|e| Fault {
                    message: format!("no memory for the stack of thread {thread}: {e}"),
                })?,
            };
            fibers.push(Fiber::with_stack(stack, move |yielder, ()| {
                // SAFETY: `run` and `Group` keep launch and context alive longer than fibers,
                // which run only inside `advance` and `drop`.
                let (launch, context) = unsafe { (&*launch, &*context_pointer) };
                context.set_yielder(yielder);
                let handles = Handles::default();
                (launch.body)(&mut HostArgs {
                    launch,
                    handles: &handles,
                });
            }));
        }
        Ok(Group { fibers, context })
    }

    /// Runs to the end or to the next grid barrier.
    fn advance(&mut self) -> Result<Progress, Fault> {
        let mut points: Vec<Option<SyncPoint>> = Vec::with_capacity(self.fibers.len());
        loop {
            points.clear();
            for (thread, fiber) in self.fibers.iter_mut().enumerate() {
                if fiber.done() {
                    points.push(None);
                    continue;
                }
                self.context.thread.set(thread as u32);
                let resumed = enter(&self.context, || {
                    catch_unwind(AssertUnwindSafe(|| fiber.resume(())))
                });
                match resumed {
                    Ok(CoroutineResult::Yield(point)) => points.push(Some(point)),
                    Ok(CoroutineResult::Return(())) => points.push(None),
                    Err(payload) => return Err(fault_of(&self.context, payload)),
                }
            }
            let Some(first) = points.iter().flatten().next().copied() else {
                return Ok(Progress::Ended);
            };
            for (thread, point) in points.iter().enumerate() {
                if !point.is_some_and(|p| p.same(&first)) {
                    return Err(self.divergence(&points, &first, thread));
                }
            }
            self.context
                .generation
                .set(self.context.generation.get() + 1);
            if first.whole_grid {
                return Ok(Progress::GridBarrier);
            }
        }
    }

    fn divergence(&self, points: &[Option<SyncPoint>], first: &SyncPoint, thread: usize) -> Fault {
        let describe =
            |p: &SyncPoint| format!("`{}` ({}:{})", p.name, p.site.file(), p.site.line());
        let waiting = points.iter().position(Option::is_some).unwrap_or_default();
        let other = match &points[thread] {
            Some(point) => format!("waits at {}", describe(point)),
            None => "has ended".into(),
        };
        let [x, y, z] = self.context.group;
        Fault {
            message: format!(
                "divergent control flow in group ({x}, {y}, {z}): thread {waiting} waits at {}, \
                 thread {thread} {other}; every thread must reach it",
                describe(first)
            ),
        }
    }

    fn recycle(self, pool: &mut Vec<FiberStack>) {
        // In reverse, so that the next workgroup pops each thread's own stack first.
        for fiber in self.fibers.into_iter().rev() {
            if fiber.done() {
                pool.push(fiber.into_stack());
            }
        }
    }
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn fault_of(context: &GroupContext, payload: Box<dyn std::any::Any + Send>) -> Fault {
    let payload = match payload.downcast::<Fault>() {
        Ok(fault) => return *fault,
        Err(payload) => payload,
    };
    let text = LAST_PANIC.take().or_else(|| {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned())
    });
    let [x, y, z] = context.group;
    Fault {
        message: format!(
            "{}, group ({x}, {y}, {z}), thread {}",
            text.unwrap_or_else(|| "the body panicked".into()),
            context.thread.get()
        ),
    }
}

/// Panics of the author's body (a native overflow, an array index) become faults with their
/// line instead of a message on stderr.
fn catch_author_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !is_active() {
                return previous(info);
            }
            let text = info.payload_as_str().unwrap_or("the body panicked");
            let place = info.location();
            let place = place.map(|l| format!(" ({}:{})", l.file(), l.line()));
            LAST_PANIC.set(Some(format!("{text}{}", place.unwrap_or_default())));
        }));
    });
}

#[cfg(test)]
mod tests;
