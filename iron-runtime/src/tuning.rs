//! Tables of measured choices: which of a kernel's instances that do the same is the fastest for
//! given shapes on one device. `__iron_runner tune` makes them; whoever launches kernels may look
//! into one. Nothing is measured at run time.
//!
//! A choice holds for what it was measured on: the kernel's own IR, the backend, the device, the
//! driver, the element types and the shapes.

use std::collections::BTreeMap;

use iron_ir::Scalar;
use iron_ir::build::BuildError;
use iron_ir::registry::KernelEntry;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::device::Device;

/// Choices for one device.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// As [`Backend::name`](crate::Backend::name).
    pub backend: String,
    /// As [`Device::name`].
    pub device: String,
    /// As [`Device::driver`].
    pub driver: String,
    /// One for each kernel, types and shapes.
    pub choices: Vec<Choice>,
}

/// The choice for one kernel, its element types and its tensors' shapes.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The kernel's name.
    pub kernel: String,
    /// [`identity`] of the kernel: another of the same name has another.
    pub identity: String,
    /// The scalar of each type parameter.
    pub types: BTreeMap<String, String>,
    /// The bench's case.
    pub case: String,
    /// Of each tensor, in the order of the parameters.
    pub shapes: Vec<Vec<u64>>,
    /// The instance to take.
    pub instance: String,
    /// Its value of each const parameter.
    pub consts: BTreeMap<String, i64>,
    /// What was measured.
    pub candidates: Vec<Timing>,
}

/// What a candidate took.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// The candidate.
    pub instance: String,
    /// Median of all repetitions.
    pub median_microseconds: f64,
    /// Half of the repetitions lie between these.
    pub quartiles_microseconds: [f64; 2],
}

impl Choice {
    /// What it is the choice for, beside the device.
    pub fn key(&self) -> (&str, &BTreeMap<String, String>, &[Vec<u64>]) {
        (&self.kernel, &self.types, &self.shapes)
    }
}

impl Table {
    /// A table without choices.
    pub fn of(device: &dyn Device) -> Table {
        Table {
            backend: device.backend().name().to_owned(),
            device: device.name(),
            driver: device.driver(),
            choices: Vec::new(),
        }
    }

    /// What keeps the table from being one of `device`: the first thing in which they differ, the
    /// table's and the device's.
    pub fn difference(&self, device: &dyn Device) -> Option<(&'static str, [String; 2])> {
        let own = Table::of(device);
        [
            ("backend", &self.backend, own.backend),
            ("device", &self.device, own.device),
            ("driver", &self.driver, own.driver),
        ]
        .into_iter()
        .find(|(_, of_table, of_device)| *of_table != of_device)
        .map(|(what, of_table, of_device)| (what, [of_table.clone(), of_device]))
    }

    /// With new choices in the place of those for the same.
    #[must_use]
    pub fn with(mut self, choices: &[Choice]) -> Table {
        for choice in choices {
            self.choices.retain(|old| old.key() != choice.key());
            self.choices.push(choice.clone());
        }
        self.choices.sort_by(|a, b| a.key().cmp(&b.key()));
        self
    }
}

/// Hash of the IR of a kernel's instances with these element types: the candidates of one choice,
/// and those that a bench or a target leaves out.
pub fn identity(kernel: &KernelEntry, types: &[(&str, Scalar)]) -> Result<String, BuildError> {
    let mut hash = Sha256::new();
    for instance in kernel.instances.iter().filter(|i| i.types == types) {
        hash.update(iron_ir::print::print(&(instance.build)()?));
    }
    let hash = hash.finalize();
    Ok(hash
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(instance: &str, rows: u64) -> Choice {
        Choice {
            kernel: "product".to_owned(),
            identity: "0".to_owned(),
            types: BTreeMap::from([("T".to_owned(), "f32".to_owned())]),
            case: "case".to_owned(),
            shapes: vec![vec![rows, 8]],
            instance: instance.to_owned(),
            consts: BTreeMap::new(),
            candidates: Vec::new(),
        }
    }

    #[test]
    fn a_new_choice_takes_the_place_of_the_old_one_for_the_same() {
        let table = Table {
            backend: "cpu".to_owned(),
            device: "a".to_owned(),
            driver: "b".to_owned(),
            choices: vec![chosen("f32-LANES=1", 4), chosen("f32-LANES=2", 1)],
        };
        let table = table.with(&[chosen("f32-LANES=8", 1), chosen("f32-LANES=4", 2)]);
        let found: Vec<&str> = table.choices.iter().map(|c| c.instance.as_str()).collect();
        assert_eq!(found, ["f32-LANES=8", "f32-LANES=4", "f32-LANES=1"]);
    }
}
