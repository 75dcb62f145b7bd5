//! From tokens to what a client sees: content, reasoning and tool calls, piece by piece.
//!
//! One stitcher serves streams and whole answers, so the pieces joined are the answer (E01, E03).
//! Incomplete UTF-8 is held back, then the possible beginning of a stop string, then that of a
//! marker (`<think>`, `</think>`, `<tool_call>`); each is passed on once when it turns out to be
//! text.

use std::sync::Arc;

use super::tool_call::{Scan, ToolFormat, scan};
use super::xml_call::{self, ParameterKinds};
use crate::stop::StopMatcher;
use crate::tokenizer::{StreamState, Tokenizer};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const TOOL: &str = "<tool_call>";
const TOOL_END: &str = "</tool_call>";

/// A piece of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Text for the user.
    Content(String),
    /// What the model thought before it answered.
    Reasoning(String),
    /// A call of a tool begins.
    ToolCall {
        /// Its place among the calls of the answer.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of the arguments of a call, as JSON text.
    ToolArguments {
        /// Its place among the calls of the answer.
        index: usize,
        /// The text.
        text: String,
    },
}

/// What a model's answers may hold beside content.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Parts {
    /// Whether the template knows reasoning.
    pub reasoning: bool,
    /// Whether the prompt opened the reasoning already.
    pub reasoning_open: bool,
    /// How calls are written, if tools were offered.
    pub tools: Option<ToolFormat>,
    /// What the parameters of those tools are.
    pub kinds: Arc<ParameterKinds>,
}

/// Puts one answer together.
#[derive(Debug)]
pub struct Stitcher {
    tokenizer: Option<Arc<Tokenizer>>,
    decoder: StreamState,
    stop: StopMatcher,
    segments: Segments,
}

impl Stitcher {
    /// A stitcher for one answer.
    pub fn new(tokenizer: Option<Arc<Tokenizer>>, stops: &[String], parts: Parts) -> Stitcher {
        Stitcher {
            tokenizer,
            decoder: StreamState::default(),
            stop: StopMatcher::new(stops.iter().cloned()),
            segments: Segments::new(parts),
        }
    }

    /// Takes a token; gives what is certain by now.
    pub fn push(&mut self, token: u32) -> Vec<Piece> {
        let Some(tokenizer) = &self.tokenizer else {
            return Vec::new();
        };
        let text = self.decoder.push(tokenizer, token);
        let text = self.stop.push(&text);
        self.segments.push(&text)
    }

    /// Whether a stop string was found: the answer is complete.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Calls that are complete.
    pub fn complete_calls(&self) -> usize {
        self.segments.complete_calls
    }

    /// Whether any call was begun.
    pub fn has_calls(&self) -> bool {
        self.segments.calls > 0
    }

    /// Ends the answer: what was held back is text.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut tail = String::new();
        if !self.stop.is_stopped() {
            tail = self.stop.push(&std::mem::take(&mut self.decoder).finish());
            if !self.stop.is_stopped() {
                tail += &std::mem::take(&mut self.stop).finish();
            }
        }
        let mut pieces = self.segments.push(&tail);
        pieces.extend(self.segments.finish());
        merged(pieces)
    }
}

/// Where in an answer the text is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before anything but white space.
    Start,
    Reasoning,
    Content,
    /// In the JSON of a call.
    Call,
    /// Behind a call, where its closing marker is due.
    CallEnd,
    /// In a call that was begun and went wrong: too late to take back, its rest is arguments.
    Broken,
}

#[derive(Debug)]
struct Segments {
    parts: Parts,
    state: State,
    held: String,
    /// White space at this place is between parts and belongs to none.
    skip_space: bool,
    calls: usize,
    complete_calls: usize,
    /// Of the call at hand: whether its name is out, and how much of its arguments.
    named: bool,
    sent: usize,
    /// And what stood before it, which is text if it turns out to be no call.
    opening: &'static str,
}

