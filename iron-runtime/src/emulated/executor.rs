//! Runs workgroups of a compiled text: each thread is a fiber that runs until it waits for others.
//!
//! A subgroup's lanes run one after the other until each waits or has ended; an exchange is
//! answered when every lane that takes part asks for the same one, at the same line of the text.
//! A barrier opens when every thread of the workgroup waits at the same line. When nothing can
//! go on, the launch ends with a fault that names two threads that disagree: never with a hang.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use corosensei::{Coroutine, CoroutineResult, Yielder};
use iron_ir::host::FiberStack;
use parking_lot::Mutex;

use super::library::Program;

/// Bytes of a fiber's stack beside what private arrays need.
const STACK_BYTES: usize = 256 << 10;
/// What a shuffle gives that reads a lane which takes no part, and what fills shared memory
/// before a workgroup: NaN in every float, -1 in every integer.
const POISON: u64 = u64::MAX;
/// Passes over all threads in which only loops of atomics went on, after which they are taken
/// for endless.
const MOST_STALLS: u32 = 50_000;

/// `Thread` of `core.h`.
#[repr(C)]
struct Thread {
    local_id: [u32; 3],
    local_index: u32,
    subgroup: u32,
    lane: u32,
}

/// `Workgroup` of `core.h`.
#[repr(C)]
struct Workgroup {
    id: [u32; 3],
    count: [u32; 3],
    size: [u32; 3],
    subgroup_size: u32,
    subgroup_count: u32,
    /// Memory for what lanes give each other: for each lane [`EXCHANGE_BYTES`] twice, then for
    /// each two bytes.
    exchange: *mut u64,
}

/// `exchange_bytes` of `core.h`.
const EXCHANGE_BYTES: usize = 128;

/// `State` of `core.h`.
#[repr(C)]
pub(super) struct State {
    executor: *const Desk,
    meet: unsafe extern "C" fn(*const Desk, u32, u32, u64, u32, u64) -> u64,
    pause: unsafe extern "C" fn(*const Desk, u32),
    fault: unsafe extern "C" fn(*const Desk, u32, *const c_char),
    running: *const Thread,
    workgroup: *const Workgroup,
}

/// `Kind` of `core.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Barrier,
    SubgroupBarrier,
    Shuffle,
    Ballot,
}

/// What a fiber asks for when it stops.
#[derive(Clone, Copy)]
enum Request {
    /// To go on.
    Ready,
    /// To go on after others had a turn: it may wait for them in a loop of atomics.
    Pause { line: u32 },
    /// To meet other threads.
    Meet(Meeting),
    /// Never to go on.
    Fault { line: u32, message: *const c_char },
    /// Nothing.
    Ended,
}

#[derive(Clone, Copy)]
struct Meeting {
    kind: Kind,
    line: u32,
    operand: u64,
    argument: u32,
    lanes: u64,
}

impl Meeting {
    fn is_same(&self, other: &Meeting) -> bool {
        (self.kind, self.line, self.lanes) == (other.kind, other.line, other.lanes)
    }
}

/// Where the fibers of a workgroup leave requests and find answers.
struct Desk {
    /// The fiber that runs.
    thread: Cell<usize>,
    yielders: Vec<Cell<*const Yielder<(), ()>>>,
    requests: Vec<Cell<Request>>,
    answers: Vec<Cell<u64>>,
}

impl Desk {
    fn new(threads: usize) -> Desk {
        let cells = |_| Cell::new(Request::Ready);
        Desk {
            thread: Cell::new(0),
            yielders: (0..threads).map(|_| Cell::new(std::ptr::null())).collect(),
            requests: (0..threads).map(cells).collect(),
            answers: (0..threads).map(|_| Cell::new(0)).collect(),
        }
    }

    /// Stops the running fiber with a request.
    fn ask(&self, request: Request) -> u64 {
        let thread = self.thread.get();
        self.requests[thread].set(request);
        // SAFETY: the running fiber set its yielder when it began, and it lives until the fiber
        // ends.
        unsafe { &*self.yielders[thread].get() }.suspend(());
        self.answers[thread].get()
    }
}

