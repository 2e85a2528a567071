//! Checks of the bootstrap document.

use super::super::admin::Admin;
use super::super::bootstrap::{Bootstrap, Listener, Protocol};
use super::super::problem::At;
use super::{Report, limits, telemetry};

/// Checks a bootstrap document.
pub(in super::super) fn bootstrap(document: &Bootstrap, report: &mut Report<'_>) {
    let listeners = At::ROOT.key("listeners");
    report.unique(&listeners, "name", document.listeners.iter().map(|listener| &listener.name), |name| {
        format!("the listener `{name}`")
    });
    addresses(document, &listeners, report);
    for (index, each) in document.listeners.iter().enumerate() {
        listener(each, &listeners.index(index), report);
        if each.proxy_protocol && document.trusted_proxies.is_empty() {
            let at = listeners.index(index);
            report.say(&at.key("proxy_protocol"), "nobody could connect: expected load balancers in `trusted_proxies`");
        }
    }
    limits::limits(&document.limits, &At::ROOT.key("limits"), report);
    admin(&document.admin, report);
    if document.routing.file == document.traffic.file {
        report.say(&At::ROOT.key("traffic").key("file"), "is the same file as `routing.file`: expected two documents");
    }
    telemetry::telemetry(document, report);
}

/// There is no token by default, and without one only this host may ask.
fn admin(admin: &Admin, report: &mut Report<'_>) {
    let at = At::ROOT.key("admin");
    if !admin.address.ip().is_loopback() && !admin.asks_for_tokens() {
        let message = format!(
            "the admin API on `{}` can be reached from other hosts: set `admin.token_file` or `admin.tokens`, or listen on \
             127.0.0.1",
            admin.address
        );
        report.say(&at.key("address"), message);
    }
    let tokens = at.key("tokens");
    report.unique(&tokens, "name", admin.tokens.iter().map(|token| &token.name), |name| format!("the token `{name}`"));
    for (index, token) in admin.tokens.iter().enumerate() {
        let at = tokens.index(index);
        match (&token.file, &token.env) {
            (None, None) => report.say(&at, "the token is nowhere: expected `file` or `env`"),
            (Some(_), Some(_)) => report.say(&at.key("env"), "the token is in `file` already: expected one of the two"),
            _ => {}
        }
    }
}

/// No two sockets may have the same address; port 0 is a free one each time.
fn addresses(document: &Bootstrap, listeners: &At<'_>, report: &mut Report<'_>) {
    let mut taken = vec![(document.admin.address.0, "the admin API".to_owned())];
    for (index, listener) in document.listeners.iter().enumerate() {
        let address = listener.address.0;
        if let Some((_, by)) = taken.iter().find(|(other, _)| *other == address && address.port() != 0) {
            report.say(&listeners.index(index).key("address"), format!("`{address}` is taken by {by}"));
        }
        taken.push((address, format!("the listener `{}`", listener.name)));
    }
}

fn listener(listener: &Listener, at: &At<'_>, report: &mut Report<'_>) {
    limits::limits(&listener.limits, &at.key("limits"), report);
    let list = at.key("protocols");
    for (index, &protocol) in listener.protocols.iter().flatten().enumerate() {
        let at = list.index(index);
        match (protocol, &listener.tls) {
            (Protocol::H2, None) => {
                report.suggest(&at, "`h2` is HTTP/2 over TLS, and this listener has no `tls`", Some("h2c"));
            }
            (Protocol::H2c, Some(_)) => {
                report.suggest(&at, "`h2c` is HTTP/2 over clear text, and this listener has `tls`", Some("h2"));
            }
            _ => {}
        }
        if listener.protocols.iter().flatten().take(index).any(|&earlier| earlier == protocol) {
            report.say(&at, "the protocol is here a second time");
        }
    }
}
