//! Nacos gives tokens to users over HTTP. They are good for a while, and fetched anew before that is over, so that no request
//! is turned away in between.

use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::Mutex;

use super::{DEADLINE, Server};
use crate::sources::Lost;

/// How long a token is good that says nothing of that.
const USUAL: Duration = Duration::from_secs(3_600);

/// What shows that a user of a server is who he says.
pub(super) struct Pass {
    url: String,
    user: String,
    password: String,
    token: Mutex<Option<Token>>,
}

struct Token {
    text: String,
    /// From when on another one is asked for.
    renew: Instant,
    /// Until when it is good.
    end: Instant,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    access_token: String,
    /// In seconds.
    #[serde(default)]
    token_ttl: Option<u64>,
}

impl Pass {
    /// That of a server's user; none if nobody is to log in.
    pub(super) fn of(server: &Server) -> Option<Self> {
        Some(Self {
            url: format!("http://{}/nacos/v1/auth/login", server.conf.address),
            user: server.conf.username.clone()?,
            password: server.password.clone()?,
            token: Mutex::default(),
        })
    }

    /// A token that is good.
    pub(super) async fn token(&self) -> Result<String, Lost> {
        let mut token = self.token.lock().await;
        let now = Instant::now();
        if let Some(token) = token.as_ref().filter(|token| now < token.renew) {
            return Ok(token.text.clone());
        }
        match (self.log_in().await, token.as_ref()) {
            (Ok(new), _) => Ok(token.insert(new).text.clone()),
            // It cannot be renewed just now, but is good for a little longer.
            (Err(_), Some(old)) if now < old.end => Ok(old.text.clone()),
            (Err(lost), _) => Err(lost),
        }
    }

    async fn log_in(&self) -> Result<Token, Lost> {
        let (url, user, password, began) = (self.url.clone(), self.user.clone(), self.password.clone(), Instant::now());
        let ask = move || {
            let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(DEADLINE)).build().into();
            let form = [("username", &*user), ("password", &*password)];
            agent.post(&url).send_form(form)?.body_mut().read_json::<Answer>()
        };
        let answer = tokio::task::spawn_blocking(ask).await.map_err(Lost::because)?;
        let answer = answer.map_err(|error| Lost(format!("cannot log in: {error}")))?;
        let good = answer.token_ttl.map_or(USUAL, Duration::from_secs);
        Ok(Token { text: answer.access_token, renew: began + good * 3 / 4, end: began + good })
    }
}
