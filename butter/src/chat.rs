//! Chat templates: messages to the text that a model was trained on.
//!
//! Templates are Jinja programs that checkpoints carry; they run with a bounded
//! amount of work. Rendering marks the places where a message holds the text of
//! a control token, so that [`Tokenizer::encode_chat`](crate::tokenizer::Tokenizer::encode_chat)
//! can tell what the template wrote from what a user wrote (E24).

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::{Map, Value as Json};

/// Work that one rendering may do, in instructions and pieces of 64 bytes. A
/// template of a few hundred lines over a chat of megabytes stays below it.
const FUEL: u64 = 20_000_000;

/// A chat template and the tokens that it may name.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

/// Texts of control tokens that must stay text where a message holds them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControlTexts<'a> {
    /// In every message.
    pub always: Vec<&'a str>,
    /// In every message that is not the assistant's: markers such as
    /// `</think>`, which the template itself looks for in what the model said.
    pub unless_assistant: Vec<&'a str>,
}

/// A rendered chat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenderedChat {
    text: String,
    marked: String,
    sentinel: Option<char>,
}

impl RenderedChat {
    /// The text, as the template wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text with a sentinel inside each control token's text that came from
    /// a message; the text itself if there was none.
    pub(crate) fn marked(&self) -> &str {
        &self.marked
    }

    /// The sentinel, if a message held the text of a control token.
    pub(crate) fn sentinel(&self) -> Option<char> {
        self.sentinel
    }
}

/// A chat could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The template is not valid.
    #[error("chat template does not compile: {0}")]
    Compile(String),
    /// The template refused the messages or failed.
    #[error("chat template: {0}")]
    Render(String),
    /// The messages do not have the shape of a chat.
    #[error("chat messages: {0}")]
    Messages(String),
}

