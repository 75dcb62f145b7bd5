//! `mutants`: breaks the passes, the verifier and the launch check on purpose, one place at a time,
//! and names what no test notices.
//!
//! All mutants of a sample are compiled into one copy of the workspace, asleep; an environment
//! variable wakes one. So the copy is built once, and a mutant costs no more than the tests that
//! meet it: a run without any notes which those are. A mutant that does not compile is replaced by
//! the next of its file. One that ends a test's process, or keeps it from ending, is noticed like
//! any other.

mod find;
mod suites;
mod tree;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::process::ProcessError;
use crate::workspace::Workspace;
use find::{Form, Mutant};
use suites::{Ready, Verdict};
use tree::Tree;

/// Wakes the mutant of this number.
const VARIABLE: &str = "IRON_MUTANT";

/// Names the file that says which test met which mutant.
const TRACE: &str = "IRON_MUTANT_TRACE";

/// What is broken: files, and folders that end with `/`.
const SOURCES: [&str; 3] = [
    "iron-passes/src/",
    "iron-ir/src/verify/",
    "iron-ir/src/launch.rs",
];

/// The packages that hold them.
const PACKAGES: [&str; 2] = ["iron-ir", "iron-passes"];

/// What to break, and how much of it.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Mutants that compile, drawn from each file by its share.
    #[arg(long, value_name = "N", default_value_t = 320)]
    sample: usize,
    /// Chooses the mutants: the same seed gives the same ones of the same sources.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Mutants that are tried at once; one for each processor where absent.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Tries only these numbers of the sample; may be given again.
    #[arg(long = "only", value_name = "NUMBER")]
    only: Vec<u32>,
    /// Also runs the long tests, on every mutant that the others do not notice.
    #[arg(long)]
    long: bool,
    /// Builds and runs the tests without a mutant, and stops.
    #[arg(long)]
    build_only: bool,
    /// Takes the programs of an earlier build.
    #[arg(long, conflicts_with = "build_only")]
    no_build: bool,
    /// Notes again which test meets which mutant, as after a move to another machine.
    #[arg(long, requires = "no_build")]
    trace: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum MutantError {
    /// A program could not be run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A source does not parse.
    #[error("{0}: {1}")]
    Syntax(String, syn::Error),
    /// The copy does not build, and no mutant is the reason.
    #[error("the copy with mutants does not build:\n{0}")]
    Build(String),
    /// A suite is of no use.
    #[error("the tests `{0}`: the program {1}")]
    Suite(String, &'static str),
    /// The plan of an earlier build is not there or not of this version.
    #[error("{path}: {message}; run without `--no-build`")]
    Plan {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// A mutant of the sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Chosen {
    number: u32,
    file: String,
    line: usize,
    what: String,
    form: Form,
    with: String,
    range: Range<usize>,
}

impl Chosen {
    fn is(&self, mutant: &Mutant) -> bool {
        (&self.range, self.form, &self.with) == (&mutant.range, mutant.form, &mutant.with)
    }

    fn of(file: &str, number: u32, mutant: Mutant) -> Chosen {
        Chosen {
            number,
            file: file.to_owned(),
            line: mutant.line,
            what: mutant.what,
            form: mutant.form,
            with: mutant.with,
            range: mutant.range,
        }
    }
}

/// The mutants that did not compile, for the next build.
#[derive(Default, Serialize, Deserialize)]
struct Refused {
    /// The sources that they are of.
    texts: BTreeMap<String, String>,
    mutants: Vec<Chosen>,
}

impl Refused {
    fn read(path: &Path) -> Refused {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Those of sources that are as they were.
    fn of(&mut self, sources: &BTreeMap<String, String>) -> &[Chosen] {
        let texts = &self.texts;
        let same = |m: &Chosen| sources.get(&m.file) == texts.get(&m.file);
        self.mutants.retain(same);
        &self.mutants
    }

    fn write(
        &mut self,
        path: &Path,
        sources: &BTreeMap<String, String>,
    ) -> Result<(), MutantError> {
        for mutant in &self.mutants {
            let text = sources.get(&mutant.file).cloned().unwrap_or_default();
            self.texts.insert(mutant.file.clone(), text);
        }
        let json = serde_json::to_string(self).unwrap_or_default();
        std::fs::write(path, json).map_err(|source| MutantError::File {
            path: path.to_owned(),
            source,
        })
    }
}

/// What a build leaves for runs.
#[derive(Serialize, Deserialize)]
struct Plan {
    /// Mutants of all files, compiled or not.
    found: usize,
    /// Those that were drawn and did not compile.
    refused: usize,
    mutants: Vec<Chosen>,
    suites: Vec<Ready>,
}

/// Runs the command.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Exit, MutantError> {
    let path = workspace.target.join("mutants").join("plan.json");
    let mut plan = if options.no_build {
        read_plan(&path)?
    } else {
        let plan = build(workspace, options)?;
        let json = serde_json::to_string_pretty(&plan).unwrap_or_default();
        std::fs::write(&path, json).map_err(|source| MutantError::File {
            path: path.clone(),
            source,
        })?;
        plan
    };
    println!(
        "{} mutants in the sources; {} chosen by seed {}, {} more did not compile",
        plan.found,
        plan.mutants.len(),
        options.seed,
        plan.refused
    );
    if options.build_only {
        return Ok(Exit::Success);
    }
    plan.suites.retain(|suite| options.long || !suite.is_long());
    if options.trace {
        suites::trace(&mut plan.suites)?;
    }
    let wanted: Vec<&Chosen> = plan
        .mutants
        .iter()
        .filter(|m| options.only.is_empty() || options.only.contains(&m.number))
        .collect();
    if wanted.is_empty() {
        return Ok(Exit::NothingSelected);
    }
    let started = Instant::now();
    let fates = try_all(&wanted, &plan.suites, options.jobs)?;
    print_table(&wanted, &fates);
    println!("{:.0} s", started.elapsed().as_secs_f64());
    Ok(Exit::Success)
}

fn read_plan(path: &Path) -> Result<Plan, MutantError> {
    let wrong = |message: String| MutantError::Plan {
        path: path.to_owned(),
        message,
    };
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))
}

