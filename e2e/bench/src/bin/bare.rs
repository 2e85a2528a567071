//! The yardstick: a pingora proxy tuned as Serin is, that routes, edits and measures nothing.
//!
//! `bare LISTEN UPSTREAM...` sends requests to the upstreams in turn, from one worker thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pingora::listeners::ListenerConfig;
use pingora::modules::http::HttpModules;
use pingora::prelude::{HttpPeer, Result};
use pingora::protocols::l4::stream::L4BufferSettings;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Seconds that an idle client connection is kept; longer than any scenario.
const KEEPALIVE_S: u64 = 600;

struct Bare {
    templates: Vec<HttpPeer>,
    turn: AtomicUsize,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    /// Without pingora's default, the response compression module.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, (): &mut ()) -> Result<()> {
        session.set_keepalive(Some(KEEPALIVE_S));
        Ok(())
    }

    async fn upstream_peer(&self, _session: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(self.templates[turn % self.templates.len()].clone()))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let listen = args.next().ok_or("usage: bare LISTEN UPSTREAM...")?;
    let upstreams = args.map(|a| a.parse()).collect::<std::result::Result<Vec<SocketAddr>, _>>()?;
    if upstreams.is_empty() {
        return Err("bare needs at least one upstream".into());
    }
    let templates = upstreams.into_iter().map(|address| HttpPeer::new(address, false, String::new())).collect();

    let mut server = Server::new_with_opt_and_conf(None, ServerConf { threads: 1, ..ServerConf::default() });
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare { templates, turn: AtomicUsize::new(0) });
    service.add_listener(ListenerConfig::tcp(listen).l4_buffer(L4BufferSettings::new(8192, 4096)));
    server.add_service(service);
    server.run_forever()
}
