//! Passes never change results: every kernel here is run by the reference as written and after
//! every pass of the pipeline, for several targets, and all outputs are the same bits (any NaN
//! equals any other). The reference checks races, bounds and initialisation of what the passes
//! made as well.

use std::sync::Arc;

use iron_ir::contract::{Bindings, Expr};
use iron_ir::kernel::{Kernel, ParamKind};
use iron_ir::launch::{Argument, AsTensorArg};
use iron_ir::parse::parse;
use iron_ir::{Const, Handle, Scalar, Type};
use iron_passes::{Legal, run_with};
use iron_runtime::reference::{ReferenceDevice, ReferenceOptions};
use iron_runtime::{Device, RecordedLaunch, Tensor};

/// Targets that differ in what they make the passes do.
fn targets() -> Vec<(&'static str, u32, Legal)> {
    let c_family = Legal {
        has_bf16_memory: true,
        max_vector_lanes: 8,
        linear_subgroups: true,
        native_saturating_convert: true,
        native_ordered_minmax: true,
        native_total_division: true,
        has_erf: true,
        expand_unrolled_loops: false,
        subgroup_size: Some(32),
        ..Legal::PORTABLE
    };
    vec![
        ("portable", 16, Legal::PORTABLE),
        ("c-family, 32 lanes", 32, c_family.clone()),
        (
            "c-family, 64 lanes",
            64,
            Legal {
                subgroup_size: Some(64),
                ..c_family
            },
        ),
        (
            "8 lanes, collectives of its own",
            8,
            Legal {
                subgroup_size: Some(8),
                linear_subgroups: true,
                native_collectives: true,
                ..Legal::PORTABLE
            },
        ),
        (
            "8 lanes, no halves, no vectors",
            8,
            Legal {
                subgroup_size: Some(8),
                linear_subgroups: true,
                has_f16_memory: false,
                max_vector_lanes: 1,
                ..Legal::PORTABLE
            },
        ),
    ]
}

/// A small generator with a fixed seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ (self.0 << 20)
    }
}

/// What tensors hold before the launch.
#[derive(Clone, Copy)]
enum Fill {
    /// Numbers of moderate size.
    Numbers,
    /// Any bits, edges among them.
    Bits,
}

fn contents(random: &mut Random, scalar: Scalar, fill: Fill) -> u64 {
    let raw = random.next();
    let edges = [
        0,
        u64::MAX,
        1 << (scalar.bits() - 1),
        (1 << (scalar.bits() - 1)) - 1,
        1,
        u64::MAX - 1,
    ];
    match fill {
        Fill::Numbers if scalar.is_float() => {
            Const::float(scalar, (raw % 2001) as f64 / 250.0 - 4.0).bits
        }
        Fill::Numbers if scalar.is_int() => raw % 100,
        Fill::Bits if raw.is_multiple_of(4) && scalar != Scalar::Bool => {
            edges[(raw >> 8) as usize % edges.len()]
        }
        Fill::Bits if raw % 4 == 1 && scalar.is_float() => {
            let edges = [
                0.0, -0.0, 1.5, -2.5, 255.5, -1.0, 3e9, -3e9, 65519.9, 1e30, 448.5, 464.0, 1e-6,
            ];
            Const::float(scalar, edges[(raw >> 8) as usize % edges.len()]).bits
        }
        _ if scalar == Scalar::Bool => raw & 1,
        _ => raw,
    }
}

/// Bits of every tensor after a run.
type Outcome = Vec<(String, Scalar, Vec<u8>)>;

struct Case {
    dims: Vec<u32>,
    scalars: Vec<(&'static str, Const)>,
    fill: Fill,
    offset_stride: u64,
}

impl Case {
    fn new(dims: &[u32]) -> Case {
        Case {
            dims: dims.to_vec(),
            scalars: Vec::new(),
            fill: Fill::Numbers,
            offset_stride: 0,
        }
    }

    fn bits(mut self) -> Case {
        self.fill = Fill::Bits;
        self
    }

