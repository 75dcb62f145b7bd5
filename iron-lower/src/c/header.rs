//! The comment that begins every text: what the kernel does and what its launch promises.

use iron_ir::contract::Expr;
use iron_ir::kernel::{Access, Kernel, ParamKind, TensorLayout};

/// Doc, grid, workgroup, facts and parameters, as lines of `//`.
pub(crate) fn contract_comment(kernel: &Kernel, profile: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let title = match &*kernel.instance {
        "" => kernel.name.to_string(),
        instance => format!("{} ({instance})", kernel.name),
    };
    lines.push(format!("{title} for {profile}"));
    lines.push(String::new());
    if !kernel.doc.trim().is_empty() {
        lines.extend(kernel.doc.trim().lines().map(|l| l.trim().to_owned()));
        lines.push(String::new());
    }
    let contract = &kernel.contract;
    let is_one = |e: &Expr| *e == Expr::Const(1);
    let grid_rank = (1..=3)
        .rev()
        .find(|&n| !is_one(&contract.grid[n - 1]))
        .unwrap_or(1);
    let grid: Vec<String> = contract.grid[..grid_rank]
        .iter()
        .map(|e| e.display(kernel).to_string())
        .collect();
    let group_rank = (1..=3)
        .rev()
        .find(|&n| contract.workgroup[n - 1] != 1)
        .unwrap_or(1);
    let group: Vec<String> = contract.workgroup[..group_rank]
        .iter()
        .map(u32::to_string)
        .collect();
    let mut rows: Vec<(String, String)> = vec![
        ("grid".into(), grid.join(" x ")),
        ("workgroup".into(), group.join(" x ")),
    ];
    for fact in &contract.requires {
        rows.push(("requires".into(), fact.display(kernel).to_string()));
    }
    for data in kernel.params.values() {
        let text = match &data.kind {
            ParamKind::Scalar(scalar) => scalar.to_string(),
            ParamKind::Tensor(tensor) => {
                let shape: Vec<String> = tensor
                    .shape
                    .iter()
                    .map(|e| e.display(kernel).to_string())
                    .collect();
                let mut text = format!("{} [{}]", tensor.scalar, shape.join(", "));
                if tensor.access == Access::ReadWrite {
                    text.push_str(", written");
                }
                if tensor.layout == TensorLayout::Strided {
                    text.push_str(", any strides");
                }
                if tensor.align > 1 {
                    text.push_str(&format!(", aligned to {} elements", tensor.align));
                }
                if !tensor.may_alias.is_empty() {
                    let others: Vec<&str> = tensor
                        .may_alias
                        .iter()
                        .map(|&p| &*kernel.params[p].name)
                        .collect();
                    text.push_str(&format!(", may be {} itself", others.join(" or ")));
                }
                text
            }
        };
        rows.push((data.name.to_string(), text));
    }
    let width = rows
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    for (name, text) in rows {
        lines.push(format!("{name:<width$}  {text}"));
    }
    lines
        .iter()
        .map(|line| {
            // A trailing backslash would continue the comment over the next line.
            let line = line.trim_end().trim_end_matches('\\');
            if line.is_empty() {
                "//\n".to_owned()
            } else {
                format!("// {line}\n")
            }
        })
        .collect()
}
