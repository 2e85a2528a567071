//! A connection to Nacos: requests go out one by one, pushes come in over a stream. It ends for good when it breaks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::login::Pass;
use super::message::{Payload, ServiceInfo, Verdict, setup};
use super::{DEADLINE, Server};
use crate::sources::Lost;

/// Largest message: a document may have 16 MiB, and what is larger is to be refused as a document.
const LARGEST: usize = 64 << 20;
/// How often a connection may be unknown to its server, and the pause after each time.
const SETTLE: (usize, Duration) = (40, Duration::from_millis(25));
/// What a server says of a connection that it does not know.
const UNREGISTERED: i64 = 301;

/// A connection to a server.
#[derive(Clone)]
pub(crate) struct Connection {
    channel: Channel,
    pass: Option<Arc<Pass>>,
    opened: Instant,
}

/// What a server sends without being asked.
pub(crate) enum Push {
    /// A configuration changed.
    Config {
        /// Its data id.
        data_id: String,
        /// Its group.
        group: String,
    },
    /// The instances of a service changed.
    Service(ServiceInfo),
}

/// Where pushes come in.
pub(crate) struct Pushes {
    stream: Streaming<Payload>,
    answers: mpsc::Sender<Payload>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigChanged {
    data_id: String,
    group: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceChanged {
    service_info: ServiceInfo,
}

impl Connection {
    /// Connects, logs in and introduces itself.
    pub(crate) async fn open(server: &Server) -> Result<(Self, Pushes), Lost> {
        let opened = async {
            let uri = format!("http://{}:{}", server.conf.address.host(), server.conf.grpc_port());
            let endpoint = Endpoint::from_shared(uri).map_err(Lost::because)?.connect_timeout(DEADLINE);
            let channel = endpoint.connect().await.map_err(|error| Lost(chain(&error)))?;
            let pass = Pass::of(server).map(Arc::new);
            let connection = Self { channel, pass, opened: Instant::now() };
            let _: Value = connection.call("ServerCheckRequest", json!({"module": "internal"})).await?;
            let pushes = connection.listen(server.tenant()).await?;
            // Answered as soon as the connection is known.
            connection.demand("HealthCheckRequest", json!({"module": "internal"})).await?;
            Ok((connection, pushes))
        };
        tokio::time::timeout(2 * DEADLINE, opened).await.unwrap_or_else(|_| Err(Lost(late(2 * DEADLINE))))
    }

    /// Sends a request and gives the answer, whatever it says. A server that has just been connected to, or is about to
    /// be, may not know the connection yet.
    pub(crate) async fn ask<A: DeserializeOwned>(&self, kind: &str, body: Value) -> Result<A, Lost> {
        let asked = async {
            for _ in 0..SETTLE.0 {
                let answer: Value = self.call(kind, body.clone()).await?;
                if answer["errorCode"] != UNREGISTERED || self.opened.elapsed() > DEADLINE {
                    return serde_json::from_value(answer).map_err(|e| Lost(format!("an answer that cannot be: {e}")));
                }
                tokio::time::sleep(SETTLE.1).await;
            }
            Err(Lost("the server does not take up the connection".to_owned()))
        };
        tokio::time::timeout(DEADLINE, asked).await.unwrap_or_else(|_| Err(Lost(late(DEADLINE))))
    }

    /// Sends a request that must be granted.
    pub(crate) async fn demand(&self, kind: &str, body: Value) -> Result<(), Lost> {
        let verdict: Verdict = self.ask(kind, body).await?;
        if verdict.is_good() { Ok(()) } else { Err(Lost(format!("{kind}: {}", verdict.problem()))) }
    }

    /// What every request carries.
    async fn headers(&self) -> Result<HashMap<String, String>, Lost> {
        let Some(pass) = &self.pass else { return Ok(HashMap::new()) };
        Ok(HashMap::from([("accessToken".to_owned(), pass.token().await?)]))
    }

    async fn call<A: DeserializeOwned>(&self, kind: &str, body: Value) -> Result<A, Lost> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST);
        grpc.ready().await.map_err(|error| Lost(chain(&error)))?;
        let payload = Payload::new(kind, self.headers().await?, &body);
        let answer = grpc.unary(
            tonic::Request::new(payload),
            PathAndQuery::from_static("/Request/request"),
            ProstCodec::<Payload, Payload>::default(),
        );
        let answer = answer.await.map_err(Lost::because)?.into_inner();
        let json = answer.json()?;
        serde_json::from_value(json).map_err(|error| Lost(format!("a {} that cannot be: {error}", answer.kind())))
    }

    async fn listen(&self, tenant: &str) -> Result<Pushes, Lost> {
        let (answers, outgoing) = mpsc::channel(16);
        let first = Payload::new("ConnectionSetupRequest", self.headers().await?, &setup(tenant));
        // There is room for one.
        let _ = answers.try_send(first);
        let outgoing = stream::unfold(outgoing, |mut outgoing| async { Some((outgoing.recv().await?, outgoing)) });
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST);
        grpc.ready().await.map_err(|error| Lost(chain(&error)))?;
        let stream = grpc.streaming(
            tonic::Request::new(outgoing),
            PathAndQuery::from_static("/BiRequestStream/requestBiStream"),
            ProstCodec::<Payload, Payload>::default(),
        );
        Ok(Pushes { stream: stream.await.map_err(Lost::because)?.into_inner(), answers })
    }
}

impl Pushes {
    /// The next push. Everything a server asks for is answered on the way.
    pub(crate) async fn next(&mut self) -> Result<Push, Lost> {
        loop {
            let payload = self.stream.message().await.map_err(Lost::because)?;
            let payload = payload.ok_or_else(|| Lost("the server ended the connection".to_owned()))?;
            let body = payload.json()?;
            let answer = match payload.kind() {
                "ConfigChangeNotifyRequest" => "ConfigChangeNotifyResponse",
                "NotifySubscriberRequest" => "NotifySubscriberResponse",
                "ClientDetectionRequest" => "ClientDetectionResponse",
                "SetupAckRequest" => "SetupAckResponse",
                "ConnectResetRequest" => return Err(Lost("the server wants another connection".to_owned())),
                _ => continue,
            };
            let verdict = json!({"resultCode": 200, "errorCode": 0, "requestId": body["requestId"]});
            let sent = self.answers.send(Payload::new(answer, HashMap::new(), &verdict)).await;
            sent.map_err(|_| Lost("the connection is closed".to_owned()))?;
            let unreadable = |error| Lost(format!("a {} that cannot be: {error}", payload.kind()));
            match answer {
                "ConfigChangeNotifyResponse" => {
                    let ConfigChanged { data_id, group } = serde_json::from_value(body).map_err(unreadable)?;
                    return Ok(Push::Config { data_id, group });
                }
                "NotifySubscriberResponse" => {
                    let changed: ServiceChanged = serde_json::from_value(body).map_err(unreadable)?;
                    return Ok(Push::Service(changed.service_info));
                }
                _ => {}
            }
        }
    }
}

fn late(deadline: Duration) -> String {
    format!("no answer within {deadline:?}")
}

/// An error of the transport with its reasons, which it does not tell by itself.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(reason) = source {
        text = format!("{text}: {reason}");
        source = reason.source();
    }
    text
}
