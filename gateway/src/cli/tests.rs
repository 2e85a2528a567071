use std::net::SocketAddr;
use std::sync::Arc;

use clap::CommandFactory;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::admin::tests::control;
use crate::admin::{self, Tokens};
use crate::control::Control;

#[test]
fn the_command_line_is_sound() {
    Args::command().debug_assert();
}

#[test]
fn command_lines() {
    let cases = [
        ("run --config conf/serin.yaml", true),
        ("run", false),
        ("check F --json", true),
        ("schema", true),
        ("schema routing", true),
        ("schema rooting", false),
        ("explain GET http://api.example.com/ -H x-user-id:7 -H a:b", true),
        ("explain GET / -H nonsense", false),
        ("canary get users", true),
        ("canary set users v1=85.5% v2=14.5% --reason why", true),
        ("canary set users", false),
        ("canary set users v1=85.5", false),
        ("canary set users v1", false),
        ("canary set users v1=101%", false),
        ("canary preview users", true),
        ("canary abort users --weights-only --expect 7", true),
        ("canary resume users", true),
        ("switch balancer on", true),
        ("switch canary off --service users --reason why", true),
        ("switch limits on", true),
        ("switch everything on", false),
        ("switch canary maybe", false),
        ("history --limit 5", true),
        ("history --limit 0", false),
        ("rollback 3 --reason why --admin http://10.0.0.1:9901 --token-file t", true),
        ("rollback", false),
        ("health", true),
        ("instances", true),
        ("instances users", true),
        ("top --once", true),
        ("tail --service users --subset v2 --user anna --json", true),
        ("tail users", false),
        ("ramp start users --to v2", true),
        ("ramp start users --to v2 --steps 1%,5%,100% --every 5m --min-requests 200 --guard p99<=250ms", true),
        ("ramp start users", false),
        ("ramp start users --to v2 --steps 1,5", false),
        ("ramp start users --to v2 --every soon", false),
        ("ramp start users --to v2 --guard p95<=1s", false),
        ("ramp start users --to v2 --min-requests 0", false),
        ("ramp pause users --reason lunch --expect 7", true),
        ("ramp resume users", true),
        ("ramp abort", false),
        ("ramp status", true),
        ("ramp status users", true),
        ("tag sign canary --ttl 1h --key-file k", true),
        ("tag sign canary --ttl soon --key-file k", false),
        ("demo --address 127.0.0.1:8081 --admin-address 127.0.0.1:9902", true),
        ("demo --address 8081", false),
    ];
    for (line, sound) in cases {
        let parsed = Args::try_parse_from(["serin"].into_iter().chain(line.split(' ')));
        assert_eq!(parsed.is_ok(), sound, "{line}: {parsed:?}");
    }
}

#[test]
fn help_documents_every_exit_code() {
    for code in [exit::OK, exit::FAILED, exit::USAGE, exit::UNREACHABLE, exit::CONFLICT, exit::UNAUTHORIZED] {
        assert!(AFTER_HELP.contains(&format!("\n  {code}  ")), "{code}");
    }
}

/// An admin API on a real socket, as long as the value lives.
struct Gateway {
    dir: TempDir,
    control: Arc<Control>,
    address: SocketAddr,
    _runtime: Runtime,
    _shutdown: tokio::sync::watch::Sender<bool>,
}

impl Gateway {
    fn start(token: Option<&str>) -> Self {
        let (dir, control) = control("127.0.0.1:9901");
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let state = admin::State::new(Arc::clone(&control), Arc::new(Tokens::of(token)), Arc::default());
        let (shutdown, stop) = tokio::sync::watch::channel(false);
        runtime.spawn(admin::serve(state, listener, None, stop));
        Self { dir, control, address, _runtime: runtime, _shutdown: shutdown }
    }

    fn run(&self, line: &str) -> Result<(), Failure> {
        run_line(&format!("{line} --admin http://{}", self.address))
    }
}

fn run_line(line: &str) -> Result<(), Failure> {
    let args = Args::try_parse_from(["serin"].into_iter().chain(line.split(' '))).unwrap();
    dispatch(&args, crate::builtin())
}