    fn execute(&self, kernel: &Kernel, subgroup_size: u32) -> Result<Outcome, String> {
        let options = ReferenceOptions {
            subgroup_size,
            ..Default::default()
        };
        let device: Arc<dyn Device> = Arc::new(ReferenceDevice::with_options(options));
        let bindings = Bindings {
            dims: self.dims.clone(),
            scalars: Vec::new(),
        };
        let mut random = Random(7);
        let mut tensors = Vec::new();
        let mut arguments = Vec::new();
        for param in kernel.params.values() {
            match &param.kind {
                ParamKind::Scalar(scalar) => {
                    let given = self.scalars.iter().find(|(name, _)| **name == *param.name);
                    let value = given.map_or(Const::int(*scalar, 3), |(_, c)| *c);
                    arguments.push(Argument::Scalar(value));
                }
                ParamKind::Tensor(tensor) => {
                    let extent = |e: &Expr| e.eval(&bindings).unwrap() as u64;
                    let shape: Vec<u64> = tensor.shape.iter().map(extent).collect();
                    // Rows are padded, so that a stride is not an extent.
                    let mut padded = shape.clone();
                    if let Some(last) = padded.last_mut() {
                        *last += self.offset_stride;
                    }
                    let count: u64 = padded.iter().product();
                    let size = tensor.scalar.bytes() as usize;
                    let bytes: Vec<u8> = (0..count)
                        .flat_map(|_| {
                            contents(&mut random, tensor.scalar, self.fill).to_le_bytes()[..size]
                                .to_vec()
                        })
                        .collect();
                    let whole =
                        Tensor::from_bytes(&device, tensor.scalar, &padded, &bytes).unwrap();
                    let axis = shape.len() - 1;
                    let view = whole.slice(axis, 0..shape[axis]).unwrap();
                    arguments.push(Argument::Tensor(view.tensor_arg()));
                    tensors.push((param.name.to_string(), tensor.scalar, whole));
                }
            }
        }
        let pipeline = device.pipeline(kernel).map_err(|e| e.to_string())?;
        let launch = RecordedLaunch::new(pipeline, arguments).map_err(|e| e.to_string())?;
        device.submit(&[launch]).map_err(|e| e.to_string())?;
        device.synchronize().map_err(|e| e.to_string())?;
        Ok(tensors
            .into_iter()
            .map(|(n, s, t)| (n, s, t.to_bytes().unwrap()))
            .collect())
    }

    /// Runs the kernel as written and after every pass for every target.
    fn check(&self, text: &str) {
        let kernel = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut first = None;
        for (target, lanes, legal) in targets() {
            let expected = self
                .execute(&kernel, lanes)
                .unwrap_or_else(|e| panic!("as written: {e}\n{text}"));
            if uses_tiles_or_groups_only(text) {
                let first = first.get_or_insert_with(|| expected.clone());
                assert_eq!(*first, expected, "the result depends on the subgroup width");
            }
            let mut stages = Vec::new();
            let done = run_with(kernel.clone(), &legal, &mut |pass, k| {
                stages.push((pass, k.clone()))
            });
            done.unwrap_or_else(|e| {
                let last = stages
                    .last()
                    .map_or(String::new(), |(_, k)| iron_ir::print::print(k));
                panic!("{target}: {e}\n{text}\n{last}")
            });
            let mut last = kernel.clone();
            for (pass, after) in &stages {
                if *after == last {
                    continue;
                }
                last = after.clone();
                let shown = || iron_ir::print::print(after);
                let round = parse(&shown())
                    .unwrap_or_else(|e| panic!("{target}, {pass}: {e}\n{}", shown()));
                assert_eq!(
                    round,
                    iron_ir::print::without_spans(&iron_ir::print::canonical(after))
                );
                let found = self
                    .execute(after, lanes)
                    .unwrap_or_else(|e| panic!("{target}, after {pass}: {e}\n{}", shown()));
                for ((name, scalar, want), (_, _, got)) in expected.iter().zip(&found) {
                    if let Some(at) = differs(*scalar, want, got) {
                        let size = scalar.bytes() as usize;
                        let range = at * size..(at + 1) * size;
                        panic!(
                            "{target}, after {pass}: `{name}`[{at}] is {:?}, was {:?}\n{text}\n{}",
                            &got[range.clone()],
                            &want[range],
                            shown()
                        );
                    }
                }
            }
        }
    }
}

fn uses_tiles_or_groups_only(text: &str) -> bool {
    !text.contains("subgroup")
}

/// The first element that differs, any NaN being equal to any other.
fn differs(scalar: Scalar, want: &[u8], got: &[u8]) -> Option<usize> {
    let size = scalar.bytes() as usize;
    let read = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        Const {
            scalar,
            bits: u64::from_le_bytes(wide),
        }
    };
    let number = scalar.is_float() || matches!(scalar, Scalar::F8E4M3 | Scalar::F8E5M2);
    want.chunks(size).zip(got.chunks(size)).position(|(a, b)| {
        let both_nan = number && read(a).as_f64().is_nan() && read(b).as_f64().is_nan();
        a != b && !both_nan
    })
}

