//! Compares a document with the JSON schema of its types and collects everything that is wrong, with what was probably
//! meant. What passes is handed on as JSON, which serde then takes as it is.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

use super::problem::{At, Problem, listed, nearest, shown};
use super::shape::{Id, Keys, Others, Shape, Shapes, Text};
use super::tree::{Entries, Entry, Kind, Mark, Node};
use crate::ease;

/// The JSON schema of a type, as it is read (not as it is written).
pub(crate) fn generate<T: JsonSchema>() -> Value {
    let mut schema = SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<T>();
    RecursiveTransform(without_null).transform(&mut schema);
    schema.to_value()
}

/// What may be left out may not be left blank: a blank is more often a mistake than a wish for the default.
fn without_null(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    if object.get("default") == Some(&Value::Null) {
        object.remove("default");
    }
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(parts)) = object.get_mut("anyOf") {
        parts.retain(|part| part.get("type").is_none_or(|name| name != "null"));
        if let [Value::Object(only)] = &parts[..] {
            let only = only.clone();
            object.remove("anyOf");
            only.into_iter().for_each(|(key, value)| {
                object.entry(key).or_insert(value);
            });
        }
    }
}

/// What came of comparing a document with its schema.
pub(crate) struct Walked {
    /// Everything that is wrong.
    pub(crate) problems: Vec<Problem>,
    /// The document without what is wrong, if enough is left of it to go on looking for mistakes. Misspelt keys have
    /// the names that were probably meant.
    pub(crate) value: Option<Value>,
}

/// Compares a document with its schema.
pub(crate) fn walk(file: &str, shapes: &Shapes, root: &Node) -> Walked {
    let mut walker = Walker { file, shapes, problems: Vec::new(), sound: true };
    let value = walker.value(shapes.root, root, root.mark, &At::ROOT);
    Walked { value: value.filter(|_| walker.sound), problems: walker.problems }
}

struct Walker<'a> {
    file: &'a str,
    shapes: &'a Shapes,
    problems: Vec<Problem>,
    /// Whether what was found wrong so far can be left out without making something else look wrong.
    sound: bool,
}

