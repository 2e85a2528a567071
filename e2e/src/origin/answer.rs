//! How an origin answers one request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use http::header::{CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Behaviour, PIECE, State};

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

pub(super) async fn answer(state: &State, sni: Option<&str>, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let behaviour = state.behaviour.lock().unwrap().clone().unwrap_or_else(|| by_path(request.uri().path()));
    let description = describe(state, sni, &request);
    match behaviour {
        Behaviour::Describe => read_then(request, StatusCode::OK, description).await,
        Behaviour::Status(code) => read_then(request, StatusCode::from_u16(code).unwrap(), description).await,
        Behaviour::Headers(headers) => {
            let mut reply = read_then(request, StatusCode::OK, description).await?;
            for (name, value) in headers {
                reply.headers_mut().insert(name, value.parse().unwrap());
            }
            Ok(reply)
        }
        Behaviour::Delay(time) => {
            tokio::time::sleep(time).await;
            read_then(request, StatusCode::OK, description).await
        }
        Behaviour::Work(time) => {
            let _worker = state.workers.acquire().await;
            tokio::time::sleep(time).await;
            read_then(request, StatusCode::OK, description).await
        }
        Behaviour::Hold => {
            let _ = state.released.subscribe().wait_for(|released| *released).await;
            read_then(request, StatusCode::OK, description).await
        }
        Behaviour::Reset => {
            drain(request).await?;
            Err(io::ErrorKind::ConnectionReset.into())
        }
        Behaviour::Sse => Ok(sse(state)),
        Behaviour::Echo => Ok(echo(request)),
        Behaviour::Trailers => Ok(trailers()),
        Behaviour::WebSocket => Ok(websocket(request)),
        Behaviour::Bytes(length) => Ok(bytes(length)),
        Behaviour::Grpc { status, in_head } => {
            drain(request).await?;
            Ok(grpc(status, in_head))
        }
        Behaviour::Sink => {
            let received = drain(request).await?;
            Ok(json_reply(StatusCode::OK, &json!({"name": state.name, "received": received})))
        }
    }
}

fn by_path(path: &str) -> Behaviour {
    let mut ends = path.rsplit('/');
    let (last, before) = (ends.next().unwrap_or_default(), ends.next().unwrap_or_default());
    match (before, last) {
        ("status", code) => Behaviour::Status(code.parse().unwrap()),
        ("delay", ms) => Behaviour::Delay(Duration::from_millis(ms.parse().unwrap())),
        ("bytes", length) => Behaviour::Bytes(length.parse().unwrap()),
        ("grpc", code) => Behaviour::Grpc { status: code.parse().unwrap(), in_head: false },
        ("grpc-head", code) => Behaviour::Grpc { status: code.parse().unwrap(), in_head: true },
        (_, "hold") => Behaviour::Hold,
        (_, "reset") => Behaviour::Reset,
        (_, "sse") => Behaviour::Sse,
        (_, "echo") => Behaviour::Echo,
        (_, "trailers") => Behaviour::Trailers,
        (_, "ws") => Behaviour::WebSocket,
        (_, "sink") => Behaviour::Sink,
        _ => Behaviour::Describe,
    }
}

fn describe(state: &State, sni: Option<&str>, request: &Request<Incoming>) -> Value {
    let mut headers = BTreeMap::<&str, Vec<&str>>::new();
    for (name, value) in request.headers() {
        headers.entry(name.as_str()).or_default().push(value.to_str().unwrap_or("not text"));
    }
    let headers: BTreeMap<_, _> = headers.into_iter().map(|(name, values)| (name, values.join(", "))).collect();
    let uri = request.uri();
    json!({
        "name": state.name,
        "method": request.method().as_str(),
        "path": uri.path_and_query().map_or("", |path| path.as_str()),
        "authority": uri.authority().map(|authority| authority.as_str()),
        "http": format!("{:?}", request.version()),
        "sni": sni,
        "headers": headers,
    })
}

