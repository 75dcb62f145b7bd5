//! What clang ignores in MSL: attribute names and their places, and pointers without an address
//! space (which C++ for OpenCL takes as generic, and Metal refuses).

use std::collections::BTreeSet;

/// Part of the cache key: counts changes of these rules.
pub const VERSION: u32 = 1;

/// Metal's slots for buffers of one kernel.
const BUFFER_SLOTS: u32 = 31;

/// Attributes of compute kernels and their parameters, from the Metal Shading Language
/// specification 3.1, tables 5.8 to 5.10.
const ATTRIBUTES: &[&str] = &[
    "buffer",
    "dispatch_quadgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "function_constant",
    "grid_origin",
    "grid_size",
    "host_name",
    "id",
    "max_total_threads_per_threadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "thread_index_in_simdgroup",
    "thread_index_in_threadgroup",
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "threads_per_grid",
    "threads_per_simdgroup",
    "threads_per_threadgroup",
];

const ADDRESS_SPACES: [&str; 5] = ["device", "threadgroup", "constant", "thread", "ray_data"];

/// The faults found, each with its line; empty when there are none.
pub fn check(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut faults = Vec::new();
    check_attributes(&tokens, &mut faults);
    check_declarations(&tokens, &mut faults);
    faults
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Every `[[name(…)]]` is known, and no buffer slot is taken twice in one kernel or past the last.
fn check_attributes(tokens: &[Token<'_>], faults: &mut Vec<String>) {
    let mut slots = BTreeSet::new();
    for (index, window) in tokens.windows(3).enumerate() {
        if window[0].text == "kernel" {
            slots.clear();
        }
        if window[0].text != "[" || window[1].text != "[" {
            continue;
        }
        let name = window[2];
        if !name.text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            continue;
        }
        if !ATTRIBUTES.contains(&name.text) {
            faults.push(format!(
                "line {}: Metal has no attribute [[{}]]",
                name.line, name.text
            ));
        }
        if name.text == "buffer" {
            let slot = tokens
                .get(index + 4)
                .and_then(|token| token.text.parse::<u32>().ok());
            match slot {
                None => faults.push(format!("line {}: [[buffer]] needs a slot", name.line)),
                Some(slot) if slot >= BUFFER_SLOTS => {
                    faults.push(format!(
                        "line {}: buffer slot {slot} is past Metal's last, {}",
                        name.line,
                        BUFFER_SLOTS - 1
                    ));
                }
                Some(slot) if !slots.insert(slot) => {
                    faults.push(format!(
                        "line {}: buffer slot {slot} is taken twice",
                        name.line
                    ));
                }
                Some(_) => {}
            }
        }
    }
}

/// Every pointer or reference among parameters and struct members names its address space.
fn check_declarations(tokens: &[Token<'_>], faults: &mut Vec<String>) {
    let mut braces = 0usize;
    let mut structs: Vec<usize> = Vec::new();
    let mut opens_struct = false;
    let mut index = 0;
    while index < tokens.len() {
        match tokens[index].text {
            "struct" => opens_struct = true,
            "{" => {
                braces += 1;
                if std::mem::take(&mut opens_struct) {
                    structs.push(braces);
                    index = check_list(tokens, index + 1, ";", "}", faults);
                    continue;
                }
            }
            "}" => {
                if structs.last() == Some(&braces) {
                    structs.pop();
                }
                braces = braces.saturating_sub(1);
            }
            "(" if braces == 0 => {
                index = check_list(tokens, index + 1, ",", ")", faults);
                continue;
            }
            _ => {}
        }
        index += 1;
    }
}

/// Checks declarations parted by `separator` up to the matching `end`; returns where that stands.
fn check_list(
    tokens: &[Token<'_>],
    start: usize,
    separator: &str,
    end: &str,
    faults: &mut Vec<String>,
) -> usize {
    let mut depth = 0i32;
    let mut index = start;
    let mut declaration: Vec<Token<'_>> = Vec::new();
    while let Some(&token) = tokens.get(index) {
        let closes = depth == 0 && token.text == end;
        if closes || (depth == 0 && token.text == separator) {
            check_declaration(&declaration, faults);
            declaration.clear();
            if closes {
                return index;
            }
        } else {
            match token.text {
                "(" | "[" | "{" | "<" => depth += 1,
                ")" | "]" | "}" | ">" => depth -= 1,
                _ => {}
            }
            declaration.push(token);
        }
        index += 1;
    }
    index
}

fn check_declaration(declaration: &[Token<'_>], faults: &mut Vec<String>) {
    let Some(marker) = declaration
        .iter()
        .find(|token| token.text == "*" || token.text == "&")
    else {
        return;
    };
    // A member function's body or a default value may multiply; a declaration of data has neither.
    if declaration
        .iter()
        .any(|token| token.text == "{" || token.text == "=")
    {
        return;
    }
    if !declaration
        .iter()
        .any(|token| ADDRESS_SPACES.contains(&token.text))
    {
        let text = declaration
            .iter()
            .map(|token| token.text)
            .collect::<Vec<_>>()
            .join(" ");
        faults.push(format!(
            "line {}: `{text}` names no address space",
            marker.line
        ));
    }
}

/// Words and single characters, without comments, strings and preprocessor lines.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut in_block_comment = false;
    for (line_index, line) in text.lines().enumerate() {
        if !in_block_comment && line.trim_start().starts_with('#') {
            continue;
        }
        let mut rest = line;
        while !rest.is_empty() {
            if in_block_comment {
                let Some(end) = rest.find("*/") else { break };
                in_block_comment = false;
                rest = &rest[end + 2..];
                continue;
            }
            if rest.starts_with("//") {
                break;
            }
            if rest.starts_with("/*") {
                in_block_comment = true;
                rest = &rest[2..];
                continue;
            }
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = match rest.chars().next() {
                Some('"') => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
                Some(first) if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                Some(first) => first.len_utf8(),
                None => 0,
            };
            let (token, tail) = rest.split_at(length);
            if !token.trim().is_empty() {
                tokens.push(Token {
                    text: token,
                    line: line_index + 1,
                });
            }
            rest = tail;
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clang_would_ignore_is_refused() {
        let text = "struct P { float* x; device float* y; };\n\
                    float f(float& a, thread float& b) { return a * b; }\n\
                    kernel void k(device float* x [[buffer(0)]], constant P& p [[buffer(0)]],\n\
                    device float* z [[buffer(31)]], uint i [[thread_postion_in_grid]]) { x[i] = x[i] * p.y[i]; }\n";
        let faults = check(text).join("\n");
        for expected in [
            "line 1: `float * x` names no address space",
            "line 2: `float & a` names no address space",
            "line 3: buffer slot 0 is taken twice",
            "line 4: buffer slot 31 is past Metal's last, 30",
            "line 4: Metal has no attribute [[thread_postion_in_grid]]",
        ] {
            assert!(
                faults.contains(expected),
                "{expected} is not among\n{faults}"
            );
        }
        assert_eq!(faults.lines().count(), 5, "{faults}");
    }

    #[test]
    fn the_samples_have_no_faults() {
        for text in [
            include_str!("../../samples/axpy.metal"),
            include_str!("../../samples/reduce.metal"),
        ] {
            assert_eq!(check(text), Vec::<String>::new());
        }
    }
}