/// A kernel of one workgroup a 64 elements that maps inputs to an output.
fn elementwise(inputs: &[(&str, Type)], output: Type, body: &str) -> String {
    let mut text =
        String::from("kernel @k grid(ceil_div(#n, 64), 1, 1) workgroup(64, 1, 1) {\n  dim #n\n");
    for (name, ty) in inputs {
        text += &format!(
            "  param @{name}: tensor<{}, [#n, {}], read, align {}>\n",
            ty.scalar, ty.lanes, ty.lanes
        );
    }
    text += &format!(
        "  param @out: tensor<{}, [#n, {}], read_write, align {}>\n",
        output.scalar, output.lanes, output.lanes
    );
    text += "  %in: bool = lt global_id.0, #n\n  if %in {\n";
    for (name, ty) in inputs {
        text += &format!("    %{name}: {ty} = load @{name}[global_id.0, 0u32]\n");
    }
    text += &format!("    {body}\n    store @out[global_id.0, 0u32] = %r\n  }}\n}}\n");
    text
}

const INTS: [Scalar; 8] = [
    Scalar::I8,
    Scalar::I16,
    Scalar::I32,
    Scalar::I64,
    Scalar::U8,
    Scalar::U16,
    Scalar::U32,
    Scalar::U64,
];
const FLOATS: [Scalar; 3] = [Scalar::F16, Scalar::BF16, Scalar::F32];

/// K07, K08, K10 after every pass.
#[test]
fn integer_arithmetic() {
    for scalar in INTS {
        for op in [
            "add", "sub", "mul", "div", "rem", "and", "xor", "shl", "shr", "min", "max", "mul_high",
        ] {
            let ty = scalar.x(1);
            let body = format!("%r: {ty} = {op} %a, %b");
            let text = elementwise(&[("a", ty), ("b", ty)], ty, &body);
            Case::new(&[300]).bits().check(&text);
        }
        let dots: &[&str] = match scalar {
            Scalar::I32 => &["dot4", "dot4_mixed"],
            Scalar::U32 => &["dot4"],
            _ => &[],
        };
        for op in dots {
            for ty in [scalar.x(1), scalar.x(4)] {
                let body = format!("%r: {ty} = {op} %a, %b");
                let text = elementwise(&[("a", ty), ("b", ty)], ty, &body);
                Case::new(&[300]).bits().check(&text);
            }
        }
        let wide = scalar.x(4);
        let body = format!("%q: {wide} = div %a, %b\n    %r: {wide} = shr %q, %b");
        Case::new(&[70])
            .bits()
            .check(&elementwise(&[("a", wide), ("b", wide)], wide, &body));
    }
}

