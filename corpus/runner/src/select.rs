//! Which tests, benches and kernels a command line selects.

use iron_ir::registry::{InstanceEntry, KernelEntry, kernels};
use iron_ir::testing::{BenchEntry, TestEntry};
use iron_ir::{Scalar, inventory};

use crate::command::Selection;

/// A registered function over a kernel: a test or a bench.
pub(crate) trait Registered: 'static {
    /// Its name, module and kernel.
    fn names(&self) -> [&'static str; 3];
}

impl Registered for TestEntry {
    fn names(&self) -> [&'static str; 3] {
        [self.name, self.module, self.kernel]
    }
}

impl Registered for BenchEntry {
    fn names(&self) -> [&'static str; 3] {
        [self.name, self.module, self.kernel]
    }
}

/// One function over one instance of its kernel.
pub(crate) struct Selected<E: 'static> {
    pub entry: &'static E,
    pub kernel: &'static KernelEntry,
    pub instance: &'static InstanceEntry,
    /// `test[instance]`.
    pub name: String,
    /// Only cases whose `name/case` contains this.
    pub case_filter: Option<String>,
}

impl<E> Selected<E> {
    /// Whether a case is selected.
    pub fn takes(&self, case: &str) -> bool {
        let full = || format!("{}/{case}", self.name);
        self.case_filter
            .as_ref()
            .is_none_or(|f| full().contains(f.as_str()))
    }
}

/// A function whose kernel is not registered, or is ambiguous.
pub(crate) struct Orphan {
    pub name: &'static str,
    pub message: String,
}

/// What is selected of these entries, and those without a kernel.
pub(crate) fn select<E: Registered>(
    entries: Vec<&'static E>,
    selection: &Selection,
) -> (Vec<Selected<E>>, Vec<Orphan>) {
    let all = kernels();
    let mut selected = Vec::new();
    let mut orphans = Vec::new();
    for entry in entries {
        let [name, module, kernel_name] = entry.names();
        let kernel = match kernel_of(&all, kernel_name, module) {
            Ok(kernel) => kernel,
            Err(message) => {
                orphans.push(Orphan { name, message });
                continue;
            }
        };
        for instance in kernel.instances {
            if !has_dtype(instance, selection.dtype.as_deref()) {
                continue;
            }
            let full = full_name(name, instance.name);
            let Some(case_filter) =
                matches(selection.filter.as_deref(), &full, kernel_name, module)
            else {
                continue;
            };
            selected.push(Selected {
                entry,
                kernel,
                instance,
                name: full,
                case_filter,
            });
        }
    }
    (selected, orphans)
}

/// The kernel of that name; the function's own module wins, then its crate.
fn kernel_of(
    all: &[&'static KernelEntry],
    name: &str,
    module: &str,
) -> Result<&'static KernelEntry, String> {
    let found: Vec<_> = all.iter().copied().filter(|k| k.name == name).collect();
    let krate = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let same_module = found.iter().copied().find(|k| k.module == module);
    let near = |k: &&KernelEntry| krate(k.module) == krate(module);
    let same_crate: Vec<_> = found.iter().copied().filter(near).collect();
    match (same_module, &same_crate[..], &found[..]) {
        (Some(kernel), ..) => Ok(kernel),
        (None, [kernel], _) | (None, [], [kernel]) => Ok(*kernel),
        (None, _, []) => Err(format!("no kernel `{name}` is registered")),
        (None, ..) => Err(format!(
            "several kernels are named `{name}`, none in module `{module}`"
        )),
    }
}

/// `name[instance]`, or the name alone.
pub(crate) fn full_name(name: &str, instance: &str) -> String {
    if instance.is_empty() {
        name.to_owned()
    } else {
        format!("{name}[{instance}]")
    }
}

/// Whether the instance has this element type; all do where none is asked for. A kernel without
/// type parameters has every type.
pub(crate) fn has_dtype(instance: &InstanceEntry, dtype: Option<&str>) -> bool {
    let Some(scalar) = dtype.map(Scalar::from_name) else {
        return true;
    };
    instance.types.is_empty() || instance.types.iter().any(|t| Some(t.1) == scalar)
}

/// `None`: not selected. `Some(None)`: every case. `Some(filter)`: cases that contain it.
fn matches(filter: Option<&str>, full: &str, kernel: &str, module: &str) -> Option<Option<String>> {
    let Some(filter) = filter else {
        return Some(None);
    };
    if full.contains(filter)
        || kernel.contains(filter)
        || format!("{module}::{full}").contains(filter)
    {
        return Some(None);
    }
    let head = filter.split_once('/')?.0;
    full.ends_with(head).then(|| Some(filter.to_owned()))
}

/// The names nearest to what was asked for, best first.
pub(crate) fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut scored: Vec<(usize, &str)> = names
        .into_iter()
        .map(|n| (distance(wanted, n), n))
        .collect();
    scored.sort();
    scored.dedup();
    scored.into_iter().take(5).map(|(_, name)| name).collect()
}

/// Levenshtein distance of two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Hash of every registered kernel's IR and of the names of tests and benches: a stale binary
/// has another.
pub(crate) fn registry_hash() -> String {
    let mut lines = Vec::new();
    for kernel in kernels() {
        for instance in kernel.instances {
            let ir = match (instance.build)() {
                Ok(kernel) => iron_runtime::identity::artifact_hash(&kernel, &[]),
                Err(error) => error.to_string(),
            };
            lines.push(format!(
                "kernel {} {} {} {ir}",
                kernel.module, kernel.name, instance.name
            ));
        }
    }
    for test in inventory::iter::<TestEntry> {
        lines.push(format!(
            "test {} {} {}",
            test.module, test.name, test.kernel
        ));
    }
    for bench in inventory::iter::<BenchEntry> {
        lines.push(format!(
            "bench {} {} {}",
            bench.module, bench.name, bench.kernel
        ));
    }
    lines.sort();
    let hash = lines
        .join("\n")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
}

/// Says that nothing was selected, and what is near.
pub(crate) fn explain_empty(what: &str, selection: &Selection, names: Vec<String>) -> String {
    let mut text = format!("no {what} matches");
    if let Some(filter) = &selection.filter {
        text += &format!(" `{filter}`");
    }
    if let Some(dtype) = &selection.dtype {
        text += &format!(" with dtype {dtype}");
    }
    if names.is_empty() {
        text += "; this binary has none (is the crate of kernels linked?)";
    } else {
        let wanted = selection.filter.as_deref().unwrap_or_default();
        if selection.dtype.is_some() && names.iter().any(|name| name.contains(wanted)) {
            return text + "; without the dtype something does";
        }
        let near = nearest(wanted, names.iter().map(String::as_str));
        text += &format!("; nearest: {}", near.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_and_near_names() {
        let m = |filter| matches(Some(filter), "sums[f32]", "reduce", "lib::reduce");
        assert_eq!(m("sum"), Some(None));
        assert_eq!(m("reduce"), Some(None));
        assert_eq!(m("sums[f16]"), None);
        assert_eq!(m("sums[f32]/7"), Some(Some("sums[f32]/7".into())));
        assert_eq!(
            nearest("sumz", ["products", "sums", "sum"])[..2],
            ["sum", "sums"]
        );
    }
}