unsafe extern "C" fn meet(
    desk: *const Desk,
    kind: u32,
    line: u32,
    operand: u64,
    argument: u32,
    lanes: u64,
) -> u64 {
    // SAFETY: the executor set the pointer to the desk of the group whose fiber calls this.
    let desk = unsafe { &*desk };
    let kind = match kind {
        0 => Kind::Barrier,
        1 => Kind::SubgroupBarrier,
        2 => Kind::Shuffle,
        _ => Kind::Ballot,
    };
    desk.ask(Request::Meet(Meeting {
        kind,
        line,
        operand,
        argument,
        lanes,
    }))
}

unsafe extern "C" fn pause(desk: *const Desk, line: u32) {
    // SAFETY: as for `meet`.
    unsafe { &*desk }.ask(Request::Pause { line });
}

unsafe extern "C" fn fault(desk: *const Desk, line: u32, message: *const c_char) {
    // SAFETY: as for `meet`.
    unsafe { &*desk }.ask(Request::Fault { line, message });
}

/// A launch with its addresses filled in.
pub(super) struct Launch<'a> {
    pub program: &'a Program,
    /// The parameter block.
    pub block: &'a [u64],
    pub grid: [u32; 3],
    pub workgroup: [u32; 3],
    pub subgroup_size: u32,
    /// All workgroups are in flight at once.
    pub cooperative: bool,
    /// Bytes of private arrays of a thread.
    pub private_bytes: usize,
}

/// Runs the workgroups of these linear indices (x fastest). The error says what was wrong, where
/// in the text, and in which workgroup.
///
/// # Safety
/// The block must have the layout of the text's parameters, with addresses of memory that is
/// valid for every access that the text makes, and that nobody else uses meanwhile.
pub(super) unsafe fn run(
    launch: &Launch<'_>,
    groups: impl IntoIterator<Item = u64>,
) -> Result<(), String> {
    let _turn = launch.program.library.turn();
    let threads = threads_of(launch);
    let bytes = STACK_BYTES + 4 * launch.private_bytes;
    let mut stacks = Stacks::take(bytes);
    if !launch.cooperative {
        for index in groups {
            let mut group = Group::new(launch, &threads, index, &mut stacks)?;
            while group.advance()? != Progress::Ended {
                group.stalls = if group.moved { 0 } else { group.stalls + 1 };
                group.check_stalls()?;
            }
            group.recycle(&mut stacks);
        }
        return Ok(());
    }
    let mut live = Vec::new();
    for index in groups {
        live.push(Group::new(launch, &threads, index, &mut stacks)?);
    }
    let mut stalls = 0;
    loop {
        let mut all_ended = true;
        let mut moved = false;
        for group in &mut live {
            let was_ended = group.ended;
            group.exchange_memory();
            let progress = group.advance();
            group.exchange_memory();
            all_ended &= progress? == Progress::Ended;
            moved |= group.ended != was_ended || group.moved;
        }
        if all_ended {
            return Ok(());
        }
        stalls = if moved { 0 } else { stalls + 1 };
        if let Some(group) = live.iter_mut().find(|g| !g.ended) {
            group.stalls = stalls;
            group.check_stalls()?;
        }
    }
}

fn threads_of(launch: &Launch<'_>) -> Vec<Thread> {
    let [x, y, z] = launch.workgroup;
    (0..x * y * z)
        .map(|index| Thread {
            local_id: [index % x, index / x % y, index / x / y],
            local_index: index,
            subgroup: index / launch.subgroup_size,
            lane: index % launch.subgroup_size,
        })
        .collect()
}

type Fiber = Coroutine<(), (), (), FiberStack>;

/// Stacks that no fiber uses, kept from launch to launch.
struct Stacks {
    bytes: usize,
    free: Vec<FiberStack>,
}

static FREE: Mutex<Vec<FiberStack>> = Mutex::new(Vec::new());
/// Stacks kept, one for each thread of the largest workgroup.
const MOST_FREE: usize = 1024;

