//! The translation unit around generated texts.
//!
//! Each text is a file of its own that the unit includes, byte for byte as the lowering wrote it,
//! in a namespace of its own. Around it stand the definitions of words that differ from text to
//! text, and the function that calls its entry point with the fields of a parameter block.

use std::fmt::Write as _;

use iron_ir::kernel::{Kernel, Space};
use iron_lower::{Code, LowerError, Places, Profile, Target};

/// A generated text, and what its unit must know of it.
pub(super) struct Text {
    pub kernel: Kernel,
    pub source: String,
    /// The author's place of each line.
    pub places: Places,
    target: Target,
    entry: String,
    /// Bytes of CUDA's dynamic shared memory.
    dynamic_shared: u32,
}

impl Text {
    /// Lowers a kernel as its author's build made it.
    pub fn of(kernel: &Kernel, profile: &Profile) -> Result<Text, LowerError> {
        let lowered = iron_lower::lower(kernel, profile)?;
        let source = match lowered.code {
            Code::Text(text) => text,
            Code::SpirV(_) | Code::Machine(_) => String::new(),
        };
        let (kernel, places) = (lowered.kernel, lowered.places);
        let (entry, dynamic_shared) = match profile.target {
            Target::Hip => (iron_lower::hip::entry_point(&kernel), 0),
            Target::Msl => (iron_lower::msl::entry_point(&kernel), 0),
            _ => (
                iron_lower::cuda::entry_point(&kernel),
                iron_lower::cuda::dynamic_shared_bytes(&kernel),
            ),
        };
        Ok(Text {
            kernel,
            source,
            places,
            target: profile.target,
            entry,
            dynamic_shared,
        })
    }

    /// The same kernel with another text, for tests of what a wrong text does.
    #[cfg(test)]
    pub fn with_source(self, source: String) -> Text {
        Text { source, ..self }
    }

    /// Whether the text has shared memory.
    pub fn has_shared(&self) -> bool {
        let mut arrays = self.kernel.arrays.values();
        arrays.any(|a| a.space == Space::Shared)
    }

    /// Bytes of private arrays of a thread.
    pub fn private_bytes(&self) -> usize {
        let private = |a: &&iron_ir::kernel::ArrayData| a.space == Space::Private;
        let arrays = self.kernel.arrays.values().filter(private);
        arrays
            .map(|a| a.len as usize * a.scalar.bytes() as usize)
            .sum()
    }

    /// What beside the source decides the compiled text.
    pub fn identity(&self) -> String {
        format!("{} {} {}", self.target, self.entry, self.dynamic_shared)
    }

    /// The text's file name as its `index` in a unit has it.
    pub fn file(&self, index: usize) -> String {
        format!("{}.{index}.{}", self.entry, self.target.extension())
    }

    /// The first instruction of the target alone that the emulation lacks. Assembly that a guard
    /// leaves to this header (`#ifndef IRON_…_BY_HOST`) does not count.
    pub fn foreign_instruction(&self) -> Option<String> {
        let mut guarded = false;
        for line in self.source.lines() {
            let line = line.split("//").next().unwrap_or_default().trim_start();
            if line.starts_with("#ifndef IRON_") && line.trim_end().ends_with("_BY_HOST") {
                guarded = true;
            } else if line.starts_with("#endif") {
                guarded = false;
            }
            let Some((_, rest)) = line.split_once("asm") else {
                continue;
            };
            let is_assembly = rest.trim_start().starts_with(['(', 'v']);
            if guarded || !is_assembly {
                continue;
            }
            let instruction = rest.split('"').nth(1).unwrap_or(rest).trim();
            // It orders launches, which run one after the other here.
            if !instruction.starts_with("griddepcontrol.") {
                return Some(instruction.to_owned());
            }
        }
        None
    }

    /// The text's part of a unit.
    fn part(&self, index: usize, out: &mut String) -> Result<(), String> {
        let file = self.file(index);
        if self.target == Target::Msl {
            self.metal_part(index, &file, out)?;
        } else {
            self.c_part(index, &file, out);
        }
        if self.has_shared() {
            let _ = writeln!(out, "IRON_SHARED_RANGE({index})");
        }
        Ok(())
    }

