//! The page of the command line in the book, from clap's own help.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};

use super::Args;

/// One section per command.
pub(crate) fn page() -> String {
    // What the environment says just now is of no account.
    let mut root = Args::command().term_width(100).mut_args(|arg| arg.hide_env_values(true));
    root.build();
    let mut page = "# Command line\n\nWhat changes a running gateway, or asks it, goes through its admin API; \
                    `serin --help` says the same as this page.\n\n"
        .to_owned();
    section(&mut page, &mut root, "serin");
    page
}

fn section(page: &mut String, command: &mut Command, path: &str) {
    let help = command.render_long_help().to_string();
    let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let _ = write!(page, "## {path}\n\n```text\n{}\n```\n\n", without_common(&help, path));
    let names: Vec<_> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names.iter().filter(|name| *name != "help") {
        if let Some(sub) = command.find_subcommand_mut(name).filter(|sub| !sub.is_hide_set()) {
            section(page, sub, &format!("{path} {name}"));
        }
    }
}

/// The options that every command takes are shown once.
fn without_common(help: &str, path: &str) -> String {
    const COMMON: [&str; 6] = ["--json", "--admin", "--token-file", "--operator", "--help", "--version"];
    let mut text = String::new();
    let mut skip = false;
    for line in help.lines() {
        let flag = line.trim_start().split([' ', '=', ',']).find(|word| word.starts_with("--"));
        let flag = flag.or_else(|| line.trim_start().split(", ").nth(1).and_then(|rest| rest.split(' ').next()));
        if line.trim_start().starts_with('-') {
            skip = path != "serin" && flag.is_some_and(|flag| COMMON.contains(&flag));
        } else if !line.starts_with(' ') && !line.is_empty() {
            skip = false;
        }
        if !skip {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.trim_end().trim_end_matches("Options:").trim_end().to_owned()
}
