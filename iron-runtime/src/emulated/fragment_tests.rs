//! Products of fragments on the emulations of matrix units: each text gives what its kernel says,
//! and one in which a lane has another element does not.

use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::parse::parse;

use super::unit::Text;
use super::{Backend, EmulatedDevice};
use crate::Tensor;
use crate::device::{Device, DeviceError, RecordedLaunch};

/// Rows, columns and steps of the products.
const SIDE: usize = 32;

/// `c = 2 a bᵀ + a b + aᵀ b`: lines of memory run along the steps of either side and across them,
/// and sums leave their fragments for a map and return.
const PRODUCTS: &str = "kernel @products grid(1, 1, 1) workgroup(128, 1, 1) {
  dim #n
  param @a: tensor<TYPE, [#n, #n], read, align 1>
  param @b: tensor<TYPE, [#n, #n], read, align 1>
  param @c: tensor<f32, [#n, #n], read_write, align 1>
  tile !a: shared [TYPE; 32, 32]
  tile !b: shared [TYPE; 32, 32]
  tile !sum: register [f32; 32, 32]

  tile_fill !sum = 0.0f32
  tile_load !a = @a[0u32, 0u32]
  tile_load !b = @b[0u32, 0u32]
  matmul !sum += !a * !b transposed
  tile_map !sum = (%x: f32 = !sum) at (%i: u32, %j: u32) {
    %twice: f32 = add %x, %x
    yield %twice
  }
  matmul !sum += !a * !b
  matmul !sum += !a transposed * !b
  tile_store @c[0u32, 0u32] = !sum
}
";

/// `c = a bᵀ` of rows of 200, in turns of 64 of which the last is short.
const TURNS: &str = "kernel @turns grid(1, 1, 1) workgroup(128, 1, 1) {
  dim #n
  dim #k
  param @a: tensor<bf16, [#n, #k], read, align 1>
  param @b: tensor<bf16, [#n, #k], read, align 1>
  param @c: tensor<f32, [#n, #n], read_write, align 1>
  tile !a: shared [bf16; 32, 64]
  tile !b: shared [bf16; 32, 64]
  tile !sum: register [f32; 32, 32]

  tile_fill !sum = 0.0f32
  for %k: u32 in 0u32 .. #k step 64u32 {
    tile_load !a = @a[0u32, %k]
    tile_load !b = @b[0u32, %k]
    matmul !sum += !a * !b transposed
  }
  tile_store @c[0u32, 0u32] = !sum
}
";

/// Small whole numbers, whose sums are exact in whatever order.
fn element(seed: usize, row: usize, column: usize) -> i32 {
    ((row * 7 + column * 3 + row * column + seed) % 11) as i32 - 5
}

fn expected() -> Vec<f32> {
    let a = |row, column| element(0, row, column);
    let b = |row, column| element(4, row, column);
    let at = |row: usize, column: usize| -> i32 {
        (0..SIDE)
            .map(|k| 2 * a(row, k) * b(column, k) + (a(row, k) + a(k, row)) * b(k, column))
            .sum()
    };
    let places = (0..SIDE * SIDE).map(|n| (n / SIDE, n % SIDE));
    places.map(|(row, column)| at(row, column) as f32).collect()
}

/// The text of a kernel that went through `change`.
fn text(device: &EmulatedDevice, kernel: &str, change: impl Fn(String) -> String) -> Text {
    let kernel = parse(kernel).expect("the kernel is right");
    let text = device.text(&kernel).expect("lowers");
    assert!(text.source.contains("fragment_product"), "{}", text.source);
    let source = change(text.source.clone());
    text.with_source(source)
}

fn replaced<'a>((from, to): &'a Change) -> impl Fn(String) -> String + 'a {
    move |text| {
        assert!(text.contains(from), "`{from}` is not in\n{text}");
        text.replacen(from, to, 1)
    }
}

/// What a text makes of operands with rows of that many elements.
fn products(
    own: &Arc<EmulatedDevice>,
    scalar: Scalar,
    width: usize,
    text: Text,
) -> Result<Vec<f32>, DeviceError> {
    let pipeline = own.pipeline_of(text)?;
    let device: Arc<dyn Device> = own.clone();
    let operand = |seed| {
        let places = (0..SIDE * width).map(|n| element(seed, n / width, n % width) as f32);
        let bits: Vec<u16> = match scalar {
            Scalar::BF16 => places.map(|x| (x.to_bits() >> 16) as u16).collect(),
            _ => places.map(|x| half::f16::from_f32(x).to_bits()).collect(),
        };
        Tensor::from_slice(&device, scalar, &[SIDE as u64, width as u64], &bits)
    };
    let (a, b) = (operand(0)?, operand(4)?);
    let shape = [SIDE as u64; 2];
    let c = Tensor::from_slice(&device, Scalar::F32, &shape, &[7f32; SIDE * SIDE])?;
    let arguments = [&a, &b, &c].map(|t| Argument::Tensor(t.tensor_arg()));
    let launch = RecordedLaunch::new(Arc::new(pipeline), arguments.to_vec())?;
    device.submit(&[launch])?;
    device.synchronize()?;
    let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Ok(c.to_bytes()?.chunks_exact(4).map(float).collect())
}

/// What a text has, and what a wrong one has instead.
type Change = (&'static str, &'static str);

const WRONG: [(Backend, &str, &[Change]); 4] = [
    (
        Backend::EmulatedHip,
        "gfx942",
        &[
            // An operand's lines, steps along and across them; the sums' rows and columns.
            (
                "lane % 16u * pitch + lane / 16u",
                "lane % 8u * pitch + lane / 16u",
            ),
            ("pitch + lane / 16u * 4u)", "pitch + lane / 32u * 4u)"),
            (
                "own[2u * pitch], own[3u * pitch]",
                "own[3u * pitch], own[2u * pitch]",
            ),
            (
                "first + lane / 16u * 4u * pitch",
                "first + lane / 16u * pitch",
            ),
            (
                "own[i * pitch] = sums[i]",
                "own[(3u - i) * pitch] = sums[i]",
            ),
            (
                "sums[i] = own[i * pitch]",
                "sums[i] = own[(3u - i) * pitch]",
            ),
        ],
    ),
    (
        Backend::EmulatedHip,
        "gfx1100",
        &[
            (
                "first + threadIdx.x % 16u * pitch",
                "first + threadIdx.x % 32u / 2u * pitch",
            ),
            ("own + 8u", "own"),
            (
                "part[k] = own[k * pitch]",
                "part[k] = own[(15u - k) * pitch]",
            ),
            (
                "first + lane / 16u * pitch",
                "first + lane / 16u * 8u * pitch",
            ),
            ("own[2u * i * pitch] = sums[i]", "own[i * pitch] = sums[i]"),
            ("sums[i] = own[2u * i * pitch]", "sums[i] = own[i * pitch]"),
        ],
    ),
    (
        Backend::EmulatedMsl,
        "metal3.1",
        &[
            ("i % 2u * 8u * a_pitch", "i % 2u * 4u * a_pitch"),
            ("j % 2u * 8u * b_pitch + k", "j % 2u * 8u * b_pitch"),
            ("true", "false"),
            ("i % 2u * 2u + j % 2u", "j % 2u * 2u + i % 2u"),
            (
                "simdgroup_store(sums[1], first + 8u",
                "simdgroup_store(sums[1], first + 4u",
            ),
            (
                "simdgroup_load(sums[2], first + 8u * pitch",
                "simdgroup_load(sums[2], first + 8u",
            ),
        ],
    ),
    (
        Backend::EmulatedCuda,
        "sm_80",
        &[
            ("lane / 4u * pitch", "lane / 8u * pitch"),
            (
                "fragment_across_lines((const unsigned short*)b",
                "fragment_of_lines((const unsigned short*)b",
            ),
        ],
    ),
];

#[test]
fn products_of_fragments_are_right_and_another_lane_is_seen() {
    for (backend, profile, changes) in WRONG {
        let device = match EmulatedDevice::open(backend, Some(profile)) {
            Ok(device) => Arc::new(device),
            Err(DeviceError::Missing { looked_for, .. }) => {
                eprintln!("skipped: {looked_for}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let kernel = |scalar: Scalar| PRODUCTS.replace("TYPE", scalar.name());
        let whole = |scalar| text(&device, &kernel(scalar), |text| text);
        let wrong = |change| text(&device, &kernel(Scalar::BF16), replaced(change));
        let mut texts = vec![whole(Scalar::BF16), whole(Scalar::F16)];
        texts.extend(changes.iter().map(wrong));
        device.compiler.prepare(&texts);
        for scalar in [Scalar::BF16, Scalar::F16] {
            let found = products(&device, scalar, SIDE, whole(scalar)).expect("runs");
            assert_eq!(found, expected(), "{profile} {scalar}");
        }
        for change in changes {
            match products(&device, Scalar::BF16, SIDE, wrong(change)) {
                Ok(found) => assert!(found != expected(), "{profile}: `{}` is not seen", change.1),
                Err(DeviceError::Fault { .. }) => {}
                Err(error) => panic!("{profile}: `{}`: {error}", change.1),
            }
        }
    }
}

/// A copy that nobody waited for, a slice that is overwritten while it is read, and a chunk outside
/// of its tensor.
#[test]
fn slices_that_copies_bring_are_whole_when_they_are_read() {
    const WIDTH: usize = 200;
    let changes: [Change; 3] = [
        ("wait_batches<2>();", "wait_batches<3>();"),
        (
            "wait_batches<2>();\n            __syncthreads();",
            "wait_batches<2>();",
        ),
        ("16u : 0u", "16u : 16u"),
    ];
    let device = match EmulatedDevice::open(Backend::EmulatedCuda, Some("sm_80")) {
        Ok(device) => Arc::new(device),
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let at = |n: usize| -> i32 {
        let (row, column) = (n / SIDE, n % SIDE);
        (0..WIDTH)
            .map(|k| element(0, row, k) * element(4, column, k))
            .sum()
    };
    let expected: Vec<f32> = (0..SIDE * SIDE).map(|n| at(n) as f32).collect();
    let found = products(
        &device,
        Scalar::BF16,
        WIDTH,
        text(&device, TURNS, |text| text),
    );
    assert_eq!(found.expect("runs"), expected);
    for (from, to) in changes {
        let wrong = text(&device, TURNS, |text| {
            assert!(text.contains(from), "`{from}` is not in\n{text}");
            text.replace(from, to)
        });
        let found = products(&device, Scalar::BF16, WIDTH, wrong).expect("runs");
        assert!(found != expected, "`{to}` is not seen");
    }
}
