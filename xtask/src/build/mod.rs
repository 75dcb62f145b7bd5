//! `build-kernels`: lowers every selected kernel for every selected target, has each text compiled
//! or checked, and writes sources, binaries, one manifest and one table. Equal inputs give equal
//! bytes, and what did not change since an earlier run comes from the cache.

mod cost;
mod manifest;
mod output;
mod plan;
mod progress;
mod registry;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::compilers::{Cache, CacheKey, CompileFailure, Compiled, Compilers, Target};
use crate::exit::Exit;
use crate::tools::{Tool, ToolError, set_up};
use crate::workspace::Workspace;

use cost::{Emission, WarmCalls, timed};
use plan::{Lowered, Lowering, Plan, Profile};
use progress::Progress;

/// What to build.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Builds for this target only; may be given again. All four when absent.
    #[arg(long = "target", value_enum, value_name = "TARGET")]
    targets: Vec<Target>,
    /// Builds the kernels whose name (`rms_norm-f16`) contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Builds for this architecture or profile of its target only (sm_90a, gfx942, spirv-small, …);
    /// may be given again. A target without one named keeps its first.
    #[arg(long = "arch", value_name = "ARCH")]
    archs: Vec<String>,
    /// Builds one architecture a target instead of the full matrix.
    #[arg(long)]
    quick: bool,
    /// Writes here instead of target/kernels.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Makes a missing compiler an error instead of a skip.
    #[arg(long)]
    require: bool,
    /// Uses the compilers that are there and sets up none.
    #[arg(long)]
    no_setup: bool,
    /// Compiles everything again instead of taking unchanged results of earlier runs.
    #[arg(long)]
    no_cache: bool,
    /// Writes the texts and asks no compiler.
    #[arg(long, conflicts_with = "require")]
    emit_only: bool,
    /// Prints the summary only, not the row of each kernel.
    #[arg(long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Exit, BuildError> {
    let started = Instant::now();
    let targets = selected_targets(options);
    let profiles = match select_profiles(options, &targets, &registry::profiles()) {
        Ok(profiles) => profiles,
        Err(unknown) => {
            eprintln!("error: {unknown}");
            return Ok(Exit::Usage);
        }
    };
    let kernels = registry::kernels();
    let selected = plan::select(kernels, options.filter.as_deref());
    let selected = match selected {
        Ok(selected) => selected,
        Err(nothing) => {
            eprintln!("error: {nothing}");
            return Ok(Exit::NothingSelected);
        }
    };
    if !options.no_setup && !options.emit_only {
        eprintln!("Tools:");
        set_up(workspace, &tools_for(&targets))?;
    }
    let asked: &[Target] = if options.emit_only { &[] } else { &targets };
    let compilers = Compilers::discover(workspace, asked);
    if options.require {
        let missing = missing_compilers(&compilers, &targets);
        if !missing.is_empty() {
            for line in missing {
                eprintln!("error: {line}");
            }
            return Ok(Exit::MissingTool);
        }
    }

    let progress = Progress::new("lowering", selected.len() * profiles.len());
    let lowering_started = Instant::now();
    let plan = Plan::new(&selected, &profiles, || progress.step());
    let is_text = |l: &&Lowering<'_>| matches!(l.lowered, Lowered::Source { .. });
    let emission = Emission {
        texts: plan.lowerings.iter().filter(is_text).count(),
        elapsed: lowering_started.elapsed(),
        processor: plan.lowerings.iter().map(|l| l.cost).sum(),
        threads: rayon::current_num_threads(),
    };
    progress.finish();
    // Without the cache, results are kept only for the length of this run.
    let scratch = options.no_cache.then(tempfile::tempdir).transpose()?;
    let cache_folder = scratch.as_ref().map_or_else(
        || workspace.kernel_cache(),
        |scratch| scratch.path().to_path_buf(),
    );
    let cache = Cache::open(&cache_folder)?;
    let progress = Progress::new("compiling", plan.lowerings.len());
    let results: Vec<LoweringResult> = plan
        .lowerings
        .par_iter()
        .map(|lowering| {
            let result = compile(lowering, &compilers, &cache);
            progress.step();
            result
        })
        .collect();
    progress.finish();

    let out = options.out.clone().unwrap_or_else(|| workspace.kernels());
    let written = output::write(&out, &plan, &results)?;
    if !options.quiet {
        println!("{}", table::render(&written.manifest));
    }
    let summary = table::Summary::new(&written.manifest, &results);
    println!("{summary}");
    println!("{emission}");
    println!("{}", warm_calls(&plan, &results));
    println!(
        "{} in {:.1} s",
        workspace.display(&written.path),
        started.elapsed().as_secs_f64()
    );
    for failure in written.manifest.failures() {
        eprintln!("error: {failure}");
    }
    Ok(if summary.failed > 0 {
        Exit::Failure
    } else {
        Exit::Success
    })
}