impl Stacks {
    fn take(bytes: usize) -> Stacks {
        let free = match bytes {
            STACK_BYTES => std::mem::take(&mut *FREE.lock()),
            _ => Vec::new(),
        };
        Stacks { bytes, free }
    }

    fn get(&mut self, thread: usize) -> Result<FiberStack, String> {
        match self.free.pop() {
            Some(stack) => Ok(stack),
            None => FiberStack::new(self.bytes, thread)
                .map_err(|e| format!("no memory for the stack of thread {thread}: {e}")),
        }
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        if self.bytes == STACK_BYTES {
            let mut free = FREE.lock();
            free.append(&mut self.free);
            free.truncate(MOST_FREE);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Ended,
    /// Some threads loop over atomics, the others wait.
    Paused,
}

/// A workgroup in flight.
struct Group<'a> {
    launch: &'a Launch<'a>,
    threads: &'a [Thread],
    desk: Box<Desk>,
    workgroup: Box<Workgroup>,
    /// What [`Workgroup::exchange`] points to.
    #[expect(dead_code, reason = "kept alive for the fibers")]
    exchange: Vec<u64>,
    fibers: Vec<Fiber>,
    /// Its shared memory while another group of a cooperative launch runs.
    memory: Vec<u8>,
    ended: bool,
    /// A thread did more than to loop over atomics in the last call of `advance`.
    moved: bool,
    stalls: u32,
}

impl<'a> Group<'a> {
    fn new(
        launch: &'a Launch<'a>,
        threads: &'a [Thread],
        index: u64,
        stacks: &mut Stacks,
    ) -> Result<Group<'a>, String> {
        let [x, y, z] = launch.grid.map(u64::from);
        if index >= x * y * z {
            return Err(format!(
                "workgroup {index} was asked for, the grid has {}",
                x * y * z
            ));
        }
        let count = threads.len();
        let desk = Box::new(Desk::new(count));
        let subgroup_count = (count as u32).div_ceil(launch.subgroup_size);
        let lanes = (subgroup_count * launch.subgroup_size) as usize;
        let mut exchange = vec![0u64; (lanes * (2 * EXCHANGE_BYTES + 2)).div_ceil(8)];
        let workgroup = Box::new(Workgroup {
            id: [index % x, index / x % y, index / x / y].map(|i| i as u32),
            count: launch.grid,
            size: launch.workgroup,
            subgroup_size: launch.subgroup_size,
            subgroup_count,
            exchange: exchange.as_mut_ptr(),
        });
        let mut fibers = Vec::with_capacity(count);
        let (entry, block) = (launch.program.entry, launch.block.as_ptr().cast::<u8>());
        let desk_pointer: *const Desk = &*desk;
        for thread in 0..count {
            let stack = stacks.get(thread)?;
            fibers.push(Fiber::with_stack(stack, move |yielder, ()| {
                // SAFETY: the group keeps the desk alive longer than its fibers, and whoever
                // called `run` promised the block.
                unsafe {
                    let desk = &*desk_pointer;
                    desk.yielders[thread].set(yielder);
                    entry(block);
                }
            }));
        }
        let shared = launch.program.shared;
        let memory = if launch.cooperative {
            vec![POISON as u8; shared.bytes]
        } else {
            // SAFETY: the library exports the range, and its turn is ours.
            unsafe { shared.start.write_bytes(POISON as u8, shared.bytes) };
            Vec::new()
        };
        Ok(Group {
            launch,
            threads,
            desk,
            workgroup,
            exchange,
            fibers,
            memory,
            ended: false,
            moved: false,
            stalls: 0,
        })
    }

