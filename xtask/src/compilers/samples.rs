//! Small hand-written texts through each compiler: what must be accepted is, with figures, and what
//! must be refused is refused. A compiler that this machine lacks is skipped by name.

use super::{CompileFailure, Compiled, Compilers, Target};
use crate::process::{find_program, run};
use crate::workspace::Workspace;

/// The architectures that the samples are compiled for.
fn architectures(target: Target) -> &'static [&'static str] {
    match target {
        Target::Msl => &["metal3.1"],
        Target::Cuda => &["sm_90a", "sm_80", "sm_100a"],
        Target::Hip => &["gfx942", "gfx90a", "gfx1100"],
        Target::Spirv => &["vulkan1.3"],
    }
}

/// Compiles for each of the target's architectures; none when the compiler is absent.
fn compile_all(target: Target, source: &[u8]) -> Option<Vec<Result<Compiled, CompileFailure>>> {
    let compilers = Compilers::discover(&Workspace::locate(), &[target]);
    match compilers.get(target)? {
        Ok(compiler) => Some(
            architectures(target)
                .iter()
                .map(|arch| compiler.compile(source, arch))
                .collect(),
        ),
        Err(missing) => {
            eprintln!("SKIPPED: {missing}");
            None
        }
    }
}

fn accepted(target: Target, source: &[u8]) -> Option<Vec<Compiled>> {
    let results = compile_all(target, source)?;
    Some(
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(|failure| panic!("{target}: {failure}")))
            .collect(),
    )
}

fn refusal(target: Target, source: &[u8]) -> Option<String> {
    let mut results = compile_all(target, source)?;
    match results.swap_remove(0) {
        Err(failure @ CompileFailure::Refused { .. }) => Some(failure.to_string()),
        Err(other) => panic!("{target} fails otherwise: {other}"),
        Ok(_) => panic!("{target} accepts what it must refuse"),
    }
}

#[test]
fn cuda_is_compiled_with_figures_and_twice_to_the_same_bytes() {
    let text = include_bytes!("../../samples/reduce.cu");
    let Some(first) = accepted(Target::Cuda, text) else {
        return;
    };
    assert_eq!(first.len(), 3);
    for compiled in &first {
        assert!(
            compiled.bytes.starts_with(b"\x7fELF"),
            "a cubin is an ELF file"
        );
        assert!(compiled.registers.is_some_and(|registers| registers > 0));
        assert_eq!(
            (compiled.spills, compiled.shared_bytes),
            (Some(0), Some(256))
        );
    }
    assert_eq!(Some(first), accepted(Target::Cuda, text));
    accepted(Target::Cuda, include_bytes!("../../samples/axpy.cu"));
    let log = refusal(
        Target::Cuda,
        b"extern \"C\" __global__ void k(float* y) { y[0] = bogus; }",
    )
    .unwrap_or_default();
    assert!(log.contains("bogus") && log.contains("sm_90a"), "{log}");
}

#[test]
fn hip_is_compiled_with_figures_and_twice_to_the_same_bytes() {
    let text = include_bytes!("../../samples/reduce.hip");
    let Some(first) = accepted(Target::Hip, text) else {
        return;
    };
    assert_eq!(first.len(), 3);
    for compiled in &first {
        assert!(
            compiled.bytes.starts_with(b"\x7fELF"),
            "a code object is an ELF file"
        );
        assert!(compiled.registers.is_some_and(|registers| registers > 0));
        assert_eq!(
            (compiled.spills, compiled.shared_bytes),
            (Some(0), Some(256))
        );
    }
    assert_eq!(Some(first), accepted(Target::Hip, text));
    accepted(Target::Hip, include_bytes!("../../samples/axpy.hip"));
    let log = refusal(
        Target::Hip,
        b"#include <hip/hip_runtime.h>\nextern \"C\" __global__ void k(float* y) { y[0] = bogus; }",
    )
    .unwrap_or_default();
    assert!(log.contains("bogus") && log.contains("gfx942"), "{log}");
}

