//! What was found, as Markdown.

use std::fmt::Write as _;

use super::peer::ALL;
use super::table::Fate;
use super::{Made, Row};

type Class = (&'static str, fn(&Made) -> bool);

/// The classes that are counted.
const CLASSES: [Class; 8] = [
    ("refused, nothing passed on", |made| matches!(made, Made::Refused { late: false, .. })),
    ("refused after part was passed on", |made| matches!(made, Made::Refused { late: true, .. })),
    ("passed on as it was sent", |made| matches!(made, Made::Passed)),
    ("passed on with changes", |made| matches!(made, Made::Changed(_))),
    ("passed on, then an error", |made| matches!(made, Made::Failed(_))),
    ("answered by the proxy, no error", |made| matches!(made, Made::Answered(_))),
    ("no answer in 4 seconds", |made| matches!(made, Made::Silent)),
    ("somebody got an answer to another request", |made| matches!(made, Made::Mixed(_))),
];

/// The report: two tables of counts, and the messages in which the proxies differ.
pub(super) fn write(versions: &[String], rows: &[Row]) -> String {
    let mut text = format!("{}. {} messages.\n", versions.join(", "), rows.len());
    let refused = |row: &&Row| matches!(row.case.fate, Fate::Refused(_) | Fate::Broken(_));
    let (bad, fine): (Vec<_>, Vec<_>) = rows.iter().partition(refused);
    counts(&mut text, &format!("{} messages that Serin refuses", bad.len()), &bad);
    counts(&mut text, &format!("{} messages that Serin serves", fine.len()), &fine);
    let kind = |made: &Made| CLASSES.iter().position(|(_, is)| is(made));
    let differ = |row: &&Row| row.made.iter().any(|made| kind(made) != kind(&row.made[0]));
    text += &format!("\n| id | message | {} |\n|---|---|{}\n", ALL.join(" | "), "---|".repeat(ALL.len()));
    for row in rows.iter().filter(differ) {
        let made: Vec<_> = row.made.iter().map(|made| cell(&made.to_string())).collect();
        let id = row.case.id.split('-').next().unwrap_or_default();
        let _ = writeln!(text, "| {id} | {} | {} |", shown(&row.case.bytes), made.join(" | "));
    }
    text
}

fn counts(text: &mut String, title: &str, rows: &[&Row]) {
    *text += &format!("\n| {title} | {} |\n|---|{}\n", ALL.join(" | "), "--:|".repeat(ALL.len()));
    for (class, is) in CLASSES {
        let count = |at: usize| rows.iter().filter(|row| is(&row.made[at])).count();
        let counts: Vec<_> = (0..ALL.len()).map(|at| count(at).to_string()).collect();
        let _ = writeln!(text, "| {class} | {} |", counts.join(" | "));
    }
}

/// What matters of a message: its request line unless that is the usual one, and what comes after the host.
fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(bytes).replacen("Host: gw.test\r\n", "", 1);
    let usual = ["GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\n"];
    let short = usual.iter().find_map(|line| text.strip_prefix(line));
    let text = short.filter(|text| text.len() > 2).unwrap_or(&text);
    let text = text.trim_end_matches("\r\n");
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().count() > MOST {
        shown.push('…');
    }
    format!("`{}`", cell(&shown.replace("\\\"", "\"").replace("\\'", "'").replace('`', "'")))
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
