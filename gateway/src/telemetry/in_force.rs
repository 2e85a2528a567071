//! What has series: the services, instances, subsets, routes and limits of the generation in force.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serin_core::snapshot::Service;

use super::names;
use crate::control::generation::{Generation, ServiceSide};
use crate::ease;
use crate::limits::RateLimit;

/// What a label says where it stands for nothing of the configuration's own.
const NONE: [&str; 3] = ["", "none", "any"];
/// The strategy in place of a chain that is out.
const PLAIN: &str = "round_robin";

/// The names of a generation that are values of labels.
#[derive(Clone, Default)]
pub struct InForce {
    services: HashMap<Arc<str>, Arc<Names>>,
    /// The service of every route; `none` where it has none.
    routes: HashMap<Arc<str>, Arc<str>>,
    /// Scope, owner and name of every rate limit.
    limits: HashSet<[Arc<str>; 3]>,
}

/// The names of one service.
struct Names {
    subsets: HashSet<Arc<str>>,
    instances: HashSet<String>,
    rules: HashSet<(Arc<str>, Arc<str>)>,
    narrows: HashSet<Arc<str>>,
    strategy: Arc<str>,
    outlier: bool,
    breaker: bool,
    concurrency: bool,
    load: bool,
}

impl InForce {
    /// The names of a generation.
    #[must_use]
    pub fn of(generation: &Generation) -> Self {
        let mut names = Self::default();
        let services = &generation.core.services;
        for (service, side) in services.iter().zip(&generation.services) {
            names.services.insert(Arc::clone(&service.name), Arc::new(Names::of(service, side)));
            names.add_limits("service", &service.name, &side.rate_limits);
        }
        for (route, side) in generation.core.routes.routes().iter().zip(generation.routes.iter()) {
            names.routes.insert(Arc::clone(&route.name), Arc::clone(side.metrics.service()));
            names.add_limits("route", &route.name, &side.rate_limits);
            ease::breathe();
        }
        names
    }

    /// The same with other instances of some services, by position.
    #[must_use]
    pub fn repopulated(&self, generation: &Generation, services: &[usize]) -> Self {
        let mut names = self.clone();
        for &at in services {
            let (service, side) = (&generation.core.services[at], &generation.services[at]);
            names.services.insert(Arc::clone(&service.name), Arc::new(Names::of(service, side)));
        }
        names
    }

    fn add_limits(&mut self, scope: &str, owner: &Arc<str>, limits: &[RateLimit]) {
        let labels = limits.iter().map(|limit| [scope.into(), Arc::clone(owner), limit.limiter.rule.name.clone()]);
        self.limits.extend(labels);
    }

    /// Whether the series of a family with these labels is of something that is in force. Labels that name nothing of
    /// the configuration are of no account.
    pub fn keeps<'a>(&self, family: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        if let (Some(scope), Some(owner), Some(rule)) = (label("scope"), label("owner"), label("rule")) {
            return self.limits.contains(&[scope.into(), owner.into(), rule.into()]);
        }
        let Some(service) = label("service") else { return true };
        if let Some(route) = label("route").filter(|route| !NONE.contains(route))
            && self.routes.get(route).is_none_or(|of| **of != *service)
        {
            return false;
        }
        NONE.contains(&service) || self.services.get(service).is_some_and(|names| names.keep(family, label))
    }
}

impl Names {
    fn of(service: &Service, side: &ServiceSide) -> Self {
        let rule =
            |rule: &serin_core::tag::TagRule| (Arc::clone(&rule.name), Arc::clone(&service.subsets[rule.subset].name));
        Self {
            subsets: service.subsets.iter().map(|subset| Arc::clone(&subset.name)).collect(),
            instances: service.instances.iter().map(|instance| instance.address.to_string()).collect(),
            rules: service.tags.iter().map(rule).collect(),
            narrows: service.any.chain.missed().map(|(name, _)| Arc::clone(name)).collect(),
            strategy: Arc::clone(&side.metrics.strategy),
            outlier: service.guards.outlier.is_some(),
            breaker: service.subsets.iter().any(|subset| subset.breaker.is_some()),
            concurrency: side.concurrency.is_some(),
            load: side.load.is_some(),
        }
    }