/// K11 and halves after every pass.
#[test]
fn float_arithmetic() {
    for scalar in FLOATS {
        let ty = scalar.x(1);
        for op in [
            "add", "sub", "mul", "div", "min", "max", "min_nan", "max_nan",
        ] {
            let body = format!("%r: {ty} = {op} %a, %b");
            Case::new(&[900])
                .bits()
                .check(&elementwise(&[("a", ty), ("b", ty)], ty, &body));
        }
        for op in ["neg", "abs", "sqrt", "floor", "round_even"] {
            let body = format!("%r: {ty} = {op} %a");
            Case::new(&[500])
                .bits()
                .check(&elementwise(&[("a", ty)], ty, &body));
        }
        let wide = scalar.x(8);
        let body = format!(
            "%s: {wide} = fma %a, %b, %a\n    %c: boolx8 = lt %a, %b\n    %m: {wide} = max %s, %b\n    %r: {wide} = select %c, %m, %s"
        );
        Case::new(&[70])
            .bits()
            .check(&elementwise(&[("a", wide), ("b", wide)], wide, &body));
    }
}

/// K15, K40: every pair of types.
#[test]
fn conversions() {
    let numbers = [
        Scalar::I8,
        Scalar::I16,
        Scalar::I32,
        Scalar::I64,
        Scalar::U8,
        Scalar::U16,
        Scalar::U32,
        Scalar::U64,
        Scalar::F16,
        Scalar::BF16,
        Scalar::F32,
        Scalar::F64,
    ];
    let mut pairs = Vec::new();
    for from in numbers {
        pairs.extend(numbers.map(|to| (from, to)));
        if from.is_float() {
            pairs.extend([(from, Scalar::F8E4M3), (from, Scalar::F8E5M2)]);
        }
    }
    for from in [Scalar::F8E4M3, Scalar::F8E5M2, Scalar::E8M0] {
        pairs.extend([Scalar::F16, Scalar::BF16, Scalar::F32, Scalar::F64].map(|to| (from, to)));
    }
    pairs.extend(numbers.map(|to| (Scalar::Bool, to)));
    for (from, to) in pairs {
        for lanes in [1, 4] {
            let body = format!("%r: {} = convert %a", to.x(lanes));
            let text = elementwise(&[("a", from.x(lanes))], to.x(lanes), &body);
            Case::new(&[if lanes == 1 { 500 } else { 20 }])
                .bits()
                .check(&text);
        }
    }
}

#[test]
fn packed_numbers() {
    for lanes in [1, 2, 4] {
        for to in FLOATS {
            let body = format!("%r: {} = convert %a", to.x(2 * lanes));
            let text = elementwise(&[("a", Scalar::F4E2M1x2.x(lanes))], to.x(2 * lanes), &body);
            Case::new(&[256]).bits().check(&text);
        }
    }
    for to in [Scalar::I32, Scalar::I8, Scalar::F32, Scalar::F16] {
        let body = format!("%r: {} = convert %a", to.x(8));
        Case::new(&[200])
            .bits()
            .check(&elementwise(&[("a", Scalar::Int4x8.x(1))], to.x(8), &body));
    }
    for (from, to) in [
        ("u32", "u8x4"),
        ("u8x4", "f32"),
        ("f32x2", "u16x4"),
        ("u64", "f16x4"),
        ("bf16x2", "i32"),
    ] {
        let (from, to) = (Type::from_name(from).unwrap(), Type::from_name(to).unwrap());
        let body = format!("%r: {to} = bitcast %a");
        Case::new(&[100])
            .bits()
            .check(&elementwise(&[("a", from)], to, &body));
    }
}

#[test]
fn vectors_and_truth_values() {
    let (v8, b8) = (Scalar::F32.x(8), Scalar::Bool.x(8));
    let body = "%r: boolx8 = lt %a, %b";
    Case::new(&[70]).check(&elementwise(&[("a", v8), ("b", v8)], b8, body));
    let body = "%e: f32 = extract %a, 5\n    %i: f32x8 = insert %b, 6, %e\n    %s: f32x8 = splat %e\n    %c: f16x8 = convert %i\n    %d: f32x8 = convert %c\n    %r: f32x8 = select %m, %d, %s";
    Case::new(&[70]).check(&elementwise(&[("a", v8), ("b", v8), ("m", b8)], v8, body));
}

