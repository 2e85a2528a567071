//! A JSON schema in the form that documents are checked against: per kind of value, what is allowed. Alternatives
//! (`oneOf`, `anyOf`) are merged by kind, so that a value is only ever compared with what it may have meant.

use std::collections::HashMap;

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::problem::listed;
use super::scalar::{Known, by_pattern};

/// Position of a shape in its [`Shapes`].
pub(crate) type Id = usize;

/// The shapes of one kind of document.
pub(crate) struct Shapes {
    shapes: Vec<Shape>,
    /// The shape of the whole document.
    pub(crate) root: Id,
}

/// What a value may be.
#[derive(Default)]
pub(crate) struct Shape {
    /// Anything goes.
    pub(crate) any: bool,
    pub(crate) boolean: bool,
    pub(crate) integer: Option<Integer>,
    pub(crate) decimal: Option<Decimal>,
    pub(crate) text: Option<Text>,
    pub(crate) list: Option<List>,
    pub(crate) map: Option<Keys>,
    /// What to say was expected, if the schema has words for it.
    expected: Option<String>,
}

/// Whole numbers in a range, and of certain values if any are named.
pub(crate) struct Integer {
    min: i128,
    max: i128,
    values: Vec<i128>,
}

/// Numbers in a range, with decimals or without.
pub(crate) struct Decimal {
    min: f64,
    max: f64,
}

/// Text: one of some words, or anything that is open.
#[derive(Default)]
pub(crate) struct Text {
    words: Vec<String>,
    open: Option<Open>,
}

/// Text of a scalar, or any text of a shortest length in characters.
enum Open {
    Scalar(Known),
    Any { min: usize },
}

/// A list.
pub(crate) struct List {
    pub(crate) items: Id,
    pub(crate) min: usize,
}

/// A mapping.
#[derive(Default)]
pub(crate) struct Keys {
    pub(crate) known: IndexMap<String, Id>,
    pub(crate) required: Vec<String>,
    /// Keys of which exactly one must be there.
    pub(crate) one_of: Vec<String>,
    /// For the keys that are not known by name; none are allowed without it.
    pub(crate) others: Option<Others>,
    /// Exactly one entry, whatever its key.
    pub(crate) single: bool,
    pub(crate) min: usize,
}

/// What the entries of a mapping are whose keys the operator chooses.
pub(crate) struct Others {
    pub(crate) key: Option<Known>,
    pub(crate) value: Id,
}

impl Integer {
    pub(crate) fn allows(&self, number: i128) -> bool {
        (self.min..=self.max).contains(&number) && (self.values.is_empty() || self.values.contains(&number))
    }

    fn describe(&self) -> String {
        match (self.values.is_empty(), self.max) {
            (false, _) => format!("one of {}", listed(self.values.iter().map(i128::to_string))),
            (true, max) if max >= i128::from(u64::MAX) => format!("a whole number, {} or more", self.min),
            (true, max) => format!("a whole number from {} to {max}", self.min),
        }
    }
}

impl Decimal {
    pub(crate) fn allows(&self, number: f64) -> bool {
        (self.min..=self.max).contains(&number)
    }

    fn describe(&self) -> String {
        format!("a number from {} to {}", self.min, self.max)
    }
}

impl Text {
    pub(crate) fn allows(&self, text: &str) -> bool {
        self.words.iter().any(|word| word == text) || self.open.as_ref().is_some_and(|open| open.allows(text))
    }

    /// The words that are allowed.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        let known = if let Some(Open::Scalar(known)) = &self.open { known.words } else { &[] };
        self.words.iter().map(String::as_str).chain(known.iter().copied())
    }

    /// Unit that a bare number may lack here.
    pub(crate) fn unit(&self) -> &str {
        if let Some(Open::Scalar(known)) = &self.open { known.unit } else { "" }
    }

    /// Why a text is refused, if there is more to say than what was expected.
    pub(crate) fn reason(&self, text: &str) -> Option<String> {
        let Some(Open::Scalar(known)) = &self.open else { return None };
        (known.check)(text).err().filter(|reason| !reason.starts_with("expected"))
    }

    fn describe(&self) -> Vec<String> {
        let open = self.open.as_ref().map(|open| match open {
            Open::Scalar(known) => known.expected.to_owned(),
            Open::Any { min: 0 } => "text".to_owned(),
            Open::Any { .. } => "text that is not blank".to_owned(),
        });
        let words = match &self.words[..] {
            [] => None,
            [word] => Some(format!("`{word}`")),
            words => Some(format!("one of {}", listed(words))),
        };
        words.into_iter().chain(open).collect()
    }
}

