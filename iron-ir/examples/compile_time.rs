//! What kernels cost rustc: writes a crate of 100 kernels with 3 instances each, and times
//! `cargo check` and `cargo build` of that crate alone, dependencies warm.
//!
//! `cargo run -p iron-ir --example compile_time -- [kernels]`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

fn main() -> ExitCode {
    let kernels = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(100);
    match measure(kernels) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compile_time: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(kernels: usize) -> Result<(), Box<dyn std::error::Error>> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("../target/compile-time");
    std::fs::create_dir_all(folder.join("src"))?;
    std::fs::write(folder.join("Cargo.toml"), manifest(&here))?;
    std::fs::copy(here.join("../Cargo.lock"), folder.join("Cargo.lock"))?;
    let source = folder.join("src/lib.rs");
    std::fs::write(&source, "//! Empty, to build the dependencies.\n")?;
    cargo(&folder, "check")?;
    cargo(&folder, "build")?;
    let text = library(kernels);
    println!(
        "{kernels} kernels, {} instances, {} lines",
        kernels * 3,
        text.lines().count()
    );
    for command in ["check", "build"] {
        let mut seconds = Vec::new();
        for run in 0..3 {
            // Another text each time, so that nothing is taken from a cache.
            std::fs::write(&source, format!("{text}// {run} {command}\n"))?;
            let start = Instant::now();
            cargo(&folder, command)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        println!("cargo {command}: {:.1} s (of 3: {seconds:.1?})", seconds[1]);
    }
    Ok(())
}

fn cargo(folder: &Path, command: &str) -> Result<(), Box<dyn std::error::Error>> {
    let status = Command::new(env!("CARGO"))
        .arg(command)
        .arg("--quiet")
        .env("CARGO_INCREMENTAL", "0")
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(folder)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {command} failed").into())
    }
}

fn manifest(here: &Path) -> String {
    format!(
        "[package]\nname = \"compile-time\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\niron-ir = {{ path = {here:?} }}\n\n[workspace]\n\n\
         [profile.dev]\ndebug = \"line-tables-only\"\n\n\
         [profile.dev.package.\"*\"]\nopt-level = 1\ndebug = false\n\n\
         [profile.dev.build-override]\nopt-level = 1\n"
    )
}

fn library(kernels: usize) -> String {
    let mut text = String::from("//! Generated.\n\nuse iron_ir::prelude::*;\n");
    for index in 0..kernels {
        let _ = write!(text, "{}", KERNEL.replace("INDEX", &index.to_string()));
    }
    text
}

const KERNEL: &str = r"
/// Norm, activation and histogram of rows, in 48 lines.
#[kernel(grid = [rows], workgroup = 256, requires(cols % 4 == 0), instances(T = [f32, f16, bf16]))]
pub fn kernel_INDEX<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    w: &Tensor<T, (cols,)>,
    y: &mut Tensor<T, (rows, cols)>,
    counts: &mut Tensor<u32, (n,)>,
    kind: u32,
    eps: f32,
) {
    let row = group_id(0);
    let mut sum = 0.0f32;
    for i in strided(cols / 4) {
        let v = x.load4([row, i]).to_f32();
        sum += v.dot(v);
    }
    let scale = rsqrt(workgroup_sum(sum) / cols as f32 + eps);
    let mut bins = shared::<u32>(64);
    if local_index() < 64 {
        bins[local_index()] = 0;
    }
    barrier();
    let mut largest = -1.0e30;
    for i in strided(cols) {
        let v = x[[row, i]].to_f32() * scale * w[i].to_f32();
        let r = match kind {
            0 => v,
            1 | 2 => {
                let e = (-v).exp();
                v / (1.0 + e)
            }
            3..=9 => {
                if v < 0.0 {
                    0.0
                } else {
                    v
                }
            }
            _ => v.max(-1.0),
        };
        if r > largest {
            largest = r;
        }
        let bin = (r.abs() * 8.0) as u32;
        bins.atomic_add(bin.min(63), 1);
        y[[row, i]] = T::from_f32(r);
    }
    let top = workgroup_max(largest);
    barrier();
    if local_index() < 64 && top > 0.0 {
        counts.atomic_add(local_index(), bins[local_index()]);
    }
}
";
