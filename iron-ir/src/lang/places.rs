//! Where a thread stands, and its share of a loop.

use std::panic::Location;

use crate::host::context::{GroupContext, fault, with};

#[track_caller]
fn axis_of(name: &'static str, axis: u32, of: impl Fn(&GroupContext) -> [u32; 3]) -> u32 {
    let site = Location::caller();
    with(name, site, |c| match of(c).get(axis as usize) {
        Some(&value) => value,
        None => fault(site, format!("`{name}({axis})`: axes are 0, 1 and 2")),
    })
}

/// Index of the workgroup along an axis.
#[track_caller]
pub fn group_id(axis: u32) -> u32 {
    axis_of("group_id", axis, |c| c.group)
}

/// Number of workgroups along an axis.
#[track_caller]
pub fn group_count(axis: u32) -> u32 {
    axis_of("group_count", axis, |c| c.grid)
}

/// Index of the thread in its workgroup along an axis.
#[track_caller]
pub fn local_id(axis: u32) -> u32 {
    axis_of("local_id", axis, GroupContext::local_id)
}

/// Threads of a workgroup along an axis.
#[track_caller]
pub fn group_size(axis: u32) -> u32 {
    axis_of("group_size", axis, |c| c.workgroup)
}

/// Index of the thread in the whole grid along an axis.
#[track_caller]
pub fn global_id(axis: u32) -> u32 {
    axis_of("global_id", axis, |c| {
        let local = c.local_id();
        std::array::from_fn(|i| c.group[i] * c.workgroup[i] + local[i])
    })
}

/// Linear index of the thread in its workgroup, x fastest.
#[track_caller]
pub fn local_index() -> u32 {
    with("local_index", Location::caller(), |c| c.thread.get())
}

/// Threads of the whole workgroup.
#[track_caller]
pub fn group_threads() -> u32 {
    with("group_threads", Location::caller(), |c| c.threads)
}

/// Index of the subgroup in its workgroup.
#[track_caller]
pub fn subgroup_id() -> u32 {
    with("subgroup_id", Location::caller(), |c| {
        c.thread.get() / c.subgroup_size
    })
}

/// Number of subgroups in the workgroup.
#[track_caller]
pub fn subgroup_count() -> u32 {
    with("subgroup_count", Location::caller(), |c| {
        c.threads.div_ceil(c.subgroup_size)
    })
}

/// Index of the thread in its subgroup.
#[track_caller]
pub fn subgroup_lane() -> u32 {
    with("subgroup_lane", Location::caller(), |c| {
        c.thread.get() % c.subgroup_size
    })
}

/// Lanes of a subgroup, 4 to 64: a property of the device, never a constant.
#[track_caller]
pub fn subgroup_size() -> u32 {
    with("subgroup_size", Location::caller(), |c| c.subgroup_size)
}

/// The thread's share of `0..n`: from its linear index in steps of the workgroup's threads.
#[track_caller]
pub fn strided(n: u32) -> impl Iterator<Item = u32> {
    let (start, step) = with("strided", Location::caller(), |c| {
        (c.thread.get(), c.threads)
    });
    (start..n).step_by(step as usize)
}

/// The thread's share of `0..n` over the whole x axis of the grid: from `global_id(0)` in steps
/// of all the axis' threads.
#[track_caller]
pub fn grid_strided(n: u32) -> impl Iterator<Item = u32> {
    let (start, step) = with("grid_strided", Location::caller(), |c| {
        let x = c.workgroup[0];
        (
            c.group[0] * x + c.local_id()[0],
            c.grid[0] as usize * x as usize,
        )
    });
    (start..n).step_by(step)
}

/// A loop over constant bounds that is fully unrolled.
pub fn unroll<I: IntoIterator>(range: I) -> I::IntoIter {
    range.into_iter()
}

/// `index` where it is below `bound`; otherwise the launch's error word is set, which fails the
/// request when its step ends, and the result is 0.
#[track_caller]
pub fn index_in(index: u32, bound: u32) -> u32 {
    if index < bound {
        return index;
    }
    let site = Location::caller();
    with("index_in", site, |c| {
        if c.index_error.get().is_none() {
            c.index_error.set(Some(site.line()));
        }
    });
    0
}