impl Walker<'_> {
    fn problem(&mut self, mark: Mark, at: &At<'_>, message: String, suggestion: Option<String>) {
        self.problems.push(Problem {
            file: self.file.to_owned(),
            line: mark.line,
            column: mark.column,
            path: at.to_string(),
            message,
            suggestion,
        });
    }

    /// `mark` is where to point at for the value as a whole.
    fn value(&mut self, id: Id, node: &Node, mark: Mark, at: &At<'_>) -> Option<Value> {
        ease::breathe();
        let shape = self.shapes.shape(id);
        if shape.any {
            return self.anything(node, at);
        }
        match &node.kind {
            Kind::List(items) if shape.list.is_some() => return self.list(shape, items, mark, at),
            Kind::Map(map) => {
                if let Some(keys) = &shape.map {
                    return self.map(shape, keys, map, mark, at);
                }
            }
            Kind::Refused => self.sound = false,
            _ => {}
        }
        let value = scalar(&node.kind).filter(|value| allows(shape, value));
        if value.is_none() && !matches!(node.kind, Kind::Refused) {
            self.mismatch(shape, node, mark, at);
        }
        value
    }

    fn mismatch(&mut self, shape: &Shape, node: &Node, mark: Mark, at: &At<'_>) {
        let written_as_scalar = !matches!(node.kind, Kind::List(_) | Kind::Map(_));
        self.sound &= shape.is_scalar() || written_as_scalar && shape.allows_scalars();
        let expected = shape.describe();
        let suggestion = self.suggest(shape, &node.kind);
        let message = match &node.kind {
            Kind::Null => format!("is blank: expected {expected}"),
            Kind::Map(_) if shape.list.is_some() => {
                format!("expected {expected}, got a mapping: put `- ` before each item")
            }
            kind => {
                let text = if let Kind::Text(text) = kind { Some(text) } else { None };
                let reason = shape.text.as_ref().zip(text).and_then(|(allowed, text)| allowed.reason(text));
                let quotes = if text.is_some() && text == suggestion.as_ref() { " in quotes" } else { "" };
                reason.unwrap_or_else(|| format!("expected {expected}, got {}{quotes}", describe(kind)))
            }
        };
        self.problem(mark, at, message, suggestion);
    }

    /// What was probably meant by a value that is not allowed.
    fn suggest(&self, shape: &Shape, kind: &Kind) -> Option<String> {
        let written = match kind {
            Kind::Text(text) | Kind::Number(_, text) => text.clone(),
            Kind::Bool(value) => value.to_string(),
            _ => return None,
        };
        if let Some(meant) = shape.text.as_ref().and_then(|text| suggest_text(text, kind, &written)) {
            return Some(meant);
        }
        if let (true, Kind::Text(text)) = (shape.boolean, kind) {
            return match &*text.to_ascii_lowercase() {
                "yes" | "on" | "y" | "true" => Some("true".to_owned()),
                "no" | "off" | "n" | "false" => Some("false".to_owned()),
                _ => None,
            };
        }
        if shape.integer.as_ref().is_some_and(|integer| written.parse().is_ok_and(|number| integer.allows(number))) {
            return Some(written);
        }
        let fits = |id: Id| scalar(kind).is_some_and(|value| allows(self.shapes.shape(id), &value));
        if let Some((key, _)) = shape.map.as_ref().and_then(Keys::only).filter(|(_, id)| fits(*id)) {
            return Some(format!("{{ {key}: {written} }}"));
        }
        fits(shape.list.as_ref()?.items).then(|| format!("[{written}]"))
    }

    fn list(&mut self, shape: &Shape, items: &[Node], mark: Mark, at: &At<'_>) -> Option<Value> {
        let list = shape.list.as_ref()?;
        if items.len() < list.min {
            self.problem(mark, at, "is empty: expected at least one item".to_owned(), None);
        }
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match self.value(list.items, item, item.mark, &at.index(index)) {
                Some(value) => values.push(value),
                None => self.sound = false,
            }
        }
        Some(Value::Array(values))
    }

    fn map(&mut self, shape: &Shape, keys: &Keys, map: &Entries, mark: Mark, at: &At<'_>) -> Option<Value> {
        let mut values = Map::new();
        let mut seen = Vec::new();
        for (written, entry) in map {
            let at = at.key(written);
            let (name, id) = if let Some((name, &id)) = keys.known.get_key_value(written) {
                (name.as_str(), id)
            } else if let Some(others) = &keys.others {
                self.check_key(others, map, written, entry, &at);
                (written.as_str(), others.value)
            } else {
                match self.unknown(shape, keys, map, written, entry, &at) {
                    Some(meant) => meant,
                    None => continue,
                }
            };
            seen.push(name);
            match self.value(id, &entry.node, entry.mark(), &at) {
                Some(value) => {
                    values.insert(name.to_owned(), value);
                }
                None => self.sound &= keys.known.contains_key(name) && !keys.required.iter().any(|key| key == name),
            }
        }
        self.count(keys, map.len(), &seen, mark, at);
        Some(Value::Object(values))
    }

    fn check_key(&mut self, others: &Others, map: &Entries, written: &str, entry: &Entry, at: &At<'_>) {
        let Some(known) = &others.key else { return };
        let earlier = map.iter().take_while(|(key, _)| *key != written);
        let same = |(key, _): &(&String, &Entry)| known.ignores_case && key.eq_ignore_ascii_case(written);
        let message = if (known.check)(written).is_err() {
            format!("the key `{}` is not {}", shown(written), known.expected)
        } else if let Some((first, _)) = earlier.clone().find(same) {
            format!("the key `{}` is here a second time: it is the same as `{}`", shown(written), shown(first))
        } else {
            return;
        };
        self.problem(entry.key, at, message, None);
        self.sound = false;
    }

    /// Reports an unknown key and gives the one that was probably meant, under which its value is then checked.
    fn unknown<'k>(
        &mut self,
        shape: &Shape,
        keys: &'k Keys,
        map: &Entries,
        written: &str,
        entry: &Entry,
        at: &At<'_>,
    ) -> Option<(&'k str, Id)> {
        let is_word = shape.text.as_ref().is_some_and(|text| text.words().any(|word| word == written));
        if is_word {
            let message = format!("`{written}` has no settings: write the word alone, not as a key");
            self.problem(entry.key, at, message, None);
            self.sound = false;
            return None;
        }
        let meant = nearest(written, keys.names().filter(|name| !map.contains_key(*name)));
        let expected = match keys.known.len() {
            0 => "none is expected here".to_owned(),
            1 => format!("expected {}", listed(keys.names())),
            _ => format!("expected one of {}", listed(keys.names())),
        };
        let message = format!("unknown key `{}`, {expected}", shown(written));
        self.problem(entry.key, at, message, meant.map(str::to_owned));
        meant.and_then(|name| keys.known.get(name).map(|&id| (name, id)))
    }

    /// Whether the keys that must be there are, and how many there are.
    fn count(&mut self, keys: &Keys, len: usize, seen: &[&str], mark: Mark, at: &At<'_>) {
        let before = self.problems.len();
        for name in keys.required.iter().filter(|name| !seen.contains(&name.as_str())) {
            self.problem(mark, at, format!("the key `{name}` is missing"), None);
        }
        let chosen: Vec<_> = keys.one_of.iter().filter(|name| seen.contains(&name.as_str())).collect();
        let all_known = len == seen.len();
        self.sound &= all_known || keys.one_of.is_empty();
        if !keys.one_of.is_empty() && (chosen.len() > 1 || chosen.is_empty() && all_known) {
            let found = if chosen.is_empty() { "none of them".to_owned() } else { listed(&chosen) };
            let message = format!("expected exactly one of {}, got {found}", listed(&keys.one_of));
            self.problem(mark, at, message, None);
        }
        if keys.single && len != 1 {
            self.problem(mark, at, format!("expected exactly one key, got {len}"), None);
        }
        self.sound &= self.problems.len() == before;
        if len < keys.min && !keys.single {
            self.problem(mark, at, "is empty: expected at least one key".to_owned(), None);
        }
    }

    /// Takes a value of which nothing is known.
    fn anything(&mut self, node: &Node, at: &At<'_>) -> Option<Value> {
        Some(match &node.kind {
            Kind::List(items) => {
                let values = items.iter().enumerate().map(|(index, item)| self.anything(item, &at.index(index)));
                Value::Array(values.collect::<Option<_>>()?)
            }
            Kind::Map(map) => {
                let values = map
                    .iter()
                    .map(|(key, entry)| self.anything(&entry.node, &at.key(key)).map(|value| (key.clone(), value)));
                Value::Object(values.collect::<Option<_>>()?)
            }
            Kind::Null => Value::Null,
            kind => scalar(kind)?,
        })
    }
}

