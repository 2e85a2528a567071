//! YAML text to a tree in which every value and every key knows its line and column. Scalars have the types of the
//! YAML 1.2 core schema. What a configuration has no need of (anchors, tags, several documents) is refused, and size,
//! depth and number of values are bounded, so that no text can take the gateway's time or memory.

use indexmap::IndexMap;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::Number;

use super::Source;
use super::problem::{At, Problem, Step, shown};
use crate::ease;

/// Longest document in bytes. A routing document of 10,000 routes takes about 3 MiB.
pub(crate) const MAX_BYTES: usize = 16 << 20;
/// Deepest nesting of lists and mappings.
const MAX_DEPTH: usize = 64;
/// Most values in a document.
const MAX_NODES: usize = 1_000_000;

/// A place in the text; both are counted from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// A value and where it begins.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) mark: Mark,
    pub(crate) kind: Kind,
}

/// What a value is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Nothing was written, or `null`.
    Null,
    Bool(bool),
    /// A number and how it was written.
    Number(Number, String),
    Text(String),
    List(Vec<Node>),
    Map(Entries),
    /// Something that was refused already.
    Refused,
}

/// The entries of a mapping, in the order in which they are written.
pub(crate) type Entries = IndexMap<String, Entry, foldhash::fast::RandomState>;

/// The value of a key and where the key is.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Mark,
    pub(crate) node: Node,
}

impl Entry {
    /// Where to point at for this entry: at the value if it fits on the line, else at the key.
    pub(crate) fn mark(&self) -> Mark {
        match self.node.kind {
            Kind::Null | Kind::Map(_) | Kind::List(_) => self.key,
            _ => self.node.mark,
        }
    }
}

impl Node {
    /// Frees it, with a breath after each item of a list.
    pub(crate) fn discard(self) {
        match self.kind {
            Kind::List(items) => items.into_iter().for_each(|item| {
                drop(item);
                ease::breathe();
            }),
            Kind::Map(entries) => entries.into_values().for_each(|entry| entry.node.discard()),
            _ => {}
        }
    }

    /// Where a path leads to, or as much of it as there is.
    pub(crate) fn locate(&self, at: &At<'_>) -> Mark {
        self.descend(at).1
    }

    fn descend(&self, at: &At<'_>) -> (Option<&Node>, Mark) {
        let Some(parent) = at.parent else { return (Some(self), self.mark) };
        let (node, mark) = self.descend(parent);
        match (node.map(|node| &node.kind), at.step) {
            (Some(Kind::Map(map)), Step::Key(key)) => match find(map, key) {
                Some(entry) => (Some(&entry.node), entry.mark()),
                None => (None, mark),
            },
            (Some(Kind::List(list)), Step::Index(index)) => match list.get(index) {
                Some(node) => (Some(node), node.mark),
                None => (None, mark),
            },
            _ => (None, mark),
        }
    }
}

/// The entry of a key; names of headers may be written in another case than they are known by.
fn find<'a>(map: &'a Entries, key: &str) -> Option<&'a Entry> {
    let other_case = || map.iter().find(|(written, _)| written.eq_ignore_ascii_case(key)).map(|(_, entry)| entry);
    map.get(key).or_else(other_case)
}

/// Parses a document.
///
/// # Errors
/// Everything that is wrong with the text as YAML: up to the first syntax error, and all that is refused until then.
pub(crate) fn parse(source: &Source) -> Result<Node, Vec<Problem>> {
    let mut builder = Builder { file: &source.name, problems: Vec::new(), open: Vec::new(), done: None, nodes: 0 };
    if source.text.len() > MAX_BYTES {
        let message = format!("the document has {} bytes: at most {MAX_BYTES} are read", source.text.len());
        builder.problem(Mark { line: 1, column: 1 }, message);
        return Err(builder.problems);
    }
    builder.run(source.text.strip_prefix('\u{feff}').unwrap_or(&source.text));
    match builder.done {
        Some(node) if builder.problems.is_empty() => Ok(node),
        _ => Err(builder.problems),
    }
}

/// A list or mapping whose end was not seen yet.
enum Open {
    List { mark: Mark, items: Vec<Node> },
    Map { mark: Mark, entries: Entries, key: Option<(Option<String>, Mark)> },
}

