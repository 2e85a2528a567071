//! Asks the admin API.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, IF_MATCH};
use http::{HeaderValue, Method, Request, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;

use super::{Common, Failure, What, exit, tls};
use crate::admin::{OPERATOR, ProblemDocument, token_text};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of one gateway's admin API.
pub(super) struct Client {
    agent: Agent,
    base: String,
    authorization: Option<HeaderValue>,
    operator: Option<HeaderValue>,
}

impl Client {
    /// A client as the command line asks for it.
    pub(super) fn new(common: &Common) -> Result<Self, Failure> {
        let base = common.admin.trim_end_matches('/').to_owned();
        let tls = base.starts_with("https://");
        if !tls && !base.starts_with("http://") {
            let message = format!("--admin: {base:?} is no URL such as http://127.0.0.1:9901 or https://gw-1:9901");
            return Err(Failure::usage(message));
        }
        let token = common.token_file.as_deref().map(token_text).transpose().map_err(Failure::usage)?;
        let authorization = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        let logged_in = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok();
        let operator = common.operator.clone().or_else(logged_in).and_then(|name| HeaderValue::from_str(&name).ok());
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).proxy(None);
        let config = if tls { config.tls_config(tls::config(common).map_err(Failure::usage)?) } else { config };
        Ok(Self { agent: config.build().into(), base, authorization, operator })
    }

    /// Where the gateway is.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Reads.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::GET, path, None, None)
    }

    /// Asks something that needs a body and changes nothing.
    pub(super) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.change(Method::POST, path, body, None)
    }

    /// Changes something; with `expect`, only if that revision is in force.
    pub(super) fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        expect: Option<u64>,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::failed(error.to_string()))?;
        self.ask(method, path, Some(body), expect)
    }

    /// Opens a stream without an end, to be read line by line.
    pub(super) fn stream(&self, path: &str) -> Result<Box<dyn BufRead>, Failure> {
        let url = format!("{}{path}", self.base);
        let request = self.request(Method::GET, &url).body(());
        let request = request.map_err(|error| Failure::usage(format!("{url}: {error}")))?;
        let config = self.agent.configure_request(request).timeout_global(None).timeout_connect(Some(PATIENCE));
        let mut answer = self.agent.run(config.build()).map_err(|error| self.unreachable(&error))?;
        if !answer.status().is_success() {
            let text = answer.body_mut().read_to_string().map_err(|error| self.unreachable(&error))?;
            understand::<serde_json::Value>(answer.status(), &text)?;
        }
        Ok(Box::new(BufReader::new(answer.into_body().into_reader())))
    }

    fn request(&self, method: Method, url: &str) -> http::request::Builder {
        let mut request = Request::builder().method(method).uri(url);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(operator) = &self.operator {
            request = request.header(OPERATOR, operator);
        }
        request
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::new(exit::UNREACHABLE, format!("the admin API at {} cannot be reached: {error}", self.base))
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        expect: Option<u64>,
    ) -> Result<T, Failure> {
        let url = format!("{}{path}", self.base);
        let mut request = self.request(method, &url);
        if let Some(revision) = expect {
            request = request.header(IF_MATCH, format!("\"{revision}\""));
        }
        let bad = |error: http::Error| Failure::usage(format!("{url}: {error}"));
        let answer = match body {
            Some(body) => self.agent.run(request.header(CONTENT_TYPE, "application/json").body(body).map_err(bad)?),
            None => self.agent.run(request.body(()).map_err(bad)?),
        };
        let unreachable = |error: ureq::Error| self.unreachable(&error);
        let mut answer = answer.map_err(unreachable)?;
        let text = answer.body_mut().with_config().limit(64 << 20).read_to_string().map_err(unreachable)?;
        understand(answer.status(), &text)
    }
}

fn understand<T: DeserializeOwned>(status: StatusCode, text: &str) -> Result<T, Failure> {
    let foreign =
        |error: serde_json::Error| Failure::failed(format!("{status}: no answer of a Serin gateway: {error}"));
    if status.is_success() {
        return serde_json::from_str(text).map_err(foreign);
    }
    let Ok(mut document) = serde_json::from_str::<ProblemDocument>(text) else {
        return Err(Failure::failed(format!("{status}: {}", text.chars().take(200).collect::<String>())));
    };
    let code = match status {
        StatusCode::PRECONDITION_FAILED => exit::CONFLICT,
        StatusCode::UNAUTHORIZED => {
            document.detail.push_str(" Name a file with it: `--token-file FILE` or SERIN_TOKEN_FILE (401).");
            exit::UNAUTHORIZED
        }
        _ => exit::FAILED,
    };
    Err(Failure { code, what: What::Refused(document) })
}

/// A name as one segment of a path.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_exit_codes() {
        let problem = r#"{"type": "about:blank", "title": "t", "status": 1, "detail": "d"}"#;
        let cases = [
            (200, "7", Ok(7)),
            (412, problem, Err(exit::CONFLICT)),
            (401, problem, Err(exit::UNAUTHORIZED)),
            (422, problem, Err(exit::FAILED)),
            (404, "<html>", Err(exit::FAILED)),
            (200, "<html>", Err(exit::FAILED)),
        ];
        for (status, text, expected) in cases {
            let got = understand::<u8>(StatusCode::from_u16(status).unwrap(), text);
            assert_eq!(got.map_err(|failure| failure.code), expected, "{status} {text}");
        }
    }
}