#[test]
fn workgroup_collectives() {
    for threads in [1, 3, 8, 31, 32, 48, 64, 128, 200, 256, 1024] {
        for (scalar, op) in [
            ("f32", "sum"),
            ("f32", "min"),
            ("f32", "max_nan"),
            ("i32", "product"),
            ("u64", "max"),
            ("f16", "sum"),
            ("bool", "or"),
            ("u8", "and"),
        ] {
            let text = format!(
                "kernel @k grid(2, 1, 1) workgroup({threads}, 1, 1) {{
  dim #n
  param @x: tensor<{scalar}, [2, #n], read, align 1>
  param @y: tensor<{scalar}, [2, #n], read_write, align 1>
  param @z: tensor<{scalar}, [2, #n], read_write, align 1>
  %a: {scalar} = load @x[group_id.0, local_index]
  %s: {scalar} = group reduce.{op} %a
  %t: {scalar} = group reduce.{op} %s
  %in: bool = eq local_index, 0u32
  %b: {scalar} = group broadcast %t, {}u32
  %r: {scalar} = select %in, %s, %b
  store @y[group_id.0, local_index] = %r
  store @z[group_id.0, local_index] = %s
}}
",
                threads / 2
            );
            Case::new(&[threads]).bits().check(&text);
        }
    }
}

#[test]
fn workgroup_scans_and_loops_of_collectives() {
    for (threads, scalar) in [1, 5, 32, 64, 100, 256]
        .into_iter()
        .flat_map(|t| [(t, "u32"), (t, "f32")])
    {
        let zero = if scalar == "f32" { "0.0f32" } else { "0u32" };
        let text = format!(
            "kernel @k grid(1, 1, 1) workgroup({threads}, 1, 1) {{
  dim #n
  param @x: tensor<{scalar}, [3, #n], read, align 1>
  param @y: tensor<{scalar}, [3, #n], read_write, align 1>
  local $total: {scalar}
  $total = {zero}
  for %i: u32 in 0u32 .. 3u32 {{
    %a: {scalar} = load @x[%i, local_index]
    %s: {scalar} = group scan_inclusive.sum %a
    %e: {scalar} = group scan_exclusive.max %a
    %m: {scalar} = group reduce.max %a
    %1: {scalar} = $total
    %2: {scalar} = add %1, %s
    %3: {scalar} = mul %2, %e
    %4: {scalar} = add %3, %m
    $total = %4
    store @y[%i, local_index] = %4
  }}
}}
"
        );
        Case::new(&[threads]).check(&text);
    }
}

#[test]
fn subgroup_exchanges() {
    for threads in [64, 48, 5] {
        for scalar in ["f32", "f16", "bf16", "u8", "i64"] {
            let text = format!(
                "kernel @k grid(1, 1, 1) workgroup({threads}, 1, 1) {{
  dim #n
  param @x: tensor<{scalar}, [#n], read, align 1>
  param @y: tensor<{scalar}, [2, #n], read_write, align 1>
  %a: {scalar} = load @x[local_index]
  %s: {scalar} = subgroup reduce.sum %a
  %t: {scalar} = subgroup shuffle_xor %a, 1u32
  %b: {scalar} = subgroup broadcast %t, 0u32
  %c: {scalar} = add %s, %b
  store @y[0u32, local_index] = %c
  store @y[1u32, local_index] = %t
}}
"
            );
            Case::new(&[threads]).check(&text);
        }
    }
}

#[test]
fn strided_and_padded_tensors() {
    let text = "kernel @k grid(#rows, 1, 1) workgroup(8, 1, 1) {
  dim #rows
  dim #n
  param @x: tensor<f32, [#rows, #n], read, strided, align 4>
  param @z: tensor<f32, [#rows, #n], read, align 4>
  param @y: tensor<f32, [#rows, #n], read_write, strided, align 4>
  %at: u32 = mul local_index, 4u32
  %in: bool = lt %at, #n
  if %in {
    %a: f32x4 = load @x[group_id.0, %at]
    %b: f32x4 = load @z[group_id.0, %at]
    %c: f32x4 = mul %a, %b
    store @y[group_id.0, %at] = %c
  }
}
";
    let mut case = Case::new(&[3, 28]);
    case.offset_stride = 4;
    case.check(text);
}

#[test]
fn variables_loops_and_jumps() {
    let text = "kernel @k grid(1, 1, 1) workgroup(16, 1, 1) {
  dim #n
  param @x: tensor<i32, [#n], read, align 1>
  param @y: tensor<i32, [#n], read_write, align 1>
  local $sum: i32
  local $i: u32
  private &last: [i32; 4]
  $sum = 0i32
  for %k: u32 in 0u32 .. 4u32 unroll {
    %k0: u32 = rem %k, 4u32
    store &last[%k0] = 7i32
    for %j: u32 in 1u32 .. 3u32 unroll {
      %jk: u32 = mul %j, %k
      %c: i32 = convert %jk
      %1: i32 = $sum
      %2: i32 = add %1, %c
      $sum = %2
    }
  }
  for %k2: u32 in 0u32 .. #n step 3u32 {
    %v: i32 = load @x[%k2]
    %odd: i32 = and %v, 1i32
    %isodd: bool = ne %odd, 0i32
    if %isodd {
      continue
    }
    %slot: u32 = and %k2, 3u32
    store &last[%slot] = %v
    %3: i32 = $sum
    %4: i32 = add %3, %v
    $sum = %4
    %big: bool = gt %4, 200i32
    if %big {
      break
    }
  }
  $i = 0u32
  loop {
    %5: u32 = $i
    %6: u32 = add %5, 1u32
    $i = %6
    %7: bool = ge %6, local_index
    if %7 {
      break
    }
    %8: i32 = load &last[0u32]
    %9: i32 = $sum
    %10: i32 = sub %9, %8
    $sum = %10
  }
  %in: bool = lt local_index, #n
  if %in {
    %11: i32 = $sum
    %12: i32 = load &last[3u32]
    %13: i32 = xor %11, %12
    store @y[local_index] = %13
  }
}
";
    for n in [1, 5, 16, 40] {
        Case::new(&[n]).check(text);
    }
}

fn matmul(threads: u32, tile: (u32, u32, u32), flags: (bool, bool), scalar: &str) -> String {
    let (m, n, k) = tile;
    let flip = |(a, b): (u32, u32), yes: bool| if yes { (b, a) } else { (a, b) };
    let (ar, ac) = flip((m, k), flags.0);
    let (br, bc) = flip((k, n), flags.1);
    let (a_shape, b_shape) = (
        if flags.0 { "#k, #m" } else { "#m, #k" },
        if flags.1 { "#n, #k" } else { "#k, #n" },
    );
    let a_at = if flags.0 { "%kk, %row" } else { "%row, %kk" };
    let b_at = if flags.1 {
        "%column, %kk"
    } else {
        "%kk, %column"
    };
    let word = |yes| if yes { " transposed" } else { "" };
    format!(
        "kernel @k grid(ceil_div(#m, {m}), ceil_div(#n, {n}), 1) workgroup({threads}, 1, 1) {{
  dim #m
  dim #n
  dim #k
  param @a: tensor<{scalar}, [{a_shape}], read, align 1>
  param @b: tensor<{scalar}, [{b_shape}], read, align 1>
  param @c: tensor<{scalar}, [#m, #n], read_write, align 1>
  tile !a: shared [{scalar}; {ar}, {ac}]
  tile !b: shared [{scalar}; {br}, {bc}]
  tile !acc: register [f32; {m}, {n}]
  %row: u32 = mul group_id.0, {m}u32
  %column: u32 = mul group_id.1, {n}u32
  tile_fill !acc = 0.0f32
  for %kk: u32 in 0u32 .. #k step {k}u32 {{
    tile_load !a = @a[{a_at}]
    tile_load !b = @b[{b_at}]
    matmul !acc += !a{} * !b{}
  }}
  tile_store @c[%row, %column] = !acc
}}
",
        word(flags.0),
        word(flags.1)
    )
}

