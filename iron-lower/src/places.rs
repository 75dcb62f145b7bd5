//! The author's place of each line of a text, and of each instruction of a module.
//!
//! A vendor's compiler names a line of the text that it refuses. The text has no directives that
//! would make it name the author's, because equal kernels must give equal texts wherever they
//! stand; this table says which Rust line a line of the text was made from.

use iron_ir::kernel::{Kernel, Span};
use iron_ir::verify::Location;

/// From which line or instruction on which place of the author holds, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    from: Vec<(u32, Location)>,
}

impl Places {
    /// The places of a text: `marks` are byte offsets in `body`, before which `lines_before`
    /// lines stand.
    pub(crate) fn of_text(
        kernel: &Kernel,
        body: &str,
        lines_before: usize,
        marks: &[(usize, Span)],
    ) -> Places {
        let mut from: Vec<(u32, Location)> = Vec::new();
        let (mut line, mut at) = (lines_before + 1, 0);
        for &(offset, span) in marks {
            let between = body.get(at..offset).unwrap_or_default();
            line += between.matches('\n').count();
            at = offset.max(at);
            if span.line != 0 {
                let line = u32::try_from(line).unwrap_or(u32::MAX);
                from.push((line, Location::of(kernel, span)));
            }
        }
        Places { from }
    }

    /// The places of a SPIR-V module, which has them as `OpLine`. Instructions count from 1.
    pub fn of_module(words: &[u32]) -> Places {
        const HEADER: usize = 5;
        const OP_STRING: u32 = 7;
        const OP_LINE: u32 = 8;
        let mut files: Vec<(u32, String)> = Vec::new();
        let mut from = Vec::new();
        let mut rest = words.get(HEADER..).unwrap_or_default();
        let mut instruction = 0;
        while let Some(&first) = rest.first() {
            instruction += 1;
            let count = ((first >> 16) as usize).clamp(1, rest.len());
            let (operands, after) = (&rest[1..count], &rest[count..]);
            match (first & 0xffff, operands) {
                (OP_STRING, [id, text @ ..]) => {
                    let bytes: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).collect();
                    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
                    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
                    files.push((*id, text));
                }
                (OP_LINE, &[file, line, column]) => {
                    let name = files.iter().find(|(id, _)| *id == file);
                    from.push((
                        instruction,
                        Location {
                            file: name.map_or("", |(_, name)| name).into(),
                            line,
                            column: u16::try_from(column).unwrap_or(u16::MAX),
                        },
                    ));
                }
                _ => {}
            }
            rest = after;
        }
        Places { from }
    }

    /// The author's place of a line of the text, or of an instruction of the module.
    pub fn at(&self, line: u32) -> Option<&Location> {
        let after = self.from.partition_point(|(first, _)| *first <= line);
        Some(&self.from.get(after.checked_sub(1)?)?.1)
    }

    /// The author's place of the first line of the text that an error in `log` names. Known are
    /// `k.cu(37): error` (NVRTC), `k:37:5: error` (clang, hipRTC, Metal) and `error: line 37`
    /// (spirv-val).
    pub fn of_error(&self, log: &str) -> Option<&Location> {
        log.lines().find_map(|line| self.at(named_line(line)?))
    }

    /// A compiler's message with the author's place behind it, where the message names a line of
    /// the text.
    pub fn explain(&self, log: &str) -> String {
        let log = log.trim_end();
        match self.of_error(log) {
            Some(place) => format!("{log} (made from {place})"),
            None => log.to_owned(),
        }
    }
}

