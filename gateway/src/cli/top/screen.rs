//! How it looks: lines of styled pieces, cut to the size of the terminal.

use super::model::{Order, Page, Row};
use crate::admin::InstanceView;

/// Eighths of a line, for curves.
const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of numbers, and their widths.
const NUMBERS: [(&str, usize); 7] =
    [("REQ/S", 7), ("ERRORS", 6), ("P50", 7), ("P99", 7), ("SHARE", 5), ("WEIGHT", 6), ("FLY", 4)];
/// Notes on services that are shown at most.
const NOTES: usize = 3;

const HELP: [&str; 9] = [
    "q, Ctrl-C      quit",
    "down, j        next row",
    "up, k          row before",
    "s              sort by name, requests, errors, p99",
    "p, space       pause and go on",
    "?              this help, and away with it",
    "",
    "Below are the instances of the service that",
    "is selected. FLY: requests in flight.",
];

/// How a piece of a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Look {
    #[default]
    Plain,
    Bold,
    Dim,
    /// The row that is selected.
    Selected,
    Good,
    Bad,
    Warning,
    Curve,
}

impl Look {
    /// Whether that is a colour.
    pub(super) fn is_colour(self) -> bool {
        matches!(self, Self::Good | Self::Bad | Self::Warning | Self::Curve)
    }
}

/// A line of pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line(pub(super) Vec<(String, Look)>);

impl Line {
    fn new(text: impl Into<String>, look: Look) -> Self {
        Self(vec![(text.into(), look)])
    }

    fn add(&mut self, text: impl Into<String>, look: Look) {
        self.0.push((text.into(), look));
    }

    /// Cut to a width in characters. Nothing that is no text gets to the terminal.
    fn cut(self, width: usize) -> Self {
        let mut left = width;
        let mut pieces = Vec::with_capacity(self.0.len());
        for (text, look) in self.0 {
            let text: String = text.chars().take(left).map(|c| if c.is_control() { '?' } else { c }).collect();
            left -= text.chars().count();
            pieces.push((text, look));
        }
        Self(pieces)
    }
}

/// What the view is like.
pub(super) struct View {
    /// Where the gateway is.
    pub(super) admin: String,
    /// What was fetched last.
    pub(super) page: Option<Page>,
    /// Why the latest attempt to fetch failed.
    pub(super) trouble: Option<String>,
    /// In what order services are.
    pub(super) order: Order,
    /// Whether what is shown stays.
    pub(super) paused: bool,
    /// Whether the help is shown.
    pub(super) help: bool,
    /// Position of the row that is selected.
    pub(super) selected: usize,
}

impl View {
    /// The rows that are shown.
    pub(super) fn rows(&self) -> Vec<Row> {
        self.page.as_ref().map(|page| page.rows(self.order)).unwrap_or_default()
    }

    /// The service that is selected.
    pub(super) fn service(&self) -> Option<String> {
        self.rows().get(self.selected).map(|row| row.service.clone())
    }
}

/// The picture: exactly `height` lines of at most `width` characters.
pub(super) fn picture(view: &View, width: usize, height: usize) -> Vec<Line> {
    let mut lines = header(view);
    let instances = view.page.as_ref().map(|page| &page.instances[..]).unwrap_or_default();
    let mut below = if view.help { HELP.map(|line| Line::new(line, Look::Bold)).to_vec() } else { list(instances) };
    below.truncate(if view.help { HELP.len() } else { height * 2 / 5 });
    let table = height.saturating_sub(lines.len() + below.len() + 1);
    lines.extend(services(view, width, table));
    lines.extend(below);
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    let keys = format!("q quit  up/down/j/k select  s sort: {}  p pause  ? help", view.order.as_str());
    lines.push(Line::new(keys, Look::Dim));
    lines.into_iter().map(|line| line.cut(width)).collect()
}

fn header(view: &View) -> Vec<Line> {
    let mut first = Line::new("serin top", Look::Bold);
    first.add(format!("  {}", view.admin), Look::Plain);
    if view.paused {
        first.add("  PAUSED", Look::Bold);
    }
    let second = match (&view.trouble, &view.page) {
        (Some(trouble), _) => Line::new(trouble.clone(), Look::Bad),
        (None, Some(page)) => Line::new(page.state(), Look::Plain),
        (None, None) => Line::new("asking the gateway", Look::Plain),
    };
    let notes = view.page.as_ref().map(Page::notes).unwrap_or_default();
    let notes = notes.into_iter().take(NOTES).map(|note| Line::new(note, Look::Warning));
    [first, second].into_iter().chain(notes).collect()
}

/// The table of services in so many lines; the row that is selected is always among them.
fn services(view: &View, width: usize, height: usize) -> Vec<Line> {
    let numbers: usize = NUMBERS.iter().map(|(_, width)| width + 1).sum();
    // What numbers leave is for names, and then for curves.
    let left = width.saturating_sub(numbers);
    let name = (left / 2).clamp(8, 24);
    let curve = left.saturating_sub(name + 1);
    let mut head = format!("{:name$}", "SERVICE");
    NUMBERS.iter().for_each(|(title, width)| head.push_str(&format!(" {title:>width$}")));
    let minute: String = " LAST MINUTE".chars().take(curve + 1).collect();
    let shown = height.saturating_sub(1);
    let first = (view.selected + 1).saturating_sub(shown);
    let rows = view.rows();
    let body = rows.iter().enumerate().skip(first).take(shown);
    let body = body.map(|(at, row)| table_row(row, name, curve, at == view.selected));
    std::iter::once(Line::new(head + &minute, Look::Bold)).chain(body).take(height).collect()
}

