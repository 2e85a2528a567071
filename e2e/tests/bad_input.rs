//! Promise: nothing malformed gets through. Every case of `bad_input/cases.jsonl` as a whole, byte by byte and cut after
//! each line, over clear text and TLS: the client's outcome, what reaches the upstream, and that whoever comes next on the
//! same connection or on a new one gets its own answer.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic in their helpers as well")]

#[path = "bad_input/table.rs"]
mod table;

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::json;
use serin_e2e::raw::Outcome;
use serin_e2e::tls::Authority;
use serin_e2e::{Conf, Gateway, Raw, Recorder, gateway};

use self::table::{Case, FATES, Fate, Served, cases};

const PATIENCE: Duration = Duration::from_secs(5);

/// How a case is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Whole,
    Bytes,
    Lines,
}

impl Cut {
    /// Byte by byte, unless that would be more than a few thousand of them.
    fn apply(self, bytes: &[u8]) -> Vec<&[u8]> {
        match self {
            Self::Whole => vec![bytes],
            Self::Bytes => bytes.chunks((bytes.len() / 4_000).max(1)).collect(),
            Self::Lines => bytes.split_inclusive(|&byte| byte == b'\n').collect(),
        }
    }
}

struct Edge {
    recorder: Recorder,
    gateway: Gateway,
    client: Option<Arc<ClientConfig>>,
}

impl Edge {
    async fn start(tls: bool) -> Self {
        let recorder = Recorder::start().await;
        let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "all");
        conf.routing["services"]["all"] = json!({
            "instances": [{"address": recorder.address.to_string(), "labels": {"version": "v1"}}],
            "subsets": {"v1": {"version": "v1"}, "v2": {"version": "v2"}},
            "stable": "v1",
            "tags": [{
                "name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2",
                "trust": "trusted_proxies",
            }],
        });
        let dir = gateway::directory();
        let authority = Authority::new();
        if tls {
            authority.issue("gw.test").write(dir.path(), "gw.test");
            conf.listeners().push(json!({
                "name": "tls", "address": "127.0.0.1:0", "protocols": ["http1"],
                // The cases are for all kinds of hosts, which by default belong on other connections.
                "tls": {"certificates": [{"cert": "gw.test.crt", "key": "gw.test.key"}], "check_host": false},
            }));
        }
        let client = tls.then(|| authority.client(&["http/1.1"]));
        Self { recorder, gateway: Gateway::start_in(dir, conf).await, client }
    }

    async fn connect(&self) -> Raw {
        match &self.client {
            Some(client) => Raw::connect_tls(self.gateway.listener("tls"), "gw.test", Arc::clone(client)).await,
            None => Raw::connect(self.gateway.http()).await,
        }
    }

    /// One case, cut in one way; says what is wrong.
    async fn run(&self, case: &Case, cut: Cut, number: usize) -> Result<(), String> {
        let (requests, bytes) = (self.recorder.requests().len(), self.recorder.bytes());
        let mut raw = self.connect().await;
        raw.send_pieces(&cut.apply(&case.bytes)).await;
        let outcome = raw.response(PATIENCE).await;
        let marker = format!("/marker/{number}");
        match case.fate {
            Fate::Refused(statuses) => {
                refused(&mut raw, &outcome, statuses).await?;
                self.untouched(requests, Some(bytes))?;
            }
            Fate::Broken(status) => {
                refused(&mut raw, &outcome, &[status]).await?;
                // What is read with the head is checked before anything is sent.
                let at_once = cut == Cut::Whole && case.bytes.len() < 4 << 10;
                self.untouched(requests, at_once.then_some(bytes))?;
            }
            Fate::Served(served) => {
                if outcome.status() != 200 {
                    return Err(format!("{outcome:?} instead of 200"));
                }
                self.arrived(requests, &served)?;
                self.follow(&mut raw, &marker).await?;
            }
            Fate::Elsewhere(_) => return Ok(()),
        }
        let fresh = format!("/fresh/{number}");
        let mut other = self.connect().await;
        other.send(request(&fresh).as_bytes()).await.map_err(|error| error.to_string())?;
        own_answer(&other.response(PATIENCE).await, &fresh)
    }

    /// That nothing reached the upstream.
    fn untouched(&self, requests: usize, bytes: Option<usize>) -> Result<(), String> {
        let now = self.recorder.requests();
        if now.len() > requests {
            return Err(format!("the upstream got {:?}", &now[requests..]));
        }
        match bytes {
            Some(bytes) if self.recorder.bytes() > bytes => Err("the upstream got part of it".to_owned()),
            _ => Ok(()),
        }
    }

    /// That the upstream got what it should, and nothing else that is not a request of its own.
    fn arrived(&self, before: usize, expected: &Served) -> Result<(), String> {
        let all = self.recorder.requests();
        let Some(first) = all.get(before) else { return Err("nothing reached the upstream".to_owned()) };
        if first.line() != expected.line || first.body != expected.body.as_bytes() {
            return Err(format!("the upstream got {first:?}"));
        }
        for field in expected.has {
            let (name, value) = field.split_once(": ").unwrap();
            if first.fields(name) != [value] {
                return Err(format!("{field} is not in {first:?}"));
            }
        }
        match expected.lacks.iter().find(|name| !first.fields(name).is_empty()) {
            Some(name) => Err(format!("{name} is in {first:?}")),
            None => Ok(()),
        }
    }

    /// The next request on the same connection has its own answer, or the connection is closed. Answers to requests that
    /// the case itself sent ahead come first.
    async fn follow(&self, raw: &mut Raw, marker: &str) -> Result<(), String> {
        if raw.send(request(marker).as_bytes()).await.is_err() {
            return Ok(());
        }
        loop {
            match raw.response(PATIENCE).await {
                Outcome::Response { body, .. } if body == "/admin" || body == "/evil" => {}
                // What the case left on the connection is no part of a request.
                Outcome::Response { status: 501 | 400, .. } => return Ok(()),
                Outcome::Closed(rest) if rest.is_empty() => return Ok(()),
                outcome => return own_answer(&outcome, marker),
            }
        }
    }
}

