//! Each check of a launch at its limit, one below it and one above it.

use super::*;
use crate::parse::parse;

struct Memory {
    bytes: u64,
    alignment: u64,
}

impl DeviceBuffer for Memory {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn alignment(&self) -> u64 {
        self.alignment
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn memory(bytes: u64) -> Arc<dyn DeviceBuffer> {
    let alignment = 256;
    Arc::new(Memory { bytes, alignment })
}

/// A dense view in memory of its own, of exactly its size.
fn dense(scalar: Scalar, shape: &[u64]) -> TensorArg {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let elements: u64 = shape.iter().product();
    TensorArg {
        buffer: memory(elements * u64::from(scalar.bytes())),
        scalar,
        shape: shape.to_vec(),
        strides,
        offset: 0,
    }
}

const WIDE: LaunchLimits = LaunchLimits {
    max_grid: [1 << 31, 65_535, 65_535],
    max_workgroup: [1024, 1024, 64],
    max_threads: 1024,
    max_buffer_bytes: 1 << 40,
    max_resident: 8,
};

/// A kernel whose parameters and contract are given in text.
fn kernel(head: &str, parameters: &str) -> Kernel {
    let text = format!("kernel @k {head} {{\n  dim #n\n  dim #m\n{parameters}\n}}\n");
    parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn plain(parameters: &str) -> Kernel {
    kernel("grid(1, 1, 1) workgroup(64, 1, 1)", parameters)
}

fn refusal(kernel: &Kernel, arguments: &[Argument], limits: &LaunchLimits) -> ContractError {
    check(kernel, arguments, limits).expect_err("refused")
}

/// What a view is refused for, by a kernel that takes it alone.
fn of_view(parameter: &str, view: TensorArg) -> Result<CheckedLaunch, ContractError> {
    check(&plain(parameter), &[Argument::Tensor(view)], &WIDE)
}

const READ: &str = "  param @x: tensor<f32, [#n, #m], read, align 1>";
const WRITE: &str = "  param @y: tensor<f32, [#n, #m], read_write, align 1>";
const STRIDED: &str = "  param @x: tensor<f32, [#n, #m], read, strided, align 1>";

#[test]
fn arguments_are_counted_and_of_the_declared_kind() {
    let kernel = plain("  param @x: tensor<f32, [#n], read, align 1>\n  param @s: u32");
    let view = || Argument::Tensor(dense(Scalar::F32, &[4]));
    let number = |scalar| Argument::Scalar(Const { scalar, bits: 1 });
    let arguments = [view(), number(Scalar::U32)];
    assert!(check(&kernel, &arguments, &WIDE).is_ok());
    let more = [view(), number(Scalar::U32), number(Scalar::U32)];
    for wrong in [&[][..], &arguments[..1], &more] {
        let error = refusal(&kernel, wrong, &WIDE);
        let found = wrong.len();
        assert!(
            matches!(error, ContractError::ArgumentCount { expected: 2, found: f, .. } if f == found)
        );
    }
    for (wrong, says) in [
        ([view(), view()], "`s`: expected u32, got a tensor of f32"),
        (
            [number(Scalar::F32), number(Scalar::U32)],
            "`x`: expected a tensor of f32, got a scalar f32",
        ),
        ([view(), number(Scalar::I32)], "`s`: expected u32, got i32"),
        (
            [
                Argument::Tensor(dense(Scalar::U32, &[4])),
                number(Scalar::U32),
            ],
            "`x`: expected a tensor of f32, got u32",
        ),
    ] {
        let text = refusal(&kernel, &wrong, &WIDE).to_string();
        assert!(text.ends_with(says), "{text}");
    }
}

#[test]
fn ranks_and_dimensions_agree() {
    let rank = |found: usize| matches!(of_view(READ, dense(Scalar::F32, &vec![2; found])), Err(ContractError::Rank { expected: 2, found: f, .. }) if f == found);
    assert!(rank(1) && rank(3));
    let mut short = dense(Scalar::F32, &[2, 2]);
    short.strides.pop();
    assert!(matches!(
        of_view(READ, short),
        Err(ContractError::Rank { .. })
    ));
    let two = plain(&format!(
        "{READ}\n  param @z: tensor<u32, [#m / 2], read, align 1>"
    ));
    let with = |m: u64, half: u64| {
        let views = [dense(Scalar::F32, &[2, m]), dense(Scalar::U32, &[half])];
        check(&two, &views.map(Argument::Tensor), &WIDE)
    };
    assert!(with(6, 3).is_ok() && with(7, 3).is_ok());
    for half in [2, 4] {
        match with(6, half) {
            Err(ContractError::Dimension {
                expected: 3, found, ..
            }) => assert_eq!(found, half),
            other => panic!("{other:?}"),
        }
    }
    let largest = (1u64 << 31) - 1;
    let tall = |n: u64| {
        let mut view = dense(Scalar::F32, &[1, 1]);
        view.shape[0] = n;
        view.strides[0] = 0;
        of_view(READ, view)
    };
    assert!(tall(largest).is_ok());
    assert!(matches!(
        tall(largest + 1),
        Err(ContractError::DimensionTooLarge { axis: 0, found, limit, .. }) if found == largest + 1 && limit == largest
    ));
}

#[test]
fn a_view_ends_within_its_buffer() {
    let with = |bytes: u64, offset: u64| {
        let mut view = dense(Scalar::F32, &[2, 3]);
        (view.buffer, view.offset) = (memory(bytes), offset);
        of_view(READ, view)
    };
    assert!(with(24, 0).is_ok() && with(28, 1).is_ok());
    for (bytes, offset, end) in [(23, 0, 24), (24, 1, 28)] {
        match with(bytes, offset) {
            Err(ContractError::OutOfBuffer { needed, .. }) => assert_eq!(needed, end),
            other => panic!("{other:?}"),
        }
    }
    // Rows that do not touch: the last element decides, not the sum of all.
    let mut apart = dense(Scalar::F32, &[2, 3]);
    (apart.buffer, apart.strides[0]) = (memory(52), 10);
    assert!(of_view(READ, apart.clone()).is_ok());
    apart.buffer = memory(51);
    assert!(matches!(
        of_view(READ, apart),
        Err(ContractError::OutOfBuffer {
            needed: 52,
            bytes: 51,
            ..
        })
    ));
    // No product of extent and stride wraps.
    let mut far = dense(Scalar::F32, &[2, 1]);
    far.strides[0] = u64::MAX;
    assert!(matches!(
        of_view(READ, far),
        Err(ContractError::OutOfBuffer { needed, .. }) if needed == (u128::from(u64::MAX) + 1) * 4
    ));
}

#[test]
fn a_view_fits_what_the_device_addresses() {
    let limited = |limit: u64| {
        let limits = LaunchLimits {
            max_buffer_bytes: limit,
            ..WIDE
        };
        let mut view = dense(Scalar::F32, &[2, 3]);
        (view.buffer, view.offset) = (memory(1000), 100);
        check(&plain(READ), &[Argument::Tensor(view)], &limits)
    };
    assert!(limited(24).is_ok() && limited(25).is_ok());
    assert!(matches!(
        limited(23),
        Err(ContractError::BufferTooLarge {
            bytes: 24,
            limit: 23,
            ..
        })
    ));
}

#[test]
fn the_last_stride_is_one_where_it_matters() {
    let with = |parameter: &str, shape: [u64; 2], last: u64| {
        let mut view = dense(Scalar::F32, &shape);
        (view.buffer, view.strides[1]) = (memory(1000), last);
        of_view(parameter, view)
    };
    assert!(with(READ, [2, 3], 1).is_ok());
    for last in [0, 2] {
        for columns in [2, 3] {
            assert!(matches!(
                with(READ, [2, columns], last),
                Err(ContractError::LastStride { found, .. }) if found == last
            ));
        }
        assert!(with(STRIDED, [2, 3], last).is_ok());
        // One column has no second element to stride to.
        assert!(with(READ, [2, 1], last).is_ok());
    }
}

#[test]
fn vector_accesses_find_their_alignment() {
    const FOUR: &str = "  param @x: tensor<f32, [#n, #m], read, align 4>";
    let with = |rows: u64, stride: u64, offset: u64, alignment: u64| {
        let mut view = dense(Scalar::F32, &[rows, 4]);
        let bytes = 4096;
        view.buffer = Arc::new(Memory { bytes, alignment });
        (view.strides[0], view.offset) = (stride, offset);
        of_view(FOUR, view)
    };
    assert!(with(2, 8, 4, 16).is_ok());
    assert!(with(2, 8, 4, 32).is_ok());
    for (result, says) in [
        (
            with(2, 8, 3, 16),
            "the offset is 3 elements, not a multiple of 4",
        ),
        (with(2, 8, 5, 16), "the offset is 5 elements"),
        (with(2, 7, 4, 16), "the stride of dimension 0 is 7 elements"),
        (with(2, 9, 4, 16), "the stride of dimension 0 is 9 elements"),
        (with(2, 8, 4, 8), "the base address is 2 elements"),
    ] {
        let text = result.expect_err("misaligned").to_string();
        assert!(text.contains(says), "{text}");
    }
    // A row that is the only one has no stride; an empty view has no address.
    assert!(with(1, 7, 4, 16).is_ok());
    assert!(with(0, 7, 4, 16).is_ok());
}

#[test]
fn a_writable_view_does_not_overlap_itself() {
    let with = |parameter: &str, shape: [u64; 2], stride: u64| {
        let mut view = dense(Scalar::F32, &shape);
        (view.buffer, view.strides[0]) = (memory(4096), stride);
        of_view(parameter, view)
    };
    assert!(with(WRITE, [3, 5], 5).is_ok());
    assert!(with(WRITE, [3, 5], 6).is_ok());
    assert!(matches!(
        with(WRITE, [3, 5], 4),
        Err(ContractError::SelfOverlap {
            axis: 0,
            stride: 4,
            needed: 5,
            ..
        })
    ));
    assert!(with(READ, [3, 5], 4).is_ok());
    assert!(with(READ, [3, 5], 0).is_ok());
    for unused in [[1, 5], [0, 5]] {
        assert!(with(WRITE, unused, 0).is_ok());
    }
    // Three dimensions, the middle one widest: 4 elements in a row, 2 planes 4 apart, rows 8 apart.
    let three = "  param @y: tensor<f32, [#n, #m, 4], read_write, align 1>";
    let folded = |row: u64, plane: u64| {
        let mut view = dense(Scalar::F32, &[3, 2, 4]);
        (view.buffer, view.strides) = (memory(4096), vec![row, plane, 1]);
        of_view(three, view)
    };
    assert!(folded(8, 4).is_ok() && folded(4, 12).is_ok());
    assert!(matches!(
        folded(7, 4),
        Err(ContractError::SelfOverlap {
            axis: 0,
            stride: 7,
            needed: 8,
            ..
        })
    ));
    assert!(matches!(
        folded(4, 11),
        Err(ContractError::SelfOverlap {
            axis: 1,
            stride: 11,
            needed: 12,
            ..
        })
    ));
}

#[test]
fn writable_views_overlap_nothing_but_what_is_allowed() {
    let shared = memory(4096);
    let part = |offset: u64, shape: [u64; 2]| TensorArg {
        buffer: shared.clone(),
        offset,
        ..dense(Scalar::F32, &shape)
    };
    let both = |kernel: &Kernel, x: TensorArg, y: TensorArg| {
        check(kernel, &[x, y].map(Argument::Tensor), &WIDE)
    };
    let apart = plain(&format!("{READ}\n{WRITE}"));
    let shape = [2, 3];
    assert!(both(&apart, part(0, shape), part(6, shape)).is_ok());
    assert!(both(&apart, part(6, shape), part(0, shape)).is_ok());
    for (x, y) in [(0, 5), (5, 0), (0, 0)] {
        match both(&apart, part(x, shape), part(y, shape)) {
            Err(ContractError::Overlap {
                param,
                other,
                start,
                end,
                ..
            }) => {
                assert_eq!((param.as_str(), other.as_str()), ("y", "x"));
                assert_eq!((start, end), (u128::from(y) * 4, u128::from(y) * 4 + 24));
            }
            other => panic!("{other:?}"),
        }
    }
    // Another buffer at the same offsets is another memory; empty views touch nothing.
    let elsewhere = dense(Scalar::F32, &shape);
    assert!(both(&apart, elsewhere, part(0, shape)).is_ok());
    assert!(both(&apart, part(1, [0, 3]), part(0, [0, 3])).is_ok());
    // Two that only read may share.
    let readers = plain(&format!("{READ}\n{}", READ.replace("@x", "@z")));
    assert!(both(&readers, part(0, shape), part(1, shape)).is_ok());
    // One view for two parameters, where either of them says so.
    let alias_y = WRITE.replace("align 1", "align 1, alias @x");
    let alias_x = READ.replace("align 1", "align 1, alias @y");
    for kernel in [
        plain(&format!("{READ}\n{alias_y}")),
        plain(&format!("{alias_x}\n{WRITE}")),
    ] {
        assert!(both(&kernel, part(0, shape), part(0, shape)).is_ok());
        for moved in [1, 5] {
            assert!(both(&kernel, part(moved, shape), part(0, shape)).is_err());
        }
        let mut wider = part(0, shape);
        wider.strides[0] = 4;
        assert!(both(&kernel, wider, part(0, shape)).is_err());
    }
}

#[test]
fn facts_hold_and_say_both_sides() {
    let with = |fact: &str, n: u64, s: i64| {
        let head = format!("grid(1, 1, 1) workgroup(64, 1, 1) requires({fact})");
        let kernel = kernel(
            &head,
            "  param @x: tensor<f32, [#n], read, align 1>\n  param @s: i32",
        );
        let scalar = Const {
            scalar: Scalar::I32,
            bits: s as u32 as u64,
        };
        let arguments = [
            Argument::Tensor(dense(Scalar::F32, &[n])),
            Argument::Scalar(scalar),
        ];
        check(&kernel, &arguments, &WIDE)
    };
    for (fact, n, holds) in [
        ("#n % 4 == 0", [7, 8, 9], [false, true, false]),
        ("#n != 8", [7, 8, 9], [true, false, true]),
        ("#n < 8", [7, 8, 9], [true, false, false]),
        ("#n <= 8", [7, 8, 9], [true, true, false]),
        ("#n > 8", [7, 8, 9], [false, false, true]),
        ("#n >= 8", [7, 8, 9], [false, true, true]),
        ("min(#n, 8) == 8", [7, 8, 9], [false, true, true]),
        ("max(#n, 8) == 8", [7, 8, 9], [true, true, false]),
        ("ceil_div(#n, 4) == 2", [4, 5, 9], [false, true, false]),
        ("#n / 4 == 2", [7, 8, 12], [false, true, false]),
        ("#n - 8 == 0", [7, 8, 9], [false, true, false]),
        ("#n + 8 == 16", [7, 8, 9], [false, true, false]),
        ("#n * 2 == 16", [7, 8, 9], [false, true, false]),
    ] {
        assert_eq!(n.map(|n| with(fact, n, 0).is_ok()), holds, "{fact}");
    }
    // A negative scalar is negative.
    assert!(with("@s < 0", 8, -1).is_ok());
    assert!(with("@s > 0", 8, -1).is_err());
    let text = with("#n % 4 == 0", 9, 0).expect_err("false").to_string();
    assert!(
        text.contains("the left side is 1 and the right side 0"),
        "{text}"
    );
    assert!(matches!(
        with("#n % @s == 0", 8, 0),
        Err(ContractError::NoValue { .. })
    ));
}

#[test]
fn the_grid_and_the_workgroup_fit_the_device() {
    let limits = LaunchLimits {
        max_grid: [10, 20, 30],
        max_workgroup: [64, 32, 16],
        max_threads: 128,
        ..WIDE
    };
    let grid = |axis: usize, size: i64| {
        let mut sizes = ["1"; 3];
        sizes[axis] = "@s";
        let head = format!("grid({}) workgroup(1, 1, 1)", sizes.join(", "));
        let kernel = kernel(
            &head,
            "  param @s: i64\n  param @y: tensor<f32, [4], read_write, align 1>",
        );
        let scalar = Const {
            scalar: Scalar::I64,
            bits: size as u64,
        };
        let view = Argument::Tensor(dense(Scalar::F32, &[4]));
        check(&kernel, &[Argument::Scalar(scalar), view], &limits)
    };
    for (axis, limit) in [10i64, 20, 30].into_iter().enumerate() {
        for size in [1, limit - 1, limit] {
            let checked = grid(axis, size).expect("fits");
            assert_eq!(i64::from(checked.grid[axis]), size);
            assert!(!checked.is_empty);
        }
        for size in [limit + 1, -1, i64::MIN, i64::MAX] {
            match grid(axis, size) {
                Err(ContractError::Grid {
                    axis: a,
                    found,
                    limit: l,
                    ..
                }) => assert_eq!((a, found, l), (axis, i128::from(size), limit as u64)),
                other => panic!("{other:?}"),
            }
        }
        assert!(grid(axis, 0).expect("a no-op").is_empty);
    }
    let workgroup = |size: [u32; 3]| {
        let [x, y, z] = size;
        let kernel = kernel(&format!("grid(1, 1, 1) workgroup({x}, {y}, {z})"), "");
        check(&kernel, &[], &limits)
    };
    for fits in [[64, 1, 1], [1, 32, 1], [1, 1, 16], [64, 2, 1], [63, 2, 1]] {
        assert!(workgroup(fits).is_ok(), "{fits:?}");
    }
    for (wide, found, limit) in [
        ([65, 1, 1], 65, 64),
        ([1, 33, 1], 33, 32),
        ([1, 1, 17], 17, 16),
        ([43, 3, 1], 129, 128),
    ] {
        match workgroup(wide) {
            Err(ContractError::Workgroup {
                found: f,
                limit: l,
                axes,
                ..
            }) => {
                assert_eq!((f, l), (found, limit));
                let [x, y, z] = wide;
                assert_eq!(axes, format!("{x}×{y}×{z}"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_launch_that_writes_nothing_is_empty() {
    let kernel = plain(&format!(
        "{READ}\n  param @y: tensor<f32, [#n], read_write, align 1>"
    ));
    let launch = |n: u64| {
        let views = [dense(Scalar::F32, &[n, 2]), dense(Scalar::F32, &[n])];
        check(&kernel, &views.map(Argument::Tensor), &WIDE).expect("accepted")
    };
    assert!(launch(0).is_empty);
    assert!(!launch(1).is_empty);
}

#[test]
fn the_block_holds_dimensions_strides_and_scalars() {
    let kernel = plain(&format!("{READ}\n  param @s: i32\n  param @t: u64"));
    let mut view = dense(Scalar::F32, &[2, 3]);
    (view.buffer, view.strides[0]) = (memory(4096), 77);
    let number = |scalar, bits| Argument::Scalar(Const { scalar, bits });
    let arguments = [
        Argument::Tensor(view),
        number(Scalar::I32, 0xffff_fffe),
        number(Scalar::U64, 0x0123_4567_89ab_cdef),
    ];
    let checked = check(&kernel, &arguments, &WIDE).expect("accepted");
    let layout = BlockLayout::of(&kernel);
    assert_eq!(checked.block.len(), layout.bytes as usize);
    for field in &layout.fields {
        let expected = match field.kind {
            FieldKind::Address(_) | FieldKind::ErrorWord | FieldKind::Aligned => 0,
            FieldKind::Dim(dim) => [2, 3][dim.index()],
            FieldKind::Stride(_, axis) => [77, 1][usize::from(axis)],
            FieldKind::Scalar(param) => [0, 0xffff_fffe, 0x0123_4567_89ab_cdef][param.index()],
            FieldKind::TensorMap(..) => continue,
        };
        let at = field.offset as usize;
        let size = field.scalar.bytes() as usize;
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&checked.block[at..at + size]);
        assert_eq!(u64::from_le_bytes(bytes), expected, "{}", field.name);
    }
    assert_eq!(checked.bindings.dims, [2, 3]);
    assert_eq!(
        checked.bindings.scalars,
        [None, Some(-2), Some(0x0123_4567_89ab_cdef)]
    );
}

#[test]
fn workgroups_that_wait_for_each_other_all_run_at_once() {
    let launch = |kind: &str, count: i64| {
        let kernel = kernel(
            &format!("grid(@s, 2, 1) workgroup(64, 1, 1) {kind}"),
            "  param @s: i64\n  param @y: tensor<f32, [4], read_write, align 1>",
        );
        let scalar = Const {
            scalar: Scalar::I64,
            bits: count as u64,
        };
        let view = Argument::Tensor(dense(Scalar::F32, &[4]));
        check(&kernel, &[Argument::Scalar(scalar), view], &WIDE)
    };
    launch("cooperative", 4).expect("eight of eight");
    launch("", 5).expect("none waits for another");
    let refused = launch("cooperative", 5)
        .expect_err("ten of eight")
        .to_string();
    assert!(
        refused.contains("its 10 workgroups") && refused.contains("run 8 at once"),
        "{refused}"
    );
}
