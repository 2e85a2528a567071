//! The proxy as a service of pingora's that stops when the gateway says so. pingora's own way closes the listeners and
//! then sleeps for a fixed time.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::poll_immediate;
use pingora::apps::ServerApp;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service as ServiceTrait;
use pingora::services::listening::Service;
use tokio::sync::watch;

/// A service whose sockets are open already.
pub(super) struct Stoppable<A> {
    pub(super) service: Service<A>,
    /// Descriptors by address.
    pub(super) sockets: Vec<(String, i32)>,
    /// Becomes true when it is to stop.
    pub(super) stop: watch::Receiver<bool>,
    /// Is told once connections are accepted.
    pub(super) accepts: Arc<watch::Sender<bool>>,
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> ServiceTrait for Stoppable<A> {
    async fn start_service(&mut self, table: Option<ListenFds>, _pingoras: ShutdownWatch, tasks_per_listener: usize) {
        if let Some(table) = &table {
            let mut table = table.lock();
            self.sockets.drain(..).for_each(|(address, descriptor)| table.add(address, descriptor));
        }
        let mut serving = self.service.start_service(table, self.stop.clone(), tasks_per_listener);
        // The sockets are open, so that nothing is waited for before all of them are accepted on.
        let ended = poll_immediate(&mut serving).await;
        self.accepts.send_replace(true);
        if ended.is_none() {
            serving.await;
        }
    }

    fn name(&self) -> &str {
        self.service.name()
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        self.service.listen_addresses()
    }
}
