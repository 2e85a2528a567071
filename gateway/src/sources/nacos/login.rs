//! Nacos gives tokens to users over HTTP.

use serde::Deserialize;

use super::{DEADLINE, Server};
use crate::sources::Lost;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    access_token: String,
}

/// A token for the user of a server; none if nobody is to log in.
pub(super) async fn token(server: &Server) -> Result<Option<String>, Lost> {
    let (Some(user), Some(password)) = (server.conf.username.clone(), server.password.clone()) else { return Ok(None) };
    let url = format!("http://{}/nacos/v1/auth/login", server.conf.address);
    let ask = move || {
        let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(DEADLINE)).build().into();
        let form = [("username", &*user), ("password", &*password)];
        agent.post(&url).send_form(form)?.body_mut().read_json::<Answer>()
    };
    let answer = tokio::task::spawn_blocking(ask).await.map_err(Lost::because)?;
    answer.map(|answer| Some(answer.access_token)).map_err(|error| Lost(format!("cannot log in: {error}")))
}
