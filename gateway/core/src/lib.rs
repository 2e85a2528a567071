//! The decisions of the Serin gateway, free of I/O: no sockets, no clock, no global randomness. A decision is a pure
//! function of (snapshot, request, now, seed), so it can be tested, explained and replayed. Read [`decide`] first.

pub mod available;
pub mod breaker;
pub mod calls;
pub mod candidates;
pub mod chain;
pub mod check;
pub mod concurrency;
pub mod condition;
pub mod decide;
pub mod guard;
pub mod instance;
pub mod lifetime;
pub mod limit;
pub mod live;
pub mod load;
pub mod matcher;
pub mod outlier;
pub mod path;
pub mod plugin;
pub mod proxy_protocol;
pub mod ramp;
pub mod request;
pub mod retry;
pub mod route;
pub mod selfguard;
pub mod signals;
pub mod slow_start;
pub mod snapshot;
pub mod strict;
pub mod subset;
pub mod tag;
pub mod window;