/// That a request was refused: the status, and the end of the connection with nothing more on it.
async fn refused(raw: &mut Raw, outcome: &Outcome, statuses: &[u16]) -> Result<(), String> {
    let Outcome::Response { status, head, .. } = outcome else { return Err(format!("{outcome:?}")) };
    if !statuses.contains(status) || !head.contains("\r\nconnection: ") || !head.contains("close\r\n") {
        return Err(format!("{outcome:?}"));
    }
    match raw.rest(PATIENCE).await {
        None => Err("the connection stays open".to_owned()),
        Some(rest) if rest.is_empty() => Ok(()),
        Some(rest) => Err(format!("then came {:?}", String::from_utf8_lossy(&rest))),
    }
}

fn request(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: gw.test\r\n\r\n")
}

fn own_answer(outcome: &Outcome, target: &str) -> Result<(), String> {
    match outcome {
        Outcome::Response { status: 200, body, .. } if body == target => Ok(()),
        _ => Err(format!("{outcome:?} instead of an answer to {target}")),
    }
}

async fn all_cases(tls: bool) {
    let edge = Edge::start(tls).await;
    let mut wrong = Vec::new();
    for (number, case) in cases().iter().enumerate() {
        // Over TLS the cases of a scheme are turned round.
        if tls && case.id == "R19" {
            continue;
        }
        for cut in [Cut::Whole, Cut::Bytes, Cut::Lines] {
            if let Err(problem) = edge.run(case, cut, number).await {
                wrong.push(format!("{} {cut:?}: {problem}", case.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of the cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn nothing_malformed_gets_through_in_clear_text() {
    all_cases(false).await;
}

#[tokio::test]
async fn nothing_malformed_gets_through_over_tls() {
    all_cases(true).await;
}

#[test]
fn what_is_not_tested_here_is_tested_elsewhere() {
    let files = FATES.iter().filter_map(|(_, fate)| if let Fate::Elsewhere(file) = fate { Some(*file) } else { None });
    for file in files.filter(|file| !file.starts_with("edge_")) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
        assert!(path.exists(), "{}", path.display());
    }
}

#[tokio::test]
async fn refusals_are_counted_and_logged() {
    let edge = Edge::start(false).await;
    let mut raw = edge.connect().await;
    raw.send(b"POST /secret?token=x HTTP/1.1\r\nHost: gw.test\r\nContent-Length: 05\r\n\r\nhello").await.unwrap();
    assert_eq!(raw.response(PATIENCE).await.status(), 400);
    let line = edge.gateway.access_log(1).await.remove(0);
    assert_eq!((&line["status"], &line["error"]), (&json!(400), &json!("bad_length")), "{line}");
    assert_eq!((&line["method"], &line["path"]), (&json!("POST"), &json!("/secret")), "{line}");
    let counted = edge.gateway.metrics().await.sum("serin_refused_requests_total", &["reason=\"bad_length\""]);
    assert!((counted - 1.0).abs() < f64::EPSILON, "{counted}");
}
