//! HTTP/2 connections of one listener, which have windows and limits of their own: pingora has one set of them for a
//! whole proxy.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::sync::watch;

use super::inbound::Inbound;
use super::limits::Limits;
use super::stopping;
use crate::proxy::Edge;

/// Serves whole HTTP/2 connections.
pub(super) struct Http2 {
    proxy: Arc<HttpProxy<Edge>>,
    options: HttpServerOptions,
    h2: H2Options,
}

impl Http2 {
    pub(super) fn new(proxy: Arc<HttpProxy<Edge>>, limits: &Limits) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        options.h2_idle_timeout = Some(limits.idle);
        Self { proxy, options, h2: limits.h2.clone() }
    }

    /// Serves a connection to its end.
    pub(super) async fn serve(self: &Arc<Self>, mut inbound: Box<Inbound>, limits: &Limits, shutdown: &ShutdownWatch) {
        if limits.requests.is_none() {
            inbound.expect_frames(None);
            ServerApp::process_new(self, inbound, shutdown).await;
            return;
        }
        // The end of the last request looks to pingora like the gateway's own.
        let (full, stop) = watch::channel(*shutdown.borrow());
        inbound.expect_frames(Some(full.clone()));
        let served = ServerApp::process_new(self, inbound, &stop);
        tokio::pin!(served);
        tokio::select! {
            _ = &mut served => return,
            () = stopping(shutdown.clone()) => { full.send_replace(true); }
        }
        served.await;
    }
}

impl HttpServerApp for Http2 {
    // As async_trait has it, without a second box around the proxy's.
    fn process_new_http<'a, 'b, 'c>(
        self: &'a Arc<Self>,
        session: ServerSession,
        shutdown: &'b ShutdownWatch,
    ) -> Pin<Box<dyn Future<Output = Option<ReusedHttpStream>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.proxy.process_new_http(session, shutdown)
    }

    fn h2_options(&self) -> Option<H2Options> {
        Some(self.h2.clone())
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }
}
