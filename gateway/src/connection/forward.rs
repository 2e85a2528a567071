//! What pingora asks of a stream besides bytes, answered by the stream that another one is around.

/// Implements pingora's traits of streams for a type whose field `stream` has them. What it reads and writes, and whether it
/// may be peeked into, is for the type to say.
macro_rules! forward_stream {
    ($outer:ty) => {
        #[async_trait::async_trait]
        impl pingora::protocols::Shutdown for $outer {
            async fn shutdown(&mut self) {
                pingora::protocols::Shutdown::shutdown(&mut *self.stream).await;
            }
        }

        impl pingora::protocols::UniqueID for $outer {
            fn id(&self) -> pingora::protocols::UniqueIDType {
                self.stream.id()
            }
        }

        impl pingora::protocols::Ssl for $outer {
            fn get_ssl(&self) -> Option<&pingora::protocols::tls::TlsRef> {
                self.stream.get_ssl()
            }

            fn get_ssl_digest(&self) -> Option<std::sync::Arc<pingora::protocols::tls::SslDigest>> {
                self.stream.get_ssl_digest()
            }

            fn selected_alpn_proto(&self) -> Option<pingora::protocols::ALPN> {
                self.stream.selected_alpn_proto()
            }
        }

        impl pingora::protocols::GetTimingDigest for $outer {
            fn get_timing_digest(&self) -> Vec<Option<pingora::protocols::TimingDigest>> {
                self.stream.get_timing_digest()
            }

            fn get_read_pending_time(&self) -> std::time::Duration {
                self.stream.get_read_pending_time()
            }

            fn get_write_pending_time(&self) -> std::time::Duration {
                self.stream.get_write_pending_time()
            }
        }

        impl pingora::protocols::GetProxyDigest for $outer {
            fn get_proxy_digest(&self) -> Option<std::sync::Arc<pingora::protocols::raw_connect::ProxyDigest>> {
                self.stream.get_proxy_digest()
            }
        }

        impl pingora::protocols::GetSocketDigest for $outer {
            fn get_socket_digest(&self) -> Option<std::sync::Arc<pingora::protocols::SocketDigest>> {
                self.stream.get_socket_digest()
            }
        }
    };
}

pub(super) use forward_stream;
