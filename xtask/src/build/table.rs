//! The table of a build, and its summary.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::LoweringResult;
use super::manifest::{Manifest, Status, Variant};

const HEADINGS: [&str; 8] = [
    "kernel",
    "dtype",
    "target",
    "status",
    "bytes",
    "registers",
    "spills",
    "shared",
];

/// One row a kernel and target; the values of its profiles are joined by `/`.
pub fn render(manifest: &Manifest) -> String {
    let mut rows: Vec<[String; 8]> = vec![HEADINGS.map(str::to_owned)];
    for kernel in &manifest.kernels {
        for (target, record) in &kernel.targets {
            rows.push([
                super::plan::full_name(&kernel.name, &kernel.instance),
                kernel.dtype.clone(),
                (*target).to_owned(),
                joined_once(&record.variants, status_word),
                joined(&record.variants, |variant| {
                    (variant.bytes > 0).then_some(variant.bytes)
                }),
                joined(&record.variants, |variant| variant.registers),
                joined(&record.variants, |variant| variant.spills),
                joined_once(&record.variants, |variant| {
                    variant
                        .shared_bytes
                        .map_or_else(|| "-".to_owned(), |n| n.to_string())
                }),
            ]);
        }
    }
    let mut widths = [0; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Counts over a whole build.
pub struct Summary {
    /// Kernels by name.
    pub kernels: usize,
    /// Kernel instances.
    pub instances: usize,
    /// Variants that a compiler accepted, and how many of these came from the cache.
    pub checked: usize,
    /// Accepted variants that an earlier run had compiled.
    pub cached: usize,
    /// Variants lowered without a compiler at hand.
    pub unchecked: usize,
    /// Variants refused by a limit or feature of the target.
    pub unsupported: usize,
    /// Failed variants.
    pub failed: usize,
    /// Who accepted how many.
    by_compiler: BTreeMap<String, usize>,
    /// Why variants were not checked, each reason once.
    skip_reasons: BTreeMap<String, usize>,
    /// Why targets refuse kernels: kernel and reason.
    unsupported_reasons: Vec<String>,
}

impl Summary {
    /// Counts `manifest` and what of `results` came from the cache.
    pub fn new(manifest: &Manifest, results: &[LoweringResult]) -> Self {
        let mut names: Vec<&str> = manifest
            .kernels
            .iter()
            .map(|kernel| kernel.name.as_str())
            .collect();
        names.dedup();
        let mut summary = Self {
            kernels: names.len(),
            instances: manifest.kernels.len(),
            checked: 0,
            cached: results
                .iter()
                .filter(|result| matches!(result, LoweringResult::Compiled { cached: true, .. }))
                .count(),
            unchecked: 0,
            unsupported: 0,
            failed: 0,
            by_compiler: BTreeMap::new(),
            skip_reasons: BTreeMap::new(),
            unsupported_reasons: Vec::new(),
        };
        for kernel in &manifest.kernels {
            for (target, record) in &kernel.targets {
                for variant in &record.variants {
                    summary.count(
                        &super::plan::full_name(&kernel.name, &kernel.instance),
                        target,
                        variant,
                    );
                }
            }
        }
        summary
    }

    fn count(&mut self, kernel: &str, target: &str, variant: &Variant) {
        match (variant.status, &variant.checked_by) {
            (Status::Ok, Some(compiler)) => {
                self.checked += 1;
                *self
                    .by_compiler
                    .entry(format!("{target} {}: {compiler}", variant.profile))
                    .or_default() += 1;
            }
            (Status::Ok, None) => {
                self.unchecked += 1;
                let reason = variant.reason.clone().unwrap_or_default();
                *self
                    .skip_reasons
                    .entry(format!("{target}: {reason}"))
                    .or_default() += 1;
            }
            (Status::Unsupported, _) => {
                self.unsupported += 1;
                let reason = variant.reason.as_deref().unwrap_or_default();
                self.unsupported_reasons
                    .push(format!("{kernel} {target} {}: {reason}", variant.profile));
            }
            (Status::Failed, _) => self.failed += 1,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} kernels in {} instances: {} variants checked ({} unchanged), {} SKIPPED (lowered, not checked), {} unsupported, {} failed",
            self.kernels,
            self.instances,
            self.checked,
            self.cached,
            self.unchecked,
            self.unsupported,
            self.failed
        )?;
        for (compiler, count) in &self.by_compiler {
            writeln!(f, "  {count:>5} {compiler}")?;
        }
        for (reason, count) in &self.skip_reasons {
            writeln!(f, "  SKIPPED {count} {reason}")?;
        }
        for reason in &self.unsupported_reasons {
            writeln!(f, "  unsupported: {reason}")?;
        }
        Ok(())
    }
}

fn status_word(variant: &Variant) -> String {
    match (variant.status, &variant.checked_by) {
        (Status::Failed, _) => "FAILED",
        (Status::Unsupported, _) => "unsupported",
        (Status::Ok, Some(_)) => "ok",
        (Status::Ok, None) => "lowered",
    }
    .to_owned()
}

/// The values in order; one dash where there are none.
fn joined<T: ToString>(variants: &[Variant], value: impl Fn(&Variant) -> Option<T>) -> String {
    let values: Vec<String> = variants
        .iter()
        .map(|variant| value(variant).map_or_else(|| "-".to_owned(), |value| value.to_string()))
        .collect();
    if values.iter().all(|value| value == "-") {
        "-".to_owned()
    } else {
        values.join("/")
    }
}

/// The values in order; a single one where all are equal.
fn joined_once(variants: &[Variant], value: impl Fn(&Variant) -> String) -> String {
    let mut values: Vec<String> = variants.iter().map(value).collect();
    if values.windows(2).all(|pair| pair[0] == pair[1]) {
        values.truncate(1);
    }
    values.join("/")
}
