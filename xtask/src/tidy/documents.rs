//! Rules about Markdown documents: they are there, short enough to be read, and lead somewhere.

use super::Finding;
use super::files::SourceFile;

/// What a stranger looks for first, and how long it may be.
const DOCUMENTS: [(&str, usize); 3] = [
    ("README.md", 400),
    ("ARCHITECTURE.md", 400),
    ("CONTRIBUTING.md", 400),
];

/// README, ARCHITECTURE and CONTRIBUTING are there, and none is longer than one sitting.
pub fn documents_are_there_and_short(files: &[SourceFile]) -> Vec<Finding> {
    DOCUMENTS
        .iter()
        .filter_map(|&(path, most)| {
            let message = match files.iter().find(|file| file.path == path) {
                None => "missing".to_owned(),
                Some(file) if file.text.lines().count() > most => {
                    format!("{} lines, more than {most}", file.text.lines().count())
                }
                Some(_) => return None,
            };
            Some(Finding {
                path: path.to_owned(),
                line: 0,
                message,
            })
        })
        .collect()
}

/// A relative link in a document names a file or folder of the workspace.
pub fn links_lead_somewhere(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (index, line) in file.text.lines().enumerate() {
            for link in links(line) {
                let target = resolve(folder, link);
                let exists = target.is_empty()
                    || files
                        .iter()
                        .any(|known| known.path == target || known.is_below(&target));
                if !exists {
                    findings.push(Finding {
                        path: file.path.clone(),
                        line: index + 1,
                        message: format!("the link to `{link}` leads nowhere"),
                    });
                }
            }
        }
    }
    findings
}

/// The relative targets of `[text](target)` in a line, without their fragments.
fn links(line: &str) -> Vec<&str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| {
            !link.contains("://") && !link.starts_with('#') && !link.starts_with("mailto:")
        })
        .filter_map(|link| link.split('#').next())
        .collect()
}

/// The path that `link` names, seen from `folder`.
fn resolve(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_link_and_a_missing_document_are_found() {
        let file = |path: &str, text: &str| SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let files = [
            file(
                "README.md",
                "see [a](docs/a.md#part), [web](https://example.invalid/x) and [gone](docs/b.md)\n",
            ),
            file(
                "docs/a.md",
                "back to [the start](../README.md) or [a folder](../docs)\n",
            ),
            file("CONTRIBUTING.md", &"line\n".repeat(401)),
        ];
        let dead: Vec<String> = links_lead_somewhere(&files)
            .iter()
            .map(Finding::to_string)
            .collect();
        assert_eq!(dead, ["README.md:1: the link to `docs/b.md` leads nowhere"]);
        let documents: Vec<String> = documents_are_there_and_short(&files)
            .iter()
            .map(Finding::to_string)
            .collect();
        assert_eq!(
            documents,
            [
                "ARCHITECTURE.md: missing",
                "CONTRIBUTING.md: 401 lines, more than 400"
            ]
        );
    }
}
