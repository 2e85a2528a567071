//! Text for people: aligned tables and sentences.

use std::fmt::Write as _;

use crate::admin::ProblemDocument;

/// A table whose columns are as wide as they need to be. The last one is not filled up.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(|name| name.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(&head.map(ToOwned::to_owned), &widths);
    for row in rows {
        text.push_str(&line(row, &widths));
    }
    text
}

fn line<const N: usize>(cells: &[String; N], widths: &[usize; N]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        // Writing to memory cannot fail.
        let _ = write!(text, "{cell:width$}  ");
    }
    format!("{}\n", text.trim_end())
}

/// `name value` pairs on one line.
pub(super) fn pairs<K: AsRef<str>, V: ToString>(pairs: impl IntoIterator<Item = (K, V)>) -> String {
    let words = pairs.into_iter().map(|(name, value)| format!("{} {}", name.as_ref(), value.to_string()));
    words.collect::<Vec<_>>().join(", ")
}

/// A problem document in words.
pub(super) fn problem(document: &ProblemDocument) -> String {
    let mut text = format!("error: {}", document.detail);
    for wrong in &document.problems {
        let place = if wrong.path.is_empty() { String::new() } else { format!("{}: ", wrong.path) };
        let meant = wrong.suggestion.as_ref().map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
        let _ = write!(text, "\n  {place}{}{meant}", wrong.message);
    }
    text
}

/// `on` or `off`.
pub(super) fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// What is not there.
pub(super) const NONE: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["v1".to_owned(), "90%".to_owned()], ["canary-2".to_owned(), "10%".to_owned()]];
        assert_eq!(table(["SUBSET", "WEIGHT"], &rows), "SUBSET    WEIGHT\nv1        90%\ncanary-2  10%\n");
    }
}
