//! What is to be built: the selected kernels, and each one's lowering for each profile of a target.

use std::fmt;
use std::time::Duration;

use iron_lower::Places;
use rayon::prelude::*;
use serde_json::Value;

use super::cost::timed;
use crate::compilers::Target;

/// A target with its version or architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The target.
    pub target: Target,
    /// The profile's name, unique among all.
    pub name: String,
    /// The architecture that the compiler is told: the profile's name on CUDA and HIP, while the
    /// SPIR-V profiles are legalised differently for one environment.
    pub arch: String,
}

/// One instance of a kernel, as the registry tells it.
pub struct KernelInstance {
    /// The author's name.
    pub name: String,
    /// The instance's name; empty where the kernel has no generics.
    pub instance: String,
    /// The element type that the instance is about.
    pub dtype: String,
    /// The launch contract.
    pub contract: Value,
    /// The textual IR, of which the identity is the hash.
    pub ir: String,
    /// Lowers for a profile.
    pub lower: Box<dyn Fn(&Profile) -> Lowered + Send + Sync>,
}

impl KernelInstance {
    /// `name` or `name-instance`.
    pub fn full_name(&self) -> String {
        full_name(&self.name, &self.instance)
    }
}

/// What lowering one kernel for one profile of a target gave.
#[derive(Clone, Debug)]
pub enum Lowered {
    /// A text or module.
    Source {
        /// The file's ending.
        extension: &'static str,
        /// Its content.
        bytes: Vec<u8>,
        /// The author's place of each of its lines or instructions.
        places: Places,
        /// Shared memory of a workgroup after the passes, in bytes.
        shared_bytes: u32,
    },
    /// The target cannot run this kernel; says why.
    Unsupported(String),
    /// The lowering failed.
    Failed(String),
}

/// One kernel lowered for one profile.
pub struct Lowering<'a> {
    /// Index into [`Plan::kernels`].
    pub kernel: usize,
    /// For which profile.
    pub profile: &'a Profile,
    /// What it gave.
    pub lowered: Lowered,
    /// What that cost.
    pub cost: Duration,
}

/// Everything to compile, in the order of the manifest.
pub struct Plan<'a> {
    /// The selected kernels.
    pub kernels: &'a [KernelInstance],
    /// Their lowerings, by kernel, then profile.
    pub lowerings: Vec<Lowering<'a>>,
}

impl<'a> Plan<'a> {
    /// Lowers each of `kernels` for each of `profiles`, calling `lowered_one` after each.
    pub fn new(
        kernels: &'a [KernelInstance],
        profiles: &'a [Profile],
        lowered_one: impl Fn() + Sync,
    ) -> Self {
        let lowerings = (0..kernels.len() * profiles.len())
            .into_par_iter()
            .map(|index| {
                let (kernel, profile) = (index / profiles.len(), &profiles[index % profiles.len()]);
                let (lowered, cost) = timed(|| (kernels[kernel].lower)(profile));
                lowered_one();
                Lowering {
                    kernel,
                    profile,
                    lowered,
                    cost,
                }
            })
            .collect();
        Self { kernels, lowerings }
    }
}

/// Nothing matches the filter; names what is near.
#[derive(Debug, PartialEq, Eq)]
pub struct NothingSelected {
    filter: String,
    near: Vec<String>,
}

impl fmt::Display for NothingSelected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.filter.is_empty() {
            return f.write_str("no kernel is registered in this binary");
        }
        write!(f, "no kernel matches `{}`", self.filter)?;
        if !self.near.is_empty() {
            write!(f, "; near are {}", self.near.join(", "))?;
        }
        Ok(())
    }
}