struct Builder<'a> {
    file: &'a str,
    problems: Vec<Problem>,
    open: Vec<Open>,
    done: Option<Node>,
    nodes: usize,
}

impl Builder<'_> {
    fn run(&mut self, text: &str) {
        let mut documents = 0;
        for event in Parser::new_from_str(text) {
            let (event, span) = match event {
                Ok(event) => event,
                Err(error) => return self.syntax(&error),
            };
            if matches!(event, Event::DocumentStart(_)) {
                documents += 1;
            }
            if documents > 1 {
                return self.problem(mark_of(span), "a second document begins here: a file holds one");
            }
            if !self.take(event, mark_of(span)) {
                return;
            }
            ease::breathe();
        }
        if self.done.is_none() {
            self.problem(Mark { line: 1, column: 1 }, "the document is empty");
        }
    }

    /// Takes one event; false if the rest is not worth reading.
    fn take(&mut self, event: Event<'_>, mark: Mark) -> bool {
        self.nodes += 1;
        if self.nodes > MAX_NODES || self.open.len() > MAX_DEPTH {
            let what = if self.nodes > MAX_NODES { "more values" } else { "deeper nesting" };
            let bound = if self.nodes > MAX_NODES { MAX_NODES } else { MAX_DEPTH };
            self.problem(mark, format!("{what} than a document may have ({bound})"));
            return false;
        }
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_extras(anchor, tag.is_some(), mark);
                let kind = self.scalar(&text, style, mark);
                self.add(Node { mark, kind });
            }
            Event::Alias(_) => {
                self.problem(mark, "aliases (`*name`) are not supported: write the value out, or quote it");
                self.add(Node { mark, kind: Kind::Refused });
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_extras(anchor, tag.is_some(), mark);
                self.open.push(Open::List { mark, items: Vec::new() });
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_extras(anchor, tag.is_some(), mark);
                self.open.push(Open::Map { mark, entries: Entries::default(), key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { mark, items }) => self.add(Node { mark, kind: Kind::List(items) }),
                Some(Open::Map { mark, entries, .. }) => self.add(Node { mark, kind: Kind::Map(entries) }),
                None => {}
            },
            _ => {}
        }
        true
    }

    fn add(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.done = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { key: key @ None, .. }) => {
                let mark = node.mark;
                let name = text_of_key(node);
                let refused = name.is_none();
                *key = Some((name, mark));
                if refused {
                    self.problem(mark, "a key must be plain text");
                }
            }
            Some(Open::Map { key, .. }) => {
                if let Some((Some(name), mark)) = key.take() {
                    self.insert(name, Entry { key: mark, node });
                }
            }
        }
    }

    fn insert(&mut self, name: String, entry: Entry) {
        let Some(Open::Map { entries, .. }) = self.open.last_mut() else { return };
        match entries.get(&name).map(|first| first.key.line) {
            None => drop(entries.insert(name, entry)),
            Some(line) => {
                let message = format!("the key `{}` is here a second time: the first is on line {line}", shown(&name));
                let path = self.path_of(Some(&name));
                self.problem_at(entry.key, path, message);
            }
        }
    }

    fn refuse_extras(&mut self, anchor: usize, tag: bool, mark: Mark) {
        if anchor != 0 {
            self.problem(mark, "anchors (`&name`) are not supported: write the value out, or quote it");
        }
        if tag {
            self.problem(mark, "tags (`!name`) are not supported: quote a value that begins with `!`");
        }
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, mark: Mark) -> Kind {
        let kind = if style == ScalarStyle::Plain { plain(text) } else { Kind::Text(text.to_owned()) };
        if matches!(kind, Kind::Refused) {
            self.problem(mark, format!("`{}` is not a number that can be used", shown(text)));
        }
        kind
    }

    fn syntax(&mut self, error: &ScanError) {
        let mark = Mark { line: error.marker().line(), column: error.marker().col() + 1 };
        let hint = HINTS.iter().find(|(part, _)| error.info().contains(part)).map(|(_, hint)| *hint);
        let message = match hint {
            Some(hint) => format!("not valid YAML: {hint}"),
            None => format!("not valid YAML: {}", error.info()),
        };
        self.problem(mark, message);
    }

    fn problem(&mut self, mark: Mark, message: impl Into<String>) {
        let path = self.path_of(None);
        self.problem_at(mark, path, message.into());
    }

    fn problem_at(&mut self, mark: Mark, path: String, message: String) {
        self.problems.push(Problem {
            file: self.file.to_owned(),
            line: mark.line,
            column: mark.column,
            path,
            message,
            suggestion: None,
        });
    }

    /// Path of the value that is being read, or of a key next to it.
    fn path_of(&self, key: Option<&str>) -> String {
        fn go(at: &At<'_>, open: &[Open], last: Option<&str>) -> String {
            match open.split_first() {
                Some((Open::List { items, .. }, rest)) => go(&at.index(items.len()), rest, last),
                Some((Open::Map { key: Some((Some(key), _)), .. }, rest)) => go(&at.key(key), rest, last),
                _ => last.map_or_else(|| at.to_string(), |key| at.key(key).to_string()),
            }
        }
        go(&At::ROOT, &self.open, key)
    }
}

