//! The page of a document, from its JSON schema: a table of keys per type, the types in the order in which they are met.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::cell;
use crate::conf::{self, Kind};

/// The page of one document.
pub(super) fn page(title: &str, about: &str, kind: Kind) -> String {
    let schema = conf::schema(kind);
    let mut book = Book { schema: &schema, met: Vec::new() };
    let mut page = format!(
        "# {title}\n\n{} {about}\nAn unknown key is an error. `serin schema {kind}` prints the JSON schema.\n\n",
        cell(schema["description"].as_str().unwrap())
    );
    book.tables(&schema, &mut page);
    let mut at = 0;
    while let Some(name) = book.met.get(at).cloned() {
        let definition = &schema["$defs"][&name];
        let _ = write!(page, "\n## {name}\n\n");
        if let Some(about) = definition["description"].as_str() {
            let _ = write!(page, "{}\n\n", about.trim());
        }
        book.tables(definition, &mut page);
        at += 1;
    }
    page
}

struct Book<'a> {
    schema: &'a Value,
    /// Types that have a section, in the order in which they were met.
    met: Vec<String>,
}

impl Book<'_> {
    /// The keys of a type, and of its forms if it has several.
    fn tables(&mut self, schema: &Value, page: &mut String) {
        let mut rows = String::new();
        self.rows(schema, &mut rows);
        for form in forms(schema) {
            self.rows(form, &mut rows);
        }
        if !rows.is_empty() {
            let _ = write!(page, "| key | value | default | meaning |\n|---|---|---|---|\n{rows}");
        }
        let words: Vec<_> = forms(schema).iter().filter_map(|form| word(form)).collect();
        page.extend(words);
    }

    fn rows(&mut self, schema: &Value, rows: &mut String) {
        for inner in forms(schema) {
            if inner.get("oneOf").is_some() {
                self.rows_of_forms(inner, rows);
            }
        }
        let none = Map::new();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (key, value) in schema["properties"].as_object().unwrap_or(&none) {
            let default = match value.get("default") {
                Some(default) => format!("`{}`", cell(&yaml(default))),
                None if required.contains(&Value::from(key.as_str())) => "needed".to_owned(),
                None => String::new(),
            };
            let about = value["description"].as_str().or(schema["description"].as_str()).unwrap_or_default();
            let kind = self.kind(value);
            let _ = writeln!(rows, "| `{key}` | {kind} | {default} | {} |", cell(about));
        }
    }

    fn rows_of_forms(&mut self, schema: &Value, rows: &mut String) {
        for form in forms(schema) {
            self.rows(form, rows);
        }
    }

    /// A type in words, with a link if it has a section of its own.
    fn kind(&mut self, schema: &Value) -> String {
        if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
            return self.named(name);
        }
        if let Some(expected) = schema["x-expected"].as_str() {
            return cell(expected);
        }
        if let Some(constant) = schema.get("const") {
            return format!("`{}`", yaml(constant));
        }
        if let Some(words) = schema["enum"].as_array() {
            return words.iter().map(|word| format!("`{}`", yaml(word))).collect::<Vec<_>>().join(", ");
        }
        let forms = forms(schema);
        if !forms.is_empty() {
            let mut kinds: Vec<_> = forms.iter().map(|form| self.kind(form)).collect();
            kinds.dedup();
            return kinds.join(" or ");
        }
        match schema["type"].as_str() {
            Some("array") => format!("list of: {}", self.kind(&schema["items"])),
            Some("object") => self.mapping(schema),
            Some("string") => "text".to_owned(),
            Some("integer") => "number".to_owned(),
            Some("boolean") => "`true`, `false`".to_owned(),
            Some(other) => other.to_owned(),
            None => "anything".to_owned(),
        }
    }

    fn mapping(&mut self, schema: &Value) -> String {
        let patterns = schema["patternProperties"].as_object().and_then(|patterns| patterns.values().next());
        let values = patterns.or(schema.get("additionalProperties").filter(|values| values.is_object()));
        if let Some(values) = values {
            return format!("mapping of names to: {}", self.kind(values));
        }
        let none = Map::new();
        let keys = schema["properties"].as_object().unwrap_or(&none);
        let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}: {}", self.kind(value))).collect();
        if keys.is_empty() { "mapping".to_owned() } else { format!("{{ {} }}", keys.join(", ")) }
    }

    fn named(&mut self, name: &str) -> String {
        let definition = &self.schema["$defs"][name];
        if let Some(example) = example(name) {
            return example.to_owned();
        }
        let simple = definition["enum"].is_array()
            || definition["properties"].is_null() && definition["oneOf"].is_null() && definition["anyOf"].is_null();
        let alias =
            definition["anyOf"].as_array().is_some_and(|parts| parts.iter().all(|part| part["properties"].is_null()));
        let either =
            definition["anyOf"].as_array().is_some_and(|parts| parts.iter().all(|part| part["$ref"].is_string()));
        if simple || name.ends_with("OrNone") || either || alias && definition["description"].is_null() {
            return self.kind(definition);
        }
        if !self.met.iter().any(|known| known == name) {
            self.met.push(name.to_owned());
        }
        format!("[{name}](#{})", name.to_lowercase())
    }
}

/// How values look that are written as one piece of text.
fn example(name: &str) -> Option<&'static str> {
    Some(match name {
        "Address" => "address, such as `10.0.0.1:8080`",
        "Name" => "name",
        "Span" => "duration, such as `250ms`, `5s`, `2h`",
        "Percent" => "percentage, such as `14.5%`",
        "Rate" => "rate, such as `100/s`, `60/m`",
        "HeaderName" => "header",
        "CookieName" => "cookie",
        "Method" => "method",
        "Cidr" => "network, such as `10.0.0.0/8`",
        "Memory" => "memory, such as `512MiB` or `90%`",
        "RedisUrl" => "URL, such as `redis://redis.internal:6379`",
        "LogTarget" => "`stdout`, `stderr` or a path",
        "RetryOn" => "`connect_failure`, `reset`, `timeout`, `5xx` or a status",
        _ => return None,
    })
}

fn forms(schema: &Value) -> Vec<&Value> {
    ["oneOf", "anyOf", "allOf"].iter().filter_map(|key| schema[*key].as_array()).flatten().collect()
}

/// A word among the forms of a type, as a line of a list.
fn word(form: &Value) -> Option<String> {
    let (word, about) = (form.get("const")?, form["description"].as_str()?);
    Some(format!("- `{}`: {}\n", yaml(word), cell(about)))
}

/// A value as it would be written in a document.
fn yaml(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "''".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(yaml).collect::<Vec<_>>().join(", ")),
        Value::Object(map) if map.is_empty() => "{}".to_owned(),
        Value::Object(map) => {
            let pairs: Vec<_> = map.iter().map(|(key, value)| format!("{key}: {}", yaml(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}
