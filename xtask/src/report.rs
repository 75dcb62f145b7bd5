//! `report`: what the last `build-kernels` and the recorded receipts say, in a few lines.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::exit::Exit;
use crate::tools::{ToolError, file_error};
use crate::workspace::Workspace;

/// Runs the command.
pub fn run(workspace: &Workspace) -> Result<Exit, ToolError> {
    let path = workspace.kernels().join("manifest.json");
    if !path.is_file() {
        eprintln!(
            "error: {} is not there; run `cargo xtask build-kernels`",
            workspace.display(&path)
        );
        return Ok(Exit::NothingSelected);
    }
    let text = std::fs::read(&path).map_err(|source| file_error("read", &path, source))?;
    let manifest: Value = serde_json::from_slice(&text).map_err(|error| {
        file_error(
            "parse",
            &path,
            std::io::Error::new(std::io::ErrorKind::InvalidData, error),
        )
    })?;
    println!("{}:", workspace.display(&path));
    for line in summarise(&manifest) {
        println!("  {line}");
    }
    let receipts = workspace.root.join("docs").join("receipts");
    let mut names: Vec<String> = std::fs::read_dir(&receipts)
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    println!(
        "docs/receipts: {}",
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    );
    Ok(Exit::Success)
}

/// One line a target and status, with counts of instances.
fn summarise(manifest: &Value) -> Vec<String> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let kernels = manifest["kernels"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    for kernel in kernels {
        for (target, record) in kernel["targets"].as_object().into_iter().flatten() {
            let status = record["status"]
                .as_str()
                .unwrap_or("without status")
                .to_owned();
            *counts.entry((target.clone(), status)).or_default() += 1;
        }
    }
    let mut lines = vec![format!("{} kernel instances", kernels.len())];
    lines.extend(
        counts
            .into_iter()
            .map(|((target, status), count)| format!("{target}: {count} {status}")),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_counted_by_target() {
        let manifest = serde_json::json!({ "kernels": [
            { "targets": { "cuda": { "status": "ok" }, "msl": { "status": "unsupported" } } },
            { "targets": { "cuda": { "status": "ok" }, "msl": { "status": "ok" } } },
        ]});
        assert_eq!(
            summarise(&manifest),
            [
                "2 kernel instances",
                "cuda: 2 ok",
                "msl: 1 ok",
                "msl: 1 unsupported"
            ]
        );
    }
}
