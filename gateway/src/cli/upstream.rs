//! `serin upstream`: upstreams to try things on. What they answer can be changed while they run, to see what the gateway
//! makes of it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Json, Response};
use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Failure;

/// Run upstreams to try things on, until Ctrl-C. Each answers with its version and with what it was asked.
#[derive(Debug, Args)]
#[command(after_help = "POST /-/status/503 makes an upstream answer everything with that status from then on, and \
                        POST /-/delay/200\nmakes it wait so many milliseconds before each answer; /-/status/200 and \
                        /-/delay/0 end that.")]
pub(super) struct Upstreams {
    /// Version and address of each.
    #[arg(required = true, value_name = "VERSION@ADDRESS")]
    upstreams: Vec<Upstream>,
}

/// Version and address of one upstream.
#[derive(Clone, Debug)]
struct Upstream {
    version: String,
    address: SocketAddr,
}

impl FromStr for Upstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (version, address) = text.split_once('@').ok_or("expected VERSION@ADDRESS such as v1@127.0.0.1:9001")?;
        let address = address.parse().map_err(|_| format!("{address:?} is no address such as 127.0.0.1:9001"))?;
        Ok(Self { version: version.to_owned(), address })
    }
}

impl Upstreams {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failure::failed(error.to_string()))?.block_on(self.serve())
    }

    async fn serve(&self) -> Result<(), Failure> {
        let failed = |address: SocketAddr| {
            move |error: std::io::Error| Failure::failed(format!("cannot listen on {address}: {error}"))
        };
        let mut servers = tokio::task::JoinSet::new();
        for Upstream { version, address } in &self.upstreams {
            let listener = TcpListener::bind(address).await.map_err(failed(*address))?;
            let app = app(version, *address);
            servers.spawn(async move { axum::serve(listener, app).await });
            // If standard output is closed, there is nobody to tell.
            let _ = writeln!(std::io::stdout().lock(), "{version} at http://{address}");
        }
        while servers.join_next().await.is_some() {}
        Ok(())
    }
}

/// How an upstream behaves just now.
#[derive(Default)]
struct Behaviour {
    /// 0 is to answer as asked.
    status: AtomicU16,
    delay_ms: AtomicU64,
}

/// The server of one upstream.
pub(super) fn app(version: &str, address: SocketAddr) -> Router {
    let (version, behaviour): (Arc<str>, _) = (version.into(), Arc::<Behaviour>::default());
    let answer = move |request: Request| answer(Arc::clone(&version), address, Arc::clone(&behaviour), request);
    Router::new().fallback(answer)
}

async fn answer(version: Arc<str>, address: SocketAddr, behaviour: Arc<Behaviour>, request: Request) -> Response {
    if let Some(told) = request.uri().path().strip_prefix("/-/") {
        return tell(&behaviour, told).into_response();
    }
    let delay = behaviour.delay_ms.load(Relaxed);
    if delay > 0 {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let body = Json(describe(&version, address, &request));
    match StatusCode::from_u16(behaviour.status.load(Relaxed)) {
        Ok(status) => (status, body).into_response(),
        Err(_) => body.into_response(),
    }
}

/// Changes how an upstream behaves: `status/503` or `delay/200`.
fn tell(behaviour: &Behaviour, told: &str) -> (StatusCode, &'static str) {
    let done = match told.split_once('/') {
        Some(("status", status)) => status.parse().ok().filter(|status| (200..600).contains(status)).map(|status| {
            behaviour.status.store(status, Relaxed);
        }),
        Some(("delay", delay)) => delay.parse().ok().map(|delay| behaviour.delay_ms.store(delay, Relaxed)),
        _ => None,
    };
    done.map_or((StatusCode::BAD_REQUEST, "expected /-/status/503 or /-/delay/200\n"), |()| (StatusCode::OK, "done\n"))
}

/// What an upstream answers: who it is and what it was asked.
fn describe(version: &str, address: SocketAddr, request: &Request) -> Value {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    json!({
        "version": version,
        "instance": address.to_string(),
        "path": request.uri().path(),
        "user": header("x-user-id"),
        "x-serin-subset": header("x-serin-subset"),
    })
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn an_upstream_does_as_it_is_told() {
        let app = app("v2", ([127, 0, 0, 1], 9003).into());
        let ask = async |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).header("x-user-id", "7").body(Body::empty());
            let (head, body) = app.clone().oneshot(request.unwrap()).await.unwrap().into_parts();
            (head.status.as_u16(), String::from_utf8(to_bytes(body, 10_000).await.unwrap().to_vec()).unwrap())
        };
        let (status, body) = ask("GET", "/users/7").await;
        assert_eq!(status, 200);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&body["version"], &body["user"], &body["path"]), (&json!("v2"), &json!("7"), &json!("/users/7")));
        for (told, answered, then) in [
            ("/-/status/503", 200, 503),
            ("/-/status/7", 400, 503),
            ("/-/delay/1", 200, 503),
            ("/-/nonsense", 400, 503),
            ("/-/status/200", 200, 200),
        ] {
            assert_eq!(ask("POST", told).await.0, answered, "{told}");
            assert_eq!(ask("GET", "/").await.0, then, "after {told}");
        }
    }

    #[test]
    fn upstreams_are_versions_at_addresses() {
        for (text, fine) in [("v1@127.0.0.1:9001", true), ("v1@[::1]:9001", true), ("v1", false), ("v1@9001", false)] {
            assert_eq!(text.parse::<Upstream>().is_ok(), fine, "{text}");
        }
    }
}