/// The text that was probably meant by what is not allowed.
fn suggest_text(text: &Text, kind: &Kind, written: &str) -> Option<String> {
    if matches!(kind, Kind::Bool(false)) && text.words().any(|word| word == "none") {
        return Some("none".to_owned());
    }
    if matches!(kind, Kind::Bool(_) | Kind::Number(..)) && text.allows(written) {
        return Some(format!("\"{written}\""));
    }
    let likely = [
        format!("{written}{}", text.unit()),
        written.trim().to_owned(),
        written.to_uppercase(),
        written.replace("localhost", "127.0.0.1"),
    ];
    let meant = likely.into_iter().find(|likely| likely != written && text.allows(likely));
    meant.or_else(|| nearest(written, text.words()).map(str::to_owned))
}

fn scalar(kind: &Kind) -> Option<Value> {
    match kind {
        Kind::Bool(value) => Some(Value::Bool(*value)),
        Kind::Number(number, _) => Some(Value::Number(number.clone())),
        Kind::Text(text) => Some(Value::String(text.clone())),
        Kind::Null | Kind::List(_) | Kind::Map(_) | Kind::Refused => None,
    }
}

fn allows(shape: &Shape, value: &Value) -> bool {
    match value {
        Value::Bool(_) => shape.boolean,
        Value::Number(number) => {
            let whole = number.as_i128().zip(shape.integer.as_ref());
            let decimal = number.as_f64().zip(shape.decimal.as_ref());
            whole.is_some_and(|(number, integer)| integer.allows(number))
                || decimal.is_some_and(|(number, decimal)| decimal.allows(number))
        }
        Value::String(text) => shape.text.as_ref().is_some_and(|allowed| allowed.allows(text)),
        _ => false,
    }
}

fn describe(kind: &Kind) -> String {
    match kind {
        Kind::Null | Kind::Refused => "nothing".to_owned(),
        Kind::Bool(value) => format!("`{value}`"),
        Kind::Number(_, written) => format!("the number `{}`", shown(written)),
        Kind::Text(text) if text.is_empty() => "an empty text".to_owned(),
        Kind::Text(text) => format!("the text `{}`", shown(text)),
        Kind::List(_) => "a list".to_owned(),
        Kind::Map(_) => "a mapping".to_owned(),
    }
}