impl ChatTemplate {
    /// Compiles a template. The texts of the start and end tokens are what it
    /// sees as `bos_token` and `eos_token`.
    pub fn new(
        source: &str,
        bos_token: Option<String>,
        eos_token: Option<String>,
    ) -> Result<Self, ChatError> {
        let compile = |error: Error| ChatError::Compile(describe(&error));
        let mut environment = Environment::new();
        // As transformers sets up Jinja.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(compile)?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", tojson);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Value, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            strftime(&format, SystemTime::now())
                .map_err(|message| Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned("chat", source.to_owned())
            .map_err(compile)?;
        Ok(Self {
            source: source.to_owned(),
            environment,
            bos_token: bos_token.unwrap_or_default(),
            eos_token: eos_token.unwrap_or_default(),
        })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders messages; `add_generation_prompt` opens the assistant's turn.
    /// `control` comes from
    /// [`Tokenizer::control_texts`](crate::tokenizer::Tokenizer::control_texts).
    pub fn render(
        &self,
        messages: &[Map<String, Json>],
        add_generation_prompt: bool,
        control: &ControlTexts<'_>,
    ) -> Result<RenderedChat, ChatError> {
        self.render_with(messages, add_generation_prompt, control, Map::new())
    }

    /// Renders messages with further names that the template may use, such as `tools`; texts in
    /// them are no more trusted than those of messages. A name that rendering sets itself wins.
    pub fn render_with(
        &self,
        messages: &[Map<String, Json>],
        add_generation_prompt: bool,
        control: &ControlTexts<'_>,
        mut names: Map<String, Json>,
    ) -> Result<RenderedChat, ChatError> {
        let mut messages: Vec<Json> = messages.iter().cloned().map(Json::Object).collect();
        let mut texts = messages.clone();
        texts.extend(names.values().cloned());
        let sentinel = unused_character(&texts, &self.source)?;
        let everywhere = [control.always.as_slice(), &control.unless_assistant].concat();
        let mut marks = 0;
        for message in &mut messages {
            let texts = match message.get("role").and_then(Json::as_str) {
                Some("assistant") => &control.always,
                _ => &everywhere,
            };
            mark_strings(message, texts, sentinel, &mut marks);
        }

        for value in names.values_mut() {
            mark_strings(value, &everywhere, sentinel, &mut marks);
        }

        let mut context = names;
        context.extend([
            ("messages".to_owned(), Json::Array(messages)),
            (
                "add_generation_prompt".to_owned(),
                add_generation_prompt.into(),
            ),
            ("bos_token".to_owned(), self.bos_token.as_str().into()),
            ("eos_token".to_owned(), self.eos_token.as_str().into()),
        ]);
        let render = |error: Error| ChatError::Render(describe(&error));
        let template = self.environment.get_template("chat").map_err(render)?;
        let marked = template.render(Serde(&context)).map_err(render)?;
        if marks == 0 {
            return Ok(RenderedChat {
                text: marked.clone(),
                marked,
                sentinel: None,
            });
        }
        let text = marked.replace(sentinel, "");
        Ok(RenderedChat {
            text,
            marked,
            sentinel: Some(sentinel),
        })
    }
}

/// Reads a chat file: a list of messages, or an object with `messages`.
pub fn parse_messages(json: &[u8]) -> Result<Vec<Map<String, Json>>, ChatError> {
    let wrong = |message: String| ChatError::Messages(message);
    let json: Json =
        serde_json::from_slice(json).map_err(|error| wrong(format!("not JSON: {error}")))?;
    let list = match json {
        Json::Array(list) => list,
        Json::Object(mut object) => match object.remove("messages") {
            Some(Json::Array(list)) => list,
            _ => return Err(wrong("the object has no list `messages`".to_owned())),
        },
        _ => {
            return Err(wrong(
                "expected a list of messages, or an object with one".to_owned(),
            ));
        }
    };
    if list.is_empty() {
        return Err(wrong("the list is empty".to_owned()));
    }
    list.into_iter()
        .enumerate()
        .map(|(index, message)| {
            let Json::Object(message) = message else {
                return Err(wrong(format!("message {index} is not an object")));
            };
            match message.get("role") {
                Some(Json::String(_)) => {}
                _ => return Err(wrong(format!("message {index} has no string `role`"))),
            }
            match message.get("content") {
                Some(Json::String(_)) => {}
                Some(Json::Null) | None if message.contains_key("tool_calls") => {}
                Some(Json::Array(_)) => {
                    return Err(wrong(format!(
                        "message {index}: `content` is a list of parts, only text is supported"
                    )));
                }
                _ => return Err(wrong(format!("message {index} has no string `content`"))),
            }
            Ok(message)
        })
        .collect()
}

/// One line of a template error, with its cause and its place.
fn describe(error: &Error) -> String {
    let detail = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{} (template line {line})", detail.replace('\n', " ")),
        None => detail.replace('\n', " "),
    }
}

/// A Unicode noncharacter that neither the messages nor the template hold.
fn unused_character(messages: &[Json], template: &str) -> Result<char, ChatError> {
    let messages = Json::Array(messages.to_vec()).to_string();
    ('\u{fdd0}'..='\u{fdef}')
        .find(|&candidate| !messages.contains(candidate) && !template.contains(candidate))
        .ok_or_else(|| ChatError::Messages("they hold all 32 Unicode noncharacters".to_owned()))
}

/// Marks every string of a message, roles and tool arguments included.
fn mark_strings(json: &mut Json, control_texts: &[&str], sentinel: char, marks: &mut usize) {
    match json {
        Json::String(text) => {
            if let Some((marked, count)) = mark(text, control_texts, sentinel) {
                *text = marked;
                *marks += count;
            }
        }
        Json::Array(items) => {
            for item in items {
                mark_strings(item, control_texts, sentinel, marks);
            }
        }
        Json::Object(fields) => {
            for (_, field) in fields {
                mark_strings(field, control_texts, sentinel, marks);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Puts the sentinel inside each control token's text, and at an end of the
/// text where a token could be completed by what the template writes beside it.
fn mark(text: &str, control_texts: &[&str], sentinel: char) -> Option<(String, usize)> {
    let mut places = std::collections::BTreeSet::new();
    for control in control_texts {
        let mut splits = control
            .char_indices()
            .skip(1)
            .map(|(index, _)| index)
            .peekable();
        let Some(&inside) = splits.peek() else {
            continue;
        };
        let mut from = 0;
        while let Some(start) = text[from..].find(control) {
            places.insert(from + start + inside);
            // Occurrences may overlap: go on behind the first character.
            from += start + inside;
        }
        for split in splits {
            if text.ends_with(&control[..split]) {
                places.insert(text.len());
            }
            if text.starts_with(&control[split..]) {
                places.insert(0);
            }
        }
    }
    if places.is_empty() {
        return None;
    }
    let mut marked = text.to_owned();
    for &place in places.iter().rev() {
        marked.insert(place, sentinel);
    }
    Some((marked, places.len()))
}

/// `json.dumps(value, ensure_ascii=False)` of Python, as transformers gives it to
/// templates; the engine's own filter would escape for HTML.
fn tojson(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<usize>>("indent")?,
    };
    let _ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let wrong = |error: serde_json::Error| {
        Error::new(ErrorKind::BadSerialization, format!("tojson: {error}"))
    };
    let mut out = Vec::new();
    match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
            value.serialize(&mut serializer).map_err(wrong)?;
        }
        None => {
            let mut serializer = serde_json::Serializer::with_formatter(&mut out, PythonFormatter);
            value.serialize(&mut serializer).map_err(wrong)?;
        }
    }
    String::from_utf8(out)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// `", "` and `": "`, as Python writes JSON.
struct PythonFormatter;

impl serde_json::ser::Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Formats a moment in UTC; templates put today's date into the system prompt.
fn strftime(format: &str, now: SystemTime) -> Result<String, String> {
    use std::fmt::Write as _;
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = [
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
    ];
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_err(|_| "the clock is before 1970")?
        .as_secs();
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_from_days(days);
    let weekday = DAYS[(days % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let written = match characters.next() {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{weekday}"),
            Some('a') => write!(out, "{}", &weekday[..3]),
            Some('H') => write!(out, "{:02}", second_of_day / 3600),
            Some('M') => write!(out, "{:02}", second_of_day / 60 % 60),
            Some('S') => write!(out, "{:02}", second_of_day % 60),
            Some('%') => write!(out, "%"),
            Some(other) => return Err(format!("strftime_now: %{other} is not supported")),
            None => return Err("strftime_now: the format ends in %".to_owned()),
        };
        written.map_err(|error| error.to_string())?;
    }
    Ok(out)
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian
/// calendar. Method: years of March to February, eras of 400 years.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn messages(json: Json) -> Vec<Map<String, Json>> {
        parse_messages(json.to_string().as_bytes()).expect("well-formed messages")
    }

    fn render(template: &str, list: Json) -> Result<String, String> {
        let template = ChatTemplate::new(template, Some("<s>".to_owned()), None)
            .map_err(|error| error.to_string())?;
        template
            .render(&messages(list), true, &ControlTexts::default())
            .map(|chat| chat.text().to_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn templates_have_what_the_reference_gives_them() {
        let one = json!([{"role": "user", "content": " <b>&'x' ", "n": [1, {"a": null}]}]);
        let shown = |template: &str| render(template, one.clone());
        assert_eq!(
            shown("{{ bos_token }}{{ eos_token }}|"),
            Ok("<s>|".to_owned())
        );
        assert_eq!(
            shown("{{ messages[0].content.strip() }}"),
            Ok("<b>&'x'".to_owned())
        );
        assert_eq!(
            shown("{{ messages[0]['content'] | trim }}"),
            Ok("<b>&'x'".to_owned())
        );
        assert_eq!(
            shown("{{ messages[0] | tojson }}"),
            Ok(r#"{"role": "user", "content": " <b>&'x' ", "n": [1, {"a": null}]}"#.to_owned())
        );
        assert_eq!(
            shown("{% for m in messages %}\n    {% if m %}\n\nx{% endif %}\n{% endfor %}\n"),
            Ok("\nx".to_owned())
        );
        let refused = shown("{{ raise_exception('roles must alternate') }}");
        assert_eq!(
            refused,
            Err("chat template: roles must alternate (template line 1)".to_owned())
        );
    }

    #[test]
    fn a_hostile_template_ends() {
        let template = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{{ c }}{% endfor %}{% endfor %}{% endfor %}";
        let error = render(template, json!([{"role": "user", "content": ""}]));
        assert!(error.is_err_and(|error| error.contains("fuel")));
        assert!(render("{% if %}", json!([{"role": "user", "content": ""}])).is_err());
    }

    // E24
    #[test]
    fn control_texts_are_marked_wherever_a_message_could_complete_one() {
        let mark = |text| mark(text, &["<|im_end|>", "<|im_start|>"], '#').map(|(text, _)| text);
        assert_eq!(mark("plain < text"), None);
        assert_eq!(mark("a<|im_end|>b").as_deref(), Some("a<#|im_end|>b"));
        assert_eq!(mark("<|im_").as_deref(), Some("<|im_#"));
        assert_eq!(mark("end|> x").as_deref(), Some("#end|> x"));
        assert_eq!(mark("1 <").as_deref(), Some("1 <#"));
    }

    // E24
    #[test]
    fn what_the_template_looks_for_in_an_answer_stays_findable_there() {
        let source =
            "{% for m in messages %}[{{ m.content.split('</think>') | last }}]{% endfor %}";
        let template = ChatTemplate::new(source, None, None).expect("compiles");
        let talk = messages(json!([
            {"role": "user", "content": "a</think>b"},
            {"role": "assistant", "content": "a</think>b<|im_end|>"},
        ]));
        let control = ControlTexts {
            always: vec!["<|im_end|>"],
            unless_assistant: vec!["</think>"],
        };
        let chat = template.render(&talk, false, &control).expect("renders");
        assert_eq!(chat.text(), "[a</think>b][b<|im_end|>]");
        let sentinel = chat.sentinel().expect("two texts are marked");
        assert_eq!(
            chat.marked().replace(sentinel, "#"),
            "[a<#/think>b][b<#|im_end|>]"
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(
            strftime("%d %b %Y, %A", at(0)).as_deref(),
            Ok("01 Jan 1970, Thursday")
        );
        assert_eq!(
            strftime("%Y-%m-%d %H:%M:%S %%", at(1_709_210_096)).as_deref(),
            Ok("2024-02-29 12:34:56 %")
        );
        assert!(strftime("%Q", at(0)).is_err());
    }

    #[test]
    fn wrong_chat_files_say_what_is_wrong() {
        for (json, words) in [
            ("{", "not JSON"),
            ("[]", "empty"),
            ("{\"m\": 1}", "no list `messages`"),
            ("[1]", "message 0 is not an object"),
            (r#"[{"content": "x"}]"#, "no string `role`"),
            (
                r#"[{"role": "user", "content": [{"type": "text"}]}]"#,
                "only text",
            ),
        ] {
            let error = parse_messages(json.as_bytes())
                .expect_err("wrong")
                .to_string();
            assert!(error.contains(words), "{json}: {error}");
        }
    }
}
