//! Rules about `Cargo.toml` files: who may depend on whom, what members share, and why each
//! dependency is there.

use super::Finding;
use super::files::SourceFile;

/// Which of our crates each crate may use. The order is the architecture's: downwards only.
const ALLOWED: [(&str, &[&str]); 10] = [
    ("iron-macros", &[]),
    ("iron-ir", &["iron-macros"]),
    ("iron-passes", &["iron-ir"]),
    ("iron-lower", &["iron-ir", "iron-passes"]),
    ("iron-runtime", &["iron-ir", "iron-passes", "iron-lower"]),
    (
        "iron-runner",
        &["iron-ir", "iron-passes", "iron-lower", "iron-runtime"],
    ),
    ("iron-corpus", &["iron-ir", "iron-runtime", "iron-runner"]),
    // No iron-lower and no iron-passes: the engine emits no kernel text.
    ("butter", &["iron-ir", "iron-runtime", "iron-corpus"]),
    (
        "xtask",
        &["iron-ir", "iron-passes", "iron-lower", "iron-corpus"],
    ),
    (
        "iron-tests",
        &[
            "iron-macros",
            "iron-ir",
            "iron-passes",
            "iron-lower",
            "iron-runtime",
            "iron-runner",
            "iron-corpus",
            "butter",
        ],
    ),
];

/// Crates that must stay free of I/O and of vendor interfaces use none of these.
const INTERFACES: [&str; 6] = [
    "ash",
    "libloading",
    "memmap2",
    "objc2-metal",
    "tokenizers",
    "ureq",
];
const PURE_CRATES: [&str; 4] = ["iron-macros", "iron-ir", "iron-passes", "iron-lower"];

/// A dependency between our crates points downwards, and pure crates use no vendor interface.
pub fn crates_depend_downwards(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in members(files) {
        let name = package_name(&file.text);
        let Some((_, allowed)) = ALLOWED.iter().find(|(member, _)| *member == name) else {
            findings.push(finding(
                file,
                0,
                format!("crate `{name}` has no line in the table of allowed dependencies"),
            ));
            continue;
        };
        for (line, dependency) in entries(&file.text, is_build_or_normal) {
            let ours = ALLOWED.iter().any(|(member, _)| *member == dependency);
            if ours && !allowed.contains(&dependency) {
                findings.push(finding(
                    file,
                    line,
                    format!("`{name}` must not depend on `{dependency}`"),
                ));
            }
            if PURE_CRATES.contains(&name) && INTERFACES.contains(&dependency) {
                findings.push(finding(
                    file,
                    line,
                    format!("`{name}` does no I/O, so it must not depend on `{dependency}`"),
                ));
            }
        }
    }
    findings
}

/// Every member takes version, edition, licence and lints from the workspace.
pub fn members_share_package_fields_and_lints(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in members(files) {
        for field in ["version", "edition", "rust-version", "license"] {
            if !file
                .text
                .lines()
                .any(|line| line.trim() == format!("{field}.workspace = true"))
            {
                findings.push(finding(
                    file,
                    0,
                    format!("`{field}.workspace = true` is missing"),
                ));
            }
        }
        if !file.text.contains("[lints]\nworkspace = true") {
            findings.push(finding(
                file,
                0,
                "`[lints] workspace = true` is missing".to_owned(),
            ));
        }
    }
    for file in files.iter().filter(|file| file.path == "Cargo.toml") {
        for wanted in ["edition = \"2024\"", "license = \"MIT OR Apache-2.0\""] {
            if !file.text.contains(wanted) {
                findings.push(finding(file, 0, format!("`{wanted}` is missing")));
            }
        }
    }
    findings
}

/// Outside dependencies come from `[workspace.dependencies]`, where a comment says why each is there.
pub fn each_dependency_has_a_reason(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in members(files) {
        for (line, dependency) in entries(&file.text, |section| section.ends_with("dependencies")) {
            let text = file.text.lines().nth(line - 1).unwrap_or_default();
            if !text.contains("workspace = true") {
                findings.push(finding(
                    file,
                    line,
                    format!("`{dependency}` does not come from [workspace.dependencies]"),
                ));
            }
        }
    }
    for file in files.iter().filter(|file| file.path == "Cargo.toml") {
        let lines: Vec<&str> = file.text.lines().collect();
        let mut explained_until = 0;
        for (line, dependency) in entries(&file.text, |section| section == "workspace.dependencies")
        {
            let above = line
                .checked_sub(2)
                .and_then(|index| lines.get(index))
                .copied()
                .unwrap_or_default();
            // A comment speaks for the lines right below it.
            if above.starts_with('#') || explained_until + 1 == line {
                explained_until = line;
            } else {
                findings.push(finding(
                    file,
                    line,
                    format!("no comment says why `{dependency}` is there"),
                ));
            }
        }
    }
    findings
}

