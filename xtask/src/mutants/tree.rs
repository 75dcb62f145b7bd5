//! A copy of the workspace in which every chosen mutant is there at once and asleep: an environment
//! variable, read once a process, wakes one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::find::Form;
use super::{Chosen, MutantError, TRACE, VARIABLE};
use crate::process::{last_lines, run};
use crate::workspace::Workspace;

/// What wakes a mutant, put into the crate at the bottom. Where a file is named to trace to, a line
/// goes there for each mutant that a thread meets: its number and the thread's name, which is that
/// of the test.
const SWITCH: &str = r#"
/// Whether this is the mutant that the environment wakes.
#[doc(hidden)]
#[inline]
pub fn mutant_is(number: u32) -> bool {
    static AWAKE: std::sync::OnceLock<(u32, bool)> = std::sync::OnceLock::new();
    let (awake, traced) = *AWAKE.get_or_init(|| {
        let text = std::env::var("VARIABLE").unwrap_or_default();
        (text.parse().unwrap_or(u32::MAX), std::env::var_os("TRACE").is_some())
    });
    if traced {
        trace_mutant(number);
    }
    number == awake
}

fn trace_mutant(number: u32) {
    use std::io::Write as _;
    thread_local! {
        static MET: std::cell::RefCell<std::collections::BTreeSet<u32>> = const {
            std::cell::RefCell::new(std::collections::BTreeSet::new())
        };
    }
    if MET.with(|met| met.borrow_mut().insert(number)) {
        let thread = std::thread::current();
        let line = format!("{number} {}\n", thread.name().unwrap_or("?"));
        let path = std::env::var_os("TRACE").unwrap_or_default();
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
"#;

/// Which wrapped text is where in an instrumented file.
type Places = Vec<(usize, Range<usize>)>;

/// The copy.
pub struct Tree {
    /// Its root.
    pub root: PathBuf,
    /// Its target directory.
    pub target: PathBuf,
}

impl Tree {
    /// The copy below the workspace's target directory, brought up to date but for mutants.
    pub fn copy(
        workspace: &Workspace,
        sources: &BTreeMap<String, String>,
    ) -> Result<Tree, MutantError> {
        let tree = Tree {
            root: workspace.target.join("mutants").join("tree"),
            target: workspace.target.join("mutants").join("target"),
        };
        let files = workspace.listed_files()?;
        for file in &files {
            let from = workspace.root.join(file);
            if let Ok(bytes) = std::fs::read(&from) {
                // Those with mutants are left to `write`: their time must not change twice.
                if !sources.contains_key(file) {
                    write_if_new(&tree.root.join(file), &bytes)?;
                }
            }
        }
        remove_others(&tree.root, &tree.root, &files)?;
        Ok(tree)
    }

    /// Where the mutants that did not compile are noted.
    pub fn refused_path(&self) -> PathBuf {
        self.root.with_file_name("refused.json")
    }

    /// Writes the sources with these mutants in them, and where each is.
    pub fn write(
        &self,
        sources: &BTreeMap<String, String>,
        mutants: &[Chosen],
    ) -> Result<BTreeMap<String, Places>, MutantError> {
        let mut places = BTreeMap::new();
        for (file, text) in sources {
            let of_file: Vec<(usize, &Chosen)> = mutants
                .iter()
                .enumerate()
                .filter(|(_, m)| m.file == *file)
                .collect();
            let switch = if file.starts_with("iron-ir/") {
                "crate::mutant_is"
            } else {
                "iron_ir::mutant_is"
            };
            let mut out = String::new();
            let mut at = Places::new();
            render(text, 0..text.len(), &of_file, switch, &mut out, &mut at);
            if file == "iron-ir/src/lib.rs" {
                out.push_str(&SWITCH.replace("VARIABLE", VARIABLE).replace("TRACE", TRACE));
            }
            write_if_new(&self.root.join(file), out.as_bytes())?;
            places.insert(file.clone(), at);
        }
        Ok(places)
    }

    /// The mutants that the compiler refuses, by their index; none once the crates compile.
    pub fn refused(
        &self,
        places: &BTreeMap<String, Places>,
    ) -> Result<BTreeSet<usize>, MutantError> {
        let mut command = self.cargo("check");
        command.args(["--message-format=json", "--keep-going"]);
        for package in super::PACKAGES {
            command.args(["--package", package]);
        }
        let finished = run(&mut command, &[])?;
        let mut refused = BTreeSet::new();
        if finished.status.success() {
            return Ok(refused);
        }
        let mut unknown = Vec::new();
        for line in String::from_utf8_lossy(&finished.stdout).lines() {
            let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else {
                continue;
            };
            let message = &message["message"];
            if message["level"] != "error" {
                continue;
            }
            let mut found = false;
            let mut near = None;
            for span in message["spans"].as_array().into_iter().flatten() {
                let file = span["file_name"].as_str().unwrap_or_default();
                let start = span["byte_start"].as_u64().unwrap_or(0) as usize;
                let of_file = || places.get(file).into_iter().flatten();
                let innermost = of_file()
                    .filter(|(_, range)| range.contains(&start))
                    .min_by_key(|(_, range)| range.len());
                if let Some((index, _)) = innermost {
                    refused.insert(*index);
                    found = true;
                }
                // A match that lacks an arm is reported at its head, before the arm.
                let behind = of_file().filter(|(_, range)| range.start > start);
                near = near.or(behind.min_by_key(|(_, range)| range.start));
            }
            if let (false, Some((index, _))) = (found, near) {
                refused.insert(*index);
                found = true;
            }
            if !found {
                let text = message["rendered"].as_str().unwrap_or_default();
                unknown.push(text.to_owned());
            }
        }
        // An error elsewhere may be the consequence of one that was placed.
        if refused.is_empty() {
            let text = format!("{}\n{}", unknown.join("\n"), finished.stderr);
            return Err(MutantError::Build(last_lines(&text, 60)));
        }
        Ok(refused)
    }

    /// Builds the tests and gives the program of each target: `iron-passes lib`, `iron-tests cases`.
    pub fn build(&self) -> Result<BTreeMap<String, PathBuf>, MutantError> {
        let mut command = self.cargo("test");
        command.args(["--no-run", "--message-format=json"]);
        for package in super::suites::packages() {
            command.args(["--package", package]);
        }
        command.arg("--lib");
        for target in super::suites::test_targets() {
            command.args(["--test", target]);
        }
        let finished = run(&mut command, &[])?;
        if !finished.status.success() {
            return Err(MutantError::Build(last_lines(&finished.stderr, 60)));
        }
        let mut programs = BTreeMap::new();
        for line in String::from_utf8_lossy(&finished.stdout).lines() {
            let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else {
                continue;
            };
            let Some(program) = message["executable"].as_str() else {
                continue;
            };
            let id = message["package_id"].as_str().unwrap_or_default();
            let target = &message["target"];
            let name = match target["kind"][0].as_str() {
                Some("lib") => "lib",
                _ => target["name"].as_str().unwrap_or_default(),
            };
            let package = super::suites::packages()
                .into_iter()
                .find(|p| id.contains(&format!("/{p}#")) || id.contains(&format!("#{p}@")));
            // A folder may have another name than its package.
            let package = package.unwrap_or("iron-tests");
            programs.insert(format!("{package} {name}"), program.into());
        }
        Ok(programs)
    }

    fn cargo(&self, command: &str) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .arg(command)
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .env_remove("CARGO_MANIFEST_DIR");
        cargo
    }
}

/// Appends a range of the text with its mutants asleep around what they would change.
fn render(
    text: &str,
    range: Range<usize>,
    mutants: &[(usize, &Chosen)],
    switch: &str,
    out: &mut String,
    places: &mut Places,
) {
    let mut at = range.start;
    let mut next = 0;
    while let Some((index, mutant)) = mutants.get(next) {
        out.push_str(&text[at..mutant.range.start]);
        let inside = mutants[next + 1..]
            .iter()
            .take_while(|(_, m)| m.range.end <= mutant.range.end)
            .count();
        let start = out.len();
        let awake = format!("{switch}({})", mutant.number);
        let (before, after) = match mutant.form {
            Form::Expression => (format!("(if {awake} {{ {} }} else {{ ", mutant.with), " })"),
            Form::Statement => (format!("if !{awake} {{ "), " }"),
            Form::Return => (format!(" if {awake} {{ return {}; }}", mutant.with), ""),
            Form::Arm => (format!(" if !{awake}"), ""),
        };
        out.push_str(&before);
        let inner = &mutants[next + 1..next + 1 + inside];
        render(text, mutant.range.clone(), inner, switch, out, places);
        out.push_str(after);
        places.push((*index, start..out.len()));
        at = mutant.range.end;
        next += 1 + inside;
    }
    out.push_str(&text[at..range.end]);
}

/// Leaves a file that is right as it is, with its time, by which cargo goes.
fn write_if_new(path: &Path, bytes: &[u8]) -> Result<(), MutantError> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let failed = |source| MutantError::File {
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::write(path, bytes).map_err(failed)
}

/// Removes the files of the copy that the workspace no longer has.
fn remove_others(root: &Path, folder: &Path, keep: &BTreeSet<String>) -> Result<(), MutantError> {
    let failed = |source| MutantError::File {
        path: folder.to_owned(),
        source,
    };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            remove_others(root, &path, keep)?;
            continue;
        }
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
        if !keep.contains(&*name) && name != "Cargo.lock" {
            std::fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_within_mutants_sleep() {
        let text = "fn f(a: u32) -> bool { a + 1 < 3 }";
        let chosen: Vec<Chosen> = super::super::find::mutants(text)
            .expect("it parses")
            .into_iter()
            .filter(|m| {
                m.what.contains("`f` gives `true`")
                    || m.what.ends_with("- 1`")
                    || m.what.ends_with("<= 3`")
            })
            .enumerate()
            .map(|(number, m)| Chosen::of("a.rs", number as u32, m))
            .collect();
        let listed: Vec<(usize, &Chosen)> = chosen.iter().enumerate().collect();
        let (mut out, mut places) = (String::new(), Places::new());
        render(text, 0..text.len(), &listed, "m", &mut out, &mut places);
        assert_eq!(
            out,
            "fn f(a: u32) -> bool { if m(0) { return true; } (if m(1) { a + 1 <= 3 } else { (if m(2) \
             { a - 1 } else { a + 1 }) < 3 }) }"
        );
        assert_eq!(&out[places[2].1.clone()][..9], "(if m(1) ");
        assert!(out[places[1].1.clone()].starts_with("(if m(2)"));
    }
}