/// Whether mutants are made in a file, or the switch that wakes them.
fn is_mutated(file: &str) -> bool {
    file == "iron-ir/src/lib.rs" || is_broken(file)
}

fn is_broken(file: &str) -> bool {
    let inside = SOURCES.iter().any(|s| match s.strip_suffix('/') {
        Some(_) => file.starts_with(s),
        None => file == *s,
    });
    inside && file.ends_with(".rs") && !file.ends_with("tests.rs")
}

/// Draws mutants, builds the copy with them, and runs its tests without any.
fn build(workspace: &Workspace, options: &Options) -> Result<Plan, MutantError> {
    println!("copying the workspace");
    let sources = sources(workspace)?;
    let tree = Tree::copy(workspace, &sources)?;
    // Of each file in the order in which they are drawn.
    let mut drawn: BTreeMap<&str, Vec<Mutant>> = BTreeMap::new();
    let mut found = 0;
    for (file, text) in sources.iter().filter(|(file, _)| is_broken(file)) {
        let mut mutants = find::mutants(text).map_err(|e| MutantError::Syntax(file.clone(), e))?;
        found += mutants.len();
        let mut order = 0u64;
        mutants.sort_by_cached_key(|m| {
            order += 1;
            draw(options.seed, file, &m.what, order)
        });
        drawn.insert(file, mutants);
    }
    let shares: BTreeMap<&str, usize> = drawn
        .iter()
        .map(|(file, all)| (*file, (all.len() * options.sample).div_ceil(found.max(1))))
        .collect();
    // What an earlier build of the same sources found not to compile is not tried again.
    let mut known = Refused::read(&tree.refused_path());
    for gone in known.of(&sources) {
        if let Some(all) = drawn.get_mut(&*gone.file) {
            all.retain(|m| !gone.is(m));
        }
    }
    let mut refused = known.mutants.len();
    loop {
        let mut mutants: Vec<Chosen> = Vec::new();
        for (file, all) in &drawn {
            let mut of_file: Vec<Mutant> = all.iter().take(shares[file]).cloned().collect();
            of_file.sort_by_key(|m| (m.range.start, std::cmp::Reverse(m.range.end)));
            for mutant in of_file {
                mutants.push(Chosen::of(file, mutants.len() as u32, mutant));
            }
        }
        let places = tree.write(&sources, &mutants)?;
        println!("checking {} mutants", mutants.len());
        let bad = tree.refused(&places)?;
        if bad.is_empty() {
            println!("building the tests");
            let programs = tree.build()?;
            let mut suites = suites::ready(&tree.root, &programs, options.long)?;
            suites::trace(&mut suites)?;
            return Ok(Plan {
                found,
                refused,
                mutants,
                suites,
            });
        }
        println!("{} do not compile", bad.len());
        refused += bad.len();
        for index in bad {
            let gone = &mutants[index];
            if let Some(all) = drawn.get_mut(&*gone.file) {
                all.retain(|m| !gone.is(m));
            }
            known.mutants.push(gone.clone());
        }
        known.write(&tree.refused_path(), &sources)?;
    }
}