async fn read_then(request: Request<Incoming>, status: StatusCode, mut value: Value) -> io::Result<Response<Body>> {
    value["received"] = drain(request).await?.into();
    Ok(json_reply(status, &value))
}

async fn drain(request: Request<Incoming>) -> io::Result<u64> {
    let mut body = request.into_body();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        received += frame.map_err(io::Error::other)?.data_ref().map_or(0, |data| data.len() as u64);
    }
    Ok(received)
}

fn json_reply(status: StatusCode, value: &Value) -> Response<Body> {
    let mut reply = Response::new(full(value.to_string()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply.headers_mut().insert("x-origin-secret", HeaderValue::from_static("from the origin"));
    reply
}

fn sse(state: &State) -> Response<Body> {
    let (events, mut released) = (state.events.subscribe(), state.released.subscribe());
    let frames = stream::unfold(events, |mut events| async move {
        let data = events.recv().await.ok()?;
        Some((frame(Bytes::from(format!("data: {data}\n\n"))), events))
    });
    let ended = async move {
        let _ = released.wait_for(|released| *released).await;
    };
    let mut reply = Response::new(StreamBody::new(frames.take_until(Box::pin(ended))).boxed_unsync());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    reply
}

fn echo(request: Request<Incoming>) -> Response<Body> {
    let kind = request.headers().get(CONTENT_TYPE).cloned();
    let mut reply = Response::new(request.into_body().boxed_unsync());
    if let Some(kind) = kind {
        reply.headers_mut().insert(CONTENT_TYPE, kind);
    }
    reply
}

fn grpc(status: u8, in_head: bool) -> Response<Body> {
    let said = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(u16::from(status)))]);
    let mut reply = if in_head {
        let mut reply = Response::new(full(""));
        *reply.headers_mut() = said;
        reply
    } else {
        let frames = [frame(Bytes::from_static(&[0, 0, 0, 0, 0])), Ok(Frame::trailers(said))];
        Response::new(StreamBody::new(stream::iter(frames)).boxed_unsync())
    };
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    reply
}

fn trailers() -> Response<Body> {
    let trailers = HeaderMap::from_iter([("x-trailer".parse().unwrap(), HeaderValue::from_static("end"))]);
    let frames = [frame(Bytes::from_static(b"body")), Ok(Frame::trailers(trailers))];
    let mut reply = Response::new(StreamBody::new(stream::iter(frames)).boxed_unsync());
    reply.headers_mut().insert("trailer", HeaderValue::from_static("x-trailer"));
    reply
}

fn bytes(length: u64) -> Response<Body> {
    let mut reply = Response::new(StreamBody::new(pieces(length).map(frame)).boxed_unsync());
    reply.headers_mut().insert("content-length", length.into());
    reply
}

/// A body of `length` bytes in pieces; each piece is filled with its number.
pub(crate) fn pieces(length: u64) -> impl futures_util::Stream<Item = Bytes> + Send + 'static {
    stream::unfold(0, move |sent: u64| async move {
        let size = (length - sent).min(PIECE as u64);
        let fill = (sent / PIECE as u64) as u8;
        (size > 0).then(|| (Bytes::from(vec![fill; size as usize]), sent + size))
    })
}

fn websocket(mut request: Request<Incoming>) -> Response<Body> {
    let Some(key) = request.headers().get(SEC_WEBSOCKET_KEY) else {
        return json_reply(StatusCode::BAD_REQUEST, &json!({"error": "no websocket handshake"}));
    };
    let accept = derive_accept_key(key.as_bytes());
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let (mut out, mut messages) =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await.split();
        while let Some(Ok(message)) = messages.next().await {
            if (message.is_text() || message.is_binary()) && out.send(message).await.is_err() {
                return;
            }
        }
    });
    let mut reply = Response::new(full(""));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    reply.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
    reply.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, accept.parse().unwrap());
    reply
}

fn frame(data: Bytes) -> Result<Frame<Bytes>, hyper::Error> {
    Ok(Frame::data(data))
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}
