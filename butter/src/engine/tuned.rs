//! Measured choices of kernels' instances that ship with Butter, for the devices they were measured
//! on. On any other device, driver or shape the rules of `super::route` hold.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use iron_ir::Scalar;
use iron_ir::registry::{KernelEntry, kernels};
use iron_runtime::Device;
use iron_runtime::tuning::{Choice, Table, identity};

/// Made by `__iron_runner tune --backend cuda --filter linear_of_8b --rotate 300000000`.
const SHIPPED: [&str; 1] = [include_str!("../../tuning/nvidia-h200.json")];

/// The choices that hold on one device.
#[derive(Default, Debug)]
pub struct Tuned(Vec<Choice>);

impl Tuned {
    /// No choices.
    pub fn none() -> &'static Tuned {
        static NONE: Tuned = Tuned(Vec::new());
        &NONE
    }

    /// Those of the table that was measured on this device with this driver, for kernels that are
    /// still what they were then.
    pub fn of(device: &dyn Device) -> &'static Tuned {
        static KNOWN: Mutex<BTreeMap<[String; 3], &'static Tuned>> = Mutex::new(BTreeMap::new());
        let key = [
            device.backend().name().to_owned(),
            device.name(),
            device.driver(),
        ];
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .entry(key)
            .or_insert_with(|| Box::leak(Box::new(Tuned::shipped(device))))
    }

    fn shipped(device: &dyn Device) -> Tuned {
        let tables = SHIPPED
            .iter()
            .filter_map(|text| serde_json::from_str::<Table>(text).ok());
        let own = tables.filter(|table| table.difference(device).is_none());
        Tuned(own.flat_map(|table| current(table.choices)).collect())
    }

    /// The value of a const parameter for a product `[rows, inner]` by `[columns, inner]`: as
    /// measured with these weights and the most rows that are not more.
    pub fn product(
        &self,
        kernel: &str,
        parameter: &str,
        scalar: Scalar,
        [rows, columns, inner]: [u64; 3],
    ) -> Option<i64> {
        let measured_rows = |choice: &Choice| {
            let [x, w, _] = &choice.shapes[..] else {
                return None;
            };
            let is_this = choice.kernel == kernel
                && choice.types.values().all(|ty| ty == scalar.name())
                && w[..] == [columns, inner];
            (is_this && x[0] <= rows).then(|| x[0])
        };
        let of_rows = self.0.iter().filter_map(|c| Some((measured_rows(c)?, c)));
        let (_, nearest) = of_rows.max_by_key(|(rows, _)| *rows)?;
        nearest.consts.get(parameter).copied()
    }
}

/// The choices whose candidates are what they were when they were measured.
fn current(choices: Vec<Choice>) -> Vec<Choice> {
    let all = kernels();
    let mut identities = BTreeMap::new();
    let mut is_current = |choice: &Choice| {
        let key = (choice.kernel.clone(), choice.types.clone());
        let found = identities
            .entry(key)
            .or_insert_with(|| identity_now(&all, choice));
        *found == Some(choice.identity.clone())
    };
    choices.into_iter().filter(|c| is_current(c)).collect()
}

/// The identity of today's kernel of that name.
fn identity_now(all: &[&'static KernelEntry], choice: &Choice) -> Option<String> {
    let kernel = all.iter().find(|kernel| kernel.name == choice.kernel)?;
    let named = |types: &[(&str, Scalar)]| -> BTreeMap<String, String> {
        let types = types.iter();
        types
            .map(|(name, ty)| ((*name).to_owned(), ty.name().to_owned()))
            .collect()
    };
    let of_types = kernel
        .instances
        .iter()
        .find(|i| named(i.types) == choice.types)?;
    identity(kernel, of_types.types).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_tables_are_read_and_of_todays_kernels() {
        iron_corpus::link();
        for text in SHIPPED {
            let table: Table = serde_json::from_str(text).expect("a table");
            let all = table.choices.len();
            assert!(all > 0 && !table.driver.is_empty());
            assert_eq!(
                current(table.choices).len(),
                all,
                "a kernel has changed since: measure again, or take its choices out"
            );
        }
    }

    #[test]
    fn a_product_takes_the_choice_of_its_weights_and_the_nearest_rows_below() {
        let choice = |rows: u64, columns: u64, tile: i64| Choice {
            kernel: "linear".to_owned(),
            identity: String::new(),
            types: BTreeMap::from([("T".to_owned(), "bf16".to_owned())]),
            case: String::new(),
            shapes: vec![vec![rows, 64], vec![columns, 64], vec![rows, columns]],
            instance: String::new(),
            consts: BTreeMap::from([("TILE".to_owned(), tile)]),
            candidates: Vec::new(),
        };
        let tuned = Tuned(vec![
            choice(512, 96, 1),
            choice(2048, 96, 2),
            choice(16, 32, 3),
        ]);
        let of = |shape| tuned.product("linear", "TILE", Scalar::BF16, shape);
        assert_eq!(of([511, 96, 64]), None);
        assert_eq!(of([512, 96, 64]), Some(1));
        assert_eq!(of([2047, 96, 64]), Some(1));
        assert_eq!(of([9000, 96, 64]), Some(2));
        assert_eq!(of([9000, 32, 64]), Some(3));
        assert_eq!(of([9000, 33, 64]), None);
        assert_eq!(
            tuned.product("linear", "TILE", Scalar::F16, [512, 96, 64]),
            None
        );
        assert_eq!(
            tuned.product("linear", "ROWS", Scalar::BF16, [512, 96, 64]),
            None
        );
    }
}
