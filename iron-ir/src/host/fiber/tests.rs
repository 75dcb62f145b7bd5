//! The executor over bodies written by hand, as `#[kernel]` would emit them.

use super::*;
use crate::contract::{Bindings, Contract};
use crate::host::{HostArgument, HostBody, HostTensor};
use crate::kernel::{Kernel, ParamData, ParamKind, Span};
use crate::lang::*;
use crate::types::Scalar;

struct Run {
    threads: [u32; 3],
    groups: u32,
    subgroup_size: u32,
    cooperative: bool,
    len: u32,
}

const ONE: Run = Run {
    threads: [8, 1, 1],
    groups: 1,
    subgroup_size: 8,
    cooperative: false,
    len: 16,
};

impl Run {
    /// Runs a body over one `u32` tensor of zeros.
    fn run(&self, body: HostBody) -> Result<(Vec<u32>, HostReport), String> {
        let mut kernel = Kernel {
            name: "probe".into(),
            contract: Contract {
                workgroup: self.threads,
                cooperative: self.cooperative,
                ..Contract::default()
            },
            ..Kernel::default()
        };
        kernel.params.push(ParamData {
            name: "y".into(),
            kind: ParamKind::Scalar(Scalar::U32),
            span: Span::default(),
        });
        let mut memory = vec![0u32; self.len as usize];
        let launch = HostLaunch {
            kernel: &kernel,
            body,
            grid: [self.groups, 1, 1],
            bindings: &Bindings::default(),
            arguments: vec![HostArgument::Tensor(HostTensor {
                base: memory.as_mut_ptr().cast(),
                scalar: Scalar::U32,
                shape: vec![self.len],
                strides: vec![1],
            })],
            subgroup_size: self.subgroup_size,
        };
        // SAFETY: the tensor is `memory`, which is used by nobody else meanwhile.
        let report = unsafe { run(&launch, 0..u64::from(self.groups)) };
        let report = report.map_err(|fault| fault.message)?;
        Ok((memory, report))
    }

    fn fault(&self, body: HostBody) -> String {
        self.run(body).expect_err("a fault")
    }
}

fn y<'a>(args: &HostArgs<'a>) -> &'a mut Tensor<u32, 1> {
    args.tensor_mut::<u32, 1>(0)
}

#[test]
fn shared_memory_and_barriers() {
    let (memory, _) = ONE
        .run(|args| {
            let y = y(args);
            let mut s = shared::<u32>(8);
            s[local_index()] = local_index() * 10;
            barrier();
            y[local_index()] = s[7 - local_index()];
            barrier();
            s[0] = 1;
        })
        .unwrap();
    assert_eq!(memory[..9], [70, 60, 50, 40, 30, 20, 10, 0, 0]);
}

#[test]
fn collectives_at_every_width() {
    for width in [4, 8, 16, 32, 64] {
        let run = Run {
            threads: [6, 3, 1],
            groups: 2,
            subgroup_size: width,
            len: 64,
            ..ONE
        };
        let (memory, _) = run
            .run(|args| {
                let y = y(args);
                let i = local_index();
                let total = workgroup_sum(i);
                let scan = workgroup_scan_sum_exclusive(i) + workgroup_scan_sum(i);
                let most = workgroup_max(i ^ 5);
                let from = workgroup_broadcast(i * 100, 3);
                let lanes = subgroup_sum(1u32);
                let mask = subgroup_ballot(subgroup_lane().is_multiple_of(2));
                let up = subgroup_shuffle_up(i, 1);
                let ok = mask.count_ones() == lanes.div_ceil(2)
                    && (up == i && subgroup_lane() == 0 || up + 1 == i)
                    && subgroup_broadcast(i, 1) == subgroup_id() * subgroup_size() + 1
                    && (subgroup_count() - 1 == subgroup_id())
                        == (i >= 17 / subgroup_size() * subgroup_size());
                if group_id(0) == 1 {
                    let good = total == 153 && scan == i * i && most == 21 && from == 300;
                    y[local_id(0) + 6 * local_id(1)] = u32::from(good && ok);
                }
            })
            .unwrap();
        assert_eq!(memory[..18], [1; 18], "width {width}");
        assert_eq!(memory[18..], [0; 46]);
    }
}

