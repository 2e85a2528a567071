//! Checks of what clients may take up.

use super::super::limits::Limits;
use super::super::problem::At;
use super::super::scalar::Size;
use super::Report;
use super::service::positive;

/// Checks limits.
pub(super) fn limits(limits: &Limits, at: &At<'_>, report: &mut Report<'_>) {
    let between = |value: Option<Size>, at: &At<'_>, least: u64, most: u64, report: &mut Report<'_>| {
        if let Some(value) = value.filter(|value| !(least..=most).contains(&value.bytes())) {
            let (least, most) = (Size::of_bytes(least), Size::of_bytes(most));
            report.say(at, format!("`{value}` is not possible: expected `{least}` to `{most}`"));
        }
    };
    between(limits.header_bytes, &at.key("header_bytes"), 1 << 10, 512 << 10, report);
    between(limits.target_bytes, &at.key("target_bytes"), 1, 512 << 10, report);
    positive(limits.head_timeout, &at.key("head_timeout"), report);
    if limits.idle.is_some_and(|idle| idle.duration().as_secs() == 0) {
        report.say(&at.key("idle"), "must be at least `1s`");
    }
    let (h2, at) = (&limits.h2, at.key("h2"));
    between(h2.window, &at.key("window"), 1, 1 << 30, report);
    between(h2.connection_window, &at.key("connection_window"), 64 << 10, 1 << 30, report);
    between(h2.max_header_list, &at.key("max_header_list"), 1 << 10, 1 << 20, report);
}
