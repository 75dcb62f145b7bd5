//! Tokens of the text form.

use super::ParseError;

/// What a token is.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token {
    /// A word.
    Word(String),
    /// One of `% @ # $ & !` with the name that follows it.
    Name(char, String),
    /// A number with its suffix, as written.
    Number(String),
    /// A quoted text.
    Text(String),
    /// `!line:column` or `!file:line:column`.
    Span(u16, u32, u16),
    /// Punctuation.
    Mark(&'static str),
    /// The end.
    End,
}

/// A token and where it starts.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub token: Token,
    pub line: u32,
    pub column: u32,
}

const MARKS: [&str; 26] = [
    "..", "==", "!=", "<=", ">=", "+=", "{", "}", "(", ")", "[", "]", "<", ">", ",", ":", ";", "=",
    ".", "+", "-", "*", "/", "%", "?", "|",
];

/// Cuts a text into tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<Placed>, ParseError> {
    let mut out = Vec::new();
    for (line, content) in text.lines().enumerate() {
        let chars: Vec<char> = content.chars().collect();
        let mut at = 0;
        while at < chars.len() {
            let c = chars[at];
            if c.is_whitespace() {
                at += 1;
                continue;
            }
            if c == '/' && chars.get(at + 1) == Some(&'/') {
                break;
            }
            let (line, column) = (line as u32 + 1, at as u32 + 1);
            let (token, next) = token(&chars, at).map_err(|message| ParseError {
                line,
                column,
                message,
            })?;
            out.push(Placed {
                token,
                line,
                column,
            });
            at = next;
        }
    }
    let line = text.lines().count() as u32 + 1;
    out.push(Placed {
        token: Token::End,
        line,
        column: 1,
    });
    Ok(out)
}

fn token(chars: &[char], at: usize) -> Result<(Token, usize), String> {
    let c = chars[at];
    let next = chars.get(at + 1).copied().unwrap_or(' ');
    let word = |from: usize| {
        let len = chars[from..]
            .iter()
            .take_while(|c| c.is_alphanumeric() || **c == '_')
            .count();
        (
            chars[from..from + len].iter().collect::<String>(),
            from + len,
        )
    };
    if c == '"' {
        return quoted(chars, at);
    }
    if c == '!' && next.is_ascii_digit() {
        return span(chars, at);
    }
    if "%@#$&!".contains(c) && (next.is_alphanumeric() || next == '_') {
        let (mut name, mut end) = word(at + 1);
        let digit = chars.get(end + 1).is_some_and(|c| c.is_ascii_digit());
        if chars.get(end) == Some(&'.') && digit {
            let (number, after) = word(end + 1);
            name = format!("{name}.{number}");
            end = after;
        }
        return Ok((Token::Name(c, name), end));
    }
    if c.is_ascii_digit() || (c == '-' && next.is_ascii_digit()) {
        let mut end = at + 1;
        while let Some(&d) = chars.get(end) {
            let after = chars.get(end + 1).is_some_and(|c| c.is_ascii_digit());
            let exponent = matches!(chars[end - 1], 'e') && (d == '-' || d == '+') && after;
            let point = d == '.' && after;
            if !(d.is_ascii_alphanumeric() || exponent || point) {
                break;
            }
            end += 1;
        }
        return Ok((Token::Number(chars[at..end].iter().collect()), end));
    }
    if c.is_alphabetic() || c == '_' {
        let (word, end) = word(at);
        return Ok((Token::Word(word), end));
    }
    MARKS
        .iter()
        .find(|m| m.chars().eq(chars[at..].iter().copied().take(m.len())))
        .map(|m| (Token::Mark(m), at + m.len()))
        .ok_or_else(|| format!("unexpected `{c}`"))
}

fn quoted(chars: &[char], at: usize) -> Result<(Token, usize), String> {
    let mut text = String::new();
    let mut end = at + 1;
    loop {
        match (chars.get(end), chars.get(end + 1)) {
            (Some('"'), _) => return Ok((Token::Text(text), end + 1)),
            (Some('\\'), Some(c)) => {
                text.push(if *c == 'n' { '\n' } else { *c });
                end += 2;
            }
            (Some(c), _) => {
                text.push(*c);
                end += 1;
            }
            (None, _) => return Err("the text has no closing quote".into()),
        }
    }
}

fn span(chars: &[char], at: usize) -> Result<(Token, usize), String> {
    let len = chars[at + 1..]
        .iter()
        .take_while(|c| c.is_ascii_digit() || **c == ':')
        .count();
    let text: String = chars[at + 1..at + 1 + len].iter().collect();
    let parts: Option<Vec<u32>> = text.split(':').map(|p| p.parse().ok()).collect();
    let narrow = |v: u32| u16::try_from(v).ok();
    let span = match parts.as_deref() {
        Some([line, column]) => narrow(*column).map(|c| Token::Span(0, *line, c)),
        Some([file, line, column]) => narrow(*file)
            .zip(narrow(*column))
            .map(|(f, c)| Token::Span(f, *line, c)),
        _ => None,
    };
    span.map(|s| (s, at + 1 + len))
        .ok_or_else(|| format!("`!{text}` is no span"))
}