#[test]
fn float_sums_follow_the_tree() {
    let run = Run {
        threads: [4, 1, 1],
        ..ONE
    };
    let (memory, _) = run
        .run(|args| {
            let y = y(args);
            let small = f32::EPSILON / 2.0;
            let x = [1.0f32, small, small, small][local_index() as usize];
            y[local_index()] = workgroup_sum(x).to_bits();
        })
        .unwrap();
    assert_eq!(memory[..4], [(1.0 + f32::EPSILON).to_bits(); 4]);
}

#[test]
fn faults_name_what_and_where() {
    let out = ONE.fault(|args| y(args)[local_index() + 9] = 1);
    assert!(
        out.contains("parameter `y`: index 16 of dimension 0"),
        "{out}"
    );
    assert!(
        out.contains("fiber/tests.rs") && out.contains("thread 7"),
        "{out}"
    );

    let unwritten = ONE.fault(|args| {
        let mut s = shared::<u32>(8);
        if local_index() < 7 {
            s[local_index()] = 1;
        }
        barrier();
        y(args)[local_index()] = s[local_index()];
    });
    assert!(
        unwritten.contains("element 7 of a shared array is read before"),
        "{unwritten}"
    );

    let ended = ONE.fault(|_| {
        if local_index() >= 3 {
            return;
        }
        barrier();
    });
    assert!(ended.contains("thread 0 waits at `barrier`"), "{ended}");
    assert!(ended.contains("thread 3 has ended"), "{ended}");

    #[expect(
        clippy::if_same_then_else,
        reason = "two barriers at two places are what is tested"
    )]
    let elsewhere = ONE.fault(|_| {
        if local_index().is_multiple_of(2) {
            barrier();
        } else {
            barrier();
        }
    });
    assert!(
        elsewhere.contains("thread 1 waits at `barrier`"),
        "{elsewhere}"
    );

    let native = ONE.fault(|_| {
        let table = [1u32; 4];
        let i = local_index() as usize;
        assert!(table[i] == 1);
    });
    assert!(native.contains("index out of bounds"), "{native}");
    assert!(native.contains("fiber/tests.rs:"), "{native}");

    let lane = ONE.fault(|_| {
        workgroup_broadcast(1u32, local_index());
    });
    assert!(lane.contains("not uniform"), "{lane}");
}

#[test]
fn atomics_and_error_word() {
    let run = Run { groups: 3, ..ONE };
    let (memory, report) = run
        .run(|args| {
            let y = y(args);
            let old = y.atomic_add(0, 2);
            y.atomic_max(1, old);
            y.atomic_compare_exchange(2, 0, 9);
            y.atomic_xor(3, 1 << local_index());
            y[4] = index_in(local_index(), 7);
        })
        .unwrap();
    assert_eq!(memory[..5], [48, 46, 9, 0xff, 0]);
    assert!(report.index_out_of_range.is_some());
}

#[test]
fn grid_barriers_join_all_groups() {
    let run = Run {
        groups: 4,
        cooperative: true,
        ..ONE
    };
    let (memory, _) = run
        .run(|args| {
            let y = y(args);
            y.atomic_add(0, 1);
            grid_barrier();
            let total = y[0];
            y[8 + group_id(0)] = total;
        })
        .unwrap();
    assert_eq!(memory[8..12], [32; 4]);
}

#[test]
fn tiles_multiply_and_reduce() {
    let run = Run { len: 24, ..ONE };
    let (memory, _) = run
        .run(|args| {
            let y = y(args);
            for i in strided(12) {
                y[i] = i;
            }
            barrier_global();
            let mut a = shared_tile::<f32>(3, 4);
            let mut acc = reg_tile::<f32>(3, 3, 0.0);
            let mut sums = reg_tile::<f32>(3, 1, 0.0);
            a.fill(2.0);
            matmul_nt(&mut acc, &a, &a);
            acc.map_indexed(|x, r, c| x + (r * 3 + c) as f32);
            sums.reduce_rows_sum(&acc);
            acc.map2(&sums, |x, s| s - x);
            let mut flat = reg_tile::<f32>(3, 1, 0.0);
            flat.reduce_rows_max(&acc);
            let check = flat.at(2, 0, std::panic::Location::caller());
            barrier();
            y[12 + local_index()] = check as u32;
        })
        .unwrap();
    // Row 2 is 16 + (6, 7, 8): its sum is 69, and 69 - 22 the greatest difference.
    assert_eq!(memory[12..20], [47; 8]);
}
