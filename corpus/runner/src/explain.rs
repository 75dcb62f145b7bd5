//! `explain`: a kernel's IR as built, after passes, or its code for a target.

use clap::{Args, ValueEnum};
use iron_ir::kernel::Kernel;
use iron_ir::registry::{InstanceEntry, KernelEntry, kernels};
use iron_lower::profile::{self, Profile};
use iron_lower::{Code, Target};
use iron_passes::Legal;
use serde::Serialize;

use crate::command::Ending;
use crate::command::parse_dtype;
use crate::report::print_json;
use crate::select::{full_name, nearest};
use crate::test::Subjects;

/// What to print.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// The textual IR.
    Ir,
    /// Metal Shading Language.
    Msl,
    /// CUDA C++.
    Cuda,
    /// HIP C++.
    Hip,
    /// Disassembled SPIR-V.
    Spirv,
    /// This processor's machine code, after Cranelift's IR.
    Cpu,
}

impl Form {
    fn target(self) -> Option<Target> {
        match self {
            Form::Ir => None,
            Form::Msl => Some(Target::Msl),
            Form::Cuda => Some(Target::Cuda),
            Form::Hip => Some(Target::Hip),
            Form::Spirv => Some(Target::SpirV),
            Form::Cpu => Some(Target::Cpu),
        }
    }
}

/// Options of `explain`.
#[derive(Args)]
pub(crate) struct ExplainOptions {
    /// The kernel's name.
    kernel: String,
    /// The instance; the first where absent.
    #[arg(long)]
    instance: Option<String>,
    /// The first instance with this element type.
    #[arg(long, value_parser = parse_dtype)]
    dtype: Option<String>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Form::Ir)]
    target: Form,
    /// A profile of the target; its first where absent.
    #[arg(long)]
    profile: Option<String>,
    /// Prints the IR after this pass, or after `all` of them, instead.
    #[arg(long)]
    after: Option<String>,
    /// Prints one JSON document instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Explanation {
    kernel: String,
    profile: Option<&'static str>,
    sections: Vec<Section>,
}

#[derive(Serialize)]
struct Section {
    title: String,
    text: String,
}

/// `explain`.
pub(crate) fn explain(options: &ExplainOptions) -> Ending {
    let (entry, instance) = match find(options) {
        Ok(found) => found,
        Err(message) => {
            eprintln!("{message}");
            return Ending::NothingSelected;
        }
    };
    let subject = match Subjects::default().get(entry, instance) {
        Ok(subject) => subject,
        Err(message) => {
            eprintln!("{message}");
            return Ending::Failed;
        }
    };
    let profile = match profile_of(options) {
        Ok(profile) => profile,
        Err(message) => {
            eprintln!("{message}");
            return Ending::Usage;
        }
    };
    let legal = profile
        .as_ref()
        .map_or(Legal::PORTABLE, |p| p.legal.clone());
    let passes: Vec<&str> = iron_passes::pipeline(&legal).iter().map(|p| p.0).collect();
    if let Some(pass) = options.after.as_deref()
        && pass != "all"
        && !passes.contains(&pass)
    {
        eprintln!(
            "no pass `{pass}`; in order: {}; or `all`",
            passes.join(", ")
        );
        return Ending::Usage;
    }
    let sections = match &options.after {
        Some(pass) => after(&subject.kernel, &legal, pass),
        // A profile says which passes there are; the text in IR is the kernel as built.
        None if matches!(options.target, Form::Ir) => code(&subject.kernel, None),
        None => code(&subject.kernel, profile.as_ref()),
    };
    let (sections, failed) = match sections {
        Ok(sections) => (sections, None),
        Err((sections, error)) => (sections, Some(error)),
    };
    let explanation = Explanation {
        kernel: full_name(entry.name, instance.name),
        profile: profile.map(|p| p.name),
        sections,
    };
    if options.json {
        print_json(&explanation);
    } else {
        print!("{}", readable(&explanation.sections));
    }
    match failed {
        Some(error) => {
            eprintln!("{error}");
            Ending::Failed
        }
        None => Ending::Passed,
    }
}

/// The sections as one text, each under its title where there are several. What a pass left alone
/// is said, not printed again.
fn readable(sections: &[Section]) -> String {
    let mut text = String::new();
    let mut before = None;
    for section in sections {
        let unchanged = before.replace(&section.text) == Some(&section.text);
        if unchanged {
            text += &format!("// {}: unchanged\n", section.title);
            continue;
        }
        if sections.len() > 1 {
            text += &format!("// {}\n", section.title);
        }
        text += section.text.trim_end();
        text.push('\n');
    }
    text
}