impl Segments {
    fn new(parts: Parts) -> Segments {
        let is_open = parts.reasoning_open;
        let state = if is_open {
            State::Reasoning
        } else if parts.reasoning || parts.tools == Some(ToolFormat::Llama) {
            State::Start
        } else {
            State::Content
        };
        Segments {
            parts,
            state,
            held: String::new(),
            skip_space: is_open,
            calls: 0,
            complete_calls: 0,
            named: false,
            sent: 0,
            opening: "",
        }
    }

    fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held += text;
        let mut pieces = Vec::new();
        while self.advance(&mut pieces) {}
        merged(pieces)
    }

    /// One change of state; false if more text is needed.
    fn advance(&mut self, pieces: &mut Vec<Piece>) -> bool {
        if self.skip_space {
            let start = self.held.len() - self.held.trim_start().len();
            self.held.drain(..start);
            if self.held.is_empty() {
                return false;
            }
            self.skip_space = false;
        }
        match self.state {
            State::Start => self.begin(),
            State::Reasoning => {
                let (text, found) = self.until(THINK_END);
                push_text(pieces, text, Piece::Reasoning);
                if found {
                    (self.state, self.skip_space) = (State::Content, true);
                }
                found
            }
            State::Content => {
                if !self.has_markers() {
                    push_text(pieces, std::mem::take(&mut self.held), Piece::Content);
                    return false;
                }
                let (text, found) = self.until(TOOL);
                push_text(pieces, text, Piece::Content);
                if found {
                    self.open_call(TOOL);
                }
                found
            }
            State::Call => self.call(pieces),
            State::Broken => {
                let (text, found) = match self.has_markers() {
                    true => self.until(TOOL_END),
                    false => (std::mem::take(&mut self.held), false),
                };
                push_arguments(pieces, self.calls - 1, text);
                if found {
                    (self.state, self.skip_space) = (State::Content, true);
                }
                found
            }
            State::CallEnd => self.end_call(),
        }
    }

    /// At the start, the first word decides what follows.
    fn begin(&mut self) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            return false;
        }
        if self.parts.reasoning {
            if let Some(rest) = text.strip_prefix(THINK) {
                self.held = rest.to_owned();
                (self.state, self.skip_space) = (State::Reasoning, true);
                return true;
            }
            if THINK.starts_with(text) {
                return false;
            }
        }
        if self.parts.tools == Some(ToolFormat::Llama) && text.starts_with('{') {
            self.held = text.to_owned();
            self.open_call("");
        } else {
            self.state = State::Content;
        }
        true
    }

    fn open_call(&mut self, opening: &'static str) {
        self.state = State::Call;
        (self.named, self.sent, self.opening) = (false, 0, opening);
    }

    /// Behind a call its marker follows, or, where the model forgot that, what it wrote instead:
    /// another call, which may stand between the same markers, or text.
    fn end_call(&mut self) -> bool {
        let rest = self.held.trim_start();
        let due = [TOOL_END, TOOL, xml_call::FUNCTION];
        if rest.is_empty() || due.iter().any(|marker| is_beginning(rest, marker)) {
            return false;
        }
        let is_xml = self.parts.tools == Some(ToolFormat::Xml);
        let is_another = is_xml && rest.starts_with(xml_call::FUNCTION);
        let space = self.held.len() - rest.len();
        let passed = if rest.starts_with(TOOL_END) {
            space + TOOL_END.len()
        } else {
            space
        };
        self.held.drain(..passed);
        if is_another {
            self.open_call("");
        } else {
            (self.state, self.skip_space) = (State::Content, true);
        }
        true
    }

    /// Whether calls stand between markers.
    fn has_markers(&self) -> bool {
        matches!(self.parts.tools, Some(ToolFormat::Hermes | ToolFormat::Xml))
    }

    /// Streams a call's name, then its arguments as they come.
    fn call(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let found: Scan = match self.parts.tools {
            Some(ToolFormat::Xml) => xml_call::scan(&self.held, &self.parts.kinds),
            _ => scan(&self.held),
        };
        if let (Some(name), Some(arguments)) = (found.name, found.arguments) {
            if !self.named {
                self.named = true;
                self.calls += 1;
                pieces.push(Piece::ToolCall {
                    index: self.calls - 1,
                    name,
                });
            }
            if arguments.len() > self.sent {
                let text = arguments[self.sent..].to_owned();
                self.sent = arguments.len();
                push_arguments(pieces, self.calls - 1, text);
            }
        }
        if found.wrong || (found.end.is_some() && !self.named) {
            if self.named {
                self.held.drain(..found.understood.min(self.held.len()));
                self.state = State::Broken;
            } else {
                // No call after all: the model wrote it as text.
                push_text(pieces, self.opening.to_owned(), Piece::Content);
                self.state = State::Content;
            }
            return true;
        }
        let Some(end) = found.end else {
            return false;
        };
        self.held.drain(..end);
        self.complete_calls += 1;
        self.state = match self.has_markers() {
            true => State::CallEnd,
            false => State::Content,
        };
        true
    }

    /// The text before a marker, and whether the marker was there; without it, what may become
    /// one stays.
    fn until(&mut self, marker: &str) -> (String, bool) {
        if let Some(start) = self.held.find(marker) {
            let rest = self.held.split_off(start + marker.len());
            let mut text = std::mem::replace(&mut self.held, rest);
            text.truncate(start);
            return (text, true);
        }
        let open = (1..marker.len())
            .rev()
            .find(|&length| {
                marker.is_char_boundary(length) && self.held.ends_with(&marker[..length])
            })
            .unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - open);
        (std::mem::replace(&mut self.held, kept), false)
    }

    fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        let mut pieces = Vec::new();
        match self.state {
            State::Reasoning => push_text(&mut pieces, held, Piece::Reasoning),
            State::Start | State::Content if !self.skip_space => {
                push_text(&mut pieces, held, Piece::Content);
            }
            State::Call if !self.named => {
                let text = format!("{}{held}", self.opening);
                push_text(&mut pieces, text, Piece::Content);
            }
            State::Broken => push_arguments(&mut pieces, self.calls - 1, held),
            // Half a marker that was due is none of the answer; what may be another's is.
            State::CallEnd if !TOOL_END.starts_with(held.trim()) => {
                push_text(&mut pieces, held.trim_start().to_owned(), Piece::Content);
            }
            State::Start | State::Content | State::Call | State::CallEnd => {}
        }
        pieces
    }
}