fn table_row(row: &Row, name: usize, curve: usize, selected: bool) -> Line {
    let base = match (selected, &row.subset) {
        (true, _) => Look::Selected,
        (false, None) => Look::Bold,
        (false, Some(_)) => Look::Plain,
    };
    let or = |look: Look| if selected { base } else { look };
    let indent = if row.subset.is_some() { "  " } else { "" };
    let title: String = format!("{indent}{}", row.name()).chars().take(name).collect();
    let mut line = Line::new(format!("{title:name$}"), base);
    for (at, (text, (_, width))) in row.cells().into_iter().zip(NUMBERS).enumerate() {
        let bad = at == 1 && row.figures.error_rate > 0.0;
        line.add(format!(" {text:>width$}"), if bad { or(Look::Bad) } else { base });
    }
    line.add(format!(" {}", sparkline(&row.curve, curve)), or(Look::Curve));
    line
}

/// The last values as a curve of blocks, of which the highest is the most.
fn sparkline(values: &[u64], width: usize) -> String {
    let values = &values[values.len().saturating_sub(width)..];
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let block = |value: &u64| if *value == 0 { ' ' } else { EIGHTHS[((value * 8).div_ceil(most) - 1).min(7) as usize] };
    values.iter().map(block).collect()
}

/// Instances, below a blank line.
fn list(instances: &[InstanceView]) -> Vec<Line> {
    if instances.is_empty() {
        return Vec::new();
    }
    let head = format!(
        "{:21} {:10} {:9} {:>11} {:>7} {:>4} {:>9} WHY",
        "INSTANCE", "SUBSETS", "HEALTH", "WEIGHT", "SUCCESS", "FLY", "LATENCY"
    );
    let row = |instance: &InstanceView| {
        let weight = format!("{} of {}", instance.weight_in_force, instance.weight);
        let success = instance.success_rate.map_or("-".to_owned(), |rate| format!("{:.1}%", rate * 100.0));
        let latency = format!("{:.1}ms", instance.ewma_ms);
        let mut line = Line::new(format!("{:21} {:10} ", instance.address, instance.subsets.join(",")), Look::Plain);
        let look = if instance.health == "healthy" { Look::Good } else { Look::Bad };
        line.add(format!("{:9}", instance.health), look);
        let rest =
            format!(" {weight:>11} {success:>7} {:>4} {latency:>9} {}", instance.in_flight, instance.why.join("; "));
        line.add(rest, Look::Plain);
        line
    };
    [Line::default(), Line::new(head, Look::Bold)].into_iter().chain(instances.iter().map(row)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::model::tests::page;
    use super::*;

    pub(in super::super) fn view() -> View {
        View {
            admin: "http://127.0.0.1:9901".to_owned(),
            page: Some(page()),
            trouble: None,
            order: Order::Name,
            paused: false,
            help: false,
            selected: 0,
        }
    }

    fn drawn(view: &View, width: usize, height: usize) -> String {
        let lines = picture(view, width, height);
        assert_eq!(lines.len(), height);
        let text = |line: &Line| line.0.iter().map(|(text, _)| text.as_str()).collect::<String>();
        let lines: Vec<_> = lines.iter().map(text).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:?}");
        lines.join("\n")
    }

    #[test]
    fn it_fits_into_80_by_24() {
        let text = drawn(&view(), 80, 24);
        for part in ["serin top  http://127.0.0.1:9901", "traffic revision 7", "ramp to v2, held", "REQ/S", "WEIGHT"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        let v2 = text.lines().find(|line| line.starts_with("  v2")).unwrap_or_default();
        for part in ["10.0", "31%", "26.0ms", "52.0ms", "10%", "█"] {
            assert!(v2.contains(part), "no {part} in {v2}");
        }
        assert!(text.ends_with("? help"), "{text}");
    }

    #[test]
    fn any_size_is_drawn_and_the_selected_row_is_seen() {
        let mut view = view();
        for help in [false, true] {
            view.help = help;
            for (width, height) in [(0, 1), (1, 1), (20, 5), (80, 3), (300, 100)] {
                let _ = drawn(&view, width, height);
            }
        }
        (view.help, view.selected) = (false, 4);
        let small = picture(&view, 80, 9);
        assert!(small.iter().any(|line| line.0.first().is_some_and(|(_, look)| *look == Look::Selected)));
        view.page = None;
        assert!(drawn(&view, 80, 24).contains("asking the gateway"));
        view.trouble = Some("gone\u{1b}[2J".to_owned());
        assert!(drawn(&view, 80, 24).contains("gone?[2J"));
    }

    #[test]
    fn curves() {
        let cases =
            [(&[0, 1, 4, 8][..], 4, " ▁▄█"), (&[9, 0, 8], 2, " █"), (&[], 3, ""), (&[0, 0], 3, "  "), (&[5], 0, "")];
        for (values, width, wanted) in cases {
            assert_eq!(sparkline(values, width), wanted, "{values:?}");
        }
    }
}
