//! RoPE recipes of a `config.json`: base, context extension, rotated part of a head.
//!
//! Old files have `rope_theta`, `rope_scaling` and `partial_rotary_factor` at the
//! top; newer ones `rope_parameters`, for all layers or one object a layer type.
//! Both may be there if they agree.

use serde_json::{Map, Value as Json};

use super::ConfigFault;
use super::keys::Keys;
use crate::quote::quoted;
use crate::rope::{Rope, RopeLayout, RopeScaling, longrope_magnitude, yarn_magnitude};

/// What a family's recipe falls back to, and what it may refer to.
#[derive(Clone, Copy)]
pub(crate) struct RopeDefaults {
    /// Elements of a head.
    pub(crate) head_dim: usize,
    /// Base where no key gives one.
    pub(crate) theta: f64,
    /// Rotated part of a head where no key gives one.
    pub(crate) partial: f64,
    /// Longest sequence of the model.
    pub(crate) context_length: usize,
}

/// The recipe of a model whose layers share one.
pub(crate) fn read(keys: &Keys<'_>, defaults: RopeDefaults) -> Result<Rope, ConfigFault> {
    let old = old_recipe(keys, "rope_theta", defaults)?;
    let new = match keys.object("rope_parameters")? {
        Some(object) => recipe(&Keys::json(object, "rope_parameters."), defaults)?,
        None => Recipe::default(),
    };
    old.join(new)?.rope(keys, defaults)
}

/// The recipes of a model with one for each of two layer types: those of full attention and of
/// a window. In old files `local_theta_key` names the base of the second, which is not extended.
pub(crate) fn read_by_layer_type(
    keys: &Keys<'_>,
    local_theta_key: &str,
    full: RopeDefaults,
    sliding: RopeDefaults,
) -> Result<(Rope, Rope), ConfigFault> {
    let old_full = old_recipe(keys, "rope_theta", full)?;
    let old_sliding = Recipe {
        theta: keys
            .positive(local_theta_key)?
            .map(|v| (keys.name(local_theta_key), v)),
        ..Recipe::default()
    };
    let (new_full, new_sliding) = match keys.object("rope_parameters")? {
        Some(object) => {
            let by_type = Keys::json(object, "rope_parameters.");
            let one = |name: &str, defaults| match by_type.object(name)? {
                Some(object) => recipe(
                    &Keys::json(object, &format!("rope_parameters.{name}.")),
                    defaults,
                ),
                None => Err(ConfigFault::Missing {
                    key: by_type.name(name),
                }),
            };
            let both = (
                one("full_attention", full)?,
                one("sliding_attention", sliding)?,
            );
            by_type.finish(&[])?;
            both
        }
        None => Default::default(),
    };
    Ok((
        old_full.join(new_full)?.rope(keys, full)?,
        old_sliding.join(new_sliding)?.rope(keys, sliding)?,
    ))
}

/// What one spelling says; each value with the key that it stood under.
#[derive(Default)]
struct Recipe {
    theta: Option<(String, f64)>,
    partial: Option<(String, f64)>,
    scaling: Option<(String, RopeScaling)>,
    sections: Option<(String, Vec<usize>)>,
}

impl Recipe {
    /// Both together, where they agree. The newer spelling's rotated part wins: transformers
    /// writes a default beside it at the top.
    fn join(self, newer: Recipe) -> Result<Recipe, ConfigFault> {
        fn agree<T: PartialEq + std::fmt::Debug>(
            old: Option<(String, T)>,
            new: Option<(String, T)>,
        ) -> Result<Option<(String, T)>, ConfigFault> {
            match (old, new) {
                (Some((first_key, first)), Some((second_key, second))) if first != second => {
                    Err(ConfigFault::Conflict {
                        first_key,
                        first: format!("{first:?}"),
                        second_key,
                        second: format!("{second:?}"),
                    })
                }
                (old, new) => Ok(new.or(old)),
            }
        }
        Ok(Recipe {
            theta: agree(self.theta, newer.theta)?,
            partial: newer.partial.or(self.partial),
            scaling: agree(self.scaling, newer.scaling)?,
            sections: agree(self.sections, newer.sections)?,
        })
    }

