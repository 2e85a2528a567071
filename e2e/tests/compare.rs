//! What Serin and other proxies make of the same messages, sent to each in front of the same recording upstream. Not part
//! of `make test`: `make compare` runs it, prints what happened, and writes `target/compare.md`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic in their helpers as well")]

#[path = "compare/peer.rs"]
mod peer;
#[path = "compare/report.rs"]
mod report;
#[expect(dead_code, reason = "what becomes of each message at the gateway is for bad_input.rs")]
#[path = "bad_input/table.rs"]
mod table;

use std::fmt;
use std::time::Duration;

use serin_e2e::raw::Outcome;
use serin_e2e::recorder::Recorded;
use serin_e2e::{Raw, Recorder};

use self::peer::Peer;
use self::table::{Case, cases};

/// Longer than what the proxies are told to wait.
const PATIENCE: Duration = Duration::from_secs(4);

/// How long after an answer the upstream is looked at.
const SETTLE: Duration = Duration::from_millis(50);

/// What a proxy made of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Made {
    /// It was refused with this status, and no whole request reached the upstream. Status 0 is a connection that was closed.
    Refused {
        /// The status.
        status: u16,
        /// Whether part of a request had been passed on.
        late: bool,
    },
    /// The upstream got it as it was sent.
    Passed,
    /// The upstream got it with this changed.
    Changed(String),
    /// The proxy answered by itself, without an error.
    Answered(u16),
    /// The upstream got it, or part of it, and the client an error.
    Failed(u16),
    /// There was no answer.
    Silent,
    /// Somebody got an answer to another request.
    Mixed(String),
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { status: 0, late: false } => f.write_str("closed"),
            Self::Refused { status: 0, late: true } => f.write_str("closed, part passed on"),
            Self::Refused { status, late: false } => write!(f, "{status}"),
            Self::Refused { status, late: true } => write!(f, "{status}, part passed on"),
            Self::Passed => f.write_str("passed on"),
            Self::Changed(what) => write!(f, "passed on, {what}"),
            Self::Answered(status) => write!(f, "answered {status}"),
            Self::Failed(status) => write!(f, "passed on, then {status}"),
            Self::Silent => f.write_str("no answer"),
            Self::Mixed(what) => write!(f, "mixed up: {what}"),
        }
    }
}

/// Sends one message, and requests after it on the same connection and on a new one.
async fn send(peer: &Peer, recorder: &Recorder, case: &Case, number: usize) -> Made {
    let (before, bytes) = (recorder.requests().len(), recorder.bytes());
    let mut raw = Raw::connect(peer.address).await;
    raw.send_pieces(&[&case.bytes]).await;
    let outcome = raw.response(PATIENCE).await;
    // What a proxy refuses it may have begun to pass on a moment before.
    tokio::time::sleep(SETTLE).await;
    let arrived = recorder.requests().split_off(before);
    let part = recorder.bytes() > bytes;
    let made = match (&outcome, arrived.first()) {
        (Outcome::Silent, _) => Made::Silent,
        (Outcome::Closed(_), None) => Made::Refused { status: 0, late: part },
        (Outcome::Closed(_), Some(_)) => Made::Failed(0),
        (Outcome::Response { status: 200..400, body, .. }, Some(first)) if says(body, &target(first)) => {
            difference(&case.bytes, first).map_or(Made::Passed, Made::Changed)
        }
        (Outcome::Response { status: 200..400, body, .. }, Some(first)) => {
            Made::Mixed(format!("{} was answered with {body}", target(first)))
        }
        (Outcome::Response { status, .. }, None) if *status < 400 => Made::Answered(*status),
        (Outcome::Response { status, .. }, None) => Made::Refused { status: *status, late: part },
        (Outcome::Response { status, .. }, Some(_)) => Made::Failed(*status),
    };
    if matches!(made, Made::Mixed(_)) {
        return made;
    }
    let follow = follow(&mut raw, recorder, before, number).await;
    let fresh = fresh(peer, number).await;
    follow.or(fresh).map_or(made, Made::Mixed)
}

/// A request on the same connection: it has its own answer, after those to requests that the message brought, or an
/// error, or none. What is wrong if not.
async fn follow(raw: &mut Raw, recorder: &Recorder, before: usize, number: usize) -> Option<String> {
    let marker = format!("/marker/{number}");
    raw.send(request(&marker).as_bytes()).await.ok()?;
    loop {
        let Outcome::Response { status: 200, body, .. } = raw.response(PATIENCE).await else { return None };
        if says(&body, &marker) {
            return None;
        }
        // The upstream says what it was asked for: one that the message brought beside the first is no surprise.
        let brought = recorder.requests().split_off(before);
        if !brought.iter().any(|request| target(request) == body) {
            return Some(format!("{marker} was answered with {body}"));
        }
    }
}