fn members(files: &[SourceFile]) -> impl Iterator<Item = &SourceFile> {
    files.iter().filter(|file| {
        file.path.ends_with("/Cargo.toml") && file.text.contains("version.workspace = true")
            || is_crate_at_depth(file)
    })
}

/// A manifest of a top-level folder is a member's even if it forgot to say so.
fn is_crate_at_depth(file: &SourceFile) -> bool {
    file.path.ends_with("/Cargo.toml") && file.path.matches('/').count() == 1
}

fn is_build_or_normal(section: &str) -> bool {
    section.ends_with("dependencies") && !section.ends_with("dev-dependencies")
}

fn package_name(manifest: &str) -> &str {
    manifest
        .lines()
        .find_map(|line| line.strip_prefix("name = \"")?.split('"').next())
        .unwrap_or_default()
}

/// The keys of the sections that `wanted` accepts, with their lines (from 1).
fn entries(manifest: &str, wanted: impl Fn(&str) -> bool) -> Vec<(usize, &str)> {
    let mut section = "";
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.split(']').next())
        {
            section = name.trim_matches('[');
        } else if wanted(section)
            && line.starts_with(|c: char| c.is_ascii_alphabetic())
            && let Some(key) = line.split(['.', '=', ' ']).next()
        {
            found.push((index + 1, key));
        }
    }
    found
}

fn finding(file: &SourceFile, line: usize, message: String) -> Finding {
    Finding {
        path: file.path.clone(),
        line,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, dependencies: &str) -> SourceFile {
        SourceFile {
            path: format!("{name}/Cargo.toml"),
            text: format!(
                "[package]\nname = \"{name}\"\nversion.workspace = true\nedition.workspace = true\nrust-version.workspace = true\n\
                 license.workspace = true\n\n[lints]\nworkspace = true\n\n[dependencies]\n{dependencies}"
            ),
        }
    }

    #[test]
    fn an_upward_dependency_is_found_and_a_test_may_have_it() {
        let upward = member("iron-ir", "iron-lower.workspace = true\n");
        assert_eq!(
            crates_depend_downwards(&[upward])[0].message,
            "`iron-ir` must not depend on `iron-lower`"
        );
        let vendor = member("iron-lower", "libloading.workspace = true\n");
        assert!(
            crates_depend_downwards(&[vendor])[0]
                .message
                .contains("`iron-lower` does no I/O")
        );
        let in_tests = member(
            "butter",
            "\n[dev-dependencies]\niron-lower.workspace = true\n",
        );
        assert_eq!(crates_depend_downwards(&[in_tests]), []);
    }

    #[test]
    fn a_dependency_without_reason_or_outside_the_workspace_is_found() {
        let root = SourceFile {
            path: "Cargo.toml".to_owned(),
            text: "[workspace.dependencies]\n# Ours.\na = 1\nb = 1\n\nc = 1\n".to_owned(),
        };
        let own = member("butter", "rand = \"1\"\n");
        let messages: Vec<String> = each_dependency_has_a_reason(&[root, own])
            .into_iter()
            .map(|f| f.message)
            .collect();
        assert_eq!(
            messages,
            [
                "`rand` does not come from [workspace.dependencies]",
                "no comment says why `c` is there"
            ]
        );
    }

    #[test]
    fn a_member_with_its_own_edition_is_found() {
        let mut file = member("butter", "");
        file.text = file
            .text
            .replace("edition.workspace = true", "edition = \"2021\"")
            .replace("[lints]\nworkspace = true", "");
        let messages: Vec<String> = members_share_package_fields_and_lints(&[file])
            .into_iter()
            .map(|f| f.message)
            .collect();
        assert_eq!(
            messages,
            [
                "`edition.workspace = true` is missing",
                "`[lints] workspace = true` is missing"
            ]
        );
    }
}