impl Open {
    fn allows(&self, text: &str) -> bool {
        match self {
            Self::Scalar(known) => (known.check)(text).is_ok(),
            Self::Any { min } => text.chars().count() >= *min,
        }
    }
}

impl Keys {
    /// The names that a key may have, required ones first as written in the schema.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    /// The key of a mapping that has no other.
    pub(crate) fn only(&self) -> Option<(&str, Id)> {
        let (key, &id) = self.known.first().filter(|_| self.known.len() == 1 && self.others.is_none())?;
        Some((key, id))
    }

    fn describe(&self) -> String {
        match self.known.len() {
            0 => "a mapping".to_owned(),
            1 => format!("a mapping with the key {}", listed(self.names())),
            all if all == self.one_of.len() => format!("a mapping with one of {}", listed(self.names())),
            _ => format!("a mapping with keys such as {}", listed(self.names().take(3))),
        }
    }
}

impl Shape {
    /// What is allowed, in words.
    pub(crate) fn describe(&self) -> String {
        if let Some(expected) = &self.expected {
            return expected.clone();
        }
        let mut parts = self.text.as_ref().map(Text::describe).unwrap_or_default();
        parts.extend(self.boolean.then(|| "`true` or `false`".to_owned()));
        parts.extend(self.integer.as_ref().map(Integer::describe));
        parts.extend(self.decimal.as_ref().map(Decimal::describe));
        parts.extend(self.list.as_ref().map(|_| "a list".to_owned()));
        parts.extend(self.map.as_ref().map(Keys::describe));
        if parts.is_empty() { "a value".to_owned() } else { parts.join(" or ") }
    }

    /// Whether single values are allowed, among others.
    pub(crate) fn allows_scalars(&self) -> bool {
        self.boolean || self.integer.is_some() || self.decimal.is_some() || self.text.is_some()
    }

    /// Whether only single values are allowed, no lists and mappings.
    pub(crate) fn is_scalar(&self) -> bool {
        self.list.is_none() && self.map.is_none()
    }
}

impl Shapes {
    pub(crate) fn shape(&self, id: Id) -> &Shape {
        &self.shapes[id]
    }

    /// Compiles a schema.
    ///
    /// # Errors
    /// If the schema uses something that is not understood here: a mistake in the types, which a test finds.
    pub(crate) fn compile(schema: &Value) -> Result<Self, String> {
        let mut compiler = Compiler { schema, shapes: Vec::new(), references: HashMap::new() };
        let root = compiler.id(schema)?;
        Ok(Self { shapes: compiler.shapes, root })
    }
}

struct Compiler<'a> {
    schema: &'a Value,
    shapes: Vec<Shape>,
    references: HashMap<String, Id>,
}

