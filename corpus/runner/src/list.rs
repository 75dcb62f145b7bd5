//! `list` and `devices`.

use iron_ir::registry::kernels;
use iron_ir::testing::{benches, tests};
use iron_runtime::{Backend, open};
use serde::Serialize;

use crate::command::{Ending, Selection};
use crate::report::{BackendLine, print_json};
use crate::select::{explain_empty, has_dtype, registry_hash};

#[derive(Serialize)]
struct Listing {
    registry: String,
    kernels: Vec<ListedKernel>,
}

#[derive(Serialize)]
struct ListedKernel {
    name: &'static str,
    module: &'static str,
    file: &'static str,
    line: u32,
    instances: Vec<&'static str>,
    tests: Vec<&'static str>,
    benches: Vec<&'static str>,
}

/// `list`.
pub(crate) fn list(selection: &Selection) -> Ending {
    let mut listing = Listing {
        registry: registry_hash(),
        kernels: Vec::new(),
    };
    let (tests, benches) = (tests(), benches());
    for kernel in kernels() {
        let tests: Vec<_> = tests
            .iter()
            .filter(|t| t.kernel == kernel.name)
            .map(|t| t.name)
            .collect();
        let benches: Vec<_> = benches
            .iter()
            .filter(|b| b.kernel == kernel.name)
            .map(|b| b.name)
            .collect();
        let named = selection.filter.as_deref().is_none_or(|f| {
            kernel.name.contains(f)
                || format!("{}::{}", kernel.module, kernel.name).contains(f)
                || tests.iter().chain(&benches).any(|n| n.contains(f))
        });
        let instances: Vec<_> = kernel
            .instances
            .iter()
            .filter(|i| has_dtype(i, selection.dtype.as_deref()))
            .map(|i| i.name)
            .collect();
        if named && !instances.is_empty() {
            listing.kernels.push(ListedKernel {
                name: kernel.name,
                module: kernel.module,
                file: kernel.file,
                line: kernel.line,
                instances,
                tests,
                benches,
            });
        }
    }
    if selection.json {
        print_json(&listing);
    } else {
        for kernel in &listing.kernels {
            println!("{} ({}:{})", kernel.name, kernel.file, kernel.line);
            if kernel.instances != [""] {
                println!("    instances: {}", kernel.instances.join(", "));
            }
            let or_none = |names: &[&str]| {
                if names.is_empty() {
                    "none".into()
                } else {
                    names.join(", ")
                }
            };
            println!("    tests: {}", or_none(&kernel.tests));
            if !kernel.benches.is_empty() {
                println!("    benches: {}", kernel.benches.join(", "));
            }
        }
        let instances: usize = listing.kernels.iter().map(|k| k.instances.len()).sum();
        println!(
            "{} kernels, {instances} instances; registry {}",
            listing.kernels.len(),
            listing.registry
        );
    }
    if listing.kernels.is_empty() {
        let names = kernels().iter().map(|k| k.name.to_owned()).collect();
        eprintln!("{}", explain_empty("kernel", selection, names));
        return Ending::NothingSelected;
    }
    Ending::Passed
}

/// `devices`. A named backend that is missing is an error; of all, some always are.
pub(crate) fn devices(named: &[Backend], json: bool) -> Ending {
    let backends = if named.is_empty() {
        &Backend::ALL[..]
    } else {
        named
    };
    let mut lines = Vec::new();
    for &backend in backends {
        let line = match open(backend) {
            Ok(device) => BackendLine {
                backend: backend.name(),
                label: Some(backend.label()),
                device: Some(device.name()),
                driver: Some(device.driver()),
                missing: None,
            },
            Err(error) => BackendLine {
                backend: backend.name(),
                label: None,
                device: None,
                driver: None,
                missing: Some(error.to_string()),
            },
        };
        if !json {
            match (&line.device, &line.driver, &line.missing) {
                (Some(device), Some(driver), _) => {
                    println!("{:<13} {device} ({driver})", line.backend);
                }
                (.., reason) => {
                    println!(
                        "{:<13} missing: {}",
                        line.backend,
                        reason.as_deref().unwrap_or_default()
                    );
                }
            }
        }
        lines.push(line);
    }
    if json {
        print_json(&lines);
    }
    if !named.is_empty() && lines.iter().any(|l| l.missing.is_some()) {
        return Ending::BackendMissing;
    }
    Ending::Passed
}
