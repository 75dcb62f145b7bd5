//! Modules of small kernels, checked by `spirv-val` where it is installed.

use std::process::Command;

use iron_ir::kernel::{Access, Kernel, Space};
use iron_ir::op::{
    AtomicOp, BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp, Op, Place, Stmt,
    SubgroupOp, UnaryOp,
};
use iron_ir::types::{Scalar, Type};

use super::sketch::{Sketch, axpy};
use super::{disassemble, emit};
use crate::profile::{self, Profile};

fn profiles() -> Vec<Profile> {
    profile::of(profile::Target::SpirV)
}

/// Emits for every SPIR-V profile and runs the validator.
fn validate(kernel: &Kernel) -> Vec<String> {
    profiles()
        .iter()
        .map(|profile| {
            let words = emit(kernel, profile).expect("the kernel lowers");
            let text = disassemble(&words);
            if let Err(message) = spirv_val(&words) {
                panic!(
                    "{} for {}: {message}\n{text}",
                    kernel.full_name(),
                    profile.name
                );
            }
            text
        })
        .collect()
}

/// The validator's verdict; a machine without it accepts.
fn spirv_val(words: &[u32]) -> Result<(), String> {
    use std::io::Write;
    use std::process::Stdio;
    let child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.3", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: spirv-val is not installed");
        return Ok(());
    };
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&bytes).expect("the validator reads");
    }
    let output = child.wait_with_output().expect("the validator ends");
    if output.status.success() {
        return Ok(());
    }
    let all = [output.stdout, output.stderr].concat();
    Err(String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn axpy_is_valid_and_readable() {
    let texts = validate(&axpy(Scalar::F32));
    assert!(
        texts[0].contains("; kernel axpy-f32, profile vulkan1.3"),
        "{}",
        texts[0]
    );
    assert!(texts[0].contains("%sum = OpFAdd %f32"), "{}", texts[0]);
    assert!(texts[0].contains("; NoContraction"), "{}", texts[0]);
    validate(&axpy(Scalar::F16));
}

/// Products of fragments need a validator of 2025.3 or later, which `cargo xtask build-kernels` has.
#[test]
fn fragments_are_cooperative_matrices() {
    let text = "kernel @k grid(1, 1, 1) workgroup(128, 1, 1) {
  dim #n
  param @a: tensor<bf16, [#n, #n], read, align 1>
  param @c: tensor<bf16, [#n, #n], read_write, align 1>
  tile !a: shared [bf16; 64, 32]
  tile !sum: register [f32; 64, 64]
  tile_fill !sum = 0.0f32
  for %k: u32 in 0u32 .. #n step 32u32 {
    tile_load !a = @a[0u32, %k]
    matmul !sum += !a * !a transposed
  }
  tile_store @c[0u32, 0u32] = !sum
}
";
    let kernel = iron_ir::parse::parse(text).expect("parses");
    let profile = profile::by_name("vulkan1.3-matrix").expect("the profile is known");
    let lowered = crate::lower(&kernel, &profile).expect("lowers");
    let crate::Code::SpirV(words) = lowered.code else {
        panic!("a module");
    };
    let text = disassemble(&words);
    for line in [
        "OpCapability CooperativeMatrixKHR",
        "OpCapability BFloat16CooperativeMatrixKHR",
        "%bf16 = OpTypeFloat 16 BFloat16KHR",
        // The tile, 32 and 8 columns of 16 bits, is an array of four words.
        "OpTypeArray %u32x4 %u32_320",
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
    // A subgroup's grid is 2 by 2: two steps of two and two reads and four products, in each of
    // three loops.
    assert_eq!(text.matches("OpCooperativeMatrixMulAddKHR").count(), 24);
    assert_eq!(text.matches("OpCooperativeMatrixLoadKHR").count(), 24);
}

/// The formula is the driver's only where its power of two is known to be accurate, and needs an
/// `fma` that rounds once.
#[test]
fn exp_leaves_a_fraction_to_an_accurate_driver() {
    let text = "kernel @k grid(1, 1, 1) workgroup(64, 1, 1) {
  param @x: tensor<f32, [64], read_write, align 1>
  %i: u32 = local_index
  %v: f32 = load @x[%i]
  %w: f32 = exp %v
  store @x[%i] = %w
}
";
    let kernel = iron_ir::parse::parse(text).expect("parses");
    let mut profile = profile::by_name("vulkan1.3").expect("the profile is known");
    for (accurate_exp2, fused_multiply_add, instructions) in
        [(false, true, 0), (true, false, 0), (true, true, 1)]
    {
        profile.spirv = profile.spirv.map(|options| super::SpirvOptions {
            accurate_exp2,
            fused_multiply_add,
            ..options
        });
        let lowered = crate::lower(&kernel, &profile).expect("lowers");
        let crate::Code::SpirV(words) = lowered.code else {
            panic!("a module");
        };
        let text = disassemble(&words);
        assert_eq!(text.matches(" Exp2 ").count(), instructions, "{text}");
        spirv_val(&words).expect("valid");
    }
}

#[test]
fn the_validator_is_asked() {
    let mut words = emit(&axpy(Scalar::F32), &profiles()[0]).expect("the kernel lowers");
    if Command::new("spirv-val").arg("--version").output().is_ok() {
        let last = words.len() - 1;
        words.truncate(last);
        assert!(spirv_val(&words).is_err());
    }
}

/// A loop with `continue`, `break` in a branch, an inner endless loop and an early return.
#[test]
fn control_flow_is_structured() {
    let mut s = Sketch::new("flow", 32);
    let y = s.tensor("y", Scalar::U32, Access::ReadWrite);
    let total = s.local("total", Type::U32);
    let (zero, one, three) = (s.u32(0), s.u32(1), s.u32(3));
    let n = s.n();
    let i = s.builtin(BuiltinOp::GlobalId);
    let outside = s.compare(CompareOp::Ge, i, n);
    s.if_else(outside, |s| s.push(Stmt::Return), |_| {});
    s.push(Stmt::Set(total, zero));
    let end = s.load(y, i, Type::U32);
    s.for_range([zero, end, three], |s, index| {
        let rest = s.binary(BinaryOp::And, index, one);
        let odd = s.compare(CompareOp::Eq, rest, one);
        s.if_else(odd, |s| s.push(Stmt::Continue), |_| {});
        let sum = s.get(total);
        let sum = s.binary(BinaryOp::Add, sum, index);
        s.push(Stmt::Set(total, sum));
        let large = s.compare(CompareOp::Gt, sum, n);
        s.if_else(large, |s| s.push(Stmt::Break), |s| s.push(Stmt::Continue));
        s.push(Stmt::Set(total, zero));
    });
    let body = s.nest(|s| {
        let sum = s.get(total);
        let small = s.compare(CompareOp::Lt, sum, three);
        s.if_else(small, |s| s.push(Stmt::Break), |_| {});
        let body = s.nest(|s| s.push(Stmt::Break));
        s.push(Stmt::Loop { body });
        let sum = s.binary(BinaryOp::Sub, sum, three);
        s.push(Stmt::Set(total, sum));
    });
    s.push(Stmt::Loop { body });
    let sum = s.get(total);
    s.store(y, i, sum);
    let texts = validate(&s.finish());
    // The end is not bounded, so a wrapped index must end the loop.
    assert!(texts[0].contains("OpSelect %u32"), "{}", texts[0]);
}

/// Every kind of memory, vector width and exchange in one module.
#[test]
fn memory_and_exchanges_are_valid() {
    let mut s = Sketch::new("everything", 48);
    let bytes = s.tensor("bytes", Scalar::U8, Access::ReadWrite);
    let halves = s.tensor("halves", Scalar::F16, Access::ReadWrite);
    let floats = s.tensor("floats", Scalar::F32, Access::ReadWrite);
    let longs = s.tensor("longs", Scalar::U64, Access::ReadWrite);
    let shared = s.array("tile", Scalar::F32, 48, Space::Shared);
    let private = s.array("mine", Scalar::U16, 4, Space::Private);
    let i = s.builtin(BuiltinOp::LocalIndex);
    let one = s.u32(1);
    let a = s.load(bytes, i, Scalar::U8.x(8));
    let wide = s.compute(Op::Convert(a), Scalar::F32.x(8));
    let narrow = s.compute(Op::Convert(wide), Scalar::F16.x(8));
    s.store(halves, i, narrow);
    let h = s.load(halves, i, Scalar::F16.x(2));
    let words = s.compute(Op::Bitcast(h), Type::U32);
    let back = s.compute(Op::Bitcast(words), Scalar::U8.x(4));
    s.store(bytes, i, back);
    let eight = s.compute(Op::Bitcast(a), Type::U64);
    s.store(longs, i, eight);
    let again = s.compute(Op::Bitcast(eight), Scalar::U8.x(8));
    let lane = s.compute(Op::Extract(again, 6), Scalar::U8.x(1));
    let again = s.compute(Op::Insert(again, 7, lane), Scalar::U8.x(8));
    s.store(bytes, i, again);
    let f = s.load(floats, i, Scalar::F32.x(4));
    let product = s.binary(BinaryOp::Mul, f, f);
    let fused = s.compute(Op::Fma(f, product, f), Scalar::F32.x(4));
    let lane = s.compute(Op::Extract(fused, 2), Type::F32);
    s.store_array(shared, i, lane);
    s.push(Stmt::Barrier(
        BarrierScope::Workgroup,
        BarrierMemory::SharedAndGlobal,
    ));
    let four = s.load_array(shared, i, Scalar::F32.x(4));
    let largest = s.binary(BinaryOp::MaxNan, four, fused);
    s.store(floats, i, largest);
    let short = s.compute(Op::Convert(i), Scalar::U16.x(1));
    s.store_array(private, one, short);
    let value = Some(lane);
    let adds = [Place::Array(shared), Place::Flat(floats)];
    for place in adds {
        let wide = matches!(place, Place::Flat(_));
        let index = if wide {
            s.compute(Op::Convert(i), Type::U64)
        } else {
            i
        };
        s.effect(Type::F32, |result| Stmt::Atomic {
            result,
            op: AtomicOp::Add,
            place,
            indices: vec![index],
            value,
            compare: None,
        });
    }
    let index = s.compute(Op::Convert(i), Type::U64);
    s.effect(Type::U64, |result| Stmt::Atomic {
        result,
        op: AtomicOp::CompareExchange,
        place: Place::Flat(longs),
        indices: vec![index],
        value: Some(eight),
        compare: Some(index),
    });
    for op in [
        SubgroupOp::ShuffleXor,
        SubgroupOp::ShuffleDown,
        SubgroupOp::Broadcast,
    ] {
        s.effect(Type::F32, |result| Stmt::Subgroup {
            result,
            op,
            reduce: None,
            value: lane,
            argument: Some(one),
        });
    }
    let even = s.compare(CompareOp::Eq, i, one);
    let mask = s.effect(Type::U64, |result| Stmt::Subgroup {
        result,
        op: SubgroupOp::Ballot,
        reduce: None,
        value: even,
        argument: None,
    });
    let ones = s.unary(UnaryOp::CountOnes, mask);
    let checked = s.effect(Type::U32, |result| Stmt::CheckIndex {
        result,
        index: ones,
        bound: one,
    });
    let high = s.binary(BinaryOp::MulHigh, mask, eight);
    s.store(longs, checked, high);
    validate(&s.finish());
}

/// Every pure operator on every type that it has.
#[test]
fn every_operator_is_valid() {
    for scalar in Scalar::ALL {
        if matches!(scalar, Scalar::BF16 | Scalar::F64) || !(scalar.is_int() || scalar.is_float()) {
            continue;
        }
        for lanes in [1, 2, 4, 8] {
            let mut s = Sketch::new("operators", 64);
            let x = s.tensor("x", scalar, Access::ReadWrite);
            let i = s.builtin(BuiltinOp::LocalIndex);
            let v = s.load(x, i, scalar.x(lanes));
            for &op in UnaryOp::ALL {
                let float_only = !matches!(
                    op,
                    UnaryOp::Neg
                        | UnaryOp::Not
                        | UnaryOp::Abs
                        | UnaryOp::CountOnes
                        | UnaryOp::LeadingZeros
                        | UnaryOp::TrailingZeros
                        | UnaryOp::ReverseBits
                );
                let both = matches!(op, UnaryOp::Neg | UnaryOp::Abs);
                if both || float_only == scalar.is_float() {
                    s.unary(op, v);
                }
            }
            for &op in BinaryOp::ALL {
                let float_only = matches!(op, BinaryOp::MinNan | BinaryOp::MaxNan | BinaryOp::Pow);
                if matches!(op, BinaryOp::Dot4 | BinaryOp::Dot4Mixed) {
                    // No profile has them: the passes take the bytes apart.
                    continue;
                }
                let int_only = matches!(
                    op,
                    BinaryOp::Rem
                        | BinaryOp::And
                        | BinaryOp::Or
                        | BinaryOp::Xor
                        | BinaryOp::Shl
                        | BinaryOp::Shr
                        | BinaryOp::MulHigh
                );
                if (float_only && !scalar.is_float()) || (int_only && scalar.is_float()) {
                    continue;
                }
                s.binary(op, v, v);
            }
            for &op in CompareOp::ALL {
                let mask = s.compare(op, v, v);
                s.compute(Op::Select(mask, v, v), scalar.x(lanes));
            }
            for to in Scalar::ALL {
                if to != Scalar::BF16 && (to.is_int() || to.is_float()) && to != Scalar::F64 {
                    s.compute(Op::Convert(v), to.x(lanes));
                }
            }
            s.store(x, i, v);
            validate(&s.finish());
        }
    }
}