    fn rope(self, keys: &Keys<'_>, defaults: RopeDefaults) -> Result<Rope, ConfigFault> {
        let (key, partial) = match self.partial {
            Some(found) => found,
            None => (keys.name("partial_rotary_factor"), defaults.partial),
        };
        if !(partial > 0.0 && partial <= 1.0) {
            return Err(ConfigFault::Invalid {
                key,
                found: partial.to_string(),
                rule: "it must lie above 0 and at most at 1".to_owned(),
            });
        }
        // Where the recipe stands: `rope_scaling.`, `rope_parameters.`.
        let place = self.scaling.as_ref().map_or("", |(key, _)| key.as_str());
        let prefix = place
            .strip_suffix("rope_type")
            .unwrap_or_default()
            .to_owned();
        let mut rope = Rope {
            theta: self.theta.map_or(defaults.theta, |(_, theta)| theta),
            rotary_dim: (defaults.head_dim as f64 * partial) as usize,
            layout: RopeLayout::HalfSplit,
            scaling: self
                .scaling
                .map_or(RopeScaling::Default, |(_, scaling)| scaling),
        };
        if let RopeScaling::Proportional { pairs, .. } = &mut rope.scaling {
            *pairs = rope.rotary_dim / 2;
            rope.rotary_dim = defaults.head_dim;
        }
        if let Some((key, sections)) = self.sections {
            let pairs = rope.rotary_dim / 2;
            let sum = sections
                .iter()
                .try_fold(0, |sum: usize, n| sum.checked_add(*n));
            if sections.len() != 3 || sum != Some(pairs) {
                return Err(ConfigFault::Invalid {
                    key,
                    found: quoted(&format!("{sections:?}")),
                    rule: format!(
                        "it must have 3 entries that add up to {pairs}, half of what is rotated of head_dim"
                    ),
                });
            }
        }
        if let RopeScaling::Longrope { short, long, .. } = &rope.scaling {
            for (key, factors) in [("short_factor", short), ("long_factor", long)] {
                if factors.len() != rope.rotary_dim / 2 {
                    return Err(ConfigFault::Invalid {
                        key: format!("{prefix}{key}"),
                        found: format!("a list of {}", factors.len()),
                        rule: format!("it must have {}, half the rotary size", rope.rotary_dim / 2),
                    });
                }
            }
        }
        Ok(rope)
    }
}

fn old_recipe(
    keys: &Keys<'_>,
    theta_key: &str,
    defaults: RopeDefaults,
) -> Result<Recipe, ConfigFault> {
    let scaling = match keys.object("rope_scaling")? {
        Some(object) => recipe(&Keys::json(object, "rope_scaling."), defaults)?,
        None => Recipe::default(),
    };
    let top = Recipe {
        theta: keys.positive(theta_key)?.map(|v| (keys.name(theta_key), v)),
        partial: keys
            .float("partial_rotary_factor")?
            .map(|v| (keys.name("partial_rotary_factor"), v)),
        ..Recipe::default()
    };
    top.join(scaling)
}

/// One `rope_scaling` or `rope_parameters` object.
fn recipe(keys: &Keys<'_>, defaults: RopeDefaults) -> Result<Recipe, ConfigFault> {
    let name = match (keys.string("rope_type")?, keys.string("type")?) {
        (Some(new), Some(old)) if new != old => {
            return Err(ConfigFault::Conflict {
                first_key: keys.name("rope_type"),
                first: quoted(&new),
                second_key: keys.name("type"),
                second: quoted(&old),
            });
        }
        (Some(name), _) | (None, Some(name)) => name,
        (None, None) => {
            return Err(ConfigFault::Missing {
                key: keys.name("rope_type"),
            });
        }
    };
    let scaling = match name.as_str() {
        "default" => RopeScaling::Default,
        // Sections of a head for time, height and width turn alike where all three are a token's
        // place in a text.
        "mrope" => RopeScaling::Default,
        "linear" => RopeScaling::Linear {
            factor: positive(keys, "factor")?,
        },
        "dynamic" => {
            keys.size("original_max_position_embeddings")?;
            RopeScaling::Dynamic {
                factor: positive(keys, "factor")?,
            }
        }
        "llama3" => llama3(keys)?,
        "proportional" => RopeScaling::Proportional {
            // Follows from the rotated part, which may stand elsewhere.
            pairs: 0,
            factor: keys.positive("factor")?.unwrap_or(1.0),
        },
        "yarn" => yarn(keys, defaults)?,
        "longrope" | "su" => longrope(keys, defaults)?,
        other => {
            return Err(ConfigFault::Unsupported {
                key: keys.name("rope_type"),
                found: quoted(other),
                supported: "\"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\", \
                            \"longrope\", \"proportional\""
                    .to_owned(),
            });
        }
    };
    let named = |key: &str, value: Option<f64>| value.map(|v| (keys.name(key), v));
    let theta = named("rope_theta", keys.positive("rope_theta")?);
    let partial = named(
        "partial_rotary_factor",
        keys.float("partial_rotary_factor")?,
    );
    // As for `mrope` above; sections that are no division of a head belong to another model.
    let sections = keys.sizes("mrope_section")?;
    keys.bool("mrope_interleaved")?;
    // A factor may stand beside "default", where nothing reads it.
    let irrelevant: &[&str] = match scaling {
        RopeScaling::Default => &["factor"],
        _ => &[],
    };
    keys.finish(irrelevant)?;
    Ok(Recipe {
        theta,
        partial,
        scaling: Some((keys.name("rope_type"), scaling)),
        sections: sections.map(|sections| (keys.name("mrope_section"), sections)),
    })
}