/// What the parser says, and what an operator can do about it.
const HINTS: [(&str, &str); 10] = [
    (
        "mapping values are not allowed",
        "a second `: ` on the line, or a wrong indentation; quote a value that contains `: `",
    ),
    ("unknown anchor", "a value that begins with `*` must be quoted"),
    ("tabs disallowed", "indentation is made of spaces, not of tabs"),
    ("parsing a flow sequence", "expected `,` or `]`: a `[` is not closed"),
    ("parsing a flow mapping", "expected `,` or `}`: a `{` is not closed"),
    ("unexpected end of stream", "the quote that begins here is not closed"),
    ("did not find expected '-' indicator", "expected the next `- ` of the list, or less indentation"),
    ("did not find expected key", "wrong indentation: this line fits none of the mappings above it"),
    ("recursion limit", "deeper nesting of brackets than a document may have"),
    ("unexpected character", "a value cannot begin with this character unless it is quoted"),
];

fn mark_of(span: Span) -> Mark {
    Mark { line: span.start.line(), column: span.start.col() + 1 }
}

/// A key is whatever is written, whether or not it looks like a number.
fn text_of_key(node: Node) -> Option<String> {
    match node.kind {
        Kind::Text(text) | Kind::Number(_, text) => Some(text),
        Kind::Bool(value) => Some(value.to_string()),
        Kind::Null => Some("null".to_owned()),
        Kind::List(_) | Kind::Map(_) | Kind::Refused => None,
    }
}

/// The type of an unquoted scalar (YAML 1.2.2, section 10.3.2).
fn plain(text: &str) -> Kind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Kind::Null,
        "true" | "True" | "TRUE" => return Kind::Bool(true),
        "false" | "False" | "FALSE" => return Kind::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Kind::Refused,
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Kind::Refused;
    }
    match number(text, unsigned) {
        None => Kind::Text(text.to_owned()),
        Some(Some(number)) => Kind::Number(number, text.to_owned()),
        Some(None) => Kind::Refused,
    }
}

/// `None` if the text is no number, `Some(None)` if it is one that is out of range.
fn number(text: &str, unsigned: &str) -> Option<Option<Number>> {
    let radix = |digits: &str, radix| {
        let valid = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
        valid.then(|| u64::from_str_radix(digits, radix).ok().map(Number::from))
    };
    if let Some(octal) = text.strip_prefix("0o") {
        return radix(octal, 8);
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return radix(hex, 16);
    }
    if !is_decimal(unsigned) {
        return None;
    }
    let bare = text.strip_prefix('+').unwrap_or(text);
    let whole = bare.parse::<u64>().ok().map(Number::from).or_else(|| bare.parse::<i64>().ok().map(Number::from));
    Some(whole.or_else(|| bare.parse::<f64>().ok().and_then(Number::from_f64)))
}

/// `( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_decimal(text: &str) -> bool {
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent))),
        None => (text, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let some_digits = !(whole.is_empty() && fraction.is_empty());
    some_digits && digits(whole) && digits(fraction) && exponent.is_none_or(|e| !e.is_empty() && digits(e))
}
