//! Makes a kernel that shows a fault smaller, in the textual IR: statements, blocks and
//! declarations go one by one as long as the fault stays.

/// The smallest text that `fails` still accepts, found by leaving out lines and whole blocks and
/// by unwrapping blocks, until none can go. `fails` is not asked about more than `budget` texts.
pub fn reduce(text: &str, budget: usize, fails: &mut dyn FnMut(&str) -> bool) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut left = budget;
    loop {
        let before = lines.len();
        let mut at = lines.len();
        while at > 0 {
            at -= 1;
            for candidate in without(&lines, at) {
                if left == 0 {
                    return joined(&lines);
                }
                left -= 1;
                if !has_empty_loop(&candidate) && fails(&joined(&candidate)) {
                    lines = candidate;
                    at = at.min(lines.len());
                    break;
                }
            }
        }
        if lines.len() == before {
            return joined(&lines);
        }
    }
}

/// A loop that nothing leaves would be another fault.
fn has_empty_loop(lines: &[String]) -> bool {
    let mut pairs = lines.windows(2);
    pairs.any(|pair| pair[0].trim() == "loop {" && pair[1].trim() == "}")
}

fn joined(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

/// The texts without line `at`: with its whole block where it opens one, or with the block's
/// statements left standing; with the line of a definition gone and its name set to a constant.
fn without(lines: &[String], at: usize) -> Vec<Vec<String>> {
    let line = lines[at].trim();
    if at == 0 || line.is_empty() || line.starts_with('}') {
        return Vec::new();
    }
    if !line.ends_with('{') {
        let mut shorter = lines.to_vec();
        shorter.remove(at);
        let mut candidates = vec![shorter];
        if let Some(simple) = simplified(line) {
            let mut changed = lines.to_vec();
            changed[at] = simple;
            // A constant in place of a constant would go round for ever.
            if changed[at].trim() != line {
                candidates.push(changed);
            }
        }
        return candidates;
    }
    let indent = |line: &str| line.len() - line.trim_start().len();
    let depth = indent(&lines[at]);
    let Some(end) = (at + 1..lines.len()).find(|&i| indent(&lines[i]) <= depth) else {
        return Vec::new();
    };
    let mut candidates = Vec::new();
    let closing = lines[end].trim();
    if closing == "}" {
        let whole = [&lines[..at], &lines[end + 1..]].concat();
        let unwrapped = [&lines[..at], &lines[at + 1..end], &lines[end + 1..]].concat();
        candidates.extend([whole, unwrapped]);
    } else if closing == "} else {" {
        let end_of_else = (end + 1..lines.len()).find(|&i| indent(&lines[i]) <= depth);
        if let Some(last) = end_of_else {
            let whole = [&lines[..at], &lines[last + 1..]].concat();
            let mut first = [&lines[..end], &lines[last..]].concat();
            let second = [&lines[..at], &lines[end + 1..last], &lines[last + 1..]].concat();
            first[end] = lines[last].clone();
            candidates.extend([whole, first, second]);
        }
    }
    candidates
}

/// A definition of a number as zero, or of a vector as one of zeros.
fn simplified(line: &str) -> Option<String> {
    let (head, what) = line.split_once(" = ")?;
    let (_, ty) = head.strip_prefix('%')?.split_once(": ")?;
    let ty = iron_ir::Type::from_name(ty)?;
    if what.starts_with("splat ") || what.contains(":0x0") && !what.contains(' ') {
        return None;
    }
    let zero = if ty.scalar == iron_ir::Scalar::Bool {
        "false".to_string()
    } else {
        format!("{}:0x0", ty.scalar)
    };
    Some(if ty.is_vector() {
        format!("{head} = splat {zero}")
    } else {
        format!("{head} = {zero}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_fault_needs_stays() {
        let text = "kernel @k {\n  a\n  if x {\n    b\n    culprit\n  } else {\n    c\n  }\n  for y {\n    d\n  }\n}\n";
        let mut fails =
            |t: &str| t.contains("culprit") && t.matches('{').count() == t.matches('}').count();
        let small = reduce(text, 1000, &mut fails);
        assert_eq!(small, "kernel @k {\n    culprit\n}\n");
    }
}
