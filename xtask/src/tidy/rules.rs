//! Rules about the text of files.

use super::Finding;
use super::files::SourceFile;

/// A file that is read is at most this long.
const MAX_LINES: usize = 800;

/// Nobody reads a longer file whole.
pub fn files_are_short(files: &[SourceFile]) -> Vec<Finding> {
    files
        .iter()
        .filter(|file| file.is_written_by_hand())
        .filter_map(|file| {
            let lines = file.text.lines().count();
            (lines > MAX_LINES).then(|| {
                finding(
                    file,
                    0,
                    format!("{lines} lines, more than {MAX_LINES}: split it"),
                )
            })
        })
        .collect()
}

/// A reader learns from the first line what a file is for.
pub fn rust_files_begin_with_their_doc(files: &[SourceFile]) -> Vec<Finding> {
    files
        .iter()
        // Inputs of diagnostics tests are programs under test, not part of the code.
        .filter(|file| file.is_rust() && !file.path.contains("/ui/"))
        .filter(|file| !file.text.starts_with("//!"))
        .map(|file| {
            finding(
                file,
                1,
                "no module doc (`//! …`) on the first line".to_owned(),
            )
        })
        .collect()
}

/// Marks of unfinished or switched-off work.
pub fn nothing_is_unfinished(files: &[SourceFile]) -> Vec<Finding> {
    // Written in two parts, so that this file does not hold them itself.
    let marks = [
        ["to", "do!("].concat(),
        ["unimpl", "emented!("].concat(),
        ["db", "g!("].concat(),
        ["#[ign", "ore"].concat(),
        ["#[should", "_panic"].concat(),
    ];
    find_lines(files.iter().filter(|file| file.is_rust()), &marks, |mark| {
        format!("`{mark}` does not land")
    })
}

/// Nothing names a folder of one machine, or the host of a registry.
pub fn no_machine_paths_or_hosts(files: &[SourceFile]) -> Vec<Finding> {
    let marks = [
        ["/wo", "rk/"].concat(),
        ["/fa", "rm/"].concat(),
        ["/tm", "p/"].concat(),
        ["/ro", "ot/"].concat(),
        ["/ho", "me/"].concat(),
        ["static.", "crates.io"].concat(),
        ["files.python", "hosted"].concat(),
        ["registry.", "npmjs"].concat(),
        ["deb.", "debian"].concat(),
    ];
    let hand_written = files.iter().filter(|file| !file.path.ends_with(".lock"));
    find_lines(hand_written, &marks, |mark| {
        format!("`{mark}` names one machine or one registry's host")
    })
}

/// The IR, the passes, the lowerings and the macros turn data into data.
pub fn pure_crates_do_no_input_or_output(files: &[SourceFile]) -> Vec<Finding> {
    let marks = ["std::fs", "std::net", "std::process", "println!("].map(str::to_owned);
    let pure = [
        "iron-macros/src",
        "iron-ir/src",
        "iron-passes/src",
        "iron-lower/src",
    ];
    // Their tests may run a validator or print what they skip.
    let code: Vec<SourceFile> = files
        .iter()
        .filter(|file| file.is_rust() && pure.iter().any(|folder| file.is_below(folder)))
        .filter(|file| !file.path.ends_with("tests.rs") && !file.path.contains("/tests/"))
        .map(|file| SourceFile {
            path: file.path.clone(),
            text: file
                .text
                .split("#[cfg(test)]\nmod ")
                .next()
                .unwrap_or_default()
                .to_owned(),
        })
        .collect();
    find_lines(code.iter(), &marks, |mark| {
        format!("`{mark}` is input or output, which this crate does none of")
    })
}

/// Kernel math lives in the corpus; the corpus knows no model.
pub fn butter_holds_no_kernels(files: &[SourceFile]) -> Vec<Finding> {
    let marks = ["#[kernel", "#[device_fn"].map(str::to_owned);
    let files = files
        .iter()
        .filter(|file| file.is_rust() && file.is_below("butter/src"));
    find_lines(files, &marks, |mark| {
        format!("`{mark}` belongs into the corpus")
    })
}

/// Both licences of `MIT OR Apache-2.0` are there in full.
pub fn licences_are_there(files: &[SourceFile]) -> Vec<Finding> {
    [
        ("LICENSE-MIT", "Permission is hereby granted"),
        ("LICENSE-APACHE", "END OF TERMS AND CONDITIONS"),
    ]
    .into_iter()
    .filter(|(path, phrase)| {
        !files
            .iter()
            .any(|file| file.path == *path && file.text.contains(phrase))
    })
    .map(|(path, phrase)| Finding {
        path: path.to_owned(),
        line: 0,
        message: format!("missing, or without `{phrase}`"),
    })
    .collect()
}

fn find_lines<'a>(
    files: impl Iterator<Item = &'a SourceFile>,
    marks: &[String],
    message: impl Fn(&str) -> String,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let code = line.trim_start();
            for mark in marks.iter().filter(|mark| code.contains(mark.as_str())) {
                // A doc comment may show how a program that uses the crate prints.
                if mark.starts_with("println") && code.starts_with("//") {
                    continue;
                }
                findings.push(finding(file, index + 1, message(mark)));
            }
        }
    }
    findings
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

    fn file(path: &str, text: impl Into<String>) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text: text.into(),
        }
    }

    #[test]
    fn each_rule_finds_what_it_is_for() {
        let long = file("iron-ir/src/long.rs", "//! Doc.\n".repeat(801));
        assert_eq!(files_are_short(&[long]).len(), 1);
        assert_eq!(files_are_short(&[file("a.json", "x\n".repeat(5000))]), []);
        assert_eq!(
            rust_files_begin_with_their_doc(&[file("a.rs", "use std;\n")])[0].line,
            1
        );
        let unfinished = file(
            "a.rs",
            ["//! D.\nfn f() { to", "do!() }\n#[ign", "ore]\n"].concat(),
        );
        assert_eq!(
            nothing_is_unfinished(&[unfinished])
                .iter()
                .map(|f| f.line)
                .collect::<Vec<_>>(),
            [2, 3]
        );
        let path = file("README.md", ["see /wo", "rk/main\n"].concat());
        assert_eq!(no_machine_paths_or_hosts(&[path]).len(), 1);
        let reads = file("iron-lower/src/a.rs", "//! D.\nuse std::fs;\n");
        assert_eq!(
            pure_crates_do_no_input_or_output(std::slice::from_ref(&reads)).len(),
            1
        );
        let tests_read = file(
            "iron-lower/src/b.rs",
            "//! D.\nfn f() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n",
        );
        let elsewhere = file("xtask/src/a.rs", reads.text);
        assert_eq!(
            pure_crates_do_no_input_or_output(&[elsewhere, tests_read]),
            []
        );
        assert_eq!(
            butter_holds_no_kernels(&[file("butter/src/a.rs", "#[kernel]\n")]).len(),
            1
        );
        assert_eq!(licences_are_there(&[]).len(), 2);
    }
}