fn find(
    options: &ExplainOptions,
) -> Result<(&'static KernelEntry, &'static InstanceEntry), String> {
    let all = kernels();
    let named: Vec<_> = all
        .iter()
        .filter(|k| {
            k.name == options.kernel || format!("{}::{}", k.module, k.name) == options.kernel
        })
        .collect();
    let entry = match named[..] {
        [entry] => entry,
        [] => {
            let near = nearest(&options.kernel, all.iter().map(|k| k.name));
            return Err(format!(
                "no kernel `{}`; nearest: {}",
                options.kernel,
                near.join(", ")
            ));
        }
        _ => {
            let full: Vec<_> = named
                .iter()
                .map(|k| format!("{}::{}", k.module, k.name))
                .collect();
            return Err(format!(
                "several kernels have that name: {}",
                full.join(", ")
            ));
        }
    };
    let fits = |i: &&InstanceEntry| {
        options
            .instance
            .as_deref()
            .is_none_or(|name| i.name == name)
            && options
                .dtype
                .as_deref()
                .is_none_or(|d| i.types.iter().any(|t| t.1.name() == d))
    };
    match entry.instances.iter().find(fits) {
        Some(instance) => Ok((entry, instance)),
        None => {
            let names: Vec<_> = entry.instances.iter().map(|i| i.name).collect();
            let wanted = [options.instance.as_deref(), options.dtype.as_deref()];
            Err(format!(
                "kernel `{}` has no instance {}; it has {}",
                entry.name,
                wanted
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" with dtype "),
                names.join(", ")
            ))
        }
    }
}

fn profile_of(options: &ExplainOptions) -> Result<Option<Profile>, String> {
    let profiles = match options.target.target() {
        Some(target) => profile::of(target),
        None => profile::all(),
    };
    let Some(name) = &options.profile else {
        return Ok(options
            .target
            .target()
            .and_then(|_| profiles.into_iter().next()));
    };
    let names: Vec<_> = profiles.iter().map(|p| p.name).collect();
    match profiles.into_iter().find(|p| p.name == *name) {
        Some(profile) => Ok(Some(profile)),
        None => Err(format!(
            "no profile `{name}`; there are {}",
            names.join(", ")
        )),
    }
}

/// The sections made before an error, and the error.
type Partly = (Vec<Section>, String);

fn after(kernel: &Kernel, legal: &Legal, wanted: &str) -> Result<Vec<Section>, Partly> {
    let mut sections = Vec::new();
    if wanted == "all" {
        sections.push(Section {
            title: "as built".into(),
            text: iron_ir::print::print(kernel),
        });
    }
    let result = iron_passes::run_with(kernel.clone(), legal, &mut |pass, kernel| {
        if wanted == "all" || wanted == pass {
            sections.push(Section {
                title: format!("after {pass}"),
                text: iron_ir::print::print(kernel),
            });
        }
    });
    match result {
        Ok(_) => Ok(sections),
        Err(error) => Err((sections, error.to_string())),
    }
}

fn code(kernel: &Kernel, profile: Option<&Profile>) -> Result<Vec<Section>, Partly> {
    let Some(profile) = profile else {
        return Ok(vec![Section {
            title: "as built".into(),
            text: iron_ir::print::print(kernel),
        }]);
    };
    let artifact = iron_lower::lower(kernel, profile).map_err(|e| (Vec::new(), e.to_string()))?;
    let text = match artifact.code {
        Code::Text(text) => text,
        Code::SpirV(words) => iron_lower::spirv::disassemble(&words),
        Code::Machine(_) => {
            iron_lower::cpu::listing(&artifact.kernel).map_err(|e| (Vec::new(), e.to_string()))?
        }
    };
    Ok(vec![Section {
        title: profile.name.to_owned(),
        text,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_changes_nothing_takes_one_line() {
        let section = |title: &str, text: &str| Section {
            title: title.into(),
            text: text.into(),
        };
        let sections = [
            section("as built", "a\n"),
            section("after one", "a\n"),
            section("after two", "b\n"),
            section("after three", "a\n"),
        ];
        assert_eq!(
            readable(&sections),
            "// as built\na\n// after one: unchanged\n// after two\nb\n// after three\na\n"
        );
        assert_eq!(readable(&sections[..1]), "a\n");
    }
}