    /// Runs until all threads have ended, or those that can go on do so by looping over atomics.
    fn advance(&mut self) -> Result<Progress, String> {
        self.moved = false;
        let state = self.launch.program.library.state();
        // SAFETY: the library exports its state, and its turn is ours; desk, workgroup and
        // threads outlive the fibers.
        unsafe {
            state.write(State {
                executor: &*self.desk,
                meet,
                pause,
                fault,
                running: self.threads.as_ptr(),
                workgroup: &*self.workgroup,
            });
        }
        let lanes = self.launch.subgroup_size as usize;
        loop {
            for first in (0..self.fibers.len()).step_by(lanes) {
                let end = (first + lanes).min(self.fibers.len());
                loop {
                    self.run_lanes(first, end)?;
                    if !self.answer(first, end)? {
                        break;
                    }
                    self.moved = true;
                }
            }
            let mut is_paused = false;
            let mut open: Option<(usize, Meeting)> = None;
            for (thread, request) in self.desk.requests.iter().enumerate() {
                match request.get() {
                    Request::Pause { .. } | Request::Ready => is_paused = true,
                    Request::Meet(meeting) => {
                        open = open.or(Some((thread, meeting)));
                    }
                    Request::Fault { .. } | Request::Ended => {}
                }
            }
            if is_paused {
                return Ok(Progress::Paused);
            }
            let Some((thread, first)) = open else {
                self.ended = true;
                return Ok(Progress::Ended);
            };
            if let Some(other) = self.who_differs(&first) {
                return Err(self.divergence(thread, &first, other));
            }
            for request in &self.desk.requests {
                request.set(Request::Ready);
            }
            self.moved = true;
        }
    }

    /// Runs each lane that can go on, once.
    fn run_lanes(&mut self, first: usize, end: usize) -> Result<(), String> {
        let state = self.launch.program.library.state();
        for thread in first..end {
            match self.desk.requests[thread].get() {
                Request::Ready => self.moved = true,
                Request::Pause { .. } => {}
                Request::Meet(_) | Request::Fault { .. } | Request::Ended => continue,
            }
            self.desk.thread.set(thread);
            // SAFETY: as in `advance`.
            unsafe { (*state).running = &self.threads[thread] };
            if let CoroutineResult::Return(()) = self.fibers[thread].resume(()) {
                self.desk.requests[thread].set(Request::Ended);
            }
            match self.desk.requests[thread].get() {
                Request::Fault { line, message } => {
                    // SAFETY: the text gives a string that ends with NUL, and it is loaded.
                    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
                    return Err(format!(
                        "{text} (line {line} of the text{}, thread {thread})",
                        self.place()
                    ));
                }
                Request::Pause { .. } => {}
                Request::Ready | Request::Meet(_) | Request::Ended => self.moved = true,
            }
        }
        Ok(())
    }

