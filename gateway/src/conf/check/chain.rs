//! Checks of balancer chains against the plug-ins that there are.

use serin_core::plugin::{Catalogue, Node};

use super::super::problem::{At, listed, nearest};
use super::super::routing::Link;
use super::Report;

/// Checks one chain: every name is known, every plug-in takes its settings, exactly one pick, last.
pub(super) fn chain(links: &[Link], catalogue: &Catalogue, node: &Node, at: &At<'_>, report: &mut Report<'_>) {
    let mut all_known = true;
    for (index, link) in links.iter().enumerate() {
        let at = at.index(index);
        let is_last = index + 1 == links.len();
        if !link.conf.is_object() {
            report.say(&at.key(&link.name), "expected a mapping of settings; without any, write the name alone");
            continue;
        }
        let built = if catalogue.balancers.knows(&link.name) {
            if !is_last {
                report.say(&at, format!("`{}` is a pick, and a chain has exactly one, as its last part", link.name));
            }
            catalogue.balancers.build(&link.name, link.conf.clone(), node).and_then(Result::err)
        } else if catalogue.narrows.knows(&link.name) {
            catalogue.narrows.build(&link.name, link.conf.clone(), node).and_then(Result::err)
        } else {
            all_known = false;
            unknown(link, catalogue, &at, report);
            None
        };
        if let Some(error) = built {
            refused(link, &error.0, &at, report);
        }
    }
    if all_known && links.last().is_some_and(|link| catalogue.narrows.knows(&link.name)) {
        let picks = listed(catalogue.balancers.names());
        report.say(at, format!("the chain has no pick at its end: expected one of {picks}"));
    }
}

fn unknown(link: &Link, catalogue: &Catalogue, at: &At<'_>, report: &mut Report<'_>) {
    let names = || catalogue.narrows.names().chain(catalogue.balancers.names());
    let message = format!(
        "unknown narrow or pick `{}`: narrows are {}; picks are {}",
        link.name,
        listed(catalogue.narrows.names()),
        listed(catalogue.balancers.names())
    );
    report.suggest(at, message, nearest(&link.name, names()));
}

/// Points at the setting that a plug-in complains of, if it names an unknown one as serde does.
fn refused(link: &Link, error: &str, at: &At<'_>, report: &mut Report<'_>) {
    let at = at.key(&link.name);
    let mut names = error.split('`').skip(1).step_by(2);
    let unknown = error.starts_with("unknown field").then(|| names.next()).flatten();
    match unknown {
        Some(key) => report.suggest(&at.key(key), error, nearest(key, names)),
        None => report.say(&at, error),
    }
}