#[test]
fn tile_products() {
    for (threads, tile, flags, scalar) in [
        (64, (16, 16, 8), (false, false), "f32"),
        (256, (32, 64, 16), (false, false), "f16"),
        (64, (16, 24, 8), (false, true), "bf16"),
        (96, (8, 40, 4), (true, false), "f32"),
        (32, (4, 4, 32), (true, true), "f32"),
        (1, (3, 5, 2), (false, false), "f32"),
        (128, (1, 64, 16), (false, false), "f32"),
    ] {
        Case::new(&[19, 45, 21]).check(&matmul(threads, tile, flags, scalar));
    }
}

#[test]
fn tile_reductions_and_maps() {
    for (threads, rows, columns) in [
        (256, 32, 64),
        (64, 16, 16),
        (64, 5, 24),
        (96, 7, 9),
        (32, 64, 8),
        (128, 1, 40),
        (256, 33, 1),
        (16, 8, 100),
    ] {
        let text = format!(
            "kernel @k grid(ceil_div(#m, {rows}), 1, 1) workgroup({threads}, 1, 1) {{
  dim #m
  dim #n
  param @x: tensor<f32, [#m, #n], read, align 1>
  param @y: tensor<f16, [#m, #n], read_write, align 1>
  param @s: tensor<f32, [#m, 1], read_write, align 1>
  param @t: tensor<f32, [1, #n], read_write, align 1>
  param @u: tensor<f32, [#n, #m], read_write, align 1>
  tile !x: register [f32; {rows}, {columns}]
  tile !sh: shared [f32; {rows}, {columns}]
  tile !flip: shared [f32; {columns}, {rows}]
  tile !max: register [f32; {rows}, 1]
  tile !sum: register [f32; {rows}, 1]
  tile !col: register [f32; 1, {columns}]
  %row: u32 = mul group_id.0, {rows}u32
  tile_load !x = @x[%row, 0u32]
  reduce_rows.max !max = !x
  tile_map !x = (%e: f32 = !x, %m: f32 = !max) at (%r: u32, %c: u32) {{
    %d: f32 = sub %e, %m
    %inside: bool = lt %c, #n
    %far: f32 = neg 100.0f32
    %1: f32 = select %inside, %d, %far
    %2: f32 = exp %1
    yield %2
  }}
  reduce_rows.sum !sum = !x
  tile_copy !sh = !x
  tile_map !sh = (%e2: f32 = !sh, %s2: f32 = !sum) at (%r2: u32, %c2: u32) {{
    %q: f32 = div %e2, %s2
    yield %q
  }}
  tile_store @y[%row, 0u32] = !sh
  tile_copy !x = !sh
  reduce_columns.sum !col = !x
  reduce_columns.max !col = !x
  tile_load !flip = @x[%row, 0u32] transposed
  tile_store @s[%row, 0u32] = !sum
  tile_store @u[0u32, %row] = !flip
  %first: bool = eq group_id.0, 0u32
  if %first {{
    tile_store @t[0u32, 0u32] = !col
  }}
}}
"
        );
        Case::new(&[rows + rows / 2, columns.max(2) - 1]).check(&text);
    }
}

#[test]
fn handles_are_the_position() {
    // Guards the helper above: parameters in the order of arguments.
    let kernel = parse(&matmul(64, (16, 16, 8), (false, false), "f32")).unwrap();
    let names: Vec<_> = kernel
        .params
        .iter()
        .map(|(p, d)| (p.index(), d.name.to_string()))
        .collect();
    assert_eq!(names[2], (2, "c".to_string()));
}