/// Why a build could not be done at all.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Set-up, or writing the output, failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The cache could not be opened.
    #[error(transparent)]
    Compile(#[from] CompileFailure),
    /// No temporary folder for a run without the cache.
    #[error("a temporary folder cannot be made: {0}")]
    Scratch(#[from] std::io::Error),
}

/// How the compile of one lowering ended.
enum LoweringResult {
    /// There is no source to compile.
    NotLowered,
    /// A compiler accepted it; the flag says whether an earlier run had asked.
    Compiled {
        compiled: Compiled,
        identity: String,
        cached: bool,
        /// What the answer cost.
        cost: Duration,
    },
    /// No compiler on this machine: lowered only.
    Skipped { reason: String },
    /// A compiler refused it, or does not work.
    Failed { reason: String },
}

fn compile(lowering: &Lowering<'_>, compilers: &Compilers, cache: &Cache) -> LoweringResult {
    let Lowered::Source {
        bytes: source,
        places,
        ..
    } = &lowering.lowered
    else {
        return LoweringResult::NotLowered;
    };
    let compiler = match compilers.get(lowering.profile.target) {
        Some(Ok(compiler)) => compiler,
        Some(Err(failure)) => {
            return LoweringResult::Skipped {
                reason: failure.to_string(),
            };
        }
        None => {
            return LoweringResult::Skipped {
                reason: "no compiler was looked for".to_owned(),
            };
        }
    };
    let (identity, arch) = (compiler.identity(), &lowering.profile.arch);
    let key = CacheKey {
        source,
        arch,
        compiler: &identity,
    };
    let (result, cost) = timed(|| cache.get_or_compile(&key, || compiler.compile(source, arch)));
    match result {
        Ok((compiled, cached)) => LoweringResult::Compiled {
            compiled,
            identity: key.hash(),
            cached,
            cost,
        },
        Err(failure) => LoweringResult::Failed {
            reason: places.explain(&failure.to_string()),
        },
    }
}

/// The texts that the cache had, each with what it cost to lower it and to find that out.
fn warm_calls(plan: &Plan<'_>, results: &[LoweringResult]) -> WarmCalls {
    let pairs = plan.lowerings.iter().zip(results);
    WarmCalls::new(pairs.filter_map(|(lowering, result)| match result {
        LoweringResult::Compiled {
            cached: true, cost, ..
        } => {
            let kernel = plan.kernels[lowering.kernel].full_name();
            let name = format!("`{kernel}` for {}", lowering.profile.name);
            Some((lowering.cost + *cost, name))
        }
        _ => None,
    }))
}

fn selected_targets(options: &Options) -> Vec<Target> {
    Target::ALL
        .into_iter()
        .filter(|target| options.targets.is_empty() || options.targets.contains(target))
        .collect()
}

/// The profiles to build for, or what is wrong with the names given.
fn select_profiles(
    options: &Options,
    targets: &[Target],
    all: &[Profile],
) -> Result<Vec<Profile>, String> {
    let is_named = |profile: &Profile| {
        options
            .archs
            .iter()
            .any(|name| *name == profile.name || *name == profile.arch)
    };
    let candidates: Vec<&Profile> = all
        .iter()
        .filter(|profile| targets.contains(&profile.target))
        .collect();
    for name in &options.archs {
        if !candidates
            .iter()
            .any(|profile| *name == profile.name || *name == profile.arch)
        {
            let known: Vec<&str> = candidates
                .iter()
                .map(|profile| profile.name.as_str())
                .collect();
            return Err(format!(
                "unknown architecture `{name}` for the selected targets; known are {}",
                known.join(", ")
            ));
        }
    }
    let mut selected = Vec::new();
    for &target in targets {
        let of_target: Vec<&&Profile> = candidates
            .iter()
            .filter(|profile| profile.target == target)
            .collect();
        let named: Vec<Profile> = of_target
            .iter()
            .filter(|profile| is_named(profile))
            .map(|profile| (**profile).clone())
            .collect();
        if !named.is_empty() {
            selected.extend(named);
        } else if options.quick || !options.archs.is_empty() {
            selected.extend(of_target.first().map(|profile| (**profile).clone()));
        } else {
            selected.extend(of_target.iter().map(|profile| (**profile).clone()));
        }
    }
    Ok(selected)
}

fn tools_for(targets: &[Target]) -> Vec<Tool> {
    let needed = |tool: Tool| match tool {
        Tool::Clang => targets.contains(&Target::Hip) || targets.contains(&Target::Msl),
        Tool::SpirvTools => targets.contains(&Target::Spirv),
        Tool::Vulkan => false,
        Tool::Cuda => targets.contains(&Target::Cuda),
        Tool::Amd => targets.contains(&Target::Hip),
    };
    Tool::ALL.into_iter().filter(|&tool| needed(tool)).collect()
}

fn missing_compilers(compilers: &Compilers, targets: &[Target]) -> Vec<String> {
    targets
        .iter()
        .filter_map(|&target| match compilers.get(target)? {
            Ok(_) => None,
            Err(failure) => Some(format!("{target}: {failure}")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &Options) -> Result<Vec<String>, String> {
        let targets = selected_targets(options);
        let profiles = select_profiles(options, &targets, &plan::tests::profiles())?;
        Ok(profiles.into_iter().map(|profile| profile.name).collect())
    }

    #[test]
    fn profiles_are_selected_by_target_name_and_quickness() {
        let none = Options {
            targets: vec![],
            filter: None,
            archs: vec![],
            quick: false,
            out: None,
            require: false,
            no_setup: true,
            no_cache: false,
            emit_only: false,
            quiet: true,
        };
        assert_eq!(
            names(&none),
            Ok(["metal", "sm_90a", "sm_80", "gfx942", "vulkan"]
                .map(str::to_owned)
                .to_vec())
        );
        let quick = Options {
            quick: true,
            ..none.clone()
        };
        assert_eq!(
            names(&quick),
            Ok(["metal", "sm_90a", "gfx942", "vulkan"]
                .map(str::to_owned)
                .to_vec())
        );
        let named = Options {
            archs: vec!["sm_80".into()],
            targets: vec![Target::Cuda, Target::Hip],
            ..none.clone()
        };
        assert_eq!(
            names(&named),
            Ok(["sm_80", "gfx942"].map(str::to_owned).to_vec())
        );
        let unknown = Options {
            archs: vec!["sm_80".into()],
            targets: vec![Target::Hip],
            ..none
        };
        assert_eq!(
            names(&unknown),
            Err(
                "unknown architecture `sm_80` for the selected targets; known are gfx942"
                    .to_owned()
            )
        );
    }
}