    fn c_part(&self, index: usize, file: &str, out: &mut String) {
        // `extern "C"` names are one name in every namespace.
        let (entry, dynamic) = (&self.entry, self.dynamic_shared);
        let (qualifier, array) = match dynamic {
            0 => (format!("static IRON_SHARED({index})"), String::new()),
            bytes => (
                // The text declares it as `extern` in its entry point, whose language linkage it
                // takes; such a name, too, is one in every namespace.
                String::new(),
                format!(
                    "extern \"C\" {{\n\
                     IRON_SHARED({index}) __align__(16) unsigned char shared_memory[{bytes}];\n\
                     }}\n"
                ),
            ),
        };
        let _ = write!(
            out,
            "#undef __shared__\n\
             #define __shared__ {qualifier}\n\
             #define {entry} {entry}__{index}\n\
             #define shared_memory shared_memory__{index}\n\
             namespace text_{index} {{\n\
             {array}\
             #include \"{file}\"\n\
             }}\n\
             #undef {entry}\n\
             #undef shared_memory\n\
             IRON_ENTRY({index}, iron_emulated::call(text_{index}::{entry}__{index}, block))\n"
        );
    }

    fn metal_part(&self, index: usize, file: &str, out: &mut String) -> Result<(), String> {
        let _ = write!(
            out,
            "#undef threadgroup\n#define threadgroup IRON_SPACE({index}, __LINE__)\n"
        );
        for (line, text) in self.source.lines().enumerate() {
            if text.contains("threadgroup ") {
                // A declaration of shared memory, and not the space of a pointer.
                let meaning = match is_shared_declaration(text) {
                    true => format!("static IRON_SHARED({index})"),
                    false => String::new(),
                };
                let _ = writeln!(out, "#define IRON_SPACE_{index}_{} {meaning}", line + 1);
            }
        }
        let arguments = self.metal_arguments()?.join(", ");
        let entry = &self.entry;
        let _ = write!(
            out,
            "namespace text_{index} {{\n\
             #include \"{file}\"\n\
             }}\n\
             IRON_ENTRY({index}, text_{index}::{entry}({arguments}))\n"
        );
        Ok(())
    }

    /// The arguments of Metal's entry point, by the attributes of its parameters.
    fn metal_arguments(&self) -> Result<Vec<String>, String> {
        let wrong = |what: &str| format!("the MSL text {what}");
        let head = format!("kernel void {}(", self.entry);
        let (_, rest) = self
            .source
            .split_once(&head)
            .ok_or_else(|| wrong("has no entry point of the kernel's name"))?;
        let (list, _) = rest
            .split_once(") {")
            .ok_or_else(|| wrong("has an entry point whose parameters do not end"))?;
        let parameters = list.split(",\n").map(str::trim).filter(|p| !p.is_empty());
        parameters
            .map(|parameter| {
                let attribute = parameter
                    .split_once("[[")
                    .and_then(|(_, rest)| rest.split_once("]]"))
                    .map(|(attribute, _)| attribute)
                    .ok_or_else(|| wrong(&format!("has `{parameter}` without an attribute")))?;
                Ok(match attribute.strip_prefix("buffer(") {
                    Some(_) if parameter.contains('&') => "iron_emulated::Block{block}".into(),
                    Some(slot) => {
                        let slot = self.field_of(slot.trim_end_matches(')'), parameter)?;
                        format!("iron_emulated::pointer_at(block, {slot})")
                    }
                    None => format!("iron_emulated::attribute_{attribute}()"),
                })
            })
            .collect()
    }

    /// The address field of the block that a buffer slot binds: tensors come first in both, and
    /// the error word follows them, in its own slot behind the block's.
    fn field_of(&self, slot: &str, parameter: &str) -> Result<usize, String> {
        let slot: usize = slot
            .parse()
            .map_err(|_| format!("the MSL text has `{parameter}` in no slot"))?;
        Ok(slot.min(self.kernel.tensor_slots().count()))
    }
}

fn is_shared_declaration(line: &str) -> bool {
    let line = line.trim_start();
    let line = match line.strip_prefix("alignas(") {
        Some(rest) => rest.split_once(") ").map_or("", |(_, rest)| rest),
        None => line,
    };
    line.starts_with("threadgroup ") && line.trim_end().ends_with("];")
}

/// The unit of some texts of one target.
pub(super) fn unit(texts: &[&Text]) -> Result<String, String> {
    let header = match texts.first().map(|t| t.target) {
        Some(Target::Msl) => "metal_stdlib",
        Some(Target::Hip) => "hip/hip_runtime.h",
        _ => "cuda.h",
    };
    let mut out = format!("#include <{header}>\nIRON_UNIT\n");
    for (index, text) in texts.iter().enumerate() {
        text.part(index, &mut out)?;
    }
    Ok(out)
}