    fn keep<'a>(&self, family: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let fine = |name: &str, known: &dyn Fn(&str) -> bool| label(name).is_none_or(known);
        let rule = |rule: &str| {
            let subset = label("subset").unwrap_or_default();
            self.rules.iter().any(|(name, of)| **name == *rule && **of == *subset)
        };
        self.has_part(family)
            && fine("subset", &|subset| NONE.contains(&subset) || self.subsets.contains(subset))
            && fine("instance", &|instance| self.instances.contains(instance))
            && fine("rule", &rule)
            && fine("narrow", &|narrow| self.narrows.contains(narrow))
            && fine("strategy", &|strategy| strategy == PLAIN || strategy == &*self.strategy)
    }

    /// Whether the service has what a family is of, if that is something that can be left out.
    fn has_part(&self, family: &str) -> bool {
        match family {
            names::EJECTIONS | names::DEGRADED => self.outlier,
            names::BREAKER | names::BREAKER_TURNS => self.breaker,
            names::CONCURRENCY_LIMIT | names::CONCURRENCY_IN_FLIGHT | names::CONCURRENCY_REFUSED => self.concurrency,
            names::LOAD_REPORTS => self.load,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::admin::tests::control;

    const LIMITS: &str = "
    rate_limits: [ { name: all, limit: 5/s } ]
    circuit_breaker: {}
    outlier_detection: {}
    concurrency: { adaptive: {} }
    load_reports: {}";

    fn routing(services: &str, routes: &str) -> String {
        format!("services:\n{services}\nroutes:\n{routes}\n")
    }

    fn users(instances: &[u16], subsets: &str, rest: &str) -> String {
        let instances: Vec<_> = instances
            .iter()
            .map(|port| format!("{{ address: '127.0.0.1:{port}', labels: {{ version: v{} }} }}", port % 10))
            .collect();
        format!("  users:\n    instances: [ {} ]\n    subsets: {subsets}\n    stable: v1{rest}", instances.join(", "))
    }

    const ROUTE: &str = "  - { name: users, match: { path: { prefix: /u } }, service: users }";

    #[test]
    fn series_come_and_go_with_the_configuration_and_counts_of_what_stays_go_on() {
        let (dir, control) = control("127.0.0.1:9901");
        let put = |text: &str| {
            std::fs::write(dir.path().join("routing.yaml"), text).unwrap();
            control.reload();
            assert!(control.status().routing.refused.is_none(), "{text}");
        };
        let told = || {
            crate::upkeep::observe(&control.current());
            control.metrics().render().unwrap()
        };
        let series = |page: &str, of: &str| page.lines().filter(|line| line.contains(of)).count();

        // Else the weights of what leaves would keep it in.
        std::fs::write(dir.path().join("traffic.yaml"), "services: {}").unwrap();
        control.reload();
        put(&routing(
            &users(&[9001, 9002], "{ v1: { version: v1 }, v2: { version: v2 } }", LIMITS),
            &format!("{ROUTE}\n  - {{ name: more, match: {{ path: {{ prefix: /more }} }}, service: users }}"),
        ));
        let first = control.current();
        let side = &first.services[0];
        for at in 0..2 {
            side.metrics.instances[at].selections.inc_by(3);
            first.routes[at].metrics.count(Some(at), 200);
            let instance = first.core.services[0].instances[at].address;
            side.metrics.time_call(at as u32, instance, false, Duration::from_millis(1));
        }
        let page = told();
        let parts =
            ["serin_breaker_state", "serin_ejections_total", "serin_concurrency_limit", "serin_load_reports_total"];
        for of in parts.into_iter().chain([":9002\"", "subset=\"v2\"", "route=\"more\"", "rule=\"all\""]) {
            assert!(series(&page, of) > 0, "{of}\n{page}");
        }

        // An instance, a subset, a route and all guards leave; a service joins.
        let orders = "  orders: { instances: [ { address: '127.0.0.1:9005' } ] }";
        let left = users(&[9001], "{ v1: { version: v1 } }", "");
        put(&routing(&format!("{left}\n{orders}"), ROUTE));
        let page = told();
        for of in parts.into_iter().chain([":9002\"", "subset=\"v2\"", "route=\"more\"", "rule=\"all\""]) {
            let lines: Vec<_> = page.lines().filter(|line| line.contains(of) && !line.starts_with('#')).collect();
            assert!(lines.is_empty(), "{of}: {lines:?}");
        }
        assert!(series(&page, "service=\"orders\"") > 10);
        for line in [
            "serin_selections_total{instance=\"127.0.0.1:9001\",service=\"users\"} 3",
            "serin_requests_total{code=\"2xx\",route=\"users\",service=\"users\",subset=\"v1\"} 1",
            "serin_upstream_request_duration_seconds_count{instance=\"127.0.0.1:9001\",service=\"users\",strategy=\"round_robin\"} 1",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }

        // Requests that began before make no series of what left, and count for what stayed.
        first.routes[1].metrics.count(Some(1), 503);
        first.routes[0].metrics.count(Some(0), 503);
        side.metrics.time_call(1, ([127, 0, 0, 1], 9002).into(), true, Duration::from_millis(1));
        side.metrics.instances[0].selections.inc();
        let page = told();
        assert_eq!((series(&page, "route=\"more\""), series(&page, ":9002\"")), (0, 0), "{page}");
        assert_eq!(series(&page, "code=\"5xx\",route=\"users\""), 1, "{page}");
        assert!(page.contains("serin_selections_total{instance=\"127.0.0.1:9001\",service=\"users\"} 4"), "{page}");

        // A service leaves, and comes back with nothing of what it was.
        put(&routing(orders, "  - { name: o, match: { path: { prefix: /o } }, service: orders }"));
        assert_eq!(series(&told(), "service=\"users\""), 0);
        put(&routing(&format!("{left}\n{orders}"), ROUTE));
        assert!(told().contains("serin_selections_total{instance=\"127.0.0.1:9001\",service=\"users\"} 0"));
    }
}
