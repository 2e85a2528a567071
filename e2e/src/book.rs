//! Pages of the book, as the test reads them: fenced blocks, headings and links.
//!
//! What the info string of a block says to the test:
//!
//! - `yaml file=routing.yaml`: the file is written, whatever the language.
//! - `yaml add=routing.yaml under=users`: the lines go into that file, below the first line `users:`.
//! - `console`: lines that begin with `$ ` are run (`> ` goes on), what follows is what they print. `…` is any text, and
//!   alone on a line any number of lines. With `retry` the block is run until it prints that; with `exit=1` its last
//!   command fails so. A command that ends in ` &` goes on until the page ends, or until `kill %N`.
//! - `rust from=PATH`: the lines are in that file of the repository.
//! - `sh skip=REASON`: is not run, for this reason.

use std::path::{Path, PathBuf};

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its language.
    pub language: String,
    /// The words after the language.
    pub words: Vec<String>,
    /// What is in it.
    pub text: String,
    /// Line of its fence, from 1 on.
    pub line: usize,
}

impl Block {
    /// The value of `name=value` in its info string.
    #[must_use]
    pub fn word(&self, name: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether a word stands alone in its info string.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        self.words.iter().any(|known| known == word)
    }
}

/// One step of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// What is run.
    pub line: String,
    /// What it prints.
    pub output: Vec<String>,
}

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Where it is.
    pub path: PathBuf,
    /// All of it.
    pub text: String,
}

impl Page {
    /// Reads a page.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path: path.to_owned(), text }
    }

    /// Its fenced blocks.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (at, line) in self.text.lines().enumerate() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(info)) => {
                    let mut words = info.split_whitespace().map(str::to_owned);
                    let language = words.next().unwrap_or_default();
                    open = Some(Block { language, words: words.collect(), text: String::new(), line: at + 1 });
                }
                (Some(_), Some("")) => blocks.extend(open.take()),
                (Some(block), _) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.path.display());
        blocks
    }

    /// The page whose files and servers it begins with: `<!-- uses: page.md -->`.
    #[must_use]
    pub fn uses(&self) -> Option<Self> {
        let name = self.text.split_once("<!-- uses: ")?.1.split_once(" -->")?.0;
        Some(Self::read(&self.path.with_file_name(name)))
    }

    /// Files of the repository that it works on: `<!-- copies: conf/a.yaml conf/b.yaml -->`.
    #[must_use]
    pub fn copies(&self) -> Vec<String> {
        let listed = self.text.split_once("<!-- copies: ").and_then(|(_, rest)| rest.split_once(" -->"));
        listed.map_or(Vec::new(), |(names, _)| names.split_whitespace().map(str::to_owned).collect())
    }

    /// Anchors of its headings, as mdBook makes them.
    #[must_use]
    pub fn anchors(&self) -> Vec<String> {
        let mut fenced = false;
        let headings = self.text.lines().filter_map(|line| {
            fenced ^= line.starts_with("```");
            let title = line.trim_start_matches('#');
            (!fenced && title.len() < line.len()).then(|| anchor(title.trim()))
        });
        headings.collect()
    }

    /// Targets of its links.
    #[must_use]
    pub fn links(&self) -> Vec<String> {
        let mut fenced = false;
        let prose: Vec<_> = self
            .text
            .lines()
            .filter(|line| {
                fenced ^= line.starts_with("```");
                !fenced
            })
            .collect();
        let prose = prose.join("\n");
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        targets.map(|(target, _)| target.to_owned()).collect()
    }
}

fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// The commands of a console block.
#[must_use]
pub fn commands(text: &str) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ "), line.strip_prefix("> "), commands.last_mut()) {
            (Some(command), ..) => commands.push(Command { line: command.to_owned(), output: Vec::new() }),
            (None, Some(more), Some(command)) if command.output.is_empty() => {
                command.line.push('\n');
                command.line.push_str(more);
            }
            (None, _, Some(command)) => command.output.push(line.to_owned()),
            (None, _, None) => panic!("a console block begins with `$ `: {text}"),
        }
    }
    commands
}

/// Whether an output is what a page says. Runs of blanks are one blank.
#[must_use]
pub fn matches(expected: &[String], output: &str) -> bool {
    let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted: Vec<_> = expected.iter().map(|line| squeeze(line)).collect();
    let got: Vec<_> = output.trim_end().lines().map(squeeze).collect();
    lines_match(&wanted, &got)
}

fn lines_match(wanted: &[String], got: &[String]) -> bool {
    match wanted.split_first() {
        None => got.iter().all(String::is_empty),
        Some((first, rest)) if first == "…" => (0..=got.len()).any(|skip| lines_match(rest, &got[skip..])),
        Some((first, rest)) => {
            got.split_first().is_some_and(|(line, more)| line_matches(first, line) && lines_match(rest, more))
        }
    }
}

fn line_matches(wanted: &str, got: &str) -> bool {
    let Some((head, rest)) = wanted.split_once('…') else { return wanted == got };
    let Some(after) = got.strip_prefix(head) else { return false };
    // An ellipsis is any text, also none.
    let cuts = after.char_indices().map(|(at, _)| at).chain([after.len()]);
    cuts.into_iter().any(|cut| line_matches(rest, &after[cut..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page { path: "a.md".into(), text: text.to_owned() }
    }

    #[test]
    fn blocks_have_a_language_and_words() {
        let page = page(
            "# A: b `c`\n```yaml file=a.yaml\nx: 1\n```\n\n```console retry\n$ a \\\n> b\nout\n$ c\n```\n[d](e.md#f)\n",
        );
        let blocks = page.blocks();
        assert_eq!(blocks.len(), 2);
        assert_eq!((blocks[0].word("file"), &*blocks[0].text, blocks[0].line), (Some("a.yaml"), "x: 1\n", 2));
        assert!(blocks[1].has("retry"));
        let run = commands(&blocks[1].text);
        assert_eq!((&*run[0].line, &run[0].output[..], &*run[1].line), ("a \\\nb", &["out".to_owned()][..], "c"));
        assert_eq!((page.anchors(), page.links()), (vec!["a-b-c".to_owned()], vec!["e.md#f".to_owned()]));
    }

    #[test]
    fn outputs_match_with_gaps() {
        let cases: [(&[&str], &str, bool); 9] = [
            (&["a  b"], "a b\n", true),
            (&["a"], "a\nb", false),
            (&["a", "…"], "a\nb\nc", true),
            (&["…", "c"], "a\nb\nc", true),
            (&["…", "d"], "a\nb\nc", false),
            (&["a … c"], "a bb c", true),
            (&["a … c …"], "a bb c d e", true),
            (&["a … d"], "a bb c", false),
            (&["a"], "", false),
        ];
        for (wanted, got, expected) in cases {
            let wanted: Vec<_> = wanted.iter().map(|line| (*line).to_owned()).collect();
            assert_eq!(matches(&wanted, got), expected, "{wanted:?} in {got:?}");
        }
    }
}
