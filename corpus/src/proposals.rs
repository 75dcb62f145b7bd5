//! Trees of proposed tokens, and the path that a target agrees to.

use iron_ir::prelude::*;
use iron_ir::testing::{Cases, ints};

/// Most proposals of a tree: threads of a workgroup.
pub const MOST_PROPOSALS: u32 = 64;

/// Of trees of proposals the longest path that the target chose itself, of equally long ones that
/// which ends at the lowest node.
///
/// Node 0 of a tree is the token that is known; proposal `i` is node `i + 1`, says `tokens[t, i]`,
/// and follows node `parents[t, i]`, which comes before it. The target chose `choices[t, n]` to
/// follow node `n`. A proposal stands where it and all proposals on its way are what the target
/// chose there; one whose parent does not come before it never stands. `path[t, ..lengths[t]]` are
/// the proposals of the path (`i`, not nodes), from the root on, the rest is `u32::MAX`.
#[kernel(grid = [trees], workgroup = 64, requires(proposals <= MOST_PROPOSALS))]
pub fn accepted_path(
    parents: &Tensor<u32, (trees, proposals)>,
    tokens: &Tensor<u32, (trees, proposals)>,
    choices: &Tensor<u32, { (trees, proposals + 1) }>,
    path: &mut Tensor<u32, (trees, proposals)>,
    lengths: &mut Tensor<u32, (trees,)>,
) {
    let (tree, own) = (group_id(0), local_index());
    // Of a proposal that stands, how many there are on its way, with itself.
    let mut depth = 0;
    if own < proposals {
        let mut node = own + 1;
        let mut stands = true;
        for _ in 0..proposals {
            if node != 0 && stands {
                let parent = parents[[tree, node - 1]];
                stands = parent < node;
                if stands {
                    stands = tokens[[tree, node - 1]] == choices[[tree, parent]];
                    node = parent;
                    depth += 1;
                }
            }
        }
        if !stands {
            depth = 0;
        }
    }
    let length = workgroup_max(depth);
    let last = workgroup_min(select(depth == length && length > 0, own, u32::MAX));
    if own == last {
        let mut node = own + 1;
        for i in 0..length {
            path[[tree, length - 1 - i]] = node - 1;
            node = parents[[tree, node - 1]];
        }
    }
    if own >= length && own < proposals {
        path[[tree, own]] = u32::MAX;
    }
    if own == 0 {
        lengths[tree] = length;
    }
}

/// The path by walking down from the root: every proposal that stands, deepest first.
fn expected(parents: &[i64], tokens: &[i64], choices: &[i64]) -> Vec<i64> {
    let mut best: Vec<i64> = Vec::new();
    let mut waiting = vec![(0i64, Vec::new())];
    while let Some((node, path)) = waiting.pop() {
        let ends_lower = path.last() < best.last();
        if path.len() > best.len() || (path.len() == best.len() && ends_lower) {
            best.clone_from(&path);
        }
        for i in node as usize..tokens.len() {
            if parents[i] == node && tokens[i] == choices[node as usize] {
                let mut longer = path.clone();
                longer.push(i as i64);
                waiting.push((i as i64 + 1, longer));
            }
        }
    }
    best
}

#[test_kernel(accepted_path)]
fn accepted_path_is_the_longest_that_the_target_chose(t: &mut Cases) {
    // Trees, proposals, tokens that there are: few make long paths. Parents at random among the
    // nodes before, or a chain; `wrong`: some come after their children.
    for (trees, proposals, tokens, shape) in [
        (0u64, 3u64, 2i64, "random"),
        (4, 0, 2, "random"),
        (5, 1, 2, "random"),
        (40, 9, 2, "random"),
        (40, 9, 2, "chain"),
        (33, 64, 2, "random"),
        (33, 64, 1, "random"),
        (9, 64, 1, "chain"),
        (20, 20, 1, "wrong"),
    ] {
        let parent = move |i: usize, drawn: i64| {
            let own = (i as u64 % proposals.max(1)) as i64;
            match shape {
                "chain" => own,
                "wrong" => drawn % (own + 3),
                _ => drawn % (own + 1),
            }
        };
        t.case(format!(
            "{trees} trees of {proposals}, {tokens} tokens, {shape}"
        ))
        .input("parents", [trees, proposals], ints(0, 1 << 20).map(parent))
        .input("tokens", [trees, proposals], ints(0, tokens))
        .input("choices", [trees, proposals + 1], ints(0, tokens))
        .output("path", [trees, proposals])
        .output("lengths", [trees])
        .expect(move |inputs, out| {
            let n = proposals as usize;
            let (mut paths, mut lengths) = (Vec::new(), Vec::new());
            for tree in 0..trees as usize {
                let own = |name: &str| &inputs.ints(name)[tree * n..(tree + 1) * n];
                let choices = &inputs.ints("choices")[tree * (n + 1)..(tree + 1) * (n + 1)];
                let mut path = expected(own("parents"), own("tokens"), choices);
                lengths.push(path.len() as i64);
                path.resize(n, i64::from(u32::MAX));
                paths.extend(path);
            }
            out.set_ints("path", paths);
            out.set_ints("lengths", lengths);
        });
    }
}