#[test]
fn commands_do_what_they_say() {
    let gateway = Gateway::start(None);
    let cases = [
        ("health", exit::OK, 1),
        ("canary get users", exit::OK, 1),
        ("canary preview users v1=50% v2=50%", exit::OK, 1),
        ("canary set users v1=85.5% v2=14.5% --reason try", exit::OK, 2),
        ("canary set users v1=50% v2=50% --expect 1", exit::CONFLICT, 2),
        ("canary set users v1=50% v2=49%", exit::FAILED, 2),
        ("canary set users v1=50% v9=50% --json", exit::FAILED, 2),
        ("canary get nobody", exit::FAILED, 2),
        ("canary abort users --reason burns", exit::OK, 3),
        ("canary get users", exit::OK, 3),
        ("canary preview users", exit::OK, 3),
        ("canary resume users --expect 3 --json", exit::OK, 4),
        ("switch balancer on", exit::OK, 5),
        ("switch balancer off --expect 4", exit::CONFLICT, 5),
        ("switch canary on --service users", exit::OK, 6),
        ("rollback 2 --reason back", exit::OK, 7),
        ("rollback 99", exit::FAILED, 7),
        ("history --limit 3", exit::OK, 7),
        ("instances", exit::OK, 7),
        ("instances users --json", exit::OK, 7),
        ("explain GET http://api.example.com/api/users/7 -H x-user-id:7 -H a:b -H a:c", exit::OK, 7),
        ("explain GET http://api.example.com/nothing", exit::OK, 7),
        ("explain GET * --seed 1", exit::FAILED, 7),
    ];
    for (line, expected, revision) in cases {
        let code = gateway.run(line).map_or_else(|failure| failure.code, |()| exit::OK);
        assert_eq!(code, expected, "{line}");
        assert_eq!(gateway.control.current().traffic_revision, revision, "{line}");
    }
    let traffic = gateway.control.current().traffic.clone();
    assert_eq!(traffic.services["users"].weights["v1"].to_string(), "85.5%");
    let entry = gateway.control.history().into_iter().find(|entry| entry.revision == Some(2)).unwrap();
    assert_eq!((&*entry.reason, &*entry.actor.from), ("try", "127.0.0.1"));
}

#[test]
fn ramps_and_live_numbers() {
    let gateway = Gateway::start(None);
    let cases = [
        ("top --once", exit::OK, 1),
        ("top --json", exit::OK, 1),
        ("ramp status", exit::OK, 1),
        ("ramp status users", exit::FAILED, 1),
        ("ramp start users --to v2 --steps 10%,20% --guard p99<=1.2xstable --expect 6", exit::CONFLICT, 1),
        ("ramp start users --to v2 --steps 20%,10%", exit::FAILED, 1),
        ("ramp start users --to v2 --steps 10%,20% --guard p99<=1.2xstable --reason new", exit::OK, 2),
        ("ramp status users", exit::OK, 2),
        ("canary get users", exit::OK, 2),
        ("top --once", exit::OK, 2),
        ("ramp pause users", exit::OK, 3),
        ("ramp resume users --json", exit::OK, 4),
        ("ramp abort users", exit::OK, 5),
        ("ramp abort users", exit::FAILED, 5),
        ("ramp status --json", exit::OK, 5),
    ];
    for (line, expected, revision) in cases {
        let code = gateway.run(line).map_or_else(|failure| failure.code, |()| exit::OK);
        assert_eq!(code, expected, "{line}");
        assert_eq!(gateway.control.current().traffic_revision, revision, "{line}");
    }
}

#[test]
fn tokens_are_shown() {
    let gateway = Gateway::start(Some("0123456789abcdef"));
    let other = gateway.dir.path().join("other");
    std::fs::write(&other, "fedcba9876543210").unwrap();
    let with = |file: &std::path::Path| format!("history --token-file {}", file.display());
    let cases = [
        ("history".to_owned(), exit::UNAUTHORIZED),
        (with(&other), exit::UNAUTHORIZED),
        (with(&gateway.dir.path().join("none")), exit::USAGE),
        (with(&gateway.dir.path().join("token")), exit::OK),
    ];
    for (line, expected) in cases {
        assert_eq!(gateway.run(&line).map_or_else(|failure| failure.code, |()| exit::OK), expected, "{line}");
    }
}

#[test]
fn gateways_that_are_not_there() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let cases = [
        (format!("history --admin http://127.0.0.1:{port}"), exit::UNREACHABLE),
        ("history --admin 127.0.0.1:9901".to_owned(), exit::USAGE),
        ("history --admin ftp://127.0.0.1:9901".to_owned(), exit::USAGE),
        (format!("history --admin https://127.0.0.1:{port}"), exit::UNREACHABLE),
        ("history --admin https://127.0.0.1:9901 --ca /nowhere/ca.pem".to_owned(), exit::USAGE),
        ("check /nowhere/serin.yaml".to_owned(), exit::FAILED),
    ];
    for (line, expected) in cases {
        assert_eq!(run_line(&line).map_or_else(|failure| failure.code, |()| exit::OK), expected, "{line}");
    }
}