fn positive(keys: &Keys<'_>, key: &str) -> Result<f64, ConfigFault> {
    let value = keys.positive(key)?;
    keys.required(key, value)
}

fn llama3(keys: &Keys<'_>) -> Result<RopeScaling, ConfigFault> {
    let low_freq_factor = positive(keys, "low_freq_factor")?;
    let high_freq_factor = positive(keys, "high_freq_factor")?;
    if low_freq_factor >= high_freq_factor {
        return Err(ConfigFault::Invalid {
            key: keys.name("low_freq_factor"),
            found: low_freq_factor.to_string(),
            rule: format!("it must be below high_freq_factor = {high_freq_factor}"),
        });
    }
    Ok(RopeScaling::Llama3 {
        factor: positive(keys, "factor")?,
        low_freq_factor,
        high_freq_factor,
        original_context: original_context(keys)?,
    })
}

/// The context before its extension, where it is there to be read.
fn original_context(keys: &Keys<'_>) -> Result<usize, ConfigFault> {
    const KEY: &str = "original_max_position_embeddings";
    let size = keys.required_size(KEY)?;
    if (2..1 << 31).contains(&size) {
        return Ok(size);
    }
    Err(ConfigFault::Invalid {
        key: keys.name(KEY),
        found: size.to_string(),
        rule: "it must lie in 2..2^31".to_owned(),
    })
}

/// The context before its extension, and the factor, which follows from it where it is absent.
fn extension(keys: &Keys<'_>, defaults: RopeDefaults) -> Result<(usize, f64), ConfigFault> {
    let original = keys.size("original_max_position_embeddings")?;
    let original_context = original.unwrap_or(defaults.context_length);
    if !(2..1 << 31).contains(&original_context) {
        return Err(ConfigFault::Invalid {
            key: keys.name("original_max_position_embeddings"),
            found: original_context.to_string(),
            rule: "it must be at least 2".to_owned(),
        });
    }
    let factor = match keys.positive("factor")? {
        Some(factor) => factor,
        None if original.is_some() => defaults.context_length as f64 / original_context as f64,
        None => keys.required("factor", None)?,
    };
    Ok((original_context, factor))
}

fn yarn(keys: &Keys<'_>, defaults: RopeDefaults) -> Result<RopeScaling, ConfigFault> {
    let (original_context, factor) = extension(keys, defaults)?;
    let (mscale, mscale_all) = (keys.positive("mscale")?, keys.positive("mscale_all_dim")?);
    let magnitude = match (keys.positive("attention_factor")?, mscale, mscale_all) {
        (Some(given), _, _) => given,
        (None, Some(one), Some(all)) => yarn_magnitude(factor, one) / yarn_magnitude(factor, all),
        (None, _, _) => yarn_magnitude(factor, 1.0),
    };
    let beta_fast = keys.positive("beta_fast")?.unwrap_or(32.0);
    let beta_slow = keys.positive("beta_slow")?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(ConfigFault::Conflict {
            first_key: keys.name("beta_fast"),
            first: beta_fast.to_string(),
            second_key: keys.name("beta_slow"),
            second: format!("{beta_slow}, which must not be more"),
        });
    }
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original_context,
        truncate: keys.bool("truncate")?.unwrap_or(true),
        magnitude,
        score_factor: mscale_all.map_or(1.0, |all| yarn_magnitude(factor, all).powi(2)),
    })
}

fn longrope(keys: &Keys<'_>, defaults: RopeDefaults) -> Result<RopeScaling, ConfigFault> {
    let (original_context, factor) = extension(keys, defaults)?;
    let factors = |key: &str| {
        let list = keys.floats(key)?;
        let list = keys.required(key, list)?;
        match list.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
            Some(wrong) => Err(ConfigFault::Invalid {
                key: keys.name(key),
                found: wrong.to_string(),
                rule: "each factor must be positive".to_owned(),
            }),
            None => Ok(list),
        }
    };
    let given = keys.positive("attention_factor")?;
    Ok(RopeScaling::Longrope {
        short: factors("short_factor")?,
        long: factors("long_factor")?,
        original_context,
        magnitude: given.unwrap_or_else(|| longrope_magnitude(factor, original_context)),
    })
}

/// An `original_max_position_embeddings` that stands at the top moves into the recipe, where
/// files since 2025 have it; without a recipe it stays, to be refused.
pub(crate) fn with_original_context(mut object: Map<String, Json>) -> Map<String, Json> {
    const KEY: &str = "original_max_position_embeddings";
    let Some(original) = object.get(KEY).cloned() else {
        return object;
    };
    let mut moved = false;
    for recipe in ["rope_scaling", "rope_parameters"] {
        if let Some(Json::Object(inner)) = object.get_mut(recipe) {
            inner.entry(KEY).or_insert_with(|| original.clone());
            moved = true;
        }
    }
    if moved {
        object.remove(KEY);
    }
    object
}
