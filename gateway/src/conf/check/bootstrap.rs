//! Checks of the bootstrap document.

use super::super::admin::Admin;
use super::super::bootstrap::{Bootstrap, Listener, Protocol};
use super::super::place::{EtcdServer, NacosServer, Place};
use super::super::problem::At;
use super::super::redis::{Redis, RedisPlace};
use super::super::registry::{Registration, Registry};
use super::service::positive;
use super::{Report, limits, telemetry};
use crate::telemetry::traces::context::is_context;

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
    limits::limits(&document.limits.clients, &At::ROOT.key("limits"), report);
    if let Some(RedisPlace::Server(server)) = &document.limits.redis {
        redis(server, &At::ROOT.key("limits").key("redis"), report);
    }
    admin(&document.admin, report);
    place(&document.routing, &At::ROOT.key("routing"), report);
    place(&document.traffic, &At::ROOT.key("traffic"), report);
    if document.routing == document.traffic {
        match &document.traffic {
            Place::File(_) => {
                report.say(
                    &At::ROOT.key("traffic").key("file"),
                    "is the same file as `routing.file`: expected two documents",
                );
            }
            _ => report.say(&At::ROOT.key("traffic"), "is the same place as `routing`: expected two documents"),
        }
    }
    for (name, each) in &document.registries {
        registry(each, &At::ROOT.key("registries").key(name), report);
    }
    let register = At::ROOT.key("register");
    for (index, entry) in document.register.iter().enumerate() {
        registration(entry, document, &register.index(index), report);
    }
    telemetry::telemetry(document, report);
    own_headers(document, report);
}

/// Headers whose meaning others have agreed on, so that nothing of the gateway's own can be in them.
const TAKEN: [&str; 11] = [
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
];

/// The headers that the gateway gives a meaning: each has one.
fn own_headers(document: &Bootstrap, report: &mut Report<'_>) {
    let id = document.forwarding.request_id.as_option();
    let debug = document.telemetry.traces.as_ref().and_then(|traces| traces.debug_header.as_ref());
    let forwarding = At::ROOT.key("forwarding");
    let telemetry = At::ROOT.key("telemetry");
    let traces = telemetry.key("traces");
    for (name, at) in [(id, forwarding.key("request_id")), (debug, traces.key("debug_header"))] {
        if name.is_some_and(|name| TAKEN.contains(&name.0.as_str()) || is_context(&name.0)) {
            report.say(&at, "is a header with another meaning: expected one such as `x-request-id`");
        }
    }
    if debug.is_some() && debug == id {
        report.say(&traces.key("debug_header"), "is the header of `forwarding.request_id`: expected another one");
    }
}

fn place(place: &Place, at: &At<'_>, report: &mut Report<'_>) {
    match place {
        Place::File(_) => {}
        Place::Nacos(document) => nacos(&document.server, &at.key("nacos"), report),
        Place::Etcd(document) => etcd(&document.server, &at.key("etcd"), report),
    }
}

fn registry(registry: &Registry, at: &At<'_>, report: &mut Report<'_>) {
    let at = at.key(registry.kind());
    match registry {
        Registry::Nacos(server) => nacos(server, &at, report),
        Registry::Etcd(registry) => etcd(&registry.server, &at, report),
        Registry::Zookeeper(zookeeper) => {
            if !zookeeper.path.starts_with('/') {
                report.say(&at.key("path"), "does not begin with `/`");
            }
            positive(Some(zookeeper.session_timeout), &at.key("session_timeout"), report);
        }
        Registry::Dns(dns) => {
            positive(Some(dns.min_ttl), &at.key("min_ttl"), report);
            if dns.max_ttl < dns.min_ttl {
                report.say(&at.key("max_ttl"), "is less than `min_ttl`");
            }
        }
        Registry::File(_) => {}
    }
}

fn registration(entry: &Registration, document: &Bootstrap, at: &At<'_>, report: &mut Report<'_>) {
    match document.registries.get(&entry.registry) {
        None => {
            let known = document.registries.keys().map(|name| name.as_str());
            report.unknown(&at.key("in"), "registry", &entry.registry, known);
        }
        Some(Registry::Nacos(_) | Registry::Etcd(_)) => {}
        Some(other) => {
            report.say(&at.key("in"), format!("gateways cannot register in a registry of the kind `{}`", other.kind()));
        }
    }
    if entry.address.port() == 0 || entry.address.ip().is_unspecified() {
        report
            .say(&at.key("address"), format!("nobody can reach `{}`: expected an address of this host", entry.address));
    }
}

fn nacos(server: &NacosServer, at: &At<'_>, report: &mut Report<'_>) {
    credentials(server.username.is_some(), server.password_file.is_some(), at, report);
    if server.grpc_port.is_none() && server.address.port().checked_add(1_000).is_none() {
        report.say(&at.key("address"), "1,000 more is no port: set `grpc_port`");
    }
}

fn etcd(server: &EtcdServer, at: &At<'_>, report: &mut Report<'_>) {
    credentials(server.username.is_some(), server.password_file.is_some(), at, report);
    let Some(tls) = &server.tls else { return };
    let at_tls = at.key("tls");
    if tls.cert.is_some() != tls.key.is_some() {
        report.say(&at_tls, "a certificate needs its private key: set both `cert` and `key`, or neither");
    }
    let endpoints = at.key("endpoints");
    for (index, _) in server.endpoints.iter().enumerate().filter(|(_, endpoint)| !endpoint.tls) {
        report.say(&endpoints.index(index), "is clear text, though there is `tls`: expected `https://`");
    }
}

fn redis(server: &Redis, at: &At<'_>, report: &mut Report<'_>) {
    let has_password = server.password_file.is_some() || server.password_env.is_some();
    if server.password_file.is_some() && server.password_env.is_some() {
        report.say(&at.key("password_env"), "the password is in `password_file` already: expected one of the two");
    }
    if server.username.is_some() && !has_password {
        report.say(&at.key("username"), "a user needs a password: set `password_file` or `password_env` as well");
    }
    if server.ca.is_some() && !server.url.tls {
        report.say(&at.key("url"), "is clear text, though there is `ca`: expected `rediss://`");
    }
    if !(1..=1_000).contains(&server.deadline.duration().as_millis()) {
        report.say(&at.key("deadline"), format!("`{}` is not possible: expected `1ms` to `1s`", server.deadline));
    }
}

fn credentials(user: bool, password: bool, at: &At<'_>, report: &mut Report<'_>) {
    if user != password {
        report.say(at, "a user needs a password: set both `username` and `password_file`, or neither");
    }
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