/// The line of the text that an error names; errors in headers name none.
fn named_line(message: &str) -> Option<u32> {
    if let Some((_, after)) = message.split_once("line ")
        && let digits = after
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(after.len())
        && let Ok(line) = after[..digits].parse()
    {
        return Some(line);
    }
    let (before, _) = message.split_once("error")?;
    let before = before.trim_end().trim_end_matches("fatal").trim_end();
    let place = before.strip_suffix(':')?;
    let (file, line) = match place.strip_suffix(')') {
        Some(place) => place.rsplit_once('(')?,
        None => {
            let (file, last) = place.rsplit_once(':')?;
            match file.rsplit_once(':') {
                Some((file, line)) if line.parse::<u32>().is_ok() => (file, line),
                _ => (file, last),
            }
        }
    };
    let is_header = file.ends_with(".h") || file.ends_with("metal_stdlib");
    if is_header { None } else { line.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, lower, profile};

    /// A loop that is printed as `while (…)`, whose lines move when its test does.
    const LOOP: &str = "kernel @k grid(1, 1, 1) workgroup(64, 1, 1) {
  file \"src/k.rs\"
  dim #n
  param @x: tensor<f32, [#n], read, align 1> !1:1
  param @y: tensor<f32, [#n], read_write, align 1> !2:1
  local $i: u32

  %v: f32 = load @x[0u32] !10:3
  store @y[0u32] = %v !11:3
  $i = 1u32 !12:3
  loop !13:3 {
    %1: f32 = load @y[3u32] !13:5
    %2: bool = ge %1, 9.0f32 !13:5
    if %2 !13:5 {
      break !13:5
    }
    %3: u32 = $i !14:7
    store @y[%3] = 5.0f32 !14:5
    %4: u32 = $i !15:8
    %5: bool = eq %4, 3u32 !15:8
    if %5 !15:5 {
      store @y[1u32] = 6.0f32 !15:7
    }
    %6: u32 = $i !16:5
    %7: u32 = add %6, 1u32 !16:5
    $i = %7 !16:5
  }
  store @y[2u32] = 7.0f32 !20:3
}
";

    #[test]
    fn each_line_of_a_text_knows_the_authors() {
        let kernel = iron_ir::parse::parse(LOOP).expect("parses");
        for profile in ["sm_90a", "gfx942", "metal3.1"] {
            let profile = profile::by_name(profile).expect("a profile");
            let lowered = lower(&kernel, &profile).expect("lowers");
            let Code::Text(text) = &lowered.code else {
                panic!("a text");
            };
            for (what, place) in [
                ("= 5.0f", "src/k.rs:14:5"),
                ("= 6.0f", "src/k.rs:15:7"),
                ("= 7.0f", "src/k.rs:20:3"),
                ("while (", "src/k.rs:13:5"),
            ] {
                let line = text.lines().position(|l| l.contains(what));
                let line = line.unwrap_or_else(|| panic!("`{what}` is not in\n{text}")) + 1;
                let error = format!("k.cu({line}): error: refused");
                assert_eq!(
                    lowered.places.explain(&error),
                    format!("{error} (made from {place})"),
                    "{text}"
                );
            }
            assert_eq!(lowered.places.at(1), None, "the first line is nobody's");
        }
    }

    fn place(line: u32) -> Location {
        Location {
            file: "src/k.rs".into(),
            line,
            column: 5,
        }
    }

    #[test]
    fn each_compilers_way_of_naming_a_line_is_read() {
        for (message, line) in [
            ("k.cu(37): error: identifier \"x\" is undefined", Some(37)),
            (
                "pass_on.0.cu:37:5: error: use of undeclared identifier",
                Some(37),
            ),
            ("<stdin>:37:5: fatal error: too many errors", Some(37)),
            ("program_source:37: error: expected ';'", Some(37)),
            ("build/input/k:37:9: error: no", Some(37)),
            ("error: line 37: Expected 3 operands", Some(37)),
            ("./core.h:37:5: error: no matching function", None),
            ("k.cu(37): warning #177-D: never referenced", None),
            ("1 error detected in the compilation of \"k.cu\".", None),
            ("error: nothing is known", None),
        ] {
            assert_eq!(named_line(message), line, "{message}");
        }
    }

    #[test]
    fn a_line_has_the_place_of_the_last_mark_before_it() {
        let places = Places {
            from: vec![(3, place(10)), (4, place(11)), (8, place(12))],
        };
        let lines = [2, 3, 4, 7, 8, 900].map(|line| places.at(line).map(|at| at.line));
        assert_eq!(
            lines,
            [None, Some(10), Some(11), Some(11), Some(12), Some(12)]
        );
        assert_eq!(
            places.explain("k.cu(2): warning: no\nk.cu(5): error: yes\n"),
            "k.cu(2): warning: no\nk.cu(5): error: yes (made from src/k.rs:11:5)"
        );
        assert_eq!(places.explain("k.cu(1): error: yes"), "k.cu(1): error: yes");
    }

    #[test]
    fn a_module_says_its_places_itself() {
        let string = |text: &[u8; 8]| {
            let word = |i| u32::from_le_bytes([text[i], text[i + 1], text[i + 2], text[i + 3]]);
            [word(0), word(4)]
        };
        let mut words = vec![0x0723_0203, 0x0001_0500, 0, 9, 0];
        words.extend([4 << 16 | 7, 1]);
        words.extend(string(b"src/k.r\0"));
        words.extend([4 << 16 | 8, 1, 12, 5]);
        words.extend([1 << 16 | 253, 4 << 16 | 8, 1, 13, 9, 1 << 16 | 253]);
        let places = Places::of_module(&words);
        let lines = [1, 2, 3, 4, 5].map(|i| places.at(i).map(ToString::to_string));
        let at = |text: &str| Some(text.to_owned());
        assert_eq!(
            lines,
            [
                None,
                at("src/k.r:12:5"),
                at("src/k.r:12:5"),
                at("src/k.r:13:9"),
                at("src/k.r:13:9")
            ]
        );
        // Bytes that are no module give no place and no panic.
        assert_eq!(
            Places::of_module(&[1, 2, 3, 4, 5, 0xffff_0008, 1]).at(9),
            None
        );
        assert_eq!(Places::of_module(&[0; 7]).at(9), None);
    }
}