/// Whether more text could make a text the marker.
fn is_beginning(text: &str, marker: &str) -> bool {
    text.len() < marker.len() && marker.starts_with(text)
}

fn push_text(pieces: &mut Vec<Piece>, text: String, kind: impl FnOnce(String) -> Piece) {
    if !text.is_empty() {
        pieces.push(kind(text));
    }
}

fn push_arguments(pieces: &mut Vec<Piece>, index: usize, text: String) {
    push_text(pieces, text, |text| Piece::ToolArguments { index, text });
}

/// Neighbours of one kind as one piece.
fn merged(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), &piece) {
            (Some(Piece::Content(text)), Piece::Content(more))
            | (Some(Piece::Reasoning(text)), Piece::Reasoning(more)) => *text += more,
            (
                Some(Piece::ToolArguments { index, text }),
                Piece::ToolArguments {
                    index: same,
                    text: more,
                },
            ) if index == same => *text += more,
            _ => out.push(piece),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(parts: Parts, pieces: &[&str]) -> Vec<Piece> {
        let mut segments = Segments::new(parts);
        let mut out = Vec::new();
        for text in pieces {
            out.extend(segments.push(text));
        }
        out.extend(segments.finish());
        merged(out)
    }

    fn parts(tools: Option<ToolFormat>) -> Parts {
        Parts {
            reasoning: true,
            tools,
            ..Parts::default()
        }
    }

    fn content(text: &str) -> Piece {
        Piece::Content(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> [Piece; 2] {
        let name = name.to_owned();
        let text = arguments.to_owned();
        [
            Piece::ToolCall { index: 0, name },
            Piece::ToolArguments { index: 0, text },
        ]
    }

    const CALL: &str = "<think>\nhm</think>\n\nI call.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>}\", \"b\": [1]}}\n</tool_call>\n";

    #[test]
    fn reasoning_content_and_calls_are_told_apart() {
        let [name, arguments] = call("f", r#"{"a": "</tool_call>}", "b": [1]}"#);
        let whole = run(parts(Some(ToolFormat::Hermes)), &[CALL]);
        let thought = Piece::Reasoning("hm".to_owned());
        assert_eq!(whole, [thought, content("I call."), name, arguments]);
        let [name, arguments] = call("g", "{\"x\":1}");
        let llama = r#"{"name": "g", "parameters": {"x":1}}"#;
        assert_eq!(
            run(parts(Some(ToolFormat::Llama)), &[llama]),
            [name, arguments]
        );
        // Without tools, and as JSON that is no call, it is text.
        assert_eq!(run(parts(None), &[llama]), [content(llama)]);
        let other = r#"{"a": 1}"#;
        assert_eq!(
            run(parts(Some(ToolFormat::Llama)), &[other]),
            [content(other)]
        );
        assert_eq!(run(parts(None), &["  a <thin"]), [content("  a <thin")]);
        let broken = "<tool_call>no";
        assert_eq!(
            run(parts(Some(ToolFormat::Hermes)), &[broken]),
            [content(broken)]
        );
        let open = Parts {
            reasoning_open: true,
            ..parts(None)
        };
        let thought = Piece::Reasoning("so ".to_owned());
        assert_eq!(
            run(open, &["\nso </thi", "nk>\n\nyes"]),
            [thought, content("yes")]
        );
    }

    const XML: &str = "<think>\nhm</think>\n\nI call.<tool_call>\n<function=f>\n<parameter=a>\n</tool_call>é\n\n</parameter>\n<parameter=b>\n1\n</parameter>\n</function>\n</tool_call>\n";

    #[test]
    fn calls_as_xml_become_json_as_they_come() {
        let [name, arguments] = call("f", r#"{"a": "</tool_call>é\n", "b": "1"}"#);
        let whole = run(parts(Some(ToolFormat::Xml)), &[XML]);
        let thought = Piece::Reasoning("hm".to_owned());
        assert_eq!(whole, [thought, content("I call."), name, arguments]);
        // Two calls, and JSON that is none of this format.
        let twice = "<tool_call><function=f></function></tool_call>\n<tool_call>\n<function=g>\n</function></tool_call>";
        let [name, arguments] = call("f", "{}");
        let second = [("g".to_owned(), "{}".to_owned())].map(|(name, text)| {
            [
                Piece::ToolCall { index: 1, name },
                Piece::ToolArguments { index: 1, text },
            ]
        });
        let [[second, more]] = second;
        assert_eq!(
            run(parts(Some(ToolFormat::Xml)), &[twice]),
            [name, arguments, second, more]
        );
        let other = "<tool_call>{\"name\": \"f\"}";
        assert_eq!(
            run(parts(Some(ToolFormat::Xml)), &[other]),
            [content(other)]
        );
        let mut segments = Segments::new(parts(Some(ToolFormat::Xml)));
        assert!(segments.push("<tool_call>\n<functi").is_empty());
        let [name, arguments] = call("f", "{");
        assert_eq!(segments.push("on=f>"), [name, arguments]);
        let [_, arguments] = call("f", "\"a\": \"Par");
        assert_eq!(segments.push("\n<parameter=a>\nPar\n"), [arguments]);
        let [_, arguments] = call("f", "\\nis\"}");
        assert_eq!(segments.push("is\n</parameter></function>"), [arguments]);
        assert_eq!(segments.complete_calls, 1);
        // What breaks off too late to take back is arguments.
        let broken = "<tool_call><function=f><parameter=a>1</parameter>oh";
        let [name, arguments] = call("f", "{\"a\": \"1\"oh");
        assert_eq!(
            run(parts(Some(ToolFormat::Xml)), &[broken]),
            [name, arguments]
        );
    }

    #[test]
    fn nothing_behind_a_call_without_its_end_is_lost() {
        let hermes = |index: usize, city: &str| {
            let text = format!("{{\"c\": \"{city}\"}}");
            let name = "w".to_owned();
            [
                Piece::ToolCall { index, name },
                Piece::ToolArguments { index, text },
            ]
        };
        let json =
            |city: &str| format!("{{\"name\": \"w\", \"arguments\": {{\"c\": \"{city}\"}}}}");
        let xml = |city: &str| format!("<function=w><parameter=c>{city}</parameter></function>");
        for (tools, one) in [
            (ToolFormat::Hermes, &json as &dyn Fn(&str) -> String),
            (ToolFormat::Xml, &xml),
        ] {
            let twice = format!(
                "<tool_call>\n{}\n<tool_call>\n{}\n</tool_call>",
                one("A"),
                one("B")
            );
            let both = [hermes(0, "A"), hermes(1, "B")].concat();
            assert_eq!(run(parts(Some(tools)), &[&twice]), both);
            let text = format!("<tool_call>\n{}\n<b>Done.", one("A"));
            let [name, arguments] = hermes(0, "A");
            assert_eq!(
                run(parts(Some(tools)), &[&text]),
                [name, arguments, content("<b>Done.")]
            );
            let cut = format!("<tool_call>\n{}\n</tool_", one("A"));
            assert_eq!(run(parts(Some(tools)), &[&cut]), hermes(0, "A"));
            let cut = format!("<tool_call>\n{}\n<tool_", one("A"));
            let [name, arguments] = hermes(0, "A");
            assert_eq!(
                run(parts(Some(tools)), &[&cut]),
                [name, arguments, content("<tool_")]
            );
        }
        let together = format!("<tool_call>\n{}\n{}</tool_call>", xml("A"), xml("B"));
        let both = [hermes(0, "A"), hermes(1, "B")].concat();
        assert_eq!(run(parts(Some(ToolFormat::Xml)), &[&together]), both);
        let no_call = format!("<tool_call>\n{}\n<function=\n", xml("A"));
        let [name, arguments] = hermes(0, "A");
        let rest = content("<function=\n");
        assert_eq!(
            run(parts(Some(ToolFormat::Xml)), &[&no_call]),
            [name, arguments, rest]
        );
    }

    #[test]
    fn arguments_stream_as_they_come() {
        let mut segments = Segments::new(parts(Some(ToolFormat::Hermes)));
        assert!(
            segments
                .push("<tool_call>{\"name\":\"f\",\"argum")
                .is_empty()
        );
        let [name, _] = call("f", "");
        let [_, arguments] = call("f", "{\"ci");
        assert_eq!(segments.push("ents\":{\"ci"), [name, arguments]);
        let [_, arguments] = call("f", "ty\":\"Pa");
        assert_eq!(segments.push("ty\":\"Pa"), [arguments]);
        assert_eq!(segments.complete_calls, 0);
        let [_, arguments] = call("f", "ris\"}");
        assert_eq!(segments.push("ris\"}}</tool_call>"), [arguments]);
        assert_eq!(segments.complete_calls, 1);
    }

    proptest! {
        // E03: the pieces do not depend on the split.
        #[test]
        fn any_split_gives_the_pieces_of_the_whole(
            text in prop_oneof![
                Just(CALL.to_owned()),
                Just(XML.to_owned()),
                "(<think>)?[a<]{0,3}(<tool_call>)?\n?<function=f>\n?(<parameter=a>[\na<é/]{0,6}</parameter>){0,2}[a\n]{0,2}(</function>)?(</tool_call>)?[a<]{0,3}",
                "<tool_call>((<tool_call>)?\n?(\\{\"name\":\"f\",\"arguments\":\\{\\}\\}|<function=f></function>)(</tool_|</tool_call>|[a<\n])?){1,3}",
                "[a<{\"]{0,5}(<think>)?[a<>]{0,6}(</think>)?[ a]{0,4}(<tool_call>)?\\{\"name\":\"f\",\"arguments\":\\{[a\"]{0,3}\\}\\}(</tool_call>)?[a<]{0,3}",
            ],
            cuts in prop::collection::vec(0usize..150, 0..8),
            tools in prop_oneof![Just(None), Just(Some(ToolFormat::Hermes)), Just(Some(ToolFormat::Llama)), Just(Some(ToolFormat::Xml))],
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(run(parts(tools), &pieces), run(parts(tools), &[&text]));
        }
    }
}
