//! The checker finds every planted fault, at its place and nowhere else, and says nothing about the
//! mended twins.

mod planted;

use std::collections::BTreeMap;

use iron_ir::registry::kernels;
use iron_runner::{Found, Request, check};

const WIDTHS: [u32; 5] = [4, 8, 16, 32, 64];

const SOURCES: [(&str, &str); 7] = [
    ("bounds", include_str!("planted/bounds.rs")),
    ("divergence", include_str!("planted/divergence.rs")),
    ("indices", include_str!("planted/indices.rs")),
    ("loops", include_str!("planted/loops.rs")),
    ("memory", include_str!("planted/memory.rs")),
    ("numbers", include_str!("planted/numbers.rs")),
    ("races", include_str!("planted/races.rs")),
];

/// What the comments of one kernel say.
#[derive(Debug, Default, Clone)]
struct Planted {
    module: &'static str,
    rule: &'static str,
    line: u32,
    with: Option<u32>,
    widths: Vec<u32>,
}

/// The planted faults of these modules, by kernel.
fn planted(modules: &[&str]) -> BTreeMap<&'static str, Planted> {
    let mut all = BTreeMap::new();
    for (module, text) in SOURCES {
        if !modules.contains(&module) {
            continue;
        }
        let mut kernel = "";
        let mut now = Planted::default();
        for (line, text) in (1..).zip(text.lines()) {
            if let Some(rest) = text.strip_prefix("pub fn ") {
                kernel = rest.split(['<', '(']).next().unwrap_or_default();
                now = Planted {
                    module,
                    ..Planted::default()
                };
            }
            // rustfmt moves a comment behind `{` to a line of its own: it means the line above.
            let line = if text.trim_start().starts_with("// ") {
                line - 1
            } else {
                line
            };
            for comment in text.split("// ").skip(1) {
                let comment = comment.trim();
                if let Some(fault) = comment.strip_prefix("fault: ") {
                    let (rule, widths) = fault.split_once(" at ").unwrap_or((fault, ""));
                    now.rule = rule;
                    now.line = line;
                    now.widths = match widths {
                        "" => Vec::new(),
                        list => list
                            .split(", ")
                            .map(|w| w.parse().expect("a width"))
                            .collect(),
                    };
                } else if comment == "with" {
                    now.with = Some(line);
                }
            }
            if now.line != 0 {
                all.insert(kernel, now.clone());
            }
        }
    }
    all
}

/// Compares reports with comments; what differs.
fn compare(expected: &BTreeMap<&str, Planted>, found: &[Found]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (kernel, planted) in expected {
        let reports: Vec<_> = found.iter().filter(|f| f.kernel == *kernel).collect();
        let [report] = reports[..] else {
            wrong.push(format!(
                "{kernel}: {} reports for one fault: {reports:#?}",
                reports.len()
            ));
            continue;
        };
        let mut lines = vec![report.at.line];
        lines.extend(report.related.as_ref().map(|r| r.1.line));
        let mut wanted = vec![planted.line];
        wanted.extend(planted.with);
        if planted.rule == "race" {
            // Which access comes second is the interpreter's choice.
            lines.sort_unstable();
            wanted.sort_unstable();
        }
        let twins = report.instances.iter().any(|i| i.contains("MENDED=true"));
        let widths = planted.widths.is_empty() || planted.widths == report.widths;
        let file = report
            .at
            .file
            .ends_with(&format!("planted/{}.rs", planted.module));
        if report.rule != planted.rule || lines != wanted || twins || !widths || !file {
            wrong.push(format!("{kernel}: expected {planted:?}, got {report:#?}"));
        }
        if report.at.column == 0 || report.help.is_empty() || report.message.is_empty() {
            wrong.push(format!("{kernel}: says too little: {report:#?}"));
        }
    }
    for report in found
        .iter()
        .filter(|f| !expected.contains_key(f.kernel.as_str()))
    {
        wrong.push(format!("no fault was planted here: {report:#?}"));
    }
    wrong
}

fn run(filter: &str, finite: bool) -> Vec<Found> {
    let checked = check(&Request {
        filter: Some(filter.into()),
        widths: WIDTHS.to_vec(),
        finite,
        max_steps: 20_000,
        ..Request::default()
    });
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert!(checked.cases > 0, "nothing ran");
    checked.faults
}

#[test]
fn every_planted_fault_is_found_where_it_is_and_nothing_else() {
    let modules = [
        "bounds",
        "divergence",
        "indices",
        "loops",
        "memory",
        "races",
    ];
    let mut expected = planted(&modules);
    // Kernels that do not verify have no cases; they are found by name.
    let divergent = planted(&["divergence"]);
    let mut found = run("planted::", false);
    for kernel in divergent.keys() {
        let alone = check(&Request {
            filter: Some((*kernel).into()),
            ..Request::default()
        });
        found.extend(alone.faults.into_iter().filter(|f| f.kernel == *kernel));
    }
    // Only the oracle sees those, unless floats must stay finite.
    let numbers = planted(&["numbers"]);
    found.retain(|f| !(f.rule == "wrong-result" && numbers.contains_key(f.kernel.as_str())));
    let wrong = compare(&expected, &found);
    assert!(
        wrong.is_empty(),
        "{} differ\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    expected.extend(numbers);
    println!("{} planted faults found", expected.len());
    assert!(
        expected.len() >= 40,
        "only {} faults are planted",
        expected.len()
    );
}

#[test]
fn floats_that_stop_being_finite_are_found_on_request() {
    let wrong = compare(&planted(&["numbers"]), &run("planted::numbers", true));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_kernel_here_has_a_fault_or_is_a_twin() {
    let modules: Vec<_> = SOURCES.iter().map(|s| s.0).collect();
    let expected = planted(&modules);
    for entry in kernels()
        .into_iter()
        .filter(|k| k.module.contains("::planted::"))
    {
        let twin = entry.name.strip_suffix("_mended").unwrap_or(entry.name);
        assert!(
            expected.contains_key(twin) || twin == "went_in",
            "`{}` has no `// fault:` comment",
            entry.name
        );
    }
}
