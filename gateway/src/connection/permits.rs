//! Counts connections, in all and of each client address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use prometheus::IntGauge;

use super::limits::Limit;
use crate::conf;
use crate::proxy::head::is_trusted;

/// Bits of an IPv6 address that one client usually has for itself.
const NETWORK: u128 = !0 << 64;

/// How many connections there may be.
pub struct Permits {
    most: u32,
    per_ip: Option<u32>,
    /// Addresses that may have any number.
    trusted: Vec<IpNet>,
    open: AtomicU32,
    shown: Option<IntGauge>,
    by_ip: Mutex<HashMap<IpAddr, u32, foldhash::fast::RandomState>>,
}

/// A connection that is counted, until this is dropped.
pub struct Permit {
    permits: Arc<Permits>,
    ip: Option<IpAddr>,
}

impl Permits {
    /// So many as configured; `most` where that says nothing.
    #[must_use]
    pub fn new(conf: &conf::Limits, most: u32, trusted: &[IpNet]) -> Self {
        Self {
            most: conf.connections.map_or(most, NonZeroU32::get),
            per_ip: conf.connections_per_ip.map(NonZeroU32::get),
            trusted: trusted.to_vec(),
            open: AtomicU32::new(0),
            shown: None,
            by_ip: Mutex::default(),
        }
    }

    /// Shows how many are open.
    #[must_use]
    pub fn shown_in(self, gauge: IntGauge) -> Self {
        Self { shown: Some(gauge), ..self }
    }

    /// Counts one more connection of an address.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn enter(self: &Arc<Self>, ip: Option<IpAddr>) -> Result<Permit, Limit> {
        if self.open.fetch_add(1, Relaxed) >= self.most {
            self.open.fetch_sub(1, Relaxed);
            return Err(Limit::Connections);
        }
        self.shown.iter().for_each(IntGauge::inc);
        let mut permit = Permit { permits: Arc::clone(self), ip: None };
        if let (Some(most), Some(ip)) = (self.per_ip, ip.filter(|ip| !is_trusted(*ip, &self.trusted))) {
            let ip = key(ip);
            let mut by_ip = self.by_ip();
            let open = by_ip.entry(ip).or_default();
            if *open >= most {
                return Err(Limit::ConnectionsPerIp);
            }
            *open += 1;
            permit.ip = Some(ip);
        }
        Ok(permit)
    }

    /// Connections that are open.
    #[must_use]
    pub fn open(&self) -> u32 {
        self.open.load(Relaxed)
    }

    fn by_ip(&self) -> MutexGuard<'_, HashMap<IpAddr, u32, foldhash::fast::RandomState>> {
        // Whoever panicked with it left numbers that are right.
        self.by_ip.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.open.fetch_sub(1, Relaxed);
        self.permits.shown.iter().for_each(IntGauge::dec);
        let Some(ip) = self.ip else { return };
        let mut by_ip = self.permits.by_ip();
        if let Some(open) = by_ip.get_mut(&ip) {
            *open -= 1;
            if *open == 0 {
                by_ip.remove(&ip);
            }
        }
    }
}

/// What one client is counted under.
fn key(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(conf: &str, most: u32) -> Arc<Permits> {
        let conf = serde_json::from_str(conf).unwrap();
        Arc::new(Permits::new(&conf, most, &["10.0.0.0/8".parse().unwrap()]))
    }

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn what_is_dropped_is_counted_no_more() {
        let permits = permits(r#"{"connections": 2}"#, 9);
        let held = [permits.enter(None), permits.enter(ip("192.0.2.1"))];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(permits.enter(None).err(), Some(Limit::Connections));
        drop(held);
        assert_eq!(permits.open(), 0);
        assert!(permits.enter(None).is_ok());
    }

    #[test]
    fn a_client_is_an_address_or_a_network_of_ipv6() {
        let permits = permits(r#"{"connections_per_ip": 1}"#, 9);
        let _first = permits.enter(ip("192.0.2.1")).unwrap();
        assert_eq!(permits.enter(ip("192.0.2.1")).err(), Some(Limit::ConnectionsPerIp));
        assert_eq!(permits.enter(ip("::ffff:192.0.2.1")).err(), Some(Limit::ConnectionsPerIp));
        let second = permits.enter(ip("2001:db8::1")).unwrap();
        assert_eq!(permits.enter(ip("2001:db8::ffff:2")).err(), Some(Limit::ConnectionsPerIp));
        let _third = permits.enter(ip("2001:db8:0:1::1")).unwrap();
        assert_eq!(permits.open(), 3, "who is refused is not counted");
        drop(second);
        assert!(permits.enter(ip("2001:db8::2")).is_ok());
        assert_eq!(permits.by_ip().len(), 2, "who has none is forgotten");
        let proxies: Vec<_> = (0..5).map(|_| permits.enter(ip("10.1.2.3"))).collect();
        assert!(proxies.iter().all(Result::is_ok));
    }
}