/// The kernels whose full name contains `filter`, sorted by name and instance.
pub fn select(
    mut kernels: Vec<KernelInstance>,
    filter: Option<&str>,
) -> Result<Vec<KernelInstance>, NothingSelected> {
    kernels.sort_by(|a, b| (&a.name, &a.instance).cmp(&(&b.name, &b.instance)));
    let filter = filter.unwrap_or_default();
    let names: Vec<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    kernels.retain(|kernel| kernel.full_name().contains(filter));
    if kernels.is_empty() {
        return Err(NothingSelected {
            filter: filter.to_owned(),
            near: nearest(&names, filter),
        });
    }
    Ok(kernels)
}

/// At most five distinct names, those that need the fewest changed letters first.
fn nearest(names: &[String], wanted: &str) -> Vec<String> {
    let mut distinct: Vec<&String> = names.iter().collect();
    distinct.sort();
    distinct.dedup();
    let mut ranked: Vec<(usize, &String)> = distinct
        .into_iter()
        .map(|name| (edit_distance(name, wanted), name))
        .collect();
    ranked.sort();
    ranked
        .into_iter()
        .take(5)
        .map(|(_, name)| name.clone())
        .collect()
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

/// `name` or `name-instance`.
pub fn full_name(name: &str, instance: &str) -> String {
    if instance.is_empty() {
        name.to_owned()
    } else {
        format!("{name}-{instance}")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One profile a target, two of CUDA.
    pub fn profiles() -> Vec<Profile> {
        [
            (Target::Msl, "metal"),
            (Target::Cuda, "sm_90a"),
            (Target::Cuda, "sm_80"),
            (Target::Hip, "gfx942"),
            (Target::Spirv, "vulkan"),
        ]
        .map(|(target, name)| Profile {
            target,
            name: name.to_owned(),
            arch: name.to_owned(),
        })
        .to_vec()
    }

    /// A kernel whose text names itself and the profile, and which Metal refuses.
    pub fn sample(name: &str, instance: &str) -> KernelInstance {
        let text = format!("{name}/{instance}");
        KernelInstance {
            name: name.to_owned(),
            instance: instance.to_owned(),
            dtype: instance.to_owned(),
            contract: serde_json::json!({ "workgroup": [256, 1, 1] }),
            ir: text.clone(),
            lower: Box::new(move |profile| match profile.target {
                Target::Msl => {
                    Lowered::Unsupported("it needs 32 buffer slots, this target has 31".into())
                }
                _ => Lowered::Source {
                    extension: "txt",
                    bytes: format!("{text} for {}", profile.name).into_bytes(),
                    places: Places::default(),
                    shared_bytes: 0,
                },
            }),
        }
    }

    #[test]
    fn an_empty_selection_names_near_matches() {
        let kernels = || {
            vec![
                sample("rms_norm", "f16"),
                sample("rms_norm", "f32"),
                sample("axpy", "f32"),
            ]
        };
        let error = select(kernels(), Some("rms_nrom"))
            .err()
            .expect("nothing matches");
        assert_eq!(
            error.to_string(),
            "no kernel matches `rms_nrom`; near are rms_norm, axpy"
        );
        let found = select(kernels(), Some("norm-f1")).expect("one matches");
        assert_eq!(
            found
                .iter()
                .map(KernelInstance::full_name)
                .collect::<Vec<_>>(),
            ["rms_norm-f16"]
        );
    }

    #[test]
    fn every_kernel_is_lowered_for_every_profile_in_order() {
        let (kernels, profiles) = ([sample("axpy", "f32"), sample("scale", "")], profiles());
        let plan = Plan::new(&kernels, &profiles, || {});
        let order: Vec<(usize, &str)> = plan
            .lowerings
            .iter()
            .map(|lowering| (lowering.kernel, &*lowering.profile.name))
            .collect();
        let names = ["metal", "sm_90a", "sm_80", "gfx942", "vulkan"];
        assert_eq!(
            order,
            [0, 1]
                .into_iter()
                .flat_map(|kernel| names.map(|name| (kernel, name)))
                .collect::<Vec<_>>()
        );
    }
}
