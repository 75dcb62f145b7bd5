//! `tidy`: the rules that no compiler checks. Most are about absences: what a crate must not depend
//! on, what a file must not hold. Also run as a test of this crate.

mod documents;
mod files;
mod manifests;
mod rules;

use std::fmt;

use crate::exit::Exit;
use crate::process::ProcessError;
use crate::workspace::Workspace;

use files::SourceFile;

/// A rule that a file breaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    /// From 1; 0 where the finding is about the whole file.
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.path, self.message)
        } else {
            write!(f, "{}:{}: {}", self.path, self.line, self.message)
        }
    }
}

/// Runs the command.
pub fn run(workspace: &Workspace) -> Result<Exit, ProcessError> {
    let files = files::read_all(workspace)?;
    let findings = check(&files);
    for finding in &findings {
        eprintln!("{finding}");
    }
    println!(
        "tidy: {} files, {} rules, {} findings",
        files.len(),
        RULES.len(),
        findings.len()
    );
    Ok(if files.is_empty() {
        Exit::NothingSelected
    } else if findings.is_empty() {
        Exit::Success
    } else {
        Exit::Failure
    })
}

type Rule = fn(&[SourceFile]) -> Vec<Finding>;

/// Every rule, in the order of its finding.
const RULES: [Rule; 12] = [
    manifests::crates_depend_downwards,
    manifests::members_share_package_fields_and_lints,
    manifests::each_dependency_has_a_reason,
    rules::files_are_short,
    rules::rust_files_begin_with_their_doc,
    rules::nothing_is_unfinished,
    rules::no_machine_paths_or_hosts,
    rules::pure_crates_do_no_input_or_output,
    rules::butter_holds_no_kernels,
    rules::licences_are_there,
    documents::documents_are_there_and_short,
    documents::links_lead_somewhere,
];

fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(files)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_tidy() {
        let files = files::read_all(&Workspace::locate()).expect("git lists the files");
        assert!(files.len() > 20, "git lists {} files", files.len());
        let findings: Vec<String> = check(&files).iter().map(Finding::to_string).collect();
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }
}