impl Compiler<'_> {
    fn id(&mut self, schema: &Value) -> Result<Id, String> {
        let reference = schema.get("$ref").and_then(Value::as_str);
        if let Some(&id) = reference.and_then(|reference| self.references.get(reference)) {
            return Ok(id);
        }
        let id = self.shapes.len();
        self.shapes.push(Shape::default());
        if let Some(reference) = reference {
            self.references.insert(reference.to_owned(), id);
        }
        let mut shape = Shape::default();
        self.merge(&mut shape, schema)?;
        self.shapes[id] = shape;
        Ok(id)
    }

    fn merge(&mut self, shape: &mut Shape, schema: &Value) -> Result<(), String> {
        let object = match schema {
            Value::Bool(true) => {
                shape.any = true;
                return Ok(());
            }
            Value::Object(object) => object,
            other => return Err(format!("no schema: {other}")),
        };
        if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
            let target = self.schema.pointer(reference.trim_start_matches('#'));
            let target = target.ok_or_else(|| format!("`{reference}` leads nowhere"))?;
            self.merge(shape, target)?;
        }
        self.merge_kind(shape, object)?;
        for part in object.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
            self.merge(shape, part)?;
        }
        for part in object.get("oneOf").and_then(Value::as_array).into_iter().flatten() {
            self.merge_variant(shape, part)?;
        }
        if let Some(expected) = object.get("x-expected") {
            shape.expected = expected.as_str().map(str::to_owned);
        }
        Ok(())
    }

    fn merge_kind(&mut self, shape: &mut Shape, object: &Map<String, Value>) -> Result<(), String> {
        match object.get("type").and_then(Value::as_str) {
            Some("boolean") => shape.boolean = true,
            Some("integer") => shape.integer = Some(integer(object)),
            Some("number") => shape.decimal = Some(decimal(object)),
            Some("string") => merge_text(shape.text.get_or_insert_default(), object)?,
            Some("array") => {
                let items = self.id(object.get("items").unwrap_or(&Value::Bool(true)))?;
                shape.list = Some(List { items, min: size(object, "minItems") });
            }
            Some("object") => self.merge_keys(shape, object)?,
            Some(other) => return Err(format!("the type `{other}` is not understood")),
            None if object.contains_key("type") => return Err("several types at once are not understood".to_owned()),
            None if object.contains_key("const") => {
                shape.boolean |= object["const"].is_boolean();
            }
            None => {}
        }
        Ok(())
    }

    /// Merges one of the variants of an enum: a word, or a mapping whose one key is the variant's name.
    fn merge_variant(&mut self, shape: &mut Shape, variant: &Value) -> Result<(), String> {
        self.merge(shape, variant)?;
        if let (Some(keys), true) = (&mut shape.map, variant.get("properties").is_some()) {
            let name = keys.required.pop().ok_or("a variant without a name is not understood")?;
            keys.one_of.push(name);
        }
        Ok(())
    }

    fn merge_keys(&mut self, shape: &mut Shape, object: &Map<String, Value>) -> Result<(), String> {
        let properties = object.get("properties").and_then(Value::as_object);
        let mut keys = shape.map.take().unwrap_or_default();
        for (name, property) in properties.into_iter().flatten() {
            let id = self.id(property)?;
            keys.known.insert(name.clone(), id);
        }
        keys.required.extend(strings(object.get("required")));
        keys.single |= size(object, "maxProperties") == 1;
        keys.min = keys.min.max(size(object, "minProperties"));
        if let Some(others) = self.others(object)? {
            keys.others = Some(others);
        }
        shape.map = Some(keys);
        Ok(())
    }

    fn others(&mut self, object: &Map<String, Value>) -> Result<Option<Others>, String> {
        let by_pattern = object.get("patternProperties").and_then(Value::as_object).and_then(|map| map.iter().next());
        if let Some((pattern, value)) = by_pattern {
            return Ok(Some(Others { key: Some(scalar(pattern)?), value: self.id(value)? }));
        }
        match object.get("additionalProperties") {
            Some(Value::Bool(false)) | None => Ok(None),
            Some(value) => Ok(Some(Others { key: None, value: self.id(value)? })),
        }
    }
}

fn merge_text(text: &mut Text, object: &Map<String, Value>) -> Result<(), String> {
    let words =
        strings(object.get("enum")).into_iter().chain(object.get("const").and_then(Value::as_str).map(str::to_owned));
    let before = text.words.len();
    text.words.extend(words);
    if text.words.len() > before {
        return Ok(());
    }
    text.open = Some(match object.get("pattern").and_then(Value::as_str) {
        Some(pattern) => Open::Scalar(scalar(pattern)?),
        None => Open::Any { min: size(object, "minLength") },
    });
    Ok(())
}

fn scalar(pattern: &str) -> Result<Known, String> {
    by_pattern(pattern).ok_or_else(|| format!("no scalar has the pattern `{pattern}`"))
}

fn decimal(object: &Map<String, Value>) -> Decimal {
    let bound = |name: &str| object.get(name).and_then(Value::as_f64);
    Decimal { min: bound("minimum").unwrap_or(f64::MIN), max: bound("maximum").unwrap_or(f64::MAX) }
}

fn integer(object: &Map<String, Value>) -> Integer {
    let bound = |key: &str| object.get(key).and_then(Value::as_number).and_then(serde_json::Number::as_i128);
    let values = object.get("enum").and_then(Value::as_array).into_iter().flatten();
    Integer {
        min: bound("minimum").unwrap_or(i128::from(i64::MIN)),
        max: bound("maximum").unwrap_or(i128::from(u64::MAX)),
        values: values.filter_map(Value::as_number).filter_map(serde_json::Number::as_i128).collect(),
    }
}

fn size(object: &Map<String, Value>, key: &str) -> usize {
    object.get(key).and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok()).unwrap_or(0)
}

fn strings(list: Option<&Value>) -> Vec<String> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