fn sources(workspace: &Workspace) -> Result<BTreeMap<String, String>, MutantError> {
    let mut sources = BTreeMap::new();
    let mut folders = vec![
        PathBuf::from("iron-ir/src"),
        PathBuf::from("iron-passes/src"),
    ];
    while let Some(folder) = folders.pop() {
        let path = workspace.root.join(&folder);
        let failed = |source| MutantError::File {
            path: path.clone(),
            source,
        };
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(name);
                continue;
            }
            let name = name.to_string_lossy().replace('\\', "/");
            if !is_mutated(&name) {
                // Tests beside the sources are copied as they are.
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).map_err(failed)?;
            sources.insert(name, text);
        }
    }
    // A test module has no mutants; where it is declared says that it is one.
    let tests: Vec<String> = sources
        .iter()
        .flat_map(|(file, text)| {
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            let pairs = lines.windows(2).filter(|w| w[0] == "#[cfg(test)]");
            let names = pairs.filter_map(|w| w[1].strip_prefix("mod ")?.strip_suffix(';'));
            names
                .map(|name| format!("{folder}/{name}.rs"))
                .collect::<Vec<_>>()
        })
        .collect();
    sources.retain(|file, _| !tests.contains(file));
    Ok(sources)
}

/// A number that looks drawn: the same for the same words.
fn draw(seed: u64, file: &str, what: &str, order: u64) -> u64 {
    let mut state = seed ^ order.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in file.bytes().chain(what.bytes()) {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^ state >> 31
}

/// What became of a mutant.
#[derive(Clone, Debug)]
enum Fate {
    /// The suite that failed.
    Noticed(String),
    /// The suite that did not end.
    Endless(String),
    Survived,
}

fn try_all(
    mutants: &[&Chosen],
    suites: &[Ready],
    jobs: Option<usize>,
) -> Result<Vec<Fate>, MutantError> {
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let next = AtomicUsize::new(0);
    let fates: Mutex<Vec<Option<Fate>>> = Mutex::new(vec![None; mutants.len()]);
    let work = || -> Result<(), MutantError> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = mutants.get(index) else {
                return Ok(());
            };
            let fate = fate_of(mutant, suites)?;
            let word = match &fate {
                Fate::Noticed(suite) => format!("noticed by {suite}"),
                Fate::Endless(suite) => format!("noticed: {suite} does not end"),
                Fate::Survived => "SURVIVED".into(),
            };
            println!(
                "{:>4} {}:{}: {}: {word}",
                mutant.number, mutant.file, mutant.line, mutant.what
            );
            if let Ok(mut fates) = fates.lock() {
                fates[index] = Some(fate);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })?;
    let fates = fates.into_inner().unwrap_or_default();
    Ok(fates
        .into_iter()
        .map(|f| f.unwrap_or(Fate::Survived))
        .collect())
}

fn fate_of(mutant: &Chosen, suites: &[Ready]) -> Result<Fate, MutantError> {
    for suite in suites {
        match suite.run(mutant.number)? {
            Verdict::Passed | Verdict::NotMet => {}
            Verdict::Failed => return Ok(Fate::Noticed(suite.name.clone())),
            Verdict::TimedOut => return Ok(Fate::Endless(suite.name.clone())),
        }
    }
    Ok(Fate::Survived)
}

fn print_table(mutants: &[&Chosen], fates: &[Fate]) {
    let mut files: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut suites: BTreeMap<&str, usize> = BTreeMap::new();
    for (mutant, fate) in mutants.iter().zip(fates) {
        let row = files.entry(&mutant.file).or_default();
        row[0] += 1;
        match fate {
            Fate::Noticed(suite) | Fate::Endless(suite) => {
                row[1] += 1;
                row[2] += usize::from(matches!(fate, Fate::Endless(_)));
                *suites.entry(suite).or_default() += 1;
            }
            Fate::Survived => {}
        }
    }
    println!("\n| file | mutants | noticed | by not ending | survived |\n|---|---|---|---|---|");
    let mut sum = [0; 3];
    for (file, row) in &files {
        println!(
            "| `{file}` | {} | {} | {} | {} |",
            row[0],
            row[1],
            row[2],
            row[0] - row[1]
        );
        for (total, n) in sum.iter_mut().zip(row) {
            *total += n;
        }
    }
    println!(
        "| all | {} | {} | {} | {} |",
        sum[0],
        sum[1],
        sum[2],
        sum[0] - sum[1]
    );
    println!("\n| noticed by | mutants |\n|---|---|");
    for (suite, count) in &suites {
        println!("| `{suite}` | {count} |");
    }
    println!("\nsurvivors:");
    for (mutant, fate) in mutants.iter().zip(fates) {
        if matches!(fate, Fate::Survived) {
            println!(
                "- {} `{}:{}`: {}",
                mutant.number, mutant.file, mutant.line, mutant.what
            );
        }
    }
    println!(
        "\nmutation score {:.1}% ({} of {})",
        100.0 * sum[1] as f64 / sum[0].max(1) as f64,
        sum[1],
        sum[0]
    );
}