/// A request on a new connection, which may get the upstream connection that the message left. What is wrong if anything.
async fn fresh(peer: &Peer, number: usize) -> Option<String> {
    let marker = format!("/fresh/{number}");
    let mut raw = Raw::connect(peer.address).await;
    raw.send(request(&marker).as_bytes()).await.ok()?;
    match raw.response(PATIENCE).await {
        Outcome::Response { status: 200, body, .. } if body == marker => None,
        Outcome::Response { status, body, .. } => {
            Some(format!("{marker} was answered with {status} {}", body.lines().next().unwrap_or_default()))
        }
        _ => Some(format!("{marker} was not answered")),
    }
}

/// Whether a response may be the upstream's to a request for this target. Envoy drops the body of an answer that declines a
/// WebSocket, and then it says nothing of what it is an answer to.
fn says(body: &str, target: &str) -> bool {
    body == target || body.is_empty()
}

fn request(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: gw.test\r\n\r\n")
}

fn target(request: &Recorded) -> String {
    request.line().split(' ').nth(1).unwrap_or_default().to_owned()
}

/// What is different in what arrived, in a word: nothing if it is `None`. What concerns one connection alone is of no
/// account.
fn difference(sent: &[u8], arrived: &Recorded) -> Option<String> {
    let text = String::from_utf8_lossy(sent);
    let text = text.trim_start_matches("\r\n");
    let (head, body) = text.split_once("\r\n\r\n").or_else(|| text.split_once("\n\n")).unwrap_or((text, ""));
    let mut lines = head.split('\n').map(|line| line.trim_end_matches('\r'));
    let line = lines.next().unwrap_or_default();
    if line != arrived.line() {
        let target = |line: &str| line.split(' ').nth(1).unwrap_or_default().to_owned();
        let (old, new) = (target(line), target(arrived.line()));
        return Some(if old == new { format!("as {}", arrived.line()) } else { format!("as {new}") });
    }
    if chunked(arrived) && !head.to_ascii_lowercase().contains("chunked") {
        return Some("in chunks".to_owned());
    }
    for field in lines {
        let (name, value) = field.split_once(':').unwrap_or((field, ""));
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        let hop = ["connection", "keep-alive", "upgrade", "http2-settings", "te", "expect"].contains(&&*name);
        if !hop && !arrived.fields(&name).contains(&value) {
            let gone = arrived.fields(&name).is_empty();
            return Some(match &*name {
                "transfer-encoding" if gone => "with a length".to_owned(),
                _ => format!("{name} {}", if gone { "dropped" } else { "changed" }),
            });
        }
    }
    let bare = |text: &str| text.matches('\n').count() > text.matches("\r\n").count();
    if bare(head) && !bare(&arrived.head) {
        return Some("with CRLF".to_owned());
    }
    // What comes after the body is another request, or none.
    let same = sent.windows(arrived.body.len().max(1)).any(|window| window == arrived.body) || arrived.body.is_empty();
    (!same || (arrived.body.is_empty() && chunked(arrived) && !body.is_empty())).then(|| "chunks rewritten".to_owned())
}

fn chunked(request: &Recorded) -> bool {
    !request.fields("transfer-encoding").is_empty()
}

/// Everything that was made of one message, in the order of the proxies.
struct Row {
    case: Case,
    made: Vec<Made>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a comparison, not a test: make compare"]
async fn compare() {
    let runs = peer::ALL.iter().map(|name| async move {
        let recorder = Recorder::start().await;
        let peer = Peer::start(name, &recorder).await;
        let mut made = vec![];
        for (number, case) in cases().iter().enumerate() {
            made.push(send(&peer, &recorder, case, number).await);
            if number % 25 == 24 {
                eprintln!("compare: {name}: {} messages", number + 1);
            }
        }
        (peer.version.clone(), made)
    });
    let runs = futures_util::future::join_all(runs).await;
    let (versions, columns): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let row = |(number, case): (usize, Case)| {
        let made = columns.iter().map(|made: &Vec<Made>| made[number].clone()).collect();
        Row { case, made }
    };
    let rows: Vec<_> = cases().into_iter().enumerate().map(row).collect();
    let text = report::write(&versions, &rows);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/compare.md");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, &text).unwrap();
    println!("{text}\ncompare: target/compare.md");
}
