//! The generated source of every kernel, for all four targets, is a golden in git: its diff is
//! what a reviewer reads. `cargo xtask snapshots` shows a change, `--accept` takes it.
//!
//! A family of sizes has one golden a type combination, its first size: the others differ in
//! constants, but for those that take another route ([`OTHER_ROUTES`]). A combination with `f16`
//! has none where the same with `bf16` has one: its text differs in the names of types and
//! conversions; of some kernels ([`FIRST_TYPES`]) the first combination alone has some. SPIR-V, three
//! times as long as a text, has the first combination alone, and none of the kernels of
//! [`WITHOUT_SPIRV`]; those of [`FOR_CUDA`] have CUDA's text alone, and kernels that are joined from
//! parts of others ([`JOINED`]) none. A file that no kernel writes is an error.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use iron_ir::registry::{InstanceEntry, KernelEntry, kernels};
use iron_lower::{Code, LowerError, Profile, lower, profile, spirv};

/// Profile and file extension of each golden, SPIR-V last.
const TARGETS: [(&str, &str); 4] = [
    ("metal3.1", "metal"),
    ("gfx942", "hip"),
    ("sm_90a", "cu"),
    ("vulkan1.3", "spvasm"),
];
const TEXTS: &[(&str, &str)] = TARGETS.split_at(3).0;
const CUDA: &[(&str, &str)] = TEXTS.split_at(2).1;

/// Instances that go through matrix units on CUDA, or whose workgroups take tile after tile.
const OTHER_ROUTES: [(&str, &str); 4] = [
    ("delta_chunks", "bf16-KEY_DIM=128-CHUNK=64"),
    ("linear", "bf16-TILE=256"),
    ("attention_prefill", "bf16-HEAD_DIM=128-ROWS=128"),
    ("norm_product", "bf16-LANES=256-EARLY=2-SIDE=2-WHOLE=true"),
];

/// Kernels whose products of 32 threads, or loops over a head, are written out in SPIR-V: 800 KB of the
/// same steps over and over, which the other texts show and the executions test.
const WITHOUT_SPIRV: [&str; 4] = [
    "attention_decode_grouped",
    "attention_decode_matrix",
    "attention_of_heads",
    "attention_of_heads_matrix",
];

/// Kernels written for what CUDA alone does, asynchronous copies; to others they are loops that
/// other kernels show.
const FOR_CUDA: [&str; 3] = [
    "norm_gated_product_ahead",
    "norm_product_ahead",
    "product_add_ahead",
];

/// Kernels whose goldens would be those of others one after the other: `attention_decode_matrix`,
/// `sum_in_one` and `attention_join`.
const JOINED: [&str; 1] = ["attention_decode_joined"];

/// Kernels of which the first combination of types stands for the others: they convert what they
/// load and store, and do all else in f32 or by tiles that others show.
const FIRST_TYPES: [&str; 22] = [
    "append_f8",
    "attention_decode_f8",
    "dequantize_q4_0",
    "dequantize_q4_1",
    "dequantize_q8_0",
    "dynamic_conv",
    "dynamic_conv_weights",
    "gather_rows_f8",
    "gather_rows_k4",
    "gather_rows_k5",
    "gather_rows_k6",
    "gather_rows_q4_0",
    "gather_rows_q4_1",
    "gather_rows_q8_0",
    "latent_decode",
    "rope_half",
    "rope_interleaved",
    "scan_chunks",
    "scan_weights",
    "sum_in_one",
    "unpack_f8",
    "widen_logits",
];

#[test]
fn generated_sources_are_the_goldens() {
    assert_eq!(iron_corpus::link(), 127, "kernels of the corpus");
    let mut changed = Vec::new();
    let mut known = BTreeSet::new();
    for entry in kernels().iter().filter(|k| !JOINED.contains(&k.name)) {
        let other = entry.instances.iter().filter(|i| {
            let named = (entry.name, i.name);
            OTHER_ROUTES.contains(&named)
        });
        let combinations = match FIRST_TYPES.contains(&entry.name) {
            true => 1,
            false => usize::MAX,
        };
        let all = first_sizes(entry)
            .take(combinations)
            .zip(std::iter::once(&TARGETS[..]).chain(std::iter::repeat(TEXTS)));
        for (instance, targets) in all.chain(other.map(|i| (i, CUDA))) {
            let kernel = (instance.build)().expect("the corpus builds");
            for &(name, extension) in targets {
                if extension == "spvasm" && WITHOUT_SPIRV.contains(&entry.name) {
                    continue;
                }
                if extension != "cu" && FOR_CUDA.contains(&entry.name) {
                    continue;
                }
                let profile = profile::by_name(name).expect("the profile is known");
                let text = match text(&kernel, &profile) {
                    Ok(text) => text,
                    Err(error) => format!("refused: {error}\n"),
                };
                let golden = format!("{}.{extension}", kernel.full_name());
                known.insert(format!("{}/{golden}.snap", entry.name));
                let same = catch_unwind(AssertUnwindSafe(|| {
                    insta::with_settings!({
                        snapshot_path => format!("goldens/{}", entry.name),
                        prepend_module_to_snapshot => false,
                        omit_expression => true,
                    }, { insta::assert_snapshot!(golden.clone(), text) });
                }));
                if same.is_err() {
                    changed.push(golden);
                }
            }
        }
    }
    assert!(
        changed.is_empty(),
        "{} goldens differ: {}",
        changed.len(),
        changed.join(", ")
    );
    let stale: Vec<String> = files().into_iter().filter(|f| !known.contains(f)).collect();
    assert!(
        stale.is_empty(),
        "of no kernel, to be deleted: {}",
        stale.join(", ")
    );
}

/// The files of all goldens, relative to their folder.
fn files() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("the folder of goldens");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.expect("an entry").file_name();
            name.to_string_lossy().into_owned()
        };
        entries.map(name).collect()
    };
    let kernels = names(&folder).into_iter();
    let of_kernel = |kernel: String| {
        let files = names(&folder.join(&kernel)).into_iter();
        files.map(move |file| format!("{kernel}/{file}"))
    };
    kernels.flat_map(of_kernel).collect()
}

fn text(kernel: &iron_ir::Kernel, profile: &Profile) -> Result<String, LowerError> {
    Ok(match lower(kernel, profile)?.code {
        Code::Text(text) => text,
        Code::SpirV(words) => spirv::disassemble(&words),
        Code::Machine(_) => String::new(),
    })
}

/// The instances that have the first listed value of every const parameter, without those that
/// have a twin of `bf16`.
fn first_sizes(entry: &'static KernelEntry) -> impl Iterator<Item = &'static InstanceEntry> {
    let first = entry
        .instances
        .first()
        .map_or(&[][..], |instance| instance.consts);
    entry
        .instances
        .iter()
        .filter(move |instance| instance.consts == first && !has_twin(entry, instance))
}

/// Whether the kernel also has the instance with `bf16` in place of `f16`.
fn has_twin(entry: &KernelEntry, instance: &InstanceEntry) -> bool {
    let parts = instance.name.split('-').map(|part| match part {
        "f16" => "bf16",
        other => other,
    });
    let twin = parts.collect::<Vec<_>>().join("-");
    twin != instance.name && entry.instances.iter().any(|other| other.name == twin)
}