    /// Answers one exchange of a subgroup, if all who take part are there.
    fn answer(&self, first: usize, end: usize) -> Result<bool, String> {
        let existing = u64::MAX >> (64 - (end - first));
        for thread in first..end {
            let Request::Meet(meeting) = self.desk.requests[thread].get() else {
                continue;
            };
            if meeting.kind == Kind::Barrier {
                continue;
            }
            let lanes = match meeting.lanes {
                u64::MAX => existing,
                lanes => lanes,
            };
            if lanes & !existing != 0 || lanes >> (thread - first) & 1 == 0 {
                return Err(format!(
                    "thread {thread} names the lanes {lanes:#x} of its subgroup, which has the \
                     lanes {existing:#x}, in line {} of the text{}; it must name itself and no \
                     lane that is not there",
                    meeting.line,
                    self.place()
                ));
            }
            let taking_part = |t: usize| lanes >> (t - first) & 1 == 1;
            let all_here = (first..end).filter(|&t| taking_part(t)).all(
                |t| matches!(self.desk.requests[t].get(), Request::Meet(m) if m.is_same(&meeting)),
            );
            if !all_here {
                continue;
            }
            let operand = |t: usize| match self.desk.requests[t].get() {
                Request::Meet(m) => m.operand,
                _ => POISON,
            };
            let here = || (first..end).filter(|&t| taking_part(t));
            let votes = here().fold(0, |votes, t| {
                votes | u64::from(operand(t) != 0) << (t - first)
            });
            for t in here() {
                let Request::Meet(m) = self.desk.requests[t].get() else {
                    continue;
                };
                let source = first + m.argument as usize;
                self.desk.answers[t].set(match m.kind {
                    Kind::Shuffle if source < end && taking_part(source) => operand(source),
                    Kind::Shuffle => POISON,
                    Kind::Ballot => votes,
                    Kind::Barrier | Kind::SubgroupBarrier => 0,
                });
            }
            for t in here() {
                self.desk.requests[t].set(Request::Ready);
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// A thread that does not wait at the same barrier; of an exchange, one that does not take
    /// part in it.
    fn who_differs(&self, first: &Meeting) -> Option<usize> {
        self.desk.requests.iter().position(|request| {
            !matches!(request.get(), Request::Meet(m)
                if m.kind == Kind::Barrier && m.is_same(first))
        })
    }

    fn divergence(&self, thread: usize, first: &Meeting, other: usize) -> String {
        let lanes = self.launch.subgroup_size as usize;
        // Of an exchange, the lane that is missing says more than any other thread.
        let other = match first.kind {
            Kind::Barrier => other,
            _ => (thread / lanes * lanes..self.fibers.len().min((thread / lanes + 1) * lanes))
                .find(|&t| {
                    !matches!(self.desk.requests[t].get(), Request::Meet(m) if m.is_same(first))
                })
                .unwrap_or(other),
        };
        let describe = |m: &Meeting| {
            let what = match m.kind {
                Kind::Barrier => "barrier",
                Kind::SubgroupBarrier => "subgroup barrier",
                Kind::Shuffle => "shuffle",
                Kind::Ballot => "vote",
            };
            format!("the {what} in line {} of the text", m.line)
        };
        let does = match self.desk.requests[other].get() {
            Request::Meet(m) if m.is_same(first) => "waits there too".into(),
            Request::Meet(m) if (m.kind, m.line) == (first.kind, first.line) => format!(
                "names the lanes {:#x} there and not {:#x}",
                m.lanes, first.lanes
            ),
            Request::Meet(m) => format!("waits at {}", describe(&m)),
            _ => "has ended".into(),
        };
        format!(
            "divergent control flow{}: thread {thread} waits at {}, thread {other} {does}; every \
             thread that takes part must reach it",
            self.place(),
            describe(first)
        )
    }

    fn check_stalls(&self) -> Result<(), String> {
        if self.stalls < MOST_STALLS {
            return Ok(());
        }
        let looping = self.desk.requests.iter().enumerate().find_map(|(t, r)| {
            let Request::Pause { line } = r.get() else {
                return None;
            };
            Some((t, line))
        });
        let (thread, line) = looping.unwrap_or_default();
        Err(format!(
            "thread {thread} loops over the atomic in line {line} of the text{} without end; no \
             other thread can end its wait",
            self.place()
        ))
    }

    fn place(&self) -> String {
        let [x, y, z] = self.workgroup.id;
        format!(" in workgroup ({x}, {y}, {z})")
    }

    /// Swaps the group's shared memory in or out.
    fn exchange_memory(&mut self) {
        let shared = self.launch.program.shared;
        if shared.bytes > 0 {
            // SAFETY: as in `new`; the copy has the same length and is the group's own.
            unsafe {
                std::ptr::swap_nonoverlapping(shared.start, self.memory.as_mut_ptr(), shared.bytes);
            }
        }
    }

    fn recycle(mut self, stacks: &mut Stacks) {
        // In reverse, so that the next workgroup pops each thread's own stack first.
        for fiber in self.fibers.drain(..).rev() {
            if fiber.done() {
                stacks.free.push(fiber.into_stack());
            }
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        for fiber in &mut self.fibers {
            if fiber.started() && !fiber.done() {
                // SAFETY: what lies on the stack is a text's frames and those of the callbacks,
                // which own nothing. Unwinding is not for frames of another language.
                unsafe { fiber.force_reset() };
            }
        }
    }
}

/// The type of an entry's function: runs one thread over a parameter block.
pub(super) type Entry = unsafe extern "C" fn(*const u8);

// `core.h` asserts the same.
const _: () = assert!(size_of::<Thread>() == 24);
const _: () = assert!(size_of::<Workgroup>() == 56);
const _: () = assert!(size_of::<State>() == 48, "64-bit addresses");