#[test]
fn msl_is_checked_with_its_address_spaces() {
    for text in [
        &include_bytes!("../../samples/axpy.metal")[..],
        include_bytes!("../../samples/reduce.metal"),
    ] {
        let Some(checked) = accepted(Target::Msl, text) else {
            return;
        };
        assert!(checked[0].checked_by.contains("not Apple's compiler"));
    }
    let head = "#include <metal_stdlib>\nusing namespace metal;\n";
    for (wrong, word) in [
        (
            "kernel void k(device float* y) { threadgroup float s[4]; thread float* p = s; }",
            "cannot initialize",
        ),
        (
            "kernel void k(device const float* y) { y[0] = 1.0f; }",
            "not assignable",
        ),
        (
            "kernel void k(device long* y) { y[0] = simd_sum(y[0]); }",
            "ambiguous",
        ),
        (
            "kernel void k(device float* y) { double d = 1.0; }",
            "poisoned",
        ),
        (
            "kernel void k(device float* y) { float4 v = float4(1.0f, 2.0f); }",
            "number of components",
        ),
        (
            "kernel void k(device atomic_float* y) { atomic_fetch_max_explicit(y, 1.0f, memory_order_relaxed); }",
            "no matching",
        ),
        (
            "float f(float* p) { return p[0]; }",
            "names no address space",
        ),
    ] {
        let log = refusal(Target::Msl, format!("{head}{wrong}\n").as_bytes()).unwrap_or_default();
        assert!(
            log.contains(word),
            "`{word}` is not in what is said of `{wrong}`:\n{log}"
        );
    }
}

#[test]
fn spirv_is_validated_and_read_by_a_second_reader() {
    if find_program("spirv-as").is_none() {
        eprintln!("SKIPPED: no spirv-as on this machine");
        return;
    }
    let text = include_str!("../../samples/reduce.spvasm");
    let valid = assemble(text);
    let Some(checked) = accepted(Target::Spirv, &valid) else {
        return;
    };
    assert!(
        checked[0].checked_by.contains("naga"),
        "{} {}",
        checked[0].checked_by,
        checked[0].log
    );
    let undecorated = assemble(&text.replace("OpDecorate %block Block", ""));
    let log = refusal(Target::Spirv, &undecorated).unwrap_or_default();
    assert!(log.contains("Block"), "{log}");
}

fn assemble(text: &str) -> Vec<u8> {
    let mut command = std::process::Command::new("spirv-as");
    command.args(["--target-env", "vulkan1.3", "-o", "-", "-"]);
    let finished = run(&mut command, text.as_bytes()).expect("spirv-as runs");
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.stdout
}

/// A kernel whose store of 5 the author wrote on line 14.
const PLACED: &str = "kernel @k grid(1, 1, 1) workgroup(64, 1, 1) {
  file \"src/k.rs\"
  dim #n
  param @x: tensor<f32, [#n], read, align 1> !1:1
  param @y: tensor<f32, [#n], read_write, align 1> !2:1

  %v: f32 = load @x[0u32] !10:3
  store @y[0u32] = %v !11:3
  store @y[1u32] = 5.0f32 !14:5
  store @y[2u32] = 7.0f32 !20:3
}
";

#[test]
fn a_refusal_leads_to_the_authors_line() {
    let kernel = iron_ir::parse::parse(PLACED).expect("parses");
    for (target, lowered) in [
        (Target::Cuda, "sm_90a"),
        (Target::Hip, "gfx942"),
        (Target::Msl, "metal3.1"),
    ] {
        let profile = iron_lower::profile::by_name(lowered).expect("a profile");
        let lowered = iron_lower::lower(&kernel, &profile).expect("lowers");
        let text = lowered.text().expect("a text");
        assert_eq!(text.matches("= 5.0f").count(), 1, "{text}");
        let broken = text.replace("= 5.0f", "= no_such_value + 5.0f");
        let Some(log) = refusal(target, broken.as_bytes()) else {
            continue;
        };
        let explained = lowered.places.explain(&log);
        assert!(explained.contains("no_such_value"), "{explained}");
        assert!(
            explained.ends_with("(made from src/k.rs:14:5)"),
            "{target}: {explained}"
        );
    }
}

#[test]
fn a_refused_module_leads_to_the_authors_line() {
    let kernel = iron_ir::parse::parse(PLACED).expect("parses");
    let profile = iron_lower::profile::of(iron_lower::Target::SpirV).remove(0);
    let lowered = iron_lower::lower(&kernel, &profile).expect("lowers");
    let iron_lower::Code::SpirV(mut words) = lowered.code else {
        panic!("a module");
    };
    let store = store_of_line(&words, 14).expect("a store on the line");
    // The address is no value of its own type.
    words[store + 2] = words[store + 1];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let Some(log) = refusal(Target::Spirv, &bytes) else {
        return;
    };
    let explained = lowered.places.explain(&log);
    assert!(
        explained.ends_with("(made from src/k.rs:14:5)"),
        "{explained}"
    );
}

/// The word at which the first `OpStore` of an author's line begins.
fn store_of_line(words: &[u32], line: u32) -> Option<usize> {
    let (mut at, mut current) = (5, 0);
    while at < words.len() {
        match words[at] & 0xffff {
            8 => current = words[at + 2],
            62 if current == line => return Some(at),
            _ => {}
        }
        at += (words[at] >> 16) as usize;
    }
    None
}
